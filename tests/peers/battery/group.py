"""A group of processes, forked by one, and told what to do by sockets."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..guard import guard
from ..processes import wait_until
from .families import FAMILIES
from .resource import Resource

ROOT = Path(__file__).parents[3]


class Group:
    """Processes of a group; a context manager that ends them.

    Args:
        resource: what counts their starts.
        families: names of families.
        peers: by which each process makes its peers, see ``worker.py``.
        environment: of the processes, beside that of the tests.
        log: level of what processes log to stderr; "" for nothing.
    """

    def __init__(
        self,
        resource: Resource,
        families: Iterable[str],
        peers: Mapping[str, Any],
        environment: Mapping[str, str],
        log: str = "",
    ) -> None:
        self.resource = resource
        self.pids: dict[int, int] = {}
        self._families = [{"name": name, **dataclasses.asdict(FAMILIES[name]), "laws": ()} for name in families]
        self._peers = dict(peers)
        self._log = log
        self._number = 0
        self.folder = Path(tempfile.mkdtemp(prefix="battery-"))
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._control.bind(str(self.folder / "group"))
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.peers.battery.worker"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if log else subprocess.DEVNULL,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        )  # fmt: skip
        guard().watch(self._parent.pid, self.folder)

    def __enter__(self) -> Group:
        assert self._parent.stdout is not None
        if self._parent.stdout.readline() != "ready\n":
            raise RuntimeError("the process that forks the others did not start; log='WARNING' shows why")
        return self

    def __exit__(self, *exception: object) -> None:
        for process in list(self.pids):
            self.signal(process, signal.SIGKILL)
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.stdout.close()
        self._parent.wait(10)
        guard().forget(self._parent.pid)
        self._control.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, count: int = 1, **peers: Any) -> list[int]:
        """Start processes, which may reach the authority in another way; return their numbers once they run."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        numbers = []
        for _ in range(count):
            self._number += 1
            options = {
                "process": self._number, "folder": str(self.folder), "resource": self.resource.port, "log": self._log,
                "families": self._families, "peers": {**self._peers, **peers},
            }  # fmt: skip
            self._parent.stdin.write(json.dumps(options) + "\n")
            self._parent.stdin.flush()
            self.pids[self._number] = int(self._parent.stdout.readline())
            guard().watch(self.pids[self._number], self.folder)
            numbers.append(self._number)
        wait_until(lambda: set(numbers) <= self.resource.ready, "the processes have begun", seconds=30)
        return numbers

    def signal(self, process: int, which: signal.Signals) -> None:
        """Send a signal; the resource knows of those that are killed or stopped."""
        pid = self.pids[process]
        if which == signal.SIGSTOP:
            self.resource.absences.stopped.append((process, time.monotonic()))
        try:
            os.kill(pid, which)
        except ProcessLookupError:
            pass
        if which in (signal.SIGKILL, signal.SIGTERM):
            del self.pids[process]
            guard().forget(pid)
        if which == signal.SIGKILL:
            self.resource.absences.killed[process] = time.monotonic()

    def tell(self, process: int, **command: Any) -> None:
        """Send a command."""
        self._control.sendto(json.dumps(command).encode(), str(self.folder / str(process)))

    def reports(self, seconds: float = 5.0) -> tuple[dict[str, int], Counter[str], set[int]]:
        """Return tasks lost by family, errors of tasks, and the processes that do not answer."""
        silent = set(self.pids)
        for process in silent:
            self.tell(process, report=True)
        unstarted: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        deadline = time.monotonic() + seconds
        while silent and time.monotonic() < deadline:
            self._control.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                report = json.loads(self._control.recv(65_536))
            except TimeoutError:
                break
            silent.discard(report["process"])
            for name, count in report["unstarted"].items():
                unstarted[name] += abs(count)
            errors.update(report["errors"])
        return dict(unstarted), errors, silent
