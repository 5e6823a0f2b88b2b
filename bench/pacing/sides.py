"""Sides that start n calls at a rate: a bare timerfd, the loop's ``call_at``, and ours; with and without other load.

Each side returns when its calls started, when they were to start, and the CPU time. For ``call_at`` and the control the
instants are fixed beforehand, 1/rate apart. Ours starts at the permits of its own grid: permit p comes up p/rate after
the epoch of its timeline. The permit that a start took is found by the rule of the policy: the first one that is not
taken, unless it is older than the slack; permits that lapsed are counted. The policy is the nominal law, whose grid
stays where it is; the grid of the exact law moves by the lateness of a start. The audit of the test kit checks the law
of the rate separately. Permits from before the calls do not count: an idle executor uses them at once, by design.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.pacing.timerfd import AbsoluteTimer
from ratelimited_executor import ExecutorManager, Paced
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import audit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor import RateLimitedExecutor

__all__ = ["Starts", "call_at", "control", "executor"]

NS = 1_000_000_000
LEAD_NS = 20_000_000  # before the first instant, to set everything up
SLACK_SECONDS = 0.02
CLOCK_DIFFERENCE_NS = 1_000
SEED = 1
# The other load: a callback every few milliseconds that takes some tenths of one, as parsing an answer does.
CHATTER_EVERY_MS, CHATTER_TAKES_MS = (2.0, 6.0), (0.2, 1.0)


@dataclass(frozen=True, slots=True)
class Starts:
    """One round of one side.

    Attributes:
        lateness_ns: the lateness of each start, against its instant.
        at_ns: the time of each of these starts, on the monotonic clock.
        cpu_a_start: seconds of CPU time for each start, with the scheduling.
        lapsed: how many permits came up and were not used.
        lost: how many calls did not start, or started twice.
        is_lawful: whether the starts keep the law of the rate.
    """

    lateness_ns: Sequence[int]
    at_ns: Sequence[int]
    cpu_a_start: float
    lapsed: int = 0
    lost: int = 0
    is_lawful: bool = True


def control(count: int, rate: int, *, is_loaded: bool) -> Starts:
    """Wait for each instant with a timerfd, in a loop that does nothing else except for the load."""
    timer = AbsoluteTimer()
    gc.collect()
    before = time.process_time()
    begin = time.monotonic_ns() + LEAD_NS
    instants = [begin + number * NS // rate for number in range(count)]
    chatter = _chatter(begin) if is_loaded else iter(())
    talk_at, talk_for = next(chatter, (None, 0))
    at_ns = []
    for instant in instants:
        while talk_at is not None and talk_at < instant:
            timer.wait_until(talk_at)
            _spin(talk_for)
            talk_at, talk_for = next(chatter)
        timer.wait_until(instant)
        at_ns.append(time.monotonic_ns())
    cpu = time.process_time() - before
    timer.close()
    return Starts([at - instant for at, instant in zip(at_ns, instants, strict=True)], at_ns, cpu / count)


async def call_at(count: int, rate: int, *, is_loaded: bool) -> Starts:
    """Schedule all instants on the event loop beforehand."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    at_ns: list[int] = []

    def start(number: int) -> None:
        at_ns.append(time.monotonic_ns())
        if number == count - 1:
            done.set_result(None)

    gc.collect()
    # asyncio compares times in whole resolutions of the clock; uvloop has a clock of its own, in milliseconds.
    before = time.process_time()
    now, now_ns = loop.time(), time.monotonic_ns()
    lead = LEAD_NS / NS + count * 2e-6
    for number in range(count):
        loop.call_at(now + lead + number / rate, start, number)
    load = _start_chatter(loop) if is_loaded else None
    await done
    cpu = time.process_time() - before
    await asyncio.sleep(0.002)  # uvloop may call the last one early
    _stop_chatter(load)
    begin = now_ns + round(lead * NS)
    lateness = [at - begin - number * NS // rate for number, at in enumerate(at_ns)]
    return Starts(lateness, at_ns, cpu / count, lost=abs(count - len(at_ns)))


async def executor(count: int, rate: int, *, is_loaded: bool, settings: dict[str, Any]) -> Starts:
    """Submit all calls at once, so that each starts at a permit.

    Args:
        count: how many calls are measured.
        rate: permits a second.
        is_loaded: whether the loop has something else to do.
        settings: arguments of the manager.
    """
    loop = asyncio.get_running_loop()
    at_ns: list[int] = []

    def start(_: int) -> None:
        at_ns.append(time.monotonic_ns())

    all_count = count + round(rate * SLACK_SECONDS) + 1
    async with ExecutorManager(**settings) as manager:
        paced = manager.executor("bench", rate=rate, policy=Paced(SLACK_SECONDS, Strictness.NOMINAL))
        grid = _Grid.of(paced)
        gc.collect()
        load = _start_chatter(loop) if is_loaded else None
        before, begin = time.process_time(), time.monotonic_ns()
        await paced.schedule_many(start, range(all_count))
        cpu = time.process_time() - before
        _stop_chatter(load)
    lateness, lapsed = grid.lateness(at_ns, begin)
    is_lawful = audit([at / NS for at in at_ns], rate=rate, slack=SLACK_SECONDS).ok
    return Starts(
        lateness, at_ns[-len(lateness) :], cpu / all_count, lapsed, abs(all_count - len(at_ns)), is_lawful=is_lawful
    )


@dataclass(frozen=True, slots=True)
class _Grid:
    """The permits of an executor: permit p comes up p / rate seconds after the epoch of the timeline.

    Attributes:
        rate: permits a second.
        offset_ns: from the monotonic clock to the timeline.
        slack_ns: how long a permit stays usable.
        first: the first permit that the executor may take.
    """

    rate: int
    offset_ns: int
    slack_ns: int
    first: int

    @classmethod
    def of(cls, executor: RateLimitedExecutor) -> _Grid:
        """Read the grid of an executor that has just been made, since no public name tells the permit of a start."""
        queue = executor._engine.queue  # type: ignore[union-attr]  # it has started
        step = executor.rate.per_second
        assert step is not None
        return cls(int(step), queue.timeline.offset_ns, queue.permits.slack_ns, queue.permits._next)

    def lateness(self, at_ns: Sequence[int], begin: int) -> tuple[list[int], int]:
        """Return how late starts were against their permits, without those before ``begin``, and how many lapsed."""
        late: list[int] = []
        lapsed, last = 0, self.first - 1
        for at in at_ns:
            on_timeline = at + self.offset_ns
            newest = on_timeline * self.rate // NS
            fresh = -(-(on_timeline - self.slack_ns) * self.rate // NS)
            # Not that of the start before, if the clocks differ by nanoseconds.
            permit = max(last + 1, min(fresh, newest))
            came_up = -(-permit * NS // self.rate) - self.offset_ns
            if (
                came_up - at > CLOCK_DIFFERENCE_NS
            ):  # no start is early: the one before had a permit that lapsed as it began
                permit = newest
                came_up = -(-permit * NS // self.rate) - self.offset_ns
            if came_up >= begin:
                late.append(at - came_up)
                lapsed = max(0, lapsed + permit - last - 1) if len(late) > 1 else 0
            last = permit
        return late, lapsed


def _chatter(begin: int) -> Iterator[tuple[int, int]]:
    """Yield the times at which the load runs, and for how long, in nanoseconds."""
    chosen = random.Random(SEED)
    at = begin
    while True:
        at += round(chosen.uniform(*CHATTER_EVERY_MS) * 1e6)
        yield at, round(chosen.uniform(*CHATTER_TAKES_MS) * 1e6)


def _start_chatter(loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    async def talk() -> None:
        begin, now = time.monotonic_ns(), loop.time()
        for at, takes in _chatter(begin):
            await asyncio.sleep(max(0.0, now + (at - begin) / NS - loop.time()))
            _spin(takes)

    return loop.create_task(talk())


def _stop_chatter(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()


def _spin(duration_ns: int) -> None:
    end = time.monotonic_ns() + duration_ns
    while time.monotonic_ns() < end:
        pass
