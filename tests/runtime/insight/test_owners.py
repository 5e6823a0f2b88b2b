"""What runs is known by its name, its key, the time of its start and the line at which it waits, on either kernel."""

import asyncio
import gc
import weakref

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.insight.observing import Listener
from ratelimited_executor._runtime.insight.owners import key_of_owner, name_of_owner, running_tasks
from ratelimited_executor._runtime.task.coroutines import watched
from ratelimited_executor.retries import Retry

from ...helpers import seen

pytestmark = pytest.mark.usefixtures("virtual_clock")


async def wait(_item=None):
    """Wait for longer than any test."""
    await asyncio.sleep(100)


async def nested():
    """Wait in another coroutine."""
    await wait()


async def fail(item):
    """Raise an error; tests schedule it."""
    raise KeyError(item)


async def test_running_tasks_are_listed_in_order_of_their_starts():
    """A task with a handle has name, key and start; an item the name of its batch; a call that of its coroutine."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        accounts = executor._engine.accounts
        executor.submit(wait, name="first", key="ann")
        await asyncio.sleep(1)
        executor.schedule_many(wait, ["a", "b"], name="letter")
        executor.execute(nested)
        await asyncio.sleep(1)
        found = running_tasks(accounts, 10)
        assert [each.name for each in found] == ["first", "letter[0]", "letter[1]", "nested"]
        assert [each.number for each in found] == [1, 2, 3, 4]
        assert (found[0].key, found[0].started, found[1].key) == ("ann", 0.0, None)
        assert [each.place.partition(" (test_owners.py:")[0] for each in found] == ["wait", "wait", "wait", "nested"]
        assert [each.name for each in running_tasks(accounts, 2)] == ["first", "letter[0]"]
        async with executor.permit():
            assert running_tasks(accounts, 10)[-1].name == "a held permit"
            assert running_tasks(accounts, 10)[-1].number is None


async def test_place_is_of_the_callers_code_and_not_of_the_library():
    """A function in a thread, or under a time limit, waits in wrappers of the library, which are not shown."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.submit(wait, run_timeout=50)
        await asyncio.sleep(1)
        [task] = running_tasks(executor._engine.accounts, 10)
        assert task.place.startswith("wait (test_owners.py:")


async def test_looking_at_a_task_keeps_nothing_of_it():
    """After a look, a task that ends leaves neither its handle nor its owner behind, not even in a frame."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(asyncio.sleep, 5, name="one")
        await asyncio.sleep(1)
        assert [each.name for each in running_tasks(executor._engine.accounts, 10)] == ["one"]
        gone = weakref.ref(handle)
        del handle
        await asyncio.sleep(10)
        gc.collect()
        assert gone() is None


def test_what_is_no_task_of_ours_has_no_owner():
    """What stands in place of a task while it is being created has neither owner nor coroutine."""
    assert watched(object()) == (None, None)


async def test_each_failed_attempt_is_told_with_its_owner():
    """A listener of failures is told of each failed attempt, of whatever kind, and whether another one follows."""
    told = []

    def failed(owner, error, state):
        told.append((name_of_owner(owner)[0], key_of_owner(owner), error.args, state.value))

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with RateLimitedExecutor("x") as executor:
        ignore = executor._listen(Listener(failed=failed))
        seen_later = [executor.submit(fail, 1, name="one", key="ann", retry=Retry(2, base=1, on=KeyError))]
        executor.schedule_many(fail, [2], name="many")
        executor.execute(fail, 3)
        executor.call_soon(lambda: {}["4"])
        executor.submit(str)
        cancelled = executor.schedule(str, delay=1)
        cancelled.cancel()
        with pytest.raises(KeyError):
            async with executor.permit():
                raise KeyError(5)
        await asyncio.sleep(60)
        ignore()
        assert executor._engine.accounts.on_failed is None
        seen_later.append(executor.submit(fail, 6))
    for handle in seen_later:
        seen(handle)
    by_item = {str(item): (name, key, state) for name, key, (item,), state in reversed(told)}
    assert [("one", "ann", (1,), "waiting"), ("one", "ann", (1,), "failed")] == [
        each for each in told if each[2] == (1,)
    ]
    assert by_item["2"] == ("many[0]", None, "failed")
    assert by_item["3"] == ("fail", None, "failed")
    assert by_item["4"][0].endswith("<lambda>")
    assert by_item["5"][1:] == (None, "failed")
    assert len(told) == 6
