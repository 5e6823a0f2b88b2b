"""Runs one task on the installed package, prints which kernel ran it, and fails if it is not the one that was expected."""

from __future__ import annotations

import asyncio
import sys

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.insight import kernel


async def main(expected: str) -> None:
    """Schedule a batch and a task, and compare what they come to."""
    async with RateLimitedExecutor("smoke", rate=1000) as executor:
        batch = executor.schedule_many(str, range(10))
        later = executor.schedule(str, 7, delay=0.01)
        if (await batch).done != 10 or await later != "7":
            sys.exit("wrong results")
    print(f"Python {sys.version.split()[0]}, kernel: {kernel}")
    if kernel.is_compiled != (expected == "compiled"):
        sys.exit(f"the {expected} kernel was expected")


if __name__ == "__main__":
    if sys.argv[1:] not in (["compiled"], ["pure"]):
        sys.exit("usage: smoke.py compiled | pure")
    asyncio.run(main(sys.argv[1]))
