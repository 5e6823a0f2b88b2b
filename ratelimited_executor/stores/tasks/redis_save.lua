-- Keep the states that claimed tasks have saved, if the tokens of their claims are in force.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   states   for each: number and token of the claim; the length of its state, and that
--
-- REPLY: nothing.

needs_no_memory()
local states, at = {}, 1
while at <= #args.states do
  local number, token, length, from = unpacked('<c8dI4', args.states, at)
  local task = task_at(number)
  at = from + length
  if task and task[STATE] == CLAIMED and task[TOKEN] == token then
    states[#states + 1] = number
    states[#states + 1] = sub(args.states, from, at - 1)
  end
end
in_parts('HSET', keys.saved, states)
