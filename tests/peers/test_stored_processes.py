"""Processes that share limits and slots without Redis, counted outside of the group by the machine's monotonic clock.

Real elapsed time cannot be avoided here: other processes and signals are what is tested. What must never happen is
asserted exactly; the least use of a limit, and how long something may take, have wide margins.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ..helpers import until
from .ticket_group import most_in

pytestmark = [pytest.mark.real_time("processes of their own"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


class Group:
    """Processes that write what they do into files."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, count: int = 1, **options: Any) -> None:
        """Start processes, and wait until they have begun."""
        for _ in range(count):
            number = len(self.processes)
            with (self.folder / f"{number}.out").open("wb") as output:
                told = json.dumps({"rate": "50/s", "policy": "Window", **self.options, **options})
                command = [sys.executable, "-m", "tests.peers.stored_worker", told]
                self.processes.append(subprocess.Popen(command, cwd=ROOT, stdout=output))
        until(lambda: all(self.lines(each, "begun") for each in range(len(self.processes))))

    def lines(self, number: int | None = None, what: str = "start") -> list[tuple[float, str]]:
        """Return what one process, or all, have told of one kind, in order of time."""
        names = range(len(self.processes)) if number is None else [number]
        texts = [(self.folder / f"{each}.out").read_text().rpartition("\n")[0] for each in names]
        found = [line.split(" ", 1) for text in texts for line in text.splitlines()]
        return sorted((float(when), said) for when, said in found if said.startswith(what))

    def starts(self, after: float = 0.0) -> list[tuple[float, int]]:
        """Return the times of starts, each with cost 1."""
        return [(when, 1) for when, _ in self.lines() if when >= after]

    def end(self) -> None:
        """Let all processes leave."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(30)

    def close(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(params=["file", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where the memory is, in turn."""
    if request.param == "file":
        return {"file": str(tmp_path / "app.limits")}
    return {"url": request.getfixturevalue("postgresql"), "group": str(tmp_path)}


@pytest.fixture
def group(where, tmp_path) -> Iterator[Group]:
    """A group without processes."""
    made = Group(tmp_path, **where)
    yield made
    made.close()


def span(group: Group, seconds: float) -> list[tuple[float, int]]:
    """Return the starts of the next seconds."""
    begin = time.monotonic()
    time.sleep(seconds)
    return [each for each in group.starts(begin) if each[0] < begin + seconds]


@pytest.mark.parametrize(
    ("where", "policy", "most"),
    [("file", "Window", 50), ("postgres", "Burst", 60), ("file", "Paced", 50)],
    indirect=["where"],
)
def test_processes_share_a_limit_whoever_is_killed(group, policy, most) -> None:
    """Four processes never start more than one limit admits, though one is killed, one stopped and one joins."""
    group.add(4, starters=3, policy=policy)
    until(group.starts)
    assert len(span(group, 3)) > 75, "half of the limit is used"
    assert all(group.lines(number) for number in range(4)), "each gets a part"
    group.processes[0].kill()
    group.processes[1].send_signal(signal.SIGSTOP)
    group.add(1, starters=3, policy=policy)
    time.sleep(1)
    group.processes[1].send_signal(signal.SIGCONT)
    assert len(span(group, 2)) > 40
    group.end()
    # One more: a process that the machine, or the stop, holds up between the check of its permit and its line tells the
    # time too late, and then its start seems to be that close to one a second later.
    assert most_in(group.starts(), 1.0) <= most + 1


def begins_at_once(group: Group, number: int) -> None:
    """Let a process start something and hold a slot, without a quarantine, and leave."""
    group.add(1, starters=1, holders=1, slots=1, work=0.01)
    begun = group.lines(number, "begun")[0][0]
    until(lambda: group.lines(number, "start") and group.lines(number, "enter"))
    group.processes[number].send_signal(signal.SIGTERM)
    group.processes[number].wait(30)
    assert group.lines(number, "start")[0][0] < begun + 1.5
    assert group.lines(number, "enter")[0][0] < begun + 1.5


def test_a_new_group_begins_at_once(group) -> None:
    """The first start and the first slot of a new group do not wait."""
    begins_at_once(group, 0)


def test_a_file_that_nobody_used_for_a_while_begins_at_once(tmp_path) -> None:
    """Where time surely passes, those who come after all others have gone do not wait, and the limit holds."""
    group = Group(tmp_path, file=str(tmp_path / "app.limits"))
    try:
        begins_at_once(group, 0)
        time.sleep(1)  # half a quarantine, after which a server's clock might have stepped unseen
        begins_at_once(group, 1)
        assert most_in(group.starts(), 1.0) <= 50
    finally:
        group.close()


def test_slots_are_handed_over_between_processes(group) -> None:
    """No two processes hold the only slot at once, fences rise, and a hand-over does not wait for a heartbeat."""
    group.add(3, holders=2, slots=1, work=0.005, lease=20)
    until(lambda: len(group.lines(None, "enter")) > 30)
    group.end()
    events = group.lines(None, "enter") + group.lines(None, "leave")
    spans: dict[int, list[float]] = {}
    for when, said in sorted(events):
        spans.setdefault(int(said.split()[1]), []).append(when)
    held = sorted(each for each in spans.values() if len(each) == 2)
    assert all(before[1] <= after[0] for before, after in zip(held, held[1:], strict=False))
    fences = [fence for fence, each in sorted(spans.items(), key=lambda item: item[1])]
    assert fences == sorted(fences)
    gaps = sorted(after[0] - before[1] for before, after in zip(held, held[1:], strict=False))
    assert gaps[len(gaps) // 2] < 1.0, "a quarter of the lease is 5 s"


def test_slot_of_a_killed_process_is_free_after_its_lease(group) -> None:
    """A process that is killed frees its slot after its lease, not before."""
    group.add(1, holders=1, slots=1, work=60, lease=2)
    until(lambda: group.lines(0, "enter"))
    group.processes[0].kill()
    killed = time.monotonic()
    group.add(1, holders=1, slots=1, work=60, lease=2)
    until(lambda: group.lines(1, "enter"))
    assert 1.0 < group.lines(1, "enter")[0][0] - killed < 10


def test_file_that_is_deleted_is_made_anew(tmp_path) -> None:
    """Processes whose file is deleted go on with a new one, and the limit holds from a second later on."""
    path = tmp_path / "app.limits"
    group = Group(tmp_path, file=str(path))
    try:
        group.add(2, starters=2)
        until(group.starts)
        time.sleep(1)
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").unlink()
        time.sleep(2)
        deleted = time.monotonic()
        until(lambda: all(any(when > deleted for when, _ in group.lines(each)) for each in (0, 1)))
        assert len(span(group, 2)) > 30
        assert path.exists()
        group.end()
        assert most_in(group.starts(deleted - 1), 1.0) <= 50
    finally:
        group.close()


def test_tables_that_a_crash_has_emptied_begin_with_a_quarantine(postgresql, tmp_path) -> None:
    """After the unlogged tables were lost, nothing starts for a while, and the limit holds throughout."""
    group = Group(tmp_path, url=postgresql, group=str(tmp_path))
    try:
        group.add(2, starters=2)
        until(group.starts)
        time.sleep(1)
        with psycopg.connect(postgresql, autocommit=True) as connection:
            connection.execute("truncate fleet_heads, fleet_records")
        lost = time.monotonic()
        until(lambda: any(when > lost + 1 for when, _ in group.starts()))
        group.end()
        assert most_in(group.starts(), 1.0) <= 50
        assert not [when for when, _ in group.starts() if lost + 0.7 < when < lost + 1.0]
    finally:
        group.close()
