"""Laws that mutants break and that are not among the predecessor's flaws, in short programs in virtual time."""

import asyncio
import contextvars
import gc
import random

import pytest

from ratelimited_executor import ExecutorManager, Paced, RateLimitedExecutor, TaskState
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import audit, run_virtual, search_faults

from ..model.faults import permits
from ..waiting import walk

VARIABLE: contextvars.ContextVar[object] = contextvars.ContextVar("VARIABLE")


async def _disturbed(seed: int) -> tuple[list[float], list[tuple[float, float]]]:
    """Run an executor under stalls and changes of its rate; return its starts and the history of the rate."""
    loop = asyncio.get_running_loop()
    generator = random.Random(seed)
    starts: list[float] = []
    history = [(loop.time(), 10.0)]
    async with ExecutorManager(interval=generator.choice([0.1, 1.0, 5.0])) as manager:
        executor = manager.executor("one", rate=10, policy=Paced(strictness=Strictness.NOMINAL))
        for _ in range(30):
            for _ in range(generator.randrange(12)):
                delay = generator.choice([0.0, generator.random(), 3 * generator.random()])
                executor.schedule(lambda: starts.append(loop.time()), delay=delay)
            if generator.random() < 0.3:
                history.append((loop.time(), generator.choice([0.0, 0.5, 3.0, 10.0, 40.0])))
                executor.rate = history[-1][1]
            if generator.random() < 0.5:
                loop.clock.block(generator.choice([0.005, 0.019, 0.021, 0.06, 0.3, 2.0]))
            if generator.random() < 0.2:
                loop.clock.step_wall(generator.choice([-3600, 3600]))
            await asyncio.sleep(generator.choice([0.0, 0.013, 0.1, 0.5]))
        executor.shutdown(cancel_pending=True)
    return starts, history


def test_law_of_paced_is_not_broken_by_stalls_and_changes_of_the_rate() -> None:
    """Whatever happens to the loop, the clock and the rate, no window has more starts than the law allows."""
    for seed in range(60):
        starts, history = run_virtual(_disturbed(seed), seed=seed)
        assert audit(starts, history, slack=0.02).ok, seed


def test_late_start_voids_the_permits_that_it_overtakes() -> None:
    """A start on the newest permit, just before the next one comes up, does not let another follow at once."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        starts: list[float] = []
        async with RateLimitedExecutor("one", rate=10, policy=Paced(strictness=Strictness.NOMINAL)) as executor:
            await asyncio.sleep(0.09)
            for _ in range(3):
                executor.submit(lambda: starts.append(loop.time()))
        return starts

    assert [0.09, pytest.approx(0.2), pytest.approx(0.3)] == run_virtual(main())


async def test_full_rate_is_reached_although_timers_are_late(virtual_clock) -> None:
    """Slack makes up for starts that are a few milliseconds late: at least 99.5 % of the permits are used."""
    loop = asyncio.get_running_loop()
    starts: list[float] = []

    def work() -> None:
        starts.append(loop.time())
        virtual_clock.block(0.0082 if len(starts) % 2 else 0.0)  # the permits come every 5 ms

    async with RateLimitedExecutor("one", rate=200) as executor:
        executor.schedule_many(lambda _: work(), range(2000))

    assert starts[-1] - starts[0] <= 1999 / 200 / 0.995


async def test_equal_values_of_two_contexts_are_not_shared(virtual_clock) -> None:
    """Requests that set equal values each see their own object, in tasks and in callbacks."""
    seen: list[tuple[str, object]] = []
    values = [["request"], ["request"], ["request"]]
    async with RateLimitedExecutor("one") as executor:

        def request(value: list[str]) -> None:
            VARIABLE.set(value)
            executor.schedule(lambda: seen.append(("schedule", VARIABLE.get())), delay=1)
            executor.call_later(1, lambda: seen.append(("call_later", VARIABLE.get())))

        for value in values:
            contextvars.copy_context().run(request, value)
        await asyncio.sleep(3)

    for face in ("schedule", "call_later"):
        got = [value for name, value in seen if name == face]
        assert all(mine is theirs for mine, theirs in zip(values, got, strict=True)), face


async def test_tasks_do_not_see_each_other_s_changes(virtual_clock) -> None:
    """The next task does not see a context variable that a task has set, although both are given the same context."""
    seen: list[object] = []

    def work(value: int) -> None:
        seen.append(VARIABLE.get("unset"))
        VARIABLE.set(value)

    async with RateLimitedExecutor("one") as executor:
        for number in range(3):
            executor.call_later(1, work, number)
            executor.schedule(work, number, delay=1)
        other = contextvars.ContextVar("other")
        other.set(1)
        for number in range(3):
            executor.call_later(1, work, number)
            executor.schedule(work, number, delay=1)
        await asyncio.sleep(3)

    assert ["unset"] * 12 == seen


async def test_equal_due_times_keep_the_order_of_the_calls(virtual_clock) -> None:
    """Callbacks due at the same instant run in the order of the calls, in this interval and in a later one."""
    for delay in (0.25, 5.0):
        ran: list[int] = []
        async with RateLimitedExecutor("one") as executor:
            await asyncio.sleep(0.1)
            when = virtual_clock.monotonic() + delay
            for number in range(50):
                executor.call_at(when, ran.append, number)
            await asyncio.sleep(delay + 0.1)
        assert list(range(50)) == ran


async def test_priorities_are_kept_in_the_overflow(virtual_clock) -> None:
    """The larger priority starts first, whatever the order of arrival."""
    ran: list[int] = []
    async with RateLimitedExecutor("one", rate=10) as executor:
        for number in (3, 1, 4, 1, 5, 9, 2, 6):
            executor.submit(ran.append, number, priority=number)

    assert [9, 6, 5, 4, 3, 2, 1, 1] == ran


async def test_accounting_closes_at_every_step(virtual_clock) -> None:
    """accepted = waiting + running + the five final states, with the waiting ones counted in the queue itself."""
    generator = random.Random(5)
    executor = RateLimitedExecutor("one", rate=50, max_concurrency=5)
    await executor.start()

    def check() -> None:
        counts = executor.statistics()
        ended = counts.done + counts.failed + counts.cancelled + counts.expired + counts.dropped
        walked = sum(1 for _ in walk(executor._engine.queue))
        assert walked == counts.waiting
        assert counts.accepted == walked + counts.running + ended

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    handles = []
    for _ in range(150):
        delay = generator.choice([0.0, 0.3, 1.5, 4.0])
        handles.append(executor.schedule(asyncio.sleep, 0.05, delay=delay, expires=generator.choice([None, 0.1, 1])))
        handles.append(executor.call_later(delay, generator.choice([int, lambda: 1 / 0])))
        batch = executor.schedule_many(int, range(generator.randrange(1, 5)), delay=delay)
        if generator.random() < 0.4:
            handles.pop(generator.randrange(len(handles))).cancel()
        if generator.random() < 0.1:
            batch.cancel()
        check()
        await asyncio.sleep(generator.choice([0, 0.01, 0.2]))
        check()
    await executor.shutdown(timeout=1)
    check()


async def test_drain_runs_what_was_accepted_at_its_due_time(virtual_clock) -> None:
    """Leaving the executor waits for one-shot tasks, and stops repeating ones."""
    ran: list[float] = []
    async with RateLimitedExecutor("one") as executor:
        handle = executor.schedule(lambda: ran.append(virtual_clock.monotonic()), delay=5.5)
        every = executor.schedule_at_fixed_rate(int, period=1)
    assert TaskState.DONE is handle.state
    assert 5.5 <= ran[0] < 6.5
    assert every.cancelled()


async def test_drain_that_cannot_progress_ends(virtual_clock) -> None:
    """At rate 0 a shutdown cancels what waits, and ends at once."""
    async with RateLimitedExecutor("one", rate=0) as executor:
        handle = executor.submit(int)
    assert handle.cancelled()
    assert 0 == virtual_clock.monotonic()


async def test_drain_timeout_is_kept(virtual_clock) -> None:
    """A task due in an hour delays a shutdown only until the drain time-out."""
    async with RateLimitedExecutor("one", drain_timeout=3) as executor:
        handle = executor.schedule(int, delay=3600)
    assert handle.cancelled()
    assert 3 == virtual_clock.monotonic()


@pytest.mark.parametrize("is_async", [False, True])
async def test_failure_that_nobody_sees_is_reported_once(virtual_clock, is_async) -> None:
    """A failure is reported to the loop's handler as soon as its handle is dropped, unless its exception was read."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail() -> None:
        raise ZeroDivisionError

    async def async_fail() -> None:
        fail()

    gc.disable()
    try:
        async with RateLimitedExecutor("one") as executor:
            executor.submit(async_fail if is_async else fail)
            seen = executor.submit(async_fail if is_async else fail)
            await asyncio.wait([seen])
            assert isinstance(seen.exception(), ZeroDivisionError)
            del seen
            await asyncio.sleep(1)
            assert 1 == len(reported)
    finally:
        gc.enable()


def test_no_permit_is_lost_to_a_cancellation():
    """However waiters and holders are cancelled, also at the moment of the grant, no permit and no place is lost."""
    search_faults(permits, seeds=100)
