"""A group of managers in one loop of virtual time, over the pure authority of tickets, with faults between them.

What carries the calls here loses, delays and repeats as it is told, and the authority forgets or restarts. All else is what
production runs. What starts is counted at the resource: a list of (time, cost) of each name.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

from ratelimited_executor._core.fleet.authority import Authority
from ratelimited_executor._core.fleet.slot_peer import SlotSettings
from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply, peer_of
from ratelimited_executor._core.fleet.tickets import TicketAuthority, TicketCall
from ratelimited_executor.peers import Outage
from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.peers.slots import GroupSlots

LEASE_US = 2_000_000
EPOCH = 1_700_000_000.0


class Server:
    """The authority of all executors of a group: what a Redis server is.

    Attributes:
        calls: how many it has answered.
        is_away: whether calls get no answer.
        loss: the chance of a call, and of its answer, to be lost.
        ahead: seconds by which its clock is ahead.
        run: tells its runs apart.
        slots: the authority of slots.
        slot_calls: how many it has answered.
        cut_off: peers whose calls of slots do not reach it.
        listeners: what peers are told of hand-overs by.
    """

    def __init__(self, seed: int = 0) -> None:
        self.calls = 0
        self.is_away = False
        self.loss = 0.0
        self.ahead = 0.0
        self.run = "1"
        self.random = random.Random(seed)
        self.authorities: dict[str, TicketAuthority] = {}
        self.paces: dict[str, Authority] = {}  # of executors of one pace
        self.slots = SlotAuthority()
        self.slot_calls = 0
        self.cut_off: set[str] = set()
        self.listeners: dict[str, Callable[[str], None]] = {}
        self._saved: dict[str, TicketAuthority] = {}

    def now_us(self) -> int:
        """Return its clock."""
        return round((EPOCH + asyncio.get_running_loop().time() + self.ahead) * 1e6)

    def forget(self) -> None:
        """Lose everything, as by FLUSHALL."""
        self.authorities = {}
        self.paces = {}
        self.slots = SlotAuthority()

    def save(self) -> None:
        """Write a snapshot."""
        self._saved = copy.deepcopy(self.authorities)

    def restart(self) -> None:
        """Come back with what the last snapshot has."""
        self.authorities = copy.deepcopy(self._saved)
        self.run += "1"

    def peers(self, seed: int, **settings: Any) -> FleetPeers:
        """Return the peers of a manager of its own."""
        return GroupPeers(self, seed, **settings)


class GroupPeers(FleetPeers):
    """Peers that share rates and slots by a server."""

    def __init__(self, server: Server, seed: int, **settings: Any) -> None:
        self.link = Link(server)
        super().__init__(self.link, seed=seed, **settings)
        self._server, self._seed, self._policy = server, seed, settings.get("outage", Outage.STOP)

    def slots(self) -> GroupSlots:
        """Return what keeps the slots of a manager."""
        return GroupSlots(
            SlotSettings(id="", lease_us=LEASE_US, difference_us=1_000_000),
            lambda: SlotLink(self._server),
            new_id=lambda: f"node:{self._seed}:x",
            timeout=0.1,
            hang_timeout=60.0,
            outage=self._policy,
            is_threaded=False,
        )


class SlotLink:
    """What carries calls of slots to a server, and what it tells of hand-overs back."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def call_slots(self, call: SlotCall) -> SlotReply:
        """Carry a call, each way in half a millisecond, or lose it."""
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
        """Listen for as long as this is."""
        self._server.listeners[peer] = woken
        listening()
        try:
            await asyncio.Event().wait()
        finally:
            del self._server.listeners[peer]

    async def aclose(self) -> None:
        """Do nothing."""


class Link:
    """What carries calls to a server.

    Attributes:
        is_cut: whether none reaches it, as of a process that is killed.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.is_cut = False

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
        if server.is_away or self.is_cut or server.random.random() < server.loss:
            await asyncio.sleep(60)
        server.calls += 1
        now_us = server.now_us()
        answers = [
            server.authorities.setdefault(name, TicketAuthority()).call(now_us, server.run, call)
            if isinstance(call, TicketCall)
            else server.paces.setdefault(name, Authority()).call(now_us, call)
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
