"""Ready queues behind the gate of keys: limits are kept exactly, and a key that is held delays no other."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.order.fair import Fair, FairClock
from ratelimited_executor._core.keys.gate import KeyGate
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.order.ordering import TaskClass, default_order
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._core.order.ready_fair import ReadyFair
from ratelimited_executor._core.order.ready_heap import ReadyHeap
from ratelimited_executor._core.order.ready_keyed import ReadyKeyed
from ratelimited_executor._core.queue.records import PERMITS, Charge, Options

from ...helpers import examples
from ..gates import NOW, NS, WIDTH, gate_of

PLAIN = (0, TaskClass.OTHER)


@pytest.fixture(scope="session")
def make(record_class):
    """Return a record of a key."""

    def record(key=None, *, cost: int = 1, priority: float = 0, due: float = 0.0):
        made = record_class(f"{key}{due:g}", due=due)
        made._options = Options(key=key, priority=priority, charge=None if cost == 1 else Charge({PERMITS: cost}))
        return made

    return record


@pytest.fixture(scope="session")
def queue_of(calendar_class):
    """Return a ready queue with an order behind a gate."""

    def queue(gate: KeyGate, form: str = "queues"):
        calendar = calendar_class()
        if form == "fair":
            clock = FairClock(Fair(), gate=gate, chores=deque(), report=lambda error: None, to_epoch=float)
            return ReadyFair(calendar, clock, 0)
        if form == "queues":
            return ReadyKeyed(gate, lambda: ReadyQueues(calendar))
        return ReadyKeyed(gate, lambda: ReadyHeap(calendar, default_order, to_epoch=float, report=lambda error: None))

    return queue


def cancel(record) -> None:
    """Cancel a record as the queue does."""
    place, record._place = record._place, None
    place.cancel_record()


def pop(queue, now: int = NOW) -> tuple | None:
    """Take the first task that may start as the engine does."""
    if queue.head_at(now) is None:
        return None
    peeked = queue.peek()
    run = queue.pop()
    taken = run.source, run.take()
    assert peeked == taken
    if taken[0] is not None:
        taken[0].gone.add(taken[1])
    return taken


class Column:
    """A source: tasks of one key, of which some are cancelled."""

    def __init__(self, key, cost: int = 1, count: int = 0) -> None:
        self.key, self.cost, self.count = key, cost, count
        self.gone: set[int] = set()

    @property
    def live(self) -> int:
        return self.count - len(self.gone)

    def is_waiting(self, position: int) -> bool:
        return position not in self.gone

    def due_of(self, position: int) -> float:
        return float(position)

    def name_of(self, position: int) -> str:
        return f"{self.key}{position}"

    def cost_of(self, position: int) -> int:
        return self.cost


# The model.


class Model:
    """A model of what each key may do, by looking at every start of it."""

    def __init__(self) -> None:
        self.now = NOW
        self.permits = {"a": 1, "b": 3, "c": None}
        self.places = {"a": None, "b": 2, "c": 1}
        self.starts: dict[str, list[tuple[int, int]]] = {key: [] for key in "abc"}
        self.running: list[str] = []
        self.penalties = dict.fromkeys("abc", 0)

    def gate(self) -> KeyGate:
        def limit_of(key):
            return None if self.permits[key] is None else WindowLimit(Rate(self.permits[key]))

        return KeyGate(limit_of=limit_of, concurrency_of=self.places.__getitem__)

    def cost(self, key, cost: int) -> int:
        return min(cost, self.permits[key] or cost)

    def admits(self, key, cost: int, now: int | None = None) -> bool:
        """Return True if a task of a key may start."""
        now = self.now if now is None else now
        if key is None:
            return True
        if self.places[key] is not None and self.running.count(key) >= self.places[key]:
            return False
        used = sum(cost for time, cost in self.starts[key] if time > now - WIDTH)
        return now >= self.penalties[key] and (
            self.permits[key] is None or used + self.cost(key, cost) <= self.permits[key]
        )

    def start(self, key, cost: int) -> None:
        self.starts[key].append((self.now, self.cost(key, cost)))
        self.running.append(key)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from(["a", "b", "c", None]), st.integers(-1, 1), st.integers(1, 4)),
            st.tuples(st.just("push"), st.sampled_from(["a", "b", "c", None]), st.integers(-1, 1), st.integers(1, 4)),
            st.tuples(st.just("run"), st.sampled_from(["a", "b", "c", None]), st.none(), st.integers(1, 4)),
            st.tuples(st.just("pop"), st.integers(1, 5), st.none(), st.none()),
            st.tuples(st.just("pop"), st.integers(1, 5), st.none(), st.none()),
            st.tuples(st.just("cancel"), st.integers(0, 100), st.none(), st.none()),
            st.tuples(st.just("end"), st.integers(0, 100), st.none(), st.none()),
            st.tuples(st.just("advance"), st.sampled_from([1, NS // 3, NS, WIDTH]), st.none(), st.none()),
            st.tuples(st.just("wait"), st.none(), st.none(), st.none()),
            st.tuples(st.just("penalty"), st.sampled_from("abc"), st.sampled_from([NS // 2, 2 * NS]), st.none()),
            st.tuples(st.just("refresh"), st.sampled_from("ab"), st.integers(1, 4), st.none()),
            st.tuples(st.just("sweep"), st.none(), st.none(), st.none()),
        ),
        max_size=60,
    ),
    st.sampled_from(["queues", "heap", "fair"]),
    st.booleans(),
)
@examples(160)
def test_limits_of_keys_are_kept_and_delay_nobody_else(queue_of, make, steps, form, is_cancelling):
    """The most important task that may start does, and in the end no key is remembered."""
    model = Model()
    gate = model.gate()
    queue = queue_of(gate, form)
    waiting: dict[tuple, tuple] = {}  # rank, key and cost of each task

    def heads(now: int | None = None) -> dict:
        """Return the first task of each key that may start."""
        found = {}
        for task in sorted(waiting, key=waiting.get):
            found.setdefault(waiting[task][-2], task)
        return {key: task for key, task in found.items() if model.admits(key, waiting[task][-1], now)}

    def start_next() -> bool:
        gate.open_due(model.now)
        able = heads()
        taken = pop(queue, model.now)
        if form == "fair":
            assert taken in (able.values() if able else [None])
        else:
            assert min(able.values(), key=waiting.get, default=None) == taken
        if taken is None:
            return False
        *_, key, cost = waiting.pop(taken)
        if key is not None:
            gate.start(key, cost, model.now)
            model.start(key, cost)
        return True

    def end(index: int) -> None:
        key = model.running.pop(index % len(model.running))
        assert not gate.end(key) or model.places[key] is not None

    for number, (action, value, priority, cost) in enumerate(steps):
        cost = 1 if is_cancelling else cost
        rank = (0 if priority is None or form == "fair" else -priority, TaskClass.OTHER)
        if action == "push":
            record = make(value, cost=cost, priority=-rank[0], due=float(number))
            queue.push_record(record)
            waiting[None, record] = *rank, number, 0, str(value), value, cost
        elif action == "run":
            column = Column(value, cost, count=2)
            column.due_of = lambda position, number=number: float(number)
            queue.push_run(column, [0], rank)
            queue.push_position(column, 1, rank)
            for position in (0, 1):
                waiting[column, position] = *rank, number, position, str(value), value, cost
        elif action == "pop":
            for _ in range(value):
                start_next()
        elif action == "cancel" and is_cancelling and waiting:
            source, item = list(waiting)[value % len(waiting)]
            del waiting[source, item]
            cancel(item) if source is None else source.gone.add(item)
        elif action == "end" and model.running:
            end(value)
        elif action == "advance":
            model.now += value
        elif action == "wait" and not start_next() and (when := gate.next_time()) is not None:
            assert when > model.now
            assert {} == heads(when - 1)
            model.now = when
            start_next()
        elif action == "penalty":
            gate.penalize(value, model.now + priority, model.now)
            model.penalties[value] = max(model.penalties[value], model.now + priority)
        elif action == "refresh":
            gate.open_due(model.now)
            model.permits[value], model.places[value] = priority, 5 - priority
            gate.refresh(model.now)
        elif action == "sweep":
            gate.open_due(model.now)
            gate.sweep(10, model.now)
        assert set(waiting) == set(queue.walk())
    while waiting:
        if not start_next():
            if model.running:
                end(0)
            else:
                model.now += WIDTH
    while model.running:
        end(0)
    assert not start_next()
    gate.open_due(model.now + 100 * NS)
    gate.sweep(10, model.now + 100 * NS)
    assert (0, False) == (gate.key_count, gate.forget_time() is not None)


# Ready queues by key.


def test_a_source_waits_by_its_key(queue_of, make):
    """Runs, positions and records of a key wait in the order of their kind."""
    queue = queue_of(gate_of())
    slow, free = Column("slow", count=3), Column(None, count=2)
    queue.push_run(slow, [0, 1], PLAIN)
    queue.push_position(slow, 2, PLAIN)
    queue.push_run(free, [0, 1], PLAIN)
    records = [make(due=0.5), make(due=0.75)]
    queue.push_records(list(records), PLAIN)
    queue.head_at(NOW)
    assert PLAIN == queue.head_rank()
    keyed = sorted(queue.keyed(), key=lambda entry: entry[0])
    assert 7 == len(keyed) == len(list(queue.walk()))
    assert (slow, 0) == pop(queue)
    queue._gate.start("slow", 1, NOW)
    assert [(free, 0), (free, 1), (None, records[0]), (None, records[1]), None] == [pop(queue) for _ in range(5)]
    queue.release()
    queue.release()
    assert [(slow, 1), (slow, 2), None] == [pop(queue) for _ in range(3)]


def test_a_lighter_task_that_goes_before_a_parked_one_starts(queue_of, make):
    """A parked key is looked at again when a lighter task becomes its first."""
    gate = gate_of(3)
    gate.start("slow", 1, NOW)
    queue = queue_of(gate)
    heavy, light = make("slow", cost=3), make("slow", cost=2, priority=1)
    queue.push_record(heavy)
    assert None is pop(queue)
    queue.push_record(make("slow", cost=3, due=1.0))
    assert None is pop(queue)
    queue.push_record(light)
    assert [(None, light), None] == [pop(queue), pop(queue)]


def test_cleared_queues_know_nothing_of_what_is_resumed(queue_of, make):
    """A cleared queue is not affected by resumed keys, and works for later tasks."""
    for form in ("queues", "heap", "fair"):
        gate = gate_of(concurrency=1)
        queue = queue_of(gate, form)
        for _ in range(3):
            queue.push_record(make("slow"))
        pop(queue)
        gate.start("slow", 1, NOW)
        assert None is pop(queue)
        queue.push_record(make("free"))
        queue.push_record(make())
        pop(queue)
        queue.clear()
        assert [] == list(queue.walk())
        gate.open_due(NOW + 2 * NS)
        assert gate.end("slow")
        assert None is pop(queue, NOW + 2 * NS)
        record = make("slow")
        queue.push_record(record)
        assert (None, record) == pop(queue, NOW + 2 * NS)


def test_another_order_gets_what_comes_while_the_old_one_is_asked(queue_of, make, calendar_class):
    """When the order changes, each key's queue moves to the new one, with what comes meanwhile."""
    queue, successor = queue_of(gate_of(), "heap"), ReadyQueues(calendar_class())
    queue.push_record(make("slow"))
    queue.note_replaced()
    for each in queue._queues.values():
        each.ready.calendar.ready = successor
    late = make("slow", due=1.0)
    queue.push_record(late)
    assert [(None, late)] == list(successor.walk())


def test_fair_keys_that_may_not_start_leave_the_order(queue_of, make):
    """With fair shares a held key delays no other and saves up nothing, and its tasks may be cancelled."""
    gate = gate_of()
    queue = queue_of(gate, "fair")
    slow = [make("slow") for _ in range(4)]
    for record in slow:
        queue.push_record(record)
    for _ in range(9):
        queue.push_record(make("free"))
    starts = []
    for now in (NOW, NOW + 2 * NS, NOW + 4 * NS):
        if now == NOW + 4 * NS:
            for record in slow[2:]:
                cancel(record)
        gate.open_due(now)
        for _ in range(3):
            starts.append(pop(queue, now)[1].key)
            gate.start(starts[-1], 1, now)
    assert 2 == starts.count("slow")
    assert {0, 3, 4} >= {index for index, key in enumerate(starts) if key == "slow"}
    assert starts[6:] == ["free"] * 3
    queue.push_record(make("slow"))
    queue.release()
    queue.release()
    assert {"slow", "free"} == {pop(queue)[1].key for _ in range(3)}
