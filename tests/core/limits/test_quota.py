"""Quotas by the wall clock: no period exceeds its quota, and forecasts know what was used."""

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.quota import PERIOD_COUNT, QuotaLimit
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples
from .histories import is_idle

NS = 1_000_000_000
START = 1_704_067_200 * NS


def hours(wall: int) -> tuple[int, int]:
    begin = wall // 3600 * 3600
    return begin, begin + 3600


class Wall:
    """A wall clock that steps."""

    now = 0

    def __call__(self) -> int:
        return self.now


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(-20_000, 20_000)),
            st.tuples(st.just("advance"), st.integers(1, 4000)),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("settle"), st.tuples(st.integers(1, 6), st.integers(0, 6))),
        ),
        max_size=60,
    ),
    st.sampled_from([0, 10]),
)
@examples(120)
def test_no_period_of_the_wall_clock_sees_more_than_the_quota(steps, margin):
    """However the clock steps, no period exceeds its quota, and one that comes again continues where it was."""
    wall = Wall()
    wall.now = 10**6
    limit = QuotaLimit(5, period_of=hours, wall_ns=wall, margin_ns=margin)
    now, starts = START, []
    for action, value in steps:
        if action in {"advance", "step"}:
            now += value if action == "advance" else 0
            wall.now = max(0, wall.now + value)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            limit.settle(start[2], cost, now)
            start[1] = cost
        period = hours(wall.now)
        used = sum(cost for time, cost, _ in starts if hours(time) == period)
        assert limit.count(now) == (5 - used if wall.now < period[1] - margin else min(0, 5 - used))
        assert is_idle(limit, now) == (used == 0)
        when, begin = limit.when(3, now), wall.now
        wall.now = begin + when - now
        assert limit.admits(3, when)
        if when > now:
            wall.now -= 1
            assert not limit.admits(3, when - 1)
        wall.now = begin
        if action == "take" and limit.admits(value, now):
            starts.append([wall.now, value, limit.take(value, now)])


def test_quotas_of_the_periods_seen_last_are_remembered():
    """The last sixteen periods are remembered, and a settlement of earlier ones is ignored."""
    wall = Wall()
    limit = QuotaLimit(1, period_of=hours, wall_ns=wall)
    wall.now = 10**9
    receipt = limit.take(1, START)
    for number in range(PERIOD_COUNT):
        wall.now = number * 3600
        assert 1 == limit.count(START)
        limit.take(1, START)
    for number in range(PERIOD_COUNT):
        wall.now = number * 3600
        assert 0 == limit.count(START)
    limit.settle(receipt, 0, START)
    wall.now = 10**9
    assert 1 == limit.count(START)


def test_forecasts_of_a_quota_know_what_was_used_of_periods_to_come():
    """After a step back, forecasts do not promise what was used of coming periods."""
    wall = Wall()
    limit = QuotaLimit(5, period_of=hours, wall_ns=wall)
    limit.change_to(QuotaLimit(5, period_of=hours, wall_ns=wall), START)
    assert 5 == limit.cost_max
    wall.now = 3700
    limit.take(4, START)
    wall.now = 100
    limit.take(3, START)
    assert [START, START, START + 3500, START + 7100, START + 10_700] == [
        limit.when_count(count, START) for count in (1, 2, 3, 4, 9)
    ]
    assert START + 7100 == limit.when(3, START) == limit.when_after(3, 2, START)
    assert START == limit.when_after(0, 0, START)
    assert None is limit.when(6, START)
    assert [2, 2, 3, 8] == [limit.count_until(START, START + ahead) for ahead in (1, 3500, 3501, 7101)]
