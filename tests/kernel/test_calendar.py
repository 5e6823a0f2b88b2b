"""All waiting tasks by due time, compared with a sorted list."""

import math
from array import array
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel import buckets, due_order
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.buckets import Bucket
from ratelimited_executor._kernel.calendar import PLAIN_RANK, Calendar
from ratelimited_executor._kernel.timeline import NS, Timeline

from ..helpers import examples, small_counts
from ..waiting import count_in_calendar, walk_calendar

START = 100.0
DELAYS = st.one_of(st.sampled_from([0.0, 0.5, 0.999, 1.0, 1.5, 2.0, 7.0]), st.floats(0, 8))


def make(width: float = 1.0) -> tuple[Calendar, Timeline]:
    timeline = Timeline(monotonic=START, wall=1_000_000.0, interval_ns=int(width * NS))
    return Calendar(timeline, START, deque()), timeline


def begin(calendar: Calendar, timeline: Timeline, now: float) -> None:
    number = timeline.number_at(now)
    calendar.open_until(number, timeline.start_of(number + 1))


def start(calendar: Calendar, source, item) -> str:
    """Start a task that was taken, as the engine does; return its name."""
    calendar.opened_count -= 1
    if source is None:
        return repr(item)
    if isinstance(source, Bucket):
        name = source.calls[item]
        source.clear(item)
        return name
    source.start(item)
    if not source.live:
        calendar.finish(source)
    return f"{source.name}/{item}"


def take_all(calendar: Calendar) -> list:
    """Take all ready tasks, as the engine does; return their names."""
    taken = []
    while calendar.ready.head() is not None:
        run = calendar.ready.pop()
        taken.append(start(calendar, run.source, run.take()))
    return taken


@given(
    st.sampled_from([0.05, 1.0, 3.0]),
    st.lists(
        st.one_of(
            st.tuples(st.just("call"), DELAYS),
            st.tuples(st.just("record"), DELAYS),
            st.tuples(st.just("now"), st.just(0.0)),
            st.tuples(st.just("ready"), st.just(0.0)),
            st.tuples(st.just("rising"), DELAYS),
            st.tuples(st.just("scattered"), DELAYS),
            st.tuples(st.just("cancel"), st.integers(0, 1000)),
            st.tuples(st.just("pull"), st.floats(0, 3)),
            st.tuples(st.just("lone"), st.floats(0, 1)),
            st.tuples(st.just("ahead"), st.just(0)),
            st.tuples(st.just("chore"), st.just(0)),
        ),
        max_size=50,
    ),
)
@examples(200)
def test_tasks_become_ready_as_in_a_sorted_list(record_class, width, steps):
    """Exactly the due tasks are ready, and the counts agree, after any additions, cancellations and compactions."""
    with small_counts(spare=1, open_max=4, slot=8) as patch:
        patch.setattr(buckets, "STEP", 4)
        calendar, timeline = make(width)
        model: dict[str, float] = {}  # waiting tasks and when they are due
        cancels: dict[str, object] = {}
        now = START

        def advance() -> None:
            if now >= calendar.end:
                begin(calendar, timeline, now)

        for step, (action, value) in enumerate(steps):
            name = f"t{step}"
            due = now + (value if isinstance(value, float) else 0.0)
            if action == "call":
                bucket, place = calendar.add_call(due, name, (), None)
                cancels[name] = lambda bucket=bucket, place=place: calendar.cancel_call(bucket, place)
                model[name] = due
            elif action == "now":
                bucket, place = calendar.add_call_ready(now, name, (), None)
                cancels[name] = lambda bucket=bucket, place=place: calendar.cancel_call(bucket, place)
                model[name] = now
            elif action in ("record", "ready"):
                record = record_class(name, due=due)
                (calendar.add_record if action == "record" else calendar.add_ready)(record)

                def cancel(record=record):
                    place, record._place = record._place, None
                    place.cancel_record()
                    place.calendar.note_gone(place)

                cancels[name] = cancel
                model[name] = due
            elif action == "rising":
                source = BatchSource(4, first=due, gap=0.4, rank=PLAIN_RANK, name=name, owner=None)
                calendar.add_batch(source)
                for position in range(4):
                    model[f"{name}/{position}"] = source.due_of(position)
            elif action == "scattered":
                dues = array("d", sorted(now + (value * (position * 7 % 4)) / 2 for position in range(4)))
                source = BatchSource(4, dues=dues, rank=PLAIN_RANK, name=name, owner=None)
                calendar.add_batch(source)
                for position in range(4):
                    model[f"{name}/{position}"] = dues[position]
            elif action == "cancel":
                names = [name for name in model if name in cancels]
                if names:
                    name = names[value % len(names)]
                    cancels[name]()
                    del model[name]
            elif action == "ahead":
                if calendar.numbers and calendar.numbers[0] in calendar.future:
                    if calendar.numbers[0] not in calendar._ahead:
                        calendar.prepare_ahead()
            elif action == "lone":
                now += value
                advance()
                found = calendar.take_lone(now)
                if found is not None:
                    name = start(calendar, *found)
                    assert [name] == [other for other, at in model.items() if at <= now], step
                    del model[name]
            elif action == "chore":
                if calendar._chores and next(calendar._chores[0], calendar) is calendar:
                    calendar._chores.popleft()
            else:
                now += value
                advance()
                for _ in range(100):
                    if calendar.pull(now, 5.0) > 0:
                        break
                taken = take_all(calendar)
                due_names = {name for name, at in model.items() if at <= now}
                late = 1e-6  # a float's bucket may be the one beside
                assert due_names >= set(taken), step
                assert all(model[name] > now - late for name in due_names - set(taken)), step
                for name in taken:
                    del model[name]
            assert len(model) == sum(1 for _ in walk_calendar(calendar)) == count_in_calendar(calendar), step
            opened = sum(1 for at in model.values() if at < calendar.end)
            assert abs(opened - calendar.opened_count) <= sum(abs(at - calendar.end) < 1e-6 for at in model.values()), (
                step
            )
        now += 100
        advance()
        while calendar.pull(now, 5.0) == 0:
            pass
        assert sorted(model) == sorted(take_all(calendar))
        assert 0 == calendar.opened_count == count_in_calendar(calendar)
        assert math.inf == calendar.next_due()


def test_tasks_of_one_interval_come_in_due_order_whatever_they_lie_in(record_class):
    """Calls, records and batches of one interval are merged by due time."""
    calendar, timeline = make()
    calendar.add_call(101.5, "call", (), None)
    calendar.add_record(record_class("record", due=101.2))
    calendar.add_batch(BatchSource(3, first=101.1, gap=0.3, rank=PLAIN_RANK, name="batch", owner=None))
    calendar.add_call(101.3, "call2", (), None)
    begin(calendar, timeline, 101.0)
    assert 101.1 == calendar.next_due()
    calendar.pull(101.9, 100.0)
    assert ["batch/0", "record", "call2", "batch/1", "call", "batch/2"] == take_all(calendar)


def test_interval_that_joined_tasks_belong_to_is_the_running_one():
    """A task due in the running interval is opened at once; a later one stays in its bucket."""
    calendar, _ = make()
    calendar.add_call(100.5, "joined", (), None)
    calendar.add_call(105.5, "future", (), None)
    assert (1, 100.5, 105.0) == (calendar.opened_count, calendar.next_due(), calendar.next_start())


def test_revoked_batch_is_gone_from_everywhere():
    """Revoking a batch counts its waiting tasks once, and none of them becomes ready."""
    calendar, timeline = make()
    source = BatchSource(10, first=100.0, gap=0.5, rank=PLAIN_RANK, name="batch", owner=None)
    calendar.add_batch(source)
    calendar.pull(100.0, 10.0)
    assert ["batch/0"] == take_all(calendar)
    assert 9 == count_in_calendar(calendar)
    assert 9 == calendar.revoke(source)
    assert 0 == count_in_calendar(calendar) == calendar.opened_count == source.live
    begin(calendar, timeline, 110.0)
    calendar.pull(110.0, 10.0)
    assert [] == take_all(calendar)


def test_skipped_intervals_are_opened_in_their_order():
    """After a stall, all tasks that became due meanwhile are ready, the earliest first."""
    calendar, timeline = make()
    for delay in (5.5, 1.5, 3.5, 0.5):
        calendar.add_call(START + delay, f"{delay}", (), None)
    begin(calendar, timeline, 120.0)
    while calendar.pull(120.0, 10.0) == 0:
        pass
    assert ["0.5", "1.5", "3.5", "5.5"] == take_all(calendar)


def test_waiting_until_counts_what_an_interval_holds():
    """Tasks of later buckets are counted without opening the buckets."""
    calendar, timeline = make()
    for delay in (0.5, 1.5, 1.6, 2.5, 9.5):
        calendar.add_call(START + delay, "x", (), None)
    calendar.add_batch(BatchSource(6, first=START + 1.0, gap=1.0, rank=PLAIN_RANK, name="batch", owner=None))
    first = timeline.number_at(START)
    assert [1, 4, 6, 7] == [calendar.waiting_until(first + later) for later in range(4)]


def test_what_joins_while_many_are_dealt_out_lies_with_them():
    """Tasks that join while slots are being filled enter the same stream; merging two would cost a step a task."""
    with small_counts(open_max=2, place=2):
        calendar, timeline = make()
        for index in range(20):
            calendar.add_call(START + 1 + (7 * index % 20) / 25, index, (), None)
        begin(calendar, timeline, START + 1)
        for index in range(20, 25):
            calendar.add_call(START + 1 + index / 25, index, (), None)
        assert [len(group) for group in calendar.groups] == [1]
        assert calendar.opened_count == 25
        while not calendar.pull(START + 2, 1.0):
            pass
        found = []
        while calendar.ready.head() is not None:
            run = calendar.ready.pop()
            position = run.take()
            found.append((run.source.due_of(position), run.source.calls[position]))
            run.source.clear(position)
        assert found == sorted(found)
        assert len(found) == 25
