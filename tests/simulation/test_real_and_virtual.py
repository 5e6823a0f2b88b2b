"""The same load starts the same tasks at the same times on the real clock and in a simulation."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from statistics import median

import pytest

from ratelimited_executor import Pacing, RateLimitedExecutor
from ratelimited_executor.simulation import Lasting
from ratelimited_executor.simulation.loop import SimulationLoop

COUNT = 400
SPAN_SECONDS = 25.0


def make_load(seed: int) -> list[tuple[float, float, float]]:
    """Return due times, durations and priorities of tasks, with quiet stretches and bursts above the rate."""
    draw = random.Random(seed)
    load = []
    while len(load) < COUNT:
        begin = draw.uniform(0.2, SPAN_SECONDS)
        crowd = draw.choice([1, 1, 1, 2, 30])
        for _ in range(crowd):
            load.append(
                (begin + draw.expovariate(10), min(draw.lognormvariate(-2, 1), 2.0), float(draw.choice([0, 0, 5])))
            )
    return load[:COUNT]


async def run(load: list[tuple[float, float, float]], pacing: Pacing) -> tuple[float, list[tuple[float, int]]]:
    """Run a load; return the epoch time of its begin by the timeline, and (start, number) of each task."""
    loop = asyncio.get_running_loop()
    starts: list[tuple[float, int]] = []
    async with RateLimitedExecutor("trace", rate=25, max_concurrency=12, pacing=pacing) as executor:
        begin = loop.time()
        epoch = executor._engine.queue.timeline.to_epoch(begin)

        def job(number: int) -> Lasting:
            starts.append((loop.time() - begin, number))
            return Lasting(load[number][1])

        for number, (due, _, priority) in enumerate(load):
            executor.schedule(job, number, delay=due, priority=priority)
    return epoch, starts


def replay(load: list[tuple[float, float, float]], pacing: Pacing, epoch: float) -> list[tuple[float, int]]:
    """Run the load in a simulation that begins at the same time of day, so that permits come at the same times."""
    loop = SimulationLoop(start_wall=epoch)
    _, starts = loop.run_until_complete(run(load, pacing))
    loop.close()
    return starts


@pytest.mark.slow
async def test_real_run_and_its_replay_start_the_same_tasks_at_the_same_times() -> None:
    """A load of half a minute in real time starts as in its simulation, except for delays of the machine.

    It needs real time, which is what it tests. The tolerances are wide: half of the starts are within a permit, 40 ms,
    of the replay, nine in ten within a quarter of a second, and all within three, for a machine busy with other tests.
    """
    load = make_load(7)
    for _ in range(3):  # if the process stood still, permits have lapsed, and later tasks stay late
        ticker = asyncio.ensure_future(longest_stall())
        runs = await asyncio.gather(*(run(load, pacing) for pacing in Pacing))
        ticker.cancel()
        if await ticker < 0.03:
            break
    for pacing, (epoch, real) in zip(Pacing, runs, strict=True):
        check(real, await asyncio.to_thread(replay, load, pacing, epoch))


async def longest_stall() -> float:
    """Return the longest stall of the loop in seconds, when cancelled."""
    loop, longest = asyncio.get_running_loop(), 0.0
    try:
        while True:
            due = loop.time() + 0.005
            await asyncio.sleep(0.005)
            longest = max(longest, loop.time() - due)
    except asyncio.CancelledError:
        print(f"stood still for {longest:.3f} s")
        return longest


def check(real: list[tuple[float, int]], virtual: list[tuple[float, int]]) -> None:
    """Assert that both have started the same tasks at the same times."""
    assert sorted(number for _, number in real) == sorted(number for _, number in virtual) == list(range(COUNT))
    at = {number: start for start, number in virtual}
    differences = sorted(abs(start - at[number]) for start, number in real)
    print(f"median {median(differences):.6f} p90 {differences[int(0.9 * COUNT)]:.6f} most {differences[-1]:.6f} s")
    assert differences[int(0.9 * COUNT)] < 0.250, differences[:: COUNT // 20]
    assert median(differences) < 0.040
    assert differences[-1] < 3.0
    # Neither is early: permits come 25 times a second on the same grid, and the order is the same but for neighbours.
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(sorted(virtual))]
    assert min(gaps) > 1 / 25 - 0.0201 - 1e-6  # a permit may be used up to 20 ms late


@pytest.mark.parametrize("pacing", Pacing)
def test_replay_is_repeatable(pacing: Pacing) -> None:
    """Two replays of a load are equal to the last digit."""
    load = make_load(8)
    assert replay(load, pacing, 1_700_000_000.25) == replay(load, pacing, 1_700_000_000.25)
