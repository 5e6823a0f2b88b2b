"""A real fleet: processes, a real server, and a counter of starts outside of the fleet.

    python -m tests.peers.real              # every scenario, a line each: ten processes, a few minutes
    python -m tests.peers.real crash stop   # some of them

What makes a number lie: starts are counted by the times that the processes read right in the task, on the one monotonic
clock that all processes of a machine share; on a machine with fewer cores than busy processes a start may be delayed after
its permit was checked, which is the gap that no limiter in the client can close.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .servers import RedisServer, redis_cluster, sentinel_group
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


# Scenarios: each returns its figures; the worst window is checked for all of them.


def steady(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Ten peers from a cold start, without faults."""
    with fleet(url=server.url) as running:
        running.add(10)
        first = running.wait_for_start()
        time.sleep(14)
        start, end = first + 4, first + 14
        return running, {
            "used": running.used(start, end),
            "variation of gaps": running.variation(start, end),
        }


def scale_out(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """One peer, then nine more."""
    with fleet(url=server.url) as running:
        running.add(1)
        running.wait_for_start()
        time.sleep(2)
        start = time.monotonic()
        running.add(9)
        time.sleep(8)
        return running, {"used": running.used(start, start + 8)}


def join(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """One peer, then five more, one after the other."""
    with fleet(url=server.url) as running:
        running.add(1)
        running.wait_for_start()
        time.sleep(3)
        waits = []
        for _ in range(5):
            (number,) = running.add(1, load=2000)
            waits.append(running.wait_for_start(number=number) - running.begun[number])
            time.sleep(0.7)
        return running, {"a joiner's first start, worst": max(waits)}


def rolling_restart(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers, each of which leaves in order and is replaced."""
    with fleet(url=server.url) as running:
        numbers = running.add(6)
        running.wait_for_start()
        time.sleep(3)
        start = time.monotonic()
        for number in numbers:
            running.signal(number, signal.SIGTERM)
            running.add(1)
            time.sleep(2)
        return running, {"used": running.used(start, time.monotonic())}


def crash(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Ten peers, of which three are killed."""
    with fleet(url=server.url) as running:
        numbers = running.add(10)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        for number in numbers[:3]:
            running.signal(number, signal.SIGKILL)
        time.sleep(7)
        return running, {
            "used in the first second": running.used(start, start + 1),
            "used from then on": running.used(start + 1, start + 7),
        }


def stop(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers, of which one is stopped for ten seconds."""
    with fleet(url=server.url) as running:
        numbers = running.add(6)
        running.wait_for_start()
        time.sleep(3)
        start = time.monotonic()
        running.signal(numbers[0], signal.SIGSTOP)
        time.sleep(10)
        running.signal(numbers[0], signal.SIGCONT)
        time.sleep(3)
        return running, {"used": running.used(start + 1, start + 13)}


def outage(server: RedisServer, seconds: float = 30.0) -> tuple[Fleet, dict[str, Any]]:
    """Six peers whose server is down for half a minute, and comes back empty."""
    with fleet(url=server.url) as running:
        running.add(6)
        running.wait_for_start()
        time.sleep(3)
        server.kill()
        down = time.monotonic()
        time.sleep(seconds)
        server.restart()
        back = time.monotonic()
        first = running.wait_for_start()
        time.sleep(5)
        return running, {
            "starts while away": running.count(down + 0.6, back),
            "first start after": first - back,
            "used afterwards": running.used(first + 1, first + 5),
        }


def script_flush(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Four peers whose server forgets its scripts repeatedly."""
    with fleet(url=server.url) as running:
        running.add(4)
        running.wait_for_start()
        time.sleep(3)
        start = time.monotonic()
        for _ in range(8):
            server.ask("SCRIPT", "FLUSH")
            time.sleep(0.5)
        return running, {"used": running.used(start, start + 4)}


def fail_over(_: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers behind sentinels, whose master is killed."""
    with sentinel_group() as group, fleet(sentinels=group.addresses, master=group.name, url="") as running:
        running.add(6)
        running.wait_for_start()
        time.sleep(4)
        old = group.master()
        down = time.monotonic()
        old.kill()
        group.wait_failed_over(old)
        promoted = time.monotonic()
        first = running.wait_for_start()
        time.sleep(5)
        return running, {
            "failover took": promoted - down,
            "first start after it": first - promoted,
            "used afterwards": running.used(first + 1, first + 5),
        }


def cluster(_: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers on a cluster of three masters."""
    with redis_cluster(3) as servers, fleet(url=servers.url, cluster=True) as running:
        running.add(6)
        first = running.wait_for_start()
        time.sleep(8)
        return running, {"used": running.used(first + 3, first + 8)}


def slow_rate(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Ten peers at one start a second."""
    with fleet(url=server.url, rate=1.0) as running:
        running.add(10)
        first = running.wait_for_start()
        time.sleep(30.5)
        return running, {"starts in 30 s": running.count(first, first + 30)}


def busy_one(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """One busy peer, and nine that start a task every twenty seconds."""
    with fleet(url=server.url) as running:
        (busy,) = running.add(1)
        running.add(9, load=0, flow=0.05)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        time.sleep(15)
        return running, {"used by it": running.by_peer(start, start + 15)[busy] / (15 * running.rate)}


def idle_submit(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Nine peers that use half of the rate, and an idle one with a task due now a few times a second."""
    with fleet(url=server.url) as running:
        running.add(9, load=0, flow=5.5)
        running.add(1, load=0, probe=0.25)
        running.wait_for_start()
        time.sleep(4)
        running.waits.clear()
        time.sleep(60)
        waits = sorted(running.waits)
        return running, {
            "submits": len(waits),
            "half start within": waits[len(waits) // 2],
            "99 % within": waits[math.ceil(len(waits) * 0.99) - 1],
        }


def weights(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Three busy peers of weights 1, 1 and 3, and three that start two tasks a second."""
    with fleet(url=server.url) as running:
        numbers = [*running.add(2), *running.add(1, weight=3)]
        running.add(3, load=0, flow=2)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        time.sleep(40)
        counts = running.by_peer(start, start + 40)
        shares = [counts[number] / sum(counts[other] for other in numbers) for number in numbers]
        return running, {f"share of {number}": share for number, share in zip("ABC", shares, strict=True)}


def lag(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Four peers whose event loops are blocked half of the time, for 5 ms on average."""
    with fleet(url=server.url) as running:
        running.add(4, lag=0.005)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        time.sleep(20)
        return running, {"used": running.used(start, start + 20)}


SCENARIOS: dict[str, Callable[[RedisServer], tuple[Fleet, dict[str, Any]]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        steady, scale_out, join, rolling_restart, crash, stop, outage, script_flush, fail_over, cluster, slow_rate, busy_one,
        idle_submit, weights, lag,
    )
}  # fmt: skip


def main() -> None:
    """Run scenarios, and print their figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    chosen = parser.parse_args().scenarios or list(SCENARIOS)
    with RedisServer() as server:
        for name in chosen:
            if not server.is_running:
                server.restart()
            server.flush()
            running, figures = SCENARIOS[name](server)
            text = ", ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
            )
            print(f"{name:16} worst second {running.worst_window()} of {running.rate:g}; {text}", flush=True)


if __name__ == "__main__":
    main()
