"""The repetitions of durable tasks: declared by code, and saved, paused, skipped, run and removed by users."""

from __future__ import annotations

import warnings
from contextvars import Context
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from ratelimited_executor._core.durable.pauses import ENDED
from ratelimited_executor._runtime.arguments import flag_of, tz_of
from ratelimited_executor._runtime.durable.functions import DurableFunction, DurableRef, Putter, end_us_of, text_of
from ratelimited_executor._runtime.durable.repeating import (
    LANE_PREFIX,
    OVERLAPS,
    Repetition,
    Repetitions,
    task_of,
    times_of,
)

if TYPE_CHECKING:
    from datetime import tzinfo

    from ratelimited_executor._core.durable.tasks import RepetitionRow
    from ratelimited_executor._core.durations import DurationLike

__all__ = ["RepetitionCalls"]

_NAME_MAX: Final = 200  # characters: in an id, the time of the occurrence follows
_US: Final = 1_000_000


class RepetitionCalls(Putter):
    """The part of :class:`DurableTasks` that is about repetitions."""

    functions: dict[tuple[str, int], DurableFunction[Any, Any]]
    _repetitions: Repetitions

    def repeat(
        self,
        function: DurableFunction[..., Any],
        *args: Any,
        period: DurationLike | None = None,
        cron: str | None = None,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        overlap: Literal["skip", "queue", "allow"] = "skip",
        allow_overlap: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Run a function again and again, each occurrence once over all processes of the queue.

        The next occurrence is put while a process runs tasks (:meth:`running`), at once if one does now, and waits in the
        store until it is due. If no process runs then, it runs later, and the missed occurrences after it are skipped.

        The code that runs decides: if its schedule, function, arguments or options have changed, an occurrence that waits
        in the store is replaced. While processes with different declarations run, that of the process that began last
        counts. A repetition that is no longer declared stays in the store: see :meth:`remove_repetition`.

        Args:
            function: a function of these tasks.
            args: its positional arguments.
            period: seconds between occurrences, from 0.001 to 30 years, at its multiples since the epoch; or give ``cron``.
            cron: an expression as for ``schedule_cron``, by the wall clock (extra ``cron``).
            tz: the time zone of ``cron``: a name, or a tzinfo.
            name: the name of the repetition, in the whole store; that of the function if None.
            overlap: what happens to an occurrence that is due before the previous one has ended, with all its attempts:
                ``"skip"`` to leave it out, ``"queue"`` to run it afterwards, ``"allow"`` to run it at its time.
            allow_overlap: deprecated; True for ``overlap="allow"``.
            kwargs: the function's keyword arguments, and the options ``priority``, ``expires``, ``lane``, ``key``, ``cost``.

        Raises:
            TypeError: if an argument has a wrong type, or neither or both of ``period`` and ``cron`` are given.
            ValueError: if an argument is out of range, or a repetition of that name exists.
        """
        if not isinstance(function, DurableFunction) or function not in self.functions.values():
            raise TypeError(
                f"function must be a durable function of these tasks, made by @tasks.task, got {function!r}"
            )
        if allow_overlap is not None:
            overlap = "allow" if flag_of("allow_overlap", allow_overlap) else "skip"
            warnings.warn(
                f"allow_overlap= of repeat() is deprecated: pass overlap={overlap!r}", DeprecationWarning, stacklevel=2
            )
        times = {"period": period, "cron": cron, "tz": tz}
        repetition = self._repetition("repeat", function, args, kwargs, name=name, overlap=overlap, **times)
        if repetition.name in self._repetitions.declared:
            raise ValueError(
                f"name {repetition.name!r} is a repetition already: give another name=, or remove it by remove_repetition() first"
            )
        self._repetitions.add(repetition)

    async def save_repetition(
        self,
        function: str | DurableFunction[..., Any],
        *args: Any,
        period: DurationLike | None = None,
        cron: str | None = None,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        overlap: Literal["skip", "queue", "allow"] = "skip",
        version: int = 1,
        **kwargs: Any,
    ) -> bool:
        """Create or change a repetition in the store, which the processes of the queue that know its function then place.

        It stays until :meth:`remove_repetition`, whatever code runs. If it changes, what waits of it is replaced. A
        process that runs tasks learns of it within milliseconds, or at its next look, within a lease.

        Args:
            function: a function of these tasks, or its registered name, which need not be known here: then neither its
                parameters are checked nor its own options applied; with a ``JSONCodec`` the arguments are values of JSON, which
                become what its annotations say when it runs.
            args: as for :meth:`repeat`, and so are the others.
            period: seconds between occurrences; or give ``cron``.
            cron: an expression.
            tz: the time zone of ``cron``, which must have a name.
            name: the name of the repetition, in the whole store; that of the function if None.
            overlap: what happens to an occurrence that is due before the previous one has ended.
            version: the version of a function that is given by its name.
            kwargs: the function's keyword arguments, and the options of :meth:`repeat`.

        Returns:
            True if it is new.

        Raises:
            TypeError: if an argument has a wrong type, or neither or both of ``period`` and ``cron`` are given.
            ValueError: if an argument is out of range, or code declares a repetition of that name.
        """
        if not isinstance(function, DurableFunction):
            called = text_of("function", function)
            function = self.functions.get((called, version)) or _ByName(self, _anything, name=called, version=version)
        times = {"period": period, "cron": cron, "tz": tz if cron is None else str(tz_of("tz", tz))}
        made = self._repetition("save_repetition", function, args, kwargs, name=name, overlap=overlap, **times)
        is_new = None
        if made.name not in self._repetitions.declared:
            is_new = await self.store.save_repetition(
                made.name, definition=made.definition, queue=self.queue, function=function.name, schedule=made.schedule
            )
        if is_new is None:
            raise ValueError(
                f"name {made.name!r} is a repetition that code declares: give another name=, or, if no code declares it any "
                "more, remove it by remove_repetition() first"
            )
        return is_new

    async def repetitions(self) -> list[RepetitionRow]:
        """Return the repetitions of the store, by name, also those that no running code declares."""
        return await self.store.repetitions()

    async def pause_repetition(self, name: str, until: datetime | float | None = None) -> None:
        """Let a repetition place no occurrences, until :meth:`resume_repetition`; those that wait are dropped.

        An occurrence that a process has claimed once goes on: it runs, also if it is retried or snoozes. Nothing is made up
        for later: the first occurrence after the end of the pause is the next one. A second call sets another end.

        Args:
            name: the name of the repetition, which code may declare.
            until: when the pause ends by itself: occurrences that are due then or later are placed. An aware datetime, or
                epoch seconds; None for never.

        Raises:
            ValueError: if there is no such repetition.
        """
        until_us = end_us_of(until)
        if await self.store.pause_repetition(text_of("name", name), until_us) is None:
            raise _no_such(name)

    async def resume_repetition(self, name: str) -> bool:
        """End the pause of a repetition; return False if it was not paused.

        Raises:
            ValueError: if there is no such repetition.
        """
        was_paused = await self.store.pause_repetition(text_of("name", name), ENDED)
        if was_paused is None:
            raise _no_such(name)
        return was_paused

    async def skip_repetition(self, name: str) -> datetime | None:
        """Drop the next occurrence of a repetition, if it waits and no process has claimed it; the one after it follows.

        It is not placed again, also if the repetition is paused or changed.

        Returns:
            When it was due; None if none waits, as while one runs, is retried or snoozes.

        Raises:
            ValueError: if there is no such repetition.
        """
        due_us = await self.store.skip_repetition(text_of("name", name))
        if due_us is None:
            await self._row(name)
            return None
        return datetime.fromtimestamp(due_us / _US, UTC)

    async def run_repetition(self, name: str) -> DurableRef:
        """Put a task of a repetition that is due now, besides its occurrences and whether it is paused or not.

        Raises:
            ValueError: if there is no such repetition, or it was declared by a release that does not save what it puts.
        """
        row = await self._row(name)
        if not row.definition:
            raise ValueError(
                f"name {name!r} is a repetition of an older release: run it once a newer process declares it"
            )
        task = task_of(row.definition)._replace(id=self.new_id())
        await self.store.put([task])
        return DurableRef(self, task.id, created=True)

    async def remove_repetition(self, *names: str) -> int:
        """Remove repetitions from the store, with their occurrences that no process has claimed; return their number.

        What runs, is retried or snoozes goes on: :meth:`cancel` ends it. They are no longer declared here either. A running
        process of other code that still declares one puts it back: stop that process first.
        """
        known = [text_of("names", each) for each in names]
        async with self._repetitions.lock:
            self._repetitions.discard(known)
            return await self.store.forget(known)

    async def _row(self, name: str) -> RepetitionRow:
        known = text_of("name", name)
        for row in await self.store.repetitions():
            if row.name == known:
                return row
        raise _no_such(name)

    def _repetition(
        self,
        call: str,
        function: DurableFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: Any,
        overlap: Any,
        **times: Any,
    ) -> Repetition:
        """Check the arguments of a call, and return the repetition that it describes."""
        found = times_of(call, **times)
        if taken := {"delay", "at", "id", "unique"}.intersection(kwargs):
            raise TypeError(f"{call}() has no {min(taken)}=: it follows from the time of each occurrence")
        known = text_of("name", function.name if name is None else name)
        if len(known) > _NAME_MAX:
            raise ValueError(f"name must have at most {_NAME_MAX} characters, got {known!r}")
        if overlap not in OVERLAPS:
            raise ValueError(f"overlap must be one of {', '.join(OVERLAPS)}, got {overlap!r}")
        if overlap == "queue":
            if kwargs.get("lane") is not None:
                raise TypeError("overlap='queue' takes no lane=: its occurrences have a lane of their own")
            kwargs = {**kwargs, "lane": f"{LANE_PREFIX}{known}"}
        task = Context().run(function.new, *args, **kwargs)  # in no span: the same wherever it is declared
        return Repetition(known, task, found, overlap)


class _ByName(DurableFunction[..., Any]):
    """A function that is not known here: its arguments are values of JSON."""

    _remedy = "; the function is given by its name: give the function itself, or values of JSON"

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return [args, kwargs, True]


def _anything(*args: Any, **kwargs: Any) -> None:
    """Stand for a function that is not known here."""


def _no_such(name: str) -> ValueError:
    return ValueError(f"name must be that of a repetition in the store, got {name!r}: repetitions() lists them")
