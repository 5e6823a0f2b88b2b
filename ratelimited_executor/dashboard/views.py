"""The content of the pages as values: rows, figures and plots, read from executors."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.insight.insight import explain_briefly
from ratelimited_executor._runtime.insight.listing import waiting_batches, waiting_handles
from ratelimited_executor.dashboard.plots import plot_of, spark_svg
from ratelimited_executor.dashboard.texts import (
    NOTHING,
    STATES,
    StateText,
    count_text,
    name_text,
    number_text,
    per_second_text,
    rate_text,
    seconds_text,
    state_text,
)
from ratelimited_executor.dashboard.trouble import running_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._runtime.insight.insight import Explanation, Statistics
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor.dashboard.history import History, Point
    from ratelimited_executor.dashboard.plots import Plot
    from ratelimited_executor.dashboard.recording import RecordedHistory

    T = TypeVar("T")

__all__ = [
    "COLUMNS",
    "PAGE_SIZE",
    "SORTS",
    "BatchRow",
    "ExecutorRow",
    "Figure",
    "Overview",
    "ShownTask",
    "batch_of",
    "batches_of",
    "epoch_of",
    "executor_row",
    "explanation_of",
    "figures_of",
    "overview_of",
    "page_of",
    "plots_of",
    "state_of",
    "task_of",
    "tasks_of",
]

PAGE_SIZE: Final = 50
COLUMNS: Final = ("Rate", "Starts", "Due", "Backlog", "Waiting", "Running", "Lateness", "Failed")
SORTS: Final = {
    "trouble": "",
    "name": "",
    "starts": "started",
    "due": "overdue",
    "waiting": "waiting",
    "running": "running",
    "lateness": "lateness",
    "failed": "failed",
}
"""What the list can be sorted by: trouble, the worst first; its columns, as their headings call them, with the field of a point."""
_LOOKED_AT_MAX: Final = 1000  # waiting tasks in one answer: some 3 ms of the event loop
_WALKED_MAX: Final = 3000  # due tasks, all of which an exact explanation walks: at most 5 ms
_TRIED_MAX: Final = 500  # the same where starts have costs, and each is tried on a copy of the limits: some 8 ms
_KEYS_SHOWN_MAX: Final = 20
_SPARK_COUNT: Final = 180  # points of a line in the list: 15 minutes
_STUCK_COUNT: Final = 2  # points without a start, ten seconds, after which a full executor counts as stuck
_AUTHORITIES: Final = {"RedisPeers": "Redis", "PostgresPeers": "PostgreSQL", "FilePeers": "the file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRow:
    """One executor in the list: its name, its state, its starts as a line, the most of them, a text for each of ``COLUMNS``."""

    name: str
    state: StateText
    spark: str
    most: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A page of the list.

    Attributes:
        rows: its executors.
        count: how many there are in all.
        found_count: how many of them are in the list, on whatever page of it.
        states: how many of those with what was looked for in their names are in each state, the worst first.
        totals: sums over all executors.
        page: its number, from 1.
        page_count: how many pages there are.
    """

    rows: Sequence[ExecutorRow]
    count: int
    found_count: int
    states: Mapping[str, int]
    totals: Sequence[Figure]
    page: int
    page_count: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and what it is; ``note`` says more, and ``is_bad`` that it tells of trouble."""

    name: str
    text: str
    note: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A batch with waiting tasks."""

    id: str
    name: str
    total: int
    ended: int
    failed: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTask:
    """A task that waits; ``id`` is empty where it has no handle by which it could be explained or cancelled."""

    id: str
    name: str
    key: str
    priority: str
    cost: str
    due: str


def overview_of(recorded: dict[str, RecordedHistory], *, find: str, state: str, sort: str, page: int) -> Overview:
    """Return a page of the list of executors.

    Sorted and summed up by the points that were taken last, so that only those on the page are asked.

    Args:
        recorded: by the name of the executor.
        find: what their names have, in whatever case.
        state: one of ``STATES``; empty for all.
        sort: one of ``SORTS``; but by name, the largest come first.
        page: its number; the nearest there is is returned.
    """
    wanted = find.casefold()
    named = sorted(recorded if not wanted else (name for name in recorded if wanted in name.casefold()))
    kinds = {name: _kind_of(recorded[name]) for name in named}
    counts = Counter(kinds.values())
    found = [name for name in named if kinds[name] == state] if state else named
    if sort == "trouble":
        found.sort(key=lambda name: (STATES.index(kinds[name]), *_trouble_of(recorded[name])))
    elif sort != "name":
        found.sort(key=lambda name: -_last(recorded[name].history, SORTS[sort]))
    shown, page, page_count = page_of(found, page)
    return Overview(
        rows=[executor_row(recorded[name]) for name in shown],
        count=len(recorded),
        found_count=len(found),
        states={each: counts[each] for each in STATES if counts[each]},
        totals=_totals_of(recorded),
        page=page,
        page_count=page_count,
    )


def page_of(found: Sequence[T], page: int) -> tuple[Sequence[T], int, int]:
    """Return what is on a page of a list, or on the nearest page there is; the number of that page; and how many there are."""
    page_count = max(1, math.ceil(len(found) / PAGE_SIZE))
    page = min(max(1, page), page_count)
    return found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE], page, page_count


def _last(history: History[Point], name: str) -> float:
    """Return a value of the last point; -1 if there is none."""
    value = history.last_of(name)
    return -1.0 if math.isnan(value) else value


def _trouble_of(recorded: RecordedHistory) -> tuple[int, int, float]:
    """Return what orders executors of one state, the worst first: nothing that nobody would notice, or that changes all the time."""
    point = recorded.history.last()
    if point is None:
        return -recorded.failures.lately, 0, 0
    late = 0 if math.isnan(point.lateness) else int(point.lateness)
    due = point.overdue if point.overdue > point.started else 0  # fewer start within a second
    return -recorded.failures.lately, -late, -due


def _kind_of(recorded: RecordedHistory) -> str:
    """Return the kind of the state of an executor, without asking for its statistics again."""
    executor = recorded.executor
    if executor.is_shutdown:
        return "closing"
    if executor.is_paused:
        return "paused"
    statistics = recorded.recent
    if statistics is None or statistics.is_paused or statistics.rate.is_zero != executor.rate.is_zero:  # changed since
        statistics = recorded.statistics()
    return "not started" if statistics is None else state_of(recorded, statistics).kind


def _totals_of(recorded: dict[str, RecordedHistory]) -> list[Figure]:
    """Return sums over executors."""
    points = [point for each in recorded.values() if (point := each.history.last()) is not None]
    failed = sum(point.failed for point in points)
    return [
        Figure("Starts", per_second_text(sum(point.started for point in points)), ""),
        Figure("Failures", per_second_text(failed), "", is_bad=failed > 0),
        Figure("Due", count_text(sum(point.overdue for point in points)), ""),
        Figure("Waiting", count_text(sum(point.waiting for point in points)), ""),
        Figure("Running", count_text(sum(point.running for point in points)), ""),
    ]


def executor_row(recorded: RecordedHistory) -> ExecutorRow:
    """Return how an executor stands."""
    executor, point = recorded.executor, recorded.history.last()
    statistics = recorded.statistics()
    if statistics is None:
        texts = [str(executor.rate), *[NOTHING] * (len(COLUMNS) - 1)]
        return ExecutorRow(
            name=executor.name, state=StateText("not started", "not started", "wait"), spark="", most="", texts=texts
        )
    texts = [
        rate_text(statistics),
        NOTHING if point is None else per_second_text(point.started),
        count_text(statistics.overdue),
        seconds_text(_backlog_seconds(recorded, statistics)),
        count_text(statistics.waiting),
        count_text(statistics.running),
        NOTHING if point is None else seconds_text(point.lateness),
        count_text(statistics.failed),
    ]
    starts = recorded.history.tail("started", _SPARK_COUNT)
    return ExecutorRow(
        name=executor.name,
        state=state_of(recorded, statistics),
        spark=spark_svg(starts, recorded.history.tail("failed", _SPARK_COUNT), _SPARK_COUNT),
        most=per_second_text(max(starts)) if any(starts) else "",
        texts=texts,
    )


def state_of(recorded: RecordedHistory, statistics: Statistics) -> StateText:
    """Return the state of an executor."""
    executor, point = recorded.executor, recorded.history.last()
    return state_text(
        statistics,
        is_closing=executor.is_shutdown,
        failed=0.0 if point is None else point.failed,
        lately=recorded.failures.lately,
        stuck=_stuck_text(recorded, statistics),
        authority=_AUTHORITIES.get(type(executor.manager.peers).__name__, "the group"),
    )


def _stuck_text(recorded: RecordedHistory, statistics: Statistics) -> str:
    """Say what runs in an executor whose places are all taken while tasks are due and none has started lately; else nothing."""
    if not _is_stuck(recorded, statistics):
        return ""
    longest = "".join(f", the longest for {row.age}" for row in running_rows(recorded, 1))
    return f"{count_text(statistics.running)} of {count_text(recorded.executor.max_concurrency or 0)} running{longest}"


def _is_stuck(recorded: RecordedHistory, statistics: Statistics) -> bool:
    """True if all places are taken while tasks are due and none has started lately."""
    most, starts = recorded.executor.max_concurrency, recorded.history.tail("started", _STUCK_COUNT)
    if not most or statistics.running < most or not statistics.overdue:
        return False
    return len(starts) == _STUCK_COUNT and not any(starts)


def _backlog_seconds(recorded: RecordedHistory, statistics: Statistics) -> float:
    """Return the seconds of work that is due.

    Infinity if nothing starts as things are, for an estimate would only say how long they have been so; NaN where it would have
    to look at too many tasks one by one.
    """
    if _is_stuck(recorded, statistics):
        return math.inf
    executor = recorded.executor
    queue = executor._started().queue
    is_walked = queue.costs is not None or queue.gate is not None
    return math.nan if is_walked and _is_crowded(queue, _LOOKED_AT_MAX) else executor.backlog_seconds()


def _is_crowded(queue: TaskQueue, count_max: int) -> bool:
    """True if more than so many tasks are due, or fewer where costs are tried, so that walking them would hold the loop."""
    return queue.ready_count() > (count_max if queue.costs is None else _TRIED_MAX)


def figures_of(recorded: RecordedHistory, statistics: Statistics) -> list[Figure]:
    """Return the figures at the head of an executor's page: what nearly all have, and of the others those that are not 0."""
    executor = recorded.executor
    concurrency = executor.max_concurrency
    of = "" if concurrency is None else f" of {count_text(concurrency)}"
    retried = f"; {count_text(statistics.retried)} attempts retried" if statistics.retried else ""
    figures = [
        Figure("Rate", rate_text(statistics), _manner_of(executor)),
        Figure("Due", count_text(statistics.overdue), "waiting tasks that are due, or will be in this interval"),
        Figure("Backlog", seconds_text(_backlog_seconds(recorded, statistics)), "until the last due task starts"),
        Figure("Waiting", count_text(statistics.waiting), "tasks that have not started"),
        Figure("Running", f"{count_text(statistics.running)}{of}", "started, not finished"),
        Figure("Done", count_text(statistics.done), f"returned, of {count_text(statistics.accepted)} accepted"),
        Figure("Failed", count_text(statistics.failed), f"raised an exception{retried}", is_bad=statistics.failed > 0),
    ]
    for name, count, note in (
        ("Expired", statistics.expired, "not started by their deadline"),
        ("Cancelled", statistics.cancelled, "before or during their run"),
        ("Dropped", statistics.dropped, "because the backlog was full"),
        ("Waiters", statistics.waiters, "producers waiting for room"),
        ("Peers", statistics.peers if statistics.peers > 1 else 0, "processes sharing the rate"),
        ("Keys", statistics.keys, "whose limits hold state"),
    ):
        if count:
            figures.append(Figure(name, count_text(count), note))
    return figures


def _manner_of(executor: RateLimitedExecutor) -> str:
    """Say how starts are paced and limited."""
    return f"{executor.pacing.value.replace('_', ' ')}, {type(executor.policy).__name__.lower()}"


def plots_of(history: History[Point], end: float) -> list[Plot]:
    """Return the plots of the last hour of an executor.

    Args:
        history: the history of the executor.
        end: epoch seconds at the right edge.
    """
    started = history.column("started")
    most = max((value for value in started if not math.isnan(value)), default=0.0)
    rate = [
        value if value <= 10 * most else math.nan for value in history.column("rate")
    ]  # a much higher one would flatten the other lines
    starts = {"started": started, "rate": rate, "failed": history.column("failed")}
    waiting = {"waiting": history.column("waiting"), "due": history.column("overdue")}
    plots = (
        ("Starts per second", per_second_text, "/s", starts),
        ("Waiting tasks", number_text, "", waiting),
        ("Running tasks", number_text, "", {"running": history.column("running")}),
        ("Lateness, 99th percentile", seconds_text, "s", {"lateness": history.column("lateness")}),
    )
    times = history.column("at")
    return [
        plot_of(title, times, columns, end=end, text_of=text_of, unit=unit, is_whole=not unit, sparse="failed")
        for title, text_of, unit, columns in plots
    ]


# What waits.


def epoch_of(executor: RateLimitedExecutor) -> float:
    """Return the executor's current time in epoch seconds, on the timeline of its due times."""
    parts = executor._started()
    return parts.queue.timeline.to_epoch(parts.moments.monotonic())


def tasks_of(recorded: RecordedHistory, now: float, find: str) -> tuple[list[ShownTask], list[tuple[str, int]], bool]:
    """Look at tasks that wait; return those to list, the keys that have most of those looked at, and whether these were all.

    Args:
        recorded: the executor whose tasks they are; those to list that have handles can be found by their ids from now on.
        now: epoch seconds.
        find: what their names or keys have, in whatever case.
    """
    parts = recorded.executor._started()
    looked_at = waiting_handles(parts.queue, parts.accounts, _LOOKED_AT_MAX + 1)
    is_all = len(looked_at) <= _LOOKED_AT_MAX
    tasks = [
        (view, handle, name_text(view.name), None if view.key is None else name_text(view.key))
        for view, handle in looked_at
    ]
    keys = Counter(key for *_, key in tasks if key is not None)
    wanted = find.casefold()
    found = [each for each in tasks if wanted in each[2].casefold() or wanted in (each[3] or "").casefold()]
    found.sort(key=lambda each: each[0].due)
    rows = []
    for view, handle, name, key in found[:PAGE_SIZE]:
        task_id = "" if handle is None else _id_of_task(handle)
        if handle is not None:
            recorded.listed[task_id] = handle
        rows.append(
            ShownTask(
                id=task_id,
                name=name,
                key=NOTHING if key is None else key,
                priority=f"{view.priority:g}",
                cost=count_text(view.cost),
                due=f"in {seconds_text(view.due - now)}" if view.due > now else f"{seconds_text(now - view.due)} ago",
            )
        )
    return rows, keys.most_common(_KEYS_SHOWN_MAX), is_all


def task_of(recorded: RecordedHistory, task_id: str) -> TaskHandle[Any] | None:
    """Return the task of an id that was listed; None if it does not wait any more."""
    handle = recorded.listed.get(task_id)
    return handle if handle is not None and handle.state is TaskState.WAITING else None


def explanation_of(executor: RateLimitedExecutor, task: TaskHandle[Any]) -> tuple[Explanation, bool]:
    """Explain why a task waits.

    Returns:
        the explanation; and True if it is exact, False if so many tasks are due that its position and its start are upper
        bounds.
    """
    parts = executor._started()
    parts.engine.now()  # what it makes due counts
    return explain_briefly(parts, task) if _is_crowded(parts.queue, _WALKED_MAX) else (executor.explain(task), True)


def _id_of_task(handle: TaskHandle[Any]) -> str:
    """Name a task for as long as it waits: another that takes its place in memory has another due time."""
    return f"{id(handle):x}-{handle._due.hex().removeprefix('0x')}"


def batches_of(executor: RateLimitedExecutor) -> tuple[list[BatchRow], int]:
    """Return the oldest batches with waiting tasks, and the number of all such batches."""
    batches = waiting_batches(executor._started().queue)
    return [_batch_row(batch) for batch in batches[:PAGE_SIZE]], len(batches)


def batch_of(executor: RateLimitedExecutor, batch_id: str) -> BatchHandle[Any] | None:
    """Return the batch with this id; None if it has no waiting tasks."""
    found = (batch for batch in waiting_batches(executor._started().queue) if _id_of_batch(batch) == batch_id)
    return next(found, None)


def _batch_row(batch: BatchHandle[Any]) -> BatchRow:
    summary = batch.summary
    return BatchRow(
        id=_id_of_batch(batch),
        name=name_text(batch.name),
        total=summary.total,
        ended=summary.total - batch.open_count,
        failed=summary.failed,
        waiting=sum(source.live for source in batch._parts),
    )


def _id_of_batch(batch: BatchHandle[Any]) -> str:
    return f"{id(batch):x}"
