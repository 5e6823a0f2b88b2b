"""Claims in PostgreSQL that begin where earlier ones have stopped lose nothing, and soon find what is behind."""

import asyncio
import math
import random
import sys

import pytest

from ratelimited_executor._core.durable.tasks import Claim, Claimed, Claims, End, NewTask, Ref, TaskOutcome, Turns
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.durable import PostgresStore
from ratelimited_executor.stores.tasks import looks
from ratelimited_executor.stores.tasks.looks import Look, Looks

SECOND = 1_000_000
LATE = 2 * SECOND


def claimed(number, in_us, priority=0.0):
    return Claimed(Ref(number, 1), str(number), "f", 1, b"", in_us, None, priority, None, None, None, 0, 0)


def looked(all_looks, *, now=0.0, now_us=100 * SECOND, tasks=(), next_in_us=None, spent_us=0, **asked):
    """Make a look that finds some tasks; return where it began."""
    claim = Claim(owner="a", count=10, **asked)
    look = all_looks.begin(claim, now)
    look.now_us, look.spent_us = now_us, spent_us
    began = look.due_us, None if look.places is None else dict(look.places)
    all_looks.end(claim, look, Claims(tasks=tuple(tasks), next_in_us=next_in_us), now)
    return began


FULL = (-(2**62), None)


def test_quick_looks_are_always_from_the_beginning():
    """As long as a look takes no longer than usual, no claim begins elsewhere."""
    every = Looks()
    for _ in range(5):
        assert FULL == looked(every, tasks=[claimed(1, -5)], spent_us=looks.LONG_US)


@pytest.fixture
def long(monkeypatch):
    """Every look takes long."""
    monkeypatch.setattr(looks, "LONG_US", -math.inf)


@pytest.mark.usefixtures("long")
def test_after_a_long_look_claims_begin_after_what_was_claimed():
    """Where all were claimed the next look begins two seconds back; else after the last task, if that was due earlier."""
    every = Looks()
    looked(every, tasks=[claimed(7, -50 * SECOND, 5.0), claimed(8, -60 * SECOND, 1.0)], next_in_us=0)
    now = (100 * SECOND - LATE, 0)
    assert (100 * SECOND - LATE, {5.0: now, 1.0: (40 * SECOND, 8)}) == looked(
        every, now_us=101 * SECOND, tasks=[claimed(9, SECOND, 1.0)], next_in_us=0
    )
    later = (101 * SECOND - LATE, 0)  # and not the due time of one that was claimed ahead of it
    assert (later[0], {5.0: later, 1.0: later}) == looked(every, now_us=102 * SECOND)


@pytest.mark.usefixtures("long")
def test_levels_that_were_not_asked_for_stay_as_they_were():
    """A claim above a priority says nothing of the priorities below."""
    every = Looks()
    looked(every, tasks=[claimed(7, -50 * SECOND, 5.0), claimed(8, -60 * SECOND, 1.0)], next_in_us=0)
    looked(every, now_us=110 * SECOND, above=1.0)
    _, places = looked(every, now_us=111 * SECOND)
    assert {5.0: (110 * SECOND - LATE, 0), 1.0: (40 * SECOND, 8)} == places


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize(("spent_us", "apart"), [(1, 2.0), (40_000, 2.0), (100_000, 5.0), (SECOND, 10.0)])
def test_looks_from_the_beginning_are_a_small_part_of_the_time(spent_us, apart):
    """The longer such a look takes, the later is the next."""
    every = Looks()
    looked(every, tasks=[claimed(1, -5)], spent_us=spent_us)
    assert FULL != looked(every, now=apart - 0.01)
    assert FULL == looked(every, now=apart + 0.01)


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize(
    "asked",
    [{"full_keys": frozenset("k")}, {"unknown": frozenset({("f", 1)})}, {"turns": Turns()}],
    ids=["full keys", "unknown functions", "turns"],
)
def test_claims_that_leave_tasks_behind_look_from_the_beginning(asked):
    """What a claim passes over stays behind the place where the next would begin."""
    every = Looks()
    looked(every, tasks=[claimed(1, -5)])
    assert FULL == looked(every, **asked)


@pytest.mark.usefixtures("long")
def test_with_many_priorities_claims_look_from_the_beginning():
    """A look for each of many priorities would be as slow."""
    every = Looks()
    looked(every, tasks=[claimed(number, -5, float(number)) for number in range(5)])
    assert FULL == looked(every)


if sys.platform != "win32":

    @pytest.fixture
    async def store(database, monkeypatch):
        """A store whose looks all take long; it tells how many began elsewhere than at the beginning."""
        monkeypatch.setattr(looks, "LONG_US", -math.inf)
        begun = []
        begin = Looks.begin

        def noted(self: Looks, asked: Claim, now: float) -> Look:
            look = begin(self, asked, now)
            begun.append(look.places is not None)
            return look

        monkeypatch.setattr(Looks, "begin", noted)
        store = PostgresStore(database.url)
        await store.open(SystemClock())
        await store.join("a", 3600 * SECOND)
        store.begun = begun
        yield store
        await store.aclose()

    async def claim(store, count=10, **options):
        return await store.claim(Claim(owner="a", count=count, **options))

    async def test_what_is_put_is_found_and_what_is_behind_a_little_later(store):
        """New tasks are found at once; one that becomes ready behind is found by the time that the answer names."""
        await store.put([NewTask(id="first", name="f")])
        assert ["first"] == [each.id for each in (await claim(store)).tasks]
        await store.put([NewTask(id="second", name="f"), NewTask(id="late", name="f", delay_us=-60 * SECOND)])
        found = await claim(store)
        assert ["second"] == [each.id for each in found.tasks]
        assert 0 <= found.next_in_us <= 2 * SECOND
        await asyncio.sleep(found.next_in_us / SECOND)
        assert ["late"] == [each.id for each in (await claim(store)).tasks]
        assert [False, True, False] == store.begun

    async def test_scheduled_tasks_are_found_when_they_are_due(store, database, monkeypatch):
        """Tasks that are put for later become ready by looks that begin elsewhere, too."""
        monkeypatch.setattr(looks, "_APART_SECONDS", 60.0)
        database.stop_clock()
        await store.put([NewTask(id="first", name="f")])
        await claim(store)
        await store.put([NewTask(id="soon", name="f", delay_us=50_000)])
        found = await claim(store)
        assert (0, 50_000) == (len(found.tasks), found.next_in_us)
        database.set_clock(10_000_050_000)
        assert ["soon"] == [each.id for each in (await claim(store)).tasks]
        assert [False, True, True] == store.begun

    async def test_random_work_runs_each_task_once(store, monkeypatch):
        """With priorities, backlogs and retries, every task ends once, in order of priority in each answer."""
        monkeypatch.setattr(looks, "_APART_SECONDS", 0.05)
        chance = random.Random(3)
        ended: dict[str, int] = {}
        count = 0
        while len(ended) < 600:
            fresh = range(count, min(600, count + chance.randrange(30)))
            count = fresh.stop
            await store.put(
                [
                    NewTask(
                        id=str(n), name="f", priority=float(chance.randrange(3)), delay_us=chance.choice([0, 0, 20_000])
                    )
                    for n in fresh
                ]
            )
            found = await claim(store, chance.randrange(1, 30), ahead_us=chance.choice([0, 10_000]))
            assert [-each.priority for each in found.tasks] == sorted(-each.priority for each in found.tasks)
            outcomes = []
            for each in found.tasks:
                if chance.random() < 0.2:
                    outcomes.append(TaskOutcome(each.ref, End.RETRY, delay_us=chance.choice([0, 5000])))
                else:
                    outcomes.append(TaskOutcome(each.ref, End.DONE))
                    ended[each.id] = ended.get(each.id, 0) + 1
            assert all(await store.finish(outcomes))
            if count == 600 and not found.tasks:
                assert found.next_in_us is not None
                await asyncio.sleep(found.next_in_us / SECOND)
        assert {1} == set(ended.values())
        assert 20 < sum(store.begun) < len(store.begun)


@pytest.mark.usefixtures("long")
def test_lanes_are_always_looked_at_from_the_beginning():
    """A task that follows another in its lane becomes ready with its own, earlier due time, so it may be behind."""
    every = Looks()
    looked(every, tasks=[claimed(1, -5)._replace(lane="l")])
    assert FULL == looked(every)


@pytest.mark.usefixtures("long")
def test_a_look_above_a_priority_is_no_look_at_everything():
    """It neither forgets the places of lower priorities nor puts off the next look at everything."""
    every = Looks()
    assert FULL == looked(every, tasks=[claimed(7, -5, 5.0)], above=1.0)
    assert FULL == looked(every, tasks=[claimed(8, -60 * SECOND, 1.0)], next_in_us=0)
    looked(every, above=3.0)
    _, places = looked(every)
    assert {1.0, 5.0} >= places.keys() >= {1.0}
