"""Tasks scheduled with ``slots=`` start when they get their slots, and hold them until their run ends."""

import asyncio

import pytest

from ratelimited_executor import (
    ExecutorManager,
    RateLimitedExecutor,
    Retry,
    RunTimeoutError,
    TaskExpiredError,
    Window,
)
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import Fair
from ratelimited_executor.slots import current_slot

from ...helpers import now_rounded


class Work:
    """Logs starts, and counts how many run at once."""

    def __init__(self):
        self.log = []
        self.running = self.most = 0

    async def __call__(self, name, seconds=1.0):
        self.log.append((name, now_rounded()))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1

    @property
    def names(self):
        return [name for name, _ in self.log]


async def test_as_many_run_as_there_are_slots_and_the_next_starts_when_one_ends(virtual_clock):
    """A slot that a task gives back goes to the next task at the same instant."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=2), manager.executor("a")
        for name in range(5):
            executor.schedule(work, name, slots=gpu)

    assert [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)] == work.log
    assert 0 == gpu.statistics().held == gpu.statistics().waiting
    assert 5 == gpu.statistics().handed


async def test_more_important_starts_first(virtual_clock):
    """Priority orders the tasks of one pool across executors."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, one, two = manager.slots("gpu", limit=1), manager.executor("a"), manager.executor("b")
        one.schedule(work, "first", slots=gpu)
        await asyncio.sleep(0.1)
        one.schedule(work, "low", slots=gpu)
        two.schedule(work, "high", slots=gpu, priority=2)
        two.schedule(work, "higher", slots=gpu, priority=3)

    assert ["first", "higher", "high", "low"] == work.names


async def test_task_that_waits_for_slots_holds_back_no_other(virtual_clock):
    """A task that waits for slots does not hold back tasks of lower priority without slots, or of other pools."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, cpu, executor = manager.slots("gpu", limit=1), manager.slots("cpu", limit=1), manager.executor("a")
        executor.schedule(work, "gpu 1", slots=gpu, priority=9)
        executor.schedule(work, "gpu 2", slots=gpu, priority=9)
        executor.schedule(work, "plain")
        executor.schedule(work, "cpu", slots=[cpu])

    assert [("gpu 1", 0), ("plain", 0), ("cpu", 0), ("gpu 2", 1)] == [*work.log[:3], work.log[3]]


@pytest.mark.parametrize(
    "order",
    [Fair(), Fair(by=lambda task: task.name), lambda task: task.due],
    ids=["fair", "fair by name", "a function"],
)
@pytest.mark.parametrize("keys", [0, 2])
async def test_any_order_keeps_the_slots(virtual_clock, order, keys):
    """Under any order as many tasks run as there are slots, and all tasks run."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=2), manager.executor("a", order=order)
        for name in range(6):
            executor.schedule(work, name, slots=gpu, key=name % keys if keys else None, name=f"{name % 3}")
        for name in ("free", "free too"):
            executor.schedule(work, name)
        await asyncio.sleep(0.5)
        assert {"free", "free too"} <= set(work.names)
    assert 8 == len(work.log)
    assert {0, 1, 2} == {when for _, when in work.log}
    assert 0 == gpu.statistics().held == gpu.statistics().waiting


async def test_halted_pool_starts_nothing_until_its_limit_is_raised(virtual_clock):
    """No task of a pool with limit 0 starts; the limit may be set at any time, and lowering it ends no run."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=0), manager.executor("a")
        for name in range(4):
            executor.schedule(work, name, slots=gpu)
        await asyncio.sleep(3)
        assert [] == work.log
        gpu.limit = 3
        await asyncio.sleep(0.5)
        gpu.limit = 1

    assert [(0, 3), (1, 3), (2, 3), (3, 4)] == work.log


async def test_several_pools_are_taken_in_one_step(virtual_clock):
    """The slots of several pools are taken in one step: a waiting task holds none of them."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, disk, executor = manager.slots("gpu", limit=1), manager.slots("disk", limit=1), manager.executor("a")
        for name in range(3):
            executor.schedule(work, name, slots=(gpu, disk))
            executor.schedule(work, name, slots=(disk, gpu))
        await asyncio.sleep(0.5)
        assert (1, 1) == (gpu.statistics().held, disk.statistics().held)

    assert (1, 6) == (work.most, len(work.log))
    assert (0, 0) == (gpu.statistics().held, disk.statistics().held)


@pytest.mark.parametrize("how", ["cancel", "expire"])
async def test_task_that_leaves_while_it_waits_leaves_nothing_behind(virtual_clock, how):
    """A cancelled or expired task no longer waits for its slot, which goes to the next task."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a")
        async with gpu.hold():
            gone = executor.schedule(work, "gone", slots=gpu, priority=5, expires=1 if how == "expire" else None)
            executor.schedule(work, "next", slots=gpu)
            await asyncio.sleep(0.5)
            assert 2 == gpu.statistics().waiting
            if how == "cancel":
                gone.cancel()
            await asyncio.sleep(2)
            assert 1 == gpu.statistics().waiting
        await asyncio.sleep(0.1)
        assert ["next"] == work.names
        with pytest.raises((asyncio.CancelledError, TaskExpiredError)):
            await gone

    assert (0, 0) == (gpu.statistics().held, gpu.statistics().waiting)


async def fail():
    await asyncio.sleep(0.1)
    raise OSError("no")


def fail_at_once():
    raise OSError("no")


async def test_slots_are_given_back_however_the_run_ends(virtual_clock):
    """Slots are given back when a run returns, fails, times out or is cancelled."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a")
        handles = [
            executor.schedule(fail, slots=gpu),
            executor.schedule(fail_at_once, slots=gpu),
            executor.schedule(len, "abc", slots=gpu),
            executor.schedule(work, "timed out", 99, slots=gpu, run_timeout=1),
            cancelled := executor.schedule(work, "cancelled", 99, slots=gpu),
        ]
        await asyncio.sleep(3)
        cancelled.cancel()
        found = await asyncio.gather(*handles, return_exceptions=True)

    assert [OSError, OSError, int, RunTimeoutError, asyncio.CancelledError] == [type(one) for one in found]
    assert (0, 0, 5) == (gpu.statistics().held, gpu.statistics().waiting, gpu.statistics().handed)


async def test_retry_waits_for_slots_anew(virtual_clock):
    """A retry waits for slots again: between two attempts another task may have the slot."""
    work, attempts = Work(), []

    async def fails_once():
        attempts.append(current_slot().fence)
        if len(attempts) == 1:
            raise OSError("no")

    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a")
        again = executor.schedule(fails_once, slots=gpu, retry=Retry(attempts=2, on=OSError))
        executor.schedule(work, "between", 5, slots=gpu)
        await again

    assert 2 == len(attempts)
    assert attempts[0] < attempts[1]
    assert 0 == gpu.statistics().held


@pytest.mark.parametrize("cancels", [False, True])
async def test_closing_in_the_middle_gives_everything_back(virtual_clock, cancels):
    """A drain runs the tasks that wait for slots; a cut leaves no slot held and no task waiting."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        executor = manager.executor("a")
        for name in range(3):
            executor.schedule(work, name, slots=gpu)
        await asyncio.sleep(0.5)
        await executor.shutdown(cancel_pending=cancels)
        await asyncio.sleep(0.1)
        assert (0, 0) == (gpu.statistics().held, gpu.statistics().waiting)

    assert (1 if cancels else 3) == len(work.log)


async def test_slot_does_not_idle_while_its_task_waits_for_a_rate(virtual_clock):
    """A task that waits for a permit holds no slot: another executor uses it meanwhile."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        slow, fast = manager.executor("slow", rate="1/min"), manager.executor("fast")
        slow.schedule(work, "slow 1", slots=gpu)
        await asyncio.sleep(5)
        slow.schedule(work, "slow 2", slots=gpu)
        for name in range(3):
            fast.schedule(work, name, slots=gpu)
        await asyncio.sleep(5)
        assert [0, 1, 2] == work.names[1:]

    assert "slow 2" == work.names[-1]


async def test_no_slot_is_kept_for_a_task_that_has_no_place(virtual_clock):
    """A task without a place holds no slot: else it would deadlock with the task that has the place."""
    done = []

    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a", max_concurrency=1)

        async def asks():
            await asyncio.sleep(1)
            async with gpu.hold():
                done.append("asks")

        async with gpu.hold():
            executor.schedule(done.append, "scheduled", slots=gpu)
            await asyncio.sleep(0.1)
            executor.schedule(asks)
            await asyncio.sleep(0.1)

    assert {"asks", "scheduled"} == set(done)


async def test_keys_costs_and_rates_hold_as_well(virtual_clock):
    """Limits of keys, costs, rates and slots hold together, and no task is left waiting."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=3)
        executor = manager.executor("a", rate="10/s", key_concurrency=1, resources={"tokens": "100/s"})
        for number in range(12):
            executor.schedule(
                work, number % 2, slots=gpu if number % 3 else None, key=f"k{number % 2}", cost={"tokens": 10}
            )

    assert 12 == len(work.log)
    assert 2 == work.most
    assert (0, 0) == (gpu.statistics().held, gpu.statistics().waiting)


async def test_task_reads_its_slot(virtual_clock):
    """``current_slot()`` returns the slot of the task, also in a plain function, and None outside of one."""
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a")
        slot = await executor.schedule(current_slot, slots=gpu)
        other = await executor.schedule(current_slot)

    assert ("gpu", 1, None, None) == (slot.pool, slot.fence, other, current_slot())


async def test_explain_names_the_pool_and_its_holders(virtual_clock):
    """``explain()`` names the pool that a task waits for, and its holders."""
    work = Work()
    async with ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a")
        async with gpu.hold(name="training"):
            waits = executor.schedule(work, "waits", slots=gpu)
            await asyncio.sleep(0.1)
            found = executor.explain(waits)
            assert Hold.SLOTS == found.hold
            assert "slots 'gpu': 1 of 1 held by training, 1 waiting" in found.detail


async def test_misuse_is_refused_at_the_call(virtual_clock):
    """A bad ``slots=`` is refused by name at the call, and no task is accepted."""
    async with ExecutorManager() as other, ExecutorManager() as manager:
        gpu, executor = manager.slots("gpu", limit=1), manager.executor("a")
        for wrong in ("gpu", 3, object(), ["gpu"]):
            with pytest.raises(TypeError, match="slots must be a pool of slots"):
                executor.schedule(len, "", slots=wrong)
        with pytest.raises(ValueError, match="slots must be pools of the executor's own manager"):
            executor.schedule(len, "", slots=other.slots("gpu", limit=1))
        with pytest.raises(ValueError, match="slots must name at least one pool"):
            executor.schedule(len, "", slots=[])
        with pytest.raises(ValueError, match="slots must name each pool once"):
            executor.schedule(len, "", slots=[gpu, gpu])
        with pytest.raises(TypeError, match="slots"):
            executor.schedule_many(len, [""], slots=gpu)
        assert 0 == executor.statistics().accepted


async def test_executor_without_a_manager_of_its_own_refuses_the_slots_of_others(virtual_clock):
    """A standalone executor refuses pools of a manager: nobody would release its tasks when that manager closes."""
    async with ExecutorManager() as manager, RateLimitedExecutor("alone") as executor:
        with pytest.raises(ValueError, match="own manager"):
            executor.schedule(len, "", slots=manager.slots("gpu", limit=1))


async def test_slots_given_back_for_a_costlier_task_are_not_those_of_the_task_that_starts(virtual_clock):
    """A task starts, or asks for slots anew, although a later one of its key that costs more has them given back."""
    async with ExecutorManager() as manager:
        executor = manager.executor("calls", rate="100/s", key_rate="4/s", policy=Window())
        pool = manager.slots("pool", limit=2)
        delays = [(37 * number + 1) % 11 * 0.3 for number in range(12)]
        handles = [
            executor.schedule(asyncio.sleep, 0.01, key="a", slots=pool, cost=1 + 2 * (number % 2), delay=delay)
            for number, delay in enumerate(delays)
        ]
        await asyncio.sleep(30)
        assert all(handle.done() for handle in handles)
        assert pool.statistics().held == 0
