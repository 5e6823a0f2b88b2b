"""When the occurrences of a repeating task are due, as functions from the last run to the next due time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ratelimited_executor._core.repeat.repeating import LastRun, MissedTick, newest_tick, next_tick

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NextDue", "cron", "fixed_delay", "fixed_rate"]


class NextDue(Protocol):
    """Returns when the next occurrence is due."""

    def __call__(self, run: LastRun | None, now: float, *, is_again: bool = False) -> tuple[float, float | None] | None:
        """Return loop time, and epoch seconds if the task follows the wall clock; None at the end.

        Args:
            run: the previous run; None before the first.
            now: loop time.
            is_again: True if the occurrence returned last was taken back and did not run: it is the next one, unless its
                due time has passed and counts as missed.
        """
        ...


def fixed_rate(first: float, period: float, missed: MissedTick) -> NextDue:
    """Keep the phase of ``first``, in loop time; ``missed`` decides about missed ticks."""
    last = -1

    def next_due(run: LastRun | None, now: float, *, is_again: bool = False) -> tuple[float, float | None]:
        nonlocal last
        if is_again:
            last, due = next_tick(first, period, last - 1, now, missed)
        elif run is None:
            last, due = 0, first
        else:
            if missed is MissedTick.COALESCE:  # a run that started late stands for all that were due by then
                last = max(last, newest_tick(first, period, run.started))
            last, due = next_tick(first, period, last, now, missed)
        return due, None

    return next_due


def fixed_delay(first: float, delay: float) -> NextDue:
    """Count from the end of the last run."""
    due = first

    def next_due(run: LastRun | None, now: float, *, is_again: bool = False) -> tuple[float, float | None]:
        nonlocal due
        if is_again:
            due = max(due, now)
        elif run is not None:
            due = run.ended + delay
        return due, None

    return next_due


def cron(next_after: Callable[[float], float | None], missed: MissedTick, wall: Callable[[], float]) -> NextDue:
    """Follow the occurrences of a cron expression, by the wall clock.

    Args:
        next_after: returns the first occurrence after an instant, both in epoch seconds; None if there is none.
        missed: what happens to times that pass during a run.
        wall: reads the wall clock.
    """
    last = wall()
    before = last  # the value of ``last`` for the occurrence returned last

    def next_due(run: LastRun | None, now: float, *, is_again: bool = False) -> tuple[float, float | None] | None:
        nonlocal last, before
        wall_now = wall()
        if is_again:
            last = before
        elif run is not None and missed is MissedTick.COALESCE:  # as with a fixed rate
            last = max(last, wall_now - (now - run.started))
        before = last
        due = next_after(last)
        is_late = due is not None and due <= wall_now
        if (is_again or run is not None) and missed is not MissedTick.BURST and is_late:
            due = wall_now if missed is MissedTick.COALESCE else next_after(wall_now)
        if due is None:
            return None
        last = due
        return now + max(0.0, due - wall_now), due

    return next_due
