"""The summary table at the end of a run, compared whole."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from ratelimited_executor import Rate
from ratelimited_executor.cli.run.ledger import Ledger
from ratelimited_executor.cli.run.progress import Snapshot, describe, expected_seconds
from ratelimited_executor.cli.run.summary import RunSummary, print_summary
from ratelimited_executor.cli.run.windows import busiest_second, whole_excess, worst_report


def printed(summary: RunSummary) -> str:
    """Return what a summary prints without a terminal."""
    file = io.StringIO()
    print_summary(Console(file=file, width=80), summary)
    return file.getvalue()


def ledger_of(starts: list[float]) -> Ledger:
    """Return the ledger of a run with these starts, all done, each 10 ms late."""
    ledger = Ledger()
    for start in starts:
        ledger.taken += 1
        ledger.states["done"] += 1
        ledger.start(start)
        ledger.lateness.add(0.01)
    return ledger


def test_summary_of_a_run_that_is_done() -> None:
    """The summary of a finished run has counts, time, lateness and the busiest windows."""
    summary = RunSummary(ledger=ledger_of([index / 10 for index in range(25)]), rate=Rate(10), wall_seconds=2.5)
    assert printed(summary) == (
        "done            25\n"
        "wall time       2.5 s\n"
        "throughput      10.0 done a second\n"
        "lateness        p50 10 ms, p90 10 ms, p99 10 ms, max 10 ms\n"
        "busiest second  10 starts, from 0 ms on\n"
        "worst window    1 start in 0 ms, 1.2 allowed: the rate was held\n"
    )


def test_a_busiest_second_above_the_rate_is_explained() -> None:
    """A busiest second above the rate is explained if a start was late, as it may be."""
    starts = [0.0, *(0.0101 + index / 10 for index in range(1, 21)), 2.1]
    starts[10] += 0.009  # belongs to the first second, and falls into the second one
    text = printed(RunSummary(ledger=ledger_of(starts), rate=Rate(10), wall_seconds=2.5))
    count = int(text.split("busiest second")[1].split()[0])
    assert count == 11
    assert "on: a start may be up to 20 ms late, and then falls into the next second\n" in text
    assert "the rate was held" in text


def test_summary_of_a_run_that_was_interrupted() -> None:
    """The summary of an interrupted run leaves out states without lines, and lists errors, late lines and the rest."""
    ledger = ledger_of([0.0])
    ledger.states.update(failed=7, expired=1_234)
    ledger.blank = 2
    for number in range(7):
        ledger.fail(number, "ValueError: [bold]no[/bold]")
        ledger.late(number)
    summary = RunSummary(
        ledger=ledger, rate=Rate(math.inf), wall_seconds=61, ending="interrupted", not_started=5_000, remaining="rest",
        look_ahead=100,
    )  # fmt: skip
    assert printed(summary) == (
        "done            1\n"
        "failed          7\n"
        "expired         1,234\n"
        "not started     5,000\n"
        "blank lines     2 skipped\n"
        "wall time       1m1s\n"
        "throughput      0.0 done a second\n"
        "lateness        p50 10 ms, p90 10 ms, p99 10 ms, max 10 ms\n"
        "busiest second  1 start, from 0 ms on\n"
        "line 0: ValueError: [bold]no[/bold]\n"
        "line 1: ValueError: [bold]no[/bold]\n"
        "line 2: ValueError: [bold]no[/bold]\n"
        "line 3: ValueError: [bold]no[/bold]\n"
        "line 4: ValueError: [bold]no[/bold]\n"
        "... and 2 more failed lines\n"
        "7 lines out of order by more than the look-ahead of 100: line 0, 1, 2, 3, 4, ...\n"
        "interrupted; not started: 5,000 lines, now in rest\n"
    )


@pytest.mark.parametrize(
    ("not_started", "remaining", "text"),
    [
        (0, None, "interrupted; every line had been started"),
        (3, None, "interrupted; not started: 3 lines; --remaining FILE would keep them"),
        (None, None, "interrupted; the rest of the stream was not read; --remaining FILE would keep it"),
    ],
)
def test_summary_says_what_is_left_to_do(not_started: int | None, remaining: str | None, text: str) -> None:
    """The last line says whether a second run is needed, and for which lines."""
    summary = RunSummary(
        ledger=Ledger(),
        rate=Rate(1),
        wall_seconds=1,
        ending="interrupted",
        not_started=not_started,
        remaining=remaining,
    )
    assert text == printed(summary).splitlines()[-1]


def test_summary_shows_a_rate_that_was_not_held() -> None:
    """A burst above the rate is reported."""
    assert "5 starts in 0 ms, 1.2 allowed: 3.80 too many" in printed(
        RunSummary(ledger=ledger_of([1.0] * 5), rate=Rate(10), wall_seconds=1)
    )


def test_long_runs_are_audited_in_chunks() -> None:
    """In chunks of any size the busiest window is found, and a slow drift by the run as a whole."""
    starts = [index / 8 for index in range(1_000)]
    starts[777:777] = [777 / 8] * 7
    whole = (busiest_second(starts), worst_report(starts, Rate(10)).count)
    assert 15 == whole[0][0]
    for chunk in (40, 64, 500, 2_000):
        assert whole == (busiest_second(starts, chunk=chunk), worst_report(starts, Rate(10), chunk=chunk).count), chunk
    drifting = [index / 10.5 for index in range(1_000)]
    assert whole_excess(drifting, Rate(10)) > 40 > 0 > whole_excess(starts[:700], Rate(10))


def test_starts_reported_late_find_their_place() -> None:
    """A start that a thread reports late is put in order."""
    assert [1.0, 2.0, 3.0, 3.0] == list(ledger_of([1.0, 3.0, 2.0, 3.0]).starts)


@pytest.mark.parametrize(
    ("left", "limit", "recent", "last_due_in", "seconds"),
    [
        (None, 10.0, 10.0, 0.0, None),
        (100, 10.0, 0.0, 0.0, 10.0),
        (100, 10.0, 5.0, 0.0, 20.0),
        (100, math.inf, 50.0, 0.0, 2.0),
        (100, math.inf, 0.0, 5.0, None),
        (100, 10.0, 10.0, 60.0, 60.0),
        (0, 10.0, 0.0, -5.0, 0.0),
    ],
)
def test_expected_end(left: int | None, limit: float, recent: float, last_due_in: float, seconds: float | None) -> None:
    """The slower of rate and target counts, and nothing ends before the last due time."""
    assert seconds == expected_seconds(left=left, limit=limit, recent=recent, last_due_in=last_due_in)


def test_progress_in_words() -> None:
    """A line of progress has what is known, and leaves out the rest."""
    full = Snapshot(
        finished=1_500, total=10_000, unwell=3, running=7, waiting=100, rate=123.456, backlog=12.0, seconds_left=85.0
    )
    bare = Snapshot(
        finished=0,
        total=None,
        unwell=0,
        running=0,
        waiting=0,
        rate=0.0,
        backlog=0.0,
        seconds_left=None,
        is_stopping=True,
    )
    assert [
        "1,500 of 10,000 lines, 3 failed or expired, 123.5/s, 7 running, backlog 12 s, ends in 1m25s",
        "0 lines, 0.0/s, 0 running, stopping",
    ] == [describe(full), describe(bare)]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            110,
            "12,345 of 100,000 lines, 3 failed or expired, 100.0/s, 10,000 running, backlog 2.8 s, ends in 14m36s",
        ),
        (90, "12,345 of 100,000 lines, 3 failed or expired, 100.0/s, 10,000 running, ends in 14m36s"),
        (74, "12,345 of 100,000 lines, 3 failed or expired, 100.0/s, ends in 14m36s"),
        (64, "12,345 of 100,000 lines, 3 went wrong, 100.0/s, ends in 14m36s"),
        (54, "12%, 3 went wrong, 100.0/s, ends in 14m36s"),
        (34, "12%, 3 went wrong, ends in 14m36s"),
        (10, "12%, 3 went wrong, 14m36s left"),
    ],
)
def test_a_narrow_progress_line_leaves_out_what_matters_least(width, expected):
    """Where a line has no room, it leaves out backlog, running calls and rate, and shortens the rest.

    At 40 columns nothing is cut off, and what expired is not said to have failed.
    """
    snapshot = Snapshot(
        finished=12_345, total=100_000, unwell=3, running=10_000, waiting=1, rate=100.0, backlog=2.8, seconds_left=876.0
    )
    assert expected == describe(snapshot, width)
