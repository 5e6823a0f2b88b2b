"""Senders of requests: an HTTP client, or a function of the user."""

from __future__ import annotations

import asyncio
import errno
import inspect
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from ratelimited_executor.cli.bench.open_load import LoadOutcome
from ratelimited_executor.cli.contexts import entered, is_context
from ratelimited_executor.load.requests import fill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ratelimited_executor.load.arrivals import Arrival
    from ratelimited_executor.load.requests import RequestTemplate

__all__ = ["Sender", "function_sender", "http_sender", "is_in_threads", "kind_of"]

if TYPE_CHECKING:
    Sender = Callable[[Arrival], Awaitable[LoadOutcome]]

_BAD_STATUS: Final = 400  # from this status on a response is an error
_HEAD_BYTES: Final = 1000  # of a bad response, as a sample
_KINDS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "connection broken",
    errno.EPIPE: "connection broken",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EMFILE: "too many open files",
}


def kind_of(error: BaseException) -> str:
    """Return the kind of an error in a word or two: its meaning for a request, or else its type."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "name not found"
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch)):
        return "tls"
    if isinstance(error, (_BrokenError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)):
        return "connection broken"
    if isinstance(error, OSError):
        number = error.errno
        if number is None and isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
        if number in _KINDS:
            return _KINDS[number]
    return type(error).__name__


class _BrokenError(aiohttp.ClientError):
    """A connection broke during a request; with this error, aiohttp does not send the request a second time."""


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once, even if its method is idempotent and a reused connection turns out to be broken."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:  # never repeated
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokenError(str(error)) from error


@asynccontextmanager
async def http_sender(templates: Sequence[Sequence[RequestTemplate]], *, connections: int) -> AsyncIterator[Sender]:
    """Yield a sender that uses the templates of a class in turn, without following redirects or keeping cookies."""
    connector = aiohttp.TCPConnector(limit=connections, ttl_dns_cache=None)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
        middlewares=(_once,),
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
                    if answer.status >= _BAD_STATUS and len(head) < _HEAD_BYTES:
                        head += chunk[:_HEAD_BYTES]
                if answer.status < _BAD_STATUS:
                    return LoadOutcome(status=answer.status, received=received)
                error = f"status {answer.status}"
                return LoadOutcome(error=error, sample=_text_of(head), status=answer.status, received=received)

        yield send


def _text_of(head: bytes) -> str:
    """Return the text at the beginning of a response body, which may be compressed."""
    with suppress(zlib.error):
        head = zlib.decompressobj(wbits=47).decompress(head, _HEAD_BYTES)  # gzip or zlib
    return head.decode(errors="replace")


def is_in_threads(target: Callable[..., Any]) -> bool:
    """Return True for a plain function, which would block the event loop."""
    return not (is_context(target) or inspect.iscoroutinefunction(target) or _has_async_call(target))


@asynccontextmanager
async def function_sender(
    target: Callable[..., Any], *, connections: int, class_names: Sequence[str] = ()
) -> AsyncIterator[Sender]:
    """Yield a sender that calls a function with the number of the request and, with classes, the name of its class.

    A function with fewer parameters gets fewer arguments. A context manager is entered first, and its value is the function.

    Raises:
        CommandError: if the set-up or the tear-down fails, or the value of the set-up is not callable.
    """
    async with entered(target) as function:
        with _threads_for(function, connections) as threads:
            yield _caller(function, threads, class_names)


class _Threads:
    """The worker threads of a plain function, if any. Leaving does not wait for threads that hang."""

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="bench") if count else None

    def __enter__(self) -> ThreadPoolExecutor | None:
        return self.pool

    def __exit__(self, *exception: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


def _threads_for(function: Callable[..., Any], connections: int) -> _Threads:
    return _Threads(connections if is_in_threads(function) else 0)


def _caller(function: Callable[..., Any], threads: ThreadPoolExecutor | None, class_names: Sequence[str]) -> Sender:
    argument_count = next(
        count for count in ((2, 1, 0) if class_names else (1, 0)) if not count or _takes(function, count)
    )
    loop = asyncio.get_running_loop()

    async def call(arrival: Arrival) -> LoadOutcome:
        name = class_names[arrival.class_index] if class_names else ""
        arguments = (arrival.number, name)[:argument_count]
        result = function(*arguments) if threads is None else await loop.run_in_executor(threads, function, *arguments)
        if inspect.isawaitable(result):
            await result
        return LoadOutcome()

    return call


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function can be called with a number of arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions in C have no signature
        return count == 1
    return True


def _has_async_call(target: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004  # an object with an async __call__
