-- Delete the occurrence of a repetition that waits.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   name   its name
--
-- REPLY: when it was due; nil if none waits.

needs_no_memory()
local now = clock()
local row, known = repetition_at(args.name)
if not (known and drop_waiting(row.last_id, now)) then return false end
write_change(args.name, row, now)
return row.last_due
