-- List the lanes with the most waiting tasks, the most first, then by name.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   limit   the maximum number of lanes
--
-- REPLY: the name of each lane, the number of tasks behind its head, the id of the head, and where the head is.

local found, answer = redis.call('ZRANGE', keys.crowded, 0, args.limit - 1, 'WITHSCORES'), {}
for index = 1, args.limit > 0 and #found or 0, 2 do
  local name = found[index]
  local lane = lane_at(name)
  local head = lane and lane.head and task_at(lane.head)
  if head then
    for _, value in ipairs({name, -tonumber(found[index + 1]), head[ID], shown(head)}) do answer[#answer + 1] = value end
  end
end
return answer
