"""Saved states and the history in every store."""

import asyncio
import json
import subprocess
import sys
import textwrap

import psycopg
import pytest

from ratelimited_executor._core.durable.history import FORGOTTEN_MAX
from ratelimited_executor._core.durable.tasks import (
    Claim,
    DurableState,
    End,
    KeptTask,
    NewTask,
    OnDuplicate,
    Ref,
    TaskOutcome,
    UniqueKey,
)
from ratelimited_executor.durable import DurableTasks
from tests.stores.tasks.test_unique import stores  # noqa: F401  # a fixture

HOUR_US = 3_600_000_000


async def claimed(store, *ids, owner="o", **options):
    """Put tasks, and claim them; return the claims by id."""
    await store.join(owner, HOUR_US)
    await store.put([NewTask(id=id, name="f", **options) for id in ids])
    return {task.id: task for task in (await store.claim(Claim(owner=owner, count=9999))).tasks}


def kept(id, keep_us=HOUR_US, **options) -> KeptTask:
    return KeptTask(id, "default", "f", 1, 0, 1500, keep_us, **options)


def ends(tasks, end=End.DONE, **options) -> list[TaskOutcome]:
    return [TaskOutcome(task.ref, end, kept=kept(id, **options)) for id, task in tasks.items()]


async def test_a_kept_task_is_in_the_history(store, clock):
    """A task that is done, was cancelled or has expired is found with its result; one that is retried is not there."""
    tasks = await claimed(store, *"abcdef", lane=None)
    outcomes = [
        TaskOutcome(tasks["a"].ref, End.DONE, kept=kept("a", result=b'["\0x"]')),
        TaskOutcome(tasks["b"].ref, End.EXPIRED, kept=kept("b")),
        TaskOutcome(tasks["c"].ref, End.RETRY, 10, "error", kept("c")),
        TaskOutcome(tasks["d"].ref, End.RELEASED, kept=kept("d")),
        TaskOutcome(tasks["e"].ref, End.DONE, kept=kept("e", error="too large: ü")),
        TaskOutcome(tasks["f"].ref, End.DONE),
    ]
    await store.cancel(["d"])
    clock.set(clock.now_us + 2000)
    assert [True] * 6 == await store.finish(outcomes)
    assert [False] * 6 == await store.finish(outcomes)
    rows = await store.history()
    assert [
        ("e", "done", None, "too large: ü"), ("d", "cancelled", None, ""), ("b", "expired", None, ""), ("a", "done", b'["\0x"]', ""),
    ] == [(row.id, row.end, row.result, row.error) for row in rows]  # fmt: skip
    assert {("default", "f", 1, 0, 1500)} == {
        (row.queue, row.name, row.version, row.attempt_count, row.run_us) for row in rows
    }
    assert len({row.ended_us for row in rows}) == 1
    assert rows[:2] == await store.history(limit=2)
    assert rows[2:] == await store.history(before=rows[1].number, limit=5)
    assert [rows[3], DurableState.SCHEDULED, None, None] == await store.ended(["a", "c", "f", "x"])


async def test_an_id_that_is_put_again_has_its_last_end(store):
    """Until a task with a known id ends, that is waited for; its end replaces the former one."""
    await store.finish(ends(await claimed(store, "a", "b")))
    tasks = await claimed(store, "a")
    assert [DurableState.CLAIMED] == await store.ended(["a"])
    await store.finish(ends(tasks, result=b"[2]"))
    assert ["a", "b"] == [row.id for row in await store.history()]
    [row] = await store.ended(["a"])
    assert b"[2]" == row.result


async def test_dead_letters_and_paused_tasks_have_their_states(store):
    """A dead letter is in no history, and is told apart."""
    await store.finish(ends(await claimed(store, "a"), End.DEAD))
    assert [DurableState.DEAD] == await store.ended(["a"])
    assert [] == await store.history()


async def test_history_is_deleted_when_its_time_is_over(store, clock):
    """Beats, and ends that are kept, delete what is over, a thousand at a time; the rest stays."""
    begin_us = clock.now_us
    for first in range(0, 2100, 700):
        ids = [f"{first + n}" for n in range(700)]
        assert all(await store.finish(ends(await claimed(store, *ids), keep_us=1_000_000)))
    await store.finish(ends(await claimed(store, "stays")))
    clock.set(begin_us + 999_999)
    await store.beat("o")
    assert 2101 == len(await store.history(limit=9999))
    clock.set(begin_us + 1_000_000)
    counts = []
    await store.finish(ends(await claimed(store, "last")))
    for _ in range(3):
        counts.append(len(await store.history(limit=9999)))
        await store.beat("o")
    assert [2102 - FORGOTTEN_MAX, 2102 - 2 * FORGOTTEN_MAX, 2] == counts
    assert [None] == await store.ended(["0"])
    assert ["last", "stays"] == [row.id for row in await store.history()]


async def test_a_saved_state_is_given_to_the_next_attempt(store):
    """A state is replaced, stays while the task is retried, snoozed, dead or requeued, and is gone with its task."""
    [task] = (await claimed(store, "a")).values()
    assert task.saved is None
    await store.save([(task.ref, b"1")])
    await store.save([(task.ref, b"\0two"), (Ref(task.ref.number, task.ref.token + 1), b"not its claim")])
    for end in (End.RETRY, End.SNOOZED, End.RELEASED, End.DEAD):
        [row] = await store.find(["a"])
        assert b"\0two" == row.saved
        assert [True] == await store.finish([TaskOutcome(task.ref, end, 0, "error")])
        await store.save([(task.ref, b"not claimed")])
        await store.requeue(["a"])
        [task] = (await store.claim(Claim(owner="o", count=1))).tasks
        assert b"\0two" == task.saved
    [row] = await store.rows()
    assert b"\0two" == row.saved
    await store.finish([TaskOutcome(task.ref, End.DONE)])
    [task] = (await claimed(store, "a")).values()
    assert task.saved is None
    await store.save([])


async def test_a_state_outlasts_the_process(store, clock):
    """What was saved is given to whoever claims the task after the loss of its process."""
    [task] = (await claimed(store, "a")).values()
    await store.save([(task.ref, b"1")])
    await store.join("other", HOUR_US)
    begin_us = clock.now_us
    for n in range(4):
        clock.set(begin_us + n * HOUR_US // 3)
        await store.beat("other")
    [again] = (await store.claim(Claim(owner="other", count=1))).tasks
    assert (b"1", 1) == (again.saved, again.lost_count)


async def test_a_task_that_is_replaced_begins_anew(store):
    """A unique put that replaces the arguments of a waiting task drops its state, which belongs to the former ones."""
    unique = UniqueKey("u", while_running=False, on_duplicate=OnDuplicate.REPLACE)
    [task] = (await claimed(store, "a", unique=unique)).values()
    await store.save([(task.ref, b"1")])
    await store.finish([TaskOutcome(task.ref, End.RETRY, HOUR_US, "error")])
    await store.put([NewTask(id="b", name="f", body=b"new", unique=unique)])
    [row] = await store.find(["a"])
    assert (b"new", None) == (row.body, row.saved)


async def test_states_count_in_the_size_of_a_claim(store):
    """A claim, in turn or not, ends before the state that would exceed its size."""
    tasks = await claimed(store, *"abc")
    await store.save([(task.ref, bytes(600)) for task in tasks.values()])
    await store.finish([TaskOutcome(task.ref, End.RELEASED) for task in tasks.values()])
    found = []
    for _ in range(3):
        claims = await store.claim(Claim(owner="o", count=9, size=1000))
        found.append([(task.id, len(task.saved)) for task in claims.tasks])
    assert [[("a", 600)], [("b", 600)], [("c", 600)]] == found


async def test_a_wait_in_another_process_ends_with_the_task(stores):  # noqa: F811  # the fixture
    """Who waits in another process, where nothing runs, hears of the end, and gets the result."""
    runner, other = stores
    tasks = await claimed(runner, *map(str, range(20)))
    async with DurableTasks(other) as waiting:
        waits = [asyncio.ensure_future(waiting.ref(id).wait("30s")) for id in tasks]
        await asyncio.sleep(0.05)
        for id, task in tasks.items():
            await runner.finish([TaskOutcome(task.ref, End.DONE, kept=kept(id, result=f"[{id}]".encode()))])
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert list(range(20)) == await asyncio.gather(*waits)
        assert loop.time() - began < 4  # before the sweep


WORKER = textwrap.dedent("""
    import asyncio, sys
    from ratelimited_executor import RateLimitedExecutor
    from ratelimited_executor.durable import DurableTasks, SQLiteStore, current_task

    tasks = DurableTasks(SQLiteStore(sys.argv[1]), lease=0.6)

    @tasks.task(keep="1h", keep_result=True)
    async def count(to):
        task = current_task()
        begun = task.saved or 0
        for number in range(begun, to):
            task.save(number + 1)
            print(number, flush=True)
            await asyncio.sleep(0.02)
        return [begun, to]

    async def main():
        async with RateLimitedExecutor("x") as executor, tasks.running(executor):
            await asyncio.sleep(60)

    asyncio.run(main())
""")


@pytest.mark.slow
@pytest.mark.real_time("processes are killed")
async def test_killed_in_the_middle_it_goes_on_where_a_beat_has_left_it(tmp_path):
    """A process that is killed loses what was saved since its last beat; the next one goes on from there, and its result is waited for."""
    from ratelimited_executor.durable import SQLiteStore

    path = str(tmp_path / "tasks.db")
    tasks = DurableTasks(SQLiteStore(path), lease=0.6)
    count = tasks.task(name="count")(lambda to: None)

    def start():
        return subprocess.Popen([sys.executable, "-c", WORKER, path], stdout=subprocess.PIPE, text=True)

    async with tasks:
        ref = await count.put(80)
        first = start()
        try:
            while int(await asyncio.to_thread(first.stdout.readline)) < 39:
                pass
        finally:
            first.kill()
            printed, _ = first.communicate()
        row = await ref.row()
        assert row.saved is not None
        [begun] = json.loads(row.saved)
        second = start()
        try:
            assert [begun, 80] == await ref.wait(60)
        finally:
            second.kill()
            second.communicate()
    last = max([39, *map(int, printed.splitlines())])
    assert 0 < begun <= last + 2  # the one after it may have been saved, and not printed


@pytest.mark.skipif(sys.platform == "win32", reason="there is no server to start")
async def test_history_in_postgres_is_read_and_deleted_by_its_indexes(database, clock):
    """No statement of the history, and none that saves a state, reads a table as a whole."""
    from ratelimited_executor.durable import PostgresStore
    from ratelimited_executor.stores.tasks import postgres

    store = PostgresStore(database.url)
    await store.open(clock)
    try:
        async with await psycopg.AsyncConnection.connect(
            database.url, cursor_factory=psycopg.AsyncRawCursor
        ) as connection:
            await postgres._limit(connection)
            arguments = {
                "ended": ("a",), "history": (100, 10), "forget_history": (10, 1000), "save": ('[[1, 1, "00"]]',),
            }  # fmt: skip
            for name, values in arguments.items():
                text = postgres._STATEMENTS[name]
                found = await (await connection.execute(f"explain {text}", values)).fetchall()
                plan = "\n".join(line for (line,) in found)
                assert "Seq Scan" not in plan, (name, plan)
    finally:
        await store.aclose()
