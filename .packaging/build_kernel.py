"""Compiles the kernel's body while a wheel is built; without a compiler, says so in one line and goes on without it.

``RATELIMITED_EXECUTOR_PURE=1`` skips it. Run as a program, it builds beside the source, for who changes that source.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "ratelimited_executor/_kernel/_compiled.pyx"
MODULE = "ratelimited_executor._kernel._compiled"


class KernelHook(BuildHookInterface[Any]):
    """The hook that hatchling finds here."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # the shape of a hook
        """Build the extension, and have it packed with the rest."""
        if self.target_name != "wheel" or os.environ.get("RATELIMITED_EXECUTOR_PURE", "") not in ("", "0"):
            return
        try:
            build(Path(self.root))
        except BaseException as error:  # noqa: BLE001  # whatever a compiler and its tools raise, the pure kernel is there
            if isinstance(error, KeyboardInterrupt):
                raise
            self.app.display_warning(f"the kernel was not compiled, and will run as pure Python: {error}")
            return
        build_data["artifacts"] += [
            "/ratelimited_executor/_kernel/_compiled.*.so",
            "/ratelimited_executor/_kernel/_compiled.*.pyd",
        ]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def build(root: Path) -> None:
    """Compile the extension beside its source."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    here = Path.cwd()
    os.chdir(root)  # names of modules and files are relative to it
    try:
        extensions = cythonize(
            [
                Extension(
                    MODULE,
                    [SOURCE],
                    language="c++",
                    extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-g0"],
                )
            ],
            build_dir="build/kernel",
            quiet=True,
            language_level=3,
        )
        command = build_ext(Distribution({"name": "ratelimited_executor", "ext_modules": extensions}))
        command.inplace = True
        command.build_temp = "build/kernel"
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(here)


if __name__ == "__main__":
    build(Path(__file__).parent.parent)
