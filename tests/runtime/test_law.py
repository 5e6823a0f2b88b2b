"""The law of ``Paced`` over random rates, stalls, clock steps and faces, by ``audit``."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor import ExecutorManager, Paced, Pacing, Rate, RateLimitedExecutor, Strictness
from ratelimited_executor.testing import audit, run_virtual

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
@settings(max_examples=200, deadline=None)
def test_starts_keep_the_law_whatever_happens(rate, strictness, slack, pacing, interval, steps):
    """In every window of ``per`` at most the permits of the rate; or those of the window, of ``slack`` before it, and one."""

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
    """Exact on ``started_at``'s scale, whatever the machine does: no tolerance for speed is needed."""
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
@settings(max_examples=40, deadline=None)
def test_overload_reaches_the_rate(rate, count):
    """With more tasks than permits and a free loop, the permits are used: all but half a percent, and one."""

    async def main():
        async with RateLimitedExecutor("x", rate=rate, drain_timeout=0) as executor:
            executor.schedule_many(int, range(count))
            for index in range(200):
                executor.call_later(index / 50, int)
            await asyncio.sleep(5)
            return executor.statistics().started

    assert run_virtual(main()) >= min(count + 200, int(5 * rate * 0.995)) - 1
