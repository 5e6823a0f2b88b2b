"""Bulk work: one call schedules a function for each of many items.

A batch of sized input keeps a reference to the items and a count; no object is created for an item before it starts.
Items of an iterator are read on demand, a bounded number ahead, and count as accepted when they are read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ratelimited_executor._kernel.fields import HandleFields
from ratelimited_executor._kernel.states import FINAL_STATES, TaskState
from ratelimited_executor._runtime.task.batch_items import INERT_TYPES, call_with_item
from ratelimited_executor._runtime.task.coroutines import cancel_guarded
from ratelimited_executor._runtime.task.failures import Failure

if TYPE_CHECKING:
    import contextvars
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Generator,
        Iterator,
    )

    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.batch_items import Items

__all__ = ["BatchHandle", "BatchSummary", "Outcome", "feed"]

T = TypeVar("T")
_DRAW_COUNT_MAX: Final = 100  # items read between two turns of the loop: about two milliseconds
_LOOK_AHEAD_COUNT: Final = 1000  # the maximum number of items read from an iterator that have not ended


_DONE: Final = TaskState.DONE  # enum members are slow to look up
_FAILED: Final = TaskState.FAILED
_ERROR_STATES: Final = (TaskState.FAILED, TaskState.EXPIRED, TaskState.DROPPED)


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """How the tasks of a batch ended.

    Attributes:
        total: the number of tasks: the sum of the others.
        done: tasks that returned.
        failed: tasks that raised.
        cancelled: tasks cancelled before or during their run.
        expired: tasks that did not start before their deadline.
        dropped: tasks dropped before their start.
    """

    total: int
    done: int
    failed: int
    cancelled: int
    expired: int
    dropped: int


class _WithTraceback:
    """The traceback that an error had when it was kept, see ``failures.py``: no field, as it can be neither compared nor copied."""

    __slots__ = ("_traceback",)


@dataclass(frozen=True, slots=True)
class Outcome(_WithTraceback, Generic[T]):
    """How one task of a batch ended.

    Attributes:
        state: a final state.
        value: what the call returned, or None.
        error: what it raised, or None.
    """

    state: TaskState
    value: T | None
    error: BaseException | None

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "_traceback", self.error.__traceback__)

    def result(self) -> T:
        """Return the result of the call, or raise its exception; a cancelled call raises ``CancelledError``."""
        if self.error is not None:
            raise self.error.with_traceback(getattr(self, "_traceback", None))  # a copy has none
        if self.state is TaskState.CANCELLED:
            raise asyncio.CancelledError
        return self.value  # type: ignore[return-value]  # a call that returned nothing has T = None


class Revokes(Protocol):
    """The part that removes tasks before their start."""

    def revoke(self, source: BatchSource) -> int:
        """Cancel the waiting tasks of a source, and return their number."""
        ...


class BatchHost(Protocol):
    """The parts of its executor that a batch uses."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        ...

    @property
    def accounts(self) -> Accounts:
        """The accounts, which update the counts."""
        ...

    @property
    def pending(self) -> Revokes:
        """The part that removes its tasks before their start."""
        ...


class BatchHandle(HandleFields, Generic[T]):
    """Many tasks of one function: await it for their counts, iterate it for their outcomes, cancel the waiting ones.

    ``await batch`` returns a :class:`BatchSummary` when the last task has ended; cancelling the awaiter does not cancel
    the batch. ``async for index, outcome in batch`` yields each outcome as it arrives; outcomes from before the iteration
    only if the batch was created with ``results=True``. Failures that nobody retrieves are counted, and the first one is
    reported to the loop's exception handler.
    """

    def __init__(
        self,
        engine: BatchHost,
        call: Callable[[Any], Any],
        *,
        name: str,
        keep_results: bool,
        context: contextvars.Context | None,
        own_context: bool,
        retry: Any = None,
    ) -> None:
        self._call = call
        self._name = name
        self._context = context
        self._own_context = own_context  # True if the caller passed the context: calls run in it, not in copies
        self.retry = retry  # the retry policy of its tasks; None for no retries
        self._attempts: dict[int, Any] = {}  # attempts of failed tasks that are retried, by index
        self._engine = engine
        self._accounts = engine.accounts
        self._parts: dict[BatchSource, Items] = {}  # the items of each waiting source
        self._drawn_count = 0  # accepted tasks
        self._is_complete = False  # True once no more tasks will come
        self._is_cancelled = False
        self._counts = dict.fromkeys(FINAL_STATES, 0)
        self._outcomes: dict[int, Outcome[T]] | None = {} if keep_results else None
        self._listeners: list[deque[tuple[int, Outcome[T]]]] = []
        self._on_end: Callable[[int, TaskState, Any], None] | None = None  # called at the end of each task
        self._changed: dict[asyncio.Future[None], None] = {}  # the waiters, in order of arrival
        self._failure: Failure | None = None  # of the iteration of the items
        self._feeder: asyncio.Task[None] | None = None

    # Looking.

    @property
    def name(self) -> str:
        """The name given when the batch was scheduled, or that of its function."""
        return self._name

    @property
    def total(self) -> int:
        """The number of tasks accepted so far; for a lazy batch, the number of items read."""
        return self._drawn_count

    @property
    def open_count(self) -> int:
        """The number of accepted tasks that have not ended."""
        self._accounts.catch_up()
        return self._drawn_count - sum(self._counts.values())

    @property
    def summary(self) -> BatchSummary:
        """The counts so far."""
        self._accounts.catch_up()
        counts = self._counts
        return BatchSummary(
            total=self._drawn_count,
            done=counts[TaskState.DONE],
            failed=counts[TaskState.FAILED],
            cancelled=counts[TaskState.CANCELLED],
            expired=counts[TaskState.EXPIRED],
            dropped=counts[TaskState.DROPPED],
        )

    @property
    def results(self) -> dict[int, Outcome[T]]:
        """The outcomes so far by index, of a batch that was created with ``results=True``."""
        if self._outcomes is None:
            raise ValueError("results are kept only by schedule_many(..., results=True)")
        return dict(sorted(self._outcomes.items()))

    def done(self) -> bool:
        """True if every task has ended and no more will come."""
        return self._is_complete and self.open_count == 0

    def cancelled(self) -> bool:
        """True if the batch was cancelled before its end, by itself or with its executor; running tasks continue."""
        return self._is_cancelled

    def __repr__(self) -> str:
        ended = self._drawn_count - self.open_count
        return f"<BatchHandle {self.name} {ended} of {self._drawn_count}{'' if self._is_complete else '+'} ended>"

    # Waiting.

    def __await__(self) -> Generator[Any, None, BatchSummary]:
        while not self.done():
            yield from self._wait_for_change().__await__()
        if self._failure is not None:
            raise self._failure.again()
        return self.summary

    async def __aiter__(self) -> AsyncIterator[tuple[int, Outcome[T]]]:
        queue: deque[tuple[int, Outcome[T]]] = deque(() if self._outcomes is None else self._outcomes.items())
        self._listeners.append(queue)
        self._note_watched()
        try:
            while True:
                while queue:
                    yield queue.popleft()
                if self.done():
                    break
                await self._wait_for_change()
        finally:
            self._listeners.remove(queue)
        if self._failure is not None:
            raise self._failure.again()

    def cancel(self) -> int:
        """Cancel every waiting task, and read no more items; running tasks continue.

        Returns:
            The number of cancelled tasks.
        """
        return sum(self._cancel_steps(self._drawn_count + 1))

    # For the engine.

    def _cancel_steps(self, step_count: int) -> Iterator[int]:
        """Cancel waiting tasks in steps of ``step_count``, and notify the watcher; yield the count of each step."""
        self._is_cancelled = self._is_cancelled or not self.done()
        if self._feeder is not None:
            cancel_guarded(self._engine.loop, self._feeder)
        self._accounts.detach()
        for source in list(self._parts):
            if source not in self._parts:  # the batch was cancelled between two steps
                continue
            is_watched = self._is_watched()
            del self._parts[source]  # first, as an observer of the cancelled tasks may cancel again
            count = self._engine.pending.revoke(source)
            if is_watched:
                waiting = source.waiting_positions()
                while positions := list(islice(waiting, step_count)):
                    self._counts[TaskState.CANCELLED] += len(positions)
                    for position in positions:
                        self._note(source.indexes[position], TaskState.CANCELLED, None)
                    yield len(positions)
            else:
                self._counts[TaskState.CANCELLED] += count
                yield count
        self._wake()

    def _watch(self, on_end: Callable[[int, TaskState, Any], None]) -> None:
        """Notify a watcher of each task that ends, with its index, state, and result or error."""
        self._on_end = on_end
        self._note_watched()

    def _note_watched(self) -> None:
        """Keep track of each outcome from now on."""
        self._accounts.detach()
        for source in self._parts:
            source.is_watched = True

    def _add_part(self, source: BatchSource, items: Items) -> None:
        """Register accepted tasks; ``items`` holds their items by their index in the whole batch."""
        source.is_watched = self._is_watched() or self._feeder is not None
        self._parts[source] = items
        self._drawn_count += source.count

    def _take_back(self, source: BatchSource, items: Items) -> None:
        """Register a failed task that is to be retried."""
        source.is_watched = self._is_watched() or self._feeder is not None
        self._parts[source] = items

    def _complete(self, error: BaseException | None = None) -> None:
        """Record that no more tasks will come."""
        self._is_complete = True
        self._failure = None if error is None else Failure(error)
        self._wake()

    def _feeder_done(self, feeder: asyncio.Task[None]) -> None:  # noqa: ARG002  # the signature of a callback
        """Complete a batch whose feeder was cancelled before its first step."""
        if not self._is_complete:
            self._complete()

    def _take_items(self, source: BatchSource) -> Items | None:
        """Return the items of a source by their index in the batch; free them here if the last of its tasks starts.

        None if an observer that was notified of the start has cancelled the batch.
        """
        if source.started_count == source.count:
            return self._parts.pop(source, None)
        return self._parts.get(source)

    def _call_and_items(self, source: BatchSource) -> tuple[Callable[[Any], Any], Items]:
        """Return the function for tasks of a source, and its argument for each index in the batch.

        If the type of the items may run the user's code, they are looked up in the call, in the context of its task.
        """
        items = self._parts[source]
        if type(items) in INERT_TYPES:
            return self._call, items
        return partial(call_with_item, self._call, items), range(self._drawn_count)

    def _note_done(self, count: int) -> None:
        """Record successful ends of tasks that nobody watches."""
        self._counts[_DONE] += count

    def _forget(self, source: BatchSource) -> None:
        """Free the items of a source that has no waiting tasks."""
        if not source.live:
            self._parts.pop(source, None)

    def _stretch_ended(self, source: BatchSource) -> None:
        """Record that a stretch of a source has started."""
        if not source.revoked:
            self._forget(source)
        self._wake()

    def _item_ended(self, index: int, state: TaskState, outcome: Any) -> None:
        """Record the end of one task."""
        if self._attempts:
            self._attempts.pop(index, None)
        self._counts[state] += 1
        if self._on_end is not None or self._listeners or self._outcomes is not None:
            self._note(index, state, outcome)
        elif state is _FAILED and self._counts[state] == 1:
            message = f"exception in {self.name}[{index}], the first of its batch to fail"
            self._engine.loop.call_exception_handler({"message": message, "exception": outcome})
        if self._changed:
            self._wake()

    def _note(self, index: int, state: TaskState, outcome: Any) -> None:
        if self._on_end is not None:
            self._on_end(index, state, outcome)
            return
        is_value = state is TaskState.DONE
        error = outcome if state in _ERROR_STATES else None
        record: Outcome[T] = Outcome(state, outcome if is_value else None, error)
        if self._outcomes is not None:
            self._outcomes[index] = record
        for queue in self._listeners:
            queue.append((index, record))

    def _is_watched(self) -> bool:
        return self._on_end is not None or bool(self._listeners) or self._outcomes is not None

    def _wait_for_change(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change that a waiter must see."""
        future: asyncio.Future[None] = self._engine.loop.create_future()
        self._changed[future] = None
        future.add_done_callback(self._changed.pop)
        return future

    def _wake(self) -> None:
        if self._changed and (self._listeners or self._feeder is not None or self.done()):
            for future in self._changed:
                if not future.done():
                    future.set_result(None)


async def feed(
    batch: BatchHandle[Any],
    items: AsyncGenerator[Any, None],
    accept: Callable[[Any, int], None],
    wait_for_turn: Callable[[int, Any], Awaitable[None]],
) -> None:
    """Read the items of an iterator, a bounded number ahead of the ended ones, and have them accepted.

    Args:
        batch: the batch of the items.
        items: the source.
        accept: accepts an item with its index.
        wait_for_turn: returns an awaitable for an index and its item, which ends when the item may be accepted.
    """
    index = 0
    error: BaseException | None = None
    try:
        async for item in items:
            await wait_for_turn(index, item)
            accept(item, index)
            index += 1
            if index % _DRAW_COUNT_MAX == 0:
                await asyncio.sleep(0)
            while batch.open_count >= _LOOK_AHEAD_COUNT:
                await batch._wait_for_change()
    except BaseException as raised:  # the iterator is user code: its error goes to whoever awaits the batch
        feeder = asyncio.current_task()
        is_asked = isinstance(raised, asyncio.CancelledError) and feeder is not None and feeder.cancelling() > 0
        error = None if is_asked else raised
        if not isinstance(raised, Exception):
            raise
    finally:
        await items.aclose()  # else a traceback would keep the source, and a generator open
        batch._complete(error)
