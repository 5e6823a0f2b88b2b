"""One process's side of the slots of a group: its calls, and until when it surely holds a slot.

A request for slots is a *claim*. New claims, releases and limits go out at once, except for a gap after the last call;
those that arrive meanwhile go together. Each claim is renewed every quarter of a lease, together with all others that
are soon due. One call is in flight at a time; a failed call is repeated with all its content. Waiters also call when the
next lease of the group may end: a holder that has not renewed its lease by then is dead.

Slots are *coming* to a waiter from the notice of a hand-over, and from a release here if the previous slots of that
line stayed here, too. Then a task can get its permit in the time of the call that asks for its slots.

A release goes out at once if anybody may want the slots. If the answer that told of them also told that nobody waits and
that their pools have another slot free, it travels with the next call, or goes when a renewal would be due: tasks that
come singly then cost one call each. The authority announces the first who has to wait after all, and the release goes.

A lease ends here before it ends at the authority: it counts from when the call was sent, and is shorter by the possible
drift between clocks. An answer that arrives after that is useless.

Of the waiters with the same priority and pools, 128 are registered with the authority; the others follow as these get
their slots. So a call stays small, however many wait, and the order holds among the waiters of one process. Between
processes it holds among registered waiters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.fleet.slots import PoolState, SlotCall, SlotDeclaration, SlotEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ratelimited_executor._core.fleet.slots import SlotReply

_Line: TypeAlias = tuple[tuple[str, ...], float]
"""The pools and the priority of waiters."""

__all__ = ["EntryState", "SlotClaim", "SlotPeer", "SlotSettings"]

_GAP_NS: Final = 500_000  # between two calls at least ...
_GAP_MAX_NS: Final = 10_000_000
_GAP_PART: Final = 4  # ... and this many times the duration of the latest call, unless a slot is idle until then
_RETRY_NS: Final = 20_000_000  # after a failed call; doubled after each further one
_TOLD_COUNT: Final = 128  # registered waiters of one priority and the same pools
_CALL_COUNT: Final = 128  # entries in a call, and releases
_DRIFT_PER_MILLION: Final = 1000  # by which a lease is shorter here: two clocks drift by 500 each at most
_NEVER_NS: Final = 1 << 62
_DAMPING: Final = 6  # how many times a pause is doubled at most


class EntryState(Enum):
    """The state of a claim: it waits, holds slots, has lost them, or is gone."""

    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class SlotClaim:
    """A request for slots, which waits for them and holds them.

    Attributes:
        pools: their names.
        priority: larger goes first.
        note: the holder's description of itself.
        owner: for the use of the caller.
        limit: how many may hold slots of its pools, in place of the pools' limits; -1 to use those.
        state: waiting, held, lost or gone.
        token: identifies it to the authority.
        fence: of its slots; 0 until it has some.
        since_ns: when it got its slots; before that, when it started to wait.
        end_ns: when its lease ends at the latest, by our clock.
        is_coming: True if the next answer is likely to tell of a hand-over, as there was a notification of one, or the call
            gives slots back that come to this process in turn.
        is_inherited: True if it got slots that this process gave back: then its own slots are likely to stay here, too.
        spare_turn: the turn of the peer in which nobody waited for its slots, and others were free; -1 if there is none.
    """

    pools: tuple[str, ...]
    priority: float
    note: str
    owner: Any = None
    limit: int = -1
    state: EntryState = EntryState.WAITING
    token: str = ""
    fence: int = 0
    since_ns: int = 0
    end_ns: int = 0
    until_us: int = 0  # the end of the lease by the server's clock
    told_ns: int = 0  # when it was registered or renewed last
    is_told: bool = False
    is_answered: bool = False  # a call that registered it was answered, or failed
    is_coming: bool = False
    is_inherited: bool = False
    spare_turn: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """The settings shared by all slots of a process.

    Attributes:
        id: of this incarnation of the process.
        lease_us: how long a lease lasts, in microseconds.
        difference_us: the largest difference between the clocks of two servers.
    """

    id: str
    lease_us: int
    difference_us: int


class SlotPeer:
    """The slots of one process.

    Args:
        settings: of the process.
        may_renew: returns True if the owner of a claim is healthy, so that it may keep its lease and be handed slots.

    Attributes:
        settings: of the process.
        era: of the latest answer.
        failed_count: calls in a row without an answer.
        quarantine_ns: until when no slot is handed over, by our clock; 0 if that is over or not known.
        pools: the latest reported state of each pool.
    """

    def __init__(self, settings: SlotSettings, *, may_renew: Callable[[Any], bool] = lambda _: True) -> None:
        self.settings = settings
        self.era = ""
        self.fence = 0  # the highest known
        self.failed_count = 0
        self.quarantine_ns = 0
        self.pools: dict[str, PoolState] = {}
        self._poll_ns: int | None = None
        self._may_renew = may_renew
        self._numbers = count(1)
        self._claims: dict[str, SlotClaim] = {}  # the registered ones, the least recently renewed first
        self._untold: dict[_Line, dict[SlotClaim, None]] = {}  # in order
        self._told: dict[_Line, dict[SlotClaim, None]] = {}  # registered waiters, in order
        self._urgent: dict[str, SlotClaim] = {}  # to be registered or renewed at once
        self._releases: dict[str, SlotClaim] = {}
        self._release_ns = _NEVER_NS  # when these have to go at the latest
        self._turn = self._sent_turn = 0  # counts notices of the authority; as of the latest call
        self._limits: dict[str, int] = {}
        self._declared: dict[str, int] = {}
        self._undeclared: set[str] = set()
        self._unread: set[str] = set()  # pools whose state was never reported
        self._told_us = self._told_ns = 0  # the server's clock in the latest answer, and our time of that
        self._next_end_ns = _NEVER_NS  # when some lease of the group may end
        self._last_ns = -_GAP_NS
        self._gap_ns = _GAP_NS
        self._is_pressing = False  # a slot is idle until the next call
        self._retry_ns = 0
        # Lower bounds on the next renewal and on the next end of a lease; computed again once they have passed.
        self._renewal_ns = 0
        self._end_ns = 0

    @property
    def poll_ns(self) -> int | None:
        """How often waiters ask, if they are not notified of a hand-over; None if they are."""
        return self._poll_ns

    @poll_ns.setter
    def poll_ns(self, poll_ns: int | None) -> None:
        self._poll_ns = poll_ns
        self._renewal_ns = 0

    @property
    def is_idle(self) -> bool:
        """True if there are no holders, no waiters and nothing to report."""
        return self.is_free and not (self._releases or self._limits)

    @property
    def claims(self) -> list[SlotClaim]:
        """The claims that hold slots, the longest held first."""
        held = [claim for claim in list(self._claims.values()) if claim.state is EntryState.HELD]
        return sorted(held, key=lambda claim: claim.fence)

    @property
    def is_free(self) -> bool:
        """True if there are no holders and no waiters."""
        return not (self._claims or self._untold)

    def waiting(self) -> list[SlotClaim]:
        """Return the claims that wait."""
        told = [claim for claim in self._claims.values() if claim.state is EntryState.WAITING]
        return told + [claim for line in self._untold.values() for claim in line]

    # Content of the next calls.

    def ask(self, claim: SlotClaim, now_ns: int) -> None:
        """Ask for slots."""
        claim.token = f"{self.settings.id}:{next(self._numbers)}"
        claim.since_ns = now_ns
        line = claim.pools, claim.priority
        self._untold.setdefault(line, {})[claim] = None
        self._tell(line)

    def release(self, claim: SlotClaim) -> list[SlotClaim]:
        """Give slots back, or stop waiting for them; return the waiter that the same call is likely to hand them to."""
        if claim.state is EntryState.GONE or not claim.token:
            claim.state = EntryState.GONE
            return []
        coming: list[SlotClaim] = []
        line = claim.pools, claim.priority
        was_waiting, claim.state = claim.state is EntryState.WAITING, EntryState.GONE
        if not claim.is_told:
            self._untold[line].pop(claim, None)
        elif self._claims.pop(claim.token, None) is not None:
            if self._urgent.pop(claim.token, None) is None or claim.is_answered:  # it was in a call
                self._releases[claim.token] = claim
            if was_waiting:
                self._told[line].pop(claim, None)
            if claim.spare_turn == self._turn and self._poll_ns is None and not self._told:
                self._release_ns = min(self._release_ns, claim.told_ns + self._beat_ns(claim))  # in place of a renewal
            else:
                self._release_ns = 0
            if not was_waiting and not self._release_ns:
                self._is_pressing = True
                if claim.is_inherited:
                    coming = [each for each in self._told.get(line, ()) if not each.is_coming][:1]
                    for each in coming:
                        each.is_inherited = True
                        self._expect(each)
        self._tell(line)
        return coming

    def declare(self, pool: str, limit: int | None) -> None:
        """Register a pool, and the limit with which this process was started."""
        if pool not in self.pools:
            self.pools[pool] = PoolState(limit or 0, 0, 0, 0)
            self._unread.add(pool)
        if limit is not None:
            self._declared[pool] = limit
            self._undeclared.add(pool)

    def has_read(self, pool: str) -> bool:
        """True if the authority has reported the state of a pool."""
        return pool in self.pools and pool not in self._unread

    def has_limit_to_tell(self, pool: str) -> bool:
        """True if a limit is still to be sent to the authority, so the limit that it answers is outdated."""
        return pool in self._limits or pool in self._undeclared

    def set_limit(self, pool: str, limit: int) -> None:
        """Put a limit in force for the group."""
        self._limits[pool] = limit
        self.pools[pool] = self.pools.get(pool, PoolState(limit, 0, 0, 0))._replace(limit=limit)

    def hurry(self) -> None:
        """Send releases at once."""
        if self._releases:
            self._release_ns, self._is_pressing = 0, True

    def untold_count(self, pool: str) -> int:
        """Return how many slots of a pool were given back here without the authority having been told yet."""
        released = list(self._releases.values())  # in one step: another thread may change them
        return sum(pool in claim.pools for claim in released if claim.fence and claim.state is EntryState.GONE)

    def note_woken(self, token: str) -> list[SlotClaim]:
        """Record a notice: slots were handed to a token that waits, or somebody begins to wait for those that it holds.

        Returns:
            Its claim, if it waits: a call has to ask for its slots.
        """
        self._turn += 1  # what earlier answers told, and that of the call on its way, may have changed
        self.hurry()
        claim = self._claims.get(token)
        if claim is None or claim.state is not EntryState.WAITING:
            return []
        claim.is_inherited = False
        self._expect(claim)
        return [claim]

    def _expect(self, claim: SlotClaim) -> None:
        """Ask at once for slots that are likely to be there."""
        self._urgent[claim.token] = claim
        self._is_pressing = claim.is_coming = True

    def renew(self, claim: SlotClaim) -> None:
        """Renew a lease at once."""
        if claim.token in self._claims:
            self._urgent[claim.token] = claim

    def _tell(self, line: _Line) -> None:
        """Register as many waiters of a line as are allowed."""
        waiting, told = self._untold.get(line), self._told.setdefault(line, {})
        while waiting and len(told) < _TOLD_COUNT:
            claim = next(iter(waiting))
            del waiting[claim]
            claim.is_told = True
            told[claim] = None
            self._claims[claim.token] = self._urgent[claim.token] = claim
        if not waiting:
            self._untold.pop(line, None)
            if not told:
                del self._told[line]

    # Calls.

    @property
    def lease_ns(self) -> int:
        """How long a lease lasts here, in nanoseconds."""
        return _surely(self.settings.lease_us * 1000)

    def _beat_ns(self, claim: SlotClaim) -> int:
        """Return the time between two renewals of a claim."""
        poll = self._poll_ns
        return self.lease_ns // 4 if poll is None or claim.state is not EntryState.WAITING else poll

    def next_call(self, now_ns: int) -> int | None:
        """Return when the next call is due; None if there is nothing to report."""
        when: int | None = None
        if self._urgent or self._limits or self._undeclared or self._unread or (self._releases and self._told):
            when = now_ns
        elif self._claims:
            if now_ns >= self._renewal_ns:
                self._renewal_ns = min(claim.told_ns + self._beat_ns(claim) for claim in self._claims.values())
            when = self._renewal_ns
            if self._told:  # a holder that has not renewed its lease by then is dead
                when = min(when, max(now_ns, self._next_end_ns))
            if self.quarantine_ns:
                when = min(when, max(now_ns, self.quarantine_ns))
        if self._releases:
            when = max(now_ns, self._release_ns if when is None else min(when, self._release_ns))
        gap_ns = _GAP_NS if self._is_pressing else self._gap_ns
        return None if when is None else max(when, self._last_ns + gap_ns, self._retry_ns)

    def next_end(self) -> int | None:
        """Return a lower bound on the end of the next lease; None if there is none."""
        return None if not self._claims or self._end_ns >= _NEVER_NS else self._end_ns

    def request(self, now_ns: int) -> SlotCall:
        """Make the next call."""
        self._last_ns, self._is_pressing, self._sent_turn = now_ns, False, self._turn
        if now_ns >= self.quarantine_ns:
            self.quarantine_ns = 0
        due = self._due_claims(now_ns)
        for claim in due:
            self._urgent.pop(claim.token, None)
            self._claims[claim.token] = self._claims.pop(claim.token)  # the most recently renewed
            claim.told_ns = now_ns
            self._renewal_ns = min(self._renewal_ns, now_ns + self._beat_ns(claim))
        entries = [
            claim
            for claim in due
            if (claim.state is EntryState.WAITING or claim.end_ns > now_ns) and self._may_renew(claim.owner)
        ]
        return SlotCall(
            peer=self.settings.id,
            lease_us=self.settings.lease_us,
            difference_us=self.settings.difference_us,
            fence=self.fence,
            era=self.era,
            told_us=self._told_us,
            seen_us=_surely(now_ns - self._told_ns) // 1000,
            entries=tuple(
                SlotEntry(
                    claim.token, claim.pools, claim.priority, claim.fence, claim.until_us, claim.note, claim.limit
                )
                for claim in entries
            ),
            releases=tuple(list(self._releases)[:_CALL_COUNT]),
            limits=tuple(self._limits.items()),
            declared=tuple(
                SlotDeclaration(pool, self._declared[pool], self.pools[pool].limit, self.pools[pool].version)
                for pool in sorted(self._undeclared)
            ),
            watched=tuple(dict.fromkeys((*self.pools, *_asked(entries)))),
        )

    def _due_claims(self, now_ns: int) -> list[SlotClaim]:
        """Return the claims to be registered or renewed now or soon."""
        due = list(self._urgent.values())[:_CALL_COUNT]
        for claim in self._claims.values():
            if len(due) >= _CALL_COUNT:
                break
            if claim.token not in self._urgent and claim.told_ns + self._beat_ns(claim) // 2 <= now_ns:
                due.append(claim)
        return due

    def take_in(self, call: SlotCall, reply: SlotReply, sent_ns: int, now_ns: int) -> list[SlotClaim]:
        """Process an answer; return the claims whose state has changed, and the new ones that have to wait.

        Args:
            call: the call that it answers.
            reply: the answer.
            sent_ns: when the call was sent.
            now_ns: our time.
        """
        self.failed_count, self._retry_ns = 0, 0
        gap_ns = _GAP_PART * (now_ns - sent_ns) if call.entries else 0  # a late release holds up no request
        self._gap_ns = min(_GAP_MAX_NS, max(_GAP_NS, gap_ns))
        for token in call.releases:
            self._releases.pop(token, None)
        if not self._releases:
            self._release_ns = _NEVER_NS
        for pool, limit in call.limits:
            if self._limits.get(pool) == limit:
                del self._limits[pool]
        self._undeclared -= {declared.pool for declared in call.declared}
        self._unread.difference_update(call.watched)
        self.fence = max(self.fence, reply.fence)
        if reply.era != self.era:
            self.era = reply.era
            self._undeclared |= self._declared.keys() - {declared.pool for declared in call.declared}
        states = dict(zip(call.watched, reply.pools, strict=True))
        for pool in self.pools.keys() & states.keys():
            # A limit that is still to be sent overrides the answer: this process reminds the authority if it forgot.
            is_ours = self.has_limit_to_tell(pool)
            known, state = self.pools[pool], states[pool]
            self.pools[pool] = state._replace(limit=known.limit, version=known.version) if is_ours else state
        self._told_us, self._told_ns = reply.now_us, now_ns
        self._next_end_ns = now_ns + reply.ends_us * 1000 if reply.ends_us else _NEVER_NS
        self.quarantine_ns = now_ns + reply.quarantine_us * 1000 if reply.quarantine_us else 0
        until_us = reply.now_us + self.settings.lease_us
        changed: list[SlotClaim] = []
        for entry, fence in zip(call.entries, reply.fences, strict=True):
            changed += self._note(entry.token, fence, until_us, sent_ns + self.lease_ns, now_ns)
            claim = self._claims.get(entry.token)
            if claim is not None:
                claim.spare_turn = self._sent_turn if fence > 0 and _is_spare(entry, states) else -1
        for token, fence in reply.handed.items():
            until = reply.now_us + self.settings.lease_us // 2
            if token in self._claims:
                self._claims[token].is_inherited = bool(call.releases)
            changed += self._note(token, fence, until, sent_ns + self.lease_ns // 2, now_ns)
        return changed

    def _note(self, token: str, fence: int, until_us: int, end_ns: int, now_ns: int) -> Iterable[SlotClaim]:
        """Process the fence of a token; yield its claim if it changed, or is new and has to wait."""
        claim = self._claims.get(token)
        if claim is None:
            return  # it has gone meanwhile; the authority will be told
        is_new = claim.is_coming or not claim.is_answered
        claim.is_answered, claim.is_coming = True, False
        if not fence:
            claim.is_inherited = False
            if is_new:
                yield claim
            return
        if fence < 0:
            if claim.fence:
                yield self._lose(claim)
            else:
                self._urgent[token] = claim  # it was handed slots, but did not hear of it in time: it asks again
            return
        claim.end_ns, claim.until_us = end_ns, until_us
        self._end_ns = min(self._end_ns, end_ns)
        if claim.state is EntryState.WAITING and end_ns <= now_ns:
            self._urgent[token] = claim  # the answer came too late to rely on
        elif claim.state is EntryState.WAITING:
            claim.state, claim.fence, claim.since_ns = EntryState.HELD, fence, now_ns
            line = claim.pools, claim.priority
            self._told[line].pop(claim)
            self._tell(line)
            yield claim

    def _lose(self, claim: SlotClaim) -> SlotClaim:
        claim.state = EntryState.LOST
        del self._claims[claim.token]
        self._urgent.pop(claim.token, None)
        self._releases[claim.token], self._release_ns = claim, 0  # the authority may still have it
        return claim

    def look(self, now_ns: int) -> list[SlotClaim]:
        """Return the claims whose lease has ended; they have lost their slots."""
        if now_ns < self._end_ns:
            return []
        ended = [claim for claim in self._claims.values() if claim.fence and claim.end_ns <= now_ns]
        lost = [self._lose(claim) for claim in ended]
        self._end_ns = min((claim.end_ns for claim in self._claims.values() if claim.fence), default=_NEVER_NS)
        return lost

    def note_failure(self, call: SlotCall, now_ns: int) -> list[SlotClaim]:
        """Record a call without an answer, to be repeated; return the claims now known to wait."""
        self.failed_count += 1
        waiting: list[SlotClaim] = []
        for entry in call.entries:
            claim = self._claims.get(entry.token)
            if claim is not None:
                self._urgent[entry.token] = claim
                if not claim.is_answered:
                    claim.is_answered = True
                    waiting.append(claim)
        pause = _RETRY_NS << min(self.failed_count - 1, _DAMPING)
        self._retry_ns = now_ns + min(pause, self.lease_ns // 6)
        return waiting


def _asked(claims: Iterable[SlotClaim]) -> Iterable[str]:
    """Walk the pools of claims that ask for slots."""
    return (pool for claim in claims if not claim.fence for pool in claim.pools)


def _is_spare(entry: SlotEntry, states: Mapping[str, PoolState]) -> bool:
    """True if nobody waits for slots that were just handed over, and each pool has another one free."""
    return not entry.fence and all(
        not states[pool].waiting and states[pool].held < (states[pool].limit if entry.limit < 0 else entry.limit)
        for pool in entry.pools
    )


def _surely(time_ns: int) -> int:
    """Return how much of a time by our clock has passed at least by any other."""
    return time_ns - time_ns * _DRIFT_PER_MILLION // 1_000_000
