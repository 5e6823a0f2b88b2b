"""The settings of an executor in force, and their changes.

A change takes effect at once, and never in the middle of a decision: the current stretch of starts is ended
(``Accounts.detach``), and the queue decides again. A change made during a decision takes effect at the time of that
decision.

A fleet, which shares rates among processes, knows an executor only by its ``Controls``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.keys.keys import text_of_key
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.limits.orders import isolated
from ratelimited_executor.abc import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.fleet.demand import Worker
    from ratelimited_executor._core.fleet.ticket_calls import PlanLimit
    from ratelimited_executor._core.order.fair import Fair
    from ratelimited_executor._core.order.ordering import Order
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.pacing import Pacing
    from ratelimited_executor._kernel.timeline import Timeline
    from ratelimited_executor._runtime.life.settings import Settings
    from ratelimited_executor._runtime.limits.adapting import Adapting
    from ratelimited_executor._runtime.limits.keys import KeyLimits, Keys
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor.abc import Peers

__all__ = ["Controls"]

_PAUSE: Final = Rate(0)
_SHARED: Final = Rate(1)  # replaces a shared rate of 0, which the authority enforces, until a peer sets another


class Controls:
    """The settings of one executor, from its start.

    The constructor joins the group of a fleet, because the queue needs the permits of the group;
    :meth:`connect` adds the other parts.

    Args:
        name: the name of the executor.
        settings: the initial settings.
        timeline: the timeline of the manager.
        peers: the processes that share the rate.

    Attributes:
        name: the name of the executor.
        rate: the rate in force, ignoring pauses.
        is_paused: True while the executor is paused.
        is_adaptive: True if the rate adapts to what the remote service accepts.
        timeline: the timeline of the manager.
        member: the executor's membership in a group; None without a fleet.
        queue: the queue of its tasks.
        accounts: counts of running tasks.
        adapting: adapts the rate; None for a fixed rate.
    """

    queue: TaskQueue
    accounts: Accounts
    adapting: Adapting | None
    _engine: Intake
    _keys: Keys
    _limits: Limits

    def __init__(self, name: str, settings: Settings, *, timeline: Timeline, peers: Peers | Fleet) -> None:
        self.name = name
        self.rate = settings.plan.rate
        self.is_paused = False
        self.is_adaptive = settings.adaptive is not None
        self._first_plan = settings.plan
        self.timeline = timeline
        self._penalty_max = settings.penalty_max
        worker: Worker = self  # the interface for the fleet
        self.member: Any = peers.join(worker) if isinstance(peers, Fleet) else None

    def connect(self, engine: Intake, *, keys: Keys, adapting: Adapting | None) -> None:
        """Set the engine and the parts to which changes apply."""
        self._engine = engine
        self._keys = keys
        self._limits = engine.limits
        self.queue = engine.queue
        self.accounts = engine.accounts
        self.adapting = adapting

    # For a fleet.

    @property
    def armed(self) -> float:
        """Loop time of the executor's next run."""
        return self._engine.armed

    def wake(self) -> None:
        """Run the queue in this loop iteration."""
        self._engine.wake()

    def monotonic(self) -> float:
        """Return the loop time."""
        return self._engine.monotonic()

    def group_limits(
        self, valid_us: int, late_us: int, *, is_exact: bool
    ) -> tuple[str, Callable[[int], tuple[PlanLimit, ...]]]:
        """Return a name of the limits, and a function that returns them for the authority's time in microseconds."""
        from ratelimited_executor._runtime.limits.group_plan import group_limits  # noqa: PLC0415  # most programs share no limits

        plan = self._limits.plan if hasattr(self, "_limits") else self._first_plan
        return group_limits(plan, valid_us=valid_us, late_us=late_us, is_exact=is_exact)

    def penalized(self, until: float) -> None:
        """Record that the group admits nothing before a loop time."""
        self._limits.penalize(self.timeline.to_ns(until))

    def go_alone(self, count: int, used: dict[str, tuple[int, int]]) -> None:
        """Apply ``1 / count`` of the limits; ``used`` holds the used amount and the maximum by resource."""
        self.accounts.detach()
        self._limits.go_alone(count, used)
        self._apply_rate(self.decided_at())

    def go_together(self) -> None:
        """Apply the limits of the group again."""
        self.accounts.detach()
        self._limits.go_together()
        self._apply_rate(self.decided_at())

    # Settings.

    def set_order(self, order: Order | Fair) -> None:
        """Put an order in force."""
        self.accounts.detach()
        self.queue.set_order(isolated(order))
        self.wake()

    def set_pacing(self, pacing: Pacing) -> None:
        """Put a pacing in force."""
        self.queue.set_pacing(pacing)
        self.wake()

    def set_early(self, *, is_early: bool) -> None:
        """Allow, or stop allowing, starts anywhere in the interval of the due time."""
        self.queue.early = is_early
        self.wake()

    def set_plan(self, plan: PolicyPlan, now: float | None = None, *, is_told: bool = False) -> None:
        """Put rates in force, at once unless paused or shared; at loop time ``now`` if it is given.

        With ``is_told``, the rates are in force in the group already, and apply to this process alone.
        """
        if now is None:
            now = self.decided_at()
        self.rate = plan.rate
        self._limits.put(plan, now)
        if self.queue.gate is not None:
            self._keys.refresh(self._keys.limits, now)  # the gate depends on the distance of permits
        if self.member is not None and is_told:
            self.member.follow(plan)
        elif self.member is not None:
            self.member.set_plan(plan)
        self._apply_rate(now)

    def set_key_limits(self, limits: KeyLimits) -> None:
        """Put limits of keys in force; the same limits are read again."""
        self.accounts.detach()
        self._keys.refresh(limits, self.decided_at())
        self.wake()

    @property
    def max_concurrency(self) -> int | None:
        """The number of tasks that may run at once; None for no limit. A change applies to later starts."""
        return self.accounts.max_concurrency

    @max_concurrency.setter
    def max_concurrency(self, count: int | None) -> None:
        if self.queue.is_halted:
            return
        self.accounts.max_concurrency = count
        self.queue.set_crowded(is_crowded=count is not None)
        self.wake()
        self.accounts.notify_waiters()

    def set_paused(self, *, is_paused: bool) -> None:
        """Pause or resume starts."""
        self.is_paused = is_paused
        self._apply_rate(self.decided_at())

    def decided_at(self) -> float:
        """Return the loop time at which a change takes effect: that of the current decision, or now."""
        deciding_at = self.queue.deciding_at
        return self._engine.monotonic() if deciding_at is None else deciding_at

    def _apply_rate(self, now: float) -> None:
        self.accounts.detach()
        rate = self.rate
        if self.is_paused:
            rate = _PAUSE
        elif self.member is not None and rate.is_zero:
            rate = _SHARED
        self.queue.set_rate(rate, now)
        self.wake()
        self.accounts.notify_waiters()

    # Stopping for a time, or permanently.

    @property
    def is_stopped(self) -> bool:
        """True while nothing may start, even if due."""
        return self.is_paused or self.accounts.max_concurrency == 0 or self.queue.permits.is_stopped

    def penalize(self, seconds: float, key: Any) -> None:
        """Start nothing for ``seconds``; no task of one key, if ``key`` is not None."""
        self.accounts.detach()
        until_ns = self.timeline.to_ns(self._engine.monotonic()) + round(min(seconds, self._penalty_max) * NS)
        if key is None:
            self._limits.penalize(until_ns)
            if self.member is not None:
                self.member.penalize(self.timeline.to_loop(until_ns))
        else:
            self._keys.penalize(key, until_ns)
            if self.member is not None:
                self.member.penalize(self.timeline.to_loop(until_ns), text_of_key(key))
        self.overloaded()
        self.wake()

    def overloaded(self) -> None:
        """Record that the remote service is overloaded."""
        if self.adapting is not None:
            self.adapting.overloaded(self.decided_at())

    def halt(self) -> None:
        """Start nothing more, permanently; even when called by a task within a stretch of starts."""
        self.accounts.detach()
        self.accounts.max_concurrency = 0
        self.queue.is_halted = True
