"""The view of a store of durable tasks, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durable.repetitions import notes_on
from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.urls import masked_text
from ratelimited_executor.cli.screen import Fitting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratelimited_executor._core.durable.pauses import PauseRow
    from ratelimited_executor._core.durable.tasks import EndedRow, LaneRow, RepetitionRow, TaskRow

__all__ = ["StorePicture", "draw_tasks", "tasks_fields"]

_US: Final = 1_000_000
_LAST_SECONDS: Final = 253_402_300_799  # the end of the year 9999
_MEANING: Final = {
    DurableState.SCHEDULED: "not due yet",
    DurableState.READY: "due, not claimed yet",
    DurableState.BEHIND: "behind others in their lane",
    DurableState.CLAIMED: "running or about to run",
    DurableState.UNKNOWN: "set aside: their function is not registered",
    DurableState.DEAD: "dead letters",
    DurableState.PAUSED: "due, set aside during a pause",
}
_SHOWN_MAX: Final = 200  # characters of a saved state in a table
_ID_WIDTH: Final = 28  # of an id that the library makes
_BAD: Final = (DurableState.UNKNOWN, DurableState.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePicture:
    """Snapshot of a store.

    Attributes:
        counts: the number of tasks in each state.
        latencies: for how many seconds the oldest due task has waited to be claimed, by queue.
        rows: the tasks to list.
        lanes: the lanes to list.
        repetitions: the repetitions to list.
        pauses: the pauses in force.
        ended: the ended tasks to list.
    """

    counts: Mapping[DurableState, int]
    latencies: Mapping[str, float]
    rows: Sequence[TaskRow]
    lanes: Sequence[LaneRow]
    repetitions: Sequence[RepetitionRow] = ()
    pauses: Sequence[PauseRow] = ()
    ended: Sequence[EndedRow] = ()


def draw_tasks(picture: StorePicture, now: float, error: str | None = None) -> Group:
    """Return a picture as tables, at a time in epoch seconds, followed by the error that prevented a newer one."""
    table = Table(box=None, pad_edge=False)
    table.add_column("state")
    table.add_column("tasks", justify="right")
    table.add_column("")
    late = DurableState.READY if picture.counts.get(DurableState.READY) else DurableState.SCHEDULED
    for state, count in picture.counts.items():
        style = "bold yellow" if count and state in _BAD else ""
        meaning = _MEANING[state] + (_latency_text(picture.latencies) if state is late else "")
        table.add_row(Text(state.name.lower(), style), Text(f"{count:,}", style), Text(meaning, "dim"))
    parts: list[Any] = [table]
    if picture.pauses:
        parts += [Text(), _pauses(picture.pauses, now)]
    if picture.lanes:
        lanes = _listing("lane", "behind", "head", "state")
        for lane in picture.lanes:
            head = visible(lane.head_id), lane.head_state.name.lower()
            lanes.add_row(*[Text(cell) for cell in (visible(lane.lane), f"{lane.behind_count:,}", *head)])
        parts += [Text(), lanes]
    if picture.repetitions:
        repetitions = _listing("repetition", "function", "times", "due", "")
        for each in picture.repetitions:
            due = "" if each.next_us is None else _due(each.next_us, now)
            cells = (
                visible(each.name),
                visible(each.function),
                visible(each.schedule),
                due,
                notes_on(each, _due(each.until_us or 0, now)),
            )
            repetitions.add_row(*[Text(cell) for cell in cells])
        parts += [Text(), repetitions]
    if picture.ended:
        parts += [Text(), _ended(picture.ended, now)]
    if picture.rows:
        parts += _tasks(picture.rows, now)
    if error is not None:
        parts += [Text(), Text(visible(error), style="red")]
    return Group(*parts)


def _latency_text(latencies: Mapping[str, float]) -> str:
    """Return how long ago the oldest task that waits was due; of several queues each."""
    if not latencies:
        return ""
    ages = [f"{visible(queue)} {format_duration(seconds)}" for queue, seconds in latencies.items()]
    several = f" ({', '.join(ages)})" if len(ages) > 1 else ""
    return f"; the oldest was due {format_duration(max(latencies.values()))} ago{several}"


def tasks_fields(picture: StorePicture) -> dict[str, Any]:
    """Return a picture of a store as fields for JSON."""
    return {
        "counts": {state.name.lower(): count for state, count in picture.counts.items()},
        "ready_seconds": round(max(picture.latencies.values()), 3) if picture.latencies else None,
        "latency": {queue: round(seconds, 3) for queue, seconds in picture.latencies.items()},
        "pauses": [
            {
                "function": each.function,
                "queue": each.queue,
                "lane": each.lane,
                "key": each.key,
                "since": _iso(each.since_us),
                "until": None if each.until_us is None else _iso(each.until_us),
            }
            for each in picture.pauses
        ],
        "lanes": [
            {
                "lane": each.lane,
                "behind": each.behind_count,
                "head": each.head_id,
                "state": each.head_state.name.lower(),
            }
            for each in picture.lanes
        ],
        "repetitions": [
            {
                "name": each.name,
                "queue": each.queue,
                "function": each.function,
                "times": each.schedule,
                "id": each.id,
                "due": _iso(each.due_us),
                "declared": each.is_declared,
                "saved": each.is_saved,
                "paused": each.is_paused,
                "until": None if each.until_us is None else _iso(each.until_us),
                "next": None if each.next_us is None else _iso(each.next_us),
                "definition": json.loads(masked_text(each.definition)) if each.definition else None,
            }
            for each in picture.repetitions
        ],
        "tasks": [_task_fields(row) for row in picture.rows],
        "ended": [_ended_fields(row) for row in picture.ended],
    }


def _task_fields(row: TaskRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "queue": row.queue,
        "name": row.name,
        "version": row.version,
        "state": row.state.name.lower(),
        "put": _iso(row.put_us),
        "due": _iso(row.due_us),
        "priority": row.priority,
        "lane": row.lane,
        "key": row.key,
        "attempts": row.attempt_count,
        "losses": row.lost_count,
        "owner": row.owner or None,
        "cancelled": row.is_cancelled,
        "error": masked_text(row.error) or None,
        "body": _text(row.body),
        "saved": _text(row.saved),
    }


def _ended_fields(row: EndedRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "queue": row.queue,
        "name": row.name,
        "version": row.version,
        "end": row.end,
        "attempts": row.attempt_count,
        "started": _iso(row.started_us),
        "ended": _iso(row.ended_us),
        "seconds": row.run_us / _US,
        "result": _text(row.result),
        "error": masked_text(row.error) or None,
    }


def _tasks(rows: Sequence[TaskRow], now: float) -> list[Any]:
    """Return tables of tasks, and of what has no room beside their other columns; on a narrow screen, lines of each task."""
    listing = _listing("id", "state", "function", "lane", "due", "failed attempts", "owner")
    errors, states = _listing("id", "error"), _listing("id", "saved")
    for row in rows:
        listing.add_row(*[Text(cell) for cell in _cells(row, now)])
        if row.error:
            errors.add_row(Text(visible(row.id)), Text(_shown(row.error_line)))
        if row.saved is not None:
            states.add_row(Text(visible(row.id)), Text(_saved(row)))
    found = [part for table in (errors, states) if table.row_count for part in (Text(), table)]
    return [Text(), Fitting(listing, Group(*[_lines(row, now) for row in rows]), *found)]


def _lines(row: TaskRow, now: float) -> Text:
    """Return a task on a few lines, for a narrow screen."""
    task_id, state, function, lane, due, attempts, owner = _cells(row, now)
    text = Text(f"{task_id}  {state}  {function}\n  due {due}, failed attempts {attempts}")
    for name, value in (("lane", lane), ("owner", owner)):
        text.append(f"\n  {name} {value}" if value else "")
    if row.error:
        text.append(f"\n  {_shown(row.error_line)}", style="yellow")
    if row.saved is not None:
        text.append(f"\n  saved {_saved(row)}", style="dim")
    return text


def _saved(row: TaskRow) -> str:
    """Return the beginning of a saved state."""
    return _shown(_text(row.saved) or "")[:_SHOWN_MAX]


def _pauses(pauses: Sequence[PauseRow], now: float) -> Table:
    listing = _listing("paused function", "queue", "lane", "key", "since", "until")
    for each in pauses:
        covered = [
            "" if text is None else visible(str(text)) for text in (each.function, each.queue, each.lane, each.key)
        ]
        until = "" if each.until_us is None else _due(each.until_us, now)
        listing.add_row(*[Text(cell) for cell in (*covered, _due(each.since_us, now), until)])
    return listing


def _ended(rows: Sequence[EndedRow], now: float) -> Table:
    listing = _listing("ended", "function", "how", "failed attempts", "ran", "when", "result")
    for row in rows:
        result = row.error or _text(row.result) or ""
        cells = (
            visible(row.id),
            visible(_function(row)),
            row.end,
            str(row.attempt_count),
            format_duration(row.run_us / _US),
        )
        listing.add_row(*[Text(cell) for cell in (*cells, _due(row.ended_us, now), _shown(result))])
    return listing


def _shown(text: str) -> str:
    """Return a text of a task as it is shown: without passwords in URLs, and without control characters."""
    return visible(masked_text(text))


def _text(data: bytes | None) -> str | None:
    """Return arguments, a result or a saved state as a text, without passwords in URLs."""
    return None if data is None else masked_text(data.decode(errors="backslashreplace"))


def _function(row: TaskRow | EndedRow) -> str:
    return row.name if row.version == 1 else f"{row.name}, version {row.version}"


def _listing(*names: str) -> Table:
    """Return a table whose ids stay in one line, as they are copied."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        width = _ID_WIDTH if name == "id" else None
        table.add_column(
            name, justify="right" if name in ("failed attempts", "behind") else "left", overflow="fold", min_width=width
        )
    return table


def _cells(row: TaskRow, now: float) -> list[str]:
    state = row.state.name.lower() + (", cancelled" if row.is_cancelled else "")
    attempts = str(row.attempt_count) + (f" + {row.lost_count} lost" if row.lost_count else "")
    return [
        visible(row.id),
        state,
        visible(_function(row)),
        visible(row.lane or ""),
        _due(row.due_us, now),
        attempts,
        visible(row.owner),
    ]


def _due(due_us: int, now: float) -> str:
    in_seconds = due_us / _US - now
    return f"in {format_duration(in_seconds)}" if in_seconds > 0 else f"{format_duration(-in_seconds)} ago"


def _iso(time_us: int) -> str:
    seconds = min(time_us / _US, _LAST_SECONDS)  # a store accepts times beyond the last year that can be formatted
    return datetime.fromtimestamp(seconds, UTC).isoformat()
