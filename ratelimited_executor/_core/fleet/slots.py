"""The slots of a group: what peers ask of the authority, what it answers, and its rules over plain values.

``peers/redis/slots.lua`` has the same rules; one suite of tests holds for both. Those of the pools themselves stand in
``_core/slots.py``. Here is what it takes that they hold between processes, any of which may stop, and a server that may
forget:

1. **A lease ends by the authority's clock**, and its holder stops before, by its own: a lease is counted from when the
   server reads a call, and by its holder from when that was sent. There it also lasts for a third longer, the *spare*.
2. **Time that nobody has seen does not pass.** The clock of the leases continues by what has passed since the call before,
   unless that is more than the spare: then it stands still, as it does where the server's clock has gone back. Whoever holds
   or waits calls four times in a lease, so that it continues while it matters. A step of the server's clock that is not seen
   is within the spare: it ends no lease too early.
3. **An authority that may have forgotten hands nothing over for a lease and the spare**, the *quarantine*: where its state is
   not there, or not whole, and where the server is another run, whose last writes may be lost. Whoever held a slot before
   has renewed it by then, or stopped.
4. **In a quarantine a lease is adopted**: its holder names its fence, and until when it was to last. If that has not
   passed, by more than the clocks of two servers differ, nobody else has been handed the slot: before, it was the
   holder's, and since then nothing was handed over.
   Whoever has not heard of a hand-over waits again: an older memory may tell of one that has ended, and was others' since.
5. **Fences begin at the time** of the server in microseconds, in each of its runs and after any that the previous run's
   clock may have shown, and after the highest that any peer knows of: so they rise
   over a loss of the state, whatever the clock shows then.
6. **A limit is set by whoever says so, and by a process that declares another one** than was declared last: so a pool that
   was halted stays halted over a restart, and a deployment with another number puts that in force. Each setting has a
   *version*, its time; in a quarantine the latest is in force that anybody knows of.
7. **A pool by key has no limit of its own**: each that asks names how many may hold at once, as its process has it. So there
   may be any number of such pools, nothing is left of one that is empty, and no process starts more than it has set itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ratelimited_executor._core.slots import LOST, WAITING, SlotPools

__all__ = ["PoolState", "SlotAuthority", "SlotCall", "SlotDeclaration", "SlotEntry", "SlotReply", "peer_of"]


class SlotEntry(NamedTuple):
    """One that holds slots, or waits for them.

    Attributes:
        token: of a peer and a number: ``<peer>:<number>``.
        pools: of which, by name.
        priority: larger goes first.
        fence: of the slots that it holds; 0 if it waits.
        until_us: when its lease ends by the server's clock, as was told last; 0 if it waits.
        note: what the holder has said of itself.
        limit: how many may hold slots of its pools, instead of the limits of these; -1 for those.
    """

    token: str
    pools: tuple[str, ...]
    priority: float
    fence: int
    until_us: int
    note: str
    limit: int = -1


class SlotDeclaration(NamedTuple):
    """The limit of a pool as a process has it.

    Attributes:
        pool: its name.
        limit: as the process was started with.
        known: that in force, as far as it knows.
        version: of that; 0 if it knows none.
    """

    pool: str
    limit: int
    known: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCall:
    """What a peer asks. A call that is repeated does what the first did.

    Attributes:
        peer: who calls.
        lease_us: how long a lease lasts, in microseconds.
        difference_us: by which the clocks of two servers differ at most.
        fence: the highest that the peer knows of.
        entries: are asked for, or renewed.
        releases: tokens that hold and wait no more.
        limits: limits to be put in force, by the names of pools.
        declared: limits as this process was started with, where it has not told them in this era.
        watched: pools whose state is to be told.
    """

    peer: str
    lease_us: int
    difference_us: int
    fence: int = 0
    entries: tuple[SlotEntry, ...] = ()
    releases: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    declared: tuple[SlotDeclaration, ...] = ()
    watched: tuple[str, ...] = ()


class PoolState(NamedTuple):
    """A pool at the time of a reply.

    Attributes:
        limit: how many may hold a slot.
        held: how many do.
        waiting: how many wait.
        version: of the limit.
    """

    limit: int
    held: int
    waiting: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReply:
    """What the authority answers.

    Attributes:
        now_us: the server's clock, in microseconds since the epoch.
        era: another one means that the state was not whole: limits are to be declared again.
        quarantine_us: how long nothing is handed over yet.
        fence: the highest so far.
        fences: of each entry, in the order of the call: its fence, or WAITING, or LOST.
        handed: fences of other tokens of this peer that were handed slots in this call: for half a lease, until renewed.
        pools: the state of each pool that is watched, in order.
        flaw: ``state`` if what was there could not be believed; else empty.
    """

    now_us: int
    era: str
    quarantine_us: int
    fence: int
    fences: tuple[int, ...]
    handed: dict[str, int] = field(default_factory=dict)
    pools: tuple[PoolState, ...] = ()
    flaw: str = ""


def peer_of(token: str) -> str:
    """Return whose a token is."""
    return token.rpartition(":")[0]


class SlotAuthority:
    """Decides on the slots of a group.

    Attributes:
        woken: tokens of other peers that were handed slots, since this was emptied: these peers are to be told.
    """

    __slots__ = (
        "_clock_us",
        "_declared",
        "_is_whole",
        "_last_us",
        "_pools",
        "_run",
        "_safe_us",
        "_since_us",
        "_versions",
        "woken",
    )

    def __init__(self) -> None:
        self.woken: list[str] = []
        self._is_whole = False
        self._run = ""
        self._pools = SlotPools()
        self._declared: dict[str, int] = {}
        self._versions: dict[str, int] = {}  # of limits
        self._since_us = self._clock_us = self._last_us = self._safe_us = 0

    def call(self, now_us: int, run: str, call: SlotCall) -> SlotReply:
        """Answer one call.

        Args:
            now_us: the server's clock.
            run: tells its runs apart.
            call: what a peer asks.
        """
        clock_us = self._go_on(now_us, run, call)
        pools = self._pools
        pools.confirm_us = call.lease_us // 2 + _spare_of(call)
        pools.fence = max(pools.fence, call.fence)
        pools.look(clock_us)
        pools.halt(clock_us < self._safe_us)
        for name, limit, known, version in call.declared:
            if self._declared.get(name) != limit:
                self._set_limit(name, limit, clock_us, now_us if name in self._declared else 0)
                self._declared[name] = limit
            if pools.is_halted and version > self._versions.get(name, 0):  # what was set last may have been forgotten
                self._set_limit(name, known, clock_us, version)
        for name, limit in call.limits:
            self._set_limit(name, limit, clock_us, now_us)
        for token in call.releases:
            pools.release(token, clock_us)
        until_us = clock_us + call.lease_us + _spare_of(call)
        fences = tuple(self._enter(entry, now_us, clock_us, until_us, call) for entry in call.entries)
        handed = {str(lease.token): lease.fence for lease in pools.handed()}
        self.woken += [token for token in handed if peer_of(token) != call.peer]
        return SlotReply(
            now_us=now_us,
            era=f"{run}:{self._since_us}",
            quarantine_us=max(0, self._safe_us - clock_us),
            fence=pools.fence,
            fences=fences,
            handed={token: fence for token, fence in handed.items() if peer_of(token) == call.peer},
            pools=tuple(
                PoolState(pool.limit, len(pool.holding), pool.waiting_count, self._versions.get(pool.name, 0))
                for pool in map(pools.pool, call.watched)
            ),
        )

    def _go_on(self, now_us: int, run: str, call: SlotCall) -> int:
        """Advance the clock of the leases; forget what may be outdated. Return the clock's time."""
        if not self._is_whole:
            self._is_whole = True
            self._pools = SlotPools()
            self._declared, self._versions = {}, {}
            self._since_us = self._clock_us = now_us
        elif run == self._run:
            passed_us, self._last_us = now_us - self._last_us, now_us
            if 0 <= passed_us <= _spare_of(call):
                self._clock_us += passed_us
            return self._clock_us
        self._run, self._last_us = run, now_us
        self._pools.fence = max(self._pools.fence, now_us + call.difference_us)
        self._safe_us = self._clock_us + call.lease_us + _spare_of(call) + call.difference_us
        return self._clock_us

    def _set_limit(self, pool: str, limit: int, clock_us: int, version: int) -> None:
        """Put a limit in force; one that is set now is later than all before."""
        self._versions[pool] = max(version, self._versions.get(pool, 0) + 1) if version else 0
        self._pools.set_limit(pool, limit, clock_us)

    def _enter(self, entry: SlotEntry, now_us: int, clock_us: int, until_us: int, call: SlotCall) -> int:
        """Ask for slots, or renew a lease; adopt it where it may have been forgotten."""
        pools = self._pools
        if not entry.fence:
            if pools.is_halted and pools.fence_of(entry.token) > 0:
                pools.release(entry.token, clock_us)
            return pools.ask(
                entry.token,
                entry.pools,
                clock_us,
                until_us=until_us,
                priority=entry.priority,
                limit=None if entry.limit < 0 else entry.limit,
                note=entry.note,
            )
        fence = pools.renew(entry.token, clock_us, until_us=until_us)
        if fence == WAITING:  # by a call of before, which came late
            pools.release(entry.token, clock_us)
            fence = LOST
        if fence == LOST and pools.is_halted and now_us + call.difference_us < entry.until_us:
            fence = entry.fence
            pools.adopt(entry.token, entry.pools, clock_us, fence=fence, until_us=until_us, note=entry.note)
        return fence


def _spare_of(call: SlotCall) -> int:
    """Return for how long a lease lasts after its holder has stopped, in microseconds."""
    return call.lease_us // 3
