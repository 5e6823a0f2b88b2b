"""``simulate``, ``sweep``, ``forecast`` and ``search``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ratelimited_executor.cli.commands.arguments import Duration, RateText, errors_as_usage

__all__ = ["forecast", "search", "simulate", "sweep"]


def _list_strategies(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    """Print the strategies and exit."""
    if is_wanted and not context.resilient_parsing:
        from ratelimited_executor.cli.simulate.scenarios import strategies_text  # noqa: PLC0415  # nothing else needs the simulator

        click.echo(strategies_text())
        context.exit()


@click.command()
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_strategies,
    help="List the strategies and exit.",
)
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    help="The number of days to simulate; the scenario's own by default.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed of all random numbers."
)
@click.option(
    "--step", type=Duration(), default="1m", show_default=True, help="The interval over which values are aggregated."
)
@click.option(
    "--warm-up",
    type=Duration(may_be_zero=True),
    help="A span at the beginning that the summary and the report leave out.",
)
@click.option("--samples", is_flag=True, help="Keep every single value: at least ten times the size.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the scenarios.")
@click.option(
    "--compare",
    "is_comparison",
    is_flag=True,
    help="Compare several scenarios; the default if there are several.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR",
    help="The directory for databases, report and plots; simulation-SCENARIO by default.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite existing output.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run, or a finished one with more --days.")
@click.option("--report/--no-report", default=True, help="Write report.html and plots (extra simulate).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the summary.")
def simulate(**options: Any) -> None:
    """Preview a policy: weeks of jobs in seconds, on the executor that production runs.

    SCENARIO is a strategy, a TOML file, or a class such as my_module:MyScenario or load.py:MyScenario; the word strategies
    compares all strategies. Parameters in brackets apply to one scenario alone: 'slots[workers=10]'.

    Exit status: 0 simulated; 2 bad usage; 130 interrupted: --resume continues.
    """
    from ratelimited_executor.cli.simulate.simulate_command import SimulateOptions, run_simulations  # noqa: PLC0415  # nothing else needs it

    with errors_as_usage():
        status = run_simulations(SimulateOptions(**options))
    sys.exit(status)


class _Part(click.ParamType[float]):
    """A percentage such as ``5%``, or a part such as 0.05."""

    name = "percent"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return the part."""
        try:
            part = float(value[:-1]) / 100 if str(value).endswith("%") else float(value)
        except ValueError:
            part = 0.0
        if not 0 < part < 1:
            self.fail(f"{value!r} is not a percentage such as 5%", parameter, context)
        return part


@click.command()
@click.argument("scenario")
@click.option(
    "--set", "settings", multiple=True, required=True, metavar="NAME=VALUES",
    help="The values of a parameter to choose: workers=6..20, rate=5,10,20/s, share=0.1..0.5:0.1.",
)  # fmt: skip
@click.option(
    "--given", multiple=True, metavar="NAME=VALUES",
    help="The values of a parameter that is not to be chosen, as traffic=1,2: the choice has to do for all of them.",
)  # fmt: skip
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    help="The number of days to simulate; the scenario's own by default.",
)
@click.option(
    "--warm-up", type=Duration(may_be_zero=True), help="A span at the beginning of each run that is not measured."
)
@click.option(
    "--step", type=Duration(), default="1m", show_default=True, help="The interval over which values are aggregated."
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=20, show_default=True,
    help="Runs of each configuration; with --precision the largest number.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed of the first run.")
@click.option("--precision", type=_Part(), help="Run until half the interval of the figure is below this: 5%.")
@click.option("--figure", help="The figure to compare by, as the table of results names it.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; one for each core by default.")
@click.option(
    "--shortcut/--no-shortcut", default=True,
    help="Compute the starts of simple scenarios without an executor, checked against it, or never do.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR",
    help="The directory for results and page; sweep-SCENARIO by default.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite existing output.")
@click.option(
    "--resume", is_flag=True, help="Continue an interrupted sweep, or a finished one with more values or seeds."
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the results.")
def sweep(**options: Any) -> None:
    """Simulate a scenario with many settings, and name the cheapest that keeps its objectives.

    SCENARIO is as for simulate; a TOML file has its parameters in [parameters]. Every configuration has the same traffic,
    seed by seed, so that few runs tell them apart.

    Exit status: 0 simulated; 1 no configuration keeps the objectives; 2 bad usage; 130 interrupted: --resume continues.
    """
    from ratelimited_executor.cli.simulate.sweep_command import SweepOptions, run_sweep  # noqa: PLC0415  # nothing else needs it

    with errors_as_usage():
        status = run_sweep(SweepOptions(**options))
    sys.exit(status)


@click.command()
@click.argument("scenario", required=False)
@click.option("--calls", type=click.IntRange(min=1), help="The number of calls, all due at the start.")
@click.option(
    "--rate", type=RateText(), default="inf", show_default="no limit", help="Starts allowed, for all nodes together."
)
@click.option(
    "--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that share the rate."
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Concurrent calls on each node.")
@click.option("--duration", type=Duration(), help="The duration of every call: 0.4, 250ms.")
@click.option(
    "--mean", type=Duration(),
    help="The mean duration of a call: exponential, or log-normal with --p90.",
)  # fmt: skip
@click.option("--p90", type=Duration(), help="The 90th percentile of durations; with --mean.")
@click.option("--durations", metavar="FILE", help="Take durations from an access log that contains them.")
@click.option(
    "--failures", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="The fraction of calls that fail."
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The maximum number of attempts of a call.",
)
@click.option("--start", default="00:00", show_default=True, metavar="HH:MM", help="The time of the start.")
@click.option("--by", metavar="HH:MM", help="The deadline for all calls, on the same or the next day.")
@click.option("--within", type=Duration(), help="The deadline as a span from the start: 6h.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The number of runs; more runs make the answer more certain.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed of the first run.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the scenario.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def forecast(**options: Any) -> None:
    """Estimate the probability that work is done in time, from several runs with different seeds.

    Describe the work by --calls and other options, or name a SCENARIO as for simulate.

    Exit status: 0 more likely than not in time; 1 more likely late; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.simulate.forecast_command import ForecastOptions, run_forecast  # noqa: PLC0415  # nothing else needs it

    with errors_as_usage():
        status = run_forecast(ForecastOptions(**options))
    sys.exit(status)


@click.command()
@click.argument("target")
@click.option(
    "--seeds", type=click.IntRange(min=0), help="The number of seeds to try; 1000 by default, or any with --time."
)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--time", "seconds", type=Duration(), help="Begin no run after this time: 10m.")
@click.option("--replay", metavar="TEXT", help="Run one history again, by the text that a failure printed.")
@click.option(
    "--order/--no-order", "postpone", default=True, help="Vary the order of tasks, or leave it as asyncio has it."
)
def search(**options: Any) -> None:
    """Search an async function of yours for faults that break it, in virtual time.

    TARGET is the scenario, an async function with one argument, the world: my_module:scenario or tests/faults.py:scenario.

    Exit status: 0 no failure found; 1 a failure, with its shortest history; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.simulate.search_command import run_search  # noqa: PLC0415  # nothing else needs it

    with errors_as_usage():
        status = run_search(**options)
    sys.exit(status)
