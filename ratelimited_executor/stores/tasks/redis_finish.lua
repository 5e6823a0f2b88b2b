-- End claims whose tokens are in force, each once.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   outcomes   for each: number and token of the claim, how it ends, after how long it is due again, and its error
--   kept       for each task that is kept in the history if it has ended: its place among them; for how long; the length of what is
--              for clients, and that
--
-- REPLY: one text with a digit for each: '1' if it is ended, '0' if it was no longer in force and nothing has changed.

local OUTCOME = '<c8dBds'
needs_no_memory()
local now = clock()
local outcomes, numbers, at = {}, {}, 1
while at <= #args.outcomes do
  local outcome = {unpacked(OUTCOME, args.outcomes, at)}
  at = outcome[#outcome]
  outcomes[#outcomes + 1] = outcome
  numbers[#numbers + 1] = outcome[1]
end
local records = read_parts('HMGET', keys.tasks, numbers)
local kept, history = {}, {}  -- of each place what is kept; ids and records of those that have ended
at = 1
while at <= #args.kept do
  local index, span, length, from = unpacked('<I4dI4', args.kept, at)
  at = from + length
  kept[index] = {till = now + span, facts = sub(args.kept, from, at - 1)}
end

local function postpone(number, task, delay, keeps_lane)
  task[DUE] = now + delay
  task[PLACE] = keeps_lane and 0 or task[DUE]
  task[WAS_DUE] = 0
  if task[LANE] ~= '' and task[BLOCKING] == 0 then
    enter(number, task, BEHIND)
    leave_lane(number, task, now)
  else
    wait(number, task, now)
  end
end

local function fail(number, task, last, delay, text)
  task[ATTEMPTS] = task[ATTEMPTS] + 1
  task[ERROR] = text
  if last ~= END_DEAD then return postpone(number, task, delay, false) end
  enter(number, task, DEAD)
  if task[LANE] ~= '' and task[BLOCKING] == 0 then leave_lane(number, task, now) end
end

local function finish(number, task, how, delay, text)
  leave(number, task)
  task[OWNER] = 0
  if how == END_DONE then
    remove(number, task, now, true)
  elseif how == END_EXPIRED or how == END_CANCELLED or task[CANCELLED] == 1 then
    remove(number, task, now, task[CANCELLED] == 0)
  elseif how == END_RELEASED then
    enter(number, task, READY)
  elseif how == END_UNKNOWN then
    enter(number, task, UNKNOWN)
  elseif how == END_SNOOZED then
    postpone(number, task, delay, task[BLOCKING] == 1)
  else
    fail(number, task, how, delay, text)
  end
end

local function keep(each, id, how)
  if each then
    each.id, each.how = id, (how == END_DONE or how == END_EXPIRED) and how or END_CANCELLED
    history[#history + 1] = each
  end
end

local answers, gone, gone_ids, cancelled, started, ended, seen = {}, {}, {}, {}, {}, {}, {}
for index, outcome in ipairs(outcomes) do
  local number, token, how, delay, text = unpack(outcome)
  local record = not seen[number] and records[index]  -- of two outcomes of one claim the second comes too late
  answers[index] = '0'
  if record then
    local state, _, is_cancelled, _, _, _, current, _, lost, _, _, _, is_named, id, lane = unpacked(RECORD, record)
    if state == CLAIMED and current == token then
      answers[index], seen[number] = '1', true
      if how == END_DONE and lane == '' then  -- nearly always: without the values of the other facts
        gone[#gone + 1], gone_ids[#gone_ids + 1] = number, id
        keep(kept[index], id, how)
        if is_cancelled == 1 then cancelled[#cancelled + 1] = number end
        if lost > 0 then started[#started + 1] = number end
        if is_named == 1 then
          ended[#ended + 1] = vouched()
          ended[#ended + 1] = id
        end
      else
        finish(number, task_at(number), how, delay, text)
        if not tasks[number] then keep(kept[index], id, how) end
      end
    end
  end
end
in_parts('HDEL', keys.tasks, gone)
in_parts('HDEL', keys.bodies, gone)
in_parts('ZREM', keys.claimed, gone)
in_parts('ZREM', keys.ids, gone_ids)
in_parts('ZREM', keys.cancelled, cancelled)
in_parts('ZREM', keys.started, started)
in_parts('ZADD', keys.ended, ended)
if #gone > 0 and has_saved() then in_parts('HDEL', keys.saved, gone) end
write_all()
if #args.kept > 0 then
  forget_history(now)
  local last, ends, untils, rows = redis.call('HINCRBY', keys.store, 'history', #history) - #history, {}, {}, {}
  for index, each in ipairs(history) do
    ends[index * 2 - 1], ends[index * 2] = last + index, each.id
    untils[index * 2 - 1], untils[index * 2] = each.till, each.id
    rows[index * 2 - 1], rows[index * 2] = each.id, pack('<ddB', last + index, now, each.how) .. each.facts
  end
  in_parts('HSET', keys.history, rows)
  in_parts('ZADD', keys.ends, ends)
  in_parts('ZADD', keys.kept, untils)
  tell()  -- who waits for an end
end
return table.concat(answers)
