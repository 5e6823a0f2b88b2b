"""Random histories of durable repetitions: processes start, stop, pause, are killed, and declare something else.

Everything runs in virtual time, with the code of production. A *release* of the code declares the repetition with a
period, an argument and a run time of its own, or not at all. Checked are:

- no occurrence starts twice, unless a process was killed while it had claimed it;
- no occurrence starts of a release of which no process runs any more, or that declares the repetition otherwise; what
  was claimed once before that, or until a lease has ended, may still start;
- runs do not overlap, except in processes that were killed;
- a cancelled or skipped occurrence does not start after that, whatever is released, paused or removed;
- during a pause of the repetition, no occurrence starts that was not claimed once when the pause began;
- of a repetition that is saved, nothing starts that was not claimed once when it was changed or removed;
- of that one, what has snoozed starts again, whatever happens to the repetition, unless it is cancelled;
- none is lost: in the end, a process that runs alone starts one at each multiple of its period.

    python -m tests.runtime.durable.repetition_histories --histories 10000
"""

import argparse
import asyncio
import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore, Snooze, current_task
from ratelimited_executor.testing import run_virtual

from .histories import kill

SECONDS = 200.0
QUIET = 90.0
LEASE = 3.0
AHEAD = 2.0


@dataclass(frozen=True)
class Release:
    """What one release of the code declares; a period of None for no repetition."""

    number: int
    period: float | None
    seconds: float


@dataclass
class History:
    """What happened: the broken laws, the number of events of each kind, and the number of starts."""

    wrong: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    starts: int = 0


class Process:
    """A running process of a release."""

    def __init__(self, world, release) -> None:
        self.world, self.release = world, release
        self.is_killed = False
        self.runner = None
        self.began = 0.0
        self.tasks = DurableTasks(world.store, lease=LEASE)
        self.executor = RateLimitedExecutor("x")

        @self.tasks.task
        async def tick(number):
            await self.world.run(self, number)

        @self.tasks.task
        async def saved(number):
            self.world.run_saved(self, number)

        self.tick = tick
        if release.period is not None:
            self.tasks.repeat(tick, release.number, period=release.period, name="tick")

    def is_claimed_again(self, id: str) -> bool:
        """True if a task that this process runs was claimed before."""
        return any(run.claimed.id == id and run.claimed.ref.token > 1 for run in self.runner._held.values())


class World:
    """One history."""

    def __init__(self, seed: int, store) -> None:
        self.draw = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.store = store
        self.history = History()
        self.release = self._next_release(0)
        self.releases = [self.release]
        self.alive: list[Process] = []
        self.in_force: dict[int, float] = {}  # release -> when it was in force last, by its number
        self.started: Counter[str] = Counter()
        self.excused: Counter[str] = Counter()  # occurrences that were claimed when a process was killed
        self.cancelled: dict[str, float] = {}
        self.running: list[tuple[Process, str]] = []
        self.outside: set[str] = set()  # occurrences that were claimed when their repetition was removed
        self.times: list[tuple[float, int]] = []
        self.operator = DurableTasks(store)
        self.pause_end = -math.inf  # by the wall clock
        self.paused: set[str] = set()  # occurrences that were claimed when the pause began
        self.saved: int | None = 0  # the number of the definition; None while it is changed
        self.former: set[str] = set()  # occurrences of earlier definitions that were claimed
        self.snoozed: set[str] = set()  # occurrences that have to start again

    def _next_release(self, number: int) -> Release:
        period = self.draw.choice((2.0, 5.0, 10.0, 10.0, 30.0))
        return Release(number, period, self.draw.choice((0.0, 0.0, 0.3, period * 1.7)))

    def note(self) -> None:
        """Note which releases are in force: those of the processes that run."""
        self.in_force.update((each.release.number, self.loop.time()) for each in self.alive)

    async def run(self, process, number) -> None:
        """Run an occurrence, and check the laws."""
        self.note()
        now, id = self.loop.time(), current_task().id
        self.history.starts += 1
        self.started[id] += 1
        self.times.append((now, number))
        tell = self.history.wrong.append
        if process.is_killed:
            return
        if self.started[id] > 1 + self.excused[id]:
            tell(f"{id} started {self.started[id]} times")
        since = now - self.in_force.get(number, -1000.0)
        is_claimed_again = process.is_claimed_again(id)
        if since > AHEAD + 2 * LEASE and not (self.excused[id] or is_claimed_again or id in self.outside):
            tell(f"{id} of release {number} started {since:.1f} s after that was in force")
        if id not in self.outside and any(
            not each.is_killed and other not in self.outside for each, other in self.running
        ):
            tell(f"{id} overlaps another")
        if self.wall() < self.pause_end and id not in self.paused and not is_claimed_again:
            tell(f"{id} started during a pause")
        if id in self.cancelled and now > self.cancelled[id] + 0.1:
            tell(f"{id} started after it was cancelled")
        self.running.append((process, id))
        try:
            await asyncio.sleep(self.releases[number].seconds)
        finally:
            self.running.remove((process, id))

    def run_saved(self, process, number) -> None:
        """Run an occurrence of the saved repetition, and check its laws."""
        id = current_task().id
        self.history.starts += 1
        self.started[id] += 1
        self.snoozed.discard(id)
        is_former = id in self.former or process.is_claimed_again(id)
        if self.saved is not None and number != self.saved and not is_former:
            self.history.wrong.append(f"{id} of definition {number} started, and {self.saved} is saved")
        if self.started[id] > 1 + self.excused[id] and id not in self.former:
            self.history.wrong.append(f"{id} started {self.started[id]} times")
        if self.started[id] == 1 and self.loop.time() < SECONDS and self.draw.random() < 0.3:
            self.history.events["snooze"] += 1
            self.snoozed.add(id)
            self.excused[id] += 1
            raise Snooze(self.draw.uniform(1, 20))

    async def process(self, release, life: float, end: str) -> None:
        """Run one process for a while, then stop or kill it."""
        me = Process(self, release)
        async with me.executor, me.tasks.running(me.executor, ahead=AHEAD) as me.runner:
            me.began = self.loop.time()
            self.alive.append(me)
            self.note()
            until = self.loop.time() + life
            while self.loop.time() < until:
                await asyncio.sleep(min(self.draw.uniform(0.5, 10), until - self.loop.time()))
                if self.draw.random() < 0.1:
                    self.history.events["pause"] += 1
                    me.executor.pause()
                    await asyncio.sleep(self.draw.uniform(0.1, 12))
                    me.executor.resume()
            self.note()
            self.alive.remove(me)
            if end == "kill":
                self.history.events["kill"] += 1
                me.is_killed = True
                self.excused.update(run.claimed.id for run in me.runner._held.values())
                self.excused.update(
                    {each.id for each in await self.store.rows() if each.owner == me.runner._lease.owner}
                )
                await kill(me.runner)
            else:
                self.history.events["stop"] += 1

    async def noting(self) -> None:
        """Note all the time which releases are in force."""
        while True:
            self.note()
            await asyncio.sleep(0.2)

    async def disturb(self) -> None:
        """Release other code, cancel what waits, and remove the repetition."""
        draw = self.draw
        while self.loop.time() < SECONDS:
            await asyncio.sleep(draw.expovariate(0.08))
            event = draw.choice(
                ("release", "release", "cancel", "cancel", "remove", "skip", "hold", "hold", "save", "save")
            )
            self.history.events[event] += 1
            if event == "release":
                self.release = self._next_release(len(self.releases))
                self.releases.append(self.release)
            elif event == "cancel" and self.alive:
                for row in await self.store.rows():
                    self.snoozed.discard(row.id)
                    if await draw.choice(self.alive).tasks.cancel(row.id) and row.id not in self.started:
                        self.cancelled[row.id] = self.loop.time()
            elif event == "remove" and self.alive:
                self.pause_end = -math.inf
                for each in self.alive:
                    await each.tasks.remove_repetition("tick")
                self.outside.update(await self.claimed())
            elif event in ("skip", "hold", "save"):
                await getattr(self, event)()

    def wall(self) -> float:
        """Return the time of the store."""
        return self.operator._clock.wall()

    async def claimed(self) -> set[str]:
        """Return the ids of claimed tasks."""
        return {row.id for row in await self.store.rows(DurableState.CLAIMED)}

    async def is_known(self) -> bool:
        """True if the store has the repetition that releases declare."""
        return "tick" in {row.name for row in await self.operator.repetitions()}

    async def skip(self) -> None:
        """Skip the next occurrence."""
        due = await self.operator.skip_repetition("tick") if await self.is_known() else None
        id = f"tick@{due:%Y-%m-%dT%H:%M:%S.%fZ}" if due else ""
        if due and id not in self.started:
            self.cancelled[id] = self.loop.time()

    async def hold(self) -> None:
        """Pause the repetition, with an end or without, or resume it."""
        if not await self.is_known():
            return
        if self.wall() < self.pause_end:
            self.pause_end = -math.inf
            await self.operator.resume_repetition("tick")
            return
        until = self.draw.choice((None, self.wall() + self.draw.uniform(1, 30)))
        await self.operator.pause_repetition("tick", until)
        self.paused = await self.claimed()
        self.pause_end = math.inf if until is None else until

    async def save(self) -> None:
        """Save another repetition with another definition, or remove it."""
        number = (self.saved or 0) + 1
        self.saved = None
        if self.draw.random() < 0.3:
            await self.operator.remove_repetition("saved")
        else:
            await self.operator.save_repetition("saved", number, period=self.draw.choice((2.0, 5.0, 10.0)))
        self.former |= await self.claimed()
        self.saved = number

    async def keep(self) -> None:
        """Start one process after the other."""
        draw = self.draw
        while self.loop.time() < SECONDS:
            life = min(draw.choice((5.0, 20.0, 80.0)) * draw.uniform(0.5, 1), max(0.1, SECONDS - self.loop.time()))
            await self.process(self.release, life, draw.choice(("stop", "stop", "kill")))
            await asyncio.sleep(draw.uniform(0, 3))

    async def live(self) -> History:
        """Play the history, and let a process run alone in the end."""
        async with self.operator as operator:
            noting = asyncio.ensure_future(self.noting())
            async with asyncio.TaskGroup() as group:
                group.create_task(self.disturb())
                for _ in range(3):
                    group.create_task(self.keep())
            if await self.is_known():
                await operator.resume_repetition("tick")
            self.pause_end = -math.inf
            last = Release(len(self.releases), 5.0, 0.1)
            self.releases.append(last)
            await self.process(last, QUIET, "stop")
            noting.cancel()
        self.check_end(last)
        return self.history

    def check_end(self, last: Release) -> None:
        """Check that the last process, once leases have ended, has lost no occurrence."""
        end = self.loop.time()
        if self.snoozed:
            self.history.wrong.append(f"never started again: {sorted(self.snoozed)}")
        times = [when for when, number in self.times if number == last.number and when > end - QUIET / 2]
        if len(times) < QUIET / 2 / 5 - 2 or any(abs(b - a - 5) > 0.2 for a, b in itertools.pairwise(times)):
            paused = self.history.events["pause"]
            if not paused or len(times) < 2:
                self.history.wrong.append(f"in the end: {[round(when, 2) for when in times]}")


def history_of(seed: int, make_store=MemoryStore) -> History:
    """Play the history of a seed."""

    async def live() -> History:
        return await World(seed, make_store()).live()

    return run_virtual(live())


def main() -> None:
    """Play many histories, and print the broken laws and the numbers of starts and events."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    starts, events = 0, Counter[str]()
    for seed in range(options.first, options.first + options.histories):
        history = history_of(seed)
        starts += history.starts
        events += history.events
        if history.wrong:
            print(f"history {seed}: {'; '.join(history.wrong[:3])}", flush=True)
    print(f"{options.histories} histories, {starts} starts; {dict(events)}")


if __name__ == "__main__":
    main()
