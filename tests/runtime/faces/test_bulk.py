"""The bulk face: all forms of ``schedule_many``, ``map``, ``invoke_all`` and ``invoke_any``."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from ratelimited_executor import BatchSummary, Pacing, RateLimitedExecutor, TaskState
from ratelimited_executor.testing import audit

from ...helpers import now


def summary(**counts) -> BatchSummary:
    base = dict.fromkeys(("done", "failed", "cancelled", "expired", "dropped"), 0) | counts
    return BatchSummary(total=sum(base.values()), **base)


@pytest.mark.parametrize("blocked", ["delays", "key"])
@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, [1.5] * 3),
        ({"delay": 3}, [3.0] * 3),
        ({"delays": [0, 1, 4]}, [1.5, 1.5, 4.0]),
        ({"over": 9}, [1.5, 3.0, 6.0]),
        ({"at": 3}, [3.0] * 3),
    ],
)
async def test_delays_count_from_the_call(virtual_clock, account, times, expected, blocked):
    """Delays count from the call, not from the end of the work on its arguments, which takes 1.5 seconds here."""

    def block(value):
        virtual_clock.block(0.5)
        return value

    options = {"key": block} if blocked == "key" else {}
    if "delays" in times and blocked == "delays":
        times = {"delays": (block(delay) for delay in times["delays"])}
    elif blocked == "delays":
        options["key"] = block
    if "at" in times:
        times = {"at": virtual_clock.wall() + times["at"]}
    starts = []
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        executor.schedule_many(lambda _: starts.append(now()), range(3), **times, **options)
        assert 1.5 == now()
        account(executor)
    assert expected == starts


@pytest.mark.parametrize("method", ["invoke_all", "invoke_any"])
async def test_timeout_counts_from_the_call(virtual_clock, method):
    """A timeout counts from the call, not from the last of its submits."""

    def calls():
        for _ in range(3):
            virtual_clock.block(0.5)
            yield lambda: asyncio.sleep(60)

    async with RateLimitedExecutor("x") as executor:
        with contextlib.suppress(TimeoutError):
            await getattr(executor, method)(calls(), timeout=4)
        assert 4 == now()


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, [0.0, 0.0, 0.0, 0.0]),
        ({"delay": 0.5}, [0.5] * 4),
        ({"delay": 2}, [2.0, 2.25, 2.5, 2.75]),
        ({"delays": [3, 0.5, 1, 2]}, [0.5, 1.0, 2.0, 3.0]),
        ({"over": 8}, [0.0, 2.0, 4.0, 6.0]),
        ({"over": 0.8}, [0.0, 0.2, 0.4, 0.6]),
        ({"at": 2}, [2.0, 2.25, 2.5, 2.75]),
        ({"at": -5}, [0.0] * 4),
    ],
)
async def test_items_are_due_as_asked(virtual_clock, account, times, expected):
    """Items are due at once, after a common delay, each after its own, at a time of day, or evenly over a span."""
    if "at" in times:
        times = {"at": virtual_clock.wall() + times["at"]}
    starts = []
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(lambda item: starts.append(now()), range(4), **times)
        account(executor)
        assert 4 == executor.statistics().waiting == batch.total == batch.open_count
        assert summary(done=4) == await batch
    assert expected == [pytest.approx(start, abs=1e-6) for start in starts]
    assert batch.done()


@pytest.mark.parametrize("kind", ["list", "tuple", "range", "set", "dict", "str", "iterator", "generator", "async"])
async def test_items_may_be_anything_iterable(virtual_clock, kind):
    """Any iterable, sized or not, async or not, gives each of its items once."""

    async def draw():
        for item in "abc":
            await asyncio.sleep(1)
            yield item

    items = {
        "list": ["a", "b", "c"],
        "tuple": ("a", "b", "c"),
        "range": range(3),
        "set": {"a", "b", "c"},
        "dict": dict.fromkeys("abc"),
        "str": "abc",
        "iterator": iter("abc"),
        "generator": (c for c in "abc"),
        "async": draw(),
    }[kind]
    seen = []
    async with RateLimitedExecutor("x") as executor:
        assert summary(done=3) == await executor.schedule_many(seen.append, items)
    assert (["a", "b", "c"] if kind != "range" else [0, 1, 2]) == sorted(seen)


@pytest.mark.parametrize("items", [[], iter([])])
async def test_empty_batch_is_done(virtual_clock, items):
    """A batch without items is done at once, even at rate 0."""
    async with RateLimitedExecutor("x", rate=0) as executor:
        assert summary() == await executor.schedule_many(int, items)


async def test_batch_keeps_the_rate_and_the_priority(virtual_clock):
    """The tasks of a batch start at the rate, in the order of importance, like any other tasks."""
    log = []
    async with RateLimitedExecutor("x", rate=10) as executor:
        executor.schedule_many(lambda item: log.append((now(), item)), ["low"] * 20)
        await asyncio.sleep(0.55)
        executor.schedule_many(lambda item: log.append((now(), item)), ["high"] * 5, priority=1)
    assert ["low"] * 6 + ["high"] * 5 + ["low"] * 14 == [item for _, item in log]
    assert audit([when for when, _ in log], 10).ok


async def test_summary_counts_every_end(virtual_clock, handler):
    """The summary counts each end by its kind, and only the first failure that nobody sees is reported."""
    reports = handler()

    def work(item):
        if item % 3 == 1:
            raise ValueError(item)
        if item % 3 == 2:
            raise asyncio.CancelledError

    async with RateLimitedExecutor("x", rate=1) as executor:
        batch = executor.schedule_many(work, range(12), expires=5.5)
        assert summary(done=2, failed=2, cancelled=2, expired=6) == await batch
        assert (6, 6) == (executor.statistics().started, executor.statistics().expired)
    assert ["work[1]"] == [str(report["message"]).split()[2].rstrip(",").split(".")[-1] for report in reports]


@pytest.mark.parametrize("how", ["pause", "rate 0"])
async def test_items_expire_though_nothing_starts(virtual_clock, account, how):
    """Items of a batch expire within one interval of their deadline, even while paused or at rate 0."""
    async with RateLimitedExecutor("x") as executor:
        executor.pause() if how == "pause" else setattr(executor, "rate", 0)
        batches = [
            executor.schedule_many(int, range(10), expires=3),
            executor.schedule_many(int, range(10), delay=0.3, expires=2.7),
            executor.schedule_many(int, range(10), delays=[i / 10 for i in range(10)], expires=2),
        ]
        await asyncio.sleep(4.01)
        account(executor)
        assert [10, 10, 10] == [batch.summary.expired for batch in batches]
        assert all(batch.done() for batch in batches)


async def test_results_are_kept_where_asked(virtual_clock):
    """With ``results=True`` every outcome is kept by the index of its item, in order."""

    async def work(item):
        await asyncio.sleep(3 - item)
        if item == 1:
            raise ValueError(item)
        return item * 10

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(work, range(3), results=True)
        await batch
        assert [0, 1, 2] == list(batch.results)
        assert (0, 20) == (batch.results[0].result(), batch.results[2].result())
        with pytest.raises(ValueError, match="1"):
            batch.results[1].result()
        assert [(2, 20), (0, 0)] == [
            (index, outcome.value) async for index, outcome in batch if outcome.state is TaskState.DONE
        ]
        plain = executor.schedule_many(work, [0])
        with pytest.raises(ValueError, match="results=True"):
            plain.results  # noqa: B018


@pytest.mark.parametrize("results", [True, False])
async def test_outcomes_come_as_they_end(virtual_clock, results):
    """``async for`` yields index and outcome of each task when the task ends."""

    async def work(item):
        await asyncio.sleep(item)
        return item

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(work, [3, 1, 2], results=results)
        got = [(now(), index, outcome.result()) async for index, outcome in batch]
    assert [(1, 1, 1), (2, 2, 2), (3, 0, 3)] == got


async def test_results_that_nobody_asked_for_are_not_kept(virtual_clock):
    """Without ``results=True`` no result is kept after its task has ended."""

    class Big:
        pass

    refs = []

    def work(item):
        big = Big()
        refs.append(weakref.ref(big))
        return big

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(work, range(10))
        await batch
        gc.collect()
        assert [None] * 10 == [ref() for ref in refs]
        assert batch.done()


@pytest.mark.parametrize(
    "times", [{}, {"delay": 5}, {"over": 50}, {"delays": [i / 5 for i in range(100)]}, {"at": 5}, "lazy"]
)
@pytest.mark.parametrize("results", [True, False])
async def test_cancel_ends_what_waits_and_lets_run_what_runs(virtual_clock, account, times, results):
    """``cancel`` cancels the items that wait, returns their number, and lets running ones end; each is counted once."""
    items = range(100)
    if times == "lazy":
        times, items = {}, iter(items)
    elif "at" in times:
        times = {"at": virtual_clock.wall() + 5}
    async with RateLimitedExecutor("x", rate=10) as executor:
        batch = executor.schedule_many(
            asyncio.sleep, (1.0 for _ in items) if results and not times else [1.0] * 100, results=results, **times
        )
        await asyncio.sleep(2.05)
        account(executor)
        started, total = executor.statistics().started, batch.total
        cancelled = batch.cancel()
        assert 0 == batch.cancel()
        account(executor)
        assert total == started + cancelled
        assert summary(done=started, cancelled=cancelled) == await batch
        account(executor)
        if results:
            assert total == len(batch.results)


async def test_iterator_that_raises_fails_the_batch(virtual_clock):
    """The exception of the iterator is raised when the batch is awaited; the items before it run."""

    def items():
        yield 1
        yield 2
        raise ValueError("items")

    seen = []
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(seen.append, items())
        with pytest.raises(ValueError, match="items"):
            await batch
    assert [1, 2] == seen


async def test_iterator_is_drawn_a_bounded_number_ahead(virtual_clock):
    """At most about a thousand items of an endless iterator wait."""
    drawn = 0

    def endless():
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn

    async with RateLimitedExecutor("x", rate=100, drain_timeout=0) as executor:
        executor.schedule_many(int, endless())
        await asyncio.sleep(10)
        assert 1000 <= executor.statistics().started <= 1002
        assert drawn <= executor.statistics().started + 1001


async def test_iterator_over_a_span_needs_its_count(virtual_clock):
    """The items of an iterator are spread over ``over=`` if ``count=`` is given; more items than that are an error."""
    starts = []
    async with RateLimitedExecutor("x") as executor:
        await executor.schedule_many(lambda item: starts.append(now()), iter(range(5)), over=10, count=5)
        assert [0, 2, 4, 6, 8] == [pytest.approx(start, abs=1.0) for start in starts]
        with pytest.raises(ValueError, match="count is 2"):
            await executor.schedule_many(int, iter(range(3)), over=1, count=2)


async def test_cancelling_the_awaiter_leaves_the_batch(virtual_clock):
    """A batch continues when somebody who awaits it is cancelled."""
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(int, range(3), delay=5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await batch
        assert summary(done=3) == await batch


# map


@pytest.mark.parametrize("is_async", [False, True])
async def test_map_gives_results_in_the_order_of_the_items(virtual_clock, is_async):
    """Results come in the order of the items, however long each takes, or as they end with ``ordered=False``."""

    async def work(item):
        await asyncio.sleep(item)
        return item

    async def draw():
        for item in (3, 1, 2):
            yield item

    async with RateLimitedExecutor("x") as executor:
        assert [3, 1, 2] == [result async for result in executor.map(work, draw() if is_async else [3, 1, 2])]
        assert [1, 2, 3] == [
            result async for result in executor.map(work, draw() if is_async else [3, 1, 2], ordered=False)
        ]
        assert 6 == now()


async def test_map_gives_results_before_a_slow_source_ends(virtual_clock):
    """A result is available before a slow source has given all its items."""

    async def slow():
        for item in range(3):
            await asyncio.sleep(10)
            yield item

    async with RateLimitedExecutor("x") as executor:
        assert [10, 20, 30] == [now() async for _ in executor.map(int, slow())]


@pytest.mark.parametrize("ordered", [True, False])
async def test_map_draws_no_more_than_its_limit(virtual_clock, ordered):
    """At most ``limit`` calls wait, run or have a result that was not taken yet."""
    drawn = taken = 0

    def endless():
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn

    async with RateLimitedExecutor("x") as executor:
        results = executor.map(asyncio.sleep, (0.1 for _ in endless()), limit=7, ordered=ordered)
        async for _ in results:
            taken += 1
            assert drawn <= taken + 7
            await asyncio.sleep(0.5)
            if taken == 30:
                break
        await results.aclose()
        assert 0 == executor.statistics().waiting + executor.statistics().running


@pytest.mark.parametrize("ordered", [True, False])
async def test_first_failure_of_map_raises_and_cancels_the_rest(virtual_clock, ordered):
    """The iteration raises the error, and the calls that have not ended are cancelled."""

    async def work(item):
        await asyncio.sleep(item)
        if item == 2:
            raise ValueError(item)

    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(ValueError, match="2"):
            async for _ in executor.map(work, [1, 2, 50, 60], ordered=ordered):
                pass
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (2, 0, 2) == (
            executor.statistics().cancelled,
            executor.statistics().running,
            now(),
        )


async def test_leaving_map_cancels_the_rest(virtual_clock):
    """A ``break`` cancels what waits and runs, and closes the source that is awaited."""
    closed = []

    async def draw():
        try:
            for item in range(100):
                await asyncio.sleep(0.1)
                yield item
        finally:
            closed.append(now())

    async with RateLimitedExecutor("x") as executor:
        async for _ in executor.map(asyncio.sleep, draw()):
            break
        await asyncio.sleep(0.05)
        gc.collect()
        assert 0 == executor.statistics().waiting
    assert closed


# invoke_all, invoke_any


async def test_invoke_all_returns_done_handles_in_order(virtual_clock):
    """Every handle is done, whether its call succeeded or failed."""

    def bad():
        raise ValueError("bad")

    async with RateLimitedExecutor("x") as executor:
        handles = await executor.invoke_all([lambda: asyncio.sleep(3, "slow"), bad, lambda: "fast"])
        assert [TaskState.DONE, TaskState.FAILED, TaskState.DONE] == [handle.state for handle in handles]
        assert ("slow", "fast", "bad") == (handles[0].result(), handles[2].result(), str(handles[1].exception()))
        assert [] == await executor.invoke_all([])


async def test_timeout_of_invoke_all_cancels_the_unfinished(virtual_clock):
    """After the timeout every handle is done, and those that had not ended are cancelled."""
    async with RateLimitedExecutor("x") as executor:
        handles = await executor.invoke_all([lambda: asyncio.sleep(1), lambda: asyncio.sleep(100)], timeout=5)
        assert [TaskState.DONE, TaskState.CANCELLED] == [handle.state for handle in handles]
        assert 5 == now()


async def test_cancelled_invoke_all_cancels_its_calls(virtual_clock):
    """Cancelling the awaiter of ``invoke_all`` cancels its calls."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await executor.invoke_all([lambda: asyncio.sleep(100)] * 3)
        await asyncio.sleep(0.001)
        assert 3 == executor.statistics().cancelled


async def test_invoke_any_returns_the_first_success_and_cancels_the_rest(virtual_clock):
    """A failed call is ignored while others may succeed, and None is a success."""

    async def bad():
        raise ValueError

    async with RateLimitedExecutor("x") as executor:
        result = await executor.invoke_any([bad, lambda: asyncio.sleep(2, "second"), lambda: asyncio.sleep(1, None)])
        assert None is result
        await asyncio.sleep(0.001)
        assert (1, 1, 1) == (
            executor.statistics().done,
            executor.statistics().failed,
            executor.statistics().cancelled,
        )
        assert 1.001 == now()


async def test_invoke_any_raises_all_failures_in_a_group(virtual_clock):
    """If every call fails, an exception group has their exceptions in order; no calls at all are refused."""

    def fail(error):
        raise error

    errors = [ValueError("a"), TypeError("b")]
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(ExceptionGroup) as info:
            await executor.invoke_any([lambda error=error: fail(error) for error in errors])
        assert errors == list(info.value.exceptions)
        with pytest.raises(ValueError, match="at least one"):
            await executor.invoke_any([])


async def test_invoke_any_times_out(virtual_clock):
    """After the timeout all calls are cancelled."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(TimeoutError):
            await executor.invoke_any([lambda: asyncio.sleep(100)] * 2, timeout=3)
        await asyncio.sleep(0.001)
        assert (2, 3) == (executor.statistics().cancelled, round(now()))


@pytest.mark.parametrize("is_async", [False, True])
async def test_map_waits_where_the_backlog_has_no_room(virtual_clock, is_async):
    """With ``max_pending`` below ``limit``, further items are drawn as earlier calls start."""

    async def slow_source():
        for item in range(20):
            yield item

    async with RateLimitedExecutor("x", rate=10, max_pending=3) as executor:
        items = slow_source() if is_async else range(20)
        assert list(range(20)) == [value async for value in executor.map(int, items)]


async def test_closing_ends_a_batch_that_waits_for_room(virtual_clock):
    """Closing ends the batch, even if room becomes free in the same turn of the loop."""
    async with RateLimitedExecutor("x", rate=1, max_pending=10) as executor:
        batch = executor.schedule_many(str, iter(range(40)))
        await asyncio.sleep(3.0)  # one task starts and leaves room for the next
        unstarted = await executor.shutdown(cancel_pending=True)
        statistics = executor.statistics()
    assert 10 == len(unstarted)
    assert 0 == statistics.waiting == batch.open_count
    assert batch._feeder.done()
