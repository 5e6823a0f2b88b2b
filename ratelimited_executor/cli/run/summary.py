"""The table at the end of a run: states, lateness, wall time, the busiest windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.run.ledger import FINAL_STATES, Ledger
from ratelimited_executor.cli.run.windows import SLACK_SECONDS, busiest_second, whole_excess, worst_report

if TYPE_CHECKING:
    from rich.console import Console

    from ratelimited_executor import Rate

__all__ = ["RunSummary", "print_summary"]

_STYLES: Final = {"done": "bold green", "failed": "bold red", "expired": "bold yellow", "not started": "bold yellow"}
_PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The content of the summary.

    Attributes:
        ledger: counts, lateness, starts, errors.
        rate: the requested rate.
        wall_seconds: the duration of the run.
        ending: None if all input was processed; otherwise the reason.
        not_started: the number of lines that were not started; None if they could not be counted.
        remaining: the file with these lines.
        look_ahead: the number of lines read ahead.
    """

    ledger: Ledger
    rate: Rate
    wall_seconds: float
    ending: str | None = None
    not_started: int | None = 0
    remaining: str | None = None
    look_ahead: int = 0


def print_summary(console: Console, summary: RunSummary) -> None:
    """Print the table, the first errors and the remaining work."""
    rows = _rows(summary)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        _print(console, Text.assemble((f"{name:<{width}}", _STYLES.get(name, "bold")), "  ", text))
    for note in _notes(summary):
        _print(console, Text(note))


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)  # a terminal wraps a long error, and grep finds it whole


def _rows(summary: RunSummary) -> list[tuple[str, str]]:
    ledger = summary.ledger
    rows = [(state, f"{ledger.states[state]:,}") for state in FINAL_STATES if ledger.states[state] or state == "done"]
    if summary.not_started is None or summary.not_started:
        rows.append(("not started", "unknown" if summary.not_started is None else f"{summary.not_started:,}"))
    if ledger.blank:
        rows.append(("blank lines", f"{ledger.blank:,} skipped"))
    rows.append(("wall time", format_duration(summary.wall_seconds)))
    if ledger.states["done"] and summary.wall_seconds > 0:
        rows.append(("throughput", f"{ledger.states['done'] / summary.wall_seconds:,.1f} done a second"))
    if ledger.lateness.total:
        shown = [f"{name} {format_duration(ledger.lateness.quantile(share))}" for name, share in _PERCENTILES]
        rows.append(("lateness", ", ".join([*shown, f"max {format_duration(ledger.lateness.max)}"])))
    if ledger.starts:
        rows.extend(_window_rows(summary))
    return rows


def _window_rows(summary: RunSummary) -> list[tuple[str, str]]:
    starts, begin = summary.ledger.starts, summary.ledger.starts[0]
    count, at = busiest_second(starts)
    busiest = f"{_many(count, 'start')}, from {format_duration(max(0.0, at - begin))} on"
    costs = summary.ledger.costs
    if summary.rate.is_unlimited:
        return [("busiest second", busiest)]
    if not costs and float(summary.rate) < count <= float(summary.rate) * (1 + SLACK_SECONDS) + 1:
        busiest += f": a start may be up to {format_duration(SLACK_SECONDS)} late, and then falls into the next second"
    rows = [("busiest second", busiest)]
    report = worst_report(starts, summary.rate, costs=costs)
    excess = max(report.worst_excess, whole_excess(starts, summary.rate, costs=costs))
    verdict = "the rate was held" if excess <= 0 else f"{excess:.2f} too many"
    width = format_duration(max(0.0, report.end - report.start))
    rows.append(
        (
            "worst window",
            f"{_many(report.count, 'permit' if costs else 'start')} in {width}, {report.allowed:,.1f} allowed: {verdict}",
        )
    )
    return rows


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _notes(summary: RunSummary) -> list[str]:
    ledger = summary.ledger
    notes = [f"line {number}: {error}" for number, error in ledger.errors]
    if ledger.states["failed"] > len(ledger.errors):
        notes.append(f"... and {_many(ledger.states['failed'] - len(ledger.errors), 'more failed line')}")
    if ledger.late_count:
        first = ", ".join(map(str, ledger.late_lines)) + (", ..." if ledger.late_count > len(ledger.late_lines) else "")
        notes.append(
            f"{_many(ledger.late_count, 'line')} out of order by more than the look-ahead of {summary.look_ahead:,}: line {first}"
        )
    if summary.ending is not None:
        notes.append(f"{summary.ending}; {_left_to_do(summary)}")
    return notes


def _left_to_do(summary: RunSummary) -> str:
    if summary.not_started is None:
        return "the rest of the stream was not read; --remaining FILE would keep it"
    if not summary.not_started:
        return "every line had been started"
    if summary.remaining is None:
        return f"not started: {_many(summary.not_started, 'line')}; --remaining FILE would keep them"
    return f"not started: {_many(summary.not_started, 'line')}, now in {summary.remaining}"
