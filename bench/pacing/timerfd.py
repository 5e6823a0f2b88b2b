"""A Linux timerfd on CLOCK_MONOTONIC: the most exact way to wait that a process has without spinning.

``os.timerfd_create`` exists from CPython 3.13 on; before that, ctypes calls the C functions.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

__all__ = ["AbsoluteTimer", "is_available"]

_NS = 1_000_000_000
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_CLOCK_MONOTONIC = 1


def is_available() -> bool:
    """Return whether this system has timerfds; where it has none, :class:`AbsoluteTimer` sleeps."""
    return sys.platform == "linux"


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("every", _Timespec), ("first", _Timespec))


class AbsoluteTimer:
    """Waits for instants of ``time.monotonic_ns``, and blocks the thread meanwhile."""

    def __init__(self) -> None:
        self._fd = -1
        if not is_available():
            self._set = None
        elif sys.version_info >= (3, 13):
            self._fd = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_CLOEXEC)
            self._set = self._set_by_os
        else:
            self._library = ctypes.CDLL(None, use_errno=True)
            self._fd = self._library.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")
            self._setting = _Itimerspec()
            self._reference = ctypes.byref(self._setting)
            self._set = self._set_by_ctypes

    def wait_until(self, instant_ns: int) -> None:
        """Return at the instant or after it."""
        if self._set is None:
            time.sleep(max(0, instant_ns - time.monotonic_ns()) / _NS)
            return
        if instant_ns > time.monotonic_ns():
            self._set(instant_ns)
            os.read(self._fd, 8)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    if sys.version_info >= (3, 13):

        def _set_by_os(self, instant_ns: int) -> None:
            os.timerfd_settime_ns(self._fd, flags=os.TFD_TIMER_ABSTIME, initial=instant_ns)

    def _set_by_ctypes(self, instant_ns: int) -> None:
        self._setting.first.seconds, self._setting.first.nanoseconds = divmod(instant_ns, _NS)
        if self._library.timerfd_settime(self._fd, _ABSOLUTE, self._reference, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
