"""``at=`` follows the wall clock across steps of every size, on every face that takes it."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor, TaskState
from ratelimited_executor._runtime.time import clock as clock_module

STEPS = [-3600, -61, -1.5, -0.3, 0.3, 1.5, 61, 3600]


def stamp(log: list) -> None:
    """Log the time by both clocks."""
    loop = asyncio.get_running_loop()
    log.append((loop.time(), loop.clock.wall()))


@pytest.mark.parametrize("face", ["schedule", "datetime", "schedule_many", "schedule_threadsafe"])
@pytest.mark.parametrize("offset", [0.2, 1.7, 100, 7200])
async def test_task_starts_when_the_wall_clock_shows_its_time(virtual_clock, face, offset):
    """Without a step a task starts at its time of day: never early, and less than an interval late."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(0.4)
        virtual_clock.step_wall(round(virtual_clock.wall(), 3) - virtual_clock.wall())
        at = virtual_clock.wall() + offset
        if face == "schedule":
            handle = executor.schedule(stamp, log, at=at)
            assert at == handle.due
        elif face == "datetime":
            zone = timezone(timedelta(hours=-7))
            executor.schedule(stamp, log, at=datetime.fromtimestamp(at, zone))
        elif face == "schedule_many":
            executor.schedule_many(lambda _: stamp(log), [1], at=at)
        else:
            executor.schedule_threadsafe(stamp, log, at=at)
            await asyncio.sleep(0)
    ((_, wall),) = log
    assert -1e-6 <= wall - at < 1 + 1e-6  # a datetime has whole microseconds


@pytest.mark.parametrize("rate", [float("inf"), 100])
@pytest.mark.parametrize("interval", [0.5, 1, 2, 10, 60])
async def test_wall_tasks_are_spread_as_others(virtual_clock, interval, rate):
    """Tasks with ``at=`` are spread like those with a delay, in intervals of any width."""
    starts = {"at": [], "delay": []}
    async with ExecutorManager(interval=interval) as one, ExecutorManager(interval=interval) as other:  # of one phase
        for manager, (face, log) in zip((one, other), starts.items(), strict=True):
            executor = manager.executor(face, rate=rate)
            executor.schedule(int, delay=1.05 * interval)
            for number in range(8):
                delay = interval * (1.5 + number / 100)
                time = {"delay": delay} if face == "delay" else {"at": virtual_clock.wall() + delay}
                executor.schedule(lambda log=log: log.append(asyncio.get_running_loop().time()), **time)
        await asyncio.sleep(3 * interval)
    assert 8 == len(starts["at"])
    assert starts["delay"] == pytest.approx(starts["at"], abs=1e-5)
    assert 1.5 * interval <= starts["at"][0] <= starts["at"][-1] < 2 * interval


@pytest.mark.parametrize("face", ["schedule", "schedule_many"])
async def test_due_time_stands_when_the_loop_is_blocked(virtual_clock, face):
    """On a blocked loop, lateness and deadline count from the due time, and not from when the loop continues."""
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        at = virtual_clock.wall() + 2.1
        if face == "schedule":
            handles = [executor.schedule(int, at=at, expires=expires) for expires in (0.2, 60)]
        else:
            handles = [executor.schedule_many(int, [0], at=at, expires=expires, results=True) for expires in (0.2, 60)]
        loop.call_at(1.9, loop.block_for, 30)
        await asyncio.sleep(40)
        assert (1, 1) == (executor.statistics().expired, executor.statistics().done)
        if face == "schedule":
            assert [TaskState.EXPIRED, TaskState.DONE] == [handle.state for handle in handles]
            assert 29.8 == pytest.approx(handles[1].lateness, abs=1e-5)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("ahead", [5, 10.5, 5000])
async def test_task_of_a_later_interval_follows_a_step(virtual_clock, step, ahead):
    """After a step a task starts when the clock shows its time, or at once if stepped over, within two intervals."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        at = virtual_clock.wall() + ahead
        handle = executor.schedule(stamp, log, at=at)
        batch = executor.schedule_many(lambda _: stamp(log), [1, 2], at=at)
        await asyncio.sleep(2.25)
        virtual_clock.step_wall(step)
        due = max(2.25, virtual_clock.monotonic() + at - virtual_clock.wall())
    await batch
    assert 3 == len(log)
    for time, wall in log:
        assert wall >= at - 1e-6
        assert due - 1e-6 <= time < due + 2 + 1e-6, (due, log)
    assert handle.lateness >= 0
    assert at == handle.due


@pytest.mark.parametrize("step", STEPS)
async def test_step_within_the_interval_of_a_task_moves_it_no_more(virtual_clock, step):
    """A step within the interval of a task does not move it: the clock is read once an interval."""
    log = []
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        executor.schedule(stamp, log, at=virtual_clock.wall() + 5.75)
        await asyncio.sleep(5.25)
        virtual_clock.step_wall(step)
    assert [5.75] == pytest.approx([time for time, _ in log])


@pytest.mark.parametrize("step", STEPS)
async def test_steps_there_and_back_lose_and_double_nothing(virtual_clock, account, step):
    """After steps back and forth every task starts once, and not before the clock has shown its time."""
    log = {}
    async with RateLimitedExecutor("x", drain_timeout=20_000) as executor:
        base = virtual_clock.wall()
        shown, early = [base], []

        def run(number, at):
            if max(*shown, virtual_clock.wall()) + 1 < at:  # tasks taken up by an interval start in it
                early.append((number, at))
            log[number] = log.get(number, 0) + 1

        for number in range(200):
            executor.schedule(run, number, base + number * 0.37, at=base + number * 0.37)
        for _ in range(6):
            await asyncio.sleep(3.3)
            shown.append(virtual_clock.wall())
            for part in (step, -step / 2, -step / 2):
                virtual_clock.step_wall(part)
                shown.append(virtual_clock.wall())
                await asyncio.sleep(0.6)
                shown.append(virtual_clock.wall())
                account(executor)
    assert dict.fromkeys(range(200), 1) == log
    assert [] == early
    account(executor)


async def test_what_was_stepped_over_keeps_rate_and_order(virtual_clock, audit):
    """Tasks stepped over start at the rate, and none is lost."""
    log = []
    async with RateLimitedExecutor("x", rate=50) as executor:
        base = virtual_clock.wall()
        for number in range(300):
            executor.schedule(lambda n=number: (order.append(n), stamp(log)), at=base + 600 + number)
        order = []
        await asyncio.sleep(1.5)
        virtual_clock.step_wall(3600)
    assert audit([time for time, _ in log], 50).ok
    assert 300 == len(log)
    assert log[-1][0] == pytest.approx(2 + 299 / 50, abs=0.1)
    assert sorted(order) == list(range(300))


@pytest.mark.parametrize("at", [0, -1e9, -1e300, "now", "epoch"])
async def test_time_that_has_passed_is_due_now(virtual_clock, at):
    """A task with ``at=`` in the past is due now, as in asyncio."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(0.3)
        moment = {"now": virtual_clock.wall(), "epoch": datetime(1970, 1, 1, tzinfo=UTC)}.get(at, at)
        await executor.schedule(stamp, log, at=moment)
        assert 1 == (await executor.schedule_many(lambda _: stamp(log), [1], at=moment)).done
    assert [0.3, 0.3] == [time for time, _ in log]


@pytest.mark.parametrize("step", [-3600, 3600])
async def test_deadline_of_a_wall_task_moves_with_it(virtual_clock, step):
    """``expires`` counts from when the clock shows the due time, also after a step."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        at = virtual_clock.wall() + 4000
        kept = executor.schedule(stamp, log, at=at, expires=5)
        await asyncio.sleep(2.5)
        virtual_clock.step_wall(step)
    assert TaskState.DONE is kept.state


async def test_wall_task_expires_while_paused(virtual_clock):
    """A task with ``at=`` expires within an interval of its deadline while paused."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.pause()
        handle = executor.schedule(int, at=virtual_clock.wall() + 10, expires=3)
        await asyncio.sleep(12.9)
        assert TaskState.WAITING is handle.state
        await asyncio.sleep(1.2)
        assert TaskState.EXPIRED is handle.state


@pytest.mark.parametrize("when", ["lying", "due", "started"])
async def test_wall_task_can_be_cancelled(virtual_clock, account, when):
    """A task with ``at=`` can be cancelled while it waits, once it is due, and while it runs."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        if when == "due":
            executor.pause()
        at = virtual_clock.wall() + 5
        handle = executor.schedule(asyncio.sleep, 100, at=at)
        batch = executor.schedule_many(asyncio.sleep, [100, 100], at=at)
        await asyncio.sleep(1 if when == "lying" else 7)
        assert handle.cancel()
        assert (0 if when == "started" else 2) == batch.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        account(executor)
        assert TaskState.CANCELLED is handle.state
        assert 0 == executor.statistics().waiting


@pytest.mark.parametrize("interval", [0.1, 1, 60])
async def test_wall_tasks_are_read_in_any_interval(virtual_clock, interval):
    """A step is noticed within an interval, whatever its width."""
    log = []
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("x", pacing=Pacing.ON_TIME)
        at = virtual_clock.wall() + 1000
        executor.schedule(stamp, log, at=at)
        await asyncio.sleep(interval * 2.5)
        virtual_clock.step_wall(990)
    ((time, wall),) = log
    assert wall >= at - 1e-6
    assert time <= interval * 2.5 + max(10, interval) + interval


async def test_idle_wheel_wakes_the_loop_no_more(virtual_clock):
    """Once no task with ``at=`` waits, the executor sets no timer."""
    async with RateLimitedExecutor("x") as executor:
        await executor.schedule(int, at=virtual_clock.wall() + 3)
        kept = executor.schedule(int, at=virtual_clock.wall() + 3000)
        await asyncio.sleep(5)
        kept.cancel()
        await asyncio.sleep(5)
        loop = asyncio.get_running_loop()
        assert [] == [timer for timer in loop._scheduled if not timer.cancelled()]


async def test_step_back_does_not_run_a_task_twice(virtual_clock):
    """A time of day that comes twice runs its task once."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        at = virtual_clock.wall() + 5
        executor.schedule(stamp, log, at=at)
        await asyncio.sleep(7)
        virtual_clock.step_wall(-60)
        await asyncio.sleep(120)
    assert 1 == len(log)


@pytest.mark.parametrize("step", [-20, 0, 20, 100])
async def test_explanation_of_a_wall_task_comes_true_after_a_step(virtual_clock, step):
    """An explained start comes true after a step, and is given on the timeline, as starts are."""
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        at = virtual_clock.wall() + 50.5
        handle = executor.schedule(int, at=at)
        before = executor.explain(handle)
        assert ("due", pytest.approx(at)) == (before.hold.value, before.expected_start)
        await asyncio.sleep(1.5)
        virtual_clock.step_wall(step)
        after = executor.explain(handle)
        assert "due" == after.hold.value
        assert at == handle.due
        await handle
        assert handle.started_at == pytest.approx(after.expected_start, abs=1e-5)


async def test_stepped_over_task_that_waits_for_a_permit_is_explained(virtual_clock):
    """A task that was stepped over and waits for a permit is explained by the rate."""
    async with RateLimitedExecutor("x", rate="1/100s", drain_timeout=0) as executor:
        executor.submit(int)
        handle = executor.schedule(int, at=virtual_clock.wall() + 1000)
        await asyncio.sleep(1.5)
        virtual_clock.step_wall(3600)
        await asyncio.sleep(1.5)
        assert ("rate", 0) == (executor.explain(handle).hold.value, executor.explain(handle).position)


@pytest.mark.parametrize("pauses", [[0.0], [0.3, 0.0], [0.01, 2.0, 0.0]])
def test_pause_between_two_clocks_is_no_suspension(monkeypatch, pauses) -> None:
    """A pause of the thread between reading two clocks does not count as a suspension: they are read again."""
    now, suspended, left = [1000.0], 7.0, list(pauses)

    def boot_time(_clock: int) -> float:
        told = now[0] + suspended
        now[0] += left.pop(0) if left else 0.0
        return told

    monkeypatch.setattr(clock_module.time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock_module.time, "clock_gettime", boot_time)
    assert suspended == clock_module.SystemClock.suspended()
    assert [] == left


def test_thread_that_is_always_put_aside_tells_the_narrowest_reading(monkeypatch) -> None:
    """If every reading is interrupted, the number of readings is bounded, and the shortest pause counts."""
    now, pauses = [1000.0], iter([0.5, 0.01] + [0.3] * 1000)

    def later(_clock: int) -> float:
        now[0] += next(pauses)  # the clock is read after the pause, so that all of the pause looks like a suspension
        return now[0]

    monkeypatch.setattr(clock_module.time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock_module.time, "clock_gettime", later)
    assert 0.01 == pytest.approx(clock_module.SystemClock.suspended())


def test_system_without_a_boot_clock_tells_of_no_suspension(monkeypatch) -> None:
    """Without a boot clock, as on macOS and Windows, the suspended time is 0."""
    monkeypatch.delattr(clock_module.time, "CLOCK_BOOTTIME", raising=False)
    assert 0.0 == clock_module.SystemClock.suspended()
