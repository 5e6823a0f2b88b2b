-- Put the next occurrence of a repetition that a process declares, once the previous one has ended.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner                 the process
--   name, since_us        the name of the repetition; when its process began to declare it
--   spec, schedule        its declaration; its times, as text
--   allow_overlap         true to put it although the previous one has not ended
--   task                  as for `redis_put.lua`, with a time
--
-- REPLY: the outcome; id and due time of the occurrence that was placed last.

local now = clock()
local _, due, expires, length, body_length, is_blocking, is_named, id, lane, rank, queue, called, key = unpacked('<BddI4I4' .. FACTS, args.task)
local known = redis.call('HGET', keys.repetitions, args.name)
local row = known and {unpacked(REPETITION, known)} or {0, 0, 0, '', '', '', '', '', '', ''}
local since, last_due, placed, declarer, spec, _, _, _, last_spec, last_id = unpack(row)
local is_others = declarer ~= args.owner and redis.call('HEXISTS', keys.owners, declarer) == 1
if is_others and spec ~= args.spec and since >= args.since_us then return {AS_SUPERSEDED, last_id, last_due} end

local function put()
  if numbers_of({id})[1] or redis.call('ZMSCORE', keys.ended, id)[1] then return AS_PAST end
  local last = least_numbers(now) + 1
  local number, begin = number_of(last), 26 + length
  redis.call('HSET', keys.store, 'number', last)
  tasks[number] = {BEHIND, due <= now and 1 or 0, 0, due, 0, now, 0, 0, 0, 0, expires, is_blocking, is_named, id, lane, rank, queue, called, key, ''}
  new_bodies[number] = sub(args.task, begin, begin + body_length - 1)
  place('ids', id, last)
  join_lane(number, tasks[number], now)
  return AS_PLACED
end

local function placement()
  local is_other = last_spec ~= args.spec or now < placed - REMEMBERED_US
  local is_dropped = is_other and drop_waiting(last_id, now)
  if is_dropped then write_all() end
  local number = numbers_of({last_id})[1]
  if number and tasks[number][STATE] ~= DEAD then
    if last_id == id or not is_other and last_due > due then return AS_PLACED end
    if not args.allow_overlap then return AS_BUSY end
  end
  if id == last_id then
    if not is_dropped then return AS_PAST end
  elseif not is_other and due <= last_due then
    return AS_PAST
  end
  last_spec, last_id, last_due, placed = args.spec, id, due, now
  return put()
end

local how = placement()
if not (is_others and since >= args.since_us) then declarer, since = args.owner, args.since_us end
local text = pack(REPETITION, since, last_due, placed, declarer, args.spec, queue, called, args.schedule, last_spec, last_id)
write_all()
if text ~= known then redis.call('HSET', keys.repetitions, args.name, text) end
if how == AS_PLACED then tell() end
return {how, last_id, last_due}
