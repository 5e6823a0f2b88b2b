"""The parser: options, their help, their own checks; no work.

A command loads what it needs when it is called, so that no command waits for the libraries of another.
"""

from __future__ import annotations

import click

from ratelimited_executor import kernel
from ratelimited_executor.cli.commands.measuring import bench
from ratelimited_executor.cli.commands.operating import dashboard, peers, slots, tasks
from ratelimited_executor.cli.commands.running import demo, run
from ratelimited_executor.cli.commands.simulating import forecast, search, simulate, sweep

__all__ = ["cli"]


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


for command in (bench, dashboard, demo, forecast, peers, run, search, simulate, slots, sweep, tasks):
    cli.add_command(command)
