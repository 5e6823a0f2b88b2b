"""Deliberate flaws of the pure kernel and of the code on top of it; a comparison with the intact kernel must find each.

They are patches of a process, and each names the class and the method that it breaks, so that renaming one of these
raises an ``AttributeError``. They are small, and typical of what goes wrong when a function is written a second time:
an index that is off by one, another order of equal elements, state that is not cleaned up, a path for many tasks that
does not do what the path for few tasks does.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratelimited_executor._kernel.buckets import RECORD, Bucket
from ratelimited_executor._kernel.due_order import DueOrder
from ratelimited_executor._kernel.pacing import SpreadPlan
from ratelimited_executor._kernel.stretch import Stretch
from ratelimited_executor._runtime.task import starting
from ratelimited_executor._runtime.task.accounts import Accounts
from ratelimited_executor._runtime.task.callbacks import DoneCallbacks
from ratelimited_executor._runtime.task.contexts import SharedContexts
from ratelimited_executor._runtime.task.handles import CallHandle, TaskHandle


def _wrap(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Return a function that replaces a method by one that ``make`` makes from it."""

    def patch() -> None:
        setattr(owner, name, make(getattr(owner, name)))

    return patch


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Return a function that replaces an attribute, which must exist."""

    def patch() -> None:
        getattr(owner, name)
        setattr(owner, name, value)

    return patch


def _reversed_equals(take: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: DueOrder, *args: Any) -> Any:
        groups = itertools.groupby(take(self, *args), self._dues.__getitem__)
        return [position for _, group in groups for position in reversed(list(group))]

    return broken


def _runs_in_order_of_places(sort_runs: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: DueOrder, slot: Any) -> Any:
        yield from sort_runs(self, slot)
        self._merge = iter(sorted(slot))

    return broken


def _cancelling_the_next(cancel: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: Bucket, place: int) -> bool:
        position = self._position(place)
        is_other = position is not None and position + 1 < len(self.calls) and self.args[position + 1] is not RECORD
        return cancel(self, place + 1) if is_other and self._origin is None and not self.opened else cancel(self, place)

    return broken


def _one_off_when_moved(find: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: Bucket, place: int) -> Any:
        found = find(self, place)
        return max(0, found - 1) if found is not None and self._origin is not None else found

    return broken


def _losing_none(take_call: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: Bucket, position: int) -> Any:
        call, args, context = take_call(self, position)
        return call, () if args == (None,) else args, context

    return broken


def _early(take: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, now, *args: take(self, now + 2e-4, *args)


def _with_one_more(started: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *, left, **rest: started(self, left=left + 1, **rest)


def _added(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda method: lambda self, *args, **rest: method(self, *args, **rest) + count


def _added_to_many(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(catch_up: Callable[..., Any]) -> Callable[..., Any]:
        def broken(self: Stretch, now: float) -> int:
            started: int = catch_up(self, now)
            return started + count if started > 1 else started

        return broken

    return make


def _no_cause(raised: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: Accounts, owner: Any, error: BaseException, origin: Any) -> None:
        error.__cause__ = None
        raised(self, owner, error, origin)

    return broken


def _reversed_callbacks(add: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: DoneCallbacks, *args: Any) -> None:
        add(self, *args)
        self._pending.rotate()

    return broken


def _equal(share: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: SharedContexts, context: Any) -> Any:
        last = None if self._last is None else self._last()
        return last if last is not None and len(last) == len(context) else share(self, context)

    return broken


def _uncopied(start: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: TaskHandle[Any], now: float) -> Any:
        args, context = start(self, now)
        return args, None if context is not None and len(context) > 2 else context

    return broken


def _moved_too_far(set_due: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, place, due: set_due(self, place, due + 1e-6)


def _late_by_a_bit(handle: TaskHandle[Any]) -> float | None:
    return None if handle._started is None else handle._started - handle._due + 1e-9


def _die(handle: CallHandle) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(handle: CallHandle) -> None:
    signal.pause()


@dataclass(frozen=True)
class Flaw:
    """A deliberate flaw.

    Attributes:
        patch: applies it to this process.
        corner: the program of very many tasks that shows it; None if the first random programs do.
    """

    patch: Callable[[], None]
    corner: str | None = None


BROKEN: dict[str, Flaw] = {
    "equal due times come in reverse": Flaw(_wrap(DueOrder, "take", _reversed_equals)),
    "a task starts a little early": Flaw(_wrap(DueOrder, "take", _early), "a slot that is merged"),
    "a full slot is not merged": Flaw(_wrap(DueOrder, "_sort_runs", _runs_in_order_of_places), "a slot that is merged"),
    "the next call is cancelled": Flaw(_wrap(Bucket, "cancel", _cancelling_the_next), "all cancelled"),
    "places are off by one after a compaction": Flaw(
        _wrap(Bucket, "_position", _one_off_when_moved), "compacted twice"
    ),
    "a call is moved a bit too far": Flaw(_wrap(Bucket, "set_due", _moved_too_far), "moved within a second"),
    "the plan of an interval has one instant more": Flaw(
        _wrap(SpreadPlan, "started", _with_one_more), "a plan that others join"
    ),
    "a single None is no argument": Flaw(_wrap(Bucket, "take_call", _losing_none)),
    "a stretch counts one too many": Flaw(_wrap(Stretch, "catch_up", _added_to_many(1)), "used up"),
    "contexts of as many variables are the same": Flaw(_wrap(SharedContexts, "share", _equal), "contexts that change"),
    "what a call has set is not cleaned": Flaw(_set(SharedContexts, "clean", lambda self: None)),
    "a context of many variables is lost": Flaw(_wrap(TaskHandle, "_start", _uncopied)),
    "a failure loses its cause": Flaw(_wrap(Accounts, "raised", _no_cause)),
    "done callbacks come in another order": Flaw(_wrap(DoneCallbacks, "add", _reversed_callbacks)),
    "a handle is late by a bit": Flaw(_set(TaskHandle, "lateness", property(_late_by_a_bit))),
    "a cancelled call does not say so": Flaw(_set(CallHandle, "cancelled", lambda self: False)),
    "one is waiting that is not": Flaw(_wrap(Accounts, "waiting_count", _added(1))),
    "nobody is told of a long hold": Flaw(_set(starting, "LONG_HOLD_SECONDS", 100.0)),
    "a process dies": Flaw(_set(CallHandle, "cancel", _die)),
    "a process hangs": Flaw(_set(CallHandle, "cancel", _hang)),
}
