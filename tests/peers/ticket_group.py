"""A group of managers in one loop of virtual time, over the pure authority of tickets, with faults between them.

The transport of the calls loses, delays and repeats them on request, and the authority may forget or restart. All else
is production code. Starts are counted at the resource, as a list of (time, cost).
"""

import asyncio
import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

from ratelimited_executor._core.fleet.slot_peer import SlotSettings
from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply, peer_of
from ratelimited_executor._core.fleet.tickets import TicketAuthority
from ratelimited_executor.peers import Outage
from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.peers.slots import GroupSlots

LEASE_US = 2_000_000
EPOCH = 1_700_000_000.0


class Server:
    """The authority of all executors of a group, in place of a Redis server.

    Attributes:
        calls: number of calls answered.
        attempts: number of connections attempted.
        is_away: True while calls get no answer.
        loss: probability that a call, or its answer, is lost.
        ahead: seconds by which its clock is ahead.
        run: name of its current run.
        slots: the authority of slots.
        slot_calls: number of calls of slots answered.
        cut_off: peers whose calls of slots do not arrive.
        listeners: callbacks of peers for hand-overs.
    """

    def __init__(self, seed: int = 0) -> None:
        self.calls = self.attempts = 0
        self.is_away = False
        self.loss = 0.0
        self.ahead = 0.0
        self.run = "1"
        self.random = random.Random(seed)
        self.authorities: dict[str, TicketAuthority] = {}
        self.slots = SlotAuthority()
        self.slot_calls = 0
        self.cut_off: set[str] = set()
        self.listeners: dict[str, Callable[[str], None]] = {}
        self._saved: dict[str, TicketAuthority] = {}

    def now_us(self) -> int:
        """Return the server's time."""
        return round((EPOCH + asyncio.get_running_loop().time() + self.ahead) * 1e6)

    def forget(self) -> None:
        """Lose everything, as by FLUSHALL."""
        self.authorities = {}
        self.slots = SlotAuthority()

    def save(self) -> None:
        """Save a snapshot."""
        self._saved = copy.deepcopy(self.authorities)

    def restart(self) -> None:
        """Restart from the last snapshot."""
        self.authorities = copy.deepcopy(self._saved)
        self.run += "1"

    def peers(self, seed: int, **settings: Any) -> FleetPeers:
        """Return the peers of one manager."""
        return GroupPeers(self, seed, **settings)


class GroupPeers(FleetPeers):
    """Peers that share rates and slots through a server."""

    def __init__(self, server: Server, seed: int, **settings: Any) -> None:
        self.link = Link(server)
        super().__init__(
            self.link,
            lambda: SlotLink(server),
            seed=seed,
            lease=LEASE_US / 1e6,
            is_threaded=False,
            new_id=lambda: f"node:{seed}:x",
            **settings,
        )


class SlotLink:
    """The transport of calls of slots to a server, and of notices of hand-overs back."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def call_slots(self, call: SlotCall) -> SlotReply:
        """Carry a call, up to a millisecond each way, or lose it."""
        server = self._server
        await asyncio.sleep(server.random.uniform(0.0002, 0.001))
        if server.is_away or call.peer in server.cut_off or server.random.random() < server.loss:
            await asyncio.sleep(60)
        server.slot_calls += 1
        reply = server.slots.call(server.now_us(), server.run, call)
        woken, server.slots.woken = server.slots.woken, []
        for token in woken:
            listener = server.listeners.get(peer_of(token))
            if listener is not None and server.random.random() >= server.loss:
                asyncio.get_running_loop().call_later(0.0005, listener, token)
        if server.random.random() < server.loss:
            await asyncio.sleep(60)
        await asyncio.sleep(server.random.uniform(0.0002, 0.001))
        return reply

    async def listen(self, peer: str, listening: Callable[[], None], woken: Callable[[str], None]) -> None:
        """Listen until cancelled."""
        self._server.listeners[peer] = woken
        listening()
        try:
            await asyncio.Event().wait()
        finally:
            del self._server.listeners[peer]

    async def aclose(self) -> None:
        """Do nothing."""


class Link:
    """The transport of calls to a server.

    Attributes:
        is_cut: True if no call arrives, as from a killed process.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.is_cut = False

    async def connect(self) -> None:
        """Connect at once, if the server answers."""
        self._server.attempts += 1
        if self._server.is_away:
            raise ConnectionError("away")

    async def aclose(self) -> None:
        """Do nothing."""

    async def call(self, calls: Any) -> list[Any]:
        """Carry calls, up to a millisecond each way, or lose them."""
        server = self._server
        await asyncio.sleep(server.random.uniform(0.0002, 0.001))
        if server.is_away or self.is_cut or server.random.random() < server.loss:
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
