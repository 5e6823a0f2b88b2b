"""The owner as which a process claims tasks, and its lease.

A claim of which nothing was heard, as its answer was lost, may hold tasks that this process does not know. So it goes on as
another owner, and the *former* one leaves once nothing of it is held here: what was not heard of is given back then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ratelimited_executor._core.durable.tasks import Claim, Claims, Ref
    from ratelimited_executor.abc import TaskStore

__all__ = ["Lease", "News"]

_US: Final = 1_000_000


class News(NamedTuple):
    """What a process learns when it renews the lease of an owner.

    Attributes:
        ended: claims that others have been given, or will be, as the lease had ended.
        cancelled: claims that somebody has cancelled.
    """

    ended: frozenset[Ref] = frozenset()
    cancelled: tuple[Ref, ...] = ()


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
        renewed: loop time from which the lease lasts: that of the owner whose beat was the longest ago.
    """

    def __init__(self, store: TaskStore, name: str, seconds: float, now: Callable[[], float]) -> None:
        self.store = store
        self.seconds = seconds
        self.owner = name
        self.count = 0
        self._name = name
        self._now = now
        self._is_unsure = False  # a claim was sent, and nothing was heard of it
        self.renewed = now()  # every start asks for it
        self._renewed = {name: self.renewed}  # of each owner
        # Owners that may hold unheard claims, each with what this process has of theirs.
        self._former: dict[str, frozenset[Ref]] = {}

    def is_over(self) -> bool:
        """Whether the lease may have ended: others may have been given what is claimed."""
        return self._now() - self.renewed >= self.seconds

    async def begin(self) -> None:
        """Join the store as a new owner; what former ones have claimed is void. Of two that do so at once the first counts."""
        former = self.owner
        owner, joined = await self._join()
        if former == self.owner:  # else what was claimed since would be nobody's
            self.owner = owner
            self._renewed.clear()
            self._former.clear()
            self._note(owner, joined)

    async def claim(self, asked: Claim) -> Claims | None:
        """Claim tasks; should nothing be heard of it, that is remembered."""
        self._is_unsure = True
        claims = await self.store.claim(asked)
        self._is_unsure = False
        return claims

    async def settle(self, held: Callable[[], Collection[Ref]]) -> None:
        """Go on as another owner, if a claim of this one was not heard of.

        Args:
            held: returns what this process has claimed, and not told the end of.
        """
        if not self._is_unsure:
            return
        former, refs = self.owner, frozenset(held())
        owner, joined = await self._join()
        if former == self.owner:  # else its lease has ended meanwhile, and it holds nothing
            self.owner = owner
            self._note(owner, joined)
            self._former[former] = refs
            self._is_unsure = False

    async def renew(self, held: Callable[[], Collection[Ref]], hear: Callable[[News], None]) -> bool:
        """Renew the lease, and those of former owners of which something is held; the others leave.

        Each is tried, whatever becomes of the others: a store that does what it is asked for, and loses the answers, keeps them
        all.

        Args:
            held: returns what this process has claimed, and not told the end of.
            hear: is told what there is to know.

        Returns:
            False if the lease had ended: nothing is claimed by the present owner any more.
        """
        formers = [self._renew_former(former, held, hear) for former in self._former]
        answers = await asyncio.gather(self._renew(hear), *formers, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return bool(answers[0])

    async def leave(self) -> None:
        """Give back all that is claimed."""
        for owner in (*self._former, self.owner):
            await self.store.leave(owner)

    async def _renew(self, hear: Callable[[News], None]) -> bool:
        before, owner = self._now(), self.owner
        cancelled = await self.store.beat(owner)
        if cancelled is None:
            return owner != self.owner  # then it was left meanwhile
        if owner in self._renewed:  # else it was left meanwhile
            self._note(owner, before)
        hear(News(cancelled=cancelled))
        return True

    async def _renew_former(
        self, former: str, held: Callable[[], Collection[Ref]], hear: Callable[[News], None]
    ) -> None:
        refs = self._former[former].intersection(held())
        if refs:
            before = self._now()
            cancelled = await self.store.beat(former)
            if cancelled is not None:
                if former in self._renewed:
                    self._note(former, before)
                hear(News(cancelled=cancelled))
                return
        else:
            await self.store.leave(former)
        self._former.pop(former, None)
        self._note(former, None)
        hear(News(ended=refs))

    def _note(self, owner: str, renewed: float | None) -> None:
        """Note from when the lease of an owner lasts; None if it has none any more."""
        if renewed is None:
            self._renewed.pop(owner, None)
        else:
            self._renewed[owner] = renewed
        self.renewed = min(self._renewed.values())

    async def _join(self) -> tuple[str, float]:
        """Return a new owner, and the loop time from which its lease lasts."""
        self.count += 1
        owner, before = f"{self._name}-{self.count}", self._now()
        await self.store.join(owner, round(self.seconds * _US))
        return owner, before - self.seconds / 3  # of the time since anybody's last beat so much counts at most
