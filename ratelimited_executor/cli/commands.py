"""The parser: options, their help, their own checks; no work."""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ratelimited_executor import Rate, kernel
from ratelimited_executor._core.durations import parse_duration
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.options import RunOptions, check_threads
from ratelimited_executor.cli.run_command import run as run_job
from ratelimited_executor.cli.targets import load_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cli"]

S = TypeVar("S")
T = TypeVar("T")


class _Duration(click.ParamType[float]):
    """Seconds, or a text such as 10m; from ``least`` to ``most`` seconds."""

    name = "duration"

    def __init__(self, least: float = 0.0, most: float = math.inf) -> None:
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= seconds <= self._most:
            most = "" if self._most == math.inf else f" and at most {self._most:g} s"
            self.fail(f"must be at least {self._least:g} s{most}, got {value!r}", param, ctx)
        return seconds


class _Rate(click.ParamType[Rate]):
    """A number a second, or a text such as 5/min."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Rate:
        if isinstance(value, Rate):
            return value
        text = str(value)
        try:
            return Rate.of(text) if "/" in text else Rate.of(float(text))
        except ValueError as error:
            reason = str(error) if "/" in text else f"a rate looks like 200, 100/s or 5/min and is >= 0, got {text!r}"
            self.fail(reason, param, ctx)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    package_name="ratelimited-executor",
    prog_name="ratelimited-executor",
    message=f"%(prog)s, version %(version)s\nkernel: {str(kernel).replace('%', '%%')}",
)
def cli() -> None:
    """Start calls on time, under a rate.

    Exit status: 0 all done; 1 some line failed or expired; 2 bad usage or input; 130 interrupted.
    """


@cli.command()
@click.argument("target")
@click.argument("input", default="-")
@click.option(
    "--jsonl", is_flag=True, help="Each line is one JSON value, passed as the argument. Blank lines are skipped."
)
@click.option("--rate", type=_Rate(), default="inf", show_default="no limit", help="Starts allowed: 200, 100/s, 5/min.")
@click.option("--over", type=_Duration(), help="Spread the starts evenly over this span: 90, 10m, 1h30m.")
@click.option("--count", type=click.IntRange(min=0), help="The number of lines; --over needs it for a stream.")
@click.option(
    "--at-field", metavar="FIELD", help="The field with a line's due time: epoch seconds, or ISO 8601 with a zone."
)
@click.option(
    "--priority-field", metavar="FIELD", help="The field with a line's priority, an integer; larger is more important."
)
@click.option(
    "--look-ahead", "--window", type=click.IntRange(min=1), default=100_000, show_default=True,
    help="The number of lines read ahead and sorted by due time and priority.",
)  # fmt: skip
@click.option(
    "--on-time", is_flag=True, help="With --at-field: start each line at its due time, not spread over its second."
)
@click.option(
    "--key-field", metavar="FIELD", help="The field with a line's key, a string or a number: a tenant, an account."
)
@click.option("--fair", is_flag=True, help="With --key-field: give each key a fair share within a priority.")
@click.option("--key-rate", type=_Rate(), metavar="RATE", help="Starts allowed for each key.")
@click.option("--key-concurrency", type=click.IntRange(min=1), metavar="N", help="Concurrent calls for each key.")
@click.option("--cost-field", metavar="FIELD", help="The field with a line's cost in permits, an integer; 1 if absent.")
@click.option(
    "--retry", type=click.IntRange(min=1), metavar="N",
    help="Retry a failed line, up to N attempts in all, with growing pauses; each attempt takes a permit.",
)  # fmt: skip
@click.option("--expires", type=_Duration(), help="Do not start a line later than this after its due time.")
@click.option("--concurrency", type=click.IntRange(min=1), default=10_000, show_default=True, help="Concurrent calls.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Run a blocking plain function in N threads.")
@click.option("--results", metavar="FILE", help="Write the result of each line, as JSON Lines; - is standard output.")
@click.option("--append", is_flag=True, help="Add to a --results file that is not empty.")
@click.option(
    "--remaining", metavar="FILE", help="Where to write the lines that were not started when the run was stopped."
)
@click.option("--uvloop", is_flag=True, help="Run on uvloop (extra uvloop).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the summary.")
def run(target: str, uvloop: bool, **options: Any) -> None:
    """Call TARGET with each line of INPUT (a file, or - for standard input).

    TARGET is module:function or file.py:function, sync or async; or names a context manager or what makes one, which is
    entered before the first call and left after the last one, and whose value is called.

    Progress and the summary go to standard error; standard output belongs to the target.

    The first Ctrl-C or SIGTERM stops starting, lets the calls under way finish, and keeps the rest in --remaining, which
    is written only then. A second one stops at once.
    """
    with _errors_as_usage():
        factory = _loop_factory(uvloop)
        function = load_target(target)
        check_threads(options["threads"], function)
        with asyncio.Runner(loop_factory=factory) as runner:
            status = run_job(RunOptions(target=function, **options), runner)
    sys.exit(status)


@cli.command()
@click.option(
    "--seconds",
    type=_Duration(4, 120),
    default="20s",
    show_default=True,
    help="The duration of both halves together: 4s to 2m.",
)
@click.option(
    "--rate",
    type=click.IntRange(20, 1000),
    default=200,
    show_default=True,
    help="The rate of deliveries allowed, per second.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show only the verdict, no live view, tables or plots.")
def demo(seconds: float, rate: int, quiet: bool) -> None:
    """Watch a real HTTP server receive webhooks, sent by the executor and then by plain call_later.

    Everything stays on this machine: the server is a process of its own on the loopback address.
    """
    from ratelimited_executor.cli.demo.command import demonstrate  # noqa: PLC0415  # aiohttp and plotext load only here

    with _errors_as_usage():
        status = asyncio.run(demonstrate(seconds=seconds, rate=rate, is_quiet=quiet))
    sys.exit(status)


@cli.command()
@click.option(
    "--redis", "url", metavar="URL", required=True, envvar="REDIS_URL", show_envvar=True,
    help="redis://, rediss:// for TLS, unix://; any node of a cluster.",
)  # fmt: skip
@click.option("--group", default="default", show_default=True, help="The group to show.")
@click.option("--prefix", default="rle", show_default=True, help="The prefix of the group's Redis keys.")
@click.option("--once", is_flag=True, help="Show the group once and exit; the default in a pipe.")
@click.option("--interval", type=_Duration(0.1), default="1s", show_default=True, help="The time between two updates.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, once.")
def peers(**options: Any) -> None:
    """Show which processes share the rates of a group, and how (extra redis). Read-only.

    Exit status: 0 shown; 1 the group has no rates; 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.peers_command import PeersOptions, show_peers  # noqa: PLC0415  # not needed by `run`

    with _errors_as_usage():
        status = show_peers(PeersOptions(**options))
    sys.exit(status)


@cli.command()
@click.argument("url", metavar="REDIS_URL", envvar="REDIS_URL")
@click.option("--prefix", default="rle", show_default=True, help="The prefix of the groups' Redis keys.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; anyone who can reach it can read the page.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="The port to listen on; 0 for any."
)
def dashboard(**options: Any) -> None:
    """Serve a live page of all groups in Redis: rates, peers, limits, slots, plots (extras dashboard, redis). Read-only.

    REDIS_URL: redis://, rediss:// for TLS, unix://; any node of a cluster; else the environment variable REDIS_URL.

    Exit status: 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.dashboard_command import DashboardOptions, serve  # noqa: PLC0415  # not needed by `run`

    with _errors_as_usage():
        status = serve(DashboardOptions(**options))
    sys.exit(status)


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Read POOL=LIMIT."""
    limits = []
    for text in texts:
        pool, _sign, limit = text.rpartition("=")
        if not pool or not limit.isdecimal() or len(limit) > 15:
            raise click.BadParameter(f"must look like gpu=4, with a limit >= 0, got {text!r}")
        limits.append((pool, int(limit)))
    return tuple(limits)


@cli.command()
@click.option(
    "--redis", "url", metavar="URL", required=True, envvar="REDIS_URL", show_envvar=True,
    help="redis://, rediss:// for TLS, unix://; any node of a cluster.",
)  # fmt: skip
@click.option("--group", default="default", show_default=True, help="The group to show.")
@click.option("--prefix", default="rle", show_default=True, help="The prefix of the group's Redis keys.")
@click.option(
    "--set",
    "limits",
    multiple=True,
    metavar="POOL=LIMIT",
    callback=_limits,
    help="Set the limit of a pool; 0 halts it.",
)
@click.option("--release", type=click.IntRange(min=1), metavar="FENCE", help="Release the slot of a dead holder.")
@click.option("--yes", "is_sure", is_flag=True, help="Release without asking for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def slots(**options: Any) -> None:
    """Show who holds the slots of a group, and who waits; set limits, release slots (extra redis).

    Exit status: 0 done; 1 the group has no slots, or a release was not confirmed; 2 bad usage, or Redis cannot be read.
    """
    from ratelimited_executor.cli.slots_command import SlotsOptions, show_slots  # noqa: PLC0415  # not needed by `run`

    with _errors_as_usage():
        status = show_slots(SlotsOptions(**options), confirm=lambda question: click.confirm(question, err=True))
    sys.exit(status)


@cli.command()
@click.argument("store", envvar="DURABLE_STORE", metavar="STORE")
@click.option(
    "--state",
    type=click.Choice(["scheduled", "ready", "behind", "claimed", "unknown", "dead"]),
    help="List the tasks in this state.",
)
@click.option("--lanes", "has_lanes", is_flag=True, help="List the lanes with the most waiting tasks.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The maximum number of rows to list."
)
@click.option(
    "--requeue", multiple=True, metavar="ID", help="Put a dead letter back in the queue, with its attempts reset."
)
@click.option("--requeue-dead", is_flag=True, help="Put all dead letters back in the queue.")
@click.option("--cancel", multiple=True, metavar="ID", help="Cancel a task, or remove a dead letter.")
@click.option("--prefix", default="durable", show_default=True, help="The prefix of the Redis keys.")
@click.option("--watch", "is_watched", is_flag=True, help="On a terminal, update live until Ctrl-C.")
@click.option(
    "--check", "is_check", is_flag=True, help="Exit with status 1 if there are dead letters or unknown functions."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def tasks(**options: Any) -> None:
    """Show a store of durable tasks: how many there are in each state, and which (extra sqlite, postgres or redis).

    STORE is the file of a SQLiteStore, or the URL of a PostgresStore, postgresql://..., or of a RedisStore, redis://...; else
    $DURABLE_STORE.

    Exit status: 0 done; 1 a task that was named is not there, or no dead letter, or what --check looks for is; 2 bad usage, or
    the store cannot be used.
    """
    from ratelimited_executor.cli.tasks_command import TasksOptions, show_tasks  # noqa: PLC0415  # not needed by `run`

    with _errors_as_usage():
        status = show_tasks(TasksOptions(**options))
    sys.exit(status)


def _list_strategies(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    """Print the strategies and exit."""
    if is_wanted and not context.resilient_parsing:
        from ratelimited_executor.cli.scenarios import strategies_text  # noqa: PLC0415  # nothing else needs the simulator

        click.echo(strategies_text())
        context.exit()


@cli.command()
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
    "--step", type=_Duration(), default="1m", show_default=True, help="The interval over which values are aggregated."
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

    SCENARIO is a strategy, a TOML file, or a class such as my_module:MyScenario or load.py:MyScenario; the word strategies is
    all of those that come with it, to be compared. Parameters in brackets are for that one alone: 'slots[workers=10]'.

    Exit status: 0 simulated; 2 bad usage; 130 interrupted, and to be gone on with by --resume.
    """
    from ratelimited_executor.cli.simulate_command import SimulateOptions, run_simulations  # noqa: PLC0415  # as above

    with _errors_as_usage():
        status = run_simulations(SimulateOptions(**options))
    sys.exit(status)


@cli.command()
@click.argument("scenario", required=False)
@click.option("--calls", type=click.IntRange(min=1), help="The number of calls, all due at the start.")
@click.option(
    "--rate", type=_Rate(), default="inf", show_default="no limit", help="Starts allowed, for all nodes together."
)
@click.option(
    "--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that share the rate."
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Concurrent calls on each node.")
@click.option("--duration", type=_Duration(), help="The duration of each call, always the same: 0.4, 250ms.")
@click.option(
    "--mean", type=_Duration(),
    help="The mean duration of a call: exponential, or log-normal with --p90.",
)  # fmt: skip
@click.option("--p90", type=_Duration(), help="The 90th percentile of durations; with --mean.")
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
@click.option("--within", type=_Duration(), help="The same deadline as a span from the start: 6h.")
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

    Say what the work is with --calls and its like, or name a SCENARIO as for simulate.

    Exit status: 0 more likely than not in time; 1 more likely late; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.forecast_command import ForecastOptions, run_forecast  # noqa: PLC0415  # as above

    with _errors_as_usage():
        status = run_forecast(ForecastOptions(**options))
    sys.exit(status)


def _rates(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Read a rate or a range of rates, or those of classes."""
    from ratelimited_executor.cli.bench.options import read_rates  # noqa: PLC0415  # not needed by `run`

    return _read(read_rates, texts)


def _share(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Read a fraction such as 1%."""
    from ratelimited_executor.cli.bench.options import read_share  # noqa: PLC0415  # as above

    return None if text is None else _read(read_share, text)


def _headers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read Name: value."""
    from ratelimited_executor.load.requests import parse_header  # noqa: PLC0415  # as above

    return tuple(_read(parse_header, text) for text in texts)


def _read(read: Callable[[S], T], given: S) -> T:
    """Read an argument, or refuse it with the reason."""
    try:
        return read(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@cli.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET")
@click.option(
    "--rate", "rates", multiple=True, callback=_rates, metavar="[CLASS=]RATE",
    help="Requests a second: 500, 5/min, 100..1000. With a name in front, of a class: urgent=20; repeat for each class.",
)  # fmt: skip
@click.option(
    "--for", "duration", type=_Duration(), help="The duration of the load; 30s by default. A range of rates is a ramp."
)
@click.option("--step", type=click.FloatRange(min=0, min_open=True), help="Step through a range of rates by this much.")
@click.option(
    "--every", type=_Duration(), help="The duration of each step, or of each trial of --find-max; 10s by default."
)
@click.option("--warm-up", type=_Duration(), help="Send at the first rate for this long before recording.")
@click.option(
    "--arrivals", type=click.Choice(["regular", "poisson"]), default="regular", show_default=True,
    help="Even, or random as from independent users.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed of random arrivals.")
@click.option("--method", metavar="WORD", help="The HTTP method; GET by default, POST with --body.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="'NAME: VALUE'",
    help="A header to send with each request.",
)
@click.option(
    "--body", metavar="TEXT", help="The body of each request; @FILE reads it from a file, {n} is the request's number."
)
@click.option(
    "--requests", metavar="FILE", help="Send the requests of a file in turn: JSON Lines of method, url, headers, body."
)
@click.option(
    "--connections", type=click.IntRange(1, 100_000), metavar="N",
    help="Concurrent requests; 500 by default, or 64 threads for a plain function.",
)  # fmt: skip
@click.option(
    "--timeout", type=_Duration(0.001, 3600), default="30s", show_default=True, help="The timeout of a request."
)
@click.option("--find-max", is_flag=True, help="Find the highest rate that meets --p99 and --errors.")
@click.option("--p99", type=_Duration(), help="The threshold for the 99th percentile from the intended start: 200ms.")
@click.option(
    "--errors", callback=_share, metavar="PART", help="The threshold for the fraction of failed requests: 1%, 0.01."
)
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="Write the figures, for bench compare.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with plots.")
@click.option(
    "--peers", metavar="URL",
    help="Share the load with other processes, coordinated through this Redis: redis://host:6379/0 (extra redis).",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The name of the shared load; 'default' if omitted.")
@click.option(
    "--expect", type=click.IntRange(2, 1000), metavar="N", help="The number of processes that share the load."
)
@click.option("--uvloop", is_flag=True, help="Run on uvloop (extra uvloop).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the tables.")
def bench(targets: tuple[str, ...], **options: Any) -> None:
    """Measure a service with an open load: requests start at their due times, whether or not earlier ones have ended (extra load).

    TARGET is a URL, or module:function or file.py:function, sync or async, or a context manager that yields one. In a URL and a
    body, {n} is the number of the request, and {class} the name of its class. bench compare A.json B.json shows two
    measurements side by side.

    Exit status: 0 measured, and --p99 and --errors kept; 1 not kept, no rate held, nothing succeeded, or a part of a shared
    load is missing; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.bench.command import compare_files, run_bench  # noqa: PLC0415  # aiohttp loads here
    from ratelimited_executor.cli.bench.options import BenchOptions  # noqa: PLC0415  # as above

    with _errors_as_usage():
        if targets[0] == "compare":
            sys.exit(compare_files(targets[1:]))
        if len(targets) > 1:
            raise CommandError(f"one TARGET is measured at a time, got {len(targets)}")
        with asyncio.Runner(loop_factory=_loop_factory(options["uvloop"])) as runner:
            status = run_bench(BenchOptions(target=targets[0], **options), runner)
    sys.exit(status)


@contextmanager
def _errors_as_usage() -> Iterator[None]:
    """Exit with status 2 and the reason for an error that the user can correct, with 130 for an early Ctrl-C."""
    try:
        yield
    except CommandError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(ExitStatus.USAGE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(ExitStatus.INTERRUPTED)


def _loop_factory(use_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop; None for asyncio's own."""
    if not use_uvloop:
        return None
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise CommandError("--uvloop needs uvloop: pip install 'ratelimited-executor[uvloop]'") from error
    return uvloop.new_event_loop
