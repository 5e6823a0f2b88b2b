"""Slots of a real group: processes, a real server, and a resource outside of the fleet that counts who is in it.

    python -m tests.peers.real_slots              # every scenario, a line each: some minutes
    python -m tests.peers.real_slots crash stop   # some of them

Processes hold slots for 50 ms each, and tell the resource of each entry and leave by the one monotonic clock that all
processes of a machine share. A process that is killed or stopped is out of the resource from then on; one that goes on
after its lease has ended is refused by its fence, where the resource has seen a larger one (at a limit of one).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ratelimited_executor import ExecutorManager, RedisPeers

from .processes import wait_until
from .real import ROOT, Fleet
from .servers import RedisServer, redis_cluster, sentinel_group
from .slot_worker import BEGUN, ENTER, LEAVE, LOST, MESSAGE, WAIT, WRITE

LEASE = 1.0
GAP = 0.002  # a leave may be stamped this much after the slot's next entry, where cores are few


class SlotFleet(Fleet):
    """Processes that hold slots, and all that they have reported."""

    worker = "slot_worker"

    def __init__(self, *, limit: int, lease: float = LEASE, **options: Any) -> None:
        self.limit = limit
        self.entered: dict[tuple[int, int], float] = {}  # by process and fence
        self.left: dict[tuple[int, int], float] = {}
        self.lost: list[tuple[float, int, int]] = []
        self.stale: list[tuple[int, int]] = []  # entries with a smaller fence than one before; in a pool of one
        self.accepted: list[tuple[float, int, int]] = []  # writes: time, process, fence; in a pool of one
        self.refused: list[tuple[float, int, int]] = []  # writes with a smaller fence than one before
        self.highest = 0
        self.absent: list[tuple[int, float, float]] = []  # process, and the times between which it is stopped
        super().__init__(lease=lease, **options)

    def _count(self) -> None:
        while not self._is_closed:
            try:
                message = self._socket.recv(64)
            except TimeoutError:
                continue
            kind, number, value, fence = MESSAGE.unpack(message)
            if kind == ENTER:
                if fence < self.highest:
                    self.stale.append((number, fence))
                self.highest = max(self.highest, fence)
                self.entered[number, fence] = value
            elif kind == WRITE:
                (self.refused if fence < self.highest else self.accepted).append((value, number, fence))
                self.highest = max(self.highest, fence)
            elif kind == LEAVE:
                self.left[number, fence] = value
            elif kind == LOST:
                self.lost.append((value, number, fence))
            elif kind == WAIT:
                self.waits.append(value)
            elif kind == BEGUN:
                self.begun[number] = value

    def add(self, count: int = 1, **options: Any) -> list[int]:
        """Start processes, and return their numbers once they run."""
        numbers = []
        for _ in range(count):
            self._number += 1
            chosen = {"limit": self.limit, **self.options, **options} | {
                "counter": self._socket.getsockname()[1],
                "number": self._number,
            }
            self.processes[self._number] = subprocess.Popen(
                [sys.executable, "-m", f"tests.peers.{self.worker}", json.dumps(chosen)], cwd=ROOT,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip
            numbers.append(self._number)
        wait_until(lambda: set(numbers) <= set(self.begun), "the processes have begun", seconds=60)
        return numbers

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal, and note from when on the process is stopped."""
        if which in (signal.SIGKILL, signal.SIGSTOP):
            self.absent.append((number, time.monotonic(), float("inf")))
        elif which == signal.SIGCONT:
            index = max(i for i, entry in enumerate(self.absent) if entry[0] == number)
            self.absent[index] = (number, self.absent[index][1], time.monotonic())
        super().signal(number, which)

    def wait_for_entry(self, seconds: float = 20.0, *, number: int | None = None) -> float:
        """Wait for the next entry, of one process or of any, and return its time."""
        begin = time.monotonic()

        def found() -> float | None:
            times = [at for (who, _), at in list(self.entered.items()) if at >= begin and number in (None, who)]
            return min(times, default=None)

        wait_until(lambda: found() is not None, "somebody enters", seconds=seconds)
        entered = found()
        assert entered is not None
        return entered

    # Figures.

    def stretches(self) -> list[tuple[float, float]]:
        """Return the times between which each holder was in the resource."""
        end, result = time.monotonic(), []
        for (number, fence), start in list(self.entered.items()):
            stop = self.left.get((number, fence), end)
            for absent, since, _ in self.absent:
                if absent == number and start <= since:
                    stop = min(stop, since)  # later writes are late, and have its fence
            result.append((start, stop))
        return result

    def most(self, start: float = 0.0, end: float = float("inf")) -> int:
        """Return the most holders at once, ignoring overlaps shorter than a leave may be stamped late."""
        times = [
            edge
            for begun, stopped in self.stretches()
            if begun + GAP < stopped and begun < end and stopped > start
            for edge in ((begun + GAP, 1), (stopped, -1))
        ]
        now = worst = 0
        for _, step in sorted(times):
            now += step
            worst = max(worst, now)
        return worst

    def misjudged(self) -> list[tuple[float, int, int]]:
        """Return the writes that the resource judged wrongly by their fences: late ones accepted, and others refused.

        A write is late after another holder has entered. Fences tell that only if they rise with each hand-over.
        """
        entries = sorted((fence, at) for (_, fence), at in list(self.entered.items()))
        wrong = []
        for is_refused, writes in ((False, self.accepted), (True, self.refused)):
            for when, number, fence in list(writes):
                others = [at for _, at in entries if at > self.entered[number, fence]]
                gap = -GAP if is_refused else GAP
                if is_refused is not (bool(others) and min(others) + gap < when):
                    wrong.append((when, number, fence))
        return wrong

    def used(self, start: float, end: float, limit: int | None = None) -> float:
        """Return the part of the slots held between two times."""
        held = sum(max(0.0, min(stop, end) - max(begun, start)) for begun, stop in self.stretches())
        return held / ((self.limit if limit is None else limit) * (end - start))

    def hand_offs(self, start: float, end: float) -> list[float]:
        """Return how long each slot was free between two holders, sorted; valid while somebody always waits."""
        entries = sorted(begun for begun, _ in self.stretches())
        leaves = sorted(stopped for _, stopped in self.stretches())
        pairs = zip(leaves, entries[self.limit :], strict=False)
        return sorted(entered - left for left, entered in pairs if start <= left < end)

    def after(self, seconds: float) -> float:
        """Wait for ``seconds``, and return when that began."""
        start = time.monotonic()
        time.sleep(seconds)
        return start


@contextmanager
def fleet(**options: Any) -> Iterator[SlotFleet]:
    """Yield a fleet without processes, and end it."""
    running = SlotFleet(**options)
    try:
        yield running
    finally:
        running.close()


def percentile(values: list[float], part: float) -> float:
    """Return a percentile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def set_limit(server: RedisServer, limit: int) -> None:
    """Set the limit from a process that holds no slot."""

    async def main() -> None:
        async with ExecutorManager(peers=RedisPeers(server.url, "fleet", lease=LEASE)) as manager:
            manager.slots("pool").limit = limit
            await asyncio.sleep(0.1)

    asyncio.run(main())


def left(server: RedisServer) -> int:
    """Count the tokens left at the server."""
    with server.client() as client:
        names = [name for name in client.keys("*") if name.endswith(b"::slots")]
        return sum(field.startswith(b"t:") for name in names for field in client.hkeys(name))


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
