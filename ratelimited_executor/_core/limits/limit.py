"""The shape that all limits share: how much may start now, and when the rest may.

A limit counts *permits*: a start takes its cost of them. All times are integer nanoseconds on one monotonic timeline, all
amounts are integers, and nothing is rounded in favour of a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from ratelimited_executor._core.rates import Rate

__all__ = ["Limit", "starts_until", "step_and_unit"]


class Limit(Protocol):
    """What bounds the sum of the costs of starts in time."""

    @property
    def cost_max(self) -> int | None:
        """The largest cost that is ever admitted; None if any is, sooner or later."""
        ...

    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now, one after the other."""
        ...

    def admits(self, cost: int, now_ns: int) -> bool:
        """Whether a start of a cost is admitted now."""
        ...

    def take(self, cost: int, now_ns: int) -> Any:
        """Note a start; return what :meth:`settle` asks for."""
        ...

    def settle(self, ticket: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start afterwards, again if need be; what has lapsed meanwhile is not given back."""
        ...

    def when(self, cost: int, now_ns: int) -> int | None:
        """Tell when a start of a cost is admitted, >= ``now_ns``, if there is none before; None if never."""
        ...

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        ...

    def when_after(self, ahead: int, cost: int, now_ns: int) -> int | None:
        """Estimate when a start of a cost is admitted, once others have cost ``ahead`` in all; None if never."""
        ...

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts of cost 1 are admitted in [``now_ns``, ``end_ns``)."""
        ...

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put another rate in force; what has been taken still counts."""
        ...

    def is_idle(self, now_ns: int) -> bool:
        """Whether a new limit would do the same."""
        ...


def starts_until(limit: Limit, cost: int, now_ns: int, end_ns: int) -> int:
    """Estimate how many starts of a cost a limit admits in [``now_ns``, ``end_ns``)."""
    count = limit.count_until(now_ns, end_ns)
    if cost <= 1 or count <= 0:
        return count
    return -(-count // cost) if limit.cost_max is None else count // cost  # one that admits any cost admits it at once


def step_and_unit(rate: Rate) -> tuple[int, int]:
    """Return a finite rate as permits to nanoseconds, in lowest terms of the rate: ``step / unit``."""
    ratio = rate.per_second
    assert ratio is not None
    return ratio.numerator, ratio.denominator * NS
