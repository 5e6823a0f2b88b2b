"""The result of each line, as JSON Lines, written while the run continues.

Rows are buffered briefly and written by a worker thread, so a slow disk does not delay starts. Memory is bounded: while
too many rows wait for the disk, the run takes no more lines.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, Final

from ratelimited_executor._core.urls import masked_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

__all__ = ["ResultsWriter", "describe_error", "result_row"]

# How long a row may stay in memory; a crash of the machine loses no more than this.
FLUSH_EVERY_S: Final = 0.2
# Rows that may wait for the disk.
WAITING_ROWS_MAX: Final = 50_000
# An error's text in a row or in the summary is cut here; some carry whole documents.
ERROR_CHARS_MAX: Final = 2_000


def describe_error(error: BaseException) -> str:
    """Return an error as ``Type: message``, whatever its ``__str__`` does, without secrets of URLs."""
    try:
        text = masked_text(str(error))
    except Exception as broken:  # noqa: BLE001  # user code, which may raise anything
        text = f"<unprintable: {type(broken).__name__}>"
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:ERROR_CHARS_MAX]


def result_row(
    number: int,
    state: str,
    lateness: float | None,
    *,
    started: float | None = None,
    ended: float | None = None,
    result: object = None,
    error: BaseException | str | None = None,
    attempts: int = 1,
) -> bytes:
    """Return one row: ``line``, ``state``, ``lateness`` in seconds (null if never started), ``result`` or ``error``.

    A line that started has ``started``, a time in UTC, and ``duration``, the seconds of its last attempt; both
    arguments are epoch seconds. ``attempts`` is present if there was more than one. A result that is not a JSON value
    is written as its ``repr``.
    """
    row: dict[str, object] = {"line": number, "state": state, "lateness": _rounded(lateness)}
    if started is not None:
        row["started"] = datetime.fromtimestamp(started, UTC).isoformat(timespec="microseconds")
        row["duration"] = None if ended is None else _rounded(max(0.0, ended - started))
    if attempts > 1:
        row["attempts"] = attempts
    if error is not None:
        row["error"] = describe_error(error) if isinstance(error, BaseException) else error
        return _encode(row)
    try:
        return _encode(row | {"result": result})
    except (TypeError, ValueError, RecursionError):
        return _encode(row | {"result": _repr(result)})


class ResultsWriter:
    """Writes rows to a file in a thread.

    Args:
        file: open for writing; the caller closes it.
        files: threads for writing; not the loop's own, which the target may keep busy.
        on_failure: called once, on the loop, if the file can no longer be written.
    """

    def __init__(self, file: BinaryIO, files: Executor, *, on_failure: Callable[[OSError], None]) -> None:
        self._file = file
        self._files = files
        self._on_failure = on_failure
        self._rows: list[bytes] = []
        self._failure: OSError | None = None

    @property
    def is_congested(self) -> bool:
        """True if so many rows wait for the disk that no more work should start."""
        return len(self._rows) >= WAITING_ROWS_MAX

    @property
    def failure(self) -> OSError | None:
        """The error that ended the writing, if any."""
        return self._failure

    def add(self, row: bytes) -> None:
        """Add one row; it is dropped if the file has failed."""
        if self._failure is None:
            self._rows.append(row)

    async def run(self) -> None:
        """Write buffered rows at short intervals, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            if rows := self._rows:
                self._rows = []
                await _finished(asyncio.get_running_loop().run_in_executor(self._files, self._write, rows))
                if self._failure is not None:
                    self._on_failure(self._failure)
                    return

    def finish(self) -> None:
        """Write the last rows at once; errors are kept in :attr:`failure`."""
        rows, self._rows = self._rows, []
        if self._failure is None:
            self._write(rows)

    def _write(self, rows: list[bytes]) -> None:
        try:
            self._file.write(b"".join(rows))
            self._file.flush()
        except OSError as error:
            self._failure = error


async def _finished(writing: asyncio.Future[None]) -> None:
    """Wait for the writing even when cancelled, as ``finish`` must not write at the same time; then be cancelled."""
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


def _encode(row: dict[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def _rounded(lateness: float | None) -> float | None:
    return None if lateness is None else round(lateness, 6)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # user code, which may raise anything
        return f"<unprintable {type(value).__name__}: {type(error).__name__}>"
