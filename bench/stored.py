"""What calls cost whose memory is in a file or in PostgreSQL: ``python -m bench.stored [postgresql://...]``.

Times of single calls are medians, so that they tell little of what else the machine does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from ratelimited_executor import ExecutorManager, Window
from ratelimited_executor._core.fleet.limit_settings import PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.slots import SlotCall, SlotEntry
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketRun
from ratelimited_executor.peers import FilePeers, PostgresPeers
from ratelimited_executor.peers.stored.file import FileSlotTransport, FileTransport
from ratelimited_executor.peers.stored.postgres import PostgresSlotTransport, PostgresTransport
from ratelimited_executor.peers.stored.wakes import Wakes

SECOND = 1_000_000
PLAN = (PlanLimit("window", "permits", WindowSettings.of(1_000_000, SECOND).write()),)
numbers = count(1)


def call_of(tickets: int, keys: int = 0, *, now_us: int | None = None) -> TicketCall:
    """Return a call for tickets of the plan, or for one of each of some keys."""
    key = PaceSettings.of(100, SECOND).write()
    number = next(numbers)
    runs = [TicketRun(1, (("permits", 1),), f"k{(number * keys + each) % 5000}", key) for each in range(keys)]
    return TicketCall(
        peer=f"p{os.getpid()}",
        since_us=0 if now_us is None else 1,
        earliest_us=0 if now_us is None else now_us - SECOND,
        latest_us=0 if now_us is None else now_us + SECOND,
        number=number,
        ahead_us=100_000,
        difference_us=SECOND,
        quarantine_us=1_800_000,
        plan_id="one",
        plan=PLAN,
        runs=tuple(runs) or (TicketRun(tickets, (("permits", 1),)),),
    )


async def cost(transport: Any, make: Any, rounds: int = 200) -> str:
    """Return the median of the time of a call, and of its CPU time."""
    walls, cpus = [], []
    now_us: int | None = None
    for each in range(rounds + 20):
        call = make(now_us)
        wall, cpu = time.perf_counter(), time.process_time()
        [reply] = await transport.call([("mail", call)])
        if each >= 20:
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        now_us = reply.now_us if not isinstance(transport, FileTransport) else None
        await asyncio.sleep(0.001)
    tickets = sum(len(outcome.tickets) for outcome in reply.outcomes)
    return (
        f"{1e6 * statistics.median(walls):7.0f} us, {1e6 * statistics.median(cpus):6.0f} us of CPU ({tickets} tickets)"
    )


async def calls(transport: Any) -> None:
    """Print what calls for tickets cost."""
    await transport.connect()
    for name, make in {
        "1 ticket": lambda now_us: call_of(1, now_us=now_us),
        "100 tickets": lambda now_us: call_of(100, now_us=now_us),
        "1 key": lambda now_us: call_of(0, 1, now_us=now_us),
        "50 keys": lambda now_us: call_of(0, 50, now_us=now_us),
    }.items():
        print(f"  call for {name:12}", await cost(transport, make))
    await transport.aclose()


async def slots(transport: Any) -> None:
    """Print what a call for a slot costs beside many holders."""
    for holders in (0, 5000):
        for first in range(0, holders, 500):
            entries = tuple(SlotEntry(f"h:{each}", ("many",), 0, 0, 0, "") for each in range(first, first + 500))
            limits = (("many", holders),) if not first else ()
            await transport.call_slots(
                SlotCall(peer="h", lease_us=600 * SECOND, difference_us=SECOND, entries=entries, limits=limits)
            )
        walls = []
        for each in range(200):
            begin = time.perf_counter()
            entry = SlotEntry(f"q:{holders}{each}", ("one",), 0, 0, 0, "")
            releases = (f"q:{holders}{each - 1}",)
            limits = (("one", 1),) if not each else ()
            await transport.call_slots(
                SlotCall(
                    peer="q",
                    lease_us=600 * SECOND,
                    difference_us=SECOND,
                    entries=(entry,),
                    releases=releases,
                    limits=limits,
                    watched=("one",),
                )
            )
            walls.append(time.perf_counter() - begin)
        print(f"  slot handed over beside {holders:4} holders {1e6 * statistics.median(walls):7.0f} us")
    await transport.aclose()


async def idle(peers: Any) -> None:
    """Print how long a start takes on an idle process, from its submission."""

    async def work() -> float:
        return time.perf_counter()

    async with ExecutorManager(peers=peers) as manager:
        executor = manager.executor("mail", rate="1000/s", policy=Window())
        await executor.submit(work)
        waits = []
        for _ in range(200):
            await asyncio.sleep(0.03)
            begin = time.perf_counter()
            waits.append(await executor.submit(work) - begin)
    waits.sort()
    print(f"  idle, submission to start: p50 {1e3 * waits[100]:.2f} ms, p99 {1e3 * waits[197]:.2f} ms")


def many(path: str, seconds: float, counted: Any) -> None:
    """Make calls in one process, one after the other."""

    async def run() -> None:
        transport = FileTransport(path)
        await transport.connect()
        until, made, longest = time.monotonic() + seconds, 0, 0.0
        while (begin := time.monotonic()) < until:
            await transport.call([("mail", call_of(1))])
            made, longest = made + 1, max(longest, time.monotonic() - begin)
        counted.put((made, longest))
        await transport.aclose()

    asyncio.run(run())


def four(path: str) -> None:
    """Print how many calls four processes get through one file."""
    context = multiprocessing.get_context("spawn")
    counted = context.Queue()
    processes = [context.Process(target=many, args=(path, 5.0, counted)) for _ in range(4)]
    for each in processes:
        each.start()
    got = [counted.get() for _ in processes]
    for each in processes:
        each.join()
    print(f"  four processes: {sum(made for made, _ in got) / 5:.0f} calls a second, each {[made for made, _ in got]}, "
          f"the longest {1e3 * max(longest for _, longest in got):.0f} ms")  # fmt: skip


def holder(options: dict[str, str], counted: Any) -> None:
    """Hold the only slot again and again; count how long it was free before."""

    async def run() -> None:
        peers: Any = FilePeers(options["file"]) if "file" in options else PostgresPeers(options["url"], "handed")
        async with ExecutorManager(peers=peers) as manager:
            pool = manager.slots("pool", limit=1)
            until = time.monotonic() + 6
            while time.monotonic() < until:
                async with pool.hold():
                    entered = time.monotonic()
                    await asyncio.sleep(0.01)
                    counted.put((entered, time.monotonic()))

    asyncio.run(run())


def handed(options: dict[str, str]) -> None:
    """Print how long a slot is free between two holders of different processes."""
    context = multiprocessing.get_context("spawn")
    counted = context.Queue()
    processes = [context.Process(target=holder, args=(options, counted)) for _ in range(2)]
    for each in processes:
        each.start()
    spans = []
    while any(each.is_alive() for each in processes):
        time.sleep(0.2)
        while not counted.empty():
            spans.append(counted.get())
    spans.sort()
    gaps = sorted(after[0] - before[1] for before, after in pairwise(spans))
    print(f"  hand-off between two processes: {len(gaps)}, p50 {1e3 * gaps[len(gaps) // 2]:.1f} ms, "
          f"p99 {1e3 * gaps[len(gaps) * 99 // 100]:.1f} ms")  # fmt: skip


def main() -> None:
    """Print everything."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "app.limits")
        print("a file:")
        asyncio.run(calls(FileTransport(path)))
        asyncio.run(slots(FileSlotTransport(path, Wakes())))
        asyncio.run(idle(FilePeers(path + "2")))
        four(path + "3")
        handed({"file": path + "4"})
    if len(sys.argv) > 1:
        print("PostgreSQL:")
        url = sys.argv[1]
        asyncio.run(calls(PostgresTransport(url, "calls")))
        asyncio.run(slots(PostgresSlotTransport(url, "slots")))
        asyncio.run(idle(PostgresPeers(url, "idle")))
        handed({"url": url})


if __name__ == "__main__":
    main()
