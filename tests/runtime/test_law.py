"""Starts never exceed the rate: the law of ``Paced`` over random histories, and the exact law in every window."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor import ExecutorManager, Paced, Pacing, Rate, RateLimitedExecutor, Window
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import audit, run_virtual, worst_window

from ..helpers import examples

RATES = st.one_of(
    st.sampled_from([0, 1, 7, 10, 100, 1000, float("inf")]),
    st.fractions(min_value=0, max_value=300, max_denominator=50),
)


@given(
    rate=RATES,
    strictness=st.sampled_from(Strictness),
    slack=st.sampled_from([0, 0.001, 0.02, 0.5]),
    pacing=st.sampled_from(Pacing),
    interval=st.sampled_from([0.05, 1.0, 3.0]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("rate"), RATES),
            st.tuples(st.just("block"), st.sampled_from([0.003, 0.021, 0.3, 2.0])),
            st.tuples(st.just("step"), st.sampled_from([-3600, 3600, 0.4])),
            st.tuples(st.just("burst"), st.integers(1, 40)),
            st.tuples(st.just("later"), st.integers(1, 40)),
            st.tuples(st.just("wall"), st.integers(1, 10)),
            st.tuples(st.just("batch"), st.integers(1, 60)),
            st.tuples(st.just("pause"), st.booleans()),
            st.tuples(st.just("sleep"), st.floats(0.001, 3)),
        ),
        max_size=25,
    ),
)
@examples(200)
def test_starts_keep_the_law_whatever_happens(rate, strictness, slack, pacing, interval, steps):
    """Any window of ``per`` holds at most the rate's permits; else those of the window and slack, and one."""

    async def main():
        loop = asyncio.get_running_loop()
        starts = []

        def note(*_):
            starts.append(loop.time())

        async with ExecutorManager(interval=interval) as manager:
            executor = manager.executor("x", rate=rate, policy=Paced(slack, strictness), pacing=pacing, drain_timeout=0)
            history = [(0.0, Rate.of(rate))]
            for action, value in steps:
                if action == "rate":
                    executor.rate = value
                elif action == "pause":
                    executor.pause() if value else executor.resume()
                elif action == "block":
                    loop.block_for(value)
                elif action == "step":
                    loop.clock.step_wall(value)
                elif action == "burst":
                    for _ in range(value):
                        executor.submit(note)
                elif action == "later":
                    for index in range(value):
                        executor.schedule(note, delay=0.1 * index)
                        executor.call_later(0.05 * index, note)
                elif action == "wall":
                    for index in range(value):
                        executor.schedule(note, at=loop.clock.wall() + index)
                elif action == "batch":
                    executor.schedule_many(note, range(value), over=1.5)
                else:
                    await asyncio.sleep(value)
                if action in ("rate", "pause"):
                    history.append((loop.time(), Rate.of(0) if executor.is_paused else executor.rate))
                    await asyncio.sleep(1e-6)
            await asyncio.sleep(2)
        return starts, history

    starts, history = run_virtual(main())
    report = audit(starts, history, slack=None if strictness is Strictness.EXACT else slack)
    assert report.ok, str(report)


@pytest.mark.real_time("the law must hold with a real clock, real timers and a loop that is really late")
@pytest.mark.parametrize("rate", [200, 1000, Rate(100, per=0.3)])
async def test_starts_keep_the_law_on_a_real_clock(rate):
    """On a real clock starts keep the law exactly on the scale of ``started_at``, with no tolerance for speed."""
    starts = []
    changes = []
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", rate=rate, drain_timeout=0) as executor:
        engine = executor._engine
        changes.append((engine.monotonic(), Rate.of(rate)))

        def hog():
            time.sleep(0.05)

        handles = [executor.submit(int) for _ in range(100)]
        for index in range(100):
            handles.append(executor.schedule(int, delay=index / 400))
        loop.call_later(0.1, hog)
        loop.call_later(0.27, hog)
        await asyncio.sleep(0.3)
        changes.append((engine.monotonic(), Rate(50)))
        executor.rate = 50
        after = engine.monotonic()
        await asyncio.sleep(0.2)
        starts = [handle._started for handle in handles if handle._started is not None]
        before = changes[1][0]
        assert not [start for start in starts if before < start < after]
    assert len(starts) > 20
    # The change was between two readings of the clock: the law must hold with it at the later one, at the higher rate.
    report = audit(starts, [changes[0], (after, Rate(50))])
    assert report.ok, str(report)


@given(st.integers(1, 400), st.integers(1, 3000))
@examples(40)
def test_overload_reaches_the_rate(rate, count):
    """With more tasks than permits on a free loop, all but half a percent of the permits, and one, are used."""

    async def main():
        async with RateLimitedExecutor("x", rate=rate, drain_timeout=0) as executor:
            executor.schedule_many(int, range(count))
            for index in range(200):
                executor.call_later(index / 50, int)
            await asyncio.sleep(5)
            return executor.statistics().started

    assert run_virtual(main()) >= min(count + 200, int(5 * rate * 0.995)) - 1


# Seen from the first lines of tasks: blocked loops, waiters, threads, keys, changed rates.


SHORT = Rate(1, per=0.05)  # a window as long as the blocks, so that what begins late matters


def blocked(how: str, *, policy=None, rate=SHORT) -> list[float]:
    """Return the times of the first lines of 100 tasks on a loop that another callback holds in every turn."""

    async def main():
        loop = asyncio.get_running_loop()
        starts: list[float] = []

        async def coroutine():
            starts.append(loop.time())

        async def waiter(executor):
            async with executor.permit():
                starts.append(loop.time())

        async with RateLimitedExecutor("x", rate=rate, policy=policy or Paced()) as executor:
            waiters = []
            for _ in range(100):
                if how == "function":
                    executor.submit(lambda: starts.append(loop.time()))
                elif how == "coroutine":
                    executor.submit(coroutine)
                else:
                    waiters.append(asyncio.ensure_future(waiter(executor)))

            def hold(turn: int) -> None:
                if len(starts) < 100:
                    loop.call_soon(hold, turn + 1)
                    loop.block_for((0.004, 0.011, 0.04, 0.003, 0.3, 0.001, 0.002)[turn % 7])

            hold(0)
            await asyncio.gather(*waiters)
        return starts

    return run_virtual(main())


@pytest.mark.parametrize("policy", [Paced(), Window()])
@pytest.mark.parametrize("how", ["function", "coroutine", "waiter"])
def test_first_lines_keep_the_window_on_a_blocked_loop(how, policy):
    """A start decided before a block and taking effect after it counts from when it takes effect."""
    starts = blocked(how, policy=policy)
    assert len(starts) == 100
    assert audit(starts, SHORT).ok


@pytest.mark.parametrize("strictness", Strictness)
def test_what_the_slack_forgives_is_paid_back_under_the_exact_law_alone(strictness):
    """Two permits at once after a pause exceed the second's rate: the nominal law allows it, the exact one does not."""

    async def main():
        loop, starts = asyncio.get_running_loop(), []
        async with RateLimitedExecutor("x", rate=100, policy=Paced(strictness=strictness)) as executor:
            await asyncio.sleep(2.014)
            await executor.schedule_many(lambda _: starts.append(loop.time()), range(300))
        return starts

    starts = run_virtual(main())
    assert audit(starts, 100, slack=0.02).ok
    assert audit(starts, 100).ok is (strictness is Strictness.EXACT)


@pytest.mark.parametrize("rate", [100, "5/min", Rate(2.5), Rate(1, per=0.01), "100/s, 120/2s"])
def test_a_backlog_starts_at_the_whole_rate_and_never_above_it(rate):
    """A backlog uses every permit if nothing is late, and no window holds one too many."""

    async def main():
        loop, starts = asyncio.get_running_loop(), []
        async with RateLimitedExecutor("x", rate=rate) as executor:
            begin = loop.time()
            await executor.schedule_many(lambda _: starts.append(loop.time() - begin), range(60))
            return starts, executor.rate

    starts, first = run_virtual(main())
    assert audit(starts, first).ok
    if "," not in str(rate):
        assert starts[-1] <= 60 / float(first)


def test_after_a_pause_there_is_no_more_than_the_rate_in_any_second():
    """Idle time is worth one start, and the second that follows holds one less for it."""

    async def main():
        loop, starts = asyncio.get_running_loop(), []
        async with RateLimitedExecutor("x", rate=10) as executor:
            for _ in range(20):
                for _ in range(7):
                    executor.submit(lambda: starts.append(loop.time()))
                await asyncio.sleep(0.73)
        return starts

    starts = run_virtual(main())
    assert worst_window(starts, width=1.0)[0] == 10
    assert min(after - before for before, after in zip(starts, starts[1:], strict=False)) > 0.0999


def test_a_lowered_rate_counts_what_has_started():
    """After a change from 100 to 10 a second nothing starts until the last second holds fewer than ten."""

    async def main():
        loop, starts = asyncio.get_running_loop(), []
        async with RateLimitedExecutor("x", rate=100) as executor:
            executor.schedule_many(lambda _: starts.append(loop.time()), range(120))
            await asyncio.sleep(1)
            executor.rate = 10
            changed = loop.time()
        return starts, changed

    starts, changed = run_virtual(main())
    after = [start for start in starts if start > changed]
    assert after[0] - changed > 0.88
    assert audit(starts, [(0, 100), (changed, 10)]).ok


@pytest.mark.parametrize("how", ["function", "coroutine"])
def test_each_key_keeps_its_own_window(how):
    """A key of 3 a second starts 3 in any second, beside others and with bursts of its own."""

    async def main():
        loop = asyncio.get_running_loop()
        starts: dict[str, list[float]] = {"a": [], "b": []}

        def function(key):
            starts[key].append(loop.time())

        async def coroutine(key):
            starts[key].append(loop.time())

        call = function if how == "function" else coroutine
        async with RateLimitedExecutor("x", rate=7, key_rate="3/s") as executor:
            for index in range(40):
                executor.submit(call, "ab"[index % 2], key="ab"[index % 2])
                if index % 8 == 0:
                    await asyncio.sleep(0.9)
                if index % 11 == 0:
                    loop.block_for(0.45)
        return starts

    for times in run_virtual(main()).values():
        assert len(times) == 20
        assert audit(times, "3/s").ok


def test_static_peers_keep_the_window_together():
    """Three peers that block at different times never start more than the rate together."""

    async def main():
        loop, starts = asyncio.get_running_loop(), []
        managers = [ExecutorManager(peers=StaticPeers(3, rank)) for rank in range(3)]
        executors = []
        for manager in managers:
            await manager.start()
            executors.append(manager.executor("x", rate=30, drain_timeout=0))
        for index in range(200):
            executors[index % 3].schedule_many(lambda _: starts.append(loop.time()), range(3))
            if index % 7 == 0:
                loop.block_for((0.004, 0.03, 0.5)[index % 3])
            await asyncio.sleep(0.1)
        for manager in managers:
            await manager.aclose()
        return starts

    starts = run_virtual(main())
    assert len(starts) > 500
    assert audit(starts, 30).ok


@pytest.mark.real_time("threads take real time: 0.6 s, and 3.6 where calls count for as long as they last")
async def test_calls_in_threads_do_not_count_for_as_long_as_they_last():
    """Calls in threads count only by their beginning, or long calls would lower the rate."""
    async with RateLimitedExecutor("x", rate=Rate(5, per=0.2), pacing=Pacing.ON_TIME) as executor:
        for _ in range(16):
            executor.submit(time.sleep, 1, in_thread=True)
        begin = time.monotonic()
        while executor.statistics().waiting:
            await asyncio.sleep(0.01)
        assert time.monotonic() - begin < 2.5


@pytest.mark.parametrize("value", ["exact", 1, None, True])
def test_strictness_that_is_none_is_refused(value):
    """An invalid strictness is refused by name, with the valid values."""
    with pytest.raises(TypeError, match=r"strictness must be Strictness\.EXACT or Strictness\.NOMINAL, got"):
        Paced(strictness=value)
