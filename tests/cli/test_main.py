"""The entry points, with and without their extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python, and return how it ended."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["aiohttp", "click", "plotext", "rich"])
def test_a_missing_extra_is_named(module: str) -> None:
    """Without its extra the command line says what to install, with status 2."""
    code = (
        f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv = ['x', 'demo']\n"
        "runpy.run_module('ratelimited_executor', run_name='__main__')"
    )
    ended = python("-c", code)
    expected = (
        f"The command line needs {module}, which is not installed.\n"
        "Install the extra: pip install 'ratelimited-executor[cli]'\n"
    )
    assert (2, "", expected) == (ended.returncode, ended.stdout, ended.stderr)


def test_an_error_of_our_own_is_not_taken_for_a_missing_extra() -> None:
    """A missing module that is not part of the extra raises its own error."""
    code = (
        "import sys; sys.modules['ratelimited_executor.cli.run.job'] = None\n"
        "from ratelimited_executor.cli.main import main; main()"
    )
    ended = python("-c", code)
    assert (1, True) == (ended.returncode, "ModuleNotFoundError" in ended.stderr)


@pytest.mark.parametrize("arguments", [["run", "--help"], ["--version"]])
def test_help_and_version_are_there(arguments: list[str]) -> None:
    """Both entry points print the same on standard output, with status 0."""
    script = Path(sys.executable).with_name("ratelimited-executor")
    by_module = python("-m", "ratelimited_executor", *arguments)
    by_script = subprocess.run([str(script), *arguments], capture_output=True, text=True, timeout=60)
    assert (0, 0, "") == (by_module.returncode, by_script.returncode, by_module.stderr)
    assert by_module.stdout.replace("python -m ratelimited_executor", "ratelimited-executor") == by_script.stdout


@pytest.mark.parametrize("value", ["0", "1"])
def test_version_names_the_kernel(value: str) -> None:
    """``--version`` names the kernel that runs, and why."""
    code = "from ratelimited_executor import kernel; print(kernel)"
    environment = {**os.environ, "RATELIMITED_EXECUTOR_PURE": value}
    shown, chosen = (
        subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60).stdout
        for arguments in (["-m", "ratelimited_executor", "--version"], ["-c", code])
    )
    assert (f"kernel: {chosen.strip()}", value == "1") == (shown.splitlines()[1], "RATELIMITED_EXECUTOR_PURE" in shown)


def test_no_command_shows_the_help_with_status_2() -> None:
    """A call without a command shows the help, with status 2."""
    assert 2 == python("-m", "ratelimited_executor").returncode
