"""The plan of starts within an interval: even, never outside it, never going back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel.pacing import SpreadPlan


@given(st.integers(1, 200), st.floats(0, 1e6), st.floats(0.01, 3600))
def test_undisturbed_plan_divides_the_interval_evenly(count, start, width):
    """The k-th of n starts comes k n-ths into the interval."""
    plan = SpreadPlan(slack=0.02)
    plan.begin(start, start + width, late_count=0)
    instants = []
    for left in range(count - 1, -1, -1):
        instants.append(plan.next_at)
        plan.started(due=-math.inf, now=plan.next_at, left=left)
    wanted = [start + width * index / count for index in range(count)]
    assert wanted == [pytest.approx(instant, abs=width * 1e-6 + 1e-6) for instant in instants]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), min_size=1, max_size=50), st.sampled_from([0.0, 0.02, 0.3])
)
def test_plan_never_leaves_its_interval_and_never_goes_back(events, slack):
    """The next instant is never before the last one or after the end, for any due times and delays."""
    plan = SpreadPlan(slack=slack)
    plan.begin(10.0, 11.0, late_count=0)
    for index, (due, late) in enumerate(sorted(events)):
        before = plan.next_at
        now = max(before, 10 + due) + late
        plan.started(due=10 + due, now=now, left=len(events) - index - 1)
        assert before <= plan.next_at
        assert plan.next_at <= max(11.0, now)


def test_small_lateness_does_not_add_up():
    """A timer that is always 10 ms late keeps the even instants; one that is 100 ms late moves the rest."""
    plan = SpreadPlan(slack=0.02)
    plan.begin(0.0, 1.0, late_count=0)
    for left in (3, 2, 1):
        plan.started(due=0.0, now=plan.next_at + 0.01, left=left)
    assert 0.75 == pytest.approx(plan.next_at)
    plan.begin(0.0, 1.0, late_count=0)
    plan.started(due=0.0, now=0.1, left=3)
    assert 0.1 + 0.9 / 4 == pytest.approx(plan.next_at)


def test_late_tasks_of_the_interval_before_start_at_once():
    """Late tasks of the previous interval start at once and leave the plan as it is."""
    plan = SpreadPlan(slack=0.02)
    plan.begin(0.0, 1.0, late_count=2)
    for _ in range(2):
        plan.started(due=-1.0, now=0.0, left=3)
        assert 0.0 == plan.next_at
    plan.started(due=0.0, now=0.0, left=1)
    assert 0.5 == plan.next_at
