"""A peer's estimate of the authority's clock: an offset, and an error bound that grows with its age.

A reply with the time t was written between the sending of its request and its arrival: the offset from our clock is t
minus the middle of the two, and half of the round trip bounds the error (Cristian, Probabilistic Clock Synchronization,
1989). Clocks drift by 500 parts per million at most, the limit of what time daemons correct: the error of a sample
grows by that, and a new sample replaces it once its error is smaller. A reply outside the bounds means that the clock
has stepped.

All times are integer nanoseconds: ours on the timeline, the authority's since the epoch.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ServerClock"]

_DRIFT_PER_MILLION: Final = 500
_STEP_NS: Final = 500_000  # distance beyond the bounds from which a reply counts as a step


class ServerClock:
    """The authority's clock, as seen from here."""

    __slots__ = ("_error_ns", "_measured_ns", "_offset_ns", "is_known")

    def __init__(self) -> None:
        self.is_known = False
        self._offset_ns = 0
        self._error_ns = 0
        self._measured_ns = 0

    def measure(self, told_ns: int, sent_ns: int, got_ns: int) -> bool:
        """Process a reply; return False if it contradicts earlier ones, which are then discarded.

        Args:
            told_ns: the authority's time.
            sent_ns: when the request was sent.
            got_ns: when the reply arrived.
        """
        passed = got_ns - sent_ns
        error = (passed + 1) // 2 + passed * _DRIFT_PER_MILLION // 1_000_000 + 1001  # replies have whole microseconds
        offset = told_ns - (sent_ns + got_ns) // 2
        is_step = self.is_known and abs(offset - self._offset_ns) > error + self.error_ns(got_ns) + _STEP_NS
        if is_step or not self.is_known or error <= self.error_ns(got_ns):
            self._offset_ns, self._error_ns, self._measured_ns = offset, error, got_ns
            self.is_known = True
        return not is_step

    def forget(self) -> None:
        """Discard the estimate."""
        self.is_known = False

    def error_ns(self, now_ns: int) -> int:
        """Return the bound on the error of the estimate."""
        return self._error_ns + max(0, now_ns - self._measured_ns) * _DRIFT_PER_MILLION // 1_000_000

    def at(self, now_ns: int) -> int:
        """Convert our time to the authority's: the middle of the possible range."""
        return now_ns + self._offset_ns

    def here(self, server_ns: int) -> int:
        """Convert the authority's time to ours: the middle of the possible range."""
        return server_ns - self._offset_ns

    def surely_after(self, server_ns: int, now_ns: int) -> int:
        """Return the first of our times at which the authority's clock has surely reached a time."""
        here = self.here(server_ns)
        error = self.error_ns(max(here, now_ns))
        return here + error + error * 2 * _DRIFT_PER_MILLION // 1_000_000 + 2  # the growth of the error until then

    def surely_before(self, server_ns: int, now_ns: int) -> int:
        """Return the last of our times at which the authority's clock has surely not passed a time."""
        left = server_ns - self.at(now_ns) - self.error_ns(now_ns)
        return now_ns + left * 1_000_000 // (1_000_001 + _DRIFT_PER_MILLION)  # the growth of the error until then
