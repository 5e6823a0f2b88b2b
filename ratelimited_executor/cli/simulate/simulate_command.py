"""``simulate`` from its options to its exit status: runs scenarios, shows progress and summary, writes a report."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.screen import console_of, print_line
from ratelimited_executor.cli.simulate.folders import file_name, prepare, removing_empty
from ratelimited_executor.cli.simulate.progress import describe_run, show_runs
from ratelimited_executor.cli.simulate.scenarios import describe_error, load_scenarios
from ratelimited_executor.simulation import CRITERIA, RunResult, compare, simulate
from ratelimited_executor.simulation.database import read_properties, run_files
from ratelimited_executor.simulation.hours import DAY_SECONDS
from ratelimited_executor.simulation.limits import NAME_BYTES_MAX
from ratelimited_executor.simulation.report.units import delay_text, kept_text, objective_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from ratelimited_executor.simulation import Comparison, Criterion, JobSummary, RunProgress, Scenario

__all__ = ["SimulateOptions", "run_simulations", "stopping"]

_PAGE = "report.html"
_EXECUTOR_COUNT_MAX = 4  # with more executors, only the total is shown
_KEY_LENGTH = 20  # of a key, as it is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The command line of ``simulate``, each option valid by itself."""

    scenarios: tuple[str, ...]
    days: float | None = None
    seed: int = 0
    step: float = 60.0
    warm_up: float | None = None
    samples: bool = False
    output: Path | None = None
    force: bool = False
    resume: bool = False
    report: bool = True
    settings: tuple[str, ...] = ()
    is_comparison: bool = False
    quiet: bool = False


def run_simulations(options: SimulateOptions, *, console: Console | None = None) -> ExitStatus:
    """Run one scenario, or compare several.

    Args:
        options: the command line.
        console: the output for progress and tables; standard output by default.

    Returns:
        DONE, or INTERRUPTED if a signal stopped it; the simulation up to that time is written.

    Raises:
        CommandError: for an error that the user can correct.
    """
    console = console_of(console)
    scenarios = load_scenarios(options.scenarios, options.settings)
    if options.is_comparison and len(scenarios) < 2:
        raise CommandError("--compare needs at least two scenarios")
    if options.report:
        _check_extra()
    directory = options.output or Path(
        f"simulation-{'comparison' if len(scenarios) > 1 else file_name(scenarios[0].name)}"
    )
    for scenario in scenarios:
        if len(os.fsencode(file_name(scenario.name))) > NAME_BYTES_MAX:
            raise CommandError(
                f"the name of a scenario must have at most {NAME_BYTES_MAX} bytes, because its files have that name, got "
                f"{scenario.name[:40]!r}..."
            )
    files = {scenario.name: directory / f"{file_name(scenario.name)}.sqlite3" for scenario in scenarios}
    if len(set(files.values())) < len(files):
        raise CommandError("two scenarios would have the same file: give one of them another name")
    results: dict[str, RunResult] = {}
    with removing_empty(directory):
        pages = [directory / _PAGE] if options.report else []
        prepare(directory, [*files.values()], pages, what="run", resume=options.resume, force=options.force)
        for scenario in scenarios:
            with _set_aside(files[scenario.name], is_wanted=options.force):
                results[scenario.name] = _run(
                    scenario, files[scenario.name], options, console, is_one_of_many=len(scenarios) > 1
                )
            if results[scenario.name].status != "finished":
                break
    stopped = next((result for result in results.values() if result.status != "finished"), None)
    _print_results(console, results, is_comparison=len(scenarios) > 1 and stopped is None)
    for name in results:
        print_line(console, f"Database: {files[name]}")
    if options.report:
        _write_report([files[name] for name in results], directory, console)
    if stopped is None:
        return ExitStatus.DONE
    where = (
        "while the past was made again: the database is as it was"
        if stopped.is_replaying
        else (f"at {format_duration(stopped.summary.seconds)} of {format_duration(stopped.total)}")
    )
    print_line(console, f"Stopped {where}. The same command with --resume goes on.")
    return ExitStatus.INTERRUPTED


# Running.


def _run(
    scenario: Scenario, file: Path, options: SimulateOptions, console: Console, *, is_one_of_many: bool
) -> RunResult:
    resume = options.resume and file.exists()
    with stopping() as is_stopped, show_runs(console, scenario.name, is_quiet=options.quiet) as show:

        def on_progress(progress: RunProgress) -> bool:
            show(progress.seconds, progress.total, describe_run(progress))
            return is_stopped()

        options_of_run: dict[str, Any] = {"database": file, "resume": resume}
        try:
            if resume and is_one_of_many and _is_through(file, scenario.days if options.days is None else options.days):
                options_of_run = {"database": None, "resume": False}  # it is repeated for the comparison
            return simulate(
                scenario,
                days=options.days,
                seed=options.seed,
                step=options.step,
                samples=options.samples,
                warm_up=options.warm_up or 0.0,
                on_progress=on_progress,
                **options_of_run,
            )
        except (Exception, SystemExit) as error:  # the scenario's own code runs here, and may raise anything
            raise CommandError(f"{scenario.name}: {describe_error(error)}") from error


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Treat SIGINT and SIGTERM as a request to stop after the step; the second one stops at once."""
    asked = 0

    def ask(number: int, frame: Any) -> None:  # noqa: ARG001  # the shape of a signal handler
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Files.


def _is_through(file: Path, days: float) -> bool:
    """True if a run is finished."""
    return float(read_properties(file).get("reached", 0.0)) >= days * DAY_SECONDS


@contextmanager
def _set_aside(file: Path, *, is_wanted: bool) -> Iterator[None]:
    """Set aside the database of an earlier run, and restore it if no new one has replaced it.

    If the process is killed, the old database stays as NAME.before; the next run with --force keeps it until it has a
    new one.
    """
    asides = run_files(file.with_name(f"{file.name}.before"))
    parts = dict(zip(run_files(file), asides, strict=True))
    is_aside = asides[0].exists()
    try:
        for part, aside in parts.items() if is_wanted else ():
            if is_aside:  # the current file is of a killed run
                part.unlink(missing_ok=True)
            elif part.exists():
                part.replace(aside)
    except OSError as error:
        raise CommandError(f"--force: {error}") from error
    is_through = False
    try:
        yield
        is_through = True
    finally:
        is_replaced = file.exists() and (is_wanted or is_through)
        for part, aside in parts.items():
            if is_replaced:
                aside.unlink(missing_ok=True)
            elif aside.exists() and is_wanted:
                aside.replace(part)


def _check_extra() -> None:
    for name in ("matplotlib", "plotly"):
        if find_spec(name) is None:
            raise CommandError(
                f"the report needs {name}: pip install 'ratelimited-executor[simulate]', or give --no-report"
            )


def _write_report(files: Sequence[Path], directory: Path, console: Console) -> None:
    from ratelimited_executor.simulation.report import write_report  # noqa: PLC0415  # plotly and matplotlib load here

    pictures = directory / "plots"
    try:
        page, *pngs = write_report(files, directory / _PAGE, pictures=pictures)
    except (ArithmeticError, OSError, ValueError) as error:  # from a database that was edited
        raise CommandError(f"the report cannot be written: {error}") from error
    print_line(console, f"Report: {page}, and {len(pngs)} plots in {pictures}")


# Tables.


def _print_results(console: Console, results: dict[str, RunResult], *, is_comparison: bool) -> None:
    if is_comparison:
        comparison = compare({name: result.summary for name, result in results.items()})
        console.print(_comparison_table(comparison, results))
        _print_verdict(console, comparison)
        return
    for result in results.values():
        if not result.is_replaying:
            _print_summary(console, result)


def _print_summary(console: Console, result: RunResult) -> None:
    print_line(
        console,
        f"{result.scenario}, seed {result.seed}: {format_duration(result.summary.seconds)} in "
        f"{format_duration(result.wall_seconds)}, {result.speed:,.0f} x real time, {result.rows:,} rows",
    )
    console.print(_summary_table(result))
    for note in result.summary.notes:
        print_line(console, f"Note: {note}.")


def _summary_table(result: RunResult) -> Table:
    summary = result.summary
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    shown = dict(summary.executors)
    if len(shown) > _EXECUTOR_COUNT_MAX:
        table.caption = f"The {len(shown)} executors are in the database, each by itself."
        shown.clear()
    if len(summary.executors) > 1:
        shown = {f"all {len(summary.executors)} executors": summary.total, **shown}
    for name, each in shown.items():
        table.add_row(f"[bold]{escape(name)}", "")
        table.add_row("jobs enqueued", f"{each.enqueued:,}")
        table.add_row("done, failed, other", f"{each.done:,}, {each.failed:,}, {each.other:,}")
        if each.retried:
            table.add_row("attempts that were followed by another", f"{each.retried:,}")
        if each.refused:
            table.add_row("refused, as there was no room", f"{each.refused:,}")
        table.add_row("executing, pending at the end", f"{each.executing:,}, {each.pending:,}")
        table.add_row("executing, mean", f"{each.executing_mean:,.1f}")
        table.add_row("queue depth, mean and most", f"{each.queue_depth_mean:,.1f}, {each.queue_depth_most:,}")
        table.add_row("start delay, p50, p99 and most", _spans(each.start_delay))
        table.add_row("evenness of the throughput", "none" if each.evenness is None else f"{each.evenness:.3f}")
        for resource, use in each.resources.items():
            table.add_row(f"{escape(resource)} used, of the limit", f"{use.used:,}, {use.part:.1%}")
    for name, kind in summary.jobs_by_kind.items():
        _add_kind(table, name, kind)
    if summary.cost:
        table.add_row("[bold]cost", "")
        table.add_row("workers", f"{summary.worker_cost:,.2f}")
        table.add_row("calls", f"{summary.cost - summary.worker_cost:,.2f}")
        table.add_row("both", f"{summary.cost:,.2f}")
    for name, level in summary.gauges.items():
        table.add_row(f"[bold]{escape(name)}", "")
        table.add_row("least, mean and most", f"{level.least:,g}, {level.mean:,.4g}, {level.most:,g}")
    for name, of in summary.populations.items():
        table.add_row(f"[bold]{escape(name)}", "")
        table.add_row("keys", f"{of.keys:,}")
        table.add_row("never synced, overdue at the end", f"{of.never_synced:,}, {of.overdue:,}")
        if of.joined or of.left:
            table.add_row("joined, left, left without a sync", f"{of.joined:,}, {of.left:,}, {of.left_unserved:,}")
        table.add_row("sync interval, p50, p99 and most", _spans(of.sync_interval))
        table.add_row("sync delay, p50, p99 and most", _spans(of.sync_delay))
        table.add_row("lock conflicts", f"{of.lock_conflicts:,}")
        if of.outage_failures:
            table.add_row("failed by an outage", f"{of.outage_failures:,}")
    return table


def _add_kind(table: Table, name: str, kind: JobSummary) -> None:
    """Add the waits of a kind of job, and how its objectives were kept."""
    table.add_row(f"[bold]{escape(name)}", "")
    table.add_row("wait, p50, p99 and most", _spans(kind.wait))
    for priority, waits in sorted(kind.wait_by_priority.items(), reverse=True):
        table.add_row(f"of priority {priority}", _spans(waits))
    if kind.longest_waiting_key is not None:
        key, worst = kind.longest_waiting_key
        table.add_row(f"of the key that waited longest, {escape(str(key)[:_KEY_LENGTH])}", _spans(worst))
    for each in kind.objectives:
        style = "" if each.is_kept else "red" if each.is_decided else "yellow"
        at_worst = f", at worst {delay_text(each.worst)}{'' if each.is_decided else ' so far'}"
        table.add_row(objective_text(each), Text.assemble((kept_text(each), style), at_worst))


def _comparison_table(comparison: Comparison, results: dict[str, RunResult]) -> Table:
    table = Table(title=f"{len(results)} scenarios, the best first", title_justify="left")
    table.add_column("", no_wrap=True)
    criteria = (f"{each.name}, {each.of}" if each.of else each.name for each in CRITERIA)
    headings = ["jobs", *criteria, "never synced", "sum of ranks"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for name in comparison.order:
        summary = results[name].summary
        cells = [f"{summary.jobs:,}"]
        for criterion in CRITERIA:
            text = _value_text(criterion, comparison.values[criterion.name][name])
            is_best = comparison.ranks[criterion.name][name] == 1
            cells.append(f"[bold green]{text}[/]" if is_best else text)
        cells.append(f"{sum(of.never_synced for of in summary.populations.values()):,}")
        cells.append(str(comparison.rank_sum(name)))
        table.add_row(escape(name), *cells)
    return table


def _value_text(criterion: Criterion, value: float) -> str:
    if criterion.unit == "part":
        return f"{1 - value:.3f}"
    return delay_text(value) if criterion.unit == "seconds" else f"{value:,.0f}"


def _print_verdict(console: Console, comparison: Comparison) -> None:
    for criterion in CRITERIA:
        best = comparison.best(criterion.name)
        print_line(console, f"Best by {criterion.name}: {', '.join(best)}")
    sums = {name: comparison.rank_sum(name) for name in comparison.order}
    first = [name for name, total in sums.items() if total == min(sums.values())]
    print_line(console, f"Best by the sum of all ranks: {', '.join(first)}")


def _spans(quantiles: Any) -> str:
    if not quantiles.count:
        return "none"
    return ", ".join(map(delay_text, (quantiles.p50, quantiles.p99, quantiles.most)))
