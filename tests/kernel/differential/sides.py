"""The two sides of a comparison: long-lived processes, one for each kernel."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ratelimited_executor

from .programs import Program

ROOT = Path(__file__).parents[3]
START_SECONDS_MAX = 60.0  # to start a process on a machine that is busy
SECONDS_MAX = 60.0  # to run one program, which takes some milliseconds, or less than a second if it has very many tasks


class Side:
    """A process that runs programs on one kernel. It is started when it is needed, and started again after it has died.

    Args:
        is_pure: whether to use the pure kernel even if there is a compiled one.
        broken: the name of a deliberate flaw of ``broken.py``; None for none.
        seconds_max: after this time a program counts as hung.
    """

    def __init__(self, *, is_pure: bool, broken: str | None = None, seconds_max: float = SECONDS_MAX) -> None:
        self._is_pure = is_pure
        self._broken = broken
        self._seconds_max = seconds_max
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()
        self._buffer = b""
        self.kernel: dict[str, Any] = {}

    def __enter__(self) -> Side:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._errors.close()

    def start(self) -> None:
        """Start the process, and ask which kernel it uses."""
        environment = {
            **os.environ,
            "RATELIMITED_EXECUTOR_PURE": "1" if self._is_pure else "",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join([str(Path(ratelimited_executor.__file__).parents[1]), str(ROOT)]),
        }
        command = [sys.executable, "-m", "tests.kernel.differential.child", *([self._broken] if self._broken else [])]
        self._errors.seek(0)
        self._errors.truncate()
        self._buffer = b""
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        answer = self._answer(START_SECONDS_MAX)
        if not isinstance(answer, dict):
            raise RuntimeError(f"a side did not start: {answer}")
        self.kernel = answer

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()  # type: ignore[union-attr]  # it is a pipe
            self._process = None

    def send(self, program: Program) -> None:
        """Send a program to the process."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() reports that the process has died
            self._process.stdin.write(json.dumps(program).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> list[Any]:
        """Return the events of the program that was sent. If the process died or hung, the last event says so."""
        answer = self._answer(self._seconds_max)
        assert isinstance(answer, list)
        return answer

    def run(self, program: Program) -> list[Any]:
        """Run a program, and return its events."""
        self.send(program)
        return self.receive()

    def _answer(self, seconds_max: float) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], seconds_max)[0]:
                self.stop()
                return [["hung", f"for {seconds_max:g} s"]]
            part = os.read(descriptor, 1 << 20)
            if not part:
                return [["died", self._last_words()]]
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        """Clean up after a process that has died; return the signal or status and the end of its error output."""
        assert self._process is not None
        status = self._process.wait()
        self.stop()
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace")
        written = written.partition("Current thread's C stack")[0][-2000:]  # which Python 3.14 and later print as well
        return f"{signal.Signals(-status).name if status < 0 else f'status {status}'}\n{written}"
