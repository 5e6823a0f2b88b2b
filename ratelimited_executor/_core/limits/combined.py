"""Several limits at once, and penalties; the queue sees them as one grid of permits.

One of them may be a grid (the rate that paces); the others are limits. A start is admitted when all admit it, and takes
its cost from each. Beside permits there may be *resources* (the tokens of a language model, bytes, points), each with
limits of its own, which only the starts that name the resource are charged for.

A *penalty* is a time before which nothing starts, because the remote service asked for it (Retry-After).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.limit import TrialClock, asked_at
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.contracts import Permits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ratelimited_executor._core.limits.effects import Effects
    from ratelimited_executor._core.limits.limit import Limit, Receipt
    from ratelimited_executor._core.permits.rates import Rate

__all__ = ["Bound", "CombinedPermits", "Pace"]


class Pace(Permits, Protocol):
    """The contract of the pacing rate's permits in a combination, in addition to that of the queue."""

    @property
    def is_foreseeable(self) -> bool:
        """True if a :meth:`trial` can forecast: permits that others grant are not known in advance."""
        ...

    def trial(self) -> Pace:
        """Return a copy for questions about the future."""
        ...

    def charge(self, cost: int) -> Any:
        """Set the total cost of the last start; return its receipt."""
        ...

    def settle(self, receipt: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start."""
        ...


class _Paid:
    """The permits that paced a start, in the shape of a limit that its cost is settled with."""

    __slots__ = ("_grid",)

    def __init__(self, grid: Pace) -> None:
        self._grid = grid

    def settle(self, receipt: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start."""
        self._grid.settle(receipt, cost, now_ns)

    def take_effect(self, receipt: Any, now_ns: int) -> None:
        """Do nothing: the queue reports these starts to the permits directly."""

    def defer(self, receipt: Any, effects: Effects) -> None:
        """Do nothing, likewise."""


class Bound:
    """A limit and its display name.

    Attributes:
        limit: the limit.
        resource: the resource that it counts.
        text: its text, such as "300/min".
        kind: its kind: ``rate``, ``window``, ``burst``, ``quota`` or ``group``.
        period: the time that its number refers to: seconds, or the name of a calendar period.
    """

    __slots__ = ("kind", "limit", "period", "resource", "text")

    def __init__(self, limit: Limit, *, resource: str, text: str, kind: str, period: object = None) -> None:
        self.limit = limit
        self.resource = resource
        self.text = text
        self.kind = kind
        self.period = period


class CombinedPermits:
    """All limits on the starts of one executor over time.

    Args:
        grid: the permits of the rate that paces; None if no rate paces.
        bounds: the limits, including those of resources.
        rate: the first of the executor's rates.
        time_ns: reads the timeline.

    Attributes:
        penalty_ns: the time before which nothing starts.
        receipts: the receipts of the permits taken last, as (resource, limit, receipt).
        usable_until_ns: as in a grid; here the time of the last look, because each start is decided separately.
    """

    __slots__ = (
        "_main",
        "_resources",
        "_time_ns",
        "bounds",
        "grid",
        "open_receipt",
        "penalty_ns",
        "rate",
        "receipts",
        "usable_until_ns",
    )

    def __init__(
        self,
        grid: Pace | None,
        bounds: Sequence[Bound],
        *,
        rate: Rate,
        time_ns: Callable[[], int],
    ) -> None:
        self.grid = grid
        self.bounds = tuple(bounds)
        self.rate = rate
        self.penalty_ns = 0
        self.usable_until_ns = 0
        self._time_ns = time_ns
        self.receipts: list[tuple[str, Limit, Any]] = []
        # Receipts of the latest starts, until their effect is reported: the grid may have one from before.
        pace: Any = grid
        self.open_receipt: list[Any] | None = None if pace is None or pace.open_receipt is None else []
        self._main = [bound.limit for bound in self.bounds if bound.resource == PERMITS]
        self._resources: dict[str, list[Limit]] = {}
        for bound in self.bounds:
            if bound.resource != PERMITS:
                self._resources.setdefault(bound.resource, []).append(bound.limit)

    # The interface of a grid, for the queue.

    @property
    def peers(self) -> int:
        """How many peers share the rate that paces."""
        return 1 if self.grid is None else self.grid.peers

    @property
    def is_unlimited(self) -> bool:
        """True if everything may start at once: never, since a penalty is possible."""
        return False

    @property
    def is_stopped(self) -> bool:
        """True if no permit comes up."""
        if self.rate.is_zero or (self.grid is not None and self.grid.is_stopped):
            return True
        return any(limit.cost_max == 0 for limit in self._main)

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Pause at a rate of 0, or continue; the grid takes the rate as well."""
        self.rate = rate
        if self.grid is not None:
            self.grid.set_rate(rate, now_ns)

    def usable(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now."""
        self.usable_until_ns = now_ns
        if self.rate.is_zero or now_ns < self.penalty_ns:
            return 0
        count = UNLIMITED if self.grid is None else self.grid.usable(now_ns)
        for limit in self._main:
            count = min(count, limit.count(now_ns))
        return max(0, count)

    def take(self, count: int = 1, now_ns: int = 0) -> None:
        """Take a permit of each limit for each of ``count`` starts."""
        if self.grid is not None:
            self.grid.take(count, now_ns)
        now_ns = self._time_ns()
        self.receipts = [(PERMITS, limit, limit.take(count, now_ns)) for limit in self._main]
        self.open_receipt = self.receipts

    @property
    def counts_effects(self) -> bool:
        """True if some limit counts a start from the time of its effect."""
        if self.grid is not None and self.grid.counts_effects:
            return True
        return any(limit.counts_effects for limit in self._main)

    def take_effect(self, now_ns: int) -> None:
        """Record that the latest starts have taken effect by ``now_ns``; windows and quotas have a margin for this."""
        receipts, self.open_receipt = self.open_receipt, None
        for _, limit, receipt in receipts or ():
            if isinstance(limit, ExactPacedLimit):
                limit.take_effect(receipt, now_ns)
        grid: Any = self.grid
        if grid is not None and grid.counts_effects:
            grid.take_effect(now_ns)

    def defer(self, effects: Effects) -> None:
        """Defer the effect of the last start until ``effects`` begin."""
        receipts, self.open_receipt = self.open_receipt, None
        if receipts is None:
            return
        grid: Any = self.grid
        if grid is not None and grid.counts_effects:
            grid.defer(effects)
        for _, limit, receipt in receipts:
            limit.defer(receipt, effects)

    def next_time(self, now_ns: int) -> int | None:
        """Return when a start of cost 1 is admitted, >= ``now_ns``; None if never."""
        return now_ns if self.usable(now_ns) else self.next_fresh_time(now_ns)

    def next_fresh_time(self, now_ns: int) -> int | None:
        """Return the next permit's time; call only where :meth:`usable` returned 0."""
        return self.when(None, now_ns)

    def begin_at(self, time_ns: int) -> None:
        """Begin the pace anew at a time."""
        if self.grid is not None:
            self.grid.begin_at(time_ns)

    def next_number_time(self) -> int:
        """Return a lower bound on the next permit's time."""
        return 0 if self.grid is None else self.grid.next_number_time()

    def pace(self) -> tuple[float, float]:
        """Return (0, infinity): each start is decided separately."""
        return 0.0, math.inf

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        count = self.startable_until(now_ns, end_ns)
        begin_ns = max(now_ns, self.penalty_ns)
        grid = self._grid_at(begin_ns, now_ns)
        return min(count, grid.count_until(begin_ns, end_ns)) if grid is not None and count else count

    def startable_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts as :meth:`count_until` does, ignoring the grid."""
        begin_ns = max(now_ns, self.penalty_ns)
        if self.rate.is_zero or begin_ns >= end_ns:
            return 0
        limits = self._asked_at(PERMITS, begin_ns, now_ns)
        return max(0, min((limit.count_until(begin_ns, end_ns) for limit in limits), default=UNLIMITED))

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        return self.when_after({PERMITS: count - 1}, {PERMITS: 1}, now_ns)

    # Costs.

    def limits_of(self, resource: str) -> list[Limit] | None:
        """Return the limits of a resource; None if there is no resource of that name."""
        return self._main if resource == PERMITS else self._resources.get(resource)

    def _grid_at(self, time_ns: int, now_ns: int) -> Any:
        """Return the grid, or a copy of it for questions about the future."""
        return self.grid if self.grid is None or time_ns <= now_ns else self.grid.trial()

    def _asked_at(self, resource: str, time_ns: int, now_ns: int) -> Sequence[Limit]:
        """Return the limits of a resource, or copies of them for questions about the future."""
        return [asked_at(limit, time_ns, now_ns) for limit in self.limits_of(resource) or ()]

    def admits(self, needs: Mapping[str, int], now_ns: int) -> bool:
        """True if a start with these needs of resources is admitted now; the grid admits any cost."""
        return all(
            limit.admits(cost, now_ns) for resource, cost in needs.items() for limit in self.limits_of(resource) or ()
        )

    def is_beyond(self, needs: Mapping[str, int]) -> bool:
        """True if a start needs more than is ever admitted, after a rate was lowered."""
        return any(
            limit.cost_max and cost > limit.cost_max  # a limit that admits nothing is paused
            for resource, cost in needs.items()
            for limit in self.limits_of(resource) or ()
        )

    def when(self, needs: Mapping[str, int] | None, now_ns: int) -> int | None:
        """Return when a start is admitted, >= ``now_ns``, if no other starts before; None if never at this rate."""
        if self.rate.is_zero:
            return None
        begin_ns = max(now_ns, self.penalty_ns)
        times: list[int | None] = [begin_ns]
        grid = self._grid_at(begin_ns, now_ns)
        if grid is not None:
            times.append(grid.next_time(begin_ns))
        costs = {PERMITS: 1} if needs is None else {PERMITS: 1, **needs}
        for resource, cost in costs.items():
            times += [limit.when(cost, begin_ns) for limit in self._asked_at(resource, begin_ns, now_ns)]
        return _latest(times)

    def when_after(self, ahead: Mapping[str, int], needs: Mapping[str, int], now_ns: int) -> int | None:
        """Estimate when a start is admitted, once others have taken ``ahead`` of each resource; None if never."""
        if self.rate.is_zero:
            return None
        begin_ns = max(now_ns, self.penalty_ns)
        times: list[int | None] = [begin_ns]
        grid = self._grid_at(begin_ns, now_ns)
        if grid is not None:
            times.append(grid.time_after(begin_ns, ahead.get(PERMITS, 0) + 1))
        for resource in {**needs, **ahead}:  # including resources that only the starts ahead wait for
            before, cost = ahead.get(resource, 0), needs.get(resource)
            for limit in self._asked_at(resource, begin_ns, now_ns):
                if cost is not None:
                    times.append(limit.when_after(before, cost, begin_ns))
                elif before:
                    times.append(limit.when_count(before, begin_ns))
        return _latest(times)

    def when_in_turn(self, ahead: Iterable[Mapping[str, int]], needs: Mapping[str, int], now_ns: int) -> int | None:
        """Return when a start is admitted after others, each in its turn, if no more are added; None if never.

        The starts are tried on a copy of the limits, at some microseconds each. Their sum would not do: it does not
        show that no two of the costs fit into one window.
        """
        if not self.is_foreseeable:
            before: Counter[str] = Counter()
            for each in ahead:
                before.update(each)
            return self.when_after(before, needs, now_ns)
        clock = TrialClock(now_ns)
        trial = CombinedPermits(
            None if self.grid is None else self.grid.trial(),
            [Bound(each.limit.trial(clock.now), resource=each.resource, text="", kind="") for each in self.bounds],
            rate=self.rate,
            time_ns=clock.now,
        )
        trial.penalty_ns = self.penalty_ns
        for other in ahead:
            when = trial.when(other, clock.now_ns)
            if when is None:
                return None
            clock.now_ns = when
            if trial.grid is not None:
                trial.grid.usable(when)
            trial.take()
            trial.charge(other)
        return trial.when(needs, clock.now_ns)

    @property
    def has_several_rates(self) -> bool:
        """True if more than one rate, window or quota limits the permits."""
        return len(self._main) + (self.grid is not None) > 1

    @property
    def is_bursty(self) -> bool:
        """True if many starts may be admitted at once: windows and buckets keep unused permits."""
        return self.grid is None

    @property
    def is_by_wall_clock(self) -> bool:
        """True if the wall clock decides when the next start is admitted, so that its steps must be noticed."""
        return any(bound.limit.is_by_wall_clock for bound in self.bounds)

    is_by_tickets: bool = False
    decides_each: Final = True  # each start is decided separately: its cost may leave less for the next

    @property
    def is_foreseeable(self) -> bool:
        """True if a copy can forecast: a part in a fleet is not known in advance."""
        return self.grid is None or self.grid.is_foreseeable

    def charge(self, needs: Mapping[str, int]) -> list[Receipt]:
        """Charge a start for its needs beyond the permit that it took; return the receipts for :meth:`settle`."""
        now_ns = self._time_ns()
        receipts: list[Receipt] = [*self.receipts]
        for resource, cost in needs.items():
            if resource != PERMITS:
                receipts += [(resource, limit, limit.take(cost, now_ns)) for limit in self.limits_of(resource) or ()]
                continue
            for _, limit, receipt in self.receipts:
                limit.settle(receipt, cost, now_ns)
            if self.grid is not None:
                receipts.append((PERMITS, _Paid(self.grid), self.grid.charge(cost)))
        self.open_receipt = receipts
        return receipts

    def settle(self, receipts: list[Receipt], costs: Mapping[str, int]) -> None:
        """Correct the cost of a start in each resource."""
        now_ns = self._time_ns()
        for resource, limit, receipt in receipts:
            limit.settle(receipt, costs[resource], now_ns)

    def holding(self, needs: Mapping[str, int], now_ns: int) -> Bound | None:
        """Return the limit that admits a start last; None if all admit it now."""
        latest, found = now_ns, None
        for bound in self.bounds:
            if bound.resource not in needs:
                continue
            when = bound.limit.when(needs[bound.resource], now_ns)
            if when is None:
                return bound
            if when > latest:
                latest, found = when, bound
        return found


def _latest(times: list[int | None]) -> int | None:
    """Return the latest of some times; None if one of them never comes."""
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None
