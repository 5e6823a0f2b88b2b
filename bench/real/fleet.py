"""A real fleet: processes, a real server, and a counter of starts outside of the fleet.

    python -m bench.real.fleet              # every scenario, a line each: ten processes, a few minutes
    python -m bench.real.fleet crash stop   # some of them

What makes a number lie: starts are counted by the times that the processes read right in the task, on the one monotonic
clock that all processes of a machine share; on a machine with fewer cores than busy processes a start may be delayed after
its permit was checked, which is the gap that no limiter in the client can close.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from typing import TYPE_CHECKING, Any

from tests.peers.real import Fleet, fleet
from tests.peers.servers import RedisServer, redis_cluster, sentinel_group

if TYPE_CHECKING:
    from collections.abc import Callable

# Scenarios: each returns its figures; the worst window is checked for all of them.


def steady(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Ten peers from a cold start, without faults."""
    with fleet(url=server.url) as running:
        running.add(10)
        first = running.wait_for_start()
        time.sleep(14)
        start, end = first + 4, first + 14
        return running, {
            "used": running.used(start, end),
            "variation of gaps": running.variation(start, end),
        }


def scale_out(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """One peer, then nine more."""
    with fleet(url=server.url) as running:
        running.add(1)
        running.wait_for_start()
        time.sleep(2)
        start = time.monotonic()
        running.add(9)
        time.sleep(8)
        return running, {"used": running.used(start, start + 8)}


def join(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """One peer, then five more, one after the other."""
    with fleet(url=server.url) as running:
        running.add(1)
        running.wait_for_start()
        time.sleep(3)
        waits = []
        for _ in range(5):
            (number,) = running.add(1, load=2000)
            waits.append(running.wait_for_start(number=number) - running.begun[number])
            time.sleep(0.7)
        return running, {"a joiner's first start, worst": max(waits)}


def rolling_restart(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers, each of which leaves in order and is replaced."""
    with fleet(url=server.url) as running:
        numbers = running.add(6)
        running.wait_for_start()
        time.sleep(3)
        start = time.monotonic()
        for number in numbers:
            running.signal(number, signal.SIGTERM)
            running.add(1)
            time.sleep(2)
        return running, {"used": running.used(start, time.monotonic())}


def crash(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Ten peers, of which three are killed."""
    with fleet(url=server.url) as running:
        numbers = running.add(10)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        for number in numbers[:3]:
            running.signal(number, signal.SIGKILL)
        time.sleep(7)
        return running, {
            "used in the first second": running.used(start, start + 1),
            "used from then on": running.used(start + 1, start + 7),
        }


def stop(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers, of which one is stopped for ten seconds."""
    with fleet(url=server.url) as running:
        numbers = running.add(6)
        running.wait_for_start()
        time.sleep(3)
        start = time.monotonic()
        running.signal(numbers[0], signal.SIGSTOP)
        time.sleep(10)
        running.signal(numbers[0], signal.SIGCONT)
        time.sleep(3)
        return running, {"used": running.used(start + 1, start + 13)}


def outage(server: RedisServer, seconds: float = 30.0) -> tuple[Fleet, dict[str, Any]]:
    """Six peers whose server is down for half a minute, and comes back empty."""
    with fleet(url=server.url) as running:
        running.add(6)
        running.wait_for_start()
        time.sleep(3)
        server.kill()
        down = time.monotonic()
        time.sleep(seconds)
        server.restart()
        back = time.monotonic()
        first = running.wait_for_start()
        time.sleep(5)
        return running, {
            "starts while away": running.count(down + 0.6, back),
            "first start after": first - back,
            "used afterwards": running.used(first + 1, first + 5),
        }


def script_flush(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Four peers whose server forgets its scripts repeatedly."""
    with fleet(url=server.url) as running:
        running.add(4)
        running.wait_for_start()
        time.sleep(3)
        start = time.monotonic()
        for _ in range(8):
            server.ask("SCRIPT", "FLUSH")
            time.sleep(0.5)
        return running, {"used": running.used(start, start + 4)}


def fail_over(_: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers behind sentinels, whose master is killed."""
    with sentinel_group() as group, fleet(sentinels=group.addresses, master=group.name, url="") as running:
        running.add(6)
        running.wait_for_start()
        time.sleep(4)
        old = group.master()
        down = time.monotonic()
        old.kill()
        group.wait_failed_over(old)
        promoted = time.monotonic()
        first = running.wait_for_start()
        time.sleep(5)
        return running, {
            "failover took": promoted - down,
            "first start after it": first - promoted,
            "used afterwards": running.used(first + 1, first + 5),
        }


def cluster(_: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Six peers on a cluster of three masters."""
    with redis_cluster(3) as servers, fleet(url=servers.url, cluster=True) as running:
        running.add(6)
        first = running.wait_for_start()
        time.sleep(8)
        return running, {"used": running.used(first + 3, first + 8)}


def slow_rate(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Ten peers at one start a second."""
    with fleet(url=server.url, rate=1.0) as running:
        running.add(10)
        first = running.wait_for_start()
        time.sleep(30.5)
        return running, {"starts in 30 s": running.count(first, first + 30)}


def busy_one(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """One busy peer, and nine that start a task every twenty seconds."""
    with fleet(url=server.url) as running:
        (busy,) = running.add(1)
        running.add(9, load=0, flow=0.05)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        time.sleep(15)
        return running, {"used by it": running.by_peer(start, start + 15)[busy] / (15 * running.rate)}


def idle_submit(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Nine peers that use half of the rate, and an idle one with a task due now a few times a second."""
    with fleet(url=server.url) as running:
        running.add(9, load=0, flow=5.5)
        running.add(1, load=0, probe=0.25)
        running.wait_for_start()
        time.sleep(4)
        running.waits.clear()
        time.sleep(60)
        waits = sorted(running.waits)
        return running, {
            "submits": len(waits),
            "half start within": waits[len(waits) // 2],
            "99 % within": waits[math.ceil(len(waits) * 0.99) - 1],
        }


def weights(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Three busy peers of weights 1, 1 and 3, and three that start two tasks a second."""
    with fleet(url=server.url) as running:
        numbers = [*running.add(2), *running.add(1, weight=3)]
        running.add(3, load=0, flow=2)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        time.sleep(40)
        counts = running.by_peer(start, start + 40)
        shares = [counts[number] / sum(counts[other] for other in numbers) for number in numbers]
        return running, {f"share of {number}": share for number, share in zip("ABC", shares, strict=True)}


def lag(server: RedisServer) -> tuple[Fleet, dict[str, Any]]:
    """Four peers whose event loops are blocked half of the time, for 5 ms on average."""
    with fleet(url=server.url) as running:
        running.add(4, lag=0.005)
        running.wait_for_start()
        time.sleep(4)
        start = time.monotonic()
        time.sleep(20)
        return running, {"used": running.used(start, start + 20)}


SCENARIOS: dict[str, Callable[[RedisServer], tuple[Fleet, dict[str, Any]]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        steady, scale_out, join, rolling_restart, crash, stop, outage, script_flush, fail_over, cluster, slow_rate, busy_one,
        idle_submit, weights, lag,
    )
}  # fmt: skip


def main() -> None:
    """Run scenarios, and print their figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    chosen = parser.parse_args().scenarios or list(SCENARIOS)
    with RedisServer() as server:
        for name in chosen:
            if not server.is_running:
                server.restart()
            server.flush()
            running, figures = SCENARIOS[name](server)
            text = ", ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
            )
            print(f"{name:16} worst second {running.worst_window()} of {running.rate:g}; {text}", flush=True)


if __name__ == "__main__":
    main()
