"""Waiting for the result of a durable task: its end, why there is none, and a store that is closed or away."""

import asyncio
import pickle
import sys

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks, JSONCodec, MemoryStore
from ratelimited_executor.exceptions import NoResultError, StoreUnavailableError

from .conftest import Process


@pytest.fixture
def tasks(store):
    """Return durable tasks."""
    return DurableTasks(store)


def running(tasks):
    """Return a context in which tasks run."""
    executor = RateLimitedExecutor("x")

    class Running:
        async def __aenter__(self):
            await executor.start()
            self.inner = tasks.running(executor)
            return await self.inner.__aenter__()

        async def __aexit__(self, *error):
            await self.inner.__aexit__(*error)
            await executor.aclose()

    return Running()


@pytest.mark.parametrize("result", [7, None, [1, {"a": "ü"}], "x" * 4000])
async def test_the_result_is_returned_to_all_who_wait(store, tasks, result):
    """Before and after the end, once or often, in this process or another, a wait returns what the function returned."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        await asyncio.sleep(2)
        return result

    other = DurableTasks(store)
    async with other, running(tasks):
        ref = await fn.put()
        waits = [asyncio.ensure_future(each.wait()) for each in (ref, ref, other.ref(ref.id))]
        assert [result] * 3 == await asyncio.gather(*waits)
        assert 2 <= asyncio.get_running_loop().time() < 2.2
        assert result == await ref.wait(1)
        assert result == await other.ref(ref.id).wait(1)
        [row] = await other.history()
        assert (2_000_000, 0, "fn", "default") == (row.run_us, row.attempt_count, row.name, row.queue)


async def test_a_result_that_was_not_asked_for_is_none(tasks):
    """A wait for a task whose function keeps no results returns None."""

    @tasks.task(keep="1h")
    async def fn():
        return 7

    async with running(tasks):
        assert await (await fn.put()).wait() is None
        [row] = await tasks.history()
        assert ("done", None, "") == (row.end, row.result, row.error)


async def test_why_there_is_no_result(tasks):
    """A dead letter, a cancelled, an expired, an unknown task and one that is not kept each end the wait with their reason."""

    @tasks.task(keep="1h")
    async def fails():
        raise BufferError("no money")

    @tasks.task(keep="1h")
    async def takes_long():
        await asyncio.sleep(1000)

    @tasks.task
    async def forgets():
        return 7

    async def end_of(ref):
        with pytest.raises(NoResultError) as caught:
            await ref.wait(60)
        assert caught.value.id == ref.id
        assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))
        return caught.value.end, str(caught.value)

    async with running(tasks):
        end, text = await end_of(await fails.put())
        assert "dead" == end
        assert "BufferError: no money" in text
        ref = await takes_long.put()
        waiting = asyncio.ensure_future(end_of(ref))
        await asyncio.sleep(1)
        await ref.cancel()
        assert ("cancelled", f"{ref.id} was cancelled") == await waiting
        unknown = [await end_of(tasks.ref("x")), await end_of(await forgets.put())]
        later = await takes_long.put(delay=500)
        waiting = asyncio.ensure_future(end_of(later))
        await asyncio.sleep(1)
        await later.cancel()
        unknown.append(await waiting)
        assert ["unknown"] * 3 == [end for end, _ in unknown]
        assert all("give its function keep=" in text for _, text in unknown)


async def test_a_task_that_expires_on_the_executor(store):
    """A task that is claimed and does not start in time is kept as expired."""
    process = Process(store, rate="1/m")
    late = process.tasks.task(name="late", keep="1h")(lambda: None)
    async with process.executor, process.tasks.running(process.executor):
        await process.note.put(1)
        await asyncio.sleep(1)
        ref = await late.put(expires=5)
        with pytest.raises(NoResultError, match="has expired"):
            await ref.wait(30)
        [row] = await process.tasks.history(function=late)
        assert ("expired", 0) == (row.end, row.run_us)


@pytest.mark.parametrize("result", ["x" * 4093, object(), {1: 2}])
async def test_a_result_that_cannot_be_kept(tasks, result):
    """A task whose result is too large or cannot be encoded is done all the same, and the wait says why there is none."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        return result

    async with running(tasks) as runner:
        ref = await fn.put()
        with pytest.raises(
            NoResultError, match="is done, and its result is not kept: .*the result|strings as keys"
        ) as caught:
            await ref.wait()
        assert ("done", 1) == (caught.value.end, runner.statistics().done)
        [row] = await tasks.history()
        assert (None, True) == (row.result, row.error in str(caught.value))


async def test_a_codec_that_raises_anything(store):
    """Whatever a codec raises for a result, or returns, the task is done."""

    class Odd(JSONCodec):
        def dumps(self, arguments):
            if arguments == [None]:
                raise RecursionError("\0\udc00")
            return "text" if arguments == [1] else super().dumps(arguments)

    tasks = DurableTasks(store, codec=Odd())

    @tasks.task(keep="1h", keep_result=True)
    async def fn(what):
        return what

    async with running(tasks):
        for what, words in ((1, "codec must return bytes"), (None, r"\\0")):
            with pytest.raises(NoResultError, match=words):
                await (await fn.put(what)).wait()


async def test_a_wait_ends_at_its_time_or_is_cancelled(tasks):
    """A wait that is over leaves the task as it is, and nothing behind; others go on."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        await asyncio.sleep(20)
        return 7

    async with running(tasks):
        ref = await fn.put()
        waiting = asyncio.ensure_future(ref.wait())
        cancelled = asyncio.ensure_future(ref.wait())
        with pytest.raises(TimeoutError):
            await ref.wait("3s")
        assert 3 <= asyncio.get_running_loop().time() < 3.1
        cancelled.cancel()
        await asyncio.sleep(0)
        assert cancelled.cancelled()
        assert 7 == await waiting
        assert {} == tasks._waiting._waiters
    with pytest.raises(ValueError, match="timeout"):
        await ref.wait(0)


async def test_a_store_that_is_closed_meanwhile(store, tasks):
    """Who waits when the store is closed gets an error, and can wait again once it is open."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        return 7

    before = asyncio.all_tasks()
    async with tasks:
        ref = await fn.put(delay=10)
        waiting = asyncio.ensure_future(ref.wait())
        await asyncio.sleep(1)
    with pytest.raises(StoreUnavailableError, match="closed during a wait"):
        await waiting
    assert before == asyncio.all_tasks()
    with pytest.raises(StoreUnavailableError, match="it is not open"):
        await ref.wait()
    async with running(tasks):
        assert 7 == await ref.wait()


async def test_a_close_that_is_cancelled_lets_waits_fail_as_well(tasks):
    """Nobody waits for ever for a store that nobody looks at."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        return 7

    async with tasks:
        ref = await fn.put(delay=10)
        waiting = asyncio.ensure_future(ref.wait())
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(tasks._waiting.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(StoreUnavailableError, match="closed during a wait"):
            await waiting
        assert closing.cancelled()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_a_failed_wait_is_not_the_last_where_tasks_are_eager(tasks, monkeypatch):
    """After a store has failed at once, the next wait looks again."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        return 7

    async def away(*_):
        raise StoreUnavailableError("the store", "it is away")

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with running(tasks):
        ref = await fn.put(delay=10)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "wait", away)
            with pytest.raises(StoreUnavailableError, match="it is away"):
                await ref.wait()
        assert 7 == await ref.wait(60)


@pytest.mark.parametrize("call", ["ended", "wait"])
async def test_a_store_that_is_away(store, tasks, monkeypatch, call):
    """Who waits when the store cannot be read gets its error, and can wait again."""

    @tasks.task(keep="1h", keep_result=True)
    async def fn():
        return 7

    async def away(*_):
        raise StoreUnavailableError("the store", "it is away")

    async with tasks:
        ref = await fn.put(delay=10)
        waiting = asyncio.ensure_future(ref.wait())
        await asyncio.sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, call, away)
            with pytest.raises(StoreUnavailableError, match="it is away"):
                await waiting
        async with running(tasks):
            assert 7 == await ref.wait()


async def test_many_waits_share_their_looks(store, tasks, monkeypatch):
    """Beside a store that changes all the time, a hundred waits look once in some time, and each hears of its end."""
    looks = []
    ended = MemoryStore.ended

    async def counted(self, ids):
        looks.append(len(ids))
        return await ended(self, ids)

    monkeypatch.setattr(MemoryStore, "ended", counted)

    @tasks.task(keep="1h", keep_result=True)
    async def fn(n):
        return n

    noise = tasks.task(name="noise")(lambda: None)
    async with running(tasks):
        refs = [await fn.put(n, delay=1 + n / 50) for n in range(100)]
        waits = [asyncio.ensure_future(ref.wait()) for ref in refs]
        for _ in range(300):
            await noise.put()
            await asyncio.sleep(0.01)
        assert list(range(100)) == await asyncio.gather(*waits)
    assert 60 <= len(looks) - 100 <= 150  # beside the first look of each


async def test_history_lists_what_a_function_has_ended(tasks):
    """The history is listed from the last end on, by function and in parts, and is gone after its time."""
    a = tasks.task(name="a", keep="1h")(lambda: None)
    b = tasks.task(name="b", keep=10)(lambda: None)
    async with running(tasks):
        for n in range(3):
            await a.put(id=f"a{n}")
            await b.put(id=f"b{n}")
            await asyncio.sleep(1)
        assert ["a2", "a1", "a0"] == [row.id for row in await tasks.history(function=a)]
        assert ["b2"] == [row.id for row in await tasks.history(function="b", limit=1)]
        rows = await tasks.history(limit=4)
        assert 2 == len(await tasks.history(before=rows[-1].number))
        await asyncio.sleep(30)
        assert ["a2", "a1", "a0"] == [row.id for row in await tasks.history()]
        await asyncio.sleep(3600)
        assert [] == await tasks.history()


async def test_without_keep_nothing_is_kept(store, tasks):
    """A function without ``keep=`` leaves nothing behind, and ``keep_result=`` needs it."""
    fn = tasks.task(name="fn")(lambda: 7)
    with pytest.raises(TypeError, match="keep_result=True needs keep="):
        tasks.task(name="y", keep_result=True)(lambda: 7)
    with pytest.raises(ValueError, match="keep"):
        tasks.task(name="x", keep=0)(lambda: 7)
    async with running(tasks):
        await fn.put()
        await asyncio.sleep(1)
        assert [] == await tasks.history()


async def test_a_put_beside_a_cancellation_is_claimed_at_once(store, tasks, monkeypatch):
    """A put that comes while a runner follows a cancellation, and of which another waiter hears, is claimed at once."""
    cancelled = MemoryStore.cancelled

    async def slow(self, owner):
        await asyncio.sleep(1)
        return await cancelled(self, owner)

    monkeypatch.setattr(MemoryStore, "cancelled", slow)

    @tasks.task(keep="1h", keep_result=True)
    async def fn(seconds=0):
        await asyncio.sleep(seconds)
        return round(asyncio.get_running_loop().time(), 1)

    async with running(tasks):
        waiting = asyncio.ensure_future((await fn.put(60)).wait())
        other = await fn.put(60)
        await asyncio.sleep(6.1)
        await other.cancel()
        await asyncio.sleep(0.5)
        assert 7.1 == await (await fn.put()).wait()
        waiting.cancel()
