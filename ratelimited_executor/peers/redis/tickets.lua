-- Admit tickets to all limits of one executor's group, for one peer, and correct what they cost.
--
-- `TicketAuthority` in `_core/fleet/tickets.py` has the same rules over plain values. One suite of tests checks both: change a
-- rule in both. The rules of each limit are in `laws.lua`, which precedes this text.
--
-- KEYS, in one slot of a cluster. Each may be lost alone, by eviction or by hand: so each has the mark of its state.
--
--   tickets  a hash
--              version           VERSION of the script that has written it
--              mark              the same in all keys: the version, and when the state began
--              run               the run id of the server
--              state             packed numbers: when the era began, its quarantine ends, and earlier tickets have lapsed, in microseconds
--                                of the server's clock;
--                                that at the last call that vouched for it; the number of the last ticket or correction;
--                                until when nothing is admitted; when all limits are at rest; until when `keys` and `rest`
--                                live, the others two days longer; the load
--              machine           of the last caller that vouched for the time: how far the server's clock was ahead of its
--                                machine's and the bound on the error, packed numbers, and what identifies the machine
--              plan_id, plan     the plan in force: a JSON list of {name, resource, settings}
--              l:<law><name>     a limit of a plan: '<since>,<serial>,;<text>'; its law is the first letter of the text
--              q:                the queue of the plan, if somebody was hungry: a packed list of since, virtual, and peer,
--                                served, until, cycle, back of each turn
--              n:<peer>          the number of a peer's last call
--   keys     a hash
--              !                 the mark
--              k:<law><key>      the limit of a key: '<since>,<serial>,<settings>;<text>'
--              p:<key>           its penalty: '<since>,<until>'
--              q:<key>           its queue
--   rest     a sorted set: field of `keys` -> when it is at rest
--   seen     a sorted set: peer -> when it has called
--   Each of the sorted sets contains '!<mark>', after all other members.
--
-- ARGS are the fields of `TicketCall` in `_core/fleet/ticket_calls.py`, where each is explained:
--
--   peer, weight, era, since_us, earliest_us, latest_us, machine, offset_us, error_us, number, ahead_us, life_us,
--   after_us, cycle_us, difference_us, quarantine_us, has_jumped, plan_id, is_new_plan, and lists with these entries:
--
--   plan         {name, resource, settings} of each limit
--   penalties    {key, us} of each
--   corrections  {limit, key, t, cost, receipt, is_whole} of each
--   reports      {limit, key, start, cost, receipt} of each
--   copies       {name, whether it is a key's, serial, text} of each
--   runs         {count, costs, key, settings, key's cost} of each
--
-- REPLY, texts: 'now,quarantine,penalty,gap,peers,limits', era, plan id, the plan if it is not the caller's, flaw; name, resource,
-- 'used,amount,until,is_dated,serial' and text of each limit in force; of each run its tickets, 'life,at,again,is_contended,serial',
-- holder and text. Tickets are 't,receipt,receipt;' or 'r,first,picoseconds of it,gap,picoseconds of it,count,part;': a run.
-- The reply is an error if a later version of this script wrote the state within a minute.

-- All that functions share is in two tables, as in `laws.lua`: the state, and functions with their constants.

local S = {is_damaged = false, is_new_era = false, flaw = '', lost = {}, raw = {}, key_settings = {}, queues = {}, forms = {},
  changed_fields = {}, gone_fields = {}, changed_keys = {}, gone_keys = {}, looks = {},  -- to be written
  unit = math.max(1, math.floor(1000000 / args.weight))}

local T = {ABANDONED_US = 60000000, SAFE_MAX_US = 3600000000, DAY_US = 86400000000,
  KEPT_US = 7200000000, EXPIRY_US = 1000000,  -- for which keys at rest are kept, as the clock may step; they expire after that
  REDATED_US = 2 ^ 52, NEVER_US = 2 ^ 53, SWEPT = 2, UNIT = 1000, PROMPT_US = 2000, EARLY_US = 1000, LINGER_US = 30000, REFUSED_US = 250000, LEAD_US = 1000000, CYCLES = 2,
  AHEAD_MAX_US = 250000, LAPSED_US = 800000, SEEN_US = 10000000, CALLING_US = 1000000, CALL_US = 60, LINE_US = 10, LOAD_US = 250000, LOAD_PART = 4, DRIFT_PART = 2000, PART = 4000,
  LAWS = {p = 'p', b = 'g', w = 'w', q = 'q'},
  WHOLE = L.form_of('%d'), KEPT = L.form_of('%d,%d,'), FIVE = L.form_of('%d,%d,%d,%d,%d'), SIX = L.form_of('%d,%d,%d,%d,%d,%d')}

function T.whole(number) return string.format(T.WHOLE, number) end

function T.natural(text)  -- nil if it is no integer from 0 to below 2 ^ 53
  local number = text and string.find(text, '^%d+$') and tonumber(text)
  return number and number < 2 ^ 53 and number or nil
end

function T.exact(digits)  -- nil if it is 2 ^ 53 or more
  local number = digits - 0
  return number < 2 ^ 53 and number or nil
end

function T.place_of(kind, name, settings) return kind .. (T.LAWS[string.sub(settings, 1, 1)] or '') .. name end

function T.bytes_of(text)  -- of a text that JSON has carried as characters below 256
  return (string.gsub(text, '[\194\195][\128-\191]', function(pair)
    local high, low = string.byte(pair, 1, 2)
    return string.char((high - 192) * 64 + low - 128)
  end))
end

-- The state.

local time = redis.call('TIME')
S.now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local info = redis.call('INFO', 'server')
local run = string.match(info, '^run_id:(%x+)', (string.find(info, 'run_id:', 1, true)))  -- a plain search is faster
local HEAD = {'version', 'mark', 'run', 'plan_id', 'plan', 'state', 'machine'}

-- S.raw has texts by place, as they are stored; false where there is none.
local fields = {'version', 'mark', 'run', 'plan_id', 'plan', 'state', 'machine', 'q:', 'n:' .. args.peer}
S.plan = cjson.decode(args.plan)
for index, each in ipairs(S.plan) do fields[9 + index] = T.place_of('l:', each[1], each[3]) end
local values = redis.call('HMGET', keys.tickets, unpack(fields))
for index = 8, #fields do S.raw[fields[index]] = values[index] end

local version, mark, known_run, plan_id, plan_text, state = values[1], values[2], values[3], values[4], values[5], values[6]
local ends, load
local is_state = state and #state == 72
if is_state then
  S.since, S.safe, S.lapsed, S.last, S.count, S.penalty, S.rest_until, ends, load = struct.unpack('<ddddddddd', state)
  is_state = math.max(S.since, S.safe, S.lapsed, S.last, S.count, S.penalty, S.rest_until, ends, load) < 2 ^ 53
    and math.min(S.since, S.safe, S.lapsed, S.last, S.count, S.penalty, S.rest_until, ends, load) >= 0
end

if version and (T.natural(version) or 0) > VERSION and is_state and math.abs(S.now - S.last) < T.ABANDONED_US then
  return redis.error_reply('ERR ratelimited_executor: this executor speaks version ' .. version .. ' of the protocol of tickets, '
    .. 'this process ' .. VERSION .. ': install one release in all processes')
end

local key_fields, touched = {'!'}, {}  -- of the runs
for _, each in ipairs(args.runs) do
  local key, settings = each[3], each[4]
  if key ~= '' then
    if S.raw['p:' .. key] == nil then
      S.raw['p:' .. key], S.raw['q:' .. key] = false, false
      touched[#touched + 1] = key
      key_fields[#key_fields + 1], key_fields[#key_fields + 2] = 'p:' .. key, 'q:' .. key
    end
    if settings ~= '' then
      S.key_settings[key] = settings
      local place = T.place_of('k:', key, settings)
      if S.raw[place] == nil then
        S.raw[place] = false
        key_fields[#key_fields + 1] = place
      end
    end
  end
end
for _, each in ipairs(args.penalties) do
  if each[1] ~= '' and S.raw['p:' .. each[1]] == nil then key_fields[#key_fields + 1] = 'p:' .. each[1] end
end
local key_values = redis.call('HMGET', keys.keys, unpack(key_fields))
for index = 2, #key_fields do S.raw[key_fields[index]] = key_values[index] end

local existing = redis.call('EXISTS', keys.tickets, keys.keys, keys.rest, keys.seen)
local is_head = version == tostring(VERSION) and mark and is_state and plan_id and plan_text and known_run
  and S.safe < S.last + T.SAFE_MAX_US
if not is_head then
  mark = key_values[1] and string.find(key_values[1], '^' .. VERSION .. ':') and key_values[1]
  S.since, S.safe, S.lapsed, S.last, S.count, S.penalty, S.rest_until, ends, load, plan_id = 0, 0, 0, 0, 0, 0, 0, 0, 0, ''
end
S.offset, S.error, S.machine = 0, 0, ''
if is_head and #(values[7] or '') >= 16 then
  S.offset, S.error = struct.unpack('<dd', values[7])
  S.machine = string.sub(values[7], 17)
end
local has_keys = mark and key_values[1] == mark and (existing == 4 or redis.call('EXISTS', keys.rest) == 1)
local is_over = is_head and existing == 2 and S.now >= ends and redis.call('EXISTS', keys.keys, keys.rest) == 0  -- they have expired
local is_whole = is_head and (has_keys and existing == 4 or is_over)

if not is_whole then
  if existing > 0 then S.flaw = 'state' end
  redis.call('DEL', keys.seen)
  if not is_head then
    redis.call('DEL', keys.tickets)
    for place in pairs(S.raw) do
      local kind = string.sub(place, 1, 2)
      if kind == 'l:' or kind == 'n:' or place == 'q:' then S.raw[place] = false end
    end
    values = {}
  end
  mark = has_keys and mark or is_head and mark or VERSION .. ':' .. T.whole(S.now)
end
if not has_keys then
  redis.call('DEL', keys.keys, keys.rest)
  for place in pairs(S.raw) do
    local kind = string.sub(place, 1, 2)
    if kind ~= 'l:' and kind ~= 'n:' and place ~= 'q:' then S.raw[place] = false end
  end
  redis.call('HSET', keys.keys, '!', mark)
  redis.call('ZADD', keys.rest, '+inf', '!' .. mark)
end

if args.is_new_plan or args.plan_id == plan_id or plan_id == '' then
  plan_id, plan_text = args.plan_id, args.plan
else
  local is_read, found = pcall(cjson.decode, plan_text)
  local missing = {}
  is_read = is_read and type(found) == 'table'
  for _, each in ipairs(is_read and found or {}) do
    is_read = is_read and type(each) == 'table' and type(each[1]) == 'string' and type(each[2]) == 'string'
      and type(each[3]) == 'string' and L.read_settings(each[3])
    if not is_read then break end
    local place = T.place_of('l:', each[1], each[3])
    if S.raw[place] == nil then missing[#missing + 1] = place end
  end
  if is_read then
    S.plan = found
    if #missing > 0 then
      for index, text in ipairs(redis.call('HMGET', keys.tickets, unpack(missing))) do S.raw[missing[index]] = text end
    end
  else
    S.flaw, is_whole, plan_id, plan_text = 'state', false, args.plan_id, args.plan
  end
end

for _, each in ipairs(S.plan) do
  if not L.read_settings(each[3]) then return redis.error_reply('ERR ratelimited_executor: no settings of a limit: ' .. each[3]) end
end
for _, settings in pairs(S.key_settings) do
  if not L.read_settings(settings) then return redis.error_reply('ERR ratelimited_executor: no settings of a limit: ' .. settings) end
end

function T.begin_era()
  S.is_new_era = true
  S.machine, S.offset, S.error = '', 0, 0  -- it says nothing of this time
  S.last, S.safe, S.since, S.count = S.now, S.now + args.quarantine_us, math.max(S.now, S.since + 1), math.max(S.now, S.count)
  if args.era == run .. ':' .. T.whole(S.since) then S.since = S.since + 1 end  -- lost at the time at which it began, by a clock that went back
  S.lapsed, S.penalty = S.now + math.min(T.LAPSED_US, args.quarantine_us), math.min(S.penalty, S.safe)
end

local has_stepped = S.last > S.now + args.difference_us or (args.has_jumped and is_head and args.era == known_run .. ':' .. T.whole(S.since))
local is_vouched = args.since_us > 0 and args.earliest_us <= S.now and S.now <= args.latest_us
local is_gap = is_vouched and S.now - S.last > math.floor(args.quarantine_us / 2) and args.since_us > S.last
  and math.max(S.rest_until, S.safe) > S.last
local is_spanned = args.machine ~= '' and args.machine == S.machine  -- the clock of the caller's machine shows that the server's was not set
  and math.abs(args.offset_us - S.offset) <= S.error + args.error_us + math.floor((S.now - S.last) / T.DRIFT_PART)
if not is_whole or run ~= known_run or has_stepped or (is_gap and not is_spanned) then T.begin_era() end
S.present = math.max(S.now, S.last)
load = math.floor(load * T.LOAD_US / (T.LOAD_US + S.present - S.last))
if is_vouched then S.last, S.machine, S.offset, S.error = S.present, args.machine, args.offset_us, args.error_us end

-- Limits: a record of each that this call reads, by its place, and in their order.

S.until_us = S.present  -- when all that this call has changed is at rest

function T.store(place, text)
  S.raw[place] = text
  local changed = (string.sub(place, 1, 2) == 'l:' or place == 'q:') and S.changed_fields or S.changed_keys
  changed[#changed + 1] = place
  changed[#changed + 1] = text
end

function T.look_at(place, us)
  S.looks[#S.looks + 1] = T.whole(us)
  S.looks[#S.looks + 1] = place
  S.until_us = math.max(S.until_us, us)
end

function T.forget(place)
  S.raw[place] = false
  if S.records[place] then S.records[place].serial = 0 end
  S.gone_keys[#S.gone_keys + 1] = place
end

function T.call_in_parts(command, key, list)  -- unpack() takes some thousands
  for first = 1, #list, T.PART do redis.call(command, key, unpack(list, first, math.min(first + T.PART - 1, #list))) end
end

function T.write_keys()
  T.call_in_parts('HSET', keys.keys, S.changed_keys)
  T.call_in_parts('ZADD', keys.rest, S.looks)
  T.call_in_parts('HDEL', keys.keys, S.gone_keys)
  T.call_in_parts('ZREM', keys.rest, S.gone_keys)
  S.changed_keys, S.looks, S.gone_keys = {}, {}, {}
end

-- At the last time that a peer vouched for: nothing has passed that nobody vouches for.
function T.load_limit(settings, written, text, begin)  -- a limit, and whether it is of another era, and so redated; nil if it is not sound
  local is_empty = begin > #text
  local is_old = written ~= S.since and not is_empty
  local limit = L.read_limit(settings, not is_empty and text, is_old and T.REDATED_US or S.last, begin)
  if limit and is_old then
    limit.law.redate(limit, S.lapsed)
    limit.is_changed = nil
  end
  return limit, limit and is_old
end

function T.parts_of(text)  -- since, serial, settings, and where the text of what is stored begins; nil if it is not sound
  local written, serial, settings, begin = string.match(text, '^(%d+),(%d+),([^;]*);()')
  written, serial = written and T.exact(written), written and T.exact(serial)
  if written and serial and begin <= #text then return written, serial, settings, begin end
end

function T.read(place, settings)  -- at rest if there is nothing to believe
  local record = S.records[place]
  if record then return record end
  record = {place = place, settings = settings, known_settings = '', serial = 0, begin = 1, limit = false, is_redated = false}
  if S.raw[place] then
    local written, serial, known_settings, begin = T.parts_of(S.raw[place])
    if written then record.limit, record.is_redated = T.load_limit(settings, written, S.raw[place], begin) end
    if record.limit then
      record.serial, record.known_settings, record.begin = serial, known_settings, begin
    else
      S.flaw, S.is_damaged = 'state', S.is_damaged or written ~= 0  -- not for a copy, which others may tell again
      S.raw[place], S.lost[place] = false, true
    end
  end
  record.limit = record.limit or L.read_limit(settings, '', S.last)
  S.records[place] = record
  S.order[#S.order + 1] = record
  return record
end

function T.read_all()
  S.records, S.order, S.of_plan, S.of_key, S.by_name, S.is_damaged = {}, {}, {}, {}, {}, false
  for index, each in ipairs(S.plan) do
    S.of_plan[index] = T.read(T.place_of('l:', each[1], each[3]), each[3])
    S.by_name[each[1]] = S.of_plan[index].limit
  end
  for key, settings in pairs(S.key_settings) do S.of_key[key] = T.read(T.place_of('k:', key, settings), settings) end
end

function T.limit_of(key) return S.of_key[key] and S.of_key[key].limit end

function T.adopt()
  if #args.copies == 0 then return end
  local missing = {{}, {}}
  for _, copy in ipairs(args.copies) do
    local place = (copy[2] and 'k:' or 'l:') .. string.sub(copy[4], 1, 1) .. copy[1]
    local of = missing[copy[2] and 1 or 2]
    if S.raw[place] == nil then of[#of + 1] = place end
  end
  for index, key in ipairs({keys.keys, keys.tickets}) do
    if #missing[index] > 0 then
      for at, text in ipairs(redis.call('HMGET', key, unpack(missing[index]))) do S.raw[missing[index][at]] = text end
    end
  end
  for _, copy in ipairs(args.copies) do
    local name, is_key, serial, text = copy[1], copy[2], copy[3], T.bytes_of(copy[4])
    local place = (is_key and 'k:' or 'l:') .. string.sub(text, 1, 1) .. name
    local _, known = T.parts_of(S.raw[place] or '')
    if text ~= '' and serial > (known or 0) then
      S.lost[place] = nil
      T.store(place, '0,' .. T.whole(serial) .. ',;' .. text)
      if is_key then T.look_at(place, S.present + T.DAY_US) end
    end
    S.count = math.max(S.count, serial)
  end
end

if S.present < S.safe then T.adopt() end
T.read_all()
if S.is_damaged then
  T.begin_era()
  S.present = math.max(S.now, S.last)
  T.adopt()
  T.read_all()
end
local era = run .. ':' .. T.whole(S.since)

function T.keep(record, is_sure)  -- what has changed; of a key that is at rest, nothing
  local limit, place, is_key = record.limit, record.place, string.sub(record.place, 1, 2) == 'k:'
  if is_key and is_sure and limit.law.is_at_rest(limit, S.present) then
    if S.raw[place] or S.lost[place] then T.forget(place) end
    return
  end
  local is_other = is_key and S.raw[place] and record.settings ~= record.known_settings
  if not limit.is_changed and not record.is_redated and not is_other then return end
  if limit.is_changed then record.serial = S.count end
  local _, _, rest_us = limit.law.use(limit, S.present)
  if limit.set.kind == 'q' then rest_us = limit.set.next_end + limit.set.late end
  S.until_us, S.rest_until = math.max(S.until_us, rest_us), math.max(S.rest_until, rest_us)
  local head = string.format(T.KEPT, S.since, record.serial) .. (is_key and record.settings or '') .. ';'
  record.begin = #head + 1
  T.store(place, limit.law.write(limit, head))
  if is_key then T.look_at(place, rest_us) end
end

function T.penalty_of(key)  -- 0 if there is none of this era
  local text = S.raw['p:' .. key]
  if not text then return 0 end
  local written, till = string.match(text, '^(%d+),(%d+)$')
  return T.natural(written) == S.since and T.natural(till) or 0
end

for _, each in ipairs(args.penalties) do
  local key, till = each[1], S.present + each[2]
  if key == '' then
    S.penalty = math.max(S.penalty, till)
  else
    till = math.max(till, T.penalty_of(key))
    T.store('p:' .. key, T.whole(S.since) .. ',' .. T.whole(till))
    T.look_at('p:' .. key, till)
  end
end
S.until_us = math.max(S.until_us, S.penalty)

local known_number = T.natural(S.raw['n:' .. args.peer]) or -1
local is_awaited = is_vouched and args.number >= known_number  -- else its peer has made a later call, and waits for that

function T.correct()
  for _, each in ipairs(args.reports) do
    local limit
    if each[2] ~= '' then limit = T.limit_of(each[2]) else limit = S.by_name[each[1]] end
    if limit then
      limit.law.report(limit, each[3], each[4], each[5])
      S.count = S.count + 1
    end
  end
  for _, each in ipairs(args.corrections) do
    local limit
    if each[2] ~= '' then limit = T.limit_of(each[2]) else limit = S.by_name[each[1]] end
    if limit then
      if each[4] > 0 then limit.law.give_back(limit, each[3], each[4], each[5], each[6])
      else limit.law.add(limit, each[3], -each[4], each[5]) end
      S.count = S.count + 1
    end
  end
end

-- Queues: turns of peers, by their order; read where they are used.

function T.queue_of(name)  -- nil if nobody was hungry there in this era
  local queue = S.queues[name]
  if queue ~= nil then return queue or nil end
  local text = S.raw['q:' .. name]
  local is_read, list = false, nil
  if text then is_read, list = pcall(cmsgpack.unpack, text) end
  if is_read and type(list) == 'table' and list[1] == S.since then
    queue = {virtual = list[2], size = (#list - 2) / 5, peers = {}, served = {}, till = {}, cycle = {}, back = {}}
    for index = 1, queue.size do
      local at = 5 * index - 2
      queue.peers[index], queue.served[index], queue.till[index] = list[at], list[at + 1], list[at + 2]
      queue.cycle[index], queue.back[index] = list[at + 3], list[at + 4]
      if list[at] == args.peer then queue.own = index end
    end
  else
    queue = false
  end
  S.queues[name] = queue
  return queue or nil
end

function T.prune(queue)  -- forgets who has not been hungry for long; looks at the others: is one late, and when is the first of the rest back
  local kept = 0
  local peers, served, till, cycle, back = queue.peers, queue.served, queue.till, queue.cycle, queue.back
  local hungry, least, sum, slowest, is_late, soonest = 0, nil, 0, 0, false, nil
  queue.own = nil
  for index = 1, queue.size do
    if till[index] >= S.present - T.LEAD_US then
      kept = kept + 1
      peers[kept], served[kept], till[kept], cycle[kept], back[kept] = peers[index], served[index], till[index], cycle[index], back[index]
      if peers[kept] == args.peer then
        queue.own = kept
      elseif till[kept] >= S.present then
        hungry, sum, slowest = hungry + 1, sum + served[kept], math.max(slowest, cycle[kept])
        least = math.min(least or served[kept], served[kept])
        if back[kept] < S.present then is_late = true else soonest = math.min(soonest or back[kept], back[kept]) end
      end
    end
  end
  if kept < queue.size then queue.is_changed = true end
  for index = kept + 1, queue.size do peers[index], served[index], till[index], cycle[index], back[index] = nil, nil, nil, nil, nil end
  queue.size = kept
  return hungry, least, sum, slowest, is_late, soonest
end

function T.keep_queue(name, queue)
  local list, latest = {S.since, queue.virtual}, 0
  for index = 1, queue.size do
    local at = 5 * index - 2
    list[at], list[at + 1], list[at + 2] = queue.peers[index], queue.served[index], queue.till[index]
    list[at + 3], list[at + 4] = queue.cycle[index], queue.back[index]
    latest = math.max(latest, queue.till[index])
  end
  T.store('q:' .. name, cmsgpack.pack(list))
  if name ~= '' then T.look_at('q:' .. name, T.LEAD_US + latest) end
end

-- Tickets.

function T.form_of_ticket(size)
  S.forms[size] = S.forms[size] or L.form_of('%d' .. string.rep(',%d', size) .. ';')
  return S.forms[size]
end

function T.counts_of(costs)  -- the limits that count costs, with their names and these
  local limits_of, settings, names, amounts, size, by_resource = {}, {}, {}, {}, 0, {}
  for _, cost in ipairs(costs) do by_resource[cost[1]] = cost[2] end
  for _, each in ipairs(S.plan) do
    local cost = by_resource[each[2]]
    if cost then
      size = size + 1
      limits_of[size], names[size], amounts[size] = S.by_name[each[1]], each[1], cost
      settings[size] = limits_of[size].set
    end
  end
  return {costs = costs, limits = limits_of, settings = settings, names = names, amounts = amounts, size = size}
end

function T.is_same(costs, others)
  if #costs ~= #others then return false end
  for index, cost in ipairs(costs) do
    if cost[1] ~= others[index][1] or cost[2] ~= others[index][2] then return false end
  end
  return true
end

function T.queue_at(asked, place) return asked.own and place == asked.size and asked.key or '' end

function T.longest_of(asked)  -- the limit of the plan, and of the key, that alone would hold a ticket longest: {name, time, place} of each
  local found = {}
  local limits, amounts, plan_size = asked.limits, asked.amounts, asked.own and asked.size - 1 or asked.size
  local longest, place
  for index = 1, plan_size do
    local when = limits[index].law.earliest(limits[index], S.present, amounts[index]) or T.NEVER_US
    if not longest or when > longest then longest, place = when, index end
  end
  if place then found[1] = {'', longest, place} end
  if asked.own then
    found[#found + 1] = {asked.key, asked.own.law.earliest(asked.own, S.present, asked.key_cost) or T.NEVER_US, asked.size}
  end
  return found
end

function T.holder_of(asked)  -- the limit that holds a ticket longest, after those that hold it before; nil if none does
  local when, longest, holder = S.present, 0, nil
  while true do
    local latest, place = when, nil
    for index = 1, asked.size do
      local earliest = asked.limits[index].law.earliest(asked.limits[index], when, asked.amounts[index])
      if earliest and earliest > latest then latest, place = earliest, index end
    end
    if latest - when <= longest then return holder end
    when, longest, holder = latest, latest - when, place
  end
end

function T.horizon_of(asked, place)  -- how far ahead a ticket held by a limit may be admitted
  if not place then return math.min(args.ahead_us + args.after_us, T.AHEAD_MAX_US) end
  local set, queue, peers = asked.settings[place], T.queue_of(T.queue_at(asked, place)), 1
  if queue then peers = queue.size + (queue.own and 0 or 1) end
  local far = math.max(args.ahead_us * (peers < 2 and 1 or 2), 3 * peers * set.gap, math.floor(3 * args.cycle_us / 2))
  if set.kind == 'w' then far = math.min(far, math.max(args.ahead_us, math.floor(set.width / 2))) end
  return math.min(far + args.after_us, T.AHEAD_MAX_US)
end

function T.share_of(asked, longest)  -- how much the peer may be served beside hungry others; nil if no other is hungry
  local found, found_at
  for _, each in ipairs(longest) do
    local queue = T.queue_of(each[1])
    if queue then
      local others, least, sum, slowest, is_late, soonest = T.prune(queue)
      queue.others = others
      if others > 0 and (not found or each[2] > found_at) then
        local place, hungry = each[3], others + 1
        local set, amount = asked.settings[place], math.max(1, asked.amounts[place])
        local gap = set.gap * amount
        local cycle = math.max(args.cycle_us, slowest)
        local near = math.max(args.ahead_us, T.CYCLES * cycle)
        local share = math.max(T.UNIT, near * T.UNIT / gap / hungry)
        if set.kind ~= 'p' then
          local used, most = asked.limits[place].law.use(asked.limits[place], S.present)
          share = math.max(share, (most - used) / amount * T.UNIT / hungry)
        end
        local lead, mean = math.max(share, T.LEAD_US * T.UNIT / gap / hungry), sum / others
        if least > queue.virtual then queue.virtual, queue.is_changed = least, true end
        local own = queue.own
        local is_new = not own or queue.till[own] < S.present
        local served = math.max(own and queue.served[own] or 0, queue.virtual - (is_new and T.UNIT or math.floor(lead)))
        local free = 0
        if set.kind ~= 'w' and set.kind ~= 'q' then
          free = is_late and S.present + math.floor(near / hungry) or soonest
          if soonest then free = math.min(free, soonest) end
        end
        found_at = each[2]
        found = {queue = queue, place = place, hungry = hungry, served = math.min(served, math.floor(mean + lead)), most = mean + share, gap = gap,
          cycle = cycle, free = free}
      end
    end
  end
  return found
end

function T.back_of(share)  -- when one who was served less is expected, or if late, no longer waited for: all others are refused like this peer
  local queue, soonest = share.queue, nil
  for index = 1, queue.size do
    if index ~= queue.own and queue.till[index] >= S.present and queue.served[index] < share.served then
      local back = queue.back[index] < S.present and queue.till[index] or queue.back[index]
      soonest = math.min(soonest or back, back)
    end
  end
  return soonest or 0
end

function T.turn_of(asked, place, when)  -- when a limit may admit a ticket to this peer, after one of cost 1 to each hungry peer before it
  local set, count = asked.settings[place], T.before_in(T.queue_at(asked, place))
  if set.kind ~= 'w' then return when + count * set.gap end
  -- What was started together leaves the window together.
  local amount, last = math.max(1, set.amount), count + math.max(1, asked.amounts[place]) - 1
  local rest = last % amount
  return (asked.limits[place].law.earliest(asked.limits[place], S.present, rest + 1) or 0) + (last - rest) / amount * set.width
end

function T.before_in(name)  -- how many hungry peers of a queue are served before this one
  local queue = T.queue_of(name)
  if not queue then return 0 end
  local served, sooner, is_past = queue.own and queue.served[queue.own] or queue.virtual, 0, false
  for index = 1, queue.size do
    if queue.till[index] >= S.present then
      is_past = is_past or index == queue.own
      local theirs = queue.served[index]
      if index ~= queue.own and (theirs < served or (theirs == served and not is_past)) then sooner = sooner + 1 end
    end
  end
  return sooner
end

function T.serve(asked, longest, share, refused)  -- records in each queue what the peer was served, and when it is back
  local given = asked.given * S.unit
  local back, hungry = math.max(S.present, asked.again), refused
  if asked.given > 0 then
    back = math.floor((asked.first + asked.last) / 2)
    if not hungry and asked.last > S.present and longest[1] then
      hungry = longest[1][1]
      if longest[2] and longest[2][2] > longest[1][2] then hungry = longest[2][1] end
    end
  end
  back = back + args.cycle_us + T.PROMPT_US
  local till = back + (refused and T.REFUSED_US or T.LINGER_US)
  for _, each in ipairs(longest) do
    local name = each[1]
    local queue = T.queue_of(name)
    if not queue and hungry == name then
      queue = {virtual = 0, size = 0, peers = {}, served = {}, till = {}, cycle = {}, back = {}, others = 0}
      S.queues[name] = queue
    end
    if queue then
      local own, served = queue.own, nil
      if share and share.queue == queue then
        served = share.served
      else
        served = math.max(own and queue.served[own] or 0, queue.virtual) + given
        if queue.others == 0 and served > queue.virtual then queue.virtual, queue.is_changed = served, true end
      end
      if queue.size > 0 or hungry == name then
        if not own then
          own = queue.size + 1
          queue.size, queue.own, queue.peers[own] = own, own, args.peer
        end
        queue.served[own], queue.till[own], queue.cycle[own], queue.back[own] = served, till, args.cycle_us, back
        queue.is_changed = true
      elseif name ~= '' then
        S.queues[name], queue.is_changed = false, false
        if S.raw['q:' .. name] then
          S.raw['q:' .. name] = false
          S.gone_keys[#S.gone_keys + 1] = 'q:' .. name
        end
      end
    end
  end
end

function T.take_run(asked, share, begin, life)  -- tickets of a pace alone after one at a time
  local limit, most, latest = asked.limits[1], asked.wanted - asked.given, S.present + T.horizon_of(asked, 1)
  if share and begin < share.free then
    latest = math.min(latest, share.free - 1)
  elseif share then
    local more = math.floor((share.most - share.served) / S.unit)
    while share.served + more * S.unit > share.most do more = more - 1 end
    while share.served + (more + 1) * S.unit <= share.most do more = more + 1 end
    most = math.min(most, more)
  end
  if most < 2 then return end
  local some, last = limit.law.run(limit, begin, latest, life, most, asked.tickets)
  if some == 0 then return end
  asked.given, asked.last, S.count = asked.given + some, last, S.count + some
  if share then share.served = share.served + some * S.unit end
end

function T.decide(asked, life)  -- admits as many tickets as possible; the queue that refuses the rest, nil if none does
  local penalty = asked.key ~= '' and T.penalty_of(asked.key) or 0
  local begin = math.max(S.present + args.after_us, S.penalty, penalty)
  local limits, amounts, names, size = asked.limits, asked.amounts, asked.names, asked.size
  local longest = T.longest_of(asked)
  local share = T.share_of(asked, longest)
  local refused, is_refused, form = '', false, T.form_of_ticket(size)
  local is_plain = size == 1 and limits[1].set.kind == 'p' and amounts[1] == 1 and asked.wanted > 1 and begin == S.present
  local latest = T.NEVER_US
  for index = 1, size do latest = math.min(latest, limits[index].foreseen) end
  while asked.given < asked.wanted do
    local when, place = L.agreed_time(limits, amounts, begin)
    if not when or when > latest then
      asked.holder, asked.at = names[place or 1], when or 0
      asked.again = when and when > 0 and math.min(when, S.present + T.LEAD_US) or 0
      return T.queue_at(asked, place or 1)
    end
    if when > S.present then
      if size > 1 or begin > S.present then place = T.holder_of(asked) end
      local horizon = T.horizon_of(asked, place)
      if when > S.present + horizon then
        is_refused = true
        local turn = when
        asked.holder, asked.at = place and names[place] or 'penalty', when
        if place then
          refused = T.queue_at(asked, place)
          turn = math.max(when, T.turn_of(asked, place, when))
        elseif penalty > math.max(S.present, S.penalty) then  -- of the key
          asked.holder, refused = asked.key, asked.key
        end
        asked.again = turn - horizon + (refused == '' and T.EARLY_US or 0)
        break
      end
    end
    if share and share.served + S.unit > share.most and when >= share.free then
      is_refused, refused = true, T.queue_at(asked, share.place)
      asked.holder, asked.at = refused ~= '' and refused or 'peers', 0
      local missing = math.max(0.3, (share.served + S.unit - share.most) / T.UNIT * share.hungry)
      local level = S.present + math.floor(math.min(share.hungry, missing) * share.gap) + 1
      asked.again = math.max(math.min(level, math.max(when, S.present + share.cycle, T.back_of(share))), share.free)
      break
    end
    local receipts = {}
    for index = 1, size do receipts[index] = limits[index].law.take(limits[index], when, amounts[index], life) end
    asked.tickets[#asked.tickets + 1] = string.format(form, when, unpack(receipts))
    asked.given, asked.first, asked.last, S.count = asked.given + 1, asked.first or when, when, S.count + 1
    if share then share.served = share.served + S.unit end
    if is_plain and asked.given < asked.wanted then T.take_run(asked, share, when, life) end
  end
  refused = is_refused and refused or nil
  T.serve(asked, longest, share, refused)
  asked.is_contended = is_refused or share ~= nil
  for index = 1, size do
    if not asked.is_contended and asked.settings[index].is_dated then
      local used, amount = limits[index].law.use(limits[index], S.present)
      asked.is_contended = 2 * used > amount
    end
  end
  return refused
end

function T.admit(outcomes)
  local counts, refused = nil, {}  -- the runs that were refused, by what they block: a key's later runs, or all
  for index, each in ipairs(args.runs) do
    if not counts or not T.is_same(each[2], counts.costs) then counts = T.counts_of(each[2]) end
    local own, size = T.limit_of(each[3]), counts.size
    counts.limits[size + 1], counts.settings[size + 1] = own, own and own.set
    counts.names[size + 1], counts.amounts[size + 1] = own and each[3], own and each[5]
    local asked = {limits = counts.limits, settings = counts.settings, names = counts.names, amounts = counts.amounts,
      size = own and size + 1 or size, own = own, wanted = each[1], key = each[3], key_cost = each[5], tickets = {}, given = 0, holder = '',
      at = 0, again = 0, is_contended = false}
    asked.life = L.life_of(counts.settings, args.life_us)
    if asked.wanted > 0 then
      local first = refused[''] or refused[asked.key]
      if first then
        asked.holder, asked.at, asked.again, asked.is_contended = first.holder, first.at, first.again, true
      else
        local queue = T.decide(asked, asked.life)
        if queue then refused[queue] = asked end
      end
    end
    outcomes[index] = asked
  end
end

local outcomes = {}
for index = 1, #args.runs do
  outcomes[index] = {tickets = {}, given = 0, life = 0, holder = is_awaited and '' or 'clock', at = 0, again = 0, is_contended = false}
end
if S.present >= S.safe then
  if args.era == era and args.number > known_number then T.correct() end
  if is_awaited then T.admit(outcomes) end
end
for _, record in ipairs(S.order) do T.keep(record, is_vouched) end
for place in pairs(S.lost) do
  if not S.raw[place] then
    if string.sub(place, 1, 2) == 'l:' then S.gone_fields[#S.gone_fields + 1] = place else T.forget(place) end
  end
end
for name, queue in pairs(S.queues) do
  if queue and queue.is_changed then T.keep_queue(name, queue) end
end
T.write_keys()

if is_vouched and S.present >= S.safe then  -- forget some keys whose time has come
  local due = redis.call('ZRANGEBYSCORE', keys.rest, '-inf', S.now, 'LIMIT', 0, T.SWEPT * (1 + #touched))
  if #due > 0 then
    for index, text in ipairs(redis.call('HMGET', keys.keys, unpack(due))) do
      local place = due[index]
      local written, serial, settings, begin
      if string.sub(place, 1, 2) == 'k:' then written, serial, settings, begin = T.parts_of(text or '') end
      local limit = written and written ~= S.since and settings ~= '' and T.load_limit(settings, written, text, begin)
      if limit then
        S.raw[place] = text
        T.keep({place = place, settings = settings, known_settings = settings, serial = serial, limit = limit, is_redated = true}, true)
      else
        T.forget(place)
      end
    end
    T.write_keys()
  end
end

-- Who has called, and the load.

redis.call('ZADD', keys.seen, S.present, args.peer)
if not is_whole then redis.call('ZADD', keys.seen, '+inf', '!' .. mark) end
local peers = redis.call('ZCOUNT', keys.seen, T.whole(S.present - T.SEEN_US), '+inf') - 1
if args.number > known_number then
  S.changed_fields[1 + #S.changed_fields] = 'n:' .. args.peer
  S.changed_fields[1 + #S.changed_fields] = args.number
end
if args.number % 64 == 1 then  -- peers of short lives, too
  local gone = redis.call('ZRANGEBYSCORE', keys.seen, '-inf', '(' .. T.whole(S.present - T.SEEN_US))
  T.call_in_parts('ZREM', keys.seen, gone)
  for _, peer in ipairs(gone) do S.gone_fields[#S.gone_fields + 1] = 'n:' .. peer end
end
local cost, gap = T.CALL_US, 0
for _, outcome in ipairs(outcomes) do cost = cost + T.LINE_US * (1 + outcome.given) end
load = load + cost
local mean = T.LOAD_PART * load / T.LOAD_US
if mean >= 0.6 then
  local calling = redis.call('ZCOUNT', keys.seen, '(' .. T.whole(S.present - T.CALLING_US), T.whole(S.present))
  gap = math.floor(calling * cost * T.LOAD_PART * math.min(1, (mean - 0.6) / 0.4))
end

-- The reply.

local reply, size = {string.format(T.SIX, S.now, math.max(0, S.safe - S.present), S.penalty, gap, peers, #S.plan), era, plan_id,
  plan_id == args.plan_id and '' or plan_text, S.flaw}, 5

function T.text_of(record)
  local text = S.raw[record.place]
  return text and string.sub(text, record.begin) or ''
end

local told_us = S.present + args.quarantine_us  -- what counts for longer is told

for index, each in ipairs(S.plan) do
  local record = S.of_plan[index]
  local limit = record.limit
  local used, amount, till = limit.law.use(limit, S.present)
  reply[size + 1], reply[size + 2] = each[1], each[2]
  reply[size + 3] = string.format(T.FIVE, used, amount, till, limit.set.is_dated and 1 or 0, record.serial)
  reply[size + 4] = till > told_us and T.text_of(record) or ''
  size = size + 4
end
for index, each in ipairs(args.runs) do
  local outcome, record = outcomes[index], S.of_key[each[3]]
  if record then
    local _, _, till = record.limit.law.use(record.limit, S.present)
    if till <= told_us then record = nil end
  end
  reply[size + 1] = table.concat(outcome.tickets)
  reply[size + 2] = string.format(T.FIVE, outcome.life, outcome.at, outcome.again, outcome.is_contended and 1 or 0, record and record.serial or 0)
  reply[size + 3], reply[size + 4] = outcome.holder, record and T.text_of(record) or ''
  size = size + 4
end

local is_touched = S.is_new_era or is_over or S.until_us + T.KEPT_US > ends
if is_touched then  -- what is remembered from an earlier era counts again once it is read
  ends = math.max(ends, S.until_us + 2 * T.KEPT_US, S.is_new_era and has_keys and S.present + 2 * T.DAY_US or 0)
end
local head = {tostring(VERSION), mark, run, plan_id, plan_text, struct.pack('<ddddddddd', S.since, S.safe, S.lapsed, S.last, S.count, S.penalty, S.rest_until, ends, load),
  struct.pack('<dd', S.offset, S.error) .. S.machine}
for index, name in ipairs(HEAD) do
  if head[index] ~= values[index] then
    S.changed_fields[#S.changed_fields + 1] = name
    S.changed_fields[#S.changed_fields + 1] = head[index]
  end
end
T.call_in_parts('HSET', keys.tickets, S.changed_fields)
T.call_in_parts('HDEL', keys.tickets, S.gone_fields)
if is_touched then
  for name, key in pairs(keys) do
    local more = (name == 'keys' or name == 'rest') and T.EXPIRY_US or 2 * T.DAY_US
    redis.call('PEXPIRE', key, T.whole(math.ceil((ends + more - S.now) / 1000)))
  end
end
return reply
