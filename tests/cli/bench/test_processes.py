"""``bench --processes``: several processes of one machine share a load."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ratelimited_executor.cli.bench.open_load import Live
from ratelimited_executor.cli.bench.processes import together
from ratelimited_executor.load.recording import Recent
from tests.cli.bench.service import Service, served
from tests.cli.refusals import assert_refused
from tests.cli.bench.test_bench import bench
from tests.helpers import until

pytestmark = pytest.mark.real_time("processes and sockets have no virtual time")

COMMAND = [sys.executable, "-m", "ratelimited_executor", "bench"]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Run one service for all tests of this file."""
    with served() as running:
        yield running


def run(place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=place.path, capture_output=True, text=True, timeout=100, check=False
    )


def test_processes_send_each_request_once_and_report_the_whole(place, service) -> None:
    """The report is that of one load, with a row for each process, and no request is sent twice."""
    service.seen.clear()
    load = ["--rate", "ordinary=80", "--rate", "urgent=20", "--for", "1s", "--warm-up", "500ms", "--processes", "2"]
    done = run(place, f"{service.url}/echo/{{class}}/{{n}}", *load, "--connections", "9", "--json", "out.json")
    found = json.loads(place.text("out.json"))

    assert 0 == done.returncode, done.stderr
    assert (100, {}) == (found["figures"]["count"], found["figures"]["errors"])
    assert [("ordinary", 80), ("urgent", 20)] == [(each["name"], each["count"]) for each in found["figures"]["classes"]]
    assert [("process 1", 50), ("process 2", 50)] == [(each["name"], each["count"]) for each in found["participants"]]
    assert [*range(150)] == sorted(int(path.rpartition("/")[2]) for _, path, _, _ in service.seen)
    assert ("2", "9") == (found["settings"]["processes"], found["settings"]["connections"])
    assert "by participant" in done.stdout


def test_search_is_shared(place, service) -> None:
    """Each trial is a load of all processes."""
    rates = ["--rate", "20..40", "--find-max", "--errors", "0", "--every", "300ms", "--processes", "2", "--quiet"]
    done = run(place, f"{service.url}/", *rates)

    assert 0 == done.returncode, done.stderr
    assert "The highest rate held is 40/s" in done.stdout
    assert "process 2" in done.stdout


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the ids of the processes that a command has started for its shares."""
    children = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,  # without a process it fails
    )
    return [int(line.split()[0]) for line in children.stdout.splitlines() if "spawn_main" in line]


def test_killed_process_is_missing(place, service) -> None:
    """The report has the figures of the others, and says whose are not in them."""
    service.seen.clear()
    with subprocess.Popen(
        [*COMMAND, f"{service.url}/echo/x", "--rate", "50", "--for", "4s", "--processes", "2", "--quiet"],
        cwd=place.path, stdout=-1, stderr=-1, text=True,
    ) as process:  # fmt: skip
        until(lambda: len(service.seen) >= 60)
        os.kill(workers_of(process)[-1], signal.SIGKILL)
        out, err = process.communicate(timeout=60)

    assert 1 == process.returncode, err
    assert re.search(r"THE LOAD IS INCOMPLETE  process \d is missing", out)
    assert "100 in 4 s" in out


def test_second_signal_ends_a_process_that_hangs(place, service) -> None:
    """Whatever does not answer a second signal is killed, and the report has the figures of the others."""
    service.seen.clear()
    with subprocess.Popen(
        [*COMMAND, f"{service.url}/echo/x", "--rate", "50", "--for", "10m", "--processes", "2", "--quiet"],
        cwd=place.path, stdout=-1, stderr=-1, text=True,
    ) as process:  # fmt: skip
        until(lambda: len(service.seen) >= 60)
        os.kill(workers_of(process)[-1], signal.SIGSTOP)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        out, err = process.communicate(timeout=60)

    assert 130 == process.returncode, err
    assert re.search(r"process \d +at least \d+% +missing", out), out


def test_interrupt_while_processes_load_is_quiet(place) -> None:
    """Ctrl-C, which a terminal sends to all, before the processes have loaded their modules: no word from any of them."""
    with subprocess.Popen(
        [*COMMAND, "http://127.0.0.1:9/", "--rate", "50", "--for", "10m", "--processes", "2", "--quiet"],
        cwd=place.path, stdout=-1, stderr=-1, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        while len(workers_of(process)) < 2:
            assert process.poll() is None
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (130, "", "") == (process.returncode, out, err)


@pytest.mark.parametrize(("number", "is_to_all"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_interrupt_reports_what_all_have_measured(place, service, number, is_to_all) -> None:
    """A signal to the command, or to all its processes, ends the share of each, and the figures of all are in the report."""
    service.seen.clear()
    with subprocess.Popen(
        [*COMMAND, f"{service.url}/echo/x", "--rate", "50", "--for", "10m", "--processes", "2", "--json", "out.json"],
        cwd=place.path, stdout=-1, stderr=-1, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        until(lambda: len(service.seen) >= 40)
        (os.killpg if is_to_all else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=60)
    found = json.loads(place.text("out.json"))

    assert 130 == process.returncode, err
    assert "Interrupted" in out and "other participants" not in found["incomplete"]
    assert 40 <= found["figures"]["count"] == len(service.seen)
    assert not any(each["is_missing"] for each in found["participants"])


def test_target_that_cannot_be_set_up_is_refused(place) -> None:
    """The reason of a process is that of the command."""
    place.write(
        "broken.py",
        "from contextlib import contextmanager\n\n@contextmanager\ndef target():\n    raise OSError('no database')\n    yield\n",
    )
    done = run(place, "broken.py:target", "--rate", "5", "--for", "1s", "--processes", "2")

    assert 2 == done.returncode
    assert "no database" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--processes", "3", "--connections", "2"], ["--connections 2 are too few for --processes 3"]),
        (["--processes", "2", "--peers", "redis://x", "--expect", "2"], ["--processes and --peers exclude each other"]),
    ],
)
def test_bad_usage_is_refused(place, options, words) -> None:
    """Each process needs a connection, and participants that meet in Redis are started one by one."""
    assert_refused(bench("http://x/", "--rate", "1", *options), *words)


def test_snapshots_of_shares_add_up() -> None:
    """Counts are added, and of durations the longest is shown."""
    one = Live(
        is_warm_up=False,
        seconds=1,
        total=9,
        rate=5,
        in_flight=1,
        waiting=0,
        ended=3,
        errors=1,
        recent=Recent(p50=0.1, p99=0.5, counts=(1, 2)),
    )
    other = replace(
        one,
        is_warm_up=True,
        seconds=2,
        in_flight=2,
        waiting=4,
        ended=2,
        errors=0,
        recent=Recent(p50=0.2, p99=0.3, counts=(0, 2)),
    )

    assert replace(
        other,
        rate=10,
        in_flight=3,
        waiting=4,
        ended=5,
        errors=1,
        recent=Recent(p50=0.2, p99=0.5, counts=(1, 4)),
    ) == together([one, other])
