"""What the owner of a task tells about it: its name, its key; and the tasks that run, which are known by their owners."""

from __future__ import annotations

from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.keys.keys import given_key
from ratelimited_executor._core.queue.records import TaskRecord
from ratelimited_executor._runtime.insight.observing import started_at
from ratelimited_executor._runtime.task.batch_items import BatchItem
from ratelimited_executor._runtime.task.coroutines import watched

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import CodeType

    from ratelimited_executor._runtime.task.accounts import Accounts

__all__ = ["RunningTask", "is_own", "key_of_owner", "name_of_owner", "place_text", "running_tasks"]

_PACKAGE: Final = str(PurePath(__file__).parents[2])
_FRAME_COUNT_MAX: Final = 50  # of coroutines that await each other


class RunningTask(NamedTuple):
    """A task that runs.

    Attributes:
        number: rises from start to start of an executor; None for a permit that is held.
        name: the name of the task, or of its coroutine.
        key: its key, as the user gave it; None if it has none.
        started: the loop time of its start; None if it was not recorded.
        place: the line at which it waits; None if that is not known.
    """

    number: int | None
    name: str
    key: Hashable
    started: float | None
    place: str | None


def name_of_owner(owner: Any) -> tuple[str | None, str | None]:
    """Return the name of a task, and that of its batch; None for what it does not have."""
    if type(owner) is BatchItem:
        name: str = owner.batch.name
        return f"{name}[{owner.index}]", name
    return getattr(owner, "name", None), None


def key_of_owner(owner: Any) -> Hashable:
    """Return the key of a task, as the user gave it; None if it has none."""
    if isinstance(owner, TaskRecord):
        return owner.key
    return given_key(owner.source.key) if type(owner) is BatchItem else None


def running_tasks(accounts: Accounts, limit: int) -> list[RunningTask]:
    """Return at most ``limit`` of the running tasks: coroutines in order of their starts, then held permits: O(limit)."""
    found = []
    for number, task in islice(accounts.running.items(), limit):
        owner, coroutine = watched(task)
        name, _ = name_of_owner(owner)
        called = name or getattr(coroutine, "__qualname__", None) or "coroutine"
        found.append(RunningTask(number, called, key_of_owner(owner), started_at(owner), _place_of(coroutine)))
    held = islice(accounts.holding, limit - len(found))
    return [*found, *(RunningTask(None, "a held permit", key_of_owner(each), started_at(each), None) for each in held)]


def is_own(code: CodeType) -> bool:
    """True for code of this library."""
    return code.co_filename.startswith(_PACKAGE)


def place_text(code: CodeType, line: int | None) -> str:
    """Write a line of code: the function, and the name of its file without the folder."""
    return f"{code.co_qualname} ({PurePath(code.co_filename).name}:{line})"


def _place_of(coroutine: Any) -> str | None:
    """Return the line at which a coroutine waits: the first one that is not of this library."""
    for _ in range(_FRAME_COUNT_MAX):
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            return None
        if not is_own(frame.f_code):
            return place_text(frame.f_code, frame.f_lineno)
        coroutine = coroutine.cr_await
    return None
