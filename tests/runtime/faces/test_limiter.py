"""The limiter face: permits share order and law with tasks, and none is ever lost."""

import asyncio
import functools
import inspect

import pytest

from ratelimited_executor import (
    BacklogFullError,
    ExecutorStoppedError,
    RateLimitedExecutor,
    TaskExpiredError,
    TaskState,
)
from ratelimited_executor.insight import Hold
from ratelimited_executor.testing import audit

from ...helpers import now, now_rounded


async def test_permits_come_at_the_rate(virtual_clock, account):
    """Each ``async with`` takes one permit, and permits and tasks together obey the law."""
    starts = []

    async def use(executor):
        async with executor.permit():
            starts.append(now_rounded())

    async with RateLimitedExecutor("x", rate=10) as executor:
        waiters = [asyncio.ensure_future(use(executor)) for _ in range(10)]
        for _ in range(10):
            executor.call_later(0.05, lambda: starts.append(now_rounded()))
        await asyncio.sleep(0.5)
        account(executor)
        await asyncio.gather(*waiters)
    assert 20 == len(starts)
    assert [index / 10 for index in range(20)] == sorted(starts)
    assert audit(starts, 10).ok


async def test_permit_and_task_share_one_order(virtual_clock):
    """A waiter starts before tasks of lower priority, and after those of higher priority."""
    log = []

    async def use(executor, name, priority):
        async with executor.permit(priority=priority):
            log.append(name)

    async with RateLimitedExecutor("x", rate=1) as executor:
        executor.pause()
        executor.submit(log.append, "task 0")
        executor.submit(log.append, "task 2", priority=2)
        waiters = [asyncio.ensure_future(use(executor, f"permit {p}", p)) for p in (0, 1, 3)]
        await asyncio.sleep(1)
        executor.resume()
        await asyncio.gather(*waiters)
    assert ["permit 3", "task 2", "permit 1", "task 0", "permit 0"] == log


async def test_held_permit_counts_as_running_until_it_is_left(virtual_clock, account):
    """The body is a running task that takes a place, and it ends with the body, done or failed."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        permit = executor.permit(name="mine")
        assert None is permit.handle
        async with permit as handle:
            assert handle is permit.handle
            assert (TaskState.RUNNING, 1, 0) == (
                handle.state,
                executor.statistics().running,
                executor.statistics().waiting,
            )
            account(executor)
            task = executor.submit(int)
            await asyncio.sleep(1)
            assert Hold.CONCURRENCY is executor.explain(task).hold
        assert TaskState.DONE is handle.state
        await task
        with pytest.raises(ValueError, match="body"):
            async with executor.permit() as handle:
                raise ValueError("body")
        assert TaskState.FAILED is handle.state
        assert 1 == executor.statistics().failed
        account(executor)


async def test_permit_is_entered_once(virtual_clock):
    """Entering a permit twice is an error; each use needs a permit of its own."""
    async with RateLimitedExecutor("x") as executor:
        permit = executor.permit()
        async with permit:
            pass
        with pytest.raises(RuntimeError, match="can be entered only once"):
            async with permit:
                pass


async def test_acquire_takes_no_place_afterwards(virtual_clock):
    """``await acquire()`` uses up a permit and takes no place, and its task is done at once."""
    async with RateLimitedExecutor("x", rate=2, max_concurrency=1) as executor:
        for expected in (0.0, 0.5, 1.0):
            await executor.acquire()
            assert expected == now_rounded()
        assert (3, 0) == (executor.statistics().done, executor.statistics().running)


async def test_limited_calls_wait_for_a_permit_each(virtual_clock):
    """Each call waits for a permit, and the function keeps its name, arguments and results."""
    async with RateLimitedExecutor("x", rate=1) as executor:

        @executor.limited
        async def fetch(number, *, factor=2):
            """Fetch."""
            return number * factor, now_rounded()

        assert ("fetch", "Fetch.") == (fetch.__name__, fetch.__doc__)
        assert [(2, 0.0), (6, 1.0), (12, 2.0)] == await asyncio.gather(fetch(1), fetch(2, factor=3), fetch(6))


async def test_cancelled_waiter_uses_no_permit(virtual_clock, account):
    """The permit that a cancelled waiter would have had goes to the next one."""

    async def use(executor):
        async with executor.permit():
            return now_rounded()

    async with RateLimitedExecutor("x", rate=1) as executor:
        waiters = [asyncio.ensure_future(use(executor)) for _ in range(4)]
        await asyncio.sleep(0.5)
        waiters[1].cancel()
        await asyncio.sleep(0)
        account(executor)
        assert 1 == executor.statistics().cancelled
        assert [0.0, 1.0, 2.0] == [await waiters[index] for index in (0, 2, 3)]


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
async def test_cancellation_that_races_with_the_grant_loses_no_place(virtual_clock, account, before):
    """Whether the cancellation comes before, with or after the grant, the place is free again and the counts close."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:

        async def use():
            async with executor.permit():
                await asyncio.sleep(100)

        waiter = asyncio.ensure_future(use())
        for _ in range(before):
            await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await asyncio.sleep(0)
        account(executor)
        assert 0 == executor.statistics().running
        async with asyncio.timeout(1):
            await executor.acquire()


async def test_cancelled_in_the_turn_of_the_grant(virtual_clock, account):
    """A waiter cancelled at the very instant of its permit, or just before or after it, ends once."""
    async with RateLimitedExecutor("x", rate=1, max_concurrency=1) as executor:
        await executor.acquire()
        loop = asyncio.get_running_loop()
        for offset in (-1e-9, 0.0, 1e-9):
            waiter = asyncio.ensure_future(executor.acquire())
            await asyncio.sleep(0)
            base = asyncio.get_running_loop().time()
            when = float(int(base) + 1)
            loop.call_at(when + offset, waiter.cancel)
            await asyncio.wait([waiter])
            await asyncio.sleep(0.2)
            account(executor)
            assert 0 == executor.statistics().running + executor.statistics().waiting


async def test_permit_that_expires_raises(virtual_clock, account):
    """Entering raises after ``expires`` seconds of waiting, at most one interval late."""
    async with RateLimitedExecutor("x", rate=0.1) as executor:
        await executor.acquire()
        with pytest.raises(TaskExpiredError, match="within 2 s"):
            await executor.acquire(expires=2)
        assert 2 <= now_rounded() <= 3
        assert 1 == executor.statistics().expired
        account(executor)
        await executor.acquire(expires=30)


async def test_waiter_sees_the_executor_close(virtual_clock):
    """Closing cancels waiters, but a permit in use ends with its body."""
    async with RateLimitedExecutor("x", rate=1, drain_timeout=0) as executor:
        async with executor.permit():

            async def use():
                async with executor.permit():
                    pass

            waiter = asyncio.ensure_future(use())
            await asyncio.sleep(0.1)
            executor.shutdown(cancel_pending=True)
            await asyncio.sleep(0.1)
            assert waiter.cancelled()
        assert await executor.await_termination(20)
        assert (0, 0) == (executor.statistics().waiting, executor.statistics().running)


async def test_drain_waits_for_a_held_permit(virtual_clock):
    """Leaving the executor's context waits until the body of a permit has ended."""

    async def use(executor):
        async with executor.permit():
            await asyncio.sleep(5)
            return now_rounded()

    async with RateLimitedExecutor("x") as executor:
        holder = asyncio.ensure_future(use(executor))
        await asyncio.sleep(1)
    assert 5.0 == now_rounded() == await holder


# Races in which a permit could be lost.


async def hold(executor, seconds: float, log: list | None = None, **options) -> None:
    async with executor.permit(**options):
        if log is not None:
            log.append(now())
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("rate", [1, 7, "1/3s", 333])
@pytest.mark.parametrize("way", ["permit", "acquire", "limited", "mixed"])
async def test_entries_keep_the_law(virtual_clock, audit, rate, way):
    """Entries of any kind are starts, and together they obey the law."""
    log = []
    async with RateLimitedExecutor("x", rate=rate) as executor:

        @executor.limited
        async def limited():
            log.append(now())

        async def acquire():
            await executor.acquire()
            log.append(now())

        ways = {"permit": lambda: hold(executor, 0, log), "acquire": acquire, "limited": limited}
        chosen = [ways[way]] if way != "mixed" else list(ways.values())
        for _ in range(4):
            await asyncio.gather(*(chosen[n % len(chosen)]() for n in range(10)))
            await asyncio.sleep(0.7)
    assert 40 == len(log)
    assert audit(log, rate).ok


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyError])
async def test_body_that_raises_gives_its_place_back(virtual_clock, account, handler, error):
    """The exception reaches the caller only; the task is failed or cancelled, and its place is free again."""
    reports = handler()
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        with pytest.raises(error, match="why"):
            async with executor.permit():
                assert 1 == executor.statistics().running
                raise error("why")
        assert 0 == executor.statistics().running
        await asyncio.wait_for(executor.acquire(), 1)
        counts = executor.statistics()
        is_cancelled = error is asyncio.CancelledError
        assert (1, not is_cancelled, is_cancelled) == (counts.done, counts.failed, counts.cancelled)
        account(executor)
    assert [] == reports


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("concurrency", [None, 1])
async def test_cancelling_around_the_grant_leaves_nothing_behind(virtual_clock, account, turns, concurrency):
    """In whichever turn around the grant the cancellation comes, the next waiter enters and the counts close."""
    async with RateLimitedExecutor("x", rate=10, max_concurrency=concurrency) as executor:
        await executor.acquire()
        first, second = (asyncio.create_task(hold(executor, 5)) for _ in range(2))
        await asyncio.sleep(0.0999999)
        while executor.statistics().started < 2 and now() < 0.1001:
            await asyncio.sleep(1e-7)
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        account(executor)
        await asyncio.sleep(0.5)
        assert 1 == executor.statistics().running
        await second
        account(executor)
    counts = executor.statistics()
    assert (3, 0, 0) == (counts.accepted, counts.waiting, counts.running)
    assert 3 == counts.done + counts.cancelled


async def test_thousand_cancelled_waiters_take_no_permits(virtual_clock, account):
    """A thousand cancelled waiters use no permit: the one that stays gets the first."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        await executor.acquire()
        tasks = [asyncio.create_task(hold(executor, 0)) for _ in range(1000)]
        await asyncio.sleep(0.5)
        for task in tasks[:-1]:
            task.cancel()
        await asyncio.wait(tasks)
        assert 1 == pytest.approx(now())
        account(executor)
        assert 999 == executor.statistics().cancelled


@pytest.mark.parametrize("way", ["permit", "acquire"])
async def test_waiter_expires_within_an_interval_and_takes_nothing(virtual_clock, account, way):
    """An expired waiter gets ``TaskExpiredError`` with its name and its seconds, and uses no permit."""
    async with RateLimitedExecutor("x", rate="1/10s") as executor:
        await executor.acquire()
        with pytest.raises(TaskExpiredError, match=r"patience .* 2 s") as info:
            await (
                hold(executor, 0, expires=2, name="patience")
                if way == "permit"
                else executor.acquire(expires=2, name="patience")
            )
        assert isinstance(info.value, TimeoutError)
        assert 2 <= now() < 3.1
        await executor.acquire(expires=60)
        assert 10 == pytest.approx(now())
        assert (2, 1) == (executor.statistics().done, executor.statistics().expired)
        account(executor)


async def test_expiry_counts_from_the_entry_not_from_the_making(virtual_clock):
    """The time of ``expires`` starts when the permit is entered, not when it is made."""
    async with RateLimitedExecutor("x", rate="1/4s") as executor:
        permit = executor.permit(expires=5)
        await executor.acquire()
        await asyncio.sleep(6)
        async with permit as handle:
            assert 8 >= now()
            assert TaskState.RUNNING is handle.state
        assert TaskState.DONE is handle.state


async def test_more_important_waiters_go_first(virtual_clock):
    """A larger priority goes first, and equal ones go in the order in which they came."""
    log = []

    async def wait(executor, name, priority):
        await executor.acquire(priority=priority, name=name)
        log.append(name)

    async with RateLimitedExecutor("x", rate=5) as executor:
        await executor.acquire()
        async with asyncio.TaskGroup() as group:
            for name, priority in (("a", 0), ("b", 1), ("c", -1), ("d", 1), ("e", 0)):
                group.create_task(wait(executor, name, priority))
    assert list("bdaec") == log


async def test_places_bound_bodies_and_tasks_together(virtual_clock, account):
    """Bodies and tasks share ``max_concurrency``, and no permit is used while every place is taken."""
    peak = 0
    running = 0

    async def body():
        nonlocal peak, running
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(1)
        running -= 1

    async def held(executor):
        async with executor.permit():
            await body()

    async with RateLimitedExecutor("x", max_concurrency=3, rate=100) as executor:
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(held(executor))
                executor.submit(body)
        account(executor)
    assert 3 == peak
    assert 4 == pytest.approx(now(), abs=0.1)


async def test_acquire_takes_no_place(virtual_clock):
    """``acquire`` takes no place, so that repeated calls succeed with a single one."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        for _ in range(10):
            await asyncio.wait_for(executor.acquire(), 1)
        assert 0 == executor.statistics().running


async def test_limited_keeps_the_face_of_its_function(virtual_clock):
    """A limited function or method keeps its name, docstring, signature, results and exceptions."""
    async with RateLimitedExecutor("x", rate=10) as executor:

        class Client:
            @executor.limited
            async def get(self, url: str, *, retries: int = 3) -> str:
                """Get it."""
                if retries < 0:
                    raise ValueError(retries)
                return f"{url} {retries}"

        assert ("get", "Get it.") == (Client.get.__name__, Client.get.__doc__)
        assert ["self", "url", "retries"] == list(inspect.signature(Client.get).parameters)
        assert inspect.iscoroutinefunction(Client.get)
        assert "a 5" == await Client().get("a", retries=5)
        with pytest.raises(ValueError, match="-1"):
            await Client().get("a", retries=-1)
        counts = executor.statistics()
        assert (1, 1) == (counts.done, counts.failed)


async def test_limited_takes_partials_of_async_functions(virtual_clock):
    """A partial of an async function is accepted as an async one."""

    async def work(a, b):
        return a + b

    async with RateLimitedExecutor("x") as executor:
        assert 3 == await executor.limited(functools.partial(work, 1))(2)


async def test_limited_may_decorate_before_the_start(virtual_clock):
    """A module may decorate when it is imported; calls work once the executor has started, and fail after its end."""
    executor = RateLimitedExecutor("x", rate=1)

    @executor.limited
    async def work():
        return now()

    async with executor:
        assert [0, 1] == pytest.approx([await work(), await work()])
    with pytest.raises(ExecutorStoppedError):
        await work()


async def test_permit_asks_for_admission_when_it_is_entered(virtual_clock):
    """A permit made earlier is refused if the backlog is full or the executor has ended when it is entered."""
    executor = RateLimitedExecutor("x", rate="1/min", max_pending=1, drain_timeout=0)
    async with executor:
        await executor.acquire()
        early, late = executor.permit(), executor.permit()
        executor.submit(int)
        with pytest.raises(BacklogFullError):
            await early.__aenter__()
    with pytest.raises(ExecutorStoppedError):
        await late.__aenter__()
    assert 2 == executor.statistics().accepted


async def test_paused_executor_holds_waiters_and_lets_bodies_finish(virtual_clock):
    """A pause holds waiters back, while bodies that have begun continue."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        inside = asyncio.create_task(hold(executor, 3, log))
        await asyncio.sleep(1)
        executor.pause()
        outside = asyncio.create_task(hold(executor, 1, log))
        await inside
        await asyncio.sleep(2)
        assert [0] == log
        executor.resume()
        await outside
    assert [0, 5] == log


async def test_timeout_around_a_permit_bounds_the_wait(virtual_clock, account):
    """``asyncio.timeout`` around a permit ends the wait, and no waiter is left."""
    async with RateLimitedExecutor("x", rate="1/min") as executor:
        await executor.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await hold(executor, 0)
        assert 3 == now()
        account(executor)
        assert 0 == executor.statistics().waiting


async def test_handle_of_a_waiter_can_be_cancelled(virtual_clock):
    """Cancelling the handle of a permit cancels the task that waits for it."""
    async with RateLimitedExecutor("x", rate="1/min") as executor:
        await executor.acquire()
        permit = executor.permit()
        task = asyncio.create_task(permit.__aenter__())
        await asyncio.sleep(1)
        permit.handle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 1 == executor.statistics().cancelled
