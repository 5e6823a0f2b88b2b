"""Rate limiting: run a number of trivial coroutine calls at R a second, as evenly as possible.

A start is the moment at which the code of the call begins. A peer that is too slow for the rate is stopped after twice
the time that the calls should have taken; its figures are those of the calls that it started.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Table
from bench.peers.peer import SLACK_SECONDS, bars, burst_of
from ratelimited_executor.testing import worst_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Options
    from bench.peers.peer import Peer

__all__ = ["measure"]

RATES = (1_000, 5_000)  # starts a second
COLUMNS = ["CPU a start", "rate", "most in 1 s", "most in 0.1 s", "evenness"]


def measure(options: Options, peers: Sequence[Peer]) -> list[Table]:
    """Measure all peers that have a rate in turns, for each of the rates."""
    return [_table(options, peers, rate) for rate in RATES]


def _table(options: Options, peers: Sequence[Peer], rate: int) -> Table:
    seconds = options.seconds(3.0, 0.05)
    count = round(rate * seconds)
    sides = {peer.name: peer for peer in peers if peer.paced is not None}
    rounds = options.in_turns(
        {name: partial(_round, options, peer, count, rate) for name, peer in sides.items()},
        rounds=options.rounds(3),
        warm_up=0,
        label=f"{rate:,} starts a second",
    )
    table = Table(f"Rates: {count:,} coroutine calls at {rate:,} starts a second", COLUMNS)
    for name, results in rounds.items():
        table.add(
            name,
            {
                "CPU a start": Figure([each["cpu_us"] for each in results], "us"),
                "rate": Figure([each["rate"] for each in results], "/s", smaller_is_better=None),
                "most in 1 s": Figure([each["second"] for each in results], "", smaller_is_better=None),
                "most in 0.1 s": Figure([each["tenth"] for each in results], "", smaller_is_better=None),
                "evenness": Figure([each["evenness"] for each in results], ""),
            },
        )
        if name.startswith("ours"):
            table.check("calls of ours lost", sum(count - each["started"] for each in results))
    table.notes.append("Evenness: (p95 - p5 of the gaps between starts) / their mean; 0 is a metronome.")
    most = round(rate * (1 + SLACK_SECONDS)) + 1
    table.notes.append(
        f"Ours never starts more than {rate:,} in any second; its nominal law allows {most:,}, and so do the buckets of "
        f"{burst_of(rate)}."
    )
    table.charts.append(bars(table, "CPU a start", "microseconds"))
    return table


def _round(options: Options, peer: Peer, count: int, rate: int) -> dict[str, Any]:
    with options.runner() as runner:
        return runner.run(_one_round(peer, count, rate))


async def _one_round(peer: Peer, count: int, rate: int) -> dict[str, Any]:
    assert peer.paced is not None
    starts: list[float] = []

    async def call() -> None:
        starts.append(time.monotonic())

    await peer.paced(call, 1, rate)  # the first use imports and creates what it needs
    starts.clear()
    gc.collect()
    before = time.process_time()
    try:
        async with asyncio.timeout(2 * count / rate + 0.5):
            await peer.paced(call, count, rate)
    except TimeoutError:
        pass  # it is too slow for this rate, as the rate that it reached shows
    cpu = time.process_time() - before
    return {"started": len(starts), "cpu_us": cpu * 1e6 / len(starts), **_figures(starts)}


def _figures(starts: Sequence[float]) -> dict[str, float]:
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(starts))
    span = starts[-1] - starts[0]
    return {
        "rate": len(gaps) / span,
        "second": worst_window(starts, width=1.0)[0],
        "tenth": worst_window(starts, width=0.1)[0],
        "evenness": (gaps[round(len(gaps) * 0.95) - 1] - gaps[round(len(gaps) * 0.05)]) * len(gaps) / span,
    }
