"""One process of a fleet that holds slots, and reports each entry, write and leave by datagram from the body.

Run by :mod:`tests.peers.real_slots`; options are JSON in the first argument. SIGTERM lets it leave in order, SIGUSR1
blocks its event loop for ``block`` seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import sys
import time
from typing import Any

from ratelimited_executor import ExecutorManager
from ratelimited_executor.exceptions import SlotLostError
from ratelimited_executor.peers import RedisPeers

from .worker import client_of

ENTER, LEAVE, LOST, WAIT, BEGUN, WRITE = range(6)  # kinds of messages
MESSAGE = struct.Struct("!BidQ")  # kind, number of the process, value, fence


async def main(options: dict[str, Any]) -> None:
    """Hold slots until told to stop."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", options["counter"]))
    stopped = asyncio.Event()

    def tell(kind: int, value: float, fence: int = 0) -> None:
        sender.send(MESSAGE.pack(kind, options["number"], value, fence))

    async def hold_again(slots: Any) -> None:
        while not stopped.is_set():
            before = time.monotonic()
            fence = 0
            try:
                async with slots.hold() as slot:
                    fence = slot.fence
                    now = time.monotonic()
                    tell(ENTER, now, fence)
                    tell(WAIT, now - before, fence)
                    try:
                        for _ in range(options.get("writes", 0)):  # without a point for cancellation between writes
                            time.sleep(options.get("work", 0.05) / options["writes"])
                            tell(WRITE, time.monotonic(), fence)
                        await asyncio.sleep(0 if options.get("writes") else options.get("work", 0.05))
                    finally:
                        tell(LEAVE, time.monotonic(), fence)
            except SlotLostError:
                tell(LOST, time.monotonic(), fence)
            await asyncio.sleep(options.get("pause", 0))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, time.sleep, options.get("block", 0))
    lease = options["lease"]
    peers = RedisPeers(client_of(options), "fleet", lease=lease, hang_timeout=options.get("hang", 60 * lease))
    async with ExecutorManager(peers=peers) as manager:
        slots = manager.slots("pool", limit=options["limit"])
        tasks = [loop.create_task(hold_again(slots)) for _ in range(options.get("holders", 4))]
        tell(BEGUN, time.monotonic())
        await stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
