"""Every kind of limit over a group: several managers in virtual time, with starts counted over all of them."""

import asyncio
import math
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from ratelimited_executor import Burst, ExecutorManager, Paced, Rate, TaskState, Window
from ratelimited_executor._core.fleet.slot_peer import SlotPeer
from ratelimited_executor.insight import Hold, observe
from ratelimited_executor.orders import Fair
from ratelimited_executor.peers import Outage
from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.policies import Quota
from tests.peers.ticket_group import Server, most_in

pytestmark = pytest.mark.virtual_time

QUARANTINE = 2.7  # when the first tickets have come


class Group:
    """Processes with an executor of the same name; ``starts`` are (time, cost), and ``by`` counts them by process."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server()
        self.starts: list[tuple[float, int]] = []
        self.keys: list[tuple[str, float]] = []
        self.by: Counter[int] = Counter()
        self.executors = []
        self.managers = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Group":
        return self

    async def __aexit__(self, *_: object) -> None:
        for executor in self.executors:
            await executor.shutdown(cancel_pending=True)
        await self._stack.aclose()

    async def join(self, *, peers=None, **settings):
        """Start a process; return its executor."""
        number = len(self.executors)
        peers = self.server.peers(number, **(peers or {}))
        manager = await self._stack.enter_async_context(ExecutorManager(peers=peers))
        self.managers.append(manager)
        self.executors.append(manager.executor("x", **settings))
        return self.executors[-1]

    def load(self, count: int, *, cost: int = 1, keys: int = 0, **options) -> None:
        """Schedule ``count`` tasks in each process."""
        for number, executor in enumerate(self.executors):
            for each in range(count):
                key = f"k{each % keys}" if keys else None
                needs = 1 if cost == 1 else {"tokens": cost}
                executor.schedule(self.start, number, cost, key, key=key, cost=needs, **options)

    def start(self, number: int, cost: int, key: str | None) -> None:
        """Log a start."""
        time = asyncio.get_running_loop().time()
        self.starts.append((time, cost))
        self.by[number] += 1
        if key is not None:
            self.keys.append((key, time))

    def of_key(self, key: str) -> list[tuple[float, int]]:
        """Return the starts of one key."""
        return [(time, 1) for name, time in self.keys if name == key]


@pytest.mark.parametrize(
    ("settings", "bounds", "least"),
    [
        ({"rate": "20/s, 150/10s"}, {1: 20, 10: 150}, 280),
        ({"rate": "150/10s", "policy": Window()}, {10: 150}, 300),
        ({"rate": "20/s", "policy": Burst(30)}, {1: 50, 10: 230}, 400),
        ({"rate": [Rate(20), Quota(100, per="minute")]}, {1: 20}, 100),
        ({"rate": "0.5/s, 8/30s"}, {2: 1, 30: 8}, 8),
    ],
    ids=["rates", "window", "burst", "quota", "slow"],
)
async def test_limit_holds_over_the_group_and_is_used(settings, bounds, least) -> None:
    """Three busy processes start no more than the limits allow in any window, and use them."""
    async with Group() as group:
        for _ in range(3):
            await group.join(**settings)
        group.load(400)
        await asyncio.sleep(QUARANTINE + 20)
        for width, most in bounds.items():
            assert most_in(group.starts, width) <= most
        assert len(group.starts) >= least
        assert set(group.by) == {0, 1, 2}


async def test_task_due_now_starts_at_once_though_one_that_was_to_come_is_cancelled() -> None:
    """A task cancelled before its due time does not hide another one from the request for tickets."""
    async with Group() as group:
        executor = await group.join(rate=5)
        await asyncio.sleep(QUARANTINE)
        executor.schedule(print, delay=0.2).cancel()
        begin = asyncio.get_running_loop().time()
        executor.submit(group.start, 0, 1, None)
        await asyncio.sleep(5)
        assert [begin] == pytest.approx([time for time, _ in group.starts], abs=0.01)


async def test_quota_of_the_group_begins_anew_with_each_minute() -> None:
    """A quota starts anew with each calendar minute, none of which has more, and is used up."""
    async with Group() as group:
        for _ in range(2):
            await group.join(rate=[Rate(50), Quota(100, per="minute")])
        group.load(400)
        await asyncio.sleep(200)
        server = group.server
        epoch = server.now_us() / 1e6 - asyncio.get_running_loop().time()
        minutes = Counter(int((epoch + time) // 60) for time, _ in group.starts)
        assert set(minutes.values()) == {100}
        assert len(minutes) in (3, 4)


async def test_what_is_left_in_statistics_is_what_the_process_holds() -> None:
    """The limits of an executor of a group are one for each resource, of kind ``group``; an idle process holds nothing."""
    async with Group() as group:
        executor = await group.join(rate="20/s, 150/10s", resources={"tokens": "1000/min"}, policy=Window())
        await executor.submit(str, cost={"tokens": 100})
        statistics = executor.statistics()
        assert [("permits", "20/s, 150/10s", "group", 0), ("tokens", "1000/min", "group", 0)] == [
            (one.resource, one.limit, one.kind, one.left) for one in statistics.limits
        ]
        assert {("permits", 1), ("tokens", 100)} == {(one.resource, one.used) for one in statistics.fleet.limits}


async def test_resource_is_shared_with_all_its_costs() -> None:
    """The costs of a resource are counted over the group in each window, and every process gets some."""
    async with Group() as group:
        for _ in range(3):
            await group.join(rate="100/s", resources={"tokens": "1000/10s"}, policy=Window())
        for number, executor in enumerate(group.executors):
            for each in range(60):
                cost = 20 + 10 * (each % 4)
                executor.schedule(group.start, number, cost, None, cost={"tokens": cost})
        await asyncio.sleep(QUARANTINE + 30)
        assert most_in(group.starts, 10) <= 1000
        assert sum(cost for _, cost in group.starts) >= 2900
        assert set(group.by) == {0, 1, 2}


@pytest.mark.parametrize("settings", [{}, {"order": Fair()}, {"key_rate": "50/s"}, {"key_concurrency": 5}], ids=str)
async def test_what_was_spread_and_is_more_important_gets_the_tickets(settings) -> None:
    """A more important task gets tickets of its cost before cheaper ones that came later: else it would block all."""
    async with Group() as group:
        executor = await group.join(rate="3/s, 1000/min", **settings)
        for _ in range(5):
            executor.schedule(group.start, 0, 2, "k", key="k", delay=6, cost=2, priority=5)
        await asyncio.sleep(3.5)
        for _ in range(100):
            executor.schedule(group.start, 0, 1, "k", key="k", delay=2.6)
        for _ in range(20):
            executor.schedule(group.start, 0, 1, "k", key="k")
        await asyncio.sleep(22.5)
        assert 5 == [cost for _, cost in group.starts].count(2)
        assert 40 <= len(group.starts)


@pytest.mark.parametrize("settings", [{}, {"order": Fair()}, {"key_concurrency": 5}], ids=str)
async def test_ticket_that_is_too_small_for_the_first_task_does_not_count_for_it(settings) -> None:
    """A ticket is requested for a more important, more costly task although the process holds one for a cheaper task."""
    async with Group() as group:
        executor = await group.join(rate="20/s", **settings)
        for _ in range(20):
            executor.schedule(group.start, 0, 3, None, cost=3)
        await asyncio.sleep(QUARANTINE + 0.5)
        executor.schedule(group.start, 0, 4, None, cost=4, priority=1)
        await asyncio.sleep(0.5)
        assert 4 in [cost for _, cost in group.starts]
        await asyncio.sleep(4)
        assert len(group.starts) == 21


async def test_cost_that_is_settled_to_less_comes_back_to_the_group() -> None:
    """A cost reserved by one process and settled to less is soon available to another."""
    async with Group() as group:
        first = await group.join(rate="100/s", resources={"tokens": "1000/60s"}, policy=Window())
        second = await group.join(rate="100/s", resources={"tokens": "1000/60s"}, policy=Window())
        handle = first.schedule(group.start, 0, 1000, None, cost={"tokens": 1000})
        await asyncio.sleep(QUARANTINE)
        second.schedule(group.start, 1, 900, None, cost={"tokens": 900})
        await asyncio.sleep(2)
        assert len(group.starts) == 1
        handle.settle({"tokens": 100})
        await asyncio.sleep(3)
        assert len(group.starts) == 2


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("policy", [Window(), Burst(10), Paced()], ids=repr)
async def test_amount_of_zero_waits_for_a_deficit_of_the_group(policy, count) -> None:
    """While a resource of the group is in deficit, nothing starts that names it, even with an amount of 0."""
    async with Group() as group:
        for _ in range(count):
            await group.join(rate="100/s", resources={"tokens": "1000/10s"}, policy=policy)
        await asyncio.sleep(QUARANTINE + 1)
        first = group.executors[0].submit(group.start, 0, 0, None, cost={"tokens": 0})
        await first
        first.settle({"tokens": 3000})
        begin = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        handle = group.executors[-1].submit(group.start, 1, 0, None, cost={"tokens": 0})
        other = group.executors[-1].submit(group.start, 1, 0, None, priority=-1)
        await asyncio.sleep(3)
        explanation = group.executors[-1].explain(handle)
        assert explanation.hold is Hold.GROUP
        assert "tokens/" in explanation.detail
        await asyncio.sleep(40)
        assert handle.done()
        assert other.done()
        paid = {Window: 10, Burst: 20, Paced: 30}[type(policy)]
        assert paid <= group.starts[1][0] - begin < paid + 2


@pytest.mark.parametrize(
    ("settings", "work"),
    [
        ({"rate": "200/s", "policy": Window()}, 0.001),
        ({"rate": "200/s", "policy": Window()}, 0.005),
        ({"key_rate": "1000/s"}, 0.005),
    ],
    ids=["rate", "rate, slow", "keys, slow"],
)
async def test_no_more_tickets_are_asked_for_than_can_be_used(settings, work) -> None:
    """Where starts take time, a process asks for as many tickets as it uses in time, and uses what there is."""
    async with Group() as group:
        executor = await group.join(**settings)
        loop = asyncio.get_running_loop()

        def start(number: int) -> None:
            group.start(0, 1, str(number))
            loop.block_for(work)

        for number in range(1500):
            executor.submit(start, number, key=number if "key_rate" in settings else None)
        await asyncio.sleep(QUARANTINE + 1)
        begin = len(group.starts)
        await asyncio.sleep(3)
        assert (len(group.starts) - begin) / 3 > 0.85 * min(200, 1 / work)
        statistics = executor.statistics().fleet
        assert statistics.lapsed < 0.8 * statistics.granted


async def test_no_tickets_are_asked_for_while_workers_hold_their_permits() -> None:
    """Workers that hold their permits for a while are not expected back before that: no ticket lapses."""
    async with Group() as group:
        executor = await group.join(rate="1000/s, 9000/10s")

        async def work() -> None:
            while True:
                async with executor.permit():
                    group.start(0, 1, None)
                    await asyncio.sleep(0.05)

        workers = [asyncio.ensure_future(work()) for _ in range(4)]
        await asyncio.sleep(QUARANTINE + 5)
        for worker in workers:
            worker.cancel()
        statistics = executor.statistics().fleet
        assert statistics.taken > 200
        assert 0 == statistics.lapsed


async def test_rate_of_a_key_is_the_groups() -> None:
    """The rate of a key applies to the group: three processes start one task a second of each key together."""
    async with Group() as group:
        for _ in range(3):
            await group.join(rate="50/s", key_rate="1/s")
        group.load(60, keys=5)
        await asyncio.sleep(QUARANTINE + 20)
        for key in ("k0", "k1", "k4"):
            assert most_in(group.of_key(key), 1) == 1
            assert len(group.of_key(key)) >= 18


async def test_key_that_must_wait_holds_back_no_other() -> None:
    """A busy key that waits for its rate holds back neither another key nor keyless tasks."""
    async with Group() as group:
        await group.join(rate="50/s", key_rate="1/s")
        (executor,) = group.executors
        for _ in range(100):
            executor.schedule(group.start, 0, 1, "busy", key="busy")
        await asyncio.sleep(QUARANTINE)
        executor.schedule(group.start, 0, 1, "rare", key="rare")
        executor.schedule(group.start, 0, 1, None)
        await asyncio.sleep(0.2)
        assert len(group.of_key("rare")) == 1
        assert len(group.starts) - len(group.keys) == 1


@pytest.mark.parametrize(
    ("settings", "keys", "least"),
    [
        ({"rate": "400/s, 300000/10s", "key_rate": "5/s"}, 13, 50),
        ({"rate": "400/s, 300000/10s", "key_rate": "5/s", "order": Fair()}, 13, 50),
        ({"rate": "40/s, 300/10s"}, 0, 65),
    ],
    ids=["keys", "fair keys", "no keys"],
)
async def test_slots_beside_tickets_are_used(settings, keys, least) -> None:
    """Slots and tickets together do not deadlock: three processes use both with tasks of 50 ms."""
    running, most = 0, 0
    async with Group() as group:

        async def work(number: int, key: str | None) -> None:
            nonlocal running, most
            group.start(number, 1, key)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1

        for number in range(3):
            executor = await group.join(**settings)
            pool = group.managers[-1].slots("pool", limit=2)
            for each in range(60):
                key = f"k{each % keys}" if keys else None
                executor.schedule(work, number, key, key=key, slots=pool)
        await asyncio.sleep(6)  # the quarantine of slots is longer
        count = len(group.starts)
        await asyncio.sleep(3)
        assert len(group.starts) - count >= least
        assert most == 2
        assert all(most_in(group.of_key(f"k{key}"), 1) <= 5 for key in range(keys))


async def test_tickets_are_requested_for_tasks_that_share_by_what_is_also_a_waiting_key() -> None:
    """While a key waits for its limit, tickets are requested for other keys whose tasks share fairly by an equal value."""
    async with Group() as group:
        rates, shares = {"slow": "1/60s"}, {"slow": "a", "other": "b"}
        order = Fair(by=lambda task: shares.get(task.key, "slow"))
        executor = await group.join(rate="40/s, 300/10s", key_rate=lambda key: rates.get(key, "5/s"), order=order)
        for key in ("slow", "slow", "other"):
            executor.schedule(group.start, 0, 1, key, key=key)
        await asyncio.sleep(QUARANTINE + 1)
        executor.schedule(group.start, 0, 1, "other", key="other")
        await asyncio.sleep(1)
        for _ in range(10):
            executor.schedule(group.start, 0, 1, "quick", key="quick")
        await asyncio.sleep(3)
        assert len(group.of_key("quick")) == 10
        assert len(group.of_key("slow")) == 1


async def test_executor_that_closes_while_a_call_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    """An executor closed during a call does not affect others that share the call."""
    async with Group() as group:
        first, second = await group.join(rate="40/s, 300/10s"), group.managers[0].executor("y", rate="40/s, 300/10s")
        for executor in (first, second):
            executor.schedule(group.start, 0, 1, None)
        await asyncio.sleep(QUARANTINE)
        for _ in range(3):
            second.schedule(group.start, 1, 1, None)
            first.schedule(group.start, 0, 1, None)
            await asyncio.sleep(0.0001)  # a call is under way
            await first.shutdown(cancel_pending=True)
            await asyncio.sleep(0.3)
            first = group.managers[0].executor("x", rate="40/s, 300/10s")
        assert group.by[1] == 3
        await first.shutdown(cancel_pending=True)
        await second.shutdown(cancel_pending=True)
    assert "internal error" not in caplog.text


async def test_tasks_that_need_no_ticket_make_no_calls() -> None:
    """While the tasks that are due need none of the shared resources, nothing is asked for."""
    async with Group() as group:
        executor = await group.join(resources={"tokens": "1000/s"}, max_concurrency=2)
        executor.submit(str, cost={"tokens": 1})
        await asyncio.sleep(QUARANTINE)
        calls = group.server.calls
        for _ in range(500):
            executor.submit(asyncio.sleep, 0.02)
        await asyncio.sleep(4)
        assert group.server.calls - calls < 20


async def test_last_calls_are_tried_seldom_in_an_outage() -> None:
    """An executor that closes in an outage, while all others are idle, does not make its process connect all the time."""
    async with Group() as group:
        idle = await group.join(rate="10/s")
        closing = group.managers[0].executor("y", rate="10/s")
        for executor in (idle, closing):
            executor.submit(str)
        await asyncio.sleep(QUARANTINE)
        group.server.is_away = True
        await closing.shutdown()
        attempts = group.server.attempts
        await asyncio.sleep(25)
        assert group.server.attempts - attempts <= 25 / 0.25 * 1.5


async def test_keys_without_tasks_leave_nothing_behind() -> None:
    """Keys that were refused, and whose tasks have expired, are no longer looked at."""
    async with Group() as group:
        executor = await group.join(rate="1000/s", key_rate="1/s")
        await asyncio.sleep(QUARANTINE)
        for number in range(100):
            for _ in range(3):
                executor.schedule(str, key=number, expires=0.3)
            await asyncio.sleep(0.05)
        await asyncio.sleep(20)
        executor.schedule(str, key="last")
        await asyncio.sleep(5)
        member = executor._parts.controls.member
        assert not (member._turned or member._turns or member._due)


async def test_penalty_holds_for_the_group() -> None:
    """A penalty applies to the whole group, and one of a key to that key only."""
    async with Group() as group:
        for _ in range(2):
            await group.join(rate="50/s, 10000/min", key_rate="20/s")
        group.load(1000, keys=2)
        await asyncio.sleep(QUARANTINE + 1)
        group.executors[0].penalize(5)
        await asyncio.sleep(0.5)
        count = len(group.starts)
        await asyncio.sleep(4)
        assert len(group.starts) == count
        await asyncio.sleep(2)
        assert len(group.starts) > count + 20
        group.executors[1].penalize(5, key="k0")
        await asyncio.sleep(0.5)
        count, others = len(group.of_key("k0")), len(group.of_key("k1"))
        await asyncio.sleep(4)
        assert len(group.of_key("k0")) == count
        assert len(group.of_key("k1")) > others + 40


@pytest.mark.parametrize("priorities", [1, 3])
@pytest.mark.parametrize("rate", [{}, {"rate": "1000/s"}], ids=["key alone", "with a rate"])
async def test_limit_of_a_key_counts_the_cost_of_each_task(rate, priorities) -> None:
    """A key's limit holds for tasks of several costs, in whatever order they start, and is used."""
    draw, starts = random.Random(1), {}
    loop = asyncio.get_running_loop()

    def start(key: str, cost: int) -> None:
        starts.setdefault(key, []).append((loop.time(), cost))

    async with Group() as group:
        executor = await group.join(key_rate="10/10s", policy=Window(), **rate)
        await asyncio.sleep(QUARANTINE + 10)
        for _ in range(400):
            key, cost = f"k{draw.randrange(3)}", draw.choice([1, 1, 2, 5, 10])
            executor.schedule(start, key, cost, key=key, cost=cost, priority=draw.randrange(priorities), expires=20)
            await asyncio.sleep(draw.expovariate(2))
    assert {key: most_in(each, 10) for key, each in starts.items()} == {"k0": 10, "k1": 10, "k2": 10}
    assert all(sum(cost for _, cost in each) > 60 for each in starts.values())


@pytest.mark.parametrize(
    ("key_rate", "expires", "count", "seconds", "order"),
    [
        ("10/10s", 20, 1, 100, None),
        ("10/10s", 20, 2, 100, None),
        ("10/10s", 20, 4, 100, None),
        ("10/s", 5, 1, 30, None),
        ("10/s", 5, 2, 30, lambda view: view.due),
    ],
    ids=["one", "two", "four", "quick", "order"],
)
async def test_limit_of_a_key_is_used_as_by_one_process_alone(key_rate, expires, count, seconds, order) -> None:
    """Processes with tasks of mixed costs, many of which expire, use the limits of keys as one process without peers does."""
    loop, used, keys = asyncio.get_running_loop(), Counter(), 10
    settings = {"key_rate": key_rate, "policy": Window(), **({"order": order} if order else {})}
    rate = Rate.parse(key_rate).per_second

    async def load(executors, name: str) -> None:
        draw, end = random.Random(1), loop.time() + seconds
        while loop.time() < end:
            key, cost = draw.randrange(keys), draw.choice([1, 1, 2, 5, 10])
            executor = executors[draw.randrange(count) % len(executors)]
            executor.schedule(lambda cost=cost: used.update({name: cost}), key=key, cost=cost, expires=expires)
            await asyncio.sleep(draw.expovariate(2 * keys * float(rate) / 3.8))

    async with ExecutorManager() as manager, Group() as group:
        for _ in range(count):
            await group.join(**settings)
        await asyncio.sleep(QUARANTINE + 10)
        await asyncio.gather(load(group.executors, "group"), load([manager.executor("x", **settings)], "alone"))
        assert used["group"] >= 0.85 * used["alone"]


async def test_small_peer_beside_a_huge_one() -> None:
    """A process with ten tasks beside one with thousands starts them within two grant intervals of their share."""
    async with Group() as group:
        await group.join(rate="100/s, 100000/h")
        small = await group.join(rate="100/s, 100000/h")
        for _ in range(3000):
            group.executors[0].schedule(group.start, 0, 1, None)
        await asyncio.sleep(QUARANTINE + 3)
        for _ in range(10):
            small.schedule(group.start, 1, 1, None)
        await asyncio.sleep(0.2 + 0.5)
        assert group.by[1] == 10


async def test_weights_divide_what_is_not_enough() -> None:
    """A process of weight 3 starts three times as much as one of weight 1 while both are busy."""
    async with Group() as group:
        await group.join(rate="100/s, 100000/h", peers={"weight": 3.0})
        await group.join(rate="100/s, 100000/h")
        group.load(4000)
        await asyncio.sleep(QUARANTINE + 20)
        assert 2.5 < group.by[0] / group.by[1] < 3.5


async def test_authority_that_forgets_is_told() -> None:
    """After FLUSHALL the peers report what they remember, so a used window stays used."""
    async with Group() as group:
        for _ in range(2):
            await group.join(rate="100/60s", policy=Window())
        group.load(400)
        await asyncio.sleep(QUARANTINE + 1)
        assert len(group.starts) == 100
        group.server.forget()
        await asyncio.sleep(55)
        assert len(group.starts) == 100
        await asyncio.sleep(15)
        assert len(group.starts) == 200
        assert most_in(group.starts, 60) == 100


async def test_idle_peer_tells_what_another_asks_for() -> None:
    """An idle peer reports the window that it has used after the authority forgets, so that another gets none of it."""
    async with Group() as group:
        first = await group.join(rate="20/60s", policy=Window())
        second = await group.join(rate="20/60s", policy=Window())
        for _ in range(20):
            first.schedule(group.start, 0, 1, None)
        await asyncio.sleep(QUARANTINE + 5)
        assert len(group.starts) == 20
        group.server.forget()
        second.schedule(group.start, 1, 1, None)
        await asyncio.sleep(50)
        assert len(group.starts) == 20


@pytest.mark.parametrize("step", [-1000.0, -5.0, 5.0, 1000.0])
async def test_step_of_the_servers_clock_breaks_no_window(step) -> None:
    """A step of the server's clock while a window is used up starts no more in any window."""
    async with Group() as group:
        for _ in range(2):
            await group.join(rate="50/20s", policy=Window())
        group.load(400)
        await asyncio.sleep(QUARANTINE + 5)
        group.server.ahead += step
        await asyncio.sleep(60)
        assert most_in(group.starts, 20) == 50
        assert len(group.starts) >= 100


@pytest.mark.parametrize("moment", [0, 4])
@pytest.mark.parametrize("step", [-0.9, 0.9])
@pytest.mark.parametrize("limit", [{"rate": "50/s", "policy": Window()}, {"rate": "50/s"}], ids=["window", "pace"])
async def test_step_of_the_servers_clock_is_told_to_all_executors_of_a_process(limit, step, moment) -> None:
    """Whichever executor's call shows a step, the permits of all others are void: none has more in any second."""
    loop, starts = asyncio.get_running_loop(), {"a": [], "b": [], "c": []}
    server = Server(1)
    async with ExecutorManager(peers=server.peers(0)) as manager:
        executors = [
            manager.executor(name, drain_timeout=0, **limit if name != "c" else {"rate": "60/s"}) for name in starts
        ]
        for executor in executors:
            log = starts[executor.name]
            executor.schedule_many(lambda _, log=log: log.append((loop.time(), 1)), range(2000))
        await asyncio.sleep(8 + moment * 0.05)
        server.ahead += step
        await asyncio.sleep(8)
        for executor in executors:
            executor.shutdown(cancel_pending=True)
    assert [most_in(log, 1) <= most for log, most in zip(starts.values(), (50, 50, 60), strict=True)] == [True] * 3
    assert all(sum(time > 12 for time, _ in log) >= 40 * 3 for log in starts.values())


async def test_lowered_limit_holds_at_once() -> None:
    """A lowered limit holds for all processes within a grant interval, also those that do not know of it."""
    async with Group() as group:
        for _ in range(3):
            await group.join(rate="100/s, 6000/min")
        group.load(2000)
        await asyncio.sleep(QUARANTINE + 5)
        group.executors[1].rate = "5/s, 6000/min"
        changed = asyncio.get_running_loop().time()
        await asyncio.sleep(10)
        after = [(time, cost) for time, cost in group.starts if time > changed + 0.3]
        assert most_in(after, 1) <= 5
        assert len(after) >= 40


async def test_process_that_comes_back_with_a_lower_limit_starts_by_that() -> None:
    """A group that restarts with 1 a second after 100 a second starts by the new limit."""
    server = Server()
    async with Group(server) as group:
        await group.join(rate="100/s, 6000/min")
        group.load(500)
        await asyncio.sleep(QUARANTINE + 2)
    async with Group(server) as group:
        await group.join(rate="1/s, 6000/min")
        group.load(100)
        await asyncio.sleep(5)
        assert most_in(group.starts, 1) == 1


@pytest.mark.parametrize("rates", [("10/s, 100/10s", "40/s, 200/10s"), ("40/s, 200/10s", "10/s, 100/10s")])
async def test_rolling_deployment(rates) -> None:
    """While processes are replaced by others with new limits, no window has more than the larger limit."""
    before, after = rates
    async with Group() as group:
        old = [await group.join(rate=before) for _ in range(3)]
        group.load(400)
        await asyncio.sleep(QUARANTINE + 5)
        for executor in old:
            await group.join(rate=after)
            for _ in range(400):
                group.executors[-1].schedule(group.start, 9, 1, None)
            await asyncio.sleep(2)
            await executor.shutdown(cancel_pending=True)
        group.executors = group.executors[3:]
        changed = asyncio.get_running_loop().time()
        await asyncio.sleep(20)
        assert most_in(group.starts, 1) <= 40
        assert most_in(group.starts, 10) <= 200
        last = [(time, cost) for time, cost in group.starts if time > changed]
        assert most_in(last, 1) <= int(after.split("/")[0])


@pytest.mark.parametrize(
    ("outage", "least", "most"), [(Outage.STOP, 0, 0), (Outage.LOCAL, 100, 205), (Outage.static(4), 20, 52)]
)
async def test_outage(outage, least, most) -> None:
    """In an outage a process starts nothing, its part or the whole limit, by its policy."""
    async with Group() as group:
        for _ in range(2):
            await group.join(rate="10/s, 1000/min", peers={"outage": outage})
        group.load(1000)
        await asyncio.sleep(QUARANTINE + 3)
        group.server.is_away = True
        await asyncio.sleep(1)
        count = len(group.starts)
        await asyncio.sleep(10)
        assert least <= len(group.starts) - count <= most
        group.server.is_away = False
        await asyncio.sleep(1)
        count = len(group.starts)
        await asyncio.sleep(5)
        assert 40 <= len(group.starts) - count <= 50


async def test_lost_calls_cost_little_and_break_nothing() -> None:
    """With a tenth of calls and answers lost, all limits hold and most of them is used."""
    async with Group() as group:
        group.server.loss = 0.1
        for _ in range(3):
            await group.join(rate="50/s, 400/10s")
        group.load(800)
        await asyncio.sleep(QUARANTINE + 30)
        assert most_in(group.starts, 1) <= 50
        assert most_in(group.starts, 10) <= 400
        assert len(group.starts) > 900


async def test_explain_and_statistics_name_the_limit() -> None:
    """``explain`` and statistics name the limit of the group that holds a task, its use, a quarantine or an outage."""
    async with Group() as group:
        executor = await group.join(rate="100/s, 20/60s")
        await asyncio.sleep(0.2)
        handle = executor.schedule(group.start, 0, 1, None)
        await asyncio.sleep(0.1)
        assert executor.explain(handle).hold is Hold.QUARANTINE
        group.load(50)
        await asyncio.sleep(QUARANTINE + 5)
        handle = executor.schedule(group.start, 0, 1, None, priority=5)
        await asyncio.sleep(1.5)
        explanation = executor.explain(handle)
        assert explanation.hold is Hold.GROUP
        assert explanation.detail == "permits/window/60 of the group, 20 of 20 used or reserved"
        assert explanation.expected_start is not None
        (_, window) = executor.statistics().fleet.limits
        assert (window.used, window.amount) == (20, 20)
        group.server.is_away = True
        executor.rate = "100/s, 30/60s"
        await asyncio.sleep(3)
        assert executor.explain(handle).hold is Hold.OUTAGE


class Curious:
    """Asks for everything before each start, and takes its time."""

    def __init__(self, executor, handle) -> None:
        self.executor, self.handle = executor, handle

    def accepted(self, count) -> None:
        pass

    def started(self, lateness) -> None:
        asyncio.get_running_loop().block_for(0.02)
        self.executor.statistics()
        self.executor.backlog_seconds()
        self.executor.explain(self.handle)

    def retried(self, duration) -> None:
        pass

    def ended(self, state, duration, count) -> None:
        pass


async def test_questions_of_an_observer_take_no_ticket_from_the_start_it_is_told_of() -> None:
    """Each start has a ticket, although the observer that is notified of it asks questions after a time."""
    async with Group() as group:
        executor = await group.join(rate="20/s")
        observe(executor, Curious(executor, executor.schedule(int, delay=3600)))
        for number in range(60):
            executor.schedule(int, delay=number / 10)
        await asyncio.sleep(QUARANTINE + 10)
        statistics = executor.statistics()
        assert statistics.started == statistics.fleet.taken == 60


@pytest.mark.parametrize("what", ["executor", "manager"])
@pytest.mark.parametrize("seconds", [0.0, 0.0002, 0.0004, 0.0006])
async def test_what_is_left_of_tickets_goes_back_when_a_process_ends(what, seconds) -> None:
    """A process that closes gives back its unused tickets, and those of a call in flight: another may use them at once."""
    async with Group() as group:
        executor = await group.join(rate="1000/60s", policy=Window())
        group.load(2000)
        while not group.starts:
            await asyncio.sleep(0.0001)
        await asyncio.sleep(seconds)
        await executor.shutdown(cancel_pending=True)
        if what == "manager":
            await group.managers[0].aclose()
        other = await group.join(rate="1000/60s", policy=Window())
        other.schedule_many(lambda _: group.start(1, 1, None), range(2000))
        used = group.by[0]
        assert used < 1000
        await asyncio.sleep(2)
        assert group.by[1] == 1000 - used


async def test_closed_executor_leaves_the_loop_alone() -> None:
    """An executor that closes between two parts of a long run leaves nothing on the loop."""
    loop = asyncio.get_running_loop()
    async with Group() as group:
        executor = await group.join(rate="1000/s", policy=Window())
        closing = []

        def start(number: int) -> None:
            if number == 0:
                loop.block_for(0.01)  # the run is gone on with in the next turn
                loop.call_soon(lambda: closing.append(executor.shutdown(cancel_pending=True)))

        executor.schedule_many(start, range(100))
        while not closing:
            await asyncio.sleep(0.0001)
        for _ in range(300):
            await asyncio.sleep(0)
        assert not loop._ready


async def test_task_that_is_never_admitted_any_more_is_dropped() -> None:
    """A task whose cost exceeds a lowered limit ends as ``DROPPED``, and the next ones start."""
    async with Group() as group:
        executor = await group.join(rate="100/s", resources={"tokens": "1000/10s"}, policy=Window())
        first = executor.schedule(group.start, 0, 900, None, cost={"tokens": 900})
        await asyncio.sleep(QUARANTINE)
        assert first.done()
        waiting = executor.schedule(group.start, 0, 900, None, cost={"tokens": 900})
        other = executor.schedule(group.start, 0, 10, None, cost={"tokens": 10})
        await asyncio.sleep(1)
        executor.resources = {"tokens": "500/10s"}
        await asyncio.sleep(12)
        assert (waiting.state, other.state) == (TaskState.DROPPED, TaskState.DONE)


async def test_two_windows_of_one_length_both_hold() -> None:
    """Of two windows of the same length both count each start, and the lower one decides."""
    async with Group() as group:
        await group.join(rate="30/5s, 20/5s", policy=Window())
        group.load(100)
        await asyncio.sleep(QUARANTINE + 11)
        assert most_in(group.starts, 5) == 20
        assert len(group.starts) >= 60


async def test_quota_of_a_process_that_has_left_holds_nobody_up_for_ever() -> None:
    """After a process with a lower quota has left, the others put their own limits in force once its periods end."""
    async with Group() as group:
        await group.join(rate=[Rate(10), Quota(1000, per="minute")])
        last = await group.join(rate=[Rate(10), Quota(10, per="minute")])
        group.load(5)
        await asyncio.sleep(QUARANTINE + 3)
        await last.shutdown(cancel_pending=True)
        group.executors.pop()
        group.load(1700)
        await asyncio.sleep(130)
        count = len(group.starts)
        await asyncio.sleep(20)
        assert len(group.starts) >= count + 150


async def test_limits_of_a_process_that_joins_stay_in_force_with_a_quota() -> None:
    """The limits of a process that joins stay in force, although its first call knows no time of the server yet."""
    async with Group() as group:
        day = Quota(10_000_000, per="day")
        await group.join(rate=[Rate(50), day])
        group.load(2000)
        await asyncio.sleep(8)
        second = await group.join(rate=[Rate(20), day])
        second.schedule(group.start, 1, 1, None)
        carry = group.managers[1].peers.link.call

        async def carry_slowly(calls):
            answers = await carry(calls)
            await asyncio.sleep(0.05)  # meanwhile the first one calls
            return answers

        group.managers[1].peers.link.call = carry_slowly
        await asyncio.sleep(3)
        assert [20, 20] == [executor.statistics().fleet.rate for executor in group.executors]


@pytest.mark.parametrize("seconds", [0, 60], ids=["never reached", "away"])
async def test_penalty_of_an_executor_that_closes_in_an_outage_ends_in_time(seconds) -> None:
    """A penalty that only the last call of an executor can tell holds the group no longer than it was to last."""
    async with Group() as group:
        await group.join(rate="50/s")
        group.server.is_away = not seconds
        closing = await group.join(rate="50/s", peers={"outage": Outage.LOCAL})
        closing.submit(str)
        await asyncio.sleep(QUARANTINE)
        group.server.is_away = True
        await asyncio.sleep(seconds)
        closing.penalize(5)
        await closing.shutdown(cancel_pending=True)
        await asyncio.sleep(seconds)
        group.server.is_away = False
        group.executors[0].schedule(group.start, 0, 1, None)
        await asyncio.sleep(8)
        assert group.by[0]


async def test_penalty_whose_call_is_lost_is_told_again() -> None:
    """A penalty holds the group although the call that told it was lost, and the process has nothing else to ask for."""
    async with Group() as group:
        first, second = await group.join(rate="50/s"), await group.join(rate="50/s")
        for _ in range(2000):
            second.schedule(group.start, 1, 1, None)
        first.submit(str)
        await asyncio.sleep(QUARANTINE)
        group.managers[0]._peers.link.is_cut = True
        first.penalize(10)
        await asyncio.sleep(0.05)
        group.managers[0]._peers.link.is_cut = False
        await asyncio.sleep(1)
        count = group.by[1]
        await asyncio.sleep(8)
        assert count == group.by[1]


async def test_penalties_of_many_keys_reach_the_group() -> None:
    """Each of hundreds of keys that were told to wait waits in all processes, and the latest end of each counts."""
    async with Group() as group:
        first, second = [await group.join(rate="2000/s", key_rate="100/s") for _ in range(2)]
        for executor in (first, second):
            executor.submit(str)
        await asyncio.sleep(QUARANTINE)
        for seconds in (1, 20, 2):
            for key in range(300):
                first.penalize(seconds, key=key)
        await asyncio.sleep(1)
        for key in range(301):
            second.schedule(group.start, 1, 1, str(key), key=key)
        await asyncio.sleep(15)
        assert {"300"} == {key for key, _ in group.keys}
        await asyncio.sleep(10)
        assert len(group.keys) == 301


@pytest.mark.parametrize("back", [2, 3])
async def test_what_is_settled_after_a_step_of_the_clock_frees_nothing_else(back) -> None:
    """A task that began before the server's clock was set back, and settles later, frees nothing of later tasks."""
    async with Group() as group:
        executor = await group.join(rate="10000/s", resources={"tokens": "1000/30s"}, policy=Window())
        started: dict[int, list[float]] = {}

        def start(number: int) -> None:
            started[number] = [asyncio.get_running_loop().time(), 100]

        def submit(*numbers: int) -> list:
            return [executor.submit(start, number, cost={"tokens": 100}) for number in numbers]

        await asyncio.sleep(40)
        early = submit(*range(5))
        await asyncio.sleep(4)
        assert len(started) == 5
        group.server.ahead -= back
        submit(5)
        await asyncio.sleep(5)
        submit(*range(6, 10))
        await asyncio.sleep(0.5)
        for number, handle in enumerate(early):
            handle.settle({"tokens": 1})
            started[number][1] = 1
        await asyncio.sleep(0.3)
        submit(*range(10, 30))
        await asyncio.sleep(60)
        assert most_in([(time, cost) for time, cost in started.values()], 30) <= 1000


async def test_keys_are_told_back_in_time_on_a_slow_way() -> None:
    """A process whose calls take a tenth of a second tells thousands of keys to a server that has lost them."""
    async with Group() as group:
        executor = await group.join(rate="5000/s", key_rate="1/600s", policy=Window())
        link = group.managers[0]._peers.link
        call = link.call

        async def slow(calls):
            await asyncio.sleep(0.1)
            return await call(calls)

        link.call = slow
        for _ in range(2):
            for key in range(3000):
                executor.schedule(group.start, 0, 1, str(key), key=key)
            await asyncio.sleep(30)
            group.server.forget()
            await asyncio.sleep(3)
        assert len(group.keys) == 3000


@pytest.mark.parametrize("order", [{"order": Fair()}, {}], ids=["fair", "by time"])
async def test_keys_that_are_refused_do_not_hold_up_others(order) -> None:
    """A task of a new key starts soon, although more keys wait before it than are asked for in a call."""
    async with Group() as group:
        executor = await group.join(rate="2000/s", key_rate="1/60s", **order)
        executor.submit(str)
        await asyncio.sleep(QUARANTINE)
        for key in range(1100):
            for _ in range(2):
                executor.schedule(group.start, 0, 1, str(key), key=key)
        await asyncio.sleep(4)
        executor.schedule(group.start, 0, 1, "new", key="new")
        await asyncio.sleep(0.1)
        assert len(group.keys) == 1101


@pytest.mark.parametrize(("key_rate", "hold"), [("1000/s", Hold.GROUP), ("3/min", Hold.KEY_RATE)])
async def test_explain_names_the_limit_that_holds_a_task_of_a_key(key_rate, hold) -> None:
    """A task of a key is held by the limit that is used up: that of the group, or that of its key."""
    async with Group() as group:
        executor = await group.join(rate="20/min", key_rate=key_rate, policy=Window())
        handles = [executor.submit(str, key="ann") for _ in range(30)]
        await asyncio.sleep(QUARANTINE + 1)
        waiting = [handle for handle in handles if not handle.done()]
        assert [hold, hold if hold is Hold.KEY_RATE else Hold.ORDER] == [
            executor.explain(handle).hold for handle in waiting[:2]
        ]
        assert [0, 1] == [executor.explain(handle).position for handle in waiting[:2]]


@pytest.mark.parametrize("part", ["fleet", "slots"])
async def test_internal_error_is_logged_once_a_minute(part, caplog, monkeypatch) -> None:
    """An error within the library is logged with its traceback once a minute, and the group goes on when it is over."""
    async with Group() as group:
        executor = await group.join(rate="10/s", key_concurrency=1)
        executor.submit(str)
        await asyncio.sleep(5)
        with monkeypatch.context() as patch:
            patch.setattr(*((FleetPeers, "_make_last_calls") if part == "fleet" else (SlotPeer, "look")), None)
            executor.submit(str, key="k")
            await asyncio.sleep(150)
        errors = [record for record in caplog.records if "internal error" in record.message]
        assert [part] * 3 == [record.message.partition(":")[0] for record in errors]
        assert all(record.exc_info for record in errors)
        assert await asyncio.wait_for(executor.submit(str, key="k"), 30) == ""
