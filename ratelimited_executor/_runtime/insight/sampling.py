"""Samples of starts and of their durations, drawn evenly from all, in bounded memory and at almost no cost.

Theory. After a collection, the first starts are all drawn. Whenever there are too many, every second one is discarded,
and from then on half as many are drawn: every 2nd, 4th, 8th ... start of all is kept, evenly. With a limit of 100, some
seven hundred of a million are drawn; the others start as if unobserved. After the next collection, drawing begins at
the rate that would have been enough this time. In a quiet period every start is a sample.

The limit grows with the time since the last collection, so that the cost per second does not depend on its frequency.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ratelimited_executor._runtime.insight.observing import Listener, started_at
from ratelimited_executor._runtime.insight.owners import key_of_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._kernel.states import TaskState
    from ratelimited_executor._runtime.insight.observing import Listeners, Observable, Observed

__all__ = ["SampleSize", "Samples", "TaskSample", "sample_executor"]

_OPEN_COUNT_MAX: Final = 10_000  # sampled tasks that run at once: some 2 MB


class Rest(Protocol):
    """Called to pause and resume notification of task ends."""

    def __call__(self, *, is_resting: bool) -> None:
        """Pause if ``is_resting``, else resume."""
        ...


class SampleSize(NamedTuple):
    """The maximum number of samples of starts, and of ends.

    Attributes:
        per_second: for each second since the last collection, and within the first second.
        total: in all, however long ago that was.
    """

    per_second: int
    total: int


def sample_executor(executor: Observable, listeners: Listeners, size: SampleSize) -> tuple[Samples, Callable[[], None]]:
    """Sample the tasks of an executor from now on; return the samples, and a function that ends it.

    Args:
        executor: the executor of the tasks.
        listeners: its listeners.
        size: the maximum number of samples.

    Raises:
        WrongLoopError: from another thread or event loop than that of an executor which has started.
    """
    samples: Samples = Samples(
        size=size,
        rest=lambda *, is_resting: listeners.rest(samples.listener, is_resting=is_resting),
        restart=listeners.restart_samples,
    )
    ignore = executor._listen(samples.listener)
    listeners.rest(samples.listener, is_resting=True)
    return samples, ignore


class TaskSample:
    """One start, and its end.

    Attributes:
        number: the number of the start since the last collection.
        lateness: seconds between due time and start.
        duration: seconds until the end of the attempt; None while it runs.
        state: the end state of the task; None where it waits for another attempt.
        key: the key of the task; None until its end.
        is_kept: False once it was discarded.
    """

    __slots__ = ("duration", "is_kept", "key", "lateness", "number", "state")

    def __init__(self, number: int, lateness: float) -> None:
        self.number = number
        self.lateness = lateness
        self.duration: float | None = None
        self.state: TaskState | None = None
        self.key: Hashable = None
        self.is_kept = True


class Samples:
    """Samples of the tasks of one executor.

    Args:
        size: the maximum number of samples.
        rest: pauses and resumes notification of ends.
        restart: makes the next start a sample.

    Attributes:
        listener: the listener, to be notified of the tasks.
    """

    __slots__ = (
        "_began", "_ended", "_limit", "_lock", "_now", "_number", "_open", "_open_count", "_rest", "_restart", "_size",
        "_started", "_step", "listener",
    )  # fmt: skip

    _now: Callable[[], float]

    def __init__(self, *, size: SampleSize, rest: Rest, restart: Callable[[], None]) -> None:
        self._size = size
        self._limit = size.per_second  # the current maximum number of samples
        self._rest = rest
        self._restart = restart
        self._lock = RLock()  # also acquired by another thread; and again by this one where a finalizer starts a task
        self._started: list[TaskSample] = []
        self._ended: list[TaskSample] = []
        self._open: dict[float, list[TaskSample]] = {}  # samples that still run, by the loop time of their start
        self._open_count = 0
        self._number = 0
        self._began = 0.0  # the loop time of the first start since the last collection
        self._step = 1  # one of so many starts is drawn
        self.listener = Listener(
            opened=self._opened,
            sampled=self._draw,
            ended=self._end,
            retried=self._retried,
        )

    def take(self) -> tuple[list[TaskSample], list[TaskSample]]:
        """Return the samples of starts, and those of ends, since the last call; from any thread."""
        with self._lock:
            started, self._started = self._started, []
            ended, self._ended = self._ended, []
            wanted = self._number // self._limit  # the step to begin with, if as many start again
            self._step = 1 << (wanted.bit_length() - 1) if wanted else 1
            self._number = 0
            self._limit = self._size.per_second
            self._restart()
        return started, ended

    def _opened(self, observed: Observed) -> None:
        self._now = observed.now

    def _draw(self, due: float, now: float) -> int:
        """Draw a start; return how many may pass before the next."""
        with self._lock:
            number = self._number
            if not number:
                self._began = now
            sample = TaskSample(number, now - due)
            self._started.append(sample)
            if self._open_count < _OPEN_COUNT_MAX:
                self._open.setdefault(now, []).append(sample)
                self._open_count += 1
                if self._open_count == 1:
                    self._rest(is_resting=False)
            if len(self._started) > self._limit:
                self._limit = self._limit_at(now)
            if len(self._started) > self._limit:
                self._step *= 2
                for thrown in self._started:
                    thrown.is_kept = not thrown.number % self._step
                self._started = [each for each in self._started if each.is_kept]
                self._ended = [each for each in self._ended if each.is_kept]
            self._number = (number // self._step + 1) * self._step
            return self._number - number - 1

    def _limit_at(self, now: float) -> int:
        per_second, total = self._size
        return min(total, int(per_second * max(1.0, now - self._began)))

    def _end(self, owner: Any, state: TaskState | None) -> None:
        """Record the end of a task that may have been drawn."""
        at = started_at(owner)
        if at is None or not self._open_count:
            return
        with self._lock:
            samples = self._open.get(at)
            if samples is None:
                return
            sample = samples.pop(0)
            if not samples:
                del self._open[at]
            self._open_count -= 1
            if not self._open_count:
                self._rest(is_resting=True)
            if sample.is_kept:  # else it was discarded meanwhile
                sample.duration = self._now() - at
                sample.state = state
                sample.key = key_of_owner(owner)
                self._ended.append(sample)
                if len(self._ended) > self._limit:
                    del self._ended[::2]

    def _retried(self, owner: Any) -> None:
        """Record the end of an attempt."""
        self._end(owner, None)
