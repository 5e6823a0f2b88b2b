"""Load the target named by a text such as ``package.module:function`` or ``folder/file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratelimited_executor.cli.contexts import is_context
from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["load_object", "load_target"]


def load_target(text: str) -> Any:
    """Return the target that a text names: a callable, or a context manager whose value will be called.

    Raises:
        CommandError: as :func:`load_object` does, or if the target is neither.
    """
    found = load_object(text, what="TARGET")
    if not callable(found) and not is_context(found):
        raise CommandError(f"TARGET {text!r} is not callable: it is {type(found).__name__}")
    return found


def load_object(text: str, *, what: str) -> Any:
    """Import ``module:attribute`` or run ``file.py:attribute``, where the attribute may be dotted.

    Imports search the current directory first, and for a file its own directory, so that it can import its neighbours.

    Args:
        text: the text from the user.
        what: the name of the argument on the command line, for errors.

    Raises:
        CommandError: if the text has another form, the import fails, or there is no such attribute.
    """
    name, colon, path = text.rpartition(":")
    if not colon or not name or not path or not all(path.split(".")):
        raise CommandError(f"{what} must look like module:function or file.py:function, got {text!r}")
    module = _load(name, f"{what} {text!r}")
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        reason = str(error).replace(f"module '{module.__name__}'", f"module '{name}'")  # the name that the user gave
        raise CommandError(f"{what} {text!r}: {reason}") from error


def _load(name: str, given: str) -> ModuleType:
    """Load a module by its name or file; any failure becomes a CommandError."""
    is_file = name.endswith(".py")
    if is_file and not Path(name).is_file():
        raise CommandError(f"{given}: there is no file {name}")
    here = str(Path(name).resolve().parent) if is_file else str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _run_file(Path(name)) if is_file else importlib.import_module(name)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the module's own code runs here, and may raise anything, SystemExit included
        raise CommandError(f"{given} cannot be imported: {_last_line(error)}{_place(error)}") from error


def _run_file(file: Path) -> ModuleType:
    """Run a Python file as a module, whatever its name: ``json.py`` does not shadow another module."""
    name = f"target_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "as above"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def _place(error: BaseException) -> str:
    """Return the file and line of the user's code that raised, if the import got that far."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
