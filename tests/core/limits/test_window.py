"""The law of a window on random histories, including settled costs."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.effects import begin
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples
from .histories import NS, READING, SLACK, START, WHOLE_RATES, Start, histories, play


@given(WHOLE_RATES, st.sampled_from([0, SLACK]), histories())
@examples(120)
def test_no_window_holds_more_than_its_permits(rate, margin, history):
    """Whenever something starts, the known costs in the last window are at most N."""

    def check(starts, _) -> None:
        begin = starts[-1].time - int(rate.per * NS) - margin
        assert sum(start.cost for start in starts if start.time >= begin) <= rate.permits

    play(lambda rate: WindowLimit(rate, margin_ns=margin), rate, history, check)


@given(WHOLE_RATES, histories(WHOLE_RATES))
@examples(100)
def test_what_a_window_holds_counts_under_another_rate(rate, history):
    """Under another rate a start is admitted exactly if the starts still in the window leave room for it."""
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
            limit.change_to(WindowLimit(value), now)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            limit.settle(start.receipt, cost, now)
            start.cost = cost
        elif action in {"take", "wait"}:
            assert (room >= value) == limit.admits(value, now)
            if room >= value:
                starts.append(Start(now, value, limit.take(value, now)))


@given(
    st.sampled_from([Rate(5), Rate(9000, per=2), Rate(10, per=7)]),
    st.lists(
        st.tuples(st.just("take"), st.integers(1, 3))
        | st.tuples(st.just("advance"), st.sampled_from([NS // 10_000, NS // 10, NS // 3]))
        | st.tuples(st.just("settle"), st.tuples(st.integers(1, 4), st.integers(0, 4)))
        | st.tuples(st.just("rate"), WHOLE_RATES)
        | st.tuples(st.sampled_from(["effect", "defer", "begin"]), st.integers(1, 4)),
        min_size=10,
        max_size=60,
    ),
    st.sampled_from([NS // 50, NS, 3 * NS]),
)
@example(  # a start that shares its entry with one before the edge moves that over it
    Rate(9000, per=2), [("advance", NS - 500_000), *[("take", 1), ("advance", 100_000)] * 8], 3 * NS
)
@example(  # a shorter window has let go of a start that the longer one would keep beyond the interval
    Rate(10, per=2),
    [*[("advance", NS // 5 * 6), ("take", 1)] * 2, ("rate", Rate(10)), ("rate", Rate(10, per=2)), ("advance", 1)],
    3 * NS,
)
@example(  # the second start takes effect late, and keeps the third one in the window
    Rate(10, per=2),
    [*[("take", 1), ("advance", 1)] * 2, ("defer", 1), ("take", 1), ("advance", NS // 2 * 3), ("begin", 1)],
    3 * NS,
)
@example(Rate(5, per=2), [("take", 1), ("advance", NS // 2 * 3), ("effect", 1)], 3 * NS)
@example(Rate(5, per=2), [("take", 1), ("advance", NS // 2 * 3), ("defer", 1), ("begin", 1)], 3 * NS)
@examples(160)
def test_question_about_the_rest_of_an_interval_has_the_same_answer_whatever_was_asked_before(rate, history, interval):
    """A window that is asked at each step answers like one that has only just read the same starts."""
    limit, now, receipts, effects = WindowLimit(rate), START, [], []
    for action, value in history:
        if action == "advance":
            now += value
        elif action == "begin":
            begin(effects, now)
            effects.clear()
        elif action == "rate":
            limit.change_to(WindowLimit(value), now)
            continue  # it may change again before a question
        elif action == "settle" and receipts:
            limit.settle(receipts[-min(value[0], len(receipts))], value[1], now)
        elif action == "effect" and receipts:
            limit.take_effect(receipts[-min(value, len(receipts))], now)
        elif action == "defer" and receipts and not effects:
            limit.defer(receipts[-min(value, len(receipts))], effects)
        elif action == "take" and limit.admits(value, now):
            receipts.append(limit.take(value, now))
        end = now - now % interval + interval
        count = limit.count_until(now, end)
        if (packed := limit.pack()) is not None:  # else a start has no time
            fresh = limit.unused()
            fresh.unpack(packed, now)
            assert count == fresh.count_until(now, end)


@pytest.mark.parametrize("permits", [4096, 4097, 9000])
@pytest.mark.parametrize("gap", [0, 1])
def test_a_large_window_is_exact_and_nearly_full(permits, gap):
    """With merged entries of the log a large window is never exceeded, and nearly full."""
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
    """A start that has left the window may be settled to any cost."""
    limit = WindowLimit(Rate(3))
    receipt = limit.take(3, START)
    later = START + NS + READING
    assert (0, 3) == (limit.count(later - 1), limit.count(later))
    limit.settle(receipt, 0, later)
    limit.settle(receipt, 9, later)
    assert 3 == limit.count(later)


def test_a_window_settled_to_more_than_it_holds_waits_until_that_has_left_it():
    """A window settled above its limit admits nothing until that has left it."""
    limit = WindowLimit(Rate(3))
    receipt = limit.take(1, START)
    limit.settle(receipt, 8, START + 1)
    assert -5 == limit.count(START + 1)
    assert START + NS + READING == limit.when(1, START + 1) == limit.when(3, START + 1)
    assert None is limit.when(4, START + 1)


def test_a_late_clock_counts_as_the_latest_time():
    """A start with an earlier time than the last one counts as at that one's time."""
    limit = WindowLimit(Rate(2))
    limit.take(1, START)
    limit.take(1, START - 5)
    assert (0, 2) == (limit.count(START + NS + READING - 1), limit.count(START + NS + READING))
