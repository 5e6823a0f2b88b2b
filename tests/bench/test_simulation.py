"""The simulator and SimPy run the same model, and the tables have their rows; no test asserts a speed."""

import sqlite3
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench import simulation
from bench.harness import Options, fresh
from bench.sections import load, names
from ratelimited_executor.simulation import Constant, LogNormal

MODEL = {"keys": 3_000, "days": 0.02, "workers": 2, "is_constant": False}
COUNTS = ("started", "done", "executing", "depth")


def _needs_simpy() -> None:
    pytest.importorskip("simpy")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, as starting others takes most of the time at tiny sizes."""

    def here(function: str, **arguments):
        assert "bench.simulation:measure" == function
        return simulation.measure(**arguments)

    monkeypatch.setattr(simulation, "fresh", here)


def _due_count(keys: int, seconds: float) -> int:
    from ratelimited_executor.spread import offset

    cycle_seconds = 86_400 / simulation.CYCLES_A_DAY
    whole, rest = divmod(seconds, cycle_seconds)
    return int(whole) * keys + sum(offset(key, simulation.CYCLE) < rest for key in range(keys))


def test_section_is_registered() -> None:
    """The command line finds the section by its name."""
    assert simulation.NAME in names()
    assert simulation is load(simulation.NAME)


@pytest.mark.parametrize("side", simulation._SIDES)
def test_every_side_counts_the_same(side: str) -> None:
    """Each side runs the same jobs, with the same mean numbers of running and waiting ones."""
    _needs_simpy()

    expected = simulation.measure(side=simulation.THEIRS, **MODEL)
    measured = simulation.measure(side=side, **MODEL)

    # Slots draw by key, so their durations are others of the same distribution.
    tolerance = {"abs": 1e-9} if side != simulation.OURS_EVERY else {"rel": 0.5, "abs": 0.3}
    assert {key: expected[key] for key in COUNTS} == pytest.approx({key: measured[key] for key in COUNTS}, **tolerance)
    assert 0 < measured["done"] <= measured["started"] == _due_count(3_000, 0.02 * 86_400)
    assert 0 < measured["executing"]
    assert 0 < measured["rows"]


@pytest.mark.parametrize("side", [simulation.OURS, simulation.OURS_COROUTINES, simulation.THEIR_CALLBACKS])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("keys", "days", "is_busy"), [(6_000, 0.02, True), (200, 0.7, False)], ids=["jobs wait", "third cycle"]
)
def test_models_agree(side: str, is_constant: bool, keys: int, days: float, is_busy: bool) -> None:
    """The sides agree even if one worker has too many jobs, and over several cycles."""
    _needs_simpy()
    model = {"keys": keys, "days": days, "workers": 1, "is_constant": is_constant}

    expected = simulation.measure(side=simulation.THEIRS, **model)
    measured = simulation.measure(side=side, **model)

    assert {key: expected[key] for key in COUNTS} == pytest.approx({key: measured[key] for key in COUNTS}, abs=1e-9)
    assert is_busy is (expected["depth"] > 0.1)


@pytest.mark.parametrize(
    ("side", "sampled", "count"),
    [(simulation.OURS, simulation.OURS_SAMPLED, 3), (simulation.THEIRS, simulation.THEIRS_SAMPLED, 2)],
)
def test_samples_are_rows_of_each_job(side: str, sampled: str, count: int) -> None:
    """With samples, either side writes start delay and duration of each job; ours the delay also of its kind."""
    _needs_simpy()

    aggregated, whole = (simulation.measure(side=each, **MODEL) for each in (side, sampled))

    assert count * whole["started"] == whole["rows"] - aggregated["rows"]


def test_theirs_writes_what_it_measured(tmp_path: Path) -> None:
    """The rows in the file are those that were counted, one step for each minute."""
    _needs_simpy()
    path = tmp_path / "theirs.sqlite"

    counts = simulation._Theirs(simulation.THEIRS_SAMPLED, 3_000, 0.02, 2, Constant(4.0), path).run()

    connection = sqlite3.connect(path)
    tables = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("step", "quantiles", "sample")
    ]
    done, started, last = connection.execute("SELECT sum(done_jobs), sum(started_jobs), max(time) FROM step").fetchone()
    connection.close()
    assert 29 == tables[0]  # 28.8 minutes
    assert counts["rows"] == sum(tables)
    assert (counts["done"], counts["started"], 0.02 * 86_400) == (done, started, last)


def test_both_draw_the_same_durations() -> None:
    """The iterator in C draws the same durations as the distribution."""
    duration, chance = LogNormal(mean=4, p90=8), simulation._chance()

    draws = simulation._draws(duration)

    assert [(duration.draw(chance), chance.random())[0] for _ in range(20)] == pytest.approx(
        [next(draws) for _ in range(20)], rel=1e-12
    )
    assert 4.0 == next(simulation._draws(Constant(4.0)))


@pytest.mark.real_time("the benchmark measures itself")
def test_quick_run_from_the_command_line(
    in_this_process: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints each table; every side has a row, each check is 0, and ratios are to SimPy."""
    _needs_simpy()
    from bench.__main__ import main

    tables: list = []
    run = simulation.run
    monkeypatch.setattr(simulation, "run", lambda options: tables.extend(run(options)) or tables)

    results = main([simulation.NAME, "--quick"])

    printed = capsys.readouterr().out
    assert [table.title for table in tables] == [table["title"] for table in results["sections"][simulation.NAME]]
    whole, constant, waiting, small, growth = tables
    assert list(simulation._SIDES) == list(whole.rows)
    assert [4, 4, 2, 4] == [len(table.rows) for table in (constant, waiting, small, growth)]
    for table in tables:
        assert table.title in printed
        assert table.checks
        assert dict.fromkeys(table.checks, 0) == table.checks
    for table in (whole, constant, waiting, small):
        assert {1.0} == set(table.rows[simulation.THEIRS]["against SimPy"].values)
        assert all(set(table.columns) == set(row) for row in table.rows.values())
    assert "<= 1 s" == small.rows[simulation.OURS]["wall"].target.text
    assert 2 == len(growth.charts)


@pytest.mark.real_time("a process of its own")
@pytest.mark.parametrize("side", [simulation.OURS, simulation.THEIRS])
def test_process_of_its_own_counts_the_same(side: str) -> None:
    """A side in a process of its own, as in real measurements, counts the same as in this one."""
    _needs_simpy()

    measured = fresh("bench.simulation:measure", side=side, **MODEL)

    expected = simulation.measure(side=side, **MODEL)
    assert {key: expected[key] for key in COUNTS} == pytest.approx({key: measured[key] for key in COUNTS}, abs=1e-9)


def test_without_simpy_ours_is_measured_alone(in_this_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SimPy its rows are left out, and a note says so."""
    monkeypatch.setattr(simulation, "has_module", lambda name: False)

    tables = simulation.run(Options(quick=True))

    assert not any("SimPy" in case for table in tables for case in table.rows)
    assert "SimPy: skipped, as simpy is not installed" in tables[0].notes
    assert "against SimPy" not in tables[0].rows[simulation.OURS]
