"""The subcommand ``run`` in this process: lines in; calls, rows and a summary out."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime, timedelta
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from ratelimited_executor.cli.run import job

SummaryOf = Callable[[Result], dict[str, str]]
Place = Any  # the fixture's class lives in conftest.py, which importlib mode does not let us import


def numbers(count: int) -> list[str]:
    """Return the lines that ``place.lines`` writes."""
    return [str(number) for number in range(1, count + 1)]


@pytest.mark.parametrize("target", ["note", "note_async"])
def test_run_calls_the_target_once_for_each_line(place: Place, summary_of: SummaryOf, target: str) -> None:
    """Plain and async functions get every line, in order, without its newline."""
    result = place.run(target, place.lines(500))
    assert (0, "", numbers(500)) == (result.exit_code, result.stdout, place.seen("calls"))
    assert "500" == summary_of(result)["done"]


@pytest.mark.parametrize("extra", [[], ["-"]])
def test_run_reads_standard_input(place: Place, extra: list[str]) -> None:
    """Without INPUT, or with ``-``, lines come from standard input, and an empty line counts."""
    ended = place.pipe("a\n\nb", "append", *extra)
    assert (0, ["a", "", "b"]) == (ended.returncode, place.done())


def test_standard_output_is_the_target_s(place: Place) -> None:
    """Only the output of the target is on standard output."""
    ended = place.pipe("a\nb\n", "print_line", "--rate", "1000")
    assert (0, "a\nb\n") == (ended.returncode, ended.stdout)


def test_run_of_an_empty_file_is_done(place: Place, summary_of: SummaryOf) -> None:
    """A run of an empty file is done, with status 0."""
    result = place.run("note", place.write("in.txt", ""), "--over", "10m", "--results", "out")
    assert (0, "", "0") == (result.exit_code, place.text("out"), summary_of(result)["done"])


def test_run_passes_json_values_and_skips_blank_lines(place: Place, summary_of: SummaryOf) -> None:
    """With --jsonl the argument is the parsed value, and the line number counts blank lines."""
    result = place.run("note", place.write("in", '{"a": 1}\n\n[2]\n  \n"x"'), "--jsonl", "--results", "out")
    assert (0, [{"a": 1}, [2], "x"]) == (result.exit_code, place.seen("calls"))
    assert ("3", "2 skipped") == (summary_of(result)["done"], summary_of(result)["blank lines"])
    assert [1, 3, 5] == [row["line"] for row in place.rows("out")]


def test_run_writes_a_row_for_each_line(place: Place) -> None:
    """A row has the line's number, its state, its lateness, its start, its duration, and result or error."""
    before = datetime.now(UTC) - timedelta(seconds=1)  # the executor's clock is set once, and this one may be slewed
    place.run("fail_on_threes", place.lines(4), "--results", "out")
    after = datetime.now(UTC) + timedelta(seconds=1)
    rows = place.rows("out")
    assert all(0 <= row.pop("lateness") < math.inf for row in rows)
    assert all(0 <= row.pop("duration") < math.inf for row in rows)
    assert all(before <= datetime.fromisoformat(row.pop("started")) <= after for row in rows)
    done = {"state": "done", "result": None}
    assert [
        {"line": 1, **done},
        {"line": 2, **done},
        {"line": 3, "state": "failed", "error": "ValueError: no threes: 3"},
        {"line": 4, **done},
    ] == rows


def test_run_writes_rows_to_standard_output(place: Place) -> None:
    """With ``--results -`` the rows are on standard output, and the summary is not."""
    result = place.run("note", place.lines(3), "--results", "-")
    assert ["1", "2", "3"] == [json.loads(line)["result"] for line in result.stdout.splitlines()]


def test_failing_lines_do_not_stop_the_run(place: Place, summary_of: SummaryOf) -> None:
    """Failing lines do not stop the others; the first errors are shown with their numbers, and the status is 1."""
    result = place.run("fail_on_threes", place.lines(80))
    assert (1, "72", "8") == (result.exit_code, summary_of(result)["done"], summary_of(result)["failed"])
    shown = [line for line in result.stderr.splitlines() if "line" in line]
    assert [f"line {number}: ValueError: no threes: {number}" for number in (3, 13, 23, 33, 43)] == shown[:5]
    assert ["... and 3 more failed lines"] == shown[5:]


@pytest.mark.parametrize(("target", "error"), [("leave", "SystemExit: 7"), ("leave_later", "KeyboardInterrupt")])
def test_a_target_that_leaves_fails_its_line_only(place: Place, target: str, error: str) -> None:
    """``sys.exit`` and ``KeyboardInterrupt`` in a target fail only their line."""
    result = place.run(target, place.lines(4), "--results", "out")
    rows = {row["line"]: row for row in place.rows("out")}
    assert (1, {1, 2, 3, 4}) == (result.exit_code, set(rows))
    assert ("failed", f"TargetExitError: {error}") == (rows[2]["state"], rows[2]["error"])
    assert {"done"} == {rows[line]["state"] for line in (1, 3, 4)}


def test_a_target_that_cancels_itself_is_counted_as_cancelled(place: Place, summary_of: SummaryOf) -> None:
    """A target that cancels itself is counted as cancelled, with status 1."""
    result = place.run("give_up", place.lines(2))
    assert (1, "0", "2") == (result.exit_code, summary_of(result)["done"], summary_of(result)["cancelled"])


def test_threads_bound_blocking_calls(place: Place) -> None:
    """No more than ``--threads`` blocking calls run at a time, beside the loop."""
    result = place.run("block", place.lines(20), "--threads", "3", "--results", "out")
    assert (0, [False] * 20) == (result.exit_code, [row["result"] for row in place.rows("out")])
    assert 3 == place.seen("most_at_once")


@pytest.mark.parametrize(
    ("target", "options", "is_told"), [("block", (), True), ("nap", (), False), ("block", ("--threads", "3"), False)]
)
def test_a_function_that_blocks_is_told_of_threads(
    place: Place, monkeypatch: pytest.MonkeyPatch, target: str, options: tuple[str, ...], is_told: bool
) -> None:
    """A run under a rate, whose function holds the loop nearly all the time, names the option that helps."""
    monkeypatch.setattr(job, "HELD_TOLD_AFTER_S", 0.3)
    result = place.run(target, place.lines(40), "--rate", "1000", *options)
    assert (0, is_told) == (result.exit_code, "--threads N runs it in N threads" in result.stderr)


def test_more_threads_than_the_library_starts_by_itself(place: Place) -> None:
    """``--threads`` may be above the default of 40."""
    result = place.run("block", place.lines(150), "--threads", "60")
    assert (0, True) == (result.exit_code, 40 < place.seen("most_at_once") <= 60)


def test_concurrency_bounds_calls_under_way(place: Place) -> None:
    """No more than ``--concurrency`` calls run at a time, also in threads."""
    result = place.run("block", place.lines(12), "--threads", "8", "--concurrency", "2")
    assert (0, 2) == (result.exit_code, place.seen("most_at_once"))


def test_priorities_are_ordered_within_the_look_ahead(place: Place) -> None:
    """The look-ahead is filled before the first start, so the most important line starts first."""
    lines = "".join(json.dumps({"n": number, "p": number % 7}) + "\n" for number in range(700))
    place.run("note", place.write("in", lines), "--jsonl", "--priority-field", "p")
    calls = place.seen("calls")
    assert sorted(calls, key=lambda call: (-call["p"], call["n"])) == calls


def test_lines_beyond_the_look_ahead_are_counted_and_named(place: Place) -> None:
    """A more important line that is read after less important ones have started is reported."""
    lines = '{"p": 1}\n' * 50 + '{"p": 9}\n' * 7
    result = place.run("note", place.write("in", lines), "--jsonl", "--priority-field", "p", "--look-ahead", "10")
    note = "7 lines out of order by more than the look-ahead of 10: line 51, 52, 53, 54, 55, ..."
    assert (0, note) == (result.exit_code, result.stderr.splitlines()[-1])


def test_due_times_in_the_past_are_started_in_their_order(place: Place) -> None:
    """Overdue lines start at once in the order of their due times, from which their lateness counts."""
    lines = "".join(f'{{"at": {1_700_000_000 - number}}}\n' for number in range(100))
    place.run("note", place.write("in", lines), "--jsonl", "--at-field", "at", "--results", "out")
    dues = [call["at"] for call in place.seen("calls")]
    assert (100, sorted(dues)) == (len(dues), dues)
    assert all(row["lateness"] > time.time() - 1_700_000_100 for row in place.rows("out"))


@pytest.mark.real_time  # one due time lies 0.3 s ahead; only "not before" is asserted, which no slow machine breaks
@pytest.mark.parametrize("form", ["epoch", "iso"])
def test_no_line_starts_before_its_due_time(place: Place, form: str) -> None:
    """No line starts before its due time, given as a number or as text."""
    due = datetime.now(UTC) + timedelta(seconds=0.3)
    value = due.timestamp() if form == "epoch" else due.isoformat()
    place.run("note", place.write("in", json.dumps({"at": value})), "--jsonl", "--at-field", "at", "--on-time")
    assert datetime.now(UTC) >= due
    assert 1 == len(place.seen("calls"))


@pytest.mark.real_time  # 40 lines over 0.4 s; "at least 0.39 s" cannot fail on a slow machine
def test_over_spreads_the_lines_of_a_counted_file(place: Place, summary_of: SummaryOf) -> None:
    """With ``--over`` the last of n lines starts (n - 1)/n of the way through."""
    before = time.monotonic()
    result = place.run("note", place.lines(40), "--over", "400ms")
    assert (0, "40") == (result.exit_code, summary_of(result)["done"])
    assert time.monotonic() - before >= 0.39


@pytest.mark.real_time  # the rate allows 40 starts in 0.4 s however fast the machine is; only a lower bound is asserted
def test_rate_holds_beside_over(place: Place, summary_of: SummaryOf) -> None:
    """Lines due faster than the rate wait for it, and the summary says that it was held."""
    before = time.monotonic()
    result = place.run("note", place.lines(40), "--over", "1ms", "--rate", "100/s")
    assert time.monotonic() - before >= 0.35
    assert summary_of(result)["worst window"].endswith("the rate was held")


def test_over_takes_the_count_of_a_stream_as_told(place: Place) -> None:
    """``--over`` works on a pipe with ``--count``, also if the stream is longer."""
    ended = place.pipe("x\n" * 40, "append", "--over", "10ms", "--count", "30")
    assert (0, 40) == (ended.returncode, len(place.done()))


def test_lines_that_waited_too_long_expire(place: Place, summary_of: SummaryOf) -> None:
    """Lines overdue by more than ``--expires`` are not started, count as expired, and set status 1."""
    at = '{"at": 1700000000}\n'
    soon = json.dumps({"at": time.time()}) + "\n"
    result = place.run(
        "note", place.write("in", at + soon + at), "--jsonl", "--at-field", "at", "--expires", "1h", "--results", "out"
    )
    assert (1, "1", "2") == (result.exit_code, summary_of(result)["done"], summary_of(result)["expired"])
    rows = sorted(place.rows("out"), key=lambda row: int(row["line"]))
    assert [("expired", None), ("expired", None)] == [(row["state"], row["lateness"]) for row in (rows[0], rows[2])]


@pytest.mark.real_time  # ten starts a second against a limit of 0.5 s: at least 5 of 30 lines can never start in time
def test_lines_that_the_rate_holds_back_expire(place: Place) -> None:
    """A file without due times is due at the begin, so lines that the rate delays beyond ``--expires`` expire."""
    result = place.run("note", place.lines(30), "--rate", "10", "--expires", "500ms", "--results", "out")
    states = [row["state"] for row in sorted(place.rows("out"), key=lambda row: int(row["line"]))]
    assert (1, 30, True) == (result.exit_code, len(states), states.count("expired") >= 15)


def test_uvloop_runs_the_loop(place: Place) -> None:
    """With ``--uvloop`` the job runs on uvloop with the same result."""
    pytest.importorskip("uvloop")
    assert (0, ["1", "2", "3"]) == (place.run("note_async", place.lines(3), "--uvloop").exit_code, place.seen("calls"))


def test_memory_is_bounded_by_the_window(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12,000 lines no more than the look-ahead wait in the executor, and a block in the reader."""
    from ratelimited_executor.cli.run import bulk_run

    runs: list[Any] = []
    original = bulk_run.BulkRun._take

    def take(self: Any, number: int, raw: bytes) -> None:
        runs.append(self) if not runs else None
        original(self, number, raw)
        most[0] = max(most[0], self.ledger.in_flight)

    most = [0]
    monkeypatch.setattr(bulk_run.BulkRun, "_take", take)
    lines = "".join(f'{{"p": {number % 5}}}\n' for number in range(12_000))
    arguments = ["--jsonl", "--priority-field", "p", "--look-ahead", "500", "--quiet"]
    assert 0 == place.run("note", place.write("in", lines), *arguments).exit_code
    # Ended calls count until their callbacks have run, in the next turn of the loop.
    assert (12_000, True) == (len(place.seen("calls")), most[0] <= 5_000)
    assert runs[0]._gate.peak <= 500
