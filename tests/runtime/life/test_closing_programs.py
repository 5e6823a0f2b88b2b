"""Closing as random programs: every limit and order, every way to close, while tasks end, are cancelled and ask for more.

Cancelling goes in steps with turns of the loop between them. The steps are made small here, so that few tasks suffice
for many turns, in each of which everything may happen that may happen in the middle of a close.
"""

import asyncio
import contextlib
import random

import pytest

from ratelimited_executor import (
    ExecutorManager,
    ExecutorStoppedError,
    RateLimitedExecutorError,
    Retry,
    RetryLater,
)
from ratelimited_executor._runtime.life import closing
from ratelimited_executor.orders import Ageing, Fair
from ratelimited_executor.policies import Paced
from ratelimited_executor.testing import run_virtual

from ...helpers import check_accounting, first_quick, now, seen, swallow
from ...kinds import each_policy

PROGRAMS_EACH = 50


class Left(Exception):
    """Leaves the block of an executor."""


class Program:
    """One random program: an executor, tasks of all kinds, and a way to close it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.handles: list = []
        self.batches: list = []
        self.holding_count = 0  # permits that are held
        self.end_counts: dict = {}  # how often each handle called its done callback

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def settings(self) -> dict:
        """Draw the settings of an executor."""
        pick, chance = self.random.choice, self.chance
        rate = pick([float("inf"), 1000, 50, 3, 0, ["100/s", "300/5s"]])
        settings = {
            "rate": rate,
            "policy": pick(each_policy(5)) if type(rate) is int and rate else Paced(),
            "order": pick([None, Ageing(2), Fair(), Fair(weights={1: 5}), lambda task: -task.due]),
            "max_concurrency": pick([None, None, 1, 7, 0]),
            "key_rate": pick([None, None, 20, lambda key: 5 if key == 1 else None]),
            "key_concurrency": pick([None, 1, 2, 0, lambda key: key or None]),
            "resources": pick([None, {"bytes": "1000/s"}]),
            "retry": pick([Retry(), Retry(3, base=0.5, cap=2)]),
            "expires": pick([None, None, 2.5]),
            "drain_timeout": pick([None, 0, 0.1, 3]) if rate and chance(0.5) else pick([0, 0.1, 3]),
        }
        return {name: value for name, value in settings.items() if value is not None}

    def add(self, executor, pools) -> None:
        """Add a task, a batch, a callback or a repetition."""
        pick, chance = self.random.choice, self.chance
        options = {"key": pick([None, 0, 1, 2, *range(10, 40)]), "delay": pick([0, 0, 0, 0.001, 0.7, 5, 40])}
        if chance(0.2):
            options["priority"] = pick([-1, 3])
        if chance(0.15):
            options["slots"] = pick([pools[0], pools])
        if chance(0.1) and executor.resources:
            options["cost"] = {"permits": pick([1, 2]), "bytes": pick([10, 900])}
        if chance(0.05):
            options["at"] = asyncio.get_running_loop().clock.wall() + options.pop("delay")
        kind = pick(["task"] * 14 + ["call"] * 4 + ["batch", "stream", "repeat", "permit"])
        if kind == "task":
            handle = executor.schedule(self.body(executor, pools), **options)
            self.watch(handle)
        elif kind == "call":
            pick([lambda: executor.execute(int), lambda: executor.call_later(options.get("delay", 0), int)])()
        elif kind == "batch":
            batch = executor.schedule_many(
                self.body(executor, pools, takes=1), range(pick([1, 9, 40])), key=options["key"], results=chance(0.5)
            )
            self.batches.append(batch)
        elif kind == "stream":
            self.batches.append(executor.schedule_many(self.body(executor, pools, takes=1), self.items()))
        elif kind == "repeat":
            self.handles.append(executor.schedule_at_fixed_rate(self.body(executor, pools), period=pick([0.2, 3])))
        else:
            self.tasks.append(asyncio.create_task(self.hold(executor, options["key"])))

    async def items(self):
        for number in range(self.random.choice([3, 200])):
            await asyncio.sleep(0)
            yield number

    async def hold(self, executor, key) -> None:
        with contextlib.suppress(RateLimitedExecutorError, asyncio.CancelledError):
            async with executor.permit(key=key):
                self.holding_count += 1
                await asyncio.sleep(self.random.choice([0, 0.3, 4]))
                self.holding_count -= 1

    def watch(self, handle) -> None:
        self.handles.append(handle)
        self.end_counts[handle] = 0
        handle.add_done_callback(self.note_end)

    def note_end(self, handle) -> None:
        self.end_counts[handle] += 1

    def body(self, executor, pools, takes=0):
        """Return what a task runs."""
        kind = self.random.choice(["plain", "fails", "later", "asks", "coroutine", "coroutine", "long", "swallows"])
        seconds = self.random.choice([0, 0.05, 1, 8])

        def plain(*_):
            if kind == "fails":
                raise OSError
            if kind == "later":
                raise RetryLater(0.1)
            if kind == "asks":
                self.disturb(executor, pools)

        async def coroutine(*_):
            try:
                await asyncio.sleep(seconds)
            finally:
                self.disturb(executor, pools)
            if self.chance(0.2):
                raise OSError

        if kind in ("plain", "fails", "later", "asks"):
            return plain
        return (lambda *_: swallow(min(seconds, 1))) if kind == "swallows" else coroutine

    def disturb(self, executor, pools) -> None:
        """Do what user code may do at any time; what a closing executor refuses is refused by an error of its own."""
        pick = self.random.choice
        with contextlib.suppress(RateLimitedExecutorError):
            kind = pick(["add", "cancel", "cancel", "batch", "order", "limits", "rate", "look", "pool", "penalize"])
            if kind == "add":
                self.add(executor, pools)
            elif kind == "cancel" and self.handles:
                pick(self.handles).cancel()
            elif kind == "batch" and self.batches:
                pick(self.batches).cancel()
            elif kind == "order":
                executor.order = pick([Fair(), Ageing(2), lambda task: task.due])
            elif kind == "limits":
                executor.key_concurrency = pick([None, 1, 3])
            elif kind == "rate":
                executor.rate = pick([5, 1000, float("inf")])
            elif kind == "look":
                executor.statistics(), executor.waiting_tasks(5), executor.backlog_seconds()
                if self.handles and hasattr(self.handles[-1], "lateness"):
                    executor.explain(pick([each for each in self.handles if hasattr(each, "lateness")]))
            elif kind == "pool":
                pools[0].limit = pick([0, 1, 5])
            elif kind == "penalize":
                executor.penalize(0.5, key=pick([None, 1]))

    async def run(self) -> None:
        """Run the program, and assert the laws of closing."""
        self.tasks: list[asyncio.Task] = []
        is_over = False
        async with ExecutorManager() as manager:
            executor = manager.executor("x", **self.settings())
            pools = [manager.slots("a", limit=self.random.choice([0, 1, 3])), manager.slots("b", limit=2)]

            async def disturb_always() -> None:
                while not is_over:
                    await asyncio.sleep(self.random.choice([0, 0, 0.05, 2]))
                    self.disturb(executor, pools)

            for _ in range(self.random.choice([5, 60, 150])):
                self.add(executor, pools)
            if self.chance(0.8):
                self.tasks += [asyncio.create_task(disturb_always()) for _ in range(2)]
            await asyncio.sleep(self.random.choice([0, 0.01, 0.6, 2]))
            await self.close(executor)
            is_over = True
            self.check(executor)
            before = now()
            await executor.shutdown()
            await executor.aclose()
            assert before == now()
            with pytest.raises(ExecutorStoppedError):
                executor.submit(int)
            await asyncio.gather(*self.tasks)
            self.check(executor)
            for pool in pools:
                assert (0, 0) == (pool.statistics().held, pool.statistics().waiting)

    async def close(self, executor) -> None:
        """Close the executor in one of all ways."""
        way = self.random.choice(["leave", "raise", "cancel", "shutdown", "shutdown", "twice", "inside", "impatient"])
        if way == "leave":
            async with executor:
                pass
        elif way == "raise":
            with pytest.raises(Left):
                async with executor:
                    raise Left
        elif way == "cancel":
            closer = asyncio.create_task(executor.aclose())
            await asyncio.sleep(self.random.choice([0, 0.1, 1]))
            is_cancelled = closer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await closer
            assert closer.cancelled() == is_cancelled
        elif way == "shutdown":
            unstarted = await executor.shutdown(cancel_pending=True)
            assert len(unstarted) == len(list(unstarted))
        elif way == "twice":
            await asyncio.gather(executor.aclose(), executor.shutdown(timeout=0.05), executor.aclose())
        elif way == "inside":
            with contextlib.suppress(RateLimitedExecutorError):
                executor.submit(lambda: executor.shutdown(wait=False, cancel_pending=True))
            await executor.shutdown(timeout=0.2)
        else:
            executor.shutdown(wait=False, timeout=5)
            assert await executor.await_termination(60)

    def check(self, executor) -> None:
        """Assert that everything has ended in one state, and that the accounts say so."""
        check_accounting(executor)
        assert executor.is_terminated
        assert [] == [handle for handle in self.handles if not handle.done()]
        assert all(batch.done() for batch in self.batches)
        for handle in self.end_counts:
            seen(handle)
        # Holders of permits, which are tasks of their own, go on.
        assert (0, self.holding_count) == (executor.statistics().waiting, executor.statistics().running)


def run_program(seed: int) -> None:
    """Run one program in virtual time."""
    program = Program(seed)
    reports: list = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        await program.run()
        await asyncio.sleep(1)  # for the last done callbacks

    run_virtual(main(), seed=seed, limit=100_000)
    assert {1} >= set(program.end_counts.values())
    errors = [report["exception"] for report in reports if "exception" in report]
    assert all(isinstance(error, (OSError, RateLimitedExecutorError)) for error in errors), reports


@pytest.mark.parametrize("fifty", first_quick(range(4)))
def test_a_random_executor_closes_whole(fifty, monkeypatch):
    """Every handle ends once, the accounts add up, no slot is left held, and nothing leaves the block but what should."""
    for seed in range(fifty * PROGRAMS_EACH, (fifty + 1) * PROGRAMS_EACH):
        monkeypatch.setattr(closing, "_CUT_COUNT", (1, 3, 2048)[seed % 3])
        try:
            run_program(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
