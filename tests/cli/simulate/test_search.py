"""The command ``search``: it finds a failure, repeats its history, and refuses what it cannot run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimited_executor.cli.commands import cli

SCENARIOS = """
import asyncio
import signal

async def pays_twice(world):
    charged = []
    try:
        await world.call("bank", charged.append, 1)
    except ConnectionError:
        await world.call("bank", charged.append, 1, faults=[])
    assert len(charged) == 1, "charged twice"

async def correct(world):
    world.fault("disk full")
    await asyncio.sleep(1)

async def real(world):
    server = await asyncio.start_server(print, "127.0.0.1", 0)
    async with server:
        await asyncio.sleep(1)

async def exits(world):
    if world.fault("disk full"):
        raise SystemExit(0)

def not_async(world):
    world.fault("disk full")

runs = 0

async def interrupted(world):
    global runs
    runs += 1
    world.fault("disk full")
    if runs == 5:
        signal.raise_signal(signal.SIGINT)

nothing = 5
"""


@pytest.fixture
def search(tmp_path: Path):
    """Run the command on one of the scenarios."""
    file = tmp_path / "scenarios.py"
    file.write_text(SCENARIOS, encoding="utf-8")

    def run(name: str, *options: str) -> Result:
        return CliRunner().invoke(cli, ["search", f"{file}:{name}", *options])

    return run


def test_failure_is_shown_and_run_again(search) -> None:
    """A failure has status 1 and its history; the command in its last line shows the same history."""
    result = search("pays_twice")

    assert 1 == result.exit_code
    assert result.stdout.startswith("AssertionError: charged twice\n  scenarios.py:11: assert len(charged) == 1")
    again = shlex.split(result.stdout.splitlines()[-1].partition(" search ")[2])
    assert again[1:] == ["--replay", again[2]]
    repeated = search("pays_twice", "--replay", again[2])
    assert 1 == repeated.exit_code
    history = [line for line in result.stdout.splitlines() if "bank(" in line or "bank:" in line]
    assert len(history) >= 5
    assert history == [line for line in repeated.stdout.splitlines() if "bank(" in line or "bank:" in line]


def test_report_is_shown(search) -> None:
    """A search without a failure has status 0, and shows what was tried."""
    result = search("correct", "--seeds", "50", "--first", "100")

    assert 0 == result.exit_code
    assert result.stdout.startswith("no failure in 51 runs, 51 s of virtual time\n  disk full  happens ")


def test_exit_of_the_scenario_is_a_failure(search) -> None:
    """A program that exits does not end the command with its own status."""
    result = search("exits", "--seeds", "50")

    assert 1 == result.exit_code
    assert result.stdout.startswith("SystemExit: 0\n")


def test_interrupted_search_shows_what_was_tried(search) -> None:
    """After Ctrl-C the report of the runs before is shown, and the status is 130."""
    result = search("interrupted")

    assert 130 == result.exit_code
    assert result.stdout.startswith("interrupted:\nno failure in 4 runs, ")


@pytest.mark.parametrize("options", [("--time", "0.2"), ("--time", "0.2", "--no-order")])
def test_time_without_seeds_tries_as_many_as_fit(search, options: tuple[str, ...]) -> None:
    """A time alone does not stop at a thousand seeds: some run began, and the command ends."""
    result = search("correct", *options)

    assert 0 == result.exit_code
    assert result.stdout.startswith("no failure in ")


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("nothing", (), "is not callable: it is int"),
        ("not_async", (), "scenario must be an async function"),
        ("missing", (), "has no attribute 'missing'"),
        ("correct", ("--replay", "what"), "replay must look like"),
        ("correct", ("--replay", "seed 1; disk full #2: happens"), "does not fit the scenario any more"),
        ("real", (), "virtual time cannot pass"),
    ],
)
def test_what_cannot_be_run_is_refused(search, name: str, options: tuple[str, ...], reason: str) -> None:
    """A target or a replay that cannot be used ends the command with status 2 and the reason."""
    result = search(name, *options)

    assert 2 == result.exit_code
    assert reason in result.stderr
