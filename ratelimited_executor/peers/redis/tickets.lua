-- Admit tickets to all limits of one executor's group, for one peer, and correct what they cost.
--
-- The rules are those of `TicketAuthority` in `_core/fleet/tickets.py`, which are the same over plain values: one suite of
-- tests holds for both, and a change of a rule is one of both. Those of each limit stand before this text, in `laws.lua`.
--
-- KEYS, in one slot of a cluster. Each may be lost alone, by eviction or by hand: so each has the mark of the state that it is part of.
--
--   tickets  a hash
--              version           VERSION of the script that has written it
--              mark              the same in all keys: the version, and when the state began
--              run               the run id of the server
--              state             numbers: when the era began, and its quarantine ends, in microseconds of the server's clock;
--                                that at the last call that vouched for it; the number of the last ticket or correction;
--                                until when nothing is admitted; when all limits are at rest; until when `keys` and `rest`
--                                live, the others two days longer; number of the running grant interval, tickets of it, and of the one before
--              plan_id, plan     the plan in force: a JSON list of {name, resource, settings}
--              l:<law><name>     a limit of a plan: '<since>,<serial>,;<text>'; its law is the first letter of the text
--   keys     a hash
--              !                 the mark
--              k:<law><key>      the limit of a key: '<since>,<serial>,<settings>;<text>'
--              p:<key>           its penalty: '<since>,<until>'
--   rest     a sorted set: field of `keys` -> when it is at rest
--   hungry   a sorted set: peer -> what it was served
--   seen     a sorted set: the same peers -> until when they are hungry
--   In each of the sorted sets lies '!<mark>', behind all others.
--   state    of `grant.lua`, if processes share one pace by the same name; it is read alone
--
-- ARGS, the fields of `TicketCall` in `_core/fleet/tickets.py`, where each is explained.
--
--   peer, weight                                 who calls; its part, in thousandths
--   era, has_jumped                              of which it knows; whether the server's clock has stepped in it
--   since_us, earliest_us, latest_us             since when clocks agree; between which times this may be heard
--   interval_us, difference_us, quarantine_us    how far ahead tickets may be; how far clocks are apart; after a loss
--   plan_id, plan, is_new_plan                   its plan: {name, resource, settings} of each limit; whether to put it in force
--   penalties                                    {key, us} of each
--   corrections                                  {limit, key, t, cost, receipt} of each
--   copies                                       {name, whether it is a key's, serial, text} of each
--   runs, waiting                                {count, costs, key, settings, key's cost} of each; tickets wanted beyond these
--
-- REPLY, texts and integers: now, era, quarantine, plan id, penalty, flaw; the number of limits in force, and name, resource, used, amount,
-- until, serial and text of each; of each run its tickets as 't,receipt,receipt;', holder, at, serial, text.
-- An error, if a later version of this script has written the state within a minute, and while other processes share one pace.

local OTHERS_US = 3000000  -- after which those who have not called are gone
local ABANDONED_US, SAFE_MAX_US, DAY_US = 60000000, 3600000000, 86400000000
local KEPT_US, EXPIRY_US = 7200000000, 1000000  -- for which keys at rest are kept, as the clock may step; they expire after that
local REDATED_US, NO_RIVALS, SERVED_UNIT, KEY_AHEAD, HUNGRY_INTERVALS, HUNGRY_US, SWEPT = 2 ^ 52, 2 ^ 40, 1000, 10, 2, 1000000, 2
local LAWS = {p = 'g', b = 'g', w = 'w', q = 'q'}

local WHOLE, STATE, KEPT = form_of('%d'), form_of('%d,%d,%d,%d,%d,%d,%d,%d,%d,%d'), form_of('%d,%d,%s;%s')

local function whole(number) return FORMAT(WHOLE, number) end

local function natural(text)  -- nil if it is no integer from 0 to below 2 ^ 53
  local number = text and string.find(text, '^%d+$') and tonumber(text)
  return number and number < BEYOND and number or nil
end

local function exact(digits)  -- nil if it is 2 ^ 53 or more
  local number = digits - 0
  return number < BEYOND and number or nil
end

local function place_of(kind, name, settings) return kind .. (LAWS[string.sub(settings, 1, 1)] or '') .. name end

-- The state.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local info = redis.call('INFO', 'server')
local run = string.match(info, '^run_id:(%x+)', (string.find(info, 'run_id:', 1, true)))  -- a plain search is faster
local HEAD = {'version', 'mark', 'run', 'plan_id', 'plan', 'state'}

local raw = {}  -- texts by place, as they are stored; false where there is none
local fields = {unpack(HEAD)}
local plan = cjson.decode(args.plan)
for _, each in ipairs(plan) do fields[#fields + 1] = place_of('l:', each[1], each[3]) end
local values = redis.call('HMGET', keys.tickets, unpack(fields))
for index = #HEAD + 1, #fields do raw[fields[index]] = values[index] end

local version, mark, known_run, plan_id, plan_text = values[1], values[2], values[3], values[4], values[5]
local numbers = {MATCH(values[6] or '', '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$')}
for index = 1, #numbers do numbers[index] = exact(numbers[index]) or BEYOND end
local is_state = #numbers > 0 and math.max(unpack(numbers)) < BEYOND
local since, safe, last, count, penalty, rest_until, ends, interval, started, before = unpack(numbers)

if version and (natural(version) or 0) > VERSION and last and math.abs(now - last) < ABANDONED_US then
  return redis.error_reply('ERR ratelimited_executor: this executor speaks version ' .. version .. ' of the protocol of tickets, '
    .. 'this process ' .. VERSION .. ': install one release in all processes')
end

-- While this state lives, nobody begins to go by one pace: `grant.lua` refuses it.
local is_alive = is_state and math.abs(now - last) < OTHERS_US
local paced = not is_alive and natural(redis.call('HMGET', keys.state, 'last')[1] or '')
if paced and math.abs(now - paced) < math.max(OTHERS_US, 3 * args.interval_us) then
  return redis.error_reply('ERR ratelimited_executor: other processes of this group share this executor as one pace (a single rate, '
    .. 'no key_rate), this one shares several limits: it starts nothing until those have gone')
end

local key_fields, key_settings, touched = {'!'}, {}, 0  -- of the runs
for _, each in ipairs(args.runs) do
  local key, settings = each[3], each[4]
  if key ~= '' then
    if raw['p:' .. key] == nil then
      raw['p:' .. key], touched = false, touched + 1
      key_fields[#key_fields + 1] = 'p:' .. key
    end
    if settings ~= '' then
      key_settings[key] = settings
      local place = place_of('k:', key, settings)
      if raw[place] == nil then
        raw[place] = false
        key_fields[#key_fields + 1] = place
      end
    end
  end
end
for _, each in ipairs(args.penalties) do
  if each[1] ~= '' and raw['p:' .. each[1]] == nil then key_fields[#key_fields + 1] = 'p:' .. each[1] end
end
local key_values = redis.call('HMGET', keys.keys, unpack(key_fields))
for index = 2, #key_fields do raw[key_fields[index]] = key_values[index] end

local existing = redis.call('EXISTS', keys.tickets, keys.keys, keys.rest, keys.hungry, keys.seen)
local is_head = version == tostring(VERSION) and mark and is_state and plan_id and plan_text and known_run
  and safe < last + SAFE_MAX_US
if not is_head then
  mark = key_values[1] and string.find(key_values[1], '^' .. VERSION .. ':') and key_values[1]
  since, safe, last, count, penalty, rest_until, ends, interval, started, before, plan_id = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ''
end
local has_keys = mark and key_values[1] == mark and (existing == 5 or redis.call('EXISTS', keys.rest) == 1)
local is_over = is_head and existing == 3 and now >= ends and redis.call('EXISTS', keys.keys, keys.rest) == 0  -- they have expired
local is_whole = is_head and (has_keys and existing == 5 or is_over)
local flaw, is_damaged, is_new_era, lost = '', false, false, {}

if not is_whole then
  if existing > 0 then flaw = 'state' end
  if not is_head then
    redis.call('DEL', keys.tickets)
    for place in pairs(raw) do if string.sub(place, 1, 2) == 'l:' then raw[place] = false end end
    values = {}
  end
  mark = has_keys and mark or is_head and mark or VERSION .. ':' .. whole(now)
end
if not has_keys then
  redis.call('DEL', keys.keys, keys.rest)
  for place in pairs(raw) do if string.sub(place, 1, 2) ~= 'l:' then raw[place] = false end end
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
      and type(each[3]) == 'string' and read_settings(each[3])
    if not is_read then break end
    local place = place_of('l:', each[1], each[3])
    if raw[place] == nil then missing[#missing + 1] = place end
  end
  if is_read then
    plan = found
    if #missing > 0 then
      for index, text in ipairs(redis.call('HMGET', keys.tickets, unpack(missing))) do raw[missing[index]] = text end
    end
  else
    flaw, is_whole, plan_id, plan_text = 'state', false, args.plan_id, args.plan
  end
end

for _, each in ipairs(plan) do
  if not read_settings(each[3]) then return redis.error_reply('ERR ratelimited_executor: no settings of a limit: ' .. each[3]) end
end
for _, settings in pairs(key_settings) do
  if not read_settings(settings) then return redis.error_reply('ERR ratelimited_executor: no settings of a limit: ' .. settings) end
end

local function begin_era()
  is_new_era = true
  last, safe, since, count = now, now + args.quarantine_us, math.max(now, since + 1), math.max(now, count)
  penalty = math.min(penalty, safe)
  redis.call('DEL', keys.hungry, keys.seen)
  redis.call('ZADD', keys.hungry, '+inf', '!' .. mark)
  redis.call('ZADD', keys.seen, '+inf', '!' .. mark)
end

local has_stepped = last > now + args.difference_us or (args.has_jumped and is_head and args.era == known_run .. ':' .. whole(since))
local is_vouched = args.since_us > 0 and args.earliest_us <= now and now <= args.latest_us
local is_gap = is_vouched and now - last > math.floor(args.quarantine_us / 2) and args.since_us > last
if not is_whole or run ~= known_run or has_stepped or (is_gap and math.max(rest_until, safe) > last) then begin_era() end
local present = math.max(now, last)
if is_vouched then last = present end

-- Limits: a record of each that this call reads, by its place, and in their order.

local records, order
local changed_fields, gone_fields, changed_keys, gone_keys, looks = {}, {}, {}, {}, {}  -- to be written
local until_us = present  -- when all that this call has changed is at rest

local function store(place, text)
  raw[place] = text
  local changed = string.sub(place, 1, 2) == 'l:' and changed_fields or changed_keys
  changed[#changed + 1] = place
  changed[#changed + 1] = text
end

local function look_at(place, us)
  looks[#looks + 1] = whole(us)
  looks[#looks + 1] = place
  until_us = math.max(until_us, us)
end

local function forget(place)
  raw[place] = false
  if records[place] then records[place].serial, records[place].text = 0, '' end
  gone_keys[#gone_keys + 1] = place
end

local function write_keys()
  if #changed_keys > 0 then
    redis.call('HSET', keys.keys, unpack(changed_keys))
    changed_keys = {}
  end
  if #looks > 0 then
    redis.call('ZADD', keys.rest, unpack(looks))
    looks = {}
  end
  if #gone_keys > 0 then
    redis.call('HDEL', keys.keys, unpack(gone_keys))
    redis.call('ZREM', keys.rest, unpack(gone_keys))
    gone_keys = {}
  end
end

local function load(settings, written, text)  -- a limit, and whether it is of another era, and so redated; nil if it is not sound
  local is_old = written ~= since and text ~= ''
  local limit = read_limit(settings, text, is_old and REDATED_US or present)
  if limit and is_old then
    limit.law.redate(limit, safe)
    limit.is_changed = nil
  end
  return limit, limit and is_old
end

local function parts_of(text)  -- since, serial, settings and text of what is stored; nil if it is not sound
  local written, serial, settings, begin = MATCH(text, '^(%d+),(%d+),([^;]*);()')
  written, serial = written and exact(written), written and exact(serial)
  if written and serial and begin <= #text then return written, serial, settings, string.sub(text, begin) end
end

local function read(place, settings)  -- at rest if there is nothing to believe
  local record = records[place]
  if record then return record end
  record = {place = place, settings = settings, known_settings = '', serial = 0, text = '', limit = false, is_redated = false}
  if raw[place] then
    local written, serial, known_settings, text = parts_of(raw[place])
    if written then record.limit, record.is_redated = load(settings, written, text) end
    if record.limit then
      record.serial, record.known_settings, record.text = serial, known_settings, text
    else
      flaw, is_damaged = 'state', is_damaged or written ~= 0  -- not for a copy, which others may tell again
      raw[place], lost[place] = false, true
    end
  end
  record.limit = record.limit or read_limit(settings, '', present)
  records[place] = record
  order[#order + 1] = record
  return record
end

local of_plan, of_key, by_name  -- records, and the limits of the plan

local function read_all()
  records, order, of_plan, of_key, by_name, is_damaged = {}, {}, {}, {}, {}, false
  for index, each in ipairs(plan) do
    of_plan[index] = read(place_of('l:', each[1], each[3]), each[3])
    by_name[each[1]] = of_plan[index].limit
  end
  for key, settings in pairs(key_settings) do of_key[key] = read(place_of('k:', key, settings), settings) end
end

local function limit_of(key) return of_key[key] and of_key[key].limit end

local function adopt()
  if #args.copies == 0 then return end
  local missing = {{}, {}}
  for _, copy in ipairs(args.copies) do
    local place = (copy[2] and 'k:' or 'l:') .. string.sub(copy[4], 1, 1) .. copy[1]
    local of = missing[copy[2] and 1 or 2]
    if raw[place] == nil then of[#of + 1] = place end
  end
  for index, key in ipairs({keys.keys, keys.tickets}) do
    if #missing[index] > 0 then
      for at, text in ipairs(redis.call('HMGET', key, unpack(missing[index]))) do raw[missing[index][at]] = text end
    end
  end
  for _, copy in ipairs(args.copies) do
    local name, is_key, serial, text = unpack(copy)
    local place = (is_key and 'k:' or 'l:') .. string.sub(text, 1, 1) .. name
    local _, known = parts_of(raw[place] or '')
    if text ~= '' and serial > (known or 0) then
      lost[place] = nil
      store(place, '0,' .. whole(serial) .. ',;' .. text)
      if is_key then look_at(place, present + DAY_US) end
    end
    count = math.max(count, serial)
  end
end

if present < safe then adopt() end
read_all()
if is_damaged then
  begin_era()
  present = math.max(now, last)
  adopt()
  read_all()
end
local era = run .. ':' .. whole(since)

local function use_of(record)  -- once nothing changes it any more
  if not record.till then record.used, record.amount, record.till = record.limit.law.use(record.limit, present) end
  return record.used, record.amount, record.till
end

local function keep(record, is_sure)  -- what has changed; of a key that is at rest, nothing
  local limit, place, is_key = record.limit, record.place, string.sub(record.place, 1, 2) == 'k:'
  if is_key and is_sure and limit.law.is_at_rest(limit, present) then
    if raw[place] or lost[place] then forget(place) end
    return
  end
  local is_other = is_key and raw[place] and record.settings ~= record.known_settings
  if not limit.is_changed and not record.is_redated and not is_other then return end
  if limit.is_changed then record.serial = count end
  record.text = limit.law.write(limit)
  local _, _, rest_us = use_of(record)
  if limit.law == quota then rest_us = limit.set.next_end + limit.set.late end
  until_us, rest_until = math.max(until_us, rest_us), math.max(rest_until, rest_us)
  store(place, FORMAT(KEPT, since, record.serial, is_key and record.settings or '', record.text))
  if is_key then look_at(place, rest_us) end
end

local function penalty_of(key)  -- 0 if there is none of this era
  local text = raw['p:' .. key]
  if not text then return 0 end
  local written, till = MATCH(text, '^(%d+),(%d+)$')
  return natural(written) == since and natural(till) or 0
end

for _, each in ipairs(args.penalties) do
  local key, till = each[1], present + each[2]
  if key == '' then
    penalty = math.max(penalty, till)
  else
    till = math.max(till, penalty_of(key))
    store('p:' .. key, whole(since) .. ',' .. whole(till))
    look_at('p:' .. key, till)
  end
end
until_us = math.max(until_us, penalty)

-- Fair shares.

local cost_of_peer = math.max(1, math.floor(SERVED_UNIT * 1000 / args.weight))
local least, own  -- what the rival was served that was served least, and what the peer was; nil if there is none

local function allowance_of()
  local number = math.floor(present / args.interval_us)
  if number ~= interval then
    before = number == interval + 1 and started or 0
    interval, started = number, 0
  end
  local first = redis.call('ZRANGE', keys.hungry, 0, 1, 'WITHSCORES')
  if #first == 2 then return NO_RIVALS end  -- only the mark
  local gone = redis.call('ZRANGEBYSCORE', keys.seen, '-inf', whole(present))
  if #gone > 0 then
    redis.call('ZREM', keys.seen, unpack(gone))
    redis.call('ZREM', keys.hungry, unpack(gone))
    first = redis.call('ZRANGE', keys.hungry, 0, 1, 'WITHSCORES')
  end
  for index = 1, #first, 2 do
    if first[index] == args.peer then own = tonumber(first[index + 1])
    elseif first[index] ~= '!' .. mark then least = least or tonumber(first[index + 1]) end
  end
  if not own and #first > 2 then
    own = redis.call('ZSCORE', keys.hungry, args.peer)
    own = own and tonumber(own)
  end
  if not least then return NO_RIVALS end
  local lead = math.max(1, started, before) * SERVED_UNIT
  return math.floor(math.max(0, least + lead - (own or least) + cost_of_peer - 1) / cost_of_peer)
end

local function serve(total, is_hungry)
  started = started + total
  if is_hungry then
    local served = least and (own or least) + total * cost_of_peer or 0
    redis.call('ZADD', keys.hungry, whole(served), args.peer)
    redis.call('ZADD', keys.seen, whole(present + HUNGRY_INTERVALS * args.interval_us + HUNGRY_US), args.peer)
  elseif own and #args.runs > 0 then
    redis.call('ZREM', keys.hungry, args.peer)
    redis.call('ZREM', keys.seen, args.peer)
  end
end

-- Tickets.

local function correct()
  for _, each in ipairs(args.corrections) do
    local name, key, t, cost, receipt = unpack(each)
    local limit
    if key ~= '' then limit = limit_of(key) else limit = by_name[name] end
    if limit then
      limit.law[cost > 0 and 'give_back' or 'add'](limit, t, math.abs(cost), receipt)
      count = count + 1
    end
  end
end

local forms = {}

local function form_of_ticket(size)
  forms[size] = forms[size] or form_of('%d' .. string.rep(',%d', size) .. ';')
  return forms[size]
end

local function counts_of(costs)  -- the limits that count costs, with their names and these
  local limits_of, names, amounts, size, by_resource = {}, {}, {}, 0, {}
  for _, cost in ipairs(costs) do by_resource[cost[1]] = cost[2] end
  for _, each in ipairs(plan) do
    local cost = by_resource[each[2]]
    if cost then
      size = size + 1
      limits_of[size], names[size], amounts[size] = by_name[each[1]], each[1], cost
    end
  end
  return {costs = costs, limits = limits_of, names = names, amounts = amounts, size = size}
end

local function is_same(costs, others)
  if #costs ~= #others then return false end
  for index, cost in ipairs(costs) do
    if cost[1] ~= others[index][1] or cost[2] ~= others[index][2] then return false end
  end
  return true
end

local function free_at(counts, own, begin)  -- when the plan alone admits a ticket of a key: until then the key holds nobody up
  counts.limits[counts.size + 1] = nil
  local when = decide(counts.limits, counts.amounts, begin, -1)
  counts.limits[counts.size + 1] = own
  return when or 0
end

local function admit_run(asked, ahead, allowance)  -- what may be of a run; whether it stands before the runs after it
  local key_us, tickets, own, given = present, asked.tickets, asked.own, 0
  local counts, size = asked.counts, asked.counts.size + (own and 1 or 0)  -- lists that runs of the same costs share
  local joint, names, amounts, form = counts.limits, counts.names, counts.amounts, form_of_ticket(size)
  joint[counts.size + 1], names[counts.size + 1], amounts[counts.size + 1] = own, asked.key, asked.key_cost
  if asked.key ~= '' then key_us = math.max(present, penalty_of(asked.key)) end
  local begin = math.max(key_us, penalty)
  asked.holder, asked.at = '', 0
  while #tickets < asked.wanted do
    local first = key_us
    if own then first = own.law.earliest(own, key_us, asked.key_cost) end
    if not first or first > present + ahead and (not own or first > free_at(counts, own, begin)) then
      asked.holder, asked.at = asked.key, first or 0
      return false
    end
    local is_behind = given >= allowance
    local when, place, receipts = decide(joint, amounts, begin, is_behind and -1 or present + args.interval_us)
    if not receipts then
      asked.at = when or 0
      if is_behind and asked.at > 0 and asked.at <= present + args.interval_us then
        asked.holder, asked.at = 'peers', present + math.floor(args.interval_us / 4)
      else
        asked.holder = place and names[place] or 'penalty'
      end
      return not own or place ~= size or is_behind
    end
    tickets[#tickets + 1] = FORMAT(form, when, unpack(receipts))
    given, count = given + 1, count + 1
  end
  return false
end

local function admit(outcomes)
  local allowance, total, is_hungry, is_short = allowance_of(), 0, args.waiting > 0, false
  local counts
  for index, each in ipairs(args.runs) do
    if not counts or not is_same(each[2], counts.costs) then counts = counts_of(each[2]) end
    outcomes[index] = {counts = counts, tickets = {}, wanted = each[1], key = each[3], own = limit_of(each[3]), key_cost = each[5], holder = '',
      at = 0}
  end
  for _, ahead in ipairs({0, math.floor(args.interval_us / KEY_AHEAD)}) do  -- those that only their keys hold back are looked at again
    for _, asked in ipairs(outcomes) do
      if not is_short and (ahead == 0 or asked.holder ~= '' and asked.holder == asked.key) then
        local known = #asked.tickets
        is_short = admit_run(asked, ahead, allowance - total)
        total = total + #asked.tickets - known
        is_hungry = is_hungry or is_short and asked.at > 0
      end
    end
  end
  serve(total, is_hungry)
end

local outcomes = {}
for index = 1, #args.runs do outcomes[index] = {tickets = {}, holder = is_vouched and '' or 'clock', at = 0} end
if present >= safe then
  if args.era == era then correct() end
  if is_vouched then admit(outcomes) end
end
for _, record in ipairs(order) do keep(record, is_vouched) end
for place in pairs(lost) do
  if not raw[place] then
    if string.sub(place, 1, 2) == 'l:' then gone_fields[#gone_fields + 1] = place else forget(place) end
  end
end
write_keys()

if is_vouched and present >= safe then  -- forget some keys whose time has come
  local due = redis.call('ZRANGEBYSCORE', keys.rest, '-inf', whole(present), 'LIMIT', 0, SWEPT * (1 + touched))
  if #due > 0 then
    for index, text in ipairs(redis.call('HMGET', keys.keys, unpack(due))) do
      local place = due[index]
      local written, serial, settings, rest = parts_of(text or '')
      local limit = written and written ~= since and settings ~= '' and load(settings, written, rest)
      if limit then
        raw[place] = text
        keep({place = place, settings = settings, known_settings = settings, serial = serial, limit = limit, is_redated = true}, true)
      else
        forget(place)
      end
    end
    write_keys()
  end
end

-- The reply.

local reply, size = {now, era, math.max(0, safe - present), plan_id, penalty, flaw, #plan}, 7
for index, each in ipairs(plan) do
  local record = of_plan[index]
  local used, amount, till = use_of(record)
  reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = each[1], each[2], used, amount
  reply[size + 5], reply[size + 6], reply[size + 7] = till, record.serial, record.text
  size = size + 7
end
for index, each in ipairs(args.runs) do
  local outcome, record = outcomes[index], of_key[each[3]]
  reply[size + 1], reply[size + 2], reply[size + 3] = table.concat(outcome.tickets), outcome.holder, outcome.at
  reply[size + 4], reply[size + 5] = record and record.serial or 0, record and record.text or ''
  size = size + 5
end

local is_touched = is_new_era or is_over or until_us + KEPT_US > ends
if is_touched then  -- what is remembered from an earlier era counts again once it is read
  ends = math.max(ends, until_us + 2 * KEPT_US, is_new_era and has_keys and present + 2 * DAY_US or 0)
end
local head = {tostring(VERSION), mark, run, plan_id, plan_text,
  FORMAT(STATE, since, safe, last, count, penalty, rest_until, ends, interval, started, before)}
for index, name in ipairs(HEAD) do
  if head[index] ~= values[index] then
    changed_fields[#changed_fields + 1] = name
    changed_fields[#changed_fields + 1] = head[index]
  end
end
if #changed_fields > 0 then redis.call('HSET', keys.tickets, unpack(changed_fields)) end
if #gone_fields > 0 then redis.call('HDEL', keys.tickets, unpack(gone_fields)) end
if is_touched then
  for name, key in pairs(keys) do
    local more = (name == 'keys' or name == 'rest') and EXPIRY_US or 2 * DAY_US
    if name ~= 'state' then redis.call('PEXPIRE', key, whole(math.ceil((ends + more - now) / 1000))) end
  end
end
return reply
