"""The inputs of ``bench``, checked before anything is sent: requests, extras, and files for reports."""

from __future__ import annotations

import errno
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ratelimited_executor._core.escapes import int_of_digits
from ratelimited_executor.cli.bench.wire import wire_of
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.load.figures import Measurement
from ratelimited_executor.load.requests import (
    RequestTemplate,
    check_body,
    check_credentials,
    check_method,
    check_url,
    names_class,
    parse_requests,
    templates_of_class,
    with_content_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor.cli.bench.options import BenchOptions
    from ratelimited_executor.cli.bench.wire import Wire

T = TypeVar("T")

__all__ = [
    "check_extras",
    "check_output",
    "read_measurement",
    "refuse_http_options",
    "templates_of",
    "uses_uvloop",
    "wires_of",
]


def templates_of(options: BenchOptions) -> list[list[RequestTemplate]]:
    """Return the requests of each class; without classes, one list.

    Raises:
        CommandError: if a request is invalid, or a file cannot be read.
    """
    names = [name for name in options.rates if name]
    templates = _all_templates_of(options, names)
    if not names and any(names_class(each) for each in templates):
        raise CommandError(
            "{class} needs classes: name each one with its rate, such as --rate ordinary=400 --rate urgent=20"
        )
    try:
        return [templates_of_class(templates, name) for name in names] or [templates]
    except ValueError as error:
        raise CommandError(f"--requests {options.requests}: {error}") from error


def wires_of(turns: Sequence[Sequence[RequestTemplate]]) -> list[list[Wire]] | None:
    """Return the bytes of the requests of each class; None if our own client cannot send all of them."""
    if find_spec("httptools") is None:
        return None
    made = {id(each): wire_of(each) for of_class in turns for each in of_class}
    wires = [[wire for each in of_class if (wire := made[id(each)]) is not None] for of_class in turns]
    return None if None in made.values() else wires


def _all_templates_of(options: BenchOptions, names: Sequence[str]) -> list[RequestTemplate]:
    method = options.method or ("GET" if options.body is None else "POST")
    base = RequestTemplate(
        url=_checked("TARGET", check_url, options.target),
        method=_checked("--method", check_method, method),
        headers=dict(options.headers),
        body=None if options.body is None else _checked("--body", check_body, _body_of(options.body)),
    )
    if options.requests is None:
        return [_checked("TARGET", check_credentials, with_content_type(base))]
    try:
        with Path(options.requests).open(encoding="utf-8") as file:
            return parse_requests(file, base, names)
    except (OSError, ValueError) as error:
        raise CommandError(f"--requests {options.requests}: {_reason(error)}") from error


def _checked(name: str, check: Callable[[T], T], value: T) -> T:
    try:
        return check(value)
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from error


def _body_of(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(f"--body {text}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return an error without its number, and without the name of the file."""
    return getattr(error, "strerror", None) or str(error)


def refuse_http_options(options: BenchOptions) -> None:
    """Refuse options for URLs when the target is a function.

    Raises:
        CommandError: if there is such an option; names it.
    """
    given = {
        "--method": options.method,
        "--header": options.headers,
        "--body": options.body,
        "--requests": options.requests,
    }
    for name, value in given.items():
        if value:
            raise CommandError(f"{name} is for URLs: a function makes its requests itself")


def check_extras() -> None:
    """Check that the package of the extra is installed.

    Raises:
        CommandError: if it is missing.
    """
    if find_spec("hdrh") is None:
        raise CommandError("bench needs hdrhistogram: pip install 'ratelimited-executor[load]'")


def uses_uvloop(options: BenchOptions) -> bool:
    """Return True if the load is sent on uvloop: if the options say so, or by default to a URL if it is installed.

    It takes less CPU for a request. A function may rely on the loop that it was written for.
    """
    if options.uvloop is not None:
        return options.uvloop
    return "://" in options.target and find_spec("uvloop") is not None


def check_output(name: str, path: Path | None) -> None:
    """Check that the file of an option can be written; one that does not exist is made and removed.

    Raises:
        CommandError: if it cannot be written.
    """
    if path is None:
        return
    try:
        if path.is_dir():
            raise CommandError(f"{name} must be a file, {path} is a directory")
        if not path.parent.is_dir():
            raise CommandError(f"{name}: the directory {path.parent} does not exist")
        if not path.exists() and not path.is_symlink():
            path.touch(exist_ok=False)
            path.unlink()
        elif path.exists() and not os.access(path, os.W_OK):  # a pipe is not opened, as that waits for its reader
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CommandError(f"{name}: {path} cannot be written: {_reason(error)}") from error


def read_measurement(path: str) -> Measurement:
    """Return what a file holds that --json has written.

    Raises:
        CommandError: if it cannot be read, or holds something else.
    """
    try:
        return Measurement.from_json(json.loads(Path(path).read_text(encoding="utf-8"), parse_int=int_of_digits))
    except ImportError as error:
        raise CommandError(f"bench: {error}") from error
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not a file written by bench --json: {error}") from error
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from error
