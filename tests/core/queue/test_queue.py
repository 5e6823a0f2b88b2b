"""Decisions of the whole queue as timelines: what starts when, without a shell."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor import kernel
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.calendar import PLAIN_RANK
from ratelimited_executor._core.fleet.budget import BudgetPermits
from ratelimited_executor._core.limits.combined import Bound
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.order.ordering import default_order, latest_due_first
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._kernel.states import TaskState

from ...helpers import examples
from ...waiting import live_count, walk
from ..world import World

TIMELINES = [
    # rate, pacing, (name, due) of tasks, starts
    (math.inf, Pacing.SPREAD, [("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)], "a1.000 b1.250 c1.500 d1.750"),
    (math.inf, Pacing.SPREAD, [("a", 1.9), ("b", 1.0)], "b1.000 a1.900"),
    (math.inf, Pacing.SPREAD, [("a", 0.3), ("b", 0.3)], "a0.300 b0.300"),
    (math.inf, Pacing.ON_TIME, [("a", 1.2), ("b", 1.2), ("c", 1.7)], "a1.200 b1.200 c1.700"),
    (1, Pacing.SPREAD, [("a", 1.0), ("b", 1.0), ("c", 1.0)], "a1.000 b2.000 c3.000"),
    (2, Pacing.ON_TIME, [("a", 1.0), ("b", 1.0), ("c", 1.0)], "a1.000 b1.500 c2.000"),
    (10, Pacing.SPREAD, [("a", 1.0), ("b", 1.0)], "a1.000 b1.500"),
    (0, Pacing.SPREAD, [("a", 1.0)], ""),
    ("1/2s", Pacing.SPREAD, [("a", 1.0), ("b", 1.0)], "a1.000 b4.000"),
    # Priorities: due time and arrival decide while all fits, and importance beyond.
    (math.inf, Pacing.SPREAD, [("a", 1.0), ("b", 1.1, 5), ("c", 1.2, 9)], "a1.000 b1.333 c1.667"),
    (math.inf, Pacing.SPREAD, [("a", 1.0), ("b", 1.0, 5), ("c", 1.0), ("d", 1.0, 9)], "a1.000 b1.250 c1.500 d1.750"),
    (1000, Pacing.SPREAD, [("a", 1.0), ("b", 1.0, 5), ("c", 1.0), ("d", 1.0, 9)], "a1.000 b1.250 c1.500 d1.750"),
    (2, Pacing.SPREAD, [("a", 1.0), ("b", 1.0, 5), ("c", 1.0, 9)], "c1.000 b1.500 a2.000"),
    (
        2,
        Pacing.SPREAD,
        [(n, 1.0, p) for n, p in [("a", 5), ("b", 0), ("c", 5), ("d", 1)]],
        "a1.000 c1.500 b2.000 d2.500",
    ),
    (10, Pacing.ON_TIME, [("a", 1.0), ("b", 1.0, 5), ("c", 1.2, 9)], "b1.000 a1.100 c1.200"),
]


@pytest.mark.parametrize("order", [default_order, lambda task: (-task.priority, task.arrival)])
@pytest.mark.parametrize(("rate", "pacing", "tasks", "expected"), TIMELINES)
def test_starts_follow_the_timeline(record_class, rate, pacing, tasks, expected, order):
    """Tasks of a bucket start by rate and pacing as in the timeline."""
    world = World(record_class, rate=rate, pacing=pacing)
    world.queue.set_order(order)
    for name, due, *priority in tasks:
        world.add(name, due, priority=sum(priority))
    world.run(20.0)
    assert expected == world.text()
    assert len(tasks) - len(world.log) == live_count(world.queue) == sum(1 for _ in walk(world.queue))


@given(
    rate=st.sampled_from([math.inf, 10, 2, "1/3s"]),
    pacing=st.sampled_from(Pacing),
    interval=st.sampled_from([0.5, 1.0, 60.0]),
    tasks=st.lists(st.tuples(st.floats(0, 5), st.sampled_from([None, 0.0, 0.5, 1.0, 1.5, 30.0])), max_size=25),
)
def test_short_cut_for_what_is_alone_changes_nothing(record_class, rate, pacing, interval, tasks):
    """The fast path for lone tasks starts the same tasks at the same times."""
    logs = []
    for takes_lone in (True, False):
        world = World(record_class, rate=rate, pacing=pacing, interval=interval)
        world.takes_lone = takes_lone
        for index, (pause, delay) in enumerate(tasks):
            world.add(f"t{index}@", None if delay is None else world.now + delay)
            world.run(world.now + pause)
        world.run(world.now + 300)
        assert len(tasks) == len(world.log)
        logs.append(world.log)
    assert logs[0] == logs[1]


counts_lone = pytest.mark.skipif(kernel.is_compiled, reason="runtime/test_hot_path_guard.py shows it of this kernel")

# Requests to one executor: (pause before, delay or None for now, what, how many or how important).
REQUESTS = st.tuples(
    st.sampled_from([0.0, 0.0, 0.01, 0.125, 0.5, 1.3]),
    st.sampled_from([None, 0.0, 0.03, 0.25, 1.0, 1.0, 1.5, 2.25]),
    st.sampled_from(["record", "record", "important", "expiring", "call", "batch", "cancel", "rate"]),
    st.integers(1, 9),
)


def play(world, requests) -> list[str]:
    """Make requests and let time pass; return the starts and their times."""
    queue, records = world.queue, []
    for index, (pause, delay, kind, count) in enumerate(requests):
        world.run(world.now + pause)
        due = None if delay is None else world.now + delay
        if kind == "batch":
            first = world.now if due is None else due
            kept = {"gap": 0.05 * (count % 3), "rank": PLAIN_RANK, "name": f"b{index}", "owner": None}
            queue.add_batch(BatchSource(count, first=first, **kept), joined=first < queue.interval_end)
        elif kind == "call":
            for number in range(count):
                queue.on_time.add_call(world.now if due is None else due, f"c{index}.{number}", (), None)
        elif kind == "cancel":
            waiting = [record for record in records if record._place is not None]
            if waiting:
                queue.cancel(waiting[count % len(waiting)])
        elif kind == "rate":
            queue.set_rate(Rate.of([2, 10, "1/3s", 100][count % 4]), world.now)
        else:
            for number in range(count if kind == "record" else 1):
                priority = count if kind == "important" else 0
                expires = count / 4 if kind == "expiring" else None
                records.append(world.add(f"r{index}.{number}@", due, priority=priority, expires=expires))
    queue.set_rate(Rate.of(100), world.now)
    world.run(world.now + 10)
    return world.log


@given(
    rate=st.sampled_from([math.inf, 100, 10, 3, "1/3s"]),
    pacing=st.sampled_from(Pacing),
    interval=st.sampled_from([0.5, 1.0, 60.0]),
    early=st.booleans(),
    is_exact=st.booleans(),
    tick=st.sampled_from([0.0, 0.0, 1 / 64]),
    requests=st.lists(REQUESTS, min_size=1, max_size=12),
)
@example(
    rate=math.inf,
    pacing=Pacing.SPREAD,
    interval=0.5,
    early=False,
    is_exact=False,
    tick=0.0,
    requests=[(0.0, 1.0, "batch", 2), (0.0, 1.0, "batch", 4)],
)
@examples(200)
def test_short_way_decides_what_the_long_way_does(
    record_class, rate, pacing, interval, early, is_exact, tick, requests
):
    """With the fast path the same tasks start at the same times in the same order, under any requests."""
    logs = []
    for takes_lone in (True, False):
        world = World(
            record_class, rate=rate, pacing=pacing, interval=interval, early=early, is_exact=is_exact, tick=tick
        )
        world.takes_lone = takes_lone
        logs.append(play(world, requests))
        assert 0 == live_count(world.queue) == world.queue.ready_count()
    assert logs[0] == logs[1]


@counts_lone
@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(("rate", "delays"), [(50, [0.0] * 60), (100, [1 + i / 50 for i in range(60)])])
@pytest.mark.parametrize("pacing", Pacing)
def test_starts_under_a_rate_take_the_short_way(record_class, rate, delays, pacing, is_exact):
    """Starts under a rate take the fast path, except for the first of an interval and several permits at once."""
    world = World(record_class, rate=rate, pacing=pacing, is_exact=is_exact)
    for index, delay in enumerate(delays):
        world.add(f"t{index}@", delay)
    world.run(10.0)
    assert len(delays) == len(world.log)
    assert world.lone_count > 0.9 * len(delays)


def test_deadlines_are_kept_while_each_permit_starts_something(record_class):
    """Expired tasks of an overflow are removed although each permit starts another."""
    world = World(record_class, rate=50, pacing=Pacing.ON_TIME)
    for index in range(500):
        world.add(f"t{index}@", 0.0)
    for index in range(20):
        world.add(f"e{index}@", 0.0, priority=-1, expires=0.5)
    world.run(2.0)
    assert 20 == sum(entry.endswith("expired") for entry in world.log)
    assert world.lone_count > 0 or kernel.is_compiled


@counts_lone
def test_what_is_alone_takes_the_short_cut(record_class):
    """Tasks due apart from each other take the fast path."""
    world = World(record_class, rate=10, pacing=Pacing.ON_TIME)
    for index in range(20):
        world.add(f"t{index}@", 0.7 + index * 0.9)
    world.run(30.0)
    assert (20, 20) == (len(world.log), world.lone_count)


@pytest.mark.parametrize("interval", [0.01, 0.5, 1.0, 2.5, 60.0, 3600.0])
def test_every_width_of_interval_spreads_over_itself(record_class, interval):
    """A long interval is divided into buckets, and spread as one."""
    world = World(record_class, interval=interval)
    for index in range(5):
        world.add(f"t{index}", interval)
    world.run(interval * 3)
    assert [f"t{index}{interval * (1 + index / 5):.3f}" for index in range(5)] == world.log


def test_joined_task_takes_the_first_permit(record_class):
    """A task that joins the interval takes the next permit, before the planned instants of others."""
    world = World(record_class, rate=10)
    for name in "abcd":
        world.add(name, 1.0)
    world.run(1.3)
    world.add("now")
    world.run(3.0)
    assert ["a1.000", "b1.250", "now1.400"] == world.log[:3]
    assert 5 == len(world.log)


@given(st.lists(st.tuples(st.sampled_from([1.0, 1.25, 1.5, 1.9, 1.99]), st.integers(-1, 1)), min_size=1, max_size=12))
def test_plan_is_that_of_its_formula(record_class, tasks):
    """The plan is by due time and arrival, each at an even part of the rest of the interval."""
    world = World(record_class)
    for index, (due, priority) in enumerate(tasks):
        world.add(f"t{index}@", due, priority=priority)
    world.run(3.0)
    expected, planned = [], 1.0
    for place, index in enumerate(sorted(range(len(tasks)), key=lambda index: tasks[index][0])):
        planned = max(planned, tasks[index][0])
        expected.append(f"t{index}@{planned:.3f}")
        planned += (2.0 - planned) / (len(tasks) - place)
    assert expected == world.log


def test_where_a_task_has_joined_the_most_important_takes_its_permit(record_class):
    """At a permit all due tasks compete; at planned instants the due time decides again."""
    world = World(record_class, rate=10)
    for name, due, priority in [("a", 1.0, 0), ("b", 1.0, 1), ("c", 1.0, 0), ("d", 1.0, 2)]:
        world.add(name, due, priority=priority)
    world.run(1.05)
    world.add("now")
    world.run(3.0)
    assert "a1.000 d1.100 b1.200 now1.300 c1.750" == world.text()


@pytest.mark.parametrize("change", ["task", "rate"])
def test_interval_that_becomes_dense_goes_by_importance_at_permits(record_class, change):
    """From when an interval has more tasks than permits, importance decides at each permit."""
    world = World(record_class, rate=10)
    for name, priority in [("a", 0), ("b", 0), ("c", 1), ("d", 2)]:
        world.add(name, 1.0, priority=priority)
    world.run(1.05)
    if change == "rate":
        world.queue.set_rate(Rate(2), 1.05)
    else:
        for number in range(8):
            world.add(f"now{number}-", priority=-1)
    world.run(1.3)
    assert ("a1.000 d1.300" if change == "rate" else "a1.000 d1.100 c1.200 b1.300") == world.text()


def test_interval_that_is_dense_no_more_goes_by_due_time(record_class):
    """Once an interval fits its permits again, the rest is spread over it by due time."""
    world = World(record_class, rate=10)
    records = [world.add(f"t{index}-", 1.0, priority=index % 3) for index in range(15)]
    world.run(1.25)
    assert "t2-1.000 t5-1.100 t8-1.200" == world.text()
    for record in records[6:]:
        if record._place is not None:
            world.queue.cancel(record)
    world.run(3.0)
    assert ["t0-", "t1-", "t3-", "t4-"] == [entry[:3] for entry in world.log[3:]]
    assert "t4-" == world.log[-1][:3]
    assert float(world.log[-1][3:]) > 1.7


def test_lowered_rate_starts_at_its_first_permit(record_class):
    """If a lowered rate leaves too few permits, tasks start at the first permit, not at planned instants."""
    world = World(record_class, rate=100)
    world.add("a", 1.05)
    for index in range(8):
        world.add(f"t{index}-", 1.1)
    world.run(1.075)
    world.queue.set_rate(Rate(4), 1.075)
    world.run(1.5)
    assert "a1.050 t0-1.100" == " ".join(world.log[:2])


@pytest.mark.parametrize("calendar", ["spread", "on time"])
def test_cancelled_task_of_a_later_bucket_is_counted_no_more(record_class, calendar):
    """A cancelled task in a later bucket of a long interval no longer counts in its plan."""
    world = World(record_class, interval=10.0, rate=3)
    for index in range(4):
        world.add(f"t{index}-", 11.0)
    world.run(10.5 if calendar == "on time" else 1.0)
    others = [world.add(f"x{index}-", 17.0) for index in range(30)]
    world.run(11.4)
    for record in others:
        world.queue.cancel(record)
    world.run(30.0)
    assert ["t0-11.000", "t1-11.333"] == world.log[:2]
    assert 15 < float(world.log[-1].removeprefix("t3-"))
    assert 0 == world.queue.later_count == world.queue._later_on_time_count


def test_cancelled_tasks_close_the_gap(record_class):
    """After cancellations the other tasks are spread over the rest of the interval."""
    world = World(record_class)
    records = [world.add(name, 1.0) for name in "abcd"]
    world.run(1.1)
    world.queue.cancel(records[1])
    world.queue.cancel(records[2])
    world.run(3.0)
    assert "a1.000 d1.250" == world.text()
    assert 0 == live_count(world.queue)


def test_rate_may_change_while_tasks_wait(record_class):
    """A change of the rate applies from its moment on, and keeps the phase."""
    world = World(record_class, rate=1)
    for name in "abcd":
        world.add(name)
    world.run(1.5)
    world.queue.set_rate(Rate(10), 1.5)
    world.run(3.0)
    assert "a0.000 b1.000 c1.550 d1.650" == world.text()


def test_order_may_change_and_change_back(record_class):
    """A change of the order re-keys ready tasks, and the default order restores due order."""
    world = World(record_class, rate=1)
    for index in range(8):
        world.add(f"t{index}-", 0.1 + index / 100)
    world.run(1.5)
    world.queue.set_order(latest_due_first)
    world.run(3.5)
    world.queue.set_order(default_order)
    world.run(12.0)
    assert "t0 t7 t6 t1 t2 t3 t4 t5".split()[1:] == [entry.split("-")[0] for entry in world.log][1:]


def test_deadline_puts_a_task_on_time(record_class):
    """A task that would expire within its interval is not spread."""
    world = World(record_class)
    for name in "abc":
        world.add(name, 1.0)
    world.add("short", 1.0, expires=0.05)
    world.run(3.0)
    assert "short1.000" in world.log


def test_overflow_that_would_expire_in_its_interval_is_not_spread(record_class):
    """Overflow that would expire in its interval takes the first permits by importance, and the rest is spread."""
    world = World(record_class, rate=10)
    for index in range(12):
        world.add(f"t{index}-", 1.9, expires=1.2)
    world.add("other", 1.0)
    world.run(4.0)
    assert (
        "other1.000 t0-1.900 " + " ".join(f"t{index}-{1.9 + index / 10:.3f}" for index in range(1, 12)) == world.text()
    )


def test_idle_queue_asks_for_nothing(record_class):
    """An empty queue has no next time."""
    world = World(record_class, rate=5)
    world.add("a")
    world.run(2.0)
    assert math.inf == world.queue.next_wake(world.now)


@pytest.mark.parametrize("order", [default_order, latest_due_first])
@pytest.mark.parametrize("step_count", [1, 7, 1000])
def test_cut_empties_every_place_in_steps(record_class, order, step_count):
    """A cut empties the queue in steps: future, running bucket, ready tasks, those of an old order, and wall tasks."""
    world = World(record_class, rate=10, pacing=Pacing.ON_TIME)
    queue = world.queue
    for number in range(500):
        world.add(f"soon {number}")
    for number in range(300):
        world.add(f"later {number}", due=0.5 + number / 100)
        queue.on_time.add_call(0.1 + number / 100, int, (), None)
    world.run(until=0.3)
    queue.set_order(order)
    for number in range(20):
        queue.wall.add_record(record_class(f"wall {number}"), 36010.0 + number)
    before = live_count(queue)
    assert before == sum(1 for _ in walk(queue))

    queue.is_halted = True
    count, records = 0, []
    for plain_count, some in queue.cut(step_count):
        assert plain_count + len(some) <= step_count
        for record in some:
            queue.cancel(record)
        count += plain_count
        records += some
        assert before - count - len(records) == live_count(queue)
    assert before == count + len(records) == count + len(set(records))
    assert 0 == live_count(queue) == sum(1 for _ in walk(queue))
    assert queue.pull(world.now)


def test_old_handles_cancel_nothing_after_a_cut(record_class):
    """Handles of tasks that were cut cancel nothing, and change no counts."""
    queue = World(record_class).queue
    bucket, place = queue.on_time.add_call(105.0, int, (), None)
    queue.is_halted = True
    assert 1 == sum(count for count, _ in queue.cut(100))
    queue.on_time.cancel_call(bucket, place)
    assert 0 == queue.on_time.cancelled_count == live_count(queue)
    assert [] == queue.on_time.numbers


# Taking tasks.


def gone_of(world) -> list:
    """Collect the tasks that the queue reports as gone without a start."""
    gone = []
    world.queue.on_gone = lambda source, item, state: gone.append((source, item, state))
    return gone


def taken_at(world, now, limit=1):
    """Take the tasks that start at a time."""
    world.now = now
    if now >= world.queue.end:
        world.queue.enter(now, now + 36000.0)
    world.queue.is_changed = True
    while (taken := world.queue.poll(now, limit)) is None and world.queue.wake_at == -math.inf:
        pass
    return taken


def test_what_is_taken_waits_no_longer_and_is_paid_for(record_class):
    """A task that is taken no longer waits and uses a permit; without a permit none is taken."""
    world = World(record_class, rate=1, pacing=Pacing.ON_TIME)
    first, second = world.add("a", 0.5), world.add("b", 0.5)
    assert (None, first) == taken_at(world, 1.0)
    assert (None, 1) == (first._place, live_count(world.queue))
    assert None is taken_at(world, 1.5)
    assert None is not second._place
    assert (None, second) == taken_at(world, 2.0)
    assert 0 == live_count(world.queue)


def test_what_has_expired_is_told_of_and_its_permit_goes_to_the_next(record_class):
    """An expired task is reported and not taken, and its permit goes to the next one."""
    world = World(record_class, rate=1, pacing=Pacing.ON_TIME)
    gone = gone_of(world)
    late, other = world.add("late", 0.25, expires=0.5), world.add("other", 0.5)
    assert (None, other) == taken_at(world, 1.0)
    assert [(None, late, TaskState.EXPIRED)] == gone
    assert 0 == live_count(world.queue)


@pytest.mark.parametrize(
    ("rate", "others", "is_taken"),
    [(1, 0, True), (math.inf, 0, True), (1, 1, False), (0, 0, False)],
    ids=["permit", "unlimited", "behind another", "no permit"],
)
def test_the_next_is_taken_only_if_it_is_what_starts(record_class, rate, others, is_taken):
    """``take_next`` takes a task only if it is the next to start, and otherwise leaves it waiting."""
    world = World(record_class, rate=rate, pacing=Pacing.ON_TIME)
    world.now = 0.5
    for _ in range(others):
        world.add("other")
    while not world.queue.pull(0.5):
        pass
    record = world.add("next")
    assert is_taken is world.queue.take_next(0.5, record)
    assert (is_taken, others + (not is_taken)) == (record._place is None, live_count(world.queue))
    if others:
        assert "other" == repr(world.queue.poll(0.5, 1)[1])


def test_deadlines_pass_while_nothing_may_start(record_class):
    """While nothing may start, expired records and items of batches are reported once, after their interval."""
    world = World(record_class, rate=0)
    gone = gone_of(world)
    soon, later, never = (world.add(name, 0.5, expires=span) for name, span in [("a", 1), ("b", 3.0), ("c", None)])
    batch = BatchSource(3, first=0.25, rank=PLAIN_RANK, name="b", owner=None, deadline_after=1.0)
    world.queue.add_batch(batch, joined=True)
    for now in (1.0, 2.0, 2.0):
        assert None is taken_at(world, now)
        world.queue.expire(now)
        assert (gone == []) is (now < 2)
    assert [(batch, position, TaskState.EXPIRED) for position in range(3)] == [each for each in gone if each[0]]
    assert [(None, soon, TaskState.EXPIRED)] == [each for each in gone if not each[0]]
    assert (2, []) == (live_count(world.queue), world.queue.batches())
    assert None is not later._place is not never._place


def test_many_deadlines_pass_in_bounded_turns(record_class):
    """Many expired tasks are reported in bounded turns."""
    world = World(record_class, rate=0)
    gone = gone_of(world)
    for _ in range(1500):
        world.add("a", 0.5, expires=0.25)
    world.queue.enter(3.0, 36003.0)
    for count in (1000, 1500, 1500):
        world.queue.is_changed = True
        assert None is world.queue.poll(3.0, 1)
        assert count == len(gone)
    assert 0 == live_count(world.queue)


def test_due_time_wakes_the_queue_where_tickets_are_requested(record_class):
    """A task of a group is noticed at its due time, so that a ticket is requested, while another waits for one."""
    world = World(record_class, pacing=Pacing.ON_TIME)
    none = Bound(WindowLimit(Rate(0)), resource=PERMITS, text="", kind="group")
    world.queue.set_permits(BudgetPermits(None, [none], rate=Rate(1), time_ns=lambda: 0))
    world.add("waiting", None)
    world.add("coming", 0.5)
    assert world.queue.poll(0.0, 1) is None
    assert world.queue.wake_at == 0.5
