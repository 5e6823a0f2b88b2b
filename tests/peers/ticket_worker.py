"""One process of a fleet whose starts need permits, tokens, a key's rate and a slot, and are reported by datagram.

Run by :mod:`tests.peers.real_tickets`; options are JSON in the first argument. SIGTERM lets it leave in order, SIGUSR1
blocks its event loop for ``block`` seconds, and each SIGUSR2 lets it do the next of its ``commands``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import socket
import struct
import sys
import time
from typing import Any

from ratelimited_executor import ExecutorManager, Paced, Window
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.peers import RedisPeers
from ratelimited_executor.slots import current_slot

from .worker import client_of

ENTER, LEAVE, LOST, WAIT, BEGUN, TOLD = range(6)  # kinds of messages
NO_KEY = 1000
MESSAGE = struct.Struct("!BidQIId")  # kind, process, value, number of the task, cost, key, delay after the decision
POLICIES = {"Paced": Paced, "Window": Window}


class ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is ahead, as on another machine."""

    ahead = 0.0

    def time(self) -> float:
        """Return the time."""
        return super().time() + self.ahead


class ShiftedClock(SystemClock):
    """The clocks of another machine, both ahead."""

    def __init__(self, ahead: float) -> None:
        self.monotonic = lambda: time.monotonic() + ahead
        self.wall = lambda: time.time() + ahead


class Process:
    """One process of the fleet."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(("127.0.0.1", options["counter"]))
        self.draw = random.Random(options["number"])
        self.numbers = itertools.count(1)
        self.commands = iter(options.get("commands", ()))
        self.handles: dict[int, Any] = {}
        self.executors: list[Any] = []  # one with rates of keys and one with slots, or one with both
        self.pool: Any = None
        self.ahead = options.get("ahead", 0.0)

    def tell(self, kind: int, value: float, number: int = 0, cost: int = 0, key: int = 0, held_up: float = 0.0) -> None:
        """Send one message."""
        self.sender.send(MESSAGE.pack(kind, self.options["number"], value, number, cost, key, held_up))

    async def work(self, number: int, cost: int, key: int) -> float:
        """Run one task, which reads the time first."""
        now = time.monotonic()
        handle = self.handles.pop(number, None)
        decided = now if handle is None else handle._started - self.ahead
        self.tell(ENTER, now, number, cost, key, now - decided)
        try:
            await asyncio.sleep(self.options["work"])
        finally:
            slot = current_slot()
            self.tell(LEAVE if slot is None or not slot.is_lost else LOST, time.monotonic(), number)
        return now

    def submit(self, executor: Any) -> Any:
        """Submit a task: with keys, a part ``hot`` of them has the same key."""
        number, cost, key, options = next(self.numbers), self.draw.randint(1, 19), NO_KEY, {}
        if executor.key_rate is not None:
            key = 0 if self.draw.random() < self.options["hot"] else self.draw.randrange(1, self.options["keys"])
            options["key"] = f"k{key}"
        if self.pool is not None and executor is self.executors[-1]:
            options["slots"] = self.pool
        handle = self.handles[number] = executor.submit(
            self.work, number, cost, key, cost={"tokens": cost}, **options
        )  # fmt: skip
        return handle

    def do_next(self) -> None:
        """Do the next command: set limits or submit tasks."""
        command = next(self.commands)
        for name, value in command.items():
            if name == "slots":
                self.pool.limit = value
                continue
            for executor in self.executors:
                if name == "load":
                    for _ in range(value):
                        self.submit(executor)
                else:
                    setattr(executor, name, value)
        self.tell(TOLD, time.monotonic())

    async def flow(self, per_second: float) -> None:
        """Submit tasks at random times."""
        while True:
            await asyncio.sleep(self.draw.expovariate(per_second))
            for executor in self.executors:
                self.submit(executor)

    async def probe(self, mean: float) -> None:
        """Report how long a task that is due now takes to start."""
        while True:
            await asyncio.sleep(mean * self.draw.uniform(0.5, 1.5))
            before = time.monotonic()
            self.tell(WAIT, await self.submit(self.executors[0]) - before)

    async def main(self) -> None:
        """Work until told to stop."""
        options, loop, stopped = self.options, asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        loop.add_signal_handler(signal.SIGUSR1, time.sleep, options.get("block", 0))
        loop.add_signal_handler(signal.SIGUSR2, self.do_next)
        lease = options["lease"]
        peers = RedisPeers(client_of(options), "fleet", lease=lease, hang_timeout=60 * lease)
        async with ExecutorManager(peers=peers, clock=ShiftedClock(self.ahead)) as manager:
            settings = {"rate": options["rates"], "resources": options["resources"]}
            settings |= {"policy": POLICIES[options["policy"]](), "drain_timeout": 0}
            if options["keys"]:
                self.executors.append(manager.executor("limit", key_rate=options["key_rate"], **settings))
            if options["limit"]:
                self.pool = manager.slots("pool", limit=options["limit"])
                if not options["is_together"]:
                    self.executors.append(manager.executor("slots", **settings))
            for _ in range(options["load"]):
                for executor in self.executors:
                    self.submit(executor)
            tasks = [
                loop.create_task(do(options[name]))
                for name, do in (("flow", self.flow), ("probe", self.probe))
                if options.get(name)
            ]
            self.tell(BEGUN, time.monotonic())
            await stopped.wait()
            for task in tasks:
                task.cancel()


if __name__ == "__main__":
    ShiftedLoop.ahead = json.loads(sys.argv[1]).get("ahead", 0.0)
    with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
        runner.run(Process(json.loads(sys.argv[1])).main())
