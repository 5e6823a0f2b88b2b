"""A process ends at any await, or before any SQL statement: another takes over what it has left in the store.

A small scenario runs once, in virtual time and with the code of production: puts, lanes, a retry, a dead letter, a
cancellation, a repetition, a clean end. After each change an *image* is made: the contents of the store, and what the
process has been told and has done. If the process ends there, that is all that remains: nothing more of it runs, not
even a ``finally``. From each image another process takes over, and these rules are checked:

- every task whose put had returned runs to its end, becomes a dead letter, or was cancelled;
- only a task that was claimed in the image runs twice, and only once more;
- the tasks of a lane begin in order, one at a time;
- an attempt gets no older state than one that had been written, and a kept task is in the history after its end;
- no task is left claimed, and no owner is left that is gone.

    python -m tests.runtime.durable.crashes --store sqlite --step 1 --again 1
"""

import argparse
import asyncio
import contextlib
import copy
import itertools
import random
import shutil
import tempfile
import unittest.mock
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor._runtime.time.clock import clock_for
from ratelimited_executor._runtime.time.hooks import hooks_of
from ratelimited_executor.durable import DurableState, DurableTasks, LaneFail, MemoryStore, SQLiteStore, current_task
from ratelimited_executor.stores import sqlite_file
from ratelimited_executor.stores.tasks import sqlite
from ratelimited_executor.testing import run_virtual

LEASE = 3.0
START_WALL = 1_700_000_000.0
CHANGES = ("put", "join", "beat", "leave", "claim", "save", "finish", "cancel", "requeue", "revive")


@dataclass(frozen=True)
class Image:
    """What a process leaves when it ends.

    Attributes:
        where: what the process was about to do, for people.
        wall: the time.
        kept: the contents of the store: a table, or the folder of its file.
        log: what had happened: (what, id, lane).
        claimed: by id of a claimed task, the number of crashes during which it was claimed.
    """

    where: str
    wall: float
    kept: object
    log: tuple[tuple[str, str, str | None], ...]
    claimed: Counter[str]


@dataclass
class Recorder:
    """Records what happens in a process, and makes images if asked to.

    Attributes:
        log: what has happened, in earlier processes as well.
        awaits: turns of the loop, and SQL statements, so far.
        images: the places at which the process could have ended.
    """

    log: list[tuple[str, str, str | None]] = field(default_factory=list)
    store: object = None
    is_recording: bool = True
    awaits: int = 0
    images: list[Image] = field(default_factory=list)
    seen: tuple[int, int] = (-1, -1)

    def note(self, what: str, id: str, lane: str | None = None) -> None:
        """Note an event."""
        self.log.append((what, id, lane))
        self.look(f"{what} {id}")

    def look(self, where: str) -> None:
        """Make an image, unless nothing has changed since the last one."""
        self.awaits += 1
        if not self.is_recording or self.store is None or self.store.changes < 0:
            return
        now = (len(self.log), self.store.changes)
        if now != self.seen:
            self.seen = now
            kept, claimed = self.store.image()
            wall = START_WALL if self.store.clock is None else self.store.clock.wall()
            self.images.append(Image(where, wall, kept, tuple(self.log), claimed))


@contextlib.asynccontextmanager
async def kept_open(store):
    """Keep a store open after its tasks have closed it."""
    loop = asyncio.get_running_loop()
    await store.open(hooks_of(loop).clock or clock_for(loop))
    try:
        yield
    finally:
        await store.aclose()


class Recorded:
    """Mixin of a store: each call waits for one turn before it is made, and for one before its answer returns.

    Attributes:
        changes: the number of calls that may have changed the store; -1 before it is open.
    """

    recorder: Recorder
    changes = -1
    clock = None

    async def open(self, clock) -> None:
        await super().open(clock)
        self.clock = clock
        self.changes = max(0, self.changes)

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in CHANGES:
            return found

        async def call(*args, **options):
            await asyncio.sleep(0)
            try:
                answer = await found(*args, **options)
                if name == "save":
                    for _, state in args[0]:
                        self.recorder.note("saved", state.decode())
                return answer
            finally:
                self.changes += 1
                self.recorder.look(f"the answer of {name}")
                await asyncio.sleep(0)

        return call


class MemoryImages(Recorded, MemoryStore):
    """A store of the table in memory that has the rules."""

    @classmethod
    def of(cls, kept, recorder: Recorder) -> "MemoryImages":
        """Return a store with the contents of an image."""
        made = cls()
        made.recorder = recorder
        if kept is not None:
            made._table = copy.deepcopy(kept)
        return made

    def image(self):
        """Return the contents, and the claimed tasks."""
        rows = self._table.rows(DurableState.CLAIMED, after=0, limit=1000)
        return copy.deepcopy(self._table), Counter(row.id for row in rows)

    async def owners(self) -> int:
        """Return the number of owners."""
        return len(self._table._owners)


class SQLiteImages(Recorded, SQLiteStore):
    """A file whose statements run on the loop, so that the process may end before each of them."""

    folder: Path

    @classmethod
    def of(cls, kept, recorder: Recorder) -> "SQLiteImages":
        """Return a store with the contents of an image."""
        folder = Path(tempfile.mkdtemp(dir=SCRATCH.get("folder")))
        for path in [] if kept is None else kept.iterdir():
            shutil.copy(path, folder)
        made = cls(folder / "tasks.db")
        made.recorder, made.folder = recorder, folder
        return made

    async def _in_thread(self, work):
        self._thread = self._thread or object()
        return work()

    async def open(self, clock) -> None:
        self._thread = object()  # none is required
        await super().open(clock)
        self._reader = None  # nor is that of the reader

    async def aclose(self) -> None:
        self._user_count -= 1
        if not self._user_count:
            self._close()

    def _transaction(self, program, synchronous):
        answer = super()._transaction(program, synchronous)
        self.changes += 1
        self.recorder.look("the answer of a commit")
        return answer

    def statement(self, text: str) -> None:
        """Note that a statement is about to run."""
        if self.changes >= 0:
            self.changes += 1
            self.recorder.look(" ".join(text.split())[:60])

    def image(self):
        """Copy the file with what is not committed; its index is built again when the copy is opened."""
        folder = Path(tempfile.mkdtemp(dir=SCRATCH.get("folder")))
        for name in ("tasks.db", "tasks.db-wal"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, folder)
        reader = sqlite_file.driver().Connection(str(self.folder / "tasks.db"))
        claimed = Counter(id for (id,) in reader.execute("select id from durable_tasks where state = 3"))
        reader.close()
        return folder, claimed

    async def owners(self) -> int:
        """Return the number of owners."""
        [(count,)] = self._connection.execute("select count(*) from durable_owners")
        return count


SCRATCH: dict[str, str] = {}
SEEDS = itertools.count(1)
STORES = {"memory": MemoryImages, "sqlite": SQLiteImages}


class Process:
    """The functions of the scenario, in one process."""

    def __init__(self, store, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tasks = tasks = DurableTasks(store, lease=LEASE)
        self.running: Counter[str] = Counter()

        @tasks.task(retry=Retry(3, base=0.2, cap=0.4, on=ValueError))
        async def work(label, group=None, seconds=0.0, failures=0):
            await self.attempt(label, group, seconds, failures)

        @tasks.task(name="skip", lane_fail=LaneFail.SKIP)
        async def skip(label, group=None, seconds=0.0, failures=0):
            await self.attempt(label, group, seconds, failures)

        @tasks.task(name="again", expires=60)
        async def again():
            recorder.note("again", f"{asyncio.get_running_loop().time():.0f}")

        @tasks.task(name="steps", keep=3600, keep_result=True)
        async def steps(label):
            task = current_task()
            begun = task.saved or 0
            recorder.note("from", f"[{begun}]")
            recorder.note("begin", label)
            for step in range(begun, 4):
                await asyncio.sleep(0.5)
                task.save(step + 1)
            recorder.note("done", label)
            return "all"

        self.work, self.skip, self.steps = work, skip, steps
        tasks.repeat(again, period=2.0)

    async def attempt(self, id, lane, seconds, failures) -> None:
        """Run one attempt; no other attempt of the task, and none in its lane, may run at the same time."""
        recorder = self.recorder
        for what in (id, *([] if lane is None else [f"lane {lane}"])):
            assert not self.running[what], f"{what} runs twice at the same time"
            self.running[what] += 1
        recorder.note("begin", id, lane)
        try:
            await asyncio.sleep(seconds)
            if sum(entry[:2] == ("fail", id) for entry in recorder.log) < failures:
                recorder.note("fail", id, lane)
                raise ValueError(id)
            recorder.note("done", id, lane)
        finally:
            for what in (id, *([] if lane is None else [f"lane {lane}"])):
                self.running[what] -= 1

    async def put(self, function, id, lane=None, seconds=0.0, failures=0, **options) -> None:
        """Put a task, and note it after the put has returned."""
        await function.put(id, lane, seconds, failures, id=id, **({} if lane is None else {"lane": lane}), **options)
        self.recorder.note("put", id, lane)

    async def scenario(self) -> None:
        """Use every feature of durable tasks within a few seconds."""
        async with RateLimitedExecutor("x", rate="20/s", max_concurrency=4) as executor:
            async with self.tasks.running(executor):
                await asyncio.gather(*(self.put(self.work, f"a{n}", lane="a", seconds=0.1) for n in range(3)))
                await self.steps.put("steps", id="steps")
                self.recorder.note("put", "steps")
                await self.put(self.work, "slow", seconds=1.5)
                await self.put(self.work, "twice", failures=1)
                await self.put(self.work, "b0", lane="b", failures=1, seconds=0.1)
                await self.put(self.work, "b1", lane="b")
                await self.put(self.skip, "bad", lane="c", failures=9)
                await self.put(self.work, "c1", lane="c")
                await self.put(self.work, "later", delay=2.5)
                await self.put(self.work, "unwanted", delay=60)
                assert not (await self.work.put("a0", id="a0")).created
                await self.tasks.put_many([self.work.new(f"m{n}", id=f"m{n}", priority=n % 2) for n in range(6)])
                for n in range(6):
                    self.recorder.note("put", f"m{n}")
                self.recorder.note("cancel", "unwanted")
                await self.tasks.cancel("unwanted")
                self.recorder.note("cancelled", "unwanted")
                await asyncio.sleep(2.2)
                await self.put(self.work, "last", seconds=0.4)
                await asyncio.sleep(0.2)

    async def take_over(self) -> None:
        """Run the tasks that another process has left, until neither a task nor an owner that is gone is left."""
        store = self.recorder.store
        async with RateLimitedExecutor("x", rate="100/s") as executor, self.tasks.running(executor):
            for _ in range(80):
                await asyncio.sleep(0.25)
                if not await self.left() and await store.owners() == 1:
                    return

    async def left(self) -> dict[str, str]:
        """Return the states of tasks that are left, except dead letters, occurrences and the one that is due late."""
        rows = await self.recorder.store.rows(limit=1000)
        return {
            row.id: row.state.name
            for row in rows
            if row.state is not DurableState.DEAD and not row.id.startswith("again@") and row.id != "unwanted"
        }


@contextlib.contextmanager
def recording(recorder: Recorder):
    """Let a recorder look before each turn of the loop, and before each statement."""
    turn = asyncio.Handle._run

    def turned(handle):
        recorder.look("a turn of the loop")
        return turn(handle)

    play = sqlite._play

    class Cursor:
        def __init__(self, cursor) -> None:
            self.cursor = cursor

        def execute(self, text, arguments=None):
            recorder.store.statement(text)
            return self.cursor.execute(text, arguments)

    with (
        unittest.mock.patch.object(asyncio.Handle, "_run", turned),
        unittest.mock.patch.object(sqlite, "_play", lambda cursor, program: play(Cursor(cursor), program)),
    ):
        yield


def first_life(kind: str) -> Recorder:
    """Run the scenario to its clean end; return the recorder with the images of it."""
    recorder = Recorder()
    recorder.store = STORES[kind].of(None, recorder)

    async def live() -> None:
        async with kept_open(recorder.store):
            await Process(recorder.store, recorder).scenario()
            assert 0 == await recorder.store.owners(), "an owner is left after a clean end"
            assert 0 == (await recorder.store.counts())[DurableState.CLAIMED]

    with recording(recorder):
        run_virtual(live(), start_wall=START_WALL)
    return recorder


def next_life(kind: str, image: Image, *, is_recording: bool = False) -> tuple[list[str], Recorder]:
    """Take over an image; return the broken rules, as sentences, and the recorder."""
    recorder = Recorder(log=list(image.log), is_recording=is_recording)
    recorder.store = store = STORES[kind].of(image.kept, recorder)
    wrong: list[str] = []

    async def live() -> None:
        process = Process(store, recorder)
        async with kept_open(recorder.store):
            await process.take_over()
            if left := await process.left():
                wrong.append(f"left: {left}")
            rows = await store.rows(limit=1000)
            if sum(row.name == "again" for row in rows) > 1 or (await store.counts())[DurableState.CLAIMED]:
                wrong.append(f"left: {[(row.id, row.state.name) for row in rows]}")
            kept = {row.id for row in rows if row.state is DurableState.DEAD or row.id == "unwanted"}
            wrong.extend(judge(image, recorder.log, kept))
            [end] = await store.ended(["steps"])
            if ("put", "steps", None) in image.log and getattr(end, "result", None) != b'["all"]':
                wrong.append(f"history: {end}")
            if await store.owners() > 0:
                wrong.append("an owner is left")

    with recording(recorder) if is_recording else contextlib.nullcontext():
        run_virtual(live(), start_wall=image.wall, seed=next(SEEDS))  # or its name would be another's
    return wrong, recorder


def judge(image: Image, log: list[tuple[str, str, str | None]], kept: set[str]) -> list[str]:
    """Return the broken rules, as sentences; ``kept`` are the ids of dead letters and of tasks not due yet."""
    wrong = []
    events = Counter(entry[:2] for entry in log)
    for what, id, _ in log:
        if what == "put" and not events["done", id] and id not in kept and not events["cancel", id]:
            wrong.append(f"lost: {id}")
    for id in {id for what, id, _ in log if what == "begin"}:
        again = image.claimed[id]
        if events["done", id] > 1 + again:
            wrong.append(f"{id} done {events['done', id]} times, claimed at {again} kills")
        if events["begin", id] > events["fail", id] + 1 + again:
            wrong.append(f"{id} begun {events['begin', id]} times, claimed at {again} kills")
    written = "[0]"
    for what, state, _ in log:
        written = state if what == "saved" else written
        if what == "from" and state < written:
            wrong.append(f"begins from {state}, although {written} had been written")
    first: dict[str, list[str]] = {}
    for what, id, lane in log:
        if what == "begin" and lane in ("a", "b"):
            order = first.setdefault(lane, [])
            if id not in order:
                order.append(id)
            elif id != order[-1]:
                wrong.append(f"lane {lane}: {id} after {order[-1]}")
    wrong += [f"lane {lane}: {order}" for lane, order in first.items() if order != sorted(order)]
    return wrong


@contextlib.contextmanager
def scratch():
    """Provide a temporary folder for images, in memory if possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        SCRATCH["folder"] = folder
        try:
            yield
        finally:
            del SCRATCH["folder"]


@dataclass
class Found:
    """The result of a run.

    Attributes:
        awaits: turns and statements of the first process.
        images: images of the first process.
        lives: processes that took over.
        wrong: the broken rules, as sentences.
    """

    awaits: int
    images: int
    lives: int = 0
    wrong: list[str] = field(default_factory=list)


def crash(kind: str, *, step: int = 1, first: int = 0, again: int = 0, track=lambda each, _: each) -> Found:
    """Take over every ``step``-th image, and ``again`` images of each such process once more."""
    draw = random.Random(1)
    with scratch():
        recorder = first_life(kind)
        found = Found(recorder.awaits, len(recorder.images))
        for index in track(range(first, len(recorder.images), step), "images"):
            image = recorder.images[index]
            wrong, life = next_life(kind, image, is_recording=again > 0)
            found.lives += 1
            found.wrong += [f"image {index}, {image.where}: {each}" for each in wrong]
            for second in draw.sample(life.images, min(again, len(life.images))):
                late = Image(second.where, second.wall, second.kept, second.log, second.claimed + image.claimed)
                wrong, _ = next_life(kind, late)
                found.lives += 1
                found.wrong += [f"image {index}, {image.where}, then {second.where}: {each}" for each in wrong]
    return found


def main() -> None:
    """Take over many images, and print the broken rules."""
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES, default="memory")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--again", type=int, default=0)
    options = parser.parse_args()
    found = crash(options.store, step=options.step, first=options.first, again=options.again, track=track)
    for each in found.wrong:
        print(each, flush=True)
    print(f"{found.awaits} awaits, {found.images} images, {found.lives} lives, {len(found.wrong)} wrong")


if __name__ == "__main__":
    main()
