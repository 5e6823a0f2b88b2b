"""The law of ``Paced`` on random histories, the grid against brute force, and its partition among peers."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples

NS = 1_000_000_000
START = 1_704_067_200 * NS
RATES = st.one_of(
    st.sampled_from([Fraction(0), Fraction(1), Fraction(10), Fraction(1000), Fraction(1, 3), Fraction(100_000)]),
    st.fractions(min_value=0, max_value=2000, max_denominator=97),
)
SLACKS = st.sampled_from([1, 1_000, 20_000_000, NS])
STEPS = st.one_of(
    st.integers(1, 50),
    st.integers(1, 40_000_000),
    st.integers(1, 3 * NS),
    st.sampled_from([1_000_000, 20_000_000, 20_000_001, 100_000_000, NS, 60 * NS]),
)


def rate_of(ratio: Fraction | None) -> Rate:
    """Return a rate; None is the infinite one."""
    return Rate(float("inf")) if ratio is None else Rate(ratio)


class Phase:
    """Phi, exactly, over a history of rates, with infinite stretches kept apart."""

    def __init__(self, start: int, ratio: Fraction | None) -> None:
        self.changes = [(start, ratio)]

    def change(self, time: int, ratio: Fraction | None) -> None:
        """Put another rate in force."""
        self.changes.append((time, ratio))

    def between(self, begin: int, end: int) -> Fraction | None:
        """Return Phi(end) - Phi(begin); None if the stretch includes unlimited time."""
        total = Fraction(0)
        pieces = [*self.changes, (None, None)]
        for index in range(len(self.changes)):
            since, ratio = pieces[index]
            until = pieces[index + 1][0]
            low = begin if index == 0 else max(begin, since)
            high = end if until is None else min(end, until)
            if high < low or (high == low and ratio is not None):
                continue
            if ratio is None:
                return None
            total += ratio * (high - low) / NS
        return total


def worst_excess(starts: list[int], phase: Phase, slack: int) -> Fraction:
    """Return by how much the worst window exceeds the law, over all windows."""
    worst = Fraction(-1)
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = phase.between(begin - slack, starts[last])
            if allowed is not None:
                worst = max(worst, last - first + 1 - allowed - 1)
    return worst


@given(
    st.one_of(st.none(), RATES),
    SLACKS,
    st.lists(
        st.one_of(
            st.tuples(st.just("advance"), STEPS),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("rate"), st.one_of(st.none(), RATES)),
        ),
        max_size=40,
    ),
)
@examples(160)
def test_starts_keep_the_law_of_paced_in_every_history(ratio, slack, steps):
    """No window has more starts than the law allows, whatever the rates, stalls and demand."""
    now = START
    grid = PermitGrid(rate_of(ratio), slack_ns=slack, now_ns=now)
    phase = Phase(now, ratio)
    starts: list[int] = []
    for action, value in steps:
        if action == "advance":
            now += value
        elif action == "rate":
            grid.set_rate(rate_of(value), now)
            phase.change(now, value)
            now += value is None  # an infinite rate of zero length allows nothing
        else:
            for _ in range(min(value, grid.usable(now))):
                grid.take()
                starts.append(now)
    assert worst_excess(starts, phase, slack) <= 0


@example(3, Fraction(1), 1, [("take", 0), ("rate", Fraction(23622, 17)), ("advance", 338668), ("take", 1)])
@given(
    st.integers(1, 4),
    RATES,
    SLACKS,
    st.lists(
        st.one_of(
            st.tuples(st.just("advance"), STEPS),
            st.tuples(st.just("take"), st.integers(0, 3)),
            st.tuples(st.just("rate"), RATES),
        ),
        max_size=40,
    ),
)
@examples(120)
def test_peers_keep_the_law_together(peers, ratio, slack, steps):
    """The starts of all peers of a grid keep the law together, with one more at each change of the rate.

    With peers a change switches to the new rate's grid that all of them see, which is up to a permit ahead.
    """
    now = START
    grids = [PermitGrid(Rate(ratio), slack_ns=slack, now_ns=now, peers=peers, rank=rank) for rank in range(peers)]
    phase = Phase(now, ratio)
    starts: list[int] = []
    for action, value in steps:
        if action == "advance":
            now += value
        elif action == "rate":
            for grid in grids:
                grid.set_rate(Rate(value), now)
            phase.change(now, value)
        else:
            grid = grids[value % peers]
            for _ in range(min(6, grid.usable(now))):
                grid.take()
                starts.append(now)
    changes = sum(action == "rate" for action, _ in steps) if peers > 1 else 0
    assert worst_excess(starts, phase, slack) <= changes


def greedy(grid: PermitGrid, now: int, end: int) -> list[int]:
    """Start as early as the grid lets one, from ``now`` until ``end``."""
    starts = []
    while True:
        when = grid.next_time(now)
        if when is None or when >= end:
            return starts
        assert grid.usable(when) >= 1
        grid.take()
        starts.append(when)
        now = when


@pytest.mark.parametrize("peers", [1, 2, 3, 5])
@pytest.mark.parametrize("ratio", ["1/3", "1", "5/2", "7", "1000/7"])
def test_shares_of_the_peers_add_up_to_the_grid(peers, ratio):
    """Together the peers start as many as one process alone, at the same times."""
    rate = Rate(Fraction(ratio))
    end = START + 12 * NS
    alone = greedy(PermitGrid(rate, slack_ns=0, now_ns=START - NS), START + 1, end)
    grids = [PermitGrid(rate, slack_ns=0, now_ns=START - NS, peers=peers, rank=rank) for rank in range(peers)]
    shares = [greedy(grid, START + 1, end) for grid in grids]
    together = sorted(time for share in shares for time in share)
    step = float(1 / rate.per_second) * NS + 1
    assert [time for time in alone if time > START + step] == [time for time in together if time > START + step]
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1


def test_two_peers_at_one_a_second_alternate():
    """Two peers that share one start a second start in turn, and not both in every other second."""
    grids = [PermitGrid(Rate(1), slack_ns=0, now_ns=START, peers=2, rank=rank) for rank in range(2)]
    even, odd = (greedy(grid, START + 2, START + 6 * NS + 1) for grid in grids)
    assert [2, 4, 6] == [(time - START) // NS for time in even]
    assert [1, 3, 5] == [(time - START) // NS for time in odd]


class BruteGrid:
    """The permits of one constant rate, one by one."""

    def __init__(self, ratio: Fraction, *, slack: int, now: int) -> None:
        self.ratio, self.slack = ratio, slack
        self.gone_below = self.floor(now)

    def floor(self, time: int) -> int:
        return (self.ratio * time / NS).__floor__()

    def usable(self, now: int) -> tuple[list[int], int | None]:
        """Return the permits that may be taken, and the number below which a start voids permits."""
        newest = self.floor(now)
        fresh = [
            number
            for number in range(max(self.gone_below, newest - 200), newest + 1)
            if number / self.ratio * NS >= now - self.slack
        ]
        if fresh or newest < self.gone_below:
            return fresh, None
        return [newest], (self.ratio * (now - self.slack) / NS).__ceil__() + 1

    def take(self, now: int) -> None:
        numbers, void_below = self.usable(now)
        self.gone_below = numbers[0] + 1 if void_below is None else void_below


@given(
    st.sampled_from([Fraction(1), Fraction(10), Fraction(7, 3), Fraction(97), Fraction(1, 7), Fraction(999)]),
    st.sampled_from([1, 1_000_000, 20_000_000, 100_000_000]),
    st.lists(st.tuples(STEPS.filter(lambda step: step < 100_000_000), st.integers(0, 3)), max_size=25),
)
@examples(100)
def test_grid_counts_as_a_list_of_single_permits_does(ratio, slack, steps):
    """The grid finds the same usable permits as a search through all of them, before and after a start."""
    now = START
    grid = PermitGrid(Rate(ratio), slack_ns=slack, now_ns=now)
    brute = BruteGrid(ratio, slack=slack, now=now)
    for step, (delta, wanted) in enumerate(steps):
        now += delta
        assert len(brute.usable(now)[0]) == grid.usable(now), step
        for _ in range(wanted):
            if not grid.usable(now):
                break
            grid.take()
            brute.take(now)
            assert len(brute.usable(now)[0]) == grid.usable(now), step


@given(
    RATES.filter(bool), SLACKS, st.integers(1, 3), st.integers(0, 2), st.integers(0, 5), st.integers(0, 3 * NS), RATES
)
@examples(120)
def test_next_time_is_the_first_at_which_a_permit_is_usable(ratio, slack, peers, rank, taken, ahead, other):
    """A permit is usable at the next time and not just before it, also right after a change of the rate."""
    grid = PermitGrid(Rate(other), slack_ns=slack, now_ns=START, peers=peers, rank=rank % peers)
    grid.set_rate(Rate(ratio), START + ahead // 2)
    now = START + ahead
    for _ in range(min(taken, grid.usable(now))):
        grid.take()
    when = grid.next_time(now)
    assert when is not None
    assert when >= now
    assert grid.usable(when) >= 1
    if when > now:
        assert 0 == grid.usable(when - 1)
        assert 0 == grid.usable((now + when) // 2 if (now + when) // 2 < when else now)


@given(
    RATES.filter(lambda ratio: Fraction(1, 2) < ratio < 200),
    SLACKS,
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 2 * NS),
    st.integers(1, 30),
)
@examples(75)
def test_forecasts_are_what_greedy_starts_do(ratio, slack, peers, rank, ahead, count):
    """``time_after`` and ``count_until`` forecast greedy starts."""

    def fresh() -> PermitGrid:
        return PermitGrid(Rate(ratio), slack_ns=slack, now_ns=START, peers=peers, rank=rank % peers)

    now = START + ahead
    first_wanted = fresh().time_after(now, count)
    assert first_wanted is not None
    starts = []
    grid = fresh()
    for _ in range(grid.usable(now)):
        grid.take()
        starts.append(now)
    usable_at_once = len(starts)
    starts += greedy(grid, now, first_wanted + 1)
    forecast = fresh().time_after(now, count)
    assert len(starts) >= min(count, usable_at_once)
    if usable_at_once >= count:
        assert now == forecast
    elif slack or peers == 1:
        voided = ratio * slack / NS < 1  # a late start may void the next permit: the forecast is a bound
        assert starts[count - 1 if len(starts) >= count else -1] >= forecast or voided
    total = fresh().count_until(now, first_wanted + 1)
    assert total >= len([time for time in starts if time <= first_wanted])


def test_unlimited_rate_has_permits_without_end():
    """At an infinite rate permits are unlimited, and nothing is counted."""
    grid = PermitGrid(Rate(float("inf")), slack_ns=0, now_ns=START)
    grid.take()
    assert UNLIMITED == grid.usable(START) == grid.count_until(START, START + 1)
    assert START == grid.next_time(START) == grid.time_after(START, 1_000_000)


def test_zero_rate_has_no_permit_ever():
    """At rate 0 no permit is usable, and no time is forecast."""
    grid = PermitGrid(Rate(0), slack_ns=NS, now_ns=START)
    assert 0 == grid.usable(START) == grid.count_until(START, START + 60 * NS)
    assert None is grid.next_time(START) is grid.time_after(START, 1)


def test_idle_grid_keeps_its_newest_permit():
    """After an idle hour one start is possible at once, and the next only with a permit that is not void."""
    grid = PermitGrid(Rate(1), slack_ns=20_000_000, now_ns=START)
    now = START + 3600 * NS + NS // 2
    assert 1 == grid.usable(now)
    grid.take()
    assert 0 == grid.usable(now)
    assert START + 3602 * NS == grid.next_time(now)


@pytest.mark.parametrize("ratio", ["1/3", "7", "1000/7", "99991"])
def test_without_slack_every_permit_is_used_by_who_comes_at_its_time(ratio):
    """Rounding a permit's time to nanoseconds makes no start late that comes at its time."""
    rate = Rate(Fraction(ratio))
    starts = greedy(PermitGrid(rate, slack_ns=0, now_ns=START), START + 1, START + 10**11 // int(rate.per_second + 1))
    assert abs(len(starts) - rate.per_second * (starts[-1] - START) / NS) <= 2


def test_pause_keeps_the_phase():
    """At rate 0 the phase is kept: a half-due permit is half due when the rate returns."""
    grid = PermitGrid(Rate(1), slack_ns=0, now_ns=START)
    grid.usable(START)
    grid.take()
    grid.set_rate(Rate(0), START + NS // 2)
    grid.set_rate(Rate(1), START + 100 * NS)
    assert START + 100 * NS + NS // 2 == grid.next_time(START + 100 * NS)


def test_ten_years_of_a_tenth_are_exact():
    """Permit numbers of a rate in force for ten years do not drift from the grid of the epoch."""
    later = START + 315_360_000 * NS
    assert later + 10 * NS == PermitGrid(Rate(0.1), slack_ns=0, now_ns=START).time_after(later + 1, 2)


@pytest.mark.parametrize("pause_ns", [1, NS // 3, NS, 10 * NS + 1])
def test_pause_of_one_peer_leaves_it_in_step_with_the_others(pause_ns):
    """A paused peer returns to the grid that all peers share, and uses no permit twice."""
    grids = [PermitGrid(Rate(1), slack_ns=NS // 50, now_ns=START, peers=2, rank=rank) for rank in (0, 1)]
    before = [greedy(grid, START, START + 3 * NS) for grid in grids]
    now = START + 3 * NS
    grids[0].set_rate(Rate(0), now)
    grids[0].set_rate(Rate(1), now + pause_ns)
    after = [greedy(grid, now + pause_ns, now + 20 * NS) for grid in grids]
    numbers = [time // NS for times in (*before, *after) for time in times]
    assert len(set(numbers)) == len(numbers)
    assert all(number % 2 == rank for rank in (0, 1) for number in (time // NS for time in after[rank]))


@pytest.mark.parametrize("peers", [1, 3])
def test_rate_that_is_in_force_already_changes_nothing(peers):
    """Setting the rate in force again voids no permit."""
    grid = PermitGrid(Rate(math.inf), slack_ns=NS // 50, now_ns=START, peers=peers)
    for _ in range(2):
        grid.set_rate(Rate(1), START)
        assert 1 == grid.usable(START)


@pytest.mark.parametrize(("peers", "rank"), [(0, 0), (1, 1), (2, -1)])
def test_share_out_of_range_is_refused(peers, rank):
    """A rank out of range is refused."""
    with pytest.raises(AssertionError):
        PermitGrid(Rate(1), slack_ns=0, now_ns=0, peers=peers, rank=rank)


def test_a_limit_lifted_for_no_time_gives_no_permit_back():
    """Lifting the limit and setting it again at the same instant leaves the permits unchanged."""
    grid = PermitGrid(Rate(1), slack_ns=0, now_ns=10**18)
    grid.usable(10**18)
    grid.take()

    grid.set_rate(Rate(math.inf), 10**18)
    grid.set_rate(Rate(1), 10**18)

    assert 0 == grid.usable(10**18)
    assert 10**18 + 10**9 == grid.next_time(10**18)
