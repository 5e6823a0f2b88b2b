"""The law of a steady pace on random histories, including settled costs."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples
from .histories import NS, RATES, SLACK, START, histories, is_idle, play


@given(RATES, st.sampled_from([0, SLACK, NS]), histories(RATES))
@examples(120)
def test_a_pace_is_kept_but_for_slack_and_the_last_cost(rate, slack, history):
    """Costs in any stretch are at most the rate over the stretch and the slack, plus the last cost."""

    def check(starts, rates) -> None:
        last, total = starts[-1], starts[-1].cost
        for start in reversed(starts[:-1]):
            total += start.cost
            assert total <= rates.between(start.time - slack, last.time) + last.cost

    play(lambda rate: PacedLimit(rate, slack_ns=slack), rate, history, check)


@pytest.mark.parametrize(("change", "due"), [(Rate(1), 6), (Rate(5), 2), (Rate(2), Fraction(7, 2))])
def test_what_is_not_paid_for_is_paid_for_at_the_new_rate(change, due):
    """What is not yet paid of a heavy start is paid at the new rate."""
    limit = PacedLimit(Rate(1), slack_ns=SLACK)
    receipt = limit.take(6, START)
    limit.change_to(PacedLimit(Rate(0), slack_ns=SLACK), START + NS)
    assert (None, 0) == (limit.when(1, START + NS), limit.count(START + NS))
    assert not is_idle(limit, START + 9 * NS)
    limit.change_to(PacedLimit(change, slack_ns=SLACK), START + NS)
    assert START + due * NS == limit.when(1, START + NS)
    limit.settle(receipt, 6, START + NS)
    assert START + due * NS == limit.when(1, START + NS)
    limit.settle(receipt, 0, START + NS)
    assert START + NS == limit.when(1, START + NS)


def test_of_the_last_start_alone_a_pace_gives_back():
    """A pace gives back only the last start's cost, once, and not if another has waited for it."""
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
    """A start of any cost is admitted as soon as the last one is paid for."""
    limit = PacedLimit(Rate(10), slack_ns=0)
    assert (None, True) == (limit.cost_max, limit.admits(1000, START))
    assert START + 300_000_000 == limit.when_after(3, 1000, START)
