"""The benchmarks run, and their results are right; no test asserts a speed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package


@pytest.mark.real_time("the benchmark measures the real event loop, with delays of 0.2 s at most")
def test_quick_run_executes_every_call_and_none_early(capsys: pytest.CaptureFixture[str]) -> None:
    """Each side runs every call of each round, never before it is due, and the table names every case."""
    from bench.__main__ import main

    results = main(["--quick"])

    assert [2_000] * 6 == [m.run_count for result in results for m in (*result.theirs, *result.ours)]
    assert [0] * 3 == [m.early_count for result in results for m in result.ours]
    assert all(result.name in capsys.readouterr().out for result in results[:1])
