"""The comparison under overload counts correctly, and reports what it could not run; no test asserts a speed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench.harness import Options
from bench.overload import decision, scenarios, systems
from ratelimited_executor import Rate


def test_every_system_has_a_row_in_each_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each installed system is measured, or named as unable with the reason; one that is not installed has a note."""
    results = {"_window_scenario": ([0.0] * 20, 1.0), "_heavy_scenario": (0.1, 9), "_tenant_scenario": (3, 1, 0.1)}
    monkeypatch.setattr(
        scenarios,
        "_one_round",
        lambda options, scenario, *arguments: results.get(scenario.__name__, ([0.001], [0.0])),
    )
    monkeypatch.setattr(systems, "has_module", lambda name: name != "aiolimiter")

    tables = scenarios.measure(Options(quick=True))

    for table, kind in zip(tables, (systems.WINDOWS, systems.HEAVY, systems.TENANTS, systems.KEYED), strict=True):
        shown = [system for system in kind if system.package != "aiolimiter" and system.per_min <= 0.1]
        assert {system.name for system in shown} == set(table.rows)
        assert [note for note in table.notes if note.startswith("aiolimiter: skipped")] or kind is not systems.HEAVY
        for system in shown:
            if isinstance(system.opened, str):
                assert "cannot" in table.rows[system.name].values()
                assert f"{system.name} {system.opened}." in table.notes


@pytest.mark.parametrize(("a", "b", "expected"), [(5, 5, 1.0), (9, 0, 0.5), (0, 0, 0.0), (3, 1, 0.8)])
def test_jain_index(a: int, b: int, expected: float) -> None:
    """Jain's index is 1 for equal shares, and a half if one of two has everything."""
    assert pytest.approx(expected) == scenarios._jain(a, b)


def test_keys_ahead_of_others_are_counted() -> None:
    """A key that gets two more tasks than another, even one with none, is ahead; one more is within its turn."""
    assert 0 == decision._ahead([0, 1, 2, 0, 1], 3)
    assert 1 == decision._ahead([0, 1, 0, 1, 0, 2], 3)
    assert 1 == decision._ahead([0, 0], 3)


def test_starts_that_a_key_forbids_are_counted() -> None:
    """A start is forbidden if it follows the last one of its key by less than the gap, minus the slack."""
    started = [(0.0, "a"), (0.0, "b"), (0.985, "a"), (1.5, "b"), (1.6, "a"), (2.0, "b")]

    assert 2 == decision._forbidden(started, Rate(1))
