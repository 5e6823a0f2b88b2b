"""The how-to on sharing without Redis: its programs run, in a file and on a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "share-without-a-server.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
)
URL = "postgresql://localhost/app"

pytestmark = pytest.mark.real_time("a file and a real server")


def run(code: str, folder: Path) -> str:
    """Run a program in a process of its own, and return what it printed."""
    command = [sys.executable, "-c", code.replace("/dev/shm/", "")]  # the file in the folder, so that nothing is left
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(("code", "output"), [block for block in BLOCKS if URL not in block[0]])
def test_program_with_a_file_runs(code: str, output: str, tmp_path: Path) -> None:
    """A program of the page prints what the page shows, twice with one file."""
    assert [output, output] == [run(code, tmp_path), run(code, tmp_path)]


@pytest.mark.parametrize(("code", "output"), [block for block in BLOCKS if URL in block[0]])
def test_program_with_postgresql_runs(code: str, output: str, postgresql: str, tmp_path: Path) -> None:
    """A program of the page prints what the page shows, on the server of the tests."""
    assert output == run(code.replace(URL, postgresql), tmp_path)
