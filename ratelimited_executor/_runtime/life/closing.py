"""How an executor ends: drained, or cut short.

Draining runs the accepted tasks at their due times, and ends early when nothing can progress any more (rate 0, paused,
no place). Cutting short cancels waiting tasks in steps, between which the loop runs, cancels running coroutines, and
waits for them for :data:`GRACE_SECONDS` at most, so that a coroutine that ignores its cancellation cannot block a
server's shutdown. Closing with a million waiting handles blocked the loop for two seconds in one go, and in steps for
five milliseconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.log import LOGGER
from ratelimited_executor._runtime.task.coroutines import cancel_guarded
from ratelimited_executor.exceptions import WrongLoopError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._runtime.insight.listing import Unstarted
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor._runtime.task.coroutines import Coroutines
    from ratelimited_executor._runtime.task.pending import Pending
    from ratelimited_executor._runtime.time.runner import Runnable, Runner

__all__ = ["GRACE_SECONDS", "Closable", "Closing", "check_loop", "close_all"]

GRACE_SECONDS: Final = 5.0
_CUT_COUNT: Final = 2048  # tasks cancelled in one step: one to three milliseconds
_LONG_DRAIN_SECONDS: Final = 60.0  # a longer drain is announced in the log, with the remedy


class Ending(Protocol):
    """The settings that closing uses."""

    @property
    def member(self) -> Any:
        """The executor's membership in a group, which may still bring permits; None without one."""
        ...

    @property
    def is_stopped(self) -> bool:
        """True while nothing may start, even if due."""
        ...

    def halt(self) -> None:
        """Start nothing more, permanently."""
        ...


class Closable(Protocol):
    """The parts of a started executor that closing uses."""

    @property
    def engine(self) -> Runnable:
        """The engine."""
        ...

    @property
    def controls(self) -> Ending:
        """The controls, which stop further starts."""
        ...

    @property
    def queue(self) -> TaskQueue:
        """The queue of its tasks."""
        ...

    @property
    def accounts(self) -> Accounts:
        """The accounts: running tasks, and the waiters for the end."""
        ...

    @property
    def pending(self) -> Pending:
        """The part that cancels waiting tasks."""
        ...

    @property
    def coroutines(self) -> Coroutines:
        """The coroutines, which know if one of them is in its first step."""
        ...

    @property
    def runner(self) -> Runner:
        """The runner of its manager, with the event loop and the clock."""
        ...


class Closing:
    """The end of one executor: begins once, and may be awaited by any number of tasks.

    Args:
        name: the name of the executor.
        drain_timeout: seconds for which accepted tasks may continue; None for as long as they take.
        on_begin: called when closing begins; it stops repeating tasks.
        on_ended: awaited when nothing runs any more, before the executor counts as closed; None for nothing to await.
        on_closed: called when the executor is closed.
    """

    def __init__(
        self,
        name: str,
        *,
        drain_timeout: float | None,
        on_begin: Callable[[], None],
        on_ended: Callable[[], Awaitable[None]] | None = None,
        on_closed: Callable[[], None],
    ) -> None:
        self.name = name
        self.drain_timeout = drain_timeout
        self.parts: Closable | None = None  # set when the executor starts
        self.is_begun = False
        self.closed = asyncio.Event()
        self._on_begin = on_begin
        self._on_ended = on_ended
        self._on_closed = on_closed
        self._is_cut = False
        self._unstarted: Unstarted | None = None  # collects cancelled tasks, if a caller asked for them
        self._limits: list[asyncio.TimerHandle] = []  # timeouts of later calls of begin()
        self._progress = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """True if nothing waits and nothing runs any more."""
        return self.closed.is_set()

    def begin(self, *, timeout: float | None = None, is_collecting: bool = False) -> None:
        """Accept nothing more and start to drain; a second call may only shorten the first.

        Args:
            timeout: seconds for which accepted tasks may continue; the executor's ``drain_timeout`` if None.
            is_collecting: True to collect the tasks that it cancels: where tasks are eager, it may do so at once.
        """
        if self.is_closed:
            return
        parts = self.parts
        if parts is not None:
            check_loop(self.name, parts.runner.loop)
        if timeout is None:
            timeout = self.drain_timeout
        if self.is_begun:
            if timeout is not None and parts is not None:
                self._limits.append(parts.runner.loop.call_later(timeout, self.cut))
            return
        self.is_begun = True
        if parts is None or parts.runner.loop.is_closed():
            self._close()  # nothing has started, or nothing can ever continue
            return
        self._on_begin()
        parts.accounts.on_end = self._progress.set
        parts.accounts.tell_call_cancelled(self._progress.set)
        if is_collecting:
            self.unstarted()
        self.task = parts.runner.loop.create_task(self._run(parts, timeout), name=f"close {self.name}")

    def unstarted(self) -> Unstarted:
        """Return the collector of tasks cancelled from now on; without this call, none are collected."""
        if self._unstarted is not None:
            return self._unstarted
        from ratelimited_executor._runtime.insight.listing import Unstarted  # noqa: PLC0415  # few programs ask for them

        unstarted = Unstarted(float if self.parts is None else self.parts.queue.timeline.to_epoch)
        if not self.is_closed:
            self._unstarted = unstarted
        return unstarted

    def cut(self) -> None:
        """Cancel waiting and running tasks; closing must have begun."""
        self._is_cut = True
        if self.parts is not None:
            self.parts.controls.halt()
        self._progress.set()

    def abort(self) -> None:
        """Accept nothing more, and cut short."""
        self.begin()
        self.cut()

    def give_up(self) -> None:
        """Count as closed at once: the executor could not be created, and has no tasks."""
        self.is_begun = True
        self._close()

    async def wait(self) -> None:
        """Wait until the executor is closed; cancelling the wait cuts the drain short.

        Raises:
            RuntimeError: in a task of the executor, which would wait for its own end.
        """
        if self.task is None or self.is_closed:
            return
        await self.refuse_own_task()
        await _wait_for([self])

    async def refuse_own_task(self) -> None:
        """Raise in a task of the executor, or in a task that holds one of its permits."""
        parts = self.parts
        if parts is None:
            return
        if parts.accounts.is_inside or parts.coroutines.is_starting:
            await asyncio.sleep(0)  # an eagerly started task counts as running once it has suspended
        current = asyncio.current_task()
        if current in parts.accounts.running.values() or current in parts.accounts.holding.values():
            raise RuntimeError(f"a task of {self.name} cannot wait for the executor's end: it would wait for itself")

    async def _run(self, parts: Closable, timeout: float | None) -> None:
        try:
            await self._drain(parts, timeout)
        finally:
            # Also if this task is cancelled, as asyncio.run() does with remaining tasks.
            try:
                await self._cancel(parts)
                if parts.queue.gate is not None:
                    parts.queue.gate.close()
                await self._wait_for_running(parts)
                if self._on_ended is not None:
                    await self._on_ended()
            finally:
                self._close()

    async def _drain(self, parts: Closable, timeout: float | None) -> None:
        if timeout is None and not self._is_cut:
            self._announce(parts)
        try:
            async with asyncio.timeout(timeout):
                while not self._is_cut and not _is_idle(parts) and not _is_stuck(parts):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            pass

    def _announce(self, parts: Closable) -> None:
        """Warn at once if the drain will take long, to explain a shutdown that seems to hang."""
        last = parts.queue.last_start()
        wait = last - parts.runner.clock.monotonic()
        if wait > _LONG_DRAIN_SECONDS:
            LOGGER.warning(
                "%s: closing waits for %d task(s), the last of which is due in %.0f s; "
                "drain_timeout= or shutdown(timeout=) limits that",
                self.name,
                parts.accounts.waiting_count(),
                wait,
            )

    async def _cancel(self, parts: Closable) -> None:
        for feeder in list(parts.accounts.feeders):
            cancel_guarded(parts.runner.loop, feeder)
        running = list(parts.accounts.running.values())
        for task in running:
            cancel_guarded(parts.runner.loop, task)
        count = 0
        steps = _cut(parts, self._unstarted)
        try:
            for step in steps:
                count += step
                await asyncio.sleep(0)
        finally:
            count += sum(steps)  # in one go if this task is cancelled
            if count or running:
                level = logging.INFO if self._is_cut else logging.WARNING  # a cut was requested, the rest is a surprise
                message = "%s: closed with %d waiting and %d running task(s) cancelled"
                LOGGER.log(level, message, self.name, count, len(running))

    async def _wait_for_running(self, parts: Closable) -> None:
        tasks = {*parts.accounts.running.values(), *parts.accounts.feeders}
        if not tasks:
            return
        import anyio  # noqa: PLC0415  # most programs close without it

        with anyio.CancelScope(shield=True):
            _, left = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        if left:
            names = ", ".join(sorted(task.get_name() for task in left)[:5])
            LOGGER.warning("%s: %d task(s) ignored their cancellation: %s", self.name, len(left), names)

    def _close(self) -> None:
        self.closed.set()
        self._unstarted = None
        for limit in self._limits:
            limit.cancel()
        if self.parts is not None:
            self.parts.accounts.on_end = None
            self.parts.runner.disarm(self.parts.engine)
        self._on_closed()


async def close_all(closings: Sequence[Closing]) -> None:
    """Close several executors concurrently; cancelling this cuts all of them short."""
    for closing in closings:
        closing.begin()
    for closing in closings:
        await closing.refuse_own_task()
    await _wait_for(closings)


async def _wait_for(closings: Sequence[Closing]) -> None:
    """Wait until all are closed; when cancelled, cut all short, and raise once they are closed."""
    tasks = [closing.task for closing in closings if closing.task is not None]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        import anyio  # noqa: PLC0415  # most programs close without it

        for closing in closings:
            closing.cut()
        with anyio.CancelScope(shield=True):
            while not all(task.done() for task in tasks):  # within GRACE_SECONDS, even if cancelled again
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(tasks)
        raise
    for task in tasks:
        if not task.cancelled():
            task.result()


def check_loop(name: str, loop: asyncio.AbstractEventLoop) -> None:
    """Raise outside the executor's own event loop, while that is open.

    Raises:
        WrongLoopError: from another thread or event loop.
    """
    if asyncio._get_running_loop() is not loop and not loop.is_closed():
        raise WrongLoopError(name)


def _cut(parts: Closable, unstarted: Unstarted | None) -> Iterator[int]:
    """Start nothing more, and cancel waiting tasks in steps of a millisecond or two; yield the count of each step.

    Args:
        parts: the parts of the executor.
        unstarted: collects the cancelled tasks; None if no caller asked for them.
    """
    parts.controls.halt()
    owners: dict[BatchHandle[Any], None] = dict.fromkeys(source.owner for source in parts.queue.batches())
    for owner in owners:
        if unstarted is not None:
            unstarted.add_batch(owner)
        yield from owner._cancel_steps(_CUT_COUNT)
    record: Any
    for plain_count, records in parts.queue.cut(_CUT_COUNT, None if unstarted is None else unstarted.add_call):
        for record in records:
            if record._state is not TaskState.WAITING:  # an observer of the previous one has cancelled it
                continue
            if unstarted is not None:
                unstarted.add_record(record)
            parts.pending.cancel(record, None)
        parts.accounts.note_cancelled(plain_count)
        yield plain_count + len(records)


def _is_stuck(parts: Closable) -> bool:
    """True if nothing runs, and nothing will start unless a setting changes."""
    if parts.accounts.running_count():
        return False
    queue = parts.queue
    if queue.is_forgetting:
        queue.next_wake(parts.runner.clock.monotonic())  # a task may have been accepted since it was asked last
    is_forgetting = queue.is_forgetting and parts.engine.armed >= queue.interval_end
    is_asleep = (
        (parts.engine.armed == math.inf or is_forgetting)
        and parts.controls.member is None
        and not parts.accounts.feeders
    )
    if is_asleep and queue.gate is not None and queue.gate.may_get_slots:
        is_asleep = False  # the holders may be other executors or processes
    return parts.controls.is_stopped or is_asleep


def _is_idle(parts: Closable) -> bool:
    return not parts.accounts.feeders and parts.accounts.waiting_count() == 0 and parts.accounts.running_count() == 0
