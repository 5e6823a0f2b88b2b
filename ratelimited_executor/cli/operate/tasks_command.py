"""``tasks`` from its options to its exit status: shows a store, requeues dead letters, cancels tasks."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live

from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.urls import masked
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.operate.tasks_view import StorePicture, draw_tasks, tasks_fields
from ratelimited_executor.cli.screen import console_of, print_line
from ratelimited_executor.durable import PostgresStore, RedisStore, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from rich.console import Console

    from ratelimited_executor.abc import TaskStore

__all__ = ["TasksOptions", "show_tasks"]

_REDIS = ("redis://", "rediss://", "unix://")
_PAGE = 1000  # dead letters requeued in one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksOptions:
    """The command line of ``tasks``, each option valid by itself."""

    store: str
    state: str | None = None
    has_lanes: bool = False
    has_repetitions: bool = False
    limit: int = 20
    requeue: tuple[str, ...] = ()
    requeue_dead: bool = False
    cancel: tuple[str, ...] = ()
    remove_repetition: tuple[str, ...] = ()
    prefix: str = "durable"
    is_watched: bool = False
    is_check: bool = False
    as_json: bool = False


def show_tasks(options: TasksOptions, *, console: Console | None = None) -> ExitStatus:
    """Carry out the requested changes, and show the store afterwards.

    Args:
        options: the command line.
        console: the output; standard output by default.

    Returns:
        DONE if the changes were made. FAILED if a named task or repetition does not exist, or is not a dead letter where it should
        be; or with ``--check`` if there are dead letters, or tasks set aside because their function is unknown.

    Raises:
        CommandError: if the store cannot be read or written.
    """
    try:
        return asyncio.run(_show(_store_of(options), options, console_of(console)))
    except (StoreUnavailableError, ModuleNotFoundError) as error:
        raise CommandError(visible(str(error))) from error


def _store_of(options: TasksOptions) -> TaskStore:
    text = options.store
    if text.startswith(("postgresql://", "postgres://")):
        return PostgresStore(text, create=False)
    if text.startswith(_REDIS):
        try:
            return RedisStore(text, prefix=options.prefix)
        except ValueError as error:
            raise CommandError(f"STORE: {error}") from error
    if not Path(text).is_file():
        raise CommandError(
            f"STORE: there is no file {masked(text)!r}; give the path of a SQLite file, or a URL postgresql://... or redis://..."
        )
    return SQLiteStore(text, create=False)


async def _show(store: TaskStore, options: TasksOptions, console: Console) -> ExitStatus:
    await store.open(SystemClock())
    try:
        is_done = await _change(store, options)
        picture = await _read(store, options)
        if options.as_json:
            print_line(console, json.dumps(tasks_fields(picture, time.time())))
        elif options.is_watched and console.is_terminal:
            await _watch(store, options, console)
        else:
            console.print(draw_tasks(picture, time.time()))
    finally:
        await store.aclose()
    is_bad = options.is_check and (picture.counts[DurableState.DEAD] or picture.counts[DurableState.UNKNOWN])
    return ExitStatus.DONE if is_done and not is_bad else ExitStatus.FAILED


async def _change(store: TaskStore, options: TasksOptions) -> bool:
    """Requeue, cancel and remove what is named; report what does not exist."""
    missed = []
    for name, state in zip(options.requeue, await store.requeue(options.requeue), strict=True):
        if state is not DurableState.DEAD:
            found = "does not exist" if state is None else f"is {state.name.lower()}"
            missed.append(f"--requeue: {name!r} {found}")
    for name, state in zip(options.cancel, await store.cancel(options.cancel), strict=True):
        if state is None:
            missed.append(f"--cancel: {name!r} does not exist")
    declared = (
        {row.name for row in await store.repetitions() if row.is_declared} if options.remove_repetition else set()
    )
    notices = []
    for name in options.remove_repetition:
        if not await store.forget([name]):
            missed.append(f"--remove-repetition: {name!r} does not exist")
        elif name in declared:
            notices.append(f"--remove-repetition: a running process declares {name!r}, and will put it back")
    after = 0  # requeue each once: a task that fails again meanwhile stays dead
    while options.requeue_dead and (rows := await store.rows(DurableState.DEAD, after=after, limit=_PAGE)):
        await store.requeue([row.id for row in rows])
        after = rows[-1].number
    for text in [*missed, *notices]:
        print(visible(text), file=sys.stderr)  # noqa: T201  # this module does not know click
    return not missed


async def _read(store: TaskStore, options: TasksOptions) -> StorePicture:
    state = None if options.state is None else DurableState[options.state.upper()]
    counts = await store.counts()
    ready = await store.rows(DurableState.READY, limit=1) if counts[DurableState.READY] else []
    return StorePicture(
        counts=counts,
        first_ready=ready[0] if ready else None,
        rows=[] if state is None else await store.rows(state, limit=options.limit),
        lanes=await store.lanes(limit=options.limit) if options.has_lanes else [],
        repetitions=await store.repetitions() if options.has_repetitions else [],
    )


async def _watch(store: TaskStore, options: TasksOptions, console: Console) -> None:
    """Show the store until interrupted."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            picture = await _read(store, options)
            live.update(draw_tasks(picture, time.time()), refresh=True)
            await asyncio.sleep(1)
