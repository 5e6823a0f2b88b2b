"""Several event loops at a time, each in a thread of its own with executors of its own: none disturbs another.

On a Python without the global interpreter lock they run on several cores at once; elsewhere threads take turns, which is
no reason not to try it.
"""

import asyncio
import contextvars
import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import ge

import pytest

import ratelimited_executor._runtime.insight.insight  # noqa: F401  # pytest rewrites its asserts, which CPython 3.11 can do in one thread only
from ratelimited_executor import ExecutorManager, RateLimitedExecutor, TaskState
from ratelimited_executor.exceptions import WrongLoopError
from ratelimited_executor.testing import audit

from ..helpers import check_accounting

pytestmark = [pytest.mark.real_time("threads run at the same time"), pytest.mark.timeout(60)]
LOOPS = 4
variable = contextvars.ContextVar("variable")


@pytest.fixture(autouse=True)
def often_switched():
    """Let threads take turns after some hundred lines of Python, where they take turns."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(main, count: int = LOOPS) -> list:
    """Run ``main(number)`` on as many loops, each in a thread, from the same moment on; return the results."""
    together = threading.Barrier(count)

    async def body(number):
        reports = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        together.wait(30)
        result = await asyncio.wait_for(main(number), 40)
        assert [] == reports
        return result

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: asyncio.run(body(number)), range(count)))


def test_each_loop_gets_its_own_results():
    """Tasks of every kind return what they should, in the context in which they were scheduled, and are counted."""

    async def coroutine(value):
        await asyncio.sleep(0)
        return value, variable.get()

    def plain(value):
        return value, variable.get()

    def fails(value):
        raise ValueError(value)

    async def main(number):
        ran = []
        async with RateLimitedExecutor(f"loop {number}") as executor:
            for turn in range(20):
                variable.set((number, turn))
                handles = [
                    add(fn, (number, turn, at), **options)
                    for at in range(10)
                    for fn in (plain, coroutine)
                    for add, options in ((executor.submit, {}), (executor.schedule, {"delay": 0.001 * at}))
                ]
                executor.execute(ran.append, (number, turn))
                executor.call_soon(ran.append, (number, turn))
                executor.call_later(0.001, ran.append, (number, turn)).cancel()
                executor.call_later(0.001, ran.append, (number, turn))
                failing = executor.submit(fails, number)
                dropped = executor.schedule(plain, number, delay=60)
                batch = executor.schedule_many(plain, range(100), results=True)
                expected = [((number, turn, at), (number, turn)) for at in range(10) for _ in range(4)]
                assert sorted(expected) == sorted([await handle for handle in handles])
                assert dropped.cancel()
                with pytest.raises(ValueError, match=str(number)):
                    await failing
                assert 100 == (await batch).done
                check_accounting(executor)
        statistics = executor.statistics()
        assert (20 * (40 + 3 + 100), 20, 40) == (statistics.done, statistics.failed, statistics.cancelled)
        assert 60 == len(ran)
        assert {(number, turn) for turn in range(20)} == set(ran)

    in_threads(main)


def test_each_loop_keeps_its_own_rate():
    """Each executor keeps the law of its rate, whatever the others do."""

    async def main(number):
        starts = [[], []]
        async with ExecutorManager() as manager:
            for at, log in enumerate(starts):
                executor = manager.executor(f"{number} {at}", rate=200)
                executor.schedule_many(lambda log: log.append(time.monotonic()), [log] * 100)
        return starts

    for starts in in_threads(main):
        for each in starts:
            assert 100 == len(each)
            assert audit(each, 200, slack=0.1).ok


def test_loops_give_each_other_tasks():
    """Each thread gives each other loop tasks by every way that is meant for threads; all run once, on their own loop."""
    executors, loops = [None] * LOOPS, [None] * LOOPS
    ready, done = threading.Barrier(LOOPS), threading.Barrier(LOOPS)
    ran = [[] for _ in range(LOOPS)]
    count = 50

    def note(at, what):
        assert asyncio.get_running_loop() is loops[at]
        ran[at].append(what)
        return what

    async def note_later(at, what):
        await asyncio.sleep(0)
        return note(at, what)

    async def main(number):
        async with RateLimitedExecutor(f"loop {number}") as executor:
            executors[number], loops[number] = executor, asyncio.get_running_loop()
            face = executor.as_futures_executor()
            await asyncio.to_thread(ready.wait, 30)
            futures, threaded = [], []
            for turn in range(count):
                for at, other in enumerate(executors):
                    if at != number:
                        futures.append(other.schedule_threadsafe(note, at, (number, turn, "plain")))
                        futures.append(
                            other.schedule_threadsafe(note_later, at, (number, turn, "coroutine"), delay=0.01)
                        )
                        other.call_soon_threadsafe(note, at, (number, turn, "call"))
                        with pytest.raises(WrongLoopError):
                            other.submit(note, at, "never")
                threaded.append(face.submit(threading.get_ident))
                await asyncio.sleep(0)
            results = await asyncio.gather(*map(asyncio.wrap_future, futures))
            assert threading.get_ident() not in await asyncio.gather(*map(asyncio.wrap_future, threaded))
            await asyncio.to_thread(done.wait, 30)  # until then, the others give tasks to this executor
        check_accounting(executor)
        return len(results)

    assert [2 * count * (LOOPS - 1)] * LOOPS == in_threads(main)
    for at, what in enumerate(ran):
        expected = [
            (number, turn, kind)
            for number in range(LOOPS)
            if number != at
            for turn in range(count)
            for kind in ("call", "coroutine", "plain")
        ]
        assert expected == sorted(what)


@pytest.mark.filterwarnings("ignore:unclosed ExecutorManager")
def test_collections_in_one_thread_leave_the_others_alone():
    """Executors are made, left unclosed and collected in one thread while tasks wait, start and are cancelled in others."""
    is_over = threading.Event()

    async def collects():
        for _ in range(30):
            executor = RateLimitedExecutor("dropped", rate=10)
            await executor.start()
            for delay in range(1, 50):
                executor.schedule(print, delay=float(delay))
            del executor  # not closed
            gc.collect()
        is_over.set()

    async def works(number):
        async with RateLimitedExecutor(f"loop {number}") as executor:
            while not is_over.is_set():
                handles = [executor.schedule(list, delay=0.001) for _ in range(100)]
                doomed = [executor.schedule(list, delay=60.0) for _ in range(100)]
                assert all(handle.cancel() for handle in doomed)
                assert [[]] * 100 == [await handle for handle in handles]
                assert {TaskState.CANCELLED} == {handle.state for handle in doomed}
                check_accounting(executor)

    in_threads(lambda number: works(number) if number else collects())


@pytest.mark.parametrize("rate", [5_000, ["5000/s", "200000/m"]], ids=["one rate", "two rates"])
def test_statistics_are_read_by_other_threads(rate):
    """Any thread may read the statistics while tasks come, start and end: nothing is changed by that, not even a count."""
    executors, is_over = [], threading.Event()

    async def reads():
        count, before = 0, (0, 0, 0)
        while not is_over.is_set():
            for executor in executors:
                now = executor.statistics()
                assert all(map(ge, counts := (now.accepted, now.done, now.cancelled), before)), (counts, before)
                assert [] == [limit for limit in now.limits if limit.left < 0]
                if rate == 5_000:
                    assert executor.backlog_seconds() >= 0
                count, before = count + 1, counts
            await asyncio.sleep(0.0005)  # not at once: without the lock, as many cores as loops would be busy with it
        return count

    async def works():
        async with RateLimitedExecutor("read", rate=rate) as executor:
            executors.append(executor)
            for _ in range(20):
                handles = [executor.submit(list) for _ in range(50)]
                handles += [executor.schedule(asyncio.sleep, 0, delay=0.001, key=at) for at in range(20)]
                batch = executor.schedule_many(list, [()] * 50)
                doomed = [executor.schedule(list, delay=60.0) for _ in range(20)]
                assert all(handle.cancel() for handle in doomed)
                await asyncio.gather(*handles)
                await batch
                check_accounting(executor)
                assert executor.statistics().waiting == executor.statistics().running == 0
        return executor.statistics()

    async def main(number):
        try:
            return await (reads() if number else works())
        finally:
            is_over.set()

    found, *counts = in_threads(main)
    assert (20 * 140, 20 * 120, 20 * 120, 20 * 20) == (found.accepted, found.started, found.done, found.cancelled)
    assert all(counts)


def test_what_has_to_walk_the_tasks_is_refused_in_other_threads():
    """The backlog of a key, or under several rates, is not known without what only the loop's thread may do."""
    is_over = threading.Barrier(2)

    async def main(number):
        async with RateLimitedExecutor(f"loop {number}", rate=["5000/s", "200000/m"][: 1 + number]) as executor:
            executor.schedule(list, delay=0.001, key="a")
            assert executor.backlog_seconds() == executor.backlog_seconds("a") == 0
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(executor.backlog_seconds, "a")
            if number:
                with pytest.raises(WrongLoopError):
                    await asyncio.to_thread(executor.backlog_seconds)
            else:
                assert 0 == await asyncio.to_thread(executor.backlog_seconds)
            await asyncio.to_thread(is_over.wait, 30)

    in_threads(main, 2)
