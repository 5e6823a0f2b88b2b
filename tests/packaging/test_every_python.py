"""The program that runs tests on each Python says what went wrong, and counts as pytest does."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".packaging" / "every_python.py"


@pytest.fixture(scope="module")
def program():
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("every_python", PROGRAM)
    sys.modules["every_python"] = module = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["every_python"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no program of the name false")
def test_a_python_that_does_not_run_is_a_row(tmp_path):
    """An interpreter that is not there, or is something else, has a row with the reason, and the status is 1."""
    missing = str(tmp_path / "python")
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), missing, "false"], capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line.split(maxsplit=6) for line in ended.stdout.strip().splitlines()]

    assert (1, "") == (ended.returncode, ended.stderr)
    assert ["Python", "kernel", "passed", "failed", "skipped", "time"] == lines[0]
    assert [missing, *"-----", "does not run: No such file or directory"] == lines[1]
    assert ["false", *"-----", "does not run: status 1"] == lines[2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("12 passed in 3.45s", (12, 0, 0)),
        ("1 failed, 12 passed, 3 skipped, 4 xfailed, 1 error in 3.45s (0:01:02)", (12, 2, 3)),
        ("2 errors in 0.5s", (0, 2, 0)),
        ("Fatal Python error: Segmentation fault", ()),
        ("", ()),
    ],
)
def test_counts_are_those_of_pytest(program, line, expected):
    """Errors count as failures; without the line in which pytest counts, nothing is known."""
    counts = program._counts(line)
    assert expected == (tuple(counts.get(name, 0) for name in program.COLUMNS) if counts else ())


def test_a_requirement_of_an_extra_is_found(program):
    """The requirements of an extra are those of the extras that it names as well, without their conditions."""
    run = subprocess.run(
        [sys.executable, "-P", "-c", program.REQUIREMENTS, "dev"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert {"cronsim>=2.6", "tenacity>=9"} <= set(run.stdout.split("\n"))
