"""Histories of slots in virtual time: real peers and the real authority, a network that fails, and whatever else may happen.

    python -m tests.peers.slot_simulation --histories 10000

Each history draws processes, their clocks, their work and their misfortunes from its number. For a while there are faults:
messages are late, lost and doubled, wake-ups are lost; processes are killed, stopped for longer than a lease, or join; the
server stops, comes back with its memory, with an older one or with none, and its clock is stepped; limits are changed. Then
all is well again, and no new work comes.

Held against each history, at every instant of true time:

- **law**: of a pool no more are at work than its limit, or than held slots when it was lowered. Who is at work: whoever has been
  handed a slot and has not released it, until its lease ends by its own clock.
- **fences**: no two hand-overs have the same one, and in the order of hand-overs they rise, over losses as well; unless the
  server's clock was set back and it has then lost its memory, and with it a fence that only those knew who are gone.
- **stranded**: in the end, nobody waits any more.
- **leaked**: three leases later the authority holds nothing: a lease, its spare, and a hand-over that nobody heard of.
"""

from __future__ import annotations

import argparse
import copy
import heapq
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ratelimited_executor._core.fleet.slot_peer import EntryState, SlotClaim, SlotPeer, SlotSettings
from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply, peer_of

MS = 1_000_000
SECOND = 1_000 * MS
LEASE = SECOND
DIFFERENCE = 200 * MS
TIMEOUT = 100 * MS
FAULTS = 10 * SECOND
CALM = 40 * SECOND
POOLS = ("gpu", "licence")
KEY, KEY_LIMIT = "a key", 2  # a pool without a limit: each request has its own
START_US = 1_704_067_200_000_000


@dataclass
class Found:
    """What a history has shown.

    Attributes:
        handed: confirmed hand-overs of slots.
        lost: slots lost by their holders.
        law: instants at which more were at work than allowed.
        fences: fences that did not rise.
        stranded: waiters at the end.
        leaked: leases left at the end.
    """

    handed: int = 0
    lost: int = 0
    law: int = 0
    fences: int = 0
    stranded: int = 0
    leaked: int = 0

    @property
    def is_right(self) -> bool:
        """True if no rule is broken."""
        return not (self.law or self.fences or self.stranded or self.leaked)


class Server:
    """The authority, on a clock that may be stepped."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.authority = world.new_authority()
        self.run = 1
        self.is_up = True
        self.step_us = 0
        self.drift = world.random.uniform(-0.0005, 0.0005)
        self.saved = copy.deepcopy(self.authority)

    def now_us(self) -> int:
        """Return the server's time."""
        return START_US + int(self.world.now * (1 + self.drift)) // 1000 + self.step_us

    def call(self, call: SlotCall) -> SlotReply:
        """Answer a call."""
        return self.authority.call(self.now_us(), f"run {self.run}", call)


@dataclass(eq=False)
class Process:
    """One process: its peer, and its holders and waiters."""

    world: World
    number: int
    offset: int
    drift: float
    peer: SlotPeer = field(init=False)
    is_alive: bool = True
    stopped_until: int = 0
    is_calling: bool = False
    wake_number: int = 0
    begun: set[SlotClaim] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings = SlotSettings(id=f"host:{self.number}:x", lease_us=LEASE // 1000, difference_us=DIFFERENCE // 1000)
        self.peer = self.world.new_peer(settings)
        for pool, limit in self.world.declared.items():
            self.peer.declare(pool, limit)

    def now(self) -> int:
        """Return the process's time."""
        return self.offset + int(self.world.now * (1 + self.drift))

    def later(self, own: int) -> int:
        """Return the true time at which the process's clock shows a time."""
        return max(self.world.now, int((own - self.offset) / (1 + self.drift)) + 1)

    def do(self, action: Any) -> None:
        """Do an action now, or once the process continues."""
        if not self.is_alive:
            return
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until, lambda: self.do(action))
            return
        action()
        self.go_on()

    def go_on(self) -> None:
        """Check leases, call if due, and set the next wake-up, as the thread of a process does."""
        now = self.now()
        for claim in self.peer.look(now):
            self.end(claim, is_lost=True)
        if self.is_calling:
            return
        due = self.peer.next_call(now)
        if due is not None and due <= now:
            self.send()
            return
        times = [when for when in (due, self.peer.next_end()) if when is not None]
        if times:
            self.wake_number += 1
            number = self.wake_number
            self.world.at(self.later(min(times)), lambda: self.do(lambda: None) if number == self.wake_number else None)

    def send(self) -> None:
        """Make a call, which is answered or times out."""
        world, sent = self.world, self.now()
        call = self.peer.request(sent)
        self.is_calling = True
        is_open = [True]

        def answered(reply: SlotReply) -> None:
            if is_open[0]:
                is_open[0] = self.is_calling = False
                for claim in self.peer.take_in(call, reply, sent, self.now()):
                    self.note(claim)

        def timed_out() -> None:
            if is_open[0]:
                is_open[0] = self.is_calling = False
                self.peer.note_failure(call, self.now())

        world.carry(self, call, lambda reply: self.do(lambda: answered(reply)))
        world.at(world.now + TIMEOUT, lambda: self.do(timed_out))

    def note(self, claim: SlotClaim) -> None:
        """Start work on a slot, or end it."""
        if claim.state is EntryState.LOST:
            self.end(claim, is_lost=True)
        elif claim.state is EntryState.HELD:
            world = self.world
            self.begun.add(claim)
            world.found.handed += 1
            world.check_fence(claim)
            world.at(
                world.now + int(world.random.expovariate(1 / (0.3 * LEASE))), lambda: self.do(lambda: self.end(claim))
            )

    def ask(self, pools: tuple[str, ...], priority: float) -> None:
        """Ask for slots, in some cases only for a while."""
        claim = SlotClaim(pools, priority, "work", limit=KEY_LIMIT if pools == (KEY,) else -1)
        self.peer.ask(claim, self.now())
        if self.world.random.random() < 0.15:
            patience = int(self.world.random.expovariate(1 / LEASE))
            self.world.at(self.world.now + patience, lambda: self.do(lambda: self.end(claim)))

    def end(self, claim: SlotClaim, *, is_lost: bool = False) -> None:
        """Release the slots, or stop waiting."""
        self.begun.discard(claim)
        if is_lost:
            self.world.found.lost += 1
        elif claim.state in (EntryState.HELD, EntryState.WAITING):
            self.peer.release(claim)


class World:
    """One history.

    Args:
        seed: the number of the history.
        new_authority: makes the authority.
        new_peer: makes a peer from its settings.
    """

    def __init__(self, seed: int, new_authority: Any = SlotAuthority, new_peer: Any = SlotPeer) -> None:
        self.random = random.Random(seed)
        self.new_authority, self.new_peer = new_authority, new_peer
        self.now = 0
        self.events: list[tuple[int, int, Any]] = []
        self.numbers = count()
        self.found = Found()
        self.fences: dict[int, str] = {}
        self.latest_us = 0  # latest time that the server's clock has shown
        self.may_forget_fences = False
        self.has_changing_limits = self.random.random() < 0.5
        self.declared = {pool: self.random.randint(1, 3) for pool in POOLS}
        self.bounds = {pool: [(0, limit)] for pool, limit in self.declared.items()}  # (since, highest limit)
        self.server = Server(self)
        self.processes: list[Process] = []
        self.latest_fence = dict.fromkeys(POOLS, 0)
        for _ in range(self.random.randint(2, 4)):
            self.join()

    def at(self, when: int, action: Any) -> None:
        """Schedule an action."""
        heapq.heappush(self.events, (when, next(self.numbers), action))

    def join(self) -> None:
        """Let a process join, and get work."""
        draw = self.random
        process = Process(self, next(self.numbers), draw.randrange(10**15), draw.uniform(-0.0005, 0.0005))
        self.processes.append(process)
        process.do(lambda: None)
        when = self.now
        while (when := when + int(draw.expovariate(1.2 / LEASE))) < FAULTS:
            pools = draw.choice([("gpu",), ("gpu",), ("licence",), ("gpu", "licence"), ("licence", "gpu"), (KEY,)])
            priority = draw.choice([0.0, 0.0, 1.0])
            self.at(when, lambda pools=pools, priority=priority: process.do(lambda: process.ask(pools, priority)))

    # The network.

    @property
    def has_faults(self) -> bool:
        """True while faults may happen."""
        return self.now < FAULTS

    def delay(self) -> int:
        """Draw the delay of a message."""
        draw = self.random
        if self.has_faults and draw.random() < 0.02:
            return int(draw.expovariate(1 / (LEASE / 2)))
        return int(draw.expovariate(1 / MS)) + MS // 10

    def carry(self, process: Process, call: SlotCall, answered: Any) -> None:
        """Carry a call to the server, in some cases twice or not at all, and its answer back."""
        draw = self.random
        for copy_number in range(2 if self.has_faults and draw.random() < 0.02 else 1):
            if self.has_faults and draw.random() < 0.03:
                continue
            delay = self.delay() if copy_number == 0 else int(draw.expovariate(1 / LEASE))
            # A limit that arrives a second time, after others have set it, would rightly be in force: leave it out.
            sent = call if copy_number == 0 else replace(call, limits=())
            self.at(
                self.now + delay, lambda sent=sent, is_first=copy_number == 0: self.arrive(sent, answered, is_first)
            )

    def arrive(self, call: SlotCall, answered: Any, is_first: bool) -> None:
        """Let the server answer, and notify peers of hand-overs."""
        server, draw = self.server, self.random
        if not server.is_up:
            return
        if (
            server.authority._run != f"run {server.run}"
        ):  # its memory is or may be lost, and its clock may have been set back
            self.may_forget_fences = self.may_forget_fences or server.now_us() < self.latest_us
        self.latest_us = max(self.latest_us, server.now_us())
        reply = server.call(call)
        self.note_bounds()
        woken, server.authority.woken = server.authority.woken, []
        for token in woken:
            if not (self.has_faults and draw.random() < 0.1):
                for other in self.processes:
                    if other.peer.settings.id == peer_of(token):
                        self.at(
                            self.now + self.delay(),
                            lambda other=other, token=token: other.do(lambda: other.peer.note_woken(token)),
                        )
        if is_first and not (self.has_faults and draw.random() < 0.03):
            self.at(self.now + self.delay(), lambda: answered(reply))

    # Faults.

    def befall(self) -> None:
        """Let a fault happen."""
        draw, server = self.random, self.server
        process = draw.choice(self.processes)
        match draw.choice(["kill", "stop", "stop", "join", "server", "server", "step", "limit", "limit", "save"]):
            case "kill":
                if sum(each.is_alive for each in self.processes) > 1:
                    process.is_alive = False
                    process.begun.clear()
            case "stop":
                process.stopped_until = self.now + int(draw.expovariate(1 / LEASE))
            case "join" if len(self.processes) < 6:
                self.join()
            case "server" if server.is_up:
                server.is_up = False
                self.at(self.now + int(draw.expovariate(2 / LEASE)), self.come_back)
            case "step":
                server.step_us += draw.choice([-1, 1]) * int(draw.expovariate(1 / (10 * LEASE))) // 1000
            case "limit" if self.has_changing_limits:
                pool, limit = draw.choice(POOLS), draw.choice([0, 0, 1, 2, 3])
                process.do(lambda: process.peer.set_limit(pool, limit))
            case "save":
                server.saved = copy.deepcopy(server.authority)

    def come_back(self) -> None:
        """Restart the server with its memory, an older one, or none."""
        server, draw = self.server, self.random
        if not self.has_faults:
            return
        server.is_up = True
        self.may_forget_fences = self.may_forget_fences or server.now_us() < self.latest_us
        match draw.choice(["same run", "memory", "older memory", "nothing", "wiped"]):
            case "memory":
                server.run += 1
            case "older memory":
                server.run += 1
                server.authority = copy.deepcopy(server.saved)
            case "nothing":
                server.run += 1
                server.authority = self.new_authority()
            case "wiped":
                server.authority = self.new_authority()

    # Laws.

    def note_bounds(self) -> None:
        """Note how many may be at work from now on."""
        for pool, bounds in self.bounds.items():
            if self.has_changing_limits:
                found = self.server.authority._pools.pool(pool)
                bounds.append((self.now, max(found.limit, len(found.holding))))
                while len(bounds) > 1 and bounds[1][0] < self.now - 4 * LEASE:
                    bounds.pop(0)

    def check_law(self) -> None:
        """Count the holders at work, and compare with the limits."""
        working: Counter[str] = Counter()
        for process in self.processes:
            if process.begun:
                now = process.now()
                for claim in process.begun:
                    if claim.end_ns > now:
                        working.update(claim.pools)
        self.found.law += working.pop(KEY, 0) > KEY_LIMIT
        for pool, at_work in working.items():
            self.found.law += at_work > max(bound for _, bound in self.bounds[pool])

    def check_fence(self, claim: SlotClaim) -> None:
        """Compare a fence with the earlier ones."""
        if self.may_forget_fences:
            return
        self.found.fences += self.fences.setdefault(claim.fence, claim.token) != claim.token
        for pool in () if self.has_changing_limits else claim.pools:
            if all(
                self.declared.get(each) == 1 for each in (pool, claim.pools[0])
            ):  # one at a time, so each is later than those before
                self.found.fences += claim.fence <= self.latest_fence[pool]
                self.latest_fence[pool] = claim.fence

    def run(self) -> Found:
        """Run the history."""
        when = 0
        while (when := when + int(self.random.expovariate(2 / LEASE))) < FAULTS:
            self.at(when, self.befall)
        self.at(FAULTS, self.calm_down)
        while self.events and self.events[0][0] < FAULTS + CALM:
            self.now, _, action = heapq.heappop(self.events)
            action()
            self.check_law()
        for process in self.processes:
            if process.is_alive:
                self.found.stranded += len(process.peer.waiting())
        era, told_us = "", 0
        for _ in range(12):  # for peers that poll
            self.now += LEASE // 4
            call = SlotCall(
                peer="end:1:x",
                lease_us=LEASE // 1000,
                difference_us=DIFFERENCE // 1000,
                era=era,
                told_us=told_us,
                seen_us=LEASE // 4000,
            )
            reply = self.server.call(call)
            era, told_us = reply.era, reply.now_us
        pools = self.server.authority._pools
        self.found.leaked += len(pools._leases) + (KEY in pools._pools)
        return self.found

    def calm_down(self) -> None:
        """End all faults."""
        self.server.is_up = True
        for process in self.processes:
            process.stopped_until = min(process.stopped_until, self.now)
        self.at(self.now + 20 * LEASE, self.set_limits)  # stopped processes have set theirs by then

    def set_limits(self) -> None:
        """Let all waiters work, once no earlier message is under way."""
        process = next(each for each in self.processes if each.is_alive)
        for pool in POOLS if self.has_changing_limits else ():
            process.do(lambda pool=pool: process.peer.set_limit(pool, 3))


def main() -> None:
    """Run many histories, and print the broken rules."""
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    wrong = []
    for seed in track(range(options.first, options.first + options.histories), "histories"):
        found = World(seed).run()
        total.update(vars(found))
        if not found.is_right:
            wrong.append(seed)
    print(", ".join(f"{name} {number:,}" for name, number in total.items()))
    print(f"wrong: {wrong[:20]}" if wrong else "none was wrong")


if __name__ == "__main__":
    main()
