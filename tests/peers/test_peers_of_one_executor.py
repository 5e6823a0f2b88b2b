"""``RateLimitedExecutor(peers=...)`` is an executor with its own manager that has these peers."""

from __future__ import annotations

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, Pacing, Rate, RateLimitedExecutor
from ratelimited_executor.peers import RedisPeers, StaticPeers
from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.policies import Adaptive

from .simulation import Network, Simulation

pytestmark = [
    pytest.mark.usefixtures("virtual_clock"),
    pytest.mark.filterwarnings("error"),
]


class Way(Network):
    """A transport to the server that counts how often it is closed."""

    closed_count = 0

    async def aclose(self):
        self.closed_count += 1


async def _drain(executor):
    async with executor:
        await asyncio.sleep(5)


async def _fail(executor):
    with pytest.raises(KeyError):
        async with executor:
            await asyncio.sleep(5)
            raise KeyError


async def _aclose(executor):
    await executor.start()
    await asyncio.sleep(5)
    await executor.aclose()
    await executor.aclose()


async def _shut_down(executor):
    await executor.start()
    await asyncio.sleep(5)
    executor.shutdown(cancel_pending=True)
    assert await executor.await_termination(5)


async def _close_manager(executor):
    async with executor.manager:
        await asyncio.sleep(5)


@pytest.mark.parametrize("close", [_drain, _fail, _aclose, _shut_down, _close_manager])
async def test_executor_with_peers_leaves_its_group_when_it_is_closed(close):
    """However it is closed, the executor leaves its group, closes its connection once, and leaves no task behind."""
    fleet = Simulation(31)
    (other,) = await fleet.add(1, load=1000)
    await asyncio.sleep(3)
    tasks = asyncio.all_tasks()
    way, starts = Way(fleet.server, fleet.generator), []
    peers = FleetPeers(way, seed=1)
    executor = RateLimitedExecutor("limit", rate=100, pacing=Pacing.ON_TIME, drain_timeout=0, peers=peers)
    assert peers is executor.manager.peers
    begin = fleet.loop.time()
    fleet.loop.call_later(0.1, lambda: executor.schedule_many(lambda _: starts.append(fleet.loop.time()), range(1000)))
    await close(executor)
    assert 1 == way.closed_count
    assert executor.is_terminated
    assert "closed" == executor.statistics().fleet.state
    assert tasks == asyncio.all_tasks()
    assert 150 <= len(starts) <= 260, "the executor has half of the rate"
    fleet.starts += starts
    assert fleet.worst_window() <= 100
    count = fleet.count(begin + 5.5, begin + 6.5)
    await asyncio.sleep(2)
    assert fleet.count(fleet.loop.time() - 1, fleet.loop.time()) >= 97, count
    await other.close()


async def test_executors_with_static_peers_share_the_permits():
    """Executors with static peers share the permits, as managers with such peers do."""
    starts = {0: [], 1: []}
    loop = asyncio.get_running_loop()
    async with (
        RateLimitedExecutor("x", rate=4, peers=StaticPeers(2, 0)) as one,
        RateLimitedExecutor("x", rate=4, peers=StaticPeers(2, 1)) as two,
    ):
        for rank, executor in enumerate((one, two)):
            assert 2 == executor.statistics().peers
            executor.schedule_many(lambda _, rank=rank: starts[rank].append(loop.time()), range(8))
    both = sorted(starts[0] + starts[1])
    assert min(after - before for before, after in zip(both, both[1:], strict=False)) > 0.24


def test_peers_beside_a_manager_are_refused():
    """``peers=`` beside ``manager=`` is refused before anything is made: a manager has its own peers."""
    manager = ExecutorManager()
    for make in (lambda: RateLimitedExecutor("x", manager=manager, peers=StaticPeers(2, 0)),
                 lambda: manager.executor("x", peers=StaticPeers(2, 0))):  # fmt: skip
        with pytest.raises(
            TypeError,
            match=r"peers= and manager= exclude each other: pass the peers to ExecutorManager\(peers=\.\.\.\)",
        ):
            make()
    assert {} == manager.executors


@pytest.mark.parametrize("peers", [2, "redis://localhost", StaticPeers, RedisPeers])
def test_what_is_no_peers_is_refused(peers):
    """A value that is no peers is refused by name."""
    with pytest.raises(TypeError, match="peers must be RedisPeers"):
        RateLimitedExecutor("x", peers=peers)


@pytest.mark.parametrize("limits", [{"rate": ["5/s", "100/min"]}, {"rate": "5/s", "key_rate": "1/s"}])
def test_adaptive_rate_among_several_limits_is_refused(limits):
    """An adaptive rate among several limits is refused at the call: a group adapts a single pace."""
    with pytest.raises(ValueError, match="with these peers it needs a single Paced rate"):
        RateLimitedExecutor(
            "x", **limits, adaptive=Adaptive(floor=1, ceiling=10), peers=RedisPeers("redis://localhost:1")
        )


@pytest.mark.parametrize(("name", "value", "most"), [("rate", "5/s, 7/min", 7), ("key_rate", "30/min", 10)])
async def test_limit_that_comes_later_is_shared_as_well(name, value, most):
    """A limit added to a running executor holds for its whole group."""
    fleet = Simulation(33)
    starts = []
    async with (
        RateLimitedExecutor("one", rate=5, peers=FleetPeers(Way(fleet.server, fleet.generator), seed=1)) as one,
        RateLimitedExecutor("one", rate=5, peers=FleetPeers(Way(fleet.server, fleet.generator), seed=2)) as two,
    ):
        await one.submit(int)
        for each in (one, two):
            setattr(each, name, value)
            each.schedule_many(lambda _: starts.append(fleet.loop.time()), range(50), key="k")
        await asyncio.sleep(20)
        assert most - 1 <= len(starts) <= most
        for each in (one, two):
            each.shutdown(cancel_pending=True)


async def test_peers_serve_one_executor():
    """Peers serve one executor: a second one that starts with them is refused, and may be closed."""
    fleet = Simulation(32)
    peers = FleetPeers(Way(fleet.server, fleet.generator), seed=1)
    async with RateLimitedExecutor("one", rate=5, peers=peers) as one:
        two = RateLimitedExecutor("two", rate=5, peers=peers)
        with pytest.raises(RuntimeError, match="peers serve one manager"):
            await two.start()
        await two.aclose()
        await one.submit(int)
