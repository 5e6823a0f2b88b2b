"""Slots of a real group: processes, and a resource outside of the fleet that counts who is in it.

Processes hold slots for 50 ms each, and tell the resource of each entry and leave by the one monotonic clock that all
processes of a machine share. A process that is killed or stopped is out of the resource from then on; one that goes on
after its lease has ended is refused by its fence, where the resource has seen a larger one (at a limit of one).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


from .processes import wait_until
from .real import ROOT, Fleet
from .servers import RedisServer
from .slot_worker import BEGUN, ENTER, LEAVE, LOST, MESSAGE, WAIT, WRITE

LEASE = 1.0
GAP = 0.002  # a leave may be stamped this much after the slot's next entry, where cores are few


class SlotFleet(Fleet):
    """Processes that hold slots, and all that they have reported."""

    worker = "slot_worker"

    def __init__(self, *, limit: int, lease: float = LEASE, **options: Any) -> None:
        self.limit = limit
        self.entered: dict[tuple[int, int], float] = {}  # by process and fence
        self.left: dict[tuple[int, int], float] = {}
        self.lost: list[tuple[float, int, int]] = []
        self.stale: list[tuple[int, int]] = []  # entries with a smaller fence than one before; in a pool of one
        self.accepted: list[tuple[float, int, int]] = []  # writes: time, process, fence; in a pool of one
        self.refused: list[tuple[float, int, int]] = []  # writes with a smaller fence than one before
        self.highest = 0
        self.absent: list[tuple[int, float, float]] = []  # process, and the times between which it is stopped
        super().__init__(lease=lease, **options)

    def _count(self) -> None:
        while not self._is_closed:
            try:
                message = self._socket.recv(64)
            except TimeoutError:
                continue
            kind, number, value, fence = MESSAGE.unpack(message)
            if kind == ENTER:
                if fence < self.highest:
                    self.stale.append((number, fence))
                self.highest = max(self.highest, fence)
                self.entered[number, fence] = value
            elif kind == WRITE:
                (self.refused if fence < self.highest else self.accepted).append((value, number, fence))
                self.highest = max(self.highest, fence)
            elif kind == LEAVE:
                self.left[number, fence] = value
            elif kind == LOST:
                self.lost.append((value, number, fence))
            elif kind == WAIT:
                self.waits.append(value)
            elif kind == BEGUN:
                self.begun[number] = value

    def add(self, count: int = 1, **options: Any) -> list[int]:
        """Start processes, and return their numbers once they run."""
        numbers = []
        for _ in range(count):
            self._number += 1
            chosen = {"limit": self.limit, **self.options, **options} | {
                "counter": self._socket.getsockname()[1],
                "number": self._number,
            }
            self.processes[self._number] = subprocess.Popen(
                [sys.executable, "-m", f"tests.peers.{self.worker}", json.dumps(chosen)], cwd=ROOT,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip
            numbers.append(self._number)
        wait_until(lambda: set(numbers) <= set(self.begun), "the processes have begun", seconds=60)
        return numbers

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal, and note from when on the process is stopped."""
        if which in (signal.SIGKILL, signal.SIGSTOP):
            self.absent.append((number, time.monotonic(), float("inf")))
        elif which == signal.SIGCONT:
            index = max(i for i, entry in enumerate(self.absent) if entry[0] == number)
            self.absent[index] = (number, self.absent[index][1], time.monotonic())
        super().signal(number, which)

    def wait_for_entry(self, seconds: float = 20.0, *, number: int | None = None) -> float:
        """Wait for the next entry, of one process or of any, and return its time."""
        begin = time.monotonic()

        def found() -> float | None:
            times = [at for (who, _), at in list(self.entered.items()) if at >= begin and number in (None, who)]
            return min(times, default=None)

        wait_until(lambda: found() is not None, "somebody enters", seconds=seconds)
        entered = found()
        assert entered is not None
        return entered

    # Figures.

    def stretches(self) -> list[tuple[float, float]]:
        """Return the times between which each holder was in the resource."""
        end, result = time.monotonic(), []
        for (number, fence), start in list(self.entered.items()):
            stop = self.left.get((number, fence), end)
            for absent, since, _ in self.absent:
                if absent == number and start <= since:
                    stop = min(stop, since)  # later writes are late, and have its fence
            result.append((start, stop))
        return result

    def most(self, start: float = 0.0, end: float = float("inf")) -> int:
        """Return the most holders at once, ignoring overlaps shorter than a leave may be stamped late."""
        times = [
            edge
            for begun, stopped in self.stretches()
            if begun + GAP < stopped and begun < end and stopped > start
            for edge in ((begun + GAP, 1), (stopped, -1))
        ]
        now = worst = 0
        for _, step in sorted(times):
            now += step
            worst = max(worst, now)
        return worst

    def misjudged(self) -> list[tuple[float, int, int]]:
        """Return the writes that the resource judged wrongly by their fences: late ones accepted, and others refused.

        A write is late after another holder has entered. Fences tell that only if they rise with each hand-over.
        """
        entries = sorted((fence, at) for (_, fence), at in list(self.entered.items()))
        wrong = []
        for is_refused, writes in ((False, self.accepted), (True, self.refused)):
            for when, number, fence in list(writes):
                others = [at for _, at in entries if at > self.entered[number, fence]]
                gap = -GAP if is_refused else GAP
                if is_refused is not (bool(others) and min(others) + gap < when):
                    wrong.append((when, number, fence))
        return wrong

    def used(self, start: float, end: float, limit: int | None = None) -> float:
        """Return the part of the slots held between two times."""
        held = sum(max(0.0, min(stop, end) - max(begun, start)) for begun, stop in self.stretches())
        return held / ((self.limit if limit is None else limit) * (end - start))

    def hand_offs(self, start: float, end: float) -> list[float]:
        """Return how long each slot was free between two holders, sorted; valid while somebody always waits."""
        entries = sorted(begun for begun, _ in self.stretches())
        leaves = sorted(stopped for _, stopped in self.stretches())
        pairs = zip(leaves, entries[self.limit :], strict=False)
        return sorted(entered - left for left, entered in pairs if start <= left < end)

    def after(self, seconds: float) -> float:
        """Wait for ``seconds``, and return when that began."""
        start = time.monotonic()
        time.sleep(seconds)
        return start


@contextmanager
def fleet(**options: Any) -> Iterator[SlotFleet]:
    """Yield a fleet without processes, and end it."""
    running = SlotFleet(**options)
    try:
        yield running
    finally:
        running.close()


def percentile(values: list[float], part: float) -> float:
    """Return a percentile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def left(server: RedisServer) -> int:
    """Count the tokens left at the server."""
    with server.client() as client:
        names = [name for name in client.keys("*") if name.endswith(b"::slots")]
        return sum(field.startswith(b"t:") for name in names for field in client.hkeys(name))
