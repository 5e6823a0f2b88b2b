"""Each kept mutant is found out by the tests that it names.

The package is copied, the mutant's text replaced, and its tests run against the copy in a process of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ratelimited_executor

from .mutants import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(ratelimited_executor.__file__).parent
NAMES = [mutant.name for mutant in MUTANTS]
SECONDS_MAX = 60  # for the tests of one mutant, which take less than two


def _run(tests: list[str], copy: Path) -> tuple[int, set[str], str]:
    """Run tests against a copy of the package; return the status, the ids of the failed ones, and the output."""
    # Only the plugins that the tests need: the others take longer to import than the tests to run.
    command = [
        sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-q", "-rf", "--tb=line",
        "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "ratelimited_executor.testing.pytest_plugin",
        "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib --strict-markers", "--timeout=20", *(str(ROOT / "tests" / test) for test in tests),
    ]  # fmt: skip
    # A mutant is a change of pure Python, which a compiled kernel would not run.
    environment = {
        **os.environ, "PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "RATELIMITED_EXECUTOR_PURE": "1",
    }  # fmt: skip
    run = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    failed = re.findall(r"^FAILED (?:\S*/)?tests/(\S+?)(?:\[|\s|$)", run.stdout, re.MULTILINE)
    return run.returncode, set(failed), run.stdout + run.stderr


def _copy(folder: Path, mutant: Mutant | None) -> Path:
    """Copy the package without the parts that no mutant is in, and change it."""
    copied = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__", "cli", "*.so", "*.pyd"))
    if mutant is not None:
        path = copied / mutant.module
        text = path.read_text(encoding="utf-8").replace(mutant.old, mutant.new)
        path.write_text(text, encoding="utf-8")
    return folder


def _count(mutant: Mutant) -> int:
    return (PACKAGE / mutant.module).read_text(encoding="utf-8").count(mutant.old)


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_mutant_is_fresh(mutant: Mutant) -> None:
    """The text that a mutant replaces is there, exactly once, and what takes its place is Python."""
    assert 1 == _count(mutant), f"{mutant.module} has changed: renew the mutant"
    text = (PACKAGE / mutant.module).read_text(encoding="utf-8").replace(mutant.old, mutant.new)
    compile(text, mutant.module, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_mutant_is_found_out(mutant: Mutant, tmp_path: Path) -> None:
    """Every test that a mutant names fails on it."""
    status, failed, output = _run(list(mutant.tests), _copy(tmp_path, mutant))

    assert 1 == status, output
    assert set(mutant.tests) == failed, output


def test_the_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """The named tests pass on a copy that is not changed, so that it is the mutants that they fail on."""
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    status, failed, output = _run(tests, _copy(tmp_path, None))

    assert (0, set()) == (status, failed), output


def test_the_copy_is_what_is_tested(tmp_path: Path) -> None:
    """A copy that cannot be imported fails: the tests do not run on the package itself."""
    copy = _copy(tmp_path, None)
    (copy / PACKAGE.name / "_runtime" / "engine.py").write_text("raise RuntimeError('the copy')\n", encoding="utf-8")
    status, _, output = _run(["mutants/test_laws.py::test_drain_timeout_is_kept"], copy)

    assert 0 != status
    assert "the copy" in output
