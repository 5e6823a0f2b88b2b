"""A task that is alone is started in a short way: with and without it, the same happens."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor import Pacing, RateLimitedExecutor
from ratelimited_executor._core.queue import TaskQueue
from ratelimited_executor.testing import run_virtual

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

TIMES = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), st.floats(0, 6))
TASKS = st.tuples(
    st.sampled_from(["batch", "batch", "call", "handle", "submit"]),
    st.lists(TIMES, min_size=1, max_size=6),  # delays
    st.sampled_from(["return", "raise", "sleep", "set", "add", "cancel"]),  # what each does
    TIMES,  # before the next
)


@dataclass
class Program:
    """What is scheduled, and what has happened."""

    steps: list
    rate: float
    pacing: Pacing
    max_concurrency: int | None
    log: list = field(default_factory=list)
    handles: list = field(default_factory=list)

    async def run(self) -> list:
        """Run it, and return what has happened when."""
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
        """Return a function that notes its start, and does something."""

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


@given(
    steps=st.lists(TASKS, min_size=1, max_size=8),
    rate=st.sampled_from([float("inf"), 5.0, 1.7]),
    pacing=st.sampled_from(Pacing),
    max_concurrency=st.sampled_from([None, 1, 3]),
)
@settings(max_examples=150, deadline=None)
def test_short_way_changes_nothing(steps, rate, pacing, max_concurrency):
    """Starts, ends, outcomes, context variables, reports and counts are the same, to the last digit."""

    def run() -> list:
        return run_virtual(Program(steps, rate, pacing, max_concurrency).run())

    short = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskQueue, "take_lone", lambda self, now: None)
        assert run() == short


async def test_tasks_of_a_batch_that_are_alone_take_the_short_way(monkeypatch, virtual_clock):
    """Otherwise the test above would compare the long way with itself."""
    taken = []
    original = TaskQueue.take_lone

    def take_lone(self, now):
        found = original(self, now)
        if found is not None:
            taken.append(found)
        return found

    monkeypatch.setattr(TaskQueue, "take_lone", take_lone)
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        batch = executor.schedule_many(int, range(20), delays=[0.37 * index for index in range(20)])
        assert 20 == (await batch).done
    assert 20 == len(taken)


@pytest.mark.parametrize("is_short", [True, False])
async def test_spread_tasks_find_their_place_after_one_that_took_the_last(monkeypatch, virtual_clock, is_short):
    """The only place is taken by a lone task: the next ones are planned for when it is free."""
    if not is_short:
        monkeypatch.setattr(TaskQueue, "take_lone", lambda self, now: None)
    loop, starts = asyncio.get_running_loop(), []

    async def work(seconds):
        starts.append(loop.time())
        await asyncio.sleep(seconds)

    begin = loop.time()
    async with RateLimitedExecutor("x", max_concurrency=1, pacing=Pacing.SPREAD) as executor:
        for delay, seconds in ((0.54, 1.96), (2.35, 0.22), (1.62, 0)):
            executor.schedule(work, seconds, delay=delay)
    assert [0.54, 2.5, 2.75] == pytest.approx([start - begin for start in starts], abs=0.01)
