"""A wheel has the extension where there is a compiler; elsewhere it is pure, and one line says why.

Each test works on a copy of the project with the installed hatchling, and needs no network.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
FOLDER = Path("ratelimited_executor", "_kernel")
OF_ANOTHER_PYTHON = FOLDER / "_compiled.cpython-399-somewhere.so"
BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
HOOK = """
from hatchling.builders.wheel import WheelBuilder
builder = WheelBuilder(".")
builder.get_build_hooks("dist")["custom"].initialize("editable", builder.get_default_build_data())
"""
STAMPED = """
cdef extern from *:
    const unsigned int KERNEL_SOURCE_CRC32
SOURCE_CRC32 = KERNEL_SOURCE_CRC32
"""
CHOSEN = "from ratelimited_executor._kernel.choice import kernel; print(kernel)"
USE = """
import asyncio
from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor import kernel

async def main():
    async with RateLimitedExecutor("smoke", rate=1000) as executor:
        print(kernel, await executor.schedule(abs, -7, delay=0.01))

asyncio.run(main())
"""

BUILDING = "compiling the kernel of ratelimited-executor, about a minute (RATELIMITED_EXECUTOR_PURE=1 skips it)\n"

needs_compiler = pytest.mark.skipif(
    sys.platform != "win32" and not shutil.which((sysconfig.get_config_var("CXX") or "c++").split()[0]),
    reason="there is no C++ compiler; .ci/run refuses a pure kernel where there is one",
)


@pytest.fixture
def project(tmp_path):
    """A copy of the files that are packed, with an extension for another Python next to the source.

    The kernel's source takes a minute to compile, so the copy has a source of one line instead; smoke.py checks, where
    the project is installed, that the real kernel is compiled and works.
    """
    copy = tmp_path / "project"
    for name in (".packaging", "ratelimited_executor"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        if (ROOT / name).exists():  # a source distribution has all of them
            shutil.copy(ROOT / name, copy)
    (copy / OF_ANOTHER_PYTHON).write_text("of another Python", encoding="utf-8")
    (copy / FOLDER / "_compiled.pyx").write_text(STAMPED, encoding="utf-8")
    return copy


def run(folder, *arguments, **changes):
    """Run Python in a folder and return its result; variables of the library are set only by the test."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RATELIMITED_", "PYTHONPATH"))
    }
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment | changes, capture_output=True, text=True, timeout=110,
        start_new_session=True,  # without a terminal
    )  # fmt: skip
    assert 0 == ended.returncode, ended.stderr
    return ended


def build_wheel(project, **changes):
    """Build a wheel; return its path and what the build printed."""
    ended = run(project, "-c", BUILD, "build_wheel", str(project.parent), **changes)
    return project.parent / ended.stdout.strip(), ended.stderr


def extensions(wheel):
    """Return the extensions and their sources in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if re.search(r"\.(so|pyd|pyx|pxi|cpp)$", name)]


def files(folder):
    """Return all files below a folder except for Python's own cache."""
    return {
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@needs_compiler
@pytest.mark.slow
def test_a_wheel_holds_one_extension_of_this_python(project):
    """The wheel holds one extension, which loads, and not its source; the build says what it does and leaves no files."""
    before = files(project)
    wheel, said = build_wheel(project)

    assert BUILDING == said
    assert [str(FOLDER / f"_compiled{SUFFIX}")] == extensions(wheel)
    version = "cp{}{}".format(*sys.version_info[:2])
    assert f"-{version}-{version}-" in wheel.name
    assert before == files(project)

    installed = project.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        assert b"Root-Is-Purelib: false" in archive.read(
            next(each for each in archive.namelist() if each.endswith("/WHEEL"))
        )
        archive.extractall(installed)
    assert "compiled\n" == run(installed, "-c", CHOSEN).stdout


@pytest.mark.slow
def test_without_a_compiler_a_wheel_is_pure_in_one_line(project):
    """One line names the compiler that is missing; the wheel is for every Python, and it works."""
    nothing = str(project.parent / "nothing")
    wheel, said = build_wheel(project, CC=nothing, CXX=nothing, PATH=nothing)

    assert re.fullmatch(
        rf"{re.escape(BUILDING)}the kernel was not compiled, and runs as pure Python: \w+: .*{nothing}.*\n", said
    ), said
    assert len(said) < 300
    assert wheel.name.endswith("-py3-none-any.whl")
    assert [] == extensions(wheel)

    installed = project.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert "pure Python (no extension was built for this Python) 7\n" == run(installed, "-c", USE).stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the compiler that fails is a shell script")
def test_a_compiler_that_fails_is_heard(project):
    """The one line is the compiler's first error, which is most often a missing header of Python."""
    compiler = project.parent / "compiler"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: fatal error: Python.h is missing' >&2\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    wheel, said = build_wheel(project, CC=str(compiler), CXX=str(compiler))

    expected = "the kernel was not compiled, and runs as pure Python: x.cpp:1: fatal error: Python.h is missing\n"
    assert (BUILDING + expected, True) == (said, wheel.name.endswith("-py3-none-any.whl"))


def test_a_source_that_cannot_be_compiled_gives_a_pure_wheel(project):
    """A source that Cython or the compiler cannot translate, because it is too old, gives a pure wheel and one line."""
    (project / FOLDER / "_compiled.pyx").write_text("this is no source\n", encoding="utf-8")
    wheel, said = build_wheel(project)

    assert (2, True) == (said.count("\n"), said.startswith(f"{BUILDING}the kernel was not compiled"))
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_variable_gives_a_pure_wheel(project):
    """With RATELIMITED_EXECUTOR_PURE a build prints nothing and needs no compiler; so the wheel for all is built."""
    wheel, said = build_wheel(project, RATELIMITED_EXECUTOR_PURE="1", PATH="")

    assert ("", []) == (said, extensions(wheel))
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no terminals to be had")
def test_the_terminal_is_told_what_takes_so_long(project):
    """A build whose output is kept, as by ``pip install -q``, says on the terminal that it compiles."""
    (project / FOLDER / "_compiled.pyx").write_text("this is no source\n", encoding="utf-8")  # fails fast
    quiet = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOOK!r}], capture_output=True, check=True)"
    shown = run(project, "-c", f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', {quiet!r}]))").stdout
    assert BUILDING.strip() == shown.strip()


@needs_compiler
@pytest.mark.slow
def test_an_editable_install_builds_beside_the_source(project):
    """An editable install builds next to the sources; once one changes, the kernel is pure until the next build."""
    before = files(project)

    assert ("", BUILDING) == ((hook := run(project, "-c", HOOK)).stdout, hook.stderr)
    assert {FOLDER / f"_compiled{SUFFIX}"} == files(project) - before
    assert "compiled\n" == run(project, "-c", CHOSEN).stdout
    assert (
        "pure Python (RATELIMITED_EXECUTOR_PURE is set)\n"
        == run(project, "-c", CHOSEN, RATELIMITED_EXECUTOR_PURE="1").stdout
    )

    for source in ("_compiled.pyx", "fields.py"):
        with (project / FOLDER / source).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        assert "the extension was built from other sources" in run(project, "-c", CHOSEN).stdout
        run(project, ".packaging/build_kernel.py")
        assert "compiled\n" == run(project, "-c", CHOSEN).stdout


@pytest.mark.parametrize("version", ["pypy", "free-threading"])
def test_a_python_without_use_for_the_extension_builds_none(project, version):
    """A Python for which choice.py would not load the extension gets a pure wheel."""
    (project / "sitecustomize.py").write_text(
        "import sys\n"
        + ("sys.implementation.name = 'pypy'" if version == "pypy" else "sys.version += ' free-threading build'"),
        encoding="utf-8",
    )
    wheel, said = build_wheel(project, PYTHONPATH=str(project))

    assert ("", []) == (said, extensions(wheel))


def test_a_source_distribution_has_what_a_build_needs(project):
    """A source distribution has the kernel's sources and the build hook, but no extension."""
    name = run(project, "-c", BUILD, "build_sdist", str(project.parent)).stdout.strip()
    with tarfile.open(project.parent / name) as archive:
        packed = {each.partition("/")[2] for each in archive.getnames()}

    sources = {path.relative_to(project).as_posix() for path in (project / FOLDER).glob("*.p[xy][ix]")}
    packaging = {path.relative_to(project).as_posix() for path in (project / ".packaging").glob("*.py")}
    assert {"pyproject.toml", *packaging, *sources} <= packed
    assert len(sources) > 1  # the kernel's source includes others
    assert set() == {each for each in packed if each.endswith((".so", ".pyd"))}
