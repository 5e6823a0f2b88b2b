"""Who observes an executor: told of its tasks as it happens, and free to ask at any time how it stands.

A simulation measures executors so. Nothing is asked in the way of a task for the sake of this: an observer is told where
somebody else would be told anyway, by ``TaskQueue.on_start`` and ``Coroutines.on_free``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ratelimited_executor._core.looking import count_until

if TYPE_CHECKING:
    from collections.abc import Sized

    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._runtime.accounts import Accounts
    from ratelimited_executor._runtime.coroutines import Coroutines

__all__ = ["Observable", "ObservableParts", "Observed", "Observer", "attach", "observe"]


class Observer(Protocol):
    """Is told of the tasks of one executor, in the turn in which it happens; must not raise.

    While somebody observes, tasks start one by one and not at a stretch.
    """

    def opened(self, observed: Observed) -> None:
        """Note that the executor has started, and how it can be asked."""
        ...

    def started(self, lateness: float) -> None:
        """Note that a task starts, so many seconds after it was due; a plain function is over as soon as it has been called."""
        ...

    def ended(self) -> None:
        """Note that a coroutine has ended, in whatever way; it is no longer among those that run."""
        ...


class Stoppable(Protocol):
    """What is asked of the settings in force."""

    @property
    def is_stopped(self) -> bool:
        """True while nothing starts, whatever falls due."""
        ...


class ObservableParts(Protocol):
    """What is asked of an executor that has started."""

    @property
    def queue(self) -> TaskQueue:
        """Where its tasks wait."""
        ...

    @property
    def accounts(self) -> Accounts:
        """What runs."""
        ...

    @property
    def coroutines(self) -> Coroutines:
        """What is told when one of them has ended."""
        ...

    @property
    def controls(self) -> Stoppable:
        """Its settings in force."""
        ...


class Observed:
    """How one executor stands, beside the counts of ``statistics()``.

    Args:
        parts: of the executor, which has started.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: ObservableParts) -> None:
        self._parts = parts

    @property
    def is_stopped(self) -> bool:
        """True while nothing starts, whatever falls due: it is not woken for that."""
        return self._parts.controls.is_stopped

    @property
    def is_drawing(self) -> bool:
        """True while items of an iterator, or keys of a cycle, are still to be drawn."""
        return bool(self._parts.accounts.feeders)

    @property
    def coroutines(self) -> Sized:
        """The coroutines that run, to be counted: the same object at all times."""
        return self._parts.accounts.running

    @property
    def held_count(self) -> int:
        """How many permits are held."""
        return len(self._parts.accounts.holding)

    def due_count(self, now: float) -> int:
        """Count the tasks that are due at a loop time, and have not started."""
        queue = self._parts.queue
        count = count_until(queue.on_time, now, is_spread=False)
        if queue.spread.opened_count or queue.spread.numbers:
            count += count_until(queue.spread, now, is_spread=False)
        return count


class Observable(Protocol):
    """An executor."""

    def _observe(self, observer: Observer) -> None:
        """Tell an observer of its tasks, from now on, or from its start."""
        ...


def observe(executor: Observable, observer: Observer) -> None:
    """Tell an observer of the tasks of an executor, in place of the one before; from its start if that is still to come."""
    executor._observe(observer)


def attach(parts: ObservableParts, observer: Observer) -> None:
    """Tell an observer of all tasks of an executor that has started, from now on."""
    observer.opened(Observed(parts))
    free = parts.accounts.on_free

    def ended() -> None:
        observer.ended()
        free()

    parts.queue.on_start = observer.started
    parts.coroutines.on_free = ended
