"""The command ``sweep``: what it reads, runs, shows and writes, and how it goes on after an interruption."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from rich.console import Console

from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.simulate.sweep_command import SweepOptions, grid_of, run_sweep, values_of

from ..refusals import assert_refused

FILE = """
name = "hub"
days = 0.02
[parameters]
workers = 8
rate = 5
[executors.api]
rate = "{rate}"
max_concurrency = "{workers}"
worker_price = 0.4
[jobs.charge]
duration = {mean = 1.5, p90 = 3}
objectives = [{within = "5s"}]
[[arrivals]]
executor = "api"
job = "charge"
rate = 2
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An own folder with a scenario file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub.toml").write_text(FILE)
    return tmp_path


def play(*settings, **options):
    """Run the command; return its exit status and its output."""
    console = Console(file=io.StringIO(), width=200)
    status = run_sweep(
        SweepOptions(scenario="hub.toml", settings=settings, jobs=1, quiet=True, **options), console=console
    )
    return status, console.file.getvalue()


def test_the_cheapest_that_keeps_its_objectives_is_named(folder):
    """The table has each configuration with its cost, figure and differences, and the answer stands below."""
    status, text = play("workers=2,6,8", "rate=3,5/s", seeds=3)
    assert ExitStatus.DONE == status
    assert "hub: 6 configurations" in text
    assert 5 == len(re.findall(r"[+-][\d.hms ]+ ± ", text))
    assert re.search(
        r"The cheapest configuration that keeps every objective in all of its 3 runs: workers=6, rate=", text
    )
    rows = list(csv.DictReader((folder / "sweep-hub" / "sweep.csv").read_text().splitlines()))
    assert [("2", "3/s"), ("2", "5/s")] == [(row["workers"], row["rate"]) for row in rows[:2]]
    assert ("3", "0", "3") == (rows[0]["runs"], rows[0]["objectives kept"], rows[-1]["objectives kept"])
    assert float(rows[0]["wait of charge, p99"]) > 5
    page = (folder / "sweep-hub" / "sweep.html").read_text()
    assert "Which settings of hub keep its objectives at the least cost?" in page


def test_the_output_says_how_the_figures_were_made(folder):
    """By the shortcut, or by the executor and why; the figures of both are the same."""
    _, text = play("workers=3,6", seeds=2)
    assert (
        "All runs are those of the executor, as runs of fewer than 8,000 jobs take no longer with the executor." in text
    )
    punctual = FILE.replace("[executors.api]", '[executors.api]\npacing = "on time"').replace(
        "days = 0.02", "days = 0.06"
    )
    (folder / "hub.toml").write_text(punctual)
    _, text = play("workers=3,6", seeds=2, force=True)
    assert "All runs are by the shortcut; the first " in text
    assert "All runs are by the shortcut; the first " in (folder / "sweep-hub" / "sweep.html").read_text()
    figures = (folder / "sweep-hub" / "sweep.csv").read_text()
    _, text = play("workers=3,6", seeds=2, force=True, shortcut=False)
    assert "All runs are those of the executor." in text
    assert figures == (folder / "sweep-hub" / "sweep.csv").read_text()


def test_traffic_is_given_and_not_chosen(folder):
    """The answer has to do for all that is given, and the table and the page have every combination."""
    (folder / "hub.toml").write_text(
        FILE.replace("rate = 5\n", "rate = 10\ntraffic = 1\n", 1).replace(
            "rate = 2\n", 'rate = 2\nscale = "{traffic}"\n'
        )
    )
    status, text = play("workers=4,6,12", given=("traffic=1,2",), seeds=2)
    assert ExitStatus.DONE == status
    assert "hub: 6 configurations" in text
    assert "keeps every objective in all of its 4 runs: workers=12" in text
    page = (folder / "sweep-hub" / "sweep.html").read_text()
    assert '"traffic":["1","2"]' in page


def test_no_configuration_may_do(folder):
    """If none keeps its objectives, that is the answer and the exit status."""
    status, text = play("workers=1,2", seeds=2)
    assert ExitStatus.FAILED == status
    assert "No configuration keeps every objective in every run" in text
    assert "worst wait of charge, 99 % in each 1d: kept by 0 of 2." in text
    assert "0 of 2, not charge" in text


def test_jobs_that_are_lost_are_named(folder):
    """No objective counts a job that fails for good, so the table and the answer do; a fault of a run leaves no folder."""
    (folder / "hub.toml").write_text(FILE.replace("p90 = 3}", "p90 = 3}\nfailures = 0.2"))
    status, text = play("workers=12", seeds=2, warm_up=0.0)
    assert ExitStatus.DONE == status
    assert re.search(r"workers=12; cost .*; worst wait of charge, .*; jobs failed [\d.,]+ ± [\d.,]+\.", text)
    rows = list(csv.DictReader((folder / "sweep-hub" / "sweep.csv").read_text(encoding="utf-8").splitlines()))
    assert ("2", "0") == (rows[0]["objectives kept"], rows[0]["objectives not decided"])


def test_a_refused_sweep_leaves_no_folder(folder):
    """Nor does one whose runs fail at once."""
    with pytest.raises(CommandError, match="must be an integer"):
        play("workers=a,b", output=folder / "new" / "results")
    assert not (folder / "new").exists()


def test_what_never_starts_is_noted(folder):
    """An executor without workers is legal, and does nothing."""
    status, text = play("workers=0,12", seeds=1)
    assert ExitStatus.DONE == status
    note = "Note: executor api has started nothing, while jobs wait for it (with workers=0)."
    assert (True, True) == (note in text, note in (folder / "sweep-hub" / "sweep.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("span", ["0", "0s", "0 s", "0min"])
def test_a_warm_up_may_be_nothing(folder, span):
    """A script may give it always."""
    arguments = ["sweep", "hub.toml", "--set", "workers=12", "--seeds", "1", "--warm-up", span, "-q"]
    assert 0 == CliRunner().invoke(cli, arguments).exit_code


def test_without_objectives_the_least_figure_is_named(folder):
    """The figure may be chosen; there is no exit status for it."""
    (folder / "hub.toml").write_text(
        FILE.replace('objectives = [{within = "5s"}]', "").replace("worker_price = 0.4", "")
    )
    status, text = play("workers=2,8", seeds=2, figure="wait of charge, mean")
    assert ExitStatus.DONE == status
    assert re.search(r"The least wait of charge, mean, .*: workers=8\.", text)
    with pytest.raises(CommandError, match="figure must be one of wait of charge, p99; .*, got 'waits'"):
        play("workers=2,8", seeds=3, figure="waits", resume=True)


def test_what_is_there_is_kept_unless_asked(folder):
    """An existing sweep is refused, continued with --resume, and replaced with --force."""
    play("workers=4", seeds=1)
    with pytest.raises(CommandError, match="already exists: --resume continues it, --force starts again"):
        play("workers=4,5", seeds=1)
    play("workers=4,5", seeds=2, resume=True)
    file = folder / "sweep-hub" / "runs.jsonl"
    assert 1 + 4 == len(file.read_text().splitlines())
    play("workers=4", seeds=1, force=True)
    assert 1 + 1 == len(file.read_text().splitlines())
    with pytest.raises(CommandError, match="there is nothing to resume in other"):
        play("workers=4", resume=True, output=folder.relative_to(folder) / "other")
    (folder / "hub.toml").write_text(FILE.replace("rate = 2", "rate = 3"))
    with pytest.raises(CommandError, match="holds runs of another scenario"):
        play("workers=4", seeds=1, resume=True)
    file.unlink()
    with pytest.raises(CommandError, match=r"sweep\.csv already exists"):
        play("workers=4", seeds=1)


def test_results_that_cannot_be_written_are_an_error(folder):
    """It is none of the scenario, as status 1 would say, and its runs are kept."""
    (folder / "sweep-hub" / "sweep.html").mkdir(parents=True)
    with pytest.raises(CommandError, match="the results cannot be written: .*; all runs are in .*runs.jsonl"):
        play("workers=12", seeds=1, force=True)
    assert 1 + 1 == len((folder / "sweep-hub" / "runs.jsonl").read_text().splitlines())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.real_time("a signal reaches a process while its runs take their time")
def test_an_interrupted_sweep_goes_on(folder):
    """Ctrl-C ends the runs; what has ended is kept and shown, and --resume does the rest."""
    command = [
        sys.executable,
        "-m",
        "ratelimited_executor",
        "sweep",
        "hub.toml",
        "--set",
        "workers=4..7",
        "--jobs",
        "2",
        "-q",
    ]
    process = subprocess.Popen([*command, "--seeds", "500"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    file = folder / "sweep-hub" / "runs.jsonl"
    try:
        while not file.exists() or len(file.read_text().splitlines()) < 5:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    assert 130 == process.returncode
    assert "Stopped. The same command with --resume goes on." in text
    there = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert 4 <= len(there) < 2000
    again = subprocess.run([*command, "--seeds", "2", "--resume"], stdout=subprocess.PIPE, text=True, check=False)
    assert 0 == again.returncode


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("6..8", ["6", "7", "8"]),
        ("10..50:20,100", ["10", "30", "50", "100"]),
        ("0.1..0.3:0.1", ["0.1", "0.2", "0.3"]),
        ("5,10,20/s", ["5/s", "10/s", "20/s"]),
        ("1..2/min", ["1/min", "2/min"]),
        ("5s,1m", ["5s", "1m"]),
        ("fast,slow", ["fast", "slow"]),
        ("100..1000:900", ["100", "1000"]),
    ],
)
def test_values_are_lists_and_ranges(text, values):
    """Numbers without a unit have that of the last one."""
    assert values == values_of("x", text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("workers",), "--set must be name=values, such as workers=6..20 or rate=5,10,20/s, got 'workers'"),
        (("workers=",), "--set must be name=values"),
        (("a=1", "a=2"), "--set a is given twice"),
        (("a=8..6",), "the range 8..6 must rise"),
        (("a=1..2:0",), "must rise, by a step > 0"),
        (("a=0..1000000000",), "to at most 100,000 values"),
        (("a=1.2.3..4",), "a range is first..last"),
        (("a=1,2,1",), "--set a has a value twice"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    """Each is refused with what would do."""
    with pytest.raises(CommandError, match=re.escape(words)):
        grid_of(settings)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hub.toml"], "--set"),
        (["nothing.toml", "--set", "a=1"], "nothing.toml cannot be read"),
        (
            ["hub.toml", "--set", "worker=1,2"],
            "hub.toml has no parameter 'worker': give one of its own (workers, rate)",
        ),
        (["hub.toml", "--set", "workers=few"], "max_concurrency must be an integer"),
        (["hub.toml", "--set", "workers=1", "--precision", "5"], "'5' is not a percentage such as 5%"),
        (["hub.toml", "--set", "workers=1", "--force", "--resume"], "give only one of them"),
        (["hub.toml", "--set", "workers=1", "--warm-up", "1h"], "warm_up must be shorter than the run"),
    ],
)
def test_bad_usage_is_refused(folder, arguments, words):
    """Bad usage is an error of one line, with status 2."""
    assert_refused(CliRunner().invoke(cli, ["sweep", *arguments]), words)
