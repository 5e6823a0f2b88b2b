"""Why and how urgently a run must stop."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = [
    "SIGNALS",
    "Signals",
    "Stop",
    "StopReason",
    "cancelled_by",
    "signals_held",
    "signals_ignored",
    "termination_interrupts",
]

_HANGUP: Final = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # Windows has none
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, *_HANGUP)
"""The signals that order a stop."""


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals that order a stop; processes started meanwhile hold them back until they say otherwise.

    Else a process that is still loading its modules when a terminal sends a signal to all would die of it, with a
    traceback. Windows has no such thing.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def signals_ignored() -> None:
    """Ignore the signals that order a stop, as the process that has started this one passes orders on."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a live view restores the terminal."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


class StopReason(Enum):
    """The reason why a run ended before its input."""

    SIGNAL = "interrupted"
    BAD_LINE = "bad input"
    INPUT_FAILED = "input failed"
    OUTPUT_FAILED = "output failed"
    BUG = "internal error"


class Stop:
    """An order to stop: the first one lets running calls finish, a second one does not.

    Attributes:
        reason: the reason; None while no stop was ordered.
        error: the error that caused it, if any.
        ordered: set by the first order.
        insisted: set by a signal after the first order.
        on_order: called once, at the first order, before anything else can run.
    """

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.error: BaseException | None = None
        self.ordered = asyncio.Event()
        self.insisted = asyncio.Event()
        self.on_order: Callable[[], None] = lambda: None

    @property
    def is_ordered(self) -> bool:
        """True if a stop was ordered: no more calls may start."""
        return self.reason is not None

    def order(self, reason: StopReason, error: BaseException | None = None) -> None:
        """Order the stop; the first reason counts."""
        if self.reason is None:
            self.reason, self.error = reason, error
            self.ordered.set()
            self.on_order()

    def on_signal(self) -> None:
        """Handle a signal: the first one orders the stop, the next one insists."""
        if self.reason is None:
            self.order(StopReason.SIGNAL)
        else:
            self.insisted.set()


@contextmanager
def cancelled_by(stop: Stop) -> Iterator[None]:
    """Cancel the current task's wait in the block once a stop is ordered, or at once if it already is."""
    task = asyncio.current_task()
    assert task is not None, "only coroutines come here"

    def cancel() -> None:
        task.cancel()

    former, stop.on_order = stop.on_order, cancel
    at_once = asyncio.get_running_loop().call_soon(cancel) if stop.is_ordered else None
    try:
        yield
    finally:
        stop.on_order = former
        if at_once is not None:
            at_once.cancel()


class Signals:
    """Directs signals to a stop order, before the event loop runs and while it runs.

    SIGINT and SIGTERM order the stop, then insist. SIGHUP, which a closing terminal sends, only orders, as it may come
    twice; if it is ignored (``nohup``), it stays ignored. A context manager that restores the former handlers.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # signal.signal and not loop.add_signal_handler: there is no loop yet, and Windows has none.
        for number in SIGNALS:
            if number not in _HANGUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def attach(self) -> None:
        """Handle signals in the running loop from now on, between its callbacks."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Restore the former handlers."""
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        act = partial(self._stop.order, StopReason.SIGNAL) if number in _HANGUP else self._stop.on_signal
        if self._loop is None:
            act()
        else:
            self._loop.call_soon_threadsafe(act)
