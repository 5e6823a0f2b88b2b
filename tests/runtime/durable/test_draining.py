"""The durable tasks of a test run until none is left."""

import asyncio
from datetime import UTC, datetime

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore, Snooze, SQLiteStore
from ratelimited_executor.testing import drain

from ...helpers import skip_without_apsw


@pytest.fixture
def tasks():
    """Return durable tasks with a function that notes its calls, and puts as many others as it is told."""
    made = DurableTasks(MemoryStore())
    made.ran = []

    @made.task(retry=Retry(3, base=3600, cap=3600, on=OSError))
    async def note(name, others=0):
        made.ran.append(name)
        if others:
            await note.put(name + 1, others - 1)
        if name == "fail":
            raise OSError
        if name == "dead":
            raise ValueError
        if name == "snooze" and made.ran.count(name) < 3:
            raise Snooze("1d")

    made.note = note
    return made


async def test_what_is_due_runs_and_what_that_puts(tasks):
    """Tasks that are due run, with those that they put and those of their lanes; others stay."""
    async with tasks:
        await tasks.note.put(0, 3)
        await tasks.note.put(10, lane="l")
        await tasks.note.put(11, lane="l")
        await tasks.note.put("later", delay="1d")
        await tasks.note.put("fail")
        found = await drain(tasks)
        assert (6, 1, 0) == (found.done, found.retried, found.dead)
        assert 2 == (await tasks.counts())[DurableState.SCHEDULED]
    assert {0, 1, 2, 3, 10, 11, "fail"} == set(tasks.ran)
    assert 0 == (await drain(tasks)).done


@pytest.mark.parametrize("_", [0, pytest.param(1, marks=pytest.mark.real_time("as in the tests of users"))])
async def test_scheduled_ones_run_in_order_without_waiting(tasks, _):
    """With scheduled=True all run, retries and snoozed ones as well, and the loop's time does not pass for it."""
    before = asyncio.get_running_loop().time()
    async with tasks:
        await tasks.note.put("year", delay="365d", expires=1)
        await tasks.note.put("lane", delay="2d", lane="l")
        await tasks.note.put("behind", delay="3d", lane="l")
        await tasks.note.put("fail")
        await tasks.note.put("snooze")
        await tasks.note.put("dead", delay=1)
    found = await drain(tasks, scheduled=True)
    assert (4, 2, 2, 2) == (found.done, found.retried, found.dead, found.snoozed)
    assert ["lane", "behind", "year"] == [name for name in tasks.ran if name in ("lane", "behind", "year")]
    assert "year" == tasks.ran[-1]
    assert asyncio.get_running_loop().time() - before < 60
    async with tasks:
        assert {DurableState.DEAD: 2} == {state: n for state, n in (await tasks.counts()).items() if n}
        ref = await tasks.note.put("now")
        row = await ref.row()
        assert abs(row.due_us / 1e6 - tasks._clock.wall()) < 60


async def test_repetitions_are_not_placed(tasks):
    """A repetition does not keep a test busy forever."""
    tasks.repeat(tasks.note, "again", period=60)
    assert 0 == (await drain(tasks, scheduled=True)).done


async def test_tasks_that_put_each_other_are_reported(tasks):
    """A test whose tasks never end fails."""
    async with tasks:
        await tasks.note.put(0, 1_000_000)
    with pytest.raises(RuntimeError, match=r"drain\(\) has run 20 tasks, and more are left"):
        await drain(tasks, limit=20)


async def test_misuse_is_refused(tasks, tmp_path):
    """Tasks that are run already, and a store whose clock cannot be set, are refused."""
    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        with pytest.raises(RuntimeError, match=r"outside of running\(\)"):
            await drain(tasks)
    skip_without_apsw()
    with pytest.raises(TypeError, match="needs a MemoryStore"):
        await drain(DurableTasks(SQLiteStore(tmp_path / "tasks.db")), scheduled=True)


@pytest.mark.real_time("a file")
async def test_other_stores_run_what_is_due(tmp_path):
    """What is due in a file is run as well."""
    skip_without_apsw()
    tasks, ran = DurableTasks(SQLiteStore(tmp_path / "tasks.db")), []
    note = tasks.task(name="note")(ran.append)
    async with tasks:
        await note.put(1)
        await note.put(2, at=datetime(2020, 1, 1, tzinfo=UTC))
        await note.put(3, delay=3600)
    assert 2 == (await drain(tasks)).done
    assert {1, 2} == set(ran)


async def test_paused_tasks_stay(tasks):
    """What is paused is left in the store, a whole queue as well: nothing runs, and the call returns."""
    async with tasks:
        await tasks.note.put(0)
        for pause in ({"queue": "default"}, {"function": tasks.note}):
            await tasks.pause(**pause)
            assert 0 == (await drain(tasks)).done
            await tasks.resume(**pause)
        assert 1 == (await drain(tasks)).done
