"""How a page names the process that it shows."""

from __future__ import annotations

import multiprocessing
import os
import socket

__all__ = ["process_text"]


def process_text() -> str:
    """Return the host and the id of this process, and its name if it was given one; no other process has the same text."""
    name = multiprocessing.current_process().name
    return f"{socket.gethostname()}, process {os.getpid()}{'' if name == 'MainProcess' else f' ({name})'}"
