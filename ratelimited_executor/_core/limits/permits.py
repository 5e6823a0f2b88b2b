"""What the queue asks of whatever admits starts in time: a grid, granted permits, or several limits together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ratelimited_executor._core.rates import Rate

__all__ = ["Permits"]


class Permits(Protocol):
    """What admits starts; times are nanoseconds on the timeline."""

    rate: Rate
    usable_until_ns: int

    @property
    def peers(self) -> int:
        """How many peers share the rate."""
        ...

    @property
    def is_unlimited(self) -> bool:
        """Whether everything may start at once."""
        ...

    @property
    def is_bursty(self) -> bool:
        """Whether many starts may be admitted at once, for as long as it takes to find out which."""
        ...

    @property
    def is_by_wall_clock(self) -> bool:
        """Whether a step of the wall clock may let something start."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether nothing will ever start as things are."""
        ...

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put a rate in force; 0 pauses."""
        ...

    def usable(self, now_ns: int) -> int:
        """Count the starts that are admitted now, and until ``usable_until_ns``."""
        ...

    def take(self, count: int = 1, now_ns: int = 0) -> None:
        """Take the permits of some of them; ``now_ns`` is wanted where :attr:`counts_effects`."""
        ...

    @property
    def counts_effects(self) -> bool:
        """Whether a start counts from when it takes effect: then ``take_effect`` or ``defer`` are told of each."""
        ...

    def next_time(self, now_ns: int) -> int | None:
        """Tell when a start of cost 1 is admitted, >= ``now_ns``; None if never."""
        ...

    def next_fresh_time(self, now_ns: int) -> int | None:
        """Tell the same where :meth:`usable` has just found none."""
        ...

    def next_number_time(self) -> int:
        """Tell before when no permit comes up."""
        ...

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        ...

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        ...
