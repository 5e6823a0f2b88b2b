"""The contract of a limit: how many starts are admitted now, and when the next ones.

A limit counts *permits*: a start takes its cost in permits. All times are integer nanoseconds on one monotonic
timeline, all amounts are integers, and nothing is rounded in favour of a start.

A limit is in *deficit* while starts have been settled to more than it had; a pace, until all earlier starts are paid
for. A start of cost 0 takes nothing, but nothing starts in a deficit: it is admitted once there is none. If it is
settled to more, the cost counts from then on.

There are two contracts, because they are used differently. A :class:`Limit` decides on one start and its cost, and
remembers it. ``Permits`` (``_kernel/contracts.py``) is the contract with the queue: permits are counted once and taken
many times, so a plain start costs a few attribute reads. ``CombinedPermits`` combines several limits into permits.

A limit may forget what has lapsed by the time that it is given. So it is given the present only, and a question as of a
later time goes to a copy, which :meth:`Limit.trial` returns. A forecast as of the present changes no later answer.

As in ``collections.abc``, a limit implements the abstract methods and inherits defaults for the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ratelimited_executor._core.limits.effects import Effects

__all__ = ["Limit", "Receipt", "Taken", "TrialClock", "asked_at"]


class Taken(Protocol):
    """The counterpart of a receipt: the limit or grid that a start was charged to."""

    def settle(self, receipt: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start."""
        ...

    def take_effect(self, receipt: Any, now_ns: int) -> None:
        """Record that a start takes effect only now."""
        ...


Receipt = tuple[str, Taken, Any]  # resource, the limit or grid charged, and its own receipt of the start


class Limit(ABC):
    """A limit on the total cost of starts over time.

    Attributes:
        counts_effects: True if a start counts from its effect: then :meth:`take_effect` or :meth:`defer` is called for each.
    """

    counts_effects: ClassVar[bool] = False
    __slots__ = ("__weakref__",)

    # Admission.

    @property
    @abstractmethod
    def cost_max(self) -> int | None:
        """The largest cost that is ever admitted, sooner or later; None if any cost is."""

    @property
    def is_paid_afterwards(self) -> bool:
        """True if a start is admitted whatever it costs, and the next one waits until it is paid for."""
        return False

    @abstractmethod
    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now, in succession; negative after costs were settled to more."""

    def admits(self, cost: int, now_ns: int) -> bool:
        """True if a start of a cost >= 0 is admitted now."""
        return self.count(now_ns) >= cost

    def refuses(self, cost: int, now_ns: int) -> bool:
        """True if this limit alone keeps back a start of a cost."""
        return not self.admits(cost, now_ns)

    # Starts.

    @abstractmethod
    def take(self, cost: int, now_ns: int) -> Any:
        """Record a start; return its receipt, which identifies it to the methods below."""

    @abstractmethod
    def settle(self, receipt: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start afterwards, more than once if needed; lapsed permits are not given back."""

    @property
    def is_foreseeable(self) -> bool:
        """True if :meth:`when` can forecast; else others admit starts, and report it shortly before."""
        return True

    def take_effect(self, receipt: Any, now_ns: int) -> None:  # noqa: B027  # it matters to few limits
        """Record that a start takes effect only now; may be called again, or after :meth:`defer`."""

    def defer(self, receipt: Any, effects: Effects) -> None:  # noqa: B027  # as above
        """Defer the effect of a start: add a part to ``effects`` that hears of it."""

    # Forecasts.

    @abstractmethod
    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start of a cost is admitted, to the nanosecond, if none precedes it; None if never.

        The result is >= ``now_ns``.
        """

    @abstractmethod
    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""

    def when_after(self, ahead: int, cost: int, now_ns: int) -> int | None:
        """Estimate when a start of a cost is admitted, once others have cost ``ahead`` in all; None if never."""
        return self.when_count(ahead + cost, now_ns) if ahead + cost > 0 else self.when(0, now_ns)

    @abstractmethod
    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts of cost 1 are admitted in [``now_ns``, ``end_ns``)."""

    def starts_until(self, cost: int, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts of a cost are admitted in [``now_ns``, ``end_ns``)."""
        count = self.count_until(now_ns, end_ns)
        if cost <= 1 or count <= 0:
            return count
        return -(-count // cost) if self.is_paid_afterwards else count // cost

    @property
    def is_by_wall_clock(self) -> bool:
        """True if a step of the wall clock may allow a start."""
        return False

    # The limit itself.

    def trial(self, time_ns: Callable[[], int]) -> Self:  # noqa: ARG002  # for those that read a clock
        """Return a copy for questions as of later times, which leave the limit itself as it is.

        Args:
            time_ns: returns the time that the copy is asked about: the present at first.
        """
        return copy(self)

    @abstractmethod
    def change_to(self, other: Self, now_ns: int) -> None:
        """Adopt the rate and settings of another limit of this class from now on; permits taken still count."""

    # Forgetting.

    @abstractmethod
    def idle_at(self, now_ns: int) -> int | None:
        """Return from when on a new limit would behave the same, if nothing starts before; None if not known.

        The result is >= ``now_ns``.
        """

    def pack(self) -> tuple[int, ...] | None:
        """Return the state in numbers for :meth:`unpack`; None if it cannot be packed (now)."""
        return None

    def unpack(self, numbers: Sequence[int], now_ns: int) -> None:
        """Adopt the packed state of a limit of this class, as :meth:`change_to` does; call on a new limit."""
        raise NotImplementedError


class TrialClock:
    """A clock that is set by its owner.

    Args:
        now_ns: the time, in nanoseconds on the timeline.
    """

    __slots__ = ("now_ns",)

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def now(self) -> int:
        """Return the time."""
        return self.now_ns


def asked_at(limit: Limit, time_ns: int, now_ns: int) -> Limit:
    """Return a limit, or a copy of it for questions as of a later time."""
    if time_ns <= now_ns:
        return limit
    clock = TrialClock(now_ns)
    copied = limit.trial(clock.now)
    clock.now_ns = time_ns
    return copied
