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
    """After nine in ten of 100,000 tasks are cancelled, at most a quarter of the bytes is left."""
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
    """An idle executor frees the columns of the fifty thousand tasks that have run."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        for _ in range(50_000):
            executor.call_later(when, int)
        await asyncio.sleep(10)
        calendar = executor._engine.queue.on_time
        assert sum(len(bucket.calls) for bucket in calendar.opened) < 5_000
        assert not calendar.future


async def test_cancelled_batch_frees_its_items(virtual_clock):
    """A cancelled batch frees its items, even if they were due in an hour."""

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


class _Service:
    """An object that owns an executor, and whose method the executor calls."""

    def __init__(self, executor):
        self.executor = executor

    def call(self, *_):
        """Do nothing."""


@pytest.mark.parametrize("face", ["call_later", "schedule", "submit", "execute", "schedule, half cancelled"])
def test_executor_that_nobody_closes_is_collected_with_what_waits(face):
    """An unclosed executor and its waiting tasks are collected once the loop is closed, despite their cycle."""

    async def leave_it_open():
        executor = RateLimitedExecutor("x", rate=0)
        await executor.start()
        service = _Service(executor)
        for index in range(1000):
            argument = _Service(executor)
            if face == "call_later":
                executor.call_later(5.0, service.call, argument)
            elif face in ("submit", "execute"):
                getattr(executor, face)(service.call, argument)
            else:
                handle = executor.schedule(service.call, argument, delay=5.0)
                if index % 2 and "cancelled" in face:
                    handle.cancel()
        return weakref.ref(service), weakref.ref(argument)

    service, argument = asyncio.run(leave_it_open())
    gc.collect()
    assert (None, None) == (service(), argument())


async def test_what_waits_is_whole_however_often_it_is_collected(virtual_clock):
    """Handles kept, dropped, cancelled or awaited stay intact with a collection every few allocations."""
    seen = []
    threshold = gc.get_threshold()
    gc.set_threshold(10, 2, 1)
    try:
        async with RateLimitedExecutor("x") as executor:
            kept = {}
            for index in range(2000):
                handle = executor.schedule(lambda number, _: seen.append(number), index, [index], delay=0.5 + index % 7)
                if index % 3 == 0:
                    kept[index] = handle
                if index % 5 == 0:
                    handle.cancel()
                if index % 11 == 0:
                    await asyncio.sleep(0.01)
            assert all(gc.is_tracked(handle) for index, handle in kept.items() if index % 5 == 0)
            del handle
    finally:
        gc.set_threshold(*threshold)
    assert sorted(seen) == [index for index in range(2000) if index % 5]
    assert all(gc.is_tracked(handle) for handle in kept.values())
    assert all(handle.cancelled() == (index % 5 == 0) for index, handle in kept.items())
