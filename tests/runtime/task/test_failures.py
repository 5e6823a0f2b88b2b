"""Kept exceptions: however often one is raised, its traceback does not grow, and keeps no caller's variables."""

import asyncio
import copy
import gc
import pickle
import traceback
import weakref

import pytest

from ratelimited_executor import ExecutorStoppedError, RateLimitedExecutor, WhenFull
from ratelimited_executor.blocking import BlockingManager
from ratelimited_executor.exceptions import TaskDroppedError, TaskExpiredError

COUNT = 50  # how often each exception is raised


class Variable:
    """What a caller has in its local variables."""


def fail(*_):
    raise ValueError("no")


async def fail_later(*_):
    await asyncio.sleep(0.1)
    raise ValueError("no")


def source():
    yield 1
    raise LookupError("source")


async def iterate(batch):
    async for _ in batch:
        pass


@pytest.mark.parametrize("fn", [fail, fail_later])
@pytest.mark.parametrize("way", ["await", "concurrent", "result", "expired", "dropped", "outcome", "batch", "iterate"])
async def test_traceback_of_a_kept_exception_does_not_grow(virtual_clock, fn, way):
    """Of all callers that get an exception, only the last one's variables are alive, and all see as many frames."""
    lengths, variables = set(), []
    async with RateLimitedExecutor("x", rate=1000, max_pending=1, when_full=WhenFull.DROP_OLDEST) as executor:
        kind, raises = ValueError, None
        if way in ("await", "concurrent", "result"):
            handle = executor.submit(fn)
        elif way in ("expired", "dropped"):
            kind = TaskExpiredError if way == "expired" else TaskDroppedError
            if way == "expired":
                executor.pause()
            handle = executor.submit(fn, expires=1)
            if way == "dropped":
                executor.submit(int)
        elif way == "outcome":
            batch = executor.schedule_many(fn, [1], results=True)
        else:
            batch = executor.schedule_many(int, source())
            kind = LookupError
        await asyncio.sleep(0 if way == "concurrent" else 3)
        if way == "outcome":
            outcome = batch.results[0]
            raises = outcome.result
        elif way == "result":
            raises = handle.result

        async def caller() -> None:
            variable = Variable()
            variables.append(weakref.ref(variable))
            try:
                if raises is not None:
                    raises()
                elif way == "batch":
                    await batch
                elif way == "iterate":
                    await iterate(batch)
                else:
                    await handle
            except kind as error:
                lengths.add(len(traceback.extract_tb(error.__traceback__)))

        if way == "concurrent":
            await asyncio.gather(*(caller() for _ in range(COUNT)))
        else:
            for _ in range(COUNT):
                await caller()
        executor.resume()
    gc.collect()
    assert len(variables) == COUNT
    assert len(lengths) == 1
    assert sum(variable() is not None for variable in variables) <= 1


async def test_copied_outcome_still_raises(virtual_clock):
    """An outcome can be copied and pickled, though a traceback cannot."""
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(fail, [1], results=True)
        await batch
    outcome = batch.results[0]
    for copied in (copy.copy(outcome), copy.deepcopy(outcome), pickle.loads(pickle.dumps(outcome))):
        assert (outcome.state, "ValueError('no')") == (copied.state, repr(copied.error))
        with pytest.raises(ValueError, match="no"):
            copied.result()


async def test_refusal_of_a_closed_room_keeps_no_caller(virtual_clock):
    """The error for callers that wait for room when the executor closes keeps none of them."""
    async with RateLimitedExecutor("x", max_pending=1, when_full=WhenFull.WAIT) as executor:
        room = executor._parts.backlog.room
    lengths, variables = set(), []

    async def caller() -> None:
        variable = Variable()
        variables.append(weakref.ref(variable))
        try:
            await room.wait(None)
        except ExecutorStoppedError as error:
            lengths.add(len(traceback.extract_tb(error.__traceback__)))

    for _ in range(COUNT):
        await caller()
    gc.collect()
    assert (1, COUNT) == (len(lengths), len(variables))
    assert sum(variable() is not None for variable in variables) <= 1


@pytest.mark.real_time("the loop runs in a thread of its own")
def test_failed_start_of_a_thread_keeps_no_caller():
    """Each use of a blocking manager raises the error of its failed start, with as many frames as the first."""

    class Clock:
        def monotonic(self):
            raise OSError("no clock")

        wall = monotonic

    manager = BlockingManager(clock=Clock())
    limiter = manager.limiter("api")
    lengths, variables = set(), []

    def caller() -> None:
        variable = Variable()
        variables.append(weakref.ref(variable))
        try:
            limiter.acquire()
        except OSError as error:
            lengths.add(len(traceback.extract_tb(error.__traceback__)))

    caller()
    lengths.clear()  # the first one has started the thread
    for _ in range(COUNT):
        caller()
    gc.collect()
    manager.close()
    assert 1 == len(lengths)
    assert sum(variable() is not None for variable in variables) <= 1
