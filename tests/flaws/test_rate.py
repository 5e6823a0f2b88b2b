"""The rate, in every window and for every number of permits (F25, F27, F28, F29)."""

import asyncio
from fractions import Fraction

import pytest

from ratelimited_executor import ExecutorManager, Rate, RateLimitedExecutor
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor.orders import earliest_due_first
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.testing import worst_window

NS = 1_000_000_000


@pytest.mark.parametrize(("peers", "rate"), [(2, "1/s"), (5, "2/s"), (3, "100/s"), (4, "17/s"), (7, "3/min")])
async def test_peers_do_not_start_in_phase(virtual_clock, starts, audit, peers, rate) -> None:
    """F25: all peers rounded alike: 5 peers that shared 2/s sent 5 in one second, then none."""
    length = 20 / float(Rate.of(rate)) * 2
    managers = [ExecutorManager(peers=StaticPeers(peers, rank)) for rank in range(peers)]
    for number, manager in enumerate(managers):
        await manager.start()
        executor = manager.executor("shared", rate=rate)
        executor.schedule_many(starts, [number] * 100)
    await asyncio.sleep(length)
    for manager in managers:
        for executor in manager.executors.values():
            executor.shutdown(cancel_pending=True)
        await manager.aclose()

    guard = min(0.02 / float(Rate.of(rate).per), 0.01)  # a start may be this late, which other peers cannot see
    gap = (1 + guard) / float(Rate.of(rate))
    gaps = [after - before for before, after in zip(starts.times[1:], starts.times[2:], strict=False)]
    assert audit(starts.times, rate).ok
    assert [pytest.approx(gap, rel=1e-3)] * len(gaps) == gaps
    assert len(starts.times) >= 39
    assert set(range(peers)) == set(starts.names[:peers]), "the starts of the peers must interleave"


@pytest.mark.parametrize("stall", [0.05, 0.5, 2, 30])
async def test_stall_does_not_break_the_limit(virtual_clock, starts, audit, stall) -> None:
    """F27: after a stall, what was late was sent back to back, beside the tasks of the intervals that followed."""
    async with RateLimitedExecutor("one", rate=100) as executor:
        for number in range(600):
            executor.schedule(starts, delay=number / 100)
        asyncio.get_running_loop().call_later(1.234, virtual_clock.block, stall)

    assert 600 == len(starts.times)
    assert audit(starts.times, 100).ok
    assert worst_window(starts.times, width=0.1)[0] <= 13


async def test_slow_tasks_do_not_turn_the_rate_into_bursts(virtual_clock, starts, audit) -> None:
    """F27: the limit was on the hand-off, so that a slow worker pool collected tasks and then started many at once."""

    async def work() -> None:
        starts()
        await asyncio.sleep(1.7)

    async with RateLimitedExecutor("one", rate=20, max_concurrency=10) as executor:
        executor.schedule_many(lambda _: work(), range(100))

    assert 100 == len(starts.times)
    assert audit(starts.times, 20).ok


@pytest.mark.parametrize(
    "rate",
    [Rate(5001), Rate(1_000_003), Rate(17, per=Fraction(1, 100)), Rate(1, per=3), Rate(0.1), Rate(7, per=86_400)],
)
def test_permits_far_from_the_epoch_are_not_miscounted(rate) -> None:
    """F28: doubles on absolute interval numbers passed 2**53, and gave an interval a slot too many or too few."""
    century = 100 * 365 * 86_400 * NS
    for begin in (0, 1_704_067_200 * NS, century, 100 * century):
        span = 10 * 365 * 86_400 * NS
        grid = PermitGrid(rate, slack_ns=0, now_ns=begin)
        ratio = rate.per_second
        owned = -(-(begin + span) * ratio // NS) - -(-begin * ratio // NS)
        assert abs(grid.count_until(begin, begin + span) - owned) <= 1
        # Each permit comes up in its own nanosecond, and not earlier.
        for count in (1, 2, 1000):
            when = grid.time_after(begin, count + 1)
            piece = grid._pieces[-1]
            assert piece.floor(when) == piece.floor(when - 1) + 1 == -(-when * ratio // NS) - (when * ratio % NS != 0)


def test_permits_of_adjacent_intervals_are_not_shared_or_dropped() -> None:
    """F28: the sum over the intervals has to be the number of permits, whatever the rate and the width."""
    begin = 1_704_067_200 * NS
    for rate in (Rate(17), Rate(5000.5), Rate(1, per=7), Rate(99_999.9)):
        for width in (10_000_000, NS, 3 * NS, 2_147_483_649):
            borders = [begin + number * width for number in range(200)]
            grid = PermitGrid(rate, slack_ns=0, now_ns=begin - 1)
            piece = grid._pieces[-1]
            counts = [piece.ceil(end) - piece.ceil(start) for start, end in zip(borders, borders[1:], strict=False)]
            assert piece.ceil(borders[-1]) - piece.ceil(begin) == sum(counts)
            assert max(counts) - min(counts) <= 1


async def test_high_rate_is_not_coarse(virtual_clock, starts, audit) -> None:
    """F28: at very high rates the steps of the floating point product were whole groups of slots."""
    async with ExecutorManager(interval=0.1) as manager:
        executor = manager.executor("one", rate=50_000)
        await executor.schedule_many(starts, range(5000), delay=0.1)

    assert audit(starts.times, 50_000).ok
    assert worst_window(starts.times, width=0.01)[0] <= 500 + 1000 + 1


async def test_submission_does_not_pass_by_the_order(virtual_clock, starts) -> None:
    """F29: what was submitted into a running interval took its remaining slots, whatever the sorter said."""
    async with RateLimitedExecutor("one", rate=10) as executor:
        for number in range(15):
            executor.schedule(starts, f"important {number}", delay=1 + number / 1000, priority=5)
        await asyncio.sleep(1.32)
        for number in range(5):
            executor.submit(starts, f"trifle {number}", priority=-1)
            executor.submit(starts, f"urgent {number}", priority=9)
        await asyncio.sleep(5)

    kinds = [name.split()[0] for name in starts.names]
    first_urgent = kinds.index("urgent")
    assert first_urgent in (3, 4, 5)
    assert ["important"] * first_urgent == kinds[:first_urgent]
    assert ["urgent"] * 5 == kinds[first_urgent : first_urgent + 5]
    assert ["trifle"] * 5 == kinds[-5:]


async def test_higher_rate_does_not_let_the_new_overtake_the_old(virtual_clock, starts) -> None:
    """F29: slots won by a higher rate went to new submissions, past the older tasks of the overflow."""
    async with RateLimitedExecutor("one", rate=1) as executor:
        for number in range(20):
            executor.submit(starts, number)
        await asyncio.sleep(2.5)
        executor.rate = 100
        for number in range(20, 40):
            executor.submit(starts, number)
        await asyncio.sleep(2)

    assert list(range(40)) == starts.names
    assert starts.times[-1] <= 2.5 + 0.4


async def test_order_by_due_time_does_not_prefer_the_immediate(virtual_clock, starts) -> None:
    """F29 and F30: with an order by due time, an immediate task goes behind what was due before it."""
    async with RateLimitedExecutor("one", rate=5, order=earliest_due_first) as executor:
        for number in range(10):
            executor.schedule(starts, number, delay=0.1 + number / 1000)
        await asyncio.sleep(0.5)
        for number in range(10, 15):
            executor.submit(starts, number)
        await asyncio.sleep(5)

    assert list(range(15)) == starts.names
