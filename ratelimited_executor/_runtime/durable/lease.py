"""The owner as which a process claims tasks, and its lease.

A claim of which nothing was heard, as its answer was lost, may hold tasks that this process does not know; a server that has
begun anew from an older copy may take for claimed what has ended. So the process continues as *another* owner then, and says what it
holds: that passes to the new owner, the rest is given back, and a claim of the former owner that is still on its way finds no
lease. Source of the idea: M. Kleppmann, "How to do distributed locking", 2016 (fencing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ratelimited_executor._core.durable.tasks import Claim, Claims, Ref
    from ratelimited_executor.abc import TaskStore

__all__ = ["Lease"]

_US: Final = 1_000_000


class Lease:
    """The lease of one process, under one owner after the other.

    Args:
        store: where it is.
        name: with which the names of the owners begin.
        seconds: how long it lasts without a beat.
        now: returns the loop time.

    Attributes:
        owner: the present one.
        count: owners so far.
        renewed: loop time from which the lease lasts.
    """

    def __init__(self, store: TaskStore, name: str, seconds: float, now: Callable[[], float]) -> None:
        self.store = store
        self.seconds = seconds
        self.owner = name
        self.count = 0
        self.renewed = now()
        self._name = name
        self._now = now
        self._claim_count = 0
        self._is_claiming = False
        self._is_unsure = False  # the owner may have claimed what this process does not know
        self._is_joining = False  # the next owner may have joined already

    def is_over(self) -> bool:
        """True if the lease may have ended: others may have been given what is claimed."""
        return self._now() - self.renewed >= self.seconds

    def is_of(self, owner: str) -> bool:
        """True if an owner is the present one, and will stay it as far as is known."""
        return owner == self.owner and not self._is_joining

    async def begin(self) -> None:
        """Join as another owner, when the former one has no lease any more."""
        await self._join("", ())

    async def claim(self, asked: Claim) -> Claims | None:
        """Claim tasks, one call at a time; should nothing be heard of it, that is remembered."""
        self._claim_count += 1
        self._is_claiming = True
        try:
            return await self.store.claim(asked)
        except BaseException:
            self._is_unsure = self._is_unsure or asked.owner == self.owner
            raise
        finally:
            self._is_claiming = False

    async def settle(self, held: Callable[[], Collection[Ref]]) -> bool:
        """Continue as another owner, if this one may hold claims that are unknown here; never during a claim.

        Args:
            held: returns what this process has claimed, and not told the end of.

        Returns:
            False if the lease has ended: nothing is held any more.
        """
        return await self._join(self.owner, held()) if self._is_unsure or self._is_joining else True

    async def renew(self, held: Callable[[], Collection[Ref]]) -> tuple[Ref, ...] | None:
        """Renew the lease.

        Args:
            held: returns what this process has claimed, and not told the end of.

        Returns:
            The claims that somebody has cancelled; None if the lease had ended: nothing is held any more.
        """
        owner, before, known = self.owner, self._now(), len(held())
        claim_count, is_quiet = self._claim_count, not self._is_claiming
        beat = await self.store.beat(owner)
        if owner != self.owner:
            return ()  # it was left meanwhile
        if beat is None:
            return () if self._is_joining and await self._join(owner, held()) else None
        self.renewed = before
        if is_quiet and claim_count == self._claim_count and beat.claimed_count > known:
            self._is_unsure = True
        return beat.cancelled

    async def leave(self) -> None:
        """Give back all that is claimed."""
        await self.store.leave(self.owner)
        if self._is_joining:
            await self.store.leave(self._following())

    async def _join(self, former: str, held: Collection[Ref]) -> bool:
        """Join as the next owner, which takes over what is held; return False if the former one has no lease any more.

        Whoever does not hear of it does it again with the same name, and changes nothing more. Of two at once so does the second.
        """
        count, owner, before = self.count, self._following(), self._now()
        self._is_joining = True
        is_kept = await self.store.join(owner, round(self.seconds * _US), former=former, held=held)
        if is_kept and count == self.count:
            self.owner = owner
            self.count += 1
            self.renewed = before - self.seconds / 3  # of the time since anybody's last beat so much counts at most
            self._is_unsure = self._is_joining = False
        return is_kept

    def _following(self) -> str:
        return f"{self._name}-{self.count + 1}"
