"""Adapts the rate of an executor to the outcomes of its tasks: a shell around ``_core/permits/adaptive.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._core.permits.adaptive import AdaptiveControl
from ratelimited_executor._kernel.states import TaskState

if TYPE_CHECKING:
    from fractions import Fraction

    from ratelimited_executor._core.permits.adaptive import Adaptive
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.task.accounts import Accounts

__all__ = ["Adapting"]


class SetPlan(Protocol):
    """Puts a plan in force."""

    def __call__(self, plan: PolicyPlan, now: float, *, is_told: bool = False) -> None:
        """Apply the plan from loop time ``now``; with ``is_told`` in this process alone: the group has it already."""
        ...


class Adapting:
    """The adaptive rate of one executor.

    Args:
        adaptive: the adaptation settings.
        now: loop time.
        accounts: counts of starts and of successful ends.
        limits: the limits, which know the plan in force.
        member: the executor's membership in a group that shares the rate; None without one.
        peers: the number of processes with fixed shares of the rate.
        set_plan: puts another plan in force.
    """

    __slots__ = (
        "_accounts", "_adaptive", "_control", "_has_joined", "_is_overloaded", "_limits", "_member", "_peers", "_set_plan",
    )  # fmt: skip

    def __init__(
        self,
        adaptive: Adaptive,
        now: float,
        *,
        accounts: Accounts,
        limits: Limits,
        member: Any,
        peers: int,
        set_plan: SetPlan,
    ) -> None:
        self._adaptive = adaptive
        self._control = AdaptiveControl(adaptive, now)
        self._accounts = accounts
        self._limits = limits
        self._member = member
        self._peers = peers
        self._set_plan = set_plan
        self._has_joined = False  # True once the group's earlier rate is known
        self._is_overloaded = False  # True after an overload, until the rate is known and has been lowered

    def overloaded(self, now: float) -> None:
        """Record at loop time ``now`` that the remote service is overloaded."""
        self._is_overloaded = True
        if self._member is not None:
            self._member.watch(now)
        self._look(now)

    def rest(self, now: float) -> None:
        """Take a step if one is due; called whenever every task that may start has started."""
        rate = self._look(now)
        if rate is not None:
            used, done = self._counts()
            self._step(rate, self._control.step(rate, now, used_count=used, done_count=done, peers=self._peers), now)

    def _look(self, now: float) -> Fraction | None:
        """Adopt the group's rate, lower it after an overload, and return it; None if it is unknown."""
        if not self._limits.plan.rate.per_second:  # a pause, or no limit
            self._is_overloaded = False
            return None
        member = self._member
        if member is not None and not member.is_left_alone:
            if not member.is_told(now):
                return None
            self._control.period_least = member.news_seconds()
            told = member.rate_of_others()
            if told is not None:
                self._follow(told, now)
            self._has_joined = True
        rate = self._limits.plan.rate.per_second
        assert rate is not None
        if self._is_overloaded:
            self._is_overloaded = False
            after = self._control.overloaded(rate, now)
            self._step(rate, after, now)
            rate = after
        return rate

    def _follow(self, told: Fraction, now: float) -> None:
        """Follow a rate that another process of the group has put in force, or overrule it."""
        plan, control = self._limits.plan, self._control
        rate = plan.rate.per_second
        assert rate is not None
        if not told:
            return  # a pause is not a step
        is_mine = self._member.is_first and not self._has_joined  # the peers that set this rate are gone
        if is_mine or control.is_overruled(rate, told, now):
            self._set_plan(plan, now)
            return
        used, done = self._counts()
        bounded = control.bounded(told)
        control.follow(rate, bounded, now, is_news=self._member.is_news, used_count=used, done_count=done)
        if bounded < told:
            self._step(rate, bounded, now)
        elif bounded != rate:
            self._set_plan(plan.with_rate(bounded, self._adaptive), now, is_told=True)

    def _counts(self) -> tuple[int, int]:
        """Return the number of permits known to be used, and of tasks that returned."""
        used = self._accounts.started_count
        if self._member is not None:
            used += self._member.refused_count  # others of the group have used these
        return used, self._accounts.counts[TaskState.DONE]

    def _step(self, before: Fraction, after: Fraction, now: float) -> None:
        if after != before:
            is_local = self._member is not None and self._member.is_left_alone  # in an outage: not for the group
            self._set_plan(self._limits.plan.with_rate(after, self._adaptive), now, is_told=is_local)
