"""Retries: which failures are retried, how often, when, and with what."""

import asyncio
import contextvars
import sys

import pytest
import tenacity

from ratelimited_executor import (
    Pacing,
    Rate,
    RateLimitedExecutor,
    Retry,
    RetryLater,
    TaskExpiredError,
    TaskState,
    Window,
)
from ratelimited_executor.orders import Fair
from ratelimited_executor.testing import run_virtual

from ...helpers import Flaky, now, seen
from ...kinds import check_law, each_policy

WAYS = ["sync", "async", "async later", "thread", "partial timeout"]


def submit(executor, flaky, way, **options):
    """Submit a flaky call as a function, as a coroutine, or in a thread."""
    if way == "sync":
        return executor.submit(flaky, **options)
    if way == "async":

        async def call():
            return flaky()

        return executor.submit(call, **options)
    if way == "thread":
        loop = asyncio.get_running_loop()

        def call_in_thread():
            flaky.starts.append(loop.time())
            if len(flaky.starts) <= flaky.failures:
                raise flaky.error()
            return "done"

        return executor.submit(call_in_thread, in_thread=True, **options)
    return executor.submit(flaky.later, **options, **({} if way == "async later" else {"run_timeout": 5}))


# Tried again.


@pytest.mark.parametrize("way", WAYS)
async def test_task_that_asks_for_it_is_tried_again(virtual_clock, account, way):
    """A retried task keeps its handle, which waits again and ends with the last attempt's result."""
    flaky = Flaky(2)
    async with RateLimitedExecutor("x") as executor:
        handle = submit(executor, flaky, way)
        called = []
        handle.add_done_callback(called.append)
        while not handle.done():
            await asyncio.sleep(0.01)
            account(executor)
        assert ("done", 3, 3) == (await handle, len(flaky.starts), handle.attempts)
        assert [handle] == called
        counts = executor.statistics()
        assert (1, 3, 2, 1, 0) == (counts.accepted, counts.started, counts.retried, counts.done, counts.failed)
    duration = 0.5 if way in ("async later", "partial timeout") else 0
    assert all(0 <= pause - duration <= 2**number for number, pause in enumerate(flaky.pauses))


@pytest.mark.parametrize("way", WAYS)
async def test_attempts_are_bounded(virtual_clock, account, way):
    """The task fails with the error of its last attempt."""
    flaky = Flaky(100, lambda: None)
    flaky.error = type("Mine", (RetryLater,), {})
    async with RateLimitedExecutor("x", retry=Retry(4, base=0.1, cap=0.2)) as executor:
        handle = submit(executor, flaky, way)
        await asyncio.wait([handle])
        assert isinstance(handle.exception(), flaky.error)
        assert (4, 4, TaskState.FAILED) == (len(flaky.starts), handle.attempts, handle.state)
        assert (3, 1, 4) == (executor.statistics().retried, executor.statistics().failed, executor.statistics().started)
        account(executor)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="coroutines start eagerly from Python 3.12 on")
async def test_coroutine_that_fails_in_its_first_step_is_tried_again(virtual_clock, account):
    """A coroutine that fails in its first step is retried, also with an eager task factory."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    flaky = Flaky(2)
    async with RateLimitedExecutor("x") as executor:
        assert "done" == await submit(executor, flaky, "async")
        account(executor)
    assert 3 == len(flaky.starts)


@pytest.mark.parametrize("policy", each_policy(3), ids=repr)
async def test_each_attempt_takes_a_permit(virtual_clock, policy):
    """Each attempt takes permits at its cost, and all keep the law."""
    starts = []

    def fail():
        starts.append(now())
        raise RetryLater

    async with RateLimitedExecutor("x", rate="6/2s", policy=policy, retry=Retry(3, base=0.01, cap=0.01)) as executor:
        for _ in range(10):
            executor.submit(fail, cost=2).add_done_callback(seen)
    assert 30 == len(starts)
    check_law(policy, starts, "6/2s", costs=[2] * 30)
    assert starts[-1] >= 17


@pytest.mark.parametrize("results", [True, False])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("keyed", [True, False])
async def test_items_of_a_batch_are_tried_again(virtual_clock, account, handler, results, kind, keyed):
    """Items of a batch are retried individually, by index, and the last failure counts."""
    reports = handler()
    attempts: dict[int, int] = {}

    def work(item):
        attempts[item] = attempts.get(item, 0) + 1
        if attempts[item] <= item:
            raise RetryLater(after=1)
        return item * 10

    async def later(item):
        await asyncio.sleep(0.1)
        return work(item)

    options = {"key": "a", "cost": 2} if keyed else {}
    async with RateLimitedExecutor("x", rate=100, retry=Retry(4, base=0.1)) as executor:
        batch = executor.schedule_many(work if kind == "sync" else later, range(6), results=results, **options)
        while not batch.done():
            await asyncio.sleep(0.05)
            account(executor)
        summary = await batch
        assert (6, 4, 2) == (summary.total, summary.done, summary.failed)
        assert {0: 1, 1: 2, 2: 3, 3: 4, 4: 4, 5: 4} == attempts
        assert 12 == executor.statistics().retried
        if results:
            assert [0, 10, 20, 30] == [batch.results[index].result() for index in range(4)]
            assert isinstance(batch.results[5].error, RetryLater)
    assert results or len(reports) == 1


async def test_attempts_of_items_that_have_ended_are_forgotten(virtual_clock):
    """An endless batch does not remember the attempts of ended items."""
    failed = set()

    def fail_once(item):
        if item not in failed:
            failed.add(item)
            raise RetryLater

    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(fail_once, iter(range(100)))
        await batch
        assert {} == batch._attempts


async def test_pauses_are_drawn_up_to_a_power_of_two_and_the_cap():
    """Pauses have full jitter, come after the requested time, and are the same for the same seed."""

    def run(seed, after):
        async def main():
            flakies = [Flaky(6, RetryLater(after)) for _ in range(40)]
            async with RateLimitedExecutor("x", retry=Retry(7, base=0.5, cap=4), pacing=Pacing.ON_TIME) as executor:
                for flaky in flakies:
                    executor.submit(flaky)
            return [flaky.pauses for flaky in flakies]

        return run_virtual(main(), seed=seed)

    def in_thread(seed, after):
        return asyncio.to_thread(run, seed, after)

    for after in (None, 3.0):
        pauses = await in_thread(1, after)
        assert pauses == await in_thread(1, after)
        assert pauses != await in_thread(2, after)
        for number, most in enumerate([0.5, 1, 2, 4, 4, 4]):
            drawn = [each[number] - (after or 0) for each in pauses]
            assert -1e-9 <= min(drawn) < 0.2 * most
            assert 0.8 * most < max(drawn) <= most + 1e-6


@pytest.mark.parametrize(
    ("on", "attempts"),
    [(ValueError, 3), ((KeyError, ValueError), 3), (KeyError, 1), (lambda error: "yes" in str(error), 3), ((), 1)],
)
async def test_failures_that_are_named_are_tried_again(virtual_clock, on, attempts):
    """Failures are retried by class, classes or a function of the exception; others are not."""
    flaky = Flaky(100, ValueError("yes"))
    async with RateLimitedExecutor("x", retry=Retry(3, on=on)) as executor:
        handle = executor.submit(flaky)
        await asyncio.wait([handle])
        assert (attempts, attempts) == (len(flaky.starts), handle.attempts)
        assert isinstance(handle.exception(), ValueError)


@pytest.mark.parametrize("is_batch", [False, True])
async def test_policy_that_raises_ends_the_task(virtual_clock, caplog, is_batch):
    """A policy that raises ends the task with its own failure, and a warning of its own that names both."""

    def wants(error):
        raise KeyError(error)

    async def fails(*_):
        raise ValueError

    def order(task):
        raise LookupError("the order's own")

    async with RateLimitedExecutor("x", retry=Retry(3, on=wants), order=order) as executor:
        if is_batch:
            batch = executor.schedule_many(fails, [1], name="it", results=True, retry=Retry(3, on=wants))
            await batch
            assert isinstance(batch.results[0].error, ValueError)
        else:
            handle = executor.submit(fails, name="it")
            await asyncio.wait([handle])
            assert isinstance(handle.exception(), ValueError)
    name = "it[0]" if is_batch else "it"
    assert [
        'x: the order raised LookupError("the order\'s own"); the task goes last',
        f"x: the retry policy of {name} raised KeyError(ValueError()); the task is not retried",
    ] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_what_is_no_failure_is_not_tried_again(virtual_clock, error):
    """A cancelled task is not retried, and an exit of the program propagates."""
    async with RateLimitedExecutor("x", retry=Retry(3, on=BaseException)) as executor:
        retries = executor._parts.retries
        assert retries._pause(retries.policy, 1, error(), None, "x") is None
        if error is asyncio.CancelledError:
            flaky = Flaky(9, error)
            handle = executor.submit(flaky)
            await asyncio.wait([handle])
            assert handle.cancelled()
            assert 1 == len(flaky.starts)


@pytest.mark.parametrize("retry", [None, Retry(1)])
async def test_policy_of_the_task_goes_before_that_of_the_executor(virtual_clock, retry):
    """The policy of a task or batch overrides the executor's; None means no retry."""
    flaky, other = Flaky(9), Flaky(9)
    async with RateLimitedExecutor("x", retry=Retry(4)) as executor:
        handle = executor.submit(flaky, retry=retry)
        batch = executor.schedule_many(other, [1], retry=retry, results=True)
        await asyncio.wait([handle])
        await batch
        assert (1, 1, 1) == (len(flaky.starts), len(other.starts), handle.attempts)
        seen(handle)


@pytest.mark.parametrize("way", ["task", "batch"])
async def test_policy_of_the_task_holds_where_the_executor_has_none(virtual_clock, way):
    """A task's policy also holds in an executor without retries."""
    flaky = Flaky(2)
    async with RateLimitedExecutor("x", retry=None) as executor:
        if way == "task":
            handle = executor.submit(flaky, retry=Retry(3))
            handle.add_done_callback(seen)
        else:
            await executor.schedule_many(flaky, [1], retry=Retry(3), results=True)
    assert 3 == len(flaky.starts)


async def test_task_that_is_tried_again_keeps_what_it_was_given(virtual_clock):
    """A retried task keeps key, priority, cost, name, thread, timeout and arguments."""
    log = []

    def work(argument):
        log.append((argument, now()))
        if len(log) < 3:
            raise RetryLater

    async with RateLimitedExecutor("x", rate=10, order=Fair(), key_rate=100, retry=Retry(3, base=0.001)) as executor:
        handle = executor.submit(work, "mine", key="k", priority=3, cost=4, name="n")
        executor.schedule_many(int, range(20), key="other")
        await handle
        assert ("k", 3, 4, "n", 3) == (handle.key, handle.priority, handle.cost, handle.name, handle.attempts)
    assert ["mine"] * 3 == [argument for argument, _ in log]
    assert [0.4, 0.4] == pytest.approx(
        [late[1] - early[1] for early, late in zip(log, log[1:], strict=False)], abs=0.11
    )


@pytest.mark.parametrize(
    "way",
    [
        "sync",
        "async",
        "thread",
        "batch",
    ],
)
async def test_each_attempt_sees_the_variables_of_the_caller(virtual_clock, way):
    """Each attempt sees the caller's context variables, and none set by another attempt."""
    variable = contextvars.ContextVar("variable", default="none")
    values = []

    def work(*_):
        values.append(variable.get())
        variable.set(f"attempt {len(values)}")
        if len(values) < 3:
            raise RetryLater

    async def later():
        work()

    variable.set("caller")
    async with RateLimitedExecutor("x") as executor:
        if way == "batch":
            await executor.schedule_many(work, [1])
        else:
            await executor.submit(later if way == "async" else work, in_thread=way == "thread")
    assert ["caller"] * 3 == values


async def test_cancelled_while_it_waits_to_be_tried_again(virtual_clock, account):
    """A task cancelled while it waits for a retry ends at once, without another attempt."""
    flaky = Flaky(9, RetryLater(after=100))
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(flaky, key="a")
        await asyncio.sleep(1)
        assert (TaskState.WAITING, 1, None) == (handle.state, handle.attempts, handle.started_at)
        assert handle.cancel()
        account(executor)
        assert (1, 1) == (handle.attempts, executor.statistics().cancelled)
        batch = executor.schedule_many(Flaky(9, RetryLater(after=100)), range(3), results=True)
        await asyncio.sleep(1)
        assert 3 == batch.cancel()
        account(executor)
        assert 3 == (await batch).cancelled
        assert {TaskState.CANCELLED} == {outcome.state for outcome in batch.results.values()}
    assert now() < 10


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_closing_waits_for_those_to_be_tried_again(virtual_clock, account, timeout):
    """A drain waits for retries, and cancels them at its timeout."""
    flaky = Flaky(1, RetryLater(after=50))
    async with RateLimitedExecutor("x", drain_timeout=timeout) as executor:
        handle = executor.submit(flaky)
        batch = executor.schedule_many(Flaky(1, RetryLater(after=50)), [1])
        await asyncio.sleep(1)
    account(executor)
    if timeout is None:
        assert ("done", 1) == (handle.result(), batch.summary.done)
    else:
        assert handle.cancelled()
        assert 1 == batch.summary.cancelled
        assert 6 == now()


async def test_failure_while_it_closes_by_force_is_a_failure(virtual_clock):
    """A task that fails while the executor is cut is not retried."""

    async def stubborn():
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise RetryLater from None

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(stubborn)
        await asyncio.sleep(1)
        await executor.shutdown(cancel_pending=True)
    assert isinstance(handle.exception(), RetryLater)
    assert 0 == executor.statistics().retried


async def test_attempt_expires_counted_from_its_own_due_time(virtual_clock, account):
    """A retry that gets no permit expires counted from its own due time, and the error says so."""
    flaky = Flaky(9, RetryLater(after=10))
    async with RateLimitedExecutor("x", retry=Retry(9, base=1e-6)) as executor:
        handle = executor.submit(flaky, expires=2)
        await asyncio.sleep(5)
        assert TaskState.WAITING is handle.state
        executor.pause()
        await asyncio.sleep(9)
        assert isinstance(handle.exception(), TaskExpiredError)
        assert 12 <= now() <= 15
        assert (1, 1) == (handle.attempts, executor.statistics().expired)
        account(executor)


# Policies of tenacity's.


async def test_object_of_tenacity_says_when_and_how_often(virtual_clock):
    """Stop, wait and retry of a tenacity object decide; its own loop is not used."""
    flaky = Flaky(9, ValueError)
    policy = tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_incrementing(1, 2))
    async with RateLimitedExecutor("x", retry=policy) as executor:
        handle = executor.submit(flaky)
        await asyncio.wait([handle])
        assert isinstance(handle.exception(), ValueError)
        assert (4, [1, 3, 5]) == (handle.attempts, flaky.pauses)
        other = Flaky(9, KeyError)
        picky = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(ValueError), stop=tenacity.stop_after_attempt(3)
        )
        handle = executor.submit(other, retry=picky)
        await asyncio.wait([handle])
        assert (1, KeyError) == (handle.attempts, type(handle.exception()))
        batch = executor.schedule_many(Flaky(2, ValueError), [1], results=True, retry=policy)
        assert 1 == (await batch).done
        assert "done" == await executor.submit(Flaky(2, ValueError), retry=tenacity.Retrying())


async def test_what_the_other_side_asks_for_goes_before_the_wait_of_tenacity(virtual_clock):
    """``RetryLater`` is retried whatever tenacity's condition, after the longer of both waits."""
    flaky = Flaky(2, RetryLater(after=7))
    policy = tenacity.AsyncRetrying(
        wait=tenacity.wait_fixed(3),
        retry=tenacity.retry_if_exception_type(KeyError),
        stop=tenacity.stop_after_attempt(9),
    )
    async with RateLimitedExecutor("x", retry=policy) as executor:
        await executor.submit(flaky)
    assert [7, 7] == flaky.pauses


@pytest.mark.parametrize("way", ["task", "batch"])
async def test_tenacity_stops_after_a_time(virtual_clock, way):
    """Tenacity's stop after a time counts from the first attempt."""
    flaky = Flaky(50, ValueError)
    policy = tenacity.AsyncRetrying(stop=tenacity.stop_after_delay(10), wait=tenacity.wait_fixed(3))
    async with RateLimitedExecutor("x", retry=policy, drain_timeout=0) as executor:
        if way == "task":
            executor.submit(flaky).add_done_callback(seen)
        else:
            executor.schedule_many(flaky, [1], results=True)
        await asyncio.sleep(100)
    assert [0, 3, 6, 9, 12] == flaky.starts


async def test_another_attempt_reserves_what_the_first_has_reserved(virtual_clock):
    """After a refused attempt is settled to nothing, the next one reserves the full cost again."""
    async with RateLimitedExecutor("x", policy=Window(), resources={"tokens": Rate(100, per=60)}) as executor:
        left = []

        async def ask():
            left.append(executor.statistics().limits[0].left)
            if len(left) == 1:
                handle.settle({"tokens": 0})
                raise RetryLater(1)

        handle = executor.submit(ask, cost={"tokens": 90})
        await handle
        assert [10, 10] == left
        assert 90 == handle.needs["tokens"]
