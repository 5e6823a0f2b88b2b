-- Let a process claim tasks, in place of a former owner: what is held passes to it, the rest is given back.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner      the name under which it claims
--   lease_us   the length of its lease, in vouched time
--   former     the other owner; empty if there was none
--   held       numbers and tokens of the claims that pass to it
--
-- REPLY: 1; 0, with nothing changed, if there was a former owner, and neither of them has a lease.

needs_no_memory()
local known, former = redis.call('HGET', keys.owners, args.owner), redis.call('HGET', keys.owners, args.former)
if args.former ~= '' and not known and not former then return 0 end
local owner = known and unpacked(OWNER_RECORD, known) or redis.call('HINCRBY', keys.store, 'owner', 1)
redis.call('HSET', keys.owners, args.owner, pack(OWNER_RECORD, owner, args.lease_us, vouched()))
if former and args.former ~= args.owner then
  local number_of_former, held = unpacked(OWNER_RECORD, former), {}
  for at = 1, #args.held, 16 do held[sub(args.held, at, at + 15)] = true end
  for _, number in ipairs(numbers_there('claimed', owned_in('claimed', number_of_former))) do
    local task = tasks[number]
    if held[number .. pack('>d', task[TOKEN])] then
      leave(number, task)
      task[OWNER] = owner
      enter(number, task, CLAIMED)
    end
  end
  give_back(args.former, clock(), false)
  write_all()
  tell()
end
return 1
