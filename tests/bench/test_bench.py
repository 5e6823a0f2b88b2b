"""The benchmarks run, and their results are correct; no test asserts a speed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package


@pytest.mark.real_time("the benchmarks measure real event loops and processes")
@pytest.mark.parametrize(
    "section", ["throughput", "memory", "growth", "coroutines", "watching", "pacing", "overflow", "guest", "soak"]
)
def test_quick_run_loses_nothing_and_starts_nothing_early(
    section: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each section fills its tables at tiny sizes, and each count of an event that must not happen is 0."""
    from bench.__main__ import main

    results = main([section, "--quick", "--json", str(tmp_path / "results.json")])

    tables = results["sections"][section]
    assert tables
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    printed = capsys.readouterr().out
    for table in tables:
        assert table["title"] in printed
        assert table["rows"]
        assert dict.fromkeys(table["checks"], 0) == table["checks"]


def test_no_two_starts_have_one_permit() -> None:
    """A start that seems to be some nanoseconds before its permit has that permit; those that nobody took have lapsed."""
    from bench.pacing.sides import _Grid

    grid = _Grid(rate=1000, offset_ns=0, slack_ns=2_000_000, first=5)

    assert ([0, -10, 0, 0], 0) == grid.lateness([5_000_000, 5_999_990, 7_000_000, 8_000_000], 0)
    assert ([0, 2_000_000, 1_500_000], 5) == grid.lateness([5_000_000, 13_000_000, 13_500_000], 0)
    # A permit that lapsed between the decision and the start counts as the next one, but not for all starts that follow.
    assert ([0, 1_000_100, 200, 300], 0) == grid.lateness([5_000_000, 8_000_100, 8_000_200, 8_000_300], 0)


def test_interrupted_run_prints_what_is_complete(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes hours: after Ctrl-C, the tables of the sections that are done are printed."""
    from bench import __main__ as command
    from bench.harness import Table

    def section(options: object) -> list[Table]:
        return [Table("a title", ["case"])]

    def interrupted(options: object) -> list[Table]:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "load", lambda name: SimpleNamespace(run=section if name == "memory" else interrupted))
    with pytest.raises(KeyboardInterrupt):
        command.main(["memory", "growth", "--markdown"])

    assert "### a title" in capsys.readouterr().out
