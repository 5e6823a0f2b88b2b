"""The views of a measurement: live on standard error, then as tables."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.live import Live as LiveDisplay
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor.load.durations import SHARES
from ratelimited_executor.load.verdicts import why_tool_was_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ratelimited_executor.cli.bench.open_load import Live
    from ratelimited_executor.load.comparison import Change
    from ratelimited_executor.load.durations import Durations
    from ratelimited_executor.load.figures import Figures, Measurement, Participant
    from ratelimited_executor.load.search import Found, Trial
    from ratelimited_executor.load.verdicts import Verdict

__all__ = [
    "comparison_table",
    "failure_text",
    "found_text",
    "incomplete_text",
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
_SHOWN_SECONDS: Final = 1e-6
_STYLES: Final = {"better": "bold green", "worse": "bold red"}


# Live.


async def show_live(console: Console, live: Callable[[], Live], *, label: str) -> None:
    """Show a load until cancelled: redrawn on a terminal, otherwise a line at intervals."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            console.print(_line(live(), label), soft_wrap=True)
    with LiveDisplay(Text(label), console=console, auto_refresh=False, transient=True) as display:
        while True:
            await asyncio.sleep(_DRAW_SECONDS)
            display.update(_panel(live(), label), refresh=True)


def _line(live: Live, label: str) -> Text:
    parts = [
        f"{label}: {format_duration(live.seconds)} of {format_duration(live.total)}",
        f"{live.rate:,.1f}/s",
        f"{live.in_flight:,} in flight",
        f"{live.ended:,} ended",
        f"{live.errors:,} errors",
        f"p50 {_span(live.p50)}",
        f"p99 {_span(live.p99)}",
    ]
    if live.waiting:
        parts.insert(3, f"{live.waiting:,} wait for a connection")
    return Text(", ".join([*parts, "warm-up"] if live.is_warm_up else parts))


def _panel(live: Live, label: str) -> Table:
    table = Table(
        title=f"{label}{', warm-up' if live.is_warm_up else ''}", title_justify="left", box=None, pad_edge=False
    )
    for name in ("time", "rate", "in flight", "waiting", "ended", "errors", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(
        f"{format_duration(live.seconds)} of {format_duration(live.total)}",
        f"{live.rate:,.1f}/s",
        f"{live.in_flight:,}",
        f"{live.waiting:,}",
        f"{live.ended:,}",
        Text(f"{live.errors:,}", style="bold red" if live.errors else ""),
        _span(live.p50),
        _span(live.p99),
    )
    return table


# Tables.


def measurement_tables(measurement: Measurement) -> list[Table]:
    """Return the tables of a measurement: durations, other figures, and phases, classes and participants if several."""
    figures = measurement.figures
    tables = [_durations_table(figures), _summary_table(figures)]
    if len(figures.phases) > 1:
        tables.append(_phases_table(figures))
    if figures.classes:
        tables += _classes_tables(figures)
    if measurement.participants:
        tables.append(_participants_table(measurement.participants))
    return tables


def _durations_table(figures: Figures) -> Table:
    table = Table()
    table.add_column("durations", overflow="fold")
    for name in ("response time", "service time", "our lateness"):
        table.add_column(name, justify="right", overflow="fold")
    columns = (figures.response_times, figures.service_times, figures.lateness)
    for name, share in SHARES:
        table.add_row(name, *(_span(durations.quantile(share)) for durations in columns))
    table.add_row("max", *(_span(durations.most) for durations in columns))
    table.add_row("mean", *(_span(durations.mean) for durations in columns))
    return table


def _summary_table(figures: Figures) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{figures.count:,} in {format_duration(figures.seconds)}")
    table.add_row("target rate", f"{figures.asked_rate:,.1f}/s")
    table.add_row("throughput without errors", f"{figures.answered_rate:,.1f}/s")
    errors = f"{figures.error_count:,} ({100 * figures.error_share:.3g} %)"
    table.add_row("errors", Text(errors, style="bold red" if figures.error_count else ""))
    for kind, count in figures.errors.items():
        table.add_row(Text(f"  {visible(kind)}"), f"{count:,}")
    if figures.statuses:
        table.add_row(
            "responses by status", ", ".join(f"{status}: {count:,}" for status, count in figures.statuses.items())
        )
        table.add_row("received", _size(figures.received))
    if figures.full_seconds >= 0.0005:
        table.add_row("all connections in use", format_duration(figures.full_seconds))
    table.add_row("CPU of this process", f"{figures.cpu_share:.0%} of a core")
    return table


def _phases_table(figures: Figures) -> Table:
    table = _listing("response times by rate", "rate", "requests", "errors", "p50", "p99", "max")
    for phase in figures.phases:
        spans = map(_span, (phase.p50, phase.p99, phase.most))
        table.add_row(phase.rate, f"{phase.count:,}", f"{phase.error_count:,}", *spans)
    return table


def _classes_tables(figures: Figures) -> list[Table]:
    response = _listing("response times by class", "class", "rate", "requests", "errors", "p50", "p99", "max")
    service = _listing("service times by class", "class", "p50", "p99", "max")
    for each in figures.classes:
        name, counts = visible(each.name), (f"{each.count:,}", f"{each.error_count:,}")
        response.add_row(name, each.rate, *counts, *_spans(each.response_times))
        service.add_row(name, *_spans(each.service_times))
    return [response, service]


def _spans(durations: Durations) -> list[str]:
    return [_span(seconds) for seconds in (durations.quantile(0.5), durations.quantile(0.99), durations.most)]


def _participants_table(participants: Sequence[Participant]) -> Table:
    headings = ("participant", "sent of its share", "requests", "errors", "CPU", "our lateness p99")
    table = _listing("by participant", *headings)
    for each in participants:
        cells = (
            f"{each.count:,}",
            f"{each.error_count:,}",
            f"{each.cpu_share:.0%} of a core",
            _span(each.lateness_p99),
        )
        is_unknown = each.is_missing and not each.known_part
        table.add_row(visible(each.name), each.sent, *(("missing", "", "", "") if is_unknown else cells))
    return table


def _listing(title: str, first: str, *others: str) -> Table:
    """Return a table that cuts nothing off: on a narrow terminal, its texts take several lines."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
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
    elif found.held is not None:
        text += (
            ". All trials of both agree"
            if found.is_sure
            else ". The trials do not agree: the limit is close to these rates"
        )
    return Text(f"{text}.", style="bold")


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
            _value(change.unit, change.before),
            _value(change.unit, change.after),
            "" if change.ratio is None else f"{change.ratio:.2f}",
            Text(direction, style=_STYLES.get(direction, "")),
        )
    return table


def _value(unit: str, value: float) -> str:
    if unit == "seconds":
        return _span(value)
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:,.1f}/s"


def _span(seconds: float) -> str:
    return format_duration(seconds) if seconds >= _SHOWN_SECONDS else "0"


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"
