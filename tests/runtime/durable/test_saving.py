"""A running task saves how far it has come; many states are written at once, with beats and with ends."""

import asyncio
import threading

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableTasks, MemoryStore, Snooze, current_task
from ratelimited_executor.exceptions import StoreUnavailableError


@pytest.fixture
def saves(store, monkeypatch):
    """Return how many states each call has written."""
    counts = []
    save = MemoryStore.save

    async def counted(self, states):
        counts.append(len(states))
        await asyncio.sleep(0.01)  # as a store does, so that other calls come in between
        await save(self, states)

    monkeypatch.setattr(MemoryStore, "save", counted)
    return counts


@pytest.mark.parametrize("how", ["fails", "snoozes", "is released", "is requeued"])
async def test_the_next_attempt_gets_the_last_state(store, how):
    """An attempt that follows a failed, snoozed, released or requeued one has its last state, also in another process."""
    seen = []

    def process():
        tasks = DurableTasks(store)

        @tasks.task(retry=Retry(9, base=0.1, on=ValueError), name="f")
        async def fn():
            task = current_task()
            seen.append(task.saved)
            for n in range(3):
                task.save({"at": (task.saved or {"at": 0})["at"] + 1})
                assert n + 1 == task.saved["at"] - (seen[-1] or {"at": 0})["at"]
            if len(seen) < 3:
                if how == "fails":
                    raise ValueError
                if how == "snoozes":
                    raise Snooze(0.1)
                if how == "is requeued":
                    raise KeyError
                await asyncio.sleep(1000)

        return tasks, fn

    tasks, fn = process()
    async with tasks:
        ref = await fn.put()
    for _ in range(3):
        tasks, _ = process()
        async with RateLimitedExecutor("x") as executor, tasks.running(executor, drain_timeout=0):
            await asyncio.sleep(1)
            await tasks.requeue(ref.id)
    assert [None, {"at": 3}, {"at": 6}] == seen
    async with tasks:
        assert await tasks.ref(ref.id).row() is None


async def test_states_are_written_together_with_a_beat(store, saves):
    """A beat writes the last state of each task, by one call; a state that has not changed is not written again."""
    tasks = DurableTasks(store, lease=15)

    @tasks.task
    async def fn(n):
        for at in range(12):
            current_task().save([n, at])
            await asyncio.sleep(0.25)
        await asyncio.sleep(20)

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await tasks.put_many([fn.new(n) for n in range(30)])
        await asyncio.sleep(6)
        assert [30] == saves
        rows = await tasks.rows()
        assert {f"[[{n},11]]" for n in range(30)} == {row.saved.decode() for row in rows}
        await asyncio.sleep(20)
    assert [30] == saves


async def test_what_is_done_is_not_written(store, saves):
    """The state of a task that returns before a beat is written by none."""
    tasks = DurableTasks(store)

    @tasks.task
    async def fn():
        current_task().save(1)

    async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        await tasks.put_many([fn.new() for _ in range(10)])
        await asyncio.sleep(20)
        assert 10 == runner.statistics().done
    assert [] == saves


async def test_an_end_waits_for_a_state_that_is_under_way(store, monkeypatch):
    """An attempt that fails while a beat writes its state ends after that, and not before."""
    tasks = DurableTasks(store)
    save = MemoryStore.save
    writing = asyncio.Event()

    async def slow(self, states):
        writing.set()
        await asyncio.sleep(1)
        await save(self, states)

    monkeypatch.setattr(MemoryStore, "save", slow)
    seen = []

    @tasks.task(retry=Retry(2, base=0.1, on=ValueError))
    async def fn():
        seen.append(current_task().saved)
        if len(seen) == 1:
            current_task().save("here")
            await writing.wait()
            raise ValueError

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await fn.put()
        await asyncio.sleep(10)
    assert [None, "here"] == seen


async def test_states_outlast_a_store_that_is_away(store, monkeypatch):
    """States that a store could not write are written when it is back, before the attempt ends."""
    tasks = DurableTasks(store)
    save = MemoryStore.save
    away = True

    async def flaky(self, states):
        if away:
            raise StoreUnavailableError("the store", "it is away")
        await save(self, states)

    monkeypatch.setattr(MemoryStore, "save", flaky)
    seen = []

    @tasks.task(retry=Retry(2, base=0.1, on=ValueError))
    async def fn():
        seen.append(current_task().saved)
        if len(seen) == 1:
            current_task().save("here")
            raise ValueError

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await fn.put()
        await asyncio.sleep(3)
        assert [None] == seen
        away = False
        await asyncio.sleep(5)
    assert [None, "here"] == seen


async def test_a_state_that_cannot_be_saved_is_refused(store):
    """A state that cannot be encoded, or is too large, raises in the task, and the last one stays; outside of one there is none."""
    tasks = DurableTasks(store)
    seen = []

    @tasks.task
    async def fn():
        task = current_task()
        task.save("x" * (64 * 1024 - 4))
        for state, kind, words in ((object(), TypeError, "the state"), ({1: 2}, TypeError, "strings as keys"), (float("nan"), ValueError, "the state"), ("x" * 64 * 1024, ValueError, "at most 65,536 bytes, got 65,540")):  # fmt: skip
            with pytest.raises(kind, match=words):
                task.save(state)
        seen.append(len(task.saved))

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await fn.put()
        await asyncio.sleep(1)
    assert [64 * 1024 - 4] == seen


@pytest.mark.real_time("worker threads take real time")
async def test_threads_save_their_states():
    """Functions in worker threads save states while others are written, and each next attempt gets its own last one."""
    tasks = DurableTasks(MemoryStore(), lease=0.06)
    seen, lock = {}, threading.Lock()

    @tasks.task(in_thread=True, retry=Retry(4, base=0.001, on=ValueError))
    def fn(n):
        task = current_task()
        with lock:
            seen.setdefault(n, []).append(task.saved)
        for at in range(200):
            task.save([task.attempt_count, at])
        if task.attempt_count < 3:
            raise ValueError

    async with RateLimitedExecutor("x", max_concurrency=8) as executor, tasks.running(executor) as runner:
        await tasks.put_many([fn.new(n) for n in range(40)])
        async with asyncio.timeout(60):
            while runner.statistics().done < 40:
                await asyncio.sleep(0.01)
    assert [[None, [0, 199], [1, 199], [2, 199]]] * 40 == [seen[n] for n in range(40)]
