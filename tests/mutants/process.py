"""Run tests on a copy of the package, in a process of its own.

The process imports neither the package nor this repository's tests before it has the copy. Where processes can be
forked, everything else that the tests import is loaded already, which saves a second of each run.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Final

__all__ = ["run_tests"]

_TESTS: Final = Path(__file__).parent.parent
_SECONDS_MAX: Final = 60  # for the tests of one mutant, which take less than two
_PLUGINS: Final = ("pytest_asyncio.plugin", "pytest_timeout")
_OPTIONS: Final = (
    "--quiet", "-rf", "--tb=line", "--timeout=20", "-p", "no:cacheprovider",
    # The difference of two long lists is not needed, and takes longer to compute than the tests take to run.
    "--assert=plain", "-o", "addopts=--import-mode=importlib --strict-markers",
)  # fmt: skip
_METHOD: Final = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT: Final = multiprocessing.get_context(_METHOD)
_CONTEXT.set_forkserver_preload(["pytest", "hypothesis", "hypothesis.strategies", "anyio", *_PLUGINS])


def run_tests(tests: list[str], folder: Path) -> tuple[int, set[str], str]:
    """Run tests on the copy of the package in a folder; return the status, the ids of the failed ones, and the output.

    Args:
        tests: ids below ``tests``.
        folder: contains the copy, and receives the output.

    Raises:
        TimeoutError: if they do not end within a minute.
    """
    written = folder / "output.txt"
    process = _CONTEXT.Process(target=_run, args=(tests, folder, written))
    process.start()
    process.join(_SECONDS_MAX)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"the tests have not ended: {tests}")
    output = written.read_text(encoding="utf-8")
    failed = re.findall(r"^FAILED (?:\S*/)?tests/(\S+?)(?:\[|\s|$)", output, re.MULTILINE)
    return process.exitcode, set(failed), output


def _run(tests: list[str], folder: Path, written: Path) -> None:
    """Run tests in this process, and exit with their status."""
    with written.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # A mutant is a change of pure Python, which a compiled kernel would not run. No plugins but these are loaded, as
    # importing others takes longer than running the tests.
    os.environ |= {"RATELIMITED_EXECUTOR_PURE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    import pytest  # noqa: PLC0415  # only in this process

    plugins = [*_PLUGINS, "ratelimited_executor.testing.pytest_plugin"]
    where = ["-c", str(_TESTS.parent / "pyproject.toml"), "--rootdir", str(_TESTS.parent)]
    named = [option for plugin in plugins for option in ("-p", plugin)]
    status = pytest.main([*where, *named, *_OPTIONS, *(str(_TESTS / test) for test in tests)])
    sys.stdout.flush()
    sys.exit(int(status))
