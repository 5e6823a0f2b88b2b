"""How the claims of one process have ended, by function."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durable.tasks import End

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENDS", "DurableStatistics", "EndCounts"]

_LOST: Final = "lost"
_COUNTED: Final = {
    End.DONE: "done",
    End.RETRY: "retried",
    End.DEAD: "dead",
    End.SNOOZED: "snoozed",
    End.RELEASED: "released",
    End.EXPIRED: "expired",
    End.CANCELLED: "cancelled",
    End.UNKNOWN: "unknown",
}
ENDS: Final = (*_COUNTED.values(), _LOST)
"""How claims end."""

_END_DONE: Final = End.DONE  # enum members are slow to look up


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableStatistics:
    """The counts of one process since it began to run durable tasks.

    Attributes:
        waiting: claimed tasks that have not started.
        running: tasks that have started and not ended.
        done: tasks that returned.
        retried: failed attempts that are followed by another.
        dead: tasks that failed for the last time.
        snoozed: runs that ended with a ``Snooze``.
        released: tasks released before they started or ended, such as those that were paused.
        expired: tasks deleted because they did not start in time, including those that no process had claimed.
        cancelled: tasks deleted because they were cancelled while claimed here.
        unknown: tasks set aside because their function is not registered here.
        lost: claims that were no longer in force when their task ended: the task runs, or has run, again.
        by_function: of claimed tasks, the counts from ``done`` on that are not 0, by the registered name of the function.
    """

    waiting: int
    running: int
    done: int
    retried: int
    dead: int
    snoozed: int
    released: int
    expired: int
    cancelled: int
    unknown: int
    lost: int
    by_function: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class EndCounts(Counter[tuple[str, str]]):
    """The numbers of claims that have ended, by the name of the function and by how they ended."""

    def __init__(self) -> None:
        super().__init__()
        self.unclaimed = 0  # tasks that have expired before a claim: the store does not tell their functions

    def note(self, name: str, end: End, *, is_in_force: bool) -> None:
        """Count the end of a claim, which may have been lost before."""
        if not is_in_force:
            self[name, _LOST] += 1
        else:
            self[name, "done" if end is _END_DONE else _COUNTED[end]] += 1

    def statistics(self, *, waiting: int, running: int) -> DurableStatistics:
        """Return them with the numbers of what has not ended."""
        totals = dict.fromkeys(ENDS, 0)
        by_function: dict[str, dict[str, int]] = {}
        for (name, how), count in sorted(self.items()):
            totals[how] += count
            by_function.setdefault(name, {})[how] = count
        totals["expired"] += self.unclaimed
        return DurableStatistics(waiting=waiting, running=running, by_function=by_function, **totals)
