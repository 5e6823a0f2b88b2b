"""The due order against ``sorted()``, with additions at any moment."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel import due_order
from ratelimited_executor._kernel.due_order import DueOrder

from ..helpers import examples, small_counts

DUES = st.one_of(
    st.sampled_from([10.0, 10.25, 10.5, 10.999999, 9.0, 11.0, 12.0]), st.floats(min_value=9.5, max_value=11.5)
)


def drain(order: DueOrder, now: float, limit: int) -> list[int]:
    """Read all positions due at ``now``, as the calendar does."""
    taken = []
    while order.head() <= now:
        if order.prepare():
            got = order.take(now, limit)
            assert len(got) <= limit
            taken += got
    return taken


@given(
    st.lists(DUES, max_size=60),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), DUES),
            st.tuples(st.just("add many"), st.lists(DUES, max_size=12)),
            st.tuples(st.just("read"), st.floats(min_value=0, max_value=0.4)),
            st.tuples(st.just("prepare"), st.just(0)),
            st.tuples(st.just("take some"), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(1, 7),
)
@examples(240)
def test_tasks_come_out_as_sorted_by_due_time_and_arrival(initial, steps, limit):
    """Every reading returns due tasks in the order of a stable sort, with additions at any moment."""
    with small_counts(slot=5, open_max=6, run=4, place=3, part=3):
        dues = list(initial)
        order = DueOrder(dues, 10.0, 11.0)
        waiting = set(range(len(dues)))
        now = 10.0

        def expected() -> list[int]:
            return sorted((position for position in waiting if dues[position] <= now), key=lambda p: (dues[p], p))

        for step, (action, value) in enumerate(steps):
            if action == "add":
                dues.append(value)
                order.add(len(dues) - 1)
                waiting.add(len(dues) - 1)
            elif action == "add many":
                for due in value:
                    dues.append(due)
                    order.add(len(dues) - 1)
                    waiting.add(len(dues) - 1)
            elif action == "read":
                now += value
                wanted = expected()
                assert wanted == drain(order, now, limit), step
                waiting.difference_update(wanted)
            elif action == "take some":
                if order.head() <= now and order.prepare():
                    wanted = expected()
                    got = list(order.take(now, limit))
                    assert wanted[: len(got)] == got, step
                    waiting.difference_update(got)
            else:
                order.prepare()
            if waiting:
                assert order.head() <= max(now, min(dues[position] for position in waiting)), step
        now = math.inf
        wanted = expected()
        assert wanted == drain(order, 1e9, limit)
        assert math.inf == order.head()


@pytest.mark.parametrize("count", [0, 1, 512, 513, 20_000])
@pytest.mark.parametrize("shape", ["equal", "rising", "falling", "mixed", "two slots"])
def test_buckets_of_every_size_and_shape_come_out_sorted(count, shape):
    """The order is that of a stable sort for few or many positions, spread or all at one instant."""
    make = {
        "equal": lambda i: 5.5,
        "rising": lambda i: 5 + i / (count + 1),
        "falling": lambda i: 6 - i / (count + 1),
        "mixed": lambda i: 5 + (i * 7919 % 1009) / 1010,
        "two slots": lambda i: 5.2 + (i * 31 % 17) * 1e-6 + (i % 2) * 0.3,
    }[shape]
    dues = [make(i) for i in range(count)]
    order = DueOrder(dues, 5.0, 6.0)
    early = drain(order, 5.4, due_order.RUN_COUNT)
    late = drain(order, 7.0, due_order.RUN_COUNT)
    assert sorted(range(count), key=dues.__getitem__) == early + late
    assert all(dues[position] <= 5.4 for position in early)


def test_a_task_that_joins_a_very_full_slot_takes_its_place():
    """A task may join a slot while its runs are still being sorted or merged."""
    count = 3 * due_order.RUN_COUNT
    dues = [5.5 + (i * 7919 % 1009) * 1e-9 for i in range(count)]
    order = DueOrder(dues, 5.0, 6.0)
    taken: list[int] = []
    while len(taken) < count // 2:
        if order.head() <= 5.6 and order.prepare():
            taken += order.take(5.6)
            dues.append(dues[taken[-1]])
            order.add(len(dues) - 1)
    taken += drain(order, 7.0, due_order.RUN_COUNT)
    assert sorted(taken) == list(range(len(dues)))
    assert [dues[p] for p in taken] == sorted(dues[p] for p in taken)


@pytest.mark.parametrize("count", [100, 2000])
def test_nothing_counts_as_due_before_the_order_begins(count):
    """However long before its start, only what is due by then is counted, whether in one list or in slots."""
    order = DueOrder([5.0 + i / count for i in range(count)], 5.0, 6.0)
    while not order.prepare():
        pass
    assert [0, 0, 0] == [order.count_until(when) for when in (-100.0, 4.0, 4.998)]
    assert count == order.count_until(6.0)


def test_what_joins_after_an_order_made_ahead_is_extended():
    """Tasks added to a bucket that is ordered ahead of time are put into slots in order of arrival."""
    dues = [5.0 + (i % 10) / 10 for i in range(20_000)]
    order = DueOrder(dues, 5.0, 6.0)
    order.prepare()
    dues += [5.0 + (i % 10) / 10 for i in range(5_000)]
    order.extend(range(20_000, 25_000))
    dues.append(5.3)
    order.add(25_000)
    assert sorted(range(len(dues)), key=dues.__getitem__) == drain(order, 6.0, 4096)


def test_nothing_is_early():
    """A task due after the reading is not returned, to the last unit in the last place."""
    dues = [5.5, math.nextafter(5.5, 6), math.nextafter(5.5, 5)]
    order = DueOrder(dues, 5.0, 6.0)
    assert [2, 0] == drain(order, 5.5, 10)
    assert math.nextafter(5.5, 6) == order.head()
