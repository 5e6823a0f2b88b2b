"""Repetitions as data: saved, paused, skipped, run and removed from any process, and placed by those that run."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from ratelimited_executor.durable import DurableState, DurableTasks

from .conftest import Process


def wall(store) -> float:
    return store._clock.wall()


async def test_saved_by_name_from_a_process_that_knows_no_function(store):
    """A process without functions saves a repetition, which two others place at once, change and remove."""
    processes = [Process(store), Process(store)]
    operator = DurableTasks(store)
    async with operator:
        running = [asyncio.ensure_future(each.run(100)) for each in processes]
        await asyncio.sleep(5)
        assert await operator.save_repetition("note", "tick", period=10, name="mine")
        await asyncio.sleep(0.1)
        [row] = await operator.repetitions()
        assert ("mine", "note", "every 10 s", True, True, False) == (
            row.name, row.function, row.schedule, row.is_saved, row.is_declared, row.is_paused
        )  # fmt: skip
        assert row.next_us == row.due_us
        await asyncio.sleep(30)
        assert not await operator.save_repetition("note", "tock", period=5, name="mine")
        await asyncio.sleep(0.1)
        assert b'[["tock"],{},true]' == (await operator.ref((await operator.repetitions())[0].id).row()).body
        await asyncio.sleep(30)
        assert 1 == await operator.remove_repetition("mine")
        await asyncio.gather(*running)
        assert [] == await operator.repetitions()
    ran = sorted((when, what) for each in processes for what, when in each.ran)
    names = [what for _, what in ran]
    assert (["tick"] * 3, ["tock"] * 6) == (names[:3], names[3:])
    assert all(5 == round(b - a, 1) for (a, _), (b, _) in zip(ran[3:], ran[4:], strict=False))


@dataclass
class Item:
    """Something with a price."""

    name: str
    price: Decimal


async def test_arguments_of_a_function_by_name_become_what_its_annotations_say(store):
    """Values of JSON are read as annotated where the function is known; what it does not take makes a dead letter."""
    operator, process, got = DurableTasks(store), Process(store), []

    @process.tasks.task(name="bill")
    async def bill(items: list[Item], due: date | None = None, *, plain="x"):
        got.append((items, due, plain))

    async with operator:
        args = [{"name": "pen", "price": "1.10"}], "2026-03-04"
        await operator.save_repetition("bill", *args, plain=[1], period=10, name="good")
        await operator.save_repetition("bill", [{"name": "pen", "price": 1.1}], period=10, name="float")
        await operator.save_repetition("bill", period=10, name="few")
        with pytest.raises(TypeError, match="given by its name: give the function itself, or values of JSON"):
            await operator.save_repetition("bill", [Item("pen", Decimal("1.10"))], period=10, name="objects")
        await process.run(15)
        assert [([Item("pen", Decimal("1.10"))], date(2026, 3, 4), [1])] == got
        errors = [row.error_line for row in await operator.rows(DurableState.DEAD)]
    assert any("a decimal must be a string in JSON, such as '1.10', got the number 1.1" in each for each in errors)
    assert any("missing a required argument: 'items'" in each for each in errors)
    assert len(errors) == 2


async def test_it_stays_while_nothing_runs_and_needs_the_function(store):
    """A saved repetition waits until a process runs that knows its function and version; others place nothing."""
    operator, process = DurableTasks(store), Process(store)
    async with operator:
        await operator.save_repetition("note", "new", period=10, name="new", version=2)
        await operator.save_repetition("note", "old", period=10, name="old")
        await process.run(25)
        assert {"new": False, "old": True} == {row.name: bool(row.id) for row in await operator.repetitions()}
        assert [] == await operator.rows(DurableState.UNKNOWN)

        @process.tasks.task(name="note", version=2)
        async def note(what):
            process.ran.append((what, 0.0))

        process.ran.clear()
        await Process.run(process_like(process), 25)
    assert {"new", "old"} == set(process.names)


def process_like(process):
    """Return a process with the same tasks and another executor."""
    other = Process(process.tasks.store)
    other.tasks = process.tasks
    return other


async def test_function_of_these_tasks_is_checked_and_has_its_options(store):
    """A function object is checked as by a put, and its own options apply, also when its name is given here."""
    process = Process(store)

    @process.tasks.task(priority=3.0, expires=60)
    async def mail(to: datetime): ...

    async with process.tasks as tasks:
        day = datetime(2026, 1, 1, tzinfo=UTC)
        with pytest.raises(TypeError, match="too many positional"):
            await tasks.save_repetition(mail, 1, 2, period=60)
        await tasks.save_repetition("mail", day, period=60)
        ref = await tasks.run_repetition("mail")
        row = await ref.row()
    assert (3.0, "mail", True) == (row.priority, row.name, ref.created)
    assert ([day], {}) == mail.load(row.body)[:2]


@pytest.mark.parametrize("is_saved", [True, False])
async def test_paused_until_resumed(store, is_saved):
    """A paused repetition runs nothing, for days; resumed, it goes on at its next time, and makes up for nothing."""
    process, operator = Process(store), DurableTasks(store)
    async with operator:
        if is_saved:
            await operator.save_repetition("note", "tick", period=10)
        else:
            process.tasks.repeat(process.note, "tick", period=10)
        running = asyncio.ensure_future(process.run(100))
        await asyncio.sleep(25)
        count = len(process.ran)
        assert count >= 2
        await operator.pause_repetition("note")
        assert (await operator.repetitions())[0].is_paused
        assert [] == await operator.rows()
        await asyncio.sleep(40)
        assert count == len(process.ran)
        assert await operator.resume_repetition("note")
        assert not await operator.resume_repetition("note")
        resumed = asyncio.get_running_loop().time()
        await running
    later = [when for _, when in process.ran][count:]
    assert 3 <= len(later)
    assert 0 < later[0] - resumed <= 10.1
    assert [10.0] * (len(later) - 1) == [round(b - a, 1) for a, b in zip(later, later[1:], strict=False)]


async def test_pause_with_an_end_needs_nobody_to_end_it(store):
    """Occurrences that are due from the end of a pause on run, also if no process has run in between."""
    process, operator = Process(store), DurableTasks(store)
    process.tasks.repeat(process.note, "tick", period=10)
    async with operator:
        await process.run(1)
        offset = wall(store) % 10
        until = wall(store) - offset + 50
        await operator.pause_repetition("note", until=datetime.fromtimestamp(until, UTC))
        await process_like(process).run(1)
        [row] = await operator.repetitions()
        assert (round(until * 1e6), round(until * 1e6)) == (row.until_us, row.next_us)
        await asyncio.sleep(until - wall(store) + 3)
        assert [] == process.ran
        began = asyncio.get_running_loop().time()
        await process_like(process).run(20)
    times = [when - began for _, when in process.ran]
    assert 0 <= times[0] < 1
    assert 2 <= len(times) <= 3


@pytest.mark.virtual_time(start_wall=datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp())
async def test_pause_may_end_at_an_occurrence_while_clocks_change(store):
    """An occurrence that is due when a pause ends is placed: the first 01:30 of the day on which the clocks go back."""
    process, operator = Process(store, lease=3600), DurableTasks(store)
    end = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    async with operator:
        await operator.save_repetition("note", "tick", cron="30 1 * * *", tz="Europe/London")
        await operator.pause_repetition("note", until=end)
        running = asyncio.ensure_future(process.run(13 * 3600))
        await asyncio.sleep(1)
        [row] = await operator.repetitions()
        assert end.timestamp() == row.next_us / 1e6
        began = wall(store) - asyncio.get_running_loop().time()
        await running
    assert [end.timestamp()] == [pytest.approx(began + when, abs=0.01) for _, when in process.ran]


async def test_next_one_is_skipped(store):
    """The next occurrence is dropped, and the one after it runs at its time."""
    process, operator = Process(store), DurableTasks(store)
    async with operator:
        await operator.save_repetition("note", "tick", period=10)
        assert await operator.skip_repetition("note") is None
        running = asyncio.ensure_future(process.run(60))
        await asyncio.sleep(21)
        count = len(process.ran)
        due_us = (await operator.repetitions())[0].next_us
        assert datetime.fromtimestamp(due_us / 1e6, UTC) == await operator.skip_repetition("note")
        await running
    gaps = [round(b - a, 1) for (_, a), (_, b) in zip(process.ran, process.ran[1:], strict=False)]
    assert 20.0 == gaps.pop(count - 1)
    assert {10.0} == set(gaps)


async def test_run_now_beside_its_occurrences(store):
    """A repetition is run now by a process without functions, paused or not, and its occurrences stay."""
    process, operator = Process(store), DurableTasks(store)
    process.tasks.repeat(process.note, "tick", period=1000, priority=5)
    async with operator:
        running = asyncio.ensure_future(process.run(20))
        await asyncio.sleep(1)
        [row] = await operator.repetitions()
        ref = await operator.run_repetition("note")
        await operator.pause_repetition("note")
        await operator.run_repetition("note")
        await asyncio.sleep(5)
        assert await ref.state() is None
        await running
    assert ["tick", "tick"] == process.names
    assert all(when < 3 for _, when in process.ran)
    assert row.next_us is not None


async def test_queue_runs_each_after_the_previous_one(store):
    """With ``overlap="queue"`` each occurrence is put at its time, none is left out, and they run one at a time."""
    process = Process(store)
    process.tasks.repeat(process.note, "tick", 25.0, period=10, overlap="queue")
    async with process.tasks as tasks:
        await process.run(100)
        rows = await tasks.rows()
    times = [when for _, when in process.ran]
    assert [25.0] * (len(times) - 1) == [round(b - a, 1) for a, b in zip(times, times[1:], strict=False)]
    assert 4 <= len(times)
    assert 5 <= len(rows)
    assert {"repetition note"} == {row.lane for row in rows}


async def test_what_code_declares_is_refused(store):
    """A name that code declares, here or elsewhere, is not saved over; it can be removed once no code declares it."""
    first, second = Process(store), Process(store)
    first.tasks.repeat(first.note, "tick", period=10)
    async with second.tasks as tasks:
        for process in (first, second):
            async with first.tasks:
                with pytest.raises(ValueError, match="'note' is a repetition that code declares"):
                    await process.tasks.save_repetition("note", "tock", period=5)
                await process_like(first).run(1)
        await tasks.remove_repetition("note")
        assert await tasks.save_repetition("note", "tock", period=5)


async def test_definition_that_cannot_be_read_is_left_to_others(store, caplog):
    """What a newer release has saved is reported once, and does not stop other repetitions."""
    process = Process(store)
    process.tasks.repeat(process.note, "tick", period=10)
    async with process.tasks:
        await store.save_repetition("newer", definition='{"x":1}', queue="default", function="note", schedule="?")
        await process.run(100)
    assert 9 <= len(process.ran)
    assert 1 == sum("'newer' cannot be placed here" in record.message for record in caplog.records)


async def test_other_changes_cause_no_look(store, monkeypatch):
    """A notice looks at repetitions again only if users have changed some."""
    process, operator = Process(store, lease=3600), DurableTasks(store)
    process.tasks.repeat(process.note, "tick", period=1000)
    looks = []
    place = store.place

    async def placing(owner, occurrences):
        looks.append(len(occurrences))
        return await place(owner, occurrences)

    monkeypatch.setattr(type(store), "place", lambda _, *args: placing(*args), raising=False)
    async with operator, process.executor, process.tasks.running(process.executor):
        await asyncio.sleep(1)
        count = len(looks)
        for _ in range(5):
            await operator.pause(lane="another")
            await asyncio.sleep(0.1)
        assert count == len(looks)
        await operator.pause_repetition("note")
        await asyncio.sleep(0.1)
        assert count < len(looks)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, TypeError, r"save_repetition\(\) takes period= or cron="),
        ({"period": 1, "overlap": "never"}, ValueError, "overlap must be one of skip, queue, allow, got 'never'"),
        ({"period": 1, "overlap": "queue", "lane": "l"}, TypeError, "takes no lane="),
        ({"period": 1, "unique": True}, TypeError, r"save_repetition\(\) has no unique="),
        ({"cron": "0 9 * * *", "tz": timezone(timedelta(hours=2))}, ValueError, "tz must be the name of a time zone"),
        ({"period": 1, "version": -1}, ValueError, "version must be"),
    ],
)
async def test_wrong_repetitions_are_refused(store, options, error, words):
    """Wrong arguments are refused, and nothing is saved."""
    async with DurableTasks(store) as tasks:
        with pytest.raises(error, match=words):
            await tasks.save_repetition("f", "tick", **options)
        assert [] == await tasks.repetitions()


async def test_names_that_do_not_exist_are_refused(store):
    """What concerns one repetition is refused if there is none of that name."""
    async with DurableTasks(store) as tasks:
        for call in (tasks.pause_repetition, tasks.resume_repetition, tasks.skip_repetition, tasks.run_repetition):
            with pytest.raises(ValueError, match="name must be that of a repetition in the store, got 'none'"):
                await call("none")
            with pytest.raises(TypeError, match="name must be a str"):
                await call(7)


async def test_run_now_needs_a_definition(store):
    """A repetition of a release that did not write what it puts cannot be run now."""
    process = Process(store)
    process.tasks.repeat(process.note, "tick", period=10)
    async with process.tasks as tasks:
        await process.run(1)
        record = store._table._repetitions["note"]
        store._table._repetitions["note"] = record._replace(definition="")
        with pytest.raises(ValueError, match="is a repetition of an older release"):
            await tasks.run_repetition("note")


def test_allow_overlap_is_deprecated(process):
    """The former option warns, and does the same."""
    with pytest.warns(DeprecationWarning, match="pass overlap='allow'"):
        process.tasks.repeat(process.note, "tick", period=1, allow_overlap=True)
    assert process.tasks._repetitions.declared["note"].next_occurrence(0.0, 0.0).allow_overlap
