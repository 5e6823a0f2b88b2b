"""The exception by which a durable function asks to run later."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ratelimited_executor._core.durable.tasks import SPAN_MAX
from ratelimited_executor._runtime.arguments import delay_of, wall_of
from ratelimited_executor.exceptions import RateLimitedExecutorError

if TYPE_CHECKING:
    from datetime import datetime

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Snooze"]


class Snooze(RateLimitedExecutorError):  # noqa: N818  # an instruction, as StopIteration is, and not a mishap
    """Raise it in a durable function to run the task again later, without counting an attempt.

    The task is due again then, whatever ``retry`` says, and as often as it asks. Its lane behaves as if the task were
    retried. Outside of durable tasks it is an error like any other.

    Args:
        after: seconds from now until the task is due again, >= 0 ...
        until: ... or the time by the wall clock, an aware datetime or epoch seconds; a past time is due now.

    Raises:
        TypeError: if neither or both are given, or one has a wrong type.
        ValueError: if one is out of range.
    """

    def __init__(self, after: DurationLike | None = None, *, until: datetime | float | None = None) -> None:
        if (after is None) == (until is None):
            raise TypeError("Snooze() takes seconds or until=, one of them")
        super().__init__(after if until is None else until)
        self.after = None if after is None else delay_of("after", after)
        self.until = None if until is None else wall_of("until", until)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.after, until=self.until), ()

    def seconds(self, wall: float) -> float:
        """Return the seconds until the task is due again, as far as a store can hold them."""
        pause = max(0.0, (self.until or 0.0) - wall) if self.after is None else self.after
        return min(pause, SPAN_MAX)

    def __str__(self) -> str:
        when = f"at {self.until:f} s since the epoch" if self.after is None else f"in {self.after:g} s"
        return f"asked to run again {when}: only durable tasks can be snoozed"
