"""``python -m bench``: run the benchmarks and print a table."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import sys

from bench.throughput import Result, compare

_HEADINGS = ["case", "call_later: schedule", "start", "ours: schedule", "start", "CPU ratio (least to greatest)"]


def main(arguments: list[str] | None = None) -> list[Result]:
    """Parse the command line, run, print, and return the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks, side by side in one run.")
    parser.add_argument("--count", type=int, default=1_000_000, help="calls in a round (default: 1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (default: 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--uvloop", action="store_true", help="on uvloop in place of asyncio's own loop")
    chosen = parser.parse_args(arguments)
    count, rounds, scale = (2_000, 1, 0.02) if chosen.quick else (chosen.count, chosen.rounds, 1.0)

    async def run() -> list[Result]:
        return [
            await compare("delays 0 to 10 s", count=count, spread=10 * scale, rounds=rounds),
            await compare("delays 0 to 1 s", count=count, spread=scale, rounds=rounds),
            await compare(
                "delays 0 to 10 s, 3 context variables", count=count, spread=10 * scale, rounds=rounds, variable_count=3
            ),
        ]

    loop_factory = None
    if chosen.uvloop:
        import uvloop  # noqa: PLC0415  # an extra, imported on use

        loop_factory = uvloop.new_event_loop
    logger = logging.getLogger("ratelimited_executor")
    level = logger.level
    logger.setLevel(
        logging.ERROR
    )  # scheduling a million calls at once blocks the loop, and is worth a warning each time
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            results = runner.run(run())
    finally:
        logger.setLevel(level)
    print(
        f"{platform.python_implementation()} {sys.version.split()[0]}, {platform.platform()}, {os.cpu_count()} cores,"
    )
    print(
        f"load {os.getloadavg()[0]:.2f}, {'uvloop' if chosen.uvloop else 'asyncio'}, {count:,} calls, {rounds} rounds;"
    )
    print("medians, in microseconds of CPU a call")
    _print_table([_HEADINGS, *(result.row() for result in results)])
    return results


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
