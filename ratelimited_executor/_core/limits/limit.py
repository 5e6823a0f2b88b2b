"""The contract of a limit: how much may start now, and when the rest may.

A limit counts *permits*: a start takes its cost of them. All times are integer nanoseconds on one monotonic timeline, all
amounts are integers, and nothing is rounded in favour of a start.

There are two contracts, because they are asked differently. A :class:`Limit` is asked about one start and its cost, and
remembers it. ``Permits`` (``_kernel/contracts.py``) are what the queue asks: they are counted once and taken many
times, so that a plain start costs a few attribute reads. ``CombinedPermits`` makes the second of several of the first.

As in ``collections.abc``, a limit writes the abstract methods, and what it has nothing to say about is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ratelimited_executor._core.rates import Rate

__all__ = ["Limit", "Taken", "Ticket", "starts_until", "step_and_unit"]


class Taken(Protocol):
    """What a start has taken something of, as its ticket knows it."""

    def settle(self, ticket: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start."""
        ...

    def take_effect(self, ticket: Any, now_ns: int) -> None:
        """Record that a start takes effect only now."""
        ...


Ticket = tuple[str, Taken, Any]  # resource, what a start has taken of it from, and what that knows the start by


class Limit(ABC):
    """What bounds the sum of the costs of starts in time."""

    __slots__ = ()

    # What may start.

    @property
    @abstractmethod
    def cost_max(self) -> int | None:
        """The largest cost that is ever admitted; None if any is, sooner or later."""

    @abstractmethod
    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now, in succession; negative after costs were settled to more."""

    def admits(self, cost: int, now_ns: int) -> bool:
        """True if a start of a cost is admitted now."""
        return cost <= 0 or self.count(now_ns) >= cost

    # What starts.

    @abstractmethod
    def take(self, cost: int, now_ns: int) -> Any:
        """Record a start; return its ticket, by which the methods below know it."""

    @abstractmethod
    def settle(self, ticket: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start afterwards, again if needed; what has lapsed meanwhile is not given back."""

    @property
    def is_foreseeable(self) -> bool:
        """True if :meth:`when` knows when a start is admitted; else others decide, and tell it shortly before."""
        return True

    @property
    def counts_effects(self) -> bool:
        """True if a start counts from when it takes effect; :meth:`take_effect` or :meth:`defer` is then called for each."""
        return False

    def take_effect(self, ticket: Any, now_ns: int) -> None:  # noqa: B027  # it matters to few limits
        """Record that a start takes effect only now; it may be told again, or of a start that was deferred."""

    def defer(self, ticket: Any, effects: list[list[int]]) -> None:  # noqa: B027  # as above
        """Defer the effect of a start until ``note_effect()`` is called with ``effects``."""

    # When something may start.

    @abstractmethod
    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start of a cost is admitted, >= ``now_ns``, to the nanosecond, if none comes before; None if never."""

    @abstractmethod
    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""

    def when_after(self, ahead: int, cost: int, now_ns: int) -> int | None:
        """Estimate when a start of a cost is admitted, once others have cost ``ahead`` in all; None if never."""
        return self.when_count(ahead + cost, now_ns) if ahead + cost > 0 else now_ns

    @abstractmethod
    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts of cost 1 are admitted in [``now_ns``, ``end_ns``)."""

    @property
    def is_by_wall_clock(self) -> bool:
        """True if a step of the wall clock may let something start."""
        return False

    # Itself.

    def trial(self, time_ns: Callable[[], int]) -> Self:  # noqa: ARG002  # for those that read a clock
        """Return a copy, to be asked about times to come: a limit that is asked forgets what has lapsed by then.

        Args:
            time_ns: tells the time that the copy is asked about: the present at first.
        """
        return copy(self)

    @abstractmethod
    def change_to(self, other: Self, now_ns: int) -> None:
        """Go by the rate and settings of another limit of this class from now on; what has been taken still counts."""

    @abstractmethod
    def is_idle(self, now_ns: int) -> bool:
        """True if a new limit would do the same."""


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
