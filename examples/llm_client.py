"""Call a language-model API that limits requests and tokens a minute, and responds with 429 and Retry-After.

The cost of a call is known only with its response. So each call reserves the most that it may use, its prompt and its
``max_tokens``, and the reservation is settled to the usage in the response; the unused rest is then free for other calls.
Both limits are windows, as the API counts them: all of a minute's requests may start at once, and never one more. The
tenants share the limits fairly: a tenant with ten times as many calls does not make the other one wait for all of them.

The server below enforces the limits, and counts every request that exceeds one. Run ``python examples/llm_client.py`` to
see the same calls without a limiter, with one, with one that settles nothing, and with one that assumes twice the limits.
Here, a minute has two seconds, so that you need not wait.
"""

import asyncio
import json
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from ratelimited_executor import Rate, RateLimitedExecutor, Retry, RetryLater
from ratelimited_executor.orders import Fair
from ratelimited_executor.policies import Window
from ratelimited_executor.retries import parse_retry_after

TOO_MANY_REQUESTS = 429


@dataclass(frozen=True)
class Limits:
    """The limits of an API in any minute.

    Attributes:
        requests: the number of requests.
        tokens: the number of tokens, prompts and answers together.
        minute: the length of a minute, in seconds.
    """

    requests: int = 60
    tokens: int = 20_000
    minute: float = 2.0

    def times(self, factor: int) -> "Limits":
        """Return the limits multiplied by a factor."""
        return Limits(self.requests * factor, self.tokens * factor, self.minute)


@dataclass(frozen=True)
class Call:
    """A call of the API.

    Attributes:
        tenant: the tenant that makes the call.
        number: a number that is unique among all calls.
        prompt_tokens: the length of the prompt.
        max_tokens: the maximum length of the answer.
    """

    tenant: str
    number: int
    prompt_tokens: int
    max_tokens: int

    @property
    def estimate(self) -> int:
        """The most tokens that the call may use."""
        return self.prompt_tokens + self.max_tokens


@dataclass
class ModelClient:
    """A client of the API that waits for a request and its tokens before each attempt.

    Attributes:
        http: sends the requests.
        executor: keeps the limits; None for no limiter.
        is_settling: True if calls return the tokens that they have not used.
    """

    http: httpx.AsyncClient
    executor: RateLimitedExecutor | None
    is_settling: bool = True

    async def complete(self, call: Call) -> int:
        """Make a call, and retry while the server responds with 429; return the tokens used."""
        if self.executor is None:
            return await self._complete_unlimited(call)
        handle = self.executor.submit(
            self._attempt, call, key=call.tenant, cost={"tokens": call.estimate}, name=call.tenant
        )
        used = await handle
        if self.is_settling:
            handle.settle({"tokens": used})
        return used

    async def _attempt(self, call: Call) -> int:
        response = await self.http.post("/complete", json=vars(call))
        if response.status_code == TOO_MANY_REQUESTS:
            after = parse_retry_after(response.headers.get("Retry-After")) or 1.0
            if self.executor is not None:
                self.executor.penalize(after)  # the limit is shared: no call would be served before that
            raise RetryLater(after)  # this call is retried, through the limiter, with some jitter
        response.raise_for_status()
        return int(response.json()["usage"]["total_tokens"])

    async def _complete_unlimited(self, call: Call) -> int:
        """Do what many programs do: send at once, and sleep for as long as Retry-After says."""
        while True:
            try:
                return await self._attempt(call)
            except RetryLater as later:
                await asyncio.sleep((later.after or 0.0) + random.uniform(0, 0.1))


def make_executor(limits: Limits, *, margin: float) -> RateLimitedExecutor:
    """Return an executor that keeps the limits of an API.

    Args:
        limits: the limits of the API.
        margin: seconds by which the travel time of requests varies, because the server counts their arrivals.
    """
    return RateLimitedExecutor(
        "model",
        rate=Rate(limits.requests, per=limits.minute),  # "500/min" for a minute of 60 seconds
        resources={"tokens": Rate(limits.tokens, per=limits.minute)},
        policy=Window(margin=margin),
        order=Fair(),
        retry=Retry(attempts=20, base=limits.minute / 20, cap=limits.minute),
    )


@dataclass
class ModelServer:
    """A real HTTP server that enforces both limits as exact sliding windows.

    When a request arrives, it counts with its prompt and its ``max_tokens``; if that exceeds the requests or tokens of the
    minute that ends now, it is refused, and is a violation. Just before the response is sent, its count is corrected to the
    tokens used, still at the time of its arrival.

    Attributes:
        limits: the limits that the server enforces.
        answer_seconds: how long an answer takes on average, in seconds.
        window: ``[arrival, tokens]`` of each request accepted in the last minute.
        accepted: the same for all accepted requests, with their tenants.
        attempt_count: the number of requests, including refused ones.
        violation_count: the number of refused requests.
        early_count: the number of calls that were repeated before the time that the server had given.
        not_before: for each refused call, the time from which it may be repeated.
        connections: the open connections, and the tasks that serve them.
    """

    limits: Limits
    answer_seconds: float = 0.03
    window: deque[list[float]] = field(default_factory=deque)
    accepted: list[tuple[str, list[float]]] = field(default_factory=list)
    attempt_count: int = 0
    violation_count: int = 0
    early_count: int = 0
    not_before: dict[int, float] = field(default_factory=dict)
    connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(default_factory=dict)
    randomness: random.Random = field(default_factory=lambda: random.Random(1))

    def judge(self, call: Call, now: float) -> list[float] | int:
        """Return the entry of an accepted request, to be corrected later, or a refused one's Retry-After in seconds."""
        self.attempt_count += 1
        self.early_count += now < self.not_before.pop(call.number, now)
        while self.window and self.window[0][0] <= now - self.limits.minute:
            self.window.popleft()
        tokens = call.estimate + sum(count for _, count in self.window)
        if len(self.window) < self.limits.requests and tokens <= self.limits.tokens:
            entry = [now, call.estimate]
            self.window.append(entry)
            self.accepted.append((call.tenant, entry))
            return entry
        self.violation_count += 1
        after = max(1, math.ceil(self._next_fit(call) - now))  # Retry-After takes whole seconds
        self.not_before[call.number] = now + after
        return after

    def _next_fit(self, call: Call) -> float:
        """Return the time at which a request will fit into the window."""
        requests, tokens = len(self.window), call.estimate + sum(count for _, count in self.window)
        when = 0.0
        for arrival, count in self.window:
            if requests < self.limits.requests and tokens <= self.limits.tokens:
                break
            requests, tokens, when = requests - 1, tokens - int(count), arrival + self.limits.minute
        return when

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection: POST of JSON, HTTP/1.1, kept alive."""
        task = asyncio.current_task()
        assert task is not None
        self.connections[writer] = task
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower().decode()
                size = int(head.partition("content-length:")[2].split()[0])
                call = Call(**json.loads(await reader.readexactly(size)))
                judged = self.judge(call, time.monotonic())
                status, extra, body = "200 OK", "", b"{}"
                if isinstance(judged, int):
                    status, extra = f"{TOO_MANY_REQUESTS} Too Many Requests", f"Retry-After: {judged}\r\n"
                else:
                    await asyncio.sleep(self.randomness.uniform(0.5, 1.5) * self.answer_seconds)
                    judged[1] = call.prompt_tokens + self.randomness.randint(0, call.max_tokens)
                    body = json.dumps({"usage": {"total_tokens": judged[1]}}).encode()
                writer.write(f"HTTP/1.1 {status}\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            self.connections.pop(writer)
            writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port of the loopback address; yield the base URL."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0, backlog=1000)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for writer in self.connections:
                writer.close()
            await asyncio.gather(*self.connections.values())


@dataclass(frozen=True)
class Report:
    """The result of a run.

    Attributes:
        server: the server, with its counts.
        answers: the tokens used by each call, in the order of the calls.
        seconds: the time until the last answer.
        tenant_seconds: for each tenant, the time until its last answer.
    """

    server: ModelServer
    answers: list[int]
    seconds: float
    tenant_seconds: dict[str, float]

    def utilisation(self) -> tuple[float, float]:
        """Return requests and tokens as fractions of what the limits allowed from the first request to the last."""
        entries = [entry for _, entry in self.server.accepted]
        limits = self.server.limits
        minutes = math.floor((entries[-1][0] - entries[0][0]) / limits.minute) + 1
        tokens = sum(count for _, count in entries)
        return len(entries) / (limits.requests * minutes), tokens / (limits.tokens * minutes)


def make_calls(small_count: int) -> Iterator[Call]:
    """Yield the calls of a big tenant, then a tenth as many calls of a small one."""
    randomness = random.Random(2)
    for number in range(11 * small_count):
        yield Call(
            "big" if number < 10 * small_count else "small",
            number,
            prompt_tokens=randomness.randint(100, 200),
            max_tokens=randomness.randint(200, 600),
        )


async def run(
    calls: list[Call],
    *,
    limits: Limits,
    believed: Limits | None,
    margin: float = 0.2,
    is_settling: bool = True,
) -> Report:
    """Make all calls at once, and return the result.

    Args:
        calls: the calls of all tenants.
        limits: the limits that the server enforces.
        believed: the limits that the client keeps; None for no limiter.
        margin: as in :func:`make_executor`.
        is_settling: True if calls return the tokens that they have not used.
    """
    server = ModelServer(limits)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server.serving())
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=30.0, limits=httpx.Limits(max_connections=None))
        )
        executor = None
        if believed is not None:
            executor = await stack.enter_async_context(make_executor(believed, margin=margin))
        client = ModelClient(http, executor, is_settling)
        began, ended = time.monotonic(), dict[str, float]()

        async def ask(call: Call) -> int:
            used = await client.complete(call)
            ended[call.tenant] = time.monotonic() - began
            return used

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(call)) for call in calls]
        seconds = time.monotonic() - began
    return Report(server, [task.result() for task in tasks], seconds, ended)


async def main() -> None:
    """Compare runs without a limiter, and with limiters of different settings."""
    limits, calls = Limits(), list(make_calls(12))
    print(f"{len(calls)} calls; {limits.requests} requests and {limits.tokens:,} tokens in {limits.minute:g} s")
    for label, believed, is_settling in (
        ("no limiter", None, True),
        ("the API's limits", limits, True),
        ("nothing settled", limits, False),
        ("twice the limits", limits.times(2), True),
    ):
        report = await run(calls, limits=limits, believed=believed, is_settling=is_settling)
        requests, tokens = report.utilisation()
        print(
            f"{label:>16}: {report.server.violation_count} of {report.server.attempt_count} attempts refused, "
            f"{report.seconds:.1f} s, small tenant {report.tenant_seconds['small']:.1f} s; "
            f"{requests:.0%} of the requests, {tokens:.0%} of the tokens"
        )


if __name__ == "__main__":
    asyncio.run(main())
