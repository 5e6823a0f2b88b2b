"""``explain`` and ``backlog_seconds`` in a fleet predict what then happens, and give no time where none is known."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import pytest

from ratelimited_executor.insight import Hold
from ratelimited_executor.peers import Outage

from .simulation import Simulation

pytestmark = [
    pytest.mark.usefixtures("virtual_clock", "quiet"),
    pytest.mark.filterwarnings("error"),
]


class Explained:
    """What is explained of one executor's tasks, in virtual time."""

    def __init__(self, node):
        self.node = node

    def say(self, handle):
        """Return what holds a task, and the seconds until its expected start; None where no time is known."""
        told = self.node.executor.explain(handle)
        wall = self.node.executor._parts.moments.wall()
        return told.hold, None if told.expected_start is None else told.expected_start - wall

    def backlog(self):
        return self.node.executor.backlog_seconds()


@pytest.mark.parametrize(
    ("outage", "each"),
    [(Outage.STOP, None), (Outage.static(20), 20), (Outage.static(4), 4), (Outage.LOCAL, 1)],
    ids=str,
)
async def test_explain_in_an_outage_goes_by_the_outage_policy(outage, each):
    """In an outage without permits no start is predicted; with permits of the policy the prediction comes true."""
    fleet = Simulation(23, rate=10.0, options={"outage": outage})
    nodes = await fleet.add(4, load=2)
    await asyncio.sleep(6)
    node, told = nodes[0], Explained(nodes[0])
    fleet.server.is_up = False
    handles = [node.executor.submit(node.work) for _ in range(30)]
    later = node.executor.schedule(node.work, delay=200)
    await asyncio.sleep(3)
    assert "outage" == node.executor.statistics().fleet.state
    waiting = [handle for handle in handles if not handle.done()]
    if each is None:
        assert [(Hold.OUTAGE, None)] * 30 == [told.say(handle) for handle in waiting]
        assert (Hold.DUE, None) == told.say(later)
        assert math.inf == told.backlog()
    else:
        expected = [told.say(handle)[1] for handle in waiting]
        now = fleet.loop.time()
        assert {Hold.RATE, Hold.ORDER} >= {told.say(handle)[0] for handle in waiting}
        assert f"(no answer from the server; outage policy: {outage})" in str(node.executor.explain(waiting[0]))
        assert told.backlog() == pytest.approx(expected[-1], abs=1e-6)
        gaps = [after - before for before, after in pairwise(expected)]
        assert gaps == pytest.approx([each / 10 * 1.0195] * len(gaps), rel=0.01)
        hold, start = told.say(later)
        assert hold is Hold.DUE
        assert start == pytest.approx(197)
        await waiting[-1]
        assert [handle.started_at for handle in waiting] == pytest.approx(
            [node.executor._parts.runner.timeline.to_epoch(now + seconds) for seconds in expected], abs=0.02
        )
    node.executor.shutdown(cancel_pending=True)
    await fleet.close()


@pytest.mark.parametrize("outage", [Outage.STOP, Outage.static(4), Outage.LOCAL], ids=str)
async def test_explain_before_the_first_answer(outage):
    """Before the first answer no start is predicted, except for a peer that may go on alone."""
    fleet = Simulation(25, rate=10.0, options={"outage": outage})
    fleet.server.is_up = False
    [node] = await fleet.add(1)
    told = Explained(node)
    later = node.executor.schedule(node.work, delay=60)
    assert told.say(later)[1] == pytest.approx(60), "no other task waits, and the server has not been asked yet"
    handle = node.executor.submit(node.work)
    assert (Hold.OUTAGE, None) == told.say(handle)
    assert "(no answer yet; outage policy: " in str(node.executor.explain(handle))
    assert (Hold.DUE, None) == told.say(later)
    assert math.inf == told.backlog()
    await asyncio.sleep(1)
    assert handle.done() is (outage is not Outage.STOP)
    assert told.say(later)[1] == (None if outage is Outage.STOP else pytest.approx(59))
    node.executor.shutdown(cancel_pending=True)
    await fleet.close()


async def test_explain_in_the_quarantine_of_a_new_group():
    """The quarantine of a new group has a known end, so starts are predicted, also of tasks due before it."""
    fleet = Simulation(26, rate=10.0)
    [node] = await fleet.add(1)
    told = Explained(node)
    handles = [node.executor.submit(node.work) for _ in range(20)]
    soon = node.executor.schedule(node.work, delay=0.5)
    await asyncio.sleep(0.1)
    now = fleet.loop.time()
    said = [told.say(handle) for handle in handles]
    assert [Hold.QUARANTINE] * 20 == [hold for hold, _ in said]
    assert told.backlog() == pytest.approx(said[-1][1] + 0.1, abs=1e-3), (
        "the backlog is that of all tasks due in the running interval"
    )
    end = node.executor._parts.controls.member.hold(now)[2]
    hold, seconds = told.say(soon)
    assert (hold, seconds) == (Hold.DUE, pytest.approx(end - now))
    await handles[-1]
    started = [handle.started_at - node.executor._parts.runner.timeline.to_epoch(now) for handle in handles]
    assert started == pytest.approx([seconds for _, seconds in said], abs=0.02)
    await fleet.close()


@pytest.mark.parametrize(("rate", "peers", "near"), [(10.0, 1, 0.11), (0.2, 1, 0.05), (10.0, 3, 0.5)])
async def test_explain_tells_the_next_permits_of_the_group(rate, peers, near):
    """Predictions are exact for a single peer, at any rate, and assume an even share for three."""
    fleet = Simulation(27, rate=rate)
    nodes = await fleet.add(peers, load=60)
    await asyncio.sleep(4 + 8 / rate)
    node, told = nodes[0], Explained(nodes[0])
    handle = node.executor.schedule(node.work, priority=-1)
    node.executor.order = lambda view: -view.priority
    waits = []
    for _ in range(5):
        hold, seconds = told.say(handle)
        waits.append(fleet.loop.time() + seconds)
        await asyncio.sleep(0.3 / rate)
    assert hold is Hold.ORDER
    text = str(node.executor.explain(handle))
    assert "permits/rate of the group" in text
    await handle
    at = handle.started_at - node.executor._parts.runner.timeline.to_epoch(0.0)
    assert waits == pytest.approx([at] * 5, abs=near)
    await fleet.close()


async def test_explain_goes_by_the_rate_that_another_process_has_set():
    """Predictions use the rate in force, whichever process has set it, and say so; they assume that it shares the rate."""
    fleet = Simulation(28, rate=100.0)
    [one] = await fleet.add(1, load=10)
    await asyncio.sleep(3)
    fleet.rate = 1.0
    await fleet.add(1)
    await asyncio.sleep(1)
    one.load(5)
    await asyncio.sleep(1)
    handle = one.executor.submit(one.work)
    told = Explained(one)
    now, (_, seconds) = fleet.loop.time(), told.say(handle)
    assert "set by another process" in str(one.executor.explain(handle))
    await handle
    assert 3 < fleet.loop.time() - now <= seconds + 0.1 <= 8
    await fleet.close()
