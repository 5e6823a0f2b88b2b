"""User code may call back into the executor from anywhere that the executor calls it.

It may do so from a task, the first step of a coroutine, a sequence's ``__getitem__``, an order and the comparison of
its keys. The law holds, the accounting closes, nothing is lost, and no context leaks.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import random
import warnings
from collections.abc import Sequence

import pytest

from ratelimited_executor import ExecutorManager, Paced, Pacing, Rate, RateLimitedExecutor, TaskState
from ratelimited_executor.orders import Fair, default_order, earliest_due_first
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import audit

from ..waiting import walk

variable = contextvars.ContextVar("variable", default="nobody's")


class Items(Sequence):
    """The numbers below a count; reading one first calls a function."""

    def __init__(self, count, function):
        self._count = count
        self._function = function

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        self._function()
        return index


async def test_call_that_blocks_over_the_end_of_its_interval_and_adds_another(virtual_clock, account):
    """A burst is settled even if its last call blocks beyond the interval and submits another."""
    log = []
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", rate=1000) as executor:
        await asyncio.sleep(0.98)

        def last():
            loop.block_for(0.03)
            executor.submit(log.append, "next")

        executor.call_soon(log.append, "first")
        executor.call_soon(last)
        loop.block_for(0.01)  # several permits are usable: both run in one burst
        await asyncio.sleep(0.5)
        account(executor)
    assert ["first", "next"] == log


def _explain(executor, far):
    executor.explain(far)


def _set_rate(executor, far):
    executor.rate = 1000


def _statistics(executor, far):
    executor.statistics()


@pytest.mark.parametrize("look", [_explain, _set_rate, _statistics])
async def test_looking_from_inside_of_a_burst_does_not_break_the_law(virtual_clock, look):
    """Reads and settings within a burst see its starts, and the law holds."""
    loop = asyncio.get_running_loop()
    starts = []
    async with RateLimitedExecutor("x", rate=1000) as executor:
        far = executor.schedule(int, delay=0.9)
        await asyncio.sleep(0.1)

        def work():
            starts.append(loop.time())
            look(executor, far)

        for _ in range(400):
            executor.call_soon(work)
        loop.block_for(0.010)
        await asyncio.sleep(0.7)
        far.cancel()
    assert 400 == len(starts)
    report = audit(starts, 1000)
    assert report.ok, str(report)


async def test_item_that_changes_the_rate_does_not_break_the_law(virtual_clock):
    """An item that sets the rate when it is read, after its permit is spent, does not break the law."""
    loop = asyncio.get_running_loop()
    starts = []
    async with RateLimitedExecutor("x", rate=10) as executor:

        def read():
            executor.rate = 10

        await executor.schedule_many(lambda item: starts.append(loop.time()), Items(50, read))
    report = audit(starts, 10)
    assert report.ok, str(report)


@pytest.mark.parametrize("results", [False, True])
async def test_item_sees_itself_as_running(virtual_clock, results):
    """While an item is read, its task counts as running, and neither waits nor counts twice."""
    seen = []
    async with RateLimitedExecutor("x") as executor:

        def look():
            counts = executor.statistics()
            seen.append((counts.waiting, sum(1 for _ in walk(executor._engine.queue)), counts.running, counts.done))

        await executor.schedule_many(abs, Items(3, look), results=results)
    assert [(2, 2, 1, 0), (1, 1, 1, 1), (0, 0, 1, 2)] == seen


async def test_first_step_of_a_coroutine_is_counted_as_running(virtual_clock):
    """An eager first step counts as running within the burst that starts it."""
    seen = []
    async with RateLimitedExecutor("x") as executor:

        async def work(item):
            counts = executor.statistics()
            seen.append((counts.waiting + counts.running + counts.done, counts.running > 0))
            assert counts.waiting == sum(1 for _ in walk(executor._engine.queue))

        batch = executor.schedule_many(work, range(3))
        await batch
    assert 3 == batch.summary.done
    assert [(3, True)] * 3 == seen


@pytest.mark.parametrize("does", ["cancels itself", "cancels another", "cancels the rest", "sets an order"])
@pytest.mark.parametrize("pacing", list(Pacing))
async def test_order_that_changes_what_it_sorts(virtual_clock, account, does, pacing):
    """Of tasks cancelled while they are sorted none runs; each of the others runs once."""
    ran = []
    handles = {}
    asked = []
    async with RateLimitedExecutor("x", rate=100, pacing=pacing, drain_timeout=3) as executor:

        def order(view):
            asked.append(view.name)
            if len(asked) == 1:
                if does == "cancels the rest":
                    for name in "bc":
                        handles[name].cancel()
                else:
                    handles["b" if does == "cancels another" else "a"].cancel()
                if does == "sets an order":
                    executor.order = earliest_due_first
            return view.due

        executor.order = order
        executor.call_later(2.5, ran.append, "plain")
        for name in "abc":
            handles[name] = executor.schedule(ran.append, name, delay=2.5, name=name)
        await asyncio.sleep(4)
        account(executor)
    expected = [name for name, handle in handles.items() if handle.state is TaskState.DONE]
    assert sorted([*expected, "plain"]) == sorted(ran)
    cancelled = {"cancels another": "b", "cancels the rest": "bc"}.get(does, "a")
    assert list(cancelled) == [name for name, handle in handles.items() if handle.cancelled()]


@pytest.mark.parametrize("limits", [{}, {"key_rate": Rate(1000)}], ids=["one queue", "a queue for each key"])
@pytest.mark.parametrize("when", range(12))
async def test_keys_whose_comparison_adds_and_cancels(virtual_clock, account, when, limits):
    """Changes made while keys are compared wait until the heap is intact again."""
    ran = []
    compared = []
    handles = []

    class Key:
        def __init__(self, number):
            self._number = number

        def __lt__(self, other):
            compared.append(None)
            if len(compared) == 40 + when:
                executor.submit(ran.append, "new", key="new")
                handles[19].cancel()
            return self._number < other._number

    keys = iter(range(100))
    async with RateLimitedExecutor(
        "x", rate=100, drain_timeout=3, order=lambda view, next_key=keys.__next__: Key(next_key()), **limits
    ) as executor:
        handles.extend(executor.submit(ran.append, number, key=number) for number in range(20))
        await asyncio.sleep(3)
        account(executor)
    assert "new" in ran
    assert [*range(19)] == sorted(name for name in ran if name not in ("new", 19))
    assert handles[19].cancelled() == (19 not in ran)


@pytest.mark.parametrize("how", ["submit", "schedule_many", "schedule"])
async def test_more_important_task_that_is_added_inside_of_a_burst_is_next(virtual_clock, how):
    """A more important task added within a burst starts next."""
    log = []
    add = {
        "submit": lambda: executor.submit(log.append, "important", priority=10),
        "schedule": lambda: executor.schedule(log.append, "important", priority=10),
        "schedule_many": lambda: executor.schedule_many(log.append, ["important"], priority=10),
    }[how]

    def work(number):
        log.append(number)
        if number == 0:
            add()

    async with RateLimitedExecutor("x") as executor:
        for number in range(500):
            executor.submit(work, number)
        await asyncio.sleep(1)
    assert 1 == log.index("important")


async def test_items_and_orders_see_no_context_of_others(virtual_clock):
    """Items and orders do not see context variables set by others."""
    seen = []
    async with RateLimitedExecutor("x") as executor:
        await executor.schedule_many(abs, Items(1, lambda: variable.set("secret of request 1")))
        look = lambda: executor.call_soon(lambda: seen.append(variable.get()))  # noqa: E731
        await executor.schedule_many(abs, Items(1, look))
        await asyncio.sleep(1)

        def order(view):
            seen.append(variable.get())
            variable.set(view.name)
            return view.due

        executor.order = order
        for name in "ab":
            executor.submit(int, name=name)
        await asyncio.sleep(1)
    assert ["nobody's"] * len(seen) == seen
    assert 3 <= len(seen)


async def test_result_whose_type_raises_when_looked_at(virtual_clock, account):
    """A result whose type raises for any attribute does not fail the check for awaitables."""

    class Meta(type):
        def __getattr__(cls, name):
            raise RuntimeError("not this")

    class Result(metaclass=Meta):
        pass

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(Result)
        assert type(await handle) is Result
        account(executor)


@pytest.mark.parametrize("rate", ["10/s", "inf/s"])
async def test_result_whose_type_answers_everything(virtual_clock, rate):
    """A result whose metaclass has every attribute is not taken for an awaitable, on any path."""

    class Meta(type):
        def __getattr__(cls, name):
            return 1

    class Result(metaclass=Meta):
        pass

    async with RateLimitedExecutor("x", rate=rate) as executor:
        batch = executor.schedule_many(lambda _: Result(), range(3))
        executor.call_later(0.5, Result)
        assert type(await executor.submit(Result)) is Result
        assert 3 == (await batch).done
        await asyncio.sleep(1)
        assert (5, 0) == (executor.statistics().done, executor.statistics().failed)


@pytest.mark.parametrize("how", ["call_later", "schedule", "schedule_many"])
def test_cancelling_after_the_loop_has_closed(how):
    """Cancelling a handle after its loop has closed raises nothing, as with asyncio's handles."""

    async def leave_waiting():
        executor = RateLimitedExecutor("x")
        await executor.start()
        if how == "schedule_many":
            return [executor.schedule_many(int, [0] * 20000, delay=100.5)]
        return [getattr(executor, how)(*((100.5, int) if how == "call_later" else (int,))) for _ in range(20000)]

    loop = asyncio.new_event_loop()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            handles = loop.run_until_complete(leave_waiting())
            loop.close()
            for handle in handles:
                handle.cancel()
            gc.collect()
    finally:
        loop.close()


async def test_iteration_that_begins_inside_of_a_call_has_its_outcome(virtual_clock):
    """Iterating a batch from within a call includes the outcome of that call."""
    begun = []

    def work(item):
        if item == 1:
            begun.append(batch.__aiter__())
            begun.append(begun[0].__anext__())
            begun[1].send(None)  # what a task that starts eagerly does: it runs to the first suspension
        return item * 10

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(work, range(4))
        await batch
        with pytest.raises(StopIteration) as stop:
            begun[1].send(None)
        outcomes = [stop.value.value, *[outcome async for outcome in begun[0]]]
    assert [(1, 10), (2, 20), (3, 30)] == sorted((index, outcome.value) for index, outcome in outcomes)


@pytest.mark.parametrize("reading", range(1, 24))
async def test_a_clock_that_looks_at_the_executor_at_any_reading_changes_no_count(virtual_clock, reading):
    """A clock that reads the executor changes no count, not even at the end of a stretch."""

    class Clock:
        left = -1
        wall = virtual_clock.wall

        def monotonic(self):
            self.left -= 1
            if self.left == 0:
                seen.append(executor.statistics())
            return virtual_clock.monotonic()

    clock, seen, started = Clock(), [], []
    policy = Paced(slack=0.2, strictness=Strictness.NOMINAL)
    async with ExecutorManager(clock=clock) as manager:
        executor = manager.executor("x", rate=100, policy=policy)
        handles = [executor.call_later(0.3, started.append, number) for number in range(10)]
        for number in (2, 5):
            handles[number].cancel()
        await asyncio.sleep(0.25)
        clock.left = reading
        await asyncio.sleep(1)
        after = executor.statistics()
    assert [0, 1, 3, 4, 6, 7, 8, 9] == started
    assert (10, 0, 8, 8, 2) == (after.accepted, after.waiting, after.started, after.done, after.cancelled)
    assert all(one.started >= one.done >= 0 for one in seen)


async def test_a_weight_that_asks_questions_loses_no_task(virtual_clock, account):
    """Each task starts, although the function for weights asks when another one will."""
    starts: list[int] = []
    async with RateLimitedExecutor("x", rate=100, drain_timeout=5) as executor:
        other, numbers = executor.schedule(int, delay=3000), itertools.count()

        def weight(_):
            if next(numbers) % 2:
                executor.explain(other)
            return 1

        executor.order = Fair(weights=weight)
        for index in range(60):
            executor.submit(starts.append, index, key=f"k{index}")
            await asyncio.sleep(0.05)
        account(executor)
    assert starts == list(range(60))


@pytest.mark.parametrize("seed", range(5, 10))
async def test_a_weight_that_sets_another_order_while_one_is_set_loses_no_task(virtual_clock, seed, account):
    """Each task starts, although the function for weights sets orders, and is asked while they are put in force."""
    chance, starts, depth = random.Random(seed), [], 0
    async with RateLimitedExecutor("x", rate=20, drain_timeout=5) as executor:

        def weight(_):
            nonlocal depth
            if depth < 2 and chance.random() < 0.6:
                depth += 1
                executor.order = chance.choice([Fair(weights=weight), default_order])
                depth -= 1
            return 1

        executor.order = Fair(weights=weight)
        for index in range(60):
            executor.submit(starts.append, index, key=f"k{index % 20}", priority=index % 3)
            if index % 5 == 4:
                await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        account(executor)
    assert sorted(starts) == list(range(60))
