"""Loads with which a bad guest would hold the loop, each in a process of its own."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from bench.guest.accounting import Holds, Probe, accounting
from ratelimited_executor import ExecutorManager, Pacing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor import RateLimitedExecutor

__all__ = ["LOADS", "measure"]

HOUR = 3600.0
RATE = 10_000  # permits a second, for the load that has a rate
RUN_SECONDS_MAX = 15.0  # how long a load is watched if it does not end by itself
SEED = 1


def measure(*, load: str, count: int, lead: float) -> dict[str, float]:
    """Schedule ``count`` tasks that are due after ``lead`` seconds or later, and watch the loop until all have run.

    Args:
        load: a key of ``LOADS``.
        count: how many tasks.
        lead: seconds for the scheduling, which holds the loop because the caller wants it to, and is not watched.
    """
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(LOADS[load](count, lead))


async def _watch(done: asyncio.Future[Any], holds: Holds, seconds: float) -> None:
    """Watch the loop until ``done`` is set, or for a number of seconds."""
    with accounting(holds):
        probe = Probe(holds)
        await asyncio.wait([done], timeout=seconds)
        probe.stop()
        await asyncio.sleep(0)


class _Counter:
    """Counts calls, and reports when all have run."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = asyncio.get_running_loop().create_future()

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            self.done.set_result(None)


async def _control(count: int, lead: float) -> dict[str, float]:
    """Watch a loop that runs nothing but the probe, in a process that holds as much memory."""
    holds = Holds()
    kept = [(number, str(number)) for number in range(count // 4)]
    await _watch(asyncio.get_running_loop().create_future(), holds, 2 * lead)
    del kept
    return {**holds.as_dict(), "lost": 0}


async def _in_one_interval(
    count: int, lead: float, fill: Callable[[RateLimitedExecutor, Sequence[float], _Counter], Any], **options: Any
) -> dict[str, float]:
    chosen = random.Random(SEED)
    shares = [chosen.random() for _ in range(count)]
    holds, counter = Holds(), _Counter(count)
    async with ExecutorManager() as manager:
        executor = manager.executor("bench", **options)
        now = asyncio.get_running_loop().time()
        begin = now + lead + -(time.time() + lead) % 1  # intervals begin at full seconds of the wall clock
        kept = fill(executor, [begin + share for share in shares], counter)
        await _watch(counter.done, holds, lead + RUN_SECONDS_MAX)
        is_limited = "rate" in options
        lost = 0 if is_limited else abs(counter.left)
        if is_limited:
            await executor.shutdown(cancel_pending=True)
        del kept
    return {**holds.as_dict(), "lost": lost}


def _calls(executor: RateLimitedExecutor, whens: Sequence[float], counter: _Counter) -> None:
    for when in whens:
        executor.call_at(when, counter)


def _records(executor: RateLimitedExecutor, whens: Sequence[float], counter: _Counter) -> list[Any]:
    loop_time = asyncio.get_running_loop().time
    return [executor.schedule(counter, delay=max(0.0, when - loop_time())) for when in whens]


def _bulk(executor: RateLimitedExecutor, whens: Sequence[float], counter: _Counter) -> Any:
    now = asyncio.get_running_loop().time()
    return executor.schedule_many(counter, range(len(whens)), delays=[max(0.0, when - now) for when in whens])


def _same_instant(executor: RateLimitedExecutor, whens: Sequence[float], counter: _Counter) -> None:
    first = min(whens)
    for _ in whens:
        executor.call_at(first, counter)


class _ShiftedClock:
    """The loop's time, and a wall clock by which the next hour begins in a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.monotonic = asyncio.get_running_loop().time
        self._shift = HOUR * 500_000 - seconds - time.time()

    def wall(self) -> float:
        """Return the shifted time, in seconds since the epoch."""
        return time.time() + self._shift


async def _hour(count: int, lead: float) -> dict[str, float]:
    """Watch the begin of an interval of an hour that holds all tasks, and some seconds of the interval."""
    holds, counter = Holds(), _Counter(count)
    chosen = random.Random(SEED)
    delays = [lead + chosen.random() * HOUR for _ in range(count)]
    async with ExecutorManager(interval=HOUR, clock=_ShiftedClock(lead)) as manager:
        executor = manager.executor("bench", pacing=Pacing.SPREAD)
        batch = executor.schedule_many(counter, range(count), delays=delays)
        await _watch(counter.done, holds, lead + min(RUN_SECONDS_MAX, 2 * lead))
        started = count - counter.left
        expected_least = int(count * 0.5 * min(RUN_SECONDS_MAX, 2 * lead) / HOUR) if count > HOUR else 0
        batch.cancel()
    return {**holds.as_dict(), "lost": int(started < expected_least)}


LOADS: dict[str, Callable[[int, float], Any]] = {
    "control: nothing but the probe": _control,
    "call_at, due within one second": lambda count, lead: _in_one_interval(count, lead, _calls),
    "call_at, due at one instant": lambda count, lead: _in_one_interval(count, lead, _same_instant),
    "schedule, spread over one second": lambda count, lead: _in_one_interval(count, lead, _records),
    "schedule_many delays=, within one second": lambda count, lead: _in_one_interval(count, lead, _bulk),
    f"schedule, within one second at {RATE:,}/s": lambda count, lead: _in_one_interval(
        count, lead, _records, rate=RATE
    ),
    "schedule_many delays=, an interval of 1 h": _hour,
}
