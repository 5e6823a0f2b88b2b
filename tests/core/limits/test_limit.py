"""What all limits have in common: no limit, no permits, and exact forecasts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.effects import begin
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples
from ...kinds import LIMITS
from .histories import INFINITE, NS, SLACK, START, STEPS, WHOLE_RATES, is_idle

# Each kind of limit with so many permits in five seconds, and its source of time.
KINDS = {kind: lambda permits, clock, make=make: make(Rate(permits, per=5), clock) for kind, make in LIMITS.items()}
RATED = [kind for kind in LIMITS if kind is not QuotaLimit]  # a quota has no rate, which may be infinite


def made(kind: type, rate: Rate) -> Limit:
    return LIMITS[kind](rate, lambda: START)


def kinds_of(limit: type) -> set[type]:
    """Return the classes that implement a contract and decide by themselves, unlike a budget of granted tickets."""
    own = {kind for kind in limit.__subclasses__() if kind.__module__.startswith("ratelimited_executor.")}
    own = {kind for kind in own if not kind.__module__.endswith(".budget")}
    return own.union(*map(kinds_of, own))


def test_every_limit_is_tested():
    """Every limit of the package is one of those with which the contract is tested."""
    assert kinds_of(Limit) == set(KINDS)


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_other_settings_keep_what_was_taken(make):
    """A limit takes over the settings of another one, but keeps its own starts."""
    limit, other = make(5, lambda: START), make(2, lambda: START)
    receipt = limit.take(5, START)
    other.take(2, START)
    limit.change_to(other, START)
    assert other.cost_max == limit.cost_max
    assert not limit.admits(1, START)
    assert not is_idle(limit, START)
    limit.change_to(make(50, lambda: START), START)
    limit.settle(receipt, 5, START)
    assert make(50, lambda: START).cost_max == limit.cost_max
    assert limit.when(1, START + 2 * NS) == START + 2 * NS
    assert not is_idle(limit, START)


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_trial_forecasts_and_leaves_the_limit_alone(make):
    """A trial copy forecasts for a future time, and leaves the limit unchanged."""
    limit, time = make(1, lambda: START), START
    limit.take(1, START)
    when = limit.when(1, START)
    assert when > START
    copied = limit.trial(lambda: time)
    time = when
    assert copied.admits(1, when)
    copied.take(1, when)
    assert copied.when(1, when) > when
    assert when == limit.when(1, START)
    assert not limit.admits(1, when - 1)


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_effect_is_told_of_any_start(make):
    """The effect of a start at its own time changes nothing, whether the limit uses effects or not."""
    limit = make(1, lambda: START)
    receipt = limit.take(1, START)
    when = limit.when(1, START)
    effects: list = []
    limit.take_effect(receipt, START)
    limit.defer(receipt, effects)
    assert limit.counts_effects == bool(effects)
    begin(effects, START)
    limit.take_effect(receipt, START)
    assert when == limit.when(1, START)


# Without limit, and without permits.


@pytest.mark.parametrize("kind", RATED)
def test_an_infinite_rate_admits_everything_and_counts_nothing(kind):
    """An infinite rate admits everything and counts nothing, and what was taken before still counts afterwards."""
    limit = made(kind, Rate(5, per=5))
    limit.take(5, START)
    limit.change_to(made(kind, INFINITE), START)
    assert UNLIMITED == limit.count(START) == limit.count_until(START, START + 1)
    assert limit.admits(1_000_000, START)
    assert START == limit.when(1_000_000, START) == limit.when_count(1_000_000, START)
    assert None is limit.cost_max
    receipt = limit.take(1000, START)
    limit.settle(receipt, 7, START)
    limit.change_to(made(kind, Rate(5, per=5)), START)
    before = limit.when(1, START)
    assert 0 == limit.count(START)
    for cost in (7, 2000, 0):
        limit.settle(receipt, cost, START)
    assert before == limit.when(1, START) > START
    fresh = made(kind, INFINITE)
    fresh.settle(fresh.take(9, START), 0, START)
    fresh.change_to(made(kind, Rate(5, per=5)), START)
    assert fresh.admits(1, START)


@pytest.mark.parametrize("kind", [kind for kind in LIMITS if kind is not TokenBucketLimit])  # which begins full
def test_without_permits_nothing_is_ever_admitted(kind):
    """Without permits nothing is admitted, forecast or remembered."""
    limit = made(kind, Rate(0))
    assert 0 == limit.cost_max
    assert not limit.admits(1, START)
    assert 0 == limit.count(START) == limit.count_until(START, START + 10**15)
    assert None is limit.when(1, START) is limit.when_count(1, START)
    assert is_idle(limit, START)


def test_a_bucket_without_rate_is_emptied_once():
    """A bucket without a rate can be emptied once, and then admits nothing."""
    limit = TokenBucketLimit(Rate(0), depth=2, now_ns=START)
    assert (START, None) == (limit.when_count(2, START), limit.when_count(3, START))
    limit.take(2, START)
    assert None is limit.when(1, START)
    assert 0 == limit.count_until(START, START + 10**15)


# Forecasts.


def simulate(limit, now: int, end: int, most: int) -> list[int]:
    """Start as early as possible, one permit each."""
    times = []
    while len(times) < most and (when := limit.when(1, now)) is not None and when < end:
        now = when
        limit.take(1, now)
        times.append(now)
    return times


@given(
    WHOLE_RATES,
    st.sampled_from([kind for kind in RATED if kind is not ExactPacedLimit]),  # which estimates, to the nanosecond
    st.lists(st.tuples(STEPS, st.integers(1, 5)), max_size=6),
    st.integers(0, 3 * NS),
    st.integers(1, 40),
)
@examples(120)
def test_forecasts_are_what_happens_if_everything_starts_at_once(rate, kind, past, ahead, count):
    """Forecasts of the n-th start, and of the number of starts, are those of greedy starts."""

    def after_the_past():
        limit = made(kind, rate)
        now = START
        for step, cost in past:
            now += step
            if limit.admits(cost, now):
                limit.take(cost, now)
        return limit, now + ahead

    limit, now = after_the_past()
    forecast = [limit.when_count(number, now) for number in range(1, count + 1)]
    assert forecast == [limit.when_after(number - 1, 1, now) for number in range(1, count + 1)]
    until = {end: limit.count_until(now, end) for time in forecast for end in (time, time + 1) if end > now}
    assert max(1, limit.count(now)) >= sum(time == now for time in forecast) >= min(count, limit.count(now))
    times = simulate(limit, now, 1 << 80, count + 1)
    assert forecast == times[:count]
    for end, found in until.items():
        assert len([time for time in times if time < end]) == min(found, count + 1) or end > times[-1], end


# A cost of 0.


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_start_of_cost_zero_takes_nothing_and_waits_for_a_deficit(make):
    """A start of cost 0 takes nothing, counts once it is settled to more, and waits for a deficit, to the nanosecond."""
    limit, time = make(5, lambda: START), START
    before = [limit.when(cost, START) for cost in range(6)]
    receipt = limit.take(0, START)
    assert before == [limit.when(cost, START) for cost in range(6)]
    assert is_idle(limit, START)
    limit.settle(receipt, 7, START)
    assert not limit.admits(0, START)
    when = limit.when(0, START)
    assert START < when <= limit.when(1, START)
    assert when == limit.when_after(0, 0, START)
    later = limit.trial(lambda: time)
    time = when - 1
    assert not later.admits(0, when - 1)
    time = when
    assert later.admits(0, when)
    limit.settle(receipt, 0, START)
    assert before == [limit.when(cost, START) for cost in range(6)]


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_start_of_cost_zero_needs_no_permits_but_a_pace_that_is_paid_for(make):
    """With nothing left, a start of cost 0 is admitted; by a pace, once the starts before it are paid for."""
    limit = make(5, lambda: START)
    limit.take(5, START)
    assert not limit.admits(1, START)
    assert limit.admits(0, START) is not limit.is_paid_afterwards
    assert (limit.when(0, START) > START) is limit.is_paid_afterwards


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_largest_cost_is_what_is_admitted_at_once_or_paid_afterwards(make):
    """A cost above the largest one is never admitted; without a largest one a start needs one permit only."""
    limit = make(5, lambda: START)
    assert limit.is_paid_afterwards == (limit.cost_max is None)
    most = limit.cost_max or 1000
    assert limit.admits(most, START)
    assert (limit.when(most + 1, START) is None) is not limit.is_paid_afterwards
    count = limit.count_until(START, START + 60 * NS)
    assert limit.starts_until(1, START, START + 60 * NS) == count > 5
    few = -(-count // 4) if limit.is_paid_afterwards else count // 4
    assert few == limit.starts_until(4, START, START + 60 * NS)


@pytest.mark.parametrize("kind", [WindowLimit, PacedLimit])
def test_start_of_cost_zero_waits_for_ever_for_a_deficit_that_is_never_paid(kind):
    """Without permits, a start of cost 0 is admitted unless the limit is in deficit; a pace at rate 0 stays so."""
    limit = made(kind, Rate(2, per=5))
    limit.change_to(made(kind, Rate(0)), START)
    assert (True, START) == (limit.admits(0, START), limit.when(0, START))
    limit = made(kind, Rate(2, per=5))
    limit.settle(limit.take(0, START), 3, START)
    limit.change_to(made(kind, Rate(0)), START)
    assert not limit.admits(0, START)
    assert limit.when(0, START) in {None, START + 5 * NS + 1000}


def test_many_starts_of_cost_zero_take_no_memory():
    """Starts of cost 0 have no entry in the log of a window; one that is settled too late counts nowhere."""
    limit = WindowLimit(Rate(5, per=5))
    receipts = [limit.take(0, START + number) for number in range(1000)]
    assert is_idle(limit, START)
    limit.settle(receipts[0], 3, START + 6 * NS)
    assert 5 == limit.count(START + 6 * NS)
    limit.settle(receipts[1], 3, START + 4 * NS)
    assert (2, 5) == (limit.count(START + 8 * NS), limit.count(START + 10 * NS))


# Forgetting.

PASTS = st.lists(st.tuples(STEPS, st.integers(0, 5), st.integers(0, 2 * NS)), max_size=8)


def play(limit, steps, now: int, clock) -> tuple[list[object], int]:
    """Start as asked where it is admitted, with late effects; return all that the limit says, and the time."""
    said: list[object] = []
    for step, cost, late in steps:
        now = clock.time = now + step
        said += [limit.admits(cost, now), limit.when(cost, now), limit.count(now)]
        if limit.admits(cost, now):
            receipt, effects = limit.take(cost, now), []
            if late % 2:
                limit.defer(receipt, effects)
            now = clock.time = now + late
            begin(effects, now)
            if not late % 2:
                limit.take_effect(receipt, now)
    return said, now


class Clock:
    """A clock that is set by its owner."""

    time = START

    def __call__(self) -> int:
        return self.time


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
@given(permits=st.integers(1, 6), past=PASTS, future=PASTS, wait=STEPS)
@examples(100)
def test_an_idle_limit_is_as_good_as_new(make, permits, past, future, wait):
    """From when a limit is idle, a new one admits the same, at the same times."""
    clock = Clock()
    limit = make(permits, clock)
    _, now = play(limit, past, START, clock)
    when = limit.idle_at(now)
    assert when >= now
    assert is_idle(limit, now) == (when == now)
    now = clock.time = when + wait
    assert is_idle(limit, now)
    fresh = make(permits, clock)
    expected, _ = play(fresh, future, now, clock)
    assert expected == play(limit, future, now, clock)[0]


@pytest.mark.parametrize("make", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
@given(permits=st.integers(1, 6), others=st.integers(0, 6), past=PASTS, future=PASTS, wait=STEPS)
@examples(100)
def test_a_packed_limit_is_the_same_afterwards(make, permits, others, past, future, wait):
    """A limit that was packed and unpacked says the same as before, also when its settings have changed meanwhile."""
    clock = Clock()
    limit = make(permits, clock)
    _, now = play(limit, past, START, clock)
    now = clock.time = now + wait
    packed = limit.pack()
    if packed is None:
        assert isinstance(limit, QuotaLimit)
        with pytest.raises(NotImplementedError):
            limit.unpack((), now)
        return
    for count in (permits, others or permits):
        other = make(count, clock)
        other.unpack(packed, now)
        same = limit.trial(clock)
        if count != permits:
            same.change_to(make(count, clock), now)
        expected, _ = play(same, future, now, clock)
        assert expected == play(other, future, now, clock)[0]
        assert same.idle_at(clock.time) == other.idle_at(clock.time)


@pytest.mark.parametrize("make", [KINDS[WindowLimit], KINDS[ExactPacedLimit]], ids=["window", "exact paced"])
def test_a_limit_is_neither_idle_nor_packed_while_a_start_has_no_known_effect(make):
    """While a start has no known effect, its limit is neither idle nor packed, whatever the time."""
    limit, effects = make(2, lambda: START), []
    limit.defer(limit.take(1, START), effects)
    for now in (START, START + 50 * NS):
        assert (None, None) == (limit.idle_at(now), limit.pack())
    begin(effects, START + 50 * NS)
    assert None is not limit.idle_at(START + 50 * NS) > START + 50 * NS
    assert None is not limit.pack()


def test_an_exact_pace_is_idle_once_its_next_start_is_due():
    """An exact pace is idle a slack after its next start is due, long before its window is empty."""
    limit = ExactPacedLimit(Rate(100, per=86_400), slack_ns=SLACK)
    limit.take(1, START)
    assert START + 864 * NS + SLACK + 1 == limit.idle_at(START)
    limit.take(10, START + 864 * NS)
    assert START + 11 * 864 * NS + SLACK + 1 == limit.idle_at(START)
    for permits in (0, float("inf")):
        limit.change_to(ExactPacedLimit(Rate(permits), slack_ns=SLACK), START + 864 * NS)
        assert None is limit.idle_at(START + 864 * NS)
