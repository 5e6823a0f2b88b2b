"""A server of shared limits in virtual time, and its network: the one module that knows the protocol.

The server is one queue: a call takes a time of its own and one for each ticket, calls wait for those before them, and
the answer tells the time at which the server came to the call. Messages travel for a time that each process has of its
own, may get lost or arrive twice, and never arrive while the server is away.
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.slots import SlotAuthority, peer_of
from ratelimited_executor._core.fleet.tickets import TicketAuthority
from ratelimited_executor.peers.fleet import FleetPeers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.fleet.world import World

__all__ = ["Network", "VirtualServer"]

_EPOCH: Final = 1_700_000_000.0
_LATE_COPY_SECONDS: Final = 0.05  # mean delay of a message's second copy


@dataclass(frozen=True, slots=True)
class Network:
    """The way between processes and the server.

    Attributes:
        trips: seconds there and back, without the server; process ``i`` has the one at ``i`` modulo their number.
        jitter: the part by which each way of each message may be longer or shorter.
        skew: the part of the trip that the way there may differ from a half by, drawn for each process.
        loss: the probability that a message is lost.
        twice: the probability that a call is heard a second time, later.
    """

    trips: tuple[float, ...] = (0.001,)
    jitter: float = 0.2
    skew: float = 0.2
    loss: float = 0.0
    twice: float = 0.0


class VirtualServer:
    """The authority of a group's limits, which processes of a world reach through a network.

    Args:
        world: the processes and their time.
        network: the ways between them.
        call_seconds: what a call takes.
        ticket_seconds: what each ticket takes in addition.
        lease: seconds for which a slot is held without renewal.
        seed: of what the network draws.

    Attributes:
        calls: number of calls heard.
        busy: seconds for which the server has worked.
        is_away: True while it hears nothing.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        *,
        call_seconds: float = 60e-6,
        ticket_seconds: float = 5e-6,
        lease: float = 10.0,
        seed: int = 1,
    ) -> None:
        self.calls = 0
        self.busy = 0.0
        self.is_away = False
        self.is_closed = False
        self.world = world
        self.lease = lease
        self._network = network
        self._costs = (call_seconds, ticket_seconds)
        self._random = random.Random(seed)
        skew = network.skew
        self._parts = [0.5 + self._random.uniform(-skew, skew) for _ in world.loops]  # of each trip: the way there
        self._free_at = 0.0
        self._ahead = _EPOCH
        self._drift = 0.0
        self._run = 1
        self._tickets: dict[str, TicketAuthority] = {}
        self._slots = SlotAuthority()
        self._listeners: dict[str, tuple[int, Callable[[str], None]]] = {}
        self._snapshot: Any = None

    # For a program.

    def peers(self, process: int, *, weight: float = 1.0) -> Any:
        """Return ``peers=`` for the manager of a process."""
        return _Peers(self, process, weight)

    def lapsed(self, executor: Any) -> float:
        """Return how many tickets of an executor have lapsed so far; not a number if its statistics do not tell."""
        fleet = executor.statistics().fleet
        return math.nan if fleet is None else fleet.lapsed

    def forget(self) -> None:
        """Lose everything, as by FLUSHALL."""
        self._tickets, self._slots = {}, SlotAuthority()

    def save(self) -> None:
        """Save a snapshot, with which it will restart."""
        self._snapshot = copy.deepcopy((self._tickets, self._slots))

    def restart(self) -> None:
        """Restart with the snapshot; what came later is lost."""
        self._run += 1
        self._tickets, self._slots = copy.deepcopy(self._snapshot)

    def step(self, seconds: float) -> None:
        """Step the server's clock."""
        self._ahead += seconds

    def slew(self, drift: float) -> None:
        """Let the server's clock run faster by a part from now on."""
        self._ahead += self.world.now * (self._drift - drift)
        self._drift = drift

    # For the connections.

    async def call(self, process: int, work: Callable[[], tuple[Any, int]]) -> Any:
        """Carry a call to the server and the answer back; wait for ever if one of them is lost.

        Args:
            process: that calls.
            work: what the server does; returns the answer and the number of tickets.
        """
        if self.is_closed:
            raise ConnectionError("the program is over")
        loop = self.world.loops[process]
        answered: asyncio.Future[Any] = loop.create_future()
        self._send(loop.time(), process, work, answered)
        return await answered

    def notify(self, process: int, do: Callable[..., object], *arguments: Any) -> None:
        """Send a message from the server to a process, unless it is lost."""
        if not self._draw(self._network.loss):
            self.world.at(self._free_at + self._way(process, is_back=True), self.world.deliver, process, do, *arguments)

    def now_us(self) -> int:
        """Return the server's time when it comes to the call that it is working on."""
        return round((max(self.world.now, self._free_at) * (1 + self._drift) + self._ahead) * 1e6)

    def _send(self, now: float, process: int, work: Callable[[], tuple[Any, int]], answered: Any) -> None:
        network = self._network
        there = self._way(process)
        if not self._draw(network.loss):
            self.world.at(now + there, self._hear, process, work, answered)
        if self._draw(network.twice):
            again = now + there + self._random.expovariate(1 / _LATE_COPY_SECONDS)
            self.world.at(again, self._hear, process, work, None)

    def _hear(self, process: int, work: Callable[[], tuple[Any, int]], answered: Any) -> None:
        if self.is_away:
            return
        self.calls += 1
        answer, tickets = work()
        took = self._costs[0] + tickets * self._costs[1]
        self.busy += took
        self._free_at = max(self.world.now, self._free_at) + took
        if answered is not None:
            self.notify(process, _answer, answered, answer)

    def _way(self, process: int, *, is_back: bool = False) -> float:
        """Draw how long a message to or from a process is on its way."""
        network = self._network
        part = 1 - self._parts[process] if is_back else self._parts[process]
        trip = network.trips[process % len(network.trips)]
        return trip * part * self._random.uniform(1 - network.jitter, 1 + network.jitter)

    def _draw(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    # The protocol.

    def answer(self, calls: Sequence[tuple[str, Any]]) -> tuple[list[Any], int]:
        """Answer the calls of executors; return how many tickets they cost as well."""
        replies: list[Any] = []
        tickets = 0
        for name, call in calls:
            authority = self._tickets.setdefault(name, TicketAuthority())
            reply = authority.call(self.now_us(), str(self._run), call)
            tickets += sum(1 + len(outcome.tickets) for outcome in reply.outcomes)
            replies.append(reply)
        return replies, tickets

    def answer_slots(self, call: Any) -> tuple[Any, int]:
        """Answer a call for slots, and wake the processes that are handed one."""
        reply = self._slots.call(self.now_us(), str(self._run), call)
        woken, self._slots.woken = self._slots.woken, []
        for token in woken:
            listener = self._listeners.get(peer_of(token))
            if listener is not None:
                self.notify(*listener, token)
        return reply, len(call.entries) + len(call.releases)

    def listen(self, peer: str, process: int, woken: Callable[[str], None]) -> None:
        """Send a peer's hand-overs to its process from now on."""
        self._listeners[peer] = process, woken


class _Peers(FleetPeers):
    """Peers of one process."""

    def __init__(self, server: VirtualServer, process: int, weight: float) -> None:
        super().__init__(
            _Link(server, process),
            lambda: _SlotLink(server, process),
            seed=process,
            weight=weight,
            lease=server.lease,
            is_threaded=False,
            new_id=lambda: f"node:{process}:x",
        )


class _Link:
    """The connection of a process."""

    def __init__(self, server: VirtualServer, process: int) -> None:
        self._server, self._process = server, process

    async def connect(self) -> None:
        """Connect, by a message there and back."""
        await self._server.call(self._process, lambda: (None, 0))

    async def call(self, calls: Sequence[tuple[str, Any]]) -> Any:
        """Carry calls."""
        return await self._server.call(self._process, lambda: self._server.answer(calls))

    async def aclose(self) -> None:
        """Do nothing."""


class _SlotLink:
    """The connection of a process for slots."""

    def __init__(self, server: VirtualServer, process: int) -> None:
        self._server, self._process = server, process

    async def call_slots(self, call: Any) -> Any:
        """Carry a call."""
        return await self._server.call(self._process, lambda: self._server.answer_slots(call))

    async def listen(self, peer: str, listening: Callable[[], None], woken: Callable[[str], None]) -> None:
        """Listen until cancelled."""
        self._server.listen(peer, self._process, woken)
        listening()
        await asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Do nothing."""


def _answer(answered: asyncio.Future[Any], answer: Any) -> None:
    if not answered.done():
        answered.set_result(answer)
