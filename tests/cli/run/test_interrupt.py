"""Signals sent to a real process lose no line, and let none run twice."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.helpers import until

Place = Any  # the fixture's class lives in conftest.py, which importlib mode does not let us import

# Far longer than any step takes: a test that waits so long has found a hang.
PATIENCE_S = 60


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of the process; return its status and its output on standard error."""
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_run_completes_an_interrupted_one(place: Place, number: signal.Signals) -> None:
    """Both runs together do each line exactly once, and the rest keeps its order."""
    lines = place.lines(3_000)
    process = place.start(
        "append", lines, "--rate", "500", "--remaining", "rest", "--results", "out", "--look-ahead", "900"
    )
    until(lambda: len(place.done()) >= 50)
    process.send_signal(number)
    status, said = end(process)
    first = place.done()
    rest = place.text("rest").split()
    assert (130, True) == (status, f"not started: {len(rest):,} lines, now in rest" in said)
    assert rest == [str(line) for line in range(len(first) + 1, 3_001)]
    assert sorted(map(int, first)) == sorted(row["line"] for row in place.rows("out"))
    assert (0, "") == (end(place.start("append", "rest", "--remaining", "rest2"))[0], place.text("rest2"))
    assert [str(line) for line in range(1, 3_001)] == sorted(place.done(), key=int)


def test_an_ordered_run_is_interrupted_without_loss(place: Place) -> None:
    """Lines that wait out of order in the look-ahead go back in the order of the input."""
    rows = [json.dumps({"n": number, "p": number % 3}) for number in range(3_000)]
    name = place.write("in", "\n".join(rows))  # the last line has no newline
    arguments = ["--jsonl", "--priority-field", "p", "--rate", "300", "--remaining", "rest", "--results", "out"]
    process = place.start("append", name, *arguments)
    until(lambda: (place.path / "done.txt").exists())
    process.send_signal(signal.SIGTERM)
    assert 130 == end(process)[0]
    started = {row["line"] for row in place.rows("out")}
    assert [row for number, row in enumerate(rows, 1) if number not in started] == place.text("rest").split("\n")


def test_what_runs_may_finish_after_the_first_signal(place: Place) -> None:
    """After the first signal the running calls finish, and count as done."""
    process = place.start("nap", place.lines(5_000), "--rate", "200", "--remaining", "rest", "--results", "out")
    until(lambda: (place.path / "out").exists() and bool(place.text("out")))
    process.send_signal(signal.SIGINT)
    assert 130 == end(process)[0]
    rows = place.rows("out")
    assert {"done"} == {row["state"] for row in rows}
    assert 5_000 == len(rows) + len(place.text("rest").split())


@pytest.mark.parametrize(
    ("target", "arguments"), [("append_and_hang", []), ("append_and_hang_in_thread", ["--threads", "5"])]
)
def test_a_second_signal_stops_at_once(place: Place, target: str, arguments: list[str]) -> None:
    """A second signal gives up calls that hang, in the loop or in threads, and every file is complete."""
    command = [place.lines(1_000), "--concurrency", "5", "--remaining", "rest", "--results", "out", *arguments]
    process = place.start(target, *command)
    until(lambda: len(place.done()) == 5)
    process.send_signal(signal.SIGINT)
    until(lambda: (place.path / "rest").exists())
    assert 995 == len(place.text("rest").split())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert 130 == end(process)[0]
    assert [("cancelled", line) for line in range(1, 6)] == sorted(
        (row["state"], row["line"]) for row in place.rows("out")
    )
    assert [str(line) for line in range(6, 1_001)] == place.text("rest").split()


def test_the_unread_rest_of_a_pipe_is_kept(place: Place) -> None:
    """Lines that the writer of a pipe has written, or writes until it ends, are in the rest."""
    process = place.start("append", "--rate", "100", "--remaining", "rest", "--look-ahead", "10", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in range(1, 5_001)))
    process.stdin.flush()
    until(lambda: len(place.done()) >= 5)
    process.send_signal(signal.SIGTERM)
    status, _ = end(process)  # closes the pipe
    assert (130, [str(line) for line in range(1, 5_001)]) == (status, place.done() + place.text("rest").split())


def test_a_silent_writer_does_not_hold_the_end_up(place: Place) -> None:
    """If a pipe stays open, the rest is what arrived before a moment of silence."""
    process = place.start("append", "--remaining", "rest", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n2\nunfin")
    process.stdin.flush()
    until(lambda: len(place.done()) == 2)
    process.send_signal(signal.SIGINT)
    assert 130 == process.wait(timeout=PATIENCE_S)
    end(process)
    assert (["1", "2"], "unfin") == (place.done(), place.text("rest"))


def test_without_a_file_for_the_rest_it_is_counted(place: Place) -> None:
    """The summary says how many lines of the file were not started."""
    process = place.start("append", place.lines(5_000), "--rate", "100")
    until(lambda: len(place.done()) >= 3)
    process.send_signal(signal.SIGINT)
    status, said = end(process)
    note = f"interrupted; not started: {5_000 - len(place.done()):,} lines; --remaining FILE would keep them"
    assert (130, note) == (status, said.splitlines()[-1])


@pytest.mark.skipif(
    not hasattr(signal, "SIGINT") or not __import__("os").path.exists("/dev/full"), reason="no /dev/full"
)
def test_a_full_disk_stops_the_run_and_keeps_the_rest(place: Place) -> None:
    """If rows cannot be written nothing more starts, and the run ends with status 2 and the reason."""
    command = [place.lines(50_000), "--rate", "2000", "--results", "/dev/full", "--remaining", "rest"]
    status, said = end(place.start("append", *command))
    assert (2, True) == (status, "output failed: [Errno 28] No space left on device" in said)
    assert [str(line) for line in range(1, 50_001)] == place.done() + place.text("rest").split()


def test_a_signal_while_the_file_is_counted_keeps_every_line(place: Place) -> None:
    """A signal before the first start keeps the whole input as the rest."""
    big = "x" * 63 + "\n"
    process = place.start("append", place.write("in", big * 1_000_000), "--over", "1h", "--remaining", "rest")
    until(lambda: (place.path / "rest.partial").exists())
    time.sleep(0.05)  # during the counting or after it: the same must hold
    process.send_signal(signal.SIGTERM)
    assert 130 == end(process)[0]
    assert 1_000_000 * 64 == (place.path / "rest").stat().st_size + 64 * len(place.done())


# What the command is about to do when the signal comes: each from the claim of the file on, when it can be lost.
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("outputs.Remaining.claim", signal.SIGTERM),
        ("job.RunJob.__init__", signal.SIGINT),
        ("job.RunJob.play", signal.SIGTERM),
        ("job.RunJob._play_on", signal.SIGHUP),
        ("bulk_run.BulkRun.__init__", signal.SIGINT),
        ("bulk_run.BulkRun.play", signal.SIGTERM),
    ],
)
def test_a_signal_before_the_first_start_keeps_every_line(place: Place, moment: str, number: signal.Signals) -> None:
    """A signal at any step before the first start calls nothing, and all lines remain."""
    module, _, path = moment.partition(".")
    owner, _, name = path.rpartition(".")
    (place.path / "sending.py").write_text(
        f"import os\nfrom ratelimited_executor.cli.run import {module}\n"
        f"original = {module}.{path}\n"
        f"def send(*given, **named):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        f"    return original(*given, **named)\n"
        f"{module}.{owner}.{name} = send\n"
        f"from {place.module} import append\n"
    )
    place.module = "sending"
    status, said = end(place.start("append", place.lines(300), "--remaining", "rest", "--rate", "100"))
    assert (130, "interrupted; not started: 300 lines, now in rest") == (status, said.splitlines()[-1])
    assert ([], place.text("in.txt")) == (place.done(), place.text("rest"))
    assert not (place.path / "rest.partial").exists()


def test_a_signal_at_any_time_leaves_every_line_or_no_file(place: Place) -> None:
    """A signal at any time leaves no empty file of remaining lines while lines remain."""
    lines = place.lines(2_000)
    statuses = set()
    for step in range(8):
        process = place.start("append", lines, "--rate", "500", "--remaining", "rest", "-q")
        if step >= 4:
            until(lambda: (place.path / "rest.partial").exists())
        time.sleep(step % 4 * 0.01)  # spread over the start and the first lines
        process.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[step % 3])
        statuses.add(end(process)[0])
        if (place.path / "rest").exists():
            assert [str(line) for line in range(1, 2_001)] == place.done() + place.text("rest").split(), step
            (place.path / "rest").unlink()
        else:
            assert [] == place.done()
        (place.path / "done.txt").unlink(missing_ok=True)
        (place.path / "rest.partial").unlink(missing_ok=True)
    assert 130 in statuses


def test_a_kill_leaves_no_file_that_says_that_nothing_remains(place: Place) -> None:
    """A killed run leaves no empty file of remaining lines, and no lock that blocks the next run."""
    place.write("rest", "")
    process = place.start("append", place.lines(5_000), "--rate", "100", "--remaining", "rest")
    until(lambda: len(place.done()) >= 3)
    process.kill()
    end(process)
    assert not (place.path / "rest").exists()
    assert (0, "") == (end(place.start("append", place.lines(3), "--remaining", "rest"))[0], place.text("rest"))
    assert not (place.path / "rest.partial").exists()


def test_a_closed_terminal_stops_the_run_as_a_signal_does(place: Place) -> None:
    """SIGHUP stops starts; a second one, which a shell also sends, does not cancel running calls."""
    process = place.start("nap", place.lines(5_000), "--rate", "200", "--remaining", "rest", "--results", "out")
    until(lambda: (place.path / "out").exists() and bool(place.text("out")))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert 130 == end(process)[0]
    assert {"done"} == {row["state"] for row in place.rows("out")}
    assert 5_000 == len(place.rows("out")) + len(place.text("rest").split())


def test_nobody_need_read_what_it_says(place: Place) -> None:
    """If the reader of standard error has gone, as after ``| head``, the run continues, and a stop keeps the rest."""
    lines = place.lines(3_000)
    process = place.start("append", lines, "--rate", "300", "--remaining", "rest")
    assert process.stderr is not None
    process.stderr.close()
    until(lambda: len(place.done()) >= 3)
    process.send_signal(signal.SIGTERM)
    assert 130 == process.wait(timeout=PATIENCE_S)
    assert [str(line) for line in range(1, 3_001)] == place.done() + place.text("rest").split()


def test_a_hangup_that_is_ignored_stays_ignored(place: Place) -> None:
    """An ignored SIGHUP, as with ``nohup``, stays ignored."""
    process = place.start(
        "append",
        place.lines(300),
        "--rate",
        "300",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    until(lambda: len(place.done()) >= 3)
    process.send_signal(signal.SIGHUP)
    assert (0, 300) == (end(process)[0], len(place.done()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_heeded_on_uvloop(place: Place, number: signal.Signals) -> None:
    """The first signal stops the run also on uvloop, which handles signals in its own way."""
    pytest.importorskip("uvloop")
    process = place.start("append", place.lines(5_000), "--uvloop", "--rate", "200", "--remaining", "rest")
    until(lambda: len(place.done()) >= 5)
    process.send_signal(number)
    assert 130 == end(process)[0]
    assert [str(line) for line in range(1, 5_001)] == place.done() + place.text("rest").split()


def test_an_error_of_our_own_loses_no_line(place: Place) -> None:
    """After an internal error in the middle of a run, the rest is kept."""
    (place.path / "broken.py").write_text(
        "from ratelimited_executor.cli.run import bulk_run\n"
        "original = bulk_run.BulkRun._take\n"
        "def take(self, number, raw):\n"
        "    if number == 500: raise RuntimeError('a bug')\n"
        "    original(self, number, raw)\n"
        "bulk_run.BulkRun._take = take\n"
        f"from {place.module} import append\n"
    )
    place.module = "broken"
    status, said = end(place.start("append", place.lines(1_000), "--rate", "1000", "--remaining", "rest"))
    assert (1, True) == (status, "RuntimeError: a bug" in said)
    assert [str(line) for line in range(1, 1_001)] == place.done() + place.text("rest").split()
