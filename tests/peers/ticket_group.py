"""A group of managers in one loop of virtual time, over the pure authority of tickets, with faults between them.

What carries the calls here loses, delays and repeats as it is told, and the authority forgets or restarts. All else is what
production runs. What starts is counted at the resource: a list of (time, cost) of each name.
"""

import asyncio
import copy
import random
from collections.abc import Iterable
from typing import Any

from ratelimited_executor._core.fleet.tickets import TicketAuthority
from ratelimited_executor.peers.fleet import FleetPeers

EPOCH = 1_700_000_000.0


class Server:
    """The authority of all executors of a group: what a Redis server is.

    Attributes:
        calls: how many it has answered.
        is_away: whether calls get no answer.
        loss: the chance of a call, and of its answer, to be lost.
        ahead: seconds by which its clock is ahead.
        run: tells its runs apart.
    """

    def __init__(self, seed: int = 0) -> None:
        self.calls = 0
        self.is_away = False
        self.loss = 0.0
        self.ahead = 0.0
        self.run = "1"
        self.random = random.Random(seed)
        self.authorities: dict[str, TicketAuthority] = {}
        self._saved: dict[str, TicketAuthority] = {}

    def now_us(self) -> int:
        """Return its clock."""
        return round((EPOCH + asyncio.get_running_loop().time() + self.ahead) * 1e6)

    def forget(self) -> None:
        """Lose everything, as by FLUSHALL."""
        self.authorities = {}

    def save(self) -> None:
        """Write a snapshot."""
        self._saved = copy.deepcopy(self.authorities)

    def restart(self) -> None:
        """Come back with what the last snapshot has."""
        self.authorities = copy.deepcopy(self._saved)
        self.run += "1"

    def peers(self, seed: int, **settings: Any) -> FleetPeers:
        """Return the peers of a manager of its own."""
        return FleetPeers(Link(self), seed=seed, **settings)


class Link:
    """What carries calls to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def connect(self) -> None:
        """Connect at once, if there is a server."""
        if self._server.is_away:
            raise ConnectionError("away")

    async def aclose(self) -> None:
        """Do nothing."""

    async def call(self, calls: Any) -> list[Any]:
        """Carry calls, each way in half a millisecond, or lose them."""
        server = self._server
        await asyncio.sleep(server.random.uniform(0.0002, 0.001))
        if server.is_away or server.random.random() < server.loss:
            await asyncio.sleep(60)
        server.calls += 1
        now_us = server.now_us()
        answers = [
            server.authorities.setdefault(name, TicketAuthority()).call(now_us, server.run, call)
            for name, call in calls
        ]
        if server.random.random() < server.loss:
            await asyncio.sleep(60)
        await asyncio.sleep(server.random.uniform(0.0002, 0.001))
        return answers


def most_in(starts: Iterable[tuple[float, int]], width: float) -> int:
    """Return the largest sum of costs of starts in a window [t, t + width)."""
    ordered = sorted(starts)
    most = total = first = 0
    for time, cost in ordered:
        total += cost
        while time - ordered[first][0] >= width:
            total -= ordered[first][1]
            first += 1
        most = max(most, total)
    return most
