"""Peers that share their limits through a file, for the processes of one machine.

Each call is one transaction: it locks the file, reads what it needs, decides, writes what has changed. A thread of the
file does that, and the event loop lets it: it waits for the thread for some milliseconds at most. That is time in which
the thread needs the interpreter anyway. If both ran at once, a busy event loop would take it away in the middle of the
transaction, for 5 ms after each statement, and all processes would wait for the file. What may take long is not waited
for: a lock of another process is tried again after a pause, in which the event loop runs on, and so it does while the
disk does not answer. A file in memory (tmpfs) has no disk to wait for, so its calls need no thread.

Nothing is forced to the disk: a process that crashes loses nothing, as the system has all that it wrote, and a machine
that crashes may damage the file, which then is worth nothing anyway, as all processes are gone.

Time is that of the machine's clock, by which all its processes measure, plus an offset that makes it agree with the wall
clock of when the group began. So a step of the wall clock does not matter, unless there is a quota, whose days are those
of the wall clock: then the offset is renewed.

The *run* of the file changes if the machine was restarted, the offset is renewed, or a process has come from another file
at this path: what was remembered may then be incomplete, and a quarantine begins, as after a restart of a server. Else
there is none, not for a new group either: a file of this run has all that was ever written to it, because the system
loses nothing while it runs, so no head in it means that no peer has ever been answered. The exception are peers that were
answered from a file that was deleted or replaced since. Each notices that at its next call, and begins a new run, unless
another one has done so since its last call; for up to a second, both files may admit starts. Two machines that share a file, on a file system that is not known to
be one of a network, see each other's boot id, and begin a new run each time, so that nothing is ever admitted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ratelimited_executor._core.fleet.policies import Outage, Strictness
from ratelimited_executor._forks import check_process
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.peers.fleet import FleetPeers, new_peer_id
from ratelimited_executor.peers.machine import (
    MEMORY_SYSTEMS,
    NETWORK_SYSTEMS,
    boot_id,
    clock_us,
    file_system_of,
    wall_us,
)
from ratelimited_executor.peers.stored.deciding import (
    GONE_KEPT,
    QUIET_US,
    SLOTS,
    SlotCopy,
    answer,
    bytes_of,
    due_count,
    name_of,
    places,
    quiet_us,
)
from ratelimited_executor.peers.stored.wakes import Wakes
from ratelimited_executor.peers.transport import LOGGER, RefusedError
from ratelimited_executor.stores.sqlite_file import SQLiteFile, driver, refuse_directory, transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from os import PathLike

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.fleet.slots import SlotCall, SlotReply
    from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply
    from ratelimited_executor.peers.stored.deciding import Change

T = TypeVar("T")

__all__ = ["FilePeers", "FileSlotTransport", "FileTransport"]

_OPENING: Final = Lock()  # a file that one thread creates is not opened by another before it is closed
_FILE: Final = b"f"  # the name of the head that describes the file
_VERSION: Final = 1  # of the tables
_WALL_US: Final = 1_000_000  # by which the clock and the wall clock may disagree, where that matters
_TURN_SECONDS: Final = 0.005  # for which the event loop waits for the thread, which needs a tenth of that
_PAUSE_SECONDS: Final = 0.0002  # before a lock of another process is tried again, doubled up to ...
_PAUSE_MAX_SECONDS: Final = 0.002
_CONNECT_SECONDS: Final = 1.0  # for which another process may hold the file while it is opened
_REMEDIES: Final = {
    "BusyError": ": another process has held the file for {busy:g} s",
    "FullError": ": make room on the disk",
    "NotADBError": ": it holds no limits: name another file, or delete it if nothing else needs it",
    "CorruptError": ": delete it with -wal and -shm beside it; all processes continue in a new file",
}
_TABLES: Final = (
    "create table if not exists heads (name blob primary key, number integer, text text) strict, without rowid",
    """create table if not exists records (
        name blob, place blob, number integer, text text, primary key (name, place)) strict, without rowid""",
    "create index if not exists records_by_number on records (name, number, place)",
)
_READ_HEADS: Final = "select name, number, text from heads where name in (?, ?)"
_WRITE_HEAD: Final = """
    insert into heads values (?, ?, ?) on conflict do update set number = excluded.number, text = excluded.text"""
_READ_DUE: Final = """
    select place, number, text from records where name = ? and number <= ? order by number, place limit ?"""
_READ_PLACES: Final = "select place, number, text from records where name = ? and place in ({})"
_READ_SINCE: Final = "select place, text from records where name = ? and number > ?"
_WRITE: Final = """
    insert into records values (?, ?, ?, ?) on conflict do update set number = excluded.number, text = excluded.text"""
_DELETE: Final = "delete from records where name = ? and place = ?"
_DELETE_ALL: Final = "delete from records where name = ?"
_DELETE_GONE: Final = "delete from records where name = ? and text is null and number <= ?"


class FilePeers(FleetPeers):
    """Share the limits of each executor with all processes of this machine that use the same file.

    No server is needed: each process decides for itself, in a transaction. An executor shares its limits with the
    executors of the same name in the other processes; the limits in force are those that were set last. The slots of a
    manager and an adaptive rate are shared as well.

    Args:
        path: the path of the file, which is created if it does not exist, for this user alone. Its directory exists, and
            is on this machine's own disk or in its memory; the group is the file.
        weight: this process's share, relative to others, while demand exceeds the limits, > 0.
        strictness: the law for the starts of the group.
        outage: the behaviour while the file cannot be used.
        interval: how far ahead permits may be reserved, in seconds, 0.05 to 5.
        late: how many seconds after its time a permit of a calendar quota may be used, 0.003 to 0.1.
        timeout: seconds, 0.001 to 60, after which a call counts as lost; other processes may lock the file for as long.
        lease: seconds, 0.5 to 600, for which a slot is held without renewal; the same in all processes.
        hang_timeout: seconds, at least ``lease``, for which an event loop may be blocked before its slots are no longer
            renewed.

    Raises:
        ModuleNotFoundError: without the extra ``sqlite``.
        NotImplementedError: on Windows.
        FileNotFoundError: if the directory of the file does not exist.
        IsADirectoryError: if ``path`` is a directory.
        TypeError: if an argument has another type.
        ValueError: if one is out of range, or ``path`` is a URL.

    >>> peers = FilePeers("app.limits")  # doctest: +SKIP
    >>> manager = ExecutorManager(peers=peers)  # doctest: +SKIP
    """

    __slots__ = ("_path",)

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        weight: float = 1.0,
        strictness: Strictness = Strictness.EXACT,
        outage: Outage = Outage.STOP,
        interval: DurationLike = 0.25,
        late: DurationLike = 0.019,
        timeout: DurationLike = 0.25,
        lease: DurationLike = 10.0,
        hang_timeout: DurationLike = 60.0,
    ) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("FilePeers do not work on Windows: use RedisPeers or PostgresPeers")
        driver("FilePeers")
        transport, wakes = FileTransport(path), Wakes()
        _check_place(Path(path))
        super().__init__(
            transport,
            partial(FileSlotTransport, path, wakes),
            weight=weight,
            strictness=strictness,
            outage=outage,
            interval=interval,
            late=late,
            clock_difference=_WALL_US / 1e6,
            timeout=timeout,
            lease=lease,
            hang_timeout=hang_timeout,
            new_id=wakes.new_id,
        )
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"<FilePeers {str(self._path)!r} {self.id}>"


def _check_place(path: Path) -> None:
    """Refuse a place where no file can be, so that a program ends as it starts instead of waiting for its limits.

    Raises:
        FileNotFoundError: if there is no directory for it.
        IsADirectoryError: if a directory is in its place.
    """
    refuse_directory(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"path must be in a directory that exists, got {str(path)!r}: make the directory {str(path.parent)!r} first"
        )


class _Moment(NamedTuple):
    """A time of the file, and the run that it belongs to.

    Attributes:
        now_us: the time.
        run: the run.
        since_us: when that began; 0 for the first one of the file.
    """

    now_us: int
    run: str
    since_us: int


class _LimitsFile(SQLiteFile):
    """The tables of a file, and its clock."""

    _busy_ms = round(1000 * _CONNECT_SECONDS)
    _remedies = _REMEDIES

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        self._boot_id = boot_id()
        self._is_in_memory = False
        self._was_lost = False  # the file that was open before has been deleted or replaced
        self._called_us = 0  # the machine's clock after the latest call

    def __repr__(self) -> str:
        return f"FilePeers({str(self._path)!r})"

    def _connect(self) -> None:
        if self._connection is None:
            system = file_system_of(self._path)
            self._is_in_memory = system in MEMORY_SYSTEMS
            if system in NETWORK_SYSTEMS:
                raise StoreUnavailableError(
                    repr(self), f"it is on a file system of a network ({system}): name a file on a disk of this machine"
                )
        with _OPENING:
            if self._connection is None:
                self._create()
            super()._connect()

    def _create(self) -> None:
        """Create a file of this user alone, if there is none.

        If there is one, it is not opened here: closing it again would end all locks that this process has on it.
        """
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreUnavailableError(
                repr(self), f"{error.strerror}: make its directory, and let this process write it"
            ) from error

    def _prepare(self, connection: Any) -> None:
        with transaction(connection):
            [(version,)] = connection.execute("pragma user_version")
            if version > _VERSION:
                raise StoreUnavailableError(
                    repr(self), f"a newer release has made it (version {version}): update this process"
                )
            for statement in _TABLES if version < _VERSION else ():
                connection.execute(statement)
            if version < _VERSION:
                connection.execute(f"pragma user_version = {_VERSION}")
        connection.set_busy_timeout(0)  # calls are made again

    async def _once_free(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make an attempt, and another one after each pause, until the file can be used."""
        pause = _PAUSE_SECONDS
        while True:
            try:
                return await attempt()
            except AgainError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_SECONDS)

    def _transact(self, work: Callable[[Any], T]) -> T:
        """Do work with a cursor as one transaction.

        Raises:
            AgainError: if another process has locked the file, or it is to be opened anew.
            RefusedError: if it cannot be used.
        """
        if self._connection is None:
            self._reach()
        try:
            result = self._in_transaction(work, "off")
        except StoreUnavailableError as error:
            if error.__cause__ is None:  # it is not the file any more that was opened
                LOGGER.warning(
                    "fleet: %r was deleted or replaced while it was open; limits continue in the file that is there now",
                    str(self._path),
                )
                self._close()
                self._was_lost = True
                raise AgainError(f"{str(self._path)!r} was deleted or replaced") from error
            if type(error.__cause__).__name__ == "BusyError":
                raise AgainError(f"another process has locked {str(self._path)!r}") from error
            raise RefusedError(str(error)) from error
        self._was_lost, self._called_us = False, clock_us()
        return result

    def _reach(self) -> None:
        """Open the file.

        Raises:
            RefusedError: if it cannot be used.
        """
        try:
            self._connect()
        except StoreUnavailableError as error:
            raise RefusedError(str(error)) from error

    def _moment(self, cursor: Any, text: str | None, *, follows_wall: bool) -> _Moment:
        """Return the time, by the head that describes the file; begin a new run if there is a reason."""
        clock, wall = clock_us(), wall_us()
        try:
            version, boot, offset, run, since_us = json.loads(text or "[0, 0, 0, 0, 0]")
        except (TypeError, ValueError):
            version = offset = since_us = 0
        is_known = version == _VERSION
        is_set = is_known and (follows_wall or not self._boot_id) and abs(clock + offset - wall) > _WALL_US
        is_other = self._was_lost and since_us - offset <= self._called_us
        if is_known and boot == self._boot_id and not is_set and not is_other:
            return _Moment(clock + offset, run, since_us)
        if not is_known or boot != self._boot_id or is_set:
            offset = wall - clock
        is_first = text is None and not self._was_lost
        moment = _Moment(clock + offset, new_peer_id(), 0 if is_first else clock + offset)
        described = json.dumps([_VERSION, self._boot_id, offset, moment.run, moment.since_us])
        cursor.execute(_WRITE_HEAD, (_FILE, None, described))
        return moment

    def _write(self, cursor: Any, name: bytes, changes: Sequence[Change]) -> None:
        gone = [(name, bytes_of(place)) for place, number, _ in changes if number is None]
        kept = [(name, bytes_of(place), number, text) for place, number, text in changes if number is not None]
        if kept:
            cursor.executemany(_WRITE, kept)
        if gone:
            cursor.executemany(_DELETE, gone)


class AgainError(Exception):
    """The file cannot be used at this moment: try again."""


class FileTransport(_LimitsFile):
    """Decides on the calls of executors in a file.

    Args:
        path: the path of the file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        self._latest: Future[Any] | None = None  # call

    async def connect(self) -> None:
        """Open the file.

        Raises:
            RefusedError: if it cannot be used.
        """
        try:
            await self._open_file()
        except StoreUnavailableError as error:
            raise RefusedError(str(error)) from error

    async def aclose(self) -> None:
        """Close the file."""
        await self._close_file()

    async def call(self, calls: Sequence[tuple[str, TicketCall]]) -> list[TicketReply | Exception]:
        """Answer calls, all in one transaction; return the replies, or the errors, in order."""
        return await self._once_free(lambda: self._call_now(calls))

    async def _call_now(self, calls: Sequence[tuple[str, Any]]) -> list[TicketReply | Exception]:
        def work() -> list[TicketReply | Exception]:
            return self._transact(lambda cursor: [self._call(cursor, *each) for each in calls])

        is_free = self._latest is None or self._latest.done()
        if self._is_in_memory and is_free and self._connection is not None:
            check_process(repr(self), self._process)
            return work()
        future = self._latest = self._submit(work)
        if is_free:
            wait([future], timeout=_TURN_SECONDS)
        return await asyncio.wrap_future(future)

    def _call(self, cursor: Any, executor: str, call: Any) -> TicketReply | Exception:
        name = name_of(executor)
        heads = {key: (number, text) for key, number, text in cursor.execute(_READ_HEADS, (_FILE, name))}
        is_by_calendar = any(each.settings.startswith("q") for each in call.plan)
        now_us, run, since_us = self._moment(cursor, heads.get(_FILE, (None, None))[1], follows_wall=is_by_calendar)
        has_keys, head = heads.get(name, (None, None))
        records = [] if has_keys is None else list(cursor.execute(_READ_DUE, (name, now_us, due_count(call))))
        needed = places(call)
        if needed:
            text = _READ_PLACES.format(",".join("?" * len(needed)))
            records += cursor.execute(text, (name, *needed))
        is_new = not since_us or now_us >= since_us + QUIET_US
        try:
            found = answer(now_us, run, _vouched(call, now_us), head, records, is_new=is_new)
        except RefusedError as error:
            return error
        self._write(cursor, name, found.changes)
        cursor.execute(_WRITE_HEAD, (name, 1 if found.changes else has_keys, found.head))
        return found.reply


class FileSlotTransport(_LimitsFile):
    """Decides on the calls of slots in a file.

    Args:
        path: the path of the file.
        wakes: notify other processes.
    """

    def __init__(self, path: str | PathLike[str], wakes: Wakes) -> None:
        super().__init__(path)
        self._copy = SlotCopy(is_clock_steady=True)
        self._wakes = wakes

    async def call_slots(self, call: SlotCall) -> SlotReply:
        """Answer a call.

        Raises:
            RefusedError: if the file cannot be used.
        """
        reply, woken = await self._once_free(lambda: self._call_now(call))
        self._wakes.send(woken)
        return reply

    async def _call_now(self, call: SlotCall) -> tuple[SlotReply, list[str]]:
        return self._call(call)  # the keeper of slots has a thread of its own

    def _call(self, call: SlotCall) -> tuple[SlotReply, list[str]]:
        try:
            return self._transact(lambda cursor: self._decide(cursor, call))
        except AgainError:
            raise  # before it has decided
        except BaseException:
            self._copy.forget()
            raise

    def _close(self) -> None:
        self._copy.forget()
        super()._close()

    def _decide(self, cursor: Any, call: SlotCall) -> tuple[SlotReply, list[str]]:
        heads = {key: (number, text) for key, number, text in cursor.execute(_READ_HEADS, (_FILE, SLOTS))}
        now_us, run, since_us = self._moment(cursor, heads.get(_FILE, (None, None))[1], follows_wall=False)
        head, records = heads.get(SLOTS), []
        if head is not None:
            since = self._copy.since(head[0])
            if since != head[0]:
                records = list(cursor.execute(_READ_SINCE, (SLOTS, since)))
        is_new = not since_us or now_us >= since_us + quiet_us(call)
        found = self._copy.answer(now_us, run, call, head, records, is_new=is_new)
        if found.is_anew:
            cursor.execute(_DELETE_ALL, (SLOTS,))
        self._write(cursor, SLOTS, found.changes)
        cursor.execute(_WRITE_HEAD, (SLOTS, found.version, found.head))
        if found.version % GONE_KEPT == 0:
            cursor.execute(_DELETE_GONE, (SLOTS, found.version - GONE_KEPT))
        return found.reply, found.woken

    async def listen(self, peer: str, listening: Callable[[], None], woken: Callable[[str], None]) -> None:  # noqa: ARG002  # the socket is the peer's
        """Receive notices of hand-overs until that fails."""
        await self._wakes.listen(listening, woken)

    async def aclose(self) -> None:
        """Close the file and the socket."""
        self._wakes.close()
        self._close()


def _vouched(call: TicketCall, now_us: int) -> TicketCall:
    """Return a call whose peer vouches for all time so far, as the clock of the file makes no steps.

    A peer that does not know the clock yet vouches for the present: it is the answer that tells it the time.
    """
    if call.since_us:
        return replace(call, since_us=1)
    return replace(call, since_us=1, earliest_us=now_us, latest_us=now_us)
