"""Which body of the kernel runs: the compiled one where it was built, else pure Python, which is complete."""

from __future__ import annotations

import os
import platform
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Kernel", "compiled", "kernel"]

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
