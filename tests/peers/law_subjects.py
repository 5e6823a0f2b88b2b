"""The laws of shared limits behind one interface for a common suite: in Python, and in Lua on a real server.

Both take and return texts, so that their answers can be compared.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple, Protocol

import redis

from ratelimited_executor._core.fleet.laws import decide, read_limit
from ratelimited_executor._core.fleet.limit_settings import life_of, read_settings

LAWS = files("ratelimited_executor.peers.redis").joinpath("laws.lua").read_text(encoding="utf-8")

# ARGV: action, time; then horizon, life, and settings, state and cost of each limit; or one limit and the numbers.
MAIN = """
local function whole(number) return number and string.format('%.0f', number) or '' end
local agreed_time, read_limit, read_settings, life_of = L.agreed_time, L.read_limit, L.read_settings, L.life_of
local function decide(limits, costs, t, horizon, life)
  local when, holder = agreed_time(limits, costs, t)
  for _, limit in ipairs(limits) do horizon = math.min(horizon, limit.foreseen) end
  if not when or when > horizon then return when, holder end
  local receipts = {}
  for index, limit in ipairs(limits) do receipts[index] = limit.law.take(limit, when, costs[index], life) end
  return when, holder, receipts
end
local act, now, limits, costs = ARGV[1], tonumber(ARGV[2]), {}, {}
if act == 'life' then
  local settings = {}
  for index = 3, #ARGV do settings[#settings + 1] = read_settings(ARGV[index]) end
  return {'sound', whole(life_of(settings, now))}
end
if act == 'decide' then
  for index = 5, #ARGV, 3 do
    local limit = read_limit(ARGV[index], ARGV[index + 1], now)
    if not limit then return {'unsound', whole((index - 5) / 3)} end
    limits[#limits + 1], costs[#costs + 1] = limit, tonumber(ARGV[index + 2])
  end
  local when, holder, receipts = decide(limits, costs, now, tonumber(ARGV[3]), tonumber(ARGV[4]))
  local answer = {'sound', whole(when), whole(holder and holder - 1), receipts and '1' or '0'}
  for _, receipt in ipairs(receipts or {}) do answer[#answer + 1] = whole(receipt) end
  for _, limit in ipairs(limits) do answer[#answer + 1] = limit.is_changed and limit.law.write(limit, '') or '' end
  return answer
end
local limit = read_limit(ARGV[3], ARGV[4], now)
if not limit then return {'unsound', '0'} end
if act == 'look' then
  local used, amount, till = limit.law.use(limit, now)
  return {'sound', limit.law.is_at_rest(limit, now) and '1' or '0', whole(used), whole(amount), whole(till)}
end
if act == 'batch' then
  local answer = {'sound', ''}
  for index = 7, #ARGV, 4 do
    local one, other, last = tonumber(ARGV[index + 1]), tonumber(ARGV[index + 2]), tonumber(ARGV[index + 3])
    if ARGV[index] == 'ask' then
      local when, _, receipts = decide({limit}, {one}, now + other, tonumber(ARGV[5]), tonumber(ARGV[6]))
      answer[#answer + 1] = receipts and whole(when) or ''
    else
      limit.law[ARGV[index]](limit, one, other, last)
    end
  end
  answer[2] = limit.is_changed and limit.law.write(limit, '') or ''
  return answer
end
limit.law[act](limit, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1')
return {'sound', limit.is_changed and limit.law.write(limit, '') or ''}
"""


class UnsoundError(Exception):
    """The text of a limit's settings or state is not sound."""


class Answer(NamedTuple):
    """The decision of a subject; unchanged states are empty."""

    at: int | None
    holder: int | None
    receipts: list[int] | None
    states: list[str]


class Look(NamedTuple):
    """What a subject reads from a state."""

    is_at_rest: bool
    used: int
    amount: int
    until: int


Entry = tuple[str, str, int]  # settings, state, cost
Step = tuple[str, int, int, int]  # add, give_back or report, and its numbers; or ask, cost, how much later


class LawSubject(Protocol):
    """Decides from texts."""

    def decide(self, now: int, horizon: int, life: int, entries: Sequence[Entry]) -> Answer:
        """Admit a ticket or refuse it."""
        ...

    def correct(self, act: str, now: int, settings: str, state: str, numbers: tuple[int, ...]) -> str:
        """Add to a ticket's cost or give some back (t, cost, receipt), report (start, cost, receipt), or redate to t; return the new state, or ""."""
        ...

    def batch(
        self, now: int, horizon: int, life: int, settings: str, state: str, steps: Sequence[Step]
    ) -> tuple[str, list[str]]:
        """Correct and ask in one call; return the new state, and the times of the admitted tickets."""
        ...

    def look(self, now: int, settings: str, state: str) -> Look:
        """Read a state."""
        ...

    def life_of(self, wanted: int, settings: Sequence[str]) -> int:
        """Return how long a ticket lives."""
        ...


class InPython:
    """The laws of the core, in Python."""

    def decide(self, now: int, horizon: int, life: int, entries: Sequence[Entry]) -> Answer:
        """Admit a ticket or refuse it."""
        limits = [self._read(place, settings, state, now) for place, (settings, state, _) in enumerate(entries)]
        got = decide(limits, [cost for _, _, cost in entries], now, horizon, life)
        states = [limit.write() if limit.is_changed else "" for limit in limits]
        return Answer(got.at_us, got.holder, got.receipts, states)

    def correct(self, act: str, now: int, settings: str, state: str, numbers: tuple[int, ...]) -> str:
        """Add or give back."""
        limit = self._read(0, settings, state, now)
        if act == "give_back":
            limit.give_back(*numbers[:3], is_whole=numbers[3:] == (1,))
        else:
            getattr(limit, act)(*numbers)
        return limit.write() if limit.is_changed else ""

    def batch(
        self, now: int, horizon: int, life: int, settings: str, state: str, steps: Sequence[Step]
    ) -> tuple[str, list[str]]:
        """Correct and ask in one call."""
        limit, times = self._read(0, settings, state, now), []
        for name, *numbers in steps:
            if name == "ask":
                got = decide([limit], numbers[:1], now + numbers[1], horizon, life)
                times.append(str(got.at_us) if got.receipts is not None else "")
            else:
                getattr(limit, name)(*numbers)
        return limit.write() if limit.is_changed else "", times

    def look(self, now: int, settings: str, state: str) -> Look:
        """Read a state."""
        limit = self._read(0, settings, state, now)
        use = limit.use(now)
        return Look(limit.is_at_rest(now), use.used, use.amount, use.until_us)

    def life_of(self, wanted: int, settings: Sequence[str]) -> int:
        """Return how long a ticket lives."""
        return life_of([read_settings(each) for each in settings], wanted)

    def _read(self, place: int, settings: str, state: str, now: int):
        limit = read_limit(settings, state, now)
        if limit is None:
            raise UnsoundError(place)
        return limit


class InLua:
    """The laws of the script, in Lua."""

    def __init__(self, client: redis.Redis) -> None:
        self._script = client.register_script(LAWS + MAIN)

    def decide(self, now: int, horizon: int, life: int, entries: Sequence[Entry]) -> Answer:
        """Admit a ticket or refuse it."""
        at, holder, is_admitted, *rest = self._call(
            "decide", now, horizon, life, *(each for entry in entries for each in entry)
        )
        receipts = [int(each) for each in rest[: len(entries)]] if is_admitted == "1" else None
        return Answer(int(at) if at else None, int(holder) if holder else None, receipts, rest[-len(entries) :])

    def correct(self, act: str, now: int, settings: str, state: str, numbers: tuple[int, ...]) -> str:
        """Add or give back."""
        return self._call(act, now, settings, state, *numbers)[0]

    def batch(
        self, now: int, horizon: int, life: int, settings: str, state: str, steps: Sequence[Step]
    ) -> tuple[str, list[str]]:
        """Correct and ask in one call."""
        changed, *times = self._call(
            "batch", now, settings, state, horizon, life, *(each for step in steps for each in step)
        )
        return changed, times

    def look(self, now: int, settings: str, state: str) -> Look:
        """Read a state."""
        rest, *numbers = self._call("look", now, settings, state)
        return Look(rest == "1", *map(int, numbers))

    def life_of(self, wanted: int, settings: Sequence[str]) -> int:
        """Return how long a ticket lives."""
        return int(self._call("life", wanted, *settings)[0])

    def _call(self, *arguments: object) -> list[str]:
        told = [each.encode("latin-1", "replace") if isinstance(each, str) else each for each in arguments]
        sound, *answer = (each.decode("latin-1") for each in self._script(args=told))
        if sound != "sound":
            raise UnsoundError(int(answer[0]))
        return answer
