"""When the occurrences of a repeating task are due, as functions from the last run to the next due time.

Each returns ``(due, wall_due)``: loop time, and epoch seconds if the task follows the wall clock; None at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ratelimited_executor._core.repeating import LastRun, MissedTick, newest_tick, next_tick

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NextDue", "cron", "fixed_delay", "fixed_rate"]

NextDue: TypeAlias = "Callable[[LastRun | None, float], tuple[float, float | None] | None]"


def fixed_rate(first: float, period: float, missed: MissedTick) -> NextDue:
    """Keep the phase of ``first``, in loop time; ``missed`` decides about missed ticks."""
    last = -1

    def next_due(run: LastRun | None, now: float) -> tuple[float, float | None]:
        nonlocal last
        if run is None:
            last, due = 0, first
        else:
            if missed is MissedTick.COALESCE:  # a run that started late stands for all that were due by then
                last = max(last, newest_tick(first, period, run.started))
            last, due = next_tick(first, period, last, now, missed)
        return due, None

    return next_due


def fixed_delay(first: float, delay: float) -> NextDue:
    """Count from the end of the last run."""

    def next_due(run: LastRun | None, now: float) -> tuple[float, float | None]:  # noqa: ARG001  # a common signature
        return (first if run is None else run.ended + delay), None

    return next_due


def cron(next_after: Callable[[float], float | None], missed: MissedTick, wall: Callable[[], float]) -> NextDue:
    """Follow the occurrences of a cron expression, by the wall clock.

    Args:
        next_after: returns the first occurrence after an instant, both in epoch seconds; None if there is none.
        missed: what happens to times that pass during a run.
        wall: reads the wall clock.
    """
    last = wall()

    def next_due(run: LastRun | None, now: float) -> tuple[float, float | None] | None:
        nonlocal last
        wall_now = wall()
        if run is not None and missed is MissedTick.COALESCE:  # as with a fixed rate
            last = max(last, wall_now - (now - run.started))
        due = next_after(last)
        if run is not None and missed is not MissedTick.BURST and due is not None and due <= wall_now:
            due = wall_now if missed is MissedTick.COALESCE else next_after(wall_now)
        if due is None:
            return None
        last = due
        return now + max(0.0, due - wall_now), due

    return next_due
