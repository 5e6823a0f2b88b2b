"""Which body of the kernel runs: the compiled one where it was built, else pure Python, which is complete."""

from __future__ import annotations

import os
import platform
import sysconfig
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

    T = TypeVar("T")

__all__ = ["Kernel", "compiled", "kernel", "two_bodies", "used_there"]

_VARIABLE: Final = "RATELIMITED_EXECUTOR_PURE"


@dataclass(frozen=True, slots=True)
class Kernel:
    """Which body of the kernel is in use.

    Attributes:
        is_compiled: True for the compiled body.
        reason: why it is not the compiled one; empty if it is.
    """

    is_compiled: bool
    reason: str = ""

    def __str__(self) -> str:
        return "compiled" if self.is_compiled else f"pure Python ({self.reason})"


def _choose() -> tuple[ModuleType | None, Kernel]:
    """Import the compiled body, unless something speaks against it."""
    if os.environ.get(_VARIABLE, "") not in ("", "0"):
        return None, Kernel(False, f"{_VARIABLE} is set")
    if platform.python_implementation() != "CPython":
        return None, Kernel(False, "it is compiled for CPython alone")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, Kernel(False, "it has no locks for a free-threaded Python")
    try:
        from ratelimited_executor._kernel import _compiled
    except ModuleNotFoundError:
        return None, Kernel(False, "it was installed without a compiler")
    except ImportError as error:
        return None, Kernel(False, f"it cannot be loaded: {error}")
    return _compiled, Kernel(True)


compiled: Final[Any]
kernel: Final[Kernel]
compiled, kernel = _choose()


def two_bodies(pure: T) -> T:
    """Return the compiled body of a function or class in place of its pure one, if there is one.

    The compiled body is looked up by its name, and gets the pure one to hand on to it what it does not do itself.
    """
    if compiled is None:
        return pure
    name: str = pure.__name__  # type: ignore[attr-defined]  # a function or a class
    compiled.connect(name, pure)
    body: T = getattr(compiled, name)
    if not isinstance(body, type):
        update_wrapper(body, pure)  # type: ignore[arg-type]  # a function
    return body


def used_there(cls: T) -> T:
    """Let the compiled body know of a function or class that it uses."""
    if compiled is not None:
        compiled.connect(cls.__name__, cls)  # type: ignore[attr-defined]  # a class
    return cls
