"""One process of a round: it joins the limit by the adapter of its side, and puts a load on it until it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import struct
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.shared import adapters
from bench.shared.counter import ALIVE, BEGUN, LEAVE, START, Reporter

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.shared.limit import Load, Task

__all__ = ["CALL", "HOT", "main"]

ALIVE_SECONDS = 0.1
HOT = 1  # the key that may have more arrivals than the others; 0 stands for no key
CALL = struct.Struct("!II")  # a call of the language model: number and tokens; its answer: number and status


def main(task: Task) -> None:
    """Work until ended, or for the lifetime at most."""
    logging.disable(logging.WARNING)  # a limiter that is asked for too much may well say so
    with contextlib.closing(Reporter(task.counter, task.number)) as reporter:
        asyncio.run(_work(task, reporter))


async def _work(task: Task, reporter: Reporter) -> None:
    loop = asyncio.get_running_loop()
    reporter.tell(BEGUN)
    async with adapters.ADAPTERS[task.kind](task) as limiter:
        drive = _LOADS[task.load.kind](limiter, reporter, task.load, random.Random(task.number))
        done, _ = await asyncio.wait(
            [loop.create_task(drive), loop.create_task(_stay_alive(reporter))],
            timeout=task.lifetime,
            return_when=asyncio.FIRST_EXCEPTION,
        )
        for each in done:
            traceback.print_exception(each.exception())
        os._exit(1 if done else 0)  # without the orderly end of libraries whose waiters still wait


async def _stay_alive(reporter: Reporter) -> None:
    while True:
        reporter.tell(ALIVE)
        await asyncio.sleep(ALIVE_SECONDS)


async def _one(limiter: Any, reporter: Reporter, key: int | None = None) -> None:
    await limiter.start(partial(reporter.tell, START, key, reporter.asks(counts=key != HOT)), key, 0)


async def _closed(limiter: Any, reporter: Reporter, load: Load, _: random.Random) -> None:
    def begin(submitted: float) -> None:
        reporter.tell(START, None, submitted)
        if load.work:
            until = time.thread_time() + load.work
            while time.thread_time() < until:
                pass

    async def work() -> None:
        while True:
            await limiter.start(partial(begin, reporter.asks()), None, 0)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.workers):
            group.create_task(work())


async def _sparse(limiter: Any, reporter: Reporter, load: Load, draw: random.Random) -> None:
    while True:
        await _one(limiter, reporter)
        await asyncio.sleep(draw.uniform(*load.pause))


async def _arrivals(limiter: Any, reporter: Reporter, load: Load, draw: random.Random) -> None:
    at = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while True:
            at += draw.expovariate(load.rate)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            key = HOT if draw.random() < load.hot else HOT + 1 + draw.randrange(load.keys)
            group.create_task(_one(limiter, reporter, key))


async def _slots(limiter: Any, reporter: Reporter, load: Load, _: random.Random) -> None:
    async def work() -> None:
        while True:
            submitted = reporter.asks()
            async with limiter.hold():
                reporter.tell(START, None, submitted)
                await asyncio.sleep(load.work)
                reporter.tell(LEAVE)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.workers):
            group.create_task(work())


class _Calls(asyncio.DatagramProtocol):
    """Calls of the language model, and their answers by number."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[int]] = {}

    def datagram_received(self, data: bytes, _: Any) -> None:
        """Give an answer to its call."""
        number, status = CALL.unpack(data)
        self.waiting.pop(number).set_result(status)


async def _model(limiter: Any, reporter: Reporter, load: Load, draw: random.Random) -> None:
    loop = asyncio.get_running_loop()
    endpoint = loop.create_datagram_endpoint(_Calls, remote_addr=("127.0.0.1", load.port), family=socket.AF_INET)
    transport, calls = await endpoint

    def send(number: int, tokens: int, submitted: float) -> None:
        transport.sendto(CALL.pack(number, tokens))
        reporter.tell(START, None, submitted)

    async def work(worker: int) -> None:
        for number in range(worker, 2**32, load.workers):
            tokens = draw.randint(*load.costs)
            calls.waiting[number] = answer = loop.create_future()
            await limiter.start(partial(send, number, tokens, reporter.asks()), None, tokens)
            await answer  # 429 is not tried again: the server counts it

    async with asyncio.TaskGroup() as group:
        for worker in range(load.workers):
            group.create_task(work(worker))


_LOADS: dict[str, Callable[..., Any]] = {
    "closed": _closed,
    "sparse": _sparse,
    "arrivals": _arrivals,
    "slots": _slots,
    "model": _model,
}
