"""Tasks in the store run at least once, under the executor's limits, and a lost process is taken over by another."""

import asyncio
import math
import sys
import threading

import pytest

from ratelimited_executor import Pacing, RateLimitedExecutor, Retry, RetryLater
from ratelimited_executor._runtime.durable import running
from ratelimited_executor.durable import DurableState, DurableTasks, LaneFail, MemoryStore
from ratelimited_executor.exceptions import ExecutorNotStartedError, StoreUnavailableError
from ratelimited_executor.orders import Fair, default_order

from .conftest import Process
from .histories import kill

ABSENT = None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_tasks_are_put_and_run_where_tasks_of_asyncio_are_eager(store):
    """Puts, the renewal of leases and the end work as well where tasks take their first step at once."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    process = Process(store)
    async with asyncio.timeout(1000), process.executor, process.tasks.running(process.executor):
        for name in "ab":
            await process.note.put(name)
        await asyncio.sleep(200)  # for many leases
        await process.note.put("c")
        await asyncio.sleep(1)
    assert ["a", "b", "c"] == process.names


async def test_what_is_put_runs_once_and_is_gone(process):
    """A task that is put runs at once with its arguments, and is then removed from the store."""
    async with process.executor, process.tasks.running(process.executor) as runner:
        ref = await process.note.put("a", seconds=0.5)
        assert ref.created
        await asyncio.sleep(0.1)
        assert DurableState.CLAIMED == await ref.state()
        await asyncio.sleep(1)
        assert ABSENT is await ref.state()
        assert 1 == runner.statistics().done
    assert [("a", 0.0)] == process.ran


async def test_delay_is_kept_across_processes(store):
    """A task that one process has put runs in another one when it is due, and not before."""
    first, second = Process(store), Process(store)
    async with first.tasks:
        await first.note.put("a", delay=5)
    await second.run(4.9)
    assert [] == second.ran
    third = Process(store)
    await third.run(1)
    assert [("a", 5.0)] == third.ran


async def test_at_is_the_wall_clock(process, virtual_clock):
    """``at=`` is in epoch seconds, and a time in the past means now."""
    async with process.tasks:
        await process.note.put("later", at=virtual_clock.wall() + 2)
        await process.note.put("past", at=virtual_clock.wall() - 10)
    await process.run(3)
    assert [("past", 0.0), ("later", 2.0)] == process.ran


async def test_the_rate_holds_and_the_most_important_go_first(store):
    """Of sixty tasks that wait, ten a second start, those with the highest priority first."""
    process = Process(store, rate="10/s")
    async with process.tasks:
        await process.tasks.put_many(process.note.new(n, priority=n % 3) for n in range(60))
    await process.run(1.95)
    assert 20 == len(process.ran)
    assert {2} == {n % 3 for n in process.names}
    assert process.names == sorted(process.names)


async def test_only_what_starts_soon_is_claimed(store):
    """Tasks that will not start soon stay in the store, for other processes and behind more important ones."""
    process = Process(store, rate="10/s")
    async with process.tasks:
        await process.tasks.put_many(process.note.new(n) for n in range(1000))
        async with process.executor, process.tasks.running(process.executor):
            for _ in range(20):
                await asyncio.sleep(0.1)
                assert (await process.tasks.counts())[DurableState.CLAIMED] <= 22
            await process.note.put("important", priority=1)
            await asyncio.sleep(0.5)
            assert "important" in process.names


async def test_what_is_claimed_ahead_is_bounded_by_its_bytes(store, monkeypatch):
    """A process holds little more unstarted work than its bound in bytes, and runs all of it."""
    monkeypatch.setattr(running, "_WAITING_SIZE_MAX", 4_000_000)
    process = Process(store, rate="100/s")
    async with process.tasks:
        await process.tasks.put_many(process.note.new(f"{n:>100000}") for n in range(400))
        most = 0
        async with process.executor, process.tasks.running(process.executor) as runner:
            for _ in range(60):
                await asyncio.sleep(0.1)
                most = max(most, runner._waiting_size)
    assert 2_000_000 < most < 4_000_000 + 100_100
    assert 400 == len(process.ran)


@pytest.mark.parametrize("order", [default_order, Fair()])
@pytest.mark.parametrize("count", [5, 12, 100])
async def test_what_is_due_now_does_not_wait_for_what_was_claimed_ahead(store, count, order):
    """Tasks that are due start before those claimed ahead are due, however many were claimed."""
    process = Process(store, pacing=Pacing.ON_TIME, order=order)
    async with process.executor, process.tasks.running(process.executor):
        for n in range(count):
            await process.note.put(n, delay=1.9)
        await asyncio.sleep(1.0)
        for n in range(20):
            await process.note.put(f"now {n}")
        await asyncio.sleep(2.0)
    assert [f"now {n}" for n in range(20)] == process.names[:20]
    assert process.ran[19][1] - process.ran[20][1] < -0.7
    assert list(range(count)) == sorted(process.names[20:])


async def test_executor_is_checked_at_the_call(store):
    """An executor that has not started, and an object that is not an executor, are refused."""
    process = Process(store)
    with pytest.raises(ExecutorNotStartedError):
        await process.tasks.running(process.executor).__aenter__()
    with pytest.raises(TypeError, match="executor must be a RateLimitedExecutor, got 'x'"):
        await process.tasks.running("x").__aenter__()


@pytest.mark.parametrize(
    ("retry", "told"),
    [
        (None, "after 1 attempt: ValueError('bad')"),
        (Retry(3), "after 1 attempt of 3, as on= of its Retry does not name this error: ValueError('bad')"),
        (Retry(2, base=0.1, on=ValueError), "after 2 attempts: ValueError('bad')"),
        (Retry(3, on=lambda error: 1 / 0), "after 1 attempt: ZeroDivisionError('division by zero')"),
    ],
)
async def test_log_says_why_a_task_is_a_dead_letter(store, caplog, retry, told):
    """The log has the number of attempts, and says whether the policy would have retried the error."""
    process = Process(store, retry=retry)
    async with process.tasks:
        await process.note.put("bad", id="x")
    await process.run(5)
    assert [f"durable tasks: 'note' ('x') is a dead letter {told}"] == caplog.messages


async def test_log_of_a_dead_letter_shows_no_password(store, caplog):
    """The line of a dead letter hides passwords in URLs of the error by the rule of pages and commands; the store keeps the error."""
    process = Process(store)
    async with process.tasks:
        await process.note.put("bad https://ann:letmein@bank.example/?token=abc1", id="x")
    await process.run(5)
    [line] = caplog.messages
    assert line.endswith("ValueError('bad https://***@bank.example/?token=***')")
    assert "letmein" not in caplog.text
    [row] = await store.rows()
    assert "letmein" in row.error


async def test_failed_attempts_are_repeated_and_the_last_makes_a_dead_letter(store):
    """The third failed attempt makes a dead letter with its error, which can be put back, and later cancelled."""
    process = Process(store, retry=Retry(3, base=1, on=ValueError))
    async with process.executor, process.tasks.running(process.executor) as runner:
        ref = await process.note.put("bad")
        await asyncio.sleep(10)
        assert ["bad"] * 3 == process.names
        row = await ref.row()
        assert (DurableState.DEAD, 3) == (row.state, row.attempt_count)
        assert row.error.endswith("ValueError: bad")
        assert [row] == await process.tasks.rows(DurableState.DEAD)
        assert 1 == await process.tasks.requeue(ref.id, "unknown")
        await asyncio.sleep(10)
        assert ["bad"] * 6 == process.names
        assert (4, 2) == (runner.statistics().retried, runner.statistics().dead)
        assert await ref.cancel()
        assert ABSENT is await ref.state()


async def test_without_a_policy_a_failure_is_the_last(process):
    """Without a retry policy the first failure makes a dead letter."""
    async with process.tasks:
        ref = await process.note.put("bad")
        await process.run(1)
        assert DurableState.DEAD == await ref.state()


async def test_what_the_other_side_asks_for_is_waited_for(process):
    """The pause before the next attempt is at least that of ``RetryLater(after=)``."""
    starts = []

    @process.tasks.task(retry=Retry(2, base=1))
    async def call():
        starts.append(asyncio.get_running_loop().time())
        raise RetryLater(after=7)

    async with process.tasks:
        await call.put()
    await process.run(10)
    assert 2 == len(starts)
    assert 7 <= starts[1] - starts[0] <= 8.1


async def test_lane_runs_in_order_and_one_at_a_time(store):
    """Tasks of a lane run in order and one at a time, even over two processes, and lanes do not delay each other."""
    first, second = Process(store), Process(store)
    async with first.tasks:
        for n in range(5):
            await first.note.put(f"a{n}", lane="a", seconds=0.2)
            await first.note.put(f"b{n}", lane="b", seconds=0.2)
        async with asyncio.TaskGroup() as group:
            for process in (first, second):
                group.create_task(process.run(3))
    ran = sorted(first.ran + second.ran, key=lambda entry: entry[1])
    for lane in "ab":
        mine = [(what, when) for what, when in ran if what.startswith(lane)]
        assert [f"{lane}{n}" for n in range(5)] == [what for what, _ in mine]
        assert all(later - earlier >= 0.1999 for (_, earlier), (_, later) in zip(mine, mine[1:], strict=False))


async def test_task_of_the_future_does_not_hold_its_lane(process):
    """A task of the lane that is due earlier runs first, even if it was put later."""
    async with process.tasks:
        await process.note.put("later", delay=5, lane="a")
        await process.note.put("now", lane="a")
        await process.run(6)
    assert [("now", 0.0), ("later", 5.0)] == process.ran


@pytest.mark.parametrize(("lane_fail", "names"), [(LaneFail.BLOCK, ["x"]), (LaneFail.SKIP, ["x", "next"])])
async def test_lane_of_a_dead_letter(store, lane_fail, names):
    """A dead letter blocks its lane until it is put back, or is passed over, as the function's ``lane_fail`` says."""
    process = Process(store)
    ran = []

    @process.tasks.task(lane_fail=lane_fail)
    async def work(what):
        ran.append(what)
        if what == "x" and len(ran) == 1:
            raise ValueError

    async with process.tasks:
        ref = await work.put("x", lane="a")
        await work.put("next", lane="a")
        await process.run(2)
        assert names == ran
        await process.tasks.requeue(ref.id)
        await Process.run(_like(process), 2)
        assert sorted(["x", "x", "next"]) == sorted(ran)


def _like(process):
    """Return a process with another executor for the same functions."""
    other = Process(process.tasks.store)
    other.tasks = process.tasks
    return other


async def test_unknown_function_waits_for_a_process_that_knows_it(store):
    """A task of an unknown function or version is set aside and counted, and runs in a process that registers it."""
    new, old = Process(store), Process(store)

    @new.tasks.task(name="note", version=2)
    async def note(what):
        new.ran.append((what, 0.0))

    async with new.tasks:
        ref = await note.put("a")
        statistics = await old.run(1)
        assert (1, DurableState.UNKNOWN) == (statistics.unknown, await ref.state())
        await new.run(1)
    assert ["a"] == new.names


async def test_what_an_old_process_puts_aside_runs_on_a_new_one_beside_it(store):
    """During a roll-out, tasks that an old process has set aside run on a new one within a third of a lease."""
    new, old = Process(store, lease=3.0), Process(store, lease=3.0)

    @new.tasks.task(name="note", version=2)
    async def note(what):
        new.ran.append((what, 0.0))

    async with new.executor, old.executor, old.tasks.running(old.executor):
        async with new.tasks:
            for n in range(10):
                await note.put(n)
        await asyncio.sleep(0.5)
        assert (await old.tasks.counts())[DurableState.UNKNOWN]
        async with new.tasks.running(new.executor):
            await asyncio.sleep(0.5)
            for n in range(10, 20):
                await note.put(n)
            await asyncio.sleep(1.5)
    assert set(range(20)) <= set(new.names)
    assert not set(range(20)) & set(old.names)


async def test_cancelled_before_it_is_claimed(process):
    """A task that waits is removed at once, and a second cancellation finds nothing."""
    async with process.tasks:
        ref = await process.note.put("a", delay=5)
        assert await ref.cancel()
        assert not await ref.cancel()
    await process.run(6)
    assert [] == process.ran


HELD_BACK = {
    "its time": ({}, {"delay": 1.5}),
    "a permit": ({"rate": "1/s"}, {}),
    "max_concurrency": ({"max_concurrency": 1}, {}),
    "its lane": ({}, {"lane": "l"}),
    "its key": ({"key_concurrency": 1}, {"key": "k"}),
}


@pytest.mark.parametrize("way", ["by its reference", "by its id", "by another process"])
@pytest.mark.parametrize("waits_for", HELD_BACK)
async def test_cancelled_before_its_start_it_never_starts(store, waits_for, way):
    """A task that is cancelled before its start does not start, whatever it waits for and whoever cancels it."""
    options, of_task = HELD_BACK[waits_for]
    process, other = Process(store, **options), Process(store)
    of_first = of_task if "delay" not in of_task else {}
    async with other.tasks, process.executor, process.tasks.running(process.executor) as runner:
        for n in range(2):
            await process.note.put(n, seconds=1.2, **of_first)
        ref = await process.note.put("victim", **of_task)
        await asyncio.sleep(0.3)
        assert (
            await (other.tasks if "another" in way else process.tasks).ref(ref.id).cancel()
            if way != "by its id"
            else (1 == await process.tasks.cancel(ref.id))
        )
        if "another" not in way:
            assert not runner._held or all(run.claimed.id != ref.id or run.is_unwanted for run in runner._held.values())
        await asyncio.sleep(6)
        assert await ref.state() is None
        assert not await ref.cancel()
    assert [0, 1] == process.names


async def test_cancelled_while_its_claim_is_under_way_it_never_starts(store, process, monkeypatch):
    """A task that is cancelled between its claim and the answer to it does not start."""
    claim = store.claim

    async def slow(asked):
        claims = await claim(asked)
        if claims and claims.tasks:
            await asyncio.sleep(1)
        return claims

    monkeypatch.setattr(store, "claim", slow, raising=False)
    async with process.executor, process.tasks.running(process.executor) as runner:
        ref = await process.note.put("a")
        await asyncio.sleep(0.5)
        assert DurableState.CLAIMED is await ref.state()
        assert await ref.cancel()
        await asyncio.sleep(2)
        assert await ref.state() is None
        assert 1 == runner.statistics().cancelled
        await process.note.put("b")
        await asyncio.sleep(2)
    assert ["b"] == process.names


async def test_cancelled_and_then_released_or_lost_it_never_starts(store):
    """A claimed task that was cancelled does not run again after its process has closed or was lost."""
    for end in ("close", "kill"):
        process, other = Process(store, rate="0.1/s", lease=1), Process(store, lease=1)
        async with other.tasks, process.executor:
            async with process.tasks.running(process.executor) as runner:
                refs = [await process.note.put(n) for n in range(3)]
                await asyncio.sleep(1)
                store.cancelled = _no_answer  # it hears of the cancellation by nobody
                await other.tasks.cancel(refs[2].id)
                if end == "kill":
                    await kill(runner)
            del store.cancelled
            await other.run(5)
            assert await refs[2].state() is None
        assert 2 not in process.names + other.names


async def _no_answer(_):
    return ()


async def test_healthy_starts_ask_for_no_cancellation(store, process, monkeypatch):
    """Puts, starts and ends make no process ask for cancellations; the cancellation of a claimed task does, once."""
    calls = []
    cancelled = store.cancelled
    monkeypatch.setattr(type(store), "cancelled", lambda _, owner: calls.append(owner) or cancelled(owner))
    other = Process(store)
    async with other.tasks, process.executor, process.tasks.running(process.executor):
        for n in range(20):
            await process.note.put(n)
            await other.note.put(f"later {n}", delay=50)
            await asyncio.sleep(0.1)
        assert await other.tasks.cancel(*[row.id for row in await other.tasks.rows(DurableState.SCHEDULED)])
        await asyncio.sleep(1)
        assert [] == calls
        ref = await other.note.put("long", seconds=60)
        await asyncio.sleep(1)
        await other.tasks.cancel(ref.id)
        await asyncio.sleep(1)
        assert 1 == len(calls)


async def test_cancelled_while_it_runs(process):
    """A running task ends at once, and does not run again."""
    async with process.executor, process.tasks.running(process.executor) as runner:
        ref = await process.note.put("a", seconds=60)
        await asyncio.sleep(1)
        assert await ref.cancel()
        await asyncio.sleep(0.1)
        assert ABSENT is await ref.state()
        assert (1, 0) == (runner.statistics().cancelled, runner.statistics().expired)
    assert asyncio.get_running_loop().time() < 10


async def test_cancelled_task_that_then_fails_is_no_dead_letter(process, caplog):
    """A cancelled task that raises during clean-up counts as cancelled, is not retried, and nothing is logged."""

    @process.tasks.task(retry=Retry(5, on=ValueError))
    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError

    async with process.executor, process.tasks.running(process.executor) as runner:
        ref = await work.put()
        await asyncio.sleep(1)
        await ref.cancel()
        await asyncio.sleep(6)
        assert ABSENT is await ref.state()
        assert (1, 0) == (runner.statistics().cancelled, runner.statistics().retried)
    assert [] == caplog.messages


async def test_end_gives_back_what_has_not_started_and_waits_for_what_runs(store):
    """Tasks that have not started are given back, so that the next process runs them at once and not after a lease."""
    first, second = Process(store, max_concurrency=1), Process(store)
    async with first.tasks:
        await first.tasks.put_many(first.note.new(n, seconds=2) for n in range(3))
        statistics = await first.run(1)
        assert (1, 2) == (statistics.done, statistics.released)
        assert 2.0 == asyncio.get_running_loop().time()
        await second.run(1)
    assert [0] == first.names
    assert [(1, 2.0), (2, 2.001)] == second.ran


async def test_end_with_a_limit_cancels_what_runs_and_gives_it_back(store):
    """A run cancelled by the drain time-out is given back as ready, and does not count as an attempt."""
    first, second = Process(store), Process(store)
    async with first.tasks:
        ref = await first.note.put("a", seconds=60)
        await first.run(1, drain_timeout=2)
        row = await ref.row()
        assert (DurableState.READY, 0, 0) == (row.state, row.attempt_count, row.lost_count)
        assert 3.0 == asyncio.get_running_loop().time()
        await second.run(1, drain_timeout=0)
    assert ["a"] == second.names


async def test_body_that_raises_gives_all_back(store):
    """After an error in the body, running tasks are cancelled and given back at once."""
    process = Process(store)
    async with process.tasks:
        ref = await process.note.put("a", seconds=60)
        with pytest.raises(KeyError):
            async with process.executor, process.tasks.running(process.executor):
                await asyncio.sleep(1)
                raise KeyError
        assert DurableState.READY == await ref.state()
        assert asyncio.get_running_loop().time() < 2


async def test_process_that_vanishes_is_taken_over_after_its_lease(store):
    """A process that neither beats nor leaves, as after a kill, is taken over once its lease has ended."""
    first, second = Process(store, lease=6), Process(store, lease=6)
    async with first.tasks:
        await first.note.put("a", seconds=60)
        async with first.executor:
            running = first.tasks.running(first.executor)
            runner = await running.__aenter__()
            await asyncio.sleep(1)
            for loop in runner._loops:  # as if the process were killed
                loop.cancel()
            await second.run(10, drain_timeout=0)
            [(_, when)] = second.ran
            assert 6 <= when <= 13
            [row] = await first.tasks.rows()
            assert 1 == row.lost_count
            runner._cancel()
            await runner._pump_stopped() if hasattr(runner, "_pump_stopped") else None


class Frozen:
    """A store whose beats and claims wait until they are released, as for a process that stands still."""

    def __init__(self, store) -> None:
        self._store = store
        self.thawed = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def beat(self, owner):
        await self.thawed.wait()
        return await self._store.beat(owner)

    async def claim(self, claim):
        await self.thawed.wait()
        return await self._store.claim(claim)


async def test_process_that_stood_still_begins_nothing_and_cancels_what_it_ran(store):
    """A process whose lease has ended meanwhile runs none of its claims, and continues under a new lease."""
    first, second = Process(store, lease=3), Process(store, lease=3)
    async with first.executor, first.tasks.running(first.executor, ahead=10) as runner:
        await first.note.put("runs", seconds=12)
        await first.note.put("waits", delay=8)
        await asyncio.sleep(0.5)
        runner._store = runner._lease.store = frozen = Frozen(store)
        async with second.executor, second.tasks.running(second.executor):
            await asyncio.sleep(9)
            assert ["runs"] == first.names  # so it has not begun the other one, which was due
            assert ["runs", "waits"] == second.names
            runner._store = runner._lease.store = store
            frozen.thawed.set()
            await asyncio.sleep(15)
        assert 1 == runner.statistics().lost  # it reports that it did not begin the other one
        await first.note.put("new")
        await asyncio.sleep(1)
        assert ["runs", "new"] == first.names
        assert {0} == set((await first.tasks.counts()).values())


async def test_task_that_was_claimed_far_ahead_and_given_back_begins_when_it_is_due(store):
    """A process that claims less far ahead takes the task, and starts it when it is due."""
    far, near = Process(store), Process(store)
    async with near.executor, near.tasks.running(near.executor, ahead=0.5):
        async with far.executor, far.tasks.running(far.executor, ahead=10):
            await far.note.put("a", delay=5)
            await asyncio.sleep(1)
        await asyncio.sleep(6)
    assert [] == far.ran
    assert [("a", 5.0)] == near.ran


@pytest.mark.parametrize("ahead", [60.1, 0, -1, math.nan])
async def test_claiming_too_far_ahead_is_refused(process, ahead):
    """A claim far ahead is refused, as no other process can run what one has claimed."""
    async with process.executor:
        with pytest.raises(ValueError, match="ahead must be"):
            async with process.tasks.running(process.executor, ahead=ahead):
                pass


async def test_what_is_claimed_while_the_store_is_away_for_a_lease_is_given_back(store):
    """Claims that have not started are given back uncounted when the lease ends, and run when the store is back."""
    process = Process(store, lease=3)
    async with process.executor, process.tasks.running(process.executor, ahead=60) as runner:
        ref = await process.note.put("a", delay=20)
        await asyncio.sleep(0.5)
        store.is_away = True
        await asyncio.sleep(8)
        assert 0 == runner.statistics().waiting
        store.is_away = False
        await asyncio.sleep(15)
        assert ["a"] == process.names
        assert ABSENT is await ref.state()
        assert 0 == runner.statistics().dead


async def test_clock_that_is_set_back_holds_nothing_up(store, virtual_clock):
    """A task that was due when it was put starts at once, even if its time is in the future again."""
    process = Process(store)
    async with process.tasks:
        await process.note.put("a")
        clock = store._clock

        class Back:
            monotonic = staticmethod(clock.monotonic)

            @staticmethod
            def wall():
                return clock.wall() - 3600

        store._clock = Back
        async with process.executor:
            running = process.tasks.running(process.executor)
            async with running:
                store._clock = Back
                await asyncio.sleep(1)
    assert ["a"] == process.names


async def lose(store, seconds=1.0, lease=0.3, **options) -> Process:
    """Run tasks in a process that is killed after some seconds, and wait until others have noticed."""
    process = Process(store, lease=lease, **options)
    async with process.executor, process.tasks.running(process.executor) as runner:
        await asyncio.sleep(seconds)
        await kill(runner)
    for _ in range(8):
        await store.beat("watcher")
        await asyncio.sleep(lease / 3)
    return process


async def test_task_that_kills_its_processes_becomes_a_dead_letter(store, process):
    """Of a task that kills its processes the first loss proves nothing; after five more, it is a dead letter."""
    async with process.tasks:
        ref = await process.note.put("a", seconds=60)
        starts = [(await lose(store)).names for _ in range(6)]
        assert [["a"]] * 6 == starts
        await process.run(1)
        row = await ref.row()
        assert (DurableState.DEAD, []) == (row.state, process.ran)
        assert "6 processes were lost" in row.error


async def test_task_that_was_never_started_is_blamed_for_no_loss(store, process):
    """A task that was claimed by six processes that were lost, and started in none of them, still runs."""
    async with process.tasks:
        await process.note.put("first", key="tenant", seconds=3600)
        refs = [await process.note.put(n, key="tenant") for n in range(3)]
        for _ in range(6):
            assert ["first"] == (await lose(store, key_concurrency=1)).names
        assert [1, 1, 1] == [(await ref.row()).lost_count for ref in refs]
        await process.run(1)
    assert [0, 1, 2] == process.names


async def test_start_is_recorded_only_for_tasks_with_a_loss(store, process, monkeypatch):
    """Starts cost the store no call, except those of tasks that have lost a process, and no others."""
    calls = []
    start = store.start
    monkeypatch.setattr(type(store), "start", lambda _, refs: calls.append(len(refs)) or start(refs), raising=True)
    async with process.tasks:
        for n in range(3):
            await process.note.put(n, seconds=3600)
        await lose(store)
        assert [] == calls
        await process.note.put("new")
        await process.run(1, drain_timeout=0)
    assert 3 == sum(calls)
    assert {0, 1, 2, "new"} == set(process.names)


async def test_start_that_cannot_be_recorded_does_not_happen(store):
    """A task with a loss does not start while the store cannot record the start, and is released instead."""
    ran = []
    process = Process(store)
    work = process.tasks.task(name="work")(lambda: ran.append(1))
    async with process.tasks:
        ref = await work.put()
        number = (await ref.row()).number
        store._table._tasks[number].lost_count = 1
        start, failures = store.start, iter([StoreUnavailableError("the store", "it is away"), None])

        async def failing(refs):
            if error := next(failures):
                raise error
            return await start(refs)

        store.start = failing
        stats = await process.run(2)
    assert ([1], 1, 1) == (ran, stats.released, stats.done)


async def test_store_that_is_away_for_a_while_loses_nothing(store):
    """While the store is away running tasks continue, and their ends are written when it is back."""
    process = Process(store)
    async with process.executor, process.tasks.running(process.executor) as runner:
        await process.note.put("a", seconds=1)
        await asyncio.sleep(0.5)
        store.is_away = True
        await asyncio.sleep(3)
        store.is_away = False
        await process.note.put("b")
        await asyncio.sleep(6)
        assert (["a", "b"], 2) == (process.names, runner.statistics().done)
        assert {0} == set((await process.tasks.counts()).values())


async def test_answers_that_are_lost_lose_nothing(store):
    """Claims whose answers were lost are given back at the end, and repeated ends change nothing."""
    first, second = Process(store), Process(store)
    async with first.tasks:
        await first.tasks.put_many(first.note.new(n) for n in range(5))
        async with first.executor, first.tasks.running(first.executor):
            store.is_mute = True
            await asyncio.sleep(2)
            store.is_mute = False
            await asyncio.sleep(6)
        await second.run(1)
        assert {0} == set((await first.tasks.counts()).values())
    assert set(range(5)) == set(first.names + second.names)


async def test_expired_in_the_store_or_in_the_executor_never_runs(store):
    """Tasks that expire in the store or in the executor never run, and are counted."""
    process = Process(store, rate="10/s")
    async with process.tasks:
        await process.tasks.put_many(process.note.new(n, expires=2) for n in range(60))
    statistics = await process.run(5)
    assert 20 <= len(process.ran) <= 21
    assert max(when for _, when in process.ran) <= 2.0
    assert 60 == statistics.done + statistics.expired


async def test_keys_at_their_limit_do_not_hold_others_back(store):
    """A key at its limit with a hundred tasks does not delay a task of another key."""
    process = Process(store, key_rate="1/s")
    async with process.tasks:
        await process.tasks.put_many(process.note.new(n, key="big") for n in range(100))
        await process.note.put("small", key="small")
    await process.run(0.5)
    assert [0, "small"] == process.names


@pytest.mark.parametrize("count", [2, 50])
async def test_keys_at_their_limit_do_not_fill_the_executor(store, count):
    """However many tasks of busy keys wait, others are claimed beside them and start at once."""
    process = Process(store, max_concurrency=100, key_concurrency=1)
    async with process.tasks:
        for n in range(count):
            for _ in range(4):
                await process.note.put("long", 1000, key=f"busy {n}")
        for n in range(20):
            await process.note.put(n, 1, key=f"free {n}")
    await process.run(5, drain_timeout=0)
    assert count == process.names.count("long")
    assert set(range(20)) <= set(process.names)


async def test_costs_are_the_executors(store):
    """A task with a cost of five takes five permits of the executor."""
    process = Process(store, rate="10/s")
    async with process.tasks:
        await process.tasks.put_many(process.note.new(n, cost=5) for n in range(6))
    await process.run(1.9)
    assert 4 == len(process.ran)


async def test_paused_executor_claims_nothing(process):
    """A paused executor claims nothing, and runs tasks within half a second of its resumption."""
    async with process.executor, process.tasks.running(process.executor):
        process.executor.pause()
        await asyncio.sleep(6)
        ref = await process.note.put("a")
        await asyncio.sleep(6)
        assert DurableState.READY == await ref.state()
        process.executor.resume()
        await asyncio.sleep(0.6)
    assert ["a"] == process.names


async def test_plain_functions_run_too_on_the_loop(process):
    """A plain function may be a durable task, and runs on the loop."""
    ran = []

    @process.tasks.task
    def work(what):
        ran.append(what)

    async with process.tasks:
        await work.put("a")
    await process.run(1)
    assert ["a"] == ran


@pytest.mark.real_time("worker threads take real time")
async def test_starts_in_threads_are_recorded(monkeypatch):
    """A function that runs in a thread starts there once its start is recorded, and not if it cannot be."""
    tasks, ran = DurableTasks(MemoryStore()), []
    work = tasks.task(name="work", in_thread=True)(lambda n: ran.append((n, threading.current_thread())))
    answers = iter([[False], [True]])
    calls = []

    async def start(refs):
        calls.append(refs)
        return next(answers)

    monkeypatch.setattr(tasks.store, "start", start, raising=False)
    async with tasks:
        ref = await work.put(1)
        tasks.store._table._tasks[(await ref.row()).number].lost_count = 1
    async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        async with asyncio.timeout(30):
            while await ref.state() is not None:
                await asyncio.sleep(0.01)
    assert [1] == [n for n, _ in ran]
    assert threading.main_thread() is not ran[0][1]
    assert (2, 1) == (len(calls), runner.statistics().released)


@pytest.mark.real_time("worker threads take real time")
async def test_functions_that_block_run_in_threads():
    """A function registered with ``in_thread=True`` runs in a worker thread."""
    import threading

    from ratelimited_executor.durable import MemoryStore

    process = Process(MemoryStore())
    ran = []

    @process.tasks.task(in_thread=True)
    def work(what):
        ran.append((what, threading.current_thread() is threading.main_thread()))

    async with process.executor, process.tasks.running(process.executor) as runner, asyncio.timeout(30):
        await work.put("a")
        while not runner.statistics().done:
            await asyncio.sleep(0.01)
    assert [("a", False)] == ran


async def test_log_says_when_the_store_answers_again(store, caplog):
    """After an outage one line says that it is over, once all calls succeed; none does while any call still fails."""

    def told():
        return [message for message in caplog.messages if message.endswith("answers again")]

    process = Process(store)
    async with process.executor, process.tasks.running(process.executor):
        await asyncio.sleep(30)
        store.is_away = True
        await asyncio.sleep(40)
        assert any(message.endswith("it is away; retrying") for message in caplog.messages)
        assert told() == []
        store.is_away = False
        await asyncio.sleep(12)
        assert told() == ["durable tasks: the store answers again"]
        await asyncio.sleep(100)
        assert len(told()) == 1
        store.finish = store.befall("finish", _never_answers)
        await process.note.put("once")
        await asyncio.sleep(100)
        assert len(told()) == 1
        del store.finish
        await asyncio.sleep(12)
        assert len(told()) == 2


async def _never_answers(*_args):
    raise StoreUnavailableError("the store", "it cannot write")
