"""One peer's side of a shared rate: when to call, what to ask for, what to do without an answer.

A peer with demand calls once in a grant interval, at a phase of its own, so that the calls of a group are spread over
the interval. In between it asks for permits at once when a task is due and no permit is held for it. An idle peer makes
no calls.

Without answers it uses up its permits, which takes two intervals at most, and then follows its outage policy. Its
states are drawn in ``peer_states.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from ratelimited_executor._core.fleet.granted import GrantedPermits, Outlook
from ratelimited_executor._core.fleet.grid import FleetGrid, grid_rate
from ratelimited_executor._core.fleet.peer_states import PeerState, check_move
from ratelimited_executor._core.fleet.protocol import Grant, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from ratelimited_executor._core.fleet.clock import ServerClock
    from ratelimited_executor._core.fleet.policies import Outage
    from ratelimited_executor._core.rates import Rate

__all__ = ["LOOK_AHEAD_INTERVALS", "DemandUntil", "Peer", "PeerSettings", "PeerState"]

LOOK_AHEAD_INTERVALS: Final = 3  # an idle peer starts to call this long before its next task is due

_ASK_GAP_NS: Final = 10_000_000  # between two calls for permits at once
_ASK_COUNT_MAX: Final = 8  # calls for permits at once in a row; in the long run, one in a grant interval
_SHORT_COUNT: Final = 2  # regular calls in a row that got too little; from then on, calls in between are useless
_OUTAGE_NS: Final = 2_000_000_000  # how far ahead a peer gives itself permits: longer than from one call to its failure
_FAILED_COUNT: Final = 2  # calls in a row, after which the authority counts as away
_DEMAND_MAX: Final = 1 << 40
_SAME: Final = 1_000_000  # rates that differ by less than one part in this many are the same
_NEWS_INTERVALS: Final = 4  # from a call that sets a rate until every calling peer has been told of it
_FRESH_INTERVALS: Final = 2  # for which the rate in force is known: one call in each, plus the time of answers

DemandUntil: TypeAlias = "Callable[[int, int, int, int], int]"
"""Counts at most N tasks due by the first time that could start from the second to the third; N is the last argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """The settings shared by all rates of one process.

    Attributes:
        id: of this incarnation of the process.
        interval_us: the length of a grant interval in microseconds.
        late_us: how long after its time a permit may be used, in microseconds.
        stretch: the part by which gaps between permits are longer than the rate requires.
        quarantine: grant intervals beyond the next for which a new authority grants nothing.
        phase: the point in a grant interval at which calls go out, 0 to 1.
        weight: this process's share, relative to others, while demand exceeds the rate, > 0.
        outage: its behaviour while the authority is away.
    """

    id: str
    interval_us: int
    late_us: int
    stretch: Fraction
    quarantine: int
    phase: float
    weight: float
    outage: Outage


def _is_lower(own: FleetGrid, grid: FleetGrid) -> bool:
    """True if the own rate is lower than another grid's, and not 0."""
    return 0 < own.step * grid.unit < grid.step * own.unit


class Peer:
    """One process's part in one rate.

    Args:
        settings: those of the process.
        rate: the rate as this process has it.
        clock: the authority's clock.
        grid_phase: the position of the first permit of the group's grid, 0 to 1, as a part of the gap between two.
        is_clock_whole: returns True while our own clock has run without a break.
        is_new_rate: True if the rate is to be put in force; False to do so only if the group has none.
    """

    def __init__(
        self,
        settings: PeerSettings,
        rate: Rate,
        clock: ServerClock,
        *,
        grid_phase: float = 0.0,
        is_clock_whole: Callable[[], bool] = lambda: True,
        is_new_rate: bool = True,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.permits = GrantedPermits(clock, rate, late_ns=settings.late_us * 1000, is_clock_whole=is_clock_whole)
        self._state = PeerState.SYNC
        self.era: str | None = None
        self.rank: int | None = None
        self.grid: FleetGrid | None = None
        self.safe = 0  # number of the first interval whose permits are granted in this era
        self.granted_count = 0
        self.refused_count = 0  # permits requested and not granted
        self.demand = 0  # as reported last; 0 while idle
        self.last_grant_ns: int | None = None
        self.failed_count = 0  # calls in a row without an answer
        self._interval_us = settings.interval_us
        self._rate = rate
        self._grid_phase = grid_phase
        self._is_new_rate = is_new_rate
        self._settled = -1  # number of the first interval in which answers show the rate that this peer has set
        # True if the changes in the latest answer were made since, or shortly before, the previous answer.
        self.is_news = False
        self._told_number = -1  # number of the interval of the latest answer, by the authority's clock ...
        self._told_ns: int | None = None  # ... and our time then
        self._watched_until_ns: int | None = None  # until then calls are made even without demand
        self._has_jumped = False
        self._fetched = -1  # number of the last interval whose permits were fetched
        self._asked = -1  # number of the interval for which permits were requested at once ...
        self._asked_ranks: set[int] = set()  # ... and the granted ones
        self._sequence = 0
        self._exhausted = -1  # number of the last interval that had too few permits left
        self._short_count = 0  # regular calls in a row that got too few permits at once: the group is busy
        self._asked_ns = -_ASK_GAP_NS
        self._allowed_count = float(_ASK_COUNT_MAX)  # calls for permits at once that were allowed ...
        self._allowed_ns = 0  # ... at this time
        self._call_ns: int | None = None  # when the next regular call is due; None for at once
        self._outage_number = -1  # number of the last interval for which the outage policy gave permits
        self._own: FleetGrid | None = None  # the grid of our own rate
        self._own_since = 0  # number of the first interval with our rate in force, after its last change
        self._is_capped = True  # our own rate is lower than the one in force
        self._granted_counts: dict[int, int] = {}  # permits granted to us, by interval, for the latest intervals

    # States.

    @property
    def state(self) -> PeerState:
        """The state of the peer."""
        return self._state

    def _move_to(self, state: PeerState) -> None:
        """Move to a state, or stay in it; raise if the table does not allow it."""
        check_move(self.settings.id, self._state, state)
        self._state = state

    # Settings.

    def set_rate(self, rate: Rate) -> None:
        """Request another rate for the whole group."""
        self._rate = rate
        self._own = None
        self._is_new_rate = True
        self._call_ns = None
        self._compare_rates()
        if self.grid is not None and self._is_capped:
            self.permits.drop_beyond(self.interval_ns(), self._own_count)

    def _own_count(self, number: int, held: int) -> int:
        """Return how many held permits of an interval the own rate allows, less those already used."""
        used = max(0, self._granted_counts.get(number, 0) - held)
        return self._own_grid().count(number) - used

    def follow(self, rate: Rate) -> None:
        """Adopt ``rate``, which is in force, as our own, exactly as the authority has it."""
        self._rate = rate
        self._own = None
        own, grid = self._own_grid(), self.grid
        if grid is not None and abs(own.step * grid.unit - grid.step * own.unit) * _SAME <= grid.step * own.unit:
            self._own = FleetGrid(self._interval_us, grid.step, grid.unit, own.base, own.since)
        self._compare_rates()

    def watch(self, until_ns: int) -> None:
        """Call in each interval until a time (ours), to learn the rate in force."""
        self._watched_until_ns = max(self._watched_until_ns or 0, until_ns)

    def is_told(self, now_ns: int) -> bool:
        """True while the latest answer is recent enough to know the rate, up to changes made just now."""
        return (
            self._state is PeerState.ACTIVE
            and self._told_ns is not None
            and now_ns - self._told_ns <= _FRESH_INTERVALS * self.interval_ns()
        )

    @property
    def is_settled(self) -> bool:
        """True unless a rate that this peer has set is not in force yet."""
        return not self._is_new_rate and self._told_number >= self._settled

    @property
    def is_watching(self) -> bool:
        """True while calls are made to learn the rate."""
        return self._watched_until_ns is not None

    def news_ns(self) -> int:
        """Return the longest time until every calling peer knows of a new rate."""
        return _NEWS_INTERVALS * self.interval_ns()

    def _own_grid(self) -> FleetGrid:
        if self._own is None or self._own.interval_us != self._interval_us:
            ratio = grid_rate(self._rate, self._interval_us, self.settings.stretch)
            self._own = FleetGrid(self._interval_us, *ratio, 0, 0)
        return self._own

    @property
    def is_own_rate(self) -> bool:
        """True if the rate in force is the one that this peer has set."""
        own = self._own_grid()
        return self.grid is None or (self.grid.step, self.grid.unit) == (own.step, own.unit)

    def _compare_rates(self) -> None:
        own, grid = self._own_grid(), self.grid
        # A rate of 0 holds the group back until any peer sets another rate, which this peer then uses as well.
        self._is_capped = grid is None or _is_lower(own, grid)
        if grid is not None:
            shared = Outlook(grid, self.permits.peers)
            self.permits.outlooks = (shared, Outlook(own)) if self._is_capped else (shared,)

    def _limit(self, number: int) -> int:
        """Return how many more permits of an interval to ask for, by the lower of both rates."""
        lower = self._own_grid() if self.grid is None or self._is_capped else self.grid
        if self.grid is None:  # the interval is not known either
            return -(-lower.step // lower.unit)
        # Until our lower rate is in force, permits lie on another grid: ask for one less, so that our rate is kept.
        spare = int(self._is_capped and number < self._own_since)
        return max(0, lower.count(number) - self._granted_counts.get(number, 0) - spare)

    # Calls.

    def interval_ns(self) -> int:
        """Return the length of a grant interval in nanoseconds."""
        return self._interval_us * 1000

    def number_at(self, now_ns: int) -> int:
        """Return the number of the running grant interval, as far as it is known."""
        return self.clock.at(now_ns) // self.interval_ns()

    def quarantine_end(self, now_ns: int) -> int | None:
        """Return when the quarantine ends; None if none is known."""
        if not self.clock.is_known or self.number_at(now_ns) >= self.safe:
            return None
        return self.clock.here(self.safe * self.interval_ns())

    def next_call(self, now_ns: int) -> int:
        """Return when the next regular call is due."""
        return now_ns if self._call_ns is None else self._call_ns

    def has_demand(self, demand: DemandUntil, now_ns: int) -> bool:
        """True if there is a reason to call.

        Args:
            demand: counts the due tasks that could start.
            now_ns: our time.
        """
        if self._is_new_rate or self._has_jumped or self.era is None:
            return True
        if self._watched_until_ns is not None:
            if now_ns < self._watched_until_ns:
                return True
            self._watched_until_ns = None
        until = now_ns + LOOK_AHEAD_INTERVALS * self.interval_ns()
        return demand(until, now_ns, until, 1) > 0

    def wants_at_once(self, demand: DemandUntil, now_ns: int) -> int | None:
        """Return when to ask for permits at once; None if that is useless before the next regular call.

        Args:
            demand: counts the due tasks that could start.
            now_ns: our time.
        """
        if not self.clock.is_known or self.failed_count or self._short_count >= _SHORT_COUNT:
            return None
        number = self.number_at(now_ns)
        end = (number + 1) * self.interval_ns()
        held = self.permits.held_count(end)
        if demand(now_ns, now_ns, self.clock.here(end), held + 1) <= held:
            return None
        when = max(now_ns, self._asked_ns + _ASK_GAP_NS)
        if not self._limit(number):
            return None
        if number == self._exhausted:
            when = max(when, self.clock.here((number + 1) * self.interval_ns()))
        return when if self._allowance(when) >= 1 else None

    def _allowance(self, now_ns: int) -> float:
        """Return how many calls for permits at once are allowed: several in a row, one an interval on average."""
        return min(_ASK_COUNT_MAX, self._allowed_count + (now_ns - self._allowed_ns) / self.interval_ns())

    def request(self, now_ns: int, demand: DemandUntil, *, is_regular: bool) -> Request:
        """Make the next request.

        Args:
            now_ns: our time.
            demand: counts the due tasks that could start.
            is_regular: True for the regular call of the interval; False for a call for permits at once.
        """
        settings = self.settings
        interval, number = self.interval_ns(), self.number_at(now_ns)
        end = (self.number_at(now_ns) + 1) * interval if self.clock.is_known else self.clock.at(now_ns) + interval
        held = self.permits.held_count
        here = self.clock.here
        grid = self.grid or self._own_grid()
        # Demand beyond all permits of this interval and the next two need not be counted.
        most = held() + 3 * (grid.step // grid.unit + 1)
        counts = [
            min(max(0, demand(here(due), here(end), here(until), most) - held(due)), _DEMAND_MAX)
            for due, until in (
                (end, end + interval),
                (end + interval, end + interval),
                (end + 2 * interval, end + 2 * interval),
            )
        ]
        if self.clock.is_known and 2 * self.clock.sampled_error_ns >= settings.late_us * 1000:
            counts = [0, 0, 0]  # the round trip is too long to use any permit in time: leave them to the others
        limits = [self._limit(number + ahead) for ahead in range(3)]
        now = 0
        if max(counts):
            now = min(max(0, demand(now_ns + _ASK_GAP_NS, now_ns, here(end), most) - held(end)), limits[0])
        # The authority deducts permits granted at once from the other demands. So add them there, unless our own rate
        # is the lower one: the next interval must not get more than it allows.
        first = limits[1] if self._is_capped else limits[1] + now
        urgent = min(counts[0], first)
        # A peer with few starts asks when a task is due, and gets its permit soon. Others get permits in advance.
        allowance = self._allowance(now_ns)
        soon = urgent if allowance > _ASK_COUNT_MAX / 2 else max(urgent, min(counts[1], first))
        later = max(urgent, min(max(counts[1:]), first + limits[2]))
        self._sequence += 1
        if not is_regular:
            self._allowed_count, self._allowed_ns = allowance - 1, now_ns
        self.demand = soon
        if now:
            self._asked_ns = now_ns
        rate = self._own_grid() if self.grid is None or self._is_new_rate or self._is_capped else self.grid
        return Request(
            peer=settings.id,
            weight=settings.weight,
            urgent=urgent,
            soon=soon,
            later=later,
            now=now,
            sequence=self._sequence,
            step=rate.step,
            unit=rate.unit,
            base=int(self._grid_phase * rate.unit),
            is_fetching=is_regular,
            is_new_rate=self._is_new_rate,
            has_jumped=self._has_jumped,
            interval_us=self._interval_us,
            quarantine=settings.quarantine,
        )

    def leave(self) -> Request:
        """Make the last request, which says that the peer leaves."""
        self._move_to(PeerState.CLOSED)
        self.permits.drop()
        step, unit = (self.grid.step, self.grid.unit) if self.grid is not None else (0, 1)
        return Request(
            peer=self.settings.id,
            step=step,
            unit=unit,
            is_leaving=True,
            interval_us=self._interval_us,
            quarantine=self.settings.quarantine,
        )

    def note_step(self, told_us: int) -> None:  # noqa: ARG002  # as of a TicketPeer
        """Drop all permits after a step of the authority's clock; the next call, at once, reports it."""
        self.permits.drop()
        self._has_jumped = self.era is not None
        self._call_ns = None

    # Answers.

    def receive(self, request: Request, reply: Reply, *, is_step: bool, now_ns: int) -> bool:
        """Process an answer; return True if it brought permits.

        Args:
            request: the request that it answers.
            reply: the answer.
            is_step: True if it contradicts the known time of the authority's clock.
            now_ns: our time.
        """
        if self._state is PeerState.CLOSED:
            return False
        self.failed_count = 0
        if self._outage_number >= 0:  # the permits that we gave ourselves may be granted to others
            self.permits.drop()
            self._outage_number = -1
        self._move_to(PeerState.ACTIVE)
        self._interval_us = reply.grid.interval_us
        self.rank, self.grid, self.safe = reply.rank, reply.grid, reply.safe
        self.permits.peers = max(1, reply.peers)
        self.permits.per_second = reply.grid.per_second
        self._compare_rates()
        if request.is_new_rate and (request.step, request.unit) == (self._own_grid().step, self._own_grid().unit):
            self._is_new_rate = False
            self._settled = reply.now_us // self._interval_us + 1
        if request.has_jumped:
            self._has_jumped = False
        interval = self._interval_us
        number = reply.now_us // interval
        self.is_news = self._told_ns is not None and now_ns - self._told_ns <= self.news_ns()
        self._told_number, self._told_ns = number, now_ns
        if request.is_new_rate:
            self._own_since = number + 2  # the first interval that cannot have a plan yet
        self._granted_counts = {
            each: count for each, count in self._granted_counts.items() if number <= each <= number + 2
        }
        is_new_era = self.era is not None and reply.era != self.era
        self.era = reply.era
        if is_step or is_new_era:
            self.permits.drop()
        if is_new_era:  # its intervals may be granted again; within an era no permit may be taken twice
            self._fetched = self._asked = -1
        if is_step and not is_new_era:  # the others do not know yet, and hold permits of the earlier time
            self._has_jumped = True
            self._call_ns = None
            return False
        if request.is_fetching and not self._is_new_rate:  # a rate set since the request needs a call
            self._call_ns = self.clock.here(round((number + 1 + self.settings.phase) * interval) * 1000)
        count = self._take_upcoming(reply.upcoming) + self._take_running(request, reply.running, number)
        wanted, supply = (request.urgent, reply.upcoming) if request.is_fetching else (request.now, reply.running)
        self.refused_count += max(0, min(wanted, supply.count) - count)
        if count:
            self.granted_count += count
            self.last_grant_ns = now_ns
        return count > 0

    def _take_upcoming(self, grant: Grant) -> int:
        if grant.number <= self._fetched or grant.grid is None:
            return 0  # no grant, or a repeated one: the call was repeated
        self._fetched = grant.number
        times = grant.times_us()
        if self._is_capped:  # another process may have set a higher rate between request and grant
            times = sorted(times)[: self._limit(grant.number)]
        self.permits.hold(time * 1000 for time in times)
        self._granted_counts[grant.number] = self._granted_counts.get(grant.number, 0) + len(times)
        return len(times)

    def _take_running(self, request: Request, grant: Grant, number: int) -> int:
        if not request.now:
            self._short_count = 0
            return 0
        if grant.number > self._asked:
            self._asked, self._asked_ranks = grant.number, set()
        ranks = {rank for part in grant.ranks for rank in part} - self._asked_ranks
        is_short = len(ranks) < request.now
        if is_short:
            self._exhausted = number
        if request.is_fetching:
            self._short_count = self._short_count + 1 if is_short else 0
        if not ranks:
            return 0
        self._asked_ranks |= ranks
        times = replace(grant, ranks=[range(rank, rank + 1) for rank in ranks]).times_us()
        own, granted = self._own_grid(), self._granted_counts.get(grant.number, 0)
        if grant.grid is not None and _is_lower(own, grant.grid):  # perhaps an older plan of a higher rate
            times = times[: max(0, own.count(grant.number) - granted - (grant.number < self._own_since))]
        self.permits.hold(time * 1000 for time in times)
        self._granted_counts[grant.number] = granted + len(times)
        return len(times)

    def fail(self, now_ns: int) -> None:
        """Record a call without an answer."""
        self.failed_count += 1
        if self.failed_count >= _FAILED_COUNT and self._state is not PeerState.CLOSED:
            self._move_to(PeerState.OUTAGE)
        self._call_ns = now_ns

    @property
    def goes_on_alone(self) -> bool:
        """True during an outage whose policy leaves this peer permits."""
        policy = self.settings.outage
        if self._state is not PeerState.OUTAGE or policy.kind == "stop" or self.grid is None or not self.clock.is_known:
            return False
        return policy.kind == "local" or (self.rank is not None and self.rank < policy.peers_max)

    def go_on_alone(self, now_ns: int) -> bool:
        """Hold the permits that the outage policy gives for the next intervals; return True if any."""
        policy = self.settings.outage
        if self._state is not PeerState.OUTAGE or policy.kind == "stop" or self._rate.is_unlimited:
            return False
        if not self.clock.is_known:
            if policy.kind != "local":
                return False
            self.clock.assume(0, now_ns)
        self.clock.hold(now_ns)
        number = self.number_at(now_ns)
        if self.grid is None:
            if policy.kind != "local":
                return False
            self.grid = replace(self._own_grid(), since=number)
        begin = max(number, self._outage_number + 1, self._fetched + 1)
        self._outage_number = max(self._outage_number, number + _OUTAGE_NS // self.interval_ns())
        modulus = policy.peers_max if policy.kind == "static" else 1
        grid = self._own_grid() if policy.kind == "local" and self._is_capped else self.grid
        self.permits.outlooks = (Outlook(grid, modulus, self.rank),)
        times = [
            grid.time_us(each, place) * 1000
            for each in range(begin, self._outage_number + 1)
            for place in range(grid.count(each))
            if modulus == 1 or (grid.first(each) + place) % modulus == self.rank
        ]
        times = times[bisect_left(times, self.clock.at(now_ns)) :]
        self.permits.hold(times)
        return bool(times)

    def resync(self) -> None:
        """Start over after our own clock stood still: the times of held permits are no longer known."""
        self._move_to(PeerState.SYNC)
        self.permits.drop()
        self._call_ns = None

    def idle(self) -> None:
        """Record that there is no reason to call."""
        self.demand = 0
        if self._state is PeerState.ACTIVE:
            self._move_to(PeerState.IDLE)
        self._call_ns = None
