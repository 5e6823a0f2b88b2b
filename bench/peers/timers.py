"""Throughput: n trivial calls with random delays of 0 to 3 s, scheduled and run, for all peers that have timers.

CPU time of the process is measured, from the first call scheduled to the last one run, so that waiting does not count.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.countdown import STRIDE, Countdown, percentiles
from bench.harness import Figure, Table, ratio
from bench.peers.peer import bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Options
    from bench.peers.peer import Peer

__all__ = ["measure"]

SEED = 1
ROUND_SECONDS_MAX = 300.0  # a peer that loses a call would never end
BASE = "ours, call_later"  # the side by whose CPU time that of the others is divided
COLUMNS = ["calls", "CPU a call", "by that of ours", "least lateness", "p99 lateness"]


def measure(options: Options, peers: Sequence[Peer]) -> Table:
    """Measure all peers that have timers in turns, each on a loop of its own."""
    count, spread = options.size(200_000, 500), options.seconds(3.0, 0.05)
    chosen = random.Random(SEED)
    delays = [chosen.random() * spread for _ in range(count)]
    sides = {peer.name: peer for peer in peers if peer.timers is not None}
    rounds = options.in_turns(
        {name: partial(_round, options, peer, delays[: peer.calls_max]) for name, peer in sides.items()},
        rounds=options.rounds(3),
        label="timers",
    )
    table = Table(f"Timers: calls with random delays of 0 to {spread:g} s", COLUMNS)
    base = [each["cpu_us"] for each in rounds[BASE]]
    for name, results in rounds.items():
        cpu = Figure([each["cpu_us"] for each in results], "us")
        table.add(
            name,
            {
                "calls": f"{results[0]['count']:,}",
                "CPU a call": cpu,
                "by that of ours": ratio(cpu.values, base),
                "least lateness": Figure([each["least_ms"] for each in results], "ms", smaller_is_better=None),
                "p99 lateness": Figure([each["p99_ms"] for each in results], "ms"),
            },
        )
        table.check(f"calls lost, {name}", sum(each["lost"] for each in results))
        if name.startswith("ours"):
            table.check("calls of ours started early", sum(each["early"] for each in results))
    table.notes.append(f"'By that of ours': CPU a call, divided by that of {BASE} in the same round.")
    table.notes.append(f"Lateness is that of one call in {STRIDE}; below 0 is early.")
    table.charts.append(bars(table, "CPU a call", "microseconds"))
    return table


def _round(options: Options, peer: Peer, delays: Sequence[float]) -> dict[str, Any]:
    with options.runner(uvloop=peer.uvloop or options.uvloop) as runner:
        return runner.run(_one_round(peer, delays))


async def _one_round(peer: Peer, delays: Sequence[float]) -> dict[str, Any]:
    assert peer.timers is not None
    await peer.timers(Countdown(1), [0.0])  # the first use imports and creates what it needs
    countdown = Countdown(len(delays))
    gc.collect()
    before = time.process_time()
    async with asyncio.timeout(ROUND_SECONDS_MAX):
        await peer.timers(countdown, delays)
    cpu = time.process_time() - before
    return {
        "count": len(delays),
        "cpu_us": cpu * 1e6 / len(delays),
        "least_ms": min(countdown.lateness) * 1e3,
        "p99_ms": percentiles(countdown.lateness)[1] * 1e3,
        "lost": countdown.lost,
        "early": countdown.early,
    }
