"""The slots of a group: calls of peers, replies of the authority, and its rules over plain values.

``peers/redis/slots.lua`` has the same rules; one test suite covers both. The rules of the pools themselves are in
``_core/slots/slots.py``. The rules here keep those valid across processes, any of which may stop, and a server that may
forget:

1. **A lease ends by the authority's clock**, and its holder stops earlier, by its own clock: the authority counts a
   lease from when the server reads a call, the holder from when the call was sent. At the authority it also lasts a
   twentieth longer, the *spare*.
2. **Time passes as far as the caller has seen it pass.** The clock of the leases advances by the time since the
   previous call, by the server's clock. But the caller states what its latest answer told of that clock, and the time
   that it has seen pass since, by a clock of its own that makes no steps. The excess of the server's clock over that is
   the way of two messages, or a step. As far as it is more than the spare, the clock of the leases does not advance. Nor
   does it if the caller has had no answer in this era, or the server's clock has gone back, which begins an era. So a step ends no lease too
   early, and none much too late. No lag is ever made up for, because that would shorten the leases given meanwhile.
3. **An authority that may have forgotten hands nothing over for a lease, the spare, and the difference between two
   servers' clocks**, the *quarantine*. That is so if its state is missing or incomplete, and after a restart of the
   server, whose last writes may be lost. By then every earlier holder of a slot has renewed it or stopped.
4. **In a quarantine a lease is adopted**: its holder states its fence and its end. If the end is still ahead, by more
   than the difference between two servers' clocks, the slot was handed to no other: before, it was the holder's, and
   since then nothing was handed over. A waiter that has not heard of a hand-over waits again: restored state may show
   one that has ended, after which others held the slot.
5. **Fences begin at the time** of the server in microseconds, in each of its runs. They begin after any time that the
   previous run's clock may have shown, and after the highest fence that any peer knows. So they rise across a loss of
   the state, whatever the clock shows.
6. **A limit is set by an explicit change, and by a process that declares another limit** than was declared last. So a
   halted pool stays halted across a restart, and a deployment with another number puts that in force. Each setting has
   a *version*, its time; in a quarantine the latest known setting is in force.
7. **A release may be late where nobody misses the slot**: if another slot of its pools is free and nobody waits, it
   travels with its peer's next call, within a quarter of a lease. A pool's first waiter is announced to its holders, which then
   tell of releases at once. So a pool of one slot, or one in demand, never has a slot that is held by no task.
8. **A pool by key has no limit of its own**: each claim states how many may hold at once, as its process has it. So
   there may be any number of such pools, an empty one leaves nothing behind, and each process keeps its own limit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.fleet.memory import check_version
from ratelimited_executor._core.slots.slots import LOST, WAITING, SlotPools

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PoolState", "SlotAuthority", "SlotCall", "SlotDeclaration", "SlotEntry", "SlotReply", "peer_of"]

_VERSION: Final = 1  # of the texts of the state; increment it with every change of their meaning


class SlotEntry(NamedTuple):
    """A claim that holds slots or waits for them.

    Attributes:
        token: a peer and a number: ``<peer>:<number>``.
        pools: their names.
        priority: larger goes first.
        fence: of the held slots; 0 if it waits.
        until_us: the end of its lease by the server's clock, from the last answer; 0 if it waits.
        note: the holder's description of itself.
        limit: how many may hold slots of its pools, in place of the pools' limits; -1 to use those.
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
        limit: with which the process was started.
        known: the limit in force, as far as the process knows.
        version: of the known limit; 0 if none is known.
    """

    pool: str
    limit: int
    known: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCall:
    """A peer's call. A repeated call has the same effect as the first.

    Attributes:
        peer: the id of the calling peer.
        lease_us: how long a lease lasts, in microseconds.
        difference_us: the largest difference between the clocks of two servers.
        fence: the highest that the peer knows.
        era: of the latest answer; empty if there was none.
        told_us: the server's clock in that answer.
        seen_us: the time since, at least.
        entries: claims to register or renew.
        releases: tokens that no longer hold or wait.
        limits: limits to put in force, as (pool, limit).
        declared: the limits with which this process was started, unless sent in this era already.
        watched: pools whose state the reply is to contain.
    """

    peer: str
    lease_us: int
    difference_us: int
    fence: int = 0
    era: str = ""
    told_us: int = 0
    seen_us: int = 0
    entries: tuple[SlotEntry, ...] = ()
    releases: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    declared: tuple[SlotDeclaration, ...] = ()
    watched: tuple[str, ...] = ()


class PoolState(NamedTuple):
    """A pool at the time of a reply.

    Attributes:
        limit: how many may hold a slot.
        held: how many hold one.
        waiting: how many wait.
        version: of the limit.
    """

    limit: int
    held: int
    waiting: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReply:
    """The authority's answer to a call.

    Attributes:
        now_us: the server's clock, in microseconds since the epoch.
        era: a change means that the state may be incomplete: limits have to be declared again.
        quarantine_us: the remaining time in which nothing is handed over.
        fence: the highest so far.
        fences: of each entry, in the order of the call: its fence, or WAITING, or LOST.
        ends_us: the remaining time of the lease or wait that ends next, unless it is renewed; 0 if there is none.
        handed: fences of this peer's other tokens that were handed slots in this call: for half a lease, until renewed.
        pools: the state of each watched pool, in order.
        flaw: ``state`` if the stored state was not valid; else empty.
    """

    now_us: int
    era: str
    quarantine_us: int
    fence: int
    fences: tuple[int, ...]
    ends_us: int = 0
    handed: dict[str, int] = field(default_factory=dict)
    pools: tuple[PoolState, ...] = ()
    flaw: str = ""


def peer_of(token: str) -> str:
    """Return the peer of a token."""
    return token.rpartition(":")[0]


class SlotAuthority:
    """Decides on the slots of a group.

    Args:
        is_clock_steady: True if the server's clock makes no steps: then it is the clock of the leases, in place of rule 2.

    Attributes:
        woken: tokens of other peers, to notify these peers: of slots that were handed to the token, or that somebody begins
            to wait for those that it holds; the caller empties it.
    """

    __slots__ = (
        "_clock_us",
        "_declared",
        "_is_clock_steady",
        "_is_whole",
        "_last_us",
        "_pools",
        "_run",
        "_safe_us",
        "_since_us",
        "_turn",
        "_versions",
        "_wanted",
        "woken",
    )

    def __init__(self, *, is_clock_steady: bool = False) -> None:
        self.woken: list[str] = []
        self._is_clock_steady = is_clock_steady
        self._is_whole = False
        self._run = ""
        self._pools = SlotPools()
        self._declared: dict[str, int] = {}
        self._versions: dict[str, int] = {}  # of limits
        self._since_us = self._clock_us = self._last_us = self._safe_us = 0
        self._wanted: dict[str, str] = {}  # by peer: a token that holds a slot for which somebody begins to wait
        self._turn = 0  # counts how often the server's clock has gone back

    def begin(self, run: str, now_us: int) -> None:
        """Begin for a group that has surely not existed before: it needs no quarantine."""
        self._is_whole, self._run = True, run
        self._since_us = self._clock_us = self._last_us = self._safe_us = now_us
        self._pools.fence = now_us

    # As texts: a head, and one for each token. A copy that reads those that have changed goes on like the original.

    def head(self) -> str:
        """Return the text of all that is of no token."""
        clocks = self._since_us, self._clock_us, self._last_us, self._safe_us, self._turn
        pools = self._pools
        return _text([_VERSION, self._run, clocks, pools.numbers(), pools.limits, self._declared, self._versions])

    def changes(self) -> dict[str, str | None]:
        """Return the text of each token that has changed since the last call of this; None if it is gone."""
        changed, self._pools.changed = self._pools.changed, set()
        found = {str(token): self._pools.fields_of(token) for token in changed}
        return {token: None if fields is None else _text(fields) for token, fields in found.items()}

    def read(self, head: str, changed: Iterable[tuple[str, str | None]]) -> None:
        """Take in texts of another copy.

        Raises:
            VersionError: if they are those of a later release.
            ValueError: if they are damaged, or those of an earlier one.
        """
        version, *rest = json.loads(head)
        check_version(version, _VERSION)
        pools = self._pools
        try:
            self._run, clocks, numbers, limits, self._declared, self._versions = rest
            self._since_us, self._clock_us, self._last_us, self._safe_us, self._turn = clocks
            for token, text in changed:
                pools.copy(token, None if text is None else json.loads(text))
            for name, limit in limits.items():
                pools.copy_limit(name, limit)
            pools.copy_numbers(*numbers)
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"not the memory of an authority: {error}") from error
        self._is_whole = True
        pools.changed.clear()

    def call(self, now_us: int, run: str, call: SlotCall) -> SlotReply:
        """Answer one call.

        Args:
            now_us: the server's clock.
            run: identifies the run of the server.
            call: the peer's call.
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
            if pools.is_halted and version > self._versions.get(name, 0):  # the last setting may have been lost
                self._set_limit(name, known, clock_us, version)
        for name, limit in call.limits:
            self._set_limit(name, limit, clock_us, now_us)
        for token in call.releases:
            pools.release(token, clock_us)
        until_us = clock_us + call.lease_us + _spare_of(call)
        fences = tuple(self._enter(entry, now_us, clock_us, until_us, call) for entry in call.entries)
        handed = {str(lease.token): lease.fence for lease in pools.handed()}
        self.woken += [token for token in handed if peer_of(token) != call.peer]
        self._wanted.pop(call.peer, None)
        self.woken += self._wanted.values()
        self._wanted.clear()
        end_us = pools.next_end()
        return SlotReply(
            now_us=now_us,
            era=self._era,
            quarantine_us=max(0, self._safe_us - clock_us),
            ends_us=0 if end_us is None else end_us - clock_us,
            fence=pools.fence,
            fences=fences,
            handed={token: fence for token, fence in handed.items() if peer_of(token) == call.peer},
            pools=tuple(
                PoolState(pool.limit, len(pool.holding), pool.waiting_count, self._versions.get(pool.name, 0))
                for pool in map(pools.pool, call.watched)
            ),
        )

    def _go_on(self, now_us: int, run: str, call: SlotCall) -> int:
        """Advance and return the lease clock; begin a quarantine if the state is lost or may be outdated."""
        if not self._is_whole:
            self._is_whole = True
            self._pools = SlotPools()
            self._declared, self._versions = {}, {}
            self._since_us = self._clock_us = now_us
        elif run == self._run:
            passed_us, self._last_us = now_us - self._last_us, now_us
            if self._is_clock_steady:
                self._clock_us += passed_us
            elif passed_us < 0:
                self._turn += 1
            elif call.era == self._era:
                excess_us = now_us - call.told_us - call.seen_us
                self._clock_us += max(0, passed_us - max(0, excess_us - _spare_of(call)))
            return self._clock_us
        self._run, self._last_us = run, now_us
        self._pools.fence = max(self._pools.fence, now_us + call.difference_us)
        self._safe_us = self._clock_us + call.lease_us + _spare_of(call) + call.difference_us
        return self._clock_us

    @property
    def _era(self) -> str:
        return f"{self._run}:{self._since_us}:{self._turn}"

    def _set_limit(self, pool: str, limit: int, clock_us: int, version: int) -> None:
        """Put a limit in force; a new setting gets a later version than all before."""
        self._versions[pool] = max(version, self._versions.get(pool, 0) + 1) if version else 0
        self._pools.set_limit(pool, limit, clock_us)

    def _want(self, pools: Iterable[str]) -> None:
        """Note the holders of pools that have their first waiter now: they may not have told of a release yet."""
        for pool in map(self._pools.pool, pools):
            if pool.waiting_count == 1:
                tokens = (str(lease.token) for lease in sorted(pool.holding.values(), key=attrgetter("fence")))
                self._wanted |= {peer_of(token): token for token in tokens}

    def _enter(self, entry: SlotEntry, now_us: int, clock_us: int, until_us: int, call: SlotCall) -> int:
        """Ask for slots, or renew a lease; adopt a lease that may have been forgotten."""
        pools = self._pools
        if not entry.fence:
            if pools.is_halted and pools.fence_of(entry.token) > 0:
                pools.release(entry.token, clock_us)
            is_new = pools.fence_of(entry.token) == LOST
            fence = pools.ask(
                entry.token,
                entry.pools,
                clock_us,
                until_us=until_us,
                priority=entry.priority,
                limit=None if entry.limit < 0 else entry.limit,
                note=entry.note,
            )
            if is_new and fence == WAITING:
                self._want(entry.pools)
            return fence
        fence = pools.renew(entry.token, clock_us, until_us=until_us)
        if fence == WAITING:  # registered by an earlier call that arrived late
            pools.release(entry.token, clock_us)
            fence = LOST
        if fence == LOST and pools.is_halted and now_us + call.difference_us < entry.until_us:
            fence = entry.fence
            pools.adopt(entry.token, entry.pools, clock_us, fence=fence, until_us=until_us, note=entry.note)
        return fence


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _spare_of(call: SlotCall) -> int:
    """Return how long the authority keeps a lease after its holder has stopped, in microseconds."""
    return call.lease_us // 20
