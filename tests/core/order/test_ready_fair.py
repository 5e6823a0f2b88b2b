"""Shares by key: the law of start-time fair queueing on random histories, without a task lost or remembered."""

import itertools
from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor._core.order import fair as fair_module
from ratelimited_executor._core.order import ready_fair as ready_module
from ratelimited_executor._core.order.fair import Fair, FairClock
from ratelimited_executor._core.order.ordering import TaskClass
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._core.order.ready_fair import ReadyFair
from ratelimited_executor._core.queue.records import PERMITS, Charge, Options

from ...helpers import examples

KEYS = "abcd"
WEIGHTS = st.fixed_dictionaries(dict.fromkeys(KEYS, st.sampled_from([0.25, 1.0, 1.0, 2.0, 3.7, 10.0])))


class Tasks:
    """A source: positions of one key and cost, of which some are cancelled."""

    def __init__(self, key, cost: int = 1) -> None:
        self.key, self.cost = key, cost
        self.needs = {PERMITS: cost}
        self.count = 0
        self.gone: set[int] = set()

    def add(self) -> int:
        self.count += 1
        return self.count - 1

    @property
    def live(self) -> int:
        return self.count - len(self.gone)

    def is_waiting(self, position: int) -> bool:
        return position not in self.gone

    def due_of(self, position: int) -> float:
        return 0.0

    def name_of(self, position: int) -> str:
        return f"{self.key}{position}"

    def cost_of(self, position: int) -> int:
        return self.cost


class Pair:
    """Two ready queues that share their virtual times, used as the queue uses those of its calendars."""

    def __init__(self, calendar_class, fair: Fair) -> None:
        self.chores: deque = deque()
        self.reported: list[BaseException] = []
        self.clock = FairClock(
            fair, gate=None, chores=self.chores, report=self.reported.append, to_epoch=lambda due: due + 1000
        )
        self.views = [ReadyFair(calendar_class(), self.clock, index) for index in (0, 1)]

    def push(self, index: int, record):
        self.views[index].push_record(record)
        return record

    def pop(self, *, is_expired: bool = False) -> tuple | None:
        """Take the first task of both as the engine does, without charging expired ones."""
        first, second = (view.head() for view in self.views)
        if first is None is second:
            return None
        view = self.views[first is None or (second is not None and second < first)]
        peeked, rank = view.peek(), view.head_rank()
        run = view.pop()
        taken = run.source, run.take()
        assert peeked == taken
        if taken[0] is not None:
            taken[0].gone.add(taken[1])
            assert rank[1] is getattr(taken[0], "rank", (0, TaskClass.OTHER))[1]
        elif taken[1]._options is not None:
            assert -taken[1].priority == rank[0]
        if not is_expired:
            view.served()
        return taken

    def keys(self, count: int) -> str:
        """Return the keys of the next starts."""
        return "".join(
            item.key if source is None else source.key for source, item in (self.pop() for _ in range(count))
        )

    def rest(self) -> None:
        """Do all chores."""
        while self.chores:
            for _ in self.chores.popleft():
                pass

    def remembered(self) -> int:
        """Count the priorities and keys that are remembered."""
        levels = self.clock.levels.values()
        return len(levels) + sum(len(level.flows) + len(level.ghosts) for level in levels)


def cancel(record) -> None:
    """Cancel a record as the queue does."""
    place, record._place = record._place, None
    place.cancel_record()


@pytest.fixture(scope="session")
def make(record_class):
    """Return a record of a key."""

    def record(key=None, *, cost: int = 1, priority: float = 0, name: str = "task", due: float = 0.0):
        made = record_class(name, due=due)
        if key is not None or cost != 1 or priority:
            made._options = Options(
                key=key, priority=priority, charge=None if cost == 1 else Charge({PERMITS: cost, "x": 1})
            )
        return made

    return record


# The law.


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.sampled_from(KEYS), st.integers(1, 5), st.integers(0, 1)),
        st.tuples(st.just("record"), st.sampled_from(KEYS), st.integers(1, 5), st.integers(0, 1)),
        st.tuples(st.just("run"), st.sampled_from(KEYS), st.integers(1, 5), st.integers(0, 1)),
        st.tuples(st.just("pop"), st.integers(1, 6), st.none(), st.none()),
        st.tuples(st.just("pop"), st.integers(1, 6), st.none(), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 1000), st.none(), st.none()),
        st.tuples(st.just("expired"), st.none(), st.none(), st.none()),
        st.tuples(st.just("chore"), st.none(), st.none(), st.none()),
        st.tuples(st.just("idle"), st.none(), st.none(), st.none()),
    ),
    max_size=90,
)


class Shares:
    """The law for each pair of keys: how far their shares drift apart while both have waiting tasks."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self.heaviest = dict.fromkeys(KEYS, 0)
        self.leads: dict[tuple[str, str], tuple[float, float, float]] = {}  # the first key's lead: least, most

    def waiting(self, keys: set[str]) -> None:
        """Note which keys have waiting tasks."""
        pairs = {(first, second) for first in keys for second in keys if first < second}
        self.leads = {pair: self.leads.get(pair, (0.0, 0.0, 0.0)) for pair in pairs}

    def start(self, key: str, cost: int) -> None:
        """Note a start, and check the law for all stretches that end here."""
        for pair, (lead, least, most) in self.leads.items():
            if key in pair:
                lead += cost / self.weights[key] * (1 if key == pair[0] else -1)
                least, most = min(least, lead), max(most, lead)
                self.leads[pair] = lead, least, most
                bound = sum(self.heaviest[each] / self.weights[each] for each in pair)
                assert most - least <= bound + 1e-9, (pair, least, most, bound)


@given(WEIGHTS, OPS, st.booleans())
@example(  # what one calendar has served is ahead of a key of the other that has had nothing
    {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25},
    [
        ("record", "b", 1, 1), ("record", "c", 1, 0), ("record", "c", 1, 0), ("record", "c", 1, 1), ("record", "a", 1, 1),
        ("record", "b", 3, 0),
    ],
    False,
)  # fmt: skip
@example(  # the same, with two such keys before it
    {"a": 1.0, "b": 0.25, "c": 0.25, "d": 0.25},
    [
        ("record", "c", 1, 1), ("record", "b", 1, 1), ("record", "c", 1, 0), ("record", "c", 1, 0), ("record", "a", 1, 1),
        ("expired", None, None, None), ("record", "b", 1, 0),
    ],
    False,
)  # fmt: skip
@example(  # a key comes while the first task of another, whose tag is the largest, has just started
    dict.fromkeys("abcd", 0.25),
    [
        ("record", "a", 5, 0), ("record", "b", 2, 0), ("pop", 1, None, None), ("record", "b", 2, 0), ("record", "c", 1, 0),
    ],
    False,
)  # fmt: skip
@examples(200)
def test_shares_are_right_within_one_task_of_each(calendar_class, make, weights, ops, is_even):
    """While two keys have waiting tasks, shares differ by at most one task of each, and each key keeps its order."""
    weights = dict.fromkeys(KEYS, 1.0) if is_even else weights
    pair = Pair(calendar_class, Fair() if is_even else Fair(weights=weights))
    shares = Shares(weights)
    waiting: dict[tuple, tuple[str, int, int]] = {}  # key, cost and view, in order of arrival

    def backlogged() -> set[str]:
        return {key for key, _, _ in waiting.values()}

    def pop(*, is_expired: bool = False) -> None:
        taken = pair.pop(is_expired=is_expired)
        if not waiting:
            assert None is taken
            return
        key, cost, view = waiting[taken]
        assert taken == next(task for task, (other, _, where) in waiting.items() if (other, where) == (key, view))
        if not is_expired:
            shares.start(key, cost)
        del waiting[taken]
        shares.waiting(backlogged())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready_module, "_SPARE_COUNT", 1)
        patch.setattr(ready_module, "_COMPACT_STEP_COUNT", 2)
        for action, *values in ops:
            if action == "record":
                key, cost, view = values
                waiting[None, pair.push(view, make(key, cost=cost))] = key, cost, view
                shares.heaviest[key] = max(cost, shares.heaviest[key])
            elif action == "run":
                key, cost, view = values
                tasks = Tasks(key, cost)
                positions = [tasks.add() for _ in range(cost)]
                pair.views[view].push_run(tasks, positions[:2], (0, TaskClass.OTHER))
                for position in positions[2:]:
                    pair.views[view].push_position(tasks, position, (0, TaskClass.OTHER))
                waiting |= {(tasks, position): (key, cost, view) for position in positions}
                shares.heaviest[key] = max(cost, shares.heaviest[key])
            elif action == "cancel" and waiting:
                source, item = list(waiting)[values[0] % len(waiting)]
                del waiting[source, item]
                if source is None:
                    cancel(item)
                else:
                    source.gone.add(item)
            elif action in {"pop", "expired"}:
                for _ in range(values[0] or 1):
                    pop(is_expired=action == "expired")
            elif action == "chore" and pair.chores:
                if next(pair.chores[0], pair) is pair:
                    pair.chores.popleft()
            elif action == "idle":
                while waiting:
                    pop()
            shares.waiting(backlogged())
            found = [task for view in pair.views for task in view.walk()]
            assert len(waiting) == len(found)
            assert set(waiting) == set(found)
        while waiting:
            pop()
        assert None is pair.pop()
        pair.rest()
        assert 0 == pair.remembered()
        assert [0, 0] == [view.count for view in pair.views]
        assert [] == pair.reported


def test_a_key_in_both_calendars_does_not_hold_back_the_others(calendar_class, make):
    """A key served in one calendar does not precede other keys in the other one with its old tag."""
    pair = Pair(calendar_class, Fair())
    for view, key in [(1, "f"), (1, "g"), *[(0, "f")] * 5, (1, "g")]:
        pair.push(view, make(key))
    assert "fgfgffff" == pair.keys(8)


def test_a_priority_that_is_forgotten_while_another_starts_comes_back(calendar_class, make):
    """A priority that is forgotten while another one starts may come back."""
    pair = Pair(calendar_class, Fair())
    pair.push(0, make("low"))
    assert "low" == pair.keys(1)
    pair.push(0, make("high", priority=1))
    pair.push(0, make("high", priority=1))
    assert "high" == pair.keys(1)
    pair.rest()
    assert "high" == pair.keys(1)
    assert None is pair.pop()
    pair.push(0, make("low"))
    assert "low" == pair.keys(1)
    assert None is pair.pop()


def test_an_overrun_is_charged_though_its_priority_was_forgotten_meanwhile(calendar_class, make):
    """A key whose running task costs more than was reserved pays, though no task of its priority waited for a while."""
    pair = Pair(calendar_class, Fair())
    pair.push(0, make("f"))
    assert "f" == pair.keys(1)
    share = pair.clock.last
    assert None is pair.pop()
    pair.rest()
    assert 0 == pair.remembered()
    pair.clock.settle(share, 5)  # nobody competes
    assert 0 == pair.remembered()
    for key in "fg" * 4:
        pair.push(0, make(key))
    pair.clock.settle(share, 3)
    pair.clock.settle(share, -1)
    assert "gggfgfff" == pair.keys(8)
    assert None is pair.pop()
    pair.rest()
    assert 0 == pair.remembered()


# Keys that come late, come back, or keep coming.


@given(
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=2, max_size=2),
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 3),
    st.booleans(),
)
@examples(100)
def test_a_key_that_goes_idle_and_comes_back_gets_no_more_than_its_share(
    calendar_class, make, weights, bursts, cost, is_split
):
    """A key that goes idle and comes back gets no more than its share."""
    adversary, patient = weights
    pair = Pair(calendar_class, Fair(weights={"f": adversary, "g": patient}))
    tasks = Tasks("g")
    pair.views[0].push_run(tasks, [tasks.add() for _ in range(2000)], (0, TaskClass.OTHER))
    served = {"f": 0, "g": 0}
    for burst in bursts:
        for number in range(burst):
            pair.push(number % 2 if is_split else 0, make("f", cost=cost))
        left = burst
        while left:
            key = pair.keys(1)
            served[key] += cost if key == "f" else 1
            left -= key == "f"
            assert served["f"] / adversary - served["g"] / patient <= cost / adversary + 1 / patient + 1e-9


@pytest.mark.parametrize("heavy", [1, 7])
def test_a_stream_of_new_keys_does_not_starve_a_queue(calendar_class, make, heavy):
    """A waiting key starts after as many others as there are keys, though new keys keep coming."""
    pair = Pair(calendar_class, Fair())
    for _ in range(50):
        pair.push(0, make("old", cost=heavy))
    starts = [None]
    pair.push(0, make(0))
    for number in range(1, 1000):
        if starts[-1] != "old":  # so that there are at most three keys
            pair.push(number % 2, make(number))
        starts.append(pair.pop()[1].key)
    indexes = [index for index, key in enumerate(starts) if key == "old"]
    assert 50 == len(indexes)
    assert max(second - first for first, second in itertools.pairwise(indexes)) <= 3 * heavy + 2


def test_a_tenant_with_a_long_queue_delays_the_first_task_of_another_by_one(calendar_class, make):
    """A new key's first task starts next to those of a key with a long queue."""
    pair = Pair(calendar_class, Fair())
    crowd = Tasks("crowd")
    pair.views[1].push_run(crowd, [crowd.add() for _ in range(50_000)], (0, TaskClass.OTHER))
    for _ in range(50_000):
        pair.push(1, make("crowd"))
    assert "crowd" * 1000 == pair.keys(1000)
    for _ in range(3):
        pair.push(1, make("b"))
    keys = [(source or item).key for source, item in (pair.pop() for _ in range(7))]
    assert keys.index("b") <= 1
    assert 3 == keys.count("b")
    assert 4 == keys.count("crowd")


def test_a_heavy_task_is_paid_for_before_its_key_starts_another(calendar_class, make):
    """After a task of cost 5 its key waits for 5 of another key of the same weight."""
    pair = Pair(calendar_class, Fair())
    for _ in range(3):
        pair.push(0, make("f", cost=5))
    for _ in range(12):
        pair.push(0, make("g"))
    assert "fgggggfgggggf" == pair.keys(13)


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from(KEYS), st.integers(0, 1)), max_size=30))
@examples(100)
def test_priorities_are_strict_and_keys_share_within_each(calendar_class, make, tasks):
    """No task starts while one of a higher priority waits, whatever the shares."""
    pair = Pair(calendar_class, Fair())
    for priority, key, view in tasks:
        pair.push(view, make(key, priority=priority))
    starts = [pair.pop()[1].priority for _ in tasks]
    assert sorted(starts, reverse=True) == starts
    assert None is pair.pop()
    pair.rest()
    assert 0 == pair.remembered()


def test_what_comes_of_a_higher_priority_goes_first_while_keys_share(calendar_class, make):
    """A key's shares in one priority are independent of those in another."""
    pair = Pair(calendar_class, Fair())
    for _ in range(4):
        pair.push(0, make("f"))
        pair.push(0, make("g"))
    assert "fg" == pair.keys(2)
    for key in "ffg":
        pair.push(1, make(key, priority=1))
    assert "fgf" == pair.keys(3)
    assert "fgfgfg" == pair.keys(6)


def test_tasks_of_one_key_start_in_the_order_in_which_they_become_due(calendar_class, make):
    """Tasks of one key start in the order of their due times, records and runs alike."""
    pair = Pair(calendar_class, Fair())
    tasks = Tasks("f")
    wanted = [(None, pair.push(0, make("f")))]
    pair.views[0].push_run(tasks, [tasks.add(), tasks.add()], (0, TaskClass.OTHER))
    pair.views[0].push_position(tasks, tasks.add(), (0, TaskClass.OTHER))
    wanted += [(tasks, position) for position in range(3)]
    wanted.append((None, pair.push(0, make("f"))))
    assert wanted == [pair.pop() for _ in wanted]


def test_keys_are_told_as_they_will_start(calendar_class, make):
    """The ranks of waiting tasks give the order in which they start."""
    pair = Pair(calendar_class, Fair(weights={"f": 2.0, "g": 1.0}))
    tasks = Tasks("g", cost=2)
    pair.views[0].push_run(tasks, [tasks.add() for _ in range(3)], (0, TaskClass.OTHER))
    for _ in range(4):
        pair.push(0, make("f"))
    gone = pair.push(0, make("f"))
    pair.push(0, make("f", priority=-1))
    cancel(gone)
    told = [(source, item) for _, source, item in sorted(pair.views[0].keyed(), key=lambda entry: entry[0])]
    assert told == [pair.pop() for _ in told]
    assert None is pair.pop()


# What is forgotten.


def test_keys_are_forgotten_as_soon_as_they_owe_nothing(calendar_class, make):
    """A thousand keys that have gone leave nothing behind while others continue."""
    pair = Pair(calendar_class, Fair())
    busy = Tasks("busy")
    pair.views[0].push_run(busy, [busy.add() for _ in range(10_000)], (0, TaskClass.OTHER))
    most = 0
    for number in range(1000):
        pair.push(number % 2, make(number, cost=1 + number % 3))
        for _ in range(4):
            pair.pop()
        most = max(most, pair.remembered())
    assert most < 20


def test_a_priority_is_purged_in_steps(calendar_class, make, monkeypatch):
    """What many keys leave behind is purged in steps of bounded length."""
    monkeypatch.setattr(fair_module, "_PURGE_STEP_COUNT", 10)
    monkeypatch.setattr(fair_module, "_PURGE_COUNT", 0)
    pair = Pair(calendar_class, Fair())
    for number in range(100):
        pair.push(0, make(number, cost=1 + number))
    while pair.pop() is not None:
        pass
    assert pair.remembered() > 50
    steps = 0
    while pair.chores:
        steps += sum(1 for _ in pair.chores.popleft())
    assert 5 <= steps <= 11
    assert 0 == pair.remembered()


def test_a_purge_spares_what_has_come_meanwhile(calendar_class, make):
    """A late purge spares a priority in which tasks wait again."""
    pair = Pair(calendar_class, Fair())
    pair.push(0, make("f"))
    pair.pop()
    assert None is pair.pop()
    pair.push(0, make("g"))
    pair.rest()
    assert "g" == pair.keys(1)


def test_compacting_frees_the_places_of_what_was_cancelled(calendar_class, make):
    """Compacting frees the places of cancelled tasks in either calendar."""
    for view in (0, 1):
        pair = Pair(calendar_class, Fair())
        records = [pair.push(view, make("f")) for _ in range(1000)]
        single = pair.push(view, make("g"))
        for record in records[:-1]:
            cancel(record)
        pair.rest()
        assert pair.views[view].count < 70 + 1000 // 2
        cancel(records[-1])
        assert (None, single) == pair.pop()
        assert None is pair.pop()


def test_cleared_queues_forget_everything(calendar_class, make):
    """A cleared queue forgets everything, and works for later tasks."""
    pair = Pair(calendar_class, Fair())
    for view in (0, 1, 1):
        pair.push(view, make("f"))
    pair.pop()
    for view in pair.views:
        view.clear()
    assert None is pair.pop()
    assert [] == [task for view in pair.views for task in view.walk()]
    pair.push(1, make("g"))
    assert "g" == pair.keys(1)


# Functions of the user.


@pytest.mark.parametrize(
    "fair",
    [
        Fair(weights=lambda key: 1 / 0),
        Fair(weights=lambda key: -1),
        Fair(weights=lambda key: "heavy"),
        Fair(lambda task: 1 / 0),
        Fair(lambda task: []),
    ],
    ids=["weights raise", "negative weight", "no number", "by raises", "key without hash"],
)
def test_a_function_that_fails_loses_nothing_and_is_reported(calendar_class, make, fair):
    """A weight that raises is 1, and a key that raises is that of tasks without one; both are reported."""
    pair = Pair(calendar_class, fair)
    tasks = Tasks("g")
    records = {(None, pair.push(0, make("f"))) for _ in range(3)}
    pair.views[1].push_run(tasks, [tasks.add(), tasks.add()], (0, TaskClass.OTHER))
    pair.views[1].push_position(tasks, tasks.add(), (0, TaskClass.OTHER))
    assert records | {(tasks, position) for position in range(3)} == {pair.pop() for _ in range(6)}
    assert None is pair.pop()
    assert pair.reported


def test_a_function_of_the_task_tells_its_key(calendar_class, make):
    """A key function sees the task as an order does, for records and positions of a source."""
    seen = []

    def by(task):
        seen.append(task)
        return task.name[0]

    pair = Pair(calendar_class, Fair(by))
    tasks = Tasks("g", cost=2)
    tasks.add()
    tasks.gone.add(0)
    pair.views[0].push_run(tasks, [0, tasks.add()], (-3, TaskClass.IMMEDIATE))
    pair.push(0, make("f", priority=3, cost=4, name="x1", due=5.0))
    pair.views[0].push_records([make(name=name) for name in ("y1", "y2", "x2")], (0, TaskClass.OTHER))
    assert [("g1", 3, 1000.0, True, 1, "g", 2), ("x1", 3, 1005.0, False, 2, "f", 4)] == [
        (task.name, task.priority, task.due, task.is_immediate, task.arrival, task.key, task.cost) for task in seen[:2]
    ]
    names = [item.name if source is None else source.name_of(item) for source, item in (pair.pop() for _ in range(5))]
    assert {"g1", "x1"} == set(names[:2])
    assert ["y1", "x2", "y2"] == names[2:]


def test_a_function_that_cancels_what_it_is_asked_about_loses_nothing_else(calendar_class, make):
    """A function that cancels its own task loses no other."""
    records = [make(name=str(number)) for number in range(4)]

    def by(task):
        for record in records:
            if (record.name == task.name == "1" or (task.name == "0" and record.name == "2")) and record._place:
                cancel(record)

    pair = Pair(calendar_class, Fair(by))
    pair.views[0].push_records(list(records), (0, TaskClass.OTHER))
    assert [(None, records[0]), (None, records[3]), None] == [pair.pop() for _ in range(3)]


@pytest.mark.parametrize("of", ["by", "weights"])
def test_a_function_that_sets_another_order_loses_nothing(calendar_class, make, of):
    """A function that sets another order moves its task to that order."""
    successor = ReadyQueues(calendar_class())

    def change(_):
        for view in pair.views:
            view.note_replaced()
            view.calendar.ready = successor
        return 1.0

    pair = Pair(calendar_class, Fair(change) if of == "by" else Fair(weights=change))
    tasks = Tasks("f")
    tasks.add(), tasks.add()
    record = make("f")
    for action in (
        lambda: pair.push(0, record),
        lambda: pair.views[0].push_run(tasks, [0], (0, TaskClass.OTHER)),
        lambda: pair.views[0].push_position(tasks, 1, (0, TaskClass.OTHER)),
    ):
        for view in pair.views:
            view.is_replaced = False
        pair.clock.levels.clear()
        action()
    assert {(None, record), (tasks, 0), (tasks, 1)} == set(successor.walk())
    assert None is pair.pop()


def test_weights_that_schedule_a_task_of_their_key_lose_nothing(calendar_class, make):
    """A weight function that schedules a task of its key loses none: each key has one flow."""
    inner = make("f")

    def weight(key):
        if inner._place is None:
            pair.push(0, inner)
        return 1.0

    pair = Pair(calendar_class, Fair(weights=weight))
    outer = pair.push(0, make("f"))
    assert {(None, inner), (None, outer)} == set(pair.views[0].walk())
    assert [(None, inner), (None, outer), None] == [pair.pop() for _ in range(3)]


def test_what_is_added_while_a_task_is_taken_waits_behind_it(calendar_class, make):
    """Tasks added while one is taken wait behind it, whatever their keys."""
    pair = Pair(calendar_class, Fair())
    view = pair.views[0]
    for key in "ffg":
        pair.push(0, make(key))
    assert "fg" == pair.keys(2)
    assert (0, 1.0) == view.head()
    assert "f" == view.pop().take().key
    for key in "hf":
        pair.push(0, make(key))  # as the callback of an expired task does
    assert "h" == pair.keys(1)
    assert "f" == pair.keys(1)
    assert None is pair.pop()


@pytest.mark.parametrize("left", [0, 1])
def test_what_is_added_while_a_task_is_taken_may_go_before_what_follows_it(calendar_class, make, left):
    """A new key added while a task is taken may precede the next task of a key that is ahead of its share."""
    pair = Pair(calendar_class, Fair())
    for key in ["f", "g", *"f" * (1 + left)]:
        pair.push(0, make(key, cost=10 if key == "f" else 1))
    assert "fg" == pair.keys(2)
    assert (0, 10.0) == pair.views[0].head()
    assert "f" == pair.views[0].pop().take().key
    for view in (1, 0):
        pair.push(view, make("h"))
    assert "hh" + "f" * left == pair.keys(2 + left)
    assert None is pair.pop()


class SlowGate:
    """Parks the keys that it is asked about until they are resumed."""

    is_put_off = False

    def __init__(self) -> None:
        self.parked: list = []
        self.on_asked = {}.get  # called with a key; returns True if it may start
        self.is_resumed = False

    def knows(self, key) -> bool:
        return True

    def admits(self, key, cost: int, now_ns: int) -> bool:
        return self.on_asked(key)

    def is_over(self, task, now_ns: int) -> bool:
        return False

    def park(self, key, cost: int, now_ns: int, resume, waiting) -> None:
        self.parked.append(resume)

    def resume(self) -> bool:
        self.is_resumed = True
        parked, self.parked = self.parked, []
        for resume in parked:
            resume()
        return False


@pytest.mark.parametrize("is_asked", [True, False], ids=["as it is asked", "then"])
def test_nothing_is_lost_when_a_key_is_resumed_before_what_was_found_first(calendar_class, is_asked):
    """No task is lost if the gate resumes a key while it is asked about another."""
    pair = Pair(calendar_class, Fair())
    gate = pair.clock.gate = SlowGate()
    view = pair.views[0]
    tasks = {"a": Tasks("a"), "b": Tasks("b", cost=3)}
    pair.views[1].push_position(tasks["a"], tasks["a"].add(), (0.0, TaskClass.OTHER))
    for key in "abb":
        view.push_position(tasks[key], tasks[key].add(), (0.0, TaskClass.OTHER))

    def take() -> tuple:
        peeked, run = view.peek(), view.pop()
        assert peeked == (run.source, run.take())
        view.served()
        return peeked

    gate.on_asked = {"b": True}.get
    assert view.head_at(0) is not None
    taken = [take()]
    if is_asked:
        gate.on_asked = lambda key: gate.resume() if key == "b" else gate.is_resumed
    assert view.head_at(0) is not None
    gate.on_asked = lambda _: True
    if not is_asked:
        gate.resume()
    taken.append(take())
    gate.resume()
    taken += [take() for _ in range(3) if view.head_at(0) is not None]
    assert {(tasks["a"], 1), (tasks["b"], 0), (tasks["b"], 1)} == set(taken)
