"""``bench`` beside other tools that load a server: evenness and cost of requests, and the p99 after a freeze.

All tools send to the same server on the same machine, in turns, each from a process of its own. The server notes when
it has read each request; CPU is that of the tool's process, with its start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import ROOT, Figure, Table
from bench.load.arrivals import evenness_of, frozen_p99, held_rate
from bench.load.tools import OURS, TOOLS, Load
from ratelimited_executor.load.figures import Measurement
from ratelimited_executor.load.verdicts import why_tool_was_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.harness import Options
    from bench.load.tools import Tool

__all__ = ["DESCRIPTION", "NAME", "run"]

NAME = "load"
DESCRIPTION = "bench beside h2load, httperf, hey, autocannon, locust and wrk: evenness, CPU, and a server that freezes"

RATES = (500, 2_000)
SECONDS = 10.0
CONNECTIONS = 50
FREEZE_RATE = 500
FREEZE_CONNECTIONS = (10, 50)
FREEZE_AFTER, FREEZE_SECONDS = 3.0, 2.0
ROUNDS = 3
_GRACE_SECONDS = 60.0  # in addition to the load, for a tool to start and to end
COLUMNS = ["sent a second", "even gaps", "variation of gaps", "most in 10 ms", "CPU a request", "p99 told"]
LIMIT_RATES = (2_500, 5_000, 10_000, 15_000, 20_000)
LIMIT_SECONDS = 5.0
LIMIT_CONNECTIONS = 100
LIMIT_COLUMNS = ["CPU a request", "our lateness p99", "requests without errors", "not the limit"]
FREEZE_COLUMNS = ["requests", "p99 told", "of the truth"]


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one run of a tool.

    Attributes:
        times: when the server read the requests.
        cpu_seconds: CPU time of the tool, user and system.
        p99: what the tool reports, in seconds; None if it reports none.
    """

    times: Sequence[float]
    cpu_seconds: float
    p99: float | None


def run(options: Options) -> list[Table]:
    """Measure with whatever is installed."""
    tools = [tool for tool in TOOLS if tool.is_installed]
    notes = [f"{tool.name}: skipped, as it is not installed" for tool in TOOLS if tool not in tools]
    for line in notes:
        options.note(line)
    versions = "; ".join(tool.told_version() for tool in tools if tool.program)
    rates = (200,) if options.quick else RATES
    tables = [_rate_table(options, [tool for tool in tools if tool.has_rate], rate) for rate in rates]
    tables += [_freeze_table(options, tools, connections) for connections in FREEZE_CONNECTIONS]
    tables.append(_limit_table(options))
    tables[0].notes += [*notes, *([versions] if versions else [])]
    return tables


def _rate_table(options: Options, tools: Sequence[Tool], rate: int) -> Table:
    seconds = options.seconds(SECONDS, 1.0)
    rounds = options.in_turns(
        {tool.name: partial(_round, tool, rate, seconds, CONNECTIONS) for tool in tools},
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label=f"{rate:,}/s",
    )
    table = Table(f"{rate:,} requests a second for {seconds:g} s over {CONNECTIONS} connections", COLUMNS)
    for name, results in rounds.items():
        evenness = [evenness_of(each.times, rate) for each in results]
        table.add(
            name,
            {
                "sent a second": Figure(
                    [held_rate(each.times, seconds) for each in results], "/s", smaller_is_better=None
                ),
                "even gaps": Figure([100 * each.even_share for each in evenness], "%", smaller_is_better=False),
                "variation of gaps": Figure([each.variation for each in evenness], ""),
                "most in 10 ms": Figure([each.crowding for each in evenness], "x even"),
                "CPU a request": Figure([1e6 * each.cpu_seconds / len(each.times) for each in results], "us"),
                "p99 told": _p99_cell(results),
            },
        )
    _check_ours(table, rounds, round(rate * seconds))
    table.notes.append(
        "sent a second: until the end of the load, counted from the first request, what came later left out; "
        "even gaps: from half of 1 / rate to one and a half; CPU with the start of the tool"
    )
    return table


def _freeze_table(options: Options, tools: Sequence[Tool], connections: int) -> Table:
    seconds, after, frozen = (
        options.seconds(full, quick) for full, quick in ((SECONDS, 2.0), (FREEZE_AFTER, 0.5), (FREEZE_SECONDS, 0.4))
    )
    rate = 200 if options.quick else FREEZE_RATE
    truth = frozen_p99(seconds, frozen)
    rounds = options.in_turns(
        {tool.name: partial(_round, tool, rate, seconds, connections, (after, frozen)) for tool in tools},
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label=f"freeze, {connections} connections",
    )
    table = Table(
        f"p99 of {rate:,}/s for {seconds:g} s over {connections} connections, with {frozen:g} s of standstill",
        FREEZE_COLUMNS,
    )
    table.add("the truth, by hand", {"requests": f"{rate * seconds:,.0f}", "p99 told": f"{1000 * truth:,.0f} ms"})
    for name, results in rounds.items():
        cells: dict[str, Figure | str] = {
            "requests": Figure([len(each.times) for each in results], "", smaller_is_better=None),
            "p99 told": _p99_cell(results),
        }
        if told := [100 * each.p99 / truth for each in results if each.p99 is not None]:
            cells["of the truth"] = Figure(told, "%", smaller_is_better=None)
        table.add(name, cells)
    _check_ours(table, rounds, round(rate * seconds))
    table.notes.append("the truth: of all that users would have sent at this rate, whoever was waiting for an answer")
    return table


def _limit_table(options: Options) -> Table:
    """Measure up to which rate ours says of itself that it was not the limit."""
    seconds = options.seconds(LIMIT_SECONDS, 1.0)
    tools = [tool for tool in OURS if tool.is_installed]
    rates = (200,) if options.quick else LIMIT_RATES
    rounds = options.in_turns(
        {f"{tool.name}, {rate:,}/s": partial(_limit_round, tool, rate, seconds) for rate in rates for tool in tools},
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="limit",
    )
    table = Table(f"what ours says of itself, for {seconds:g} s over {LIMIT_CONNECTIONS} connections", LIMIT_COLUMNS)
    for name, results in rounds.items():
        figures = [each.figures for each in results]
        table.add(
            name,
            {
                "CPU a request": Figure([1e6 * _cpu_seconds(each) / each.figures.count for each in results], "us"),
                "our lateness p99": Figure([1e3 * each.lateness.quantile(0.99) for each in figures], "ms"),
                "requests without errors": Figure(
                    [100 * (1 - each.error_share) for each in figures], "%", smaller_is_better=False
                ),
                "not the limit": f"{sum(why_tool_was_limit(each) is None for each in figures)} of {len(figures)}",
            },
        )
    table.notes.append("CPU a request: of the load alone, without the start of the tool, of all processes together")
    return table


def _cpu_seconds(measurement: Measurement) -> float:
    figures = measurement.figures
    shares = [each.cpu_share for each in measurement.participants] or [figures.cpu_share]
    return sum(shares) * max(figures.seconds, figures.wall_seconds)


def _limit_round(tool: Tool, rate: float, seconds: float) -> Measurement:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _server(folder / "times", None) as port:
            load = Load(port=port, rate=rate, seconds=seconds, connections=LIMIT_CONNECTIONS, folder=folder)
            _run(tool.command(load), folder, timeout=2 * seconds + _GRACE_SECONDS)
        return Measurement.from_json(json.loads((folder / "ours.json").read_text(encoding="utf-8")))


def _check_ours(table: Table, rounds: Mapping[str, Sequence[Round]], count: int) -> None:
    """Check that each of our requests has reached the server, once."""
    for name, results in rounds.items():
        if name.startswith("ours"):
            table.check(f"requests lost, {name}", sum(abs(count - len(each.times)) for each in results))


def _p99_cell(results: Sequence[Round]) -> Figure | str:
    told = [1000 * each.p99 for each in results if each.p99 is not None]
    return Figure(told, "ms", smaller_is_better=None) if told else "not told"


def _round(
    tool: Tool, rate: float, seconds: float, connections: int, freeze: tuple[float, float] | None = None
) -> Round:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _server(folder / "times", freeze) as port:
            load = Load(port=port, rate=rate, seconds=seconds, connections=connections, folder=folder)
            cpu_seconds = _run(tool.command(load), folder, timeout=seconds + _GRACE_SECONDS)
        times = array("d")
        times.frombytes((folder / "times").read_bytes())
        printed = (folder / "printed").read_text(encoding="utf-8", errors="replace")
        return Round(times=times, cpu_seconds=cpu_seconds, p99=tool.p99(printed, load))


@contextmanager
def _server(times: Path, freeze: tuple[float, float] | None) -> Iterator[int]:
    """Run the server, and provide its port."""
    command = [sys.executable, "-m", "bench.load.server", str(times), *map(str, freeze or ())]
    with subprocess.Popen(  # noqa: S603  # our own server
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=_GRACE_SECONDS)  # this ends its standard input


def _run(command: Sequence[str], folder: Path, *, timeout: float) -> float:
    """Run a tool to its end; return the CPU seconds of its process and of the processes that it waited for."""
    with (folder / "printed").open("w") as out, (folder / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=folder, env=_environment())  # noqa: S603  # a tool of the list
    until = time.monotonic() + timeout
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > until:
            process.kill()
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode < 0:
        raise RuntimeError(f"{command[0]} was killed after {timeout:g} s:\n{(folder / 'errors').read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
