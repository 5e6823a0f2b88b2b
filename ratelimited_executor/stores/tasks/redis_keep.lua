-- Give back those claims of an owner that it does not hold, after the server has begun anew.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner   the process
--   held    numbers and tokens of the claims that it holds
--
-- REPLY: nothing.

local text = redis.call('HGET', keys.owners, args.owner)
if not text then return end
needs_no_memory()
local now, held = clock(), {}
for at = 1, #args.held, 16 do held[sub(args.held, at, at + 15)] = true end
local owner, _, lease, seen, call, caller = unpacked(OWNER_RECORD, text)
local _, _, count = era(now)
local numbers = owned_in('claimed', owner)
read_tasks(numbers)
for _, number in ipairs(numbers) do
  local task = tasks[number]
  if not held[number .. pack('>d', task[TOKEN])] then give_back_one(number, task, now, 0) end
end
redis.call('HSET', keys.owners, args.owner, pack(OWNER_RECORD, owner, count, lease, seen, call, caller))
write_all()
tell()
