-- Claim a turn of a cycle for an owner, or renew the claim.
--
-- KEYS
--   complete    a sorted set: complete turns
--   claims      a hash: turn -> '<milliseconds since the epoch until which it is claimed> <owner>'
--
-- ARGS
--   turn        the turn to claim
--   owner       its owner
--   lease_ms    the length of the claim from now; 0 gives it up
--
-- REPLY: 1 if the turn is the owner's, 0 if it is complete or another owner's.
--
-- A claim that has run out is anybody's. Time is the server's own, so that the clocks of nodes do not matter.

if redis.call('ZSCORE', keys.complete, args.turn) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local claim = redis.call('HGET', keys.claims, args.turn)
if claim then
  local claimed_until, owner = string.match(claim, '^(%d+) (.*)$')
  if tonumber(claimed_until) > now and owner ~= args.owner then return 0 end
end
redis.call('HSET', keys.claims, args.turn, string.format('%.0f', now + args.lease_ms) .. ' ' .. args.owner)
return 1
