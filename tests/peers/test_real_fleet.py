"""Processes on a real server keep the rate through faults, by starts counted outside of the fleet.

Real elapsed time cannot be avoided here: other processes, signals and a server's own clock are what is tested. A start
is stamped by its process after the permit was checked. On a machine with fewer cores than busy processes it may be held
up in between, so the worst window is allowed a few more starts than the rate: a permit that is used twice would mean many
more. The least use of the rate has wide margins.
"""

from __future__ import annotations

import signal
import time

import pytest

from .real import fleet
from .servers import RedisServer, redis_cluster, sentinel_group

pytestmark = [pytest.mark.real_time("processes and servers of their own"), pytest.mark.slow]
RATE = 100
MOST = RATE + 4
USED = 0.5  # least part of the rate; nearly 1 on an idle machine, 0.8 with four busy loops beside


def test_life_of_a_fleet(redis_server: RedisServer) -> None:
    """A fleet keeps its rate over a cold start, joins, a crash, a stopped process, lost scripts, and a leave."""
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
    assert running.worst_window() <= MOST


def test_server_that_is_killed_and_comes_back_empty(own_redis_server: RedisServer) -> None:
    """While the server is down nothing starts, and once it is back, empty, no permit is used twice."""
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
    assert running.worst_window() <= MOST


@pytest.mark.usefixtures("server_kind")
def test_fail_over() -> None:
    """Peers behind sentinels follow to the new master, which grants nothing that the old one may have granted."""
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
    assert running.worst_window() <= MOST


@pytest.mark.usefixtures("server_kind")
def test_cluster() -> None:
    """All keys of a group are in one slot of a cluster, on one of three masters."""
    with redis_cluster(3) as servers, fleet(url=servers.url, cluster=True, rate=RATE) as running:
        running.add(3)
        first = running.wait_for_start()
        time.sleep(3.5)
        assert running.used(first + 2, first + 3.5) > USED
    assert running.worst_window() <= MOST
