"""Arrivals: none is lost or doubled however time is cut, means are as requested, and bad input is refused."""

import math
import random
from array import array
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor import Rate
from ratelimited_executor.simulation import Daily, Poisson, Recorded, Recording, Regular

HOUR = 3600.0


def recording(times, keys=None):
    return Recording(times=array("d", times), keys=keys, durations=None, begin=0.0, skipped=0)


def all_between(arrivals, cuts, seed=0):
    """Return the arrivals of all stretches between cuts, each checked to be within its stretch and sorted."""
    chance, found = random.Random(seed), []
    for begin, end in zip(cuts, cuts[1:], strict=False):
        times = arrivals.between(begin, end, chance)
        keys = arrivals.keys_between(begin, end)
        assert keys is None or len(keys) == len(times)
        assert times == sorted(times)
        assert all(begin <= time < end for time in times), (begin, end, times)
        found += times if keys is None else list(zip(times, keys, strict=True))
    return found


def cuts_of(end):
    """Draw cuts of [0, end) at any places, including whole and fractional numbers."""
    places = st.one_of(
        st.floats(0, end, allow_nan=False),
        st.integers(0, int(end)).map(float),
        st.integers(0, int(10 * end)).map(lambda n: n / 10),
    )
    return st.lists(places, max_size=12).map(lambda cuts: sorted({0.0, end, *(cut for cut in cuts if cut < end)}))


RATES = st.one_of(
    st.floats(0.01, 5),
    st.sampled_from([0.1, 0.3, 1 / 3, 1 / 7, 0.7, 1, 3.3, 1 / 60, 2 / 3]),
    st.integers(1, 90).map(lambda n: 1 / n),
)


# Regular.


@given(RATES, cuts_of(100.0))
def test_regular_arrivals_are_the_same_however_time_is_cut(rate, cuts):
    """However time is cut, there is one regular arrival at each multiple of the gap before the end."""
    found = all_between(Regular(rate), cuts)
    assert len(found) == len(all_between(Regular(rate), [0.0, 100.0])) == math.ceil(100 * rate)
    assert found == pytest.approx([number / rate for number in range(len(found))])


def test_regular_arrivals_begin_at_the_start_and_never_end():
    """Regular arrivals are even, start at 0 and never end, also far from the start."""
    every = Regular(4)
    assert [0, 0.25, 0.5, 0.75] == every.between(0, 1, random.Random())
    far = 1e9
    assert 14_400 == len(every.between(far, far + HOUR, random.Random()))
    assert (math.inf, None) == (every.end, every.keys_between(0, 1))
    assert [] == Regular(1 / 7200).between(HOUR, 2 * HOUR, random.Random())


@given(RATES, st.integers(1, 400))
def test_hours_of_regular_arrivals_hold_their_share(rate, hour):
    """Each hour of regular arrivals has its share of them."""
    times = Regular(rate).between(hour * HOUR, (hour + 1) * HOUR, random.Random())
    assert abs(len(times) - rate * HOUR) < 1.001
    assert all(hour * HOUR <= time < (hour + 1) * HOUR for time in times)


@pytest.mark.parametrize("rate", [1.1, 0.3, 3.3, 0.7, 1 / 7])
def test_no_regular_arrival_is_as_late_as_the_end(rate):
    """An arrival at the end of a stretch belongs to the next one, and comes once."""
    cuts = [HOUR * hour for hour in range(100)]
    found, whole = all_between(Regular(rate), cuts), Regular(rate).between(0, cuts[-1], random.Random())
    assert len(whole) == len(found)
    assert all(map(math.isclose, found, whole))  # to a billionth


# Poisson.


def test_poisson_arrivals_have_their_mean_and_know_nothing_of_each_other():
    """Mean and variance of Poisson counts are the rate, as far as 10,000 minutes can tell."""
    chance, every = random.Random(1), Poisson(0.5)
    counts = [len(every.between(60.0 * n, 60.0 * (n + 1), chance)) for n in range(10_000)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert mean == pytest.approx(30, abs=5 * math.sqrt(30 / len(counts)))
    assert variance == pytest.approx(30, rel=0.08)
    assert (math.inf, None) == (every.end, every.keys_between(0, 1))


@given(cuts_of(1000.0), st.integers())
def test_poisson_arrivals_lie_where_they_were_asked_for(cuts, seed):
    """Poisson arrivals are sorted within their stretch, and repeatable with the seed."""
    found = all_between(Poisson(0.05), cuts, seed)
    assert found == all_between(Poisson(0.05), cuts, seed)


# Daily.


def test_daily_arrivals_follow_the_hours_of_the_day():
    """Daily arrivals keep the last given hour's rate, and before the first hour that of the previous day."""
    chance, every = random.Random(2), Daily({6: 0.5, 8: 2, 20: 0})
    counts = [0.0] * 24
    days = 10
    for hour in range(24 * days):
        counts[hour % 24] += len(every.between(hour * HOUR, (hour + 1) * HOUR, chance)) / days
    expected = [0] * 6 + [0.5 * HOUR] * 2 + [2 * HOUR] * 12 + [0] * 4
    for found, mean in zip(counts, expected, strict=True):
        assert found == pytest.approx(mean, abs=5 * math.sqrt(mean / days))
    assert (math.inf, None) == (every.end, every.keys_between(0, 1))


@given(cuts_of(2 * 86400.0), st.integers())
def test_daily_arrivals_lie_where_they_were_asked_for(cuts, seed):
    """Daily arrivals are sorted and repeatable with the seed, with none in an hour of rate 0."""
    every = Daily({0: 0.001, 12: 0})
    found = all_between(every, cuts, seed)
    assert found == all_between(every, cuts, seed)
    assert all(time % 86400 < 12 * HOUR for time in found)


def test_one_rate_holds_for_the_whole_day():
    """A single rate holds for the whole day, whatever its hour."""
    times = Daily({23: 0.1}).between(0, 86400, random.Random(3))
    assert len(times) == pytest.approx(8640, abs=5 * math.sqrt(8640))


# Recorded.

TIMES = st.lists(st.integers(0, 99_000).map(lambda n: n / 1000), min_size=1, max_size=30).map(
    lambda times: [time - min(times) for time in sorted(times)]
)


@given(TIMES, cuts_of(300.0), st.booleans(), st.sampled_from([1, 2, 0.5, 3]))
def test_recorded_arrivals_come_once_however_time_is_cut(times, cuts, has_keys, speed):
    """Recorded arrivals come once, with their keys, however time is cut."""
    keys = [f"key {number}" for number in range(len(times))] if has_keys else None
    every = Recorded(recording(times, keys), speed=speed)
    found = all_between(every, cuts)
    expected = [time / speed for time in times]
    assert found == (expected if keys is None else list(zip(expected, keys, strict=True)))
    assert expected[-1] < every.end < expected[-1] + 1e-6


@given(TIMES, cuts_of(1000.0), st.one_of(st.just(0.001), st.floats(0.001, 3)))
def test_recordings_are_played_again_however_time_is_cut(times, cuts, rest):
    """A repeated recording loses and doubles no arrival at the border of a recording or stretch."""
    times = [*times, times[-1] + 5]
    period = times[-1] + rest
    every = Recorded(recording(times, list(map(str, range(len(times))))), every=period)
    found = all_between(every, cuts)
    whole = all_between(every, [0.0, 1000.0])
    assert len(found) == len(whole)
    assert [key for _, key in found] == [key for _, key in whole]
    assert [time for time, _ in found] == pytest.approx([time for time, _ in whole])
    count = math.floor(1000 / period)
    assert count * len(times) <= len(whole) <= (count + 1) * len(times) + 1
    assert math.inf == every.end


def test_hours_of_a_recording_that_is_played_again_follow_each_other():
    """Hours of a recording repeated daily follow each other."""
    every = Recorded(recording([0, 1800, HOUR, 86_399]), every="1d")
    found = all_between(every, [hour * HOUR for hour in range(49)])
    assert [0, 1800, 3600, 86_399, 86_400, 88_200, 90_000, 172_799] == found
    assert [0, 1, 4, 5] == Recorded(recording([0, 1]), every=timedelta(seconds=4)).between(0, 8, random.Random())
    assert [0, 0.5, 2, 2.5] == Recorded(recording([0, 1]), speed=2, every=2).between(0, 4, random.Random())


def test_the_last_of_a_recording_comes_where_an_hour_begins():
    """The last arrival of a recording comes even if it is at the begin of an hour."""
    every = Recorded(recording([0, HOUR]))
    assert HOUR < every.end
    assert [0, HOUR] == all_between(every, [0, HOUR, 2 * HOUR])
    assert [0, 0, 0] == Recorded(recording([0, 0, 0])).between(0, 1, random.Random())


def test_recorded_arrivals_without_keys_are_nobodys():
    """Recorded arrivals without keys have none, and a recording is played only from its start."""
    every = Recorded(recording([0, 5]))
    assert every.keys_between(0, 10) is None
    assert [] == every.between(6, 10, random.Random())
    assert [] == every.between(0, 0, random.Random())


# Bad input.


@pytest.mark.parametrize("make", [Regular, Poisson, lambda rate: Daily({3: rate})], ids=["Regular", "Poisson", "Daily"])
@pytest.mark.parametrize(
    ("rate", "error"),
    [
        (0, ValueError), (-1, ValueError), (math.nan, ValueError), (math.inf, ValueError), (10**400, ValueError),
        (None, TypeError), ("often", ValueError), ("0/s", ValueError), ("inf/s", ValueError), (True, TypeError), ([1], TypeError), (1j, TypeError),
    ],
)  # fmt: skip
def test_rates_out_of_range_are_refused(make, rate, error):
    """A rate out of range is refused by name."""
    with pytest.raises(error, match=r"rate"):
        make(rate)


def test_rates_may_be_written_as_those_of_executors():
    """A rate is a number a second, or what every rate of the package may be."""
    assert ("Regular(0.5)", "Poisson(2.5)") == (repr(Regular("30/min")), repr(Poisson(Rate(150, per=60))))
    assert repr(Daily({8: 2.5, 20: 0})) == repr(Daily({8: "9_000/h", 20: "0/s"}))


@pytest.mark.parametrize("rates", [{}, {24: 1}, {-1: 1}, {1.5: 1}, {"8": 1}, {None: 1}, {0: 0}, {3: 0, 4: 0.0}])
def test_hours_that_are_none_are_refused(rates):
    """Bad hours, and days without arrivals, are refused."""
    with pytest.raises(ValueError, match="rates must have .*hour"):
        Daily(rates)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"speed": 0}, ValueError, "speed must be > 0"),
        ({"speed": -1}, ValueError, "speed must be > 0"),
        ({"speed": math.nan}, ValueError, "speed"),
        ({"speed": math.inf}, ValueError, "speed"),
        ({"speed": "2"}, TypeError, "speed"),
        ({"speed": None}, TypeError, "speed"),
        ({"every": 0}, ValueError, "every"),
        ({"every": -1}, ValueError, "every"),
        ({"every": math.nan}, ValueError, "every"),
        ({"every": 50}, ValueError, "longer than the recording, which lasts 100 s"),
        ({"every": 100}, ValueError, "longer than the recording"),
        ({"every": "1m"}, ValueError, "larger speed="),
        ({"every": "soon"}, ValueError, "every"),
        ({"every": True}, TypeError, "every"),
        ({"every": 60, "speed": 1.5}, ValueError, "66.6667 s"),
    ],
)
def test_recordings_that_cannot_be_played_so_are_refused(options, error, words):
    """A recording that cannot be played with the options is refused with the reason."""
    with pytest.raises(error, match=words):
        Recorded(recording([0, 50, 100]), **options)


@pytest.mark.parametrize(
    "make",
    [lambda: Regular(2), lambda: Poisson(2), lambda: Daily({0: 1}), lambda: Recorded(recording([0, 1]))],
    ids=["Regular", "Poisson", "Daily", "Recorded"],
)
def test_equal_arrivals_have_the_same_text(make):
    """Equal arrivals have the same repr, which is recorded as a parameter of the run."""
    assert repr(make()) == repr(make())
    assert " at 0x" not in repr(make())


def test_the_text_of_arrivals_tells_their_rate():
    """The repr of arrivals includes their rate, so that another rate is another run."""
    assert "2.5" in repr(Poisson(2.5))
    assert repr(Regular(1)) != repr(Regular(2))
    assert " at 0x" not in repr(Regular(1))


# Traffic that is scaled.


def scaled(scale, count=2000, **options):
    """Return the arrivals of a recording with keys and durations, scaled."""
    every = Recorded(
        Recording(
            times=array("d", [float(n) for n in range(count)]),
            keys=[str(n) for n in range(count)],
            durations=array("d", [float(n) for n in range(count)]),
            begin=0.0,
            skipped=0,
        ),
        scale=scale,
        **options,
    )
    chance = random.Random()
    return every.between(0, HOUR, chance), every.keys_between(0, HOUR), every.durations_between(0, HOUR)


@pytest.mark.parametrize("scale", [2, 1.5, 0.5, 3.25])
def test_traffic_is_scaled_with_keys_and_durations(scale):
    """Each recorded arrival comes as often as the scale says, within a minute, with its own key and duration."""
    times, keys, durations = scaled(scale)
    assert len(times) == pytest.approx(scale * 2000, rel=0.05)
    assert times == sorted(times)
    assert [float(key) for key in keys] == list(durations)
    assert all(0 <= time - float(key) <= 60 for time, key in zip(times, keys, strict=True))
    counts = Counter(Counter(keys).values())
    assert set(counts) <= {math.floor(scale), math.ceil(scale)}
    assert times == scaled(scale)[0]


def test_scaled_traffic_that_is_repeated_stays_within_its_period():
    """A copy after the end of the period comes at its beginning."""
    times, keys, _ = scaled(2, count=1000, every=1000)
    assert 4 * 2000 * HOUR / 4000 == pytest.approx(len(times), abs=400)
    assert times == sorted(times)
    assert len(keys) == len(times)


@pytest.mark.parametrize(
    ("scale", "words"), [(0, "scale must be > 0"), (-1, "scale must be > 0"), (1e-9, "must leave some")]
)
def test_a_scale_that_cannot_be_is_refused(scale, words):
    """A scale leaves something to arrive."""
    with pytest.raises(ValueError, match=words):
        scaled(scale)
