-- Renew an owner's lease, and end the leases of owners that have not renewed theirs.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner   the process
--
-- REPLY: nil if its lease had ended; else number and token of each of its claims whose task was cancelled; the number of its
-- claims; the number of lost tasks, of all owners.

needs_no_memory()
local now = clock()
local owners, leases, seen, shortest = redis.call('HGETALL', keys.owners), {}, {}, nil
for index = 1, #owners, 2 do
  local name = owners[index]
  local _, lease, last_seen = unpacked(OWNER_RECORD, owners[index + 1])
  leases[name], seen[name], shortest = lease, last_seen, math.min(shortest or lease, lease)
end
local last = redis.call('HGET', keys.store, 'beat')
vouched_us = vouched()
if last and shortest then vouched_us = vouched_us + math.min(math.floor(shortest / 3), math.max(0, now - tonumber(last))) end
redis.call('HSET', keys.store, 'vouched', vouched_us, 'beat', now)
redis.call('ZREMRANGEBYSCORE', keys.ended, '-inf', string.format('%.0f', vouched_us - REMEMBERED_US))
local text, owner = redis.call('HGET', keys.owners, args.owner), nil
if text then
  local number, lease = unpacked(OWNER_RECORD, text)
  owner, seen[args.owner] = number, vouched_us
  redis.call('HSET', keys.owners, args.owner, pack(OWNER_RECORD, number, lease, vouched_us))
end
for name, lease in pairs(leases) do
  if seen[name] + lease <= vouched_us then give_back(name, now, true) end
end
local cancelled = owner and cancelled_of(owner) or ''
write_all()
for attempt = 1, 10 do  -- deletes rows of unique keys that no longer count, among some after an arbitrary key, every fourth time the first
  local after = redis.sha1hex(now .. ' ' .. attempt)
  local rows = redis.call('ZRANGEBYLEX', keys.unique, sub(after, -1) < '4' and '-' or '(' .. after, '+', 'LIMIT', 0, 1000)
  local ends, ids, stale = {}, {}, {}
  for index, row in ipairs(rows) do
    local _, till, from = unpacked(UNIQUE_ROW, row)
    ends[index], ids[index] = till, sub(row, from)
  end
  for index, number in ipairs(read_parts('ZMSCORE', keys.ids, ids)) do
    if not number and ends[index] <= now - REMEMBERED_US then stale[#stale + 1] = rows[index] end
  end
  in_parts('ZREM', keys.unique, stale)
  if #stale < 500 then break end
end
forget_history(now)
if not owner then return false end
local score = string.format('%.0f', owner)
return {cancelled, redis.call('ZCOUNT', keys.claimed, score, score), tonumber(redis.call('HGET', keys.store, 'lost') or 0)}
