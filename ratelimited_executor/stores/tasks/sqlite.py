"""Durable tasks in a file of SQLite, for the processes of one machine.

The driver is apsw, which brings a current SQLite of its own. Those from 3.7.0 to 3.51.2 may lose a committed transaction, or
damage the file, when two connections write and a checkpoint runs between (mended in 3.51.3, and in 3.50.7 and 3.44.6); with
one of these the file is opened for one process alone.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.durable.tasks import Durability
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.tasks import moves
from ratelimited_executor.stores.tasks.statements import numbered, read_statements, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ratelimited_executor._core.durable.tasks import (
        Claim,
        Claims,
        DurableState,
        LaneRow,
        NewTask,
        Outcome,
        Ref,
        TaskRow,
    )
    from ratelimited_executor.abc import Clock
    from ratelimited_executor.stores.tasks.moves import Moves

T = TypeVar("T")

__all__ = ["SQLiteStore"]

_US: Final = 1_000_000
_VERSION: Final = 1  # of the schema, as in the file's user_version
_BUSY_MS: Final = 30_000  # for which another process may hold the file
_LOOK_SECONDS: Final = 0.05  # between two looks whether another process has changed the file
_REMEDIES: Final = {
    "BusyError": f": another process has held the file for {_BUSY_MS // 1000} s, or a release of SQLite is in use that may not share it",
    "FullError": ": make room on the disk; what was put before is safe",
    "ReadOnlyError": ": this process may not write the file, or its directory",
    "CantOpenError": ": make its directory, and let this process write it",
    "NotADBError": ": name another file",
    "CorruptError": ": restore it from a backup",
}
_STATEMENTS: Final = {
    name: numbered(text) for name, text in read_statements("statements.sql", "sqlite_statements.sql").items()
}


class SQLiteStore(TaskStore):
    """A store in a file, for one process or several on one machine.

    Every call is one transaction, in a thread of the store's own; when it returns, it is on the disk (WAL,
    ``synchronous=FULL``).

    Args:
        path: of the file; it is made if it is not there. Not on a network drive, and not ``":memory:"``.

    Raises:
        TypeError: if the path is neither a text nor a path.
        ValueError: if it is empty, or names no file.
    """

    durability = Durability.FSYNC

    def __init__(self, path: str | PathLike[str]) -> None:
        if not isinstance(path, (str, PathLike)):
            raise TypeError(f"path must be the path of a file, got {path!r}")
        if str(path) in ("", ":memory:"):
            raise ValueError(f"path must be the path of a file, got {str(path)!r}; for tests there is MemoryStore()")
        self._path = Path(path)
        self._clock: Clock | None = None
        self._connection: Any = None
        self._user_count = 0
        self._thread: ThreadPoolExecutor | None = None  # one, so that one transaction comes after the other
        self._changed = asyncio.Event()
        self._seen_version: int | None = None

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._path)!r})"

    async def open(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="durable-tasks")
        await self._in_thread(self._connect)
        self._user_count += 1

    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool]:
        """Add tasks; ``connection`` is one of apsw's to the same file, with a transaction that is open."""
        if connection is not None:
            return self._put_with(connection, tasks)
        return await self._change(lambda: moves.put(self._now_us(), tasks))

    async def join(self, owner: str, lease_us: int) -> None:
        await self._run(lambda: moves.join(owner, lease_us), is_durable=False)

    async def beat(self, owner: str) -> tuple[Ref, ...] | None:
        return await self._change(lambda: moves.beat(self._now_us(), owner))

    async def leave(self, owner: str) -> None:
        await self._change(lambda: moves.leave(self._now_us(), owner))

    async def claim(self, claim: Claim) -> Claims | None:
        return await self._run(lambda: moves.claim(self._now_us(), claim), is_durable=False)

    async def finish(self, outcomes: Sequence[Outcome]) -> list[bool]:
        return await self._change(lambda: moves.finish(self._now_us(), outcomes))

    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        return await self._change(lambda: moves.cancel(self._now_us(), ids))

    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        return await self._change(lambda: moves.requeue(self._now_us(), ids))

    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        return await self._change(lambda: moves.revive(queue, functions))

    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        return await self._run(lambda: moves.find(ids))

    async def rows(self, state: DurableState | None = None, *, after: int = 0, limit: int = 100) -> list[TaskRow]:
        return await self._run(lambda: moves.rows(state, after, limit))

    async def counts(self) -> dict[DurableState, int]:
        return await self._run(moves.counts)

    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        return await self._run(lambda: moves.lanes(limit))

    async def wait(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while not self._changed.is_set():
            left = until - loop.time()
            if left <= 0 or await self._in_thread(self._is_changed_by_others):
                return
            try:
                async with asyncio.timeout(min(_LOOK_SECONDS, left)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self._changed.clear()

    async def aclose(self) -> None:
        self._user_count = max(0, self._user_count - 1)
        if self._user_count:
            return
        thread, self._thread = self._thread, None
        if thread is not None:
            closing = asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)
            await asyncio.shield(closing)  # to be cancelled here must not leave the file open

    async def _change(self, program: Callable[[], Moves[T]]) -> T:
        """Run moves after which something may be claimable."""
        try:
            return await self._run(program)
        finally:
            self._changed.set()

    async def _run(self, program: Callable[[], Moves[T]], *, is_durable: bool = True) -> T:
        """Run moves as one transaction, which begins in the thread: that is when the clock is read.

        What need not be durable is not waited for on the disk: a claim that the loss of power undoes was of a process that is
        gone as well.
        """
        return await self._in_thread(lambda: self._transaction(program, "full" if is_durable else "normal"))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise StoreUnavailableError(repr(self), "it is not open: enter DurableTasks with 'async with' first")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _put_with(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool]:
        """Put tasks in a transaction of the user, in the user's thread; its commit wakes others within a look."""
        if not isinstance(connection, _apsw().Connection):
            raise TypeError(f"connection must be an apsw.Connection to {self._path}, got {connection!r}")
        if not connection.in_transaction:
            raise ValueError("connection must have an open transaction: begin one first, best by BEGIN IMMEDIATE")
        with self._translated():
            return _play(connection.cursor(), moves.put(self._now_us(), tasks))

    def _transaction(self, program: Callable[[], Moves[T]], synchronous: str) -> T:
        cursor = self._connection.cursor()
        with self._translated():
            cursor.execute(f"pragma synchronous = {synchronous}")
            cursor.execute("begin immediate")
            try:
                result = _play(cursor, program())
                cursor.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    cursor.execute("rollback")
                raise
        return result

    def _is_changed_by_others(self) -> bool:
        with self._translated():
            [(version,)] = self._connection.execute("pragma data_version")
        seen, self._seen_version = self._seen_version, version
        return bool(version != seen)

    def _now_us(self) -> int:
        assert self._clock is not None
        return round(self._clock.wall() * _US)

    def _connect(self) -> None:
        if self._connection is not None:
            return
        apsw = _apsw()
        with self._translated():
            connection = apsw.Connection(os.fspath(self._path))
            try:
                connection.set_busy_timeout(_BUSY_MS)
                if not _is_mended(apsw.sqlite_lib_version()):
                    connection.execute("pragma locking_mode = exclusive")
                connection.execute("pragma journal_mode = wal")
                connection.execute("pragma synchronous = full")
                self._make_schema(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def _make_schema(self, connection: Any) -> None:
        connection.execute("begin immediate")
        try:
            [(version,)] = connection.execute("pragma user_version")
            if version > _VERSION:
                raise StoreUnavailableError(
                    repr(self),
                    f"a newer release has written the file (schema {version}; this one knows {_VERSION}): update this process",
                )
            connection.execute(read_text("sqlite_schema.sql"))
            connection.execute(f"pragma user_version = {_VERSION}")
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what the driver raises as an error of ours, with a remedy."""
        apsw = _apsw()
        try:
            yield
        except apsw.Error as error:
            remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, getattr(apsw, kind))), "")
            raise StoreUnavailableError(repr(self), f"{error}{remedy}") from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _play(cursor: Any, program: Moves[T]) -> T:
    """Run moves, statement by statement."""
    try:
        name, arguments = next(program)
        while True:
            rows: list[tuple[Any, ...]] = []
            for each in arguments:
                for text, numbers in _STATEMENTS[name]:
                    rows += cursor.execute(text, [each[number - 1] for number in numbers])
            name, arguments = program.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the generator's own type says it


def _apsw() -> Any:
    try:
        import apsw  # noqa: PLC0415  # the extra `sqlite`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "SQLiteStore needs the package apsw: pip install 'ratelimited-executor[sqlite]'", name=error.name
        ) from error
    return apsw


def _is_mended(version: str) -> bool:
    """Whether a release of SQLite has no WAL-reset bug."""
    parts = tuple(int(part) for part in version.split("."))
    return parts >= (3, 51, 3) or (3, 50, 7) <= parts < (3, 51) or (3, 44, 6) <= parts < (3, 45)
