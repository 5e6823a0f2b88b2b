"""Slots of processes on a real server through faults, counted at a resource outside of the fleet.

Real elapsed time cannot be avoided here: other processes, signals and a server's own clock are what is tested. Leases
are short, and the least use of slots has wide margins. ``python -m bench.real.slots`` measures more, and longer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections import Counter

import pytest
import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from ratelimited_executor import ExecutorManager
from ratelimited_executor.exceptions import (
    ExecutorNotStartedError,
    ExecutorStoppedError,
    SlotLostError,
    TaskExpiredError,
)
from ratelimited_executor.insight import Hold
from ratelimited_executor.peers import RedisPeers
from ratelimited_executor.peers.slot_grants import Owner
from ratelimited_executor.slots import OnLost

from ..helpers import until_async
from .real_slots import fleet, left
from .servers import RedisCluster, RedisServer, sentinel_group

pytestmark = [pytest.mark.real_time("processes and servers of their own"), pytest.mark.usefixtures("quiet")]
LEASE = 0.6
PATIENT_LEASE = 3 * LEASE  # which a busy machine does not miss
HOUR = 3600


def manager_of(url, **options):
    return ExecutorManager(peers=RedisPeers(url, "fleet", **{"lease": LEASE, "clock_difference": 0.1, **options}))


def test_processes_that_are_killed_or_stand_still(redis_server: RedisServer) -> None:
    """Slots of killed or stopped processes go to others after a lease, and fences refuse writes with a lost slot."""
    with fleet(url=redis_server.url, limit=1, lease=LEASE) as running:
        killed, stopped, _ = running.add(3)
        for number in (killed, stopped):
            running.wait_for_entry(number=number)
        running.signal(killed, signal.SIGKILL)
        assert running.wait_for_entry(3) > 0
        running.wait_for_entry(number=stopped)
        running.signal(stopped, signal.SIGSTOP)
        time.sleep(2 * LEASE)
        running.signal(stopped, signal.SIGCONT)
        running.wait_for_entry(number=stopped)
    assert running.most() <= 1
    assert running.stale == []


async def test_blocked_event_loop_keeps_its_slot(redis_server: RedisServer) -> None:
    """A blocked event loop keeps its slot, since a thread renews the lease."""
    one, two = (manager_of(redis_server.url, lease=PATIENT_LEASE) for _ in range(2))
    async with one as manager, two as other:
        async with manager.slots("pool", limit=1).hold() as slot:
            time.sleep(2.5 * PATIENT_LEASE)  # noqa: ASYNC251  # blocking is what is tested
            with pytest.raises(TaskExpiredError):
                async with other.slots("pool", limit=1).hold(expires=0.2):
                    pass
            assert not slot.is_lost


async def test_event_loop_that_hangs_loses_its_slot(redis_server: RedisServer) -> None:
    """An event loop that hangs beyond ``hang_timeout`` loses its slot."""
    async with manager_of(redis_server.url, hang_timeout=LEASE) as manager:
        with pytest.raises(SlotLostError):
            async with manager.slots("pool", limit=1).hold():
                time.sleep(4 * LEASE)  # noqa: ASYNC251  # blocking is what is tested
                await asyncio.sleep(HOUR)


@pytest.mark.parametrize("fault", ["flush", "restart"])
async def test_holders_keep_their_slots_over_a_loss_of_the_state(redis_server: RedisServer, fault: str) -> None:
    """After the server has lost its state holders keep their slots, the limit stays, and free slots are handed over."""
    async with manager_of(redis_server.url, lease=PATIENT_LEASE) as manager:
        slots = manager.slots("pool", limit=2)
        async with slots.hold() as slot:
            if fault == "flush":
                redis_server.flush()
            else:
                redis_server.kill()
                redis_server.restart()
            async with slots.hold(expires=15) as later:
                assert later.fence > slot.fence
                with pytest.raises(TaskExpiredError):
                    async with slots.hold(expires=0.2):
                        pass
            assert not slot.is_lost
            assert slots.limit == 2


@pytest.mark.parametrize("is_handed_in", [False, True])
async def test_hand_overs_are_heard_of_after_connections_were_closed(
    redis_server: RedisServer, *, is_handed_in: bool
) -> None:
    """Hand-overs are still notified after connections were killed and after the client's read timeout."""
    client = redis.asyncio.Redis.from_url(redis_server.url, socket_timeout=0.2)
    async with client, manager_of(client if is_handed_in else redis_server.url) as manager:
        slots = manager.slots("pool", limit=1)
        async with slots.hold():
            pass
        for kind in ("normal", "pubsub"):
            redis_server.ask("CLIENT", "KILL", "TYPE", kind)
        keeper = manager._slot_keeper
        await asyncio.sleep(0.3)  # until the loss is noticed, on an idle machine
        heard = 0
        async with asyncio.timeout(20.0):
            while heard < 25:  # for longer than the client's timeout without a break
                await asyncio.sleep(0.02)
                heard = heard + 1 if keeper._peer.poll_ns is None else 0
        async with slots.hold(expires=5):
            pass
        await manager.aclose()
        assert await client.ping()


async def test_lost_slots(own_redis_server: RedisServer) -> None:
    """If the server is away for a lease, a body is cancelled, or finishes, or a function is called, by ``on_lost``."""
    called = []
    async with manager_of(own_redis_server.url) as manager:
        slots = manager.slots("pool", limit=3)

        async def body(on_lost):
            async with slots.hold(on_lost=on_lost) as slot:
                begun.append(slot)
                if on_lost is OnLost.CANCEL:
                    await asyncio.sleep(HOUR)
                await until_async(lambda: slot.is_lost)

        begun: list[object] = []
        tasks = [asyncio.create_task(body(each)) for each in (OnLost.CANCEL, OnLost.FINISH, called.append)]
        await until_async(lambda: len(begun) == 3)
        own_redis_server.kill()
        cancelled, finished, told = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(cancelled, SlotLostError)
        assert finished is told is None
        assert len(called) == 1
        thread = manager._slot_keeper._thread
        assert thread is not None
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive(), "the thread must end if the server is away and no slot is held"


async def test_closing_refuses_who_waits_and_leaves_nothing(redis_server: RedisServer) -> None:
    """Closing refuses waiters; a holder continues with its slot, and the thread ends after that."""
    manager = manager_of(redis_server.url)
    async with manager:
        slots = manager.slots("pool", limit=1)
        async with slots.hold():
            waiting = asyncio.create_task(slots.hold().__aenter__())
            await until_async(lambda: slots.statistics().waiting == 1)
            await manager.aclose()
            with pytest.raises(ExecutorStoppedError):
                await waiting
            assert manager._slot_keeper._thread.is_alive(), "a task that holds a slot keeps it"
    await asyncio.to_thread(manager._slot_keeper._thread.join, 5)
    assert not manager._slot_keeper._thread.is_alive()
    assert left(redis_server) == 0
    manager._slot_keeper._is_closing = False  # as for a waiter that asked just before closing
    async with asyncio.timeout(30):
        with pytest.raises(ExecutorStoppedError):
            async with slots.hold():
                pass


async def test_what_is_released_last_is_told(redis_server: RedisServer) -> None:
    """The last release before closing reaches the server, so that nobody waits until the lease ends."""
    for _ in range(10):
        async with manager_of(redis_server.url) as manager:
            async with manager.slots("pool", limit=1).hold():
                pass
        assert left(redis_server) == 0


async def test_thread_that_fails_refuses_who_comes(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread of slots fails, later calls are refused instead of waiting for ever."""
    errors = []
    monkeypatch.setattr("threading.excepthook", errors.append)
    manager = manager_of(redis_server.url)
    slots = manager.slots("pool", limit=1)

    def fail():
        raise RuntimeError("no transport")

    monkeypatch.setattr(manager._slot_keeper, "_new_transport", fail)
    async with manager, asyncio.timeout(30):
        with pytest.raises(ExecutorStoppedError):
            async with slots.hold():
                pass
    assert len(errors) <= 1


async def test_limit_that_another_process_sets(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A process that neither holds nor waits learns of a limit set by another, and 0 halts the pool.

    The log reports each change once to a process that declared another limit.
    """
    caplog.set_level(logging.WARNING, "ratelimited_executor")
    async with manager_of(redis_server.url, lease=3) as manager, manager_of(redis_server.url, lease=3) as other:
        slots, others = manager.slots("pool", limit=2), other.slots("pool")
        async with slots.hold():
            pass
        await until_async(lambda: others.limit == 2)
        slots.limit = 0
        await until_async(lambda: others.limit == 0)
        with pytest.raises(TaskExpiredError):
            async with others.hold(expires=0.1):
                pass
        hold = slots.hold()
        waiting = asyncio.create_task(hold.__aenter__())
        await asyncio.sleep(0.1)
        others.limit = 1
        await asyncio.wait_for(waiting, 30)
        await hold.__aexit__(None, None, None)
        assert "slots: the limit of 'pool' is 1, set by another process; this process has set limit=0" in caplog.text
        assert 1 == caplog.text.count("slots: the limit"), caplog.text
        async with manager_of(redis_server.url, lease=3) as third:
            third.slots("pool", limit=3)  # differs from what was declared before, so it is set
            await until_async(lambda: others.limit == 3)
            others.limit = 0
            await until_async(lambda: third.slots("pool").limit == 0)
            assert "slots: the limit of 'pool' is 0, which halts it, set by another process" in caplog.text


async def test_limit_is_not_known_before_the_group_has_answered(redis_server: RedisServer) -> None:
    """A process that joins asks for the limit at once, and reads None until the answer, never a wrong 0."""
    async with manager_of(redis_server.url, lease=8) as manager, manager_of(redis_server.url, lease=8) as other:
        async with manager.slots("pool", limit=2).hold():
            slots = other.slots("pool")
            read = [(slots.limit, slots.statistics().limit)]
            assert "limit=None" in repr(slots)
            async with asyncio.timeout(4):  # half of a lease
                while read[-1][0] is None:
                    await asyncio.sleep(0.001)
                    read.append((slots.limit, slots.statistics().limit))
            assert (None, None) == read[0]
            assert {None, 2} == {limit for limit, _ in read}
            assert 1 == slots.statistics().held
            own = other.slots("another", limit=3)
            assert 3 == own.limit == own.statistics().limit  # its own needs no answer


async def test_explanation_tells_of_the_quarantine(own_redis_server: RedisServer) -> None:
    """An explanation names the quarantine, in which a task waits though no slot is held."""
    async with manager_of(own_redis_server.url, lease=5) as manager:
        pool, executor = manager.slots("pool", limit=1), manager.executor("jobs")
        handle = executor.submit(str, slots=pool)
        await until_async(lambda: pool.statistics().quarantine > 0)
        await until_async(lambda: executor.explain(handle).hold is Hold.SLOTS)
        assert re.fullmatch(
            r"slots 'pool': 0 of 1 held, \d waiting, no slot is handed over for \d\.\d s: "
            r"the server may have forgotten holders \(less with a shorter lease=\)",
            executor.explain(handle).detail or "",
        )
        assert "" == await handle


@pytest.mark.usefixtures("server_kind")
async def test_refused_server_is_told_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """With a wrong password waiters go on waiting, and the log says what to do."""
    with RedisServer(password="right") as server:
        async with manager_of(server.url.replace("right", "wrong")) as manager:
            with caplog.at_level(logging.WARNING, "ratelimited_executor"), pytest.raises(TaskExpiredError):
                async with manager.slots("pool", limit=1).hold(expires=1):
                    pass
    assert any("WRONGPASS" in each.message or "password" in each.message for each in caplog.records), caplog.text
    assert "slots: the server refuses all calls (" in caplog.text


async def test_closed_loops_of_threads_are_forgotten(redis_server: RedisServer) -> None:
    """A process in which many loops have held a slot, as of threads that call ``asyncio.run``, keeps none of them."""
    async with manager_of(redis_server.url) as manager:
        slots = manager.slots("gpu", limit=2)

        async def use() -> None:
            async with slots.hold():
                pass

        for _ in range(5):
            await asyncio.to_thread(asyncio.run, use())
        await use()
        assert [asyncio.get_running_loop()] == list(manager._slot_keeper._owners)


def test_event_loop_that_is_closed_is_not_well() -> None:
    """A closed event loop is unhealthy from the first check, so that its leases are not renewed."""
    owner = Owner(asyncio.new_event_loop())
    owner.loop.close()
    assert not owner.is_well(0.0, HOUR)
    assert not owner.is_well(1.0, HOUR)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
async def test_forked_process_is_told_that_nothing_runs_there(redis_server: RedisServer) -> None:
    """In a forked process, which has no copy of the thread, slots are refused."""
    async with manager_of(redis_server.url) as manager:
        slots = manager.slots("pool", limit=1)
        async with slots.hold(expires=5):
            keeper = manager._slot_keeper
            keeper._process += 1  # as in a child process
            with pytest.raises(ExecutorNotStartedError):
                await slots.hold().__aenter__()
            keeper._process -= 1


async def use_by_turns(client) -> None:
    """Let two managers hold the only slot of a pool in turn, with a client used on their event loop."""
    most = held = 0

    async def use(slots) -> None:
        nonlocal most, held
        for _ in range(5):
            async with slots.hold():
                held += 1
                most = max(most, held)
                await asyncio.sleep(0.01)
                held -= 1

    one, two = (manager_of(client, lease=PATIENT_LEASE) for _ in range(2))
    async with one as manager, two as other:
        async with asyncio.timeout(20):
            await asyncio.gather(*(use(each.slots("pool", limit=1)) for each in (manager, other)))
        async with manager.slots("pool").hold() as slot:
            await asyncio.sleep(2 * PATIENT_LEASE)  # its lease is renewed
            assert not slot.is_lost
    assert 1 == most


@pytest.mark.slow
async def test_client_of_a_cluster(redis_cluster_server: RedisCluster) -> None:
    """A client of a cluster is used directly and not closed; hand-overs are polled, since a cluster does not notify."""
    redis_cluster_server.flush()
    client = redis.asyncio.RedisCluster.from_url(redis_cluster_server.url)
    await use_by_turns(client)
    assert await client.ping(target_nodes=redis.asyncio.RedisCluster.PRIMARIES)
    await client.aclose()


@pytest.mark.slow
@pytest.mark.usefixtures("server_kind")
async def test_client_of_a_sentinel() -> None:
    """A client of a sentinel is used directly and not closed."""
    with sentinel_group() as group:
        sentinel = Sentinel(group.addresses, socket_timeout=0.5)
        client = sentinel.master_for(group.name)
        await use_by_turns(client)
        assert await client.ping()
        await client.aclose()
        for each in sentinel.sentinels:
            await each.aclose()


async def test_scheduled_tasks_of_two_processes_share_the_slots_of_the_group(redis_server: RedisServer) -> None:
    """Scheduled tasks of two processes never run more than the slots of the group, all run, and nothing is left."""
    running, most, done = 0, 0, 0

    async def work() -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        done += 1

    async with manager_of(redis_server.url) as one, manager_of(redis_server.url) as other:
        for manager in (one, other):
            pool, executor = manager.slots("pool", limit=2), manager.executor("local")
            for _ in range(15):
                executor.submit(work, slots=pool)
        await until_async(lambda: done == 30)
        await until_async(lambda: pool.statistics().waiting == 0)
    assert most == 2


async def test_scheduled_tasks_with_slots_keep_the_rates_of_their_keys_in_the_group(redis_server: RedisServer) -> None:
    """Scheduled tasks keep both the slots and the rates of their keys over the group."""
    starts: dict[str, list[float]] = {"a": [], "b": []}
    running, most = 0, 0

    async def work(key: str) -> None:
        nonlocal running, most
        starts[key].append(asyncio.get_running_loop().time())
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    async with manager_of(redis_server.url) as one, manager_of(redis_server.url) as other:
        for manager in (one, other):
            pool, executor = manager.slots("keyed", limit=2), manager.executor("keyed", rate="50/s", key_rate="4/s")
            for number in range(10):
                key = "ab"[number % 2]
                executor.submit(work, key, key=key, slots=pool)
        await until_async(lambda: sum(map(len, starts.values())) == 20)
        await until_async(lambda: pool.statistics().waiting == 0)
    assert most <= 2
    for times in starts.values():
        assert all(later - earlier > 0.8 for earlier, later in zip(times, times[4:], strict=False))


async def test_scheduled_task_whose_lease_is_lost_is_cancelled(own_redis_server: RedisServer) -> None:
    """A scheduled task whose lease is lost is cancelled, and ends with ``SlotLostError``."""
    async with manager_of(own_redis_server.url) as manager:
        handle = manager.executor("local").submit(asyncio.sleep, HOUR, slots=manager.slots("pool", limit=1))
        await until_async(lambda: handle.started_at is not None)
        own_redis_server.kill()
        with pytest.raises(SlotLostError):
            async with asyncio.timeout(30):
                await handle


async def test_as_many_tasks_of_a_key_run_over_all_processes(redis_server: RedisServer) -> None:
    """With ``key_concurrency`` no more tasks of a key run over all processes, beside a pace and unlimited tasks."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    ended: Counter[tuple[str, int]] = Counter()

    async def work(item: tuple[str, int]) -> None:
        key, number = item
        running[key] += 1
        most[key] = max(most[key], running[key])
        await asyncio.sleep(0.02)
        running[key] -= 1
        ended[key, number] += 1

    async def process(number: int) -> None:
        async with manager_of(redis_server.url) as manager:
            limits = {"one": 1, "three": 3}
            executor = manager.executor("keys", rate="500/s", key_concurrency=limits.get)
            for key in ("one", "three", "any"):
                executor.schedule_many(work, [(key, number)] * 20, key=lambda item: item[0])

    await asyncio.gather(process(0), process(1))
    assert (most["one"], most["three"]) == (1, 3)
    assert most["any"] > 3
    assert ended == {(key, number): 20 for key in ("one", "three", "any") for number in (0, 1)}
