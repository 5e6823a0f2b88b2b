"""Which body of the kernel runs: the compiled one where it was built, else pure Python, which is complete.

The choice is made once, when the package is first used. An extension that is missing, that cannot be loaded or that was
built from another source is never an error: the pure body runs, and ``kernel.reason`` says why.
"""

from __future__ import annotations

import os
import sys
from binascii import crc32
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Final, TypeVar

__all__ = ["Kernel", "compiled", "kernel", "two_bodies", "used_there"]

T = TypeVar("T")

_VARIABLE: Final = "RATELIMITED_EXECUTOR_PURE"
_EXTENSION: Final = "ratelimited_executor._kernel._compiled"
_SOURCES: Final = (".pxi", ".pyx")  # beside the extension in a checkout only: no wheel has them
_FIELDS: Final = "fields.py"  # the build makes the C structs of it
_REMEDY: Final = "run `python .packaging/build_kernel.py` in a checkout, or install again"


@dataclass(frozen=True, slots=True)
class Kernel:
    """Which body of the kernel is in use: compiled, or pure Python.

    Attributes:
        is_compiled: True for the compiled body.
        reason: why the compiled body is not in use; empty if it is.
    """

    is_compiled: bool
    reason: str = ""

    def __str__(self) -> str:
        return "compiled" if self.is_compiled else f"pure Python ({self.reason})"


def _choose() -> tuple[Any, str]:
    """Import the compiled body; return None and the reason if it cannot be used."""
    if reason := _obstacle():
        return None, reason
    try:
        import ratelimited_executor._kernel._compiled as extension  # type: ignore[import-not-found]  # noqa: PLC0415  # built, or not
    except Exception as error:  # noqa: BLE001  # a broken extension may raise anything, and must not break the import
        if isinstance(error, ModuleNotFoundError) and error.name == _EXTENSION:
            return None, "no extension was built for this Python"
        return None, f"the extension cannot be loaded: {type(error).__name__}: {error}; {_REMEDY}"
    if _is_stale(extension):
        return None, f"the extension was built from other sources; {_REMEDY}"
    return extension, ""


def _obstacle() -> str:
    """Return why the extension must not be loaded; empty if it may be."""
    if os.environ.get(_VARIABLE, "") not in ("", "0"):
        return f"{_VARIABLE} is set"
    if sys.implementation.name != "cpython":
        return f"the extension is for CPython, and this is {sys.implementation.name}"
    if "free-threading" in sys.version:  # loading it would enable the lock for the whole process
        return "the extension needs the global interpreter lock, which a free-threaded build does without"
    return ""


def _is_stale(extension: Any) -> bool:
    """True if a source of the extension has changed since it was built, as by ``git pull``.

    The build stamps the checksum of these sources into the extension. Other modules need no check: they are not inputs
    of the build, so an extension whose sources are unchanged belongs to them.
    """
    folder, _ = os.path.split(__file__)  # not pathlib: loading it would take a tenth of the time of a start
    with os.scandir(folder) as entries:
        paths = {entry.name: entry.path for entry in entries}
    if not (sources := sorted(name for name in paths if name.endswith(_SOURCES))):
        return False
    checksum = 0
    for name in [*sources, _FIELDS]:
        with open(paths[name], "rb") as file:  # noqa: PTH123  # as above
            checksum = crc32(file.read(), checksum)
    return checksum != getattr(extension, "SOURCE_CRC32", None)


_extension, _reason = _choose()
compiled: Final[Any] = _extension  # the module, or None
kernel: Final = Kernel(is_compiled=not _reason, reason=_reason)


def two_bodies(pure: T) -> T:
    """Return the compiled body of a function or class instead of its pure one, if there is one.

    They are paired by qualified name in ``bodies`` of ``_compiled.pyx``. The compiled body receives the pure one for the
    cases that it does not handle itself.

    Raises:
        LookupError: if there is no compiled body of that name, or another pure one has it.
    """
    if compiled is None:
        return pure
    name: str = pure.__qualname__  # type: ignore[attr-defined]  # a function or a class
    compiled.connect(name, pure)
    body: T = compiled.bodies[name]
    if not isinstance(body, type):
        update_wrapper(body, pure)  # type: ignore[arg-type]  # a function
    return body


def used_there(cls: T) -> T:
    """Register a function or class that the compiled kernel uses."""
    if compiled is not None:
        compiled.connect(cls.__qualname__, cls)  # type: ignore[attr-defined]  # a class
    return cls
