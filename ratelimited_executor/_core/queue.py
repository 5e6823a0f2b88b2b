"""What one executor starts next, and when: the pure heart.

It takes inputs (tasks, cancellations, rates, the time) and answers two questions: which task starts now, and at what
time to ask again. It never reads a clock, never calls a task and never waits; ``_runtime`` does all of that, and the
simulator drives the same object.

Two calendars. Tasks that must start at their due time (those that joined a running interval, those of the asyncio face,
those that expire within less than an interval) lie in ``on_time``; tasks that may be spread over their interval lie in
``spread``. A *start instant* is a permit when a task of the first kind is due, when the interval holds more tasks than
permits, or when one that it took over from an earlier interval would expire in it; otherwise it is a planned instant
(``spread.py``). At a permit the most important task of both starts, at a planned instant the task of ``spread`` that is due
first. An unlimited rate has a permit for everybody: each calendar then goes by its own instants.

Where keys have limits of their own, or an order shares among them, importance decides at planned instants as well: more of
one key may be due than may start, although the interval has permits for all.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from ratelimited_executor._core.batches import BatchSource
from ratelimited_executor._core.calendar import Calendar
from ratelimited_executor._core.calendars import Calendars
from ratelimited_executor._core.expiry import ExpiryIndex
from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.ordering import TaskClass, default_order
from ratelimited_executor._core.permits import UNLIMITED, PermitGrid
from ratelimited_executor._core.ready import is_empty
from ratelimited_executor._core.records import PERMITS
from ratelimited_executor._core.spread import SpreadPlan
from ratelimited_executor._core.states import TaskState
from ratelimited_executor._core.stretch import Stretch
from ratelimited_executor._core.timeline import NS, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from ratelimited_executor._core.dropping import DropIndex
    from ratelimited_executor._core.fair import Fair
    from ratelimited_executor._core.key_gate import KeyGate
    from ratelimited_executor._core.limits.permits import Permits
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._core.rates import Rate
    from ratelimited_executor._core.records import Record

__all__ = ["Pacing", "TaskQueue"]

P = ParamSpec("P")
T = TypeVar("T")

_EXPIRE_COUNT_MAX: Final = 1000  # tasks taken out at a stretch: about two milliseconds
_PULL_STEPS: Final = 2.0  # work between two looks at the clock: about two milliseconds


def decision(
    decide: Callable[Concatenate[TaskQueue, float, P], T],
) -> Callable[Concatenate[TaskQueue, float, P], T]:
    """Let a method of a queue take its decision by the time that it is told, whatever code of the user it asks.

    What such code sets counts from then on: what is decided after the change, by the same time, must not come before it.
    """

    @wraps(decide)
    def decide_at(self: TaskQueue, now: float, *args: P.args, **kwargs: P.kwargs) -> T:
        if not self.asks_user:
            return decide(self, now, *args, **kwargs)
        self.deciding_at = now
        try:
            return decide(self, now, *args, **kwargs)
        finally:
            self.deciding_at = None

    return decide_at  # type: ignore[return-value]  # wraps() says that its arguments have names


class Pacing(Enum):
    """When the tasks of an interval start, if they fit its permits."""

    SPREAD = "spread"
    """Evenly over the interval, up to one interval late."""

    ON_TIME = "on time"
    """Each at its own due time."""


class TaskQueue(Calendars):
    """The waiting tasks of one executor.

    Args:
        timeline: the manager's timeline; its intervals are those that pacing works on.
        now: loop time.
        rate: permits over time.
        slack: seconds for which a permit stays usable.
        pacing: whether tasks are spread.
        order: the key function of importance.
        early: whether a task may start anywhere in the interval of its due time.
        peers: how many peers share the rate.
        rank: which of them this is.
        report_order_error: is told when the order raises.
        permits: what admits starts, in place of this peer's part of the numbered permits of ``rate``.
        gate: the limits of keys; None if there are none.
        bucket_ns_max: the width of a bucket at most.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        now: float,
        rate: Rate,
        slack: float,
        pacing: Pacing,
        order: Order | Fair,
        early: bool,
        peers: int,
        rank: int,
        report_order_error: Callable[[BaseException], None],
        permits: Permits | None = None,
        gate: KeyGate | None = None,
        bucket_ns_max: int = NS,
    ) -> None:
        super().__init__(timeline, now, report_order_error=report_order_error, gate=gate, bucket_ns_max=bucket_ns_max)
        self.permits: Permits = permits or PermitGrid(
            rate, slack_ns=round(slack * NS), now_ns=timeline.to_ns(now), peers=peers, rank=rank
        )
        self.effects: Any = None  # the same, if its starts count from when they take effect
        self.counts_effects = False  # whether take_effect() or defer() wants to be told of each start
        self.costs: CombinedPermits | None = None  # the same, once some task may cost more than a permit
        self._beyond: Calendar | None = None  # whose first task costs more than is ever admitted
        self.is_forgetting = False  # whether the next wake-up is only there for idle keys to be forgotten
        self._is_bursty = False  # whether many permits may come up at once
        self._is_sorting = False  # whether nothing starts, because not all that is due is ready
        self.drops: DropIndex | None = None  # what may be dropped, if anything ever is
        self.plan = SpreadPlan(slack=slack)
        self.pacing = pacing
        self.early = early
        self.expiry = ExpiryIndex(timeline)
        self.end = 0.0  # loop time at which the running bucket ends: enter() is due
        self.interval_end = 0.0  # loop time at which the running interval ends
        self.last_tick = 0  # number of the last bucket of the running interval
        self._is_crowded = False  # whether the places in which tasks run are limited
        self._note_unlimited()
        self._is_by_wall_clock = False  # whether a step of the wall clock may let something start
        self._is_single = False  # whether each start is a decision of its own
        self._is_by_importance = False  # whether planned instants go by importance as well
        self.on_start: Callable[[float], None] | None = (
            None  # told by how many seconds each start is later than it was due
        )
        self.stretch = Stretch(self)
        self.on_gone: Callable[[Any, Any, TaskState], None] = (
            _nothing  # told of what is taken out without a start: how it ends
        )
        self.gated: set[Record] = set()  # records that have started under the limits of keys, and not ended
        self._tickets: list[tuple[str, Any, Any]] = []  # of costs and key of the record that was taken last
        self.deciding_at: float | None = None  # loop time of a decision that asks code of the user; None outside of one
        self.asks_user = False  # whether one may
        self.is_halted = False  # whether nothing becomes ready any more: what waits is to be cut
        self._later_count = 0  # tasks to be spread in later buckets of the running interval
        self._later_on_time_count = 0  # other tasks in later buckets of the running interval
        self._passing: list[Record | BatchSource] = []  # what may expire in the running interval, of those to be spread
        self._dense = False  # whether every permit is a start instant
        self._is_planned = False  # whether what choose() found is the task that is due first
        self._permit_count = 0  # permits counted by the grid and not yet taken
        self._counted_at = 0.0  # loop time at which they were counted
        self._usable_until = 0.0  # loop time until which they may be taken
        self._next_permit_at = -math.inf  # loop time before which no other permit comes up
        self._pulled_at = (
            now  # loop time up to which planned instants count: one that comes meanwhile waits for the next look
        )
        self._opening_at = -math.inf  # loop time at which a calendar wants to open, or to prepare, its next bucket
        self.note_order()
        if order is not default_order or gate is not None:
            self.set_order(order)
        self.end = self.spread.end
        self._begin_interval(now, late_count=0)

    # Adding. The asyncio face adds to the columns of ``on_time`` itself.

    def add_record(self, record: Record) -> None:
        """Place a record by its due time."""
        is_joined = record._due < self.interval_end
        if is_joined and record._due >= self.end:
            self._later_on_time_count += 1
        if record._options is not None:
            self._calendar_for(record, joined=is_joined).add_record(record)
        elif is_joined or self.pacing is Pacing.ON_TIME:
            self.on_time.add_record(record)
        else:
            self.spread.add_record(record)

    def add_immediate(self, record: Record) -> None:
        """Make a record ready at once."""
        options = record._options
        if options is not None:
            if options.deadline is not None:
                self.expiry.add(record)
            if self.drops is not None:
                self.drops.add(record)
        self.on_time.add_ready(record)

    def add_batch(self, source: BatchSource, *, joined: bool) -> None:
        """Place a batch, or a part of one; ``joined`` if it begins in the running interval."""
        is_on_time = joined or self.pacing is Pacing.ON_TIME or source.deadline_after < self.timeline.interval_seconds
        calendar = self.on_time if is_on_time else self.spread
        if joined and source.rank[1] is TaskClass.IMMEDIATE and calendar.can_add_ready(source.count):
            calendar.add_batch_ready(source)  # as what comes after it, which must not go before it
        else:
            calendar.add_batch(source)
        self._note_later(calendar, self._later_count_of(source))
        if source.deadline_after < math.inf:
            self.expiry.add_batch(source)

    def cancel(self, record: Record, now: float) -> bool:
        """Remove a waiting record from wherever it waits, at loop time ``now``; return whether that may let another start."""
        place = record._place
        if not place.opened and place.calendar is not self.wall and record._due < self.interval_end:
            self._note_later(place.calendar, -1)
        record._place = None
        place.cancel_record()
        place.calendar.note_gone(place)
        options = record._options
        if options is None:
            return False
        self.expiry.discard(record)
        if self.drops is not None:
            self.drops.discard(record)
        return self._note_left(options.key, is_costly=options.charge is not None, now=now)

    def revoke(self, source: BatchSource, now: float) -> tuple[int, bool]:
        """Cancel what still waits of a batch; return how many tasks that were, and whether that may let another start."""
        calendar = source.calendar
        if calendar is None:
            return 0, False
        if calendar is not self.wall:
            self._note_later(calendar, -self._later_count_of(source))
        count: int = calendar.revoke(source)
        return count, self._note_left(source.key, is_costly=source.needs is not None, now=now)

    def _note_left(self, key: Hashable, *, is_costly: bool, now: float) -> bool:
        """Look again at what had to wait for a task that has gone without a start; return whether there is any such thing.

        Args:
            key: of the task.
            is_costly: whether it needed something else than a permit.
            now: loop time.
        """
        if self.is_halted:
            return False
        is_freed = key is not None and self.gate is not None and self.gate.is_parked(key)
        if is_freed:
            self.look_again(key, now)
        if is_costly:
            self.note_permits()
        return is_freed or is_costly

    def look_again(self, key: Hashable, now: float) -> None:
        """Let a key that had to wait be asked anew: something of it has changed by loop time ``now``."""
        if self.gate is not None:
            self.gate.now_ns = self.timeline.to_ns(now)
            self.gate.look_again(key)

    # Going on.

    def enter(self, now: float, wall: float) -> None:
        """Begin the intervals that have begun by ``now``; due when ``now`` has reached :attr:`end`.

        Args:
            now: loop time.
            wall: epoch seconds by the wall clock, which may have stepped.
        """
        number = self.ticks.number_at(now)
        since = self.interval_end
        late_count = 0 if self._dense else self.spread.opened_count
        self.end = self.ticks.start_of(number + 1)
        self.on_time.open_until(number, self.end)
        self.spread.open_until(number, self.end)
        is_begin = now >= self.interval_end
        if is_begin:
            self._begin_interval(now, late_count)
        self._later_count = self._later_on_time_count = 0
        if self.last_tick > number:
            self._later_count = self.spread.waiting_until(self.last_tick) - self.spread.opened_count
            self._later_on_time_count = self.on_time.waiting_until(self.last_tick) - self.on_time.opened_count
        if is_begin and self.wall.is_pending:
            self._read_wall(now, wall, since)

    @decision
    def pull(self, now: float) -> bool:
        """Make ready what is due, in a bounded step of work; False if there is more to do."""
        if self.is_halted:
            return True
        self._pulled_at = now
        if self.gate is not None:
            self.gate.open_due(self.timeline.to_ns(now))
        if self._rekeying:
            self.rekey()
        elif self._is_interim and is_empty(self.on_time.ready) and is_empty(self.spread.ready):
            self.set_order(default_order)
        steps = _PULL_STEPS
        if self.chores and self.wall.is_reading:  # what is handed over may be due before all else
            steps = max(1.0, self._do_chores(steps))  # what else is due now is looked at all the same
        if self.on_time.groups:
            steps = self.on_time.pull(self.timeline.seen_until(now), steps)
        if self.spread.groups:
            steps = self.spread.pull(self.interval_end if self.early else now, steps)
        # The permits of a window or a bucket do not lapse: they can wait until all that is due has its place in the order.
        self._is_sorting = self._is_bursty and (steps <= 0 or bool(self._rekeying))
        if self._opening_at <= now:
            for calendar in (self.on_time, self.spread):
                if calendar.opening_time() <= now:
                    calendar.prepare_ahead()
        if self.chores:
            steps = self._do_chores(steps)
        is_paced = not self.is_unlimited and self.spread.opened_count + self._later_count > 0
        self._dense = is_paced and (self._is_dense(now) or self._is_passing())
        self._permit_count = 0
        if self.costs is not None:
            self._next_permit_at = -math.inf  # what has come may need less than what was first
        return steps > 0 and not self.chores and not self._rekeying

    def _do_chores(self, steps: float) -> float:
        """Do work that may wait, so many steps at most; return the steps left."""
        while self.chores and steps > 0:
            steps -= 1
            try:
                next(self.chores[0])
            except StopIteration:
                self.chores.popleft()
        return steps

    # Taking. Whatever starts passes here, and is counted, paid for and forgotten here.

    @decision
    def take(self, now: float, limit: int) -> tuple[Any, Any] | Stretch | None:
        """Take what starts now: it waits no longer, and its permits are spent.

        What turns out to have expired, or to cost more than is ever admitted, goes to :attr:`on_gone` instead.

        Args:
            now: loop time, up to which :meth:`pull` has just made ready what is due.
            limit: how many tasks may be taken.

        Returns:
            (source, position) or (None, record) of one task; or a stretch of several, to be started one after the other; None
            if nothing starts.
        """
        while True:
            calendar = self._choose(now)
            if calendar is None:
                if self._beyond is None:
                    return None
                self._drop_beyond()
                continue
            ready: Any = calendar.ready
            run = ready.pop_earliest() if self._is_planned else ready.pop()
            source = run.source
            count = 1 if limit == 1 or self._is_single or self.on_start is not None else self._stretch_count(calendar)
            if count > 1 and (source is None or (source.is_plain and not source.is_watched)):
                is_paid = not self.is_unlimited or calendar is not self.on_time
                return self.stretch.begin(calendar, run, min(count, limit), is_paid=is_paid)
            item = run.take()
            if self._admit(calendar, source, item, now):
                return source, item

    def take_lone(self, now: float) -> tuple[Any, Any] | None:
        """Take what starts now, if nothing else is due or ready, and there is nothing else to do: nearly always, where little is.

        It comes to the same as :meth:`pull` and :meth:`take`, for a fraction of what these cost.

        Returns:
            (source, position) or (None, record) of a task of :attr:`on_time`; None if more than that is to be looked at.
        """
        if self._is_single or self._rekeying or self.chores or self.order is not default_order:
            return None
        if self.spread.opened_count or self.spread.groups or self.is_halted or self._is_interim:
            return None
        if self.on_time.ready.active:
            return None
        if self._opening_at <= now and self._note_opening() <= now:
            return None
        if not self.is_unlimited:
            self._permit_count = 0
            if now < self._next_permit_at or not self._look_for_permits(now):
                return None
        self._pulled_at = now
        taken = self.on_time.take_lone(self.timeline.seen_until(now))
        return taken if taken is None or self._admit(self.on_time, *taken, now) else None

    def expire(self, now: float) -> None:
        """Take out what has waited past its deadline while nothing could start, in a bounded number."""
        if not self.expiry.is_used:
            return
        number = self._sweep_number(now)
        if number is None:
            return
        for count, record in enumerate(self.expiry.sweep(number), start=1):
            self.cancel(record, now)
            self.on_gone(None, record, TaskState.EXPIRED)
            if count == _EXPIRE_COUNT_MAX:
                return
        for count, (source, position) in enumerate(self.expiry.sweep_batches(now), start=1):
            self._leave_batch(source.calendar, source, position)
            self._note_left(source.key, is_costly=source.needs is not None, now=now)
            self.on_gone(source, position, TaskState.EXPIRED)
            if count == _EXPIRE_COUNT_MAX:
                return

    def _choose(self, now: float) -> Calendar | None:
        """Return the calendar whose first ready task starts now; None if none does. It looks at the permits, and takes none."""
        if self._is_sorting or (not self._permit_count and now < self._next_permit_at):
            return None
        gate = self.gate
        if gate is None:
            ready, spread_ready = self.on_time.ready, self.spread.ready
            first = ready.head() if ready.active else None
            second = spread_ready.head() if spread_ready.active else None
        else:
            gate.now_ns = self.timeline.to_ns(now)
            met_count = -1
            while met_count != gate.met_count:  # limits are told by functions of the user, which may change anything
                met_count = gate.met_count
                first = self.on_time.ready.head()
                second = self.spread.ready.head()
        if first is None is second or not (
            self.is_unlimited or (self._permit_count and now <= self._usable_until) or self._count_permits(now)
        ):
            return None
        self._is_planned = False
        if first is not None:
            is_spread = second is not None and not self.is_unlimited and second < first
            calendar = self.spread if is_spread else self.on_time
        elif self._dense or self.pacing is Pacing.ON_TIME:
            calendar = self.spread
        elif self._pulled_at >= self.plan.next_at and not self.wall.is_reading:
            calendar = self.spread
            self._is_planned = not self._is_by_importance and spread_ready.earliest() is not None  # type: ignore[attr-defined]  # it can tell then
        else:
            return None
        return calendar if self.costs is None else self._choose_metered(calendar, now)

    def _choose_metered(self, calendar: Calendar, now: float) -> Calendar | None:
        """Choose where starts may cost more than a permit: what is first waits for what it needs, and all others for it."""
        ready: Any = calendar.ready
        source, item = ready.peek_earliest() if self._is_planned else ready.peek()
        needs = item.needs if source is None else source.needs
        if needs is not None:
            assert self.costs is not None
            now_ns = self.timeline.to_ns(now)
            if not self.costs.admits(needs, now_ns):
                when_ns = self.costs.when(needs, now_ns)
                self._permit_count = 0
                self._next_permit_at = math.inf if when_ns is None else self.timeline.to_loop(when_ns)
                if when_ns is None and self.costs.is_beyond(needs):
                    self._beyond = calendar
                return None
        return calendar

    def _stretch_count(self, calendar: Calendar) -> int:
        """Return how many tasks of the run that was chosen from ``calendar`` may start, one after the other."""
        count = UNLIMITED
        if not self.is_unlimited:
            other = self.spread if calendar is self.on_time else self.on_time
            count = self._permit_count if other.ready.head() is None else 1
        if self._is_planned and not self.spread.ready.is_in_due_order:  # type: ignore[attr-defined]  # _choose() has asked it
            return 1
        if calendar is self.spread and self.pacing is Pacing.SPREAD and not self._dense:
            count = min(count, self.plan.count_until(self._pulled_at, left=calendar.opened_count + self._later_count))
        return count

    def _admit(self, calendar: Calendar, source: Any, item: Any, now: float) -> bool:
        """Count a task that was taken from its run as started, and pay for it; False if it has expired."""
        if source is None:
            return self.admit_record(calendar, item, now, is_paid=True)
        calendar.opened_count -= 1
        due: float = source.due_of(item)
        if type(source) is BatchSource:
            source.start(item)
            if not source.live:
                calendar.finish(source)
            if now > due + source.deadline_after:
                self.on_gone(source, item, TaskState.EXPIRED)
                return False
        self.spend(calendar, due, now)
        if not source.is_plain and (source.key is not None or source.needs is not None):
            self._charge(source.key, source.needs, source.cost_of(item))
        return True

    def admit_record(self, calendar: Calendar, record: Record, now: float, *, is_paid: bool) -> bool:
        """Do the same with a record."""
        calendar.opened_count -= 1
        options = record._options
        if options is None:
            if is_paid:
                self.spend(calendar, record._due, now)
            return True
        if self.drops is not None:
            self.drops.discard(record)
        if options.deadline is not None:
            self.expiry.discard(record)
            if now > options.deadline:
                self.on_gone(None, record, TaskState.EXPIRED)
                return False
        self.spend(calendar, record._due, now)
        charge = options.charge
        if charge is not None or options.key is not None:
            needs = None if charge is None else charge.needs
            tickets = self._charge(options.key, needs, 1 if charge is None else record.cost)
            if charge is not None and self.costs is not None:
                charge.tickets = tickets
                charge.share = None if self._fair_clock is None else self._fair_clock.last
            if options.key is not None and self.gate is not None:
                self.gated.add(record)
        elif self._tickets:
            self._tickets = []
        return True

    def spend(self, calendar: Calendar, due: float, now: float, count: int = 1) -> None:
        """Take the permits of starts from ``calendar``; the tasks are counted as started already. For :meth:`take` and its stretch."""
        if self.on_start is not None:
            self.on_start(now - due)
        if self._fair_clock is not None:
            calendar.ready.served()
        if self._permit_count:
            self._permit_count -= count
            if self.effects is None:
                self.permits.take(count)
            else:
                self.permits.take(count, 0 if now == self._counted_at else self.timeline.to_ns(now))
            if not self._permit_count:
                self._next_permit_at = self.timeline.to_loop(self.permits.next_number_time())
        if calendar is self.spread and count:
            self.plan.started(
                due=-math.inf if self.early else due,
                now=now,
                left=calendar.opened_count + self._later_count,
                count=count,
            )

    def _charge(self, key: Hashable, needs: Mapping[str, int] | None, cost: int) -> list[tuple[str, Any, Any]]:
        """Take what a start costs beyond its permit, of the limits and of its key; return the tickets of that."""
        tickets: list[tuple[str, Any, Any]] = []
        if needs is not None and self.costs is not None:
            tickets = self.costs.charge(needs)
            self.note_permits()  # what was counted before may be used up by now
        if key is not None and self.gate is not None:
            ticket = self.gate.start(key, cost, self.gate.now_ns)
            if ticket is not None:
                tickets.append((PERMITS, *ticket))
        self._tickets = tickets
        return tickets

    def tickets(self) -> list[tuple[str, Any, Any]]:
        """Return the tickets of the record that was taken last, as (resource, limit, ticket); some may be there twice."""
        permits = self.permits
        return [*permits.tickets, *self._tickets] if isinstance(permits, CombinedPermits) else [*self._tickets]

    def _leave_batch(self, calendar: Calendar, source: BatchSource, position: int) -> None:
        """Note that a task of a batch goes without a start."""
        source.start(position)
        calendar.opened_count -= 1
        if not source.live:
            calendar.finish(source)

    def _drop_beyond(self) -> None:
        """Take out the first task, which costs more than is ever admitted since a rate has been lowered: all wait behind it."""
        calendar: Any = self._beyond
        self._beyond = None
        run = calendar.ready.pop_earliest() if self._is_planned else calendar.ready.pop()
        source, item = run.source, run.take()
        self.note_permits()
        if source is not None:
            self._leave_batch(calendar, source, item)
        else:
            calendar.opened_count -= 1
            self.expiry.discard(item)
            if self.drops is not None:
                self.drops.discard(item)
        self.on_gone(source, item, TaskState.DROPPED)

    def settle_share(self, share: Any, change: int) -> None:
        """Charge the key of a task for so many permits more than were reserved, or fewer."""
        if self._fair_clock is not None and share is not None and change:
            self._fair_clock.settle(share, change)

    @property
    def usable_until(self) -> float:
        """Loop time until which the permits stay usable that :meth:`take` has seen."""
        return math.inf if self.is_unlimited else self._usable_until

    def take_effect(self, now: float) -> None:
        """Note that what was started last has taken effect by ``now``, unless it was deferred; if that matters."""
        if self.effects is not None and self.effects.open_ticket is not None:
            self.effects.take_effect(self.timeline.to_ns(now))
        if self.gate is not None:
            self.gate.take_effect(self.timeline.to_ns(now))

    def defer(self, effects: list[list[int]]) -> None:
        """Let what was started last take effect when ``note_effect()`` is called with ``effects``."""
        if self.effects is not None:
            self.effects.defer(effects)
        if self.gate is not None:
            self.gate.defer(effects)

    @decision
    def next_wake(self, now: float, *, may_start: bool) -> float:
        """Return the loop time at which to ask again; infinity if only an input can change anything.

        Args:
            now: loop time.
            may_start: False if all places of a concurrency limit are taken, so that only time limits matter.
        """
        if may_start and self.is_unlimited and not self.expiry.is_used and self.gate is None:
            due = self._next_lone_due()
            if due < self.end:
                return due
        wake = math.inf
        self.is_forgetting = False
        if self.expiry.is_used:
            sweep = self.expiry.next_sweep()
            if sweep is not None:
                wake = self.timeline.start_of(sweep)
        if self.wall.is_pending:
            wake = min(wake, self.interval_end)
        if not may_start or self.permits.rate.is_zero:
            return wake
        wake = min(wake, self._note_opening(), self._next_instant(now))
        if self.gate is None:
            return wake
        opens_ns = self.gate.next_time()  # after a look at what is first, which may have to wait for its key
        if opens_ns is not None:
            wake = min(wake, self.timeline.to_loop(opens_ns))
        self.is_forgetting = wake == math.inf and self.gate.is_remembering
        return self.interval_end if self.is_forgetting else wake

    def _next_lone_due(self) -> float:
        """Return the next due time, if there is no limit, and nothing else to be looked at before it; else infinity."""
        calendar = self.on_time
        if calendar.ready.active or self.spread.numbers or self.spread.opened_count or self.wall.is_pending:
            return math.inf
        due = calendar.next_due()
        if due < self.end and not calendar.is_large_ahead:
            self.is_forgetting = False
            self._opening_at = self.end  # or later: it is looked at then
            return due
        return math.inf

    def _sweep_number(self, now: float) -> int | None:
        """Return the interval before which deadlines have passed, if the index of deadlines must be read."""
        sweep = self.expiry.next_sweep()
        number = self.timeline.number_at(now)
        return number if sweep is not None and sweep <= number else None

    def rest(self) -> None:
        """Free what an idle queue need not hold."""
        if not self.on_time.opened_count:
            self.on_time.rest()
        if not self.spread.opened_count:
            self.spread.rest()

    # Settings.

    def set_rate(self, rate: Rate, now: float) -> None:
        """Put a rate in force."""
        self.permits.set_rate(rate, self.timeline.to_ns(now))
        self._note_unlimited()
        self.note_order()
        self.note_permits()

    def set_permits(self, permits: Permits) -> None:
        """Let something else admit starts."""
        self.permits = permits
        self._note_unlimited()
        if self.costs is not None:
            self.costs = permits  # type: ignore[assignment]  # it is a combination once there are costs
        self.note_order()
        self.note_permits()

    def set_costs(self, permits: CombinedPermits) -> None:
        """Let something else admit starts, and ask it what each may cost."""
        self.costs = permits
        self.set_permits(permits)

    def set_crowded(self, *, is_crowded: bool) -> None:
        """Note whether more may be due than there are places to run in."""
        self._is_crowded = is_crowded
        self._note_unlimited()

    def _note_unlimited(self) -> None:
        """Note whether all that is due may start: what is asked for without delay then overtakes nothing.

        Else it would keep what is due waiting for ever if each call makes another, which an event loop does not do.
        """
        self.is_unlimited = self.permits.is_unlimited
        is_for_all = self.is_unlimited and not self._is_crowded
        self.on_time.soon_class = TaskClass.OTHER if is_for_all else TaskClass.IMMEDIATE

    def note_order(self) -> None:
        """Note whether each start is a decision of its own, because another may change what comes next, or what it costs."""
        is_grid = not isinstance(self.permits, CombinedPermits)
        self.effects = self.permits if self.permits.counts_effects and not self.is_unlimited else None
        self.counts_effects = self.effects is not None or self.gate is not None
        self._is_bursty = self.permits.is_bursty
        self._is_by_wall_clock = self.permits.is_by_wall_clock
        self._is_by_importance = self._fair_clock is not None or self.gate is not None
        self._is_single = not is_grid or self._is_by_importance
        self.asks_user |= self.order is not default_order or self.gate is not None  # also while such an order is left

    # Looking.

    @property
    def cancelled_count(self) -> int:
        """How many tasks without a record were cancelled by their handles."""
        return self.on_time.cancelled_count + self.spread.cancelled_count

    def is_spread(self, record: Record) -> bool:
        """Whether a record that is due waits for a planned instant."""
        return record._place.calendar is self.spread and not self._dense

    def ready_tasks(self) -> list[tuple[Any, Hashable, Mapping[str, int] | None, Any]]:
        """Return the tasks that are ready as (rank, key, needs, record or position); smaller ranks start first."""
        is_planned = self.pacing is Pacing.SPREAD and not self._dense and not self._is_by_importance
        tasks: list[tuple[Any, Hashable, Mapping[str, int] | None, Any]] = []
        for calendar in (self.on_time, self.spread):
            for number, (importance, source, item) in enumerate(calendar.ready.keyed()):
                rank: tuple[Any, ...] = 0, importance
                if calendar is self.spread and is_planned:
                    rank = 1, item._due if source is None else source.due_of(item), number
                key, needs = (item._key, item.needs) if source is None else (source.key, source.needs)
                tasks.append((rank, key, needs, item))
        return tasks

    def demand_until(self, when: float, count: Callable[..., float] = Calendar.count_until) -> float:
        """Estimate how many tasks want to have started by a loop time, if there were permits for all.

        Args:
            when: loop time.
            count: counts those of one calendar.
        """
        is_spread = self.pacing is Pacing.SPREAD
        on_time = count(self.on_time, when, is_spread=False)
        if not is_spread or self._dense or when >= self.interval_end:
            return on_time + count(self.spread, when, is_spread=is_spread)
        left = self.spread.opened_count + self._later_count
        planned = self.plan.count_until(when, left=left) if left and when >= self.plan.next_at else 0
        return on_time + min(planned, count(self.spread, when, is_spread=False))

    def note_permits(self) -> None:
        """Count the permits anew: some were granted."""
        self._permit_count = 0
        self._next_permit_at = -math.inf

    # Helpers.

    def _note_opening(self) -> float:
        """Note, and return, the loop time at which a calendar wants to open, or to prepare, its next bucket."""
        self._opening_at = self.on_time.opening_time()
        if self.spread.numbers:
            self._opening_at = min(self._opening_at, self.spread.opening_time())
        return self._opening_at

    def _begin_interval(self, now: float, late_count: int) -> None:
        if self.ticks is self.timeline:
            number, start, self.interval_end = self.on_time.number, self.ticks.start_of(self.on_time.number), self.end
        else:
            number = self.timeline.number_at(now)
            start, self.interval_end = self.timeline.start_of(number), self.timeline.start_of(number + 1)
        if self._is_by_wall_clock:
            self.note_permits()
        if self.gate is not None and self.gate.is_remembering:
            self.gate.now_ns = self.timeline.to_ns(now)
            self.chores.append(self.gate.sweep_steps())
        self.last_tick = ((number + 1) * self.timeline.interval_ns) // self.ticks.interval_ns - 1
        self.plan.begin(start, self.interval_end, late_count=late_count)
        is_passing = self.expiry.is_used and self.spread.opened_count
        self._passing = self.expiry.passing(number, self.interval_end, self.spread) if is_passing else []

    def _calendar_for(self, record: Record, *, joined: bool) -> Calendar:
        """Return the calendar that a record belongs to, and note its deadline."""
        options = record._options
        is_on_time = joined or self.pacing is Pacing.ON_TIME or (options is not None and options.on_time)
        if self.drops is not None:
            self.drops.add(record)
        if options is not None and options.deadline is not None:
            self.expiry.add(record)
            assert options.expires is not None
            is_on_time = is_on_time or options.expires < self.timeline.interval_seconds
        return self.on_time if is_on_time else self.spread

    def _later_count_of(self, source: BatchSource) -> int:
        """Count the tasks of a batch that are due in later buckets of the running interval."""
        if self.interval_end == self.end or source.first >= self.interval_end:
            return 0
        return source.count_before(self.interval_end) - source.opened_count

    def _note_later(self, calendar: Calendar, change: int) -> None:
        """Note that so many tasks more wait in later buckets of the running interval, or fewer."""
        if calendar is self.spread:
            self._later_count += change
        else:
            self._later_on_time_count += change

    def _read_wall(self, now: float, wall: float, since: float) -> None:
        """Take up what is due in this interval by the wall clock.

        What the clock has stepped over is due since the interval before has ended; what was due while the loop was
        blocked, since its own time.

        Args:
            now: loop time.
            wall: epoch seconds at that time.
            since: loop time at which the interval ended that was read last.
        """

        def record_due(record: Record) -> None:
            record._due = max(since, now + (record._due - wall))
            options = record._options
            if options is not None and options.expires is not None:
                options.deadline = record._due + options.expires
            calendar = self._calendar_for(record, joined=False)
            calendar.add_record(record)
            if self.end <= record._due < self.interval_end:
                self._note_later(calendar, 1)

        def batch_due(source: BatchSource, wall_due: float) -> None:
            source.first = max(since, now + (wall_due - wall))
            self.add_batch(source, joined=False)

        self.wall.read(wall + (self.interval_end - now), record_due, batch_due)

    def _look_for_permits(self, now: float) -> int:
        """Count the permits that may be taken now."""
        now_ns = self.timeline.to_ns(now)
        self._counted_at = now
        self._permit_count = self.permits.usable(now_ns)
        if self._permit_count:
            self._usable_until = now + (self.permits.usable_until_ns - now_ns) / NS
        return self._permit_count

    def _count_permits(self, now: float) -> int:
        """Count the permits that may be taken now by what waits; if there is none, note when the next comes up."""
        if not self._look_for_permits(now):
            now_ns = self.timeline.to_ns(now)
            permit_ns = self.permits.next_fresh_time(now_ns)
            self._next_permit_at = math.inf if permit_ns is None else self.timeline.to_loop(permit_ns)
            if self._is_by_wall_clock:
                self._next_permit_at = min(self._next_permit_at, self.interval_end)
        return self._permit_count

    def _is_dense(self, now: float) -> bool:
        """Whether more tasks wait for this interval than it has permits."""
        waiting = self.ready_count() + self._later_count + self._later_on_time_count
        if waiting <= 1:
            return False
        now_ns = self.timeline.to_ns(now)
        return waiting > self.permits.count_until(now_ns, self.timeline.to_ns(self.interval_end))

    def _is_passing(self) -> bool:
        """Whether a task that is to be spread would expire in the running interval."""
        passing = self._passing
        while passing and not self._passes(passing[-1]):
            passing.pop()
        return bool(passing)

    def _passes(self, item: Any) -> bool:
        """Whether a record waits to be spread, or a task of a batch, and would expire in the running interval."""
        if isinstance(item, BatchSource):
            return item.live > 0 and item.next_deadline() < self.interval_end
        is_spread = getattr(item._place, "calendar", None) is self.spread
        return is_spread and item._options.deadline < self.interval_end

    def _next_instant(self, now: float) -> float:
        """Return the loop time of the next start instant, as far as it is known now."""
        ready = self.on_time.ready
        on_time_ready = bool(ready.active) and ready.head() is not None
        ready = self.spread.ready
        spread_ready = bool(ready.active) and ready.head() is not None
        if self.is_unlimited and not self.spread.opened_count:
            return now if on_time_ready else self.on_time.next_due()
        instant = min(self.on_time.next_due(), self.interval_end if spread_ready else math.inf)
        planned = now if self._dense or self.pacing is Pacing.ON_TIME else self.plan.next_at
        spread_due = now if spread_ready else self.spread.next_due()
        if self.early and not spread_ready and spread_due < math.inf:
            spread_due = self.interval_end
        if self.is_unlimited:
            permit = now
        elif on_time_ready or spread_ready:
            permit = now if self._permit_count else self._next_permit_at
            if permit <= now:
                permit_ns = self.permits.next_time(self.timeline.to_ns(now))
                permit = math.inf if permit_ns is None else self.timeline.to_loop(permit_ns)
                if self._is_by_wall_clock:
                    permit = min(permit, self.interval_end)
        else:
            permit = now
        if on_time_ready or (spread_ready and self._dense and not self.is_unlimited):
            return min(instant, permit)
        return min(instant, max(planned, spread_due, permit))


def _nothing(source: Any, item: Any, state: TaskState) -> None:
    """Note nothing."""
