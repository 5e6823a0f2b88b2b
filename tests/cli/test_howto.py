"""The documentation of the command line: every command of its page runs, and every command and option is described."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ratelimited_executor.cli.commands import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "command-line.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE)


@pytest.mark.timeout(600)  # takes a minute on a busy machine
@pytest.mark.real_time  # the page's own rates and times, about 8 s in all; only exit statuses are asserted
def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    """Every command of the page runs in order, in one directory, with the page's own targets."""
    jobs = re.search(r"^```python\n(# jobs\.py\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert jobs is not None
    (tmp_path / "jobs.py").write_text(jobs[1])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in COMMANDS:
        ended = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        # The verdict of the demo depends on this machine's timing; only that it ran counts here.
        assert ended.returncode in ((0, 1) if " demo " in command else (0,)), (command, ended.stderr)
    assert len(COMMANDS) >= 10


def test_every_option_is_on_the_page() -> None:
    """Every option of the commands is described on the page."""
    options = {
        option
        for name, command in cli.commands.items()
        if name not in {"simulate", "sweep", "forecast", "search"}  # which have pages of their own
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    }
    assert set() == {option for option in options if f"`{option}" not in TEXT and f" {option} " not in TEXT}


@pytest.mark.parametrize("name", ["", *sorted(cli.commands)])
def test_command_is_in_the_docs_with_every_option(name: str) -> None:
    """The page, or another one, names each command with all of its options."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    command = cli.commands[name] if name else cli
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]

    assert f"ratelimited-executor {name}".rstrip() in text
    assert [] == [option for option in options if option != "--version" and not re.search(rf"{option}\b", text)]
