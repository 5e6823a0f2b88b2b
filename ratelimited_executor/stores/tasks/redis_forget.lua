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
  local row, known = repetition_at(name)
  if known then
    redis.call('HDEL', keys.repetitions, name)
    redis.call('HDEL', keys.operated, name)
    pass_last(row, now)
    drop_occurrences(name, row, now)
    count = count + 1
  end
end
write_all()
tell()
return count
