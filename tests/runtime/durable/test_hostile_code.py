"""Durable tasks beside code that misbehaves: functions, policies, codecs, stores, and processes that end badly."""

import asyncio
import contextlib
import json
import math
import threading
import time

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry, RetryLater
from ratelimited_executor._core.durable.tasks import End, TaskOutcome
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.testing import run_virtual

from ...helpers import skip_without_apsw
from .conftest import FaultyStore, Process
from .crashes import kept_open


async def dead_letter_of(process, put, *, others=5):
    """Put one task among others, run all, and return the error of the one; the others must have run."""
    async with process.tasks:
        await put()
        for n in range(others):
            await process.note.put(n)
        await process.run(3)
        assert set(range(others)) <= set(process.names)
        rows = await process.tasks.rows()
        assert [DurableState.DEAD] == [row.state for row in rows]
        return rows[0].error


async def test_cost_that_the_executor_cannot_take_makes_a_dead_letter(process):
    """A cost whose resource the executor no longer has makes a dead letter, and claiming continues."""
    error = await dead_letter_of(process, lambda: process.note.put("a", cost={"tokens": 5}))
    assert "mail does not take it" in error
    assert "cost names 'tokens'" in error


class Policy:
    """A policy like tenacity's that returns the given pause, or raises it."""

    def __init__(self, pause) -> None:
        self.pause = pause

    def retry(self, state):
        return True

    def stop(self, state):
        return False

    def wait(self, state):
        if isinstance(self.pause, Exception):
            raise self.pause
        return self.pause


@pytest.mark.parametrize("pause", ["soon", None, KeyError("policy")])
async def test_policy_that_gives_no_pause_makes_a_dead_letter(store, pause):
    """The error of a policy that raises, or gives no valid pause, is kept in the dead letter beside the task's own."""
    process = Process(store, retry=Policy(pause))
    error = await dead_letter_of(process, lambda: process.note.put("bad"))
    assert "ValueError: bad" in error
    assert "During handling" in error


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.real_time("a file's store has a thread")
@pytest.mark.parametrize("retry", [Policy(math.inf), Policy(1e300), Retry(3, base=1e200, cap=1e200, on=ValueError)])
async def test_pause_of_ages_can_be_kept(tmp_path, kind, retry):
    """A retry after a pause larger than stores can hold is scheduled, and tasks that end beside it are ended."""
    if kind == "sqlite":
        skip_without_apsw()
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "tasks.db")
    process = Process(store, retry=retry)
    async with process.tasks:
        ref = await process.note.put("bad")
        await process.note.put("good")
        async with process.executor, process.tasks.running(process.executor) as runner:
            async with asyncio.timeout(20):
                while runner.statistics().done + runner.statistics().retried < 2:
                    await asyncio.sleep(0.01)
        assert DurableState.SCHEDULED == await ref.state()


@pytest.mark.parametrize(
    "error", [type("Base", (BaseException,), {}), GeneratorExit, asyncio.CancelledError, StopIteration]
)
async def test_task_that_raises_what_is_no_exception_is_a_dead_letter(process, error):
    """A task that raises a BaseException becomes a dead letter, and other tasks run."""

    @process.tasks.task
    async def odd():
        raise error

    await dead_letter_of(process, odd.put)


async def test_exception_that_cannot_be_shown_is_kept(process, capsys, monkeypatch):
    """The dead letter of an exception without a text has the name of its class."""
    monkeypatch.setattr("logging.raiseExceptions", False)

    class Odd(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

    @process.tasks.task
    async def odd():
        raise Odd

    assert "Odd" in await dead_letter_of(process, odd.put)


def test_task_that_ends_its_process_by_an_exit_is_a_dead_letter_of_the_first_time():
    """SystemExit in a task makes a dead letter at the first time, or the task would end every process after it."""
    store = MemoryStore()
    for life in range(2):

        async def live() -> None:
            tasks = DurableTasks(store)

            @tasks.task
            async def leave():
                raise SystemExit(3)

            async with kept_open(store), RateLimitedExecutor("x") as executor, tasks.running(executor):
                if life == 0:
                    await leave.put(id="a")
                await asyncio.sleep(1)

        store._changed = asyncio.Event()
        if life == 0:
            with pytest.raises(SystemExit):
                run_virtual(live())
        else:
            run_virtual(live(), seed=2)
        [row] = store._table.rows(None, after=0, limit=10)
        assert DurableState.DEAD is row.state


@pytest.mark.parametrize("options", [
    {"delay": 2e12}, {"at": 1e300}, {"at": -1e300}, {"expires": 1e15}, {"priority": math.inf}, {"priority": math.nan},
])  # fmt: skip
async def test_number_that_no_store_holds_is_refused_at_once(process, options):
    """It is refused in the call: stores would differ, and an error of the store would fail the whole transaction."""
    async with process.tasks:
        with pytest.raises(ValueError, match=next(iter(options))):
            await process.note.put("a", **options)
    with pytest.raises(ValueError, match="expires"):
        process.tasks.task(name="f", expires=1e15)(process._note)
    with pytest.raises(ValueError, match="version must be <= 2147483647"):
        process.tasks.task(name="f", version=2**31)(process._note)


@pytest.mark.real_time("a file's store has a thread")
async def test_numbers_at_their_bounds_are_kept(tmp_path):
    """Delays of ages, the year 9999, negative zero, the largest version and an expiry in the past are accepted."""
    skip_without_apsw()
    process = Process(SQLiteStore(tmp_path / "tasks.db"))
    process.tasks.task(name="last", version=2**31 - 1)(process._note)
    async with process.tasks:
        await process.note.put("a", delay=1e12, expires=1e12)
        await process.note.put("b", at=253402300799, priority=-0.0)
        await process.note.put("c", at=-1e12, expires=1e-6)
        await process.note.put("d", priority=-1e308)
        async with process.executor, process.tasks.running(process.executor) as runner, asyncio.timeout(30):
            while (runner.statistics().done, runner.statistics().expired) != (1, 1):
                await asyncio.sleep(0.01)
        assert ["d"] == process.names
        assert 2 == (await process.tasks.counts())[DurableState.SCHEDULED]


async def test_async_function_in_a_thread_is_refused_when_it_is_registered(process):
    """The error is raised at registration, and not at each attempt."""
    with pytest.raises(TypeError, match="_note is async and cannot run in a worker thread"):
        process.tasks.task(in_thread=True)(process._note)


async def test_codec_that_writes_text_is_refused(store):
    """A codec that returns text, as the module json does, is refused by the put, and does not fail the transaction."""
    tasks = DurableTasks(store, codec=json)

    @tasks.task
    async def work(n): ...

    async with tasks:
        with pytest.raises(TypeError, match="codec must return bytes, got str for the arguments of work"):
            await work.put(1)


@pytest.mark.parametrize("loaded", [None, [1], [[], {}, 1], KeyError("codec")])
async def test_codec_that_reads_nonsense_makes_a_dead_letter(process, loaded):
    """Arguments that the codec fails to read, or reads as something else, make a dead letter."""

    class Codec:
        dumps = process.tasks.codec.dumps

        def loads(self, body):
            if b"odd" not in body:
                return json.loads(body)
            if isinstance(loaded, Exception):
                raise loaded
            return loaded

    process.tasks.codec = Codec()
    assert "its arguments cannot be read" in await dead_letter_of(process, lambda: process.note.put("odd"))


async def test_iterator_that_raises_leaves_whole_thousands(process):
    """``put_many`` raises the error of an iterator, and the thousands of tasks written before remain."""

    def tasks():
        for n in range(2500):
            yield process.note.new(n)
        raise KeyError

    async with process.tasks:
        with pytest.raises(KeyError):
            await process.tasks.put_many(tasks())
        assert 2000 == (await process.tasks.counts())[DurableState.READY]


async def test_tasks_put_tasks_also_while_their_process_closes(store):
    """Tasks may put tasks while their process closes, and each put that returned has its task run."""
    first, second = Process(store), Process(store)
    put = []

    @first.tasks.task
    async def more(n):
        await asyncio.sleep(0.5)
        await first.note.put(f"from {n}")
        put.append(f"from {n}")

    async with first.executor:
        async with first.tasks.running(first.executor):
            for n in range(5):
                await more.put(n)
            await asyncio.sleep(0.3)
    assert 5 == len(put)
    await second.run(1)
    assert sorted(put) == sorted(first.names + second.names)


async def test_arguments_that_are_too_large_are_refused_by_the_put(store):
    """Arguments up to 262,144 bytes run, and larger ones are refused, as one claim returns many tasks."""
    process = Process(store)
    async with process.tasks:
        with pytest.raises(ValueError, match=r"the arguments of note must have at most 262,144 bytes, got 300,"):
            await process.note.put("x" * 300_000)
        await process.note.put("x" * 262_000)
    await process.run(1)
    assert [262_000] == [len(what) for what in process.names]


async def test_task_that_goes_on_after_its_cancellation_is_given_to_nobody_meanwhile(store):
    """Its process waits for it and renews the lease, so that no other process runs it at the same time."""
    first, second = Process(store, lease=3), Process(store, lease=3)
    times = []

    async def deaf():
        times.append(["begin", asyncio.get_running_loop().time()])
        until = asyncio.get_running_loop().time() + 20
        while (left := until - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(left)
        times.append(["end", asyncio.get_running_loop().time()])
        raise asyncio.CancelledError

    ref = await _put_and_run(first, second, deaf)
    assert [["begin", 0.0], ["end", 20.0]] == times[:2]
    assert times[2:] == [] or times[2][1] >= 20.0
    assert ref is not None


async def _put_and_run(first, second, fn):
    for process in (first, second):
        process.tasks.task(name="deaf")(fn)
    async with first.tasks, second.executor, second.tasks.running(second.executor, drain_timeout=0):
        second.executor.pause()
        async with first.executor, first.tasks.running(first.executor, drain_timeout=1):
            ref = await first.tasks.functions["deaf", 1].put()
            await asyncio.sleep(0.5)
            second.executor.resume()
        assert asyncio.get_running_loop().time() >= 20
        return ref


async def test_executor_that_ends_first_gives_all_back(store):
    """When the executor ends first, tasks that it no longer takes stay in the store for another process."""
    first, second = Process(store), Process(store)
    async with first.tasks:
        async with contextlib.AsyncExitStack() as stack:
            async with first.executor:
                await stack.enter_async_context(first.tasks.running(first.executor))
                await first.note.put("runs", seconds=0.1)
                await first.note.put("later", delay=1.5)
                await asyncio.sleep(0.05)
            await first.note.put("after")
            await asyncio.sleep(1)
        await second.run(3)
    assert {"runs", "later", "after"} == set(first.names + second.names)
    assert {0} == set((await store.counts()).values())


async def test_executor_that_is_full_is_asked_again_and_not_at_once(process):
    """A full executor returns claims at most a few times a second, although each return wakes the claiming loop."""
    process = Process(process.tasks.store, rate="5/s", max_pending=3)
    claims = 0
    claim = process.tasks.store.claim

    async def counting(asked):
        nonlocal claims
        claims += 1
        return await claim(asked)

    async with process.executor, process.tasks.running(process.executor) as runner:
        process.tasks.store.claim = counting
        for n in range(3):
            process.executor.schedule(asyncio.sleep, 0, delay=10)
        await process.tasks.put_many(process.note.new(n) for n in range(10))
        await asyncio.sleep(5)
        assert claims <= 20
        await asyncio.sleep(12)
    assert 10 == len(process.ran) == runner.statistics().done


async def test_two_runners_share_a_store_and_an_executor(process):
    """Two runners may share a store and an executor, and each task runs once."""
    async with process.executor, process.tasks.running(process.executor) as first:
        async with process.tasks.running(process.executor) as second:
            await process.tasks.put_many(process.note.new(n) for n in range(100))
            await asyncio.sleep(2)
        await process.note.put("last")
        await asyncio.sleep(1)
    assert 101 == len(process.ran) == len(set(process.names))
    assert 101 == first.statistics().done + second.statistics().done


@pytest.mark.slow
async def test_many_keys_at_their_limits_hold_nothing_up(store):
    """With 3,000 keys of one running task each, no second task of a key delays those of other keys."""
    process = Process(store, rate="20000/s", key_concurrency=1)
    async with process.tasks:
        for turn in range(2):
            await process.tasks.put_many(process.note.new((n, turn), key=f"k{n}") for n in range(3000))
        await process.run(5)
    assert 6000 == len(process.ran)


class OddStore(FaultyStore):
    """A store of which one method once raises a wrong error or returns nonsense."""

    odd: tuple[str, object] | None = None

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in ("odd", "__class__", "befall") or self.odd is None or self.odd[0] != name:
            return found

        async def call(*args, **options):
            answer, self.odd = self.odd[1], None
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.mark.parametrize("answer", [OSError("odd"), 5])
@pytest.mark.parametrize("method", ["claim", "finish", "beat", "wait", "place", "revive", "join"])
async def test_store_that_breaks_its_contract_is_reported_and_loses_nothing(virtual_clock, handler, method, answer):
    """The failing loop ends, the error is reported or raised, and the next process runs what is left."""
    reports = handler()
    store = OddStore()
    first, second = Process(store, lease=3), Process(store, lease=3)
    first.tasks.repeat(first.note, "again", period=60)
    async with first.tasks:
        await first.tasks.put_many(first.note.new(n, seconds=0.1) for n in range(5))
        store.odd = (method, answer)
        error = None
        try:
            await first.run(2)
        except Exception as raised:
            error = raised
        store.odd = None
        is_harmless = answer == 5 and method in ("wait", "revive", "join")
        assert is_harmless or reports or error is not None
        await second.run(10)
        left = [row for row in await first.tasks.rows() if not row.id.startswith("note@")]
        assert [] == left
    assert set(range(5)) <= set(first.names + second.names)
    reports.clear()


class SlowAnswers(FaultyStore):
    """A store whose answer to one claim comes late."""

    late: asyncio.Event | None = None

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name != "claim" or self.late is None:
            return found

        async def call(*args, **options):
            late, self.late = self.late, None
            answer = await found(*args, **options)
            await late.wait()
            return answer

        return call


async def test_claims_of_which_is_heard_after_their_lease_has_ended_are_not_begun(virtual_clock):
    """Another process has run the task by then, and the new lease of the first one does not make its claim valid."""
    store = SlowAnswers()
    first, second = Process(store, lease=3), Process(store, lease=3)
    async with first.executor, first.tasks.running(first.executor) as runner:
        await asyncio.sleep(0.5)
        store.late = late = asyncio.Event()
        await first.note.put("a", seconds=30)
        await asyncio.sleep(0.5)
        beat, store.beat_of = store.beat, runner._lease.owner

        class Away:
            """The store as this process sees it, which gets no answers to its beats."""

            def __getattr__(self, name):
                return getattr(store, name)

            async def beat(self, owner):
                raise StoreUnavailableError("the store", "away")

        runner._store = runner._lease.store = Away()
        async with second.executor, second.tasks.running(second.executor):
            await asyncio.sleep(10)
            assert ["a"] == second.names
            runner._store = runner._lease.store = store
            await asyncio.sleep(4)
            assert 2 == runner._lease.count
            late.set()
            await asyncio.sleep(2)
            assert [] == first.names
            await first.note.put("b")
            await asyncio.sleep(1)
            assert ["b"] == [each for each in first.names + second.names if each != "a"]


class LostAnswers(FaultyStore):
    """A store that loses the answers to some claims."""

    losses = 0

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name != "claim" or not self.losses:
            return found

        async def call(*args, **options):
            answer = await found(*args, **options)
            if answer is None or not answer.tasks:
                return answer
            self.losses -= 1
            raise StoreUnavailableError("the store", "the answer is lost")

        return call


@pytest.mark.parametrize("losses", [1, 3])
async def test_claims_of_which_nothing_is_heard_are_given_back_while_their_process_goes_on(virtual_clock, losses):
    """The process runs them later; its known task of the same owner continues, runs once, and all can be cancelled."""
    store = LostAnswers()
    process = Process(store, lease=3)
    async with process.executor, process.tasks.running(process.executor) as runner:
        long = await process.note.put("long", seconds=4)
        await asyncio.sleep(0.1)
        store.losses = losses
        for n in range(4):
            await process.note.put(f"a{n}", lane="a")
        unwanted = await process.note.put("unwanted", seconds=100)
        await asyncio.sleep(15)
        assert sorted(["long", "a0", "a1", "a2", "a3", "unwanted"]) == sorted(process.names)
        assert None is await long.state()
        assert await unwanted.cancel()
        await asyncio.sleep(3)
        assert {0} == set((await store.counts()).values())
        assert (5, 0) == (runner.statistics().done, runner.statistics().lost)
        assert 1 == len(store._table._owners)
    assert {} == store._table._owners


async def test_process_that_goes_on_after_its_lease_has_ended_gives_its_runs_up(virtual_clock):
    """Another process gets the runs of the ended lease, and the first one claims under a new lease."""
    store = LostAnswers()
    first, second = Process(store, lease=3), Process(store, lease=3)
    async with first.executor, first.tasks.running(first.executor) as runner:
        await first.note.put("long", seconds=60)
        await asyncio.sleep(0.1)
        store.losses = 1
        await first.note.put("other", seconds=1)
        await store.leave(runner._lease.owner)  # as another process does that finds the lease ended
        async with second.executor, second.tasks.running(second.executor, drain_timeout=0):
            await asyncio.sleep(4)
            assert 0 == runner.statistics().running or "long" not in second.names
            assert {"long", "other"} == set(first.names + second.names)
            assert 2 == runner._lease.count


async def test_claims_that_were_not_heard_of_are_given_back_while_their_process_closes(virtual_clock):
    """While the process waits for a long task of its own, another one runs the claims that it never heard of."""
    store = LostAnswers()
    first, second = Process(store, lease=3), Process(store, lease=3)
    async with first.executor, second.executor, second.tasks.running(second.executor):
        second.executor.pause()
        async with first.tasks.running(first.executor):
            await first.note.put("long", seconds=60)
            await asyncio.sleep(0.1)
            store.losses = 1
            await first.note.put("other")
            while store.losses:
                await asyncio.sleep(0)
            second.executor.resume()
    assert ["long"] == first.names
    [(name, at)] = second.ran
    assert "other" == name
    assert at < 10


@pytest.mark.slow
def test_cancelled_at_any_await_and_twice_it_leaves_no_loop_behind():
    """However often and wherever it is cancelled, no loop is left that would renew the lease for ever."""

    def turns_of(first, second) -> int:
        return run_virtual(_cancelled_at(first, second))

    total = turns_of(0, 0)
    assert total > 80
    for first in range(1, total + 1, 2):
        for second in (0, first + 1, first + 3, first + 8, first + 13):
            turns_of(first, second)


async def _cancelled_at(first: int, second: int) -> int:
    """Run tasks, cancel the run at two turns of the loop, and check what is left; return the number of turns."""
    store = Waiting()
    process = Process(store, rate="100/s", lease=3, max_concurrency=3)
    count = 0
    run = asyncio.Handle._run

    async def live() -> None:
        async with process.executor, process.tasks.running(process.executor):
            for n in range(6):
                await process.note.put(n, seconds=0.01 if n % 2 else 0.3)
            await asyncio.sleep(0.02)

    def turned(handle):
        nonlocal count
        count += not living.done()
        if count in (first, second):
            living.cancel()
        return run(handle)

    async with kept_open(store):
        living = asyncio.ensure_future(live())
        asyncio.Handle._run = turned
        try:
            await asyncio.wait([living])
        finally:
            asyncio.Handle._run = run
        await asyncio.sleep(1.5)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, (first, second, left)
        other = Process(store, lease=3)
        await other.run(10)
        assert {0} == set((await store.counts()).values()), (first, second)
    return count


class Waiting(MemoryStore):
    """A store whose calls wait for one turn before and after."""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in ("put", "join", "beat", "leave", "claim", "finish", "revive"):
            return found

        async def call(*args, **options):
            await asyncio.sleep(0)
            answer = await found(*args, **options)
            await asyncio.sleep(0)
            return answer

        return call


@pytest.mark.real_time("a loop is blocked, and a thread goes on")
def test_loop_that_was_blocked_for_longer_than_a_lease_begins_nothing_that_another_has(tmp_path):
    """A process whose loop was blocked for a lease does not run the tasks that another has run meanwhile."""
    skip_without_apsw()
    path = tmp_path / "tasks.db"
    ran: list[tuple[str, object]] = []
    blocked, taken, over = threading.Event(), threading.Event(), threading.Event()

    def tasks_of(who):
        tasks = DurableTasks(SQLiteStore(path), lease=0.6)

        @tasks.task(name="note")
        async def note(what):
            ran.append((who, what))
            if len(ran) == 5:
                taken.set()

        return tasks, note

    async def first() -> None:
        tasks, note = tasks_of("first")
        async with RateLimitedExecutor("x") as executor, tasks.running(executor, ahead=5) as runner:
            await tasks.put_many(note.new(n, delay=3) for n in range(5))  # long enough to reach the blocked part
            async with asyncio.timeout(20):
                while runner.statistics().waiting < 5:
                    await asyncio.sleep(0.01)
            blocked.set()
            assert taken.wait(60)
            time.sleep(1)  # until all are due here, too, before the next beat
            await asyncio.sleep(1)
            over.set()

    async def second() -> None:
        tasks, _ = tasks_of("second")
        async with RateLimitedExecutor("x") as executor, tasks.running(executor, ahead=5):
            while not over.is_set():
                await asyncio.sleep(0.02)

    other = threading.Thread(target=lambda: (blocked.wait(20), asyncio.run(second())))
    other.start()
    try:
        asyncio.run(first())
    finally:
        blocked.set()
        over.set()
        other.join(20)
    assert sorted(("second", n) for n in range(5)) == sorted(ran)


async def test_what_the_other_side_asks_for_may_be_ages(process):
    """A ``RetryLater(after=)`` of ages, as a faulty server may send it, schedules the task for then."""

    @process.tasks.task(retry=Retry(3))
    async def call():
        raise RetryLater(after=1e300)

    async with process.tasks:
        ref = await call.put()
        await process.run(1)
        assert DurableState.SCHEDULED == await ref.state()
