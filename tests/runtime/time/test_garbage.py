"""Garbage collections: a task is not blamed for the time that they take."""

import gc
import logging
import time

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.time.garbage import LONG_COLLECTIONS, LongCollections
from ratelimited_executor.testing import run_virtual


class Clock:
    """A time in seconds, set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def collect(collections: LongCollections, clock: Clock, begin: float, end: float) -> None:
    """Run a collection from one time to another."""
    clock.now = begin
    collections._note("start", {})
    clock.now = end
    collections._note("stop", {})


def test_only_long_collections_are_noted_and_only_late_ones_are_added_up():
    """Collections of 5 ms and more count, by the time of their end."""
    clock = Clock()
    collections = LongCollections(clock)
    collect(collections, clock, 1.0, 1.25)
    collect(collections, clock, 2.0, 2.004)
    collect(collections, clock, 3.0, 3.5)
    assert collections.seconds_since(0) == pytest.approx(0.75)
    assert collections.seconds_since(1.25) == pytest.approx(0.5)
    assert not collections.seconds_since(3.5)


def test_they_are_watched_as_long_as_anybody_wants_to_know():
    """One callback of the collector serves all watchers, as long as there are any."""
    collections = LongCollections()
    before = len(gc.callbacks)
    collections.watch()
    collections.watch()
    assert len(gc.callbacks) == before + 1
    collections.unwatch()
    assert len(gc.callbacks) == before + 1
    collections.unwatch()
    assert len(gc.callbacks) == before


def test_virtual_time_is_not_watched():
    """Collections are not watched on a virtual clock, where they take no time."""

    async def main():
        before = LONG_COLLECTIONS._user_count  # of other tests, which leave an executor open on purpose
        async with RateLimitedExecutor("x") as executor:
            await executor.schedule(int)
            return LONG_COLLECTIONS._user_count - before

    assert run_virtual(main()) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.3], ids=["only a collection", "and the task itself"])
async def test_a_collection_in_a_task_is_named_as_such(caplog, seconds):
    """A collection is named as the cause of a hold. Real time: it takes 0.2 s, and a busy machine only adds to it."""

    def slow(phase, _):
        if phase == "start":
            time.sleep(0.2)

    def task():
        gc.collect()
        time.sleep(seconds)

    before = LONG_COLLECTIONS._user_count
    async with RateLimitedExecutor("x") as executor:
        await executor.submit(int)
        assert LONG_COLLECTIONS._user_count == before + 1
        assert LONG_COLLECTIONS._note in gc.callbacks
        gc.callbacks.append(slow)  # after the one that notes the begin
        try:
            with caplog.at_level(logging.WARNING, "ratelimited_executor"):
                await executor.schedule(task)
        finally:
            gc.callbacks.remove(slow)
    assert LONG_COLLECTIONS._user_count == before
    messages = [record.getMessage() for record in caplog.records if "held the event loop" in record.getMessage()]
    assert len(messages) == 1
    if seconds:
        assert "task held the event loop for" in messages[0]
        assert float(messages[0].split(" for ")[1].split(" ms")[0]) >= 250
    else:
        assert "garbage collections held the event loop for" in messages[0]
