"""Bad input is refused with the reason and status 2, before anything is called."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

Place = Any  # the fixture's class lives in conftest.py, which importlib mode does not let us import

AT = ("--jsonl", "--at-field", "at")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing.txt"], "nothing.txt cannot be read: No such file or directory"),
        (["."], ". cannot be read: Is a directory"),
        (["in.txt", "--at-field", "at"], "--at-field needs --jsonl: plain lines have no fields"),
        (["in.txt", "--priority-field", "p"], "--priority-field needs --jsonl: plain lines have no fields"),
        (["in.txt", *AT, "--over", "1m"], "--over and --at-field exclude each other: both say when a line is due"),
        (["in.txt", "--rate", "0"], "--rate 0 would never start a line"),
        (["in.txt", "--results", "no/out"], "--results 'no/out' cannot be written: No such file or directory"),
        (["in.txt", "--results", "."], "--results '.' cannot be written: Is a directory"),
        (["in.txt", "--remaining", "no/out"], "--remaining 'no/out' cannot be written: No such file or directory"),
        (["in.txt", "--results", "in.txt"], "--results 'in.txt' is the input itself; name another file"),
        (["in.txt", "--remaining", "./in.txt"], "--remaining './in.txt' is the input itself; name another file"),
        (["in.txt", "--remaining", "-"], "--remaining must be a file"),
        (["in.txt", "--results", "a", "--remaining", "a"], "--results and --remaining must be different files"),
        (["in.txt", "--results", "full"],
         "--results 'full' is not empty, an earlier run may need it; name another file or pass --append"),
        (["in.txt", "--remaining", "full"], "--remaining 'full' is not empty, an earlier run may need it; name another file"),
    ],
)  # fmt: skip
def test_run_refuses(place: Place, arguments: list[str], reason: str) -> None:
    """Options and files that cannot be used end the command before the target is called."""
    place.lines(3)
    place.write("full", "something\n")
    result = place.run("note", *arguments)
    assert (2, f"Error: {reason}\n", "") == (result.exit_code, result.stderr, result.stdout)
    assert ([], "something\n", "1\n2\n3\n") == (place.seen("calls"), place.text("full"), place.text("in.txt"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rate", "fast"], "'--rate': a rate looks like 200, 100/s or 5/min and is >= 0, got 'fast'"),
        (
            ["--rate", "5/fortnight"],
            "'--rate': rate must look like '100/s', '5/min' or '1000/15min', got '5/fortnight': the units are ms, s, min, h, day",
        ),
        (["--rate", "nan"], "'--rate': a rate looks like 200, 100/s or 5/min and is >= 0, got 'nan'"),
        (
            ["--rate", "1/0s"],
            "'--rate': rate must be a number of permits in a time longer than 0, got '1/0s'",
        ),
        (["--rate", "1e400"], "'--rate': a rate looks like 200, 100/s or 5/min and is >= 0, got '1e400'"),
        (["--rate", "\u0663"], "'--rate': a rate looks like 200, 100/s or 5/min and is >= 0, got '\u0663'"),
        (["--rate", "-5"], "'--rate': a rate looks like 200, 100/s or 5/min and is >= 0, got '-5'"),
        (["--over", "soon"], "'--over': a duration looks like 90, 10m or 1h30m and is longer than 0, got 'soon'"),
        (["--expires", "0"], "'--expires': a duration looks like 90, 10m or 1h30m and is longer than 0, got '0'"),
        (["--look-ahead", "0"], "'--look-ahead': 0 is not in the range x>=1."),
        (["--threads", "0"], "'--threads': 0 is not in the range x>=1."),
        (["--concurrency", "-1"], "'--concurrency': -1 is not in the range x>=1."),
        (["--count", "-1"], "'--count': -1 is not in the range x>=0."),
    ],
)
def test_run_refuses_values(place: Place, arguments: list[str], reason: str) -> None:
    """A value out of its form or range is named with its option."""
    result = place.run("note", place.lines(3), *arguments)
    assert (2, f"Error: Invalid value for {reason}") == (result.exit_code, result.stderr.splitlines()[-1])


def test_run_refuses_a_target_before_it_touches_a_file(place: Place) -> None:
    """With a bad target no output file is made, and standard input is not read."""
    ended = place.pipe("line\n", "missing", "--results", "out")
    reason = f"TARGET '{place.module}:missing': module '{place.module}' has no attribute 'missing'"
    assert (2, f"Error: {reason}\n") == (ended.returncode, ended.stderr)
    assert not (place.path / "out").exists()


def test_run_refuses_a_stream_of_unknown_length_over_a_time(place: Place) -> None:
    """--over with standard input is refused, and the error says what to add."""
    ended = place.pipe("line\n", "append", "--over", "1m")
    assert (2, []) == (ended.returncode, place.done())
    assert ended.stderr == "Error: --over needs --count for standard input: a stream cannot be counted beforehand\n"


def test_run_refuses_an_async_target_in_threads(place: Place) -> None:
    """--threads with an async target is refused."""
    result = place.run("nap", place.lines(1), "--threads", "2")
    assert (2, "Error: --threads is for plain functions; the target is async: use --concurrency\n") == (
        result.exit_code,
        result.stderr,
    )


def test_run_names_the_extra_of_uvloop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """--uvloop without uvloop names the extra to install."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    result = place.run("note", place.lines(1), "--uvloop")
    assert (2, "Error: --uvloop needs uvloop: pip install 'ratelimited-executor[uvloop]'\n") == (
        result.exit_code,
        result.stderr,
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everything")
def test_run_refuses_a_file_without_permission(place: Place) -> None:
    """An existing file without write permission is refused."""
    (place.path / place.write("out", "")).chmod(0o400)
    result = place.run("note", place.lines(3), "--results", "out")
    assert "Error: --results 'out' cannot be written: Permission denied\n" == result.stderr


@pytest.mark.parametrize(
    ("content", "arguments", "reason"),
    [
        ('{"a":1}\n{"a":2}\n{bad\n{"a":4}\n', ["--jsonl"],
         "line 3: malformed JSON: Expecting property name enclosed in double quotes at column 2"),
        (b"one\ntwo\ncaf\xe9s\nfour\n", [], "line 3: not UTF-8: invalid continuation byte at byte 4"),
        ('{"at":1}\n{"at":2}\n{"at":"x"}\n{"at":4}', AT, "line 3: field 'at' is not an ISO 8601 time: 'x'"),
        ('{"p":2}\n{"p":1}\n{"p":"x"}\n{"p":4}', ["--jsonl", "--priority-field", "p"],
         "line 3: field 'p' must be an integer, a larger one is more important; got 'x'"),
    ],
)  # fmt: skip
def test_a_bad_line_ends_the_input_there(place: Place, content: str | bytes, arguments: list[str], reason: str) -> None:
    """Lines before a bad one are done, and it and the rest are kept unchanged, with status 2."""
    name = place.write("in", content)
    result = place.run("note", name, *arguments, "--remaining", "rest", "--results", "out")
    whole = (place.path / name).read_bytes()
    assert (2, 2, [1, 2]) == (result.exit_code, len(place.seen("calls")), [row["line"] for row in place.rows("out")])
    assert b"".join(whole.splitlines(keepends=True)[2:]) == (place.path / "rest").read_bytes()
    note = f"bad input: {reason}; not started: 2 lines, now in rest"
    assert note == result.stderr.splitlines()[-1]


def test_a_bad_line_without_a_file_for_the_rest_says_how_many(place: Place) -> None:
    """Without --remaining the lines that were not started are counted."""
    result = place.run("note", place.write("in", "1\n2\n{\n4\n5\n"), "--jsonl")
    assert "not started: 3 lines; --remaining FILE would keep them" in result.stderr
    assert (2, [1, 2]) == (result.exit_code, place.seen("calls"))


def test_results_are_appended_only_when_asked(place: Place) -> None:
    """--append adds to the rows of an earlier run."""
    place.run("note", place.lines(2), "--results", "out")
    result = place.run("note", place.lines(2), "--results", "out", "--append")
    assert (0, [1, 2, 1, 2]) == (result.exit_code, [row["line"] for row in place.rows("out")])
