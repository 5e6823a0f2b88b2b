"""The times at which requests are due."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.load.arrivals import PHASES_MAX, Phase, Schedule, arrivals, staircase


def dues(*phases: Phase, draw=None) -> list[float]:
    return [arrival.due for arrival in arrivals(phases, draw)]


def constant(rate: float, seconds: float, **more) -> Phase:
    return Phase(first=rate, last=rate, seconds=seconds, **more)


def test_regular_load_has_exactly_rate_times_seconds_requests() -> None:
    """The first request is due at once and the last one gap before the end, and rounding errors do not add up."""
    found = dues(constant(500, 60))

    assert 30_000 == len(found)
    assert (0.0, 59.998) == (found[0], found[-1])
    assert 12_345 / 500 == found[12_345]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 5)), min_size=1, max_size=5))
def test_due_times_rise_and_lie_in_their_phases(parts) -> None:
    """Due times rise, each in its phase, and a phase has as many as its mean rate makes, give or take one."""
    phases = [Phase(first=first, last=last, seconds=seconds) for first, last, seconds in parts]
    found = list(arrivals(phases))
    begins = [sum(phase.seconds for phase in phases[:index]) for index in range(len(phases) + 1)]

    assert [*range(len(found))] == [each.number for each in found]
    assert sorted(each.due for each in found) == [each.due for each in found]
    for each in found:
        assert begins[each.phase] - 1e-6 <= each.due <= begins[each.phase + 1] + 1e-6
    for index, phase in enumerate(phases):
        assert abs(sum(each.phase == index for each in found) - phase.expected) <= 1
    assert math.ceil(sum(phase.expected for phase in phases) - 1e-6) == len(found)


def test_ramp_from_nothing_has_its_requests_at_the_roots() -> None:
    """On a ramp from 0 to 10 a second in 2 s, request k is due at the time t where 2.5 t*t = k."""
    found = dues(Phase(first=0, last=10, seconds=2))

    assert pytest.approx([math.sqrt(number / 2.5) for number in range(10)]) == found


def test_poisson_load_has_the_rate_in_the_mean_and_the_spread_of_chance() -> None:
    """The gaps have the mean 1/rate and a standard deviation equal to it, and equal seeds give equal loads."""
    found = dues(constant(100, 200), draw=random.Random(7).random)
    gaps = [after - before for before, after in zip([0.0, *found], found, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))

    assert 19_500 < len(found) < 20_500
    assert pytest.approx(mean, rel=0.05) == deviation
    assert found == dues(constant(100, 200), draw=random.Random(7).random)


@pytest.mark.parametrize(
    ("first", "last", "step", "expected"),
    [
        (100, 300, 100, [100, 200, 300]),
        (100, 250, 100, [100, 200, 250]),
        (300, 100, 100, [300, 200, 100]),
        (1, 1.3, 0.1, [1, 1.1, 1.2, 1.3]),
        (5, 6, 10, [5, 6]),
    ],
)
def test_staircase_has_both_ends(first, last, step, expected) -> None:
    """A staircase goes up or down from the first rate to the last, even if the steps do not meet the last."""
    phases = staircase(first, last, step=step, seconds=2)

    assert pytest.approx(expected) == [phase.first for phase in phases]
    assert {2} == {phase.seconds for phase in phases}


def test_staircase_refuses_more_phases_than_a_table_can_have() -> None:
    """More phases than a table can have are refused with the advice to take a larger step; so is a step of 0."""
    with pytest.raises(ValueError, match="give a larger step"):
        staircase(1, PHASES_MAX + 1, step=1, seconds=1)
    with pytest.raises(ValueError, match="step must be > 0"):
        staircase(1, 2, step=0, seconds=1)


def test_classes_keep_their_own_rates_and_are_numbered_together() -> None:
    """Requests of all classes are numbered by due time, and the slower class does not coincide with the faster."""
    schedule = Schedule(classes={"ordinary": [constant(400, 10)], "urgent": [constant(20, 10)]})
    found = list(schedule.arrivals())
    by_class = [[each for each in found if each.class_index == index] for index in (0, 1)]

    assert [*range(4200)] == [each.number for each in found]
    assert sorted(each.due for each in found) == [each.due for each in found]
    assert ([*range(4000)], [*range(200)]) == tuple([each.turn for each in of_class] for of_class in by_class)
    assert pytest.approx([0.05] * 199) == [b.due - a.due for a, b in zip(by_class[1], by_class[1][1:], strict=False)]
    ordinary = {each.due for each in by_class[0]}
    assert min(abs(each.due - due) for each in by_class[1][:20] for due in ordinary) > 0.0005
    assert [420] == [phase.first for phase in schedule.phases]


@given(st.integers(1, 7), st.integers(0, 2), st.booleans())
def test_participants_share_every_request_among_them(participants, extra, is_random) -> None:
    """Exactly one participant sends each request, and their parts of each class differ by one request at most."""
    classes = {f"c{index}": [constant(10 * index + 7, 2), constant(30, 3)] for index in range(extra + 1)}
    draws = (lambda name: random.Random(name).random) if is_random else None
    whole = list(Schedule(classes=classes, draws=draws).arrivals())
    shares = [
        list(Schedule(classes=classes, draws=draws, rank=rank, participants=participants).arrivals())
        for rank in range(participants)
    ]

    assert whole == sorted((each for share in shares for each in share), key=lambda each: each.number)
    for index in range(len(classes)):
        counts = [sum(each.class_index == index for each in share) for share in shares]
        assert max(counts) - min(counts) <= 1


def test_part_due_follows_the_rate_and_leaves_the_warm_up_out() -> None:
    """The part counts requests and not time, and is exactly 1 at the end, even if the length was rounded."""
    phases = [constant(50, 2, is_measured=False), Phase(first=0, last=100, seconds=10), constant(100, 5)]
    schedule = Schedule(classes={"a": phases, "b": phases}, participants=4)

    assert 500 == schedule.expected
    assert [0, 0, 0.125, 0.5, 0.8, 1, 1] == pytest.approx([schedule.part_due(at) for at in (-3, 0, 5, 10, 13, 15, 99)])
    assert schedule.part_due(15 * (1 - 1e-12)) == 1
