"""The cycle face: a whole population, once in each cycle."""

from __future__ import annotations

import contextvars
from fractions import Fraction
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._runtime.arguments import INHERITED, callable_of, count_of, name_or_none, seconds_of
from ratelimited_executor._runtime.faces.bulk import BulkFace
from ratelimited_executor._runtime.faces.tasks import make_options
from ratelimited_executor._runtime.repeat.retrying import check_retry
from ratelimited_executor.abc import Progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.repeat.cycle import CycleHandle
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor.typing import CostLike

__all__ = ["CycleFace"]

K = TypeVar("K")
_AT_ONCE: Final = Fraction(0)


class CycleFace(BulkFace):
    """``every``."""

    __slots__ = ()

    def every(
        self,
        *,
        cycle: DurationLike,
        keys: Callable[[int], Iterable[K] | AsyncIterable[K] | Awaitable[Iterable[K] | AsyncIterable[K]]],
        fn: Callable[[K], object],
        phase: Fraction = _AT_ONCE,
        buckets: int = 65_536,
        slot_of: Callable[[K], int] | None = None,
        progress: Progress | str | PathLike[str] | None = None,
        catch_up: bool = True,
        look_ahead: int = 100_000,
        lease: DurationLike = 60.0,
        priority: float = 0,
        key: Hashable | Callable[[K], Hashable] = None,
        cost: CostLike | Callable[[K], CostLike] = 1,
        retry: Any = INHERITED,
        name: str | None = None,
    ) -> CycleHandle:
        """Run ``fn(key)`` for every key of a population once in each cycle, evenly and always in the same places.

        The cycle is divided into slots, see :mod:`ratelimited_executor.spread`. When a slot's turn comes, its keys are loaded,
        and each is due at its own instant in the slot; missed turns are made up for. The cycle continues until it is cancelled
        or the executor closes. With ``progress=`` the next process continues with the keys that have not run.

        Args:
            cycle: a whole and even number of seconds, a timedelta or a str such as ``"8h"``.
            keys: a function of the slot that returns its keys: an iterable, async or not, or an awaitable of one. It is called
                up to 30 s before the slot begins, and again after a pause if it raises.
            fn: a plain function or one that returns a coroutine.
            phase: the part of the cycle by which it is shifted later; see :func:`~ratelimited_executor.spread.reciprocal`.
            buckets: 256 or 65,536, as for :func:`~ratelimited_executor.spread.cycle_slots`.
            slot_of: a function of a key that returns its slot, if it is not the slot of its hash; see
                :func:`~ratelimited_executor.spread.balance`.
            progress: where finished keys are recorded: the path of a file for SQLite, or a store, which you close. Nodes with the
                same store and ``name`` share the work: each turn belongs to one node. By default the progress is kept in memory,
                for this cycle alone: a restart begins with the current slot, runs its keys again and skips missed turns, and
                every process runs all keys.
            catch_up: True if turns that were missed before now, at most a cycle of them, are made up for.
            look_ahead: the maximum number of keys that are scheduled and not finished, for very large slots.
            lease: seconds for which a node keeps its claim on a turn without renewing it, > 0; a live node renews it.
            priority: as for ``schedule_many``, and so are ``key``, ``cost`` and ``retry``. Keys never expire, whatever the
                executor's ``expires``: each has to run once in each cycle.
            name: the name of the cycle, in logs and in the store; the function's name if None.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if it is out of range.
        """
        from ratelimited_executor._runtime.repeat.cycle import CycleHandle, CyclePlan  # noqa: PLC0415  # most programs have no cycles
        from ratelimited_executor.spread.slots import CycleSlots  # noqa: PLC0415  # as above

        self._admit(0)
        callable_of("keys", keys)
        callable_of("fn", fn)
        slots = CycleSlots(cycle, buckets, phase)
        own = name_or_none("name", name) or name_of(fn)
        store = _store_of(progress, has_files=self._started().runner.hooks.has_threads)
        context = contextvars.copy_context()

        def place(found: list[Any], delays: list[float]) -> BatchHandle[Any]:
            return self.schedule_many(
                fn,
                found,
                delays=delays,
                priority=priority,
                expires=None,
                name=own,
                context=context,
                key=key,
                cost=cost,
                retry=retry,
            )

        make_options(priority=priority, name=own)  # bad arguments raise here, not at the first slot
        if retry is not INHERITED:
            check_retry("retry", retry)
        handle = CycleHandle(
            self._started(),
            CyclePlan(
                name=own,
                slots=slots,
                load=keys,
                place=place,
                slot_of=None if slot_of is None else callable_of("slot_of", slot_of),
                progress=store,
                owns_progress=store is not progress,
                is_catching_up=bool(catch_up),
                look_ahead=count_of("look_ahead", look_ahead, least=1),
                lease=seconds_of("lease", lease),
            ),
            self._forget_repeating,
        )
        self._repeating[handle] = None
        return handle


def _store_of(progress: Progress | str | PathLike[str] | None, *, has_files: bool) -> Progress:
    """Return the store for ``progress=``: the object itself, or a new store.

    A simulation has no threads, and must not find the progress of an earlier one, so a path means memory there.

    Args:
        progress: as passed to ``every``.
        has_files: True if a path means a file.

    Raises:
        TypeError: if ``every`` does not accept it.
        ValueError: if the path is empty.
    """
    from ratelimited_executor.stores.progress.memory import MemoryProgress  # noqa: PLC0415  # most programs have no cycles

    if progress is None:
        return MemoryProgress()
    if isinstance(progress, (str, PathLike)):
        from ratelimited_executor.stores.progress.sqlite import SQLiteProgress  # noqa: PLC0415  # most programs have no cycles

        if not fspath(progress):
            raise ValueError("progress must be the path of a file, got an empty str")
        store = SQLiteProgress(progress)
        return store if has_files else MemoryProgress()
    if isinstance(progress, type) or not isinstance(progress, Progress):
        raise TypeError(f"progress must be the path of a file, or an object such as MemoryProgress(), got {progress!r}")
    return progress
