"""Observers of users: their notifications, and the handling of their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.insight.observing import Listener, started_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from ratelimited_executor._runtime.insight.observing import Observable, Observed
    from ratelimited_executor.abc import Observer

__all__ = ["Observation", "observe"]

_METHODS: Final = ("accepted", "started", "retried", "ended")


class Observation:
    """An observer that is notified of the tasks of an executor until it is closed; also a context manager.

    Created by :func:`observe`.
    """

    __slots__ = ("_executor", "_ignore", "_observed", "_observer")

    _observed: Observed

    def __init__(self, executor: Observable, observer: Observer) -> None:
        self._executor = executor
        self._observer = observer
        self._ignore: Callable[[], None] | None = executor._listen(
            Listener(
                opened=self._opened,
                accepted=self._accepted,
                started=self._started,
                ended=self._ended,
                cancelled=self._cancelled,
                retried=self._retried,
            )
        )

    def close(self) -> None:
        """Stop notifying the observer; does nothing if it is closed.

        Raises:
            WrongLoopError: from another thread or event loop.
        """
        if self._ignore is not None:
            self._ignore()
            self._ignore = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._ignore is None else "open"
        return f"<Observation {state} of {self._executor!r} by {self._observer!r}>"

    # Notifications.

    def _opened(self, observed: Observed) -> None:
        self._observed = observed

    def _accepted(self, count: int) -> None:
        self._tell(self._observer.accepted, count)

    def _started(self, due: float, now: float) -> None:
        self._tell(self._observer.started, now - due)

    def _retried(self, owner: Any) -> None:
        self._tell(self._observer.retried, self._duration(owner) or 0.0)

    def _ended(self, owner: Any, state: TaskState) -> None:
        self._tell(self._observer.ended, state, self._duration(owner), 1)

    def _cancelled(self, count: int) -> None:
        self._tell(self._observer.ended, TaskState.CANCELLED, None, count)

    def _duration(self, owner: Any) -> float | None:
        at = started_at(owner)
        return None if at is None else self._observed.now() - at

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except (KeyboardInterrupt, SystemExit) as error:  # they end the loop, but not in the middle of a start
            self._observed.loop.call_soon(_raise, error)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is not an error of the task
            message = f"exception in {method.__name__}() of the observer {self._observer!r}"
            self._observed.loop.call_exception_handler({"message": message, "exception": error})


def _raise(error: BaseException) -> None:
    """Raise an error."""
    raise error


def observe(executor: Observable, observer: Observer) -> Observation:
    """Notify an observer of all tasks of an executor from now on, or from its start.

    While an executor has an observer, its tasks start one by one, and calls that schedule take a slower path: a trivial
    call costs several times as much. Any number of observers may observe one executor; this ends with the last one.

    Args:
        executor: a :class:`RateLimitedExecutor`.
        observer: an object with the methods of :class:`~ratelimited_executor.abc.Observer`.

    Raises:
        TypeError: if ``executor`` is not an executor, or ``observer`` lacks a method.
        WrongLoopError: from another thread or event loop.
    """
    if not callable(getattr(executor, "_listen", None)) or isinstance(executor, type):
        raise TypeError(f"executor must be a RateLimitedExecutor, got {executor!r}")
    missing = [name for name in _METHODS if not callable(getattr(observer, name, None))]
    if missing or isinstance(observer, type):
        of = " and ".join(f"{name}()" for name in missing) or "an instance of its class"
        raise TypeError(f"observer must have the methods of Observer, and lacks {of}: got {observer!r}")
    return Observation(executor, observer)
