"""Lets faults happen to all families of limits at once, on real servers, and prints what the resource has counted.

    python -m tests.peers.battery                                # every fault on a Redis and on a Valkey: some forty minutes
    python -m tests.peers.battery --fault kill --server redis    # one fault on one server
    python -m tests.peers.battery --list                         # the faults

The command fails if a law was broken, a task lost, or a family or a process stands still.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..binaries import KINDS, find_binary, version_of
from ..processes import ServerError
from .backends import AUTHORITIES, topologies_of
from .clock import NoShimError
from .families import FAMILIES
from .faults import FAULTS
from .run import Outcome, run

GOAL = 2.0  # seconds to the recovery of rates; that of slots may take a second beyond their lease
SLOTS = ("pool", "slots", "key_concurrency")
TICKETS = tuple(name for name in FAMILIES if name not in (*SLOTS, "pace"))


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.peers.battery",
        description=(__doc__ or "").strip().splitlines()[0],
        epilog="A server is redis, valkey, debian (the Redis of Debian's packages), or the path of a program.",
    )
    parser.add_argument("--fault", action="append", choices=FAULTS, metavar="NAME", help="repeatable; all by default")
    parser.add_argument(
        "--server", action="append", metavar="KIND", help=f"repeatable; {' and '.join(KINDS)} by default"
    )
    parser.add_argument(
        "--family", action="append", choices=FAMILIES, metavar="NAME", help="repeatable; all by default"
    )
    parser.add_argument("--processes", type=int, default=4, help="at first; 4 by default")
    parser.add_argument("--setting", action="append", default=["lease=2"], metavar="NAME=VALUE", help="of the peers")
    parser.add_argument("--watch", type=float, default=12.0, help="seconds after the fault, at most; 12 by default")
    parser.add_argument("--log", default="", metavar="LEVEL", help="what the processes log, such as WARNING, to stderr")
    parser.add_argument("--list", action="store_true", help="print the faults, and end")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if options.list:
        console.print(_faults())
        return 0
    faults, servers = options.fault or list(FAULTS), options.server or list(KINDS)
    settings = {name: ast.literal_eval(value) for name, _, value in (each.partition("=") for each in options.setting)}
    outcomes: list[Outcome] = []
    failures: list[str] = []
    for server in list(servers):
        try:
            program = "" if server in AUTHORITIES else _program(server)
        except FileNotFoundError as error:
            console.print(f"{server} left out: {error}")
            servers.remove(server)
            continue
        console.print(f"[bold]{server}[/bold]: {program}; {options.processes} processes, {settings}")
    with _progress(console, len(faults) * len(servers)) as progress:
        for server in servers:
            for name in faults:
                if FAULTS[name].topology not in topologies_of(server):
                    continue
                try:
                    outcome = run(
                        name, server, families=options.family or list(FAMILIES), processes=options.processes,
                        settings=settings, most=options.watch, log=options.log,
                        tell=lambda text, part, now=f"{name} ({server})": progress(f"{now}: {text}", part),
                    )  # fmt: skip
                except NoShimError as error:
                    console.print(f"{name} ({server}) skipped: {error}")
                    continue
                except (ServerError, OSError, RuntimeError) as error:
                    failures.append(f"{name} ({server})")
                    console.print(f"[red]{name} ({server}) could not be run: {escape(str(error))}[/red]")
                    continue
                outcomes.append(outcome)
                console.print(_table(outcome))
                for each in outcome.broken:
                    console.print(f"[red]   BROKEN: {escape(each)}[/red]")
    if len(outcomes) > 1:
        console.print(_summary(outcomes, float(settings.get("lease", 10))))
    broken = [f"{each.fault} ({each.server}): {'; '.join(each.broken)}" for each in outcomes if each.broken]
    for each in [*broken, *failures]:
        console.print(f"[red]{escape(each)}[/red]")
    console.print(f"{len(outcomes)} runs, {len(broken)} with something broken, {len(failures)} that could not be run")
    return 1 if broken or failures or not outcomes else 0


@contextmanager
def _progress(console: Console, total: int) -> Iterator[object]:
    """Yield a function that shows what goes on: a bar in a terminal, and otherwise nothing."""
    columns = [BarColumn(), TimeElapsedColumn(), TextColumn("{task.completed:.1f}/{task.total} {task.description}")]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        done = 0.0

        def show(text: str, part: float) -> None:
            nonlocal done
            bar.update(task, description=text, completed=int(done) + part)
            if part == 1.0:
                done = int(done) + 1

        yield show


def _program(server: str) -> str:
    """Return kind, version and path of a server's program."""
    program = find_binary(server)
    return f"{' '.join(version_of(program) or ())}, {program}"


def _faults() -> Table:
    table = Table("fault", "needs", "what happens", box=None)
    for each in FAULTS.values():
        table.add_row(each.name, each.topology, each.text)
    return table


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _table(outcome: Outcome) -> Table:
    """Return a line for each family."""
    notes = f"; {', '.join(outcome.notes)}" if outcome.notes else ""
    title = f"{outcome.fault} ({outcome.server}): {FAULTS[outcome.fault].text} {outcome.took:.1f} s{notes}"
    table = Table(
        title=escape(f"{title}; load {os.getloadavg()[0]:.1f}"), title_justify="left", box=None, title_style="bold"
    )
    for name in ("family", "before/s", "after/s", "first s", "recovery s", "lost", "most, of what is allowed"):
        table.add_column(name, justify="left" if name in ("family", "most, of what is allowed") else "right")
    for each in outcome.accounts:
        recovery = "spent" if each.is_spent and each.recovery is None else _seconds(each.recovery)
        laws = ", ".join(f"[red]{found}[/red]" if found.is_broken else str(found) for found in each.laws)
        table.add_row(
            each.name,
            f"{each.before:.1f}",
            f"{each.after:.1f}",
            _seconds(each.first),
            recovery,
            str(each.unstarted),
            laws,
        )
    return table


def _summary(outcomes: list[Outcome], lease: float) -> Table:
    """Return a line for each run: the slowest recovery of each kind of limit, beside its goal."""
    goals = {"pace": (("pace",), GOAL), "tickets": (TICKETS, GOAL), "slots": (SLOTS, lease + 1)}
    title = f"slowest recovery in seconds; goals: {', '.join(f'{name} {goal:g}' for name, (_, goal) in goals.items())}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for name in ("fault", "server", "took", *goals, "broken"):
        table.add_column(name, justify="left" if name in ("fault", "server", "broken") else "right")
    for each in outcomes:
        times = [(each.recovery_of(*names), goal) for names, goal in goals.values()]
        texts = [
            _seconds(time) if time is not None and time <= goal else f"[yellow]{_seconds(time)}[/yellow]"
            for time, goal in times
        ]
        broken = f"[red]{len(each.broken)}[/red]" if each.broken else "0"
        table.add_row(each.fault, each.server, f"{each.took:.1f}", *texts, broken)
    return table


if __name__ == "__main__":
    begin = time.monotonic()
    code = main()
    print(f"{time.monotonic() - begin:.0f} s")
    sys.exit(code)
