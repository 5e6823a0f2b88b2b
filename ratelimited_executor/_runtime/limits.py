"""The limits on an executor's starts over time: its plan of rates and resources, costs, and penalties.

An executor with one paced rate has a grid of permits and nothing else. The first cost, penalty or second rate puts a
combination in its place (``_core/limits/combined.py``), which continues where the grid is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.records import PERMITS
from ratelimited_executor._runtime.group_plan import group_permits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratelimited_executor._core.fleet.budget import TicketBudget
    from ratelimited_executor._core.limits.limit import Ticket
    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._core.records import Charge, TaskRecord
    from ratelimited_executor._runtime.accounts import Accounts
    from ratelimited_executor._runtime.clock import Moments
    from ratelimited_executor._runtime.plan import PolicyPlan

__all__ = ["Limits"]


class Limits:
    """The limits in time of one executor.

    Args:
        plan: policy, rates and resources.
        combined: what the queue asks, if the plan is more than one grid of permits.
        queue: which asks what admits starts.
        moments: the time.
        accounts: let go of a stretch that is being started, as what was decided no longer holds.
        wake: has the executor look for something to start, as it may cost less now.
        budget: the tickets by which starts are admitted, where a group shares the limits; None if these are our own.

    Attributes:
        plan: the one in force.
        combined: the combination that the queue asks; None while a grid of permits is all there is.
    """

    __slots__ = ("_accounts", "_budget", "_is_alone", "_moments", "_queue", "_wake", "combined", "plan")

    def __init__(
        self,
        plan: PolicyPlan,
        combined: CombinedPermits | None,
        *,
        queue: TaskQueue,
        moments: Moments,
        accounts: Accounts,
        wake: Callable[[], None],
        budget: TicketBudget | None = None,
    ) -> None:
        self.plan = plan
        self.combined = combined
        self._queue = queue
        self._moments = moments
        self._accounts = accounts
        self._wake = wake
        self._budget = budget
        self._is_alone = False

    def put(self, plan: PolicyPlan, now: float) -> None:
        """Put other rates in force at loop time ``now``; what was started still counts."""
        self.plan = plan
        if plan.is_plain and self.combined is None:
            return
        self._accounts.detach()
        old = self._combination()
        if self._budget is not None and not self._is_alone:
            self.combined = group_permits(plan, self._budget, time_ns=self._moments.ns)
            self.combined.penalty_ns = old.penalty_ns
            self._queue.set_permits(self.combined)
            return
        self.combined = plan.permits(
            old.grid,
            old.bounds,
            now_ns=self._moments.timeline.to_ns(now),
            time_ns=self._moments.ns,
            wall_ns=self._moments.wall_ns,
        )
        self.combined.penalty_ns = old.penalty_ns
        self._queue.set_permits(self.combined)

    def go_alone(self, count: int, used: Mapping[str, tuple[int, int]]) -> None:
        """Go by a part of the limits, one in ``count``; of each resource that part counts as used that is known to be.

        What others have used of a window that is not over, nobody can say.
        """
        self._is_alone = True
        now_ns, old = self._moments.ns(), self._combination()
        part = self.plan.part_of(count)
        self.combined = part.permits(None, (), now_ns=now_ns, time_ns=self._moments.ns, wall_ns=self._moments.wall_ns)
        self.combined.penalty_ns = old.penalty_ns
        for bound in self.combined.bounds:
            amount, most = used.get(bound.resource, (0, 1))
            if bound.limit.cost_max and amount:
                bound.limit.take(-(-bound.limit.cost_max * amount // most), now_ns)
        self._queue.set_permits(self.combined)

    def go_together(self) -> None:
        """Go by tickets again."""
        self._is_alone = False
        self.put(self.plan, self._moments.monotonic())

    def meter(self) -> None:
        """Ask what each start costs, from now on."""
        if self._queue.costs is None:
            self._accounts.detach()
            self._queue.set_costs(self._combine())

    def penalize(self, until_ns: int) -> None:
        """Start nothing before a time."""
        permits = self._combine()
        permits.penalty_ns = max(permits.penalty_ns, until_ns)
        self._queue.admission.forget()

    def settle(self, record: TaskRecord, charge: Charge, actual: Mapping[str, int]) -> None:
        """Correct what a task has taken; before its start, what it will take."""
        queue = self._queue
        self._accounts.detach()
        is_less = charge.tickets is None
        if charge.tickets is None:
            charge.needs = charge.reserved = actual if actual[PERMITS] else {**actual, PERMITS: 1}
        else:
            change = actual[PERMITS] - charge.needs[PERMITS]
            charge.needs = actual
            if queue.costs is not None:
                queue.costs.settle(charge.tickets, actual)
            queue.settle_share(charge.share, change)
            is_less = change < 0
        if is_less and record._key is not None:
            queue.look_again(record._key)
        queue.admission.forget()
        self._wake()

    def take_effect(self, tickets: list[Ticket]) -> None:
        """Record that a start takes effect only now, which matters to limits that count what the other side sees."""
        now_ns = self._moments.ns()
        for _, taken, ticket in tickets:
            taken.take_effect(ticket, now_ns)

    def _combine(self) -> CombinedPermits:
        """Return what admits starts, made able to say no for a time."""
        if self.combined is None:
            self.combined = self._combination()
            self._queue.set_permits(self.combined)
        return self.combined

    def _combination(self) -> CombinedPermits:
        """Return the combination, or one of the grid alone that is not in force yet."""
        if self.combined is not None:
            return self.combined
        grid: Any = self._queue.permits
        return CombinedPermits(grid, (), rate=grid.rate, time_ns=self._moments.ns)
