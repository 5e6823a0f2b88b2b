"""A process that runs durable tasks of lanes, and logs their starts and ends; see ``lanes.py``."""

import asyncio
import os
import sys

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableState, DurableTasks, PostgresStore, SQLiteStore

LEASE = 2.0


async def main(where: str, log: str, rate: str) -> None:
    """Run the tasks of a store until none but dead letters is left."""
    store = PostgresStore(where) if where.startswith("postgresql:") else SQLiteStore(where)
    tasks = DurableTasks(store, lease=LEASE)
    sink = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    me = os.getpid()

    @tasks.task
    async def work(number, group):
        os.write(sink, f"{me} {number} {group} begin\n".encode())
        await asyncio.sleep(0.01)
        os.write(sink, f"{me} {number} {group} end\n".encode())

    async with RateLimitedExecutor("lanes", rate=rate) as executor, tasks.running(executor):
        while True:
            await asyncio.sleep(0.1)
            counts = await tasks.counts()
            if sum(counts.values()) == counts[DurableState.DEAD]:
                return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
