"""What an executor does when there is more work than rate: costs, keys, penalties, retries, room.

All of it stands beside the engine, which asks only where something of it is in use: an executor without keys, costs and
limits runs as if this module were not there.
"""

from __future__ import annotations

import contextvars
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.adaptive import AdaptiveControl
from ratelimited_executor._core.key_gate import KeyGate
from ratelimited_executor._core.keys import given_key
from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._core.records import PERMITS, Charge, KeyOptions, Options, Record
from ratelimited_executor._core.retries import Attempts
from ratelimited_executor._core.states import TaskState
from ratelimited_executor._core.timeline import NS
from ratelimited_executor._runtime.arguments import count_of
from ratelimited_executor._runtime.policy import WhenFull, check_key_rate, limit_of_key
from ratelimited_executor._runtime.retrying import pause_before_retry, random_for
from ratelimited_executor._runtime.room import Room
from ratelimited_executor.exceptions import BacklogFullError, RetryLater, TaskDroppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from ratelimited_executor._core.adaptive import Adaptive
    from ratelimited_executor._core.dropping import DropIndex
    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._core.rates import RateLike
    from ratelimited_executor._runtime.engine import Engine
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.policy import PolicyPlan

__all__ = ["KeyLimits", "Overload"]

T = TypeVar("T")
_SHARED_COUNT_MAX: Final = 16384  # keys whose tasks share their options: 1 MB


class KeyLimits:
    """The limits of keys, as the user has given them.

    Args:
        rate: of each key, or a function of the key that tells it; None for no limit.
        concurrency: how many tasks of each key may run at once, or a function of the key; None for no limit.
        pending: how many tasks of each key may wait; None for no limit.
    """

    def __init__(
        self,
        *,
        rate: RateLike | Callable[[Any], RateLike | None] | None,
        concurrency: int | Callable[[Any], int | None] | None,
        pending: int | None,
    ) -> None:
        self.rate = rate
        self.concurrency = concurrency
        self.pending = pending

    @property
    def is_gated(self) -> bool:
        """Whether a key may have to wait for itself."""
        return self.rate is not None or self.concurrency is not None

    def rate_of(self, key: Hashable) -> Rate | None:
        """Return the rate of a key; None for no limit."""
        if not callable(self.rate):
            return None if self.rate is None else Rate.of(self.rate)
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


class Overload:
    """The part of an engine that most executors never use.

    Args:
        engine: whose starts and ends it is told of.
        plan: policy, rates and resources.
        key_limits: of its keys.
        retry: the policy of tasks that bring none of their own.
        adaptive: how the rate adapts; None if it does not.
        peers: how many have fixed parts of the rate.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        plan: PolicyPlan,
        key_limits: KeyLimits,
        retry: Any,
        adaptive: Adaptive | None,
        peers: int,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._deciding_at: float | None = None  # loop time of the decision that is being taken; None outside of one
        self.plan = plan
        self.key_limits = key_limits
        self.retry = retry
        self._adaptive = adaptive
        self.adaptive = None if adaptive is None else AdaptiveControl(adaptive, engine.monotonic())
        self.room: Room | None = None
        self.retried_count = 0
        self.random = random_for(engine.loop)
        self.penalty_max = math.inf  # seconds that the other side may ask for at most
        self._max_pending: int | None = None
        self._is_dropping = False
        self._shared: dict[Hashable, KeyOptions] = {}
        self._gated: set[Record] = set()  # tasks that run and have started under the limits of keys

    # Decisions.

    def decide(self, decide: Callable[[float], T], now: float) -> T:
        """Take a decision by a time: what changes a setting in the middle of it counts from then on."""
        self._deciding_at = now
        try:
            return decide(now)
        finally:
            self._deciding_at = None

    def decided_at(self) -> float:
        """Return the loop time at which a change of settings takes effect.

        In the middle of a decision that is the time of the decision, whatever it takes: what is decided after the change, by
        the same time, must not come before it.
        """
        return self._engine.monotonic() if self._deciding_at is None else self._deciding_at

    # Limits in time.

    def permits(self) -> CombinedPermits:
        """Return what admits starts, made able to say no for a time."""
        queue = self._engine.queue
        if not isinstance(queue.grid, CombinedPermits):
            grid: Any = queue.grid
            queue.set_permits(CombinedPermits(grid, (), rate=grid.rate, time_ns=self._engine.time_ns))
        combined: Any = queue.grid
        return combined  # type: ignore[no-any-return]  # it was made so

    def meter(self) -> None:
        """Ask what each start costs, from now on."""
        queue = self._engine.queue
        if queue.costs is None:
            self._engine.burst.detach()
            queue.set_costs(self.permits())

    def set_plan(self, plan: PolicyPlan) -> None:
        """Put other rates in force; what was started still counts."""
        engine = self._engine
        self.plan = plan
        if not plan.is_plain or isinstance(engine.queue.grid, CombinedPermits):
            engine.burst.detach()
            engine.queue.set_permits(
                plan.permits(
                    engine.queue.grid,
                    now_ns=engine.timeline.to_ns(self.decided_at()),
                    time_ns=engine.time_ns,
                    wall_ns=engine.wall_ns,
                )
            )
        if engine.queue.gate is not None:
            self.set_key_limits(self.key_limits)  # which know how far apart the permits are

    def penalize(self, seconds: float, key: Hashable) -> None:
        """Start nothing for so long; nothing of one key, if it is not None."""
        engine = self._engine
        engine.burst.detach()
        until_ns = engine.time_ns() + round(min(seconds, self.penalty_max) * NS)
        if key is None:
            permits = self.permits()
            permits.penalty_ns = max(permits.penalty_ns, until_ns)
            engine.queue.note_permits()
        else:
            gate = engine.queue.gate or self._open_gate()
            gate.now_ns = engine.time_ns()
            gate.penalize(key, until_ns)
        self.overloaded()
        engine.wake()

    # Keys.

    def set_key_limits(self, limits: KeyLimits) -> None:
        """Put other limits of keys in force."""
        self.key_limits = limits
        queue = self._engine.queue
        self._engine.burst.detach()
        if queue.gate is not None:
            queue.gate.now_ns = self._engine.timeline.to_ns(self.decided_at())
            queue.gate.refresh()
        elif limits.is_gated:
            self._open_gate()
        self._engine.wake()

    def _open_gate(self) -> KeyGate:
        """Let every key be asked whether it may start a task, from now on."""
        gate = KeyGate(limit_of=self._limit_of, concurrency_of=self._concurrency_of, now_ns=self._engine.time_ns())
        self._engine.is_gated = True
        self._engine.queue.set_gate(gate)
        return gate

    def _limit_of(self, key: Hashable) -> Limit | None:
        try:
            rate = contextvars.Context().run(self.key_limits.rate_of, given_key(key))
            check_key_rate(self.plan.policy, rate)
        except Exception as error:  # noqa: BLE001  # user code, which was asked before: a key must not get stuck for it
            self._warn_of_key(key, error)
            rate = None
        if rate is None:
            return None
        common = self._engine.rate.per_second
        spacing = self._engine.queue.grid.peers / common if common else Fraction(0)
        return limit_of_key(self.plan.policy, rate, self._engine.time_ns(), spacing=spacing)

    def _concurrency_of(self, key: Hashable) -> int | None:
        try:
            return contextvars.Context().run(self.key_limits.concurrency_of, given_key(key))
        except Exception as error:  # noqa: BLE001  # as above
            self._warn_of_key(key, error)
            return None

    def _warn_of_key(self, key: Hashable, error: BaseException) -> None:
        message = "%s: the limit of the key %r raised %r; it has none"
        self._engine.runner.warnings.warn("key", message, self._engine.name, key, error)

    def key_options(self, key: Hashable) -> KeyOptions:
        """Return the options of tasks that have a key and nothing else; one object for many tasks of a key."""
        shared = self._shared.get(key)
        if shared is None:
            if len(self._shared) >= _SHARED_COUNT_MAX:
                self._shared.clear()
            shared = self._shared[key] = KeyOptions(key)
        return shared

    # Starts and ends.

    def started(self, record: TaskHandle[Any], options: Any) -> list[tuple[str, Any, Any]]:
        """Take what the start of a task with options costs beyond its permit; return the tickets of that."""
        queue = self._engine.queue
        charge, gate = options.charge, queue.gate
        tickets: list[tuple[str, Any, Any]] = []
        if charge is not None and queue.costs is not None:
            tickets = charge.tickets = queue.costs.charge(charge.needs)
            charge.share = queue.last_share()
            queue.note_permits()  # what was counted before may be used up by now
        if options.key is not None and gate is not None:
            self._gated.add(record)
            ticket = gate.start(options.key, 1 if charge is None else record.cost, gate.now_ns)
            if ticket is not None:
                tickets.append((PERMITS, *ticket))
        return tickets

    def tickets(self, more: Iterable[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
        """Return the tickets of what has just started, for :meth:`take_effect`; some may be there twice."""
        grid = self._engine.queue.grid
        return [*grid.tickets, *more] if isinstance(grid, CombinedPermits) else [*more]

    def take_effect(self, tickets: list[tuple[str, Any, Any]]) -> None:
        """Note that a start takes effect only now, which matters to limits that count what the other side sees."""
        now_ns = self._engine.time_ns()
        for _, limit, ticket in tickets:
            if isinstance(limit, (WindowLimit, QuotaLimit)):
                limit.take_effect(ticket, now_ns)

    def item_started(self, key: Hashable, needs: Mapping[str, int] | None, cost: int) -> None:
        """Do the same for a task of a batch."""
        queue, gate = self._engine.queue, self._engine.queue.gate
        if needs is not None and queue.costs is not None:
            queue.costs.charge(needs)
            queue.note_permits()
        if key is not None and gate is not None:
            gate.start(key, cost, gate.now_ns)

    def ended(self, owner: Any) -> None:
        """Note that a task has ended, which may or may not have started under the limits of keys."""
        gate = self._engine.queue.gate
        if gate is None or owner is None:
            return
        key = None
        if not isinstance(owner, Record):
            key = owner[2] if len(owner) > 2 else None
        elif owner in self._gated:
            self._gated.discard(owner)
            key = owner._key
        if key is not None and gate.end(key):
            self._engine.wake()

    def settle(self, record: TaskHandle[Any], charge: Charge, actual: Mapping[str, int]) -> None:
        """Correct what a task has taken; before its start, what it will take."""
        engine = self._engine
        queue = engine.queue
        engine.burst.detach()
        if charge.tickets is None:
            charge.needs = charge.reserved = actual if actual[PERMITS] else {**actual, PERMITS: 1}
            if record._key is not None and queue.gate is not None:
                queue.gate.now_ns = engine.time_ns()
                queue.gate.look_again(record._key)
        else:
            change = actual[PERMITS] - charge.needs[PERMITS]
            charge.needs = actual
            if queue.costs is not None:
                queue.costs.settle(charge.tickets, actual)
            queue.settle_share(charge.share, change)
            if record._key is not None and queue.gate is not None and change < 0:
                queue.gate.now_ns = engine.time_ns()
                queue.gate.look_again(record._key)
        queue.note_permits()
        engine.wake()

    # Feedback.

    def overloaded(self) -> None:
        """Note that the other side has had too much."""
        if self.adaptive is not None:
            ratio = self._rate_in_force()
            if ratio:
                self._adapt(ratio, self.adaptive.overloaded(ratio, self.decided_at()))

    def rest(self, now: float) -> None:
        """Look at how it goes, whenever all has started that may."""
        if self.adaptive is not None:
            engine = self._engine
            ratio = self._rate_in_force()
            if ratio:
                used, done = engine.started_count, engine.ended_counts[TaskState.DONE]
                if engine.member is not None:
                    used += engine.member.refused_count  # others of the group have used these
                self._adapt(ratio, self.adaptive.step(ratio, now, used_count=used, done_count=done, peers=self._peers))
        if self.room is not None:
            self.room.wake()

    def _rate_in_force(self) -> Fraction | None:
        """Return permits a second of the rate to step from: that of the whole group, if another has changed it."""
        engine = self._engine
        shared = None if engine.member is None else engine.member.rate_of_others()
        return engine.rate.per_second if shared is None else shared

    def _adapt(self, before: Fraction, after: Fraction) -> None:
        if after != before:
            assert self._adaptive is not None
            self._engine.set_plan(self.plan.with_rate(after, self._adaptive))

    def retries(self, owner: Any, error: BaseException, context: contextvars.Context | None) -> bool:
        """Put a task that has failed back among those that wait, if it is to be tried again."""
        if isinstance(owner, tuple):
            return self._retry_item(owner, error)
        return self._retry_record(owner, error, context)

    def _retry_record(self, record: TaskHandle[Any], error: BaseException, context: Any) -> bool:
        options = record._options
        engine = self._engine
        if isinstance(error, RetryLater):
            self.overloaded()
        attempts = None if options is None else options.attempts
        policy = self.retry if attempts is None else attempts.policy
        if policy is None or engine.queue.is_halted:
            return False
        count = 1 if attempts is None else attempts.count + 1
        first = record._context if attempts is None or attempts.first is None else attempts.first
        pause = pause_before_retry(policy, count, error, engine, first)
        if pause is None or (attempts is not None and engine.now() + pause >= attempts.until(record._due)):
            return False
        self.ended(record)
        if type(options) is not Options:
            options = record._options = Options(key=record._key)
        if options.attempts is None:
            options.attempts = Attempts(policy)
        options.attempts.count = count
        options.attempts.first = first
        options.attempts.failed(record._due)
        now = engine.now()
        record._due = now + pause
        if options.attempts.within is not None:
            options.expires = options.attempts.expires_by(record._due)
        options.wall = None
        if options.charge is not None:
            options.charge.tickets = None
            options.charge.needs = options.charge.reserved
        if options.expires is not None:
            options.deadline = record._due + options.expires
        record._context = context
        record._place = None
        record._move_to(TaskState.WAITING)
        self.retried_count += 1
        engine.add_again(record)
        return True

    def _retry_item(self, owner: tuple[Any, ...], error: BaseException) -> bool:
        """Do the same for a task of a batch."""
        engine = self._engine
        if isinstance(error, RetryLater):
            self.overloaded()
        handle, index = owner[:2]
        if handle.retry is None or len(owner) < 5 or engine.queue.is_halted:
            return False
        attempts = handle.attempts.pop(index, None) or Attempts(handle.retry)
        if attempts.first is None:
            attempts.first = engine.monotonic()
        attempts.count += 1
        pause = pause_before_retry(handle.retry, attempts.count, error, engine, attempts.first)
        if pause is None:
            return False
        self.ended(owner)
        handle.attempts[index] = attempts
        source, items = owner[3:]
        self.retried_count += 1
        engine.add_item_again(source.again(index, engine.now() + pause), items)
        return True

    # Room.

    def bound(self, max_pending: int | None, *, index: DropIndex | None, when_full: WhenFull) -> None:
        """Keep to so many waiting tasks."""
        self._max_pending = max_pending
        self._engine.queue.drops = index
        self._is_dropping = when_full in (WhenFull.DROP_LOWEST, WhenFull.DROP_OLDEST)
        if when_full is WhenFull.WAIT:
            self.room = Room(self.has_room)
            self._engine.is_watching = True
            wake = self.room.wake
            self._engine.queue.on_time.on_cancelled = self._engine.queue.spread.on_cancelled = wake

    async def in_turn(self, key: Hashable, call: Callable[[], T]) -> T:
        """Call what adds one task of a key: once it has a place, if that is how this executor deals with a full backlog."""
        if self.room is None:
            return call()
        await self.room.wait(key)
        with self.room.passing(key):
            return call()

    def has_room(self, count: int, key: Hashable, key_count: int = 0) -> bool:
        """Whether so many more tasks may wait, beside those that have been promised a place.

        Args:
            count: tasks, promised ones included.
            key: of the tasks.
            key_count: promised tasks of the same key.
        """
        if self._max_pending is not None and self._engine.waiting_count() + count > self._max_pending:
            return False
        pending = self.key_limits.pending
        return pending is None or key is None or self.key_count(key) + key_count + 1 <= pending

    def key_count(self, key: Hashable) -> int:
        """Count the waiting tasks of a key, if keys have a limit of their own."""
        queue = self._engine.queue
        count = 0 if queue.drops is None else queue.drops.key_count(key)
        return count + sum(source.live for source in queue.batches() if source.key == key)

    def drop_excess(self, key: Hashable) -> None:
        """Drop tasks until those that wait are no more than may, if that is what was asked for."""
        drops = self._engine.queue.drops
        if drops is None or not self._is_dropping:
            return
        if self._max_pending is not None:
            while self._engine.waiting_count() > self._max_pending and drops.first() is not None:
                self.drop(drops.first(), f"max_pending is {self._max_pending}")
        pending = self.key_limits.pending
        if pending is not None and key is not None:
            while self.key_count(key) > pending and drops.first(key) is not None:
                self.drop(drops.first(key), f"key_max_pending is {pending}")

    def make_room(self, count: int, key: Hashable, priority: float) -> None:
        """Drop as many tasks as it takes for ``count`` more to fit, none of them more important than those.

        Raises:
            BacklogFullError: if even that would not do; nothing has been dropped then.
        """
        engine, drops = self._engine, self._engine.queue.drops
        assert drops is not None
        excess: list[tuple[int, int, Hashable, int, str]] = []
        waiting = engine.waiting_count()
        if self._max_pending is not None:
            excess.append((waiting, self._max_pending, None, waiting + count - self._max_pending, "max_pending"))
        if self.key_limits.pending is not None and key is not None:
            held, most = self.key_count(key), self.key_limits.pending
            excess.append((held, most, key, held + count - most, "key_max_pending"))
        for held, most, of, number, _ in excess:
            victims = drops.firsts(number, of)
            if len(victims) < number or any(drops.spares(victim, priority) for victim in victims):
                raise BacklogFullError(engine.name, waiting=held, asked=count, max_pending=most, key=given_key(of))
        for _, most, of, number, name in reversed(excess):  # what a key gives up makes room for all
            left = number if of is not None else engine.waiting_count() + count - most
            for victim in drops.firsts(left, of):
                self.drop(victim, f"{name} is {most}")

    def drop_beyond(self) -> None:
        """Drop the first task, which costs more than is ever admitted since a rate has been lowered: all wait behind it."""
        engine, queue = self._engine, self._engine.queue
        calendar: Any = queue.beyond
        queue.beyond = None
        run = queue.pop(calendar)
        source, item = run.source, run.take()
        calendar.opened_count -= 1
        queue.note_permits()
        if source is None:
            queue.expiry.discard(item)
            if queue.drops is not None:
                queue.drops.discard(item)
            engine.end(item, TaskState.DROPPED, TaskDroppedError(item.name, reason=_beyond(item.needs)))
            return
        source.start(item)
        source.owner._take_items(source)
        if not source.live:
            calendar.finish(source)
        error = TaskDroppedError(source.name_of(item), reason=_beyond(source.needs))
        engine.end((source.owner, source.indexes[item]), TaskState.DROPPED, error)

    def left(self, key: Hashable, *, is_costly: bool) -> None:
        """Look again at what had to wait for a task that has gone without a start.

        Args:
            key: of the task.
            is_costly: whether it needed something else than a permit.
        """
        engine, gate = self._engine, self._engine.queue.gate
        if engine.queue.is_halted:
            return
        if key is not None and gate is not None and gate.is_parked(key):
            gate.now_ns = engine.time_ns()
            gate.look_again(key)
            engine.wake()
        if is_costly:
            engine.queue.note_permits()
            engine.wake()

    def drop(self, record: Any, reason: str) -> None:
        """End a task that waits as dropped."""
        self._engine.remove(record)
        self._engine.end(record, TaskState.DROPPED, TaskDroppedError(record.name, reason=reason))


def _beyond(needs: Mapping[str, int] | None) -> str:
    costs = ", ".join(f"{amount} {resource}" for resource, amount in (needs or {}).items())
    return f"its cost, {costs}, is more than the limits in force ever admit"
