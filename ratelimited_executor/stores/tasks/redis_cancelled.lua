-- List an owner's claims whose tasks were cancelled.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner   the process
--
-- REPLY: number and token of each.

local text = redis.call('HGET', keys.owners, args.owner)
return text and cancelled_of((unpacked(OWNER_RECORD, text))) or ''
