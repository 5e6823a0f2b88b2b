"""The latest failures of tasks, as texts: what raised, where, how often; no exception is kept, nor what it refers to.

Failures of one class that were raised in one place are one entry with a count and the latest message, so that a storm of one
error, whose messages may all have numbers of their own, does not push out the others.
An executor without a page is not listened to; one with a page tells of failures alone, and not of other ends.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.urls import masked_text
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.insight.owners import is_own, key_of_owner, name_of_owner, place_text
from ratelimited_executor.dashboard.texts import name_text

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import CodeType, TracebackType

__all__ = ["FAILURE_COUNT", "LATELY_SECONDS", "FailureEntry", "FailureRing", "Failures", "failure_texts"]

FAILURE_COUNT: Final = 50
"""Entries of an executor, and of all executors of a page together."""
LATELY_SECONDS: Final = 900.0
"""For so long a failure counts as recent: as long as the line of an executor in the list."""
_WRITTEN_PER_SECOND: Final = 100  # of one executor: some 5 us each; more are counted, and not written down
_MESSAGE_LENGTH_MAX: Final = 500  # characters
_READ_LENGTH_MAX: Final = 4 * _MESSAGE_LENGTH_MAX  # of a message, in which addresses are masked before it is cut
_FRAME_COUNT_MAX: Final = 12  # the innermost of a traceback
_WALKED_MAX: Final = 1000  # frames: some 20 us
_UNWRITTEN: Final = "its message cannot be written"
_CUT_URL: Final = re.compile(r"(://)[^\s'\"<>]*\Z")
_NUMBERS: Final = count(1)


@dataclass(slots=True, kw_only=True)
class FailureEntry:
    """Failures of one executor that are of one class and were raised in one place, called from the same lines.

    Attributes:
        number: names this entry, and no other one of the process.
        executor: the name of the executor.
        name: the name of the task that has failed last.
        key: its key, as text; None if it has none.
        kind: the class of the exception, with its module unless that is a built-in one.
        message: what the last exception says, in at most 500 characters; user names, passwords and secrets in URLs are masked.
        cause: the class and the message of the exception that the last one was raised from; empty if there is none.
        frames: where it was raised, the innermost line last.
        at: epoch seconds of the last one.
        count: how many there were.
        is_varied: True if their messages differ.
        is_retried: True if another attempt follows the last one.
    """

    number: int
    executor: str
    name: str
    key: str | None
    kind: str
    message: str
    cause: str
    frames: list[str]
    at: float
    count: int = 0
    is_varied: bool = False
    is_retried: bool = False


class FailureRing:
    """The latest failures: the one that has not come for longest makes room for another one."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[Hashable, ...], FailureEntry] = {}  # in order of their last times

    def __len__(self) -> int:
        return len(self._kept)

    def again(self, alike: tuple[Hashable, ...]) -> FailureEntry | None:
        """Return the entry of failures that are alike, from now on the latest; None if there is none."""
        found = self._kept.pop(alike, None)
        if found is not None:
            self._kept[alike] = found
        return found

    def add(self, alike: tuple[Hashable, ...], failure: FailureEntry) -> None:
        """Add an entry."""
        self._kept.pop(alike, None)
        self._kept[alike] = failure
        if len(self._kept) > FAILURE_COUNT:
            del self._kept[next(iter(self._kept))]

    def latest(self) -> list[FailureEntry]:
        """Return the entries, the latest first."""
        return list(reversed(self._kept.values()))


class Failures:
    """Keeps the latest failures of one executor.

    Args:
        executor: its name.
        all_failures: the failures of all executors of a page.

    Attributes:
        lately: how many tasks have failed within ``LATELY_SECONDS`` before the last count.
        ring: the latest failures.
    """

    __slots__ = ("_all", "_counts", "_epoch", "_executor", "_second", "_written", "lately", "ring")

    def __init__(self, executor: str, all_failures: FailureRing) -> None:
        self._executor = executor
        self._all = all_failures
        self._epoch: Callable[[], float] | None = None
        self._second = 0
        self._written = 0  # within that second
        self._counts: deque[tuple[float, int]] = deque()  # of the last ``LATELY_SECONDS``, with their times
        self.lately = 0
        self.ring = FailureRing()

    def count(self, now: float, count: int) -> None:
        """Count tasks that have failed since the last count, which may be none.

        Args:
            now: epoch seconds.
            count: how many.
        """
        if count:
            self._counts.append((now, count))
            self.lately += count
        while self._counts and self._counts[0][0] <= now - LATELY_SECONDS:
            self.lately -= self._counts.popleft()[1]

    def open(self, epoch: Callable[[], float]) -> None:
        """Begin, with a function that returns the time of the executor in epoch seconds."""
        self._epoch = epoch

    def note(self, owner: Any, error: BaseException, state: TaskState) -> None:
        """Write down a failure, of which there are not too many within a second."""
        assert self._epoch is not None, "a task can fail only after its executor has started"
        now = self._epoch()
        if int(now) != self._second:
            self._second, self._written = int(now), 0
        if self._written >= _WRITTEN_PER_SECOND:
            return
        self._written += 1
        try:
            kind, message, cause = failure_texts(error)
            traceback = error.__traceback__
        except Exception:  # noqa: BLE001  # attributes of the user's own; an error here would keep the task from ending
            kind, message, cause, traceback = "an exception", _UNWRITTEN, "", None
        frames = _frames_of(traceback)
        places = [(code.co_filename, line) for code, line in frames]  # texts are written once for each entry
        alike = (self._executor, kind, *(places or (message,)))
        failure, other = self.ring.again(alike), self._all.again(alike)
        name, key = name_of_owner(owner)[0], key_of_owner(owner)
        if failure is None:
            failure = other or FailureEntry(
                number=next(_NUMBERS),
                executor=self._executor,
                name="",
                key=None,
                kind=kind,
                message=message,
                cause=cause,
                frames=[place_text(code, line) for code, line in frames],
                at=now,
            )
            self.ring.add(alike, failure)
        if other is not failure:
            self._all.add(alike, failure)
        failure.count += 1
        failure.is_varied |= message != failure.message
        failure.message, failure.cause = message, cause
        failure.name, failure.key = name_text(name or "a call"), None if key is None else name_text(key)
        failure.at, failure.is_retried = now, state is TaskState.WAITING


def failure_texts(error: BaseException) -> tuple[str, str, str]:
    """Return the class of an exception, its message, and the class and message of its cause; texts of bounded length."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    told = "" if cause is None else ": ".join(filter(None, _texts_of(cause)))
    return *_texts_of(error), told


def _texts_of(error: BaseException) -> tuple[str, str]:
    """Return the class of an exception and its message, whatever code of the user they run: a task ends all the same."""
    try:
        return _kind_of(error), _message_of(error)
    except Exception:  # noqa: BLE001  # code of the user
        return type.__repr__(type(error)), _UNWRITTEN


def _kind_of(error: BaseException) -> str:
    kind = type(error)
    return name_text(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


def _message_of(error: BaseException) -> str:
    text = str.__str__(str(error))  # no subclass, which may be of another length or count as HTML
    if len(text) > _READ_LENGTH_MAX:  # a URL that is cut may lack the sign that its beginning is secret
        text = _CUT_URL.sub(r"\1***", text[:_READ_LENGTH_MAX])
    text = masked_text(text)
    return text if len(text) <= _MESSAGE_LENGTH_MAX else f"{text[:_MESSAGE_LENGTH_MAX]}…"


def _frames_of(traceback: TracebackType | None) -> list[tuple[CodeType, int | None]]:
    """Return the innermost frames of a traceback, as code and lines, without this library's, from which the task was called."""
    frames: list[tuple[CodeType, int | None]] = []
    for _ in range(_WALKED_MAX):
        if traceback is None:
            break
        if frames or not is_own(traceback.tb_frame.f_code):
            frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames[-_FRAME_COUNT_MAX:]
