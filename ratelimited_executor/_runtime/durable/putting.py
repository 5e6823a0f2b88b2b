"""Group commit: puts that arrive during one transaction share the next."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from ratelimited_executor._core.durable.tasks import SIZE_MAX, NewTask, OnDuplicate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from ratelimited_executor._core.durable.tasks import Duplicate
    from ratelimited_executor.abc import TaskStore

__all__ = ["Chunk", "Putting", "PuttingAhead", "check_new", "is_refusing"]

_CHUNK: Final = 1000  # tasks of put_many that share a transaction

_BATCH: Final = 500
"""Tasks of one transaction; with more of them the cost of the commit no longer matters."""


def batch_end(tasks: Iterable[NewTask], count: int) -> int:
    """Return how many of the first tasks are put at once: as many as have ``SIZE_MAX`` bytes, at most ``count``, at least one."""
    size = end = 0
    for task in islice(tasks, count):
        size += len(task.body)
        if size > SIZE_MAX and end:
            break
        end += 1
    return end


def check_new(name: str, task: Any) -> None:
    """Refuse an argument that is no new task: all puts that share its transaction would fail."""
    if not isinstance(task, NewTask):
        raise TypeError(f"{name} must be what new() of a durable function returns, got {task!r}")


def is_refusing(task: NewTask) -> bool:
    """True if the put of a duplicate raises."""
    return task.unique is not None and task.unique.on_duplicate is OnDuplicate.REFUSE


class Chunk:
    """The next tasks of many that are put, as many as share a transaction.

    Attributes:
        tasks: those added since the last full chunk.
    """

    def __init__(self) -> None:
        self.tasks: list[NewTask] = []
        self._size = 0

    def add(self, task: NewTask) -> list[NewTask]:
        """Add a task; return those that are to be put now, if they are enough."""
        check_new("tasks", task)
        if is_refusing(task):
            raise TypeError("put_many() puts the others if it finds a duplicate: use OnDuplicate.KEEP, or put()")
        full: list[NewTask] = []
        self._size += len(task.body)
        if self.tasks and self._size > SIZE_MAX:
            full, self.tasks, self._size = self.tasks, [], len(task.body)
        self.tasks.append(task)
        if len(self.tasks) == _CHUNK:
            full, self.tasks, self._size = self.tasks, [], 0
        return full


class PuttingAhead:
    """Puts chunks of tasks in their order, each while the next one is made; not so in a user's transaction.

    A context manager: at its end all chunks are put, also after an error, unless it is cancelled.

    Args:
        store: the store of the tasks.
        connection: the connection of a user's open transaction, which the maker of the tasks may be using; None without one.

    Attributes:
        answers: those of the store, in the order of the tasks.
    """

    def __init__(self, store: TaskStore, connection: Any) -> None:
        self.answers: list[bool | Duplicate] = []
        self._store = store
        self._connection = connection
        self._putting: asyncio.Task[list[bool | Duplicate]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._putting is None or not isinstance(error, asyncio.CancelledError):
            await self._settle()
            return
        self._putting.cancel()
        with suppress(Exception):  # an error must not take the place of the cancellation
            await self._settle()

    async def put(self, tasks: list[NewTask]) -> None:
        """Begin to put a chunk, once the one before it is put.

        Raises:
            StoreUnavailableError: if the one before it could not be put.
        """
        await self._settle()
        if self._connection is not None:
            self.answers += await self._store.put(tasks, connection=self._connection)
        else:
            self._putting = asyncio.create_task(self._store.put(tasks), name="durable puts")

    async def _settle(self) -> None:
        putting, self._putting = self._putting, None
        if putting is not None:
            self.answers += await putting  # which is cancelled if this is


class Putting:
    """Puts tasks into a store, in batches of concurrent puts.

    No put waits for a batch to fill: if no transaction is in progress, it begins one at once. So a single put takes as
    long as its commit, and under load the batches grow by themselves.

    Args:
        store: the store of the tasks.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._waiting: list[tuple[NewTask, asyncio.Future[bool | Duplicate]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def put(self, task: NewTask) -> bool | Duplicate:
        """Return the store's answer once a task is durable: True if it is new.

        After a cancellation it is unknown if the task was put.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool | Duplicate] = loop.create_future()
        self._waiting.append((task, done))
        if self._flushing is None or self._flushing.done():
            self._flushing = loop.create_task(self._flush(), name="durable puts")
        return await done

    async def aclose(self) -> None:
        """Wait until all pending puts are durable."""
        while self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])

    async def _flush(self) -> None:
        while self._waiting:
            end = batch_end((task for task, _ in self._waiting), _BATCH)
            batch, self._waiting = self._waiting[:end], self._waiting[end:]
            await self._commit(batch)

    async def _commit(self, batch: list[tuple[NewTask, asyncio.Future[bool | Duplicate]]]) -> None:
        try:
            created = await self._store.put([task for task, _ in batch])
        except BaseException as error:  # waiters must learn of every error, including a cancellation
            for _, done in batch:
                if not done.done():
                    done.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        for (_, done), is_new in zip(batch, created, strict=True):
            if not done.done():
                done.set_result(is_new)
