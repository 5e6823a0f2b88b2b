-- Record that claims are about to start, if their tokens are in force.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   refs   numbers and tokens of the claims
--
-- REPLY: one text with a digit for each: '1' if it is recorded, '0' if it was no longer in force.

needs_no_memory()
local answers = {}
for at = 1, #args.refs, 16 do
  local number, token = sub(args.refs, at, at + 7), unpacked('>d', args.refs, at + 8)
  local task = task_at(number)
  local in_force = task and task[STATE] == CLAIMED and task[TOKEN] == token
  if in_force and task[LOST] > 0 then place('started', number, token) end
  answers[#answers + 1] = in_force and '1' or '0'
end
write_all()
return table.concat(answers)
