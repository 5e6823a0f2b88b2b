"""The output of a simulation: one SQLite file for each run, with tables in a documented format.

One transaction adds the rows of many steps, so a killed run leaves a file that is readable up to its last transaction.
The journal is a write-ahead log (WAL), so the file can be read while the run continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FORMAT", "SCHEMA", "RunDatabase", "as_json", "is_run_database", "read_properties", "run_files"]

FORMAT: Final = 1

SCHEMA: Final = """
CREATE TABLE run (                  -- what was simulated, one row for each property
    name TEXT PRIMARY KEY,          -- format, version, scenario, parameters (JSON), seed, start (epoch seconds), days,
    value                           -- step (seconds), is_sampled, status (running, finished, interrupted, failed),
) WITHOUT ROWID;                    -- reached (seconds), jobs, wall_seconds, summary (JSON, of a run that has ended)

CREATE TABLE source (               -- who is measured
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,             -- executor, job, priority, population or gauge
    name TEXT NOT NULL,
    details TEXT NOT NULL           -- JSON: rate and max_concurrency; duration; period, count; unit
);

CREATE TABLE step (                 -- an executor in a step of time; steps in which nothing happened are left out
    time REAL NOT NULL,             -- its end, in seconds since the start
    source INTEGER NOT NULL REFERENCES source,
    enqueued_jobs INTEGER NOT NULL, -- these eight: within the step
    started_jobs INTEGER NOT NULL,  -- each attempt of one
    retried_jobs INTEGER NOT NULL,  -- attempts that failed and are followed by another
    done_jobs INTEGER NOT NULL,
    failed_jobs INTEGER NOT NULL,
    cancelled_jobs INTEGER NOT NULL,
    expired_jobs INTEGER NOT NULL,
    dropped_jobs INTEGER NOT NULL,
    executing_jobs INTEGER NOT NULL, -- these four: at its end
    queue_depth INTEGER NOT NULL,   -- due, and not started
    pending_jobs INTEGER NOT NULL,  -- accepted and not started, those due later included
    queue_backlog REAL,             -- seconds that the rate takes for what is due; NULL without a rate
    PRIMARY KEY (time, source)
) WITHOUT ROWID;

CREATE TABLE quantiles (            -- values that were measured within a step, in seconds
    time REAL NOT NULL,
    source INTEGER NOT NULL REFERENCES source,
    metric TEXT NOT NULL,           -- start_delay, execution_time, sync_interval, sync_delay, time_since_last_sync
    count INTEGER NOT NULL,
    mean REAL NOT NULL,
    least REAL NOT NULL,
    p50 REAL NOT NULL,
    p90 REAL NOT NULL,
    p99 REAL NOT NULL,
    most REAL NOT NULL,
    PRIMARY KEY (time, source, metric)
) WITHOUT ROWID;

CREATE TABLE counter (              -- what else is counted within a step; zeros are left out
    time REAL NOT NULL,
    source INTEGER NOT NULL REFERENCES source,
    metric TEXT NOT NULL,           -- lock_conflicts, outage_failures, refused_jobs; keys_joined, keys_left,
    value INTEGER NOT NULL,         -- keys_left_unserved; "used" and a resource
    PRIMARY KEY (time, source, metric)
) WITHOUT ROWID;

CREATE TABLE gauge (                -- levels at the end of a step; where one has not changed since its last row, there is none
    time REAL NOT NULL,
    source INTEGER NOT NULL REFERENCES source,
    metric TEXT NOT NULL,           -- value of a gauge; keys_alive, keys_never_synced, keys_synced_once of a population;
    value REAL NOT NULL,            -- of an executor "limit of" and a resource: the amount a second that it admits
    PRIMARY KEY (time, source, metric)
) WITHOUT ROWID;

CREATE TABLE histogram (            -- the same values of the whole run
    source INTEGER NOT NULL REFERENCES source,
    metric TEXT NOT NULL,
    low REAL NOT NULL,              -- low < value <= high; 0 lies in the first
    high REAL NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (source, metric, low)
) WITHOUT ROWID;

CREATE TABLE sample (               -- every single value, if the run keeps them
    time REAL NOT NULL,
    source INTEGER NOT NULL REFERENCES source,
    metric TEXT NOT NULL,
    key,                            -- of the population; NULL if there is none
    value REAL NOT NULL
);

CREATE TABLE key_summary (          -- every key that a population has at the end; UUIDs and large integers by their text
    source INTEGER NOT NULL REFERENCES source,
    key NOT NULL,
    group_name TEXT,                -- the group that it belongs to, such as a bank; NULL without groups
    weight REAL NOT NULL,
    syncs INTEGER NOT NULL,         -- 0: never synced
    failures INTEGER NOT NULL,
    last_sync REAL,                 -- seconds since the start; NULL if never
    longest_interval REAL NOT NULL  -- seconds without a sync, those from the start and to the end included
);
CREATE INDEX key_summary_key ON key_summary (source, key);

CREATE TABLE life (                 -- keys that have joined or left a population in the run
    source INTEGER NOT NULL REFERENCES source,
    key NOT NULL,
    joined REAL,                    -- seconds since the start; NULL if it was there
    left REAL,                      -- likewise; NULL if it is there
    syncs INTEGER NOT NULL          -- in this life
);

CREATE TABLE slot (                 -- the slots of a cycle
    source INTEGER NOT NULL REFERENCES source,
    name TEXT NOT NULL,             -- of the cycle
    slot INTEGER NOT NULL,
    begin REAL NOT NULL,            -- seconds since the start of the cycle, phase included
    keys INTEGER NOT NULL,
    weight REAL NOT NULL,
    PRIMARY KEY (source, name, slot)
) WITHOUT ROWID;

CREATE TABLE event (                -- what the scenario did at a time, such as the begin of an outage
    time REAL NOT NULL,
    name TEXT NOT NULL
);
"""

_PROPERTIES: Final = "SELECT name, value FROM run"
_ROW_COUNT_MAX: Final = 20_000  # rows buffered before they are written


class RunDatabase:
    """The database of one run, open for writing.

    Args:
        path: the file; None keeps the database in memory.

    Attributes:
        connection: the connection to the database, for reading.
        row_count: the number of added rows.

    Raises:
        FileExistsError: if the file exists, and ``is_new``.
        ValueError: if the file exists and is not the database of a simulation.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, is_new: bool = True) -> None:
        self.row_count = 0
        self._rows: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)  # by table
        self._held_count = 0
        if path is not None and is_new and os.path.lexists(path):
            raise FileExistsError(f"{os.fspath(path)} already exists: give another name, resume it, or remove it first")
        if path is not None and not is_new and not is_run_database(path):
            raise ValueError(f"{os.fspath(path)} is not a database of a simulation of format {FORMAT}")
        self.connection = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = OFF")  # after a crash of the machine, the run is repeated
        if path is not None:
            self.connection.execute("PRAGMA journal_mode = WAL")
        if is_new:
            self.connection.executescript(SCHEMA)

    def add(self, table: str, row: tuple[Any, ...]) -> None:
        """Add a row to the buffer; it is written together with others."""
        self._rows[table].append(row)
        self._held_count += 1

    @property
    def is_full(self) -> bool:
        """True if the buffer has so many rows that they should be written."""
        return self._held_count >= _ROW_COUNT_MAX

    def set(self, values: Mapping[str, Any]) -> None:
        """Set properties of the run, and write them and all buffered rows in one transaction."""
        connection = self.connection
        connection.execute("BEGIN")
        try:
            for table, rows in self._rows.items():
                verb = "INSERT OR REPLACE" if table == "source" else "INSERT"  # on resume, sources are there already
                places = ", ".join("?" * len(rows[0]))
                connection.executemany(f"{verb} INTO {table} VALUES ({places})", rows)
            connection.executemany("INSERT OR REPLACE INTO run VALUES (?, ?)", list(values.items()))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        self.row_count += self._held_count
        self._held_count = 0
        self._rows.clear()

    def properties(self) -> dict[str, Any]:
        """Return the properties of the run."""
        return dict(self.connection.execute(_PROPERTIES))

    def forget(self, tables: Iterable[str]) -> None:
        """Empty tables that are written only once, at the end."""
        for table in tables:
            self.connection.execute(f"DELETE FROM {table}")  # noqa: S608  # names of our own

    def forget_after(self, time: float) -> None:
        """Remove the measurements after a time, which are of an unfinished step."""
        for table in ("step", "quantiles", "counter", "gauge", "sample"):
            self.connection.execute(f"DELETE FROM {table} WHERE time > ?", (time,))  # noqa: S608  # names of our own

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def run_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the possible files of a run: its database, and the files that SQLite keeps beside it while it is open."""
    return [Path(f"{os.fspath(path)}{suffix}") for suffix in ("", "-wal", "-shm")]


def read_properties(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the properties of a run, without changing its file.

    Raises:
        sqlite3.Error: if the file does not exist, or is not the database of a run.
    """
    with contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return dict(connection.execute(_PROPERTIES))


def is_run_database(path: str | os.PathLike[str]) -> bool:
    """True if a file is the database of a run, in the format of this version."""
    try:
        return bool(read_properties(path).get("format") == FORMAT)
    except sqlite3.Error:
        return False


def as_json(value: Any) -> str:
    """Return a value as JSON; values that JSON does not support become their text."""
    return json.dumps(value, default=str, sort_keys=True)
