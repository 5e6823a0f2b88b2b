"""Reading raw lines from files and streams."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.run import inputs
from ratelimited_executor.cli.run.decoding import BadLineError
from ratelimited_executor.cli.run.inputs import LineSource, LineSplitter, count_lines


def test_splitter_gives_every_byte_back_however_it_is_cut() -> None:
    """However the text is cut, the lines add up to it, and only the last one may lack its newline."""
    source = random.Random(1)
    for _ in range(300):
        text = bytes(source.choices(b"ab\r\n", k=source.randrange(0, 40)))
        splitter, lines, rest = LineSplitter(), [], text
        while rest:
            size = source.randrange(1, 8)
            lines += splitter.feed(rest[:size])
            rest = rest[size:]
        lines += splitter.finish()
        assert text.splitlines(keepends=True) == lines or text.count(b"\r"), text
        assert (text, text.count(b"\n") + (text[-1:] not in (b"", b"\n"))) == (b"".join(lines), len(lines)), text


def test_source_reads_a_file_to_its_end(tmp_path: Path) -> None:
    """All lines of a file are read in order, and then its end."""
    path = tmp_path / "lines"
    expected = [b"%d\n" % number for number in range(100_000)]
    path.write_bytes(b"".join(expected))
    with LineSource(str(path)) as source:
        read: list[bytes] = []
        while not source.at_end:
            read += source.read()
    assert expected == read


def test_source_gives_the_unread_rest_byte_for_byte(tmp_path: Path) -> None:
    """The lines read and the rest add up to the file, including the part of an unfinished line."""
    path = tmp_path / "lines"
    content = os.urandom(900_000).replace(b"\x00", b"\n") + b"no newline"
    path.write_bytes(content)
    with LineSource(str(path)) as source:
        read = source.read()
        assert content == b"".join(read) + b"".join(source.rest(quiet_s=0.0))


def test_source_refuses_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond the limit is refused by number, and kept in the rest."""
    monkeypatch.setattr(inputs, "LINE_BYTES_MAX", 300_000)
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * 2_000_000)
    with LineSource(str(path)) as source:
        assert [b"short\n"] == source.read()
        with pytest.raises(BadLineError, match="line 2: longer than"):
            while True:
                source.read()
        assert b"x" * 2_000_000 == b"".join(source.rest(quiet_s=0.0))


@pytest.mark.parametrize("ending", [b"\n", b"\nlast\n", b""])
def test_source_refuses_a_line_that_is_longer_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: bytes
) -> None:
    """The limit applies to the line, wherever blocks are cut, and what follows it in its block is kept."""
    monkeypatch.setattr(inputs, "LINE_BYTES_MAX", 300_000)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 300_000 + b"\n" + b"y" * 300_001 + ending)
    with LineSource(str(path)) as source:
        lines: list[bytes] = []
        with pytest.raises(BadLineError, match="line 2: longer than"):
            while not source.at_end:
                lines += source.read()
        assert [b"x" * 300_000 + b"\n"] == lines
        assert b"y" * 300_001 + ending == b"".join(source.rest(quiet_s=0.0))


def test_source_on_a_silent_pipe_comes_back_with_nothing() -> None:
    """A read from a silent pipe returns soon, so that signals are noticed; later lines are read once written."""
    reader, writer = os.pipe()
    try:
        with LineSource(f"/dev/fd/{reader}") as source:
            assert ([], False) == (source.read(), source.at_end)
            os.write(writer, b"one\ntw")
            assert [b"one\n"] == source.read()
            os.write(writer, b"o\n")
            assert [b"two\n"] == source.read()
            assert [] == list(source.rest(quiet_s=0.0))
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(("name", "reason"), [("nothing", "No such file or directory"), (".", "Is a directory")])
def test_source_names_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """A missing file or a directory is refused with the reason of the system."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError) as caught:
        LineSource(name)
    assert f"{name} cannot be read: {reason}" == str(caught.value)


@pytest.mark.parametrize(
    ("content", "all_lines", "used_lines"),
    [(b"", 0, 0), (b"a", 1, 1), (b"a\n", 1, 1), (b"a\n\nb", 3, 2), (b"\n \t\n", 2, 0), (b"a\r\n\r\n", 2, 1)],
)
def test_count_lines_counts(tmp_path: Path, content: bytes, all_lines: int, used_lines: int) -> None:
    """Counting includes a last line without a newline, and skips blank ones on request."""
    path = tmp_path / "lines"
    path.write_bytes(content)
    counted = (count_lines(str(path), skip_blank=False), count_lines(str(path), skip_blank=True))
    assert (all_lines, used_lines) == counted


def test_count_lines_does_not_hold_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting stops at a line beyond the limit, as the run will, without reading it into memory."""
    monkeypatch.setattr(inputs, "LINE_BYTES_MAX", 300_000)
    path = tmp_path / "lines"
    path.write_bytes(b"1\n" + b"x" * 3_000_000 + b"\n3\n")
    assert 2 == count_lines(str(path), skip_blank=True)
