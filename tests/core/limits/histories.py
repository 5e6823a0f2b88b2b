"""Random histories of starts under a limit, and checks of them."""

import copy
from fractions import Fraction

from hypothesis import strategies as st

from ratelimited_executor._core.permits.rates import Rate

NS = 1_000_000_000
START = 1_704_067_200 * NS
SLACK = 20_000_000
DEPTH = 7
READING = 1000  # nanoseconds by which a window is longer than its setting
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
    """Draw events for a limit: starts, corrections of their costs, idle times, other rates."""
    step = st.one_of(
        st.tuples(st.just("advance"), STEPS),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 6)),
        st.tuples(st.just("settle"), st.tuples(st.integers(1, 4), st.integers(0, 12))),
        *(st.tuples(st.just("rate"), st.one_of(rates, st.just(Rate(0)))) for rates in others),
    )
    return st.lists(step, max_size=40)


def is_idle(limit, now: int) -> bool:
    """Return True if a new limit would behave the same."""
    return limit.idle_at(now) == now


class Start:
    """One start, with its cost as known so far."""

    def __init__(self, time: int, cost: int, receipt) -> None:
        self.time, self.cost, self.receipt = time, cost, receipt


class Rates:
    """The exact integral of a rate."""

    def __init__(self, rate: Rate) -> None:
        self.changes = [(0, rate.per_second)]

    def change(self, time: int, rate: Rate) -> None:
        self.changes.append((time, rate.per_second))

    def between(self, begin: int, end: int) -> Fraction:
        """Return the permits that come up in a stretch of time."""
        ends = [*(time for time, _ in self.changes[1:]), end]
        return sum(
            (
                ratio * max(0, min(end, until) - max(begin, since)) / NS
                for (since, ratio), until in zip(self.changes, ends, strict=True)
            ),
            start=Fraction(0),
        )


def play(make, rate: Rate, history, check) -> None:
    """Play a history of a limit that ``make(rate)`` returns; call ``check(starts, rates)`` after each start, with the costs known by then."""
    limit, now, starts, rates = make(rate), START, [], Rates(rate)
    for action, value in history:
        if action == "advance":
            now += value
        elif action == "rate":
            limit.change_to(make(value), now)
            rates.change(now, value)
            assert_exact(limit, now)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            limit.settle(start.receipt, cost, now)
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
    """Assert that all forecasts come true if nothing else starts."""
    assert limit.when(0, now) == limit.when_after(0, 0, now)
    for cost in (0, 1, 2, 5):
        when = limit.when(cost, now)
        assert (when == now) == limit.admits(cost, now)
        if when is not None and when > now:
            later = copy.deepcopy(limit)
            assert not later.admits(cost, when - 1)
            assert later.admits(cost, when)
