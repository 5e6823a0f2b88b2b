"""What an executor tells about itself: counts, backlog, and what holds a task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.queue import Pacing
from ratelimited_executor._core.states import TaskState

if TYPE_CHECKING:
    from ratelimited_executor._core.fleet.insight import FleetStatistics
    from ratelimited_executor._core.rates import Rate
    from ratelimited_executor._runtime.engine import Engine
    from ratelimited_executor._runtime.handles import TaskHandle

__all__ = ["Explanation", "Hold", "Statistics", "backlog_seconds", "explain", "statistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The counts of an executor at one instant; accepted = waiting + running + the five final ones.

    Attributes:
        name: of the executor.
        rate: the rate in force, pauses left out.
        is_paused: whether it is paused.
        accepted: tasks taken in so far.
        waiting: tasks that have not started.
        overdue: those of them that are due, or will be within the running interval.
        running: tasks that have started and not ended, held permits included.
        started: tasks that have started so far.
        done: tasks that returned.
        failed: tasks that raised.
        cancelled: tasks that were cancelled, before their start or while they ran.
        expired: tasks that were not started before their deadline.
        dropped: tasks given up for lack of room.
        peers: how many processes share the rate.
        fleet: its part in a group that shares the rate by grants; None without such peers.
    """

    name: str
    rate: Rate
    is_paused: bool
    accepted: int
    waiting: int
    overdue: int
    running: int
    started: int
    done: int
    failed: int
    cancelled: int
    expired: int
    dropped: int
    peers: int
    fleet: FleetStatistics | None = None


class Hold(Enum):
    """What keeps a task from starting."""

    NOTHING = "nothing"
    """It is about to start, runs, or has ended."""

    DUE = "due"
    """Its due time has not come."""

    SPREAD = "spread"
    """It is due, and starts at a later instant of its interval for the sake of an even load."""

    PERMIT = "permit"
    """It is first in its order, and the next permit has not come up."""

    ORDER = "order"
    """More important tasks take the next permits."""

    CONCURRENCY = "concurrency"
    """All places of ``max_concurrency`` are taken."""

    PAUSE = "pause"
    """The executor is paused, or its rate is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a task has not started, and when it will.

    Attributes:
        state: where the task is in its life.
        hold: what keeps it from starting.
        position: how many tasks start before it, as far as is known now; None unless it is due.
        expected_start: epoch seconds, if nothing more important comes; None if that cannot be told.
    """

    state: TaskState
    hold: Hold
    position: int | None
    expected_start: float | None

    def __str__(self) -> str:
        ahead = "" if self.position is None else f", {self.position} ahead"
        when = "" if self.expected_start is None else f", expected at {self.expected_start:.3f}"
        return f"{self.state.value}: held by {self.hold.value}{ahead}{when}"


def statistics(engine: Engine) -> Statistics:
    """Count the tasks of an executor."""
    engine.burst.settle()
    return Statistics(
        name=engine.name,
        rate=engine.rate,
        is_paused=engine.is_paused,
        accepted=engine.accepted_count,
        waiting=engine.waiting_count(),
        overdue=engine.queue.ready_count(),
        running=engine.running_count(),
        started=engine.started_count,
        done=engine.count(TaskState.DONE),
        failed=engine.count(TaskState.FAILED),
        cancelled=engine.count(TaskState.CANCELLED),
        expired=engine.count(TaskState.EXPIRED),
        dropped=engine.count(TaskState.DROPPED),
        peers=engine.queue.grid.peers,
        fleet=None if engine.member is None else engine.member.statistics(engine.monotonic()),
    )


def backlog_seconds(engine: Engine) -> float:
    """Return the seconds of work in tasks that are due or will be within the running interval.

    0 while they fit the permits as they come; infinity if there are some and the rate is 0.
    """
    engine.burst.settle()
    count = engine.queue.ready_count()
    if count == 0 or engine.queue.grid.rate.is_unlimited:
        return 0.0
    now = engine.monotonic()
    when = engine.queue.grid.time_after(engine.timeline.to_ns(now), count)
    return math.inf if when is None else max(0.0, engine.timeline.to_loop(when) - now)


def explain(engine: Engine, handle: TaskHandle[Any]) -> Explanation:
    """Tell what holds a task, how many go before it, and when it is expected to start: O(waiting tasks that are due)."""
    state = handle.state
    if state is not TaskState.WAITING:
        return Explanation(state=state, hold=Hold.NOTHING, position=None, expected_start=handle.started_at)
    engine.burst.detach()  # it goes by permits that were counted before, which pull() counts anew
    now = engine.now()
    queue = engine.queue
    while not queue.pull(now):
        pass
    is_halted = queue.grid.is_stopped or engine.max_concurrency == 0
    due = _due(engine, handle, now)
    if due > now:
        expected = None if is_halted else engine.timeline.to_epoch(due)
        return Explanation(state=state, hold=Hold.DUE, position=None, expected_start=expected)
    position = queue.position_of(handle)
    if queue.grid.is_stopped:
        return Explanation(state=state, hold=Hold.PAUSE, position=position, expected_start=None)
    if not engine.may_start():
        return Explanation(state=state, hold=Hold.CONCURRENCY, position=position, expected_start=None)
    permit_ns = queue.grid.time_after(engine.timeline.to_ns(now), position + 1)
    permit = math.inf if permit_ns is None else max(now, engine.timeline.to_loop(permit_ns))
    planned = _planned(engine, handle, now, position)
    if planned > permit:
        hold, expected = Hold.SPREAD, planned
    else:
        hold, expected = (Hold.ORDER if position else Hold.PERMIT), permit
        if expected <= now:
            hold = Hold.NOTHING
    return Explanation(state=state, hold=hold, position=position, expected_start=engine.timeline.to_epoch(expected))


def _due(engine: Engine, handle: TaskHandle[Any], now: float) -> float:
    """Return the loop time at which a task is due; for one that follows the wall clock, if that does not step again."""
    queue = engine.queue
    if handle._place.calendar is not queue.wall:
        return handle._due
    return max(queue.interval_end, now + handle._due - engine.runner.clock.wall())


def _planned(engine: Engine, handle: TaskHandle[Any], now: float, position: int) -> float:
    """Return the loop time of a task's planned instant; now if it is not spread."""
    queue = engine.queue
    if not queue.is_spread(handle) or queue.pacing is not Pacing.SPREAD:
        return now
    gap = max(0.0, queue.plan.end - queue.plan.next_at) / (queue.spread.opened_count or 1)
    return max(now, queue.plan.next_at + position * gap)
