"""The errors that a virtual event loop raises when it cannot continue.

::

    RateLimitedExecutorError
    └── VirtualTimeError       (also RuntimeError)
        ├── DeadlockError      nothing is ready, scheduled or outstanding: real asyncio would hang forever
        ├── RealIOError        something outside virtual time is outstanding: a socket, process or thread
        ├── TimeLimitError     the virtual clock would pass the limit of the run
        └── TurnLimitError     a run of a search takes too many turns of the loop

They are raised out of ``run_virtual()``, ``loop.run_until_complete()`` or the test; no task sees them.
"""

from __future__ import annotations

from ratelimited_executor.exceptions import RateLimitedExecutorError

__all__ = ["DeadlockError", "RealIOError", "TimeLimitError", "TurnLimitError", "VirtualTimeError"]


class VirtualTimeError(RateLimitedExecutorError, RuntimeError):
    """The virtual event loop cannot continue."""


class DeadlockError(VirtualTimeError):
    """Nothing is ready, scheduled or outstanding, so nothing can ever happen again.

    Attributes:
        now: the virtual time of the deadlock, in seconds.
        tasks: one line for each pending task: its name, and where it waits.
        signals: True if signal handlers are installed; virtual time does not wait for signals.
    """

    def __init__(self, *, now: float, tasks: tuple[str, ...], signals: bool = False) -> None:
        super().__init__(now, tasks, signals)
        self.now = now
        self.tasks = tasks
        self.signals = signals

    def __str__(self) -> str:
        lines = [f"deadlock at {self.now:.9g} s of virtual time: no timer, no socket, no thread; pending tasks:"]
        lines += [f"  {task}" for task in self.tasks] or ["  none: the loop runs for ever without work"]
        if self.signals:
            lines.append("signal handlers are installed; to wait for a signal in real time use real_io='wait'")
        lines.append("if a thread of your own will call in, say so with loop.hold('its name')")
        return "\n".join(lines)


class RealIOError(VirtualTimeError):
    """Time would have to advance, but something outside virtual time is outstanding.

    Attributes:
        now: the virtual time, in seconds.
        outstanding: one text for each socket, pipe, process, thread or hold.
        waited: seconds of real time that the loop waited; 0.0 if it did not wait at all.
    """

    def __init__(self, *, now: float, outstanding: tuple[str, ...], waited: float = 0.0) -> None:
        super().__init__(now, outstanding, waited)
        self.now = now
        self.outstanding = outstanding
        self.waited = waited

    def __str__(self) -> str:
        what = "\n".join(f"  {item}" for item in self.outstanding)
        if self.waited:
            return (
                f"nothing reported within {self.waited:g} s of real time, and the virtual clock stands at "
                f"{self.now:.9g} s; outstanding:\n{what}\n"
                "raise patience= if it needs longer; if a thread waits for this loop, "
                "use loop.result_in_thread(future) there, or real_io='ignore'"
            )
        return (
            f"virtual time cannot pass {self.now:.9g} s while real input or output is outstanding:\n{what}\n"
            "replace it by a fake, or choose real_io='wait' or 'ignore', or run this on a real event loop"
        )


class TimeLimitError(VirtualTimeError):
    """The next timer lies beyond the limit of the run, or a callback blocked past it.

    Attributes:
        limit: virtual seconds the run was allowed.
        tasks: one line for each pending task: its name, and where it waits.
    """

    def __init__(self, *, limit: float, tasks: tuple[str, ...]) -> None:
        super().__init__(limit, tasks)
        self.limit = limit
        self.tasks = tasks

    def __str__(self) -> str:
        lines = [f"the run did not end within limit={self.limit:g} s of virtual time; pending tasks:"]
        return "\n".join(lines + [f"  {task}" for task in self.tasks])


class TurnLimitError(VirtualTimeError):
    """A run of :func:`search_faults` takes more turns of the event loop than it may: something never ends.

    Attributes:
        turns: the turns that the run was allowed.
        now: the virtual time, in seconds.
        tasks: one line for each pending task: its name, and where it waits.
    """

    def __init__(self, *, turns: int, now: float, tasks: tuple[str, ...]) -> None:
        super().__init__(turns, now, tasks)
        self.turns = turns
        self.now = now
        self.tasks = tasks

    def __str__(self) -> str:
        lines = [
            f"the run did not end within turns={self.turns} of the event loop, at {self.now:.9g} s; pending tasks:"
        ]
        return "\n".join(lines + [f"  {task}" for task in self.tasks])
