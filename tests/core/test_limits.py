"""The law of each limit on random histories, exact answers to "when", and what is settled afterwards."""

import copy
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.granted import GrantedPermits
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.quota import PERIOD_COUNT, QuotaLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits import UNLIMITED, PermitGrid
from ratelimited_executor._core.rates import Rate

NS = 1_000_000_000
START = 1_704_067_200 * NS
SLACK = 20_000_000
DEPTH = 7
READING = 1000  # nanoseconds that a window is longer than it says
INFINITE = Rate(float("inf"))
RATES = st.sampled_from([Rate(1), Rate(5), Rate(5, per=2), Rate(7, per=Fraction(1, 3)), Rate(Fraction(10, 3), per=7)])
WHOLE_RATES = st.sampled_from([Rate(1), Rate(5), Rate(5, per=2), Rate(7, per=Fraction(1, 3)), Rate(10, per=7)])
STEPS = st.one_of(
    st.integers(1, 50),
    st.integers(1, 40_000_000),
    st.integers(1, 3 * NS),
    st.sampled_from([SLACK, SLACK + 1, NS // 5, NS, 2 * NS, 60 * NS]),
)


def histories(*others) -> st.SearchStrategy:
    """Make what happens to a limit: starts, corrections of their costs, idle stretches, other rates."""
    step = st.one_of(
        st.tuples(st.just("advance"), STEPS),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 6)),
        st.tuples(st.just("settle"), st.tuples(st.integers(1, 4), st.integers(0, 12))),
        *(st.tuples(st.just("rate"), st.one_of(rates, st.just(Rate(0)))) for rates in others),
    )
    return st.lists(step, max_size=40)


class Start:
    """One start, and what it costs as far as is known."""

    def __init__(self, time: int, cost: int, ticket) -> None:
        self.time, self.cost, self.ticket = time, cost, ticket


class Rates:
    """The integral of a rate, exactly."""

    def __init__(self, rate: Rate) -> None:
        self.changes = [(0, rate.per_second)]

    def change(self, time: int, rate: Rate) -> None:
        self.changes.append((time, rate.per_second))

    def between(self, begin: int, end: int) -> Fraction:
        """Return how many permits come up."""
        ends = [*(time for time, _ in self.changes[1:]), end]
        return sum(
            (
                ratio * max(0, min(end, until) - max(begin, since)) / NS
                for (since, ratio), until in zip(self.changes, ends, strict=True)
            ),
            start=Fraction(0),
        )


def play(limit, rate: Rate, history, check) -> None:
    """Let a history happen; call ``check(starts, rates)`` after each start, whose costs are those known by then."""
    now, starts, rates = START, [], Rates(rate)
    for action, value in history:
        if action == "advance":
            now += value
        elif action == "rate":
            limit.set_rate(value, now)
            rates.change(now, value)
            assert_exact(limit, now)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            limit.settle(start.ticket, cost, now)
            start.cost = cost
            assert_exact(limit, now)
        elif action in {"take", "wait"}:
            if action == "wait":
                now = limit.when(value, now) or now
            if limit.admits(value, now):
                starts.append(Start(now, value, limit.take(value, now)))
                check(starts, rates)
                assert_exact(limit, now)


def assert_exact(limit, now: int) -> None:
    """Assert that all answers about the future are what happens if nothing else starts."""
    assert now == limit.when(0, now) == limit.when_after(0, 0, now)
    assert limit.admits(0, now)
    for cost in (1, 2, 5):
        when = limit.when(cost, now)
        assert (when == now) == limit.admits(cost, now)
        if when is not None and when > now:
            later = copy.deepcopy(limit)
            assert not later.admits(cost, when - 1)
            assert later.admits(cost, when)


# Windows.


@given(WHOLE_RATES, st.sampled_from([0, SLACK]), histories())
@settings(max_examples=300, deadline=None)
def test_no_window_holds_more_than_its_permits(rate, margin, history):
    """The costs of the starts of the last window, as far as are known, are N at most whenever something starts."""

    def check(starts, _) -> None:
        begin = starts[-1].time - int(rate.per * NS) - margin
        assert sum(start.cost for start in starts if start.time >= begin) <= rate.permits

    play(WindowLimit(rate, margin_ns=margin), rate, history, check)


@given(WHOLE_RATES, histories(WHOLE_RATES))
@settings(max_examples=200, deadline=None)
def test_what_a_window_holds_counts_under_another_rate(rate, history):
    """A start is admitted exactly if the starts that no window has let go of leave room for it."""
    limit = WindowLimit(rate)
    now, starts, width = START, [], 0
    for action, value in history:
        if limit.rate.permits or not width:
            width = -int(-limit.rate.per * NS // 1) + READING
        limit.count(now)
        starts = [start for start in starts if start.time > now - width]
        room = int(limit.rate.permits) - sum(start.cost for start in starts)
        assert room == limit.count(now)
        if action == "advance":
            now += value
        elif action == "rate":
            limit.set_rate(value, now)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            limit.settle(start.ticket, cost, now)
            start.cost = cost
        elif action in {"take", "wait"}:
            assert (room >= value) == limit.admits(value, now)
            if room >= value:
                starts.append(Start(now, value, limit.take(value, now)))


@pytest.mark.parametrize("permits", [4096, 4097, 9000])
@pytest.mark.parametrize("gap", [0, 1])
def test_a_large_window_is_exact_and_nearly_full(permits, gap):
    """Starts that share an entry of the log are never too many in a window, and hardly too few."""
    per = 10 * NS
    limit = WindowLimit(Rate(permits, per=10))
    now, times = START, []
    grain = per // permits
    for number in range(3 * permits):
        now = max(limit.when(1, now), START + gap * number * grain if number < permits else 0)
        limit.take(1, now)
        times.append(now)
        if number >= permits:
            assert times[number] - times[number - permits] > per
    assert len(limit._log) <= 4098
    seconds = Fraction(times[-1] - times[0], NS)
    assert 3 * permits >= (1 - Fraction(2, 4096)) * permits * seconds / 10


def test_what_a_window_has_let_go_of_is_not_given_back():
    """A start that has left the window may be settled to anything."""
    limit = WindowLimit(Rate(3))
    ticket = limit.take(3, START)
    later = START + NS + READING
    assert (0, 3) == (limit.count(later - 1), limit.count(later))
    limit.settle(ticket, 0, later)
    limit.settle(ticket, 9, later)
    assert 3 == limit.count(later)


def test_a_window_settled_to_more_than_it_holds_waits_until_that_has_left_it():
    """Debts are negative counts, and nothing else is admitted before."""
    limit = WindowLimit(Rate(3))
    ticket = limit.take(1, START)
    limit.settle(ticket, 8, START + 1)
    assert -5 == limit.count(START + 1)
    assert START + NS + READING == limit.when(1, START + 1) == limit.when(3, START + 1)
    assert None is limit.when(4, START + 1)


def test_a_late_clock_counts_as_the_latest_time():
    """A start that is noted with an earlier time than the last counts from the last on."""
    limit = WindowLimit(Rate(2))
    limit.take(1, START)
    limit.take(1, START - 5)
    assert (0, 2) == (limit.count(START + NS + READING - 1), limit.count(START + NS + READING))


# Token buckets.


@given(RATES, histories(RATES))
@settings(max_examples=300, deadline=None)
def test_a_bucket_gives_no_more_than_its_depth_and_the_rate(rate, history):
    """The costs of the starts in any stretch, as far as are known, are depth and rate at most; all that is exact."""

    def check(starts, rates) -> None:
        last, total = starts[-1].time, 0
        for start in reversed(starts):
            total += start.cost
            assert total <= DEPTH + rates.between(start.time, last)

    play(TokenBucketLimit(rate, depth=DEPTH, now_ns=START), rate, history, check)


@given(RATES, histories(RATES))
@settings(max_examples=200, deadline=None)
def test_a_bucket_holds_what_a_fraction_would(rate, history):
    """Nothing is rounded but a change of the rate, by less than a nanosecond's worth each."""
    limit = TokenBucketLimit(rate, depth=DEPTH, now_ns=START)
    now, content, changes = START, Fraction(DEPTH), 0
    for action, value in history:
        if action == "advance":
            now += value
            content = min(Fraction(DEPTH), content + limit.rate.per_second * value / NS)
        elif action == "rate":
            limit.set_rate(value, now)
            changes += 1
        elif action in {"take", "wait"} and limit.admits(value, now):
            limit.take(value, now)
            content -= value
        assert limit.count(now) in {content.__floor__(), (content - Fraction(changes, 1000)).__floor__()}
        assert limit.is_idle(now) == (content == DEPTH) or changes


@given(RATES, st.integers(1, DEPTH), st.integers(1, 4), STEPS, STEPS, st.lists(RATES, max_size=2))
@settings(max_examples=200, deadline=None)
def test_a_start_that_costs_nothing_after_all_was_never_there(rate, cost, before, first, later, rates):
    """What is given back is what the bucket would hold, be it at once or after it has run over."""
    with_it, without = (TokenBucketLimit(rate, depth=DEPTH, now_ns=START) for _ in range(2))
    for limit in (with_it, without):
        limit.take(before, START)
    now = START + first
    if not with_it.admits(cost, now):
        return
    ticket = with_it.take(cost, now)
    for number, other in enumerate(rates):
        for limit in (with_it, without):
            limit.set_rate(other, now + later * number // 2)
    now += later
    with_it.settle(ticket, 0, now)
    assert without.count(now) - bool(rates) <= with_it.count(now) <= without.count(now) <= DEPTH
    if not rates:
        assert without.when(DEPTH, now) == with_it.when(DEPTH, now)
    with_it.settle(ticket, 2, now)
    assert with_it.count(now) <= without.count(now)


def test_what_ran_over_before_the_rate_fell_is_not_given_back():
    """A change of the rate between start and settlement does not hide that the bucket was full."""
    limit = TokenBucketLimit(Rate(100), depth=10, now_ns=START)
    ticket = limit.take(10, START)
    limit.set_rate(Rate(1), START + NS)
    limit.settle(ticket, 0, START + NS)
    assert 10 == limit.count(START + NS)
    deeper = TokenBucketLimit(Rate(100), depth=10, now_ns=START)
    ticket = deeper.take(10, START)
    deeper.set_depth(20, START + NS)
    deeper.settle(ticket, 0, START + NS)
    assert 10 == deeper.count(START + NS)


def test_a_shallower_bucket_holds_less():
    """What is above the new depth runs over, and another depth counts at once."""
    limit = TokenBucketLimit(Rate(1), depth=10, now_ns=START)
    limit.set_depth(4, START)
    assert (4, 4, None) == (limit.count(START), limit.cost_max, limit.when(5, START))
    limit.set_depth(5, START)
    assert (4, START + NS) == (limit.count(START), limit.when(5, START))


# A steady pace.


@given(RATES, st.sampled_from([0, SLACK, NS]), histories(RATES))
@settings(max_examples=300, deadline=None)
def test_a_pace_is_kept_but_for_slack_and_the_last_cost(rate, slack, history):
    """The costs of the starts in any stretch are the rate, over a slack more, and the last of them at most."""

    def check(starts, rates) -> None:
        last, total = starts[-1], starts[-1].cost
        for start in reversed(starts[:-1]):
            total += start.cost
            assert total <= rates.between(start.time - slack, last.time) + last.cost

    play(PacedLimit(rate, slack_ns=slack), rate, history, check)


@pytest.mark.parametrize(("change", "due"), [(Rate(1), 6), (Rate(5), 2), (Rate(2), Fraction(7, 2))])
def test_what_is_not_paid_for_is_paid_for_at_the_new_rate(change, due):
    """After a second of a heavy start, five permits are open, whatever the rate is then."""
    limit = PacedLimit(Rate(1), slack_ns=SLACK)
    ticket = limit.take(6, START)
    limit.set_rate(Rate(0), START + NS)
    assert (None, 0) == (limit.when(1, START + NS), limit.count(START + NS))
    assert not limit.is_idle(START + 9 * NS)
    limit.set_rate(change, START + NS)
    assert START + due * NS == limit.when(1, START + NS)
    limit.settle(ticket, 6, START + NS)
    assert START + due * NS == limit.when(1, START + NS)
    limit.settle(ticket, 0, START + NS)
    assert START + NS == limit.when(1, START + NS)


def test_of_the_last_start_alone_a_pace_gives_back():
    """What another has waited for is not given back; what was given back is not given back twice."""
    limit = PacedLimit(Rate(1), slack_ns=0)
    first = limit.take(1, START)
    second = limit.take(5, START + NS)
    limit.settle(first, 0, START + NS)
    assert START + 6 * NS == limit.when(1, START + NS)
    limit.settle(second, 3, START + NS)
    assert START + 4 * NS == limit.when(1, START + NS)
    limit.settle(second, 0, START + 2 * NS)
    assert START + 2 * NS == limit.when(1, START + 2 * NS)
    limit.settle(second, 0, START + 3 * NS)
    limit.settle(second, 3, START + 3 * NS)
    assert START + 4 * NS == limit.when(1, START + 3 * NS)


def test_a_heavy_start_needs_no_more_than_a_light_one():
    """Any cost is admitted as soon as the last start is paid for."""
    limit = PacedLimit(Rate(10), slack_ns=0)
    assert (None, True) == (limit.cost_max, limit.admits(1000, START))
    assert START + 300_000_000 == limit.when_after(3, 1000, START)


# Without limit, and without permits.


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: WindowLimit(rate),
        lambda rate: TokenBucketLimit(rate, depth=5, now_ns=START),
        lambda rate: PacedLimit(rate, slack_ns=SLACK),
    ],
    ids=["window", "bucket", "paced"],
)
def test_an_infinite_rate_admits_everything_and_counts_nothing(make):
    """What was taken before still counts afterwards, and what starts meanwhile costs nothing, also if it is settled."""
    limit = make(Rate(5, per=5))
    limit.take(5, START)
    limit.set_rate(INFINITE, START)
    assert UNLIMITED == limit.count(START) == limit.count_until(START, START + 1)
    assert limit.admits(1_000_000, START)
    assert START == limit.when(1_000_000, START) == limit.when_count(1_000_000, START)
    assert None is limit.cost_max
    ticket = limit.take(1000, START)
    limit.settle(ticket, 7, START)
    limit.set_rate(Rate(5, per=5), START)
    before = limit.when(1, START)
    assert 0 == limit.count(START)
    for cost in (7, 2000, 0):
        limit.settle(ticket, cost, START)
    assert before == limit.when(1, START) > START
    fresh = make(INFINITE)
    fresh.settle(fresh.take(9, START), 0, START)
    fresh.set_rate(Rate(5, per=5), START)
    assert fresh.admits(1, START)


@pytest.mark.parametrize(
    "limit",
    [
        WindowLimit(Rate(0)),
        PacedLimit(Rate(0), slack_ns=SLACK),
        QuotaLimit(0, period_of=lambda wall: (0, 1 << 70), wall_ns=lambda: 5),
    ],
    ids=["window", "paced", "quota"],
)
def test_without_permits_nothing_is_ever_admitted(limit):
    """No time is promised, and nothing is remembered."""
    assert not limit.admits(1, START)
    assert 0 == limit.count(START) == limit.count_until(START, START + 10**15)
    assert None is limit.when(1, START) is limit.when_count(1, START)
    assert limit.is_idle(START)


def test_a_bucket_without_rate_is_emptied_once():
    """What it holds may start; nothing comes after it."""
    limit = TokenBucketLimit(Rate(0), depth=2, now_ns=START)
    assert (START, None) == (limit.when_count(2, START), limit.when_count(3, START))
    limit.take(2, START)
    assert None is limit.when(1, START)
    assert 0 == limit.count_until(START, START + 10**15)


# Forecasts.


def simulate(limit, now: int, end: int, most: int) -> list[int]:
    """Start as early as may be, one permit each."""
    times = []
    while len(times) < most and (when := limit.when(1, now)) is not None and when < end:
        now = when
        limit.take(1, now)
        times.append(now)
    return times


@given(
    WHOLE_RATES,
    st.sampled_from(["window", "bucket", "paced"]),
    st.lists(st.tuples(STEPS, st.integers(1, 5)), max_size=6),
    st.integers(0, 3 * NS),
    st.integers(1, 40),
)
@settings(max_examples=300, deadline=None)
def test_forecasts_are_what_happens_if_everything_starts_at_once(rate, kind, past, ahead, count):
    """The n-th start from now, and how many there are before it, are as greedy starts make them."""

    def after_the_past():
        limit = {
            "window": lambda: WindowLimit(rate),
            "bucket": lambda: TokenBucketLimit(rate, depth=DEPTH, now_ns=START),
            "paced": lambda: PacedLimit(rate, slack_ns=SLACK),
        }[kind]()
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


# Costs on the numbered permits.


@given(RATES, st.sampled_from([1, SLACK, NS]), histories(RATES))
@settings(max_examples=300, deadline=None)
def test_costs_on_a_grid_keep_its_law(rate, slack, history):
    """The costs of the starts in any stretch are Phi(b) - Phi(a - slack) at most, and the last of them."""
    now, starts, rates = START, [], Rates(rate)
    grid = PermitGrid(rate, slack_ns=slack, now_ns=now)
    for action, value in history:
        if action == "advance":
            now += value
        elif action == "rate":
            grid.set_rate(value, now)
            rates.change(now, value)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            grid.settle(start.ticket, cost, now)
            start.cost = cost
        elif action in {"take", "wait"}:
            now = (grid.next_time(now) or now) if action == "wait" else now
            if grid.usable(now):
                grid.take()
                starts.append(Start(now, value, grid.charge(value)))
                total = value
                for start in reversed(starts[:-1]):
                    total += start.cost
                    assert total <= rates.between(start.time - slack, now) + value


def test_of_the_last_start_alone_a_grid_gives_back():
    """Only numbers come back that have not come up, and that nobody else waits behind."""
    grid = PermitGrid(Rate(1), slack_ns=0, now_ns=START)

    def start(cost: int, now: int) -> list[int]:
        assert grid.usable(now)
        grid.take()
        return grid.charge(cost)

    first = start(3, START)
    second = start(5, START + 3 * NS)
    for cost in (1, 1, 0):
        grid.settle(first, cost, START + 3 * NS)
    assert START + 8 * NS == grid.next_time(START + 3 * NS)
    grid.settle(second, 3, START + 3 * NS)
    assert START + 6 * NS == grid.next_time(START + 3 * NS)
    grid.settle(second, 0, START + 4 * NS)
    assert START + 5 * NS == grid.next_time(START + 4 * NS)
    grid.settle(second, 4, START + 4 * NS)
    assert START + 7 * NS == grid.next_time(START + 4 * NS)
    unlimited = PermitGrid(INFINITE, slack_ns=0, now_ns=START)
    unlimited.take()
    unlimited.settle(unlimited.charge(9), 1, START)
    assert UNLIMITED == unlimited.usable(START)


def granted(count: int) -> GrantedPermits:
    """Make permits of an authority whose clock is ours: one a second from now on."""
    clock = ServerClock()
    clock.assume(0, START)
    clock.hold(START)
    permits = GrantedPermits(clock, Rate(1), late_ns=600 * NS)
    permits.hold(START + number * NS for number in range(count))
    return permits


@given(
    st.integers(0, 12),
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(1, 6)),
            st.tuples(st.just("start"), st.integers(1, 6)),
            st.tuples(st.just("grant"), st.integers(1, 9)),
            st.tuples(st.just("settle"), st.tuples(st.integers(1, 3), st.integers(0, 9))),
        ),
        max_size=30,
    ),
)
@settings(max_examples=300, deadline=None)
def test_granted_permits_pay_for_every_cost(count, steps):
    """Each permit is held, was taken, or is owed; who owes starts nothing; the costs are covered by both."""
    permits, starts, known = granted(count), [], count
    now = START + 60 * NS
    for action, value in steps:
        if action == "grant":
            permits.hold(now - number for number in range(value))
            known += value
        elif action == "start" and permits.usable(now):
            permits.take()
            starts.append(Start(now, value, permits.charge(value)))
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            permits.settle(start.ticket, cost, now)
            start.cost = cost
        assert known == permits.held_count() + permits.taken_count
        assert not (permits.debt_count and permits.held_count())
        assert permits.taken_count + permits.debt_count >= sum(start.cost for start in starts)
        assert permits.debt_count >= 0


def test_what_is_owed_is_owed_by_the_last_alone():
    """Nobody is let off what another owes; without a limit nothing is owed."""
    permits = granted(2)
    permits.usable(START + 5 * NS)
    permits.take()
    first = permits.charge(1)
    permits.take()
    second = permits.charge(6)
    assert (5, 2) == (permits.debt_count, permits.taken_count)
    for cost in (1, 2, 0):
        permits.settle(first, cost, START)
    assert 6 == permits.debt_count
    permits.settle(second, 5, START)
    assert 5 == permits.debt_count
    permits.set_rate(INFINITE, START)
    free = permits.charge(9)
    permits.set_rate(Rate(1), START)
    permits.settle(free, 1, START)
    assert 5 == permits.debt_count
    permits.settle(second, 4, START)
    permits.hold([START] * 4)
    assert (0, 6, 0) == (permits.debt_count, permits.taken_count, permits.held_count())
