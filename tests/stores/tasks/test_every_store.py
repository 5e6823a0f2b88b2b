"""The contract of stores of durable tasks, checked for every store: :class:`ratelimited_executor.abc.TaskStore`."""

import asyncio
import inspect
import random
import sys

import pytest

from ratelimited_executor.abc import TaskStore
from ratelimited_executor._core.durable.pauses import ENDED, KEPT_US, Pause, pause_of
from ratelimited_executor._core.durable.tasks import (
    NO_KEY,
    Claim,
    DurableState,
    End,
    NewTask,
    Occurrence,
    Placement,
    Ref,
    TaskOutcome,
    Turns,
)
from ratelimited_executor._runtime.durable.functions import key_text
from ratelimited_executor.durable import Durability, MemoryStore, PostgresStore, RedisStore, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError

from .programs import Program, occurrence_id

STORES = [MemoryStore, PostgresStore, RedisStore, SQLiteStore]


@pytest.mark.parametrize("seed", range(8))
async def test_answers_are_those_of_the_rules_own_table(store, clock, seed):
    """Stores answer random programs as the rules' own table does, with clock steps, stale claims and duplicate ids."""
    program = Program(1000 + seed, is_hasty=seed % 2 == 0)
    steps = program.steps(40)
    step = next(steps)
    try:
        while True:
            method, args, options = step
            clock.set(program.now_us)
            step = steps.send(await getattr(store, method)(*args, **options))
    except StopIteration:
        return


def test_every_store_says_what_a_put_outlasts():
    """Every store states its durability, and has every method of the contract with the same argument names."""
    for kind in STORES:
        assert TaskStore in kind.__mro__
        assert isinstance(kind.durability, Durability)
        for name, method in inspect.getmembers(TaskStore, inspect.isfunction):
            if not name.startswith("_"):
                found = inspect.signature(getattr(kind, name)).parameters
                assert list(inspect.signature(method).parameters) == list(found), (kind, name)


async def test_store_is_opened_in_one_event_loop_after_the_other(store, clock):
    """A closed store may be opened in another event loop, as by tests or by two calls of ``asyncio.run()``."""

    async def use():
        await store.open(clock)
        for _ in range(3):
            await store.wait(0.01)
        await store.put([NewTask(id=str(id(asyncio.get_running_loop())), name="f")])
        await store.aclose()

    await store.wait(0.01)
    await store.aclose()
    await asyncio.to_thread(asyncio.run, use())
    await use()
    await store.open(clock)


async def test_claim_has_as_many_tasks_as_fit_into_its_size(store):
    """A claim ends before the task that exceeds its size, says that more are ready, and has at least one task."""
    await store.join("o", 60_000_000)
    sizes = {"a": 300, "b": 200, "c": 600, "d": 5000, "e": 1, "f": 0}
    await store.put([NewTask(id=id, name="f", body=bytes(size), cost="2") for id, size in sizes.items()])
    claimed = []
    for _ in range(5):
        claims = await store.claim(Claim(owner="o", count=9, size=1000))
        claimed.append(("".join(task.id for task in claims.tasks), claims.next_in_us))
        assert all(len(task.body) == sizes[task.id] for task in claims.tasks)
    assert [("ab", 0), ("c", 0), ("d", 0), ("ef", None), ("", None)] == claimed


async def test_claims_in_turn_by_key(store, clock):
    """Claims in turn take some tasks of each key of the largest priority, go on behind a key, and leave later tasks for last."""
    await store.join("o", 60_000_000)
    await store.put([NewTask(id=f"{key}{n}", name="f", key=key and f'"{key}"') for key in ("a", "b") for n in range(5)])
    await store.put([NewTask(id=f"high{n}", name="f", priority=1.0, key='"b"') for n in range(3)])
    await store.put([NewTask(id=f"none{n}", name="f") for n in range(2)])
    await store.put([NewTask(id="soon", name="f", key='"0"', delay_us=50)])
    found = []
    for turns, full, count in (
        (Turns(each=2), (), 9),
        (Turns(each=2), (), 9),
        (Turns(after={0.0: '"a"'}), (), 2),
        (Turns(others={(0.0, '"a"'): 0, (0.0, NO_KEY): 3}), (), 9),
        (Turns(each=9), ('"b"',), 9),
        (Turns(each=9), (), 9),
        (Turns(), (), 9),
    ):
        claims = await store.claim(Claim(owner="o", count=count, ahead_us=100, full_keys=frozenset(full), turns=turns))
        found.append((" ".join(task.id for task in claims.tasks), claims.next_in_us))
    assert found == [
        ("high0 high1", 0), ("high2 none0 none1 a0 a1 b0 b1", 0), ("b2 a2", 0), ("b3", 0), ("a3 a4 soon", None), ("b4", None),
        ("", None),
    ]  # fmt: skip


@pytest.mark.parametrize("state", [None, *DurableState])
async def test_list_goes_on_where_the_last_one_ended_in_either_order(store, state):
    """Tasks of each state come in the order of their puts or in its reverse, some at a time, each once, with as much as was asked for."""
    await store.join("o", 60_000_000)
    ends = {DurableState.DEAD: End.DEAD, DurableState.UNKNOWN: End.UNKNOWN}
    await store.put([NewTask(id="head", name="f", lane="l", body=b"body", delay_us=10**12)])
    names = [f"{n}" for n in range(9)]
    is_behind, is_later = state is DurableState.BEHIND, state is DurableState.SCHEDULED
    await store.put(
        [
            NewTask(
                id=id,
                name="f",
                body=b"body" if id != "0" else b"",
                cost="2",
                lane="l" if is_behind else None,
                delay_us=10**12 * (1 + is_behind) * (is_behind or is_later),
            )
            for id in names
        ]
    )
    if state is DurableState.PAUSED:
        await store.pause(Pause(function="f"), None)
    if state in (DurableState.CLAIMED, DurableState.PAUSED, *ends):
        claimed = (await store.claim(Claim(owner="o", count=99))).tasks
        await store.save([(each.ref, b"state") for each in claimed])
        if state in ends:
            await store.finish([TaskOutcome(each.ref, ends[state], error="e") for each in claimed])
    expected = [*(["head"] if state in (None, DurableState.SCHEDULED) else []), *names]
    for newest_first in (False, True):
        found, after = [], 0
        while rows := await store.rows(state, after=after, limit=4, newest_first=newest_first, body_max=3):
            assert all(row.body == (b"bod" if row.id != "0" else b"") for row in rows)
            assert {row.saved for row in rows} <= {None, b"sta"}
            found, after = [*found, *[row.id for row in rows]], rows[-1].number
        assert (expected[::-1] if newest_first else expected) == found
    assert {(b"", None)} == {(row.body, row.saved) for row in await store.rows(state, body_max=0)}
    assert await store.rows(state) == await store.rows(state, body_max=sys.maxsize)
    assert {b"body", b""} == {row.body for row in await store.rows(state, newest_first=True)}


async def test_latency_of_a_queue_is_that_of_its_oldest_due_task(store, clock):
    """Due tasks that wait count, of every priority and also if no process has looked since; claimed, blocked and ended ones do not."""
    await store.join("o", 60_000_000)
    now_us = clock.now_us
    await store.put(
        [
            *[NewTask(id=f"{n}", name="f", due_us=now_us - n, priority=n % 7 / 2) for n in range(60)],
            NewTask(id="later", name="f", delay_us=100, queue="later"),
            NewTask(id="head", name="f", delay_us=100, queue="heads", lane="l"),
            NewTask(id="behind", name="f", delay_us=200, queue="heads", lane="l"),
            NewTask(id="past", name="f", due_us=now_us - 10**9, queue="a b", priority=-1.5),
        ]
    )
    assert {"default": 59, "a b": 10**9} == await store.latencies()
    clock.set(now_us + 150)
    assert {"default": 209, "a b": 10**9 + 150, "later": 50, "heads": 50} == await store.latencies()
    for n in range(59, 9, -1):
        await store.cancel([f"{n}"])
    assert 159 == (await store.latencies())["default"]
    [claimed] = (await store.claim(Claim(owner="o", queue="a b", count=1))).tasks
    await store.claim(Claim(owner="o", queue="heads", count=1))
    assert {"default", "later"} == (await store.latencies()).keys()
    await store.finish([TaskOutcome(claimed.ref, End.DEAD, error="e")])
    assert "a b" not in await store.latencies()
    await store.requeue(["past"])
    assert 0 == (await store.latencies())["a b"]


async def test_two_users_open_and_close_at_once(store, clock):
    """Two users may open and close a store at once: nothing is left open, and the one who opens can use it."""
    await store.aclose()
    before = asyncio.all_tasks()
    await asyncio.gather(store.open(clock), store.open(clock))
    await asyncio.gather(store.aclose(), store.aclose())
    assert before == asyncio.all_tasks()
    await store.open(clock)
    await asyncio.gather(store.aclose(), store.open(clock))
    assert [True] == await store.put([NewTask(id="1", name="f")])


async def test_what_is_large_and_strange_comes_back_as_it_was(store):
    """Bodies of a megabyte, texts of any script and numbers at their bounds are returned unchanged."""
    task = NewTask(
        id="ü" * 255, queue="ق", name="名", version=2**31 - 1, body=bytes(range(256)) * 4096, delay_us=0,
        priority=-1e300, lane="l'\"; drop table durable_tasks --", key='"k"', cost='{"tokens": 5}', is_named=True,
    )  # fmt: skip
    assert [True] == await store.put([task])
    [row] = await store.find([task.id])
    assert (task.id, task.queue, task.name, task.version, task.body) == (
        row.id, row.queue, row.name, row.version, row.body
    )  # fmt: skip
    await store.join("a", 1_000_000)
    [claimed] = (await store.claim(Claim(owner="a", queue="ق", count=1))).tasks
    assert (task.body, task.priority, task.lane, task.key, task.cost) == (
        claimed.body, claimed.priority, claimed.lane, claimed.key, claimed.cost
    )  # fmt: skip
    assert [True] == await store.finish([TaskOutcome(claimed.ref, End.DEAD, error="ä\n\u2028")])
    [row] = await store.rows(DurableState.DEAD)
    assert "ä\n\u2028" == row.error


async def test_keys_may_be_long(store):
    """Integers beyond 64 bits, and the longest texts in any script, are keys like others: claimed, paused, in turn."""
    draw = random.Random(7)
    keys = [2**70, -(2**70), 10**254, "".join(chr(draw.randrange(0x10000, 0x10FFFF)) for _ in range(255))]
    await store.join("o", 60_000_000)
    await store.put([NewTask(id=f"{n}", name="f", key=key_text(key)) for n, key in enumerate(keys)])
    await store.pause(Pause(key=key_text(keys[1])), None)
    assert [keys[1]] == [row.key for row in await store.pauses()]
    assert sorted("23") == sorted(
        await claimed_by(store, full_keys=frozenset([key_text(keys[0])]), turns=Turns(each=1))
    )
    assert ["0"] == await claimed_by(store)
    assert keys == [row.key for row in await store.find("0123")]


async def test_no_claim_is_made_twice_at_once(store):
    """Ten owners that claim a thousand tasks at once get each of them once."""
    await store.put([NewTask(id=str(n), name="f") for n in range(1000)])
    owners = [f"o{n}" for n in range(10)]
    for owner in owners:
        await store.join(owner, 60_000_000)

    async def work(owner):
        mine = []
        while tasks := (await store.claim(Claim(owner=owner, count=7))).tasks:
            mine += [task.id for task in tasks]
            await asyncio.sleep(0)
        return mine

    claimed = [id for mine in await asyncio.gather(*map(work, owners)) for id in mine]
    assert sorted(map(str, range(1000))) == sorted(claimed)


async def test_joins_at_once_are_one(store):
    """Repeated and concurrent joins by one owner succeed, as when the first answer is lost, and keep its claims."""
    await store.put([NewTask(id=str(n), name="f", lane=f"l{n % 3}" if n % 2 else None) for n in range(20)])
    await store.join("o0", 60_000_000)
    held = [task.ref for task in (await store.claim(Claim(owner="o0", count=8))).tasks]
    await store.cancel(["0"])
    for n in range(10):
        joins = [store.join(f"o{n + 1}", 60_000_000, former=f"o{n}", held=held) for _ in range(4)]
        assert [True] * 4 == await asyncio.gather(*joins)
        beat = await store.beat(f"o{n + 1}")
        assert (1, len(held)) == (len(beat.cancelled), beat.claimed_count)
    for _ in range(2):  # a join after the lease has ended is refused, however often it is repeated
        assert not await store.join("new", 60_000_000, former="o3", held=held)
    assert await store.finish([TaskOutcome(ref, End.DONE) for ref in held]) == [True] * len(held)


async def test_losses_count_once_a_start_is_recorded(store, clock):
    """The first loss counts always, and further ones only if a start of that very claim was recorded."""
    await store.put([NewTask(id=str(n), name="f", lane="l" if n == 1 else None) for n in range(3)])
    losses, now_us = [], clock.now_us
    for started in ("none", "all", "none", "stale", "all"):
        await store.join("a", 9)
        tasks = (await store.claim(Claim(owner="a", count=9))).tasks
        refs = [task.ref for task in tasks]
        assert 3 == len(refs)
        stale = [Ref(ref.number, ref.token - 1) for ref in refs]
        if started == "all":
            assert [True] * 3 == await store.start(refs)
            assert [True] == await store.finish([TaskOutcome(refs[2], End.RELEASED)])
        assert [False] * 3 == await store.start(stale)
        for _ in range(9):
            now_us += 3
            clock.set(now_us)
            await store.beat("b")
        losses.append([row.lost_count for row in await store.find(["0", "1", "2"])])
    assert [[1, 1, 1], [2, 2, 1], [2, 2, 1], [2, 2, 1], [3, 3, 1]] == losses


async def test_cancelled_claims_are_told_to_their_owner_alone(store):
    """A wait ends with the cancellation of a claimed task, its number rises, and the owner can ask for its claims."""
    await store.put([NewTask(id=str(n), name="f") for n in range(4)])
    for owner in ("a", "b"):
        await store.join(owner, 60_000_000)
    mine = {task.id: task.ref for task in (await store.claim(Claim(owner="a", count=2))).tasks}
    await store.claim(Claim(owner="b", count=1))
    count = await store.wait(0.01)
    await store.cancel(["3"])
    assert count == await store.wait(0.01)
    assert () == await store.cancelled("a")
    await store.cancel(["0", "2"])
    assert count < await store.wait(0.01)
    assert (mine["0"],) == await store.cancelled("a")
    assert 1 == len(await store.cancelled("b"))
    assert () == await store.cancelled("nobody")


async def claimed_by(store, count=99, owner="o", **options):
    """Claim tasks; return their ids."""
    claims = await store.claim(Claim(owner=owner, count=count, **options))
    return [task.id for task in claims.tasks]


@pytest.mark.parametrize("turns", [None, Turns(each=9)], ids=["by priority", "in turn"])
@pytest.mark.parametrize(
    ("pause", "left"),
    [
        (Pause(function="f"), "gh"), (Pause(queue="default"), ""), (Pause(lane="l"), "fg"), (Pause(key='"k"'), "fh"),
        (Pause(function="f", key='"k"'), "fgh"), (Pause(queue="other"), "fgh"),
    ],
)  # fmt: skip
async def test_paused_tasks_are_claimed_once_resumed(store, pause, left, turns):
    """Tasks of a paused function, queue, lane or key are kept and not claimed until that ends; nothing else puts them back."""
    await store.put(
        [NewTask(id="f", name="f"), NewTask(id="g", name="g", key='"k"'), NewTask(id="h", name="h", lane="l")]
    )
    await store.put([NewTask(id="behind", name="h", lane="l", body=b"b", version=0)])
    await store.join("o", 60_000_000)
    await store.pause(pause, None)
    assert [pause] == [pause_of(row) for row in await store.pauses()]
    assert left == "".join(sorted(await claimed_by(store, turns=turns)))
    held = [id for id in "fgh" if id not in left]
    is_queue = pause == Pause(queue="default")
    state = DurableState.READY if is_queue else DurableState.PAUSED
    counts = await store.counts()
    assert (len(held), len(left), 1, 0) == (
        counts[state],
        counts[DurableState.CLAIMED],
        counts[DurableState.BEHIND],
        counts[DurableState.UNKNOWN],
    )
    backlog = [("default", "h", DurableState.BEHIND, 1), *(("default", id, state, 1) for id in held)]
    found = await store.backlog()
    assert sorted(backlog) == [(row.queue, row.name, row.state, row.count) for row in found]
    rows = await store.find(held)
    assert {row.due_us for row in rows} <= {row.due_us for row in found}
    assert [(state, id, 1, "") for id in held] == [(row.state, row.name, row.version, row.owner) for row in rows]
    assert held == [row.id for row in await store.rows(state)]
    assert [] == await store.rows(DurableState.UNKNOWN)
    assert 0 == await store.revive("default", [(name, 1) for name in "fgh"])
    assert [state] * len(held) == await store.requeue(held)
    assert await store.resume(pause)
    assert not await store.resume(pause)
    assert [] == await store.pauses()
    assert held == sorted(await claimed_by(store, turns=turns))


async def test_pause_ends_by_the_clock_of_the_store(store, clock):
    """A pause with an end is over then; a second call sets another end, and paused tasks can be cancelled meanwhile."""
    await store.put(
        [NewTask(id="1", name="f"), NewTask(id="2", name="f", lane="l"), NewTask(id="3", name="f", lane="l")]
    )
    await store.join("o", 60_000_000)
    now_us = clock.now_us
    await store.pause(Pause(function="f"), now_us + 5)
    await store.pause(Pause(function="f"), now_us + 10)
    clock.set(now_us + 9)
    assert [] == await claimed_by(store)
    assert [DurableState.PAUSED] == [row.head_state for row in await store.lanes()]
    assert [now_us + 10] == [row.until_us for row in await store.pauses()]
    assert [DurableState.PAUSED, DurableState.PAUSED] == await store.cancel(["1", "2"])
    assert [] == await claimed_by(store)  # the next of the lane is set aside as well
    clock.set(now_us + 10)
    assert [] == await store.pauses()
    assert ["3"] == await claimed_by(store)


async def test_each_claim_moves_some_of_many_paused_tasks(store, clock):
    """A claim sets aside a thousand paused tasks, or puts back a thousand, and then takes what stands behind them."""
    for first in range(0, 2500, 500):
        await store.put([NewTask(id=str(first + n), name="f", body=b"x") for n in range(500)])
    await store.put([NewTask(id="last", name="g", priority=-1.0)])
    await store.join("o", 60_000_000)
    await store.pause(Pause(function="f"), None)
    claimed, moved = [], []
    for _ in range(4):
        claimed += await claimed_by(store, 1)
        moved.append((await store.counts())[DurableState.PAUSED])
    assert ["last"] == claimed
    assert [1000, 2000, 2500, 2500] == [count - count % 500 for count in moved]
    await store.resume(Pause(function="f"))
    found = []
    for _ in range(9):
        found += await claimed_by(store, 500)
    assert sorted(map(str, range(2500))) == sorted(found)
    clock.set(clock.now_us + KEPT_US)
    assert [] == await claimed_by(store)
    assert 0 == (await store.counts())[DurableState.PAUSED]


async def test_pause_beside_claims(store):
    """While owners claim, no claim that begins during a pause has paused tasks; after all of it each was claimed once."""
    await store.put([NewTask(id=f"{name}{n}", name=name) for n in range(300) for name in "fg"])
    owners = [f"o{n}" for n in range(4)]
    for owner in owners:
        await store.join(owner, 60_000_000)
    paused, found, wrong = 0, [], []  # the number of the pause that is in force, or 0

    async def work(owner):
        while len(found) < 600:
            was_paused = paused
            ids = await claimed_by(store, 5, owner)
            found.extend(ids)
            wrong.extend(id for id in ids if id[0] == "f" and was_paused == paused > 0)  # not of two pauses
            await asyncio.sleep(0)

    async def change():
        nonlocal paused
        for number in range(1, 6):
            await store.pause(Pause(function="f"), None)
            paused = number
            count = len(found)
            while len(found) < min(count + 40, 600) and any(each[0] == "g" for each in left()):
                await asyncio.sleep(0)
            paused = 0
            await store.resume(Pause(function="f"))

    def left():
        return {f"{name}{n}" for n in range(300) for name in "fg"}.difference(found)

    await asyncio.gather(change(), *map(work, owners))
    assert [] == wrong
    assert sorted(f"{name}{n}" for n in range(300) for name in "fg") == sorted(found)


async def test_resume_beside_pause(store):
    """Of a pause and a resume at once, one is the last: then all tasks are claimed, or none, and none is left behind."""
    await store.join("o", 60_000_000)
    pause = Pause(function="f")
    for n in range(10):
        await store.put([NewTask(id=f"{n}", name="f")])
        await asyncio.gather(
            store.pause(pause, None),
            store.resume(pause),
            claimed_by(store),
            store.resume(pause),
            store.pause(pause, None),
        )
        ids = await claimed_by(store)
        assert not (ids and await store.pauses())
        await store.resume(pause)
        await claimed_by(store)
    counts = await store.counts()
    assert (0, 0, 10) == (counts[DurableState.PAUSED], counts[DurableState.READY], counts[DurableState.CLAIMED])


def save(store, definition):
    """Save a repetition."""
    return store.save_repetition("r", definition=definition, queue="default", function="f", schedule="often")


def occurrence(number, definition, *, lane=None, allow_overlap=False):
    """Return an occurrence of a saved repetition that is due in the far future."""
    due_us = due_of(number)
    task = NewTask(
        id=occurrence_id("r", due_us), name="f", due_us=due_us, is_named=True, lane=lane, body=definition.encode()
    )
    return Occurrence("r", task, "often", f"spec of {definition}", 5, allow_overlap, definition, is_saved=True)


def due_of(number):
    """Return when an occurrence is due."""
    return (10**5 + number) * 10**9


async def place(store, *numbers, definition="d", **options):
    """Place occurrences one after the other; return what became of each."""
    return [(await store.place("o", [occurrence(number, definition, **options)]))[0].placement for number in numbers]


async def numbers_of(store):
    """Return the numbers of the occurrences in the store."""
    return [row.due_us // 10**9 - 10**5 for row in await store.rows()]


@pytest.mark.parametrize("change", ["pause", "save", "both", "remove"])
@pytest.mark.parametrize("how", ["skip", "cancel"])
async def test_dropped_occurrence_is_not_placed_again(store, clock, how, change):
    """What was skipped or cancelled is not placed again years later: after a pause, by another definition, or removed between."""
    await store.join("o", 10**16)
    await store.beat("o")
    await save(store, "d")
    for number in (1, 2):
        assert [Placement.PLACED] == await place(store, number)
        if how == "skip":
            assert due_of(number) == await store.skip_repetition("r")
        else:
            assert [DurableState.SCHEDULED] == await store.cancel([occurrence(number, "d").task.id])
    if change == "remove":
        assert 1 == await store.forget(["r"])
        await save(store, "d")
    assert [Placement.PLACED] == await place(store, 3)
    clock.set(due_of(0))
    await store.beat("o")
    definition = "d"
    if change in ("pause", "both"):
        await store.pause_repetition("r", due_of(5))
        assert [Placement.PAUSED, Placement.PLACED] == await place(store, 4, 5)
        assert await store.pause_repetition("r", ENDED)
    if change != "pause":  # also removed, as what waits is not asked for again by the same definition
        definition = "e"
        await save(store, definition)
    placed = await place(store, 1, 2, 3, definition=definition)
    assert [Placement.PAST, Placement.PAST, Placement.PLACED] == placed
    assert [3] == await numbers_of(store)


@pytest.mark.parametrize("end", [End.RETRY, End.SNOOZED, End.RELEASED])
@pytest.mark.parametrize("change", ["pause", "save", "skip", "remove"])
async def test_tried_occurrence_goes_on(store, clock, change, end):
    """What a process has claimed once stays with its state, and holds back the next one, like one that is claimed now."""
    await store.join("o", 60_000_000)
    await save(store, "d")
    await place(store, 1)
    clock.set(due_of(1))
    [claimed] = (await store.claim(Claim(owner="o", count=1))).tasks
    await store.save([(claimed.ref, b"half")])
    assert [True] == await store.finish([TaskOutcome(claimed.ref, end, 10)])
    [row] = await store.repetitions()
    assert row.next_us is None
    if change == "skip":
        assert await store.skip_repetition("r") is None
    elif change == "remove":
        assert 1 == await store.forget(["r"])
    elif change == "save":
        await save(store, "e")
        assert [Placement.BUSY] == await place(store, 2, definition="e")
    else:
        await store.pause_repetition("r", due_of(9))
        await store.pause_repetition("r", ENDED)
        assert [Placement.BUSY] == await place(store, 2)
    clock.set(due_of(1) + 10)
    [again] = (await store.claim(Claim(owner="o", count=1))).tasks
    assert (claimed.id, b"half") == (again.id, again.saved)


async def test_occurrence_of_an_unknown_function_is_replaced(store, clock):
    """What was set aside because its function is unknown does not hold back the next one, by another definition."""
    await store.join("o", 60_000_000)
    await save(store, "d")
    await place(store, 1)
    clock.set(due_of(1))
    [claimed] = (await store.claim(Claim(owner="o", count=1))).tasks
    await store.finish([TaskOutcome(claimed.ref, End.UNKNOWN)])
    await save(store, "e")
    assert [Placement.PLACED] == await place(store, 2, definition="e")
    assert [2] == await numbers_of(store)


@pytest.mark.parametrize("lane", [None, "repetition r"])
@pytest.mark.parametrize("change", ["pause", "save", "remove"])
async def test_older_occurrences_that_wait_are_dropped_too(store, clock, change, lane):
    """Of a repetition that is paused, changed or removed, nothing goes on but what was claimed; nothing else is touched."""
    await store.join("o", 60_000_000)
    await save(store, "d")
    others = [
        occurrence_id("rr", due_of(1)),
        occurrence_id("", due_of(1)),
        "r@home",
        occurrence_id("r", due_of(1)) + "z",
    ]
    await store.put([NewTask(id=id, name="g", queue="other") for id in others])
    for number in range(1, 5):
        clock.set(due_of(number) - 1)
        assert [Placement.PLACED] == await place(store, number, lane=lane, allow_overlap=True)
        if number == 2:
            clock.set(due_of(1))
            assert 1 == len((await store.claim(Claim(owner="o", count=1))).tasks)
    if change == "pause":
        await store.pause_repetition("r", due_of(4))
        left = [1, 4]
    elif change == "save":
        await save(store, "e")
        left = [1]
    else:
        assert 1 == await store.forget(["r", "unknown"])
        left = [1]
    assert sorted(others) == sorted(row.id for row in await store.rows() if row.name == "g")
    assert left == [number for number in await numbers_of(store) if number > 0]


async def test_other_processes_learn_of_changed_repetitions(store, clock):
    """The number of a wait rises soon after another process has saved, paused, resumed or skipped a repetition."""
    other = store.twin() if hasattr(store, "twin") else store
    await other.open(clock)
    try:
        await other.join("o", 60_000_000)
        count = await store.wait(0.01)
        for change in (
            lambda: save(other, "d"),
            lambda: other.pause_repetition("r", None),
            lambda: other.pause_repetition("r", ENDED),
            lambda: other.skip_repetition("r"),
        ):
            await other.place("o", [occurrence(1, "d")])
            while await store.wait(0.2) > count:  # what was told before
                count = await store.wait(0.01)
            await change()
            async with asyncio.timeout(60):
                while await store.wait(1) <= count:
                    await asyncio.sleep(0)
            count = await store.wait(0.01)
        [changed] = await store.changed_repetitions("default")
        assert ("r", "d") == changed[:2]
    finally:
        await other.aclose()


async def test_changes_beside_placements(store):
    """Whatever happens at once, nothing waits by an old definition, during a pause or after the end of its repetition."""
    owners = [f"o{n}" for n in range(3)]
    for owner in owners:
        await store.join(owner, 60_000_000)
    for n in range(12):
        old, new = str(n), str(n + 1)
        kind = n % 4
        await save(store, old)
        changes = [store.pause_repetition("r", None), store.skip_repetition("r"), store.forget(["r"]), save(store, new)]
        for each in changes[:kind] + changes[kind + 1 :]:
            each.close()
        places = [
            store.place(owner, [occurrence(2 * n, definition, lane="l")])
            for owner in owners
            for definition in (old, new)
        ]
        await asyncio.gather(*places[:3], changes[kind], *places[3:])
        rows = await store.rows()
        if kind == 0:
            assert [] == rows
            assert await store.pause_repetition("r", ENDED)
        elif kind == 1:
            assert len(rows) <= 1
        elif kind == 2:
            assert [] == rows == await store.repetitions()
        else:
            assert {new.encode()} >= {row.body for row in rows}
            [placed] = await store.place("o0", [occurrence(2 * n, old)])
            assert Placement.SUPERSEDED is placed.placement
        await store.forget(["r"])


async def test_wait_ends_with_a_put_and_at_its_time(store):
    """A wait ends with a put or at its time; spurious wake-ups are allowed, missed ones are not."""
    loop = asyncio.get_running_loop()
    await store.wait(0.01)  # use up the wake-up of what was before
    began = loop.time()
    waiting = asyncio.ensure_future(store.wait(30))
    await asyncio.sleep(0.02)
    await store.put([NewTask(id="x", name="f")])
    await waiting
    assert loop.time() - began < 20
    await store.wait(0.05)


async def test_nothing_is_asked_for_and_nothing_happens(store):
    """Calls with empty lists return empty lists, and do nothing."""
    assert [] == await store.put([])
    assert [] == await store.finish([])
    assert [] == await store.cancel([])
    assert [] == await store.requeue([])
    assert [] == await store.find([])
    assert 0 == await store.revive("default", [])


async def test_memory_that_is_not_open_is_refused_as_any_store():
    """A store in memory that is not open refuses a call with the error and the remedy of the other stores."""
    with pytest.raises(StoreUnavailableError, match="it is not open: enter DurableTasks"):
        await MemoryStore().put([])
