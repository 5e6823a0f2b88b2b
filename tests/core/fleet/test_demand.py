"""The demand of a peer: the tasks that it could start, for which it asks tickets."""

import pytest

from ratelimited_executor._core.order.fair import Fair
from ratelimited_executor._core.fleet.demand import Demand
from ratelimited_executor._core.keys.gate import KeyGate
from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.order.ordering import default_order
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.queue.queue import TaskQueue
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS, Charge, Options
from ratelimited_executor._kernel.timeline import Timeline

NS = 1_000_000_000
NOW = 100.0
MANY = 1000


class Executor:
    """A queue with counts of running tasks that tests set."""

    def __init__(self, record_class, *, order=default_order, places=None, rate=None, concurrency=None) -> None:
        self.record_class = record_class
        self.timeline = Timeline(monotonic=NOW, wall=1_704_067_200.0, interval_ns=NS)
        gate = None
        if rate is not None or concurrency is not None:
            gate = KeyGate(
                limit_of=lambda _: None if rate is None else PacedLimit(Rate(rate), slack_ns=0),
                concurrency_of=lambda _: concurrency,
            )
        self.queue = TaskQueue(
            self.timeline, now=NOW, permits=PermitGrid(Rate(0), slack_ns=0, now_ns=self.timeline.to_ns(NOW)), slack=0.0,
            pacing=Pacing.ON_TIME, order=order, early=False, report_order_error=lambda error: None,
        )  # fmt: skip
        if gate is not None:
            self.queue.set_gate(gate)
        self.max_concurrency = places
        self.started_count = 0
        self.running = 0
        self.demand = Demand(self)

    @property
    def accounts(self):
        return self

    def running_count(self) -> int:
        return self.running

    def add(self, count: int, *, key=None, due: float = NOW, cost: int = 1) -> None:
        """Add tasks; due ones are ready, and the keys of those that may start are known."""
        for _ in range(count):
            record = self.record_class("task", due=due)
            record._options = Options(key=key, charge=None if cost == 1 else Charge({PERMITS: cost}))
            self.queue.add_record(record)
        self.look(NOW)

    def look(self, now: float) -> None:
        """Do what a run does that starts nothing."""
        if now >= self.queue.end:
            self.queue.enter(now, now)
        while not self.queue.pull(now):
            pass
        if self.queue.gate is not None:
            self.queue.on_time.ready.head_at(self.timeline.to_ns(now))

    def run(self, seconds: float, *, count: int, each: float, since: float = NOW) -> float:
        """Keep ``count`` tasks of a given duration running; return the time afterwards."""
        now = since
        self.running, self.started_count = count, self.started_count + count
        self.demand.look(now)
        while now < since + seconds:
            now += each
            self.started_count += count
            self.demand.look(now)
        return now

    def could(self, seconds: float, *, now: float = NOW, most: int = MANY) -> int:
        return self.demand.count(now, seconds, most)


@pytest.fixture(scope="session")
def executor_of(record_class):
    """Return an executor with limits."""
    return lambda **limits: Executor(record_class, **limits)


def test_all_that_is_due_could_start_without_limits(executor_of) -> None:
    """Without limits all due tasks count, and later ones only once they are due."""
    executor = executor_of()
    executor.add(5)
    executor.add(3, due=NOW + 0.5)
    assert [5, 8] == [executor.could(1, now=NOW + later) for later in (0.4, 0.5)]


def test_penalty_lets_nothing_start_before_its_end(executor_of) -> None:
    """During a penalty no task counts, and from its end all due ones do."""
    executor = executor_of()
    executor.add(5)
    grid = PermitGrid(Rate(1), slack_ns=0, now_ns=0)
    permits = CombinedPermits(grid, (), rate=Rate(1), time_ns=lambda: 0)
    permits.penalty_ns = executor.timeline.to_ns(NOW + 2)
    executor.queue.set_permits(permits)
    assert [0, 5] == [executor.could(seconds) for seconds in (2.0, 2.1)]


def test_free_places_are_all_that_counts_while_nothing_ends(executor_of) -> None:
    """While no task ends only free places count, and none after the limit was lowered below the running tasks."""
    executor = executor_of(places=3)
    executor.add(20)
    executor.running = executor.started_count = 2
    executor.demand.look(NOW)
    executor.demand.look(NOW + 0.1)
    assert 1 == executor.could(1, now=NOW + 0.1)
    executor.max_concurrency = 1
    assert 0 == executor.could(1, now=NOW + 0.1)


def test_places_are_no_limit_as_long_as_nothing_is_known_of_them(executor_of) -> None:
    """Places do not limit tasks whose duration is unknown, such as those that end at once, unless there is no place."""
    executor = executor_of(places=1)
    executor.add(20)
    assert 20 == executor.could(0.25)
    executor.demand.look(NOW)
    executor.started_count = 7
    executor.demand.look(NOW + 0.25)
    assert 20 == executor.could(0.25, now=NOW + 0.25)
    executor.max_concurrency = 0
    assert 0 == executor.could(0.25, now=NOW + 0.25)


@pytest.mark.parametrize(
    ("places", "each", "seconds", "expected"), [(10, 1.0, 0.5, 5), (1, 1.0, 0.5, 0), (2, 0.05, 0.5, 20)]
)
def test_places_that_become_free_count_by_how_long_tasks_run(executor_of, places, each, seconds, expected) -> None:
    """Places that will be free count by the duration of tasks: half of those with tasks of 1 s within half a second."""
    executor = executor_of(places=places)
    executor.add(100)
    now = executor.run(8, count=places, each=each)
    assert expected == executor.could(seconds, now=now)


def test_places_are_known_anew_when_tasks_run_longer(executor_of) -> None:
    """The expected duration of tasks rises once one runs longer than those before."""
    executor = executor_of(places=1)
    executor.add(100)
    now = executor.run(3, count=1, each=0.01)
    assert 50 == executor.could(0.5, now=now)
    executor.demand.look(now + 1)
    assert 0 == executor.could(0.5, now=now + 1)


@pytest.mark.parametrize("order", [default_order, Fair()])
def test_keys_count_by_what_their_rate_lets_start(executor_of, order) -> None:
    """Tasks of keys count by what the rates of their keys allow in a stretch of time."""
    executor = executor_of(order=order, rate=4)
    for key in "ab":
        executor.queue.gate.meet(key, executor.timeline.to_ns(NOW))
        executor.queue.gate.start(key, 1, executor.timeline.to_ns(NOW))
        executor.add(10, key=key)
    assert [6, 8] == [executor.could(1.0), executor.could(1.001)]
    executor.queue.gate.penalize("a", executor.timeline.to_ns(NOW + 10), executor.timeline.to_ns(NOW))
    assert 3 == executor.could(1.0)
    assert 2 == executor.could(1.0, most=2)


@pytest.mark.parametrize("order", [default_order, Fair()])
def test_keys_count_by_their_free_places(executor_of, order) -> None:
    """Tasks of keys count by the free places of their keys, and tasks without a key are not limited."""
    executor = executor_of(order=order, concurrency=2)
    for key, running in (("full", 2), ("half", 1)):
        for _ in range(running):
            executor.queue.gate.start(key, 1, executor.timeline.to_ns(NOW))
    executor.running = executor.started_count = 3
    executor.demand.look(NOW)
    executor.demand.look(NOW + 0.1)
    executor.add(10, key="full")
    assert 0 == executor.could(1, now=NOW + 0.1)
    executor.add(10, key="half")
    executor.add(10)
    executor.look(NOW + 0.1)
    assert 11 == executor.could(1, now=NOW + 0.1)
    executor.add(10, key="unknown")
    assert executor.could(1, now=NOW + 0.1) in (12, 13)  # 13 once its limits have been asked for


@pytest.mark.parametrize("order", [default_order, Fair()])
def test_costs_count_against_the_rate_of_their_key(executor_of, order) -> None:
    """Costs count against the rates of keys: 8 permits a second allow two tasks of cost 4."""
    executor = executor_of(order=order, rate=8)
    executor.queue.gate.meet("a", executor.timeline.to_ns(NOW))
    executor.add(10, key="a", cost=4)
    assert 2 == executor.could(1.0)


def test_tasks_that_have_just_come_due_count_though_the_queue_has_not_looked(executor_of) -> None:
    """Tasks of keys that are due now count at once, also before the queue has entered their interval."""
    executor = executor_of(rate=1)
    executor.add(9, due=NOW + 1.5, key="a")
    assert 0 == executor.could(1, now=NOW + 1)
    assert 9 == executor.could(1, now=NOW + 1.5)


def test_ready_task_counts_though_one_that_was_to_come_is_cancelled(record_class):
    """A task cancelled before its due time does not hide one that is ready."""
    executor = Executor(record_class)
    cancelled = record_class("cancelled", due=NOW + 0.5)
    executor.queue.add_record(cancelled)
    executor.queue.cancel(cancelled)
    executor.queue.add_immediate(record_class("ready", due=NOW))
    assert executor.could(0.1) == 1
