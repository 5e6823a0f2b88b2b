"""Authorities with a memory in a database behind one interface: a file, PostgreSQL, and values in memory to compare with.

The server's time and run are arguments. All else, statements included, is production code; the calls of a program go
through several connections in turn, as those of processes do.
"""

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import psycopg
import redis

from ratelimited_executor._core.fleet.memory import StateRecord, TicketMemory
from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply
from ratelimited_executor._core.fleet.tickets import TicketAuthority
from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply
from ratelimited_executor.peers.stored import file, postgres
from ratelimited_executor.peers.stored.deciding import SLOTS, name_of, text_of
from ratelimited_executor.peers.stored.wakes import Wakes

from .slot_subjects import SlotsOnRedis
from .ticket_subjects import TicketsOnRedis

PROCESSES = 3
NAME = "mail"

_numbers = itertools.count(1)


class Subject(Protocol):
    """The tickets of one executor and the slots of its group."""

    run: str

    def tickets(self, now_us: int, call: TicketCall) -> TicketReply:
        """Answer a call for tickets."""
        ...

    def slots(self, now_us: int, call: SlotCall) -> SlotReply:
        """Answer a call for slots."""
        ...

    def woken(self) -> list[str]:
        """Return the tokens of which other peers were notified since the last call of this, in any order."""
        ...

    def restart(self) -> None:
        """Let the next process be a new one, which knows nothing."""
        ...


class InMemory:
    """The pure authorities, with calls and a beginning like those of a subject."""

    def __init__(self, subject: Subject) -> None:
        self.run = "a"
        self._is_file = isinstance(subject, InFile)
        self._is_proven = not isinstance(subject, OnRedis)  # that there was no call before the first one
        self._tickets: TicketAuthority | None = None
        self._slots: SlotAuthority | None = None

    def tickets(self, now_us: int, call: TicketCall) -> TicketReply:
        """Answer a call for tickets; the first one makes the group."""
        if self._tickets is None:
            self._tickets = TicketAuthority(TicketMemory.new(self.run, now_us) if self._is_proven else None)
        if self._is_file:
            call = file._vouched(call, now_us)
        return self._tickets.call(now_us, self.run, call)

    def slots(self, now_us: int, call: SlotCall) -> SlotReply:
        """Answer a call for slots; the first one makes the group."""
        if self._slots is None:
            self._slots = SlotAuthority(is_clock_steady=self._is_file)
            if self._is_proven:
                self._slots.begin(self.run, now_us)
        return self._slots.call(now_us, self.run, call)

    def woken(self) -> list[str]:
        """Empty the list."""
        if self._slots is None:
            return []
        woken, self._slots.woken = self._slots.woken, []
        return woken

    def records(self) -> dict[str, StateRecord]:
        """Return the records."""
        return {} if self._tickets is None else self._tickets.memory.records()

    def restart(self) -> None:
        """Do nothing: there are no processes."""


class InFile:
    """The transports of some processes with one file."""

    def __init__(self, folder: Path) -> None:
        self.run = "a"
        self.path = folder / f"{next(_numbers)}.limits"
        self._woken: list[str] = []
        self._turn = itertools.cycle(range(PROCESSES))
        self._now_us = 0
        self._open: list[Any] = [self._new() for _ in range(PROCESSES)]

    def _new(self) -> tuple[file.FileTransport, file.FileSlotTransport]:
        pair = file.FileTransport(self.path), file.FileSlotTransport(self.path, Wakes())
        for each in pair:
            each._moment = lambda *_, **__: file._Moment(self._now_us, self.run, 0)  # type: ignore[method-assign]
        return pair

    def tickets(self, now_us: int, call: TicketCall) -> TicketReply:
        """Answer a call in the next process."""
        self._now_us = now_us
        transport = self._open[next(self._turn)][0]
        [reply] = transport._transact(lambda cursor: [transport._call(cursor, NAME, call)])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def slots(self, now_us: int, call: SlotCall) -> SlotReply:
        """Answer a call in the next process."""
        self._now_us = now_us
        reply, woken = self._open[next(self._turn)][1]._call(call)
        self._woken += woken
        return reply

    def woken(self) -> list[str]:
        """Empty the list."""
        woken, self._woken = self._woken, []
        return woken

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on the file."""
        self._open[0][0]._connect()
        return list(self._open[0][0]._connection.execute(statement, values))

    def records(self) -> dict[str, StateRecord]:
        """Return the records."""
        rows = self.rows("select place, number, text from records where name = ?", name_of(NAME))
        return {text_of(place): StateRecord(number, text) for place, number, text in rows}

    def restart(self) -> None:
        """Open the file anew in one of the processes."""
        number = next(self._turn)
        for each in self._open[number]:
            each._close()
        self._open[number] = self._new()

    def cleanup(self) -> None:
        """Close the file, and remove it."""
        for pair in self._open:
            for each in pair:
                each._close()
        for end in ("", "-wal", "-shm"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)


class InPostgres:
    """The transports of some processes with one database."""

    def __init__(self, url: str) -> None:
        self.url, self.group = url, f"group {next(_numbers)} {os.getpid()}"
        self._runner = asyncio.Runner()
        self.run = "a"
        self._turn = itertools.cycle(range(PROCESSES))
        self._woken: list[str] = []
        self._open: list[Any] = [self._new() for _ in range(PROCESSES)]

    def _new(self) -> tuple[postgres.PostgresTransport, postgres.PostgresSlotTransport]:
        pair = postgres.PostgresTransport(self.url, self.group), postgres.PostgresSlotTransport(self.url, self.group)
        pair[1]._channel_of = self._woken_channel  # type: ignore[method-assign]
        return pair

    def _woken_channel(self, peer: str) -> str:
        self._woken.append(peer)
        return "nobody"

    def _do(self, transport: Any, now_us: int, call: Any) -> Any:
        async def do() -> Any:
            await transport.connect()
            transport._run, transport._since_us = self.run, 0
            await transport._connection.execute("select set_config('test.now', $1, false)", (str(now_us),))
            return await (
                transport.call([(NAME, call)]) if isinstance(call, TicketCall) else transport.call_slots(call)
            )

        return self._runner.run(do())

    def tickets(self, now_us: int, call: TicketCall) -> TicketReply:
        """Answer a call in the next process."""
        [reply] = self._do(self._open[next(self._turn)][0], now_us, call)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def slots(self, now_us: int, call: SlotCall) -> SlotReply:
        """Answer a call in the next process."""
        return self._do(self._open[next(self._turn)][1], now_us, call)

    def woken(self) -> list[str]:
        """Empty the list of peers, each with any number."""
        woken, self._woken[:] = list(self._woken), []
        return [f"{peer}:0" for peer in woken]

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in the database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return [] if cursor.description is None else cursor.fetchall()

    def records(self) -> dict[str, StateRecord]:
        """Return the records."""
        rows = self.rows(
            "select place, number, text from fleet_records where fleet = %s and name = %s", self.group, name_of(NAME)
        )
        return {text_of(place): StateRecord(number, text) for place, number, text in rows}

    def restart(self) -> None:
        """Connect anew in one of the processes."""
        number = next(self._turn)
        for each in self._open[number]:
            self._runner.run(each.aclose())
        self._open[number] = self._new()

    def cleanup(self) -> None:
        """Close the connections, and delete the group."""
        for pair in self._open:
            for each in pair:
                self._runner.run(each.aclose())
        self._runner.close()
        for table in ("fleet_heads", "fleet_records", "fleet_names"):
            self.rows(f"delete from {table} where fleet = %s", self.group)  # noqa: S608  # of constants


class OnRedis:
    """The scripts on a server, which need no processes to remember anything."""

    def __init__(self, client: redis.Redis) -> None:
        self.run = "a"
        self._tickets, self._slots = TicketsOnRedis(client), SlotsOnRedis(client)

    def tickets(self, now_us: int, call: TicketCall) -> TicketReply:
        """Run the script once."""
        self._tickets.run = self.run
        return self._tickets.call(now_us, call)

    def slots(self, now_us: int, call: SlotCall) -> SlotReply:
        """Run the script once."""
        self._slots.run = self.run
        return self._slots.call(now_us, call)

    def woken(self) -> list[str]:
        """Return the tokens of the messages received."""
        return self._slots.woken()

    def restart(self) -> None:
        """Do nothing."""

    def cleanup(self) -> None:
        """Delete the keys."""
        self._tickets.cleanup()
        self._slots.cleanup()


@contextmanager
def told_time() -> Iterator[None]:
    """Let PostgreSQL take the time from a setting."""
    setting = "current_setting('test.now')::bigint"
    with (
        mock.patch.object(postgres, "_READ", postgres._READ.replace(postgres._NOW, setting)),
        mock.patch.object(postgres, "_READ_SLOTS", postgres._READ_SLOTS.replace(postgres._NOW, setting)),
    ):
        yield


__all__ = ["SLOTS", "InFile", "InMemory", "InPostgres", "OnRedis", "Subject", "told_time"]
