"""The sender: the same load by the executor and by plain ``call_later``."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import aiohttp

from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.cli.demo.load import Delivery

__all__ = ["CONNECTIONS_MAX", "Sender", "send_by_call_later", "send_by_executor"]

# Sockets at a time; below the 256 open files that some systems allow a process. The same for both halves.
CONNECTIONS_MAX: Final = 128
# Time for the last responses once everything was sent.
ANSWER_SECONDS_MAX: Final = 30.0


class Sender:
    """Posts deliveries of one half to the server, and counts what was sent by priority.

    Attributes:
        half: the name of the half.
        sent: the number of sent deliveries by priority.
        starts: the start times in seconds, recorded by the caller that starts deliveries.
        failed: the number of deliveries that were refused or broken off.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str, half: str) -> None:
        self.half = half
        self._session = session
        self._begin_url = f"{base_url}/begin/{half}"
        self._hook_url = f"{base_url}/hook/{half}"
        self._seconds_url = f"{base_url}/seconds/{half}"
        self._arrivals_url = f"{base_url}/arrivals/{half}"
        self.sent: Counter[int] = Counter()
        self.starts: list[float] = []
        self.failed = 0

    async def begin(self) -> None:
        """Announce the half; the server counts time from now."""
        async with self._session.post(self._begin_url) as answer:
            answer.raise_for_status()

    async def send(self, delivery: Delivery) -> None:
        """Deliver one call; a refusal or a broken connection is counted, not raised."""
        self.sent[delivery.priority] += 1
        body = {"index": delivery.index, "event": delivery.event, "customer": delivery.customer}
        try:
            async with self._session.post(self._hook_url, json=body) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError):
            self.failed += 1

    async def seconds(self) -> list[int]:
        """Ask the server how many calls it saw in each second so far."""
        async with self._session.get(self._seconds_url) as answer:
            answer.raise_for_status()
            return [int(count) for count in (await answer.json())["seconds"]]

    async def arrivals(self) -> list[tuple[float, int]]:
        """Ask the server for every arrival: seconds after the beginning, index of the delivery."""
        async with self._session.get(self._arrivals_url) as answer:
            answer.raise_for_status()
            return sorted((float(at), int(index)) for at, index in await answer.json())


async def send_by_executor(load: Sequence[Delivery], sender: Sender, *, rate: int) -> None:
    """Send each delivery when it is due, within the rate, the most important first."""
    async with RateLimitedExecutor("demo", rate=rate) as executor:
        handles = [
            executor.schedule(sender.send, delivery, delay=delivery.due, priority=delivery.priority)
            for delivery in load
        ]
        for handle in handles:
            await handle
        sender.starts = [handle.started_at for handle in handles if handle.started_at is not None]


async def send_by_call_later(load: Sequence[Delivery], sender: Sender) -> None:
    """Send each delivery when it is due, by asyncio's own ``call_later``."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    all_sent = loop.create_future()
    left = len(load)

    def fire(delivery: Delivery) -> None:
        nonlocal left
        sender.starts.append(loop.time())
        tasks.add(loop.create_task(sender.send(delivery)))
        left -= 1
        if not left:
            all_sent.set_result(None)

    timers = [loop.call_later(delivery.due, fire, delivery) for delivery in load]
    try:
        await all_sent
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await asyncio.gather(*tasks)
    finally:
        for timer in timers:
            timer.cancel()
        for task in tasks:
            task.cancel()
