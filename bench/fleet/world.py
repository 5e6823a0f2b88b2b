"""Processes in virtual time: each has an event loop and a processor core of its own, and may be killed.

Time passes in steps. The world takes the earliest of what is to come, an event of its own (a message that arrives at the
server) or the next iteration of a process's loop, and runs it. A callback that uses the core (``loop.block_for``) moves
the clock of its process only: others, and the server, do not wait for it, as on a machine with a core for each. Nothing
in a process can act before the world has come to its time, so every message is sent and read in the order of time.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import TYPE_CHECKING, Any

from ratelimited_executor.testing import VirtualEventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["World"]


class World:
    """Processes and the time that they share.

    Args:
        processes: how many.

    Attributes:
        now: seconds since the beginning.
        loops: the event loop of each process.
        dead: the killed processes, with the time at which each was killed.
        errors: what processes reported to the exception handlers of their loops.
    """

    def __init__(self, processes: int) -> None:
        self.now = 0.0
        self.loops = [VirtualEventLoop(seed=number) for number in range(processes)]
        self.dead: dict[int, float] = {}
        self.errors: list[str] = []
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = count()
        self._mains: dict[int, asyncio.Task[None]] = {}
        for loop in self.loops:
            loop.set_exception_handler(self._note_error)

    def at(self, when: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call a function outside of all processes at a time, or now if that has passed."""
        heapq.heappush(self._events, (max(when, self.now), next(self._serial), do, arguments))

    def start(self, process: int, main: Coroutine[Any, Any, None]) -> None:
        """Start a process: its loop runs a coroutine."""
        self._mains[process] = self.loops[process].create_task(main)
        self._plan(process)

    def deliver(self, process: int, do: Callable[..., object], *arguments: Any) -> None:
        """Let a process call a function now, or as soon as its core is free; a killed one never does."""
        if process not in self.dead:
            self.loops[process].call_at(self.now, do, *arguments)
            self._plan(process)

    def kill(self, process: int) -> None:
        """Kill a process: it runs nothing from now on."""
        self.dead[process] = self.now

    def run(self, until: float) -> None:
        """Let time pass; raise the error of a process that has ended with one."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, do, arguments = heapq.heappop(events)
            do(*arguments)
        self.now = max(self.now, until)
        for main in self._mains.values():
            if main.done():
                main.result()

    def close(self) -> None:
        """End all processes: each has its main coroutine cancelled, and runs until that has ended, by itself."""
        for process, loop in enumerate(self.loops):
            try:
                if process in self._mains:
                    self._mains[process].cancel()
                    loop.run_until_complete(_end(loop, self._mains[process]))
            finally:
                loop.close()

    def _plan(self, process: int) -> None:
        """Plan the next iteration of a process's loop."""
        loop = self.loops[process]
        when = loop.time() if loop.has_ready() else loop.next_timer()
        if when is not None:
            self.at(max(when, loop.time()), self._turn, process)

    def _turn(self, process: int) -> None:
        """Run an iteration of a process's loop, unless an earlier one has done what this was planned for."""
        loop = self.loops[process]
        if process in self.dead or loop.time() > self.now:
            return
        if not loop.has_ready():
            when = loop.next_timer()
            if when is None or when > self.now:
                return
            if when > loop.time():
                loop.clock._advance_to(when)
        loop.stop()
        loop.run_forever()  # one iteration
        self._plan(process)

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")


async def _end(loop: asyncio.AbstractEventLoop, main: asyncio.Task[None]) -> None:
    """Wait for the main coroutine and then for what it has left behind."""
    await asyncio.gather(main, return_exceptions=True)
    rest = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
