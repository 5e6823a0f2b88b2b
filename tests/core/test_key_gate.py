"""The gate of keys: what holds a key, when it is resumed, and when it is forgotten."""

from dataclasses import replace

import pytest

from ratelimited_executor._core.key_gate import KeyGate
from ratelimited_executor._core.slot_asking import SlotAsker
from ratelimited_executor._core.slot_lanes import SlotLane
from ratelimited_executor._runtime.slot_keeper import LocalSlots
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.rates import Rate

from .gates import NOW, NS, WIDTH, gate_of


def test_what_holds_a_key_is_told():
    """A key is held by its concurrency, then its penalty, then its rate; an unknown one by nothing."""
    gate = gate_of(concurrency=2)
    assert (None, NOW) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 3, NOW))
    assert gate.admits("slow", 1, NOW)
    assert None is gate.hold("slow", 1, NOW)
    gate.start("slow", 1, NOW)
    assert ("rate", NOW + WIDTH) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 1, NOW))
    gate.penalize("slow", NOW + 2 * NS)
    gate.penalize("slow", NOW + NS)
    assert ("penalty", NOW + 2 * NS) == (gate.hold("slow", 1, NOW), gate.when_count("slow", 1, NOW))
    gate.start("slow", 1, NOW)
    assert "concurrency" == gate.hold("slow", 1, NOW)
    gate.penalize("free", NOW + NS)
    assert ("penalty", NOW + NS) == (gate.hold("free", 1, NOW), gate.when_count("free", 9, NOW))


@pytest.mark.parametrize(("limit", "may_get"), [(None, True), (0, False), (1, True)])
def test_lane_may_get_slots_of_a_pool_unless_that_is_halted(limit, may_get):
    """A lane that waits may get slots, also where the limit of the pool is not known yet; only 0 halts the pool."""

    class Keeper(LocalSlots):
        def statistics(self, pool):
            return replace(super().statistics(pool), limit=limit)

    keeper = Keeper()
    keeper.set_limit("a", 0)
    lane = SlotLane(None, ("a",), priority=0, name="x", keeper=keeper, wake=lambda _: None)
    lane.waiting_count = 1
    gate = gate_of()
    assert not gate.may_get_slots
    gate.ask_ahead(lane, NOW)
    assert may_get == gate.may_get_slots


def test_a_task_costs_a_key_no_more_than_its_limit_ever_admits():
    """A task that costs more than its key's limit ever admits waits for the full limit, and is not stuck."""
    gate = gate_of(3)
    limit, ticket = gate.start("slow", 100, NOW)
    assert 0 == limit.count(NOW)
    limit.settle(ticket, 1, NOW)
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


@pytest.mark.parametrize(
    "make_limit",
    [
        lambda rate: WindowLimit(rate),
        lambda rate: TokenBucketLimit(rate, depth=2, now_ns=NOW),
        lambda rate: PacedLimit(rate, slack_ns=0),
    ],
    ids=["window", "bucket", "paced"],
)
def test_a_key_is_forgotten_when_a_new_one_would_do_the_same(make_limit):
    """A key is forgotten once a new one would behave the same: nothing runs or is parked, and its limit is at rest."""
    gate = gate_of(make=make_limit)
    gate.start("slow", 1, NOW)
    gate.sweep(5, NOW)
    assert (1, False) == (gate.key_count, gate.is_remembering)
    gate.end("slow")
    gate.park("slow", 1, NOW, lambda: None)
    gate.sweep(5, NOW)
    assert (1, False) == (gate.key_count, gate.is_remembering)
    gate.look_again("slow")
    gate.penalize("slow", NOW + 5 * NS)
    for now in (NOW, NOW + 5 * NS - 1):
        gate.sweep(5, now)
        assert (1, True) == (gate.key_count, gate.is_remembering)
    gate.sweep(5, NOW + 5 * NS)
    assert (0, False) == (gate.key_count, gate.is_remembering)


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
        assert (0, False) == (gate.key_count, gate.is_remembering)
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
