"""Cron follows the wall clock of its time zone, also when daylight saving time begins or ends, and across steps."""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ratelimited_executor import ExecutorManager, MissedTick, OnError, Pacing, RateLimitedExecutor

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")


def local(clock, zone) -> str:
    return datetime.fromtimestamp(round(clock.wall()), zone).strftime("%d %H:%M %z")


def begin(year, month, day, hour, zone) -> float:
    return datetime(year, month, day, hour, tzinfo=zone).timestamp()


async def runs(expression, zone, *, hours: float, **options) -> list[str]:
    """Run a cron task for ``hours`` of virtual time; return the times of its runs, in its time zone."""
    clock = asyncio.get_running_loop().clock
    log = []
    async with ExecutorManager(interval=60) as manager:
        executor = manager.executor("x", pacing=Pacing.ON_TIME)
        executor.schedule_cron(expression, lambda: log.append(local(clock, zone)), tz=zone, **options)
        await asyncio.sleep(hours * 3600)
    return log


@pytest.mark.virtual_time(start_wall=begin(2024, 3, 30, 12, BERLIN))
async def test_hour_that_is_skipped_loses_no_daily_run():
    """On 31 March 2024, 02:30 does not exist in Berlin: that day's run comes once the clocks have gone forward."""
    log = await runs("30 2 * * *", BERLIN, hours=48)
    assert ["31 03:00 +0200", "01 02:30 +0200"] == log


@pytest.mark.virtual_time(start_wall=begin(2024, 10, 26, 12, BERLIN))
async def test_hour_that_comes_twice_runs_a_daily_task_once():
    """On 27 October 2024, 02:30 comes twice in Berlin, and the task runs once."""
    log = await runs("30 2 * * *", BERLIN, hours=48)
    assert ["27 02:30 +0200", "28 02:30 +0100"] == log


@pytest.mark.virtual_time(start_wall=begin(2024, 10, 27, 1, UTC) + 600)
@pytest.mark.parametrize("expression", ["30 2 * * *", "50 2 * * *", "0 2 * * *", "30 2,12 * * *"])
async def test_process_that_starts_in_the_repeated_hour_waits(virtual_clock, expression):
    """At the second 02:10 in Berlin, a time of the first 02:00 to 03:00 is over, and runs next on its own."""
    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_cron(expression, int, tz=BERLIN)
        assert every.next_due > virtual_clock.wall() + 9 * 3600
        await asyncio.sleep(3600)
        assert 0 == every.run_count


@pytest.mark.virtual_time(start_wall=begin(2024, 10, 27, 0, UTC) - 60)
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (MissedTick.SKIP, ["27 02:00 +0200", "28 02:00 +0100"]),
        (MissedTick.COALESCE, ["27 02:00 +0200", "27 02:05 +0100", "28 02:00 +0100"]),
        (MissedTick.BURST, ["27 02:00 +0200", "27 02:05 +0100", "28 02:00 +0100"]),
    ],
)
async def test_run_that_lasts_into_the_repeated_hour_follows_the_policy(virtual_clock, missed, expected):
    """After a run from the first 02:00 to the second 02:05 only 02:30 is missed, and it is made up for once at most."""
    log = []

    async def run():
        log.append(local(virtual_clock, BERLIN))
        if len(log) == 1:
            await asyncio.sleep(65 * 60)

    async with ExecutorManager(interval=60) as manager:
        executor = manager.executor("x", rate="10/s", pacing=Pacing.ON_TIME)
        await executor.schedule_cron("0,30 2 * * *", run, tz=BERLIN, missed=missed, max_runs=len(expected))
    assert expected == log


@pytest.mark.virtual_time(start_wall=begin(2024, 10, 26, 20, NEW_YORK))
async def test_zones_are_their_own(virtual_clock):
    """A change of the clocks in one time zone does not affect runs in another."""
    assert ["27 02:30 -0400", "28 02:30 -0400"] == await runs("30 2 * * *", NEW_YORK, hours=36)


@pytest.mark.virtual_time(start_wall=begin(2024, 3, 31, 0, BERLIN))
async def test_every_quarter_of_an_hour_goes_on_through_the_change():
    """Runs every 15 minutes continue across a skipped hour: a day of 23 hours has 92 of them."""
    log = await runs("*/15 * * * *", BERLIN, hours=23.1)
    assert 92 <= len(log) <= 93
    assert len(set(log)) == len(log)
    assert not [entry for entry in log if entry.startswith("31 02:")]


@pytest.mark.virtual_time(start_wall=begin(2024, 10, 27, 0, BERLIN))
async def test_every_quarter_of_an_hour_goes_on_through_the_hour_that_comes_twice():
    """Runs every 15 minutes continue through a repeated hour: a day of 25 hours has 100 of them."""
    log = await runs("*/15 * * * *", BERLIN, hours=25.1)
    assert 100 <= len(log) <= 101
    assert 8 == len([entry for entry in log if entry.startswith("27 02:")])


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("0 0 1 * *", "01 00:00 +0000"), ("0 12 * * 1", "20 12:00 +0000"), ("5,10 9 * * *", "17 09:05 +0000"),
        ("0 9 * * *", "18 09:00 +0000"), ("59 23 31 5 *", "31 23:59 +0000"),
    ],
)  # fmt: skip
async def test_expression_is_met_in_utc_by_default(virtual_clock, expression, first):
    """Without ``tz`` an expression is read in UTC, and the first run is at its next time."""
    log = []
    async with ExecutorManager(interval=60) as manager:
        executor = manager.executor("x", pacing=Pacing.ON_TIME)
        every = executor.schedule_cron(expression, lambda: log.append(local(virtual_clock, UTC)), max_runs=1)
        due = every.next_due
        await every
    assert [first] == log
    assert first == datetime.fromtimestamp(due, UTC).strftime("%d %H:%M %z")


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
@pytest.mark.parametrize("step", [-3600, -90, 90, 3600, 86_400])
async def test_step_of_the_clock_moves_what_follows(virtual_clock, step):
    """After a step, times follow the new clock: a time stepped over runs once, and a repeated time not again."""
    seen = []
    async with RateLimitedExecutor("x") as executor:
        executor.schedule_cron("*/10 * * * *", lambda: seen.append(virtual_clock.wall()))
        await asyncio.sleep(1500)
        virtual_clock.step_wall(step)
        before = len(seen)
        await asyncio.sleep(3 * 3600)
    assert 2 == before
    on_time = [wall for wall in seen if wall % 600 < 1.01]
    assert len(on_time) >= len(seen) - 1  # the run that was stepped over is late
    assert len(seen) == len({round(wall) for wall in seen})
    assert len(seen) >= (3 * 3600 + min(0, step)) // 600


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (MissedTick.SKIP, ["01", "05", "06"]),
        (MissedTick.COALESCE, ["01", "04", "05"]),
        (MissedTick.BURST, ["01", "04", "04", "04"]),
    ],
)
async def test_minutes_missed_by_a_long_run_follow_the_policy(virtual_clock, missed, expected):
    """Times missed during a run from minute 1 to 4.5 follow the policy for missed ticks."""
    log = []

    async def run():
        log.append(datetime.fromtimestamp(virtual_clock.wall(), UTC).strftime("%M"))
        if len(log) == 1:
            await asyncio.sleep(210)

    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        await executor.schedule_cron("* * * * *", run, missed=missed, max_runs=len(expected))
    assert expected == log


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
async def test_overlap_where_allowed_keeps_every_minute(virtual_clock):
    """With ``allow_overlap``, runs longer than a minute overlap, and no minute is missed."""
    starts = []

    async def run():
        starts.append(round(virtual_clock.wall()) % 3600)
        await asyncio.sleep(150)

    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_cron("* * * * *", run, allow_overlap=True, max_runs=5)
        await asyncio.sleep(290)
        assert 2 == executor.statistics().running
        await every
    assert [60, 120, 180, 240, 300] == pytest.approx(starts, abs=1)


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
@pytest.mark.parametrize("on_error", list(OnError))
async def test_failing_run_goes_on_or_stops(virtual_clock, on_error):
    """A failing run ends the repetition with ``STOP``, and is reported with ``CONTINUE``, as in other repetitions."""
    reports, count = [], 0
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["exception"]))

    def run():
        nonlocal count
        count += 1
        raise ValueError(count)

    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_cron("* * * * *", run, on_error=on_error, max_runs=3)
        if on_error is OnError.STOP:
            with pytest.raises(ValueError, match="1"):
                await every
        else:
            await every
    assert (1 if on_error is OnError.STOP else 3) == count
    assert [ValueError] * (0 if on_error is OnError.STOP else 3) == list(map(type, reports))


async def test_expression_that_is_never_met_is_refused(virtual_clock):
    """30 February is refused; the search for it is not endless."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(ValueError, match="expression must be a cron expression"):
            executor.schedule_cron("0 0 30 2 *", int)
        assert 0 == executor.statistics().accepted


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
async def test_cancelled_cron_leaves_nothing(virtual_clock, account):
    """A cancelled cron task leaves neither a task nor a timer."""
    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_cron("0 0 1 1 *", int, name="yearly")
        await asyncio.sleep(1)
        assert (1, "yearly") == (executor.statistics().waiting, every.name)
        assert datetime(2025, 1, 1, tzinfo=UTC).timestamp() == every.next_due
        assert every.cancel()
        assert not every.cancel()
        account(executor)
        await asyncio.sleep(2)
        assert (0, None) == (executor.statistics().waiting, every.next_due)
        assert [] == [one for one in asyncio.get_running_loop()._scheduled if not one.cancelled()]


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
async def test_paused_cron_does_not_pile_up(virtual_clock):
    """After a pause of an hour one run makes up for all that were held back, and the next comes at its regular time."""
    seen = []
    async with RateLimitedExecutor("x") as executor:
        executor.schedule_cron("*/5 * * * *", lambda: seen.append(virtual_clock.wall() - begin(2024, 5, 17, 9, UTC)))
        await asyncio.sleep(400)
        executor.pause()
        await asyncio.sleep(3600)
        executor.resume()
        await asyncio.sleep(400)
    assert [300, 4000, 4200] == pytest.approx(seen, abs=1.01)


@pytest.mark.virtual_time(start_wall=begin(2024, 5, 17, 9, UTC))
async def test_day_of_minutes_is_cheap_and_complete(virtual_clock):
    """A cron task of every minute runs 1440 times in a day, never early."""
    seen = []
    async with ExecutorManager(interval=10) as manager:
        executor = manager.executor("x", pacing=Pacing.ON_TIME, rate=5)
        await executor.schedule_cron("* * * * *", lambda: seen.append(virtual_clock.wall()), max_runs=1440)
    base = begin(2024, 5, 17, 9, UTC)
    assert [60 * n for n in range(1, 1441)] == pytest.approx([wall - base for wall in seen], abs=1.01)
    assert all(wall - base >= 60 * n - 1e-6 for n, wall in enumerate(seen, start=1))
    assert timedelta(days=1).total_seconds() == pytest.approx(seen[-1] - base, abs=1.01)
