"""``simulate`` and ``forecast``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ratelimited_executor.cli.commands.arguments import Duration, RateText, errors_as_usage

__all__ = ["forecast", "simulate"]


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
