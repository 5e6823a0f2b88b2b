"""The command ``forecast``: its answer, its exit status, and what it refuses."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.simulate import progress as runs_progress
from ratelimited_executor.cli.simulate.forecast_command import ForecastOptions, run_forecast
from ratelimited_executor.simulation import runs

from ..refusals import assert_refused

DATA = Path(__file__).parents[3] / "examples" / "data"
PATIENCE_S = 60

SCENARIOS = """
import dataclasses, os, signal

from ratelimited_executor.simulation import Poisson, Scenario


@dataclasses.dataclass
class Invoices(Scenario):
    '''As many as there are, one a second.'''

    count: int = 100

    def setup(self, sim):
        sim.executor("api", rate=1).schedule_many(sim.job("send", 0.5), range(self.count))


class Coin(Scenario):
    '''In time in every other run.'''

    def setup(self, sim):
        sim.executor("api").schedule(sim.job("toss", 1 if sim.random.random() < 0.5 else 100), 1)


class Endless(Scenario):
    def setup(self, sim):
        sim.arrive(Poisson(0.01), sim.executor("api"), sim.job("call", 1))


class Empty(Scenario):
    def setup(self, sim):
        pass


class Stopped(Scenario):
    def setup(self, sim):
        sim.executor("api").schedule(sim.job("call", 100), 1)
        sim.at(50, lambda: os.kill(os.getpid(), signal.SIGINT))
"""

FILE = """
[executors.api]
rate = "1/s"
[jobs.call]
duration = 0.5
[[arrivals]]
executor = "api"
job = "call"
count = 100
"""


@pytest.fixture(name="place")
def _place(place):
    """A workplace with scenarios in a module and in a TOML file."""
    place.write(f"{place.module}.py", SCENARIOS)
    place.write("load.toml", FILE)
    return place


def forecast(*arguments: str):
    """Run the command in this process."""
    return CliRunner().invoke(cli, ["forecast", *arguments], env={"COLUMNS": "200"})


def rows_of(result) -> dict[str, str]:
    """Return the rows of the table: the text of each by its name."""
    pairs = (line.split("│")[1:3] for line in result.stdout.splitlines() if line.startswith("│"))
    return {name.strip(): text.strip() for name, text in pairs}


def answer_of(result) -> str:
    """Return the answer, which is the last line."""
    return result.stdout.splitlines()[-1]


# The answer.


@pytest.mark.parametrize(("seeds", "has_interval"), [(1, False), (5, False), (6, True)])
def test_few_runs_have_no_interval_of_the_median(seeds, has_interval):
    """Fewer than six runs have no 95 % interval of the median, and none is shown."""
    result = forecast("--calls", "10", "--rate", "1", "--duration", "0.5", "--within", "100", "--seeds", str(seeds))
    shown = rows_of(result)["95 % interval of the median"]
    assert ("00:00:10 (9.5 s) to 00:00:10 (9.5 s)" if has_interval else "none from fewer than 6 runs") == shown


def test_yes_is_status_0():
    """Work that is done in time is answered by Yes and status 0: 100 calls at one a second end after 99.5 s."""
    result = forecast("--calls", "100", "--rate", "1", "--duration", "0.5", "--within", "100", "--seeds", "8")
    assert 0 == result.exit_code, result.output
    assert "Yes: done by 00:01:40 in 8 of 8 runs, a chance of 100% (95 % interval 68% to 100%)." == answer_of(result)
    rows = rows_of(result)
    assert ("100, 0.0", "00:01:40 (1m40s)") == (rows["jobs in a run, failed ones"], rows["allowed"])
    assert {"earliest end", "median end", "95 % interval of the median", "latest end"} < set(rows)


def test_no_is_status_1():
    """Work that is late is answered by No and status 1, with its earliest end."""
    result = forecast("--calls", "100", "--rate", "1", "--duration", "0.5", "--within", "98", "--seeds", "8")
    assert 1 == result.exit_code
    assert "No: done by 00:01:38 in 0 of 8 runs, a chance of 0% (95 % interval 0% to 32%)." == answer_of(result)
    assert rows_of(result)["earliest end"].startswith("00:01:40")


def test_what_is_never_through_is_later():
    """Work that takes longer than twice the time, and than an hour, ends "later"."""
    result = forecast("--calls", "10000", "--rate", "1", "--duration", "1", "--within", "60", "--seeds", "6")
    rows = rows_of(result)
    assert (1, "later", "later", "later to later") == (
        result.exit_code,
        rows["earliest end"],
        rows["latest end"],
        rows["95 % interval of the median"],
    )


@pytest.mark.parametrize("seeds", ["2", "20"])
def test_not_sure_is_said(place, seeds):
    """If the interval includes one half the answer is not sure, and the status is that of the estimate."""
    result = forecast(f"{place.module}:Coin", "--within", "10", "--seeds", seeds)
    match = re.fullmatch(
        r"Uncertain: done by 00:00:10 in (\d+) of (\d+) runs, a chance of \d+% "
        r"\(95 % interval (\d+)% to (\d+)%\)\.",
        answer_of(result),
    )
    assert match, result.output
    hits, count, low, high = map(int, match.groups())
    assert (count, True) == (int(seeds), low < 50 < high)
    assert (0 if hits / count >= 0.5 else 1) == result.exit_code


def test_few_runs_are_not_sure_even_if_all_are_in_time():
    """Three of three runs in time are not sure: their chance is only 44 % at least."""
    result = forecast("--calls", "1", "--duration", "1", "--within", "10", "--seeds", "3")
    assert (0, True) == (result.exit_code, answer_of(result).startswith("Uncertain: "))


def test_same_seed_tells_the_same():
    """The same first seed gives the same answer, and another one gives another."""
    options = ["--calls", "50", "--mean", "4", "--p90", "8", "--within", "20", "--seeds", "6"]
    first, again, other = forecast(*options), forecast(*options), forecast(*options, "--seed", "6")
    assert first.stdout == again.stdout != other.stdout


# The time allowed.


@pytest.mark.parametrize(
    ("start", "by", "allowed"),
    [
        ("00:00", "06:00", "06:00:00 (6h)"),
        ("22:00", "06:00", "06:00:00 on day 2 (8h)"),
        ("06:00", "06:00", "06:00:00 on day 2 (1d)"),
        ("06:01", "06:00", "06:00:00 on day 2 (23h59m)"),
        ("23:59", "00:00", "00:00:00 on day 2 (1m)"),
        ("9:05", "9:07", "09:07:00 (2m)"),
    ],
)
def test_by_is_on_the_same_or_the_next_day(start, by, allowed):
    """``--by`` is the first such time after the start, on the same or the next day."""
    result = forecast("--calls", "1", "--duration", "1", "--start", start, "--by", by, "--seeds", "1")
    assert (0, allowed) == (result.exit_code, rows_of(result)["allowed"])
    assert f"done by {allowed.partition(' (')[0]} in 1 of 1 runs" in answer_of(result)


def test_within_may_be_longer_than_a_day():
    """``--within`` longer than a day is shown with the day."""
    result = forecast("--calls", "1", "--duration", "1", "--start", "12:00", "--within", "36h", "--seeds", "1")
    assert "00:00:00 on day 3 (1d12h)" == rows_of(result)["allowed"]


def test_time_of_day_and_span_are_rounded_alike():
    """A time of day and a span are rounded alike: an end after 100.9 s is 00:01:41 and 1m41s."""
    result = forecast("--calls", "1000", "--rate", "10", "--duration", "1", "--within", "2m", "--seeds", "1")
    assert "00:01:41 (1m41s)" == rows_of(result)["latest end"]


# The work.


def test_durations_are_those_of_an_access_log():
    """Durations are drawn from those of an access log."""
    log = str(DATA / "access.log.gz")
    result = forecast("--calls", "500", "--rate", "10", "--durations", log, "--by", "00:05", "--seeds", "6")
    assert (0, "Yes") == (result.exit_code, answer_of(result)[:3]), result.output
    assert rows_of(result)["median end"].startswith(("00:00:49", "00:00:50"))


def test_attempts_are_made_of_what_fails():
    """Without further attempts a part of the calls is lost; with them none is, and the work takes longer."""
    options = [
        "--calls",
        "1000",
        "--rate",
        "10",
        "--duration",
        "0.1",
        "--failures",
        "0.3",
        "--within",
        "1h",
        "--seeds",
        "4",
    ]
    once, often = forecast(*options), forecast(*options, "--attempts", "20")
    assert (0, 0) == (once.exit_code, often.exit_code)
    jobs, failed = rows_of(once)["jobs in a run, failed ones"].split(", ")
    assert ("1,000", pytest.approx(300, abs=5 * 14.5 / 2)) == (jobs, float(failed))
    assert "1,000, 0.0" == rows_of(often)["jobs in a run, failed ones"]
    assert rows_of(once)["latest end"] < "00:01:45" < "00:02:10" < rows_of(often)["earliest end"]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        (["--calls", "100", "--rate", "60/min", "--duration", "0.5"], "00:01:40"),
        (["--calls", "100", "--rate", "2/s", "--duration", "0.5", "--nodes", "2"], "00:00:51"),
        (["--calls", "100", "--duration", "2", "--concurrency", "10"], "00:00:20"),
        (["--calls", "100", "--duration", "2", "--concurrency", "10", "--nodes", "5"], "00:00:04"),
        (["--calls", "100", "--duration", "7"], "00:00:07"),
    ],
)
def test_rate_nodes_and_concurrency_hold(options, end):
    """The rate holds for all nodes together, the concurrency for each; without either, all calls run at once."""
    result = forecast(*options, "--within", "1h", "--seeds", "1")
    assert 0 == result.exit_code, result.output
    assert rows_of(result)["latest end"].startswith(end)


def test_scenarios_are_what_simulate_takes(place):
    """A scenario may be a class in a module or file, with parameters, or a TOML file."""
    for arguments, jobs in (
        ([f"{place.module}:Invoices"], 100),
        ([f"{place.module}.py:Invoices", "--set", "count=50"], 50),
        (["load.toml"], 100),
    ):
        result = forecast(*arguments, "--within", "2m", "--seeds", "5")
        assert 0 == result.exit_code, result.output
        assert f"{jobs}, 0.0" == rows_of(result)["jobs in a run, failed ones"]
        assert "Yes" == answer_of(result)[:3]


def test_scenario_that_never_ends_is_never_through(place):
    """A scenario whose jobs never end is late."""
    result = forecast(f"{place.module}:Endless", "--within", "1m", "--seeds", "6")
    assert (1, "later", "No") == (result.exit_code, rows_of(result)["median end"], answer_of(result)[:2])


# Progress.


def test_pipe_gets_the_answer_alone():
    """In a pipe only the answer is printed: no bar, and nothing on standard error."""
    result = forecast("--calls", "10", "--duration", "1", "--within", "1m")
    assert ("", False) == (result.stderr, "\x1b" in result.stdout or "of 20 runs\n" in result.stdout)


def test_pipe_gets_a_line_now_and_then(monkeypatch):
    """In a pipe progress is a line now and then, and none with ``--quiet``."""
    monkeypatch.setattr(runs_progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(runs, "_PROGRESS_SECONDS", 0.0)
    arguments = ["--calls", "100", "--rate", "1", "--duration", "1", "--within", "5m", "--seeds", "2"]
    lines = [line for line in forecast(*arguments).stdout.splitlines() if line.startswith("runs: ")]
    assert any(re.match(r"runs: 0 of 2 runs, the next at 1m, \d+ jobs of 100", line) for line in lines)
    assert lines[-1].startswith("runs: 2 of 2 runs, ")
    assert "runs: " not in forecast(*arguments, "--quiet").stdout


def test_terminal_gets_a_bar_unless_it_is_quiet():
    """On a terminal progress is a bar, removed at the end, and none with ``--quiet``."""
    for is_quiet in (False, True):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=120)
        options = ForecastOptions(calls=10, mean=1.0, within=60.0, seeds=4, quiet=is_quiet)
        assert 0 == run_forecast(options, console=console)
        assert is_quiet != ("4 of 4 runs" in screen.getvalue().partition("earliest end")[0])
        assert "in 4 of 4 runs" in screen.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal to send")
def test_interrupt_is_status_130(place):
    """An interrupt ends the command with status 130, without a traceback."""
    command = [sys.executable, "-m", "ratelimited_executor", "forecast", f"{place.module}:Stopped", "--within", "1h"]
    done = subprocess.run(command, cwd=place.path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (130, "") == (done.returncode, done.stderr)


def test_it_begins_at_the_time_that_was_said(place):
    """Quotas count from the given start: shortly before midnight the next day's is near."""
    text = FILE.replace('rate = "1/s"', 'rate = "1/s, 600 per day"')
    text = text[: text.index("[[arrivals]]")] + '[[arrivals]]\nexecutor = "api"\njob = "call"\ncount = 900\n'
    place.write("nightly.toml", text)
    for start, answer in (("23:45", "Yes"), ("23:00", "No")):
        result = forecast("nightly.toml", "--start", start, "--within", "30m", "--seeds", "6")
        assert answer == answer_of(result)[: len(answer)], result.output


def test_work_that_never_ends_is_told_so(place):
    """Work that never ends is reported as such, and not only as late."""
    assert "jobs never stop arriving" in forecast(f"{place.module}:Endless", "--within", "1m", "--seeds", "1").stdout


def test_outage_after_the_end_is_not_waited_for(place):
    """The last job ends the forecast; an outage after it is not waited for."""
    place.write("load.toml", FILE + '[[outages]]\njob = "call"\nbegin = "10h"\nend = "11h"\n')
    for within in ("2m", "24h"):
        result = forecast("load.toml", "--within", within, "--seeds", "1")
        assert rows_of(result)["latest end"].startswith("00:0"), result.output


# Refusals.

CALL = ("--calls", "5", "--duration", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--calls or a SCENARIO"]),
        (["--within", "1h"], ["--calls or a SCENARIO"]),
        (["slots", "--calls", "5", "--within", "1h"], ["--calls or a SCENARIO"]),
        (["--calls", "0", "--duration", "1", "--within", "1h"], ["--calls"]),
        (["--calls", "-5", "--duration", "1", "--within", "1h"], ["--calls"]),
        (["--calls", "5", "--within", "1h"], ["the duration of calls", "--duration", "--mean", "--durations"]),
        (["--calls", "5", "--p90", "1", "--within", "1h"], ["the duration of calls", "--mean"]),
        (["--calls", "5", "--duration", "1", "--p90", "2", "--within", "1h"], ["--p90 needs --mean"]),
        (["--calls", "5", "--duration", "1", "--mean", "1", "--within", "1h"], ["one of --duration, --mean"]),
        ([*CALL], ["--by HH:MM", "--within"]),
        ([*CALL, "--by", "06:00", "--within", "1h"], ["--by HH:MM or --within"]),
        ([*CALL, "--by", "6"], ["--by must be a time of day such as 06:00, got '6'"]),
        ([*CALL, "--by", "24:00"], ["--by must be a time of day such as 06:00, got '24:00'"]),
        ([*CALL, "--by", "06:00", "--start", "noon"], ["--start must be a time of day"]),
        ([*CALL, "--within", "0"], ["--within"]),
        ([*CALL, "--within", "soon"], ["--within"]),
        ([*CALL, "--within", "1h", "--rate", "fast"], ["--rate", "200, 100/s or 5/min"]),
        ([*CALL, "--within", "1h", "--rate", "-1"], ["--rate"]),
        ([*CALL, "--within", "1h", "--nodes", "0"], ["--nodes"]),
        ([*CALL, "--within", "1h", "--concurrency", "0"], ["--concurrency"]),
        ([*CALL, "--within", "1h", "--failures", "1.5"], ["--failures"]),
        ([*CALL, "--within", "1h", "--failures", "nan"], ["failures must be finite"]),
        ([*CALL, "--within", "1h", "--attempts", "0"], ["--attempts"]),
        ([*CALL, "--within", "1h", "--seeds", "0"], ["--seeds"]),
        ([*CALL, "--within", "1h", "--set", "count=5"], ["--set is for a SCENARIO"]),
        ([*CALL, "--within", "1h", "--durations", "x.log"], ["one of --duration, --mean", "--durations"]),
        (["--calls", "5", "--duration", "0", "--within", "1h"], ["--duration"]),
        (["--calls", "5", "--mean", "0", "--within", "1h"], ["--mean"]),
        (["--calls", "5", "--mean", "nan", "--within", "1h"], ["--mean", "a duration looks like"]),
        (["--calls", "5", "--mean", "4", "--p90", "120", "--within", "1h"], ["at most 10 times the mean, 40", "120"]),
        (["--calls", "5", "--mean", "4", "--p90", "30", "--within", "1h"], ["at most 2.273 times the mean, 9.09"]),
        (["--calls", "5", "--mean", "4", "--p90", "3", "--within", "1h"], ["p90 must be more than the mean"]),
        (["--calls", "5", "--durations", "no.log", "--within", "1h"], ["No such file", "no.log"]),
        (["--calls", "5", "--durations", ".", "--within", "1h"], ["Is a directory"]),
        (["--calls", "5", "--durations", "untimed.log", "--within", "1h"], ["untimed.log does not contain the duration"]),
        (["--calls", "5", "--durations", "diary.log", "--within", "1h"], ["diary.log", "log format"]),
        (["nope", "--within", "1h"], ["there is no scenario 'nope'", "slots", "my_module:MyScenario"]),
        (["no.toml", "--within", "1h"], ["No such file", "no.toml"]),
        (["slots", "--within", "1h", "--set", "acounts=5"], ["slots has no parameter 'acounts'", "accounts, banks"]),
        (["load.toml", "--within", "1h", "--set", "count=5"], ["load.toml has no parameter 'count'", "(none)"]),
        (["MODULE:Empty", "--within", "1h"], ["creates no executor"]),
        (["p90.toml", "--within", "1h"], ["at most 10 times the mean, 40"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(place, arguments, words):
    """Bad input is refused with status 2, what is wrong, and what is possible."""
    place.write("untimed.log", '192.0.2.1 - - [01/Jan/2024:13:55:36 +0100] "GET / HTTP/1.1" 200 99\n')
    place.write("diary.log", "dear diary\n")
    place.write("p90.toml", FILE.replace("duration = 0.5", "duration = {mean = 4, p90 = 120}"))
    result = forecast(*(argument.replace("MODULE", place.module) for argument in arguments))
    assert_refused(result, *words)


@pytest.mark.parametrize(
    "option",
    [
        ["--rate", "1/min"],
        ["--nodes", "3"],
        ["--concurrency", "2"],
        ["--duration", "9"],
        ["--mean", "9"],
        ["--p90", "9"],
        ["--durations", "no.log"],
        ["--failures", "0.5"],
        ["--attempts", "3"],
    ],
    ids=lambda option: option[0],
)
def test_options_of_calls_are_refused_with_a_scenario(place, option):
    """Options of ``--calls`` are refused with a scenario, on which they have no effect."""
    result = forecast("load.toml", "--within", "2m", "--seeds", "1", *option)
    assert_refused(result, option[0])


def test_time_beyond_all_dates_is_refused():
    """A time beyond all dates does not end in a traceback."""
    result = forecast(*CALL, "--within", "9999999d", "--seeds", "1")
    assert result.exit_code in (0, 2), repr(result.exception)


def test_missing_log_of_a_scenario_is_told(place):
    """A missing log of a scenario is reported by name."""
    place.write("logged.toml", FILE.replace("duration = 0.5", 'duration = {sample = "missing.log"}'))
    assert_refused(forecast("logged.toml", "--within", "1h", "--seeds", "1"), "missing.log")


def test_rate_of_zero_is_refused():
    """A rate of 0, which would never start a call, is refused."""
    assert_refused(forecast(*CALL, "--rate", "0", "--within", "1h", "--seeds", "1"), "--rate 0 would never start")
