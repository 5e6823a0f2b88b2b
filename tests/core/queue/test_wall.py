"""Tasks due by the wall clock, compared with a list."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.queue import wall
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.calendar import PLAIN_RANK
from ratelimited_executor._core.queue.wall import WallWheel

from ...helpers import examples
from ...waiting import count_on_wall, walk_wall


def run(chores: deque) -> None:
    """Do all chores."""
    while chores:
        if next(chores[0], chores) is chores:
            chores.popleft()


@given(
    st.sampled_from([0.1, 1.0, 60.0]),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.floats(0, 200)),
            st.tuples(st.just("batch"), st.floats(0, 200)),
            st.tuples(st.just("cancel"), st.integers(0, 1000)),
            st.tuples(st.just("read"), st.floats(-50, 60)),
            st.tuples(st.just("chore"), st.just(0)),
        ),
        max_size=40,
    ),
)
@examples(120)
def test_what_is_due_before_the_horizon_is_handed_over_whatever_the_clock_does(record_class, width, steps):
    """Records and batches are handed over once and not before their time, also if the clock goes back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wall, "_READ_COUNT", 2)
        chores: deque = deque()
        wheel = WallWheel(width, chores)
        records, batches = {}, {}
        handed: list = []
        clock = 100.0
        horizons = [clock]

        def record_due(record):
            assert record._due < max(horizons)
            handed.append(record)

        def batch_due(source, due):
            assert due < horizons[-1]
            handed.append(source)

        for step, (action, value) in enumerate(steps):
            if action == "add":
                record = record_class(f"r{step}")
                wheel.add_record(record, value)
                records[record] = value
            elif action == "batch":
                source = BatchSource(3, rank=PLAIN_RANK, name="b", owner=None)
                wheel.add_batch(source, value)
                batches[source] = value
            elif action == "cancel":
                things = [*records, *batches]
                if things:
                    thing = things[value % len(things)]
                    if thing in records:
                        place, thing._place = thing._place, None
                        place.cancel_record()
                        place.calendar.note_gone(place)
                        del records[thing]
                    else:
                        assert 3 == wheel.revoke(thing)
                        del batches[thing]
            elif action == "chore":
                if chores and next(chores[0], chores) is chores:
                    chores.popleft()
            else:
                clock += value
                horizons.append(clock)
                wheel.read(clock, record_due, batch_due)
                if value > 0:
                    run(chores)
                    assert not [record for record, due in records.items() if due < clock and record not in handed], step
            for thing in handed:
                records.pop(thing, None)
                batches.pop(thing, None)
            waiting = len(records) + 3 * len(batches)
            assert waiting == sum(1 for _ in walk_wall(wheel)) == count_on_wall(wheel), step
            assert wheel.is_pending or not batches
        assert len(set(map(id, handed))) == len(handed)


def test_wheel_knows_whether_anything_waits(record_class):
    """The wheel knows if anything waits, as only then the wall clock must be read in every interval."""
    wheel = WallWheel(1.0, deque())
    assert not wheel.is_pending
    wheel.add_record(record_class(), 5.0)
    assert wheel.is_pending
    wheel.clear()
    assert not wheel.is_pending
    assert 0 == count_on_wall(wheel)


def test_an_idle_wheel_keeps_nothing_of_what_was_cancelled(record_class):
    """An empty wheel keeps neither records nor buckets of cancelled tasks."""
    wheel = WallWheel(1.0, deque())
    records = [record_class(str(number)) for number in range(200)]
    for number, record in enumerate(records):
        wheel.add_record(record, 1000.0 + number % 40)
    for record in reversed(records):
        place, record._place = record._place, None
        place.cancel_record()
        wheel.note_gone(place)
    assert not wheel.is_pending
    assert 0 == len(wheel._numbers)
