"""The files that a run writes are complete, locked, and never overwrite what an earlier run left."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.run import outputs
from ratelimited_executor.cli.run.inputs import LineSource
from ratelimited_executor.cli.run.outputs import Remaining, open_results

Place = Any  # the fixture's class lives in conftest.py, which importlib mode does not let us import
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024  # as shutil returns it


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield an input in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(b"1\n2\n")
    with LineSource("in") as opened:
        yield opened


def names() -> list[str]:
    """Return the names in the current directory, without the input."""
    return sorted(path.name for path in Path().iterdir() if path.name != "in")


def claimed(path: str, source: LineSource) -> Remaining:
    """Return a claimed file of remaining lines."""
    remaining = Remaining(path, source=source)
    remaining.claim()
    return remaining


def test_remaining_lines_are_there_once_they_are_complete(source: LineSource) -> None:
    """The file of remaining lines appears once it is complete, and until then an empty one of its name is removed."""
    Path("rest").touch(mode=0o600)
    remaining = claimed("rest", source)
    assert ["rest.partial"] == names()
    assert 3 == remaining.keep([b"1\n2", b"\n3"], is_bounded=True)
    assert (["rest"], b"1\n2\n3", 0o600) == (
        names(),
        Path("rest").read_bytes(),
        stat.S_IMODE(Path("rest").stat().st_mode),
    )
    remaining.close()
    assert ["rest"] == names()


def test_nothing_remains_is_an_empty_file(source: LineSource) -> None:
    """If nothing remains an empty file is written, and only at the end."""
    remaining = claimed("rest", source)
    assert 0 == remaining.keep([], is_bounded=True)
    remaining.close()
    assert (["rest"], b"") == (names(), Path("rest").read_bytes())


def test_a_run_that_ends_without_an_account_leaves_nothing(source: LineSource) -> None:
    """A run that ends without keeping its rest leaves no file."""
    claimed("rest", source).close()
    assert [] == names()


def test_a_symbolic_link_stays_one(source: LineSource) -> None:
    """A symbolic link stays one, and the lines are written to its target."""
    Path("other").mkdir()
    Path("rest").symlink_to("other/rest")
    remaining = claimed("rest", source)
    remaining.keep([b"1\n"], is_bounded=True)
    remaining.close()
    assert (True, ["rest"]) == (Path("rest").is_symlink(), os.listdir("other"))


def test_a_file_that_came_meanwhile_is_not_overwritten(source: LineSource) -> None:
    """A file of this name that appeared meanwhile is not overwritten: the lines stay in the partial file."""
    remaining = claimed("rest", source)
    Path("rest").write_text("mine")
    with pytest.raises(FileExistsError, match="another file with this name has appeared"):
        remaining.keep([b"1\n"], is_bounded=True)
    remaining.close()
    assert ("mine", "1\n") == (Path("rest").read_text(), Path("rest.partial").read_text())


def test_lines_that_an_earlier_run_could_not_write_to_the_end_are_not_overwritten(source: LineSource) -> None:
    """The partial file of an earlier run is refused by name, and not overwritten."""
    Path("rest.partial").write_text("1\n")
    with pytest.raises(CommandError, match=r"rest\.partial holds lines that an earlier run"):
        claimed("rest", source)
    assert "1\n" == Path("rest.partial").read_text()


def test_two_runs_cannot_have_the_same_file(source: LineSource) -> None:
    """A second run with the same file, also under another name, is refused with the first one's process."""
    first = claimed("rest", source)
    Path("link").symlink_to("rest")
    for name in ("rest", "./rest", "link"):
        with pytest.raises(CommandError) as caught:
            claimed(name, source)
        who = f"process {os.getpid()}" if Path("/proc/locks").exists() else "another process"
        assert str(caught.value) == (
            f"--remaining {name!r} is in use by {who}; name another file, or wait until that has ended"
        )
    first.close()
    claimed("rest", source).close()


def test_a_lock_that_has_gone_meanwhile_is_taken_anew(source: LineSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another run has renamed between opening and locking is not taken."""
    first = claimed("rest", source)
    locked = outputs._is_locked

    def end_the_first(file: Any, **options: Any) -> bool:
        if names() == ["rest.partial"]:
            first.keep([b"1\n"], is_bounded=True)
            first.close()
        return locked(file, **options)

    monkeypatch.setattr(outputs, "_is_locked", end_the_first)
    with pytest.raises(CommandError, match="'rest' is not empty"):
        claimed("rest", source)
    assert ["rest"] == names()
    assert b"1\n" == Path("rest").read_bytes()


def test_a_file_system_without_locks_is_no_hindrance(source: LineSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks files are used without them."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    claimed("rest", source).close()
    open_results("out", source=source, append=False).close()


def test_what_is_no_regular_file_is_written_as_it_is(source: LineSource) -> None:
    """A device or pipe is written directly, without a partial file beside it."""
    reader, writer = os.pipe()
    remaining = claimed(f"/dev/fd/{writer}", source)
    os.close(writer)
    assert 1 == remaining.keep([b"1\n"], is_bounded=True)
    remaining.close()
    assert (b"1\n", b"", []) == (os.read(reader, 9), os.read(reader, 9), names())
    os.close(reader)


def test_an_endless_rest_leaves_room_on_the_disk(source: LineSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless rest stops once too little disk is free; a small one, and that of a file, is written all the same."""
    monkeypatch.setattr(outputs, "FREE_CHECK_BYTES", 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1, 1, outputs.FREE_BYTES_MIN - 1))
    block = b"y\n" * 250

    def endless() -> Any:
        while True:
            yield block

    small = claimed("small", source)
    assert 250 == small.keep([block], is_bounded=False)
    file = claimed("file", source)
    assert 1000 == file.keep([block] * 4, is_bounded=True)
    rest = claimed("rest", source)
    with pytest.raises(OSError, match="less than 1,024 MiB of the disk are free, and the input goes on") as caught:
        rest.keep(endless(), is_bounded=False)
    assert errno.ENOSPC == caught.value.errno
    for each in (small, file, rest):
        each.close()
    assert ["file", "rest.partial", "small"] == names()


def test_a_torn_row_is_ended_before_the_next(place: Place) -> None:
    """A row cut off by a crash is kept on its own line."""
    place.write("out", '{"line": 9, "st')
    result = place.run("note", place.lines(2), "--results", "out", "--append")
    first, *rows = place.text("out").splitlines()
    assert (0, '{"line": 9, "st', [1, 2]) == (result.exit_code, first, [json.loads(row)["line"] for row in rows])


def test_a_whole_last_row_gets_no_blank_line(place: Place) -> None:
    """No blank line is added after a complete row or in an empty file."""
    for _ in range(2):
        place.run("note", place.lines(1), "--results", "out", "--append")
    assert [1, 1] == [row["line"] for row in place.rows("out")]


def test_results_that_another_run_writes_are_refused_but_to_those_that_append(source: LineSource) -> None:
    """A results file belongs to one run, or is shared by runs that append."""
    first = open_results("out", source=source, append=False)
    for append in (False, True):
        with pytest.raises(CommandError, match="--results 'out' is in use by"):
            open_results("out", source=source, append=append)
    first.close()
    both = [open_results("out", source=source, append=True) for _ in range(2)]
    with pytest.raises(CommandError, match="--results 'out' is in use by"):
        open_results("out", source=source, append=False)
    for file in both:
        file.close()


def test_one_file_under_two_names_is_refused(place: Place) -> None:
    """The same file for results and remaining lines is refused."""
    result = place.run("note", place.lines(2), "--results", "out", "--remaining", "./out")
    assert (2, "Error: --results and --remaining must be different files\n") == (result.exit_code, result.stderr)
    assert [] == place.seen("calls")


def test_a_second_run_with_the_same_files_is_refused(place: Place) -> None:
    """A results file in use by another process is refused."""
    (place.path / "out").touch()
    with open_results("out", source=LineSource(place.lines(1)), append=False):
        result = place.run("note", "in.txt", "--results", "out")
    assert (2, True) == (result.exit_code, "--results 'out' is in use by" in result.stderr)
