"""The recorder logs every request that its clients make to a real server, and the simulator can read the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ratelimited_executor.simulation.recordings import read_access_log, read_csv


@pytest.mark.slow
@pytest.mark.real_time("a real HTTP server and client")
async def test_each_request_is_a_line(example: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Log and table of a load of two seconds have a line for each request, with the client that sent it."""
    program = example("record_arrivals")
    load = program.Load(seconds=2, low=5, high=30, waves=1, bursts=1, burst_size=10, clients=5, seed=3)
    with (tmp_path / "access.log").open("w", encoding="utf-8") as log:
        report = await program.record(load, log)
    program.write_csv(tmp_path / "arrivals.csv", report.arrivals)

    found = read_access_log(tmp_path / "access.log")
    table = read_csv(tmp_path / "arrivals.csv", time="time", key="client", duration="seconds")

    asked = Counter(f"client-{number}" for _, number, _ in program.make_requests(load))
    assert report.sent == asked.total() == len(found.times) == len(report.arrivals) == len(table.times)
    assert asked == Counter(found.keys) == Counter(table.keys)
    assert found.skipped == table.skipped == 0
    assert sorted(found.durations) == sorted(table.durations)
    assert all(took >= 0.004 for took in found.durations)


def test_load_is_what_it_says(example: Callable[[str], ModuleType]) -> None:
    """Equal seeds give equal requests, the wave starts low, and the first client sends the most."""
    program = example("record_arrivals")
    load = program.Load(bursts=0)

    requests = program.make_requests(load)

    assert requests == program.make_requests(load) == sorted(requests)
    assert (2, 40) == (load.rate(0), load.rate(45))
    assert 2 * 10 / 2 < sum(when < 10 for when, _, _ in requests) < 60
    assert 300 < sum(40 <= when < 50 for when, _, _ in requests) < 500
    assert len(requests) == pytest.approx(21 * 180, rel=0.1)
    assert Counter(number for _, number, _ in requests).most_common(1)[0][0] == 1
