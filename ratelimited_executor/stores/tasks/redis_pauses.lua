-- List all pauses, those that have ended included.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS   none
--
-- REPLY: now; what each covers, and its record.

return {clock(), redis.call('HGETALL', keys.pauses)}
