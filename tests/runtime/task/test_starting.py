"""Starts on the fast path and in bursts: both do the same, and each call is counted, whatever it does."""

from __future__ import annotations

import asyncio
import contextvars
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor import Pacing, RateLimitedExecutor
from ratelimited_executor._core.queue.queue import TaskQueue
from ratelimited_executor import kernel
from ratelimited_executor.testing import run_virtual

from ...core.world import make_all_ready
from ...helpers import examples

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


TIMES = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), st.floats(0, 6))
TASKS = st.tuples(
    st.sampled_from(["batch", "batch", "call", "handle", "submit"]),
    st.lists(TIMES, min_size=1, max_size=6),  # the delays of its tasks
    st.sampled_from(["return", "raise", "sleep", "set", "add", "cancel"]),  # what each task does
    TIMES,  # the pause before the next step
)


@dataclass
class Program:
    """A random program: what it schedules, and a log of what happens."""

    steps: list
    rate: float
    pacing: Pacing
    max_concurrency: int | None
    log: list = field(default_factory=list)
    handles: list = field(default_factory=list)

    async def run(self) -> list:
        """Run the program, and return what happened and when."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: self.log.append((loop.time(), "handler", str(context["exception"])))
        )
        options = {"rate": self.rate, "pacing": self.pacing, "max_concurrency": self.max_concurrency}
        async with RateLimitedExecutor("x", **options) as executor:
            for number, (kind, delays, action, pause) in enumerate(self.steps):
                task = self.make(executor, number, action)
                if kind == "batch":
                    items = tuple if number % 2 else list
                    batch = executor.schedule_many(
                        task, items(range(len(delays))), delays=delays, results=number % 3 == 0
                    )
                    self.handles.append(batch)
                elif kind == "call":
                    self.handles += [executor.call_later(delay, task, index) for index, delay in enumerate(delays)]
                elif kind == "handle":
                    self.handles += [executor.schedule(task, index, delay=delay) for index, delay in enumerate(delays)]
                else:
                    self.handles.append(executor.submit(task, 0))
                await asyncio.sleep(pause)
        self.log.append((loop.time(), "end", repr(executor.statistics())))
        return [*self.log, *(repr(handle.summary) for handle in self.handles if hasattr(handle, "summary"))]

    def make(self, executor: RateLimitedExecutor, number: int, action: str):
        """Return a function that logs its start, and then does ``action``."""

        async def sleep(index: int) -> int:
            self.log.append((executor._engine.loop.time(), number, index, variable.get()))
            await asyncio.sleep(0.3 + index / 10)
            self.log.append((executor._engine.loop.time(), number, index, "slept"))
            return index

        def act(index: int) -> int | None:
            self.log.append((executor._engine.loop.time(), number, index, variable.get()))
            if action == "raise":
                raise ValueError(number, index)
            if action == "set":
                variable.set(f"{number}")
                return index
            if action == "add" and index < 3:
                self.handles.append(executor.schedule_many(act, [3, 4], delays=[0.0, 0.7]))
            if action == "cancel" and self.handles:
                self.handles[(number + index) % len(self.handles)].cancel()
            return None

        return sleep if action == "sleep" else act


plain_poll = TaskQueue.poll


def poll_after_all_are_ready(queue, now, limit):
    """Answer like ``TaskQueue.poll``, without taking a lone task directly."""
    if queue.is_changed:
        make_all_ready(queue, now)
    return plain_poll(queue, now, limit)


@given(
    steps=st.lists(TASKS, min_size=1, max_size=8),
    rate=st.sampled_from([float("inf"), 5.0, 1.7]),
    pacing=st.sampled_from(Pacing),
    max_concurrency=st.sampled_from([None, 1, 3]),
)
@examples(150)
def test_short_way_changes_nothing(steps, rate, pacing, max_concurrency):
    """Starts, ends, outcomes, context variables, reports and counts are the same without the fast path."""

    def run() -> list:
        return run_virtual(Program(steps, rate, pacing, max_concurrency).run())

    short = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskQueue, "poll", poll_after_all_are_ready)
        assert run() == short


@pytest.mark.skipif(
    kernel.is_compiled, reason="this kernel decides in one piece; test_hot_path_guard.py shows it there"
)
async def test_tasks_of_a_batch_that_are_alone_take_the_short_way(monkeypatch, virtual_clock):
    """Lone tasks of a batch take the fast path: else the test above would compare the slow path with itself."""
    taken = []
    original = TaskQueue._take_lone

    def take_lone(self, now):
        found = original(self, now)
        if found is not None:
            taken.append(found)
        return found

    monkeypatch.setattr(TaskQueue, "_take_lone", take_lone)
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        batch = executor.schedule_many(int, range(20), delays=[0.37 * index for index in range(20)])
        assert 20 == (await batch).done
    assert 20 == len(taken)


@pytest.mark.parametrize("is_short", [True, False])
async def test_spread_tasks_find_their_place_after_one_that_took_the_last(monkeypatch, virtual_clock, is_short):
    """While a lone task holds the only place, spread tasks are planned for when it is free again."""
    if not is_short:
        monkeypatch.setattr(TaskQueue, "poll", poll_after_all_are_ready)
    loop, starts = asyncio.get_running_loop(), []

    async def work(seconds):
        starts.append(loop.time())
        await asyncio.sleep(seconds)

    begin = loop.time()
    async with RateLimitedExecutor("x", max_concurrency=1, pacing=Pacing.SPREAD) as executor:
        for delay, seconds in ((0.54, 1.96), (2.35, 0.22), (1.62, 0)):
            executor.schedule(work, seconds, delay=delay)
    assert [0.54, 2.5, 2.75] == pytest.approx([start - begin for start in starts], abs=0.01)


# Calls that start in one burst.


COUNT = 50
whose = contextvars.ContextVar("whose", default="nobody's")


def add_by(kind, executor, call) -> None:
    """Have ``call(number)`` run ``COUNT`` times at one instant, in a way that starts in bursts."""
    if kind == "call_later":
        for number in range(COUNT):
            executor.call_later(1.0, call, number)
    elif kind == "call_later with context variables":
        whose.set("somebody's")
        for number in range(COUNT):
            executor.call_later(1.0, call, number)
    elif kind == "execute":
        for number in range(COUNT):
            executor.execute(call, number)
    elif kind == "schedule_many":
        executor.schedule_many(call, range(COUNT), delay=1.0)
    elif kind == "schedule_many delays":
        executor.schedule_many(call, range(COUNT), delays=[1.0] * COUNT)
    else:
        handles = [executor.schedule(call, number, delay=1.0) for number in range(COUNT)]
        executor.call_later(0, lambda: handles)  # keeps a reference to them


KINDS = (
    "call_later", "call_later with context variables", "execute", "schedule_many", "schedule_many delays", "schedule",
)  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=[float("inf"), 1000], ids=["unlimited", "1000/s"])
async def executor(request, virtual_clock):
    async with RateLimitedExecutor("one", rate=request.param, pacing=Pacing.ON_TIME) as executor:
        yield executor


async def test_counts_are_exact_inside_every_call(executor, kind, account):
    """Within a call of a burst one task runs, those before it are done, and the others wait."""
    seen: list[int] = []

    def call(number: int) -> None:
        counts = executor.statistics()
        seen.append(number)
        assert (len(seen), 1, len(seen) - 1) == (counts.started, counts.running, counts.done), number
        assert COUNT - len(seen) == counts.waiting, number
        account(executor)

    await asyncio.sleep(0)
    if kind == "schedule":
        handles = [executor.schedule(call, number, delay=1.0) for number in range(COUNT)]
        await asyncio.gather(*handles)
    else:
        add_by(kind, executor, call)
        await asyncio.sleep(2)
    assert [*range(COUNT)] == seen
    assert COUNT == executor.statistics().done


async def test_calls_that_raise_return_coroutines_or_set_variables_are_counted_once(executor, kind, account):
    """Calls of a burst that fail, return coroutines or set variables count once, and see no other's variables."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    ran: list[int] = []

    async def later(number: int) -> None:
        await asyncio.sleep(0.01)
        ran.append(number)

    def call(number: int):
        assert whose.get() in ("nobody's", "somebody's")
        if number % 4 == 1:
            whose.set(f"that of {number}")
        if number % 4 == 3:
            return later(number)
        ran.append(number)
        if number % 4 == 2:
            raise ZeroDivisionError(number)
        account(executor)
        return number

    add_by(kind, executor, call)
    await asyncio.sleep(2)
    account(executor)
    counts = executor.statistics()
    assert sorted(ran) == [*range(COUNT)]
    assert sum(number % 4 == 2 for number in range(COUNT)) == counts.failed
    assert 0 == counts.waiting == counts.running


async def test_what_a_call_cancels_does_not_run(executor, account):
    """A task cancelled by a call of its burst does not run: of its bucket, of a batch, or with a handle."""
    ran: list[str] = []
    handles = []

    def call(name: str, cancels=()) -> None:
        ran.append(name)
        for index in cancels:
            handles[index].cancel()
        account(executor)

    handles += [executor.call_later(1.0, call, "a", (1, 3, 5)), executor.call_later(1.0, call, "b")]
    handles += [executor.call_later(1.0, call, "c"), executor.schedule(call, "d", delay=1.0)]
    handles += [executor.schedule(call, "e", delay=1.0), executor.schedule_many(call, ["f"] * 30, delay=1.0)]
    handles += [executor.schedule_many(lambda _: call("g", (6,)), range(30), delay=1.0)]
    await asyncio.sleep(2)
    assert ["a", "c", "e", "g"] == sorted(ran)
    account(executor)
    assert 61 == executor.statistics().cancelled


async def test_shutting_down_in_the_middle_loses_nothing(kind, virtual_clock, account):
    """A shutdown within a burst keeps what has started and cancels the rest, none of which runs."""
    executor = RateLimitedExecutor("one", pacing=Pacing.ON_TIME)
    await executor.start()
    ran: list[int] = []

    def call(number: int) -> None:
        ran.append(number)
        if len(ran) == 10:
            executor.shutdown(cancel_pending=True)

    add_by(kind, executor, call)
    await asyncio.sleep(2)
    await executor.aclose()
    assert 10 == len(ran)
    counts = executor.statistics()
    assert (10, COUNT - 10) == (counts.started - (kind == "schedule"), counts.cancelled)
    account(executor)


@pytest.mark.parametrize("change", ["pause", "rate", "order", "max_concurrency", "pacing"])
async def test_a_setting_changed_in_the_middle_holds_from_the_next_call_on(executor, kind, change, account):
    """A setting changed within a burst applies from the next call on, and no task is lost or starts twice."""
    loop = asyncio.get_running_loop()
    ran: list[tuple[float, int]] = []

    def call(number: int) -> None:
        ran.append((loop.time(), number))
        if len(ran) == 10:
            if change == "pause":
                executor.pause()
            elif change == "rate":
                executor.rate = 10
            elif change == "order":
                executor.order = lambda view: -view.due
            elif change == "max_concurrency":
                executor.max_concurrency = 0
            else:
                executor.pacing = Pacing.SPREAD
        account(executor)

    add_by(kind, executor, call)
    await asyncio.sleep(2)
    if change in ("pause", "max_concurrency"):
        assert 10 == len(ran)
        executor.resume()
        executor.max_concurrency = None
    elif change == "rate":
        assert len(ran) <= 10 + 20 + 1
    await asyncio.sleep(10)
    assert sorted(number for _, number in ran) == [*range(COUNT)]
    account(executor)


async def test_a_more_important_task_goes_first_although_a_burst_runs(virtual_clock):
    """A more important task added within a burst takes the next permit."""
    ran: list[int | str] = []
    async with RateLimitedExecutor("one", rate=1000, pacing=Pacing.ON_TIME) as executor:

        def call(number: int) -> None:
            ran.append(number)
            if number == 3:
                executor.submit(ran.append, "now", priority=1)

        for number in range(20):
            executor.call_later(1.0, call, number)
        asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + 0.995, lambda: None)
        await asyncio.sleep(2)
    assert 4 == ran.index("now")


async def test_whoever_begins_to_watch_a_batch_in_the_middle_sees_the_rest(virtual_clock):
    """An iteration of a batch that begins within a burst sees outcomes once each and in order, and the batch ends."""
    seen: list[int] = []
    async with RateLimitedExecutor("one", pacing=Pacing.ON_TIME) as executor:

        async def watch() -> None:
            async for index, _ in batch:
                seen.append(index)

        watchers = []
        batch = executor.schedule_many(
            lambda n: watchers.append(asyncio.ensure_future(watch())) if n == 0 else n, range(2000), delay=1
        )
        await batch
        await asyncio.gather(*watchers)
    assert len(seen) == len(set(seen))
    assert 2000 == batch.summary.done
    assert seen == sorted(seen)


@pytest.mark.parametrize("seed", range(12))
async def test_random_calls_that_do_random_things_run_once_or_are_cancelled(virtual_clock, account, seed):
    """Under random calls, cancellations and settings a task runs once or is cancelled, and never starts early."""
    chosen = random.Random(seed)
    loop = asyncio.get_running_loop()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    rate = chosen.choice([float("inf"), 500, 50])
    runs: dict[int, int] = {}
    alive: dict[int, object] = {}
    early: list[float] = []
    added = 0

    async with RateLimitedExecutor("one", rate=rate, pacing=chosen.choice([*Pacing]), drain_timeout=100) as executor:

        def call(number: int, due: float):
            runs[number] = runs.get(number, 0) + 1
            early.append(loop.time() - due)
            alive.pop(number, None)
            act()
            account(executor)
            kind = chosen.randrange(12)
            if kind == 0:
                raise ZeroDivisionError
            return asyncio.sleep(0.01) if kind == 1 else kind if kind < 6 else None

        def add() -> None:
            nonlocal added
            number = added
            delay = chosen.choice([0, 0, 0.1, 0.5, 1.0, 1.0, 1.7, 3.0])
            due = loop.time() + delay
            kind = chosen.randrange(6)
            if kind <= 1:
                added += 1
                alive[number] = executor.call_later(delay, call, number, due)
            elif kind == 2:
                added += 1
                executor.execute(call, number, loop.time())
            elif kind == 3:
                added += 1
                alive[number] = executor.schedule(call, number, due, delay=delay, priority=chosen.choice([0, 0, 1]))
            else:
                count = chosen.randrange(1, 40)
                added += count
                delays = [chosen.choice([0.0, 0.3, 1.2]) for _ in range(count)]
                items = [(number + index, loop.time() + delays[index]) for index in range(count)]
                executor.schedule_many(lambda item: call(*item), items, delays=delays)

        def act() -> None:
            kind = chosen.randrange(40)
            if kind < 6 and added < 600:
                add()
            elif kind == 6 and alive:
                number, handle = alive.popitem()
                handle.cancel()
                runs.setdefault(number, 0)
            elif kind == 7:
                executor.rate = chosen.choice([rate, 100])
            elif kind == 8:
                executor.pacing = chosen.choice([*Pacing])
            elif kind == 9:
                executor.max_concurrency = chosen.choice([None, 5])

        for _ in range(60):
            add()
        await asyncio.sleep(5)
        executor.rate = rate
        executor.max_concurrency = None
    account(executor)
    counts = executor.statistics()
    assert min(early) >= 0
    assert set(runs.values()) <= {0, 1}
    assert added == counts.accepted
    assert sum(runs.values()) == counts.started == counts.done + counts.failed
    assert counts.cancelled == added - counts.started
