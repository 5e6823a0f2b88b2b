"""A client for HTTP/1.1 that sends a request by callbacks alone: no task, no timer and no parser is made for it.

A connection keeps its parser (llhttp, by ``httptools``) and carries one request after the other. A connection is opened
only if none is idle, by a task that ends with it. Pipelining, redirects, cookies and HTTP/2 are left out.

Of the idle connections the one used last is taken. So a load uses as few of them as it needs, and those that a burst has
opened are left to the server's idle timeout. Taking them in turn would use each just before that timeout, when the server
may be closing it: a broken connection that is neither's fault. The price is that the few connections lead to few workers
of a server that distributes connections.

The requests in flight are kept in the order in which they were sent. All have the same timeout, so the first of them is
the first to time out, and one timer is enough.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ratelimited_executor.cli.bench.senders import HEAD_BYTES, kind_of, outcome_of_status
from ratelimited_executor.load.recording import LoadOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from ratelimited_executor.cli.bench.open_load import InFlight
    from ratelimited_executor.cli.bench.wire import Origin, Wire

__all__ = ["HttpClient", "http_sender"]

_BUFFER_BYTES: Final = 65_536  # read at once; shared by all connections, as what was read is parsed at once
_SWITCHING: Final = 101  # the one status below 200 that no other follows
_FINAL_STATUS: Final = 200
_HEAD_BYTES_MAX: Final = 1_048_576  # of a response, with those of interim responses before it
_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9]")
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
# That a body ends before the connection does: its length is there, or the last of its codings is chunked (RFC 9112, 6.3).
_HAS_END: Final = re.compile(
    rb"^(content-length[ \t]*:|transfer-encoding[ \t]*:(.*,)?[ \t]*chunked[ \t]*\r?$)", re.IGNORECASE | re.MULTILINE
)
# The coding of RFC 2616 that stands for none, which some servers still name beside the length.
_IDENTITY: Final = re.compile(rb"^transfer-encoding[ \t]*:[ \t]*identity[ \t]*\r?\n", re.IGNORECASE | re.MULTILINE)
_ADDRESS_SECONDS: Final = 1.0  # for one of several addresses to accept a connection, before the next is tried
_CLOSE_SECONDS: Final = 2.0  # for connections to say good-bye


@asynccontextmanager
async def http_sender(wires: Sequence[Sequence[Wire]], *, timeout: float) -> AsyncIterator[HttpClient]:
    """Yield a client that sends the requests of a class in turn.

    Args:
        wires: the requests of each class.
        timeout: seconds after sending at which a request is given up.
    """
    client = HttpClient(wires, timeout=timeout)
    try:
        yield client
    finally:
        await client.close()


class HttpClient:
    """Sends requests over kept connections.

    Args:
        wires: the requests of each class.
        timeout: seconds after sending at which a request is given up.

    Attributes:
        tls: the context of connections by TLS; None if there are none.
        view: what a connection has read, until it has parsed it.
    """

    def __init__(self, wires: Sequence[Sequence[Wire]], *, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._in_flight: dict[InFlight, None] = {}  # in the order of sending
        self._timer: asyncio.TimerHandle | None = None
        self.tls = _tls_context() if any(wire.origin.is_tls for of_class in wires for wire in of_class) else None
        self._pools = {wire.origin: _Pool(self, wire.origin) for of_class in wires for wire in of_class}
        self._wires = [[(wire, self._pools[wire.origin]) for wire in of_class] for of_class in wires]
        self.view = memoryview(bytearray(_BUFFER_BYTES))

    def start(self, request: InFlight) -> None:
        """Send a request."""
        arrival = request.arrival
        of_class = self._wires[arrival.class_index]
        wire, pool = of_class[arrival.turn % len(of_class)] if len(of_class) > 1 else of_class[0]
        data = wire.fixed or wire.of(arrival.number)
        self._in_flight[request] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._expire)
        idle = pool.idle
        while idle:
            connection, _ = idle.popitem()
            if not connection.transport.is_closing():
                connection.send(request, data)
                return
        pool.open(request, data)

    def ended(self, request: InFlight, outcome: LoadOutcome) -> None:
        """End a request, unless it was given up."""
        if request in self._in_flight:
            del self._in_flight[request]
            request.end(outcome)

    def _expire(self) -> None:
        """Give up the requests whose time is over, and wait for the next."""
        while self._in_flight:
            request = next(iter(self._in_flight))
            left = self._timeout - request.age()
            if left > 0:
                self._timer = self._loop.call_later(left, self._expire)
                return
            self._give_up(request)
        self._timer = None

    def give_up_all(self) -> None:
        """End all requests in flight as timed out."""
        for request in list(self._in_flight):
            self._give_up(request)

    def _give_up(self, request: InFlight) -> None:
        request.carrier.give_up()
        self.ended(request, LoadOutcome("timeout"))

    async def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        closing = [connection for pool in self._pools.values() for connection in pool.close()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for connection in closing:
                    await connection.closed.wait()
        for connection in closing:
            connection.transport.abort()
        await asyncio.sleep(0)  # for what is told soon of connections that were aborted


class _Opening:
    """A connection that is being opened for a request."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def give_up(self) -> None:
        """Open it no longer."""
        self._task.cancel()


class _Pool:
    """The connections to one origin.

    Attributes:
        idle: connections without a request; the one used last is the last.
    """

    def __init__(self, client: HttpClient, origin: Origin) -> None:
        self.client = client
        self._origin = origin
        self._loop = asyncio.get_running_loop()
        self._addresses: list[str] = []  # of the host, once one of them has been reached
        self._failed: set[str] = set()  # those of them that did not accept the last connection
        self._finding: asyncio.Task[list[str]] | None = (
            None  # a look-up, which all who wait share: it occupies a thread
        )
        self._opened_count = 0
        self._all: set[_Connection] = set()
        self.idle: dict[_Connection, None] = {}

    def open(self, request: InFlight, data: bytes) -> None:
        """Open a connection, and send a request over it."""
        request.carrier = _Opening(self._loop.create_task(self._open(request, data)))

    async def _open(self, request: InFlight, data: bytes) -> None:
        try:
            connection = await self._connect()
        except Exception as error:  # noqa: BLE001  # of whatever kind: it is that of the request
            self.client.ended(request, LoadOutcome(kind_of(error), str(error)))
            return
        connection.send(request, data)
        if connection.transport.is_closing():  # it was lost before it had a request, and so before anybody was told
            connection.fail("connection broken", "the server closed the connection at once")

    async def _connect(self) -> _Connection:
        """Connect to an address of the host: to each in turn, to the next if one fails, and last to those that failed."""
        addresses = self._addresses or await self._find_addresses()
        first = self._opened_count % len(addresses)
        self._opened_count += 1
        in_turn = addresses[first:] + addresses[:first]
        *others, last = sorted(in_turn, key=self._failed.__contains__)
        for address in others:
            with _skipping_failures():
                self._failed.add(address)  # until it is reached, so that no other connection waits for it as well
                async with asyncio.timeout(_ADDRESS_SECONDS):
                    return await self._connect_to(address, addresses)
        return await self._connect_to(last, addresses)

    async def _find_addresses(self) -> list[str]:
        if self._finding is None:
            self._finding = self._loop.create_task(self._found_addresses())
            self._finding.add_done_callback(self._end_finding)
        return await asyncio.shield(self._finding)

    def _end_finding(self, finding: asyncio.Task[list[str]]) -> None:
        self._finding = None
        if not finding.cancelled():
            finding.exception()  # each who waits has it; there may be none left

    async def _found_addresses(self) -> list[str]:
        found = await self._loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def _connect_to(self, address: str, addresses: list[str]) -> _Connection:
        host, port, is_tls = self._origin
        _, connection = await self._loop.create_connection(
            lambda: _Connection(self),
            address,
            port,
            ssl=self.client.tls if is_tls else None,
            server_hostname=host if is_tls else None,
        )
        self._all.add(connection)
        self._failed.discard(address)
        if not self._addresses:  # of one kind only: the other may be unreachable from here
            self._addresses = [each for each in addresses if (":" in each) == (":" in address)]
        return connection

    def forget(self, connection: _Connection) -> None:
        """Forget a connection that carries no more requests."""
        self.idle.pop(connection, None)
        self._all.discard(connection)

    def close(self) -> list[_Connection]:
        """Begin to close all connections, and return them."""
        if self._finding is not None:
            self._finding.cancel()
        closing = list(self._all)
        for connection in closing:
            connection.transport.close()
        return closing


class _Connection(asyncio.BufferedProtocol):
    """A connection, which carries one request at a time.

    Attributes:
        transport: its transport.
        closed: set once it is closed.
    """

    __slots__ = (
        "_body", "_client", "_is_complete", "_is_kept", "_parser", "_pool", "_raw", "_received", "_request", "_status",
        "closed", "transport",
    )  # fmt: skip

    def __init__(self, pool: _Pool) -> None:
        self._pool, self._client = pool, pool.client
        self._parser = _parser_of(self)
        self.transport: asyncio.Transport
        self.closed = asyncio.Event()
        self._request: InFlight | None = None
        self._body = self._raw = b""  # the beginning of the body; what was read of a response that is not complete
        self._received = self._status = 0
        self._is_complete = False
        self._is_kept = True

    def send(self, request: InFlight, data: bytes) -> None:
        """Send a request."""
        request.carrier = self
        self._request = request
        self._body = self._raw = b""
        self._received = 0
        self._is_complete = False
        self.transport.write(data)

    def give_up(self) -> None:
        """Wait for the response no longer."""
        self._request = None
        self._pool.forget(self)
        self.transport.abort()

    def fail(self, kind: str, sample: str) -> None:
        """End the request with an error, if there is one."""
        request = self._request
        self.give_up()
        if request is not None:
            self._client.ended(request, LoadOutcome(kind, sample))

    # Of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # of a stream

    def get_buffer(self, _: int) -> memoryview:
        return self._client.view

    def buffer_updated(self, count: int) -> None:
        data = self._client.view[:count]
        error = None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._is_kept = False
        except HttpParserError as caught:
            error = self._parse_without_identity(data, caught)
            self._is_kept = self._is_kept and error is None
            data = data[:0]  # it is kept without that line
        if self._request is None:  # nothing was asked: such as that the server has been idle for too long
            self.give_up()
        elif self._is_complete:
            self._complete()
        elif error is not None:
            self.fail("malformed response", str(error))
        elif self._final_head() is None:
            self._raw += data
            if len(self._raw) > _HEAD_BYTES_MAX:
                self.fail("malformed response", f"its head is longer than {_HEAD_BYTES_MAX:,} bytes")

    def _parse_without_identity(self, data: memoryview, error: HttpParserError) -> HttpParserError | None:
        """Parse a response again, if it has failed as it says that its body has no coding; return its error, if any."""
        if self._request is None or self._final_head() is not None:
            return error
        text, count = _IDENTITY.subn(b"", self._raw + data, count=1)
        if not count:
            return error
        self._parser = _parser_of(self)
        try:
            self._parser.feed_data(text)
        except HttpParserError as caught:
            return caught
        self._raw = text
        return None

    def eof_received(self) -> None:
        self._pool.idle.pop(self, None)

    def connection_lost(self, exception: Exception | None) -> None:
        head = self._final_head()
        if self._request is not None and exception is None and head is not None and not _HAS_END.search(head):
            self._is_kept, self._status = False, self._parser.get_status_code()
            self._complete()
        else:
            self.fail("connection broken", str(exception or "the server closed the connection before it had answered"))
        self.closed.set()

    def _final_head(self) -> bytes | None:
        """Return the head of the response, below those of interim ones; None if not all of it has been read before."""
        begin = 0
        while (end := _HEAD_END.search(self._raw, begin)) is not None:
            head = self._raw[begin : end.start()]
            if not _INTERIM.match(head):
                return head
            begin = end.end()
        return None

    def _complete(self) -> None:
        """End the request with its response, and keep the connection if it can carry another."""
        request = self._request
        assert request is not None
        self._request = None
        if self._is_kept and not self.transport.get_write_buffer_size():
            self._pool.idle[self] = None
        else:
            self.give_up()
        self._client.ended(request, outcome_of_status(self._status, self._received, self._body))

    # Of the parser.

    def on_message_begin(self) -> None:
        if self._request is None or self._is_complete:
            self._is_kept = False

    def on_body(self, body: bytes) -> None:
        if self._is_complete:  # of a response that nobody has asked for
            return
        if self._received < HEAD_BYTES:
            self._body += body
        self._received += len(body)

    def on_message_complete(self) -> None:
        if self._is_complete:
            return
        status = self._parser.get_status_code()
        if status < _FINAL_STATUS and status != _SWITCHING:  # another response follows
            return
        self._is_complete = True
        self._status = status
        if status == _SWITCHING or not self._parser.should_keep_alive():
            self._is_kept = False


def _parser_of(connection: _Connection) -> HttpResponseParser:
    """Return a parser that also takes lines that end without a carriage return (RFC 9112, 2.2)."""
    parser = HttpResponseParser(connection)
    parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
    return parser


@contextmanager
def _skipping_failures() -> Iterator[None]:
    """Let another address be tried, unless this one has answered with the wrong certificate."""
    try:
        yield
    except ssl.SSLError:
        raise
    except OSError:
        pass


def _tls_context() -> ssl.SSLContext:
    """Return a context that knows the authorities that the system trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
