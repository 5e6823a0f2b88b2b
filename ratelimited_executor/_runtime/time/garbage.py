"""Long garbage collections, recorded so that no task is blamed for the time that they take.

A collection runs inside whatever statement allocates one object too many, and blocks every thread of the interpreter.
It is timed by ``gc.callbacks``: two calls for some 700 new objects, a nanosecond an object. Nothing is installed unless
an executor runs on a real clock.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import TYPE_CHECKING, Final

from ratelimited_executor._runtime.time.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LONG_COLLECTIONS", "LongCollections"]

_LONG_SECONDS: Final = 0.005
_KEPT_COUNT: Final = 64


class LongCollections:
    """The latest collections of this process that took 5 ms or more.

    Args:
        monotonic: returns the time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = SystemClock.monotonic) -> None:
        self._monotonic = monotonic
        self._begun_at = 0.0
        self._ended: deque[tuple[float, float]] = deque(maxlen=_KEPT_COUNT)  # end, seconds
        self._user_count = 0

    def watch(self) -> None:
        """Record collections from now on, until one :meth:`unwatch` for each call."""
        self._user_count += 1
        if self._user_count == 1:
            gc.callbacks.append(self._note)

    def unwatch(self) -> None:
        """Undo one :meth:`watch`."""
        self._user_count -= 1
        if not self._user_count and self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def seconds_since(self, when: float) -> float:
        """Return the total seconds of collections that ended after ``when``."""
        return sum(seconds for end, seconds in self._ended if end > when)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        now = self._monotonic()
        if phase == "start":
            self._begun_at = now
        elif now - self._begun_at >= _LONG_SECONDS:
            self._ended.append((now, now - self._begun_at))


LONG_COLLECTIONS: Final = LongCollections()
"""The long collections of this process, recorded while an executor runs on a real clock."""
