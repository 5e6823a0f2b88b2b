"""One executor in a group that shares several limits: requests tickets, and wakes the queue."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from fractions import Fraction
from functools import cache, partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.fleet.budget import KeyBudgetLimit
from ratelimited_executor._core.fleet.demand import Demand, Worker
from ratelimited_executor._core.fleet.insight import FleetStatistics, GroupLimit
from ratelimited_executor._core.fleet.peer_states import PeerState
from ratelimited_executor._core.fleet.ticket_calls import FAIR_HOLDER, TicketRun
from ratelimited_executor._core.fleet.ticket_peer import NEWS_NS, TICKETS_MAX
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._core.queue.upcoming import Upcoming, upcoming
from ratelimited_executor._core.slots.lines import SlotLine
from ratelimited_executor.peers.transport import LOGGER, REPEAT_SECONDS, is_refusal, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from ratelimited_executor._core.fleet.budget import TicketBudget
    from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketReply
    from ratelimited_executor._core.fleet.ticket_peer import TicketPeer
    from ratelimited_executor._core.keys.gate import KeyGate

__all__ = ["TicketMember", "TicketOwner"]

_NS: Final = 1_000_000_000
_KEY_SOON_NS: Final = 2_000_000  # keys that are due by then come along
_BACK_SECONDS: Final = 0.002  # workers that started within this and two calls may be back at once ...
_BACK_COUNT: Final = 4  # ... if there were so many runs ...
_BACK_SPANS: Final = 8  # ... in so many times as long
_RUNS: Final = 64  # remembered
_FEW: Final = 20  # tasks looked at first
_TURNS: Final = 2  # of the loop until a waiter that was given a permit runs
_RUN_TURNS: Final = 100  # at most, in which one run of the queue is gone on with
_SLOTS_AHEAD: Final = 0.02  # seconds before a ticket's time at which its slots are requested
_AGAIN_SECONDS: Final = 1.0  # after a quarantine, in which the first call must have come


class TicketOwner(Worker, Protocol):
    """The parts of an executor that a peer uses: its engine."""

    name: str
    is_paused: bool
    is_adaptive: bool

    def monotonic(self) -> float:
        """Return the loop time."""
        ...

    def wake(self) -> None:
        """Look for a task to start in this turn of the loop."""
        ...

    def group_limits(
        self, valid_us: int, late_us: int, *, is_exact: bool
    ) -> tuple[str, Callable[[int], tuple[PlanLimit, ...]]]:
        """Return the name of its limits, and a function from the authority's time (us) to the limits."""
        ...

    def penalized(self, until: float) -> None:
        """Record that nothing is admitted to the group before a loop time."""
        ...

    def go_alone(self, count: int, used: dict[str, tuple[int, int]]) -> None:
        """Use one part in ``count`` of the limits; ``used`` has (used, amount) of each resource."""
        ...

    def go_together(self) -> None:
        """Use tickets again."""
        ...


class TicketMember:
    """One executor's part in its group.

    Args:
        owner: the executor's engine.
        make_peer: makes the peer, from a plan's name and the function that returns its limits.
        valid_us: how long a ticket may be used, in microseconds.
        late_us: the largest difference between calendars.
        is_exact: True if a paced rate holds in any window.
        kick: makes the group check at once for a due call.
        leave: removes it from the group.
        warn: logs a warning, and repeats the same one seldom.
    """

    def __init__(
        self,
        owner: TicketOwner,
        make_peer: Callable[[str, Callable[[int], tuple[PlanLimit, ...]]], TicketPeer],
        *,
        valid_us: int,
        late_us: int,
        is_exact: bool,
        kick: Callable[[], None],
        leave: Callable[[Any], None],
        warn: Callable[[str], None],
    ) -> None:
        self.owner = owner
        self._bounds: dict[str, Any] = {"valid_us": valid_us, "late_us": late_us, "is_exact": is_exact}
        self.peer = make_peer(*owner.group_limits(**self._bounds))
        self._ahead_seconds = self.peer.settings.ahead_us / 1e6  # in which what is asked for could start
        self._kick = kick
        self._leave = leave
        self._warn = warn
        self._demand = Demand(owner)
        self._retry_at = -math.inf  # no call before this time, because the last ones were refused
        self._planned_at = math.inf  # loop time of the next call, as the group knows it
        self._failed_at = math.inf  # since when answers have been missing
        self._waiting_told = -math.inf  # when a quarantine was logged last
        self._refusal: str | None = None  # of the last call
        self._call: TicketCall | None = None  # in flight
        self._is_alone = False
        self._asked: dict[str, Hashable] = {}  # keys of the latest call, by their texts
        self._lines: list[SlotLine | None] = []  # of the runs in that call whose tasks need slots beside a ticket
        self._ahead: list[tuple[float, int, Any]] = []  # a heap of (loop time to ask for slots, number, line)
        self._numbers = count()
        self._turns: list[tuple[int, int, Hashable]] = []  # a heap of (time to ask for a key again, number, key)
        self._due: dict[Hashable, None] = {}  # keys for which that time has come
        self._turned: set[Hashable] = set()  # the same, until they get a ticket: they go first
        self._runs_of_late: deque[tuple[float, int]] = deque(maxlen=_RUNS)  # loop times, and how many started
        self._noted_count = 0  # of starts
        self._answered_ns: int | None = None  # when the tickets that came last were admitted
        self._watch: _Stopwatch | None = None
        self.budget.on_use = self._begin_starts

    @property
    def budget(self) -> TicketBudget:
        """The permits of the executor's queue."""
        return self.peer.budget

    @property
    def is_served(self) -> bool:
        """True if the authority has answered, and not refused a call since."""
        return self.peer.era is not None and not self.peer.failed_count

    def set_plan(self, plan: Any) -> None:  # noqa: ARG002  # the owner has it already
        """Request other limits for the whole group."""
        self.peer.set_plan(*self.owner.group_limits(**self._bounds), self.owner.timeline.to_ns(self._now()))
        self._kick()

    def penalize(self, until: float, key: str = "") -> None:
        """Admit nothing in the group before a loop time; with a key, nothing of that key."""
        to_ns = self.owner.timeline.to_ns
        self.peer.penalize(key, to_ns(until), to_ns(self._now()))
        self._kick()

    def limit_of_key(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a key's limit from a plan, a rate and the key."""
        return lambda plan, rate, key: make(plan, rate, key, self.budget, is_exact=self._bounds["is_exact"])

    # For an adaptive rate.

    def follow(self, plan: Any) -> None:  # noqa: ARG002  # the owner has it already
        """Adopt limits that another process has put in force."""
        self.peer.follow(*self.owner.group_limits(**self._bounds))

    def watch(self, now: float) -> None:
        """Keep calling to learn the limits in force, until every calling peer would know of those set now."""
        self.peer.watch(self.owner.timeline.to_ns(now) + NEWS_NS)
        self._kick()

    def news_seconds(self) -> float:
        """Return the longest time until every calling peer knows of a new rate."""
        return NEWS_NS / _NS

    def is_told(self, now: float) -> bool:
        """True while the rate in force is known."""
        return self.peer.is_told(self.owner.timeline.to_ns(now))

    @property
    def is_news(self) -> bool:
        """True if a new rate in the latest answer is recent; False if this peer had not called for long."""
        return self.peer.is_new

    @property
    def is_left_alone(self) -> bool:
        """True during an outage in which each process uses its own rate."""
        return self.peer.state is PeerState.OUTAGE and self.peer.settings.outage.kind == "local"

    @property
    def is_first(self) -> bool:
        """True if no other peer has taken part recently."""
        return self.peer.peers_count <= 1

    @property
    def refused_count(self) -> int:
        """How many tickets were requested and not granted so far."""
        return self.peer.refused_count

    def rate_of_others(self) -> Fraction | None:
        """Return the permits a second that another peer has set for the group; None if none has."""
        if self.peer.is_own_plan or not self.peer.is_settled:
            return None
        told = self.peer.rate
        return None if told is None else Fraction(f"{float(told):.8g}")  # its gap was rounded to whole picoseconds

    # Calling.

    def look(self, now: float) -> None:
        """After a run, look for tasks that wait for tickets not requested yet."""
        count, self._noted_count = self.budget.used_count - self._noted_count, self.budget.used_count
        if count > 0:
            self._runs_of_late.append((now, count))
            self.peer.note_use(self.owner.timeline.to_ns(now))
        if self._watch is not None:
            self._watch.end(count)
            self._watch = None
        if self._answered_ns is not None:
            asyncio.get_running_loop().call_soon(self._note_delay, self._answered_ns)
            self._answered_ns = None
        self._demand.look(now)
        if self._call is None and self._planned_at > now and self._next_call(now) < self._planned_at:
            self._planned_at = -math.inf
            self._kick()

    def _begin_starts(self) -> None:
        self._watch = self._watch or _Stopwatch(self._time_ns, self.peer.note_starts)

    def _note_delay(self, answered_ns: int) -> None:
        """Learn when the first steps of tasks come after an answer."""
        self.peer.note_delay(self._time_ns() - answered_ns)

    def _coming_back(self, now: float) -> int:
        """Count the workers that are likely to be back before an answer: those that started within two calls, and ended."""
        runs, span = self._runs_of_late, 2 * self.peer.span_ns / _NS + _BACK_SECONDS
        if len(runs) < _BACK_COUNT or runs[-_BACK_COUNT][0] < now - _BACK_SPANS * span:
            return 0
        count = sum(count for when, count in runs if when >= now - span)
        return max(0, count - self.owner.accounts.running_count())

    def next_call(self, now: float) -> float:
        """Return the loop time of the next call."""
        self._planned_at = self._next_call(now)
        return self._planned_at

    def _next_call(self, now: float) -> float:
        timeline = self.owner.timeline
        self._demand.look(now)
        self._look_alone()
        self._look_at_keys(timeline.to_ns(now))
        when = self.peer.next_call(self._wanted(now, 1), timeline.to_ns(now), is_due=self._is_due(now))
        if when is None:
            self.peer.idle()
            called_at = self._penalty_end(now)
        else:
            called_at = max(timeline.to_loop(when), self._retry_at)
        return min(called_at, timeline.to_loop(self._turns[0][0])) if self._turns else called_at

    def _penalty_end(self, now: float) -> float:
        """Return when to ask for what may start after a penalty; infinity if there is none."""
        timeline = self.owner.timeline
        permits: Any = self.owner.queue.permits  # those of a budget
        if permits.penalty_ns <= timeline.to_ns(now) or not self.owner.queue.ready_count():
            return math.inf
        return max(now, timeline.to_loop(permits.penalty_ns - self.peer.trip_ns))

    def _look_at_keys(self, now_ns: int) -> None:
        """Let the tasks of keys that may be asked for again be seen, although their keys are held."""
        while self._turns and self._turns[0][0] <= now_ns + _KEY_SOON_NS:
            key = heappop(self._turns)[2]
            self._due[key] = None
            self._turned.add(key)
        gate = self.owner.queue.gate
        if gate is not None:
            for key in self._due:
                gate.look_again(key)

    def _wanted(self, now: float, most: int) -> int:
        """Count the due tasks without a ticket that could start; counting may stop at ``most``."""
        is_by_key = self.owner.queue.gate is not None
        if self.owner.is_paused or self.owner.queue.is_halted or not (is_by_key or self.peer.resources):
            return 0
        if is_by_key or PERMITS not in self.peer.resources:  # some tasks want none, or none now
            wanted = sum(run.wanted for run in self._runs(self._startable(now, most), most, self._to_ns(now)))
            return wanted and wanted + (0 if is_by_key else self._coming_back(now))
        return self._startable(now, most) + self._coming_back(now) - self.budget.free_count(self._to_ns(now))

    def _startable(self, now: float, most: int) -> int:
        """Count the due tasks that could start, up to ``most`` more than the tickets that are held."""
        most += self.budget.ticket_count
        if self.owner.queue.gate is not None and self.owner.max_concurrency is None:
            return most
        return self._demand.count(now, self._ahead_seconds, most)

    def _is_due(self, now: float) -> bool:
        """True if some key's own time has come, whatever the limits of the plan have refused."""
        return bool(self._due) and bool(self._runs(TICKETS_MAX, 1, self._to_ns(now), is_due=True))

    def request(self, now: float) -> TicketCall:
        """Make the next request."""
        now_ns, room, is_by_key = self._to_ns(now), self.peer.room, self.owner.queue.gate is not None
        wanted = self._wanted(now, 1 if is_by_key else TICKETS_MAX)
        room = room if is_by_key else min(room, wanted)
        runs: list[TicketRun] = []
        if min(wanted, room) > 0:
            count = self._startable(now, room) if is_by_key else room + self.budget.free_count(now_ns)
            runs = self._runs(count, room, now_ns, is_due=self.peer.is_refused(now_ns))
        self._call = self.peer.request(runs, now_ns)
        self._due.clear()
        return self._call

    def _runs(self, count: int, room: int, now_ns: int, *, is_due: bool = False) -> list[TicketRun]:
        """Return the needs of the first tasks that have no tickets yet, in their order.

        Args:
            count: the maximum number of tasks, including those that have tickets.
            room: the most tickets to ask for.
            now_ns: our time.
            is_due: True for those of keys whose own time has come alone.
        """
        gate = self.owner.queue.gate
        runs: list[TicketRun] = []
        self._asked.clear()
        self._lines = []
        held, run = self.budget.free_count(now_ns), None
        covers = cache(partial(self._covers, now_ns))
        tickets_of = cache(self._tickets_of)  # the same for keys
        # While the rate is the narrower limit, slots are requested only when a ticket's time comes.
        asks = self.peer.refusal is None and not self.peer.failed_count and self.peer.quarantine_end(now_ns) is None
        startable: dict[Hashable, int] = {}  # tasks of each key
        for key, needs, cost, tasks in self._next_tasks(count, room, self.owner.timeline.to_loop(now_ns)):
            if is_due and key not in self._due:
                continue
            costs = self._costs_of(needs)
            most, limit, run = tasks, None, TicketRun(0, costs)
            if gate is not None and key is not None:
                if key not in startable:
                    startable[key] = self._startable_of(gate, key, cost, now_ns, asks=asks)
                limit, most = gate.limit(key), min(most, startable[key])
            if not isinstance(limit, KeyBudgetLimit):
                if not costs:
                    continue  # it needs no ticket
                most = min(most, count)  # the tasks that have tickets count as well
                used = min(held, most) if held and covers(costs) else 0
                held -= used
            else:
                key_cost, tickets = cost if limit.cost_max is None else min(cost, limit.cost_max), tickets_of(limit)
                is_held = tickets.is_closed or limit.refuses(key_cost, now_ns + _KEY_SOON_NS)
                if is_held or gate is None or gate.hold(key, cost, now_ns) not in (None, "rate"):
                    tickets.is_closed = True  # its later tasks wait as well
                    continue
                self._asked[limit.text] = key
                run = TicketRun(0, costs, limit.text, limit.settings, key_cost)
                used, most = tickets.use(key_cost, most)
            wanted = min(most - used, room)
            if key in startable:
                startable[key] -= used + wanted
            count -= used + wanted
            room -= wanted
            if wanted > 0:
                runs.append(run._replace(wanted=wanted))
                self._lines.append(key if isinstance(key, SlotLine) else None)
            if count <= 0 or room <= 0:
                break
        if gate is None and room > 0 and run is not None and run.costs:  # the remaining tasks count like the last one
            runs.append(run._replace(wanted=room))
        return runs

    def _costs_of(self, needs: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
        """Return what the start of a task takes of each resource that the group counts."""
        permits = self.owner.queue.costs
        if not needs or (permits is not None and permits.is_beyond(needs)):
            # A task whose cost is never admitted gets a permit, so that it is examined and dropped.
            needs = {PERMITS: 1}
        return tuple(sorted((name, each) for name, each in needs.items() if name in self.peer.resources))

    def _covers(self, now_ns: int, costs: tuple[tuple[str, int], ...]) -> bool:
        """True if the held tickets let a task of some costs start: else it is requested, however many there are."""
        return all(self.budget.when(name, amount, now_ns) is not None for name, amount in costs)

    def _tickets_of(self, limit: KeyBudgetLimit) -> _KeyTickets:
        return _KeyTickets(self.budget.costs_of_key(limit.text), limit.most_within(self._ahead_seconds))

    def _startable_of(self, gate: KeyGate, key: Hashable, cost: int, now_ns: int, *, asks: bool) -> int:
        """Count the tasks of a key that could start, given tickets, and given permits of its limit in the group."""
        gate.meet(key, now_ns)
        most = gate.startable_with_slots(key, now_ns, asks=asks)
        if self.peer.era is None:  # the first call is made in any case, for it may begin a quarantine
            most = TICKETS_MAX
        if isinstance(key, SlotLine) or isinstance(gate.limit(key), KeyBudgetLimit):
            return most
        now = self.owner.timeline.to_loop(now_ns)
        return self._demand.count_of_key(gate, key, cost, now, self._ahead_seconds, most)

    def _next_tasks(self, count: int, room: int, now: float) -> Iterable[Upcoming]:
        """Walk the first tasks in their order; those whose keys may be asked for again go first."""
        queue = self.owner.queue
        if queue.gate is None:
            yield from upcoming(queue, count, now)
        elif self._turned:
            first = [*upcoming(queue, TICKETS_MAX, now)]
            self._turned &= {each.key for each in first}  # the tasks of the others have gone
            yield from sorted(first, key=lambda each: each.key not in self._turned)
        else:  # mostly some of them are enough: looking at all takes milliseconds
            seen: set[Hashable] = set()
            for each in upcoming(queue, _FEW + 2 * room, now):
                seen.add(each.key)
                yield each
            yield from (each for each in upcoming(queue, TICKETS_MAX, now) if each.key not in seen)

    def receive(self, request: TicketCall, reply: TicketReply, *, is_step: bool, now: float) -> None:
        """Process an answer."""
        self._retry_at, self._call = -math.inf, None
        peer, timeline = self.peer, self.owner.timeline
        era, state, was_own = peer.era, peer.state, peer.is_own_plan
        is_waiting = peer.quarantine_end(timeline.to_ns(now - _AGAIN_SECONDS)) is not None
        has_come = peer.receive(request, reply, is_step=is_step, now_ns=timeline.to_ns(now))
        if peer.state is PeerState.CLOSED:
            return
        self.owner.queue.admission.forget()  # some may also be void
        self._tell_of_life(era, state, now, is_waiting=is_waiting)
        self._failed_at, self._refusal = math.inf, None
        if reply.flaw:
            self._warn(
                f"fleet: what the server remembered of {self.owner.name} was damaged; nothing starts until all earlier "
                "permits have lapsed"
            )
        is_bound = bool(request.plan) and not request.is_new_plan and not self.owner.is_adaptive
        if was_own and not peer.is_own_plan and is_bound:
            LOGGER.warning("fleet: %s uses the limits of another process: %s", self.owner.name, reply.plan_id)
        if reply.penalty_us > reply.now_us:
            self.owner.penalized(timeline.to_loop(peer.clock.here(reply.penalty_us * 1000)))
        self._look_alone()
        for line, outcome in zip(self._lines, reply.outcomes, strict=False):
            for at_us, _ in outcome.tickets if line is not None else ():
                when = timeline.to_loop(peer.clock.here(at_us * 1000)) - _SLOTS_AHEAD
                heappush(self._ahead, (when, next(self._numbers), line))
        self.look_ahead(now)
        is_to_follow = self.owner.is_adaptive and not peer.is_own_plan
        if has_come:
            self._answered_ns = peer.clock.here(reply.now_us * 1000)
        if self._note_keys() or has_come or is_to_follow:
            self.owner.wake()

    def look_ahead(self, now: float) -> float:
        """Request the slots of tasks whose tickets come up soon; return the loop time of the next request."""
        gate = self.owner.queue.gate
        while self._ahead and self._ahead[0][0] <= now:
            _, _, line = heappop(self._ahead)
            if gate is not None:
                gate.ask_ahead(line, self.owner.timeline.to_ns(now))
        return self._ahead[0][0] if self._ahead else math.inf

    def _note_keys(self) -> bool:
        """Release the keys that have tickets, and hold those that the group has refused."""
        gate, clock = self.owner.queue.gate, self.peer.clock
        if gate is None:
            return False
        now_ns, half_ns = self.owner.timeline.to_ns(self._now()), self.peer.trip_ns // 2
        for text, key in self._asked.items():
            if self.peer.refusal is None or self.budget.costs_of_key(text):
                self._turned.discard(key)
        for text, (cost, again_us) in self.peer.refused_keys.items():
            key = self._asked.get(text)
            limit = gate.limit(key)
            if isinstance(limit, KeyBudgetLimit):
                due_us = max(again_us, self.budget.mostly_due_us(text) or 0)
                when_ns = clock.here(due_us * 1000) - half_ns if again_us else now_ns + _NS
                limit.refused_cost, limit.refused_ns = cost, max(when_ns, now_ns + 200_000)
                heappush(self._turns, (limit.refused_ns, next(self._numbers), key))
        for key in self._asked.values():
            gate.look_again(key)
        if 2 * len(self._turns) > TICKETS_MAX:  # else those that may not be asked for hide the others
            self.owner.queue.park_keys(now_ns)
        return bool(self._asked)

    def fail(self, now: float, error: Exception, *, pause: float = 0.0) -> None:
        """Record a call without an answer, or with a refusal; the next one comes after a pause."""
        self.peer.fail(self._call, self.owner.timeline.to_ns(now))
        self._call = None
        self._retry_at = now + pause
        self._failed_at = min(self._failed_at, now)
        self._refusal = reason_of(error) if is_refusal(error) else None
        self._look_alone()

    def resync(self) -> None:
        """Start over after our clock stood still."""
        self.peer.resync()

    def note_step(self, told_us: int) -> None:
        """Drop all permits, because an answer to another member shows a step of the authority's clock."""
        self.peer.note_step(told_us)
        self.owner.queue.admission.forget()

    def _look_alone(self) -> None:
        """Use a part of the limits while the outage policy says so; otherwise, tickets."""
        outage = self.peer.settings.outage
        is_alone = self.peer.state is PeerState.OUTAGE and outage.kind != "stop"
        if is_alone is self._is_alone:
            return
        self._is_alone = is_alone
        if not is_alone:
            self.owner.go_together()
            return
        used: dict[str, tuple[int, int]] = {}
        for name, (resource, amount, most, _) in self.peer.limits.items():
            if name.endswith("/rate"):  # a pace has no capacity to use a part of
                continue
            known = used.get(resource, (0, 1))
            used[resource] = max(known, (min(amount, most), most), key=lambda each: each[0] / max(1, each[1]))
        self.owner.go_alone(outage.peers_max if outage.kind == "static" else 1, used)

    def _tell_of_life(self, era: str | None, state: PeerState, now: float, *, is_waiting: bool) -> None:
        """Log a join, a quarantine or the end of an outage; ``era``, ``state`` and ``is_waiting`` are the previous ones."""
        peer, name = self.peer, self.owner.name
        if era is None:
            LOGGER.info("fleet: %s joins its group as %s", name, peer.settings.id)
        elif state is PeerState.OUTAGE:
            LOGGER.info("fleet: the outage of %s is over after %.3g s", name, now - self._failed_at)
        if peer.era != era:
            end_ns = peer.quarantine_end(self.owner.timeline.to_ns(now))
            is_told = is_waiting and now - self._waiting_told < REPEAT_SECONDS  # and now it only lasts longer
            if end_ns is not None and not is_told:
                self._waiting_told = now
                seconds = self.owner.timeline.to_loop(end_ns) - now
                LOGGER.info(
                    "fleet: %s starts nothing for %.3g s: by then, all earlier permits have lapsed",
                    name,
                    seconds,
                )

    # Reporting.

    def hold(self, now: float, count: int = 1) -> tuple[str, str, float | None] | None:
        """Return why no ticket comes: ``outage`` or ``quarantine``, the reason in words, and its end in loop time, if known.

        None if tickets come.
        """
        peer, timeline = self.peer, self.owner.timeline
        if not (peer.resources or self._asked):
            return None  # its tasks need no tickets
        if self._is_alone or self.budget.held_count(timeline.to_ns(now)) >= count:
            return None
        if peer.state in (PeerState.SYNC, PeerState.OUTAGE):
            answer = f"{peer.failed_count} calls in a row without an answer" if peer.failed_count else "no answer yet"
            if self._refusal is not None:
                answer = f"refused: {self._refusal}"
            return "outage", f"{answer}; outage policy: {peer.settings.outage}", None
        end_ns = peer.quarantine_end(timeline.to_ns(now))
        if end_ns is None:
            return None
        end = timeline.to_loop(end_ns)
        return "quarantine", f"for {max(0.0, end - now):.3g} s, as earlier permits may be in use", end

    def source(self) -> str | None:
        """Return in words what holds tickets back; None if nothing does."""
        peer = self.peer
        if self._is_alone:
            return f"no answer from the server; outage policy: {peer.settings.outage}"
        if peer.refusal is None:
            return None
        if peer.refusal.holder == FAIR_HOLDER:
            return "others of the group are to be served first"
        if peer.refusal.holder not in peer.limits:
            return peer.refusal.holder
        _, used, amount, _ = peer.limits[peer.refusal.holder]
        return f"{peer.refusal.holder} of the group, {used} of {amount} used or reserved"

    def expected_at(self) -> float | None:
        """Return when tickets may come, in loop time, by the authority's last answer; None if not known."""
        refusal, clock = self.peer.refusal, self.peer.clock
        if refusal is None or not refusal.at_us or not clock.is_known:
            return None
        return self.owner.timeline.to_loop(clock.here(refusal.at_us * 1000))

    def close(self) -> None:
        """Leave the group: the executor has closed."""
        self._leave(self)

    def statistics(self, now: float) -> FleetStatistics:
        """Return the statistics of this member."""
        peer, clock = self.peer, self.peer.clock
        now_ns = self.owner.timeline.to_ns(now)
        return FleetStatistics(
            state=peer.state,
            peers=peer.peers_count,
            era=peer.era,
            rate=peer.rate,
            demand=peer.asked_count,
            held=self.budget.held_count(now_ns),
            granted=peer.granted_count,
            taken=self.budget.used_count,
            lapsed=self.budget.lapsed_count,
            refused=peer.refused_count,
            offset=(clock.at(now_ns) - now_ns) / _NS if clock.is_known else None,
            offset_error=clock.error_ns(now_ns) / _NS if clock.is_known else None,
            since_grant=None if peer.last_grant_ns is None else (now_ns - peer.last_grant_ns) / _NS,
            failures=peer.failed_count,
            limits=tuple(
                GroupLimit(name=name, resource=resource, used=used, amount=amount)
                for name, (resource, used, amount, _) in peer.limits.items()
            ),
        )

    def _now(self) -> float:
        return self.owner.monotonic()

    def _to_ns(self, when: float) -> int:
        return self.owner.timeline.to_ns(when)

    def _time_ns(self) -> int:
        return self._to_ns(self._now())


class _KeyTickets:
    """The tickets of a key, as its tasks will use them in their order, and how much more its limit may admit.

    Args:
        held: what each ticket covers, in ascending order.
        most: the largest cost that may be admitted.

    Attributes:
        is_closed: True if no more is to be requested.
    """

    def __init__(self, held: list[int], most: float) -> None:
        self._held = held
        self._left = most - sum(held)
        self.is_closed = self._left < 0

    def use(self, cost: int, tasks: int) -> tuple[int, int]:
        """Use the smallest tickets that cover some tasks of a cost; return how many, and that with those to request."""
        first = bisect_left(self._held, cost)
        used = min(len(self._held) - first, tasks)
        del self._held[first : first + used]
        most = max(0, math.ceil(self._left / max(1, cost))) + 1  # one more: the refusal says when to ask for it
        wanted = min(tasks - used, most)
        self._left -= wanted * cost
        self.is_closed = wanted == most
        return used, used + wanted


class _Stopwatch:
    """The time on the event loop that some starts take: in their run, and with the first steps of tasks.

    These steps come in the next turns of the loop. What else runs in these turns does not count.

    Args:
        time_ns: returns our time.
        done: called with the number of starts, and with the time in nanoseconds.
    """

    def __init__(self, time_ns: Callable[[], int], done: Callable[[int, int], None]) -> None:
        self._time_ns = time_ns
        self._done = done
        self._begun_ns = time_ns()
        self._passed_ns = 0
        self._turns = _RUN_TURNS
        self._count = 0
        asyncio.get_running_loop().call_soon(self._begin_turn)

    def end(self, count: int) -> None:
        """Note that the run is over, in which so many tasks were started."""
        self._count = count
        self._turns = min(self._turns, _TURNS) if count > 0 else 0
        if self._turns:
            self._end_turn()

    def _begin_turn(self) -> None:
        """Do this in the next turn before the steps that are still to be added to it."""
        if self._count > 0:
            self._begun_ns = self._time_ns()
        elif self._turns:  # the run goes on in this turn, or the executor has closed in it
            self._turns -= 1
        if self._turns:
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _end_turn(self) -> None:
        """Do this after these steps."""
        self._passed_ns += self._time_ns() - self._begun_ns
        if not self._turns:
            self._done(self._count, self._passed_ns)
            return
        self._turns -= 1
        asyncio.get_running_loop().call_soon(self._end_turn)
