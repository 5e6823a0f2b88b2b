-- The laws of limits that a fleet shares by joint admission: functions for a script, whose main text follows.
--
-- The rules are those of `_core/fleet/laws.py`, which is the same over Python's integers and says why they hold: one suite of
-- tests holds for both, and a change of a rule is one of both.
--
--     read_limit(settings, state, now)   the limit of two texts, false or '' for no state; nil if one of them is not sound
--     decide(limits, costs, t, horizon)  takes a ticket of all limits or of none: its time, who held it longest, receipts
--     limit.law                          its functions: earliest, take, give_back, add, redate, is_at_rest, use, write
--     limit.is_changed                   whether its text is another one
--
-- Texts of settings: a letter and numbers.
--
--   p   pace: gap in us, picoseconds of it
--   b   burst: capacity, gap in us, picoseconds of it, valid
--   w   window: amount, width, valid
--   q   quota: amount, calendar, number, begin, end, next end, valid, late
--
-- Texts of states.
--
--   g1  pace, burst: at, born, T, picoseconds of it, returned, gap in us, picoseconds of it
--   w1  window: check, last, gone, closed, total, u, amount; then '<us>:<amount>,' of each part but the latest
--   q1  quota: calendar, number, born, used of number - 2 to number + 1
--
-- Numbers are doubles: times and amounts stay below 2^53, where integers are exact; a time with picoseconds is two of them.

local PS, FAR, BEYOND, AMOUNT_MAX, VALID_MAX, AHEAD_MAX, PARTS = 1000000, 2 ^ 50, 2 ^ 53, 2 ^ 52, 60000000, 600000000, 64
local MATCH, FORMAT, TEXT_MAX = string.match, string.format, 136
local IS_LONG = FORMAT('%d', AMOUNT_MAX) == '4503599627370496'

local function form_of(text)  -- %d is faster, where it has 64 bits
  return IS_LONG and text or (string.gsub(text, '%%d', '%%.0f'))
end

local function numbers_of(text, pattern)  -- nothing if it does not match, or a number is 2^53 or more
  if #text > TEXT_MAX then return nil end
  local a, b, c, d, e, f, g, h = MATCH(text, pattern)
  if not a then return nil end
  a, b, c, d = a - 0, (b or 0) - 0, (c or 0) - 0, (d or 0) - 0
  e, f, g, h = (e or 0) - 0, (f or 0) - 0, (g or 0) - 0, (h or 0) - 0
  if a < BEYOND and b < BEYOND and c < BEYOND and d < BEYOND and e < BEYOND and f < BEYOND and g < BEYOND and h < BEYOND then
    return a, b, c, d, e, f, g, h
  end
end

local function ceil_of(us, ps) return ps > 0 and us + 1 or us end

local function is_gap(us, ps) return us <= FAR and ps < PS and us + ps > 0 end

local function span(cost, gap_us, gap_ps)  -- cost times gap; no more than FAR
  if cost * gap_us >= FAR then return FAR, 0 end
  local high = math.floor(cost / PS)
  local rest = (cost - high * PS) * gap_ps
  local carry = math.floor(rest / PS)
  local us = cost * gap_us + high * gap_ps + carry
  if us >= FAR then return FAR, 0 end
  return us, rest - carry * PS
end

local function is_less(us, ps, other_us, other_ps) return us < other_us or (us == other_us and ps < other_ps) end

local function level_of(us, ps, gap_us, gap_ps)  -- a time divided by a gap, rounded up
  if us >= FAR then us, ps = FAR, 0 end
  local level = math.ceil((us + ps / PS) / (gap_us + gap_ps / PS))  -- or a few more or less
  if level >= AMOUNT_MAX then return AMOUNT_MAX end
  while level > 0 do
    local below_us, below_ps = span(level - 1, gap_us, gap_ps)
    if is_less(below_us, below_ps, us, ps) then break end
    level = level - 1
  end
  while true do
    local level_us, level_ps = span(level, gap_us, gap_ps)
    if not is_less(level_us, level_ps, us, ps) then return level end
    level = level + 1
  end
end

-- Pace and burst.

local G1, G1_TEXT = '^g1,(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$', form_of('g1,%d,%d,%d,%d,%d,%d,%d')
local bucket = {}

function bucket.read(settings, text, now)
  if not text then
    return {law = bucket, set = settings, now = now, foreseen = math.huge, at = now, born = now, us = now, ps = 0,
      returned = 0, gap_us = settings.gap_us, gap_ps = settings.gap_ps}
  end
  local at, born, us, ps, returned, gap_us, gap_ps = numbers_of(text, G1)
  local latest = now + AHEAD_MAX
  if not at or at > latest or born > latest or ps >= PS or us >= latest + FAR or returned > FAR
    or not is_gap(gap_us, gap_ps) then return nil end
  return {law = bucket, set = settings, now = now, foreseen = math.huge, at = at, born = born, us = us, ps = ps,
    returned = returned, gap_us = gap_us, gap_ps = gap_ps}
end

function bucket.write(limit)
  return FORMAT(G1_TEXT, limit.at, limit.born, limit.us, limit.ps, limit.returned, limit.gap_us, limit.gap_ps)
end

local function due_of(limit)
  local set = limit.set
  if limit.gap_us == set.gap_us and limit.gap_ps == set.gap_ps or not is_less(limit.at, 0, limit.us, limit.ps) then
    return limit.us, limit.ps
  end
  local us, ps = span(level_of(limit.us - limit.at, limit.ps, limit.gap_us, limit.gap_ps), set.gap_us, set.gap_ps)
  return limit.at + us, ps
end

function bucket.earliest(limit, t, cost)
  local set = limit.set
  if cost * set.gap_us >= FAR then return nil end
  local us, ps = due_of(limit)
  if set.capacity then
    if cost > set.capacity then return nil end
    local more_us, more_ps = span(set.capacity - cost, set.gap_us, set.gap_ps)
    us, ps = us - more_us, ps - more_ps
  end
  if ps > 0 then us = us + 1 end
  return us > t and us or t
end

function bucket.take(limit, t, cost)
  if cost == 0 then return limit.us + limit.returned end
  local set = limit.set
  if limit.gap_us ~= set.gap_us or limit.gap_ps ~= set.gap_ps then
    limit.us, limit.ps = due_of(limit)
    limit.gap_us, limit.gap_ps = set.gap_us, set.gap_ps
    limit.born = math.max(limit.at, t) + 1
  end
  local last = t + set.valid
  local us, ps = limit.us, limit.ps
  if us < last and (set.capacity or ceil_of(us, ps) < last) then us, ps = last, 0 end
  local more_us, more_ps = span(cost, limit.gap_us, limit.gap_ps)
  us, ps = us + more_us, ps + more_ps
  if ps >= PS then us, ps = us + 1, ps - PS end
  limit.us, limit.ps, limit.is_changed = us, ps, true
  if last > limit.at then limit.at = last end
  return us + limit.returned
end

function bucket.give_back(limit, t, cost, receipt)
  local left = math.min(receipt, limit.us + limit.returned) - limit.returned - limit.at
  if t < limit.born or left <= 0 then return end
  local us, ps = span(cost, limit.gap_us, limit.gap_ps)
  if us >= left then us, ps = left, 0 end
  if us + ps == 0 or limit.returned + ceil_of(us, ps) > FAR then return end
  limit.us, limit.ps, limit.returned = limit.us - us, limit.ps - ps, limit.returned + ceil_of(us, ps)
  if limit.ps < 0 then limit.us, limit.ps = limit.us - 1, limit.ps + PS end
  limit.is_changed = true
end

function bucket.add(limit, t, cost, receipt)
  local last = t + limit.set.valid
  if last > limit.at then  -- of a ticket of cost 0, which has changed nothing, or of a changed `valid`
    local us, ps = last, 0
    if limit.at >= t and limit.us >= limit.at then us, ps = last + limit.us - limit.at, limit.ps end
    if is_less(limit.us, limit.ps, us, ps) then limit.us, limit.ps = us, ps end
    limit.at = last
  end
  local us, ps = span(cost, limit.gap_us, limit.gap_ps)
  us, ps = limit.us + us, limit.ps + ps
  if ps >= PS then us, ps = us + 1, ps - PS end
  if us >= limit.now + FAR then us, ps = limit.now + FAR, 0 end
  if is_less(limit.us, limit.ps, us, ps) then limit.us, limit.ps = us, ps end
  limit.is_changed = true
end

function bucket.redate(limit, t)
  local us, ps = 0, 0
  if is_less(limit.at, 0, limit.us, limit.ps) then us, ps = limit.us - limit.at, limit.ps end
  if us >= FAR then us, ps = FAR, 0 end
  limit.now, limit.at, limit.born = t, t + limit.set.valid, t + limit.set.valid + 1
  limit.us, limit.ps, limit.returned, limit.is_changed = limit.at + us, ps, 0, true
end

function bucket.is_at_rest(limit, now)
  local us, ps = due_of(limit)
  return ceil_of(us, ps) <= now
end

function bucket.use(limit, now)
  local us, ps = due_of(limit)
  local start = now + limit.set.valid
  local used = us >= start and level_of(us - start, ps, limit.set.gap_us, limit.set.gap_ps) or 0
  return used, limit.set.capacity or 1, math.max(now, ceil_of(us, ps))
end

-- Window: `tail` has the parts but the latest, of which `count` are read so far; `first` is the first that has not left.

local W1, W1_TEXT = '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+);()', form_of('%d,%d,%d,%d,%d,%d;')
local window = {}

function window.read(settings, text, now)
  local limit = {law = window, set = settings, foreseen = math.huge, last = 0, gone = 0, closed = 0, total = 0, tail = '',
    first = 1, count = 0, times = {}, amounts = {}, ends = {[0] = 1}}
  if not text then return limit end
  local body = string.sub(text, 13)
  if string.sub(text, 1, 12) ~= 'w1,' .. string.sub(redis.sha1hex(body), 1, 8) .. ',' then return nil end
  local last, gone, closed, total, latest, amount, begin = MATCH(body, W1)
  if not last then return nil end
  limit.last, limit.gone, limit.closed, limit.total = last - 0, gone - 0, closed - 0, total - 0
  limit.latest, limit.amount, limit.tail, limit.times[0] = latest - 0, amount - 0, string.sub(body, begin), limit.gone
  if limit.last > now + AHEAD_MAX or limit.latest > now + AHEAD_MAX then return nil end
  return limit
end

local PART = form_of('%d:%d,')

function window.write(limit)
  local body = FORMAT(W1_TEXT, limit.last, limit.gone, limit.closed, limit.total, limit.latest, limit.amount)
    .. string.sub(limit.tail, limit.ends[limit.first - 1])
  return 'w1,' .. string.sub(redis.sha1hex(body), 1, 8) .. ',' .. body
end

local function part_at(limit, index)  -- time and amount of a part but the latest; nil if there are not so many
  while limit.count < index do
    local count = limit.count
    local us, amount, stop = MATCH(limit.tail, '^(%d+):(%d+),()', limit.ends[count])
    if not us then return nil end
    limit.times[count + 1], limit.amounts[count + 1], limit.ends[count + 1] = limit.times[count] + us, tonumber(amount), stop
    limit.count = count + 1
  end
  return limit.times[index], limit.amounts[index]
end

function window.earliest(limit, t, cost)
  local set = limit.set
  if cost > set.amount then return nil end
  local when, room, index = t, set.amount - limit.total, limit.first
  if limit.last > t then when = limit.last end
  while room < cost and limit.latest do
    local time, amount = part_at(limit, index)
    if not time then return math.max(when, limit.latest + set.width + 1) end
    room = room + amount
    if time + set.width + 1 > when then when = time + set.width + 1 end
    index = index + 1
  end
  return when
end

local function log(limit, last, cost)  -- counts a cost at a time, or at the latest one if that is later; that time
  local set = limit.set
  limit.is_changed = true
  if not limit.latest then
    limit.gone = last - 1
    limit.closed, limit.times[0], limit.latest, limit.amount, limit.total = limit.gone, limit.gone, last, cost, cost
    return last
  end
  last, limit.total = math.max(last, limit.latest), limit.total + cost
  local part = math.ceil((set.width + set.valid) / PARTS)
  if math.floor(limit.latest / part) == math.floor(last / part) then
    limit.latest, limit.amount = last, limit.amount + cost
  else
    limit.tail = limit.tail .. FORMAT(PART, limit.latest - limit.closed, limit.amount)
    limit.closed, limit.latest, limit.amount = limit.latest, last, cost
  end
  return last
end

function window.take(limit, t, cost)
  local set = limit.set
  local last = t + set.valid
  if cost == 0 then return last end
  limit.last = t
  if not limit.latest then return log(limit, last, cost) end
  while true do
    local time, amount = part_at(limit, limit.first)
    if not time or time + set.width >= t then break end
    limit.gone, limit.total, limit.first = time, limit.total - amount, limit.first + 1
  end
  if limit.latest + set.width < t then  -- all have left
    limit.is_changed = true
    limit.gone, limit.closed, limit.latest, limit.amount, limit.total = limit.latest, limit.latest, last, cost, cost
    limit.tail, limit.first, limit.count, limit.ends[0], limit.times[0] = '', 1, 0, 1, limit.gone
    return last
  end
  return log(limit, last, cost)
end

local function change_part(limit, receipt, cost)  -- by cost, below 0 too, as far as a part goes; the one of a ticket
  if cost > 0 and receipt + limit.set.width >= limit.last then
    receipt = math.max(receipt, limit.gone + 1)  -- a ticket of cost 0 may be older than the log
  end
  if receipt <= limit.gone then return end
  if not limit.latest or receipt > limit.latest then  -- of a ticket of cost 0
    if cost > 0 then log(limit, receipt, cost) end
    return
  end
  local index = limit.first
  if receipt > limit.closed then index = math.huge end
  local time, amount
  while index < math.huge do
    time, amount = part_at(limit, index)
    if not time or time >= receipt then break end
    index = index + 1
  end
  if not time then
    cost = math.max(cost, -limit.amount)
    limit.amount = limit.amount + cost
  else
    cost = math.max(cost, -amount)
    limit.tail = string.sub(limit.tail, 1, limit.ends[index - 1] - 1)
      .. FORMAT(PART, time - limit.times[index - 1], amount + cost)
      .. string.sub(limit.tail, limit.ends[index])
    limit.count = index - 1
  end
  limit.total, limit.is_changed = limit.total + cost, true
end

function window.give_back(limit, t, cost, receipt) change_part(limit, receipt, -cost) end

function window.add(limit, t, cost, receipt)
  change_part(limit, receipt, math.max(0, math.min(cost, AMOUNT_MAX - limit.total)))
end

function window.redate(limit, t)
  if not limit.latest then return end
  limit.last, limit.latest, limit.amount, limit.is_changed = t, t + limit.set.valid, limit.total, true
  limit.gone = limit.latest - 1
  limit.closed, limit.times[0], limit.ends[0], limit.tail, limit.first, limit.count = limit.gone, limit.gone, 1, '', 1, 0
end

function window.is_at_rest(limit, now)
  return not limit.latest or math.max(limit.latest + limit.set.width, limit.last - 1) < now
end

function window.use(limit, now)
  local width, used, index = limit.set.width, limit.total, limit.first
  if not limit.latest then return 0, limit.set.amount, now end
  while true do
    local time, amount = part_at(limit, index)
    if not time or time + width >= now then break end
    used, index = used - amount, index + 1
  end
  if limit.latest + width < now then used = 0 end
  return used, limit.set.amount, math.max(now, limit.latest + width + 1)
end

-- Quota: `used` of number - 2 to number + 1.

local Q1, Q1_TEXT = '^q1,(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$', form_of('q1,%d,%d,%d,%d,%d,%d,%d')
local quota = {}

function quota.read(settings, text, now)
  local limit = {law = quota, set = settings, foreseen = settings.next_end - settings.valid - settings.late - 1,
    number = settings.number, born = now, used = {0, 0, 0, 0}}
  if not text then return limit end
  local n = {numbers_of(text, Q1)}
  if not n[1] or n[3] > now + AHEAD_MAX or math.max(n[4], n[5], n[6], n[7]) > AMOUNT_MAX then return nil end
  local used = limit.used
  if n[1] ~= settings.calendar then
    local total = math.min(math.min(n[4] + n[5], AMOUNT_MAX) + math.min(n[6] + n[7], AMOUNT_MAX), AMOUNT_MAX)
    for index = 1, 3 do used[index] = total end
    if now + AHEAD_MAX >= settings.stop - settings.valid - settings.late then used[4] = total end
    return limit
  end
  limit.number, limit.born = math.max(n[2], settings.number), n[3]
  local shift = math.min(limit.number - n[2], 4)
  for index = 1, 4 - shift do used[index] = n[3 + index + shift] end
  return limit
end

function quota.write(limit)
  return FORMAT(Q1_TEXT, limit.set.calendar, limit.number, limit.born, unpack(limit.used))
end

local function periods_of(set, t)  -- the first in which a ticket may be used, how many, until when; nil if nobody has said
  local lead = set.valid + set.late
  if t < set.begin - lead then return set.number - 1, 0, set.begin - lead end
  if t < set.begin + set.late then return set.number - 1, 2, set.begin + set.late end
  if t < set.stop - lead then return set.number, 1, set.stop - lead end
  if t < set.stop + set.late then return set.number, 2, set.stop + set.late end
  if t < set.next_end - lead then return set.number + 1, 1, set.next_end - lead end
  return set.number + 1, 0, nil
end

local function used_in(limit, number)  -- all there can be, if that is forgotten
  local place = number - limit.number + 3
  if place < 1 then return AMOUNT_MAX end
  return limit.used[place] or 0
end

function quota.earliest(limit, t, cost)
  local set, when = limit.set, t
  if cost > set.amount then return nil end
  while when do
    local first, count, following = periods_of(set, when)
    local is_free = count > 0
    for number = first, first + count - 1 do is_free = is_free and used_in(limit, number) + cost <= set.amount end
    if is_free then return when end
    when = following
  end
  return math.max(t, set.next_end + set.late)
end

function quota.add(limit, t, cost, receipt)
  local first, count, following = periods_of(limit.set, t)
  local begin, stop = first - limit.number + 3, first - limit.number + 2 + count
  if count == 0 and following then begin, stop = 1, begin  -- some period before these
  elseif count == 0 then stop = 4 end  -- or after
  for place = math.max(begin, 1), math.min(stop, 4) do
    limit.used[place] = math.min(limit.used[place] + cost, AMOUNT_MAX)
    limit.is_changed = true
  end
end

function quota.take(limit, t, cost)
  if cost > 0 then quota.add(limit, t, cost, t) end
  return t
end

function quota.give_back(limit, t, cost, receipt)
  local first, count = periods_of(limit.set, t)
  local place = first - limit.number + 3
  if count == 1 and t >= limit.born and limit.used[place] then
    limit.used[place] = math.max(0, limit.used[place] - cost)
    limit.is_changed = true
  end
end

function quota.redate(limit, t)
  limit.born, limit.is_changed = t + limit.set.valid + 1, true
end

function quota.is_at_rest(limit, now)
  if now >= limit.set.next_end + limit.set.late then return true end
  for place = math.max(1, periods_of(limit.set, now) - limit.number + 3), 4 do
    if limit.used[place] > 0 then return false end
  end
  return true
end

function quota.use(limit, now)
  local set = limit.set
  if now >= set.stop then return used_in(limit, set.number + 1), set.amount, set.next_end end
  return used_in(limit, set.number), set.amount, set.stop
end

-- Settings, which many limits share: by their text.

local known_settings = {}
local Q_SETTINGS = '^q,(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$'

local function is_bucket(set)
  return is_gap(set.gap_us, set.gap_ps) and set.valid <= VALID_MAX
    and (not set.capacity or set.capacity <= AMOUNT_MAX
      and (set.gap_us >= FAR or span(set.capacity, set.gap_us, set.gap_ps) < FAR))
end

local function is_window(set)
  return set.amount <= AMOUNT_MAX and set.width > 0 and set.width < FAR and set.valid <= VALID_MAX
end

local function is_quota(set)
  local lead = set.valid + set.late
  return set.amount <= AMOUNT_MAX and set.number >= 1 and lead <= set.begin and math.max(set.valid, set.late) <= VALID_MAX
    and math.min(set.stop - set.begin, set.next_end - set.stop) > lead + set.late
end

local function read_settings(text)
  local known = known_settings[text]
  if known then return known end
  local kind, set, is_sound = string.sub(text, 1, 1), nil, nil
  if kind == 'p' then
    local gap_us, gap_ps = numbers_of(text, '^p,(%d+),(%d+)$')
    set, is_sound = gap_us and {law = bucket, gap_us = gap_us, gap_ps = gap_ps, valid = 0}, is_bucket
  elseif kind == 'b' then
    local capacity, gap_us, gap_ps, valid = numbers_of(text, '^b,(%d+),(%d+),(%d+),(%d+)$')
    set = capacity and {law = bucket, capacity = capacity, gap_us = gap_us, gap_ps = gap_ps, valid = valid}
    is_sound = is_bucket
  elseif kind == 'w' then
    local amount, width, valid = numbers_of(text, '^w,(%d+),(%d+),(%d+)$')
    set, is_sound = amount and {law = window, amount = amount, width = width, valid = valid}, is_window
  elseif kind == 'q' then
    local amount, calendar, number, begin, stop, next_end, valid, late = numbers_of(text, Q_SETTINGS)
    set = amount and {law = quota, amount = amount, calendar = calendar, number = number, begin = begin, stop = stop,
      next_end = next_end, valid = valid, late = late}
    is_sound = is_quota
  end
  if not set or not is_sound(set) then return nil end
  known_settings[text] = set
  return set
end

local function read_limit(settings, state, now)
  local set = read_settings(settings)
  if not set then return nil end
  return set.law.read(set, state ~= '' and state, now)
end

-- All of them at once.

local function decide(limits, costs, t, horizon)
  local when, holder, agreed, place, count = t, nil, 0, 1, #limits
  while agreed < count do  -- in a row
    local limit = limits[place]
    local earliest = limit.law.earliest(limit, when, costs[place])
    if not earliest then return nil, place end
    if earliest > when then when, holder, agreed = earliest, place, 0 end
    agreed = agreed + 1
    place = place % count + 1
  end
  if when > horizon then return when, holder end
  for index = 1, count do
    if when > limits[index].foreseen then return when, holder end
  end
  local receipts = {}
  for index = 1, count do
    receipts[index] = limits[index].law.take(limits[index], when, costs[index])
  end
  return when, holder, receipts
end
