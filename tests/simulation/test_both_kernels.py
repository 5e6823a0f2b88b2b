"""A simulation writes the same database on both kernels, to the last bit of each value."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import ratelimited_executor
from ratelimited_executor._kernel.choice import compiled
from ratelimited_executor.simulation.strategies import STRATEGIES

from ..helpers import first_quick

ROOT = Path(__file__).parents[2]
SEEDS_EACH = 8

pytestmark = pytest.mark.skipif(compiled is None, reason="no extension")


def simulated(folder: Path, names: list[str], *, is_pure: bool) -> dict[str, object]:
    """Return all tables of the runs of some scenarios on a kernel, or their errors, by name and table."""
    folder.mkdir()
    environment = {
        **os.environ,
        "RATELIMITED_EXECUTOR_PURE": "1" if is_pure else "",
        "PYTHONPATH": os.pathsep.join([str(Path(ratelimited_executor.__file__).parents[1]), str(ROOT)]),
    }
    command = [sys.executable, "-m", "tests.simulation.both_kernels", str(folder), *names]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=100)
    found: dict[str, object] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".error":
            found[path.stem] = path.read_text()
        elif path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as connection:
                for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    rows = connection.execute(f"SELECT * FROM {table}").fetchall()
                    found[f"{path.stem} {table}"] = [row for row in rows if row[0] != "wall_seconds"]
    return found


def check(tmp_path: Path, names: list[str]) -> dict[str, object]:
    pure = simulated(tmp_path / "pure", names, is_pure=True)
    other = simulated(tmp_path / "compiled", names, is_pure=False)
    assert pure.keys() == other.keys()
    for name, rows in pure.items():
        assert rows == other[name], name
    return pure


@pytest.mark.parametrize("group", first_quick(range(8)))
def test_random_simulations_write_the_same(tmp_path, group):
    """Simulations with rates, priorities, retries, failures, followers, outages and cancellations are equal."""
    found = check(tmp_path, [str(seed) for seed in range(group * SEEDS_EACH, (group + 1) * SEEDS_EACH)])
    assert sum(len(rows) for name, rows in found.items() if name.endswith(" step")) > 20 * SEEDS_EACH
    assert sum(name.isdigit() for name in found) <= SEEDS_EACH / 2, found  # errors


def test_strategies_write_the_same(tmp_path):
    """All strategies are equal."""
    found = check(tmp_path, list(STRATEGIES))
    assert all(found[f"{name} key_summary"] for name in STRATEGIES)
