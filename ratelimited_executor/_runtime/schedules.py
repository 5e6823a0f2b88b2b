"""When the occurrences of a repeating task are due, as functions from the last run to the next due time."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._core.repeating import LastRun, MissedTick, newest_tick, next_tick

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

    before = last  # the value of ``last`` for the occurrence returned last

    def next_due(run: LastRun | None, now: float, *, is_again: bool = False) -> tuple[float, float | None] | None:
        nonlocal last, before
        wall_now = wall()
        if is_again:
            last = before
        elif run is not None and missed is MissedTick.COALESCE:  # as with a fixed rate
            last = max(last, datetime.fromtimestamp(wall_now - (now - run.started), tz))
        before = last
        times = times_after(last)
        chosen = next(times, None)
        if chosen is None:
            return None
        if (is_again or run is not None) and missed is not MissedTick.BURST and chosen.timestamp() <= wall_now:
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
