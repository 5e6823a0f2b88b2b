"""The server's process, started here and always ended through its handle."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["serving"]

START_SECONDS_MAX: Final = 20.0
# Seconds for the server to end at each step: input closed, terminated, killed.
END_SECONDS_MAX: Final = 2.0


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Run the server while the block runs; yields its base URL.

    Raises:
        CommandError: if the server does not start.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ratelimited_executor.cli.demo.server", stdin=PIPE, stdout=PIPE
    )
    try:
        yield f"http://127.0.0.1:{await _port(process)}"
    finally:
        # Shielded: a second Ctrl-C must not leave the process behind.
        await asyncio.shield(_end(process))


async def _port(process: Process) -> int:
    assert process.stdout is not None, "started with a pipe"
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS_MAX)
        return int(json.loads(line)["port"])
    except (TimeoutError, ValueError) as error:
        raise CommandError("the demo's server process did not start") from error


async def _end(process: Process) -> None:
    """Close the server's input; if it does not end, terminate it, then kill it."""
    assert process.stdin is not None, "started with a pipe"
    for step in (process.stdin.close, process.terminate, process.kill):
        with suppress(ProcessLookupError):
            step()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS_MAX)
            return
