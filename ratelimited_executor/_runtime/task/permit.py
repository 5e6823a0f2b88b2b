"""The limiter face: wait for a permit as a task waits for its start.

A waiter is a task like any other: it waits in the same order, under the same law, and is counted and explained like one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.task.deferred import DeferredStart
from ratelimited_executor._runtime.task.handles import TaskHandle
from ratelimited_executor._runtime.task.starting import HOLD
from ratelimited_executor.exceptions import TaskExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ratelimited_executor._core.queue.records import Options
    from ratelimited_executor._runtime.limits.backlog import Backlog
    from ratelimited_executor._runtime.repeat.retrying import Retries
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor._runtime.task.starting import Starter
    from ratelimited_executor._runtime.time.clock import Moments

__all__ = ["Permit", "take_now"]


class PermitParts(Protocol):
    """The parts of a started executor that a permit uses."""

    @property
    def engine(self) -> Intake:
        """The engine, to which its task is added."""
        ...

    @property
    def backlog(self) -> Backlog:
        """The backlog, in which it waits for room."""
        ...

    @property
    def starter(self) -> Starter:
        """The starter, which can start its task at once."""
        ...

    @property
    def moments(self) -> Moments:
        """The source of time."""
        ...

    @property
    def retries(self) -> Retries:
        """Returns its task to the queue if its start has lapsed."""
        ...


class Permit:
    """One permit, for one ``async with``, which takes a place of ``max_concurrency`` until it is left.

    Created by ``RateLimitedExecutor.permit``.
    """

    def __init__(self, parts: PermitParts, options: Options | None, admit: Callable[[], Intake]) -> None:
        self._parts = parts
        self._options = options
        self._admit = admit  # called again on entry: the executor may have closed or filled up meanwhile
        self._record: TaskHandle[Any] | None = None
        self._granted: asyncio.Future[Any]  # gets the receipts of the start
        self._effects: list[Any]  # of the start

    @property
    def handle(self) -> TaskHandle[Any] | None:
        """The waiting task, for ``explain()``; None before the permit was requested."""
        return self._record

    async def __aenter__(self) -> TaskHandle[Any]:
        if self._record is not None:
            raise RuntimeError("a permit can be entered only once: call permit() for another")
        options = self._options
        key, expires = (None, None) if options is None else (options.key, options.expires)
        deadline = None if expires is None else self._parts.engine.now() + expires
        try:
            async with asyncio.timeout_at(deadline):
                engine = await self._parts.backlog.in_turn(key, self._admit)
        except TimeoutError:
            assert options is not None
            assert expires is not None
            raise TaskExpiredError(options.name or "permit", expires=expires) from None
        if options is not None:
            options.deadline = deadline
        record: TaskHandle[Any] = TaskHandle(
            engine, HOLD, self._wait(engine), due=engine.now(), rank=TaskClass.IMMEDIATE, context=None, options=options
        )
        self._record = record
        record.add_done_callback(self._fail)
        engine.add_immediate(record)
        if options is not None and options.entry is not None:
            self._parts.backlog.drop_excess(options.key)
        while not await self._is_granted(engine, record):
            pass
        return record

    def _wait(self, engine: Intake) -> tuple[Any, ...]:
        """Return the arguments of a start, by which this task is told of it."""
        self._granted, self._effects = engine.loop.create_future(), []
        return self._granted, asyncio.current_task(), self._effects

    async def _is_granted(self, engine: Intake, record: Any) -> bool:
        """Wait for the permit; return False if it has lapsed before this task resumed, which then waits anew."""
        granted, now_ns = self._granted, self._parts.moments.ns
        try:
            receipts = await granted
        except asyncio.CancelledError:
            if record.state is TaskState.RUNNING:
                DeferredStart(self._effects, () if granted.cancelled() else granted.result(), now_ns).drop()
                engine.accounts.release(record, TaskState.CANCELLED, None)
            else:
                record.cancel()
            raise
        start = DeferredStart(self._effects, receipts, now_ns)
        if start.begin():
            if receipts:
                engine.limits.take_effect(receipts)
            return True
        del engine.accounts.holding[record]
        record._outcome = self._wait(engine)  # noqa: SLF001  # a record of ours
        self._parts.retries.wait_anew(record, start, None)
        engine.accounts.on_free()
        return False

    def _fail(self, handle: TaskHandle[Any]) -> None:
        """End a waiter whose task has ended before its start."""
        granted = self._granted
        if granted.done():
            return
        if handle.cancelled():
            granted.cancel(handle._cancel_message)  # noqa: SLF001  # a future's own
        else:
            error = handle.exception()
            assert error is not None
            granted.set_exception(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        record = self._record
        assert record is not None
        if record.state is not TaskState.RUNNING:
            return  # the executor was closed meanwhile
        accounts = self._parts.engine.accounts
        if error is None:
            accounts.release(record, TaskState.DONE, None)
        elif isinstance(error, asyncio.CancelledError):
            accounts.release(record, TaskState.CANCELLED, None)
        else:
            accounts.release(record, TaskState.FAILED, error)
            record.exception()  # the caller gets it: it need not be reported elsewhere


def take_now(parts: PermitParts, options: Options | None) -> bool:
    """Use the permit that a waiter would get at this instant; return False, uncounted, if it would have to wait.

    The waiter joins the due tasks, and is taken if it is the next to start, so it overtakes no task.

    Args:
        parts: the parts of the executor.
        options: the options of the waiter.
    """
    engine = parts.engine
    queue, accounts = engine.queue, engine.accounts
    accounts.detach()
    now = engine.now()
    if queue.is_halted or not accounts.has_place():
        return False
    granted: asyncio.Future[Any] = engine.loop.create_future()
    effects: list[Any] = []
    record: TaskHandle[Any] = TaskHandle(
        engine, HOLD, (granted, None, effects), due=now, rank=TaskClass.IMMEDIATE, context=None, options=options
    )
    if queue.is_unlimited and accounts.max_concurrency is None and queue.gate is None and queue.costs is None:
        accounts.accept()  # there is always a permit, whatever the order
        if queue.on_start is not None:
            queue.on_start(now, now)
        accounts.started_count += 1
        record._start(now)
        accounts.done(record, None)
        return True
    queue.pull(now)
    queue.expire(now)
    if not queue.is_unlimited and not queue.admission.find(now, queue.interval_end):
        return False
    accounts.accepted_count += 1
    queue.add_immediate(record)
    queue.untold_count += 1  # observers are notified once it is certain
    if not queue.take_next(now, record):
        queue.untold_count -= 1
        engine.pending.remove(record)
        accounts.accepted_count -= 1
        return False
    if accounts.on_accepted is not None:
        accounts.on_accepted(1)
    if queue.on_start is not None:
        queue.on_start(now, now)
    parts.starter.start_one(None, record, now)
    start = DeferredStart(effects, granted.result(), parts.moments.ns)
    is_usable = start.begin()
    if is_usable:
        engine.limits.take_effect(granted.result())
    else:  # the process had no CPU since the decision
        start.void()
        accounts.started_count -= 1
    accounts.release(record, TaskState.DONE if is_usable else TaskState.CANCELLED, None)
    return is_usable
