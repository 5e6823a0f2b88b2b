"""Processes on a real server, through what befalls a fleet: starts counted outside of it keep the rate.

Real elapsed time cannot be avoided here: other processes, signals and a server's own clock are what is tested. A start is
stamped by its process after the permit was checked; on a machine with fewer cores than busy processes it may be held up in
between, so that the worst window is allowed one start more than the rate. What is used of the rate is given wide room.
"""

from __future__ import annotations

import signal
import time

import pytest

from . import real
from .real import fleet
from .servers import RedisServer, redis_cluster, sentinel_group

pytestmark = [pytest.mark.real_time("processes and servers of their own"), pytest.mark.slow]
RATE = 100
USED = 0.5  # of the rate, at least: nearly all of it on a quiet machine, 0.8 on one with four busy loops beside


def test_life_of_a_fleet(redis_server: RedisServer) -> None:
    """A cold start, peers that join, a crash, a process that stands still, forgotten scripts, a peer that leaves."""
    with fleet(url=redis_server.url, rate=RATE) as running:
        numbers = running.add(3)
        running.wait_for_start()
        time.sleep(2)
        numbers += running.add(2)
        running.wait_for_start(number=numbers[-1])
        running.signal(numbers[0], signal.SIGKILL)
        time.sleep(1.5)
        running.signal(numbers[1], signal.SIGSTOP)
        time.sleep(2)
        running.signal(numbers[1], signal.SIGCONT)
        redis_server.ask("SCRIPT", "FLUSH")
        time.sleep(1)
        running.signal(numbers[2], signal.SIGTERM)
        start = time.monotonic()
        time.sleep(3)
        assert running.used(start + 0.5, start + 3) > USED
        assert set(running.by_peer(start + 1, start + 3)) == {numbers[1], *numbers[3:]}
    assert running.worst_window() <= RATE + 1


def test_server_that_is_killed_and_comes_back_empty(own_redis_server: RedisServer) -> None:
    """Nothing starts while it is away, and nothing twice once it is back."""
    with fleet(url=own_redis_server.url, rate=RATE) as running:
        running.add(3)
        running.wait_for_start()
        time.sleep(2)
        own_redis_server.kill()
        down = time.monotonic()
        time.sleep(2)
        own_redis_server.restart()
        back = time.monotonic()
        first = running.wait_for_start()
        time.sleep(2.5)
        assert running.count(down + 0.7, back) == 0
        assert first - back < 10
        assert running.used(first + 1, first + 2.5) > USED
    assert running.worst_window() <= RATE + 1


def test_fail_over() -> None:
    """Behind sentinels: the peers follow to the new master, which grants nothing of what the old one may have granted."""
    with sentinel_group() as group, fleet(sentinels=group.addresses, master=group.name, url="", rate=RATE) as running:
        running.add(3)
        running.wait_for_start()
        time.sleep(1.5)
        old = group.master()
        old.kill()
        group.wait_failed_over(old)
        first = running.wait_for_start()
        time.sleep(2.5)
        assert running.used(first + 1, first + 2.5) > USED
    assert running.worst_window() <= RATE + 1


def test_cluster() -> None:
    """All keys of a group lie in one slot, on one of three masters."""
    with redis_cluster(3) as servers, fleet(url=servers.url, cluster=True, rate=RATE) as running:
        running.add(3)
        first = running.wait_for_start()
        time.sleep(3.5)
        assert running.used(first + 2, first + 3.5) > USED
    assert running.worst_window() <= RATE + 1


def test_scenarios_have_a_line_each() -> None:
    """``python -m tests.peers.real`` knows what each of them shows."""
    assert all(scenario.__doc__ for scenario in real.SCENARIOS.values())
