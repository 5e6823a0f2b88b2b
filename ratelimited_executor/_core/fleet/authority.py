"""The authority that grants the permits of one rate: the Redis script's rules, over plain values.

Every permit is granted to one peer at most. The rate's safety rests on that alone: peers may be slow, paused, cut off
or miscounted, and permits that they do not fetch lapse. A call in interval k fetches permits of interval k + 1. They
come from a plan that the interval's first call makes for all peers, by weighted max-min over the demands that they
reported last. A peer that needs less returns the rest; a peer that needs more takes unassigned permits. Unassigned
permits of the running interval can be asked for at once, including those planned for peers that did not call.

A new authority may not know what its predecessor has granted. So it grants nothing while those permits may still be
used, plus the possible difference between two servers' clocks: the quarantine.

The state or a single plan may be lost or set back independently. So the state records, for each plan, its interval and
the call that changed it last. An interval whose plan does not match that record grants no more permits: some may have
been granted. A state that no authority can have written is discarded: a new era begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from ratelimited_executor._core.fleet.grid import FleetGrid
from ratelimited_executor._core.fleet.protocol import NO_GRANT, Grant, Reply, Request
from ratelimited_executor._core.fleet.shares import apportion, stride

__all__ = ["Authority"]

_STALE_INTERVALS: Final = 3  # without a call, after which a peer's demand no longer counts
# Time without a call after which a peer is forgotten, and its rank may be reused. By then its own clock is too
# uncertain (0.15 s against the 0.1 s that a start may be late at most) to use that rank without an answer.
_FORGET_US: Final = 300_000_000
_STEP_US: Final = 1000  # a clock that goes back by more than this has stepped
_JUMP_INTERVALS: Final = 3  # without grants after a step of the clock
_LATE_US: Final = 200_000  # how much closer two starts may be than their permits: each may be late by half of it
_LOOK_COUNT: Final = 256  # ranks examined, at most, for permits at once
_QUARANTINE_MAX_US: Final = 60_000_000  # the largest difference between the clocks of two servers
_WHOLE_MAX: Final = 1 << 53  # integers below it are exact in the script, too
_UNPLANNED: Final = (-1, 0)
_LOST: Final = 0  # recorded in place of the last call that changed a plan: no plan matches it


@dataclass(slots=True)
class _Member:
    weight: float
    demand: int
    seen_us: int
    rank: int


@dataclass(slots=True)
class _Plan:
    number: int
    call: int  # the last one that changed it
    count: int
    stride: int
    grid: FleetGrid
    peers: int
    planned: dict[str, range]  # not fetched yet
    free: list[range]
    granted: dict[str, list[range]] = field(default_factory=dict)
    asked: dict[str, tuple[int, list[range]]] = field(default_factory=dict)  # at once: latest sequence, all permits


def _gap(step: int, unit: int) -> float:
    """Return how many intervals pass from one permit to the next; 0 if there are no permits."""
    return unit / step if step else 0.0


class Authority:
    """The state of one rate, and the rules.

    Args:
        run: names this run of the server; another run does not know the grants of this one.
    """

    def __init__(self, run: str = "run") -> None:
        self.run = run
        self._known_run: str | None = None
        self._epoch = 0
        self._safe = 0
        self._last_us = 0
        self._calls = 0
        self._grid: FleetGrid | None = None
        self._next_grid: FleetGrid | None = None
        self._members: dict[str, _Member] = {}
        self._plans: list[_Plan | None] = [None, None]
        self._planned = [_UNPLANNED, _UNPLANNED]  # of each plan: its interval, and the last call that changed it
        self._flaw = ""  # found by this call

    def wipe(self, run: str) -> None:
        """Forget everything, as a server without persistence does on a restart."""
        self.__init__(run)  # type: ignore[misc]  # the same as a new authority

    def call(self, now_us: int, request: Request) -> Reply:
        """Answer one call.

        Args:
            now_us: the server's clock, in microseconds since the epoch.
            request: the call.
        """
        told_us = now_us
        self._flaw = "" if self._known_run is None or self._is_sound(now_us) else "state"
        if self._flaw:
            self._mend(now_us)
        grid = self._grid
        if grid is None:
            number = now_us // request.interval_us
            grid = self._grid = FleetGrid(request.interval_us, request.step, request.unit, request.base, number)
        has_gone_back = now_us < self._last_us - _STEP_US
        if has_gone_back:
            grid = self._go_back(now_us // grid.interval_us)
        if self._flaw or has_gone_back or self._known_run != self.run:
            self._begin_era(now_us // grid.interval_us + 2 + max(request.quarantine, self._lapse_intervals(request)))
            self._known_run = self.run
        else:
            now_us = max(now_us, self._last_us)  # otherwise an interval could be planned twice
            if request.has_jumped:
                jump = max(_JUMP_INTERVALS - 1, self._lapse_intervals(request))
                self._begin_era(max(self._safe, now_us // grid.interval_us + 2 + jump))
        self._last_us = now_us
        self._calls += 1
        number = now_us // grid.interval_us
        self._turn_rate(request, number)

        member = self._members.get(request.peer)
        if request.is_leaving:
            self._members.pop(request.peer, None)
            self._take_back(request.peer, number + 1)
            return self._reply(told_us, 0 if member is None else member.rank, number)
        if member is None:
            ranks = {other.rank for other in self._members.values()}
            rank = next(rank for rank in range(len(ranks) + 1) if rank not in ranks)
            member = self._members[request.peer] = _Member(request.weight, request.later, now_us, rank)
        member.weight, member.seen_us = request.weight, now_us

        running = upcoming = NO_GRANT
        if number >= self._safe and request.now:
            running, fresh_count = self._ask_at_once(request, number, now_us)
            request = request.less(fresh_count)
        if number + 1 >= self._safe and request.is_fetching:
            upcoming = self._fetch(request, member, number + 1, now_us)
        return self._reply(told_us, member.rank, number, upcoming, running)

    # Eras.

    def _is_sound(self, now_us: int) -> bool:
        """True unless the state is one that no authority can have written."""
        grid, following = self._grid, self._next_grid
        counts = self._epoch, self._safe, self._last_us, self._calls
        if not all(0 <= count < _WHOLE_MAX for count in counts) or grid is None or not grid.is_sound(now_us):
            return False
        if following is not None and not following.is_sound(now_us):
            return False
        if now_us < self._last_us - _STEP_US:
            return True  # the clock has gone back: the rest of the state is not used
        number = max(now_us, self._last_us) // grid.interval_us
        gap = max(_gap(each.step, each.unit) for each in (grid, following or grid))
        return (
            self._safe <= number + 4 + (_QUARANTINE_MAX_US + _LATE_US) // grid.interval_us + gap
            and max(planned for planned, _ in self._planned) <= number + 1
            and (following is None or (following.interval_us == grid.interval_us and following.since <= number + 2))
        )

    def _mend(self, now_us: int) -> None:
        """Reset an unsound state, but keep the rate in force if it is sound."""
        if self._grid is not None and not self._grid.is_sound(now_us):
            self._grid = None
        self._next_grid = None
        if not 0 <= self._epoch < _WHOLE_MAX:
            self._epoch = now_us // 1_000_000  # an era that has not been used yet
        if not 0 <= self._calls < _WHOLE_MAX:
            self._calls = 0
        self._last_us = now_us

    def _go_back(self, number: int) -> FleetGrid:
        """Move the start of the grid to the present, at the rate that was set last."""
        assert self._grid is not None
        latest = self._next_grid or self._grid
        self._grid, self._next_grid = self._grid.with_rate(latest.step, latest.unit, number), None
        return self._grid

    def _lapse_intervals(self, request: Request) -> int:
        """Return the intervals of quarantine beyond the next one that keep the rate across two eras.

        They cover the time in which permits of the last era may still be used, and then one gap between two permits,
        because the position of its last permit is unknown. A gap shorter than an interval fits in the quarantine that
        peers request.
        """
        assert self._grid is not None
        latest = self._next_grid or self._grid
        gap = _gap(latest.step, latest.unit)
        if request.is_new_rate:
            gap = max(gap, _gap(request.step, request.unit))
        return 1 + math.ceil(gap + _LATE_US / self._grid.interval_us) if gap >= 1 else 0

    def _begin_era(self, safe: int) -> None:
        self._epoch += 1
        self._safe = safe
        self._plans = [None, None]
        self._planned = [_UNPLANNED, _UNPLANNED]

    # The rate.

    def _turn_rate(self, request: Request, number: int) -> None:
        """Activate a pending rate that is due; put a new one in force from the first unplanned interval."""
        assert self._grid is not None
        if self._next_grid is not None and number >= self._next_grid.since:
            self._grid, self._next_grid = self._next_grid, None
        latest = self._next_grid or self._grid
        if not request.is_new_rate or (latest.step, latest.unit) == (request.step, request.unit):
            return
        since = number
        for interval in (number, number + 1):
            if self._planned[interval % 2][0] == interval:
                since = interval + 1
        if self._next_grid is not None and self._next_grid.since < since:
            self._grid = self._next_grid  # the plan of that interval uses it
        new = self._grid.with_rate(request.step, request.unit, since)
        self._grid, self._next_grid = (new, None) if since == number else (self._grid, new)
        # A slow rate has a long quarantine: shorten it once a faster rate is put in force.
        self._safe = min(self._safe, number + 2 + max(request.quarantine, self._lapse_intervals(request)))

    def _grid_of(self, number: int) -> FleetGrid:
        assert self._grid is not None
        return self._next_grid if self._next_grid is not None and number >= self._next_grid.since else self._grid

    def _reply(
        self, now_us: int, rank: int, number: int, upcoming: Grant = NO_GRANT, running: Grant = NO_GRANT
    ) -> Reply:
        plan = self._plans[(number + 1) % 2]
        return Reply(
            now_us=now_us,
            era=f"{self.run}:{self._epoch}",
            safe=self._safe,
            rank=rank,
            peers=len(self._members) if plan is None else plan.peers,
            grid=self._grid_of(number + 1),
            flaw=self._flaw,
            upcoming=upcoming,
            running=running,
        )

    # Plans.

    def _find(self, number: int) -> _Plan | None:
        """Return the plan of an interval; None if there is none, or it was lost or set back."""
        plan, noted = self._plans[number % 2], self._planned[number % 2]
        if plan is not None and noted == (plan.number, plan.call):
            return plan if plan.number == number else None
        was_planned = noted[0] == number or (plan is not None and plan.number >= number > noted[0])
        if was_planned and noted != (number, _LOST):
            self._planned[number % 2] = number, _LOST
            self._flaw = self._flaw or "plan"
        return None

    def _touch(self, plan: _Plan) -> None:
        """Record that this call changes a plan."""
        plan.call = self._calls
        self._planned[plan.number % 2] = plan.number, plan.call

    def _plan_of(self, number: int, now_us: int, *, is_upcoming: bool) -> _Plan | None:
        """Return the plan of an interval, created if needed; None if lost, or replaced by a later one."""
        plan = self._find(number)
        if plan is not None or self._planned[number % 2][0] >= number:
            return plan
        grid = self._grid_of(number)
        if number < grid.since:
            return None  # the rate has changed twice: the one of this interval is no longer known
        count = grid.count(number)
        planned: dict[str, range] = {}
        done = peers = 0
        if is_upcoming:
            stale = now_us - _STALE_INTERVALS * grid.interval_us
            for name in [name for name, member in self._members.items() if member.seen_us < now_us - _FORGET_US]:
                del self._members[name]
            demands = {
                name: (member.weight, member.demand)
                for name, member in self._members.items()
                if stale <= member.seen_us <= now_us
            }
            peers = len(demands)
            planned, done = apportion(demands, count, number)
        plan = _Plan(number, self._calls, count, stride(count), grid, peers, planned, [range(done, count)])
        self._plans[number % 2] = plan
        self._touch(plan)
        return plan

    def _fetch(self, request: Request, member: _Member, number: int, now_us: int) -> Grant:
        """Grant a peer its permits of the next interval; a repeated call gets the same ones."""
        plan = self._plan_of(number, now_us, is_upcoming=True)
        if plan is None:
            return NO_GRANT
        ranks = plan.granted.get(request.peer)
        if ranks is None:
            self._touch(plan)
            mine = plan.planned.pop(request.peer, range(0))
            taken = mine[: request.soon]
            ranks = [taken]
            if len(taken) < len(mine):
                plan.free.append(mine[len(taken) :])
            want = request.urgent - len(taken)
            while want > 0 and plan.free:
                part = plan.free.pop()
                if len(part) > want:
                    plan.free.append(part[want:])
                    part = part[:want]
                want -= len(part)
                ranks.append(part)
            ranks = plan.granted[request.peer] = [part for part in ranks if part]
            member.demand = max(0, request.later - sum(map(len, ranks)))
        return Grant(number, plan.count, plan.stride, plan.grid, ranks)

    def _take_back(self, peer: str, number: int) -> None:
        """Free a leaving peer's permits of an interval that has not begun; the peer has dropped them."""
        plan = self._find(number)
        if plan is not None:
            self._touch(plan)
            plan.free += [plan.planned.pop(peer, range(0)), *plan.granted.get(peer, [])]
            plan.granted[peer] = []

    def _ask_at_once(self, request: Request, number: int, now_us: int) -> tuple[Grant, int]:
        """Grant unassigned permits of the running interval; return all of the peer's, and the new count."""
        plan = self._plan_of(number, now_us, is_upcoming=False)
        if plan is None:
            return NO_GRANT, 0
        fresh: list[range] = []
        sequence, ranks = plan.asked.get(request.peer, (-1, []))
        if sequence != request.sequence:
            self._touch(plan)
            plan.free += plan.planned.values()  # they can no longer be fetched
            plan.planned.clear()
            fresh = self._next_free(plan, request.now, now_us)
            ranks = ranks + fresh
            plan.asked[request.peer] = request.sequence, ranks
        return Grant(number, plan.count, plan.stride, plan.grid, ranks), len(fresh)

    def _next_free(self, plan: _Plan, want: int, now_us: int) -> list[range]:
        """Take the free permits that come up next; drop those whose time has passed."""
        looked: list[tuple[int, int]] = []  # (place, rank)
        count = 0
        while plan.free and count < _LOOK_COUNT:
            part = plan.free.pop()
            if len(part) > _LOOK_COUNT - count:
                plan.free.append(part[_LOOK_COUNT - count :])
                part = part[: _LOOK_COUNT - count]
            count += len(part)
            for rank in part:
                place = rank * plan.stride % plan.count
                if plan.grid.time_us(plan.number, place) >= now_us:
                    looked.append((place, rank))
        looked.sort()
        plan.free += [range(rank, rank + 1) for _, rank in looked[want:]]
        return [range(rank, rank + 1) for _, rank in looked[:want]]
