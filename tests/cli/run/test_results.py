"""Rows of the results file, and the writer that writes them."""

from __future__ import annotations

import asyncio
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimited_executor.cli.run.results import ResultsWriter, result_row


class Unprintable:
    """Raises in ``repr()``."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no")


class UnprintableError(Exception):
    """Raises in ``str()``."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no")


def loop_of_lists() -> list[object]:
    """Return a list that contains itself."""
    items: list[object] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "null"),
        ({"a": [1, 2.5, "x"]}, '{"a": [1, 2.5, "x"]}'),
        ({1}, '"{1}"'),
        (float("nan"), '"nan"'),
        (b"raw", "\"b'raw'\""),
        ({(1, 2): 3}, '"{(1, 2): 3}"'),
        (loop_of_lists(), '"[[...]]"'),
        (Unprintable(), '"<unprintable Unprintable: RuntimeError>"'),
        ("\ud800", '"\\ud800"'),
        ("\u00e4", '"\u00e4"'),
    ],
)
def test_row_holds_any_result_as_valid_json(result: object, text: str) -> None:
    """JSON values are kept, and others are written as their repr."""
    row = result_row(3, "done", 0.00123456, result=result)
    assert f'{{"line": 3, "state": "done", "lateness": 0.001235, "result": {text}}}\n'.encode() == row
    json.loads(row)


def test_a_line_that_started_has_times():
    """A line that started has its start in UTC and its duration, which is never negative."""
    row = json.loads(result_row(3, "done", 0.5, started=1_700_000_000.25, ended=1_700_000_001.0))
    assert ("2023-11-14T22:13:20.250000+00:00", 0.75) == (row["started"], row["duration"])
    assert json.loads(result_row(3, "done", 0.5, started=2.0, ended=1.0))["duration"] == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (KeyError(), "KeyError"),
        (UnprintableError(), "UnprintableError: <unprintable: RuntimeError>"),
        (OSError("no https://ann:letmein@host/"), "OSError: no https://***@host/"),
        ("was late", "was late"),
    ],
)
def test_row_names_any_error(error: BaseException | str, text: str) -> None:
    """An error is written as type and message, without secrets of URLs, or as our text; a line that never started has no lateness."""
    expected = {"line": 3, "state": "failed", "lateness": None, "error": text}
    assert expected == json.loads(result_row(3, "failed", None, error=error))


class FullDisk(io.BytesIO):
    """A file on a full disk."""

    def write(self, data: object, /) -> int:
        """Raise the error of a full disk."""
        raise OSError(28, "No space left on device")


async def test_writer_reports_a_full_disk_once_and_keeps_nothing_more() -> None:
    """The first failure to write is reported on the loop, and later rows are dropped."""
    failures: list[OSError] = []
    with ThreadPoolExecutor(1) as files:
        writer = ResultsWriter(FullDisk(), files, on_failure=failures.append)
        writer.add(b"one\n")
        await asyncio.wait_for(writer.run(), 10)
        writer.add(b"two\n")
        writer.finish()
    assert [28] == [failure.errno for failure in failures]
    assert not writer.is_congested


async def test_writer_finishes_what_it_was_given() -> None:
    """Rows are written in order, by the running writer or at the end."""
    file = io.BytesIO()
    with ThreadPoolExecutor(1) as files:
        writer = ResultsWriter(file, files, on_failure=lambda error: None)
        running = asyncio.create_task(writer.run())
        for number in range(1000):
            writer.add(b"%d\n" % number)
            if number == 500:
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        writer.finish()
    assert [b"%d" % number for number in range(1000)] == file.getvalue().splitlines()
