"""Puts that come while one is under way share the next transaction, and everybody hears of the own one."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import NewTask
from ratelimited_executor._runtime.durable.putting import Putting
from ratelimited_executor.exceptions import StoreUnavailableError


class SlowStore:
    """Takes a second for each transaction."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.error: Exception | None = None

    async def put(self, tasks):
        self.batches.append(len(tasks))
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        return [task.id != "known" for task in tasks]


@pytest.fixture
def store(virtual_clock):
    """A store that takes its time."""
    return SlowStore()


@pytest.fixture
def put(store):
    """Put a task with an id."""
    putting = Putting(store)

    def call(id):
        return asyncio.ensure_future(putting.put(NewTask(id=str(id), name="f")))

    call.putting = putting
    return call


async def test_first_goes_alone_and_the_others_together(store, put):
    """Nobody waits for company; five hundred at most share a transaction."""
    puts = [put(0)]
    await asyncio.sleep(0.1)
    puts += [put(n) for n in range(1, 701)]
    assert {True} == set(await asyncio.gather(*puts))
    assert [1, 500, 200] == store.batches
    assert 3.0 == asyncio.get_running_loop().time()


async def test_each_hears_whether_it_is_new(store, put):
    """In one transaction."""
    assert [True, False, True] == await asyncio.gather(put(1), put("known"), put(2))


async def test_error_reaches_all_of_its_transaction_and_the_next_goes_on(store, put):
    """As the store said it."""
    store.error = StoreUnavailableError("store", "the disk is full")
    failed = await asyncio.gather(put(1), put(2), return_exceptions=True)
    assert [store.error] * 2 == failed
    store.error = None
    assert await put(3)


async def test_who_is_cancelled_does_not_keep_the_others(store, put):
    """What it has handed over may be put all the same."""
    first, second = put(1), put(2)
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second
    assert [2] == store.batches


async def test_closing_waits_for_what_was_handed_over(store, put):
    """All of it."""
    puts = [put(n) for n in range(501)]
    await asyncio.sleep(0.1)
    await put.putting.aclose()
    assert all(each.done() and each.result() for each in puts)
