"""Peers that share their limits through PostgreSQL, for processes on many machines.

Each call is one transaction of two messages: it locks the group and reads what it needs; then it writes what the process
has decided. The lock is an advisory one, which leaves no dead rows behind. Time is that of the server.

The *run* of the server is known by when it was started, by its identity and by its timeline: each restart and each
failover may have lost the latest writes, and begins a quarantine. A missing head does not prove that there was none: the
tables are unlogged, so that a crash empties them. But the names of groups are logged, and a name is on the disk before
its first call is answered. So where a name is missing in the run in which the tables were made, or long after another
one began, there was no call, and no quarantine is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.policies import Outage, Strictness
from ratelimited_executor._core.fleet.slots import peer_of
from ratelimited_executor._forks import check_process
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.peers.fleet import FleetPeers
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
from ratelimited_executor.peers.transport import RefusedError
from ratelimited_executor.stores.postgres_driver import check_conninfo, check_text, driver_for, versions_of
from ratelimited_executor.stores.tasks.statements import read_schema, upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.fleet.slots import SlotCall, SlotReply
    from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply
    from ratelimited_executor.peers.stored.deciding import Change

__all__ = ["PostgresPeers", "PostgresSlotTransport", "PostgresTransport"]

_LOCK: Final = 7_261_833_406  # an advisory lock: one process at a time changes the schema
_LEAST_MS: Final = 1000  # for a statement, and for a transaction without one
_CLOSE_SECONDS: Final = (
    0.1  # for the end of a call that nobody waits for any more, and for the closing of its connection
)
_REFUSALS: Final = ("28", "3D", "42", "25006", "0A")  # beginnings of states: rights, database, tables, standby
_SCHEMA: Final = read_schema("postgres.sql", __package__)
_VERSION_TABLE: Final = "fleet_schema"
_VERSIONS: Final = f"create table if not exists {_VERSION_TABLE} (version integer not null, least integer not null)"
_NOW: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_SETTINGS: Final = """
    select set_config('synchronous_commit', 'off', false), set_config('lock_timeout', $1, false),
        set_config('statement_timeout', $2, false), set_config('idle_in_transaction_session_timeout', $2, false)"""
_RUN: Final = """
    select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint || ':' || system_identifier || ':'
        || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) from pg_control_system()"""
# The timeline is the one of which the server writes now: that of its latest checkpoint may be an older one for a while.
_READ_RUN: Final = "select since_us from fleet_run where run = $1"
_BEGIN_RUN: Final = f"""
    with old as (delete from fleet_run returning 1)
    insert into fleet_run select $1, case when exists (select from old) then {_NOW} else 0 end"""  # noqa: S608  # of constants
_NOTE_NAME: Final = "insert into fleet_names values ($1, $2) on conflict do nothing"
# By default it may be one whose statements all see what was there before the lock was waited for.
_BEGIN: Final = "begin isolation level read committed"
_TAKE: Final = "select pg_advisory_xact_lock($1)"
_READ: Final = f"""
    with moment as materialized (select {_NOW} as now_us)
    select 'now', null::bytea, now_us, null from moment
    union all select 'known', null, 0, null from fleet_names where fleet = $1 and name = $2
    union all select 'head', null, number, text from fleet_heads where fleet = $1 and name = $2
    union all (
        select 'record', place, number, text from fleet_records
        where fleet = $1 and name = $2 and number <= (select now_us from moment) order by number, place limit $3)
    union all select 'record', place, number, text from fleet_records
        where fleet = $1 and name = $2 and place = any($4)"""  # noqa: S608  # of constants
_READ_SLOTS: Final = f"""
    select 'now', null::bytea, {_NOW}, null
    union all select 'known', null, 0, null from fleet_names where fleet = $1 and name = $2
    union all select 'head', null, number, text from fleet_heads where fleet = $1 and name = $2
    union all select 'record', place, number, text from fleet_records where fleet = $1 and name = $2 and number > (
        select case when number between $3 and $3 + {GONE_KEPT} then $3 else 0 end
        from fleet_heads where fleet = $1 and name = $2)"""  # noqa: S608  # of constants
_WRITE_HEAD: Final = """
    insert into fleet_heads values ($1, $2, $3, $4)
    on conflict (fleet, name) do update set number = excluded.number, text = excluded.text"""
_WRITE: Final = """
    insert into fleet_records
    select $1, $2, place, number, text from unnest($3::bytea[], $4::bigint[], $5::text[]) as new (place, number, text)
    on conflict (fleet, name, place) do update set number = excluded.number, text = excluded.text"""
_DELETE: Final = "delete from fleet_records where fleet = $1 and name = $2 and place = any($3)"
_DELETE_ALL: Final = "delete from fleet_records where fleet = $1 and name = $2"
_DELETE_GONE: Final = """
    delete from fleet_records where fleet = $1 and name = $2 and text is null and number <= $3"""


class PostgresPeers(FleetPeers):
    """Share the limits of each executor with all processes of a group, through PostgreSQL (13 or later).

    Each process decides for itself, in a transaction. An executor shares its limits with the executors of the same name
    in the other processes; the limits in force are those that were set last. The slots of a manager and an adaptive rate are
    shared as well.

    The names of the tables begin with ``fleet_``. They are in the first schema of the connections' ``search_path``, and
    are created if they do not exist.

    Args:
        conninfo: the connection string, as libpq reads it: a URL ``postgresql://...`` or a text of ``name=value``.
        group: the name of the group; groups are independent of each other.
        weight: this process's share, relative to others, while demand exceeds the limits, > 0.
        strictness: the law for the starts of the group.
        outage: the behaviour while PostgreSQL is away.
        interval: how far ahead permits may be reserved, in seconds, 0.05 to 5.
        late: how many seconds after its time a permit of a calendar quota may be used, 0.003 to 0.1.
        clock_difference: the largest difference, in seconds, 0 to 60, between the clocks of a server and of one that takes
            over from it.
        timeout: seconds, 0.001 to 60, after which a call counts as lost.
        lease: seconds, 0.5 to 600, for which a slot is held without renewal; the same in all processes.
        hang_timeout: seconds, at least ``lease``, for which an event loop may be blocked before its slots are no longer
            renewed.

    Raises:
        ModuleNotFoundError: without the extra ``postgres``.
        TypeError: if an argument has another type.
        ValueError: if one is out of range.

    >>> peers = PostgresPeers("postgresql://localhost/app", "mail-service")  # doctest: +SKIP
    >>> manager = ExecutorManager(peers=peers)  # doctest: +SKIP
    """

    __slots__ = ("_group",)

    def __init__(
        self,
        conninfo: str,
        group: str = "default",
        *,
        weight: float = 1.0,
        strictness: Strictness = Strictness.EXACT,
        outage: Outage = Outage.STOP,
        interval: DurationLike = 0.25,
        late: DurationLike = 0.019,
        clock_difference: DurationLike = 1.0,
        timeout: DurationLike = 0.25,
        lease: DurationLike = 10.0,
        hang_timeout: DurationLike = 60.0,
    ) -> None:
        if not isinstance(group, str):
            raise TypeError(f"group must be a str, got {group!r}")
        if not group or not group.isprintable():
            raise ValueError(f"group must be printable and not empty, got {group!r}")
        transport = PostgresTransport(conninfo, group)
        super().__init__(
            transport,
            partial(PostgresSlotTransport, conninfo, group),
            weight=weight,
            strictness=strictness,
            outage=outage,
            interval=interval,
            late=late,
            clock_difference=clock_difference,
            timeout=timeout,
            lease=lease,
            hang_timeout=hang_timeout,
        )
        transport.timeout = self._timeout
        self._group = group

    def __repr__(self) -> str:
        return f"<PostgresPeers {self._group!r} {self.id}>"  # conninfo may hold a password


class _Connection:
    """One connection, which is opened anew after each error.

    Args:
        conninfo: the connection string.
        group: the group of the peers.

    Attributes:
        timeout: seconds for which a call may wait for others.
    """

    def __init__(self, conninfo: str, group: str) -> None:
        check_text(conninfo)
        self._driver = driver_for("PostgresPeers")
        self._conninfo, self._group = conninfo, group
        # Groups of equal numbers only wait for each other.
        self._lock = int.from_bytes(sha256(f"fleet {group}".encode()).digest()[:8], "big", signed=True)
        self.timeout = 1.0
        self._process = 0  # that has opened it
        self._connection: Any = None  # unless it is in use
        self._leaving: set[asyncio.Task[None]] = set()  # close connections
        self._run = ""
        self._since_us = 0  # when another run was seen last; 0 if there was none
        self._answered: set[bytes] = set()  # names of which calls were answered

    async def connect(self) -> None:
        """Open the connection, and create the tables that do not exist.

        Raises:
            RefusedError: if the server, or what it has, is not the right one.
        """
        check_process("PostgresPeers(...)", self._process)
        if self._connection is not None:
            return
        driver = self._driver
        try:
            check_conninfo("PostgresPeers(...)", driver, self._conninfo)
            connection = await driver.AsyncConnection.connect(
                self._conninfo, autocommit=True, cursor_factory=driver.AsyncRawCursor
            )
        except StoreUnavailableError as error:
            raise RefusedError(str(error)) from error
        except driver.Error as error:
            raise self._refusal(error) or error from error
        try:
            wait_ms = max(1, round(self.timeout * 1000))
            await connection.execute(_SETTINGS, (f"{wait_ms}ms", f"{max(_LEAST_MS, 2 * wait_ms)}ms"))
            await self._make_schema(connection)
            run, since_us = await self._find_run(connection)
        except BaseException as error:
            await _close(connection)
            refusal = self._refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        self._connection, self._process = connection, os.getpid()
        self._run, self._since_us = run, since_us

    async def _make_schema(self, connection: Any) -> None:
        if not await self._missing(connection):
            return
        async with connection.transaction():
            await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
            await connection.execute("set local synchronous_commit = on")
            await connection.execute(_VERSIONS)
            for statement in await self._missing(connection):
                await connection.execute(statement)

    async def _missing(self, connection: Any) -> list[str]:
        """Return the statements that bring the tables to this release."""
        versions = await versions_of(connection, _VERSION_TABLE)
        return upgrade("PostgresPeers(...)", _SCHEMA, versions, table=_VERSION_TABLE)

    async def _find_run(self, connection: Any) -> tuple[str, int]:
        """Return the run of the server and since when it is known, if another was before; record a new one."""
        [(run,)] = await (await connection.execute(_RUN)).fetchall()
        found = await (await connection.execute(_READ_RUN, (run,))).fetchone()
        if found is None:
            async with connection.transaction():
                await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
                found = await (await connection.execute(_READ_RUN, (run,))).fetchone()
                if found is None:
                    await connection.execute("set local synchronous_commit = on")
                    await connection.execute(_BEGIN_RUN, (run,))
                    found = await (await connection.execute(_READ_RUN, (run,))).fetchone()
        return str(run), found[0]

    def _is_new(self, name: bytes, now_us: int, quiet_us: int, *, is_known: bool) -> bool:
        """True if no call of a name has ever been answered; not so if its tables were dropped since."""
        is_quiet = not self._since_us or now_us >= self._since_us + quiet_us
        return not is_known and name not in self._answered and is_quiet

    async def _note_name(self, connection: Any, name: bytes) -> None:
        """Put a new name on the disk, before its first call is answered."""
        await connection.execute("set local synchronous_commit = on")
        await connection.execute(_NOTE_NAME, (self._group, name))

    async def aclose(self) -> None:
        """Close the connection."""
        if self._process != os.getpid():
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _in_transaction(self, work: Callable[[Any], Any]) -> Any:
        """Do work with the open connection as one transaction; close it after any error, as it may be anywhere then.

        Raises:
            RefusedError: if the server refuses it.
        """
        await self.connect()
        connection, self._connection = self._connection, None
        task = asyncio.ensure_future(self._transact(connection, work))
        try:
            result = await asyncio.shield(task)
        except BaseException as error:
            leaving = asyncio.ensure_future(_let_go(connection, task))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            refusal = self._refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        self._connection = connection
        return result

    async def _transact(self, connection: Any, work: Callable[[Any], Any]) -> Any:
        failure: Exception | None = None
        try:
            async with connection.pipeline():
                try:
                    await connection.execute(_BEGIN)
                    await connection.execute(_TAKE, (self._lock,))
                    return await work(connection)
                except Exception as error:  # noqa: BLE001  # raised below: within, the driver would log a warning of its own
                    failure = error
        except Exception:
            if failure is None:
                raise
        assert failure is not None
        raise failure

    def _refusal(self, error: BaseException) -> RefusedError | None:
        """Return the refusal that an error of the driver or the schema means; None if it is a lost connection."""
        if isinstance(error, StoreUnavailableError):
            return RefusedError(str(error))
        state = getattr(error, "sqlstate", None) if isinstance(error, self._driver.Error) else None
        return RefusedError(f"{type(error).__name__}: {error}") if state and state.startswith(_REFUSALS) else None

    async def _write(self, connection: Any, name: bytes, changes: Sequence[Change]) -> None:
        gone = [bytes_of(place) for place, number, _ in changes if number is None]
        kept = [(bytes_of(place), number, text) for place, number, text in changes if number is not None]
        if kept:
            await connection.execute(_WRITE, (self._group, name, *map(list, zip(*kept, strict=True))))
        if gone:
            await connection.execute(_DELETE, (self._group, name, gone))


class PostgresTransport(_Connection):
    """Decides on the calls of executors in a database."""

    async def call(self, calls: Sequence[tuple[str, TicketCall]]) -> list[TicketReply | Exception]:
        """Answer calls, all in one transaction; return the replies, or the errors, in order."""
        replies: list[TicketReply | Exception] = await self._in_transaction(partial(self._call, calls=calls))
        return replies

    async def _call(self, connection: Any, calls: Sequence[tuple[str, Any]]) -> list[TicketReply | Exception]:
        replies: list[TicketReply | Exception] = []
        for some in _apart(calls):
            replies += await self._decide(connection, some)
        await connection.execute("commit")
        self._answered.update(name_of(executor) for executor, _ in calls)
        return replies

    async def _decide(self, connection: Any, calls: Sequence[tuple[str, Any]]) -> list[TicketReply | Exception]:
        """Answer calls of different executors: all is read before anything is written, in two messages."""
        asked = [
            await connection.execute(_READ, (self._group, name_of(executor), due_count(call), places(call)))
            for executor, call in calls
        ]
        read = [_sorted(await cursor.fetchall()) for cursor in asked]
        replies: list[TicketReply | Exception] = []
        for (executor, call), (now_us, is_known, head, records) in zip(calls, read, strict=True):
            name = name_of(executor)
            is_new = self._is_new(name, now_us, QUIET_US, is_known=is_known)
            try:
                found = answer(now_us, self._run, call, head and head[1], records, is_new=is_new)
            except RefusedError as error:
                replies.append(error)
                continue
            if not is_known:
                await self._note_name(connection, name)
            await self._write(connection, name, found.changes)
            await connection.execute(_WRITE_HEAD, (self._group, name, None, found.head))
            replies.append(found.reply)
        return replies


def _apart(calls: Sequence[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    """Split calls where an executor occurs again: its next call reads what the one before has written."""
    some: dict[str, tuple[str, Any]] = {}
    for executor, call in calls:
        if executor in some:
            yield [*some.values()]
            some.clear()
        some[executor] = executor, call
    if some:
        yield [*some.values()]


class PostgresSlotTransport(_Connection):
    """Decides on the calls of slots in a database."""

    def __init__(self, conninfo: str, group: str) -> None:
        super().__init__(conninfo, group)
        self._copy = SlotCopy()

    async def call_slots(self, call: SlotCall) -> SlotReply:
        """Answer a call.

        Raises:
            RefusedError: if the server refuses it.
        """
        try:
            reply: SlotReply = await self._in_transaction(partial(self._call, call=call))
        except BaseException:
            self._copy.forget()
            raise
        return reply

    async def _call(self, connection: Any, call: SlotCall) -> SlotReply:
        asked = await connection.execute(_READ_SLOTS, (self._group, SLOTS, self._copy.version))
        now_us, is_known, head, records = _sorted(await asked.fetchall())
        if head is not None:
            self._copy.since(head[0])  # the statement has read the records changed since then
        is_new = self._is_new(SLOTS, now_us, quiet_us(call), is_known=is_known)
        known = [(place, text) for place, _, text in records]
        found = self._copy.answer(now_us, self._run, call, head, known, is_new=is_new)
        name = self._group, SLOTS
        if not is_known:
            await self._note_name(connection, SLOTS)
        if found.is_anew:
            await connection.execute(_DELETE_ALL, name)
        await self._write(connection, SLOTS, found.changes)
        await connection.execute(_WRITE_HEAD, (*name, found.version, found.head))
        if found.version % GONE_KEPT == 0:
            await connection.execute(_DELETE_GONE, (*name, found.version - GONE_KEPT))
        await connection.execute("commit")
        self._answered.add(SLOTS)
        for token in found.woken:  # after the commit: within a transaction it would lock the whole server for that
            channel = self._channel_of(peer_of(token))
            await connection.execute("select pg_notify($1, $2)", (channel, token))
        return found.reply

    def _channel_of(self, peer: str) -> str:
        return f"fleet_{sha256(f'{self._group} {peer}'.encode()).hexdigest()[:40]}"

    async def listen(self, peer: str, listening: Callable[[], None], woken: Callable[[str], None]) -> None:
        """Receive notices of hand-overs until that fails."""
        driver = self._driver
        async with await driver.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
            await connection.execute(f"listen {self._channel_of(peer)}")
            listening()
            async for notice in connection.notifies():
                woken(notice.payload)


def _sorted(
    rows: Sequence[tuple[str, bytes | None, int, str | None]],
) -> tuple[int, bool, tuple[int, str] | None, list[tuple[Any, int, Any]]]:
    """Return the time, whether the name is known, the head and the records among rows."""
    now_us, is_known, head, records = 0, False, None, []
    for kind, place, number, text in rows:
        if kind == "now":
            now_us = number
        elif kind == "known":
            is_known = True
        elif kind == "head":
            head = (number, text or "")
        else:
            records.append((place, number, text))
    return now_us, is_known, head, records


async def _let_go(connection: Any, task: asyncio.Task[Any]) -> None:
    """End the work of a task with a connection, and close it.

    If the task were cancelled, the driver would ask the server to cancel the statement, and wait for that.
    """
    await asyncio.wait([task], timeout=_CLOSE_SECONDS)
    if not task.done():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([task], timeout=_CLOSE_SECONDS)
    if not (task.cancel() or task.cancelled()):
        task.exception()  # it has been raised, or nobody waits for it
    await _close(connection)


async def _close(connection: Any) -> None:
    """Close a connection, also one whose server has gone."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.close()
