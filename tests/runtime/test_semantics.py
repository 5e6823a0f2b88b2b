"""What the executor promises about starts: at least one test for each sentence."""

import asyncio
import gc
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor import (
    ExecutorManager,
    Pacing,
    Rate,
    RateLimitedExecutor,
    TaskExpiredError,
    TaskState,
    default_order,
)
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import earliest_due_first, latest_due_first
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.testing import audit, run_virtual

from ..helpers import examples, now


class Log(list):
    """Logs starts as text: ``name`` followed by the seconds."""

    def __call__(self, name: str) -> None:
        self.append(f"{name}{now():.3f}")

    def text(self) -> str:
        return " ".join(self)


# Never early, never lost.


@pytest.mark.parametrize("pacing", list(Pacing))
@pytest.mark.parametrize("face", ["schedule", "call_later", "call_at", "many"])
async def test_no_task_starts_before_its_due_time(virtual_clock, pacing, face):
    """No task starts before its due time, on any face and at any phase of the interval."""
    early = []

    def check(due):
        if now() < due:
            early.append((now(), due))

    async with RateLimitedExecutor("x", pacing=pacing) as executor:
        for step in range(200):
            delay = step * 0.0137
            due = now() + delay
            if face == "schedule":
                executor.schedule(check, due, delay=delay)
            elif face == "call_later":
                executor.call_later(delay, check, due)
            elif face == "call_at":
                executor.call_at(due, check, due)
            else:
                executor.schedule_many(check, [due], delays=[delay])
    assert [] == early
    assert 200 == executor.statistics().done


async def test_timer_that_fires_early_starts_nothing_early(virtual_clock):
    """A loop that wakes before its time, as uvloop does, starts nothing early."""
    loop = asyncio.get_running_loop()
    starts = []
    async with RateLimitedExecutor("x") as executor:
        executor.call_later(0.5, lambda: starts.append(now()))
        loop.call_at(0.4995, executor._parts.runner._on_timer)
        await asyncio.sleep(1)
    assert [0.5] == starts


async def test_early_dispatch_is_an_option(virtual_clock):
    """With ``early=True`` a task may start anywhere in the interval of its due time, but not before that interval."""
    log = Log()
    async with RateLimitedExecutor("x", early=True) as executor:
        for name in "ab":
            executor.schedule(log, name, delay=2.9)
    assert "a2.000 b2.500" == log.text()


@pytest.mark.parametrize("before", [False, True])
async def test_early_can_be_set_at_any_time(virtual_clock, before):
    """Setting ``early`` takes effect for waiting tasks from the next interval on, and if True in the running one."""
    starts = {}
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", early=before) as executor:
        for due in (5.5, 5.9, 8.9):
            executor.schedule(lambda due=due: starts.update({due: loop.time()}), delay=due)
        await asyncio.sleep(5.25 if not before else 4.5)
        assert executor.early is before
        executor.early = not before
        assert executor.early is not before
        await asyncio.sleep(9)
    if before:
        assert all(0 <= starts[due] - due < 1 for due in starts), starts
    else:
        assert all(int(due) <= starts[due] < due for due in starts), starts
    assert 3 == len(starts)


async def test_early_of_an_executor_that_has_not_started_can_be_set(virtual_clock):
    """``early`` can be set before the start, and holds from it."""
    executor = RateLimitedExecutor("x")
    executor.early = True
    async with executor:
        handle = executor.schedule(int, delay=3.9)
        await handle
    assert 3 == virtual_clock.monotonic()


async def test_each_occurrence_counts_when_it_is_placed(virtual_clock):
    """A repeating task counts as one accepted task at a time; items of a lazy batch count when they are drawn."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule_at_fixed_rate(int, period=1)
        assert 1 == executor.statistics().accepted
        await asyncio.sleep(3.5)
        assert 5 == executor.statistics().accepted

        async def slow():
            for item in range(3):
                await asyncio.sleep(1)
                yield item

        batch = executor.schedule_many(int, slow())
        assert (5, 0) == (executor.statistics().accepted, batch.total)
        await batch
        assert 3 == batch.total


# Due now means now.


@pytest.mark.parametrize(
    "face", ["submit", "schedule", "execute", "call_soon", "call_later", "many", "permit", "map", "invoke"]
)
async def test_due_now_means_within_a_turn_on_an_idle_executor(virtual_clock, face):
    """A task due now starts now, on any face, also within an interval and under a rate."""
    starts = []

    def start(*_):
        starts.append(now())

    async with RateLimitedExecutor("x", rate=10) as executor:
        await asyncio.sleep(7.35)
        if face == "permit":
            async with executor.permit():
                start()
        elif face == "map":
            async for _ in executor.map(start, [1]):
                pass
        elif face == "invoke":
            await executor.invoke_all([start])
        elif face == "many":
            executor.schedule_many(start, [1])
        elif face == "call_later":
            executor.call_later(0, start)
        else:
            getattr(executor, face)(start)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [7.35] == starts


async def test_delay_that_ends_in_the_running_interval_is_not_spread(virtual_clock):
    """A task that joins the running interval takes the first permit at or after its due time."""
    log = Log()
    async with RateLimitedExecutor("x", rate=10) as executor:
        await asyncio.sleep(3.05)
        executor.schedule(log, "a", delay=0.33)
        executor.schedule(log, "b", delay=0.33)
        executor.call_later(0.44, log, "c")
    assert "a3.380 b3.480 c3.580" == log.text()


# Decide at the start instant.


async def test_overflow_starts_by_importance(virtual_clock):
    """Of due tasks, priority goes first, then repeating, immediate, earliest due, arrival; decided at each permit."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1) as executor:
        executor.pause()
        executor.schedule(log, "late", delay=0.7)
        executor.schedule(log, "early", delay=0.5)
        executor.schedule(log, "early2", delay=0.5)
        executor.submit(log, "now")
        executor.schedule_at_fixed_rate(log, "repeat", period=100, initial_delay=0.6)
        executor.schedule(log, "low", delay=0.1, priority=-1)
        executor.schedule(log, "high", delay=0.9, priority=2.5)
        await asyncio.sleep(10.5)
        executor.resume()
        await asyncio.sleep(2.1)
        executor.submit(log, "urgent", priority=9)
        await asyncio.sleep(5.1)
        names = [entry.rstrip("0123456789.") for entry in log]
        assert ["high", "repeat", "now", "urgent", "early", "early", "late", "low"][: len(names)] == names
        assert len(names) >= 7


async def test_importance_is_decided_at_the_instant_not_at_scheduling(virtual_clock):
    """An important task that arrives just before a permit starts before all others that wait."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1) as executor:
        for name in "abc":
            executor.submit(log, name)
        await asyncio.sleep(1.999)
        executor.submit(log, "x", priority=1)
    assert "a0.000 b1.000 x2.000 c3.000" == log.text()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (earliest_due_first, "abcd"),
        (latest_due_first, "dcba"),
        (lambda task: -task.priority, "bdac"),
        (lambda task: task.name, "abcd"),
        (lambda task: task.is_immediate, "abcd"),
    ],
)
async def test_order_is_a_key_function_of_the_task(virtual_clock, order, expected):
    """Any key function orders the tasks: the smallest key starts first, equal ones by arrival."""
    log = []
    async with RateLimitedExecutor("x", rate=1, order=order) as executor:
        executor.pause()
        for index, name in enumerate("abcd"):
            executor.schedule(log.append, name, delay=0.1 + index / 10, priority=index % 2, name=name)
        await asyncio.sleep(2)
        executor.resume()
    assert expected == "".join(log)


async def test_changing_the_order_rekeys_what_is_due(virtual_clock):
    """A new order applies from the next start on, as does a change back."""
    log = []
    async with RateLimitedExecutor("x", rate=10) as executor:
        for index in range(2000):
            executor.schedule(log.append, index, delay=0.1 + index / 10000)
        await asyncio.sleep(1.05)
        seen = len(log)
        executor.order = latest_due_first
        await asyncio.sleep(1)
        assert [*range(1999, 1999 - len(log) + seen, -1)] == log[seen:]
        middle = len(log)
        executor.order = default_order
        await asyncio.sleep(1)
        assert [*range(seen, seen + len(log) - middle)] == log[middle:]
        executor.rate = math.inf
    assert sorted(log) == [*range(2000)]


@pytest.mark.parametrize("error", [ValueError("no"), type("Own", (BaseException,), {})()])
async def test_order_that_raises_puts_its_task_last_is_reported_and_loses_nothing(virtual_clock, caplog, error):
    """A task whose sort key raises any exception starts last; no other task is moved."""
    log = []

    def order(task):
        if task.name == "bad":
            raise error
        return task.due

    async with RateLimitedExecutor("x", rate=1, order=order) as executor:
        executor.pause()
        for name in ("a", "bad", "b", "c"):
            executor.schedule(log.append, name, delay=0.5, name=name)
        await asyncio.sleep(1)
        executor.resume()
    assert ["a", "b", "c", "bad"] == log
    assert any("the order raised" in record.getMessage() for record in caplog.records)


async def test_keys_that_cannot_be_compared_lose_nothing(virtual_clock, caplog):
    """Sort keys of incomparable types are reported, and every task starts."""
    keys = iter([1, "one", None, (2,), 3.5] * 10)
    async with RateLimitedExecutor("x", rate=100, order=lambda task: next(keys)) as executor:
        handles = [executor.schedule(int, delay=0.5) for _ in range(50)]
    assert all(handle.state is TaskState.DONE for handle in handles)
    assert any("the order raised TypeError" in record.getMessage() for record in caplog.records)


# Even spread.


async def test_tasks_of_an_interval_are_spread_evenly_over_it(virtual_clock):
    """n tasks that wait for an interval start an n-th of it apart, the first one at its begin."""
    log = Log()
    async with RateLimitedExecutor("x") as executor:
        for name in "abcd":
            executor.schedule(log, name, delay=1.0)
    assert "a1.000 b1.250 c1.500 d1.750" == log.text()


async def test_planned_instant_is_never_before_the_due_time(virtual_clock):
    """A task due late in the interval waits for its due time, and those behind it are spread over the rest."""
    log = Log()
    async with RateLimitedExecutor("x") as executor:
        for name, delay in [("a", 1.0), ("b", 1.6), ("c", 1.6), ("d", 1.6)]:
            executor.schedule(log, name, delay=delay)
    assert "a1.000 b1.600 c1.733 d1.867" == log.text()


async def test_planned_instant_is_never_before_a_permit(virtual_clock):
    """At 4 a second, 3 tasks are spread evenly, each with a permit that has come up by then."""
    log = Log()
    async with RateLimitedExecutor("x", rate=4) as executor:
        for name in "abc":
            executor.schedule(log, name, delay=1.0)
    assert "a1.000 b1.333 c1.667" == log.text()


@given(
    st.one_of(st.integers(1, 60), st.fractions(1, 40, max_denominator=7)),
    st.floats(0, 1),
    st.lists(st.floats(0, 0.6), min_size=1, max_size=60),
)
@examples(150)
def test_spreading_moves_no_task_past_its_interval(rate, part, offsets):
    """Tasks that fit the permits of their interval start within it, at any rate, never early and under the law."""
    offsets = offsets[: max(1, int(rate * part / 2))]
    starts = []

    async def main():
        async with RateLimitedExecutor("x", rate=rate) as executor:
            handles = [executor.schedule(lambda: starts.append(now()), delay=1 + offset) for offset in offsets]
        assert all(handle.lateness >= 0 for handle in handles)

    run_virtual(main())
    assert max(starts) < 2.0 or rate < 2
    assert audit(starts, rate).ok


async def test_more_tasks_than_permits_start_at_each_permit(virtual_clock):
    """Tasks beyond the permits start at each permit, and the overflow is spread in the interval in which it fits."""
    log = Log()
    async with RateLimitedExecutor("x", rate=4) as executor:
        for name in "abcdef":
            executor.schedule(log, name, delay=1.0)
    assert "a1.000 b1.250 c1.500 d1.750 e2.000 f2.500" == log.text()


async def test_spreading_never_moves_a_task_past_its_deadline_or_interval(virtual_clock):
    """A task that would expire at its planned instant starts in time, and no task leaves its interval."""
    log = Log()
    async with RateLimitedExecutor("x") as executor:
        for name in "abcd":
            executor.schedule(log, name, delay=1.0)
        executor.schedule(log, "short", delay=1.0, expires=0.1)
    assert "short1.000" in log
    assert all(1.0 <= float(entry.lstrip("abcdshort")) < 2.0 for entry in log)
    assert 0 == executor.statistics().expired


@pytest.mark.parametrize("pacing", list(Pacing))
@pytest.mark.parametrize("face", ["schedule", "at", "delay=", "delays=", "at=", "over="])
async def test_no_task_expires_because_it_was_spread(virtual_clock, pacing, face):
    """A task that expires within less than an interval is not spread, alone or in a batch."""
    done = []
    async with RateLimitedExecutor("x", pacing=pacing) as executor:
        at = virtual_clock.wall() + 2.3
        for number in range(100 if face in ("schedule", "at") else 0):
            time = {"delay": 2.3} if face == "schedule" else {"at": at}
            executor.schedule(done.append, number, **time, expires=0.1)
        if face.endswith("="):
            times = {"delay=": 2.3, "delays=": [2.3] * 100, "at=": at, "over=": 2.5}
            executor.schedule_many(done.append, range(100), **{face[:-1]: times[face]}, expires=0.1)
        await asyncio.sleep(4)
        assert (100, 0) == (len(done), executor.statistics().expired)


@pytest.mark.parametrize("order", [default_order, latest_due_first])
@pytest.mark.parametrize("face", ["schedule", "schedule_many"])
async def test_no_task_of_the_overflow_expires_because_it_was_spread(virtual_clock, face, order):
    """Overflow of an earlier interval that would expire within this one takes the first permits."""
    starts = []
    async with RateLimitedExecutor("x", rate=10, order=order) as executor:
        if face == "schedule":
            for _ in range(15):
                executor.schedule(lambda: starts.append(now()), delay=1, expires=1.5)
        else:
            executor.schedule_many(lambda _: starts.append(now()), range(15), delay=1, expires=1.5)
        await asyncio.sleep(4)
        assert 0 == executor.statistics().expired
    assert [round(1 + index / 10, 3) for index in range(15)] == [round(start, 3) for start in starts]


@pytest.mark.parametrize("rate", [math.inf, 1000])
@pytest.mark.parametrize("order", [default_order, latest_due_first])
async def test_plan_goes_by_due_time_whatever_the_priority(virtual_clock, rate, order):
    """Within a plan only due time and arrival count; the order decides where more is due than may start."""
    log = Log()
    async with RateLimitedExecutor("x", rate=rate, order=order) as executor:
        for index, delay in enumerate([2.0, 2.1, 2.1, 2.3, 2.4]):
            executor.schedule(log, f"{index}-", delay=delay, priority=index)
    assert "0-2.000 1-2.200 2-2.400 3-2.600 4-2.800" == log.text()


@pytest.mark.parametrize("order", [default_order, earliest_due_first, latest_due_first])
async def test_batch_that_is_due_now_is_not_overtaken_by_what_comes_after(virtual_clock, order):
    """A batch due now is ready at once, as a submitted task is."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=order) as executor:
        executor.schedule_many(log.append, ["batch"] * 3)
        for _ in range(20):
            executor.submit(log.append, "submitted")
        await asyncio.sleep(0.35)
        assert ["batch"] * 3 + ["submitted"] == log


async def test_on_time_pacing_starts_each_at_its_due_time(virtual_clock):
    """With ``ON_TIME`` each task starts at its due time, without spread."""
    log = Log()
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        for name, delay in [("a", 1.1), ("b", 1.1), ("c", 1.9), ("d", 2.0)]:
            executor.schedule(log, name, delay=delay)
    assert "a1.100 b1.100 c1.900 d2.000" == log.text()


async def test_executors_are_spread_independently(virtual_clock):
    """Each executor of a manager divides the interval among its own tasks."""
    log = Log()
    async with ExecutorManager() as manager:
        two, three = manager.executor("two"), manager.executor("three")
        for _ in range(2):
            two.schedule(log, "two", delay=1.0)
        for _ in range(3):
            three.schedule(log, "three", delay=1.0)
    assert sorted(["two1.000", "two1.500", "three1.000", "three1.333", "three1.667"]) == sorted(log)


@pytest.mark.parametrize("interval", [0.01, 0.25, 60.0, 3600.0])
async def test_intervals_of_every_width_spread_and_start_all(virtual_clock, interval):
    """In intervals of 10 ms to an hour, tasks are spread evenly, none early and none lost."""
    starts = []
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("x")
        for _ in range(4):
            executor.schedule(lambda: starts.append(now()), delay=interval)
        await asyncio.sleep(3 * interval)
    assert [round(interval * (1 + part / 4), 6) for part in range(4)] == [round(start, 6) for start in starts]


# Expiry.


async def test_expiry_is_measured_from_the_due_time_to_the_start(virtual_clock):
    """A task that waited longer than ``expires`` after its due time never starts, and uses no permit."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1) as executor:
        handles = [executor.submit(log, name, expires=expires) for name, expires in [("a", 0), ("b", 1.5), ("c", 0.5)]]
        late = executor.schedule(log, "d", delay=3, expires=0.2)
        last = executor.submit(log, "e")
        await asyncio.wait([*handles, late, last])
    assert "a0.000 b1.000 e2.000 d3.000" == log.text()
    assert TaskState.EXPIRED is handles[2].state
    with pytest.raises(TaskExpiredError, match="within 0.5 s of its due time"):
        handles[2].result()


@pytest.mark.parametrize("how", ["pause", "rate 0", "busy"])
@pytest.mark.parametrize("face", ["schedule", "submit", "at", "permit"])
async def test_deadlines_are_kept_within_one_interval_whatever_holds_the_tasks(virtual_clock, how, face):
    """While paused, at rate 0 or at full concurrency, a task expires within an interval of its deadline."""
    async with RateLimitedExecutor("x", max_concurrency=1 if how == "busy" else None, drain_timeout=0) as executor:
        if how == "busy":
            executor.submit(asyncio.sleep, 100)
            await asyncio.sleep(0)
        elif how == "pause":
            executor.pause()
        else:
            executor.rate = 0

        async def wait():
            async with executor.permit(expires=2.5):
                pass

        due = now()
        if face == "permit":
            waiter = asyncio.ensure_future(wait())
        elif face == "submit":
            waiter = executor.submit(int, expires=2.5)
        elif face == "at":
            due += 2.3
            waiter = executor.schedule(int, at=virtual_clock.wall() + 2.3, expires=2.5)
        else:
            due += 1.2
            waiter = executor.schedule(int, delay=1.2, expires=2.5)
        await asyncio.wait([waiter], timeout=20)
        assert waiter.done()
        assert isinstance(waiter.exception(), TaskExpiredError)
        assert due + 2.5 <= now() <= due + 2.5 + 1.0
        assert 1 == executor.statistics().expired


async def test_cancelled_tasks_use_no_permit(virtual_clock):
    """A cancelled task uses no permit: the next one takes it."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1) as executor:
        handles = [executor.submit(log, name) for name in "abcd"]
        await asyncio.sleep(0.5)
        handles[1].cancel()
        handles[2].cancel()
    assert "a0.000 d1.000" == log.text()


# Time.


@pytest.mark.parametrize(("step", "expected"), [(-3600, 5410.0), (3600, 1001.0), (0, 1810.0)])
async def test_tasks_at_a_time_of_day_follow_the_wall_clock_when_it_steps(virtual_clock, step, expected):
    """``at=`` follows the wall clock after a step; a time that is stepped over starts within an interval."""
    async with RateLimitedExecutor("x") as executor:
        at = virtual_clock.wall() + 1810
        handle = executor.schedule(now, at=at)
        batch = executor.schedule_many(lambda _: None, [1, 2], at=at)
        delayed = executor.schedule(now, delay=1810)
        await asyncio.sleep(1000)
        virtual_clock.step_wall(step)
        assert expected == pytest.approx(await handle, abs=1.0)
        assert virtual_clock.wall() >= at
        await batch
        assert 1810 <= await delayed < 1811


async def test_what_was_stepped_over_starts_under_the_rate(virtual_clock):
    """An hour of tasks that a step makes due at once starts at the rate."""
    starts = []
    async with RateLimitedExecutor("x", rate=10) as executor:
        for minute in range(60):
            executor.schedule(lambda: starts.append(now()), at=virtual_clock.wall() + 60 * minute + 30)
        await asyncio.sleep(5)
        virtual_clock.step_wall(3600)
        await asyncio.sleep(10)
        assert 60 == len(starts)
    assert audit(starts, 10).ok


async def test_delays_do_not_move_when_the_wall_clock_steps(virtual_clock):
    """Delays, permits and intervals follow a timeline that never steps."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1) as executor:
        for name in "abc":
            executor.schedule(log, name, delay=1)
        virtual_clock.step_wall(-3600)
        await asyncio.sleep(1.5)
        virtual_clock.step_wall(7200)
    assert "a1.000 b2.000 c3.000" == log.text()


async def test_past_time_of_day_is_due_now(virtual_clock):
    """A task with ``at=`` in the past starts now."""
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(3.3)
        assert 3.3 == await executor.schedule(now, at=virtual_clock.wall() - 100)


@pytest.mark.parametrize("rate", [1, 7, 100, Rate(5, per=3)])
async def test_blocked_loop_causes_no_burst_beyond_the_law(virtual_clock, rate):
    """After a loop has been blocked for 2 s, starts keep the law of ``Paced``."""
    starts = []
    async with RateLimitedExecutor("x", rate=rate) as executor:
        for index in range(40):
            executor.schedule(lambda: starts.append(now()), delay=index / 10)
        asyncio.get_running_loop().call_later(1.1, asyncio.get_running_loop().block_for, 2)
        executor.call_later(2.2, asyncio.get_running_loop().block_for, 0.5)
    assert 40 == len(starts)
    report = audit(starts, rate)
    assert report.ok, report


async def test_static_peers_alternate(virtual_clock):
    """Two peers at a shared rate of one a second start in turn, and keep the rate together."""
    starts = []
    managers = [ExecutorManager(peers=StaticPeers(2, rank)) for rank in range(2)]
    async with managers[0], managers[1]:
        for rank, manager in enumerate(managers):
            executor = manager.executor("x", rate=1)
            for _ in range(4):
                executor.schedule(lambda rank=rank: starts.append((round(now(), 6), rank)), delay=0.5)
        await asyncio.sleep(12)
    ranks = [rank for _, rank in sorted(starts)]
    assert [0, 1] * 4 in (ranks, ranks[::-1])
    assert audit([when for when, _ in starts], 1).ok


async def test_overload_uses_the_permits(virtual_clock):
    """With more tasks than permits on an unblocked loop, at least 99.5 % of the permits are used."""
    async with RateLimitedExecutor("x", rate=1000, drain_timeout=0) as executor:
        executor.schedule_many(int, range(30_000))
        for index in range(5_000):
            executor.schedule(int, delay=index / 1000)
        await asyncio.sleep(20)
        assert 20_000 * 0.995 <= executor.statistics().started <= 20_001


# Settings.


async def test_rate_zero_pauses_and_infinity_lifts(virtual_clock):
    """The rate may be set at any time, and takes effect for waiting tasks at once."""
    log = Log()
    async with RateLimitedExecutor("x", rate=0) as executor:
        for name in "abc":
            executor.submit(log, name)
        await asyncio.sleep(5)
        assert [] == log
        assert math.inf == executor.backlog_seconds()
        executor.rate = "1/s"
        await asyncio.sleep(0.5)
        executor.rate = math.inf
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "a5.000 b5.500 c5.500" == log.text()
        assert Rate(math.inf) == executor.rate


async def test_pause_holds_and_resume_goes_on(virtual_clock):
    """While paused nothing starts on any face, running coroutines continue, and the rate is unchanged."""
    log = Log()
    async with RateLimitedExecutor("x", rate=10) as executor:
        running = executor.submit(asyncio.sleep, 2, "ran on")
        await asyncio.sleep(0.05)
        executor.pause()
        executor.submit(log, "a")
        executor.call_later(1, log, "b")
        await asyncio.sleep(5)
        assert [] == log
        assert (True, Rate(10)) == (executor.is_paused, executor.rate)
        assert "ran on" == await running
        executor.resume()
    assert ["a", "b"] == [entry[0] for entry in log]


@pytest.mark.parametrize("setting", ["pause", "rate"])
async def test_setting_changed_by_a_task_holds_the_next(virtual_clock, setting):
    """A task that pauses its executor or sets its rate affects the tasks due with it."""
    log = Log()
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:

        def change():
            log("a")
            executor.rate = 1 if setting == "rate" else executor.rate
            if setting == "pause":
                executor.pause()

        for _ in range(5):
            executor.call_later(1, change)
        await asyncio.sleep(2.5)
        assert len(log) == 1 if setting == "pause" else len(log) <= 3


async def test_max_concurrency_bounds_what_runs(virtual_clock, account):
    """A permit is taken only when a place is free, and raising ``max_concurrency`` takes effect at once."""
    peak = running = 0

    async def work():
        nonlocal peak, running
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(1)
        running -= 1

    async with RateLimitedExecutor("x", max_concurrency=3) as executor:
        for _ in range(9):
            executor.submit(work)
        await asyncio.sleep(0.5)
        account(executor)
        assert (3, 6) == (executor.statistics().running, executor.statistics().waiting)
        waiting = executor.submit(int)
        assert Hold.CONCURRENCY is executor.explain(waiting).hold
        await asyncio.sleep(1)
        executor.max_concurrency = None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 6 == executor.statistics().running
    assert 6 == peak


async def test_concurrency_takes_no_permit_in_vain(virtual_clock):
    """At full concurrency no permit is used up: the next task starts at once when a place is free."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1, max_concurrency=1) as executor:
        executor.submit(asyncio.sleep, 5.5)
        executor.submit(log, "a")
        executor.submit(log, "b")
    assert ["a", "b"] == [entry[0] for entry in log]
    assert "a5.500" == log[0]


async def test_executors_of_a_manager_hear_each_other_in_the_same_turn(virtual_clock):
    """A task may submit to another executor that has already run at this instant."""
    log = Log()
    async with ExecutorManager() as manager:
        first, second = manager.executor("first"), manager.executor("second")
        for one, other in ((first, second), (second, first)):
            one.call_later(1, log, "own")
            one.call_later(1, lambda other=other: other.submit(log, "asked"))
        await asyncio.sleep(1.5)
        assert ["asked1.000"] * 2 + ["own1.000"] * 2 == sorted(log)


# Insight.


async def test_explain_names_what_holds_a_task(virtual_clock):
    """Waiting for the due time, spread, permit, order or resume is told apart, with the expected start."""
    epoch = virtual_clock.wall()
    async with RateLimitedExecutor("x", rate=1) as executor:
        later = executor.schedule(int, delay=50)
        assert Hold.DUE is executor.explain(later).hold
        await executor.submit(int)
        first, second = executor.submit(int), executor.submit(int)
        assert (Hold.RATE, 0, epoch + 1) == (
            executor.explain(first).hold,
            executor.explain(first).position,
            executor.explain(first).expected_start,
        )
        assert (Hold.ORDER, 1, epoch + 2) == (
            executor.explain(second).hold,
            executor.explain(second).position,
            executor.explain(second).expected_start,
        )
        assert 2.0 == executor.backlog_seconds()
        executor.pause()
        assert (Hold.PAUSE, None) == (executor.explain(first).hold, executor.explain(first).expected_start)
        executor.resume()
        await second
        assert (Hold.NOTHING, TaskState.DONE) == (executor.explain(second).hold, executor.explain(second).state)
    async with RateLimitedExecutor("y") as executor:
        spread = [executor.schedule(int, delay=1 - virtual_clock.monotonic() % 1) for _ in range(4)]
        await spread[0]
        assert Hold.SPREAD is executor.explain(spread[3]).hold
        with pytest.raises(ValueError, match="handle must be a task of y"):
            executor.explain(later)


async def test_idle_executor_wakes_the_loop_not_at_all(virtual_clock):
    """An executor with nothing due for an hour sets no timer before that."""
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", rate=100) as executor:
        await asyncio.sleep(2.5)
        assert [] == [timer for timer in loop._scheduled if not timer.cancelled()]
        executor.call_later(3600, int)
        timers = [timer.when() for timer in loop._scheduled if not timer.cancelled()]
        assert [3602] == [math.floor(when) for when in timers]


async def test_long_work_of_the_executor_leaves_turns_to_the_loop(virtual_clock):
    """A hundred thousand tasks due at once start in slices, with other callbacks in between."""
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_many(int, range(100_000), delay=0.5)
        await asyncio.sleep(0.4)
        counting = asyncio.ensure_future(count_turns())
        batch = executor.schedule_many(int, range(100_000))
        await batch
        counting.cancel()
        assert turns >= 90


async def test_collector_is_left_alone(virtual_clock):
    """The executor changes none of the garbage collector's settings."""
    before = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
    async with RateLimitedExecutor("x") as executor:
        executor.schedule_many(int, range(20_000))
    assert before == (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
