"""Programs of the documentation, run with nothing replaced; those of the tutorial as a reader runs them: by plain Python.

``tests/test_docs.py`` runs the other blocks with ``asyncio.run`` replaced; here nothing is. A program that calls
``run_virtual`` itself prints the same on every machine, so the whole output is compared with the ``text`` block below it.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers import extras

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"
PROGRAM = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL)
RUNS_ITSELF = re.compile(r"^(?:\w+ = |print\(|assert )?run_virtual\(", re.MULTILINE)
CLOCK = re.compile(r"\bloop\.time\(\)|\.lateness\b")


def programs(page: Path) -> list[tuple[int, str, str | None]]:
    """Every Python block of a page: its first line, its text, and the output that the page shows below it."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start()) + 2, match["code"], match["output"]) for match in PROGRAM.finditer(text)
    ]


def is_run_here(page: Path, code: str) -> bool:
    """True for the programs of the tutorial, and for those that choose virtual time themselves."""
    return page == TUTORIAL or RUNS_ITSELF.search(code) is not None


def parameters(pages: list[Path]) -> list[object]:
    return [
        pytest.param(code, output, id=f"{page.relative_to(ROOT)}:{line}")
        for page in pages
        for line, code, output in programs(page)
        if is_run_here(page, code)
    ]


def run(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program from a file in a directory, in a Python process of its own; skip the test if it lacks an extra."""
    (directory / "program.py").write_text(code, encoding="utf-8")
    (directory / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    last = ended.stderr.rstrip().rpartition("\n")[2]
    with extras():
        if re.match(r"(ModuleNotFound|Import)Error: ", last):
            raise ImportError(last)
    return ended


@pytest.mark.parametrize(("code", "output"), parameters([TUTORIAL]))
def test_program_of_the_tutorial_prints_what_the_page_says(code: str, output: str | None, tmp_path: Path) -> None:
    """A program of the tutorial prints exactly the output that stands below it, and nothing to the standard error."""
    ended = run(code, tmp_path)

    assert output is not None, "show what the program prints"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, output, "")


@pytest.mark.slow
@pytest.mark.parametrize(("code", "output"), parameters([page for page in PAGES if page != TUTORIAL]))
def test_program_in_virtual_time_prints_what_the_page_says(
    code: str,
    output: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A program of another page that runs in virtual time succeeds, and prints the output shown below it, if any.

    It runs in this process: those of the tutorial show that programs need no more than plain Python.
    """
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    with extras():
        runpy.run_path("program.py", run_name="__main__")

    assert output is None or capsys.readouterr().out == output


def test_tutorial_prints_times_in_virtual_time_only() -> None:
    """The tutorial prints no times of a real clock, which differ by milliseconds and with the machine's load."""
    on_a_real_clock = [line for line, code, _ in programs(TUTORIAL) if CLOCK.search(code) and "asyncio.run(" in code]

    assert on_a_real_clock == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shown_times_are_of_virtual_time(page: Path) -> None:
    """If a page shows the output of a program that reads the loop's clock, that program runs in virtual time."""
    on_a_real_clock = [
        line for line, code, output in programs(page) if output and CLOCK.search(code) and "asyncio.run(" in code
    ]

    assert on_a_real_clock == []
