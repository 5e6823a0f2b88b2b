"""Several executors on one timeline, which start and end together."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from ratelimited_executor._core.fixed import Fixed
from ratelimited_executor._core.permits.phases import phase_of, phases
from ratelimited_executor._runtime.arguments import count_of, delay_of, seconds_of
from ratelimited_executor._runtime.life.closing import close_all
from ratelimited_executor._runtime.limits.slots import Slots
from ratelimited_executor._runtime.time.clock import clock_for
from ratelimited_executor._runtime.time.hooks import hooks_of
from ratelimited_executor._runtime.time.runner import Runner
from ratelimited_executor.abc import Fleet
from ratelimited_executor.exceptions import ExecutorNotStartedError, ExecutorStoppedError
from ratelimited_executor.peers.static import StaticPeers

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.life.closing import Closing
    from ratelimited_executor.abc import Clock, Peers

__all__ = ["ManagerBase"]

INTERVAL_SECONDS_MIN: Final = 0.01
INTERVAL_SECONDS_MAX: Final = 3600.0
PRECISION_SECONDS_MAX: Final = 1.0


class Managed(Protocol):
    """The interface through which a manager uses its executors."""

    _closing: Closing

    @property
    def name(self) -> str:
        """The name of the executor."""
        ...

    def _open(self, runner: Runner) -> None:
        """Start working; called once, on the loop."""
        ...


E = TypeVar("E", bound=Managed)


class ManagerBase(Fixed, Generic[E]):
    """An :class:`ExecutorManager` without the creation of executors, which depend on it."""

    # Slots, so that setting an attribute that does not exist, such as a misspelt one, is an error.
    __slots__ = (
        "__weakref__",
        "_clock",
        "_closing",
        "_executors",
        "_has_left",
        "_interval",
        "_is_closed",
        "_on_executor",
        "_peers",
        "_phases",
        "_precision",
        "_runner",
        "_slot_keeper",
        "_slots",
    )

    def __init__(
        self,
        *,
        interval: DurationLike = 1.0,
        clock: Clock | None = None,
        peers: Peers | Fleet | None = None,
        precision: DurationLike | None = None,
    ) -> None:
        self._interval = seconds_of("interval", interval)
        if not INTERVAL_SECONDS_MIN <= self._interval <= INTERVAL_SECONDS_MAX:
            raise ValueError(
                f"interval must be from {INTERVAL_SECONDS_MIN} to {INTERVAL_SECONDS_MAX:.0f} seconds, got {interval!r}"
            )
        if clock is not None and not (
            callable(getattr(clock, "monotonic", None)) and callable(getattr(clock, "wall", None))
        ):
            raise TypeError(f"clock must have methods monotonic() and wall(), got {clock!r}")
        is_fleet = isinstance(peers, Fleet) and not isinstance(peers, type)
        if peers is not None and not is_fleet and not isinstance(getattr(peers, "rank", None), int):
            raise TypeError(
                "peers must be RedisPeers(...), FilePeers(...) or PostgresPeers(...), or have a count and a rank, such as "
                f"StaticPeers(2, 0), got {peers!r}"
            )
        self._precision = None if precision is None else delay_of("precision", precision)
        if self._precision is not None and self._precision > PRECISION_SECONDS_MAX:
            raise ValueError(f"precision must be at most {PRECISION_SECONDS_MAX:g} seconds, got {precision!r}")
        self._clock = clock
        self._peers: Peers | Fleet = peers if peers is not None else StaticPeers(1, 0)
        self._executors: dict[str, E] = {}
        self._phases = phases()  # of executors that share their rates with no other process
        self._on_executor: list[Callable[[E], None]] = []  # called for each new executor
        self._slots: dict[str, Slots] = {}
        self._slot_keeper: Any = None  # created with the first pool
        self._runner: Runner | None = None
        self._is_closed = False
        self._has_left = False  # True once it has left the group of its peers
        self._closing: asyncio.Future[None] | None = None  # the closing of a manager that was dropped

    @property
    def interval(self) -> float:
        """Seconds in one interval."""
        return self._interval

    @property
    def precision(self) -> float | None:
        """The shortest time between two wake-ups in seconds; None for the default."""
        return self._precision

    @property
    def peers(self) -> Peers | Fleet:
        """The processes that share the rates."""
        return self._peers

    def slots(self, name: str, *, limit: int | None = None) -> Slots:
        """Return the pool of slots with a name; create it if it does not exist.

        Args:
            name: the name of the pool.
            limit: how many slots may be held at the same time; sets the limit of an existing pool, and None keeps it. With peers
                it is the group's limit: a starting process puts its limit in force unless the previous one passed the same.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if the limit is negative, or missing for a new pool without a group that may have it; or if the peers
                of the manager share no slots.
            ExecutorStoppedError: if the manager is closed.
        """
        if self._is_closed:
            raise ExecutorStoppedError(repr(self))
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        found = self._slots.get(name)
        if found is None:
            keeper = self._slot_keeper_for(name, limit)
            found = self._slots[name] = Slots(name, keeper)
        elif limit is not None:
            found.limit = limit
        return found

    @property
    def _pools(self) -> list[Slots]:
        """The pools that this manager has created, by name."""
        return [self._slots[name] for name in sorted(self._slots)]

    def _slot_keeper_for(self, name: str, limit: int | None) -> Any:
        """Return the keeper of the slots, and register another pool with it."""
        peers = self._peers
        count = None if limit is None else count_of("limit", limit)
        if self._slot_keeper is None and self._group_slots is None and (isinstance(peers, Fleet) or peers.count > 1):
            raise ValueError(
                f"peers={peers!r} share rates but not slots: use RedisPeers, FilePeers or PostgresPeers, or a manager without peers if "
                "each process should have slots of its own"
            )
        keeper = self._keeper()
        if self._group_slots is None:
            if count is None:
                raise ValueError(f"limit must be given for a new pool: slots({name!r}, limit=8)")
            keeper.set_limit(name, count)
        else:
            keeper.declare(name, count)
        return keeper

    @property
    def _group_slots(self) -> Callable[[], Any] | None:
        """A function that returns the keeper of the group's slots; None if the peers share none."""
        return self._keeper if getattr(self._peers, "_has_slots", False) else None

    def _keeper(self) -> Any:
        """Return the keeper of the slots; create and open it if needed."""
        keeper = self._slot_keeper
        if keeper is None:
            peers: Any = self._peers
            keeper = self._slot_keeper = _local_slots() if self._group_slots is None else peers.slots()
            if self._runner is not None:
                keeper.open(self._runner.loop, self._runner.clock)
        return keeper

    async def start(self) -> None:
        """Start on the running event loop, with every executor made so far; ``async with`` does it.

        Raises:
            ExecutorStoppedError: if it was started before.
        """
        if self._is_closed or self._runner is not None:
            raise ExecutorStoppedError(repr(self))
        loop = asyncio.get_running_loop()
        hooks = hooks_of(loop)
        clock = self._clock or hooks.clock or clock_for(loop)
        if isinstance(self._peers, Fleet):
            self._peers.start(loop, clock)
        self._runner = Runner(loop, clock, self._interval, self._precision, hooks=hooks)
        if self._slot_keeper is not None:
            self._slot_keeper.open(loop, clock)
        for executor in self._executors.values():
            executor._open(self._runner)

    async def aclose(self) -> None:
        """Close every executor as leaving its ``async with`` would: accepted tasks run, up to its ``drain_timeout``."""
        self._is_closed = True
        await self._close_all()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
            return
        self._is_closed = True
        for executor in list(self._executors.values()):  # one that has not started is forgotten at once
            executor._closing.abort()
        await self._close_all()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "new" if self._runner is None else "open"
        return f"<ExecutorManager {state} interval={self._interval:g} executors={len(self._executors)}>"

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        runner = getattr(self, "_runner", None)  # __init__() may have raised
        if runner is None or not runner.is_lent or self._is_closed or runner.loop.is_closed():
            return  # what a closed loop has left is freed with its descriptor
        of = ", ".join(repr(name) for name in self._executors) or "no executors"
        _warn(f"unclosed ExecutorManager of {of}: use async with, or await aclose()", ResourceWarning, source=self)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            runner.loop.call_soon_threadsafe(self._close_dropped)  # the collector may run in any thread

    def _close_dropped(self) -> None:
        """Close as leaving does: the closing keeps alive the objects without another reference."""
        self._closing = asyncio.ensure_future(self.aclose())

    # For its executors.

    def _phase_of(self, name: str) -> float:
        """Return by which part of the gap between two permits a new executor starts later than one of phase 0.

        Executors of equal rates would otherwise start in step.
        """
        if isinstance(self._peers, Fleet):
            return 0.0  # its permits have a phase of their own
        if self._peers.count > 1:
            return phase_of(name)
        return next(self._phases)

    def _register(self, executor: E) -> Runner | None:
        """Register an executor, and return the runner if the manager has started."""
        if self._is_closed:
            raise ExecutorStoppedError(repr(self))
        if executor.name in self._executors:
            raise ValueError(f"name {executor.name!r} is in use: every executor of a manager needs a name of its own")
        self._executors[executor.name] = executor
        for told in self._on_executor:
            told(executor)
        return self._runner

    def _forget(self, executor: E) -> None:
        if self._executors.get(executor.name) is executor:
            del self._executors[executor.name]

    def _close_alone(self) -> None:
        """Record that the only executor of a manager without other references is closed."""
        self._is_closed = True
        if self._runner is not None:
            self._runner.close()

    async def _close_all(self) -> None:
        try:
            await close_all([executor._closing for executor in self._executors.values()])
        finally:
            try:
                if self._slot_keeper is not None:
                    self._slot_keeper.close()
                    await self._slot_keeper.aclose()
            finally:  # also if this is cancelled
                if self._runner is not None and not self._executors:
                    self._runner.close()
                    await self._leave_group()

    async def _leave_group(self) -> None:
        """Leave the group, once, also within a scope of anyio that is cancelled."""
        if isinstance(self._peers, Fleet) and not self._has_left:
            import anyio  # noqa: PLC0415  # most programs close without it

            self._has_left = True
            with anyio.CancelScope(shield=True):  # the goodbye takes a bounded time
                await self._peers.aclose()

    def _started_runner(self) -> Runner:
        if self._runner is None:
            raise ExecutorNotStartedError(repr(self))
        return self._runner


def _local_slots() -> Any:
    from ratelimited_executor._runtime.limits.slot_keeper import LocalSlots  # noqa: PLC0415  # most programs have no slots

    return LocalSlots()
