"""Progress in a real Redis: nodes that share the turns of a cycle."""

import asyncio
import time
from collections import Counter, defaultdict

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.cycles import RedisProgress
from ratelimited_executor.spread import CycleSlots


@pytest.mark.slow
async def test_nodes_share_the_turns_of_a_cycle(redis_server):
    """Three nodes share a cycle of 8 s in real time: each key runs once in each cycle, on one of them.

    Tolerances suit a slow machine: a key may be late, but not early, and not twice in a cycle.
    """
    slots, runs, shares = CycleSlots(8, 256), defaultdict(list), Counter()
    by_slot = defaultdict(list)
    for key in range(300):
        by_slot[slots.slot_of(key)].append(key)

    async def node(number):
        def sync(key):
            runs[key].append(time.time())
            shares[number] += 1

        progress = RedisProgress(redis_server.url)
        async with RateLimitedExecutor(f"node {number}") as executor:
            handle = executor.every(
                cycle=8, buckets=256, keys=by_slot.__getitem__, fn=sync, name="sync",
                progress=progress, lease=3,
            )  # fmt: skip
            await asyncio.sleep(20)
            counts = handle.statistics()
            assert (0, 0, 0) == (counts.loader_errors, counts.lost, counts.skipped_turns)
            handle.cancel()
        await progress.aclose()  # only now: a turn that was cut is reported to the store

    await asyncio.gather(*(node(number) for number in range(3)))
    assert 300 == len(runs)
    assert all(2 <= len(times) <= 3 for times in runs.values())
    for times in runs.values():
        assert all(later - earlier > 5 for earlier, later in zip(times, times[1:], strict=False)), times


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        (({},), TypeError, "redis"),
        (("no url",), ValueError, "redis"),
        (("redis://localhost", 5), TypeError, "prefix"),
        (("redis://localhost", ""), ValueError, "prefix"),
        (("redis://localhost", "a{b}"), ValueError, "prefix"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, error, name):
    """Bad arguments are refused by name when the store is made."""
    with pytest.raises(error, match=f"{name} must"):
        RedisProgress(arguments[0], **({"prefix": arguments[1]} if len(arguments) > 1 else {}))
