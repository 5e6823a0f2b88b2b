"""A process may end at any await and before any SQL statement: no task is lost. A rule broken on purpose is found."""

import pytest

from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._runtime.durable.running import DurableRunner

from ...helpers import skip_without_apsw
from .crashes import STORES, MemoryImages, crash


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step", "again"), [("memory", 2, 0), ("memory", 5, 2), ("sqlite", 17, 0)])
def test_whatever_a_process_was_at_when_it_ended_another_goes_on(kind, step, again):
    """Another process takes over any image of a table, some of a file, and some of the processes that took over."""
    if kind == "sqlite":
        skip_without_apsw()
    found = crash(kind, step=step, again=again)
    assert [] == found.wrong
    assert found.awaits > 500
    assert found.images > 130
    assert found.lives == len(range(0, found.images, step)) * (1 + again)


def put_before_it_is_kept(monkeypatch) -> None:
    """Let a put return at once, and write its task with the next call only."""
    kept = []
    put = MemoryImages.put

    async def early(self, tasks, *, connection=None):
        late, kept[:] = list(kept), tasks
        await put(self, late, connection=connection)
        return [True] * len(tasks)

    monkeypatch.setattr(MemoryImages, "put", early)


def claims_that_stay(monkeypatch) -> None:
    """Leave the claims of a lost process as they are."""
    give_back = TaskTable._give_back

    def keeping(self, now_us, owner, *, is_lost) -> None:
        if not is_lost:
            give_back(self, now_us, owner, is_lost=is_lost)

    monkeypatch.setattr(TaskTable, "_give_back", keeping)


def ends_before_the_run(monkeypatch) -> None:
    """Delete a task when it begins, so that it runs at most once."""
    started = DurableRunner._started

    def ending(self, run) -> None:
        started(self, run)
        from ratelimited_executor._core.durable.tasks import End, TaskOutcome

        self._end(TaskOutcome(run.claimed.ref, End.DONE))

    monkeypatch.setattr(DurableRunner, "_started", ending)


def states_that_are_dropped(monkeypatch) -> None:
    """Forget the states of a lost process."""
    give_back = TaskTable._give_back

    def dropping(self, now_us, owner, *, is_lost) -> None:
        for task in self._owners[owner].claimed.values():
            task.saved = None
        give_back(self, now_us, owner, is_lost=is_lost)

    monkeypatch.setattr(TaskTable, "_give_back", dropping)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [put_before_it_is_kept, claims_that_stay, ends_before_the_run, states_that_are_dropped]
)
def test_broken_rule_is_found(monkeypatch, broken):
    """A rule broken on purpose is found by one of the images, if not in the first process."""
    broken(monkeypatch)
    try:
        found = crash("memory", step=3)
    except AssertionError:
        return
    assert found.wrong
