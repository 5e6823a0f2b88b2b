-- Count the tasks in each state.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS   none
--
-- REPLY: the counts, in the order of the states' numbers.

local counts = {}
for index, key in ipairs({'scheduled', 'ready', 'behind', 'claimed', 'unknown', 'dead'}) do counts[index] = redis.call('ZCARD', keys[key]) end
counts[1] = counts[1] + redis.call('ZCARD', keys.heads)
counts[7] = math.min(counts[5], redis.call('ZCARD', keys.paused))
counts[5] = counts[5] - counts[7]
return counts
