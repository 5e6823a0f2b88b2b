"""Repairs of many durable tasks at once."""

import pytest

from ratelimited_executor._core.durable.tasks import Claim, DurableState, End, TaskOutcome
from ratelimited_executor._runtime.durable import repairs
from ratelimited_executor._runtime.durable.repairs import Selection, repair
from ratelimited_executor.durable import DurableTasks


@pytest.fixture
async def tasks(store):
    """Twelve dead letters of two functions, half of them with a key; the later ones with another error."""
    async with DurableTasks(store) as made:

        @made.task
        async def charge(number): ...

        @made.task
        async def mail(number): ...

        await store.join("o", 10**9)
        for first, error in ((0, "TimeoutError: slow"), (6, "ValueError: wrong")):
            for n in range(first, first + 6):
                await (charge if n % 2 else mail).put(n, id=f"{n}", key=7 if n % 3 == 0 else None, at=1000 + first)
            claims = await store.claim(Claim(owner="o", count=99))
            await store.finish([TaskOutcome(each.ref, End.DEAD, error=error) for each in claims.tasks])
        yield made


def ids(rows):
    """Return the ids of tasks."""
    return [row.id for row in rows]


async def test_selected_dead_letters_are_put_back(tasks):
    """Dead letters are selected by function, key, time and error, all of which must fit; a dry run changes nothing."""
    for options, found in (
        ({}, "0 1 2 3 4"),
        ({"function": tasks.functions["charge", 1]}, "1 3 5 7 9"),
        ({"function": "mail", "error": "slow"}, "0 2 4"),
        ({"since": 1006, "key": 7}, "6 9"),
        ({"queue": "other"}, ""),
        ({"lane": "l"}, ""),
    ):
        summary = await tasks.requeue_where(**options, dry_run=True)
        assert found.split() == ids(summary.examples)
        assert len(await tasks.rows(DurableState.DEAD)) == 12
        assert (await tasks.cancel_where(DurableState.DEAD, **options, dry_run=True)).count == summary.count
    assert 6 == (await tasks.requeue_where(error="wrong")).count
    assert 0 == (await tasks.requeue_where(error="wrong")).count
    assert [str(n) for n in range(6, 12)] == ids(await tasks.rows(DurableState.READY))


async def test_selected_tasks_are_cancelled(tasks):
    """Tasks in a state, or in any, are cancelled if they are selected."""
    assert 0 == (await tasks.cancel_where(DurableState.READY)).count
    summary = await tasks.cancel_where(DurableState.DEAD, function="charge")
    assert (6, "1 3 5 7 9") == (summary.count, " ".join(ids(summary.examples)))
    assert 6 == (await tasks.cancel_where(None)).count
    assert [] == await tasks.rows()


async def test_steps_are_small_and_each_task_is_changed_once(tasks, store, monkeypatch):
    """Tasks are changed some at a time, with the progress, if they still are in the state."""
    monkeypatch.setattr(repairs, "_STEP", 5)
    steps, progress = [], []

    async def requeue(some):
        steps.append(list(some))
        if len(steps) == 1:  # others change some meanwhile
            await store.cancel(["7"])
            await store.requeue(["8"])
        return len(some)

    summary = await repair(
        store, DurableState.DEAD, Selection(), requeue, progress=lambda *counts: progress.append(counts)
    )
    assert (10, [(5, 12), (8, 12), (10, 12)]) == (summary.count, progress)
    assert [["0", "1", "2", "3", "4"], ["5", "6", "9"], ["10", "11"]] == steps


async def test_tasks_that_come_into_the_state_meanwhile_are_left(tasks):
    """The next task of a lane, which becomes ready when the one before it is cancelled, is not cancelled with it."""
    for n in range(3):
        await tasks.functions["mail", 1].put(n, lane="l", id=f"l{n}")
    assert 1 == (await tasks.cancel_where(DurableState.READY)).count
    assert ["l1"] == ids(await tasks.rows(DurableState.READY))


async def test_wrong_arguments_are_refused(tasks):
    """A selection with a wrong argument is refused, and changes nothing."""
    for options in ({"function": 1}, {"key": 1.5}, {"error": b"x"}, {"since": "today"}, {"dry_run": 1}):
        with pytest.raises(TypeError, match=next(iter(options))):
            await tasks.requeue_where(**options)
    with pytest.raises(TypeError, match="state"):
        await tasks.cancel_where("dead")
    assert len(await tasks.rows(DurableState.DEAD)) == 12
