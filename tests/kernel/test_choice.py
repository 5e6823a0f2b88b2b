"""Which body of the kernel runs, and the reason given: each case on a copy of the package in a separate process.

In the copy, a Python module stands in for the extension: the import finds either by the same name.
"""

import json
import os
import shutil
import subprocess
import sys
from binascii import crc32
from dataclasses import FrozenInstanceError
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from sysconfig import get_config_var

import pytest

import ratelimited_executor
from ratelimited_executor._kernel import choice, fields
from ratelimited_executor import kernel
from ratelimited_executor.insight import Kernel

PACKAGE = Path(ratelimited_executor.__file__).parent
CODE = """
import json
from ratelimited_executor._kernel.choice import compiled, kernel
print(json.dumps([kernel.is_compiled, kernel.reason, getattr(compiled, "__name__", None)]))
"""
WITH_LOCK = "import sys; sys.version = sys.version.replace('free-threading', '')"  # stand-ins do not need the lock
FIELDS = Path(fields.__file__).read_bytes()
REMEDY = "; run `python .packaging/build_kernel.py` in a checkout, or install again"


@pytest.fixture
def kernel_of(tmp_path):
    """Import a copy of the package with the given extension, after a prelude, and return its choice."""
    copy = tmp_path / PACKAGE.name
    for name in ("__init__.py", "_kernel"):
        ignored = shutil.ignore_patterns("__pycache__", "_compiled.*", "*.pxi")
        source = PACKAGE / name
        copy.mkdir(exist_ok=True)
        shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy)

    def run(extension=None, *, source=None, fields=FIELDS, prelude="", variable=None, file="_compiled.py"):
        if extension is not None:
            (copy / "_kernel" / file).write_text(extension, encoding="utf-8")
        if source is not None:
            (copy / "_kernel" / "_compiled.pyx").write_bytes(source)
            (copy / "_kernel" / "fields.py").write_bytes(fields)
        environment = {name: value for name, value in os.environ.items() if name != "RATELIMITED_EXECUTOR_PURE"}
        if variable is not None:
            environment["RATELIMITED_EXECUTOR_PURE"] = variable
        environment["PYTHONPATH"] = str(tmp_path)
        ended = subprocess.run(
            [sys.executable, "-c", f"{WITH_LOCK}\n{prelude}\n{CODE}"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (0, "") == (ended.returncode, ended.stderr)
        return tuple(json.loads(ended.stdout))

    return run


COMPILED = (True, "", "ratelimited_executor._kernel._compiled")


@pytest.mark.parametrize("variable", [None, "", "0"])
def test_an_extension_that_is_there_runs(kernel_of, variable):
    """An extension without a source beside it, as in a wheel, runs unless the environment variable disables it."""
    assert COMPILED == kernel_of("SOURCE_CRC32 = 1", variable=variable)


def test_an_extension_of_the_source_beside_it_runs(kernel_of):
    """An extension built from the sources beside it runs, as in a checkout."""
    assert COMPILED == kernel_of(f"SOURCE_CRC32 = {crc32(b'text' + FIELDS)}", source=b"text")


@pytest.mark.parametrize("extension", [f"SOURCE_CRC32 = {crc32(b'before' + FIELDS)}", ""])
def test_an_extension_of_another_source_does_not_run(kernel_of, extension):
    """An extension built from other sources, as after ``git pull``, does not run: it may lack functions."""
    expected = (False, f"the extension was built from other sources{REMEDY}", None)
    assert expected == kernel_of(extension, source=b"after")


def test_an_extension_of_other_fields_does_not_run(kernel_of):
    """An extension built from another list of fields does not run: its structs may lack fields."""
    expected = (False, f"the extension was built from other sources{REMEDY}", None)
    extension = f"SOURCE_CRC32 = {crc32(b'text' + FIELDS)}"
    assert expected == kernel_of(extension, source=b"text", fields=FIELDS + b"# changed\n")


def test_the_variable_switches_to_pure_python(kernel_of):
    """The environment variable switches to pure Python, and the extension is not even loaded."""
    assert (False, "RATELIMITED_EXECUTOR_PURE is set", None) == kernel_of("print('loaded')", variable="1")


def test_another_implementation_runs_pure_python(kernel_of):
    """PyPy runs pure Python: it could load the extension, but would be slower with it."""
    reason = "the extension is for CPython, and this is pypy"
    assert (False, reason, None) == kernel_of("print('loaded')", prelude="import sys; sys.implementation.name = 'pypy'")


def test_a_free_threaded_python_runs_pure_python(kernel_of):
    """A free-threaded Python runs pure Python: the extension would enable the lock for the whole process."""
    reason = "the extension needs the global interpreter lock, which a free-threaded build does without"
    prelude = "import sys; sys.version = '3.14.0 free-threading build (main) [GCC]'"
    assert (False, reason, None) == kernel_of("print('loaded')", prelude=prelude)


@pytest.mark.skipif(not get_config_var("Py_GIL_DISABLED"), reason="this Python has the global interpreter lock")
def test_a_free_threaded_python_stays_without_the_lock():
    """On a free-threaded Python the package and what it needs leave the lock off, and the kernel says why it is pure."""
    code = "import sys, ratelimited_executor as package; package.RateLimitedExecutor('x'); print(sys._is_gil_enabled(), package.kernel)"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RATELIMITED_EXECUTOR_PURE", "PYTHON_GIL")
    }
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)

    assert ("", True) == (ended.stderr, ended.stdout.startswith("False pure Python (the extension needs the global"))


def test_without_an_extension_pure_python_runs(kernel_of):
    """Without an extension pure Python runs, with or without a source that was never built."""
    assert (False, "no extension was built for this Python", None) == kernel_of(source=b"text")


@pytest.mark.parametrize(
    ("extension", "error"),
    [
        ("raise ImportError('undefined symbol: 100 %')", "ImportError: undefined symbol: 100 %"),
        ("import ratelimited_executor._kernel.gone", "ModuleNotFoundError: No module named 'ratelimited_executor._kernel.gone'"),
        ("from ratelimited_executor._kernel.states import gone", "ImportError: cannot import name 'gone' from"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_an_extension_that_raises_does_not_break_the_import(kernel_of, extension, error):
    """An extension that raises does not break the import: the reason has the error and the remedy."""
    is_compiled, reason, module = kernel_of(extension)
    assert (False, None) == (is_compiled, module)
    assert reason.startswith(f"the extension cannot be loaded: {error}")
    assert reason.endswith(REMEDY)


def test_a_file_that_is_no_extension_does_not_break_the_import(kernel_of):
    """A truncated file, or one for another machine, does not break the import."""
    is_compiled, reason, _ = kernel_of("cut off", file=f"_compiled{EXTENSION_SUFFIXES[0]}")
    assert not is_compiled
    assert reason.startswith("the extension cannot be loaded: ImportError: ")


def test_a_kernel_says_what_it_is():
    """The kernel describes itself in one line for people, and as a value for programs."""
    assert "compiled" == str(Kernel(True))
    assert "pure Python (it rains)" == str(Kernel(False, "it rains"))
    assert "Kernel(is_compiled=False, reason='it rains')" == repr(Kernel(False, "it rains"))
    assert Kernel(True) == Kernel(True, "") != Kernel(False)
    with pytest.raises(FrozenInstanceError):
        Kernel(True).reason = "it rains"


def test_the_kernel_of_this_process_has_a_reason_exactly_if_it_is_pure():
    """This process has a reason exactly if its kernel is pure; otherwise kernel modules find the extension."""
    assert (kernel.is_compiled, kernel) == (not kernel.reason, choice.kernel)
    assert kernel.is_compiled == (choice.compiled is not None)
