"""Observers are notified of each task once, as it happens; they harm none, and cost nothing once removed."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor, Retry, TaskState, WhenFull, Window
from ratelimited_executor.abc import Observer
from ratelimited_executor.insight import Observation, observe
from ratelimited_executor.testing import audit, run_virtual
from ratelimited_executor.exceptions import BacklogFullError, WrongLoopError

from ...helpers import now, seen, turns

pytestmark = pytest.mark.usefixtures("virtual_clock")


class Log:
    """Records its notifications, and checks that the counts of the executor close at each of them."""

    def __init__(self, executor=None) -> None:
        self.executor = executor
        self.lines: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()

    def _note(self, *line: object, count: int = 1) -> None:
        self.lines.append((round(now(), 6), *line))
        self.counts[str(line[0])] += count
        if self.executor is not None:
            told = self.executor.statistics()
            ends = told.done + told.failed + told.cancelled + told.expired + told.dropped
            assert told.accepted == told.waiting + told.running + ends
            assert told.waiting >= 0

    def accepted(self, count: int) -> None:
        self._note("accepted", count, count=count)

    def started(self, lateness: float) -> None:
        self._note("started", round(lateness, 6))

    def retried(self, duration: float) -> None:
        self._note("retried", round(duration, 6))

    def ended(self, state: TaskState, duration: float | None, count: int) -> None:
        self._note(state.value, None if duration is None else round(duration, 6), count, count=count)


def unhooked(executor) -> bool:
    """Return True if an executor notifies nobody, and calls take the fast path."""
    parts = executor._parts
    accounts, queue = parts.accounts, parts.queue
    return (
        queue.on_start is None
        and queue.untold_count == 0
        and (accounts.on_task_end, accounts.on_accepted, accounts.on_cancelled, accounts.on_retried, accounts.on_failed)
        == (None,) * 5
        and queue.on_time.on_cancelled is None
        and accounts.started_at is None
        and type(accounts.calls).__name__ == "CallOwner"
        and parts.coroutines.on_free == executor._engine._freed
        and executor._home is parts.engine.loop
    )


class Meddler(Log):
    """Does something with the executor before each start."""

    def __init__(self, meddle) -> None:
        super().__init__()
        self.meddle = meddle

    def started(self, lateness: float) -> None:
        self.meddle()


@pytest.mark.parametrize("options", [{}, {"key_rate": 50}, {"policy": Window()}, {"resources": {"tokens": 50}}])
@pytest.mark.parametrize("how", ["explain", "backlog", "rate", "pause"])
async def test_an_observer_that_asks_or_sets_something_lets_no_start_go_unpaid(how, options):
    """The rate is kept, whatever an observer asks of the executor or sets at each start."""
    starts: list[float] = []
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0, **options) as executor:
        other = executor.schedule(int, delay=3600)
        meddle = {
            "explain": lambda: executor.explain(other),
            "backlog": executor.backlog_seconds,
            "rate": lambda: setattr(executor, "rate", 10),
            "pause": lambda: (executor.pause(), executor.resume()),
        }
        observe(executor, Meddler(meddle[how]))
        executor.schedule_many(
            lambda _: starts.append(now()), range(20), cost={"tokens": 1} if "resources" in options else 1
        )
        for index in range(20):
            executor.submit(lambda: starts.append(now()))
            executor.schedule(lambda: starts.append(now()), delay=index / 10)
            executor.call_later(index / 10, lambda: starts.append(now()))
        await asyncio.sleep(10)
    assert len(starts) == 80
    assert audit(starts, 10).ok


class Busy(Log):
    """Does something at each start or each end."""

    def __init__(self, what, meddle) -> None:
        super().__init__()
        self.what, self.meddle = what, meddle

    def _note(self, *line: object, count: int = 1) -> None:
        if (line[0] == "started") == (self.what == "started") and line[0] != "accepted":
            self.meddle()


KINDS = {
    "handle": lambda executor, fn: [executor.schedule(fn, delay=0.2, expires=1)],
    "call": lambda executor, fn: [executor.call_later(0.2, fn)],
    "batch": lambda executor, fn: [executor.schedule_many(lambda _: fn(), range(6), over=1)],
    "batch of one": lambda executor, fn: [executor.schedule_many(lambda _: fn(), range(1), delay=0.2)],
    "results": lambda executor, fn: [executor.schedule_many(lambda _: fn(), range(6), delay=0.2, results=True)],
    "keys": lambda executor, fn: [executor.schedule_many(lambda _: fn(), range(6), key=str)],
    "expiring": lambda executor, fn: [executor.schedule_many(lambda _: fn(), range(6), delay=0.2, expires=1)],
    "several": lambda executor, fn: [executor.schedule(fn, delay=index) for index in range(6)],
}


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("how", ["cancel", "reschedule", "explain", "key limit"])
@pytest.mark.parametrize("what", ["started", "ended"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_observer_that_meddles_with_the_task_it_is_told_of_loses_none(
    kind, what, how, is_paused, handler, account
):
    """Whatever an observer does with the task that starts or ends, and with those beside it, each ends once."""
    reports = handler()
    async with RateLimitedExecutor("x", rate=50) as executor:
        starts: list[float] = []
        handles = KINDS[kind](executor, lambda: starts.append(now()))

        def meddle() -> None:
            for handle in handles:
                if how == "cancel":
                    handle.cancel()
                elif how == "reschedule" and kind == "call" and len(starts) < 3 and now() < 3:
                    handle.reschedule(0.5)
                elif how == "explain" and hasattr(handle, "state"):
                    executor.explain(handle)
                elif how == "key limit":
                    executor.key_rate = 30

        observe(executor, Busy(what, meddle))
        if is_paused:
            executor.pause()
        await asyncio.sleep(4)
        account(executor)
        if is_paused:
            await executor.shutdown(cancel_pending=True)
    account(executor)
    statistics = executor.statistics()
    assert (statistics.waiting, statistics.running) == (0, 0)
    assert all(handle.done() for handle in handles if hasattr(handle, "done"))
    assert reports == []


async def test_each_kind_of_task_is_told_of():
    """Observers are notified of every kind of task: functions, coroutines, callbacks, items, permits."""
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        log = Log(executor)
        observe(executor, log)
        executor.submit(str)
        await turns()
        assert log.lines == [(0.0, "accepted", 1), (0.0, "started", 0.0), (0.0, "done", 0.0, 1)]
        log.lines.clear()
        executor.schedule(asyncio.sleep, 1.5, delay=1)
        executor.call_later(2, asyncio.sleep, 3)
        executor.call_later(2.25, str)
        executor.schedule_many(asyncio.sleep, [4], delay=3)
        executor.schedule_many(str, range(2), delay=3.5)
        executor.execute(str)
        await asyncio.sleep(10)
        assert sorted(log.lines, key=lambda line: line[0]) == [
            *[(0.0, "accepted", count) for count in (1, 1, 1, 1, 2, 1)],
            *[(0.0, "started", 0.0), (0.0, "done", 0.0, 1)],
            (1.0, "started", 0.0),
            (2.0, "started", 0.0),
            *[(2.25, "started", 0.0), (2.25, "done", 0.0, 1)],
            (2.5, "done", 1.5, 1),
            (3.0, "started", 0.0),
            *[(3.5, "started", 0.0), (3.5, "done", 0.0, 1)] * 2,
            (5.0, "done", 3.0, 1),
            (7.0, "done", 4.0, 1),
        ]
        log.lines.clear()
        async with executor.permit():
            await asyncio.sleep(2)
        executor.acquire_nowait()
        assert [line[1:] for line in log.lines] == [
            *[("accepted", 1), ("started", 0.0), ("done", 2.0, 1)],
            *[("accepted", 1), ("started", 0.0), ("done", 0.0, 1)],
        ]


@pytest.mark.parametrize("rate", [20, float("inf")])
@pytest.mark.parametrize("pacing", list(Pacing))
async def test_what_is_told_adds_up_to_the_statistics(rate, pacing):
    """Notifications add up to the statistics, for all tasks and endings, also with limits of keys."""

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise ValueError

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with RateLimitedExecutor(
        "x", rate=rate, pacing=pacing, key_concurrency=2, retry=Retry(2, on=ValueError)
    ) as executor:
        log = Log(executor)
        observe(executor, log)
        for number in range(20):
            executor.submit(asyncio.sleep, number / 10, key=number % 3)
            executor.schedule(fail, delay=number / 10).add_done_callback(seen)
            executor.schedule(str, delay=number / 5).add_done_callback(seen)
            executor.schedule(str, delay=5.0).cancel()
            executor.schedule(str, delay=number / 10, expires=0.01).add_done_callback(seen)
            executor.call_later(number / 10, str)
            executor.call_later(number / 10, asyncio.sleep, 1)
            executor.call_later(3 + number / 10, str).cancel()
            executor.call_soon(str)
            executor.execute(asyncio.sleep, 0.1)
        executor.schedule_many(str, range(50), over=3)
        executor.schedule_many(asyncio.sleep, [1] * 10, delay=1, key="a")
        executor.schedule_many(str, range(7), delay=9).cancel()
        async with executor.permit():
            await asyncio.sleep(0.5)
        await asyncio.sleep(60)
        executor.acquire_nowait()

    told = executor.statistics()
    for name in ("accepted", "started", "done", "failed", "cancelled", "expired", "dropped", "retried"):
        assert (name, getattr(told, name)) == (name, log.counts[name])
    assert told.failed == told.retried == 20
    assert told.cancelled == 47


async def test_what_is_cut_at_the_end_is_told_of():
    """Tasks cancelled together by a cut are notified, with or without a handle."""
    log = Log()
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        observe(executor, log)
        executor.schedule_many(str, range(5), delay=60)
        executor.schedule(str, delay=60)
        for _ in range(3):
            executor.call_later(60, str)
        executor.submit(asyncio.sleep, 60)
        await asyncio.sleep(1)

    assert log.counts["cancelled"] == 10 == executor.statistics().cancelled
    assert (1.0, "cancelled", 1.0, 1) in log.lines
    assert (1.0, "cancelled", None, 5) in log.lines


async def test_a_retried_task_is_told_of_at_each_attempt():
    """Each attempt is notified as a start, and the last one is followed by the end."""

    async def fail() -> None:
        await asyncio.sleep(0.25)
        raise ValueError

    log = Log()
    async with RateLimitedExecutor("x", retry=Retry(2, on=ValueError)) as executor:
        observe(executor, log)
        with pytest.raises(ValueError):
            await executor.submit(fail)

    assert [
        (0.0, "accepted", 1),
        (0.0, "started", 0.0),
        (0.25, "retried", 0.25),
        ("started", 0.0),
        ("failed", 0.25, 1),
    ] == [line if at < 1 else line[1:] for at, line in enumerate(log.lines, start=-2)]


async def test_several_observe_and_each_leaves_for_itself():
    """Observers leave independently; after the last one nobody is notified, and calls take the fast path."""
    first, second = Log(), Log()
    async with RateLimitedExecutor("x") as executor:
        assert unhooked(executor)
        with observe(executor, first) as observation, observe(executor, second):
            assert not unhooked(executor)
            await executor.submit(str)
            observation.close()
            observation.close()
            assert "closed" in repr(observation)
            await executor.submit(str)
        assert unhooked(executor)
        await executor.submit(str)

    assert (3, 6) == (len(first.lines), len(second.lines))


@pytest.mark.parametrize("kind", [LookupError, asyncio.CancelledError])
@pytest.mark.parametrize("method", ["accepted", "started", "retried", "ended"])
async def test_an_observer_that_raises_harms_no_task(method, kind):
    """The error of an observer goes to the loop's handler; tasks and other observers are not affected."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    log = Log()

    def raises(*args: object) -> None:
        raise kind(method)

    broken = Log()
    setattr(broken, method, raises)
    raises.__name__ = method
    async with RateLimitedExecutor("x", retry=Retry(2, on=ValueError)) as executor:
        observe(executor, broken)
        observe(executor, log)
        assert "1" == await executor.submit(str, 1)
        with pytest.raises(ValueError):
            await executor.submit(int, "x")

    assert {"accepted": 2, "started": 3, "retried": 1, "done": 1, "failed": 1} == log.counts
    times = {"accepted": 2, "started": 3, "retried": 1, "ended": 2}[method]
    assert [kind] * times == [type(context["exception"]) for context in told]
    assert f"exception in {method}() of the observer" in str(told[0]["message"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_leaves_the_loop_and_loses_no_task(error):
    """An exit in an observer is raised in the next turn, after the task has started."""

    class Ends(Log):
        def started(self, lateness: float) -> None:
            raise error

    executor = None

    async def main() -> None:
        nonlocal executor
        async with RateLimitedExecutor("x") as executor:
            observe(executor, Ends())
            executor.submit(str)
            await asyncio.sleep(1)

    with pytest.raises(error):
        run_virtual(main())
    assert (executor.statistics().accepted, executor.statistics().done) == (1, 1)


async def test_an_observer_may_come_before_the_start_and_in_the_middle_of_tasks():
    """An observer added by a task is notified of those behind it; one added before the start, of all."""
    before, within = Log(), Log()
    manager = ExecutorManager()
    executor = manager.executor("x", pacing=Pacing.ON_TIME)
    observation = observe(executor, before)
    async with manager:
        await executor.submit(str)
        observation.close()
        for number in range(10):
            executor.call_later(1.0, (lambda: observe(executor, within)) if number == 4 else str)
        await asyncio.sleep(2)

    assert 3 == len(before.lines)
    assert {"started": 5, "done": 5} == within.counts


async def test_a_full_backlog_and_drops_are_told_of():
    """A refused task is never notified; a dropped one ends as dropped."""
    async with RateLimitedExecutor("x", max_pending=2, when_full=WhenFull.DROP_OLDEST) as executor:
        log = Log(executor)
        observe(executor, log)
        handles = [executor.schedule(str, delay=1) for _ in range(3)]
        await asyncio.wait(handles)
        seen(handles[0])
    assert {"accepted": 3, "dropped": 1, "started": 2, "done": 2} == log.counts

    async with RateLimitedExecutor("y", max_pending=2) as executor:
        log = Log(executor)
        observe(executor, log)
        executor.call_later(1, str)
        executor.submit(str)
        with pytest.raises(BacklogFullError):
            executor.call_later(1, str)
    assert {"accepted": 2, "started": 2, "done": 2} == log.counts


async def test_a_permit_that_is_refused_at_once_is_not_told_of():
    """``acquire_nowait`` is notified if it gets a permit, and not if it is refused."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        log = Log(executor)
        observe(executor, log)
        executor.acquire_nowait()
        with pytest.raises(anyio.WouldBlock):
            executor.acquire_nowait()
        assert ["accepted", "started", "done"] == [line[1] for line in log.lines]
        await executor.submit(str)
    assert {"accepted": 2, "started": 2, "done": 2} == log.counts


@pytest.mark.parametrize(
    ("executor", "observer", "message"),
    [
        (None, Log(), "executor must be a RateLimitedExecutor, got None"),
        (RateLimitedExecutor, Log(), "executor must be a RateLimitedExecutor"),
        ("new", object(), r"lacks accepted\(\) and started\(\) and retried\(\) and ended\(\)"),
        ("new", Log, "lacks an instance of its class"),
    ],
)
async def test_wrong_arguments_are_refused(executor, observer, message):
    """Wrong arguments are refused by name."""
    with pytest.raises(TypeError, match=message):
        observe(ExecutorManager().executor("x") if executor == "new" else executor, observer)


async def test_observers_come_from_the_loop_of_the_executor():
    """Observers may be added only on the executor's loop: the list is read while tasks start."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(observe, executor, Log())
        observation = observe(executor, Log())
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(observation.close)
        observation.close()
        assert isinstance(observation, Observation)
        assert isinstance(Log(), Observer)
