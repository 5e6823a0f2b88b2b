-- Give back all that an owner has claimed, and end its lease.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner   the process
--
-- REPLY: nothing.

if redis.call('HEXISTS', keys.owners, args.owner) == 0 then return end
needs_no_memory()
give_back(args.owner, clock(), false)
write_all()
tell()
