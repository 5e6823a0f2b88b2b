"""Samples of starts and of their durations, drawn evenly from all, in bounded memory and for next to nothing.

Theory. The first starts since the samples were taken last are all drawn. Whenever there are too many, every second of them is
thrown away, and from then on half as many are drawn: what is kept is every 2nd, 4th, 8th ... start of all, evenly. With a limit
of 100 some seven hundred are drawn of a million; the others start as if nobody looked. The next time as few are drawn from the
outset as would have been enough for the starts of this time. The sample of a quiet time is all that there is.

The limit grows with the time since the samples were taken last, so that they cost as much a second however often that is.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ratelimited_executor._core.keys import given_key
from ratelimited_executor._core.records import TaskRecord
from ratelimited_executor._runtime.batches import BatchItem
from ratelimited_executor._runtime.observing import Listener, started_at

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._kernel.states import TaskState
    from ratelimited_executor._runtime.observing import Listeners, Observable, Observed

__all__ = ["Sample", "SampleSize", "Samples", "sample_executor"]

_OPEN_COUNT_MAX: Final = 10_000  # sampled tasks that run at once: some 2 MB


class Rest(Protocol):
    """Is notified while the ends of tasks do not matter."""

    def __call__(self, *, is_resting: bool) -> None:
        """Record it."""
        ...


class SampleSize(NamedTuple):
    """How many samples of starts, and of ends, are kept at most.

    Attributes:
        per_second: of the time since they were taken last, and within the first second.
        total: however long ago that is.
    """

    per_second: int
    total: int


def sample_executor(executor: Observable, listeners: Listeners, size: SampleSize) -> tuple[Samples, Callable[[], None]]:
    """Sample the tasks of an executor from now on; return the samples, and a function that ends it.

    Args:
        executor: whose tasks they are.
        listeners: its own.
        size: how many samples are kept.

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


class Sample:
    """One start, and how it has ended.

    Attributes:
        number: of the start, since the samples were taken last.
        lateness: seconds between due time and start.
        duration: seconds until the end of the attempt; None as long as it runs.
        state: how the task has ended; None where it waits for another attempt.
        key: of the task; None until its end.
        is_kept: True if it still counts.
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
        size: how many samples are kept.
        rest: told whether ends do not matter for now.
        restart: has the next start drawn.

    Attributes:
        listener: is to be told of the tasks.
    """

    __slots__ = (
        "_began", "_ended", "_limit", "_lock", "_now", "_number", "_open", "_open_count", "_rest", "_restart", "_size",
        "_started", "_step", "listener",
    )  # fmt: skip

    _now: Callable[[], float]

    def __init__(self, *, size: SampleSize, rest: Rest, restart: Callable[[], None]) -> None:
        self._size = size
        self._limit = size.per_second  # on the number of samples, for now
        self._rest = rest
        self._restart = restart
        self._lock = RLock()  # taken from another thread; by this one again where a finalizer starts a task
        self._started: list[Sample] = []
        self._ended: list[Sample] = []
        self._open: dict[float, list[Sample]] = {}  # those that run, by the loop time of their start
        self._open_count = 0
        self._number = 0
        self._began = 0.0  # the loop time of the first start since the samples were taken last
        self._step = 1  # of so many starts one is drawn
        self.listener = Listener(
            opened=self._opened,
            sampled=self._draw,
            ended=self._end,
            retried=self._retried,
        )

    def take(self) -> tuple[list[Sample], list[Sample]]:
        """Return what has started, and what has ended, since this was called last; from any thread."""
        with self._lock:
            started, self._started = self._started, []
            ended, self._ended = self._ended, []
            wanted = self._number // self._limit  # from the outset next time, if as many start
            self._step = 1 << (wanted.bit_length() - 1) if wanted else 1
            self._number = 0
            self._limit = self._size.per_second
            self._restart()
        return started, ended

    def _opened(self, observed: Observed) -> None:
        self._now = observed.now

    def _draw(self, due: float, now: float) -> int:
        """Draw a start, and return how many may pass before the next."""
        with self._lock:
            number = self._number
            if not number:
                self._began = now
            sample = Sample(number, now - due)
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
        """Record the end of a task, which may have been drawn."""
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
            if sample.is_kept:  # else it was thrown away meanwhile
                sample.duration = self._now() - at
                sample.state = state
                sample.key = _key_of(owner)
                self._ended.append(sample)
                if len(self._ended) > self._limit:
                    del self._ended[::2]

    def _retried(self, owner: Any) -> None:
        """Record the end of an attempt."""
        self._end(owner, None)


def _key_of(owner: Any) -> Hashable:
    """Return the key of a task, as its user knows it; None if it has none."""
    if isinstance(owner, TaskRecord):
        return owner.key
    return given_key(owner.source.key) if type(owner) is BatchItem else None
