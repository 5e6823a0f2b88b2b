"""``python -m bench``: run sections, print their tables, and save the results."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bench.harness import Options
from bench.reporting.documents import document
from bench.reporting.environment import describe, environment, load_average
from bench.reporting.plots import save_png, terminal_chart
from bench.reporting.progress import SectionProgress
from bench.reporting.tables import markdown, rich_table
from bench.sections import load, names

if TYPE_CHECKING:
    from bench.harness import Table

_WIDTH_MIN = 200  # characters per line where the output is no terminal, so that tables are not folded


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Parse the command line, run the sections, print their tables, and return the results as in the JSON file."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    chosen = parser.parse_args(given)
    if chosen.list:
        print("\n".join(f"{name:12}{load(name).DESCRIPTION}" for name in names()))
        return {}
    facts = environment(given)
    progress = SectionProgress(len(chosen.sections or names()))
    options = Options(
        quick=chosen.quick,
        scale=chosen.scale,
        rounds_wanted=chosen.rounds,
        uvloop=chosen.uvloop,
        progress=progress,
    )
    sections: dict[str, list[Table]] = {}
    try:
        with progress:
            for name in chosen.sections or names():
                progress.begin(name)
                sections[name] = load(name).run(options)
                progress.end()
                if chosen.json:  # a run takes hours: save what is complete
                    _write(chosen.json, document(facts, options, sections))
    finally:  # and print it, also if a section fails or is interrupted
        facts["load_after"] = load_average()
        results = document(facts, options, sections)
        _print(sections, facts, options, is_markdown=chosen.markdown)
        if chosen.json:
            _write(chosen.json, results)
        if chosen.plots:
            for name, tables in sections.items():
                for table in tables:
                    for chart in table.charts:
                        print(save_png(chart, chosen.plots, section=name), file=sys.stderr)
    return results


def _write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks, side by side in one run.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", type=_section, help="which to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; no target is judged")
    parser.add_argument("--rounds", type=_positive(int), help="rounds of each side (default: the section's choice)")
    parser.add_argument("--scale", type=_positive(float), default=1.0, help="factor of all sizes (default: 1)")
    parser.add_argument("--uvloop", action="store_true", help="on uvloop in place of asyncio's own loop")
    parser.add_argument("--markdown", action="store_true", help="print Markdown in place of drawn tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write charts as PNG files there")
    parser.add_argument("--list", action="store_true", help="list the sections, and run none")
    return parser


def _section(text: str) -> str:
    if text not in names():
        raise argparse.ArgumentTypeError(f"no section {text!r}: there are {', '.join(names())}")
    return text


def _positive(kind: type) -> Any:
    def number(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    number.__name__ = kind.__name__
    return number


def _print(sections: dict[str, list[Table]], facts: dict[str, Any], options: Options, *, is_markdown: bool) -> None:
    """Print everything to standard output, beginning with the environment."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _WIDTH_MIN))
    lead = "- " if is_markdown else ""
    for line in describe(facts):
        print(f"{lead}{line}")
    print(f"\n{'#' * 2 * is_markdown} median (least to greatest) of the rounds".lstrip())
    for name, tables in sections.items():
        for table in tables:
            if is_markdown:
                print(f"\n{markdown(table, is_judged=options.is_judged)}", end="")
                continue
            console.print()
            console.print(rich_table(table, is_judged=options.is_judged))
            for chart in table.charts:
                print(f"\n{terminal_chart(chart)}")
        sys.stdout.flush()
        del name


if __name__ == "__main__":
    main()
