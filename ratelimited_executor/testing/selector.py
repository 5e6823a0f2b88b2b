"""Decides, whenever the loop would block: advance time, wait for real I/O, or end the run.

asyncio asks its selector to wait for files until the next timer. This selector does not wait: it checks for ready
files, and if there are none, moves the virtual clock to the timer. Everything else is asyncio's.
"""

from __future__ import annotations

import math
import selectors
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor.testing.errors import DeadlockError, RealIOError, TimeLimitError
from ratelimited_executor.testing.outstanding import Outstanding, describe_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import FileDescriptorLike

    from ratelimited_executor.testing.clock import VirtualClock

__all__ = ["VirtualSelector"]

# The loop registers one end of the socket pair by which threads wake it. It is not outstanding I/O.
_SELF_PIPE_COUNT: Final = 1


class VirtualLoop(Protocol):
    """The parts of a loop that the selector uses to move its time."""

    @property
    def clock(self) -> VirtualClock:
        """The clock of the loop."""
        ...

    @property
    def limit(self) -> float:
        """Virtual seconds after which the run ends."""
        ...

    @property
    def patience(self) -> float:
        """The longest real wait in seconds."""
        ...

    @property
    def real_io(self) -> str:
        """The policy for outstanding real operations."""
        ...

    def time(self) -> float:
        """Return the loop's time."""
        ...

    def has_ready(self) -> bool:
        """True if the loop has something to do at this instant."""
        ...

    def next_timer(self) -> float | None:
        """Return when the next timer is due; None if there is none."""
        ...

    def has_signal_handlers(self) -> bool:
        """True if a signal may still wake the loop."""
        ...

    def self_pipe_fd(self) -> int:
        """Return the descriptor by which threads wake the loop."""
        ...


class VirtualSelector(selectors.BaseSelector):
    """A selector that waits in real time only for outstanding threads, processes and files."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self._loop: Any  # a VirtualLoop, and an event loop
        self._outstanding: Outstanding
        self._file_count = 0
        self._clock: VirtualClock
        self._limit_at = math.inf

    def attach(self, loop: VirtualLoop, outstanding: Outstanding, limit_at: float) -> None:
        """Set the loop whose time the selector moves, and the limit of that time."""
        self._loop = loop
        self._clock = loop.clock
        self._outstanding = outstanding
        self._limit_at = limit_at

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register a file, as in the base class."""
        key = self._real.register(fileobj, events, data)
        self._file_count += 1
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Unregister a file, as in the base class."""
        key = self._real.unregister(fileobj)
        self._file_count -= 1
        return key

    def close(self) -> None:
        """Close the real selector."""
        self._real.close()

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        """Return all registrations, including the loop's own."""
        return self._real.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the files that are ready, after time has advanced if nothing else can happen.

        Args:
            timeout: what asyncio asks for: 0 if callbacks are ready, None if no timer is scheduled, else seconds.

        Raises:
            DeadlockError: if nothing can ever happen.
            RealIOError: if something outside virtual time is outstanding, and ``real_io`` or ``patience`` forbids waiting.
            TimeLimitError: if time has passed the limit, or would pass it.
        """
        if self._clock.monotonic() > self._limit_at:
            self._end_of_time()
        # A poll is a system call; skip it while nothing can be ready.
        if self._file_count > _SELF_PIPE_COUNT or self._loop.has_signal_handlers():
            events = self._real.select(0)
            if events:
                return events
        if timeout is not None and timeout <= 0:
            return []
        if self._loop.has_ready():  # a thread called in since asyncio computed the timeout
            return []
        return self._would_block()

    def _would_block(self) -> list[tuple[selectors.SelectorKey, int]]:
        loop, outstanding = self._loop, self._outstanding
        has_files = self._file_count > _SELF_PIPE_COUNT
        has_threads = outstanding.has_threads()
        has_processes = outstanding.has_processes()
        when = loop.next_timer()
        if has_threads or has_files or has_processes:
            if loop.real_io == "ignore":
                if when is None or outstanding.has_holds():
                    return self._wait()
            elif has_threads or loop.real_io == "wait":
                return self._wait()
            else:
                raise RealIOError(now=loop.time(), outstanding=self._describe())
        if when is None:
            if loop.has_signal_handlers() and loop.real_io == "wait":
                return self._wait()
            raise DeadlockError(now=loop.time(), tasks=describe_tasks(loop), signals=loop.has_signal_handlers())
        if when > loop.time():
            if when > self._limit_at:
                loop.clock._advance_to(self._limit_at)
                self._end_of_time()
            loop.clock._advance_to(when)
        return []

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time, with the virtual clock standing still."""
        patience = self._loop.patience
        deadline = time.monotonic() + patience
        while True:
            events = self._real.select(max(0.0, deadline - time.monotonic()))
            if events or self._loop.has_ready():
                return events
            if time.monotonic() >= deadline:
                raise RealIOError(now=self._loop.time(), outstanding=self._describe(), waited=patience)

    def _describe(self) -> tuple[str, ...]:
        keys = [key for key in self._real.get_map().values() if key.fd != self._loop.self_pipe_fd()]
        texts = self._outstanding.describe(keys)
        return texts or ("a signal, for which a handler is installed",)

    def _end_of_time(self) -> None:
        # Extend the limit by its own length, so that the clean-up after the error can still use timers.
        limit = self._limit_at
        self._limit_at = max(self._loop.time(), limit) + self._loop.limit
        raise TimeLimitError(limit=self._loop.limit, tasks=describe_tasks(self._loop))
