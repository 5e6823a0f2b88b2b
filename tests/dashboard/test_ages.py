"""The age of a task is known from the numbers of starts at a few moments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.dashboard.ages import StartMarks


def test_age_lies_between_two_moments():
    """A task has started after the last moment with a lower number, and before the first one with a number as high."""
    marks = StartMarks()
    for at, number in ((0, 10), (5, 20), (10, 30)):
        marks.note(at, number, 5)
    assert marks.age(15, 12) == (7, 12)
    assert marks.age(20, 12) == (7, 12)
    assert marks.age(21, 12) == (2, 7)
    assert marks.age(31, 12) == (0, 2)
    assert marks.age(5, 12) == (12, None)


def test_moments_before_the_oldest_task_are_forgotten():
    """While nothing runs, one moment is kept."""
    marks = StartMarks()
    for at in range(100):
        marks.note(at, at, None)
    assert len(marks) == 1
    assert marks.age(100, 101) == (0, 2)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 3)), min_size=1, max_size=300), st.data())
def test_true_age_is_within_the_bounds(steps, data):
    """However many moments pass, few are kept, and the bounds of each age hold."""
    marks, now, number, started = StartMarks(), 0.0, 0, {}
    for seconds, count in steps:
        now += seconds
        for _ in range(count):
            number += 1
            started[number] = now - seconds / 2
        if started and data.draw(st.booleans()):
            del started[data.draw(st.sampled_from(sorted(started)))]
        marks.note(now, number, min(started, default=None))
        assert len(marks) <= 64
    for each, at in started.items():
        least, most = marks.age(each, now + 1)
        assert least <= now + 1 - at + 1e-9
        assert most is None or now + 1 - at <= most + 1e-9


def test_age_of_an_old_task_stays_known_to_some_percent():
    """After an hour, the age of a task is known to some tenth."""
    marks = StartMarks()
    for step in range(720):
        marks.note(5.0 * step, step, 100 if step >= 100 else None)
    least, most = marks.age(100, 3600.0)
    assert least <= 3100 <= most
    assert most == pytest.approx(least, rel=0.2)
