"""What a store does with repetitions that users save, pause, resume and skip."""

import pytest

from ratelimited_executor._core.durable.pauses import ENDED
from ratelimited_executor._core.durable.repetitions import RepetitionRecord, notes_on, repetition_row
from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._core.durable.tasks import (
    Claim,
    DurableState,
    End,
    NewTask,
    Occurrence,
    Placement,
    TaskOutcome,
)

S = 1_000_000
MINUTE = 60 * S


class Hourly:
    """A table, and a process that places the first occurrence of a repetition after now, every minute.

    Attributes:
        now: the time.
    """

    def __init__(self) -> None:
        self.table = TaskTable()
        self.now = 600 * MINUTE
        self.table.join(self.now, "a", 10**15)

    def place(self, after=None, *, definition="d", spec="d", is_saved=True, owner="a", allow_overlap=False):
        """Place the first occurrence after a time; return what became of it."""
        due_us = ((self.now if after is None else after) // MINUTE + 1) * MINUTE
        task = NewTask(id=f"r@{due_us // MINUTE}", name="f", due_us=due_us, is_named=True)
        occurrence = Occurrence("r", task, "every 1m", spec, 0, allow_overlap, definition, is_saved)
        [placed] = self.table.place(self.now, owner, [occurrence])
        return placed

    def save(self, definition="d"):
        """Save the repetition."""
        return self.table.save_repetition(
            self.now, "r", definition=definition, queue="default", function="f", schedule="every 1m"
        )

    def pause(self, until_us=None):
        """Pause the repetition."""
        return self.table.pause_repetition(self.now, "r", until_us)

    def row(self):
        """Return the row of the repetition."""
        [row] = self.table.repetitions(self.now)
        return row

    def waiting(self) -> list[str]:
        """Return the ids of all tasks."""
        return [row.id for row in self.table.rows(None, after=0, limit=99)]

    def run(self) -> None:
        """Run what is due."""
        claims = self.table.claim(self.now, Claim(owner="a", count=9))
        self.table.finish(self.now, [TaskOutcome(task.ref, End.DONE) for task in claims.tasks])


@pytest.fixture
def store():
    """A saved repetition, whose first occurrence waits."""
    made = Hourly()
    assert made.save() is True
    assert Placement.PLACED is made.place().placement
    return made


def test_saved_again_it_stays_and_changed_its_occurrence_is_replaced(store):
    """Saving the same changes nothing; another definition deletes what waits, and what was read before places nothing."""
    before = store.table.changed_repetitions("default")
    assert store.save() is False
    assert before == store.table.changed_repetitions("default")
    assert ["r@601"] == store.waiting()
    assert store.save("e") is False
    assert [] == store.waiting()
    [changed] = store.table.changed_repetitions("default")
    assert changed.changed_us > before[0].changed_us
    assert Placement.SUPERSEDED is store.place().placement
    assert Placement.PLACED is store.place(definition="e", spec="e").placement
    assert ["r@601"] == store.waiting()


def test_removed_it_is_not_placed_again(store):
    """What a process has read places nothing once the repetition was removed, and makes no row."""
    assert 1 == store.table.forget(store.now, ["r"])
    assert Placement.SUPERSEDED is store.place().placement
    assert [] == store.table.repetitions(store.now)
    assert [] == store.waiting()


def test_what_code_declares_is_not_saved_over(store):
    """Code takes over what was saved, and is not saved over; removed, it can be saved."""
    assert Placement.PLACED is store.place(is_saved=False, definition="code", spec="code").placement
    assert not store.row().is_saved
    assert store.save() is None
    assert "code" == store.row().definition
    assert [""] == [each.definition for each in store.table.changed_repetitions("default")]
    store.table.forget(store.now, ["r"])
    assert store.save() is True


def test_paused_nothing_is_placed_and_nothing_is_late(store):
    """A pause drops what waits; after it the next occurrence follows, even the one that was dropped."""
    assert store.pause() is False
    assert [] == store.waiting()
    assert (True, None, None) == (store.row().is_paused, store.row().until_us, store.row().next_us)
    assert (Placement.PAUSED, 0) == store.place()[::2]
    assert store.pause() is True
    assert store.pause(ENDED) is True
    assert store.pause(ENDED) is False
    assert (Placement.PLACED, "r@601") == store.place()[:2]
    store.pause()
    store.now += 10 * MINUTE
    store.pause(ENDED)
    store.run()
    assert "r@611" == store.place().id


def test_until_the_end_of_a_pause_only_what_is_due_then_is_placed(store):
    """With an end, the first occurrence from then on is placed, and gives way to an earlier one after a resume."""
    end = store.now + 5 * MINUTE
    store.pause(end)
    assert (Placement.PAUSED, end) == store.place()[::2]
    assert (Placement.PLACED, "r@605") == store.place(end - 1)[:2]
    assert (True, end, end) == (store.row().is_paused, store.row().until_us, store.row().next_us)
    store.pause(ENDED)
    assert ["r@605"] == store.waiting()
    assert "r@601" == store.place().id
    assert ["r@601"] == store.waiting()


def test_occurrence_behind_the_end_of_a_pause_stays(store):
    """A pause that ends before the occurrence that waits leaves that one."""
    store.pause(store.now + S)
    assert ["r@601"] == store.waiting()
    assert (Placement.PLACED, "r@601") == store.place()[:2]
    store.now += 2 * MINUTE
    assert not store.row().is_paused
    store.pause(ENDED)
    assert (DurableState.SCHEDULED, "r@601") == (store.table.find(["r@601"])[0].state, store.row().id)


@pytest.mark.parametrize("change", ["pause", "save", "skip"])
def test_what_is_claimed_runs(store, change):
    """A claimed occurrence is not touched, and the next one follows it."""
    store.now += MINUTE
    [claimed] = store.table.claim(store.now, Claim(owner="a", count=1)).tasks
    if change == "skip":
        assert store.table.skip_repetition(store.now, "r") is None
    elif change == "save":
        store.save("e")
    else:
        store.pause()
        store.pause(ENDED)
    definition = "e" if change == "save" else "d"
    assert Placement.BUSY is store.place(definition=definition, spec=definition).placement
    assert [True] == store.table.finish(store.now, [TaskOutcome(claimed.ref, End.DONE)])
    assert "r@602" == store.place(definition=definition, spec=definition).id


def test_skipped_once_the_one_after_it_follows(store):
    """A skipped occurrence is not placed again; none is skipped where none waits."""
    assert 601 * MINUTE == store.table.skip_repetition(store.now, "r")
    assert store.table.skip_repetition(store.now, "r") is None
    assert Placement.PAST is store.place().placement
    assert "r@602" == store.place(601 * MINUTE).id
    assert store.table.skip_repetition(store.now, "unknown") is None


def test_skipped_it_stays_skipped_over_a_pause(store):
    """A skipped occurrence is not placed after a pause either."""
    store.table.skip_repetition(store.now, "r")
    store.place(601 * MINUTE)
    store.pause()
    store.pause(ENDED)
    assert Placement.PAST is store.place().placement
    assert (Placement.PLACED, "r@602") == store.place(601 * MINUTE)[:2]


def test_skipped_one_is_remembered_until_a_day_after_its_time(store):
    """The id of a skipped occurrence is refused until a day after it would have been due, and then forgotten."""
    day, beats = 86_400 * S, []
    store.table.beat(store.now, "a")
    store.table.skip_repetition(store.now, "r")
    due_us = store.place(601 * MINUTE).due_us - MINUTE
    skipped = NewTask(id="r@601", name="f")
    for late_us in (-S, day - 1, day):
        store.table.beat(due_us + late_us, "a")
        beats.append(store.table.put(store.now, [skipped]))
    assert [[False], [False], [True]] == beats
    assert {} == store.table._passed


def test_changes_are_numbered_whatever_the_clock_does(store):
    """The time of the last change rises with each one, also if the clock was set back."""
    times = []
    for change in (store.pause, lambda: store.save("e"), lambda: store.pause(ENDED), lambda: store.save("f")):
        store.now -= MINUTE
        change()
        times.append(store.table.changed_repetitions("default")[0].changed_us)
    assert sorted(set(times)) == times
    assert [] == store.table.changed_repetitions("other")


def test_notes_say_what_is_unusual():
    """A row says if it was saved, is paused, overlaps, and if nothing places it."""

    def notes(is_declared=True, **facts):
        row = repetition_row("r", RepetitionRecord(**facts), 0, is_declared=is_declared, is_waiting=False)
        return notes_on(row, "soon")

    assert "" == notes(definition='{"overlap":"skip"}')
    assert "saved; overlap: queue; paused" == notes(is_saved=1, until_us=None, definition='{"overlap":"queue"}')
    assert "paused, ends soon; no running process declares it" == notes(is_declared=False, until_us=5)
    assert "saved; no running process knows its function" == notes(is_declared=False, is_saved=1)
