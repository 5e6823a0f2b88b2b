"""Work beyond ``max_pending`` and ``key_max_pending`` is refused or dropped, and never lost."""

import asyncio
import random

import pytest

from ratelimited_executor import (
    BacklogFullError,
    RateLimitedExecutor,
    RetryLater,
    TaskDroppedError,
    TaskState,
    WhenFull,
)
from ratelimited_executor.orders import Fair
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.calendar import PLAIN_RANK
from ratelimited_executor._core.queue.records import Options
from ratelimited_executor._runtime.task.accounts import Accounts
from ratelimited_executor._runtime.limits.backlog import Backlog
from ratelimited_executor._runtime.limits.keys import KeyLimits

from ...core.world import CoreRecord, World
from ...helpers import now, seen, turns
from ...waiting import walk

DROPPING = [WhenFull.DROP_LOWEST, WhenFull.DROP_OLDEST]
OTHERS = [WhenFull.RAISE, WhenFull.WAIT]


# Refused.


@pytest.mark.parametrize("when_full", OTHERS)
async def test_call_beyond_the_limit_is_refused_and_changes_nothing(virtual_clock, account, when_full):
    """Every method that cannot wait raises an error with the numbers, and changes nothing."""
    async with RateLimitedExecutor("x", rate=0, max_pending=3, when_full=when_full, drain_timeout=0) as executor:
        executor.schedule_many(int, range(2))
        handle = executor.submit(int)
        before = executor.statistics()
        for call in (
            lambda: executor.submit(int),
            lambda: executor.schedule(int, delay=50),
            lambda: executor.execute(int),
            lambda: executor.call_soon(int),
            lambda: executor.call_later(5, int),
            lambda: executor.call_at(50, int),
            lambda: executor.schedule_many(int, [1]),
        ):
            with pytest.raises(BacklogFullError) as info:
                call()
            assert ("x", 3, 1, 3) == (info.value.name, info.value.waiting, info.value.asked, info.value.max_pending)
            assert "3 are already waiting" in str(info.value)
        with pytest.raises(BacklogFullError):
            await executor.invoke_all([int])
        threadsafe = executor.schedule_threadsafe(int)
        await turns()
        assert isinstance(threadsafe.exception(), BacklogFullError)
        if when_full is WhenFull.RAISE:
            with pytest.raises(BacklogFullError):
                await executor.acquire()
        assert before == executor.statistics()
        handle.cancel()
        executor.submit(int)
        account(executor)


async def test_key_beyond_its_limit_is_refused_alone(virtual_clock, account):
    """A key beyond its limit is refused until one of its tasks starts; others have room."""
    async with RateLimitedExecutor("x", rate=1, key_max_pending=2, drain_timeout=0) as executor:
        executor.submit(int)
        for _ in range(2):
            executor.submit(int, key="a")
        with pytest.raises(BacklogFullError, match="key 'a'") as info:
            executor.submit(int, key="a")
        assert (2, 1, 2) == (info.value.waiting, info.value.asked, info.value.max_pending)
        for key in (None, "b"):
            executor.submit(int, key=key)
        with pytest.raises(BacklogFullError):
            executor.schedule_many(int, range(3), key="c")
        executor.schedule_many(int, range(2), key="c")
        with pytest.raises(BacklogFullError):
            executor.submit(int, key="c")
        account(executor)
        await asyncio.sleep(1.5)
        executor.submit(int, key="a")
        account(executor)


async def test_items_of_one_key_count_together_whatever_they_cost(virtual_clock):
    """Items of one key count together: ten are refused where five may wait."""
    async with RateLimitedExecutor("x", rate=1, key_max_pending=5, drain_timeout=0) as executor:
        with pytest.raises(BacklogFullError):
            executor.schedule_many(int, range(10), key=lambda item: "a", cost=lambda item: 1 + item % 2)


async def test_lazy_batch_keeps_to_the_limit_of_its_key(virtual_clock):
    """A lazy batch draws items as its key has room."""
    async with RateLimitedExecutor("x", rate=1, key_max_pending=5, drain_timeout=0) as executor:
        executor.schedule_many(int, iter(range(100)), key="a")
        await asyncio.sleep(0.5)
        assert executor.statistics().waiting <= 5


async def test_tasks_due_by_the_wall_clock_count_for_their_key(virtual_clock):
    """Tasks due by the wall clock count for their key, however far ahead."""
    async with RateLimitedExecutor("x", key_max_pending=3, drain_timeout=0) as executor:
        for _ in range(3):
            executor.schedule(int, at=virtual_clock.wall() + 100, key="a")
        with pytest.raises(BacklogFullError):
            executor.schedule(int, at=virtual_clock.wall() + 100, key="a")


@pytest.mark.parametrize("when_full", WhenFull)
async def test_lazy_batch_draws_as_there_is_room(virtual_clock, account, when_full):
    """A lazy batch waits for room: no item is refused, dropped or lost."""
    done = []
    async with RateLimitedExecutor("x", rate=20, max_pending=4, when_full=when_full) as executor:
        batch = executor.schedule_many(done.append, iter(range(50)))
        for _ in range(10):
            await asyncio.sleep(0.1)
            assert executor.statistics().waiting <= 4
            account(executor)
        await batch
    assert list(range(50)) == done


@pytest.mark.parametrize("when_full", WhenFull)
async def test_map_goes_as_fast_as_there_is_room(virtual_clock, when_full):
    """A full backlog slows ``map`` down instead of failing it."""
    async with RateLimitedExecutor("x", rate=10, max_pending=3, when_full=when_full) as executor:
        assert list(range(30)) == [item async for item in executor.map(lambda item: item, range(30))]
        assert 2.5 < now() < 3.5


async def test_map_beside_those_who_wait_for_room(virtual_clock):
    """``map`` and other waiters for room both get their turns."""
    async with RateLimitedExecutor("x", rate=10, max_pending=2, when_full=WhenFull.WAIT, drain_timeout=0) as executor:

        async def other():
            for _ in range(10):
                await executor.schedule_wait(int)

        waiting = asyncio.create_task(other())
        assert list(range(20)) == [item async for item in executor.map(lambda item: item, range(20))]
        await waiting


# Dropped.


@pytest.mark.parametrize("when_full", DROPPING)
async def test_what_is_dropped_says_so(virtual_clock, account, when_full):
    """A dropped task is reported by state, error, waiters and statistics; the tasks that stay start."""
    async with RateLimitedExecutor("x", rate=0, max_pending=3, when_full=when_full) as executor:
        handles = [executor.submit(int, name=f"task {number}", priority=number) for number in range(3)]
        called = []
        for handle in handles:
            handle.add_done_callback(called.append)
        last = executor.submit(int, priority=9)
        account(executor)
        assert [TaskState.DROPPED, *[TaskState.WAITING] * 3] == [one.state for one in (*handles, last)]
        error = handles[0].exception()
        assert isinstance(error, TaskDroppedError)
        assert ("task 0", "max_pending is 3") == (error.name, error.reason)
        assert "task 0 was dropped: max_pending is 3" == str(error)
        with pytest.raises(TaskDroppedError):
            await handles[0]
        await turns()
        assert handles[:1] == called
        assert not handles[0].cancel()
        assert (4, 3, 1) == (
            executor.statistics().accepted,
            executor.statistics().waiting,
            executor.statistics().dropped,
        )
        executor.rate = 100
        assert [0, 0, 0] == await asyncio.gather(*handles[1:], last)


async def test_least_important_is_dropped_and_of_several_the_last_due(virtual_clock, account):
    """The least important task is dropped, possibly the new one; among equals, the one due last."""
    async with RateLimitedExecutor(
        "x", rate=0, max_pending=3, when_full=WhenFull.DROP_LOWEST, drain_timeout=0
    ) as executor:
        soon, later = executor.schedule(int, delay=5, priority=1), executor.schedule(int, delay=50, priority=1)
        high = executor.submit(int, priority=2)
        new = executor.submit(int)
        assert TaskState.DROPPED is new.state
        new = executor.schedule(int, delay=500, priority=1)
        assert TaskState.DROPPED is new.state
        mid = executor.schedule(int, delay=7, priority=1)
        assert TaskState.DROPPED is later.state
        account(executor)
        top = [executor.submit(int, priority=3) for _ in range(2)]
        assert [TaskState.DROPPED] * 2 == [soon.state, mid.state]
        assert [TaskState.WAITING] * 3 == [one.state for one in (high, *top)]
        account(executor)
        for handle in (new, later, soon, mid):
            seen(handle)


async def test_oldest_is_dropped_first(virtual_clock, account):
    """The task that has been due longest is dropped, whatever its importance."""
    async with RateLimitedExecutor(
        "x", rate=0, max_pending=2, when_full=WhenFull.DROP_OLDEST, drain_timeout=0
    ) as executor:
        handles = []
        for number in range(6):
            handles.append(executor.submit(int, priority=-number))
            await asyncio.sleep(1)
            account(executor)
            states = [one.state for one in handles]
            assert [TaskState.DROPPED] * max(0, number - 1) == states[:-2]
            assert TaskState.WAITING is states[-1]
        for handle in handles:
            if handle.done():
                seen(handle)


@pytest.mark.parametrize("when_full", DROPPING)
async def test_key_that_is_full_drops_its_own(virtual_clock, account, when_full):
    """A full key drops only its own tasks."""
    async with RateLimitedExecutor("x", rate=0, key_max_pending=2, when_full=when_full, drain_timeout=0) as executor:
        other = [executor.submit(int, key="b", priority=-9) for _ in range(2)]
        free = executor.submit(int, priority=-9)
        handles = [executor.submit(int, key="a", priority=number) for number in range(5)]
        account(executor)
        assert [TaskState.DROPPED] * 3 + [TaskState.WAITING] * 2 == [one.state for one in handles]
        assert {"key_max_pending is 2"} == {one.exception().reason for one in handles[:3]}
        assert [TaskState.WAITING] * 3 == [one.state for one in (*other, free)]
        assert (8, 5, 3) == (
            executor.statistics().accepted,
            executor.statistics().waiting,
            executor.statistics().dropped,
        )


@pytest.mark.parametrize("when_full", DROPPING)
async def test_tasks_due_by_the_wall_clock_are_dropped_like_others(virtual_clock, when_full):
    """Tasks due by the wall clock are dropped like others, so memory is bounded."""
    async with RateLimitedExecutor("x", max_pending=5, when_full=when_full, drain_timeout=0) as executor:
        for number in range(50):
            executor.schedule(int, at=virtual_clock.wall() + 100 + number).add_done_callback(seen)
        assert executor.statistics().waiting <= 5


@pytest.mark.parametrize("when_full", DROPPING)
async def test_batch_keeps_to_the_limit_of_its_key(virtual_clock, when_full):
    """A batch larger than the limit of its key is refused."""
    async with RateLimitedExecutor("x", rate=0, key_max_pending=5, when_full=when_full, drain_timeout=0) as executor:
        with pytest.raises(BacklogFullError):
            executor.schedule_many(int, range(10), key="a")


@pytest.mark.parametrize("when_full", DROPPING)
@pytest.mark.parametrize("way", ["batch", "execute", "call_later", "permit", "invoke_all", "threadsafe", "wait"])
async def test_every_way_in_drops_for_room(virtual_clock, account, when_full, way):
    """Every method drops tasks for room, also for tasks that cannot be dropped themselves."""
    async with RateLimitedExecutor("x", rate=0, max_pending=4, when_full=when_full, drain_timeout=0) as executor:
        handles = [executor.submit(int) for _ in range(4)]
        for handle in handles:
            handle.add_done_callback(seen)
        others = []

        async def hold():
            async with executor.permit():
                pass

        if way == "batch":
            executor.schedule_many(int, range(2))
        elif way == "execute":
            executor.execute(int)
            executor.call_soon(int)
        elif way == "call_later":
            executor.call_later(50, int)
            executor.call_at(50, int)
        elif way == "permit":
            others = [asyncio.create_task(hold()) for _ in range(2)]
        elif way == "invoke_all":
            others = [asyncio.create_task(executor.invoke_all([int, int]))]
        elif way == "threadsafe":
            futures = [executor.schedule_threadsafe(int) for _ in range(2)]
            assert len(futures) == 2
        else:
            others = [asyncio.create_task(executor.schedule_wait(int)) for _ in range(2)]
        await turns()
        account(executor)
        counts = executor.statistics()
        assert (6, 4, 2) == (counts.accepted, counts.waiting, counts.dropped)
        dropped = sum(one.state is TaskState.DROPPED for one in handles)
        assert 2 == dropped or (
            when_full is WhenFull.DROP_LOWEST and way in ("permit", "invoke_all", "threadsafe", "wait")
        )
        for other in others:
            other.cancel()
        results = await asyncio.gather(*others, return_exceptions=True)
        for result in results:
            if hasattr(result, "add_done_callback"):
                seen(result) if result.done() else result.add_done_callback(seen)


@pytest.mark.parametrize("when_full", DROPPING)
async def test_more_than_there_is_to_drop_is_refused_and_drops_nothing(virtual_clock, account, when_full):
    """A call is refused and drops nothing if dropping every task that may be dropped would not make room."""
    async with RateLimitedExecutor("x", rate=0, max_pending=4, when_full=when_full, drain_timeout=0) as executor:
        executor.submit(int)
        with pytest.raises(BacklogFullError):
            executor.schedule_many(int, range(5))
        assert (1, 0) == (executor.statistics().waiting, executor.statistics().dropped)
        executor.schedule_many(int, range(3))
        with pytest.raises(BacklogFullError):
            executor.schedule_many(int, range(2))
        assert 0 == executor.statistics().dropped
        handle = executor.submit(int)
        account(executor)
        assert 1 == executor.statistics().dropped
        executor.execute(int) if handle.state is TaskState.WAITING else executor.statistics()
        account(executor)


@pytest.mark.parametrize("way", ["execute", "call_soon", "batch"])
async def test_call_without_a_handle_drops_nothing_more_important(virtual_clock, way):
    """A call without a handle has priority 0: it is dropped or refused before more important tasks."""
    async with RateLimitedExecutor(
        "x", rate=0, max_pending=2, when_full=WhenFull.DROP_LOWEST, drain_timeout=0
    ) as executor:
        handles = [executor.submit(int, priority=5) for _ in range(2)]
        for handle in handles:
            handle.add_done_callback(seen)
        try:
            {"execute": executor.execute, "call_soon": executor.call_soon}.get(way, executor.schedule_many)(
                int, *(([0],) if way == "batch" else ())
            )
        except BacklogFullError:
            pass
        assert [TaskState.WAITING] * 2 == [handle.state for handle in handles]


async def test_waiter_for_a_permit_that_is_dropped_is_told(virtual_clock, account):
    """A dropped waiter for a permit raises the task's error, as does a limited function."""
    async with RateLimitedExecutor(
        "x", rate=0, max_pending=1, when_full=WhenFull.DROP_LOWEST, drain_timeout=0
    ) as executor:

        @executor.limited
        async def work():
            return 1

        tasks = [asyncio.create_task(executor.acquire(priority=-1)), asyncio.create_task(work())]
        await turns()
        executor.submit(int, priority=3)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [TaskDroppedError] * 2 == [type(result) for result in results]
        assert ["acquire", "work"] == [result.name.split(".")[-1] for result in results]
        account(executor)


@pytest.mark.parametrize("when_full", DROPPING)
async def test_accounting_closes_and_memory_is_bounded_whatever_is_dropped(virtual_clock, account, when_full):
    """Under random work of every kind the backlog stays within its limit, and so does the index."""
    rng = random.Random(3)
    async with RateLimitedExecutor(
        "x", rate=200, max_pending=50, key_max_pending=20, when_full=when_full, drain_timeout=0, order=Fair()
    ) as executor:
        handles = []
        for _ in range(300):
            for _ in range(rng.choice([1, 5, 20])):
                key, priority = rng.choice([None, "a", "b", "c", "d"]), rng.choice([0, 0, 1, 5])
                delay, expires = rng.choice([None, 0.2, 3.0]), rng.choice([None, None, 0.1])
                handle = executor.schedule(int, delay=delay, key=key, priority=priority, expires=expires)
                handle.add_done_callback(seen)
                handles.append(handle)
            if rng.random() < 0.3:
                rng.choice(handles).cancel()
            account(executor)
            assert executor.statistics().waiting <= 50
            for key in "abcd":
                assert executor._parts.backlog.key_count(key) <= 20
            await asyncio.sleep(rng.choice([0, 0.01, 0.1]))
        drops = executor._engine.queue.drops
        assert len(drops._all) <= 2 * 50 + 70
        counts = executor.statistics()
        assert counts.dropped > 100
        assert counts.dropped == sum(one.state is TaskState.DROPPED for one in handles)
        assert counts.done == sum(one.state is TaskState.DONE for one in handles)
    assert all(handle.done() for handle in handles)


@pytest.mark.parametrize("when_full", DROPPING)
async def test_task_that_is_tried_again_may_be_dropped(virtual_clock, account, when_full):
    """A retried task waits and can be dropped like any other."""

    def fail():
        raise RetryLater(after=10)

    async with RateLimitedExecutor("x", max_pending=1, when_full=when_full) as executor:
        handle = executor.submit(fail, priority=-1)
        await asyncio.sleep(0.1)
        assert (TaskState.WAITING, 1) == (handle.state, handle.attempts)
        executor.schedule(int, delay=20)
        account(executor)
        if when_full is WhenFull.DROP_LOWEST:
            assert isinstance(handle.exception(), TaskDroppedError)
        else:
            assert TaskState.DROPPED is handle.state
            seen(handle)
        assert 1 == executor.statistics().waiting


# The bounds alone, beside a queue without a shell.


class Bounds:
    """A backlog, its waiting tasks, and the tasks that were dropped."""

    def __init__(self, when_full=WhenFull.RAISE, **bounds) -> None:
        self.world = World(CoreRecord, rate=0)
        self.accounts = Accounts("x", None, self.world.queue)
        self.dropped: list[tuple[str, str]] = []
        self.backlog = Backlog(
            "x",
            max_pending=bounds.get("max_pending"),
            key_limits=KeyLimits(rate=None, concurrency=None, pending=bounds.get("pending"), count_max=9),
            when_full=when_full,
            queue=self.world.queue,
            accounts=self.accounts,
            drop=self._drop,
        )

    def _drop(self, record, reason) -> None:
        self.dropped.append((repr(record), reason))
        self.world.queue.cancel(record)
        self.accounts.counts[TaskState.DROPPED] += 1

    def add(self, name, *, key=None, priority=0) -> None:
        """Let a task wait, as a face does."""
        self.backlog.admit(1, key, priority)
        record = CoreRecord(name)
        record._options = Options(key=key, priority=priority)
        self.world.queue.add_immediate(record)
        self.accounts.accepted_count += 1

    @property
    def names(self) -> str:
        """The waiting tasks."""
        return "".join(sorted(repr(record) for _, record in walk(self.world.queue)))


def test_without_bounds_everything_may_wait():
    """Without limits every task may wait, and nothing is counted."""
    backlog = Bounds().backlog
    backlog.admit(10**12, "key", 0)
    assert (False, None) == (backlog.is_dropping, backlog.room)


def test_what_does_not_fit_is_refused_as_a_whole():
    """Several tasks at once are refused together, even if some would fit; the error has the numbers."""
    bounds = Bounds(max_pending=3)
    bounds.add("a")
    bounds.backlog.admit(2, None, 0)
    with pytest.raises(BacklogFullError) as caught:
        bounds.backlog.admit(3, None, 0)
    assert (1, 3, 3, None) == (caught.value.waiting, caught.value.asked, caught.value.max_pending, caught.value.key)
    assert "a" == bounds.names


def test_a_key_that_is_full_is_refused_and_no_other():
    """Only a full key is refused: a batch counts with its items, a task without a key counts for none."""
    bounds = Bounds(pending=2)
    bounds.add("a", key="k")
    batch = BatchSource(1, rank=PLAIN_RANK, name="b", owner=None, key="k")
    bounds.world.queue.add_batch(batch, joined=True)
    assert (2, 0) == (bounds.backlog.key_count("k"), bounds.backlog.key_count("other"))
    with pytest.raises(BacklogFullError) as caught:
        bounds.add("b", key="k")
    assert (2, 1, 2, "k") == (caught.value.waiting, caught.value.asked, caught.value.max_pending, caught.value.key)
    bounds.add("c", key="other")
    bounds.add("d")
    assert "acd" == "".join(name for name in bounds.names if name in "abcd")


@pytest.mark.parametrize(("when_full", "left"), [(WhenFull.DROP_LOWEST, "bcd"), (WhenFull.DROP_OLDEST, "bcd")])
def test_room_is_made_by_dropping_what_is_worth_least(when_full, left):
    """Each new task drops the least important one, with the limit as the reason."""
    bounds = Bounds(when_full, max_pending=3)
    for name, priority in (("a", 0), ("b", 5), ("c", 1)):
        bounds.add(name, priority=priority)
    assert [] == bounds.dropped
    bounds.add("d", priority=1)
    assert [("a", "max_pending is 3")] == bounds.dropped
    assert left == bounds.names


def test_nothing_is_dropped_for_what_is_less_important():
    """Nothing is dropped for less important tasks, nor for several of which only some would fit."""
    bounds = Bounds(WhenFull.DROP_LOWEST, max_pending=2)
    bounds.add("a", priority=5)
    bounds.add("b", priority=0)
    for count, priority in ((1, -1), (2, 1), (3, 9)):
        with pytest.raises(BacklogFullError):
            bounds.backlog.admit(count, None, priority)
    assert ([], "ab") == (bounds.dropped, bounds.names)


def test_a_key_makes_room_for_itself_and_that_counts_for_all():
    """Where both limits are reached, dropping one task of the key makes room for both."""
    bounds = Bounds(WhenFull.DROP_OLDEST, max_pending=3, pending=2)
    for name, key in (("a", "other"), ("b", "k"), ("c", "k")):
        bounds.add(name, key=key)
    bounds.add("d", key="k")
    assert [("b", "key_max_pending is 2")] == bounds.dropped
    assert "acd" == bounds.names


def test_what_has_come_in_by_another_way_is_dropped_down_to_the_bound():
    """Tasks that are not refused, such as retries, are dropped down to the limit afterwards."""
    bounds = Bounds(WhenFull.DROP_OLDEST, max_pending=2)
    bounds.add("a")
    bounds.add("b")
    bounds.world.queue.add_immediate(retried := CoreRecord("c"))
    assert None is not retried._place
    bounds.accounts.accepted_count += 1
    bounds.backlog.drop_excess(None)
    assert [("a", "max_pending is 2")] == bounds.dropped
    bounds.backlog.drop_excess(None)
    assert 1 == len(bounds.dropped)


async def test_who_need_not_wait_for_room_is_called_at_once():
    """Where a full backlog refuses, a call does not wait for room, and raises."""
    bounds = Bounds(max_pending=1)
    await bounds.backlog.in_turn(None, lambda: bounds.add("a"))
    with pytest.raises(BacklogFullError):
        await bounds.backlog.in_turn(None, lambda: bounds.add("b"))
    assert "a" == bounds.names
