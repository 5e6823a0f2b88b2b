"""A job that only lasts starts, ends, fails and is cancelled in a simulation as if awaited in its own task."""

import asyncio
import logging
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimited_executor import (
    Burst,
    ExecutorManager,
    Pacing,
    RateLimitedExecutor,
    Retry,
    RunTimeoutError,
    Window,
)
from ratelimited_executor.orders import Fair
from ratelimited_executor.simulation import Lasting
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.testing import run_virtual

from ..helpers import now


class FailedError(Exception):
    """The error of a job at its end."""


def simulated(coroutine):
    """Run a coroutine on the loop of a simulation."""
    loop = SimulationLoop()
    told = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        result = loop.run_until_complete(coroutine)
        assert [] == told
        return result
    finally:
        loop.close()


both = pytest.mark.parametrize("run", [simulated, run_virtual], ids=["simulated", "awaited"])


class Jobs:
    """Jobs that last, with their starts and ends."""

    def __init__(self):
        self.begins = []
        self.ends = []

    def last(self, name, seconds, error=None):
        self.begins.append((name, now()))

        def end(raised):
            if not isinstance(raised, asyncio.CancelledError):
                self.ends.append((name, now()))

        return Lasting(seconds, error, end)


# One job.


@both
def test_a_job_is_running_until_its_end(run, account):
    """A job runs until its end, by its handle and the counts."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x") as executor:
            handle = executor.schedule(jobs.last, "a", 3, delay=2)
            for _ in range(2):
                await asyncio.sleep(2.5)
                account(executor)
                if len(jobs.ends) == 0:
                    assert (1, False) == (executor.statistics().running, handle.done())
            await asyncio.sleep(0.5)
            account(executor)
            assert (0, True, None, 0.0) == (
                executor.statistics().running, handle.done(), handle.result(), handle.lateness,
            )  # fmt: skip
        return jobs.begins, jobs.ends

    assert ([("a", 2.0)], [("a", 5.0)]) == run(main())


@both
def test_a_job_that_fails_does_so_at_its_end(run, account):
    """A failing job raises its error at its end, and the error is reported once."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x") as executor:
            handle = executor.schedule(jobs.last, "a", 3, FailedError("x"))
            with pytest.raises(FailedError, match="x"):
                await handle
            account(executor)
            assert (1, 0) == (executor.statistics().failed, executor.statistics().done)
        return now(), jobs.ends

    assert (3.0, [("a", 3.0)]) == run(main())


@both
@pytest.mark.parametrize("seconds", [0, 0.0, 1e-9, 1])
def test_a_job_of_any_length_ends(run, seconds):
    """A job may have any length, also 0."""

    async def main():
        async with RateLimitedExecutor("x", max_concurrency=1) as executor:
            await executor.schedule_many(lambda _: Lasting(seconds), range(5))
        return now()

    assert max(0, 5 * seconds) == pytest.approx(run(main()), abs=1e-12)


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan, math.inf, -math.inf])
def test_a_length_that_cannot_be_is_refused(seconds):
    """A negative or infinite length is refused, since it would break the order of timers."""
    with pytest.raises(ValueError, match="seconds must be >= 0 and finite"):
        Lasting(seconds)


def test_a_job_that_takes_for_ever_holds_its_place():
    """A job that never ends holds its place, and nothing else."""

    async def main():
        async with RateLimitedExecutor("x", max_concurrency=2, drain_timeout=5) as executor:
            never = executor.schedule(lambda: Lasting(1e12))
            await executor.schedule(lambda: Lasting(7))
            assert 7.0 == now()
        return never.cancelled(), now()

    assert (True, 12.0) == simulated(main())


@both
def test_what_follows_a_job_may_schedule_the_next(run):
    """A callback after a job may schedule the next one, and finds room in the executor."""

    async def main():
        begins = []
        async with RateLimitedExecutor("x", max_concurrency=1) as executor:

            def job(number):
                begins.append((number, now()))
                return Lasting(2, None, lambda _: executor.schedule(job, number + 1) if number < 4 else None)

            executor.schedule(job, 0)
            await asyncio.sleep(9)
        return begins

    assert [(0, 0.0), (1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0)] == run(main())


@both
def test_one_that_lasts_may_be_awaited_within_a_job(run):
    """A lasting job may be awaited within a coroutine function, also several at once."""

    async def main():
        async def job():
            await Lasting(1)
            await asyncio.gather(Lasting(2), Lasting(3))
            return now()

        async with RateLimitedExecutor("x") as executor:
            return await executor.schedule(job)

    assert 4.0 == run(main())


class Longer(Lasting):
    """A subclass, which is awaited as any other coroutine."""


@both
def test_a_subclass_lasts_as_well(run):
    """A subclass is awaited, since what it adds is unknown."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            await executor.schedule(lambda: Longer(2))
            return now()

    assert 2.0 == run(main())


@both
@pytest.mark.parametrize("places", [1, 2])
def test_the_same_twice_loses_no_job(run, places):
    """The same object as two jobs ends twice, or is refused like a coroutine that was awaited."""

    async def main():
        same = Lasting(3)
        async with RateLimitedExecutor("x", max_concurrency=places, drain_timeout=10) as executor:
            handles = [executor.schedule(lambda: same) for _ in range(2)]
            await asyncio.wait(handles, timeout=9)
            assert all(handle.done() for handle in handles)
            return [repr(handle.exception()) for handle in handles]

    refused = "RuntimeError('cannot reuse already awaited coroutine')"
    assert run(main()) in (["None", "None"], ["None", refused])


@both
def test_the_error_of_what_follows_is_not_lost(run):
    """An error of the callback after a job is reported."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            await executor.schedule(lambda: Lasting(1, None, lambda _: 1 / 0))

    with pytest.raises(ZeroDivisionError):
        run(main())


# Cancelling.


@both
def test_a_job_is_cancelled_by_its_handle(run, account):
    """Cancelling a job ends it at once, without its callback, and frees its place."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x", max_concurrency=1) as executor:
            first = executor.schedule(jobs.last, "a", 10)
            second = executor.schedule(jobs.last, "b", 1)
            await asyncio.sleep(4)
            assert first.cancel("enough")
            await asyncio.wait([first])
            account(executor)
            assert (True, False, 4.0) == (first.cancelled(), first.cancel(), now())
            with pytest.raises(asyncio.CancelledError):
                await first
            await second
            assert (1, 1) == (executor.statistics().cancelled, executor.statistics().done)
            assert not second.cancel()
        return now(), jobs.begins, jobs.ends

    assert (5.0, [("a", 0.0), ("b", 4.0)], [("b", 5.0)]) == run(main())


@both
def test_whoever_awaits_a_job_cancels_it(run):
    """A cancelled awaiter cancels the job, as with any call."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            handle = executor.schedule(lambda: Lasting(10))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle, 3)
            return handle.cancelled(), executor.statistics().running, now()

    assert (True, 0, 3.0) == run(main())


@both
def test_a_batch_is_cancelled(run, account):
    """Cancelling a batch cancels its waiting jobs, and the running ones continue."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x", max_concurrency=2) as executor:
            batch = executor.schedule_many(lambda number: jobs.last(number, 3), range(6))
            await asyncio.sleep(4)
            batch.cancel()
            account(executor)
        return now(), sorted(jobs.ends)

    end, ends = run(main())
    assert ends == [(0, 3.0), (1, 3.0), *([] if end == 4 else [(2, 6.0), (3, 6.0)])]


@both
def test_shutdown_with_cancel_ends_what_runs_now(run):
    """A shutdown with cancellation ends running and waiting jobs at once."""

    async def main():
        jobs = Jobs()
        executor = RateLimitedExecutor("x", max_concurrency=2)
        await executor.start()
        handles = [executor.schedule(jobs.last, name, 10) for name in "abc"]
        await asyncio.sleep(1)
        await executor.shutdown(cancel_pending=True)
        assert executor.is_terminated
        return now(), [handle.cancelled() for handle in handles], jobs.ends

    assert (1.0, [True, True, True], []) == run(main())


@both
def test_closing_drains_for_as_long_as_it_may(run, caplog):
    """A drain cancels what has not ended at its timeout, with one warning."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x", max_concurrency=2, drain_timeout=7) as executor:
            handles = [executor.schedule(jobs.last, name, 5) for name in "abcd"]
        return now(), [handle.cancelled() for handle in handles], jobs.ends

    assert (7.0, [False, False, True, True], [("a", 5.0), ("b", 5.0)]) == run(main())
    assert ["x: closed with 0 waiting and 2 running task(s) cancelled"] == caplog.messages


@both
def test_closing_waits_for_the_last_end(run):
    """A drain ends with the last job."""

    async def main():
        async with RateLimitedExecutor("x", rate=1) as executor:
            executor.schedule_many(lambda seconds: Lasting(seconds), [9, 2, 3])
        return now()

    assert 9.0 == run(main())


@both
def test_an_error_within_the_context_cuts_short(run):
    """Leaving the context by an exception cancels the jobs."""

    async def main():
        with pytest.raises(KeyError):
            async with RateLimitedExecutor("x") as executor:
                handle = executor.schedule(lambda: Lasting(10))
                await asyncio.sleep(1)
                raise KeyError
        return handle.cancelled(), now()

    assert (True, 1.0) == run(main())


# Options of the executor.


@both
def test_run_timeout_ends_a_job(run):
    """A job that exceeds its run timeout ends with that error, and a shorter one is not affected."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x") as executor:
            long = executor.schedule(jobs.last, "long", 10, run_timeout=4)
            short = executor.schedule(jobs.last, "short", 3, run_timeout=4)
            with pytest.raises(RunTimeoutError):
                await long
            assert 4.0 == now()
            await short
            assert 1 == executor.statistics().failed
        return jobs.ends

    assert [("short", 3.0)] == run(main())


@both
def test_jobs_are_tried_again(run, account):
    """A failing job is retried by the policy, and each attempt lasts."""

    async def main():
        begins = []
        async with RateLimitedExecutor("x", retry=Retry(on=(FailedError,), attempts=3)) as executor:

            def job(error):
                begins.append(now())
                return Lasting(2, error)

            handle = executor.schedule(job, FailedError("x"))
            with pytest.raises(FailedError):
                await handle
            assert 3 == handle.attempts == len(begins)
            other = executor.schedule(job, KeyError("x"))
            with pytest.raises(KeyError):
                await other
            account(executor)
            assert 1 == other.attempts
        return begins

    begins = run(main())
    assert all(later - earlier >= 2 for earlier, later in zip(begins, begins[1:], strict=False))


@both
def test_no_more_run_at_a_time_than_may(run):
    """No more jobs run than allowed, in total and for a key, and the next starts when one ends."""

    async def main():
        running, most, of_key = 0, 0, {"a": 0, "b": 0}
        key_most = 0

        def job(key):
            nonlocal running, most, key_most
            running += 1
            of_key[key] += 1
            most, key_most = max(most, running), max(key_most, of_key[key])
            return Lasting(2, None, lambda _: end(key))

        def end(key):
            nonlocal running
            running -= 1
            of_key[key] -= 1

        async with RateLimitedExecutor("x", max_concurrency=3, key_concurrency=2) as executor:
            for key in "aaaaaaabbb":
                executor.schedule(job, key, key=key)
        return most, key_most, now()

    assert (3, 2, 8.0) == run(main())


@both
def test_permits_and_jobs_share_the_places(run):
    """A held permit and a job share the limit of concurrency."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x", max_concurrency=1) as executor:
            async with executor.permit():
                executor.schedule(jobs.last, "a", 2)
                await asyncio.sleep(5)
            executor.schedule(jobs.last, "b", 2)
            await asyncio.sleep(0.5)
            async with executor.permit():
                jobs.begins.append(("permit", now()))
        return jobs.begins

    assert [("a", 5.0), ("b", 7.0), ("permit", 9.0)] == run(main())


@pytest.mark.parametrize("rate", [5, "90/min", (10, "60/min")])
def test_a_rate_is_kept_and_used(rate):
    """Lasting jobs use the rate as awaited ones do, to the permit."""

    async def main():
        jobs = Jobs()
        async with RateLimitedExecutor("x", rate=rate) as executor:
            executor.schedule_many(lambda number: jobs.last(number, 20), range(100))
        return jobs.begins, jobs.ends

    assert simulated(main()) == run_virtual(main())


@both
def test_nothing_is_left_of_many_jobs(run):
    """After many jobs no running task, timer or error is left."""

    async def main():
        async with RateLimitedExecutor("x", max_concurrency=50) as executor:
            await executor.schedule_many(lambda number: Lasting(number % 7), range(2000))
            return (
                executor.statistics().done,
                executor._engine.accounts.running_count(),
                len(executor._engine.accounts.running),
            )

    assert (2000, 0, 0) == run(main())


# The core property: any program has the same history simulated and really awaited.

DELAYS = st.one_of(st.sampled_from([0, 1, 5]), st.integers(0, 90_000).map(lambda number: number / 1000))
SECONDS = st.one_of(st.sampled_from([0, 2]), st.integers(0, 20_000).map(lambda number: number / 1000))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.sampled_from([1, 10, "7/s", "30/min", "100/min", (3, "60/min"), math.inf]),
        "policy": st.sampled_from([Window(), Burst(3)]),
        "max_concurrency": st.integers(1, 4),
        "pacing": st.sampled_from(list(Pacing)),
        "key_concurrency": st.integers(1, 2),
        "key_rate": st.sampled_from(["12/min", 1, 5]),
        "retry": st.just(Retry(on=(FailedError,), attempts=3)),
        "order": st.just(Fair()),
        "drain_timeout": st.sampled_from([0, 30.0625]),
    },
)
JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "how": st.sampled_from(["schedule", "many", "call later"]),
            "executor": st.integers(0, 1),
            "delay": DELAYS,
            "seconds": SECONDS,
            "fails": st.booleans(),
            "cancel": st.one_of(st.none(), st.none(), DELAYS),
            "run_timeout": st.one_of(st.none(), st.none(), st.integers(1, 10)),
            "options": st.fixed_dictionaries(
                {},
                optional={
                    "key": st.sampled_from("ab"),
                    "priority": st.integers(0, 1),
                    "expires": st.sampled_from([0.5, 10]),
                },
            ),
        }
    ),
    min_size=1,
    max_size=12,
)


async def live_through(interval, executors, jobs):
    """Run a program; return (start, end, outcome) of each attempt, and the end of each handle.

    No two jobs are due at the same instant, and none ends when another one is due: their order is not defined there.
    """
    loop, rows, handles = asyncio.get_running_loop(), [], []

    def job(name, seconds, error):
        row = [name, now(), None, None]
        rows.append(row)

        def end(raised):
            assert raised is error or isinstance(raised, asyncio.CancelledError)
            if raised is error:
                row[2:] = now(), "done" if error is None else "failed"

        return Lasting(seconds, error, end)

    async with ExecutorManager(interval=interval) as manager:
        made = [manager.executor(f"x{number}", **options) for number, options in enumerate(executors)]
        for number, each in enumerate(jobs):
            executor = made[each["executor"] % len(made)]
            delay, seconds = each["delay"] + (number + 1) / 1024, each["seconds"] + (number + 1) / 65536
            error = FailedError(number) if each["fails"] else None
            if each["how"] == "many":
                times = [delay, delay + 7.25, delay + 3.5]
                handle = executor.schedule_many(
                    lambda item, number=number, seconds=seconds, error=error: job((number, item), seconds, error),
                    range(3), delays=times, results=True, **each["options"],
                )  # fmt: skip
            elif each["how"] == "call later":
                executor.call_later(delay, job, number, seconds, None)
                continue
            else:
                timeout = each["run_timeout"] and each["run_timeout"] + (number + 1) / 131072
                handle = executor.schedule(
                    job, number, seconds, error, delay=delay, run_timeout=timeout, **each["options"]
                )
            handles.append(handle)
            if each["cancel"] is not None:
                loop.call_later(each["cancel"] + (number + 1) / 262144 + 1 / 2048, handle.cancel)
    outcomes = []
    for handle in handles:
        if hasattr(handle, "state"):
            outcomes.append(handle.state.value)
            if handle.state.value == "failed":
                handle.exception()
        else:
            outcomes.append(sorted((index, each.state.value) for index, each in handle.results.items()))
    counts = [
        (statistics.accepted, statistics.done, statistics.failed, statistics.cancelled, statistics.expired)
        for statistics in (executor.statistics() for executor in made)
    ]
    return rows, outcomes, counts, now()


@pytest.fixture
def quiet(caplog):
    """Silence the warnings of long drains."""
    caplog.set_level(logging.CRITICAL, "ratelimited_executor")


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.sampled_from([1.0, 60.0, 0.5]), st.lists(OPTIONS, min_size=1, max_size=2), JOBS)
def test_a_simulation_starts_and_ends_all_as_the_executor_does_really(quiet, interval, executors, jobs):
    """Any program has the same starts and ends in a simulation as with awaited jobs, to the last digit."""
    assert simulated(live_through(interval, executors, jobs)) == run_virtual(live_through(interval, executors, jobs))


def test_jobs_due_together_start_at_the_same_times():
    """Jobs due together start at the same times, though their order may differ with the width of buckets."""

    async def main():
        jobs = Jobs()
        async with ExecutorManager(interval=60.0) as manager:
            executor = manager.executor("x", rate=1)
            for name in ("a", "b"):
                executor.schedule(jobs.last, name, 0)
            executor.schedule_many(lambda item: jobs.last(item, 0), range(3), delays=[0, 1, 0.5])
            executor.schedule(jobs.last, "c", 0, delay=1)
        return jobs.begins

    ours, real = simulated(main()), run_virtual(main())
    assert [time for _, time in ours] == [time for _, time in real]
    assert {name for name, _ in ours} == {name for name, _ in real}


def test_jobs_that_may_be_early_are_as_early():
    """With ``early`` jobs start at the begin of their bucket, which differs in a simulation."""

    async def main():
        jobs = Jobs()
        async with ExecutorManager(interval=60.0) as manager:
            executor = manager.executor("x", rate=1, early=True)
            executor.schedule(jobs.last, "a", 1, delay=91.5)
        return jobs.begins

    assert simulated(main()) == run_virtual(main())


def test_an_error_of_what_is_called_at_the_end_stops_no_cancelling():
    """An error of a callback at the end is reported, and all jobs are cancelled."""
    told = []

    def fail(error):
        raise KeyError("mine")

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        with pytest.raises(ZeroDivisionError):
            async with RateLimitedExecutor("x") as executor:
                executor.schedule_many(lambda _: Lasting(100, None, fail), range(3))
                await asyncio.sleep(1)
                1 / 0
        assert (3, 1.0) == (executor.statistics().cancelled, now())

    loop = SimulationLoop()
    loop.run_until_complete(main())
    loop.close()
    assert [KeyError] * 3 == list(map(type, told))
