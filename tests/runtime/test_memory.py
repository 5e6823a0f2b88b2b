"""Cancelling frees memory, and idle executors hold little."""

import asyncio
import gc
import tracemalloc
import weakref

import pytest

from ratelimited_executor import RateLimitedExecutor


@pytest.mark.slow
@pytest.mark.parametrize("face", ["call_later", "schedule"])
async def test_of_many_tasks_the_cancelled_are_freed_within_an_interval(virtual_clock, face):
    """Nine in ten of 100,000 tasks due in an hour are cancelled: at most a quarter of the bytes is left."""
    count = 100_000
    fired = set()
    gc.collect()
    tracemalloc.start()
    try:
        async with RateLimitedExecutor("x", drain_timeout=0) as executor:
            base = tracemalloc.get_traced_memory()[0]
            kept, doomed = {}, []
            for index in range(count):
                args = () if index % 10 else (index,)
                call = int if index % 10 else fired.add
                if face == "call_later":
                    handle = executor.call_later(3600.0, call, *args)
                else:
                    handle = executor.schedule(call, *args, delay=3600.0)
                if index % 10:
                    doomed.append(handle)
                else:
                    kept[index] = handle
            del handle
            gc.collect()
            peak = tracemalloc.get_traced_memory()[0] - base
            while doomed:
                doomed.pop().cancel()
            del doomed
            await asyncio.sleep(1)
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - base
            assert len(kept) == executor.statistics().waiting
            tracemalloc.stop()
            assert left <= peak * 0.25, (left, peak)
            kept.pop(500).cancel()
            await asyncio.sleep(3601)
            assert set(kept) == fired
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("when", [0.2, 5.0])
async def test_idle_executor_frees_the_places_of_what_has_run(virtual_clock, when):
    """After fifty thousand tasks the columns do not stay."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        for _ in range(50_000):
            executor.call_later(when, int)
        await asyncio.sleep(10)
        calendar = executor._engine.queue.on_time
        assert sum(len(bucket.calls) for bucket in calendar.opened) < 5_000
        assert not calendar.future


async def test_cancelled_batch_frees_its_items(virtual_clock):
    """Items that wait for an hour go with their batch."""

    class Item:
        pass

    items = [Item() for _ in range(10)]
    refs = [weakref.ref(item) for item in items]
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(id, items, delays=[3600.0] * 10)
        del items
        assert 10 == batch.cancel()
        await asyncio.sleep(0)
        gc.collect()
        assert [None] * 10 == [ref() for ref in refs]
