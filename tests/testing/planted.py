"""Programs with one planted flaw each, and mended twins: what a search must find, and what it must not.

Each planted program comes with the shortest history by which a person would show its flaw: the deviations that it needs,
as the point and the value. ``None`` stands for any value.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableTasks, MemoryStore, current_task
from ratelimited_executor.testing import Fault, World

Scenario = Callable[[World], Awaitable[object]]


class Planted(NamedTuple):
    """A scenario that fails, with the deviations of its shortest history, and its mended twin."""

    broken: Scenario
    shortest: list[tuple[str, str | None]]
    mended: Scenario


# A reply is lost, and the caller pays again.


def _payments(*, is_keyed: bool) -> Scenario:
    async def scenario(world: World) -> None:
        charged: dict[object, int] = {}

        def charge(key: object, cents: int) -> None:
            charged.setdefault(key, cents)

        async def pay(order: str) -> None:
            for attempt in range(3):
                try:
                    await world.call("bank.charge", charge, order if is_keyed else (order, attempt), 4900)
                except ConnectionError:
                    await asyncio.sleep(1)
                else:
                    return

        await asyncio.gather(*(pay(order) for order in ("A", "B", "C")))
        assert len(charged) <= 3, f"charged twice: {charged}"

    return scenario


# A sender is cancelled after it has sent, and before it has noted that.


def _webhooks(*, is_idempotent: bool) -> Scenario:
    async def scenario(world: World) -> None:
        noted: set[int] = set()
        received: list[int] = []

        def receive(event: int) -> None:
            if not (is_idempotent and event in received):
                received.append(event)

        async def send_all() -> None:
            for event in range(4):
                if event not in noted:
                    await world.call("hook.post", receive, event, faults=[])
                    noted.add(event)

        await asyncio.wait([world.start("sender", send_all())])
        await send_all()  # after a restart
        assert received == [0, 1, 2, 3]

    return scenario


# One task counts the turns of the event loop until another one is ready.


def _loading(*, waits: bool) -> Scenario:
    async def scenario(world: World) -> None:
        settings: dict[str, int] = {}
        loaded = asyncio.Event()

        async def load() -> None:
            await asyncio.sleep(0)
            settings["rate"] = 5
            loaded.set()

        async def serve() -> None:
            if waits:
                await loaded.wait()
            else:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert settings, "not loaded yet"

        await asyncio.gather(load(), serve())

    return scenario


# A worker swallows its cancellation, and waits for the next item.


def _worker(*, swallows: bool) -> Scenario:
    async def scenario(world: World) -> None:
        is_stopped = False
        items: asyncio.Queue[int] = asyncio.Queue()

        async def work() -> None:
            while not is_stopped:
                try:
                    await items.get()
                except asyncio.CancelledError:
                    if not swallows:
                        raise

        task = world.start("worker", work())
        for item in range(3):
            await items.put(item)
            await asyncio.sleep(1)
            assert task.done() or not task.cancelling(), "the worker goes on after its cancellation"
        is_stopped = True
        task.cancel()

    return scenario


# The timeout is around the sleep between two attempts, too, instead of around each attempt.


def _timeout(*, is_around_all: bool) -> Scenario:
    async def scenario(world: World) -> None:
        async def ask() -> str:
            for _ in range(3):
                try:
                    async with asyncio.timeout(None if is_around_all else 10):
                        return await world.call("api", lambda: "answer", delay=(0.1, 0.1), faults=[Fault.SLOW])
                except TimeoutError:
                    await asyncio.sleep(1)
            return "none"

        try:
            async with asyncio.timeout(9 if is_around_all else None):
                answer = await ask()
        except TimeoutError:
            answer = "gave up"
        assert answer != "gave up"

    return scenario


# Two locks, taken in two orders.


def _locks(*, is_ordered: bool) -> Scenario:
    async def scenario(world: World) -> None:
        one, two = asyncio.Lock(), asyncio.Lock()

        async def transfer(first: asyncio.Lock, second: asyncio.Lock, name: str) -> None:
            async with first:
                await world.pause(name, (0.0, 0.4))
                async with second:
                    pass

        async def later() -> None:
            await asyncio.sleep(0.1)
            await transfer(*((one, two) if is_ordered else (two, one)), name="second")

        await asyncio.gather(transfer(one, two, "first"), later())

    return scenario


# No reply ever comes, and nobody waits with a timeout.


def _silence(*, has_timeout: bool) -> Scenario:
    async def scenario(world: World) -> None:
        try:
            async with asyncio.timeout(5 if has_timeout else None):
                await world.call("api", lambda: None, faults=[Fault.NO_REPLY])
        except TimeoutError:
            pass

    return scenario


# A balance is checked, and spent after an await.


def _spending(*, checks_again: bool) -> Scenario:
    async def scenario(world: World) -> None:
        balance = 100
        world.always(lambda: balance >= 0, "the balance is not negative")

        async def spend() -> None:
            nonlocal balance
            if balance >= 60:
                await world.call("audit", lambda: None, faults=[])
                if not checks_again or balance >= 60:
                    balance -= 60

        async def later(delay: float) -> None:
            await asyncio.sleep(delay)
            await spend()

        await asyncio.gather(later(0), later(0.02))

    return scenario


# A retry of an executor pays twice.


def _executor(*, is_keyed: bool) -> Scenario:
    async def scenario(world: World) -> None:
        charges: list[int] = []

        def charge(order: int) -> None:
            if not (is_keyed and order in charges):
                charges.append(order)

        async def pay(order: int) -> None:
            await world.call("bank.charge", charge, order)

        retry = Retry(5, on=ConnectionError)
        async with RateLimitedExecutor("payments", rate="5/s", retry=retry) as executor:
            handles = [executor.submit(pay, order, key=f"key {order % 2}") for order in range(4)]
            await asyncio.gather(*handles, return_exceptions=True)
        assert max(Counter(charges).values(), default=0) <= 1, charges

    return scenario


# A durable task is idempotent only by chance.


def _durable(*, is_keyed: bool) -> Scenario:
    async def scenario(world: World) -> None:
        tasks = DurableTasks(MemoryStore())
        charged: dict[object, int] = {}
        numbers = iter(range(100))

        @tasks.task(retry=Retry(20, on=ConnectionError))
        async def pay(cents: int) -> None:
            key = current_task().id if is_keyed else next(numbers)
            await world.call("bank.charge", charged.setdefault, key, cents, faults=[Fault.REFUSED, Fault.REPLY_LOST])

        async with RateLimitedExecutor("payments", rate="5/s") as executor, tasks.running(executor):
            for order in range(2):
                await pay.put(4900, id=f"order {order}")
            await asyncio.sleep(40)
        assert len(charged) == 2, charged

    return scenario


PLANTED = {
    "reply lost": Planted(_payments(is_keyed=False), [("bank.charge", "reply lost")], _payments(is_keyed=True)),
    "lost cancel": Planted(_webhooks(is_idempotent=False), [("cancel sender", None)], _webhooks(is_idempotent=True)),
    "race by order": Planted(_loading(waits=False), [("postpone load", None)], _loading(waits=True)),
    "swallowed cancel": Planted(_worker(swallows=True), [("cancel worker", None)], _worker(swallows=False)),
    "timeout in the wrong place": Planted(
        _timeout(is_around_all=True), [("api", "slow")], _timeout(is_around_all=False)
    ),
    "deadlock": Planted(_locks(is_ordered=False), [("first", "0.15 s")], _locks(is_ordered=True)),
    "no timeout": Planted(_silence(has_timeout=False), [("api", "no reply")], _silence(has_timeout=True)),
    "check and act": Planted(_spending(checks_again=False), [("audit delay", None)], _spending(checks_again=True)),
    "executor": Planted(_executor(is_keyed=False), [("bank.charge", "reply lost")], _executor(is_keyed=True)),
    "durable": Planted(_durable(is_keyed=False), [("bank.charge", "reply lost")], _durable(is_keyed=True)),
}
