"""``bench`` and its sub-command ``compare``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from ratelimited_executor.cli.commands.arguments import Duration, errors_as_usage, loop_factory, read_argument
from ratelimited_executor.cli.exits import CommandError

__all__ = ["bench"]


def _rates(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Read a rate or a range of rates, or those of classes."""
    from ratelimited_executor.cli.bench.options import read_rates  # noqa: PLC0415  # other commands do without

    return read_argument(read_rates, texts)


def _durations(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    """Read a duration for all, and those of classes."""
    from ratelimited_executor.cli.bench.options import read_durations  # noqa: PLC0415  # other commands do without

    return read_argument(read_durations, texts)


def _shares(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    """Read a fraction such as 1% for all, and those of classes."""
    from ratelimited_executor.cli.bench.options import read_shares  # noqa: PLC0415  # other commands do without

    return read_argument(read_shares, texts)


def _share(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Read a fraction such as 99%."""
    from ratelimited_executor.cli.bench.options import read_share  # noqa: PLC0415  # other commands do without

    return None if text is None else read_argument(read_share, text)


def _headers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read Name: value."""
    from ratelimited_executor.load.requests import parse_header  # noqa: PLC0415  # other commands do without

    return tuple(read_argument(parse_header, text) for text in texts)


class _TargetOrCommand(click.Group):
    """A group that is a command, too: if its first word is no sub-command, all arguments are for the group itself."""

    allow_interspersed_args = True  # as in a command: TARGET may stand before the options

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        command = self.commands.get(args[0]) if args else None
        if command is None:
            return super().make_context(info_name, args, parent, **extra)
        return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


@click.group(cls=_TargetOrCommand, invoke_without_command=True, subcommand_metavar="")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET")
@click.option(
    "--rate", "rates", multiple=True, callback=_rates, metavar="[CLASS=]RATE",
    help="Requests a second: 500, 5/min, 100..1000. With a name in front, the rate of a class: urgent=20; repeat for each.",
)  # fmt: skip
@click.option(
    "--for", "duration", type=Duration(), help="The duration of the load; 30s by default. A range of rates is a ramp."
)
@click.option("--step", type=click.FloatRange(min=0, min_open=True), help="Step through a range of rates by this much.")
@click.option(
    "--every", type=Duration(), help="The duration of each step, or of each trial of --find-max; 10s by default."
)
@click.option("--warm-up", type=Duration(), help="Send at the first rate for this long before recording.")
@click.option(
    "--arrivals", type=click.Choice(["regular", "poisson"]), default="regular", show_default=True,
    help="Evenly spaced, or random as from independent users.",
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
    "--body",
    metavar="TEXT",
    help="The body of each request; @FILE reads it from a file, {n} is the request's number. A JSON object or array is sent as "
    "application/json, unless a header says otherwise.",
)
@click.option(
    "--requests",
    metavar="FILE",
    help="Send the requests of a file in turn: JSON Lines of method, url, headers, body, class, weight.",
)
@click.option(
    "--connections", type=click.IntRange(1, 100_000), metavar="N",
    help="Concurrent requests; 500 by default, or 64 threads for a plain function.",
)  # fmt: skip
@click.option(
    "--timeout", type=Duration(0.001, 3600), default="30s", show_default=True, help="The timeout of a request."
)
@click.option(
    "--scenario", metavar="FUNCTION",
    help="Play users in place of a rate: module:function or file.py:function, an async function of a client, which each user "
    "has for itself. It is called again when it returns.",
)  # fmt: skip
@click.option("--users", type=click.IntRange(1, 100_000), metavar="N", help="How many users --scenario has.")
@click.option("--find-max", is_flag=True, help="Find the highest rate that meets --p99 and --errors.")
@click.option(
    "--p99", multiple=True, callback=_durations, metavar="[CLASS=]DURATION",
    help="The threshold for the 99th percentile of response times: 200ms for all, urgent=50ms for a class; repeatable.",
)  # fmt: skip
@click.option(
    "--errors", multiple=True, callback=_shares, metavar="[CLASS=]FRACTION",
    help="The threshold for the fraction of failed requests: 1%, 0.01, urgent=0.1%; repeatable.",
)  # fmt: skip
@click.option(
    "--reach", callback=_share, metavar="FRACTION",
    help="The threshold for the fraction of the target rate that is sent: 99%, 0.99.",
)  # fmt: skip
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="Write the figures, for `bench compare`.")
@click.option(
    "--csv", type=click.Path(path_type=Path), metavar="FILE",
    help="Write a table of the load, its phases, classes and seconds.",
)  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with plots.")
@click.option(
    "--otlp", metavar="URL",
    help="Export the requests as OpenTelemetry metrics while they are sent, by OTLP over HTTP: http://localhost:4318, or 'env' for "
    "what OTEL_EXPORTER_OTLP_ENDPOINT says (extra otlp).",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
    help="Share the load among so many processes of this machine, and report the whole.",
)  # fmt: skip
@click.option(
    "--peers", metavar="URL",
    help="Share the load with other processes, coordinated through this Redis: redis://host:6379/0 (extra redis).",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The name of the shared load; 'default' if omitted.")
@click.option(
    "--expect", type=click.IntRange(2, 1000), metavar="N", help="The number of processes that share the load."
)
@click.option(
    "--uvloop/--no-uvloop", default=None,
    help="Run on uvloop (extra uvloop), or on asyncio's event loop. By default uvloop if installed, for a URL.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the tables.")
def bench(targets: tuple[str, ...], **options: Any) -> None:
    """Measure a service with an open load: requests start at their due times, whether or not earlier ones have ended (extra load).

    TARGET is a URL, or module:function or file.py:function, sync or async, or a context manager that yields one. In a URL and a
    body, {n} is the number of the request, and {class} the name of its class.

    Exit status: 0 measured, and --p99, --errors and --reach kept; 1 not kept, no rate held, nothing succeeded, or a part of a shared
    load is missing; 2 bad usage; 130 interrupted.
    """
    from ratelimited_executor.cli.bench.command import run_bench  # noqa: PLC0415  # aiohttp loads here
    from ratelimited_executor.cli.bench.inputs import uses_uvloop  # noqa: PLC0415  # other commands do without
    from ratelimited_executor.cli.bench.options import BenchOptions  # noqa: PLC0415  # other commands do without

    with errors_as_usage():
        if targets[0] in bench.commands:
            raise CommandError(f"{targets[0]} comes right after bench, before any option: bench {targets[0]} --help")
        if len(targets) > 1:
            raise CommandError(f"one TARGET is measured at a time, got {len(targets)}")
        given = BenchOptions(target=targets[0], **options)
        with asyncio.Runner(loop_factory=loop_factory(uses_uvloop(given))) as runner:
            status = run_bench(given, runner)
    sys.exit(status)


@bench.command()
@click.argument("before")
@click.argument("after")
def compare(before: str, after: str) -> None:
    """Show two measurements side by side.

    BEFORE and AFTER are files written by `bench --json`. A change is better or worse if chance is ruled out, assuming that
    requests are independent of one another, and if good and bad seconds do not explain it; otherwise it is unclear. Settings that differ are listed below the table.

    Exit status: 0 compared, even if something became worse; 2 bad usage, or a file cannot be read.
    """
    from ratelimited_executor.cli.bench.command import compare_files  # noqa: PLC0415  # aiohttp loads here

    with errors_as_usage():
        status = compare_files(before, after)
    sys.exit(status)
