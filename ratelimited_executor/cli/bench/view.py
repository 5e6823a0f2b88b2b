"""The views of a measurement: live on standard error, then as tables."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group
from rich.live import Live as LiveDisplay
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor.cli.bench.tables import ERRORS, span, tables_of
from ratelimited_executor.cli.screen import Fitting, block_for
from ratelimited_executor.load.recording import EDGES
from ratelimited_executor.load.verdicts import percent_text, why_tool_was_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ratelimited_executor.cli.bench.open_load import Live
    from ratelimited_executor.cli.bench.tables import TextTable
    from ratelimited_executor.load.comparison import Change
    from ratelimited_executor.load.figures import Figures, Measurement
    from ratelimited_executor.load.search import Found, Trial
    from ratelimited_executor.load.verdicts import Verdict

__all__ = [
    "comparison_table",
    "failure_text",
    "found_text",
    "incomplete_text",
    "live_picture",
    "measurement_tables",
    "sample_text",
    "show_live",
    "tool_limit_text",
    "trial_text",
    "verdict_text",
]

# Drawing blocks the loop for some milliseconds and so delays requests: once a second, that does not show in the p99.
_DRAW_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 5.0
_BAR_WIDTH: Final = 40
_BESIDE_BAR: Final = 24  # columns of its name, its share and what is between them
_STYLES: Final = {"better": "bold green", "worse": "bold red"}


# Live.


async def show_live(console: Console, live: Callable[[], Live | None], *, label: str) -> None:
    """Show a load until cancelled, as soon as there is a snapshot: redrawn on a terminal, otherwise a line at intervals."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            if (now := live()) is not None:
                console.print(_line(now, label), soft_wrap=True)
    with LiveDisplay(Text(label), console=console, auto_refresh=False, transient=True) as display:
        while True:
            await asyncio.sleep(_DRAW_SECONDS)
            if (now := live()) is not None:
                display.update(live_picture(now, label, console), refresh=True)


def live_picture(live: Live, label: str, console: Console) -> Group:
    """Return a snapshot for a terminal, on which nothing is cut, however narrow it is."""
    return Group(_panel(live, label), _histogram(live, block_for(console), console.width - _BESIDE_BAR))


def _line(live: Live, label: str) -> Text:
    parts = _parts(live, waiting="wait for a connection")
    return Text(f"{label}: " + ", ".join([*parts, "warm-up"] if live.is_warm_up else parts))


def _parts(live: Live, *, waiting: str) -> list[str]:
    """Return the figures of a snapshot as texts; ``waiting`` says what requests without a connection do."""
    return [
        f"{format_duration(live.seconds)} of {format_duration(live.total)}",
        f"{live.rate:,.1f}/s",
        f"{live.in_flight:,} in flight",
        *([f"{live.waiting:,} {waiting}"] if live.waiting else []),
        f"{live.ended:,} ended",
        f"{live.errors:,} errors",
        f"p50 {span(live.recent.p50)}",
        f"p99 {span(live.recent.p99)}",
    ]


def _panel(live: Live, label: str) -> Group:
    """Return the figures of a snapshot below their names; on a narrow terminal, as many beside each other as fit."""
    title = Text(f"{label}{', warm-up' if live.is_warm_up else ''}", style="italic")
    red = "bold red" if live.errors else ""
    parts = [Text(each, red if each.endswith(" errors") else "") for each in _parts(live, waiting="waiting")]
    table = Table(box=None, pad_edge=False)
    for name in ("time", "rate", "in flight", "waiting", "ended", "errors", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(
        f"{format_duration(live.seconds)} of {format_duration(live.total)}",
        f"{live.rate:,.1f}/s",
        f"{live.in_flight:,}",
        f"{live.waiting:,}",
        f"{live.ended:,}",
        Text(f"{live.errors:,}", style=red),
        span(live.recent.p50),
        span(live.recent.p99),
    )
    return Group(title, Fitting(table, Columns(parts, padding=(0, 2))))


def _histogram(live: Live, block: str, room: int) -> Table:
    """Return a bar for each part of the latest response times, from the first that has any to the last."""
    width = max(1, min(_BAR_WIDTH, room))
    table = Table(box=None, pad_edge=False, show_header=False)
    counts = live.recent.counts
    filled = [index for index, count in enumerate(counts) if count]
    names = [*(f"up to {format_duration(edge)}" for edge in EDGES), "longer"]
    for index in range(filled[0], filled[-1] + 1) if filled else ():
        share = counts[index] / sum(counts)
        table.add_row(names[index], Text(block * math.ceil(share * width), style="cyan"), f"{share:.1%}")
    return table


# Tables.


def measurement_tables(measurement: Measurement) -> list[Table]:
    """Return the tables of a measurement: two main ones, then smaller ones with titles."""
    return [_drawn(each, measurement.figures, is_main=index < 2) for index, each in enumerate(tables_of(measurement))]


def _drawn(texts: TextTable, figures: Figures, *, is_main: bool) -> Table:
    """Return a table that cuts nothing off: on a narrow terminal, its texts take several lines."""
    style: dict[str, Any] = {} if is_main else {"title": texts.title.lower(), "box": SIMPLE_HEAD, "pad_edge": False}
    table = Table(title_justify="left", show_header=bool(texts.headings), **style)
    for index, name in enumerate(texts.headings or texts.rows[0]):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for name, *cells in texts.rows:
        is_bad = not texts.headings and name == ERRORS and figures.error_count
        table.add_row(Text(name), *(Text(cell, style="bold red" if is_bad else "") for cell in cells))
    return table


def incomplete_text(measurement: Measurement) -> Text | None:
    """Return a prominent warning if the figures are not those of the whole load."""
    if measurement.incomplete is None:
        return None
    return Text.assemble((" THE LOAD IS INCOMPLETE ", "bold white on red"), f" {visible(measurement.incomplete)}.")


def tool_limit_text(figures: Figures) -> Text | None:
    """Return a prominent warning if the figures reflect the tool more than the service."""
    reason = why_tool_was_limit(figures)
    if reason is None:
        return None
    return Text.assemble(
        ("The load generator was the bottleneck:", "bold white on red"),
        f" {reason}. The service is faster than these figures show: lower the rate, give the load generator a machine of its "
        "own, or share the load between several machines.",
    )


def verdict_text(verdict: Verdict) -> Text:
    """Return the verdict on the thresholds in a sentence."""
    if verdict.is_kept:
        doubt = f", but chance is not ruled out for {'; '.join(verdict.doubts)}: measure for longer"
        return Text(f"Every threshold was kept{'' if verdict.is_clear else doubt}.", style="bold green")
    doubt = "" if verdict.is_clear else ", though not by enough to rule out chance: measure for longer"
    return Text(f"Not kept: {'; '.join(verdict.broken)}{doubt}.", style="bold red")


def sample_text(figures: Figures) -> Text | None:
    """Return the text of the most frequent error; None without one."""
    return None if figures.sample is None else Text(f"The most frequent error, {visible(figures.sample)}")


def failure_text(figures: Figures) -> Text | None:
    """Return a sentence if no request succeeded; None otherwise."""
    if figures.error_count < figures.count:
        return None
    if not figures.count:
        return Text("No request was sent.", style="bold red")
    kind, count = max(figures.errors.items(), key=lambda item: item[1])
    text = f"No request succeeded; the most frequent error is '{visible(kind)}', {count:,} of {figures.count:,}."
    return Text(text, style="bold red")


# Searching.


def trial_text(trial: Trial, broken: Sequence[str]) -> Text:
    """Return the line of one trial."""
    verdict = ("held", "bold green") if trial.has_held else ("not held", "bold red")
    text = Text.assemble(f"{trial.rate:g}/s: ", verdict)
    if broken:
        text.append(f", {'; '.join(broken)}")
    if trial.tool_limit is not None:
        text.append(
            f"; it does not count, as the load generator was the bottleneck: {trial.tool_limit}", style="yellow"
        )
    elif not trial.is_clear:
        text.append(", but not clearly", style="yellow")
    return text


def found_text(found: Found) -> Text:
    """Return the result of a search in sentences, with its certainty."""
    held, failed = found.held_votes, found.failed_votes
    if found.held is None:
        text = "No rate was held"
        if found.failed is not None:
            text += f": {found.failed:g}/s was the lowest that was tried, and failed in {_of(failed)}"
    else:
        text = f"The highest rate held is {found.held:g}/s, in {_of(held)}"
        text += (
            "; it was the highest that was tried"
            if found.failed is None
            else (f"; {found.failed:g}/s was not held, in {_of(failed)}")
        )
    if found.reason is not None:
        text += f". The search ended early: {found.reason}"
    return Text(f"{text}.{_range_text(found)}", style="bold")


def _range_text(found: Found) -> str:
    """Return between which rates the limit lies, as far as all trials agree; empty if nothing was held."""
    if found.held is None:
        return ""
    if found.above is not None and found.below is not None:
        return (
            f" The limit is between {found.above:g}/s and {found.below:g}/s: every trial up to the first held, and none from "
            "the second on."
        )
    if found.above is not None:
        return f" The limit is above {found.above:g}/s: every trial up to that held."
    if found.below is not None:
        return f" The limit is below {found.below:g}/s: no trial from that on held."
    return " The trials do not agree: make them longer by --every."


def _of(votes: tuple[int, int]) -> str:
    return f"{votes[0]} of {votes[1]} trial{'' if votes[1] == 1 else 's'}"


# Comparing.


def comparison_table(before: str, after: str, changes: Sequence[Change]) -> Table:
    """Return two measurements side by side."""
    table = Table()
    table.add_column("")
    for name in (before, after):
        table.add_column(Text(visible(name)), justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("")
    for change in changes:
        direction = change.direction or ""
        table.add_row(
            change.name,
            _value(change.unit, change.before, change.noise[0]),
            _value(change.unit, change.after, change.noise[1]),
            "" if change.ratio is None else f"{change.ratio:.2f}",
            Text(direction, style=_STYLES.get(direction, "")),
        )
    return table


def _value(unit: str, value: float, noise: float | None) -> str:
    if unit == "seconds":
        return span(value) if noise is None else f"{span(value)} ± {span(noise)}"
    return percent_text(value) if unit == "share" else f"{value:,.1f}/s"
