-- Hold slots of a group's pools for one peer: ask for them, renew leases, give slots back, and set limits.
--
-- `SlotAuthority` in `_core/fleet/slots.py`, over `SlotPools` in `_core/slots/slots.py`, has the same rules over plain
-- values. One suite of tests checks both: change a rule in both.
--
-- KEYS, in one slot of a cluster. Each may be lost alone, by eviction or by hand: so each names its state.
--
--   slots   a hash
--             version             VERSION of the script that has written it
--             since               when this state began, in microseconds of the server's clock
--             run                 the run id of the server
--             clock, last         the clock of the leases, and the server's at the last call
--             turn                how often the server's clock has gone back
--             safe                by the clock of the leases: until then nothing is handed over
--             halted              '1' while that lasts
--             lease, difference   the settings of the process that called last, for inspection
--             fence, number       the fence of the last lease; the number of the last request
--             l:<pool>            its limit
--             v:<pool>            the version of its limit
--             d:<pool>            the limit that a process declared last
--             t:<token>           a holder or waiter: a JSON list of texts: fence, since, place, note, limit, pool, pool ...
--   held    a sorted set of equal scores: '<pool>\0<fence>:<token>', so that a pool's are together, the longest held first
--   line    the same for waiters: '<pool>\0<rank><number>:<token>', the first in line first
--   ends    a sorted set: token -> when its lease ends by the clock of the leases
--   Each of the sorted sets contains the mark of the state, '!<since>'.
--
-- ARGS, the fields of `SlotCall` in `_core/fleet/slots.py`, where each is explained.
--
--   peer                      the calling peer
--   lease_us, difference_us   how long a lease lasts; the largest difference between the clocks of two servers
--   fence                     the highest fence that the caller knows
--   era, told_us, seen_us     the latest answer: its era, the server's clock; the time since, by the caller's clock
--   entries                   requests, waiters and renewals: {token, pools, priority, fence, until, note, limit} each
--   releases                  tokens to release
--   limits, declared          limits to put in force: {pool, limit}; declared limits: {pool, limit, known, version}
--   watched                   pools to report
--
-- REPLY, all texts: now, era, quarantine, the time to the next end, flaw, the highest fence; the number of entries, and the
-- fence of each; the number of other tokens of this peer that were handed slots, and each with its fence; limit, held, waiting
-- and version of each watched pool. A peer gets the message '<token>' on the channel '<key of slots>:<peer>' if the token was
-- handed slots, or holds slots of a pool that has its first waiter now.
-- The reply is an error if a later version of this script wrote the state within a minute, or if the state was damaged.

local ABANDONED_US, SAFE_MAX_US, WHOLE_MAX, STATE_MS = 60000000, 3600000000, 2 ^ 53, 86400000
local TOUCH_US, STRETCH, FIRST = 3600000000, 1000, 6

local function whole(number) return string.format('%.0f', number) end

local function natural(text)  -- nil if it is no integer from 0 to below 2 ^ 53
  local number = text and string.find(text, '^%d+$') and tonumber(text)
  return number and number < WHOLE_MAX and number or nil
end

local function peer_of(token) return string.match(token, '^(.*):') end

-- The state.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local info = redis.call('INFO', 'server')
local run = string.match(info, '^run_id:(%x+)', (string.find(info, 'run_id:', 1, true)))  -- a plain search is faster
local values = redis.call('HMGET', keys.slots, 'version', 'since', 'run', 'clock', 'last', 'safe', 'halted', 'fence', 'number', 'turn')
local is_known = redis.call('EXISTS', keys.slots, keys.held, keys.line, keys.ends) > 0
local since, clock, last, safe = values[2], natural(values[4]), natural(values[5]), natural(values[6])
local is_halted, fence, number, turn = values[7] == '1', natural(values[8]), natural(values[9]), natural(values[10]) or 0
local flaw = ''

if (natural(values[1]) or 0) > VERSION and last and math.abs(now - last) < ABANDONED_US then
  return redis.error_reply('ERR ratelimited_executor: this group speaks version ' .. values[1] .. ' of the protocol of slots, '
    .. 'this process ' .. VERSION .. ': install one release in all processes')
end

local function begin_anew()
  redis.call('DEL', keys.slots, keys.held, keys.line, keys.ends)
  since, clock, fence, number, is_halted, turn = whole(now), now, 0, 0, false, 0
  redis.call('ZADD', keys.held, 0, '!' .. since)
  redis.call('ZADD', keys.line, 0, '!' .. since)
  redis.call('ZADD', keys.ends, '+inf', '!' .. since)
end

local is_whole = values[1] == tostring(VERSION) and natural(since) and clock and last and safe and fence and number
  and safe < clock + SAFE_MAX_US and redis.call('ZSCORE', keys.held, '!' .. since) and redis.call('ZSCORE', keys.line, '!' .. since)
  and redis.call('ZSCORE', keys.ends, '!' .. since)
if not is_whole then
  if is_known then flaw = 'state' end
  begin_anew()
end
local function era() return run .. ':' .. since .. ':' .. whole(turn) end

local spare = math.floor(args.lease_us / 20)
if not is_whole or run ~= values[3] then
  fence = math.max(fence, now + args.difference_us)
  safe = clock + args.lease_us + spare + args.difference_us
elseif now < last then
  turn = turn + 1
elseif args.era == era() then
  local excess = now - args.told_us - args.seen_us
  clock = clock + math.max(0, now - last - math.max(0, excess - spare))
end

-- Records: {fence, since, place, note, limit, pool, pool ...}, all texts; `FIRST` is the place of the first pool.

local records = {}

local function record_of(token)  -- nil if there is none
  if records[token] == nil then
    local text = redis.call('HGET', keys.slots, 't:' .. token)
    local is_read, record = pcall(cjson.decode, text or 'false')
    if record and not (is_read and type(record) == 'table' and #record >= FIRST and natural(record[1]) and natural(record[2])) then
      redis.call('DEL', keys.slots, keys.held, keys.line, keys.ends)
      error('damaged')
    end
    records[token] = record or false
  end
  return records[token] or nil
end

local function keep(token, record)
  records[token] = record
  redis.call('HSET', keys.slots, 't:' .. token, cjson.encode(record))
end

local function padded(text) return string.rep('0', 16 - #text) .. text end

local function rank_of(priority)  -- bytes that sort as numbers do, the larger priority first
  local bytes = {string.byte(struct.pack('>d', 0 - priority), 1, 8)}
  if bytes[1] >= 128 then
    for index = 1, 8 do bytes[index] = 255 - bytes[index] end
  else
    bytes[1] = bytes[1] + 128
  end
  local digits = {}
  for index = 1, 8 do digits[index] = string.format('%02x', bytes[index]) end
  return table.concat(digits)
end

-- The rules of the pools.

local handed = {}  -- tokens, in order
local wanted = {}  -- by peer: a token that holds a slot for which somebody begins to wait

local function limit_of(pool) return natural(redis.call('HGET', keys.slots, 'l:' .. pool)) or 0 end

local function count(key, pool) return redis.call('ZLEXCOUNT', key, '[' .. pool .. '\0', '(' .. pool .. '\1') end

local function first_of(pool)  -- the token that is first in line; nil if nobody waits
  local first = redis.call('ZRANGEBYLEX', keys.line, '[' .. pool .. '\0', '(' .. pool .. '\1', 'LIMIT', 0, 1)[1]
  return first and string.sub(first, #pool + 35)  -- a pool, \0, sixteen digits of rank and of number, a colon
end

local function told(token)  -- it hears of a hand-over by its own answer, or has gone
  for index, other in ipairs(handed) do
    if other == token then return table.remove(handed, index) end
  end
end

local function drop(token, record)
  told(token)
  for index = FIRST, #record do
    if record[1] == '0' then redis.call('ZREM', keys.line, record[index] .. '\0' .. record[3] .. ':' .. token)
    else redis.call('ZREM', keys.held, record[index] .. '\0' .. padded(record[1]) .. ':' .. token) end
  end
  redis.call('HDEL', keys.slots, 't:' .. token)
  redis.call('ZREM', keys.ends, token)
  records[token] = false
end

local function hold(token, record)
  for index = FIRST, #record do
    redis.call('ZADD', keys.held, 0, record[index] .. '\0' .. padded(record[1]) .. ':' .. token)
  end
  keep(token, record)
end

local function hand_over(pools)  -- what is free of some pools, and of those in whose lines somebody has moved up thereby
  if is_halted then return end
  local at = 1
  while at <= #pools do
    local pool = pools[at]
    local token = first_of(pool)
    local is_free = token and true
    local record = token and record_of(token)
    local own = record and natural(record[5])
    if token and not record then
      redis.call('DEL', keys.slots, keys.held, keys.line, keys.ends)
      error('damaged')
    end
    for index = FIRST, record and #record or 0 do
      local each = record[index]
      is_free = is_free and count(keys.held, each) < (own or limit_of(each)) and (each == pool or first_of(each) == token)
    end
    if is_free then
      fence = fence + 1
      for index = FIRST, #record do
        redis.call('ZREM', keys.line, record[index] .. '\0' .. record[3] .. ':' .. token)
        if record[index] ~= pool then pools[#pools + 1] = record[index] end
      end
      record[1], record[2] = whole(fence), whole(clock)
      hold(token, record)
      redis.call('ZADD', keys.ends, clock + math.floor(args.lease_us / 2) + spare, token)
      handed[#handed + 1] = token
    else
      at = at + 1
    end
  end
end

local function look()  -- ends the leases whose time has come, and hands over what they leave
  local left, pools = {}, {}
  repeat
    local ended = redis.call('ZRANGEBYSCORE', keys.ends, '-inf', whole(clock), 'LIMIT', 0, STRETCH)
    for _, token in ipairs(ended) do
      local record = record_of(token)
      if record then
        for index = FIRST, #record do left[record[index]] = true end
        drop(token, record)
      else
        redis.call('ZREM', keys.ends, token)
      end
    end
  until #ended < STRETCH
  for pool in pairs(left) do pools[#pools + 1] = pool end
  table.sort(pools)
  hand_over(pools)
end

local function halt(halts)
  if is_halted == halts then return end
  is_halted = halts
  if halts then return end
  local pools = {}
  for _, place in ipairs(redis.call('ZRANGE', keys.line, 0, -1)) do  -- in the order of their names
    local pool = string.match(place, '^(.-)%z')
    if pool and pool ~= pools[#pools] then pools[#pools + 1] = pool end
  end
  hand_over(pools)
end

local function version_of(pool) return natural(redis.call('HGET', keys.slots, 'v:' .. pool)) or 0 end

local function set_limit(pool, limit, version_now)  -- one that is set now is later than all before
  if version_now > 0 then version_now = math.max(version_now, version_of(pool) + 1) end
  redis.call('HSET', keys.slots, 'l:' .. pool, whole(limit), 'v:' .. pool, whole(version_now))
  hand_over({pool})
end

local function release(token)
  local record = record_of(token)
  if record then
    local pools = {unpack(record, FIRST)}
    drop(token, record)
    table.sort(pools)
    hand_over(pools)
  end
end

local function want(pools)  -- notes holders where a pool has its first waiter now: they may not have told of a release yet
  for _, pool in ipairs(pools) do
    if count(keys.line, pool) == 1 then
      for _, place in ipairs(redis.call('ZRANGEBYLEX', keys.held, '[' .. pool .. '\0', '(' .. pool .. '\1')) do
        local token = string.sub(place, #pool + 19)  -- a pool, \0, sixteen digits of the fence, a colon
        wanted[peer_of(token)] = token
      end
    end
  end
end

local function enter(token, pools, priority, claimed, until_us, note, limit)  -- the fence; 0 if it waits, -1 if it has nothing
  limit = limit < 0 and '' or whole(limit)
  local record = record_of(token)
  local is_waiting = record and record[1] == '0'
  if record and (claimed == 0 and not is_waiting and is_halted or claimed > 0 and is_waiting) then
    release(token)  -- a hand-over of an older memory; or a call of before, which came late
    record = nil
  end
  if not record and claimed == 0 then
    number = number + 1
    local place = rank_of(priority) .. padded(whole(number))
    record = {'0', whole(clock), place, note, limit, unpack(pools)}
    for _, pool in ipairs(pools) do redis.call('ZADD', keys.line, 0, pool .. '\0' .. place .. ':' .. token) end
    keep(token, record)
    hand_over({unpack(pools)})
    if record[1] == '0' then want(pools) end
  elseif not record and is_halted and now + args.difference_us < until_us then
    record = {whole(claimed), whole(clock), '', note, limit, unpack(pools)}
    fence = math.max(fence, claimed)
    hold(token, record)
  end
  if not record then return '-1' end
  if claimed == 0 then told(token) end
  redis.call('ZADD', keys.ends, clock + args.lease_us + spare, token)
  return record[1]
end

-- The call.

local function answer()
  fence = math.max(fence, args.fence)
  look()
  halt(clock < safe)
  for _, each in ipairs(args.declared) do
    local pool, limit, known, known_version = unpack(each)
    local before = natural(redis.call('HGET', keys.slots, 'd:' .. pool))
    if before ~= limit then
      redis.call('HSET', keys.slots, 'd:' .. pool, whole(limit))
      set_limit(pool, limit, before and now or 0)
    end
    if is_halted and known_version > version_of(pool) then set_limit(pool, known, known_version) end
  end
  for _, each in ipairs(args.limits) do set_limit(each[1], each[2], now) end
  for _, token in ipairs(args.releases) do release(token) end
  local reply = {whole(now), era(), whole(math.max(0, safe - clock)), '0', flaw, '', tostring(#args.entries)}
  for _, entry in ipairs(args.entries) do reply[#reply + 1] = enter(unpack(entry)) end
  local first, at = unpack(redis.call('ZRANGE', keys.ends, 0, 0, 'WITHSCORES'))
  if first ~= '!' .. since then reply[4] = whole(tonumber(at) - clock) end
  reply[6] = whole(fence)
  local own = {}
  local function notify(token) redis.pcall('PUBLISH', keys.slots .. ':' .. peer_of(token), token) end  -- late does no harm
  for _, token in ipairs(handed) do
    if peer_of(token) == args.peer then own[#own + 1] = token else notify(token) end
  end
  wanted[args.peer] = nil
  for _, token in pairs(wanted) do notify(token) end
  reply[#reply + 1] = tostring(#own)
  for _, token in ipairs(own) do
    reply[#reply + 1] = token
    reply[#reply + 1] = record_of(token)[1]
  end
  for _, pool in ipairs(args.watched) do
    reply[#reply + 1] = whole(limit_of(pool))
    reply[#reply + 1] = whole(count(keys.held, pool))
    reply[#reply + 1] = whole(count(keys.line, pool))
    reply[#reply + 1] = whole(version_of(pool))
  end
  redis.call('HSET', keys.slots, 'version', VERSION, 'since', since, 'run', run, 'clock', whole(clock), 'last', whole(now),
    'safe', whole(safe), 'halted', is_halted and '1' or '0', 'fence', whole(fence), 'number', whole(number), 'turn', whole(turn),
    'lease', whole(args.lease_us), 'difference', whole(args.difference_us))
  if not is_whole or now < last or math.floor(now / TOUCH_US) > math.floor(last / TOUCH_US) then
    for _, key in pairs(keys) do redis.call('PEXPIRE', key, STATE_MS) end
  end
  return reply
end

local is_done, reply = pcall(answer)
if is_done then return reply end
local reason = tostring(type(reply) == 'table' and reply.err or reply)
if string.find(reason, 'damaged') then reason = 'ERR ratelimited_executor: the state of slots was damaged, and is begun anew' end
return redis.error_reply(reason)
