"""The gate of keys: what holds a key, when it is resumed, and when it is forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.keys.gate import KeyGate
from ratelimited_executor._core.slots.asking import SlotAsker
from ratelimited_executor._core.slots.lines import SlotLine
from ratelimited_executor._runtime.limits.slot_keeper import LocalSlots
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples
from ...kinds import LIMITS
from ..gates import NOW, NS, WIDTH, gate_of

KEY_LIMITS = [make for kind, make in LIMITS.items() if kind is not QuotaLimit]  # a key has no quota


def test_what_holds_a_key_is_told():
    """A key is held by its concurrency, then its penalty, then its rate; an unknown one by nothing."""
    gate = gate_of(concurrency=2)
    assert (None, NOW) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 3, NOW))
    assert gate.admits("slow", 1, NOW)
    assert None is gate.hold("slow", 1, NOW)
    gate.start("slow", 1, NOW)
    assert ("rate", NOW + WIDTH) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 1, NOW))
    gate.penalize("slow", NOW + 2 * NS, NOW)
    gate.penalize("slow", NOW + NS, NOW)
    assert ("penalty", NOW + 2 * NS) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 1, NOW))
    gate.start("slow", 1, NOW)
    assert "concurrency" == gate.hold("slow", 1, NOW)
    gate.penalize("free", NOW + NS, NOW)
    assert ("penalty", NOW + NS) == (gate.hold("free", 1, NOW), gate.when_count("free", 9, NOW))


@pytest.mark.parametrize(("limit", "may_get"), [(None, True), (0, False), (1, True)])
def test_line_may_get_slots_of_a_pool_unless_that_is_halted(limit, may_get):
    """A line that waits may get slots, also where the limit of the pool is not known yet; only 0 halts the pool."""

    class Keeper(LocalSlots):
        def statistics(self, pool):
            return replace(super().statistics(pool), limit=limit)

    keeper = Keeper()
    keeper.set_limit("a", 0)
    line = SlotLine(None, ("a",), priority=0, name="x", keeper=keeper, wake=lambda _: None)
    line.waiting_count = 1
    gate = gate_of()
    assert not gate.may_get_slots
    gate.ask_ahead(line, NOW)
    assert may_get == gate.may_get_slots


def test_a_task_costs_a_key_no_more_than_its_limit_ever_admits():
    """A task that costs more than its key's limit ever admits waits for the full limit, and is not stuck."""
    gate = gate_of(3)
    limit, receipt = gate.start("slow", 100, NOW)
    assert 0 == limit.count(NOW)
    limit.settle(receipt, 1, NOW)
    assert (True, False) == (gate.admits("slow", 2, NOW), gate.admits("slow", 100, NOW))
    assert None is gate.start("free", 100, NOW)
    assert (True, False) == tuple(each.admits("slow", 100, NOW) for each in (gate_of(1), gate_of(0)))


def test_a_parked_key_is_resumed_once_and_in_time():
    """A parked key is resumed once: at the earliest start of a task, at an end, or on request."""
    called = []
    gate = gate_of(3, concurrency=1)
    gate.start("slow", 3, NOW)
    gate.park("slow", 1, NOW, lambda: called.append("full"))
    assert None is gate.next_time()
    assert gate.end("slow")
    assert ["full"] == called
    assert not gate.end("unknown")
    gate.park("slow", 3, NOW, lambda: called.append("late"))
    gate.park("slow", 1, NOW, lambda: called.append("soon"))
    assert NOW + WIDTH == gate.next_time()
    gate.open_due(NOW + WIDTH - 1)
    assert 1 == len(called)
    gate.open_due(NOW + WIDTH)
    assert ["full", "late", "soon"] == called
    assert None is gate.next_time()
    gate.start("slow", 1, NOW + WIDTH)
    gate.end("slow")
    gate.start("slow", 2, NOW + WIDTH + 10)
    gate.end("slow")
    for cost in (3, 1):
        gate.park("slow", cost, NOW + WIDTH, lambda: called.append("other"))
    gate.open_due(NOW + 2 * WIDTH)
    assert ["other"] * 2 == called[-2:]
    assert None is gate.next_time()
    gate.start("slow", 1, NOW + 2 * WIDTH)
    gate.end("slow")
    gate.park("slow", 1, NOW + 2 * WIDTH, lambda: called.append("again"))
    gate.look_again("slow")
    gate.look_again("unknown")
    assert "again" == called[-1]
    gate.open_due(NOW + 9 * NS)
    assert None is gate.next_time()
    assert 6 == len(called)


def test_a_key_that_may_never_start_is_resumed_by_other_limits():
    """A key with rate 0 is resumed when limits are read again, or the gate is opened."""
    called, permits = [], {"slow": 0}
    gate = KeyGate(
        limit_of=lambda key: None if permits[key] is None else PacedLimit(Rate(permits[key]), slack_ns=0),
        concurrency_of=lambda key: None,
    )
    for value in (0, 2, None, 1):
        assert gate.admits("slow", 1, NOW) == (permits["slow"] != 0)
        gate.park("slow", 1, NOW, lambda value=value: called.append(value))
        assert (gate.next_time() is None) == (permits["slow"] == 0)
        permits["slow"] = value
        gate.refresh(NOW)
        assert [value] == called[-1:]
    gate.park("slow", 1, NOW, lambda: called.append("all"))
    gate.open_all()
    assert "all" == called[-1]
    assert None is gate.next_time()


@pytest.mark.parametrize("make_limit", KEY_LIMITS)
def test_a_key_is_forgotten_when_a_new_one_would_do_the_same(make_limit):
    """A key is forgotten once a new one would behave the same: nothing runs or is parked, and its limit is at rest."""
    gate = gate_of(make=lambda rate: make_limit(rate, lambda: NOW))
    gate.start("slow", 1, NOW)
    gate.sweep(5, NOW)
    assert (1, False) == (gate.key_count, gate.forget_time() is not None)
    gate.end("slow")
    gate.park("slow", 1, NOW, lambda: None)
    gate.sweep(5, NOW)
    assert (1, False) == (gate.key_count, gate.forget_time() is not None)
    gate.look_again("slow")
    gate.penalize("slow", NOW + 5 * NS, NOW)
    for now in (NOW, NOW + 5 * NS - 1):
        gate.sweep(5, now)
        assert (1, True) == (gate.key_count, gate.forget_time() is not None)
    gate.sweep(5, NOW + 5 * NS)
    assert (0, False) == (gate.key_count, gate.forget_time() is not None)


def test_many_keys_are_forgotten_a_few_at_a_time():
    """In each interval more keys are forgotten than start, a few at a time, so that memory does not grow."""
    gate = gate_of()
    for _ in range(3):
        for number in range(20_000):
            gate.start(number, 1, NOW)
            gate.end(number)
        assert 20_000 == gate.key_count
        for forgotten, _ in enumerate(gate.sweep_steps(NOW), start=1):
            assert gate.key_count >= 20_000 - 1024 * forgotten  # no step takes long
        assert (0, False) == (gate.key_count, gate.forget_time() is not None)
    assert [] == list(gate.sweep_steps(NOW))


def test_slot_that_a_start_has_taken_is_asked_for_anew_by_all_that_waited_for_it():
    """A slot taken by one of several queues with the same key is requested again by the others."""
    keeper = LocalSlots()
    gate = KeyGate(
        limit_of=lambda _: None,
        concurrency_of=lambda _: 1,
        slots_of=lambda key, count: SlotAsker(keeper, (key,), name="x", priority=0.0, told=list, limit=count),
    )
    resumed = []
    other = keeper.request(("k",), name="other", priority=0.0, told=list, limit=1)
    assert not gate.admits("k", 1, 0)
    gate.park("k", 1, 0, lambda: resumed.append("joined"))
    other.release()
    assert gate.admits("k", 1, 0)
    gate.start("k", 1, 0)
    assert ["joined"] == resumed


class FakeKeeper:
    """A keeper of slots whose answers the test gives."""

    parts, is_away = None, False

    def __init__(self) -> None:
        self.requests: list[FakeRequest] = []

    def request(self, pools, *, told, answered, **_) -> "FakeRequest":
        """Note a request."""
        self.requests.append(FakeRequest(pools, told, answered))
        return self.requests[-1]


class FakeRequest:
    """A request for slots."""

    def __init__(self, pools, told, answered) -> None:
        self.pools, self._told, self._answered = pools, told, answered
        self.fence, self.is_coming, self.is_gone = 0, False, False

    def is_fresh(self) -> bool:
        """Return True."""
        return True

    def start(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Note that it is given back."""
        self.is_gone = True

    def wait(self, *, is_coming: bool = False) -> None:
        """Answer that it has to wait, or that its slots are coming."""
        self.is_coming = is_coming
        self._answered(self)

    def hand(self) -> None:
        """Hand the slots over."""
        self.fence, self.is_coming = 7, False
        self._told(self)


def slot_gate(keeper: FakeKeeper, *, ahead_count: int = 5) -> KeyGate:
    """Return a gate whose keys need a slot of a group each."""

    def slots_of(key: str, count: int) -> SlotAsker:
        return SlotAsker(keeper, (key,), name="x", priority=0.0, told=lambda: gate.told(key), limit=count)

    gate = KeyGate(
        limit_of=lambda _: None,
        concurrency_of=lambda key: 1 if key[0] == "k" else None,
        slots_of=slots_of,
        ahead_count=lambda: ahead_count,
    )
    return gate


def startable(gate: KeyGate, key: object, *, asks: bool = True) -> int:
    """Return how many tasks of a key could start now with their slots."""
    gate.meet(key, NOW)
    return gate.startable_with_slots(key, NOW, asks=asks)


def test_tasks_may_start_with_slots_that_are_there_or_likely_to_be():
    """Permits are requested for slots that are held, coming, or not known to be delayed; else after them."""
    keeper = FakeKeeper()
    gate = slot_gate(keeper)
    assert startable(gate, "free") > 1000
    assert (1, 0) == (startable(gate, "k", asks=False), len(keeper.requests))
    assert [1, 1] == [startable(gate, "k") for _ in range(2)]  # nothing is known of it yet
    (first,) = keeper.requests

    first.wait()
    assert (0, 0) == (startable(gate, "k"), startable(gate, "k", asks=False))
    first.wait(is_coming=True)
    assert startable(gate, "k") == 1
    first.wait()
    assert startable(gate, "k") == 0
    first.hand()
    assert startable(gate, "k") == 1

    gate.start("k", 1, NOW)
    assert startable(gate, "k", asks=False) == 1
    assert startable(gate, "k") == 0  # the latest one had to wait, so the next may have to, too
    keeper.requests[-1].hand()
    assert startable(gate, "k") == 1
    gate.start("k", 1, NOW)
    assert (1, 3) == (startable(gate, "k"), len(keeper.requests))


def test_slots_are_requested_ahead_for_few_keys_and_none_under_a_penalty():
    """With permits, slots are requested for so many keys at a time, and for none that is under a penalty."""
    keeper = FakeKeeper()
    gate = slot_gate(keeper, ahead_count=2)
    gate.penalize("k0", NOW + NS, NOW)
    for number in range(4):
        startable(gate, f"k{number}")
    assert [("k1",), ("k2",)] == [request.pools for request in keeper.requests]


def test_slot_asked_for_ahead_is_kept_for_its_task_and_another_is_not():
    """A slot is kept if a task has not been parked since, or waits parked; else it is given back."""
    keeper = FakeKeeper()
    gate = slot_gate(keeper)
    startable(gate, "k")
    keeper.requests[0].hand()
    assert not keeper.requests[0].is_gone

    startable(gate, "k1")
    assert not gate.admits("k1", 1, NOW)
    gate.park("k1", 1, NOW, list, lambda _: 0)  # its task has gone
    keeper.requests[1].hand()
    assert keeper.requests[1].is_gone


def test_line_asks_for_its_slots_once_the_slot_of_its_key_is_there():
    """A line of a key requests its slots after that of the key, and is startable once both are near."""
    keeper = FakeKeeper()
    gate = slot_gate(keeper)
    line = SlotLine("k", ("gpu",), priority=0.0, name="x", keeper=keeper, wake=lambda _: None)
    line.waiting_count = 1
    assert startable(gate, line) == 1
    assert [("k",)] == [request.pools for request in keeper.requests]
    keeper.requests[0].hand()
    assert startable(gate, line) == 1
    assert [("k",), ("gpu",)] == [request.pools for request in keeper.requests]
    assert gate.hold(line, 1, NOW) is None
    keeper.requests[1].wait()
    assert startable(gate, line) == 0
    assert gate.hold(line, 1, NOW) == "slots"


# Forgetting.


@pytest.mark.parametrize("make", KEY_LIMITS)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2 * NS), st.integers(1, 3), st.sampled_from(["", "penalty"])),
        max_size=30,
    )
)
@examples(100)
def test_forgetting_keys_changes_no_decision(make, steps):
    """A gate that forgets keys as soon as it can decides the same as one that forgets none."""
    gates = [
        KeyGate(limit_of=lambda _: make(Rate(3, per=5), lambda: NOW), concurrency_of=lambda _: None) for _ in range(2)
    ]
    now = NOW
    for key, step, cost, action in steps:
        now += step
        for _ in range(2):
            gates[0].sweep(100, now)
        assert not gates[0]._keys
        said = [
            (gate.admits(key, cost, now), gate.hold(key, cost, now), gate.when_count(key, 2, now)) for gate in gates
        ]
        assert said[0] == said[1]
        for gate in gates:
            if action:
                gate.penalize(key, now + cost * NS, now)
            elif said[0][0]:
                gate.start(key, cost, now)
                gate.take_effect(now)
                gate.end(key)
    gates[0].sweep(100, now + 100 * NS)
    assert (0, None) == (gates[0].key_count, gates[0].forget_time())


def test_changed_limits_apply_to_remembered_keys():
    """When limits are read again, remembered keys adopt them with their starts; those of another law begin anew."""
    rates = {"a": Rate(1, per=50)}
    gate = KeyGate(limit_of=lambda key: make(rates[key]), concurrency_of=lambda _: None)
    make = WindowLimit
    gate.start("a", 1, NOW)
    gate.end("a")
    gate.sweep(5, NOW)
    assert (1, False) == (gate.key_count, gate.knows("a"))
    rates["a"] = Rate(2, per=100)
    gate.refresh(NOW)
    assert (1, False) == (gate.key_count, gate.knows("a"))
    assert gate.admits("a", 1, NOW)
    gate.start("a", 1, NOW)
    assert ("rate", NOW + 100 * NS + 1000) == (gate.hold("a", 1, NOW), gate.when_count("a", 1, NOW))
    gate.end("a")
    gate.sweep(5, NOW)

    def make(rate: Rate) -> PacedLimit:
        return PacedLimit(rate, slack_ns=0)

    gate.refresh(NOW)
    assert (0, True) == (gate.key_count, gate.admits("a", 1, NOW))


def test_a_key_is_not_forgotten_while_a_start_can_be_settled():
    """A key is known while the receipt of a start is held, so that its cost can still be settled."""
    gate = gate_of(5)
    limit, receipt = gate.start("slow", 1, NOW)
    gate.end("slow")
    gate.sweep(5, NOW)
    assert gate.knows("slow")
    limit.settle(receipt, 9, NOW)
    del limit, receipt
    gate.sweep(5, NOW)
    assert (1, False) == (gate.key_count, gate.knows("slow"))
    assert ("rate", NOW + WIDTH) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 1, NOW))


def test_new_keys_wait_while_as_many_as_allowed_are_remembered():
    """At the maximum, known keys go on, and tasks of new keys wait, in turn, until a key is forgotten."""
    called, full = [], []
    gate = KeyGate(
        limit_of=lambda key: None if key == "free" else WindowLimit(Rate(2)),
        concurrency_of=lambda _: None,
        keys_max=2,
        note_full=lambda: full.append(1),
    )
    for key in "ab":
        assert gate.admits(key, 1, NOW)
        gate.start(key, 1, NOW)
        gate.end(key)
    gate.sweep(1, NOW)
    for key in "cd":
        assert (False, "keys") == (gate.admits(key, 1, NOW), gate.hold(key, 1, NOW))
        assert gate.park(key, 1, NOW, lambda key=key: called.append(key))
    assert [1, 1] == full
    assert gate.admits("a", 1, NOW)
    assert gate.admits("free", 1, NOW)
    gate.start("a", 1, NOW + NS // 2)
    gate.end("a")
    gate.open_due(NOW + NS // 2)
    second = NOW + 2 * NS
    assert ([], second) == (called, gate.next_time())
    gate.open_due(second)
    assert ["c", "d"] == called
    for key, is_admitted in (("c", True), ("d", True), ("e", False)):
        assert is_admitted is gate.admits(key, 1, second)
        if is_admitted:
            gate.start(key, 1, second)
    gate.park("e", 1, second, lambda: called.append("e"))
    assert None is gate.next_time()
    for key in "cd":
        gate.end(key)
    gate.sweep(5, second + 3 * NS)
    assert 0 == gate.next_time()
    gate.open_due(second + 3 * NS)
    assert ["c", "d", "e"] == called
