"""Steps the rate of an executor by how it goes: a shell around ``_core/adaptive.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.adaptive import AdaptiveControl
from ratelimited_executor._kernel.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from ratelimited_executor._core.adaptive import Adaptive
    from ratelimited_executor._runtime.accounts import Accounts
    from ratelimited_executor._runtime.limits import Limits
    from ratelimited_executor._runtime.plan import PolicyPlan

__all__ = ["Adapting"]


class Adapting:
    """The adaptive rate of one executor.

    Args:
        adaptive: how it adapts.
        now: loop time.
        accounts: what has started and ended well.
        limits: tell the plan in force.
        member: its part in a group that shares the rate; None without.
        peers: how many have fixed parts of the rate.
        set_plan: puts another plan in force at a loop time.
    """

    __slots__ = ("_accounts", "_adaptive", "_control", "_limits", "_member", "_peers", "_set_plan")

    def __init__(
        self,
        adaptive: Adaptive,
        now: float,
        *,
        accounts: Accounts,
        limits: Limits,
        member: Any,
        peers: int,
        set_plan: Callable[[PolicyPlan, float], None],
    ) -> None:
        self._adaptive = adaptive
        self._control = AdaptiveControl(adaptive, now)
        self._accounts = accounts
        self._limits = limits
        self._member = member
        self._peers = peers
        self._set_plan = set_plan

    def overloaded(self, now: float) -> None:
        """Note that the other side has had too much, by loop time ``now``."""
        ratio = self._ratio()
        if ratio:
            self._step(ratio, self._control.overloaded(ratio, now), now)

    def rest(self, now: float) -> None:
        """Look at how it goes, whenever all has started that may."""
        ratio = self._ratio()
        if ratio:
            used, done = self._accounts.started_count, self._accounts.counts[TaskState.DONE]
            if self._member is not None:
                used += self._member.refused_count  # others of the group have used these
            after = self._control.step(ratio, now, used_count=used, done_count=done, peers=self._peers)
            self._step(ratio, after, now)

    def _ratio(self) -> Fraction | None:
        """Return permits a second of the rate to step from: that of the whole group, if another has changed it."""
        shared: Fraction | None = None if self._member is None else self._member.rate_of_others()
        return self._limits.plan.rate.per_second if shared is None else shared

    def _step(self, before: Fraction, after: Fraction, now: float) -> None:
        if after != before:
            self._set_plan(self._limits.plan.with_rate(after, self._adaptive), now)
