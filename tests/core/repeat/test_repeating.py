"""The next tick of a repetition, as the policy for missed ticks names it."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.repeat.repeating import MissedTick, next_tick

from ...helpers import examples


@given(
    st.sampled_from([0.0, 3.7, 1e5 + 0.1]),
    st.sampled_from([0.1, 0.25, 1.0, 1 / 3, 7.0]),
    st.integers(0, 1000),
    st.one_of(st.integers(0, 50).map(float), st.floats(0, 50)),
    st.sampled_from(MissedTick),
)
@examples(200)
def test_next_tick_is_the_one_its_policy_names(first, period, last, later, missed):
    """BURST gives the next number, SKIP the first not yet past, COALESCE the newest due or the next to come."""
    now = first + last * period + later * period
    tick = next_tick(first, period, last, now, missed)
    assert first + tick.number * period == tick.due
    assert tick.number > last

    def due(number):
        return first + number * period

    if missed is MissedTick.BURST:
        assert last + 1 == tick.number
    elif missed is MissedTick.SKIP:
        assert tick.due >= now
        assert tick.number == last + 1 or due(tick.number - 1) < now or math.isclose(due(tick.number - 1), now)
    elif due(last + 1) <= now:
        assert tick.due <= now or math.isclose(tick.due, now)
        assert due(tick.number + 1) > now or math.isclose(due(tick.number + 1), now)
    else:
        assert last + 1 == tick.number
