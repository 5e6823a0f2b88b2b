"""Slots divide a cycle evenly and take turns, and kinds of jobs a phase apart never work on the same slot."""

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratelimited_executor.spread import CycleSlots, cycle_slot_of, cycle_slots, reciprocal

CYCLES = st.integers(1, 10**7).map(lambda half: 2 * half)
BUCKETS = st.sampled_from([256, 65_536])
PHASES = st.fractions(0, 1, max_denominator=10**6).filter(lambda phase: phase < 1)


@pytest.mark.parametrize(
    ("cycle", "buckets", "count"),
    [
        ("8h", 65_536, 128),
        ("8h", 256, 128),
        ("24h", 65_536, 128),
        (65_536, 65_536, 65_536),
        (65_536, 256, 256),
        (timedelta(hours=1), 65_536, 16),
        (3600.0, 256, 16),
        (2, 256, 2),
        ("1d", 65_536, 128),
    ],
)
def test_number_of_slots_is_the_greatest_common_divisor(cycle, buckets, count):
    """The eight hours of the talk have 128 slots, with 256 buckets as with 65,536."""
    assert count == cycle_slots(cycle, buckets) == CycleSlots(cycle, buckets).count


@given(CYCLES, BUCKETS)
def test_slots_cut_time_and_buckets_evenly(cycle, buckets):
    """All slots have the same whole number of seconds and of buckets, and each bucket lies in one slot."""
    slots = CycleSlots(cycle, buckets)
    assert slots.count == math.gcd(cycle, buckets)
    assert cycle == slots.seconds == slots.count * slots.slot_seconds
    if slots.count <= 1024:
        assert list(range(buckets)) == [bucket for slot in range(slots.count) for bucket in slots.buckets_of(slot)]
    assert {buckets // slots.count} == {len(slots.buckets_of(slot)) for slot in (0, slots.count - 1)}


@given(CYCLES, BUCKETS, PHASES, st.integers(-1000, 10**6), st.data())
def test_turns_of_slots_follow_each_other(cycle, buckets, phase, number, data):
    """In every cycle a slot has its turn from its begin until the begin of the next slot."""
    slots = CycleSlots(cycle, buckets, phase)
    slot = data.draw(st.integers(0, slots.count - 1))
    begin = slots.begin(number, slot)
    following = slots.begin(number, slot + 1) if slot + 1 < slots.count else slots.begin(number + 1)
    assert begin + slots.slot_seconds == following
    for time in (begin, begin + Fraction(slots.slot_seconds) / 2, following - Fraction(1, 10**9)):
        assert (number, slot) == (slots.number_at(time), slots.slot_at(time))
    assert slot != slots.slot_at(following)


@given(CYCLES, BUCKETS, st.integers(1, 50), st.integers(-(2**63), 2**63 - 1), st.fractions(0, 10**9))
def test_kinds_a_phase_apart_never_work_on_one_slot(cycle, buckets, of, key, time):
    """At any time all kinds are at different slots, so that no two of them work on a key at the same time."""
    slots = [CycleSlots(cycle, buckets, reciprocal(k, of=of)) for k in range(of)]
    assume(of <= slots[0].count)
    turns = [each.slot_at(time) for each in slots]
    assert len(turns) == len(set(turns))
    mine = slots[0].slot_of(key)
    # The turns of the key's slot for all kinds, in order: none begins before the previous one has ended.
    begins = sorted(each.begin(0, mine) % cycle for each in slots)
    assert all(later - earlier >= slots[0].slot_seconds for earlier, later in zip(begins, begins[1:], strict=False))
    assert begins[0] + cycle - begins[-1] >= slots[0].slot_seconds


def test_more_kinds_than_slots_do_meet():
    """Three kinds with two slots meet, so the law needs its condition."""
    turns = [CycleSlots(2, 256, reciprocal(k, of=3)).slot_at(Fraction(1, 2)) for k in range(3)]
    assert len(set(turns)) < 3


def test_reciprocals_are_exact():
    """A reciprocal is a fraction, so that a third of a cycle begins at the exact second."""
    assert [Fraction(0), Fraction(1, 3), Fraction(2, 3)] == [reciprocal(k, of=3) for k in range(3)]
    assert 28_800 // 3 == CycleSlots("8h", phase=reciprocal(1, of=3)).begin(0)


def test_equal_cycles_are_equal():
    """Cycles are equal if their durations are, in whichever form these are given."""
    assert CycleSlots("8h") == CycleSlots(28_800) == CycleSlots(timedelta(hours=8))
    assert (
        len({CycleSlots("8h"), CycleSlots(28_800), CycleSlots("8h", 256), CycleSlots("8h", phase=Fraction(1, 2))}) == 3
    )
    assert "seconds=28800, count=128, slot_seconds=225" in repr(CycleSlots("8h"))


@pytest.mark.parametrize("cycle", [0, -8, 0.5, 1.5, "1.5s", float("nan"), float("inf"), "", "soon", 7, "1s", 28_801])
def test_cycle_that_cannot_be_cut_is_refused(cycle):
    """A cycle must be a positive, even, whole number of seconds; the message suggests one."""
    for call in (cycle_slots, CycleSlots, lambda cycle: cycle_slot_of(1, cycle)):
        with pytest.raises(ValueError, match="cycle"):
            call(cycle)
    if cycle == 7:
        with pytest.raises(ValueError, match="take 8 s"):
            cycle_slots(cycle)


@pytest.mark.parametrize("buckets", [0, 1, 128, 255, 65_535, 2**24])
def test_other_numbers_of_buckets_are_refused(buckets):
    """A bucket is one or two bytes of the hash; 65,535 is refused, too, although the talk names it by mistake."""
    with pytest.raises(ValueError, match="buckets must be 256 or 65536"):
        cycle_slots("8h", buckets)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: cycle_slots(None), "cycle"),
        (lambda: cycle_slots(True), "cycle"),
        (lambda: cycle_slots("8h", "256"), "buckets"),
        (lambda: cycle_slots("8h", True), "buckets"),
        (lambda: CycleSlots("8h", phase=0.5), "phase"),
        (lambda: CycleSlots("8h", phase=True), "phase"),
        (lambda: reciprocal(0.0, of=1), "k"),
        (lambda: reciprocal(0, of=True), "of"),
        (lambda: CycleSlots("8h").buckets_of(1.0), "slot"),
        (lambda: CycleSlots("8h").begin(0, True), "slot"),
    ],
)
def test_wrong_types_are_refused_by_name(call, name):
    """The message names the argument."""
    with pytest.raises(TypeError, match=f"^{name} must be"):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: CycleSlots("8h", phase=Fraction(1)), "phase"),
        (lambda: CycleSlots("8h", phase=Fraction(-1, 2)), "phase"),
        (lambda: reciprocal(3, of=3), "k"),
        (lambda: reciprocal(-1, of=3), "k"),
        (lambda: reciprocal(0, of=0), "of"),
        (lambda: CycleSlots("8h").buckets_of(128), "slot"),
        (lambda: CycleSlots("8h").buckets_of(-1), "slot"),
    ],
)
def test_values_out_of_range_are_refused_by_name(call, name):
    """The message names the argument."""
    with pytest.raises(ValueError, match=f"^{name} must be"):
        call()
