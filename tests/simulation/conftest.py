"""Databases of runs for tests, as a simulation writes them."""

import json
import math
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ratelimited_executor.simulation.database import FORMAT, SCHEMA


def _insert(connection, table: str, rows) -> None:
    rows = list(rows)
    if rows:
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def write_run(
    path: Path,
    *,
    scenario: str = "bank sync",
    steps: int = 600,
    step: float = 60,
    executors: int = 2,
    keys: int = 200,
    slots: int = 24,
    seed: int = 1,
    spike: int | None = None,
    outage: bool = True,
    **properties,
) -> Path:
    """Write the database of a run: a daily wave of jobs, an outage, keys that are synced about every 6 hours."""
    chance = random.Random(seed)
    span = steps * step
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SCHEMA)
        values = {
            "format": FORMAT, "version": "0.1.0", "scenario": scenario, "seed": seed, "start": 1_767_571_200.0,
            "parameters": json.dumps({"rate": "20/s", "max_concurrency": 40, "cycle": {"slots": slots}}),
            "days": span / 86400, "step": step, "is_sampled": 0, "status": "finished", "reached": span, "jobs": 1,
            "wall_seconds": 12.5, **properties,
        }  # fmt: skip
        _insert(connection, "run", values.items())
        names = ["fetch", "push", *(f"node/{rank}" for rank in range(executors))][:executors]
        _insert(
            connection, "source",
            [
                *((number, "executor", name, '{"rate": "20/s"}') for number, name in enumerate(names, 1)),
                *([(99, "population", "accounts", json.dumps({"period": 21600, "count": keys}))] if keys else []),
            ],
        )  # fmt: skip
        step_rows, quantile_rows = [], []
        backlog = dict.fromkeys(range(1, executors + 1), 0)
        for index in range(steps):
            time = (index + 1) * step
            wave = 1 + 0.8 * math.sin(2 * math.pi * time / 86400)
            is_out = outage and 0.4 < index / steps < 0.45
            for source in backlog:
                asked = int(40 * wave / source + chance.random() * 10)
                done = 0 if is_out else min(asked + backlog[source], int(90 / source))
                backlog[source] += asked - done
                depth = spike if spike is not None and (index, source) == (steps // 7, 1) else backlog[source]
                executing = min(40, done // 3 + chance.randrange(4))
                failed = chance.randrange(3) if is_out else 0
                step_rows.append(
                    (time, source, asked, done, 0, done, failed, 0, 0, 0, executing, depth, depth + 500, depth / 20)
                )
                delay = 0.05 + backlog[source] / 60 + chance.random() * 0.2
                if done:
                    quantile_rows.append(
                        (time, source, "start_delay", done, delay, delay / 9, delay, 2 * delay, 3 * delay, 4 * delay)
                    )
        _insert(connection, "step", step_rows)
        _insert(connection, "quantiles", quantile_rows)
        _insert(
            connection, "histogram",
            [(source, "start_delay", 0.1 * 1.3**n, 0.1 * 1.3 ** (n + 1), 1000 - 20 * abs(20 - n))
             for source in backlog for n in range(30)],
        )  # fmt: skip
        if keys:
            _insert(
                connection, "histogram",
                [(99, metric, scale * 1.08**n, scale * 1.08 ** (n + 1), int(2000 * math.exp(-((n - 22) ** 2) / 40)) + 1)
                 for metric, scale in (("sync_interval", 3600), ("sync_delay", 1)) for n in range(45)],
            )  # fmt: skip
            _insert(
                connection, "key_summary",
                [(99, key, f"bank {key % 7}", 1.0, *((0, 3, None) if key % 50 == 0 else (4, 0, span - 60)), span / 3)
                 for key in range(keys)],
            )  # fmt: skip
            _insert(connection, "counter", [((n + 1) * step, 99, "lock_conflicts", 2) for n in range(0, steps, 100)])
            _insert(
                connection, "slot",
                [(99, "six hours", n, n * 21600 / slots, 100 + chance.randrange(60), 90 + 40 * math.sin(n / 3))
                 for n in range(slots)],
            )  # fmt: skip
        if outage:
            _insert(connection, "event", [(0.4 * span, "outage begins"), (0.45 * span, "outage ends")])
    return path


@pytest.fixture(scope="session")
def make_run():
    """Return the function that writes the database of a run."""
    return write_run
