"""The tools: how each is given a rate, and where it reports its 99th percentile.

Each tool sends GET requests from one process, over as many kept connections as the section says. A tool that knows only
the rate of one connection is given that part of the rate.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness import has_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["OURS", "TOOLS", "Load", "Tool"]

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}

_LOCUSTFILE = """
from locust import FastHttpUser, constant_throughput, task

class One(FastHttpUser):
    wait_time = constant_throughput({rate})

    @task
    def get(self):
        self.client.get("/")
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What a tool has to send.

    Attributes:
        port: the server's port on the loopback interface.
        rate: requests a second.
        seconds: how long it sends.
        connections: how many connections it keeps.
        folder: a folder for files.
    """

    port: int
    rate: float
    seconds: float
    connections: int
    folder: Path

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def each(self) -> float:
        """The rate of one connection."""
        return self.rate / self.connections

    @property
    def count(self) -> int:
        """How many requests the load has."""
        return round(self.rate * self.seconds)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool that is measured.

    Attributes:
        name: the name of the row.
        program: the program on the path; empty for ours.
        command: makes the command line.
        p99: reads the percentile in seconds from what was printed, or from files; None if the tool reports none.
        version: the option that prints its version; empty if it has none.
        has_rate: False for a tool that sends as fast as answers come.
    """

    name: str
    program: str
    command: Callable[[Load], list[str]]
    p99: Callable[[str, Load], float | None]
    version: str = "--version"
    has_rate: bool = True

    @property
    def is_installed(self) -> bool:
        """Return whether the tool can be run."""
        return shutil.which(self.program) is not None if self.program else has_module("hdrh")

    def told_version(self) -> str:
        """Return the name of the tool, with the version that it prints."""
        if not self.program or not self.version:
            return self.name
        done = subprocess.run([self.program, self.version], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603  # a tool of the list below
        lines = (done.stdout + done.stderr).strip().splitlines()
        return f"{self.name}: {lines[0].split(' from ')[0].split(' Copyright')[0]}" if lines else self.name


def _ours(*more: str) -> Callable[[Load], list[str]]:
    def command(load: Load) -> list[str]:
        options = ["--rate", f"{load.rate:g}", "--for", f"{load.seconds:g}s", "--connections", str(load.connections)]
        report = ["--json", str(load.folder / "ours.json"), "--quiet", *more]
        return [sys.executable, "-m", "ratelimited_executor", "bench", load.url, *options, *report]

    return command


def _ours_p99(_: str, load: Load) -> float:
    figures = json.loads((load.folder / "ours.json").read_text(encoding="utf-8"))["figures"]
    return float(figures["response_times"]["p99"])


def _wrk_p99(printed: str, _: Load) -> float | None:
    found = re.search(r"^\s*99%\s+([0-9.]+)(us|ms|s|m)\s*$", printed, re.MULTILINE)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def _hey_p99(printed: str, _: Load) -> float | None:
    found = re.search(r"^\s*99% in ([0-9.]+) secs", printed, re.MULTILINE)
    return None if found is None else float(found[1])


def _autocannon_p99(printed: str, _: Load) -> float:
    return float(json.loads(printed.strip().splitlines()[-1])["latency"]["p99"]) / 1000


def _h2load_p99(_: str, load: Load) -> float | None:
    lines = (load.folder / "h2load.tsv").read_text(encoding="utf-8").splitlines()
    spans = sorted(int(line.split("\t")[2]) for line in lines)
    return spans[(99 * len(spans) - 1) // 100] / 1e6 if spans else None


def _locust(load: Load) -> list[str]:
    path = load.folder / "locustfile.py"
    path.write_text(_LOCUSTFILE.format(rate=load.each), encoding="utf-8")
    users = [
        "--users",
        str(load.connections),
        "--spawn-rate",
        str(load.connections),
        "--run-time",
        f"{load.seconds:g}s",
    ]
    output = ["--csv", str(load.folder / "locust"), "--only-summary", "--loglevel", "ERROR"]
    return ["locust", "-f", str(path), "--headless", "--host", load.url.rstrip("/"), *users, *output]


def _locust_p99(_: str, load: Load) -> float | None:
    with (load.folder / "locust_stats.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    return None if row["99%"] == "N/A" else float(row["99%"]) / 1000


def _by(template: str) -> Callable[[Load], list[str]]:
    """Return a function that fills in a template of a command line."""

    return lambda load: [word.format(load=load) for word in template.split()]


_H2LOAD = "h2load --h1 -c {load.connections} -D {load.seconds:g} --rps {load.each:g} --log-file {load.folder}/h2load.tsv {load.url}"
_HTTPERF = "httperf --hog --server 127.0.0.1 --port {load.port} --uri / --rate {load.rate:g} --num-conns {load.count} --timeout 30"
_HEY = "hey -z {load.seconds:g}s -c {load.connections} -q {load.each:g} {load.url}"
_AUTOCANNON = "autocannon -c {load.connections} -d {load.seconds:g} -R {load.rate:g} -j {load.url}"
_WRK = "wrk -t1 -c{load.connections} -d{load.seconds:g}s --latency {load.url}"

OURS = [
    Tool("ours", "", _ours(), _ours_p99),
    Tool("ours, asyncio", "", _ours("--no-uvloop"), _ours_p99),
    Tool("ours, 2 processes", "", _ours("--processes", "2"), _ours_p99),
]
TOOLS = [
    *OURS[:2],
    Tool("h2load", "h2load", _by(_H2LOAD), _h2load_p99),
    Tool("httperf", "httperf", _by(_HTTPERF), lambda _printed, _load: None),
    Tool("hey", "hey", _by(_HEY), _hey_p99, version=""),
    Tool("autocannon", "autocannon", _by(_AUTOCANNON), _autocannon_p99),
    Tool("locust", "locust", _locust, _locust_p99),
    Tool("wrk", "wrk", _by(_WRK), _wrk_p99, version="-v", has_rate=False),
]
