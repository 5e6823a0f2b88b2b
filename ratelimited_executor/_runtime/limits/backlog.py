"""The bounds on waiting tasks, and what happens at the bound: refuse, wait for room, or drop others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ratelimited_executor._core.keys.keys import given_key
from ratelimited_executor._core.queue.dropping import DropIndex
from ratelimited_executor._runtime.limits.policy import WhenFull
from ratelimited_executor._runtime.limits.room import Room
from ratelimited_executor.exceptions import BacklogFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._runtime.limits.keys import KeyLimits
    from ratelimited_executor._runtime.task.accounts import Accounts

__all__ = ["Backlog"]

T = TypeVar("T")


class Backlog:
    """The bounds on one executor's waiting tasks.

    Args:
        name: the name of the executor, for errors.
        max_pending: how many tasks may wait; None for no limit.
        key_limits: the limits of keys, including ``pending``.
        when_full: what to do when there is no room.
        queue: the queue of waiting tasks.
        accounts: the accounts, which count them.
        drop: ends a waiting task as dropped, with a reason.

    Attributes:
        room: the waiters for room; None unless ``when_full`` is ``WAIT``.
        is_dropping: True if tasks are dropped for lack of room.
    """

    __slots__ = (
        "_accounts", "_drop", "_key_limits", "_max_pending", "_name", "_queue", "is_dropping", "room",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        max_pending: int | None,
        key_limits: KeyLimits,
        when_full: WhenFull,
        queue: TaskQueue,
        accounts: Accounts,
        drop: Callable[[Any, str], None],
    ) -> None:
        self._name = name
        self._max_pending = max_pending
        self._key_limits = key_limits
        self._queue = queue
        self._accounts = accounts
        self._drop = drop
        is_bounded = max_pending is not None or key_limits.pending is not None
        self.is_dropping = is_bounded and when_full in (WhenFull.DROP_LOWEST, WhenFull.DROP_OLDEST)
        self.room: Room | None = None
        if self.is_dropping or key_limits.pending is not None:
            is_by_key = key_limits.pending is not None
            queue.drops = DropIndex(is_lowest_first=when_full is WhenFull.DROP_LOWEST, is_by_key=is_by_key)
        if is_bounded and when_full is WhenFull.WAIT:
            self.room = Room(self._has_room)
            accounts.on_room = self.room.wake
            accounts.tell_call_cancelled(self.room.wake)

    def admit(self, count: int, key: Hashable, priority: float) -> None:
        """Admit ``count`` more waiting tasks, dropping others for them if configured.

        Args:
            count: how many tasks.
            key: their key, in its stored form.
            priority: their priority; nothing more important is dropped for them.

        Raises:
            BacklogFullError: if they do not fit; nothing is dropped then.
        """
        if self.is_dropping:
            self._make_room(count, key, priority)
            return
        room = self.room
        if room is not None and room.is_passing:
            return
        waiting = self._accounts.waiting_count()
        is_kept = room is not None and count and not room.is_free(key)
        if self._max_pending is not None and (waiting + count > self._max_pending or is_kept):
            raise BacklogFullError(self._name, waiting=waiting, asked=count, max_pending=self._max_pending)
        pending = self._key_limits.pending
        if pending is not None and key is not None:
            waiting = self.key_count(key)
            if waiting + count > pending:
                raise BacklogFullError(
                    self._name, waiting=waiting, asked=count, max_pending=pending, key=given_key(key)
                )

    async def in_turn(self, key: Hashable, call: Callable[[], T]) -> T:
        """Call the function that adds one task of a key, after waiting for room if ``when_full`` is ``WAIT``."""
        if self.room is None:
            return call()
        await self.room.wait(key)
        with self.room.passing(key):
            return call()

    def key_count(self, key: Hashable) -> int:
        """Count the waiting tasks of a key; only those of batches unless keys have a bound."""
        count = 0 if self._queue.drops is None else self._queue.drops.key_count(key)
        return count + sum(source.live for source in self._queue.batches() if source.key == key)

    def drop_excess(self, key: Hashable) -> None:
        """Drop tasks beyond the bounds, if ``when_full`` drops tasks."""
        drops = self._queue.drops
        if drops is None or not self.is_dropping:
            return
        if self._max_pending is not None:
            while self._accounts.waiting_count() > self._max_pending and drops.first() is not None:
                self._drop(drops.first(), f"max_pending is {self._max_pending}")
        pending = self._key_limits.pending
        if pending is not None and key is not None:
            while self.key_count(key) > pending and drops.first(key) is not None:
                self._drop(drops.first(key), f"key_max_pending is {pending}")

    def _has_room(self, count: int, key: Hashable, key_count: int = 0) -> bool:
        """True if more tasks may wait, counting those with a reserved place.

        Args:
            count: tasks, including reserved places.
            key: the key of the next task.
            key_count: reserved places of the same key.
        """
        if self._max_pending is not None and self._accounts.waiting_count() + count > self._max_pending:
            return False
        pending = self._key_limits.pending
        return pending is None or key is None or self.key_count(key) + key_count + 1 <= pending

    def _make_room(self, count: int, key: Hashable, priority: float) -> None:
        """Drop tasks until ``count`` more fit; none of higher priority is dropped."""
        drops = self._queue.drops
        assert drops is not None
        excess: list[tuple[int, int, Hashable, int, str]] = []
        waiting = self._accounts.waiting_count()
        if self._max_pending is not None:
            excess.append((waiting, self._max_pending, None, waiting + count - self._max_pending, "max_pending"))
        if self._key_limits.pending is not None and key is not None:
            held, most = self.key_count(key), self._key_limits.pending
            excess.append((held, most, key, held + count - most, "key_max_pending"))
        for held, most, of, number, _ in excess:
            victims = drops.first_n(number, of)
            if len(victims) < number or any(drops.protects(victim, priority) for victim in victims):
                raise BacklogFullError(self._name, waiting=held, asked=count, max_pending=most, key=given_key(of))
        for _, most, of, number, name in reversed(excess):  # tasks dropped from a key also make room in the total
            left = number if of is not None else self._accounts.waiting_count() + count - most
            for victim in drops.first_n(left, of):
                self._drop(victim, f"{name} is {most}")
