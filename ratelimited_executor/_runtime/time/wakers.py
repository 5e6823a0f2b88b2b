"""How the event loop is woken at a time: to the microsecond where the system can, else by the loop's own timers.

Theory. asyncio's selector waits in whole milliseconds, rounded up, and uvloop's timers fire up to one early: pacing
through ``loop.call_at`` is no better than that. A Linux timer file descriptor is watched by the loop like a socket and
becomes readable at an absolute time of the monotonic clock, within tens of microseconds. Setting it again also clears
its readable state, so that a wake-up costs one system call and is never read (timerfd_create(2)).

Loops with a time of their own (virtual time, say) are woken by their own timers: no descriptor knows their time. So are
processes whose clock is not the system's, such as under libfaketime, where a descriptor fails, fires at another time or
never: one is tried before the first is used. One that fails later is replaced by the loop's timers.
Rejected: a timer of the loop beside each setting, as a watchdog: that would be a wake-up a start.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from ratelimited_executor._kernel.choice import compiled, two_bodies, used_there
from ratelimited_executor._kernel.fields import DescriptorFields
from ratelimited_executor._kernel.sizes import DESCRIPTOR_SECONDS_MAX
from ratelimited_executor._runtime.time.clock import SystemClock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextvars import Context

__all__ = ["LoopTimer", "TimerDescriptor", "Waker", "waker_for"]

_NS: Final = 1_000_000_000
_CLOCK_MONOTONIC: Final = 1  # the Linux id of the clock that time.monotonic() reads
_FIRES_MS: Final = 20  # to wait for a descriptor whose time has come, which takes microseconds
_SILENT_MS: Final = 1  # to wait for one whose time has not come, which should not fire
_LATER_SECONDS: Final = 10.0  # that time from now: a clock is seldom changed by less
_LOOP_TIMER_SECONDS_MAX: Final = 86_400.0  # event loops are not made for timers further ahead
_SCALE_SECONDS: Final = (
    0.01  # the largest difference between two readings of the loop's time and the clock, if they are the same
)


class Waker(Protocol):
    """Calls back once, on the loop, at the time that was set last."""

    def set(self, when: float, now: float) -> None:
        """Call back at loop time ``when``; infinity is never.

        If the loop has already noticed that the previous time has come, it may call back for that as well; and as long
        as nothing is set after a call, it may call again.

        Args:
            when: loop time; if it has passed, the loop calls back in its next turn.
            now: loop time.
        """
        ...

    def close(self) -> None:
        """Free the system resources."""
        ...


class LoopTimer:
    """The timers of the event loop itself.

    Args:
        loop: the event loop.
        callback: what to call.
        context: the context variables to call it in.
    """

    __slots__ = ("_callback", "_context", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], context: Context) -> None:
        self._loop = loop
        self._callback = callback
        self._context = context
        self._handle: asyncio.Handle | None = None

    def set(self, when: float, now: float) -> None:
        """Call back at loop time ``when``; at most a day ahead, when the caller sets it again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if when <= now:
            self._handle = self._loop.call_soon(self._call_back, context=self._context)
        elif when < math.inf:
            when = min(when, now + _LOOP_TIMER_SECONDS_MAX)
            ahead = self._loop.time() - now
            if abs(ahead) > _SCALE_SECONDS:  # the given clock has another origin than the loop's timers
                when += ahead
            self._handle = self._loop.call_at(when, self._call_back, context=self._context)

    def _call_back(self) -> None:
        self._handle = None  # it has been called: cancelling it would cost as much as setting the next
        self._callback()

    def close(self) -> None:
        """Forget what was set."""
        self.set(math.inf, 0.0)


@used_there
class TimerDescriptor(DescriptorFields):
    """A timer file descriptor of Linux, on the scale of ``time.monotonic()``.

    Args:
        loop: an event loop that watches file descriptors.
        callback: what to call.
        context: the context variables to call it in.

    Raises:
        OSError: if the process may open no more descriptors.
        NotImplementedError: if the system has no timer descriptors, they do not follow the process's clock, or the loop
            cannot watch them.
    """

    __slots__ = ("__weakref__", "_context", "_instead", "_loop", "_system")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], context: Context) -> None:
        self._loop = loop
        self._callback = callback
        self._context = context
        self._handle = None  # used instead of the descriptor for an immediate call
        self._is_readable = False
        self._set_at = math.inf  # the time that the descriptor is set to
        self._fd = -1
        self._instead: LoopTimer | None = None  # used once the descriptor has failed
        if _system is None or not _keeps_time(_system):
            raise NotImplementedError("timer descriptors exist only on Linux, and under the system's own clock")
        self._system = _system
        self._fd = _system.create()
        context.run(loop.add_reader, self._fd, self._on_readable)
        _open.add(self)

    def set(self, when: float, now: float) -> None:
        """Call back at loop time ``when``."""
        if self._instead is not None:
            self._instead.set(when, now)
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if when <= now:
            self._handle = self._loop.call_soon(self._callback, context=self._context)
            when = math.inf
        if self._fd >= 0 and (when != self._set_at or self._is_readable):
            # Rounded up, so that it is never early; 0 disarms it, and so stands for never.
            time_ns = math.ceil(when * _NS) or 1 if when < DESCRIPTOR_SECONDS_MAX else 0
            try:
                self._system.set(self._fd, time_ns)
            except OSError:
                self.close()
                self._instead = LoopTimer(self._loop, self._callback, self._context)
                self._instead.set(when, now)
                return
            self._is_readable = False
            self._set_at = when

    def close(self) -> None:
        """Close the descriptor."""
        if self._instead is not None:
            self._instead.close()
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._loop.remove_reader(fd)
            os.close(fd)

    def abandon(self) -> None:
        """Never touch the descriptor again: it belongs to another process."""
        self._fd, self._set_at = -1, math.inf

    def __del__(self) -> None:
        if self._fd >= 0:  # its loop was closed before its owner
            os.close(self._fd)

    @two_bodies
    def _on_readable(self) -> None:
        if self._set_at < math.inf:  # else the loop had noticed it before it was disarmed
            self._is_readable = True
            self._callback()


_open: Final[WeakSet[TimerDescriptor]] = WeakSet()


def _leave_to_parent() -> None:
    """Release, in a forked process, the descriptors that it shares with its parent.

    A fork shares the setting of a descriptor, and its watchers: whatever the child did to it would affect the parent,
    which then might never wake up. An event loop that was running does not survive a fork, and so loses nothing.
    """
    for descriptor in _open:
        descriptor.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def waker_for(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], None], context: Context, *, is_foreign: bool = False
) -> Waker:
    """Return the most precise waker that the loop and the system have.

    Args:
        loop: the event loop.
        callback: what to call.
        context: the context variables to call it in.
        is_foreign: True if the loop has a time of its own, which no descriptor knows.
    """
    if not is_foreign:
        with contextlib.suppress(OSError, NotImplementedError):
            return TimerDescriptor(loop, callback, context)
    return LoopTimer(loop, callback, context)


class _TimerSpec(ctypes.Structure):
    """struct itimerspec, which is two of struct timespec: the interval, and the time."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class _SystemLibrary:
    """Timer descriptors through the C library, for CPython before 3.13.

    Raises:
        OSError: if no C library is found.
        AttributeError: if it does not have such descriptors.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._create, self._set = library.timerfd_create, library.timerfd_settime
        self._create.argtypes = (ctypes.c_int, ctypes.c_int)
        self._set.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def create(self) -> int:
        """Create a descriptor."""
        fd: int = self._create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return fd

    def set(self, fd: int, time_ns: int) -> None:
        """Set a descriptor to a time of the monotonic clock; 0 disarms it."""
        spec = _TimerSpec(
            0, 0, *divmod(time_ns, _NS)
        )  # one for each call: threads of other loops may set theirs meanwhile
        if self._set(fd, 1, ctypes.byref(spec), None) < 0:  # 1: TFD_TIMER_ABSTIME
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _StandardLibrary:
    """Timer descriptors with CPython 3.13 and later."""

    def __init__(self) -> None:
        system: Any = os  # type checkers for 3.11 do not know all of it
        self._create, self._set = system.timerfd_create, system.timerfd_settime_ns
        self._flags, self._absolute = system.TFD_NONBLOCK | system.TFD_CLOEXEC, system.TFD_TIMER_ABSTIME

    def create(self) -> int:
        """Create a descriptor."""
        fd: int = self._create(_CLOCK_MONOTONIC, flags=self._flags)
        return fd

    def set(self, fd: int, time_ns: int) -> None:
        """Set a descriptor to a time of the monotonic clock; 0 disarms it."""
        self._set(fd, flags=self._absolute, initial=time_ns)


def _find_system() -> _SystemLibrary | _StandardLibrary | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            system = _StandardLibrary() if sys.version_info >= (3, 13) else _SystemLibrary()
            if compiled is not None:
                system.set = compiled.set_timer  # type: ignore[method-assign]  # the same, without a library in between
            return system
    return None


@cache
def _keeps_time(system: Any) -> bool:
    """True if timer descriptors of the system follow the clock of this process; tried once."""
    fd = system.create()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        system.set(fd, round(SystemClock.monotonic() * _NS))
        if not poll.poll(_FIRES_MS):
            return False
        system.set(fd, round((SystemClock.monotonic() + _LATER_SECONDS) * _NS))
        return not poll.poll(_SILENT_MS)
    except OSError:
        return False
    finally:
        os.close(fd)


_system: Final = _find_system()
