"""Move the timers of an existing asyncio program from the event loop to the executor, by changing one line.

The program is a table of sessions. Every message postpones a session's timeout, so nearly every timer is cancelled and
set again; every session sends heartbeats. The program only requires that its timers have ``call_later``: it accepts the
event loop, or the executor, whose ``call_later`` has the same signature and never runs early. The executor runs callbacks
that are due at the same time in the order in which they were set; the event loop does not define that order. Compare
:func:`original` and :func:`replaced`.
"""

import asyncio
from typing import Any, Protocol

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.testing import run_virtual


class Timer(Protocol):
    """The handle that ``call_later`` returns."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Timers(Protocol):
    """An event loop, or an executor."""

    def call_later(self, delay: float, callback: Any, *args: Any) -> Timer:
        """Run ``callback(*args)`` after ``delay`` seconds."""


class SessionTable:
    """Sessions that send heartbeats, and end after a period without messages.

    Args:
        timers: the event loop or executor on which timers are set.
        timeout: seconds of silence that end a session.
        heartbeat: seconds between two heartbeats.
    """

    def __init__(self, timers: Timers, *, timeout: float = 30.0, heartbeat: float = 10.0) -> None:
        self.events: list[tuple[float, str, str]] = []  # time, event, session
        self._timers = timers
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._timeouts: dict[str, Timer] = {}
        self._heartbeats: dict[str, Timer] = {}

    def message(self, name: str) -> None:
        """Receive a message of a session; the first one opens it."""
        if name in self._timeouts:
            self._timeouts[name].cancel()
        else:
            self._note("opened", name)
            self._heartbeats[name] = self._timers.call_later(self._heartbeat, self._beat, name)
        self._timeouts[name] = self._timers.call_later(self._timeout, self._expire, name)

    def _beat(self, name: str) -> None:
        self._note("heartbeat", name)
        self._heartbeats[name] = self._timers.call_later(self._heartbeat, self._beat, name)

    def _expire(self, name: str) -> None:
        del self._timeouts[name]
        self._heartbeats.pop(name).cancel()
        self._note("timed out", name)

    def _note(self, what: str, name: str) -> None:
        self.events.append((asyncio.get_running_loop().time(), what, name))


async def play(sessions: SessionTable) -> list[tuple[float, str, str]]:
    """Open a few sessions, send messages for a while, then stop; return the recorded events."""
    for turn in range(40):
        for number in range(5):
            if turn % (number + 1) == 0 and turn < 8 * (number + 1):
                sessions.message(f"session {number}")
        await asyncio.sleep(2.5)
    await asyncio.sleep(60)
    return sessions.events


async def original() -> list[tuple[float, str, str]]:
    """Run with the timers of the event loop."""
    timers = asyncio.get_running_loop()
    return await play(SessionTable(timers))


async def replaced() -> list[tuple[float, str, str]]:
    """Run with the timers of the executor."""
    async with RateLimitedExecutor("timers") as timers:
        return await play(SessionTable(timers))


async def main() -> None:
    """Print the events of the program's 160 seconds."""
    for when, what, name in await replaced():
        print(f"{when:8.1f}  {name} {what}")


if __name__ == "__main__":
    run_virtual(main())  # takes no time; with asyncio.run it takes 160 seconds, and prints only then
