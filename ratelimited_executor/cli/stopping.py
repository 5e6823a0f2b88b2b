"""Why and how urgently a run must stop."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Stop", "StopReason", "signals_stop"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopReason(Enum):
    """What ended a run before its input."""

    SIGNAL = "interrupted"
    BAD_LINE = "bad input"
    INPUT_FAILED = "input failed"
    OUTPUT_FAILED = "output failed"
    BUG = "internal error"


class Stop:
    """An order to stop: the first lets what runs finish, a second one does not.

    Attributes:
        reason: why; None while nothing was ordered.
        error: what caused it, if something did.
        ordered: set by the first order.
        insisted: set by a signal that comes after it.
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
        """Whether nothing more may be started."""
        return self.reason is not None

    def order(self, reason: StopReason, error: BaseException | None = None) -> None:
        """Stop starting; the first reason counts."""
        if self.reason is None:
            self.reason, self.error = reason, error
            self.ordered.set()
            self.on_order()

    def on_signal(self) -> None:
        """Take a signal: the first one orders, the next one insists."""
        if self.reason is None:
            self.order(StopReason.SIGNAL)
        else:
            self.insisted.set()


@contextmanager
def signals_stop(stop: Stop) -> Iterator[None]:
    """Direct SIGINT and SIGTERM to a stop order; the former handlers come back at the end."""
    loop = asyncio.get_running_loop()

    def from_handler(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop.on_signal)

    # signal.signal and not loop.add_signal_handler: that one forgets the former handler, and Windows has none.
    former = {number: signal.signal(number, from_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
