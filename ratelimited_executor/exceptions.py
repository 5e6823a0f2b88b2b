"""All errors that the library raises itself.

::

    RateLimitedExecutorError
    ├── ExecutorNotStartedError      used before ``async with`` or ``start()``         (also RuntimeError)
    ├── ExecutorStoppedError         used after it was closed, or started a second time (also RuntimeError)
    ├── WrongLoopError               used from another thread or event loop             (also RuntimeError)
    ├── BacklogFullError             ``max_pending`` tasks are already waiting
    ├── TaskDroppedError             a task was dropped before its start
    ├── RetryLater                   raised by a task that asks to be retried
    ├── TaskExpiredError             a task waited past its deadline                    (also TimeoutError)
    ├── RunTimeoutError              a task exceeded its ``run_timeout`` or ``deadline`` (also TimeoutError)
    ├── SlotLostError                a body has lost its slot, which another holder may have now
    ├── StoreUnavailableError        a store of durable tasks could not carry out a request
    ├── DuplicateTaskError           a unique durable task exists already
    ├── NoResultError                a durable task has no result, and will have none
    └── IllegalTransitionError       an impossible change of state of a task or peer: a bug of this library

Bad arguments raise ``ValueError`` or ``TypeError`` that name the parameter and the remedy.
Errors carry their data as attributes and build the message from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._core.durations import delay_of

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike

__all__ = [
    "BacklogFullError",
    "DuplicateTaskError",
    "ExecutorNotStartedError",
    "ExecutorStoppedError",
    "IllegalTransitionError",
    "NoResultError",
    "RateLimitedExecutorError",
    "RetryLater",
    "RunTimeoutError",
    "SlotLostError",
    "StoreUnavailableError",
    "TaskDroppedError",
    "TaskExpiredError",
    "WrongLoopError",
]


class RateLimitedExecutorError(Exception):
    """The base class of the library's own errors."""


class ExecutorNotStartedError(RateLimitedExecutorError, RuntimeError):
    """The executor or manager was used before it was started."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} is not started: enter it, or its manager, with 'async with' before you use it"


class ExecutorStoppedError(RateLimitedExecutorError, RuntimeError):
    """The executor or manager was used after it had been closed, or started a second time."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} is closed and accepts nothing more: create a new one"


class WrongLoopError(RateLimitedExecutorError, RuntimeError):
    """The executor was used from a thread or event loop other than its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.name} was used outside its own event loop: from another thread call "
            "schedule_threadsafe() or call_soon_threadsafe(), or any other method by call_threadsafe()"
        )


class BacklogFullError(RateLimitedExecutorError):
    """The call was refused: ``max_pending`` tasks, or ``key_max_pending`` of a key, wait already."""

    def __init__(self, name: str, *, waiting: int, asked: int, max_pending: int, key: object = None) -> None:
        super().__init__(name, waiting, asked, max_pending, key)
        self.name = name
        self.waiting = waiting
        self.asked = asked
        self.max_pending = max_pending
        self.key = key

    def __str__(self) -> str:
        whose, limit = ("", "max_pending") if self.key is None else (f" of the key {self.key!r}", "key_max_pending")
        return (
            f"{self.name} refused {self.asked} task(s){whose}: {self.waiting} are already waiting and "
            f"{limit} is {self.max_pending}"
        )


class TaskDroppedError(RateLimitedExecutorError):
    """The task was dropped before its start: the backlog was full, or its cost is never available."""

    def __init__(self, name: str, *, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} was dropped: {self.reason}"


class RetryLater(RateLimitedExecutorError):  # noqa: N818  # an instruction, as StopIteration is, and not a mishap
    """Raise it in a task to retry the task later, through the limiter, under the ``retry`` policy.

    After the last attempt, the task fails with this exception. A durable task can raise ``Snooze``, which counts no attempt.

    Args:
        after: the least number of seconds to wait, >= 0, such as a server's Retry-After; back-off and jitter are added.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is negative, NaN or infinite.
    """

    def __init__(self, after: DurationLike | None = None) -> None:
        seconds = None if after is None else delay_of("after", after)
        super().__init__(after)
        self.after = seconds

    def __str__(self) -> str:
        return "try again later" if self.after is None else f"try again after {self.after:g} s"


class TaskExpiredError(RateLimitedExecutorError, TimeoutError):
    """The task was not started before its deadline, and never will be."""

    def __init__(self, name: str, *, expires: float) -> None:
        super().__init__(name, expires)
        self.name = name
        self.expires = expires

    def __str__(self) -> str:
        return f"{self.name} was not started within {self.expires:g} s of its due time"


class RunTimeoutError(RateLimitedExecutorError, TimeoutError):
    """The task did not finish within its ``run_timeout``, or by its ``deadline``."""

    def __init__(self, name: str, *, run_timeout: float, deadline: float | None = None) -> None:
        super().__init__(name, run_timeout, deadline)
        self.name = name
        self.run_timeout = run_timeout
        self.deadline = deadline

    def __str__(self) -> str:
        if self.deadline is not None:
            return f"{self.name} was stopped at its deadline, {self.deadline:g} s after its first due time"
        return f"{self.name} ran longer than its run_timeout of {self.run_timeout:g} s"


class SlotLostError(RateLimitedExecutorError):
    """A slot was not renewed in time, or was released by an operator; the body that held it was cancelled."""

    def __init__(self, pool: str, fence: int) -> None:
        super().__init__(pool, fence)
        self.pool = pool
        self.fence = fence

    def __str__(self) -> str:
        return (
            f"the slot of {self.pool!r} with fence {self.fence} is lost: its lease was not renewed in time, because the "
            "server was away or this process was blocked, or an operator has released it; with OnLost.FINISH a body continues"
        )


class StoreUnavailableError(RateLimitedExecutorError):
    """A store of durable tasks could not carry out a request; ``__cause__`` is the driver's error.

    Nothing was changed, unless the answer to a commit was lost: then the outcome is unknown.

    Attributes:
        store: the store.
        reason: what has failed, and a remedy.
        is_permanent: True if it is known that another attempt fails as well, until somebody changes something.
    """

    def __init__(self, store: str, reason: str, *, is_permanent: bool = False) -> None:
        super().__init__(store, reason)
        self.store = store
        self.reason = reason
        self.is_permanent = is_permanent

    def __str__(self) -> str:
        return f"{self.store}: {self.reason}"


class DuplicateTaskError(RateLimitedExecutorError):
    """A durable task was put that exists already, with ``OnDuplicate.REFUSE``.

    Attributes:
        name: the registered name of its function.
        id: the id of the existing task.
    """

    def __init__(self, name: str, id: str) -> None:
        super().__init__(name, id)
        self.name = name
        self.id = id

    def __str__(self) -> str:
        return f"a task of {self.name} with the same unique arguments exists, {self.id}: catch this, or use OnDuplicate.KEEP"


class NoResultError(RateLimitedExecutorError):
    """A durable task was waited for that has no result, and will have none.

    Attributes:
        id: the id of the task.
        end: ``"dead"`` if it failed for the last time, ``"cancelled"``, ``"expired"``; ``"done"`` if its result is not kept;
            ``"unknown"`` if the store does not have it.
        error: the error of its last attempt, a traceback; or why its result is not kept; empty otherwise.
    """

    def __init__(self, id: str, end: str, error: str = "") -> None:
        super().__init__(id, end, error)
        self.id = id
        self.end = end
        self.error = error

    def __str__(self) -> str:
        reason = self.error.rstrip().rpartition("\n")[2]  # of a traceback, the exception
        return f"{self.id} {_NO_RESULT.get(self.end, self.end)}{f': {reason}' if reason else ''}"


_NO_RESULT = {
    "dead": "failed for the last time, and is a dead letter",
    "cancelled": "was cancelled",
    "expired": "has expired",
    "done": "is done, and its result is not kept",
    "unknown": "is not in the store: it never was, was cancelled or expired before it started, or has ended and is not, or no "
    "longer, kept: give its function keep=",
}


class IllegalTransitionError(RateLimitedExecutorError):
    """A task or a peer made an impossible change of state: a bug of this library, please report it."""
