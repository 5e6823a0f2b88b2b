"""The steps of the demo: start the server, run one half by the executor and one by ``call_later``, report, stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from rich.console import Console

from ratelimited_executor.cli.demo.driver import CONNECTIONS_MAX, Sender, send_by_call_later, send_by_executor
from ratelimited_executor.cli.demo.figures import Half, judge
from ratelimited_executor.cli.demo.load import Delivery, base_load, due_by_priority, stretch
from ratelimited_executor.cli.demo.report import print_report, print_verdict
from ratelimited_executor.cli.demo.server_process import serving
from ratelimited_executor.cli.demo.view import LiveView, PlainView, SilentView, View
from ratelimited_executor.cli.exits import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

__all__ = ["demonstrate"]

# Calls, all due at once, and their rate a second.
WARM_UP_COUNT: Final = 50
WARM_UP_RATE: Final = 200


async def demonstrate(*, seconds: float, rate: int, is_quiet: bool, console: Console | None = None) -> ExitStatus:
    """Run the demo.

    Args:
        seconds: the total duration of both halves.
        rate: deliveries a second.
        is_quiet: True to print only the verdict.
        console: the output; standard output by default.

    Returns:
        DONE if the executor never started more than the rate in any second and every delivery arrived exactly once in
        both halves, else FAILED.
    """
    console = console or Console(emoji=False)
    load = stretch(base_load(), seconds=seconds, rate=rate)
    view = _view(console, rate=rate, is_quiet=is_quiet)
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    async with serving() as base_url, aiohttp.ClientSession(connector=connector) as session:
        await _warm_up(Sender(session, base_url, "warm-up"), load)
        sender = Sender(session, base_url, "executor")
        view.begin(f"RateLimitedExecutor, {rate} a second")
        executor = await _half(sender, load, view, partial(send_by_executor, load, sender, rate=rate))
        sender = Sender(session, base_url, "call_later")
        view.begin("the same load by plain call_later")
        plain = await _half(sender, load, view, partial(send_by_call_later, load, sender))
    verdicts = [(half, judge(half, rate=rate, count=len(load))) for half in (executor, plain)]
    if not is_quiet:
        print_report(console, executor, plain, load, rate=rate)
    for half, verdict in verdicts:
        print_verdict(console, half, verdict, rate=rate, count=len(load))
    is_complete = not any(verdict.missing or half.failed for half, verdict in verdicts)
    return ExitStatus.DONE if verdicts[0][1].is_held and is_complete else ExitStatus.FAILED


def _view(console: Console, *, rate: int, is_quiet: bool) -> View:
    if is_quiet:
        return SilentView()
    return LiveView(console, rate=rate) if console.is_terminal else PlainView(console)


async def _warm_up(sender: Sender, load: Sequence[Delivery]) -> None:
    """Deliver a few uncounted calls, to open connections and load code before the first second."""
    await sender.begin()
    await send_by_executor(load[:WARM_UP_COUNT], sender, rate=WARM_UP_RATE)


async def _half(
    sender: Sender, load: Sequence[Delivery], view: View, send: Callable[[], Coroutine[Any, Any, None]]
) -> Half:
    """Send the load once while updating the view; return the starts and the server's arrivals."""
    await sender.begin()
    watching = asyncio.create_task(_watch(sender, load, view))
    try:
        await send()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        view.end()
    return Half(name=sender.half, starts=sender.starts, arrivals=await sender.arrivals(), failed=sender.failed)


async def _watch(sender: Sender, load: Sequence[Delivery], view: View) -> None:
    """Show the server's counts so far, until cancelled; a slow response only delays the view."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while True:
        await asyncio.sleep(view.every_s)
        with suppress(aiohttp.ClientError, TimeoutError):
            seconds = await sender.seconds()
            due = due_by_priority(load, loop.time() - begin)
            view.show(seconds, {priority: max(0, count - sender.sent[priority]) for priority, count in due.items()})
