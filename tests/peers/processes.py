"""One process of the server's program: its port, its folder, its log, its start and its end.

All of it is synchronous. No process outlives the test run: see ``guard.py``.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .binaries import find_binary
from .guard import guard

HOST = "127.0.0.1"
START_SECONDS = 10  # a start takes 0.05 s on an idle machine
POLL_SECONDS = 0.02
LOG_LINES_SHOWN = 30

# Below the range of outgoing ports, or one of these could take the port of a server to be restarted.
# A node of a cluster also listens on its port + 10000, which can be chosen only from version 7.0 on.
PORTS = range(10_000, 20_000)
BUS_OFFSET = 10_000

_ports_taken: set[int] = set()
_random = random.Random()  # without a seed, so that a concurrent run draws other ports


class ServerError(Exception):
    """A server did not start, or did not reach an expected state."""


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = START_SECONDS) -> None:
    """Poll until ``condition`` holds; errors of the client count as False, and the last is reported."""
    deadline = time.monotonic() + seconds
    last: redis.RedisError | None = None
    while True:
        try:
            if condition():
                return
        except redis.RedisError as error:
            last = error
        if time.monotonic() > deadline:
            raise ServerError(f"{what}: not within {seconds} s; last error: {last!r}")
        time.sleep(POLL_SECONDS)


def take_port(count: int = 1) -> int:
    """Reserve ports in a row with no listener on them, nor on the ports of their cluster bus; return the first."""
    for _ in range(100):
        port = _random.choice(PORTS)
        row = range(port, port + count)
        if _ports_taken.isdisjoint(row) and all(_is_free(each) and _is_free(each + BUS_OFFSET) for each in row):
            _ports_taken.update(row)
            return port
    raise ServerError(f"no free port among 100 of {PORTS}")


def give_port_back(port: int) -> None:
    """Release the reservation of a port."""
    _ports_taken.discard(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class Process:
    """A process of the server's program, with its own port, folder and log.

    The configuration is written once: servers rewrite theirs, and a restarted sentinel or cluster node should know what
    it knew.
    """

    _options: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.port = take_port()
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self.program = find_binary()
        self.environment: dict[str, str] = {}  # beside that of the tests
        self._process: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def _configure(self, lines: Iterable[str]) -> None:
        text = "\n".join([f"bind {HOST}", f'dir "{self.folder}"', "protected-mode no", *lines, ""])
        (self.folder / "server.conf").write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        state = "stopped" if self.is_stopped else "running" if self.is_running else "ended"
        return f"<{type(self).__name__} port={self.port} {state}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """True while there is a process, even a stopped one."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, f"{self!r} has no process"
        return self._process.pid

    @property
    def control_url(self) -> str:
        """The URL with which the tests reach the server with all rights."""
        return f"redis://{HOST}:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client with all rights and without retries; the caller closes it."""
        defaults = {"socket_timeout": 5, "socket_connect_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        return redis.Redis.from_url(self.control_url, **{**defaults, **options})

    def ask(self, *command: Any) -> Any:
        """Return the reply to one command, decoded."""
        with self.client(decode_responses=True) as client:
            return client.execute_command(*command)

    def start(self) -> None:
        """Start the process, and return once it answers.

        Raises:
            ServerError: if it ends or does not answer, with the end of its log; then it is removed.
        """
        assert not self.is_running, f"{self!r} runs already"
        watch = guard().watch
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program), str(self.folder / "server.conf"), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        watch(self.pid, self.folder)
        try:
            wait_until(lambda: not self.is_running or self._answers(), f"{self!r} answers")
            if not self.is_running:
                raise ServerError(f"{self!r} ended at its start")
        except ServerError as error:
            self.kill()
            raise ServerError(f"{error}\n{self.log()}") from None

    def _answers(self) -> bool:
        """Return True if the process answers, and no other one on its port."""
        return bool(self.ask("PING")) and bool(self.ask("INFO", "server")["process_id"] == self.pid)

    def kill(self) -> None:
        """End the process at once, as in a crash; do nothing if it has ended."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        guard().forget(self._process.pid)
        self._process, self.is_stopped = None, False

    def stop(self) -> None:
        """Stop the process: connections stay open and are accepted, but nothing answers."""
        self.is_stopped = True
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # the signal takes a moment

    def go_on(self) -> None:
        """Continue a stopped process; do nothing if it is not stopped."""
        if self.is_stopped:
            self.is_stopped = False
            os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the process, and start it on the same port with an empty memory."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End the process and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        give_port_back(self.port)

    def log(self) -> str:
        """Return the end of the log."""
        path = self.folder / "server.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        return "\n".join(lines[-LOG_LINES_SHOWN:])
