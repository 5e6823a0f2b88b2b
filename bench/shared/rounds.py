"""One round of one side: its processes, started, watched for a while, and ended."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.shared import node, worker
from bench.shared.counter import BEGUN, LEAVE, START, Counter
from bench.shared.limit import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.shared.adapters import Side
    from bench.shared.counter import Row
    from bench.shared.limit import Job
    from bench.shared.server import Server

__all__ = ["CONTEXT", "Round", "first_start", "joined", "measure", "wait_for"]

FIRST_SECONDS: Final = 40.0  # for all processes to begin, and for the first start
_POLL_SECONDS: Final = 0.01
_SPARE_SECONDS: Final = 30.0

# Processes are forked by a server that has imported everything: forty are there in a second, and importing is not measured.
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "bench.shared.worker",
        "ratelimited_executor.peers.redis",
        "limits.aio.strategies",
        "pyrate_limiter",
        "throttled.asyncio",
    ]
)
_group_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen while one side was measured.

    Attributes:
        starts: the starts, and the ends of holds, by time of arrival.
        asked: how many starts were asked for.
        lost: starts that were reported and did not arrive at the counter.
        processes: how many processes there were.
        seconds: how long was measured.
        server_cpu: CPU seconds of the server.
        commands: commands of the server, those within scripts included.
        reads: messages that the server read, each one round trip or a pipeline of several.
        client_cpu: CPU seconds of all processes.
    """

    starts: Sequence[Row]
    asked: int
    lost: int
    processes: int
    seconds: float
    server_cpu: float
    commands: int
    reads: int
    client_cpu: float


def measure(server: Server, side: Side, job: Job) -> Round:
    """Let the processes share the limit, and watch them once they have settled."""
    with joined(server, side, job) as counter:
        wait_for(lambda: sum(row.kind == BEGUN for row in list(counter.rows)) == job.processes)
        wait_for(lambda: any(row.kind == START for row in list(counter.rows)))
        time.sleep(job.settle)
        before, since = server.reading(), time.time()
        time.sleep(job.seconds)
        after, until = server.reading(), time.time()
        time.sleep(2 * worker.ALIVE_SECONDS)  # for a reading of each process near the end
        rows = [row for row in counter.rows if since <= row.at < until]
    asked, lost, client_cpu = _deltas(rows)
    return Round(
        starts=sorted((row for row in rows if row.kind in (START, LEAVE)), key=lambda row: row.at),
        asked=asked,
        lost=lost,
        processes=job.processes,
        seconds=until - since,
        server_cpu=after.cpu - before.cpu,
        commands=after.commands - before.commands - 3,  # the reading's own
        reads=after.reads - before.reads - 1,
        client_cpu=client_cpu,
    )


def first_start(server: Server, side: Side, job: Job) -> float | None:
    """Return the seconds from a process's begin, in a group that is new, to its first start; None if there is none."""
    with joined(server, side, job) as counter:
        wait_for(lambda: any(row.kind == START for row in list(counter.rows)))
        rows = list(counter.rows)
    begun = min((row.told for row in rows if row.kind == BEGUN), default=0.0)
    return min((row.told - begun for row in rows if row.kind == START), default=None)


def wait_for(condition: Any, seconds: float = FIRST_SECONDS) -> None:
    """Wait until a condition holds, or for this long; a side that never starts anything is a result, too."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def joined(server: Server, side: Side, job: Job) -> Iterator[Counter]:
    """Run the processes of a side, and provide what counts their starts."""
    server.flush()
    with Counter() as counter, contextlib.ExitStack() as stack:
        task = Task(
            kind=side.kind,
            variant=side.variant,
            backend=server.url,
            group=f"round-{next(_group_numbers)}",
            number=0,
            counter=counter.port,
            lifetime=2 * FIRST_SECONDS + job.settle + job.seconds + _SPARE_SECONDS,
            limit=job.limit,
            load=job.load,
        )
        for number in range(job.processes):
            stack.enter_context(_process(dataclasses.replace(task, number=number)))
        yield counter


@contextlib.contextmanager
def _process(task: Task) -> Iterator[None]:
    process: Any
    if task.kind == "bottleneck":
        command = ["node", str(node.PROGRAM), json.dumps(dataclasses.asdict(task))]
        process = subprocess.Popen(command, env=node.environment())  # noqa: S603  # our own program
        wait = process.wait
    else:
        process = CONTEXT.Process(target=worker.main, args=(task,), daemon=True)
        process.start()
        wait = process.join
    try:
        yield
    finally:
        process.kill()
        wait()


def _deltas(rows: Sequence[Row]) -> tuple[int, int, float]:
    """Return what was asked for, what was lost on the way, and the CPU seconds, between each process's first and last row."""
    by_process: dict[int, list[Row]] = {}
    for row in rows:  # in the order in which each process sent them
        by_process.setdefault(row.process, []).append(row)
    asked = lost = 0
    cpu = 0.0
    for mine in by_process.values():
        first, *others = mine
        last = mine[-1]
        asked += last.asked - first.asked
        lost += last.started - first.started - sum(row.kind == START for row in others)
        cpu += last.cpu - first.cpu
    return asked, lost, cpu
