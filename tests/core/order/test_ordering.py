"""Orders: what they compare, and that with ageing no task starves."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.order.ordering import (
    Ageing,
    TaskClass,
    TaskView,
    default_order,
    earliest_due_first,
    latest_due_first,
)

from ...helpers import examples


class Call:
    """The owner of a task, which a view asks for its callable."""

    def __init__(self, fn, args) -> None:
        self.call = fn, args

    def _fn_of(self, position):
        return self.call[0]

    def _args_of(self, position):
        return self.call[1]


def view(fn=None, args=(), **changes) -> TaskView:
    """Return a view of a task; with ``fn``, of a call."""
    base = {
        "name": "x",
        "priority": 0,
        "due": 1.0,
        "is_repeating": False,
        "is_immediate": False,
        "arrival": 1,
        "place": None if fn is None else (Call(fn, args), 0),
    }
    return TaskView(**(base | changes))


def test_default_order_ranks_priority_class_due_and_arrival():
    """The default order ranks by priority, class, due time and arrival, each only if those before are equal."""
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
    """Orders by due time ignore the priority."""
    early, late = view(due=1.0, priority=-5), view(due=2.0, priority=5)
    assert [early, late] == sorted([late, early], key=earliest_due_first)
    assert [late, early] == sorted([late, early], key=latest_due_first)


def test_classes_rank_repeating_immediate_other():
    """Classes rank repeating, immediate, others."""
    assert [TaskClass.REPEATING, TaskClass.IMMEDIATE, TaskClass.OTHER] == sorted(TaskClass)


def test_order_may_go_by_the_callable_and_its_arguments():
    """A view has the callable of its task and the arguments; without a call, None and no arguments."""
    small, large, waiter = view(print, args=(1,)), view(print, args=(2,)), view()
    assert [waiter, small, large] == sorted([large, small, waiter], key=lambda task: task.args)
    assert [None, print] == [waiter.fn, small.fn]


# Ageing.


def aged(priority, due, arrival: int) -> TaskView:
    return TaskView("x", priority, due, is_repeating=False, is_immediate=False, arrival=arrival)


@given(
    st.sampled_from([0.25, 1, 60, 3600]),
    st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 10_000)), min_size=2, max_size=12),
    st.sampled_from([0, 1_704_067_200]),
)
@examples(120)
def test_nobody_waits_for_those_that_come_too_late(seconds, tasks, epoch):
    """With ageing a task of priority p due at d starts before all of priority q due after d + seconds x (q - p)."""
    order = Ageing(seconds)
    views = [aged(priority, float(epoch + due), arrival) for arrival, (priority, due) in enumerate(tasks)]
    keys = {one: order(one) for one in views}
    for one, other in itertools.permutations(views, 2):
        if other.due > one.due + seconds * (other.priority - one.priority):
            assert keys[one] < keys[other]
        elif other.priority == one.priority and other.due == one.due:
            assert (keys[one] < keys[other]) == (one.arrival < other.arrival)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [("1x", ValueError), (b"1", TypeError), (True, TypeError), (None, TypeError), (0, ValueError), (-1, ValueError), (math.inf, ValueError),
     (math.nan, ValueError)],
)  # fmt: skip
def test_seconds_out_of_range_are_refused(seconds, error):
    """Bad seconds are refused: they are a finite number > 0."""
    with pytest.raises(error, match="^seconds(: a duration looks like| must)"):
        Ageing(seconds)


def test_ageing_tells_of_itself():
    """The repr of the order shows its seconds."""
    assert ("Ageing(90)", 90.0) == (repr(Ageing(90)), Ageing(90).seconds)
