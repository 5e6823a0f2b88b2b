"""Both bodies compute the same starts; late jobs are counted once."""

import math
from array import array

import pytest

from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor.simulation.shortcut.columns import Columns
from ratelimited_executor.simulation.shortcut.passing import Inflow, _Passing, late_waits, pass_jobs


def inflow(dues, seconds, *, level=0, failures=0.0, lucks=None):
    times = array("d", dues)
    lucks = array("d", lucks or [0.5] * len(times))
    return Inflow(
        Columns(times, times, array("d", seconds), lucks, array("q", [len(times)])),
        failures=failures, rank=(0, TaskClass.OTHER), level=level, waits=[0], executions=1,
    )  # fmt: skip


def pure(inflows, workers, queue, moments, is_step, taking, count):
    return _Passing(inflows, workers, queue, count).run(moments, is_step, taking)


BODIES = pytest.mark.parametrize("body", [pure, pass_jobs], ids=["pure", "in use"])


def run(body, inflows, *, workers=1.0, moments=(100.0,), taking=None):
    moments = array("d", moments)
    return body(inflows, workers, None, moments, bytearray([1] * len(moments)), taking or {}, 2)


@BODIES
def test_jobs_wait_for_a_worker(body):
    """One worker, three jobs of two seconds that come each second."""
    made = inflow([0, 1, 2], [2, 2, 2], failures=0.3, lucks=[0.1, 0.3, 0.9])
    passed = run(body, [made], moments=[0.5, 2.5, 5.0, 6.0], taking={3: [0, 1]})
    assert [0, 2, 4] == list(made.starts)
    assert [1, 2, 3, 3] == list(passed.started)
    assert ([0, 0, 1, 2], [0, 1, 1, 1]) == (list(passed.done), list(passed.failed))
    assert ([1, 1, 1, 0], [0, 1, 0, 0]) == (list(passed.running), list(passed.depth))
    assert [0.5, 2.5, 5.0, 6.0] == list(passed.running_seconds)
    waits, seconds = (histogram for _, _, histogram in passed.taken)
    assert (3, 1.0, 2.0) == (waits.total, waits.mean, waits.max)
    assert (3, 2.0) == (seconds.total, seconds.mean)


@BODIES
def test_the_higher_rank_goes_first(body):
    """A job of level 0 overtakes those that wait."""
    low, high = inflow([0, 1, 1.5], [5, 5, 5], level=1), inflow([4], [5])
    run(body, [low, high])
    assert ([0, 10, 15], [5]) == (list(low.starts), list(high.starts))


@BODIES
def test_a_place_that_ends_as_a_job_falls_due_is_used(body):
    """Ends come before starts of the same instant."""
    made = inflow([0, 3], [3, 1])
    run(body, [made])
    assert [0, 3] == list(made.starts)


@BODIES
def test_jobs_due_together_are_left_to_the_queue(body):
    """Which goes first depends on how they were handed over."""
    assert run(body, [inflow([1, 1], [1, 1]), inflow([1], [1])]).is_unsure
    assert not run(body, [inflow([1, 1], [1, 1]), inflow([2], [1])]).is_unsure


@BODIES
def test_a_crowd_of_several_ranks_is_left_to_the_queue(body):
    """It makes thousands of due jobs ready step by step, and starts some before it knows them all."""
    many = inflow([1.0] * 5000, [1.0] * 5000)
    assert not run(body, [many]).is_unsure
    assert run(body, [inflow([1.0] * 5000, [1.0] * 5000), inflow([0.0], [1.0], level=1)]).is_unsure


@BODIES
def test_values_taken_out_are_forgotten(body):
    """As at the end of a warm-up."""
    made = inflow([0, 10, 20], [1, 2, 3])
    passed = run(body, [made], moments=[15.0, 30.0], taking={0: [1], 1: [0, 1]})
    assert [(0, 1, 2), (1, 0, 3), (1, 1, 1)] == [(moment, meter, found.total) for moment, meter, found in passed.taken]


def test_late_jobs_are_counted_in_each_period():
    """At each end of a period at which one is late and has not started."""
    made = inflow([0, 5, 9, 19.5], [1] * 4)
    made.starts = array("d", [7, 30, math.inf, math.inf])
    assert [[5.0], [15.0, 11.0]] == late_waits(made, 2.0, [10.0, 20.0])
    assert [[], [15.0, 11.0]] == late_waits(made, 6.0, [10.0, 20.0])
