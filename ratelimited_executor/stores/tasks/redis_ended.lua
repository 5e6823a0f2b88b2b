-- Look tasks up that may have ended.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   ids   the ids of the tasks
--
-- REPLY: of each its state; or its record in the history; or -1 if there is neither.

local answers = {}
for index, number in ipairs(numbers_of(args.ids)) do
  answers[index] = number and shown(tasks[number]) or redis.call('HGET', keys.history, args.ids[index]) or -1
end
return answers
