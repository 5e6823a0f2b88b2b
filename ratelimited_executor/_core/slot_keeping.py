"""What keeps the slots of a manager, in this process or for a group, and what it tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SlotHolder", "SlotKeeper", "SlotRequest", "SlotStatistics", "manager_of"]


def manager_of(pool: str) -> str:
    """Name the manager of a pool, which is started and closed in its place, in an error."""
    return f"the manager of slots {pool!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """The holder of a slot.

    Attributes:
        name: as given to :meth:`Slots.hold`, else that of the asyncio task.
        fence: of the slot.
        age: seconds for which it has been held.
    """

    name: str
    fence: int
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatistics:
    """A pool of slots at one moment.

    With peers, what all processes do is as of the latest answer, a quarter of a lease ago at most while anybody here
    holds or waits.

    Attributes:
        name: of the pool.
        limit: how many may be held at a time.
        held: how many are, by all processes; more than the limit for a while after that was lowered.
        waiting: how many wait, in all processes.
        handed: how many have been handed over so far in this process.
        holders: who holds them in this process, the longest held first.
        quarantine: seconds for which none is handed over yet, because it may have been forgotten who holds them; 0 without.
    """

    name: str
    limit: int
    held: int
    waiting: int
    handed: int
    holders: tuple[SlotHolder, ...]
    quarantine: float = 0.0


class SlotRequest(Protocol):
    """Slots that were asked for, which wait or are held until :meth:`release`.

    Attributes:
        fence: of the slots; 0 until they are handed over.
        lost: called on the event loop if they are lost while they are held.
    """

    fence: int
    lost: Callable[[], None]

    def is_fresh(self) -> bool:
        """True if a holder may begin now, as far as the time of its lease is concerned."""
        ...

    def start(self) -> None:
        """Record that a holder begins."""
        ...

    def release(self) -> None:
        """Give them back, or wait for them no longer; once."""
        ...


class SlotKeeper(Protocol):
    """Keeps the slots of a manager's pools.

    Attributes:
        parts: into how many parts limits by key are split while nobody can be asked for slots, and for a while after that, each
            process going by one of them; None where slots are all that counts.
    """

    parts: int | None

    @property
    def is_away(self) -> bool:
        """True if nobody can be asked, so that only these parts count."""
        ...

    def watch(self, told: Callable[[], None]) -> None:
        """Call a method on this event loop whenever ``parts`` may have changed, while its object exists."""
        ...

    def limit_of(self, pool: str) -> int:
        """Return how many may be held."""
        ...

    def set_limit(self, pool: str, limit: int) -> None:
        """Put another limit in force."""
        ...

    def statistics(self, pool: str) -> SlotStatistics:
        """Return the counts of this moment."""
        ...

    async def acquire(
        self,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        expires: float | None,
        lost: Callable[[], None],
    ) -> tuple[Any, int]:
        """Wait for a slot of each pool; return what is to be released, and the fence.

        Args:
            pools: their names.
            name: of the holder.
            priority: larger goes first.
            expires: how many seconds to wait at most.
            lost: called on the event loop if they are lost before they are released.
        """
        ...

    def request(
        self,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        told: Callable[[SlotRequest], None],
        limit: int = -1,
        answered: Callable[[SlotRequest], None] | None = None,
    ) -> SlotRequest:
        """Ask for a slot of each pool, without waiting.

        Args:
            pools: their names.
            name: of the holder.
            priority: larger goes first.
            told: called on the event loop when they are handed over later, and when they are lost before :meth:`SlotRequest.start`.
            limit: how many may hold slots of these pools, instead of the limits of the pools; -1 for those.
            answered: called on the event loop when it is known that they are not handed over at once.
        """
        ...

    def release(self, grant: Any) -> None:
        """Give them back."""
        ...
