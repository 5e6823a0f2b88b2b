"""Each occurrence of a repetition runs once, over all processes, clocks and restarts."""

import asyncio
import itertools
from datetime import UTC, datetime

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry, RetryLater
from ratelimited_executor._runtime.durable.repeating import Repetition, fixed_times
from ratelimited_executor._runtime.repeat.cron import cron_times
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore
from ratelimited_executor.exceptions import StoreUnavailableError

from ...helpers import now
from .conftest import Process


def wall(store) -> float:
    return store._clock.wall()


async def test_each_occurrence_runs_once_over_three_processes(store):
    """Three processes run each occurrence once, at the multiples of the period since the epoch."""
    processes = [Process(store) for _ in range(3)]
    for process in processes:
        process.tasks.repeat(process.note, "tick", period=10)
    async with processes[0].tasks:
        offset = wall(store) % 10
        await asyncio.gather(*(process.run(60) for process in processes))
    times = sorted(when for process in processes for _, when in process.ran)
    assert times == pytest.approx([10 * n - offset for n in range(1, 7)], abs=0.01)


@pytest.mark.slow
async def test_cron_follows_the_wall_clock(store):
    """A cron expression is read in its time zone."""
    process = Process(store, lease=3600)  # beats every few seconds over a day would take long
    process.tasks.repeat(process.note, "daily", cron="30 9 * * *", tz="Europe/London")
    async with process.tasks:
        began = wall(store)
        await process.run(86_400)
    assert 1 == len(process.ran)
    for _, when in process.ran:
        at = datetime.fromtimestamp(round(began + when), UTC)
        assert 30 == at.minute
        assert at.hour in (8, 9)


@pytest.mark.virtual_time(start_wall=datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp())
@pytest.mark.parametrize("cron", ["30 1 * * *", "0,50 1 * * *"])
async def test_in_the_repeated_hour_nothing_is_due_and_nobody_looks(store, monkeypatch, cron):
    """At 01:10 of the second hour, a time of the first one is due on the next day; until then the process sleeps."""
    looks = []
    next_occurrence = Repetition.next_occurrence
    monkeypatch.setattr(
        Repetition,
        "next_occurrence",
        lambda self, wall, since: looks.append(wall) or next_occurrence(self, wall, since),
    )
    process = Process(store, lease=3600)
    process.tasks.repeat(process.note, "daily", cron=cron, tz="Europe/London")
    async with process.tasks:
        await process.run(3000)
        [row] = await process.tasks.rows(DurableState.SCHEDULED)
    assert [] == process.ran
    assert row.id.startswith("note@2026-10-26T01:")
    assert len(looks) < 100


async def test_occurrence_waits_while_no_process_runs_and_the_missed_are_left_out(store):
    """After a time without processes one occurrence runs late, missed ones are left out, and the next is on time."""
    first, second = Process(store), Process(store)
    for process in (first, second):
        process.tasks.repeat(process.note, "tick", period=100)
    async with first.tasks:
        await first.run(1)
        [row] = await first.tasks.rows(DurableState.SCHEDULED)
        assert row.id.startswith("note@")
        await asyncio.sleep(1000)
        began = asyncio.get_running_loop().time()
        await second.run(99)
    assert [] == first.ran
    late, *others = [when for _, when in second.ran]
    assert late - began < 1
    assert len(others) <= 1


async def test_process_whose_clock_is_behind_places_nothing_twice(store, virtual_clock):
    """A process whose clock is behind repeats no occurrence, as the store remembers the ids of those that ran."""
    first, second = Process(store), Process(store)
    for process in (first, second):
        process.tasks.repeat(process.note, "tick", period=100)
    async with first.tasks:
        await first.run(450)
        count = len(first.ran)

        class Behind:
            monotonic = staticmethod(store._clock.monotonic)

            @staticmethod
            def wall():
                return store._clock.wall() - 250

        async with second.tasks:
            second.tasks._clock = Behind
            await second.run(10)
    assert count >= 4
    assert [] == second.ran


# The code that runs decides


async def replaced(store, *old, then, seconds=3600, **options) -> list:
    """Let one process declare a repetition, and a later one another of that name; return what the second runs."""
    first, second = Process(store), Process(store)
    first.tasks.repeat(first.note, *old, **options)
    second.tasks.repeat(second.note, *then[0], **then[1])
    async with first.tasks:
        await first.run(1)
        await second.run(seconds)
    assert [] == first.ran
    return second.ran


async def test_changed_schedule_leaves_no_old_occurrence_behind(store):
    """After a deployment with another period, no occurrence of the old one runs."""
    ran = await replaced(store, "old", period=600, then=(["new"], {"period": 1500}), seconds=6000)
    assert {"new"} == {what for what, _ in ran}
    assert [1500.0] * (len(ran) - 1) == [b - a for (_, a), (_, b) in zip(ran, ran[1:], strict=False)]
    assert len(ran) in (3, 4)


async def test_changed_arguments_and_options_reach_the_waiting_occurrence(store):
    """An occurrence that waits is replaced if its arguments or options change, at the same time and under the same id."""
    ran = await replaced(store, "old", period=3000, lane="l", then=(["new"], {"period": 3000, "lane": "m"}))
    assert ["new"] == [what for what, _ in ran][:1]


async def test_unchanged_repetition_keeps_its_occurrence(store):
    """A process with the same declaration leaves the waiting occurrence as it is, though it is overdue."""
    first, second = Process(store), Process(store)
    for process in (first, second):
        process.tasks.repeat(process.note, "tick", period=100)
    async with first.tasks:
        await first.run(1)
        [row] = await first.tasks.rows()
        await asyncio.sleep(150)
        await second.run(1)
        [again] = await first.tasks.rows()
    assert (row.id, 1) != (again.id, 0)
    assert ["tick"] == second.names


async def test_process_that_began_last_decides_and_another_after_it_has_gone(store):
    """While old and new code run, the new one counts; if it ends, as after a failed deployment, the old one goes on."""
    old, new = Process(store), Process(store)
    old.tasks.repeat(old.note, "old", period=10)
    new.tasks.repeat(new.note, "new", period=10)
    async with old.tasks:
        running = asyncio.ensure_future(old.run(300))
        await asyncio.sleep(25)
        before = len(old.ran)
        await new.run(100)
        names = [what for what, _ in sorted(old.ran + new.ran, key=lambda each: each[1])][before:]
        [row] = await old.tasks.repetitions()
        assert not row.is_declared
        await running
    assert {"new"} == set(names)
    assert 9 <= len(names)
    assert ["old"] * 10 == [what for what, _ in sorted(old.ran, key=lambda each: each[1])][-10:]


async def test_repetition_that_is_added_or_removed_while_tasks_run_takes_effect(process):
    """``repeat()`` and ``remove_repetition()`` take effect at once while tasks run."""
    process.tasks.repeat(process.note, "first", period=1000, name="first")
    async with process.executor, process.tasks.running(process.executor):
        await asyncio.sleep(5)
        process.tasks.repeat(process.note, "second", period=10, name="second")
        await asyncio.sleep(100)
        assert ["second"] * 10 == process.names
        assert ["first", "second"] == [row.name for row in await process.tasks.repetitions()]
        assert 1 == await process.tasks.remove_repetition("second", "unknown")
        await asyncio.sleep(200)
        assert ["second"] * 10 == process.names
        process.tasks.repeat(process.note, "third", period=100, name="second")
        await asyncio.sleep(150)
    assert "third" in process.names


async def test_what_no_running_code_declares_is_shown_and_can_be_removed(store):
    """A repetition that is no longer declared is shown as such, and removed with its occurrence by a call."""
    first, second = Process(store), Process(store)
    first.tasks.repeat(first.note, "tick", period=100, name="daily")
    async with first.tasks, second.tasks:
        async with first.executor, first.tasks.running(first.executor):
            await asyncio.sleep(1)
            [row] = await second.tasks.repetitions()
            assert ("daily", "default", "note", "every 1m40s", True) == (
                row.name, row.queue, row.function, row.schedule, row.is_declared
            )  # fmt: skip
        [row] = await second.tasks.repetitions()
        assert not row.is_declared
        assert DurableState.SCHEDULED is await second.tasks.ref(row.id).state()
        assert 1 == await second.tasks.remove_repetition("daily")
        assert [] == await second.tasks.repetitions()
        await second.run(300)
    assert [] == second.ran


# Each occurrence once


async def test_runs_do_not_overlap(store):
    """Occurrences that become due while one runs are skipped, over all processes, as in memory."""
    processes = [Process(store) for _ in range(2)]
    for process in processes:
        process.tasks.repeat(process.note, "tick", 25.0, period=10)
    await asyncio.gather(*(process.run(120) for process in processes))
    times = sorted(when for process in processes for _, when in process.ran)
    assert [30.0] * (len(times) - 1) == [b - a for a, b in zip(times, times[1:], strict=False)]
    assert 4 == len(times)


async def test_retries_are_a_part_of_the_run(process):
    """While an occurrence waits for another attempt no other is put; once it is a dead letter, the next one is."""
    times = []

    @process.tasks.task(retry=Retry(2))
    async def work():
        times.append(asyncio.get_running_loop().time())
        raise RetryLater(15)

    process.tasks.repeat(work, period=10)
    await process.run(100)
    assert [20.0] * 4 == [b - a for a, b in zip(times[::2], times[2::2], strict=False)]
    assert all(15 <= b - a < 17 for a, b in zip(times[::2], times[1::2], strict=False))


async def test_runs_overlap_if_they_may(store):
    """With ``overlap="allow"`` each occurrence starts at its time."""
    process = Process(store)
    process.tasks.repeat(process.note, "tick", 25.0, period=10, overlap="allow")
    await process.run(95)
    times = [when for _, when in process.ran]
    assert [10.0] * (len(times) - 1) == [b - a for a, b in zip(times, times[1:], strict=False)]
    assert 9 <= len(times)


async def test_cancelled_occurrence_stays_cancelled(store):
    """A cancelled occurrence is put again by no process, and the next one is."""
    first, second = Process(store), Process(store)
    for process in (first, second):
        process.tasks.repeat(process.note, "tick", period=100)
    async with first.tasks:
        await first.run(1)
        [row] = await first.tasks.rows()
        assert await first.tasks.ref(row.id).cancel()
        began = asyncio.get_running_loop().time()
        await second.run(250)
    [*_] = times = [when - began for _, when in second.ran]
    assert [100.0] == [b - a for a, b in zip(times, times[1:], strict=False)] or 1 == len(times)
    assert times[0] > 100


async def test_clock_that_is_set_back_by_months_stops_no_repetition(store):
    """After the clock was set back by more than a day a repetition goes on."""
    process = Process(store)
    process.tasks.repeat(process.note, "tick", period=100)
    async with process.tasks:
        await process.run(250)
        count = len(process.ran)
        wall = store._clock.wall

        class Back:
            monotonic = staticmethod(store._clock.monotonic)

            @staticmethod
            def wall():
                return wall() - 90 * 86_400

        store._clock = Back
        other = Process(store)
        other.tasks.repeat(other.note, "tick", period=100)
        async with other.tasks:
            store._clock = other.tasks._clock = Back
            await other.run(250)
    assert count >= 2
    assert 2 <= len(other.ran)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"period": 1, "allow_overlap": "no"}, TypeError, "allow_overlap must be"),
        ({}, TypeError, r"repeat\(\) takes period= or cron="),
        ({"period": 1, "cron": "* * * * *"}, TypeError, r"repeat\(\) takes period= or cron="),
        ({"period": 0}, ValueError, "period must be > 0"),
        ({"cron": "61 * * * *"}, ValueError, "cron must be a cron expression"),
        ({"cron": "* * * * * *"}, ValueError, "for these, repeat with period="),
        ({"cron": 9}, TypeError, "cron must be a str"),
        ({"cron": "0 9 * * *", "tz": "Mars/Base"}, ValueError, "tz must be the name of a time zone"),
        ({"period": 1, "at": 5}, TypeError, r"repeat\(\) has no at="),
        ({"period": 1, "id": "x"}, TypeError, r"repeat\(\) has no id="),
        ({"period": 1, "name": "x" * 201}, ValueError, "name must have at most 200 characters"),
        ({"period": 1, "lane": ""}, ValueError, "lane must have 1 to 255 characters"),
        ({"period": 1, "louder": True}, TypeError, "unexpected keyword argument 'louder'"),
    ],
)
def test_wrong_repetitions_are_refused(process, options, error, words):
    """Wrong arguments are refused in the call of ``repeat()``."""
    with pytest.raises(error, match=words):
        process.tasks.repeat(process.note, "tick", **options)


def test_functions_of_others_are_refused(process, store):
    """A function that is not durable, or belongs to other durable tasks with their own queue and codec, is refused."""
    for other in (print, Process(store).note):
        with pytest.raises(TypeError, match=r"function must be a durable function of these tasks, made by @tasks"):
            process.tasks.repeat(other, "tick", period=1)


def test_two_of_one_name_are_refused(process):
    """A second repetition of the same name is refused, as its occurrences would have the same ids."""
    process.tasks.repeat(process.note, "tick", period=1)
    with pytest.raises(ValueError, match="'note' is a repetition already"):
        process.tasks.repeat(process.note, "tock", period=2)
    process.tasks.repeat(process.note, "tock", period=2, name="tock")


def test_times():
    """The next time is the first one after an instant, never the instant itself."""
    assert [10.0, 10.0, 20.0] == [fixed_times(10)(wall) for wall in (0.5, 9.999, 10.0)]
    nine = datetime(2026, 3, 1, 9, tzinfo=UTC).timestamp()
    assert nine + 86_400 == cron_times("0 9 * * *", UTC)(nine)


@pytest.mark.parametrize("period", [0.001, 0.1, 0.3, 0.9, 1.1, 1 / 3, 2.2, 7.7, 86_400.000001])
def test_next_multiple_of_a_period_is_later_in_whole_microseconds(period):
    """From each multiple, as a store keeps it, the next one follows by the period, rounded to microseconds."""
    next_after = fixed_times(period)
    due_us = round(1_790_000_000 * 1e6)
    dues = [due_us := round(next_after(due_us / 1e6) * 1e6) for _ in range(300)]
    gaps = {later - earlier for earlier, later in zip(dues, dues[1:], strict=False)}
    assert gaps <= {int(period * 1e6), int(period * 1e6) + 1}
    assert abs(dues[-1] - dues[0] - 299 * period * 1e6) <= 1


@pytest.mark.parametrize("period", [2.2, 0.9, 0.1])
async def test_period_with_a_fraction_misses_nothing(store, period):
    """A repetition whose times are no whole microseconds runs once in each period."""
    process = Process(store)
    process.tasks.repeat(process.note, "tick", period=period)
    async with process.tasks:
        await process.run(50 * period)
    assert 48 <= len(process.ran) <= 51


@pytest.mark.parametrize("period", [0, 1e-9, 1e12])
def test_period_out_of_range_is_refused(store, period):
    """A period that is shorter than a millisecond or longer than 30 years is refused when it is declared."""
    process = Process(store)
    with pytest.raises(ValueError, match="period must be"):
        process.tasks.repeat(process.note, "tick", period=period)


@pytest.mark.usefixtures("virtual_clock")
async def test_end_that_is_written_late_is_followed_by_the_next_occurrence():
    """If the store fails while the end of an occurrence is written, the next one is placed once that is written."""
    starts = []

    class Failing(MemoryStore):
        async def finish(self, outcomes):
            if len(starts) == 2 and len(failures) < 1:
                failures.append(1)
                raise StoreUnavailableError("the store", "away")
            return await super().finish(outcomes)

    failures = []
    tasks = DurableTasks(Failing(), lease=30)

    @tasks.task
    async def tick():
        starts.append(round(now()))

    tasks.repeat(tick, period=1)
    async with RateLimitedExecutor("e") as executor, tasks.running(executor):
        await asyncio.sleep(9)
    assert failures == [1]
    assert [1] * (len(starts) - 1) == [after - before for before, after in itertools.pairwise(starts)]
    assert len(starts) >= 8
