"""Durable tasks: the functions, the store, and puts into it."""

from __future__ import annotations

import asyncio
import os
import random
import warnings
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, Unpack, overload

import anyio

from ratelimited_executor._core.durable.pauses import PAUSES_MAX, Pause, pause_of
from ratelimited_executor._core.durable.tasks import NOT_OPEN, Duplicate, DurableState, NewTask, key_from
from ratelimited_executor._forks import check_process
from ratelimited_executor._runtime.arguments import (
    callable_of,
    count_of,
    delay_of,
    flag_of,
    member_of,
    seconds_of,
    wall_of,
)
from ratelimited_executor._runtime.durable.codec import JSONCodec, check_codec
from ratelimited_executor._runtime.durable.functions import (
    DurableFunction,
    DurableRef,
    FunctionOptions,
    end_us_of,
    key_text,
    text_of,
    us_of,
)
from ratelimited_executor._runtime.durable.opening import open_store
from ratelimited_executor._runtime.durable.putting import Chunk, Putting, PuttingAhead, check_new, is_refusing
from ratelimited_executor._runtime.durable.reading import ended_rows, latencies_of, task_rows
from ratelimited_executor._runtime.durable.repairs import RepairSummary, Selection, repair
from ratelimited_executor._runtime.durable.repeating import Repetitions
from ratelimited_executor._runtime.durable.repetitions import RepetitionCalls
from ratelimited_executor._runtime.durable.running import AHEAD_MAX, DurableRunner
from ratelimited_executor._runtime.durable.sync_puts import SyncPuts, put_on, refuse_loop
from ratelimited_executor._runtime.durable.waiting import Waiting
from ratelimited_executor._runtime.faces.base import ExecutorBase
from ratelimited_executor._runtime.time.clock import SystemClock, clock_for
from ratelimited_executor._runtime.time.hooks import hooks_of
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import DuplicateTaskError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from types import TracebackType

    from ratelimited_executor._core.durable.pauses import PauseRow
    from ratelimited_executor._core.durable.tasks import BacklogRow, EndedRow, LaneRow, TaskRow
    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.durable.around import Around
    from ratelimited_executor._runtime.durable.codec import Codec
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor.abc import Clock

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["DurableTasks", "PutSummary"]

_ID_BITS: Final = 64  # random bits of an id, after 48 of the time in milliseconds
_ID_MASK: Final = 2**_ID_BITS - 1
_TURN_COUNT: Final = (
    50  # tasks that are read in succession: the loop has other work meanwhile, such as the last transaction
)


@dataclass(frozen=True, slots=True)
class PutSummary:
    """The result of :meth:`DurableTasks.put_many`.

    Attributes:
        created: the number of new tasks.
        duplicates: the number of tasks that exist, by their id or by ``unique=``, or did until recently.
    """

    created: int = 0
    duplicates: int = 0


# A put without await puts nothing: Python's warning is shown each time, unless other filters match, and not once for each line.
warnings.filterwarnings("always", r"coroutine 'Durable(Function|Tasks)\.put", RuntimeWarning, append=True)


class DurableTasks(RepetitionCalls):
    """Functions whose calls survive the process, in a store that the processes of an application may share.

    ``async with tasks:`` opens the store, which is enough to put tasks. ``async with tasks.running(executor):`` also claims
    and runs them. Both close the store again.

    Args:
        store: holds the tasks.
        queue: the queue into which tasks are put and from which they are claimed; several queues may share a store,
            each with its own functions.
        codec: encodes and decodes arguments: an object with ``dumps`` and ``loads`` over bytes; JSON if None.
        lease: seconds after which the claims of a lost process are released to others, > 0.
        open_timeout: seconds for which opening the store is tried again while it is not available, >= 0.
        around: called with the current task before each attempt: returns a context manager, which may be an asynchronous one
            unless the function runs in a thread. The function is called within it.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if it is out of range.
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        queue: str = "default",
        codec: Codec | None = None,
        lease: DurationLike = 15.0,
        open_timeout: DurationLike = 0.0,
        around: Around | None = None,
    ) -> None:
        self.store = _store_of(store)
        self.queue = text_of("queue", queue)
        self.codec: Codec = JSONCodec() if codec is None else check_codec(codec)
        self.lease = seconds_of("lease", lease)
        self._open_timeout = delay_of("open_timeout", open_timeout)
        self._around = None if around is None else callable_of("around", around)
        self._ends = Counter[tuple[str, str]]()  # as of a runner, of those that have closed
        self.functions: dict[tuple[str, int], DurableFunction[Any, Any]] = {}
        self._repetitions = Repetitions(self.queue, self.functions)
        self._putting = Putting(store)
        self._sync_puts = SyncPuts(store, self._open_timeout)
        self._waiting = Waiting(store)
        self._random: Any = random.SystemRandom()
        self._clock: Clock = SystemClock()
        self._id_series = 0, 0, count()  # the milliseconds and the process of the last id, and the bits of the next
        self._runners: list[DurableRunner] = []
        self._user_count = 0  # of ``async with`` blocks
        self._process = 0  # that has entered them
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None  # the lock, and its loop
        self._loop: asyncio.AbstractEventLoop | None = None  # on which the store is open
        self._resources: AsyncExitStack | None = None  # closed with the store, before it

    # Functions

    @overload
    def task(self, fn: Callable[P, R], /) -> DurableFunction[P, R]: ...
    @overload
    def task(self, **options: Unpack[FunctionOptions]) -> Callable[[Callable[P, R]], DurableFunction[P, R]]: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]  # mypy does not match the keys of a TypedDict with **options
        """Register a function, so that its calls can be put, and run here: a decorator, with or without options.

        A task may run more than once, for example after the loss of its process: the function must tolerate that.

        Args:
            fn: the function: a plain one, or one that returns a coroutine.
            name: identifies the function in the store; its ``__name__`` if None. Another name is another function.
            version: identifies the meaning of its arguments. A process that does not know the version leaves the task to others;
                several versions can be registered under one name, each with its own function.
            retry: the retry policy: a :class:`Retry`, or a retrying object of tenacity; None for no retries. After its
                last failed attempt a task becomes a dead letter.
            run_timeout: the longest run of an attempt in seconds; a longer one is cancelled, and has failed.
            in_thread: True to run it in a worker thread, because it blocks.
            priority: the default priority of its tasks.
            expires: the default expiry of its tasks, in seconds.
            lane_fail: the behaviour of its lane after a failure.
            keep: seconds for which its tasks stay in the history after their end (:meth:`history`, :meth:`DurableRef.wait`); None
                to delete them at once.
            keep_result: True to keep what it returns as well, if the codec can encode it within 4 KiB.
            check: called with the arguments of each put, to raise a TypeError or ValueError for those that the function would refuse.

        Raises:
            TypeError: if an argument has a wrong type, or the function has a parameter named like an option of ``put``.
            ValueError: if an argument is out of range, or the name and version are registered already.
        """
        if unknown := options.keys() - FunctionOptions.__annotations__.keys():
            known = ", ".join(sorted(FunctionOptions.__annotations__))
            raise TypeError(f"task() has no option {min(unknown)}=; it has {known}")

        def register(function: Callable[..., Any]) -> DurableFunction[..., Any]:
            made: DurableFunction[..., Any] = DurableFunction(self, function, **options)
            if (made.name, made.version) in self.functions:
                raise ValueError(
                    f"name {made.name!r}, version {made.version}, is registered already: give another name="
                )
            self.functions[made.name, made.version] = made
            return made

        return register if fn is None else register(fn)

    # Putting, and inspecting

    async def put(self, task: NewTask, *, connection: Any = None) -> DurableRef:
        """Put a task that ``new()`` of a function has created; see :meth:`DurableFunction.put`."""
        check_new("task", task)
        check_process(repr(self), self._process)  # before the put waits for a batch of the parent
        if connection is None:
            answer = await self._putting.put(task)
        else:
            [answer] = await self.store.put([task], connection=connection)
        return self._ref_of(task, answer)

    def _ref_of(self, task: NewTask, answer: bool | Duplicate) -> DurableRef:
        if not isinstance(answer, Duplicate):
            return DurableRef(self, task.id, answer)
        if is_refusing(task):
            raise DuplicateTaskError(task.name, answer.id)
        return DurableRef(self, answer.id, created=False, changed=answer.is_changed)

    async def put_many(
        self, tasks: Iterable[NewTask] | AsyncIterable[NewTask], *, connection: Any = None
    ) -> PutSummary:
        """Put many tasks, up to a thousand or 8 MiB in each transaction; return once all are durable.

        Args:
            tasks: tasks created by ``new()`` of functions; an iterator is read on demand.
            connection: as for :meth:`DurableFunction.put`: all tasks are put in its one open transaction.

        Raises:
            TypeError: if another object is among them, or a task with ``OnDuplicate.REFUSE``; whole transactions before it are put, as when an iterator raises.
            StoreUnavailableError: if the store could not complete a transaction; those before it are put.
        """
        chunk, ahead = Chunk(), PuttingAhead(self.store, connection)
        async with ahead:
            async for task in _each(tasks):
                if full := chunk.add(task):
                    await ahead.put(full)
            if chunk.tasks:
                await ahead.put(chunk.tasks)
        return _summary(ahead.answers)

    def put_sync(self, task: NewTask, *, connection: Any = None) -> DurableRef:
        """Put a task that ``new()`` of a function has created; see :meth:`DurableFunction.put_sync`."""
        check_new("task", task)
        refuse_loop("put_sync()", "await put()")
        [answer] = self._put_sync([task], connection)
        return self._ref_of(task, answer)

    def put_many_sync(self, tasks: Iterable[NewTask], *, connection: Any = None) -> PutSummary:
        """Put many tasks as :meth:`put_many` does, from code without asyncio; see :meth:`DurableFunction.put_sync`."""
        refuse_loop("put_many_sync()", "await put_many()")
        chunk, answers = Chunk(), list[bool | Duplicate]()
        for task in tasks:
            if full := chunk.add(task):
                answers += self._put_sync(full, connection)
        if chunk.tasks:
            answers += self._put_sync(chunk.tasks, connection)
        return _summary(answers)

    def _put_sync(self, tasks: list[NewTask], connection: Any) -> list[bool | Duplicate]:
        if connection is not None:
            put_in = getattr(self.store, "put_in", None)
            if put_in is None:
                raise TypeError(f"connection: {self.store!r} takes none: put without it, after the commit")
            return put_in(connection, tasks)  # type: ignore[no-any-return]  # an optional method of a store
        if self._sync_puts.is_possible:
            return self._sync_puts.put(tasks)
        check_process(repr(self), self._process)
        if self._loop is None:
            raise RuntimeError(
                f"{self.store!r} cannot be opened in another thread: open it on an event loop, by 'async with tasks:', or make "
                "it from a path or a URL"
            )
        return put_on(self._loop, self.store.put(tasks))

    def ref(self, id: str) -> DurableRef:
        """Return a reference to the task with an id."""
        return DurableRef(self, text_of("id", id))

    async def counts(self) -> dict[DurableState, int]:
        """Count the tasks of the store in each state."""
        return await self.store.counts()

    async def rows(
        self,
        state: DurableState | None = None,
        *,
        after: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        body_max: int | None = None,
    ) -> list[TaskRow]:
        """Return tasks in one state, or in any, in the order of their numbers: the one that was put first comes first.

        Args:
            state: their state; None for any.
            after: continue behind the task with this number, the last one of an earlier call; 0 to begin.
            limit: the largest number of tasks.
            newest_first: True for the reverse order.
            body_max: how many bytes of the arguments, and of the saved state, of each task are read at most: the first ones.
                None for all.
        """
        return await task_rows(
            self.store,
            None if state is None else member_of("state", state, DurableState),
            after=count_of("after", after),
            limit=count_of("limit", limit, least=1),
            newest_first=flag_of("newest_first", newest_first),
            body_max=None if body_max is None else count_of("body_max", body_max),
        )

    async def history(
        self,
        *,
        function: str | DurableFunction[..., Any] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[EndedRow]:
        """Return ended tasks that are kept, the one that ended last first: of functions with ``keep=``.

        Args:
            function: only those of a function, in all versions: a durable function, or its registered name.
            before: only those with smaller numbers: that of the last row of an earlier call, to continue.
            limit: the largest number of rows.
        """
        name = None if function is None else _name_of(function)
        known = None if before is None else count_of("before", before)
        return await ended_rows(self.store, name, known, count_of("limit", limit, least=1))

    async def _result(self, id: str) -> Any:
        """Return the result of a task once it has ended, for its reference."""
        if self._loop is None:
            raise StoreUnavailableError(repr(self.store), NOT_OPEN)
        return await self._waiting.result(id, self.codec)

    async def backlog(self) -> list[BacklogRow]:
        """Count the tasks of the store that are READY, BEHIND, DEAD or PAUSED, by queue, function and state."""
        return await self.store.backlog()

    async def latencies(self) -> dict[str, float]:
        """Return the latency of each queue of the store: for how many seconds its oldest due task has waited to be claimed.

        Due tasks behind others of their lane, paused ones and dead letters do not count; a queue in which no task waits is left
        out. The time counts from the last due time, which a retry moves. It takes no longer with more tasks: of a queue whose
        due tasks have more than a thousand priorities, the largest thousand are looked at.
        """
        return await latencies_of(self.store, self._clock.wall())

    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        """Return the lanes with the most waiting tasks, the most first."""
        return await self.store.lanes(limit=count_of("limit", limit, least=1))

    async def requeue(self, *ids: str) -> int:
        """Put dead letters back, as if never tried, but with the state that they have saved; return their number."""
        return (await self.store.requeue([text_of("ids", each) for each in ids])).count(DurableState.DEAD)

    async def cancel(self, *ids: str) -> int:
        """Cancel tasks, or remove dead letters; return the number of those that had not ended.

        See :meth:`DurableRef.cancel` for what becomes of tasks that a process has claimed.
        """
        states = await self.store.cancel([text_of("ids", each) for each in ids])
        if claimed := {each for each, state in zip(ids, states, strict=True) if state is DurableState.CLAIMED}:
            for runner in self._runners:
                runner._cancel_ids(claimed)  # noqa: SLF001  # a part of these durable tasks
        return sum(state is not None for state in states)

    # Pauses and repairs

    async def pause(
        self,
        *,
        function: str | DurableFunction[..., Any] | None = None,
        queue: str | None = None,
        lane: str | None = None,
        key: str | int | None = None,
        until: datetime | float | None = None,
    ) -> None:
        """Let no process claim some tasks of the store, until :meth:`resume`; they are kept, and more can be put.

        Running tasks go on. Tasks that a process has claimed and not started are released, as soon as the store notifies the
        process, at its next beat at the latest. A process of an earlier release ignores pauses. A second call with the same
        arguments sets another end.

        Args:
            function: covers the tasks of a function, in all versions: a durable function, or its registered name.
            queue: covers the tasks of a queue; with several of these, the tasks to which all apply.
            lane: covers the tasks of a lane.
            key: covers the tasks with a key.
            until: when the pause ends by itself, by the clock of the store: an aware datetime, or epoch seconds; None for never.

        Raises:
            TypeError: if nothing is named, or an argument has a wrong type.
            ValueError: if an argument is out of range, or 100 other pauses are in force.
        """
        asked = _pause_from("pause", function, queue, lane, key)
        until_us = end_us_of(until)
        others = [each for each in map(pause_of, await self.store.pauses()) if each != asked]
        if len(others) >= PAUSES_MAX:
            raise ValueError(f"at most {PAUSES_MAX} pauses can be in force: pause a function or a queue instead")
        await self.store.pause(asked, until_us)

    async def resume(
        self,
        *,
        function: str | DurableFunction[..., Any] | None = None,
        queue: str | None = None,
        lane: str | None = None,
        key: str | int | None = None,
    ) -> bool:
        """End the pause with exactly these arguments; return False if it was not in force."""
        return await self.store.resume(_pause_from("resume", function, queue, lane, key))

    async def paused(self) -> list[PauseRow]:
        """Return the pauses in force."""
        return await self.store.pauses()

    async def requeue_where(
        self,
        *,
        function: str | DurableFunction[..., Any] | None = None,
        queue: str | None = None,
        lane: str | None = None,
        key: str | int | None = None,
        since: datetime | float | None = None,
        error: str | None = None,
        dry_run: bool = False,
    ) -> RepairSummary:
        """Put many dead letters back, as :meth:`requeue` does, up to a thousand in a transaction.

        Args:
            function: only those of a function, in all versions: a durable function, or its registered name.
            queue: only those of a queue.
            lane: only those of a lane.
            key: only those with a key.
            since: only those whose last attempt was due at this time or later: an aware datetime, or epoch seconds.
            error: only those whose error, a traceback, contains this text.
            dry_run: True to change nothing, and return what would be changed.
        """
        chosen = _selection_from(function, queue, lane, key, since, error)
        change = None if flag_of("dry_run", dry_run) else lambda ids: self.requeue(*ids)
        return await repair(self.store, DurableState.DEAD, chosen, change)

    async def cancel_where(
        self,
        state: DurableState | None,
        *,
        function: str | DurableFunction[..., Any] | None = None,
        queue: str | None = None,
        lane: str | None = None,
        key: str | int | None = None,
        since: datetime | float | None = None,
        error: str | None = None,
        dry_run: bool = False,
    ) -> RepairSummary:
        """Cancel many tasks, or discard many dead letters, as :meth:`cancel` does, up to a thousand in a transaction.

        Args:
            state: their state, None for any. Others that come into the state during the call are not cancelled.
            function: as for :meth:`requeue_where`, and so are the others.
            queue: only those of a queue.
            lane: only those of a lane.
            key: only those with a key.
            since: only those that are or were due at this time or later.
            error: only those whose last failed attempt has an error with this text.
            dry_run: True to change nothing, and return what would be changed.
        """
        known = None if state is None else member_of("state", state, DurableState)
        chosen = _selection_from(function, queue, lane, key, since, error)
        change = None if flag_of("dry_run", dry_run) else lambda ids: self.cancel(*ids)
        return await repair(self.store, known, chosen, change)

    # Opening and running

    async def __aenter__(self) -> Self:
        check_process(repr(self), self._process)
        loop = asyncio.get_running_loop()
        if self._opening is None or (self._user_count == 0 and self._opening[0] is not loop):
            self._opening = loop, asyncio.Lock()
            self._repetitions.lock = asyncio.Lock()
        async with self._opening[1]:
            if self._user_count == 0:
                hooks = hooks_of(loop)
                self._clock = hooks.clock or clock_for(loop)
                self._random = hooks.random or self._random
                await open_store(self.store, self._clock, self._open_timeout)
                self._resources = AsyncExitStack()
                self._resources.push_async_callback(self.store.aclose)
                self._resources.push_async_callback(self._putting.aclose)
                self._resources.push_async_callback(self._waiting.aclose)
                self._process = os.getpid()
                self._loop = loop
            self._user_count += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        check_process(repr(self), self._process)
        self._user_count -= 1
        if self._user_count == 0:
            self._process = 0
            self._loop = None
            self._opening = None  # of this event loop
            resources, self._resources = self._resources, None
            assert resources is not None
            with anyio.CancelScope(shield=True):  # in a scope that is cancelled, each wait would end at once
                await resources.aclose()  # all of them, even if the wait for one is cancelled

    @asynccontextmanager
    async def running(
        self, executor: RateLimitedExecutor, *, ahead: DurationLike = 2.0, drain_timeout: DurationLike | None = None
    ) -> AsyncIterator[DurableRunner]:
        """Claim tasks and run them on an executor, under all its limits, in its order, until the block ends.

        At the end, unstarted tasks are released, running tasks are awaited, and the store is closed. If the block raises,
        running tasks are cancelled and released.

        Args:
            executor: a started executor.
            ahead: seconds of work to claim ahead, > 0, at most 60: use the least that lets the executor start on time.
            drain_timeout: seconds for which running tasks may continue at the end; then they are cancelled and released. None for
                as long as they take.

        Raises:
            TypeError: if the executor is not one.
            ValueError: if a number of seconds is out of range.
            ExecutorNotStartedError: if the executor has not started.
            StoreUnavailableError: if the store cannot be opened.
        """
        if not isinstance(executor, ExecutorBase):
            raise TypeError(f"executor must be a RateLimitedExecutor, got {executor!r}")
        executor._started()
        seconds = seconds_of("ahead", ahead)
        if seconds > AHEAD_MAX:
            raise ValueError(
                f"ahead must be at most {AHEAD_MAX:g} seconds, got {seconds:g}: other processes cannot run claimed tasks"
            )
        limit = None if drain_timeout is None else delay_of("drain_timeout", drain_timeout)
        async with self:
            runner = self._runner(executor, self._repetitions, ahead=seconds)
            await runner._open()
            self._runners.append(runner)
            try:
                try:
                    yield runner
                except BaseException:
                    await runner._close(0.0)  # as executors do: after an exception, running tasks may be unwanted
                    raise
                await runner._close(limit)
            finally:
                self._runners.remove(runner)
                self._ends.update(runner._ends)  # noqa: SLF001  # a part of these durable tasks

    def _runner(self, executor: RateLimitedExecutor, repetitions: Repetitions, *, ahead: float) -> DurableRunner:
        """Return a runner that is not open yet, for :meth:`running` and the test kit."""
        return DurableRunner(
            self.store, executor, queue=self.queue, functions=self.functions, lease=self.lease, ahead=ahead,
            clock=self._clock, numbers=self._random, owner=self.new_id(), repetitions=repetitions,
            around=self._around,
        )  # fmt: skip

    def _ended(self) -> Counter[tuple[str, str]]:
        """Return how many claims of this process have ended, by the name of the function and how, for metrics."""
        ended = Counter(self._ends)
        for runner in self._runners:
            ended.update(runner._ends)  # noqa: SLF001  # as above
        return ended

    def new_id(self) -> str:
        """Return a unique id; later ids are greater, which keeps indexes compact."""
        milliseconds, process = round(self._clock.wall() * 1000), os.getpid()
        series = self._id_series
        if series[0] != milliseconds or series[1] != process:
            series = self._id_series = milliseconds, process, count(self._random.getrandbits(_ID_BITS))
        return f"{milliseconds:012x}{next(series[2]) & _ID_MASK:016x}"  # as monotonic ULIDs do, in any thread

    def __repr__(self) -> str:
        return f"DurableTasks({self.store!r}, queue={self.queue!r})"


def _pause_from(call: str, function: Any, queue: Any, lane: Any, key: Any) -> Pause:
    asked = _scope_from(function, queue, lane, key)
    if asked == Pause():
        raise TypeError(f"{call}() takes function=, queue=, lane= or key=, or several of them, got none")
    return asked


def _selection_from(function: Any, queue: Any, lane: Any, key: Any, since: Any, error: Any) -> Selection:
    if error is not None and not isinstance(error, str):
        raise TypeError(f"error must be a str, got {error!r}")
    scope = _scope_from(function, queue, lane, key)
    since_us = None if since is None else us_of("since", wall_of("since", since))
    return Selection(
        function=scope.function, queue=scope.queue, lane=scope.lane, key=key_from(scope.key), since_us=since_us, error=error
    )  # fmt: skip


def _scope_from(function: Any, queue: Any, lane: Any, key: Any) -> Pause:
    return Pause(
        None if function is None else _name_of(function),
        None if queue is None else text_of("queue", queue),
        None if lane is None else text_of("lane", lane),
        key_text(key),
    )


def _name_of(function: Any) -> str:
    return function.name if isinstance(function, DurableFunction) else text_of("function", function)


def _summary(answers: list[bool | Duplicate]) -> PutSummary:
    created = answers.count(True)
    return PutSummary(created, len(answers) - created)


async def _each(tasks: Iterable[NewTask] | AsyncIterable[NewTask]) -> AsyncIterator[NewTask]:
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield task
    else:
        for number, task in enumerate(tasks, 1):
            yield task
            if number % _TURN_COUNT == 0:
                await asyncio.sleep(0)


def _store_of(store: Any) -> TaskStore:
    if isinstance(store, TaskStore):
        return store
    missing = [name for name in sorted(TaskStore.__abstractmethods__) if not hasattr(store, name)]
    lacks = f", which lacks {', '.join(missing)}" if hasattr(store, "claim") else ""  # one for an earlier release
    raise TypeError(f"store must be a store of tasks, such as SQLiteStore('tasks.db'), got {store!r}{lacks}")
