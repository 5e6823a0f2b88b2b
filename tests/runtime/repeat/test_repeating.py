"""Repeating tasks: phase, missed ticks, errors, overlap, ends."""

import asyncio
import contextlib
import contextvars
import gc
import weakref
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ratelimited_executor import ExecutorManager, MissedTick, OnError, Pacing, RateLimitedExecutor
from ratelimited_executor.exceptions import WrongLoopError

from ...helpers import now_rounded


async def test_fixed_rate_keeps_its_phase(virtual_clock):
    """Due times are periods after the first one; starts are spread within the interval only for long periods."""
    starts = []
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(0.3)
        handle = executor.schedule_at_fixed_rate(lambda: starts.append(now_rounded()), period=0.25, initial_delay=0.1)
        await asyncio.sleep(1.2)
        assert 5 == handle.run_count
        assert virtual_clock.wall() - 1.5 + 1.65 == pytest.approx(handle.next_due)
    assert [0.4, 0.65, 0.9, 1.15, 1.4] == starts


async def test_fixed_delay_counts_from_the_end(virtual_clock):
    """The next run is due a delay after the end of the previous one."""
    starts = []

    async def work():
        starts.append(now_rounded())
        await asyncio.sleep(0.5)

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_with_fixed_delay(work, delay=0.25)
        await asyncio.sleep(2.9)
    assert [0.0, 0.75] == starts[:2]
    assert all(0.75 <= after - before <= 1.75 for before, after in zip(starts, starts[1:], strict=False))


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (MissedTick.SKIP, [0, 40, 50, 60]),
        (MissedTick.COALESCE, [0, 35, 40, 50, 60]),
        (MissedTick.BURST, [0, 35, 35, 35, 40, 50, 60]),
    ],
)
async def test_missed_ticks_follow_their_policy(virtual_clock, missed, expected):
    """A run from 0 to 35 with a period of 10 misses three ticks, which follow their policy."""
    starts = []

    async def work():
        starts.append(int(now_rounded()))
        if len(starts) == 1:
            await asyncio.sleep(35)

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_at_fixed_rate(work, period=10, missed=missed)
        await asyncio.sleep(65)
    assert expected == starts


async def test_error_is_reported_and_the_repetition_goes_on(handler):
    """``CONTINUE`` reports each failure to the loop's handler, and the repetition continues."""
    reports = handler()

    def bad():
        raise ValueError("run")

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(bad, period=1)
        await asyncio.sleep(2.5)
        assert 3 == handle.run_count
    assert ["run"] * 3 == [str(report["exception"]) for report in reports]


async def test_error_may_stop_the_repetition(handler):
    """``STOP`` ends the repetition, and its handle raises the exception of the run."""
    reports = handler()

    def bad():
        raise ValueError("run")

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(bad, period=1, on_error=OnError.STOP)
        with pytest.raises(ValueError, match="run"):
            await handle
        await asyncio.sleep(5)
        assert (1, True, False, None) == (handle.run_count, handle.done(), handle.cancelled(), handle.next_due)
    assert [] == reports


async def test_max_runs_end_the_repetition(virtual_clock):
    """The handle is done after ``max_runs`` runs."""
    starts = []
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(lambda: starts.append(now_rounded()), period=2, max_runs=3)
        await handle
        assert [0, 2, 4] == [int(start) for start in starts]
        assert handle.done()
        assert not handle.cancel()


@pytest.mark.parametrize(("allow", "peak"), [(False, 1), (True, 4)])
async def test_runs_overlap_only_where_allowed(virtual_clock, allow, peak):
    """Without ``allow_overlap`` the next run is scheduled when the previous one has ended."""
    running, most = 0, 0

    async def work():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(3.5)
        running -= 1

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_at_fixed_rate(work, period=1, allow_overlap=allow)
        await asyncio.sleep(20)
    assert peak == most


async def test_cancel_ends_the_repetition(virtual_clock, account):
    """Cancelling starts no new run; the one in progress continues, or is cancelled too if asked."""
    ended = []

    async def work():
        try:
            await asyncio.sleep(3)
            ended.append("done")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with RateLimitedExecutor("x") as executor:
        for running in (False, True):
            handle = executor.schedule_at_fixed_rate(work, period=10)
            await asyncio.sleep(1)
            assert handle.cancel(running=running)
            assert handle.cancelled()
            with pytest.raises(asyncio.CancelledError):
                await handle
            await asyncio.sleep(15)
            assert 1 == handle.run_count
            account(executor)
    assert ["done", "cancelled"] == ended


async def test_runs_do_not_pile_up_while_paused(virtual_clock):
    """A pause of a minute leaves one occurrence waiting, not sixty."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(int, period=1)
        await asyncio.sleep(0.5)
        executor.pause()
        await asyncio.sleep(60)
        assert 1 == executor.statistics().waiting
        executor.resume()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 2 == handle.run_count


async def test_expired_occurrence_is_followed_by_the_next(virtual_clock):
    """An expired occurrence is one missed run, and does not end the repetition."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(int, period=2, expires=0.5)
        await asyncio.sleep(1)
        executor.pause()
        await asyncio.sleep(9)
        executor.resume()
        await asyncio.sleep(10)
        assert executor.statistics().expired >= 1
        assert handle.run_count >= 5


async def test_repeating_goes_before_others_of_its_priority(virtual_clock):
    """Repeating tasks start before others of equal priority."""
    log = []
    async with RateLimitedExecutor("x", rate=1) as executor:
        executor.pause()
        executor.submit(log.append, "now")
        executor.schedule_at_fixed_rate(log.append, "repeating", period=100)
        await asyncio.sleep(1)
        executor.resume()
        await asyncio.sleep(5)
    assert ["repeating", "now"] == log


@pytest.mark.parametrize("tz", [ZoneInfo("Europe/Berlin"), "Europe/Berlin"])
async def test_cron_follows_the_wall_clock(virtual_clock, tz):
    """Runs come at the times of the expression, within an interval, in its time zone."""
    times = []

    def note():
        times.append(datetime.fromtimestamp(virtual_clock.wall(), UTC).strftime("%H:%M"))

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_cron("*/20 * * * *", note, max_runs=4)
        zone = executor.schedule_cron("30 9 * * *", note, tz=tz, max_runs=1)
        await zone
    assert ["00:20", "00:40", "01:00", "01:20", "08:30"] == times


@pytest.mark.parametrize("step", [-1800, 1800])
async def test_cron_follows_a_step_of_the_wall_clock(virtual_clock, step):
    """After a step, runs follow the new wall clock, and a step back repeats none."""
    times = []

    def note():
        times.append(virtual_clock.wall() % 3600)

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_cron("0 * * * *", note)
        await asyncio.sleep(600)
        virtual_clock.step_wall(step)
        await asyncio.sleep(7300)
    assert len(times) >= 1 + (step > 0)
    assert all(second < 2 for second in times)


@pytest.mark.parametrize("missed", list(MissedTick))
async def test_cron_times_missed_by_a_long_run_follow_the_policy(virtual_clock, missed):
    """Cron times missed during a long run follow the policy for missed ticks."""
    minutes = []

    async def work():
        minutes.append(int(virtual_clock.wall() % 3600 // 60))
        if len(minutes) == 1:
            await asyncio.sleep(35 * 60)

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_cron("*/10 * * * *", work, missed=missed)
        await asyncio.sleep(3300)
    expected = {"SKIP": [10, 50], "COALESCE": [10, 45, 50], "BURST": [10, 45, 45, 45, 50]}[missed.name]
    assert expected == minutes


# Ticks whose time passed before their run could start.


@pytest.mark.parametrize(
    ("missed", "starts"),
    [
        (MissedTick.SKIP, [0.0, 35.0, 40.0]),
        (MissedTick.COALESCE, [0.0, 35.0, 40.0]),
        (MissedTick.BURST, [0.0, 35.0, 35.0, 35.0, 40.0]),
    ],
)
async def test_a_run_held_back_by_a_pause_stands_for_what_the_policy_says(virtual_clock, missed, starts):
    """A run held back by a pause stands for all due ticks with COALESCE, and is the first of them with BURST."""
    seen = []
    async with RateLimitedExecutor("pause", pacing=Pacing.ON_TIME) as executor:
        begin = virtual_clock.monotonic()
        repeating = executor.schedule_at_fixed_rate(
            lambda: seen.append(round(virtual_clock.monotonic() - begin, 6)), period=10, missed=missed
        )
        await asyncio.sleep(5)
        executor.pause()
        await asyncio.sleep(30)
        executor.resume()
        await asyncio.sleep(9)
        repeating.cancel()

    assert starts == seen


@pytest.mark.parametrize("interval", [1.0, 0.6])
async def test_spreading_costs_no_tick_of_a_period_near_the_interval(virtual_clock, interval):
    """Ten tasks with a period near the interval and long runs miss no tick."""
    counts = [0] * 10

    async def run(index):
        counts[index] += 1
        await asyncio.sleep(0.3)

    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("spread")
        repeating = [executor.schedule_at_fixed_rate(run, index, period=1) for index in range(10)]
        await asyncio.sleep(20.5)
        for handle in repeating:
            handle.cancel(running=True)

    assert [21] * 10 == counts


async def test_spreading_costs_no_time_of_a_cron_expression(virtual_clock):
    """With an interval of an hour, a cron task of every five minutes still runs every five minutes."""
    count = 0

    def run():
        nonlocal count
        count += 1

    async with ExecutorManager(interval=3600) as manager:
        executor = manager.executor("cron")
        repeating = executor.schedule_cron("*/5 * * * *", run)
        await asyncio.sleep(6 * 3600 + 10)
        repeating.cancel()

    assert 72 == count


@pytest.mark.parametrize(
    ("kind", "missed", "expected"),
    [
        ("rate", MissedTick.SKIP, [0, 10, 60, 70]),
        ("rate", MissedTick.COALESCE, [0, 10, 55, 60, 70]),
        ("rate", MissedTick.BURST, [0, 10, 55, 55, 55, 55, 60, 70]),
        ("cron", MissedTick.SKIP, [0, 60, 360, 420]),
        ("cron", MissedTick.COALESCE, [0, 60, 330, 360, 420]),
        ("cron", MissedTick.BURST, [0, 60, 330, 330, 330, 330, 360, 420]),
        ("delay", None, [0, 10, 55, 65, 75]),
    ],
)
async def test_times_of_a_pause_are_missed(virtual_clock, account, kind, missed, expected):
    """No run starts while paused; the times that have passed follow the policy, and with a fixed delay none is missed."""
    starts = []
    unit = 6 if kind == "cron" else 1

    def work():
        starts.append(round(now_rounded()))

    expires = None if missed is MissedTick.BURST else 5  # the one run for all missed ones does not expire
    async with RateLimitedExecutor("x", expires=expires) as executor:
        if kind == "rate":
            handle = executor.schedule_at_fixed_rate(work, period=10, missed=missed)
        elif kind == "cron":
            virtual_clock.step_wall(60 - virtual_clock.wall() % 60 - 1e-3)
            handle = executor.schedule_cron("* * * * *", work, missed=missed)
        else:
            handle = executor.schedule_with_fixed_delay(work, delay=10)
        await asyncio.sleep(15 * unit)
        assert handle.next_due is not None
        assert handle.pause()
        assert handle.pause()  # a second time changes nothing
        assert (True, None, 0) == (handle.is_paused, handle.next_due, executor.statistics().waiting)
        assert "paused" in repr(handle)
        await asyncio.sleep(40 * unit)
        account(executor)
        assert 2 == handle.run_count
        assert handle.resume()
        assert handle.resume()
        assert "active" in repr(handle)
        await asyncio.sleep(22 * unit)
        account(executor)
    assert expected == starts


@pytest.mark.parametrize("missed", list(MissedTick))
async def test_pause_that_misses_nothing_changes_nothing(virtual_clock, missed):
    """A run that is due after the pause keeps its due time, under each policy."""
    starts = []
    async with RateLimitedExecutor("x") as executor:
        rate = executor.schedule_at_fixed_rate(
            lambda: starts.append(now_rounded()), period=10, initial_delay=4, missed=missed, max_runs=4
        )
        delay = executor.schedule_with_fixed_delay(
            lambda: starts.append(now_rounded()), delay=10, initial_delay=5, max_runs=3
        )
        for handle in (rate, delay, rate):
            handle.pause()
        await asyncio.sleep(3)
        assert handle.resume()
        assert delay.resume()
        for _ in range(5):
            await asyncio.sleep(3.5)
            before = handle.next_due
            assert handle.pause() is handle.resume() is True
            assert before == handle.next_due
        await rate
        await delay
    assert [4, 5, 14, 15, 24, 25, 34] == starts


@pytest.mark.parametrize("allow_overlap", [False, True])
async def test_pause_lets_a_run_go_on(virtual_clock, account, allow_overlap):
    """A run in progress continues through a pause, also one that pauses itself, and its end places no other run."""
    starts = []

    async def work():
        starts.append(round(now_rounded()))
        if len(starts) == 1:
            handle.pause()
        await asyncio.sleep(15)
        starts.append(-round(now_rounded()))

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(work, period=10, allow_overlap=allow_overlap, max_runs=2)
        await asyncio.sleep(35)
        assert ([0, -15], False) == (starts, handle.done())
        account(executor)
        handle.resume()
        await handle
        account(executor)
    assert [0, -15, 40, -55] == starts
    assert (False, False) == (handle.pause(), handle.resume())  # it has ended


async def test_pause_during_the_last_run_lets_the_repetition_end(virtual_clock):
    """A repetition that is paused during its last run ends with it."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(asyncio.sleep, 5, period=10, max_runs=1)
        await asyncio.sleep(1)
        handle.pause()
        await handle
        assert (5, "ended") == (now_rounded(), repr(handle).split()[2])


@pytest.mark.parametrize("how", ["leave", "cancel", "stop"])
async def test_paused_repetition_can_end(virtual_clock, account, how):
    """A paused repetition is cancelled by itself or by its executor, and may still fail."""
    async with RateLimitedExecutor("x") as executor:

        async def work():
            await asyncio.sleep(1)
            raise OSError

        handle = executor.schedule_at_fixed_rate(work, period=10, on_error=OnError.STOP)
        if how == "stop":
            await asyncio.sleep(0.5)
        handle.pause()
        if how == "cancel":
            assert handle.cancel()
        elif how == "stop":
            with pytest.raises(OSError):
                await handle
            assert handle.resume() is False
    account(executor)
    assert handle.done()
    assert handle.cancelled() == (how != "stop")
    assert not handle.is_paused
    assert (False, False) == (handle.pause(), handle.resume())
    assert 0 == executor.statistics().waiting


async def test_pause_from_another_thread_is_refused(virtual_clock):
    """Pausing and resuming from another thread raises and changes nothing."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule_at_fixed_rate(int, period=10)
        for method in (handle.pause, handle.resume):
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(method)
        assert not handle.is_paused


@pytest.mark.parametrize("end", ["cancelled", "last run"])
async def test_handle_of_an_ended_repetition_keeps_nothing_alive(virtual_clock, end):
    """Once a repetition has ended, with its last run, its handle keeps neither function, arguments nor context alive."""

    class Value:
        """Something to refer to."""

    variable = contextvars.ContextVar("variable")

    async def begin(executor):
        async def work(_):
            await asyncio.sleep(0.1)

        value, in_context = Value(), Value()
        variable.set(in_context)
        handle = executor.schedule_at_fixed_rate(work, value, period=1, max_runs=2 if end == "last run" else None)
        return handle, [weakref.ref(each) for each in (work, value, in_context)]

    async with RateLimitedExecutor("x") as executor:
        handle, refs = await asyncio.create_task(begin(executor))
        await asyncio.sleep(0.05)
        gc.collect()
        assert all(ref() is not None for ref in refs)
        if end == "cancelled":
            handle.cancel()
            assert refs[1]() is not None  # of the run that continues
        with contextlib.suppress(asyncio.CancelledError):
            await handle
        await asyncio.sleep(2)
        gc.collect()
        assert [None] * 3 == [ref() for ref in refs]
        assert "ended" in repr(handle) or "cancelled" in repr(handle)
