"""What the paths that millions of tasks take may cost, counted and not timed.

Function calls, of Python and of C, are what these paths consist of; they are the same on every machine and in every run.
Bytes are what ``tracemalloc`` sees. A budget that is exceeded tells that a path has grown: take it back, or show by
``python -m bench`` what it is worth and set the budget anew, a tenth above what is counted. Each look at the virtual clock
counts as two calls of Python functions, where the system's is one of C.
"""

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter

import pytest

from ratelimited_executor import Pacing, RateLimitedExecutor

COUNT = 4000


class Calls:
    """Counts function calls in this thread while it is entered, those that it makes itself left out."""

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
        """Python's and C's calls a task."""
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
    """Itself and the handle's constructor; clock, context, thread, bucket and its three columns."""
    executor.call_later(10.5, task)
    with Calls() as calls:
        for _ in range(COUNT):
            executor.call_later(10.5, task)
    check(calls, 4.1, 14.3)  # 13, and one more where other tests have run before


@pytest.mark.parametrize(
    ("seconds", "python_max", "c_max"), [(0.0, 4.1, 5.1), (1.0, 12.9, 20.1)], ids=["in place", "moved"]
)
async def test_reschedule_calls_less_than_cancel_and_call_later(executor, seconds, python_max, c_max):
    """Itself and the bucket, and the clock; where the bucket is another, what leaves one and enters the other."""
    handles = [executor.call_later(10.5, task) for _ in range(COUNT)]
    executor.call_later(10.5 + seconds, task)
    with Calls() as calls:
        for handle in handles:
            handle.reschedule(10.5 + seconds)
    check(calls, python_max, c_max)


async def test_schedule_calls_little(executor):
    """The handle's constructor, the clock, the calendar and the bucket."""
    executor.schedule(task, delay=10.5)
    with Calls() as calls:
        for _ in range(COUNT):
            executor.schedule(task, delay=10.5)
    check(calls, 12.1, 16.1)


@pytest.mark.parametrize(
    "option", [{"over": 10.0}, {"delay": 10.0}, {"delays": [10.0] * COUNT}], ids=lambda o: next(iter(o))
)
async def test_bulk_calls_nothing_for_an_item(executor, option):
    """Due times are computed, or sorted in one go."""
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
    """The task itself, the context that it runs in, and the clock; what is due together is looked at together."""
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
    """One task a wake-up: the timer, the runner, the queue's questions."""
    for number in range(COUNT):
        executor.call_later(5.5 + number / 1000, task)
    await asyncio.sleep(5.4)
    with Calls() as calls:
        await asyncio.sleep(5)
    assert COUNT == executor.statistics().done
    check(calls, 116, 115)


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
    """A due time and two places in columns; eight bytes more in bulk; nothing where due times are computed."""
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
    """No object that it tracks outlives the call that scheduled."""
    executor.call_later(10.5, task)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(COUNT):
        executor.call_later(10.5, task)
    executor.schedule_many(task, range(COUNT), over=10)
    assert len(gc.get_objects()) - before < 50
