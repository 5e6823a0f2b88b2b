"""A process that ends at each await, and at each statement of SQL: another takes over what it has left in the store.

A small scenario runs once, in virtual time, by the code that production runs: puts, lanes, a retry, a dead letter, a cancellation,
a repetition, a clean end. Whenever something has changed, an *image* is made: what the store holds, and what the process
has been told and has done until then. That is all that is left of a process that ends there: nothing more of it runs, no
``finally`` either. From each image another process goes on, and it is asked what it makes of it:

- every task whose put had returned runs to its end, becomes a dead letter, or was cancelled;
- nothing runs twice but what was claimed in the image, and that only once more;
- the tasks of a lane begin in order, one at a time;
- nothing is left claimed, and no owner but those that were lost.

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
from ratelimited_executor._runtime.clock import clock_for
from ratelimited_executor._runtime.hooks import hooks_of
from ratelimited_executor.durable import DurableState, DurableTasks, LaneFail, MemoryStore, SQLiteStore
from ratelimited_executor.stores import sqlite_file
from ratelimited_executor.stores.tasks import sqlite
from ratelimited_executor.testing import run_virtual

LEASE = 3.0
START_WALL = 1_700_000_000.0
CHANGES = ("put", "join", "beat", "leave", "claim", "finish", "cancel", "requeue", "revive")


@dataclass(frozen=True)
class Image:
    """What a process leaves that ends.

    Attributes:
        where: what it was about to do, for people.
        wall: the time.
        kept: what the store holds: a table, or the folder of a file.
        log: what had happened: (what, id, lane).
        claimed: the tasks that are claimed, each with the number of kills at which it was.
    """

    where: str
    wall: float
    kept: object
    log: tuple[tuple[str, str, str | None], ...]
    claimed: Counter[str]


@dataclass
class Recorder:
    """What happens in a process; makes images, if it is asked to.

    Attributes:
        log: what has happened, before this process as well.
        awaits: turns of the loop, and statements, so far.
        images: where the process could have ended.
    """

    log: list[tuple[str, str, str | None]] = field(default_factory=list)
    store: object = None
    is_recording: bool = True
    awaits: int = 0
    images: list[Image] = field(default_factory=list)
    seen: tuple[int, int] = (-1, -1)

    def note(self, what: str, id: str, lane: str | None = None) -> None:
        """Note what has happened."""
        self.log.append((what, id, lane))
        self.look(f"{what} {id}")

    def look(self, where: str) -> None:
        """Make an image, unless it would be as the last one."""
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
    """Keep a store open beyond its tasks."""
    loop = asyncio.get_running_loop()
    await store.open(hooks_of(loop).clock or clock_for(loop))
    try:
        yield
    finally:
        await store.aclose()


class Recorded:
    """Mixed into a store: each call waits once before it is made and once before its answer is heard.

    Attributes:
        changes: calls that have changed something; -1 before it is open.
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
                return await found(*args, **options)
            finally:
                self.changes += 1
                self.recorder.look(f"the answer of {name}")
                await asyncio.sleep(0)

        return call


class MemoryImages(Recorded, MemoryStore):
    """The rules' own table."""

    @classmethod
    def of(cls, kept, recorder: Recorder) -> "MemoryImages":
        """Return a store with what an image holds."""
        made = cls()
        made.recorder = recorder
        if kept is not None:
            made._table = copy.deepcopy(kept)
        return made

    def image(self):
        """Return what it holds, and what is claimed."""
        rows = self._table.rows(DurableState.CLAIMED, after=0, limit=1000)
        return copy.deepcopy(self._table), Counter(row.id for row in rows)

    async def owners(self) -> int:
        """Count the owners."""
        return len(self._table._owners)


class SQLiteImages(Recorded, SQLiteStore):
    """A file, whose statements run on the loop: the process may end before each of them."""

    folder: Path

    @classmethod
    def of(cls, kept, recorder: Recorder) -> "SQLiteImages":
        """Return a store with what an image holds."""
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
        self._thread = object()  # none is needed
        await super().open(clock)

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
        """Note that a statement is about to be run."""
        if self.changes >= 0:
            self.changes += 1
            self.recorder.look(" ".join(text.split())[:60])

    def image(self):
        """Copy the file as it is, with what is not committed; the index beside it is made anew when it is opened."""
        folder = Path(tempfile.mkdtemp(dir=SCRATCH.get("folder")))
        for name in ("tasks.db", "tasks.db-wal"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, folder)
        reader = sqlite_file.driver().Connection(str(self.folder / "tasks.db"))
        claimed = Counter(id for (id,) in reader.execute("select id from durable_tasks where state = 3"))
        reader.close()
        return folder, claimed

    async def owners(self) -> int:
        """Count the owners."""
        [(count,)] = self._connection.execute("select count(*) from durable_owners")
        return count


SCRATCH: dict[str, str] = {}
SEEDS = itertools.count(1)
STORES = {"memory": MemoryImages, "sqlite": SQLiteImages}


class Process:
    """The functions of the scenario, as one process has them."""

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

        self.work, self.skip = work, skip
        tasks.repeat(again, period=2.0)

    async def attempt(self, id, lane, seconds, failures) -> None:
        """Run one attempt: nobody else may be at the task, or at one of its lane."""
        recorder = self.recorder
        for what in (id, *([] if lane is None else [f"lane {lane}"])):
            assert not self.running[what], f"{what} twice at once"
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
        """Put a task, and note it once that has returned."""
        await function.put(id, lane, seconds, failures, id=id, **({} if lane is None else {"lane": lane}), **options)
        self.recorder.note("put", id, lane)

    async def scenario(self) -> None:
        """All that durable tasks have, in a few seconds."""
        async with RateLimitedExecutor("x", rate="20/s", max_concurrency=3) as executor:
            async with self.tasks.running(executor):
                await asyncio.gather(*(self.put(self.work, f"a{n}", lane="a", seconds=0.1) for n in range(3)))
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
        """Run what another process has left, until nothing is left, nor an owner that is gone."""
        store = self.recorder.store
        async with RateLimitedExecutor("x", rate="100/s") as executor, self.tasks.running(executor):
            for _ in range(80):
                await asyncio.sleep(0.25)
                if not await self.left() and await store.owners() == 1:
                    return

    async def left(self) -> dict[str, str]:
        """Return the tasks that are left, and in which state, but for dead letters, occurrences and what is due late."""
        rows = await self.recorder.store.rows(limit=1000)
        return {
            row.id: row.state.name
            for row in rows
            if row.state is not DurableState.DEAD and not row.id.startswith("again@") and row.id != "unwanted"
        }


@contextlib.contextmanager
def recording(recorder: Recorder):
    """Have a recorder look before each turn of the loop, and before each statement."""
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
    """Live through the scenario, to its clean end; return where it could have ended otherwise."""
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
    """Take over what an image holds; return what went wrong, in words, and the life."""
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
            if await store.owners() > 0:
                wrong.append("an owner is left")

    with recording(recorder) if is_recording else contextlib.nullcontext():
        run_virtual(live(), start_wall=image.wall, seed=next(SEEDS))  # or it would draw the name of another
    return wrong, recorder


def judge(image: Image, log: list[tuple[str, str, str | None]], kept: set[str]) -> list[str]:
    """Return what should not be, in words; ``kept`` are dead letters, and what is not due yet."""
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
    """Have a folder for images."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        SCRATCH["folder"] = folder
        try:
            yield
        finally:
            del SCRATCH["folder"]


@dataclass
class Found:
    """What came of it.

    Attributes:
        awaits: turns and statements of the first life.
        images: images of it.
        lives: lives that took over.
        wrong: what was wrong, in words.
    """

    awaits: int
    images: int
    lives: int = 0
    wrong: list[str] = field(default_factory=list)


def crash(kind: str, *, step: int = 1, first: int = 0, again: int = 0, track=lambda each, _: each) -> Found:
    """Take over from every ``step``-th image, and from ``again`` images of each such life once more."""
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
    """Take over from many images, and print what was wrong."""
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
