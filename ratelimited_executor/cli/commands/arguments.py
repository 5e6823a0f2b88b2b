"""Shared by the commands: types of arguments, and errors as exit statuses."""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click

from ratelimited_executor import Rate
from ratelimited_executor._core.durations import parse_duration
from ratelimited_executor._core.escapes import shown
from ratelimited_executor.cli.exits import CommandError, ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Duration", "Moment", "RateText", "errors_as_usage", "loop_factory", "read_argument"]

S = TypeVar("S")
T = TypeVar("T")


class Duration(click.ParamType[float]):
    """Seconds, or a text such as 10m; from ``least`` to ``most`` seconds, and 0 only if ``may_be_zero``."""

    name = "duration"

    def __init__(self, least: float = 0.0, most: float = math.inf, *, may_be_zero: bool = False) -> None:
        self._least, self._most, self._may_be_zero = least, most, may_be_zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        try:
            seconds = value if isinstance(value, float) else parse_duration(str(value), may_be_zero=self._may_be_zero)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= seconds <= self._most:
            most = "" if self._most == math.inf else f" and at most {self._most:g} s"
            self.fail(f"must be at least {self._least:g} s{most}, got {value!r}", param, ctx)
        return seconds


class Moment(click.ParamType[float]):
    """A time as ISO 8601 writes it, in the local time zone if it names none; becomes epoch seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the epoch seconds."""
        try:
            return value if isinstance(value, float) else datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"must be a time such as 2030-01-31T18:00+01:00, got {shown(str(value))}", param, ctx)


class RateText(click.ParamType[Rate]):
    """A number a second, or a text such as 5/min."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Rate:
        """Return the rate."""
        if isinstance(value, Rate):
            return value
        text = str(value)
        try:
            return Rate.parse(text)
        except ValueError as error:
            likeness = f"a rate looks like 200, 100/s or 5/min and is >= 0, got {shown(text)}"
            self.fail(str(error) if "/" in text else likeness, param, ctx)


def read_argument(read: Callable[[S], T], given: S) -> T:
    """Read an argument, or refuse it with the reason."""
    try:
        return read(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@contextmanager
def errors_as_usage() -> Iterator[None]:
    """Exit with status 2 and the reason for an error that the user can correct, with 130 for an early Ctrl-C."""
    try:
        yield
    except CommandError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(ExitStatus.USAGE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(ExitStatus.INTERRUPTED)


def loop_factory(use_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop; None for asyncio's own."""
    if not use_uvloop:
        return None
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise CommandError("--uvloop needs uvloop: pip install 'ratelimited-executor[uvloop]'") from error
    return uvloop.new_event_loop
