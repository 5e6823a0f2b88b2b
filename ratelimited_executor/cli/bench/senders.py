"""Sends requests by coroutines, such as functions of the user: a task for each."""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import ssl
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.cli.contexts import entered, is_context
from ratelimited_executor.load.recording import LoadOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from ratelimited_executor.cli.bench.open_load import InFlight
    from ratelimited_executor.load.arrivals import Arrival

    Send = Callable[[Arrival], Awaitable[LoadOutcome]]

__all__ = [
    "HEAD_BYTES",
    "CoroutineSender",
    "function_sender",
    "is_in_threads",
    "kind_of",
    "message_of",
    "outcome_of_status",
]

HEAD_BYTES: Final = 1000  # of a bad response, as a sample
_BAD_STATUS: Final = 400  # from this status on a response is an error
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
    if isinstance(error, socket.gaierror):
        return "name not found"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, OSError):
        if error.errno in _KINDS:
            return _KINDS[error.errno]
        if error.errno is None and isinstance(error, ConnectionError):  # asyncio's own, such as during a handshake
            return "connection broken"
    return type(error).__name__


class CoroutineSender:
    """Sends each request by a coroutine in a task of its own.

    Args:
        send: sends one request.
        timeout: seconds after sending at which a request is given up: it is cancelled, and has ended once it has returned.
        kind_of: returns the kind of an error that ``send`` raises.
    """

    def __init__(self, send: Send, *, timeout: float, kind_of: Callable[[BaseException], str] = kind_of) -> None:
        self._send, self._timeout, self._kind_of = send, timeout, kind_of
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._limits: set[asyncio.Timeout] = set()  # of requests in flight

    def start(self, request: InFlight) -> None:
        """Send a request."""
        task = self._loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: InFlight) -> None:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                self._limits.add(limit)
                outcome = await self._send(request.arrival)
        except TimeoutError:
            outcome = LoadOutcome("timeout")
        except asyncio.CancelledError:
            raise  # the whole measurement is cancelled
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code, which may raise anything
            outcome = LoadOutcome(self._kind_of(error), message_of(error))
        finally:
            self._limits.discard(limit)
        request.end(outcome)

    def give_up_all(self) -> None:
        """End all requests in flight as timed out."""
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(self._loop.time())


def message_of(error: BaseException) -> str:
    """Return the message of an error; empty if it cannot be had."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # code of the user
        return ""


def outcome_of_status(status: int, received: int, head: bytes) -> LoadOutcome:
    """Return the outcome of a response.

    Args:
        status: its status.
        received: bytes of its body.
        head: the beginning of its body, which may be compressed.
    """
    if status < _BAD_STATUS:
        return LoadOutcome(None, "", status, received)
    with suppress(zlib.error):
        head = zlib.decompressobj(wbits=47).decompress(head, HEAD_BYTES)  # gzip or zlib
    return LoadOutcome(f"status {status}", head[:HEAD_BYTES].decode(errors="replace"), status, received)


def is_in_threads(target: Callable[..., Any]) -> bool:
    """Return True for a plain function, which would block the event loop."""
    return not (is_context(target) or inspect.iscoroutinefunction(target) or _has_async_call(target))


@asynccontextmanager
async def function_sender(
    target: Callable[..., Any], *, connections: int, timeout: float, class_names: Sequence[str] = ()
) -> AsyncIterator[CoroutineSender]:
    """Yield a sender that calls a function with the number of the request and, with classes, the name of its class.

    A function with fewer parameters gets fewer arguments. A context manager is entered first, and its value is the function.

    Raises:
        CommandError: if the set-up or the tear-down fails, or the value of the set-up is not callable.
    """
    async with entered(target) as function:
        with _threads_for(function, connections) as threads:
            yield CoroutineSender(_caller(function, threads, class_names), timeout=timeout)


@contextmanager
def _threads_for(function: Callable[..., Any], count: int) -> Iterator[ThreadPoolExecutor | None]:
    """Yield the worker threads of a plain function; None for any other. Leaving does not wait for threads that hang."""
    if not is_in_threads(function):
        yield None
        return
    threads = ThreadPoolExecutor(count, thread_name_prefix="bench")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _caller(function: Callable[..., Any], threads: ThreadPoolExecutor | None, class_names: Sequence[str]) -> Send:
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
