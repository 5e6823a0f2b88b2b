"""Interruptions in the middle of an operation: signal handlers that raise, and forks."""

import asyncio
import itertools
import multiprocessing
import os
import subprocess
import sys
import warnings

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._kernel.buckets import Bucket
from ratelimited_executor.testing import VirtualEventLoop

ADDERS = {
    "call_later": lambda executor, *call: executor.call_later(1.5, *call),
    "call_later in this interval": lambda executor, *call: executor.call_later(0.1, *call),
    "call_soon": lambda executor, *call: executor.call_soon(*call),
    "schedule": lambda executor, *call: executor.schedule(*call, delay=1.5),
    "schedule in this interval": lambda executor, *call: executor.schedule(*call, delay=0.1),
    "submit": lambda executor, *call: executor.submit(*call),
}


class Interrupted(BaseException):
    """Raised by the signal handler."""


def interrupt_addition(add, before: int, number: int) -> tuple[list[int], bool]:
    """Interrupt an addition at a line, after others; return the calls that ran, and True if the line was reached."""
    loop = VirtualEventLoop()
    ran: list[int] = []
    reached = itertools.count()
    was_interrupted = False

    def trace(frame, event, argument):
        nonlocal was_interrupted
        if not frame.f_code.co_filename.endswith(("buckets.py", "loop.py")) or frame.f_code.co_name == "trim":
            return None
        if event == "line" and not was_interrupted and next(reached) == number:
            was_interrupted = True
            raise Interrupted
        return trace

    async def main():
        async with RateLimitedExecutor("x") as executor:
            for each in range(before):
                add(executor, ran.append, each)
            traced = sys.gettrace()
            sys.settrace(trace)
            try:
                add(executor, ran.append, -1)
            except Interrupted:
                pass
            finally:
                sys.settrace(traced)
            for each in range(before, 40):
                add(executor, ran.append, each)
            for bucket in executor._engine.queue.on_time.buckets():
                assert len(bucket.dues) == len(bucket.calls) == len(bucket.args)
            await asyncio.sleep(3)

    loop.run_until_complete(main())
    loop.close()
    return ran, was_interrupted


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("add", ADDERS.values(), ids=ADDERS)
def test_interrupted_addition_leaves_the_others_as_they_are(add, before):
    """After an interrupt at any line of the columns the other tasks run once, in order, with their own arguments."""
    for number in itertools.count():
        ran, was_interrupted = interrupt_addition(add, before, number)
        assert list(range(40)) == [each for each in ran if each >= 0], number
        assert ran.count(-1) <= 1
        if not was_interrupted:
            break


def fork_while_running() -> None:
    """Fork with an executor that has work: both processes continue, the child also with an executor of its own."""
    warnings.simplefilter("ignore")  # a fork with tasks about is worth a warning
    ran: list[int] = []

    async def work(count: int) -> int:
        async with RateLimitedExecutor("y") as executor:
            handles = [executor.submit(lambda number: number, number) for number in range(count)]
            return sum([await handle for handle in handles])

    async def main() -> int:
        executor = RateLimitedExecutor("x", drain_timeout=0)
        await executor.start()
        handles = [executor.schedule(ran.append, number, delay=0.01 + number % 2 * 0.1) for number in range(200)]
        calls = [executor.call_later(0.01, ran.append, number) for number in range(200, 400)]
        handles[0].cancel()
        calls[0].cancel()
        process = os.fork()
        if not process:
            for handle in [
                *handles[1::2],
                *calls[1::2],
            ]:  # what was inherited can be changed, and the parent sees nothing of it
                handle.cancel()
            assert executor.statistics().waiting < 250
            return 0
        await asyncio.gather(*handles[1:])
        assert sorted(ran) == [*range(1, 200), *range(201, 400)]
        await executor.aclose()
        return process

    process = asyncio.run(main())
    if not process:
        assert 4950 == asyncio.run(work(100))
        os._exit(0)
    assert 4950 == asyncio.run(work(100))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(work(100)))
    child.start()
    child.join()
    assert 0 == child.exitcode


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
def test_fork_with_work():
    """Both processes continue with their tasks after a fork; run in a new process, to copy nothing of the tests."""
    program = f"import runpy; runpy.run_path({__file__!r})['fork_while_running']()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]


class Interrupting:
    """Arguments whose truth test raises, as a signal handler would."""

    def __bool__(self) -> bool:
        raise Interrupted


def test_columns_are_of_one_length_after_an_interrupt():
    """A half-appended task is removed from the columns."""
    bucket = Bucket(None)
    bucket.add(1.0, int, (1,))
    for context in (None, object()):
        with pytest.raises(Interrupted):
            bucket.add(2.0, int, Interrupting(), context)
        assert 1 == len(bucket.dues) == len(bucket.calls) == len(bucket.args)
    assert [None] == bucket.contexts
    bucket.add(3.0, str, ("x",))
    assert (3.0, str, "x") == (bucket.dues[1], bucket.calls[1], bucket.args[1])
