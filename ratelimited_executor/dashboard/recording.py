"""What the page remembers: a point of each executor every few seconds, whether anybody looks or not.

The points of many executors are not taken in one turn of the event loop, which a thousand of them would hold for some
20 ms, but in small groups spread over the seconds between two points.
"""

from __future__ import annotations

import math
import weakref
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.insight.observing import Listener
from ratelimited_executor._runtime.insight.sampling import SampleSize, sample_executor
from ratelimited_executor._runtime.life.executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor._runtime.limits.policy import Paced
from ratelimited_executor.dashboard.ages import StartMarks
from ratelimited_executor.dashboard.failures import FailureRing, Failures
from ratelimited_executor.dashboard.history import STEP_SECONDS, History, Point
from ratelimited_executor.dashboard.texts import float_of
from ratelimited_executor.exceptions import RateLimitedExecutorError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ratelimited_executor._runtime.insight.insight import Statistics
    from ratelimited_executor._runtime.insight.observing import Observed
    from ratelimited_executor._runtime.limits.slots import Slots
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.handles import TaskHandle

__all__ = ["HistoryRecorder", "RecordedHistory"]

_SAMPLES: Final = SampleSize(per_second=100, total=100)  # of the starts between two points
_GROUP_SIZE: Final = 20  # executors in one turn of the event loop: about half a millisecond


class HistoryRecorder:
    """Records how the executors of a manager stand, from their start until their end, for as long as somebody can look.

    A mounted application is not notified of its end. So the manager and the timer hold the recorder, which holds its reader weakly:
    the first tick after the reader has gone ends the recording, and nothing of it stays behind.

    Args:
        target: a manager, with the executors that it has and those that it makes later; or one executor.
        reader: the reader of the records.

    Attributes:
        failures: the latest failures of all of them.
    """

    def __init__(self, target: RateLimitedExecutor | ExecutorManager, reader: object) -> None:
        self._target = target
        self._manager = target if isinstance(target, ExecutorManager) else target.manager
        self._reader = weakref.ref(reader)
        self.failures = FailureRing()
        self._recorded: dict[str, RecordedHistory] = {}
        self._due: list[RecordedHistory] = []  # those whose next point is to be taken in this round
        self._is_running = False
        if isinstance(target, ExecutorManager):
            for executor in target.executors.values():
                self._add(executor)
            target._on_executor.append(self._add)
        else:
            self._add(target)

    @property
    def recorded(self) -> dict[str, RecordedHistory]:
        """What is recorded of executors that have not closed, by their names."""
        return {name: each for name, each in self._recorded.items() if not each.executor.is_terminated}

    def recorded_of(self, name: str) -> RecordedHistory | None:
        """Return what is recorded of one executor; None if there is none, or it has closed."""
        found = self._recorded.get(name)
        return None if found is None or found.executor.is_terminated else found

    def epoch(self) -> float | None:
        """Return epoch seconds on the timeline of the executors; None if none has started."""
        times = (each.epoch() for each in self._recorded.values())
        return next((time for time in times if time is not None), None)

    @property
    def pools(self) -> list[Slots]:
        """The pools of slots of the manager."""
        return self._manager._pools

    def _add(self, executor: RateLimitedExecutor) -> None:
        """Record an executor; one of the same name has closed by now, and this one goes on in its history."""
        before = self._recorded.get(executor.name)
        self._recorded[executor.name] = RecordedHistory(
            executor,
            History(Point) if before is None else before.history,
            Failures(executor.name, self.failures) if before is None else before.failures,
            self._opened,
        )

    def _opened(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_running:
            self._is_running = True
            loop.call_later(STEP_SECONDS, self._take, loop)

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the next points, and come back for more."""
        if self._reader() is None:
            self._end()
            return
        if not self._due:
            self._recorded = self.recorded
            self._due = list(self._recorded.values())
            if not self._due:  # the next executor that opens begins anew
                self._is_running = False
                return
        turn_count = math.ceil(len(self._recorded) / _GROUP_SIZE)
        loop.call_later(STEP_SECONDS / turn_count, self._take, loop)  # first: what fails below is one point, not all
        for _ in range(min(_GROUP_SIZE, len(self._due))):
            self._due.pop().take()

    def _end(self) -> None:
        """Listen no more."""
        if isinstance(self._target, ExecutorManager):
            self._target._on_executor.remove(self._add)
        for recorded in self._recorded.values():
            recorded.ignore()
        self._recorded.clear()


class RecordedHistory:
    """One executor and its last hour.

    Args:
        executor: the recorded executor.
        history: the history to continue.
        failures: its failures, to continue.
        opened: called with the event loop when the executor starts, or if it has started.

    Attributes:
        executor: as above.
        history: as above.
        listed: the tasks with handles that a page has listed, by the ids that it has given them.
    """

    def __init__(
        self,
        executor: RateLimitedExecutor,
        history: History[Point],
        failures: Failures,
        opened: Callable[[asyncio.AbstractEventLoop], None],
    ) -> None:
        self.executor = executor
        self.history = history
        self.failures = failures
        self.marks = StartMarks()
        self.listed: WeakValueDictionary[str, TaskHandle[Any]] = WeakValueDictionary()
        self._former_rate: Rate | None = None
        self._opened_loop = opened
        self._observed: Observed | None = None  # once it has started
        self._before: tuple[float, Statistics] | None = None
        self._failed_count = 0  # of its tasks, when they were counted last
        self._samples, ignore = sample_executor(executor, executor._listeners, _SAMPLES)
        self._ignores = [ignore, executor._listen(Listener(opened=self._opened, failed=failures.note))]

    def _opened(self, observed: Observed) -> None:
        self._observed = observed
        self.failures.open(observed.epoch)
        statistics = self.statistics()
        self._failed_count = 0 if statistics is None else statistics.failed  # at another time, if it has started before
        self._mark_starts(observed.now())
        self._opened_loop(observed.loop)

    def ignore(self) -> None:
        """Listen no more."""
        for ignore in self._ignores:
            ignore()

    def statistics(self) -> Statistics | None:
        """Return its counts; None if it has not started."""
        with suppress(RateLimitedExecutorError):
            return self.executor.statistics()
        return None

    @property
    def recent(self) -> Statistics | None:
        """Its counts when the last point was taken, which cost nothing; None if none has been taken."""
        return None if self._before is None else self._before[1]

    def running(self) -> tuple[Accounts, float] | None:
        """Return what knows its running tasks, and the loop time; None if it has not started."""
        parts, observed = self.executor._parts, self._observed
        return None if parts is None or observed is None else (parts.accounts, observed.now())

    def epoch(self) -> float | None:
        """Return epoch seconds on the timeline of the executor; None if it has not started."""
        return None if self._observed is None else self._observed.epoch()

    def _member(self) -> tuple[Any, float] | None:
        """Return the membership in a group that shares a pace alone, and the loop time; None if there is none.

        The settings of other limits cannot be restored from the answers of the group, so they are not paused.
        """
        executor, parts = self.executor, self.executor._parts
        if self._observed is None or parts is None or executor.rate.is_unlimited or len(executor.rates) > 1:
            return None
        member = parts.controls.member
        return None if member is None or not isinstance(executor.policy, Paced) else (member, self._observed.now())

    def group_rate(self) -> Rate | None:
        """Return the pace that is in force in its group, as it was set; None if it has none, or does not know it yet."""
        found = self._member()
        if found is None or found[0].statistics(found[1]).rate is None:
            return None
        others = found[0].rate_of_others()
        rate = self.executor.rate if others is None else Rate(Fraction(f"{float_of(others):.6g}"))
        if not rate.is_zero:
            self._former_rate = rate
        return rate

    @property
    def former_rate(self) -> Rate | None:
        """The last rate above 0 in its group, as far as this process knows, or else its own; None if both are unknown."""
        return self._former_rate or (None if self.executor.rate.is_zero else self.executor.rate)

    def ask_for_group_rate(self) -> None:
        """Learn of a rate that others set, also while nothing is to be started: the next answer of the group has it."""
        found = self._member()
        if found is not None:
            found[0].watch(found[1])

    def take(self) -> None:
        """Take a point."""
        self.group_rate()  # the former one, should the next be 0
        observed, statistics = self._observed, self.statistics()
        if observed is None or statistics is None:
            return
        now = observed.now()
        self._mark_starts(now)
        started, _ = self._samples.take()
        lateness = sorted(sample.lateness for sample in started)
        self.failures.count(observed.epoch(), statistics.failed - self._failed_count)
        self._failed_count = statistics.failed
        before, self._before = self._before, (now, statistics)
        if before is None or now <= before[0]:
            return
        seconds = now - before[0]
        self.history.add(
            Point(
                at=observed.epoch(),
                rate=rate_of(statistics),
                started=(statistics.started - before[1].started) / seconds,
                failed=(statistics.failed - before[1].failed) / seconds,
                waiting=statistics.waiting,
                overdue=statistics.overdue,
                running=statistics.running,
                lateness=lateness[math.ceil(0.99 * len(lateness)) - 1] if lateness else math.nan,
            )
        )

    def _mark_starts(self, now: float) -> None:
        """Note how many coroutines have started by now, for the ages of those that run."""
        parts = self.executor._parts
        assert parts is not None, "it has been observed"
        self.marks.note(now, parts.coroutines.last_number, next(iter(parts.accounts.running), None))


def rate_of(statistics: Statistics) -> float:
    """Return the starts a second that the rate in force allows; 0 while the executor is paused, infinity without a limit."""
    return 0.0 if statistics.is_paused else float_of(statistics.rate)
