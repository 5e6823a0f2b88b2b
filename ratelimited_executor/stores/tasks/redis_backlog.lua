-- Count the tasks in a state by queue and function: those on one page.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   state   their state: READY, BEHIND, DEAD or PAUSED
--   after   the member after which the page begins; empty for the first
--
-- REPLY: the member to continue with, empty if there are no more; queue, function, count and least due time of each group.

local PAGE = 1000
local found
if args.state == DEAD or args.state == PAUSED then
  local from = args.after == '' and '-inf' or string.format('(%.0f', (unpacked('>d', args.after)))
  found = redis.call('ZRANGEBYSCORE', args.state == DEAD and keys.dead or keys.unknown, from, '+inf', 'LIMIT', 0, PAGE)
else
  local from = args.after == '' and '-' or '(' .. args.after
  found = redis.call('ZRANGEBYLEX', args.state == READY and keys.ready or keys.behind, from, '+', 'LIMIT', 0, PAGE)
end
local numbers, groups, reply = numbers_in(found), {}, {found[PAGE] or ''}
read_tasks(numbers)
for _, number in ipairs(numbers) do
  local task = tasks[number]
  if task and (args.state ~= PAUSED or shown(task) == PAUSED) then
    local name = task[QUEUE] .. '\0' .. task[FUNCTION]
    local place = groups[name]
    if not place then
      place = #reply + 1
      groups[name] = place
      reply[place], reply[place + 1], reply[place + 2], reply[place + 3] = task[QUEUE], task[FUNCTION], 0, task[DUE]
    end
    reply[place + 2] = reply[place + 2] + 1
    reply[place + 3] = math.min(reply[place + 3], task[DUE])
  end
end
return reply
