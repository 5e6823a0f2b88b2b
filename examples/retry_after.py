"""Call an API that answers 429 with Retry-After, and come back neither too early nor all at once.

Every attempt takes a permit, a first one and a retry alike: so retries never add up to more than the rate. Retries are
more important than first attempts, because whoever waits for them has waited longest. The permit is given back before
the pause, so that a request that backs off takes no place.

The server below enforces a limit of its own and counts what breaks it. Run ``python examples/retry_after.py`` to see the
same requests sent without a limiter, and with one.
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
    """The server said 429 to every attempt."""


@dataclass
class ApiClient:
    """An HTTP client whose every attempt waits for a permit.

    Attributes:
        http: sends the requests.
        executor: its rate is that of the attempts, all callers together; None for no limit.
        attempt_count_max: attempts at one request, the first included.
        backoff_base: seconds; the pause before retry n is drawn from 0 to ``backoff_base * 2**n``, with full jitter.
        backoff_max: seconds that such a pause may take at most.
        randomness: what jitter is drawn from.
    """

    http: httpx.AsyncClient
    executor: RateLimitedExecutor | None
    attempt_count_max: int = 10
    backoff_base: float = 0.05
    backoff_max: float = 5.0
    randomness: random.Random = field(default_factory=random.Random)

    async def get(self, path: str) -> httpx.Response:
        """Get a path, again and again while the server says 429.

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
            # The server's word is a minimum. Jitter comes on top: all who were refused together were told the same.
            await asyncio.sleep(retry_after_seconds(response.headers.get("Retry-After")) + jitter)
        raise GaveUpError(f"{path}: refused {self.attempt_count_max} times")


def retry_after_seconds(value: str | None) -> float:
    """Read a Retry-After header: seconds or an HTTP date (RFC 9110, section 10.2.3); 0 if it says nothing of use."""
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
    """A real HTTP server that allows so many requests in any window, and answers the others 429.

    Attributes:
        limit: requests accepted in any window.
        window: its length in seconds.
        accepted: when the requests of the last window were accepted.
        arrivals: when every request came.
        violation_count: requests beyond the limit.
        early_count: requests for a path that had been told to come later than that.
        not_before: when each refused path may come again.
        connections: the open ones, and the tasks that answer them.
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
        """Answer the requests of one connection: GET without a body, HTTP/1.1, kept alive."""
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
            pass  # the client has hung up
        finally:
            self.connections.pop(writer)
            writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port of the loopback address; gives the base URL."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for writer in self.connections:
                writer.close()
            await asyncio.gather(*self.connections.values())


async def fetch_all(request_count: int, *, limit: int, rate: float | None) -> LimitedServer:
    """Send many requests at once to a server with a limit; return the server, to look at its counts.

    Args:
        request_count: how many paths to get.
        limit: of the server, requests in any second.
        rate: of the client, attempts a second; None for no limiter.
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
    """Compare."""
    for label, rate in (("no limiter", None), ("38/s, below the limit", 38), ("80/s, twice the limit", 80)):
        began = time.monotonic()
        server = await fetch_all(100, limit=40, rate=rate)
        print(
            f"{label:>22}: {len(server.arrivals)} attempts, {server.violation_count} of them beyond the limit, "
            f"{server.early_count} too early, {time.monotonic() - began:.1f} s"
        )


if __name__ == "__main__":
    asyncio.run(main())
