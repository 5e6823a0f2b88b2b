"""The cost of many calls that wait for a limiter, with each round in a fresh process.

A number of calls wait at the same time; memory is what the process grew by. Then they run for a second at the rate, and
then a random thousand of those that still wait are cancelled one by one. All costs are CPU time of the process.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Table, fresh
from bench.peers.peer import bars
from bench.resident import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Options
    from bench.peers.peer import Cancellable, Peer

__all__ = ["measure", "measure_peer"]

SEED = 1
RATE = 5_000  # starts a second
CANCELLED_MAX = 1_000
TURNS_MAX = 1_000  # turns of the loop, in which the cancelled calls must end
COLUMNS = ["CPU to queue one", "memory a waiter", "CPU a start", "rate", "CPU to cancel one"]


def measure(options: Options, peers: Sequence[Peer]) -> list[Table]:
    """Measure all peers that can let calls wait, with ten thousand and with a hundred thousand of them."""
    counts = [options.size(10_000, 1_500)] + ([] if options.quick else [options.size(100_000, 1_500)])
    return [_table(options, peers, count) for count in counts]


def _table(options: Options, peers: Sequence[Peer], count: int) -> Table:
    seconds = options.seconds(1.0, 0.01)
    names = [peer.name for peer in peers if peer.queued is not None]
    rounds = options.in_turns(
        {
            name: partial(fresh, "bench.peers.overflow:measure_peer", name=name, count=count, seconds=seconds)
            for name in names
        },
        rounds=options.rounds(3),
        warm_up=0,
        label=f"{count:,} waiting",
    )
    table = Table(f"Overflow: {count:,} calls wait, {RATE:,} starts a second", COLUMNS)
    for name, results in rounds.items():
        cells: dict[str, Figure | str] = {
            "CPU to queue one": Figure([each["queue_us"] for each in results], "us"),
            "memory a waiter": Figure([each["bytes"] for each in results], "B"),
            "CPU a start": Figure([each["start_us"] for each in results], "us"),
            "rate": Figure([each["rate"] for each in results], "/s", smaller_is_better=None),
            "CPU to cancel one": "none waits" if results[0]["handle_count"] else "all or none",
        }
        if all(each["cancel_us"] is not None for each in results):
            cells["CPU to cancel one"] = Figure([each["cancel_us"] for each in results], "us")
        table.add(name, cells)
        table.check("cancelled calls that went on waiting", sum(each["stuck"] for each in results))
    table.notes.append(
        "To cancel one includes what those that wait cost meanwhile; 'all or none': one handle for all calls."
    )
    table.charts.append(bars(table, "CPU a start", "microseconds"))
    return table


def measure_peer(name: str, count: int, seconds: float) -> dict[str, Any]:
    """Measure one peer in this process.

    Args:
        name: the name of the peer.
        count: how many calls wait.
        seconds: how long they run at the rate, before some are cancelled.
    """
    from bench.peers import ALL  # noqa: PLC0415  # which imports this module

    peer = next(each for each in ALL if each.name == name)
    assert peer.is_installed
    return asyncio.run(_measure(peer, count, seconds))


async def _measure(peer: Peer, count: int, seconds: float) -> dict[str, Any]:
    assert peer.queued is not None
    starts: list[float] = []

    async def call() -> None:
        starts.append(time.monotonic())

    async with peer.queued(call, 1, RATE):  # the first use imports and creates what it needs
        await asyncio.sleep(0.01)
    starts.clear()
    gc.collect()
    memory, begin = resident_bytes(), time.process_time()
    async with peer.queued(call, count, RATE) as waiting:
        queued, grown, waiter_count = time.process_time(), resident_bytes() - memory, count - len(starts)
        starts.clear()
        first, before = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        ran, started, lasted = time.process_time() - before, len(starts), time.monotonic() - first
        left = [each for each in waiting if not each.done()]
        chosen = random.Random(SEED).sample(left, min(CANCELLED_MAX, len(left) // 2))
        cancel_seconds, stuck = await _cancel(chosen)
    return {
        "queue_us": (queued - begin) * 1e6 / count,
        "bytes": max(0, grown) / max(1, waiter_count),
        "start_us": ran * 1e6 / max(1, started),
        "rate": started / lasted,
        "cancel_us": cancel_seconds * 1e6 / len(chosen) if chosen else None,
        "handle_count": len(waiting),
        "stuck": stuck,
    }


async def _cancel(chosen: Sequence[Cancellable]) -> tuple[float, int]:
    """Cancel calls; return the CPU seconds until all have ended, and how many have not."""
    before = time.process_time()
    for each in chosen:
        each.cancel()
    for _ in range(TURNS_MAX):
        if all(each.done() for each in chosen):
            break
        await asyncio.sleep(0)
    return time.process_time() - before, sum(not each.done() for each in chosen)
