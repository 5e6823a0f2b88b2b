"""The log has one line for each event of a peer's life, and names what a server refuses, with the remedy."""

from __future__ import annotations

import asyncio
import hashlib
import logging

import pytest

from ratelimited_executor import ExecutorManager
from ratelimited_executor.insight import Hold
from ratelimited_executor.peers import RedisPeers
from ratelimited_executor.peers.redis.refusals import refusal_of
from ratelimited_executor.peers.redis.ticket_script import TICKET_SCRIPT as SCRIPT
from ratelimited_executor.peers.transport import RefusedError

from .servers import RedisServer
from .simulation import Simulation


@pytest.fixture
def told(caplog):
    """Return the lines about the fleet from level INFO on, as ``LEVEL text``."""
    caplog.set_level(logging.INFO, "ratelimited_executor")
    return lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records
                    if record.getMessage().startswith("fleet:")]  # fmt: skip


async def test_joining_quarantine_outage_and_leaving_are_told(virtual_clock, told):
    """Joining, quarantine and leaving are logged at INFO, one line each, and an outage as a warning."""
    fleet = Simulation(41, rate=50.0)
    (node,) = await fleet.add(1, load=1000)
    await asyncio.sleep(3)
    joins, quarantine = told()
    assert joins == f"INFO fleet: limit joins its group as {node.peers.id}:0"
    assert quarantine.startswith("INFO fleet: limit starts nothing for 1.")
    assert quarantine.endswith(" s: by then, all earlier permits have lapsed")
    fleet.server.is_up = False
    await asyncio.sleep(10)
    fleet.server.is_up = True
    await asyncio.sleep(2)
    (away, back, over) = told()[2:]
    assert away.startswith("WARNING fleet: no answer from the server (ConnectionRefusedError: ")
    assert back == "WARNING fleet: the server answers again"
    assert over.startswith(
        (
            "INFO fleet: the outage of limit is over after 9.",
            "INFO fleet: the outage of limit is over after 10",
        )
    )
    fleet.server.wipe()
    await asyncio.sleep(1)
    (again,) = told()[5:]
    assert again.startswith("INFO fleet: limit starts nothing for ")
    await node.close()
    assert told()[6:] == ["INFO fleet: limit leaves its group"]
    await fleet.close()


async def test_newcomer_of_a_running_group_is_told_no_quarantine(virtual_clock, told):
    """A peer that joins a running group logs no quarantine; one that was never answered logs no joining or leaving."""
    fleet = Simulation(42, rate=50.0)
    await fleet.add(1, load=1000)
    await asyncio.sleep(3)
    (new,) = await fleet.add(1, load=10)
    await asyncio.sleep(1)
    assert told()[2:] == [f"INFO fleet: limit joins its group as {new.peers.id}:0"]
    fleet.server.is_up = False
    (never,) = await fleet.add(1)
    await never.close()
    assert not [line for line in told()[3:] if line.startswith("INFO")]
    await fleet.close()


async def test_server_that_forgets_all_the_time_is_told_once(virtual_clock, told):
    """Quarantines that begin anew before anything was started are logged once a minute."""
    fleet = Simulation(43, rate=50.0)
    await fleet.add(1, load=1000)
    await asyncio.sleep(3)
    for _ in range(300):
        fleet.server.wipe()
        await asyncio.sleep(0.3)
    lines = told()[2:]
    assert len(lines) == 2
    assert all(line.startswith("INFO fleet: limit starts nothing for ") for line in lines)
    await fleet.close()


async def test_last_calls_that_are_refused_are_no_answer(virtual_clock, told):
    """A member that leaves right after a connection, to a server that refuses each call, logs no end of the outage."""
    fleet = Simulation(44, rate=50.0)
    (node,) = await fleet.add(1, load=1000)
    await asyncio.sleep(3)
    connect, is_leaving = node.network.connect, False

    async def leave_while_connecting():
        await connect()
        if is_leaving:
            await node.executor.aclose()

    async def refuse(calls):
        return [RefusedError("none of these") for _ in calls]

    node.network.connect, node.network.call = leave_while_connecting, refuse
    await asyncio.sleep(10)
    is_leaving = True
    await asyncio.sleep(10)
    warnings = [line for line in told() if line.startswith("WARNING")]
    assert warnings == [
        "WARNING fleet: the server refuses all calls (none of these); outage policy: stop, so nothing starts meanwhile"
    ]
    assert told()[-1] == "INFO fleet: limit leaves its group"
    await fleet.close()


async def _refused(url, told, *, seconds=5.0):
    """Share a rate until the log reports a failure; return that line, and the explanation of a task."""
    async with ExecutorManager(peers=RedisPeers(url, "g", interval=0.1, clock_difference=0)) as manager:
        executor = manager.executor("limit", rate=50, drain_timeout=0)
        handle = executor.submit(int)
        async with asyncio.timeout(seconds):
            while not [line for line in told() if line.startswith("WARNING")]:
                await asyncio.sleep(0.02)
        explanation = executor.explain(handle)
    (line,) = [line for line in told() if line.startswith("WARNING")]
    return line, explanation


def _replica(server):
    server.ask("REPLICAOF", "127.0.0.1", "1")


def _other_type(server):
    server.ask("SET", "{rle:g}:limit:tickets", "x")


REFUSED = {
    "wrong password": (lambda s: s.url_of("app", "none"), None, "AuthenticationError: ", "set the server's user name and password"),
    "no password": (lambda s: s.url, None, "uthentication", "set the server's user name and password"),
    "no rights": (lambda s: s.url_of("reader", "secret"), None, "NoPermissionError: ", "grant its user the rights that the how-to"),
    "no such database": (lambda s: s.url_of("app", "secret")[:-1] + "99", None, "DB index is out of range", "choose a database"),
    "replica": (lambda s: s.url_of("app", "secret"), _replica, "replica", "connect to its master"),
    "key of another type": (lambda s: s.url_of("app", "secret"), _other_type, "WRONGTYPE", "delete it, or choose another group"),
}  # fmt: skip


@pytest.mark.real_time("a real server refuses")
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("server_kind")
async def test_what_the_server_refuses_is_told_as_what_it_is(case, told):
    """A refusal by the server is logged with its words and a remedy, instead of as an outage; ``explain`` has both."""
    url, prepare, reason, remedy = REFUSED[case]
    users = {"app": "on >secret ~* &* +@all", "reader": "on >secret ~* +get +ping"}
    with RedisServer(password="owner", users=users) as server:
        address = f"redis://127.0.0.1:{server.port}/0" if case == "no password" else url(server)
        if prepare is not None:
            prepare(server)
        line, explanation = await _refused(address, told)
    assert line.startswith("WARNING fleet: the server refuses all calls (")
    assert line.endswith("); outage policy: stop, so nothing starts meanwhile")
    assert reason in line
    assert remedy in line
    assert "secret" not in line
    assert (Hold.OUTAGE, None) == (explanation.hold, explanation.expected_start)
    assert explanation.detail.startswith("refused: ")
    assert remedy in explanation.detail


@pytest.mark.parametrize(
    ("kind", "text", "remedy"),
    [
        ("BusyLoadingError", "Redis is loading the dataset in memory", "the server is still reading its data"),
        ("OutOfMemoryError", "command not allowed when used memory > 'maxmemory'.", "raise its maxmemory"),
        ("ResponseError", "NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("MovedError", "3999 127.0.0.1:6381", "RedisCluster"),
        ("ResponseError", "ERR something new", ""),
    ],
)
def test_errors_of_the_server_have_remedies(kind, text, remedy):
    """Errors that take long to provoke have remedies too, and an unknown one only has the server's words."""
    redis = pytest.importorskip("redis.exceptions")
    error = getattr(redis, kind)(text)
    refusal = refusal_of(error)
    assert refusal is not None
    assert remedy in refusal.remedy
    assert bool(remedy) is bool(refusal.remedy)
    assert str(refusal).startswith(f"{kind}: ")


def test_lost_connection_is_no_refusal():
    """A lost connection or timeout is not a refusal."""
    redis = pytest.importorskip("redis.exceptions")
    for error in (redis.ConnectionError("Connection refused"), redis.TimeoutError(), OSError(111), TimeoutError()):
        assert refusal_of(error) is None


SHA = hashlib.sha1(SCRIPT.encode()).hexdigest()
INFO_LINE = next(number for number, line in enumerate(SCRIPT.splitlines(), start=1) if "redis.call('INFO'" in line)
COMMAND_REFUSALS = {
    "Redis 6.2": f"Error running script (call to f_{SHA}): @user_script:{INFO_LINE}: The user executing the script can't run this "
    "command or subcommand",
    "Redis 7.0": f"The user executing the script can't run this command or subcommand script: {SHA}, on @user_script:{INFO_LINE}.",
    "Valkey": f"ACL failure in script: User app has no permissions to run the 'info' command script: {SHA}, on "
    f"@user_script:{INFO_LINE}.",
    "outside of a script": "this user has no permissions to run the 'info' command",
}


@pytest.mark.parametrize("server", COMMAND_REFUSALS)
def test_command_without_right_is_named_whatever_the_server_says(server):
    """The remedy names the missing right, also where the server only names a line of the script."""
    redis = pytest.importorskip("redis.exceptions")
    kind = redis.NoPermissionError if server == "outside of a script" else redis.ResponseError
    refusal = refusal_of(kind(COMMAND_REFUSALS[server]), "return 1", SCRIPT)
    assert refusal is not None
    assert refusal.remedy.endswith(": ACL SETUSER (missing: +info)")


@pytest.mark.parametrize(
    "text",
    [
        f"The user executing the script can't access at least one of the keys script: {SHA}, on @user_script:{INFO_LINE}.",
        f"The user executing the script can't run this command or subcommand script: {'0' * 40}, on @user_script:{INFO_LINE}.",
        "The user executing the script can't run this command or subcommand",
    ],
)
def test_no_command_is_named_for_keys_and_unknown_scripts(text):
    """Where a key is out of reach, or the line is not known, the remedy names no command."""
    redis = pytest.importorskip("redis.exceptions")
    refusal = refusal_of(redis.ResponseError(text), SCRIPT)
    assert refusal is not None
    assert refusal.remedy.endswith(": ACL SETUSER")
