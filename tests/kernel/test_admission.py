"""The queue's permit count: cached while valid, reduced by each start, and renewed when a permit comes up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel.admission import Admission
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.timeline import NS, Timeline

SLACK = 0.02


class Grid(PermitGrid):
    """Numbered permits that count how often they were asked."""

    __slots__ = ("looks",)

    def usable(self, now_ns: int) -> int:
        self.looks = getattr(self, "looks", 0) + 1
        return super().usable(now_ns)


class WallClockGrid(Grid):
    """The same, affected by steps of the wall clock."""

    __slots__ = ()
    is_by_wall_clock = True


def admission_of(rate, *, kind=Grid, slack: float = SLACK) -> Admission:
    timeline = Timeline(monotonic=0.0, wall=36000.0, interval_ns=NS)
    return Admission(kind(Rate.of(rate), slack_ns=round(slack * NS), now_ns=timeline.to_ns(0.0)), timeline)


def test_what_was_counted_is_used_until_it_lapses():
    """A count is reused until it lapses, and then the permits are asked again."""
    admission = admission_of(10, slack=0.25)
    count = admission.find(5.0, 6.0)
    assert count >= 2
    assert 5.0 < admission.usable_until < 5.2
    assert count == admission.find(admission.usable_until, 6.0)
    assert 1 == admission.permits.looks
    admission.find(admission.usable_until + 0.001, 6.0)
    assert 2 == admission.permits.looks


def test_each_start_takes_one_and_the_last_tells_when_to_look_again():
    """Each start takes a permit from the permits themselves; the last one sets the time of the next."""
    admission = admission_of(10, slack=0.25)
    count = admission.find(5.0, 6.0)
    for left in reversed(range(count)):
        assert admission.next_at < 5.0
        admission.take(1, 5.0)
        assert left == admission.count
    assert 0 == admission.permits.usable(admission._timeline.to_ns(5.0))
    assert 5.0 < admission.next_at <= 5.1
    assert admission.next_at == admission.next_time(5.0, 6.0)


def test_where_nothing_was_counted_nothing_is_taken():
    """A start that needs no permit, because the rate became infinite, uses none."""
    admission = admission_of(1)
    before = admission.permits.next_number_time()
    admission.take(3, 0.5)
    assert (0, before) == (admission.count, admission.permits.next_number_time())


@pytest.mark.parametrize(("kind", "expected"), [(Grid, math.inf), (WallClockGrid, 6.0)], ids=["rate", "wall clock"])
def test_without_permits_it_waits_for_an_input_or_for_a_step_of_the_wall_clock(kind, expected):
    """At a rate of zero no next time is known; wall-clock permits are asked again in the next interval."""
    admission = admission_of(0, kind=kind)
    assert 0 == admission.find(5.0, 6.0)
    assert expected == admission.next_at == admission.next_time(5.0, 6.0)


def test_other_permits_are_counted_at_once():
    """Replaced permits are counted at once, even if the old ones would never have come up."""
    admission = admission_of(0)
    assert 0 == admission.find(5.0, 6.0)
    admission.put(admission_of(math.inf).permits)
    assert admission.is_unlimited
    assert math.inf == admission.usable_until
    assert (0, -math.inf) == (admission.count, admission.next_at)
    assert admission.find(5.0, 6.0) > 10**6


@given(
    st.sampled_from([1, 3, 10, "1/2s", "7/3s"]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 4)), min_size=1, max_size=30),
)
def test_as_many_start_as_the_permits_alone_would_let(rate, looks):
    """The cached count admits exactly the starts that the permits alone would, at any sequence of looks."""
    admission, alone = admission_of(rate), admission_of(rate).permits
    now = 0.0
    for ahead, wanted in looks:
        now += ahead
        now_ns = admission._timeline.to_ns(now)
        count = min(wanted, alone.usable(now_ns))
        assert count == min(wanted, admission.find(now, math.inf) if now >= admission.next_at else 0)
        if count:
            alone.take(count)
            admission.take(count, now)


@pytest.mark.parametrize("rate", [1e19, 1e22, 1e100])
def test_a_rate_that_no_64_bits_hold_admits_what_is_asked_for(rate: float):
    """A rate beyond 64 bits admits any number of starts, in either body of the kernel."""
    admission = admission_of(rate, kind=PermitGrid, slack=1e6)
    assert admission.look(5.0) > 1 << 60
    admission.take(3, 5.0)
    assert admission.look(6.0) > 1 << 60
