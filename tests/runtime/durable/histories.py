"""Random histories of processes that share a store: kills, hangs, outages, lost answers, steps of the clock.

Everything runs in virtual time, with the code of production, on the table in memory that has the rules. Checked are:

- each task that was put and not cancelled runs to its end, or is a dead letter;
- no task runs twice at once, and no two tasks of a lane run at once, except in processes that hang;
- the tasks of a lane begin in the order of their puts;
- an attempt gets the state that the last failed one has saved, or a later one;
- in every other history tasks are kept, and each that has run is in the history of the store.

    python -m tests.runtime.durable.histories --histories 10000
"""

import argparse
import asyncio
import random
import unittest.mock
from collections import Counter
from dataclasses import dataclass, field

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor._runtime.durable import running
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.durable import DurableState, DurableTasks, current_task
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.testing import run_virtual

from .conftest import Faults, FaultyStore

SECONDS = 30.0
LEASE = 1.5
LANES = (None, None, "a", "b", "c")


@dataclass
class History:
    """What happened in one history.

    Attributes:
        wrong: the broken rules, as sentences.
        faults: the number of faults of each kind.
        runs: the number of attempts that began.
    """

    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0


@TaskStore.register  # from Python 3.12 on, isinstance() does not use __getattr__
class Way(Faults):
    """The store as one process reaches it: with faults of that process only, and without beats while it hangs."""

    def __init__(self, store) -> None:
        self.store = store
        self.is_deaf = False
        self.woken = asyncio.Event()

    def __getattr__(self, name):
        return self.befall(name, getattr(self.store, name))

    async def beat(self, owner):
        while self.is_deaf:
            await self.woken.wait()
        return await self.befall("beat", self.store.beat)(owner)


def is_lost(process) -> bool:
    """True if others may run the tasks of a process: it hangs, is cut off, or knows that its lease may have ended.

    While several processes get no answers, one lease may end: the beats of some arrive late, and others' never.
    """
    return process.is_lost or (process.runner is not None and process.runner._lease.is_over())


class Clock:
    """The store's clock: the time of the loop, plus a difference that steps change."""

    def __init__(self, loop) -> None:
        self.monotonic = loop.time
        self.ahead = 1_000_000.0

    def wall(self) -> float:
        return self.monotonic() + self.ahead


class World:
    """One history: its processes, faults and tasks."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.is_kept = seed % 2 == 1
        self.history = History()
        self.loop = asyncio.get_running_loop()
        self.store = FaultyStore()
        self.clock = Clock(self.loop)
        self.put: dict[str, str | None] = {}  # id -> lane, in the order of the puts
        self.cancelled: set[str] = set()
        self.done: set[str] = set()
        self.begun: Counter[str] = Counter()
        self.running: dict[str, list] = {}  # a task, or a lane -> the processes that are running it
        self.order: dict[str, list[int]] = {}

    def tasks(self, process) -> DurableTasks:
        """Return the durable tasks of a process."""
        made = DurableTasks(process.link, lease=LEASE)

        @made.task(retry=Retry(100, base=0.1, cap=0.5, on=ValueError), keep="30d" if self.is_kept else None)
        async def work(number, seconds, failures):
            await self.work(process, number, seconds, failures)

        process.work = work
        return made

    async def work(self, process, id, seconds, failures) -> None:
        """Run one attempt, and check which other processes run the same task or lane."""
        lane = self.put[id]
        self.history.runs += 1
        self.begun[id] += 1
        task = current_task()
        if task.attempt_count and (task.saved is None or task.saved < task.attempt_count - 1):
            self.history.wrong.append(f"{id}: {task.saved} after {task.attempt_count} attempts")
        task.save(task.attempt_count)
        if lane is not None:
            numbers = self.order.setdefault(lane, [])
            number = int(id)
            if numbers and number < numbers[-1] and number not in numbers:
                self.history.wrong.append(f"lane {lane}: {number} began after {numbers[-1]}")
            numbers.append(number)
        for what in (id, *([] if lane is None else [f"lane {lane}"])):
            if not is_lost(process) and any(not is_lost(each) for each in self.running.get(what, ())):
                self.history.wrong.append(f"{what} twice at once")
            self.running.setdefault(what, []).append(process)
        try:
            await asyncio.sleep(seconds)
            if self.begun[id] <= failures:
                raise ValueError(id)
            self.done.add(id)
        finally:
            for what in (id, *([] if lane is None else [f"lane {lane}"])):
                self.running[what].remove(process)

    async def putting(self) -> None:
        """Put tasks, and cancel a few of them."""
        draw = self.draw
        link = type("Putter", (), {"link": Way(self.store), "work": None, "is_lost": False, "runner": None})()
        tasks = self.tasks(link)
        async with tasks:
            while self.loop.time() < SECONDS * 0.6:
                id = str(len(self.put))
                self.put[id] = lane = draw.choice(LANES)
                options = {"lane": lane} if lane is not None or draw.random() < 0.7 else {"delay": draw.uniform(0, 3)}
                for _ in range(100):
                    try:
                        await link.work.put(
                            id, draw.choice((0.0, 0.05, 0.3, 2.0)), draw.choice((0, 0, 0, 1, 2)), id=id, **options
                        )
                        break
                    except StoreUnavailableError:
                        await asyncio.sleep(0.1)
                if draw.random() < 0.05:
                    victim = draw.choice(list(self.put))
                    try:
                        if await tasks.ref(victim).cancel():
                            self.cancelled.add(victim)
                    except StoreUnavailableError:
                        self.cancelled.add(victim)
                await asyncio.sleep(draw.expovariate(5))

    async def process(self) -> None:
        """Run tasks for a while, then end cleanly or be killed, and start again, until the history ends."""
        draw = self.draw
        while self.loop.time() < SECONDS:
            me = type("Process", (), {})()
            me.link, me.is_lost, me.runner = Way(self.store), False, None
            tasks = self.tasks(me)
            executor = RateLimitedExecutor(
                "x", rate=draw.choice(("5/s", "50/s", "1000/s")), max_concurrency=draw.choice((1, 3, None))
            )
            life = draw.choice((SECONDS, draw.uniform(0.5, 8)))
            end = min(self.loop.time() + life, SECONDS)
            async with executor:
                try:
                    async with tasks.running(executor, drain_timeout=draw.choice((0, 1, None))) as runner:
                        me.runner = runner
                        while self.loop.time() < end:
                            await asyncio.sleep(draw.uniform(0.1, 2))
                            if draw.random() < 0.15:
                                await self.cut_off(me, runner)
                        if draw.random() < 0.5 and end < SECONDS:
                            self.history.faults["kill"] += 1
                            me.is_lost = True
                            await kill(runner)
                except StoreUnavailableError:
                    self.history.faults["away at the start"] += 1
            await asyncio.sleep(draw.uniform(0, 2))

    async def cut_off(self, me, runner) -> None:
        """Let one process hang for longer than a lease, or have faults of its own, while the others continue."""
        me.is_lost = True
        for fault in self.draw.choices(("hang", "away", "mute", "late"), k=self.draw.choice((1, 2, 3))):
            self.history.faults[f"{fault}, one"] += 1
            if fault == "hang":
                me.link.is_deaf = True
                await asyncio.sleep(self.draw.uniform(LEASE, 3 * LEASE))
                me.link.is_deaf = False
                me.link.woken.set()
                me.link.woken.clear()
            else:
                await self.disturb(fault, me.link)
        began = self.loop.time()
        while (
            runner._lease.renewed < began and self.loop.time() < began + 20 * LEASE
        ):  # until a beat is answered, it does not know
            await asyncio.sleep(0.05)
        me.is_lost = False

    async def faults(self) -> None:
        """Let the store be away, lose answers or answer late, and step its clock."""
        draw = self.draw
        while self.loop.time() < SECONDS * 0.8:
            await asyncio.sleep(draw.expovariate(0.3))
            fault = draw.choice(("away", "mute", "late", "step"))
            self.history.faults[fault] += 1
            if fault == "step":
                self.clock.ahead += draw.choice((-3600, -1, 1, 3600))
            else:
                await self.disturb(fault, self.store)

    async def disturb(self, fault, store) -> None:
        """Let a store have a fault for a random time."""
        store.is_away, store.is_mute = fault == "away", fault == "mute"
        store.late_by = (lambda: self.draw.uniform(0, 3 * LEASE)) if fault == "late" else None
        await asyncio.sleep(self.draw.uniform(0.05, 3 * LEASE))
        store.is_away, store.is_mute, store.late_by = False, False, None

    async def live(self) -> History:
        """Play the history, let a last process finish, and return what happened."""
        await self.store.open(self.clock)
        self.store.open = self.store.aclose = _nothing  # all processes use this clock
        async with asyncio.TaskGroup() as group:
            group.create_task(self.faults())
            group.create_task(self.putting())
            for _ in range(3):
                group.create_task(self.process())
        self.clock.ahead += 24 * 3600  # so that tasks that were delayed by a clock set back are due
        last = type("Last", (), {})()
        last.link, last.is_lost, last.runner = Way(self.store), False, None
        tasks = self.tasks(last)
        async with RateLimitedExecutor("x") as executor, tasks.running(executor):
            for _ in range(400):
                await asyncio.sleep(0.5)
                if not sum((await self.store.counts()).values()):
                    break
        left = {state.name: count for state, count in (await self.store.counts()).items() if count}
        lost = set(self.put) - self.done - self.cancelled
        if left:
            errors = {row.error.rpartition("\n")[2] for row in await self.store.rows(DurableState.DEAD)}
            self.history.wrong.append(f"left: {left}, dead by {errors}")
        ended = {row.id for row in await self.store.history(limit=10_000) if row.end == "done"}
        if self.is_kept and (missing := set(self.put) - self.cancelled - ended):
            self.history.wrong.append(f"not kept: {sorted(missing, key=int)}")
        if lost:
            self.history.wrong.append(f"lost: {sorted(lost, key=int)}")
        return self.history


async def _nothing(*_) -> None:
    """Do nothing: the store stays open."""


async def kill(runner) -> None:
    """End a process without notice: it stops at once, and the store is not told."""
    loops = [runner._pump_task, *runner._loops]
    for loop in loops:
        loop.cancel()
    await asyncio.wait(loops)
    for run in list(runner._held.values()):
        run.is_void = run.is_given_up = True
        run.handle.cancel()
    runner._outcomes.clear()
    runner._loops, runner._lease.owner = [], "nobody"
    runner._pump_task = asyncio.ensure_future(asyncio.sleep(0))
    await asyncio.sleep(0)


def history_of(seed: int) -> History:
    """Play the history of a seed."""

    async def live() -> History:
        return await World(seed).live()

    with unittest.mock.patch.object(running, "_BLAMED_MAX", 1_000_000):  # here tasks may lose any number of processes
        return run_virtual(live())


def main() -> None:
    """Play many histories, and print the broken rules and the numbers of attempts and faults."""
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    runs, wrong, faults = 0, 0, Counter[str]()
    for seed in track(range(options.first, options.first + options.histories), "histories"):
        history = history_of(seed)
        runs += history.runs
        faults += history.faults
        if history.wrong:
            wrong += 1
            print(f"history {seed}: {'; '.join(history.wrong)}", flush=True)
    print(f"{options.histories} histories, {runs} attempts, {wrong} wrong; {dict(faults)}")


if __name__ == "__main__":
    main()
