"""``forecast`` from its options to its exit status: runs many seeds, and shows how certain the result is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from rich.table import Table

from ratelimited_executor import Rate
from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.screen import console_of, print_line
from ratelimited_executor.cli.simulate.progress import show_runs
from ratelimited_executor.cli.simulate.scenarios import describe_error, load_scenario
from ratelimited_executor.simulation import Constant, Exponential, LogNormal, Sample, forecast, read_recording
from ratelimited_executor.simulation.calls import Calls
from ratelimited_executor.simulation.forecasts import MEDIAN_RUNS_MIN
from ratelimited_executor.simulation.limits import JOBS_MAX, NODES_MAX
from ratelimited_executor.simulation.recordings import recording_kind
from ratelimited_executor.testing.clock import DEFAULT_START_WALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ratelimited_executor.simulation import Distribution, Forecast, RunProgress, RunResult, Scenario

__all__ = ["ForecastOptions", "run_forecast"]

_WITHIN_SECONDS_MAX: Final = 100 * 365 * 86_400.0
_CALL_OPTIONS: Final = ("rate", "nodes", "concurrency", "duration", "mean", "p90", "durations", "failures", "attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """The command line of ``forecast``, each option valid by itself."""

    scenario: str | None = None
    calls: int | None = None
    rate: Rate | float | str = math.inf
    nodes: int = 1
    concurrency: int | None = None
    duration: float | None = None
    mean: float | None = None
    p90: float | None = None
    durations: str | None = None
    failures: float = 0.0
    attempts: int = 1
    start: str = "00:00"
    by: str | None = None
    within: float | None = None
    seeds: int = 20
    seed: int = 0
    settings: tuple[str, ...] = ()
    quiet: bool = False


def run_forecast(options: ForecastOptions, *, console: Console | None = None) -> ExitStatus:
    """Forecast when all work will have ended.

    Args:
        options: the command line.
        console: the output; standard output by default.

    Returns:
        DONE if the work is more likely than not to end in time, else FAILED.

    Raises:
        CommandError: for an error that the user can correct.
    """
    console = console_of(console)
    scenario = _scenario_of(options)
    start = _clock_time("--start", options.start)
    within = _within(options, start)
    with show_runs(console, "runs", is_quiet=options.quiet) as show:
        done = 0
        jobs_in_run = options.calls or 0  # for a scenario: those of the previous run, if any

        def on_run(number: int, result: RunResult) -> None:
            nonlocal done, jobs_in_run
            done, jobs_in_run = number, options.calls or result.summary.jobs
            show(done, options.seeds, f"{done} of {options.seeds} runs, {result.speed:,.0f} x real time")

        def on_progress(progress: RunProgress) -> None:
            text = f"{done} of {options.seeds} runs, the next at {format_duration(progress.seconds)}, {progress.jobs:,} jobs"
            if jobs_in_run:
                text += f" of {'' if options.calls else 'about '}{jobs_in_run:,}"
            part = min(1.0, progress.jobs / jobs_in_run) if jobs_in_run else 0.0
            show(done + part, options.seeds, text)

        try:
            found = forecast(
                scenario,
                within=within,
                seeds=options.seeds,
                first_seed=options.seed,
                start=DEFAULT_START_WALL + (start - start.replace(hour=0, minute=0)).total_seconds(),
                on_run=on_run,
                on_progress=on_progress,
            )
        except (Exception, SystemExit) as error:  # the scenario's own code runs here, and may raise anything
            raise CommandError(f"{scenario.name}: {describe_error(error)}") from error
    console.print(_table(found, start))
    low, chance, high = found.chance
    answer = "Yes" if low > 0.5 else "No" if high < 0.5 else "Uncertain"
    print_line(
        console,
        f"{answer}: done by {_at(start, within)} in {found.in_time} of {len(found.ends)} runs, "
        f"a chance of {chance:.0%} (95 % interval {low:.0%} to {high:.0%}).",
    )
    if found.ends[0] == math.inf:
        print_line(
            console, "No run was done in twice that time: too much work, or a scenario whose jobs never stop arriving."
        )
    return ExitStatus.DONE if chance >= 0.5 else ExitStatus.FAILED


def _scenario_of(options: ForecastOptions) -> Scenario:
    if (options.scenario is None) == (options.calls is None):
        raise CommandError("give either --calls or a SCENARIO")
    if options.scenario is not None:
        defaults = ForecastOptions(rate=Rate.of(math.inf))
        given = [name for name in _CALL_OPTIONS if getattr(options, name) not in (getattr(defaults, name), math.inf)]
        if given:
            raise CommandError(f"--{given[0]} applies only to --calls: a scenario has parameters, see --set")
        return load_scenario(options.scenario, options.settings)
    if options.settings:
        raise CommandError("--set is for a SCENARIO: --calls has options of its own")
    assert options.calls is not None
    for name, value, most, unit in (
        ("--calls", options.calls, JOBS_MAX, "calls"),
        ("--nodes", options.nodes, NODES_MAX, "nodes"),
    ):
        if value > most:
            raise CommandError(f"{name} must be at most {most:,} {unit}, got {value}")
    if Rate.of(options.rate).is_zero:
        raise CommandError("--rate 0 would never start a call")
    duration = _duration_of(options)
    try:
        return Calls(
            count=options.calls,
            rate=options.rate,
            nodes=options.nodes,
            concurrency=options.concurrency,
            duration=duration,
            failures=options.failures,
            attempts=options.attempts,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error


def _duration_of(options: ForecastOptions) -> Distribution:
    try:
        given = [name for name in ("duration", "mean", "durations") if getattr(options, name) is not None]
        if len(given) != 1:
            raise CommandError("give the duration of calls by one of --duration, --mean (with --p90) and --durations")
        if options.p90 is not None and options.mean is None:
            raise CommandError("--p90 needs --mean")
        if options.duration is not None:
            return Constant(options.duration)
        if options.durations is not None:
            durations = _recorded(options.durations)
            if durations is None:
                raise CommandError(f"{options.durations} does not contain the duration of each call")
            return Sample(durations)
        assert options.mean is not None
        return Exponential(options.mean) if options.p90 is None else LogNormal(mean=options.mean, p90=options.p90)
    except (ModuleNotFoundError, OSError, ValueError) as error:
        raise CommandError(str(error)) from error


def _recorded(path: str) -> Sequence[float] | None:
    """Return the durations of an access log, or of the results of a run."""
    try:
        return read_recording(path).durations
    except OSError as error:
        raise CommandError(f"--durations: {path} cannot be read: {error.strerror or error}") from error
    except (ModuleNotFoundError, ValueError) as error:
        if recording_kind(path) not in {"csv", "parquet"}:
            raise
        raise CommandError(
            f"--durations takes an access log or the results of a run, and {path} is a table: forecast a scenario file "
            f'whose jobs have duration = {{sample = "{path}", time = "COLUMN", duration = "COLUMN"}}'
        ) from error


def _within(options: ForecastOptions, start: datetime) -> float:
    if (options.by is None) == (options.within is None):
        raise CommandError("give the deadline by either --by HH:MM or --within")
    if options.within is not None:
        if options.within > _WITHIN_SECONDS_MAX:
            raise CommandError("--within must be at most 100 years")
        return options.within
    assert options.by is not None
    seconds = (_clock_time("--by", options.by) - start).total_seconds()
    return seconds if seconds > 0 else seconds + 86_400


def _clock_time(name: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%H:%M")  # noqa: DTZ007  # a time of day, not an instant
    except ValueError:
        raise CommandError(f"{name} must be a time of day such as 06:00, got {text!r}") from None


def _table(found: Forecast, start: datetime) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows: list[tuple[str, str]] = [
        ("jobs in a run, failed ones", f"{found.jobs:,.0f}, {found.failed:,.1f}"),
        ("earliest end", _end(found.ends[0], start)),
        ("median end", _end(found.median[1], start)),
        ("95 % interval of the median", _interval(found, start)),
        ("latest end", _end(found.ends[-1], start)),
        ("allowed", _end(found.within, start)),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _interval(found: Forecast, start: datetime) -> str:
    if len(found.ends) < MEDIAN_RUNS_MIN:
        return f"none from fewer than {MEDIAN_RUNS_MIN} runs"
    low, _, high = found.median
    return f"{_end(low, start)} to {_end(high, start)}"


def _end(seconds: float, start: datetime) -> str:
    return "later" if seconds == math.inf else f"{_at(start, seconds)} ({format_duration(seconds)})"


def _at(start: datetime, seconds: float) -> str:
    at = start + timedelta(seconds=round(seconds))
    days = (at.date() - start.date()).days
    return f"{at:%H:%M:%S}" + (f" on day {days + 1}" if days else "")
