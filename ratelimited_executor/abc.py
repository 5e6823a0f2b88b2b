"""The protocols that a user may implement."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Sequence

    from ratelimited_executor._core.durable.pauses import Pause, PauseRow
    from ratelimited_executor._core.durable.tasks import (
        BacklogRow,
        Beat,
        ChangedRepetition,
        Claim,
        Claims,
        Duplicate,
        Durability,
        DurableState,
        EndedRow,
        LaneRow,
        NewTask,
        Occurrence,
        Placed,
        Ref,
        RepetitionRow,
        TaskOutcome,
        TaskRow,
    )
    from ratelimited_executor._kernel.states import TaskState

__all__ = ["Clock", "Fleet", "Observer", "Peers", "Progress", "TaskStore"]


@runtime_checkable
class Clock(Protocol):
    """The source of time of an :class:`~ratelimited_executor.ExecutorManager`.

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

    Permits are numbered 0, 1, 2, ... on a grid that all peers share (see ``_core/permits/permits.py``). Of ``count``
    peers, the one of rank ``rank`` owns the numbers that are ``rank`` modulo ``count``: every permit has exactly one owner.
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
    """Peers to which an authority grants permits at run time."""

    def start(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """Start, on the manager's event loop and by its clock."""
        ...

    def join(self, owner: Any) -> Any:
        """Join the group of an executor's rate, and return this process's part in it."""
        ...

    async def aclose(self) -> None:
        """Leave the group."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Is notified of the tasks of an executor as it happens; see :func:`~ratelimited_executor.insight.observe`.

    An exception of a method goes to the loop's exception handler, and affects no task. Each may call ``statistics()``.
    """

    def accepted(self, count: int) -> None:
        """Called when one call has accepted this many tasks."""
        ...

    def started(self, lateness: float) -> None:
        """Called when a task is about to start, this many seconds after its due time; each attempt is a start."""
        ...

    def retried(self, duration: float) -> None:
        """Called when an attempt has failed after this many seconds, and its task waits for another."""
        ...

    def ended(self, state: TaskState, duration: float | None, count: int) -> None:
        """Called when tasks have ended.

        Args:
            state: their final state.
            duration: seconds since the last start; None if there was none.
            count: the number of tasks; more than one only if they were cancelled together before their start.
        """
        ...


@runtime_checkable
class Progress(Protocol):
    """A store for the progress of cycles: a restart repeats and skips nothing, and nodes share the work.

    A *turn* is a slot's time in one cycle, an integer that grows by one with every slot. For each turn a store records its
    owner and until when, if it is complete and, while it is not, which keys are finished. Times are epoch seconds.

    Every method may be called by several nodes at once, and may be repeated if its answer was lost. An exception ends the
    cycle, except in ``done_keys``: the turn is then loaded again after a pause.

    A store may inherit from this class: then it has these docstrings, and cannot be created while a method is missing.
    """

    @abstractmethod
    async def begin(self, name: str, shape: str, turn: int) -> int:
        """Open a cycle; return its first turn: ``turn``, if the cycle is new.

        Raises:
            ValueError: if there is a cycle of that name with another shape.
        """
        ...

    @abstractmethod
    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        """Return the turns from ``first`` to ``last`` that are not complete, in order."""
        ...

    @abstractmethod
    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        """Claim a turn until a time, or renew the claim; return False if another owner has it or it is complete.

        With ``until`` equal to ``now`` the turn is released: another owner may claim it at once. A store may use its own
        clock: then the claim lasts for ``until - now`` seconds.
        """
        ...

    @abstractmethod
    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        """Return the finished keys of a turn."""
        ...

    @abstractmethod
    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        """Record finished keys of a turn, perhaps again; once it returns, the end of the process does not undo it."""
        ...

    @abstractmethod
    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        """Record that all keys of a turn are finished; records of turns before ``keep_from`` may be deleted."""
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class TaskStore(Protocol):
    """A store for durable tasks, by the rules of ``_core/durable/table.py``.

    Every method except ``open``, ``wait`` and ``aclose`` is one transaction: it happens as a whole or not at all, and after
    an exception it may be called again with the same arguments. Strings contain no NUL and no lone surrogates. Several
    processes may use one store at once, if it says so.

    A store may inherit from this class: then it has these docstrings, and cannot be created while a method is missing.
    """

    @property
    @abstractmethod
    def durability(self) -> Durability:
        """What a completed ``put`` survives."""
        ...

    @abstractmethod
    async def open(self, clock: Clock) -> None:
        """Connect, and create what is missing; each call is undone by one of :meth:`aclose`.

        Args:
            clock: the clock of the process; a store with a server uses the server's clock.
        """
        ...

    @abstractmethod
    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool | Duplicate]:
        """Add tasks; return for each True if it is new, False if its id exists, or existed until recently.

        For one whose unique key has a task: the id of that task, and whether it was changed.

        Args:
            tasks: the tasks to add.
            connection: the user's connection, in whose open transaction they are added; it is not committed here.

        Raises:
            TypeError: if the store does not accept such a connection.
        """
        ...

    @abstractmethod
    async def join(self, owner: str, lease_us: int, *, former: str = "", held: Collection[Ref] = ()) -> bool:
        """Let a process claim tasks under a lease, instead of its former owner, if there was one.

        A repeated call renews the lease, if it has not ended, and changes nothing else.

        Args:
            owner: the name under which it claims from now on.
            lease_us: how long the lease lasts without a beat, by vouched time, from the last beat of any process.
            former: the former owner, whose lease ends.
            held: claims of the former owner that pass to this one; all its other claims are released.

        Returns:
            False, with nothing changed, if there was a former owner and neither of them has a lease: then nothing is held.
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
        """Release all claims of an owner, and end its lease."""
        ...

    @abstractmethod
    async def claim(self, claim: Claim) -> Claims | None:
        """Claim due tasks: the largest priority first, then the earliest due, then the first put.

        With ``claim.turns``, the tasks of the largest priority in turn by key.

        Returns:
            None if the owner's lease has ended.
        """
        ...

    @abstractmethod
    async def start(self, refs: Sequence[Ref]) -> list[bool]:
        """Record that claims of tasks with losses are about to start; return for each False if it was no longer in force.

        If the process is lost now, the task may be the cause: the loss counts. Until then, losses prove nothing.
        """
        ...

    @abstractmethod
    async def save(self, states: Sequence[tuple[Ref, bytes]]) -> None:
        """Keep the states that claimed tasks have saved, for their next attempts, as far as the claims are in force."""
        ...

    @abstractmethod
    async def finish(self, outcomes: Sequence[TaskOutcome]) -> list[bool]:
        """End claims, each once; return for each False, with nothing changed, if the claim was no longer in force.

        A task that has ended is added to the history, if its outcome says what is kept of it, in place of one with its id.
        """
        ...

    @abstractmethod
    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        """Delete tasks; return the state of each before that, None if it did not exist.

        A claimed task stays, marked: its owner asks for it by :meth:`cancelled`, and unless it is done by then, it is not
        run again.
        """
        ...

    @abstractmethod
    async def cancelled(self, owner: str) -> tuple[Ref, ...]:
        """Return the claims of an owner whose tasks were cancelled."""
        ...

    @abstractmethod
    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        """Put dead letters back, as if never tried; return the state of each task before, None if it did not exist.

        They keep the state that they have saved. Tasks in other states stay as they are.
        """
        ...

    @abstractmethod
    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        """Make tasks READY that were set aside because their function was unknown; return their number.

        Args:
            queue: the queue of the tasks.
            functions: the functions that are known now, as (name, version).
        """
        ...

    @abstractmethod
    async def pause(self, pause: Pause, until_us: int | None) -> None:
        """Let no process claim the tasks that a pause covers, until a time or :meth:`resume`; waits end as by a cancellation."""
        ...

    @abstractmethod
    async def resume(self, pause: Pause) -> bool:
        """End a pause; return False if it was not in force."""
        ...

    @abstractmethod
    async def pauses(self) -> list[PauseRow]:
        """Return the pauses in force."""
        ...

    @abstractmethod
    async def place(self, owner: str, occurrences: Sequence[Occurrence]) -> list[Placed]:
        """Put the next occurrences of repetitions that a process declares, each once its previous one has ended.

        Args:
            owner: the process, which has joined the store.
            occurrences: occurrences of different repetitions, in the order of their names.
        """
        ...

    @abstractmethod
    async def repetitions(self) -> list[RepetitionRow]:
        """Return the repetitions, by name."""
        ...

    @abstractmethod
    async def changed_repetitions(self, queue: str) -> list[ChangedRepetition]:
        """Return the repetitions of a queue that users have saved, paused, resumed or skipped, by name."""
        ...

    @abstractmethod
    async def save_repetition(
        self, name: str, *, definition: str, queue: str, function: str, schedule: str
    ) -> bool | None:
        """Create or change a repetition that no code declares; waits end as by a cancellation.

        With another definition, its occurrences that wait are deleted: those that no process has ever claimed.

        Args:
            name: its name.
            definition: what it puts, as text; with ``"overlap":"skip"`` in it, no occurrence but the last one waits.
            queue: the queue of its tasks.
            function: the registered name of its function.
            schedule: its times, for display.

        Returns:
            True if it is new; None, with nothing changed, if code declares it.
        """
        ...

    @abstractmethod
    async def pause_repetition(self, name: str, until_us: int | None) -> bool | None:
        """Let no occurrence be placed that is due before a time, and delete those that wait; waits end as by a cancellation.

        Args:
            name: the name of the repetition.
            until_us: the time; None for no end, ``ENDED`` to end the pause.

        Returns:
            True if it was paused before; None if there is no such repetition.
        """
        ...

    @abstractmethod
    async def skip_repetition(self, name: str) -> int | None:
        """Delete the occurrence of a repetition that waits; return when it was due, None if none waits."""
        ...

    @abstractmethod
    async def forget(self, names: Sequence[str]) -> int:
        """Delete repetitions, and their occurrences that wait; return how many repetitions there were."""
        ...

    @abstractmethod
    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        """Return tasks by their ids; None for each that does not exist."""
        ...

    @abstractmethod
    async def rows(
        self,
        state: DurableState | None = None,
        *,
        after: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        body_max: int | None = None,
    ) -> list[TaskRow]:
        """Return tasks in a state, or in any, in the order of their numbers: the one that was put first comes first.

        Args:
            state: their state; None for any.
            after: continue behind the task with this number, the last one of an earlier call; 0 to begin.
            limit: the largest number of tasks, >= 1.
            newest_first: True for the reverse order.
            body_max: how many bytes of the arguments, and of the saved state, of each task are returned at most, >= 0: the
                first ones. None for all.

        A store may lack the last two parameters, which later releases have added: then :meth:`DurableTasks.rows` and the
        live page read its tasks in order, and keep what was asked for.
        """
        ...

    @abstractmethod
    async def ended(self, ids: Sequence[str]) -> list[EndedRow | DurableState | None]:
        """Return for each id the state of its task; how it ended, if it has and that is kept; None if there is neither."""
        ...

    @abstractmethod
    async def history(self, *, before: int | None = None, limit: int = 100) -> list[EndedRow]:
        """Return ended tasks that are kept, with numbers less than ``before``, the one that ended last first."""
        ...

    @abstractmethod
    async def counts(self) -> dict[DurableState, int]:
        """Count the tasks in each state."""
        ...

    @abstractmethod
    async def backlog(self) -> list[BacklogRow]:
        """Count the tasks that are READY, BEHIND, DEAD or PAUSED, by queue, function and state, in this order."""
        ...

    @abstractmethod
    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        """Return the lanes with the most waiting tasks, the most first, then by name."""
        ...

    @abstractmethod
    async def wait(self, timeout: float) -> int:
        """Return once a task may have become claimable, or something else has happened, or after ``timeout`` seconds.

        Returns:
            A number that has risen if a claimed task may have been cancelled, a pause begun, or a repetition been changed by a
            user, since an earlier call.
        """
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Release all resources."""
        ...
