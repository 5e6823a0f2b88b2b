-- List the repetitions of a queue that users have changed.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   queue   the queue
--
-- REPLY: of each its name, what was saved, and when it was changed last.

local answer = {}
for _, name in ipairs(redis.call('HKEYS', keys.operated)) do
  local row, known = repetition_at(name)
  if known and row.queue == args.queue and row.changed > 0 then
    answer[#answer + 1] = name
    answer[#answer + 1] = row.saved == 1 and row.definition or ''
    answer[#answer + 1] = row.changed
  end
end
return answer
