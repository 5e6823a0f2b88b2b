"""Preview the effect of a policy: weeks of jobs in seconds, on production executors.

A *scenario* sets up executors, jobs whose durations follow a distribution, and arrivals. :func:`simulate` lets virtual
time pass and writes measurements to a SQLite file, from which :func:`write_report` makes a page of tables and plots.
"""

from __future__ import annotations

from ratelimited_executor.simulation.arrivals import Arrivals, Daily, Poisson, Recorded, Regular
from ratelimited_executor.simulation.calls import Calls
from ratelimited_executor.simulation.comparison import CRITERIA, Comparison, Criterion, compare
from ratelimited_executor.simulation.distributions import (
    Constant,
    Distribution,
    Exponential,
    LogNormal,
    Percentiles,
    Sample,
)
from ratelimited_executor.simulation.forecasts import Forecast, forecast
from ratelimited_executor.simulation.jobs import Job, JobFailedError
from ratelimited_executor.simulation.lasting import Lasting
from ratelimited_executor.simulation.population import Life, Member, Population
from ratelimited_executor.simulation.recordings import (
    Recording,
    read_access_log,
    read_csv,
    read_parquet,
    read_recording,
    read_results,
)
from ratelimited_executor.simulation.report import write_report
from ratelimited_executor.simulation.runs import RunProgress, RunResult, simulate
from ratelimited_executor.simulation.shortcut.check import ShortcutError
from ratelimited_executor.simulation.simulation import Nodes, Scenario, Simulation
from ratelimited_executor.simulation.strategies import STRATEGIES
from ratelimited_executor.simulation.summary import (
    ExecutorSummary,
    GaugeSummary,
    JobSummary,
    ObjectiveSummary,
    PopulationSummary,
    Quantiles,
    ResourceSummary,
    Summary,
)
from ratelimited_executor.simulation.sweeps import Configuration, Estimate, Sweep, SweepRun, sweep
from ratelimited_executor.simulation.toml import TomlScenario, load_toml
from ratelimited_executor.simulation.waits import Objective

__all__ = [
    "CRITERIA",
    "STRATEGIES",
    "Arrivals",
    "Calls",
    "Comparison",
    "Configuration",
    "Constant",
    "Criterion",
    "Daily",
    "Distribution",
    "Estimate",
    "ExecutorSummary",
    "Exponential",
    "Forecast",
    "GaugeSummary",
    "Job",
    "JobFailedError",
    "JobSummary",
    "Lasting",
    "Life",
    "LogNormal",
    "Member",
    "Nodes",
    "Objective",
    "ObjectiveSummary",
    "Percentiles",
    "Poisson",
    "Population",
    "PopulationSummary",
    "Quantiles",
    "Recorded",
    "Recording",
    "Regular",
    "ResourceSummary",
    "RunProgress",
    "RunResult",
    "Sample",
    "Scenario",
    "ShortcutError",
    "Simulation",
    "Summary",
    "Sweep",
    "SweepRun",
    "TomlScenario",
    "compare",
    "forecast",
    "load_toml",
    "read_access_log",
    "read_csv",
    "read_parquet",
    "read_recording",
    "read_results",
    "simulate",
    "sweep",
    "write_report",
]
