"""What is read of stores that were made for an earlier release: more than is needed, and told the same."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import Claim, DurableState, End, NewTask, TaskOutcome
from ratelimited_executor._runtime.durable import reading
from ratelimited_executor.dashboard.stores import Stores
from ratelimited_executor.durable import DurableTasks, MemoryStore


class EarlierStore(MemoryStore):
    """A store of a user's own, for a release in which lists had one order, and queues no latency."""

    latencies = None

    async def rows(self, state=None, *, after=0, limit=100):
        return await super().rows(state, after=after, limit=limit)


@pytest.fixture(params=[MemoryStore, EarlierStore])
async def tasks(request, monkeypatch, virtual_clock):  # noqa: ARG001  # it makes time virtual
    """Seven dead letters in an open store of this release, or of an earlier one."""
    monkeypatch.setattr(reading, "_STEP", 2)
    async with DurableTasks(request.param()) as tasks:
        await tasks.store.join("o", 10**9)
        await tasks.store.put([NewTask(id=f"{n}", name="f", body=b"1234567890") for n in range(7)])
        claimed = (await tasks.store.claim(Claim(owner="o", count=9))).tasks
        await tasks.store.finish([TaskOutcome(each.ref, End.DEAD, error="E: e") for each in claimed])
        yield tasks


async def test_newest_tasks_come_first_also_of_an_earlier_store(tasks):
    """The newest tasks come first, cut as asked for, also of a store that has one order and no limit of the arguments."""
    rows = await tasks.rows(DurableState.DEAD, newest_first=True, limit=2, body_max=4)
    assert [("6", b"1234"), ("5", b"1234")] == [(row.id, row.body) for row in rows]
    rows = await tasks.rows(DurableState.DEAD, newest_first=True, limit=3, after=rows[-1].number)
    assert [("4", b"1234567890"), ("3", b"1234567890"), ("2", b"1234567890")] == [(row.id, row.body) for row in rows]
    assert ["0", "1"] == [row.id for row in await tasks.rows(limit=2)]
    assert {b""} == {row.body for row in await tasks.rows(body_max=0)}


async def test_page_shows_an_earlier_store_as_any_other(tasks, monkeypatch):
    """The page shows the dead letters that were put last, and then those before."""
    monkeypatch.setattr("ratelimited_executor.dashboard.stores._DEAD_MAX", 3)
    stores = Stores({"shop": tasks.store}, lambda: 0.0)
    page = await stores.page("shop")
    assert ["4", "5", "6"] == sorted(row.id for row, *_ in page.dead)
    page = await stores.page("shop", after=page.older)
    assert ["1", "2", "3"] == sorted(row.id for row, *_ in page.dead)


async def test_latency_is_told_also_of_an_earlier_store(tasks):
    """The time since the oldest ready task of a queue was due, also by what a store of an earlier release counts."""
    assert {} == await tasks.latencies()
    for name in "fg":
        await tasks.store.put([NewTask(id=name, name=name), NewTask(id=f"q{name}", name=name, queue="a")])
        await asyncio.sleep(5)
    found = await tasks.latencies()
    assert {"a": 10.0, "default": 10.0} == {queue: round(age, 6) for queue, age in found.items()}
