"""Starts are recorded one at a time, and one that is not recorded does not happen."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import Ref
from ratelimited_executor._runtime.durable.outcomes import LeaseOverError
from ratelimited_executor._runtime.durable.starting import Starting
from ratelimited_executor.exceptions import StoreUnavailableError


class Store:
    """A store that takes a second for each call, and gives the next answer, or True."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.calls = []

    async def start(self, refs):
        self.calls.append([ref.number for ref in refs])
        await asyncio.sleep(1)
        answer = self.answers.pop(0) if self.answers else [True]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_each_task_starts_before_the_next_start_is_recorded(virtual_loop):
    """Concurrent starts are recorded one at a time, and each task starts before the next call: it alone is blamed."""
    store, started = Store(), []
    starting = Starting(store)

    async def start(number):
        await starting.add(Ref(number, 1))
        started.append((number, len(store.calls)))

    await asyncio.gather(*map(start, range(3)))
    assert [[0], [1], [2]] == store.calls
    assert [(0, 1), (1, 2), (2, 3)] == started


@pytest.mark.parametrize("answer", [[False], StoreUnavailableError("the store", "it is away")])
async def test_start_that_is_not_recorded_raises(virtual_loop, answer):
    """A claim that is no longer in force, or whose start the store cannot record, must not start."""
    starting = Starting(Store(answer))
    with pytest.raises(LeaseOverError, match="the task was not started, and waits in the store"):
        await starting.add(Ref(1, 1))
    await starting.add(Ref(1, 2))


async def test_error_or_cancellation_of_one_start_keeps_no_other(virtual_loop):
    """After an error of the store, or a cancellation, the next start is recorded."""
    starting = Starting(Store(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await starting.add(Ref(1, 1))
    waiting = [asyncio.ensure_future(starting.add(Ref(n, 2))) for n in range(2)]
    await asyncio.sleep(0.5)
    waiting[0].cancel()
    await waiting[1]
