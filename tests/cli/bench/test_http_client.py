"""The two HTTP clients against a server that does what its script says: they count and classify alike.

Sockets are real, so loads run in real time; they are short, and tests assert counts and kinds.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from ratelimited_executor.cli.bench.aiohttp_client import aiohttp_sender
from ratelimited_executor.cli.bench.http_client import HttpClient, _Connection, http_sender
from ratelimited_executor.cli.bench.open_load import InFlight, OpenLoad
from ratelimited_executor.cli.bench.senders import kind_of
from ratelimited_executor.cli.bench.wire import wire_of
from ratelimited_executor.cli.stopping import Stop
from ratelimited_executor.load.arrivals import Arrival, Phase, Schedule
from ratelimited_executor.load.figures import Figures
from ratelimited_executor.load.requests import RequestTemplate
from tests.peers.certificates import make_certificate

pytestmark = pytest.mark.real_time("sockets have no virtual time")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GZIPPED = gzip.compress(b"out of pencils")


class ScriptedServer:
    """Sends the same answer to each request, whatever is in it, and notes what it has read.

    Args:
        answer: what it sends, piece by piece, each in a segment of its own.
        then: "keep" the connection, "close" it, or "reset" it.
        reads_bodies: False to answer, and read no more, when the head has come.
    """

    def __init__(self, *answer: bytes, then: str = "keep", reads_bodies: bool = True) -> None:
        self._answer, self._then, self._reads_bodies = answer, then, reads_bodies
        self._writers: list[asyncio.StreamWriter] = []
        self.connection_count = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
                )
                if self._reads_bodies:
                    self.bodies.append(await reader.readexactly(length))
                for piece in self._answer:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002 if len(self._answer) > 1 else 0)
                if self._then == "close":
                    break
                if self._then == "reset":
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/"
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)


def sender_of(client: str, templates: list[RequestTemplate], *, timeout: float):
    if client == "aiohttp":
        return aiohttp_sender([templates], connections=100, timeout=timeout)
    return http_sender([[wire_of(template) for template in templates]], timeout=timeout)


async def figures_of(
    client: str,
    *templates: RequestTemplate,
    rate: float = 50,
    count: int = 5,
    timeout: float = 5,
    connections: int = 100,
) -> Figures:
    """Return the figures of a short load."""
    async with sender_of(client, list(templates), timeout=timeout) as sender:
        return await play(sender, rate=rate, count=count, connections=connections)


async def play(sender, *, rate: float = 50, count: int = 5, connections: int = 100) -> Figures:
    """Send a short load."""
    schedule = Schedule(classes={"": [Phase(first=rate, last=rate, seconds=count / rate)]})
    return await OpenLoad(schedule, sender, kind_of=kind_of, connections=connections, drain=5).play(Stop())


both = pytest.mark.parametrize("client", ["own", "aiohttp"])


@both
@pytest.mark.parametrize(
    ("answer", "then", "status", "received", "connections"),
    [
        ([OK], "keep", 200, 2, 1),
        ([OK], "close", 200, 2, 5),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", b"cd"], "keep", 200, 4, 1),
        ([bytes([each]) for each in OK], "keep", 200, 2, 1),
        ([b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"], "keep", 200, 2, 5),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"], "keep", 200, 2, 5),
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil", b" the end"], "close", 200, 13, 5),
        ([b"HTTP/1.1 200 OK\r\n\r\n"], "close", 200, 0, 5),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n", b"2\r\nde\r\n0\r\nX: y\r\n\r\n"], "keep", 200, 5, 1),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], "keep", 204, 0, 1),
        ([b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"], "keep", 304, 0, 1),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK], "keep", 200, 2, 1),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\nend"], "close", 200, 3, 5),
    ],
)  # fmt: skip
async def test_response_is_read_to_its_end(client, answer, then, status, received, connections) -> None:
    """A response ends where its headers say, and its connection is used again if it may be."""
    async with (
        ScriptedServer(*answer, then=then).running() as server,
        sender_of(client, [RequestTemplate(url=server.url)], timeout=5) as sender,
    ):
        for _ in range(5):  # one by one: a server that says nothing before it closes may do so while a request is sent
            figures = await play(sender, count=1, connections=1)
            assert ({}, {status: 1}, received) == (figures.errors, figures.statuses, figures.received)
            await asyncio.sleep(0.01)  # by then the end of the connection has been read
    assert connections == server.connection_count


@both
@pytest.mark.parametrize(
    ("answer", "then", "kind"),
    [
        ([], "close", "connection broken"),
        ([], "reset", "connection broken"),
        ([], "keep", "timeout"),
        ([b"HTTP/1.1 200 OK\r\nConte"], "close", "connection broken"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], "close", "connection broken"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], "reset", "connection broken"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], "keep", "timeout"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok"], "close", "connection broken"),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n"], "close", "connection broken"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "keep", "malformed response"),
        ([b"HTTP/1.1 nonsense\r\n\r\n"], "close", "malformed response"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n"], "keep", "malformed response"),
        ([b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"], "keep", "status 500"),
    ],
)
async def test_errors_are_classified(client, answer, then, kind) -> None:
    """A response that is broken off, malformed or missing is an error of its kind, and does not end the load."""
    async with ScriptedServer(*answer, then=then).running() as server:
        figures = await figures_of(client, RequestTemplate(url=server.url), timeout=0.3 if kind == "timeout" else 60)

    assert {kind: 5} == figures.errors
    assert figures.response_times.most < 60


@pytest.mark.parametrize(
    ("answer", "then", "connections"),
    [
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok"], "keep", 1),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-", b"Encoding: Identity\r\n\r\n", b"ok"], "keep", 1),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nok"], "close", 5),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok"], "close", 5),
        ([b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"], "keep", 1),
        ([b"HTTP/1.1 200 OK\nServer: old\n\n", b"ok"], "close", 5),
        ([b"HTTP/1.1 200 OK\r\nX: " + 70_000 * b"a" + b"\r\nContent-Length: 2\r\n\r\nok"], "keep", 1),
        ([b"HTTP/1.1 200 OK\r\n" + 20_000 * b"X: y\r\n" + b"\r\nok"], "close", 5),
    ],
    ids=["identity", "identity in pieces", "identity to the end", "gzip to the end", "LF", "LF to the end", "long line", "many lines"],
)  # fmt: skip
async def test_response_of_an_unusual_server_is_read(answer, then, connections) -> None:
    """The coding that stands for none, lines without a carriage return, and heads longer than a buffer are answers."""
    async with ScriptedServer(*answer, then=then).running() as server:
        figures = await figures_of("own", RequestTemplate(url=server.url), connections=1)

    assert ({}, {200: 5}, 10) == (figures.errors, figures.statuses, figures.received)
    assert connections == server.connection_count


@pytest.mark.parametrize(
    ("answer", "then", "kind"),
    [
        ([b"HTTP/1.1 200 OK\r\nX: " + 2_000_000 * b"a"], "keep", "malformed response"),
        ([b"HTTP/1.1 200 OK\r\nX: " + 70_000 * b"a" + b"\r\nContent-Length: 9\r\n\r\nok"], "close", "connection broken"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n9\r\nok"], "close", "connection broken"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n", b"Transfer-Encoding: identity\r\nX: y\r\n\r\nok"], "close", "connection broken"),
        ([50_000 * b"HTTP/1.1 100 Continue\r\n\r\n"], "keep", "malformed response"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: two\r\n\r\n"], "keep", "malformed response"),
    ],
    ids=["endless head", "long line", "last chunk missing", "identity later than the length", "endless interim", "no number"],
)  # fmt: skip
async def test_response_of_an_unusual_server_may_be_broken(answer, then, kind) -> None:
    """What is read leniently is no answer if its end is missing, and a head may have a megabyte."""
    async with ScriptedServer(*answer, then=then).running() as server:
        figures = await figures_of("own", RequestTemplate(url=server.url), timeout=60)

    assert {kind: 5} == figures.errors


async def test_broken_chunk_is_malformed() -> None:
    """A chunk without a length cannot be read, so the response is malformed, and its connection is not used again."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    async with ScriptedServer(answer).running() as server:
        figures = await figures_of("own", RequestTemplate(url=server.url), timeout=60)

    assert ({"malformed response": 5}, 5) == (figures.errors, server.connection_count)


@both
async def test_bad_response_is_quoted_even_if_compressed(client) -> None:
    """The sample of a bad status is the beginning of its text."""
    answer = b"HTTP/1.1 503 No\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(GZIPPED) + GZIPPED
    async with ScriptedServer(answer).running() as server:
        figures = await figures_of(client, RequestTemplate(url=server.url))

    assert {"status 503": "out of pencils"} == figures.samples


@pytest.mark.parametrize("more", [b"unasked", OK], ids=["nonsense", "a second response"])
async def test_connection_with_more_than_was_asked_for_is_not_used_again(more) -> None:
    """What follows a response belongs to no request, so it is no answer to the next one."""
    async with ScriptedServer(OK + more).running() as server:
        figures = await figures_of("own", RequestTemplate(url=server.url))

    assert ({}, {200: 5}, 10) == (figures.errors, figures.statuses, figures.received)
    assert 5 == server.connection_count


async def test_switched_protocol_is_an_answer_and_the_end_of_the_connection() -> None:
    """A response of status 101 is counted, and its connection speaks something else from then on."""
    answer = b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n\x00\x01"
    async with ScriptedServer(answer).running() as server:
        figures = await figures_of("own", RequestTemplate(url=server.url))

    assert ({}, {101: 5}, 5) == (figures.errors, figures.statuses, server.connection_count)


async def test_response_may_come_before_the_request_has_been_read() -> None:
    """A server that refuses a large body after the head has answered; the rest of the request is not waited for."""
    answer = b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno"
    async with ScriptedServer(answer, reads_bodies=False).running() as server:
        template = RequestTemplate(url=server.url, method="POST", body="x" * 8_000_000)
        figures = await figures_of("own", template, count=2, timeout=3)

    assert {"status 413": 2} == figures.errors


class _Transport:
    """A transport that notes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


async def test_of_the_idle_connections_the_one_used_last_is_taken() -> None:
    """A burst opens many connections, and later requests need only the few that were used last."""
    wire = wire_of(RequestTemplate(url="http://host/{n}"))
    client = HttpClient([[wire]], timeout=5)
    pool = client._pools[wire.origin]
    connections = [_Connection(pool) for _ in range(3)]
    for connection in connections:
        connection.connection_made(_Transport())
        pool.idle[connection] = None
    load = OpenLoad(
        Schedule(classes={"": [Phase(first=1, last=1, seconds=1)]}), client, kind_of=kind_of, connections=9, drain=1
    )
    for number in range(2):
        client.start(InFlight(load, Arrival(number, 0.0, 0), 0.0, 0.0))

    assert [0, 1, 1] == [len(each.transport.written) for each in connections]
    assert [connections[0]] == list(pool.idle)
    await client.close()


async def test_connection_that_the_server_closes_while_idle_is_no_error() -> None:
    """A connection that was closed between two requests is replaced."""

    class Closing(ScriptedServer):
        async def _serve(self, reader, writer) -> None:
            asyncio.get_running_loop().call_later(0.1, writer.close)
            await super()._serve(reader, writer)

    async with Closing(OK).running() as server:
        figures = await figures_of("own", RequestTemplate(url=server.url), rate=4, count=3)

    assert ({}, {200: 3}, 3) == (figures.errors, figures.statuses, server.connection_count)


@both
async def test_number_credentials_and_body_are_sent(client) -> None:
    """URL and body have the number, and the user of a URL becomes a header."""
    async with ScriptedServer(OK).running() as server:
        url = server.url.replace("://", "://user:p%40ss@") + "a b/{n:03}?x={n}"
        await figures_of(client, RequestTemplate(url=url, method="PUT", headers={"X-Test": "ü"}, body="<{n}>"), count=2)

    lines = sorted(head.decode().split("\r\n") for head in server.heads)  # each may have a connection of its own
    assert ["PUT /a%20b/000?x=0 HTTP/1.1", "PUT /a%20b/001?x=1 HTTP/1.1"] == [each[0] for each in lines]
    assert [b"<0>", b"<1>"] == sorted(server.bodies)
    for each in lines:
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in each[1:] if line)}
        assert ("3", "ü", "application/octet-stream") == tuple(
            headers[name] for name in ("content-length", "x-test", "content-type")
        )
        assert "Basic dXNlcjpwQHNz" == headers["authorization"]
        assert server.url == f"http://{headers['host']}/"


@both
async def test_tls_is_verified(client, monkeypatch, tmp_path) -> None:
    """A certificate whose authority is unknown is an error of its kind, and one that is known is used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = make_certificate(tmp_path)
    context.load_cert_chain(certificate)
    async with ScriptedServer(OK).running(context) as server:
        refused = await figures_of(client, RequestTemplate(url=server.url))
        if client == "own":
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            trusted = await figures_of(client, RequestTemplate(url=server.url))
            assert ({}, {200: 5}, 10) == (trusted.errors, trusted.statuses, trusted.received)

    assert {"tls": 5} == refused.errors


@both
async def test_plain_port_is_no_tls(client) -> None:
    """A server that does not speak TLS ends the handshake, which is an error of a known kind."""
    async with ScriptedServer(b"HTTP/1.1 400 Bad\r\n\r\n", then="close", reads_bodies=False).running() as server:
        figures = await figures_of(client, RequestTemplate(url=server.url.replace("http:", "https:")), timeout=1)

    assert set(figures.errors) <= {"tls", "connection broken", "timeout"}
    assert 5 == figures.error_count


@both
@pytest.mark.parametrize(
    ("url", "kind"), [("http://name.invalid/", "name not found"), ("http://127.0.0.1:1/", "refused")]
)
async def test_server_that_is_not_there_is_an_error(client, url, kind) -> None:
    """A name that nobody knows, and a port where nobody listens, are errors by these names."""
    figures = await figures_of(client, RequestTemplate(url=url), count=2)

    assert {kind: 2} == figures.errors


async def test_connections_that_are_opened_share_a_look_up(monkeypatch) -> None:
    """A slow resolver is asked once at a time, as each look-up occupies a thread; a request that is given up ends no other."""
    loop, counts = asyncio.get_running_loop(), []

    async def look_up(*args, **options):
        counts.append(args)
        await asyncio.sleep(0.4)
        if len(counts) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with ScriptedServer(OK).running() as server:
        port = int(server.url.split(":")[2].strip("/"))
        monkeypatch.setattr(loop, "getaddrinfo", look_up)
        url = f"http://slow.example:{port}/"
        failed = await figures_of("own", RequestTemplate(url=url), rate=100, count=10)
        assert ({"name not found": 10}, 1) == (failed.errors, len(counts))
        given_up = await figures_of("own", RequestTemplate(url=url), rate=25, count=10, timeout=0.2)
    assert len(counts) == 2
    assert 0 < given_up.error_count < 10


@contextmanager
def dead_address(port: int, *, is_silent: bool) -> Iterator[str]:
    """Yield a second address of this machine at which connections are refused, or never accepted."""
    if not is_silent:
        yield "127.0.0.2"
        return
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(3):  # the queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield "127.0.0.2"


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8, and drops what a full queue has no place for"
)
@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
async def test_dead_address_costs_a_wait_once(monkeypatch, is_silent) -> None:
    """Of two addresses one is dead: each connection reaches the other one, and only the first may wait for it."""
    async with ScriptedServer(OK, then="close").running() as server:
        port = int(server.url.split(":")[2].strip("/"))
        with dead_address(port, is_silent=is_silent) as dead:

            async def look_up(*args, **options):
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in (dead, "127.0.0.1")]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
            figures = await figures_of("own", RequestTemplate(url=f"http://two.example:{port}/"), rate=20, count=20)

    assert ({}, {200: 20}, 20) == (figures.errors, figures.statuses, server.connection_count)
    assert figures.response_times.quantile(0.9) < 0.9  # one of twenty waits for a second


@both
async def test_one_connection_carries_one_request_at_a_time(client) -> None:
    """With one connection, requests wait for it in the order in which they were due: nothing is pipelined."""
    async with ScriptedServer(b"", OK).running() as server:
        template = RequestTemplate(url=server.url + "{n}")
        figures = await figures_of(client, template, rate=1000, count=20, connections=1)

    assert ({}, 20, 1) == (figures.errors, figures.count, server.connection_count)
    assert [f"GET /{number} ".encode() for number in range(20)] == [
        head[: head.index(b"HTTP")] for head in server.heads
    ]
    assert figures.full_seconds > 0


async def test_everything_in_flight_can_be_given_up() -> None:
    """A second signal ends requests that wait for a response or for a connection, as timed out, at once."""
    stop = Stop()
    async with ScriptedServer().running() as server:
        loop = asyncio.get_running_loop()

        async def interrupt() -> None:
            while len(server.heads) < 3:
                await asyncio.sleep(0.01)
            stop.on_signal()
            await asyncio.sleep(0.1)
            stop.on_signal()

        interrupting = asyncio.create_task(interrupt())
        schedule = Schedule(classes={"": [Phase(first=20, last=20, seconds=60)]})
        async with http_sender([[wire_of(RequestTemplate(url=server.url))]], timeout=60) as sender:
            begin = loop.time()
            figures = await OpenLoad(schedule, sender, kind_of=kind_of, connections=100, drain=5).play(stop)

    await interrupting
    assert {"timeout": figures.count} == figures.errors
    assert figures.count >= 3
    assert loop.time() - begin < 20


@pytest.mark.parametrize(
    "template",
    [
        RequestTemplate(url="http://host/", method="HEAD"),
        RequestTemplate(url="http://host{n}/"),
        RequestTemplate(url="http://host/", headers={"Expect": "100-continue"}),
        RequestTemplate(url="http://host/", headers={"connection": "close"}),
    ],
)
def test_what_our_own_client_cannot_send_is_left_to_aiohttp(template) -> None:
    """There are no bytes for such requests."""
    assert wire_of(template) is None
