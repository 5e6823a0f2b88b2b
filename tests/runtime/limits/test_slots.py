"""Pools of slots in one process: never more holders than the limit, served in order, and no slot is lost."""

import asyncio
import random

import pytest

from ratelimited_executor import ExecutorManager, ExecutorStoppedError, TaskExpiredError
from ratelimited_executor.exceptions import ExecutorNotStartedError, WrongLoopError
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.slots import Slot

from ...helpers import now_rounded


async def hold(slots, log, seconds, name=None, **options):
    async with slots.hold(name=name, **options):
        log.append((name, now_rounded()))
        await asyncio.sleep(seconds)


async def settle(turns=5):
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_only_as_many_hold_as_may_in_the_order_in_which_they_came(virtual_clock):
    """A slot that is given back goes to the longest waiter, at the same instant."""
    log = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=2)
        await asyncio.gather(*(hold(gpu, log, 1, name) for name in range_names(5)))

    assert [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 2)] == log


async def test_larger_priority_is_served_first(virtual_clock):
    """Waiters are ordered by priority, then by arrival."""
    log = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        await asyncio.gather(
            hold(gpu, log, 1, "first"), hold(gpu, log, 1, "low"), hold(gpu, log, 1, "high", priority=2)
        )

    assert ["first", "high", "low"] == [name for name, _ in log]


async def test_fence_rises_with_each_hand_over(virtual_clock):
    """Each slot that is handed over has a larger fence than all before it."""
    fences = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)

        async def use():
            async with gpu.hold() as slot:
                assert isinstance(slot, Slot)
                assert "gpu" == slot.pool
                fences.append(slot.fence)
                await asyncio.sleep(0.1)

        await asyncio.gather(*(use() for _ in range(4)))

    assert [1, 2, 3, 4] == fences


async def test_tasks_of_several_executors_share_a_pool(virtual_clock):
    """Tasks of several executors of a manager share a pool and its limit."""
    running, most = 0, 0
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=3)
        executors = [manager.executor(name) for name in ("mail", "sms")]

        async def work():
            nonlocal running, most
            async with gpu.hold():
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.5)
                running -= 1

        handles = [executor.submit(work) for executor in executors for _ in range(10)]
        await asyncio.gather(*handles)

    assert (0, 3) == (running, most)


# The limit.


async def test_limit_of_zero_halts_and_a_larger_one_wakes_at_once(virtual_clock):
    """A new limit takes effect at once, also for those who wait already."""
    log = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=0)
        waiters = asyncio.gather(*(hold(gpu, log, 1, name) for name in range_names(3)))
        await asyncio.sleep(10)
        assert [] == log
        gpu.limit = 2
        await settle()
        assert [("a", 10), ("b", 10)] == log
        await waiters


async def test_lower_limit_lets_holders_finish(virtual_clock):
    """Lowering the limit takes no slot away, and hands none over until fewer are held."""
    log = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=3)
        waiters = asyncio.gather(*(hold(gpu, log, seconds, name) for name, seconds in zip("abcd", (1, 2, 3, 1))))
        await settle()
        gpu.limit = 1
        assert (3, 1) == (gpu.statistics().held, gpu.statistics().limit)
        await waiters

    assert ("d", 3) == log[-1]  # once the last of the others has finished, and not before


async def test_pool_of_a_name_is_one_and_its_limit_is_the_one_given_last():
    """A pool is requested by name: there is one of each name, and the limit given last applies."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=2)

        assert manager.slots("gpu") is gpu
        assert manager.slots("gpu", limit=5) is gpu
        assert 5 == gpu.limit
        assert manager.slots("cpu", limit=1) is not gpu


# Giving up.


async def test_who_waits_too_long_gets_an_error_and_no_slot(virtual_clock):
    """``expires`` counts from the entry; a waiter that expires gets no slot and leaves the queue."""
    log = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        holder = asyncio.ensure_future(hold(gpu, log, 5, "long"))
        await settle()
        with pytest.raises(TaskExpiredError, match="late was not started within 2 s"):
            async with gpu.hold(expires="2s", name="late"):
                pytest.fail("there was no slot")
        assert 2 == now_rounded()
        assert 0 == gpu.statistics().waiting
        await holder


async def test_expiry_of_nothing_takes_a_slot_that_is_free_and_no_other(virtual_clock):
    """With ``expires=0`` a free slot is taken, and otherwise the entry expires at once."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        async with gpu.hold(expires=0):
            with pytest.raises(TaskExpiredError):
                async with gpu.hold(expires=0):
                    pytest.fail("there was no slot")
        assert 0 == gpu.statistics().held


@pytest.mark.parametrize("turns", range(4))
async def test_cancelled_waiter_loses_no_slot_whenever_that_is(virtual_clock, turns):
    """A cancelled waiter loses no slot, even if it is cancelled between the hand-over and its resumption."""
    log = []
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        release = asyncio.Event()

        async def first():
            async with gpu.hold():
                await release.wait()

        holder = asyncio.ensure_future(first())
        await settle()
        waiter = asyncio.ensure_future(hold(gpu, log, 1, "waiter"))
        after = asyncio.ensure_future(hold(gpu, log, 1, "after"))
        await settle()
        release.set()
        await settle(turns)
        waiter.cancel()
        await asyncio.gather(holder, waiter, after, return_exceptions=True)

        assert "after" == log[-1][0]
        assert (0, 0) == (gpu.statistics().held, gpu.statistics().waiting)


async def test_body_that_raises_gives_its_slot_back(virtual_clock):
    """A body that raises gives its slot back."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        with pytest.raises(ZeroDivisionError):
            async with gpu.hold():
                1 / 0
        assert 0 == gpu.statistics().held


async def test_random_holders_waiters_cancellations_and_limits(virtual_clock):
    """At most five slots are held under random limits, cancellations and expiries, and no waiter is left over."""
    random_numbers = random.Random(7)
    held = handed = 0
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=3)

        async def use():
            nonlocal held, handed
            async with gpu.hold(priority=random_numbers.randrange(3), expires=random_numbers.choice([None, None, 0.3])):
                held += 1
                handed += 1
                assert held <= gpu.statistics().held <= 5
                try:
                    await asyncio.sleep(random_numbers.random() / 5)
                finally:
                    held -= 1

        tasks = []
        for _ in range(600):
            tasks.append(asyncio.ensure_future(use()))
            if random_numbers.random() < 0.3:
                random_numbers.choice(tasks).cancel()
            if random_numbers.random() < 0.1:
                gpu.limit = random_numbers.randrange(6)
            await asyncio.sleep(random_numbers.random() / 20)
        gpu.limit = 5
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        statistics = gpu.statistics()

    kinds = {type(each) for each in ended}
    assert kinds <= {type(None), asyncio.CancelledError, TaskExpiredError}
    assert (0, 0) == (statistics.held, statistics.waiting)
    assert handed > 200


# Insight.


async def test_statistics_tell_who_holds_and_for_how_long(virtual_clock):
    """Statistics list the holders of a pool with names, fences and ages."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=2)
        log = []
        tasks = [asyncio.ensure_future(hold(gpu, log, 9, name)) for name in range_names(3)]
        await asyncio.sleep(4)
        statistics = gpu.statistics()

        assert ("gpu", 2, 2, 1, 2) == (
            statistics.name, statistics.limit, statistics.held, statistics.waiting, statistics.handed
        )  # fmt: skip
        assert [("a", 1, 4.0), ("b", 2, 4.0)] == [(each.name, each.fence, each.age) for each in statistics.holders]
        assert "<Slots 'gpu' limit=2 held=2 waiting=1>" == repr(gpu)
        for task in tasks:
            task.cancel()


# Lifetime.


async def test_pool_before_its_manager_starts_and_after_it_has_closed(virtual_clock):
    """A pool hands over only while its manager is open; a slot still held when it closes may be used to the end."""
    manager = ExecutorManager()
    gpu = manager.slots("gpu", limit=1)
    with pytest.raises(ExecutorNotStartedError, match="the manager of slots 'gpu' is not started: enter it"):
        async with gpu.hold():
            pytest.fail("it has not started")
    log = []
    async with manager:
        gpu.limit = 1
        holder = asyncio.ensure_future(hold(gpu, log, 3, "holder"))
        waiter = asyncio.ensure_future(hold(gpu, log, 3, "waiter"))
        await settle()

    with pytest.raises(ExecutorStoppedError, match="gpu"):
        await waiter
    await holder  # continues with the slot it holds
    assert ["holder"] == [name for name, _ in log]
    with pytest.raises(ExecutorStoppedError):
        async with gpu.hold():
            pytest.fail("it is closed")
    with pytest.raises(ExecutorStoppedError):
        manager.slots("gpu")


async def test_other_thread_is_refused():
    """A pool belongs to its loop: calls from another thread are refused, and change nothing."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)

        def elsewhere():
            with pytest.raises(WrongLoopError):
                gpu.limit = 2

            async def use():
                async with gpu.hold():
                    pytest.fail("it is another loop")

            with pytest.raises(WrongLoopError):
                asyncio.run(use())

        await asyncio.to_thread(elsewhere)
        assert (1, 0) == (gpu.limit, gpu.statistics().held)


async def test_hold_is_entered_once():
    """A second entry of a hold is refused, and takes no slot."""
    async with ExecutorManager() as manager:
        held = manager.slots("gpu", limit=2).hold()
        async with held:
            with pytest.raises(RuntimeError, match="once"):
                async with held:
                    pytest.fail("a second time")
            with pytest.raises(RuntimeError, match="once"):
                await held.__aenter__()
        assert 0 == manager.slots("gpu").statistics().held


async def test_hold_whose_entry_has_failed_may_be_entered_again(virtual_clock):
    """A hold whose entry expired has taken no slot, and may be entered again."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=0)
        held = gpu.hold(expires=1)
        with pytest.raises(TaskExpiredError):
            async with held:
                pytest.fail("there was no slot")
        gpu.limit = 1
        async with held as slot:
            assert 1 == slot.fence


# Bad input.


@pytest.mark.parametrize("limit", [-1, 1.5, "3", True, None])
async def test_limit_that_is_no_count_is_refused_and_changes_nothing(limit):
    """A bad limit is refused by name, and the limit in force stays."""
    async with ExecutorManager() as manager:
        with pytest.raises((TypeError, ValueError), match="limit"):
            manager.slots("new", limit=limit)
        gpu = manager.slots("gpu", limit=3)
        if limit is not None:
            with pytest.raises((TypeError, ValueError), match="limit"):
                manager.slots("gpu", limit=limit)
        with pytest.raises((TypeError, ValueError), match="limit"):
            gpu.limit = limit
        assert 3 == gpu.limit
        with pytest.raises(ValueError, match="limit must be given"):
            manager.slots("new")


@pytest.mark.parametrize(
    "options", [{"priority": "high"}, {"priority": float("nan")}, {"expires": -1}, {"expires": "soon"}, {"name": 5}]
)
async def test_bad_arguments_of_hold_are_refused_at_the_call(options):
    """Bad arguments of ``hold()`` are refused at the call, before anything is awaited."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            gpu.hold(**options)


async def test_name_and_peers_are_checked():
    """A manager that shares rates with static peers refuses pools, which would count in each process separately."""
    manager = ExecutorManager()
    with pytest.raises(TypeError, match="name"):
        manager.slots(5, limit=1)
    with pytest.raises(ValueError, match="share rates but not slots"):
        ExecutorManager(peers=StaticPeers(2, 0)).slots("gpu", limit=1)
    ExecutorManager(peers=StaticPeers(1, 0)).slots("gpu", limit=1)


def range_names(count):
    return "abcdefgh"[:count]
