"""All families of limits hold through faults of servers, networks, clocks and processes, counted at the resource.

Real elapsed time cannot be avoided here: other processes, signals and a server's own clock are what is tested. Laws have
no tolerance, and times have only what tells a delay from a standstill. ``python -m tests.peers.battery`` has all faults.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .battery.backends import REDIS_TOPOLOGIES
from .battery.clock import Clock, NoShimError
from .battery.families import FAMILIES
from .battery.faults import FAULTS
from .battery.resource import EFFECT, LEAVE, MESSAGE, START, AtOnce, Bucket, Fences, Law, Quota, Resource
from .battery.run import run
from .binaries import REDIS, VALKEY
from .certificates import NoOpensslError
from .processes import wait_until
from .servers import RedisServer

pytestmark = pytest.mark.real_time("processes and servers of their own")
SETTINGS = {"lease": 0.6}
# On a busy machine the tickets of the other families lapse before they are used: these may wait for longer than a test.
QUICK = ("pace", "burst", "pool", "key_rate")
MOST = (*QUICK, "window", "several")
# Each with another topology; the server is the one that the fault has more to do with, or the other one.
CASES = [
    ("kill", REDIS, tuple(FAMILIES)),
    ("kill", VALKEY, MOST),
    ("processes_stopped", VALKEY, MOST),
    ("sentinel_kill", REDIS, MOST),
    ("cluster_failover", VALKEY, MOST),
    ("clock_back", REDIS, (*MOST, "quota")),
    ("net_stall", VALKEY, MOST),
    ("password_rotation", REDIS, tuple(FAMILIES)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "server", "families"), CASES, ids=[f"{fault}-{server}" for fault, server, _ in CASES]
)
def test_limits_hold_through_a_fault(fault: str, server: str, families: tuple[str, ...]) -> None:
    """No law is broken, no task lost, no fence given twice, and everything starts again."""
    try:
        outcome = run(fault, server, families=families, processes=3, settings=SETTINGS, least=1.5, awaited=QUICK)
    except (FileNotFoundError, NoShimError, NoOpensslError) as error:
        pytest.skip(str(error))
    assert outcome.broken == [], outcome


# The battery itself.


@pytest.fixture
def resource() -> Iterator[Resource]:
    """A resource that listens."""
    with Resource() as resource:
        yield resource


def begin(
    resource: Resource,
    number: int,
    at: float,
    *,
    process: int = 1,
    cost: int = 1,
    key: int = 0,
    fence: int = 0,
    late: float = 0.0,
) -> None:
    """Note the start of a task whose message arrives at once, so long after its decision."""
    resource.note(at, START, process, 0, number, cost, key, fence, at, late)


def end(resource: Resource, number: int, at: float, *, process: int = 1, late: float = 0.0) -> None:
    """Note the end of a task, so long after its work should have ended."""
    resource.note(at, LEAVE, process, 0, number, 0, 0, 0, at, late)


def test_one_start_more_than_a_rate_allows_is_found(resource: Resource) -> None:
    """A law finds the start that is one too many, or early by a millisecond, of all, of a key, and of tokens."""
    rate, key, tokens = Law("2/s", 2), Law("1/s a key", 1, per_key=True), Law("10/s", 10, of="tokens")
    for number, at in enumerate([10.0, 10.5, 11.0]):
        begin(resource, number, at, cost=5, key=number % 2)
    assert [2, 1, 10] == [law.look(resource, 0).most for law in (rate, key, tokens)]
    begin(resource, 3, 11.499, cost=5, key=1)
    assert [3, 2, 15] == [law.look(resource, 0).most for law in (rate, key, tokens)]
    assert "early by 1.0 ms" == rate.look(resource, 0).note


def test_start_that_was_held_up_is_none_too_many(resource: Resource) -> None:
    """What a process was held up for, beyond the time that limits allow for, neither breaks a law nor hides a break."""
    law = Law("1/s", 1)
    begin(resource, 0, 10.0 + EFFECT, late=EFFECT)
    begin(resource, 1, 11.004)
    assert 2 == law.look(resource, 0).most
    begin(resource, 2, 13.0 + 0.2, late=0.2)
    begin(resource, 3, 14.1)  # the one before should have taken effect earlier
    begin(resource, 4, 16.0)
    begin(resource, 5, 17.1, late=0.2)  # it was early by its decision, but none was when it took effect
    assert 2 == law.look(resource, 0).most
    assert 10.0 + EFFECT == law.look(resource, 0).at


def test_burst_that_is_too_large_is_found(resource: Resource) -> None:
    """A bucket may be emptied at once and then its rate used, and no more."""
    law = Bucket("3 + 10/s", 3, 10)
    for number, at in enumerate([10.0, 10.0, 10.0, 10.1, 10.2]):
        begin(resource, number, at)
    assert not law.look(resource, 0).is_broken
    begin(resource, 5, 10.25)
    assert law.look(resource, 0).is_broken


def test_holder_that_was_held_up_is_none_too_many(resource: Resource) -> None:
    """A holder whose process was held up is out of the resource when its work should have ended, and not before."""
    law = AtOnce("1 at once", 1)
    begin(resource, 1, 10.0)
    end(resource, 1, 10.5, late=0.25)
    begin(resource, 2, 10.3)
    assert 1 == law.look(resource, 0).most
    begin(resource, 3, 10.2)
    assert 2 == law.look(resource, 0).most


def test_holders_are_counted_until_they_end_or_their_process_does(resource: Resource) -> None:
    """A holder of a process that is killed or stopped is out of the resource; another one that enters too early is not."""
    law = AtOnce("1 at once", 1)
    begin(resource, 1, 10.0, fence=1)
    end(resource, 1, 10.5)
    begin(resource, 2, 10.5, fence=2)
    resource.absences.killed[1] = 10.7
    begin(resource, 1, 10.7, process=2, fence=3)
    resource.absences.stopped.append((2, 11.0))
    begin(resource, 1, 11.0, process=3, fence=4)
    assert 1 == law.look(resource, 0).most
    assert not Fences().look(resource, 0).is_broken
    begin(resource, 2, 11.5, process=3, fence=4)
    assert 2 == law.look(resource, 0).most
    assert 1 == Fences().look(resource, 0).most


def test_quota_is_counted_by_the_minute_of_the_clock(resource: Resource) -> None:
    """Starts on both sides of a full minute are of different parts."""
    law = Quota("2/min", 2)
    minute = 60 - time.time() % 60 + time.monotonic()
    for number, at in enumerate([minute - 1, minute - 0.5, minute + 0.5, minute + 1]):
        begin(resource, number, at)
    assert 2 == law.look(resource, 0).most
    begin(resource, 4, minute + 2)
    assert law.look(resource, 0).is_broken


def test_messages_are_stamped_by_the_kernel(resource: Resource) -> None:
    """A message counts at the time at which it arrived, however late it is read."""
    before = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(MESSAGE.pack(START, 1, 0, 1, 1, 0, 0, before, 0.0), ("127.0.0.1", resource.port))
    wait_until(lambda: resource.count(0, 0, before + 60), "the message is noted")
    (start,) = resource.starts(0)
    assert before - 0.001 <= start.arrived <= time.monotonic()


def test_clock_of_a_server_can_be_stepped(tmp_path: Path, server_kind: str) -> None:
    """A server that runs with the library tells the time that the test sets, and goes on."""
    try:
        clock = Clock(tmp_path)
    except NoShimError as error:
        pytest.skip(str(error))
    server = RedisServer()
    server.environment = clock.environment
    with server:
        for ahead in (0.0, 3600.0, -30.0, 0.5):
            clock.set(ahead)
            before = time.time()
            seconds, microseconds = map(int, server.ask("TIME"))
            told, after = seconds + microseconds / 1e6 - ahead, time.time()
            assert before - 0.01 <= told <= after + 0.01
    clock.close()


def test_every_fault_says_what_it_is_and_needs_what_there_is() -> None:
    """Each fault has a line that ``--list`` prints, and a topology; and each topology a fault."""
    assert all(fault.text.endswith(".") for fault in FAULTS.values())
    assert {fault.topology for fault in FAULTS.values()} == set(REDIS_TOPOLOGIES)
    assert {fault for fault, _, _ in CASES} <= set(FAULTS)


def test_every_family_has_laws_for_what_it_declares() -> None:
    """A family's ceiling is within its laws."""
    for name, family in FAMILIES.items():
        rates = [
            law.allowed / law.seconds
            for law in family.laws
            if isinstance(law, Law) and not law.per_key and law.of == "starts"
        ]
        assert family.laws, name
        assert all(family.ceiling <= rate for rate in rates), name


def test_command_lists_the_faults() -> None:
    """``python -m tests.peers.battery --list`` prints each fault in a line."""
    command = [sys.executable, "-m", "tests.peers.battery", "--list"]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=60)
    assert all(f"{name} " in run.stdout for name in FAULTS)
