"""The history of the dashboard: points of each executor, from its start to its end, in virtual time."""

import asyncio
import gc
import math
import weakref
from fractions import Fraction

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor.dashboard.history import POINT_COUNT, STEP_SECONDS
from ratelimited_executor.dashboard.recording import HistoryRecorder
from ratelimited_executor.exceptions import WrongLoopError


class Reader:
    """Stands for the application that reads the history; recording ends when it is collected."""


READER = Reader()


@pytest.fixture(autouse=True)
def _virtual(virtual_clock):
    """Run in virtual time, in which an hour takes no time."""


async def nothing():
    """Do nothing; tests schedule it."""


async def fail():
    """Raise an error; tests schedule it."""
    raise BufferError


async def test_points_tell_how_the_executor_stood():
    """A point has rates per second since the last point, and levels at its own time."""
    async with RateLimitedExecutor("mail", rate=10) as executor:
        recorder = HistoryRecorder(executor, READER)
        executor.schedule_many(nothing, range(1000))
        await asyncio.sleep(4 * STEP_SECONDS + 0.05)
        history = recorder.recorded["mail"].history
        assert len(history) == 3  # the first point has no earlier one to compare with
        assert history.column("started") == pytest.approx([10] * 3, abs=0.5)
        assert history.column("rate") == [10] * 3
        assert history.column("waiting") == pytest.approx([900, 850, 800], abs=5)
        assert history.column("overdue") == history.column("waiting")
        assert history.column("lateness") == pytest.approx([10, 15, 20], abs=0.5)
        assert history.column("at") == pytest.approx([history.column("at")[0] + n * STEP_SECONDS for n in range(3)])
        executor.pause()
        await asyncio.sleep(2 * STEP_SECONDS)
        last = history.last()
        assert (last.rate, last.started, last.waiting > 0) == (0, 0, True)
        assert math.isnan(last.lateness)
        executor.resume()
        executor.rate = math.inf


async def test_failures_are_counted(handler, reports):
    """A point has the failures per second since the last one."""
    handler()
    async with RateLimitedExecutor("mail", rate=4) as executor:
        recorder = HistoryRecorder(executor, READER)
        executor.schedule_many(fail, range(200), name="bad")
        await asyncio.sleep(3 * STEP_SECONDS)
        assert recorder.recorded["mail"].history.last().failed == pytest.approx(4, abs=0.3)
    reports.clear()


async def test_executors_made_later_are_recorded_and_closed_ones_forgotten():
    """An executor made later is recorded, a closed one is removed, and another of its name continues its history."""
    async with ExecutorManager() as manager:
        recorder = HistoryRecorder(manager, READER)
        assert recorder.recorded == {}
        first = manager.executor("a", rate=1)
        manager.executor("b")
        await asyncio.sleep(3 * STEP_SECONDS)
        assert list(recorder.recorded) == ["a", "b"]
        count = len(recorder.recorded["a"].history)
        await first.aclose()
        again = manager.executor("a", rate=2)
        await asyncio.sleep(3 * STEP_SECONDS)
        assert recorder.recorded["a"].executor is again
        assert len(recorder.recorded["a"].history) > count
        await again.aclose()
        await asyncio.sleep(2 * STEP_SECONDS)
        assert list(recorder.recorded) == ["b"]


async def test_recording_begins_again_after_all_have_closed():
    """When all executors have closed recording stops, and it starts again with the next executor."""
    async with ExecutorManager() as manager:
        recorder = HistoryRecorder(manager, READER)
        await manager.executor("a").aclose()
        await asyncio.sleep(10 * STEP_SECONDS)
        manager.executor("b")
        await asyncio.sleep(5 * STEP_SECONDS)
        assert len(recorder.recorded["b"].history) >= 3


async def test_executors_that_have_not_started_have_no_points():
    """An executor that has not started is listed without statistics, and recorded once it starts."""
    manager = ExecutorManager()
    manager.executor("a")
    recorder = HistoryRecorder(manager, READER)
    assert recorder.recorded["a"].statistics() is None
    async with manager:
        await asyncio.sleep(3 * STEP_SECONDS)
        assert len(recorder.recorded["a"].history) >= 1


async def test_points_of_many_executors_are_spread_over_the_step():
    """The points of many executors are taken in groups over the step, so that none delays the loop, one each step."""
    async with ExecutorManager() as manager:
        recorder = HistoryRecorder(manager, READER)
        for number in range(105):
            manager.executor(f"e{number}")
        await asyncio.sleep(6 * STEP_SECONDS)
        times = [recorded.history.column("at") for recorded in recorder.recorded.values()]
        assert {len(each) for each in times} <= {3, 4, 5}
        assert len({each[-1] for each in times}) == 6  # groups of 20
        for each in times:
            assert each[-1] - each[-2] == pytest.approx(STEP_SECONDS, rel=0.2)


async def test_an_hour_is_kept():
    """The history has the points of the last hour, and older ones are dropped."""
    async with RateLimitedExecutor("mail") as executor:
        recorder = HistoryRecorder(executor, READER)
        await asyncio.sleep((POINT_COUNT + 100) * STEP_SECONDS)
        assert len(recorder.recorded["mail"].history) == POINT_COUNT


async def test_recording_ends_with_its_reader():
    """Applications that are created and dropped, as in tests, leave no recorder on a manager that lives on."""
    async with ExecutorManager() as manager:
        executor = manager.executor("a", rate=10)
        listeners = executor._listeners._listeners
        recorders = []
        for _ in range(10):
            reader = Reader()
            recorders.append(weakref.ref(HistoryRecorder(manager, reader)))
            del reader
        await asyncio.sleep(2 * STEP_SECONDS)
        later = manager.executor("b")
        assert manager._on_executor == []
        assert executor._listeners._listeners == listeners
        assert later._listeners._listeners == listeners
        gc.collect()
        assert [recorder() for recorder in recorders] == [None] * 10


async def test_closed_executor_is_let_go():
    """A closed executor can be collected, even the one whose start began the recording, or one that never started."""
    manager = ExecutorManager()
    recorder = HistoryRecorder(manager, READER)
    executor = manager.executor("never")
    await executor.aclose()
    assert recorder.recorded == {}
    async with manager:
        executor = manager.executor("a")
        gone = weakref.ref(executor)
        manager.executor("b")
        await executor.aclose()
        del executor
        await asyncio.sleep(3 * STEP_SECONDS)
        gc.collect()
        assert gone() is None
        assert len(recorder.recorded["b"].history) >= 1


async def test_point_that_fails_ends_no_recording(monkeypatch, handler, reports):
    """An error while a point is taken is reported, and the other executors are recorded all the same."""
    handler()
    async with ExecutorManager() as manager:
        recorder = HistoryRecorder(manager, READER)
        bad, good = manager.executor("bad"), manager.executor("good")
        await asyncio.sleep(STEP_SECONDS / 2)

        def fail():
            raise BufferError

        monkeypatch.setattr(recorder.recorded["bad"], "statistics", fail)
        await asyncio.sleep(10 * STEP_SECONDS)
        assert len(recorder.recorded[good.name].history) >= 3
        assert len(recorder.recorded[bad.name].history) == 0
        assert {type(report["exception"]) for report in reports} == {BufferError}
        reports.clear()


async def test_recorder_on_another_loop_is_refused():
    """A recorder in another thread is refused, and leaves no listener behind."""
    async with ExecutorManager() as manager:
        executor = manager.executor("a")
        listeners = executor._listeners._listeners
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(HistoryRecorder, manager, READER)
        assert (manager._on_executor, executor._listeners._listeners) == ([], listeners)
