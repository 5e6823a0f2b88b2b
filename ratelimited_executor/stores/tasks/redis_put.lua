-- Add tasks.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   tasks   for each: whether it has a time; when it is due, or after how long; how long after that it expires, or -1; the lengths
--           of its facts and its body; facts and body. Facts: whether its lane waits while it fails, whether its id is remembered,
--           id, lane, rank of the priority, queue, function, key.
--
-- REPLY: one text with a digit for each: '1' if it is new, else '0'.

local NEW = '<BddI4I4' .. FACTS
local now = clock()
local news, ids, at = {}, {}, 1
while at <= #args.tasks do
  local new = {unpacked(NEW, args.tasks, at)}
  news[#news + 1] = new
  ids[#ids + 1] = new[8]
  new[14] = at + 25  -- where its facts begin
  at = new[14] + new[4] + new[5]
end
local known = numbers_of(ids)
places = {}  -- of ids whose tasks were lost, and are put again
local ended = redis.call('EXISTS', keys.ended) == 1 and read_parts('ZMSCORE', keys.ended, ids) or {}
local last = least_numbers(now)
local answers, seen, in_lanes = {}, {}, {}
local added, records, bodies, ready, turns, scheduled, expiring = {}, {}, {}, {}, {}, {}, {}
for index, new in ipairs(news) do
  local has_time, due, expires, length, body_length, is_blocking, is_named, id, lane, rank, queue, called, key, begin = unpack(new)
  if known[index] or ended[index] or seen[id] then
    answers[index] = '0'
  else
    answers[index], seen[id] = '1', true
    last = last + 1
    if has_time == 0 then due = now + due end
    local number, is_due = number_of(last), due <= now
    added[#added + 1] = last
    added[#added + 1] = id
    bodies[#bodies + 1] = number
    bodies[#bodies + 1] = sub(args.tasks, begin + length, begin + length + body_length - 1)
    if lane ~= '' then
      tasks[number] = {BEHIND, is_due and 1 or 0, 0, due, 0, now, 0, 0, 0, 0, expires, is_blocking, is_named, id, lane, rank, queue, called, key, ''}
      in_lanes[#in_lanes + 1] = number
    else
      local head = pack(HEAD, is_due and READY or SCHEDULED, is_due and 1 or 0, 0, due, 0, now, 0, 0, 0, 0, expires)
      records[#records + 1] = number
      records[#records + 1] = head .. sub(args.tasks, begin, begin + length - 1)
      if is_due then
        ready[#ready + 1], turns[#turns + 1] = 0, 0
        ready[#ready + 1] = ready_member(queue, rank, due, number)
        turns[#turns + 1] = turns_member(queue, rank, key, due, number)
      else
        scheduled[#scheduled + 1] = 0
        scheduled[#scheduled + 1] = queue .. '\0' .. order_of(due) .. number
      end
      if is_due and expires >= 0 then
        expiring[#expiring + 1] = due + expires
        expiring[#expiring + 1] = number
      end
    end
  end
end
if #added == 0 then return table.concat(answers) end
in_parts('ZADD', keys.ids, added)  -- the first: it is refused where memory is short
in_parts('HSET', keys.tasks, records)
in_parts('HSET', keys.bodies, bodies)
in_parts('ZADD', keys.ready, ready)
in_parts('ZADD', keys.turns, turns)
in_parts('ZADD', keys.scheduled, scheduled)
in_parts('ZADD', keys.expiring, expiring)
redis.call('HSET', keys.store, 'number', last)
for _, number in ipairs(in_lanes) do join_lane(number, tasks[number], now) end
write_all()
tell()
return table.concat(answers)
