"""CPython's own tests of event loops and pools of threads pass on the faces of an executor, but for known deviations."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .deviations import DEVIATIONS, MODULES, Deviation, deviation_of

ROOT = Path(__file__).parents[2]
SECONDS = 110  # of a module


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.real_time("the tests of CPython wait for real threads, sockets and timers")
@pytest.mark.skipif(sys.platform == "win32", reason="the adapter is for a loop with selectors")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="PyPy has its own version of the suite")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the deviations are those of CPython 3.11 to 3.13")
@pytest.mark.parametrize("module", MODULES, ids=lambda module: f"{module.suite}-{module.name.rpartition('.')[2]}")
def test_suite_of_cpython_passes(module):
    """Each test passes, is skipped by itself, or is a deviation with a reason, which does fail."""
    if not module.applies:
        pytest.skip(f"this version of Python has no {module.name}")
    if not is_installed(module.name):
        pytest.skip(f"{module.name} is not installed; Debian has it in libpython3-testsuite")
    child = subprocess.run(
        [sys.executable, "-m", "tests.suites.child", module.suite, module.name, *module.classes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    outcomes = dict(map(json.loads, child.stdout.splitlines()))
    assert 0 == child.returncode, child.stderr[-4000:]
    through_the_face = outcomes.pop("calls through the face")
    passed, failed = set(), {}
    for test, outcome in outcomes.items():
        if outcome == "passed":
            passed.add(test)
        elif outcome != "skipped":
            failed[test] = outcome
    unknown = {test: text for test, text in failed.items() if deviation_of(module.suite, test) is None}
    assert {} == unknown, "\n\n".join(unknown.values())
    assert [] == [test for test in passed if deviation_of(module.suite, test) is not None], "no deviation any more"
    assert passed
    assert through_the_face > 0


def test_every_deviation_has_its_reason():
    """The table has no deviation without a reason, and none of a suite that is not run."""
    assert {module.suite for module in MODULES} == set(DEVIATIONS)
    for known in DEVIATIONS.values():
        assert all(isinstance(each, Deviation) and each.reason for each in known.values())
