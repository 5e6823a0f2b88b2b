"""One peer's side of the limits of a group: when to call, what to ask for, what to remember.

A peer calls as soon as tasks could start and have no tickets. One call is on its way at a time: what is wanted meanwhile
goes with the next (as Nagle, RFC 896, for small segments). A refusal says when to ask again; a peer that holds many, or got
some of what it wanted, asks when three quarters of these are due.

It asks for no more than it can start: unless a pace spreads them, the tickets that it holds are at most the starts that
fit into half of a ticket's life, by the time on the event loop that its latest starts have taken. If most of its tickets
have lapsed, it asks for as many as it has used, and for twice as many after each call of which none lapses.

A slow way to the authority makes lives longer, like an event loop that is slow to use what has come. If that takes longer
than tickets may live, the peer asks for tickets of a later time.

A peer remembers the state of the limits in each reply, and calls from time to time until they are at rest, so that an
authority that has lost its memory gets it back in its quarantine. Rule 6 of ``tickets.py`` is the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.fleet.budget import HeldTicket, TicketBudget
from ratelimited_executor._core.fleet.laws import read_limit
from ratelimited_executor._core.fleet.limit_settings import PaceSettings, read_settings
from ratelimited_executor._core.fleet.peer_states import PeerState, check_move
from ratelimited_executor._core.fleet.ticket_calls import (
    CLOCK_HOLDER,
    LAPSED_US,
    LimitCopy,
    LimitState,
    PlanLimit,
    Report,
    TicketCall,
    TicketOutcome,
    TicketReply,
    TicketRun,
)
from ratelimited_executor._core.queue.records import PERMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from fractions import Fraction

    from ratelimited_executor._core.fleet.clock import ServerClock
    from ratelimited_executor._core.fleet.policies import Outage

__all__ = ["NEWS_NS", "TICKETS_MAX", "Refusal", "TicketPeer", "TicketSettings"]

_ASK_AGAIN_NS: Final = 1_000_000_000  # after a refusal, even if it named a later time
_FAILED_COUNT: Final = 2  # calls in a row, after which the authority counts as away
_CORRECTIONS: Final = 200  # in a call; and reports
_RETURN_NS: Final = 100_000_000  # after the last call, what was not used is given back
_REPORT_NS: Final = 500_000_000  # after a start that others wait for, it is reported
_SOON_NS: Final = 1_000_000  # a call after a refusal comes at least this later, or half a trip
_COST_NS: Final = 20_000  # of a start on the loop, at least
_RICH: Final = 8  # tickets, of which most may be due before more are asked for
_CREDIT_MIN: Final = 4  # tickets that may be held in any case: not every task can use every ticket
_COSTS: Final = 5  # the latest starts count for a fifth
NEWS_NS: Final = 750_000_000
"""The longest time until every calling peer knows of new limits."""

TICKETS_MAX: Final = 1000
"""How many tickets are requested in a call, at most."""

_SLOW_NS: Final = 5_000_000  # round trips beyond that make lives longer
_LATE_US: Final = 20_000  # how long after it was made a call may be sent
_AFTER_MAX_US: Final = 150_000  # how much later than the present the tickets of a slow event loop are to be
_PENALTIES: Final = 200  # in a call
_COPIES: Final = 200  # in a call, at least
_COPIES_MAX: Final = 2000
_REMEMBERED: Final = 10_000  # limits, including those of keys


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketSettings:
    """The settings shared by all executors of a process.

    Attributes:
        id: of this incarnation of the process.
        weight: its share, relative to others, while demand exceeds the limits, in thousandths.
        ahead_us: how far ahead a ticket may be admitted, if no more is needed to share it evenly.
        difference_us: the largest difference between the clocks of two servers.
        outage: the behaviour while the authority is away.
    """

    id: str
    weight: int
    ahead_us: int
    difference_us: int
    outage: Outage

    @property
    def quarantine_us(self) -> int:
        """The quarantine of a new era: until all tickets have lapsed, and their starts have left a window of a second."""
        return LAPSED_US + 1_000_500


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
        is_adaptive: True if the limits in force, if there are any, go before its own when it joins.
        is_clock_whole: returns True while our own clock has run without a break.
        machine: returns what identifies the machine's clock, and how far ours is ahead of it.
        wall_us: returns the machine's time since the epoch, for the periods of quotas while the authority's is not known.

    Attributes:
        budget: the tickets held.
        era: the authority's; None before the first answer.
        limits: each limit's state in the latest reply, by name.
        is_own_plan: True if the plan in force is the one that this process has set or follows.
        refusal: of the latest answer; None if it refused nothing.
        granted_count: tickets granted.
        refused_count: tickets requested and not granted.
        failed_count: calls in a row without an answer.
        asked_count: tickets requested in the latest call.
        refused_keys: the cost that the latest answer refused to each key, and when to ask for it again, by the
            authority's clock; 0 if not known.
        resources: those that this process's limits count.
        peers_count: how many peers have called the authority lately.
        cost_ns: the time on the event loop that a start takes, of late.
        trip_ns: the time of a call, of late.
        delay_ns: the time from an answer at the authority to the first starts, of late.
        patience_us: the time after which the next call counts as lost.
    """

    def __init__(
        self,
        settings: TicketSettings,
        plan_id: str,
        plan: Callable[[int], tuple[PlanLimit, ...]],
        clock: ServerClock,
        *,
        is_adaptive: bool = False,
        is_clock_whole: Callable[[], bool] = lambda: True,
        machine: Callable[[], tuple[str, int]] = lambda: ("", 0),
        wall_us: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings
        self._machine, self._wall_us = machine, wall_us
        self.clock = clock
        self.budget = TicketBudget(clock, is_clock_whole=is_clock_whole)
        self.era: str | None = None
        self.limits: dict[str, tuple[str, int, int, int]] = {}  # resource, used, amount, until_us
        self.is_own_plan = True
        self.refusal: Refusal | None = None
        self.granted_count = 0
        self.refused_count = 0
        self.failed_count = 0
        self.asked_count = 0
        self.last_grant_ns: int | None = None
        self.refused_keys: dict[str, tuple[int, int]] = {}
        self.peers_count = 0
        self.cost_ns = _COST_NS
        self.trip_ns = 0
        self.delay_ns = 0
        self._credit = TICKETS_MAX  # tickets held, at most
        self._counted = 0, 0  # permits used and lapsed, at the latest call
        self.patience_us = 0
        self._state = PeerState.SYNC
        self._use(plan_id, plan)
        # A process without a limit takes none from the others. Where none is in force, that of an adaptive one is taken.
        self._is_new_plan = bool(self.resources) and not is_adaptive
        self._has_jumped = False
        self._followed_id = ""  # of the limits of others that this process has adopted ...
        self._told_id = ""  # ... and of those in the latest answer
        self._watched_until_ns = 0
        self._told_ns = -NEWS_NS  # the time of the latest answer
        self._is_new = False
        self._has_vouched = False  # the latest call did so for the authority's time
        self._since_us = 0  # since when our clock has agreed with the authority's, in the authority's time
        self._penalties: dict[str, int] = {}  # to be told: their ends in our time, by key
        self._told_penalties: list[tuple[str, int]] = []  # of these, the ones in the latest call
        self._copies: dict[
            str, tuple[LimitCopy, int]
        ] = {}  # and how long to remember each, in our time: no step of the authority's clock shortens that
        self._untold: list[LimitCopy] = []  # to be sent to the authority in this quarantine ...
        self._copies_count = _COPIES  # ... by so many in a call
        self._quarantine_ns = 0  # until when nothing is admitted
        self._called_ns: int | None = None
        self._heard_ns = 0  # when the latest answered call was made
        self._forget_ns = 0  # a call answered after that lets copies at rest be forgotten
        self._number = 0  # of the latest call
        self._gap_ns = 0  # between two calls, by the authority's load
        self._life_us = 0  # of the latest tickets
        self._is_contended = False  # others want what this peer does
        self._report_ns: int | None = None  # when reports are due that others wait for
        self._ask_ns = 0  # before this time, asking again is useless
        self._is_plain = True  # the latest call asked for no key
        self._news_ns: int | None = 0  # when there is something to report: at first, this process's limits

    # States.

    @property
    def state(self) -> PeerState:
        """The state of the peer."""
        return self._state

    def _move_to(self, state: PeerState) -> None:
        check_move(self.settings.id, self._state, state)
        self._state = state

    # Settings.

    def _use(self, plan_id: str, plan: Callable[[int], tuple[PlanLimit, ...]]) -> None:
        limits = plan(0)
        self._plan_id, self._plan, self.resources = plan_id, plan, {each.resource for each in limits}
        self._rate = _slowest_of(limits).get(PERMITS)
        settings = [read_settings(each.settings) for each in limits if each.resource == PERMITS]
        self._even_ns = max((each.gap_us * 1000 for each in settings if isinstance(each, PaceSettings)), default=0)

    def set_plan(self, plan_id: str, plan: Callable[[int], tuple[PlanLimit, ...]], now_ns: int) -> None:
        """Request other limits for the whole group, or no limit for this process; earlier tickets are void."""
        self._use(plan_id, plan)
        self._is_new_plan = bool(self.resources)
        self.budget.return_all()
        self._ask_ns, self._news_ns = 0, now_ns

    def follow(self, plan_id: str, plan: Callable[[int], tuple[PlanLimit, ...]]) -> None:
        """Adopt the limits in force, which another process has set, as this process's own."""
        self._use(plan_id, plan)
        self._followed_id, self.is_own_plan = self._told_id, True

    def watch(self, until_ns: int) -> None:
        """Call again and again until a time of ours, to learn the limits in force."""
        self._watched_until_ns = max(self._watched_until_ns, until_ns)

    @property
    def rate(self) -> Fraction | None:
        """The starts a second that the limits in force allow; None before the first answer, and if they count no starts."""
        if self.era is None:
            return None
        return self._rate if self.is_own_plan else self.budget.slowest.get(PERMITS)

    @property
    def is_settled(self) -> bool:
        """True unless this process has set limits that the authority has not confirmed."""
        return not self._is_new_plan

    @property
    def is_new(self) -> bool:
        """True if the latest answer tells what has changed since a recent one."""
        return self._is_new

    def is_told(self, now_ns: int) -> bool:
        """True while the latest answer is recent enough to know the limits in force, up to changes made just now."""
        return self._state is PeerState.ACTIVE and now_ns - self._told_ns <= NEWS_NS

    def penalize(self, key: str, until_ns: int, now_ns: int) -> None:
        """Admit nothing in the group before a time of ours; with a key, nothing of that key."""
        self._penalties[key] = max(until_ns, self._penalties.get(key, 0))
        self._news_ns = now_ns

    def _forget_told_penalties(self) -> None:
        for key, until_ns in self._told_penalties:
            if self._penalties.get(key) == until_ns:
                del self._penalties[key]

    # Calling.

    def is_refused(self, now_ns: int) -> bool:
        """True while it is useless to ask for what the limits of the plan have refused."""
        return self._ask_ns > now_ns

    def next_call(self, wanted: int, now_ns: int, *, is_due: bool = False) -> int | None:
        """Return when the next call is due; None if none is.

        Args:
            wanted: how many more tickets are wanted.
            now_ns: our time.
            is_due: True if the time has come to ask for a key.
        """
        times: list[int] = []
        if wanted > 0:
            is_full = not self.room
            full_ns = self.clock.surely_after(self.budget.lapse_us() * 1000, now_ns) if is_full else now_ns
            times.append(max(0 if is_due else self._ask_ns, self._quarantine_ns, full_ns))
        if self._report_ns is not None and self.budget.has_reports:
            times.append(self._report_ns)
        if self._untold or self._has_jumped or (self._quarantine_ns > now_ns and not self._has_vouched):
            times.append(now_ns)
        if self._news_ns is not None:
            times.append(self._news_ns)
        if self.budget.corrections:
            is_charge = any(each.cost < 0 for each in self.budget.corrections)
            times.append(now_ns if is_charge else (self._called_ns or now_ns) + _RETURN_NS)
        if self._copies:
            times.append((self._called_ns or now_ns) + self.settings.quarantine_us * 1000 // 2)
        if self._watched_until_ns > now_ns:
            times.append(now_ns if self._called_ns is None else self._called_ns + NEWS_NS // 3)
        if not times:
            return None
        first = min(times)
        return first if self._called_ns is None else max(first, self._called_ns + self._gap_ns)

    # Asking for what can be started.

    @property
    def wanted_life_us(self) -> int:
        """How long tickets should live: eight starts, three round trips of a slow way, or twice until they are used."""
        way_ns = 3 * self.trip_ns + self._gap_ns if self.trip_ns > _SLOW_NS else 0
        late_ns = 2 * self.delay_ns if self.delay_ns > _SLOW_NS else 0
        return max(8 * self.cost_ns, way_ns, late_ns) // 1000

    @property
    def after_us(self) -> int:
        """How much later than the present tickets are to be, so that they are not over before they are used."""
        delay_us = self.delay_ns // 1000
        return 0 if 5 * delay_us < 4 * self._life_us else min(_AFTER_MAX_US, max(0, delay_us - self._life_us // 2))

    @property
    def room(self) -> int:
        """How many more tickets could be used in time."""
        most = TICKETS_MAX
        if 4 * self._even_ns < 5 * self.cost_ns:  # else they come one by one, more slowly than they are used
            life_ns = max(self._life_us, self.wanted_life_us) * 1000 - self.delay_ns
            most = max(1, life_ns // (2 * self.cost_ns))
        elif self._credit == TICKETS_MAX:
            return TICKETS_MAX
        return max(0, min(most, self._credit) - self.budget.ticket_count)

    @property
    def span_ns(self) -> int:
        """The time between two calls."""
        return self.trip_ns + self._gap_ns

    def note_starts(self, count: int, passed_ns: int) -> None:
        """Learn how long starts take on the event loop."""
        self.cost_ns += (max(_COST_NS, passed_ns // count) - self.cost_ns) // _COSTS

    def note_delay(self, passed_ns: int) -> None:
        """Learn how long after an answer was made its tickets are used."""
        self.delay_ns = (self.delay_ns + passed_ns) // 2

    def _look_at_lapses(self) -> None:
        """Learn from the tickets that have lapsed since the latest call how many can be used."""
        before, self._counted = self._counted, (self.budget.used_count, self.budget.lapsed_count)
        used, lapsed = self._counted[0] - before[0], self._counted[1] - before[1]
        if lapsed > used:
            self._credit = max(_CREDIT_MIN, used)
        elif used and not lapsed:
            self._credit = min(2 * self._credit, TICKETS_MAX)

    def request(self, runs: Sequence[TicketRun], now_ns: int) -> TicketCall:
        """Make the next request, for some tickets."""
        self._called_ns, self._news_ns, self._report_ns = now_ns, None, None
        self._number += 1
        self._look_at_lapses()
        self.asked_count = sum(run.wanted for run in runs)
        self._is_plain = not any(run.key for run in runs)
        corrections = self.budget.corrections
        told = [corrections.popleft() for _ in range(min(_CORRECTIONS, len(corrections)))]
        self.budget.look_at_starts()
        starts = self.budget.reports
        reports = [
            Report(name, key, start_us, cost, receipt)
            for name, key, receipt in list(starts)[:_CORRECTIONS]
            for start_us, cost in [starts.pop((name, key, receipt))]
        ]
        asked = {run.key for run in runs}
        corrected = dict.fromkeys([*(each.key for each in told), *(each.key for each in reports)])  # in this order
        more = [key for key in corrected if key and key not in asked]
        runs = [*runs, *(TicketRun(0, (), key, self.budget.corrected.get(key, "")) for key in more)]
        if not (corrections or starts):
            self.budget.corrected.clear()
        copies = self._untold[: self._copies_count]
        del self._untold[: self._copies_count]
        self._penalties = {key: until_ns for key, until_ns in self._penalties.items() if until_ns > now_ns}
        self._told_penalties = [*self._penalties.items()][:_PENALTIES]
        time_us = self.clock.at(now_ns) // 1000 if self.clock.is_known else 0
        error_us = self.clock.error_ns(now_ns) // 1000 + 1000
        if not self.clock.is_known:
            self._since_us = 0
        self._has_vouched = self._since_us > 0
        machine, ahead_ns = self._machine()
        return TicketCall(
            peer=self.settings.id,
            weight=self.settings.weight,
            era=self.era or "",
            since_us=self._since_us,
            earliest_us=max(0, time_us - error_us),
            latest_us=time_us + error_us + self.patience_us + _LATE_US,
            machine=machine,
            offset_us=time_us - (now_ns - ahead_ns) // 1000,
            error_us=error_us,
            number=self._number,
            ahead_us=self.settings.ahead_us,
            life_us=self.wanted_life_us,
            after_us=self.after_us,
            cycle_us=self.span_ns // 1000,
            difference_us=self.settings.difference_us,
            quarantine_us=self.settings.quarantine_us,
            has_jumped=self._has_jumped,
            plan_id=self._plan_id,
            plan=self._plan(time_us if self.clock.is_known else self._wall_us()),
            is_new_plan=self._is_new_plan,
            penalties=tuple((key, (until_ns - now_ns) // 1000) for key, until_ns in self._told_penalties),
            corrections=tuple(told),
            reports=tuple(reports),
            copies=tuple(copies),
            runs=tuple(runs),
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
            if reply.era == self.era and not is_step and not self._has_jumped:
                self._take_in(call, reply, now_ns)
                self.budget.give_all_back()
            return False
        is_new_era = reply.era != self.era
        self._heard_ns = self._called_ns or 0
        if is_step or not self._since_us:
            self._since_us, self._has_vouched = reply.now_us, False
        if is_new_era or is_step:
            self.budget.drop()
        self._has_jumped = is_step and not is_new_era
        if is_new_era:
            self.era = reply.era
            self._untold = [copy for copy, _ in self._copies.values()] if reply.quarantine_us else []
            count = 3 * len(self._untold) * self.span_ns // (self.settings.quarantine_us * 1000)  # within a third of it
            self._copies_count = max(_COPIES, min(count, _COPIES_MAX))
        self.failed_count = 0
        if call.plan_id == self._plan_id and call.is_new_plan:
            self._is_new_plan = False
        self._forget_told_penalties()
        if self._penalties:
            self._news_ns = now_ns
        self._move_to(PeerState.ACTIVE)
        self._told_id = reply.plan_id
        self.is_own_plan = reply.plan_id in (self._plan_id, self._followed_id)
        self.budget.slowest = {} if self.is_own_plan else _slowest_of(reply.plan)
        self._is_new, self._told_ns = now_ns - self._told_ns <= NEWS_NS, now_ns
        if not self.is_own_plan and any(each.until_us < reply.now_us for each in reply.limits):
            # One of its quotas has ended, and no peer is left that knows the next period.
            self._is_new_plan = bool(self.resources)
        self._quarantine_ns = now_ns + reply.quarantine_us * 1000 if reply.quarantine_us else 0
        self._gap_ns, self.peers_count = reply.gap_us * 1000, reply.peers
        if not is_step:  # a state at a doubtful time is not remembered
            self._remember(reply, now_ns)
        if self._has_jumped:
            return False
        return self._take_in(call, reply, now_ns)

    def _remember(self, reply: TicketReply, now_ns: int) -> None:
        """Keep the authority's state of each limit that it tells, or ours if it is newer and may still be sent."""
        self.limits = {each.name: (each.resource, each.used, each.amount, each.until_us) for each in reply.limits}
        if self._heard_ns >= self._forget_ns:  # not at each answer, as there may be many
            self._forget_ns = self._heard_ns + self.settings.quarantine_us * 1000 // 4
            self._copies = {name: each for name, each in self._copies.items() if each[1] > self._heard_ns}
        for each in reply.limits:
            if not each.text:
                continue
            known = self._copies.get(each.name)
            until_ns = now_ns + (each.until_us - reply.now_us) * 1000
            if reply.quarantine_us and known is not None and known[0].serial >= each.serial:
                later_ns = now_ns + 2 * reply.quarantine_us * 1000
                self._copies[each.name] = known[0], max(until_ns, later_ns, known[1])
            else:
                self._copies[each.name] = _copy_of(each), until_ns

    def _take_in(self, call: TicketCall, reply: TicketReply, now_ns: int) -> bool:
        count, self.refusal, again_us = 0, None, 0
        self.refused_keys.clear()
        is_contended = False
        for run, outcome in zip(call.runs, reply.outcomes, strict=True):
            costs = dict(run.costs)
            if run.key:
                self._take_in_key(run, outcome, reply.now_us, now_ns)
            counted = [(each.name, each.resource, each.is_dated) for each in reply.limits if each.resource in costs]
            is_key_dated = run.settings[:1] == "w" or (run.settings[:1] == "p" and run.settings.split(",")[3] != "0")
            for at_us, receipts in outcome.tickets:
                held = tuple(
                    (name, resource, receipt, is_dated)
                    for (name, resource, is_dated), receipt in zip(counted, receipts, strict=False)
                )
                self.budget.hold(
                    HeldTicket(
                        at_us,
                        at_us + outcome.life_us,
                        dict(costs),
                        held,
                        run.key,
                        run.settings,
                        run.key_cost if run.key else 0,
                        receipts[-1] if run.settings else 0,
                        is_key_dated,
                    )
                )
            if outcome.tickets:
                self._life_us = outcome.life_us
            count += len(outcome.tickets)
            self.refused_count += run.wanted - len(outcome.tickets)
            is_contended = is_contended or outcome.is_contended
            if outcome.holder == CLOCK_HOLDER:
                continue
            if outcome.holder and self.refusal is None and outcome.holder != run.key:
                self.refusal, again_us = Refusal(outcome.holder, outcome.at_us), outcome.again_us
        self.granted_count += count
        if count:
            self.last_grant_ns = now_ns
        self._is_contended = is_contended if call.runs else self._is_contended
        self.budget.next_us = self.refusal.at_us if self.refusal is not None else 0
        self.budget.sharing_count = max(1, self.peers_count) if self._is_contended else 1
        is_rich = self._is_plain and self.budget.ticket_count >= _RICH and self.budget.mostly_due_us()
        if self.refusal is not None or (count and is_rich):
            self._ask_ns = self._ask_again(again_us, count, now_ns)
        else:
            self._ask_ns = now_ns
        return count > 0

    def _ask_again(self, again_us: int, count: int, now_ns: int) -> int:
        """Return when to ask again after a refusal: when three quarters of what it holds are due, or when that was told."""
        half_ns = self.trip_ns // 2
        when_ns = now_ns + _ASK_AGAIN_NS
        due_us = self.budget.mostly_due_us() if count else again_us
        if due_us and self.clock.is_known:
            when_ns = min(when_ns, self.clock.here(due_us * 1000) - half_ns)
        return max(when_ns, now_ns + min(half_ns, _SOON_NS) + _SOON_NS // 5)

    def note_use(self, now_ns: int) -> None:
        """After starts, remember to report them if others wait for what they free."""
        if self._is_contended and self._report_ns is None and self.budget.has_reports:
            self._report_ns = now_ns + _REPORT_NS

    def _take_in_key(self, run: TicketRun, outcome: TicketOutcome, told_us: int, now_ns: int) -> None:
        """Record until when a key is refused, and remember the state of its limit."""
        if outcome.holder == run.key:
            self.refused_keys.setdefault(run.key, (run.key_cost, outcome.again_us))  # it blocks the later ones
        if outcome.text and len(self._copies) < _REMEMBERED:
            limit = read_limit(run.settings, outcome.text, told_us)
            until_us = told_us if limit is None else limit.use(told_us).until_us
            copy = LimitCopy(name=run.key, is_key=True, serial=outcome.serial, text=outcome.text)
            self._copies[f"key {run.key}"] = copy, now_ns + (until_us - told_us) * 1000

    def fail(self, call: TicketCall | None, now_ns: int) -> None:
        """Record a call without an answer; it may have arrived, so its costs are not given back again."""
        self.failed_count += 1
        self._credit = max(_CREDIT_MIN, self._credit // 2)  # a smaller call may be answered in time
        if call is not None:
            self.budget.corrections.extend(each for each in call.corrections if each.cost < 0)
            self.budget.corrected.update((run.key, run.settings) for run in call.runs if run.settings)
            self._untold += call.copies
            if call.is_new_plan or self._penalties:
                self._news_ns = now_ns
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

    def close(self) -> None:
        """Give back all held tickets, and those of an answer still to come: the executor has closed."""
        self._move_to(PeerState.CLOSED)
        self.budget.give_all_back()

    def leave(self, now_ns: int) -> list[TicketCall]:
        """Make the last requests, for which no answer is needed; call only once, and while no other request is in flight.

        They also contain the remembered limits: the authority may have forgotten them, and no other peer may know them.
        """
        self._untold = sorted((copy for copy, _ in self._copies.values() if copy.text), key=lambda copy: copy.is_key)
        calls: list[TicketCall] = []
        while not calls or self.budget.corrections or self.budget.reports or self._untold or self._penalties:
            calls.append(self.request((), now_ns))
            self._forget_told_penalties()
        return calls

    def quarantine_end(self, now_ns: int) -> int | None:
        """Return when the quarantine ends, in our time; None if it is over."""
        return self._quarantine_ns if self._quarantine_ns > now_ns else None


def _copy_of(state: LimitState) -> LimitCopy:
    return LimitCopy(name=state.name, is_key=False, serial=state.serial, text=state.text)


def _slowest_of(plan: Iterable[PlanLimit]) -> dict[str, Fraction]:
    """Return the least that the limits on each resource admit in a second."""
    slowest: dict[str, Fraction] = {}
    for each in plan:
        settings = read_settings(each.settings)
        if settings is not None:
            slowest[each.resource] = min(settings.per_second, slowest.get(each.resource, settings.per_second))
    return slowest
