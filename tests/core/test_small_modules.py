"""Spread, expiry, repeating, ordering and states: small pure modules."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.expiry import ExpiryIndex
from ratelimited_executor._core.ordering import (
    TaskClass,
    TaskView,
    default_order,
    earliest_due_first,
    latest_due_first,
)
from ratelimited_executor._core.repeating import MissedTick, next_tick
from ratelimited_executor._core.pacing import SpreadPlan
from ratelimited_executor._core.states import FINAL_STATES, TRANSITIONS, TaskState
from ratelimited_executor._core.timeline import NS, Timeline

# Spread.


@given(st.integers(1, 200), st.floats(0, 1e6), st.floats(0.01, 3600))
def test_undisturbed_plan_divides_the_interval_evenly(count, start, width):
    """The k-th of n starts k n-ths into the interval."""
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
    """Whatever due times and delays do, the next instant is not before the last, nor after the end."""
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
    """So many starts leave the plan as it is; the next one begins to spread."""
    plan = SpreadPlan(slack=0.02)
    plan.begin(0.0, 1.0, late_count=2)
    for _ in range(2):
        plan.started(due=-1.0, now=0.0, left=3)
        assert 0.0 == plan.next_at
    plan.started(due=0.0, now=0.0, left=1)
    assert 0.5 == plan.next_at


# Expiry.


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.floats(0, 10)),
            st.tuples(st.just("discard"), st.integers(0, 1000)),
            st.tuples(st.just("sweep"), st.integers(0, 3)),
            st.tuples(st.just("sweep some"), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
@settings(max_examples=300, deadline=None)
def test_sweep_returns_what_has_passed_and_nothing_else(record_class, steps):
    """Records with a deadline in an earlier interval, each once, those that were discarded left out."""
    timeline = Timeline(monotonic=0.0, wall=1000.0, interval_ns=NS)
    index = ExpiryIndex(timeline)
    inside: dict[object, int] = {}
    number = timeline.number_at(0.0)
    for step, (action, value) in enumerate(steps):
        if action == "add":
            record = record_class(f"r{step}", due=0.0, expires=value)
            index.add(record)
            inside[record] = timeline.number_at(record._options.deadline)
        elif action == "discard" and inside:
            record = list(inside)[value % len(inside)]
            index.discard(record)
            index.discard(record)
            del inside[record]
        elif action == "sweep":
            number += value
            passed = {record for record, at in inside.items() if at < number}
            assert passed == set(index.sweep(number)), step
            for record in passed:
                del inside[record]
        elif action == "sweep some":
            number += value
            for record in itertools.islice(index.sweep(number), value):
                assert inside.pop(record) < number, step
        assert (min(inside.values()) + 1 if inside else None) == index.next_sweep(), step


# Repeating.


@given(
    st.sampled_from([0.0, 3.7, 1e5 + 0.1]),
    st.sampled_from([0.1, 0.25, 1.0, 1 / 3, 7.0]),
    st.integers(0, 1000),
    st.one_of(st.integers(0, 50).map(float), st.floats(0, 50)),
    st.sampled_from(MissedTick),
)
@settings(max_examples=500, deadline=None)
def test_next_tick_is_the_one_its_policy_names(first, period, last, later, missed):
    """BURST: the next number; SKIP: the first not yet past; COALESCE: the newest due, or the next to come."""
    now = first + last * period + later * period
    tick = next_tick(first, period, last, now, missed)
    assert first + tick.number * period == tick.due
    assert tick.number > last

    def due(number):
        return first + number * period

    if missed is MissedTick.BURST:
        assert last + 1 == tick.number
    elif missed is MissedTick.SKIP:
        assert tick.due >= now
        assert tick.number == last + 1 or due(tick.number - 1) < now or math.isclose(due(tick.number - 1), now)
    elif due(last + 1) <= now:
        assert tick.due <= now or math.isclose(tick.due, now)
        assert due(tick.number + 1) > now or math.isclose(due(tick.number + 1), now)
    else:
        assert last + 1 == tick.number


# Ordering.


def view(**changes) -> TaskView:
    base = {
        "name": "x",
        "priority": 0,
        "due": 1.0,
        "is_repeating": False,
        "is_immediate": False,
        "arrival": 1,
    }
    return TaskView(**(base | changes))


def test_default_order_ranks_priority_class_due_and_arrival():
    """Each of the four decides only where those before it are equal."""
    ranked = [
        view(priority=2, due=9.0, arrival=9),
        view(priority=1, is_repeating=True, due=8.0),
        view(priority=1, is_immediate=True, due=7.0),
        view(priority=1, due=1.0, arrival=8),
        view(priority=1, due=2.0, arrival=1),
        view(priority=1, due=2.0, arrival=2),
        view(priority=-1, is_repeating=True, due=0.0),
    ]
    for shuffled in itertools.islice(itertools.permutations(ranked), 0, 5040, 97):
        assert ranked == sorted(shuffled, key=default_order)


def test_other_orders_go_by_due_time():
    """The earliest or the latest first, whatever the priority."""
    early, late = view(due=1.0, priority=-5), view(due=2.0, priority=5)
    assert [early, late] == sorted([late, early], key=earliest_due_first)
    assert [late, early] == sorted([late, early], key=latest_due_first)


def test_classes_rank_repeating_immediate_other():
    """The predecessor's order."""
    assert [TaskClass.REPEATING, TaskClass.IMMEDIATE, TaskClass.OTHER] == sorted(TaskClass)


# States.


def test_every_state_has_its_transitions_and_final_ones_have_none():
    """Five final states; all of them can be reached."""
    assert set(TaskState) == set(TRANSITIONS)
    assert 5 == len(FINAL_STATES)
    assert all(not TRANSITIONS[state] for state in FINAL_STATES)
    reached = set().union(*TRANSITIONS.values())
    assert reached == set(TaskState)  # also waiting, again, for another attempt
    assert "TaskState.DONE" == repr(TaskState.DONE)
