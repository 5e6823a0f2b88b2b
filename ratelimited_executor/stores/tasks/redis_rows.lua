-- List the tasks in a state, in the order of their numbers or its reverse: those on one page.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   state          their state; -1 for any
--   after, limit   the number behind which the page begins, 0 for the beginning; the maximum number of tasks
--   size           how many bytes of arguments and saved states end the page
--   newest_first   whether the order is the reverse
--   body_max       how many bytes of the arguments of a task, and of its saved state, are listed: the first ones
--
-- REPLY: the number to continue with, -1 if there are no more; the tasks; the owners, and their records.

local PAGE = 1000
local key = args.state == DEAD and keys.dead or (args.state == UNKNOWN or args.state == PAUSED) and keys.unknown or keys.ids
local count = (args.state < 0 or args.state == DEAD) and math.min(PAGE, args.limit) or PAGE  -- of others, some are passed over
local from, numbers, chosen, bodies, states = string.format('(%.0f', args.after), {}, {}, {}, {}
local bounds = {from, '+inf', 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES'}
if args.newest_first then bounds = {args.after == 0 and '+inf' or from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, count, 'WITHSCORES'} end
local found = redis.call('ZRANGE', key, unpack(bounds))
for index = 2, #found, 2 do numbers[index / 2] = number_of(tonumber(found[index])) end
read_tasks(numbers)
local last, size = #numbers == count and numbers[count], 0
for _, number in ipairs(numbers) do
  if #chosen == args.limit then break end
  local task = tasks[number]
  if task and (args.state < 0 or shown(task) == args.state) then
    local body, state = '', ''
    if args.body_max > 0 then
      body = redis.call('HGET', keys.bodies, number) or ''
      body = sub(body, 1, (string.find(body, '\0', 1, true) or 0) + args.body_max)  -- the arguments are behind the cost
      state = sub(state_of(number), 1, args.body_max)
    end
    chosen[#chosen + 1], bodies[#bodies + 1], states[#states + 1] = number, body, state
    size = size + #body + #state
    if size >= args.size then
      last = number
      break
    end
  end
end
return {last and (unpacked('>d', last)) or -1, for_people(chosen, bodies, states)}
