-- Let a process claim tasks, under a lease that begins now.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner      the process
--   lease_us   of vouched time
--
-- REPLY: nothing.

needs_no_memory()
local known = redis.call('HGET', keys.owners, args.owner)
local owner = known and unpacked(OWNER_RECORD, known) or redis.call('HINCRBY', keys.store, 'owner', 1)
local _, _, count = era(clock())
redis.call('HSET', keys.owners, args.owner, pack(OWNER_RECORD, owner, count, args.lease_us, vouched(), 0, NO_HEAD))
