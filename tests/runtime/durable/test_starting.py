"""Starts are recorded in batches, and one that is not recorded does not happen."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import Ref
from ratelimited_executor._runtime.durable.outcomes import LeaseOverError
from ratelimited_executor._runtime.durable.starting import Starting
from ratelimited_executor.exceptions import StoreUnavailableError


class Store:
    """A store that takes a second for each call, and gives the next answer."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.calls = []

    async def start(self, refs):
        self.calls.append([ref.number for ref in refs])
        await asyncio.sleep(1)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_starts_during_a_call_share_the_next(virtual_loop):
    """The first start goes alone, and those that arrive meanwhile share a call."""
    store = Store([True], [True, True])
    starting = Starting(store)
    await asyncio.gather(*(starting.add(Ref(n, 1)) for n in range(1)), _later(starting, 1), _later(starting, 2))
    assert [[0], [1, 2]] == store.calls


async def _later(starting, number):
    await asyncio.sleep(0.5)
    await starting.add(Ref(number, 1))


@pytest.mark.parametrize("answer", [[False], StoreUnavailableError("the store", "it is away")])
async def test_start_that_is_not_recorded_raises(virtual_loop, answer):
    """A claim that is no longer in force, or whose start the store cannot record, must not start."""
    starting = Starting(Store(answer, [True]))
    with pytest.raises(LeaseOverError):
        await starting.add(Ref(1, 1))
    await starting.add(Ref(1, 2))


async def test_error_of_the_store_lets_nobody_wait(virtual_loop):
    """Waiters are answered whatever the store raises, and one that is cancelled does not keep the others."""
    starting = Starting(Store(ZeroDivisionError(), [True, True]))
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["exception"]))
    with pytest.raises(LeaseOverError):
        await starting.add(Ref(1, 1))
    waiting = [asyncio.ensure_future(starting.add(Ref(n, 2))) for n in range(2)]
    await asyncio.sleep(0.5)
    waiting[0].cancel()
    await waiting[1]
