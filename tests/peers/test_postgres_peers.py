"""Limits shared through PostgreSQL: its tables, its runs, what is refused, and what happens when it is away."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import psycopg
import pytest

from ratelimited_executor import ExecutorManager, Window
from ratelimited_executor._core.fleet.limit_settings import WindowSettings
from ratelimited_executor._core.fleet.ticket_calls import Correction, PlanLimit, TicketCall, TicketReply, TicketRun
from ratelimited_executor.peers import PostgresPeers
from ratelimited_executor.peers.stored.postgres import PostgresSlotTransport, PostgresTransport
from ratelimited_executor.peers.transport import RefusedError
from tests.stores.tasks.postgres_server import END_CONNECTIONS, PostgresServer

from .stored_programs import KEYS, SETTINGS, hold, lower_an_adaptive_rate, work
from .stored_subjects import InPostgres, told_time
from .ticket_group import most_in

pytestmark = pytest.mark.real_time("a real server")

SECOND = 1_000_000
PLAN = (PlanLimit("window", "permits", WindowSettings.of(10, SECOND).write()),)
RUN = TicketRun(1, (("permits", 1),))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that the tests of this module restart."""
    with PostgresServer() as made:
        yield made


@pytest.fixture
def fresh(server: PostgresServer) -> PostgresServer:
    """That server, without tables."""
    with server.connect() as connection:
        connection.execute("drop table if exists fleet_schema, fleet_heads, fleet_records, fleet_names, fleet_run")
    return server


def call_of(*runs: TicketRun, **fields: Any) -> TicketCall:
    """Return a call of a peer that does not know the time."""
    told = {"peer": "p", "ahead_us": 0, "difference_us": SECOND, "quarantine_us": 1_800_000, "plan_id": "one"}
    return TicketCall(**{**told, "plan": PLAN, "runs": runs, **fields})


@contextlib.asynccontextmanager
async def transport_to(url: str, group: str = "default") -> Any:
    """Yield a transport, and close it."""
    transport = PostgresTransport(url, group)
    try:
        yield transport
    finally:
        await transport.aclose()


# Use.


async def test_two_managers_share_a_limit_and_slots(fresh) -> None:
    """Two managers of one group start together what one limit admits, and hold one slot in turn."""
    long = {"lease": 600, "hang_timeout": 600}  # a waiter does not look in time
    peers = [PostgresPeers(fresh.url, "one group {1}", **long) for _ in range(2)]
    async with ExecutorManager(peers=peers[0]) as one, ExecutorManager(peers=peers[1]) as other:
        executors = [each.executor("mail", rate="40/s", policy=Window()) for each in (one, other)]
        starts = sorted(await asyncio.gather(*(each.submit(work) for _ in range(30) for each in executors)))
        assert all(after - before >= 1.0 for before, after in zip(starts, starts[40:], strict=False))
        async with one.slots("pool", limit=1).hold() as slot:
            waiting = asyncio.ensure_future(hold(other.slots("pool", limit=1)))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert await asyncio.wait_for(waiting, 30) > slot.fence


async def test_adaptive_rate_is_one_for_all_processes(fresh) -> None:
    """An adaptive rate that one process lowers is adopted by another one of its group."""
    await lower_an_adaptive_rate(*(PostgresPeers(fresh.url, "adaptive") for _ in range(2)))


async def test_groups_are_independent(fresh) -> None:
    """Each group has limits of its own."""
    for group in ("one", "other"):
        async with transport_to(fresh.url, group) as transport:
            await transport.call([("mail", call_of())])
            [reply] = await transport.call([("mail", call_of(TicketRun(20, RUN.costs), number=1, **_now()))])
            assert len(reply.outcomes[0].tickets) == 10


async def test_calls_of_one_executor_in_one_message_all_count(fresh) -> None:
    """Several calls of an executor in one message, as when it closes, each begin where the one before has ended."""
    async with transport_to(fresh.url) as transport:
        [first] = await transport.call([("mail", call_of())])
        run = TicketRun(10, RUN.costs)
        [reply] = await transport.call([("mail", call_of(run, era=first.era, number=1, **_now()))])
        backs = [Correction("window", "", at, 1, receipts[0], True) for at, receipts in reply.outcomes[0].tickets]
        assert len(backs) == 10
        calls = [
            ("mail", call_of(era=first.era, number=2 + index, corrections=(back,))) for index, back in enumerate(backs)
        ]
        replies = await transport.call([*calls[:5], ("other", call_of()), *calls[5:]])
        assert [9, 8, 7, 6, 5, 0, 4, 3, 2, 1, 0] == [reply.limits[0].used for reply in replies]


def _now() -> dict[str, int]:
    """Return fields of a call that vouches for any time."""
    return {"since_us": 1, "earliest_us": 1, "latest_us": 1 << 52}


# Tables.


async def test_processes_make_the_tables_once(fresh) -> None:
    """Many processes that begin at the same moment make the tables once, as a role without other rights."""
    transports = [PostgresTransport(fresh.url, "default") for _ in range(8)]
    await asyncio.gather(*(each.connect() for each in transports))
    await asyncio.gather(*(each.aclose() for each in transports))
    with fresh.connect() as connection:
        rows = connection.execute("select version from fleet_schema").fetchall()
        kinds = connection.execute(
            "select relname, relpersistence from pg_class where relname like 'fleet%' and relkind = 'r'"
        )
        assert rows == [(1,)]
        assert dict(kinds.fetchall()) == {
            "fleet_schema": "p", "fleet_names": "p", "fleet_run": "p", "fleet_heads": "u", "fleet_records": "u",
        }  # fmt: skip


async def test_tables_of_a_newer_release_are_refused(fresh) -> None:
    """Tables that this release does not know are left alone."""
    async with transport_to(fresh.url) as transport:
        await transport.connect()
    with fresh.connect() as connection:
        connection.execute("update fleet_schema set version = 99, least = 99")
    async with transport_to(fresh.url) as transport:
        with pytest.raises(RefusedError, match="update this process"):
            await transport.connect()


async def test_missing_rights_are_a_refusal(fresh) -> None:
    """A role that may not use the tables is told so, as a refusal."""
    with fresh.connect() as connection:
        connection.execute("create table fleet_schema (version integer not null, least integer not null)")
    async with transport_to(fresh.url) as transport:
        with pytest.raises(RefusedError, match="permission denied"):
            await transport.connect()


async def test_tables_that_are_dropped_are_made_anew(fresh) -> None:
    """If somebody drops the tables, the call fails, and the next connection makes them again.

    What the process was answered from the old ones is not new, so it begins with a quarantine.
    """
    async with transport_to(fresh.url) as transport:
        await transport.call([("mail", call_of())])
        with fresh.connect() as connection:
            connection.execute("drop table fleet_schema, fleet_heads, fleet_records, fleet_names, fleet_run")
        with pytest.raises(RefusedError, match="does not exist"):
            await transport.call([("mail", call_of(number=1))])
        reply, other = await transport.call([("mail", call_of(number=2)), ("other", call_of())])
        assert (True, 0) == (reply.quarantine_us > 0, other.quarantine_us)


def test_keys_at_rest_leave_nothing_behind(postgresql) -> None:
    """Limits, penalties and queues of keys are gone once they are at rest."""
    with told_time():
        subject, now_us = InPostgres(postgresql), 1_700_000_000 * SECOND
        for number in range(40):
            run = TicketRun(3, (("permits", 0),), f"{KEYS[0]}{number}", SETTINGS[number % len(SETTINGS)])
            subject.tickets(now_us, call_of(run, number=number, penalties=((KEYS[1], 1000),), **_now()))
        assert {place[0] for place in subject.records()} == {"k", "p", "q"}
        for number in range(100, 160):
            now_us += SECOND
            subject.tickets(now_us, call_of(number=number, **_now()))
        assert subject.records() == {}
        subject.cleanup()


# Runs.


async def test_only_a_new_name_begins_at_once(fresh) -> None:
    """A name is new if it was never on the disk; what a crash has emptied begins with a quarantine."""
    async with transport_to(fresh.url) as transport:
        [first] = await transport.call([("mail", call_of())])
        with fresh.connect() as connection:
            connection.execute("truncate fleet_heads, fleet_records")
        emptied, other = await transport.call([("mail", call_of(number=1)), ("other", call_of())])
    assert (0, True, 0) == (first.quarantine_us, emptied.quarantine_us > 0, other.quarantine_us)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restart_of_the_server_is_another_run(fresh, mode) -> None:
    """After a restart all that is known has a quarantine, and so have new names, whose latest writes may be lost."""
    async with transport_to(fresh.url) as transport:
        [before] = await transport.call([("mail", call_of())])
        await asyncio.to_thread(fresh.restart, mode)
        with pytest.raises(psycopg.OperationalError):
            await transport.call([("mail", call_of(number=1))])
        known, new = await transport.call([("mail", call_of(number=2)), ("new", call_of())])
        assert min(known.quarantine_us, new.quarantine_us) > 0
        assert known.era != before.era
        transport._since_us -= 4 * SECOND
        [late] = await transport.call([("later", call_of())])
        assert late.quarantine_us == 0


@pytest.mark.slow
async def test_failover_is_another_run(fresh) -> None:
    """A standby refuses calls; once promoted, known and new names have a quarantine, and all processes see one run."""
    async with transport_to(fresh.url) as transport:
        [before] = await transport.call([("mail", call_of())])
    with fresh.standby() as standby:
        async with transport_to(standby.url) as transport:
            with pytest.raises(psycopg.Error, match="recovery is in progress"):
                await transport.connect()
        fresh.stop("immediate")
        standby.promote()
        async with transport_to(standby.url) as transport, transport_to(standby.url) as other:
            known, new = await transport.call([("mail", call_of()), ("new", call_of())])
            with standby.connect() as connection:
                connection.execute("checkpoint")
            [later] = await other.call([("mail", call_of(number=1))])
    fresh.start()
    assert min(known.quarantine_us, new.quarantine_us) > 0
    assert before.era != known.era == later.era


# Outages.


async def test_isolation_of_the_role_does_not_matter(fresh) -> None:
    """A role whose transactions are serializable by default calls at the same time as others, without failures."""
    with fresh.connect() as connection:
        connection.execute("alter role app set default_transaction_isolation = 'serializable'")
    try:
        async with transport_to(fresh.url) as one, transport_to(fresh.url) as other:
            await one.call([("mail", call_of())])
            for number in range(1, 20):
                calls = (each.call([("mail", call_of(number=number))]) for each in (one, other))
                assert all(isinstance(reply, TicketReply) for [reply] in await asyncio.gather(*calls))
    finally:
        with fresh.connect() as connection:
            connection.execute("alter role app reset default_transaction_isolation")


@pytest.mark.parametrize("fault", ["restart", "crash", "ended connections", "stopped backends", "locked"])
async def test_limits_hold_through_what_befalls_the_server(fresh, fault, caplog) -> None:
    """The limit holds through a fault, the event loop runs on, and starts come back."""
    caplog.set_level(logging.INFO)
    starts: list[tuple[float, int]] = []

    async def start() -> None:
        starts.append((time.monotonic(), 1))

    async def submit(executor: Any) -> None:
        while True:
            await executor.submit(start)

    async with ExecutorManager(peers=PostgresPeers(fresh.url, timeout=0.1)) as manager:
        executor = manager.executor("mail", rate="50/s", policy=Window())
        tasks = [asyncio.ensure_future(submit(executor)) for _ in range(4)]
        await asyncio.sleep(1.5)
        assert starts
        turn_count = asyncio.ensure_future(_count_turns(2))
        await _befall(fresh, fault)
        count = len(starts)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if len(starts) > count + 20:
                break
        for task in tasks:
            task.cancel()
        assert await turn_count >= 20, "some 350 on an idle machine, and few if the event loop waited for the server"
    assert len(starts) > count + 20
    assert most_in(starts, 1.0) <= 50
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("psycopg")]


async def _count_turns(seconds: float) -> int:
    """Count the turns of the event loop."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.005)
        count += 1
    return count


async def _befall(server: PostgresServer, fault: str) -> None:
    if fault in ("restart", "crash"):
        await asyncio.to_thread(server.restart, "fast" if fault == "restart" else "immediate")
        return
    with server.connect() as connection:
        if fault == "ended connections":
            connection.execute(END_CONNECTIONS)
        elif fault == "locked":
            connection.execute("begin")
            lock = "lock table fleet_heads in access exclusive mode"
            await asyncio.to_thread(connection.execute, lock)  # a call on this loop may hold it
            await asyncio.sleep(1)
            connection.execute("rollback")
        else:
            rows = connection.execute("select pid from pg_stat_activity where usename = 'app'").fetchall()
            for (pid,) in rows:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(1)
            for (pid,) in rows:
                os.kill(pid, signal.SIGCONT)


async def test_closing_does_not_wait_for_a_server_that_hangs(fresh) -> None:
    """Peers whose server hangs in the middle of a call are closed in bounded time."""
    async with ExecutorManager(peers=PostgresPeers(fresh.url, timeout=30)) as manager:
        executor = manager.executor("mail", rate="50/s", policy=Window(), drain_timeout=0)
        await executor.submit(work)
        with fresh.connect() as connection:
            connection.execute("begin")
            lock = "lock table fleet_heads in access exclusive mode"
            await asyncio.to_thread(connection.execute, lock)  # a call on this loop may hold it
            late = executor.submit(work)
            await asyncio.sleep(0.6)
            late.cancel()
            begin = time.monotonic()
            await manager.aclose()
            assert time.monotonic() - begin < 5


async def test_hand_over_without_notices_is_found(fresh, monkeypatch) -> None:
    """If no notice can be received, waiters look by themselves."""

    async def listen(*_: Any) -> None:
        raise ConnectionError("no notices")

    monkeypatch.setattr(PostgresSlotTransport, "listen", listen)
    peers = [PostgresPeers(fresh.url, lease=600, hang_timeout=600) for _ in range(2)]
    async with ExecutorManager(peers=peers[0]) as one, ExecutorManager(peers=peers[1]) as other:
        async with one.slots("pool", limit=1).hold():
            waiting = asyncio.ensure_future(hold(other.slots("pool", limit=1)))
            await asyncio.sleep(0.2)
        await asyncio.wait_for(waiting, 30)


# What is refused.


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"conninfo": ""}, ValueError),
        ({"conninfo": 7}, TypeError),
        ({"group": ""}, ValueError),
        ({"group": 7}, TypeError),
        ({"group": "a\nb"}, ValueError),
        ({"lease": 1000}, ValueError),
        ({"clock_difference": 100}, ValueError),
    ],
)
def test_bad_argument_is_refused_by_its_name(options, error) -> None:
    """An argument of another type or out of range raises, with its name."""
    with pytest.raises(error, match=next(iter(options))):
        PostgresPeers(**{"conninfo": "postgresql://localhost/app", **options})


async def test_password_is_not_shown() -> None:
    """Neither the text of the object nor an error repeats a password."""
    for conninfo in ("postgresql://app:geheim/x@localhost:5432/app", "host=localhost password='geheim"):
        async with transport_to(conninfo) as transport:
            with pytest.raises(RefusedError) as raised:
                await transport.connect()
        assert "geheim" not in str(raised.value) + repr(PostgresPeers(conninfo)) + repr(transport)


async def test_fork_is_refused(fresh) -> None:
    """A process that was forked after the connection was made does not use it."""
    async with transport_to(fresh.url) as transport:
        await transport.connect()
        with mock.patch("os.getpid", return_value=1), pytest.raises(RuntimeError, match="is a fork of it"):
            await transport.call([("mail", call_of())])
