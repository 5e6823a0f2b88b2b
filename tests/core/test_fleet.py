"""The pure parts of a fleet: where permits lie, who gets how many, what is known of the authority's clock."""

import ast
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core import queue
from ratelimited_executor._core.fleet.clock import _STEP_NS, ServerClock
from ratelimited_executor._core.fleet.granted import GrantedPermits
from ratelimited_executor._core.fleet.grid import FleetGrid, grid_rate
from ratelimited_executor._core.fleet.policies import Outage, Strictness
from ratelimited_executor._core.fleet.shares import apportion, level, stride
from ratelimited_executor._core.permits import UNLIMITED, PermitGrid
from ratelimited_executor._core.rates import Rate

NS = 1_000_000_000
MS = 1_000_000
NOW_NS = 1_704_067_200 * NS
NUMBER = 6_816_268_800  # of the interval of 250 ms that begins there

INTERVALS_US = st.sampled_from([50_000, 250_000, 333_333, 1_000_000, 5_000_000])
STRETCHES = st.sampled_from([Fraction(0), Fraction(185, 10_000), Fraction(15, 10_000)])
RATES = st.one_of(
    st.sampled_from([Fraction(100), Fraction(7, 3), Fraction(1, 10), Fraction(100_000), Fraction(1, 86_400)]),
    st.fractions(min_value=Fraction(1, 97), max_value=100_000, max_denominator=97),
)


@st.composite
def grids(draw: st.DrawFn) -> FleetGrid:
    """Make the grid of some rate, at some phase."""
    interval_us = draw(INTERVALS_US)
    step, unit = grid_rate(Rate(draw(RATES)), interval_us, draw(STRETCHES))
    since = draw(st.sampled_from([0, 17, NUMBER]))
    return FleetGrid(interval_us, step, unit, draw(st.integers(0, unit - 1)), since)


def phase_at(grid: FleetGrid, number: int) -> Fraction:
    """Return how many permits have come up by the begin of an interval, and by which part the next one has."""
    return Fraction(grid.base + grid.step * (number - grid.since), grid.unit)


# The grid.


@given(grids(), st.integers(-50, 100_000))
@settings(max_examples=300, deadline=None)
def test_interval_owns_the_permits_that_come_up_in_it(grid, after):
    """Permit n comes up when the phase is n; its time is that, rounded up to a microsecond."""
    number = grid.since + after
    begin, end = phase_at(grid, number), phase_at(grid, number + 1)
    permits = range(math.ceil(begin), math.ceil(end))

    assert permits.start == grid.first(number)
    assert len(permits) == grid.count(number)

    for place in {0, len(permits) // 2, len(permits) - 1} if permits else ():
        passed = (permits[place] - begin) / Fraction(grid.step, grid.unit) * grid.interval_us
        assert number * grid.interval_us + math.ceil(passed) == grid.time_us(number, place)


@given(grids(), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_times_of_permits_rise_evenly(grid, after):
    """From each permit to the next it is the same time, within intervals and from one to another, but for rounding."""
    times = []
    for number in range(grid.since + after, grid.since + after + 5):
        count = grid.count(number)
        places = [0, 1, 2, count - 3, count - 2, count - 1] if count > 6 else range(count)
        times += [(grid.first(number) + place, grid.time_us(number, place)) for place in places]
        begin = number * grid.interval_us
        assert all(begin <= time <= begin + grid.interval_us for _, time in times[-len(places) :] if places)
    gap_us = Fraction(grid.interval_us * grid.unit, grid.step)
    for (one, time), (other, later) in itertools.pairwise(times):
        assert abs(later - time - (other - one) * gap_us) < 1


@given(grids(), st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_number_of_permits_is_exact_over_long_stretches(grid, times):
    """So many times ``unit`` intervals hold so many times ``step`` permits, wherever they begin."""
    assert times * grid.step == grid.first(grid.since + times * grid.unit) - grid.first(grid.since)


@pytest.mark.parametrize(
    ("rate", "stretch", "seconds", "count"),
    [
        (Rate(Fraction(7, 3)), 0, 3 * 86_400, 7 * 86_400),
        (Rate(1, per=10), 0, 10 * 86_400, 86_400),
        (Rate(100_000), 0, 86_400, 8_640_000_000),
        (Rate(0.1), 0, 315_360_000, 31_536_000),
        (Rate(100), Fraction(37, 2000), 2037, 200_000),
    ],
    ids=str,
)
def test_known_rates_are_exact(rate, stretch, seconds, count):
    """Days of fractions, and ten years of one tenth."""
    grid = FleetGrid(250_000, *grid_rate(rate, 250_000, Fraction(stretch)), 0, NUMBER)

    assert count == grid.first(NUMBER + 4 * seconds) - grid.first(NUMBER)


A_HAIR = Fraction(1, 10**6)  # of a permit: as near as whole numbers that doubles hold can come


@given(grids(), RATES, STRETCHES, st.integers(0, 100_000))
@settings(max_examples=400, deadline=None)
def test_another_rate_keeps_the_phase(grid, ratio, stretch, after):
    """The part of the next permit that is still to come stays, rounded up; so no permit comes up early.

    None to come is rounded to none: a permit comes up there and then, as it would have done at the rate of before.
    """
    since = grid.since + after
    new = grid.with_rate(*grid_rate(Rate(ratio), grid.interval_us, stretch), since)
    before, now = (math.ceil(phase) - phase for phase in (phase_at(grid, since), phase_at(new, since)))

    assert (grid.interval_us, since) == (new.interval_us, new.since)
    assert pytest.approx(float(ratio * grid.interval_us / 1_000_000 / (1 + stretch)), rel=1e-6) == new.step / new.unit
    assert before - A_HAIR <= now < before + Fraction(1, new.unit) + A_HAIR
    assert before or not now


@given(grids(), RATES, STRETCHES, st.integers(0, 100_000))
@settings(max_examples=400, deadline=None)
def test_no_two_permits_come_closer_when_the_rate_changes(grid, ratio, stretch, after):
    """From the last permit before to the first one after is no less than at the faster of the two rates."""
    since = grid.since + after
    new = grid.with_rate(*grid_rate(Rate(ratio), grid.interval_us, stretch), since)
    gaps_us = [Fraction(grid.interval_us * each.unit, each.step) for each in (grid, new)]
    old_phase, new_phase = phase_at(grid, since), phase_at(new, since)
    before_us = (old_phase - math.ceil(old_phase) + 1) * gaps_us[0]  # since the last permit
    after_us = (math.ceil(new_phase) - new_phase) * gaps_us[1]

    assert before_us + after_us >= min(gaps_us) - A_HAIR * gaps_us[1]


def test_rate_of_zero_owns_nothing():
    """No permit comes up, and the phase waits for the next rate."""
    grid = FleetGrid(250_000, 10, 3, 0, 0).with_rate(*grid_rate(Rate(0), 250_000), 7)

    assert [0] * 5 == [grid.count(number) for number in (7, 8, 100, 10**9, 6)]


# The rate of a grid.

ODD_RATES = st.one_of(
    RATES,
    st.fractions(min_value=Fraction(1, 10**7), max_value=10**6),
    st.floats(min_value=1e-6, max_value=1e6).map(lambda rate: Rate(rate).per_second),
    st.integers(1, 10**7).map(lambda seconds: Rate(1 / seconds).per_second),
)


@given(ODD_RATES, INTERVALS_US, STRETCHES)
@settings(max_examples=400, deadline=None)
def test_rate_of_a_grid_is_never_more_than_asked_for(ratio, interval_us, stretch):
    """It is rounded down, to numbers that doubles hold for years of intervals."""
    step, unit = grid_rate(Rate(ratio), interval_us, stretch)
    asked = ratio * interval_us / 1_000_000 / (1 + stretch)

    assert Fraction(step, unit) <= asked
    assert step % unit < 2**22
    assert unit <= 2**50
    assert unit + step % unit * 2**30 < 2**53


@given(ODD_RATES, INTERVALS_US, STRETCHES)
@settings(max_examples=400, deadline=None)
def test_rate_of_a_grid_is_next_to_what_was_asked_for(ratio, interval_us, stretch):
    """Rounding costs less than a millionth part, once a second or once a week."""
    step, unit = grid_rate(Rate(ratio), interval_us, stretch)
    asked = ratio * interval_us / 1_000_000 / (1 + stretch)

    assert Fraction(step, unit) > asked * (1 - Fraction(1, 10**6))


@pytest.mark.parametrize("seconds", [3, 7, 60, 3600, 86_400, 14 * 86_400])
def test_rate_as_a_float_is_that_rate(seconds):
    """Who writes ``1 / 86_400`` means once a day, and not once in 26 hours."""
    step, unit = grid_rate(Rate(1 / seconds), 250_000)

    assert pytest.approx(0.25 / seconds, rel=1e-6) == step / unit


@pytest.mark.parametrize(
    ("rate", "stretch", "ratio"),
    [
        (Rate(100), 0, Fraction(25)),
        (Rate(Fraction(7, 3)), 0, Fraction(7, 12)),
        (Rate(1, per=10), 0, Fraction(1, 40)),
        (Rate(0), 0, Fraction(0)),
        (Rate(100), Fraction(37, 2000), Fraction(50_000, 2037)),
    ],
    ids=str,
)
def test_rate_of_small_numbers_is_exact(rate, stretch, ratio):
    """In permits to intervals of 250 ms."""
    assert ratio == Fraction(*grid_rate(rate, 250_000, Fraction(stretch)))


# Shares.

DEMANDS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 1.0, 1.0, 2.0, 3.0, 1e-6]), st.sampled_from([0, 1, 2, 3, 7, 20, 300, 1 << 40])
    ),
    min_size=1,
    max_size=9,
).map(lambda pairs: {f"peer {index}": pair for index, pair in enumerate(pairs)})
SUPPLIES = st.one_of(st.integers(0, 40), st.sampled_from([250, 25_000]))
# Where the golden part of a number is next to a whole one: Fibonacci's.
NUMBERS = st.one_of(
    st.integers(NUMBER, NUMBER + 10**7), st.sampled_from([0, 832_040, 1_346_269, 2_178_309, 3_524_578, 39_088_169])
)


def fluid_shares(demands, supply):
    """Share by weighted max-min, exactly: fill all alike, and take out who is full."""
    shares = {}
    rest, left = Fraction(supply), {peer: (Fraction(weight), demand) for peer, (weight, demand) in demands.items()}
    while left:
        water = rest / sum(weight for weight, _ in left.values())
        full = {peer: demand for peer, (weight, demand) in left.items() if demand <= weight * water}
        if not full:
            return shares | {peer: weight * water for peer, (weight, _) in left.items()}
        for peer, demand in full.items():
            shares[peer] = Fraction(demand)
            rest -= demand
            del left[peer]
    return shares


@given(DEMANDS, SUPPLIES)
@settings(max_examples=300, deadline=None)
def test_level_is_that_of_max_min(demands, supply):
    """Each peer's part is the smaller of its demand, and its weight times the level."""
    water = level(demands, supply)
    wanted = sum(demand for _, demand in demands.values())

    assert (wanted <= supply) == (water == math.inf)
    shares = fluid_shares(demands, supply)
    assert {peer: pytest.approx(float(share), rel=1e-9, abs=1e-9) for peer, share in shares.items()} == {
        peer: min(demand, weight * water) for peer, (weight, demand) in demands.items()
    }


def test_level_of_nobody_is_infinite():
    """There is enough for nobody."""
    assert math.inf == level({}, 0) == level({}, 10)


@given(DEMANDS, SUPPLIES, NUMBERS)
@settings(max_examples=500, deadline=None)
def test_ranges_add_up_and_are_within_one_of_the_share(demands, supply, number):
    """The ranges follow each other without a gap; all that there is, or all that is wanted, is shared out."""
    ranges, done = apportion(demands, supply, number)
    shares = fluid_shares(demands, supply)

    assert [*demands] == [*ranges]
    assert list(range(done)) == [rank for part in ranges.values() for rank in part]
    assert min(supply, sum(demand for _, demand in demands.values())) == done
    off = {peer: len(part) - shares[peer] for peer, part in ranges.items()}
    assert {} == {peer: float(by) for peer, by in off.items() if abs(by) >= 1 + 1e-6}


@given(DEMANDS, SUPPLIES, NUMBERS)
@settings(max_examples=300, deadline=None)
def test_nobody_is_planned_more_than_it_wants(demands, supply, number):
    """Demands are whole: so where there is enough, each peer gets exactly that."""
    ranges, _ = apportion(demands, supply, number)

    assert {} == {peer: len(part) for peer, part in ranges.items() if len(part) > demands[peer][1]}


@pytest.mark.parametrize(("count", "supply"), [(3, 1), (7, 1), (7, 3), (10, 25), (9, 2)])
def test_remainders_go_round(count, supply):
    """Of peers alike all get the same in the long run, and nobody waits much longer than his turn would take."""
    demands = {f"peer {index}": (1.0, 1 << 40) for index in range(count)}
    granted = Counter()
    latest = dict.fromkeys(demands, 0)
    waits = []
    intervals = 100 * count
    for index in range(intervals):
        ranges, _ = apportion(demands, supply, NUMBER + index)
        for peer, part in ranges.items():
            granted[peer] += len(part)
            if part:
                waits.append(index - latest[peer])
                latest[peer] = index

    assert supply * intervals == granted.total()
    assert {} == {peer: got for peer, got in granted.items() if abs(got - 100 * supply) > 3}
    assert max(waits) <= math.ceil(2.7 * count / supply)


@pytest.mark.parametrize("weights", [[1, 1, 3], [1, 2], [0.5, 2.5, 4, 1, 1]], ids=str)
def test_weights_hold_in_the_long_run(weights):
    """Within a few permits, however few an interval has."""
    demands = {f"peer {index}": (float(weight), 1 << 40) for index, weight in enumerate(weights)}
    granted = Counter()
    for index in range(1000):
        for peer, part in apportion(demands, 2, NUMBER + index)[0].items():
            granted[peer] += len(part)

    assert {} == {
        peer: (granted[peer], 2000 * weight / sum(weights))
        for peer, (weight, _) in demands.items()
        if abs(granted[peer] - 2000 * weight / sum(weights)) > 4
    }


# Which permits.


def worst_gap(count: int, size: int) -> float:
    """Return the largest gap that so many ranks in a row leave in an interval, of which the begin follows the end."""
    step = stride(count)
    places = sorted(rank * step % count for rank in range(size))
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    return max([*gaps, places[0] + count - places[-1]]) * size / count


@given(st.integers(1, 200_000))
@settings(max_examples=200, deadline=None)
def test_each_rank_has_a_place_of_its_own(count):
    """The stride shares no factor with the count."""
    assert 0 < stride(count) < max(2, count)
    assert 1 == math.gcd(stride(count), count)


def test_no_interval_has_no_stride_either():
    """A rate may leave an interval without a permit."""
    assert stride(0) >= 0


# With 24 strides to choose from on each side the worst is 2.8 times the mean gap; 2.4 for all but a few counts and sizes.
WORST_GAP = 3


@pytest.mark.parametrize("counts", [range(1, 40), range(40, 100), [100, 250, 1000]], ids=["few", "some", "many"])
def test_any_run_of_ranks_is_spread_over_the_interval(counts):
    """Whoever gets whatever range: its permits do not lie in a heap. Here each range of some counts."""
    sizes = {count: range(1, count + 1) if count <= 100 else range(1, count, max(1, count // 40)) for count in counts}
    worst = {(count, size): worst_gap(count, size) for count in counts for size in sizes[count]}

    assert {} == {key: round(gap, 2) for key, gap in worst.items() if gap > WORST_GAP}


@given(st.integers(100, 30_000), st.sampled_from([2, 3, 5, 10, 50]), st.floats(0.01, 1))
@settings(max_examples=150, deadline=None)
def test_runs_of_ranks_of_many_permits_are_spread(count, few, part):
    """The same of large counts: of a few ranks, and of a part of all."""
    assert worst_gap(count, few) <= WORST_GAP
    assert worst_gap(count, max(1, int(count * part))) <= WORST_GAP


@pytest.mark.parametrize(("count", "size"), [(3546, 506), (25, 12), (27_595, 13_797), (250, 83)])
def test_known_runs_of_ranks_are_spread(count, size):
    """Where a stride that is near the golden part alone would be bad, and where others were."""
    assert worst_gap(count, size) <= WORST_GAP


# The authority's clock.

DELAYS = st.one_of(st.sampled_from([0, 1, 1000, 20 * MS, 80 * MS]), st.integers(0, 5 * MS))
DRIFTS = st.one_of(st.sampled_from([-500, 0, 500]), st.integers(-500, 500))
WAITS = st.one_of(st.integers(0, 1000), st.integers(0, 300 * MS), st.sampled_from([NS, 60 * NS]))
EXCHANGES = st.lists(st.tuples(WAITS, DELAYS, DELAYS, DRIFTS), min_size=1, max_size=12)


class TwoClocks:
    """Ours and the authority's, which runs apart from it by some parts per million."""

    def __init__(self, now_ns: int = NOW_NS, ahead_ns: int = 37 * NS) -> None:
        self.now_ns = now_ns
        self._server = (now_ns + ahead_ns) * 1_000_000
        self.drift = 0

    @property
    def server_ns(self) -> Fraction:
        """The authority's time."""
        return Fraction(self._server, 1_000_000)

    def run(self, passed_ns: int) -> None:
        """Let time pass."""
        self.now_ns += passed_ns
        self._server += passed_ns * (1_000_000 + self.drift)

    def step(self, by_ns: int) -> None:
        """Set the authority's clock."""
        self._server += by_ns * 1_000_000

    def exchange(self, clock: ServerClock, out_ns: int, back_ns: int) -> bool:
        """Ask the authority for its time: whole microseconds."""
        sent = self.now_ns
        self.run(out_ns)
        told = int(self.server_ns) // 1000 * 1000
        self.run(back_ns)
        return clock.measure(told, sent, self.now_ns)

    def off(self, clock: ServerClock) -> Fraction:
        """Return by how much the truth is beyond the bounds; no more than zero if they hold it."""
        return abs(clock.at(self.now_ns) - self.server_ns) - clock.error_ns(self.now_ns)


@given(EXCHANGES)
@settings(max_examples=400, deadline=None)
def test_bounds_hold_the_truth(exchanges):
    """Whatever the delays to and fro, and however the clocks run apart by 500 parts per million at most."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, drift in exchanges:
        clocks.drift = drift
        clocks.run(wait)
        if clock.is_known:
            assert clocks.off(clock) <= 0
        assert clocks.exchange(clock, out, back), "no step was made"
        assert clocks.off(clock) <= 0


@given(EXCHANGES, st.integers(0, 300 * MS), DRIFTS)
@settings(max_examples=400, deadline=None)
def test_time_of_the_authority_has_surely_come(exchanges, ahead, drift):
    """Who waits until then is not early by any time that the authority's clock may have."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, exchange_drift in exchanges:
        clocks.drift = exchange_drift
        clocks.run(wait)
        clocks.exchange(clock, out, back)
    wanted = clock.at(clocks.now_ns) + ahead
    when = clock.surely_after(wanted, clocks.now_ns)

    assert when >= clocks.now_ns
    assert clock.at(when) - clock.error_ns(when) >= wanted


@given(EXCHANGES, st.integers(-10 * NS, 10 * NS))
@settings(max_examples=300, deadline=None)
def test_step_is_told_and_taken_in(exchanges, by):
    """A step beyond the bounds, and a bit more, is one; afterwards the bounds hold the new truth."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, _ in exchanges:
        clocks.run(wait)
        clocks.exchange(clock, out, back)
    error = clock.error_ns(clocks.now_ns)
    clocks.step(by)
    is_same = clocks.exchange(clock, 100_000, 150_000)
    bounds = 2 * (error + 130_000) + _STEP_NS

    if abs(by) > bounds:
        assert not is_same
    if abs(by) <= _STEP_NS:
        assert is_same
    if not is_same:
        assert clocks.off(clock) <= 0
        assert clock.error_ns(clocks.now_ns) <= 130_000


def test_better_sample_replaces_a_worse_one():
    """A slow answer counts for less than a fast one of a while ago, until that is worth no more."""
    clocks, clock = TwoClocks(), ServerClock()
    log = []
    for wait, delay in ((0, 10 * MS), (NS, MS), (NS, 2 * MS), (10 * NS, 2 * MS)):
        clocks.run(wait)
        clocks.exchange(clock, delay // 2, delay // 2)
        log.append(clock.error_ns(clocks.now_ns) // 10_000)

    assert [500, 50, 100, 100] == log


def test_measurement_replaces_an_assumption():
    """What was taken for granted without an authority is no knowledge: no step is told, and the bounds hold the truth."""
    for ahead in (1_500_000, 30 * MS):
        clocks, clock = TwoClocks(ahead_ns=ahead), ServerClock()
        clock.assume(0, clocks.now_ns)
        clocks.run(NS // 4)
        is_same = clocks.exchange(clock, 500_000, 500_000)
        assert clocks.off(clock) <= 0, ahead
        assert is_same, ahead


def test_assumption_is_exact_and_forgotten_is_unknown():
    """Alone, the authority's time is what we say it is."""
    clock = ServerClock()
    clock.assume(7, NOW_NS)
    assert (True, NOW_NS + 7, 0, NOW_NS) == (
        clock.is_known, clock.at(NOW_NS), clock.error_ns(NOW_NS), clock.here(NOW_NS + 7)
    )  # fmt: skip
    clock.forget()
    assert not clock.is_known


def test_error_that_is_held_grows_on_with_the_next_measurement():
    """While nobody else's permits matter the error stays as it is."""
    clock = ServerClock()
    clock.measure(NOW_NS, NOW_NS, NOW_NS + MS)
    before = clock.error_ns(NOW_NS + 10 * NS)
    clock.hold(NOW_NS + 10 * NS)
    clock.hold(NOW_NS + 15 * NS)
    held = clock.error_ns(NOW_NS + 20 * NS)
    clock.measure(NOW_NS + 20 * NS, NOW_NS + 20 * NS, NOW_NS + 20 * NS + 200 * MS)

    assert before == held
    assert held < clock.error_ns(NOW_NS + 20 * NS + 200 * MS)


# Permits that were granted.

LATE_NS = 18 * MS
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.lists(st.integers(-30 * MS, 300 * MS), max_size=8)),
        st.tuples(st.just("run"), st.one_of(st.integers(0, 5 * MS), st.integers(0, 100 * MS))),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("exchange"), st.integers(0, 12 * MS)),
        st.tuples(st.just("drop"), st.just(0)),
        st.tuples(st.just("drift"), DRIFTS),
    ),
    max_size=40,
)


@given(OPS)
@settings(max_examples=400, deadline=None)
def test_permits_are_used_in_their_time_by_any_clock(ops):
    """Not before a permit's time at the earliest that it may be, nor later than ``late`` after it at the latest."""
    clocks, clock = TwoClocks(), ServerClock()
    clocks.exchange(clock, 300_000, 300_000)
    permits = GrantedPermits(clock, Rate(100), late_ns=LATE_NS)
    held: list[int] = []
    dropped = taken = 0
    total = 0
    for action, value in ops:
        if action == "hold":
            times = [clock.at(clocks.now_ns) + shift for shift in value]
            permits.hold(times)
            held = sorted(held + times)
            total += len(times)
        elif action == "run":
            clocks.run(value)
        elif action == "exchange":
            clocks.exchange(clock, value, 0)
        elif action == "drop":
            dropped += permits.held_count()
            permits.drop()
            held.clear()
        elif action == "drift":
            clocks.drift = value
        else:
            count = permits.usable(clocks.now_ns)
            error = clock.error_ns(clocks.now_ns)
            earliest, latest = (clock.at(clocks.now_ns) + sign * error for sign in (-1, 1))
            held = [time for time in held if time >= latest - LATE_NS]
            assert sum(time <= earliest for time in held) == count
            for time in held[: min(value, count)]:
                assert time <= earliest <= latest <= time + LATE_NS
            permits.take(min(value, count))
            del held[: min(value, count)]
            taken += min(value, count)
        assert total == permits.held_count() + permits.taken_count + permits.lapsed_count + dropped
        assert taken == permits.taken_count


@given(st.integers(0, 5 * MS), st.integers(0, 60 * NS), st.lists(st.integers(0, 300 * MS), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_next_time_is_when_a_permit_may_be_taken(delay, age, shifts):
    """Who sleeps until then, and again if the error has grown meanwhile, finds one; and had found none before."""
    clocks, clock = TwoClocks(), ServerClock()
    clocks.exchange(clock, delay, delay)
    clocks.run(age)
    late = 4 * clock.error_ns(clocks.now_ns) + LATE_NS
    permits = GrantedPermits(clock, Rate(100), late_ns=late)
    permits.hold(clock.at(clocks.now_ns) + shift for shift in shifts)
    number_time = permits.next_number_time()
    now = clocks.now_ns
    for _ in range(4):
        if permits.usable(now):
            break
        when = permits.next_time(now)
        assert when is not None
        assert max(now, number_time) <= when
        assert not permits.usable(when - 2 * MS if when - 2 * MS > now else now)
        now = when
    assert permits.usable(now) > 0
    assert now == permits.next_time(now)


@given(st.integers(0, 5 * MS), st.integers(0, 60 * NS), st.lists(st.integers(0, 30 * MS), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_permits_stay_usable_until_the_time_that_is_told(delay, age, shifts):
    """The queue counts them once, and takes them until then without another look."""
    clocks, clock = TwoClocks(), ServerClock()
    clocks.exchange(clock, delay, delay)
    clocks.run(age)
    late = 4 * clock.error_ns(clocks.now_ns) + LATE_NS
    permits = GrantedPermits(clock, Rate(100), late_ns=late)
    permits.hold(clock.at(clocks.now_ns) + shift for shift in shifts)
    now = permits.next_time(clocks.now_ns) + MS
    count = permits.usable(now)

    assert permits.usable(permits.usable_until_ns) >= count


def questions() -> Iterator[str]:
    """Walk what the queue asks of its permits."""
    for node in ast.walk(ast.parse(Path(queue.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.grid":
            yield node.attr


@pytest.mark.parametrize("name", sorted({*questions()}))
def test_queue_asks_both_kinds_of_permits_the_same(name):
    """Its own numbered permits, and those that were granted, know every answer."""
    permits = GrantedPermits(ServerClock(), Rate(100), late_ns=LATE_NS)

    assert hasattr(permits, name)
    assert hasattr(PermitGrid(Rate(100), slack_ns=LATE_NS, now_ns=NOW_NS), name)


def answers(permits, now: int) -> list[object]:
    """Ask what is usable when."""
    return [permits.usable(now), permits.next_time(now), permits.next_fresh_time(now + 1), permits.time_after(now, 1)]


@pytest.mark.parametrize("rate", [Rate(0), Rate(math.inf)], ids=str)
def test_extreme_rates_are_answered_as_by_numbered_permits(rate):
    """A rate of 0 holds everything back, an infinite one lets everything go, whatever is held."""
    clock = ServerClock()
    clock.assume(0, NOW_NS)
    permits = GrantedPermits(clock, Rate(100), late_ns=LATE_NS)
    permits.hold([NOW_NS - MS, NOW_NS + MS])
    permits.set_rate(rate, NOW_NS)
    numbered = PermitGrid(Rate(100), slack_ns=LATE_NS, now_ns=NOW_NS)
    numbered.set_rate(rate, NOW_NS)

    if rate.is_zero:
        assert [0, None, None, None] == answers(permits, NOW_NS) == answers(numbered, NOW_NS)
    else:
        assert [UNLIMITED, NOW_NS] == answers(permits, NOW_NS)[:2] == answers(numbered, NOW_NS)[:2]
        assert UNLIMITED == permits.count_until(NOW_NS, NOW_NS + 1) == numbered.count_until(NOW_NS, NOW_NS + 1)
        assert NOW_NS == permits.time_after(NOW_NS, 9) == numbered.time_after(NOW_NS, 9)
        permits.take(5)
        assert (2, 0, NOW_NS) == (permits.held_count(), permits.taken_count, permits.usable_until_ns)


def test_nothing_is_usable_before_the_clock_is_known():
    """Nor may anything be expected at some time: where a permit lies on our timeline is not known."""
    permits = GrantedPermits(ServerClock(), Rate(100), late_ns=LATE_NS)
    permits.hold([NOW_NS])

    assert (0, None, None) == (permits.usable(NOW_NS), permits.next_time(NOW_NS), permits.next_fresh_time(NOW_NS))
    assert permits.next_number_time() > NOW_NS + 10**9 * NS


def test_nothing_is_usable_after_our_clock_has_stood_still():
    """Nor is there a time to wait for, or who waits would try again without end."""
    clock = ServerClock()
    clock.assume(0, NOW_NS)
    is_whole = True
    permits = GrantedPermits(clock, Rate(100), late_ns=LATE_NS, is_clock_whole=lambda: is_whole)
    permits.hold([NOW_NS])
    assert 1 == permits.usable(NOW_NS)
    is_whole = False

    assert (0, 1) == (permits.usable(NOW_NS), permits.held_count())
    assert permits.next_time(NOW_NS) is None


def test_permits_that_are_held_are_counted_by_time():
    """By the authority's clock, in whatever order they came."""
    clock = ServerClock()
    clock.assume(5 * NS, NOW_NS)
    permits = GrantedPermits(clock, Rate(10), late_ns=LATE_NS)
    base = NOW_NS + 5 * NS
    permits.hold([base + 30, base + 10])
    permits.hold([base + 20])

    assert [3, 0, 1, 2, 3] == [permits.held_count(until and base + until) for until in (None, 1, 11, 30, 31)]
    assert NOW_NS + 10 == permits.next_number_time()
    permits.drop()
    assert (0, None) == (permits.held_count(), permits.next_time(NOW_NS))


def test_expectations_are_what_is_held_and_an_even_share():
    """Of ten a second two peers expect five each, if no more are held."""
    clock = ServerClock()
    clock.assume(0, NOW_NS)
    permits = GrantedPermits(clock, Rate(10), late_ns=LATE_NS)
    permits.peers = 2
    permits.hold(NOW_NS + shift * MS for shift in (10, 20))

    assert [2, 5, 2] == [permits.count_until(NOW_NS, NOW_NS + span * MS) for span in (100, 1000, 21)]
    assert [10, 20, 200, 400] == [(permits.time_after(NOW_NS, count) - NOW_NS) // MS for count in (1, 2, 3, 4)]


# Policies.


@pytest.mark.parametrize("value", [True, 2.0, "3", None])
def test_static_outage_takes_integers_only(value):
    """Anything else is a mistake that would show only in an outage."""
    with pytest.raises(TypeError, match="peers_max must be an integer"):
        Outage.static(value)


@pytest.mark.parametrize("value", [0, -1])
def test_static_outage_takes_one_peer_at_least(value):
    """Nobody could go on among no peers."""
    with pytest.raises(ValueError, match="peers_max must be >= 1"):
        Outage.static(value)


@pytest.mark.parametrize("make", [lambda: Outage("stopp"), lambda: Outage("static", 0), lambda: Outage("")])
def test_outage_of_another_kind_is_refused(make):
    """A kind that nobody knows would go on alone at the whole rate."""
    with pytest.raises((TypeError, ValueError)):
        make()


def test_outages_are_values():
    """They are compared by what they say, and written as one would read them."""
    assert Outage.static(3) == Outage("static", 3)
    assert Outage.STOP == Outage("stop") != Outage.LOCAL
    assert ["stop", "static(3)", "local"] == [str(each) for each in (Outage.STOP, Outage.static(3), Outage.LOCAL)]


def test_strictness_is_one_of_two():
    """Exact, or nominal."""
    assert [Strictness.EXACT, Strictness.NOMINAL] == [Strictness("exact"), Strictness("nominal")]
    with pytest.raises(ValueError, match="about"):
        Strictness("about")
