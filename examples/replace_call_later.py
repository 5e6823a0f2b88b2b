"""An existing asyncio program whose timers move from the event loop to the executor: one line changes.

The program is a table of sessions. Every message pushes back a session's timeout, so nearly every timer is cancelled and
set again; every session sends heartbeats. It knows its timers only as something that has ``call_later``: the event
loop, or the executor, whose ``call_later`` has the same signature and never runs early. Callbacks that are due at the very
same time run in the order in which they were set; the event loop leaves that order open. Compare :func:`original` and :func:`replaced`.
"""

import asyncio
from typing import Any, Protocol

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.testing import run_virtual


class Timer(Protocol):
    """What ``call_later`` returns."""

    def cancel(self) -> None:
        """Never run it."""


class Timers(Protocol):
    """An event loop, or an executor."""

    def call_later(self, delay: float, callback: Any, *args: Any) -> Timer:
        """Run ``callback(*args)`` after ``delay`` seconds."""


class SessionTable:
    """Sessions that end when nothing was heard of them for a while, and beat while they live.

    Args:
        timers: where timers are set.
        timeout: seconds of silence that end a session.
        heartbeat: seconds between two heartbeats.
    """

    def __init__(self, timers: Timers, *, timeout: float = 30.0, heartbeat: float = 10.0) -> None:
        self.events: list[tuple[float, str, str]] = []  # when, what, which session
        self._timers = timers
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._timeouts: dict[str, Timer] = {}
        self._heartbeats: dict[str, Timer] = {}

    def message(self, name: str) -> None:
        """Hear from a session; the first message opens it."""
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
    """Open a few sessions, talk for a while, fall silent; return what the table noted."""
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
    """Run with those of the executor."""
    async with RateLimitedExecutor("timers") as timers:
        return await play(SessionTable(timers))


async def main() -> None:
    """Print what happens in the 160 seconds of the program."""
    for when, what, name in await replaced():
        print(f"{when:8.1f}  {name} {what}")


if __name__ == "__main__":
    run_virtual(main())  # at once; with asyncio.run it takes its 160 seconds, and prints nothing until then
