"""The waiting tasks, with their callables and arguments: in a list, and as an order sees them."""

import asyncio
import functools
from collections import Counter

import pytest

from ratelimited_executor import Pacing, RateLimitedExecutor
from ratelimited_executor._core.order.ready_heap import ReadyHeap
from ratelimited_executor._kernel.runs import Run
from ratelimited_executor.exceptions import WrongLoopError
from ratelimited_executor.orders import Fair, TaskView, earliest_due_first

EPOCH = 1704067200  # where the virtual wall clock begins


def work(*_: object) -> None:
    """Do nothing."""


def paused(**options) -> RateLimitedExecutor:
    executor = RateLimitedExecutor("x", drain_timeout=0, **options)
    executor.pause()
    return executor


async def fill(executor) -> Counter:
    """Let tasks of every kind wait; return the callables and arguments to be listed."""
    waiter = asyncio.ensure_future(executor.acquire(name="mine"))
    waiter.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    executor.schedule(work, 1)
    executor.schedule(work, 2, delay=0.5, priority=3, name="named", key="a", cost=2)
    executor.schedule(work, 3, delay=70)
    executor.schedule(work, 4, at=EPOCH + 500)
    executor.submit(work, 5)
    executor.execute(work, 6)
    executor.call_soon(work, 7)
    executor.call_later(0.25, work, 8)
    executor.call_later(50, work, 9)
    executor.schedule_many(work, [10, 11])
    executor.schedule_many(work, range(12, 15), over=100)
    executor.schedule_many(work, [15, 16], delays=[3, 0.1], key="b")
    executor.schedule_many(work, [17], at=EPOCH + 300)
    executor.schedule_at_fixed_rate(work, 18, period=10)
    executor.as_futures_executor().submit(work, 19)
    await asyncio.sleep(0.75)
    return Counter([(None, ()), *((work, (number,)) for number in range(1, 20))])


@pytest.mark.parametrize(
    "options",
    [{}, {"pacing": Pacing.ON_TIME}, {"order": earliest_due_first}, {"order": Fair()}, {"key_rate": 5}, {"rate": 1}],
    ids=["plain", "on time", "order", "fair", "key rate", "rate"],
)
async def test_all_that_waits_is_listed_once(virtual_clock, account, options):
    """Every waiting task of any kind is listed once, under every order, as many as ``statistics()`` counts."""
    async with paused(**options) as executor:
        expected = await fill(executor)
        tasks = executor.waiting_tasks(None)
        assert expected == Counter((task.fn, task.args) for task in tasks)
        assert executor.statistics().waiting == len(tasks)
        account(executor)
        executor.order = earliest_due_first
        assert expected == Counter((task.fn, task.args) for task in executor.waiting_tasks())


async def test_view_tells_what_the_task_was_scheduled_with(virtual_clock):
    """A view has name, priority, due time, kind, key and cost of its task."""
    async with paused() as executor:
        await fill(executor)
        views = {task.args: task for task in executor.waiting_tasks(None)}
        assert ("named", 3, "a", 2) == (views[2,].name, views[2,].priority, views[2,].key, views[2,].cost)
        assert [EPOCH + due for due in (70, 500, 50, 3, 300)] == [views[n,].due for n in (3, 4, 9, 15, 17)]
        assert (True, False) == (views[18,].is_repeating, views[5,].is_repeating)
        assert (True, True, False) == tuple(views[n,].is_immediate for n in (1, 10, 3))
        assert ("work[0]", "b", "mine") == (views[15,].name, views[15,].key, views[()].name)
        assert {0} == {task.arrival for task in views.values()}


async def test_list_is_as_long_as_asked_for(virtual_clock):
    """``limit`` bounds the list, also of a long batch; started and cancelled tasks are not in it."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        batch = executor.schedule_many(work, range(5_000_000), over=5_000)
        handles = [executor.schedule(work, delay=100) for _ in range(9)]
        assert [0, 1, 7] == [len(executor.waiting_tasks(limit)) for limit in (0, 1, 7)]
        assert 1000 == len(executor.waiting_tasks())
        for handle in handles[2:]:
            handle.cancel()
        await asyncio.sleep(1)
        (first,) = executor.waiting_tasks(3)[2:]
        assert batch.summary.done == first.args[0]
        batch.cancel()
        assert 2 == len(executor.waiting_tasks())
    assert [] == executor.waiting_tasks()


@pytest.mark.parametrize("options", [{}, {"order": earliest_due_first}], ids=["plain", "order"])
@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "calls"])
async def test_list_costs_as_much_as_it_is_long(virtual_clock, monkeypatch, is_batch, options):
    """A list of 100 examines only a few of 50,000 ready tasks."""
    walked = 0

    def counted(walk):
        def counting(ready):
            nonlocal walked
            for entry in walk(ready):
                walked += 1
                yield entry

        return counting

    monkeypatch.setattr(Run, "walk", counted(Run.walk))
    monkeypatch.setattr(ReadyHeap, "walk", counted(ReadyHeap.walk))
    async with paused(**options) as executor:
        if is_batch:
            executor.schedule_many(work, range(50_000))
        else:
            for number in range(50_000):
                executor.call_soon(work, number)
        await asyncio.sleep(1.5)
        walked = 0
        assert 100 == len(executor.waiting_tasks(100))
        assert walked <= 1000


@pytest.mark.parametrize("options", [{}, {"order": earliest_due_first}], ids=["plain", "order"])
async def test_task_behind_a_large_batch_is_listed(virtual_clock, options):
    """A task behind a large batch is listed once, and first in an order that is not the user's."""
    async with paused(**options) as executor:
        executor.schedule_many(work, range(5000))
        executor.submit(work, "code")
        await asyncio.sleep(1.5)
        listed = [task.args[0] for task in executor.waiting_tasks(None)]
        assert options or listed[0] == "code"
        assert Counter(["code", *range(5000)]) == Counter(listed)


async def test_list_stays_as_it_was(virtual_clock):
    """A view keeps callable and arguments after its task has ended: it is a snapshot, not a handle."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(work, 1, delay=1)
        executor.call_later(1, work, 2)
        executor.schedule_many(work, [3], delay=1)
        tasks = executor.waiting_tasks()
        await asyncio.sleep(5)
        assert [] == executor.waiting_tasks()
    assert {1, 2, 3} == {task.args[0] for task in tasks}
    assert {work} == {task.fn for task in tasks}


async def test_task_that_waits_for_another_attempt_is_listed(virtual_clock):
    """A task that waits for a retry is listed like any other."""
    from ratelimited_executor import RetryLater

    def fails(number):
        raise RetryLater(100)

    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.submit(fails, 1)
        executor.schedule_many(fails, [2])
        await asyncio.sleep(1)
        assert {(fails, (1,)), (fails, (2,))} == {(task.fn, task.args) for task in executor.waiting_tasks()}


async def test_list_in_the_middle_of_a_burst_is_exact(virtual_clock):
    """A task that lists the waiting ones sees neither itself nor those before it."""
    seen = []
    async with RateLimitedExecutor("x") as executor:

        def ask(number):
            seen.append((number, sorted(task.args[0] for task in executor.waiting_tasks())))

        executor.schedule_many(ask, range(4), delay=1)
        await asyncio.sleep(3)
    assert [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])] == seen


async def test_list_is_refused_elsewhere(virtual_clock):
    """Listing from another thread is refused: the list would be inconsistent."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(executor.waiting_tasks)


# Orders.


async def test_order_sees_callable_and_arguments(virtual_clock):
    """The order sees callable and arguments of every kind of task, also keywords in a partial."""
    seen = []
    log = []

    def order(task: TaskView):
        fn = task.fn.func if isinstance(task.fn, functools.partial) else task.fn
        seen.append((fn, task.args))
        return -task.args[0]

    def run(number):
        log.append(number)

    async with RateLimitedExecutor("x", order=order) as executor:
        executor.pause()
        executor.submit(run, 1)
        executor.call_soon(run, 3)
        executor.schedule_many(run, [2, 5])
        executor.schedule_at_fixed_rate(run, 4, period=100, max_runs=1)
        await asyncio.sleep(0.5)
        executor.resume()
        await asyncio.sleep(0.5)
    assert [5, 4, 3, 2, 1] == log
    assert {(run, (number,)) for number in range(1, 6)} == set(seen)


async def test_fair_shares_by_an_argument(virtual_clock):
    """``by`` of a fair order may read the arguments, so tenants need not be named twice."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair(by=lambda task: task.args[0])) as executor:
        executor.pause()
        for tenant in "aaaabb":
            executor.submit(log.append, tenant)
        executor.schedule_many(log.append, "cc")
        executor.resume()
        await asyncio.sleep(2)
    assert {"a", "b", "c"} == set(log[:3])
    assert sorted("aaaabbcc") == sorted(log)


async def test_items_are_not_looked_up_for_an_order_that_does_not_ask(virtual_clock):
    """Items, which may be user code, are read only by the call unless the order reads them."""

    class Items(list):
        asked = 0

        def __getitem__(self, index):
            Items.asked += 1
            return super().__getitem__(index)

    async with RateLimitedExecutor("x", order=earliest_due_first) as executor:
        await executor.schedule_many(work, Items(range(3)))
    assert 3 == Items.asked


def test_view_is_made_and_shown_as_before():
    """A view can be created by position, without key and cost; without a task it has no callable."""
    view = TaskView("a", 1, 2.0, False, True, 3)
    assert (None, 1, None, ()) == (view.key, view.cost, view.fn, view.args)
    assert (
        "TaskView(name='a', priority=1, due=2.0, is_repeating=False, is_immediate=True, arrival=3, key=None, cost=1)"
        == repr(view)
    )
