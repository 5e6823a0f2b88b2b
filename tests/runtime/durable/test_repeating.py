"""Each occurrence of a repetition runs once, over all processes, clocks and restarts."""

import asyncio
from datetime import UTC, datetime

import pytest

from ratelimited_executor._runtime.cron import cron_times
from ratelimited_executor._runtime.durable.repeating import Repetition, fixed_times
from ratelimited_executor.durable import DurableState

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


async def test_cron_follows_the_wall_clock(store):
    """A cron expression is read in its time zone."""
    process = Process(store, lease=3600)  # beats every few seconds over three days would take long
    process.tasks.repeat(process.note, "daily", cron="30 9 * * *", tz="Europe/London")
    async with process.tasks:
        began = wall(store)
        await process.run(3 * 86_400)
    assert 3 == len(process.ran)
    for _, when in process.ran:
        at = datetime.fromtimestamp(round(began + when), UTC)
        assert 30 == at.minute
        assert at.hour in (8, 9)


@pytest.mark.virtual_time(start_wall=datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp())
@pytest.mark.parametrize("cron", ["30 1 * * *", "0,50 1 * * *"])
async def test_in_the_repeated_hour_nothing_is_due_and_nobody_looks(store, monkeypatch, cron):
    """At 01:10 of the second hour, a time of the first one is due on the next day; until then the process sleeps."""
    looks = []
    next_task = Repetition.next_task
    monkeypatch.setattr(Repetition, "next_task", lambda self, wall: looks.append(wall) or next_task(self, wall))
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


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
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
