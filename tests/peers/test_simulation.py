"""The fleet in virtual time: its guarantees and its performance under the faults of a fleet's life.

This is the same production code as over a real Redis; figures are those of the model, whose network takes 0.3 to 1 ms
each way.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from ratelimited_executor import Rate
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import Fair
from ratelimited_executor.peers import Outage
from ratelimited_executor.policies import Adaptive, Strictness

from .simulation import Simulation, chaos

pytestmark = [
    pytest.mark.usefixtures("virtual_clock", "quiet"),
    pytest.mark.filterwarnings("error"),
]
SETTLED = 3.0  # seconds from the cold start of a group until it runs evenly


async def _background(fleet, nodes, per_second):
    """Give some nodes tasks at random until cancelled."""

    async def flow(node):
        while True:
            await asyncio.sleep(fleet.generator.expovariate(per_second / len(nodes)))
            node.load(1)

    return [asyncio.create_task(flow(node)) for node in nodes]


@pytest.mark.parametrize(("peers", "rate", "seconds"), [(10, 100.0, 10), (10, 1.0, 60), (3, 2000.0, 4), (1, 50.0, 20)])
async def test_steady_fleet_uses_its_rate_evenly(peers, rate, seconds):
    """A steady fleet uses 98 % of its rate evenly, with exact windows, and few calls."""
    fleet = Simulation(1, rate=rate)
    await fleet.add(peers, load=int(rate * (seconds + 5)))
    start = fleet.loop.time() + SETTLED
    calls = fleet.server.call_count
    await asyncio.sleep(seconds)
    end = fleet.loop.time()
    assert fleet.worst_window() <= rate
    assert fleet.count(start, end) >= 0.98 * rate * (end - start) - 2
    assert fleet.variation(start, end) <= max(0.1, 3e-4 * rate)  # peers know the clock to a fraction of a millisecond
    assert fleet.server.call_count - calls <= 1.1 * fleet.count(start, end) + 4 * peers * seconds
    await fleet.close()


async def test_nominal_strictness_uses_all_of_the_rate():
    """``NOMINAL`` uses the whole rate, with at most the rate, the allowance for lateness and one start in a second."""
    fleet = Simulation(2, options={"strictness": Strictness.NOMINAL})
    await fleet.add(5, load=2000)
    start = fleet.loop.time() + SETTLED
    await asyncio.sleep(20)
    assert fleet.worst_window() <= 100 * (1 + 0.019) + 1
    assert fleet.count(start, start + 15) >= 0.998 * 1500
    await fleet.close()


async def test_peers_join_and_leave():
    """A fleet that grows from 1 to 10 and is then replaced is never above its rate, and hardly below it."""
    fleet = Simulation(3)
    await fleet.add(1, load=5000)
    await asyncio.sleep(SETTLED)
    start = fleet.loop.time()
    joiners = await fleet.add(9, load=5000)
    await asyncio.sleep(5)
    assert max(node.starts[0] for node in joiners) - start < 0.7
    for node in list(fleet.nodes):
        fleet.nodes.remove(node)
        await node.close()
        await fleet.add(1, load=5000)
        await asyncio.sleep(1)
    assert fleet.worst_window() <= 100
    assert fleet.count(start, fleet.loop.time()) >= 0.965 * 100 * (fleet.loop.time() - start)
    await fleet.close()


async def test_crash_is_recovered_from_in_less_than_a_second():
    """After three of ten peers crash, the others use the whole rate within a second."""
    fleet = Simulation(4)
    await fleet.add(10, load=3000)
    await asyncio.sleep(SETTLED)
    for node in fleet.nodes[:3]:
        node.crash()
    start = fleet.loop.time()
    await asyncio.sleep(8)
    assert fleet.worst_window() <= 100
    assert fleet.count(start + 1, start + 8) >= 0.98 * 700
    assert fleet.count(start, start + 1) >= 70
    await fleet.close()


async def test_peer_that_stands_still_starts_nothing_twice():
    """A process that stood still for 10 or 15 s starts nothing on its lapsed permits."""
    fleet = Simulation(5)
    await fleet.add(10, load=5000)
    await asyncio.sleep(SETTLED)
    fleet.nodes[0].pause(10)
    await asyncio.sleep(12)
    for node in fleet.nodes[1:3]:
        node.pause(15)
    start = fleet.loop.time()
    await asyncio.sleep(18)
    assert fleet.worst_window() <= 100
    assert fleet.count(start, start + 18) >= 0.97 * 1800
    await fleet.close()


@pytest.mark.parametrize("clock_step", [-0.3, 0.0, 0.3])
async def test_server_that_is_away_and_comes_back_empty(clock_step):
    """A server that comes back empty grants nothing until all earlier grants have lapsed."""
    fleet = Simulation(6)
    await fleet.add(10, load=5000)
    await asyncio.sleep(SETTLED)
    fleet.server.is_up = False
    down = fleet.loop.time()
    await asyncio.sleep(30)
    fleet.server.wipe()
    fleet.server.offset += clock_step
    fleet.server.is_up = True
    back = fleet.loop.time()
    await asyncio.sleep(6)
    assert fleet.worst_window() <= 100
    assert fleet.count(down + 0.6, back) == 0
    assert fleet.count(back + 2.5, back + 5.5) >= 0.98 * 300
    await fleet.close()


@pytest.mark.parametrize("clock_step", [-0.4, 0.0, 0.4])
async def test_fail_over_to_a_server_that_lost_the_latest_grants(clock_step):
    """A server that takes over without the latest grants is recognised by its new run id, and grants nothing twice."""
    fleet = Simulation(7)
    await fleet.add(10, load=5000)
    await asyncio.sleep(SETTLED)
    fleet.server.fail_over(lost=None, clock_step=clock_step)
    start = fleet.loop.time()
    await asyncio.sleep(6)
    assert fleet.worst_window() <= 100
    assert fleet.count(start + 2.5, start + 5.5) >= 0.98 * 300
    await fleet.close()


@pytest.mark.parametrize("step", [-3600.0, -0.2, 0.1, 3600.0])
async def test_step_of_the_server_s_clock(step):
    """A step of the server's clock is noticed by peers and server, and no window exceeds the rate."""
    fleet = Simulation(8)
    await fleet.add(5, load=5000)
    await asyncio.sleep(SETTLED)
    fleet.server.offset += step
    start = fleet.loop.time()
    await asyncio.sleep(6)
    assert fleet.worst_window() <= 100
    assert fleet.count(start + 3, start + 6) >= 0.98 * 300 - 1
    await fleet.close()


async def test_busy_peer_uses_what_idle_ones_leave():
    """One busy peer of ten gets 95 % of the rate while the others start something every twenty seconds."""
    fleet = Simulation(9)
    nodes = await fleet.add(10)
    nodes[0].load(4000)
    flows = await _background(fleet, nodes[1:], 0.45)
    start = fleet.loop.time() + SETTLED
    await asyncio.sleep(30)
    assert fleet.worst_window() <= 100
    assert sum(time >= start for time in nodes[0].starts) >= 0.95 * 100 * 27
    for flow in flows:
        flow.cancel()
    await fleet.close()


HELD_BACK = {  # limits of one process, run time of its tasks, least part of 50/s that the other starts
    "all places are taken": ({"max_concurrency": 1}, 1.0, 0.95),
    "as many tasks of the key run as may": ({"key_concurrency": 1}, 1.0, 0.95),
    "as many tasks of the key run as may, in fair order": ({"key_concurrency": 1, "order": Fair()}, 1.0, 0.95),
    "the key has a rate": ({"key_rate": "5/s"}, 0.0, 0.85),
    "the key has a rate, in fair order": ({"key_rate": "5/s", "order": Fair()}, 0.0, 0.85),
    "the key has a penalty": ({}, 0.0, 0.98),
}


@pytest.mark.parametrize("kind", HELD_BACK)
async def test_peer_that_may_not_start_leaves_its_permits_to_the_others(kind):
    """Permits that a peer may not use because of its own limit are used by another one with a backlog."""
    limits, run_seconds, least = HELD_BACK[kind]
    fleet = Simulation(20, rate=50.0)
    # A limit of keys belongs to the group: both have it, and the other one's tasks have no key.
    [held], [free] = (
        await fleet.add(1, limits=limits),
        await fleet.add(1, limits=limits if "key_rate" in limits else {}),
    )

    async def work(_):
        held.work()
        await asyncio.sleep(run_seconds)

    held.executor.schedule_many(work, range(1000), key="a")
    free.load(1500)
    await asyncio.sleep(SETTLED)
    if "penalty" in kind:
        held.executor.penalize(10, key="a")
        await asyncio.sleep(1)
    start = fleet.loop.time()
    await asyncio.sleep(8)
    ours, theirs = (sum(time >= start for time in node.starts) for node in (held, free))
    assert theirs >= least * 50 * 8
    # A ticket for a key is requested near its time, and then queues behind those that others hold already.
    busy = 2.7 if "rate" in kind else 3.8
    assert ours >= 8 * (0 if "penalty" in kind else 0.6 if run_seconds else busy)
    if "penalty" in kind:
        assert "idle" == held.executor.statistics().fleet.state
        await asyncio.sleep(3)
        assert sum(time >= fleet.loop.time() - 1.5 for time in held.starts) >= 30  # its part, once the limit allows it
    assert fleet.worst_window() <= 50
    await fleet.close()


@pytest.mark.parametrize(
    "limits",
    [{"max_concurrency": 5}, {"key_concurrency": 1}, {"key_concurrency": 1, "order": Fair()}, {"key_rate": 10}],
)
async def test_peer_whose_tasks_end_soon_uses_all_that_its_limits_allow(limits):
    """Places freed by short tasks count: 5 places or 20 keys with tasks of 25 ms use the whole rate."""
    fleet = Simulation(21, rate=50.0)
    [held], _ = await fleet.add(1, limits=limits), await fleet.add(1, load=1000)

    async def work(_):
        held.work()
        await asyncio.sleep(0.025)

    for number in range(20):
        held.executor.schedule_many(work, range(50), key=number)
    await asyncio.sleep(SETTLED)
    start = fleet.loop.time()
    await asyncio.sleep(8)
    assert sum(time >= start for time in held.starts) >= 0.97 * 25 * 8
    assert fleet.count(start, start + 8) >= 0.97 * 50 * 8
    await fleet.close()


async def test_explain_names_an_outage_and_a_quarantine_and_a_rate_that_another_has_set():
    """``explain`` predicts no start in an outage, and exact starts in a quarantine."""
    fleet = Simulation(22, rate=50.0)
    fleet.server.is_up = False
    [node] = await fleet.add(1)
    executor = node.executor
    handle = executor.submit(node.work)
    executor.schedule_many(lambda _: node.work(), range(1000))

    def told():
        told = executor.explain(handle)
        return told.hold, told.expected_start, str(told)

    await asyncio.sleep(1)
    hold, expected, text = told()
    assert (Hold.OUTAGE, None) == (hold, expected)
    assert "without an answer; outage policy: stop" in text
    fleet.server.is_up = True
    while executor.statistics().fleet.state != "active":
        await asyncio.sleep(0.01)
    hold, expected, text = told()
    assert hold is Hold.QUARANTINE
    assert text.startswith("waiting: held by quarantine (for 1.")
    await handle
    assert abs(handle.started_at - expected) < 0.3
    handle = executor.submit(node.work)
    assert "set by another" not in told()[2]
    [other] = await fleet.add(1)
    other.executor.rate = 5
    await asyncio.sleep(2)
    handle = executor.submit(node.work)
    hold, expected, text = told()
    assert hold in (Hold.RATE, Hold.ORDER)
    assert "(the group goes by 5/s, set by another process)" in text
    other.executor.rate = 0
    await asyncio.sleep(2)
    assert (Hold.PAUSE, None) == told()[:2]
    assert "(the group goes by 0/s, set by another process)" in told()[2]
    await fleet.close()


async def test_task_that_is_due_now_gets_a_permit_at_once():
    """On a fleet at half its rate half of the tasks start within 30 ms on an idle peer, all but one within 100 ms."""
    fleet = Simulation(10)
    nodes = await fleet.add(10)
    flows = await _background(fleet, nodes[1:], 50)
    await asyncio.sleep(5)
    waits = []
    for _ in range(60):
        await asyncio.sleep(fleet.generator.uniform(0.8, 1.5))
        before = fleet.loop.time()
        await nodes[0].executor.submit(nodes[0].work)
        waits.append(nodes[0].starts[-1] - before)
    waits.sort()
    assert waits[30] <= 0.030
    assert waits[58] <= 0.100
    assert fleet.worst_window() <= 100
    for flow in flows:
        flow.cancel()
    await fleet.close()


async def test_idle_peers_make_no_calls():
    """Idle peers make no calls, and the first task makes only its own peer call."""
    fleet = Simulation(11)
    nodes = await fleet.add(5)
    await asyncio.sleep(5)
    calls = fleet.server.call_count
    await asyncio.sleep(60)
    assert calls == fleet.server.call_count
    await nodes[0].executor.submit(nodes[0].work)
    await asyncio.sleep(5)
    assert fleet.server.call_count - calls <= 6
    await fleet.close()


@pytest.mark.parametrize(("mean", "least"), [(0.002, 0.97), (0.005, 0.95)])
async def test_event_loops_that_lag(mean, least):
    """With timers late by a random time of this mean, permits that come too late lapse, and the law holds."""
    fleet = Simulation(12)
    for node in await fleet.add(10, load=3000):
        node.lag = mean
    start = fleet.loop.time() + SETTLED
    await asyncio.sleep(13)
    assert fleet.worst_window() <= 100
    assert fleet.count(start, start + 10) >= least * 1000
    await fleet.close()


async def test_weighted_shares_are_max_min():
    """Weights 1, 1 and 3 share what seven less busy peers leave, within 1 %."""
    fleet = Simulation(13)
    for weight in (1, 1, 3):
        await fleet.add(1, load=5000, weight=weight)
    light = await fleet.add(7)
    flows = await _background(fleet, light, 14)
    start = fleet.loop.time() + SETTLED
    await asyncio.sleep(50 + SETTLED)
    counts = [sum(time >= start for time in node.starts) for node in fleet.nodes]
    left = sum(counts[:3])
    for count, weight in zip(counts, (1, 1, 3), strict=False):
        assert abs(count / (left * weight / 5) - 1) <= 0.01
    assert sum(counts) >= 0.98 * 5000
    for flow in flows:
        flow.cancel()
    await fleet.close()


@pytest.mark.parametrize(
    ("outage", "bound_cut", "bound_all"),
    [(Outage.STOP, 100, 100), (Outage.static(20), 115, 100), (Outage.LOCAL, 403, 1009)],
    ids=str,
)
async def test_outage_policies_keep_their_bounds(outage, bound_cut, bound_all):
    """With three of ten peers cut off, and then all, each outage policy keeps its bound, and starts what it may.

    The pace of one process is nominal: it starts one more in any time.
    """
    fleet = Simulation(14, options={"outage": outage})
    await fleet.add(10, load=30_000)
    await asyncio.sleep(SETTLED)
    for node in fleet.nodes[:3]:
        node.network.is_cut = True
    await asyncio.sleep(10)
    assert fleet.worst_window() <= bound_cut
    fleet.starts.clear()
    fleet.server.is_up = False
    start = fleet.loop.time()
    await asyncio.sleep(10)
    assert fleet.worst_window() <= max(bound_all, bound_cut)
    alone = fleet.count(start + 2, start + 10) / 800
    fleet.starts.clear()
    assert {"stop": alone == 0, "static": 0.4 <= alone <= 0.5, "local": alone >= 5}[outage.kind]
    for node in fleet.nodes:
        node.network.is_cut = False
    fleet.server.is_up = True
    await asyncio.sleep(3)
    fleet.starts.clear()
    await asyncio.sleep(5)
    assert 0.97 * 500 <= len(fleet.starts)
    assert fleet.worst_window() <= 100
    await fleet.close()


async def test_rate_changes_for_all_at_one_moment():
    """In a rolling deployment the rate set last is in force for all, whatever the others were made with."""
    fleet = Simulation(15)
    await fleet.add(5, load=9000)
    await asyncio.sleep(SETTLED)
    fleet.rate = 40.0
    start = fleet.loop.time()
    (new,) = await fleet.add(1, load=2000)
    await asyncio.sleep(6)
    assert fleet.count(start + 1.5, start + 5.5) <= 161
    assert fleet.count(start + 1.5, start + 5.5) >= 0.98 * 160 - 1
    fleet.nodes[0].executor.rate = 200
    start = fleet.loop.time()
    await asyncio.sleep(6)
    assert 0.98 * 800 - 1 <= fleet.count(start + 1.5, start + 5.5) <= 801
    new.executor.rate = 0
    await asyncio.sleep(2)
    count = len(fleet.starts)
    await asyncio.sleep(5)
    assert len(fleet.starts) == count
    await fleet.close()


async def test_pausing_one_peer_leaves_the_rate_to_the_others():
    """While one peer is paused the others use the whole rate."""
    fleet = Simulation(16)
    await fleet.add(4, load=5000)
    await asyncio.sleep(SETTLED)
    fleet.nodes[0].executor.pause()
    start = fleet.loop.time()
    await asyncio.sleep(6)
    assert fleet.count(start + 1, start + 6) >= 0.98 * 500 - 1
    assert not [time for time in fleet.nodes[0].starts if time > start]
    fleet.nodes[0].executor.resume()
    await asyncio.sleep(2)
    assert [time for time in fleet.nodes[0].starts if time > start + 6]
    assert fleet.worst_window() <= 100
    await fleet.close()


@pytest.mark.parametrize("pause", [0.0, 0.3, 1.5])
async def test_fleet_that_starts_anew_with_a_lower_rate_begins_with_it(pause):
    """When a fleet is replaced by one with a lower rate, each peer keeps it at once, and the fleet within 0.5 s."""
    fleet = Simulation(20)
    await fleet.add(5, load=1000)
    await asyncio.sleep(SETTLED)
    for node in fleet.nodes:
        node.crash()
    await asyncio.sleep(pause)
    fleet.rate = 1.0
    begin = fleet.loop.time()
    new = await fleet.add(3, load=100)
    await asyncio.sleep(10)
    starts = sorted(time - begin for node in new for time in node.starts)
    each = 0 if pause > 0.5 else 1  # before the new rate is in force
    assert sum(time < 2 for time in starts) <= 3 + 3 * each
    assert 9 <= len(starts) <= 11 + 3 * each
    assert fleet.worst_window() <= 100
    await fleet.close()


@pytest.mark.parametrize(("before", "after"), [(100.0, 1.0), (1.0, 100.0)])
async def test_rolling_deploy_of_another_rate(before, after):
    """While processes are replaced one by one, the first new one sets the rate for all."""
    fleet = Simulation(21, rate=before)
    old = await fleet.add(5, load=2000)
    await asyncio.sleep(SETTLED)
    fleet.rate = after
    begin = fleet.loop.time()
    for node in list(old):
        await fleet.add(1, load=2000)
        await asyncio.sleep(1.0)
        fleet.nodes.remove(node)
        await node.close()
    end = fleet.loop.time()
    await asyncio.sleep(5)
    assert fleet.worst_window() <= max(before, after)
    for node in fleet.nodes if after < before else ():  # whose rate is lower
        times = sorted(node.starts)
        assert all(sum(start <= time < start + 1 for time in times) <= 2 for start in times)
    if after < before:
        assert fleet.count(begin + 0.75, end) <= after * (end - begin) + 1
    assert fleet.count(end, end + 5) >= 0.98 * 5 * after - 1
    await fleet.close()


@pytest.mark.parametrize("drift", [5e-4, -5e-4, 0.001, 0.005, -0.005, 0.0833, -0.0833])
async def test_server_s_clock_that_is_slewed(drift, caplog):
    """A clock slewed by 500 ppm is not noticed; with more the law holds, and the log reports it once a minute."""
    caplog.set_level("WARNING", "ratelimited_executor")
    fleet = Simulation(24)
    await fleet.add(5, load=4000)
    await asyncio.sleep(SETTLED)
    start = fleet.loop.time()
    fleet.server.slew(drift)
    await asyncio.sleep(10)
    fleet.server.slew(0.0)
    end = fleet.loop.time()
    await asyncio.sleep(6)
    messages = [record.getMessage() for record in caplog.records]
    if abs(drift) <= 5e-4:
        assert [] == messages
        assert fleet.count(start, end) >= 975
    assert len(messages) <= 5  # one of each process
    assert all("clock was set, or runs wrong" in message for message in messages)
    assert fleet.worst_window() <= 100 + (abs(drift) > 5e-4)  # until the clock's error shows
    assert fleet.count(end + 3, end + 6) >= 0.975 * 300
    await fleet.close()


ADAPTIVE = {"adaptive": Adaptive(floor=5, ceiling=100, increase=5)}


@pytest.mark.parametrize("peers", [1, 4])
async def test_adaptive_rate_of_a_busy_group_rises_and_falls(peers):
    """The adaptive rate of a busy group rises and falls, however the load is spread over peers."""
    fleet = Simulation(7, rate=50.0, settings=ADAPTIVE)
    nodes = await fleet.add(peers, load=9000 // peers)
    await asyncio.sleep(SETTLED + 30)
    assert max(float(node.executor.rate) for node in nodes) >= 95
    assert fleet.count(fleet.loop.time() - 3, fleet.loop.time()) >= 0.9 * 95 * 3
    nodes[0].executor.penalize(None)
    await asyncio.sleep(2)
    assert fleet.count(fleet.loop.time() - 1, fleet.loop.time()) <= 60
    await asyncio.sleep(30)
    assert fleet.count(fleet.loop.time() - 3, fleet.loop.time()) >= 0.9 * 95 * 3
    assert fleet.worst_window() <= 100
    await fleet.close()


@pytest.mark.parametrize("peers", [1, 4])
async def test_adaptive_rate_that_a_group_does_not_use_does_not_rise(peers):
    """An adaptive rate that the group does not use does not rise, however the load is spread over the peers."""
    fleet = Simulation(8, rate=50.0, settings=ADAPTIVE)
    nodes = await fleet.add(peers)
    await asyncio.sleep(SETTLED)  # what waits until then uses all of the rate for a moment
    flows = await _background(fleet, nodes[:1], 10) + await _background(fleet, nodes, 4)
    await asyncio.sleep(60)
    for flow in flows:
        flow.cancel()
    assert {50.0} == {float(node.executor.rate) for node in nodes}
    await fleet.close()


@pytest.mark.parametrize("seed", range(2))
async def test_chaos(seed):
    """Under all faults at once the law holds; a thousand seeds run nightly: ``python -m tests.peers.simulation``."""
    worst, used = await chaos(seed, seconds=40)
    assert worst <= 100
    assert used >= 0.96


@pytest.mark.parametrize("fault", ["wipe", "fail over", "state", "step"])
@pytest.mark.parametrize("seconds", [1, 2, 5])
async def test_slow_rate_is_kept_over_eras(seconds, fault):
    """A slow rate is kept over new eras, however often the server loses its state, and whatever its clock shows."""
    gaps = []
    for seed in range(1):
        fleet = Simulation(seed, rate=Rate(1, per=seconds))
        await fleet.add(3, load=100)
        for _ in range(8):
            await asyncio.sleep(seconds * fleet.generator.uniform(1.5, 2.5) + 2)
            match fault:
                case "wipe":
                    fleet.server.wipe()
                case "fail over":
                    fleet.server.fail_over(lost=None, clock_step=fleet.generator.uniform(-1, 1))
                case "state":
                    fleet.server.lose()
                case "step":
                    fleet.server.offset += fleet.generator.choice([-1, 1]) * fleet.generator.uniform(0.2, seconds)
        await asyncio.sleep(4 * seconds)
        assert fleet.starts
        gaps += [after - before for before, after in itertools.pairwise(sorted(fleet.starts))]
        await fleet.close()
    assert min(gaps) >= seconds


async def test_same_seed_same_history():
    """The same seed gives the same history."""
    histories = []
    for _ in range(2):
        fleet = Simulation(17)
        await fleet.add(4, load=500)
        begin = fleet.loop.time()
        await asyncio.sleep(4)
        histories.append([round(time - begin, 9) for time in fleet.starts])
        await fleet.close()
    assert len(histories[0]) == len(histories[1])


async def test_peer_that_was_idle_for_long_starts_at_once():
    """A peer idle for an hour starts a task within 50 ms: the answer to its call renews its knowledge of the clock."""
    fleet = Simulation(18)
    nodes = await fleet.add(3)
    await asyncio.sleep(SETTLED)
    for idle in (5, 60, 3600):
        await asyncio.sleep(idle)
        before = fleet.loop.time()
        await nodes[0].executor.submit(nodes[0].work)
        assert nodes[0].starts[-1] - before < 0.05
    await fleet.close()


async def test_pause_after_a_lost_call_ends_when_it_is_told_to(virtual_clock, quiet):
    """A peer that is paused after a lost call calls again as soon as it may start something."""
    fleet = Simulation(31, rate=10.0)
    (node,) = await fleet.add(1, load=500)
    await asyncio.sleep(4)
    for _ in range(20):
        fleet.server.is_up = False
        while not node.executor.statistics().fleet.failures:
            await asyncio.sleep(0.001)
        node.executor.pause()
        fleet.server.is_up = True
        await asyncio.sleep(1)
        taken = node.executor.statistics().fleet.taken
        node.executor.resume()
        await asyncio.sleep(1)
        assert node.executor.statistics().fleet.taken > taken
    node.executor.shutdown(cancel_pending=True)
    await fleet.close()


@pytest.mark.parametrize("outage", [Outage.STOP, Outage.LOCAL, Outage.static(2)], ids=str)
async def test_what_becomes_able_to_start_in_an_outage_starts_after_it(outage):
    """Tasks that may start only after an outage has begun start once it is over, also after the peer rested."""
    fleet = Simulation(32, rate=10.0, options={"outage": outage})
    (node,) = await fleet.add(1, load=500)
    await asyncio.sleep(SETTLED)
    fleet.server.is_up = False
    await asyncio.sleep(2)
    node.executor.pause()
    await asyncio.sleep(20)
    assert "outage" == node.executor.statistics().fleet.state
    node.executor.resume()
    await asyncio.sleep(2)
    alone = len(fleet.starts)
    fleet.server.is_up = True
    await asyncio.sleep(2)
    assert "active" == node.executor.statistics().fleet.state
    assert len(fleet.starts) - alone >= 15
    node.executor.shutdown(cancel_pending=True)
    await fleet.close()


async def test_what_becomes_able_to_start_after_a_suspension_starts():
    """After a suspension of the machine a peer starts what becomes able to start only later."""
    fleet = Simulation(33, rate=10.0)
    (node,) = await fleet.add(1, load=500)
    await asyncio.sleep(SETTLED)
    node.executor.pause()
    node.peers._suspended_seconds = lambda: 100.0  # noqa: SLF001  # what the machine's clock reports
    await asyncio.sleep(2)
    begun = len(fleet.starts)
    node.executor.resume()
    await asyncio.sleep(4)  # the time that no process has observed costs a quarantine
    assert len(fleet.starts) - begun >= 15
    node.executor.shutdown(cancel_pending=True)
    await fleet.close()
