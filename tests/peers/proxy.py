"""A TCP proxy with faults on demand: late, lossy, stalled, cut off, or silent.

It runs in a thread with its own event loop, so that it serves processes, threads and the event loop of a test alike,
and knows nothing of virtual time. A test that starts processes beside it must spawn them: Python warns of a fork beside
threads.
"""

import asyncio
import random
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from .processes import HOST, give_port_back, take_port

CALL_SECONDS = 10  # timeout for calls into the proxy's loop, which take a millisecond
POLL_SECONDS = 0.001
RESENT_SECONDS = 0.2  # the least time after which TCP sends a packet again
SILENCE_SECONDS = 0.5  # from a lost reply to the end of its connection
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: an RST instead of a FIN


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts of what has passed a proxy."""

    connections: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0
    lost_replies: int = 0


class Proxy:
    """A proxy before a server's port; a context manager that starts and closes it.

    Args:
        target: the server's port.
        seed: seed of the jitter and the losses, which are drawn in the order in which data arrives.
        certificate: a file with a key and its certificate, to speak TLS with the clients, though not with the server.
            The handshake is neither delayed nor counted.

    ``delay`` and ``jitter`` (seconds, each way), ``resent`` (probability) and ``drop_replies`` (probability) may be set at
    any time. What arrives at once counts as one packet, or as one reply. A packet that is resent is ``RESENT_SECONDS``
    late, as after a loss that TCP makes good. A reply is lost after the server has done its work: the client gets no
    answer, and ``silence`` seconds later the connection is reset.
    """

    def __init__(self, target: int, *, seed: int = 0, certificate: Path | None = None) -> None:
        self.target = target
        self._certificate = certificate
        self._tls = _tls_context(certificate) if certificate is not None else None
        self.delay = 0.0
        self.jitter = 0.0
        self.resent = 0.0
        self.drop_replies = 0.0
        self.silence = SILENCE_SECONDS
        self.port = take_port()
        self._random = random.Random(seed)
        self._counts = Counts()
        self._links: set[_Link] = set()
        self._is_silent = False
        self.is_stalled = False
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the server through the proxy, without a password."""
        if self._certificate is not None:
            return f"rediss://{HOST}:{self.port}/0?ssl_ca_certs={quote(str(self._certificate), safe='')}"
        return f"redis://{HOST}:{self.port}/0"

    @property
    def counts(self) -> Counts:
        """A copy of the counts so far."""
        return replace(self._counts)

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        self._call(self._cut())

    def blackhole(self) -> None:
        """Swallow everything: connections stay open, new ones are accepted, and nothing is answered."""
        self._call(self._fall_silent())

    def stall(self) -> None:
        """Pass nothing on until ``go_on``: connections stay open, and nothing is lost."""
        self.is_stalled = True

    def go_on(self) -> None:
        """Pass on what has arrived since ``stall``, in order."""
        self._call(self._go_on())

    def mend(self) -> None:
        """Undo ``cut`` and ``blackhole``; silent connections are reset, since their data is lost."""
        self._call(self._mend())

    def close(self) -> None:
        """Reset all connections, and end the thread."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._call(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_SECONDS)
        self._loop.close()
        give_port_back(self.port)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await self._loop.create_server(self._accept, HOST, self.port, ssl=self._tls)

    def _accept(self) -> "_End":
        return _Link(self).client

    def enter(self, link: "_Link") -> None:
        """Add a connection; with TLS, once its handshake has succeeded."""
        self._counts.connections += 1
        self._links.add(link)

    def leave(self, link: "_Link") -> None:
        """Remove a connection whose ends are both closed."""
        self._links.discard(link)

    async def _cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._reset(set(self._links))

    async def _fall_silent(self) -> None:
        self._is_silent = True
        for link in self._links:
            link.is_mute = True
        await self._listen()

    async def _mend(self) -> None:
        self._is_silent = False
        await self._reset({link for link in self._links if link.is_mute})
        await self._listen()

    async def _go_on(self) -> None:
        self.is_stalled = False
        for link in self._links:
            link.client.send_held()
            link.server.send_held()

    async def _reset(self, links: "set[_Link]") -> None:
        for link in links:
            link.reset()
        while not links.isdisjoint(self._links):  # each ends in the loop's next turns
            await asyncio.sleep(POLL_SECONDS)

    def draw_delay(self) -> float:
        """Draw the delay of data that has just arrived."""
        is_resent = bool(self.resent) and self._random.random() < self.resent
        return self.delay + (self.jitter * self._random.random() if self.jitter else 0.0) + is_resent * RESENT_SECONDS

    def draw_loss(self) -> bool:
        """Draw if the reply that has just arrived is lost."""
        is_lost = bool(self.drop_replies) and self._random.random() < self.drop_replies
        self._counts.lost_replies += is_lost
        return is_lost


def _tls_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class _Link:
    """A connection of a client, and the matching one to the server."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.loop = proxy._loop
        self.is_mute = False
        self.is_over = False
        self.client = _End(self)
        self.server = _End(self)
        self._connecting: asyncio.Task[None] | None = None

    def other(self, end: "_End") -> "_End":
        return self.server if end is self.client else self.client

    def made(self, end: "_End") -> None:
        assert end.transport is not None
        if self.is_over:
            end.reset()
        elif end is self.server:
            assert self.client.transport is not None
            self.client.transport.resume_reading()
        else:
            self.proxy.enter(self)
            self.is_mute = self.proxy._is_silent
            if not self.is_mute:
                end.transport.pause_reading()
                self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self.loop.create_connection(lambda: self.server, HOST, self.proxy.target)
        except OSError:  # as if the client had found no listener, but for its short connection
            self.reset()
        self._connecting = None
        self.settle()

    def received(self, end: "_End", data: bytes) -> None:
        if self.is_mute:
            return
        if end is self.server and self.proxy.draw_loss():
            self.is_mute = True
            self.loop.call_later(self.proxy.silence, self.reset)
            return
        self.other(end).send(data)

    def count(self, end: "_End", size: int) -> None:
        if end is self.server:
            self.proxy._counts.bytes_to_server += size
        else:
            self.proxy._counts.bytes_to_client += size

    def lost(self, end: "_End", error: Exception | None) -> None:
        if error is not None or self.is_mute:
            self.reset()
        elif not self.is_over:
            self.other(end).send(None)
        self.settle()

    def reset(self) -> None:
        """Reset both connections at once."""
        self.is_over = True
        self.client.reset()
        self.server.reset()

    def settle(self) -> None:
        """Remove the link once nothing is open."""
        if self.client.transport is None and self.server.transport is None and self._connecting is None:
            self.proxy.leave(self)


class _End(asyncio.Protocol):
    """One end of a link, which sends late and in order what the other end receives."""

    def __init__(self, link: _Link) -> None:
        self.transport: asyncio.Transport | None = None
        self._link = link
        self._waiting: deque[bytes | None] = deque()  # None: the other end has closed
        self._last_due = 0.0
        self._held = 0  # of those that wait, how many are due, but held by a stall

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        self._link.received(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._link.lost(self, error)

    def send(self, data: bytes | None) -> None:
        loop = self._link.loop
        self._last_due = max(self._last_due, loop.time() + self._link.proxy.draw_delay())
        self._waiting.append(data)
        loop.call_at(self._last_due, self._send_next)  # timers of one instant have no order, but the queue has

    def send_held(self) -> None:
        """Send what a stall has held."""
        count, self._held = self._held, 0
        for _ in range(count):
            self._send_next()

    def _send_next(self) -> None:
        if self._link.proxy.is_stalled:
            self._held += 1
            return
        data = self._waiting.popleft()
        if self.transport is None or self._link.is_mute:
            return
        if data is None:
            self.transport.close()
        else:
            self._link.count(self, len(data))
            self.transport.write(data)

    def reset(self) -> None:
        if self.transport is not None:
            # Closed already, or released by TLS, if the end of the peer's side has just been noticed.
            connection: socket.socket | None = self.transport.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()
