"""Limit every request of an httpx client, async or not, no matter which code sends it.

The limit is in the transport, so it also applies to code that uses the client without knowing about limits: a generated
API client, a library, redirects. Each request waits for a permit, and holds it until the response headers arrive; a 429
delays all other requests for as long as its Retry-After says.

Run ``python examples/httpx_transport.py`` to see ten requests at 10/s by each client; none leaves this machine.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.blocking import BlockingLimiter, BlockingManager
from ratelimited_executor.retries import parse_retry_after


class LimitedTransport(httpx.AsyncBaseTransport):
    """Sends each request on a permit of the executor: ``AsyncClient(transport=LimitedTransport(executor))``."""

    def __init__(self, executor: RateLimitedExecutor, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.executor = executor
        self.transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; after a 429, delay all requests as the server asks."""
        async with self.executor.permit(name=str(request.url)):
            response = await self.transport.handle_async_request(request)
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            self.executor.penalize(parse_retry_after(response.headers.get("Retry-After")))
        return response

    async def aclose(self) -> None:
        """Close the connections; the executor belongs to the caller."""
        await self.transport.aclose()


class BlockingTransport(httpx.BaseTransport):
    """A blocking :class:`LimitedTransport` for threads: ``Client(transport=BlockingTransport(limiter))``."""

    def __init__(self, limiter: BlockingLimiter, transport: httpx.BaseTransport | None = None) -> None:
        self.limiter = limiter
        self.transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; after a 429, delay all requests as the server asks."""
        with self.limiter.permit(name=str(request.url)):
            response = self.transport.handle_request(request)
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            self.limiter.penalize(parse_retry_after(response.headers.get("Retry-After")))
        return response

    def close(self) -> None:
        """Close the connections; the limiter belongs to the caller."""
        self.transport.close()


async def main(transport: httpx.AsyncBaseTransport) -> None:
    """Send ten requests at once."""
    async with (
        RateLimitedExecutor("api", rate="10/s") as executor,
        httpx.AsyncClient(transport=LimitedTransport(executor, transport)) as client,
    ):
        await asyncio.gather(*(client.get("http://api.example/") for _ in range(10)))


if __name__ == "__main__":
    no_network = httpx.MockTransport(lambda _: httpx.Response(204))
    began = time.monotonic()
    asyncio.run(main(no_network))
    print(f"async: {time.monotonic() - began:.1f} s")

    with BlockingManager() as manager:
        limiter = manager.limiter("api", rate="10/s")
        with httpx.Client(transport=BlockingTransport(limiter, no_network)) as client, ThreadPoolExecutor() as pool:
            began = time.monotonic()
            list(pool.map(client.get, ["http://api.example/"] * 10))
            print(f"threads: {time.monotonic() - began:.1f} s")
