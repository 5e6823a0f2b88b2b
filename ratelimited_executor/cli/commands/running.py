"""``run`` and ``demo``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from ratelimited_executor.cli.commands.arguments import Duration, RateText, errors_as_usage, loop_factory
from ratelimited_executor.cli.run.command import run as run_job
from ratelimited_executor.cli.run.options import RunOptions, check_threads
from ratelimited_executor.cli.targets import load_target

__all__ = ["demo", "run"]


@click.command()
@click.argument("target")
@click.argument("input", default="-")
@click.option(
    "--jsonl", is_flag=True, help="Each line is one JSON value, passed as the argument. Blank lines are skipped."
)
@click.option(
    "--rate", type=RateText(), default="inf", show_default="no limit", help="Starts allowed: 200, 100/s, 5/min."
)
@click.option("--over", type=Duration(), help="Spread the starts evenly over this span: 90, 10m, 1h30m.")
@click.option("--count", type=click.IntRange(min=0), help="The number of lines; --over needs it for a stream.")
@click.option(
    "--at-field", metavar="FIELD", help="The field with a line's due time: epoch seconds, or ISO 8601 with a zone."
)
@click.option(
    "--priority-field", metavar="FIELD", help="The field with a line's priority, an integer; larger is more important."
)
@click.option(
    "--look-ahead", type=click.IntRange(min=1), default=100_000, show_default=True,
    help="The number of lines read ahead and sorted by due time and priority.",
)  # fmt: skip
@click.option(
    "--on-time", is_flag=True, help="With --at-field: start each line at its due time, not spread over its second."
)
@click.option(
    "--key-field", metavar="FIELD", help="The field with a line's key, a string or a number: a tenant, an account."
)
@click.option("--fair", is_flag=True, help="With --key-field: give each key a fair share within a priority.")
@click.option("--key-rate", type=RateText(), metavar="RATE", help="Starts allowed for each key.")
@click.option("--key-concurrency", type=click.IntRange(min=1), metavar="N", help="Concurrent calls for each key.")
@click.option("--cost-field", metavar="FIELD", help="The field with a line's cost in permits, an integer; 1 if absent.")
@click.option(
    "--retry", type=click.IntRange(min=1), metavar="N",
    help="Retry a failed line, up to N attempts in all, with growing pauses; each attempt takes a permit.",
)  # fmt: skip
@click.option("--expires", type=Duration(), help="Do not start a line later than this after its due time.")
@click.option("--concurrency", type=click.IntRange(min=1), default=10_000, show_default=True, help="Concurrent calls.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Run a blocking plain function in N threads.")
@click.option("--results", metavar="FILE", help="Write the result of each line, as JSON Lines; - is standard output.")
@click.option("--append", is_flag=True, help="Append to a --results file that is not empty.")
@click.option(
    "--remaining", metavar="FILE", help="Where to write the lines that were not started when the run was stopped."
)
@click.option("--uvloop", is_flag=True, help="Run on uvloop (extra uvloop).")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the summary.")
def run(target: str, uvloop: bool, **options: Any) -> None:
    """Call TARGET with each line of INPUT (a file, or - for standard input).

    TARGET is module:function or file.py:function, sync or async; or a context manager, or a function that returns one. It is
    entered before the first call and left after the last one, and its value is called.

    Progress and the summary go to standard error; standard output belongs to the target.

    The first Ctrl-C or SIGTERM stops starting, lets the calls under way finish, and keeps the rest in --remaining, which
    is written only then. A second one stops at once.
    """
    with errors_as_usage():
        factory = loop_factory(uvloop)
        function = load_target(target)
        check_threads(options["threads"], function)
        with asyncio.Runner(loop_factory=factory) as runner:
            status = run_job(RunOptions(target=function, **options), runner)
    sys.exit(status)


@click.command()
@click.option(
    "--seconds",
    type=Duration(4, 120),
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

    with errors_as_usage():
        status = asyncio.run(demonstrate(seconds=seconds, rate=rate, is_quiet=quiet))
    sys.exit(status)
