"""A working directory with targets of every kind, and ways to run the command line in it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratelimited_executor.cli.commands import cli

TARGETS = """
import asyncio, sys, threading, time

calls = []
most_at_once = at_once = 0
lock = threading.Lock()

def note(line):
    calls.append(line)
    return line

async def note_async(line):
    calls.append(line)
    await asyncio.sleep(0)
    return line

def fail_on_threes(line):
    if str(line).endswith("3"):
        raise ValueError(f"no threes: {line}")

def leave(line):
    if line == "2":
        sys.exit(7)
    return line

async def leave_later(line):
    await asyncio.sleep(0)
    if line == "2":
        raise KeyboardInterrupt
    return line

async def give_up(line):
    raise asyncio.CancelledError

async def nap(line):
    await asyncio.sleep(0.05)
    return line

def block(line):
    global at_once, most_at_once
    with lock:
        at_once += 1
        most_at_once = max(most_at_once, at_once)
    time.sleep(0.02)
    with lock:
        at_once -= 1
    return threading.current_thread() is threading.main_thread()

def append(line):
    with open("done.txt", "a") as file:
        file.write(f"{line}\\n")

async def append_and_hang(line):
    append(line)
    await asyncio.sleep(3600)

def print_line(line):
    print(line)

def append_and_hang_in_thread(line):
    append(line)
    time.sleep(3600)
"""

_numbers = itertools.count()


@dataclass
class Workplace:
    """A directory with a module of targets.

    Attributes:
        path: the directory, which is the current one.
        module: the name of the targets' module, unique for each test.
    """

    path: Path
    module: str

    def write(self, name: str, content: str | bytes) -> str:
        """Write a file, and return its name."""
        (self.path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def lines(self, count: int, name: str = "in.txt") -> str:
        """Write the numbers 1 to ``count``, one a line."""
        return self.write(name, "".join(f"{number}\n" for number in range(1, count + 1)))

    def text(self, name: str) -> str:
        """Return what a file holds."""
        return (self.path / name).read_text()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a results file."""
        return [json.loads(line) for line in self.text(name).splitlines()]

    def target(self, name: str) -> str:
        """Return a target as written on the command line."""
        return f"{self.module}:{name}"

    def done(self) -> list[str]:
        """Return the lines that the target ``append`` was called with, in this process or another."""
        path = self.path / "done.txt"
        return path.read_text().splitlines() if path.exists() else []

    def seen(self, name: str) -> Any:
        """Return a variable of the targets' module, after a run in this process."""
        return getattr(sys.modules[self.module], name)

    def run(self, target: str, *arguments: str) -> Result:
        """Run the subcommand ``run`` in this process."""
        return CliRunner().invoke(cli, ["run", self.target(target), *arguments])

    def pipe(self, content: str, target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the subcommand ``run`` in a process of its own, with ``content`` on its standard input."""
        command = [sys.executable, "-m", "ratelimited_executor", "run", self.target(target), *arguments]
        return subprocess.run(command, cwd=self.path, input=content, capture_output=True, text=True, timeout=60)

    def start(self, target: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start the subcommand ``run`` in a process of its own."""
        command = [sys.executable, "-m", "ratelimited_executor", "run", self.target(target), *arguments]
        return subprocess.Popen(command, cwd=self.path, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Yield a workplace, and restore imports, paths and signal handlers afterwards."""
    module = f"cli_targets_{os.getpid()}_{next(_numbers)}"
    (tmp_path / f"{module}.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield Workplace(tmp_path, module)
    sys.modules.pop(module, None)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture
def summary_of() -> Callable[[Result], dict[str, str]]:
    """Return a reader of the summary: the text of each row by its name."""

    def read(result: Result) -> dict[str, str]:
        pairs = (line.partition("  ") for line in result.stderr.splitlines())
        return {name: text.strip() for name, gap, text in pairs if gap}

    return read
