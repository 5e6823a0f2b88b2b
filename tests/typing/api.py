"""What a type checker knows of calls to the public names: checked by ``mypy --strict``, never run.

A line that must be refused carries an ignore; ``warn_unused_ignores`` fails the check should the line become accepted.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import assert_type

from ratelimited_executor import (
    BatchHandle,
    BatchSummary,
    ExecutorManager,
    Paced,
    Window,
    Pacing,
    Permit,
    Rate,
    RateLimitedExecutor,
    RepeatingHandle,
    TaskHandle,
    TaskState,
    kernel,
)
from ratelimited_executor.abc import Clock, Peers
from ratelimited_executor.handles import CallHandle, FuturesFace, Outcome
from ratelimited_executor.insight import Explanation, Kernel, Statistics
from ratelimited_executor.orders import TaskView, earliest_due_first, latest_due_first
from ratelimited_executor.blocking import (
    BlockingLimiter,
    BlockingManager,
    BlockingPermit,
    BlockingSlots,
    ScheduledExecutor,
    ScheduledFuture,
)
from ratelimited_executor.cycles import SQLiteProgress
from ratelimited_executor.peers import RedisPeers, StaticPeers
from ratelimited_executor.policies import Paced as PacedOfTheModule
from ratelimited_executor.slots import Slot, SlotStatistics
from ratelimited_executor.typing import Order, RateLike


def length(text: str) -> int:
    return len(text)


def join(text: str, count: int) -> str:
    return text * count


async def fetch(url: str, tries: int) -> bytes:
    return url.encode() * tries


async def ping() -> None: ...


class Callable3:
    async def __call__(self, number: int) -> float:
        return number / 2


def tasks(executor: RateLimitedExecutor) -> None:
    """Results have the type that the function returns; what a coroutine function returns is what awaiting it gives."""
    assert_type(executor.schedule(length, "x"), TaskHandle[int])
    assert_type(executor.schedule(fetch, "url", 3, delay=1.5, priority=5, expires=2), TaskHandle[bytes])
    assert_type(
        executor.schedule(fetch, "url", 3, delay="8h", expires=timedelta(hours=1), deadline="1d"), TaskHandle[bytes]
    )
    assert_type(executor.submit(ping), TaskHandle[None])
    assert_type(executor.submit(length, "x", in_thread=True, run_timeout=timedelta(seconds=1)), TaskHandle[int])
    assert_type(executor.schedule(Callable3(), 4), TaskHandle[float])
    assert_type(executor.schedule(functools.partial(fetch, tries=3), "url"), TaskHandle[bytes])
    assert_type(executor.submit(functools.partial(join, "x"), 3), TaskHandle[str])
    assert_type(executor.submit(lambda: 5), TaskHandle[int])
    assert_type(executor.submit(lambda: fetch("url", 2)), TaskHandle[bytes])
    assert_type(executor.schedule(asyncio.sleep, 1.0, "result"), TaskHandle[str])
    assert_type(
        executor.schedule(length, "x", at=datetime.now(UTC), context=contextvars.copy_context()), TaskHandle[int]
    )
    assert_type(executor.execute(length, "x"), None)
    assert_type(executor.schedule_threadsafe(fetch, "url", 3), concurrent.futures.Future[bytes])
    assert_type(executor.schedule_threadsafe(length, "x"), concurrent.futures.Future[int])
    assert_type(
        executor.call_threadsafe(executor.schedule_at_fixed_rate, ping, period=1), concurrent.futures.Future[None]
    )
    # A checker that cannot choose among the overloads of a method gives up: Future[Any] would be what it says.
    of_batch: concurrent.futures.Future[BatchSummary] = executor.call_threadsafe(executor.schedule_many, length, ["x"])
    assert_type(of_batch.result(), BatchSummary)
    assert_type(executor.call_threadsafe(executor.statistics), concurrent.futures.Future[Statistics])


def refused_tasks(executor: RateLimitedExecutor) -> None:
    """Wrong arguments are errors where they are written, and not when the task is due."""
    executor.schedule(length, 5)  # type: ignore[arg-type]  # an int for a str
    executor.schedule(length)  # type: ignore[arg-type, call-arg]  # one too few
    executor.schedule(length, "x", "y")  # type: ignore[arg-type, call-arg]  # one too many
    executor.submit(fetch, "url", "three")  # type: ignore[arg-type, call-arg]  # of a coroutine function, too
    executor.schedule(fetch("url", 3))  # type: ignore[call-overload]  # a coroutine in place of a function
    executor.schedule("text")  # type: ignore[call-overload]  # no callable
    executor.execute(length, 5)  # type: ignore[arg-type]  # an int for a str
    executor.call_later(1, length, 5)  # type: ignore[arg-type]  # an int for a str
    executor.call_soon(join, "x")  # type: ignore[arg-type]  # one too few
    executor.schedule(length, "x", timeout=5)  # type: ignore[call-overload]  # ambiguous: expires= or run_timeout=
    executor.schedule(length, "x", delay=b"1")  # type: ignore[call-overload]  # bytes for a duration
    executor.submit(length, "x", delay=1)  # type: ignore[call-overload]  # submit means now
    executor.schedule_at_fixed_rate(length, 5, period=1)  # type: ignore[arg-type]  # an int for a str
    executor.schedule_many(length, [1, 2])  # type: ignore[arg-type]  # ints for strs
    executor.rate = object()  # type: ignore[assignment]  # no rate


async def handles(handle: TaskHandle[int]) -> None:
    """A handle has the read side of a future, and says more."""
    assert_type(await handle, int)
    assert_type(handle.result(), int)
    assert_type(handle.exception(), BaseException | None)
    assert_type(handle.done(), bool)
    assert_type(handle.cancelled(), bool)
    assert_type(handle.cancel(), bool)
    assert_type(handle.state, TaskState)
    assert_type(handle.due, float)
    assert_type(handle.started_at, float | None)
    assert_type(handle.lateness, float | None)
    handle.add_done_callback(lambda ended: print(ended.result() + 1))
    wider: TaskHandle[object] = handle
    assert_type(await wider, object)
    assert_type(await asyncio.wait_for(handle, 1), int)
    assert_type(await asyncio.gather(handle, handle), tuple[int, int])


def loop_face(executor: RateLimitedExecutor) -> None:
    """The asyncio face takes what asyncio takes."""
    assert_type(executor.call_later(1, print, "x", 5), CallHandle)
    assert_type(executor.call_at(1.5, length, "x", context=contextvars.copy_context()), CallHandle)
    handle = executor.call_soon(print)
    assert_type(handle.when(), float)
    assert_type(handle.cancel(), None)
    assert_type(executor.call_soon_threadsafe(print, "x"), asyncio.Handle)


async def bulk(executor: RateLimitedExecutor, urls: AsyncIterator[str]) -> None:
    """Bulk calls give what one call gives, many times."""
    batch = executor.schedule_many(length, ["x", "y"], over=60)
    assert_type(batch, BatchHandle[int])
    assert_type(await batch, BatchSummary)
    async for index, outcome in batch:
        assert_type(index, int)
        assert_type(outcome, Outcome[int])
        assert_type(outcome.result(), int)
    assert_type(executor.schedule_many(functools.partial(fetch, tries=2), urls, results=True), BatchHandle[bytes])
    async for size in executor.map(length, urls, limit=5):
        assert_type(size, int)
    async for body in executor.map(functools.partial(fetch, tries=1), ["a"], ordered=False):
        assert_type(body, bytes)
    assert_type(await executor.invoke_all([ping, ping], timeout=5), list[TaskHandle[None]])
    assert_type(await executor.invoke_any([lambda: 5, lambda: 6]), int)


def repeating(executor: RateLimitedExecutor) -> None:
    """Repeating tasks give a handle of their own."""
    assert_type(executor.schedule_at_fixed_rate(ping, period=10), RepeatingHandle)
    assert_type(executor.schedule_with_fixed_delay(length, "x", delay=timedelta(minutes=1)), RepeatingHandle)
    assert_type(executor.schedule_cron("*/5 * * * *", length, "x", tz=UTC), RepeatingHandle)


async def limiter(executor: RateLimitedExecutor) -> None:
    """The limiter keeps the signature of what it decorates."""
    assert_type(executor.permit(priority=1), Permit)
    async with executor.permit() as record:
        assert_type(record.state, TaskState)
    assert_type(await executor.acquire(), None)

    @executor.limited
    async def limited(url: str, *, tries: int = 1) -> bytes:
        return url.encode() * tries

    assert_type(await limited("x", tries=2), bytes)
    await limited(5)  # type: ignore[arg-type]  # an int for a str
    executor.limited(length)  # type: ignore[arg-type]  # a plain function cannot wait


async def futures(executor: RateLimitedExecutor) -> None:
    """The futures face is an executor of the standard library."""
    face = executor.as_futures_executor(max_workers=2)
    assert_type(face, FuturesFace)
    standard: concurrent.futures.Executor = face
    assert_type(face.submit(length, "x"), concurrent.futures.Future[int])
    assert_type(await asyncio.get_running_loop().run_in_executor(standard, length, "x"), int)


async def settings() -> None:
    """Rates, orders, clocks and peers are taken as users write them."""
    rates: list[RateLike] = [5, 0.5, Fraction(1, 3), Decimal("0.1"), "5/min", Rate(5, per=60), float("inf")]
    order: Order = earliest_due_first
    peers: Peers = StaticPeers(3, 1)
    clock: Clock | None = None

    def by_name(task: TaskView) -> str:
        return task.name

    async with ExecutorManager(interval=0.5, peers=peers, clock=clock) as manager:
        executor = manager.executor("one", rate=rates[0], order=order, pacing=Pacing.ON_TIME)
        executor.rate = "10/s"
        assert_type(executor.rate, Rate)
        executor.order = by_name
        executor.max_concurrency = None
        assert_type(executor.statistics(), Statistics)
        assert_type(executor.backlog_seconds(), float)
        assert_type(executor.explain(executor.submit(ping)), Explanation)
        await executor.shutdown(timeout=5)
        assert_type(await executor.await_termination(1), bool)
    async with RateLimitedExecutor("two", rate="100/s", policy=Paced(slack=0.01), max_pending=10) as alone:
        assert_type(alone, RateLimitedExecutor)


def threads() -> None:
    """The blocking face gives what the others give, by ``with``."""
    with BlockingManager(peers=StaticPeers(2, 0)) as manager:
        limiter, gpu = manager.limiter("api", rate="10/s"), manager.slots("gpu", limit=2)
        assert_type((limiter, gpu), tuple[BlockingLimiter, BlockingSlots])
        with limiter.permit(cost={"tokens": 5}, expires="2s") as permit, gpu.hold(priority=1) as slot:
            assert_type(permit, BlockingPermit)
            assert_type(slot, Slot)
            permit.settle({"tokens": 3})
        assert_type(limiter.statistics(), Statistics)
        assert_type(gpu.statistics(), SlotStatistics)
        limiter.rate = "5/s"
        gpu.limit = 3
        limiter.permit(price=1)  # type: ignore[call-arg]
        gpu.hold(2)  # type: ignore[call-arg]


def without_asyncio() -> None:
    """The scheduled executor returns futures of what functions and coroutine functions return."""
    with BlockingManager() as manager, ScheduledExecutor("mail", rate="10/s", manager=manager) as executor:
        assert_type(executor, ScheduledExecutor)
        assert_type(executor.submit(int, "ff", base=16), ScheduledFuture[int])
        assert_type(executor.submit(ping), ScheduledFuture[None])
        assert_type(executor.schedule(divmod, 7, 2, delay="1s", priority=1).result(), tuple[int, int])
        assert_type(executor.schedule(ping, slots=manager.slots("gpu", limit=1)), ScheduledFuture[None])
        assert_type(executor.schedule_many(int, ["1"], over=2).result(), BatchSummary)
        assert_type(executor.schedule_at_fixed_rate(int, "1", period=1, max_runs=2), ScheduledFuture[None])
        assert_type(executor.schedule_cron("@daily", ping, tz="UTC"), ScheduledFuture[None])
        assert_type(list(executor.map(int, ["1"])), list[int])
        assert_type(executor.explain(executor.submit(ping)), Explanation)
        assert_type(executor.limiter, BlockingLimiter)
        futures: list[concurrent.futures.Future[int]] = [executor.submit(int)]
        concurrent.futures.wait(futures)
        executor.schedule(int, delay=1, in_thread=True)  # type: ignore[call-overload]
        executor.schedule_at_fixed_rate(int)  # type: ignore[call-arg]


def modules() -> None:
    """A name of a public module is the one at the top; those of modules that load on use are known as well."""
    classes: tuple[type[RedisPeers], type[SQLiteProgress]] = (RedisPeers, SQLiteProgress)
    assert_type(classes, tuple[type[RedisPeers], type[SQLiteProgress]])
    assert_type(PacedOfTheModule(), Paced)
    assert_type(StaticPeers(2, 0), StaticPeers)
    RateLimitedExecutor("name", order=latest_due_first, policy=PacedOfTheModule(slack=1))
    RateLimitedExecutor("name", policy=PacedOfTheModule(slack="20ms"))
    RateLimitedExecutor("name", policy=Window(margin=timedelta(milliseconds=5)))


def body() -> None:
    """Which kernel runs, and why, can be read and not set."""
    assert_type(kernel, Kernel)
    assert_type((kernel.is_compiled, kernel.reason), tuple[bool, str])
    kernel.reason = "slow"  # type: ignore[misc]
