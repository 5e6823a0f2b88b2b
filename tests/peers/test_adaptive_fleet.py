"""An adaptive rate of a group moves as that of one process would, whatever its processes observe."""

import asyncio
import random
from itertools import pairwise

import pytest

from ratelimited_executor import RetryLater
from ratelimited_executor._core.fleet.limit_settings import read_settings
from ratelimited_executor.peers import Outage
from ratelimited_executor.policies import Adaptive

from .simulation import Simulation

pytestmark = [
    pytest.mark.usefixtures("virtual_clock", "quiet"),
    pytest.mark.filterwarnings("error"),
]
SETTLED = 3.0  # seconds from the cold start of a group until it runs evenly
NEWS = 1.0  # seconds until each process that calls knows of a rate that one has set: four grant intervals
RULES = Adaptive(floor=5, ceiling=1000, increase=5)


class Group:
    """Busy and idle processes, and the rate in force at the authority."""

    def __init__(self, seed, *, rules=RULES, rate=50.0, **options) -> None:
        self.fleet = Simulation(seed, rate=rate, settings={"adaptive": rules}, options=options)
        self.history = []  # of the rate in force: (time, rate)

    async def add(self, count, *, load=30_000, **options):
        """Add processes that share a load."""
        return await self.fleet.add(count, load=load // count, **options)

    @property
    def rate(self):
        """The rate that was put in force last, in permits a second."""
        authority = self.fleet.server.authorities.get("limit")
        if authority is None:
            return 0.0
        (limit,) = authority.memory.plan
        return round(float(read_settings(limit.settings).per_second), 5)

    async def run(self, seconds):
        """Run for ``seconds`` and log each change of the rate; return the rates, beginning with the first."""
        rates = [self.rate]
        for _ in range(round(seconds / 0.02)):
            await asyncio.sleep(0.02)
            if self.rate != rates[-1]:
                rates.append(self.rate)
                self.history.append((self.fleet.loop.time(), self.rate))
        return rates

    async def close(self):
        """Close all processes."""
        await self.fleet.close()


@pytest.mark.parametrize(("seed", "peers"), [(0, 1), (1, 2), (1, 10)])
async def test_many_raise_a_rate_as_fast_as_one(seed, peers):
    """However many processes raise it, the rate rises by ``increase`` a second, and not by that for each of them."""
    group = Group(seed)
    await group.add(peers)
    await group.run(SETTLED)
    first = group.rate
    rates = await group.run(20)
    assert all(after - before == pytest.approx(5, abs=0.01) for before, after in pairwise(rates))
    times = [time for time, _ in group.history]
    assert all(after - before >= 0.98 for before, after in pairwise(times))
    assert first + 70 <= group.rate <= first + 100
    await group.close()


@pytest.mark.parametrize(("seed", "peers"), [(0, 1), (1, 2), (2, 4), (0, 10)])
async def test_a_fall_of_one_is_one_of_all_and_ends(seed, peers):
    """A fall seen by one process applies to all and is not undone by a concurrent rise; then the rate rises again."""
    generator = random.Random(seed)
    group = Group(seed)
    nodes = await group.add(peers)
    await group.run(SETTLED + 5)
    for _ in range(2):
        await group.run(5 + generator.random())
        before = group.rate
        generator.choice(nodes).executor.penalize(None)
        await group.run(NEWS)  # meanwhile a concurrent rise is overruled
        low = group.rate
        assert low == pytest.approx(before / 2, abs=2.6)  # the news of a rise may still have been on its way
        assert [low] == await group.run(0.5)
        await group.run(5)
        assert group.rate > low
        rates = [float(node.executor.rate) for node in nodes]
        assert all(group.rate - 5.01 <= rate <= group.rate + 0.01 for rate in rates)  # the news may still be on its way
    await group.close()


@pytest.mark.parametrize("peers", [2, 4, 10])
async def test_an_overload_that_all_see_counts_once(peers):
    """An overload seen by all processes within a period lowers the rate once."""
    group = Group(5)
    nodes = await group.add(peers)
    await group.run(SETTLED + 5)
    before = group.rate
    for node in nodes:
        node.executor.penalize(None)
        await group.run(0.8 / peers)
    await group.run(0.1)
    assert before / 2 == pytest.approx(group.rate, abs=2.6)
    await group.close()


@pytest.mark.parametrize("peers", [1, 2, 4, 10])
async def test_a_lasting_overload_lets_a_group_fall_as_fast_as_one(peers):
    """Under a lasting overload the rate falls once in each period, whichever process sees it."""
    group = Group(6, rate=800.0)
    nodes = await group.add(peers, load=1000)
    await group.run(SETTLED)
    for step in range(120):
        nodes[step % peers].executor.penalize(None)
        await asyncio.sleep(0.05)
    assert group.rate <= 800 / 2**5
    await group.close()


@pytest.mark.parametrize("seed", [0])
async def test_laws_hold_where_messages_are_lost_and_late(seed):
    """With lost and late messages the rate stays below its ceiling, and rises are at least a period apart."""
    generator = random.Random(seed)
    group = Group(seed, rules=Adaptive(floor=5, ceiling=120, increase=5))
    nodes = await group.add(5)
    await group.run(SETTLED)
    group.history.clear()
    penalties = []
    for _ in range(60):
        node = generator.choice(nodes)
        node.network.loss = generator.choice([0.0, 0.0, 0.1])
        node.network.late = generator.choice([0.0, 0.0, 0.1])
        if generator.random() < 0.1:
            penalties.append(group.fleet.loop.time())
            node.executor.penalize(None)
        await group.run(1)
    for node in nodes:
        node.network.loss = node.network.late = 0.0
    await group.run(2)
    for node in nodes:
        node.executor.penalize(None)
    await group.run(20)
    assert max(rate for _, rate in group.history) <= 120
    assert group.fleet.worst_window() <= 120
    since = [time for time, _ in group.history if not any(0 <= time - penalty <= 4 for penalty in penalties)]
    ups = [
        (time, after - before)
        for (_, before), (time, after) in pairwise(group.history)
        if after > before and time in since
    ]
    assert max(up for _, up in ups) <= 10  # two at most, where one was lost on its way
    assert len(ups) <= 85
    assert group.rate >= 60
    await group.close()


class Capacity:
    """A server shared by the group, which serves ``count`` requests in any second."""

    def __init__(self, count) -> None:
        self.count = count
        self.served: list[float] = []
        self.refused = 0

    def ask(self):
        """Serve a request, or ask to be called again later."""
        now = asyncio.get_running_loop().time()
        self.served = [time for time in self.served if time > now - 1]
        if len(self.served) >= self.count:
            self.refused += 1
            raise RetryLater(0.5)
        self.served.append(now)


@pytest.mark.parametrize("peers", [1, 4])
async def test_a_group_finds_what_a_server_can_take(peers):
    """A group finds the capacity of a server as one process does: most of it is used, and few requests are refused."""
    server = Capacity(60)
    group = Group(7, rules=Adaptive(floor=5, ceiling=200, increase=2))
    nodes = await group.add(peers, load=peers)
    for node in nodes:
        node.executor.schedule_many(lambda _: server.ask(), range(20_000 // peers), results=False)
    await group.run(SETTLED)
    for capacity in (60, 30):
        server.count = capacity
        await group.run(25)
        done, refused = sum(node.executor.statistics().done for node in nodes), server.refused
        await group.run(20)
        done = sum(node.executor.statistics().done for node in nodes) - done
        assert done >= 0.6 * capacity * 20
        assert server.refused - refused < 0.1 * done
        assert group.rate <= capacity + 4
    await group.close()


@pytest.mark.parametrize("peers", [2, 4, 10])
async def test_one_busy_process_has_the_whole_rate_however_it_was_raised(peers):
    """One busy process may use the whole rate, also the part that idle processes have raised."""
    group = Group(8, rules=Adaptive(floor=5, ceiling=100, increase=5))
    nodes = await group.add(peers, load=20_000)
    await group.run(SETTLED + 15)
    assert 100 == group.rate
    for node in nodes[1:]:
        node.executor.pause()
    await group.run(2)
    start = group.fleet.loop.time()
    await group.run(5)
    assert group.fleet.count(start, start + 5) >= 0.9 * 100 * 5
    nodes[0].executor.penalize(None)
    await group.run(20)
    assert 100 == group.rate
    assert group.fleet.worst_window() <= 100
    await group.close()


@pytest.mark.parametrize("peers", [2, 4])
async def test_penalty_holds_the_group_and_then_the_rate_rises_again(peers):
    """A penalty that one process is told holds all of them; afterwards they raise the rate as before."""
    group = Group(9, rules=Adaptive(floor=5, ceiling=100, increase=5))
    nodes = await group.add(peers, load=60_000)
    await group.run(SETTLED + 20)
    nodes[0].executor.penalize(10)
    await group.run(1)
    assert 50 == group.rate
    begin = group.fleet.loop.time()
    await group.run(8)
    assert 0 == group.fleet.count(begin, begin + 8)
    await group.run(20)
    assert 100 == group.rate
    start = group.fleet.loop.time()
    await group.run(5)
    for node in nodes:
        assert 0.8 * 500 / peers <= sum(time >= start for time in node.starts)
    assert group.fleet.worst_window() <= 100
    await group.close()


async def test_overload_in_an_idle_process_is_taken_from_the_rate_in_force():
    """An idle process knows an old rate: its overload lowers the rate in force, and never raises it."""
    group = Group(10, rate=400.0)
    idle, busy = await group.add(2, load=10_000)
    await group.run(SETTLED)
    idle.executor.pause()
    await group.run(2)
    for _ in range(4):
        busy.executor.penalize(None)
        await group.run(1.5)
    low = group.rate
    assert low <= 30
    assert float(idle.executor.rate) >= 200
    idle.executor.penalize(None)
    await group.run(1)
    assert low / 2 == pytest.approx(group.rate)
    await group.close()


@pytest.mark.parametrize("outage", [Outage.STOP, Outage.static(2)], ids=str)
async def test_overload_in_an_outage_is_taken_from_the_rate_that_is_found(outage):
    """An overload seen during an outage lowers the rate that is found once the authority answers again."""
    group = Group(11, rate=400.0, outage=outage)
    nodes = await group.add(2, load=10_000)
    await group.run(SETTLED)
    nodes[0].network.is_cut = True
    await group.run(3)
    for _ in range(3):
        nodes[1].executor.penalize(None)
        await group.run(1.5)
    nodes[0].executor.penalize(None)
    await group.run(3)
    low = group.rate
    assert low <= 70
    nodes[0].network.is_cut = False
    await group.run(1.5)
    assert low / 2 - 6 <= group.rate <= low / 2 + 6
    await group.close()


async def test_outage_in_which_each_goes_by_its_own_rate_is_no_reason_to_wait():
    """In an outage with local rates an overload lowers the process's own rate at once."""
    group = Group(14, rate=400.0, outage=Outage.LOCAL)
    first, second = await group.add(2, load=20_000)
    await group.run(SETTLED)
    first.network.is_cut = True
    await group.run(3)
    before = float(first.executor.rate)
    first.executor.penalize(None)
    assert before / 2 == float(first.executor.rate)
    start = group.fleet.loop.time() + 3
    await group.run(4)
    assert before / 2 <= float(first.executor.rate) <= before / 2 + 20
    assert sum(time >= start for time in first.starts) <= before / 2 + 20
    for _ in range(3):
        second.executor.penalize(None)
        await group.run(1.5)
    low = group.rate
    first.network.is_cut = False
    await group.run(1)
    assert low <= group.rate <= low + 5.01  # its own rate during the outage does not concern the group
    await group.run(1)
    assert float(first.executor.rate) <= low + 10.01
    await group.close()


async def test_who_joins_takes_the_rate_that_the_group_has_found():
    """A new process takes the rate of a running group, and begins with its own where there is none."""
    group = Group(12)
    first, second = await group.add(2, load=3000)
    await group.run(SETTLED + 2)
    first.executor.penalize(None)
    await group.run(0.5)
    low = group.rate
    (third,) = await group.add(1, load=1000)
    await group.run(0.8)
    assert low == group.rate == float(third.executor.rate)
    await group.run(10)
    assert group.rate > low + 20
    for node in (first, second, third):
        await node.close()
    await asyncio.sleep(11)  # until they are forgotten
    (last,) = await group.add(1, load=100)
    await group.run(1)
    assert 50 == group.rate == float(last.executor.rate)
    group.fleet.nodes = [last]
    await group.close()


async def test_who_joins_long_after_a_fall_takes_the_rate_in_force():
    """A new process takes the rate of a group that has fallen far below its own, however long ago the last fall was."""
    group = Group(12, rules=Adaptive(floor=5, ceiling=1000, increase=0.5), rate=400.0)
    first, _ = await group.add(2, load=6000)
    await group.run(SETTLED + 2)
    for _ in range(5):
        first.executor.penalize(None)
        await group.run(1.2)
    await group.run(5)
    low = group.rate
    assert low < 30
    (third,) = await group.add(1, load=1000)
    rates = await group.run(3)
    assert low <= max(rates) <= low + 3
    assert max(rates) == pytest.approx(float(third.executor.rate), abs=0.001)
    await group.close()


async def test_a_rate_that_a_person_sets_is_taken_for_the_rate_of_all():
    """A rate that a person sets becomes the rate of all processes, within the bounds of each."""
    group = Group(13, rules=Adaptive(floor=5, ceiling=100, increase=0.5))
    nodes = await group.add(3)
    await group.run(SETTLED)
    nodes[1].executor.penalize(None)
    await group.run(0.1)
    nodes[0].executor.rate = 90
    await group.run(0.7)
    assert {float(node.executor.rate) for node in nodes} <= {90, 90.5}
    nodes[2].executor.rate = 400
    await group.run(2)
    assert 100 >= group.rate >= 90
    await group.close()
