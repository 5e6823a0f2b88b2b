-- Record that a turn of a cycle is complete, and forget turns that no node needs any more.
--
-- KEYS
--   complete     a sorted set: complete turns, with themselves as scores
--   claims       a hash: turn -> its claim
--   done         a set: finished keys of the turn
--
-- ARGS
--   turn         the complete turn
--   keep_from    the first turn that is not forgotten
--
-- REPLY: nothing. A repeated call changes nothing more.

redis.call('ZADD', keys.complete, args.turn, args.turn)
redis.call('ZREMRANGEBYSCORE', keys.complete, '-inf', '(' .. args.keep_from)
for _, turn in ipairs(redis.call('HKEYS', keys.claims)) do
  if tonumber(turn) < args.keep_from then redis.call('HDEL', keys.claims, turn) end
end
redis.call('HDEL', keys.claims, args.turn)
redis.call('DEL', keys.done)
