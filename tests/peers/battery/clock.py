"""A wall clock that can be stepped while a process runs: a small library that is loaded before the process's own."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shim.c")


class NoShimError(Exception):
    """The library cannot be compiled here."""


class Clock:
    """A wall clock for processes that start with ``environment``.

    Args:
        folder: for the library and the offset.

    Raises:
        NoShimError: without a C compiler, or on another system than Linux.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or sys.platform != "linux":
            raise NoShimError("stepping a clock needs Linux and a C compiler (cc, gcc or clang) on PATH")
        library, offset = folder / "clock.so", folder / "offset"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise NoShimError(f"{compiler} does not compile {SOURCE.name}: {run.stderr[-300:]}")
        offset.write_bytes(bytes(mmap.PAGESIZE))
        with offset.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}

    def set(self, ahead: float) -> None:
        """Let the clock be ahead of the machine's by so many seconds, at once."""
        self._memory[:8] = struct.pack("d", ahead)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
