-- Claim tasks that are due: the largest priority first, then the earliest due, then the first put; or in turn by key.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner, queue          the claiming owner, and the queue
--   count, ahead_us       the maximum number of tasks, and how long before they are due
--   floor                 rank of a priority: tasks of larger priorities are claimed
--   has_before, before_us   1 to claim tasks of that priority as well, if they are due within this time from now
--   unknown, full_keys    functions and keys whose tasks are left to others
--   after                 where to continue among the READY tasks; empty to begin
--   size                  how many bytes their arguments may have together; the first is claimed however many it has
--   is_in_turn            1 to claim in turn by key
--   each, quotas          how many tasks of one key and priority at most; but of these, each as rank, key, 0, number
--   turn_after            keys after which to begin, each as rank, key, 0
--
-- REPLY: nil if the owner's lease has ended; else now; how long until it is worth to claim again, -1 if nothing waits for a time;
-- how many had expired; where to go on, empty at the end; the tasks.

local PAGE, LEFT_MAX = 1000, 5000  -- read at once; left to others in one call
local text = redis.call('HGET', keys.owners, args.owner)
if not text then return false end
needs_no_memory()
local now = clock()
local owner = unpacked(OWNER_RECORD, text)

local function make_ready(key, time)
  local min, max = '[' .. args.queue .. '\0', '(' .. args.queue .. '\0' .. order_of(time + 1)
  local numbers = numbers_there(key, redis.call('ZRANGEBYLEX', keys[key], min, max, 'LIMIT', 0, math.max(BATCH, args.count)))
  for _, number in ipairs(numbers) do
    leave(number, tasks[number])
    enter(number, tasks[number], READY)
  end
end

local function delete_expired()
  local count = 0
  repeat  -- what follows in a lane may have expired, too
    write_places('expiring')
    local numbers = numbers_there('expiring', redis.call('ZRANGEBYSCORE', keys.expiring, '-inf', string.format('%.0f', now), 'LIMIT', 0, BATCH))
    for _, number in ipairs(numbers) do
      leave(number, tasks[number])
      remove(number, tasks[number], now, true)
    end
    count = count + #numbers
  until #numbers == 0 or count >= BATCH
  return count
end

local _, least_token, pause_count = least_numbers(now)
local pauses = {}  -- those in force

local function put_back(what, pause, since, last)  -- the tasks of a pause that has ended
  local numbers = numbers_there('paused', redis.call('ZRANGEBYSCORE', keys.paused, pause, pause, 'LIMIT', 0, BATCH))
  for _, number in ipairs(numbers) do
    local task = tasks[number]
    if task[STATE] == UNKNOWN and task[OWNER] == pause then
      leave(number, task)
      task[FUNCTION], task[OWNER] = sub(task[FUNCTION], 2), 0
      enter(number, task, READY)
    else
      place('paused', number, false)
    end
  end
  if #numbers == 0 and math.max(since, last) + KEPT_US <= now then
    redis.call('HDEL', keys.pauses, what)
    redis.call('HINCRBY', keys.store, 'paused', -1)
  end
end

if pause_count > 0 then
  local found = redis.call('HGETALL', keys.pauses)
  for index = 1, #found, 2 do
    local what = found[index]
    local pause, since, last = unpacked(PAUSE, found[index + 1])
    if last < 0 or last > now then
      pauses[#pauses + 1] = {what = what, number = pause, covered = cjson.decode(what)}
    else
      put_back(what, pause, since, last)
    end
  end
  table.sort(pauses, function(one, other) return one.what < other.what end)
end

local function covers(covered, name, queue, lane, key)
  local values = {name, queue, sub(lane, 2), sub(key, 2)}
  for index, value in ipairs(covered) do
    if value ~= cjson.null and value ~= values[index] then return false end
  end
  return true
end

local function pause_of(called, queue, lane, key)  -- the first that covers a task
  local name = string.match(called, ' (.*)$')
  for _, pause in ipairs(pauses) do
    if covers(pause.covered, name, queue, lane, key) then return pause end
  end
end

local function is_stopped()  -- a pause of the whole queue
  for _, pause in ipairs(pauses) do
    local name, queue, lane, key = unpack(pause.covered)
    if queue == args.queue and name == cjson.null and lane == cjson.null and key == cjson.null then return true end
  end
end

local function set_aside()  -- the first tasks that are READY and paused
  local members = redis.call('ZRANGEBYLEX', keys.ready, '[' .. args.queue .. '\0', '(' .. args.queue .. '\1', 'LIMIT', 0, BATCH)
  for _, number in ipairs(numbers_there('ready', members)) do
    local task = tasks[number]
    local pause = pause_of(task[FUNCTION], task[QUEUE], task[LANE], task[KEY])
    if pause then
      leave(number, task)
      task[FUNCTION], task[OWNER] = '-' .. task[FUNCTION], pause.number
      enter(number, task, UNKNOWN)
    end
  end
end

make_ready('scheduled', now + args.ahead_us)
make_ready('heads', now)
local expired_count = delete_expired()
if is_stopped() then
  write_all()
  return {now, -1, expired_count, '', ''}
end
if #pauses > 0 then
  write_all()
  set_aside()
end
write_all()  -- from here on records are texts, of which only the heads change

local taken, records, bodies, size, is_full, is_more = {}, {}, {}, 0, false, false
local written, claimed, gone, gone_turns, expiring = {}, {}, {}, {}, {}

local function set_of(list)
  local set = {}
  for _, each in ipairs(list) do set[each] = true end
  return set
end

local unknown, full_keys = set_of(args.unknown), set_of(args.full_keys)
local has_filter = #args.unknown + #args.full_keys + #pauses > 0

local function facts_of(record) return unpacked('<' .. FACTS, record, HEAD_SIZE + 1) end

local function is_left(record)
  local _, _, _, lane, _, queue, called, key = facts_of(record)
  return unknown[called] or full_keys[key] or pause_of(called, queue, lane, key)
end

local states = {}

local function fits(number)  -- if so, its body is among those that are taken
  local body = redis.call('HGET', keys.bodies, number) or ''
  local state = state_of(number)
  size = size + #body + #state - (string.find(body, '\0', 1, true) or 0)  -- its cost stands before
  is_full = #taken > 0 and size > args.size
  if not is_full then bodies[#taken + 1], states[#taken + 1] = body, state end
  return not is_full
end

local function take(number, record)  -- if it fits
  if not fits(number) then return end
  local _, was_due, cancelled, due, place_us, put, token, attempts, lost, _, expires = unpacked(HEAD, record)
  local _, _, _, _, rank, queue, _, key = facts_of(record)
  local head = pack(HEAD, CLAIMED, was_due, cancelled, due, place_us, put, math.max(token, least_token) + 1, attempts, lost, owner, expires)
  record = head .. sub(record, HEAD_SIZE + 1)
  taken[#taken + 1], records[#records + 1] = number, record
  gone[#gone + 1], gone_turns[#gone_turns + 1] = ready_member(queue, rank, due, number), turns_member(queue, rank, key, due, number)
  written[#gone * 2 - 1], written[#gone * 2] = number, record
  claimed[#gone * 2 - 1], claimed[#gone * 2] = owner, number
  if expires >= 0 then expiring[#expiring + 1] = number end
  is_full = #taken == args.count
end

local function take_some(members)  -- those that are not left to others; returns how many are, and where it has stopped
  local numbers, left_count, last = numbers_in(members), 0, nil
  for index, record in ipairs(read_parts('HMGET', keys.tasks, numbers)) do
    if is_full then break end
    last = members[index]
    if not record then
      drop('ready', last, numbers[index])
      left_count = left_count + 1
    elseif has_filter and is_left(record) then
      left_count = left_count + 1
    else
      take(numbers[index], record)
    end
  end
  return left_count, last
end

local function take_ready()  -- returns where it has stopped, if that is not the end
  local after, left_count = args.after ~= '' and args.after or nil, 0
  local max = '(' .. args.queue .. '\0' .. args.floor
  if args.has_before == 1 then max = max .. order_of(now + args.before_us) end
  while not is_full do
    local limit = has_filter and PAGE or math.min(PAGE, args.count - #taken)
    local min = after and '(' .. after or '[' .. args.queue .. '\0'
    local members = redis.call('ZRANGEBYLEX', keys.ready, min, max, 'LIMIT', 0, limit)
    local left
    left, after = take_some(members)
    left_count = left_count + left
    if #members < limit or is_full then return '' end
    if left_count >= LEFT_MAX then return after end
  end
  return ''
end

-- In turn by key.

local BEGIN, END = args.queue .. '\0', '\255'  -- of the members of a queue; after those of a rank

local function members_of(key, min, max, limit) return redis.call('ZRANGEBYLEX', keys[key], min, max, 'LIMIT', 0, limit) end

local function fill_turns()  -- with tasks of processes that do not write them; there may be more of them
  local min, max, field = '[' .. BEGIN, '(' .. args.queue .. '\1', 'turned:' .. args.queue
  if redis.call('ZLEXCOUNT', keys.ready, min, max) <= redis.call('ZLEXCOUNT', keys.turns, min, max) then return end
  local last = redis.call('HGET', keys.store, field)
  local members, added = members_of('ready', last and '(' .. last or min, max, PAGE), {}
  local numbers = numbers_in(members)
  for index, record in ipairs(read_parts('HMGET', keys.tasks, numbers)) do
    if record then
      local _, _, _, due = unpacked(HEAD, record)
      local _, _, _, _, rank, queue, _, key = facts_of(record)
      added[#added + 1] = 0
      added[#added + 1] = turns_member(queue, rank, key, due, numbers[index])
    else
      drop('ready', members[index], numbers[index])
    end
  end
  in_parts('ZADD', keys.turns, added)
  if #members < PAGE then redis.call('HDEL', keys.store, field) else redis.call('HSET', keys.store, field, members[PAGE]) end
  return true
end

local function is_turn(member, number, record)  -- false, and no longer there, if it is not that of a task that is READY
  local ready = sub(member, 1, #BEGIN + 8) .. sub(member, -17)
  if not record then
    if redis.call('ZSCORE', keys.ready, ready) then drop('ready', ready, number) end
  else
    local state, _, _, due = unpacked(HEAD, record)
    local _, _, _, _, rank, queue, _, key = facts_of(record)
    if state == READY and turns_member(queue, rank, key, due, number) == member then return true end
  end
  place('turns', member, false)
  return false
end

local function take_of_key(min, max, quota)
  local left_count = 0
  repeat
    local limit = #args.unknown > 0 and PAGE or math.min(PAGE, quota + 1)
    local members = members_of('turns', min, max, limit)
    local numbers = numbers_in(members)
    for index, record in ipairs(read_parts('HMGET', keys.tasks, numbers)) do
      if not is_turn(members[index], numbers[index], record) or has_filter and is_left(record) then
        left_count = left_count + 1
      elseif quota == 0 then
        is_more = true
        return
      else
        take(numbers[index], record)
        if is_full then return end
        quota = quota - 1
      end
    end
    min = '(' .. (members[#members] or '')
  until #members < limit or left_count >= LEFT_MAX
end

local function quotas_of()  -- rank and key -> quota; rank -> key after which to begin
  local quotas, after, at = {}, {}, 1
  while at <= #args.quotas do
    local rank, key, quota
    rank, key, quota, at = unpacked('<c8sd', args.quotas, at)
    quotas[rank .. key] = quota
  end
  at = 1
  while at <= #args.turn_after do
    local rank, key
    rank, key, at = unpacked('<c8s', args.turn_after, at)
    after[rank] = key
  end
  return quotas, after
end

local quotas, begins_after = quotas_of()

local function take_of_rank(rank, since, till)  -- of tasks that are due after a time, and not after another, if given
  local head, after, visited_count = BEGIN .. rank, begins_after[rank], 0
  if rank == args.floor then till = math.min(till or now + args.before_us, now + args.before_us - 1) end
  local ranges = {{after and '(' .. head .. after .. '\1' or '[' .. head, '(' .. head .. END}}
  if after then ranges[2] = {'[' .. head, '(' .. head .. after .. '\1'} end
  for _, range in ipairs(ranges) do
    local min, max = unpack(range)
    local member = members_of('turns', min, max, 1)[1]
    while member do
      local key = sub(member, #head + 1, -19)
      local quota, prefix = quotas[rank .. key] or args.each, head .. key
      if not full_keys[key] and not (quota == 0 and is_more) then
        local from = since and '[' .. prefix .. '\0' .. order_of(since + 1) or '[' .. prefix .. '\0'
        take_of_key(from, '(' .. prefix .. (till and '\0' .. order_of(till + 1) or '\1'), quota)
      end
      visited_count = visited_count + 1
      if is_full or is_more and visited_count >= LEFT_MAX then return end
      member = members_of('turns', '(' .. prefix .. '\1', max, 1)[1]
    end
  end
end

local function take_in_turn()
  local max = '(' .. BEGIN .. args.floor .. (args.has_before == 1 and END or '')
  for _, dues in ipairs({{false, now}, {now, false}}) do
    local min = '[' .. BEGIN
    local member = members_of('turns', min, max, 1)[1]
    while member do
      local rank = sub(member, #BEGIN + 1, #BEGIN + 8)
      take_of_rank(rank, dues[1], dues[2])
      if is_full or is_more then return end
      member = members_of('turns', '(' .. BEGIN .. rank .. END, max, 1)[1]
    end
  end
end

local function next_in()
  local wait
  for key, ahead in pairs({scheduled = args.ahead_us, heads = 0}) do
    local member = first_in(key, args.queue, 1)[1]
    if member then
      local time = math.max(0, time_at(member, args.queue) - ahead - now)
      wait = math.min(wait or time, time)
    end
  end
  return wait or -1
end

local after = ''
if args.is_in_turn then
  local is_filling = fill_turns()
  take_in_turn()
  is_more = is_more or is_filling
else
  after = take_ready()
end
in_parts('ZREM', keys.ready, gone)
in_parts('ZREM', keys.turns, gone_turns)
in_parts('ZREM', keys.expiring, expiring)
in_parts('HSET', keys.tasks, written)
in_parts('ZADD', keys.claimed, claimed)
write_all()  -- what was lost
return {now, (is_full or is_more) and 0 or next_in(), expired_count, after, for_client(taken, records, bodies, states)}
