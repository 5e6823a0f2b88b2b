"""Exits of the program raised by a signal handler between two lines of ours, in a loop that continues afterwards."""

import asyncio
import inspect
import itertools
import sys

from ratelimited_executor import ExecutorManager
from ratelimited_executor._runtime.time.runner import Runner
from ratelimited_executor.testing import VirtualEventLoop


class Interrupted(KeyboardInterrupt):
    """Raised by the signal handler."""


def lines_of_wake_up() -> set[tuple[str, int]]:
    """Return the lines at which an interrupt can be undone: all with lines of the runner after them."""
    source, first = inspect.getsourcelines(Runner._on_timer)
    begin = next(i for i, line in enumerate(source) if line.strip() == "try:")
    end = next(i for i, line in enumerate(source) if line.strip().startswith(("except", "finally")))
    run, first_of_run = inspect.getsourcelines(Runner._run)
    return {("_on_timer", first + i) for i in range(begin + 1, end)} | {
        ("_run", first_of_run + i) for i in range(len(run))
    }


def run_interrupted(number: int) -> tuple[list[tuple[str, int]], bool]:
    """Run a program, interrupted at a line of its runner; return the calls that ran, and True if it was reached."""
    loop = VirtualEventLoop()
    ran: list[tuple[str, int]] = []
    places = lines_of_wake_up()
    reached = itertools.count()
    was_interrupted = False

    def trace(frame, event, argument):
        nonlocal was_interrupted
        if not frame.f_code.co_filename.endswith("runner.py"):
            return None
        if event == "line" and (frame.f_code.co_name, frame.f_lineno) in places and next(reached) == number:
            was_interrupted = True
            raise Interrupted
        return trace

    async def main():
        async with ExecutorManager() as manager:
            executors = [manager.executor(name, rate=10) for name in "ab"]
            for second, executor in itertools.product(range(3), executors[:1] * 2 + executors[1:]):
                executor.schedule(ran.append, (executor.name, second), delay=second + (executor.name == "b") * 0.5)
            for executor in executors:
                executor.schedule(ran.append, (executor.name, 9), delay=9)
            await asyncio.sleep(10)

    task = loop.create_task(main())
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        while not task.done():
            try:
                loop.run_until_complete(task)
            except Interrupted:
                sys.settrace(None)
    finally:
        sys.settrace(before)
        loop.close()
    return ran, was_interrupted


def test_interrupt_at_any_line_of_a_wake_up_stops_no_executor():
    """After an interrupt at any line of the runner every executor continues, and each task runs once."""
    whole, _ = run_interrupted(-1)
    assert 11 == len(whole)
    for number in itertools.count():
        ran, was_interrupted = run_interrupted(number)
        if not was_interrupted:
            break
        assert sorted(whole) == sorted(ran), number
    assert number > 100
