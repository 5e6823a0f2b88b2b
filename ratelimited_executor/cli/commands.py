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
@click.option("--over", type=_Duration(), help="Start the lines evenly over this time: 90, 10m, 1h30m.")
@click.option("--count", type=click.IntRange(min=0), help="How many lines will come; --over needs it for a stream.")
@click.option("--at-field", metavar="FIELD", help="Due time of a JSON line: epoch seconds, or ISO 8601 with a zone.")
@click.option(
    "--priority-field", metavar="FIELD", help="Priority of a JSON line, a whole number; larger is more important."
)
@click.option(
    "--look-ahead", "--window", type=click.IntRange(min=1), default=100_000, show_default=True,
    help="Lines that are read ahead, within which due times and priorities are put in order.",
)  # fmt: skip
@click.option(
    "--on-time", is_flag=True, help="With --at-field: start each line when it is due, not spread over its second."
)
@click.option("--key-field", metavar="FIELD", help="Whose a JSON line is, a text or a number: a tenant, an account.")
@click.option("--fair", is_flag=True, help="Give each key its share: with --key-field, inside a priority.")
@click.option("--key-rate", type=_Rate(), metavar="RATE", help="Starts allowed for each key.")
@click.option(
    "--key-concurrency", type=click.IntRange(min=1), metavar="N", help="Calls of each key under way at a time."
)
@click.option("--cost-field", metavar="FIELD", help="Permits that a JSON line takes, a whole number; 1 if it has none.")
@click.option(
    "--retry", type=click.IntRange(min=1), metavar="N",
    help="Try a line that fails again, N times in all, after a growing pause; each time takes a permit.",
)  # fmt: skip
@click.option("--expires", type=_Duration(), help="Do not start a line later than this after it was due.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=10_000, show_default=True, help="Calls under way at a time."
)
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Run a blocking plain function in N threads.")
@click.option("--results", metavar="FILE", help="Write what became of each line, as JSON Lines; - is standard output.")
@click.option("--append", is_flag=True, help="Add to a --results file that is not empty.")
@click.option("--remaining", metavar="FILE", help="Where lines go that were not started when the run had to stop.")
@click.option("--uvloop", is_flag=True, help="Run on uvloop (extra uvloop).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; the summary stays.")
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
    help="How long both halves take together: 4s to 2m.",
)
@click.option(
    "--rate",
    type=click.IntRange(20, 1000),
    default=200,
    show_default=True,
    help="Deliveries a second that are allowed.",
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
@click.option("--group", default="default", show_default=True, help="Whose rates to show.")
@click.option("--prefix", default="rle", show_default=True, help="Of the group's keys in Redis.")
@click.option("--once", is_flag=True, help="Show the group once; in a pipe that is so anyway.")
@click.option("--interval", type=_Duration(0.1), default="1s", show_default=True, help="The time between two readings.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, once.")
def peers(**options: Any) -> None:
    """Show which processes share the rates of a group, and how (extra redis). It only reads.

    Exit status: 0 shown; 1 the group has no rates; 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.peers_command import PeersOptions, show_peers  # noqa: PLC0415  # for `run` it is no use

    with _errors_as_usage():
        status = show_peers(PeersOptions(**options))
    sys.exit(status)


@cli.command()
@click.argument("url", metavar="REDIS_URL", envvar="REDIS_URL")
@click.option("--prefix", default="rle", show_default=True, help="Of the groups' keys in Redis.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on. Whoever reaches it may look."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="The port to listen on; 0 for any."
)
def dashboard(**options: Any) -> None:
    """Serve a live page of all groups in Redis: rates, peers, limits, slots (extras dashboard, redis). It only reads.

    REDIS_URL: redis://, rediss:// for TLS, unix://; any node of a cluster.

    Exit status: 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.dashboard_command import DashboardOptions, serve  # noqa: PLC0415  # for `run` it is no use

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
@click.option("--group", default="default", show_default=True, help="Whose slots to show.")
@click.option("--prefix", default="rle", show_default=True, help="Of the group's keys in Redis.")
@click.option(
    "--set", "limits", multiple=True, metavar="POOL=LIMIT", callback=_limits, help="Put a limit in force; 0 halts."
)
@click.option(
    "--release", type=click.IntRange(min=1), metavar="FENCE", help="Release the slot of a holder that is dead."
)
@click.option("--yes", "is_sure", is_flag=True, help="Release it without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def slots(**options: Any) -> None:
    """Show who holds the slots of a group, and who waits; set limits, release slots (extra redis).

    Exit status: 0 done; 1 the group has no slots, or a release was not confirmed; 2 bad usage, or Redis cannot be read.
    """
    from ratelimited_executor.cli.slots_command import SlotsOptions, show_slots  # noqa: PLC0415  # for `run` it is no use

    with _errors_as_usage():
        status = show_slots(SlotsOptions(**options), confirm=lambda question: click.confirm(question, err=True))
    sys.exit(status)


@cli.command()
@click.argument("store", envvar="DURABLE_STORE", metavar="STORE")
@click.option(
    "--state",
    type=click.Choice(["scheduled", "ready", "behind", "claimed", "unknown", "dead"]),
    help="List tasks in it.",
)
@click.option("--lanes", "has_lanes", is_flag=True, help="List the lanes in which most tasks wait for others.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many to list.")
@click.option("--requeue", multiple=True, metavar="ID", help="Put a dead letter back, as if it had never been tried.")
@click.option("--requeue-dead", is_flag=True, help="Put all dead letters back.")
@click.option("--cancel", multiple=True, metavar="ID", help="Cancel a task, or remove a dead letter.")
@click.option("--prefix", default="durable", show_default=True, help="Of the keys in Redis.")
@click.option("--watch", "is_watched", is_flag=True, help="Show it live, on a terminal, until Ctrl-C.")
@click.option("--check", "is_check", is_flag=True, help="Exit with 1 if there are dead letters or unknown functions.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def tasks(**options: Any) -> None:
    """Show a store of durable tasks: how many there are in each state, and which (extra sqlite, postgres or redis).

    STORE is the file of a SQLiteStore, or the URL of a PostgresStore, postgresql://..., or of a RedisStore, redis://...; else
    $DURABLE_STORE.

    Exit status: 0 done; 1 a task that was named is not there, or no dead letter, or what --check looks for is; 2 bad usage, or
    the store cannot be used.
    """
    from ratelimited_executor.cli.tasks_command import TasksOptions, show_tasks  # noqa: PLC0415  # for `run` it is no use

    with _errors_as_usage():
        status = show_tasks(TasksOptions(**options))
    sys.exit(status)


def _list_strategies(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    """Print the strategies, and end."""
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
    help="List the strategies, and end.",
)
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), help="Days to simulate; those of the scenario if not given."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all that is drawn.")
@click.option("--step", type=_Duration(), default="1m", show_default=True, help="Over which values are summed up.")
@click.option("--samples", is_flag=True, help="Keep every single value: ten times the size and more.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the scenarios.")
@click.option(
    "--compare",
    "is_comparison",
    is_flag=True,
    help="Say which of several scenarios is best by what; so it does anyway.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR",
    help="Where databases, report and plots go; simulation-SCENARIO if not given.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Write over what is there.")
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted, or with more --days.")
@click.option("--report/--no-report", default=True, help="Write report.html and plots (extra simulate).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; the summary stays.")
def simulate(**options: Any) -> None:
    """Preview what a policy does: weeks of jobs in seconds, on the executor that production runs.

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
@click.option("--calls", type=click.IntRange(min=1), help="How many are to be made, all due at the start.")
@click.option(
    "--rate", type=_Rate(), default="inf", show_default="no limit", help="Starts allowed, of all nodes together."
)
@click.option(
    "--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that share the rate."
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Calls under way at a time, on each node.")
@click.option("--duration", type=_Duration(), help="How long each call takes, always the same: 0.4, 250ms.")
@click.option(
    "--mean", type=_Duration(),
    help="How long a call takes in the mean: exponential, or log-normal with --p90.",
)  # fmt: skip
@click.option("--p90", type=_Duration(), help="What nine in ten take at most; with --mean.")
@click.option("--durations", metavar="FILE", help="How long calls took: an access log that tells it.")
@click.option(
    "--failures", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="The part of them that fails."
)
@click.option(
    "--attempts", type=click.IntRange(min=1), default=1, show_default=True, help="How often a call is tried at most."
)
@click.option("--start", default="00:00", show_default=True, metavar="HH:MM", help="When it begins.")
@click.option("--by", metavar="HH:MM", help="By when all is to be through, on the same or the next day.")
@click.option("--within", type=_Duration(), help="The same as a time from the start: 6h.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Runs; the more, the surer.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first run.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the scenario.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def forecast(**options: Any) -> None:
    """Tell whether work will be through in time, and how sure that is: by several runs with different seeds.

    Say what the work is with --calls and its like, or name a SCENARIO as for simulate.

    Exit status: 0 more likely than not in time; 1 more likely late; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.forecast_command import ForecastOptions, run_forecast  # noqa: PLC0415  # as above

    with _errors_as_usage():
        status = run_forecast(ForecastOptions(**options))
    sys.exit(status)


def _rates(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Read a rate or a range of them, or those of classes."""
    from ratelimited_executor.cli.bench_options import read_rates  # noqa: PLC0415  # for `run` it is no use

    return _read(read_rates, texts)


def _share(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Read a part such as 1%."""
    from ratelimited_executor.cli.bench_options import read_share  # noqa: PLC0415  # as above

    return None if text is None else _read(read_share, text)


def _headers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read Name: value."""
    from ratelimited_executor.load.requests import parse_header  # noqa: PLC0415  # as above

    return tuple(_read(parse_header, text) for text in texts)


def _read(read: Callable[[S], T], given: S) -> T:
    """Read what was given, and refuse it with the reason."""
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
@click.option("--for", "duration", type=_Duration(), help="How long to send; 30s unless given. A range is a ramp.")
@click.option("--step", type=click.FloatRange(min=0, min_open=True), help="Go through a range of rates in such steps.")
@click.option(
    "--every", type=_Duration(), help="How long each step lasts, or each trial of --find-max; 10s unless given."
)
@click.option("--warm-up", type=_Duration(), help="Send for so long at the first rate before anything is recorded.")
@click.option(
    "--arrivals", type=click.Choice(["regular", "poisson"]), default="regular", show_default=True,
    help="Evenly, or at random as independent users come.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random arrivals.")
@click.option("--method", metavar="WORD", help="GET, or POST if there is a --body, unless given.")
@click.option(
    "--header", "headers", multiple=True, callback=_headers, metavar="'NAME: VALUE'", help="Sent with each request."
)
@click.option(
    "--body", metavar="TEXT", help="Sent with each request; @FILE is what a file holds, {n} the request's number."
)
@click.option("--requests", metavar="FILE", help="Requests to send in turn: JSON Lines of method, url, headers, body.")
@click.option(
    "--connections", type=click.IntRange(1, 100_000), metavar="N",
    help="Requests under way at a time; 500, or 64 threads of a plain function, unless given.",
)  # fmt: skip
@click.option(
    "--timeout", type=_Duration(0.001, 3600), default="30s", show_default=True, help="Give a request up after this."
)
@click.option("--find-max", is_flag=True, help="Find the highest rate that keeps --p99 and --errors.")
@click.option("--p99", type=_Duration(), help="What 99 of 100 requests may take from the intended start: 200ms.")
@click.option("--errors", callback=_share, metavar="PART", help="The part of the requests that may fail: 1%, 0.01.")
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="Write the figures, for bench compare.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with plots.")
@click.option(
    "--peers", metavar="URL",
    help="Share the load with other processes, which meet in this Redis: redis://host:6379/0 (extra redis).",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The name under which they meet; default unless given.")
@click.option("--expect", type=click.IntRange(2, 1000), metavar="N", help="How many processes share the load.")
@click.option("--uvloop", is_flag=True, help="Run on uvloop (extra uvloop).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; the tables stay.")
def bench(targets: tuple[str, ...], **options: Any) -> None:
    """Measure a service with an open load: requests start when they are due, whatever became of those before (extra load).

    TARGET is a URL, or module:function or file.py:function, sync or async, or a context manager that yields one. In a URL and a
    body, {n} is the number of the request, and {class} the name of its class. bench compare A.json B.json shows two
    measurements side by side.

    Exit status: 0 measured, and --p99 and --errors kept; 1 not kept, no rate held, nothing succeeded, or a part of a shared
    load is missing; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.bench_command import compare_files, run_bench  # noqa: PLC0415  # aiohttp loads here
    from ratelimited_executor.cli.bench_options import BenchOptions  # noqa: PLC0415  # as above

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
    """End with status 2 and the reason for what the user can mend, with 130 for an early Ctrl-C."""
    try:
        yield
    except CommandError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(ExitStatus.USAGE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(ExitStatus.INTERRUPTED)


def _loop_factory(use_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop; None is asyncio's own."""
    if not use_uvloop:
        return None
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise CommandError("--uvloop needs uvloop: pip install 'ratelimited-executor[uvloop]'") from error
    return uvloop.new_event_loop
