-- List the tasks in a state, in the order of their numbers: those on one page.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   state          their state; -1 for any
--   size           how many bytes of arguments and saved states end the page
--   after, limit   the number after which the page begins; the maximum number of tasks
--
-- REPLY: the number to continue with, -1 if there are no more; the tasks; the owners, and their records.

local PAGE = 1000
local from, numbers, chosen, bodies, states = string.format('(%.0f', args.after), {}, {}, {}, {}
if args.state == DEAD or args.state == UNKNOWN or args.state == PAUSED then
  local key = args.state == DEAD and keys.dead or keys.unknown
  numbers = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'LIMIT', 0, PAGE)
else
  local found = redis.call('ZRANGEBYSCORE', keys.ids, from, '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE)
  for index = 2, #found, 2 do numbers[index / 2] = number_of(tonumber(found[index])) end
end
read_tasks(numbers)
local last, size = #numbers == PAGE and numbers[PAGE], 0
for _, number in ipairs(numbers) do
  if #chosen == args.limit then break end
  local task = tasks[number]
  if task and (args.state < 0 or shown(task) == args.state) then
    local body = redis.call('HGET', keys.bodies, number) or ''
    local state = state_of(number)
    chosen[#chosen + 1], bodies[#bodies + 1], states[#states + 1] = number, body, state
    size = size + #body + #state
    if size >= args.size then
      last = number
      break
    end
  end
end
return {last and (unpacked('>d', last)) or -1, for_people(chosen, bodies, states)}
