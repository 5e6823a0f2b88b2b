"""Input that would fill the memory or never end is refused at once, by name, limit and unit."""

from __future__ import annotations

import gzip
import os

import pytest
from click.testing import CliRunner

from ratelimited_executor.cli.commands import cli
from ratelimited_executor.simulation import (
    Constant,
    Poisson,
    Recorded,
    Scenario,
    forecast,
    limits,
    load_toml,
    read_csv,
    read_recording,
    recordings,
    simulate,
    simulation,
)
from ratelimited_executor.simulation.calls import Calls

SCENARIO = """
days = {days}
[executors.api]
rate = 5
{executor}
[populations.p]
count = {keys}
period = "5m"
[jobs.j]
duration = {duration}
[[arrivals]]
executor = "api"
job = "j"
{arrivals}
"""
USUAL = {"days": "0.01", "executor": "", "keys": "5", "duration": "0.4", "arrivals": "count = 5"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrivals": "count = 1_000_000_000_000"},
         r"\[\[arrivals\]\] number 1: count must be at most 20,000,000 jobs, got 1000000000000"),
        ({"arrivals": "rate = 1e9"}, "rate must be at most 100,000 arrivals a second, got 1000000000.0"),
        ({"arrivals": "rate = 1e308"}, "rate must be at most 100,000 arrivals a second, got 1e"),
        ({"arrivals": "daily = {0 = 1e308}"}, r"daily: rates\[0\] must be at most 100,000 arrivals a second, got 1e"),
        ({"arrivals": "count = 5\nover = 1e308"}, "over must be at most 9,504,000,000 s, got 1e"),
        ({"arrivals": "count = 5\nat = 1e308"}, "at must be at most 9,504,000,000 s, got 1e"),
        ({"executor": "nodes = 1_000_000_000"}, r"\[executors.api\]: nodes must be at most 10,000 nodes"),
        ({"keys": "1_000_000_000_000"}, r"\[populations.p\]: count must be at most 10,000,000 keys"),
        ({"duration": "1e308"}, r"\[jobs.j\]: duration must be at most 9,504,000,000 s, got 1e"),
        ({"duration": "{percentiles = {0 = 0, 100 = 1e308}}"}, "duration must be at most 9,504,000,000 s"),
        ({"duration": "{mean = 1e308}"}, "duration must be at most 9,504,000,000 s"),
        ({"days": "9223372036854775807"}, "days must be at most 110,000 days"),
    ],
)  # fmt: skip
def test_a_file_beyond_a_limit_is_refused(tmp_path, change, words):
    """A file beyond a limit is refused with the place, the key, the limit and the value."""
    (tmp_path / "load.toml").write_text(SCENARIO.format(**(USUAL | change)))
    with pytest.raises(ValueError, match=words):
        simulate(load_toml(tmp_path / "load.toml"))


def test_a_scenario_in_a_file_is_bounded(tmp_path, monkeypatch):
    """A file too large or nested too deeply is refused without reading it all."""
    monkeypatch.setattr("ratelimited_executor.simulation.toml.TOML_BYTES_MAX", 100)
    (tmp_path / "load.toml").write_text("#" * 101)
    with pytest.raises(ValueError, match="a scenario must be at most 100 bytes, got 101"):
        load_toml(tmp_path / "load.toml")
    monkeypatch.setattr("ratelimited_executor.simulation.toml.TOML_BYTES_MAX", limits.TOML_BYTES_MAX)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.toml cannot be read as TOML"):
        load_toml(tmp_path / "deep.toml")


def test_jobs_that_wait_are_bounded(monkeypatch):
    """The number of waiting jobs is bounded, with a message that says what to do."""
    monkeypatch.setattr(simulation, "JOBS_MAX", 1000)

    class Flood(Scenario):
        days = 1

        def setup(self, sim):
            sim.arrive(Poisson(100), sim.executor("api", rate=1), sim.job("call", 1))

    with pytest.raises(
        ValueError, match=r"what waits for api after 1m must be at most 1,000 jobs \(give it a larger rate, or max_p"
    ):
        simulate(Flood())


def test_what_python_scenarios_are_given_is_bounded_too(tmp_path):
    """The limits also apply to scenarios in Python."""
    with pytest.raises(ValueError, match="count must be at most 20,000,000 jobs"):
        Calls(count=10**12)
    with pytest.raises(ValueError, match="nodes must be at most 10,000 nodes"):
        Calls(nodes=10**9)
    with pytest.raises(ValueError, match="seeds must be at most 10,000 runs"):
        forecast(Calls(), within=1, seeds=10**9)
    with pytest.raises(ValueError, match="step must be at least 0.001 s"):
        simulate(Calls(), step=1e-300)
    (tmp_path / "one.csv").write_text("at\n5\n")
    with pytest.raises(ValueError, match="every: the rate of a recording that is played again must be at most 100,000"):
        Recorded(read_csv(tmp_path / "one.csv", time="at"), every=1e-300)
    assert Constant(1e300).mean == 1e300  # a distribution alone has no limit


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_a_recording_is_a_regular_file(path):
    """A recording must be a regular file: a device may never end."""
    if not os.path.exists(path):
        pytest.skip("no such device here")
    with pytest.raises(ValueError, match=f"{path}: path must name a regular file"):
        read_recording(path)


@pytest.mark.parametrize("name", ["zeros.csv", "zeros.log", "zeros", "zeros.csv.gz"])
def test_a_line_of_a_recording_is_bounded(tmp_path, monkeypatch, name):
    """The length of a recording's line is bounded, also in a compressed file."""
    monkeypatch.setattr(recordings, "RECORD_CHARS_MAX", 1000)
    content = b"at,key\n1,a\n" + bytes(1_000_000) + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    columns = {} if name.endswith(".log") else {"time": "at"}
    with pytest.raises(ValueError, match="lines of at most 1,000 characters, line"):
        read_recording(tmp_path / name, **columns)


def test_the_lines_of_a_recording_are_bounded(tmp_path, monkeypatch):
    """The number of a recording's lines is bounded."""
    monkeypatch.setattr(recordings, "RECORDED_MAX", 5)
    for rows in (4, 5):
        (tmp_path / "load.csv").write_text("at\n" + "1\n" * rows)
        if rows == 4:
            assert 4 == len(read_csv(tmp_path / "load.csv", time="at").times)
        else:
            with pytest.raises(ValueError, match="at most 5 lines"):
                read_csv(tmp_path / "load.csv", time="at")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["forecast", "--calls", "1000000000000", "--duration", "1", "--within", "1h"],
         "--calls must be at most 20,000,000 calls, got 1000000000000"),
        (["forecast", "--calls", "5", "--nodes", "1000000000", "--duration", "1", "--within", "1h"],
         "--nodes must be at most 10,000 nodes, got 1000000000"),
        (["forecast", "--calls", "5", "--durations", "/dev/zero", "--within", "1h"],
         "/dev/zero: path must name a regular file"),
        (["forecast", "--calls", "5", "--duration", "1", "--within", "1h", "--seeds", "1000000000"],
         "seeds must be at most 10,000 runs, got 1000000000"),
        (["simulate", "long.toml", "--no-report"], "the name of a scenario must have at most 200 bytes"),
        (["simulate", "slots", "--no-report", "--days", "1e300"], "days must be at most 110,000 days"),
    ],
)  # fmt: skip
def test_a_command_beyond_a_limit_is_refused_in_one_line(tmp_path, monkeypatch, arguments, words):
    """A command beyond a limit is refused in one line with status 2, without a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.toml").write_text(f'name = "{"a" * 300}"\n{SCENARIO.format(**USUAL)}')
    result = CliRunner().invoke(cli, arguments)
    assert (2, True) == (result.exit_code, words in result.stderr), result.output
    assert 1 == result.stderr.count("\n")
