"""Notifies the listeners of an executor of the events of its tasks, and shows them its state.

A :class:`Listener` names the events that it wants. An event that no listener wants costs nothing: the kernel has a hook
only while a listener uses it. Only this module sets these hooks.

Theory. Most of a trivial call's cost is bookkeeping, so many calls start in one stretch, and the kernel counts them
together. A listener that wants each start ends that: tasks start one by one. A listener that needs only a few of them
(:attr:`Listener.sampled`) says how many starts may pass before the next notification; these form stretches as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.queue.looking import count_until
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import ListenersFields
from ratelimited_executor._kernel.records import Record
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.task.accounts import CallOwner
from ratelimited_executor._runtime.task.batch_items import BatchItem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sized

    from ratelimited_executor._core.permits.rates import Rate
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.coroutines import Coroutines

__all__ = ["Listener", "Listeners", "Observable", "ObservableParts", "Observed", "started_at"]

_ENDS: Final = (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED)


class Stoppable(Protocol):
    """The settings in force that listeners may read."""

    @property
    def is_stopped(self) -> bool:
        """True while nothing starts, whatever falls due."""
        ...

    @property
    def rate(self) -> Rate:
        """The rate in force."""
        ...


class Counting(Protocol):
    """The retries of failed tasks."""

    @property
    def count(self) -> int:
        """The number of attempts that were, or will be, followed by another."""
        ...


class Timed(Protocol):
    """The source of time."""

    def monotonic(self) -> float:
        """Return the loop time."""
        ...


class ObservableParts(Protocol):
    """The parts of a started executor that listeners may read."""

    @property
    def queue(self) -> TaskQueue:
        """The queue of its tasks."""
        ...

    @property
    def accounts(self) -> Accounts:
        """The accounts of its running tasks."""
        ...

    @property
    def coroutines(self) -> Coroutines:
        """The coroutines, which are notified of ends."""
        ...

    @property
    def controls(self) -> Stoppable:
        """The settings in force."""
        ...

    @property
    def moments(self) -> Timed:
        """The source of time."""
        ...

    @property
    def retries(self) -> Counting:
        """The retries of failed tasks."""
        ...


class Observed:
    """The state of one executor, beyond the counts of ``statistics()``.

    Args:
        parts: the parts of the executor, which has started.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: ObservableParts) -> None:
        self._parts = parts

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it runs on."""
        return self._parts.coroutines.loop

    @property
    def is_stopped(self) -> bool:
        """True while nothing starts, whatever falls due: due tasks do not wake the executor."""
        return self._parts.controls.is_stopped

    @property
    def is_drawing(self) -> bool:
        """True while items of an iterator, or keys of a cycle, are still to be drawn."""
        return bool(self._parts.accounts.feeders)

    @property
    def coroutines(self) -> Sized:
        """The running coroutines, to be counted: the same object at all times."""
        return self._parts.accounts.running

    @property
    def held_count(self) -> int:
        """The number of permits held."""
        return len(self._parts.accounts.holding)

    def now(self) -> float:
        """Return the loop time."""
        return self._parts.moments.monotonic()

    def epoch(self) -> float:
        """Return the loop time as epoch seconds, on the scale of due times."""
        return self._parts.queue.timeline.to_epoch(self.now())

    @property
    def ready_count(self) -> int:
        """The number of tasks that are due, or will be within the running interval."""
        return self._parts.queue.ready_count()

    @property
    def rate(self) -> float:
        """The permits a second of this process."""
        return float(self._parts.controls.rate) / self._parts.queue.permits.peers

    @property
    def used(self) -> Mapping[str, int]:
        """How much of each resource was used so far by starts whose cost names it."""
        return self._parts.queue.used

    def counts(self) -> tuple[tuple[int, ...], int, int]:
        """Return some of the counts of ``statistics()``, at a fraction of its cost.

        Returns:
            the tasks accepted, started, retried, done, failed, cancelled, expired and dropped so far; the running and
            the waiting tasks.
        """
        parts = self._parts
        accounts = parts.accounts
        accounts.catch_up()
        done, failed, cancelled, expired, dropped = map(accounts.counts.__getitem__, _ENDS)
        cancelled += parts.queue.cancelled_count
        running = accounts.running_count()
        accepted = accounts.accepted_count
        waiting = accepted - (done + failed + cancelled + expired + dropped) - running
        counts = accepted, accounts.started_count, parts.retries.count, done, failed, cancelled, expired, dropped
        return counts, running, waiting

    def due_count(self, now: float) -> int:
        """Count the tasks that are due at a loop time, and have not started."""
        queue = self._parts.queue
        count = count_until(queue.on_time, now, is_spread=False)
        if queue.spread.opened_count or queue.spread.numbers:
            count += count_until(queue.spread, now, is_spread=False)
        return count


class Listener:
    """The notifications that a listener receives, in the same loop iteration; none of them may raise.

    Args:
        opened: the executor has started, now or before; with its :class:`Observed`.
        accepted: tasks have been accepted; with their number.
        started: just before each start; with the due time and the loop time. It makes tasks start one by one.
        sampled: like ``started``, for some starts; returns how many starts may pass before the next notification.
        ended: a task with an owner has ended; with its owner and end state.
        cancelled: tasks without an owner were cancelled before their start; with their number.
        retried: an attempt has failed and is followed by another; with its owner.
        failed: an attempt has failed; with its owner, its exception, and the state of its task: waiting if another attempt
            follows, else failed. The exception is not to be kept: it refers to whatever the task has worked with.
        freed: a coroutine has ended, in whatever way; it is no longer among the running ones.
    """

    __slots__ = ("accepted", "cancelled", "ended", "failed", "freed", "opened", "retried", "sampled", "started")

    def __init__(
        self,
        *,
        opened: Callable[[Observed], None] | None = None,
        accepted: Callable[[int], None] | None = None,
        started: Callable[[float, float], None] | None = None,
        sampled: Callable[[float, float], int] | None = None,
        ended: Callable[[Any, TaskState], None] | None = None,
        cancelled: Callable[[int], None] | None = None,
        retried: Callable[[Any], None] | None = None,
        failed: Callable[[Any, BaseException, TaskState], None] | None = None,
        freed: Callable[[], None] | None = None,
    ) -> None:
        self.opened = opened
        self.accepted = accepted
        self.started = started
        self.sampled = sampled
        self.ended = ended
        self.cancelled = cancelled
        self.retried = retried
        self.failed = failed
        self.freed = freed


class Listeners(ListenersFields):
    """All listeners of one executor, whether it has started or not."""

    __slots__ = (
        "_calls", "_ended_count", "_is_each", "_is_each_end", "_is_marked", "_left", "_listeners", "_parts", "_resting",
    )  # fmt: skip

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._parts: ObservableParts | None = None
        self._resting: set[Listener] = set()  # those whose `ended` is paused
        self._left = 0  # starts that may pass before samples are taken again
        self._is_each = False  # True if a listener wants each start
        self._is_each_end = False  # True if a listener wants each end now
        self._ended_count = 0  # listeners with `ended`, whether paused or not
        self._is_marked = False  # True if the last start that was notified left a mark for its end

    @property
    def wants_accepted(self) -> bool:
        """True if a listener wants each accepted task."""
        return any(listener.accepted is not None for listener in self._listeners)

    def open(self, parts: ObservableParts) -> None:
        """Record that the executor has started."""
        self._parts = parts
        self._calls = parts.accounts.calls
        self._freed = parts.coroutines.on_free
        if self._listeners:
            self._connect()
        for listener in self._listeners:
            if listener.opened is not None:
                listener.opened(Observed(parts))

    def add(self, listener: Listener) -> None:
        """Add a listener from now on, or from the start of the executor."""
        self._listeners = (*self._listeners, listener)
        if self._parts is not None:
            self._connect()
            if listener.opened is not None:
                listener.opened(Observed(self._parts))

    def remove(self, listener: Listener) -> None:
        """Remove a listener; does nothing if it is not registered."""
        if listener in self._listeners:
            self._listeners = tuple(each for each in self._listeners if each is not listener)
            self._resting.discard(listener)
            if self._parts is not None:
                self._connect()

    def rest(self, listener: Listener, *, is_resting: bool) -> None:
        """Pause or resume the notification of a listener of task ends; while all are paused, ends cost nothing."""
        (self._resting.add if is_resting else self._resting.discard)(listener)
        if self._parts is not None and self._is_each_end is not (len(self._resting) < self._ended_count):
            self._tell_ends()

    def restart_samples(self) -> None:
        """Take the next start as a sample; from any thread."""
        self._left = 0
        if self._parts is not None:
            self._parts.queue.untold_count = 0

    def _connect(self) -> None:
        """Set the hooks that a listener needs, and no others."""
        parts, listeners = self._parts, self._listeners
        assert parts is not None
        queue, accounts = parts.queue, parts.accounts
        accounts.detach()  # a running stretch uses the previous hooks
        self._is_each = any(each.started is not None for each in listeners)
        self._ended_count = sum(each.ended is not None for each in listeners)
        is_sampled = any(each.sampled is not None for each in listeners)
        queue.on_start = self._started if self._is_each or is_sampled else None
        on_starts = [each.started for each in listeners if each.started is not None]
        if len(on_starts) == 1 and not is_sampled and not self._ended_count:
            queue.on_start = on_starts[0]  # nobody needs samples, or the marks that ends are told by
        queue.untold_count = self._left = 0
        self._unmark()
        self._tell_ends()
        accounts.tell_cancellations(self._hook_of("cancelled"))
        accounts.on_accepted = self._hook_of("accepted")
        accounts.on_retried = self._hook_of("retried")
        accounts.on_failed = self._hook_of("failed")
        self._on_freed = tuple(each.freed for each in listeners if each.freed is not None)
        parts.coroutines.on_free = self._ended_coroutine if self._on_freed else self._freed

    def _hook_of(self, event: str) -> Callable[..., None] | None:
        """Return what notifies the listeners of an event; None if none of them wants it."""
        wanted = [call for each in self._listeners if (call := getattr(each, event)) is not None]
        if len(wanted) <= 1:
            return wanted[0] if wanted else None

        def tell(*facts: Any) -> None:
            for call in wanted:
                call(*facts)

        return tell

    def _tell_ends(self) -> None:
        self._is_each_end = len(self._resting) < self._ended_count
        self._parts.accounts.tell_ends(self._ended if self._is_each_end else None)  # type: ignore[union-attr]  # it has started

    # Called by the kernel.

    def _started(self, due: float, now: float) -> None:
        if self._is_each:
            for listener in self._listeners:
                if listener.started is not None:
                    listener.started(due, now)
            if self._left:
                self._left -= 1
            else:
                self._left = self._sample(due, now)
        elif self._is_marked and self._left:  # the start after a sample: no other may take the sample's mark
            self._unmark()
            self._parts.queue.untold_count = self._left - 1  # type: ignore[union-attr]  # it has started
            return
        else:
            self._left = self._sample(due, now)
        self._mark(now)

    def _sample(self, due: float, now: float) -> int:
        """Take a sample; return how many starts may pass before the next."""
        passing: int | None = None
        for listener in self._listeners:
            if listener.sampled is not None:
                count = listener.sampled(due, now)
                passing = count if passing is None else min(passing, count)
        return passing or 0

    def _mark(self, now: float) -> None:
        """Record the start time of the next task, for the notification of its end."""
        accounts = self._parts.accounts  # type: ignore[union-attr]  # it has started
        accounts.started_at = now
        accounts.calls = self._calls.marked(now)
        self._is_marked = True

    def _unmark(self) -> None:
        accounts = self._parts.accounts  # type: ignore[union-attr]  # it has started
        accounts.started_at = None
        accounts.calls = self._calls
        self._is_marked = False

    def _ended(self, owner: Any, state: TaskState) -> None:
        for listener in self._listeners:
            if listener.ended is not None and listener not in self._resting:
                listener.ended(owner, state)
        if self._is_marked and not self._is_each:
            parts = self._parts
            assert parts is not None
            if (
                started_at(owner) == parts.accounts.started_at
            ):  # the sample itself, which has ended at once, as most calls do
                self._unmark()
                parts.queue.untold_count = self._left

    @two_bodies
    def _ended_coroutine(self) -> None:
        for freed in self._on_freed:
            freed()
        self._freed()


def started_at(owner: Any) -> float | None:
    """Return the loop time at which the task of an owner has started; None if it has not, or it was not recorded."""
    if isinstance(owner, Record):
        return owner._context if type(owner._context) is float else None
    if isinstance(owner, BatchItem | CallOwner):
        return owner.started_at
    return None


class Observable(Protocol):
    """An executor."""

    def _listen(self, listener: Listener) -> Callable[[], None]:
        """Notify a listener of tasks, from now on or from the start; return a function that ends it."""
        ...
