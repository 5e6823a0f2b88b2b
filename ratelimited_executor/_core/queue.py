"""What one executor starts next, and when: the pure heart.

It takes inputs (tasks, cancellations, rates, the time) and answers two questions: which task starts now, and at what
time to ask again. It never reads a clock, never calls a task and never waits; ``_runtime`` does all of that, and the
simulator drives the same object.

Two calendars. Tasks that must start at their due time (those that joined a running interval, those of the asyncio face,
those that a later start would let expire) lie in ``on_time``; tasks that may be spread over their interval lie in
``spread``. A *start instant* is a permit when a task of the first kind is due or the interval holds more tasks than
permits; otherwise it is a planned instant (``spread.py``). At a start instant the most important task of both starts. An
unlimited rate has a permit for everybody: each calendar then goes by its own instants.
"""

from __future__ import annotations

import math
from enum import Enum
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.calendar import Calendar
from ratelimited_executor._core.chores import Chores
from ratelimited_executor._core.due_order import RUN_COUNT
from ratelimited_executor._core.expiry import ExpiryIndex
from ratelimited_executor._core.fair import Fair, FairClock
from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.ordering import default_order
from ratelimited_executor._core.permits import UNLIMITED, PermitGrid
from ratelimited_executor._core.ready import ReadyHeap, ReadyQueues, is_empty
from ratelimited_executor._core.ready_fair import ReadyFair
from ratelimited_executor._core.ready_keyed import ReadyKeyed
from ratelimited_executor._core.spread import SpreadPlan
from ratelimited_executor._core.timeline import NS, Timeline
from ratelimited_executor._core.wall import WallWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from ratelimited_executor._core.batches import BatchSource
    from ratelimited_executor._core.dropping import DropIndex
    from ratelimited_executor._core.key_gate import KeyGate
    from ratelimited_executor._core.limits.permits import Permits
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._core.rates import Rate
    from ratelimited_executor._core.ready import Ready
    from ratelimited_executor._core.records import Record

__all__ = ["Pacing", "TaskQueue"]

_PULL_STEPS: Final = 2.0  # work between two looks at the clock: about two milliseconds
_REKEY_COUNT: Final = 200  # tasks put into a new order at a stretch: about two milliseconds


class Pacing(Enum):
    """When the tasks of an interval start, if they fit its permits."""

    SPREAD = "spread"
    """Evenly over the interval, up to one interval late."""

    ON_TIME = "on time"
    """Each at its own due time."""


class TaskQueue:
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
        self.timeline = timeline
        self.ticks = timeline.cut(bucket_ns_max)
        self.grid: Permits = permits or PermitGrid(
            rate, slack_ns=round(slack * NS), now_ns=timeline.to_ns(now), peers=peers, rank=rank
        )
        self.costs: CombinedPermits | None = None  # the same, once some task may cost more than a permit
        self.beyond: Calendar | None = None  # whose first task costs more than is ever admitted
        self.is_forgetting = False  # whether the next wake-up is only there for idle keys to be forgotten
        self._is_bursty = False  # whether many permits may come up at once
        self._is_sorting = False  # whether nothing starts, because not all that is due is ready
        self.gate = gate
        self.drops: DropIndex | None = None  # what may be dropped, if anything ever is
        self.plan = SpreadPlan(slack=slack)
        self.pacing = pacing
        self.early = early
        self.chores = Chores()
        self.on_time = Calendar(self.ticks, now, self.chores, is_punctual=True)
        self.spread = Calendar(self.ticks, now, self.chores)
        self.expiry = ExpiryIndex(timeline)
        self.wall = WallWheel(timeline.interval_ns / NS, self.chores)
        self.end = 0.0  # loop time at which the running bucket ends: enter() is due
        self.interval_end = 0.0  # loop time at which the running interval ends
        self.last_tick = 0  # number of the last bucket of the running interval
        self.is_unlimited = self.grid.is_unlimited
        self._is_by_wall_clock = False  # whether a step of the wall clock may let something start
        self._is_single = False  # whether each start is a decision of its own
        self._fair_clock: FairClock | None = None  # under an order of that kind
        self.on_start: Callable[[float], None] | None = (
            None  # told by how many seconds each start is later than it was due
        )
        self.is_halted = False  # whether nothing becomes ready any more: what waits is to be cut
        self._later_count = 0  # tasks to be spread in later buckets of the running interval
        self._later_on_time_count = 0  # other tasks in later buckets of the running interval
        self._dense = False  # whether the running interval holds more tasks than permits
        self._permit_count = 0  # permits counted by the grid and not yet taken
        self._usable_until = 0.0  # loop time until which they may be taken
        self._next_permit_at = -math.inf  # loop time before which no other permit comes up
        self._pulled_at = (
            now  # loop time up to which planned instants count: one that comes meanwhile waits for the next look
        )
        self._opening_at = -math.inf  # loop time at which a calendar wants to open, or to prepare, its next bucket
        self._report_order_error = report_order_error
        self._rekeying: list[tuple[Calendar, Ready]] = []  # ready queues in an old order, being emptied
        self._is_interim = False  # whether a heap keeps the default order, because another came before
        self.order: Order | Fair = default_order
        self._note_single()
        if order is not default_order or gate is not None:
            self.set_order(order)
        self.end = self.spread.end
        self._begin_interval(now, late_count=0)

    # Adding. The asyncio face adds to the columns of ``on_time`` itself.

    def add_record(self, record: Record) -> None:
        """Place a record by its due time."""
        is_joined = record._due < self.interval_end
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
        calendar = self.on_time if self.pacing is Pacing.ON_TIME or joined else self.spread
        calendar.add_batch(source)
        if source.deadline_after < math.inf:
            self.expiry.add_batch(source)

    def cancel(self, record: Record) -> None:
        """Remove a waiting record from wherever it waits."""
        place = record._place
        record._place = None
        place.cancel_record()
        place.calendar.note_gone(place)
        self.expiry.discard(record)
        if self.drops is not None:
            self.drops.discard(record)

    def batches(self) -> list[BatchSource]:
        """Return every batch of which tasks may wait."""
        return [*self.on_time.batches(), *self.spread.batches(), *self.wall.batches()]

    def cut(self, step_count: int) -> Iterator[tuple[int, list[Record]]]:
        """Empty a halted queue of all but its batches, which must have been revoked; nothing may be added meanwhile.

        Args:
            step_count: tasks looked at, at most, from one result to the next.

        Yields:
            How many tasks without a record have gone, and records, for the caller to cancel.
        """
        for ready in (self.on_time.ready, self.spread.ready, *(old for _, old in self._rekeying)):
            waiting = ready.drain()
            while entries := list(islice(waiting, step_count)):
                yield 0, [item for source, item in entries if source is None]
        for holder in (self.on_time, self.spread, self.wall):
            for bucket in holder.buckets():
                bucket.frozen = True  # compacting it would move what the next step looks for
                for start in range(0, len(bucket.calls), step_count):
                    count, records = bucket.cut(start, start + step_count)
                    if bucket.opened and isinstance(holder, Calendar):
                        holder.opened_count -= count
                    yield count, records
                bucket.discard()
        self.on_time.clear()
        self.spread.clear()
        self.wall.clear()

    # Going on.

    def enter(self, now: float, wall: float) -> None:
        """Begin the intervals that have begun by ``now``; due when ``now`` has reached :attr:`end`.

        Args:
            now: loop time.
            wall: epoch seconds by the wall clock, which may have stepped.
        """
        number = self.ticks.number_at(now)
        late_count = 0 if self._dense else self.spread.opened_count
        self.end = self.ticks.start_of(number + 1)
        self.on_time.open_until(number, self.end)
        self.spread.open_until(number, self.end)
        if now >= self.interval_end:
            self._begin_interval(now, late_count)
            if self.wall.is_pending:
                self._read_wall(now, wall)
        self._later_count = self._later_on_time_count = 0
        if self.last_tick > number:
            self._later_count = self.spread.waiting_until(self.last_tick) - self.spread.opened_count
            self._later_on_time_count = self.on_time.waiting_until(self.last_tick) - self.on_time.opened_count

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
        while self.chores and steps > 0:
            steps -= 1
            try:
                next(self.chores[0])
            except StopIteration:
                self.chores.popleft()
        self._dense = not self.is_unlimited and self.spread.opened_count + self._later_count > 0 and self._is_dense(now)
        self._permit_count = 0
        if self.costs is not None:
            self._next_permit_at = -math.inf  # what has come may need less than what was first
        return steps > 0 and not self.chores and not self._rekeying

    def take_lone(self, now: float) -> tuple[Any, Any] | None:
        """Take what starts now, if nothing else is due or ready, and there is nothing else to do: nearly always, where little is.

        It comes to the same as :meth:`pull` and :meth:`choose`, for a fraction of what these cost.

        Returns:
            (source, position) or (None, record) of a task of :attr:`on_time`; None if more than that is to be looked at.
        """
        if self._is_single or self._rekeying or self.chores or self.order is not default_order:
            return None
        if self.spread.opened_count or self.spread.groups or self.is_halted or self._is_interim:
            return None
        if self._opening_at <= now and self._note_opening() <= now:
            return None
        if not self.is_unlimited:
            self._permit_count = 0
            if now < self._next_permit_at or not self._count_permits(now):
                return None
        self._pulled_at = now
        return self.on_time.take_lone(self.timeline.seen_until(now))

    def choose(self, now: float) -> Calendar | None:
        """Return the calendar whose first ready task starts now; None if none does.

        It looks at the permits as well, and takes none: :meth:`spend` does.
        """
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
        if self.costs is not None:
            return self._choose_metered(first, second, now)
        if first is not None:
            is_spread = second is not None and not self.is_unlimited and second < first
            return self.spread if is_spread else self.on_time
        return self.spread if self._dense or self._is_spread_instant() else None

    def _choose_metered(self, first: Any, second: Any, now: float) -> Calendar | None:
        """Choose where starts may cost more than a permit: what is first waits for what it needs, and all others for it."""
        if first is not None:
            calendar = self.spread if second is not None and second < first else self.on_time
        elif self._dense or self._is_spread_instant():
            calendar = self.spread
        else:
            return None
        source, item = calendar.ready.peek()
        needs = item.needs if source is None else source.needs
        if needs is not None:
            assert self.costs is not None
            now_ns = self.timeline.to_ns(now)
            if not self.costs.admits(needs, now_ns):
                when_ns = self.costs.when(needs, now_ns)
                self._permit_count = 0
                self._next_permit_at = math.inf if when_ns is None else self.timeline.to_loop(when_ns)
                if when_ns is None and self.costs.is_beyond(needs):
                    self.beyond = calendar
                return None
        return calendar

    def burst_count(self, calendar: Calendar) -> int:
        """Return how many tasks of the run that was chosen from ``calendar`` start now, one after the other.

        Args:
            calendar: what :meth:`choose` has just returned.
        """
        if self._is_single or self.on_start is not None:
            return 1
        count = UNLIMITED
        if not self.is_unlimited:
            other = self.spread if calendar is self.on_time else self.on_time
            count = self._permit_count if other.ready.head() is None else 1
        if calendar is self.spread and self.pacing is Pacing.SPREAD and not self._dense:
            count = min(count, self.plan.count_until(self._pulled_at, left=calendar.opened_count + self._later_count))
        return count

    def last_share(self) -> Any:
        """Return what :meth:`settle_share` asks for of the task that has started last; None if the order is not fair."""
        return None if self._fair_clock is None else self._fair_clock.last

    def settle_share(self, share: Any, change: int) -> None:
        """Charge the key of a task for so many permits more than were reserved, or fewer."""
        if self._fair_clock is not None and share is not None and change:
            self._fair_clock.settle(share, change)

    @property
    def usable_until(self) -> float:
        """Loop time until which the permits that :meth:`choose` has seen stay usable."""
        return math.inf if self.is_unlimited else self._usable_until

    def spend(self, calendar: Calendar, due: float, now: float, count: int = 1) -> None:
        """Take the permits of starts from ``calendar``; the tasks are counted as started already."""
        if self.on_start is not None:
            self.on_start(now - due)
        if self._fair_clock is not None:
            calendar.ready.served()
        if self._permit_count:
            self._permit_count -= count
            self.grid.take(count)
            if not self._permit_count:
                self._next_permit_at = self.timeline.to_loop(self.grid.next_number_time())
        if calendar is self.spread and count:
            self.plan.started(
                due=-math.inf if self.early else due,
                now=now,
                left=calendar.opened_count + self._later_count,
                count=count,
            )

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
        if not may_start or self.grid.rate.is_zero:
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

    def sweep_number(self, now: float) -> int | None:
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
        self.grid.set_rate(rate, self.timeline.to_ns(now))
        self.is_unlimited = self.grid.is_unlimited
        self.note_permits()

    def set_permits(self, permits: Permits) -> None:
        """Let something else admit starts."""
        self.grid = permits
        self.is_unlimited = permits.is_unlimited
        if self.costs is not None:
            self.costs = permits  # type: ignore[assignment]  # it is a combination once there are costs
        self._note_single()
        self.note_permits()

    def set_costs(self, permits: CombinedPermits) -> None:
        """Let something else admit starts, and ask it what each may cost."""
        self.costs = permits
        self.set_permits(permits)

    def set_gate(self, gate: KeyGate | None) -> None:
        """Put limits of keys in force, or none."""
        self.gate = gate
        self.set_order(self.order)

    def set_order(self, order: Order | Fair) -> None:
        """Start by another order from now on; what is ready is re-keyed once, in slices.

        The queues of the default order must be filled in due order. What another order has mixed up goes through a heap
        once more, until nothing is ready.
        """
        calendars = (self.on_time, self.spread)
        is_mixed = bool(self._rekeying) or any(
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
        self._note_single()
        for index, calendar in enumerate(calendars):
            old = calendar.ready
            old.release()
            self._rekeying.append((calendar, old))
            calendar.ready = self._make_ready(calendar, index, is_sorted=order is default_order and not is_mixed)
            calendar.take_count_max = RUN_COUNT if isinstance(calendar.ready, ReadyQueues) else _REKEY_COUNT
            old.succeed(calendar.ready)
        self.rekey(_REKEY_COUNT)

    def _note_single(self) -> None:
        """Tell whether each start is a decision of its own, because another may change what comes next, or what it costs."""
        is_grid = not isinstance(self.grid, CombinedPermits)
        self._is_bursty = self.grid.is_bursty
        self._is_by_wall_clock = self.grid.is_by_wall_clock
        self._is_single = not is_grid or self._fair_clock is not None or self.gate is not None

    def _make_ready(self, calendar: Calendar, index: int, *, is_sorted: bool) -> Ready:
        """Make an empty ready queue of the order in force; ``is_sorted`` if it will be filled in due order."""
        if self._fair_clock is not None:
            return ReadyFair(calendar, self._fair_clock, index)
        order: Any = self.order

        arrivals = count(1)

        def make() -> Ready:
            if is_sorted:
                return ReadyQueues(calendar)
            return ReadyHeap(
                calendar, order, to_epoch=self.timeline.to_epoch, report=self._report_order_error, arrivals=arrivals
            )

        return make() if self.gate is None else ReadyKeyed(self.gate, make)

    def rekey(self, count: int = _REKEY_COUNT) -> None:
        """Move some tasks from the old order to the one in force."""
        while self._rekeying and count > 0:
            calendar, old = self._rekeying[0]
            while count > 0 and old.head() is not None:
                count -= 1
                rank = old.head_rank()
                run = old.pop()
                if run.source is None:
                    calendar.ready.push_record(run.take())
                else:
                    calendar.ready.push_position(run.source, run.take(), rank)
            if count > 0 and self._rekeying and self._rekeying[0][1] is old:  # an order may have gone on by itself
                del self._rekeying[0]

    # Looking.

    def is_spread(self, record: Record) -> bool:
        """Whether a record that is due waits for a planned instant."""
        return record._place.calendar is self.spread and not self._dense

    def ready_tasks(self) -> list[tuple[Any, Hashable, Mapping[str, int] | None, Any]]:
        """Return the tasks that are ready as (rank, key, needs, record or position); smaller ranks start first."""
        return [
            (rank, item._key, item.needs, item) if source is None else (rank, source.key, source.needs, item)
            for calendar in (self.on_time, self.spread)
            for rank, source, item in calendar.ready.keyed()
        ]

    def live_count(self) -> int:
        """Count the tasks that wait."""
        return self.on_time.live_count() + self.spread.live_count() + self.wall.live_count()

    def ready_count(self) -> int:
        """Count the tasks whose interval has begun and that have not started."""
        return self.on_time.opened_count + self.spread.opened_count

    def demand_until(self, when: float) -> int:
        """Estimate how many tasks want to have started by a loop time, if there were permits for all."""
        is_spread = self.pacing is Pacing.SPREAD
        count = self.on_time.count_until(when, is_spread=False)
        if not is_spread or self._dense or when >= self.interval_end:
            return count + self.spread.count_until(when, is_spread=is_spread)
        left = self.spread.opened_count + self._later_count
        planned = self.plan.count_until(when, left=left) if left and when >= self.plan.next_at else 0
        return count + min(planned, self.spread.count_until(when, is_spread=False))

    def note_permits(self) -> None:
        """Count the permits anew: some were granted."""
        self._permit_count = 0
        self._next_permit_at = -math.inf

    def last_start(self) -> float:
        """Return a loop time by whose interval the last task on the timeline is due; minus infinity if none waits."""
        return max(self.on_time.last_start(), self.spread.last_start())

    def walk(self) -> Iterator[tuple[Any, Any]]:
        """Walk every task that waits, by looking at each: (source, position) or (None, record)."""
        yield from self.on_time.walk()
        yield from self.spread.walk()
        yield from self.wall.walk()
        for _, old in self._rekeying:
            yield from (entry for entry in old.walk() if entry[0] is None)

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

    def _calendar_for(self, record: Record, *, joined: bool) -> Calendar:
        """Return the calendar that a record belongs to, and note its deadline."""
        options = record._options
        is_on_time = joined or self.pacing is Pacing.ON_TIME or (options is not None and options.on_time)
        if self.drops is not None:
            self.drops.add(record)
        if options is not None and options.deadline is not None:
            self.expiry.add(record)
            number = self.timeline.number_at(record._due)
            is_on_time = is_on_time or options.deadline < self.timeline.start_of(number + 1)
        return self.on_time if is_on_time else self.spread

    def _read_wall(self, now: float, wall: float) -> None:
        """Take up what is due in this interval by the wall clock; what the clock has stepped over is due now."""

        def record_due(record: Record) -> None:
            record._due = now + max(0.0, record._due - wall)
            options = record._options
            if options is not None and options.expires is not None:
                options.deadline = record._due + options.expires
            self._calendar_for(record, joined=False).add_record(record)

        def batch_due(source: BatchSource, wall_due: float) -> None:
            source.first = now + max(0.0, wall_due - wall)
            self.add_batch(source, joined=False)

        self.wall.read(wall + (self.interval_end - now), record_due, batch_due)

    def _count_permits(self, now: float) -> int:
        """Count the permits that may be taken now; if there is none, note when the next comes up."""
        now_ns = self.timeline.to_ns(now)
        self._permit_count = self.grid.usable(now_ns)
        if self._permit_count:
            self._usable_until = now + (self.grid.usable_until_ns - now_ns) / NS
        else:
            permit_ns = self.grid.next_fresh_time(now_ns)
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
        return waiting > self.grid.count_until(now_ns, self.timeline.to_ns(self.interval_end))

    def _is_spread_instant(self) -> bool:
        return self._pulled_at >= self.plan.next_at or self.pacing is Pacing.ON_TIME

    def _next_instant(self, now: float) -> float:
        """Return the loop time of the next start instant, as far as it is known now."""
        ready = self.on_time.ready
        on_time_ready = bool(ready.active) and ready.head() is not None
        ready = self.spread.ready
        spread_ready = bool(ready.active) and ready.head() is not None
        if self.is_unlimited and not self.spread.opened_count:
            return now if on_time_ready else self.on_time.next_due()
        instant = min(self.on_time.next_due(), self.interval_end if spread_ready else math.inf)
        planned = now if self.pacing is Pacing.ON_TIME else self.plan.next_at
        spread_due = now if spread_ready else self.spread.next_due()
        if self.early and not spread_ready and spread_due < math.inf:
            spread_due = self.interval_end
        if self.is_unlimited:
            permit = now
        elif on_time_ready or spread_ready:
            permit = now if self._permit_count else self._next_permit_at
            if permit <= now:
                permit_ns = self.grid.next_time(self.timeline.to_ns(now))
                permit = math.inf if permit_ns is None else self.timeline.to_loop(permit_ns)
                if self._is_by_wall_clock:
                    permit = min(permit, self.interval_end)
        else:
            permit = now
        if on_time_ready or (spread_ready and self._dense and not self.is_unlimited):
            return min(instant, permit)
        return min(instant, max(planned, spread_due, permit))
