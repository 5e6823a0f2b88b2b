"""Bottleneck, if there are Node and npm: it is installed into a cache folder once, and runs by ``bottleneck.js``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["PACKAGES", "environment", "missing", "versions"]

PACKAGES: Final = ("bottleneck@2.19.5", "ioredis@5")
PROGRAM: Final = Path(__file__).with_name("bottleneck.js")
_INSTALL_SECONDS: Final = 120


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ratelimited-executor-bench" / "-".join(PACKAGES).replace("@", "-")


def environment() -> dict[str, str]:
    """Return the environment in which Node finds the packages."""
    return {**os.environ, "NODE_PATH": str(_folder() / "node_modules")}


def versions() -> str:
    """Return what runs Bottleneck."""
    told = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True, timeout=60)  # noqa: S607  # as found on PATH
    return f"{', '.join(PACKAGES)}, Node {told.stdout.strip()}"


def missing(*, may_install: bool) -> str:
    """Return why Bottleneck cannot be measured here, after an attempt to install it; "" if it can."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"there is no {program} on PATH"
    if (_folder() / "node_modules" / "bottleneck").is_dir():
        return ""
    if not may_install:
        return "not yet installed; a run without --quick installs it by npm"
    _folder().mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(_folder()), *PACKAGES]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)  # noqa: S603  # fixed names
    except subprocess.CalledProcessError as error:
        return f"npm install failed: {(error.stderr.strip().splitlines() or ['no message'])[-1]}"
    except subprocess.TimeoutExpired:
        return f"npm install took longer than {_INSTALL_SECONDS} s"
    return ""
