"""The same seed gives the same trace: in every run, and on every supported version of Python."""

import asyncio
import os
import subprocess
import sys
import textwrap
from typing import cast

import pytest

from ratelimited_executor.testing import VirtualEventLoop, run_virtual


def _loop() -> VirtualEventLoop:
    return cast("VirtualEventLoop", asyncio.get_running_loop())


class Program:
    """A mixed program that writes down what happens, and when."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, text: str) -> None:
        """Note an event with both clocks and the task in which it happens."""
        loop, task = _loop(), asyncio.current_task()
        name = task.get_name() if task is not None else "-"
        self.lines.append(f"{loop.time():9.6f} {loop.clock.wall():9.3f} {name:8} {text}")

    async def producer(self, queue: asyncio.Queue[int | None]) -> None:
        for number in range(4):
            await asyncio.sleep(_loop().random.uniform(0.1, 0.9))
            await queue.put(number)
        await queue.put(None)

    async def consumer(self, queue: asyncio.Queue[int | None]) -> None:
        while (number := await queue.get()) is not None:
            self.tell(f"got {number}")
            if number == 2:
                _loop().block_for(0.25)

    async def cancelled(self, delay: float) -> None:
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.tell("cancelled")
            raise

    async def failing(self) -> None:
        await asyncio.sleep(1)
        self.tell("fails")
        raise ValueError("on purpose")

    async def main(self) -> None:
        loop = _loop()
        queue: asyncio.Queue[int | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.consumer(queue))
            group.create_task(self.producer(queue))
            loop.call_later(0.5, lambda: self.tell("timer"))
            loop.call_later(0.75, loop.clock.step_wall, -3600)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for delay in (5, 4, 3, 2):
                    group.create_task(self.cancelled(delay))
                group.create_task(self.failing())
        self.tell(f"thread says {await asyncio.to_thread(sum, [1, 2, 3])}")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(1)
        self.tell("timed out")
        loop.create_task(self.cancelled(1e6), name="leftover")
        await asyncio.sleep(0)


def _trace(seed: int) -> str:
    program = Program()
    run_virtual(program.main(), seed=seed, start_wall=10_000)
    return "\n".join(program.lines)


EXPECTED = """\
 0.359066 10000.359 Task-2   got 0
 0.500000 10000.500 -        timer
 0.579746 10000.580 Task-2   got 1
 1.200493  6401.200 Task-2   got 2
 1.450493  6401.450 Task-2   got 3
 2.450493  6402.450 Task-8   fails
 2.450493  6402.450 Task-4   cancelled
 2.450493  6402.450 Task-5   cancelled
 2.450493  6402.450 Task-6   cancelled
 2.450493  6402.450 Task-7   cancelled
 2.450493  6402.450 Task-1   thread says 6
 2.451493  6402.451 Task-1   timed out
 2.451493  6402.451 leftover cancelled
"""


def test_trace_of_a_mixed_program_is_the_same_text_everywhere() -> None:
    """Queue, timers, blocking, task groups, a thread, timeouts and clean-up happen in this order, at these times."""
    assert EXPECTED.rstrip("\n") == _trace(seed=7)


def test_trace_depends_on_the_seed_alone() -> None:
    """The same seed repeats its trace, and another one has another trace."""
    assert _trace(seed=1) == _trace(seed=1)
    assert _trace(seed=1) != _trace(seed=2)


def test_random_is_seeded_and_not_the_global_generator() -> None:
    """``loop.random`` starts from the seed, 0 unless told otherwise, on every version."""

    async def main() -> list[int]:
        return [_loop().random.randrange(1000) for _ in range(5)]

    assert [864, 394, 776, 911, 430] == run_virtual(main())
    assert run_virtual(main(), seed=3) == run_virtual(main(), seed=3)


def test_tasks_are_numbered_from_one_in_each_run() -> None:
    """Names of tasks do not depend on what ran in the process before, and given names are kept."""

    async def main() -> list[str]:
        tasks = [asyncio.create_task(asyncio.sleep(0), name=name) for name in (None, "mine", None)]
        await asyncio.gather(*tasks)
        return [task.get_name() for task in tasks]

    assert ["Task-2", "mine", "Task-4"] == run_virtual(main())
    assert ["Task-2", "mine", "Task-4"] == run_virtual(main())


def test_sets_of_tasks_keep_the_order_of_creation() -> None:
    """A set of tasks is iterated in the same order in every run, so that cancelling them is repeatable."""

    async def main() -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(1)) for _ in range(50)}
        names = [task.get_name() for task in tasks]
        await asyncio.wait(tasks)
        return names

    assert [f"Task-{number}" for number in range(2, 52)] == run_virtual(main())


def test_a_task_factory_of_ones_own_is_respected() -> None:
    """A task factory that the program sets is used instead of the one that numbers tasks."""
    made: list[str] = []

    def factory(loop, coroutine, **options):  # type: ignore[no-untyped-def]  # asyncio's protocol
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def main() -> str:
        _loop().set_task_factory(factory)
        task = asyncio.create_task(asyncio.sleep(1, "slept"), name="named")
        assert "named" == task.get_name()
        return await task

    assert "slept" == run_virtual(main())
    assert "sleep" == made[0]


@pytest.mark.parametrize("surroundings", [{"PYTHONHASHSEED": "1"}, {"TZ": "Asia/Kolkata", "LC_ALL": "de_DE.UTF-8"}])
def test_trace_is_the_same_in_a_process_of_its_own(surroundings: dict[str, str]) -> None:
    """The trace depends neither on the seed of hashes, nor on time zone and locale, nor on memory addresses."""
    code = f"""
        import importlib.util
        specification = importlib.util.spec_from_file_location("determinism", {__file__!r})
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        print(module._trace(seed=7))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=True,
    )

    assert EXPECTED.rstrip("\n") == run.stdout.rstrip("\n")
