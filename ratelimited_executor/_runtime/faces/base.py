"""What all faces of an executor share: life cycle, settings, and the checks that every call passes."""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Self

from ratelimited_executor._core.keys.keys import KeyTable
from ratelimited_executor._core.order.ordering import default_order
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._kernel.fields import ExecutorFields
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._runtime.arguments import (
    INHERITED,
    count_of,
    delay_of,
    flag_of,
    key_of,
    member_of,
    seconds_of,
)
from ratelimited_executor._runtime.faces.checks import (
    check_adaptive,
    check_name,
    count_or_function,
    order_of,
    rate_or_function,
    threads_of,
    with_remedies,
)
from ratelimited_executor._runtime.insight.observing import Listeners
from ratelimited_executor._runtime.life.assembly import assemble
from ratelimited_executor._runtime.life.closing import Closing, check_loop
from ratelimited_executor._runtime.life.manager import ManagerBase
from ratelimited_executor._runtime.life.settings import Settings
from ratelimited_executor._runtime.limits.keys import KeyLimits
from ratelimited_executor._runtime.limits.plan import PolicyPlan, read_rates, read_resources
from ratelimited_executor._runtime.limits.policy import Paced, Part, Policy, WhenFull, check_key_rate, rule_of
from ratelimited_executor._runtime.repeat.retrying import check_retry
from ratelimited_executor._runtime.task.coroutines import cancel_guarded
from ratelimited_executor._runtime.task.launch import Threads
from ratelimited_executor.abc import Fleet
from ratelimited_executor.exceptions import (
    ExecutorNotStartedError,
    ExecutorStoppedError,
    WrongLoopError,
)

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.order.fair import Fair
    from ratelimited_executor._core.order.ordering import Order, TaskView
    from ratelimited_executor._core.permits.adaptive import Adaptive
    from ratelimited_executor._core.permits.rates import RateLike
    from ratelimited_executor._runtime.faces.parts import FaceParts
    from ratelimited_executor._runtime.insight.insight import Explanation, Statistics
    from ratelimited_executor._runtime.insight.observing import Listener
    from ratelimited_executor._runtime.limits.quota import Quota
    from ratelimited_executor._runtime.repeat.cycle import CycleHandle
    from ratelimited_executor._runtime.repeat.repeating import RepeatingHandle
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor._runtime.time.runner import Runner
    from ratelimited_executor.abc import Peers
    from ratelimited_executor.typing import RatesLike

__all__ = ["ExecutorBase"]

_PENALTY_SECONDS_MAX: Final = 3600.0


class ExecutorBase(ExecutorFields):
    """Life cycle, settings and inspection of an executor."""

    _engine: Intake | None
    _make_manager: Callable[..., ManagerBase[Any]]  # for an executor that is given none

    # Slots, so that setting an attribute that does not exist, such as a misspelt one, is an error.
    __slots__ = (
        "__weakref__",
        "_adaptive",
        "_closing",
        "_is_early",
        "_is_paused",
        "_key_limits",
        "_keys",
        "_listeners",
        "_manager",
        "_max_concurrency",
        "_max_pending",
        "_name",
        "_order",
        "_owns_manager",
        "_pacing",
        "_parts",
        "_peers",
        "_penalty_max",
        "_phase",
        "_plan",
        "_policy",
        "_repeating",
        "_resources",
        "_retry",
        "_threads",
        "_when_full",
    )

    @with_remedies
    def __init__(
        self,
        name: str,
        *,
        rate: RatesLike = float("inf"),
        pacing: Pacing = Pacing.SPREAD,
        policy: Policy = Paced(),  # noqa: B008  # it is immutable
        order: Order | Fair = default_order,
        resources: Mapping[str, RatesLike] | None = None,
        max_concurrency: int | None = None,
        key_rate: RateLike | Callable[[Any], RateLike | None] | None = None,
        key_concurrency: int | Callable[[Any], int | None] | None = None,
        max_pending: int | None = None,
        key_max_pending: int | None = None,
        max_keys: int = 1_000_000,
        when_full: WhenFull = WhenFull.RAISE,
        retry: Retry | Any = Retry(),  # noqa: B008  # it is immutable
        adaptive: Adaptive | None = None,
        penalty_max: DurationLike = _PENALTY_SECONDS_MAX,
        expires: DurationLike | None = None,
        drain_timeout: DurationLike | None = None,
        early: bool = False,
        max_threads: int | None = None,
        thread_pool: concurrent.futures.Executor | None = None,
        peers: Peers | Fleet | None = None,
        manager: ManagerBase[Any] | None = None,
    ) -> None:
        check_name(name)
        rule = rule_of(policy)  # it raises if it is not a policy
        self._when_full = member_of("when_full", when_full, WhenFull)
        self._owns_manager, self._manager = manager is None, self._manager_with(peers, manager)
        self._name = name
        self._policy = policy
        self._resources = read_resources(resources)
        self._peers = self._manager.peers
        self._phase = self._manager._phase_of(name)
        self._plan = self._make_plan(read_rates("rate", rate))
        self._pacing = member_of("pacing", pacing, Pacing)
        self._order: Order | Fair = order_of(order)
        self._keys = KeyTable()
        self._key_limits = KeyLimits(
            rate=rate_or_function("key_rate", key_rate),
            concurrency=count_or_function("key_concurrency", key_concurrency),
            pending=None if key_max_pending is None else count_of("key_max_pending", key_max_pending, least=1),
            count_max=count_of("max_keys", max_keys, least=1),
        )
        if isinstance(self._key_limits.rate, Rate):
            check_key_rate(rule, self._key_limits.rate)
        self._retry = check_retry("retry", retry)
        self._adaptive = self._check_adaptive(adaptive)
        self._penalty_max = seconds_of("penalty_max", penalty_max)
        self._max_concurrency = None if max_concurrency is None else count_of("max_concurrency", max_concurrency)
        self._max_pending = None if max_pending is None else count_of("max_pending", max_pending, least=1)
        self._expires = None if expires is None else delay_of("expires", expires)
        self._is_early = flag_of("early", early)
        self._threads = threads_of(max_threads, thread_pool)
        timeout = None if drain_timeout is None else delay_of("drain_timeout", drain_timeout)
        self._is_paused = False
        self._engine = None
        self._parts: FaceParts | None = None
        self._listeners = Listeners()
        self._home = _NOWHERE  # its _thread_id is the thread from which a call needs no further checks
        self._repeating: dict[RepeatingHandle | CycleHandle, None] = {}  # in the order in which they began
        on_ended = self._leave if self._owns_manager and isinstance(self._peers, Fleet) else None
        self._closing = Closing(
            name, drain_timeout=timeout, on_begin=self._begin_closing, on_ended=on_ended, on_closed=self._closed
        )
        self._register()

    def _register(self) -> None:
        """Register with the manager, and start if it has started; if that fails, leave nothing behind."""
        try:
            runner = self._manager._register(self)
            if runner is not None:
                self._open(runner)
        except BaseException:
            self._closing.give_up()
            raise

    def _manager_with(self, peers: Peers | Fleet | None, manager: ManagerBase[Any] | None) -> ManagerBase[Any]:
        """Return the given manager, or create one with these peers."""
        if manager is None:
            return self._make_manager(peers=peers)
        if not isinstance(manager, ManagerBase):
            raise TypeError(f"manager must be an ExecutorManager, got {manager!r}")
        if peers is not None:
            raise TypeError("peers= and manager= exclude each other: pass the peers to ExecutorManager(peers=...)")
        return manager

    # Life cycle.

    async def start(self) -> None:
        """Start on the running event loop; ``async with`` does it.

        Raises:
            ExecutorStoppedError: if it was started before.
        """
        if self._engine is not None or self._closing.is_begun:
            raise ExecutorStoppedError(repr(self))
        if self._owns_manager:
            await self._manager.start()
        else:
            self._open(self._manager._started_runner())

    async def aclose(self) -> Collection[TaskView]:
        """Close as leaving ``async with`` normally does; return the tasks that were cancelled before their start.

        Repeating tasks stop, and accepted tasks run at their due times, up to ``drain_timeout``. When that has passed, or no
        progress is possible, the rest is cancelled, with one warning. Cancelling this call cuts the drain short.
        """
        return await self.shutdown()

    def shutdown(
        self, wait: bool = True, *, cancel_pending: bool = False, timeout: DurationLike | None = None
    ) -> Awaitable[Collection[TaskView]]:
        """Start closing at once; return an awaitable for the end, and for the tasks cancelled before their start.

        They are a sized collection in no particular order; a batch uses no more memory in it than its items. A call
        made after their cancellation returns none, because they are not kept.

        Args:
            wait: True if awaiting the result waits for the end; it need not be awaited otherwise.
            cancel_pending: cancel waiting and running tasks instead of draining.
            timeout: seconds after which the rest is cancelled; ``drain_timeout`` if None.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if the timeout is negative.
        """
        flag_of("wait", wait, hint=": seconds are given by timeout=")
        flag_of("cancel_pending", cancel_pending)
        if timeout is not None:
            timeout = delay_of("timeout", timeout)
        self._closing.begin(timeout=timeout, is_collecting=True)
        unstarted = self._closing.unstarted()
        if cancel_pending:
            self._closing.cut()
        return _Ended(self._closing if wait else None, unstarted)

    async def await_termination(self, timeout: DurationLike | None = None) -> bool:
        """Wait until the executor has been closed; return False if that takes longer than ``timeout`` seconds."""
        if timeout is not None:
            timeout = delay_of("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._closing.closed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_shutdown(self) -> bool:
        """True if closing has begun, so that no more calls are accepted."""
        return self._closing.is_begun

    @property
    def is_terminated(self) -> bool:
        """True if the executor is closed: no task waits, and none runs."""
        return self._closing.is_closed

    async def __aenter__(self) -> Self:
        if self._engine is None or self._closing.is_begun:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._closing.abort()
        self._closing.begin()
        await self._closing.wait()

    # Settings.

    @property
    def name(self) -> str:
        """The name of the executor."""
        return self._name

    @property
    def policy(self) -> Policy:
        """The policy that limits starts over time."""
        return self._policy

    @property
    def rate(self) -> Rate:
        """Permits over time: of several rates, the one with the shortest ``per``, which paces.

        May be set at any time to anything that ``rate=`` accepts, which replaces all rates; 0 pauses, infinity lifts the
        limit.
        """
        return self._plan.rate if self._parts is None else self._parts.controls.rate

    @rate.setter
    def rate(self, rate: RatesLike) -> None:
        self._check_place()
        self._plan = self._make_plan(read_rates("rate", rate))
        if self._parts is not None:
            self._parts.controls.set_plan(self._plan)

    @property
    def rates(self) -> tuple[Rate | Quota, ...]:
        """All rates and quotas, in the order in which they were given."""
        return self._plan.rates if self._parts is None else self._parts.limits.plan.rates

    @property
    def resources(self) -> dict[str, tuple[Rate | Quota, ...]]:
        """The rates and quotas of other resources, by name; may be set at any time."""
        return dict(self._resources)

    @resources.setter
    def resources(self, resources: Mapping[str, RatesLike] | None) -> None:
        self._check_place()
        before = self._resources
        self._resources = read_resources(resources)
        try:
            self._plan = self._make_plan(self.rates)
        except ValueError:
            self._resources = before
            raise
        if self._parts is not None:
            self._parts.controls.set_plan(self._plan)

    @property
    def pacing(self) -> Pacing:
        """The pacing of the tasks of an interval; may be set at any time."""
        return self._pacing

    @pacing.setter
    def pacing(self, pacing: Pacing) -> None:
        self._check_place()
        self._pacing = member_of("pacing", pacing, Pacing)
        if self._parts is not None:
            self._parts.controls.set_pacing(self._pacing)

    @property
    def early(self) -> bool:
        """True if a task may start anywhere in the interval of its due time; may be set at any time.

        Tasks of the running interval that were opened before it was set to False may still start early.
        """
        return self._is_early

    @early.setter
    def early(self, early: bool) -> None:
        self._check_place()
        self._is_early = flag_of("early", early)
        if self._parts is not None:
            self._parts.controls.set_early(is_early=self._is_early)

    @property
    def order(self) -> Order | Fair:
        """The key function of importance; may be set at any time, which re-sorts the due tasks once."""
        return self._order

    @order.setter
    def order(self, order: Order | Fair) -> None:
        self._check_place()
        self._order = order_of(order)
        if self._parts is not None:
            self._parts.controls.set_order(self._order)

    @property
    def max_concurrency(self) -> int | None:
        """How many tasks may run at once, None for no limit; may be set at any time; 0 halts."""
        return self._max_concurrency

    @max_concurrency.setter
    def max_concurrency(self, count: int | None) -> None:
        self._check_place()
        self._max_concurrency = None if count is None else count_of("max_concurrency", count)
        if self._parts is not None:
            self._parts.controls.max_concurrency = self._max_concurrency

    @property
    def key_rate(self) -> RateLike | Callable[[Any], RateLike | None] | None:
        """The rate of each key, or a function of the key; may be set at any time; None for no limit."""
        return self._key_limits.rate

    @key_rate.setter
    def key_rate(self, rate: RateLike | Callable[[Any], RateLike | None] | None) -> None:
        self._check_place()
        found = rate_or_function("key_rate", rate)
        if isinstance(found, Rate):
            check_key_rate(rule_of(self._policy), found)
        self._key_limits.rate = found
        self._set_key_limits()

    @property
    def key_concurrency(self) -> int | Callable[[Any], int | None] | None:
        """How many tasks of each key may run at once, or a function of the key; may be set at any time; 0 halts."""
        return self._key_limits.concurrency

    @key_concurrency.setter
    def key_concurrency(self, count: int | Callable[[Any], int | None] | None) -> None:
        self._check_place()
        self._key_limits.concurrency = count_or_function("key_concurrency", count)
        self._set_key_limits()

    def _set_key_limits(self) -> None:
        if self._parts is not None:
            self._parts.controls.set_key_limits(self._key_limits)

    @property
    def expires(self) -> float | None:
        """Seconds after its due time within which a task must start, by default; None for never.

        May be set at any time, for tasks that are scheduled from then on, and for the next runs of repeating tasks.
        """
        return self._expires

    @expires.setter
    def expires(self, expires: DurationLike | None) -> None:
        self._check_place()
        self._expires = None if expires is None else delay_of("expires", expires)

    def _expires_of(self, expires: Any) -> Any:
        """Return the ``expires`` of a call: its own or the executor's."""
        return self._expires if expires is INHERITED else expires

    @property
    def is_paused(self) -> bool:
        """True if :meth:`pause` is in force."""
        return self._is_paused

    def pause(self) -> None:
        """Start nothing until :meth:`resume`; no permit comes up meanwhile."""
        self._set_paused(is_paused=True)

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self._set_paused(is_paused=False)

    def penalize(self, retry_after: DurationLike | None, *, key: Hashable = None) -> None:
        """Start nothing for a time, because the remote service asked for it; running tasks continue.

        Args:
            retry_after: seconds, >= 0, at most ``penalty_max``; a shorter penalty does not shorten one that is in force. None,
                which :func:`parse_retry_after` returns for a missing header, only signals an overload to ``adaptive=``.
            key: the key whose tasks are held; None for the whole executor.
        """
        seconds = 0.0 if retry_after is None else delay_of("retry_after", retry_after)
        held = key_of("key", key, self._keys)
        parts = self._started()
        self._check_place()
        parts.controls.penalize(seconds, held)

    def _set_paused(self, *, is_paused: bool) -> None:
        self._check_place()
        self._is_paused = is_paused
        if self._parts is not None:
            self._parts.controls.set_paused(is_paused=is_paused)

    # Insight.

    def statistics(self) -> Statistics:
        """Count the tasks at this instant."""
        from ratelimited_executor._runtime.insight import insight  # noqa: PLC0415  # a start does without

        return insight.statistics(self._started())

    def backlog_seconds(self, key: Hashable = None) -> float:
        """Return the seconds of work in due tasks; 0 while they fit, infinity if the rate is 0.

        Args:
            key: the key of the tasks; None for all. With a key, the time until the last of its tasks is expected to start.
        """
        from ratelimited_executor._runtime.insight import insight  # noqa: PLC0415  # a start does without

        return insight.backlog_seconds(self._started(), key_of("key", key, self._keys))

    def explain(self, handle: TaskHandle[Any]) -> Explanation:
        """Return what holds a task, how many are ahead of it, and its expected start; O(due tasks).

        Raises:
            ValueError: if the task is not of this executor.
        """
        from ratelimited_executor._runtime.insight import insight  # noqa: PLC0415  # a start does without

        parts = self._started()
        self._check_place()
        if getattr(handle, "_engine", None) is not parts.engine:
            raise ValueError(f"handle must be a task of {self._name}, got {handle!r}")
        return insight.explain(parts, handle)

    def waiting_tasks(self, limit: int | None = 1000) -> list[TaskView]:
        """Return waiting tasks, including those that wait for a retry, in no particular order: O(limit).

        Args:
            limit: the maximum number, >= 0; None for all.
        """
        from ratelimited_executor._runtime.insight import listing  # noqa: PLC0415  # a start does without

        parts = self._started()
        self._check_place()
        return listing.waiting_tasks(parts.queue, parts.accounts, None if limit is None else count_of("limit", limit))

    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._parts is None:
            return f"<{kind} {self._name!r} {'closed' if self._closing.is_begun else 'new'} rate={self._plan}>"
        state = "closed" if self.is_terminated else "closing" if self.is_shutdown else "open"
        accounts, plan = self._parts.accounts, self._parts.limits.plan
        return (
            f"<{kind} {self._name!r} {state} rate={plan} "
            f"waiting={accounts.waiting_count()} running={accounts.running_count()}>"
        )

    # For the faces.

    def _admit(self, count: int = 1, *, key: Hashable = None, priority: float = 0) -> Intake:
        """Return the engine if it may accept ``count`` tasks in this call; drop other tasks for them if needed.

        Args:
            count: the number of tasks.
            key: their key, as it is stored.
            priority: their priority: no task of a higher one is dropped for them.

        Raises:
            ExecutorNotStartedError: before the start.
            ExecutorStoppedError: after closing has begun.
            WrongLoopError: from another thread or event loop.
            BacklogFullError: if they would not fit.
        """
        parts = self._started()
        engine: Intake = parts.engine
        if self._closing.is_begun:
            raise ExecutorStoppedError(repr(self))
        if asyncio._get_running_loop() is not engine.loop:
            raise WrongLoopError(self._name)
        if count and (self._max_pending is not None or self._key_limits.pending is not None):
            parts.backlog.admit(count, key, priority)
        return engine

    def _check_place(self) -> None:
        """Refuse to change an open executor from another thread or event loop."""
        if self._engine is not None and not self._closing.is_closed:
            check_loop(self._name, self._engine.loop)

    def _is_held_back(self, key: Any) -> bool:
        """True if the limits of a key keep its next task from starting."""
        gate = self._started().queue.gate
        return gate is not None and gate.is_parked(key_of("key", key, self._keys))

    def _started(self) -> FaceParts:
        if self._parts is None:
            raise (ExecutorStoppedError if self._closing.is_begun else ExecutorNotStartedError)(repr(self))
        return self._parts

    def _open(self, runner: Runner) -> None:
        """Start working; called once, on the loop."""
        settings = Settings(
            plan=self._plan,
            pacing=self._pacing,
            order=self._order,
            early=self._is_early,
            max_concurrency=self._max_concurrency,
            threads=Threads(*self._threads, are_there=runner.hooks.has_threads),
            key_limits=self._key_limits,
            max_pending=self._max_pending,
            when_full=self._when_full,
            retry=self._retry,
            penalty_max=self._penalty_max,
            adaptive=self._adaptive,
        )
        parts = assemble(
            self._name, settings, runner=runner, peers=self._manager.peers, group_slots=self._manager._group_slots
        )
        self._engine = parts.engine
        self._parts = self._closing.parts = parts
        if self._is_paused:
            parts.controls.set_paused(is_paused=True)
        self._listeners.open(parts)
        self._find_home()

    def _find_home(self) -> None:
        """Let calls from the loop's thread take the short path, without notifications, if that is possible."""
        self._home = _NOWHERE
        if self._parts is None or self._closing.is_begun or self._listeners.wants_accepted:
            return
        loop = self._parts.engine.loop
        is_direct = self._max_pending is None and self._key_limits.pending is None
        if is_direct and not loop.get_debug():  # else each call is checked, or records where it comes from
            self._home = loop if isinstance(loop, asyncio.BaseEventLoop) else _Home(loop)

    def _listen(self, listener: Listener) -> Callable[[], None]:
        """Notify a listener of all tasks from now on; return a function that ends it.

        See ``_runtime/insight/observing.py``.

        Raises:
            WrongLoopError: from another thread or event loop.
        """
        self._check_place()
        self._listeners.add(listener)
        self._find_home()

        def ignore() -> None:
            self._check_place()
            self._listeners.remove(listener)
            self._find_home()

        return ignore

    def _make_plan(self, rates: Sequence[Rate | Quota]) -> PolicyPlan:
        """Combine policy, rates and resources.

        Raises:
            TypeError: if the group cannot share the limits of the policy.
            ValueError: if they do not fit each other, or the peers.
        """
        if not isinstance(self._peers, Fleet):
            part = Part(self._peers.count, self._peers.rank, self._phase)
            return PolicyPlan(self._policy, rates, self._resources, part)
        from ratelimited_executor._runtime.limits.group_plan import check_shared  # noqa: PLC0415  # most programs share no limits

        plan = PolicyPlan(self._policy, rates, self._resources)
        check_shared(plan.rule)
        return plan

    def _check_adaptive(self, adaptive: Adaptive | None) -> Adaptive | None:
        """Return the adaptive rate; None if there is none.

        Raises:
            ValueError: if these peers cannot adjust it.
        """
        checked = check_adaptive(adaptive, self._plan.rate)
        is_one_pace = self._plan.is_plain and self._key_limits.rate is None
        if checked is not None and isinstance(self._peers, Fleet) and not is_one_pace:
            raise ValueError(
                f"adaptive must be omitted, got {adaptive!r}: with these peers it needs a single Paced rate and no key_rate"
            )
        return checked

    def _begin_closing(self) -> None:
        self._home = _NOWHERE
        if self._parts is None:
            return
        if self._parts.backlog.room is not None:
            self._parts.backlog.room.close(ExecutorStoppedError(repr(self)))
        for repeating in list(self._repeating):
            cancel_guarded(self._parts.engine.loop, repeating)

    def _forget_repeating(self, handle: RepeatingHandle | CycleHandle) -> None:
        """Record that a repeating task has ended."""
        self._repeating.pop(handle, None)

    async def _leave(self) -> None:
        """Leave the group, if this is its only executor in this process."""
        if self._parts is not None:
            self._parts.controls.member.close()
        await self._manager._leave_group()

    def _closed(self) -> None:
        self._home = _NOWHERE
        if self._parts is not None and self._parts.controls.member is not None:
            self._parts.controls.member.close()
        self._manager._forget(self)
        if self._owns_manager:
            self._manager._close_alone()


class _Home:
    """The thread that runs a loop at this moment, as an attribute that asyncio's own loops have, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        return None if self._loop is None or asyncio._get_running_loop() is not self._loop else get_ident()


_NOWHERE: Final = _Home(None)


class _Ended:
    """The result of ``shutdown``: awaiting it waits for the end, if requested, and returns the unstarted tasks."""

    def __init__(self, closing: Closing | None, unstarted: Collection[TaskView]) -> None:
        self._closing = closing
        self._unstarted = unstarted

    def __await__(self) -> Any:
        if self._closing is not None:
            yield from self._closing.wait().__await__()
        return self._unstarted
