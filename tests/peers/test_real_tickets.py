"""Limits of every kind over processes on a real server through faults, counted outside of the fleet.

Real elapsed time cannot be avoided here: other processes, signals and a server's own clock are what is tested. The
least use of the limits has wide margins, the laws have none. ``python -m bench.real.tickets`` measures more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from . import real_tickets
from .real_slots import fleet as slot_fleet
from .real_tickets import INTERVAL, MARGIN, Law, TicketFleet, fleet, plan_of
from .servers import RedisServer

pytestmark = [pytest.mark.real_time("processes and servers of their own"), pytest.mark.slow]
LEASE = 0.6


def test_processes_and_a_server_through_what_befalls_them(redis_server: RedisServer) -> None:
    """All limits hold though a process is killed, one stopped, one blocked, and the server forgets all."""
    with fleet(plan_of(seconds=2), url=redis_server.url, lease=LEASE, block=2 * LEASE) as running:
        killed, stopped, blocked, _ = running.add(4)
        running.wait_for_entry()
        time.sleep(2)
        running.signal(killed, signal.SIGKILL)
        running.signal(stopped, signal.SIGSTOP)
        os.kill(running.processes[blocked].pid, signal.SIGUSR1)
        time.sleep(2 * LEASE)
        running.signal(stopped, signal.SIGCONT)
        time.sleep(0.3)
        redis_server.flush()
        flushed = running.wait_for_entry()
        for kind in ("normal", "pubsub"):
            redis_server.ask("CLIENT", "KILL", "TYPE", kind)
        time.sleep(3)
        start = time.monotonic()
        time.sleep(2)
        assert start > flushed
        assert running.used_most(start, start + 2) > 0.2
        assert running.used_most(start, start + 2, key=real_tickets.NO_KEY) > 0
    assert running.broken(running.plan.laws) == []


def test_limits_that_are_lowered_among_processes_whose_clocks_differ(redis_server: RedisServer) -> None:
    """Lowered limits hold from a grant interval later, also for processes with other clocks that did not set them."""
    plan, lower = plan_of(seconds=2), plan_of(rate=10, share=8, seconds=2, slots=2)
    command = {"rate": lower.options["rates"], "resources": lower.options["resources"], "slots": 2}
    with fleet(plan, url=redis_server.url, lease=LEASE, commands=[command]) as running:
        numbers = [running.add(1, ahead=ahead)[0] for ahead in (-15.0, 0.0, 15.0)]
        running.wait_for_entry()
        time.sleep(2)
        lowered = running.command(numbers[0]) + INTERVAL + MARGIN
        time.sleep(4)
        assert running.broken(lower.laws, lowered) == []
        assert running.most(lowered) <= 2
        assert running.count_of(None, lowered) > 10
    assert running.broken(plan.laws) == []


def test_fences_tell_late_writes_from_others(redis_server: RedisServer) -> None:
    """A holder that writes on after it was stopped is refused by its fence once another holds the slot."""
    with slot_fleet(url=redis_server.url, limit=1, lease=LEASE, work=0.1, writes=10) as running:
        for number in running.add(2):
            running.wait_for_entry(number=number)
            running.signal(number, signal.SIGSTOP)
            time.sleep(2.5 * LEASE)
            running.signal(number, signal.SIGCONT)
            time.sleep(0.3)
    assert running.refused
    assert running.misjudged() == []


def test_the_counter_finds_what_breaks_a_law() -> None:
    """The counter finds a start that is one too many, or early by a millisecond."""
    running = TicketFleet(plan_of())
    running.close()
    law, tokens, key = Law(2, 1), Law(10, 1, "tokens"), Law(1, 1, "key")
    running.costs += [(0.0, 5, 1, 0.0), (0.5, 5, 2, 0.5), (1.0, 5, 1, 1.0)]
    assert running.broken([law, tokens, key]) == []
    assert running.spare(law) == 0
    running.costs.append((1.999, 1, 1, 1.999))
    assert [each.partition(":")[0] for each in running.broken([law, tokens, key])] == ["key 1/1s"]
    running.costs.append((1.499, 1, 3, 1.499))
    assert [each.partition(":")[0] for each in running.broken([law, tokens, key])] == [
        "starts 2/1s",
        "tokens 10/1s",
        "key 1/1s",
    ]


PROGRAM = """
import asyncio, sys, time
from ratelimited_executor import ExecutorManager, Window
from ratelimited_executor.peers import RedisPeers

async def main():
    async with ExecutorManager(peers=RedisPeers(sys.argv[1], "again")) as manager:
        executor = manager.executor("mail", resources={"tokens": "10/5s"}, policy=Window())
        begin = time.monotonic()
        await asyncio.gather(*[executor.submit(time.monotonic, cost={"tokens": 1}) for _ in range(10)])
        print(time.monotonic() - begin)

asyncio.run(main())
"""


def test_process_after_another_has_the_window_that_has_run_out_meanwhile(redis_server: RedisServer) -> None:
    """A window that runs out while no process of the group lives is free for the next one on that machine at once."""

    def seconds() -> float:
        command = [sys.executable, "-c", PROGRAM, redis_server.url]
        return float(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)

    assert seconds() > 1.5
    for _ in range(3):  # a busy machine may hold a process up
        time.sleep(6.0)
        if (again := seconds()) < 1.0:
            break
    assert again < 1.0
    ended = time.monotonic()
    seconds()
    assert time.monotonic() - ended > 2.0, "used up, and not over"  # however long the process takes to begin
