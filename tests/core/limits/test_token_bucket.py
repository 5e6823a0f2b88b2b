"""The law of a token bucket on random histories, including settled costs."""

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples
from .histories import DEPTH, NS, RATES, START, STEPS, histories, is_idle, play


GIVEN_BACK_TWICE = [("take", 1), ("take", 2), ("settle", (2, 0)), ("wait", 6), ("settle", (2, 0)), ("take", 2)]


def bucket(rate: Rate, depth: int = DEPTH) -> TokenBucketLimit:
    return TokenBucketLimit(rate, depth=depth, now_ns=START)


@example(Rate(1), GIVEN_BACK_TWICE)
@given(RATES, histories(RATES))
@examples(120)
def test_a_bucket_gives_no_more_than_its_depth_and_the_rate(rate, history):
    """Costs in any stretch are at most the depth plus the rate times it, exactly."""

    def check(starts, rates) -> None:
        last, total = starts[-1].time, 0
        for start in reversed(starts):
            total += start.cost
            assert total <= DEPTH + rates.between(start.time, last)

    play(bucket, rate, history, check)


@given(RATES, histories(RATES))
@examples(100)
def test_a_bucket_holds_what_a_fraction_would(rate, history):
    """Only a change of the rate rounds, by less than a nanosecond's worth."""
    limit = bucket(rate)
    now, content, changes = START, Fraction(DEPTH), 0
    for action, value in history:
        if action == "advance":
            now += value
            content = min(Fraction(DEPTH), content + limit.rate.per_second * value / NS)
        elif action == "rate":
            limit.change_to(bucket(value), now)
            changes += 1
        elif action in {"take", "wait"} and limit.admits(value, now):
            limit.take(value, now)
            content -= value
        assert limit.count(now) in {content.__floor__(), (content - Fraction(changes, 1000)).__floor__()}
        assert is_idle(limit, now) == (content == DEPTH) or changes


@given(RATES, st.integers(1, DEPTH), st.integers(1, 4), STEPS, STEPS, st.lists(RATES, max_size=2))
@examples(100)
def test_a_start_that_costs_nothing_after_all_was_never_there(rate, cost, before, first, later, rates):
    """A cost given back leaves the bucket as if it had not started, at once or after an overflow."""
    with_it, without = (bucket(rate) for _ in range(2))
    for limit in (with_it, without):
        limit.take(before, START)
    now = START + first
    if not with_it.admits(cost, now):
        return
    receipt = with_it.take(cost, now)
    for number, other in enumerate(rates):
        for limit in (with_it, without):
            limit.change_to(bucket(other), now + later * number // 2)
    now += later
    with_it.settle(receipt, 0, now)
    assert without.count(now) - bool(rates) <= with_it.count(now) <= without.count(now) <= DEPTH
    if not rates:
        assert without.when(DEPTH, now) == with_it.when(DEPTH, now)
    with_it.settle(receipt, 2, now)
    assert with_it.count(now) <= without.count(now)


def test_what_ran_over_before_the_rate_fell_is_not_given_back():
    """Tokens that overflowed before a fall of the rate are not given back."""
    limit = bucket(Rate(100), 10)
    receipt = limit.take(10, START)
    limit.change_to(bucket(Rate(1), 10), START + NS)
    limit.settle(receipt, 0, START + NS)
    assert 10 == limit.count(START + NS)
    deeper = bucket(Rate(100), 10)
    receipt = deeper.take(10, START)
    deeper.set_depth(20, START + NS)
    deeper.settle(receipt, 0, START + NS)
    assert 10 == deeper.count(START + NS)


def test_a_shallower_bucket_holds_less():
    """A smaller depth applies at once, and what is above it is lost."""
    limit = bucket(Rate(1), 10)
    limit.set_depth(4, START)
    assert (4, 4, None) == (limit.count(START), limit.cost_max, limit.when(5, START))
    limit.set_depth(5, START)
    assert (4, START + NS) == (limit.count(START), limit.when(5, START))
