"""A web server in a process of its own, as its users start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60  # until it listens, or has ended: 2 s on an idle machine


@dataclass
class Serving:
    """A server that runs: its process, its address and its log."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path


@contextmanager
def serving(
    arguments: Sequence[str], log: Path, *, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """Run a program that serves with uvicorn, until its log says where; none of its processes is left at the end.

    Args:
        arguments: those of the interpreter; the program takes a free port if they ask for port 0.
        log: the file for its output.
        folder: where it runs; this one by default.
        variables: those of its environment beside those of this process.
    """
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "NO_COLOR": "1", **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while (match := re.search(r"running on (http://[0-9.:]+) ", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield Serving(process, match[1], log)
    finally:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also its workers
        else:
            process.kill()
        process.wait(SECONDS)
