"""Sends HTTP requests by aiohttp, for what our own client cannot send and where ``httptools`` is not installed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from ratelimited_executor.cli.bench.senders import HEAD_BYTES, CoroutineSender, kind_of, outcome_of_status
from ratelimited_executor.load.requests import fill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ratelimited_executor.load.arrivals import Arrival
    from ratelimited_executor.load.recording import LoadOutcome
    from ratelimited_executor.load.requests import RequestTemplate

__all__ = ["BoundedBody", "aiohttp_sender", "kind_of_client_error", "send_once"]


def kind_of_client_error(error: BaseException) -> str:
    """Return the kind of an error of aiohttp, or of any other, as ``kind_of`` does."""
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch)):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError):
        return kind_of(error.os_error)
    if isinstance(error, _TooLongError):
        return "body too long"
    if isinstance(error, aiohttp.ClientResponseError):
        return "malformed response"
    if isinstance(error, (_BrokenError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)):
        return "connection broken"
    return kind_of(error)


class _BrokenError(aiohttp.ClientError):
    """A connection broke during a request; with this error, aiohttp does not send the request a second time."""


class _TooLongError(aiohttp.ClientError):
    """A body is longer than what is read of one."""


class BoundedBody:
    """The body of a response, which is refused if it turns out to be too long.

    Args:
        reader: reads it.
        most: the maximum length in bytes, decompressed.
    """

    def __init__(self, reader: aiohttp.StreamReader, most: int) -> None:
        self._reader, self._most = reader, most

    async def read(self, count: int = -1) -> bytes:
        """Return the next bytes, at most ``count``; by default all the rest. Raises an error of aiohttp if it is too long."""
        if count >= 0:
            return await self._reader.read(count)
        body = bytearray()
        while chunk := await self._reader.readany():
            body += chunk
            if len(body) > self._most:
                raise _TooLongError(f"the body is longer than {self._most:,} bytes")
        return bytes(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


async def send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once, even if its method is idempotent and a reused connection turns out to be broken."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:  # never repeated
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokenError(str(error)) from error


@asynccontextmanager
async def aiohttp_sender(
    templates: Sequence[Sequence[RequestTemplate]], *, connections: int, timeout: float
) -> AsyncIterator[CoroutineSender]:
    """Yield a sender that uses the templates of a class in turn, without following redirects or keeping cookies."""
    connector = aiohttp.TCPConnector(limit=connections, ttl_dns_cache=None)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
        middlewares=(send_once,),
    ) as session:

        async def send(arrival: Arrival) -> LoadOutcome:
            of_class = templates[arrival.class_index]
            template = of_class[arrival.turn % len(of_class)]
            body = None if template.body is None else fill(template.body, arrival.number).encode()
            url = fill(template.url, arrival.number)
            async with session.request(
                template.method, url, headers=template.headers, data=body, allow_redirects=False
            ) as answer:
                received, head = 0, b""
                async for chunk in answer.content.iter_any():
                    received += len(chunk)
                    if len(head) < HEAD_BYTES:
                        head += chunk[:HEAD_BYTES]
                return outcome_of_status(answer.status, received, head)

        yield CoroutineSender(send, timeout=timeout, kind_of=kind_of_client_error)
