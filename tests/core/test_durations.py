"""Durations as text."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.durations import duration_of, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("0.5", 0.5),
        ("10m", 600.0),
        ("10min", 600.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("1D", 86400.0),
        (" 1 d 2 hours 3 min 4 sec 5 ms ", 93784.005),
        ("57ms", 0.057),
        ("0.1s", 0.1),
        ("2 days", 172800.0),
    ],
)
def test_parse_duration_reads(text: str, seconds: float) -> None:
    """Numbers are seconds, and units add up."""
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "-1",
        "10x",
        "m",
        "1h30",
        "nan",
        "inf",
        "1e400",
        "9" * 400,
        "9" * 400 + "d",
        "9" * 5000,
        "9" * 5000 + "d",
        "30m1h",
        "1h1h",
        "1m60s5m",
        "1 week",
        "1mo",
        "PT8H",
        "8:00",
        "1,5h",
        "+1",
        "1_000",
        "\u0663h",
    ],
)
def test_parse_duration_refuses(text: str) -> None:
    """A text that is not a positive finite duration is refused with an example."""
    with pytest.raises(ValueError, match="a duration looks like 90, 10m or 1h30m") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), Decimal("snan"), Decimal("1e9999"), "9" * 5000, "1e400"], ids=range(6)
)
def test_error_of_a_duration_quotes_it_in_few_words(value: object) -> None:
    """An error names the parameter and quotes the value, shortened, without words of Python's own conversions."""
    with pytest.raises(ValueError, match=r"^delay(:| must be) .*, got .*") as caught:
        duration_of("delay", value)
    assert len(str(caught.value)) < 200
    assert "inf" not in str(caught.value).split(", got ")[1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0123456, "12.3 ms"),
        (1.5, "1.5 s"),
        (5e-8, "0 ms"),
        (0.00000012, "0.00012 ms"),
        (59.96, "1m"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (61, "1m1s"),
        (3_600, "1h"),
        (3_661, "1h1m1s"),
        (86_399.6, "1d"),
        (86_461, "1d1m"),
        (183_845, "2d3h4m"),
        (86_400_000, "1000d"),
    ],
)
def test_format_duration_writes(seconds: float, text: str) -> None:
    """Short durations are written with three digits, long ones in whole seconds, and days in whole minutes."""
    assert text == format_duration(seconds)


@given(st.floats(min_value=1e-7, max_value=1e12))
def test_written_duration_is_read_again(seconds: float) -> None:
    """A written duration can be read again, to three digits or half the last unit, as an option, for example."""
    read = parse_duration(format_duration(seconds))

    slack = 0.0051 * seconds if seconds < 60 else 0.51 if seconds < 86_399 else 31
    assert abs(read - seconds) <= slack
    assert format_duration(read) == format_duration(seconds)
