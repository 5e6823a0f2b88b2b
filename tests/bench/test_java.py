"""The workload of the Java original runs on both sides, and loses no task; no test asserts a speed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench import java
from bench.harness import Figure, Options
from bench.java import jvm

pytestmark = pytest.mark.real_time("processes of Python and of Java are measured")

OURS = ["ours, call_later", "ours, schedule_many"]


@pytest.mark.skipif(not jvm.has_jdk(), reason="no JDK")
def test_both_sides_run_every_task() -> None:
    """Both sides run all tasks, ours never early, and the tables compare ours with the better row of the JVM."""
    table, late = java.run(Options(quick=True))

    assert ["JVM, 1 producer", "JVM, 16 producers", *OURS] == list(table.rows) == list(late.rows)
    assert dict.fromkeys(table.checks, 0) == table.checks
    assert {"tasks of ours started early": 0} == late.checks
    for name in OURS:
        ours = table.rows[name]["total"]
        theirs = min(table.rows[side]["total"].median for side in list(table.rows)[:2])
        assert pytest.approx(theirs / ours.median) == table.rows[name]["JVM's total by ours"].median
        assert isinstance(late.rows[name]["JVM's p99 by ours"], Figure)


@pytest.mark.skipif(not jvm.has_jdk(), reason="no JDK")
def test_jvm_runs_as_many_tasks_as_asked() -> None:
    """Each task runs, and none early, however many threads produce, even if they cannot share the tasks evenly."""
    with jvm.compiled() as classes:
        result = jvm.measure(classes, count=333, spread=0.02, producers=16, warm_up_count=50, warm_up_rounds=1)

    assert 333 == result["ran"]
    assert 0 <= result["least_ms"] <= result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert result["cpu_seconds"] >= 0
    assert result["total_seconds"] >= result["schedule_seconds"] > 0
    assert result["peak_bytes"] > 0


def test_without_a_jdk_our_side_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a JDK the tables have our rows only, and a note says so."""
    monkeypatch.setattr(jvm, "has_jdk", lambda: False)

    table, late = java.run(Options(quick=True))

    assert OURS == list(table.rows) == list(late.rows)
    assert any("no JDK" in note for note in table.notes)
    assert dict.fromkeys(table.checks, 0) == table.checks


def test_jvm_that_would_lack_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM is left out if its heap is too small for the tasks, as it would fail halfway through a long run."""
    monkeypatch.setattr(jvm, "heap_bytes", lambda: 1_000)

    table, _ = java.run(Options(quick=True))

    assert OURS == list(table.rows)
