"""Limits shared through a file: the file, its clock, what is refused, and what is remembered."""

import asyncio
import contextlib
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import pytest

from ratelimited_executor import ExecutorManager, Window
from ratelimited_executor._core.fleet.limit_settings import WindowSettings
from ratelimited_executor._core.fleet.memory import VERSION
from ratelimited_executor._core.fleet.slots import SlotCall
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketRun
from ratelimited_executor.peers import FilePeers, Outage, machine
from ratelimited_executor.peers.stored import deciding, file
from ratelimited_executor.peers.stored.file import AgainError, FileSlotTransport, FileTransport
from ratelimited_executor.peers.stored.wakes import Wakes
from ratelimited_executor.peers.transport import RefusedError
from ratelimited_executor.policies import Quota

from .stored_programs import KEYS, SETTINGS, SlotProgram, hold, lower_an_adaptive_rate, plan_of, work
from .stored_subjects import InFile, InMemory

pytestmark = pytest.mark.real_time("files")

SECOND = 1_000_000
PLAN = (PlanLimit("window", "permits", WindowSettings.of(10, SECOND).write()),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a file that does not exist yet."""
    return tmp_path / "app.limits"


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[InFile]:
    """Processes with one file, at a time that the test tells."""
    made = InFile(tmp_path)
    yield made
    made.cleanup()


def call_of(*runs: TicketRun, plan: tuple[PlanLimit, ...] = PLAN, **fields: Any) -> TicketCall:
    """Return a call of a peer that does not know the time."""
    told = {"peer": "p", "ahead_us": 0, "difference_us": SECOND, "quarantine_us": 1_800_000, "plan_id": "one"}
    return TicketCall(**{**told, "plan": plan, "runs": runs, **fields})


def answer(transport: FileTransport, *calls: TicketCall, names: tuple[str, ...] = ("mail",)) -> list[Any]:
    """Answer calls of each of some executors in one transaction, at the second attempt if need be."""
    while True:
        with contextlib.suppress(AgainError):
            return transport._transact(
                lambda cursor: [transport._call(cursor, name, call) for name in names for call in calls]
            )


# Use.


@pytest.mark.parametrize("system", ["ext4", "tmpfs"])
async def test_two_managers_share_a_limit(path, system, monkeypatch) -> None:
    """Two managers with one file start together what one limit admits, whether it is on a disk or in memory."""
    monkeypatch.setattr(file, "file_system_of", lambda _: system)
    starts: list[float] = []
    async with ExecutorManager(peers=FilePeers(path)) as one, ExecutorManager(peers=FilePeers(path)) as other:
        executors = [each.executor("mail", rate="40/s", policy=Window()) for each in (one, other)]
        handles = [executor.submit(work) for _ in range(30) for executor in executors]
        starts += await asyncio.gather(*handles)
    starts.sort()
    assert all(after - before >= 1.0 for before, after in zip(starts, starts[40:], strict=False))


async def test_two_managers_share_slots(path) -> None:
    """The only slot is held by one manager at a time, and handed over to the other, which does not look in time."""
    peers = [FilePeers(path, lease=600, hang_timeout=600) for _ in range(2)]
    async with ExecutorManager(peers=peers[0]) as one, ExecutorManager(peers=peers[1]) as other:
        mine, theirs = one.slots("pool", limit=1), other.slots("pool", limit=1)
        async with mine.hold() as slot:
            waiting = asyncio.ensure_future(hold(theirs))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert await asyncio.wait_for(waiting, 30) > slot.fence


async def test_slots_are_handed_over_without_datagrams(path, monkeypatch) -> None:
    """Where no datagram can be received, waiters look by themselves."""
    monkeypatch.setattr(Wakes, "send", lambda *_: None)
    async with ExecutorManager(peers=FilePeers(path, lease=1)) as one:
        async with ExecutorManager(peers=FilePeers(path, lease=1)) as other:
            async with one.slots("pool", limit=1).hold():
                waiting = asyncio.ensure_future(hold(other.slots("pool", limit=1)))
                await asyncio.sleep(0.1)
            await asyncio.wait_for(waiting, 30)


async def test_quota_is_that_of_the_wall_clock(path) -> None:
    """The periods of a quota are those of the calendar."""
    async with ExecutorManager(peers=FilePeers(path)) as manager:
        executor = manager.executor("mail", rate=Quota(3, per="day"), policy=Window())
        await asyncio.gather(*(executor.submit(work) for _ in range(3)))
        late = executor.submit(work)
        await asyncio.sleep(0.3)
        assert not late.done()
        late.cancel()


@pytest.mark.parametrize("system", ["ext4", "tmpfs"])
async def test_event_loop_stands_still_during_a_call(path, system, monkeypatch) -> None:
    """Callbacks of a busy event loop take the interpreter away neither from the thread of the file nor from others."""
    monkeypatch.setattr(file, "file_system_of", lambda _: system)
    monkeypatch.setattr(file, "_TURN_SECONDS", 30)  # however busy the machine is
    turn_count = 0

    async def turn() -> None:
        nonlocal turn_count
        while True:
            turn_count += 1
            await asyncio.sleep(0)

    transport = FileTransport(path)
    await transport.connect()
    turning = asyncio.ensure_future(turn())
    counts = []
    for number in range(20):
        before = turn_count
        await transport.call([("mail", call_of(number=number))])
        counts.append(turn_count - before)
    turning.cancel()
    await transport.aclose()
    assert max(counts) <= 5, "2 at most, and tens where the loop and the thread run at once"


# The file.


def test_file_belongs_to_the_user_alone(path) -> None:
    """Neither the file nor what SQLite puts beside it can be read by others, whatever the mask is."""
    before = os.umask(0)
    try:
        transport = FileTransport(path)
        answer(transport, call_of())
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        transport._close()
    finally:
        os.umask(before)
    assert modes == {"app.limits": 0o600, "app.limits-wal": 0o600, "app.limits-shm": 0o600}


def test_file_that_was_deleted_or_replaced_is_noticed(path, caplog) -> None:
    """A process whose file is gone begins a new run with the one that is there: a quarantine, as others may be there."""
    transport = FileTransport(path)
    [first] = answer(transport, call_of(TicketRun(1, (("permits", 1),))))
    assert (0, 1) == (first.quarantine_us, len(first.outcomes[0].tickets))
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    [second] = answer(transport, call_of(TicketRun(1, (("permits", 1),)), era=first.era, number=1))
    transport._close()
    assert second.quarantine_us > 0
    assert second.era != first.era
    assert not second.outcomes[0].tickets
    assert "was deleted or replaced" in caplog.text


def test_processes_of_a_lost_file_begin_one_run(path) -> None:
    """Of several processes whose file was replaced, the first begins a new run, and the others find it there."""
    one, other = FileTransport(path), FileTransport(path)
    for each in (one, other):
        answer(each, call_of())
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    eras = [answer(each, call_of(number=number))[0].era for number in (1, 2) for each in (one, other)]
    one._close()
    other._close()
    assert len(set(eras)) == 1


def test_new_name_in_a_new_run_may_have_been_in_the_other_file(path) -> None:
    """After a file was replaced, executors that the new one does not know have a quarantine, too."""
    transport = FileTransport(path)
    answer(transport, call_of())
    path.unlink()
    [_, reply] = answer(transport, call_of(), names=("a", "b"))
    transport._close()
    assert reply.quarantine_us > 0


# The clock.


def moment(transport: FileTransport, **options: Any) -> file._Moment:
    """Return the time of a file, as of a call."""
    text = dict(transport._connection.execute("select name, text from heads")).get(b"f")
    return transport._transact(lambda cursor: transport._moment(cursor, text, **{"follows_wall": False, **options}))


@pytest.fixture
def transport(path) -> Iterator[FileTransport]:
    """A transport whose file is open."""
    made = FileTransport(path)
    made._connect()
    yield made
    made._close()


def test_time_goes_on_with_the_machine(transport, monkeypatch) -> None:
    """The time of a file is that of the machine's clock, whatever is done to the wall clock."""
    first = moment(transport)
    assert abs(first.now_us - time.time_ns() // 1000) < SECOND
    wall = time.time_ns() // 1000
    monkeypatch.setattr(file, "wall_us", lambda: wall + 3600 * SECOND)
    second = moment(transport)
    assert first.run == second.run
    assert first.now_us <= second.now_us < first.now_us + 60 * SECOND


def test_quota_follows_a_step_of_the_wall_clock(transport, monkeypatch) -> None:
    """With a quota in force, a step of the wall clock begins a new run, with the new time."""
    first = moment(transport, follows_wall=True)
    assert first.run == moment(transport, follows_wall=True).run
    wall = time.time_ns() // 1000
    monkeypatch.setattr(file, "wall_us", lambda: wall + 3600 * SECOND)
    second = moment(transport, follows_wall=True)
    assert first.run != second.run
    assert second.now_us == second.since_us == wall + 3600 * SECOND
    assert second.run == moment(transport, follows_wall=True).run


def test_calls_with_a_quota_follow_the_wall_clock(transport, monkeypatch) -> None:
    """It is the plan of a call that decides whether the wall clock matters."""
    wall = time.time_ns() // 1000
    _, (quota,) = plan_of(2, wall)
    [first] = answer(transport, call_of())
    monkeypatch.setattr(file, "wall_us", lambda: wall + 3600 * SECOND)
    [second] = answer(transport, call_of(era=first.era, number=1))
    assert first.era == second.era
    [third] = answer(transport, call_of(plan=(quota,), plan_id="quota", is_new_plan=True, era=first.era, number=2))
    assert first.era != third.era


def test_restart_of_the_machine_begins_a_new_run(transport) -> None:
    """After another boot, what is in the file may be old, and a quarantine begins."""
    [first] = answer(transport, call_of())
    transport._boot_id = "another"
    [second] = answer(transport, call_of(era=first.era, number=1))
    assert (first.quarantine_us, second.quarantine_us > 0) == (0, True)
    assert moment(transport).since_us > 0


def test_without_a_boot_id_the_wall_clock_tells_of_a_restart(transport, monkeypatch) -> None:
    """Where the system has no boot id, a clock that disagrees with the wall clock has begun anew."""
    transport._boot_id = ""
    first = moment(transport)
    assert first.run == moment(transport).run
    clock = machine.clock_us()
    monkeypatch.setattr(file, "clock_us", lambda: clock - 1000 * SECOND)
    second = moment(transport)
    assert first.run != second.run
    assert second.now_us >= first.now_us


def test_machines_that_share_a_file_get_nothing(path) -> None:
    """Two machines with one file see each other's boot id, and none of them is admitted anything."""
    one, other = FileTransport(path), FileTransport(path)
    other._boot_id = "another machine"
    answer(one, call_of())
    counts = [
        len(outcome.tickets)
        for number in range(20)
        for transport in (other, one)
        for outcome in answer(transport, call_of(TicketRun(1, (("permits", 1),)), number=number))[0].outcomes
    ]
    one._close()
    other._close()
    assert set(counts) == {0}


# What is refused.


def refusal_of(path: Any) -> str:
    """Return why a file is refused."""
    transport = FileTransport(path)
    with pytest.raises(RefusedError) as raised:
        asyncio.run(_connect(transport))
    return str(raised.value)


async def _connect(transport: FileTransport) -> None:
    try:
        await transport.connect()
    finally:
        await transport.aclose()


def test_file_that_cannot_be_used_is_refused_with_a_remedy(tmp_path) -> None:
    """Each refusal says what is wrong, and what to do."""
    assert "make its directory" in refusal_of(tmp_path / "none" / "app.limits")
    text = tmp_path / "text"
    text.write_text("no database, but a text of some length" * 20)
    assert "name another file" in refusal_of(text)
    damaged = tmp_path / "damaged"
    with apsw.Connection(str(damaged)) as connection:
        connection.execute("create table heads (name)")
    damaged.write_bytes(damaged.read_bytes()[:100] + bytes([255]) * 8000)
    assert "delete it with -wal and -shm beside it" in refusal_of(damaged)
    newer = tmp_path / "newer"
    with apsw.Connection(str(newer)) as connection:
        connection.execute("pragma user_version = 99")
    assert "update this process" in refusal_of(newer)


def test_file_that_cannot_be_opened_is_a_refusal_for_each_call(tmp_path) -> None:
    """A call that has to open the file, as each of slots does at first, is refused with the same words."""
    for transport in (FileTransport(tmp_path), FileSlotTransport(tmp_path, Wakes())):
        with pytest.raises(RefusedError, match="let this process write it"):
            transport._transact(lambda _: None)


def test_file_system_of_a_network_is_refused(path, monkeypatch) -> None:
    """A file on a network drive is refused, as two machines would each have a log of their own."""
    monkeypatch.setattr(file, "file_system_of", lambda _: "nfs4")
    assert "a file system of a network (nfs4): name a file on a disk of this machine" in refusal_of(path)
    assert not path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_file_system_is_that_of_the_innermost_mount(tmp_path, monkeypatch) -> None:
    """The kind of the mount with the longest path decides, and of two at one path the later one."""
    mounts = tmp_path / "mountinfo"
    lines = [
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw",
        "22 21 0:5 / /data rw shared:7 - nfs4 server:/data rw",
        "23 22 0:6 / /data/local rw - ext4 /dev/sdb1 rw",
        "24 21 0:7 / /with\\040space rw - cifs //server/share rw",
        "25 21 0:8 / /over rw - nfs server:/over rw",
        "26 25 0:9 / /over rw - tmpfs tmpfs rw",
    ]
    mounts.write_text("\n".join(lines))
    monkeypatch.setattr(machine, "_MOUNTS", mounts)
    found = ["/data/x", "/database/x", "/data/local/x", "/with space/x", "/over/x", "/x"]
    kinds = [machine.file_system_of(Path(each)) for each in found]
    assert kinds == ["nfs4", "ext4", "ext4", "cifs", "tmpfs", "ext4"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"path": ""}, ValueError),
        ({"path": 7}, TypeError),
        ({"lease": 0.1}, ValueError),
        ({"hang_timeout": 1}, ValueError),
        ({"weight": 0}, ValueError),
        ({"interval": 10}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"outage": "stop"}, TypeError),
    ],
)
def test_bad_argument_is_refused_by_its_name(path, options, error) -> None:
    """An argument of another type or out of range raises, with its name, and makes no file."""
    with pytest.raises(error, match=next(iter(options))):
        FilePeers(**{"path": path, **options})
    assert not path.exists()


@pytest.mark.parametrize(
    ("place", "error", "remedy"),
    [
        ("none/app.limits", FileNotFoundError, r"make the directory '.*/none' first"),
        ("text/app.limits", FileNotFoundError, r"make the directory '.*/text' first"),
        (".", IsADirectoryError, r"name a file in it"),
    ],
)
def test_place_where_no_file_can_be_is_refused_at_once(tmp_path, place, error, remedy) -> None:
    """A path in no directory, or of one, raises as the peers are created, with the remedy: no request ever waits."""
    (tmp_path / "text").write_text("a file")
    with pytest.raises(error, match=f"^path must be .*{remedy}$"):
        FilePeers(tmp_path / place)


@pytest.mark.parametrize(
    "url", ["redis://:secret@host:6379", "postgresql://ann:secret@host/app", "sqlite:///app.limits"]
)
def test_url_is_no_path(url) -> None:
    """A URL is refused as the peers are created, and the error shows no password."""
    with pytest.raises(ValueError, match="path must be the path of a file, without a scheme") as raised:
        FilePeers(url)
    assert "secret" not in str(raised.value)


def test_windows_is_refused(path, monkeypatch) -> None:
    """There are no file peers on Windows, and the error says what to use."""
    monkeypatch.setattr(file.sys, "platform", "win32")
    with pytest.raises(NotImplementedError, match="use RedisPeers or PostgresPeers"):
        FilePeers(path)


async def test_adaptive_rate_is_one_for_all_processes(path) -> None:
    """An adaptive rate that one process lowers is adopted by another one that shares the file."""
    await lower_an_adaptive_rate(FilePeers(path), FilePeers(path))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("system", ["ext4", "tmpfs"])
async def test_fork_is_refused(path, system, monkeypatch) -> None:
    """A process that was forked after the peers were started does not touch the file."""
    monkeypatch.setattr(file, "file_system_of", lambda _: system)
    peers = FilePeers(path)
    async with ExecutorManager(peers=peers) as manager:
        await manager.executor("mail", rate="10/s").submit(work)
        with mock.patch("os.getpid", return_value=1), pytest.raises(RuntimeError, match="is a fork of it"):
            await peers._transport.call([("mail", call_of())])


# Outages.


@pytest.mark.parametrize("system", ["ext4", "tmpfs"])
async def test_locked_file_is_an_outage_that_ends(path, system, monkeypatch, caplog) -> None:
    """While another program holds the file, the event loop runs on and nothing starts; then it goes on."""
    monkeypatch.setattr(file, "file_system_of", lambda _: system)
    caplog.set_level(logging.INFO)
    async with ExecutorManager(peers=FilePeers(path, timeout=0.05)) as manager:
        executor = manager.executor("mail", rate="1000/s", policy=Window())
        await executor.submit(work)
        await asyncio.sleep(0.6)  # what was fetched ahead lapses
        connection = apsw.Connection(str(path))
        connection.execute("begin immediate")
        late = executor.submit(work)
        turn_count, end = 0, time.monotonic() + 1.5
        while time.monotonic() < end:
            await asyncio.sleep(0.005)
            turn_count += 1
        assert not late.done()
        connection.execute("rollback")
        await asyncio.wait_for(late, 30)
        connection.close()
    assert turn_count >= 20, "some 250 on an idle machine, and 1 if the event loop waited for the file"
    assert "no answer from the server" in caplog.text
    assert "the server answers again" in caplog.text


async def test_outage_policy_applies(path) -> None:
    """With Outage.LOCAL a process goes on alone while the file cannot be used."""
    peers = FilePeers(path, outage=Outage.LOCAL)
    path.mkdir()
    async with ExecutorManager(peers=peers) as manager:
        await asyncio.wait_for(manager.executor("mail", rate="100/s").submit(work), 10)


# What is remembered.


def test_keys_at_rest_leave_nothing_behind(subject) -> None:
    """Limits, penalties and queues of keys are gone from the file once they are at rest."""
    now_us = 1_700_000_000 * SECOND
    for number in range(60):
        run = TicketRun(3, (("permits", 0),), f"{KEYS[0]}{number}", SETTINGS[number % len(SETTINGS)])
        subject.tickets(now_us, call_of(run, number=2 * number, penalties=((KEYS[1], 1000),)))
    assert {place[0] for place in subject.records()} == {"k", "p", "q"}
    for number in range(200, 300):
        now_us += SECOND
        subject.tickets(now_us, call_of(number=number))
    assert subject.records() == {}


def test_call_reads_few_of_many_keys(subject) -> None:
    """What a call reads does not grow with the number of keys."""
    now_us = 1_700_000_000 * SECOND
    settings = WindowSettings.of(1, 3600 * SECOND).write()
    for first in range(0, 2000, 100):
        runs = [TicketRun(1, (("permits", 0),), str(key), settings) for key in range(first, first + 100)]
        subject.tickets(now_us + first, call_of(*runs, number=first))
    read: list[int] = []
    with mock.patch.object(
        file, "answer", lambda *given, **more: (read.append(len(list(given[4]))), deciding.answer(*given, **more))[1]
    ):
        subject.tickets(now_us + 5000, call_of(runs[0], number=5000))
    assert read == [1]


@pytest.mark.parametrize("what", ["heads", "records"])
def test_damaged_memory_begins_an_era(subject, what) -> None:
    """A text that nobody can have written is told, and counts as lost: a quarantine begins."""
    now_us = 1_700_000_000 * SECOND
    run = TicketRun(1, (("permits", 1),), KEYS[0], SETTINGS[0])
    subject.tickets(now_us, call_of(run))
    for text in ("garbage", f"[{VERSION}]", "{}", f"[{VERSION},[1,2],3]"):
        before = subject.tickets(now_us, call_of(run, number=1))
        subject.rows(f"update {what} set text = ? where name = x'746d61696c'", text)  # noqa: S608  # of constants
        now_us += SECOND
        reply = subject.tickets(now_us, call_of(run, number=now_us))
        assert ("state", True) == (reply.flaw, reply.quarantine_us > 0)
        assert reply.era != before.era
        now_us += 5 * SECOND
        assert not subject.tickets(now_us, call_of(run, number=now_us)).flaw


def test_memory_of_another_release_is_refused(subject) -> None:
    """A head of a later version is left alone; only the calls of that executor are refused."""
    now_us = 1_700_000_000 * SECOND
    subject.tickets(now_us, call_of())
    [(text,)] = subject.rows("select text from heads where name = x'746d61696c'")
    later = json.dumps([99, *json.loads(text)[1:]])
    subject.rows("update heads set text = ? where name = x'746d61696c'", later)
    with pytest.raises(RefusedError, match="update this process"):
        subject.tickets(now_us, call_of(number=1))
    assert [(later,)] == subject.rows("select text from heads where name = x'746d61696c'")


def test_damaged_slots_are_told_to_all_copies(subject) -> None:
    """If the claims are damaged, a quarantine begins, and no process goes on with a copy of its own."""
    program = SlotProgram(1)
    for _ in range(40):
        call = program.step()
        program.take_in(call, subject.slots(program.now_us, call))
    subject.rows("update heads set text = 'garbage' where name = x'73'")
    subject.restart()
    subject.restart()
    subject.restart()
    replies = []
    for _ in range(6):
        call = program.step()
        replies.append(subject.slots(program.now_us, call))
    assert "state" == replies[0].flaw
    assert all(reply.era == replies[0].era for reply in replies[1:])
    assert not any(reply.flaw for reply in replies[1:])


def test_lock_of_another_process_costs_no_copy(path) -> None:
    """A call for a slot that finds the file locked is made again with the copy of the claims that it had."""
    transport = FileSlotTransport(path, Wakes())
    call = SlotCall(peer="p", lease_us=SECOND, difference_us=SECOND)
    transport._call(call)
    version = transport._copy.version
    connection = apsw.Connection(str(path))
    connection.execute("begin immediate")
    with pytest.raises(AgainError, match="has locked"):
        transport._call(call)
    connection.execute("rollback")
    connection.close()
    assert transport._copy.version == version
    transport._call(call)
    assert transport._copy.version == version + 1
    transport._close()


def test_claims_that_are_gone_are_forgotten(subject, monkeypatch) -> None:
    """Marks of claims that are gone do not gather, and copies that missed some are made anew."""
    for each in (deciding, file):
        monkeypatch.setattr(each, "GONE_KEPT", 16)
    program, model = SlotProgram(3), InMemory(subject)
    for step in range(400):
        call = program.step()
        model.run = subject.run = program.run
        expected = model.slots(program.now_us, call)
        assert expected == subject.slots(program.now_us, call), f"step {step}"
        program.take_in(call, expected)
        if step % 40 == 0:  # the other processes go on alone, for longer than marks are kept
            for _ in range(1 + 3 * (step % 80 == 0) * 16):
                next(subject._turn)
    [(gone,)] = subject.rows("select count(*) from records where name = x'73' and text is null")
    [(first,)] = subject.rows("select min(number) from records where name = x'73' and text is null")
    assert gone < 200
    assert first >= 400 - 48
