"""A language model on this machine: it allows requests and tokens in any period, counts exactly, and refuses the rest with 429.

A request counts at the time at which the kernel received it, so that a server that reads late does not change the verdict.
A refused request counts towards nothing.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.shared.counter import TimedSocket
from bench.shared.rounds import CONTEXT
from bench.shared.worker import CALL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from bench.shared.limit import Limit

__all__ = ["Law", "Verdicts", "busy", "serve", "serving"]

OK, TOO_MANY = 200, 429
_ANSWER_SECONDS = (0.05, 0.2)
_IDLE_SECONDS = 0.05


class Law:
    """Allows ``requests`` and ``tokens`` in any period; each request counts at its time."""

    def __init__(self, requests: int, tokens: int, seconds: float) -> None:
        self._limits = (requests, tokens)
        self._seconds = seconds
        self._accepted: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def allows(self, at: float, tokens: int) -> bool:
        """Return whether a request is accepted, and count it if so; ``at`` never decreases."""
        while self._accepted and self._accepted[0][0] <= at - self._seconds:
            self._tokens -= self._accepted.popleft()[1]
        if len(self._accepted) + 1 > self._limits[0] or self._tokens + tokens > self._limits[1]:
            return False
        self._accepted.append((at, tokens))
        self._tokens += tokens
        return True


class Verdicts(NamedTuple):
    """What the server decided: times and tokens of accepted requests, and times of refused ones."""

    accepted: list[tuple[float, int]]
    refused: list[float]


@contextlib.contextmanager
def serving(limit: Limit) -> Iterator[tuple[int, Any]]:
    """Run the server in a process of its own; provide its port, and a function that ends it and returns the verdicts."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=serve, args=(there, limit), daemon=True)
    process.start()
    there.close()

    def stop() -> Verdicts:
        here.send(None)
        return Verdicts(*here.recv())

    try:
        yield here.recv(), stop
    finally:
        process.kill()
        process.join()
        here.close()


def serve(connection: Connection, limit: Limit) -> None:
    """Answer requests until told to stop."""
    assert limit.tokens is not None
    law = Law(limit.count, limit.tokens, limit.seconds)
    timed = TimedSocket()
    connection.send(timed.port)
    draw = random.Random(0)
    numbers = itertools.count()
    answers: list[tuple[float, int, bytes, Any]] = []
    accepted, refused, latest = [], [], 0.0
    while not connection.poll():
        now = time.monotonic()
        while answers and answers[0][0] <= now:
            _, _, answer, client = heapq.heappop(answers)
            timed.socket.sendto(answer, client)
        received = timed.receive(min(_IDLE_SECONDS, answers[0][0] - now) if answers else _IDLE_SECONDS)
        if received is None:
            continue
        latest = max(latest, received[0])
        number, tokens = CALL.unpack(received[1])
        is_accepted = law.allows(latest, tokens)
        if is_accepted:
            accepted.append((latest, tokens))
        else:
            refused.append(latest)
        due = now + draw.uniform(*_ANSWER_SECONDS) * is_accepted
        heapq.heappush(answers, (due, next(numbers), CALL.pack(number, OK if is_accepted else TOO_MANY), received[2]))
    connection.send((accepted, refused))


@contextlib.contextmanager
def busy(seconds: float) -> Iterator[None]:
    """Keep one CPU busy meanwhile, but no longer than ``seconds``."""
    process = CONTEXT.Process(target=_spin, args=(seconds,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
