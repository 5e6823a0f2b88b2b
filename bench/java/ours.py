"""Our side of the Java original's workload: n trivial tasks with random delays, by one thread, in a process of its own.

One by one, a coroutine uses ``call_later`` and lets the loop run after every thousand, as a good guest does. In bulk,
there is one ``schedule_many(delays=)``. Both start each task at its due time (``Pacing.ON_TIME``).
"""

from __future__ import annotations

import asyncio
import gc
import random
from array import array
from time import monotonic, process_time
from typing import Any

from bench.countdown import Countdown, batch_items, percentiles, schedule_in_turns
from bench.resident import peak_resident_bytes
from ratelimited_executor import Pacing, RateLimitedExecutor

__all__ = ["measure"]

SEED = 1


def measure(face: str, count: int, spread: float) -> dict[str, Any]:
    """Run one round in this process.

    Args:
        face: "call_later" or "schedule_many".
        count: how many tasks.
        spread: the greatest delay, in seconds.

    Returns:
        times in seconds, lateness in milliseconds, memory in bytes, by the same keys as ``ScheduledTimers.java``.
    """
    return asyncio.run(_measure(face, count, spread))


async def _measure(face: str, count: int, spread: float) -> dict[str, Any]:
    draw = random.Random(SEED).random
    delays = array("d", (draw() * spread for _ in range(count)))
    items = batch_items(delays) if face == "schedule_many" else []
    countdown = Countdown(count)
    gc.collect()
    async with RateLimitedExecutor("java", pacing=Pacing.ON_TIME) as executor:
        cpu, begin = process_time(), monotonic()
        if face == "schedule_many":
            countdown.begin()
            executor.schedule_many(countdown.call_item, items, delays=delays)
        else:
            await schedule_in_turns(executor.call_later, countdown, delays)
        scheduled = monotonic()
        await countdown.done
        total, cpu = monotonic() - begin, process_time() - cpu
    p50, p99, greatest = (seconds * 1e3 for seconds in percentiles(countdown.lateness))
    return {
        "ran": count - countdown.lost,
        "early": countdown.early,
        "schedule_seconds": scheduled - begin,
        "total_seconds": total,
        "cpu_seconds": cpu,
        "least_ms": min(countdown.lateness) * 1e3,
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": greatest,
        "peak_bytes": peak_resident_bytes(),
    }
