"""Ends of claims are counted by function."""

from collections import Counter

from ratelimited_executor._core.durable.tasks import End
from ratelimited_executor._runtime.durable.counting import ENDS, EndCounts


def test_ends_are_counted_by_function_and_in_all():
    """A claim that was lost counts as lost however its task ended; what expired before a claim counts for no function."""
    counts = EndCounts()
    for name, end, is_in_force in (
        ("send", End.DONE, True),
        ("send", End.DONE, True),
        ("send", End.DEAD, False),
        ("note", End.EXPIRED, True),
        ("note", End.RETRY, True),
    ):
        counts.note(name, end, is_in_force=is_in_force)
    counts.unclaimed += 3
    found = counts.statistics(waiting=4, running=5)
    assert (4, 5, 2, 1, 4, 1, 0) == (
        found.waiting, found.running, found.done, found.lost, found.expired, found.retried, found.dead
    )  # fmt: skip
    assert {"note": {"expired": 1, "retried": 1}, "send": {"done": 2, "lost": 1}} == found.by_function


def test_each_end_has_a_name():
    """Every way in which a claim ends is counted under a name of its own."""
    counts = EndCounts()
    for end in End:
        counts.note("x", end, is_in_force=True)
    counts.note("x", End.DONE, is_in_force=False)
    assert Counter(dict.fromkeys((("x", name) for name in ENDS), 1)) == counts
