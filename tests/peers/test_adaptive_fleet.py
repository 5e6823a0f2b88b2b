"""One adaptive rate of a group: whatever its processes see, it moves as that of one process would."""

import asyncio
import random
from itertools import pairwise

import pytest

from ratelimited_executor import Adaptive, Outage, RetryLater

from .simulation import Simulation

pytestmark = [
    pytest.mark.usefixtures("virtual_clock", "quiet"),
    pytest.mark.filterwarnings("error"),
]
SETTLED = 3.0  # seconds from the cold start of a group until it runs evenly
NEWS = 1.0  # seconds until each process that calls knows of a rate that one has set: four grant intervals
RULES = Adaptive(floor=5, ceiling=1000, increase=5)


class Group:
    """Busy and idle processes, and the rate in force as the authority has it."""

    def __init__(self, seed, *, rules=RULES, rate=50.0, **options) -> None:
        self.fleet = Simulation(seed, rate=rate, settings={"adaptive": rules}, options=options)
        self.history = []  # of the rate in force: (time, rate)

    async def add(self, count, *, load=30_000, **options):
        """Add processes with so much to do together."""
        return await self.fleet.add(count, load=load // count, **options)

    @property
    def rate(self):
        """The rate that was put in force last, permits a second."""
        authority = self.fleet.server.authorities.get("limit")
        if authority is None:
            return 0.0
        grid = authority._next_grid or authority._grid
        return float(grid.per_second * (1 + self.fleet.nodes[0].peers._settings.stretch))

    async def run(self, seconds):
        """Let time pass, and note the rate whenever it changes; return the rates, the first included."""
        rates = [self.rate]
        for _ in range(round(seconds / 0.02)):
            await asyncio.sleep(0.02)
            if self.rate != rates[-1]:
                rates.append(self.rate)
                self.history.append((self.fleet.loop.time(), self.rate))
        return rates

    async def close(self):
        """End all of them."""
        await self.fleet.close()


@pytest.mark.parametrize(("seed", "peers"), [(0, 1), (1, 2), (2, 4), (0, 10), (1, 10)])
async def test_many_raise_a_rate_as_fast_as_one(seed, peers):
    """A step of one is a step of each: ``increase`` a second, and not n times that."""
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


@pytest.mark.parametrize(("seed", "peers"), [(0, 1), (1, 2), (2, 4), (0, 10), (1, 10)])
async def test_a_fall_of_one_is_one_of_all_and_ends(seed, peers):
    """No rise of the same time undoes it, whenever it comes; then the rate rises by the use of the group."""
    generator = random.Random(seed)
    group = Group(seed)
    nodes = await group.add(peers)
    await group.run(SETTLED + 5)
    for _ in range(4):
        await group.run(5 + generator.random())
        before = group.rate
        generator.choice(nodes).executor.penalize(None)
        await group.run(NEWS)  # in which a rise of the same time is overruled
        low = group.rate
        assert low == pytest.approx(before / 2, abs=2.6)  # the news of a rise may have been on its way
        assert [low] == await group.run(0.5)
        await group.run(5)
        assert group.rate > low
        rates = [float(node.executor.rate) for node in nodes]
        assert all(group.rate - 5.01 <= rate <= group.rate + 0.01 for rate in rates)  # the news may be on its way
    await group.close()


@pytest.mark.parametrize("peers", [2, 4, 10])
async def test_an_overload_that_all_see_counts_once(peers):
    """Within the news of it, and within a period."""
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
    """By a part in each period, whoever sees it."""
    group = Group(6, rate=800.0)
    nodes = await group.add(peers, load=1000)
    await group.run(SETTLED)
    for step in range(120):
        nodes[step % peers].executor.penalize(None)
        await asyncio.sleep(0.05)
    assert group.rate <= 800 / 2**5
    await group.close()


@pytest.mark.parametrize("seed", range(4))
async def test_laws_hold_where_messages_are_lost_and_late(seed):
    """A rate above the ceiling is never in force, rises are a period apart, and falls are no rises."""
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
    """A server that the whole group asks, and that serves so many requests in any second."""

    def __init__(self, count) -> None:
        self.count = count
        self.served: list[float] = []
        self.refused = 0

    def ask(self):
        """Be served, or be told to come again."""
        now = asyncio.get_running_loop().time()
        self.served = [time for time in self.served if time > now - 1]
        if len(self.served) >= self.count:
            self.refused += 1
            raise RetryLater(0.5)
        self.served.append(now)


@pytest.mark.parametrize("peers", [1, 2, 4, 10])
async def test_a_group_finds_what_a_server_can_take(peers):
    """As one process does: most of it, and few are refused; and a new capacity soon."""
    server = Capacity(60)
    group = Group(7, rules=Adaptive(floor=5, ceiling=200, increase=2))
    nodes = await group.add(peers, load=peers)
    for node in nodes:
        node.executor.schedule_many(lambda _: server.ask(), range(20_000 // peers), results=False)
    await group.run(SETTLED)
    for capacity in (60, 30):
        server.count = capacity
        await group.run(30)
        done, refused = sum(node.executor.statistics().done for node in nodes), server.refused
        await group.run(40)
        done = sum(node.executor.statistics().done for node in nodes) - done
        assert done >= 0.6 * capacity * 40
        assert server.refused - refused < 0.1 * done
        assert group.rate <= capacity + 4
    await group.close()


@pytest.mark.parametrize("peers", [2, 4, 10])
async def test_one_busy_process_has_the_whole_rate_however_it_was_raised(peers):
    """The others have nothing to do; what they have raised is its rate as well."""
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
async def test_penalty_of_one_process_does_not_keep_the_group_down(peers):
    """The others raise the rate while it waits, and it has its part again when its penalty ends."""
    group = Group(9, rules=Adaptive(floor=5, ceiling=100, increase=5))
    nodes = await group.add(peers, load=60_000)
    await group.run(SETTLED + 20)
    nodes[0].executor.penalize(30)
    await group.run(1)
    assert 50 == group.rate
    count = len(nodes[0].starts)
    await group.run(20)
    assert 100 == group.rate
    assert count == len(nodes[0].starts)
    await group.run(15)
    start = group.fleet.loop.time()
    await group.run(5)
    own = sum(time >= start for time in nodes[0].starts)
    assert 0.8 * 500 / peers <= own
    assert group.fleet.worst_window() <= 100
    await group.close()


async def test_overload_in_an_idle_process_is_taken_from_the_rate_in_force():
    """It knows the rate of long ago: a part of that may be a rise."""
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
    """When the authority answers again."""
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
    """An overload lowers the rate of who sees it at once."""
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
    assert low <= group.rate <= low + 5.01  # what it went by alone is of no concern to the group
    await group.run(1)
    assert float(first.executor.rate) <= low + 10.01
    await group.close()


async def test_who_joins_takes_the_rate_that_the_group_has_found():
    """And who finds nobody there begins with its own."""
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
    await asyncio.sleep(1)
    (last,) = await group.add(1, load=100)
    await group.run(1)
    assert 50 == group.rate == float(last.executor.rate)
    group.fleet.nodes = [last]
    await group.close()


async def test_a_rate_that_a_person_sets_is_taken_for_the_rate_of_all():
    """Within the bounds of each."""
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
