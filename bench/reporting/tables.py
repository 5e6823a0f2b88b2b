"""Tables as text: in the terminal by rich, or as Markdown."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from bench.harness import Figure, Table

__all__ = ["markdown", "rich_table"]


def rich_table(table: Table, *, is_judged: bool) -> RichTable:
    """Return a table for the terminal."""
    drawn = RichTable(title=table.title, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    drawn.caption = "\n".join(_below(table))
    headings, rows = _grid(table, is_judged=is_judged)
    for number, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def markdown(table: Table, *, is_judged: bool) -> str:
    """Write a table as Markdown."""
    headings, rows = _grid(table, is_judged=is_judged)
    lines = [f"### {table.title}", "", _line(headings), _line(["---"] + ["---:"] * (len(headings) - 1))]
    lines += [_line(row) for row in rows]
    notes = _below(table)
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""] if notes else [*lines, ""])


def number_text(value: float) -> str:
    """Write a number with three significant digits, or with all digits before the point.

    >>> [number_text(value) for value in (0.01234, 1.0, 12.34, 1234567)]
    ['0.0123', '1.00', '12.3', '1,234,567']
    """
    size = abs(value)
    if size == 0:
        return "0"
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.1 else 4
    return f"{value:,.{places}f}"


def cell_text(cell: Figure | str | None) -> str:
    """Write a figure as its median, with the spread if there were several rounds."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    text = number_text(cell.median)
    if len(cell.values) > 1:
        text += f" ({number_text(cell.least)} to {number_text(cell.greatest)})"
    return f"{text} {cell.unit}".rstrip()


def _grid(table: Table, *, is_judged: bool) -> tuple[list[str], list[list[str]]]:
    has_targets = any(_with_target(table, case) for case in table.rows)
    headings = ["case", *table.columns, *(["target", "met"] if has_targets else [])]
    rows = []
    for case, cells in table.rows.items():
        row = [case, *(cell_text(cells.get(column)) for column in table.columns)]
        if has_targets:
            row += _verdict(_with_target(table, case), is_judged=is_judged)
        rows.append(row)
    return headings, rows


def _with_target(table: Table, case: str) -> dict[str, Figure]:
    cells = table.rows[case]
    return {
        column: cell
        for column in table.columns
        if isinstance(cell := cells.get(column), Figure) and cell.target is not None
    }


def _verdict(figures: dict[str, Figure], *, is_judged: bool) -> list[str]:
    """Return the target and the verdict; if there are several, each is preceded by its column."""
    several = len(figures) > 1
    targets = "; ".join(f"{column} {f.target.text}" if several else f.target.text for column, f in figures.items())  # type: ignore[union-attr]  # chosen for having one
    if not is_judged:
        return [targets, "not judged" if figures else ""]
    verdicts = [
        f"{column} {'yes' if f.met else 'NO'}" if several else "yes" if f.met else "NO" for column, f in figures.items()
    ]
    return [targets, "; ".join(verdicts)]


def _below(table: Table) -> list[str]:
    checks = [f"check, has to be 0: {name}: {count}" for name, count in table.checks.items()]
    return [*table.notes, *checks]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
