"""Executors with ``Fair()`` serve keys in turn over the whole backlog in the store, not only among claimed tasks."""

import asyncio
from collections import Counter

import pytest

from ratelimited_executor.durable import DurableState, MemoryStore, SQLiteStore
from ratelimited_executor.orders import Fair, default_order

from ...helpers import skip_without_apsw
from .conftest import Process


@pytest.fixture(params=["memory", "sqlite"])
def backlog(request, tmp_path, virtual_clock):
    """A store of each kind that runs in virtual time."""
    if request.param == "memory":
        return MemoryStore()
    skip_without_apsw()
    return SQLiteStore(tmp_path / "tasks.db")


class CountingStore(MemoryStore):
    """Counts the claims."""

    count = 0

    async def claim(self, claim):
        self.count += 1
        return await super().claim(claim)


async def fill(process, count, key, **options):
    """Put tasks named by their key."""
    await process.tasks.put_many(process.note.new(key, key=key, **options) for _ in range(count))


def times(process, name):
    """The times at which tasks with a name were started."""
    return [time for what, time in process.ran if what == name]


async def test_tenant_behind_a_long_queue_has_its_turns(backlog):
    """Ten tasks of one tenant start within twice their number of turns, behind three thousand of another."""
    process = Process(backlog, rate="10/s", order=Fair())
    async with process.tasks:
        await fill(process, 3000, "A")
        await fill(process, 10, "B")
        await process.run(10)
    assert 10 == len(times(process, "B"))
    assert times(process, "B")[-1] <= 2
    assert 100 <= len(process.ran) <= 101


@pytest.mark.parametrize("fair", [Fair(), Fair(weights={"B": 9}), Fair(weights=lambda key: 9.0 if key == "B" else 1.0)])
async def test_newer_tasks_of_another_key_start_in_turn(backlog, fair):
    """Tasks that are put behind the backlog of another key start at once, in turn."""
    process = Process(backlog, rate="10/s", order=fair)
    async with process.tasks:
        await fill(process, 600, "A")
        async with process.executor, process.tasks.running(process.executor):
            await asyncio.sleep(5)
            await fill(process, 5, "B")
            await asyncio.sleep(5)
    assert 5 == len(times(process, "B"))
    assert times(process, "B")[0] <= 5.3
    assert times(process, "B")[-1] <= 6.3


async def test_shares_are_by_weight(backlog):
    """Keys with backlogs get starts in proportion to their weights."""
    process = Process(backlog, rate="20/s", order=Fair(weights={"B": 3, "C": 0.5}))
    async with process.tasks:
        for key in "ABC":
            await fill(process, 600, key)
        await process.run(22.5)
    counts = Counter(process.names)
    assert 300 == pytest.approx(counts["B"], abs=12)
    assert 100 == pytest.approx(counts["A"], abs=8)
    assert 50 == pytest.approx(counts["C"], abs=8)


@pytest.mark.slow
async def test_each_of_thousands_of_keys_has_its_turn_before_the_second(backlog):
    """Every one of hundreds of keys has started once before any has started twice, though one has most tasks."""
    process = Process(backlog, rate="100/s", order=Fair())
    async with process.tasks:
        await fill(process, 500, "k0")
        await process.tasks.put_many(process.note.new(f"k{n % 500}", key=f"k{n % 500}") for n in range(1000))
        await process.run(4.9)
    counts = Counter(process.names)
    assert 485 <= len(counts)
    assert {1, 2} >= set(counts.values())


async def test_keys_that_come_and_go_start_at_once(backlog):
    """A key that has a task now and then starts each within a few turns of its put."""
    process = Process(backlog, rate="10/s", order=Fair())
    async with process.tasks:
        await fill(process, 1000, "A")
        async with process.executor, process.tasks.running(process.executor):
            for n in range(12):
                await asyncio.sleep(1.7)
                await fill(process, 1, f"B{n}")
            await asyncio.sleep(1)
    waits = [times(process, f"B{n}")[0] - 1.7 * (n + 1) for n in range(12)]
    assert max(waits) <= 0.35


async def test_delayed_tasks_of_another_key_have_their_turn(backlog):
    """A delayed task, behind the backlog of another key, starts within half of the seconds claimed ahead of its due time."""
    process = Process(backlog, rate="10/s", order=Fair())
    async with process.tasks:
        await fill(process, 300, "A")
        for n in range(8):
            await fill(process, 1, f"B{n}", delay=5 + 0.7 * n)
        await process.run(14)
    late = [times(process, f"B{n}")[0] - 5 - 0.7 * n for n in range(8)]
    assert 0 <= min(late) <= max(late) <= 1.3


async def test_priorities_precede_turns(backlog):
    """Larger priorities start first, whatever the key, and however many keys have tasks of smaller ones."""
    process = Process(backlog, rate="10/s", order=Fair())
    async with process.tasks:
        await process.tasks.put_many(process.note.new("low", key=n) for n in range(300))
        await process.tasks.put_many(process.note.new("high", key="A", priority=1) for _ in range(60))
        await process.tasks.put_many(process.note.new("top", key="A", priority=2) for _ in range(5))
        async with process.executor, process.tasks.running(process.executor):
            await asyncio.sleep(10)
            await process.tasks.put_many(process.note.new("late", key="B", priority=1) for _ in range(40))
            await asyncio.sleep(10)
    assert ["top"] * 5 + ["high"] * 60 == process.names[:65]
    assert 38 <= len([time for time in times(process, "late") if time < 14.5])


async def test_lanes_keep_their_order_while_keys_take_turns(backlog):
    """Tasks of a lane start in the order of their puts, while lanes of other keys have their turns."""
    process = Process(backlog, rate="10/s", order=Fair())
    async with process.tasks:
        await fill(process, 500, "A")
        for key in "BC":
            await process.tasks.put_many(process.note.new((key, n), key=key, lane=key) for n in range(10))
        await process.run(10)
    for key in "BC":
        assert [[key, n] for n in range(10)] == [name for name in process.names if name[0] == key]


@pytest.mark.parametrize("limit", [{"key_rate": "2/s"}, {"key_concurrency": 1}])
async def test_keys_with_limits_take_turns(backlog, limit):
    """With limits for each key, no key with a long queue keeps another from its turns."""
    process = Process(backlog, rate="10/s", order=Fair(), **limit)
    async with process.tasks:
        for key, count in (("A", 1500), ("B", 10), ("C", 10)):
            await process.tasks.put_many(process.note.new(key, seconds=0.2, key=key) for _ in range(count))
        await process.run(8)
    for key in "BC":
        assert 10 == len(times(process, key))
        assert times(process, key)[-1] <= 6


async def test_turns_go_on_after_a_restart(backlog):
    """A process that begins with a backlog, as after a restart, serves all keys in turn."""
    for count in (50, 100):
        process = Process(backlog, rate="10/s", order=Fair())
        async with process.tasks:
            if count == 50:
                await fill(process, 1000, "A")
                await fill(process, 100, "B")
            await process.run(5)
        assert count / 2 == pytest.approx(process.names.count("B") + (count == 100) * 25, abs=2)


async def test_order_may_change_while_it_runs(backlog):
    """A change to ``Fair()`` and back takes effect at the next claim."""
    process = Process(backlog, rate="10/s")
    async with process.tasks:
        await fill(process, 600, "A")
        await fill(process, 200, "B")
        async with process.executor, process.tasks.running(process.executor):
            await asyncio.sleep(5)
            assert "B" not in process.names
            process.executor.order = Fair()
            await asyncio.sleep(10)
            assert 40 <= process.names.count("B") <= 52
            process.executor.order = default_order
            await asyncio.sleep(3)
            count = process.names.count("B")
            await asyncio.sleep(5)
            assert count == process.names.count("B")


async def test_functions_of_fair_claim_by_priority_and_due_time(store):
    """With a function of its own, ``Fair(by=...)`` sees the tasks that are claimed by priority and due time."""
    process = Process(store, rate="10/s", order=Fair(by=lambda task: task.key))
    async with process.tasks:
        await fill(process, 300, "A")
        await fill(process, 10, "B")
        await process.run(10)
    assert {"A"} == set(process.names)


async def test_what_is_claimed_ahead_keeps_no_turn(backlog):
    """Tasks of many keys that are due soon do not hold up those of another key that are due."""
    process = Process(backlog, rate="10/s", order=Fair())
    async with process.tasks:
        await fill(process, 300, "A")
        await process.tasks.put_many(process.note.new(n, key=n, delay=1.9) for n in range(100))
        await process.run(1.85)
    assert 18 <= process.names.count("A") == len(process.ran)


async def test_weights_that_raise_are_one(backlog):
    """A function for weights that raises stops no claims; its keys have weight 1."""
    process = Process(backlog, rate="10/s", order=Fair(weights=lambda key: {"A": 1.0}[key]))
    async with process.tasks:
        await fill(process, 300, "A")
        await fill(process, 300, "B")
        await process.run(10)
    assert 50 == pytest.approx(process.names.count("B"), abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key_count", "rate", "seconds", "count"),
    [(1, "10/s", 20, 1500), (600, "2000/s", 1, 2500), (1, "2000/s", 1, 2500), (600, "10/s", 20, 1500)],
)
async def test_claims_in_turn_are_few(virtual_clock, rate, seconds, count, key_count):
    """A backlog of one key or of many starts at the full rate, with hardly more claims than by the default order."""
    counts = []
    for order in (default_order, Fair()):
        store = CountingStore()
        process = Process(store, rate=rate, order=order)
        async with process.tasks:
            await process.tasks.put_many(process.note.new(n, key=n % key_count) for n in range(count))
            await process.run(seconds)
            assert 0 == (await process.tasks.counts())[DurableState.CLAIMED]
        assert seconds * float(rate.partition("/")[0]) <= len(process.ran)
        counts.append(store.count)
    assert counts[1] <= 1.2 * counts[0]
