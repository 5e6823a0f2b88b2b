"""The extensions that loops offer to executors: read in one place, once, and declared."""

import ast
import asyncio
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import ratelimited_executor
from ratelimited_executor import ExecutorManager, RateLimitedExecutor, Retry
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.repeat.retrying import Retries
from ratelimited_executor._runtime.task.coroutines import Coroutines
from ratelimited_executor._runtime.time.hooks import Hooks, hooks_of
from ratelimited_executor.simulation.lasting import LastingCoroutines
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.testing import VirtualEventLoop
from ratelimited_executor.testing.clock import VirtualClock

PACKAGE = Path(ratelimited_executor.__file__).parent
ASKERS = [
    *(PACKAGE / "_runtime").rglob("*.py"),
    *(PACKAGE / "peers").rglob("*.py"),
    *(PACKAGE / "stores").rglob("*.py"),
]


@pytest.fixture
def plain_loop():
    loop = asyncio.SelectorEventLoop()
    yield loop
    loop.close()


def test_a_plain_loop_offers_nothing(plain_loop):
    """A plain loop has the defaults: real time, threads, buckets of a second, asyncio tasks, timers."""
    hooks = hooks_of(plain_loop)

    assert Hooks() == hooks
    assert (None, None, True, NS, Coroutines, None) == (
        hooks.clock, hooks.random, hooks.has_threads, hooks.bucket_ns_max, hooks.coroutines_type, hooks.make_waker,
    )  # fmt: skip
    assert not hooks.is_virtual


def test_a_virtual_loop_offers_its_time_and_its_random_numbers():
    """A virtual loop offers its time and its random numbers, and nothing else."""
    loop = VirtualEventLoop()
    hooks = hooks_of(loop)
    loop.close()

    assert Hooks(clock=loop.clock, random=loop.random) == hooks
    assert hooks.is_virtual


def test_the_loop_of_a_simulation_offers_all():
    """The loop of a simulation wakes executors and runs coroutines itself, without threads."""
    loop = SimulationLoop()
    hooks = hooks_of(loop)

    assert (loop.clock, loop.random, False, 60 * NS, LastingCoroutines) == (
        hooks.clock, hooks.random, hooks.has_threads, hooks.bucket_ns_max, hooks.coroutines_type,
    )  # fmt: skip
    assert hooks.make_waker is not None
    loop.close()


def test_a_loop_of_ones_own_may_offer_a_part():
    """Any other loop may offer some of the extensions: here only the clock."""

    class Loop(asyncio.SelectorEventLoop):
        clock = VirtualClock()

    loop = Loop()
    hooks = hooks_of(loop)
    loop.close()

    assert Hooks(clock=Loop.clock) == hooks


def test_a_loop_is_asked_once_for_each_manager():
    """Each manager reads its loop once, however many executors, tasks and retries it has."""
    asked: list[str] = []

    class Loop(SimulationLoop):
        def __getattribute__(self, name: str):
            if name in ("has_threads", "bucket_ns_max", "coroutines_type", "make_waker"):
                asked.append(name)
            return super().__getattribute__(name)

    async def main() -> None:
        async with ExecutorManager() as manager:
            executors = [manager.executor(str(number)) for number in range(3)]
            await asyncio.gather(*(executor.submit(asyncio.sleep, 1) for executor in executors))

    loop = Loop()
    loop.run_until_complete(main())
    loop.close()

    assert 4 == len(set(asked))
    assert len(asked) == 2 * len(set(asked))  # whether it is there, and what it is


async def test_jitter_is_drawn_from_the_loop(virtual_loop):
    """Jitter uses the loop's random numbers, so that runs can be repeated, or else others in each run."""
    async with RateLimitedExecutor("x") as executor:
        assert executor._parts.retries._numbers is virtual_loop.random
    parts = dict.fromkeys(("engine", "overloaded", "on_key_end", "warn"))
    moments = SimpleNamespace(monotonic=time.monotonic)
    retries = Retries(Retry(on=OSError), numbers=None, penalty_max=0, moments=moments, **parts)
    assert retries._pause(retries.policy, 1, OSError(), None, "x") is not None
    assert isinstance(retries._numbers, random.Random)


@pytest.mark.parametrize("path", ASKERS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nobody_else_asks_a_loop_for_what_asyncio_does_not_know(path):
    """No other module reads attributes of an event loop by ``getattr``, which no checker would verify."""
    found = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("getattr", "hasattr")
        and "loop" in ast.unparse(node.args[0])
        and path.name != "hooks.py"
    ]

    assert [] == found
