"""``tasks`` from its options to its exit status: shows and migrates a store, pauses, requeues and cancels tasks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live

from ratelimited_executor._core.durable.tasks import DurableState, EndedRow
from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.urls import masked, masked_text
from ratelimited_executor._runtime.durable.opening import open_store
from ratelimited_executor._runtime.durable.reading import ended_rows, latencies_of, task_rows
from ratelimited_executor._runtime.durable.repairs import Selection, repair, selected
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.operate.tasks_view import StorePicture, draw_tasks, tasks_fields
from ratelimited_executor.cli.screen import console_of, print_line, warn
from ratelimited_executor.cli.stopping import termination_interrupts
from ratelimited_executor.durable import DurableTasks, PostgresStore, RedisStore, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.tasks import postgres, sqlite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rich.console import Console

    from ratelimited_executor._core.durable.tasks import TaskRow
    from ratelimited_executor.abc import TaskStore

__all__ = ["TasksOptions", "show_tasks"]

_REDIS = ("redis://", "rediss://", "unix://")
_WHOLE = {"postgresql": postgres.migration_sql, "sqlite": sqlite.migration_sql}


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksOptions:
    """The command line of ``tasks``, each option valid by itself."""

    store: str
    state: str | None = None
    has_lanes: bool = False
    has_repetitions: bool = False
    has_ended: bool = False
    limit: int = 20
    newest_first: bool = False
    requeue: tuple[str, ...] = ()
    requeue_dead: bool = False
    cancel: tuple[str, ...] = ()
    cancel_all: bool = False
    dry_run: bool = False
    pause: bool = False
    until: float | None = None
    resume: bool = False
    function: str | None = None
    queue: str | None = None
    lane: str | None = None
    key: str | None = None
    since: float | None = None
    error: str | None = None
    save_repetition: str | None = None
    period: float | None = None
    cron: str | None = None
    tz: str | None = None
    overlap: str | None = None
    arguments: tuple[list[Any], dict[str, Any]] | None = None
    version: int | None = None
    priority: float | None = None
    expires: float | None = None
    pause_repetition: tuple[str, ...] = ()
    resume_repetition: tuple[str, ...] = ()
    skip_repetition: tuple[str, ...] = ()
    run_repetition: tuple[str, ...] = ()
    remove_repetition: tuple[str, ...] = ()
    prefix: str = "durable"
    is_watched: bool = False
    is_check: bool = False
    as_json: bool = False
    migrate: bool = False
    wait: float | None = None
    as_sql: bool = False

    def covered(self) -> dict[str, Any]:
        """Return what a pause covers: the arguments of :meth:`DurableTasks.pause`."""
        return {"function": self.function, "queue": self.queue, "lane": self.lane, "key": _key_of(self.key)}

    def selection(self) -> Selection:
        """Return the selected tasks."""
        since_us = None if self.since is None else round(self.since * 1_000_000)
        return Selection(**self.covered(), since_us=since_us, error=self.error)

    def check(self) -> None:
        """Refuse options that have no effect, or too large a one."""
        is_all = self.requeue_dead or self.cancel_all
        is_paused = self.pause or self.resume
        if self.cancel_all and self.state is None:
            raise CommandError("--cancel-all needs --state, such as --state dead")
        if self.wait is not None and not self.migrate:
            raise CommandError("--wait needs --migrate")
        if self.pause and self.resume:
            raise CommandError("--pause and --resume exclude each other")
        if is_paused and not any(value is not None for value in self.covered().values()):
            raise CommandError("--pause and --resume need --function, --queue, --lane or --key")
        if self.newest_first and self.state is None:
            raise CommandError("--newest-first needs --state, such as --state dead")
        if self.dry_run and not is_all:
            raise CommandError("--dry-run needs --requeue-dead or --cancel-all")
        if self.until is not None and not (self.pause or self.pause_repetition):
            raise CommandError("--until needs --pause or --pause-repetition")
        is_of_ended = self.has_ended and self.selection() == Selection(function=self.function)
        if self.save_repetition is not None:
            if self.function is None or (self.period is None) == (self.cron is None):
                raise CommandError("--save-repetition needs --function, and --period or --cron, one of them")
        elif self.definition() or any(each is not None for each in (self.period, self.cron, self.arguments)):
            raise CommandError("--period, --cron and the other options of a repetition need --save-repetition")
        elif self.selection() != Selection() and not (is_all or is_paused or self.state or is_of_ended):
            raise CommandError(
                "a selection of tasks needs --state, --requeue-dead, --cancel-all, --pause or --resume, and --function, --ended"
            )

    def shows_repetitions(self) -> bool:
        """True if the repetitions are to be listed: if they are asked for, or one is changed."""
        changed = self.pause_repetition + self.resume_repetition + self.skip_repetition + self.run_repetition
        return self.has_repetitions or bool(self.save_repetition or changed or self.remove_repetition)

    def definition(self) -> dict[str, Any]:
        """Return the options of a saved repetition that are given, beside its function and its times."""
        _, keywords = self.arguments or ((), {})
        names = ("tz", "overlap", "version", "priority", "expires")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**keywords, **options}


def _key_of(text: str | None) -> str | int | None:
    """Read a key: a number or a text as JSON writes it, or a text as it is."""
    with contextlib.suppress(ValueError, RecursionError):
        if text is not None and isinstance(value := json.loads(text), (str, int)) and not isinstance(value, bool):
            return value
    return text


def show_tasks(
    options: TasksOptions,
    *,
    console: Console | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ExitStatus:
    """Carry out the requested changes, and show the store afterwards.

    Args:
        options: the command line.
        console: the output; standard output by default.
        sleep: waits for a number of seconds.

    Returns:
        DONE if the changes were made. FAILED if a named task, repetition or pause does not exist, or a task is not a dead letter
        where it should be; or with ``--check`` if there are dead letters, or tasks set aside because their function is unknown.

    Raises:
        CommandError: if the store cannot be read or written, or options do not fit together.
    """
    options.check()
    try:
        if options.as_sql:
            print_line(console_of(console), asyncio.run(_migration_of(options)))
            return ExitStatus.DONE
        return asyncio.run(_show(_store_of(options), options, console_of(console), sleep))
    except (StoreUnavailableError, ModuleNotFoundError) as error:
        raise CommandError(visible(str(error))) from error


def _store_of(options: TasksOptions) -> TaskStore:
    text = options.store
    if text.startswith(("postgresql://", "postgres://")):
        return PostgresStore(text, create=options.migrate)
    if text.startswith(_REDIS):
        try:
            return RedisStore(text, prefix=options.prefix)
        except ValueError as error:
            raise CommandError(f"STORE: {error}") from error
    path = Path(text)
    if options.as_sql and not path.exists() and path.name == text and not path.suffix:
        raise CommandError(
            f"STORE: there is no file {masked(text)!r}; --sql prints the whole schema of {' or '.join(_WHOLE)}"
        )
    if path.is_dir() or not (options.migrate or options.as_sql or path.is_file()):
        raise CommandError(
            f"STORE: there is no file {masked(text)!r}; give the path of a SQLite file, or a URL postgresql://... or redis://..."
        )
    return SQLiteStore(text, create=options.migrate)


async def _migration_of(options: TasksOptions) -> str:
    """Return the SQL that brings the store to this release; of a kind of stores, the whole schema."""
    if options.store in _WHOLE:
        return _WHOLE[options.store]().rstrip()
    migration = getattr(_store_of(options), "migration", None)
    if migration is None:
        raise CommandError("--sql needs a store in SQLite or PostgreSQL: others have no schema")
    text: str = await migration()
    return text.rstrip() or "-- nothing is missing"


async def _show(
    store: TaskStore, options: TasksOptions, console: Console, sleep: Callable[[float], Awaitable[None]]
) -> ExitStatus:
    await open_store(store, SystemClock(), options.wait or 0.0)
    try:
        is_done, repairs = await _change(store, options)
        picture = await _read(store, options)
        if options.as_json:
            print_line(console, json.dumps({**tasks_fields(picture), **repairs}))
        elif options.is_watched and console.is_terminal:
            await _watch(console, picture, lambda: _read(store, options), sleep)
        else:
            console.print(draw_tasks(picture, time.time()))
    finally:
        await store.aclose()
    is_bad = options.is_check and (picture.counts[DurableState.DEAD] or picture.counts[DurableState.UNKNOWN])
    return ExitStatus.DONE if is_done and not is_bad else ExitStatus.FAILED


async def _change(store: TaskStore, options: TasksOptions) -> tuple[bool, dict[str, Any]]:
    """Requeue, cancel and remove what is named; report what does not exist.

    Returns:
        True if everything existed; and what repairs of many tasks have done, as fields for JSON.
    """
    missed = []
    for name, state in zip(options.requeue, await store.requeue(options.requeue), strict=True):
        if state is not DurableState.DEAD:
            (end,) = await store.ended([name])
            ended = "has ended" if isinstance(end, EndedRow) else "does not exist"
            missed.append(f"--requeue: {name!r} {ended if state is None else f'is {state.name.lower()}'}")
    for name, state in zip(options.cancel, await store.cancel(options.cancel), strict=True):
        if state is None:
            missed.append(f"--cancel: {name!r} does not exist")
    missed += await _change_repetitions(store, options)
    if not await _set_pause(store, options):
        missed.append("--resume: nothing is paused by exactly these options")
    counts: dict[str, int] = {}
    if options.requeue_dead:
        counts["requeue"] = await _repair(store, DurableState.DEAD, options, store.requeue, "requeue")
    if options.cancel_all:
        counts["cancel"] = await _repair(store, _state_of(options), options, store.cancel, "cancel")
    for text in missed:
        _say(text)
    return not missed, {verb: {"tasks": count, "dry_run": options.dry_run} for verb, count in counts.items()}


async def _change_repetitions(store: TaskStore, options: TasksOptions) -> list[str]:
    """Save, pause, resume, skip, run and remove repetitions; return what could not be done."""
    tasks = DurableTasks(store, queue=options.queue or "default")
    if options.save_repetition is not None:
        try:
            await tasks.save_repetition(
                options.function or "", *(options.arguments or ((), {}))[0], name=options.save_repetition, period=options.period,
                cron=options.cron, lane=options.lane, key=_key_of(options.key), **options.definition(),
            )  # fmt: skip
        except (ValueError, TypeError, ImportError) as error:
            raise CommandError(f"--save-repetition: {visible(str(error))}") from error
    missed: list[str] = []
    changes: dict[str, tuple[Sequence[str], Callable[[str], Awaitable[Any]]]] = {
        "pause": (options.pause_repetition, lambda name: tasks.pause_repetition(name, options.until)),
        "resume": (options.resume_repetition, tasks.resume_repetition),
        "skip": (options.skip_repetition, tasks.skip_repetition),
        "run": (options.run_repetition, tasks.run_repetition),
        "remove": (options.remove_repetition, tasks.remove_repetition),
    }
    is_asked = any(names for names, _ in changes.values())
    known = {row.name: row for row in await store.repetitions()} if is_asked else {}
    for verb, (names, change) in changes.items():
        for name in names:
            row = known.get(name)
            answer = None if row is None else await change(name)
            if row is None:
                missed.append(f"--{verb}-repetition: {name!r} does not exist")
            elif verb == "resume" and not answer:
                missed.append(f"--resume-repetition: {name!r} is not paused")
            elif verb == "skip" and answer is None:
                missed.append(f"--skip-repetition: no occurrence of {name!r} waits")
            elif verb == "remove" and row.is_declared and not row.is_saved:
                _say(f"--remove-repetition: a running process declares {name!r}, and will put it back")
    return missed


async def _set_pause(store: TaskStore, options: TasksOptions) -> bool:
    """Pause or resume; return False if what is to be resumed is not paused."""
    try:
        if options.pause:
            await DurableTasks(store).pause(**options.covered(), until=options.until)
        return not options.resume or await DurableTasks(store).resume(**options.covered())
    except ValueError as error:
        raise CommandError(visible(str(error))) from error


async def _repair(
    store: TaskStore,
    state: DurableState | None,
    options: TasksOptions,
    change: Callable[[Sequence[str]], Awaitable[list[DurableState | None]]],
    verb: str,
) -> int:
    """Requeue or cancel the selected tasks, or show what that would concern; progress goes to standard error.

    Returns:
        the number of tasks that were changed, or would be.
    """

    async def count(ids: Sequence[str]) -> int:
        states = await change(ids)
        return sum(each is DurableState.DEAD if verb == "requeue" else each is not None for each in states)

    if not options.dry_run:
        summary = await repair(
            store,
            state,
            options.selection(),
            count,
            progress=lambda done, total: _say(f"{verb}: {done:,} of {total:,} tasks"),
        )
        if not summary.count:
            _say(f"{verb}: 0 tasks")
        return summary.count
    summary = await repair(store, state, options.selection(), None)
    _say(f"{verb}: {summary.count:,} tasks, not done because of --dry-run{', such as:' if summary.examples else ''}")
    for row in summary.examples:
        _say(f"  {row.id}  {row.name}  {row.error_line}".rstrip())
    return summary.count


def _say(text: str) -> None:
    """Print a line to standard error, which may tell of errors of tasks."""
    warn(visible(masked_text(text)))


def _state_of(options: TasksOptions) -> DurableState | None:
    return None if options.state is None else DurableState[options.state.upper()]


async def _rows(store: TaskStore, options: TasksOptions) -> list[TaskRow]:
    """Return the selected tasks in the state that is to be listed, up to the limit."""
    state, selection = _state_of(options), options.selection()
    rows: list[TaskRow] = []
    if state is None:
        return rows
    if selection == Selection():
        return await task_rows(store, state, limit=options.limit, newest_first=options.newest_first)
    async for some in selected(store, state, selection, newest_first=options.newest_first):
        rows += some[: options.limit - len(rows)]
        if len(rows) == options.limit:
            break
    return rows


async def _read(store: TaskStore, options: TasksOptions) -> StorePicture:
    return StorePicture(
        counts=await store.counts(),
        latencies=await latencies_of(store, time.time()),
        rows=await _rows(store, options),
        pauses=await store.pauses(),
        lanes=await store.lanes(limit=options.limit) if options.has_lanes else [],
        repetitions=await store.repetitions() if options.shows_repetitions() else [],
        ended=await ended_rows(store, options.function, None, options.limit) if options.has_ended else [],
    )


async def _watch(
    console: Console,
    picture: StorePicture,
    read: Callable[[], Awaitable[StorePicture]],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Show a store until interrupted; while it is not available, the last picture stays."""
    with termination_interrupts(), Live(console=console, auto_refresh=False) as live:
        error = None
        while True:
            live.update(draw_tasks(picture, time.time(), error), refresh=True)
            await sleep(1)
            error = None
            try:
                picture = await read()
            except StoreUnavailableError as failure:
                error = str(failure)
