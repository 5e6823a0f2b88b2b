"""The contract of a slot keeper, in this process or for a group, and the statistics of its pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SlotHolder", "SlotKeeper", "SlotRequest", "SlotStatistics", "manager_of"]


def manager_of(pool: str) -> str:
    """Return the name, for errors, of the manager of a pool, which is started and closed in the pool's place."""
    return f"the manager of slots {pool!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """The holder of a slot.

    Attributes:
        name: as passed to :meth:`Slots.hold`, else the name of the asyncio task.
        fence: the fence of the slot.
        age: seconds since hand-over.
    """

    name: str
    fence: int
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatistics:
    """A snapshot of a pool of slots.

    With peers, the numbers of all processes are as of the latest answer, which is at most a quarter of a lease old
    while this process holds or waits for slots.

    Attributes:
        name: the name of the pool.
        limit: how many slots may be held at a time; None if this process has set no limit, and the group has not answered
            yet: then ``held`` and ``waiting`` are not known either, and are 0.
        held: how many are held, by all processes; above the limit for a while after the limit was lowered.
        waiting: how many wait, in all processes.
        handed: how many have been handed over so far in this process.
        holders: the holders in this process, the longest held first.
        quarantine: seconds for which no slot is handed over yet, because holders may have been forgotten; 0 if none.
    """

    name: str
    limit: int | None
    held: int
    waiting: int
    handed: int
    holders: tuple[SlotHolder, ...]
    quarantine: float = 0.0


class SlotRequest(Protocol):
    """Requested slots, waiting or held until :meth:`release`.

    Attributes:
        fence: the fence of the slots; 0 until they are handed over.
        is_coming: True if they are being handed over, and the answer that says so is on its way.
        lost: called on the event loop if they are lost while held.
    """

    fence: int

    @property
    def is_coming(self) -> bool:
        """As above."""
        ...

    lost: Callable[[], None]

    def is_fresh(self) -> bool:
        """True if a holder may begin now, by the time of its lease."""
        ...

    def start(self) -> None:
        """Record that a holder begins."""
        ...

    def release(self) -> None:
        """Give the slots back, or stop waiting for them; call once."""
        ...


class SlotKeeper(Protocol):
    """Keeps the slots of a manager's pools.

    Attributes:
        parts: into how many parts the limits of keys are split, one for each process, while no authority can be reached
            and for a while after; None where slots alone count.
    """

    parts: int | None

    @property
    def is_away(self) -> bool:
        """True if no authority can be reached, so that only these parts count."""
        ...

    @property
    def quarantine(self) -> float:
        """Seconds for which no slot is handed over, because holders may have been forgotten; 0 if none."""
        ...

    def watch(self, told: Callable[[], None]) -> None:
        """Call a method on this event loop whenever ``parts`` may have changed, as long as its object exists."""
        ...

    def limit_of(self, pool: str) -> int | None:
        """Return how many slots of a pool may be held; None if that is not known yet."""
        ...

    def set_limit(self, pool: str, limit: int) -> None:
        """Put another limit of a pool in force."""
        ...

    def statistics(self, pool: str) -> SlotStatistics:
        """Return the current counts of a pool."""
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
        """Wait for a slot of each pool; return the argument for :meth:`release`, and the fence.

        Args:
            pools: the names of the pools.
            name: the name of the holder.
            priority: larger goes first.
            expires: the maximum wait in seconds.
            lost: called on the event loop if the slots are lost before release.
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
        """Request a slot of each pool, without waiting.

        Args:
            pools: the names of the pools.
            name: the name of the holder.
            priority: larger goes first.
            told: called on the event loop when the slots are handed over later, and when they are lost before
                :meth:`SlotRequest.start`.
            limit: how many may hold slots of these pools; -1 for the limits of the pools.
            answered: called on the event loop when it is known that the request has to wait, and when the slots are coming.
        """
        ...

    def release(self, grant: Any) -> None:
        """Give back the slots that :meth:`acquire` returned."""
        ...
