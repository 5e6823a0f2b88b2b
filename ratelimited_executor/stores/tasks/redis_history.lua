-- List tasks that have ended and are kept, the one that ended last first.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   before   the number of an end: those before it are listed; -1 for all
--   limit    how many at most
--
-- REPLY: their records.

local max = args.before < 0 and '+inf' or string.format('(%.0f', args.before)
return read_parts('HMGET', keys.history, redis.call('ZRANGE', keys.ends, max, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, args.limit))
