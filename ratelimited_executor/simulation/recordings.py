"""Recorded arrivals, read from the access log of a web server, from a table, or from the results of a bulk run.

A table is a CSV file or a Parquet file.

A simulation of a log with a tenth of its lines missing would say nothing about the service. So a few unreadable lines
are counted, and more are an error that names the first one.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import stat
import zlib
from array import array
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Final, Literal

from ratelimited_executor.simulation.limits import RECORD_CHARS_MAX, RECORDED_MAX
from ratelimited_executor.simulation.parquet import PARQUET_MAGIC, ParquetTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader
    from os import PathLike
    from typing import Any, TextIO

__all__ = [
    "Recording",
    "read_access_log",
    "read_csv",
    "read_parquet",
    "read_recording",
    "read_results",
    "recording_kind",
]

# More unreadable lines than both of these are an error.
_SKIPPED_MAX: Final = 10
_SKIPPED_PART_MAX: Final = 0.01
_SHOWN_CHARACTERS: Final = 160
_MILLISECONDS_MEAN: Final = 300.0  # whole durations with at least this mean look like milliseconds
_GZIP_MAGIC: Final = b"\x1f\x8b"
_SNIFFED_LINES: Final = 20
# A number beyond the year 9999 is in milliseconds, or is not a time.
_EPOCH_MAX: Final = 253_402_300_800.0
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400

# host ident user [time] "request" status bytes, any quoted fields ("referer" "user agent"), duration.
_QUOTED: Final = r' "[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LINE: Final = re.compile(
    rf"(\S+) \S+ ([^\[]*?) \[([^\]]{{26}})\]{_QUOTED} (?:\d{{3}}|-) (?:\d+|-)(?:{_QUOTED})*+(?: (-?\d+(\.\d+)?))?\s*",
    re.ASCII,
)
_STAMP: Final = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_LINE_EXPECTED: Final = (
    'the common or combined log format, as in \'192.0.2.1 - - [01/Jan/2024:13:55:36 +0100] "GET / HTTP/1.1" 200 99 "-" '
    '"agent" 0.005\', every line with how long the request took, or none'
)


@dataclass(frozen=True, slots=True, repr=False)
class Recording:
    """Recorded arrivals, with their keys and durations if known.

    Attributes:
        times: seconds since the first arrival, rising; equal times are in the order of the file.
        keys: the keys, such as clients, in the order of ``times``; None if they were not read.
        durations: the durations in seconds, >= 0, in the order of ``times``; None if they were not read.
        begin: the time of the first arrival, in seconds since the epoch.
        skipped: the number of unreadable lines.
    """

    times: array[float]
    keys: list[str] | None
    durations: array[float] | None
    begin: float
    skipped: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in a sentence, if anything was."""
        if not self.skipped:
            return ()
        count = self.skipped + len(self.times)
        return (f"{self.skipped:,} of {count:,} rows skipped, as they have no time or cannot be read",)

    @property
    def duration_notes(self) -> tuple[str, ...]:
        """That the durations look like milliseconds, in a sentence, if they do."""
        known = [each for each in self.durations or () if each < math.inf]
        mean = math.fsum(known) / max(1, len(known))
        if mean < _MILLISECONDS_MEAN or not all(map(float.is_integer, known)):
            return ()
        return (
            f"durations are whole numbers with a mean of {mean:,.0f} s: if they are milliseconds, divide them by 1,000",
        )

    def __repr__(self) -> str:
        keys = "" if self.keys is None else f" by {len(set(self.keys))} keys"
        return f"<Recording of {len(self.times)} arrivals{keys} in {self.times[-1]:g} s, {self.skipped} lines skipped>"


def read_access_log(
    path: str | PathLike[str],
    *,
    key: Literal["host", "user"] | None = "host",
    smooth: bool = True,
    stamped: Literal["begin", "end"] | None = None,
) -> Recording:
    """Read the access log of a web server: the common or the combined log format, as Apache and nginx write them.

    A number at the end of a line is the duration of the request: with a decimal point in seconds (``$request_time`` of
    nginx), without one in microseconds (``%D`` of Apache). More quoted fields may precede it. A line that differs in
    this from the first readable line is unreadable.

    The times of these formats are whole seconds, so all arrivals of a second seem to come at its beginning, which would
    be a burst to a rate limit. So the arrivals of a second are spread evenly over it, in the order of the file: the
    first of four comes at its beginning, the second a quarter of a second later. Their actual times are unknown.

    Args:
        path: the file, which may be compressed with gzip.
        key: the key of a request: the first field, which is the client's address or name, or the remote user.
        smooth: True to spread the arrivals of a second over it; False to leave them at its beginning.
        stamped: True if the time of a line is the request's arrival (Apache, aiohttp), False if it is the end (nginx,
            gunicorn), from which the duration is subtracted. None assumes the end for durations in seconds, and the
            arrival for those in microseconds. Without a duration, the time of the line is the arrival.

    Returns:
        The requests in order of arrival. Lines may be in any order, because logs are written when requests end.

    Raises:
        OSError: if the file cannot be opened or read.
        ValueError: if the file is empty, has no readable line, or has more than 1 percent and more than 10 unreadable
            lines; if a duration is negative; if an argument is none of its choices; if the compressed data is damaged.
    """
    _check_choice("key", key, ("host", "user", None))
    _check_choice("stamped", stamped, ("begin", "end", None))
    field_of_key = {"host": 1, "user": 2, None: 0}[key]
    seconds: list[int] = []
    keys: list[str] = []
    durations = array("d")
    is_timed: bool | None = None
    scale = 1.0
    tally = _Tally(str(path), _LINE_EXPECTED)
    with _open_text(path) as file:
        for number, line in enumerate(_lines(path, file), start=1):
            if not (match := _LINE.fullmatch(line)):
                tally.skip(number, line)
                continue
            second, took, decimals = _parse_stamp(match[3]), match[4], match[5]
            line_scale = 1.0 if decimals else 1e-6
            if is_timed is None and second is not None:
                is_timed, scale = took is not None, line_scale
            if second is None or is_timed is not (took is not None) or scale != line_scale:
                tally.skip(number, line)
                continue
            seconds.append(second)
            if took is not None:
                durations.append(_duration(tally, number, "path", float(took) * scale))
            if field_of_key:
                keys.append(intern(match[field_of_key]))
    tally.finish(len(seconds))
    base = min(seconds)
    offsets = _spread(seconds, base) if smooth else [float(second - base) for second in seconds]
    if is_timed and (stamped == "end" or (stamped is None and scale == 1)):
        offsets = [offset - took for offset, took in zip(offsets, durations, strict=True)]
    return _arrange(base, offsets, keys if field_of_key else None, durations if is_timed else None, tally.skipped)


def read_csv(
    path: str | PathLike[str],
    *,
    time: str,
    key: str | None = None,
    duration: str | None = None,
    end: str | None = None,
    time_format: str | None = None,
) -> Recording:
    """Read arrivals from a CSV file whose first line names its columns.

    The delimiter is a comma. If that gives no column ``time``, the delimiter found by :class:`csv.Sniffer` is used,
    provided that it gives one.

    Args:
        path: the file, in UTF-8, which may be compressed with gzip.
        time: the column of arrival times: seconds since the epoch, or ISO 8601, in UTC if they have no offset.
        key: the column of keys, such as clients; None for none.
        duration: the column of durations in seconds; None for none.
        end: the column of the times at which what arrived had ended, in place of ``duration``. Where it is empty, the duration
            is infinite: it has not ended.
        time_format: another format of the times, for :meth:`datetime.datetime.strptime`; UTC without ``%z``.

    Returns:
        The arrivals in order of their times. Rows may be in any order.

    Raises:
        OSError: if the file cannot be opened or read.
        ValueError: if the file is empty, has no such column or no readable row, or has more than 1 percent and more
            than 10 unreadable rows; if a time is not finite or lies beyond the year 9999; if a duration is negative or
            not finite; if both ``duration`` and ``end`` are given; if the compressed data is damaged.
    """
    wanted = _wanted(time, key, duration, end)
    tally = _Tally(str(path), _row_expected(wanted, time_format))
    with _open_text(path) as file:
        delimiter, places = _find_columns(path, file, wanted)
        rows = _iterate_rows(path, file, delimiter, tally)
        return _read_rows(rows, places, _time_parser(time_format), tally)


def read_parquet(
    path: str | PathLike[str],
    *,
    time: str,
    key: str | None = None,
    duration: str | None = None,
    end: str | None = None,
    time_format: str | None = None,
) -> Recording:
    """Read arrivals from a Parquet file, by the package ``pyarrow``.

    Args:
        path: the file; one file, not a directory of them.
        time: the column of arrival times: timestamps of any unit or dates, in UTC if they have no time zone; or numbers or
            texts as for :func:`read_csv`.
        key: the column of keys, such as clients, of which the text is taken, that of a duration being its number of units;
            None for none.
        duration: the column of durations: of the type duration, or numbers or texts, in seconds; None for none.
        end: the column of the times at which they had ended, as for :func:`read_csv`, of the types of ``time``.
        time_format: the format of times that are texts, as for :func:`read_csv`.

    Returns:
        The arrivals in order of their times. Rows may be in any order.

    Raises:
        ModuleNotFoundError: without the extra ``parquet``.
        OSError: if the file cannot be opened or read.
        ValueError: as for :func:`read_csv`; if the file is not a whole Parquet file; if a column has a type that cannot be
            read as what it is to be.
    """
    wanted = _wanted(time, key, duration, end)
    tally = _Tally(str(path), _row_expected(wanted, time_format), unit="row")
    with _open_regular(path) as file:
        table = ParquetTable(path, file)
        places = _places(path, table.names, wanted)
        rows = table.rows(places, has_format=time_format is not None)
        order = {argument: place for place, argument in enumerate(places)}
        return _read_rows(enumerate(rows, start=1), order, _time_parser(time_format), tally)


def read_results(path: str | PathLike[str]) -> Recording:
    """Read the results of a bulk run, as ``run --results FILE`` writes them.

    A line arrived when it was due, which is its start minus its lateness, and lasted as long as its last attempt. A line
    that never started has no time, and counts as unreadable.

    Args:
        path: the file, JSON Lines, which may be compressed with gzip.

    Raises:
        OSError: if the file cannot be opened or read.
        ValueError: as for :func:`read_access_log`.
    """
    moments: list[float] = []
    durations = array("d")
    tally = _Tally(
        str(path), 'a result such as {"line": 1, "state": "done", "lateness": 0.1, "started": ..., "duration": 2}'
    )
    with _open_text(path) as file:
        for number, line in enumerate(_lines(path, file), start=1):
            try:
                row = json.loads(line)
                moment = datetime.fromisoformat(row["started"]).timestamp() - float(row["lateness"])
                took = float(row["duration"])
            except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
                tally.skip(number, line)
                continue
            moments.append(moment)
            durations.append(_duration(tally, number, "path", took))
    tally.finish(len(moments))
    base = min(moments)
    return _arrange(base, [moment - base for moment in moments], None, durations, tally.skipped)


def read_recording(path: str | PathLike[str], **columns: str | None) -> Recording:
    """Read an access log, a table or the results of a bulk run, recognized by the suffix, or else by how the file begins.

    Args:
        path: the file: ``.csv``, ``.log`` or ``.jsonl``, optionally with ``.gz``, or ``.parquet``. A file with another suffix
            is a Parquet file if it begins as one, and an access log if its first line is one of an access log.
        columns: ``time``, ``key``, ``duration``, ``end`` and ``time_format`` as for :func:`read_csv`. A table needs ``time``; an
            access log takes none of them. None is the same as omitting an argument.

    Raises:
        ModuleNotFoundError: if the file is a Parquet file, and the extra ``parquet`` is not installed.
        OSError: as for :func:`read_access_log`.
        TypeError: if an argument is unknown.
        ValueError: as for :func:`read_access_log`, :func:`read_csv` and :func:`read_parquet`; if ``time`` is missing for a
            table, or columns are given for an access log.
    """
    if unknown := columns.keys() - {"time", "key", "duration", "end", "time_format"}:
        raise TypeError(f"columns must be time, key, duration, end or time_format, got {', '.join(sorted(unknown))}")
    given = {name: column for name, column in columns.items() if column is not None}
    kind = recording_kind(path)
    if kind == "log" or kind == "results":  # noqa: PLR1714  # a type checker knows what is left
        if given:
            what = "the results of a run" if kind == "results" else "an access log"
            raise ValueError(
                f"{path}: {', '.join(sorted(given))} must not be given, since the file is {what}, which has no "
                "columns: leave it out, or use read_csv if the file is a CSV file"
            )
        return read_results(path) if kind == "results" else read_access_log(path)
    time = given.pop("time", None)
    if time is None:
        raise ValueError(
            f"{path}: time must name the column of the times, since the file is not an access log: one of "
            f"{_show(_names_in(path, kind)) or 'none, as its first line is blank'}"
        )
    return (read_parquet if kind == "parquet" else read_csv)(path, time=time, **given)


@dataclass(slots=True)
class _Tally:
    """Counts the unreadable lines of a file.

    Attributes:
        path: the path of the file, for the message.
        expected: the expected form of a line.
        unit: what the file consists of: lines of a text, which may be blank, or rows, which never are.
        skipped: the number of unreadable lines.
        first: the number and the text of the first one.
    """

    path: str
    expected: str
    unit: str = "line"
    skipped: int = 0
    first: tuple[int, str] = field(default=(0, ""))

    def skip(self, number: int, line: str) -> None:
        """Count a line or a row, unless it is a blank line."""
        if self.unit == "line" and not line.strip(", \t\r\n"):
            return
        if not self.skipped:
            self.first = number, line.rstrip("\r\n")[:_SHOWN_CHARACTERS]
        self.skipped += 1

    def finish(self, read: int) -> None:
        """Refuse a file with no arrivals, or with too many unreadable lines."""
        if not read + self.skipped:
            raise ValueError(f"{self.path}: path must name a file with arrivals, but it has none: give another file")
        too_many = self.skipped > max(_SKIPPED_MAX, _SKIPPED_PART_MAX * (read + self.skipped))
        if read and not too_many:
            return
        number, line = self.first
        raise ValueError(
            f"{self.path}: path must name a file of which at most 1 % of the {self.unit}s cannot be read, got "
            f"{self.skipped} of {read + self.skipped}: the first is {self.unit} {number}, {line!r}; expected is "
            f"{self.expected}. Correct or remove the {self.unit}s"
        )


def _open_regular(path: str | PathLike[str]) -> BufferedReader:
    """Open a file that can be read more than once."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # for a directory, open() raises a clear error
        raise ValueError(
            f"{path}: path must name a regular file, because it is read more than once, and to its end: copy its content to one"
        )
    return Path(path).open("rb")


@contextmanager
def _open_text(path: str | PathLike[str]) -> Iterator[TextIO]:
    """Open a text file, through gzip if it begins with the gzip signature."""
    with _open_regular(path) as raw:
        stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP_MAGIC else raw
        with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="\n") as text:
            try:
                yield text
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{path}: path must name a file that is whole, but decompressing it failed ({error}): copy it again"
                ) from error


def _lines(path: str | PathLike[str], file: TextIO) -> Iterator[str]:
    """Yield lines; refuse too long a line, or too many lines, before memory is exhausted."""
    number = 0
    while line := file.readline(RECORD_CHARS_MAX):
        number += 1
        if len(line) == RECORD_CHARS_MAX and not line.endswith("\n"):
            raise ValueError(
                f"{path}: path must name a file of lines of at most {RECORD_CHARS_MAX:,} characters, line {number} is longer"
            )
        if number > RECORDED_MAX:
            raise ValueError(f"{path}: path must name a file of at most {RECORDED_MAX:,} lines, it has more: cut it")
        yield line


@lru_cache(maxsize=4096)
def _parse_stamp(text: str) -> int | None:
    """Return seconds since the epoch of a time such as ``31/Jan/2024:13:55:36 +0100``; None if it is malformed."""
    if not (match := _STAMP.fullmatch(text)):
        return None
    day, month, year, hour, minute, second = (
        match[1],
        _MONTHS.get(match[2], 0),
        match[3],
        *map(int, match.group(4, 5, 6)),
    )
    if hour > 23 or minute > 59 or second > 60 or int(match[9]) > 59:
        return None
    with suppress(ValueError):
        days = date(int(year), month, int(day)).toordinal() - _EPOCH_DAY
        offset = (int(match[8]) * 60 + int(match[9])) * 60
        return days * _DAY_S + hour * 3600 + minute * 60 + second - (offset if match[7] == "+" else -offset)
    return None


def _time_parser(time_format: str | None) -> Callable[[str], float]:
    """Return a function from a text to seconds since the epoch; it caches, because times in a log repeat."""

    def parse(text: str) -> float:
        if time_format is None:
            try:
                return float(text)
            except ValueError:
                moment = datetime.fromisoformat(text.strip())
        else:
            moment = datetime.strptime(text, time_format)  # noqa: DTZ007  # the zone is set below
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()

    return parse if time_format is None else lru_cache(maxsize=4096)(parse)


def _find_columns(path: str | PathLike[str], file: TextIO, wanted: dict[str, str | None]) -> tuple[str, dict[str, int]]:
    """Return the delimiter, and the index of the column of each argument; rewind the file."""
    sample = "".join(islice(_lines(path, file), _SNIFFED_LINES))
    file.seek(0)
    head = sample.partition("\n")[0]
    names, delimiter = _split_header(head, ","), ","
    if not any(names):
        raise ValueError(
            f"{path}: path must name a CSV file whose first line names its columns, but it does not: give another file"
        )
    if wanted["time"] not in names:
        with suppress(csv.Error):
            sniffed = csv.Sniffer().sniff(sample, delimiters=";\t|").delimiter
            if wanted["time"] in _split_header(head, sniffed):
                names, delimiter = _split_header(head, sniffed), sniffed
    return delimiter, _places(path, names, wanted)


def _places(path: str | PathLike[str], names: list[str], wanted: dict[str, str | None]) -> dict[str, int]:
    """Return the index of the column of each argument that names one."""
    for argument, name in wanted.items():
        if name is not None and name not in names:
            raise ValueError(f"{path}: {argument} must name a column, one of {_show(names)}, got {name!r}")
    return {argument: names.index(name) for argument, name in wanted.items() if name is not None}


def _split_header(line: str, delimiter: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:  # a field is too long
        return []


def _show(names: list[str]) -> str:
    return ", ".join(repr(name[:_SHOWN_CHARACTERS]) for name in names)


def _iterate_rows(
    path: str | PathLike[str], file: TextIO, delimiter: str, tally: _Tally
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows after the header with their line numbers; count those that are not CSV."""
    lines = _lines(path, file)
    next(lines)
    rows = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            tally.skip(1 + rows.line_num, f"({error})")
            continue
        yield 1 + rows.line_num, row


def _wanted(time: str, key: str | None, duration: str | None, end: str | None) -> dict[str, str | None]:
    """Return the names of columns by argument."""
    if duration is not None and end is not None:
        raise ValueError(f"end must not be given beside duration, got {end!r} and {duration!r}: leave out one of them")
    return {"time": time, "key": key, "duration": duration, "end": end}


def _row_expected(wanted: dict[str, str | None], time_format: str | None) -> str:
    """Say what a row of a table must have."""
    what = "ISO 8601 or seconds since the epoch" if time_format is None else f"the format {time_format!r}"
    seconds = f", seconds in column {wanted['duration']!r}" if wanted["duration"] else ""
    later = f", a later time or nothing in column {wanted['end']!r}" if wanted["end"] else ""
    return f"a time in column {wanted['time']!r} ({what}){seconds}{later}"


def _read_rows(
    rows: Iterable[tuple[int, Sequence[Any]]], places: Mapping[str, int], parse: Callable[[Any], float], tally: _Tally
) -> Recording:
    """Read the arrivals of a table.

    Args:
        rows: the number and the values of each row: texts, numbers, or None.
        places: the index of the value of each argument: ``time``, and perhaps ``key``, and ``duration`` or ``end``.
        parse: returns the seconds since the epoch of a time.
        tally: counts the rows that cannot be read.
    """
    time, key, duration, end = places["time"], places.get("key"), places.get("duration"), places.get("end")
    is_timed = duration is not None or end is not None
    moments: list[float] = []
    keys: list[str] = []
    durations = array("d")
    for number, row in rows:
        try:
            moment = parse(row[time])
            took = 0.0 if duration is None else float(row[duration])
            ended = math.inf if end is None or row[end] in ("", None) else parse(row[end])
            who = "" if key is None else row[key]
        except (ValueError, IndexError, OverflowError, TypeError):
            tally.skip(number, ",".join("" if each is None else str(each) for each in row))
            continue
        if not -_EPOCH_MAX < moment < _EPOCH_MAX:
            raise ValueError(
                f"{tally.path}: time must name a column of finite times, in seconds since the epoch or ISO 8601, got "
                f"{row[time]!r} in {tally.unit} {number}: divide milliseconds by 1000, remove the {tally.unit}, or "
                "give another column"
            )
        moments.append(moment)
        if end is not None:
            durations.append(ended if ended == math.inf else _duration(tally, number, "end", ended - moment))
        elif duration is not None:
            durations.append(_duration(tally, number, "duration", took))
        if key is not None:
            keys.append(intern(who))
    tally.finish(len(moments))
    base = min(moments)
    offsets = [moment - base for moment in moments]
    return _arrange(base, offsets, keys if key is not None else None, durations if is_timed else None, tally.skipped)


def _suffix(path: str | PathLike[str]) -> str:
    """Return the suffix of a name in lower case, without that of a compression."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix == ".gz" else name).suffix.lower()


def recording_kind(path: str | PathLike[str]) -> Literal["csv", "log", "parquet", "results"]:
    """Return what a file is, by its suffix, or else by how it begins."""
    known: dict[str, Literal["csv", "log", "parquet", "results"]] = {
        ".csv": "csv", ".jsonl": "results", ".log": "log", ".parquet": "parquet"
    }  # fmt: skip
    if kind := known.get(_suffix(path)):
        return kind
    with _open_regular(path) as raw:
        if raw.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC:
            return "parquet"
    with _open_text(path) as file:
        return "log" if _LINE.fullmatch(file.readline(RECORD_CHARS_MAX)) else "csv"


def _names_in(path: str | PathLike[str], kind: Literal["csv", "parquet"]) -> list[str]:
    """Return the names of the columns of a table."""
    if kind == "parquet":
        with _open_regular(path) as raw:
            return ParquetTable(path, raw).names
    with _open_text(path) as file:
        return _split_header(file.readline(RECORD_CHARS_MAX), ",")


def _duration(tally: _Tally, number: int, argument: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(
            f"{tally.path}: {argument} must give durations >= 0 and finite, in seconds, got {value!r} in {tally.unit} "
            f"{number}: correct the {tally.unit} or remove it"
        )
    return value


def _check_choice(name: str, value: str | None, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _spread(seconds: list[int], base: int) -> list[float]:
    """Return the seconds since ``base``, with equal values spread evenly over their second."""
    counts = Counter(seconds)
    seen = dict.fromkeys(counts, 0)
    offsets = []
    for second in seconds:
        place = seen[second]
        seen[second] = place + 1
        offsets.append(second - base + place / counts[second])
    return offsets


def _arrange(
    base: float, offsets: list[float], keys: list[str] | None, durations: array[float] | None, skipped: int
) -> Recording:
    """Return the recording, sorted by time; offsets count from ``base``, which keeps them precise."""
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    first = offsets[order[0]]
    return Recording(
        times=array("d", [offsets[index] - first for index in order]),
        keys=None if keys is None else [keys[index] for index in order],
        durations=None if durations is None else array("d", [durations[index] for index in order]),
        begin=base + first,
        skipped=skipped,
    )
