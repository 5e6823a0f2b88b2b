"""A clock that moves only on request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import duration_of, number_of
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import ClockFields

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike

__all__ = ["DEFAULT_START_WALL", "VirtualClock"]

# 2024-01-01T00:00:00Z: a whole second, minute, hour and day, the same in every run.
DEFAULT_START_WALL: Final = 1_704_067_200.0


class VirtualClock(ClockFields):
    """The two scales of a virtual event loop; a :class:`~ratelimited_executor.abc.Clock`.

    The monotonic scale starts at 0.0 and never runs backwards; its loop moves it, or :meth:`block`. The wall scale moves
    along with it, and :meth:`step_wall` steps it in either direction.

    Args:
        start_wall: seconds since the epoch when the monotonic scale is 0.0, finite; default 2024-01-01T00:00:00Z.

    >>> clock = VirtualClock(start_wall=1000)
    >>> clock.block(2.5)
    >>> clock.step_wall(-3600)
    >>> clock.monotonic(), clock.wall()
    (2.5, -2597.5)
    """

    __slots__ = ("__weakref__", "_start_wall", "_stepped")

    def __init__(self, *, start_wall: float = DEFAULT_START_WALL) -> None:
        self._monotonic = 0.0
        self._start_wall = number_of("start_wall", start_wall)
        self._stepped = 0.0

    @two_bodies
    def monotonic(self) -> float:
        """Return virtual seconds since the start: what ``loop.time()`` returns."""
        return self._monotonic

    def wall(self) -> float:
        """Return virtual seconds since the epoch (UTC)."""
        return self._start_wall + self._monotonic + self._stepped

    def step_wall(self, seconds: DurationLike) -> None:
        """Step the wall clock forwards, or backwards if ``seconds`` is negative; monotonic time stands still.

        Raises:
            ValueError: if ``seconds`` is not finite.
        """
        self._stepped += duration_of("seconds", seconds)

    def block(self, seconds: DurationLike) -> None:
        """Let time pass without running anything, like a callback that blocks the loop for that long.

        Call it from inside a callback or task. Timers that fall due meanwhile fire late, when the callback returns, as
        on a real loop.

        Raises:
            ValueError: if ``seconds`` is negative or not finite.
        """
        passed = duration_of("seconds", seconds)
        if passed < 0:
            raise ValueError(f"seconds must be >= 0, got {seconds!r}: time never runs backwards")
        self._monotonic += passed

    def _advance_to(self, when: float) -> None:
        """Move to exactly ``when``; for the loop that owns the clock."""
        assert self._monotonic <= when < math.inf, (self._monotonic, when)
        self._monotonic = when

    def __repr__(self) -> str:
        return f"VirtualClock(monotonic={self.monotonic():.9g}, wall={self.wall():.9f})"
