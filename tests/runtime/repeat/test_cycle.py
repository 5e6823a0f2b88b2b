"""A cycle runs its population once: on time, in bounded memory, whatever loaders, nodes and clocks do."""

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from fractions import Fraction

import pytest

from ratelimited_executor import BacklogFullError, Burst, ExecutorManager, RateLimitedExecutor, RetryLater
from ratelimited_executor.cycles import MemoryProgress
from ratelimited_executor.spread import CycleSlots, balance, reciprocal
from ratelimited_executor.testing import run_virtual

from ...helpers import skip_without_apsw

HOUR = 3600.0
EIGHT_HOURS = 8 * HOUR
SLOT = 225.0  # seconds of one of 128
START = 1_704_067_200.0  # where virtual time begins: a multiple of eight hours since the epoch


class Population:
    """Keys by slot, and the times of their runs."""

    def __init__(self, count=1000, cycle="8h", **options) -> None:
        self.slots = CycleSlots(cycle, **options)
        self.keys = list(range(count))
        self.by_slot = defaultdict(list)
        for key in self.keys:
            self.by_slot[self.slots.slot_of(key)].append(key)
        self.runs = defaultdict(list)
        self.loads = []

    async def load(self, slot):
        self.loads.append(slot)
        return self.by_slot[slot]

    def sync(self, key):
        self.runs[key].append(wall())

    def times(self) -> Counter:
        return Counter(len(runs) for runs in self.runs.values())


def wall() -> float:
    return asyncio.get_running_loop().clock.wall()


@pytest.fixture
def population():
    return Population()


def every(executor, population, **options):
    options = {"cycle": "8h", "keys": population.load, "fn": population.sync, "progress": MemoryProgress()} | options
    return executor.every(**options)


@pytest.mark.parametrize("rate", [float("inf"), 50])
@pytest.mark.parametrize("phase", [Fraction(0), reciprocal(1, of=3)], ids=str)
async def test_each_key_runs_once_in_each_cycle_in_its_place(virtual_clock, population, rate, phase):
    """Each key runs at its place in every cycle, to less than a second; at most two slots' keys are queued."""
    most = 0
    async with RateLimitedExecutor("x", rate=rate) as executor:
        handle = every(executor, population, phase=phase)
        for _ in range(3 * 128 + 1):
            await asyncio.sleep(SLOT)
            most = max(most, executor.statistics().waiting)
        counts = handle.statistics()
        handle.cancel()
    assert {1000} == {sum(population.times().values())}
    assert all(runs in (3, 4) for runs in population.times())
    largest = sorted(map(len, population.by_slot.values()))[-2:]
    assert most <= sum(largest)
    slots = CycleSlots("8h", phase=phase)
    for key, runs in population.runs.items():
        for run in runs if runs[0] > START + 5 else runs[1:]:  # whose instant had passed when it all began
            place = (run - float(phase) * EIGHT_HOURS - slots.offset_ns(key) / 1e9) % EIGHT_HOURS
            assert min(place, EIGHT_HOURS - place) < 1.5, (key, runs)
        assert all(later - earlier <= EIGHT_HOURS + 1.5 for earlier, later in zip(runs, runs[1:], strict=False))
    assert (0, 0, 0) == (counts.failed, counts.loader_errors, counts.behind)
    assert counts.done == sum(map(len, population.runs.values()))


async def test_kinds_in_reciprocal_phases_never_work_on_one_key_at_the_same_time(virtual_clock):
    """Two kinds of jobs in opposite phases never run for one key at once, though each takes as long as a slot."""
    population, running, met = Population(200), set(), []

    async def work(key):
        if key in running:
            met.append(key)
        running.add(key)
        await asyncio.sleep(SLOT)
        running.discard(key)

    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        for k in range(3):
            every(executor, population, fn=work, phase=reciprocal(k, of=3), name=f"kind {k}")
        await asyncio.sleep(2 * EIGHT_HOURS)
    assert [] == met


@pytest.mark.parametrize("seconds", [20, 100, 400])
async def test_slow_loader_makes_late_and_loses_nothing(virtual_clock, population, seconds):
    """A loader slower than a slot runs beside the next ones, at most three, and no key is lost."""
    active, most = 0, 0

    async def load(slot):
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(seconds)
        active -= 1
        return population.by_slot[slot]

    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, keys=load)
        await asyncio.sleep(2 * EIGHT_HOURS)
        counts = handle.statistics()
        handle.cancel()
    assert most <= 3
    assert {1000} == {sum(population.times().values())}
    assert set(population.times()) <= {1, 2, 3}
    assert counts.skipped_turns == 0


async def test_loader_that_cannot_keep_up_skips_turns_and_says_so(virtual_clock, population, caplog):
    """A loader that cannot keep up skips turns: one turn of a slot at a time, at most a cycle behind."""

    async def load(slot):
        await asyncio.sleep(5 * SLOT)
        return population.by_slot[slot]

    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, keys=load)
        await asyncio.sleep(4 * EIGHT_HOURS)
        counts = handle.statistics()
        handle.cancel()
    assert counts.skipped_turns > 50
    assert counts.behind <= 128
    assert "skipped" in caplog.text
    assert counts.done == sum(map(len, population.runs.values()))


@pytest.mark.parametrize("how", ["raises", "raises half-way", "returns nothing", "returns a number"])
async def test_loader_that_fails_is_asked_again(virtual_clock, population, caplog, how):
    """A failed loader is called again after a pause; keys already scheduled are not scheduled again."""
    failures = Counter()

    async def half(slot):
        keys = population.by_slot[slot]
        for key in keys[: len(keys) // 2]:
            yield key
        raise ConnectionError

    def load(slot):
        failures[slot] += 1
        if failures[slot] % 4:
            if how == "raises":
                raise ConnectionError
            return {"raises half-way": half(slot), "returns nothing": None, "returns a number": 5}[how]
        return population.by_slot[slot]

    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, keys=load)
        await asyncio.sleep(EIGHT_HOURS + 2 * SLOT)
        counts = handle.statistics()
        handle.cancel()
    assert 1000 == sum(population.times().values())
    assert set(population.times()) <= {1, 2}
    assert counts.loader_errors >= 3 * 128
    assert counts.completed >= 128
    assert "retrying" in caplog.text


async def test_huge_slot_is_placed_as_there_is_room(virtual_clock):
    """A million keys in a slot are drawn as the look-ahead allows, and the rest starts late."""
    slots = CycleSlots(16, 256)
    mine = [key for key in range(200_000) if slots.slot_of(key) == 3]
    drawn = done = most = 0

    async def load(slot):
        nonlocal drawn, most
        for key in mine if slot == 3 else ():
            drawn += 1
            most = max(most, drawn - done)
            yield key

    def sync(_):
        nonlocal done
        done += 1

    async with RateLimitedExecutor("x", rate=5000, drain_timeout=0) as executor:
        handle = executor.every(cycle=16, buckets=256, keys=load, fn=sync, progress=MemoryProgress(), look_ahead=2000)
        await asyncio.sleep(15)
        assert len(mine) == done == handle.statistics().done
    assert most <= 2000 + 1000 + 1


@pytest.fixture(params=["memory", "file"])
def stores(request, tmp_path):
    """Return a function that opens the same store again."""
    if request.param == "memory":
        kept = MemoryProgress()
        return lambda: kept
    skip_without_apsw()
    return lambda: tmp_path / "progress.sqlite3"


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [False, True], ids=["drained", "cut"])
def test_restart_goes_on_where_the_last_process_was(stores, is_cut):
    """Restarts in the middle of slots skip no key, and run none twice in a cycle."""
    population, clock_at = Population(600, cycle=3600), START
    runs = defaultdict(list)

    async def one_life(seconds):
        async def work(key):
            runs[key].append(asyncio.get_running_loop().clock.wall())
            await asyncio.sleep(7)

        async with RateLimitedExecutor("x", drain_timeout=0 if is_cut else None) as executor:
            every(executor, population, cycle=3600, fn=work, progress=stores(), name="sync")
            await asyncio.sleep(seconds)
        return asyncio.get_running_loop().clock.wall()

    for seconds in (100, 333, 500, 1, 777, 1400, 20, 2000, 4000):
        clock_at = run_virtual(one_life(seconds), start_wall=clock_at)
    assert 600 == len(runs)
    for key, times in runs.items():
        cycles = Counter(int(time // 3600) for time in times)
        assert max(cycles.values()) <= (4 if is_cut else 1), (
            key,
            times,
        )  # what ran as the process was cut has not ended
    repeated = sum(len(times) for times in runs.values())
    assert repeated <= 600 * 3.6


@pytest.mark.parametrize("is_cut", [False, True], ids=["drained", "cut"])
def test_restart_waits_for_no_claim_of_the_process_before(stores, is_cut):
    """A restart does not wait for claims of the previous process, which released them as it ended."""
    population = Population(2000, cycle=3600)

    async def one_life(seconds):
        async with RateLimitedExecutor("x", drain_timeout=0 if is_cut else None) as executor:
            every(executor, population, cycle=3600, progress=stores(), name="sync", lease=300)
            await asyncio.sleep(seconds)

    run_virtual(one_life(100), start_wall=START)
    run_virtual(one_life(1000), start_wall=START + 100)
    instants = {key: START + population.slots.offset_ns(key) / 1e9 for key in population.keys}
    ours = {key: instant for key, instant in instants.items() if START + 5 < instant < START + 1000}
    assert ours.keys() <= population.runs.keys()
    for key, instant in ours.items():
        assert [instant] == pytest.approx(population.runs[key], abs=1.5)


async def test_turn_is_kept_while_its_keys_still_run(virtual_clock, population):
    """A process that is cut keeps its claim while a key ignores cancellation, so no other node starts that key."""
    store = MemoryProgress()

    async def stubborn(_):
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
                return

    executor = RateLimitedExecutor("x", drain_timeout=0)
    async with executor:
        handle = every(executor, population, progress=store, name="sync", fn=stubborn, lease=300)
        await asyncio.sleep(SLOT / 2)
        turn = handle.statistics().turn
        assert handle.statistics().waiting
    assert not await store.claim("sync", turn, owner="another", now=wall(), until=wall() + 1)


def test_outage_is_caught_up_with_the_present_first(stores):
    """Turns missed in an outage run soon after it, spread, while the present slots keep their time."""
    population = Population(1280)

    async def one_life(seconds, **options):
        async with RateLimitedExecutor("x") as executor:
            handle = every(executor, population, progress=stores(), name="sync", **options)
            await asyncio.sleep(seconds)
            counts = handle.statistics()
        return counts

    run_virtual(one_life(HOUR), start_wall=START)
    before = len(population.runs)
    counts = run_virtual(one_life(5 * HOUR), start_wall=START + 3 * HOUR)
    assert before == pytest.approx(160, abs=40)
    assert 0 == counts.behind
    missed = [key for key in population.keys if HOUR <= population.slots.offset_ns(key) / 1e9 < 3 * HOUR - SLOT]
    assert all(1 == len(population.runs[key]) for key in missed)
    assert max(population.runs[key][0] for key in missed) < START + 6 * HOUR
    present = [key for key in population.keys if 3 * HOUR + SLOT <= population.slots.offset_ns(key) / 1e9 < 7 * HOUR]
    for key in present:
        assert population.runs[key][0] == pytest.approx(START + population.slots.offset_ns(key) / 1e9, abs=1.5)


def test_outage_may_be_left_as_it_is(stores):
    """``catch_up=False`` begins with the present slot."""
    population = Population(1280)

    async def one_life(seconds, **options):
        async with RateLimitedExecutor("x") as executor:
            every(executor, population, progress=stores(), name="sync", **options)
            await asyncio.sleep(seconds)

    run_virtual(one_life(HOUR), start_wall=START)
    run_virtual(one_life(HOUR, catch_up=False), start_wall=START + 3 * HOUR)
    missed = [key for key in population.keys if HOUR + SLOT <= population.slots.offset_ns(key) / 1e9 < 3 * HOUR - SLOT]
    assert not any(key in population.runs for key in missed)


async def test_first_start_has_missed_nothing(virtual_clock, population):
    """A new cycle begins with the slot whose turn it is."""
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(EIGHT_HOURS / 2)
        handle = every(executor, population)
        await asyncio.sleep(10)
        assert [64] == population.loads
        assert 0 == handle.statistics().behind
        handle.cancel()


@pytest.mark.parametrize("progress", [{}, {"progress": None}], ids=["default", "none"])
def test_progress_is_kept_in_memory_unless_a_store_is_named(tmp_path, monkeypatch, progress):
    """Without a store no file is written, and a restart runs only the present slot's keys again."""
    monkeypatch.chdir(tmp_path)
    population = Population(1280)

    async def one_life(seconds):
        async with RateLimitedExecutor("x") as executor:
            executor.every(cycle="8h", keys=population.load, fn=population.sync, **progress)
            await asyncio.sleep(seconds)

    run_virtual(one_life(HOUR), start_wall=START)
    present = [key for key in population.runs if HOUR - SLOT <= population.slots.offset_ns(key) / 1e9 < HOUR]
    run_virtual(one_life(SLOT), start_wall=START + HOUR - 1)
    assert [] == list(tmp_path.iterdir())
    assert present
    assert {2} == {len(population.runs[key]) for key in present}
    count = len(population.runs)
    run_virtual(one_life(SLOT - 1), start_wall=START + 4 * HOUR)
    missed = [key for key in population.keys if 2 * HOUR <= population.slots.offset_ns(key) / 1e9 < 4 * HOUR]
    assert not population.runs.keys() & set(missed)
    assert len(population.runs) > count


@pytest.mark.slow
def test_nodes_with_one_store_share_the_turns(stores):
    """Nodes with one store share the turns: each key runs once in a cycle, on one node."""
    population, shares = Population(300), Counter()

    async def main():
        async def node(number):
            def sync(key):
                shares[number] += 1
                population.sync(key)

            async with RateLimitedExecutor(f"node {number}") as executor:
                await asyncio.sleep(number)  # they are not started at the same instant
                every(executor, population, fn=sync, progress=stores(), name="sync")
                await asyncio.sleep(2 * EIGHT_HOURS)

        await asyncio.gather(*(node(number) for number in range(3)))

    run_virtual(main(), start_wall=START)
    assert {0, 1, 2} == set(shares)
    assert set(population.times()) <= {2, 3}, population.times()
    assert 300 == sum(population.times().values())
    for runs in population.runs.values():
        assert all(later - earlier > EIGHT_HOURS - 5 for earlier, later in zip(runs, runs[1:], strict=False))


async def test_turn_of_a_node_that_has_died_is_taken_over(virtual_clock, population):
    """A dead node's turn is taken over when its claim lapses; keys recorded as done do not run again."""
    store, log = MemoryProgress(), []
    turn = population.slots.turn_at(START)
    assert START == population.slots.begin_of(turn)
    assert turn == await store.begin("sync", "28800 s in 128 slots of 65536 buckets, phase 0", turn)
    assert await store.claim("sync", turn, owner="dead", now=wall(), until=wall() + 40)
    first = population.by_slot[0][0]
    await store.note("sync", turn, [b"i" + first.to_bytes(8, "big")])
    async with RateLimitedExecutor("x") as executor:
        every(executor, population, progress=store, name="sync", fn=log.append, lease=30)
        await asyncio.sleep(39)
        assert [] == log
        await asyncio.sleep(SLOT - 60)
        assert set(population.by_slot[0]) - {first} >= set(log) != set()
        executor.shutdown(cancel_pending=True)


async def test_node_that_has_lost_its_claim_leaves_the_rest(virtual_clock, population, caplog):
    """A node held up for longer than its lease leaves the rest to the node that took over."""
    store, log = MemoryProgress(), []
    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, progress=store, name="sync", fn=log.append, lease=30)
        await asyncio.sleep(1)
        turn = handle.statistics().turn
        store._turns["sync", turn] = "another", wall() + 1000
        await asyncio.sleep(25)
        assert 1 == handle.statistics().lost
        count = len(log)
        await asyncio.sleep(150)
        assert count == len(log)
        executor.shutdown(cancel_pending=True)
    assert "was lost" in caplog.text


async def test_wall_clock_that_steps_skips_and_repeats_nothing(virtual_clock):
    """Clock steps of an hour back and two forward repeat no turn, and passed turns are caught up."""
    population, loop = Population(1000, cycle="2h"), asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        every(executor, population, cycle="2h")
        for step in (-600, 900, -1200, 1500, 0):
            await asyncio.sleep(1200)
            loop.clock.step_wall(step)
        await asyncio.sleep(7200 + 600)
        executor.shutdown(cancel_pending=True)
    assert 1000 == sum(population.times().values())
    for runs in population.runs.values():
        assert len(runs) <= 3


async def test_key_of_another_slot_is_refused(virtual_clock, population, caplog):
    """A key of another slot is refused: a loader that returns all keys would run each in every slot."""
    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, keys=lambda slot: population.keys)
        await asyncio.sleep(1000)
        assert 0 == handle.statistics().done
        assert handle.statistics().loader_errors > 3
        handle.cancel()
    assert "slot_predicate" in caplog.text


async def test_duplicates_run_once(virtual_clock, population):
    """Duplicate keys run once, whether they come together or far apart, and are counted."""
    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, keys=lambda slot: population.by_slot[slot] * 30)
        await asyncio.sleep(EIGHT_HOURS + 1)
        counts = handle.statistics()
        handle.cancel()
    assert set(population.times()) <= {1, 2}
    assert counts.skipped >= 29 * 1000


async def test_weighted_keys_lie_where_they_were_balanced(virtual_clock):
    """``slot_of=`` decides the slot of a key; its instant within the slot still follows its hash."""
    costs = {key: 30 if key % 50 == 0 else 1 for key in range(1000)}
    assignment = balance(costs, 128)
    by_slot, seen = defaultdict(list), {}
    for key, slot in assignment.items():
        by_slot[slot].append(key)
    slots = CycleSlots("8h")
    async with RateLimitedExecutor("x") as executor:
        handle = executor.every(
            cycle="8h",
            keys=by_slot.__getitem__,
            fn=lambda key: seen.setdefault(key, slots.slot_at(wall())),
            slot_of=assignment.__getitem__,
            progress=MemoryProgress(),
        )
        await asyncio.sleep(EIGHT_HOURS)
        handle.cancel()
    assert assignment.keys() == seen.keys()
    assert sum(assignment[key] != slot for key, slot in seen.items()) <= 3  # late by a hair at the end of a slot


async def test_failing_and_retried_keys(virtual_clock, population, caplog):
    """A retried key is done when it ends; a failing key is done until the next cycle, and counted."""
    tries = Counter()

    def work(key):
        tries[key] += 1
        if key % 10 == 0 and tries[key] % 3:
            raise RetryLater(1)
        if key % 10 == 1:
            raise ValueError(key)

    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, fn=work)
        await asyncio.sleep(EIGHT_HOURS - 1)
        counts = handle.statistics()
        handle.cancel()
    assert 100 == counts.failed
    assert 900 == counts.done
    assert {1: 900, 3: 100} == Counter(tries.values())
    failed = re.findall(r"key (\d+) failed: ValueError\((\d+)\)", caplog.text)
    assert failed
    assert all(key == given and int(key) % 10 == 1 for key, given in failed)


async def test_full_backlog_delays(virtual_clock, population):
    """A key that finds no room is scheduled by the next attempt."""
    async with RateLimitedExecutor("x", max_pending=5) as executor:
        handle = every(executor, population)
        await asyncio.sleep(2 * HOUR)
        counts = handle.statistics()
        with pytest.raises(BacklogFullError):
            executor.schedule_many(int, range(10), delay=5)
        handle.cancel()
    assert 0 < counts.done == sum(map(len, population.runs.values())) <= 1000
    assert set(population.times()) == {1}


class Broken(MemoryProgress):
    """A store with one method that fails."""

    def __init__(self, method) -> None:
        super().__init__()

        async def fail(*_, **__):
            raise OSError("the disk is full")

        setattr(self, method, fail)


@pytest.mark.parametrize("method", ["begin", "open_turns", "claim", "done_keys", "note", "complete"])
async def test_store_that_fails_ends_the_cycle(virtual_clock, population, method):
    """A failing store ends the cycle with its error, for awaiters and the loop's handler; the executor continues."""
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, progress=Broken(method))
        if method == "done_keys":
            await asyncio.sleep(3 * SLOT)
            assert handle.statistics().loader_errors or handle.done()
            handle.cancel()
        else:
            with pytest.raises(OSError, match="the disk is full"):
                await handle
            assert handle.done()
            assert not handle.cancelled()
            assert 1 == len(reports)
        assert 1 == await executor.submit(lambda: 1)


@pytest.mark.parametrize("method", ["claim", "note"])
async def test_turn_that_the_store_no_longer_keeps_begins_no_more_keys(virtual_clock, population, method):
    """If a lease cannot be renewed, or ended keys cannot be recorded, other nodes may begin the keys that still wait."""

    class Failing(MemoryProgress):
        calls = Counter()
        noting = None

        async def claim(self, name, turn, **terms):
            self.calls[turn] += 1
            if method == "claim" and self.calls[turn] > 1:
                raise OSError("the disk is full")
            return await super().claim(name, turn, **terms)

        async def note(self, *terms):
            if method == "note":
                raise OSError("the disk is full")
            await super().note(*terms)

    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, progress=Failing(), lease=30)
        with pytest.raises(OSError, match="the disk is full"):
            await handle
        assert wall() < START + 60
        count = len(population.runs)
        await asyncio.sleep(2 * SLOT)
        assert 0 < count == len(population.runs)


async def test_what_has_ended_is_recorded_though_the_lease_cannot_be_renewed(virtual_clock, population):
    """A cycle that ends by an error of one call waits for those that record, however long they take."""

    class Slow(MemoryProgress):
        calls = Counter()
        noting = None

        async def claim(self, name, turn, **terms):
            self.calls[turn] += 1
            if self.calls[turn] > 1:
                raise OSError("the disk is full")
            return await super().claim(name, turn, **terms)

        async def note(self, *terms):
            await asyncio.sleep(20)
            await super().note(*terms)

    store = Slow()
    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, progress=store, lease=90, name="sync")
        with pytest.raises(OSError, match="the disk is full"):
            await handle
    [turn] = store.calls
    assert 0 < len(population.runs) == len(await store.done_keys("sync", turn))


async def test_cancel_ends_it(virtual_clock, population):
    """Cancelling ends the cycle once, and cancels its waiting keys."""
    async with RateLimitedExecutor("x") as executor:
        handle = every(executor, population, name="sync")
        await asyncio.sleep(100)
        assert "CycleHandle sync active 128 slots of 225 s" in repr(handle)
        assert handle.cancel()
        assert not handle.cancel()
        assert handle.cancelled()
        assert handle.done()
        with pytest.raises(asyncio.CancelledError):
            await handle
        count = len(population.runs)
        await asyncio.sleep(1000)
        assert count == len(population.runs)
        assert 0 == executor.statistics().waiting
        assert "cancelled" in repr(handle)


async def test_same_name_with_another_cycle_is_refused(virtual_clock, population):
    """A stored name is refused for a cycle of other settings: the progress could not be read."""
    store = MemoryProgress()
    async with RateLimitedExecutor("x") as executor:
        every(executor, population, progress=store, name="sync").cancel()
        await asyncio.sleep(1)
        handle = every(executor, population, progress=store, name="sync", cycle="4h")
        with pytest.raises(ValueError, match="it was recorded for 28800 s in 128 slots"):
            await handle


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        ({"cycle": 7}, ValueError, "cycle"),
        ({"cycle": "soon"}, ValueError, "cycle"),
        ({"cycle": None}, TypeError, "cycle"),
        ({"keys": [1, 2]}, TypeError, "keys"),
        ({"fn": 5}, TypeError, "fn"),
        ({"phase": 0.5}, TypeError, "phase"),
        ({"phase": Fraction(1)}, ValueError, "phase"),
        ({"buckets": 100}, ValueError, "buckets"),
        ({"slot_of": {}}, TypeError, "slot_of"),
        ({"progress": 5}, TypeError, "progress"),
        ({"progress": MemoryProgress}, TypeError, "progress"),
        ({"progress": ""}, ValueError, "progress"),
        ({"look_ahead": 0}, ValueError, "look_ahead"),
        ({"lease": 0}, ValueError, "lease"),
        ({"lease": float("nan")}, ValueError, "lease"),
        ({"priority": "high"}, TypeError, "priority"),
        ({"name": 5}, TypeError, "name"),
        ({"retry": 5}, TypeError, "retry"),
    ],
)
async def test_bad_arguments_are_refused_by_name(virtual_clock, population, wrong, error, name):
    """Bad arguments are refused by name at the call, which changes nothing."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(error, match=name):
            every(executor, population, **wrong)
        assert {} == executor._repeating


async def test_two_cycles_of_two_executors(virtual_clock, population):
    """Two executors of one manager each run a cycle of their own, under a policy that bursts."""
    async with ExecutorManager() as manager:
        executors = [manager.executor(str(number), policy=Burst(10), rate=100) for number in range(2)]
        handles = [every(executor, population) for executor in executors]
        await asyncio.sleep(EIGHT_HOURS)
        assert all(handle.statistics().done >= 990 for handle in handles)


PROGRAM = """
import asyncio, sys, time
from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.spread import cycle_slot_of

def load(slot):
    return [key for key in range(2000) if cycle_slot_of(key, 16, 256) == slot]

async def main():
    out = open(sys.argv[2], "a", buffering=1)
    async with RateLimitedExecutor("x") as executor:
        executor.every(cycle=16, buckets=256, keys=load, fn=lambda key: out.write(f"{key} {time.time()}\\n"),
            progress=sys.argv[1], name="sync", lease=1)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def _runs_in(log):
    """Return the times at which each key has run, by its log."""
    runs = defaultdict(list)
    for line in log.read_text().splitlines() if log.exists() else ():
        key, at = line.split()
        runs[int(key)].append(float(at))
    return runs


@pytest.mark.slow
def test_killed_process_neither_repeats_nor_skips(tmp_path):
    """In real time, a process killed four times within a cycle and a half of 16 s, and then left alone, skips no key.

    Keys that ran without being recorded before a signal run again: those of the last milliseconds, or of the last second on a
    busy machine, where the disk may take that long. Without records, four times six seconds of them would.
    """
    skip_without_apsw()
    log = tmp_path / "log"
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "progress.sqlite3"), str(log)]
    for number in range(5):
        process = subprocess.Popen(program)
        try:
            until = time.time() + 6.5
            while time.time() < (until if number < 4 else until + 50) and len(runs := _runs_in(log)) < 2000:
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    runs = _runs_in(log)
    assert 2000 == len(runs)
    repeated = [
        key
        for key, times in runs.items()
        if any(later - earlier < 8 for earlier, later in zip(times, times[1:], strict=False))
    ]
    assert len(repeated) <= 4 * 2000 / 16, repeated
