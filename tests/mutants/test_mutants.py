"""Each kept mutant fails the tests that it names.

The package is copied, the mutant's text replaced, and its tests run against the copy in a process of its own.
"""

import shutil
from pathlib import Path

import pytest

import ratelimited_executor

from .mutants import MUTANTS, Mutant
from .process import run_tests

PACKAGE = Path(ratelimited_executor.__file__).parent
NAMES = [mutant.name for mutant in MUTANTS]


def _copy(folder: Path, mutant: Mutant | None) -> Path:
    """Copy the package without the parts that no mutant is in, and apply a mutant."""
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
    """The text that a mutant replaces occurs exactly once, and the changed module is valid Python."""
    assert 1 == _count(mutant), f"{mutant.module} has changed: renew the mutant"
    text = (PACKAGE / mutant.module).read_text(encoding="utf-8").replace(mutant.old, mutant.new)
    compile(text, mutant.module, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_mutant_is_found_out(mutant: Mutant, tmp_path: Path) -> None:
    """Every test that a mutant names fails on it."""
    status, failed, output = run_tests(list(mutant.tests), _copy(tmp_path, mutant))

    assert 1 == status, output
    assert set(mutant.tests) == failed, output


def test_the_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """The named tests pass on an unchanged copy, so that their failures are due to the mutants."""
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    status, failed, output = run_tests(tests, _copy(tmp_path, None))

    assert (0, set()) == (status, failed), output


def test_the_copy_is_what_is_tested(tmp_path: Path) -> None:
    """A copy that cannot be imported makes the tests fail, so they do not run on the package itself."""
    copy = _copy(tmp_path, None)
    (copy / PACKAGE.name / "_runtime" / "life" / "engine.py").write_text(
        "raise RuntimeError('the copy')\n", encoding="utf-8"
    )
    status, _, output = run_tests(["mutants/test_laws.py::test_drain_timeout_is_kept"], copy)

    assert 0 != status
    assert "the copy" in output
