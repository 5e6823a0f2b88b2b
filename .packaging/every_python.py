"""Runs tests once on each Python that it is given, with both kernels, and prints how many passed, failed and were skipped.

Each Python gets a copy of the project and a new virtual environment, so neither the checkout nor a Python is changed:

    python3 .packaging/every_python.py python3.12 /opt/python3.14/bin/python3 -- tests/kernel -m "not slow"

Where packages of an extra cannot be installed, the others are, and a line names those that are missing. It needs no
package itself, and runs on Python 3.11 or later.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK = ["tests/core", "tests/kernel", "tests/runtime", "-m", "not slow"]
PURE = "RATELIMITED_EXECUTOR_PURE"
BUILD_SECONDS_MAX = 300  # for one package of an extra
COLUMNS = ("passed", "failed", "skipped")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "site", "__pycache__", ".*_cache", "*.so", "*.pyd"
)

# What the new environment tells of itself, in lines; in "-P" mode, so that nothing beside it is imported.
VERSION = """
import platform, sys, sysconfig
free = sysconfig.get_config_var("Py_GIL_DISABLED") or 0
print(platform.python_implementation(), platform.python_version() + ("t" if free else ""))
print(int(sys.version_info >= (3, 11)), int(sys.implementation.name == "cpython" and not free))
print(sys.executable)
"""
KERNEL = "from ratelimited_executor import kernel; print(kernel)"
REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

NAME, seen = "ratelimited-executor", set()
def walk(extra):
    if extra in seen:
        return
    seen.add(extra)
    for each in map(Requirement, requires(NAME)):
        if each.marker is None or not each.marker.evaluate({"extra": extra}):
            continue
        if each.name == NAME:
            for further in each.extras:
                walk(further)
        else:
            each.marker = None
            print(each)
walk(sys.argv[1])
"""


@dataclass
class Row:
    """A line of the table.

    Attributes:
        python: the interpreter's name and version.
        kernel: which kernel ran.
        counts: what pytest counted, by its own words.
        seconds: how long the tests took.
        remark: why there are no counts, or where the output is.
        is_bad: True if something failed.
    """

    python: str
    kernel: str
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    remark: str = ""
    is_bad: bool = False

    def cells(self) -> list[str]:
        """Return the row as texts."""
        counts = [str(self.counts.get(name, 0)) if self.counts else "-" for name in COLUMNS]
        return [self.python, self.kernel, *counts, f"{self.seconds:.0f} s" if self.seconds else "-", self.remark]


def main() -> int:
    """Run the tests as the command line says; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="an interpreter: a path, or a name on PATH")
    parser.add_argument("--extra", default="dev", help="what to install: dev (as by default), or test for everything")
    parser.add_argument("--kernel", choices=("compiled", "pure"), help="one kernel, not both")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where copies, environments and outputs are left")
    own, tests = sys.argv[1:], QUICK
    if "--" in own:
        own, tests = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.tests = tests or ["tests"]
    with tempfile.TemporaryDirectory(prefix="every-python-") as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        rows = [row for python in options.pythons for row in _rows(python, folder, options)]
    print()
    _print_table([["Python", "kernel", *COLUMNS, "time", ""], *(row.cells() for row in rows)])
    return int(any(row.is_bad for row in rows))


def _rows(python: str, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Run the tests on one Python."""
    try:
        name, flags, python = _said([python, "-c", VERSION]).splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"status {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error.strerror
        return [Row(python, "-", remark=f"does not run: {why}", is_bad=True)]
    is_known, has_use = (flag == "1" for flag in flags.split())
    if not is_known:
        return [Row(name, "-", remark="older than Python 3.11", is_bad=True)]
    home = folder / re.sub(r"[^\w.]+", "-", name).lower()
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(ROOT, home / "project", ignore=NOT_COPIED, symlinks=True)
    try:
        inside = _install(python, name, home, options)
    except subprocess.CalledProcessError:
        return [Row(name, "-", remark=f"cannot be installed: {_output(home / 'install.log', options)}", is_bad=True)]
    kernels = [options.kernel] if options.kernel else ["compiled", "pure"]
    rows = [_row(name, inside, home, kernel, options) for kernel in kernels]
    for row in rows:
        row.is_bad = row.is_bad and (has_use or bool(row.seconds))  # no extension where none is made is no fault
    return rows


def _install(python: str, name: str, home: Path, options: argparse.Namespace) -> str:
    """Make an environment with the project and an extra, or as much of it as can be had; return its interpreter."""
    _say(f"{name}: installing the extra {options.extra}")
    environment = _environment(options.kernel == "pure")  # then nothing is compiled
    _logged([python, "-m", "venv", str(home / "venv")], home, environment)
    inside = str(home / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    pip = [inside, "-m", "pip", "install", "--disable-pip-version-check", "--prefer-binary"]
    try:
        _logged([*pip, "-e", f".[{options.extra}]"], home, environment)
    except subprocess.CalledProcessError:
        _logged([*pip, "-e", ".[dev]"], home, environment)
        missing = []
        for requirement in _said([inside, "-P", "-c", REQUIREMENTS, options.extra]).splitlines():
            try:  # what has no wheel for this Python is compiled, but not for an hour
                _logged([*pip, requirement], home, environment, timeout=BUILD_SECONDS_MAX)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
                missing.append(re.split(r"[^\w.-]", requirement)[0])
        _say(f"{name}: not to be had: {', '.join(missing)}")
    return inside


def _row(name: str, inside: str, home: Path, kernel: str, options: argparse.Namespace) -> Row:
    """Run the tests on one Python with one kernel."""
    environment = _environment(kernel == "pure")
    if (
        kernel != "pure"
        and (found := _said([inside, "-c", KERNEL], home / "project", environment).strip()) != "compiled"
    ):
        return Row(name, kernel, remark=f"not run: {found}", is_bad=True)
    _say(f"{name}, {kernel} kernel: {' '.join(options.tests)}")
    log = home / f"{kernel}.log"
    begin = time.monotonic()
    with log.open("wb") as output:
        run = subprocess.run(  # noqa: S603  # pytest, of the environment made above
            [inside, "-m", "pytest", "-q", *options.tests], cwd=home / "project", env=environment,
            stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    row = Row(name, kernel, seconds=time.monotonic() - begin, is_bad=run.returncode != 0)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
    row.counts = _counts(lines[-1])
    if row.is_bad:
        print(*(line for line in lines if re.match(r"(FAILED|ERROR) \S+\.py", line)), sep="\n", flush=True)
        row.remark = _output(log, options)
    return row


def _counts(line: str) -> dict[str, int]:
    """Return what the last line of pytest says; nothing if it is not that line, as after a crash."""
    counts = {word.removesuffix("s"): int(count) for count, word in re.findall(r"(\d+) (\w+)", line)}
    if " in " not in line or not counts:
        return {}
    return counts | {"failed": counts.get("failed", 0) + counts.get("error", 0)}


def _output(log: Path, options: argparse.Namespace) -> str:
    """Return where an output is; if it will be gone, print its end."""
    if options.keep:
        return str(log)
    print(*log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:], sep="\n", flush=True)
    return "--keep FOLDER leaves the whole output there"


def _environment(is_pure: bool) -> dict[str, str]:
    """Return the environment in which a kernel is chosen here, and nothing else of this process."""
    kept = {key: value for key, value in os.environ.items() if key not in (PURE, "PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {PURE: "1"} if is_pure else kept


def _logged(command: list[str], home: Path, environment: dict[str, str], *, timeout: float | None = None) -> None:
    """Run a command in a copy of the project, and append what it prints to a file."""
    with (home / "install.log").open("ab") as output:
        subprocess.run(  # noqa: S603  # pip and venv of the interpreter that was given
            command,
            cwd=home / "project",
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=timeout,
        )


def _said(command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command, and return what it printed."""
    run = subprocess.run(  # noqa: S603  # the interpreter that was given
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return run.stdout


def _say(text: str) -> None:
    print(f"==> {text}", flush=True)


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
