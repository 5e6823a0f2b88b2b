"""``dashboard`` from its options to its exit status: serves a page of the groups in Redis."""

from __future__ import annotations

import errno
import math
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.to_thread
from rich.console import Console

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.operate.peers_command import GroupReader, PeersOptions
from ratelimited_executor.cli.operate.redis_reader import RedisReadError
from ratelimited_executor.cli.screen import print_line
from ratelimited_executor.dashboard.errors import PageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor.cli.operate.peers_view import Picture

__all__ = ["DashboardOptions", "Groups", "serve"]

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_KEPT_SECONDS: Final = 1.0  # for which a reply of Redis, or its absence, is cached for all readers


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """The command line of ``dashboard``, each option valid by itself."""

    url: str
    prefix: str = "rle"
    host: str = "127.0.0.1"
    port: int = 8765
    allowed_hosts: tuple[str, ...] = ()


def serve(options: DashboardOptions) -> ExitStatus:
    """Serve the page until a signal stops the process.

    Raises:
        CommandError: if an extra is missing, Redis cannot be read, or the address is in use.
    """
    try:
        import uvicorn  # noqa: PLC0415  # the extra `dashboard`

        from ratelimited_executor.dashboard.group import make_group_app  # noqa: PLC0415  # the extra `dashboard`
        from ratelimited_executor.dashboard.guards import host_of  # noqa: PLC0415  # the extra `dashboard`
    except ModuleNotFoundError as error:
        raise CommandError(
            f"dashboard needs the package {error.name}: pip install 'ratelimited-executor[dashboard,redis]'"
        ) from error
    hosts = {
        host_of(f"[{name}]" if name.count(":") > 1 else name): name for name in (options.host, *options.allowed_hosts)
    }
    for host, name in hosts.items():
        if not host or "*" in host or " " in host:
            raise CommandError(f"--allow-host must be one name or address such as pages.example, got {name!r}")
    with Groups(options) as groups:
        app = make_group_app(
            groups=groups.names,
            read=groups.read,
            title=f"Groups (prefix {options.prefix})",
            hosts=[*_LOOPBACK, *hosts],
        )
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        with _listen(options) as listener:
            host, port = listener.getsockname()[:2]
            where = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
            print_line(Console(stderr=True, emoji=False), f"Serving the groups at {where}")
            try:
                server.run(sockets=[listener])
            except KeyboardInterrupt:
                return ExitStatus.INTERRUPTED
    return ExitStatus.DONE


def _listen(options: DashboardOptions) -> socket.socket:
    """Return a listening socket; bound here, so that an address in use is an error of the command."""
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        remedy = "; --port 0 takes any free port" if error.errno == errno.EADDRINUSE else ""
        raise CommandError(f"cannot listen on {options.host}, port {options.port}: {error}{remedy}") from error


class Groups:
    """Reads groups for pages, in threads; a context manager that closes its connections.

    Each reply is cached for a second for all readers: a hundred readers cost Redis no more than one.

    Args:
        options: the options of the command.

    Raises:
        CommandError: if Redis cannot be read.
    """

    def __init__(self, options: DashboardOptions) -> None:
        self._kept: dict[str | None, tuple[float, Any]] = {}  # (time of reading, reply) by group; None: the names
        self._lock = anyio.Lock()
        every = PeersOptions(url=options.url, prefix=options.prefix, group="")
        self._reader = GroupReader(every, command="dashboard", argument="REDIS_URL")
        try:
            self._names = self._reader.limit_names()  # by group; if the server cannot be read, the command fails
        except RedisReadError as error:
            self._reader.close()
            raise CommandError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._reader.close()

    async def names(self, age_max: float) -> Sequence[str]:
        """Return the names of all groups.

        Args:
            age_max: seconds that may have passed since they were searched for, as each search scans all keys.

        Raises:
            PageError: if Redis cannot be read.
        """
        self._names = await self._answer(None, self._reader.limit_names, age_max)
        async with self._lock:
            for gone in self._kept.keys() - {None, *self._names}:
                del self._kept[gone]
        return list(self._names)

    async def read(self, group: str) -> Picture:
        """Read one group, with the limits that the last search has found.

        Raises:
            PageError: if Redis cannot be read.
        """
        names = self._names.get(group, ())
        picture: Picture = await self._answer(group, lambda: self._reader.for_group(group).read(names))
        return picture

    async def _answer(self, group: str | None, ask: Callable[[], Any], age_max: float = _KEPT_SECONDS) -> Any:
        async with self._lock:
            read_at, answer = self._kept.get(group, (-math.inf, None))
            age = anyio.current_time() - read_at
            if age > (_KEPT_SECONDS if isinstance(answer, PageError) else age_max):
                try:
                    answer = await anyio.to_thread.run_sync(ask)
                except (RedisReadError, CommandError) as error:
                    answer = PageError(503, str(error))
                self._kept[group] = anyio.current_time(), answer
        if isinstance(answer, PageError):
            raise answer.with_traceback(None)
        return answer
