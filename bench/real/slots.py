"""Slots of a real group: processes, a real server, and a resource outside of the fleet that counts who is in it.

    python -m bench.real.slots              # every scenario, a line each: some minutes
    python -m bench.real.slots crash stop   # some of them

Processes hold slots for 50 ms each, and tell the resource of each entry and leave by the one monotonic clock that all
processes of a machine share. A process that is killed or stopped is out of the resource from then on; one that goes on
after its lease has ended is refused by its fence, where the resource has seen a larger one (at a limit of one).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ratelimited_executor import ExecutorManager
from ratelimited_executor.peers import RedisPeers
from tests.peers.real_slots import LEASE, SlotFleet, fleet, left, percentile
from tests.peers.servers import RedisServer, redis_cluster, sentinel_group

if TYPE_CHECKING:
    from collections.abc import Callable


def set_limit(server: RedisServer, limit: int) -> None:
    """Set the limit from a process that holds no slot."""

    async def main() -> None:
        async with ExecutorManager(peers=RedisPeers(server.url, "fleet", lease=LEASE)) as manager:
            manager.slots("pool").limit = limit
            await asyncio.sleep(0.1)

    asyncio.run(main())


def settled(running: SlotFleet, seconds: float = 4.0) -> tuple[float, float]:
    """Let the fleet run for ``seconds``, and return when that was."""
    start = running.after(seconds)
    return start, start + seconds


Result = tuple[SlotFleet, dict[str, Any]]


def begun(running: SlotFleet, count: int, **options: Any) -> list[int]:
    """Start processes, and wait until the quarantine of a new server is over."""
    numbers = running.add(count, **options)
    running.wait_for_entry()
    time.sleep(0.5)
    return numbers


def steady(server: RedisServer) -> Result:
    """Four processes that want more slots than there are."""
    with fleet(url=server.url, limit=8) as running:
        begun(running, 4)
        start, end = settled(running, 8)
        gaps = running.hand_offs(start, end)
        return running, {
            "used": running.used(start, end),
            "hand-off p50 ms": 1e3 * percentile(gaps, 0.5),
            "p99 ms": 1e3 * percentile(gaps, 0.99),
        }


def idle(server: RedisServer) -> Result:
    """One process that asks now and then."""
    with fleet(url=server.url, limit=8) as running:
        begun(running, 1, holders=1, work=0.01, pause=0.05)
        running.waits.clear()
        time.sleep(8)
        return running, {
            "p50 ms": 1e3 * percentile(running.waits, 0.5),
            "p99 ms": 1e3 * percentile(running.waits, 0.99),
        }


def crash(server: RedisServer) -> Result:
    """Four processes, of which one is killed."""
    with fleet(url=server.url, limit=8) as running:
        numbers = begun(running, 4)
        running.signal(numbers[0], signal.SIGKILL)
        time.sleep(1.5 * LEASE)
        return running, {"used a lease later": running.used(*settled(running))}


def stop(server: RedisServer) -> Result:
    """Three processes and one slot; each holder in turn is stopped for longer than its lease."""
    with fleet(url=server.url, limit=1) as running:
        numbers = begun(running, 3)
        for number in numbers:
            running.wait_for_entry(number=number)
            running.signal(number, signal.SIGSTOP)
            time.sleep(2 * LEASE)
            running.signal(number, signal.SIGCONT)
            time.sleep(0.5)
        return running, {"lost": len(running.lost), "used afterwards": running.used(*settled(running))}


def fenced(server: RedisServer) -> Result:
    """Three processes and one slot; holders are stopped between two writes, and continue two leases later."""
    with fleet(url=server.url, limit=1, work=0.1, writes=10) as running:
        numbers = begun(running, 3)
        for number in numbers * 3:
            running.wait_for_entry(number=number)
            running.signal(number, signal.SIGSTOP)
            time.sleep(2 * LEASE)
            running.signal(number, signal.SIGCONT)
            time.sleep(0.3)
        return running, {
            "writes accepted": len(running.accepted),
            "refused": len(running.refused),
            "misjudged (0)": len(running.misjudged()),
        }


def blocked(server: RedisServer) -> Result:
    """Three processes, one of whose event loops is blocked for three leases."""
    with fleet(url=server.url, limit=3, block=3 * LEASE) as running:
        numbers = begun(running, 3)
        os.kill(running.processes[numbers[0]].pid, signal.SIGUSR1)
        time.sleep(3 * LEASE + 0.5)
        return running, {"lost (0)": len(running.lost), "used afterwards": running.used(*settled(running))}


def hung(server: RedisServer) -> Result:
    """Three processes, one of whose event loops is blocked for longer than ``hang_timeout``."""
    with fleet(url=server.url, limit=1, block=5 * LEASE, hang=LEASE) as running:
        numbers = begun(running, 3)
        running.wait_for_entry(number=numbers[0])
        os.kill(running.processes[numbers[0]].pid, signal.SIGUSR1)
        running.absent.append((numbers[0], time.monotonic() + 0.02, float("inf")))
        start = running.after(0.1)
        entered = running.wait_for_entry()
        time.sleep(5 * LEASE)
        return running, {"handed on after": entered - start, "used afterwards": running.used(*settled(running))}


def fault(do: Callable[[RedisServer], object], server: RedisServer, pause: float = 0.0) -> Result:
    """Four processes, and a fault of the server."""
    with fleet(url=server.url, limit=8) as running:
        begun(running, 4)
        do(server)
        time.sleep(pause + 1)
        entered = running.wait_for_entry()
        return running, {
            "lost": len(running.lost),
            "used afterwards": running.used(*settled(running)),
            "": entered and "",
        }


def restart(server: RedisServer) -> Result:
    """A server that restarts empty."""
    return fault(lambda it: (it.kill(), it.restart()), server, LEASE + 1)


def restart_with_memory(_: RedisServer) -> Result:
    """A server that restarts with what it wrote to its disk."""
    with RedisServer(config=["appendonly yes", "appendfsync always"]) as server:
        return fault(lambda it: (it.kill(), it.restart()), server, LEASE + 1)


def flush_all(server: RedisServer) -> Result:
    """A server whose keys are all deleted."""
    return fault(lambda it: it.ask("FLUSHALL"), server, LEASE + 1)


def client_kill(server: RedisServer) -> Result:
    """A server that closes all connections, several times."""
    return fault(
        lambda it: [(it.ask("CLIENT", "KILL", "TYPE", kind), time.sleep(0.3)) for kind in ("normal", "pubsub") * 4],
        server,
    )


def script_flush(server: RedisServer) -> Result:
    """A server that forgets its scripts."""
    return fault(lambda it: [(it.ask("SCRIPT", "FLUSH"), time.sleep(0.3)) for _ in range(5)], server)


def fail_over(_: RedisServer) -> Result:
    """Four processes behind sentinels, whose master is killed."""
    with sentinel_group() as group, fleet(sentinels=group.addresses, master=group.name, url="", limit=8) as running:
        begun(running, 4)
        old = group.master()
        old.kill()
        group.wait_failed_over(old)
        time.sleep(2 * LEASE + 1)
        return running, {"lost": len(running.lost), "used afterwards": running.used(*settled(running))}


def cluster(_: RedisServer) -> Result:
    """Four processes on a cluster of three masters."""
    with redis_cluster(3) as servers, fleet(url=servers.url, cluster=True, limit=8) as running:
        begun(running, 4)
        start, end = settled(running, 6)
        gaps = running.hand_offs(start, end)
        return running, {
            "used": running.used(start, end),
            "hand-off p50 ms": 1e3 * percentile(gaps, 0.5),
            "p99 ms": 1e3 * percentile(gaps, 0.99),
        }


def limits(server: RedisServer) -> Result:
    """A limit of 5 that is set to 0, to 3 and to 5 by another process."""
    with fleet(url=server.url, limit=5) as running:
        begun(running, 3)
        set_limit(server, 0)
        time.sleep(0.2)
        halted = settled(running, 1)
        set_limit(server, 3)
        time.sleep(0.2)
        lowered = settled(running, 2)
        set_limit(server, 5)
        time.sleep(0.2)
        raised = settled(running, 2)
        return running, {
            "entered while halted": sum(halted[0] <= at < halted[1] for at in running.entered.values()),
            "most at 3": running.most(*lowered),
            "used of 5": running.used(*raised),
        }


SCENARIOS: dict[str, Callable[[RedisServer], Result]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        steady, idle, crash, stop, fenced, blocked, hung, restart, restart_with_memory, flush_all, client_kill, script_flush,
        fail_over, cluster, limits,
    )
}  # fmt: skip


def main() -> None:
    """Run scenarios, and print a line each; fail if more slots were held at once than the limit, or any is left."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(SCENARIOS))
    is_right = True
    for name in parser.parse_args().scenarios or SCENARIOS:
        with RedisServer() as server:
            running, figures = SCENARIOS[name](server)
            time.sleep(1.5 * LEASE)
            leaked = left(server)
            for _ in range(3 if leaked else 0):  # leases end with a call, and by half a lease with each
                set_limit(server, running.limit)
                time.sleep(LEASE / 2)
            late, leaked = leaked, left(server)
        most = running.most()
        is_right &= most <= running.limit and not leaked
        texts = [
            f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
            if key
        ]
        print(
            f"{name:20} most {most}/{running.limit}, left by leaving {late}, leaked {leaked}, entries {len(running.entered)}, "
            f"stale {len(running.stale) if running.limit == 1 else '-'}; {', '.join(texts)}",
            flush=True,
        )
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
