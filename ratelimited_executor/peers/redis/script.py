"""The script that grants permits in Redis: the rules of :class:`~ratelimited_executor._core.fleet.authority.Authority`.

Keys: the state of the rate, its members, and the plans of even and of odd grant intervals. All of a group share one hash
tag, so that they lie in one slot of a cluster. Times are the server's own (``TIME``), which needs the replication of
effects: the default since Redis 5. ``INFO server`` names the run of the server, so that a restart or a failover is
noticed at the first call.

Numbers are doubles in Lua: all are kept below 2**53, where integers are exact (see ``_core/fleet/grid.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.grid import FleetGrid
from ratelimited_executor._core.fleet.protocol import NO_GRANT, Grant, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._core.fleet.protocol import Request

__all__ = ["SCRIPT", "arguments_of", "keys_of", "reply_of"]

SCRIPT: Final = """\
local KEY_STATE, KEY_MEMBERS = KEYS[1], KEYS[2]
local id, weight = ARGV[1], ARGV[2]
local urgent, soon, later, want = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local sequence, want_step, want_unit = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local is_new_rate, has_jumped, is_leaving, is_fetching = ARGV[10] == '1', ARGV[11] == '1', ARGV[12] == '1', ARGV[13] == '1'
local want_interval, quarantine = tonumber(ARGV[14]), tonumber(ARGV[15])

local STALE_INTERVALS, FORGET_US, STEP_US, LEAD_INTERVALS, JUMP_INTERVALS, LOOK_COUNT = 3, 300000000, 1000, 3, 3, 256
local GOLDEN, TRIES, ROUNDING = 0.6180339887498949, 24, 1e-6
local STATE_MS, CLOSED_MS, FILLER = 86400000, 30000, string.rep(' ', 65)

local function whole(number) return string.format('%.0f', number) end

-- The grid.

local function grid_text(g)
  return whole(g.interval) .. ',' .. whole(g.step) .. ',' .. whole(g.unit) .. ',' .. whole(g.base) .. ',' .. whole(g.since)
end

local function grid_of(text)
  local interval, step, unit, base, since = string.match(text, '([^,]+),([^,]+),([^,]+),([^,]+),([^,]+)')
  return {interval = tonumber(interval), step = tonumber(step), unit = tonumber(unit), base = tonumber(base),
    since = tonumber(since)}
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

local function ranges_of(text)  -- 'start-stop,start-stop,' with stop left out of the range
  local ranges = {}
  for start, stop in string.gmatch(text or '', '(%d+)-(%d+),') do
    ranges[#ranges + 1] = {tonumber(start), tonumber(stop)}
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
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local values = redis.call('HMGET', KEY_STATE, 'run', 'epoch', 'safe', 'last', 'grid', 'next')
local epoch, safe, last = tonumber(values[2] or 0), tonumber(values[3] or 0), tonumber(values[4] or 0)
local grid = values[5] and grid_of(values[5])
local next_grid = values[6] and values[6] ~= '' and grid_of(values[6]) or nil
if not grid then
  grid = {interval = want_interval, step = want_step, unit = want_unit, base = 0, since = math.floor(now / want_interval)}
end

local function begin_era(first_safe)
  epoch, safe = epoch + 1, first_safe
  redis.call('DEL', KEYS[3], KEYS[4])
end

if now < last - STEP_US then
  local first = math.floor(now / grid.interval)
  grid = with_rate(grid, grid.step, grid.unit, first)
  if next_grid then
    next_grid = with_rate(grid, next_grid.step, next_grid.unit, math.min(next_grid.since, first + LEAD_INTERVALS))
  end
end
if values[1] ~= run or now < last - STEP_US then
  begin_era(math.floor(now / grid.interval) + 2 + quarantine)
else
  now = math.max(now, last)
  if has_jumped then begin_era(math.max(safe, math.floor(now / grid.interval) + 1 + JUMP_INTERVALS)) end
end
local number = math.floor(now / grid.interval)
if next_grid and number >= next_grid.since then grid, next_grid = next_grid, nil end
local latest = next_grid or grid
if is_new_rate and (latest.step ~= want_step or latest.unit ~= want_unit) then
  if next_grid and next_grid.since <= number + 1 then grid = next_grid end
  next_grid = with_rate(grid, want_step, want_unit, number + LEAD_INTERVALS)
end
redis.call('HSET', KEY_STATE, 'run', run, 'epoch', whole(epoch), 'safe', whole(safe), 'last', whole(now),
  'grid', grid_text(grid), 'next', next_grid and grid_text(next_grid) or '')

local function grid_for(interval)
  return next_grid and interval >= next_grid.since and next_grid or grid
end

-- Members: weight, demand, when seen, rank.

local function member_of(text)
  local w, demand, seen, rank = string.match(text, '([^,]+),([^,]+),([^,]+),([^,]+)')
  return tonumber(w), tonumber(demand), tonumber(seen), rank
end

local stored = redis.call('HGET', KEY_MEMBERS, id)
local demand, rank = later, nil
if stored then
  local _
  _, demand, _, rank = member_of(stored)
end
if is_leaving then
  redis.call('HDEL', KEY_MEMBERS, id)
  local key = KEYS[3 + (number + 1) % 2]  -- what it was granted of an interval that has not begun is free again
  local head = redis.call('HMGET', key, 'number', 'free', 'r:' .. id, 'g:' .. id)
  if head[1] and tonumber(head[1]) == number + 1 then
    redis.call('HSET', key, 'free', head[2] .. (head[3] or '') .. (head[4] or ''), 'g:' .. id, '')
    redis.call('HDEL', key, 'r:' .. id)
  end
  if redis.call('HLEN', KEY_MEMBERS) == 0 then redis.call('PEXPIRE', KEY_STATE, CLOSED_MS) end
  return {whole(told), run .. ':' .. whole(epoch), whole(safe), rank or '0', '0', grid_text(grid_for(number + 1))}
end
if not rank then
  local taken = {}
  for _, text in ipairs(redis.call('HVALS', KEY_MEMBERS)) do
    local _, _, _, other = member_of(text)
    taken[other] = true
  end
  local candidate = 0
  while taken[tostring(candidate)] do candidate = candidate + 1 end
  rank = tostring(candidate)
end

local function keep_member()
  redis.call('HSET', KEY_MEMBERS, id, weight .. ',' .. whole(demand) .. ',' .. whole(now) .. ',' .. rank)
end

keep_member()

-- Plans.

local function plan_key(interval) return KEYS[3 + interval % 2] end

local function share_out(interval, count, parts)  -- adds the range of each peer; returns the first rank left, and peers
  local stale, forget = now - STALE_INTERVALS * grid.interval, now - FORGET_US
  local names, weights, demands, total = {}, {}, {}, 0
  local all = redis.call('HGETALL', KEY_MEMBERS)
  for index = 1, #all, 2 do
    local w, d, seen = member_of(all[index + 1])
    if seen < forget then
      redis.call('HDEL', KEY_MEMBERS, all[index])
    elseif seen >= stale and seen <= now then
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

local function plan_of(interval, is_upcoming)  -- nil where a later plan is in its place
  local key = plan_key(interval)
  local head = redis.call('HMGET', key, 'number', 'count', 'stride', 'grid', 'peers', 'free')
  if head[1] and tonumber(head[1]) >= interval then
    if tonumber(head[1]) > interval then return nil end
    return {key = key, number = interval, count = tonumber(head[2]), stride = tonumber(head[3]), grid = head[4],
      peers = head[5], free = ranges_of(head[6])}
  end
  local g = grid_for(interval)
  if interval < g.since then return nil end
  local count = first_of(g, interval + 1) - first_of(g, interval)
  local parts, done, peers = {}, 0, 0
  if is_upcoming then done, peers = share_out(interval, count, parts) end
  local plan = {key = key, number = interval, count = count, stride = stride_of(count), grid = grid_text(g),
    peers = tostring(peers), free = {{done, count}}}
  redis.call('DEL', key)
  -- The long value makes a hash table of it at once: as a list it would be searched field by field, with hundreds of peers.
  redis.call('HSET', key, 'number', whole(interval), 'count', whole(count), 'stride', whole(plan.stride),
    'grid', plan.grid, 'peers', plan.peers, 'free', text_of(plan.free), 'long', FILLER)
  for index = 1, #parts, 512 do
    redis.call('HSET', key, unpack(parts, index, math.min(index + 511, #parts)))
  end
  redis.call('PEXPIRE', key, math.ceil(grid.interval / 1000) * 8)
  redis.call('PEXPIRE', KEY_STATE, STATE_MS)
  redis.call('PEXPIRE', KEY_MEMBERS, STATE_MS)
  return plan
end

local function fetch(interval)
  local plan = plan_of(interval, true)
  if not plan then return nil end
  local mine = redis.call('HMGET', plan.key, 'g:' .. id, 'r:' .. id)
  if mine[1] then return plan, mine[1] end
  local planned = ranges_of(mine[2])[1] or {0, 0}
  local taken = math.min(planned[2] - planned[1], soon)
  local got = {{planned[1], planned[1] + taken}}
  local is_free_changed = planned[1] + taken < planned[2]
  if is_free_changed then plan.free[#plan.free + 1] = {planned[1] + taken, planned[2]} end
  while urgent > taken and #plan.free > 0 do
    local part = table.remove(plan.free)
    local count = math.min(part[2] - part[1], urgent - taken)
    if part[1] + count < part[2] then plan.free[#plan.free + 1] = {part[1] + count, part[2]} end
    got[#got + 1] = {part[1], part[1] + count}
    taken = taken + count
    is_free_changed = true
  end
  local text = text_of(got)
  if is_free_changed then
    redis.call('HSET', plan.key, 'g:' .. id, text, 'free', text_of(plan.free))
  else
    redis.call('HSET', plan.key, 'g:' .. id, text)
  end
  if mine[2] then redis.call('HDEL', plan.key, 'r:' .. id) end
  demand = math.max(0, later - taken)
  return plan, text
end

local function ask_at_once(interval)
  local plan = plan_of(interval, false)
  if not plan then return nil end
  local asked = redis.call('HGET', plan.key, 'a:' .. id)
  local before, text = '', ''
  if asked then
    before, text = string.match(asked, '^(%d+);(.*)$')
    if before == sequence then return plan, text end
  end
  if not redis.call('HGET', plan.key, 'swept') then  -- what was planned for those who did not call
    local all, unfetched, ranges = redis.call('HGETALL', plan.key), {'swept'}, {}
    for index = 1, #all, 2 do
      if string.sub(all[index], 1, 2) == 'r:' then
        for _, range in ipairs(ranges_of(all[index + 1])) do ranges[#ranges + 1] = range end
        unfetched[#unfetched + 1] = all[index]
      end
    end
    table.sort(ranges, function(one, other) return one[1] < other[1] end)  -- a hash table has an order of its own
    for _, range in ipairs(ranges) do plan.free[#plan.free + 1] = range end
    for index = 2, #unfetched, 512 do
      redis.call('HDEL', plan.key, unpack(unfetched, index, math.min(index + 511, #unfetched)))
    end
    redis.call('HSET', plan.key, 'swept', '1')
  end
  if #plan.free == 0 and not asked then return plan, '' end
  local g = grid_of(plan.grid)
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
    if index <= want then got[#got + 1] = single else plan.free[#plan.free + 1] = single end
  end
  text = text .. text_of(got)
  redis.call('HSET', plan.key, 'a:' .. id, sequence .. ';' .. text, 'free', text_of(plan.free))
  urgent, soon, later = math.max(0, urgent - #got), math.max(0, soon - #got), math.max(0, later - #got)
  return plan, text
end

local running_plan, running_text, plan, text
if number >= safe and want > 0 then running_plan, running_text = ask_at_once(number) end
if number + 1 >= safe and is_fetching then plan, text = fetch(number + 1) end
keep_member()
if not stored then
  redis.call('PEXPIRE', KEY_STATE, STATE_MS)
  redis.call('PEXPIRE', KEY_MEMBERS, STATE_MS)
end

local reply = {whole(told), run .. ':' .. whole(epoch), whole(safe), rank,
  plan and plan.peers or tostring(redis.call('HLEN', KEY_MEMBERS)), grid_text(grid_for(number + 1))}
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
"""

_HEAD_COUNT: Final = 6  # fields of a reply before the two grants
_GRANT_COUNT: Final = 5


def keys_of(prefix: str, group: str, name: str) -> list[str]:
    """Return the script's keys for one rate of a group; all of a group lie in one slot of a cluster."""
    base = f"{{{prefix}:{group}}}:{name}"
    return [f"{base}:state", f"{base}:members", f"{base}:plan0", f"{base}:plan1"]


def arguments_of(request: Request) -> list[str]:
    """Write a request as the script's arguments."""
    return [
        request.peer,
        repr(float(request.weight)),
        *map(str, (request.urgent, request.soon, request.later, request.now, request.sequence)),
        *map(str, (request.step, request.unit)),
        *(
            str(int(flag))
            for flag in (request.is_new_rate, request.has_jumped, request.is_leaving, request.is_fetching)
        ),
        *map(str, (request.interval_us, request.quarantine)),
    ]


def reply_of(values: Sequence[Any]) -> Reply:
    """Read what the script returns."""
    fields = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    now, era, safe, rank, peers, grid = fields[:_HEAD_COUNT]
    grants = [
        _grant_of(fields[start : start + _GRANT_COUNT]) for start in range(_HEAD_COUNT, len(fields), _GRANT_COUNT)
    ]
    upcoming, running = grants or (NO_GRANT, NO_GRANT)
    return Reply(
        now_us=int(now),
        era=era,
        safe=int(safe),
        rank=int(rank),
        peers=int(peers),
        grid=_grid_of(grid),
        upcoming=upcoming,
        running=running,
    )


def _grid_of(text: str) -> FleetGrid:
    return FleetGrid(*map(int, text.split(",")))


def _grant_of(fields: Sequence[str]) -> Grant:
    number, count, stride, grid, ranks = fields
    if not number:
        return NO_GRANT
    ranges = [range(*map(int, part.split("-"))) for part in ranks.split(",") if part]
    return Grant(int(number), int(count), int(stride), _grid_of(grid), ranges)
