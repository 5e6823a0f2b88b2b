"""Trivial calls that count themselves; every hundredth one notes how late it starts.

To note each start would cost as much as what is measured; one in a hundred costs a few nanoseconds a call, the same on
every side.
"""

from __future__ import annotations

import asyncio
import statistics
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "EARLY_SECONDS",
    "STRIDE",
    "Countdown",
    "batch_items",
    "percentiles",
    "schedule_in_turns",
    "schedule_one_by_one",
]

STRIDE = 100  # one call in this many is a sample
EARLY_SECONDS = 1e-6  # a start within a microsecond before its due time is an effect of rounding, not an early start
CALLS_AT_A_STRETCH = 1_000  # about a millisecond, for which a good guest may hold the loop while it schedules


class Countdown:
    """A number of calls that are to come, and how they started.

    Attributes:
        call: what is scheduled.
        sample: what is scheduled instead for one call in ``STRIDE``, with the monotonic time at which it is due.
        begin: must be called at the time from which the delays of a batch count.
        call_item: the function of a batch; its items are those of ``batch_items``.
        done: a future that the last call sets.
        lateness: the seconds from due to started for each sample.
    """

    def __init__(self, count: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lateness: list[float] = []
        left, done, note, begun = count, self.done, self.lateness.append, 0.0

        def call() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        def sample(due: float) -> None:
            note(monotonic() - due)
            call()

        def begin() -> None:
            nonlocal begun
            begun = monotonic()

        def call_item(delay: float | None) -> None:
            nonlocal left
            left -= 1
            if delay is not None:
                note(monotonic() - begun - delay)
            if not left:
                done.set_result(None)

        self.call, self.sample, self.begin, self.call_item = call, sample, begin, call_item
        self._left: Callable[[], int] = lambda: left

    @property
    def lost(self) -> int:
        """Return how many calls have not run, or ran twice."""
        return abs(self._left())

    @property
    def early(self) -> int:
        """Return how many of the samples started before they were due."""
        return sum(late < -EARLY_SECONDS for late in self.lateness)


def batch_items(delays: Sequence[float]) -> list[float | None]:
    """Return the items of a batch: the delay in seconds for each sample, and None for all other calls."""
    items: list[float | None] = [None] * len(delays)
    items[::STRIDE] = delays[::STRIDE]
    return items


def schedule_one_by_one(call_later: Callable[..., Any], countdown: Countdown, delays: Sequence[float]) -> None:
    """Schedule one call for each delay in seconds."""
    call, sample = countdown.call, countdown.sample
    for start in range(0, len(delays), STRIDE):
        call_later(delays[start], sample, monotonic() + delays[start])
        for delay in delays[start + 1 : start + STRIDE]:
            call_later(delay, call)


async def schedule_in_turns(call_later: Callable[..., Any], countdown: Countdown, delays: Sequence[float]) -> None:
    """Schedule one call for each delay in seconds, and let the loop run after every thousand."""
    for start in range(0, len(delays), CALLS_AT_A_STRETCH):
        schedule_one_by_one(call_later, countdown, delays[start : start + CALLS_AT_A_STRETCH])
        await asyncio.sleep(0)


def percentiles(lateness: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum, in the unit of the values."""
    if len(lateness) == 1:
        return lateness[0], lateness[0], lateness[0]
    cuts = statistics.quantiles(lateness, n=100, method="inclusive")
    return cuts[49], cuts[98], max(lateness)
