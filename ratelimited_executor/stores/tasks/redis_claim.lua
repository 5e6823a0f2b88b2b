-- Claim tasks that are due: the largest priority first, then the earliest due, then the first put.
--
-- KEYS   those of `redis_rules.lua`
--
-- ARGS
--   owner, queue          who claims, and of which queue
--   count, ahead_us       how many at most, and how long before they are due
--   floor                 rank of the priority above which all are
--   has_before, before_us   1 if of that priority those are claimed as well that are due before so long from now
--   unknown, full_keys    functions and keys whose tasks are left to others
--   after                 where to go on in the order of those that are READY; empty to begin
--   size                  how many bytes their arguments may have together; the first is claimed however many it has
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

make_ready('scheduled', now + args.ahead_us)
make_ready('heads', now)
local expired_count = delete_expired()
write_all()  -- from here on records are texts, of which only the heads change

local taken, records, bodies, size, is_full = {}, {}, {}, 0, false

local function set_of(list)
  local set = {}
  for _, each in ipairs(list) do set[each] = true end
  return set
end

local unknown, full_keys = set_of(args.unknown), set_of(args.full_keys)
local has_filter = #args.unknown + #args.full_keys > 0

local function is_left(record)
  local _, _, _, _, _, _, called, key = unpacked('<' .. FACTS, record, HEAD_SIZE + 1)
  return unknown[called] or full_keys[key]
end

local function fits(number)  -- if so, its body is among those that are taken
  local body = redis.call('HGET', keys.bodies, number) or ''
  size = size + #body - (string.find(body, '\0', 1, true) or 0)  -- its cost stands before
  is_full = #taken > 0 and size > args.size
  if not is_full then bodies[#taken + 1] = body end
  return not is_full
end

local function take(members, least_token)  -- those that are not left to others, and how many are
  local numbers, written, claimed, gone, expiring, left_count, last = numbers_in(members), {}, {}, {}, {}, 0, nil
  for index, record in ipairs(read_parts('HMGET', keys.tasks, numbers)) do
    if #taken == args.count or is_full then break end
    local number = numbers[index]
    last = members[index]
    if not record then
      drop('ready', last, number)
      left_count = left_count + 1
    elseif has_filter and is_left(record) then
      left_count = left_count + 1
    elseif fits(number) then
      local _, was_due, cancelled, due, place_us, put, token, attempts, lost, _, expires = unpacked(HEAD, record)
      local head = pack(HEAD, CLAIMED, was_due, cancelled, due, place_us, put, math.max(token, least_token) + 1, attempts, lost, owner, expires)
      record = head .. sub(record, HEAD_SIZE + 1)
      taken[#taken + 1], records[#records + 1], gone[#gone + 1] = number, record, last
      written[#gone * 2 - 1], written[#gone * 2] = number, record
      claimed[#gone * 2 - 1], claimed[#gone * 2] = owner, number
      if expires >= 0 then expiring[#expiring + 1] = number end
    end
  end
  in_parts('ZREM', keys.ready, gone)
  in_parts('ZREM', keys.expiring, expiring)
  in_parts('HSET', keys.tasks, written)
  in_parts('ZADD', keys.claimed, claimed)
  return left_count, last
end

local function take_ready()  -- returns where it has stopped, if that is not the end
  local after, left_count = args.after ~= '' and args.after or nil, 0
  local max = '(' .. args.queue .. '\0' .. args.floor
  if args.has_before == 1 then max = max .. order_of(now + args.before_us) end
  local _, least_token = least_numbers(now)
  while #taken < args.count and not is_full do
    local limit = has_filter and PAGE or math.min(PAGE, args.count - #taken)
    local min = after and '(' .. after or '[' .. args.queue .. '\0'
    local members = redis.call('ZRANGEBYLEX', keys.ready, min, max, 'LIMIT', 0, limit)
    local left
    left, after = take(members, least_token)
    left_count = left_count + left
    if #members < limit or is_full then return '' end
    if left_count >= LEFT_MAX then return after end
  end
  return ''
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

local after = take_ready()
write_all()  -- what was lost
return {now, #taken < args.count and not is_full and next_in() or 0, expired_count, after, for_client(taken, records, bodies)}
