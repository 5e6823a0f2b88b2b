"""Functions whose calls are durable, and references to the tasks of these calls."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypedDict, TypeVar

from ratelimited_executor._core.durable.tasks import SPAN_MAX, NewTask
from ratelimited_executor._runtime.arguments import (
    callable_of,
    count_of,
    delay_of,
    flag_of,
    member_of,
    number_of,
    seconds_of,
    utf8_of,
    wall_of,
)
from ratelimited_executor._runtime.durable.codec import JSONCodec
from ratelimited_executor._runtime.durable.typed import TypedArguments
from ratelimited_executor._runtime.durable.unique import key_of_call, unique_of
from ratelimited_executor._runtime.repeat.retrying import check_retry

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ratelimited_executor._core.durable.tasks import DurableState, TaskRow, UniqueKey
    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.durable.codec import Codec
    from ratelimited_executor._runtime.durable.unique import Unique
    from ratelimited_executor.abc import TaskStore
P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["ArgumentsTooLargeError", "DurableFunction", "DurableRef", "FunctionOptions", "LaneFail", "PutOptions"]

_US: Final = 1_000_000
_BODY_MAX: Final = 256 * 1024  # bytes: every store can return hundreds of such tasks in one answer
_VERSION_MAX: Final = 2**31 - 1  # the largest value of the columns of every store
_TEXT_MAX: Final = 255  # characters of an id, a lane and a name, so that every store can index them


class Putter(Protocol):
    """The parts of ``DurableTasks`` that a function and a reference use."""

    store: TaskStore
    queue: str
    codec: Codec

    def new_id(self) -> str:
        """Return a unique id."""
        ...

    async def put(self, task: NewTask, *, connection: Any = None) -> DurableRef:
        """Put a task into the store."""
        ...

    def put_sync(self, task: NewTask, *, connection: Any = None) -> DurableRef:
        """Put a task into the store, from code without asyncio."""
        ...

    async def cancel(self, *ids: str) -> int:
        """Cancel tasks."""
        ...

    async def _result(self, id: str) -> Any: ...


class Spans(Protocol):
    """The parts of a traced function by which a task carries the span in which it was put."""

    def carried(self) -> str:
        """Return the current span as text; empty if there is none."""
        ...

    def carry(self, span: str, /) -> None:
        """Make a carried span the current one, in the rest of this context."""
        ...


class ArgumentsTooLargeError(ValueError):
    """The encoded arguments of a task are larger than stores accept."""


class LaneFail(Enum):
    """The behaviour of a lane after a failure of its task."""

    BLOCK = "block"
    """The lane waits while the task is retried, and while it is a dead letter, until it is requeued or cancelled."""
    SKIP = "skip"
    """The lane goes on with its next task; the failed one is retried in its turn."""


class FunctionOptions(TypedDict, total=False):
    """The options of a durable function; :meth:`DurableTasks.task` describes them."""

    name: str | None
    version: int
    retry: Any
    run_timeout: DurationLike | None
    in_thread: bool
    priority: float
    expires: DurationLike | None
    lane_fail: LaneFail
    keep: DurationLike | None
    keep_result: bool
    check: Callable[..., object] | None


class PutOptions(TypedDict, total=False):
    """The options of a put, in addition to the arguments of the function."""

    delay: DurationLike
    at: datetime | float
    priority: float
    expires: DurationLike | None
    lane: str | None
    id: str | None
    key: str | int | None
    cost: int | Mapping[str, int] | None
    unique: Unique | bool | None
    connection: Any


_OPTIONS: Final = frozenset(PutOptions.__annotations__)


class DurableRef:
    """A durable task, by its id.

    Attributes:
        id: the id of the task.
        created: True if the put created it, False if it existed, by its id or by ``unique=``; None if it was not put here.
        changed: True if the put has changed the existing task.
    """

    __slots__ = ("_tasks", "changed", "created", "id")

    def __init__(self, tasks: Putter, id: str, created: bool | None = None, *, changed: bool = False) -> None:
        self._tasks = tasks
        self.id = id
        self.created = created
        self.changed = changed

    async def state(self) -> DurableState | None:
        """Return the state of the task; None if it has ended, or never existed."""
        row = await self.row()
        return None if row is None else row.state

    async def row(self) -> TaskRow | None:
        """Return everything that the store knows about the task; None if it has ended, or never existed."""
        [row] = await self._tasks.store.find([self.id])
        return row

    async def cancel(self) -> bool:
        """Cancel the task, or remove a dead letter.

        A task that no process has claimed is deleted. A claimed one is cancelled by its process: at once if that runs on
        these durable tasks, so that it does not start after this call has returned; otherwise when the store notifies
        that process, within milliseconds. It may have started by then, is cancelled while it runs, and is not retried.

        Returns:
            True if the task had not ended, and so is not claimed from now on; False if it had, or never existed.
        """
        return await self._tasks.cancel(self.id) == 1

    async def wait(self, timeout: DurationLike | None = None) -> Any:
        """Return the result of the task once it has ended, in any process; None if its function has no ``keep_result=True``.

        Its function needs ``keep=``. The store must be open here; who runs the task does not matter. A wait that ends before
        leaves the task as it is.

        Args:
            timeout: the longest time in seconds, > 0; None for no limit.

        Raises:
            NoResultError: if there is none: the task is a dead letter, was cancelled, has expired, is not known, or its result
                was not kept.
            TimeoutError: after the timeout.
            StoreUnavailableError: if the store could not be read, or was closed.
        """
        async with asyncio.timeout(None if timeout is None else seconds_of("timeout", timeout)):
            return await self._tasks._result(self.id)  # noqa: SLF001  # they have made it

    def __repr__(self) -> str:
        how = {True: ", created", False: ", duplicate", None: ""}[self.created]
        return f"DurableRef({self.id!r}{', changed' if self.changed else how})"


class DurableFunction(Generic[P, R]):
    """A function whose calls can be put into a store. A direct call runs the function itself, here and now.

    Created by :meth:`DurableTasks.task`.

    Attributes:
        name: the name of its registration, which tasks in the store refer to.
        version: the version of its registration.
        retry: the retry policy; None for no retries.
        run_timeout: the longest run of an attempt in seconds; None for no limit.
        in_thread: True if it runs in a worker thread.
        keep_us: for how many microseconds its ended tasks are kept; None if they are not.
        keep_result: True if their results are kept as well.
        spans: its spans, if it is traced.
    """

    def __init__(
        self,
        tasks: Putter,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        version: int = 1,
        retry: Any = None,
        run_timeout: DurationLike | None = None,
        in_thread: bool = False,
        priority: float = 0.0,
        expires: DurationLike | None = None,
        lane_fail: LaneFail = LaneFail.BLOCK,
        keep: DurationLike | None = None,
        keep_result: bool = False,
        check: Callable[..., object] | None = None,
    ) -> None:
        callable_of("fn", fn)
        found = getattr(fn, "__name__", "<none>") if name is None else name
        self.name = text_of("name", found)
        if name is None and "<" in found:
            raise TypeError(f"name must be given for {fn!r}, which has none of its own")
        self.version = count_of("version", version)
        if version > _VERSION_MAX:
            raise ValueError(f"version must be <= {_VERSION_MAX}, got {version!r}")
        self.retry = check_retry("retry", retry)
        self.run_timeout = None if run_timeout is None else seconds_of("run_timeout", run_timeout)
        self.in_thread = flag_of("in_thread", in_thread)
        if in_thread and inspect.iscoroutinefunction(fn):
            raise TypeError(f"{self.name} is async and cannot run in a worker thread: leave in_thread= out")
        self._tasks = tasks
        self._check = None if check is None else callable_of("check", check)
        self._signature = inspect.signature(fn)
        taken = _OPTIONS.intersection(self._signature.parameters)
        if taken:
            raise TypeError(f"fn must have no parameter {min(taken)!r}, an option of put(): rename it in {self.name}")
        self._positional = _positional_counts(self._signature)
        self._typed = TypedArguments(fn, self._signature)
        self.spans: Spans | None = getattr(fn, "durable_spans", None)
        self._fn = fn
        self._priority = number_of("priority", priority)
        self._expires_us = None if expires is None else us_of("expires", seconds_of("expires", expires))
        self._is_blocking = member_of("lane_fail", lane_fail, LaneFail) is LaneFail.BLOCK
        self.keep_us = None if keep is None else us_of("keep", seconds_of("keep", keep))
        self.keep_result = flag_of("keep_result", keep_result)
        if keep_result and keep is None:
            raise TypeError(f"keep_result=True needs keep=, the time for which results of {self.name} are kept")
        functools.update_wrapper(self, fn)
        self.__qualname__ = self.name  # what the executor's logs call its tasks

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self._fn(*args, **kwargs)

    async def put(self, *args: Any, connection: Any = None, **kwargs: Any) -> DurableRef:
        """Put a call into the store, and return once it is durable.

        Args:
            args: the function's positional arguments.
            connection: a connection to the store's database; the task is put in its open transaction, and exists once
                that commits. The store's documentation names the kind of connection.
            kwargs: the function's keyword arguments, and the options below.
            delay: seconds from now until the task is due, >= 0.
            at: the due time by the wall clock, an aware datetime or epoch seconds; a past time is due now.
            priority: **a larger one is more important**: claimed and started first.
            expires: seconds after its due time within which an attempt must start; None for never.
            lane: its lane, whose tasks run one at a time, in the order in which they become due.
            id: identifies the task: a second put with the same id does nothing, until a day after the task's end.
            key: as for :meth:`RateLimitedExecutor.schedule`: a str or an int.
            cost: as for :meth:`RateLimitedExecutor.schedule`.
            unique: True if nothing is to be put while a task of this function with equal arguments exists; or a
                :class:`Unique`, to compare some of them, for a period, or to change the existing task. The reference is
                then that of the existing task.

        Raises:
            DuplicateTaskError: if the task exists, under ``OnDuplicate.REFUSE``.
            TypeError: if the arguments do not fit the function or cannot be encoded, or an option has a wrong type.
            ValueError: if an option is out of range, or the encoded arguments exceed 256 KiB.
            StoreUnavailableError: if the store could not complete the put.
        """
        return await self._tasks.put(self.new(*args, **kwargs), connection=connection)

    def put_sync(self, *args: Any, connection: Any = None, **kwargs: Any) -> DurableRef:
        """Put a call into the store as :meth:`put` does, from code without asyncio, and return once it is durable.

        The first put of a process opens the store once more, in a thread of its own, until the interpreter exits. A store
        that exists on one event loop only (``MemoryStore``, or ``RedisStore`` with a client) must be open there.

        Args:
            args: as for :meth:`put`.
            connection: a blocking connection to the store's database, in whose open transaction the task is put.
            kwargs: as for :meth:`put`.

        Raises:
            TypeError: as for :meth:`put`.
            ValueError: as for :meth:`put`.
            StoreUnavailableError: if the store cannot be opened, or could not complete the put.
            RuntimeError: in a thread that runs an event loop: use ``await put()``; or if the store must be open and is not.
        """
        return self._tasks.put_sync(self.new(*args, **kwargs), connection=connection)

    def new(self, *args: Any, **kwargs: Any) -> NewTask:
        """Return the task that :meth:`put` would put, for :meth:`DurableTasks.put_many`."""
        options = {name: kwargs.pop(name) for name in _OPTIONS.intersection(kwargs)} if kwargs else kwargs
        if "connection" in options:
            raise TypeError("new() has no connection=: pass it to put()")
        if kwargs or len(args) not in self._positional:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}") from None
        if self._check is not None:
            self._check(*args, **kwargs)
        arguments: list[Any] = [(), {}]
        try:
            arguments = self._arguments(args, kwargs)
            body = self._tasks.codec.dumps(arguments)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            where = self._typed.wrong(arguments[0], arguments[1], self._tasks.codec.dumps)
            raise kind(f"the arguments of {self.name} cannot be encoded: {where}{error}{self._remedy}") from error
        if not isinstance(body, bytes):
            raise TypeError(f"codec must return bytes, got {type(body).__name__} for the arguments of {self.name}")
        if len(body) > _BODY_MAX:
            raise ArgumentsTooLargeError(
                f"the arguments of {self.name} must have at most {_BODY_MAX:,} bytes, got {len(body):,}: store the data elsewhere, "
                "and pass a reference"
            )
        if not options:  # most tasks, among them the many of a bulk put
            return NewTask(
                self._tasks.new_id(), self.name, self._tasks.queue, self.version, body, expires_us=self._expires_us,
                priority=self._priority, is_blocking=self._is_blocking,
            )  # fmt: skip
        unique = unique_of("unique", options.pop("unique", None))
        scope = (self._tasks.queue, self.name, self.version)
        key = None if unique is None else key_of_call(unique, self._typed.stored_signature, scope, *arguments[:2])
        return self._new(body, key, **options)

    @property
    def _remedy(self) -> str:
        return self._typed.remedy

    @property
    def codec(self) -> Codec:
        """The codec of its durable tasks."""
        return self._tasks.codec

    def load(self, body: bytes) -> tuple[Any, Any, str]:
        """Return the positional and the keyword arguments of a task, and the span in which it was put, if it carries one."""
        args, kwargs, *more = self._tasks.codec.loads(body)
        if more and more[0] is True:  # values of JSON, put by name
            args, kwargs = self._typed.read_all(args, kwargs)
        elif more:  # which are typed; and the span
            args, kwargs = self._typed.read(args, kwargs, more[0])
        return args, kwargs, more[1] if len(more) > 1 else ""

    def from_json(self, at: int | str, value: Any) -> Any:
        """Return the argument that ``put`` takes, at a position or with a name, for a value of JSON.

        Arguments whose annotations JSON lacks (``datetime``, dataclasses and so on) are read as for a run.

        Raises:
            Exception: any exception of such a class, if it cannot read the value.
        """
        return self._typed.from_json(at, value)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return what the codec encodes; one that is not of JSON gets the arguments as they are, and nothing else."""
        if not isinstance(self._tasks.codec, JSONCodec):
            return [args, kwargs]
        arguments = self._written(args, kwargs)
        span = "" if self.spans is None else self.spans.carried()
        return [*arguments[:2], arguments[2] if len(arguments) > 2 else [], span] if span else arguments

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return what a codec of JSON is given: ``[args, kwargs]``, and if some are converted, which."""
        return self._typed.write(args, kwargs) if self._typed.is_needed else [args, kwargs]

    def _new(
        self,
        body: bytes,
        unique: UniqueKey | None,
        *,
        delay: Any = None,
        at: Any = None,
        priority: Any = None,
        expires: Any = _OPTIONS,  # a sentinel for the function's default
        lane: Any = None,
        id: Any = None,
        key: Any = None,
        cost: Any = None,
    ) -> NewTask:
        if at is not None and delay is not None:
            raise TypeError("put() takes delay= or at=, not both")
        if id is not None and unique is not None:
            raise TypeError("put() takes id= or unique=, not both: an id is unique by itself")
        expires_us = self._expires_us
        if expires is not _OPTIONS:
            expires_us = None if expires is None else us_of("expires", seconds_of("expires", expires))
        return NewTask(
            id=self._tasks.new_id() if id is None else text_of("id", id),
            queue=self._tasks.queue,
            name=self.name,
            version=self.version,
            body=body,
            due_us=None if at is None else us_of("at", wall_of("at", at)),
            delay_us=0 if delay is None else us_of("delay", delay_of("delay", delay)),
            expires_us=expires_us,
            priority=self._priority if priority is None else number_of("priority", priority),
            lane=None if lane is None else text_of("lane", lane),
            is_blocking=self._is_blocking,
            key=key_text(key),
            cost=_cost_text(cost),
            is_named=id is not None or (unique is not None and unique.period_us > 0),
            unique=unique,
        )

    def __repr__(self) -> str:
        return f"DurableFunction({self.name!r}, version={self.version})"


def _positional_counts(signature: inspect.Signature) -> range:
    """Return the counts of positional arguments with which a call, without keyword arguments, fits the function."""
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    positional = [each for each in parameters if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    if any(each.kind is kinds.KEYWORD_ONLY and each.default is kinds.empty for each in parameters):
        return range(0)
    return range(sum(each.default is kinds.empty for each in positional), len(positional) + 1)


def text_of(name: str, value: Any) -> str:
    """Return a string that every store can hold."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")
    if not value or len(value) > _TEXT_MAX or "\0" in value:
        raise ValueError(f"{name} must have 1 to {_TEXT_MAX} characters, and no NUL, got {value[:300]!r}")
    return utf8_of(name, value)


def us_of(name: str, seconds: float) -> int:
    """Return microseconds that every store can hold."""
    if abs(seconds) > SPAN_MAX:
        raise ValueError(f"{name} must be at most {SPAN_MAX:.0e} seconds, which are 30,000 years, got {seconds!r}")
    return round(seconds * _US)


def end_us_of(until: Any) -> int | None:
    """Return when a pause ends, in microseconds; None for never."""
    return None if until is None else max(1, us_of("until", wall_of("until", until)))


def key_text(key: Any) -> str | None:
    """Encode a key."""
    if key is None:
        return None
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"key of a durable task must be a str or an int, got {key!r}")
    if isinstance(key, int) and abs(key) >= 10**_TEXT_MAX:
        raise ValueError(f"key must have at most {_TEXT_MAX} digits, got an int of {key.bit_length()} bits")
    return json.dumps(text_of("key", key) if isinstance(key, str) else key)


def _cost_text(cost: Any) -> str | None:
    if cost is None:
        return None
    if isinstance(cost, Mapping):
        return json.dumps({text_of("cost", name): count_of("cost", amount) for name, amount in cost.items()})
    return json.dumps(count_of("cost", cost, least=1))
