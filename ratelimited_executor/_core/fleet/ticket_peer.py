"""One peer's side of the limits of a group: when to call, what to ask for, what to remember.

A peer calls as soon as tasks could start and have no tickets, at least 10 ms after its last call. A refusal says when
the next ticket could be admitted: the next call comes half a grant interval before that, or in a second, since costs
that others give back may admit it earlier.

A peer remembers the state of the limits in each reply, and calls from time to time until they are at rest, so that an
authority that has lost its memory gets it back in its quarantine. Rule 6 of ``tickets.py`` is the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.fleet.budget import HeldTicket, TicketBudget
from ratelimited_executor._core.fleet.laws import read_limit
from ratelimited_executor._core.fleet.peer_states import PeerState, check_move
from ratelimited_executor._core.fleet.tickets import (
    CLOCK_HOLDER,
    FAIR_HOLDER,
    LimitCopy,
    LimitState,
    Outcome,
    PlanLimit,
    TicketCall,
    TicketReply,
    TicketRun,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor._core.fleet.clock import ServerClock
    from ratelimited_executor._core.fleet.policies import Outage

__all__ = ["Refusal", "TicketPeer", "TicketSettings"]

_ASK_GAP_NS: Final = 10_000_000  # between two calls
_ASK_AGAIN_NS: Final = 1_000_000_000  # after a refusal, even if it named a later time
_FAILED_COUNT: Final = 2  # calls in a row, after which the authority counts as away
_CORRECTIONS: Final = 200  # in a call
_LATE_US: Final = 20_000  # how long after it was made a call may be sent
_COPIES: Final = 200  # in a call
_REMEMBERED: Final = 10_000  # limits, including those of keys
_ANY_US: Final = 1 << 52  # a time at which any state can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketSettings:
    """The settings shared by all executors of a process.

    Attributes:
        id: of this incarnation of the process.
        weight: its share, relative to others, while demand exceeds the limits, in thousandths.
        interval_us: how far ahead a ticket may be admitted.
        late_us: how long after its time a ticket may be used.
        difference_us: the largest difference between the clocks of two servers.
        timeout_us: the time after which a call counts as lost.
        outage: the behaviour while the authority is away.
    """

    id: str
    weight: int
    interval_us: int
    late_us: int
    difference_us: int
    timeout_us: int
    outage: Outage

    @property
    def quarantine_us(self) -> int:
        """The quarantine of a new era: until tickets have lapsed, and each peer has called three times."""
        return 2 * self.difference_us + self.interval_us + 3 * self.late_us + 250_000


class Refusal(NamedTuple):
    """Why no more tickets were granted.

    Attributes:
        holder: the name of the limit, ``peers`` or ``penalty``.
        at_us: when a ticket could be admitted, by the authority's clock; 0 if not known.
    """

    holder: str
    at_us: int


class TicketPeer:
    """One process's part in the limits of one executor.

    Args:
        settings: those of the process.
        plan_id: names the limits that this process has set.
        plan: returns these limits, given the authority's time in microseconds; quotas name their periods.
        clock: the authority's clock.
        is_clock_whole: returns True while our own clock has run without a break.

    Attributes:
        budget: the tickets held.
        era: the authority's; None before the first answer.
        limits: each limit's state in the latest reply, by name.
        is_own_plan: True if the plan in force is the one that this process has set.
        refusal: of the latest answer; None if it refused nothing.
        granted_count: tickets granted.
        refused_count: tickets requested and not granted.
        failed_count: calls in a row without an answer.
        asked_count: tickets requested in the latest call.
        lag_us: how far ahead the latest ticket was when granted; shows how busy the group is.
        refused_keys: until when the latest answer refuses keys, by the authority's clock; 0 if not known.
    """

    def __init__(
        self,
        settings: TicketSettings,
        plan_id: str,
        plan: Callable[[int], tuple[PlanLimit, ...]],
        clock: ServerClock,
        *,
        is_clock_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.budget = TicketBudget(clock, late_us=settings.late_us, is_clock_whole=is_clock_whole)
        self.era: str | None = None
        self.limits: dict[str, tuple[str, int, int, int]] = {}  # resource, used, amount, until_us
        self.is_own_plan = True
        self.refusal: Refusal | None = None
        self.granted_count = 0
        self.refused_count = 0
        self.failed_count = 0
        self.asked_count = 0
        self.last_grant_ns: int | None = None
        self.refused_keys: dict[str, int] = {}
        self.lag_us = 0
        self._state = PeerState.SYNC
        self._plan_id, self._plan = plan_id, plan
        self._is_new_plan = True
        self._has_jumped = False
        self._since_us = 0  # since when our clock has agreed with the authority's, in the authority's time
        self._penalties: list[tuple[str, int]] = []  # (key, their end in our time)
        self._copies: dict[
            str, tuple[LimitCopy, int]
        ] = {}  # and how long to remember each, in our time: no step of the authority's clock shortens that
        self._untold: list[LimitCopy] = []  # to be sent to the authority in this quarantine
        self._quarantine_ns = 0  # until when nothing is admitted
        self._called_ns: int | None = None
        self._heard_ns = 0  # when the latest answered call was made
        self._ask_ns = 0  # before this time, asking again is useless
        self._news_ns: int | None = None  # when there is something to report

    # States.

    @property
    def state(self) -> PeerState:
        """The state of the peer."""
        return self._state

    def _move_to(self, state: PeerState) -> None:
        check_move(self.settings.id, self._state, state)
        self._state = state

    # Settings.

    def set_plan(self, plan_id: str, plan: Callable[[int], tuple[PlanLimit, ...]], now_ns: int) -> None:
        """Request other limits for the whole group; tickets of the previous limits are void."""
        self._plan_id, self._plan = plan_id, plan
        self._is_new_plan = True
        self.budget.drop()
        self._ask_ns, self._news_ns = 0, now_ns

    def penalize(self, key: str, until_ns: int, now_ns: int) -> None:
        """Admit nothing in the group before a time of ours; with a key, nothing of that key."""
        self._penalties.append((key, until_ns))
        self._news_ns = now_ns

    # Calling.

    def next_call(self, wanted: int, now_ns: int) -> int | None:
        """Return when the next call is due, given how many more tickets are wanted; None if none is due."""
        times: list[int] = []
        if wanted > 0:
            times.append(max(self._ask_ns, self._quarantine_ns, now_ns))
        if self._untold or self._has_jumped:
            times.append(now_ns)
        if self._news_ns is not None:
            times.append(self._news_ns)
        if self.budget.corrections:
            times.append((self._called_ns or now_ns) + self.settings.interval_us * 1000)
        if self._remembers(now_ns):
            times.append((self._called_ns or now_ns) + self.settings.quarantine_us * 1000 // 4)
        if not times:
            return None
        first = min(times)
        return first if self._called_ns is None else max(first, self._called_ns + _ASK_GAP_NS)

    def _remembers(self, now_ns: int) -> bool:
        """True while some limit must be remembered; forgets the others once a later call was answered."""
        for name in [name for name, (_, until_ns) in self._copies.items() if until_ns <= min(now_ns, self._heard_ns)]:
            del self._copies[name]
        return bool(self._copies)

    def request(self, runs: Sequence[TicketRun], waiting: int, now_ns: int) -> TicketCall:
        """Make the next request.

        Args:
            runs: the tickets to request.
            waiting: how many more tickets could be used at once.
            now_ns: our time.
        """
        self._called_ns, self._news_ns = now_ns, None
        self.asked_count = sum(run.wanted for run in runs)
        corrections = self.budget.corrections
        told = [corrections.popleft() for _ in range(min(_CORRECTIONS, len(corrections)))]
        asked = {run.key for run in runs}
        runs = [
            *runs,
            *(TicketRun(0, (), key, text) for key, text in self.budget.corrected.items() if key not in asked),
        ]
        self.budget.corrected.clear()
        copies = self._untold[:_COPIES]
        del self._untold[:_COPIES]
        time_us = self.clock.at(now_ns) // 1000 if self.clock.is_known else 0
        error_us = self.clock.error_ns(now_ns) // 1000 + 1000
        if not self.clock.is_known:
            self._since_us = 0
        return TicketCall(
            peer=self.settings.id,
            weight=self.settings.weight,
            era=self.era or "",
            since_us=self._since_us,
            earliest_us=max(0, time_us - error_us),
            latest_us=time_us + error_us + self.settings.timeout_us + _LATE_US,
            interval_us=self.settings.interval_us,
            difference_us=self.settings.difference_us,
            quarantine_us=self.settings.quarantine_us,
            has_jumped=self._has_jumped,
            plan_id=self._plan_id,
            plan=self._plan(time_us),
            is_new_plan=self._is_new_plan,
            penalties=tuple((key, max(0, until_ns - now_ns) // 1000) for key, until_ns in self._penalties),
            corrections=tuple(told),
            copies=tuple(copies),
            runs=tuple(runs),
            waiting=waiting,
        )

    def receive(self, call: TicketCall, reply: TicketReply, *, is_step: bool, now_ns: int) -> bool:
        """Process an answer; return True if it brought tickets.

        Args:
            call: the request that it answers.
            reply: the answer.
            is_step: True if it contradicts the known time of the authority's clock.
            now_ns: our time.
        """
        if self._state is PeerState.CLOSED:
            return False  # its tickets lapse: the peer has left
        is_new_era = reply.era != self.era
        self._heard_ns = self._called_ns or 0
        if is_step or not self._since_us:
            self._since_us = reply.now_us
        if is_new_era or is_step:
            self.budget.drop()
        self._has_jumped = is_step and not is_new_era
        if is_new_era:
            self.era = reply.era
            self._untold = [copy for copy, _ in self._copies.values()] if reply.quarantine_us else []
        self.failed_count = 0
        if call.plan_id == self._plan_id and call.is_new_plan:
            self._is_new_plan = False
        del self._penalties[: len(call.penalties)]
        self._move_to(PeerState.ACTIVE)
        self.is_own_plan = reply.plan_id == self._plan_id
        if not self.is_own_plan and any(each.until_us < reply.now_us for each in reply.limits):
            self._is_new_plan = True  # one of its quotas has ended, and no peer is left that knows the next period
        self._quarantine_ns = now_ns + reply.quarantine_us * 1000 if reply.quarantine_us else 0
        if not is_step:  # a state at a doubtful time is not remembered
            self._remember(reply, now_ns)
        if self._has_jumped:
            return False
        return self._take_in(call, reply, now_ns)

    def _remember(self, reply: TicketReply, now_ns: int) -> None:
        """Keep the authority's state of each limit, or ours if it is newer and may still be sent."""
        self.limits = {each.name: (each.resource, each.used, each.amount, each.until_us) for each in reply.limits}
        for each in reply.limits:
            known = self._copies.get(each.name)
            until_ns = now_ns + (each.until_us - reply.now_us) * 1000
            if reply.quarantine_us and known is not None and known[0].serial >= each.serial:
                later_ns = now_ns + 2 * reply.quarantine_us * 1000
                self._copies[each.name] = known[0], max(until_ns, later_ns, known[1])
            else:
                self._copies[each.name] = _copy_of(each), until_ns

    def _take_in(self, call: TicketCall, reply: TicketReply, now_ns: int) -> bool:
        count, self.refusal = 0, None
        times = [at_us for outcome in reply.outcomes for at_us, _ in outcome.tickets]
        if times:
            self.lag_us = max(times) - reply.now_us
        self.refused_keys.clear()
        for run, outcome in zip(call.runs, reply.outcomes, strict=True):
            costs = dict(run.costs)
            if run.key:
                self._take_in_key(run, outcome, reply.now_us, now_ns)
            counted = [(each.name, each.resource) for each in reply.limits if each.resource in costs]
            for at_us, receipts in outcome.tickets:
                held = tuple(
                    (name, resource, receipt) for (name, resource), receipt in zip(counted, receipts, strict=False)
                )
                key_receipt = receipts[-1] if run.settings else 0
                self.budget.hold(
                    HeldTicket(
                        at_us, dict(costs), held, run.key, run.settings, run.key_cost if run.key else 0, key_receipt
                    )
                )
            count += len(outcome.tickets)
            self.refused_count += run.wanted - len(outcome.tickets)
            if outcome.holder == CLOCK_HOLDER:
                continue
            if outcome.holder and self.refusal is None and outcome.holder != run.key:
                self.refusal = Refusal(outcome.holder, outcome.at_us)
        self.granted_count += count
        if count:
            self.last_grant_ns = now_ns
        self._ask_ns = now_ns
        if self.refusal is not None:
            when_ns = now_ns + _ASK_AGAIN_NS
            if self.refusal.at_us and self.clock.is_known:
                ahead_ns = 0 if self.refusal.holder == FAIR_HOLDER else self.settings.interval_us * 500
                when_ns = min(when_ns, self.clock.here(self.refusal.at_us * 1000) - ahead_ns)
            self._ask_ns = when_ns
        return count > 0

    def _take_in_key(self, run: TicketRun, outcome: Outcome, told_us: int, now_ns: int) -> None:
        """Record until when a key is refused, and remember the state of its limit."""
        if outcome.holder == run.key:
            self.refused_keys[run.key] = outcome.at_us
        if outcome.text and len(self._copies) < _REMEMBERED:
            limit = read_limit(run.settings, outcome.text, _ANY_US)
            until_us = told_us if limit is None else limit.use(told_us).until_us
            copy = LimitCopy(name=run.key, is_key=True, serial=outcome.serial, text=outcome.text)
            self._copies[f"key {run.key}"] = copy, now_ns + (until_us - told_us) * 1000

    def fail(self, call: TicketCall | None, now_ns: int) -> None:
        """Record a call without an answer; it may have arrived, so its costs are not given back again."""
        self.failed_count += 1
        if call is not None:
            self.budget.corrections.extend(each for each in call.corrections if each.cost < 0)
            self._untold += call.copies
        self._ask_ns = now_ns
        if self.failed_count >= _FAILED_COUNT and self._state is not PeerState.CLOSED:
            self._move_to(PeerState.OUTAGE)

    def note_step(self, told_us: int) -> None:
        """Drop all tickets after a step of the authority's clock to a time; the next call, at once, reports it."""
        self.budget.drop()
        self._since_us = told_us
        self._has_jumped = self.era is not None
        self._ask_ns = 0

    def resync(self) -> None:
        """Start over after our own clock stood still: the times of held tickets are no longer known."""
        self._move_to(PeerState.SYNC)
        self.budget.drop()
        self._ask_ns = 0

    def idle(self) -> None:
        """Record that there is no reason to call."""
        self.asked_count = 0
        if self._state is PeerState.ACTIVE:
            self._move_to(PeerState.IDLE)

    def leave(self) -> TicketCall:
        """Make the last request, which gives back all held tickets: the executor has closed.

        It also contains the remembered limits: the authority may have forgotten them, and no other peer may know them.
        """
        self._move_to(PeerState.CLOSED)
        self.budget.give_all_back()
        self._untold = sorted((copy for copy, _ in self._copies.values() if copy.text), key=lambda copy: copy.is_key)
        return self.request((), 0, self._called_ns or 0)

    def quarantine_end(self, now_ns: int) -> int | None:
        """Return when the quarantine ends, in our time; None if it is over."""
        return self._quarantine_ns if self._quarantine_ns > now_ns else None


def _copy_of(state: LimitState) -> LimitCopy:
    return LimitCopy(name=state.name, is_key=False, serial=state.serial, text=state.text)
