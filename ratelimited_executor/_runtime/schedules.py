"""When the occurrences of a repeating task are due, as functions from the last run to the next due time.

Each returns ``(due, wall_due)``: loop time, and epoch seconds if the task follows the wall clock; None at the end.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, TypeAlias

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


def cron(expression: str, tz: tzinfo, missed: MissedTick, wall: Callable[[], float]) -> NextDue:
    """Follow a cron expression in a time zone, by the wall clock.

    Args:
        expression: five fields, as in ``crontab(5)``.
        tz: the time zone of its fields.
        missed: what happens to times that pass during a run.
        wall: reads the wall clock.

    Raises:
        ImportError: if the extra is not installed.
        ValueError: if the expression is not a valid cron expression.
    """
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415  # an extra, imported on use
    except ImportError as error:
        raise ImportError("schedule_cron needs the extra: pip install 'ratelimited-executor[cron]'") from error

    def times_after(moment: datetime) -> Any:
        return CronSim(expression, moment)

    last = datetime.fromtimestamp(wall(), tz)
    try:
        times_after(last)
    except CronSimError as error:
        raise ValueError(
            f"expression must be a cron expression such as '*/5 * * * *', got {expression!r}: {error}"
        ) from error

    def next_due(run: LastRun | None, now: float) -> tuple[float, float | None] | None:
        nonlocal last
        wall_now = wall()
        if run is not None and missed is MissedTick.COALESCE:  # as with a fixed rate
            last = max(last, datetime.fromtimestamp(wall_now - (now - run.started), tz))
        times = times_after(last)
        chosen = next(times, None)
        if chosen is None:
            return None
        if run is not None and missed is not MissedTick.BURST and chosen.timestamp() <= wall_now:
            if missed is MissedTick.COALESCE:
                last = datetime.fromtimestamp(wall_now, tz)
                return now, wall_now
            chosen = next(times_after(datetime.fromtimestamp(wall_now, tz)), None)
            if chosen is None:
                return None
        last = chosen
        wall_due = chosen.timestamp()
        return now + max(0.0, wall_due - wall_now), wall_due

    return next_due
