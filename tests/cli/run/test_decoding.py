"""Decoding of raw lines, and the errors for bad ones."""

from __future__ import annotations

import pytest

from ratelimited_executor.cli.run.decoding import BadLineError, Facts, JsonDecoder, TextDecoder


@pytest.mark.parametrize(
    ("number", "raw", "argument"),
    [
        (2, b"plain\n", "plain"),
        (2, b"windows\r\n", "windows"),
        (2, b"last", "last"),
        (2, b"last\r", "last\r"),
        (2, b"\n", ""),
        (2, " spaces \u00e4 \n".encode(), " spaces \u00e4 "),
        (1, b"\xef\xbb\xbffirst\n", "first"),
        (2, b"\xef\xbb\xbfsecond\n", "\ufeffsecond"),
    ],
)
def test_text_lines_lose_only_their_newline(number: int, raw: bytes, argument: str) -> None:
    """Only the newline is removed, and a byte order mark at the beginning of the input."""
    decoder = TextDecoder()
    assert (Facts(), argument) == (decoder.facts(number, raw), decoder.argument(number, raw))


def test_text_names_the_line_and_byte_of_a_bad_encoding() -> None:
    """A line that is not UTF-8 is refused by number."""
    with pytest.raises(BadLineError) as caught:
        TextDecoder().facts(7, b"caf\xe9\n")
    assert "line 7: not UTF-8: unexpected end of data at byte 4" == str(caught.value)


@pytest.mark.parametrize("raw", [b"\n", b"  \r\n", b"\t"])
def test_json_skips_blank_lines(raw: bytes) -> None:
    """A line of white space is skipped."""
    assert JsonDecoder().facts(3, raw) is None


def test_json_gives_any_value() -> None:
    """Without fields to read a line may hold any JSON value."""
    values = [JsonDecoder().argument(1, raw) for raw in (b'{"a": 1}\n', b"[1]\n", b"2.5\n", b"null\n", b'"x"')]
    assert [{"a": 1}, [1], 2.5, None, "x"] == values


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{bad\n", "malformed JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"a":1} {"b":2}\n', "malformed JSON: Extra data at column 9"),
        (b"NaN\n", "malformed JSON: NaN is not a JSON value"),
        (b"[-Infinity]\n", "malformed JSON: -Infinity is not a JSON value"),
        (b'"\xff"\n', "not UTF-8: invalid start byte at byte 2"),
    ],
)
def test_json_names_what_is_malformed(raw: bytes, reason: str) -> None:
    """A malformed line is refused with its number and the reason."""
    with pytest.raises(BadLineError) as caught:
        JsonDecoder().facts(3, raw)
    assert f"line 3: {reason}" == str(caught.value)


def test_json_survives_nesting_and_numbers_without_end() -> None:
    """Endless nesting and numbers are bad lines, and do not crash the parser."""
    for raw, reason in (
        (b"[" * 200_000, "JSON that is nested too deeply"),
        (b"1" * 10_000, "malformed JSON: an integer has at most 4,000 digits, got one of 10,000"),
    ):
        with pytest.raises(BadLineError) as caught:
            JsonDecoder().facts(1, raw)
        assert str(caught.value) == f"line 1: {reason}"


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (b"1700000000", 1_700_000_000.0),
        (b"1700000000.25", 1_700_000_000.25),
        (b'"2023-11-14T22:13:20Z"', 1_700_000_000.0),
        (b'"2023-11-14T23:13:20+01:00"', 1_700_000_000.0),
    ],
)
def test_at_field_reads_epoch_and_iso(value: bytes, at: float) -> None:
    """A due time is epoch seconds or ISO 8601 with a zone."""
    assert Facts(at) == JsonDecoder(at_field="at").facts(1, b'{"at": %s}' % value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{}", "no field 'at'; it must be epoch seconds or an ISO 8601 time with a time zone"),
        (b'{"at": null}', "field 'at' is null; it must be epoch seconds or an ISO 8601 time with a time zone"),
        (b'{"at": true}', "field 'at' is a truth value; it must be epoch seconds or an ISO 8601 time with a time zone"),
        (b'{"at": "soon"}', "field 'at' is not an ISO 8601 time: 'soon'"),
        (b'{"at": "2023-11-14T22:13:20"}', "field 'at' has no time zone: '2023-11-14T22:13:20'; append Z or an offset such as +01:00"),
        (b'{"at": 1700000000000}', "field 'at' is out of range; epoch seconds are expected, not milliseconds"),
        (b'{"at": 1e999}', "field 'at' is out of range; epoch seconds are expected, not milliseconds"),
        (b'{"at": 1' + b"0" * 400 + b"}", "field 'at' is out of range; epoch seconds are expected, not milliseconds"),
        (b"[1]", "expected a JSON object with fields, got an array"),
        (b"1", "expected a JSON object with fields, got a number"),
    ],
)  # fmt: skip
def test_at_field_refuses(raw: bytes, reason: str) -> None:
    """A line without a usable due time is bad input, and never due at once."""
    with pytest.raises(BadLineError) as caught:
        JsonDecoder(at_field="at").facts(5, raw)
    assert f"line 5: {reason}" == str(caught.value)


@pytest.mark.parametrize(("raw", "priority"), [(b'{"p": 7}', 7), (b'{"p": -1}', -1), (b'{"p": null}', 0), (b"{}", 0)])
def test_priority_field_reads(raw: bytes, priority: int) -> None:
    """A priority is a whole number, 0 if missing."""
    assert Facts(None, priority) == JsonDecoder(priority_field="p").facts(1, raw)


@pytest.mark.parametrize("value", [b"1.5", b'"high"', b"true", b"[]"])
def test_priority_field_refuses(value: bytes) -> None:
    """Anything but a whole number is bad input."""
    with pytest.raises(BadLineError, match="line 2: field 'p' must be an integer, a larger one is more important"):
        JsonDecoder(priority_field="p").facts(2, b'{"p": %s}' % value)


def test_priority_field_has_a_range() -> None:
    """A priority beyond the exact range of floats is refused."""
    decoder = JsonDecoder(priority_field="p")
    assert Facts(None, -(2**53)) == decoder.facts(1, b'{"p": -9007199254740992}')
    with pytest.raises(
        BadLineError, match="line 2: field 'p' is out of range; the largest priority is 9007199254740992"
    ):
        decoder.facts(2, b'{"p": 1' + b"0" * 400 + b"}")
