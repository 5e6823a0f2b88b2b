"""Rates as exact ratios: what is accepted, what is refused, and how they compare."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.permits.rates import Rate


@pytest.mark.parametrize(
    ("text", "per_second"),
    [
        ("100/s", Fraction(100)),
        ("5/min", Fraction(1, 12)),
        ("5/m", Fraction(1, 12)),
        ("1000/15min", Fraction(1000, 900)),
        ("0.5/s", Fraction(1, 2)),
        ("0.1/s", Fraction(1, 10)),
        ("1_000/hour", Fraction(1000, 3600)),
        ("1/day", Fraction(1, 86400)),
        ("3/2.5s", Fraction(6, 5)),
        (" 7 / 2 seconds ", Fraction(7, 2)),
        ("10/100ms", Fraction(100)),
        ("0/s", Fraction(0)),
        ("inf/s", None),
        ("100/S", Fraction(100)),
    ],
)
def test_text_is_read_exactly(text, per_second):
    """Every spelling is read as one exact ratio."""
    assert per_second == Rate.parse(text).per_second == Rate.of(text).per_second


@pytest.mark.parametrize(
    "text",
    ["", "100 s", "/s", "100/", "100/x", "-1/s", "1e3/s", "nan/s", "1/0s", "5 per minute", "1//s", "infinite", "1/s/s"],
)
def test_other_text_is_refused(text):
    """A text that is not a rate raises ``ValueError``."""
    with pytest.raises(ValueError):
        Rate.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1/0s", "rate must be a number of permits in a time longer than 0, got '1/0s'"),
        ("-5/s", "rate must be >= 0 (0 pauses, inf means no limit), got '-5/s'"),
        (" -0.5 / 15min ", "rate must be >= 0 (0 pauses, inf means no limit), got ' -0.5 / 15min '"),
        ("-3", "rate must be >= 0 (0 pauses, inf means no limit), got '-3'"),
        ("-x", "rate must look like '100/s', '5/min' or '1000/15min', got '-x'"),
        ("1e400", "rate must be in the range of a float, got '1e400'"),
        ("9" * 309, "rate must be in the range of a float, got '9"),
        ("5/" + "9" * 309 + "s", "rate must be in the range of a float, got '5/9"),
        ("9" * 9000, "rate must look like '100/s', '5/min' or '1000/15min', got '9"),
        ("5/" + "9" * 9000 + "s", "rate must look like '100/s', '5/min' or '1000/15min', got '5/9"),
        (
            "300/mn",
            "rate must look like '100/s', '5/min' or '1000/15min', got '300/mn': the units are ms, s, min, h, day",
        ),
        (
            "5 per mn",
            "rate must look like '100/s', '5/min' or '1000/15min', got '5 per mn': the units are ms, s, min, h, day",
        ),
        ("\u0663/s", "rate must look like '100/s', '5/min' or '1000/15min', got '\u0663/s'"),
    ],
)
def test_error_of_a_text_quotes_it_in_few_words(text, reason):
    """An error names the rate, quotes the text, shortened, and has no words of Python's own conversions."""
    with pytest.raises(ValueError) as caught:
        Rate.parse(text)
    assert str(caught.value).startswith(reason)
    assert len(str(caught.value)) < 220


HUGE = [10**400, 10**5000, Fraction(1, 10**5000), Decimal("1e9999"), Decimal("1e-9999"), Decimal("1e-999999999")]


@pytest.mark.parametrize("value", HUGE, ids=range(len(HUGE)))
def test_number_that_could_not_be_shown_is_refused(value):
    """A number out of the range of a float is refused at once, as permits, as their time and alone."""
    for make in (Rate, lambda number: Rate(1, per=number)):
        with pytest.raises(ValueError, match=r"(permits|per) must be in the range of a float, got .{3,150}$"):
            make(value)
    with pytest.raises(ValueError, match=r"rate must be a number of permits a second .*, got .{3,150}$"):
        Rate.of(value)


@pytest.mark.parametrize(("permits", "per"), [(1e308, 1e-10), (1e-300, 1e300)])
def test_ratio_that_could_not_be_shown_is_refused(permits, per):
    """Two numbers in range whose ratio is not are refused as well."""
    with pytest.raises(ValueError, match="permits / per must be in the range of a float, got Fraction"):
        Rate(permits, per=per)


@given(st.floats(min_value=0, allow_infinity=False) | st.integers(min_value=0, max_value=10**308))
def test_every_float_is_a_rate_that_can_be_shown(value):
    """Every finite float >= 0, and an integer of its range, is accepted, shown and read again."""
    rate = Rate(value)
    assert eval(repr(rate)) == rate
    assert float(rate) == float(value)


@pytest.mark.parametrize(
    ("value", "per_second"),
    [
        (100, 100),
        (0.1, Fraction(1, 10)),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.25"), Fraction(1, 4)),
        (0, 0),
        (math.inf, None),
        (Decimal("inf"), None),
        (Rate(5, per=60), Fraction(1, 12)),
    ],
)
def test_numbers_are_taken_at_their_decimal_value(value, per_second):
    """A float is read at its decimal value, and infinity lifts the limit."""
    assert per_second == Rate.of(value).per_second


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -1,
        -0.5,
        -math.inf,
        Decimal("nan"),
        Decimal("snan"),
        Fraction(-1, 2),
        pytest.param(-(10**5000), id="huge"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(value):
    """NaN and negative rates raise ``ValueError`` with the parameter and the remedy."""
    with pytest.raises(ValueError, match="rate must be .*0 pauses, inf means no limit"):
        Rate.of(value)


@pytest.mark.parametrize("value", [None, True, object(), [1], b"1/s", 1j])
def test_other_types_are_refused_by_name(value):
    """A value that is not a number raises ``TypeError`` with the parameter."""
    with pytest.raises(TypeError, match="rate must be a Rate"):
        Rate.of(value)


@pytest.mark.parametrize("per", [0, -1, math.inf, math.nan])
def test_window_must_be_finite_and_positive(per):
    """``per`` is a finite number of seconds."""
    with pytest.raises(ValueError, match="per must be"):
        Rate(1, per=per)


@pytest.mark.parametrize(("permits", "per"), [("1", 1), (1, b"1"), (True, 1), (None, 1), (1, None)])
def test_arguments_must_be_numbers(permits, per):
    """Texts and booleans are not accepted as numbers."""
    with pytest.raises(TypeError, match=r"(permits|per) must be a number"):
        Rate(permits, per=per)


@given(st.fractions(min_value=0, max_value=10**6), st.fractions(min_value=Fraction(1, 1000), max_value=10**6))
def test_ratio_is_exact(permits, per):
    """The ratio is exact, and equal arguments make equal rates with equal hashes."""
    rate = Rate(permits, per=per)
    assert permits / per == rate.per_second
    assert rate == Rate(permits, per=per)
    assert hash(rate) == hash(Rate(permits, per=per))
    assert (permits, per) == (rate.permits, rate.per)
    assert (permits == 0) is rate.is_zero
    assert not rate.is_unlimited


def test_windows_of_different_length_are_different_rates():
    """One a second and sixty a minute are different rates, with different windows."""
    assert Rate(1) != Rate(60, per=60)
    assert float(Rate(1)) == float(Rate(60, per=60))
    assert Rate(1) != 1


def test_text_forms():
    """The repr can be evaluated, and the text is short."""
    assert "Rate(5, per=60)" == repr(Rate(5, per=60))
    assert "Rate(0.1)" == repr(Rate(0.1))
    assert "Rate(inf)" == repr(Rate(math.inf))
    assert ("5/min", "100/s", "inf/s") == (str(Rate(5, per=60)), str(Rate(100)), str(Rate(math.inf)))
    for text in ("5/min", "7/h", "0.5/day", "3/2.5s", "0/s"):
        assert (text, Rate.parse(text)) == (str(Rate.parse(text)), Rate.parse(str(Rate.parse(text))))
    assert math.inf == float(Rate(math.inf)) == Rate(math.inf).permits
    assert Rate(math.inf).is_unlimited
    assert not Rate(math.inf).is_zero


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5", 5), ("0.5", 0.5), ("1e3", 1000), (" 1_000 ", 1000), ("inf", math.inf), ("INF", math.inf), ("0", 0)],
)
def test_number_alone_is_permits_a_second(text: str, rate: float) -> None:
    """A number alone is permits a second."""
    assert Rate(rate) == Rate.parse(text) == Rate.of(text)
