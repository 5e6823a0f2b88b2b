"""A file of SQLite, used by one connection in a thread of its own.

What another process does with the file is checked before each transaction: SQLite would go on with a file that has been
deleted, or with a log (``-wal``) that no other process sees, and all that it writes there ends with the process.

The driver is apsw, which brings a current SQLite of its own. Releases from 3.7.0 to 3.51.2 may lose a committed
transaction, or damage the file, when two connections write and a checkpoint runs between (fixed in 3.51.3, and in
3.50.7 and 3.44.6). With one of these, the file is opened for one process only.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from ratelimited_executor._core.urls import masked
from ratelimited_executor._forks import check_process
from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
_FileId: TypeAlias = tuple[str, int, int]  # full path, device and inode

__all__ = ["SQLiteFile", "driver", "is_mended", "refuse_directory", "transaction"]

_RETRY_SECONDS: Final = 0.005
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_REMEDIES: Final = {
    "BusyError": ": another process has held the file for {busy:g} s, or a release of SQLite is in use that may not share it",
    "FullError": ": make room on the disk; what was put before is safe",
    "ReadOnlyError": ": this process may not write the file, or its directory",
    "CantOpenError": ": make its directory, and let this process write it",
    "NotADBError": ": name another file",
    "CorruptError": ": restore it from a backup",
}
_PERMANENT: Final = ("ReadOnlyError", "NotADBError", "CorruptError")
_NO_FILE: Final = ": name a file that is there, and that this process may read and write"


def refuse_directory(path: Path) -> None:
    """Refuse a directory where a file is meant, by an ``IsADirectoryError``."""
    if path.is_dir():
        raise IsADirectoryError(f"path must be the path of a file, got the directory {str(path)!r}: name a file in it")


class SQLiteFile:
    """Base of the stores in a file, in WAL mode.

    Args:
        path: the path of the file.

    Raises:
        TypeError: if the path is neither a str nor a path.
        ValueError: if the path is empty, or a URL.
        ModuleNotFoundError: without the package apsw.
    """

    _is_creating = True  # create the file if it does not exist
    _begin = "begin immediate"  # begins a transaction
    _busy_ms = 30_000  # the longest time for which another process may hold the file
    _remedies: ClassVar[Mapping[str, str]] = {}  # by the name of the driver's error, where they are not the usual ones

    def __init__(self, path: str | PathLike[str]) -> None:
        if not isinstance(path, (str, PathLike)):
            raise TypeError(f"path must be the path of a file, got {path!r}")
        if not str(path):
            raise ValueError("path must be the path of a file, got an empty str")
        if _URL.match(str(path)):
            raise ValueError(f"path must be the path of a file, without a scheme, got the URL {masked(str(path))!r}")
        driver(type(self).__name__)
        self._path = Path(path)
        self._connection: Any = None
        self._file: _FileId | None = None  # the open file
        self._files: tuple[_FileId, ...] = ()  # this one, and those of SQLite beside it
        self._process = 0  # that has opened it
        self._synchronous = ""  # the connection's setting
        self._thread: ThreadPoolExecutor | None = None  # a single thread, so that transactions run one after the other
        self._closing: Future[None] | None = None  # the latest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({masked(str(self._path))!r})"

    def _check(self, connection: Any) -> None:
        """Check a file before any change to it; in the thread, like :meth:`_prepare`."""

    @abstractmethod
    def _prepare(self, connection: Any) -> None:
        """Create the tables that the file lacks."""
        ...

    async def _open_file(self) -> None:
        """Open the file if it is not open; create it if it does not exist and may be created."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=type(self).__name__)
            self._process = os.getpid()
        await self._in_thread(self._connect)

    async def _close_file(self) -> None:
        check_process(repr(self), self._process)
        self._process = 0
        thread, self._thread = self._thread, None
        if thread is None:
            return
        closed = self._closing = Future()

        def close() -> None:
            try:
                self._close()
            finally:
                closed.set_result(None)

        closing = asyncio.get_running_loop().run_in_executor(thread, close)
        thread.shutdown(wait=False)
        await asyncio.shield(closing)  # a cancellation here must not leave the file open

    def _opened(self) -> ThreadPoolExecutor:
        """Return the thread."""
        if self._thread is None:
            raise StoreUnavailableError(repr(self), "it is not open")
        check_process(repr(self), self._process)
        return self._thread

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        """Let the thread do work after what it has been given before."""
        return self._opened().submit(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._opened(), work)

    def _in_transaction(self, work: Callable[[Any], T], synchronous: str) -> T:
        """Do work with a cursor as one transaction, all or nothing; call in the thread.

        Args:
            work: the work.
            synchronous: ``"full"`` to have it on disk when this returns, ``"normal"`` if a loss of power may undo it,
                ``"off"`` if it may damage the file.
        """
        self._check_file()
        cursor = self._connection.cursor()
        with self._translated():
            if synchronous != self._synchronous:
                cursor.execute(f"pragma synchronous = {synchronous}")
                self._synchronous = synchronous
            with transaction(self._connection, self._begin):
                return work(cursor)

    @contextmanager
    def _translated(self, **remedies: str) -> Iterator[None]:
        """Raise the driver's errors as one of ours, with a remedy."""
        apsw = driver()
        try:
            yield
        except apsw.Error as error:
            known = {**_REMEDIES, **self._remedies, **remedies}
            remedy = next((text for kind, text in known.items() if isinstance(error, getattr(apsw, kind))), "").format(
                busy=self._busy_ms / 1000
            )
            is_permanent = isinstance(error, tuple(getattr(apsw, kind) for kind in _PERMANENT)) or (
                isinstance(error, apsw.CantOpenError) and self._path.exists()  # it is no file, or a right is missing
            )
            raise StoreUnavailableError(repr(self), f"{error}{remedy}", is_permanent=is_permanent) from error

    def _connect(self) -> None:
        if self._closing is not None:
            wait([self._closing])  # in the previous thread: its connection must not be used again
        if self._connection is not None:
            return
        apsw = driver()
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if self._is_creating else 0)
        with self._translated(**({} if self._is_creating else {"CantOpenError": _NO_FILE})):
            connection = apsw.Connection(os.fspath(self._path), flags)
            try:
                connection.set_busy_timeout(self._busy_ms)
                if not is_mended(apsw.sqlite_lib_version()):
                    connection.execute("pragma locking_mode = exclusive")
                self._check(connection)
                _use_wal(connection, self._busy_ms)
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        self._file = _file_of(connection.filename)
        found = (self._file, *(_file_of(connection.filename + end) for end in ("-wal", "-shm")))
        self._files = tuple(each for each in found if each is not None)
        self._connection, self._synchronous = connection, ""

    def _check_file(self) -> None:
        """Refuse a file that was deleted or replaced: its changes would be lost with this process."""
        for each in self._files:
            if _file_of(each[0]) != each:
                what = "the file" if each == self._file else f"{each[0][-len('-wal') :]} beside the file"
                raise StoreUnavailableError(
                    repr(self),
                    f"{what} was deleted or replaced while it was open: put it back, or restart this process, which writes its "
                    "changes to the file when it closes, and not when it is killed",
                )

    def _is_at(self, path: str) -> bool:
        """True if the file is at a path; False for an empty path."""
        found = _file_of(path)
        mine = _file_of(os.fspath(self._path)) if self._connection is None else self._file
        return found is not None and mine is not None and found[1:] == mine[1:]

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def driver(user: str = "SQLite") -> Any:
    """Return the package apsw.

    Raises:
        ModuleNotFoundError: if it is not installed; the message says what to install.
    """
    try:
        import apsw  # noqa: PLC0415  # the extra `sqlite`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{user} needs the package apsw: pip install 'ratelimited-executor[sqlite]'", name=error.name
        ) from error
    return apsw


@contextmanager
def transaction(connection: Any, begin: str = "begin immediate") -> Iterator[None]:
    """Commit what a block does with a connection, or undo it if it raises."""
    connection.execute(begin)
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _use_wal(connection: Any, busy_ms: int) -> None:
    """Set the WAL mode.

    Of connections that set it on a new file at the same moment, SQLite refuses all but one without waiting for the busy
    timeout: each holds a lock that the others wait for. A refused one has let go of its lock, and may try again.
    """
    until = time.monotonic() + busy_ms / 1000
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except driver().BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _file_of(path: str) -> _FileId | None:
    """Return what identifies a file; None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116  # in each transaction: a Path costs ten times as much
    except OSError:
        return None
    return path, found.st_dev, found.st_ino


def is_mended(version: str) -> bool:
    """True if a release of SQLite has no WAL-reset bug."""
    parts = tuple(int(part) for part in version.split("."))
    return parts >= (3, 51, 3) or (3, 50, 7) <= parts < (3, 51) or (3, 44, 6) <= parts < (3, 45)
