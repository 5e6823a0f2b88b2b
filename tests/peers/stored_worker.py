"""One process of a group with a memory in a file or in PostgreSQL; it writes a line for each start, and for each hold.

Run by :mod:`tests.peers.test_stored_processes`; options are JSON in the first argument. A line has the monotonic time,
which all processes of a machine share, and what happened. SIGTERM lets it leave in order.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from ratelimited_executor import Burst, ExecutorManager, Paced, Window
from ratelimited_executor.peers import FilePeers, PostgresPeers

POLICIES = {"Paced": Paced, "Window": Window, "Burst": lambda: Burst(10)}


def tell(what: str) -> None:
    """Write a line at once: the process may be killed."""
    os.write(1, f"{time.monotonic()} {what}\n".encode())


async def main(options: dict[str, Any]) -> None:
    """Take permits and hold slots until told to stop."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    lease = options.get("lease", 10)
    if "file" in options:
        peers: Any = FilePeers(options["file"], lease=lease)
    else:
        peers = PostgresPeers(options["url"], options["group"], lease=lease)
    settings = {"rate": options["rate"], "policy": POLICIES[options["policy"]](), "drain_timeout": 0}
    async with ExecutorManager(peers=peers) as manager:
        limiter = manager.executor("limit", **settings)

        async def start() -> None:
            while True:
                async with limiter.permit():
                    tell("start")
                await asyncio.sleep(options.get("pause", 0))

        async def hold() -> None:
            pool = manager.slots("pool", limit=options["slots"])
            while True:
                async with pool.hold() as slot:
                    tell(f"enter {slot.fence}")
                    await asyncio.sleep(options["work"])
                    tell(f"leave {slot.fence}")

        tasks = [loop.create_task(start()) for _ in range(options.get("starters", 0))]
        tasks += [loop.create_task(hold()) for _ in range(options.get("holders", 0))]
        tell("begun")
        await stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
