"""Batches run every item once, and iterators are drawn no further ahead than promised, under every limit and ending."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from ratelimited_executor import BacklogFullError, ExecutorManager, Paced, RateLimitedExecutor
from ratelimited_executor.policies import Strictness

from ...helpers import now


class Source:
    """An iterator, async or not, that records the items drawn and when it was closed."""

    def __init__(self, count, *, is_async: bool, every: float = 0.0, fail_at: int | None = None) -> None:
        self.count = count
        self.is_async = is_async
        self.every = every
        self.fail_at = fail_at
        self.drawn = 0
        self.closed = False

    def items(self):
        return self._async_items() if self.is_async else self._items()

    def _items(self):
        try:
            for number in range(self.count) if self.count is not None else itertools.count():
                if number == self.fail_at:
                    raise LookupError("source")
                self.drawn += 1
                yield number
        finally:
            self.closed = True

    async def _async_items(self):
        try:
            for number in range(self.count) if self.count is not None else itertools.count():
                if self.every:
                    await asyncio.sleep(self.every)
                if number == self.fail_at:
                    raise LookupError("source")
                self.drawn += 1
                yield number
        finally:
            self.closed = True


both = pytest.mark.parametrize("is_async", [False, True])


@both
async def test_items_are_drawn_at_most_a_thousand_ahead(virtual_clock, account, is_async):
    """At most a thousand items are drawn ahead of their start; drawn items count as accepted."""
    source = Source(None, is_async=is_async)
    async with RateLimitedExecutor("x", rate=100, drain_timeout=0) as executor:
        batch = executor.schedule_many(int, source.items())
        for _ in range(20):
            await asyncio.sleep(0.37)
            counts = executor.statistics()
            assert 0 <= source.drawn - counts.accepted <= 1
            assert batch.total == counts.accepted
            assert counts.waiting <= 1000
            account(executor)
    assert source.drawn <= 1000 + 100 * 8
    await asyncio.sleep(0.1)
    assert source.closed


@both
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_feed_waits_for_room_in_place_of_raising(virtual_clock, account, is_async, limit):
    """``max_pending`` slows an iterator down instead of failing it; all items run, at the rate."""
    source = Source(60, is_async=is_async)
    starts = []
    async with RateLimitedExecutor("x", rate=20, max_pending=limit) as executor:
        batch = executor.schedule_many(lambda _: starts.append(now()), source.items())
        while not batch.done():
            assert executor.statistics().waiting <= limit
            account(executor)
            await asyncio.sleep(0.05)
        assert 60 == (await batch).done
    assert 60 == len(starts) == source.drawn


@both
async def test_feed_leaves_room_for_nobody_else_and_goes_on_when_there_is(virtual_clock, is_async):
    """A feed continues as the full queue of other tasks empties."""
    source = Source(10, is_async=is_async)
    async with RateLimitedExecutor("x", max_pending=5) as executor:
        handles = [executor.schedule(int, delay=20) for _ in range(5)]
        with pytest.raises(BacklogFullError, match="max_pending is 5"):
            executor.schedule_many(int, source.items())
        handles.pop().cancel()
        batch = executor.schedule_many(int, source.items())
        await asyncio.sleep(10)
        assert 10 == (await batch).done


@both
async def test_items_over_a_time_are_drawn_as_they_come_due(virtual_clock, is_async):
    """Items spread over a time are drawn at most an interval ahead, and start in order, each at its time."""
    source = Source(100, is_async=is_async)
    log = []
    async with RateLimitedExecutor("x") as executor:
        began = now()
        batch = executor.schedule_many(lambda n: log.append((n, now() - began)), source.items(), over=50, count=100)
        for _ in range(48):
            await asyncio.sleep(1)
            assert (now() - began) * 2 <= source.drawn <= (now() - began + 2) * 2 + 2
        await batch
    assert list(range(100)) == [n for n, _ in log]
    assert all(n / 2 - 1e-6 <= at < n / 2 + 1.001 for n, at in log)


@both
@pytest.mark.parametrize("times", [{"delay": 5}, {"at": 5}])
async def test_items_of_one_due_time_wait_for_it(virtual_clock, is_async, times):
    """Items with one due time are drawn before it and start at it."""
    starts = []
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(0.5)
        if "at" in times:
            times = {"at": virtual_clock.wall() + 5}
        batch = executor.schedule_many(lambda _: starts.append(now()), Source(20, is_async=is_async).items(), **times)
        await batch
    assert 20 == len(starts)
    assert all(5.5 - 1e-6 <= at < 7 for at in starts)


@both
async def test_count_that_is_too_small_fails_the_batch_after_what_was_promised(virtual_clock, account, is_async):
    """With too small a count, the counted items run, and awaiting the batch raises."""
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(int, Source(5, is_async=is_async).items(), over=2, count=3)
        with pytest.raises(ValueError, match="count is 3"):
            await batch
        assert 3 == batch.summary.done == batch.total
        account(executor)


@both
async def test_source_that_ends_before_its_count_ends_the_batch(virtual_clock, is_async):
    """A source may end before its count, which only says how items are spread."""
    async with RateLimitedExecutor("x") as executor:
        assert 3 == (await executor.schedule_many(int, Source(3, is_async=is_async).items(), over=10, count=10)).done


@both
@pytest.mark.parametrize("fail_at", [0, 3])
async def test_failing_source_fails_the_batch_when_all_drawn_have_ended(virtual_clock, handler, is_async, fail_at):
    """The error of a source is raised by awaiting and by iterating, after all drawn items ended."""
    reports = handler()
    async with RateLimitedExecutor("x", rate=1) as executor:
        batch = executor.schedule_many(int, Source(9, is_async=is_async, fail_at=fail_at).items(), results=True)
        with pytest.raises(LookupError, match="source"):
            await batch
        assert fail_at == batch.summary.done
        assert max(0, fail_at - 1) == pytest.approx(now(), abs=0.01)
        seen = []
        with pytest.raises(LookupError, match="source"):
            async for index, outcome in batch:
                seen.append((index, outcome.result()))
        assert [(n, n) for n in range(fail_at)] == seen
        assert batch.done()
    assert [] == reports


@both
async def test_cancelled_batch_draws_no_more_and_closes_its_source(virtual_clock, account, is_async):
    """A cancelled batch cancels waiting items, lets running ones continue, and closes its source."""
    source = Source(None, is_async=is_async, every=0.01)
    async with RateLimitedExecutor("x", rate=5) as executor:
        batch = executor.schedule_many(lambda _: asyncio.sleep(3), source.items())
        await asyncio.sleep(1.05)
        waiting = executor.statistics().waiting
        assert waiting == batch.cancel()
        await asyncio.sleep(0.5)
        drawn = source.drawn
        assert source.closed
        summary = await batch
        assert summary.total == summary.done + summary.cancelled
        assert 6 == summary.done
        await asyncio.sleep(2)
        assert drawn == source.drawn
        account(executor)


@both
async def test_batch_cancelled_before_its_first_item_is_done(virtual_clock, is_async):
    """A batch cancelled before its first item is done at once, and releases its awaiters."""
    source = Source(None, is_async=is_async)
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(int, source.items())
        assert 0 == batch.cancel()
        assert 0 == (await batch).total == source.drawn
        assert batch.done()


@both
async def test_failing_items_are_counted_and_the_first_is_reported(virtual_clock, handler, is_async):
    """Failing items are counted, and one report is made for the whole batch."""
    reports = handler()

    def work(number):
        if number % 3 == 0:
            raise ValueError(number)

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(work, Source(10, is_async=is_async).items(), name="work")
        summary = await batch
    assert (6, 4) == (summary.done, summary.failed)
    assert ["0"] == [str(report["exception"]) for report in reports]
    assert "work[0]" in reports[0]["message"]


@both
async def test_outcomes_come_while_the_source_is_still_open(virtual_clock, is_async):
    """``async for`` yields outcomes as items end; leaving it early does not affect the batch."""
    source = Source(6, is_async=is_async, every=1)
    async with RateLimitedExecutor("x", rate=1) as executor:
        batch = executor.schedule_many(lambda n: n * n, source.items(), results=True)
        seen = []
        async for index, outcome in batch:
            seen.append((index, outcome.result(), round(now())))
            if index == 3:
                break
        assert [0, 1, 2, 3] == [index for index, _, _ in seen]
        assert not batch.done()
        assert 6 == (await batch).done
        assert {n: n * n for n in range(6)} == {index: one.result() for index, one in batch.results.items()}


@both
async def test_items_that_expire_are_counted_and_make_room(virtual_clock, account, is_async):
    """Expired items are counted and make room, so a feed under too low a rate ends."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        batch = executor.schedule_many(int, Source(1500, is_async=is_async).items(), expires=3)
        summary = await batch
        assert 1500 == summary.total == summary.done + summary.expired
        assert summary.done <= 12
        account(executor)


@both
async def test_paused_executor_stops_a_feed_within_its_bound(virtual_clock, is_async):
    """A paused executor stops a feed within its limit, and the feed continues afterwards."""
    source = Source(3000, is_async=is_async)
    async with RateLimitedExecutor("x") as executor:
        executor.pause()
        batch = executor.schedule_many(int, source.items())
        await asyncio.sleep(100)
        assert source.drawn <= 1001
        executor.resume()
        assert 3000 == (await batch).done


@both
async def test_two_feeds_share_the_permits(virtual_clock, audit, is_async):
    """Two feeds both end, and together they keep the law."""
    log = []
    async with ExecutorManager() as manager:
        executor = manager.executor("x", rate=10, max_pending=4)
        batches = [
            executor.schedule_many(
                lambda n, name=name: log.append((name, now())), Source(30, is_async=is_async).items()
            )
            for name in "ab"
        ]
        await asyncio.gather(*map(wait_for, batches))
    assert audit([at for _, at in log], 10).ok
    assert 60 == len(log)
    assert 30 == [name for name, _ in log].count("a")


async def wait_for(batch):
    return await batch


async def test_blocking_iterator_is_drawn_in_bounded_turns(virtual_clock):
    """Drawing a long list of items leaves the loop its turns."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with RateLimitedExecutor("x", rate=0, drain_timeout=0) as executor:
        counter = asyncio.create_task(count())
        executor.schedule_many(int, iter(range(100_000)))
        for _ in range(50):
            await asyncio.sleep(0)
        counter.cancel()
    assert turns >= 45


# Every item once.


ITEMS = [f"item {number}" for number in range(50)]


@pytest.mark.parametrize("begin", [0.0, 0.37])
@pytest.mark.parametrize(
    "times",
    [
        {},
        {"over": 0.5},
        {"over": 7},
        {"over": 3600},
        {"delay": 2.5},
        {"delays": [number * 0.1 for number in range(50)]},
    ],
    ids=str,
)
async def test_every_item_of_a_list_runs_once_in_due_order(
    virtual_clock: object, times: dict[str, object], begin: float
) -> None:
    """Items due in the running interval and in later ones run once each, in due order."""
    calls: list[str] = []
    await asyncio.sleep(begin)

    async with RateLimitedExecutor("work") as executor:
        batch = executor.schedule_many(calls.append, ITEMS, results=True, **times)
        await batch

    assert calls == ITEMS
    assert list(range(50)) == list(batch.results)


async def test_results_belong_to_their_items(virtual_clock: object) -> None:
    """The outcome at an index is that of the item at that index."""
    async with RateLimitedExecutor("work", rate=7) as executor:
        batch = executor.schedule_many(str.upper, ITEMS, over=5, results=True)
        await batch

    assert {index: item.upper() for index, item in enumerate(ITEMS)} == {
        index: outcome.result() for index, outcome in batch.results.items()
    }


@pytest.mark.parametrize("is_async", [False, True])
async def test_every_item_of_an_iterator_runs_once(virtual_clock: object, *, is_async: bool) -> None:
    """Items of an iterator are drawn as needed, and each runs once, evenly over a time."""
    calls: list[str] = []

    async def items() -> AsyncIterator[str]:
        for item in ITEMS:
            yield item

    async with RateLimitedExecutor("work") as executor:
        await executor.schedule_many(calls.append, items() if is_async else iter(ITEMS), over=9, count=50)

    assert calls == ITEMS


async def test_awaiters_of_a_batch_go_on_in_the_order_in_which_they_came(virtual_clock):
    """Awaiters of a batch continue in order of arrival, like those of a future."""
    order = []
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(len, ["a", "b"], delay=1)

        async def wait(number):
            await batch
            order.append(number)

        await asyncio.gather(*(wait(number) for number in range(50)))
    assert list(range(50)) == order


async def test_a_list_that_was_made_shorter_fails_the_tasks_that_lost_their_items(virtual_clock: object) -> None:
    """Tasks whose items were deleted from the list fail, also those that start one by one; nothing hangs."""
    policy = Paced(strictness=Strictness.NOMINAL)
    async with RateLimitedExecutor("x", rate="10/s", policy=policy) as executor:
        items, started = [1, 2, 3, 4, 5], []
        batch = executor.schedule_many(started.append, items, results=True)
        await asyncio.sleep(0.15)
        del items[3:]
        summary = await asyncio.wait_for(batch, 10)
        assert (3, 2) == (summary.done, summary.failed)
        assert [1, 2, 3] == started
        assert all(isinstance(batch.results[index].error, IndexError) for index in (3, 4))
