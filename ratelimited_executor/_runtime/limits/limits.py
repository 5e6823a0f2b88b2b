"""The limits on an executor's starts over time: its plan of rates and resources, costs, and penalties.

An executor with one paced rate has a grid of permits and nothing else. The first cost, penalty or second rate replaces
it with a combination (``_core/limits/combined.py``), which continues from the state of the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.queue.records import PERMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratelimited_executor._core.fleet.budget import TicketBudget
    from ratelimited_executor._core.limits.limit import Receipt
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._core.queue.records import Charge, TaskRecord
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.time.clock import Moments

__all__ = ["Limits"]


class Limits:
    """The limits on one executor's starts over time.

    Args:
        plan: policy, rates and resources.
        combined: the combination that the queue asks, if the plan is more than one grid of permits.
        queue: the queue, which asks for permits.
        moments: the source of time.
        accounts: end a running stretch, whose decisions no longer hold.
        wake: makes the executor look for a task to start, because one may cost less now.
        budget: the tickets that admit starts, where a group shares the limits; None without a group.

    Attributes:
        plan: the plan in force.
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
        """Put other rates in force at loop time ``now``; earlier starts still count."""
        self.plan = plan
        if plan.is_plain and self.combined is None:
            return
        self._accounts.detach()
        old = self._combination()
        if self._budget is not None and not self._is_alone:
            from ratelimited_executor._runtime.limits.group_plan import group_permits  # noqa: PLC0415  # most share no limits

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
        """Use a part of the limits, one in ``count``, less the use of each resource that is known, in proportion.

        The use by others of a window that is not over is unknown.
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
        """Use the group's tickets again."""
        self._is_alone = False
        self.put(self.plan, self._moments.monotonic())

    def enable_costs(self) -> None:
        """Charge the cost of each start, from now on."""
        if self._queue.costs is None:
            self._accounts.detach()
            self._queue.set_costs(self._combine())

    def penalize(self, until_ns: int) -> None:
        """Start nothing before a time."""
        permits = self._combine()
        permits.penalty_ns = max(permits.penalty_ns, until_ns)
        self._queue.admission.forget()

    def settle(self, record: TaskRecord, charge: Charge, actual: Mapping[str, int]) -> None:
        """Correct the amounts that a task has used; before its start, those that it will use."""
        queue = self._queue
        self._accounts.detach()
        is_less = charge.receipts is None
        if charge.receipts is None:
            charge.needs = charge.reserved = actual if actual[PERMITS] else {**actual, PERMITS: 1}
        else:
            change = actual[PERMITS] - charge.needs[PERMITS]
            queue.used.update(actual)
            queue.used.subtract(charge.needs)
            charge.needs = actual
            if queue.costs is not None:
                queue.costs.settle(charge.receipts, actual)
            queue.settle_share(charge.share, change)
            is_less = change < 0
        if is_less and record._key is not None:
            queue.look_again(record._key)
        queue.admission.forget()
        self._wake()

    def take_effect(self, receipts: list[Receipt]) -> None:
        """Record that a start takes effect only now, for limits that count starts as the remote service sees them."""
        now_ns = self._moments.ns()
        for _, taken, receipt in receipts:
            taken.take_effect(receipt, now_ns)

    def _combine(self) -> CombinedPermits:
        """Return the combination in force, which can pause starts for a time; put one in force if needed."""
        if self.combined is None:
            self.combined = self._combination()
            self._queue.set_permits(self.combined)
        return self.combined

    def _combination(self) -> CombinedPermits:
        """Return the combination, or a new one of the grid alone that is not in force yet."""
        if self.combined is not None:
            return self.combined
        grid: Any = self._queue.permits
        return CombinedPermits(grid, (), rate=grid.rate, time_ns=self._moments.ns)
