-- Add tasks.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   tasks   for each: whether it has a time; when it is due, or after how long; how long after that it expires, or -1; the lengths
--           of its facts and its body; facts and body. Facts: whether its lane waits while it fails, whether its id is remembered,
--           id, lane, rank of the priority, queue, function, key.
--   unique  for each that is: its place among them; its period; whether a task that runs counts; 0, or 1 to replace arguments of a
--           waiting task, or 2 to debounce it as well; how long after its put that is due at most, or -1; its key
--
-- REPLY: a text with a digit for each: '1' if it is new, '0' if its id is known, '2' if its unique key has a task, '3' if that was
--        changed; then the ids of those tasks.

local NEW, UNIQUE = '<BddI4I4' .. FACTS, '<I4dBBds'
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
local unique, newest, existing = {}, {}, {}  -- newest: of each unique key its task that is put here
at = 1
while at <= #args.unique do
  local index, period, while_running, changes, limit, key, after = unpacked(UNIQUE, args.unique, at)
  unique[index] = {period = period, while_running = while_running == 1, changes = changes, limit = limit, key = key}
  at = after
end

local function counts(task, each)
  if task[STATE] == CLAIMED then return each.while_running and task[CANCELLED] == 0 end
  return task[STATE] ~= DEAD and (task[EXPIRES] < 0 or task[DUE] + task[EXPIRES] > now)
end

local function change(number, task, each, due, rank, body)
  leave(number, task)
  new_bodies[number] = body
  begun_anew[#begun_anew + 1] = number
  local high, low = unpacked('>I4I4', rank)
  local known_high, known_low = unpacked('>I4I4', task[RANK])
  if high < known_high or high == known_high and low < known_low then task[RANK] = rank end
  if each.changes < 2 or task[ATTEMPTS] > 0 or task[STATE] == UNKNOWN then return enter(number, task, task[STATE]) end
  if each.limit >= 0 then due = math.min(due, math.max(now, task[PUT] + each.limit)) end
  task[DUE], task[WAS_DUE] = due, due <= now and 1 or 0
  local lane = task[LANE] ~= '' and lane_at(task[LANE])
  if lane and lane.head == number then lane.head = nil end
  join_lane(number, task, now)
end

local function duplicate(each, due, rank, body)  -- the id of the task that exists with a unique key, and whether it was changed
  local number = newest[each.key] and newest[each.key].number
  each.row = newest[each.key] and newest[each.key].row
    or redis.call('ZRANGEBYLEX', keys.unique, '[' .. each.key .. '\0', '(' .. each.key .. '\1', 'LIMIT', 0, 1)[1]
  if not each.row then return end
  local _, till, from = unpacked(UNIQUE_ROW, each.row)
  local id = sub(each.row, from)
  number = number or numbers_of({id})[1]
  local task = number and tasks[number]
  if task and counts(task, each) then
    local is_changed = each.changes > 0 and task[STATE] ~= CLAIMED
    if is_changed then change(number, task, each, due, rank, body) end
    return id, is_changed
  end
  local is_known = task and task[CANCELLED] == 0 or not task and redis.call('ZMSCORE', keys.ended, id)[1]
  if is_known and till - each.period <= now and now < till then return id, false end
end

local added, records, bodies, ready, turns, scheduled, expiring = {}, {}, {}, {}, {}, {}, {}
for index, new in ipairs(news) do
  local has_time, due, expires, length, body_length, is_blocking, is_named, id, lane, rank, queue, called, key, begin = unpack(new)
  if has_time == 0 then due = now + due end
  local each, body = unique[index], sub(args.tasks, begin + length, begin + length + body_length - 1)
  local holder, is_changed
  if each then holder, is_changed = duplicate(each, due, rank, body) end
  if holder then
    answers[index], existing[#existing + 1] = is_changed and '3' or '2', holder
  elseif known[index] or ended[index] or seen[id] then
    answers[index] = '0'
  else
    answers[index], seen[id] = '1', true
    last = last + 1
    local number, is_due = number_of(last), due <= now
    added[#added + 1] = last
    added[#added + 1] = id
    bodies[#bodies + 1] = number
    bodies[#bodies + 1] = body
    if each or lane ~= '' then
      tasks[number] = {BEHIND, is_due and 1 or 0, 0, due, 0, now, 0, 0, 0, 0, expires, is_blocking, is_named, id, lane, rank, queue, called, key, ''}
    end
    if each then
      if each.row then place('unique', each.row, false) end
      local row = each.key .. '\0' .. pack('<d', each.period > 0 and now + each.period or 0) .. id
      place('unique', row, 0)
      newest[each.key] = {number = number, row = row}
    end
    if each or lane ~= '' and #args.unique > 0 then  -- at once: those that follow may be its duplicates
      join_lane(number, tasks[number], now)
    elseif lane ~= '' then
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
local reply = {table.concat(answers)}
for index, id in ipairs(existing) do reply[index + 1] = id end
if #added == 0 and not next(changed_tasks) then return reply end
in_parts('ZADD', keys.ids, added)  -- the first: it is refused where memory is short
in_parts('HSET', keys.tasks, records)
in_parts('HSET', keys.bodies, bodies)
in_parts('ZADD', keys.ready, ready)
in_parts('ZADD', keys.turns, turns)
in_parts('ZADD', keys.scheduled, scheduled)
in_parts('ZADD', keys.expiring, expiring)
if #added > 0 then redis.call('HSET', keys.store, 'number', last) end
for _, number in ipairs(in_lanes) do join_lane(number, tasks[number], now) end
write_all()
tell()
return reply
