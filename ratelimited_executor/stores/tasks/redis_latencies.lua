-- Tell for how long the oldest due task of each queue has waited: from each priority and queue to the next, however many tasks each has.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   levels   at how many priorities of a queue it looks, the largest ones
--
-- REPLY: queue and microseconds of each that has a due task.

local ORDER_SIZE, NUMBER_SIZE, RANK_SIZE = 9, 8, 8
local now, ages, reply = clock(), {}, {}

local function first_behind(key, bound) return redis.call('ZRANGEBYLEX', key, bound, '+', 'LIMIT', 0, 1)[1] end

local function note(queue, due)
  if due <= now then ages[queue] = math.max(now - due, ages[queue] or 0) end
end

local member, last, level = first_behind(keys.ready, '-'), nil, 0
while member do
  local level_end = #member - ORDER_SIZE - NUMBER_SIZE
  local queue = sub(member, 1, level_end - RANK_SIZE - 1)
  level = queue == last and level + 1 or 1
  last = queue
  note(queue, time_at(member, sub(member, 1, level_end - 1)))
  member = first_behind(keys.ready, '(' .. (level < args.levels and sub(member, 1, level_end) .. '\255' or queue .. '\1'))
end
for _, key in ipairs({keys.scheduled, keys.heads}) do
  member = first_behind(key, '-')
  while member do
    local queue = sub(member, 1, #member - ORDER_SIZE - NUMBER_SIZE - 1)
    note(queue, time_at(member, queue))
    member = first_behind(key, '(' .. queue .. '\1')
  end
end
for queue, age in pairs(ages) do
  reply[#reply + 1] = queue
  reply[#reply + 1] = age
end
return reply
