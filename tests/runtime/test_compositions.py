"""Every kind of handle inside every composition of asyncio and anyio, beside an ``asyncio.Task`` that does the same.

A case is a kind of handle, the work of its call, the composition that awaits it, and an event. One helper runs it twice
in virtual time, over a handle and over a reference made of asyncio's own parts, and the two must tell the same story:
result or exception with its message, ``cancelling()`` of the awaiting task, what the call saw and when, the final
states, what is left running, and the reports to the loop's exception handler. The reference runs on the same Python, so
the expectation is always that version's own.
"""

import asyncio
import contextlib
import inspect
import itertools
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from ratelimited_executor import OnError, RateLimitedExecutor

from ..helpers import ALL_CASES


@dataclass
class Case:
    """One run of one case: the state shared by its parts."""

    executor: Any
    loop: Any = field(default_factory=asyncio.get_running_loop)
    story: list[Any] = field(default_factory=list)
    task: Any = None  # that awaits
    subject: Any = None  # that is awaited, where it exists before
    scope: Any = None  # of anyio, where the composition has one
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.loop.time()
        self.gate = self.loop.create_future()

    def tell(self, *what: Any) -> None:
        """Record an event and its time."""
        self.story.append((round(self.loop.time() - self.began, 6), *what))

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call a function at a time of the case."""
        self.loop.call_at(self.began + seconds, call, *args)

    def after_turns(self, turns: int, call: Callable[[], Any]) -> None:
        """Call a function after a number of loop turns; 0 for now."""
        if turns:
            self.loop.call_soon(self.after_turns, turns - 1, call)
        else:
            call()

    async def awaken(self, subject: Any) -> Any:
        """Await a subject in a new task."""
        return await subject


# What a call does.


async def returns(case: Case) -> str:
    await asyncio.sleep(2)
    return "value"


async def raises(case: Case) -> None:
    await asyncio.sleep(2)
    raise ValueError("no")


async def lasts(case: Case) -> str:
    await asyncio.sleep(30)
    return "late"


async def refuses(case: Case) -> str:
    """Ignore a cancellation and return, unless there is another."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        for _ in range(5):  # turns and not seconds: anyio asks again in each, and time stands still until it is through
            await asyncio.sleep(0)
    return "anyway"


async def refuses_for_long(case: Case) -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(1)
    return "anyway"


async def rewords(case: Case) -> None:
    """Raise another cancellation in place of the one received."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise asyncio.CancelledError("reworded")  # noqa: B904


async def converts(case: Case) -> None:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise ValueError("converted") from None


async def cancels_itself(case: Case) -> str:
    """Request the task's own cancellation, and return before it can arrive."""
    await asyncio.sleep(2)
    assert asyncio.current_task().cancel("itself")
    return "never seen"


async def cancels_itself_and_goes_on(case: Case) -> None:
    await asyncio.sleep(2)
    asyncio.current_task().cancel("itself")
    await asyncio.sleep(30)


async def raises_a_cancellation(case: Case) -> None:
    await asyncio.sleep(2)
    raise asyncio.CancelledError("raised")


async def is_gated(case: Case) -> str:
    await case.gate
    return "gated"


WORKS = (
    returns, raises, lasts, refuses, refuses_for_long, rewords, converts, cancels_itself, cancels_itself_and_goes_on, raises_a_cancellation,
)  # fmt: skip


async def told(case: Case, work: Callable[[Case], Awaitable[Any]]) -> Any:
    """Do the work, and record what it sees."""
    case.tell("call starts")
    try:
        result = await work(case)
    except BaseException as error:
        case.tell("call raises", describe(error))
        raise
    case.tell("call returns", result)
    return result


def told_plainly(case: Case, work: Callable[[Case], Awaitable[Any]]) -> Any:
    """Do the work in no time, in a plain function."""
    case.tell("call runs")
    if work is raises:
        raise ValueError("no")
    return "value"


def told_in_thread(case: Case, work: Callable[[Case], Awaitable[Any]]) -> Any:
    """Do the work in a worker thread."""
    future = asyncio.run_coroutine_threadsafe(work(case), case.loop)
    return case.loop.result_in_thread(future)


# What is awaited: a kind of ours, and the same made of asyncio's parts.


def watched(coroutine: Any) -> asyncio.Task[Any]:
    """Return a task whose exception is retrieved, even if nobody awaits it."""
    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


class Lasting:
    """An awaitable that is not a future, and is not cancelled with its awaiters."""

    def __init__(self, call: Any, result: Callable[[asyncio.Task[Any]], Any]) -> None:
        self.task = watched(call)
        self.result = result

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        await asyncio.wait([self.task])
        return self.result(self.task)


def counts_of(task: asyncio.Task[Any]) -> tuple[int, int, int]:
    failed = not task.cancelled() and task.exception() is not None
    return int(not failed and not task.cancelled()), int(failed), int(task.cancelled())


def result_of(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        raise task.exception()


async def with_counts(batch: Any) -> Any:
    summary = await batch
    return summary.done, summary.failed, summary.cancelled


async def delayed(seconds: float, call: Callable[[], Any]) -> Any:
    await asyncio.sleep(seconds)
    result = call()
    return await result if asyncio.iscoroutine(result) else result


async def in_body(case: Case, entering: Any, work: Any) -> Any:
    async with entering:
        return await told(case, work)


class Arriving:
    """A context manager whose entry takes a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __aenter__(self) -> None:
        await asyncio.sleep(self.seconds)

    async def __aexit__(self, *error: object) -> None:
        pass


def in_body_of_a_permit(case: Case, work: Any) -> Any:
    case.executor.rate = 0
    case.later(1.25, setattr, case.executor, "rate", 1000)
    return in_body(case, case.executor.permit(), work)


async def through_acquire(case: Case, work: Any) -> Any:
    case.executor.rate = 0
    case.later(1.25, setattr, case.executor, "rate", 1000)
    await case.executor.acquire()
    return await told(case, work)


async def all_of(case: Case, work: Any) -> list[Any]:
    (handle,) = await case.executor.invoke_all([partial(told, case, work)])
    return state_of(handle)


async def all_by_asyncio(case: Case, work: Any) -> list[Any]:
    task = watched(told(case, work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    return state_of(task)


async def any_of(case: Case, work: Any) -> Any:
    return await case.executor.invoke_any([partial(told, case, work)])


async def any_by_asyncio(case: Case, work: Any) -> Any:
    task = watched(told(case, work))
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()
    try:
        return task.result()
    except BaseException as error:
        raise BaseExceptionGroup("all 1 calls failed", [error]) from None


async def mapped(case: Case, work: Any) -> list[Any]:
    results = case.executor.map(lambda one: told(case, one), [work])
    async with contextlib.aclosing(results):
        return [result async for result in results]


async def mapped_by_asyncio(case: Case, work: Any) -> list[Any]:
    task = watched(told(case, work))
    try:
        await asyncio.wait([task])
        return [task.result()]
    finally:
        task.cancel()


def repeated(case: Case, work: Any) -> Any:
    handle = case.executor.schedule_at_fixed_rate(told, case, work, period=1, max_runs=1, on_error=OnError.STOP)
    watched(case.awaken(handle))
    return handle


PLAIN = (returns, raises)
IN_THREAD = (returns, raises, lasts)
FEW = (returns, raises, lasts, refuses)  # where the call runs as it does under a TaskHandle


@dataclass(frozen=True)
class Kind:
    """A kind of handle.

    Attributes:
        ours: makes the awaited object of a case and a work.
        theirs: makes the same of asyncio's parts.
        is_future: True if it exists before it is awaited, and others may cancel it.
        works: the works that its call may do.
    """

    ours: Callable[[Case, Any], Any]
    theirs: Callable[[Case, Any], Any]
    is_future: bool = True
    works: tuple[Any, ...] = FEW


def task_of(coroutine: Any) -> Any:
    return asyncio.ensure_future(coroutine)


KINDS = {
    "running": Kind(
        lambda case, work: case.executor.submit(told, case, work),
        lambda case, work: task_of(told(case, work)),
        works=WORKS,
    ),
    "waiting, then running": Kind(
        lambda case, work: case.executor.schedule(told, case, work, delay=1),
        lambda case, work: task_of(delayed(1, lambda: told(case, work))),
    ),
    "waiting": Kind(
        lambda case, work: case.executor.schedule(told, case, work, delay=20),
        lambda case, work: task_of(delayed(20, lambda: told(case, work))),
    ),
    "plain function": Kind(
        lambda case, work: case.executor.schedule(told_plainly, case, work, delay=2),
        lambda case, work: task_of(delayed(2, lambda: told_plainly(case, work))),
        works=PLAIN,
    ),
    "plain function, waiting": Kind(
        lambda case, work: case.executor.schedule(told_plainly, case, work, delay=20),
        lambda case, work: task_of(delayed(20, lambda: told_plainly(case, work))),
        works=PLAIN,
    ),
    "in a thread": Kind(
        lambda case, work: case.executor.submit(told_in_thread, case, work, in_thread=True),
        lambda case, work: task_of(
            anyio.to_thread.run_sync(told_in_thread, case, work, abandon_on_cancel=True)
        ),
        works=IN_THREAD,
    ),
    "future of the futures face": Kind(
        lambda case, work: asyncio.wrap_future(case.executor.as_futures_executor().submit(told_in_thread, case, work)),
        lambda case, work: case.loop.run_in_executor(None, told_in_thread, case, work),
        works=IN_THREAD,
    ),
    "future of another thread": Kind(
        lambda case, work: asyncio.wrap_future(case.executor.schedule_threadsafe(told, case, work)),
        lambda case, work: asyncio.wrap_future(asyncio.run_coroutine_threadsafe(told(case, work), case.loop)),
    ),
    "batch": Kind(
        lambda case, work: with_counts(case.executor.schedule_many(partial(told, case), [work], results=True)),
        lambda case, work: case.awaken(Lasting(told(case, work), counts_of)),
        is_future=False,
    ),
    "repeating": Kind(
        lambda case, work: case.awaken(repeated(case, work)),
        lambda case, work: case.awaken(Lasting(told(case, work), result_of)),
        is_future=False,
        works=(returns, raises, lasts),
    ),
    "permit": Kind(
        in_body_of_a_permit,
        lambda case, work: in_body(case, Arriving(1), work),
        is_future=False,
    ),
    "acquire": Kind(
        through_acquire,
        lambda case, work: delayed(1, lambda: told(case, work)),
        is_future=False,
    ),
    "invoke_all": Kind(all_of, all_by_asyncio, is_future=False),
    "invoke_any": Kind(any_of, any_by_asyncio, is_future=False),
    "map": Kind(mapped, mapped_by_asyncio, is_future=False),
}  # fmt: skip


# How it is awaited. Each takes a case and a function that gives the subject.


async def bare(case, subject):
    return await subject()


async def cancelled_inside(case, subject):
    """The awaiting task has requested its own cancellation before it awaits."""
    asyncio.current_task().cancel("inside")
    return await subject()


async def cancelled_inside_and_taken_back(case, subject):
    asyncio.current_task().cancel("inside")
    try:
        return await subject()
    except asyncio.CancelledError as error:
        return describe(error), asyncio.current_task().uncancel()


async def caught(case, subject):
    try:
        return await subject()
    except asyncio.CancelledError as error:
        await asyncio.sleep(1)
        return describe(error)


async def in_task_group(case, subject):
    async with asyncio.TaskGroup() as group:
        child = group.create_task(case.awaken(subject()))
    return child.result()


async def beside_failing_sibling(case, subject):
    async def fails():
        await asyncio.sleep(5)
        raise KeyError("sibling")

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        return await subject()


async def in_task_group_with_failing_sibling(case, subject):
    async def fails():
        await asyncio.sleep(5)
        raise KeyError("sibling")

    async with asyncio.TaskGroup() as group:
        child = group.create_task(case.awaken(subject()))
        group.create_task(fails())
    return child.result()


async def in_task_group_in_timeout(case, subject):
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        child = group.create_task(case.awaken(subject()))
    return child.result()


async def in_timeout(case, subject, seconds=5):
    async with asyncio.timeout(seconds) as timeout:
        result = await subject()
    return result, timeout.expired()


async def in_timeouts(case, subject, outer=5, inner=10):
    async with asyncio.timeout(outer) as around:
        try:
            async with asyncio.timeout(inner) as timeout:
                result = await subject()
        except TimeoutError:
            result = asyncio.current_task().cancelling()
        await asyncio.sleep(0)
    return result, timeout.expired(), around.expired()


async def in_wait_for(case, subject, seconds=5):
    return await asyncio.wait_for(subject(), seconds)


async def in_shield(case, subject):
    return await asyncio.shield(subject())


async def in_shield_in_timeout(case, subject):
    inner = asyncio.ensure_future(subject())
    try:
        async with asyncio.timeout(5):
            return await asyncio.shield(inner)
    except TimeoutError:
        return "shielded", await inner


async def in_gather(case, subject):
    return await asyncio.gather(subject(), asyncio.sleep(7, "other"))


async def in_gather_with_exceptions(case, subject):
    results = await asyncio.gather(subject(), asyncio.sleep(7, "other"), return_exceptions=True)
    # Not the message of a cancellation: asyncio loses it here, and ours is kept.
    return [type(one) if isinstance(one, BaseException) else one for one in results]


async def in_gather_with_failing_sibling(case, subject):
    async def fails():
        await asyncio.sleep(5)
        raise KeyError("sibling")

    return await asyncio.gather(subject(), fails())


async def in_gather_in_timeout(case, subject):
    async with asyncio.timeout(5):
        return await asyncio.gather(subject(), asyncio.sleep(1, "other"))


async def in_wait(case, subject, timeout=None):
    future = asyncio.ensure_future(subject())
    done, pending = await asyncio.wait([future], timeout=timeout)
    assert done | pending == {future}
    return [state_of(one) for one in done], len(pending)


async def in_wait_for_first(case, subject):
    futures = [asyncio.ensure_future(subject()), asyncio.ensure_future(asyncio.sleep(5, "other"))]
    done, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for one in pending:
        one.cancel("lost")
    await asyncio.wait(futures)
    return [state_of(one) for one in futures], len(done)


async def in_as_completed(case, subject, timeout=None):
    results = []
    for one in asyncio.as_completed([subject(), asyncio.ensure_future(asyncio.sleep(1, "other"))], timeout=timeout):
        results.append(await one)
    return results


async def in_move_on_after(case, subject, seconds=5):
    result = None
    with anyio.move_on_after(seconds) as scope:
        result = await subject()
    return result, scope.cancel_called, scope.cancelled_caught


async def in_fail_after(case, subject, seconds=5):
    with anyio.fail_after(seconds):
        return await subject()


async def in_scope(case, subject):
    result = None
    with anyio.CancelScope() as case.scope:
        result = await subject()
    await anyio.lowlevel.checkpoint()
    return result, case.scope.cancel_called, case.scope.cancelled_caught


async def in_cancelled_scope(case, subject):
    """The scope is cancelled before its body awaits."""
    result = None
    with anyio.CancelScope() as scope:
        scope.cancel("inside")
        result = await subject()
    return result, scope.cancelled_caught


async def in_scopes(case, subject, outer=5, inner=10, shield=False):
    result = None
    with anyio.move_on_after(outer) as around:
        with anyio.move_on_after(inner, shield=shield) as scope:
            result = await subject()
        case.tell("between", scope.cancelled_caught)
        await anyio.lowlevel.checkpoint()
    return result, scope.cancelled_caught, around.cancelled_caught


async def in_anyio_group(case, subject):
    results = []

    async def child():
        results.append(await subject())

    async with anyio.create_task_group() as group:
        group.start_soon(child)
    return results


async def in_cancelled_anyio_group(case, subject):
    results = []

    async def child():
        results.append(await subject())

    async with anyio.create_task_group() as group:
        case.scope = group.cancel_scope
        case.later(5, group.cancel_scope.cancel)
        group.start_soon(child)
        await anyio.sleep(1)
    return results, group.cancel_scope.cancelled_caught


async def in_anyio_group_with_failing_sibling(case, subject):
    async def child():
        await subject()

    async def fails():
        await anyio.sleep(5)
        raise KeyError("sibling")

    async with anyio.create_task_group() as group:
        group.start_soon(child)
        group.start_soon(fails)


async def in_body_of_anyio_group(case, subject):
    async def fails():
        await anyio.sleep(5)
        raise KeyError("sibling")

    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        return await subject()


async def in_shielded_child_of_cancelled_group(case, subject):
    results = []

    async def child():
        with anyio.CancelScope(shield=True):
            results.append(await subject())

    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
    return results, scope.cancelled_caught


async def inside_move_on_after(case, subject, inner):
    """A composition of asyncio within a scope of anyio."""
    result = None
    with anyio.move_on_after(4) as case.scope:
        result = await inner(case, subject)
    return result, case.scope.cancelled_caught


async def move_on_after_inside(case, subject, outer):
    """A scope of anyio within a composition of asyncio."""

    async def scoped():
        return await in_move_on_after(case, subject)

    return await outer(case, scoped)


COMPOSITIONS = {
    "await": bare,
    "cancelled inside": cancelled_inside,
    "cancelled inside, taken back": cancelled_inside_and_taken_back,
    "caught": caught,
    "TaskGroup": in_task_group,
    "TaskGroup, beside a sibling that fails": beside_failing_sibling,
    "TaskGroup, sibling fails": in_task_group_with_failing_sibling,
    "TaskGroup in timeout": in_task_group_in_timeout,
    "timeout": in_timeout,
    "timeout, long": partial(in_timeout, seconds=50),
    "timeout, past": partial(in_timeout, seconds=0),
    "timeouts, outer first": in_timeouts,
    "timeouts, inner first": partial(in_timeouts, outer=10, inner=5),
    "timeouts, both at once": partial(in_timeouts, outer=5, inner=5),
    "wait_for": in_wait_for,
    "wait_for, long": partial(in_wait_for, seconds=50),
    "wait_for, past": partial(in_wait_for, seconds=0),
    "shield": in_shield,
    "shield in timeout": in_shield_in_timeout,
    "gather": in_gather,
    "gather, exceptions": in_gather_with_exceptions,
    "gather, sibling fails": in_gather_with_failing_sibling,
    "gather in timeout": in_gather_in_timeout,
    "wait": in_wait,
    "wait, timeout": partial(in_wait, timeout=5),
    "wait, first": in_wait_for_first,
    "as_completed": in_as_completed,
    "as_completed, timeout": partial(in_as_completed, timeout=5),
    "move_on_after": in_move_on_after,
    "move_on_after, long": partial(in_move_on_after, seconds=50),
    "move_on_after, past": partial(in_move_on_after, seconds=0),
    "fail_after": in_fail_after,
    "fail_after, long": partial(in_fail_after, seconds=50),
    "CancelScope": in_scope,
    "CancelScope, cancelled inside": in_cancelled_scope,
    "scopes, outer first": in_scopes,
    "scopes, inner first": partial(in_scopes, outer=10, inner=5),
    "scopes, both at once": partial(in_scopes, outer=5, inner=5),
    "scopes, inner shielded": partial(in_scopes, outer=5, inner=50, shield=True),
    "scopes, inner shielded with a deadline": partial(in_scopes, outer=5, inner=10, shield=True),
    "anyio group": in_anyio_group,
    "anyio group, cancelled": in_cancelled_anyio_group,
    "anyio group, sibling fails": in_anyio_group_with_failing_sibling,
    "anyio group, beside a sibling that fails": in_body_of_anyio_group,
    "anyio group, shielded child": in_shielded_child_of_cancelled_group,
    **{
        f"{name} in move_on_after": partial(inside_move_on_after, inner=inner)
        for name, inner in {
            "TaskGroup": in_task_group,
            "timeout": in_timeout,
            "wait_for": in_wait_for,
            "shield": in_shield,
            "gather": in_gather,
            "wait": in_wait,
            "as_completed": in_as_completed,
        }.items()
    },
    **{
        f"move_on_after in {name}": partial(move_on_after_inside, outer=outer)
        for name, outer in {
            "TaskGroup": in_task_group,
            "timeout": partial(in_timeout, seconds=4),
            "wait_for": partial(in_wait_for, seconds=4),
            "shield": in_shield,
            "gather": in_gather,
        }.items()
    },
}


# What happens meanwhile.


def nothing(case: Case) -> None:
    pass


def cancelled_before_its_first_step(case: Case) -> None:
    case.task.cancel("early")


def cancelled(case: Case) -> None:
    case.later(3.5, lambda: case.tell("cancel", case.task.cancel("outside")))


def cancelled_twice_in_a_turn(case: Case) -> None:
    case.later(3.5, lambda: (case.task.cancel("first"), case.task.cancel("second")))


def cancelled_again(case: Case) -> None:
    case.later(3.5, case.task.cancel, "first")
    case.later(4, case.task.cancel, "second")


def subject_is_cancelled(case: Case) -> None:
    case.later(3.5, case.subject.cancel, "third")


def scope_is_cancelled(case: Case) -> None:
    case.later(3.5, lambda: case.scope.cancel("asked"))


def scope_and_awaiter_are_cancelled(case: Case) -> None:
    case.later(3.5, lambda: (case.scope.cancel("asked"), case.task.cancel("outside")))  # two timers have no order


EVENTS = [nothing, cancelled_before_its_first_step, cancelled, cancelled_twice_in_a_turn, cancelled_again]
EVENTS_OF_FUTURES = [subject_is_cancelled]
EVENTS_OF_SCOPES = [scope_is_cancelled, scope_and_awaiter_are_cancelled]


# The helper.

_SCOPE = re.compile(r"scope [0-9a-f]+( by <[^;]*>)?")  # as anyio names a scope: by its address, and its task


def describe(error: BaseException | None) -> Any:
    """Return the comparable parts of an exception."""
    if error is None:
        return None
    if isinstance(error, BaseExceptionGroup):
        return type(error).__name__, error.message, [describe(one) for one in error.exceptions]
    texts = tuple(_SCOPE.sub("scope", one) if isinstance(one, str) else one for one in error.args)
    return type(error).__name__, texts, describe(error.__cause__)


def state_of(future: Any) -> Any:
    """Return how a future has ended, if it has."""
    if not future.done():
        return "pending"
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return ("raised", describe(error)) if error is not None else ("returned", future.result())


async def run(kind: Kind, work: Any, composition: Any, event: Any, *, is_ours: bool) -> list[Any]:
    """Run a case, and return its story."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks()
    async with contextlib.AsyncExitStack() as stack:
        executor = await stack.enter_async_context(RateLimitedExecutor("x")) if is_ours else None
        case = Case(executor)
        loop.set_exception_handler(lambda loop, context: case.tell("handler", describe(context.get("exception"))))
        make = partial(kind.ours if is_ours else kind.theirs, case, work)
        if kind.is_future:
            case.subject = make()
            subject = lambda: case.subject  # noqa: E731
        else:
            subject = make

        async def awaits() -> Any:
            try:
                result = await composition(case, subject)
            except BaseException as error:
                case.tell("awaiter raises", describe(error), asyncio.current_task().cancelling())
                raise
            case.tell("awaiter returns", result, asyncio.current_task().cancelling())

        await asyncio.sleep(0.25)
        case.task = asyncio.create_task(awaits())
        event(case)
        await asyncio.wait([case.task])
        case.tell("awaiter has ended", case.task.cancelled())
        await asyncio.sleep(100)
        if kind.is_future:
            case.tell("subject", state_of(case.subject))
        if not case.task.cancelled():
            case.task.exception()
        case.gate.cancel()
        case.task = case.subject = case.scope = None
    await asyncio.sleep(1)
    case.tell("left", len(asyncio.all_tasks() - others))
    if not kind.is_future:  # in which turn of an instant its call starts, if it is cancelled in that, is its own affair
        case.story.sort(key=lambda event: event[1].startswith("call "))
        match [event for event in case.story if event[1].startswith("call ")]:
            case [(begin, "call starts"), (end, *_)] if begin == end:
                del case.story[-2:]
    return case.story


def events_of(kind: Kind, composition: Any) -> list[Any]:
    """Return the events that may happen while a kind is awaited in a composition."""
    function = getattr(composition, "func", composition)
    has_scope = function in (in_scope, in_cancelled_anyio_group, inside_move_on_after)
    return EVENTS + EVENTS_OF_FUTURES * kind.is_future + EVENTS_OF_SCOPES * has_scope


def cases_of(kind: str, composition: str, *, in_sample: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the works and events of a kind in a composition that are in the sample, or those that are not.

    The sample has each work with one of the events, with another in the next composition, and for the next kind.
    """
    one, how = KINDS[kind], COMPOSITIONS[composition]
    events = events_of(one, how)
    shift = list(KINDS).index(kind) + list(COMPOSITIONS).index(composition)
    for (step, work), event in itertools.product(enumerate(one.works), events):
        if work is refuses_for_long and "anyio" in inspect.getsource(getattr(how, "func", how)):
            continue  # anyio asks again in each turn, and meanwhile virtual time stands still
        if in_sample == (event is events[(step + shift) % len(events)]):
            yield work, event


async def check_stories(cells: Iterable[tuple[str, str]], *, in_sample: bool) -> None:
    """Run the cases of kinds in compositions, and assert that both stories of each are the same."""
    different = []
    for kind, composition in cells:
        for work, event in cases_of(kind, composition, in_sample=in_sample):
            theirs, ours = [
                await run(KINDS[kind], work, COMPOSITIONS[composition], event, is_ours=is_ours)
                for is_ours in (False, True)
            ]
            if theirs != ours:
                names = f"{kind}, {composition}, {work.__name__}, {event.__name__}"
                different.append(f"{names}:\n  theirs {theirs}\n  ours   {ours}")
    assert not different, "\n".join(different)


@pytest.mark.parametrize("kind", KINDS)
async def test_composition_tells_the_story_of_an_asyncio_task(virtual_loop, kind):
    """In every composition, a handle tells the story of an ``asyncio.Task``, for any work and any cancellation."""
    await check_stories(itertools.product([kind], COMPOSITIONS), in_sample=True)


@pytest.mark.skipif(not ALL_CASES, reason="run with ALL_CASES=1, for a minute")
@pytest.mark.parametrize("composition", COMPOSITIONS)
async def test_composition_tells_it_for_each_work_and_each_cancellation(virtual_loop, composition):
    """The same holds of the cases that are not in the sample."""
    await check_stories(itertools.product(KINDS, [composition]), in_sample=False)


def test_sample_has_all_pairs():
    """In the sample, every two of kind, composition, work and event meet that meet in any case."""

    def pairs_of(in_sample: bool) -> set[Any]:
        return {
            pair
            for kind, composition in itertools.product(KINDS, COMPOSITIONS)
            for case in cases_of(kind, composition, in_sample=in_sample)
            for pair in itertools.combinations((kind, composition, *case), 2)
        }

    assert pairs_of(False) <= pairs_of(True)


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize(
    ("composition", "target"),
    [
        *itertools.product(
            ["await", "timeout, long", "wait_for, long", "gather", "shield", "CancelScope"], ["task", "subject"]
        ),
        ("CancelScope", "scope"),
    ],
)
async def test_cancellation_in_the_turns_around_the_end(virtual_loop, composition, target, turns):
    """A cancellation in the turns around the end has the same winner as with an ``asyncio.Task``."""

    def end_and_cancel(case: Case) -> None:
        def begin() -> None:
            case.gate.set_result(None)
            case.after_turns(turns, lambda: getattr(case, target).cancel("around"))

        case.later(2, begin)

    kind, how = KINDS["running"], COMPOSITIONS[composition]
    theirs = await run(kind, is_gated, how, end_and_cancel, is_ours=False)
    assert theirs == await run(kind, is_gated, how, end_and_cancel, is_ours=True)


async def in_scope_of_its_own(subject: Any, seconds: float) -> bool:
    with anyio.move_on_after(seconds) as scope:
        await subject
    return scope.cancelled_caught


@pytest.mark.parametrize("delay", [0, 60])
async def test_each_awaiter_of_a_handle_is_cancelled_by_its_own_scope(virtual_clock, delay):
    """Of two tasks that await one handle in scopes of their own, each scope recognizes its cancellation."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(asyncio.sleep, 50, delay=delay)
        tasks = [asyncio.create_task(in_scope_of_its_own(handle, 5)) for _ in range(2)]
        assert [True, True] == await asyncio.gather(*tasks)
        assert handle.cancelled()


async def test_awaiter_that_is_not_cancelled_sees_the_end_of_the_call(virtual_clock):
    """If the scope of one awaiter cancels the call, the others get the cancellation with its message."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(asyncio.sleep, 50)
        other = asyncio.create_task(in_scope_of_its_own(handle, 100))
        assert await in_scope_of_its_own(handle, 5)
        with pytest.raises(asyncio.CancelledError, match="scope"):
            await other


async def test_awaiter_that_is_cancelled_with_the_call_gets_its_own_message(virtual_clock):
    """A scope recognizes its cancellation even if the call is cancelled in the same turn."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(asyncio.sleep, 50)
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_later(5, handle.cancel, "third")
            asyncio.get_running_loop().call_later(5, scope.cancel)
            await handle
        assert scope.cancelled_caught
        task = asyncio.create_task(asyncio.wait_for(executor.schedule(int, delay=9), 5))
        await asyncio.sleep(1)
        task.cancel("own")
        with pytest.raises(asyncio.CancelledError, match="own"):
            await task


async def test_error_of_a_cancelled_call_is_handed_over_once(virtual_clock):
    """The first reader gets the error with its traceback, as with a Task; later ones get the message."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(asyncio.sleep, 50)
        await asyncio.sleep(1)
        handle.cancel("why")
        await asyncio.wait([handle])
        errors = []
        for _ in range(2):
            with pytest.raises(asyncio.CancelledError, match="why") as caught:
                handle.result()
            errors.append([frame.name for frame in caught.traceback])
        assert "sleep" in errors[0]
        assert "sleep" not in errors[1]
