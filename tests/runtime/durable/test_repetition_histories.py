"""Random histories of durable repetitions, in memory and in a file, and laws broken on purpose, which must be found."""

import os
from collections import Counter

import pytest

from ratelimited_executor._core.durable import repetitions
from ratelimited_executor._core.durable.repetitions import RepetitionTable
from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._core.durable.tasks import DurableState, Placed, Placement
from ratelimited_executor.durable import MemoryStore, SQLiteStore
from ratelimited_executor.stores.tasks import sqlite

from ...helpers import skip_without_apsw
from .repetition_histories import history_of

COUNT = int(os.environ.get("REPETITION_HISTORIES", "12"))


@pytest.mark.slow
def test_laws_of_repetitions() -> None:
    """No occurrence starts twice, off its schedule, during another or after its cancellation, and none is lost."""
    events, starts = Counter(), 0
    for seed in range(COUNT):
        history = history_of(seed)
        assert [] == history.wrong, seed
        events += history.events
        starts += history.starts
    assert starts > 20 * COUNT
    assert {"kill", "stop", "pause", "release", "cancel", "remove", "skip", "hold", "save", "snooze"} == set(events)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000])
def test_laws_of_repetitions_in_a_file(tmp_path, monkeypatch, seed) -> None:
    """The same laws hold on a SQLite file."""
    skip_without_apsw()
    monkeypatch.setattr(sqlite, "_LOOK_SECONDS", 1.0)  # the processes share a connection, and see all changes without
    history = history_of(seed, lambda: SQLiteStore(tmp_path / "tasks.db"))
    assert [] == history.wrong
    assert history.starts > 10


def busy_is_ignored(monkeypatch) -> None:
    """Put an occurrence although the previous one has not ended."""
    place = TaskTable._place_one
    monkeypatch.setattr(
        TaskTable,
        "_place_one",
        lambda self, now, owner, asked: place(self, now, owner, asked._replace(allow_overlap=True)),
    )


def old_is_kept(monkeypatch) -> None:
    """Leave what waits by another declaration."""
    monkeypatch.setattr(TaskTable, "_drop_waiting", lambda *_: False)


def ended_is_not_noticed(monkeypatch) -> None:
    """Regard an occurrence that has ended as one that runs."""
    place = TaskTable._place_one

    def stuck(self, now, owner, asked):
        answer = place(self, now, owner, asked)
        return answer._replace(placement=Placement.BUSY) if answer.id in self._ended else answer

    def forgetful(self, now, owner, asked):
        row = self._repetitions.get(asked.name)
        is_ended = row is not None and row.last_id in self._ended
        return Placed(Placement.BUSY, row.last_id, row.last_due_us) if is_ended else stuck(self, now, owner, asked)

    monkeypatch.setattr(TaskTable, "_place_one", forgetful)


def pause_is_ignored(monkeypatch) -> None:
    """Place occurrences during a pause."""
    monkeypatch.setattr(RepetitionTable, "pause_repetition", lambda *_: False)


def skipped_is_forgotten(monkeypatch) -> None:
    """Place a skipped occurrence again."""
    skip = RepetitionTable.skip_repetition

    def forgetful(self, now, name):
        answer = skip(self, now, name)
        if answer is not None:
            self._repetitions[name] = self._repetitions[name].dropped()
        return answer

    monkeypatch.setattr(RepetitionTable, "skip_repetition", forgetful)


def skipped_is_placed_later(monkeypatch) -> None:
    """Remember a skipped or cancelled occurrence only until the next one is placed."""
    monkeypatch.setattr(TaskTable, "_pass", lambda *_, **__: None)


def tried_is_dropped(monkeypatch) -> None:
    """Drop an occurrence that snoozes."""
    monkeypatch.setattr(
        repetitions, "is_waiting", lambda state, _: state not in (DurableState.CLAIMED, DurableState.DEAD)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        busy_is_ignored, old_is_kept, ended_is_not_noticed, pause_is_ignored,
 skipped_is_forgotten,
        skipped_is_placed_later, tried_is_dropped,
    ],
)  # fmt: skip
def test_broken_law_is_found(monkeypatch, broken) -> None:
    """A law that is broken on purpose is found by one of the histories."""
    broken(monkeypatch)
    for seed in range(100):
        if history_of(seed, MemoryStore).wrong:
            return
    pytest.fail("not found")
