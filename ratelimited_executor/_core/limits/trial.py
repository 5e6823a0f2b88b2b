"""Copies of limits, to be asked about times to come: a limit that is asked forgets what has lapsed by then."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.window import WindowLimit

if TYPE_CHECKING:
    from ratelimited_executor._core.limits.limit import Limit

__all__ = ["TrialClock", "trial_of"]


class TrialClock:
    """A time that somebody moves."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def now(self) -> int:
        """Return the time, in nanoseconds on the timeline."""
        return self.now_ns


def trial_of(limit: Limit, clock: TrialClock) -> Limit:
    """Return a copy of a limit, to be tried at times to come."""
    if isinstance(limit, QuotaLimit):
        return limit.trial(clock.now)
    if isinstance(limit, (WindowLimit, ExactPacedLimit)):
        return limit.trial()
    return copy(limit)
