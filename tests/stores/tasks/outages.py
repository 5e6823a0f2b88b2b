"""Durable tasks in PostgreSQL while the server fails: five faults, on a real server.

A process puts and runs tasks as fast as it can. Its throughput is measured before the fault, and again once tasks run
again. In the end every task that was put has run, none twice except those claimed at the fault, and no task stays
claimed without a process that runs it.

    python -m tests.stores.tasks.outages --seconds 5
"""

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

import psycopg

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableState, DurableTasks, PostgresStore
from ratelimited_executor.exceptions import StoreUnavailableError

from .postgres_server import END_CONNECTIONS, PostgresServer

LEASE = 3.0
BACKLOG = 1000
RECOVERY_SECONDS = 60


@dataclass
class Outcome:
    """What one fault led to.

    Attributes:
        before: tasks a second before the fault.
        after: tasks a second once the fault was over.
        recovery: seconds from the end of the fault until a thousand tasks had run.
        put: tasks whose put had returned.
        lost: tasks that never ran to their end.
        doubled: starts of tasks that had started before.
        claimed: tasks claimed at the fault, in total.
        stuck: tasks that stayed claimed though no process ran them.
    """

    name: str
    before: float = 0.0
    after: float = 0.0
    recovery: float = 0.0
    put: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: int = 0
    claimed: int = 0
    stuck: int = 0


class Load:
    """A process that puts and runs tasks."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.tasks = DurableTasks(PostgresStore(url), lease=LEASE)
        self.begun: Counter[str] = Counter()
        self.done: set[str] = set()
        self.put: set[str] = set()
        self.tried = 0
        self.is_over = False

        @self.tasks.task(name="work")
        async def work(label):
            self.begun[label] += 1
            await asyncio.sleep(0.05)
            self.done.add(label)

        self.work = work

    async def putting(self) -> None:
        """Keep some tasks waiting, put one by one and many at once."""
        while not self.is_over:
            if len(self.put) - len(self.done) > BACKLOG:
                await asyncio.sleep(0.01)
                continue
            labels = [f"{self.name} {self.tried + n}" for n in range(200)]
            self.tried += len(labels)
            try:
                await self.tasks.put_many(self.work.new(label, id=label) for label in labels[:190])
                self.put.update(labels[:190])
                await asyncio.gather(*(self._put(label) for label in labels[190:]))
            except StoreUnavailableError:
                await asyncio.sleep(0.05)

    async def _put(self, label: str) -> None:
        await self.work.put(label, id=label)
        self.put.add(label)

    async def per_second(self, seconds: float) -> float:
        """Return the tasks done a second, measured over ``seconds``."""
        before, began = len(self.done), time.monotonic()
        await asyncio.sleep(seconds)
        return (len(self.done) - before) / (time.monotonic() - began)


async def fault_of(name: str, server: PostgresServer, fault, seconds: float) -> Outcome:
    """Run a load with a fault in the middle."""
    outcome = Outcome(name)
    load = Load(name, server.url)
    async with RateLimitedExecutor("load", max_concurrency=200) as executor, load.tasks.running(executor) as runner:
        putting = asyncio.ensure_future(load.putting())
        await asyncio.sleep(seconds / 2)
        outcome.before = await load.per_second(seconds)
        outcome.claimed = len(runner._held) + len(runner._outcomes)
        await fault(outcome, runner)
        began, count = time.monotonic(), len(load.done)
        while len(load.done) < count + 1000 and time.monotonic() < began + RECOVERY_SECONDS:
            await asyncio.sleep(0.02)
        outcome.recovery = time.monotonic() - began
        await asyncio.sleep(seconds / 2)
        outcome.after = await load.per_second(seconds)
        load.is_over = True
        await putting
        async with asyncio.timeout(RECOVERY_SECONDS):
            while runner._held or runner._outcomes or not await _is_drained(load):
                await asyncio.sleep(0.05)
            until = time.monotonic() + 3 * LEASE
            while (stuck := await _claimed(load)) and time.monotonic() < until:
                await asyncio.sleep(0.1)
        outcome.stuck = stuck
    outcome.put = len(load.put)
    outcome.lost = sorted(load.put - load.done)
    outcome.doubled = sum(times - 1 for times in load.begun.values())
    return outcome


async def _is_drained(load: Load) -> bool:
    counts = await load.tasks.counts()
    return not counts[DurableState.READY]


async def _claimed(load: Load) -> int:
    return (await load.tasks.counts())[DurableState.CLAIMED]


# The faults


def restarted(server: PostgresServer, mode: str):
    """Stop the server for a second."""

    async def fault(outcome, runner) -> None:
        await asyncio.to_thread(server.restart, mode, seconds=1.0)

    return fault


def killed(server: PostgresServer, times: int):
    """End all connections, ``times`` times."""

    async def fault(outcome, runner) -> None:
        with server.connect("postgres") as connection:
            for _ in range(times):
                connection.execute(END_CONNECTIONS)
                await asyncio.sleep(0.2)
                outcome.claimed += len(runner._held)

    return fault


def used_up(server: PostgresServer):
    """Let others take every connection of the server for three seconds."""

    async def fault(outcome, runner) -> None:
        with contextlib.ExitStack() as stack, server.connect("postgres") as connection:
            connection.execute(END_CONNECTIONS)
            until = time.monotonic() + 0.3
            while time.monotonic() < until:  # no turn of the loop here, or the pool would take the connections again
                with contextlib.suppress(psycopg.OperationalError):
                    stack.enter_context(psycopg.connect(server.url))
            await asyncio.sleep(3)

    return fault


def faults(server: PostgresServer):
    """Return the faults by name."""
    return {
        "restart (fast)": restarted(server, "fast"),
        "restart (immediate)": restarted(server, "immediate"),
        "connections killed": killed(server, 1),
        "killed again and again": killed(server, 10),
        "connections used up": used_up(server),
    }


def main() -> None:
    """Try each fault, and print what it led to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with PostgresServer() as server:
        for name, fault in faults(server).items():
            each = asyncio.run(fault_of(name, server, fault, options.seconds))
            print(
                f"{name:24} {each.before:8.0f}/s before {each.after:8.0f}/s after, {each.recovery:5.2f} s; "
                f"{each.put} put, {len(each.lost)} lost, {each.doubled} doubled, {each.claimed} claimed, {each.stuck} stuck",
                flush=True,
            )


if __name__ == "__main__":
    main()
