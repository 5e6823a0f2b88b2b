"""Compiles the kernel's extension while a wheel is built; where that fails, says so in one line and goes on without it.

``RATELIMITED_EXECUTOR_PURE=1`` skips it. Run as a program, it builds beside the source, for whoever changes that source;
given a folder, it builds there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from binascii import crc32
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILDING = "compiling the kernel of ratelimited-executor, about a minute (RATELIMITED_EXECUTOR_PURE=1 skips it)"

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "ratelimited_executor/_kernel"
MODULE = "ratelimited_executor._kernel._compiled"
SOURCE = f"{FOLDER}/_compiled.pyx"
SOURCES = "*.p[xy][ix]"  # it, and what it includes

# By the compiler's family. Those that Python was built with come first, with their level of optimisation and debug symbols.
ARGUMENTS = {"msvc": ["/O2", "/std:c++17"]}
ARGUMENTS_ELSE = ["-O2", "-g0", "-std=c++17", "-ffp-contract=off"]  # off: a fused product is not what Python computes


class KernelHook(BuildHookInterface[Any]):
    """The hook that hatchling finds here: adds the extension to a wheel, or puts it beside the source of an editable one."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extension, and have it packed with the rest."""
        if self.target_name != "wheel" or os.environ.get("RATELIMITED_EXECUTOR_PURE", "") not in ("", "0"):
            return
        if sys.implementation.name != "cpython" or "free-threading" in sys.version:
            return
        if not _tell_terminal(BUILDING):
            self.app.display_waiting(BUILDING)
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-")  # until finalize: the wheel is packed in between
        is_editable = version == "editable"
        # A process of its own: compilers write where they like, and setuptools changes the process that it runs in.
        run = subprocess.run(  # noqa: S603  # ourselves
            [sys.executable, "-u", __file__, *([] if is_editable else [self._folder.name])],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
        if run.returncode:
            self.app.display_warning(f"the kernel was not compiled, and runs as pure Python: {_why(run)}")
            return
        if not is_editable:
            (built,) = Path(self._folder.name).iterdir()
            build_data["force_include"][str(built)] = f"{FOLDER}/{built.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # the shape of a hook
        """Remove what has been packed."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _tell_terminal(text: str) -> bool:
    """Write a line to the terminal that this process is in the foreground of, if any; return False if there is none.

    pip keeps the output of a build to itself, and with ``-q`` shows nothing at all for the minute that it takes.
    """
    try:
        with Path("/dev/tty").open("wb", buffering=0) as terminal:
            if os.tcgetpgrp(terminal.fileno()) != os.getpgrp():  # a job in the background may be stopped for writing
                return False
            terminal.write(f"\r{text}\n".encode())
    except (OSError, AttributeError):  # AttributeError: Windows
        return False
    return True


def _why(run: subprocess.CompletedProcess[str]) -> str:
    """Return the line that says most: a compiler's first error, such as a header that is not there, else the last line."""
    lines = run.stdout.strip().splitlines()
    return next(
        (line for line in lines if re.search(r"\berror\b", line)), lines[-1] if lines else f"status {run.returncode}"
    )


def build(folder: Path) -> None:
    """Compile the extension into a folder; the working directory must be the project's."""
    from Cython.Build import cythonize  # noqa: PLC0415  # needed to build, not to decide whether to
    from setuptools import Distribution, Extension  # noqa: PLC0415  # as above
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415  # as above
    from structs import FIELDS, MADE, structs  # noqa: PLC0415  # beside this program, not beside hatchling, which loads the hook

    class Build(build_ext):
        def build_extensions(self) -> None:
            for extension in self.extensions:
                extension.extra_compile_args = ARGUMENTS.get(self.compiler.compiler_type, ARGUMENTS_ELSE)
            super().build_extensions()

    kernel = Path(FOLDER)
    sources = [*sorted(kernel.glob(SOURCES)), kernel / FIELDS]
    stamp = ("KERNEL_SOURCE_CRC32", f"{crc32(b''.join(path.read_bytes() for path in sources))}u")
    with tempfile.TemporaryDirectory(prefix="kernel-") as scratch:
        Path(scratch, MADE).write_text(structs(kernel), encoding="utf-8")
        extensions = cythonize(
            [Extension(MODULE, [SOURCE], language="c++", define_macros=[stamp])],
            build_dir=scratch, include_path=[scratch], force=True, quiet=True, language_level=3,
        )  # fmt: skip
        command = Build(Distribution({"name": "ratelimited-executor", "ext_modules": extensions}))
        command.build_temp = scratch
        command.build_lib = scratch
        command.force = True
        command.ensure_finalized()
        command.run()
        built = Path(command.get_ext_fullpath(MODULE))
        # By renaming, not over the file that is there: a process that runs has it mapped.
        new = folder / f"{built.name}.new"
        new.write_bytes(built.read_bytes())
        new.chmod(0o755)
        new.replace(folder / built.name)


def _words(error: BaseException) -> str:
    """Return an error in one line; of a compiler that failed, its name without the page of arguments that it was given."""
    source: BaseException | None = error
    while source is not None:
        if isinstance(source, subprocess.CalledProcessError):
            return f"{type(error).__name__}: {source.cmd[0]} ended with status {source.returncode}"
        source = source.__cause__ or source.__context__
    return f"{type(error).__name__}: {error}".replace("\n", " ")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / FOLDER).resolve()
    os.chdir(ROOT)  # names of modules and files are relative to it
    try:
        build(target)
    except Exception as error:  # noqa: BLE001  # whatever a compiler and its tools raise is one line for the hook
        sys.exit(_words(error))
