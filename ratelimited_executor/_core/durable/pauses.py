"""Pauses: durable tasks that no process claims for a while.

A pause names a function, a queue, a lane or a key, or several of these: it covers the tasks that have all of them. Each
claim sets aside the first tasks that are READY and covered, as PAUSED, so that no later claim reads them again; once the
pause has ended, claims put them back. Nothing is set aside for a pause of a whole queue, from which nothing is claimed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.durable.tasks import key_from

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ENDED", "KEPT_US", "MOVED_MAX", "PAUSES_MAX", "Pause", "PauseRow", "Pauses", "pause_of", "pause_rows"]

PAUSES_MAX: Final = 100
"""Pauses in force at once: a claim compares each task that it looks at with all of them."""
MOVED_MAX: Final = 1000
"""Tasks that one claim sets aside, or puts back after each pause, at most; the next claim continues."""
KEPT_US: Final = 60 * 1_000_000
"""How long a pause is known after its end: a claim that began before the end may still set tasks aside."""
ENDED: Final = 0
"""``until_us`` of a pause that was ended by :meth:`TaskStore.resume`, whatever the clock."""


class Pause(NamedTuple):
    """What a pause covers; None stands for any.

    Attributes:
        function: the registered name of the tasks' function, in all versions.
        queue: their queue.
        lane: their lane.
        key: their key, encoded.
    """

    function: str | None = None
    queue: str | None = None
    lane: str | None = None
    key: str | None = None

    @property
    def text(self) -> str:
        """The encoded form, by which stores identify the pause."""
        return json.dumps(self)

    def covers(self, name: str, queue: str, lane: str | None, key: str | None) -> bool:
        """True if a task is paused."""
        return (
            self.function in (None, name)
            and self.queue in (None, queue)
            and self.lane in (None, lane)
            and self.key in (None, key)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRow:
    """A pause in force, for display.

    Attributes:
        function: the registered name of the function whose tasks it covers; None for any.
        queue: their queue; None for any.
        lane: their lane; None for any.
        key: their key in the executor; None for any.
        since_us: when it began.
        until_us: when it ends by itself; None if it does not.
    """

    function: str | None
    queue: str | None
    lane: str | None
    key: str | int | None
    since_us: int
    until_us: int | None


class Pauses:
    """The pauses of a store at one time.

    Args:
        rows: of each its text, since when it is in force, and its end; None for an open end.
        now_us: the time.

    Attributes:
        ended: the texts of pauses that have ended, each with True if it need not be known any longer.
    """

    def __init__(self, rows: Iterable[tuple[str, int, int | None]], now_us: int) -> None:
        self._covering: list[tuple[str, Pause]] = []
        self.ended: list[tuple[str, bool]] = []
        for text, since_us, until_us in sorted(rows):
            if is_in_force(until_us, now_us):
                self._covering.append((text, Pause(*json.loads(text))))
            else:
                self.ended.append((text, max(since_us, until_us or 0) + KEPT_US <= now_us))

    def stops(self, queue: str) -> bool:
        """True if nothing of a queue is claimed."""
        return any(pause == Pause(queue=queue) for _, pause in self._covering)

    def holding(self, name: str, queue: str, lane: str | None, key: str | None) -> str:
        """Return the text of the first pause that covers a task; an empty one if none does."""
        for text, pause in self._covering:
            if pause.covers(name, queue, lane, key):
                return text
        return ""


def is_in_force(until_us: int | None, now_us: int) -> bool:
    """True if a pause has not ended."""
    return until_us is None or until_us > now_us


def pause_rows(rows: Iterable[tuple[str, int, int | None]], now_us: int) -> list[PauseRow]:
    """Return the pauses in force; the arguments are those of :class:`Pauses`."""
    found = []
    for text, since_us, until_us in sorted(rows):
        if is_in_force(until_us, now_us):
            function, queue, lane, key = json.loads(text)
            found.append(
                PauseRow(
                    function=function, queue=queue, lane=lane, key=key_from(key), since_us=since_us, until_us=until_us
                )
            )
    return found


def pause_of(row: PauseRow) -> Pause:
    """Return what a pause covers."""
    return Pause(row.function, row.queue, row.lane, None if row.key is None else json.dumps(row.key))
