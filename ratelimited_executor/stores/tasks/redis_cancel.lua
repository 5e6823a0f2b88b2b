-- Delete tasks; mark claimed ones as cancelled.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   ids   the ids of the tasks
--
-- REPLY: the previous state of each, -1 if it does not exist.

needs_no_memory()
local now, states, what = clock(), {}, ''
local numbers = numbers_of(args.ids)
for index, number in ipairs(numbers) do states[index] = number and shown(tasks[number]) or -1 end
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
