"""Helpers for the tests of several parts."""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib.util import find_spec

import pytest
from hypothesis import settings

from ratelimited_executor import RetryLater
from ratelimited_executor._kernel import buckets, due_order, sizes
from ratelimited_executor._kernel.choice import compiled
from ratelimited_executor.peers import RedisPeers

from .waiting import live_count, walk


def now() -> float:
    """Return the loop time."""
    return asyncio.get_running_loop().time()


def now_rounded() -> float:
    """Return the loop time in seconds, rounded to a microsecond."""
    return round(now(), 6)


def check_accounting(executor) -> None:
    """Assert that accepted = waiting + running + the five ends, with waiting and running counted by walking."""
    engine = executor._engine
    statistics = executor.statistics()
    waiting = sum(1 for _ in walk(engine.queue))
    running = len(engine.accounts.running) + len(engine.accounts.holding) + engine.accounts.is_inside
    ends = statistics.done + statistics.failed + statistics.cancelled + statistics.expired + statistics.dropped
    assert waiting == statistics.waiting, (waiting, statistics)
    assert running == statistics.running, (running, statistics)
    assert statistics.accepted == waiting + running + ends, (waiting, running, statistics)
    assert live_count(engine.queue) == waiting, (live_count(engine.queue), waiting)


def seen(handle) -> None:
    """Look at the result of a task, so that no failure is reported as never retrieved."""
    if not handle.cancelled():
        handle.exception()


def redis_peers(**options):
    """Return peers whose server need not be there, or skip the test if there is no client."""
    pytest.importorskip("redis", reason="the extra redis is not installed")
    return RedisPeers("redis://localhost:1", **options)


@contextlib.contextmanager
def extras() -> Iterator[None]:
    """Skip the test, or the file, if it imports here what the extra ``test`` brings and ``dev`` does not."""
    try:
        yield
    except ImportError as error:
        if find_spec("fastapi") is not None:  # which no other extra brings: it is an error of ours
            raise
        pytest.skip(f"the extra test is not installed: {error}", allow_module_level=True)


def skip_without_apsw() -> None:
    """Skip a test of stores in a file if there is no driver."""
    pytest.importorskip("apsw", reason="the extra sqlite is not installed")


def examples(count: int, **options) -> settings:
    """Return the settings of a property that is tried with a number of examples, or with a quarter in the quick part.

    The number holds in a profile of 100, which is Hypothesis's own: another has as many more or fewer.
    """
    return settings(max_examples=count * settings().max_examples // 100, **options)


ALL_CASES = os.environ.get("ALL_CASES", "") not in ("", "0")
"""True to run every case; otherwise those that are many like others are a selection, so that a run takes minutes."""


def first_quick(values) -> list:
    """Return parameters of which all but the first are marked as slow."""
    return [each if number == 0 else pytest.param(each, marks=pytest.mark.slow) for number, each in enumerate(values)]


async def turns(count=3) -> None:
    """Yield to the event loop a few times."""
    for _ in range(count):
        await asyncio.sleep(0)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait in this thread until a condition holds; raise :class:`AssertionError` if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.005)


async def until_async(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait on the event loop until a condition holds, as :func:`until` does in a thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.005)


def run_python(program: str, *, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, in which a warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_program(program: str) -> tuple[str, str]:
    """Run a program in an interpreter of its own, and return what it has written to its output and as errors."""
    run = run_python(program)
    assert 0 == run.returncode, run.stderr
    return run.stdout, run.stderr


class Flaky:
    """Fails for a number of calls, and notes when each call started."""

    def __init__(self, failures, error=RetryLater) -> None:
        self.failures = failures
        self.error = error
        self.starts: list[float] = []

    def __call__(self, *_):
        self.starts.append(now())
        if len(self.starts) <= self.failures:
            raise self.error() if isinstance(self.error, type) else self.error
        return "done"

    async def later(self, *_):
        """Fail in the second step: after half a second."""
        self.starts.append(now())
        number = len(self.starts)
        await asyncio.sleep(0.5)
        if number <= self.failures:
            raise self.error() if isinstance(self.error, type) else self.error
        return "done"

    @property
    def pauses(self) -> list[float]:
        """Return the seconds between one start and the next."""
        return [late - early for early, late in zip(self.starts, self.starts[1:], strict=False)]


async def sleep_for(seconds: float) -> str:
    """Sleep, and return a text."""
    await asyncio.sleep(seconds)
    return "slept"


async def swallow(seconds: float) -> str:
    """Sleep for the whole time, even if the task is cancelled."""
    end = now() + seconds
    while (left := end - now()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            pass
    return "unmoved"


def fluid_shares(demands, supply):
    """Divide a supply by weighted max-min, exactly: raise all shares alike, and take out peers whose demand is met."""
    shares = {}
    rest, left = Fraction(supply), {peer: (Fraction(weight), demand) for peer, (weight, demand) in demands.items()}
    while left:
        water = rest / sum(weight for weight, _ in left.values())
        full = {peer: demand for peer, (weight, demand) in left.items() if demand <= weight * water}
        if not full:
            return shares | {peer: weight * water for peer, (weight, _) in left.items()}
        for peer, demand in full.items():
            shares[peer] = Fraction(demand)
            rest -= demand
            del left[peer]
    return shares


@contextlib.contextmanager
def small_counts(
    *,
    spare=sizes.SPARE_COUNT,
    open_max=sizes.OPEN_COUNT_MAX,
    run=sizes.RUN_COUNT,
    slot=sizes.SLOT_COUNT,
    place=sizes.PLACE_COUNT,
    part=sizes.PART_COUNT,
):
    """Let both kernels take the paths for many tasks from small numbers of tasks on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "SPARE_COUNT", spare)
        patch.setattr(due_order, "OPEN_COUNT_MAX", open_max)
        patch.setattr(due_order, "RUN_COUNT", run)
        patch.setattr(due_order, "SLOT_COUNT", slot)
        patch.setattr(due_order, "PLACE_COUNT", place)
        if compiled is None:
            yield patch
            return
        compiled.set_counts(spare=spare, open_max=open_max, run=run, slot=slot, part=part, place=place)
        try:
            yield patch
        finally:
            compiled.set_counts()
