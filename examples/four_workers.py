"""Four processes share one rate through a file: there is no server to run.

    python examples/four_workers.py                           # 50 requests a second by four processes, for five seconds
    python examples/four_workers.py --rate 10/s --seconds 3

Each process is what a worker of uvicorn or gunicorn is: it makes its own peers, with the same file, and its own executor,
with the same name and the whole rate. The program counts the starts of all of them by the machine's clock, and prints how
many the busiest second had.

This example needs: pip install 'ratelimited-executor[sqlite]'
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from ratelimited_executor import RateLimitedExecutor, Window
from ratelimited_executor.peers import FilePeers

WORKERS = 4
TASKS = 8  # in each worker, which ask for the next permit as soon as they have used one


async def work(path: str, rate: str, seconds: float) -> list[float]:
    """Take permits for some seconds; return the times of the starts."""
    starts: list[float] = []
    until = time.monotonic() + seconds

    async def use_permits(limiter: RateLimitedExecutor) -> None:
        while True:
            async with limiter.permit():
                starts.append(time.monotonic())  # the request to the rate-limited service would be here

    limiter = RateLimitedExecutor("requests", rate=rate, policy=Window(), peers=FilePeers(path), drain_timeout=0)
    async with limiter:
        tasks = [asyncio.ensure_future(use_permits(limiter)) for _ in range(TASKS)]
        await asyncio.sleep(until - time.monotonic())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return starts


def run_worker(path: str, rate: str, seconds: float) -> list[float]:
    """Run one worker in its process."""
    return asyncio.run(work(path, rate, seconds))


def most_in_a_second(starts: list[float]) -> int:
    """Return how many starts the busiest second has."""
    ordered, first, most = sorted(starts), 0, 0
    for last, start in enumerate(ordered):
        while start - ordered[first] >= 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def main() -> None:
    """Run the workers, and print what they have started together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="50/s", help="of all workers together (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "app.limits")
        context = multiprocessing.get_context("spawn")
        together = context.Barrier(WORKERS).wait  # so that no worker begins before all of them have started
        with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=together) as pool:
            futures = [pool.submit(run_worker, path, options.rate, options.seconds) for _ in range(WORKERS)]
            starts = [future.result() for future in futures]
    print(f"starts of each worker: {', '.join(str(len(each)) for each in starts)}")
    print(
        f"starts in the busiest second: {most_in_a_second(list(chain.from_iterable(starts)))}, at a rate of {options.rate}"
    )


if __name__ == "__main__":
    main()
