"""Slots: limits on how many holders do something at the same time."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ratelimited_executor._core.durations import delay_of, number_of
from ratelimited_executor._runtime.arguments import count_of, name_or_none
from ratelimited_executor.exceptions import SlotLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextvars import Context
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.slots.keeping import SlotKeeper, SlotRequest, SlotStatistics

__all__ = [
    "OnLost",
    "Slot",
    "SlotHold",
    "SlotSet",
    "Slots",
    "current_slot",
    "holding",
    "slot_for",
    "slots_of",
]


class OnLost(Enum):
    """What happens to a holder that has lost its slot, which is possible only with peers."""

    CANCEL = "cancel"
    """Its body is cancelled, and ``async with`` raises :class:`SlotLostError`."""
    FINISH = "finish"
    """Its body continues; ``slot.is_lost`` is True."""


class Slot:
    """A slot that is held, of one pool or of several.

    Attributes:
        pools: the names of its pools.
        fence: a number larger than that of every slot that these pools handed over before. Pass it to the resource that
            you change, which can then refuse a smaller one.
        is_lost: True if another holder may have the slot now.
    """

    __slots__ = ("fence", "is_lost", "pools")

    def __init__(self, pools: tuple[str, ...], fence: int) -> None:
        self.pools = pools
        self.fence = fence
        self.is_lost = False

    @property
    def pool(self) -> str:
        """The name of its pool; the first, if there are several."""
        return self.pools[0]

    def __repr__(self) -> str:
        return f"<Slot {', '.join(self.pools)} fence={self.fence}{' lost' if self.is_lost else ''}>"


OnLostLike: TypeAlias = "OnLost | Callable[[Slot], object]"


class Slots:
    """A pool of slots: at most ``limit`` are held at the same time.

    Created by ``ExecutorManager.slots``, once for each name. Unlike ``max_concurrency``, which counts the tasks of one
    executor, a pool serves all holders: tasks of several executors, your own code and, with peers, all processes of the
    group.
    """

    __slots__ = ("__weakref__", "_keeper", "_name")

    def __init__(self, name: str, keeper: SlotKeeper) -> None:
        self._name = name
        self._keeper = keeper

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self._name

    @property
    def limit(self) -> int | None:
        """How many slots may be held at the same time; settable. None while that is not known.

        Additional slots are handed over at once. A lower limit takes no slot away: holders finish, and none is handed over
        until fewer are held. 0 halts the pool. With peers it is the group's limit: setting it sets it for all processes. A
        process that has set none asks for it at once, and reads None until the answer.

        Raises:
            TypeError: if it is set to a value that is not an integer.
            ValueError: if it is negative.
        """
        return self._keeper.limit_of(self._name)

    @limit.setter
    def limit(self, limit: int) -> None:
        self._keeper.set_limit(self._name, count_of("limit", limit))

    def hold(
        self,
        *,
        priority: float = 0,
        expires: DurationLike | None = None,
        name: str | None = None,
        also: Iterable[Slots] = (),
        on_lost: OnLostLike = OnLost.CANCEL,
    ) -> SlotHold:
        """Hold a slot for one ``async with``, which is entered when a slot is available.

        Args:
            priority: **a larger one is more important**; equal priorities are served in order of arrival.
            expires: the longest wait in seconds, from the entry on; None for as long as it takes.
            name: the name of the holder; the asyncio task's name by default.
            also: other pools of the same manager. One slot of each is acquired in the same step, so that no holder has one slot
                while it waits for another.
            on_lost: what happens to the body if its slot is lost; a function is called with the slot, on the event loop.

        Returns:
            An async context manager that returns the :class:`Slot`.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if it is out of range, or a pool is named twice or belongs to another manager.
        """
        rank = number_of("priority", priority)
        longest = None if expires is None else delay_of("expires", expires)
        if not isinstance(on_lost, OnLost) and not callable(on_lost):
            raise TypeError(f"on_lost must be OnLost.CANCEL, OnLost.FINISH or a function of a slot, got {on_lost!r}")
        return SlotHold(
            self._pools_with(also),
            self._keeper,
            name=name_or_none("name", name),
            priority=rank,
            expires=longest,
            on_lost=on_lost,
        )

    def _pools_with(self, also: Iterable[Slots]) -> tuple[str, ...]:
        pools = [self._name]
        for other in also:
            if not isinstance(other, Slots):
                raise TypeError(f"also must be pools of slots, as slots(name) of a manager returns them, got {other!r}")
            if other._keeper is not self._keeper:  # noqa: SLF001  # of the same class
                raise ValueError(f"also must be pools of the same manager, {other!r} is another's")
            if other.name in pools:
                raise ValueError(f"also must name each pool once, got {other.name!r} twice")
            pools.append(other.name)
        return tuple(pools)

    def statistics(self) -> SlotStatistics:
        """Return the counts at this instant, and the holders."""
        return self._keeper.statistics(self._name)

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<Slots {self._name!r} limit={now.limit} held={now.held} waiting={now.waiting}>"


class SlotSet(NamedTuple):
    """The slots that a task needs.

    Attributes:
        pools: the names of the pools.
        keeper: the keeper of their slots.
    """

    pools: tuple[str, ...]
    keeper: Any


def slots_of(name: str, value: Any, own_keeper: Any) -> SlotSet | None:
    """Return the pools of an argument: one, several in a sequence, or None.

    Args:
        name: the name of the argument.
        value: its value.
        own_keeper: the keeper of the slots of the executor's manager.

    Raises:
        TypeError: if it is anything else.
        ValueError: if it is empty, names a pool twice, or names a pool of another manager.
    """
    if value is None:
        return None
    given = [value] if isinstance(value, Slots) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, Slots) for one in given):
        raise TypeError(
            f"{name} must be a pool of slots, as slots(name) of a manager returns it, or a list of pools, got {value!r}"
        )
    pools = tuple(one.name for one in given)
    if not pools:
        raise ValueError(f"{name} must name at least one pool, got {value!r}: omit it if the task needs none")
    if len(set(pools)) < len(pools):
        raise ValueError(f"{name} must name each pool once, got {value!r}")
    for one in given:
        if one._keeper is not own_keeper:  # noqa: SLF001  # of this module
            raise ValueError(f"{name} must be pools of the executor's own manager, {one!r} is another's")
    return SlotSet(pools, own_keeper)


_CURRENT: Final[ContextVar[Slot | None]] = ContextVar("ratelimited_executor.slots.current", default=None)


def current_slot() -> Slot | None:
    """Return the slot that the current scheduled task holds; None if it was scheduled without ``slots=``.

    It is a context variable, visible in functions that the task calls, and in tasks and threads that share its context.
    """
    return _CURRENT.get()


def slot_for(pools: tuple[str, ...], request: SlotRequest, context: Context) -> Slot:
    """Create the slot of a starting task, and make it the current one of its context."""
    slot = Slot(pools, request.fence)
    request.lost = lambda: setattr(slot, "is_lost", True)
    request.start()
    context.run(_CURRENT.set, slot)
    return slot


async def holding(coroutine: Coroutine[Any, Any, Any], slot: Slot, request: SlotRequest) -> Any:
    """Run a task that has started with slots; cancel it if they are lost.

    Raises:
        SlotLostError: if they were.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelling = task.cancelling()

    def lost() -> None:
        slot.is_lost = True
        task.cancel(f"its slot of {slot.pool!r} is lost")

    request.lost = lost
    try:
        if slot.is_lost:  # before its first step
            coroutine.close()
            raise SlotLostError(slot.pool, slot.fence)
        return await coroutine
    except asyncio.CancelledError as error:
        if slot.is_lost and task.uncancel() <= cancelling:
            raise SlotLostError(slot.pool, slot.fence) from error
        raise
    finally:
        request.lost = lambda: None


class SlotHold:
    """One slot, or one of each of some pools, for one ``async with``. Created by :meth:`Slots.hold`."""

    __slots__ = (
        "_cancelling",
        "_expires",
        "_grant",
        "_is_used",
        "_keeper",
        "_name",
        "_on_lost",
        "_pools",
        "_priority",
        "_slot",
        "_task",
    )

    def __init__(
        self,
        pools: tuple[str, ...],
        keeper: SlotKeeper,
        *,
        name: str | None,
        priority: float,
        expires: float | None,
        on_lost: OnLostLike,
    ) -> None:
        self._pools = pools
        self._keeper = keeper
        self._name = name
        self._priority = priority
        self._expires = expires
        self._on_lost = on_lost
        self._is_used = False
        self._grant: Any = None
        self._slot: Slot | None = None
        self._task: asyncio.Task[Any] | None = None  # the task to cancel if the slot is lost
        self._cancelling = 0

    async def __aenter__(self) -> Slot:
        if self._is_used:
            raise RuntimeError("a hold can be entered only once: call hold() for another")
        self._is_used = True
        task = self._task = asyncio.current_task()
        name = self._name or ("hold" if task is None else task.get_name())
        try:
            self._grant, fence = await self._keeper.acquire(
                self._pools, name=name, priority=self._priority, expires=self._expires, lost=self._note_lost
            )
        except BaseException:
            self._is_used = False
            raise
        if task is not None:
            self._cancelling = task.cancelling()
        slot = self._slot = Slot(self._pools, fence)
        return slot

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keeper.release(self._grant)
        slot, self._slot = self._slot, None
        if slot is None or not slot.is_lost or self._on_lost is not OnLost.CANCEL or self._task is None:
            return
        # As in asyncio.timeout(): a cancellation from here becomes an error of ours, unless there is another one too.
        if self._task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise SlotLostError(slot.pool, slot.fence) from error

    def _note_lost(self) -> None:
        """Apply ``on_lost`` to a body whose slot is lost."""
        slot = self._slot
        if slot is None:
            return  # it has just been left
        slot.is_lost = True
        if callable(self._on_lost):
            self._on_lost(slot)
        elif self._on_lost is OnLost.CANCEL and self._task is not None:
            self._task.cancel(f"its slot of {slot.pool!r} is lost")
