"""The figures of a load as one table of comma-separated values: a row for the load, each phase, class and second."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimited_executor.load.figures import ClassFigures, Figures, PartFigures

__all__ = ["csv_of"]

_HEADINGS: Final = ("part", "name", "requests", "errors", "p50", "p99", "max")


def csv_of(figures: Figures) -> str:
    """Return the table; response times in seconds.

    The first column is ``load``, ``phase``, ``class`` or ``second``; the second one the rate of the phase, the name of the
    class or the number of the second.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_HEADINGS)
    writer.writerows(_rows(figures))
    return text.getvalue()


def _rows(figures: Figures) -> Iterator[tuple[object, ...]]:
    yield ("load", "", *_whole(figures))
    yield from (("phase", each.rate, *_part(each)) for each in figures.phases)
    yield from (("class", each.name, *_whole(each)) for each in figures.classes)
    yield from (("second", each.second, *_part(each)) for each in figures.timeline)


def _whole(each: Figures | ClassFigures) -> tuple[object, ...]:
    times = each.response_times
    return each.count, each.error_count, *map(_text, (times.quantile(0.5), times.quantile(0.99), times.most))


def _part(each: PartFigures) -> tuple[object, ...]:
    return each.count, each.error_count, *map(_text, (each.p50, each.p99, each.most))


def _text(seconds: float) -> str:
    return f"{seconds:.6f}"  # a microsecond is what histograms can tell
