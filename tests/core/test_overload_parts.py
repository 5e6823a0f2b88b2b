"""What is dropped, how a rate adapts, when something is tried again, and orders in which nobody starves."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core import dropping
from ratelimited_executor._core.adaptive import Adaptive, AdaptiveControl
from ratelimited_executor._core.dropping import DropIndex
from ratelimited_executor._core.fair import Fair
from ratelimited_executor._core.ordering import Ageing, TaskView
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._core.records import KeyOptions, Options
from ratelimited_executor._core.retries import Attempts, Retry

# What is dropped.


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(-2, 2), st.integers(0, 5), st.sampled_from(["a", "b", None])),
            st.tuples(st.just("add"), st.integers(-2, 2), st.integers(0, 5), st.sampled_from(["a", "b", None])),
            st.tuples(st.just("discard"), st.integers(0, 1000), st.none(), st.none()),
        ),
        max_size=60,
    ),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
)
@settings(max_examples=300, deadline=None)
def test_what_is_dropped_is_what_a_sorted_list_begins_with(record_class, steps, is_lowest_first, is_by_key, wanted):
    """The least important, of those the one due last; or else the first to be due: of all and of each key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropping, "_SPARE_COUNT", 1)
        index = DropIndex(is_lowest_first=is_lowest_first, is_by_key=is_by_key)
        waiting: dict = {}

        def ranked(key) -> list:
            return [
                record
                for record in sorted(waiting, key=waiting.get)
                if key is None or not is_by_key or record.key == key
            ]

        for number, (action, value, due, key) in enumerate(steps):
            if action == "add":
                record = record_class(f"r{number}", due=float(due))
                record._options = Options(priority=value, key=key)
                index.add(record)
                index.add(record)
                waiting[record] = (value, -due, -number) if is_lowest_first else (due, number)
            elif waiting:
                record = list(waiting)[value % len(waiting)]
                index.discard(record)
                index.discard(record)
                del waiting[record]
            assert len(waiting) == index.live_count
            for key in (None, "a", "b"):
                assert ranked(key)[:wanted] == index.firsts(wanted, key)
                assert next(iter(ranked(key)), None) is index.first(key)
                count = sum(record.key == key for record in waiting) if is_by_key and key is not None else 0
                assert count == index.key_count(key)
            for record in waiting:
                assert [is_lowest_first and record.priority > priority for priority in (-1, 0)] == [
                    index.spares(record, priority) for priority in (-1, 0)
                ]


def test_an_index_is_as_large_as_what_waits(record_class):
    """The entries of tasks that have gone are removed when they are the larger part."""
    index = DropIndex(is_lowest_first=True, is_by_key=True)
    records = [record_class(due=float(number)) for number in range(1000)]
    for record in records:
        record._options = Options(key="a")
        index.add(record)
    for record in records[:990]:
        index.discard(record)
    assert len(index._all._entries) <= 2 * 10 + 64
    assert records[:-11:-1] == index.firsts(100)
    for record in records[990:]:
        index.discard(record)
    assert {} == index._by_key


def test_a_task_that_was_never_there_is_not_missed(record_class):
    """Tasks without options, or with a key alone, may start without having been added."""
    index = DropIndex(is_lowest_first=True, is_by_key=True)
    plain, keyed = record_class(), record_class()
    keyed._options = KeyOptions("a")
    index.discard(plain)
    index.discard(keyed)
    assert (0, None, []) == (index.live_count, index.first("a"), index.firsts(2, "a"))


# A rate that adapts.

RULES = Adaptive(floor=2, ceiling=100, increase=5, decrease=0.5, period=1)


def test_a_rate_rises_by_steps_and_falls_by_parts():
    """An overload halves it, once in a period; a period without any adds a step; both stay within the bounds."""
    control = AdaptiveControl(RULES, 0.0)
    assert 50 == control.overloaded(Fraction(100), 0.1)
    assert 50 == control.overloaded(Fraction(50), 1.0)
    assert 25 == control.overloaded(Fraction(50), 1.1)
    assert 2 == control.overloaded(Fraction(3), 9.0)
    assert 4 == control.overload_count
    for now, started, rate, wanted in [
        (9.9, 1000, 10, 10),  # the period has not passed
        (10.0, 1000, 10, 10),  # it has seen an overload
        (11.0, 2000, 10, 15),
        (12.0, 2009, 15, 15),  # not used enough
        (13.0, 2019, 15, 20),
        (13.5, 3000, 20, 20),
        (15.0, 3000, 99, 100),
    ]:
        assert wanted == control.step(Fraction(rate), now, used_count=started, done_count=started)


def test_a_rate_at_which_nothing_returns_does_not_rise():
    """Starts alone say nothing of how the other side fares."""
    control = AdaptiveControl(RULES, 0.0)
    assert 10 == control.step(Fraction(10), 1.0, used_count=10, done_count=0)
    assert 15 == control.step(Fraction(10), 2.0, used_count=20, done_count=1)


@given(
    st.lists(st.tuples(st.sampled_from(["overload", "step"]), st.floats(0, 3), st.integers(0, 200)), max_size=40),
    st.fractions(min_value=0, max_value=200, max_denominator=10),
)
@settings(max_examples=200, deadline=None)
def test_a_rate_stays_within_its_bounds_and_changes_once_a_period(events, rate):
    """Whatever comes, two steps down are a period apart, and so are two steps up."""
    control = AdaptiveControl(RULES, 0.0)
    rate, now, started = control.bounded(rate), 0.0, 0
    changes: dict[int, float] = {}
    for event, ahead, count in events:
        now, started, before = now + ahead, started + count, rate
        if event == "overload":
            rate = control.overloaded(rate, now)
            assert rate in (before, control.bounded(before / 2))
        else:
            rate = control.step(rate, now, used_count=started, done_count=started)
            assert rate in (before, control.bounded(before + 5))
        assert 2 <= rate <= 100
        if rate != before:
            direction = 1 if rate > before else -1
            assert now - changes.get(direction, -math.inf) >= 1
            changes[direction] = now


@pytest.mark.parametrize(
    "rules", [{"increase": 1.1, "decrease": 0.85}, {"increase": 1e-7, "decrease": 0.999_999}], ids=str
)
def test_a_rate_is_a_plain_number_however_many_steps_it_has_taken(rules):
    """Of twelve digits at most, so that its size is bounded; and no step is lost by that."""
    control = AdaptiveControl(Adaptive(floor=1, ceiling=50, **rules), 0.0)
    rate, now = Fraction(10), 0.0
    for index in range(20_000):
        now, before = now + 1, rate
        if index % 7 == 3:
            rate = control.overloaded(rate, now)
            assert rate == 1 or float(rate) == pytest.approx(float(before) * rules["decrease"], rel=1e-11)
        else:
            rate = control.step(rate, now, used_count=index * 100, done_count=index * 100)
            assert rate == 50 or float(rate - before) in (0, pytest.approx(rules["increase"], rel=1e-3))
        assert len(str(rate.denominator)) <= 13
        assert str(Rate(rate)) == f"{float(rate)!r}/s".replace(".0/", "/")


def test_two_that_share_a_bottleneck_come_to_equal_parts():
    """Of whatever height they begin with: both lose a part of what they have, and gain alike."""
    controls = [AdaptiveControl(RULES, 0.0) for _ in range(2)]
    rates = [Fraction(90), Fraction(4)]
    for second in range(1, 400):
        if sum(rates) > 100:
            rates = [control.overloaded(rate, second) for control, rate in zip(controls, rates, strict=True)]
        else:
            count = 1000 * second
            rates = [
                control.step(rate, second, used_count=count, done_count=count)
                for control, rate in zip(controls, rates, strict=True)
            ]
    assert abs(rates[0] - rates[1]) <= 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"floor": "1"}, TypeError),
        ({"floor": True}, TypeError),
        ({"ceiling": None}, TypeError),
        ({"increase": []}, TypeError),
        ({"floor": 0}, ValueError),
        ({"ceiling": math.inf}, ValueError),
        ({"period": math.nan}, ValueError),
        ({"ceiling": 0.5}, ValueError),
        ({"decrease": 1}, ValueError),
        ({"decrease": 0}, ValueError),
    ],
)
def test_rules_out_of_range_are_refused(changes, error):
    """Each argument is a finite number > 0, and they fit each other."""
    with pytest.raises(error, match=f"^{next(iter(changes))} must"):
        Adaptive(**({"floor": 1, "ceiling": 10} | changes))


def test_rules_tell_of_themselves():
    """A step is a hundredth of the ceiling unless said otherwise."""
    assert "Adaptive(floor=1, ceiling=50, increase=0.5, decrease=0.5, period=1)" == repr(Adaptive(floor=1, ceiling=50))


# Another attempt.


@given(
    st.integers(1, 5000),
    st.floats(0, 1),
    st.floats(1e-3, 1e308),
    st.floats(1, 1e6),
)
@settings(max_examples=300, deadline=None)
def test_a_pause_is_drawn_from_zero_to_its_bound(number, drawn, base, factor):
    """The bound doubles with each retry, up to the cap, however many there are."""
    retry = Retry(base=base, cap=min(base * factor, 1.7e308))
    assert 0 <= retry.pause(number, drawn) <= retry.pause(number, 1.0) <= retry.cap
    assert base == retry.pause(1, 1.0)
    assert retry.pause(number, 1.0) in (retry.cap, 2 * retry.pause(max(1, number - 1), 1.0), base)


class Broken(Exception):
    """A failure."""


@pytest.mark.parametrize(
    ("on", "wanted"),
    [
        ((), (False, False)),
        (Broken, (True, False)),
        ((OSError, Broken), (True, False)),
        (lambda error: "timeout" in str(error), (False, True)),
        (BaseException, (True, True)),
    ],
    ids=["nothing", "class", "classes", "function", "all"],
)
def test_failures_are_told_apart(on, wanted):
    """By their classes or by a function."""
    retry = Retry(on=on)
    assert wanted == tuple(retry.wants(error) for error in (Broken(), ValueError("timeout")))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"attempts": 1.0}, TypeError),
        ({"attempts": True}, TypeError),
        ({"attempts": 0}, ValueError),
        ({"base": "1"}, TypeError),
        ({"base": True}, TypeError),
        ({"base": 0}, ValueError),
        ({"cap": math.inf}, ValueError),
        ({"cap": 0.5}, ValueError),
        ({"on": int}, TypeError),
        ({"on": "OSError"}, TypeError),
        ({"on": (OSError, "x")}, TypeError),
        ({"on": (OSError, lambda error: True)}, TypeError),
        ({"on": (OSError, (ValueError,))}, TypeError),
        ({"on": None}, TypeError),
    ],
)
def test_a_policy_out_of_range_is_refused(arguments, error):
    """Numbers within their ranges; classes of exceptions, or one function."""
    with pytest.raises(error, match=f"^{next(iter(arguments))} must"):
        Retry(**arguments)


def test_a_policy_tells_of_itself():
    """And the attempts of a task begin with none."""
    retry = Retry(3, base=0.5, on=OSError)
    assert "Retry(3, base=0.5, cap=60, on=<class 'OSError'>)" == repr(retry)
    attempts = Attempts(retry)
    assert (retry, 0, None) == (attempts.policy, attempts.count, attempts.first)


# Ageing.


def view(priority, due, arrival: int) -> TaskView:
    return TaskView("x", priority, due, is_repeating=False, is_immediate=False, arrival=arrival)


@given(
    st.sampled_from([0.25, 1, 60, 3600]),
    st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 10_000)), min_size=2, max_size=12),
    st.sampled_from([0, 1_704_067_200]),
)
@settings(max_examples=300, deadline=None)
def test_nobody_waits_for_those_that_come_too_late(seconds, tasks, epoch):
    """A task of priority p due at d starts before all of priority q that are due after d + seconds x (q - p)."""
    order = Ageing(seconds)
    views = [view(priority, float(epoch + due), arrival) for arrival, (priority, due) in enumerate(tasks)]
    keys = {one: order(one) for one in views}
    for one, other in itertools.permutations(views, 2):
        if other.due > one.due + seconds * (other.priority - one.priority):
            assert keys[one] < keys[other]
        elif other.priority == one.priority and other.due == one.due:
            assert (keys[one] < keys[other]) == (one.arrival < other.arrival)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [("1", TypeError), (True, TypeError), (None, TypeError), (0, ValueError), (-1, ValueError), (math.inf, ValueError),
     (math.nan, ValueError)],
)  # fmt: skip
def test_seconds_out_of_range_are_refused(seconds, error):
    """They are a finite number > 0."""
    with pytest.raises(error, match="^seconds must"):
        Ageing(seconds)


def test_ageing_tells_of_itself():
    """And of its seconds."""
    assert ("Ageing(90)", 90.0) == (repr(Ageing(90)), Ageing(90).seconds)


# Shares.


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan, "1", True, None])
def test_a_weight_that_is_no_weight_is_refused(weight):
    """Weights are numbers from, in a mapping and from a function."""
    with pytest.raises(ValueError, match="numbers from"):
        Fair(weights={"f": weight})
    with pytest.raises(ValueError, match="numbers from"):
        Fair(weights=lambda key: weight).weight("f")


@pytest.mark.parametrize("arguments", [{"by": 3}, {"weights": 3}, {"weights": [("f", 1)]}])
def test_a_wrong_type_is_refused(arguments):
    """Arguments are functions or mappings."""
    with pytest.raises(TypeError, match="must be a"):
        Fair(**arguments)


def test_an_order_tells_of_itself():
    """Weights default to 1, and functions can be wrapped."""
    assert ("Fair()", True, None) == (repr(Fair()), Fair().is_even, Fair().by)
    fair = Fair(len, weights={"f": 2})
    assert (f"Fair(by={len!r}, weights={{'f': 2.0}})", False) == (repr(fair), fair.is_even)
    assert (2.0, 1.0, 1.0) == (fair.weight("f"), fair.weight("g"), Fair().weight("f"))
    wrapped = Fair(len, weights=lambda key: 3).wrapped(lambda function: lambda value: function(value) * 2)
    assert (4, 6.0) == (wrapped.by("ab"), wrapped.weight("f"))
    assert (None, 2.0) == (Fair().wrapped(str).by, fair.wrapped(lambda function: function).weight("f"))
