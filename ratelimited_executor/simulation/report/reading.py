"""Read from the database of a run only the content that a report shows. The file is opened read-only."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.database import FORMAT
from ratelimited_executor.simulation.report.kinds import (
    GAUGE_FIGURES,
    RESOURCE_FIGURES,
    VALUE_MAX,
    StoredKind,
    StoredQuantiles,
    kinds_of,
    named_figures,
    number_of,
    quantiles_of,
)
from ratelimited_executor.simulation.report.pieces import Grid, Maxima, Sums
from ratelimited_executor.simulation.report.units import DAY

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Bin",
    "Cycle",
    "Delays",
    "Event",
    "ExecutorSeries",
    "Series",
    "StoredPopulation",
    "StoredRun",
    "StoredSlot",
    "StoredSource",
    "label_of",
    "read_run",
    "read_runs",
]

_DEFAULT_STEP: Final = 60.0  # seconds, for a run that does not record its step
_CHECKED_TABLES: Final = ("step", "quantiles", "counter", "gauge", "histogram", "key_summary", "slot", "event")
_ENDS: Final = ("done", "failed", "cancelled", "expired", "dropped")


@dataclass(frozen=True, slots=True)
class StoredSource:
    """A measured subject."""

    id: int
    kind: str
    name: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExecutorSeries:
    """An executor over time, with a value for each piece; or the sum of all executors, with an empty name."""

    name: str
    done_per_minute: list[float]
    queue_depth: list[int]
    executing_jobs: list[int]


@dataclass(frozen=True, slots=True)
class Series:
    """A level over time, or an amount a minute, with a value for each piece; None before it was known.

    Attributes:
        source: the name of what it was measured of.
        kind: the kind of that.
        metric: what was measured.
        values: the values.
        unit: their unit; empty if none is known.
    """

    source: str
    kind: str
    metric: str
    values: list[float | None]
    unit: str = ""


@dataclass(slots=True)
class Delays:
    """Percentiles over time, in seconds: the maximum in each piece; a piece without a start is left out."""

    name: str
    times: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p90: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bin:
    """The number of values > low and <= high."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class StoredPopulation:
    """The keys of a population at the end, and their intervals between syncs. None if the run does not record a value.

    Attributes:
        turnover: the keys that joined, that left, and those of them that were never synced in their life.
    """

    name: str
    bins: list[Bin]
    keys: int | None = None
    never_synced: int | None = None
    syncs: int | None = None
    failures: int | None = None
    longest_interval: float | None = None
    turnover: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A slot of a cycle."""

    number: int
    begin: float
    keys: int
    weight: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """The slots of a cycle."""

    source: str
    name: str
    slots: list[StoredSlot]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the scenario, in seconds since the start."""

    time: float
    name: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The content of a report on a run.

    Attributes:
        label: a name that no other run of the report has.
        planned: seconds that were to be simulated; None if the run does not record them.
        total: the sum of all executors.
        ends: the number of jobs that were done, failed, cancelled, expired and dropped.
        never_synced: the number of never synced keys of all populations; None if the run does not record it.
        warm_up: seconds at the beginning that its figures leave out, and its plots show.
        kinds: the waits, objectives and costs of each kind of job, if the run has ended.
        worker_cost: what all workers cost.
        resources: the amount used, and the part of the limit, by resource.
        gauges: the least, mean, largest and last value of each gauge.
        series: what was used of resources, and levels: limits of resources, numbers of keys, gauges.
        notes: what to know before believing the figures.
    """

    path: Path
    label: str
    scenario: str
    seed: str
    version: str
    status: str
    parameters: dict[str, Any]
    start: float | None
    planned: float | None
    wall_seconds: float | None
    grid: Grid
    sources: list[StoredSource]
    executors: list[ExecutorSeries]
    total: ExecutorSeries
    delays: list[Delays]
    ends: dict[str, int]
    depth_max: int
    depth_mean: float
    start_delay: StoredQuantiles
    sync_delay: StoredQuantiles
    lock_conflicts: int
    outage_failures: int
    populations: list[StoredPopulation]
    cycles: list[Cycle]
    events: list[Event]
    warm_up: float = 0.0
    kinds: list[StoredKind] = field(default_factory=list)
    worker_cost: float = 0.0
    resources: dict[str, list[float]] = field(default_factory=dict)
    gauges: dict[str, list[float]] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def span(self) -> float:
        """The simulated seconds."""
        return self.grid.span

    @property
    def never_synced(self) -> int | None:
        """The number of keys that were never synced; None if the run does not record it."""
        counts = [population.never_synced for population in self.populations if population.never_synced is not None]
        return sum(counts) if counts else None


def label_of(name: str, run: StoredRun, runs: Sequence[StoredRun]) -> str:
    """Return a name of something in a run, with the label of the run if there are several."""
    return f"{run.label}: {name}" if len(runs) > 1 else name


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[StoredRun]:
    """Read runs, and give each a unique label: the scenario, with the seed and the file if necessary.

    Args:
        paths: the paths of their databases.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a file holds no run that this version can read.
    """
    runs = [read_run(path) for path in paths]
    labels = [run.scenario for run in runs]
    for texts in (
        [f"{run.scenario}, seed {run.seed}" for run in runs],
        [f"{run.scenario}, seed {run.seed}, {run.path.name}" for run in runs],
        [f"{run.scenario}, {run.path}" for run in runs],
        [f"{number}: {run.scenario}" for number, run in enumerate(runs, start=1)],
    ):
        labels = [text if labels.count(label) > 1 else label for label, text in zip(labels, texts, strict=True)]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def read_run(path: str | os.PathLike[str]) -> StoredRun:
    """Read a run.

    Args:
        path: the path of its database.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file holds no run that this version can read.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"there is no file {str(file)!r}: give the path of a database that a simulation wrote")
    try:
        with closing(_connect(file)) as connection:
            return _Reader(file, connection).read()
    except (sqlite3.Error, ArithmeticError, LookupError, TypeError) as error:
        raise ValueError(
            f"{str(file)!r} is not a database of a simulation run, or is damaged ({error}): "
            "give a file that a simulation wrote"
        ) from error


def _connect(file: Path) -> sqlite3.Connection:
    """Open a database for reading; without a journal it is not in use, and is opened so that none is created."""
    journal = file.with_name(f"{file.name}-wal")
    rest = "" if journal.exists() else "&immutable=1"
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro{rest}", uri=True, isolation_level=None)


class _Reader:
    """Reads one run in one transaction."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self._file, self._connection = file, connection

    def read(self) -> StoredRun:
        self._connection.execute("BEGIN")
        properties = dict(self._rows("SELECT name, value FROM run"))
        self._check_format(properties)
        self._check_values()
        sources = [
            StoredSource(number, kind, str(name), _mapping(details))
            for number, kind, name, details in self._rows("SELECT id, kind, name, details FROM source ORDER BY id")
        ]
        (last,) = self._rows("SELECT max(time) FROM step")[0]
        days = number_of(properties.get("days"))
        planned = None if days is None else days * DAY
        reached = max(number_of(properties.get("reached")) or 0.0, last or 0.0)
        grid = Grid.of(reached, number_of(properties.get("step")) or _DEFAULT_STEP)
        warm_up = number_of(properties.get("warm_up")) or 0.0
        executors, total, ends, depth = self._steps(sources, grid, warm_up)
        figures = self._figures(properties)
        scenario = str(properties.get("scenario") or self._file.stem)
        return StoredRun(
            path=self._file,
            label=scenario,
            scenario=scenario,
            seed=str(properties.get("seed", "unknown")),
            version=str(properties.get("version", "unknown")),
            status=str(properties.get("status", "unknown")),
            parameters=_mapping(properties.get("parameters")),
            start=number_of(properties.get("start")),
            planned=planned,
            wall_seconds=number_of(properties.get("wall_seconds")),
            grid=grid,
            sources=sources,
            executors=executors,
            total=total,
            delays=self._delays(sources, grid),
            ends=ends,
            depth_max=figures.get("queue_depth_most", depth.most),
            depth_mean=figures.get("queue_depth_mean", depth.mean),
            start_delay=figures.get("start_delay") or self._quantiles("start_delay", "executor"),
            sync_delay=figures.get("sync_delay") or self._quantiles("sync_delay", "population"),
            lock_conflicts=self._count("lock_conflicts"),
            outage_failures=self._count("outage_failures"),
            populations=self._populations(sources),
            cycles=self._cycles(sources),
            events=self._events(warm_up),
            warm_up=warm_up,
            kinds=figures.get("kinds", []),
            worker_cost=figures.get("worker_cost", 0.0),
            resources=figures.get("resources", {}),
            gauges=figures.get("gauges", {}),
            series=[*self._amounts(sources, grid), *self._levels(sources, grid)],
            notes=figures.get("notes", []),
        )

    @staticmethod
    def _figures(properties: dict[str, Any]) -> dict[str, Any]:
        """Return the figures that the terminal shows of the run, as far as the run wrote them at its end.

        The tables alone give different figures: they have the queue depth at the ends of steps but not the samples
        between them, and percentiles in bins.
        """
        if properties.get("status") not in ("finished", "interrupted"):
            return {}  # the written figures are of an earlier end
        written = _mapping(properties.get("summary"))
        figures: dict[str, Any] = {}
        for name in ("queue_depth_most", "queue_depth_mean"):
            value = number_of(written.get(name))
            if value is not None and 0 <= value <= VALUE_MAX:
                figures[name] = int(value) if name == "queue_depth_most" else value
        for name in ("start_delay", "sync_delay"):
            if (waits := quantiles_of(written.get(name))) is not None:
                figures[name] = waits
        figures["kinds"] = kinds_of(written.get("jobs_by_kind"))
        figures["resources"] = named_figures(written.get("resources"), RESOURCE_FIGURES)
        figures["gauges"] = named_figures(written.get("gauges"), GAUGE_FIGURES)
        if (cost := number_of(written.get("worker_cost"))) is not None and 0 <= cost <= VALUE_MAX:
            figures["worker_cost"] = cost
        notes = written.get("notes")
        figures["notes"] = [str(note) for note in notes] if isinstance(notes, list) else []
        return figures

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()

    def _check_format(self, properties: dict[str, Any]) -> None:
        found = properties.get("format")
        if str(found) != str(FORMAT):
            raise ValueError(
                f"{str(self._file)!r} has the format {found!r}, and this version reads {FORMAT}: read it with the "
                f"version that wrote it, {properties.get('version', 'unknown')}, or simulate again"
            )

    def _check_values(self) -> None:
        """Refuse values that no simulation writes: SQLite accepts texts and infinities in columns of numbers."""
        for table in _CHECKED_TABLES:
            columns = [
                name
                for _, name, kind, *_ in self._rows(f"PRAGMA table_info({table})")
                if kind in ("REAL", "INTEGER") and (table, name) != ("histogram", "high")  # the last bin has no end
            ]
            for column in columns:
                found = self._rows(
                    f"SELECT {column} FROM {table} WHERE {column} NOT BETWEEN ? AND ? LIMIT 1",  # noqa: S608  # names of our own
                    (-VALUE_MAX, VALUE_MAX),
                )
                if found:
                    raise ValueError(
                        f"{str(self._file)!r} is damaged ({table}.{column} holds {str(found[0][0])[:40]!r}): "
                        "give a file that a simulation wrote"
                    )

    def _events(self, warm_up: float) -> list[Event]:
        events = [Event(time, str(name)) for time, name in self._rows("SELECT time, name FROM event")]
        if warm_up:
            events.append(Event(warm_up, "the warm-up ends"))
        return sorted(events, key=lambda event: event.time)

    def _steps(
        self, sources: list[StoredSource], grid: Grid, warm_up: float
    ) -> tuple[list[ExecutorSeries], ExecutorSeries, dict[str, int], Maxima]:
        """Return the executors over time, their sum, the ends of all jobs, and the depth of all queues."""
        names = {source.id: source.name for source in sources if source.kind == "executor"}
        done = {number: Sums(grid) for number in names}
        depth = {number: Maxima(grid) for number in names}
        executing = {number: Maxima(grid) for number in names}
        all_done, all_depth, all_executing = Sums(grid), Maxima(grid), Maxima(grid)
        rows = self._connection.execute(
            "SELECT time, source, done_jobs, queue_depth, executing_jobs FROM step ORDER BY time, source"
        )
        for time, group in groupby(rows, key=lambda row: row[0]):
            step, depths, executed = grid.step_at(time), 0, 0
            for _, number, done_jobs, queue_depth, executing_jobs in group:
                if number not in names:
                    continue
                done[number].add(step, done_jobs)
                depth[number].add(step, queue_depth)
                executing[number].add(step, executing_jobs)
                all_done.add(step, done_jobs)
                depths += queue_depth
                executed += executing_jobs
            all_depth.add(step, depths)
            all_executing.add(step, executed)
        series = [
            ExecutorSeries(name, done[number].per_minute(), depth[number].values, executing[number].values)
            for number, name in names.items()
        ]
        total = ExecutorSeries("", all_done.per_minute(), all_depth.values, all_executing.values)
        columns = ", ".join(f"coalesce(sum({end}_jobs), 0)" for end in _ENDS)
        counts = self._rows(f"SELECT {columns} FROM step WHERE time > ?", (warm_up,))[0]  # noqa: S608  # names of our own
        return series, total, dict(zip(_ENDS, counts, strict=True)), all_depth

    def _amounts(self, sources: list[StoredSource], grid: Grid) -> Iterator[Series]:
        """Yield what was used of each resource, a minute."""
        sums: dict[tuple[int, str], Sums] = {}
        for time, number, metric, value in self._rows(
            "SELECT time, source, metric, value FROM counter WHERE metric LIKE 'used %' ORDER BY time"
        ):
            place = number, metric
            if place not in sums:
                sums[place] = Sums(grid)
            sums[place].add(grid.step_at(time), value)
        for source in sources:
            for (number, metric), found in sums.items():
                if number == source.id:
                    yield Series(source.name, source.kind, metric, list(found.per_minute()))

    def _levels(self, sources: list[StoredSource], grid: Grid) -> Iterator[Series]:
        """Yield each level: its last value in each piece, or the one before."""
        last: dict[tuple[int, str], list[float | None]] = {}
        for time, number, metric, value in self._rows("SELECT time, source, metric, value FROM gauge ORDER BY time"):
            last.setdefault((number, metric), [None] * grid.pieces)[grid.piece_at(time)] = value
        for source in sources:
            for (number, metric), values in last.items():
                if number == source.id:
                    unit = str(source.details.get("unit") or "")
                    yield Series(source.name, source.kind, metric, list(accumulate(values, _later)), unit)

    def _delays(self, sources: list[StoredSource], grid: Grid) -> list[Delays]:
        """Return the delays of each executor."""
        ends = grid.ends
        found = []
        for source in sources:
            if source.kind != "executor":
                continue
            delays = Delays(source.name)
            rows = self._connection.execute(
                "SELECT time, p50, p90, p99 FROM quantiles WHERE source = ? AND metric = 'start_delay' ORDER BY time",
                (source.id,),
            )
            for piece, group in groupby(rows, key=lambda row: grid.piece_at(row[0])):
                _, p50, p90, p99 = zip(*group, strict=True)
                delays.times.append(ends[piece])
                delays.p50.append(max(p50))
                delays.p90.append(max(p90))
                delays.p99.append(max(p99))
            if delays.times:
                found.append(delays)
        return found

    def _bins(self, metric: str, kind: str) -> dict[int, list[Bin]]:
        """Return the histograms of each source of a kind."""
        bins: dict[int, list[Bin]] = {}
        for source, low, high, count in self._rows(
            "SELECT source, low, high, count FROM histogram JOIN source ON source.id = source "
            "WHERE metric = ? AND kind = ? AND count > 0 ORDER BY source, low",
            (metric, kind),
        ):
            bins.setdefault(source, []).append(Bin(low, high, count))
        return bins

    def _quantiles(self, metric: str, kind: str) -> StoredQuantiles:
        """Return the quantiles of a metric over all sources of a kind."""
        (most,) = self._rows(
            "SELECT max(most) FROM quantiles JOIN source ON source.id = source WHERE metric = ? AND kind = ?",
            (metric, kind),
        )[0]
        bins = [found for several in self._bins(metric, kind).values() for found in several]
        if not bins:
            return StoredQuantiles(most=most)
        p50, p90, p99, highest = (_quantile(bins, part, most) for part in (0.5, 0.9, 0.99, 1.0))
        return StoredQuantiles(p50, p90, p99, highest if most is None else most)

    def _count(self, metric: str) -> int:
        return self._rows("SELECT sum(value) FROM counter WHERE metric = ?", (metric,))[0][0] or 0

    def _populations(self, sources: list[StoredSource]) -> list[StoredPopulation]:
        """Return the populations; those without any record are left out."""
        bins = self._bins("sync_interval", "population")
        summaries = {
            source: rest
            for source, *rest in self._rows(
                "SELECT source, count(*), sum(syncs = 0), sum(syncs), sum(failures), max(longest_interval) "
                "FROM key_summary GROUP BY source"
            )
        }
        turnovers = {
            source: (joined, left, unserved)
            for source, joined, left, unserved in self._rows(
                "SELECT source, sum(value * (metric = 'keys_joined')), sum(value * (metric = 'keys_left')), "
                "sum(value * (metric = 'keys_left_unserved')) FROM counter GROUP BY source"
            )
        }
        found = [
            (source.id, StoredPopulation(source.name, bins.get(source.id, []), *summaries.get(source.id, ())))
            for source in sources
            if source.kind == "population" and (source.id in bins or source.id in summaries)
        ]
        return [replace(population, turnover=turnovers.get(number, (0, 0, 0))) for number, population in found]

    def _cycles(self, sources: list[StoredSource]) -> list[Cycle]:
        names = {source.id: source.name for source in sources}
        rows = self._rows("SELECT source, name, slot, begin, keys, weight FROM slot ORDER BY source, name, slot")
        return [
            Cycle(names.get(source, str(source)), str(name), [StoredSlot(*row[2:]) for row in group])
            for (source, name), group in groupby(rows, key=lambda row: row[:2])
        ]


def _later(before: float | None, now: float | None) -> float | None:
    """Return the later of two values that is known."""
    return before if now is None else now


def _quantile(bins: list[Bin], part: float, most: float | None) -> float:
    """Return a quantile, interpolated linearly within its bin, and at most the largest value."""
    above = part * sum(found.count for found in bins)
    value = 0.0
    for found in sorted(bins, key=lambda each: (each.high, each.low)):
        low = max(found.low, 0.0)
        high = found.high if math.isfinite(found.high) else low if most is None else max(low, most)
        value = low + (high - low) * min(1.0, above / found.count)
        above -= found.count
        if above <= 0:
            break
    return value if most is None else min(value, most)


def _mapping(text: Any) -> dict[str, Any]:
    """Return the mapping in a JSON text; any other content is put into a mapping."""
    try:
        found = json.loads(text) if text else {}
    except (TypeError, ValueError):
        found = text
    return found if isinstance(found, dict) else {"value": found}
