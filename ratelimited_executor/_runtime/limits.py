"""What limits the starts of an executor in time: its plan of rates and resources, costs, and penalties.

An executor with one paced rate has a grid of permits and nothing else. The first cost, penalty or second rate puts a
combination in its place (``_core/limits/combined.py``), which goes on where the grid is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.records import PERMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._core.records import Charge, TaskRecord
    from ratelimited_executor._runtime.clock import Moments
    from ratelimited_executor._runtime.policy import PolicyPlan

__all__ = ["Limits"]


class Limits:
    """The limits in time of one executor.

    Args:
        plan: policy, rates and resources.
        queue: which asks what admits starts.
        moments: the time.
        detach: ends a stretch that is being started, as what was decided no longer holds.
    """

    __slots__ = ("_detach", "_moments", "_queue", "plan")

    def __init__(self, plan: PolicyPlan, *, queue: TaskQueue, moments: Moments, detach: Callable[[], None]) -> None:
        self.plan = plan
        self._queue = queue
        self._moments = moments
        self._detach = detach

    def put(self, plan: PolicyPlan, now: float) -> None:
        """Put other rates in force at loop time ``now``; what was started still counts."""
        self.plan = plan
        if not plan.is_plain or isinstance(self._queue.permits, CombinedPermits):
            moments = self._moments
            self._detach()
            self._queue.set_permits(
                plan.permits(
                    self._queue.permits,
                    now_ns=moments.timeline.to_ns(now),
                    time_ns=moments.ns,
                    wall_ns=moments.wall_ns,
                )
            )

    def meter(self) -> None:
        """Ask what each start costs, from now on."""
        if self._queue.costs is None:
            self._detach()
            self._queue.set_costs(self._combined())

    def penalize(self, until_ns: int) -> None:
        """Start nothing before a time."""
        permits = self._combined()
        permits.penalty_ns = max(permits.penalty_ns, until_ns)
        self._queue.admission.forget()

    def settle(self, record: TaskRecord, charge: Charge, actual: Mapping[str, int]) -> None:
        """Correct what a task has taken; before its start, what it will take."""
        queue = self._queue
        self._detach()
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

    def take_effect(self, tickets: list[tuple[str, Any, Any]]) -> None:
        """Note that a start takes effect only now, which matters to limits that count what the other side sees."""
        now_ns = self._moments.ns()
        for _, limit, ticket in tickets:
            if isinstance(limit, (WindowLimit, QuotaLimit)):
                limit.take_effect(ticket, now_ns)

    def _combined(self) -> CombinedPermits:
        """Return what admits starts, made able to say no for a time."""
        permits: Any = self._queue.permits
        if isinstance(permits, CombinedPermits):
            return permits
        combined = CombinedPermits(permits, (), rate=permits.rate, time_ns=self._moments.ns)
        self._queue.set_permits(combined)
        return combined
