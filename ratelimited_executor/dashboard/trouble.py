"""What a page begins with: the latest failures, and the tasks that have run for longest."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor._runtime.insight.owners import RunningTask, running_tasks
from ratelimited_executor.dashboard.texts import NOTHING, age_text, ago_text, count_text, name_text, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratelimited_executor.dashboard.failures import FailureEntry
    from ratelimited_executor.dashboard.recording import RecordedHistory

__all__ = ["FailureRow", "RunningRow", "failure_rows", "longest_running", "running_rows"]

_LONG_SECONDS: Final = 5.0  # what has not run for so long, the list of executors does not show


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """A failure on a page; ``times`` is empty if it has come once."""

    number: int
    executor: str
    name: str
    key: str
    kind: str
    message: str
    cause: str
    frames: Sequence[str]
    ago: str
    when: str
    times: str
    is_varied: bool
    is_retried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRow:
    """A task that runs: for how long, and where it waits; ``others`` run beside it in its executor."""

    executor: str
    name: str
    key: str
    age: str
    place: str
    others: int


def failure_rows(failures: Sequence[FailureEntry], now: float, count: int) -> list[FailureRow]:
    """Return the first failures as rows.

    Args:
        failures: the latest first.
        now: epoch seconds.
        count: how many at most.
    """
    return [
        FailureRow(
            number=each.number,
            executor=each.executor,
            name=each.name,
            key=each.key or NOTHING,
            kind=each.kind,
            message=each.message,
            cause=each.cause,
            frames=each.frames,
            ago=ago_text(now - each.at),
            when=time_text(each.at),
            times="" if each.count == 1 else f"{count_text(each.count)} times",
            is_varied=each.is_varied,
            is_retried=each.is_retried,
        )
        for each in failures[:count]
    ]


def running_rows(recorded: RecordedHistory, count: int) -> list[RunningRow]:
    """Return the tasks of an executor that have run for longest, coroutines before held permits."""
    found = recorded.running()
    if found is None:
        return []
    accounts, now = found
    rows, others = [], accounts.running_count() - 1
    for task in running_tasks(accounts, count):
        least, most = _age_of(recorded, task, now)
        rows.append(
            RunningRow(
                executor=recorded.executor.name,
                name=name_text(task.name),
                key=NOTHING if task.key is None else name_text(task.key),
                age=age_text(least, most),
                place=task.place or NOTHING,
                others=others,
            )
        )
    return rows


def longest_running(recorded: Iterable[RecordedHistory], count: int) -> list[RunningRow]:
    """Return the task that has run for longest of each executor with one that has run for a while, the oldest first."""
    ages = []
    for each in recorded:
        found = each.running()
        number = None if found is None else next(iter(found[0].running), None)
        if found is not None and number is not None:
            least, _ = each.marks.age(number, found[1])
            if least >= _LONG_SECONDS:
                ages.append((least, each))
    longest = heapq.nlargest(count, ages, key=lambda pair: pair[0])
    return [row for _, each in longest for row in running_rows(each, 1)]


def _age_of(recorded: RecordedHistory, task: RunningTask, now: float) -> tuple[float, float | None]:
    if task.started is not None:
        age = float(f"{max(0.0, now - task.started):.3g}")
        return age, age
    return (0.0, None) if task.number is None else recorded.marks.age(task.number, now)
