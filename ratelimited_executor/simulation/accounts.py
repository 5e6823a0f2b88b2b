"""The counts of an executor in a run, step by step, and what they add up to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ratelimited_executor.simulation.summary import ExecutorSummary, Quantiles

if TYPE_CHECKING:
    from ratelimited_executor._core.histogram import DurationHistogram
    from ratelimited_executor.simulation.summary import ResourceSummary

__all__ = ["Account", "Tally", "window_of_evenness"]

_DONE: Final = 3  # the index of the jobs done in a tally
_EVEN_SECONDS: Final = 600.0  # the window in which jobs are counted for the evenness of the throughput; at least a step


def window_of_evenness(step: float) -> float:
    """Return the seconds of the windows for the evenness of the throughput, whole steps."""
    return step * math.ceil(_EVEN_SECONDS / step)


class Tally(NamedTuple):
    """The counts of an executor, in total or in a step."""

    enqueued: int = 0
    started: int = 0
    retried: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    dropped: int = 0


class Account:
    """The counts of an executor, or of all of them together, step by step."""

    def __init__(self) -> None:
        self.tally: tuple[int, ...] = Tally()
        self.before: tuple[int, ...] = self.tally  # the counts of a warm-up
        self.executing = 0
        self.pending = 0
        self.refused = 0
        self._workers = 0
        self._worker_seconds = 0.0  # of all workers, up to the last change of their number
        self._changed_at = 0.0
        self._depth_most = 0
        self._pending_most = 0
        self._depth_seconds = 0.0  # the integral of the queue depth over time, from samples
        self._holding_seconds = 0.0  # the integral of the number of held permits
        self._window_done = 0
        self._window_count = 0
        self._window_sum = 0.0
        self._window_squares = 0.0

    def add_look(self, *, depth: int, holding: int, seconds: float) -> None:
        """Add a sample that stands for a number of seconds."""
        self._holding_seconds += holding * seconds
        self._depth_seconds += depth * seconds
        self._depth_most = max(self._depth_most, depth)

    def add(self, tally: tuple[int, ...], *, executing: int, depth: int, pending: int) -> None:
        """Add a step, at whose end the counts are those of ``tally``."""
        self._window_done += tally[_DONE] - self.tally[_DONE]
        self.tally, self.executing, self.pending = tally, executing, pending
        self._depth_most = max(self._depth_most, depth)
        self._pending_most = max(self._pending_most, pending)

    def set_workers(self, workers: int, time: float) -> None:
        """Record the number of workers from a time on, in seconds since the start."""
        if workers != self._workers:
            self._worker_seconds, self._workers, self._changed_at = self.worker_seconds(time), workers, time

    def worker_seconds(self, time: float) -> float:
        """Return how many seconds all workers had by a time, whether they worked or not."""
        return self._worker_seconds + self._workers * (time - self._changed_at)

    def end_windows(self, count: int) -> None:
        """End a window for the evenness of the throughput, and the skipped ones after it, in which nothing was done."""
        self._window_count += count
        self._window_sum += self._window_done
        self._window_squares += self._window_done**2
        self._window_done = 0

    def after(self, time: float) -> Self:
        """Return an account that begins where this one ends, at a time."""
        account = type(self)()
        account.tally = account.before = self.tally
        account.executing, account.pending = self.executing, self.pending
        account.set_workers(self._workers, time)
        return account

    def sum_up(
        self,
        seconds: float,
        start_delay: DurationHistogram,
        executing_seconds: float,
        resources: dict[str, ResourceSummary] | None = None,
    ) -> ExecutorSummary:
        """Sum up all steps.

        Args:
            seconds: the length of all steps.
            start_delay: the lateness of starts.
            executing_seconds: the total running time of coroutines.
            resources: the use of its resources.
        """
        tally = Tally(*map(int.__sub__, self.tally, self.before))
        evenness = None
        if self._window_count and self._window_squares:
            evenness = self._window_sum**2 / (self._window_count * self._window_squares)
        return ExecutorSummary(
            enqueued=tally.enqueued,
            started=tally.started,
            retried=tally.retried,
            done=tally.done,
            failed=tally.failed,
            other=tally.cancelled + tally.expired + tally.dropped,
            refused=self.refused,
            executing=self.executing,
            pending=self.pending,
            queue_depth_most=self._depth_most,
            queue_depth_mean=self._depth_seconds / seconds if seconds else 0.0,
            pending_most=self._pending_most,
            executing_mean=(executing_seconds + self._holding_seconds) / seconds if seconds else 0.0,
            start_delay=Quantiles.of(start_delay),
            evenness=evenness,
            resources=resources or {},
        )
