"""Targets that are set up and torn down: which objects are, and what ``run`` does with them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from ratelimited_executor.cli.contexts import TearDownError, entered, is_context
from ratelimited_executor.cli.exits import CommandError

Place = Any  # the fixture's class lives in conftest.py, which importlib mode does not let us import

CONTEXTS = """
import asyncio, time
from contextlib import asynccontextmanager, contextmanager

events = []

def note(line):
    events.append(line)

async def note_async(line):
    events.append(line)

@asynccontextmanager
async def prepared():
    events.append("set up")
    try:
        yield note_async
    finally:
        await asyncio.sleep(0)
        events.append("torn down")

@contextmanager
def prepared_plainly():
    events.append("set up")
    yield note
    events.append("torn down")

class Client:
    def __enter__(self):
        events.append("set up")
        return note
    def __exit__(self, *exception):
        events.append("torn down")

class Service:
    async def __aenter__(self):
        events.append("set up")
        return self
    async def __aexit__(self, *exception):
        events.append("torn down")
    async def __call__(self, line):
        events.append(line)

service = Service()

@asynccontextmanager
async def unprepared():
    raise OSError("no database")
    yield

@contextmanager
def yields_none():
    try:
        yield None
    finally:
        events.append("torn down")

@asynccontextmanager
async def not_torn_down():
    yield note
    raise OSError("still busy")

def record(text):
    with open("events.txt", "a") as file:
        print(text, file=file)

@asynccontextmanager
async def slow_to_end():
    async def work(line):
        record(line)
        print("begun", flush=True)
        await asyncio.sleep(0.2 if line == "1" else 3600)
    try:
        yield work
    finally:
        record("torn down")

@asynccontextmanager
async def slow_to_begin():
    try:
        print("begun", flush=True)
        await asyncio.sleep(3600)
        yield note
    finally:
        record("given up")
"""


@pytest.fixture
def there(place: Place) -> Place:
    """A workplace whose module has the targets of ``CONTEXTS``."""
    place.write(f"{place.module}.py", CONTEXTS)
    return place


@pytest.mark.parametrize("target", ["prepared", "prepared_plainly", "Client", "Service", "service"])
def test_target_is_set_up_before_the_first_call_and_torn_down_after_the_last(there: Place, target: str) -> None:
    """A context manager, its class or a function that makes one is set up and torn down, async or not."""
    result = there.run(target, there.lines(3), "--results", "out")

    assert 0 == result.exit_code, result.output
    assert ["set up", "1", "2", "3", "torn down"] == there.seen("events")
    assert ["done"] * 3 == [row["state"] for row in there.rows("out")]


def test_target_is_set_up_though_there_is_no_line(there: Place) -> None:
    """Without a line a target is still set up and torn down."""
    assert 0 == there.run("prepared", there.write("in", "")).exit_code
    assert ["set up", "torn down"] == there.seen("events")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("unprepared", "the set-up of TARGET failed: OSError: no database"),
        ("yields_none", "TARGET must yield a function, got NoneType"),
    ],
)
def test_target_that_cannot_be_set_up_is_refused(there: Place, target: str, words: str) -> None:
    """If the set-up fails, nothing is called and no file of remaining lines is left; an entered target is left."""
    result = there.run(target, there.lines(3), "--remaining", "rest")

    assert (2, True) == (result.exit_code, words in result.stderr), result.stderr
    assert ["torn down"] * (target == "yields_none") == there.seen("events")
    assert not (there.path / "rest").exists()
    assert not (there.path / "rest.partial").exists()


def test_results_are_kept_if_the_tear_down_fails(there: Place, summary_of: Any) -> None:
    """An error of the tear-down is reported after the summary, with status 2."""
    result = there.run("not_torn_down", there.lines(3), "--results", "out")

    assert (2, "3", 3) == (result.exit_code, summary_of(result)["done"], len(there.rows("out")))
    last = " ".join(result.stderr.split())
    assert last.endswith(
        "the tear-down of TARGET failed: OSError: still busy; the summary and the results are complete"
    )


def test_threads_are_for_plain_functions_from_a_context_as_well(there: Place) -> None:
    """--threads works with a plain function of a context, and is refused with an async one, whose context is left."""
    assert 0 == there.run("prepared_plainly", there.lines(3), "--threads", "2").exit_code
    result = there.run("prepared", there.lines(3), "--threads", "2")

    assert (2, True) == (result.exit_code, "--threads is for plain functions" in result.stderr)
    assert ["set up", "torn down"] == there.seen("events")[-2:]


@pytest.mark.real_time("signals reach processes")
@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")
@pytest.mark.parametrize("signal_count", [1, 2])
def test_interrupted_run_tears_down(there: Place, signal_count: int) -> None:
    """An interrupted run tears down once its calls have finished, or a second signal has cancelled them."""
    name = there.lines(20)
    with there.start(
        "slow_to_end", name, "--concurrency", str(signal_count), "--remaining", "rest", stdout=subprocess.PIPE
    ) as process:
        for _ in range(signal_count):
            assert "begun\n" == process.stdout.readline()
        for number in range(signal_count):
            process.send_signal(signal.SIGINT)
            if number < signal_count - 1:
                while "interrupted" not in (line := process.stderr.readline()):
                    assert line, "the process has ended"
        _, errors = process.communicate(timeout=60)

    assert 130 == process.returncode, errors
    assert "torn down" == there.text("events.txt").splitlines()[-1]
    called = there.text("events.txt").splitlines()[:-1]
    assert [str(number) for number in range(1, 21)] == called + there.text("rest").splitlines()


@pytest.mark.real_time("signals reach processes")
@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")
def test_signal_ends_a_set_up_that_takes_long(there: Place) -> None:
    """A signal during a long set-up ends it, and all lines remain."""
    name = there.lines(20)
    with there.start("slow_to_begin", name, "--remaining", "rest", stdout=subprocess.PIPE) as process:
        assert "begun\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)

    assert 130 == process.returncode, errors
    assert ("given up\n", there.text(name)) == (there.text("events.txt"), there.text("rest"))


# Without a command.


@asynccontextmanager
async def made():
    yield print


@contextmanager
def made_plainly():
    yield print


def generator():
    yield print


async def async_generator():
    yield print


async def function(line):
    """Take a line, without anything to set up."""


@pytest.mark.parametrize(
    ("target", "expected"),
    [(made, True), (made_plainly, True), (made(), True), (made_plainly(), True), (asyncio.timeout, False),
     (asyncio.Timeout, True), (function, False), (print, False), (generator, False), (async_generator, False), (3, False)],
)  # fmt: skip
def test_contexts_are_told_from_functions(target: object, expected: bool) -> None:
    """Contexts are told from functions without calling either."""
    assert is_context(target) is expected


async def test_error_of_the_block_reaches_the_target() -> None:
    """An error in the block reaches the target, as for a rollback, and is raised with one of the tear-down."""
    seen = []

    @asynccontextmanager
    async def noting(is_broken):
        try:
            yield print
        except ValueError as error:
            seen.append(error)
            if is_broken:
                raise OSError("still busy") from error
            raise

    with pytest.raises(ValueError, match="of the block"):
        async with entered(noting(False)):
            raise ValueError("of the block")
    with pytest.raises(TearDownError, match="OSError: still busy"):
        async with entered(noting(True)):
            raise ValueError("of the block")
    assert 2 == len(seen)


async def test_target_that_ends_the_process_is_an_error() -> None:
    """A target that exits while it is set up raises an error."""

    @asynccontextmanager
    async def leaving():
        sys.exit(3)
        yield

    with pytest.raises(CommandError, match="the set-up of TARGET failed: SystemExit: 3"):
        async with entered(leaving):
            pass
