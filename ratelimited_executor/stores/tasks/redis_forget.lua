-- Delete repetitions, and their waiting occurrences.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   names   the names of the repetitions
--
-- REPLY: the number of deleted repetitions.

needs_no_memory()
local now, count = clock(), 0
for _, name in ipairs(args.names) do
  local text = redis.call('HGET', keys.repetitions, name)
  if text then
    local _, _, _, _, _, _, _, _, _, last_id = unpacked(REPETITION, text)
    redis.call('HDEL', keys.repetitions, name)
    drop_waiting(last_id, now)
    count = count + 1
  end
end
write_all()
tell()
return count
