"""A lowered rate holds at once for the process that sets it, and for each process that starts with it."""

from __future__ import annotations

import asyncio

import pytest

from ratelimited_executor.peers import Outage

from .simulation import Simulation

pytestmark = [
    pytest.mark.usefixtures("virtual_clock", "quiet"),
    pytest.mark.filterwarnings("error"),
]


def worst_second(starts, begin=0.0):
    """Return the most starts in any second from ``begin`` on."""
    times = sorted(time for time in starts if time >= begin)
    return max((sum(start <= time < start + 1 for time in times) for start in times), default=0)


@pytest.mark.parametrize("moment", [0.0, 0.06, 0.12, 0.18])
@pytest.mark.parametrize("peers", [1, 3])
@pytest.mark.parametrize("rate", [1, 10])
async def test_lowered_rate_holds_at_once_for_the_process_that_sets_it(rate, peers, moment):
    """The process that lowers the rate gives up permits beyond it at once, and the group follows within 0.75 s.

    The starts of the second before the change count for the new rate.
    """
    fleet = Simulation(51)
    one, *_ = await fleet.add(peers, load=3000)
    await asyncio.sleep(4 + moment)
    begin = fleet.loop.time()
    one.executor.rate = rate
    await asyncio.sleep(6)
    assert worst_second(one.starts, begin) <= rate + (rate > 1)  # one more by whole intervals
    assert worst_second(fleet.starts, begin + 0.75) <= rate
    assert fleet.count(begin + 1.05, begin + 6) >= 0.97 * 4.95 * rate - 1
    await fleet.close()


async def test_rate_that_is_lowered_a_little_keeps_what_is_held():
    """A small reduction, as in a step of ``Adaptive``, gives up only the permits beyond the new rate."""
    fleet = Simulation(52)
    (one,) = await fleet.add(1, load=3000)
    await asyncio.sleep(4)
    begin = fleet.loop.time()
    one.executor.rate = 95
    await asyncio.sleep(5)
    assert fleet.count(begin, begin + 1) >= 0.9 * 95
    assert worst_second(fleet.starts, begin) <= 95
    await fleet.close()


async def test_rate_that_a_task_lowers_holds_for_the_next_task():
    """A rate lowered by a task holds for the next task, also within a burst."""
    fleet = Simulation(53, rate=1000.0)
    (one,) = await fleet.add(1)
    await asyncio.sleep(4)
    starts = []

    def work():
        starts.append(fleet.loop.time())
        if len(starts) == 50:
            one.executor.rate = 1

    for _ in range(500):
        one.executor.execute(work)
    await asyncio.sleep(5)
    assert worst_second(starts[50:]) <= 1
    assert 53 <= len(starts) <= 56
    one.executor.shutdown(cancel_pending=True)
    await fleet.close()


async def test_rate_that_is_lowered_in_an_outage():
    """A rate lowered in an outage gives up the permits that ``Outage.LOCAL`` has granted in advance beyond it."""
    fleet = Simulation(54, options={"outage": Outage.LOCAL})
    (one,) = await fleet.add(1, load=3000)
    await asyncio.sleep(4)
    fleet.server.is_up = False
    await asyncio.sleep(3)
    begin = fleet.loop.time()
    one.executor.rate = 2
    await asyncio.sleep(6)
    assert worst_second(one.starts, begin) <= 2 + 1  # the pace of one process is nominal
    assert 10 <= fleet.count(begin, begin + 6) <= 13
    await fleet.close()


@pytest.mark.parametrize("is_crash", [True, False])
@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3, 1.5])
@pytest.mark.parametrize("peers", [1, 10])
async def test_group_that_comes_back_with_a_lower_rate_starts_no_more_than_that(peers, pause, is_crash):
    """A group restarted with a lower rate starts no more, whatever plans remain, and however many its processes are."""
    fleet = Simulation(55)
    for node in await fleet.add(5, load=1000):
        fleet.loop.call_later(4, node.crash if is_crash else lambda node=node: asyncio.ensure_future(node.close()))
    await asyncio.sleep(4 + pause + 0.01)
    fleet.rate = 1.0
    begin = fleet.loop.time()
    new = await fleet.add(peers, load=100)
    await asyncio.sleep(8)
    starts = [time for node in new for time in node.starts]
    assert worst_second(starts) == 1
    assert len([start for start in starts if start < begin + 7]) >= 5
    fleet.nodes = new
    await fleet.close()
