-- List repetitions.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS   none
--
-- REPLY: their names and records; the names of owners with a lease.

return {redis.call('HGETALL', keys.repetitions), redis.call('HKEYS', keys.owners)}
