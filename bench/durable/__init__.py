"""Durable tasks: ours beside other queues and bare inserts, idle, with many waiting, and under a held snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness import Options, Table

__all__ = ["DESCRIPTION", "NAME", "run"]

NAME = "durable"
DESCRIPTION = "durable tasks beside arq, taskiq, docket, procrastinate, PgQueuer and huey; claims and latency"


def run(options: Options) -> list[Table]:
    """Measure the five parts with whatever is installed."""
    # Not at the top: an interpreter that has a single queue and none of our extras imports this package as well.
    from bench.durable import claims, held, latency, one_put, throughput  # noqa: PLC0415
    from bench.durable.places import servers  # noqa: PLC0415

    with servers() as started:
        tables = [part.table(options, started) for part in (throughput, one_put, latency, claims, held)]
    return [table for table in tables if table.rows]
