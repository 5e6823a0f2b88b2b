"""Scenarios for the search for faults, of the library itself: what it promises holds through cancellations and crashes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any

from ratelimited_executor import BacklogFullError, ExecutorManager, RateLimitedExecutor, Retry, WhenFull
from ratelimited_executor.durable import DurableTasks, MemoryStore, Snooze, current_task
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.testing import Fault, World, audit

from ..helpers import check_accounting

LATER = (0.0, 2.0)


async def permits(world: World) -> None:
    """Permits are held one at a time for each place, and none is lost when those who wait or hold are cancelled."""
    held, starts = 0, []
    async with RateLimitedExecutor("api", rate="5/s", max_concurrency=2) as executor:
        world.always(lambda: check_accounting(executor), "the counts add up")
        world.always(lambda: held <= 2, "two hold a permit at a time")

        async def use(number: int) -> None:
            nonlocal held
            async with executor.permit(priority=number % 2):
                starts.append(asyncio.get_running_loop().time())
                held += 1
                try:
                    await world.pause("use", LATER)
                finally:
                    held -= 1

        tasks = [world.start(f"user {number}", use(number)) for number in range(5)]
        await asyncio.wait(tasks)
        assert audit(starts, "5/s").ok
        async with asyncio.timeout(5):
            async with executor.permit(), executor.permit():
                pass


async def producers(world: World) -> None:
    """Producers that wait for room and are cancelled give up their places, and every accepted task ends."""
    ran: list[int] = []
    handles = []
    async with RateLimitedExecutor("bulk", rate="10/s", max_pending=2, when_full=WhenFull.WAIT) as executor:
        world.always(lambda: check_accounting(executor), "the counts add up")
        world.always(lambda: executor.statistics().waiting <= 2, "the backlog is bounded")

        async def produce(first: int) -> None:
            for number in range(first, first + 3):
                handles.append(
                    await executor.schedule_wait(ran.append, number, delay=world.choose("delay", [0, 0.3, 2]))
                )

        tasks = [world.start(f"producer {first}", produce(first)) for first in (0, 10, 20)]
        await asyncio.wait(tasks)
        assert 0 == executor.statistics().waiters
    assert all(handle.done() for handle in handles)
    assert len(ran) == len(handles), (ran, handles)


async def handles(world: World) -> None:
    """Whoever awaits a task and is cancelled cancels it; others end; keys run one at a time, at the rate."""
    running: Counter[str] = Counter()
    starts: list[float] = []
    retry = Retry(4, on=ConnectionError)
    async with RateLimitedExecutor("keys", rate="8/s", key_concurrency=1, retry=retry) as executor:
        world.always(lambda: check_accounting(executor), "the counts add up")
        world.always(lambda: max(running.values(), default=0) <= 1, "one task of a key runs at a time")

        async def work(key: str) -> None:
            starts.append(asyncio.get_running_loop().time())
            running[key] += 1
            try:
                await world.call("api", lambda: None, delay=LATER, faults=[Fault.REFUSED])
            finally:
                running[key] -= 1

        async def ask(number: int) -> None:
            key = "ab"[number % 2]
            with contextlib.suppress(ConnectionError):
                await executor.schedule(work, key, key=key, delay=number / 5, priority=number % 3)

        tasks = [world.start(f"asker {number}", ask(number)) for number in range(6)]
        await world.pause("settings", LATER)
        executor.rate = world.choose("rate", ["8/s", "4/s", "2/s"])
        await asyncio.wait(tasks)
    assert audit(starts, "8/s").ok
    assert not any(running.values())


async def bulk(world: World) -> None:
    """Batches, maps and invoke_any end, and their counts add up, if those who wait for them are cancelled."""
    async with RateLimitedExecutor("bulk", rate="20/s", max_concurrency=3) as executor:
        world.always(lambda: check_accounting(executor), "the counts add up")

        async def work(number: int) -> int:
            await world.call("api", lambda: None, delay=(0, 0.5), faults=[Fault.REFUSED])
            return number

        async def batch() -> None:
            handle = await executor.schedule_many(work, range(4), over=1, results=True)
            summary = await handle
            assert 4 == summary.done + summary.failed + summary.cancelled

        async def mapped() -> None:
            expected = 0
            with contextlib.suppress(ConnectionError):
                async for number in executor.map(work, range(4), limit=2):
                    assert expected == number
                    expected += 1

        async def first() -> None:
            with contextlib.suppress(ExceptionGroup):
                assert await executor.invoke_any([lambda number=number: work(number) for number in range(3)]) in range(
                    3
                )

        await asyncio.wait([world.start("batch", batch()), world.start("map", mapped()), world.start("any", first())])


async def closing(world: World) -> None:
    """An executor that is closed while tasks wait, run and are cancelled ends each of them, within its time."""
    loop = asyncio.get_running_loop()
    executor = RateLimitedExecutor("closing", rate="5/s", max_concurrency=2, drain_timeout=3)
    accepted = []

    async def work() -> None:
        await world.pause("work", LATER)

    async def serve() -> None:
        async with executor:
            for _ in range(5):
                with contextlib.suppress(BacklogFullError):
                    accepted.append(executor.schedule(work, delay=world.choose("delay", [0, 1, 10])))
                await world.pause("between", (0, 0.5))

    task = world.start("server", serve())
    await asyncio.wait([task])
    assert loop.time() <= 8, "closing took longer than its limit"
    if executor.is_shutdown:
        assert executor.is_terminated
        check_accounting(executor)
    assert all(handle.done() for handle in accepted), accepted


async def durable(world: World) -> None:
    """Through crashes, refusals and lost replies, each durable task is done, in the order of its lane."""
    store = MemoryStore()
    done: dict[str, list[int]] = defaultdict(list)

    async def service() -> None:
        tasks = DurableTasks(store)

        @tasks.task(retry=Retry(30, on=(ConnectionError,)))
        async def step(owner: str, number: int) -> None:
            await world.call("api", done[owner].append, number, faults=[Fault.REFUSED, Fault.REPLY_LOST])

        async with RateLimitedExecutor("steps", rate="10/s", max_concurrency=2) as executor, tasks.running(executor):
            for number in range(3):
                for lane in ("a", "b"):
                    await step.put(lane, number, lane=lane, id=f"{lane}{number}", delay=0.5 * (number == 2))
                    await world.pause("between", (0.0, 0.5))
            await asyncio.sleep(200)

    await world.process("service", service)
    for lane in ("a", "b"):
        assert [0, 1, 2] == sorted(set(done[lane])), done
        assert done[lane] == sorted(done[lane]), f"out of order: {done}"


async def once(world: World) -> None:
    """Without a crash nothing runs twice: two services share a store, tasks snooze, are cancelled and are unique."""
    store = MemoryStore()
    runs: Counter[int] = Counter()
    is_snoozed = False

    async def service(name: str) -> None:
        tasks = DurableTasks(store)

        @tasks.task
        async def work(number: int) -> None:
            nonlocal is_snoozed
            if number == 2 and not is_snoozed:
                is_snoozed = True
                raise Snooze(3)
            runs[number] += 1
            await world.pause("work", LATER)

        async with RateLimitedExecutor(name, rate="3/s") as executor, tasks.running(executor):
            refs = [await work.put(number, id=f"task {number}", delay=number % 2) for number in range(4)]
            await world.pause("puts", LATER)
            await work.put(9, unique=True, delay=5)
            if world.choose("cancelled", [False, True]):
                await tasks.cancel(refs[3].id)
            await asyncio.sleep(60)

    await asyncio.gather(service("one"), service("two"))
    assert max(runs.values()) == 1, runs
    assert runs[0] == runs[2] == runs[9] == 1, runs


async def borders(world: World) -> None:
    """A service that is cancelled at any await leaves tasks in the store, and the next one runs each of them."""
    store = MemoryStore()
    done: Counter[int] = Counter()

    async def service(length: float) -> None:
        tasks = DurableTasks(store)

        @tasks.task
        async def work(number: int) -> None:
            await world.call("api", lambda: done.update([number]), faults=[])

        async with RateLimitedExecutor("work", rate="5/s", drain_timeout=2) as executor, tasks.running(executor):
            for number in range(4):
                await work.put(number, id=str(number))
            await asyncio.sleep(length)

    await asyncio.wait([world.start("first", service(1))])
    await service(60)
    assert set(done) == set(range(4)), done


async def slots(world: World) -> None:
    """Slots are held one by one: by tasks that take them and by code, cancelled or not, and a changed limit holds."""
    held = 0
    async with ExecutorManager() as manager:
        pool = manager.slots("pool", limit=1)
        one, two = manager.executor("one", rate="5/s"), manager.executor("two", max_concurrency=1)
        world.always(lambda: check_accounting(one), "the counts of one add up")
        world.always(lambda: check_accounting(two), "the counts of two add up")

        async def work() -> None:
            nonlocal held
            held += 1
            assert held <= 1, "two hold the slot"
            try:
                await world.pause("work", LATER)
            finally:
                held -= 1

        async def by_task(executor: RateLimitedExecutor, number: int) -> None:
            await executor.schedule(work, delay=number / 10, slots=pool, priority=number % 2)

        async def by_code() -> None:
            async with pool.hold(priority=1):
                await work()

        tasks = [world.start(f"task {number}", by_task((one, two)[number % 2], number)) for number in range(4)]
        tasks += [world.start(f"code {number}", by_code()) for number in range(2)]
        await asyncio.wait(tasks)
        async with asyncio.timeout(2), pool.hold():
            assert 0 == held


async def repeating(world: World) -> None:
    """A repetition neither overlaps with itself nor drifts, whatever becomes of its runs, and ends when it is cancelled."""
    loop = asyncio.get_running_loop()
    starts: list[float] = []
    running = 0
    async with RateLimitedExecutor("poll", rate="2/s") as executor:
        world.always(lambda: check_accounting(executor), "the counts add up")

        async def poll() -> None:
            nonlocal running
            starts.append(loop.time())
            running += 1
            assert running == 1, "two runs overlap"
            try:
                await world.call("api", lambda: None, delay=(0, 1.5), faults=[Fault.REFUSED])
            finally:
                running -= 1

        handle = executor.schedule_at_fixed_rate(poll, period=1, max_runs=6)

        async def other() -> None:
            await executor.submit(asyncio.sleep, world.choose("other", [0, 1]))

        tasks = [world.start(f"other {number}", other()) for number in range(3)]
        await asyncio.wait(tasks)
        if world.choose("cancelled", [False, True]):
            handle.cancel()
    assert len(starts) <= 6
    assert all(later - earlier > 0.4 for earlier, later in pairwise(starts)), starts


async def occurrences(world: World) -> None:
    """Through crashes of either of two services, a durable repetition has each occurrence at most once, and goes on."""
    store = MemoryStore()
    ended: Counter[str] = Counter()

    async def service() -> None:
        tasks = DurableTasks(store)

        @tasks.task(retry=Retry(5, on=ConnectionError))
        async def report() -> None:
            task = current_task()
            await world.call("api", lambda: None, delay=LATER, faults=[Fault.REFUSED])
            ended[task.id] += 1

        tasks.repeat(report, period="10s", name="report")
        async with RateLimitedExecutor("reports") as executor, tasks.running(executor):
            await asyncio.sleep(100)

    await asyncio.gather(world.process("one", service), world.process("two", service))
    assert len(ended) >= 5, ended
    assert max(ended.values()) <= 1 + 4, ended  # once more after each crash at most


class FarStore(MemoryStore):
    """A store behind a network: its calls take time, are refused, or have their effect and lose the reply."""

    def __init__(self, world: World) -> None:
        super().__init__()
        for name in (
            "put",
            "join",
            "beat",
            "leave",
            "claim",
            "start",
            "save",
            "finish",
            "cancel",
            "cancelled",
            "place",
        ):
            setattr(self, name, partial(self._call, world, name, getattr(self, name)))

    async def _call(
        self, world: World, name: str, method: Callable[..., Awaitable[Any]], *args: Any, **named: Any
    ) -> Any:
        return await world.call(
            f"store.{name}",
            partial(method, *args, **named),
            delay=(0.0, 0.5),
            faults=[Fault.REFUSED, Fault.REPLY_LOST],
            error=lambda text: StoreUnavailableError("FarStore", text),
        )


async def far(world: World) -> None:
    """With a store that is slow, fails, and loses replies, and through crashes, each task that was put is done in order."""
    store = FarStore(world)
    done: dict[str, list[int]] = defaultdict(list)
    put: set[tuple[str, int]] = set()

    async def service() -> None:
        tasks = DurableTasks(store)

        @tasks.task(retry=Retry(30, on=ConnectionError))
        async def step(owner: str, number: int) -> None:
            await world.call("api", done[owner].append, number, delay=(0, 0.5), faults=[Fault.REFUSED])

        async with RateLimitedExecutor("steps", rate="10/s", max_concurrency=2) as executor, tasks.running(executor):
            for number in range(2):
                for lane in ("a", "b"):
                    while (lane, number) not in put:  # the next of a lane only after the one before
                        with contextlib.suppress(StoreUnavailableError):
                            await step.put(lane, number, lane=lane, id=f"{lane}{number}")
                            put.add((lane, number))
            await asyncio.sleep(100)

    async def supervised() -> None:
        for _ in range(20):  # as a supervisor starts a service again that could not join its store
            with contextlib.suppress(StoreUnavailableError):
                return await service()
            await asyncio.sleep(1)

    await world.process("service", supervised)
    assert all(number in done[lane] for lane, number in put), (put, done)
    for lane in ("a", "b"):
        firsts = list(dict.fromkeys(done[lane]))
        assert firsts == sorted(firsts), f"out of order: {done}"


async def far_borders(world: World) -> None:
    """A service that is cancelled at any await, with such a store, leaves each task to the next one."""
    store = FarStore(world)
    done: Counter[int] = Counter()

    async def service(length: float) -> None:
        tasks = DurableTasks(store)

        @tasks.task
        async def work(number: int) -> None:
            await world.call("api", lambda: done.update([number]), faults=[])

        async with RateLimitedExecutor("work", rate="5/s", drain_timeout=2) as executor, tasks.running(executor):
            await tasks.put_many(work.new(number, id=str(number)) for number in range(4))
            await asyncio.sleep(length)

    await asyncio.wait([world.start("first", service(1))])
    for _ in range(10):
        with contextlib.suppress(StoreUnavailableError):
            await service(60)
            break
    else:
        return  # the store was away all the time
    assert set(done) == set(range(4)), done


SCENARIOS = [
    far,
    far_borders,
    slots,
    repeating,
    occurrences,
    permits,
    producers,
    handles,
    bulk,
    closing,
    durable,
    once,
    borders,
]
