"""The owner under whose name a process claims tasks, and its lease.

A claim whose answer was lost may hold tasks that this process does not know of; a server restored from an older copy
may regard ended tasks as claimed. In both cases the process continues as *another* owner, and lists the claims that it
holds: they pass to the new owner, all others are released, and a claim of the former owner that arrives later finds no
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
    """The lease of one process, under successive owners.

    Args:
        store: the store of the tasks.
        name: the prefix of the owners' names.
        seconds: how long the lease lasts without a beat.
        now: returns the loop time.

    Attributes:
        owner: the current owner.
        count: the number of owners so far.
        renewed: loop time from which the lease counts.
        claim_count: the number of claims sent so far.
    """

    def __init__(self, store: TaskStore, name: str, seconds: float, now: Callable[[], float]) -> None:
        self.store = store
        self.seconds = seconds
        self.owner = name
        self.count = 0
        self.renewed = now()
        self._name = name
        self._now = now
        self.claim_count = 0
        self._is_claiming = False
        self._is_unsure = False  # True if the owner may hold claims that this process does not know
        self._is_joining = False  # True if the next owner may have joined already

    def is_over(self) -> bool:
        """True if the lease may have ended: other processes may have claimed its tasks."""
        return self._now() - self.renewed >= self.seconds

    def is_of(self, owner: str) -> bool:
        """True if an owner is the current one, and no other is joining."""
        return owner == self.owner and not self._is_joining

    async def begin(self) -> None:
        """Join as another owner, if the former one has no lease any more."""
        await self._join("", ())

    async def claim(self, asked: Claim) -> Claims | None:
        """Claim tasks, one call at a time; remember an unanswered claim."""
        self.claim_count += 1
        self._is_claiming = True
        try:
            return await self.store.claim(asked)
        except BaseException:
            self._is_unsure = self._is_unsure or asked.owner == self.owner
            raise
        finally:
            self._is_claiming = False

    async def settle(self, held: Callable[[], Collection[Ref]]) -> bool:
        """Continue as another owner, if the current one may hold unknown claims; never during a claim.

        Args:
            held: returns the claims of this process whose end it has not reported.

        Returns:
            False if the lease has ended: nothing is held any more.
        """
        return await self._join(self.owner, held()) if self._is_unsure or self._is_joining else True

    async def renew(self, held: Callable[[], Collection[Ref]]) -> tuple[Ref, ...] | None:
        """Renew the lease.

        Args:
            held: returns the claims of this process whose end it has not reported.

        Returns:
            The claims whose tasks were cancelled in the store; None if the lease had ended: nothing is held any more.
        """
        owner, before, known = self.owner, self._now(), len(held())
        claim_count, is_quiet = self.claim_count, not self._is_claiming
        beat = await self.store.beat(owner)
        if owner != self.owner:
            return ()  # the process has become another owner meanwhile
        if beat is None:
            return () if self._is_joining and await self._join(owner, held()) else None
        self.renewed = before
        if is_quiet and claim_count == self.claim_count and beat.claimed_count > known:
            self._is_unsure = True
        return beat.cancelled

    async def leave(self) -> None:
        """Release all claims, and end the lease."""
        await self.store.leave(self.owner)
        if self._is_joining:
            await self.store.leave(self._following())

    async def _join(self, former: str, held: Collection[Ref]) -> bool:
        """Join as the next owner, which takes over held claims; return False if the former one has no lease any more.

        After a lost answer the call is repeated with the same name, and changes nothing more. So does the second of two
        concurrent calls.
        """
        count, owner, before = self.count, self._following(), self._now()
        self._is_joining = True
        is_kept = await self.store.join(owner, round(self.seconds * _US), former=former, held=held)
        if is_kept and count == self.count:
            self.owner = owner
            self.count += 1
            self.renewed = before - self.seconds / 3  # it counts from any process's last beat: up to a third earlier
            self._is_unsure = self._is_joining = False
        return is_kept

    def _following(self) -> str:
        return f"{self._name}-{self.count + 1}"
