"""A permit of a group is checked again when the user's code begins: threads, waiters and late coroutines."""

import asyncio
import concurrent.futures
from contextlib import asynccontextmanager

import pytest

from ratelimited_executor import Burst, ExecutorManager, TaskState, Window
from tests.peers.ticket_group import Server, most_in

pytestmark = pytest.mark.virtual_time

READY = 4.0  # by then the group has granted its first permits


class HeldPool(concurrent.futures.Executor):
    """A pool without threads: calls wait until the test runs them, on the loop's thread, in virtual time."""

    def __init__(self) -> None:
        self.calls: list = []

    def submit(self, fn, /, *args, **kwargs):
        """Keep a call."""
        future: concurrent.futures.Future = concurrent.futures.Future()
        self.calls.append((future, fn, args))
        return future

    def run(self, count: int = 10**9) -> None:
        """Make the oldest calls, at this instant."""
        calls, self.calls = self.calls[:count], self.calls[count:]
        for future, fn, args in calls:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args))
                except BaseException as error:
                    future.set_exception(error)


@asynccontextmanager
async def executor_of(*, together: bool = True, **settings):
    """Start an executor, in a group of one process unless alone."""
    async with ExecutorManager(peers=Server(1).peers(0) if together else None) as manager:
        executor = manager.executor("x", drain_timeout=0, **settings)
        yield executor
        await executor.shutdown(cancel_pending=True)


LIMITS = [
    pytest.param({"rate": "10/s"}, id="pace"),
    pytest.param({"rate": "10/s", "policy": Window()}, id="window"),
    pytest.param({"rate": "10/s, 80/10s"}, id="rates"),
    pytest.param({"rate": "100/s", "key_rate": "10/s", "policy": Window()}, id="key"),
    pytest.param({"rate": "1000/s", "policy": Window(), "resources": {"tokens": "10/s"}}, id="resource"),
]


def most_in_second(starts: list[tuple[float, int]]) -> int:
    """Return the most starts in any second, to the microsecond: loop time has rounding errors."""
    return most_in([(round(time * 1e6), cost) for time, cost in starts], 1_000_000)


def options_of(settings: dict) -> dict:
    """Return the options of a task that is limited to 10 a second."""
    return ({"key": "k"} if "key_rate" in settings else {}) | (
        {"cost": {"tokens": 1}} if "resources" in settings else {}
    )


@pytest.mark.parametrize("together", [True, False], ids=["group", "alone"])
@pytest.mark.parametrize("settings", LIMITS)
async def test_calls_that_waited_for_a_thread_hold_the_limit(settings, together) -> None:
    """Threads that become free all at once begin no more calls in a second than the limit, and lose none."""
    pool, loop, starts = HeldPool(), asyncio.get_running_loop(), []
    async with executor_of(together=together, thread_pool=pool, **settings) as executor:
        handles = [
            executor.submit(lambda: starts.append((loop.time(), 1)), in_thread=True, **options_of(settings))
            for _ in range(120)
        ]
        await asyncio.sleep(READY + 8)
        for _ in range(40_000):  # from now on, a thread is free each millisecond
            pool.run()
            await asyncio.sleep(0.001)
            if len(starts) == 120:
                break
        await asyncio.gather(*handles)
        statistics = executor.statistics()
        assert most_in_second(starts) <= 10
        assert (120, 120, 120, 0) == (len(starts), statistics.started, statistics.done, statistics.running)
        assert {1} == {handle.attempts for handle in handles}


async def test_call_whose_permit_lapsed_waits_at_its_place() -> None:
    """Calls that waited in vain begin before those submitted after them, and are counted as lapsed, not as started."""
    pool, order = HeldPool(), []
    async with executor_of(rate="10/s", policy=Window(), thread_pool=pool) as executor:
        first = executor.submit(order.append, "first", in_thread=True)
        await asyncio.sleep(READY)
        assert (TaskState.RUNNING, 1) == (first.state, executor.statistics().started)
        for number in range(20):
            executor.submit(order.append, number, in_thread=True)
        executor.submit(order.append, "urgent", in_thread=True, priority=1)
        pool.run()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (TaskState.WAITING, []) == (first.state, order)
        assert 0 == executor.statistics().started
        for _ in range(4000):
            await asyncio.sleep(0.001)
            pool.run()
        assert ["urgent", "first", *range(20)] == order
        fleet = executor.statistics().fleet
        assert fleet.lapsed >= 1
        assert fleet.taken == 22


async def test_lapsed_call_is_cancelled_as_a_waiting_one() -> None:
    """A call that waits anew can be cancelled, and never begins."""
    pool, log = HeldPool(), []
    async with executor_of(rate="10/s", policy=Window(), thread_pool=pool) as executor:
        handle = executor.submit(log.append, "begun", in_thread=True)
        await asyncio.sleep(READY)
        pool.run()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert handle.cancel()
        for _ in range(500):
            await asyncio.sleep(0.001)
            pool.run()
        assert ([], TaskState.CANCELLED) == (log, handle.state)
        assert 0 == executor.statistics().waiting


async def test_closing_ends_a_lapsed_call() -> None:
    """A call that finds its permit lapsed in a closing executor ends as cancelled."""
    pool, log = HeldPool(), []
    async with executor_of(rate="10/s", policy=Window(), thread_pool=pool) as executor:
        handle = executor.submit(log.append, "begun", in_thread=True)
        await asyncio.sleep(READY)
        executor.shutdown(cancel_pending=True)
        pool.run()
        await asyncio.wait([handle])
        assert ([], TaskState.CANCELLED) == (log, handle.state)


async def test_repetition_in_a_thread_runs_as_often_as_said() -> None:
    """A run of a repetition whose permit lapsed is made up for, and counts once."""
    pool, runs = HeldPool(), []
    async with executor_of(rate="10/s", policy=Window(), thread_pool=pool) as executor:
        repeating = executor.schedule_at_fixed_rate(lambda: runs.append(1), period=1, max_runs=3, in_thread=True)
        await asyncio.sleep(READY)
        for _ in range(8000):
            pool.run()
            await asyncio.sleep(0.001)
        await repeating
        assert 3 == len(runs)


async def hold_up_after_starts(executor, seconds: float) -> None:
    """Every two seconds, let the loop stand still between a burst of starts and their first lines."""
    loop = asyncio.get_running_loop()
    while True:
        await executor.submit(loop.call_soon, loop.block_for, seconds, priority=1)
        await asyncio.sleep(2)


@pytest.mark.parametrize(("policy", "most"), [(Window(), 10), (Burst(5), 15)], ids=["window", "burst"])
async def test_waiters_that_the_loop_held_up_hold_the_limit(policy, most) -> None:
    """Waiters that resume long after their grant enter no more bodies in a second than the limit."""
    loop, starts = asyncio.get_running_loop(), []
    async with executor_of(rate="10/s", policy=policy) as executor:

        async def user() -> None:
            while True:
                async with executor.permit():
                    starts.append((loop.time(), 1))

        users = [asyncio.ensure_future(user()) for _ in range(40)]
        users.append(asyncio.ensure_future(hold_up_after_starts(executor, 0.9)))
        await asyncio.sleep(READY + 20)
        for each in users:
            each.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        statistics = executor.statistics()
        assert most_in_second(starts) <= most
        assert 60 <= len(starts) <= statistics.started
        assert (0, 0) == (statistics.waiting, statistics.running)


async def test_waiter_whose_permit_lapsed_waits_before_others() -> None:
    """A waiter that was held up for longer than its permit lasts gets the next one, before a waiter after it."""
    loop, order = asyncio.get_running_loop(), []

    async def user(name: str) -> None:
        async with executor.permit():
            order.append(name)

    async with executor_of(rate="10/s", policy=Window()) as executor:
        await asyncio.sleep(READY)
        executor.submit(loop.call_soon, loop.block_for, 0.5, priority=1)  # between the grant and the waiter's turn
        users = [asyncio.ensure_future(user("first"))]
        loop.call_later(0.1, lambda: users.append(asyncio.ensure_future(user("second"))))
        await asyncio.sleep(3)
        await asyncio.gather(*users)
        assert ["first", "second"] == order
        assert executor.statistics().fleet.lapsed >= 1
        assert 3 == executor.statistics().started


async def test_held_up_waiter_that_is_cancelled_leaves_nothing() -> None:
    """A waiter cancelled after its permit lapsed leaves no place taken."""
    loop = asyncio.get_running_loop()

    async def user() -> None:
        async with executor.permit():
            raise AssertionError

    async with executor_of(rate="10/s", policy=Window(), max_concurrency=1) as executor:
        await asyncio.sleep(READY)
        executor.submit(loop.call_soon, lambda: (loop.block_for(0.5), waiter.cancel()), priority=1)
        waiter = asyncio.ensure_future(user())
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        assert await executor.submit(lambda: True)
        assert (0, 0) == (executor.statistics().waiting, executor.statistics().running)


async def test_coroutines_that_a_task_factory_delays_hold_the_limit() -> None:
    """Coroutines whose first step comes long after their start begin no more often than the limit, each once."""
    loop, starts = asyncio.get_running_loop(), []

    async def body(number: int) -> int:
        starts.append((loop.time(), 1))
        return number

    async with executor_of(rate="10/s", policy=Window()) as executor:
        loop.set_task_factory(lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))
        try:
            disturber = asyncio.ensure_future(hold_up_after_starts(executor, 0.9))
            handles = [executor.submit(body, number) for number in range(60)]
            assert [*range(60)] == await asyncio.gather(*handles)
        finally:
            loop.set_task_factory(None)
        disturber.cancel()
        assert most_in_second(starts) <= 10
        assert {1} == {handle.attempts for handle in handles}
        assert executor.statistics().fleet.lapsed >= 10


async def test_cancelled_coroutine_that_lapsed_is_closed() -> None:
    """A coroutine that waits anew after its start lapsed is closed if its task is cancelled."""
    loop, log = asyncio.get_running_loop(), []

    async def body() -> None:
        log.append("begun")

    def hold_up() -> None:
        loop.block_for(0.9)
        loop.call_soon(lambda: log.append((handle.state, handle.cancel())))

    async with executor_of(rate="10/s", policy=Window()) as executor:
        loop.set_task_factory(lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))
        try:
            await asyncio.sleep(READY)
            executor.submit(loop.call_soon, hold_up, priority=1)
            handle = executor.submit(body)
            await asyncio.wait([handle])
        finally:
            loop.set_task_factory(None)
    assert [(TaskState.WAITING, True)] == log
