-- List repetitions.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS   none
--
-- REPLY: now; the names of owners with a lease; of each repetition its name, its record, what an older release does not know of
--        it, and 1 if an occurrence waits.

local answer = {clock(), redis.call('HKEYS', keys.owners)}
local records = redis.call('HGETALL', keys.repetitions)
for index = 1, #records, 2 do
  local name = records[index]
  local row = repetition_at(name)
  local number = numbers_of({row.last_id})[1]
  answer[#answer + 1] = name
  answer[#answer + 1] = records[index + 1]
  answer[#answer + 1] = redis.call('HGET', keys.operated, name) or ''
  answer[#answer + 1] = number and is_waiting(tasks[number]) and 1 or 0
end
return answer
