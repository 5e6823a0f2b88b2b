"""Defects found by attacks on the executor, one test each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from ratelimited_executor import Rate, RateLimitedExecutor, TaskState
from ratelimited_executor.orders import earliest_due_first, latest_due_first

from ..kinds import each_policy


class _Holey(Sequence):
    """Items of which one cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index):
        if index == 2:
            raise KeyError(index)
        return index


async def test_an_item_that_cannot_be_had_fails_its_own_task_alone(virtual_clock, handler, account):
    """An item that cannot be read fails only its own task: the others run, and leaving does not wait for it."""
    reports = handler()
    seen: list[int] = []
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(seen.append, _Holey(), delay=1)
        await asyncio.sleep(2)
        account(executor)
    assert seen == [0, 1, 3, 4]
    assert batch.summary.failed == 1
    assert [type(report["exception"]) for report in reports] == [KeyError]
    assert virtual_clock.monotonic() == 2


async def test_the_permit_of_an_extremely_low_rate_is_beyond_all_times(virtual_clock, account):
    """A permit in 1e300 seconds lets one task start, and raises no error."""
    seen: list[int] = []
    async with RateLimitedExecutor("x", rate=Rate(1, per=1e300), drain_timeout=1) as executor:
        for number in range(3):
            executor.submit(seen.append, number)
        await asyncio.sleep(10)
        assert seen == [0]
        account(executor)


@pytest.mark.real_time("worker threads are real")
async def test_overlapping_runs_in_threads_are_placed_on_the_loop():
    """The next occurrence is never scheduled by the worker thread of the previous one."""
    threads = set()
    async with RateLimitedExecutor("x") as executor:
        engine, add = executor._engine, executor._engine.add

        def watched(*args, **options):
            threads.add(threading.current_thread())
            add(*args, **options)

        engine.add = watched
        workers = set()
        repeating = executor.schedule_at_fixed_rate(
            lambda: workers.add(threading.current_thread()), period=0.02, in_thread=True, allow_overlap=True, max_runs=5
        )
        await repeating
    assert threads == {threading.main_thread()}
    assert threading.main_thread() not in workers


async def test_an_order_may_look_at_the_executor(virtual_clock, account):
    """An order that asks for an explanation, which continues the re-keying, loses no task."""
    done: list[int] = []
    async with RateLimitedExecutor("x", rate=100) as executor:
        handles = [executor.schedule(done.append, number, delay=1.5) for number in range(800)]
        handles += [executor.submit(done.append, number) for number in range(700)]
        await asyncio.sleep(1.6)

        def order(task):
            if task.arrival % 100 == 0:
                executor.explain(handles[-1])
            return task.due

        executor.order = order
        account(executor)
    assert len(done) == 1500


async def test_an_order_that_sets_another_order_loses_no_task(virtual_clock, account):
    """A task whose key is being evaluated while the order is changed moves to the order in force."""
    done: list[int] = []
    async with RateLimitedExecutor("x", rate=100) as executor:
        for number in range(200):
            executor.schedule(done.append, number, delay=1.5)
            executor.call_later(1.5, done.append, number)
        await asyncio.sleep(1.6)

        def order(task):
            executor.order = latest_due_first
            return task.due

        executor.order = order
        account(executor)
    assert sorted(done) == sorted([*range(200)] * 2)


async def test_a_batch_in_an_order_of_ones_own_becomes_ready_in_slices(virtual_clock):
    """A batch in a custom order becomes ready in several loop iterations, since each key costs a call."""
    keys = worst = 0

    def order(task):
        nonlocal keys
        keys += 1
        return earliest_due_first(task)

    async with RateLimitedExecutor("x", rate=1, order=order, drain_timeout=0) as executor:
        executor.schedule_many(int, range(20_000), delay=0.3)
        await asyncio.sleep(0.3)
        before = 0
        while keys < 20_000:
            await asyncio.sleep(0)
            worst = max(worst, keys - before)
            before = keys
    assert worst <= 5000


async def test_a_lazy_batch_in_long_intervals_does_not_wait_for_room_for_long(virtual_clock):
    """A lazy batch uses the room of its own ended tasks at once, whatever the interval."""
    async with RateLimitedExecutor("x", max_pending=10) as executor:
        await executor.schedule_many(int, iter(range(1000)))
        assert virtual_clock.monotonic() == 0


async def test_the_iterator_of_a_lazy_batch_that_is_cancelled_is_no_end(virtual_clock):
    """A cancellation in an iterator that nobody asked for reaches the awaiters, not a short summary."""

    async def items():
        yield 1
        raise asyncio.CancelledError

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(int, items())
        await asyncio.sleep(1)
        with pytest.raises(asyncio.CancelledError):
            await batch


async def test_deadlines_keep_nothing_of_what_has_started(virtual_clock):
    """The index of deadlines holds only waiting tasks, however far ahead the others' deadlines are."""
    async with RateLimitedExecutor("x") as executor:
        for _ in range(1000):
            executor.submit(int, expires=3600)
        kept = executor.schedule(int, delay=10, expires=3600)
        await asyncio.sleep(5)
        index = executor._engine.queue.expiry
        assert sum(map(len, index._intervals.values())) == 1
        kept.cancel()
        assert sum(map(len, index._intervals.values())) == 0


async def test_tasks_of_a_task_factory_run_while_they_take_their_first_step(virtual_clock, account):
    """The accounting closes within the eager first step of a task made by a factory."""
    factory = getattr(asyncio, "eager_task_factory", None)
    if factory is None:
        pytest.skip("eager tasks came with 3.12")

    async def look():
        account(executor)

    async with RateLimitedExecutor("x") as executor:
        asyncio.get_running_loop().set_task_factory(factory)
        handle = executor.submit(look)
        await handle
        assert handle.state is TaskState.DONE


async def test_a_lazy_batch_costs_the_same_per_item_however_many_wait(virtual_clock):
    """An item joins the running interval and is read once, however many others wait."""
    from ratelimited_executor._kernel.batches import RisingOrder

    looks = 0
    head = RisingOrder.head

    def counted(self):
        nonlocal looks
        looks += 1
        return head(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RisingOrder, "head", counted)
        async with RateLimitedExecutor("x") as executor:
            await executor.schedule_many(int, iter(range(5000)))
    assert looks < 20 * 5000


async def test_tasks_that_join_a_full_instant_do_not_have_it_sorted_at_once(virtual_clock):
    """Tasks that join a full instant start in due order and arrival while it is sorted in steps."""
    order: list[int] = []
    async with RateLimitedExecutor("x") as executor:
        loop = asyncio.get_running_loop()
        for number in range(20_000):
            executor.call_at(loop.time() + 1.5, order.append, number)
        await asyncio.sleep(1.4999)
        executor.call_at(loop.time() + 0.0001, order.append, 20_000)
        executor.call_at(loop.time() + 0.00005, order.append, -1)
        await asyncio.sleep(0.0001)
        executor.call_at(loop.time() + 0.0001, order.append, 20_001)
    assert order == [*range(-1, 20_002)]


async def test_cancelling_a_ready_batch_is_no_walk_over_its_items(virtual_clock, account):
    """The first task behind a cancelled batch of 100,000 is found without a walk over its items."""
    looks = 0
    done: list[int] = []
    async with RateLimitedExecutor("x", rate=1) as executor:
        batch = executor.schedule_many(done.append, range(100_000), delay=0.5)
        await asyncio.sleep(1.1)
        executor.schedule_many(done.append, [-1], delay=0.1)
        await asyncio.sleep(0.5)
        source = next(iter(batch._parts))
        with pytest.MonkeyPatch.context() as patch:
            is_waiting = type(source).is_waiting

            def counted(self, position):
                nonlocal looks
                looks += 1
                return is_waiting(self, position)

            patch.setattr(type(source), "is_waiting", counted)
            batch.cancel()
            await asyncio.sleep(2)
        account(executor)
    assert done[-1] == -1
    assert looks < 100


async def test_a_cancelled_batch_of_delays_keeps_nothing_until_its_intervals_come(virtual_clock):
    """A cancelled batch with delays frees its due times and positions at once."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        calendar = executor._engine.queue.spread
        kept = executor.schedule_many(int, range(3), delays=[20.0, 30.0, 40.0])
        for _ in range(10):
            executor.schedule_many(int, range(100), delays=[10.0 + number for number in range(100)]).cancel()
        assert sum(map(len, calendar.parcels.values())) == 1
        assert kept.open_count == 3


async def test_what_was_cancelled_wakes_nobody(virtual_clock):
    """After all tasks are cancelled the executor runs once more at most, and the next task is on time."""
    run_count = 0
    async with RateLimitedExecutor("x") as executor:
        engine, run = executor._engine, executor._engine.run

        def counted(now, stop):
            nonlocal run_count
            run_count += 1
            return run(now, stop)

        engine.run = counted
        for handle in [executor.call_later(number, int) for number in range(2, 100)]:
            handle.cancel()
        for handle in [executor.schedule(int, delay=number) for number in range(2, 100)]:
            handle.cancel()
        await asyncio.sleep(50)
        assert run_count <= 2
        started: list[float] = []
        executor.call_later(10.25, lambda: started.append(virtual_clock.monotonic()))
        await asyncio.sleep(50)
        assert started == [pytest.approx(60.25)]


@pytest.mark.parametrize("stop", [RateLimitedExecutor.pause, lambda executor: setattr(executor, "rate", 0)])
@pytest.mark.parametrize("options", [{"policy": policy} for policy in each_policy(5)] + [{"rate": "10/s, 300/min"}])
async def test_a_paused_executor_is_not_woken_by_due_times(virtual_clock, options, stop):
    """An executor that pauses with many due tasks runs once, and starts the tasks once it goes on."""
    async with RateLimitedExecutor("x", **{"rate": 1000, **options}) as executor:
        handles = [executor.schedule(int, delay=0.1 + index / 2000) for index in range(1000)]
        stop(executor)
        queue, poll, poll_count = executor._engine.queue, executor._engine.queue.poll, 0

        def counted(now, limit):
            nonlocal poll_count
            poll_count += 1
            return poll(now, limit)

        queue.poll = counted
        await asyncio.sleep(50)
        assert poll_count <= 1
        executor.rate = 1000
        executor.resume()
        await asyncio.sleep(5)
        assert all(handle.done() for handle in handles)


async def test_a_burst_is_freed_although_a_task_is_due_far_ahead(virtual_clock):
    """The columns of started tasks are freed before the next wake-up."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.call_later(3600, int)
        for _ in range(5000):
            executor.call_soon(int)
        await asyncio.sleep(0.5)
        assert sum(len(bucket.calls) for bucket in executor._engine.queue.on_time.opened) == 0


async def test_an_iterator_that_never_waits_lets_the_loop_go_on(virtual_clock):
    """A bounded number of items is drawn between two turns of the loop, also while there is room."""
    drawn = worst = before = 0

    def items():
        nonlocal drawn
        for drawn in range(1, 901):  # noqa: B007  # it is looked at below
            yield drawn

    async with RateLimitedExecutor("x", rate=1, drain_timeout=0) as executor:
        executor.schedule_many(int, items())
        while drawn < 900:
            await asyncio.sleep(0)
            worst = max(worst, drawn - before)
            before = drawn
    assert worst <= 101
