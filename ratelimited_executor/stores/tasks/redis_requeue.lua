-- Put dead letters back, as if they had never been tried.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   ids   the ids of the tasks
--
-- REPLY: the previous state of each, -1 if it does not exist.

needs_no_memory()
local now, states = clock(), {}
local numbers = numbers_of(args.ids)
for index, number in ipairs(numbers) do states[index] = number and shown(tasks[number]) or -1 end
for _, number in ipairs(numbers) do
  local task = number and tasks[number]
  if task and task[STATE] == DEAD then
    leave(number, task)
    task[ATTEMPTS], task[LOST], task[DUE], task[WAS_DUE] = 0, 0, now, 1
    local lane = task[LANE] ~= '' and lane_at(task[LANE])
    if lane and lane.head == number then
      lane.last = math.max(now, lane.last)
      changed_lanes[task[LANE]] = true
      enter(number, task, READY)
    else
      join_lane(number, task, now)
    end
  end
end
write_all()
tell()
return states
