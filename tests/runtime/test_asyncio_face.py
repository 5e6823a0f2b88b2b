"""The asyncio face: a drop-in for the loop's own timers."""

import asyncio
import inspect
import random
import threading
import time

import pytest

from ratelimited_executor import RateLimitedExecutor


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("name", ["call_later", "call_at", "call_soon", "call_soon_threadsafe"])
def test_signatures_are_those_of_the_loop(name):
    """Positional arguments and ``context=`` as in asyncio."""
    ours = list(inspect.signature(getattr(RateLimitedExecutor, name)).parameters.values())
    theirs = list(inspect.signature(getattr(asyncio.AbstractEventLoop, name)).parameters.values())
    kept = [parameter for parameter in theirs if parameter.name != "context"]
    assert [(p.name, p.kind) for p in kept] == [(p.name, p.kind) for p in ours if p.name != "context"]
    assert inspect.Parameter.KEYWORD_ONLY is next(p.kind for p in ours if p.name == "context")


async def test_timers_fire_when_the_loops_own_do(virtual_clock):
    """Of random timers, equal ones among them, each fires at the same instant as asyncio's; equal ones by arrival."""
    generator = random.Random(7)
    delays = [generator.choice([0, 0.5, 0.5, 1, generator.random() * 3, -1]) for _ in range(300)]
    ours, theirs = [], []
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        for index, delay in enumerate(delays):
            executor.call_later(delay, lambda i=index: ours.append((now(), i)))
            loop.call_later(delay, lambda i=index: theirs.append((now(), i)))
        await asyncio.sleep(4)
    assert sorted(theirs) == sorted(ours)
    late = [index for index in range(300) if delays[index] > 0]
    assert sorted(late, key=delays.__getitem__) == [index for _, index in ours if delays[index] > 0]


async def test_equal_due_times_fire_in_the_order_of_the_calls(virtual_clock):
    """Also across intervals, and with others in between."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        for index in range(2000):
            executor.call_at(2.5, log.append, index)
            executor.call_at(2.4 + index % 2 / 5, int)
    assert [*range(2000)] == log


async def test_face_is_never_spread(virtual_clock):
    """Ten callbacks of one instant fire at that instant."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        for _ in range(10):
            executor.call_later(5.0, lambda: log.append(now()))
    assert [5.0] * 10 == log


async def test_rate_of_the_executor_holds_on_this_face(virtual_clock):
    """With a rate, callbacks wait for permits."""
    log = []
    async with RateLimitedExecutor("x", rate=2) as executor:
        for _ in range(3):
            executor.call_later(5.0, lambda: log.append(now()))
    assert [5.0, 5.5, 6.0] == log


async def test_handle_has_the_methods_of_a_timer_handle(virtual_clock):
    """``cancel``, ``cancelled`` and ``when``; cancelling twice or late does nothing."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(1)
        handle = executor.call_later(2.5, log.append, "no")
        other = executor.call_at(4.0, log.append, "yes")
        assert (3.5, 4.0) == (handle.when(), other.when())
        assert not handle.cancelled()
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
        await asyncio.sleep(5)
        other.cancel()
        soon = executor.call_soon(log.append, "soon")
        assert 6 == soon.when()
    assert ["yes", "soon"] == log
    assert (1, 2) == (executor.statistics().cancelled, executor.statistics().done)


async def test_handles_may_be_dropped_or_kept(virtual_clock, account):
    """Cancelling any subset leaves exactly the others, whatever was compacted meanwhile."""
    generator = random.Random(3)
    fired = set()
    async with RateLimitedExecutor("x") as executor:
        handles = [
            executor.call_later(generator.choice([0.2, 3.3, 3.7, 60]), fired.add, index) for index in range(30_000)
        ]
        doomed = set(generator.sample(range(30_000), 27_000))
        for index in doomed:
            handles[index].cancel()
            if index % 5000 == 0:
                await asyncio.sleep(0)
        account(executor)
        await asyncio.sleep(1)
        for index in list(doomed)[:100]:
            handles[index].cancel()
        account(executor)
    assert set(range(30_000)) - doomed == fired


async def test_callbacks_of_call_soon_keep_their_order(virtual_clock):
    """As with the loop: first come, first served; a callback's own calls come later."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        executor.call_soon(lambda: executor.call_soon(log.append, "inner"))
        for index in range(3):
            executor.call_soon(log.append, index)
        assert [] == log
        await asyncio.sleep(0.1)
    assert [0, 1, 2, "inner"] == log


async def test_call_soon_threadsafe_comes_from_any_thread(virtual_clock):
    """Its handle cancels as long as the loop has not taken it up."""
    log = []
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        hold = loop.hold("the thread that calls")

        def work():
            with hold:
                for index in range(5):
                    executor.call_soon_threadsafe(log.append, (index, threading.get_ident()))

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.sleep(1)
        thread.join()
        executor.call_soon_threadsafe(log.append, "cancelled").cancel()
        await asyncio.sleep(1)
    assert [*range(5)] == [index for index, _ in log]


async def test_schedule_threadsafe_gives_a_future_of_the_thread(virtual_clock):
    """Result, exception, refusal and cancellation reach the other side."""
    async with RateLimitedExecutor("x") as executor:
        loop = asyncio.get_running_loop()

        def work():
            future = executor.schedule_threadsafe(lambda: 42, delay=2)
            got = [loop.result_in_thread(future)]
            for bad in (executor.schedule_threadsafe(lambda: 1 / 0), executor.schedule_threadsafe(int, delay=-1)):
                try:
                    loop.result_in_thread(bad)
                except Exception as error:
                    got.append(type(error))
            return got

        assert [42, ZeroDivisionError, ValueError] == await asyncio.to_thread(work)
        assert 2.0 == now()
        log = []
        future = executor.schedule_threadsafe(log.append, "never", delay=10)
        await asyncio.sleep(1)
        assert future.cancel()
        await asyncio.sleep(0)
        assert (0, 1) == (executor.statistics().waiting, executor.statistics().cancelled)
    assert [] == log


@pytest.mark.real_time("uvloop's own timers and clock, for a second; what is asked is exact, however slow the machine")
@pytest.mark.parametrize("options", [{}, {"rate": 2000}], ids=["unlimited", "limited"])
def test_nothing_is_early_by_the_clock_of_uvloop(options):
    """Which stands still during a turn of the loop, and counts whole milliseconds."""
    uvloop = pytest.importorskip("uvloop")
    generator, ahead = random.Random(1), []

    async def main():
        loop = asyncio.get_running_loop()
        async with RateLimitedExecutor("x", **options) as executor:
            for _ in range(1000):
                delay = generator.random()
                when = loop.time() + delay
                kept = executor.call_later(delay, lambda when=when: ahead.append(loop.time() - when))
                assert kept.when() >= when
                assert when == executor.call_at(when, lambda when=when: ahead.append(loop.time() - when)).when()
                if generator.random() < 0.01:
                    time.sleep(0.003)
                    await asyncio.sleep(0)
            await asyncio.sleep(1.1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert 2000 == len(ahead)
    assert min(ahead) >= 0
