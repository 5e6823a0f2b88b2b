"""A peer's estimate of the authority's clock, with two clocks that drift."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.clock import _STEP_NS, ServerClock

from .two_clocks import DELAYS, DRIFTS, MS, NOW_NS, NS, TwoClocks

WAITS = st.one_of(st.integers(0, 1000), st.integers(0, 300 * MS), st.sampled_from([NS, 60 * NS]))
EXCHANGES = st.lists(st.tuples(WAITS, DELAYS, DELAYS, DRIFTS), min_size=1, max_size=12)


@given(EXCHANGES)
@settings(max_examples=400, deadline=None)
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
@settings(max_examples=400, deadline=None)
def test_time_of_the_authority_has_surely_come(exchanges, ahead, drift):
    """A time that has come by the bounds has come by any clock that the authority may have."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, exchange_drift in exchanges:
        clocks.drift = exchange_drift
        clocks.run(wait)
        clocks.exchange(clock, out, back)
    wanted = clock.at(clocks.now_ns) + ahead
    when = clock.surely_after(wanted, clocks.now_ns)

    assert when >= clocks.now_ns
    assert clock.at(when) - clock.error_ns(when) >= wanted


@given(EXCHANGES, st.integers(0, 10 * NS))
@settings(max_examples=300, deadline=None)
def test_time_before_which_the_server_surely_is(exchanges, ahead):
    """Until that time the authority's clock cannot have passed the wanted one, and soon after it can."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, _ in exchanges:
        clocks.run(wait)
        clocks.exchange(clock, out, back)
    wanted = clock.at(clocks.now_ns) + clock.error_ns(clocks.now_ns) + ahead
    when = clock.surely_before(wanted, clocks.now_ns)

    assert when >= clocks.now_ns
    assert clock.at(when) + clock.error_ns(when) <= wanted
    later = when + ahead // 100_000 + 10
    assert clock.at(later) + clock.error_ns(later) > wanted


@given(EXCHANGES, st.integers(-10 * NS, 10 * NS))
@settings(max_examples=300, deadline=None)
def test_step_is_told_and_taken_in(exchanges, by):
    """A step beyond the bounds is noticed, and then the bounds contain the new time."""
    clocks, clock = TwoClocks(), ServerClock()
    for wait, out, back, _ in exchanges:
        clocks.run(wait)
        clocks.exchange(clock, out, back)
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


def test_measurement_replaces_an_assumption():
    """A measurement replaces an assumption without reporting a step, and the bounds contain the true time."""
    for ahead in (1_500_000, 30 * MS):
        clocks, clock = TwoClocks(ahead_ns=ahead), ServerClock()
        clock.assume(0, clocks.now_ns)
        clocks.run(NS // 4)
        is_same = clocks.exchange(clock, 500_000, 500_000)
        assert clocks.off(clock) <= 0, ahead
        assert is_same, ahead


def test_assumption_is_exact_and_forgotten_is_unknown():
    """An assumed time is exact, and a forgotten one unknown."""
    clock = ServerClock()
    clock.assume(7, NOW_NS)
    assert (True, NOW_NS + 7, 0, NOW_NS) == (
        clock.is_known, clock.at(NOW_NS), clock.error_ns(NOW_NS), clock.here(NOW_NS + 7)
    )  # fmt: skip
    clock.forget()
    assert not clock.is_known


def test_error_that_is_held_grows_on_with_the_next_measurement():
    """A held error does not grow until the next measurement."""
    clock = ServerClock()
    clock.measure(NOW_NS, NOW_NS, NOW_NS + MS)
    before = clock.error_ns(NOW_NS + 10 * NS)
    clock.hold(NOW_NS + 10 * NS)
    clock.hold(NOW_NS + 15 * NS)
    held = clock.error_ns(NOW_NS + 20 * NS)
    clock.measure(NOW_NS + 20 * NS, NOW_NS + 20 * NS, NOW_NS + 20 * NS + 200 * MS)

    assert before == held
    assert held < clock.error_ns(NOW_NS + 20 * NS + 200 * MS)
