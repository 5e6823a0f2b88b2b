-- Look tasks up by their ids.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   ids   the ids of the tasks
--
-- REPLY: the tasks that exist; the owners, and their records.

local there, states = {}, {}
for _, number in ipairs(numbers_of(args.ids)) do
  if number then there[#there + 1], states[#states + 1] = number, state_of(number) end
end
return {for_people(there, read_parts('HMGET', keys.bodies, there), states)}
