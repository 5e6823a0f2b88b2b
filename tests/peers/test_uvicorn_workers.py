"""Three processes of ``uvicorn --workers 3``, not coordinated otherwise, keep one rate together.

Real processes, a real server and real time. A start is stamped by its process after the permit was checked. On a
machine with fewer cores than busy processes it may be held up in between, so windows are allowed one more start.
"""

from __future__ import annotations

import json
import math
import signal
import socket
import struct
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from ratelimited_executor.peers.redis.ticket_script import ticket_keys_of

from ..helpers import until
from ..serving import Serving, serving
from .app import GROUP, MESSAGE, NAME, VARIABLE
from .servers import RedisServer

pytestmark = [
    pytest.mark.real_time("processes of a web server, and a server of their own"),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]
RATE = 100
WORKERS = 3
START_SECONDS = 60  # imports of the application by three processes on a busy machine; 2 s on an idle one
STOP_SECONDS = 10


class Counted:
    """Counts starts that processes report by datagram; a context manager."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, int]] = []  # (monotonic time, process id)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self._is_over = False
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()

    @property
    def port(self) -> int:
        """The port for reports of starts."""
        port: int = self._socket.getsockname()[1]
        return port

    def by_process(self, start: float, end: float) -> Counter[int]:
        """Count the starts of each process between two times."""
        return Counter(pid for when, pid in list(self.starts) if start <= when < end)

    def worst_second(self) -> int:
        """Return the most starts in any window of a second, its end excluded."""
        times = sorted(when for when, _ in self.starts)
        return max((bisect_left(times, when + 1) - index for index, when in enumerate(times)), default=0)

    def _receive(self) -> None:
        while not self._is_over:
            with suppress(TimeoutError):
                pid, when = struct.unpack(MESSAGE, self._socket.recv(64))
                self.starts.append((when, pid))


class Service(Serving):
    """The running service, of several workers."""

    def ask(self, seconds: float = START_SECONDS) -> dict[int, dict[str, Any]]:
        """Ask until each worker has answered, with all workers in the plan; return the answers by process id."""
        end = time.monotonic() + seconds
        answers: dict[int, dict[str, Any]] = {}
        with httpx.Client(timeout=30, headers={"Connection": "close"}) as client:  # any worker may accept the next one
            while len(answers) < WORKERS or any(answer["peers"] != WORKERS for answer in answers.values()):
                assert time.monotonic() < end, f"{answers}\n{self.log.read_text()}"
                with suppress(httpx.ConnectError):  # the address is logged before anybody listens there
                    answer = client.get(f"{self.url}/fleet").json()
                    answers[answer["pid"]] = answer
                time.sleep(0.02)
        return answers


@contextmanager
def service(log: Path, settings: dict[str, Any]) -> Iterator[Service]:
    """Start uvicorn as a user would, on a free port that it logs, and end all of its processes afterwards."""
    arguments = ["-m", "uvicorn", "tests.peers.app:app", "--port", "0", "--workers", str(WORKERS)]
    variables = {VARIABLE: json.dumps(settings), "PYTHONDONTWRITEBYTECODE": "1"}
    with serving(arguments, log, folder=ROOT, variables=variables) as running:
        yield Service(running.process, running.url, running.log)


def test_workers_are_peers_and_keep_one_rate(redis_server: RedisServer, tmp_path: Path) -> None:
    """Each worker is a peer with its own id; together they use the rate, and leave on SIGTERM."""
    seen = ticket_keys_of("rle", GROUP, NAME)[-1]
    settings = {"url": redis_server.url, "rate": RATE, "load": 5000}
    with Counted() as counted, service(tmp_path / "log", {**settings, "counter": counted.port}) as running:
        answers = running.ask()
        assert WORKERS == len({answer["id"] for answer in answers.values()})
        assert {"active"} == {answer["state"] for answer in answers.values()}
        known = [each for each in redis_server.ask("ZRANGE", seen, 0, -1) if each[0] != "!"]
        assert {answer["id"] for answer in answers.values()} == {each.rpartition(":")[0] for each in known}

        start = time.monotonic()
        until(lambda: all(counted.by_process(start, math.inf)[pid] >= 60 for pid in answers))  # each has a part

        running.process.terminate()
        assert running.process.wait(STOP_SECONDS) in (0, -signal.SIGTERM)
        stopped = time.monotonic()
        time.sleep(0.3)
        assert 0 == counted.by_process(stopped, stopped + 1).total()
    text = running.log.read_text()
    assert WORKERS == text.count("Application shutdown complete"), text
    assert "Traceback" not in text
    told = [line for line in text.splitlines() if "fleet:" in line and "machine was suspended" not in line]
    assert [] == told  # a busy machine may suspend a process; that is not the group's fault
    assert counted.worst_second() <= RATE + 1


def test_workers_keep_one_rate_by_a_file(tmp_path: Path) -> None:
    """Workers with a file use one rate together from the start, each a part of it, and leave on SIGTERM."""
    settings = {"file": str(tmp_path / "app.limits"), "rate": RATE, "load": 5000}
    with Counted() as counted, service(tmp_path / "log", {**settings, "counter": counted.port}) as running:
        answers = running.ask()
        assert WORKERS == len({answer["id"] for answer in answers.values()})
        start = time.monotonic()
        until(lambda: all(counted.by_process(start, math.inf)[pid] >= 60 for pid in answers))  # each has a part
        running.process.terminate()
        assert running.process.wait(STOP_SECONDS) in (0, -signal.SIGTERM)
    text = running.log.read_text()
    assert WORKERS == text.count("Application shutdown complete"), text
    assert "Traceback" not in text
    assert counted.worst_second() <= RATE + 1
