"""The section of durable tasks loses no task, and leaves out what is not installed; no test asserts a speed."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench.durable import claims, held, places, run, throughput
from bench.durable.queues import ALL, Queue, named
from bench.harness import Options

pytestmark = pytest.mark.real_time("the benchmarks measure real event loops, processes and servers")


class NoServers:
    """No servers, and a place that does not exist."""

    missing = {"postgres": "none", "redis": "none"}

    def has(self, server: str) -> bool:
        return server not in self.missing

    @contextlib.contextmanager
    def place(self, server: str = ""):
        assert self.has(server)
        yield places.Place("nowhere")


def _result(count: int, **others) -> dict:
    return {"count": count, "each": 1.0, "many": 1.0, "run": 1.0, "all": 2.0, "lost": 0, "doubled": 0, **others}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine takes a minute and a half
def test_section_runs_whatever_is_installed() -> None:
    """Each queue whose package and server exist has a row, and each count of an event that must not happen is 0."""
    tables = run(Options(quick=True))

    with places.servers() as servers:
        there = [queue.name for queue in ALL if servers.has(queue.server)]
    assert [name for name in there if throughput.is_installed(name=name)] == list(tables[0].rows)
    assert not [note for note in tables[0].notes if "failed in" in note]
    assert len(tables) == (5 if "ours, PostgreSQL" in there else 4)
    for table in tables:
        assert dict.fromkeys(table.checks, 0) == table.checks


def test_what_is_missing_is_left_out_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without its server or its package has no row, and a note of the table says why."""
    monkeypatch.setattr(throughput, "has_module", lambda name: name != "huey")
    monkeypatch.setattr(throughput, "fresh", lambda *_, count, **__: _result(count))
    monkeypatch.delenv(throughput.PYTHONS_VARIABLE, raising=False)

    table = throughput.table(Options(quick=True), NoServers())

    assert ["ours, memory", "ours, SQLite"] == list(table.rows)
    assert "huey, SQLite: left out, as huey is not installed" in table.notes
    assert "arq: left out, as there is no server (none)" in table.notes


def test_queue_that_fails_is_left_out_unless_it_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of another library is reported in a note, and one of ours ends the run."""

    def fail(*_, name: str, count: int, **__) -> dict:
        if failing in name:
            raise RuntimeError("it ended with 1:\nTraceback ...\nValueError: no\n")
        return _result(count)

    monkeypatch.setattr(throughput, "has_module", lambda name: True)
    monkeypatch.setattr(throughput, "fresh", fail)
    failing = "huey"
    table = throughput.table(Options(quick=True), NoServers())
    assert "huey, SQLite: failed in 1 of 1 rounds, first with ValueError: no" in table.notes
    assert "huey, SQLite" not in table.rows

    failing = "ours, SQLite"
    with pytest.raises(RuntimeError, match="ValueError: no"):
        throughput.table(Options(quick=True), NoServers())


def test_another_interpreter_has_what_this_one_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue runs in the first of the given interpreters that has its package."""
    asked = []

    def fresh(function: str, *, python, **_) -> bool:
        asked.append(python)
        return python == ("/second",)

    monkeypatch.setattr(throughput, "has_module", lambda name: False)
    monkeypatch.setattr(throughput, "fresh", fresh)
    monkeypatch.setenv(throughput.PYTHONS_VARIABLE, "/first:/second:/third")

    assert throughput._python(named("arq")) == "/second"
    assert asked == [("/first",), ("/second",)]


@pytest.mark.parametrize(("version", "expected"), [("3.11.3", False), ("4.0.0a6", True), ("10.1", True)])
def test_version_decides(monkeypatch: pytest.MonkeyPatch, version: str, expected: bool) -> None:
    """A queue for APScheduler 4 is installed only if the version is 4 or later, as 3 is another library."""
    monkeypatch.setattr(throughput, "has_module", lambda name: True)
    monkeypatch.setattr(throughput.importlib.metadata, "version", lambda name: version)

    assert throughput.is_installed(name="APScheduler 4") is expected


class _Careless:
    """A queue with its tasks in a list, which may drop the first task and run the last one twice."""

    def __init__(self, call, is_careless: bool) -> None:
        self._call = call
        self._is_careless = is_careless
        self._waiting: list[int] = []

    async def put_each(self, numbers) -> None:
        self._waiting += numbers

    put_many = put_each

    @contextlib.asynccontextmanager
    async def working(self):
        waiting, self._waiting = self._waiting, []
        if self._is_careless:
            waiting[0] = waiting[-1]
        for number in waiting:
            self._call(number)
        yield

    async def left(self) -> int:
        return len(self._waiting)


@pytest.mark.parametrize(("is_careless", "expected"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("has_many", [False, True])
def test_lost_and_doubled_tasks_are_counted(is_careless: bool, expected: int, has_many: bool) -> None:
    """In each part of a round, a dropped task counts as lost, and one that runs twice as doubled."""

    @contextlib.asynccontextmanager
    async def opened(place, call):
        yield _Careless(call, is_careless)

    queue = Queue(name="careless", open=opened, is_durable="", ends="", has_many=has_many)
    measured = asyncio.run(throughput._measure(queue, 20, places.Place("nowhere")))

    assert measured["count"] == 20
    # The warm-up is a first run of its own, with its own tasks.
    assert measured["lost"] == measured["doubled"] == expected * (3 if has_many else 2)
    assert ("many" in measured) is has_many


def test_sizes_that_the_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables set the number of waiting tasks and the minutes of the open transaction."""
    seen = {}

    class AllServers(NoServers):
        missing: dict = {}

    def fresh(function: str, **arguments):
        seen[function] = arguments
        if "sizes" in arguments:
            one = {"claims": [1.0], "short": 0, "bytes": 1.0, "put": 1.0}
            return [one] * len(arguments["sizes"])
        part = {"p50": 1.0, "p99": 3.0, "rate": 500.0, "missed": 0}
        return {"before, the last": {**part, "p99": 2.0}, "held open, the last": part}

    monkeypatch.setattr(claims, "fresh", fresh)
    monkeypatch.setattr(held, "fresh", fresh)
    monkeypatch.setenv(claims.WAITING_VARIABLE, "10000000")
    monkeypatch.setenv(held.MINUTES_VARIABLE, "10")

    claims.table(Options(quick=True), AllServers())
    table = held.table(Options(), AllServers())

    assert seen["bench.durable.claims:measure"]["sizes"] == [10_000, 100_000, 1_000_000, 10_000_000]
    assert seen["bench.durable.held:measure"]["held"] == 600
    [cell] = [cells["p99 of that before"] for name, cells in table.rows.items() if "held" in name]
    assert (cell.median, cell.met) == (1.5, True)
