"""The history of a store: the last end of each id, in the order of the ends, until its time."""

from ratelimited_executor._core.durable.history import FORGOTTEN_MAX, EndedTasks, ending_of
from ratelimited_executor._core.durable.tasks import End, KeptTask


def kept(id, keep_us=100, **options) -> KeptTask:
    return KeptTask(str(id), "mail", "f", 1, 0, 7, keep_us, **options)


def test_rows_are_those_of_the_last_ends_first():
    """Rows come from the last end on, after a number, and a second end of an id replaces the first."""
    history = EndedTasks()
    for now_us, id in enumerate("abcb"):
        history.add(now_us, "done", kept(id))
    assert [("b", 4), ("c", 3), ("a", 1)] == [(row.id, row.number) for row in history.rows(None, 9)]
    assert ["b"] == [row.id for row in history.rows(None, 1)]
    assert ["a"] == [row.id for row in history.rows(3, 9)]
    assert (3, -4) == (history.find("b").ended_us, history.find("b").started_us)
    assert history.find("d") is None


def test_each_is_kept_for_its_time():
    """A row goes once its own time has passed, and not with that of a former end of its id; some at a time."""
    history = EndedTasks()
    history.add(0, "done", kept("a", 10))
    history.add(0, "done", kept("b", 30))
    history.add(5, "done", kept("a", 20))
    left = []
    for now_us in (9, 10, 24, 25, 30):
        history.forget(now_us)
        left.append("".join(row.id for row in history.rows(None, 9)))
    assert ["ab", "ab", "ab", "b", ""] == left
    for n in range(FORGOTTEN_MAX + 5):
        history.add(0, "done", kept(n))
    history.forget(100)
    assert 5 == len(history.rows(None, 9))


def test_ending_of_a_task_that_is_gone():
    """What is neither done nor expired and yet gone was cancelled."""
    endings = {end: ending_of(end) for end in End}
    assert ("done", "expired") == (endings.pop(End.DONE), endings.pop(End.EXPIRED))
    assert {"cancelled"} == set(endings.values())
