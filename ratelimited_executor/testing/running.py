"""Run coroutines on fresh virtual event loops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar

from ratelimited_executor.testing.clock import DEFAULT_START_WALL
from ratelimited_executor.testing.errors import VirtualTimeError
from ratelimited_executor.testing.virtual import DEFAULT_PATIENCE, RealIOPolicy, VirtualEventLoop, check_settings

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["VirtualLoopFactory", "run_virtual"]

_T = TypeVar("_T")


def run_virtual(
    main: Coroutine[Any, Any, _T],
    *,
    seed: int = 0,
    start_wall: float = DEFAULT_START_WALL,
    real_io: RealIOPolicy = "raise",
    limit: DurationLike = math.inf,
    patience: DurationLike = DEFAULT_PATIENCE,
    debug: bool | None = None,
) -> _T:
    """Run a coroutine in virtual time and return its result; otherwise like ``asyncio.run``.

    Remaining tasks are cancelled and awaited; asynchronous generators and the default executor are shut down.

    Args:
        main: the coroutine.
        seed: the seed of ``loop.random``.
        start_wall: seconds since the epoch at the start; default 2024-01-01T00:00:00Z.
        real_io: ``"raise"``, ``"wait"`` or ``"ignore"``; see :class:`VirtualEventLoop`.
        limit: virtual seconds that the run may take, > 0; the clean-up may take as long again.
        patience: real seconds to wait at a time for a thread, > 0.
        debug: asyncio's debug mode.

    Raises:
        DeadlockError: if nothing can ever happen again, and the coroutine is not done.
        RealIOError: if something outside virtual time is outstanding when time would have to advance.
        TimeLimitError: if the run does not end within ``limit``.

    >>> run_virtual(asyncio.sleep(86_400, "a day later"))
    'a day later'
    """
    factory = VirtualLoopFactory(seed=seed, start_wall=start_wall, real_io=real_io, limit=limit, patience=patience)
    runner = asyncio.Runner(debug=debug, loop_factory=factory)
    try:
        result = runner.run(main)
    except VirtualTimeError:
        # The error that stopped the run may stop the clean-up, too; the first one is the cause.
        with contextlib.suppress(VirtualTimeError):
            runner.close()
        raise
    except BaseException:
        runner.close()
        raise
    runner.close()
    return result


class VirtualLoopFactory:
    """Makes virtual event loops with the same settings.

    It is a ``loop_factory`` for asyncio, pytest-asyncio and anyio. Fixtures reserve the next loop before the runner
    requests it, and so pass the same loop to the test.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        start_wall: float = DEFAULT_START_WALL,
        real_io: RealIOPolicy = "raise",
        limit: DurationLike = math.inf,
        patience: DurationLike = DEFAULT_PATIENCE,
    ) -> None:
        check_settings(start_wall=start_wall, real_io=real_io, limit=limit, patience=patience)
        self._make = functools.partial(
            VirtualEventLoop, seed=seed, start_wall=start_wall, real_io=real_io, limit=limit, patience=patience
        )
        self._current: VirtualEventLoop | None = None
        self._is_reserved = False

    def __call__(self) -> VirtualEventLoop:
        """Return the reserved loop, or a new one."""
        loop = self.reserve() if self._is_reserved else self._make()
        self._current, self._is_reserved = loop, False
        return loop

    def reserve(self) -> VirtualEventLoop:
        """Return the loop in use, or create the one that the next call will return."""
        if self._current is None or self._current.is_closed():
            self._current, self._is_reserved = self._make(), True
        return self._current

    def discard(self) -> None:
        """Close the reserved loop if it was not taken."""
        if self._is_reserved and self._current is not None:
            self._current.close()
        if self._current is not None and self._current.is_closed():
            self._current, self._is_reserved = None, False
