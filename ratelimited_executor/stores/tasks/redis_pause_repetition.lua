-- Set the end of the pause of a repetition.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   name       its name
--   until_us   when it ends; -1 if it does not, 0 to end it now
--
-- REPLY: 1 if it was paused, 0 if not, -1 if there is no such repetition.

needs_no_memory()
local now = clock()
local row, known = repetition_at(args.name)
if not known then return -1 end
local was_paused = is_before(now, row.till)
drop_occurrences(args.name, row, now, args.until_us)
if row.till > now then row.last_spec = '' end
row.till = args.until_us
write_change(args.name, row, now)
return was_paused and 1 or 0
