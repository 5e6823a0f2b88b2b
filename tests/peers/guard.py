"""Ends the processes that a test run would leave behind, however the run itself ends.

Fixtures and context managers end what they start. A run that is killed, crashes or leaves by ``os._exit`` (as
pytest-timeout does) reaches none of them, nor ``atexit``. So a small process holds the other end of a pipe, on which it
is told the running processes. When the pipe ends, so has the run: the processes left are killed, and their folders
removed.
"""

import atexit
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

_PROGRAM = """
import os, shutil, signal, sys

left = {}
for line in sys.stdin.buffer:
    pid, _, folder = line[1:].rstrip(b"\\n").partition(b" ")
    if line[:1] == b"+":
        left[int(pid)] = folder
    else:
        left.pop(int(pid), None)
for pid, folder in left.items():
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
"""


class Guard:
    """The process that watches the others, out of reach of an interrupt from the keyboard."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        atexit.register(self._end)

    def watch(self, pid: int, folder: Path) -> None:
        """Kill a process at the end of the run, and remove its folder."""
        self._say(f"+{pid} {folder}\n")

    def forget(self, pid: int) -> None:
        """Leave a process alone that has ended, since its id may be reused."""
        self._say(f"-{pid}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(os.fsencode(line))

    def _end(self) -> None:
        """Close the pipe and wait; do nothing in a forked child, as the servers are the parent's."""
        if os.getpid() == self._owner:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


@cache
def guard() -> Guard:
    """Return the guard of this process, started on first use."""
    return Guard()
