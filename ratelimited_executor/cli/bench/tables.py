"""The tables of a measurement as texts, for a terminal and for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor.load.durations import SHARES
from ratelimited_executor.load.verdicts import percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.load.durations import Durations
    from ratelimited_executor.load.figures import Figures, Measurement, Participant

__all__ = ["ERRORS", "TextTable", "span", "tables_of"]

ERRORS: Final = "errors"  # the name of the row with the number of errors
_SHOWN_SECONDS: Final = 1e-6


class TextTable(NamedTuple):
    """A table; each row begins with its name. Without headings, it is a list of names and values."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(measurement: Measurement) -> list[TextTable]:
    """Return the tables of a measurement: durations, other figures, and phases, classes and participants if several."""
    figures = measurement.figures
    is_open = measurement.is_open
    tables = [_durations(figures, is_open=is_open), _requests(figures, is_open=is_open)]
    if len(figures.phases) > 1:
        tables.append(_phases(figures))
    if figures.classes:
        tables += _classes(figures)[: None if is_open else 1]
    if measurement.participants:
        tables.append(_participants(measurement.participants))
    return tables


def span(seconds: float) -> str:
    """Return a duration as a text; a very short one is ``0``."""
    return format_duration(seconds) if seconds >= _SHOWN_SECONDS else "0"


def _durations(figures: Figures, *, is_open: bool) -> TextTable:
    names = ("response time", "service time", "our lateness") if is_open else ("response time", "our lateness")
    every = (figures.response_times, figures.service_times, figures.lateness)
    columns = every if is_open else (every[0], every[2])  # without a due time, both are the same
    rows = [[name, *(span(each.quantile(share)) for each in columns)] for name, share in SHARES]
    rows.append(["max", *(span(each.most) for each in columns)])
    rows.append(["mean", *(span(each.mean) for each in columns)])
    return TextTable("Durations", ("durations", *names), rows)


def _requests(figures: Figures, *, is_open: bool) -> TextTable:
    rows = [
        ("requests", f"{figures.count:,} in {format_duration(figures.seconds)}"),
        *_rates(figures, is_open=is_open),
        ("throughput without errors", f"{figures.answered_rate:,.1f}/s"),
        (ERRORS, f"{figures.error_count:,} ({percent_text(figures.error_share)})"),
        *((f"  {visible(kind)}", f"{count:,}") for kind, count in figures.errors.items()),
    ]
    if figures.statuses:
        statuses = ", ".join(f"{status}: {count:,}" for status, count in figures.statuses.items())
        rows += [("responses by status", statuses), ("received", _size(figures.received))]
    if figures.full_seconds >= 0.0005:
        rows.append(("all connections in use", format_duration(figures.full_seconds)))
    waited = f", waited for one {figures.cpu_wait_share:.0%} of the time" if figures.cpu_wait_share >= 0.01 else ""
    rows.append(("CPU of this process", f"{figures.cpu_share:.0%} of a core{waited}"))
    return TextTable("Requests", (), rows)


def _rates(figures: Figures, *, is_open: bool) -> list[tuple[str, str]]:
    if not is_open:
        return [("sent", f"{figures.asked_rate:,.1f}/s")]
    sent = f"{figures.sent_share * figures.asked_rate:,.1f}/s ({figures.sent_share:.1%})"
    return [("target rate", f"{figures.asked_rate:,.1f}/s"), ("sent within that time", sent)]


def _phases(figures: Figures) -> TextTable:
    headings = ("rate", "requests", "errors", "p50", "p99", "max")
    rows = [
        (each.rate, f"{each.count:,}", f"{each.error_count:,}", *map(span, (each.p50, each.p99, each.most)))
        for each in figures.phases
    ]
    return TextTable("Response times by rate", headings, rows)


def _classes(figures: Figures) -> list[TextTable]:
    response, service = [], []
    for each in figures.classes:
        name, counts = visible(each.name), (f"{each.count:,}", f"{each.error_count:,}")
        response.append((name, each.rate, *counts, *_spans(each.response_times)))
        service.append((name, *_spans(each.service_times)))
    headings = ("class", "rate", "requests", "errors", "p50", "p99", "max")
    return [
        TextTable("Response times by class", headings, response),
        TextTable("Service times by class", ("class", "p50", "p99", "max"), service),
    ]


def _spans(durations: Durations) -> list[str]:
    return [span(seconds) for seconds in (durations.quantile(0.5), durations.quantile(0.99), durations.most)]


def _participants(participants: Sequence[Participant]) -> TextTable:
    headings = ("participant", "sent of its share", "requests", "errors", "CPU", "our lateness p99")
    rows = []
    for each in participants:
        counts = f"{each.count:,}", f"{each.error_count:,}"
        cells = (*counts, f"{each.cpu_share:.0%} of a core", span(each.lateness_p99))
        is_unknown = each.is_missing and not each.known_part
        rows.append((visible(each.name), each.sent, *(("missing", "", "", "") if is_unknown else cells)))
    return TextTable("By participant", headings, rows)


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"
