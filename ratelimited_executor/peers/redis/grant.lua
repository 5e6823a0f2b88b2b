-- Grant permits of one rate to one peer of its group, by a plan for the whole group; or let the peer leave.
--
-- The rules are those of `Authority` in `_core/fleet/authority.py`, which is the same over plain values: one suite of tests
-- holds for both, and a change of a rule is one of both. Why they keep the rate: `docs/explanation/fleet.md`.
--
--     grant interval     k - 1            k                                       k + 1
--     the plan of k      made by the      granted at once, to whom asks for more: gone: what was not
--                        first call;      what is free, and what was planned      fetched has lapsed
--                        fetched by all   and not fetched
--
-- KEYS, in one slot of a cluster. Each may be lost or set back alone, by eviction or by hand.
--
--   state      a hash of the rate
--                version               VERSION of the script that has written it; 1 wrote none
--                run                   the run id of the server
--                epoch                 how many eras there have been
--                safe                  the first interval of which permits are granted in this era
--                last, calls           when the last call was, in microseconds; how many there were
--                grid, next            where the permits lie, and from when on elsewhere: 'g<interval in us>,<step>,<unit>,
--                                      <base>,<since>', step permits in unit intervals; next is empty if there is none
--                planned0, planned1    of each plan: '<interval>,<the call that changed it last>', 0 if it was lost
--   members    a hash: peer -> '<weight>,<demand>,<microseconds of its last call>,<rank>'
--                ranks                 who has which: a '1' for each rank from 0 on that a member has, else a '0'. So nobody
--                                      who joins need look at all members, unless it is not there, or not as many.
--   plan0      a hash: the plan of an even interval
--   plan1      and of an odd one
--                number, call          as noted in the state: else permits of it may have been granted and forgotten
--                count, stride, grid   its permits, and where they lie: rank r at place r * stride modulo count
--                peers                 how many it was made for
--                free                  ranks that nobody has: '<start>-<stop>,' for each range, stop left out
--                r:<peer>              ranks planned for a peer, until it fetches them
--                g:<peer>              ranks that it has fetched
--                a:<peer>              '<sequence>;<ranks>' that were granted at once, all of them so far
--                swept                 once the ranks of those who did not call are free
--   tickets    of `tickets.lua`, if processes share several limits by the same name; it is read alone
--
-- ARGS, the fields of `Request` in `_core/fleet/protocol.py`, where each is explained.
--
--   peer, weight                       who calls
--   urgent, soon, later                tasks that want permits: the demand
--   now, sequence                      permits of the running interval wanted at once, and the number of this wish
--   is_fetching                        whether permits of the next interval are asked for
--   step, unit, base, is_new_rate      the rate of the caller, and whether it is to be put in force
--   interval_us                        the grant interval, where none is in force
--   has_jumped, quarantine             whether this clock has stepped; how long a new era grants nothing
--   is_leaving                         whether this is the last call
--
-- REPLY, all texts: now, era, safe, rank, peers, grid, flaw; then, unless the peer leaves, what it has of the next interval
-- and of the running one: number, count, stride, grid, ranks of each, empty if it has nothing.
-- An error, if a later version of this script has written the state within a minute, and while other processes share several limits.
--
-- RULES
--
--   1. A permit is granted once: what is granted leaves the plan's `free` and `r:`. A call that is repeated gets the same.
--   2. The state notes a change of a plan before the plan is changed. If anything fails in between, or either is lost or set
--      back, the two differ, and no more of that interval is granted.
--   3. A new era grants nothing until the permits of the last one have lapsed. It begins with another run of the server, a
--      clock that went back, a jump that a peer reports, and a state that no script can have written.
--   4. Time is the server's own. That needs the replication of effects, the default since Redis 5.
--   5. Numbers are doubles: all stay below 2^53, where integers are exact. `whole` writes them, as `..` keeps 14 digits.
--   6. What is read is checked before it is believed: `natural`, `grid_of`, `member_of`, `is_sound`, `find`.

local STALE_INTERVALS, FORGET_US, STEP_US, LATE_US, LOOK_COUNT = 3, 300000000, 1000, 200000, 256
local JUMP_INTERVALS, OTHERS_US = 3, 3000000
local QUARANTINE_MAX_US, ABANDONED_US, WHOLE_MAX, UNIT_MAX, AGE_MAX = 60000000, 60000000, 2 ^ 53, 2 ^ 50, 2 ^ 31
local GOLDEN, TRIES, ROUNDING = 0.6180339887498949, 24, 1e-6
local STATE_MS, CLOSED_MS, FILLER, RANK_MAX = 86400000, 30000, string.rep(' ', 65), 2 ^ 20

local function whole(number) return string.format('%.0f', number) end

local weight, sequence = args.weight, whole(args.sequence)  -- as texts, which are compared and kept
local urgent, soon, later = args.urgent, args.soon, args.later  -- less what is granted

local function natural(text)  -- nil if it is no integer from 0 to below 2 ^ 53
  local number = text and string.find(text, '^%d+$') and tonumber(text)
  return number and number < WHOLE_MAX and number or nil
end

-- The grid.

local function grid_text(g)  -- with a letter before it, on which scripts of version 1 fail
  g.text = g.text or string.format('g%.0f,%.0f,%.0f,%.0f,%.0f', g.interval, g.step, g.unit, g.base, g.since)
  return g.text
end

local grids = {}  -- by their text: most plans go by the grid in force

local function grid_of(text, now)  -- nil if nobody can have written it
  if grids[text or ''] then return grids[text] end
  local interval, step, unit, base, since = string.match(text or '', '^g(%d+),(%d+),(%d+),(%d+),(%d+)$')
  if not interval then return nil end
  local g = {interval = tonumber(interval), step = tonumber(step), unit = tonumber(unit), base = tonumber(base),
    since = tonumber(since), text = text}
  if g.interval < 50000 or g.interval > 5000000 or g.unit < 1 or g.unit > UNIT_MAX or g.step == math.huge
    or g.base > g.unit or math.abs(math.floor(now / g.interval) - g.since) >= AGE_MAX then return nil end
  grids[text] = g
  return g
end

local function first_of(g, number)  -- permits before an interval, and by how much the first of it comes after its begin
  local rest = math.fmod(g.step, g.unit)
  local x = number - g.since
  local sum = g.base + rest * x
  local left = math.fmod(sum, g.unit)
  if left < 0 then left = left + g.unit end
  local count = (g.step - rest) / g.unit * x + (sum - left) / g.unit
  if left == 0 then return count, 0 end
  return count + 1, (g.unit - left) / g.unit
end

local function with_rate(g, step, unit, since)
  local left = math.fmod(g.base + math.fmod(g.step, g.unit) * (since - g.since), g.unit)
  if left < 0 then left = left + g.unit end
  local base = math.min(unit - 1, math.floor(left / g.unit * unit))
  if left > 0 then base = math.max(base, 1) end
  return {interval = g.interval, step = step, unit = unit, base = base, since = since}
end

-- Which permits.

local function worst_quotient(high, low)
  local worst = 0
  while low > 0 do
    local quotient = math.floor(high / low)
    if quotient > worst then worst = quotient end
    high, low = low, high % low
  end
  return high == 1 and worst or math.huge
end

local function stride_of(count)
  local near, best, best_quotient = math.floor(count * GOLDEN + 0.5), 1, math.huge
  for distance = 0, TRIES - 1 do
    for sign = -1, 1, 2 do
      local candidate = near + sign * distance
      if candidate > 0 and candidate < count then
        local quotient = worst_quotient(count, candidate)
        if quotient < best_quotient then best, best_quotient = candidate, quotient end
      end
    end
  end
  return best
end

local function ranges_of(text, count)  -- 'start-stop,start-stop,' of ranks below the count; stop is left out of the range
  local ranges = {}
  for start, stop in string.gmatch(text or '', '(%d+)-(%d+),') do
    start, stop = tonumber(start), tonumber(stop)
    if start <= stop and stop <= count then ranges[#ranges + 1] = {start, stop} end
  end
  return ranges
end

local function text_of(ranges)
  local parts = {}
  for _, range in ipairs(ranges) do
    if range[2] > range[1] then parts[#parts + 1] = string.format('%d-%d,', range[1], range[2]) end
  end
  return table.concat(parts)
end

-- The state.

local time = redis.call('TIME')
local told = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = told
local info = redis.call('INFO', 'server')
local run = string.match(info, '^run_id:(%x+)', (string.find(info, 'run_id:', 1, true)))  -- a plain search is faster
local FIELDS = {'run', 'epoch', 'safe', 'last', 'calls', 'grid', 'next', 'planned0', 'planned1', 'version'}
local values = redis.call('HMGET', keys.state, unpack(FIELDS))
local is_known, version = false, tonumber(values[10] or 1) or VERSION
for index = 1, 10 do is_known = is_known or values[index] ~= false end
local epoch, safe, last, calls = natural(values[2]), natural(values[3]), natural(values[4]), natural(values[5])
if version > VERSION and last and math.abs(now - last) < ABANDONED_US then
  return redis.error_reply('ERR ratelimited_executor: this group speaks version ' .. version .. ' of the protocol, this process '
    .. VERSION .. ': install one release in all processes')
end
local shared = tonumber(string.match(redis.call('HMGET', keys.tickets, 'state')[1] or '', '^%d+,%d+,(%d+),') or '')
if shared and not args.is_leaving and math.abs(now - shared) < math.max(OTHERS_US, 3 * args.interval_us) then
  return redis.error_reply('ERR ratelimited_executor: other processes of this group share several limits of this executor, this one '
    .. 'shares one pace (a single rate, no key_rate): it starts nothing until those have gone')
end
local grid = grid_of(values[6], now)
local next_grid = values[7] and values[7] ~= '' and grid_of(values[7], now) or nil
local planned = {}  -- of each plan: its interval, and the call that changed it last; 0 if it was lost
for index = 0, 1 do
  local interval, call = string.match(values[8 + index] or '', '^(%d+),(%d+)$')
  planned[index] = {tonumber(interval or -1), tonumber(call or 0)}
end

local function gap_of(g)  -- intervals from one permit to the next; 0 if there are no permits
  return g.step > 0 and g.unit / g.step or 0
end

local function is_sound()
  if not (epoch and safe and last and calls and grid and (next_grid or values[7] == '')) then return false end
  if (planned[0][1] < 0) ~= (values[8] == '') or (planned[1][1] < 0) ~= (values[9] == '') then return false end
  if now < last - STEP_US then return true end  -- the clock has gone back: nothing else of it counts
  local current = math.floor(math.max(now, last) / grid.interval)
  local gap = math.max(gap_of(grid), gap_of(next_grid or grid))
  return safe <= current + 4 + math.floor((QUARANTINE_MAX_US + LATE_US) / grid.interval) + gap
    and math.max(planned[0][1], planned[1][1]) <= current + 1
    and (not next_grid or (next_grid.interval == grid.interval and next_grid.since <= current + 2))
end

local flaw = ''
if is_known and (version ~= VERSION or not is_sound()) then
  flaw = version == VERSION and 'state' or 'version'
  next_grid, epoch, calls, last = nil, epoch or math.floor(now / 1000000), calls or 0, now
end
epoch, safe, last, calls = epoch or 0, safe or 0, last or 0, (calls or 0) + 1
if not grid then
  grid = {interval = args.interval_us, step = args.step, unit = args.unit, base = args.base,
    since = math.floor(now / args.interval_us)}
end

local function begin_era(first_safe)
  epoch, safe, planned = epoch + 1, first_safe, {[0] = {-1, 0}, {-1, 0}}
  redis.call('DEL', keys.plan0, keys.plan1)
end

local has_gone_back = now < last - STEP_US
if has_gone_back then
  local latest = next_grid or grid
  grid, next_grid = with_rate(grid, latest.step, latest.unit, math.floor(now / grid.interval)), nil
end
local function lapse_intervals()  -- until no permit of the last era may be used any more, and then a gap between two
  local gap = gap_of(next_grid or grid)
  if args.is_new_rate then gap = math.max(gap, gap_of(args)) end
  return gap >= 1 and 1 + math.ceil(gap + LATE_US / grid.interval) or 0
end

if flaw ~= '' or has_gone_back or values[1] ~= run then
  begin_era(math.floor(now / grid.interval) + 2 + math.max(args.quarantine, lapse_intervals()))
else
  now = math.max(now, last)
  if args.has_jumped then
    begin_era(math.max(safe, math.floor(now / grid.interval) + 2 + math.max(JUMP_INTERVALS - 1, lapse_intervals())))
  end
end
local number = math.floor(now / grid.interval)
if next_grid and number >= next_grid.since then grid, next_grid = next_grid, nil end
local latest = next_grid or grid
if args.is_new_rate and (latest.step ~= args.step or latest.unit ~= args.unit) then
  local since = number  -- the first interval that has no plan
  for interval = number, number + 1 do
    if planned[interval % 2][1] == interval then since = interval + 1 end
  end
  if next_grid and next_grid.since < since then grid = next_grid end  -- the plan of that interval goes by it
  next_grid = with_rate(grid, args.step, args.unit, since)
  if since == number then grid, next_grid = next_grid, nil end
  -- Of a slow rate a quarantine is long: it is shorter from the moment on at which a faster one is put in force.
  safe = math.min(safe, number + 2 + math.max(args.quarantine, lapse_intervals()))
end

local function planned_text(index)
  return planned[index][1] < 0 and '' or whole(planned[index][1]) .. ',' .. whole(planned[index][2])
end

local is_kept = false

local function keep_state()  -- of its fields, which are many and long, those that have changed
  is_kept = true
  local texts, changed = {run, whole(epoch), whole(safe), whole(now), whole(calls), grid_text(grid),
    next_grid and grid_text(next_grid) or '', planned_text(0), planned_text(1), whole(VERSION)}, {}
  for index, text in ipairs(texts) do
    if text ~= values[index] then changed[#changed + 1], changed[#changed + 2] = FIELDS[index], text end
  end
  redis.call('HSET', keys.state, unpack(changed))  -- never none: the number of calls is another one
end

local function note(interval, call)  -- before the plan is changed: if anything fails in between, no more of it is granted
  local noted = planned[interval % 2]
  if is_kept and noted[1] == interval and noted[2] == call then return end
  planned[interval % 2] = {interval, call}
  if is_kept then redis.call('HSET', keys.state, 'planned' .. interval % 2, planned_text(interval % 2))
  else keep_state() end
end

local function grid_for(interval)
  return next_grid and interval >= next_grid.since and next_grid or grid
end

local function find(interval)  -- nil if there is no plan, or something of it was lost or set back
  local key, noted = keys['plan' .. interval % 2], planned[interval % 2]
  local head = redis.call('HMGET', key, 'number', 'call', 'count', 'stride', 'grid', 'peers', 'free')
  local found = tonumber(head[1] or -1) or -1
  if head[1] and noted[1] == found and noted[2] == tonumber(head[2]) then
    if found ~= interval then return nil end
    local g, count, stride = grid_of(head[5], now), natural(head[3]), natural(head[4])
    if g and count and stride and count == first_of(g, interval + 1) - first_of(g, interval)
      and worst_quotient(count, stride) < math.huge then
      return {key = key, number = interval, count = count, stride = stride, grid = head[5],
        peers = whole(natural(head[6]) or 0), free = ranges_of(head[7], count)}
    end
  end
  if (noted[1] == interval and noted[2] > 0) or (noted[1] < interval and found >= interval) then
    note(interval, 0)
    if flaw == '' then flaw = 'plan' end
  end
  return nil
end

-- Members: weight, demand, when seen, rank.

local function member_of(text)  -- nil if nobody can have written it
  local w, demand, seen, rank = string.match(text, '^([^,]+),(%d+),(%d+),(%d+)$')
  w, rank = tonumber(w), tonumber(rank)
  if w and w > 0 and w < math.huge and rank < RANK_MAX then return w, tonumber(demand), tonumber(seen), rank end
end

local known = redis.call('HMGET', keys.members, args.peer, 'ranks')
local stored, ranks = known[1], known[2]
local demand, rank = later, nil
if stored then
  local _
  _, demand, _, rank = member_of(stored)
  demand = demand or later
end

local function with_rank(mark)  -- the ranks, with one of them given or taken
  return string.sub(ranks, 1, rank) .. mark .. string.sub(ranks, rank + 2)
end

if args.is_leaving then
  redis.call('HDEL', keys.members, args.peer)
  local is_last = redis.call('HLEN', keys.members) == (known[2] and 1 or 0)
  if is_last then redis.call('DEL', keys.members)
  elseif rank and ranks then redis.call('HSET', keys.members, 'ranks', with_rank('0')) end
  local plan = find(number + 1)
  if plan then  -- what it was granted of an interval that has not begun is free again
    local mine = redis.call('HMGET', plan.key, 'free', 'r:' .. args.peer, 'g:' .. args.peer)
    note(number + 1, calls)
    redis.call('HSET', plan.key, 'call', whole(calls), 'free', (mine[1] or '') .. (mine[2] or '') .. (mine[3] or ''),
      'g:' .. args.peer, '')
    redis.call('HDEL', plan.key, 'r:' .. args.peer)
  end
  if not is_kept then keep_state() end
  if is_last then redis.call('PEXPIRE', keys.state, CLOSED_MS) end
  return {whole(told), run .. ':' .. whole(epoch), whole(safe), whole(rank or 0), '0', grid_text(grid_for(number + 1)), flaw}
end
if not rank then
  if not ranks or select(2, string.gsub(ranks, '[^0]', '')) ~= redis.call('HLEN', keys.members) - 1 then
    local all, marks, most = redis.call('HGETALL', keys.members), {}, 0
    for index = 2, #all, 2 do
      local _, _, _, other = member_of(all[index])
      if other then marks[other + 1], most = '1', math.max(most, other + 1) end
    end
    for place = 1, most do marks[place] = marks[place] or '0' end
    ranks = table.concat(marks, '', 1, most)
  end
  rank = (string.find(ranks, '0', 1, true) or #ranks + 1) - 1
  ranks = with_rank('1')
  redis.call('HSET', keys.members, 'ranks', ranks)
end

local kept_demand = nil

local function keep_member()
  if demand == kept_demand then return end
  kept_demand = demand
  redis.call('HSET', keys.members, args.peer, weight .. ',' .. whole(demand) .. ',' .. whole(now) .. ',' .. whole(rank))
end

-- Plans.

local function share_out(interval, count, parts)  -- adds the range of each peer; returns the first rank left, and peers
  local stale, forget = now - STALE_INTERVALS * grid.interval, now - FORGET_US
  local names, weights, demands, total = {}, {}, {}, 0
  keep_member()  -- who makes the plan is among those for whom it is made
  local all = redis.call('HGETALL', keys.members)
  for index = 1, #all, 2 do
    local w, d, seen = member_of(all[index + 1])
    if all[index] ~= 'ranks' and (not w or seen < forget) then
      redis.call('HDEL', keys.members, all[index])
    elseif w and seen >= stale and seen <= now then
      names[#names + 1], weights[#weights + 1], demands[#demands + 1] = all[index], w, d
      total = total + d
    end
  end
  local water = math.huge
  if total > count then
    local supply, open = count, {}
    for index = 1, #names do open[index] = index end
    while true do
      local sum = 0
      for _, index in ipairs(open) do sum = sum + weights[index] end
      water = supply / sum
      local left = {}
      for _, index in ipairs(open) do
        if demands[index] <= weights[index] * water then supply = supply - demands[index]
        else left[#left + 1] = index end
      end
      if #left == 0 or #left == #open then break end
      open = left
    end
  end
  local running, done = (interval * GOLDEN) % 1, 0
  local begun = math.floor(running + ROUNDING)
  for index = 1, #names do
    running = running + math.min(demands[index], weights[index] * water)
    local stop = math.min(math.floor(running + ROUNDING) - begun, count)
    if stop > done then
      parts[#parts + 1] = 'r:' .. names[index]
      parts[#parts + 1] = string.format('%d-%d,', done, stop)
      done = stop
    end
  end
  return done, #names
end

local function plan_of(interval, is_upcoming)  -- nil where it was lost, or a later one is in its place
  local found = find(interval)
  if found or planned[interval % 2][1] >= interval then return found end
  local g = grid_for(interval)
  if interval < g.since then return nil end
  local count = first_of(g, interval + 1) - first_of(g, interval)
  local parts, done, peers = {}, 0, 0
  if is_upcoming then done, peers = share_out(interval, count, parts) end
  local key = keys['plan' .. interval % 2]
  local plan = {key = key, number = interval, count = count, stride = stride_of(count), grid = grid_text(g),
    peers = tostring(peers), free = {{done, count}}}
  note(interval, calls)
  redis.call('DEL', key)
  -- The long value makes a hash table of it at once: as a list it would be searched field by field, with hundreds of peers.
  redis.call('HSET', key, 'number', whole(interval), 'call', whole(calls), 'count', whole(count), 'stride', whole(plan.stride),
    'grid', plan.grid, 'peers', plan.peers, 'free', text_of(plan.free), 'long', FILLER)
  for index = 1, #parts, 512 do
    redis.call('HSET', key, unpack(parts, index, math.min(index + 511, #parts)))
  end
  redis.call('PEXPIRE', key, math.ceil(grid.interval / 1000) * 8)
  redis.call('PEXPIRE', keys.state, STATE_MS)
  redis.call('PEXPIRE', keys.members, STATE_MS)
  return plan
end

local function fetch(interval)
  local plan = plan_of(interval, true)
  if not plan then return nil end
  local mine = redis.call('HMGET', plan.key, 'g:' .. args.peer, 'r:' .. args.peer)
  if mine[1] then return plan, text_of(ranges_of(mine[1], plan.count)) end
  local share = ranges_of(mine[2], plan.count)[1] or {0, 0}
  local taken = math.min(share[2] - share[1], soon)
  local got = {{share[1], share[1] + taken}}
  local is_free_changed = share[1] + taken < share[2]
  if is_free_changed then plan.free[#plan.free + 1] = {share[1] + taken, share[2]} end
  while urgent > taken and #plan.free > 0 do
    local part = table.remove(plan.free)
    local count = math.min(part[2] - part[1], urgent - taken)
    if part[1] + count < part[2] then plan.free[#plan.free + 1] = {part[1] + count, part[2]} end
    got[#got + 1] = {part[1], part[1] + count}
    taken = taken + count
    is_free_changed = true
  end
  local text = text_of(got)
  note(interval, calls)
  if is_free_changed then
    redis.call('HSET', plan.key, 'call', whole(calls), 'g:' .. args.peer, text, 'free', text_of(plan.free))
  else
    redis.call('HSET', plan.key, 'call', whole(calls), 'g:' .. args.peer, text)
  end
  if mine[2] then redis.call('HDEL', plan.key, 'r:' .. args.peer) end
  demand = math.max(0, later - taken)
  return plan, text
end

local function ask_at_once(interval)
  local plan = plan_of(interval, false)
  if not plan then return nil end
  local asked, swept = unpack(redis.call('HMGET', plan.key, 'a:' .. args.peer, 'swept'))
  local text = ''
  if asked then
    local before
    before, text = string.match(asked, '^(%d*);?(.*)$')
    text = text_of(ranges_of(text, plan.count))
    if before == sequence then return plan, text end
  end
  if not swept then  -- what was planned for those who did not call
    note(interval, calls)
    local all, unfetched, ranges = redis.call('HGETALL', plan.key), {'swept'}, {}
    for index = 1, #all, 2 do
      if string.sub(all[index], 1, 2) == 'r:' then
        for _, range in ipairs(ranges_of(all[index + 1], plan.count)) do ranges[#ranges + 1] = range end
        unfetched[#unfetched + 1] = all[index]
      end
    end
    table.sort(ranges, function(one, other) return one[1] < other[1] end)  -- a hash table has an order of its own
    for _, range in ipairs(ranges) do plan.free[#plan.free + 1] = range end
    for index = 2, #unfetched, 512 do
      redis.call('HDEL', plan.key, unpack(unfetched, index, math.min(index + 511, #unfetched)))
    end
    redis.call('HSET', plan.key, 'call', whole(calls), 'swept', '1')
  end
  if #plan.free == 0 and not asked then return plan, '' end
  local g = grid_of(plan.grid, now)
  local _, ahead = first_of(g, interval)
  local earliest = 0
  if g.step > 0 then earliest = math.ceil((now / g.interval - interval) * (g.step / g.unit) - ahead) end
  local looked, count = {}, 0
  while #plan.free > 0 and count < LOOK_COUNT do
    local part = table.remove(plan.free)
    local stop = math.min(part[2], part[1] + LOOK_COUNT - count)
    if stop < part[2] then plan.free[#plan.free + 1] = {stop, part[2]} end
    count = count + stop - part[1]
    for place_rank = part[1], stop - 1 do
      local place = (place_rank * plan.stride) % plan.count
      if place >= earliest then looked[#looked + 1] = {place, place_rank} end
    end
  end
  table.sort(looked, function(one, other) return one[1] < other[1] end)
  local got = {}
  for index, entry in ipairs(looked) do
    local single = {entry[2], entry[2] + 1}
    if index <= args.now then got[#got + 1] = single else plan.free[#plan.free + 1] = single end
  end
  text = text .. text_of(got)
  note(interval, calls)
  redis.call('HSET', plan.key, 'call', whole(calls), 'a:' .. args.peer, sequence .. ';' .. text, 'free', text_of(plan.free))
  urgent, soon, later = math.max(0, urgent - #got), math.max(0, soon - #got), math.max(0, later - #got)
  return plan, text
end

local running_plan, running_text, plan, text
if number >= safe and args.now > 0 then running_plan, running_text = ask_at_once(number) end
if number + 1 >= safe and args.is_fetching then plan, text = fetch(number + 1) end
keep_member()
if not is_kept then keep_state() end
if not stored then
  redis.call('PEXPIRE', keys.state, STATE_MS)
  redis.call('PEXPIRE', keys.members, STATE_MS)
end

local reply = {whole(told), run .. ':' .. whole(epoch), whole(safe), whole(rank),
  plan and plan.peers or whole(redis.call('HLEN', keys.members) - (ranks and 1 or 0)), grid_text(grid_for(number + 1)), flaw}
for _, grant in ipairs({{plan or false, text or ''}, {running_plan or false, running_text or ''}}) do
  if grant[1] then
    reply[#reply + 1] = whole(grant[1].number)
    reply[#reply + 1] = whole(grant[1].count)
    reply[#reply + 1] = whole(grant[1].stride)
    reply[#reply + 1] = grant[1].grid
    reply[#reply + 1] = grant[2]
  else
    for _ = 1, 5 do reply[#reply + 1] = '' end
  end
end
return reply
