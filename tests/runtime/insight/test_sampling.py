"""Samples are drawn evenly, however often they are taken, and the end of a task belongs to its sample."""

from __future__ import annotations

import pytest

from ratelimited_executor import TaskState
from ratelimited_executor._runtime.insight.sampling import Samples, SampleSize
from ratelimited_executor._runtime.task.accounts import CallOwner

DONE = TaskState.DONE


class Clock:
    """A stand-in for the observed executor that only tells the time."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Course:
    """Starts tasks one after the other, like a queue that is told how many starts to skip until the next sample."""

    def __init__(self, per_second: int, total: int | None = None) -> None:
        self.rests: list[bool] = []
        self.clock = Clock()
        self.samples = Samples(
            size=SampleSize(per_second, total or per_second),
            rest=lambda *, is_resting: self.rests.append(is_resting),
            restart=self.restart,
        )
        self.listener = self.samples.listener
        self.listener.opened(self.clock)
        self.passing = 0
        self.drawn: list[float] = []

    def restart(self) -> None:
        self.passing = 0

    def start(self, count: int, *, running: float | None = 0.0, period: float = 1.0) -> None:
        """Start ``count`` tasks, one a period and 0.25 s late, which run for ``running`` seconds, or on if None."""
        for _ in range(count):
            at = self.clock.time
            if self.passing:
                self.passing -= 1
            else:
                self.passing = self.listener.sampled(at - 0.25, at)
                self.drawn.append(at)
            if running is not None:
                self.clock.time = at + running
                self.listener.ended(CallOwner("x", None, at), DONE)
            self.clock.time = at + period


@pytest.mark.parametrize("count", [1, 9, 10, 11, 25, 100, 1003, 20_000])
def test_what_is_kept_is_every_so_manieth_start(count):
    """The kept starts are every n-th from the first; n doubles until no more than the limit are left."""
    course = Course(10)
    course.start(count, running=0.5)
    started, ended = course.samples.take()
    assert started == ended
    step = 1
    while len(range(0, count, step)) > 10:
        step *= 2
    numbers = [sample.number for sample in started]
    assert numbers == list(range(0, count, step))
    assert {0.25} == {sample.lateness for sample in started}
    assert {0.5} == {sample.duration for sample in ended}
    assert len(course.drawn) < 10 + 7 * count.bit_length()


@pytest.mark.parametrize(("seconds", "limit"), [(0.25, 10), (1, 10), (3, 30), (9, 90), (50, 100)])
def test_limit_grows_with_the_time_since_they_were_taken(seconds, limit):
    """The limit grows by ``per_second`` for each second since the last taking, up to the total."""
    course = Course(10, 100)
    for _ in range(3):
        course.start(int(1000 * seconds), period=0.001)
        started, ended = course.samples.take()
        assert started == ended
        assert limit / 2 <= len(started) <= limit


def test_after_they_are_taken_the_next_start_is_drawn():
    """No sample is returned twice, and after a taking the next starts are all sampled."""
    course = Course(4)
    course.start(1000)
    assert course.samples.take()[0]
    assert ([], []) == course.samples.take()
    course.start(2)
    assert 2 == len(course.samples.take()[0])


def test_where_as_many_start_again_no_more_are_drawn_than_needed():
    """After the first taking the step is known: hardly any samples are drawn only to be discarded."""
    course = Course(10)
    course.start(10_000)
    first = len(course.drawn)
    started, _ = course.samples.take()
    assert 5 <= len(started) <= 10 < first
    for _ in range(3):
        course.drawn.clear()
        course.start(10_000)
        assert 5 <= len(course.samples.take()[0]) <= 10
        assert len(course.drawn) <= 20
    for _ in range(5):
        course.drawn.clear()
        course.start(3)
        started, _ = course.samples.take()
        assert 1 <= len(started)
    assert 3 == len(started)


def test_ends_are_told_of_what_was_kept_alone():
    """A discarded start does not come back with its end, not even after a taking."""
    course = Course(4)
    course.start(100, running=None)
    started, ended = course.samples.take()
    assert [] == ended
    for at in range(100):
        course.listener.ended(CallOwner("x", None, float(at)), DONE)
    assert started == course.samples.take()[1]
    course.listener.ended(CallOwner("x", None, 0.0), DONE)
    course.listener.ended(CallOwner("x", None, 0.5), DONE)
    assert [] == course.samples.take()[1]


def test_ends_matter_only_while_a_sample_runs():
    """The listener asks for ends only while a sampled task runs."""
    course = Course(10)
    course.start(3)
    assert [False, True] * 3 == course.rests
    course.rests.clear()
    course.start(2, running=None)
    assert [False] == course.rests
    course.listener.retried(CallOwner("x", None, 3.0))
    course.listener.ended(CallOwner("x", None, 4.0), TaskState.FAILED)
    assert [False, True] == course.rests
    assert [DONE] * 3 + [None, TaskState.FAILED] == [sample.state for sample in course.samples.take()[1]]
