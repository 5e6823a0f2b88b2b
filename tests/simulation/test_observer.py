"""Running times are measured exactly by an observer, whatever the jobs are."""

import asyncio

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.simulation.lasting import Lasting
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.simulation.meters import Meter
from ratelimited_executor.simulation.observer import Current, ExecutorObserver


@pytest.fixture
def loop():
    loop = SimulationLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("job", [Lasting, asyncio.sleep], ids=["lasting", "coroutine"])
def test_running_time_is_the_sum_over_all_jobs(loop, job):
    """The running time is the sum over all jobs, including cancelled ones and plain functions."""

    async def main():
        meter = Meter(1, "start_delay")
        observer = ExecutorObserver(loop.clock, meter, Current())
        async with RateLimitedExecutor("x") as executor:
            observer.observe(executor)
            handles = [executor.schedule(job, 2.0, delay=delay) for delay in (0, 1, 4)]
            executor.submit(job, 0.0)
            executor.submit(str)
            loop.call_at(4.5, handles[2].cancel)
            seen = []
            for seconds in (0.5, 1.5, 2.5, 3.5, 4.25, 10):
                await asyncio.sleep(seconds - loop.time())
                seen.append(observer.running_seconds())
        return seen, observer.ended_at, len(meter.values)

    seen, ended_at, start_count = loop.run_until_complete(main())

    assert [0.5, 2.0, 3.5, 4.0, 4.25, 4.5] == pytest.approx(seen)
    assert (4.5, 5) == (ended_at, start_count)


def test_jobs_are_measured_from_when_somebody_observes(loop):
    """A job that already runs counts from when it is observed."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            executor.submit(Lasting, 3.0)
            await asyncio.sleep(1)
            observer = ExecutorObserver(loop.clock, Meter(1, "start_delay"), Current())
            observer.observe(executor)
            await asyncio.sleep(1)
            return observer.running_seconds()

    assert 1.0 == loop.run_until_complete(main())
