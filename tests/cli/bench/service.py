"""A service of HTTP on the loopback address, in a thread of its own, which does what its paths say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from aiohttp import web


@dataclass
class Service:
    """What runs, and what it has seen.

    Attributes:
        url: without a slash at its end.
        seen: (method, path with query, body, header X-Test) of requests to ``/echo``.
    """

    url: str = ""
    seen: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=count)
    frozen_from: float | None = None
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def ok(self, request: web.Request) -> web.Response:
        return web.Response(text="0123456789")

    async def status(self, request: web.Request) -> web.Response:
        return web.Response(status=int(request.match_info["status"]))

    async def slow(self, request: web.Request) -> web.Response:
        await self.is_over.wait()
        return web.Response()

    async def away(self, request: web.Request) -> web.Response:
        """Redirect to another origin, which is the same service by another name of the host."""
        raise web.HTTPFound(f"http://localhost:{request.url.port}/echo/away")

    async def huge(self, request: web.Request) -> web.Response:
        return web.Response(body=bytes(20_000_000))

    async def cut(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs, "", None))
        request.transport.abort()
        return web.Response()

    async def echo(self, request: web.Request) -> web.Response:
        self.seen.append((request.method, request.path_qs, await request.text(), request.headers.get("X-Test")))
        return web.Response()

    async def login(self, request: web.Request) -> web.Response:
        """Give each client that logs in another name, in a cookie."""
        response = web.Response()
        response.set_cookie("user", f"user-{next(self.names)}")
        return response

    async def basket(self, request: web.Request) -> web.Response:
        return web.Response(text=request.cookies.get("user", "nobody"))

    async def picky(self, request: web.Request) -> web.Response:
        """Refuse all but JSON, with a reason that is long and has an escape sequence; on request compressed."""
        if request.content_type == "application/json":
            return web.Response()
        response = web.Response(status=422, text=f'{{"detail":\n "no\x1b[2J {request.content_type}"}}' + " x" * 1000)
        if "deflated" in request.query:
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def freezing(self, request: web.Request) -> web.Response:
        """Answer at once, but for the 2 seconds from one second after the first request on."""
        now = asyncio.get_running_loop().time()
        if self.frozen_from is None:
            self.frozen_from = now + 1
        if self.frozen_from <= now < self.frozen_from + 2:
            await asyncio.sleep(self.frozen_from + 2 - now)
        return web.Response()


@contextmanager
def served() -> Iterator[Service]:
    """Run a service meanwhile."""
    service = Service()
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/", service.ok)
        app.router.add_get("/status/{status}", service.status)
        app.router.add_get("/slow", service.slow)
        app.router.add_get("/away", service.away)
        app.router.add_get("/huge", service.huge)
        app.router.add_route("*", "/cut", service.cut)
        app.router.add_route("*", "/picky", service.picky)
        app.router.add_route("*", "/echo/{rest:.*}", service.echo)
        app.router.add_post("/login", service.login)
        app.router.add_get("/basket/{number}", service.basket)
        app.router.add_get("/freezing", service.freezing)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield service
    loop.call_soon_threadsafe(service.is_over.set)  # else the clean-up waits for requests that were given up
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
