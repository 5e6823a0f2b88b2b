"""The receiver: an HTTP server in a separate process that records the arrival of each webhook call.

It listens only on the loopback address, writes its port as one JSON line to standard output, and ends when its standard
input is closed, so it never outlives the process that started it. Times are of its own monotonic clock, counted from
the moment at which a half of the demo is announced.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from typing import Final

from aiohttp import web

__all__ = ["DemoArrivals", "make_app"]

LOOPBACK: Final = "127.0.0.1"
# Arrivals kept of one half; more than the largest demo sends.
ARRIVALS_MAX: Final = 200_000


class DemoArrivals:
    """The arrivals of one half of the demo."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.rows: list[tuple[float, int]] = []  # seconds after the beginning, index of the delivery
        self._seconds: Counter[int] = Counter()

    def add(self, now: float, index: int) -> None:
        """Record an arrival at ``now`` on the clock of ``begin``."""
        elapsed = now - self.begin
        self.rows.append((round(elapsed, 6), index))
        self._seconds[int(elapsed)] += 1

    def seconds(self, now: float) -> list[int]:
        """Count arrivals for each second so far, including the current one."""
        return [self._seconds[second] for second in range(int(now - self.begin) + 1)]


_HALVES: Final = web.AppKey("halves", dict[str, DemoArrivals])


def make_app() -> web.Application:
    """Build the server: ``/hook/{half}`` receives calls, the other routes announce and report."""
    app = web.Application()
    app[_HALVES] = {}
    app.router.add_post("/begin/{half}", _begin)
    app.router.add_post("/hook/{half}", _receive)
    app.router.add_get("/seconds/{half}", _seconds)
    app.router.add_get("/arrivals/{half}", _arrivals)
    return app


async def _begin(request: web.Request) -> web.Response:
    request.app[_HALVES][request.match_info["half"]] = DemoArrivals(time.monotonic())
    return web.Response(status=204)


async def _receive(request: web.Request) -> web.Response:
    now = time.monotonic()  # first, as the rest waits for the body
    half = _half(request)
    if len(half.rows) >= ARRIVALS_MAX:
        raise web.HTTPInsufficientStorage
    half.add(now, int((await request.json())["index"]))
    return web.Response(status=204)


async def _seconds(request: web.Request) -> web.Response:
    return web.json_response({"seconds": _half(request).seconds(time.monotonic())})


async def _arrivals(request: web.Request) -> web.Response:
    return web.json_response(_half(request).rows)


def _half(request: web.Request) -> DemoArrivals:
    try:
        return request.app[_HALVES][request.match_info["half"]]
    except KeyError:
        raise web.HTTPNotFound from None


async def _serve() -> None:
    runner = web.AppRunner(make_app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        sys.stdout.write(json.dumps({"port": runner.addresses[0][1]}) + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us when it is ready
    asyncio.run(_serve())
