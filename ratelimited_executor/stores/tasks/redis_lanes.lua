-- List the lanes in which most tasks wait for others, the most first, then by name.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   limit   how many at most
--
-- REPLY: of each its name, how many are behind, the id of its head, and where that is.

local found, answer = redis.call('ZRANGE', keys.crowded, 0, args.limit - 1, 'WITHSCORES'), {}
for index = 1, args.limit > 0 and #found or 0, 2 do
  local name = found[index]
  local lane = lane_at(name)
  local head = lane and lane.head and task_at(lane.head)
  if head then
    for _, value in ipairs({name, -tonumber(found[index + 1]), head[ID], head[STATE]}) do answer[#answer + 1] = value end
  end
end
return answer
