"""Assembles an executor: its engine and the other parts, each given its dependencies."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimited_executor._core.queue.queue import TaskQueue
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.life.controls import Controls
from ratelimited_executor._runtime.life.engine import Engine
from ratelimited_executor._runtime.limits.adapting import Adapting
from ratelimited_executor._runtime.limits.backlog import Backlog
from ratelimited_executor._runtime.limits.keys import Keys
from ratelimited_executor._runtime.limits.orders import isolated, order_reporter
from ratelimited_executor._runtime.repeat.retrying import Retries
from ratelimited_executor._runtime.time.clock import Moments
from ratelimited_executor.abc import Fleet
from ratelimited_executor.peers.static import StaticPeers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.fleet.budget import TicketBudget
    from ratelimited_executor._core.limits.combined import CombinedPermits
    from ratelimited_executor._core.slots.keeping import SlotKeeper
    from ratelimited_executor._runtime.life.settings import Settings
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.coroutines import Coroutines
    from ratelimited_executor._runtime.task.launch import Threads
    from ratelimited_executor._runtime.task.pending import Pending
    from ratelimited_executor._runtime.task.starting import Starter
    from ratelimited_executor._runtime.time.runner import Runner
    from ratelimited_executor.abc import Peers

__all__ = ["ExecutorParts", "assemble"]


class ExecutorParts(NamedTuple):
    """The parts of a started executor.

    Attributes:
        engine: accepts tasks and runs them.
        controls: the settings in force.
        queue: the waiting tasks.
        accounts: counts of accepted, running and ended tasks.
        limits: the limits that starts draw on.
        pending: removes tasks before their start.
        keys: the limits of keys.
        backlog: the bounds on waiting tasks.
        retries: further attempts of failed tasks.
        starter: calls the functions of tasks.
        coroutines: run the coroutines that calls return.
        threads: the threads of calls with ``in_thread=True``.
        moments: the clock and the timeline.
        runner: the runner of the manager.
    """

    engine: Engine
    controls: Controls
    queue: TaskQueue
    accounts: Accounts
    limits: Limits
    pending: Pending
    keys: Keys
    backlog: Backlog
    retries: Retries
    starter: Starter
    coroutines: Coroutines
    threads: Threads
    moments: Moments
    runner: Runner


def assemble(
    name: str,
    settings: Settings,
    *,
    runner: Runner,
    peers: Peers | Fleet,
    group_slots: Callable[[], SlotKeeper] | None = None,
) -> ExecutorParts:
    """Assemble an executor; if a part fails, nothing of it stays in the group or in the runner.

    Args:
        name: the name of the executor, for logs and errors.
        settings: the initial settings.
        runner: the manager's interval runner, which owns loop, clock and timeline.
        peers: the processes that share the rate.
        group_slots: returns the keeper of the slots that a group shares; None without such slots.
    """

    def warn(kind: str, message: str, *args: Any) -> None:
        runner.warnings.warn(kind, f"%s: {message}", name, *args)

    moments = Moments(runner.clock, runner.timeline)
    controls = Controls(name, settings, timeline=runner.timeline, peers=peers)
    with ExitStack() as undo:
        if controls.member is not None:
            undo.callback(controls.member.close)
        fixed = StaticPeers(1, 0) if isinstance(peers, Fleet) else peers
        budget = None if controls.member is None else controls.member.budget
        combined = _combined(settings.plan, moments, budget)
        report = order_reporter(lambda: queue.order, runner.loop, warn)
        queue = _queue(settings, combined, report, runner=runner, moments=moments)
        engine = Engine(
            name,
            queue,
            settings=settings,
            combined=combined,
            member=controls.member,
            runner=runner,
            moments=moments,
            warn=warn,
        )
        undo.callback(runner.disarm, engine)
        parts = _with_the_rest(
            engine,
            settings,
            controls,
            peers=fixed,
            group_slots=group_slots,
            runner=runner,
            moments=moments,
            warn=warn,
        )
        undo.pop_all()
    return parts


def _with_the_rest(
    engine: Engine,
    settings: Settings,
    controls: Controls,
    *,
    peers: Peers,
    group_slots: Callable[[], SlotKeeper] | None,
    runner: Runner,
    moments: Moments,
    warn: Callable[..., None],
) -> ExecutorParts:
    """Add to an engine the parts that few tasks need."""
    queue, accounts, limits, member = engine.queue, engine.accounts, engine.limits, controls.member
    keys = Keys(
        settings.key_limits,
        queue=queue,
        moments=moments,
        limits_of_all=limits,
        accounts=accounts,
        warn=warn,
        wake=engine.wake,
        group_limit_of=_group_limit_of(member),
        group_slots=group_slots,
        loop=engine.loop,
    )
    backlog = Backlog(
        accounts.name,
        max_pending=settings.max_pending,
        key_limits=settings.key_limits,
        when_full=settings.when_full,
        queue=queue,
        accounts=accounts,
        drop=engine.pending.drop,
    )
    retries = Retries(
        settings.retry,
        engine=engine,
        moments=moments,
        numbers=runner.hooks.random,
        penalty_max=settings.penalty_max,
        overloaded=controls.overloaded,
        on_key_end=keys.ended,
        warn=warn,
    )
    accounts.try_again = retries.again
    engine.adapting = _adapting(settings, controls, engine, moments=moments, peers=peers)
    controls.connect(engine, keys=keys, adapting=engine.adapting)
    if settings.key_limits.is_gated:
        controls.set_key_limits(settings.key_limits)
    return ExecutorParts(
        engine=engine,
        controls=controls,
        queue=queue,
        accounts=accounts,
        limits=limits,
        pending=engine.pending,
        keys=keys,
        backlog=backlog,
        retries=retries,
        starter=engine.starter,
        coroutines=engine.coroutines,
        threads=settings.threads,
        moments=moments,
        runner=runner,
    )


def _adapting(
    settings: Settings, controls: Controls, engine: Engine, *, moments: Moments, peers: Peers
) -> Adapting | None:
    """Create the control of an adaptive rate; None for a fixed rate."""
    if settings.adaptive is None:
        return None
    return Adapting(
        settings.adaptive,
        moments.monotonic(),
        accounts=engine.accounts,
        limits=engine.limits,
        member=controls.member,
        peers=peers.count,
        set_plan=controls.set_plan,
    )


def _combined(plan: PolicyPlan, moments: Moments, budget: TicketBudget | None) -> CombinedPermits | None:
    """Create the limits of a plan that needs more than one grid of permits; tickets if a group shares it."""
    if budget is not None:
        from ratelimited_executor._runtime.limits.group_plan import group_permits  # noqa: PLC0415  # most programs share no limits

        return group_permits(plan, budget, time_ns=moments.ns)
    if plan.is_plain:
        return None
    return plan.permits(None, (), now_ns=moments.ns(), time_ns=moments.ns, wall_ns=moments.wall_ns)


def _queue(
    settings: Settings,
    permits: Any,
    report: Callable[[BaseException], None],
    *,
    runner: Runner,
    moments: Moments,
) -> TaskQueue:
    """Create the queue.

    Args:
        settings: the initial settings.
        permits: the limits that admit starts; None for the grid of the plan.
        report: called with the exception that an order raises.
        runner: the runner of the manager.
        moments: the clock and the timeline.
    """
    plan = settings.plan
    queue = TaskQueue(
        runner.timeline,
        now=moments.monotonic(),
        permits=permits or plan.grid(moments.ns()),
        slack=plan.rule.usable_seconds,
        pacing=settings.pacing,
        order=isolated(settings.order),
        early=settings.early,
        phase=plan.phase,
        report_order_error=report,
        bucket_ns_max=NS if settings.early else runner.hooks.bucket_ns_max,  # early starts stay within their bucket
    )
    queue.set_crowded(is_crowded=settings.max_concurrency is not None)
    return queue


def _group_limit_of(member: Any) -> Any:
    """Return what creates the limit of a key that a group shares; None without a group."""
    if member is None:
        return None
    from ratelimited_executor._runtime.limits.group_plan import group_limit_of_key  # noqa: PLC0415  # most programs share no limits

    return member.limit_of_key(group_limit_of_key)
