"""The environment in which figures were measured: machine, system, interpreter, packages."""

from __future__ import annotations

import datetime as dt
import gc
import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from bench.harness import ROOT
from ratelimited_executor.insight import kernel

__all__ = ["PACKAGES", "describe", "environment", "load_average"]

# The packages whose versions matter: ours, the loops, and those that ours is compared with.
PACKAGES = [
    "ratelimited-executor",
    "anyio",
    "uvloop",
    "apscheduler",
    "aiometer",
    "aiolimiter",
    "pyrate-limiter",
    "throttled-py",
    "limits",
    "apsw",
    "psycopg",
    "redis",
    "huey",
    "procrastinate",
    "pgqueuer",
    "arq",
    "taskiq",
    "taskiq-redis",
    "pydocket",
]


def environment(command: list[str]) -> dict[str, Any]:
    """Return the facts by name; JSON can hold all of them."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "bench", *command]),
        "commit": _commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": str(kernel),
        "python_options": {"optimize": sys.flags.optimize, "gil": not sysconfig.get_config_var("Py_GIL_DISABLED")},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "os": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_before": load_average(),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "gc": {"enabled": gc.isenabled(), "threshold": list(gc.get_threshold())},
    }


def describe(facts: dict[str, Any]) -> list[str]:
    """Write the facts as lines of text."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    loads = "/".join(f"{value:.2f}" for value in facts["load_before"]) or "unknown"
    after = "/".join(f"{value:.2f}" for value in facts.get("load_after", []))
    collector = f"gc {'on' if facts['gc']['enabled'] else 'off'} {tuple(facts['gc']['threshold'])}"
    return [
        f"{facts['command']}  ({facts['date']}, commit {facts['commit'] or 'unknown'})",
        f"{facts['python']}, kernel {facts['kernel']}, {packages}",
        f"{facts['os']}, {facts['cpu']}, {facts['cores']} cores, clocksource {facts['clocksource'] or 'unknown'}, {collector}",
        f"load before {loads}" + (f", after {after}" if after else ""),
    ]


def load_average() -> list[float]:
    """Return the load of 1, 5 and 15 minutes; nothing on a system that does not keep it."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the checkout's commit, with a plus sign if files differ from it; None without version control."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603  # a fixed command
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
