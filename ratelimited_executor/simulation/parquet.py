"""Rows of Parquet files, in the terms of CSV files: times are seconds since the epoch or texts, keys are texts.

So whoever reads rows needs no second rule for a Parquet file. The package ``pyarrow``, of the extra ``parquet``, is imported
on first use.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ratelimited_executor.simulation.limits import RECORDED_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

__all__ = ["PARQUET_MAGIC", "ParquetTable"]

PARQUET_MAGIC: Final = b"PAR1"  # the first bytes of each Parquet file
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # the units of Arrow
_BATCH_ROWS: Final = 65_536  # in memory at a time, beside the bytes of their row group
_EXPECTED: Final = {
    "time": "timestamps, dates, numbers or texts",
    "end": "timestamps, dates, numbers or texts",
    "key": "single values",
    "duration": "durations, numbers or texts",
}


class ParquetTable:
    """A Parquet file, open for reading.

    Args:
        path: the file, for messages.
        file: the file, open.

    Raises:
        ModuleNotFoundError: without the extra ``parquet``.
        ValueError: if the file is not a whole Parquet file, or has too many rows.
    """

    def __init__(self, path: str | PathLike[str], file: BinaryIO) -> None:
        try:
            self._arrow = import_module("pyarrow")
            parquet = import_module("pyarrow.parquet")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{path} is a Parquet file, and to read it needs the package pyarrow: "
                "pip install 'ratelimited-executor[parquet]'",
                name=error.name,
            ) from error
        self._path = path
        with self._whole():
            self._table = parquet.ParquetFile(file)
        count = self._table.metadata.num_rows
        if count > RECORDED_MAX:
            raise ValueError(
                f"{path}: path must name a file of at most {RECORDED_MAX:,} rows, it has {count:,}: cut it"
            )

    @property
    def names(self) -> list[str]:
        """The names of its columns, in order."""
        return list(self._table.schema_arrow.names)

    def rows(self, places: Mapping[str, int], *, has_format: bool) -> Iterator[list[Any]]:
        """Yield the values of some columns of each row: numbers, texts, or None where nothing was recorded.

        Times are numbers of seconds since the epoch, or texts; durations are seconds, or texts; keys are texts. A timestamp
        without a time zone is in UTC, as in a CSV file.

        Args:
            places: the number of the column of each argument: ``time``, ``key``, ``duration``, ``end``.
            has_format: True if the times are to be texts, as a format of them is given.

        Raises:
            ValueError: if the values of a column have a type that its argument cannot have, or the file is damaged.
        """
        readers = [self._reader(argument, self._table.schema_arrow.field(place)) for argument, place in places.items()]
        times = [self._table.schema_arrow.field(places[each]).type for each in ("time", "end") if each in places]
        if has_format and not all(map(self._is_text, times)):
            raise ValueError(f"{self._path}: time_format must be given for columns of texts only: leave it out")
        names = [self.names[place] for place in places.values()]
        batches = self._table.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(names)), use_threads=False)
        while True:
            with self._whole():
                batch = next(batches, None)
                if batch is None:
                    return
                there = batch.schema.names
                columns = [read(batch.column(there.index(name))) for name, read in zip(names, readers, strict=True)]
            yield from map(list, zip(*columns, strict=True))

    def _reader(self, argument: str, column: Any) -> Callable[[Any], list[Any]]:
        """Return a function from values of a column to those of the rows."""
        types, kind, decode = self._arrow.types, column.type, _same
        if types.is_dictionary(kind):
            kind, decode = kind.value_type, _decoded
        if argument == "key" and types.is_temporal(kind):  # of Python's types, none has nanoseconds
            return lambda values: [_text_of(each) for each in decode(values).cast(self._arrow.string()).to_pylist()]
        if argument == "key" and not types.is_nested(kind):
            return lambda values: [_text_of(each) for each in decode(values).to_pylist()]
        is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        if argument != "key" and (is_number or self._is_text(kind)):
            return lambda values: decode(values).to_pylist()
        is_time = argument in ("time", "end")
        if is_time and types.is_date(kind):
            kind = self._arrow.timestamp("ms")
            return lambda values: self._seconds(decode(values).cast(kind), kind.unit)
        if (is_time and types.is_timestamp(kind)) or (argument == "duration" and types.is_duration(kind)):
            return lambda values: self._seconds(decode(values), kind.unit)
        raise ValueError(
            f"{self._path}: {argument} must name a column of {_EXPECTED[argument]}, and {column.name!r} is of the type "
            f"{column.type}: give another column"
        )

    def _is_text(self, kind: Any) -> bool:
        types = self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    def _seconds(self, values: Any, unit: str) -> list[float | None]:
        per = _PER_SECOND[unit]  # a quotient of integers is the float next to it, whatever their size
        return [None if each is None else each / per for each in values.cast(self._arrow.int64()).to_pylist()]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Name the file in the errors of what is damaged."""
        try:
            yield
        except (self._arrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{self._path}: path must name a whole Parquet file, but reading it failed ({error}): copy it again"
            ) from error


def _same(values: Any) -> Any:
    return values


def _decoded(values: Any) -> Any:
    return values.dictionary_decode()


def _text_of(key: Any) -> str:
    """Return a key as a CSV file would have it."""
    return "" if key is None else key.decode(errors="replace") if isinstance(key, bytes) else str(key)
