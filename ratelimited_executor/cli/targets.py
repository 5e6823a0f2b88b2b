"""The callable that a text such as ``package.module:function`` names."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load_target"]


def load_target(text: str) -> Callable[[object], object]:
    """Import ``module:attribute``, where the attribute may be dotted; the current directory is looked at first.

    Raises:
        CommandError: if the text has another form, the import fails, or what is found cannot be called.
    """
    module_name, colon, path = text.partition(":")
    if not colon or not module_name or not path or not all(path.split(".")):
        raise CommandError(f"TARGET must look like module:function, got {text!r}")
    module = _import(module_name, text)
    try:
        found: object = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise CommandError(f"TARGET {text!r}: {error}") from error
    if not callable(found):
        raise CommandError(f"TARGET {text!r} is not callable: it is {type(found).__name__}")
    return found


def _import(module_name: str, text: str) -> object:
    """Import a module with the current directory first on the path; any failure becomes a CommandError."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the module's own code runs here, and may raise anything, SystemExit included
        raise CommandError(f"TARGET {text!r} cannot be imported: {_last_line(error)}{_place(error)}") from error


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def _place(error: BaseException) -> str:
    """Name the file and line of the user's own code that raised, if the import got that far."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
