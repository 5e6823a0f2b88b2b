"""What a type checker says about the public names, and about the seams inside, on the files beside this one."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers import extras

API = Path(__file__).with_name("api.py")
CHECKED = [API, API.with_name("seams.py")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run mypy once."""
    with extras():
        import mypy  # the program below needs it
    config = tmp_path_factory.mktemp("mypy") / "mypy.ini"
    config.write_text("[mypy]\npython_version = 3.11\nstrict = True\nwarn_unreachable = True\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(API.parents[2] / ".mypy_cache" / "api"),
        "--no-error-summary",
        *map(str, CHECKED),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=API.parents[2])
    return run.stdout + run.stderr


def test_types_of_the_public_names_are_as_written(report: str) -> None:
    """Each call has the type that these files assert, and each mistake in them is refused."""
    assert "" == report


def test_every_kind_of_mistake_is_written_down() -> None:
    """The file holds lines to be refused, so that a checker that accepts everything would not pass."""
    assert API.read_text(encoding="utf-8").count("# type: ignore[") >= 15
