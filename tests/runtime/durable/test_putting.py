"""Puts that come while another is under way share the next transaction, and each gets its own answer."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import SIZE_MAX, NewTask
from ratelimited_executor._runtime.durable.putting import Putting, PuttingAhead
from ratelimited_executor.durable import DurableTasks, MemoryStore
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


async def test_a_chunk_is_put_while_the_next_one_is_made(store):
    """What makes the next chunk runs beside the transaction of the last one, and the transactions keep their order."""
    async with PuttingAhead(store, None) as ahead:
        for number in range(3):
            await asyncio.sleep(0.9)  # making it
            await ahead.put([NewTask(id="known" if number == 1 else str(number), name="f")])
    assert [True, False, True] == ahead.answers
    assert [1, 1, 1] == store.batches
    assert pytest.approx(0.9 + 3) == asyncio.get_running_loop().time()


async def test_what_was_put_before_an_error_of_the_maker_is_put(store):
    """An error of what makes the tasks comes after the transaction before it has ended."""
    with pytest.raises(ZeroDivisionError):
        async with PuttingAhead(store, None) as ahead:
            await ahead.put([NewTask(id="1", name="f")])
            raise ZeroDivisionError
    assert [True] == ahead.answers
    assert 1.0 == asyncio.get_running_loop().time()


async def test_after_a_failed_chunk_none_is_begun(store):
    """A chunk that could not be put ends the others, as no later task may be put before an earlier one."""
    store.error = StoreUnavailableError("store", "the disk is full")
    with pytest.raises(StoreUnavailableError, match="the disk is full"):
        async with PuttingAhead(store, None) as ahead:
            for number in range(3):
                await ahead.put([NewTask(id=str(number), name="f")])
    assert [1] == store.batches


async def test_cancelled_it_ends_its_transaction(store):
    """A cancellation ends the transaction that is under way, and leaves no task of the event loop."""

    async def put():
        async with PuttingAhead(store, None) as ahead:
            await ahead.put([NewTask(id="1", name="f")])
            await asyncio.sleep(60)

    putting = asyncio.create_task(put())
    await asyncio.sleep(0.5)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert {asyncio.current_task()} == asyncio.all_tasks()
    assert 0.5 == asyncio.get_running_loop().time()


async def test_the_loop_has_its_turns_while_many_are_made():
    """Other tasks of the loop run while an iterator makes a chunk."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with DurableTasks(MemoryStore()) as tasks:
        function = tasks.task(print)
        counting = asyncio.create_task(count())
        await tasks.put_many(function.new(number) for number in range(900))
        counting.cancel()
    assert 18 <= turns


async def test_cancelled_after_a_failed_chunk_it_is_cancelled(store):
    """The error of a chunk does not take the place of a cancellation, which whoever has cancelled waits for."""
    store.error = StoreUnavailableError("store", "the disk is full")

    async def put():
        async with PuttingAhead(store, None) as ahead:
            await ahead.put([NewTask(id="1", name="f")])
            await asyncio.sleep(60)

    putting = asyncio.create_task(put())
    await asyncio.sleep(5)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert {asyncio.current_task()} == asyncio.all_tasks()
