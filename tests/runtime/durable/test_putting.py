"""Puts that come while another is under way share the next transaction, and each gets its own answer."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import SIZE_MAX, NewTask
from ratelimited_executor._runtime.durable.putting import Putting
from ratelimited_executor.exceptions import StoreUnavailableError


class SlowStore:
    """A store that takes a second for each transaction."""

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
    """Return a slow store."""
    return SlowStore()


@pytest.fixture
def put(store):
    """Return a function that puts a task with an id."""
    putting = Putting(store)

    def call(id):
        return asyncio.ensure_future(putting.put(NewTask(id=str(id), name="f")))

    call.putting = putting
    return call


async def test_first_goes_alone_and_the_others_together(store, put):
    """The first put starts at once, and later ones share transactions of at most five hundred."""
    puts = [put(0)]
    await asyncio.sleep(0.1)
    puts += [put(n) for n in range(1, 701)]
    assert {True} == set(await asyncio.gather(*puts))
    assert [1, 500, 200] == store.batches
    assert 3.0 == asyncio.get_running_loop().time()


async def test_large_tasks_share_transactions_by_their_bytes(store):
    """A transaction has at most eight mebibytes of arguments, and a larger task is put alone."""
    putting = Putting(store)
    sizes = [1, *[256 * 1024] * 70, SIZE_MAX + 1, 1]
    tasks = [NewTask(id=str(n), name="f", body=bytes(size)) for n, size in enumerate(sizes)]
    assert {True} == set(await asyncio.gather(*map(putting.put, tasks)))
    assert [32, 32, 7, 1, 1] == store.batches


async def test_each_hears_whether_it_is_new(store, put):
    """Each put returns whether its own task is new, although they share a transaction."""
    assert [True, False, True] == await asyncio.gather(put(1), put("known"), put(2))


async def test_error_reaches_all_of_its_transaction_and_the_next_goes_on(store, put):
    """An error of the store reaches all puts of its transaction unchanged, and the next transaction succeeds."""
    store.error = StoreUnavailableError("store", "the disk is full")
    failed = await asyncio.gather(put(1), put(2), return_exceptions=True)
    assert [store.error] * 2 == failed
    store.error = None
    assert await put(3)


async def test_who_is_cancelled_does_not_keep_the_others(store, put):
    """Cancelling one put does not affect the others of its transaction, in which its task is written all the same."""
    first, second = put(1), put(2)
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second
    assert [2] == store.batches


async def test_closing_waits_for_what_was_handed_over(store, put):
    """Closing waits until every task that was handed over is written."""
    puts = [put(n) for n in range(501)]
    await asyncio.sleep(0.1)
    await put.putting.aclose()
    assert all(each.done() and each.result() for each in puts)
