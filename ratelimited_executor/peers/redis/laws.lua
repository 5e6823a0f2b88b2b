-- The laws of limits that a fleet shares by joint admission: functions for a script, whose main text follows.
--
-- `_core/fleet/laws.py` has the same rules over Python's integers, and explains why they hold. One suite of tests checks both:
-- change a rule in both.
--
--     read_limit(settings, state, now, begin)  the limit of two texts, false or '' for no state, which may begin after others; nil
--                                              if one of them is not sound
--     agreed_time(limits, costs, t)            the first time that all limits admit, and who held it longest
--     life_of(settings, wanted)                how long a ticket lives
--     limit.law                                its functions: earliest, take, give_back, add, report, redate, is_at_rest, use, write (after a text)
--     limit.is_changed                         whether its text is another one
--
-- Texts of settings: a letter and numbers.
--
--   p   pace: gap in us, picoseconds of it, amount, width
--   b   burst: capacity, gap in us, picoseconds of it
--   w   window: amount, width
--   q   quota: amount, calendar, number, begin, end, next end, valid, late
--
-- Texts of states. Those of windows and paces are doubles, as `struct` packs them: so a call reads only what it needs.
--
--   g1  burst: at, born, T, picoseconds of it, returned, gap in us, picoseconds of it
--   w2  window: a log: gone, total, part, count of those ahead; t, cost of each; then u, cost of each, in order
--   p2  pace: first, picoseconds of it, gap in us, picoseconds of it, at, born, count of runs; number, count of each; then a log
--   q1  quota: calendar, number, born, used of number - 2 to number + 1
--
-- Numbers are doubles: times and amounts stay below 2^53, where integers are exact; a time with picoseconds is two of them.

-- All is in one table: to make a function takes the longer, the more local variables of others it needs.

local L = {AMOUNT_MAX = 2 ^ 52, AHEAD_MAX = 600000000, PARTS = 256, SECOND = 1000000,
  LATE_MAX = 60000000, LIFE_MAX = 500000, LIFE = 20000, LIFE_MIN = 2000, LIVES = 20, LIVES_MIN = 2, TEXT_MAX = 160,
  make = {}, laws = {}, doubles = {}, known_settings = {}}

L.IS_LONG = string.format('%d', 2 ^ 52) == '4503599627370496'

function L.form_of(text)  -- %d is faster, where it has 64 bits
  return L.IS_LONG and text or (string.gsub(text, '%%d', '%%.0f'))
end

function L.doubles_of(count)
  local form = L.doubles[count]
  if not form then
    form = '<' .. string.rep('d', count)
    L.doubles[count] = form
  end
  return form
end

function L.numbers_of(text, pattern)  -- nothing if it does not match, or a number is 2^53 or more
  if #text > L.TEXT_MAX then return nil end
  local a, b, c, d, e, f, g, h = string.match(text, pattern)
  if not a then return nil end
  a, b, c, d = a - 0, (b or 0) - 0, (c or 0) - 0, (d or 0) - 0
  e, f, g, h = (e or 0) - 0, (f or 0) - 0, (g or 0) - 0, (h or 0) - 0
  if a < 2 ^ 53 and b < 2 ^ 53 and c < 2 ^ 53 and d < 2 ^ 53 and e < 2 ^ 53 and f < 2 ^ 53 and g < 2 ^ 53 and h < 2 ^ 53 then
    return a, b, c, d, e, f, g, h
  end
end

function L.ceil_of(us, ps) return ps > 0 and us + 1 or us end

function L.is_gap(us, ps) return us <= 2 ^ 50 and ps < 1e6 and us + ps > 0 end

function L.span(cost, gap_us, gap_ps)  -- cost times gap; no more than 2 ^ 50
  if cost * gap_us >= 2 ^ 50 then return 2 ^ 50, 0 end
  local low = cost % 1e6
  local rest = low * gap_ps
  local ps = rest % 1e6
  local us = cost * gap_us + (cost - low) / 1e6 * gap_ps + (rest - ps) / 1e6
  if us >= 2 ^ 50 then return 2 ^ 50, 0 end
  return us, ps
end

function L.is_less(us, ps, other_us, other_ps) return us < other_us or (us == other_us and ps < other_ps) end

function L.level_of(us, ps, gap_us, gap_ps)  -- a time divided by a gap, rounded up
  if us >= 2 ^ 50 then us, ps = 2 ^ 50, 0 end
  local quotient = (us + ps / 1e6) / (gap_us + gap_ps / 1e6)  -- or a little more or less
  local level = math.ceil(quotient)
  local rest = level - quotient
  if quotient < 1e9 and rest > 1e-6 and rest < 1 - 1e-6 then return level end
  if level >= L.AMOUNT_MAX then return L.AMOUNT_MAX end
  while level > 0 do
    local below_us, below_ps = L.span(level - 1, gap_us, gap_ps)
    if L.is_less(below_us, below_ps, us, ps) then break end
    level = level - 1
  end
  while true do
    local level_us, level_ps = L.span(level, gap_us, gap_ps)
    if not L.is_less(level_us, level_ps, us, ps) then return level end
    level = level + 1
  end
end

-- A law is made when it is needed, by its letter.

function L.made(name)
  local made = L.laws[name]
  if not made and L.make[name] then
    made = L.make[name]()
    L.laws[name] = made
  end
  return made
end

-- Burst.

function L.make.b()
  local bucket = {}

  function bucket.parse(text)
    local capacity, gap_us, gap_ps = L.numbers_of(text, '^b,(%d+),(%d+),(%d+)$')
    return capacity and {law = bucket, kind = 'b', capacity = capacity, gap_us = gap_us, gap_ps = gap_ps}
  end

  function bucket.is_sound(set)  -- and what follows from them
    if not L.is_gap(set.gap_us, set.gap_ps) or set.capacity > L.AMOUNT_MAX then return false end
    local full = L.span(set.capacity, set.gap_us, set.gap_ps)
    local longest = math.min(math.floor(full / L.LIVES_MIN), L.LIFE_MAX)
    set.life_least, set.life_most = math.max(L.LIFE_MIN, math.min(longest, L.SECOND / L.LIVES)), math.max(L.LIFE_MIN, longest)
    set.gap = math.max(1, set.gap_us)
    return set.gap_us >= 2 ^ 50 or full < 2 ^ 50
  end

  L.G1, L.G1_TEXT = '^g1,(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$', L.form_of('g1,%d,%d,%d,%d,%d,%d,%d')

  function bucket.read(settings, text, now, begin)
    if not text then
      return {law = bucket, set = settings, now = now, foreseen = math.huge, at = now, born = now, us = now, ps = 0,
        returned = 0, gap_us = settings.gap_us, gap_ps = settings.gap_ps}
    end
    local at, born, us, ps, returned, gap_us, gap_ps = L.numbers_of(string.sub(text, begin), L.G1)
    local latest = now + L.AHEAD_MAX
    if not at or at > latest or born > latest or ps >= 1e6 or us >= latest + 2 ^ 50 or returned > 2 ^ 50
      or not L.is_gap(gap_us, gap_ps) then return nil end
    return {law = bucket, set = settings, now = now, foreseen = math.huge, at = at, born = born, us = us, ps = ps,
      returned = returned, gap_us = gap_us, gap_ps = gap_ps}
  end

  function bucket.write(limit, head)
    return head .. string.format(L.G1_TEXT, limit.at, limit.born, limit.us, limit.ps, limit.returned, limit.gap_us, limit.gap_ps)
  end

  function L.due_of(limit)
    local set = limit.set
    if limit.gap_us == set.gap_us and limit.gap_ps == set.gap_ps or not L.is_less(limit.at, 0, limit.us, limit.ps) then
      return limit.us, limit.ps
    end
    local us, ps = L.span(L.level_of(limit.us - limit.at, limit.ps, limit.gap_us, limit.gap_ps), set.gap_us, set.gap_ps)
    return limit.at + us, ps
  end

  function bucket.earliest(limit, t, cost)
    local set = limit.set
    if cost * set.gap_us >= 2 ^ 50 or cost > set.capacity then return nil end
    local us, ps = L.due_of(limit)
    local more_us, more_ps = L.span(set.capacity - cost, set.gap_us, set.gap_ps)
    us, ps = us - more_us, ps - more_ps
    if ps > 0 then us = us + 1 end
    return us > t and us or t
  end

  function bucket.take(limit, t, cost, life)
    if cost == 0 then return limit.us + limit.returned end
    local set = limit.set
    if limit.gap_us ~= set.gap_us or limit.gap_ps ~= set.gap_ps then
      limit.us, limit.ps = L.due_of(limit)
      limit.gap_us, limit.gap_ps = set.gap_us, set.gap_ps
      limit.born = math.max(limit.at, t) + 1
    end
    local last, us, ps = t + life, limit.us, limit.ps
    if us < last then us, ps = last, 0 end
    local more_us, more_ps = L.span(cost, limit.gap_us, limit.gap_ps)
    us, ps = us + more_us, ps + more_ps
    if ps >= 1e6 then us, ps = us + 1, ps - 1e6 end
    limit.us, limit.ps, limit.is_changed = us, ps, true
    if last > limit.at then limit.at = last end
    return us + limit.returned
  end

  function bucket.give_back(limit, t, cost, receipt)
    local left = math.min(receipt, limit.us + limit.returned) - limit.returned - limit.at
    if t < limit.born or left <= 0 then return end
    local us, ps = L.span(cost, limit.gap_us, limit.gap_ps)
    if us >= left then us, ps = left, 0 end
    if us + ps == 0 or limit.returned + L.ceil_of(us, ps) > 2 ^ 50 then return end
    limit.us, limit.ps, limit.returned = limit.us - us, limit.ps - ps, limit.returned + L.ceil_of(us, ps)
    if limit.ps < 0 then limit.us, limit.ps = limit.us - 1, limit.ps + 1e6 end
    limit.is_changed = true
  end

  function bucket.add(limit, t, cost, receipt)
    local last = t + limit.set.life_most
    if last > limit.at then  -- of a ticket of cost 0, which has changed nothing, or of a shorter life
      local us, ps = last, 0
      if limit.at >= t and limit.us >= limit.at then us, ps = last + limit.us - limit.at, limit.ps end
      if L.is_less(limit.us, limit.ps, us, ps) then limit.us, limit.ps = us, ps end
      limit.at = last
    end
    local us, ps = L.span(cost, limit.gap_us, limit.gap_ps)
    us, ps = limit.us + us, limit.ps + ps
    if ps >= 1e6 then us, ps = us + 1, ps - 1e6 end
    if us >= limit.now + 2 ^ 50 then us, ps = limit.now + 2 ^ 50, 0 end
    if L.is_less(limit.us, limit.ps, us, ps) then limit.us, limit.ps = us, ps end
    limit.is_changed = true
  end

  function bucket.report() end  -- it counts by t alone

  function bucket.redate(limit, t)
    local us, ps = 0, 0
    if L.is_less(limit.at, 0, limit.us, limit.ps) then us, ps = limit.us - limit.at, limit.ps end
    if us >= 2 ^ 50 then us, ps = 2 ^ 50, 0 end
    local life = limit.set.life_most
    limit.now, limit.at, limit.born = t, t + life, t + life + 1
    limit.us, limit.ps, limit.returned, limit.is_changed = limit.at + us, ps, 0, true
  end

  function bucket.is_at_rest(limit, now)
    local us, ps = L.due_of(limit)
    return L.ceil_of(us, ps) <= now
  end

  function bucket.use(limit, now)
    local us, ps = L.due_of(limit)
    local used = us >= now and L.level_of(us - now, ps, limit.set.gap_us, limit.set.gap_ps) or 0
    return used, limit.set.capacity, math.max(now, L.ceil_of(us, ps))
  end

  return bucket
end

-- The log of a window: two lists of records in order, which are a time and a cost each. The records of a list up to `head` are in its
-- text, and read where they are needed: a part from the first on into `lead`. Those after it are in `tail`, and may change. Records are
-- counted from 1 over both; those before `first` are forgotten.

function L.make.log()
  L.CHUNK = 24  -- records of a text to read beyond the one that is needed

  function L.new_list(text, begin, count)
    return {text = text, begin = begin, head = count, first = 1, lead = false, lead_at = 1, lead_end = 0, tail = {}, size = 0}
  end

  function L.unpacked(list, from, count)  -- records of the text
    return {struct.unpack(L.doubles_of(2 * count), list.text, list.begin + 16 * (from - 1))}
  end

  function L.time_in(list, index)  -- of a record of the text
    return (struct.unpack('<d', list.text, list.begin + 16 * (index - 1)))
  end

  function L.record(list, index)  -- time and cost; nil if there are not so many
    local place = index - list.head
    if place > 0 then return list.tail[2 * place - 1], list.tail[2 * place] end
    if index > list.lead_end or index < list.lead_at then
      local at = math.min(index, list.first)
      local size = math.min(list.head, index + L.CHUNK) - at + 1
      list.lead, list.lead_at, list.lead_end = L.unpacked(list, at, size), at, at + size - 1
    end
    place = 2 * (index - list.lead_at) + 1
    return list.lead[place], list.lead[place + 1]
  end

  function L.skip(list, index, sum, stop)  -- the first record from one on of a time or later, and a sum less the costs of those before
    local time, cost = L.record(list, index)
    while time and time < stop do
      local lead, at, last = list.lead, 2 * list.lead_at - 1, math.min(list.head, list.lead_end)
      while time < stop and index < last do
        sum, index = sum - cost, index + 1
        time, cost = lead[2 * index - at], lead[2 * index - at + 1]
      end
      if time < stop then
        sum, index = sum - cost, index + 1
        time, cost = L.record(list, index)
      end
    end
    return index, sum
  end

  function L.latest_in(list)  -- the latest time; nil if there is none
    local size = list.size
    if size > 0 then return size >= list.first - list.head and list.tail[2 * size - 1] or nil end
    if list.head >= list.first then return L.time_in(list, list.head) end
  end

  function L.reach(list, time)  -- moves the records of that time or later from the text to the tail
    local low, high = list.first, list.head
    if L.time_in(list, high) < time then return end
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if L.time_in(list, middle) < time then low = middle + 1 else high = middle end
    end
    low = math.max(list.first, low - L.CHUNK)
    local more, tail = list.head - low + 1, list.tail
    local values = L.unpacked(list, low, more)
    values[2 * more + 1] = nil
    for index = 1, 2 * list.size do values[2 * more + index] = tail[index] end
    list.tail, list.size, list.head = values, list.size + more, low - 1
  end

  function L.place_in(list, time, near)  -- the place in the tail of the first record of that time or later; most often next to another
    local tail, size = list.tail, list.size
    if near and near < size and near >= list.first - list.head and tail[2 * near - 1] < time and tail[2 * near + 1] >= time then return near + 1 end
    if size > 0 and tail[2 * size - 1] <= time then return tail[2 * size - 1] == time and size or size + 1 end
    if list.head >= list.first and (size == 0 or tail[1] >= time) then
      L.reach(list, time)
      tail, size = list.tail, list.size
    end
    local low, high = math.max(1, list.first - list.head), size + 1
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if tail[2 * middle - 1] < time then low = middle + 1 else high = middle end
    end
    return low
  end

  function L.insert(list, place, time, amount)
    local tail, at = list.tail, 2 * place
    if place > list.size then
      tail[at - 1], tail[at] = time, amount
    else
      table.insert(tail, at - 1, amount)
      table.insert(tail, at - 1, time)
    end
    list.size = list.size + 1
  end

  function L.lessen(list, place, amount)  -- by no more than its cost
    local tail, at = list.tail, 2 * place
    if amount < tail[at] then
      tail[at] = tail[at] - amount
    else
      table.remove(tail, at)
      table.remove(tail, at - 1)
      list.size = list.size - 1
    end
  end

  function L.raise(list, time, amount)  -- the cost at a time; whether it is a new record
    local tail, place = list.tail, list.size
    local latest = tail[2 * place - 1]
    if latest and latest < time then
      place = place + 1
    elseif latest ~= time then
      place = L.place_in(list, time)
      tail = list.tail
    end
    if tail[2 * place - 1] == time then
      tail[2 * place] = tail[2 * place] + amount
      return false
    end
    L.insert(list, place, time, amount)
    return true
  end

  function L.write_list(list)  -- the records that are still in its text, and the others
    local head, tail, begin, size = '', '', 2 * math.max(1, list.first - list.head) - 1, 2 * list.size
    if list.first <= list.head then head = string.sub(list.text, list.begin + 16 * (list.first - 1), list.begin + 16 * list.head - 1) end
    if begin < size then tail = struct.pack(L.doubles_of(size - begin + 1), unpack(list.tail, begin, size)) end
    return head, tail
  end

  function L.new_log(set, now)
    return {amount = set.amount, width = set.width, life = set.life_most, part = set.part, now = now, gone = math.max(0, now - 1), total = 0,
      ahead = false, lasts = false}
  end

  function L.begin_log(log)  -- without a state
    log.ahead, log.lasts = L.new_list('', 1, 0), L.new_list('', 1, 0)
  end

  function L.read_log(log, text, begin, at)  -- its numbers begin at a byte of a text
    local size = #text - begin + 1
    if size < 32 or size % 16 ~= 0 then return false end
    local gone, total, part, ahead = struct.unpack('<dddd', text, begin)
    if not (ahead >= 0 and 32 + 16 * ahead <= size) then return false end
    log.gone, log.total = gone, total
    log.ahead, log.lasts = L.new_list(text, begin + 32, ahead), L.new_list(text, begin + 32 + 16 * ahead, (size - 32) / 16 - ahead)
    local latest = math.max(L.latest_in(log.ahead) or 0, L.latest_in(log.lasts) or 0)
    if part ~= log.part then log.ahead = L.new_list('', 1, 0) end  -- they were rounded in another way
    return latest <= at + L.AHEAD_MAX and total >= 0 and total <= L.AMOUNT_MAX and gone >= 0 and gone < 2 ^ 53
  end

  function L.write_log(log)  -- parts of a text: it is long, and so put together once
    local ahead, more_ahead = L.write_list(log.ahead)
    local lasts, more_lasts = L.write_list(log.lasts)
    return struct.pack('<dddd', log.gone, log.total, log.part, (#ahead + #more_ahead) / 16), ahead, more_ahead, lasts, more_lasts
  end

  function L.rounded(log, time) return time + -time % log.part end

  -- A search is at the time `when`, from which `index` is the first record of a last moment that counts, and `rest` what counts, and
  -- `place` is the first ticket ahead of it, and `behind` the costs of these. From `sought` to `found`, there was no room for `cost`.

  function L.move(log, when)
    local ahead, lasts = log.ahead, log.lasts
    if not log.when or when < log.when then
      log.index, log.rest, log.place, log.behind = lasts.first, log.total, ahead.head + ahead.size + 1, 0
    end
    log.index, log.rest = L.skip(lasts, log.index, log.rest, when - log.width)
    local place, behind = L.skip(ahead, log.place, log.behind, when + 1)
    while place > ahead.first do
      local time, cost = L.record(ahead, place - 1)
      if time <= when then break end
      behind, place = behind + cost, place - 1
    end
    log.place, log.behind, log.when = place, behind, when
  end

  function L.conflict(log, cost)  -- the time of the first ticket ahead in whose window there is no room; nil if there is room in each
    local place, behind, ahead, lasts = log.place, log.behind, log.ahead, log.lasts
    local time, amount = L.record(ahead, place)
    if not time then return nil end
    local width, index, rest = log.width, log.index, log.rest
    local last = L.rounded(log, log.when + log.life)
    while time and time - width <= last do
      behind = behind - amount
      index, rest = L.skip(lasts, index, rest, time - width)
      if rest - behind + cost > log.amount then return time end
      place = place + 1
      time, amount = L.record(ahead, place)
    end
    return nil
  end

  function L.log_earliest(log, t, cost)
    if cost > log.amount then return nil end
    if log.total + cost <= log.amount then return t end
    local when, sought = t, t
    if log.sought and t >= log.sought and t <= log.found and cost >= log.cost then
      when, sought = log.found, log.sought
    else  -- the last ticket ahead decides on all that are before it, if there is no room in its window
      local last = L.latest_in(log.ahead)
      if last and last > when and last - log.width <= when then
        L.move(log, last)
        if log.rest + cost > log.amount then when = last end
      end
    end
    while true do
      if when ~= log.when then L.move(log, when) end
      if log.rest - log.behind + cost > log.amount then
        when = L.record(log.lasts, log.index) + log.width + 1
      else
        local later = L.conflict(log, cost)
        if not later then
          log.sought, log.found, log.cost = sought, when, cost
          return when
        end
        when = later
      end
    end
  end

  function L.forget(log)
    local lasts, ahead, first = log.lasts, log.ahead, log.lasts.first
    lasts.first, log.total = L.skip(lasts, first, log.total, log.now - log.width)
    if lasts.first > first then log.gone = L.record(lasts, lasts.first - 1) end
    ahead.first = L.skip(ahead, ahead.first, 0, log.now + 1)
  end

  function L.note(log, last, begin, cost)  -- a cost at a last moment, of a ticket at a time
    L.raise(log.lasts, last, cost)
    log.total = log.total + cost
    local when, is_new = log.when, begin > log.now and L.raise(log.ahead, begin, cost)
    if when then
      log.rest = log.rest + cost
      if begin > when then log.behind = log.behind + cost
      elseif is_new then log.place = log.place + 1 end
    end
  end

  function L.log_take(log, t, cost, life)
    local last = L.rounded(log, t + life)
    if cost > 0 then
      L.forget(log)
      L.note(log, last, t - t % log.part, cost)
    end
    return last
  end

  function L.log_give_back(log, t, cost, receipt)
    if receipt <= log.gone or receipt < log.now - log.width then return false end
    local lasts, ahead, begin, left = log.lasts, log.ahead, t - t % log.part, cost
    local place = L.place_in(lasts, receipt)
    while left > 0 and place <= lasts.size do
      local some = math.min(left, lasts.tail[2 * place])
      L.lessen(lasts, place, some)
      left = left - some
    end
    log.total, log.when, log.sought = log.total - (cost - left), nil, nil
    place = L.place_in(ahead, begin)
    if left < cost and ahead.tail[2 * place - 1] == begin then L.lessen(ahead, place, cost - left) end
    return left < cost
  end

  function L.log_add(log, cost, receipt)
    local more = math.max(0, math.min(cost, L.AMOUNT_MAX - log.total))
    if more == 0 or receipt + log.width < log.now then return false end
    log.total, log.when, log.sought = log.total + more, nil, nil
    L.raise(log.lasts, math.max(receipt, log.gone + 1), more)
    return true
  end

  function L.log_report(log, start, cost, receipt)
    start = L.rounded(log, start)
    if start >= receipt then return false end
    local lasts = log.lasts
    local to = start > log.gone and L.place_in(lasts, start, log.to)
    local from = L.place_in(lasts, receipt, log.from)
    local tail = lasts.tail
    log.to, log.from, log.when, log.sought = to, from, nil, nil
    if tail[2 * from - 1] ~= receipt or cost == 0 then return false end
    local is_known, moved = to and tail[2 * to - 1] == start, math.min(cost, tail[2 * from])
    if to and not is_known and moved == tail[2 * from] then  -- all of a record
      for index = 2 * from, 2 * to + 1, -1 do tail[index] = tail[index - 2] end
      tail[2 * to - 1], tail[2 * to] = start, moved
    else
      L.lessen(lasts, from, moved)
      if is_known then tail[2 * to] = tail[2 * to] + moved
      elseif to then L.insert(lasts, to, start, moved)
      else log.total = log.total - moved end
    end
    return moved > 0
  end

  function L.log_redate(log, t)
    local has_some = L.latest_in(log.lasts)
    log.now, log.gone, log.when, log.sought = t, math.max(0, t - 1), nil, nil
    log.ahead = L.new_list('', 1, 0)
    if has_some then
      log.lasts = L.new_list('', 1, 0)
      log.lasts.tail, log.lasts.size = {t, log.total}, 1
    end
  end

  function L.log_used(log, now)
    local _, used = L.skip(log.lasts, log.lasts.first, log.total, now - log.width)
    return used
  end

  function L.log_until(log, now)
    local latest = L.latest_in(log.lasts)
    return latest and math.max(now, latest + log.width + 1) or now
  end
  return true
end

-- Window.

function L.make.w()
  L.made('log')
  local window = {}

  function window.parse(text)
    local amount, width = L.numbers_of(text, '^w,(%d+),(%d+)$')
    return amount and {law = window, kind = 'w', amount = amount, width = width}
  end

  function window.is_sound(set)  -- and what follows from them
    if set.amount > L.AMOUNT_MAX or set.width == 0 or set.width >= 2 ^ 50 then return false end
    set.life_least = L.between(math.floor(set.width / L.LIVES), L.LIFE_MIN, L.LIFE_MAX)
    set.life_most = L.between(math.floor(set.width / L.LIVES_MIN), L.LIFE_MIN, L.LIFE_MAX)
    set.gap = set.amount > 0 and math.max(1, math.floor(set.width / set.amount)) or 2 ^ 50
    set.is_dated = true
    return true
  end

  function window.read(settings, text, now, begin)
    local log = L.new_log(settings, now)
    local limit = {law = window, set = settings, foreseen = math.huge, log = log}
    if not text then L.begin_log(log) end
    if not text or string.sub(text, begin, begin + 1) == 'w2' and L.read_log(log, text, begin + 2, now) then return limit end
  end

  function window.write(limit, head)
    local first, ahead, more_ahead, lasts, more_lasts = L.write_log(limit.log)
    return head .. 'w2' .. first .. ahead .. more_ahead .. lasts .. more_lasts
  end

  function window.earliest(limit, t, cost) return L.log_earliest(limit.log, t, cost) end

  function window.take(limit, t, cost, life)
    limit.is_changed = limit.is_changed or cost > 0
    return L.log_take(limit.log, t, cost, life)
  end

  function window.give_back(limit, t, cost, receipt)
    limit.is_changed = L.log_give_back(limit.log, t, cost, receipt) or limit.is_changed
  end

  function window.add(limit, t, cost, receipt) limit.is_changed = L.log_add(limit.log, cost, receipt) or limit.is_changed end

  function window.report(limit, start, cost, receipt)
    limit.is_changed = L.log_report(limit.log, start, cost, receipt) or limit.is_changed
  end

  function window.redate(limit, t)
    L.log_redate(limit.log, t)
    limit.is_changed = true
  end

  function window.is_at_rest(limit, now) return L.log_until(limit.log, 0) <= now end

  function window.use(limit, now) return L.log_used(limit.log, now), limit.set.amount, L.log_until(limit.log, now) end

  return window
end

-- Pace: `first` and `first_ps` are the time of the first free number, `runs` and `counts` the taken ones beyond it.

function L.make.p()
  L.made('log')
  local pace = {}

  function pace.parse(text)
    local gap_us, gap_ps, amount, width = L.numbers_of(text, '^p,(%d+),(%d+),(%d+),(%d+)$')
    return gap_us and {law = pace, kind = 'p', gap_us = gap_us, gap_ps = gap_ps, amount = amount, width = width}
  end

  function pace.is_sound(set)  -- and what follows from them
    if not L.is_gap(set.gap_us, set.gap_ps) or set.amount > L.AMOUNT_MAX or set.width >= 2 ^ 50 then return false end
    local half_us, half_ps = math.floor(set.gap_us / 2), math.floor((set.gap_us % 2 * 1e6 + set.gap_ps) / 2)
    if half_us < L.LIFE then half_us, half_ps = L.LIFE, 0 end
    set.slack_us, set.slack_ps = set.gap_us - 1, set.gap_ps
    if L.is_less(half_us, half_ps, set.slack_us, set.slack_ps) then set.slack_us, set.slack_ps = half_us, half_ps end
    if set.slack_us < 1 then set.slack_us, set.slack_ps = 1, 0 end
    set.life_least, set.life_most = L.LIFE, math.max(L.LIFE, math.floor(math.min(set.width > 0 and set.width or L.SECOND, L.SECOND) / L.LIVES_MIN))
    set.gap, set.is_dated = math.max(1, set.gap_us), set.amount > 0
    return true
  end

  function L.later_by(limit, count)  -- moves the first number
    local us, ps = L.span(count, limit.gap_us, limit.gap_ps)
    us, ps = limit.us + us, limit.ps + ps
    if ps >= 1e6 then us, ps = us + 1, ps - 1e6 end
    limit.us, limit.ps = us, ps
  end

  L.RUN, L.ONE = L.form_of('r,%d,%d,%d,%d,%d,%d;'), L.form_of('%d,%d;')

  function L.shift(limit, count)  -- the first number is that count of them later
    L.later_by(limit, count)
    for index = 1, limit.size do limit.runs[index] = limit.runs[index] - count end
  end

  function L.over_at(limit, t)  -- how many numbers may not be used at a time any more
    local us, ps = t - limit.set.slack_us - limit.us, -limit.set.slack_ps - limit.ps
    while ps < 0 do us, ps = us - 1, ps + 1e6 end
    return us < 0 and 0 or L.level_of(us, ps, limit.gap_us, limit.gap_ps)
  end

  function L.beyond(limit, gap_us, gap_ps)  -- how far the number after all that are taken is beyond the first
    if limit.size == 0 then return 0, 0 end
    return L.span(limit.runs[limit.size] + limit.counts[limit.size], gap_us, gap_ps)
  end

  function L.end_of(limit, gap_us, gap_ps)
    local us, ps = L.beyond(limit, gap_us, gap_ps)
    us, ps = limit.us + us, limit.ps + ps
    if ps >= 1e6 then us, ps = us + 1, ps - 1e6 end
    return us, ps
  end

  function L.drop(limit)
    local over = L.over_at(limit, limit.now)
    while over > 0 and limit.size > 0 do
      local step = math.min(over, limit.runs[1])
      over = over - step
      if step == limit.runs[1] then
        local count = table.remove(limit.counts, 1)
        table.remove(limit.runs, 1)
        limit.size = limit.size - 1
        step, over = step + count, over - count
      end
      L.shift(limit, step)
    end
    if over > 0 then limit.us, limit.ps, limit.at = limit.now, 0, limit.now end
  end

  function pace.read(settings, text, now, begin)
    local log = L.new_log(settings, now)
    local limit = {law = pace, set = settings, now = now, foreseen = math.huge, log = log, us = now, ps = 0, at = now, born = now,
      gap_us = settings.gap_us, gap_ps = settings.gap_ps, size = 0, runs = {}, counts = {}, owed_us = 0, owed_ps = 0}
    if not text then
      L.begin_log(log)
      return limit
    end
    if string.sub(text, begin, begin + 1) ~= 'p2' or #text < begin + 89 then return nil end
    local us, ps, gap_us, gap_ps, at, born, size = struct.unpack('<ddddddd', text, begin + 2)
    if not (size >= 0 and begin + 89 + 16 * size <= #text and us <= now + L.AHEAD_MAX + 2 * 2 ^ 50 and at <= now + L.AHEAD_MAX and us >= 0
      and at >= 0 and born >= 0 and born < 2 ^ 53 and ps >= 0 and gap_us >= 0 and gap_ps >= 0 and L.is_gap(gap_us, gap_ps)) then return nil end
    limit.us, limit.ps, limit.at, limit.born, limit.size = us, ps, at, born, size
    if size > 0 then
      local values = {struct.unpack(L.doubles_of(2 * size), text, begin + 58)}
      for index = 1, size do limit.runs[index], limit.counts[index] = values[2 * index - 1], values[2 * index] end
    end
    local end_us, end_ps = L.end_of(limit, gap_us, gap_ps)
    if L.is_less(at, 0, end_us, end_ps) then limit.owed_us, limit.owed_ps = end_us - at, end_ps end
    if gap_us ~= settings.gap_us or gap_ps ~= settings.gap_ps then  -- each number that is ahead takes the new gap
      local last_us, last_ps = end_us - gap_us, end_ps - gap_ps
      if last_ps < 0 then last_us, last_ps = last_us - 1, last_ps + 1e6 end
      local count, begun = 1, math.max(now, at)
      if L.is_less(begun, 0, last_us, last_ps) then
        count = L.level_of(last_us - begun, last_ps, gap_us, gap_ps) + 1
        last_us, last_ps = begun, 0
      end
      limit.us, limit.ps, limit.size, limit.runs, limit.counts = last_us, last_ps, 0, {}, {}
      limit.born = math.max(now + 1, L.ceil_of(end_us, end_ps))
      L.later_by(limit, count)
    end
    L.drop(limit)
    return L.read_log(log, text, begin + 58 + 16 * size, now) and limit or nil
  end

  function pace.write(limit, head)
    local values, size = {limit.us, limit.ps, limit.gap_us, limit.gap_ps, limit.at, limit.born, limit.size}, 7
    for index = 1, limit.size do
      values[size + 1], values[size + 2] = limit.runs[index], limit.counts[index]
      size = size + 2
    end
    local first, ahead, more_ahead, lasts, more_lasts = L.write_log(limit.log)
    return head .. 'p2' .. struct.pack(L.doubles_of(size), unpack(values)) .. first .. ahead .. more_ahead .. lasts .. more_lasts
  end

  function L.free_at(limit, t, cost)  -- the first of the free numbers that may be used at a time or after it
    local number, runs, counts = L.over_at(limit, t), limit.runs, limit.counts
    if cost == 0 then cost = 1 end
    for index = 1, limit.size do
      local begin = runs[index]
      if number + cost <= begin then break end
      if begin + counts[index] > number then number = begin + counts[index] end
    end
    return number
  end

  function L.time_of(limit, number)
    local us, ps = limit.us, limit.ps
    if number > 0 then
      local more_us, more_ps = L.span(number, limit.gap_us, limit.gap_ps)
      us, ps = us + more_us, ps + more_ps
      if ps >= 1e6 then us, ps = us + 1, ps - 1e6 end
    end
    return us, ps
  end

  function L.phase(limit, t)  -- how much later the grid has to be for a number at a time; nil if one may be used then, or some are taken
    local late_us, late_ps = t - limit.us, -limit.ps
    if late_ps < 0 then late_us, late_ps = late_us - 1, late_ps + 1e6 end
    if limit.size > 0 or not L.is_less(limit.set.slack_us, limit.set.slack_ps, late_us, late_ps) then return nil end
    local count = L.level_of(late_us, late_ps, limit.gap_us, limit.gap_ps)
    local us, ps = L.span(count, limit.gap_us, limit.gap_ps)
    if L.is_less(late_us, late_ps, us, ps) then us, ps = L.span(count - 1, limit.gap_us, limit.gap_ps) end
    us, ps = late_us - us, late_ps - ps
    if ps < 0 then us, ps = us - 1, ps + 1e6 end
    if L.is_less(limit.set.slack_us, limit.set.slack_ps, us, ps) then return us, ps end
    return nil
  end

  function pace.earliest(limit, t, cost)
    local set, when, has_room = limit.set, t, limit.set.amount == 0
    if cost * set.gap_us >= 2 ^ 50 then return nil end
    while true do
      if not L.phase(limit, when) then
        local us = L.ceil_of(L.time_of(limit, L.free_at(limit, when, cost)))
        if us > when then when, has_room = us, set.amount == 0 end
      end
      if has_room then return when end
      local later = L.log_earliest(limit.log, when, math.min(cost, 1))
      if not later or later == when then return later end
      when, has_room = later, true
    end
  end

  function L.take_numbers(limit, number, count)
    local runs, counts, place = limit.runs, limit.counts, 1
    while place <= limit.size and runs[place] < number do place = place + 1 end
    if place <= limit.size and runs[place] == number + count then
      count = count + table.remove(counts, place)
      table.remove(runs, place)
      limit.size = limit.size - 1
    end
    if place > 1 and runs[place - 1] + counts[place - 1] == number then
      place = place - 1
      count, number = count + table.remove(counts, place), table.remove(runs, place)
      limit.size = limit.size - 1
    end
    if number > 0 then
      table.insert(runs, place, number)
      table.insert(counts, place, count)
      limit.size = limit.size + 1
    else
      L.shift(limit, count)
    end
  end

  function pace.take(limit, t, cost, life)
    if cost > 0 then
      local us, ps = L.phase(limit, t)
      if us then
        limit.born = math.max(limit.born, L.ceil_of(limit.us, limit.ps))
        limit.us, limit.ps = limit.us + us, limit.ps + ps
        if limit.ps >= 1e6 then limit.us, limit.ps = limit.us + 1, limit.ps - 1e6 end
      end
      L.take_numbers(limit, L.free_at(limit, t, cost), cost)
      limit.at, limit.is_changed = math.max(limit.at, t), true
    end
    return limit.set.amount > 0 and L.log_take(limit.log, t, cost, life) or t
  end

  function L.count_until(limit, us, ps, stop)  -- how many numbers from one at a time on are at another time or before it
    us, ps = stop - us, 1 - ps
    if ps < 0 then us, ps = us - 1, ps + 1e6 end
    return us < 0 and 0 or L.level_of(us, ps, limit.gap_us, limit.gap_ps)
  end

  function L.note_run(limit, tickets, us, ps, count)  -- tickets at numbers from a time on
    if count > 0 then
      tickets[#tickets + 1] = string.format(L.RUN, us, ps, limit.gap_us, limit.gap_ps, count, limit.set.amount > 0 and limit.set.part or 0)
    end
  end

  function L.after(limit, us, ps, count)  -- the time of a number that is some after that of another
    local more = ps + count * limit.gap_ps
    return us + count * limit.gap_us + (more - more % 1e6) / 1e6, more % 1e6
  end

  function L.run_in_log(limit, us, ps, latest, life, most, tickets)  -- counts tickets at numbers from a time on; how many, and the last time
    local log = limit.log
    local when, at = L.ceil_of(us, ps), 0
    if when > latest or (L.latest_in(log.ahead) or 0) > when then return 0 end
    L.forget(log)
    L.move(log, when)
    local part, lasts, index, rest, left = log.part, log.lasts, log.index, log.rest, most
    local first_us, first_ps, run = us, ps, 0  -- numbers in a row, each at its time
    while left > 0 and when <= latest do
      index, rest = L.skip(lasts, index, rest, when - log.width)
      local room, some = log.amount - rest, 1
      if room > 0 then
        local last, begin = L.rounded(log, when + life), when - when % part
        local stop = last - life  -- until which they have the same last moment, and begin in the same part
        if begin + part <= stop then stop = begin + part - 1 end
        if latest < stop then stop = latest end
        some = math.min(left, room, L.count_until(limit, us, ps, stop))
        L.note(log, last, begin, some)
        at, run = when, run + some
        if some > 1 then at = L.ceil_of(L.after(limit, us, ps, some - 1)) end
      else  -- a start before it was late: this one waits for that to leave the window, but not for the next number
        local later = L.record(lasts, index) + log.width + 1
        index, rest = L.skip(lasts, index, rest, later - log.width)
        if later > latest or later >= us + limit.set.slack_us or rest >= log.amount then break end
        local last = L.rounded(log, later + life)
        L.note(log, last, later - later % part, 1)
        L.note_run(limit, tickets, first_us, first_ps, run)
        tickets[#tickets + 1] = string.format(L.ONE, later, last)
        at = later
        run = 0
      end
      rest, left = rest + some, left - some
      us, ps = L.after(limit, us, ps, some)
      when = L.ceil_of(us, ps)
      if run == 0 then first_us, first_ps = us, ps end
    end
    L.note_run(limit, tickets, first_us, first_ps, run)
    return most - left, at
  end

  function pace.run(limit, t, latest, life, most, tickets)  -- takes some tickets of cost 1, a number each; how many, and the last time
    local number = L.free_at(limit, t, 1)
    local us, ps = L.time_of(limit, number)
    if us < t then return 0 end  -- this one is late
    if number < (limit.runs[1] or 0) then most = math.min(most, limit.runs[1] - number)
    elseif limit.size > 0 and number < limit.runs[limit.size] then return 0 end
    local count, last
    if limit.set.amount == 0 then
      count = math.min(most, L.count_until(limit, us, ps, latest))
      L.note_run(limit, tickets, us, ps, count)
      last = L.ceil_of(L.after(limit, us, ps, count - 1))
    else
      count, last = L.run_in_log(limit, us, ps, latest, life, most, tickets)
    end
    if count > 0 then
      limit.at, limit.is_changed = math.max(limit.at, last), true
      L.take_numbers(limit, number, count)
    end
    return count, last
  end

  function L.free_numbers(limit, number, count)
    if number < 0 then  -- count from the first of them
      local us, ps = L.span(-number, limit.gap_us, limit.gap_ps)
      limit.us, limit.ps = limit.us - us, limit.ps - ps
      if limit.ps < 0 then limit.us, limit.ps = limit.us - 1, limit.ps + 1e6 end
      for index = 1, limit.size do limit.runs[index] = limit.runs[index] - number end
      table.insert(limit.runs, 1, 0)
      table.insert(limit.counts, 1, -number)
      limit.size, number = limit.size + 1, 0
    end
    local runs, counts, size = {}, {}, 0
    for index = 1, limit.size do
      local first, stop = limit.runs[index], limit.runs[index] + limit.counts[index]
      local below, above = math.min(stop, number), math.max(first, number + count)
      if first < below then
        size = size + 1
        runs[size], counts[size] = first, below - first
      end
      if above < stop then
        size = size + 1
        runs[size], counts[size] = above, stop - above
      end
    end
    limit.runs, limit.counts, limit.size = runs, counts, size
    if size > 0 and runs[1] == 0 then
      local taken = table.remove(counts, 1)
      table.remove(runs, 1)
      limit.size = size - 1
      L.shift(limit, taken)
    end
  end

  function pace.give_back(limit, t, cost, receipt, is_whole)
    if limit.set.amount > 0 then limit.is_changed = L.log_give_back(limit.log, t, cost, receipt) or limit.is_changed end
    local is_over = limit.now - t > limit.set.slack_us or limit.us >= t + 2 ^ 50
    if is_whole and not is_over and t >= limit.born and limit.gap_us >= 2 then
      local number
      if L.is_less(t, 0, limit.us, limit.ps) then
        local us, ps = limit.us - t, limit.ps
        number = -L.level_of(us, ps, limit.gap_us, limit.gap_ps)
      else
        local us, ps = t - limit.us, -limit.ps + 1
        if ps < 0 then us, ps = us - 1, ps + 1e6 end
        number = L.level_of(us, ps, limit.gap_us, limit.gap_ps) - 1
      end
      L.free_numbers(limit, number, cost)
      limit.is_changed = true
    end
  end

  function pace.add(limit, t, cost, receipt)
    if limit.set.amount > 0 then L.log_add(limit.log, cost, receipt) end
    local left = cost
    while left > 0 and limit.size > 0 do
      local free = math.min(left, limit.runs[1])
      L.take_numbers(limit, 0, free)
      left = left - free
    end
    if limit.us < limit.now + 2 ^ 50 then L.later_by(limit, left) end
    limit.at, limit.is_changed = math.max(limit.at, limit.now), true
  end

  function pace.report(limit, start, cost, receipt)
    if limit.set.amount > 0 then limit.is_changed = L.log_report(limit.log, start, cost, receipt) or limit.is_changed end
  end

  function pace.redate(limit, t)
    local us, ps = limit.owed_us, limit.owed_ps
    if us >= 2 ^ 50 then us, ps = 2 ^ 50, 0 end
    limit.now, limit.at, limit.born, limit.us, limit.ps = t, t, t, t + us, ps
    limit.size, limit.runs, limit.counts, limit.is_changed = 0, {}, {}, true
    L.log_redate(limit.log, t)
  end

  function pace.is_at_rest(limit, now)
    if L.log_until(limit.log, 0) > now then return false end
    local us, ps = L.end_of(limit, limit.gap_us, limit.gap_ps)
    return L.ceil_of(us, ps) <= now
  end

  function pace.use(limit, now)
    local us, ps = L.end_of(limit, limit.gap_us, limit.gap_ps)
    local till = math.max(now, L.ceil_of(us, ps))
    if limit.set.amount == 0 then
      local used = limit.us >= now and L.level_of(limit.us - now, limit.ps, limit.gap_us, limit.gap_ps) or 0
      return used, 1, till
    end
    return L.log_used(limit.log, now), limit.set.amount, math.max(till, L.log_until(limit.log, now))
  end

  return pace
end

-- Quota: `used` of number - 2 to number + 1.

function L.make.q()
  local quota = {}

  function quota.parse(text)
    local amount, calendar, number, begin, stop, next_end, valid, late =
      L.numbers_of(text, '^q,(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$')
    return amount and {law = quota, kind = 'q', amount = amount, calendar = calendar, number = number, begin = begin, stop = stop,
      next_end = next_end, valid = valid, late = late}
  end

  function quota.is_sound(set)  -- and what follows from them
    local lead = set.valid + set.late
    set.life_least, set.life_most = set.valid, set.valid
    set.gap = set.amount > 0 and math.max(1, math.floor((set.stop - set.begin) / set.amount)) or 2 ^ 50
    return set.amount <= L.AMOUNT_MAX and set.number >= 1 and lead <= set.begin and math.max(set.valid, set.late) <= L.LATE_MAX
      and math.min(set.stop - set.begin, set.next_end - set.stop) > lead + set.late
  end

  L.Q1, L.Q1_TEXT = '^q1,(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$', L.form_of('q1,%d,%d,%d,%d,%d,%d,%d')

  function quota.read(settings, text, now, begin)
    local limit = {law = quota, set = settings, foreseen = settings.next_end - settings.valid - settings.late - 1,
      number = settings.number, born = now, used = {0, 0, 0, 0}}
    if not text then return limit end
    local n = {L.numbers_of(string.sub(text, begin), L.Q1)}
    if not n[1] or n[3] > now + L.AHEAD_MAX or math.max(n[4], n[5], n[6], n[7]) > L.AMOUNT_MAX then return nil end
    local used = limit.used
    if n[1] ~= settings.calendar then
      local total = math.min(math.min(n[4] + n[5], L.AMOUNT_MAX) + math.min(n[6] + n[7], L.AMOUNT_MAX), L.AMOUNT_MAX)
      for index = 1, 3 do used[index] = total end
      if now + L.AHEAD_MAX >= settings.stop - settings.valid - settings.late then used[4] = total end
      return limit
    end
    limit.number, limit.born = math.max(n[2], settings.number), n[3]
    local shift = math.min(limit.number - n[2], 4)
    for index = 1, 4 - shift do used[index] = n[3 + index + shift] end
    return limit
  end

  function quota.write(limit, head)
    return head .. string.format(L.Q1_TEXT, limit.set.calendar, limit.number, limit.born, unpack(limit.used))
  end

  function L.periods_of(set, t)  -- the first in which a ticket may be used, how many, until when; nil if nobody has said
    local lead = set.valid + set.late
    if t < set.begin - lead then return set.number - 1, 0, set.begin - lead end
    if t < set.begin + set.late then return set.number - 1, 2, set.begin + set.late end
    if t < set.stop - lead then return set.number, 1, set.stop - lead end
    if t < set.stop + set.late then return set.number, 2, set.stop + set.late end
    if t < set.next_end - lead then return set.number + 1, 1, set.next_end - lead end
    return set.number + 1, 0, nil
  end

  function L.used_in(limit, number)  -- all there can be, if that is forgotten
    local place = number - limit.number + 3
    if place < 1 then return L.AMOUNT_MAX end
    return limit.used[place] or 0
  end

  function quota.earliest(limit, t, cost)
    local set, when = limit.set, t
    if cost > set.amount then return nil end
    while when do
      local first, count, following = L.periods_of(set, when)
      local is_free = count > 0
      for number = first, first + count - 1 do is_free = is_free and L.used_in(limit, number) + cost <= set.amount end
      if is_free then return when end
      when = following
    end
    return math.max(t, set.next_end + set.late)
  end

  function quota.add(limit, t, cost, receipt)
    local first, count, following = L.periods_of(limit.set, t)
    local begin, stop = first - limit.number + 3, first - limit.number + 2 + count
    if count == 0 and following then begin, stop = 1, begin  -- some period before these
    elseif count == 0 then stop = 4 end  -- or after
    for place = math.max(begin, 1), math.min(stop, 4) do
      limit.used[place] = math.min(limit.used[place] + cost, L.AMOUNT_MAX)
      limit.is_changed = true
    end
  end

  function quota.take(limit, t, cost)
    if cost > 0 then quota.add(limit, t, cost, t) end
    return t
  end

  function quota.give_back(limit, t, cost, receipt)
    local first, count = L.periods_of(limit.set, t)
    local place = first - limit.number + 3
    if count == 1 and t >= limit.born and limit.used[place] then
      limit.used[place] = math.max(0, limit.used[place] - cost)
      limit.is_changed = true
    end
  end

  function quota.report() end  -- it counts by t alone

  function quota.redate(limit, t)
    limit.born, limit.is_changed = t + limit.set.valid + 1, true
  end

  function quota.is_at_rest(limit, now)
    if now >= limit.set.next_end + limit.set.late then return true end
    for place = math.max(1, L.periods_of(limit.set, now) - limit.number + 3), 4 do
      if limit.used[place] > 0 then return false end
    end
    return true
  end

  function quota.use(limit, now)
    local set = limit.set
    if now >= set.stop then return L.used_in(limit, set.number + 1), set.amount, set.next_end end
    return L.used_in(limit, set.number), set.amount, set.stop
  end

  return quota
end

-- Settings, which many limits share: by their text.

function L.between(value, least, most) return math.max(least, math.min(value, most)) end

function L.read_settings(text)
  local known = L.known_settings[text]
  if known then return known end
  local law = L.made(string.sub(text, 1, 1))
  local set = law and law.parse(text)
  if not set or not law.is_sound(set) then return nil end
  set.part = 1
  if set.is_dated and set.amount > L.PARTS then set.part = math.ceil(set.width / L.PARTS) end
  L.known_settings[text] = set
  return set
end

function L.read_limit(settings, state, now, begin)
  local set = L.read_settings(settings)
  if not set then return nil end
  return set.law.read(set, state ~= '' and state, now, begin or 1)
end

function L.life_of(settings, wanted)  -- of a ticket under some limits
  local least, most
  for _, set in ipairs(settings) do
    least, most = math.min(least or set.life_least, set.life_least), math.min(most or set.life_most, set.life_most)
  end
  return least and math.min(math.max(wanted, least), most) or L.LIFE_MAX
end

-- All of them at once.

function L.agreed_time(limits, costs, t)  -- the first time that all admit, and the last to raise it; nil if one never does
  local when, holder, agreed, place, count = t, nil, 0, 1, #limits
  while agreed < count do  -- in a row
    local limit = limits[place]
    local earliest = limit.law.earliest(limit, when, costs[place])
    if not earliest then return nil, place end
    if earliest > when then when, holder, agreed = earliest, place, 0 end
    agreed = agreed + 1
    place = place % count + 1
  end
  return when, holder
end
