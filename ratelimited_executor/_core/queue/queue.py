"""The queue for special tasks: keys with limits, costs, custom orders, deadlines and the wall clock.

``_kernel/queue.py`` decides for tasks that need a permit and nothing else; this module adds the other conditions. Where
keys have limits of their own, or an order shares among keys, tasks start by importance at planned instants as well:
more tasks of one key may be due than may start, although the interval has permits for all.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from ratelimited_executor._core.order.fair import Fair, FairClock
from ratelimited_executor._core.order.ordering import default_order
from ratelimited_executor._core.order.ready_fair import ReadyFair
from ratelimited_executor._core.order.ready_heap import ReadyHeap
from ratelimited_executor._core.order.ready_keyed import ReadyKeyed
from ratelimited_executor._core.queue import looking
from ratelimited_executor._core.queue.expiry import ExpiryIndex
from ratelimited_executor._core.queue.records import PERMITS, KeyOptions
from ratelimited_executor._core.queue.wall import WallWheel
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.buckets import RECORD, Bucket
from ratelimited_executor._kernel.calendar import Calendar
from ratelimited_executor._kernel.chores import Chores
from ratelimited_executor._kernel.contracts import is_empty
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._kernel.queue import PlainQueue
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._kernel.sizes import RUN_COUNT
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.timeline import NS, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from ratelimited_executor._core.keys.gate import KeyGate
    from ratelimited_executor._core.limits.combined import CombinedPermits
    from ratelimited_executor._core.order.ordering import Order
    from ratelimited_executor._core.permits.rates import Rate
    from ratelimited_executor._core.queue.dropping import DropIndex
    from ratelimited_executor._core.queue.records import TaskRecord
    from ratelimited_executor._core.slots.keeping import SlotRequest
    from ratelimited_executor._kernel.contracts import DueReady, Permits, Ready
    from ratelimited_executor._kernel.records import Record
    from ratelimited_executor._kernel.stretch import Stretch

__all__ = ["TaskQueue"]

P = ParamSpec("P")
T = TypeVar("T")

_EXPIRE_COUNT_MAX: Final = 1000  # tasks removed in one step: about two milliseconds
_REKEY_COUNT: Final = 200  # tasks moved to a new order in one step: about two milliseconds


def decision(
    decide: Callable[Concatenate[TaskQueue, float, P], T],
) -> Callable[Concatenate[TaskQueue, float, P], T]:
    """Fix the time of a decision made by a method of a queue, whatever user code does meanwhile.

    Settings changed by user code take effect at this time: later decisions with the same time must not precede them.
    """

    @wraps(decide)
    def decide_at(self: TaskQueue, now: float, *args: P.args, **kwargs: P.kwargs) -> T:
        outer, self.deciding_at = self.deciding_at, now  # user code may ask the queue, which decides as well
        try:
            return decide(self, now, *args, **kwargs)
        finally:
            self.deciding_at = outer

    return decide_at  # type: ignore[return-value]  # wraps() says that its arguments have names


class TaskQueue(PlainQueue):
    """The waiting tasks of one executor, of all kinds.

    Args:
        timeline: the manager's timeline; pacing works on its intervals.
        now: loop time.
        permits: admit starts.
        slack: seconds for which a permit stays usable.
        pacing: how the tasks of an interval are paced.
        order: the key function of importance.
        early: True if a task may start anywhere in the interval of its due time.
        phase: of the plan of each interval, as a part of the gap between two permits.
        report_order_error: called with each error that the order raises.
        bucket_ns_max: the maximum width of a bucket.
    """

    expiry: ExpiryIndex
    wall: WallWheel
    drops: DropIndex | None
    gate: KeyGate | None

    def __init__(
        self,
        timeline: Timeline,
        *,
        now: float,
        permits: Permits,
        slack: float,
        pacing: Pacing,
        order: Order | Fair,
        early: bool,
        phase: float = 0.0,
        report_order_error: Callable[[BaseException], None],
        bucket_ns_max: int = NS,
    ) -> None:
        chores = Chores()
        super().__init__(
            timeline,
            now=now,
            permits=permits,
            slack=slack,
            pacing=pacing,
            early=early,
            bucket_ns_max=bucket_ns_max,
            chores=chores,
            expiry=ExpiryIndex(timeline),
            wall=WallWheel(timeline.interval_ns / NS, chores),
            phase=phase,
        )
        self.gate = None  # None if no key has limits
        self.order: Order | Fair = default_order
        self.costs: CombinedPermits | None = None  # the permits, once some task may cost more than one
        self.used: Counter[str] = Counter()  # of each resource, by starts that name it, corrections included
        self.gated: set[TaskRecord] = set()  # running records that count in the limits of their keys
        self.slots_of: dict[TaskRecord, SlotRequest] = {}  # of running records
        self.is_forgetting = False  # True if the next wake-up serves only to forget idle keys
        self.deciding_at: float | None = None  # loop time of a decision that calls user code; None outside one
        self._report_order_error = report_order_error
        self._fair_clock: FairClock | None = None  # None unless the order is a Fair
        self._is_interim = False  # True while a heap keeps the default order, after a change from another order
        # The first task, as (source, item), if no ticket held is enough for it: the next ticket is for this task.
        self.unmet: tuple[Any, Any] | None = None
        self._beyond: Calendar | None = None  # the calendar whose first task costs more than is ever admitted
        self._receipts: list[tuple[str, Any, Any]] = []  # for costs and key of the last charge
        self.note_order()
        if order is not default_order:
            self.set_order(order)

    # Decisions.

    @decision
    def _decide_special(self, now: float, limit: int, *, is_changed: bool) -> tuple[Any, Any] | Stretch | None:
        while (taken := self._decide(now, limit, is_changed=is_changed)) is None and self._beyond is not None:
            self._drop_beyond()
            is_changed, self.is_changed = self.is_changed, False
        return taken

    @decision
    def pull(self, now: float) -> bool:
        """Make due tasks ready, for a question that takes none, in a bounded step of work; False if there is more to do."""
        self.is_changed = True
        return self._pull(now)

    @decision
    def take_next(self, now: float, record: Record) -> bool:
        """Take a record that has just become ready, if it is the next task to start; otherwise it continues to wait."""
        is_taken = super().take_next(now, record)
        self._beyond = None  # poll() handles a task that is never admitted
        return is_taken

    @decision
    def next_wake(self, now: float) -> float:
        """Return the loop time at which to ask again if nothing starts now; infinity if only an input can change anything."""
        return self._next_wake(now, may_start=True)

    # Advancing.

    def _prepare_special(self, now: float) -> None:
        if self.gate is not None:
            self.gate.open_due(self.timeline.to_ns(now))
        if self.rekeying:
            self.rekey()
        elif self._is_interim and is_empty(self.on_time.ready) and is_empty(self.spread.ready):
            self.set_order(default_order)
        if self.costs is not None:
            self.admission.forget()  # a new first task may need less than the one before

    def _next_wake_of_keys(self, now: float, wake: float, *, may_start: bool) -> float:
        gate = self.gate
        assert gate is not None
        self.is_forgetting = False
        if wake < math.inf and gate.is_quiet:
            return wake
        if gate.has_slots:
            now_ns = self.timeline.to_ns(now)
            permit_ns = self.permits.next_time(now_ns) if may_start else None
            known_at = self.admission.next_at
            costs_ns = self.timeline.to_ns(known_at) if math.isfinite(known_at) else now_ns
            until_ns = gate.trim(
                now_ns,
                may_start=permit_ns is not None,
                permit_ns=math.inf if permit_ns is None else max(permit_ns, costs_ns),
                may_be_told=may_start and self.permits.is_by_tickets,
            )
            if until_ns is not None:
                wake = min(wake, self.timeline.to_loop(until_ns))
        if not may_start:
            return wake
        opens_ns = gate.next_time()  # read after looking at the first tasks, which may park keys
        if opens_ns is not None:
            wake = min(wake, self.timeline.to_loop(opens_ns))
        forget_ns = gate.forget_time()
        if forget_ns is None or wake < math.inf:
            return wake
        self.is_forgetting = not gate.is_without_room
        return max(self.interval_end, self.timeline.to_loop(forget_ns))

    def _next_instant_of_keys(self, now: float) -> float:
        if self.permits.is_by_tickets and not self.admission.count and now < self.admission.next_at:
            # Without a ticket, no key is asked for admission.
            first, second = self.on_time.ready.head(), self.spread.ready.head()
            return self._next_instant_of(on_time_ready=first is not None, spread_ready=second is not None, now=now)
        first, second = self.park_keys(self.timeline.to_ns(now))
        return self._next_instant_of(on_time_ready=first is not None, spread_ready=second is not None, now=now)

    def park_keys(self, now_ns: int) -> tuple[Any, Any]:
        """Park the keys that come first and may not start, without a request for slots; return the heads behind them."""
        gate = self.gate
        assert gate is not None
        gate.is_looking = True
        try:
            return self._heads_at(now_ns)
        finally:
            gate.is_looking = False

    def _heads_at(self, now_ns: int) -> tuple[Any, Any]:
        """Return the heads of both calendars among the tasks that the limits of keys admit at a time."""
        ready: Any = self.on_time.ready
        if not self.spread.opened_count:
            return (ready.head_at(now_ns) if ready.active else None), None
        if not (ready.active or self.spread.ready.active):
            return None, None
        if self.gate is not None and self.gate.asks_for_slots and not (self.gate.is_looking or self.is_unlimited):
            first, second = self.on_time.ready.head(), self.spread.ready.head()
            if first is not None and second is not None and second < first:
                ready = self.spread.ready
                ready.head_at(now_ns)  # the more important task requests its slots first
        ready = self.on_time.ready
        first = ready.head_at(now_ns)
        ready = self.spread.ready  # read only now: a user function may have set another order meanwhile
        return first, ready.head_at(now_ns)

    def begin_interval(self, now: float, late_count: int) -> None:
        """Enter the interval of ``now``, with ``late_count`` late tasks; also prepare deadlines, quotas and keys."""
        super().begin_interval(now, late_count)
        self.passing = []
        if self.expiry.is_used and self.spread.opened_count:
            self.passing = self.expiry.passing(self.timeline.number_at(now), self.interval_end, self.spread)
        if self.permits.is_by_wall_clock:
            self.admission.forget()
        self._receipts = []  # else the last key would be known until the next start
        if self.gate is not None and self.gate.forget_time() is not None:
            self.chores.append(self.gate.sweep_steps(self.timeline.to_ns(now)))

    def _read_wall(self, now: float, wall: float, since: float) -> None:
        """Take over the tasks that are due in this interval by the wall clock.

        Tasks that the clock has stepped over are due from the end of the previous interval; tasks that became due while
        the loop was blocked keep their due time.

        Args:
            now: loop time.
            wall: epoch seconds at ``now``.
            since: loop time at the end of the interval that was read last.
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

    # Taking.

    def expire(self, now: float) -> None:
        """Remove tasks that passed their deadline while nothing could start, a bounded number per call."""
        if not self.expiry.is_used:
            return
        sweep = self.expiry.next_sweep()
        number = self.timeline.number_at(now)
        if sweep is None or sweep > number:
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

    def _take_lone_of_key(self, now: float) -> tuple[Any, Any] | None:
        """Take the only due task, if its key may start one: like :meth:`_take_lone`, where keys have limits.

        It need not join the order. If it has to wait, it does.
        """
        gate, on_time, spread = self.gate, self.on_time, self.spread
        if gate is None or gate.asks_for_slots or on_time.ready.active or spread.ready.active:
            return None
        if not self._may_take_lone(now) or not (self.is_unlimited or self.admission.look(now)):
            return None
        self._pulled_at = now
        calendar, until = on_time, self.timeline.seen_until(now)
        if spread.opened_count:
            if self.early or self.passing or self.pacing is Pacing.ON_TIME or on_time.next_due() <= until:
                return None
            self.is_dense = not self.is_unlimited and self._is_dense(now)
            if self.is_dense or not self.plan.is_one(now, left=spread.opened_count + self.later_count):
                return None
            calendar, until = spread, now - self.phase_seconds
        taken = calendar.take_lone(until)
        if taken is not None:
            source: Any
            source, item = taken
            if source is not None:
                key, cost = source.key, source.cost_of(item)
            elif type(options := item._options) is KeyOptions:
                key, cost = options.key, 1
            else:
                key, cost = item._key, item.cost
            if key is None or gate.is_free(key, cost, self.timeline.to_ns(now)):
                return taken if self._admit(calendar, source, item, now) else None
            if source is None:
                calendar.ready.push_record(item)
            else:
                calendar.ready.push_position(source, item, source.rank)
        return None

    def _choose_special(self, now: float) -> Calendar | None:
        """Choose between the heads that the limits of keys admit; the first task then waits for its cost."""
        gate = self.gate
        if gate is None:
            calendar = self._choose(now)
        elif not (self.on_time.ready.active or self.spread.ready.active):
            return None
        else:
            if self._is_sorting or (not self.admission.count and now < self.admission.next_at):
                return None
            is_asking = gate.asks_for_slots or self.permits.is_by_tickets
            if is_asking and not (self.is_unlimited or self.admission.find(now, self.interval_end)):
                return None  # without a permit, no slots are requested and no key is parked
            now_ns, look_count = self.timeline.to_ns(now), -1
            first = second = None
            while look_count != gate.look_count:
                look_count = gate.look_count
                first, second = self._heads_at(now_ns)
            calendar = self._choose_of(first, second, now)
        return calendar if self.costs is None or calendar is None else self._choose_metered(calendar, now)

    def _choose_metered(self, calendar: Calendar, now: float) -> Calendar | None:
        """Choose where starts may cost more than a permit: the first task waits for its needs, all others for it."""
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
                elif when_ns is None:
                    self.unmet = source, item
                return None
        self.unmet = None
        return calendar

    def _charge_record(self, record: Any, now: float) -> None:
        """Charge the start of a record for its cost beyond the permit, and keep the receipts for settling."""
        options = record._options
        charge = options.charge
        key = options.key if options.line is None else options.line
        needs, cost = (None, 1) if charge is None else (charge.needs, record.cost)
        receipts = self._charge(key, needs, cost, now)
        if charge is not None and self.costs is not None:
            charge.receipts = receipts
            clock = self._fair_clock
            charge.share = None if clock is None or clock.last is None else (clock, clock.last)
        if key is not None and self.gate is not None:
            self.gated.add(record)
        if options.line is not None:
            options.line.waiting_count -= 1
            self.slots_of[record] = options.line.slots.take()

    def _charge(
        self, key: Hashable, needs: Mapping[str, int] | None, cost: int, now: float
    ) -> list[tuple[str, Any, Any]]:
        """Charge a start at loop time ``now`` for its cost beyond the permit, to limits and key; return the receipts."""
        receipts: list[tuple[str, Any, Any]] = []
        if needs is not None and self.costs is not None:
            receipts = self.costs.charge(needs)
            for resource, amount in needs.items():  # half the cost of Counter.update()
                self.used[resource] += amount
            self.admission.forget()  # permits counted before may be used up by now
        if key is not None and self.gate is not None:
            receipt = self.gate.start(key, cost, self.timeline.to_ns(now))
            if receipt is not None:
                receipts.append((PERMITS, *receipt))
        self._receipts = receipts
        return receipts

    def receipts(self, options: Any) -> list[tuple[str, Any, Any]]:
        """Return the receipts of the record taken last, as (resource, limit, receipt); some may appear twice.

        Args:
            options: the options of the record; None if it has none.
        """
        is_own = options is not None and (options.charge is not None or options.key is not None)
        own = self._receipts if is_own else []
        return [*self.permits.receipts, *own]

    def _drop_beyond(self) -> None:
        """Remove the first task, whose cost is never admitted since a rate was lowered: all others wait behind it."""
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
        """Charge the key of a task for ``change`` permits more than were reserved, or fewer if negative."""
        if share is not None and change:
            clock, place = share
            clock.settle(place, change)  # without effect if another order is in force now

    def _note_left(self, key: Hashable, *, is_costly: bool) -> bool:
        """Examine the tasks that waited behind a task removed without a start; return True if there are any.

        Args:
            key: the key of the removed task.
            is_costly: True if it needed more than a permit.
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
        """Read the limits of a waiting key again, because they have changed."""
        if self.gate is not None:
            self.gate.look_again(key)

    def _is_passing(self) -> bool:
        """True if a task waiting to be spread would expire in the running interval."""
        passing = self.passing
        while passing and not self._passes(passing[-1]):
            passing.pop()
        return bool(passing)

    def _passes(self, item: Any) -> bool:
        """True if a record, or a task of a batch, waits to be spread and would expire in the running interval."""
        if isinstance(item, BatchSource):
            return item.live > 0 and item.next_deadline() < self.interval_end
        is_spread = getattr(item._place, "calendar", None) is self.spread
        return is_spread and item._options.deadline < self.interval_end

    # Settings.

    def set_rate(self, rate: Rate, now: float) -> None:
        """Put a rate in force."""
        self.permits.set_rate(rate, self.timeline.to_ns(now))
        self.set_permits(self.permits)

    def set_permits(self, permits: Permits) -> None:
        """Replace the permits that admit starts."""
        super().set_permits(permits)
        if self.costs is not None:
            self.costs = permits  # type: ignore[assignment]  # permits are a combination once there are costs
        self.note_order()

    def set_costs(self, permits: CombinedPermits) -> None:
        """Replace the permits that admit starts, and ask them to admit the cost of each start."""
        self.costs = permits
        self.set_permits(permits)

    def note_order(self) -> None:
        """Record whether each start is a separate decision, because a start may change the next one or its cost."""
        is_left = bool(self.rekeying) or self._is_interim  # a previous order still holds tasks
        is_own = self.order is not default_order
        self._may_be_lone = not (is_own or is_left or self.costs is not None or self.permits.is_by_tickets)
        # Tickets are requested for a task at its due time, although there is no permit for it.
        self.is_special = self.gate is not None or not self._may_be_lone
        self.is_by_importance = self._fair_clock is not None or self.gate is not None
        self.tells_order = self._fair_clock is not None
        self._is_single = self.permits.decides_each or self.is_by_importance
        self.counts_effects = self.admission.effects is not None or self.gate is not None
        self.is_forgetting = False

    def set_gate(self, gate: KeyGate | None) -> None:
        """Put limits of keys in force; None for none."""
        self.gate = gate
        self.set_order(self.order)

    def set_order(self, order: Order | Fair) -> None:
        """Start tasks by another order from now on; ready tasks are re-keyed once, in slices.

        The queues of the default order must be filled in due order. So after another order, tasks go through a heap
        until no task is ready. A halted queue keeps its order: nothing will start, and its tasks are being cancelled.
        """
        if self.is_halted:
            return
        calendars = (self.on_time, self.spread)
        is_mixed = bool(self.rekeying) or any(
            not isinstance(calendar.ready, ReadyQueues) and not is_empty(calendar.ready) for calendar in calendars
        )
        self.order = order
        self._is_interim = order is default_order and is_mixed
        self._fair_clock = None
        if isinstance(order, Fair):
            self._fair_clock = FairClock(
                order,
                gate=self.gate,
                chores=self.chores,
                report=self._report_order_error,
                to_epoch=self.timeline.to_epoch,
            )
        self.note_order()
        for index, calendar in enumerate(calendars):
            old = calendar.ready
            old.release()
            self.rekeying.append((calendar, old))
            calendar.ready = self._make_ready(calendar, index, is_sorted=order is default_order and not is_mixed)
            calendar.take_count_max = RUN_COUNT if isinstance(calendar.ready, ReadyQueues) else _REKEY_COUNT
            old.note_replaced()
        self.rekey(_REKEY_COUNT)

    def rekey(self, count: int = _REKEY_COUNT) -> None:
        """Move some tasks from the old order to the one in force."""
        while self.rekeying and count > 0:
            calendar, old = self.rekeying[0]
            while count > 0 and old.head() is not None:
                count -= 1
                rank = old.head_rank()
                run = old.pop()
                if run.source is None:
                    calendar.ready.push_record(run.take())
                else:
                    calendar.ready.push_position(run.source, run.take(), rank)
            if (
                count > 0 and self.rekeying and self.rekeying[0][1] is old
            ):  # an order, as user code, may have called rekey()
                del self.rekeying[0]
        self.note_order()

    def _make_ready(self, calendar: Calendar, index: int, *, is_sorted: bool) -> Ready:
        """Create an empty ready queue of the order in force; ``is_sorted`` if it will be filled in due order."""
        if self._fair_clock is not None:
            return ReadyFair(calendar, self._fair_clock, index)
        order: Any = self.order
        arrivals = itertools.count(1)

        def make() -> DueReady:
            if is_sorted:
                return ReadyQueues(calendar)
            return ReadyHeap(
                calendar, order, to_epoch=self.timeline.to_epoch, report=self._report_order_error, arrivals=arrivals
            )

        return make() if self.gate is None else ReadyKeyed(self.gate, make)

    # Inspecting.

    def batches(self) -> list[BatchSource]:
        """Return every batch that may have waiting tasks."""
        return [*self.on_time.batches, *self.spread.batches, *self.wall.batches()]

    def last_start(self) -> float:
        """Return a loop time in the interval of the last task on the timeline; minus infinity if none waits."""
        return max(looking.last_start(self.on_time), looking.last_start(self.spread))

    # Ending.

    def cut(
        self, step_count: int, on_call: Callable[[Bucket, int], None] | None = None
    ) -> Iterator[tuple[int, list[Record]]]:
        """Empty a halted queue except for its batches, which must have been revoked; nothing may be added meanwhile.

        Between two steps tasks may end, be cancelled or change the settings of the executor.

        Args:
            step_count: the maximum number of tasks examined between two results.
            on_call: called with each task without a record before its removal.

        Yields:
            The number of removed tasks without a record, and the records, for the caller to cancel before the next step.
        """
        for ready in (self.on_time.ready, self.spread.ready, *(old for _, old in self.rekeying)):
            while (records := ready.drain(step_count)) is not None:
                yield 0, records
        for holder in (self.on_time, self.spread, self.wall):
            for bucket in holder.buckets():
                bucket.frozen = True  # compacting it would move tasks that the next step expects
                for start in range(0, len(bucket.calls), step_count):
                    count, records = _cut(bucket, start, start + step_count, on_call)
                    if bucket.opened and isinstance(holder, Calendar):
                        holder.opened_count -= count
                    yield count, records
                bucket.discard()
        self.on_time.clear()
        self.spread.clear()
        self.wall.clear()


def _cut(
    bucket: Bucket, start: int, stop: int, on_call: Callable[[Bucket, int], None] | None
) -> tuple[int, list[Record]]:
    """Empty places of a bucket; return the number of tasks without a record, and the records, to be cancelled now.

    Args:
        bucket: the bucket.
        start: the first place.
        stop: the place after the last.
        on_call: called with the bucket and the place of each task without a record, before its removal.
    """
    count = 0
    records: list[Record] = []
    for position in range(start, min(stop, len(bucket.calls))):
        if bucket.is_waiting(position):
            if bucket.args[position] is RECORD:
                records.append(bucket.calls[position])
                bucket.calls[position] = None  # else the last step would free all of them at once
            else:
                if on_call is not None:
                    on_call(bucket, position)
                bucket.clear(position)
                count += 1
    return count, records
