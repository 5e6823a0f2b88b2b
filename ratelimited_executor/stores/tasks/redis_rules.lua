-- The common part of the scripts of durable tasks: the layout of tasks in Redis, and the rules of `_core/durable/table.py`.
--
-- A script reads what it needs, changes it as values of Lua, and writes at its end all that has changed, many values in one
-- command. An error before that leaves everything as it was. Server and client decode records alike; bodies are for clients alone.
--
-- KEYS of every script, in one slot of a cluster. A sorted set without scores is ordered by its members, byte by byte.
--
--   store      a hash: version of the layout; run id of the server; number of the last task; token, the least of claims
--              to come; turned, up to which member of ready tasks were added to turns, by queue; lost, how many tasks were found without their records; vouched, the vouched time; beat, the clock at the last beat; owner, the number of the last owner
--   ids        a sorted set: id -> number of the task, 8 bytes of which are its key everywhere else
--   tasks      a hash: number -> record
--   bodies     a hash: number -> arguments and cost, which no script reads
--   ready      a sorted set without scores, of those that are READY: queue, 0, rank of the priority, due time, number
--   turns      the same tasks in turn by key: queue, 0, rank of the priority, key, 0, due time, number. Processes of an older release do
--              not write it: a claim in turn adds tasks that it lacks, some at a time, and drops those that are no longer READY
--   scheduled  the same of those that are SCHEDULED and have no lane: queue, 0, due time, number
--   heads      the same of those that are SCHEDULED and the heads of lanes
--   behind     the same of those that are BEHIND: lane, 0, place, number
--   claimed    a sorted set: number -> its owner's number, of those that are CLAIMED
--   cancelled  of these the cancelled
--   started    a sorted set: number -> token of a claim that was about to start, of those that are CLAIMED and have losses
--   expiring   a sorted set: number -> when it expires, of those that are READY
--   unknown    a sorted set: number -> number, of those that are UNKNOWN
--   dead       a sorted set: number -> number, of those that are DEAD
--   lanes      a hash: lane -> number of its head, and the last place of those that were due when they were put
--   crowded    a sorted set: lane -> minus how many are behind in it
--   owners     a hash: owner -> its number, its lease, and when it was seen by vouched time
--   ended      a sorted set: id -> vouched time of its end
--   repetitions  a hash: name -> record of a repetition
--   unique     a sorted set without scores: unique key, 0, end of the period of the task that was put last with it, and its id
--   pauses     a hash: what it covers -> record of a pause, also of one that has ended; store has their number as paused
--   saved      a hash: number -> the state that an attempt of the task has saved, which no script reads
--   history    a hash: id -> record of a task that has ended and is kept: number of the end, when it was, how; the rest is for clients
--   ends       a sorted set: id -> number of its end
--   kept       a sorted set: id -> until when it is kept
--   paused     a sorted set: number -> its pause's number, of those that are PAUSED: their records are UNKNOWN, with the pause's
--              number as their owner, and '-' before their function, so that nothing else revives them. Processes of an older
--              release do not write it: a claim that puts tasks back drops those that are gone
--   operated   a hash: name of a repetition -> what processes of an older release do not know of it; counts only beside its record

-- A record: its head, which changes; its facts, as the client has written them; its error, to the end.
local HEAD, HEAD_SIZE, FACTS = '<BBBddddI4I4dd', 59, 'BBssc8sss'
local RECORD = HEAD .. FACTS
local STATE, WAS_DUE, CANCELLED, DUE, PLACE, PUT, TOKEN, ATTEMPTS, LOST, OWNER, EXPIRES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local BLOCKING, NAMED, ID, LANE, RANK, QUEUE, FUNCTION, KEY, ERROR = 12, 13, 14, 15, 16, 17, 18, 19, 20
-- Of a repetition: since when it is declared so; due time of the last occurrence, and when that was placed; who declares it; what; queue, function, schedule; what
-- the last occurrence was placed by; its id.
local REPETITION = '<dddsssssss'
local OPERATED = '<Bdd'  -- whether it was saved; when users changed it last; end of its pause, as of a pause; the definition is the rest
local PAUSE = '<ddd'  -- number, since, until (-1 if it does not end, 0 if it was ended)
local LANE_RECORD, NO_HEAD = '<c8d', string.rep('\0', 8)
local OWNER_RECORD = '<ddd'  -- number, lease, seen
local UNIQUE_ROW = '<sd'  -- key, end of the period; the id is the rest
local OCCURRENCE = '^@%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$'  -- the end of its id, behind the name of its repetition
local PART = 2000  -- values of one command; Lua's stack takes 8000
local BATCH = 1000  -- tasks that one claim makes ready of each kind, and deletes as expired, at most: the next claim goes on

local pack, unpacked, sub = struct.pack, struct.unpack, string.sub

local tasks, texts = {}, {}  -- number -> its record as values, false if there is none; and as text
local lanes = {}  -- name -> {head, last}, false if there is none
local changed_tasks, changed_lanes, crowding, new_bodies, begun_anew = {}, {}, {}, {}, {}
local places = {}  -- of a sorted set: member -> its new score, false to remove it

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function needs_no_memory()  -- a write that takes none: those that follow are not refused where memory is short
  redis.call('HDEL', keys.store, '')
end

local function in_parts(command, key, values)
  for first = 1, #values, PART do
    redis.call(command, key, unpack(values, first, math.min(first + PART - 1, #values)))
  end
end

local function read_parts(command, key, fields)
  local found = {}
  for first = 1, #fields, PART do
    local last = math.min(first + PART - 1, #fields)
    local values = redis.call(command, key, unpack(fields, first, last))
    for index = 1, last - first + 1 do found[first + index - 1] = values[index] end
  end
  return found
end

local function number_of(value) return pack('>d', value) end

local function order_of(time)  -- 9 bytes in the order of times, those before the epoch included
  if time < 0 then return '\0' .. pack('>d', time + 9007199254740992) end
  return '\1' .. pack('>d', time)
end

local function time_at(member, prefix)  -- the time behind a queue's name
  local sign, time = unpacked('>Bd', member, #prefix + 2)
  return sign == 0 and time - 9007199254740992 or time
end

local function place(key, member, score)
  local members = places[key]
  if not members then
    members = {}
    places[key] = members
  end
  members[member] = score
end

local function write_places(key)
  local added, removed = {}, {}
  local members = places[key]
  for member, score in pairs(members or {}) do
    if score then
      added[#added + 1] = score
      added[#added + 1] = member
    else
      removed[#removed + 1] = member
    end
  end
  if members then places[key] = {} end
  in_parts('ZREM', keys[key], removed)
  in_parts('ZADD', keys[key], added)
end

local function first_in(key, prefix, limit, after)  -- the first members with a prefix
  write_places(key)
  return redis.call('ZRANGEBYLEX', keys[key], after and '(' .. after or '[' .. prefix .. '\0', '(' .. prefix .. '\1', 'LIMIT', 0, limit)
end

local function read_tasks(numbers)
  local missing = {}
  for _, number in ipairs(numbers) do
    if tasks[number] == nil then missing[#missing + 1] = number end
  end
  local found = read_parts('HMGET', keys.tasks, missing)
  for index, number in ipairs(missing) do
    local text = found[index]
    local task = text and {unpacked(RECORD, text)}
    if task then task[ERROR] = sub(text, task[ERROR]) end  -- it was the place behind the facts
    tasks[number], texts[number] = task, text
  end
end

local function numbers_in(members)
  local numbers = {}
  for index, member in ipairs(members) do numbers[index] = sub(member, -8) end
  return numbers
end

-- A server that evicts keys leaves members of sorted sets without their records. One lost task must not stop the others: what is
-- found without its record is dropped. It is counted where its state would be: it lies in one such set, and perhaps in others.

local lost = {}  -- numbers that are to be counted
local BESIDE = {ids = true, turns = true, expiring = true, cancelled = true, paused = true}

local function drop(key, member, number)
  place(key, member, false)
  if key == 'behind' then
    local lane = sub(member, 1, -19)  -- before 0, place and number
    crowding[lane] = (crowding[lane] or 0) - 1
  end
  if not BESIDE[key] then lost[#lost + 1] = number end
end

local function numbers_there(key, members)  -- of the members of a sorted set whose records are there; these are read
  local numbers, there = numbers_in(members), {}
  read_tasks(numbers)
  for index, number in ipairs(numbers) do
    if tasks[number] then there[#there + 1] = number else drop(key, members[index], number) end
  end
  return there
end

local function task_at(number)
  read_tasks({number})
  return tasks[number]
end

local function owned_in(key, owner)  -- what is an owner's in a sorted set
  write_places(key)
  local score = string.format('%.0f', owner)
  return redis.call('ZRANGEBYSCORE', keys[key], score, score)
end

local function numbers_of(ids)  -- of each id its task's number, false if there is none; the tasks are read
  local numbers, known = read_parts('ZMSCORE', keys.ids, ids), {}
  for index, score in ipairs(numbers) do
    if score then
      numbers[index] = number_of(tonumber(score))
      known[#known + 1] = numbers[index]
    end
  end
  read_tasks(known)
  for index, number in ipairs(numbers) do
    if number and not tasks[number] then
      drop('ids', ids[index], number)
      numbers[index] = false
    end
  end
  return numbers
end

local function lane_at(name)
  if lanes[name] == nil then
    local text = redis.call('HGET', keys.lanes, name)
    lanes[name] = false
    if text then
      local head, last = unpacked(LANE_RECORD, text)
      lanes[name] = {head = head ~= NO_HEAD and head or nil, last = last}
    end
  end
  return lanes[name]
end

local function write_all()
  for key in pairs(places) do write_places(key) end
  places = {}
  local set, deleted, filled = {}, {}, {}
  for number in pairs(changed_tasks) do
    local task = tasks[number]
    if task then
      texts[number] = pack(RECORD, unpack(task, 1, KEY)) .. task[ERROR]
      set[#set + 1] = number
      set[#set + 1] = texts[number]
    else
      deleted[#deleted + 1] = number
    end
  end
  for number, body in pairs(new_bodies) do
    filled[#filled + 1] = number
    filled[#filled + 1] = body
  end
  in_parts('HDEL', keys.tasks, deleted)
  in_parts('HDEL', keys.bodies, deleted)
  in_parts('HDEL', keys.saved, deleted)
  in_parts('HDEL', keys.saved, begun_anew)
  in_parts('HSET', keys.tasks, set)
  in_parts('HSET', keys.bodies, filled)
  for name in pairs(changed_lanes) do
    local lane = lanes[name]
    if lane then
      redis.call('HSET', keys.lanes, name, pack(LANE_RECORD, lane.head or NO_HEAD, lane.last))
    else
      redis.call('HDEL', keys.lanes, name)
    end
  end
  for _, number in ipairs(lost) do
    local score = string.format('%.0f', (unpacked('>d', number)))
    redis.call('ZREMRANGEBYSCORE', keys.ids, score, score)
    redis.call('HDEL', keys.bodies, number)
    redis.call('HDEL', keys.saved, number)
  end
  if #lost > 0 then redis.call('HINCRBY', keys.store, 'lost', #lost) end
  lost = {}
  for name, count in pairs(crowding) do
    if count ~= 0 and redis.call('ZINCRBY', keys.crowded, -count, name) == '0' then redis.call('ZREM', keys.crowded, name) end
  end
  changed_tasks, changed_lanes, crowding, new_bodies, begun_anew = {}, {}, {}, {}, {}
end

-- The state of a task is that of its record, and in which sorted set it lies.

local function ready_member(queue, rank, due, number) return queue .. '\0' .. rank .. order_of(due) .. number end

local function turns_member(queue, rank, key, due, number) return queue .. '\0' .. rank .. key .. '\0' .. order_of(due) .. number end

local function member_of(number, task)
  local state = task[STATE]
  if state == READY then return 'ready', ready_member(task[QUEUE], task[RANK], task[DUE], number) end
  if state == BEHIND then return 'behind', task[LANE] .. '\0' .. order_of(task[PLACE]) .. number end
  if state == SCHEDULED then
    return task[LANE] == '' and 'scheduled' or 'heads', task[QUEUE] .. '\0' .. order_of(task[DUE]) .. number
  end
  return state == CLAIMED and 'claimed' or state == DEAD and 'dead' or 'unknown', number
end

local function mark(number, task, is_there)
  local state, key, member = task[STATE], member_of(number, task)
  local score = 0
  if state == CLAIMED then score = task[OWNER] elseif state == DEAD or state == UNKNOWN then score = unpacked('>d', number) end
  place(key, member, is_there and score)
  if state == READY then place('turns', turns_member(task[QUEUE], task[RANK], task[KEY], task[DUE], number), is_there and 0) end
  if state == READY and task[EXPIRES] >= 0 then place('expiring', number, is_there and task[DUE] + task[EXPIRES]) end
  if state == CLAIMED and task[CANCELLED] == 1 then place('cancelled', number, is_there and score) end
  if state == CLAIMED and task[LOST] > 0 and not is_there then place('started', number, false) end
  if state == UNKNOWN and task[OWNER] > 0 then place('paused', number, is_there and task[OWNER]) end
  if state == BEHIND then crowding[task[LANE]] = (crowding[task[LANE]] or 0) + (is_there and 1 or -1) end
  changed_tasks[number] = true
end

local function shown(task) return task[STATE] == UNKNOWN and task[OWNER] > 0 and PAUSED or task[STATE] end

local function leave(number, task) mark(number, task, false) end

local function enter(number, task, state)
  task[STATE] = state
  mark(number, task, true)
end

local function wait(number, task, now)
  enter(number, task, (task[WAS_DUE] == 1 or task[DUE] <= now) and READY or SCHEDULED)
end

-- Lanes.

local function gives_way(head) return head[STATE] == SCHEDULED and not (head[BLOCKING] == 1 and head[ATTEMPTS] > 0) end

local function settle(name, now)  -- makes the first one behind the head of its lane, if there is none, or one that gives way
  local lane = lane_at(name)
  if not lane then return end
  local head = lane.head and task_at(lane.head)
  if head and not gives_way(head) then return end
  local members, number
  repeat
    members = first_in('behind', name, 1)
    number = numbers_there('behind', members)[1]
  until number or #members == 0
  local first = number and task_at(number)
  if head and (not first or first[PLACE] >= head[PLACE]) then return end
  changed_lanes[name] = true
  if not first then
    lanes[name] = false
    return
  end
  leave(number, first)
  if head then
    leave(lane.head, head)
    enter(lane.head, head, BEHIND)
  end
  lane.head = number
  wait(number, first, now)
end

local function join_lane(number, task, now)  -- a task that is in no state waits for its time, or in its lane
  local name = task[LANE]
  if name == '' then return wait(number, task, now) end
  local lane = lane_at(name) or {last = 0}
  lanes[name] = lane
  task[PLACE] = task[DUE]
  if task[WAS_DUE] == 1 then
    lane.last = math.max(now, lane.last)
    task[PLACE] = lane.last
  end
  changed_lanes[name] = true
  enter(number, task, BEHIND)
  settle(name, now)
end

local function leave_lane(number, task, now)
  local lane = task[LANE] ~= '' and lane_at(task[LANE])
  if lane and lane.head == number then
    lane.head = nil
    changed_lanes[task[LANE]] = true
    settle(task[LANE], now)
  end
end

-- Ends.

local vouched_us

local function vouched()
  vouched_us = vouched_us or tonumber(redis.call('HGET', keys.store, 'vouched') or 0)
  return vouched_us
end

local function remove(number, task, now, is_remembered)  -- a task that has left its state
  tasks[number] = false
  changed_tasks[number] = true
  place('ids', task[ID], false)
  if is_remembered and task[NAMED] == 1 then place('ended', task[ID], vouched()) end
  leave_lane(number, task, now)
end

local function forget_history(now)
  local till = string.format('%.0f', now)
  local ids = redis.call('ZRANGEBYSCORE', keys.kept, '-inf', till, 'LIMIT', 0, FORGOTTEN_MAX)
  in_parts('HDEL', keys.history, ids)
  in_parts('ZREM', keys.ends, ids)
  in_parts('ZREM', keys.kept, ids)
end

local function is_blamed(number, task)  -- the first loss counts always, further ones if a start was recorded
  return task[LOST] == 0 or tonumber(redis.call('ZMSCORE', keys.started, number)[1] or -1) == task[TOKEN]
end

local function give_back_one(number, task, now, is_lost)
  local blame = is_lost and is_blamed(number, task) and 1 or 0
  leave(number, task)
  task[OWNER], task[LOST] = 0, task[LOST] + blame
  if task[CANCELLED] == 1 then
    remove(number, task, now, false)
  else
    enter(number, task, READY)
  end
end

local function give_back(name, now, is_lost)
  local owner = unpacked(OWNER_RECORD, redis.call('HGET', keys.owners, name))
  local numbers = numbers_there('claimed', owned_in('claimed', owner))
  for _, number in ipairs(numbers) do give_back_one(number, tasks[number], now, is_lost) end
  redis.call('HDEL', keys.owners, name)
end

-- A server that has begun anew may have done so from an older copy of its data. Numbers and tokens that it gave out before must not
-- come again, or who holds an old claim could end a new one: they go on from the time.

local function least_numbers(now)  -- of the last task, and of a token; and how many pauses are known
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local known, number, token, paused = unpack(redis.call('HMGET', keys.store, 'run', 'number', 'token', 'paused'))
  number, token = tonumber(number or 0), tonumber(token or 0)
  if known ~= run then
    token = known and math.max(token, now) or 0
    number = math.max(number, now)
    redis.call('HSET', keys.store, 'version', VERSION, 'run', run, 'number', number, 'token', token)
  end
  return number, token, tonumber(paused or 0)
end

-- Replies.

local is_any_saved

local function has_saved()
  if is_any_saved == nil then is_any_saved = redis.call('EXISTS', keys.saved) == 1 end
  return is_any_saved
end

local function state_of(number) return has_saved() and redis.call('HGET', keys.saved, number) or '' end

local function for_client(numbers, records, bodies, states)  -- each as number, record, body and saved state, these three behind their lengths
  local parts = {}
  for index, number in ipairs(numbers) do
    local text, body, state = records[index], bodies[index] or '', states[index]
    parts[index * 4 - 3] = number .. pack('<I4I4I4', #text, #body, #state)
    parts[index * 4 - 2] = text
    parts[index * 4 - 1] = body
    parts[index * 4] = state
  end
  return table.concat(parts)
end

local function for_people(numbers, bodies, states)  -- the tasks, and the owners
  local records = {}
  for index, number in ipairs(numbers) do records[index] = texts[number] end
  return for_client(numbers, records, bodies, states), redis.call('HGETALL', keys.owners)
end

local function tell(what) redis.call('PUBLISH', keys.store, what or '') end  -- wakes who waits for tasks; the channel has a key's name

local function cancelled_of(owner)  -- numbers and tokens of an owner's claims that somebody has cancelled
  local answer, numbers = {}, numbers_there('cancelled', owned_in('cancelled', owner))
  for index, number in ipairs(numbers) do answer[index] = number .. pack('>d', tasks[number][TOKEN]) end
  return table.concat(answer)
end

-- Repetitions.

local function repetition_at(name)  -- and true if it is known
  local known, row, from = redis.call('HGET', keys.repetitions, name), {}, nil
  local text = known or pack(REPETITION, 0, 0, 0, '', '', '', '', '', '', '')
  row.since, row.last_due, row.placed, row.owner, row.spec, row.queue, row.called, row.schedule, row.last_spec, row.last_id = unpacked(REPETITION, text)
  text = known and redis.call('HGET', keys.operated, name) or pack(OPERATED, 0, 0, 0)
  row.saved, row.changed, row.till, from = unpacked(OPERATED, text)
  row.definition = sub(text, from)
  return row, known and true
end

local function repetition_texts(row)
  local known = pack(REPETITION, row.since, row.last_due, row.placed, row.owner, row.spec, row.queue, row.called, row.schedule, row.last_spec, row.last_id)
  return known, pack(OPERATED, row.saved, row.changed, row.till) .. row.definition
end

local function write_repetition(name, row)
  local known, operated = repetition_texts(row)
  redis.call('HSET', keys.repetitions, name, known)
  redis.call('HSET', keys.operated, name, operated)
end

local function is_before(time, till)  -- as of pauses
  return till < 0 or time < till
end

local function is_waiting(task)  -- nobody has ever claimed it; or who did last does not know its function
  return task[TOKEN] == 0 or shown(task) == UNKNOWN
end

local function drop_waiting(id, now, till)  -- an occurrence that waits, and is due before a time if given
  local number = numbers_of({id})[1]
  local task = number and tasks[number]
  if task and is_waiting(task) and is_before(task[DUE], till or -1) then
    leave(number, task)
    remove(number, task, now, false)
    return true
  end
end

local function drop_occurrences(name, row, now, till)  -- all of these; the last as if it had not been placed, but those before it had been
  if drop_waiting(row.last_id, now, till) then row.last_due, row.last_id = row.last_due - 1, '' end
  if string.find(row.definition, '"overlap":"skip"', 1, true) then return end  -- no other waits
  for first = 0, redis.call('ZCARD', keys.ids) - 1, BATCH do
    for _, id in ipairs(redis.call('ZRANGE', keys.ids, first, first + BATCH - 1)) do
      if sub(id, 1, -29) == name and string.find(id, OCCURRENCE, -28) then drop_waiting(id, now, till) end
    end
  end
end

local function pass_last(row, now)  -- remembers the last occurrence as ended if it is gone
  if row.last_id == '' or numbers_of({row.last_id})[1] or redis.call('ZMSCORE', keys.ended, row.last_id)[1] then return end
  place('ended', row.last_id, vouched() + math.max(0, row.last_due - now))
  write_places('ended')  -- it may be put next
end

local function write_change(name, row, now)  -- by users
  row.changed = math.max(now, row.changed + 1)
  write_all()
  write_repetition(name, row)
  tell('cancelled')
end
