"""``dashboard`` from its options to its exit status: serves a page of the groups in Redis."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.to_thread
from rich.console import Console

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.peers_command import GroupReader, PeersOptions
from ratelimited_executor.cli.redis_reader import RedisReadError
from ratelimited_executor.dashboard.errors import PageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor.cli.peers_view import Picture

__all__ = ["DashboardOptions", "Groups", "serve"]

_KEPT_SECONDS: Final = 1.0  # for which a reply of Redis, or its absence, is cached for all readers
_SEARCH_SECONDS: Final = 5.0  # between two searches for groups, as each scans all keys of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """The command line of ``dashboard``, each option valid by itself."""

    url: str
    prefix: str = "rle"
    host: str = "127.0.0.1"
    port: int = 8765


def serve(options: DashboardOptions) -> ExitStatus:
    """Serve the page until the process is told to stop.

    Raises:
        CommandError: if an extra is missing, Redis cannot be read, or the address is in use.
    """
    try:
        import uvicorn  # noqa: PLC0415  # the extra `dashboard`

        from ratelimited_executor.dashboard.group import make_group_app  # noqa: PLC0415  # the same
    except ModuleNotFoundError as error:
        raise CommandError(
            f"dashboard needs the package {error.name}: pip install 'ratelimited-executor[dashboard,redis]'"
        ) from error
    with Groups(options) as groups:
        app = make_group_app(groups=groups.names, read=groups.read, title=f"Groups (prefix {options.prefix})")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        with _listen(options) as listener:
            host, port = listener.getsockname()[:2]
            where = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
            Console(stderr=True, emoji=False).print(
                f"Serving the groups at {where}", highlight=False, markup=False, soft_wrap=True
            )
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
        raise CommandError(f"cannot listen on {options.host}, port {options.port}: {error}") from error


class Groups:
    """Reads groups for pages, in threads; a context manager that closes its connections.

    Each reply is cached for a second for all readers: a hundred readers cost Redis no more than one.

    Args:
        options: the options of the command.

    Raises:
        CommandError: if Redis cannot be read.
    """

    def __init__(self, options: DashboardOptions) -> None:
        self._options = options
        self._readers: dict[str, GroupReader] = {}
        self._kept: dict[str, tuple[float, Any]] = {}  # (time of reading, reply) by the group's name, "" for all names
        self._lock = anyio.Lock()
        try:
            self._reader_of("").groups()  # if the server cannot be read, the command fails
        except RedisReadError as error:
            raise CommandError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for reader in self._readers.values():
            reader.close()

    async def names(self) -> Sequence[str]:
        """Return the names of all groups.

        Raises:
            PageError: if Redis cannot be read.
        """
        names: Sequence[str] = await self._answer("", GroupReader.groups, _SEARCH_SECONDS)
        async with self._lock:
            for gone in self._readers.keys() - {"", *names}:
                self._readers.pop(gone).close()
                self._kept.pop(gone, None)
        return names

    async def read(self, group: str) -> Picture:
        """Read one group.

        Raises:
            PageError: if Redis cannot be read.
        """
        picture: Picture = await self._answer(group, GroupReader.read)
        return picture

    async def _answer(self, group: str, ask: Callable[[GroupReader], Any], kept_seconds: float = _KEPT_SECONDS) -> Any:
        async with self._lock:
            read_at, answer = self._kept.get(group, (-math.inf, None))
            if anyio.current_time() - read_at > kept_seconds:
                try:
                    answer = await anyio.to_thread.run_sync(lambda: ask(self._reader_of(group)))
                except (RedisReadError, CommandError) as error:
                    answer = PageError(503, str(error))
                self._kept[group] = anyio.current_time(), answer
        if isinstance(answer, PageError):
            raise answer.with_traceback(None)
        return answer

    def _reader_of(self, group: str) -> GroupReader:
        reader = self._readers.get(group)
        if reader is None:
            options = PeersOptions(url=self._options.url, prefix=self._options.prefix, group=group)
            reader = self._readers[group] = GroupReader(options, command="dashboard", argument="REDIS_URL")
        return reader
