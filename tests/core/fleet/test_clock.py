"""A peer's estimate of the authority's clock, with two clocks that drift."""

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.clock import _STEP_NS, ServerClock

from ...helpers import examples
from .two_clocks import DELAYS, DRIFTS, MS, NS, TwoClocks

WAITS = st.one_of(st.integers(0, 1000), st.integers(0, 300 * MS), st.sampled_from([NS, 60 * NS]))
EXCHANGES = st.lists(st.tuples(WAITS, DELAYS, DELAYS, DRIFTS), min_size=1, max_size=12)


def after(exchanges, *, drifts=False):
    """Return two clocks and the estimate of one of them after some exchanges."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, drift in exchanges:
        if drifts:
            clocks.drift = drift
        clocks.run(wait)
        clocks.exchange(clock, out, back)
    return clocks, clock


@given(EXCHANGES)
@examples(160)
def test_bounds_hold_the_truth(exchanges):
    """Bounds contain the true time, whatever the delays of messages, at drifts of up to 500 parts per million."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, drift in exchanges:
        clocks.drift = drift
        clocks.run(wait)
        if clock.is_known:
            assert clocks.off(clock) <= 0
        assert clocks.exchange(clock, out, back), "no step was made"
        assert clocks.off(clock) <= 0


@given(EXCHANGES, st.integers(0, 300 * MS), DRIFTS)
@examples(160)
def test_time_of_the_authority_has_surely_come(exchanges, ahead, drift):
    """A time that has come by the bounds has come by any clock that the authority may have."""
    clocks, clock = after(exchanges, drifts=True)
    wanted = clock.at(clocks.now_ns) + ahead
    when = clock.surely_after(wanted, clocks.now_ns)

    assert when >= clocks.now_ns
    assert clock.at(when) - clock.error_ns(when) >= wanted


@given(EXCHANGES, st.integers(0, 10 * NS))
@examples(120)
def test_time_before_which_the_server_surely_is(exchanges, ahead):
    """Until that time the authority's clock cannot have passed the wanted one, and soon after it can."""
    clocks, clock = after(exchanges)
    wanted = clock.at(clocks.now_ns) + clock.error_ns(clocks.now_ns) + ahead
    when = clock.surely_before(wanted, clocks.now_ns)

    assert when >= clocks.now_ns
    assert clock.at(when) + clock.error_ns(when) <= wanted
    later = when + ahead // 100_000 + 10
    assert clock.at(later) + clock.error_ns(later) > wanted


@given(EXCHANGES, st.integers(-10 * NS, 10 * NS))
@examples(120)
def test_step_is_told_and_taken_in(exchanges, by):
    """A step beyond the bounds is noticed, and then the bounds contain the new time."""
    clocks, clock = after(exchanges)
    error = clock.error_ns(clocks.now_ns)
    clocks.step(by)
    is_same = clocks.exchange(clock, 100_000, 150_000)
    bounds = 2 * (error + 130_000) + _STEP_NS

    if abs(by) > bounds:
        assert not is_same
    if abs(by) <= _STEP_NS:
        assert is_same
    if not is_same:
        assert clocks.off(clock) <= 0
        assert clock.error_ns(clocks.now_ns) <= 130_000


def test_better_sample_replaces_a_worse_one():
    """A slow answer does not replace a faster earlier one, until that has become less precise."""
    clocks, clock = TwoClocks(), ServerClock()
    log = []
    for wait, delay in ((0, 10 * MS), (NS, MS), (NS, 2 * MS), (10 * NS, 2 * MS)):
        clocks.run(wait)
        clocks.exchange(clock, delay // 2, delay // 2)
        log.append(clock.error_ns(clocks.now_ns) // 10_000)

    assert [500, 50, 100, 100] == log


def test_forgotten_time_is_unknown_and_no_step_beside_the_next_measurement():
    """A forgotten time is unknown, and the next measurement is taken as it comes, without reporting a step."""
    clocks, clock = TwoClocks(), ServerClock()
    assert not clock.is_known
    clocks.exchange(clock, MS, MS)
    assert clock.is_known
    clock.forget()
    assert not clock.is_known
    clocks.step(10 * NS)
    assert clocks.exchange(clock, 50 * MS, 50 * MS)
    assert clock.is_known
    assert clocks.off(clock) <= 0
