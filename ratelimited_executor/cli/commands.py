"""The parser: options, their help, their own checks; no work."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ratelimited_executor import Rate
from ratelimited_executor._core.durations import parse_duration
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.options import RunOptions
from ratelimited_executor.cli.run_command import run as run_job
from ratelimited_executor.cli.targets import load_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cli"]


class _Duration(click.ParamType[float]):
    """Seconds, or a text such as 10m."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
@click.version_option(package_name="ratelimited-executor", prog_name="ratelimited-executor")
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
    "--window", type=click.IntRange(min=1), default=100_000, show_default=True,
    help="Look-ahead in lines within which due times and priorities are put in order.",
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
    """Call TARGET (module:function, sync or async) with each line of INPUT (a file, or - for standard input).

    Progress and the summary go to standard error; standard output belongs to the target.

    The first Ctrl-C or SIGTERM stops starting, lets the calls under way finish, and keeps the rest in --remaining.
    A second one stops at once.
    """
    with _errors_as_usage():
        factory = _loop_factory(uvloop)
        function = load_target(target)
        if options["threads"] is not None and asyncio.iscoroutinefunction(function):
            raise CommandError("--threads is for plain functions; the target is async: use --concurrency")
        with asyncio.Runner(loop_factory=factory) as runner:
            status = run_job(RunOptions(target=function, **options), runner)
    sys.exit(status)


@cli.command()
@click.option(
    "--seconds",
    type=click.FloatRange(4, 120),
    default=20.0,
    show_default=True,
    help="How long both halves take together.",
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
@click.option("--prefix", default="rle", show_default=True, help="Of the group's keys.")
@click.option("--once", is_flag=True, help="Show the group once; in a pipe that is so anyway.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two readings."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, once.")
def peers(**options: Any) -> None:
    """Show which processes share the rates of a group, and how (extra redis). It only reads.

    Exit status: 0 shown; 1 the group has no rates; 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.peers_command import PeersOptions, show_peers  # noqa: PLC0415  # for `run` it is no use

    with _errors_as_usage():
        status = show_peers(PeersOptions(**options))
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
