"""A fleet of processes that share a rate, and all the starts that they have reported. ``bench/real/fleet.py`` has scenarios."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .worker import BEGUN, START

ROOT = Path(__file__).parent.parent.parent
QUARANTINE = 2.5  # seconds at most from a new server to the full rate


class Fleet:
    """Processes, and all the starts that they have reported.

    Args:
        options: options of every worker, such as ``url``: see ``worker.py``.
        rate: starts a second.
    """

    def __init__(self, *, rate: float = 100.0, **options: Any) -> None:
        self.rate = rate
        self.options = options
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.starts: list[tuple[float, int]] = []  # (monotonic time, number of the peer)
        self.begun: dict[int, float] = {}  # when each peer opened its manager
        self.waits: list[float] = []  # seconds from submit to start, of peers that probe
        self._number = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self._is_closed = False
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while not self._is_closed:
            try:
                message = self._socket.recv(64)
            except TimeoutError:
                continue
            kind, number, value = struct.unpack("!Bid", message)
            if kind == START:
                self.starts.append((value, number))
            elif kind == BEGUN:
                self.begun[number] = value
            else:
                self.waits.append(value)

    def add(self, count: int = 1, **options: Any) -> list[int]:
        """Start peers, and return their numbers."""
        numbers = []
        for _ in range(count):
            self._number += 1
            chosen = {
                "rate": self.rate, "load": 20_000, **self.options, **options,
                "counter": self._socket.getsockname()[1], "number": self._number,
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.peers.worker", json.dumps(chosen)]
            # Faults make peers log warnings; an error of a peer shows as missing starts.
            self.processes[self._number] = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip
            numbers.append(self._number)
        return numbers

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to a peer."""
        self.processes[number].send_signal(which)
        if which in (signal.SIGKILL, signal.SIGTERM):
            self.processes.pop(number).wait(timeout=30)

    def wait_for_start(self, seconds: float = 30.0, *, number: int | None = None) -> float:
        """Wait for the next start, of one peer or of any, and return its time."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            for when, other in reversed(self.starts[-200:]):
                if when >= begin and number in (None, other):
                    return when
            time.sleep(0.005)
        raise TimeoutError(f"no start within {seconds} s")

    def close(self) -> None:
        """End every process."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._is_closed = True
        self._thread.join()
        self._socket.close()

    # Figures.

    def count(self, start: float, end: float) -> int:
        """Count the starts between two times."""
        return sum(start <= when < end for when, _ in self.starts)

    def used(self, start: float, end: float) -> float:
        """Return the part of the rate used between two times."""
        return self.count(start, end) / (self.rate * (end - start))

    def by_peer(self, start: float, end: float) -> Counter[int]:
        """Count the starts of each peer between two times."""
        return Counter(number for when, number in self.starts if start <= when < end)

    def worst_window(self, seconds: float = 1.0) -> int:
        """Return the most starts in any window of ``seconds``."""
        times = sorted(when for when, _ in self.starts)
        first = worst = 0
        for index, when in enumerate(times):
            while times[first] <= when - seconds:
                first += 1
            worst = max(worst, index - first + 1)
        return worst

    def variation(self, start: float, end: float) -> float:
        """Return the coefficient of variation of the gaps between starts."""
        times = sorted(when for when, _ in self.starts if start <= when < end)
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        return (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean


@contextmanager
def fleet(**options: Any) -> Iterator[Fleet]:
    """Yield a fleet without peers, and end it."""
    running = Fleet(**options)
    try:
        yield running
    finally:
        running.close()
