"""The server that the tools send to: it answers at once, notes when it has read each request, and may freeze once.

It runs in a process of its own, so that its CPU time is not that of a tool. It prints its port; when its standard input
ends, it writes the times to a file and ends: ``python -m bench.load.server TIMES [AFTER SECONDS]``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from pathlib import Path

__all__ = ["Server"]

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\r\n" + 64 * b"x"
_END = b"\r\n\r\n"
_BACKLOG = 2048  # how many connections may wait while the server is frozen


class Server:
    """The state that all connections share.

    Args:
        freeze: (seconds after the first request, seconds for which the whole process is frozen); None for no freeze.
    """

    def __init__(self, freeze: tuple[float, float] | None = None) -> None:
        self._freeze = freeze
        self.times = array("d")

    def request(self) -> None:
        """Note the time of a request."""
        if not self.times and self._freeze is not None:
            after, seconds = self._freeze
            asyncio.get_running_loop().call_later(after, time.sleep, seconds)
        self.times.append(time.perf_counter())


class _Connection(asyncio.Protocol):
    """Reads requests without bodies."""

    def __init__(self, server: Server) -> None:
        self._server, self._rest = server, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._rest = (self._rest + data).split(_END)
        for _ in requests:
            self._server.request()
        self._transport.write(_ANSWER * len(requests))


async def _serve(server: Server) -> None:
    """Serve until the standard input ends."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=_BACKLOG)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    listening.close()


def main(path: str, *freeze: str) -> None:
    """Serve requests, and write their times to a file."""
    server = Server((float(freeze[0]), float(freeze[1])) if freeze else None)
    asyncio.run(_serve(server))
    Path(path).write_bytes(server.times.tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
