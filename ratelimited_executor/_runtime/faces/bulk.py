"""The bulk face: one function over many items, or many functions at once."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Unpack, overload

from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._kernel.due_order import in_due_order
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.arguments import INHERITED, callable_of, count_of, delay_of, key_of, wall_of
from ratelimited_executor._runtime.faces.tasks import TaskFace, check_context, make_options
from ratelimited_executor._runtime.limits.policy import WhenFull
from ratelimited_executor._runtime.repeat.retrying import check_retry
from ratelimited_executor._runtime.task.coroutines import cancel_guarded

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Callable, Hashable
    from datetime import datetime

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.keys.keys import KeyTable
    from ratelimited_executor._core.repeat.retries import Retry
    from ratelimited_executor._runtime.task.batch_items import Items
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor.typing import BatchOptions, CostLike

__all__ = ["BulkFace"]

I = TypeVar("I")  # noqa: E741  # an item
T = TypeVar("T")
_MAP_LIMIT: Final = 100
_ROOM_SECONDS: Final = 0.1  # between two checks for room that others have left for the next item


class BulkFace(TaskFace):
    """``schedule_many``, ``map``, ``invoke_all`` and ``invoke_any``."""

    __slots__ = ()

    @overload
    def schedule_many(
        self,
        fn: Callable[[I], Awaitable[T]],
        items: Iterable[I] | AsyncIterable[I],
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[T]: ...
    @overload
    def schedule_many(
        self, fn: Callable[[I], T], items: Iterable[I] | AsyncIterable[I], **options: Unpack[BatchOptions]
    ) -> BatchHandle[T]: ...
    def schedule_many(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        delay: DurationLike | None = None,
        delays: Iterable[float] | None = None,
        at: datetime | float | None = None,
        over: DurationLike | None = None,
        count: int | None = None,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        results: bool = False,
        name: str | None = None,
        context: contextvars.Context | None = None,
        key: Hashable | Callable[[Any], Hashable] = None,
        cost: CostLike | Callable[[Any], CostLike] = 1,
        retry: Retry | Any = INHERITED,
    ) -> BatchHandle[Any]:
        """Run ``fn(item)`` for every item, as one batch.

        Args:
            fn: a plain function or one that returns a coroutine, of one argument.
            items: a sequence is referenced, not copied: do not change it. Items of an iterator, async or not, are read on
                demand, at most a thousand ahead.
            delay: seconds from now until all are due; now if no time is given.
            delays: seconds from the call until each is due; as many as there are items.
            at: the due time of all by the wall clock, an aware datetime or epoch seconds.
            over: seconds over which the due times are spread evenly, from now on.
            count: the number of items; needed with ``over`` for an iterator, which may end before it, but not continue after.
            priority: a larger one is more important, where more tasks are due than may start.
            expires: seconds after its due time; a task that has not started by then never does. It counts again at each
                attempt of a task that is retried. The executor's ``expires`` if it is omitted; None for never.
            results: True if outcomes are kept; otherwise the batch only counts.
            name: the name of the tasks, to which their index is added; the function's name if None.
            context: the context variables to run in; those of the caller if None.
            key: the key of the tasks, hashable; or a function of the item that returns it.
            cost: permits that each start uses, >= 1, or a mapping from resource to amount; or a function of the item that returns
                it.
            retry: how a task is retried if it fails, instead of the executor's ``retry``; None for not at all.

        Raises:
            TypeError: if ``fn`` is not callable, ``items`` cannot be iterated, or two times are given.
            ValueError: if a time is NaN, infinite, negative or naive, a cost is out of range, or counts do not agree.
            BacklogFullError: if the items would not fit ``max_pending``.
            RateLimitedExecutorError: if the executor is not open, or not on this loop.
        """
        begin = self._admit(0).now()  # delays count from the call: checking a million of them takes its time
        wall = None if at is None else self._started().moments.wall()
        callable_of("fn", fn)
        check_context(context)
        times = {"delay": delay, "delays": delays, "at": at, "over": over}
        given = [key for key, value in times.items() if value is not None]
        if len(given) > 1:
            raise TypeError(f"schedule_many() takes one of delay=, delays=, at= and over=, not {' and '.join(given)}")
        options = make_options(priority=priority, expires=self._expires_of(expires), name=name)
        terms = _Terms(self._keys, self._needs_of, key=key, cost=cost)
        policy = self._retry if retry is INHERITED else check_retry("retry", retry)
        plan = _Plan(
            terms=terms,
            priority=priority,
            expires=math.inf if options is None or options.expires is None else options.expires,
            delay=0.0 if delay is None else delay_of("delay", delay),
            wall_due=None if at is None else wall_of("at", at),
            over=None if over is None else delay_of("over", over),
            is_immediate=not given,
        )
        if count is not None:
            count_of("count", count)
        if isinstance(items, Collection):
            sized: Sequence[Any] = items if isinstance(items, Sequence) else tuple(items)
            if count is not None and count != len(sized):
                raise ValueError(f"count must be the number of items, {len(sized)}, or omitted, got {count}")
            offsets = None if delays is None else _offsets(delays, len(sized))
            groups = terms.groups(sized)
            engine = self._admit_groups(groups, len(sized), priority)
            batch: BatchHandle[Any] = self._batch(engine, fn, name, results=results, context=context, retry=policy)
            plan.anchor(begin, wall=wall)
            plan.accept_all(engine, batch, sized, groups, offsets)
            batch._complete()
            return batch
        if not isinstance(items, (Iterable, AsyncIterable)):
            raise TypeError(f"items must be an iterable or async iterable, got {items!r}")
        if delays is not None:
            raise TypeError("delays= needs items with a length: pass a list")
        if over is not None and count is None:
            raise ValueError("over= needs items with a length, or count=")
        engine = self._admit(
            0 if self._when_full is WhenFull.WAIT else 1
        )  # there the first item waits, like the others
        batch = self._batch(engine, fn, name, results=results, context=context, retry=policy)
        plan.anchor(begin, wall=wall)
        self._feed(engine, batch, _async(items), plan, count)
        return batch

    @overload
    def map(
        self,
        fn: Callable[[I], Awaitable[T]],
        items: Iterable[I] | AsyncIterable[I],
        *,
        limit: int = ...,
        ordered: bool = ...,
        priority: float = ...,
        expires: DurationLike | None = ...,
        key: Hashable | Callable[[I], Hashable] = ...,
        cost: CostLike | Callable[[I], CostLike] = ...,
    ) -> AsyncIterator[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[I], T],
        items: Iterable[I] | AsyncIterable[I],
        *,
        limit: int = ...,
        ordered: bool = ...,
        priority: float = ...,
        expires: DurationLike | None = ...,
        key: Hashable | Callable[[I], Hashable] = ...,
        cost: CostLike | Callable[[I], CostLike] = ...,
    ) -> AsyncIterator[T]: ...
    def map(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        limit: int = _MAP_LIMIT,
        ordered: bool = True,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        key: Hashable | Callable[[Any], Hashable] = None,
        cost: CostLike | Callable[[Any], CostLike] = 1,
    ) -> AsyncIterator[Any]:
        """Iterate over ``fn(item)`` for every item; the first failure raises, and leaving cancels the remaining calls.

        Args:
            fn: a plain function or one that returns a coroutine, of one argument.
            items: read on demand.
            limit: the maximum number of calls that wait, run or have results that were not taken yet.
            ordered: True for results in the order of the items, False for results as they end.
            priority: a larger one is more important.
            expires: seconds that a call may wait, as for :meth:`schedule`; one that waits longer fails.
            key: the key of the calls, hashable; or a function of the item that returns it.
            cost: what each start uses, as for :meth:`schedule`; or a function of the item that returns it.

        Raises:
            TypeError: if ``fn`` is not callable, or ``items`` cannot be iterated.
            RateLimitedExecutorError: if the executor is not open, or not on this loop.
        """
        self._admit(0)
        callable_of("fn", fn)
        count_of("limit", limit, least=1)
        make_options(priority=priority, expires=self._expires_of(expires))
        if not isinstance(items, (Iterable, AsyncIterable)):
            raise TypeError(f"items must be an iterable or async iterable, got {items!r}")
        _Terms(self._keys, self._needs_of, key=key, cost=cost)  # bad arguments raise here
        is_refusing = self._when_full is WhenFull.RAISE

        async def submit(item: Any, handles: Collection[TaskHandle[Any]]) -> TaskHandle[Any]:
            own = key(item) if callable(key) else key
            price = cost(item) if callable(cost) else cost
            held = key_of("key", own, self._keys)
            while (
                is_refusing
                and not self._has_room_of(held)
                and (under_way := [handle for handle in handles if not handle.done()])
            ):
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]  # a future in all but name
            call = partial(self.submit, fn, item, priority=priority, expires=expires, key=own, cost=price)
            return await self._started().backlog.in_turn(held, call)

        return self._map(submit, items, limit=limit, ordered=ordered)

    async def _map(
        self,
        submit: Callable[[Any, Collection[TaskHandle[Any]]], Awaitable[TaskHandle[Any]]],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        limit: int,
        ordered: bool,
    ) -> AsyncIterator[Any]:
        """Read, submit and yield; an async source is awaited beside the calls, so that a slow one delays no result."""
        handles: deque[TaskHandle[Any]] = deque()
        source: Any = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        is_async = isinstance(items, AsyncIterable)
        drawing: asyncio.Future[Any] | None = None
        is_drawn = False
        try:
            while True:
                # While calls of ours are in flight, a full backlog is no error: each start makes room.
                room = min(limit - len(handles), max(self._room(), 0 if handles else 1))
                if not is_async:
                    for item in islice(source, room):
                        handles.append(await submit(item, handles))
                elif drawing is None and not is_drawn and room > 0:
                    drawing = asyncio.ensure_future(anext(source))
                awaited: list[Any] = [
                    *islice(handles, 1 if ordered else None),
                    *(() if drawing is None else (drawing,)),
                ]
                if not awaited:
                    return
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                if drawing is not None and drawing.done():
                    drawn, drawing = drawing, None
                    try:
                        handles.append(await submit(drawn.result(), handles))
                    except StopAsyncIteration:
                        is_drawn = True
                handle = next((one for one in islice(handles, 1 if ordered else None) if one.done()), None)
                if handle is not None:
                    handles.remove(handle)
                    yield handle.result()
        finally:
            if drawing is not None:
                cancel_guarded(drawing.get_loop(), drawing)
            for handle in handles:
                cancel_guarded(handle.get_loop(), handle)

    @overload
    async def invoke_all(
        self, calls: Iterable[Callable[[], Awaitable[T]]], *, timeout: DurationLike | None = ...
    ) -> list[TaskHandle[T]]: ...
    @overload
    async def invoke_all(
        self, calls: Iterable[Callable[[], T]], *, timeout: DurationLike | None = ...
    ) -> list[TaskHandle[T]]: ...
    async def invoke_all(
        self, calls: Iterable[Callable[[], Any]], *, timeout: DurationLike | None = None
    ) -> list[TaskHandle[Any]]:
        """Run every call, and return their handles, all done, in order.

        Args:
            calls: functions without arguments.
            timeout: seconds after which the unfinished are cancelled; None for no limit.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + delay_of("timeout", timeout)
        handles = self._submit_all(calls)
        try:
            if handles:
                left = None if end is None else max(0.0, end - loop.time())
                _, unfinished = await asyncio.wait(handles, timeout=left)  # type: ignore[type-var]  # a future in all but name
                for handle in unfinished:
                    cancel_guarded(handle.get_loop(), handle)
                if unfinished:
                    await asyncio.wait(unfinished)  # type: ignore[type-var]  # a future in all but name
        except asyncio.CancelledError:
            for handle in handles:
                cancel_guarded(handle.get_loop(), handle)
            raise
        return handles

    @overload
    async def invoke_any(
        self, calls: Iterable[Callable[[], Awaitable[T]]], *, timeout: DurationLike | None = ...
    ) -> T: ...
    @overload
    async def invoke_any(self, calls: Iterable[Callable[[], T]], *, timeout: DurationLike | None = ...) -> T: ...
    async def invoke_any(self, calls: Iterable[Callable[[], Any]], *, timeout: DurationLike | None = None) -> Any:
        """Run every call, return the result of the first that succeeds, and cancel the others.

        Args:
            calls: functions without arguments, at least one.
            timeout: seconds to wait at most; None for no limit.

        Raises:
            ValueError: if there are no calls.
            ExceptionGroup: if all have failed.
            TimeoutError: if none has succeeded in time.
        """
        end = None if timeout is None else asyncio.get_running_loop().time() + delay_of("timeout", timeout)
        handles = self._submit_all(calls)
        if not handles:
            raise ValueError("calls must hold at least one function")
        pending: set[Any] = set(handles)
        try:
            async with asyncio.timeout_at(end):
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for handle in (handle for handle in handles if handle in done):
                        if handle.state is TaskState.DONE:
                            return handle.result()
        finally:
            for handle in handles:
                cancel_guarded(handle.get_loop(), handle)
                if handle.state is TaskState.FAILED:
                    handle.exception()  # marks it as retrieved: the call lost
        errors = [_error_of(handle) for handle in handles]
        raise BaseExceptionGroup(f"all {len(handles)} calls failed", errors)

    def _submit_all(self, calls: Iterable[Callable[[], Any]]) -> list[TaskHandle[Any]]:
        if not isinstance(calls, Iterable):
            raise TypeError(f"calls must be an iterable of functions, got {calls!r}")
        functions = list(calls)
        try:
            for function in functions:
                callable_of("calls", function)
        except TypeError:
            coroutines: list[Any] = [function for function in functions if asyncio.iscoroutine(function)]
            for coroutine in coroutines:
                coroutine.close()  # it would warn that it was never awaited
            raise
        self._admit(len(functions))
        return [self.submit(function) for function in functions]

    def _admit_groups(self, groups: list[_Group], count: int, priority: float) -> Intake:
        """Return the engine if it may accept the items of a batch, ``count`` in all, in this call."""
        if self._key_limits.pending is not None:
            counts: Counter[Any] = Counter()
            for group in groups:
                counts[group.key] += len(group.indexes)
            for key, key_count in counts.items():
                self._admit(key_count, key=key, priority=priority)
        return self._admit(count, priority=priority)

    def _batch(
        self,
        engine: Intake,
        fn: Any,
        name: str | None,
        *,
        results: bool,
        context: contextvars.Context | None,
        retry: Any,
    ) -> BatchHandle[Any]:
        from ratelimited_executor._runtime.task.batches import BatchHandle  # noqa: PLC0415  # many programs have no batches

        return BatchHandle(
            engine,
            fn,
            name=name or name_of(fn),
            keep_results=results,
            context=engine.contexts.capture() if context is None else context,
            own_context=context is not None,
            retry=retry,
        )

    def _feed(
        self, engine: Intake, batch: BatchHandle[Any], items: AsyncGenerator[Any, None], plan: _Plan, count: int | None
    ) -> None:
        """Read the items of an iterator in a separate task."""
        from ratelimited_executor._runtime.task.batches import feed  # noqa: PLC0415  # as above

        async def wait_for_turn(index: int, item: Any) -> None:
            if count is not None and index >= count:
                raise ValueError(f"count is {count}, but there are more items")
            ahead = plan.due_of(index, count) - engine.monotonic() - engine.queue.timeline.interval_seconds
            if ahead > 0:
                await asyncio.sleep(ahead)
            while not self._has_room_for(plan, item):
                with contextlib.suppress(TimeoutError):  # the room may become free elsewhere
                    async with asyncio.timeout(_ROOM_SECONDS):  # wait_for() of 3.11 may lose the cancellation
                        await batch._wait_for_change()

        def accept(item: Any, index: int) -> None:
            plan.accept_one(engine, batch, item, index, count)

        batch._feeder = engine.loop.create_task(feed(batch, items, accept, wait_for_turn), name=f"feed {batch.name}")
        engine.accounts.feeders.add(batch._feeder)
        batch._feeder.add_done_callback(batch._feeder_done)
        batch._feeder.add_done_callback(engine.accounts.feeder_done)

    def _room(self) -> int:
        """Return how many more tasks may wait, excluding the places that other producers wait for."""
        if self._max_pending is None:
            return sys.maxsize
        parts = self._started()
        promised = 0
        if parts.backlog.room is not None:
            parts.backlog.room.wake()  # waiters go first
            promised = parts.backlog.room.waiter_count
        return self._max_pending - parts.accounts.waiting_count() - promised

    def _has_room_for(self, plan: _Plan, item: Any) -> bool:
        """True if an item of an iterator may wait."""
        if self._room() <= 0:
            return False
        return self._key_limits.pending is None or self._has_room_of(plan.key_of(item))

    def _has_room_of(self, key: Any) -> bool:
        """True if a task of a key may wait, as far as the limit of the key goes."""
        pending = self._key_limits.pending
        return pending is None or key is None or self._started().backlog.key_count(key) < pending


class _Group(NamedTuple):
    """The items of a batch that have the same key and cost, by their indexes in it."""

    key: Any
    needs: Mapping[str, int] | None
    indexes: Sequence[int]


class _Terms:
    """The keys and costs of the tasks of a batch.

    Args:
        keys: the executor's table of keys.
        needs_of: parses a cost.
        key: for all of them, or a function of the item.
        cost: for all of them, or a function of the item.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a cost is out of range.
    """

    def __init__(
        self, keys: KeyTable, needs_of: Callable[[Any], Mapping[str, int] | None], *, key: Any, cost: Any
    ) -> None:
        self._keys = keys
        self._needs_of = needs_of
        self._key = key if callable(key) else key_of("key", key, keys)
        self._cost = cost
        self.is_varied = callable(key) or callable(cost)
        self._needs = None if callable(cost) else needs_of(cost)

    def of(self, item: Any) -> tuple[Any, Mapping[str, int] | None]:
        """Return the key and the needs of an item."""
        key = key_of("key", self._key(item), self._keys) if callable(self._key) else self._key
        return key, self._needs_of(self._cost(item)) if callable(self._cost) else self._needs

    def groups(self, items: Sequence[Any]) -> list[_Group]:
        """Return the items by key and cost, in order of arrival."""
        if not self.is_varied:
            return [_Group(self._key, self._needs, range(len(items)))]
        found: dict[Any, _Group] = {}
        for index, item in enumerate(items):
            key, needs = self.of(item)
            kind = key, None if needs is None else tuple(sorted(needs.items()))
            group = found.get(kind)
            if group is None:
                group = found[kind] = _Group(key, needs, array("I"))
            group.indexes.append(index)  # type: ignore[attr-defined]  # it is an array
        return list(found.values())


class _Plan:
    """The due times, keys and costs of the tasks of a batch."""

    def __init__(
        self,
        *,
        terms: _Terms,
        priority: float,
        expires: float,
        delay: float,
        wall_due: float | None,
        over: float | None,
        is_immediate: bool,
    ) -> None:
        self._terms = terms
        self._rank = (-priority, TaskClass.IMMEDIATE if is_immediate else TaskClass.OTHER)
        self._expires = expires
        self._delay = delay
        self._wall_due = wall_due
        self._over = over
        self._first = 0.0

    def anchor(self, begin: float, *, wall: float | None) -> None:
        """Count delays from a loop time, ``wall`` by the wall clock; None if the tasks do not follow that."""
        self._first = begin + self._delay
        if self._wall_due is not None and wall is not None:
            self._first += max(0.0, self._wall_due - wall)

    def key_of(self, item: Any) -> Any:
        """Return the key of an item."""
        return self._terms.of(item)[0]

    def due_of(self, index: int, count: int | None) -> float:
        """Return the loop time at which an item is due, by its index."""
        return self._first if self._over is None or not count else self._first + self._over * index / count

    def accept_one(self, engine: Intake, batch: BatchHandle[Any], item: Any, index: int, count: int | None) -> None:
        """Accept one item of an iterator."""
        due = max(self.due_of(index, count), engine.now()) if self._wall_due is None else self._first
        key, needs = self._terms.of(item)
        source = self._source(batch, 1, first=due, indexes=(index,), key=key, needs=needs)
        self._place(engine, batch, source, {index: item})

    def accept_all(
        self,
        engine: Intake,
        batch: BatchHandle[Any],
        items: Sequence[Any],
        groups: list[_Group],
        offsets: array[float] | None,
    ) -> None:
        """Accept the items of a sequence."""
        engine.now()  # another interval may have begun while they were checked
        if self._terms.is_varied:
            self.accept_groups(engine, batch, items, groups, offsets)
        elif offsets is None:
            self.accept(engine, batch, items)
        else:
            self.accept_delays(engine, batch, items, offsets)

    def accept(self, engine: Intake, batch: BatchHandle[Any], items: Sequence[Any]) -> None:
        """Accept the items of a sequence; those due in the running interval separately."""
        count = len(items)
        if not count:
            return
        gap = 0.0 if self._over is None else self._over / count
        whole = self._source(batch, count, first=self._first, gap=gap, indexes=range(count))
        joined = whole.count_before(engine.queue.interval_end) if gap else count
        if not 0 < joined < count:
            self._place(engine, batch, whole, items)
            return
        first = self._source(batch, joined, first=self._first, gap=gap, indexes=range(joined))
        rest = self._source(batch, count - joined, first=whole.due_of(joined), gap=gap, indexes=range(joined, count))
        self._place(engine, batch, first, items)
        self._place(engine, batch, rest, items)

    def accept_delays(
        self, engine: Intake, batch: BatchHandle[Any], items: Sequence[Any], offsets: array[float]
    ) -> None:
        """Accept the items of a sequence with a delay for each.

        They are put in due order here, where the caller waits anyway: once for all of them, which costs less than bucket by
        bucket.
        """
        order, dues = in_due_order(offsets, self._first)
        self._place_sorted(engine, batch, items, order, dues)

    def accept_groups(
        self,
        engine: Intake,
        batch: BatchHandle[Any],
        items: Sequence[Any],
        groups: list[_Group],
        offsets: array[float] | None,
    ) -> None:
        """Accept the items of a sequence that differ in key or cost, with one source for each combination."""
        gap = 0.0 if self._over is None else self._over / len(items)
        for key, needs, indexes in groups:
            if offsets is None and not gap:
                source = self._source(batch, len(indexes), first=self._first, indexes=indexes, key=key, needs=needs)
                self._place(engine, batch, source, items)
                continue
            due_of = offsets.__getitem__ if offsets is not None else gap.__mul__
            order = array("I", sorted(indexes, key=due_of))
            dues = array("d", [self._first + due_of(index) for index in order])
            self._place_sorted(engine, batch, items, order, dues, key=key, needs=needs)

    def _place_sorted(
        self,
        engine: Intake,
        batch: BatchHandle[Any],
        items: Sequence[Any],
        order: Sequence[int],
        dues: array[float],
        **details: Any,
    ) -> None:
        """Place items in due order; those due in the running interval separately."""
        joined = bisect_left(dues, engine.queue.interval_end)
        for start, stop in ((0, joined), (joined, len(order))):
            if start < stop:
                part = self._source(batch, stop - start, dues=dues[start:stop], indexes=order[start:stop], **details)
                self._place(engine, batch, part, items)

    def _place(self, engine: Intake, batch: BatchHandle[Any], source: BatchSource, items: Items) -> None:
        queue, accounts = engine.queue, engine.accounts
        accounts.accept(source.count)
        batch._add_part(source, items)
        first = source.first
        is_joined = first < queue.interval_end
        if self._wall_due is not None and not is_joined:
            queue.wall.add_batch(source, self._wall_due)
            engine.wake_for(queue.interval_end)
        else:
            queue.add_batch(source, joined=is_joined)
            queue.is_changed = True
            engine.wake_for(first)

    def _source(self, batch: BatchHandle[Any], count: int, **details: Any) -> BatchSource:
        if not self._terms.is_varied:
            details["key"], details["needs"] = self._terms.of(None)
        return BatchSource(
            count, **details, rank=self._rank, name=batch.name, owner=batch, deadline_after=self._expires
        )


def _offsets(delays: Iterable[float], count: int) -> array[float]:
    """Check a delay for each item; the sum of finite numbers >= 0 is finite, so one check of the sum is enough."""
    try:
        offsets = array("d", delays)
    except TypeError as error:
        raise TypeError(f"delays must be numbers of seconds: {error}") from error
    except OverflowError as error:
        raise ValueError(f"delays must be finite numbers of seconds: {error}") from error
    if len(offsets) != count:
        raise ValueError(f"delays must have one entry for each of the {count} items, got {len(offsets)}")
    if offsets and (min(offsets) < 0 or not math.isfinite(sum(offsets))):
        for index, offset in enumerate(offsets):
            delay_of(f"delays[{index}]", offset)
    return offsets


def _error_of(handle: TaskHandle[Any]) -> BaseException:
    if handle.cancelled():
        return asyncio.CancelledError()
    error = handle.exception()
    assert error is not None
    return error


async def _async(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
