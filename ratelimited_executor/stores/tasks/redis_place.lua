-- Put the next occurrence of a repetition that a process declares, once the previous one has ended.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner                 the process
--   name, since_us        the name of the repetition; when its process began to declare it
--   spec, schedule        its declaration; its times, as text
--   allow_overlap         true to put it although the previous one has not ended
--   definition, is_saved  what it puts; true if it was saved
--   task                  as for `redis_put.lua`, with a time
--
-- REPLY: the outcome; id and due time of the occurrence that was placed last, or the end of the pause.

local now = clock()
local _, due, expires, length, body_length, is_blocking, is_named, id, lane, rank, queue, called, key = unpacked('<BddI4I4' .. FACTS, args.task)
local row, known = repetition_at(args.name)
if args.is_saved and (row.saved == 0 or row.definition ~= args.definition) then return {AS_SUPERSEDED, '', 0} end
local is_others = row.owner ~= args.owner and redis.call('HEXISTS', keys.owners, row.owner) == 1
if is_others and row.spec ~= args.spec and row.since >= args.since_us then return {AS_SUPERSEDED, row.last_id, row.last_due} end
local record, operated = repetition_texts(row)

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
  if is_before(due, row.till) then return AS_PAUSED end
  local is_other = row.last_spec ~= args.spec or now < row.placed - REMEMBERED_US
  local is_dropped = is_other and drop_waiting(row.last_id, now)
  if is_dropped then write_all() end
  local number = numbers_of({row.last_id})[1]
  if number and tasks[number][STATE] ~= DEAD then
    if row.last_id == id or not is_other and row.last_due > due then return AS_PLACED end
    if not args.allow_overlap then return AS_BUSY end
  end
  if not is_other and due <= row.last_due then return AS_PAST end
  if not is_dropped then pass_last(row, now) end
  row.last_spec, row.last_id, row.last_due, row.placed = args.spec, id, due, now
  return put()
end

local how = placement()
if not (is_others and row.since >= args.since_us) then row.owner, row.since = args.owner, args.since_us end
row.spec, row.queue, row.called, row.schedule = args.spec, queue, called, args.schedule
row.saved, row.definition = args.is_saved and 1 or 0, args.definition
write_all()
local new_record, new_operated = repetition_texts(row)
if not known or record ~= new_record or operated ~= new_operated then write_repetition(args.name, row) end
if how == AS_PLACED then tell() end
return {how, row.last_id, how == AS_PAUSED and math.max(row.till, 0) or row.last_due}
