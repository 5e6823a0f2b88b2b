-- Make READY what was set aside in a queue because nobody knew its function; one page of all that was set aside.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   queue, functions   of the tasks
--   after              the number after which the page begins
--
-- REPLY: how many; the last number of the page, -1 if there are no more.

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
