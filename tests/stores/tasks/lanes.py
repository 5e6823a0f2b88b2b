"""Thousands of tasks in a thousand lanes, run by real processes that are killed, again and again.

Each start and end of a task is logged by one append to one file. From this log it is judged that:

- nothing is lost: each task that was put has ended at least once;
- two tasks of a lane never run at once, except for those of a process that was killed;
- no task runs out of order: a lane starts the next task, or again the one that ran when its process was killed;
- no more tasks start twice than were claimed at the kills.

    python -m tests.stores.tasks.lanes --store sqlite --lanes 1000 --tasks 20000 --kills 20
"""

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ratelimited_executor._core.durable.tasks import NewTask
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.durable import PostgresStore, SQLiteStore


ROOT = Path(__file__).parents[3]
PROCESSES = 4


@dataclass
class Found:
    """What a run found.

    Attributes:
        kills: number of processes killed.
        claimed: tasks claimed at the kills, in total.
        doubled: starts of tasks that had started before.
        wrong: broken rules, in words.
        per_second: tasks ended a second, for each time between two kills; for people to read.
    """

    kills: int = 0
    claimed: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)


def store_of(where: str):
    """Return the store at a URL or path."""
    return PostgresStore(where) if where.startswith("postgresql:") else SQLiteStore(where)


async def kill_and_judge(
    where: str, folder: Path, *, lanes: int, tasks: int, kills: int, rate: str = "3000/s", seconds: float = 120
) -> Found:
    """Fill a store, let processes run its tasks, kill some of them, and judge what they have logged."""
    found = Found()
    log = folder / "log"
    log.touch()
    draw = random.Random(4)
    store = store_of(where)
    await store.open(SystemClock())
    for first in range(0, tasks, 1000):
        await store.put(
            [
                NewTask(id=str(n), name="work", body=b'[[%d,"%d"],{}]' % (n, n % lanes), lane=f"lane {n % lanes}")
                for n in range(first, min(first + 1000, tasks))
            ]
        )
    command = [sys.executable, "-m", "tests.stores.tasks.lane_worker", where, str(log), rate]
    children = [subprocess.Popen(command, cwd=ROOT) for _ in range(PROCESSES)]
    dead: dict[int, int] = {}  # process id -> bytes of the log at its kill
    try:
        for _ in range(kills):
            before = log.stat().st_size
            pause = 0.5 + draw.random() / 2
            await asyncio.sleep(pause)
            victim = children.pop(draw.randrange(len(children)))
            if victim.poll() is None:
                victim.kill()
                victim.wait()
                dead[victim.pid] = log.stat().st_size
                found.kills += 1
                rows = await _claimed(store, where)
                found.claimed += rows
            found.per_second.append((log.stat().st_size - before) / 2 / 18 / pause)
            children.append(subprocess.Popen(command, cwd=ROOT))
        async with asyncio.timeout(seconds):
            for child in children:
                code = await asyncio.to_thread(child.wait)
                if code:
                    found.wrong.append(f"a process ended with {code}")
        left = sum((await store.counts()).values())
        if left:
            found.wrong.append(f"{left} tasks are left")
    finally:
        for child in children:
            child.kill()
            child.wait()
        await store.aclose()
    judge(found, log.read_text().splitlines(), tasks, set(dead))
    return found


async def _claimed(store, where: str) -> int:
    """Count the claimed tasks: at least those of the process just killed, and what others have claimed since."""
    from ratelimited_executor.durable import DurableState

    return (await store.counts())[DurableState.CLAIMED]


def judge(found: Found, lines: list[str], tasks: int, dead: set[int]) -> None:
    """Add the rules that a log breaks to ``found``."""
    begun, ended = Counter[int](), set[int]()
    at: dict[str, dict[int, int]] = {}  # lane -> task that runs there -> process that runs it
    last: dict[str, int] = {}
    for line in lines:
        pid, number, lane, what = line.split()
        n, me = int(number), int(pid)
        under_way = at.setdefault(lane, {})
        if what == "end":
            ended.add(n)
            under_way.pop(n, None)
            continue
        begun[n] += 1
        others = {each: whose for each, whose in under_way.items() if whose not in dead or whose == me}
        if others:
            found.wrong.append(f"lane {lane}: {n} began while {others} were under way")
        if n < last.get(lane, -1):
            found.wrong.append(f"lane {lane}: {n} began after {last[lane]}")
        last[lane] = n
        under_way.clear()
        under_way[n] = me
    missing = set(range(tasks)) - ended
    if missing:
        found.wrong.append(f"{len(missing)} never ended, such as {min(missing)}")
    found.doubled = sum(times - 1 for times in begun.values())
    if found.doubled > found.claimed:
        found.wrong.append(f"{found.doubled} began twice, {found.claimed} were claimed at kills")


def main() -> None:
    """Run the test, and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where = str(folder / "tasks.db")
        if options.store == "postgresql":
            from .postgres_server import PostgresServer

            where = stack.enter_context(PostgresServer()).url
        found = asyncio.run(
            kill_and_judge(where, folder, lanes=options.lanes, tasks=options.tasks, kills=options.kills)
        )
    for each in found.wrong[:20]:
        print(each)
    pace = ", ".join(f"{each:.0f}" for each in found.per_second)
    print(
        f"{found.kills} kills, {found.doubled} doubled of {found.claimed} claimed, {len(found.wrong)} wrong; {pace}/s"
    )


if __name__ == "__main__":
    main()
