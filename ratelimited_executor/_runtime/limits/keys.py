"""The limits of keys: as the user gives them, and as an executor enforces them."""

from __future__ import annotations

import contextvars
import math
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from ratelimited_executor._core.keys.keys import given_key, text_of_key
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.expiry import deadline_of
from ratelimited_executor._core.queue.records import TaskRecord
from ratelimited_executor._runtime.arguments import count_of
from ratelimited_executor._runtime.limits.policy import check_key_rate, limit_of_key

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable

    from ratelimited_executor._core.keys.gate import KeyGate
    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._core.permits.rates import RateLike
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._core.slots.asking import SlotAsker
    from ratelimited_executor._core.slots.keeping import SlotKeeper
    from ratelimited_executor._core.slots.lines import SlotLine
    from ratelimited_executor._kernel.contracts import Source
    from ratelimited_executor._kernel.states import TaskState
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.limits.slots import SlotSet
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.time.clock import Moments

__all__ = ["KeyLimits", "Keys"]

T = TypeVar("T")

_AHEAD_MIN: Final = 2  # keys for which slots are requested at a time, at least
_AHEAD_MAX: Final = 64
_AHEAD_SECONDS: Final = 0.05  # slots are requested for as many keys as tasks may start within this
_COUNT_MAX: Final = 2**53 - 1  # the largest limit that a server counts exactly
_SHARED_COUNT_MAX: Final = 16384  # keys whose tasks share their options: 1 MB


class KeyLimits:
    """The limits of keys, as the user has given them.

    Args:
        rate: the rate of each key, or a function of the key that returns it; None for no limit.
        concurrency: how many tasks of each key may run at once, or a function of the key; None for no limit.
        pending: how many tasks of each key may wait; None for no limit.
        count_max: how many keys may be remembered.
    """

    def __init__(
        self,
        *,
        rate: Rate | Callable[[Any], RateLike | None] | None,
        concurrency: int | Callable[[Any], int | None] | None,
        pending: int | None,
        count_max: int,
    ) -> None:
        self.rate = rate
        self.concurrency = concurrency
        self.pending = pending
        self.count_max = count_max

    @property
    def is_gated(self) -> bool:
        """True if a key may have to wait for its own limits."""
        return self.rate is not None or self.concurrency is not None

    @property
    def is_by_function(self) -> bool:
        """True if a limit is a function of the key, which is called for each task."""
        return callable(self.rate) or callable(self.concurrency)

    def rate_of(self, key: Hashable) -> Rate | None:
        """Return the rate of a key; None for no limit."""
        if not callable(self.rate):
            return self.rate
        found = self.rate(key)
        try:
            return None if found is None else Rate.of(found)
        except (TypeError, ValueError) as error:
            raise type(error)(f"key_rate of the key {key!r}: {error}") from None

    def concurrency_of(self, key: Hashable) -> int | None:
        """Return how many tasks of a key may run at once; None for no limit."""
        if not callable(self.concurrency):
            return self.concurrency
        found = self.concurrency(key)
        return None if found is None else count_of(f"key_concurrency of the key {key!r}", found)


class Keys:
    """The keys of one executor, and the gate that enforces their limits, created by the first limit or penalty.

    Args:
        limits: the limits that the user has given.
        queue: the queue, which asks the gate.
        moments: the source of time.
        limits_of_all: provides the policy and rate in force.
        accounts: calls :meth:`ended` at the ends of tasks, once there is a gate.
        warn: logs a warning, as ``RateLimitedWarnings.warn`` does.
        wake: makes the executor look for a task to start.
        group_limit_of: creates the limit of a key's rate in a group; None without a group.
        group_slots: returns the keeper of a group's slots, of which each task of a key with limited concurrency takes
            one; None where tasks are counted here.
        loop: the event loop.

    Attributes:
        shared: the options of tasks that have a key and nothing else, by key.
        checked: those that no limit has to check again.
    """

    __slots__ = (
        "__weakref__",
        "_accounts",
        "_group_limit_of",
        "_group_slots",
        "_keeper",
        "_limits_of_all",
        "_lines",
        "_loop",
        "_moments",
        "_queue",
        "_wake",
        "_warn",
        "checked",
        "limits",
        "shared",
    )

    def __init__(
        self,
        limits: KeyLimits,
        *,
        queue: TaskQueue,
        moments: Moments,
        limits_of_all: Limits,
        accounts: Accounts,
        warn: Callable[..., None],
        wake: Callable[[], None],
        group_limit_of: Callable[[PolicyPlan, Rate, Hashable], Limit | None] | None = None,
        group_slots: Callable[[], SlotKeeper] | None = None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.limits = limits
        self._queue = queue
        self._moments = moments
        self._limits_of_all = limits_of_all
        self._accounts = accounts
        self._warn = warn
        self._wake = wake
        self._group_limit_of = group_limit_of
        self._group_slots = group_slots
        self._keeper: SlotKeeper | None = None  # of the group's slots, once a key needs some
        self._loop = loop
        self.shared: dict[Hashable, Any] = {}
        self.checked: dict[Hashable, Any] = {}
        self._lines: WeakValueDictionary[Any, SlotLine] = WeakValueDictionary()

    def refresh(self, limits: KeyLimits, now: float) -> None:
        """Put other limits in force at loop time ``now``, or read the same ones again."""
        self.limits = limits
        self.shared.clear()  # they were checked against the limits before
        self.checked = {} if limits.is_by_function else self.shared
        gate = self._queue.gate
        if gate is not None:
            gate.refresh(self._moments.timeline.to_ns(now))
        elif limits.is_gated:
            self.gate()
        if limits.concurrency is not None:
            self._open_slots()  # before a key needs some: the first call may begin a quarantine

    def gate(self) -> KeyGate:
        """Return the gate, created if needed; from then on every key needs its admission to start a task."""
        gate = self._queue.gate
        if gate is None:
            from ratelimited_executor._core.keys.gate import KeyGate  # noqa: PLC0415  # most programs limit no keys

            gate = KeyGate(
                limit_of=self._limit_of,
                concurrency_of=self._concurrency_of,
                slots_of=self._slots_of,
                parts=self._parts,
                is_away=self._is_away,
                ahead_count=self._ahead_count,
                note_lost=self._warn_of_loss,
                keys_max=self.limits.count_max,
                is_over=self._is_over,
                note_full=self._warn_of_number,
            )
            self._accounts.detach()
            self._accounts.tell_keys(self.ended)
            self._queue.set_gate(gate)
        return gate

    def _is_over(self, task: tuple[Source | None, Any], now_ns: int) -> bool:
        """True if a task has expired: then its key does not hold it, nor the tasks after it."""
        deadline = deadline_of(*task)
        return deadline < math.inf and self._moments.timeline.to_ns(deadline) < now_ns

    def penalize(self, key: Hashable, until_ns: int) -> None:
        """Start nothing of a key before a time."""
        self.gate().penalize(key, until_ns, self._moments.ns())

    def share(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the options of tasks that have a key and nothing else; one object for many tasks of a key."""
        if key not in self.shared:
            if len(self.shared) >= _SHARED_COUNT_MAX:
                self.shared.clear()
            self.shared[key] = make()
        return cast("T", self.shared[key])

    def ended(self, owner: Any, state: TaskState | None = None) -> None:  # noqa: ARG002  # as Accounts.on_task_end
        """Record the end of a task or an attempt, whether or not it started under the limits of keys."""
        gate = self._queue.gate
        if isinstance(owner, TaskRecord):
            if owner not in self._queue.gated:
                self._left(owner)
                return
            self._queue.gated.discard(owner)
            if self._queue.slots_of and (slots := self._queue.slots_of.pop(owner, None)) is not None:
                slots.release()
            key = owner._key
        else:
            key = owner.key
        if key is not None and gate is not None and gate.end(key):
            self._wake()

    def _left(self, record: TaskRecord) -> None:
        """Record that a task has left without a start."""
        options = record._options
        if options is not None and options.line is not None:
            options.line.waiting_count -= 1
            if not options.line.waiting_count and self._queue.gate is not None:
                self._queue.gate.leave(options.line)

    def line_of(self, key: Hashable, slots: SlotSet, priority: float) -> SlotLine:
        """Return the line of tasks that need slots."""
        name = slots.pools, priority, key
        line = self._lines.get(name)
        if line is None:
            from ratelimited_executor._core.slots.lines import SlotLine  # noqa: PLC0415  # most programs have no slots

            line = self._lines[name] = SlotLine(
                key,
                slots.pools,
                priority=priority,
                name=self._accounts.name,
                keeper=slots.keeper,
                wake=self._slots_told,
            )
        self.gate()
        return line

    def _slots_told(self, line: SlotLine) -> None:
        """Look, in the loop's next turn, for tasks that may start with slots that were handed over."""
        self._loop.call_soon(self._look_at, line)

    def _look_at(self, line: SlotLine) -> None:
        if self._queue.gate is not None:
            self._queue.gate.look_again(line)
            self._wake()

    def _limit_of(self, key: Hashable) -> Limit | None:
        plan = self._limits_of_all.plan
        try:
            rate = contextvars.Context().run(self.limits.rate_of, given_key(key))
            check_key_rate(plan.rule, rate)
        except Exception as error:  # noqa: BLE001  # user code, which was checked before: it must not block the key
            self._warn_of_key(key, error)
            rate = None
        if rate is None:
            return None
        if self._group_limit_of is not None:
            return self._group_limit_of(plan, rate, key)
        common = plan.rate.per_second
        spacing = self._queue.permits.peers / common if common else Fraction(0)
        return limit_of_key(plan.rule, rate, self._moments.ns(), spacing=spacing)

    def _concurrency_of(self, key: Hashable) -> int | None:
        try:
            count = contextvars.Context().run(self.limits.concurrency_of, given_key(key))
        except Exception as error:  # noqa: BLE001  # user code, which was checked before: it must not block the key
            self._warn_of_key(key, error)
            return None
        return count

    # The slots of keys, where a group counts them.

    def _slots_of(self, key: Hashable, count: int) -> SlotAsker | None:
        """Create the requester of a key's slots, of which ``count`` may be held; None if no group counts its tasks."""
        keeper = self._open_slots()
        if keeper is None:
            return None
        from ratelimited_executor._core.slots.asking import SlotAsker  # noqa: PLC0415  # most programs share no slots

        name = self._accounts.name
        pool = f"{name}: key {text_of_key(key)}"
        told = partial(self._loop.call_soon, self._look_at_key, key)
        return SlotAsker(keeper, (pool,), name=name, priority=0.0, told=told, limit=min(count, _COUNT_MAX))

    def _open_slots(self) -> SlotKeeper | None:
        """Return the keeper of the group's slots; None if no group counts the tasks of keys."""
        if self._keeper is None and self._group_slots is not None:
            self._keeper = self._group_slots()
            self._keeper.watch(self._ask_anew)
        return self._keeper

    def _parts(self) -> int | None:
        """Return the number of parts into which the limits of keys are divided; None while the group alone counts."""
        return None if self._keeper is None else self._keeper.parts

    def _is_away(self) -> bool:
        """Return True while the group cannot be asked for slots."""
        return self._keeper is not None and self._keeper.is_away

    def _look_at_key(self, key: Hashable) -> None:
        if self._queue.gate is not None:
            self._queue.gate.told(key)
            self._wake()

    def _ahead_count(self) -> int:
        """Return for how many keys to request slots at a time: as many as may start before an answer arrives."""
        rate = self._limits_of_all.plan.rate.per_second
        return _AHEAD_MAX if rate is None else min(_AHEAD_MAX, max(_AHEAD_MIN, int(rate * _AHEAD_SECONDS)))

    def _ask_anew(self) -> None:
        """Switch to the limits of the group, or to a part of them: the group is reachable again, or no longer."""
        if self._queue.gate is not None:
            self._queue.gate.refresh(self._moments.ns())
            self._wake()

    def _warn_of_loss(self, key: Hashable) -> None:
        self._warn(
            "key",
            "a task of the key %r continues without its slot of the group, which could not be renewed: other tasks of the key may run beside it",
            key,
        )

    def _warn_of_number(self) -> None:
        self._warn(
            "keys",
            "%s remembers max_keys=%d keys: tasks of other keys wait until one of these can be forgotten",
            self._accounts.name,
            self.limits.count_max,
        )

    def _warn_of_key(self, key: Hashable, error: BaseException) -> None:
        self._warn("key", "the function of a limit raised %r for the key %r; the key has no limit", key, error)
