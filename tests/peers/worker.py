"""One peer of a real fleet, as a process that starts what it can, and reports each start to a counter by datagram.

Run by :mod:`tests.peers.real`; options are JSON in the first argument. SIGTERM lets it leave in order.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import struct
import sys
import time
from typing import Any

from ratelimited_executor import ExecutorManager, Pacing
from ratelimited_executor.peers import Outage, RedisPeers
from ratelimited_executor.policies import Strictness


START, BEGUN, WAIT = range(3)  # kinds of messages: (kind, number of the peer, value)


def client_of(options: dict[str, Any]) -> Any:
    """Return a URL, or a client for a cluster or a group of sentinels."""
    if options.get("cluster"):
        from redis.asyncio import RedisCluster

        return RedisCluster.from_url(options["url"])
    if options.get("sentinels"):
        from redis.asyncio import Sentinel

        sentinels = Sentinel([tuple(address) for address in options["sentinels"]], socket_timeout=0.5)
        return sentinels.master_for(options["master"], socket_timeout=0.5, retry=None)
    return options["url"]


async def main(options: dict[str, Any]) -> None:
    """Work until told to stop."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", options["counter"]))
    number = options["number"]
    lag = options.get("lag", 0.0)

    def tell(kind: int, value: float) -> None:
        sender.send(struct.pack("!Bid", kind, number, value))

    def work() -> float:
        now = time.monotonic()
        tell(START, now)
        return now

    outage = {"stop": Outage.STOP, "local": Outage.LOCAL}.get(options.get("outage", "stop")) or Outage.static(20)
    peers = RedisPeers(
        client_of(options),
        options.get("group", "fleet"),
        weight=options.get("weight", 1.0),
        outage=outage,
        strictness=Strictness[options.get("strictness", "EXACT")],
    )
    tasks: list[asyncio.Task[None]] = []
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    tell(BEGUN, time.monotonic())
    async with ExecutorManager(peers=peers) as manager:
        executor = manager.executor("limit", rate=options["rate"], pacing=Pacing.ON_TIME, drain_timeout=0)
        for _ in range(options.get("load", 0)):
            executor.execute(work)
        if options.get("flow"):
            tasks.append(asyncio.create_task(_flow(executor, work, options["flow"])))
        if options.get("probe"):
            tasks.append(asyncio.create_task(_probe(executor, work, tell, options["probe"])))
        if lag:
            asyncio.get_running_loop().call_later(0.1, _hold, lag)
        await stopped.wait()
        for task in tasks:
            task.cancel()


async def _flow(executor: Any, work: Any, per_second: float) -> None:
    """Submit tasks at random times."""
    while True:
        await asyncio.sleep(random.expovariate(per_second))
        executor.execute(work)


async def _probe(executor: Any, work: Any, tell: Any, mean: float) -> None:
    """Report how long a task that is due now takes to start on an otherwise idle peer."""
    while True:
        await asyncio.sleep(mean * random.uniform(0.5, 1.5))
        before = time.monotonic()
        tell(WAIT, await executor.submit(work) - before)


def _hold(mean: float) -> None:
    """Block the event loop half of the time, for exponential times with this mean."""
    time.sleep(random.expovariate(1 / mean))
    asyncio.get_running_loop().call_later(random.expovariate(1 / mean), _hold, mean)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
