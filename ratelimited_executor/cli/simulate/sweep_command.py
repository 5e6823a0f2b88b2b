"""``sweep`` from its options to its exit status: runs a scenario with many settings, and says which to choose."""

from __future__ import annotations

import csv
import itertools
import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.screen import console_of, print_line
from ratelimited_executor.cli.simulate.folders import file_name, prepare, removing_empty
from ratelimited_executor.cli.simulate.progress import show_runs
from ratelimited_executor.cli.simulate.scenarios import describe_error, load_scenario
from ratelimited_executor.cli.simulate.simulate_command import stopping
from ratelimited_executor.simulation.report.sweep_page import answer_of, write_sweep_page
from ratelimited_executor.simulation.report.sweep_table import KEPT, columns_of
from ratelimited_executor.simulation.sweeps import RUNS_MAX, Sweep, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from ratelimited_executor.simulation import Scenario
    from ratelimited_executor.simulation.sweeps import SweepRun

__all__ = ["SweepOptions", "grid_of", "run_sweep", "values_of"]

_ROW_COUNT_MAX: Final = 40  # with more configurations, the table shows the frontier alone
_RANGE: Final = re.compile(r"(?P<first>-?[\d.]*\d)\.\.(?P<last>-?[\d.]*\d)(?::(?P<step>[\d.]*\d))?(?P<unit>[^\d:]*.*)")
_NUMBER: Final = re.compile(r"-?[\d.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The command line of ``sweep``, each option valid by itself."""

    scenario: str
    settings: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    days: float | None = None
    warm_up: float | None = None
    step: float = 60.0
    seeds: int = 20
    seed: int = 0
    precision: float | None = None
    figure: str | None = None
    jobs: int | None = None
    shortcut: bool = True
    output: Path | None = None
    force: bool = False
    resume: bool = False
    quiet: bool = False


def run_sweep(options: SweepOptions, *, console: Console | None = None) -> ExitStatus:
    """Run a scenario with all combinations of its settings.

    Args:
        options: the command line.
        console: the output for progress and tables; standard output by default.

    Returns:
        DONE; FAILED if there are objectives, and no configuration keeps them; INTERRUPTED if a signal stopped it.

    Raises:
        CommandError: for an error that the user can correct.
    """
    console = console_of(console)
    grid, given = grid_of(options.settings), grid_of(options.given, "--given")
    make = partial(_make, options.scenario)
    make(**{name: values[0] for name, values in {**grid, **given}.items()})  # what is wrong here is bad usage
    directory = options.output or Path(f"sweep-{file_name(Path(options.scenario.partition(':')[0]).stem)}")
    runs, table, page = (directory / name for name in ("runs.jsonl", "sweep.csv", "sweep.html"))
    with removing_empty(directory):
        prepare(directory, [runs], [table, page], what="sweep", resume=options.resume, force=options.force)
        found = _swept(make, grid, given, runs, options, console)
    _print(console, found)
    wanted = options.precision or math.inf
    vague = [each for each in found.configurations if each.estimate(found.figure).relative > wanted]
    if vague and found.is_complete:
        told = f"{len(vague)} configurations are less precise than {wanted:.0%} after {options.seeds} runs"
        print_line(console, f"{told}: give more --seeds.")
    try:
        _write_csv(found, table)
        write_sweep_page(found, page)
    except OSError as error:
        raise CommandError(f"the results cannot be written: {error}; all runs are in {runs}") from error
    print_line(console, f"Page: {page}; figures of all configurations: {table}; runs: {runs}")
    if not found.is_complete:
        print_line(console, "Stopped. The same command with --resume goes on.")
        return ExitStatus.INTERRUPTED
    return ExitStatus.FAILED if found.has_objectives and found.cheapest is None else ExitStatus.DONE


def _swept(
    make: Callable[..., Scenario],
    grid: dict[str, list[str]],
    given: dict[str, list[str]],
    runs: Path,
    options: SweepOptions,
    console: Console,
) -> Sweep:
    """Run the sweep, and keep each run in a file."""
    if options.force:
        try:
            runs.unlink(missing_ok=True)
        except OSError as error:
            raise CommandError(f"--output: {error}") from error
    with stopping() as is_stopped, show_runs(console, "runs", is_quiet=options.quiet) as show:

        def on_run(done: int, total: int, run: SweepRun) -> None:
            settings = ", ".join(f"{name}={value}" for name, value in run.settings.items())
            show(done, total, f"{done:,} of {total:,}, the last with {settings}")

        try:
            return sweep(
                make,
                grid,
                given=given,
                days=options.days,
                warm_up=options.warm_up or 0.0,
                step=options.step,
                seeds=options.seeds,
                first_seed=options.seed,
                precision=options.precision,
                figure=options.figure,
                processes=options.jobs,
                shortcut=options.shortcut,
                results=runs,
                on_run=on_run,
                should_stop=is_stopped,
            )
        except CommandError:
            raise
        except (Exception, SystemExit) as error:  # the scenario's own code runs there, and may raise anything
            where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            raise CommandError(f"{describe_error(error)}{where}") from error


def grid_of(settings: tuple[str, ...], option: str = "--set") -> dict[str, list[str]]:
    """Return the values of each parameter.

    >>> grid_of(("workers=6..8", "rate=5,10,20/s"))
    {'workers': ['6', '7', '8'], 'rate': ['5/s', '10/s', '20/s']}
    """
    grid: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not (name and equals and text):
            raise CommandError(
                f"{option} must be name=values, such as workers=6..20 or rate=5,10,20/s, got {setting!r}"
            )
        if name in grid:
            raise CommandError(f"{option} {name} is given twice: write its values in one list, {name}=6,8,10..20")
        grid[name] = values_of(name, text, option)
    return grid


def values_of(name: str, text: str, option: str = "--set") -> list[str]:
    """Return the values of a list: numbers, texts, and ranges ``first..last`` or ``first..last:step``.

    The unit of the last value is that of all numbers without one.

    >>> values_of("rate", "1..2:0.5,5/min")
    ['1/min', '1.5/min', '2/min', '5/min']
    """
    values: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            values.append(part)
            continue
        try:
            first, last, step = (Decimal(match[each] or "1") for each in ("first", "last", "step"))
        except InvalidOperation:
            raise CommandError(f"{option} {name}: a range is first..last or first..last:step, got {part!r}") from None
        if step <= 0 or last < first or (last - first) / step > RUNS_MAX:
            raise CommandError(
                f"{option} {name}: the range {part} must rise, by a step > 0, to at most {RUNS_MAX:,} values"
            )
        count = int((last - first) / step) + 1
        values += [f"{(first + number * step).normalize():f}{match['unit']}" for number in range(count)]
    if match := re.fullmatch(r"-?[\d.]+((?!e\d)[^\d.].*)", values[-1]):
        values = [value + match[1] if _NUMBER.fullmatch(value) else value for value in values]
    if len(set(values)) < len(values):
        raise CommandError(f"{option} {name} has a value twice: {text}")
    return values


def _make(text: str, /, **settings: str) -> Scenario:
    """Return a scenario; a function of a module, so that other processes can call it."""
    return load_scenario(text, [f"{name}={value}" for name, value in settings.items()])


# Tables.


def _print(console: Console, found: Sweep) -> None:
    there = [each for each in found.configurations if each.runs]
    if not there:
        return
    best = found.best
    shown = there
    if len(there) > _ROW_COUNT_MAX:
        choices = [*found.frontier, *([] if best is None else [best])]
        shown = [each for each in there if any(each.settings | choice.settings == each.settings for choice in choices)]
    table = Table(title=f"{escape(found.scenario)}: {len(there)} configurations, 95 % intervals", title_justify="left")
    columns = columns_of(found)
    for heading, _ in columns:
        table.add_column(escape(heading), justify="right", overflow="fold")
    for each in shown:
        colour = "green" if each.is_kept else "red" if each.missed else "yellow"
        cells = [Text(text(each), style=colour if heading == KEPT else "") for heading, text in columns]
        is_best = best is not None and each is found.counterpart(each, best)
        table.add_row(*cells, style="bold" if is_best else None)
    if len(shown) < len(there):
        table.caption = (
            f"Of {len(there)} configurations those that no other betters in cost and {escape(found.figure)} at once."
        )
    console.print(table)
    print_line(console, answer_of(found))
    print_line(console, found.shortcut)
    for note in found.notes:
        print_line(console, f"Note: {note}.")


def _write_csv(found: Sweep, path: Path) -> None:
    """Write the means of all figures, with half of their intervals."""
    names = found.figures
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        halves = itertools.chain.from_iterable((name, f"{name} ±") for name in names)
        writer.writerow([*found.axes, "runs", "objectives kept", "objectives not decided", *halves])
        for each in found.configurations:
            estimates = [each.estimate(name) for name in names]
            cells = itertools.chain.from_iterable((estimate.mean, estimate.half) for estimate in estimates)
            undecided = sum(bool(run.undecided) and not run.missed for run in each.runs.values())
            writer.writerow([*each.settings.values(), len(each.runs), each.kept_count, undecided, *cells])
