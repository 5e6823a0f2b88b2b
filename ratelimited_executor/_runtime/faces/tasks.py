"""The task face: one call, one handle."""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack, cast, overload

from ratelimited_executor._core.keys.keys import given_key
from ratelimited_executor._core.queue.records import PERMITS, Charge, KeyOptions, Options
from ratelimited_executor._core.repeat.retries import Attempts
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._runtime.arguments import (
    INHERITED,
    callable_of,
    count_of,
    delay_of,
    flag_of,
    key_of,
    name_or_none,
    name_remedy,
    number_of,
    seconds_of,
    wall_of,
)
from ratelimited_executor._runtime.faces.base import ExecutorBase
from ratelimited_executor._runtime.limits.policy import check_key_rate, limit_of_key, rule_of
from ratelimited_executor._runtime.limits.slots import slots_of
from ratelimited_executor._runtime.repeat.retrying import check_retry
from ratelimited_executor._runtime.task.call_site import with_call_site
from ratelimited_executor._runtime.task.handles import TaskHandle
from ratelimited_executor._runtime.task.intake import add_wall
from ratelimited_executor._runtime.task.launch import prepare_threads
from ratelimited_executor._runtime.threads.futures import FuturesFace, call_on_loop

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.limits.slots import SlotSet
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor.typing import ScheduleOptions, SubmitOptions

__all__ = ["TaskFace", "check_context", "make_options"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TaskFace(ExecutorBase):
    """``schedule``, ``submit``, ``execute`` and their forms for other threads."""

    __slots__ = ()

    # Two overloads and not ``Awaitable[T] | T``: type checkers cannot tell the two apart in a union.
    @overload
    def schedule(
        self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts, **options: Unpack[ScheduleOptions]
    ) -> TaskHandle[T]: ...
    @overload
    def schedule(self, fn: Callable[[*Ts], T], *args: *Ts, **options: Unpack[ScheduleOptions]) -> TaskHandle[T]: ...
    @two_bodies  # type: ignore[misc]  # mypy does not match the keys of a TypedDict with the names behind *args
    def schedule(
        self,
        fn: Callable[..., Any],
        *args: Any,
        delay: DurationLike | None = None,
        at: datetime | float | None = None,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        run_timeout: DurationLike | None = None,
        in_thread: bool = False,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **rare: Any,
    ) -> TaskHandle[Any]:
        """Run ``fn(*args)`` at or after its due time, when a permit is available.

        Args:
            fn: a plain function, which runs on the event loop, or one that returns a coroutine, which runs as a task.
            args: its positional arguments; for keyword arguments use ``functools.partial``.
            delay: seconds from now until the task is due, >= 0; now if neither ``delay`` nor ``at`` is given.
            at: the due time by the wall clock, an aware datetime or epoch seconds; the past is due now.
            priority: a larger one is more important, where more tasks are due than may start.
            expires: seconds after its due time; a task that has not started by then fails with ``TaskExpiredError``. Each
                attempt of a retried task has its own due time, from which it counts again. The executor's ``expires`` if it is
                omitted; None for never.
            run_timeout: the longest run in seconds; then the task is cancelled and fails with ``RunTimeoutError``.
            in_thread: True to run the function in a worker thread, because it blocks.
            name: the name of the task in logs and errors; the function's name if None.
            context: the context variables to run in; those of the caller if None.
            key: the key of the task, hashable: for ``order=Fair()`` and the limits of keys.
            cost: permits that its start uses, >= 1; or a mapping from resource to amount, with ``"permits"`` for these.
            retry: how it is retried after a failure, instead of the executor's ``retry``; None for no retries.
            deadline: seconds after its first due time by which it must have ended, including all attempts: none begins later,
                and a coroutine or a call in a thread that still runs then is ended as by ``run_timeout``.
            slots: a pool of slots of the same manager, or several: the task starts when it gets a slot of each, in one step,
                and holds them until its run ends. While it waits, it holds back no task that needs none.

        Raises:
            TypeError: if ``fn`` is not callable, or an argument has a wrong type or an unknown name.
            ValueError: if a time is NaN, infinite, negative or naive, or a cost could never be available.
            BacklogFullError: if ``max_pending`` tasks wait, and none is dropped.
            RateLimitedExecutorError: if the executor is not open, or not on this loop.
        """
        engine: Intake = self._engine  # type: ignore[assignment]  # its home thread is this one: it is open
        options = None
        if self._home._thread_id != get_ident():
            engine, options = self._admit_one(rare)
        callable_of("fn", fn)
        if expires is INHERITED:
            expires = self._expires
        if (
            rare
            or priority != 0
            or expires is not None
            or run_timeout is not None
            or in_thread
            or name is not None
            or context is not None
        ):
            options = make_options(
                priority=priority,
                expires=expires,
                run_timeout=run_timeout,
                in_thread=in_thread,
                name=name,
                context=context,
                rare=self._read_rare(rare) if rare else None,
                options=options,
            )
        if at is not None:
            if delay is not None:
                raise TypeError("schedule() takes delay= or at=, not both")
            if type(options) is not Options:
                options = Options(key=None if options is None else options.key)
            return self._schedule_at(engine, fn, args, wall_of("at", at), context, options)
        after = (
            0.0
            if delay is None
            else delay
            if type(delay) is float and 0 <= delay < math.inf
            else delay_of("delay", delay)
        )
        due = engine.now() + after
        if options is not None and options.expires is not None:
            options.deadline = due + options.expires
        rank = TaskClass.OTHER if after else TaskClass.IMMEDIATE
        handle: TaskHandle[Any] = TaskHandle(
            engine, fn, args, due, rank, engine.contexts.capture() if context is None else context, options
        )
        if options is not None and options.line is not None:
            options.line.waiting_count += 1
        if after:
            engine.add(handle)
        else:
            engine.add_immediate(handle)
        if options is not None and options.entry is not None:
            self._started().backlog.drop_excess(options.key)
        return handle

    def _schedule_at(
        self,
        engine: Intake,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        wall_due: float,
        context: contextvars.Context | None,
        options: Options,
    ) -> TaskHandle[Any]:
        """Schedule a task that is due by the wall clock."""
        due = engine.now() + max(0.0, wall_due - self._started().moments.wall())
        options.wall = wall_due
        if options.expires is not None:
            options.deadline = due + options.expires
        handle: TaskHandle[Any] = TaskHandle(
            engine, fn, args, due, TaskClass.OTHER, engine.contexts.capture() if context is None else context, options
        )
        if options.line is not None:
            options.line.waiting_count += 1
        if due >= engine.queue.interval_end:
            add_wall(engine, handle, wall_due)
        else:
            engine.add(handle)
        if options.entry is not None:
            self._started().backlog.drop_excess(options.key)
        return handle

    @overload
    def submit(
        self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[T]: ...
    @overload
    def submit(self, fn: Callable[[*Ts], T], *args: *Ts, **options: Unpack[SubmitOptions]) -> TaskHandle[T]: ...
    @two_bodies  # type: ignore[misc]  # mypy does not match the keys of a TypedDict with the names behind *args
    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        run_timeout: DurationLike | None = None,
        in_thread: bool = False,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **rare: Any,
    ) -> TaskHandle[Any]:
        """Run ``fn(*args)`` as soon as a permit is available: :meth:`schedule` without a due time."""
        engine: Intake = self._engine  # type: ignore[assignment]  # its home thread is this one: it is open
        options = None
        if self._home._thread_id != get_ident():
            engine, options = self._admit_one(rare)
        if not callable(fn):
            callable_of("fn", fn)  # type: ignore[unreachable]  # not every caller is type-checked
        options = make_options(
            priority=priority,
            expires=self._expires if expires is INHERITED else expires,
            run_timeout=run_timeout,
            in_thread=in_thread,
            name=name,
            context=context,
            rare=self._read_rare(rare) if rare else None,
            options=options,
        )
        now = engine.now()
        if options is not None and options.expires is not None:
            options.deadline = now + options.expires
        handle: TaskHandle[Any] = TaskHandle(
            engine,
            fn,
            args,
            now,
            TaskClass.IMMEDIATE,
            engine.contexts.capture() if context is None else context,
            options,
        )
        if options is not None and options.line is not None:
            options.line.waiting_count += 1
        engine.add_immediate(handle)
        if options is not None and options.entry is not None:
            self._started().backlog.drop_excess(options.key)
        return handle

    @overload
    async def schedule_wait(
        self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts, **options: Unpack[ScheduleOptions]
    ) -> TaskHandle[T]: ...
    @overload
    async def schedule_wait(
        self, fn: Callable[[*Ts], T], *args: *Ts, **options: Unpack[ScheduleOptions]
    ) -> TaskHandle[T]: ...
    async def schedule_wait(  # type: ignore[misc]  # mypy does not match the keys of a TypedDict with the names behind *args
        self, fn: Callable[..., Any], *args: Any, **options: Unpack[ScheduleOptions]
    ) -> TaskHandle[Any]:
        """Like :meth:`schedule`, once there is room: under ``WhenFull.WAIT``, first come, first served.

        A delay counts from then on. Under another ``when_full`` it does not wait. Waiting may be cancelled.

        Raises:
            ExecutorStoppedError: if the executor closes meanwhile.
        """
        callable_of("fn", fn)
        key = key_of("key", options.get("key"), self._keys)
        self._admit(0)
        return await self._started().backlog.in_turn(key, functools.partial(self.schedule, fn, *args, **options))

    @two_bodies
    def execute(self, fn: Callable[[*Ts], object], *args: *Ts) -> None:
        """Run ``fn(*args)`` as soon as a permit is available, without a handle; the loop's handler gets failures."""
        if self._expires is not None:
            self.submit(fn, *args, retry=None)  # only a record can expire
            return
        engine: Intake = self._engine  # type: ignore[assignment]  # its home thread is this one: it is open
        if self._home._thread_id != get_ident():
            engine = self._admit()
            fn = with_call_site(engine.loop, fn)
        if not callable(fn):
            callable_of("fn", fn)  # type: ignore[unreachable]  # not every caller is type-checked
        kept = contextvars.copy_context()
        engine.add_call_ready(engine.now(), fn, args, engine.contexts.share(kept) if kept else None)

    @overload
    def schedule_threadsafe(
        self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts, **options: Unpack[ScheduleOptions]
    ) -> concurrent.futures.Future[T]: ...
    @overload
    def schedule_threadsafe(
        self, fn: Callable[[*Ts], T], *args: *Ts, **options: Unpack[ScheduleOptions]
    ) -> concurrent.futures.Future[T]: ...
    def schedule_threadsafe(  # type: ignore[misc]  # mypy does not match the keys of a TypedDict with the names behind *args
        self, fn: Callable[..., Any], *args: Any, **options: Unpack[ScheduleOptions]
    ) -> concurrent.futures.Future[Any]:
        """Like :meth:`schedule`, from any thread; cancelling the future cancels the task.

        Raises:
            ExecutorNotStartedError: before the start.
            RuntimeError: if the event loop is closed.
        """
        engine = self._started().engine
        callable_of("fn", fn)
        return call_on_loop(engine.loop, functools.partial(self.schedule, fn, *args, **options))

    # Without a ParamSpec: that does not fit methods which take the arguments of a function as a TypeVarTuple.
    @overload
    def call_threadsafe(
        self, method: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]: ...
    @overload
    def call_threadsafe(
        self, method: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]: ...
    def call_threadsafe(
        self, method: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Call a method of the executor, such as :meth:`schedule_many`, on its loop, from any thread.

        If the method returns an awaitable, the future has its result: that of a task, the summary of a batch, None at the end
        of a repeating task. Cancelling the future cancels it: the waiting tasks of a batch, a repetition. Otherwise the future
        has the method's result. ``future.result()`` raises what the method raises.

        Args:
            method: the method to call on the loop.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Raises:
            ExecutorNotStartedError: before the start.
            RuntimeError: if the event loop is closed.
            TypeError: if ``method`` is not callable.
        """
        engine = self._started().engine
        return call_on_loop(engine.loop, functools.partial(callable_of("method", method), *args, **kwargs))

    def _admit_one(self, rare: dict[str, Any]) -> tuple[Intake, Options | None]:
        """Return the engine if it may accept one more task in this call, and options if each task needs some."""
        engine = self._admit(
            0 if self._started().backlog.is_dropping else 1, key=key_of("key", rare.get("key"), self._keys)
        )
        return engine, None if engine.queue.drops is None else Options()

    def _read_rare(self, rare: dict[str, Any]) -> Rare:
        """Check the rare keyword arguments of a call.

        Raises:
            TypeError: if one is unknown, or has a wrong type.
            ValueError: if a cost is out of range.
        """
        keys = self._started().keys
        if len(rare) == 1 and type(only := rare.get("key")) in _PLAIN_KEYS and only in keys.checked:
            return cast("Rare", keys.checked[only])  # nearly every task with a key
        key, cost, retry = rare.pop("key", None), rare.pop("cost", 1), rare.pop("retry", INHERITED)
        deadline = rare.pop("deadline", None)
        slots = slots_of("slots", rare.pop("slots", None), self._manager._slot_keeper)  # noqa: SLF001  # of this package
        if rare:
            _refuse(rare)
        key = key_of("key", key, self._keys)
        needs = self._needs_of(cost)
        if key is not None and self._key_limits.is_gated:
            self._check_key(key, 1 if needs is None else needs[PERMITS])
        policy = retry if retry is INHERITED else check_retry("retry", retry)
        if deadline is None:
            found = Rare(key, needs, policy, slots=slots, keys=keys)
            is_shared = key is not None and needs is None and retry is INHERITED and slots is None
            return keys.share(key, lambda: found._replace(shared=KeyOptions(key))) if is_shared else found
        within = seconds_of("deadline", deadline)
        policy = self._retry if policy is INHERITED else policy
        return Rare(key, needs, policy, within=within, slots=slots, keys=keys)

    def _rare_of(self, key: Any, cost: Any) -> Rare | None:
        """Check a key and a cost; return None if they are the usual ones."""
        if key is None and type(cost) is int and cost == 1:
            return None
        return self._read_rare({"key": key, "cost": cost})

    def _check_key(self, key: Any, cost: int) -> None:
        """Refuse a cost that the rate of a key can never admit, and a key whose limits are invalid.

        Raises:
            TypeError: if a function of the key returns something of a wrong type.
            ValueError: if it is out of range.
        """
        gate = self._started().queue.gate
        if gate is not None and gate.knows(key):
            most = gate.cost_max(key)
        else:
            self._key_limits.concurrency_of(given_key(key))
            rate = self._key_limits.rate_of(given_key(key))
            rule = rule_of(self._policy)
            check_key_rate(rule, rate)
            limit = None if rate is None else limit_of_key(rule, rate, 0)
            most = None if limit is None else limit.cost_max
        if most and cost > most:  # a limit that admits nothing is a pause
            raise ValueError(f"cost must be <= {most}, or the rate of the key {key!r} never admits it, got {cost!r}")

    def _needs_of(self, cost: Any) -> Mapping[str, int] | None:
        """Return the amounts of a cost by resource; None for one permit.

        Raises:
            TypeError: if it is neither an integer nor a mapping from resource to integer.
            ValueError: if it is out of range, or a resource is unknown.
        """
        if type(cost) is int and cost == 1:
            return None
        plan = self._started().limits.plan
        costs = dict(cost) if isinstance(cost, Mapping) else {PERMITS: cost}
        for resource, amount in costs.items():
            name = f"cost[{resource!r}]" if isinstance(cost, Mapping) else "cost"
            if resource != PERMITS and resource not in plan.resources:
                known = ", ".join(repr(one) for one in (PERMITS, *plan.resources))
                raise ValueError(f"cost names {resource!r}, which is not one of {known}: see resources=")
            count_of(name, amount, least=1 if resource == PERMITS else 0)
            cost_max = plan.cost_max(resource)
            if cost_max is not None and amount > cost_max:
                raise ValueError(f"{name} must be <= {cost_max}, or it is never admitted, got {amount!r}")
        self._started().limits.enable_costs()
        return {PERMITS: 1, **costs}

    def as_futures_executor(self, max_workers: int | None = None) -> FuturesFace:
        """Return a ``concurrent.futures.Executor`` whose calls run in worker threads, each started on a permit.

        Args:
            max_workers: the maximum number of threads; None for the executor's limit.
        """
        engine = self._admit(0)
        return FuturesFace(self, engine.loop, self._started().threads, max_workers=max_workers)


class Rare(NamedTuple):
    """The rare options of a task.

    Attributes:
        key: the key of the task.
        needs: the amount of each resource that its start uses; None for one permit.
        retry: the policy of its retries; :data:`INHERITED` for the executor's.
        shared: the options of tasks that have this key and nothing else; None if there is more than a key.
        within: seconds after the first due time by which the last attempt has to have ended; None for no such deadline.
        slots: the slots that it needs; None if it needs none.
        keys: the executor's table of keys, which has the lines of tasks that need slots.
    """

    key: Any
    needs: Mapping[str, int] | None
    retry: Any
    shared: KeyOptions | None = None
    within: float | None = None
    slots: SlotSet | None = None
    keys: Any = None


def make_options(
    *,
    priority: float = 0,
    expires: Any = None,
    run_timeout: Any = None,
    in_thread: bool = False,
    name: str | None = None,
    context: Any = None,
    rare: Rare | None = None,
    options: Options | None = None,
) -> Options | None:
    """Check the options of a task; return ``options`` if all are the defaults."""
    if priority == 0 and expires is None and run_timeout is None and not in_thread and name is None and context is None:
        if rare is None:
            return options
        if rare.shared is not None and options is None:
            return rare.shared  # type: ignore[return-value]  # it has all that is read
    made = Options(
        priority=number_of("priority", priority),
        expires=None if expires is None else delay_of("expires", expires),
        run_timeout=None if run_timeout is None else seconds_of("run_timeout", run_timeout),
        in_thread=flag_of("in_thread", in_thread),
        own_context=check_context(context) is not None,
        name=name_or_none("name", name),
    )
    if in_thread:
        prepare_threads()
    if rare is not None:
        made.key = rare.key
        made.charge = None if rare.needs is None else Charge(rare.needs)
        if rare.retry is not INHERITED:
            made.attempts = Attempts(rare.retry, within=rare.within, expires=made.expires)
        if rare.within is not None:
            made.expires = rare.within if made.expires is None else min(made.expires, rare.within)
        if rare.slots is not None:
            made.line = rare.keys.line_of(rare.key, rare.slots, made.priority)
    return made


def check_context(context: Any) -> Any:
    """Return a context, or None."""
    if context is not None and not isinstance(context, contextvars.Context):
        raise TypeError(f"context must be a contextvars.Context, got {context!r}")
    return context


def _refuse(names: dict[str, Any]) -> None:
    """Name the replacement of an unknown keyword argument."""
    if "timeout" in names:
        raise TypeError(
            "timeout= is ambiguous: use expires= for how long the task may wait, run_timeout= for how long it may run, "
            "or functools.partial to pass a timeout to the function"
        )
    name_remedy(names)
    unknown = ", ".join(f"{name}=" for name in names)
    raise TypeError(f"unknown argument {unknown}: bind keyword arguments of the function with functools.partial")


_PLAIN_KEYS: Final = (str, int)  # whose hash and equality are no user code


def _with_rare(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function that names its rare keyword arguments, for ``help()``."""
    signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.kind is not _KEYWORDS]
    rare = {
        "key": ("Hashable", None),
        "cost": ("CostLike", 1),
        "retry": ("Retry | Any", INHERITED),
        "deadline": ("DurationLike | None", None),
        "slots": ("Slots | Sequence[Slots] | None", None),
    }
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in rare.items()
    ]
    return signature.replace(parameters=[*kept, *named])


_KEYWORDS: Final = inspect.Parameter.VAR_KEYWORD
# They arrive together, so that a call without them, which is nearly every one, looks at none of them.
for _function in (TaskFace.schedule, TaskFace.submit):
    _function.__signature__ = _with_rare(_function)  # type: ignore[attr-defined]  # inspect looks for it
