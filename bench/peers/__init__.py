"""Ours beside what a user would use instead: timers, rates, and calls that wait for a limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.peers import (
    aiolimiter,
    aiometer,
    apscheduler,
    event_loops,
    ours,
    overflow,
    pyrate_limiter,
    rates,
    throttled,
    timers,
)

if TYPE_CHECKING:
    from bench.harness import Options, Table
    from bench.peers.peer import Peer

__all__ = ["ALL", "DESCRIPTION", "NAME", "run"]

NAME = "peers"
DESCRIPTION = "asyncio, uvloop, APScheduler, aiometer, aiolimiter, PyrateLimiter and throttled-py beside ours"

ALL: list[Peer] = [
    peer
    for module in (ours, event_loops, apscheduler, aiometer, aiolimiter, pyrate_limiter, throttled)
    for peer in module.PEERS
]


def run(options: Options) -> list[Table]:
    """Measure the three comparisons with whatever is installed."""
    missing = [peer for peer in ALL if not peer.is_installed]
    lines = [f"{peer.name}: skipped, as {peer.package} is not installed" for peer in missing]
    for line in lines:
        options.note(line)
    peers = [peer for peer in ALL if peer not in missing]
    tables = [timers.measure(options, peers), *rates.measure(options, peers), *overflow.measure(options, peers)]
    tables[0].notes += lines
    return tables
