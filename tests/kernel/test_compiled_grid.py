"""The compiled arithmetic of permits against the pure one, number by number: integers and rounding differ."""

import copy
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.permits import PermitGrid
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._kernel.admission import Admission
from ratelimited_executor._kernel.choice import compiled
from ratelimited_executor._kernel.fields import GRID_FIELDS
from ratelimited_executor._kernel.timeline import Timeline

pytestmark = pytest.mark.skipif(compiled is None, reason="there is no compiled kernel")

EPOCH_NS = 1_767_225_600_000_000_000  # 2026
times = st.integers(0, 3_000_000_000) | st.integers(0, 10**19) | st.integers(10**27, 10**29)
rates = (
    st.fractions(Fraction(1, 10**6), 10**9, max_denominator=10**6)
    | st.integers(1, 10**12)
    | st.sampled_from([0, 1, 1000, 10**15, Fraction(1, 3), Fraction(10**13, 7)])
)


class PureGrid(PermitGrid):
    """Counts in Python only: compiled code reads the fields of no other class."""

    __slots__ = ()

    _usable_on_grid = (
        compiled.pure["PermitGrid._usable_on_grid"] if compiled is not None else PermitGrid._usable_on_grid
    )


def state(grid: PermitGrid) -> dict:
    return {name: getattr(grid, name) for name in GRID_FIELDS if name != "_pieces"}


@given(
    rate=rates,
    slack_ns=st.integers(0, 10**10),
    peers=st.integers(1, 5),
    start_ns=st.sampled_from([0, 1, EPOCH_NS, 10**18 * 9]),
    steps=st.lists(st.tuples(times, st.integers(0, 3), st.none() | rates), max_size=12),
)
def test_both_count_and_take_the_same(rate, slack_ns, peers, start_ns, steps):
    """Both count and take the same after any starts and rate changes, at near and far times and beyond 64 bits."""
    settings = {"slack_ns": slack_ns, "now_ns": start_ns, "peers": peers, "rank": peers - 1}
    grid, pure = (kind(Rate.of(rate), **settings) for kind in (PermitGrid, PureGrid))
    now_ns = start_ns
    for ahead_ns, take_count, changed in steps:
        now_ns += ahead_ns
        if changed is not None:
            grid.set_rate(Rate.of(changed), now_ns)
            pure.set_rate(Rate.of(changed), now_ns)
        count = grid.usable(now_ns)
        assert count == pure.usable(now_ns)
        assert state(grid) == state(pure)
        for each in (grid, pure):
            each.take(min(count, take_count))
        assert state(grid) == state(pure)
        assert grid.next_number_time() == pure.next_number_time()
        assert grid.next_time(now_ns) == pure.next_time(now_ns)


@given(
    rate=st.integers(1, 100_000) | st.fractions(Fraction(1, 1000), 10**5, max_denominator=1000),
    slack_ns=st.integers(1, 10**9),
    monotonic=st.floats(0, 1e9),
    gaps=st.lists(st.floats(0, 3) | st.just(0.0), max_size=20),
)
def test_admission_takes_single_permits_alike(rate, slack_ns, monotonic, gaps):
    """In loop time, both agree on the count, its validity and the time of the next permit."""
    timeline = Timeline(monotonic=monotonic, wall=EPOCH_NS / 1e9, interval_ns=10**9)
    settings = {"slack_ns": slack_ns, "now_ns": timeline.to_ns(monotonic)}
    sides = [Admission(kind(Rate.of(rate), **settings), timeline) for kind in (PermitGrid, PureGrid)]
    now = monotonic
    for gap in gaps:
        now += gap
        counts = [compiled.take_one_permit(admission, now) for admission in sides]
        assert counts[0] == counts[1]
        assert len({(each.count, each.next_at, each.usable_until) for each in sides}) == 1
        assert state(sides[0].permits) == state(sides[1].permits)


def test_copy_of_a_grid_goes_its_own_way():
    """A copy is independent of its grid, as forecasts need, also for a class with fields of its own."""
    grid = PermitGrid(Rate.of(10), slack_ns=10**9, now_ns=EPOCH_NS)
    for other in (copy.copy(grid), copy.deepcopy(grid), grid.trial()):
        assert state(grid) == state(other)
        before = state(grid)
        other.usable(EPOCH_NS + 10**9)
        other.take(1)
        assert before == state(grid) != state(other)
