"""What one executor starts next, and when: the heart of the kernel.

It takes inputs (tasks, cancellations, permits, the time) and answers one question, :meth:`PlainQueue.poll`: what starts now,
or at what time to ask again. It never reads a clock, never calls a task and never waits; ``_runtime`` does all of that, and
the simulator drives the same object.

An answer has three parts. Due tasks become ready: they get their places in the order of importance. A start instant is
looked for, and with it a task. If there is none, the time of the next one is computed. Most tasks start alone, some time
after the previous one: they need not become ready, and :meth:`PlainQueue._take_lone` takes them from their bucket.

A *start instant* is a permit when a task of ``on_time`` is due, when the interval holds more tasks than permits, or when one
that it took over from an earlier interval would expire in it; otherwise it is a planned instant (``pacing.py``). At a permit
the most important task of both calendars starts, at a planned instant the task of ``spread`` that is due first. At an
unlimited rate there is always a permit: each calendar then follows its own instants.

Rarely used features (keys with limits, costs, a custom order) take part only while :attr:`PlainQueue.is_special`:
``_core/queue/queue.py`` implements them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.admission import UNLIMITED, Admission
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.intervals import Intervals
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.sizes import FEW_COUNT, PHASE_SECONDS_MAX, PULL_STEPS, ROUND_UP
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.stretch import Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._kernel.calendar import Calendar
    from ratelimited_executor._kernel.chores import Chores
    from ratelimited_executor._kernel.contracts import Deadlines, Permits, Ready, WallTasks
    from ratelimited_executor._kernel.records import Record
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["PlainQueue"]


class PlainQueue(Intervals):
    """The waiting tasks of one executor.

    Args:
        timeline: the manager's timeline; pacing works on its intervals.
        now: loop time.
        permits: the permits that admit starts.
        slack: seconds for which a planned instant stays usable.
        pacing: how the tasks of an interval are paced.
        early: True if a task may start anywhere in the interval of its due time.
        bucket_ns_max: the maximum width of a bucket.
        chores: receives deferrable work.
        expiry: the index of tasks with deadlines.
        wall: the tasks due by the wall clock.
        phase: how much later the plan of an interval begins than the interval, as a part of the gap between two permits,
            0 <= phase < 1.

    Attributes:
        is_changed: True if due tasks are to be made ready by the next :meth:`poll`: at a wake-up, and after a change.
        wake_at: loop time at which to ask again, after an answer of None.
        is_special: True if more than due times, priorities and permits decides what starts.
        is_halted: True if no more tasks become ready, because all that wait are about to be cancelled.
        is_unlimited: True if there is always a permit.
        counts_effects: True if :meth:`take_effect` or :meth:`defer` must be called for each start.
        tells_order: True if the order must be told of each start.
        is_by_importance: True if planned instants go by importance as well.
        gate: the limits of keys; None if there are none.
        on_start: called just before a start, with its due time and the loop time; None without listeners.
        untold_count: how many starts pass before the next call of ``on_start``, so that they may form a stretch.
        on_gone: called for each task removed without a start: (source, position) or (None, record), and its end state.
        rekeying: ready queues in an old order, being emptied into those of the order in force.
        passing: tasks to be spread that may expire in the running interval.
    """

    admission: Admission
    passing: list[Record | BatchSource]
    rekeying: list[tuple[Calendar, Ready]]
    stretch: Stretch

    def __init__(
        self,
        timeline: Timeline,
        *,
        now: float,
        permits: Permits,
        slack: float,
        pacing: Pacing,
        early: bool,
        bucket_ns_max: int,
        chores: Chores,
        expiry: Deadlines,
        wall: WallTasks,
        phase: float = 0.0,
    ) -> None:
        super().__init__(
            timeline,
            now,
            slack=slack,
            pacing=pacing,
            early=early,
            bucket_ns_max=bucket_ns_max,
            chores=chores,
            expiry=expiry,
            wall=wall,
        )
        self.admission = Admission(permits, timeline)
        self._phase = phase
        self.stretch = Stretch(self)
        self.on_start: Callable[[float, float], None] | None = None
        self.untold_count = 0
        self.on_gone: Callable[[Any, Any, TaskState], None] = _nothing
        self.rekeying = []
        self.passing = []
        self.is_changed = True
        self.wake_at = math.inf
        self.is_special = False
        self.is_halted = False
        self.counts_effects = False
        self.tells_order = False
        self.is_by_importance = False
        self.gate: Any = None
        self._is_single = False  # True if each start is a decision of its own
        self._is_bursty = False  # True if many permits may come up at once
        self._is_all_ready = True  # False if more due tasks are to be made ready
        self._is_sorting = False  # True while nothing starts, because not all due tasks are ready
        self._is_crowded = False  # True if concurrency is limited
        self._may_be_lone = False  # True if, while is_special, a due task may start before others are put in order
        self._is_planned = False  # True if _choose() found the task that is due first
        # Loop time up to which planned instants count: a later one waits until due tasks are made ready again.
        self._pulled_at = now
        PlainQueue.set_permits(self, permits)
        Intervals.begin_interval(self, now, late_count=0)

    def cancel(self, record: Record) -> bool:
        """Remove a waiting record from wherever it waits; return True if that may allow another start."""
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
        return self._note_left(options.line or options.key, is_costly=options.charge is not None)

    def revoke(self, source: BatchSource) -> tuple[int, bool]:
        """Cancel the waiting tasks of a batch; return their number, and True if that may allow another start."""
        calendar = source.calendar
        if calendar is None:
            return 0, False
        if calendar is not self.wall:
            self._note_later(calendar, -self._later_count_of(source))
        count: int = calendar.revoke(source)
        return count, self._note_left(source.key, is_costly=source.needs is not None)

    # The question.

    @two_bodies
    def poll(self, now: float, limit: int) -> tuple[Any, Any] | Stretch | None:
        """Take what starts at loop time ``now``; None if nothing does, and :attr:`wake_at` then says when to ask again.

        What is taken no longer waits, and its permits are spent. A task that has expired, or costs more than is ever
        admitted, goes to :attr:`on_gone` instead. ``wake_at`` is infinity if only an input can change anything, and minus
        infinity if only a part of the work is done: then ask again at once, or in another turn of the loop.

        Args:
            now: loop time, not before that of an earlier question, and before :attr:`end`.
            limit: the maximum number of tasks to take; 0 if all places of a concurrency limit are taken.

        Returns:
            (source, position) or (None, record) of one task; or a stretch of several, to be started one after the other.
        """
        is_changed, self.is_changed = self.is_changed, False
        if is_changed and limit and (lone := self._take_lone(now)) is not None:
            self._is_all_ready, self._is_sorting = True, False
            return lone
        decide = self._decide_special if self.is_special else self._decide
        return decide(now, limit, is_changed=is_changed)

    def _decide(self, now: float, limit: int, *, is_changed: bool) -> tuple[Any, Any] | Stretch | None:
        """Answer :meth:`poll` where no task is a lone one."""
        if is_changed:
            self._is_all_ready = self._pull(now)
            self.expire(now)
        taken = self._take(now, limit) if limit else None
        if taken is None:
            self.is_changed = not self._is_all_ready
            self.wake_at = self._next_wake(now, may_start=limit > 0) if self._is_all_ready else -math.inf
        return taken

    # Advancing.

    def _pull(self, now: float) -> bool:
        """Make the due tasks ready, in a bounded step of work; False if there is more to do."""
        if self.is_halted:
            return True
        self._pulled_at = now
        if self.is_special:
            self._prepare_special(now)
        begin = self._next_begin()
        steps = PULL_STEPS
        if self.chores and self.wall.is_reading:  # tasks being handed over may be due before all others
            steps = max(1.0, self._do_chores(steps))  # other due tasks get their step all the same
        if self.on_time.groups:
            steps = self.on_time.pull(self.timeline.seen_until(now), steps)
        if self.spread.groups:
            steps = self.spread.pull(self.interval_end if self.early else now - self.phase_seconds, steps)
        # The permits of a window or a bucket do not lapse: they can wait until all due tasks are in order.
        self._is_sorting = self._is_bursty and (steps <= 0 or bool(self.rekeying))
        if self._opening_at <= now:
            for calendar in (self.on_time, self.spread):
                if calendar.opening_time() <= now:
                    calendar.prepare_ahead()
        if self.chores:
            steps = self._do_chores(steps)
        is_paced = not self.is_unlimited and self.spread.opened_count + self.later_count > 0
        self.is_dense = is_paced and (self._is_dense(now) or (bool(self.passing) and self._is_passing()))
        if self.is_dense and begin <= now:
            self.permits.begin_at(self.timeline.to_ns(begin))
        self.admission.count = 0
        return steps > 0 and not self.chores and not self.rekeying

    def _do_chores(self, steps: float) -> float:
        """Do chores, at most a number of steps; return the steps left."""
        while self.chores and steps > 0:
            steps -= 1
            try:
                next(self.chores[0])
            except StopIteration:
                self.chores.popleft()
        return steps

    def expire(self, now: float) -> None:
        """Remove tasks that passed their deadline while nothing could start, a bounded number per call."""

    # Taking. Every task that starts passes here, and is counted, paid for and forgotten.

    def _take(self, now: float, limit: int) -> tuple[Any, Any] | Stretch | None:
        """Take the next of the ready tasks, or a stretch of them, if one starts now."""
        while True:
            calendar = self._choose_special(now) if self.is_special else self._choose(now)
            if calendar is None:
                return None
            ready: Any = calendar.ready
            run = ready.pop_earliest() if self._is_planned else ready.pop()
            source = run.source
            count = 1 if limit == 1 or self._is_single else self._stretch_count(calendar)
            if self.on_start is not None:
                count = min(count, self.untold_count)
            if count > 1 and (source is None or (source.is_plain and not source.is_watched)):
                is_paid = not self.is_unlimited or calendar is not self.on_time
                return self.stretch.begin(calendar, run, min(count, limit), is_paid=is_paid)
            item = run.take()
            if self._admit(calendar, source, item, now):
                return source, item

    def take_next(self, now: float, record: Record) -> bool:
        """Take a record that has just become ready, if it is the next task to start; otherwise it continues to wait."""
        calendar = self._choose_special(now) if self.is_special else self._choose(now)
        if calendar is not self.on_time or calendar.ready.peek()[1] is not record:
            return False
        calendar.ready.pop().take()
        return self.admit_record(calendar, record, now, is_paid=True)

    def _take_lone(self, now: float) -> tuple[Any, Any] | None:
        """Take the next task to start, if it is a lone one and quickly found: the fast path of nearly every start.

        The result is that of :meth:`_pull` and :meth:`_take`, at a fraction of their cost.

        Returns:
            (source, position) or (None, record); None if the slow path must be taken, which may start nothing.
        """
        if self.is_special:
            return self._take_lone_of_key(now) if self._may_be_lone else None
        if not self._may_take_lone(now):
            return None
        on_time = self.on_time
        if self.spread.opened_count or on_time.ready.active:
            return self._take_one(now)
        if not self.is_unlimited and not self.admission.look(now):
            return None
        self._pulled_at = now
        taken = on_time.take_lone(self.timeline.seen_until(now))
        return taken if taken is None or self._admit(on_time, *taken, now) else None

    def _may_take_lone(self, now: float) -> bool:
        """True if nothing but a start is to be done now, and a permit may be there."""
        if self.chores or self.is_halted or (self.expiry.is_used and self._is_sweep_due(now)):
            return False
        if self._opening_at <= now and self._note_opening() <= now:
            return False
        if self.is_unlimited:
            return True
        self.admission.count = 0
        return now >= self.admission.next_at

    def _take_one(self, now: float) -> tuple[Any, Any] | None:
        """Take the next task to start, where a task is ready or waits to be spread."""
        on_time, spread = self.on_time, self.spread
        is_spread = spread.opened_count > 0
        count = UNLIMITED if self.is_unlimited else self.admission.look(now)
        # Nothing is being handed over by the wall clock: there are no chores.
        if not count or (is_spread and (self.early or self.passing)):
            return None
        self._pulled_at = now
        if is_spread:
            self.is_dense = not self.is_unlimited and self._is_dense(now)
        may_begin = is_spread and self.is_dense and not on_time.ready.active and not spread.ready.active
        if may_begin or (on_time.groups and not _bring_up(on_time, self.timeline.seen_until(now))):
            return None
        first = on_time.ready.head() if on_time.ready.active else None
        second = None
        if is_spread:
            if first is None and not self.is_dense and self.pacing is Pacing.SPREAD:
                return self._take_planned(now)
            if spread.groups and not _bring_up(spread, now - self.phase_seconds):
                return None
            second = spread.ready.head() if spread.ready.active else None
        if first is None is second or (count > 1 and self.ready_count() > 1):
            return None
        self._is_planned = False
        calendar = on_time if second is None or (first is not None and not second < first) else spread
        run = calendar.ready.pop()
        source, item = run.source, run.take()
        return (source, item) if self._admit(calendar, source, item, now) else None

    def _is_sweep_due(self, now: float) -> bool:
        """True if deadlines have passed, so that expired tasks must be removed first."""
        sweep = self.expiry.next_sweep()
        return sweep is not None and sweep <= self.timeline.number_at(now)

    def _take_planned(self, now: float) -> tuple[Any, Any] | None:
        """Take the first task to be spread, if its planned instant, and no other, has come."""
        spread = self.spread
        ready: Any = spread.ready
        if not self.plan.is_one(now, left=spread.opened_count + self.later_count):
            return None
        due = ready.earliest() if ready.active else None
        if due is not None and spread.groups and spread.next_due() < due:
            return None
        if due is None:  # only due times count here: no task had to become ready
            taken = spread.take_first(now - self.phase_seconds)
            if taken is None:
                return None
            source, item = taken
        else:
            run = ready.pop_earliest()
            source, item = run.source, run.take()
        return (source, item) if self._admit(spread, source, item, now) else None

    def _choose(self, now: float) -> Calendar | None:
        """Return the calendar whose first ready task starts now; None if none does. Reads the permits without using any."""
        admission = self.admission
        if self._is_sorting or (not admission.count and now < admission.next_at):
            return None
        ready, spread_ready = self.on_time.ready, self.spread.ready
        first = ready.head() if ready.active else None
        second = spread_ready.head() if spread_ready.active else None
        return self._choose_of(first, second, now)

    def _choose_of(self, first: Any, second: Any, now: float) -> Calendar | None:
        """Choose by the importance of the first task of each calendar, as its ``head()`` returns it, or None."""
        if first is None is second or not (self.is_unlimited or self.admission.find(now, self.interval_end)):
            return None
        self._is_planned = False
        if first is not None:
            is_spread = second is not None and not self.is_unlimited and second < first
            return self.spread if is_spread else self.on_time
        if self.is_dense or self.pacing is Pacing.ON_TIME:
            return self.spread
        if self._pulled_at >= self.plan.next_at and not self.wall.is_reading:
            spread_ready: Any = self.spread.ready
            self._is_planned = not self.is_by_importance and spread_ready.earliest() is not None
            return self.spread
        return None

    def _stretch_count(self, calendar: Calendar) -> int:
        """Return how many tasks of the run that was chosen from ``calendar`` may start in succession."""
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
            if item._options is not None:
                return self.admit_record(calendar, item, now, is_paid=True)
            calendar.opened_count -= 1
            self.spend(calendar, item._due, now)
            self._tell(item._due, now)
            return True
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
        self._tell(due, now)
        return True

    @two_bodies
    def admit_record(self, calendar: Calendar, record: Record, now: float, *, is_paid: bool) -> bool:
        """Count a record as started, and pay for it (without options, only if ``is_paid``); False if it has expired."""
        calendar.opened_count -= 1
        options = record._options
        if options is None:
            if is_paid:
                self.spend(calendar, record._due, now)
                self._tell(record._due, now)
            return True
        if self.drops is not None:
            self.drops.discard(record)
        if options.deadline is not None:
            self.expiry.discard(record)
            if now > options.deadline:
                self.on_gone(None, record, TaskState.EXPIRED)
                return False
        self.spend(calendar, record._due, now)
        if options.charge is not None or options.key is not None or options.line is not None:
            self._charge_record(record, now)
        self._tell(record._due, now)
        return True

    def spend(self, calendar: Calendar, due: float, now: float, count: int = 1) -> None:
        """Use the permits of starts from ``calendar``, already counted as started. For :meth:`poll` and its stretch."""
        if self.tells_order:
            calendar.ready.served()  # type: ignore[attr-defined]  # of an order that shares
        if self.admission.count:
            self.admission.take(count, now)
        if calendar is self.spread and count:
            self.plan.started(
                due=-math.inf if self.early else due + self.phase_seconds,
                now=now,
                left=calendar.opened_count + self.later_count,
                count=count,
            )

    def _tell(self, due: float, now: float) -> None:
        """Notify a listener of a start, once it is paid for: a listener may ask questions and change settings."""
        if self.on_start is not None:
            self.untold_count -= 1
            if self.untold_count < 0:
                self.untold_count = 0
                self.on_start(due, now)

    def _leave_batch(self, calendar: Calendar, source: BatchSource, position: int) -> None:
        """Record that a task of a batch leaves without a start."""
        source.start(position)
        calendar.opened_count -= 1
        if not source.live:
            calendar.finish(source)

    def note_untold(self, count: int) -> None:
        """Record starts of a stretch, which no listener is notified of."""
        self.untold_count = max(0, self.untold_count - count)

    @two_bodies
    def take_effect(self, now: float) -> None:
        """Record that the last start has taken effect by ``now``, unless it was deferred; if effects count."""
        if (effects := self.admission.effects) is not None and effects.open_receipt is not None:
            effects.take_effect(self.timeline.to_ns(now))
        if self.gate is not None:
            self.gate.take_effect(self.timeline.to_ns(now))

    def defer(self, effects: list[Any]) -> None:
        """Defer the effect of the last start until its ``effects`` begin."""
        if self.admission.effects is not None:
            self.admission.effects.defer(effects)
        if self.gate is not None:
            self.gate.defer(effects)

    # When to ask again.

    @two_bodies
    def _next_wake(self, now: float, *, may_start: bool) -> float:
        """Return the loop time at which to ask again; infinity if only an input can change anything.

        Args:
            now: loop time.
            may_start: False if all places of a concurrency limit are taken, so that only time limits matter.
        """
        may_start = may_start and not self.admission.is_paused
        wake = self._next_instant(now) if may_start else math.inf
        on_time, spread, is_used = self.on_time, self.spread, self.expiry.is_used
        is_large = (on_time.numbers and on_time.is_large_ahead) or (spread.numbers and spread.is_large_ahead)
        if wake < self.end and not is_used and not is_large:
            self._opening_at = self.end  # or later: it is computed then; so do tasks due by the wall clock
        else:
            wake = min(wake, self._note_opening()) if may_start else math.inf
            sweep = self.expiry.next_sweep() if is_used else None
            if sweep is not None:
                wake = min(wake, self.timeline.start_of(sweep))
            if self.wall.is_pending:
                wake = min(wake, self.interval_end)
        return wake if self.gate is None else self._next_wake_of_keys(now, wake, may_start=may_start)

    def _next_instant(self, now: float) -> float:
        """Return the loop time of the next start instant, as far as it is known now."""
        ready, spread_ready = self.on_time.ready, self.spread.ready
        if self.gate is not None and (ready.active or spread_ready.active):
            return self._next_instant_of_keys(now)
        return self._next_instant_of(
            on_time_ready=bool(ready.active) and ready.head() is not None,
            spread_ready=bool(spread_ready.active) and spread_ready.head() is not None,
            now=now,
        )

    def _next_instant_of(self, *, on_time_ready: bool, spread_ready: bool, now: float) -> float:
        """Return the next start instant, by whether a task of each calendar may start."""
        on_time, spread = self.on_time, self.spread
        if not spread.opened_count:
            return self._next_on_time(now, is_ready=on_time_ready)
        instant = on_time.next_due() if on_time.groups else math.inf
        if spread_ready and instant > self.interval_end:
            instant = self.interval_end
        planned = now if self.is_dense or self.pacing is Pacing.ON_TIME else self.plan.next_at
        spread_due = now if spread_ready else self._next_spread_due()
        if self.early and not spread_ready and spread_due < math.inf:
            spread_due = self.interval_end
        is_limited = not self.is_unlimited
        permit = (
            self.admission.next_time(now, self.interval_end) if is_limited and (on_time_ready or spread_ready) else now
        )
        if on_time_ready or (spread_ready and self.is_dense and is_limited):
            return min(instant, permit)
        return min(instant, max(planned, spread_due, permit))

    def _next_on_time(self, now: float, *, is_ready: bool) -> float:
        """Return the next start instant if no task waits to be spread, by whether a task is ready and may start."""
        admission, on_time = self.admission, self.on_time
        if is_ready and self.is_unlimited:
            return now
        permit = admission.next_time(now, self.interval_end) if is_ready else math.inf
        # A few tasks can become ready when there is a permit for them; many are put in order before.
        is_few = not self.is_special and on_time.opened_count <= FEW_COUNT
        if is_ready and is_few:
            return permit
        due = on_time.next_due() if on_time.groups else math.inf
        if is_few and due < admission.next_at and not admission.count:
            return admission.next_at
        return min(due, permit)

    def _next_begin(self) -> float:
        """Return when a backlog may begin: the next due time while no task is ready; infinity if one is, or none are spread."""
        if self.is_unlimited or not self.spread.groups or self.on_time.ready.active or self.spread.ready.active:
            return math.inf
        return min(self._next_spread_due(), self.on_time.next_due())

    def _next_spread_due(self) -> float:
        """Return when the next task to be spread is read as due; never a moment before :meth:`_pull` finds it."""
        due = self.spread.next_due()
        return (due + self.phase_seconds) * ROUND_UP if self.phase_seconds else due

    def _is_dense(self, now: float) -> bool:
        """True if more tasks wait for this interval than it has permits."""
        waiting = self.on_time.opened_count + self.spread.opened_count + self.later_count + self._later_on_time_count
        if waiting <= 1:
            return False
        is_enough = self.admission.is_enough(waiting, now, self.interval_end)
        if is_enough is not None:
            return not is_enough
        now_ns = self.timeline.to_ns(now)
        return waiting > self.permits.count_until(now_ns, self.timeline.to_ns(self.interval_end))

    # Settings.

    def set_permits(self, permits: Permits) -> None:
        """Replace the permits that admit starts, or their rate."""
        self.admission.put(permits)
        self._is_bursty = permits.is_bursty
        self._note_phase()
        self.counts_effects = self.admission.effects is not None
        self._note_unlimited()

    def set_crowded(self, *, is_crowded: bool) -> None:
        """Record whether concurrency is limited, so that more tasks may be due than may run."""
        self._is_crowded = is_crowded
        self._note_unlimited()

    def _note_unlimited(self) -> None:
        """Record whether all due tasks may start: a task scheduled without delay then overtakes none.

        Otherwise calls that each schedule another would keep due tasks waiting forever, unlike on an event loop.
        """
        self.is_unlimited = self.admission.is_unlimited
        is_for_all = self.is_unlimited and not self._is_crowded
        self.on_time.soon_class = TaskClass.OTHER if is_for_all else TaskClass.IMMEDIATE

    def set_pacing(self, pacing: Pacing) -> None:
        """Replace the pacing."""
        self.pacing = pacing
        self._note_phase()

    def _note_phase(self) -> None:
        """Record how much later tasks to be spread start: a part of the gap between two permits, if there is one."""
        per_second = self.permits.rate.per_second
        gap = float(1 / per_second) if per_second and self.pacing is Pacing.SPREAD else 0.0
        self.phase_seconds = self._phase * min(gap, self.timeline.interval_seconds, PHASE_SECONDS_MAX)

    @property
    def permits(self) -> Permits:
        """The permits that admit starts."""
        permits: Permits = self.admission.permits
        return permits

    @property
    def cancelled_count(self) -> int:
        """The number of tasks without a record that were cancelled by their handles."""
        return self.on_time.cancelled_count + self.spread.cancelled_count

    # Hooks for rarely used features, which do nothing here.

    def _decide_special(self, now: float, limit: int, *, is_changed: bool) -> tuple[Any, Any] | Stretch | None:
        """Do what :meth:`_decide` does, while :attr:`is_special`."""
        return self._decide(now, limit, is_changed=is_changed)

    def _take_lone_of_key(self, now: float) -> tuple[Any, Any] | None:
        """Do what :meth:`_take_lone` does, where keys have limits."""
        raise NotImplementedError

    def _prepare_special(self, now: float) -> None:
        """Prepare for due tasks to become ready, while :attr:`is_special`."""

    def _choose_special(self, now: float) -> Calendar | None:
        """Choose like :meth:`_choose`, while :attr:`is_special`."""
        return self._choose(now)

    def _next_instant_of_keys(self, now: float) -> float:
        """Return the next start instant among the tasks whose keys may start one."""
        raise NotImplementedError

    def _next_wake_of_keys(self, now: float, wake: float, *, may_start: bool) -> float:
        """Return the loop time at which to ask again, for what else waits because of its key: at most ``wake``."""
        raise NotImplementedError

    def _charge_record(self, record: Record, now: float) -> None:
        """Charge the start of a record for its key or cost, beyond its permit."""

    def _charge(self, key: Hashable, needs: Any, cost: int, now: float) -> Any:
        """Charge the start of a task of a batch likewise."""

    def _note_left(self, key: Hashable, *, is_costly: bool) -> bool:  # noqa: ARG002  # the signature of the hook
        """Examine the tasks that waited for one that has gone without a start; return True if there are any."""
        return False

    def _is_passing(self) -> bool:
        """True if a task of :attr:`passing` waits, and would expire in the running interval."""
        return False


def _bring_up(calendar: Calendar, now: float) -> bool:
    """Make the due tasks of a calendar ready, and drop intervals that have been read; False if there is more to do."""
    return (len(calendar.groups) == 1 and calendar.next_due() > now) or calendar.pull(now, PULL_STEPS) > 0


def _nothing(source: Any, item: Any, state: TaskState) -> None:
    """Do nothing."""
