"""Peers over a network: their checks, their comings and goings, and how they share a rate (F2, F3, F16, F25, F26).

Many peers of the production code in virtual time, over a model of the server and of the network; see
``tests/peers/simulation.py``. With ``Strictness.EXACT``, the default, permits are 1.95 % further apart than the rate asks.
"""

import asyncio
from collections import Counter

import pytest

from ratelimited_executor.peers import Outage

from ..peers.simulation import Network, Simulation

pytestmark = [pytest.mark.usefixtures("virtual_clock"), pytest.mark.filterwarnings("error")]

RATE = 100
SETTLED = 3.0  # seconds after which a new group starts evenly, with its quarantine of 1.75 s
JOINED = 0.6  # seconds after which a peer that joins a running group has started a task


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Silence the log: outages are reported there, and these tests cause them on purpose."""
    caplog.set_level("CRITICAL", "ratelimited_executor")


class Mended:
    """A network whose next calls fail with the given errors, and which works from then on."""

    def __init__(self, network: Network, errors: list[BaseException]) -> None:
        self._network = network
        self._errors = errors

    async def connect(self) -> None:
        """Connect, or raise the next error."""
        if self._errors:
            raise self._errors.pop()
        await self._network.connect()

    async def call(self, calls):
        """Make the calls, or raise the next error; for ``KeyError`` return an answer that makes no sense."""
        if self._errors:
            error = self._errors.pop()
            if isinstance(error, KeyError):
                return []
            raise error
        return await self._network.call(calls)

    async def aclose(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    "error, count", [(ConnectionError, 20), (TimeoutError, 1), (ValueError, 1), (AttributeError, 20)]
)
async def test_failed_check_is_not_the_last_one(error, count) -> None:
    """F2: one failure of the peer check ended it for good: no sign of life any more, and the share kept all the same."""
    fleet = Simulation(1)
    nodes = await fleet.add(3, load=2000)
    await asyncio.sleep(SETTLED)
    nodes[0].peers._transport = Mended(nodes[0].network, [error("no")] * count)
    failed = fleet.loop.time()
    await asyncio.sleep(10)
    again = [time for time in nodes[0].starts if time > failed + 6]
    assert fleet.worst_window() <= RATE
    assert len(again) >= 0.9 * 4 * RATE / 3
    assert fleet.count(failed + 6, failed + 10) >= 0.97 * 4 * RATE
    await fleet.close()


@pytest.mark.parametrize("outage", [Outage.STOP, Outage.static(10)], ids=str)
async def test_peer_that_is_cut_off_does_not_keep_its_share(outage) -> None:
    """F2: after 20 s the others took the share of a peer whose check had ended, and it went on with the same one."""
    fleet = Simulation(2, options={"outage": outage})
    nodes = await fleet.add(4, load=9000)
    await asyncio.sleep(SETTLED)
    nodes[0].network.is_cut = True
    cut = fleet.loop.time()
    await asyncio.sleep(60)
    alone = sum(time > cut + 1 for time in nodes[0].starts)
    bound = 0 if outage is Outage.STOP else 0.1  # the part of the rate that this policy leaves to a peer alone
    assert alone <= bound * RATE * 60
    assert fleet.worst_window() <= (1 + bound) * RATE
    assert fleet.count(cut + 2, cut + 60) - alone >= 0.97 * 58 * RATE, "the others take over within a second or two"
    nodes[0].network.is_cut = False
    mended = fleet.loop.time()
    await asyncio.sleep(6)
    assert sum(time > mended + 2 for time in nodes[0].starts) >= 0.8 * 4 * RATE / 4
    await fleet.close()


async def test_calls_do_not_use_up_what_they_are_made_with() -> None:
    """F3: every check took two connections from a pool, and gave none back; after some cycles it waited for ever."""
    fleet = Simulation(3)
    nodes = await fleet.add(3, load=9000)
    taken: Counter[int] = Counter()
    most: Counter[int] = Counter()
    closed: Counter[int] = Counter()

    def lend(node) -> None:
        """Count the connections that the calls of a node take and give back, and those that it closes."""
        call, connect, aclose = node.network.call, node.network.connect, node.network.aclose

        async def counted(function, *arguments):
            taken[node.number] += 1
            most[node.number] = max(most[node.number], taken[node.number])
            try:
                return await function(*arguments)
            finally:
                taken[node.number] -= 1

        async def count_close():
            closed[node.number] += 1
            await aclose()

        node.network.call = lambda calls: counted(call, calls)
        node.network.connect = lambda: counted(connect)
        node.network.aclose = count_close

    for node in nodes:
        lend(node)
        node.network.loss = 0.3
        node.network.late = 0.3
    await asyncio.sleep(60)
    for node in nodes:
        node.network.loss = node.network.late = 0.0
    calls, start = fleet.server.call_count, fleet.loop.time()
    await asyncio.sleep(10)
    assert {node.number: 1 for node in nodes} == dict(most), "a process makes one call at a time, whatever gets lost"
    assert calls > 300
    assert fleet.count(start + 2, start + 10) >= 0.97 * 8 * RATE
    await fleet.close()
    assert {0} == set(taken.values())
    assert {node.number: 1 for node in nodes} == dict(closed), "each node closes its connection once"


@pytest.mark.parametrize("seed", range(20))
async def test_executor_made_before_the_first_check_is_not_paused(seed) -> None:
    """F16: one made before the first peer check, and registered after it, was paused for 5 s: 4 of 20 fresh managers."""
    fleet = Simulation(seed)
    await fleet.add(2, load=1000)
    await asyncio.sleep(SETTLED + fleet.generator.random())  # at a random place in a grant interval
    begin = fleet.loop.time()
    (early,) = await fleet.add(1, load=100)  # its executor exists before its manager has started
    late = early.manager.executor("other", rate=RATE, drain_timeout=0)  # a rate of its own, before any answer
    late_start = late.submit(fleet.loop.time)
    await asyncio.sleep(JOINED)
    assert early.starts, "the new executor has started nothing"
    assert early.starts[0] - begin < JOINED
    assert (await asyncio.wait_for(late_start, 5)) - begin < 2.5, "a new rate waits for its quarantine and no longer"
    await fleet.close()


@pytest.mark.parametrize(("peers", "rate"), [(5, 2.0), (2, 1.0), (10, 1.0), (3, 100.0), (7, 0.2)])
async def test_peers_of_a_group_do_not_start_in_phase(peers, rate) -> None:
    """F25: all peers rounded alike: 5 peers that shared 2/s sent 5 in one second, then none."""
    fleet = Simulation(5, rate=rate)
    length = max(20.0, 20 / rate)
    await fleet.add(peers, load=int(rate * length) + 10)
    await asyncio.sleep(SETTLED + length)
    start = fleet.starts[0] + 1 / rate
    times = [time for time in sorted(fleet.starts) if time >= start]
    gap = 1.0005 / rate
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert fleet.worst_window() <= max(1, rate)
    assert fleet.worst_window(10 / rate) <= 10 + (rate > 10)  # a start may be 20 ms late
    assert len(gaps) >= 0.9 * rate * (length - 2 / rate) / 1.0005
    assert max(gaps) < 1.5 * gap + 0.02, "no permit may be left out"
    assert min(gaps) > gap - 0.02  # a start may be this late
    await fleet.close()


async def test_limit_is_neither_exceeded_nor_left_unused_while_peers_come_and_go() -> None:
    """F26: a newcomer took its share at once, others gave it up 5 s later; that of a dead one was unused for 20 s."""
    fleet = Simulation(6)
    await fleet.add(1, load=20_000)
    await asyncio.sleep(SETTLED)
    start = fleet.loop.time()
    await fleet.add(9, load=20_000)  # ten peers instead of one, at once
    await asyncio.sleep(3)
    for _ in range(5):  # a rolling restart
        await fleet.nodes.pop(0).close()
        await fleet.add(1, load=20_000)
        await asyncio.sleep(0.5)
    crash = fleet.loop.time()
    for node in fleet.nodes[:4]:  # four of ten crash without a word to the others
        node.crash()
    await asyncio.sleep(4)
    shrink = fleet.loop.time()
    for node in fleet.nodes[4:9]:  # all but one leave at the same time
        await node.close()
    await asyncio.sleep(3)
    end = fleet.loop.time()
    assert fleet.worst_window() <= RATE
    assert fleet.count(start, crash) >= 0.96 * RATE * (crash - start)
    assert fleet.count(crash, crash + 1) >= 0.7 * RATE
    assert fleet.count(crash + 1, shrink) >= 0.97 * RATE * (shrink - crash - 1)
    assert fleet.count(shrink, end) >= 0.9 * RATE * (end - shrink)
    await fleet.close()


async def test_share_of_an_idle_peer_is_not_wasted() -> None:
    """F26: each of n peers had an nth of the rate, whether it had anything to start or not."""
    fleet = Simulation(7)
    busy, *_ = await fleet.add(10)
    busy.load(3000)
    await asyncio.sleep(SETTLED)
    start = fleet.loop.time()
    await asyncio.sleep(10)
    assert sum(time >= start for time in busy.starts) >= 0.97 * 10 * RATE
    assert fleet.worst_window() <= RATE
    await fleet.close()


@pytest.mark.parametrize("seconds", [-30.0, 30.0])
async def test_clocks_of_peers_do_not_matter(virtual_clock, seconds) -> None:
    """F26: a peer whose clock was 20 s off deleted the others' signs of life, and took all of the rate."""
    fleet = Simulation(8)
    nodes = await fleet.add(2, load=3000)
    virtual_clock.step_wall(seconds)
    nodes += await fleet.add(2, load=3000)
    start = fleet.loop.time() + SETTLED
    await asyncio.sleep(SETTLED + 8)
    counts = [sum(time >= start for time in node.starts) for node in nodes]
    assert fleet.worst_window() <= RATE
    assert sum(counts) >= 0.97 * 8 * RATE
    assert min(counts) >= 0.9 * sum(counts) / 4
    await fleet.close()
