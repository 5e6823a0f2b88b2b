-- Make tasks of a queue READY that were set aside because their function was unknown: those on one page.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   queue, functions   the queue and the functions of the tasks
--   after              the number after which the page begins
--
-- REPLY: the number of these tasks; the last number of the page, -1 if there are no more.

local PAGE = 1000
needs_no_memory()
local known, count, after = {}, 0, string.format('(%.0f', args.after)
for _, each in ipairs(args.functions) do known[each] = true end
local numbers = redis.call('ZRANGEBYSCORE', keys.unknown, after, '+inf', 'LIMIT', 0, PAGE)
for _, number in ipairs(numbers_there('unknown', numbers)) do
  local task = tasks[number]
  if task[QUEUE] == args.queue and known[task[FUNCTION]] then
    leave(number, task)
    enter(number, task, READY)
    count = count + 1
  end
end
write_all()
if count > 0 then tell() end
return {count, #numbers == PAGE and (unpacked('>d', numbers[PAGE])) or -1}
