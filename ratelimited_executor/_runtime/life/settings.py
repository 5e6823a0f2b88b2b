"""The checked settings of an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ratelimited_executor._core.order.fair import Fair
    from ratelimited_executor._core.order.ordering import Order
    from ratelimited_executor._core.permits.adaptive import Adaptive
    from ratelimited_executor._kernel.pacing import Pacing
    from ratelimited_executor._runtime.limits.keys import KeyLimits
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.limits.policy import WhenFull
    from ratelimited_executor._runtime.task.launch import Threads

__all__ = ["Settings"]


class Settings(NamedTuple):
    """The initial settings of an executor; most may be changed while it runs.

    Attributes:
        plan: policy, rates and resources.
        pacing: how the tasks of an interval are paced.
        order: the key function of importance, or a ``Fair``.
        early: True if a task may start anywhere in the interval of its due time.
        max_concurrency: how many tasks may run at once; None for no limit.
        threads: the thread pool for calls in threads.
        key_limits: the limits of keys.
        max_pending: how many tasks may wait; None for no limit.
        when_full: what to do when there is no room.
        retry: the policy by which tasks are retried; None if they never are.
        penalty_max: the longest pause, in seconds, that the remote service may ask for.
        adaptive: how the rate adapts; None if it does not.
    """

    plan: PolicyPlan
    pacing: Pacing
    order: Order | Fair
    early: bool
    max_concurrency: int | None
    threads: Threads
    key_limits: KeyLimits
    max_pending: int | None
    when_full: WhenFull
    retry: Any
    penalty_max: float
    adaptive: Adaptive | None
