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


# On one line each of a terminal of 80 columns.
for command, short_help in {
    bench: "Measure a service with an open load.",
    dashboard: "Serve a live page of all groups in Redis.",
    demo: "Watch a real server receive webhooks at a rate.",
    forecast: "Estimate the probability that work is done in time.",
    peers: "Show a group's shared limits, and its processes.",
    run: "Call a function with each line of a file, under a rate.",
    search: "Search an async function for faults that break it.",
    simulate: "Preview a policy: weeks of jobs in seconds.",
    slots: "Show who holds the slots of a group, and who waits.",
    sweep: "Simulate many settings, and name the cheapest.",
    tasks: "Show or repair a store of durable tasks.",
}.items():
    command.short_help = short_help
    cli.add_command(command)
