-- Note that a turn of a cycle is complete, and forget turns that no node asks for any more.
--
-- KEYS
--   complete     a sorted set: turns that are complete, with themselves as scores
--   claims       a hash: turn -> its claim
--   done         a set: keys of the turn that are through
--
-- ARGS
--   turn         which
--   keep_from    the first turn that is not forgotten
--
-- REPLY: nothing. A call that is repeated changes nothing more.

redis.call('ZADD', keys.complete, args.turn, args.turn)
redis.call('ZREMRANGEBYSCORE', keys.complete, '-inf', '(' .. args.keep_from)
for _, turn in ipairs(redis.call('HKEYS', keys.claims)) do
  if tonumber(turn) < args.keep_from then redis.call('HDEL', keys.claims, turn) end
end
redis.call('HDEL', keys.claims, args.turn)
redis.call('DEL', keys.done)
