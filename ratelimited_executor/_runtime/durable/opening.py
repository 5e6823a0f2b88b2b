"""Opening a store that may not be there yet, such as that of a server which starts at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ratelimited_executor._runtime.log import LOGGER
from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from ratelimited_executor.abc import Clock, TaskStore

__all__ = ["open_store"]

_PAUSE_SECONDS: Final = 0.1  # after the first attempt, doubled after each further one ...
_PAUSE_SECONDS_MAX: Final = 2.0  # ... up to this


async def open_store(store: TaskStore, clock: Clock, timeout: float) -> None:
    """Open a store; try again for some seconds while it is not available, and then raise the error of the last attempt."""
    now = asyncio.get_running_loop().time
    until, pause = now() + timeout, _PAUSE_SECONDS
    while True:
        try:
            await store.open(clock)
        except StoreUnavailableError as error:
            left = until - now()
            if error.is_permanent or left <= 0:
                raise
            if pause == _PAUSE_SECONDS:
                LOGGER.warning("durable tasks: %s; trying again for %g s", error, left)
        else:
            return
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
