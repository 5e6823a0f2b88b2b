"""Decode raw lines: the argument for the target, the due time, the priority.

A raw line is the bytes in the input, newline included, so that ``--remaining`` can write them back unchanged. A line is
decoded twice: when it is read, to report a bad line at once and to learn its due time and priority, and when it starts.
Rejected: keeping the decoded value, which takes three to five times the memory of its text, for 100,000 lines.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from ratelimited_executor._core.escapes import int_of_digits

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BadLineError", "Decoder", "Facts", "JsonDecoder", "TextDecoder"]

_BOM: Final = "\ufeff"
# Epoch seconds of the years 1 to 9999, the range of ISO 8601. Milliseconds, a common mistake, lie far beyond.
AT_MIN: Final = -62_135_596_800
AT_MAX: Final = 253_402_300_800
# Priorities are compared as floats; beyond this, different ones would be equal.
PRIORITY_MAX: Final = 2**53


class BadLineError(Exception):
    """A line of the input that cannot be used, with its number (from 1) and the reason."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a line that scheduling needs.

    Attributes:
        at: due time in epoch seconds; None if the line has none.
        priority: larger is more important.
        key: its key; None if it has none.
        cost: the permits that it takes.
    """

    at: float | None = None
    priority: int = 0
    key: str | int | float | None = None
    cost: int = 1


class Decoder(Protocol):
    """Parses raw lines."""

    def facts(self, number: int, raw: bytes) -> Facts | None:
        """Check a line and return its facts; None for a blank line, which is skipped. Raises BadLineError."""
        ...

    def argument(self, number: int, raw: bytes) -> object:
        """Return the argument for the target. Raises BadLineError."""
        ...


_NO_FACTS: Final = Facts()  # for lines of text


class TextDecoder:
    """Each line as text without its newline; an empty line is the empty text, and counts."""

    def facts(self, number: int, raw: bytes) -> Facts | None:
        """Check that the line is UTF-8."""
        _text(number, raw)
        return _NO_FACTS

    def argument(self, number: int, raw: bytes) -> object:
        """Return the text without its newline, LF or CR LF."""
        return _text(number, raw)


class JsonDecoder:
    """Each line as one JSON value; blank lines are skipped.

    Args:
        at_field: the field of the due time, as epoch seconds or ISO 8601 with a zone; every line must have it.
        priority_field: the field of the priority, a whole number; 0 if a line has none.
        key_field: the field of the key, a text or a number; None if a line has none.
        cost_field: the field of the cost, a whole number >= 1; 1 if a line has none.
    """

    def __init__(
        self,
        *,
        at_field: str | None = None,
        priority_field: str | None = None,
        key_field: str | None = None,
        cost_field: str | None = None,
    ) -> None:
        self._at_field = at_field
        self._priority_field = priority_field
        self._key_field = key_field
        self._cost_field = cost_field

    def facts(self, number: int, raw: bytes) -> Facts | None:
        """Parse the line, read its due time, priority, key and cost."""
        if not raw.strip():
            return None
        value = self.argument(number, raw)
        if self._at_field is self._priority_field is self._key_field is self._cost_field is None:
            return _NO_FACTS
        if not isinstance(value, dict):
            raise BadLineError(number, f"expected a JSON object with fields, got {_kind(value)}")
        return Facts(
            at=None if self._at_field is None else _at(number, self._at_field, value),
            priority=0 if self._priority_field is None else _priority(number, self._priority_field, value),
            key=None if self._key_field is None else _key(number, self._key_field, value),
            cost=1 if self._cost_field is None else _cost(number, self._cost_field, value),
        )

    def argument(self, number: int, raw: bytes) -> object:
        """Return the parsed value; refuse NaN and infinities, which JSON does not have."""
        try:
            return json.loads(_text(number, raw), parse_constant=_refuse_constant, parse_int=int_of_digits)
        except json.JSONDecodeError as error:
            raise BadLineError(number, f"malformed JSON: {error.msg} at column {error.colno}") from error
        except RecursionError as error:
            raise BadLineError(number, "JSON that is nested too deeply") from error
        except ValueError as error:
            raise BadLineError(number, f"malformed JSON: {error}") from error


def _text(number: int, raw: bytes) -> str:
    body = raw.removesuffix(b"\n")
    if len(body) < len(raw):
        body = body.removesuffix(b"\r")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLineError(number, f"not UTF-8: {error.reason} at byte {error.start + 1}") from error
    return text.removeprefix(_BOM) if number == 1 else text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _at(number: int, field: str, value: Mapping[str, object]) -> float:
    """Return the due time of a line in epoch seconds."""
    found = value.get(field)
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        reason = f"no field {field!r}" if field not in value else f"field {field!r} is {_kind(found)}"
        raise BadLineError(number, f"{reason}; it must be epoch seconds or an ISO 8601 time with a time zone")
    seconds = _epoch_of_text(number, field, found) if isinstance(found, str) else _finite(found)
    if not AT_MIN <= seconds <= AT_MAX:
        raise BadLineError(number, f"field {field!r} is out of range; epoch seconds are expected, not milliseconds")
    return seconds


def _finite(found: float) -> float:
    try:
        return float(found)
    except OverflowError:
        return math.inf


def _epoch_of_text(number: int, field: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadLineError(number, f"field {field!r} is not an ISO 8601 time: {text!r}") from None
    if moment.tzinfo is None:
        raise BadLineError(number, f"field {field!r} has no time zone: {text!r}; append Z or an offset such as +01:00")
    return moment.timestamp()


def _priority(number: int, field: str, value: Mapping[str, object]) -> int:
    found = value.get(field)
    if found is None:
        return 0
    if isinstance(found, bool) or not isinstance(found, int):
        raise BadLineError(number, f"field {field!r} must be an integer, a larger one is more important; got {found!r}")
    if abs(found) > PRIORITY_MAX:
        raise BadLineError(number, f"field {field!r} is out of range; the largest priority is {PRIORITY_MAX}")
    return found


def _key(number: int, field: str, value: Mapping[str, object]) -> str | int | float | None:
    found = value.get(field)
    if isinstance(found, bool) or not isinstance(found, (str, int, float, type(None))):
        raise BadLineError(number, f"field {field!r} must be a string or a number, got {_kind(found)}")
    return found


def _cost(number: int, field: str, value: Mapping[str, object]) -> int:
    found = value.get(field)
    if found is None:
        return 1
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise BadLineError(number, f"field {field!r} must be an integer >= 1, got {found!r}")
    if found > PRIORITY_MAX:
        raise BadLineError(number, f"field {field!r} is out of range; the largest cost is {PRIORITY_MAX}")
    return found


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
