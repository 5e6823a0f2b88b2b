"""The adapters of other libraries run every call that they get; no test asserts a speed."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench.countdown import Countdown, percentiles
from bench.harness import Options
from bench.peers import ALL, peer as peer_module, run

pytestmark = pytest.mark.real_time("the peers know no time but the real one")

NAMES = [peer.name for peer in ALL]


def _installed(name: str):
    peer = next(each for each in ALL if each.name == name)
    if not peer.is_installed:
        pytest.skip(f"{peer.package} is not installed")
    return peer


def _runner(peer) -> asyncio.Runner:
    return Options(quick=True).runner(uvloop=peer.uvloop)


@pytest.mark.parametrize("name", [peer.name for peer in ALL if peer.timers is not None])
def test_timers_run_each_call_once(name: str) -> None:
    """Each call runs once, whatever the number of calls and the order of their delays."""
    peer = _installed(name)
    delays = [0.03 - index * 0.0001 for index in range(205)]

    async def main() -> Countdown:
        countdown = Countdown(len(delays))
        await peer.timers(countdown, delays)
        await asyncio.sleep(0.01)
        return countdown

    with _runner(peer) as runner:
        countdown = runner.run(main())

    assert 0 == countdown.lost
    assert 3 == len(countdown.lateness)


@pytest.mark.parametrize("name", [peer.name for peer in ALL if peer.paced is not None])
def test_paced_calls_run_each_once(name: str) -> None:
    """Under a rate each call runs once, and all have run when the adapter returns."""
    peer = _installed(name)
    ran: list[int] = []

    async def call() -> None:
        await asyncio.sleep(0)
        ran.append(1)

    with _runner(peer) as runner:
        runner.run(peer.paced(call, 30, 1_000))

    assert 30 == len(ran)


@pytest.mark.parametrize("name", [peer.name for peer in ALL if peer.queued is not None])
def test_queued_calls_wait_until_they_are_cancelled(name: str) -> None:
    """Few of many calls start at once, and those that wait at the end never start."""
    peer = _installed(name)
    started: list[int] = []

    async def call() -> None:
        started.append(1)

    async def main() -> tuple[int, int, int]:
        async with peer.queued(call, 500, 100) as waiting:
            while not started:
                await asyncio.sleep(0.001)
            handle_count, at_first = len(waiting), len(started)
        left = len(started)
        await asyncio.sleep(0.05)
        assert left == len(started)
        return handle_count, at_first, left

    with _runner(peer) as runner:
        handle_count, at_first, left = runner.run(main())

    assert handle_count in (0, 500)
    assert at_first <= left < 100


def test_section_runs_every_installed_peer() -> None:
    """Each library has a row in each comparison that it can take part in, and each check is 0."""
    tables = run(Options(quick=True))

    expected = [
        [peer.name for peer in ALL if peer.is_installed and getattr(peer, kind) is not None]
        for kind in ("timers", "paced", "paced", "queued")
    ]
    assert expected == [list(table.rows) for table in tables]
    assert [dict.fromkeys(table.checks, 0) for table in tables] == [table.checks for table in tables]


def test_peer_that_is_not_installed_is_skipped_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is not installed has no row, and a note says so."""
    present = peer_module.has_module
    monkeypatch.setattr(peer_module, "has_module", lambda name: name != "aiolimiter" and present(name))
    monkeypatch.setattr("bench.peers.ALL", [peer for peer in ALL if peer.package in ("", "aiolimiter")])

    tables = run(Options(quick=True))

    assert all("aiolimiter" not in table.rows for table in tables)
    assert "aiolimiter: skipped, as aiolimiter is not installed" in tables[0].notes


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2.0], (2.0, 2.0, 2.0)), ([3.0, 1.0, 2.0], (2.0, 2.98, 3.0)), ([float(n) for n in range(101)], (50, 99, 100))],
)
def test_percentiles_are_those_of_the_sorted_values(values: list[float], expected: tuple[float, float, float]) -> None:
    """Median, 99th percentile and maximum are interpolated between values if necessary."""
    assert pytest.approx(expected) == percentiles(values)
