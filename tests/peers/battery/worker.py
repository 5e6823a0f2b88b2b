"""The processes of a group, forked by one that has imported everything; each tells the resource of its starts.

Run by :mod:`tests.peers.battery.group`. Each line of the input has the options of one process, as JSON, and is answered
by its id. A process gets commands, as JSON, by a socket of its own; SIGTERM lets it leave in order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ratelimited_executor import Burst, ExecutorManager, Paced, Window
from ratelimited_executor.peers import RedisPeers
from ratelimited_executor.exceptions import SlotLostError
from ratelimited_executor.slots import current_slot
import redis.asyncio
import redis.asyncio.sentinel
import redis.credentials

from .resource import LEAVE, MESSAGE, READY, START

POLICIES: dict[str, Callable[..., Any]] = {"Paced": Paced, "Window": Window, "Burst": Burst}


class FileCredentials(redis.credentials.CredentialProvider):
    """User and password from a file, read at each connection, since passwords change."""

    def __init__(self, path: str) -> None:
        self._path = path

    def get_credentials(self) -> tuple[str, str]:
        """Return user and password."""
        with open(self._path, encoding="utf-8") as file:
            user, password = file.read().split()
        return user, password


def redis_peers(options: dict[str, Any]) -> RedisPeers:
    """Return peers on Redis: by URL, or by a client of a cluster, of sentinels, or with a file of credentials."""
    settings = options.get("settings", {})
    client: Any = options.get("url")
    if options.get("cluster"):
        client = redis.asyncio.RedisCluster.from_url(client)
    elif options.get("sentinels"):
        sentinel = redis.asyncio.sentinel.Sentinel([tuple(each) for each in options["sentinels"]], socket_timeout=0.5)
        client = sentinel.master_for(options["master"], socket_timeout=0.5, retry=None)
    elif options.get("credentials"):
        provider = FileCredentials(options["credentials"])
        client = redis.asyncio.Redis.from_url(client, credential_provider=provider, retry=None)
    return RedisPeers(client, "battery", **settings)


# By kind of authority: another one is added here, and to ``backends.py``.
PEERS: dict[str, Callable[[dict[str, Any]], Any]] = {"redis": redis_peers}


class Member:
    """One process of the group."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.families: list[dict[str, Any]] = options["families"]
        self.resource = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.resource.connect(("127.0.0.1", options["resource"]))
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.control.bind(f"{options['folder']}/{options['process']}")
        self.control.setblocking(False)
        self.draw = random.Random(options["process"])
        self.numbers = itertools.count(1)
        self.handles: dict[int, tuple[Any, float]] = {}  # with the time of the submission
        self.executors: list[Any] = []
        self.pools: list[Any] = []
        self.submitted = Counter[int]()
        self.entered = Counter[int]()
        self.errors = Counter[str]()
        self.is_closing = False

    def tell(
        self, kind: int, family: int, number: int, cost: int = 1, key: int = 0, fence: int = 0, late: float = 0
    ) -> None:
        """Tell the resource."""
        message = MESSAGE.pack(kind, self.options["process"], family, number, cost, key, fence, time.monotonic(), late)
        self.resource.send(message)

    def begin(self, family: int, number: int, cost: int, key: int) -> Any:
        """Tell of a start, as a task's first statement; return its handle."""
        handle, submitted = self.handles.pop(number)
        slot = current_slot()
        late = max(0.0, time.monotonic() - submitted - handle.lateness)
        self.tell(START, family, number, cost, key, 0 if slot is None else slot.fence, late)
        self.entered[family] += 1
        return handle

    def work(self, family: int, number: int, cost: int, key: int) -> None:
        """Run a task without a body."""
        self.begin(family, number, cost, key)
        self.submit(family)

    async def work_on(self, family: int, number: int, cost: int, key: int) -> None:
        """Run a task with a body, which settles its tokens after its work."""
        handle = self.begin(family, number, cost, key)
        try:
            await self.live(family, number)
            if self.families[family]["tokens"]:
                handle.settle({"tokens": cost})
        finally:
            self.submit(family)

    async def live(self, family: int, number: int) -> None:
        """Spend the time of a body, and tell the resource of its end."""
        end = time.monotonic() + self.families[family]["work"]
        try:
            await asyncio.sleep(end - time.monotonic())
        finally:
            self.tell(LEAVE, family, number, late=max(0.0, time.monotonic() - end))

    def submit(self, family: int) -> None:
        """Submit a task."""
        if self.is_closing:
            return
        spec, number, key, cost, options = self.families[family], next(self.numbers), 0, 1, {}
        if spec["keys"]:
            key = self.draw.randrange(spec["keys"])
            options["key"] = f"k{key}"
        if spec["tokens"]:
            reserved = self.draw.randint(1, spec["tokens"])
            cost = max(1, reserved // 2)
            options["cost"] = {"tokens": reserved}
        if spec["slots"]:
            options["slots"] = self.pools[family]
        function = self.work_on if spec["work"] else self.work
        now = asyncio.get_running_loop().time()
        handle = self.executors[family].submit(function, family, number, cost, key, **options)
        self.handles[number] = handle, now
        self.submitted[family] += 1
        handle.add_done_callback(self.done)

    def done(self, handle: Any) -> None:
        """Note how a task failed; one that lost its slot has not."""
        error = None if handle.cancelled() else handle.exception()
        if error is not None and not isinstance(error, SlotLostError):
            self.errors[repr(error)[:100]] += 1

    async def hold(self, family: int) -> None:
        """Hold a slot again and again."""
        while True:
            number = next(self.numbers)
            try:
                async with self.pools[family].hold() as slot:
                    self.tell(START, family, number, fence=slot.fence)
                    await self.live(family, number)
            except SlotLostError:
                pass

    def obey(self) -> None:
        """Carry out the commands that have come."""
        while True:
            try:
                data, sender = self.control.recvfrom(65_536)
            except BlockingIOError:
                return
            command = json.loads(data)
            time.sleep(command.get("block", 0))
            for name, values in command.get("set", {}).items():
                family = next(index for index, spec in enumerate(self.families) if spec["name"] == name)
                for attribute, value in values.items():
                    setattr(self.pools[family] if attribute == "limit" else self.executors[family], attribute, value)
            if command.get("report"):
                self.control.sendto(json.dumps(self.report()).encode(), sender)

    def report(self) -> dict[str, Any]:
        """Return what became of the tasks: those of a family that have neither started nor wait are lost."""
        unstarted = {}
        for index, executor in enumerate(self.executors):
            if executor is not None:
                waiting = executor.statistics().waiting
                unstarted[self.families[index]["name"]] = self.submitted[index] - self.entered[index] - waiting
        return {"process": self.options["process"], "unstarted": unstarted, "errors": self.errors}

    async def run(self) -> None:
        """Work until told to stop."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        loop.add_reader(self.control, self.obey)
        peers = self.options["peers"]
        async with ExecutorManager(peers=PEERS[peers["kind"]](peers)) as manager:
            holders = []
            for index, spec in enumerate(self.families):
                name, policy = spec["name"], POLICIES[spec["policy"][0]](*spec["policy"][1:])
                self.pools.append(manager.slots(name, limit=spec["slots"]) if spec["slots"] else None)
                if spec["holders"]:
                    self.executors.append(None)
                    holders += [loop.create_task(self.hold(index)) for _ in range(spec["holders"])]
                else:
                    self.executors.append(manager.executor(name, policy=policy, drain_timeout=0, **spec["options"]))
                    for _ in range(spec["backlog"]):
                        self.submit(index)
            self.tell(READY, 0, 0)
            await stopped.wait()
            self.is_closing = True
            for task in holders:
                task.cancel()


def main() -> None:
    """Fork a process for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            options = json.loads(line)
            if options.get("log"):
                logging.disable(logging.NOTSET)
                logging.basicConfig(
                    level=options["log"], format=f"%(asctime)s process {options['process']} %(message)s"
                )
            try:
                asyncio.run(Member(options).run())
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
