-- Begin a pause, or set its end.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   what       what it covers, as a list in JSON
--   until_us   when it ends; -1 if it does not, 0 to end it now
--
-- REPLY: 1 if it was in force, else 0.

needs_no_memory()
local now, known = clock(), redis.call('HGET', keys.pauses, args.what)
local number, _, last = unpacked(PAUSE, known or pack(PAUSE, 0, 0, 0))
if not known then
  if args.until_us == 0 then return 0 end
  number = redis.call('HINCRBY', keys.store, 'owner', 1)
  redis.call('HINCRBY', keys.store, 'paused', 1)
end
redis.call('HSET', keys.pauses, args.what, pack(PAUSE, number, now, args.until_us))
tell(args.until_us ~= 0 and 'cancelled' or '')
return (last < 0 or last > now) and 1 or 0
