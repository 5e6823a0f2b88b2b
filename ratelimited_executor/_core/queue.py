"""What one executor starts next, and when: the pure heart.

It takes inputs (tasks, cancellations, rates, the time) and answers two questions: which task starts now, and at what
time to ask again. It never reads a clock, never calls a task and never waits; ``_runtime`` does all of that, and the
simulator drives the same object.

Two calendars. Tasks that must start at their due time (those that joined a running interval, those of the asyncio face,
those that expire within less than an interval) lie in ``on_time``; tasks that may be spread over their interval lie in
``spread``. A *start instant* is a permit when a task of the first kind is due, when the interval holds more tasks than
permits, or when one that it took over from an earlier interval would expire in it; otherwise it is a planned instant
(``pacing.py``). At a permit the most important task of both starts, at a planned instant the task of ``spread`` that is due
first. An unlimited rate has a permit for everybody: each calendar then goes by its own instants.

Where keys have limits of their own, or an order shares among them, importance decides at planned instants as well: more of
one key may be due than may start, although the interval has permits for all.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from ratelimited_executor._core.intervals import IntervalCalendars
from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.ordering import default_order
from ratelimited_executor._core.permits import UNLIMITED, PermitGrid
from ratelimited_executor._core.records import PERMITS
from ratelimited_executor._kernel.admission import Admission
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.contracts import is_empty
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.stretch import Stretch
from ratelimited_executor._kernel.timeline import NS, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from ratelimited_executor._core.fair import Fair
    from ratelimited_executor._core.key_gate import KeyGate
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._core.rates import Rate
    from ratelimited_executor._core.records import TaskRecord
    from ratelimited_executor._kernel.calendar import Calendar
    from ratelimited_executor._kernel.contracts import Permits
    from ratelimited_executor._kernel.records import Record

__all__ = ["TaskQueue"]

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
        outer, self.deciding_at = self.deciding_at, now  # such code may look for itself, which decides as well
        try:
            return decide(self, now, *args, **kwargs)
        finally:
            self.deciding_at = outer

    return decide_at  # type: ignore[return-value]  # wraps() says that its arguments have names


class TaskQueue(IntervalCalendars):
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
        super().__init__(
            timeline,
            now,
            slack=slack,
            pacing=pacing,
            early=early,
            report_order_error=report_order_error,
            gate=gate,
            bucket_ns_max=bucket_ns_max,
        )
        self.admission = Admission(
            permits or PermitGrid(rate, slack_ns=round(slack * NS), now_ns=timeline.to_ns(now), peers=peers, rank=rank),
            timeline,
        )
        self.counts_effects = False  # whether take_effect() or defer() wants to be told of each start
        self.costs: CombinedPermits | None = None  # the same, once some task may cost more than a permit
        self._beyond: Calendar | None = None  # whose first task costs more than is ever admitted
        self.is_forgetting = False  # whether the next wake-up is only there for idle keys to be forgotten
        self._is_bursty = False  # whether many permits may come up at once
        self._is_sorting = False  # whether nothing starts, because not all that is due is ready
        self._is_crowded = False  # whether the places in which tasks run are limited
        self._note_unlimited()
        self._is_single = False  # whether each start is a decision of its own
        self.is_by_importance = False  # whether planned instants go by importance as well
        self.on_start: Callable[[float], None] | None = (
            None  # told by how many seconds each start is later than it was due
        )
        self.stretch = Stretch(self)
        self.on_gone: Callable[[Any, Any, TaskState], None] = (
            _nothing  # told of what is taken out without a start: how it ends
        )
        self.gated: set[TaskRecord] = set()  # records that have started under the limits of keys, and not ended
        self._tickets: list[tuple[str, Any, Any]] = []  # of costs and key of the record that was taken last
        self.deciding_at: float | None = None  # loop time of a decision that asks code of the user; None outside of one
        self.asks_user = False  # whether one may
        self.is_halted = False  # whether nothing becomes ready any more: what waits is to be cut
        self._is_planned = False  # whether what choose() found is the task that is due first
        self._pulled_at = (
            now  # loop time up to which planned instants count: one that comes meanwhile waits for the next look
        )
        self.note_order()
        if order is not default_order or gate is not None:
            self.set_order(order)
        self._begin_interval(now, late_count=0)

    def cancel(self, record: Record) -> bool:
        """Remove a waiting record from wherever it waits; return whether that may let another start."""
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
        return self._note_left(options.key, is_costly=options.charge is not None)

    def revoke(self, source: BatchSource) -> tuple[int, bool]:
        """Cancel what still waits of a batch; return how many tasks that were, and whether that may let another start."""
        calendar = source.calendar
        if calendar is None:
            return 0, False
        if calendar is not self.wall:
            self._note_later(calendar, -self._later_count_of(source))
        count: int = calendar.revoke(source)
        return count, self._note_left(source.key, is_costly=source.needs is not None)

    def _note_left(self, key: Hashable, *, is_costly: bool) -> bool:
        """Look again at what had to wait for a task that has gone without a start; return whether there is any such thing.

        Args:
            key: of the task.
            is_costly: whether it needed something else than a permit.
        """
        if self.is_halted:
            return False
        is_freed = key is not None and self.gate is not None and self.gate.is_parked(key)
        if is_freed:
            self.look_again(key)
        if is_costly:
            self.admission.forget()
        return is_freed or is_costly

    def look_again(self, key: Hashable) -> None:
        """Let a key that had to wait be asked anew: something of it has changed."""
        if self.gate is not None:
            self.gate.look_again(key)

    # Going on.

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
        is_paced = not self.is_unlimited and self.spread.opened_count + self.later_count > 0
        self.is_dense = is_paced and (self._is_dense(now) or self._is_passing())
        self.admission.count = 0
        if self.costs is not None:
            self.admission.forget()  # what has come may need less than what was first
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

    @decision
    def take_next(self, now: float, record: TaskRecord) -> bool:
        """Take a record that has just been made ready, if it is what starts now; else it goes on waiting."""
        calendar = self._choose(now)
        self._beyond = None  # that is for take() to find out
        if calendar is not self.on_time or calendar.ready.peek()[1] is not record:
            return False
        calendar.ready.pop().take()
        return self.admit_record(calendar, record, now, is_paid=True)

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
            admission = self.admission
            admission.count = 0
            if now < admission.next_at or not admission.look(now):
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
            self.cancel(record)
            self.on_gone(None, record, TaskState.EXPIRED)
            if count == _EXPIRE_COUNT_MAX:
                return
        for count, (source, position) in enumerate(self.expiry.sweep_batches(now), start=1):
            self._leave_batch(source.calendar, source, position)
            self._note_left(source.key, is_costly=source.needs is not None)
            self.on_gone(source, position, TaskState.EXPIRED)
            if count == _EXPIRE_COUNT_MAX:
                return

    def _choose(self, now: float) -> Calendar | None:
        """Return the calendar whose first ready task starts now; None if none does. It looks at the permits, and takes none."""
        admission = self.admission
        if self._is_sorting or (not admission.count and now < admission.next_at):
            return None
        gate = self.gate
        if gate is None:
            ready, spread_ready = self.on_time.ready, self.spread.ready
            first = ready.head() if ready.active else None
            second = spread_ready.head() if spread_ready.active else None
        else:
            now_ns, met_count = self.timeline.to_ns(now), -1
            while met_count != gate.met_count:  # limits are told by functions of the user, which may change anything
                met_count = gate.met_count
                first = self.on_time.ready.head_at(now_ns)  # type: ignore[attr-defined]  # there is a gate
                second = self.spread.ready.head_at(now_ns)  # type: ignore[attr-defined]  # as above
        if first is None is second or not (self.is_unlimited or admission.find(now, self.interval_end)):
            return None
        self._is_planned = False
        if first is not None:
            is_spread = second is not None and not self.is_unlimited and second < first
            calendar = self.spread if is_spread else self.on_time
        elif self.is_dense or self.pacing is Pacing.ON_TIME:
            calendar = self.spread
        elif self._pulled_at >= self.plan.next_at and not self.wall.is_reading:
            calendar = self.spread
            self._is_planned = not self.is_by_importance and spread_ready.earliest() is not None  # type: ignore[attr-defined]  # it can tell then
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
                self.admission.count = 0
                self.admission.next_at = math.inf if when_ns is None else self.timeline.to_loop(when_ns)
                if when_ns is None and self.costs.is_beyond(needs):
                    self._beyond = calendar
                return None
        return calendar

    def _stretch_count(self, calendar: Calendar) -> int:
        """Return how many tasks of the run that was chosen from ``calendar`` may start, one after the other."""
        count = UNLIMITED
        if not self.is_unlimited:
            other = self.spread if calendar is self.on_time else self.on_time
            count = self.admission.count if other.ready.head() is None else 1
        if self._is_planned and not self.spread.ready.is_in_due_order:  # type: ignore[attr-defined]  # _choose() has asked it
            return 1
        if calendar is self.spread and self.pacing is Pacing.SPREAD and not self.is_dense:
            count = min(count, self.plan.count_until(self._pulled_at, left=calendar.opened_count + self.later_count))
        return count

    def _admit(self, calendar: Calendar, source: Any, item: Any, now: float) -> bool:
        """Count a task that was taken from its run as started, and pay for it; False if it has expired."""
        if source is None:
            return self.admit_record(calendar, item, now, is_paid=True)
        calendar.opened_count -= 1
        due: float = source.due_of(item)
        if type(source) is BatchSource:
            source.start(item)
            if source.started_count == source.count:
                calendar.finish(source)
            if now > due + source.deadline_after:
                self.on_gone(source, item, TaskState.EXPIRED)
                return False
        self.spend(calendar, due, now)
        if not source.is_plain and (source.key is not None or source.needs is not None):
            self._charge(source.key, source.needs, source.cost_of(item), now)
        return True

    def admit_record(self, calendar: Calendar, record: Any, now: float, *, is_paid: bool) -> bool:
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
            tickets = self._charge(options.key, needs, 1 if charge is None else record.cost, now)
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
        self.admission.take(count, now)
        if calendar is self.spread and count:
            self.plan.started(
                due=-math.inf if self.early else due,
                now=now,
                left=calendar.opened_count + self.later_count,
                count=count,
            )

    def _charge(
        self, key: Hashable, needs: Mapping[str, int] | None, cost: int, now: float
    ) -> list[tuple[str, Any, Any]]:
        """Take what a start at loop time ``now`` costs beyond its permit, of the limits and of its key; return the tickets of that."""
        tickets: list[tuple[str, Any, Any]] = []
        if needs is not None and self.costs is not None:
            tickets = self.costs.charge(needs)
            self.admission.forget()  # what was counted before may be used up by now
        if key is not None and self.gate is not None:
            ticket = self.gate.start(key, cost, self.timeline.to_ns(now))
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
        self.admission.forget()
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

    def take_effect(self, now: float) -> None:
        """Note that what was started last has taken effect by ``now``, unless it was deferred; if that matters."""
        if (effects := self.admission.effects) is not None and effects.open_ticket is not None:
            effects.take_effect(self.timeline.to_ns(now))
        if self.gate is not None:
            self.gate.take_effect(self.timeline.to_ns(now))

    def defer(self, effects: list[list[int]]) -> None:
        """Let what was started last take effect when ``note_effect()`` is called with ``effects``."""
        if self.admission.effects is not None:
            self.admission.effects.defer(effects)
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
        if not may_start or self.admission.permits.rate.is_zero:
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

    # Settings.

    def set_rate(self, rate: Rate, now: float) -> None:
        """Put a rate in force."""
        self.permits.set_rate(rate, self.timeline.to_ns(now))
        self.set_permits(self.permits)

    def set_permits(self, permits: Permits) -> None:
        """Let something else admit starts."""
        self.admission.put(permits)
        self._note_unlimited()
        if self.costs is not None:
            self.costs = permits  # type: ignore[assignment]  # it is a combination once there are costs
        self.note_order()

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
        self.is_unlimited = self.admission.is_unlimited
        is_for_all = self.is_unlimited and not self._is_crowded
        self.on_time.soon_class = TaskClass.OTHER if is_for_all else TaskClass.IMMEDIATE

    def note_order(self) -> None:
        """Note whether each start is a decision of its own, because another may change what comes next, or what it costs."""
        is_grid = not isinstance(self.permits, CombinedPermits)
        self.counts_effects = self.admission.effects is not None or self.gate is not None
        self._is_bursty = self.permits.is_bursty
        self.is_by_importance = self._fair_clock is not None or self.gate is not None
        self._is_single = not is_grid or self.is_by_importance
        self.asks_user |= self.order is not default_order or self.gate is not None  # also while such an order is left

    # Looking.

    @property
    def permits(self) -> Permits:
        """What admits starts."""
        permits: Permits = self.admission.permits
        return permits

    @property
    def cancelled_count(self) -> int:
        """How many tasks without a record were cancelled by their handles."""
        return self.on_time.cancelled_count + self.spread.cancelled_count

    # Helpers.

    def _begin_interval(self, now: float, late_count: int) -> None:
        super()._begin_interval(now, late_count)
        if self.permits.is_by_wall_clock:
            self.admission.forget()
        if self.gate is not None and self.gate.is_remembering:
            self.chores.append(self.gate.sweep_steps(self.timeline.to_ns(now)))

    def _is_dense(self, now: float) -> bool:
        """Whether more tasks wait for this interval than it has permits."""
        waiting = self.ready_count() + self.later_count + self._later_on_time_count
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
        if self.gate is None:
            ready = self.on_time.ready
            on_time_ready = bool(ready.active) and ready.head() is not None
            ready = self.spread.ready
            spread_ready = bool(ready.active) and ready.head() is not None
        else:
            now_ns = self.timeline.to_ns(now)
            on_time_ready = self.on_time.ready.head_at(now_ns) is not None  # type: ignore[attr-defined]  # there is a gate
            spread_ready = self.spread.ready.head_at(now_ns) is not None  # type: ignore[attr-defined]  # as above
        if self.is_unlimited and not self.spread.opened_count:
            return now if on_time_ready else self.on_time.next_due()
        instant = min(self.on_time.next_due(), self.interval_end if spread_ready else math.inf)
        planned = now if self.is_dense or self.pacing is Pacing.ON_TIME else self.plan.next_at
        spread_due = now if spread_ready else self.spread.next_due()
        if self.early and not spread_ready and spread_due < math.inf:
            spread_due = self.interval_end
        if self.is_unlimited:
            permit = now
        elif on_time_ready or spread_ready:
            permit = self.admission.next_time(now, self.interval_end)
        else:
            permit = now
        if on_time_ready or (spread_ready and self.is_dense and not self.is_unlimited):
            return min(instant, permit)
        return min(instant, max(planned, spread_due, permit))


def _nothing(source: Any, item: Any, state: TaskState) -> None:
    """Note nothing."""
