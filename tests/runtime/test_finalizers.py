"""Finalizers of a task's objects may run code in the middle of starts, between one and the next."""

import asyncio
import gc
import weakref

import anyio
import pytest

from ratelimited_executor import Pacing, RateLimitedExecutor, WhenFull
from ratelimited_executor.testing import VirtualEventLoop


class Dying:
    """An object whose finalizer acts."""

    def __init__(self, act) -> None:
        self._act = act

    def step(self, log: list) -> None:
        log.append("A")

    def __del__(self) -> None:
        self._act()


ADDERS = {
    "calls": lambda executor, call, *args: executor.call_later(1.5, call, *args),
    "records": lambda executor, call, *args: executor.schedule(call, *args, delay=1.5),
}


@pytest.mark.parametrize("rate", [float("inf"), 1000])
@pytest.mark.parametrize("kind", ADDERS)
@pytest.mark.parametrize("dies", ["callable", "argument"])
async def test_finalizer_that_cancels_the_next_call_is_obeyed(virtual_clock, account, rate, kind, dies):
    """The first task's callable or argument dies, and may cancel, before the second task is taken."""
    log, box, add = [], {}, ADDERS[kind]
    async with RateLimitedExecutor("x", rate=rate, pacing=Pacing.ON_TIME) as executor:
        dying = Dying(lambda: box["second"].cancel())
        if dies == "callable":
            add(executor, dying.step, log)
        else:
            add(executor, lambda _: log.append("A"), dying)
        del dying
        box["second"] = add(executor, log.append, "B")
        add(executor, log.append, "C")
        await asyncio.sleep(3)
        assert ["A", "C"] == log
        assert (2, 1, 0) == (executor.statistics().done, executor.statistics().cancelled, executor.statistics().waiting)
        account(executor)


@pytest.mark.parametrize("dies", ["callable", "argument"])
async def test_finalizer_that_reschedules_the_next_call_moves_it(virtual_clock, account, dies):
    """A call that a finalizer reschedules runs once, at its new time."""
    log, box = [], {}
    async with RateLimitedExecutor("x") as executor:
        dying = Dying(lambda: box["second"].reschedule(0.5))
        if dies == "callable":
            executor.call_later(1.5, dying.step, log)
        else:
            executor.call_later(1.5, lambda _: log.append("A"), dying)
        del dying
        box["second"] = executor.call_later(1.5, log.append, "B")
        executor.call_later(1.5, log.append, "C")
        await asyncio.sleep(3)
        assert ["A", "C", "B"] == log
        account(executor)


@pytest.mark.parametrize("rate", [float("inf"), 1000])
@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"delay": 1.5}], ids=["plain", "priority", "delay"])
async def test_failed_task_is_freed_without_the_collector(virtual_clock, rate, options):
    """The error of a failed task keeps no frame that keeps its handle."""

    class Argument:
        pass

    def fail(argument):
        raise ValueError

    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context["message"]))
    async with RateLimitedExecutor("x", rate=rate, pacing=Pacing.ON_TIME) as executor:
        gc.collect()
        gc.disable()
        try:
            argument = Argument()
            gone = weakref.ref(argument)
            executor.schedule(fail, argument, **options)
            del argument
            await asyncio.sleep(3)
            assert gone() is None
            assert 1 == len(reports)
        finally:
            gc.enable()


@pytest.mark.parametrize("look", ["acquire_nowait", "explain"])
async def test_order_that_looks_for_itself_does_not_end_the_run(virtual_clock, look):
    """An order function that makes tasks ready by reading the executor does not end the run."""
    reports, log, handles, asked = [], [], [], []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: reports.append(context))

    def order(task):
        if not asked:
            asked.append(task)
            if look == "explain":
                executor.explain(handles[0])
            else:
                try:
                    executor.acquire_nowait()
                except anyio.WouldBlock:
                    pass
        return task.due

    async with RateLimitedExecutor("x", rate=100, order=order) as executor:
        executor.call_later(1.5, log.append, 0)
        executor.call_later(2.5, log.append, 1)
        handles.append(executor.schedule(log.append, 9, delay=2.5))
        loop.block_for(3)
        await asyncio.sleep(20)
    assert [] == reports
    assert [0, 1, 9] == sorted(log)


async def test_decision_keeps_its_time_over_a_look_of_the_order(virtual_clock):
    """A decision keeps its time even if the order function reads the executor meanwhile."""
    handles, seen = [], []

    def order(task):
        if not seen:
            seen.append(executor._engine.queue.deciding_at)
            asyncio.get_running_loop().block_for(0.01)
            executor.explain(handles[0])
            seen.append(executor._parts.controls.decided_at())
        return task.due

    async with RateLimitedExecutor("x", rate=100, order=order) as executor:
        executor.call_later(1.5, int)
        handles.append(executor.schedule(int, delay=1.5))
        await asyncio.sleep(3)
    assert seen[0] is not None
    assert seen[0] == seen[1]


async def test_explaining_a_task_that_its_order_cancels(virtual_clock):
    """A task that its order function cancels while it is being explained is explained as cancelled."""
    box = {}

    def order(task):
        box["handle"].cancel()
        return task.due

    async with RateLimitedExecutor("x", rate=1, order=order, drain_timeout=0) as executor:
        box["handle"] = executor.schedule(int, delay=0.5)
        asyncio.get_running_loop().block_for(2)
        assert "cancelled" == executor.explain(box["handle"]).state.value


@pytest.mark.parametrize("when_full", [WhenFull.WAIT, WhenFull.RAISE])
async def test_permit_at_once_needs_room_like_any_other(virtual_clock, when_full):
    """``acquire_nowait`` fails where ``acquire`` would wait for room or be refused."""
    from ratelimited_executor import BacklogFullError

    refused = {WhenFull.WAIT: anyio.WouldBlock, WhenFull.RAISE: BacklogFullError}[when_full]
    async with RateLimitedExecutor("x", max_pending=1, when_full=when_full, drain_timeout=0) as executor:
        executor.acquire_nowait()
        executor.schedule(int, delay=100)
        with pytest.raises(refused):
            executor.acquire_nowait()


@pytest.mark.parametrize("delay", [0.3, 1000.0])
def test_weak_reference_finds_nothing_to_cancel_in_an_executor_that_is_collected(delay):
    """A waiting task reached by a weak reference while its executor is collected cancels nothing."""
    references, answers = [], []

    def cancel_all(_):
        answers.extend(handle.cancel() for handle in (reference() for reference in references) if handle is not None)

    async def leave_it_open():
        executor = RateLimitedExecutor("x")
        await executor.start()
        executor.schedule(int, delay=delay)
        for _ in range(10):
            references.append(weakref.ref(executor.schedule(int, delay=delay), cancel_all))

    def run():
        loop = VirtualEventLoop()
        loop.run_until_complete(leave_it_open())
        loop.close()

    gc.collect()
    gc.disable()
    try:
        run()
        gc.collect()
    finally:
        gc.enable()
    assert not any(answers)
    assert [] == [reference for reference in references if reference() is not None]


@pytest.mark.parametrize("face", ["call_later", "call_soon", "execute", "schedule", "submit"])
def test_clock_that_adds_a_task_in_the_middle_of_an_addition(face):
    """The clock may run code during an addition, such as a finalizer: here it begins another interval."""
    log, acts = [], []

    class Loop(asyncio.SelectorEventLoop):
        ahead = 0.0

        def time(self):
            if acts:
                acts.pop()()
            return super().time() + self.ahead

    async def main():
        loop = asyncio.get_running_loop()
        async with RateLimitedExecutor("x") as executor:
            add = {
                "call_later": lambda: executor.call_later(0.02, log.append, "a"),
                "schedule": lambda: executor.schedule(log.append, "a", delay=0.02),
            }.get(face, lambda: getattr(executor, face)(log.append, "a"))

            def act():
                loop.ahead += 1.5
                executor.schedule(log.append, "b", delay=50.0)

            for _ in range(3):
                add()
            acts.append(act)
            add()
            assert [] == acts
            loop.ahead += 60
        return executor.statistics()

    with asyncio.Runner(loop_factory=Loop) as runner:
        statistics = runner.run(main())
    assert ["a"] * 4 + ["b"] == sorted(log)
    assert (5, 5) == (statistics.accepted, statistics.done)
