"""How often an idle executor wakes up the loop: turns of the loop and context switches, in a process of its own."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STATES", "measure"]

PENDING = 1_000
_HOUR = 3600.0


class _CountingSelector(selectors.DefaultSelector):
    """Counts the turns of a loop, which calls its selector once in each."""

    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        return super().select(timeout)


def measure(*, state: str, seconds: float) -> dict[str, float]:
    """Count turns and voluntary context switches during a number of seconds."""
    selector = _CountingSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(_measure(selector, state, seconds))


async def _measure(selector: _CountingSelector, state: str, seconds: float) -> dict[str, float]:
    prepare = STATES[state]
    if prepare is None:
        return await _sleep(selector, seconds)
    async with RateLimitedExecutor("bench", drain_timeout=0) as executor:
        await executor.submit(int)
        prepare(executor)
        await asyncio.sleep(0.05)
        return await _sleep(selector, seconds)


async def _sleep(selector: _CountingSelector, seconds: float) -> dict[str, float]:
    turns, switches = selector.turns, _switches()
    await asyncio.sleep(seconds)
    return {"turns": selector.turns - turns, "switches": _switches() - switches}


def _switches() -> int:
    """Return how often this process has waited so far; 0 on a system that does not count it."""
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _nothing(_: RateLimitedExecutor) -> None:
    """Leave the executor as it is."""


def _later(executor: RateLimitedExecutor) -> None:
    for _ in range(PENDING):
        executor.schedule(int, delay=_HOUR)
        executor.call_later(_HOUR, int)


def _paused(executor: RateLimitedExecutor) -> None:
    executor.pause()
    for _ in range(PENDING):
        executor.submit(int)


STATES: dict[str, Callable[[RateLimitedExecutor], None] | None] = {
    "control: no executor": None,
    "nothing pending": _nothing,
    f"{2 * PENDING:,} due in an hour": _later,
    f"paused, {PENDING:,} due": _paused,
}
