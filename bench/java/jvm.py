"""The JVM's side: compile ``ScheduledTimers.java`` into a temporary directory, and run it in a JVM of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BYTES_PER_TASK", "compiled", "has_jdk", "heap_bytes", "measure"]

SOURCE = Path(__file__).with_name("ScheduledTimers.java")
BYTES_PER_TASK = 200  # of heap, with a margin: task, entry in the queue, runnable, delay, and room to collect
RUN_SECONDS_MAX = 1800.0


def has_jdk() -> bool:
    """Return whether there are a Java compiler and a Java virtual machine on the path."""
    return shutil.which("javac") is not None and shutil.which("java") is not None


def heap_bytes() -> int:
    """Return the heap size for the JVM: half the memory of the machine, or 2 GiB if its size is unknown."""
    if not hasattr(os, "sysconf"):
        return 2**31
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@contextlib.contextmanager
def compiled() -> Iterator[Path]:
    """Provide a directory with the compiled classes, which is removed at the end."""
    with tempfile.TemporaryDirectory() as directory:
        _run(["javac", "-d", directory, str(SOURCE)])
        yield Path(directory)


def measure(
    classes: Path, *, count: int, spread: float, producers: int, warm_up_count: int, warm_up_rounds: int
) -> dict[str, Any]:
    """Run one round in a fresh JVM, after smaller rounds that warm it up.

    Args:
        classes: the directory of ``compiled``.
        count: how many tasks.
        spread: the greatest delay, in seconds.
        producers: how many threads schedule the tasks.
        warm_up_count: how many tasks each of the smaller rounds has.
        warm_up_rounds: how many smaller rounds there are.

    Returns:
        times in seconds, lateness in milliseconds, memory in bytes.
    """
    arguments = [count, spread, producers, warm_up_count, warm_up_rounds]
    heap = f"-Xmx{heap_bytes() // 2**20}m"
    output = _run(["java", heap, "-cp", str(classes), "ScheduledTimers", *map(str, arguments)])
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603  # the JDK's own commands and our own source
        command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
