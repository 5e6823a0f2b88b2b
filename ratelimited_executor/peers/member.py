"""One executor in its group: counts demand, makes its peer's calls, and wakes the queue."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.fleet.demand import Demand, Worker
from ratelimited_executor._core.fleet.insight import FleetStatistics
from ratelimited_executor._core.fleet.peer import LOOK_AHEAD_INTERVALS, Peer, PeerState
from ratelimited_executor.peers.transport import is_refusal, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from ratelimited_executor._core.fleet.granted import GrantedPermits
    from ratelimited_executor._core.fleet.peer import DemandUntil
    from ratelimited_executor._core.fleet.protocol import Reply, Request
    from ratelimited_executor._core.fleet.ticket_peer import TicketPeer
    from ratelimited_executor._core.rates import Rate
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["FleetMember", "Owner", "hold_of"]

LOGGER: Final = logging.getLogger("ratelimited_executor")

_NS: Final = 1_000_000_000
_RECENT_COUNT: Final = 5  # starts of an interval: fewer may be chance, and say nothing of those to come
_HUNGRY_INTERVALS: Final = 2  # for which tasks have waited without a break, if permits are asked for those to come
_FLAWS: Final = {
    "state": "the authority's state of %s was not valid; a new era begins, and nothing is granted until it is safe",
    "plan": "the authority has lost permits of %s: its keys were deleted, set back or evicted (maxmemory-policy noeviction?)",
    "version": "the state of %s is of another release; a new era begins, and nothing is granted until it is safe",
}


class Owner(Worker, Protocol):
    """The parts of an executor that a peer uses: its engine."""

    name: str
    rate: Rate
    is_paused: bool
    is_adaptive: bool  # if so, any peer may step its rate
    armed: float

    def wake(self) -> None:
        """Look for a task to start in this turn of the loop."""
        ...


class FleetMember:
    """One executor's part in its group.

    Args:
        owner: the executor's engine.
        peer: makes its requests and processes the answers.
        kick: makes the group check at once for a due call.
        leave: removes it from the group.
        warn: logs a warning, and repeats the same one seldom.
    """

    def __init__(
        self,
        owner: Owner,
        peer: Peer,
        *,
        kick: Callable[[], None],
        leave: Callable[[FleetMember], None],
        warn: Callable[[str], None],
    ) -> None:
        self.owner = owner
        self.peer = peer
        self._kick = kick
        self._leave = leave
        self._warn = warn
        self.is_shared = not owner.rate.is_unlimited
        self._demand = Demand(owner)
        self._ask_at = math.inf
        self._is_resting = False  # at the last look, there was no reason to call
        self._retry_at = -math.inf  # no call before this time, because the last ones were refused
        self._failed_at = math.inf  # since when answers have been missing
        self._refusal: str | None = None  # of the last call
        self._seen_at = -math.inf  # the beginning of an interval of our own, for _recent_count()
        self._seen_count = 0  # permits taken before
        self._recent = 0  # permits taken in the interval before
        self._idle_at = math.inf  # when a run was last seen to leave no due task behind

    @property
    def is_served(self) -> bool:
        """True if the authority has answered, and not refused a call since."""
        return self.peer.era is not None and not self.peer.failed_count

    @property
    def permits(self) -> GrantedPermits:
        """The permits of the executor's queue."""
        return self.peer.permits

    budget: Final = None  # of tickets: there are none, it uses the permits of one rate

    def set_plan(self, plan: Any) -> None:
        """Request the rate of a plan for the whole group."""
        self.set_rate(plan.rate)

    def penalize(self, until: float, key: str = "") -> None:
        """Do nothing: a penalty applies in this process only."""

    def limit_of_key(self, make: Any) -> None:
        """Return None: each process keeps the limits of its keys."""

    def expected_at(self) -> None:
        """Return None: the permits have their times."""

    def resync(self) -> None:
        """Start over after our clock stood still."""
        self.peer.resync()

    def note_step(self, told_us: int) -> None:
        """Drop all permits, because an answer to another member shows a step of the authority's clock."""
        self.peer.note_step(told_us)
        self.owner.queue.admission.forget()

    def set_rate(self, rate: Rate) -> None:
        """Request a rate for the whole group; an infinite one lifts the limit only here."""
        self.is_shared = not rate.is_unlimited
        if self.is_shared:
            self.peer.set_rate(rate)
        if rate.is_zero:
            self.permits.drop()
        self._kick()

    # For an adaptive rate.

    def follow(self, rate: Rate) -> None:
        """Adopt a rate that another peer has put in force."""
        self.peer.follow(rate)

    def watch(self, now: float) -> None:
        """Keep calling to learn the rate in force, until every calling peer would know of a rate set now."""
        if self.is_shared:
            now_ns = self.owner.timeline.to_ns(now)
            self.peer.watch(now_ns + self.peer.news_ns())
            self._kick()

    def news_seconds(self) -> float:
        """Return the longest time until every calling peer knows of a new rate."""
        return self.peer.news_ns() / _NS

    def is_told(self, now: float) -> bool:
        """True while the rate in force is known."""
        return self.peer.is_told(self.owner.timeline.to_ns(now))

    @property
    def is_news(self) -> bool:
        """True if a new rate in the latest answer is recent; False if this peer had not called for long."""
        return self.peer.is_news

    @property
    def is_left_alone(self) -> bool:
        """True during an outage in which each process uses its own rate."""
        return self.peer.state is PeerState.OUTAGE and self.peer.settings.outage.kind == "local"

    @property
    def is_first(self) -> bool:
        """True if no other peer has taken part recently."""
        return self.peer.permits.peers <= 1

    @property
    def refused_count(self) -> int:
        """How many permits were requested and not granted so far."""
        return self.peer.refused_count

    def rate_of_others(self) -> Fraction | None:
        """Return the permits a second that another peer has set for the group; None if none has."""
        grid = self.peer.grid
        if grid is None or not self.is_shared or self.peer.is_own_rate or not self.peer.is_settled:
            return None
        return grid.per_second * (1 + self.peer.settings.stretch)

    def look(self, now: float) -> None:
        """After a run, look for tasks that wait for permits not requested yet."""
        if not self.is_shared:
            return
        self._demand.look(now)
        if not self.owner.queue.ready_count() or self._idle_at > now:
            self._idle_at = now
        if self._is_resting:  # in any state: an outage, or a break of our clock, may last
            if self.owner.queue.ready_count():
                self._kick()
            return
        if self.peer.state is PeerState.IDLE or self.peer.failed_count:  # a call follows anyway
            return
        now_ns = self.owner.timeline.to_ns(now)
        when = self.peer.wants_at_once(self._demand_at(now), now_ns)
        self._ask_at = math.inf if when is None else self.owner.timeline.to_loop(when)
        if self._ask_at < math.inf:
            self._kick()

    def next_call(self, now: float) -> tuple[float, bool]:
        """Return the loop time of the next call, and True if it is the regular one of its interval."""
        if not self.is_shared:
            return math.inf, True
        peer, timeline = self.peer, self.owner.timeline
        now_ns = timeline.to_ns(now)
        self._demand.look(now)
        if peer.go_on_alone(now_ns):
            self.owner.queue.admission.forget()
            self.owner.wake()
        self._is_resting = not peer.has_demand(self._demand_at(now), now_ns)
        if self._is_resting:
            peer.idle()
            self._ask_at = math.inf
            interval = peer.interval_ns() / _NS
            if (
                self.owner.queue.ready_count() and not self.owner.is_paused
            ):  # held back by a limit of our own, which sends no notification when it allows a start
                return now + interval, True
            return max(self.owner.armed - LOOK_AHEAD_INTERVALS * interval, now + interval), True
        regular = max(timeline.to_loop(peer.next_call(now_ns)), self._retry_at)
        return (regular, True) if regular <= max(now, self._ask_at) else (self._ask_at, False)

    def request(self, now: float, *, is_regular: bool) -> Request:
        """Make the next request."""
        self._ask_at = math.inf
        return self.peer.request(self.owner.timeline.to_ns(now), self._demand_at(now), is_regular=is_regular)

    def receive(self, request: Request, reply: Reply, *, is_step: bool, now: float) -> None:
        """Process an answer."""
        self._retry_at = -math.inf
        before, era, state = self.peer.grid, self.peer.era, self.peer.state
        has_come = self.peer.receive(request, reply, is_step=is_step, now_ns=self.owner.timeline.to_ns(now))
        self.owner.queue.admission.forget()  # some may also be void
        self._tell_of_life(era, state, now)
        self._failed_at, self._refusal = math.inf, None
        if reply.flaw:
            self._warn(f"fleet: {_FLAWS[reply.flaw] % self.owner.name}")
        grid = self.peer.grid
        is_expected = self.peer.is_own_rate or self.owner.is_adaptive
        if before is not None and grid is not None and grid != before and not is_expected:
            LOGGER.warning(
                "fleet: %s uses %.6g a second, set by another peer; this process has set %s",
                self.owner.name,
                grid.per_second * (1 + self.peer.settings.stretch),
                self.owner.rate,
            )
        if has_come or (self.owner.is_adaptive and (grid != before or self.peer.is_watching)):
            self.owner.wake()

    def _tell_of_life(self, era: str | None, state: PeerState, now: float) -> None:
        """Log a join, a quarantine or the end of an outage; ``era`` and ``state`` are the previous ones."""
        peer, name = self.peer, self.owner.name
        if era is None:
            LOGGER.info("fleet: %s joins its group as %s, rank %s", name, peer.settings.id, peer.rank)
        elif state is PeerState.OUTAGE:
            LOGGER.info("fleet: the outage of %s is over after %.3g s", name, now - self._failed_at)
        if peer.era != era:
            end_ns = peer.quarantine_end(self.owner.timeline.to_ns(now))
            if end_ns is not None:
                seconds = self.owner.timeline.to_loop(end_ns) - now
                LOGGER.info("fleet: %s starts nothing for %.3g s: the quarantine of a new era", name, seconds)

    def fail(self, now: float, error: Exception, *, pause: float = 0.0) -> None:
        """Record a call without an answer, or with a refusal; the next one comes after a pause."""
        self.peer.fail(self.owner.timeline.to_ns(now))
        self._retry_at = now + pause
        self._failed_at = min(self._failed_at, now)
        self._refusal = reason_of(error) if is_refusal(error) else None

    def look_ahead(self, now: float) -> float:  # noqa: ARG002  # only permits are requested
        """Return infinity: there is nothing to prepare."""
        return math.inf

    def tell_of_rank(self) -> None:
        """Warn if the outage policy leaves this peer no permits."""
        outage, rank = self.peer.settings.outage, self.peer.rank
        if outage.kind == "static" and rank is not None and rank >= outage.peers_max:
            LOGGER.warning(
                "fleet: %s starts nothing in this outage: its rank %d is not below %s; crashed peers keep theirs for a while",
                self.owner.name,
                rank,
                outage,
            )

    def hold(self, now: float, count: int = 1) -> tuple[str, str, float | None] | None:
        """Return why no permit comes, as :func:`hold_of` does; None if permits come, as far as is known.

        Args:
            now: the loop time.
            count: how many permits are wanted; None is returned if that many are held.
        """
        peer, timeline = self.peer, self.owner.timeline
        if not self.is_shared or peer.permits.held_count() >= count or peer.goes_on_alone:
            return None
        return hold_of(peer, self._refusal, timeline, now, what="permits")

    def source(self) -> str | None:
        """Return the source of permits in words; None if the authority grants them to this peer alone."""
        if self.peer.goes_on_alone:
            return f"no answer from the authority; outage policy: {self.peer.settings.outage}"
        peers = self.permits.peers
        return f"{peers} processes share the rate" if self.is_shared and peers > 1 else None

    def close(self) -> None:
        """Leave the group: the executor has closed."""
        self._leave(self)

    def statistics(self, now: float) -> FleetStatistics:
        """Return the statistics of this member."""
        peer, clock = self.peer, self.peer.clock
        now_ns = self.owner.timeline.to_ns(now)
        grid = peer.grid
        return FleetStatistics(
            state=peer.state,
            peers=0 if grid is None else peer.permits.peers,
            rank=peer.rank,
            era=peer.era,
            rate=None if grid is None else grid.per_second,
            demand=peer.demand,
            held=peer.permits.held_count(),
            granted=peer.granted_count,
            taken=peer.permits.taken_count,
            lapsed=peer.permits.lapsed_count,
            refused=peer.refused_count,
            offset=(clock.at(now_ns) - now_ns) / _NS if clock.is_known else None,
            offset_error=clock.error_ns(now_ns) / _NS if clock.is_known else None,
            since_grant=None if peer.last_grant_ns is None else (now_ns - peer.last_grant_ns) / _NS,
            failures=peer.failed_count,
        )

    def _recent_count(self, now: float) -> int:
        """Count the starts of an interval, on average since the last count of an interval or longer."""
        taken_count, interval = self.permits.taken_count, self.peer.interval_ns() / _NS
        if now >= self._seen_at + interval:
            self._recent = int((taken_count - self._seen_count) * interval / (now - self._seen_at))
            self._seen_at, self._seen_count = now, taken_count
        return max(self._recent, taken_count - self._seen_count)

    def _demand_at(self, now: float) -> DemandUntil:
        """Return a function that counts the due tasks that could start, as seen now."""
        to_loop, debt_count = self.owner.timeline.to_loop, self.peer.permits.debt_count
        now_ns, interval_ns = self.owner.timeline.to_ns(now), self.peer.interval_ns()

        def count(due_ns: int, begin_ns: int, end_ns: int, most: int) -> int:
            if self.owner.is_paused or self.owner.queue.is_halted:
                return 0
            wanted = self._demand.count(now, to_loop(due_ns), to_loop(begin_ns), to_loop(end_ns), most)
            if begin_ns > now_ns and now - self._idle_at > _HUNGRY_INTERVALS * interval_ns / _NS:
                recent_count = self._recent_count(now)
                if (
                    0 < wanted < recent_count >= _RECENT_COUNT
                ):  # those served lately were more than wait: they come back
                    wanted += recent_count * (end_ns - now_ns) // interval_ns
            # A task's cost beyond one permit counts once it has started: it is then owed, and paid from later grants.
            return wanted + debt_count

        return count


def hold_of(
    peer: Peer | TicketPeer, refusal: str | None, timeline: Timeline, now: float, *, what: str
) -> tuple[str, str, float | None] | None:
    """Return why the authority grants a peer nothing; None if it may.

    Args:
        peer: the peer that calls.
        refusal: why the last call was refused; None if it was not.
        timeline: of the manager.
        now: the loop time.
        what: the name of what is granted.

    Returns:
        The kind, ``outage`` or ``quarantine``; the reason in words; and its end in loop time, if known.
    """
    if peer.state in (PeerState.SYNC, PeerState.OUTAGE):
        answer = f"{peer.failed_count} calls in a row without an answer" if peer.failed_count else "no answer yet"
        if refusal is not None:
            answer = f"refused: {refusal}"
        return "outage", f"{answer}; outage policy: {peer.settings.outage}", None
    end_ns = peer.quarantine_end(timeline.to_ns(now))
    if end_ns is None:
        return None
    end = timeline.to_loop(end_ns)
    return "quarantine", f"for {max(0.0, end - now):.3g} s, as {what} of before may still be in use", end
