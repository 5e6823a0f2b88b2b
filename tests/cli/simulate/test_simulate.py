"""The command ``simulate``: what it lists, runs, shows and writes, and how it resumes what was interrupted."""

import io
import json
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest
from click.testing import CliRunner
from rich.console import Console

from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.simulate import progress as runs_progress
from ratelimited_executor.cli.simulate import simulate_command
from ratelimited_executor.cli.simulate.simulate_command import SimulateOptions, run_simulations
from ratelimited_executor.simulation import CRITERIA, STRATEGIES, runs

from ..refusals import assert_refused

PATIENCE_S = 60
SMALL = ("--days", "0.4", "--set", "accounts=30")

SCENARIOS = """
import dataclasses, os, signal

from ratelimited_executor.simulation import Poisson, Scenario, runs

runs._PROGRESS_SECONDS = 0.0  # so that a signal is seen after the step in which it came


@dataclasses.dataclass
class Invoices(Scenario):
    '''Send all invoices of a month.'''

    count: int = 100
    rate: float = 50
    limit: int | None = None
    must: bool = True
    note: str = "none"

    def setup(self, sim):
        executor = sim.executor("api", rate=self.rate, max_concurrency=self.limit)
        executor.schedule_many(sim.job("send", 0.4), range(self.count if self.must else 1))


class Stopped(Scenario):
    '''Jobs for a day, of which a file named `go` lets the second half come without a signal.'''

    def setup(self, sim):
        sim.arrive(Poisson(0.05), sim.executor("api", max_concurrency=2), sim.job("call", 20, failures=0.1))
        sim.at(43_210, self.stop)

    def stop(self):
        if not os.path.exists("go"):
            os.kill(os.getpid(), signal.SIGINT)


class Other(Stopped):
    '''The same, without a signal.'''

    def stop(self):
        pass


class Empty(Scenario):
    def setup(self, sim):
        pass


def function():
    pass
"""

FILE = """
days = 0.1
[executors.api]
rate = "2/s"
[jobs.call]
duration = {mean = 1}
[[arrivals]]
executor = "api"
job = "call"
count = 50
"""


@pytest.fixture(name="place")
def _place(place):
    """A workplace with scenarios in a module and in a TOML file."""
    place.write(f"{place.module}.py", SCENARIOS)
    place.write("load.toml", FILE)
    return place


@pytest.fixture(autouse=True)
def _seconds_as_they_were(monkeypatch):
    """Restore the interval of progress, which the scenarios of these tests change."""
    monkeypatch.setattr(runs, "_PROGRESS_SECONDS", runs._PROGRESS_SECONDS)


def simulate(*arguments: str, columns: str = "200"):
    """Run the command in this process, without a report unless one is requested."""
    report = [] if {"--report", "--no-report"} & set(arguments) else ["--no-report"]
    return CliRunner().invoke(cli, ["simulate", *report, *arguments], env={"COLUMNS": columns})


def process(place, *arguments: str) -> subprocess.CompletedProcess:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "ratelimited_executor", "simulate", "--no-report", *arguments]
    return subprocess.run(command, cwd=place.path, capture_output=True, text=True, timeout=PATIENCE_S)


def content(path) -> dict:
    """Read all of a database that does not depend on the moment; properties by name."""
    tables = ("source", "step", "quantiles", "counter", "histogram", "key_summary", "slot", "event")
    with closing(sqlite3.connect(path)) as connection:
        found = {f"{table} rows": sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables}
        properties = dict(connection.execute("SELECT name, value FROM run"))
    properties.pop("wall_seconds")
    return found | properties


# What can be simulated.


@pytest.mark.parametrize("arguments", [["--list"], ["--list", "slots", "--days", "-1"]])
def test_list_names_the_strategies(arguments):
    """``--list`` prints each strategy with its description on a line, and runs nothing."""
    result = CliRunner().invoke(cli, ["simulate", *arguments])
    lines = result.stdout.splitlines()
    assert (0, list(STRATEGIES)) == (result.exit_code, [line.split()[0] for line in lines])
    assert all(len(line.split()) > 5 for line in lines)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_is_simulated(place, name):
    """A strategy prints a table, and writes a database in a directory named after it."""
    result = simulate(name, *SMALL, "--seed", "3")
    assert 0 == result.exit_code, result.output
    assert f"{name}, seed 3: 9h36m in " in result.stdout
    for row in ("workers", "jobs enqueued", "done, failed, other", "start delay, p50, p99 and most", "evenness"):
        assert row in result.stdout
    for row in ("accounts", "never synced, overdue at the end", "sync interval, p50, p99 and most", "lock conflicts"):
        assert row in result.stdout
    assert f"Database: simulation-{name}/{name}.sqlite3" in result.stdout
    found = content(place.path / f"simulation-{name}" / f"{name}.sqlite3")
    assert ("finished", 3, 0.4, 30) == (found["status"], found["seed"], found["days"], len(found["key_summary rows"]))
    assert 30 == json.loads(found["parameters"])["accounts"]


def test_class_of_a_module_a_file_and_toml(place):
    """A scenario may be module:Class, file.py:Class or file.toml."""
    for text, name, count in (
        (f"{place.module}:Invoices", "invoices", 100),
        (f"{place.module}.py:Invoices", "invoices", 100),
        (f"{place.path}/{place.module}.py:Invoices", "invoices", 100),
        ("load.toml", "load", 50),
        (f"{place.path}/load.toml", "load", 50),
    ):
        result = simulate(text, "--days", "0.01", "--output", "out", "--force")
        assert 0 == result.exit_code, result.output
        assert f"Database: out/{name}.sqlite3" in result.stdout
        rows = content(place.path / "out" / f"{name}.sqlite3")["step rows"]
        assert count == sum(row[2] for row in rows) == sum(row[5] for row in rows)


def test_days_step_and_interval_are_those_of_the_scenario_unless_given(place):
    """Days and interval of a scenario apply unless given; ``--step`` sets the resolution of the rows."""
    simulate("load.toml", "--output", "out", "--step", "10s")
    found = content(place.path / "out" / "load.sqlite3")
    assert (0.1, 10.0, 8640.0) == (found["days"], found["step"], found["reached"])
    assert all(row[0] % 10 == 0 for row in found["step rows"])


def test_a_warm_up_is_left_out_of_the_table(place):
    """The table has the time after it, and a resumed run must have the same one."""
    all_of_it = simulate("load.toml", "--output", "out", "--days", "0.02").output
    rest = simulate("load.toml", "--output", "rest", "--days", "0.02", "--warm-up", "10m").output
    counts = [
        int(re.search(r"done, failed, other .*?([\d,]+), ", text)[1].replace(",", "")) for text in (all_of_it, rest)
    ]
    assert counts[1] < counts[0]
    assert 600.0 == content(place.path / "rest" / "load.sqlite3")["warm_up"]
    assert_refused(simulate("load.toml", "--output", "rest", "--days", "0.03", "--resume"), "warm_up")


def test_output_whose_name_is_too_long_is_refused(place):
    """As one that cannot be created."""
    assert_refused(simulate("load.toml", "--output", 300 * "x"), "--output")


def test_samples_are_kept_if_they_are_asked_for(place):
    """With ``--samples`` every single value is stored."""
    for arguments, count in (([], 0), (["--samples"], 50)):
        simulate("load.toml", "--output", "out", "--force", *arguments)
        with closing(sqlite3.connect(place.path / "out" / "load.sqlite3")) as connection:
            rows = connection.execute("SELECT count(*) FROM sample WHERE metric = 'execution_time'").fetchone()
        assert (count,) == rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slot"], ["there is no scenario 'slot'", *STRATEGIES, "strategies", ".toml", "my_module:MyScenario"]),
        (["Slots"], ["there is no scenario 'Slots'"]),
        ([""], ["there is no scenario ''"]),
        (["."], ["there is no scenario '.'"]),
        (["load.py"], ["there is no scenario 'load.py'", "load.py:MyScenario"]),
        (["no.toml"], ["Error: no.toml cannot be read: No such file or directory\n"]),
        (["nothing_here:Load"], ["nothing_here"]),
        (["nothing_here.py:Load"], ["there is no file nothing_here.py"]),
        (["MODULE:Nothing"], ["Nothing"]),
        (["MODULE.py:Nothing"], ["module 'MODULE.py' has no attribute 'Nothing'"]),
        (["MODULE:function"], ["must be a subclass of", "Scenario"]),
        (["MODULE.py:dataclasses"], ["must be a subclass of", "Scenario"]),
        (["MODULE:Empty"], ["creates no executor", "sim.executor()"]),
        (["broken.py:Load"], ["'broken.py:Load' cannot be imported: SyntaxError"]),
        (["raising.py:Load"], ["'raising.py:Load' cannot be imported: ZeroDivisionError"]),
        (["slots", "slots"], ["two scenarios are called slots"]),
        (["strategies", "central"], ["two scenarios are called central"]),
        (["slots", "--compare"], ["--compare needs at least two scenarios"]),
        (["slots", "--days", "0"], ["--days"]),
        (["slots", "--days", "-1"], ["--days"]),
        (["slots", "--days", "soon"], ["--days"]),
        (["slots", "--days", "nan"], ["days must be finite"]),
        (["slots", "--days", "inf"], ["days must be finite"]),
        (["slots", "--step", "0"], ["--step"]),
        (["slots", "--seed", "1.5"], ["--seed"]),
        ([], ["Missing argument", "SCENARIO"]),
        (["slots", "--set", "accounts"], ["--set must be name=value", "'accounts'"]),
        (["slots", "--set", "acounts=5"], ["slots has no parameter 'acounts'", "accounts, banks, workers"]),
        (["slots", "--set", "joins=-3/day"], ["joins: rate must be >= 0"]),
        (["slots", "--set", "lifetime=-5d"], ["lifetime: mean: a duration looks like"]),
        (["slots", "--set", "accounts=many"], ["accounts must be int, got 'many'"]),
        (["slots", "--set", "accounts=1.5"], ["accounts must be int, got '1.5'"]),
        (["slots", "--set", "mean=long"], ["mean must be float"]),
        (["MODULE:Invoices", "--set", "must=maybe"], ["must must be bool"]),
        (["MODULE:Empty", "--set", "a=1"], ["has no parameter 'a'", "(none)"]),
        (["load.toml", "--set", "days=1"], ["load.toml has no parameter 'days'", "(none)"]),
        (["slots", "--set", "accounts=0"], ["slots: ", "accounts must be >= 1"]),
        (["slots", "--set", "mean=4", "--set", "p90=120"], ["at most 10 times the mean, 40"]),
        (["slots", "--set", "cycle=soon"], ["a duration looks like"]),
        (["slots", "--output", "load.toml"], ["--output must be a directory, load.toml is a file"]),
        (["slots", "--resume"], ["there is nothing to resume in simulation-slots"]),
        (["bad.toml"], ["bad.toml", "daze"]),
        (["none.toml"], ["none.toml is not TOML"]),
        (["p90.toml"], ["at most 10 times the mean, 40"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(place, arguments, words):
    """Bad input is refused with status 2, what is wrong, and what is possible."""
    place.write("broken.py", "class Load(:\n")
    place.write("raising.py", "1 / 0\n")
    place.write("bad.toml", "daze = 1\n" + FILE)
    place.write("none.toml", "a = = 1\n")
    place.write("p90.toml", FILE.replace("{mean = 1}", "{mean = 4, p90 = 120}"))
    result = simulate(*(argument.replace("MODULE", place.module) for argument in arguments))
    assert_refused(result, *(word.replace("MODULE", place.module) for word in words))
    assert "Traceback" not in result.output


# Parameters.


def test_parameters_are_set_by_the_type_of_their_defaults(place):
    """Parameters are parsed by the type of their defaults, booleans in several spellings; the last one counts."""
    for word, is_true in (("yes", True), ("No", False), ("TRUE", True), ("0", False)):
        arguments = ("--set", "count=7", "--set", "count=9", "--set", f"must={word}", "--set", "note=a=b")
        result = simulate(f"{place.module}:Invoices", "--days", "0.01", "--output", "out", "--force", *arguments)
        assert 0 == result.exit_code, result.output
        parameters = json.loads(content(place.path / "out" / "invoices.sqlite3")["parameters"])
        assert (9, is_true, "a=b") == tuple(parameters[name] for name in ("count", "must", "note"))


def test_parameters_are_set_for_all_scenarios(place):
    """``--set`` applies to all compared scenarios."""
    result = simulate("slots", "central", *SMALL, "--output", "out")
    assert 0 == result.exit_code
    for name in ("slots", "central"):
        assert 30 == len(content(place.path / "out" / f"{name}.sqlite3")["key_summary rows"])


@pytest.mark.parametrize("setting", ["rate=0.5", "rate=1e2", "limit=5"])
def test_parameters_are_set_by_their_annotation(place, setting):
    """Parameters are parsed by annotation: ``rate: float = 50`` as a float, ``limit: int | None = None`` as an int."""
    result = simulate(f"{place.module}:Invoices", "--days", "0.01", "--set", setting)
    assert 0 == result.exit_code, result.output


def test_parameter_without_a_default_is_set(place):
    """A parameter without a default is required, and parsed by its annotation."""
    place.write(
        "need.py",
        "import dataclasses\nfrom ratelimited_executor.simulation import Scenario\n"
        "@dataclasses.dataclass\nclass Need(Scenario):\n    count: int\n    def setup(self, sim):\n"
        "        sim.executor('api').schedule_many(sim.job('call', 1), range(self.count))\n",
    )
    assert_refused(simulate("need.py:Need"), "count")
    assert 0 == simulate("need.py:Need", "--set", "count=5", "--days", "0.01").exit_code


# Comparison.


def test_strategies_are_compared(place):
    """A comparison names the best by each criterion and by all, and writes a database for each."""
    result = simulate("strategies", "--compare", *SMALL)
    assert 0 == result.exit_code, result.output
    for criterion in CRITERIA:
        (line,) = (line for line in result.stdout.splitlines() if line.startswith(f"Best by {criterion.name}: "))
        assert set(line.partition(": ")[2].split(", ")) <= set(STRATEGIES)
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("Best by the sum of all ranks: "))
    assert line.partition(": ")[2] in STRATEGIES
    directory = place.path / "simulation-comparison"
    assert {f"{name}.sqlite3" for name in STRATEGIES} == {file.name for file in directory.iterdir()}
    assert "5 scenarios, the best first" in result.stdout
    assert "Best by lock conflicts: " in result.stdout
    assert "weighted-slots" in result.stdout.partition("Best by lock conflicts: ")[2].partition("\n")[0]


def test_comparison_is_whole_in_a_pipe(place):
    """In a pipe a comparison is not cut or wrapped."""
    result = simulate("strategies", "--compare", *SMALL, columns=None)
    assert "…" not in result.stdout
    assert all(len(line.split(": ")) == 2 for line in result.stdout.partition("Best by")[2].splitlines())


def test_one_scenario_is_compared_with_other_parameters(place):
    """Scenarios with parameters in brackets are named as written, with their own files; ``--set`` applies to all."""
    result = simulate("slots[workers=1]", "slots[workers=9,mean=3.75]", "slots", *SMALL, "--output", "out")
    assert 0 == result.exit_code, result.output
    names = [line.partition(": out/")[2] for line in result.stdout.splitlines() if line.startswith("Database: ")]
    assert ["slots[workers=1].sqlite3", "slots[workers=9,mean=3.75].sqlite3", "slots.sqlite3"] == names
    for name, workers, mean in (
        ("slots[workers=1]", 1, 4.0),
        ("slots[workers=9,mean=3.75]", 9, 3.75),
        ("slots", 20, 4.0),
    ):
        assert re.search(rf"{re.escape(name)} +│", result.stdout)
        found = json.loads(content(place.path / "out" / f"{name}.sqlite3")["parameters"])
        assert (workers, mean, 30) == (found["workers"], found["mean"], found["accounts"])


def test_parameters_in_brackets_are_checked_as_all_others(place):
    """Bad parameters in brackets are refused like others, also those of files that have none."""
    assert_refused(simulate("slots[wokers=1]"), "no parameter 'wokers'", "workers")
    assert_refused(simulate("slots[workers]"), "name=value")
    assert_refused(simulate("load.toml[count=5]"), "load.toml has no parameter 'count'", "(none)")
    assert_refused(simulate("slots[workers=1]", "slots[workers=1]"), "two scenarios are called slots[workers=1]")
    result = simulate("slots[cycle=8h/1]", *SMALL)
    assert_refused(result, "cycle")


def test_executors_are_summed_up(place):
    """Executors are summed up together, and then shown singly if they are few."""
    for nodes in (3, 9):
        place.write("load.toml", FILE.replace("[executors.api]", f"[executors.api]\nnodes = {nodes}"))
        lines = simulate("load.toml", "--output", f"{nodes}").stdout.splitlines()
        assert 1 == sum(f"all {nodes} executors" in line for line in lines)
        assert 1 == sum("jobs enqueued" in line and line.split("│")[2].strip() == "50" for line in lines)
        assert (3 if nodes == 3 else 0) == sum("api/" in line for line in lines)


def test_equal_sums_are_all_best(place):
    """Equal sums are all named the best."""
    result = simulate("slots[workers=30]", "slots[workers=31]", *SMALL, "--set", "accounts=5")
    assert "Best by the sum of all ranks: slots[workers=30], slots[workers=31]" in result.stdout


def test_errors_of_a_scenario_are_told_with_their_place(place):
    """Errors of a scenario are reported with their place and status 2, whatever their kind."""
    place.write(
        "bad.py",
        textwrap.dedent("""\
        from ratelimited_executor.simulation import Scenario

        class Bad(Scenario):
            def setup(self, sim):
                sim.at(60, lambda: {}["nothing"])
                sim.executor("a")

        class Wrong(Scenario):
            def setup(self, sim):
                sim.executor("a", max_concurrency=-1)
        """),
    )
    assert_refused(simulate("bad.py:Bad"), "bad: KeyError: 'nothing' (", "bad.py, line 5)")
    assert_refused(simulate("bad.py:Wrong"), "wrong: max_concurrency", "bad.py, line 10)")
    place.write(
        "exits.py",
        "import sys\nfrom ratelimited_executor.simulation import Scenario\n\n\nclass Exits(Scenario):\n    setup = lambda self, sim: sys.exit(0)\n",
    )
    assert_refused(simulate("exits.py:Exits"), "exits: SystemExit: 0", "exits.py, line 6)")
    place.write(
        "init.py",
        "from ratelimited_executor.simulation import Scenario\n\n\nclass Init(Scenario):\n    def __init__(self):\n        {}[5]\n\n    def setup(self, sim):\n        pass\n",
    )
    assert_refused(simulate("init.py:Init"), "KeyError: 5", "init.py, line 6)")


def test_attempts_are_told(place):
    """Attempts that were followed by another are counted."""
    assert "followed by another" not in simulate("load.toml", "--output", "once").stdout
    place.write(
        "load.toml",
        FILE.replace("[executors.api]", "[executors.api]\nattempts = 4").replace(
            "[jobs.call]", "[jobs.call]\nfailures = 0.5"
        ),
    )
    assert re.search(r"attempts that were followed by another +│ +[2-9][0-9] ", simulate("load.toml").stdout)


def test_scenarios_of_all_kinds_are_compared(place):
    """Scenarios without a population can be compared too."""
    result = simulate("load.toml", f"{place.module}:Invoices", "slots", "--days", "0.1", "--compare", "--output", "out")
    assert 0 == result.exit_code, result.output
    assert "Best by sync delay: " in result.stdout


# Output files.


def test_report_and_plots_are_written(place):
    """The report and its plots are written beside the database, and their place is printed."""
    result = simulate("slots", *SMALL, "--report", "--output", "out")
    assert 0 == result.exit_code, result.output
    pngs = list((place.path / "out" / "plots").glob("*.png"))
    assert f"Report: out/report.html, and {len(pngs)} plots in out/plots" in result.stdout
    assert len(pngs) >= 3  # the plot of the queue exists only if there was one
    assert all(png.read_bytes().startswith(b"\x89PNG") for png in pngs)
    assert "<html" in place.text("out/report.html")


def test_no_report_is_no_report(place):
    """With ``--no-report`` only the database is written, and no report mentioned."""
    result = simulate("slots", *SMALL, "--no-report", "--output", "out")
    assert (0, ["slots.sqlite3"]) == (result.exit_code, sorted(file.name for file in (place.path / "out").iterdir()))
    assert "report" not in result.output.lower()


@pytest.mark.parametrize("name", ["matplotlib", "plotly"])
def test_missing_extra_is_told_before_the_run(place, monkeypatch, name):
    """A missing extra of the report is reported with both remedies before the run, and only if it is needed."""
    find = simulate_command.find_spec
    monkeypatch.setattr(simulate_command, "find_spec", lambda each: None if each == name else find(each))
    result = simulate("slots", *SMALL, "--report", "--output", "out")
    assert_refused(result, f"the report needs {name}", "pip install 'ratelimited-executor[simulate]'", "--no-report")
    assert not (place.path / "out").exists()
    assert 0 == simulate("slots", *SMALL, "--no-report", "--output", "out").exit_code


def test_plots_need_not_be_installed_without_a_report(place):
    """The libraries of plots are not loaded without a report."""
    program = (
        "import sys\nfor name in ('matplotlib', 'plotly'): sys.modules[name] = None\n"
        "from ratelimited_executor.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", program, "simulate", "load.toml", "--no-report"]
    done = subprocess.run(command, cwd=place.path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (0, "") == (done.returncode, done.stderr)


def test_files_of_others_stay(place):
    """Files in the output directory that are not of a simulation stay, such as in the current directory."""
    (place.path / "plots").mkdir()
    (place.path / "plots" / "thesis.png").write_text("precious")
    simulate("load.toml", "--report", "--output", ".")
    assert "precious" == place.text("plots/thesis.png")


def test_report_of_another_is_not_written_over(place):
    """A report that is not of a simulation is not overwritten."""
    place.write("report.html", "mine")
    simulate("load.toml", "--report", "--output", ".")
    assert "mine" == place.text("report.html")


def test_what_is_there_is_not_written_over(place):
    """An existing database is refused with three remedies; ``--force`` replaces it."""
    assert 0 == simulate("load.toml", "--output", "out").exit_code
    before = content(place.path / "out" / "load.sqlite3")
    result = simulate("load.toml", "--output", "out", "--seed", "2")
    assert_refused(result, "out/load.sqlite3 already exists", "--resume", "--force", "--output DIR")
    assert before == content(place.path / "out" / "load.sqlite3")
    assert 0 == simulate("load.toml", "--output", "out", "--seed", "2", "--force").exit_code
    assert 2 == content(place.path / "out" / "load.sqlite3")["seed"]
    assert 0 == simulate("load.toml", "--output", "elsewhere").exit_code


def test_what_is_there_stays_if_nothing_comes_in_its_place(place):
    """A scenario that cannot be set up leaves the previous database, in spite of ``--force``."""
    assert 0 == simulate("load.toml", "--output", "out").exit_code
    before = content(place.path / "out" / "load.sqlite3")
    place.write("load.toml", FILE.replace('rate = "2/s"', "max_concurrency = -1"))
    assert_refused(simulate("load.toml", "--output", "out", "--force"), "max_concurrency")
    assert ["load.sqlite3"] == [path.name for path in (place.path / "out").iterdir()]
    assert before == content(place.path / "out" / "load.sqlite3")
    place.write("load.toml", FILE.replace("2/s", "3/s"))
    assert 0 == simulate("load.toml", "--output", "out", "--force").exit_code
    assert ["load.sqlite3"] == [path.name for path in (place.path / "out").iterdir()]
    assert before != content(place.path / "out" / "load.sqlite3")


def test_what_was_there_survives_a_killed_run(place):
    """After a run with ``--force`` was killed, the previous database is restored if the next one cannot start."""
    assert 0 == simulate("load.toml", "--output", "out").exit_code
    before = content(place.path / "out" / "load.sqlite3")
    out = place.path / "out"
    (out / "load.sqlite3").rename(out / "load.sqlite3.before")  # as a killed run with --force leaves it
    (out / "load.sqlite3").write_text("half")
    place.write("load.toml", FILE.replace('rate = "2/s"', "max_concurrency = -1"))
    assert_refused(simulate("load.toml", "--output", "out", "--force"), "max_concurrency")
    assert ["load.sqlite3"] == [path.name for path in out.iterdir()]
    assert before == content(out / "load.sqlite3")


def test_what_was_there_is_forgotten_once_another_run_goes_on(place):
    """The previous database, set aside by a killed run, is removed once that run is resumed."""
    assert 0 == simulate("load.toml", "--output", "out").exit_code
    out = place.path / "out"
    (out / "load.sqlite3.before").write_bytes((out / "load.sqlite3").read_bytes())
    assert_refused(simulate("load.toml", "--seed", "5", "--output", "out", "--resume"), "a run with seed 0, and not 5")
    assert (out / "load.sqlite3.before").exists()
    assert 0 == simulate("load.toml", "--days", "0.2", "--output", "out", "--resume").exit_code
    assert ["load.sqlite3"] == [path.name for path in out.iterdir()]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE quantiles SET p50 = 9e999", "load.sqlite3' is damaged (quantiles.p50 holds 'inf')"),
        ("UPDATE step SET done_jobs = 9223372036854775807", "load.sqlite3' is damaged (step.done_jobs holds"),
        ("UPDATE run SET value = 'far' WHERE name = 'reached'", "the file does not record how far its run came"),
        ("UPDATE run SET value = 9e999 WHERE name = 'jobs'", "the file does not record how far its run came"),
        ("DELETE FROM run WHERE name = 'wall_seconds'", "the file does not record how far its run came"),
        ("DROP TABLE quantiles", "no such table: quantiles"),
    ],
)
def test_a_database_that_was_edited_is_refused_in_one_line(place, statement, words):
    """An edited database is refused in one line that says what is wrong, with status 2."""
    assert 0 == simulate("load.toml", "--days", "0.05", "--output", "out", "--no-report").exit_code
    with closing(sqlite3.connect(place.path / "out" / "load.sqlite3")) as connection, connection:
        connection.execute(statement)
    result = simulate("load.toml", "--days", "0.1", "--output", "out", "--resume", "--report")
    assert_refused(result, words)
    assert 1 == result.stderr.count("\n")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal to send")
def test_past_that_is_not_made_again_changes_nothing(place):
    """A resumed run that is stopped before it has reached its old end leaves its file unchanged."""
    first = simulate(f"{place.module}:Stopped", "--days", "1", "--output", "out")
    assert 130 == first.exit_code
    before = content(place.path / "out" / "stopped.sqlite3")
    place.write(f"{place.module}.py", SCENARIOS.replace("43_210", "3_610"))
    again = simulate(f"{place.path}/{place.module}.py:Stopped", "--days", "1", "--output", "out", "--resume")
    assert (130, True) == (again.exit_code, "Stopped while the past was made again" in again.stdout), again.output
    assert before == content(place.path / "out" / "stopped.sqlite3")


def test_slip_leaves_nothing_behind(place):
    """After a refused parameter the same command can be run again, without ``--force``."""
    assert_refused(simulate("slots", "--set", "mean=0", "--output", "out"))
    assert 0 == simulate("slots", *SMALL, "--output", "out").exit_code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slots", *SMALL, "--output", "load.toml/sub"], "load.toml/sub"),
        (["named.toml"], "a/b"),
        (["logged.toml"], "missing.log"),
    ],
)
def test_files_that_cannot_be_are_told(place, arguments, words):
    """A bad output directory, a bad name and a missing log are reported."""
    place.write("named.toml", 'name = "a/b"\n' + FILE)
    place.write("logged.toml", FILE.replace("{mean = 1}", '{sample = "missing.log"}'))
    assert_refused(simulate(*arguments), words)


def test_file_that_exits_is_told(place):
    """A file that exits on import is reported."""
    place.write("leaving.py", "import sys\nsys.exit(0)\n")
    assert_refused(simulate("leaving.py:Load"), "'leaving.py:Load' cannot be imported: SystemExit")


@pytest.mark.parametrize("name", ["[red]api", "[/x]"])
def test_names_are_shown_as_they_are(place, name):
    """Names that look like markup are shown literally."""
    place.write("odd.toml", FILE.replace("executors.api", f'executors."{name}"').replace('"api"', f'"{name}"'))
    result = simulate("odd.toml")
    assert 0 == result.exit_code, repr(result.exception)
    assert name in result.stdout


# Progress.


def test_pipe_gets_plain_lines(place, monkeypatch):
    """In a pipe progress is a plain line every few seconds, with days, jobs and speed."""
    monkeypatch.setattr(runs_progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(runs, "_PROGRESS_SECONDS", 0.0)
    result = simulate("slots", *SMALL)
    lines = [line for line in result.stdout.splitlines() if line.startswith("slots: ")]
    assert len(lines) > 10
    assert all(" of 9h36m, " in line and " jobs, " in line and line.endswith(" x real time") for line in lines)
    assert "━" not in "".join(lines)
    assert "\x1b" not in result.output


def test_quiet_shows_the_summary_alone(place, monkeypatch):
    """With ``--quiet`` only the summary is printed."""
    monkeypatch.setattr(runs_progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(runs, "_PROGRESS_SECONDS", 0.0)
    result = simulate("slots", *SMALL, "--quiet")
    assert not [line for line in result.stdout.splitlines() if line.startswith("slots: ")]
    assert "jobs enqueued" in result.stdout


def test_terminal_gets_a_bar(place, monkeypatch):
    """On a terminal progress is a bar, removed at the end."""
    monkeypatch.setattr(runs, "_PROGRESS_SECONDS", 0.0)
    for is_quiet in (False, True):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=100)
        options = SimulateOptions(
            scenarios=("slots",), days=0.4, settings=("accounts=30",), report=False, force=True, quiet=is_quiet
        )
        assert 0 == run_simulations(options, console=console)
        assert is_quiet != (" x real time" in screen.getvalue().partition("seed 0")[0])
        assert "jobs enqueued" in screen.getvalue()


# Interrupted and resumed.


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal to send")
def test_interrupted_run_is_finished_by_another(place):
    """An interrupted run ends with 130 and a readable database; resumed, it is as one run would have been."""
    scenario = f"{place.module}:Stopped"
    first = process(place, scenario, "--days", "1", "--output", "out")
    assert (130, "") == (first.returncode, first.stderr)
    assert "Stopped at 12h1m of 1d. The same command with --resume goes on." in first.stdout
    assert "stopped, seed 0: 12h1m in " in first.stdout
    found = content(place.path / "out" / "stopped.sqlite3")
    assert ("interrupted", 43_260.0) == (found["status"], found["reached"])
    assert found["jobs"] == sum(sum(row[5:10]) for row in found["step rows"]) > 1000

    place.write("go", "")
    second = simulate(scenario, "--days", "1", "--output", "out", "--resume")
    assert (0, "") == (second.exit_code, second.stderr)
    assert "Stopped at" not in second.stdout
    whole = simulate(scenario, "--days", "1", "--output", "whole")
    assert 0 == whole.exit_code
    assert content(place.path / "whole" / "stopped.sqlite3") == content(place.path / "out" / "stopped.sqlite3")
    # Compare from the first table on: a slow run prints more before.
    tables = [run.stdout.partition("┌")[2].partition("Database")[0] for run in (second, whole)]
    assert tables[0] == tables[1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal to send")
def test_run_may_be_interrupted_again_and_again(place):
    """A resumed run may be interrupted again, also while it repeats its past, and keeps what was reached."""
    scenario = f"{place.module}:Stopped"
    for resume in ([], ["--resume"]):
        assert 130 == simulate(scenario, "--days", "1", "--output", "out", *resume).exit_code
        found = content(place.path / "out" / "stopped.sqlite3")
        assert ("interrupted", 43_260.0) == (found["status"], found["reached"])


def test_run_goes_on_for_more_days(place):
    """A finished run can be resumed for more days, and is then as a longer run would have been."""
    options = ("--set", "accounts=30", "--output")
    assert 0 == simulate("slots", "--days", "0.5", *options, "out").exit_code
    assert 0 == simulate("slots", "--days", "1", *options, "out", "--resume").exit_code
    assert 0 == simulate("slots", "--days", "1", *options, "whole").exit_code
    assert content(place.path / "whole" / "slots.sqlite3") == content(place.path / "out" / "slots.sqlite3")


def test_run_goes_on_from_within_a_step(place):
    """A run that ended within a step counts no job twice when it is resumed."""
    options = ("--step", "7m", "--output")
    assert 0 == simulate(f"{place.module}:Other", "--days", "0.1", *options, "out").exit_code
    assert 0 == simulate(f"{place.module}:Other", "--days", "0.2", *options, "out", "--resume").exit_code
    found = content(place.path / "out" / "other.sqlite3")
    assert found["jobs"] == sum(sum(row[5:10]) for row in found["step rows"])


def test_another_run_is_not_gone_on_with(place):
    """A run of other parameters, seed or step, or one that has come further, is not resumed."""
    options = ("--output", "out", "--resume")
    assert 0 == simulate("slots", *SMALL, "--output", "out").exit_code
    before = content(place.path / "out" / "slots.sqlite3")
    assert_refused(simulate("slots", "--days", "1", "--set", "accounts=31", *options), "a run with parameters")
    assert_refused(simulate("slots", *SMALL, "--seed", "5", *options), "a run with seed 0, and not 5")
    assert_refused(simulate("slots", *SMALL, "--step", "5m", *options), "a run with step 60.0, and not 300.0")
    assert_refused(simulate("slots", *SMALL, *options), "0.4 days already", "days")
    assert_refused(simulate("slots", *SMALL, "--days", "0.2", *options), "0.4 days already")
    assert before == content(place.path / "out" / "slots.sqlite3")


def test_file_of_something_else_is_not_gone_on_with(place):
    """A file that is not of a simulation is not resumed, and is left unchanged."""
    (place.path / "out").mkdir()
    place.write("out/slots.sqlite3", "my diary")
    assert_refused(simulate("slots", *SMALL, "--output", "out", "--resume"), "is not a database of a simulation")
    assert "my diary" == place.text("out/slots.sqlite3")


def test_interrupted_comparison_is_finished_by_another(place):
    """Resuming a comparison keeps finished runs, and runs the others."""
    assert 0 == simulate("slots", *SMALL, "--output", "out").exit_code  # as if interrupted between the two
    result = simulate("slots", "central", *SMALL, "--output", "out", "--resume", "--compare")
    assert 0 == result.exit_code, result.output
    assert "Best by sync delay: " in result.stdout


def test_comparison_needs_no_option_to_be_gone_on_with(place):
    """Several scenarios are compared also without ``--compare``."""
    assert 0 == simulate("slots", *SMALL, "--output", "out").exit_code
    result = simulate("slots", "central", *SMALL, "--output", "out", "--resume")
    assert (0, True) == (result.exit_code, "Best by sync delay: " in result.stdout), result.output


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal to send")
def test_interrupted_comparison_names_no_best(place):
    """An interrupted comparison names no best: a shorter run has fewer troubles."""
    module = place.module
    done = simulate(f"{module}:Other", f"{module}:Stopped", "--days", "1", "--output", "out", "--compare")
    assert 130 == done.exit_code
    assert "Stopped at 12h1m of 1d." in done.stdout
    assert "Best by" not in done.stdout


def test_resume_and_force_exclude_each_other(place):
    """``--resume`` and ``--force`` together are refused."""
    assert 0 == simulate("load.toml", "--output", "out").exit_code
    before = content(place.path / "out" / "load.sqlite3")
    assert_refused(
        simulate("load.toml", "--days", "1", "--output", "out", "--resume", "--force"), "--resume", "--force"
    )
    assert before == content(place.path / "out" / "load.sqlite3")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal to send")
def test_signal_handlers_come_back(place):
    """Signal handlers are restored after a run that was stopped; the workplace checks this."""
    place.write("kill.py", SCENARIOS)
    result = simulate("kill.py:Stopped", "--days", "1", "--output", "out")
    assert (130, True) == (result.exit_code, "The same command with --resume goes on" in result.stdout)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
