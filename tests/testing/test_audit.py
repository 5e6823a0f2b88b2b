"""``audit`` agrees with a slow and obvious version of itself, and is exact at the limits of floats."""

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor.testing import AuditReport, RateHistory, audit, worst_window

NS = 10**9
EPOCH = 1_704_067_200.0


def _phi(history: Sequence[tuple[int, Rate]], begin: int, end: int) -> Fraction | float:
    """Integrate a history of rates over nanoseconds, piece by piece."""
    total: Fraction | float = Fraction(0)
    for place, (time, rate) in enumerate(history):
        piece_begin = begin if place == 0 else max(begin, time)
        piece_end = end if place + 1 == len(history) else min(end, history[place + 1][0])
        if piece_begin < piece_end:
            total += math.inf if rate.per_second is None else rate.per_second * Fraction(piece_end - piece_begin, NS)
    return total


def _per_second(rate: Rate) -> Fraction | float:
    return math.inf if rate.per_second is None else rate.per_second


def _obvious_excess(starts: Sequence[float], history: Sequence[tuple[float, Rate]], slack: float) -> float:
    """Return the excess of the worst window, found by trying every window from a start to a start."""
    origin = min(starts)
    stamps = sorted(round((time - origin) * NS) for time in starts)
    changes = [(round((time - origin) * NS), rate) for time, rate in history]
    tolerance = 1 + math.ceil(2 * NS * math.ulp(max(map(abs, starts))))
    slack_ns = round(Fraction(repr(slack)) * NS)
    for place in range(1, len(changes)):  # as if the higher of two rates had been in force for longer
        (before, higher), (time, rate) = changes[place - 1 : place + 1]
        time += tolerance if _per_second(rate) < _per_second(higher) else -tolerance
        changes[place] = max(before, time), rate
    return max(
        float(last - first - _phi(changes, stamps[first] - slack_ns - tolerance, stamps[last] + tolerance))
        for first in range(len(stamps))
        for last in range(first, len(stamps))
    )


times = st.one_of(
    st.integers(0, 60).map(lambda steps: steps / 4),
    st.floats(-20, 20, allow_nan=False, width=32),
    st.floats(0, 15),
)
rates = st.one_of(
    st.sampled_from([Rate(0), Rate(math.inf), Rate(1), Rate(0.1), Rate(7, per=3)]),
    st.builds(Rate, st.fractions(0, 50, max_denominator=30)),
)
histories = st.lists(st.tuples(times, rates), min_size=1, max_size=5).map(
    lambda pairs: sorted(pairs, key=lambda p: p[0])
)


@given(st.lists(times, min_size=1, max_size=25), histories, st.sampled_from([0.0, 0.02, 0.5]), st.randoms())
def test_audit_equals_the_obvious_version(starts, history, slack, random) -> None:  # type: ignore[no-untyped-def]  # drawn values
    """The fast pass in integers finds the same excess as trying every window in fractions, in any order of starts."""
    random.shuffle(starts)

    report = audit(starts, history, slack=slack)

    assert _obvious_excess(starts, history, slack) == report.worst_excess
    assert report.ok == (report.worst_excess <= 0)
    assert len(starts) == report.total


@given(st.lists(times, min_size=1, max_size=25), st.fractions(Fraction(1, 20), 50, max_denominator=30))
def test_audit_reports_a_window_that_is_as_bad_as_it_says(starts, permits) -> None:  # type: ignore[no-untyped-def]  # drawn values
    """The worst window holds as many starts as the report counts, and the excess follows from them."""
    report = audit(starts, Rate(permits), slack=0.02)

    assert report.count == sum(report.start <= time <= report.end for time in starts)
    assert math.isclose(report.worst_excess, report.count - report.allowed, abs_tol=1e-9)
    assert math.isclose(report.allowed, float(permits) * (report.end - report.start + 0.02) + 1, abs_tol=1e-5)


@given(
    st.fractions(Fraction(1, 100), 10_000, max_denominator=1000),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 1e5, EPOCH]),
)
def test_starts_at_the_floats_next_to_their_permits_are_lawful(permits: Fraction, first: int, origin: float) -> None:
    """Starts on the grid, as exactly as floats can hold, never break the law, not even without slack."""
    grid = [origin + float((first + number) / permits) for number in range(50)]

    assert audit(grid, Rate(permits), slack=0).ok


@given(st.fractions(Fraction(1, 100), 49, max_denominator=1000), st.sampled_from([0.0, 1e5, EPOCH]))
def test_the_latest_lawful_start_is_lawful_and_a_later_one_is_not(permits: Fraction, origin: float) -> None:
    """A permit taken ``slack`` after its time uses up the slack: 3 microseconds later the law is broken."""
    following = [origin + float(number / permits) for number in range(1, 10)]

    assert audit([origin + 0.02, *following], Rate(permits), slack=0.02).ok
    assert not audit([origin + 0.020003, *following], Rate(permits), slack=0.02).ok


@pytest.mark.parametrize("origin", [0.0, -5.0, 1e5, EPOCH])
def test_one_start_too_many_is_found(origin: float) -> None:
    """Of 1,000 lawful starts, one of them doubled, the report names the window of the pair."""
    starts = [origin + number / 10 for number in range(1000)]

    report = audit([*starts, starts[500]], 10, slack=0)

    assert not report.ok
    assert math.isclose(1.0, report.worst_excess, abs_tol=1e-4)
    assert report.start <= starts[500] <= report.end


def test_worst_window_of_a_burst() -> None:
    """The worst window of five starts at once, at a rate of one per second, is the burst; 1.02 are allowed."""
    assert AuditReport(worst_excess=3.979999996, start=3.0, end=3.0, count=5, allowed=1.020000004, total=5) == audit(
        [3.0] * 5, 1, slack=0.02
    )


@pytest.mark.parametrize(
    ("history", "excess"),
    [
        ([(0, 0)], 2.0),
        ([(0, 10)], -0.2),
        ([(0, 0), (2, 1)], 1.0),
        ([(0, 1), (2, 0)], 0.98),
        ([(0, 0), (1, 1), (2, 0)], 1.0),
        ([(0, "60/min"), (2, Rate(0.5))], -0.01),
        ([(0, 5), (0, 0)], 1.9),
    ],
)
def test_rate_changes_count_for_as_long_as_they_were_in_force(history: RateHistory, excess: float) -> None:
    """A rate holds until the next change; the first holds before its time, too, and of equal times the last counts."""
    assert math.isclose(excess, audit([0.0, 2.0, 4.0], history, slack=0.02).worst_excess, abs_tol=1e-6)


def test_the_time_of_a_change_is_read_with_the_same_tolerance() -> None:
    """A nanosecond of a high rate is worth many of a low one: rounded times of changes break no law, 100 ns do."""
    history = [(0.0, 0), (2.2980069999999997, 100), (2.298008, 10)]
    assert audit([2.2980069999999997, 2.39799799], history, slack=0.02).ok
    assert not audit([2.2980069999999997, 2.39799789], history, slack=0.02).ok


def test_unlimited_time_allows_anything() -> None:
    """No window that touches unlimited time can be too full; the windows beside it still can."""
    history = [(0.0, 1), (10.0, math.inf), (20.0, 1)]

    free = audit([10.5 + number / 1000 for number in range(5000)], history)
    before = audit([*[5.0, 5.5], *[15.0] * 100], history)
    after = audit([*[15.0] * 100, *[25.0] * 3], history)

    assert (-math.inf, True, 0) == (free.worst_excess, free.ok, free.count)
    assert (5.0, 5.5, 2, False) == (before.start, before.end, before.count, before.ok)
    assert (25.0, 25.0, 3, False) == (after.start, after.end, after.count, after.ok)


def test_unlimited_rate_is_lawful_whatever_happens() -> None:
    """Without a limit no law can be broken, and the report says so."""
    report = audit([1.0] * 10, math.inf)

    assert report.ok
    assert "law kept: 10 start(s), none in a limited window" == str(report)


def test_paused_executor_may_start_nothing_but_one() -> None:
    """Even at rate 0 the law permits one start; the second is one too many."""
    assert audit([5.0], 0, slack=0.02).ok
    assert 1.0 == audit([5.0, 50.0], 0, slack=0.02).worst_excess


def test_no_starts_keep_every_law() -> None:
    """Nothing started is lawful at any rate."""
    report = audit([], 0)

    assert (True, 0, -math.inf) == (report.ok, report.total, report.worst_excess)


def test_report_says_where_the_worst_window_lies() -> None:
    """The text of a report is what a failing test shows; it names verdict, window and counts."""
    assert (
        "LAW BROKEN by 0.8: the worst window of 4 start(s) is [10.000000000, 10.200000000], "
        "0.200000000 s long, with 4 start(s) where 3.200000 are allowed"
    ) == str(audit([10.0, 10.1, 10.2, 10.2], 10, slack=0.02))
    assert str(audit([10.0, 11.0], "1/s", slack=0.02)).startswith(
        "law kept: the worst window of 2 start(s) is [10.000000000, "
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0.0, math.nan], 1), ValueError, "starts must be finite"),
        (([0.0, math.inf], 1), ValueError, "starts must be finite"),
        (([0.0], -1), ValueError, "rate must be"),
        (([0.0], "often"), ValueError, "rate must look like"),
        (([0.0], None), TypeError, "rate must be"),
        (([0.0], []), ValueError, "rate must have at least one"),
        (([0.0], [(1, 5), (0, 5)]), ValueError, "rate must have its times in order, got 0.0 after 1.0"),
        (([0.0], [(math.nan, 5)]), ValueError, "rate must have finite times"),
        (([0.0], [5, 6]), TypeError, "sequence of .time, rate. pairs, got the entry 5"),
        (([0.0], ["5/s"]), TypeError, "got the entry '5/s'"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: tuple[object, object], error: type[Exception], message: str) -> None:
    """What cannot be audited is refused with the parameter's name."""
    with pytest.raises(error, match=message):
        audit(*arguments)  # type: ignore[arg-type]  # what the test is about


@pytest.mark.parametrize(
    ("slack", "error"),
    [(-0.1, ValueError), (math.inf, ValueError), (math.nan, ValueError), (b"1", TypeError), ("1x", ValueError)],
)
def test_bad_slack_is_refused_by_name(slack: float, error: type[Exception]) -> None:
    """Slack is a finite number of seconds that is not negative."""
    with pytest.raises(error, match="slack(: a duration looks like| must be)"):
        audit([0.0], 1, slack=slack)


def test_a_time_too_far_off_for_nanoseconds_is_refused() -> None:
    """Times so far apart that nanoseconds cannot count them are refused."""
    with pytest.raises(ValueError, match="starts must lie within"):
        audit([-1e308, 1e308], 1)


@given(st.lists(times, min_size=1, max_size=25), st.sampled_from([0.0, 0.25, 1.0, 3.5]))
def test_worst_window_equals_the_obvious_version(starts: list[float], width: float) -> None:
    """The pass with two moving ends finds what a search from every start finds."""
    origin = min(starts)
    stamps = sorted(round((time - origin) * NS) for time in starts)
    edge = round(width * NS) - 1 - math.ceil(2 * NS * math.ulp(max(map(abs, starts))))  # less what floats may misread
    expected = max(
        sum(first <= other < max(first + edge, first + 1) for other in stamps[index:]) if edge > 0 else 1
        for index, first in enumerate(stamps)
    )
    expected = max(expected, *(stamps.count(first) if edge > 0 else 1 for first in stamps))

    count, start = worst_window(starts, width)

    assert expected == count
    assert start in starts


def test_worst_window_leaves_its_end_out_and_prefers_the_earliest() -> None:
    """Ten starts a tenth apart fit in a second, however floats round; of equal windows the earliest is named."""
    starts = [number * 0.1 for number in range(100)]

    assert (10, 0.0) == worst_window(starts, 1.0)
    assert (0, 0.0) == worst_window([], 1.0)
    assert (3, 7.0) == worst_window([9.0, 7.0, 7.0, 7.0], 0.001)


@pytest.mark.parametrize("width", [-1.0, math.nan, math.inf])
def test_worst_window_refuses_a_bad_width(width: float) -> None:
    """A width is a finite number of seconds that is not negative."""
    with pytest.raises(ValueError, match="width must be"):
        worst_window([0.0], width)


def test_audit_of_many_starts_is_one_pass() -> None:
    """200,000 starts under 1,000 changes of rate are audited; a quadratic version would take an hour."""
    history = [(number / 5, 1000 + number % 7) for number in range(1000)]
    starts = [number / 999 for number in range(200_000)]

    assert audit(starts, history).total == len(starts)


def test_a_start_a_whole_window_before_a_change_does_not_count() -> None:
    """Windows leave their end out: at the change of the rate it is as old as the window was long."""
    history: RateHistory = [(0, "5/s"), (3, "7/3s")]
    starts = [2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.5, 4.0]
    assert audit(starts, history).ok
    assert not audit([2.000_000_1, *starts[1:]], history).ok
