"""The check that something is used in the process in which it was started.

A fork has neither the threads nor the event loop of its parent, but shares its files and sockets: a call would wait for
ever, or disturb the parent.
"""

from __future__ import annotations

import os

__all__ = ["check_process"]


def check_process(name: str, process: int) -> None:
    """Refuse a call in a fork.

    Args:
        name: what is used, for the message.
        process: the id of the process in which it was started; 0 if it was not.

    Raises:
        RuntimeError: in another process.
    """
    if process and process != os.getpid():
        raise RuntimeError(
            f"{name} was started in process {process}, and this process is a fork of it, without its threads: "
            "create it, or use it for the first time, after the fork"
        )
