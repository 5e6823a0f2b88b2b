"""Call an API that responds with 429 and Retry-After, and retry neither too early nor all at once.

Every attempt takes a permit, whether it is the first or a retry, so attempts never exceed the rate. Retries have a higher
priority than first attempts, because their callers have waited longest. The permit is released before the pause, so a
request that backs off does not occupy a place.

The server below enforces its own limit and counts violations. Run ``python examples/retry_after.py`` to see the same
requests sent without a limiter, and with one.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from ratelimited_executor import RateLimitedExecutor

TOO_MANY_REQUESTS = 429


class GaveUpError(Exception):
    """The server refused every attempt with 429."""


@dataclass
class ApiClient:
    """An HTTP client that waits for a permit before each attempt.

    Attributes:
        http: sends the requests.
        executor: limits the rate of attempts, over all callers; None for no limit.
        attempt_count_max: the largest number of attempts per request, including the first.
        backoff_base: seconds; the pause before retry n is drawn from 0 to ``backoff_base * 2**n``, with full jitter.
        backoff_max: the upper bound of such a pause, in seconds.
        randomness: the source of the jitter.
    """

    http: httpx.AsyncClient
    executor: RateLimitedExecutor | None
    attempt_count_max: int = 10
    backoff_base: float = 0.05
    backoff_max: float = 5.0
    randomness: random.Random = field(default_factory=random.Random)

    async def get(self, path: str) -> httpx.Response:
        """Get a path; retry while the server responds with 429.

        Raises:
            GaveUpError: if every attempt was refused.
        """
        for attempt in range(self.attempt_count_max):
            async with AsyncExitStack() as stack:
                if self.executor is not None:
                    await stack.enter_async_context(self.executor.permit(priority=attempt, name=path))
                response = await self.http.get(path)
            if response.status_code != TOO_MANY_REQUESTS:
                return response
            jitter = self.randomness.uniform(0, min(self.backoff_max, self.backoff_base * 2**attempt))
            # Retry-After is a minimum. Jitter is added, because requests refused together got the same value.
            await asyncio.sleep(retry_after_seconds(response.headers.get("Retry-After")) + jitter)
        raise GaveUpError(f"{path}: refused {self.attempt_count_max} times")


def retry_after_seconds(value: str | None) -> float:
    """Parse a Retry-After header: seconds or an HTTP date (RFC 9110, section 10.2.3); 0 if it is absent or invalid."""
    if value is None:
        return 0.0
    if value.strip().isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


@dataclass
class LimitedServer:
    """A real HTTP server that accepts a number of requests in any window, and refuses the others with 429.

    Attributes:
        limit: the number of requests accepted in any window.
        window: the length of the window in seconds.
        accepted: the times at which the requests of the last window were accepted.
        arrivals: the arrival times of all requests.
        violation_count: the number of requests beyond the limit.
        early_count: the number of requests that were repeated before the time that the server had given.
        not_before: for each refused path, the time from which it may be requested again.
        connections: the open connections, and the tasks that serve them.
    """

    limit: int
    window: float = 1.0
    accepted: deque[float] = field(default_factory=deque)
    arrivals: list[float] = field(default_factory=list)
    violation_count: int = 0
    early_count: int = 0
    not_before: dict[str, float] = field(default_factory=dict)
    connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(default_factory=dict)

    def judge(self, path: str, now: float) -> int:
        """Return the status for a request that arrives now."""
        self.arrivals.append(now)
        if now < self.not_before.pop(path, now):
            self.early_count += 1
        while self.accepted and self.accepted[0] <= now - self.window:
            self.accepted.popleft()
        if len(self.accepted) >= self.limit:
            self.violation_count += 1
            self.not_before[path] = now + 1.0
            return TOO_MANY_REQUESTS
        self.accepted.append(now)
        return 200

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection: GET without a body, HTTP/1.1, kept alive."""
        task = asyncio.current_task()
        assert task is not None
        self.connections[writer] = task
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                status = self.judge(head.split()[1].decode(), time.monotonic())
                reason, extra = ("OK", "") if status != TOO_MANY_REQUESTS else ("Too Many", "Retry-After: 1\r\n")
                writer.write(f"HTTP/1.1 {status} {reason}\r\n{extra}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            self.connections.pop(writer)
            writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port of the loopback address; yield the base URL."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for writer in self.connections:
                writer.close()
            await asyncio.gather(*self.connections.values())


async def fetch_all(request_count: int, *, limit: int, rate: float | None) -> LimitedServer:
    """Send many requests at once to a server with a limit; return the server with its counts.

    Args:
        request_count: the number of paths to get.
        limit: the server's limit, in requests in any second.
        rate: the client's rate, in attempts a second; None for no limiter.
    """
    server = LimitedServer(limit)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server.serving())
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=10.0))
        executor = None
        if rate is not None:
            executor = await stack.enter_async_context(RateLimitedExecutor("api", rate=rate, max_concurrency=20))
        client = ApiClient(http, executor)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.get(f"/items/{number}")) for number in range(request_count)]
    assert all(task.result().is_success for task in tasks)
    return server


async def main() -> None:
    """Compare the server's counts without a limiter, and with two rates."""
    for label, rate in (("no limiter", None), ("38/s, below the limit", 38), ("80/s, twice the limit", 80)):
        began = time.monotonic()
        server = await fetch_all(100, limit=40, rate=rate)
        print(
            f"{label:>22}: {len(server.arrivals)} attempts, {server.violation_count} of them beyond the limit, "
            f"{server.early_count} too early, {time.monotonic() - began:.1f} s"
        )


if __name__ == "__main__":
    asyncio.run(main())
