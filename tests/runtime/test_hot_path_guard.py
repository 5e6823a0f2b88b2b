"""The cost of the paths that millions of tasks take, counted instead of timed.

These paths consist of function calls, of Python and of C, whose numbers are the same on every machine and in every run.
Bytes are measured by ``tracemalloc``. An exceeded budget means that a path has grown: undo the change, or show its
worth by ``python -m bench`` and set a new budget, a tenth above the count. Each reading of the virtual clock counts as
two Python calls, where the system's clock is one C call.
"""

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import CodeType

import pytest

import ratelimited_executor
from ratelimited_executor import Burst, Paced, Pacing, RateLimitedExecutor, Window, kernel
from ratelimited_executor.policies import Strictness

COUNT = 4000


class Calls:
    """Counts function calls in this thread while it is entered, without its own."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call") and argument is not sys.setprofile:
            self.counts[event] += 1

    def per_task(self) -> tuple[float, float]:
        """Python and C calls per task."""
        return self.counts["call"] / COUNT, self.counts["c_call"] / COUNT


def task(*_: object) -> None:
    """Do nothing."""


def check(calls: Calls, python_max: float, c_max: float) -> None:
    python, c = calls.per_task()
    assert python <= python_max, f"{python:.2f} calls of Python functions a task"
    assert c <= c_max, f"{c:.2f} calls of C functions a task"


@pytest.fixture
async def executor(virtual_clock):
    async with RateLimitedExecutor("one", pacing=Pacing.ON_TIME, drain_timeout=0) as executor:
        yield executor


async def test_call_later_calls_little(executor):
    """``call_later`` calls the handle's constructor, clock, context, thread, and a bucket's three columns."""
    executor.call_later(10.5, task)
    with Calls() as calls:
        for _ in range(COUNT):
            executor.call_later(10.5, task)
    check(calls, 4.1, 14.3)  # 13, and one more where other tests have run before


@pytest.mark.parametrize(
    ("seconds", "python_max", "c_max"), [(0.0, 4.1, 5.1), (1.0, 12.9, 20.1)], ids=["in place", "moved"]
)
async def test_reschedule_calls_less_than_cancel_and_call_later(executor, seconds, python_max, c_max):
    """``reschedule`` calls the bucket and the clock; to another bucket, also a removal and an addition."""
    handles = [executor.call_later(10.5, task) for _ in range(COUNT)]
    executor.call_later(10.5 + seconds, task)
    with Calls() as calls:
        for handle in handles:
            handle.reschedule(10.5 + seconds)
    check(calls, python_max, c_max)


async def test_schedule_calls_little(executor):
    """``schedule`` calls the handle's constructor, the clock, the calendar and the bucket."""
    executor.schedule(task, delay=10.5)
    with Calls() as calls:
        for _ in range(COUNT):
            executor.schedule(task, delay=10.5)
    check(calls, 12.1, 16.1)


@pytest.mark.parametrize(
    "option", [{"over": 10.0}, {"delay": 10.0}, {"delays": [10.0] * COUNT}], ids=lambda o: next(iter(o))
)
async def test_bulk_calls_nothing_for_an_item(executor, option):
    """``schedule_many`` makes no call for an item: due times are computed, or sorted at once."""
    with Calls() as calls:
        executor.schedule_many(task, range(COUNT), **option)
    check(calls, 0.05, 0.1)


def _add_calls(executor: RateLimitedExecutor) -> None:
    for number in range(COUNT):
        executor.call_later(1.0 + number / COUNT, task)


def _add_items(executor: RateLimitedExecutor) -> None:
    executor.schedule_many(task, range(COUNT), delays=[1.0 + number / COUNT for number in range(COUNT)])


def _add_handles(executor: RateLimitedExecutor) -> None:
    for number in range(COUNT):
        executor.schedule(task, delay=1.0 + number / COUNT)


@pytest.mark.parametrize(
    ("add", "python_max", "c_max"),
    [(_add_calls, 2.9, 5.8), (_add_items, 2.4, 2.4), (_add_handles, 7.4, 7.9)],
    ids=["call_later", "schedule_many", "schedule"],
)
async def test_starting_calls_little(executor, add, python_max, c_max):
    """A start calls the task, its context and the clock; tasks due together share the other calls."""
    await asyncio.sleep(0.5)
    add(executor)
    asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + 0.9, lambda: None)
    await asyncio.sleep(0.9)
    asyncio.get_running_loop().block_for(2.5)  # everything is due at once: wake-ups do not count
    with Calls() as calls:
        await asyncio.sleep(0.1)
    assert COUNT == executor.statistics().done
    check(calls, python_max, c_max)


async def test_a_wake_up_calls_a_bounded_number_of_functions(executor):
    """A wake-up for one task calls a bounded number of functions: timer, runner and queue."""
    for number in range(COUNT):
        executor.call_later(5.5 + number / 1000, task)
    await asyncio.sleep(5.4)
    with Calls() as calls:
        await asyncio.sleep(5)
    assert COUNT == executor.statistics().done
    check(calls, 116, 115)


async def _nothing() -> None:
    pass


@pytest.mark.skipif(not kernel.is_compiled, reason="the pure kernel is Python")
@pytest.mark.parametrize("max_concurrency", [None, 10])
@pytest.mark.parametrize("strictness", Strictness)
@pytest.mark.parametrize("add", [RateLimitedExecutor.call_later, RateLimitedExecutor.schedule])
async def test_a_paced_start_runs_no_python_code_of_the_compiled_package(
    virtual_clock, add, strictness, max_concurrency
):
    """From one wake-up to the next, a start under a rate runs the task and the loop's timer, under either law."""
    package = Path(ratelimited_executor.__file__).parent
    seen: Counter[CodeType] = Counter()

    def note(frame, event: str, argument: object) -> None:
        if event == "call":
            seen[frame.f_code] += 1

    def is_ours(code: CodeType) -> bool:
        path = Path(code.co_filename)
        return path.is_relative_to(package) and not path.is_relative_to(package / "testing")

    policy = Paced(strictness=strictness)
    async with RateLimitedExecutor("one", rate=1000, policy=policy, max_concurrency=max_concurrency) as executor:
        for number in range(COUNT):
            delay = 0.5 + number / 900
            if add is RateLimitedExecutor.schedule:
                executor.schedule(_nothing, delay=delay)
            else:
                executor.call_later(delay, task)
        await asyncio.sleep(1.0)
        before = executor.statistics().started
        sys.setprofile(note)
        await asyncio.sleep(3.0)
        sys.setprofile(None)
        count = executor.statistics().started - before
    assert count > 2000
    often = {code.co_qualname: number / count for code, number in seen.items() if number > count / 10 and is_ours(code)}
    assert often.keys() <= {"LoopTimer.set", "LoopTimer._call_back"}, often


@pytest.mark.parametrize(
    ("limits", "compiled_max", "pure_max"),
    [
        ({"rate": 1000, "policy": Window()}, 75, 142),
        ({"rate": 1000, "policy": Burst(50)}, 75, 142),
        ({"rate": ["1000/s", "100_000/min"]}, 88, 160),
        ({"rate": 1000, "key_rate": 100, "max_concurrency": 50}, 156, 190),
    ],
    ids=["window", "burst", "two rates", "keys"],
)
async def test_a_start_under_other_limits_calls_little(virtual_clock, limits, compiled_max, pure_max):
    """A start that is alone asks each limit a few questions; it joins no order, and nothing is summed over a window."""
    key = {"key": "one"} if "key_rate" in limits else {}
    async with RateLimitedExecutor("one", **limits) as executor:
        for number in range(COUNT):
            executor.schedule(_nothing, delay=0.5 + number / 90, **key)
        await asyncio.sleep(1.0)
        before = executor.statistics().started
        with Calls() as calls:
            await asyncio.sleep(30.0)
        count = executor.statistics().started - before
    assert count > 2600
    assert calls.counts["call"] / count <= (compiled_max if kernel.is_compiled else pure_max)


def _bytes_of(add) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        kept = add()
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        del kept
        return size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("what", "bytes_max"), [("call_later", 37), ("delays", 14), ("over", 1), ("delay", 1), ("schedule", 205)]
)
async def test_a_waiting_task_takes_few_bytes(executor, what, bytes_max):
    """A waiting task takes a due time and two places; eight more bytes in bulk, none with computed due times."""
    count = 20_000
    items = range(count)
    delays = [10.0 + number / 50_000 for number in range(count)]

    def add():
        if what == "call_later":
            for delay in delays:
                executor.call_later(delay, task)
            return None
        if what == "schedule":
            handles = [None] * count
            before = sys.getsizeof(handles)
            for index, delay in enumerate(delays):
                handles[index] = executor.schedule(task, delay=delay)
            assert sys.getsizeof(handles) == before
            return handles
        options = {"delays": delays} if what == "delays" else {what: 10.0}
        return executor.schedule_many(task, items, **options)

    add_once = executor.call_later(10.0, task)
    size = _bytes_of(add) / count
    assert size <= bytes_max, f"{size:.1f} bytes a task"
    assert add_once.when() > 0


async def test_waiting_calls_are_nothing_to_the_garbage_collector(executor):
    """Scheduling leaves no object that the garbage collector tracks."""
    executor.call_later(10.5, task)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(COUNT):
        executor.call_later(10.5, task)
    executor.schedule_many(task, range(COUNT), over=10)
    assert len(gc.get_objects()) - before < 50
