-- Delete tasks; note of those that are claimed that they are not wanted.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   ids   of the tasks
--
-- REPLY: of each the state in which it was, -1 if it is not there.

needs_no_memory()
local now, states, what = clock(), {}, ''
local numbers = numbers_of(args.ids)
for index, number in ipairs(numbers) do states[index] = number and tasks[number][STATE] or -1 end
for _, number in ipairs(numbers) do
  local task = number and tasks[number]
  if task and task[STATE] == CLAIMED then
    task[CANCELLED], what = 1, 'cancelled'
    mark(number, task, true)
  elseif task then
    leave(number, task)
    remove(number, task, now, false)
  end
end
write_all()
tell(what)
return states
