-- Save a repetition, for the processes of its queue.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   name                       its name
--   definition                 what it puts
--   queue, called, schedule    the queue of its tasks; their function, as in records; its times, as text
--
-- REPLY: 1 if it is new, 0 if it was saved before, -1 if code declares it.

local now = clock()
local row, known = repetition_at(args.name)
if known and row.saved == 0 then return -1 end
if known and row.definition == args.definition then return 0 end
drop_occurrences(args.name, row, now)
row.queue, row.called, row.schedule, row.saved, row.definition = args.queue, args.called, args.schedule, 1, args.definition
write_change(args.name, row, now)
return known and 0 or 1
