"""Executors that share a manager start out of step, at no cost for their laws and at most a tenth of a second late."""

import asyncio
from bisect import bisect_left

import pytest

from ratelimited_executor import ExecutorManager, Paced, Pacing
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import audit, run_virtual

from ..helpers import first_quick, now


def starts_of(count, *, rate, tasks, due=3.0, policy=None, pacing=Pacing.SPREAD):
    """Return the start times of ``tasks`` tasks each of ``count`` executors, all due at the same instant, by executor."""

    async def main():
        starts = [[] for _ in range(count)]
        async with ExecutorManager() as manager:
            for number, own in enumerate(starts):
                executor = manager.executor(f"e{number}", rate=rate, pacing=pacing, policy=policy or Paced())
                for _ in range(tasks):
                    executor.schedule(lambda own=own: own.append(now()), delay=due)
        return starts

    return run_virtual(main())


def most_in(times, width):
    """Return the most of ``times`` in any window that is open at its end."""
    times = sorted(times)
    return max(bisect_left(times, time + width - 1e-9) - place for place, time in enumerate(times))


@pytest.mark.parametrize("due", first_quick([3.004, 3.0, 3.5, 3.9]))
@pytest.mark.parametrize("tasks", [5, 10, 35])
@pytest.mark.parametrize("policy", [Paced(), Paced(strictness=Strictness.NOMINAL)])
def test_fifty_executors_do_not_start_in_step(due, tasks, policy):
    """Fifty executors at 10/s start at most 8 tasks in any 10 ms, wherever in an interval and however many are due."""
    starts = starts_of(50, rate=10, tasks=tasks, due=due, policy=policy)
    assert [tasks] * 50 == [len(own) for own in starts]
    assert most_in([start for own in starts for start in own], 0.01) <= 8


@pytest.mark.parametrize("due", [3.0, 3.004, 3.5, 3.991])
@pytest.mark.parametrize("tasks", [50, 100, 250])
def test_ten_executors_do_not_start_in_step(due, tasks):
    """Ten executors at 100/s start at most 13 tasks in any 10 ms."""
    starts = starts_of(10, rate=100, tasks=tasks, due=due)
    assert most_in([start for own in starts for start in own], 0.01) <= 13


@pytest.mark.parametrize("rate", ["1/s", "10/s", "40/s", "100/s", "5/min"])
def test_phase_makes_tasks_late_by_less_than_a_permit(rate):
    """An executor starts its first task later than one of phase 0 by less than the gap of two permits, and than 0.1 s."""
    most = {"1/s": 0.1, "10/s": 0.1, "40/s": 0.025, "100/s": 0.01, "5/min": 0.1}[rate]
    first, *others = [own[0] for own in starts_of(8, rate=rate, tasks=1, due=3.25)]
    assert first == 3.25
    assert all(0 < other - first < most for other in others)
    assert len(set(others)) == 7


def test_a_phase_costs_no_use_of_the_rate():
    """While more is due than may start, each executor uses every permit of its rate."""
    for own in starts_of(5, rate=20, tasks=100):
        assert own[-1] - own[0] == pytest.approx(99 / 20)
        audit(own, rate="20/s")


def test_executors_without_a_rate_have_no_phase():
    """Without a rate there is no gap between permits of which a phase could be a part."""
    assert starts_of(3, rate=float("inf"), tasks=1) == [[3.0]] * 3


def test_tasks_on_time_have_no_phase():
    """A phase is part of the spread: what starts on time starts at its due time in each executor."""
    assert starts_of(3, rate=10, tasks=1, pacing=Pacing.ON_TIME) == [[3.0]] * 3


def test_what_is_due_now_has_no_phase(virtual_loop):
    """A task that is due now starts now, whichever executor it is given to."""

    async def main():
        starts = []
        async with ExecutorManager() as manager:
            executors = [manager.executor(f"e{number}", rate=1) for number in range(3)]
            await asyncio.sleep(0.3)
            for executor in executors:
                await executor.submit(lambda: starts.append(now()))
        return starts

    assert virtual_loop.run_until_complete(main()) == [0.3] * 3


def test_pacing_that_changes_takes_the_phase_along(virtual_loop):
    """With ``ON_TIME`` set later, tasks scheduled before start at their due times as well."""

    async def main():
        starts = []
        async with ExecutorManager() as manager:
            manager.executor("first", rate=10)
            executor = manager.executor("second", rate=10)
            executor.schedule(lambda: starts.append(now()), delay=1.5)
            executor.schedule(lambda: starts.append(now()), delay=2.5)
            await asyncio.sleep(2)
            executor.pacing = Pacing.ON_TIME
        return starts

    late, punctual = virtual_loop.run_until_complete(main())
    assert 1.5 < late < 1.6
    assert punctual == 2.5


def test_peers_of_one_name_share_a_phase():
    """Processes that own parts of one grid agree on its phase, in whatever order they make their executors."""

    async def peer(rank, before):
        starts = []
        async with ExecutorManager(peers=StaticPeers(2, rank)) as manager:
            for number in range(before):
                manager.executor(f"other {number}", rate=10)
            executor = manager.executor("mail", rate=10)
            executor.schedule_many(lambda _: starts.append(now()), range(20), delay=2)
        return starts

    async def main():
        return await asyncio.gather(peer(0, before=0), peer(1, before=3))

    both = sorted(sum(run_virtual(main()), []))
    assert all(0.09 < later - earlier < 0.102 for earlier, later in zip(both, both[1:], strict=False))
