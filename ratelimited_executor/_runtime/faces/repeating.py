"""The repeating face: fixed rate, fixed delay, cron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVarTuple

from ratelimited_executor._core.queue.records import Options
from ratelimited_executor._core.repeat.repeating import MissedTick, OnError
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._runtime.arguments import (
    INHERITED,
    callable_of,
    count_of,
    delay_of,
    flag_of,
    key_of,
    member_of,
    seconds_of,
    tz_of,
)
from ratelimited_executor._runtime.faces.tasks import TaskFace, make_options
from ratelimited_executor._runtime.repeat import schedules
from ratelimited_executor._runtime.repeat.repeating import RepeatingHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from datetime import tzinfo

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.faces.tasks import Rare
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor.typing import CostLike

__all__ = ["RepeatingFace"]

Ts = TypeVarTuple("Ts")


class RepeatingFace(TaskFace):
    """``schedule_at_fixed_rate``, ``schedule_with_fixed_delay`` and ``schedule_cron``."""

    __slots__ = ()

    def schedule_at_fixed_rate(
        self,
        fn: Callable[[*Ts], object],
        *args: *Ts,
        period: DurationLike,
        initial_delay: DurationLike = 0.0,
        missed: MissedTick = MissedTick.SKIP,
        on_error: OnError = OnError.CONTINUE,
        max_runs: int | None = None,
        allow_overlap: bool = False,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        run_timeout: DurationLike | None = None,
        in_thread: bool = False,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> RepeatingHandle:
        """Run ``fn(*args)`` every ``period`` seconds, in phase with the first run.

        Args:
            fn: as for ``schedule``.
            args: its positional arguments.
            period: seconds from one due time to the next, > 0.
            initial_delay: seconds until the first is due.
            missed: what happens to due times that pass during a run.
            on_error: what happens after a run that raises: the repetition continues or ends.
            max_runs: the number of runs after which it ends; None for never.
            allow_overlap: True if a run may start during the previous one.
            priority: as for ``schedule``, and so are the rest.
        """
        engine, rare = self._admit_runs(key, cost)
        step = seconds_of("period", period)
        first = engine.now() + delay_of("initial_delay", initial_delay)
        return self._repeat(
            engine,
            fn,
            args,
            schedules.fixed_rate(first, step, member_of("missed", missed, MissedTick)),
            rare=rare,
            gap=step,
            on_error=on_error,
            max_runs=max_runs,
            may_overlap=flag_of("allow_overlap", allow_overlap),
            priority=priority,
            expires=expires,
            run_timeout=run_timeout,
            in_thread=in_thread,
            name=name or name_of(fn),
        )

    def schedule_with_fixed_delay(
        self,
        fn: Callable[[*Ts], object],
        *args: *Ts,
        delay: DurationLike,
        initial_delay: DurationLike = 0.0,
        on_error: OnError = OnError.CONTINUE,
        max_runs: int | None = None,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        run_timeout: DurationLike | None = None,
        in_thread: bool = False,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> RepeatingHandle:
        """Run ``fn(*args)`` again and again, due ``delay`` seconds after the end of the run before.

        The arguments are those of :meth:`schedule_at_fixed_rate`; nothing can be missed, and runs never overlap.
        """
        engine, rare = self._admit_runs(key, cost)
        pause = delay_of("delay", delay)
        first = engine.now() + delay_of("initial_delay", initial_delay)
        return self._repeat(
            engine,
            fn,
            args,
            schedules.fixed_delay(first, pause),
            rare=rare,
            gap=pause,
            on_error=on_error,
            max_runs=max_runs,
            may_overlap=False,
            priority=priority,
            expires=expires,
            run_timeout=run_timeout,
            in_thread=in_thread,
            name=name or name_of(fn),
        )

    def schedule_cron(
        self,
        expression: str,
        fn: Callable[[*Ts], object],
        *args: *Ts,
        tz: str | tzinfo | None = None,
        missed: MissedTick = MissedTick.SKIP,
        on_error: OnError = OnError.CONTINUE,
        max_runs: int | None = None,
        allow_overlap: bool = False,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        run_timeout: DurationLike | None = None,
        in_thread: bool = False,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> RepeatingHandle:
        """Run ``fn(*args)`` at the times of a cron expression, by the wall clock.

        When the clocks change, an expression whose minute or hour begins with a star follows what the clock shows; any
        other runs at the end of the gap for a time that is skipped, and once for a time that comes twice.

        Args:
            expression: five fields, such as ``"*/5 * * * *"``, or a shorthand such as ``@daily``.
            fn: as for ``schedule``.
            args: its positional arguments.
            tz: the time zone of the expression: a name such as ``Europe/London`` or a ``tzinfo``; UTC if None.
            missed: as for :meth:`schedule_at_fixed_rate`, and so are the rest.

        Raises:
            ImportError: if the extra ``cron`` is not installed.
            ValueError: if the expression is not a valid cron expression.
        """
        from ratelimited_executor._runtime.repeat.cron import cron_times  # noqa: PLC0415  # many programs have none

        engine, rare = self._admit_runs(key, cost)
        times = cron_times(expression, tz_of("tz", "UTC" if tz is None else tz), name="expression")
        return self._repeat(
            engine,
            fn,
            args,
            schedules.cron(times, member_of("missed", missed, MissedTick), self._started().moments.wall),
            rare=rare,
            gap=60.0,
            on_error=on_error,
            max_runs=max_runs,
            may_overlap=flag_of("allow_overlap", allow_overlap),
            priority=priority,
            expires=expires,
            run_timeout=run_timeout,
            in_thread=in_thread,
            name=name or name_of(fn),
        )

    def _admit_runs(self, key: Any, cost: Any) -> tuple[Intake, Rare | None]:
        """Return the engine if it may accept one more task in this call, and the rare options of repeating tasks."""
        engine = self._admit(key=key_of("key", key, self._keys))
        return engine, self._rare_of(key, cost)

    def _repeat(
        self,
        engine: Intake,
        fn: Any,
        args: tuple[Any, ...],
        next_due: schedules.NextDue,
        *,
        rare: Rare | None,
        gap: float,
        on_error: OnError,
        max_runs: int | None,
        may_overlap: bool,
        expires: Any,
        name: str,
        **options: Any,
    ) -> RepeatingHandle:
        callable_of("fn", fn)
        member_of("on_error", on_error, OnError)
        if max_runs is not None:
            count_of("max_runs", max_runs, least=1)

        def new_options() -> Options | None:
            return make_options(expires=self._expires_of(expires), name=name, rare=rare, **options)

        new_options()  # bad arguments raise here, not at the second run
        # Spread by up to an interval, a task that repeats about as often would come too late for its next tick.
        on_time = gap < 2 * self._manager.interval

        def options_of_a_run() -> Options:
            made = new_options() or Options()
            made.on_time = on_time
            return made

        handle = RepeatingHandle(
            engine,
            fn,
            args,
            next_due=next_due,
            make_options=options_of_a_run,
            context=engine.contexts.capture(),
            name=name,
            on_error=on_error,
            max_runs=max_runs,
            may_overlap=may_overlap,
            threads=self._started().threads,
            on_end=self._forget_repeating,
        )
        if not handle.done():
            self._repeating[handle] = None
        return handle
