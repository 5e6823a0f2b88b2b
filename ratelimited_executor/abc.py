"""The protocols that a user may implement."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Sequence

    from ratelimited_executor._core.durable.tasks import (
        Beat,
        Claim,
        Claims,
        Durability,
        DurableState,
        LaneRow,
        NewTask,
        Outcome,
        Ref,
        TaskRow,
    )
    from ratelimited_executor._kernel.states import TaskState

__all__ = ["Clock", "Fleet", "Observer", "Peers", "Progress", "TaskStore"]


@runtime_checkable
class Clock(Protocol):
    """Where an :class:`~ratelimited_executor.ExecutorManager` reads the time.

    The two scales are never subtracted from each other, except once, when the manager's timeline is anchored.
    """

    def monotonic(self) -> float:
        """Return seconds on the scale of the event loop's ``time()``; never steps, never runs backwards."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch (UTC); may step in either direction."""
        ...


@runtime_checkable
class Peers(Protocol):
    """Which of the numbered permits belong to this process.

    Permits are numbered 0, 1, 2, ... on a grid that all peers share (see ``_core/permits.py``). Of ``count`` peers,
    the one of rank ``rank`` owns the numbers that are ``rank`` modulo ``count``: every permit has exactly one owner.
    """

    @property
    def count(self) -> int:
        """Return how many peers share the rate, >= 1."""
        ...

    @property
    def rank(self) -> int:
        """Return this peer's position, 0 <= rank < count."""
        ...


@runtime_checkable
class Fleet(Protocol):
    """Peers that are granted their permits by an authority, while they run."""

    def start(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """Begin, on the manager's event loop and by its clock."""
        ...

    def join(self, owner: Any) -> Any:
        """Take part in the rate of an executor, and return its part."""
        ...

    async def aclose(self) -> None:
        """Leave the group."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Is told of the tasks of an executor, in the turn in which it happens; see :func:`~ratelimited_executor.observe`.

    What a method raises goes to the loop's exception handler, and harms no task. ``statistics()`` may be asked in each.
    """

    def accepted(self, count: int) -> None:
        """Note that so many tasks have been accepted, by one call."""
        ...

    def started(self, lateness: float) -> None:
        """Note that a task is about to start, so many seconds after it was due; each attempt is a start."""
        ...

    def retried(self, duration: float) -> None:
        """Note that an attempt has failed after so many seconds, and that its task waits for another."""
        ...

    def ended(self, state: TaskState, duration: float | None, count: int) -> None:
        """Note that tasks have ended.

        Args:
            state: in which final state.
            duration: seconds since the last start; None if there was none.
            count: how many; more than one only where they were cancelled together before their start.
        """
        ...


@runtime_checkable
class Progress(Protocol):
    """Where it is kept how far cycles have come, so that a restart repeats and skips nothing, and that nodes share the work.

    A *turn* is a slot's time in one cycle, an integer that grows by one with every slot. Of each turn a store knows whose it
    is and until when, whether it is complete and, while it is not, which keys are through. Times are epoch seconds.

    Every method may be called by several nodes at once, and may be repeated where its answer was lost. An exception ends the
    cycle; one of ``done_keys`` does not: the turn is loaded again after a pause.

    A store may name this class as its base: then it has these docstrings, and cannot be made while a method is missing.
    """

    @abstractmethod
    async def begin(self, name: str, shape: str, turn: int) -> int:
        """Take up a cycle; return the first turn that concerns it: ``turn``, if it is new.

        Raises:
            ValueError: if there is a cycle of that name and another shape.
        """
        ...

    @abstractmethod
    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        """Return the turns from ``first`` to ``last`` that are not complete, in order."""
        ...

    @abstractmethod
    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        """Claim a turn until a time, or renew the claim; return False if another owner has it or it is complete.

        With ``until`` equal to ``now`` the turn is given up: another may claim it at once. A store may go by a clock of its
        own: then the claim lasts for ``until - now`` seconds.
        """
        ...

    @abstractmethod
    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        """Return the keys of a turn that are through."""
        ...

    @abstractmethod
    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        """Note that keys of a turn are through, perhaps again; when this returns, the end of the process does not undo it."""
        ...

    @abstractmethod
    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        """Note that all keys of a turn are through; what is known of turns before ``keep_from`` may be forgotten."""
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what is held."""
        ...


@runtime_checkable
class TaskStore(Protocol):
    """Where durable tasks are kept, by the rules of ``_core/durable/table.py``.

    Every method but ``open``, ``wait`` and ``aclose`` is one transaction: it happens whole or not at all, and after an
    exception it may be called again with the same arguments. Texts hold no NUL and no lone surrogates. Several processes may
    use one store at once, if it says so.

    A store may name this class as its base: then it has these docstrings, and cannot be made while a method is missing.
    """

    @property
    @abstractmethod
    def durability(self) -> Durability:
        """What a ``put`` that has returned outlasts."""
        ...

    @abstractmethod
    async def open(self, clock: Clock) -> None:
        """Connect, and make what is missing; each call is undone by one of :meth:`aclose`.

        Args:
            clock: of the process; a store with a server goes by the server's clock.
        """
        ...

    @abstractmethod
    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool]:
        """Add tasks; return for each True if it is new, and False if there is one with its id, or was of late.

        Args:
            tasks: to add.
            connection: of the user, in whose open transaction they are added; it is not committed here.

        Raises:
            TypeError: if the store takes no such connection.
        """
        ...

    @abstractmethod
    async def join(self, owner: str, lease_us: int, *, former: str = "", held: Collection[Ref] = ()) -> bool:
        """Let a process claim tasks under a lease, in place of another owner that it was before, if there was one.

        Called again it renews the lease, if that has not ended, and changes nothing more.

        Args:
            owner: as which it claims from now on.
            lease_us: how long the lease lasts without a beat, by vouched time, from the last beat of anybody.
            former: the other owner, whose lease ends.
            held: claims of the former owner that pass to this one; what else that has claimed is given back.

        Returns:
            False, with nothing changed, if there was a former owner, and neither of them has a lease: then nothing is held.
        """
        ...

    @abstractmethod
    async def beat(self, owner: str) -> Beat | None:
        """Renew an owner's lease, and end the leases of owners that have not renewed theirs.

        Returns:
            None if its own lease had ended: it then holds no claims.
        """
        ...

    @abstractmethod
    async def leave(self, owner: str) -> None:
        """Give back all that an owner has claimed, and end its lease."""
        ...

    @abstractmethod
    async def claim(self, claim: Claim) -> Claims | None:
        """Claim tasks that are due: the largest priority first, then the earliest due, then the first put.

        Returns:
            None if the owner's lease has ended.
        """
        ...

    @abstractmethod
    async def finish(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """End claims, each once; return for each False, with nothing changed, if the claim was no longer in force."""
        ...

    @abstractmethod
    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        """Delete tasks; return the state in which each was, None if there is none.

        A claimed task stays: its owner learns of it with its next beat, and unless it is done by then, it is not run again.
        """
        ...

    @abstractmethod
    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        """Put dead letters back, as if never tried; return the state in which each task was, None if there is none.

        Tasks in other states stay as they are.
        """
        ...

    @abstractmethod
    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        """Make READY what was put aside in a queue because nobody knew its function; return how many.

        Args:
            queue: of the tasks.
            functions: that are known now, as (name, version).
        """
        ...

    @abstractmethod
    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        """Return the tasks with some ids; None for each that is not there."""
        ...

    @abstractmethod
    async def rows(self, state: DurableState | None = None, *, after: int = 0, limit: int = 100) -> list[TaskRow]:
        """Return tasks in a state, or in any, with numbers greater than ``after``, in the order of their numbers."""
        ...

    @abstractmethod
    async def counts(self) -> dict[DurableState, int]:
        """Count the tasks in each state."""
        ...

    @abstractmethod
    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        """Return the lanes in which most tasks wait for others, the most first, then by name."""
        ...

    @abstractmethod
    async def wait(self, timeout: float) -> None:
        """Return once something may have become claimable, at the latest after ``timeout`` seconds."""
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what is held."""
        ...
