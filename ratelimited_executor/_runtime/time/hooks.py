"""The hooks that an event loop may offer to its executors, each optional; asyncio and uvloop offer none.

A loop with virtual time, such as that of ``ratelimited_executor.testing``, has a clock and a source of random numbers
(:class:`VirtualTime`). The loop of a simulation offers all of :class:`LoopHooks`: it also wakes executors and runs
coroutines itself. :func:`hooks_of` reads a loop once, for the runner of a manager; no other code uses more of a loop
than asyncio does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.task.coroutines import Coroutines

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ratelimited_executor._runtime.time.wakers import Waker
    from ratelimited_executor.abc import Clock

__all__ = ["Hooks", "LoopHooks", "RandomNumbers", "VirtualTime", "hooks_of"]


class RandomNumbers(Protocol):
    """A source of random numbers, such as a ``random.Random``."""

    def random(self) -> float:
        """Return a number, 0 <= number < 1."""
        ...


class VirtualTime(Protocol):
    """The hooks of a loop with its own time: system timers do not follow it, and a wake-up costs nothing."""

    @property
    def clock(self) -> Clock:
        """The clock by which its timers run."""
        ...

    @property
    def random(self) -> RandomNumbers:
        """The source of jitter, which makes a run reproducible."""
        ...


class LoopHooks(VirtualTime, Protocol):
    """The hooks of a loop that runs executors itself."""

    @property
    def has_threads(self) -> bool:
        """True if calls may run in worker threads, and progress may be kept in a file."""
        ...

    @property
    def bucket_ns_max(self) -> int:
        """The maximum width of the buckets of executors, in nanoseconds."""
        ...

    @property
    def coroutines_type(self) -> type[Coroutines]:
        """The type that runs the coroutines of an executor."""
        ...

    def make_waker(self, run_due: Callable[[float], float]) -> Waker:
        """Return the waker of a manager's executors: it calls ``run_due(now)``, which returns the next time to call."""
        ...


class Hooks(NamedTuple):
    """The hooks of one loop; the defaults are those of a loop without hooks.

    Attributes:
        clock: as in :class:`VirtualTime`; None for a loop in real time.
        random: as in :class:`VirtualTime`; None for numbers that differ in each run.
        has_threads: as in :class:`LoopHooks`, like the following ones.
        bucket_ns_max: as above.
        coroutines_type: as above.
        make_waker: as above; None for a loop that is woken by timers.
    """

    clock: Clock | None = None
    random: RandomNumbers | None = None
    has_threads: bool = True
    bucket_ns_max: int = NS
    coroutines_type: type[Coroutines] = Coroutines
    make_waker: Callable[[Callable[[float], float]], Waker] | None = None

    @property
    def is_virtual(self) -> bool:
        """True if the loop has its own time."""
        return self.clock is not None


def hooks_of(loop: asyncio.AbstractEventLoop) -> Hooks:
    """Return the hooks that a loop offers."""
    offered: dict[str, Any] = {name: getattr(loop, name) for name in Hooks._fields if hasattr(loop, name)}
    return Hooks(**offered)
