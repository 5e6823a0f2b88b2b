"""Results as JSON, in a schema that ``bench/README.md`` describes; ``version`` changes if readers must change, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.harness import Chart, Options, Table

__all__ = ["VERSION", "document"]

VERSION = 1


def document(facts: dict[str, Any], options: Options, sections: Mapping[str, list[Table]]) -> dict[str, Any]:
    """Return everything that was measured, and the environment in which it was."""
    return {
        "version": VERSION,
        "environment": facts,
        "options": {
            "quick": options.quick,
            "scale": options.scale,
            "rounds": options.rounds_wanted,
            "uvloop": options.uvloop,
        },
        "sections": {
            name: [_table(table, is_judged=options.is_judged) for table in tables] for name, tables in sections.items()
        },
    }


def _table(table: Table, *, is_judged: bool) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [
            {"case": case, "cells": {column: _cell(cell, is_judged=is_judged) for column, cell in cells.items()}}
            for case, cells in table.rows.items()
        ],
        "notes": table.notes,
        "checks": table.checks,
        "charts": [_chart(chart) for chart in table.charts],
    }


def _cell(cell: Figure | str, *, is_judged: bool) -> Any:
    if not isinstance(cell, Figure):
        return cell
    target = cell.target
    return {
        "median": cell.median,
        "least": cell.least,
        "greatest": cell.greatest,
        "values": list(cell.values),
        "unit": cell.unit,
        "smaller_is_better": cell.smaller_is_better,
        "target": None if target is None else {"text": target.text, "bound": target.bound},
        "met": cell.met if is_judged else None,
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "title": chart.title,
        "kind": chart.kind,
        "log": chart.log,
        "x_label": chart.x_label,
        "y_label": chart.y_label,
        "series": [{"name": line.name, "x": list(line.x), "y": list(line.y)} for line in chart.series],
    }
