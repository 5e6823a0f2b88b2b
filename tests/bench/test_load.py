"""The comparison with other load generators runs, and its figures are correct; no test asserts a speed."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench import load
from bench.harness import Options
from bench.load.arrivals import evenness_of, frozen_p99, held_rate, most_in
from bench.load.tools import TOOLS, Load

TOOL = {tool.name: tool for tool in TOOLS}


def test_even_arrivals_are_even_and_bursts_are_not() -> None:
    """Evenly spaced requests are rated as even, bursts of fifty as crowded, and random ones in between."""
    even = evenness_of([number / 500 for number in range(5000)], 500)
    bursts = evenness_of([number // 50 / 10 for number in range(5000)], 500)
    chance = random.Random(1)
    times = [0.0]
    while times[-1] < 60:
        times.append(times[-1] + chance.expovariate(500))
    at_random = evenness_of(times, 500)

    assert (1, pytest.approx(0, abs=1e-6)) == (even.even_share, even.variation)
    assert even.crowding <= 1.2
    assert (0, 10) == (bursts.even_share, bursts.crowding)
    assert pytest.approx(1, abs=0.05) == at_random.variation
    assert pytest.approx(0.383, abs=0.02) == at_random.even_share  # exp(-0.5) - exp(-1.5)


def test_requests_after_the_end_do_not_count_as_sent_in_time() -> None:
    """A tool that falls behind and sends the rest after the end has held only the rate of the requests in time."""
    late = [number / 100 for number in range(500)] + [5 + number / 50 for number in range(500)]

    assert 75 == held_rate(late, 10)


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.1, 5))
def test_most_in_a_window_is_that_of_the_fullest(times, window) -> None:
    """The largest number in a window equals the one found by counting in each window that ends at a time."""
    ordered = sorted(times)

    assert max(sum(end - window < time <= end for time in ordered) for end in ordered) == most_in(ordered, window)


def test_truth_of_a_freeze_is_what_each_request_waits() -> None:
    """The 99th percentile of a freeze equals the one computed from the wait of each request."""
    waits = sorted(max(0.0, 5 - due) if due >= 3 else 0.0 for due in (number / 500 for number in range(5000)))

    assert pytest.approx(waits[4949], abs=0.005) == frozen_p99(10, 2)
    assert 0 == frozen_p99(300, 2)


def test_percentile_is_read_where_each_tool_tells_it(tmp_path: Path) -> None:
    """The percentile is read in seconds from the output of each tool, and is None if there is none."""
    told = Load(port=1, rate=500, seconds=10, connections=50, folder=tmp_path)
    (tmp_path / "h2load.tsv").write_text("".join(f"0\t200\t{span}\n" for span in range(1000, 201_000, 1000)))
    (tmp_path / "locust_stats.csv").write_text("Name,50%,99%\n/,1,5\nAggregated,1,120\n")

    assert 0.0123 == pytest.approx(TOOL["wrk"].p99("    90%    1.00ms\n    99%   12.30ms\n", told))
    assert 0.0021 == TOOL["hey"].p99("  95% in 0.0010 secs\n  99% in 0.0021 secs\n", told)
    assert 0.007 == TOOL["autocannon"].p99(json.dumps({"latency": {"p99": 7}}) + "\n", told)
    assert 0.198 == TOOL["h2load"].p99("", told)
    assert 0.12 == TOOL["locust"].p99("", told)
    assert [None, None, None] == [TOOL[name].p99("", told) for name in ("httperf", "hey", "wrk")]


def test_commands_name_the_rate_in_all_or_of_each_connection(tmp_path: Path) -> None:
    """Each tool gets the rate in its own way: in total, or for each connection."""
    asked = Load(port=8000, rate=500, seconds=10, connections=50, folder=tmp_path)
    words = {name: " ".join(tool.command(asked)) for name, tool in TOOL.items()}

    assert "--rate 500 --for 10s" in words["ours"]
    assert "--no-uvloop" in words["ours, asyncio"]
    assert "--rps 10 " in words["h2load"]
    assert "--rate 500 --num-conns 5000" in words["httperf"]
    assert "-q 10 " in words["hey"]
    assert "-R 500 " in words["autocannon"]
    assert "constant_throughput(10.0)" in (tmp_path / "locustfile.py").read_text()


@pytest.mark.real_time("processes send to a real server")
def test_ours_alone_is_measured_and_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no other tool is installed, only ours has rows, the others have notes, and each request reaches the server."""
    monkeypatch.setattr(shutil, "which", lambda program: None)
    rates, *freezes, limit = load.run(Options(quick=True))

    assert ["ours", "ours, asyncio"] == list(rates.rows)
    for freeze in freezes:
        assert ["the truth, by hand", "ours", "ours, asyncio"] == list(freeze.rows)
    assert [0] * 6 == [count for table in (rates, *freezes) for count in table.checks.values()]
    assert ["ours, 200/s", "ours, asyncio, 200/s", "ours, 2 processes, 200/s"] == list(limit.rows)
    assert [note for note in rates.notes if note.startswith("wrk: skipped")]
