"""The resource: a socket that gets a datagram for each start, with the time at which the kernel received it.

A process that is late with its own clock, or held up after it looked at the clock, cannot make a start look earlier.
Where the system has no such times, the time at which a thread read the datagram counts, and ``TIMED_SOCKET`` is false.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ALIVE", "BEGUN", "LEAVE", "MESSAGE", "START", "TIMED_SOCKET", "Counter", "Reporter", "Row", "TimedSocket"]

# Kinds of messages: a start or an entry, the end of a hold, the begin of a process, and a reading of the counts.
START, LEAVE, BEGUN, ALIVE = range(4)
MESSAGE = struct.Struct("!BHIIIddd")

_TIMESTAMP = struct.Struct("qq")  # seconds and nanoseconds, on 64-bit Linux
_SO_TIMESTAMPNS = 35
TIMED_SOCKET = sys.platform == "linux" and sys.maxsize > 2**32
_BUFFER_BYTES = 1 << 24
_POLL_SECONDS = 0.2


class Row(NamedTuple):
    """One message.

    Attributes:
        at: when it was received, in seconds of the wall clock.
        kind: START, LEAVE, BEGUN or ALIVE.
        process: the number of the process.
        key: the key of the start.
        asked: how many starts the process has asked for until now.
        started: how many starts the process has reported until now, this one included.
        submitted: when the start was asked for, in seconds of the process's monotonic clock.
        told: when the message was sent, by the same clock.
        cpu: CPU seconds that the process has used.
    """

    at: float
    kind: int
    process: int
    key: int
    asked: int
    started: int
    submitted: float
    told: float
    cpu: float


class TimedSocket:
    """A datagram socket on the loopback interface that knows when the kernel received each datagram."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        if TIMED_SOCKET:
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.bind(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]

    def receive(self, seconds: float) -> tuple[float, bytes, tuple[str, int]] | None:
        """Return the next datagram with its time and its sender; None if there is none for this long."""
        self.socket.settimeout(max(seconds, 1e-4))
        try:
            if not TIMED_SOCKET:
                data, sender = self.socket.recvfrom(256)
                return time.time(), data, sender
            data, ancillary, _, sender = self.socket.recvmsg(256, 256)
        except TimeoutError:
            return None
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                whole, nanoseconds = _TIMESTAMP.unpack(value[: _TIMESTAMP.size])
                return whole + nanoseconds / 1e9, data, sender
        return time.time(), data, sender


class Counter:
    """Collects the messages of a round; a context manager."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._socket = TimedSocket()
        self.port = self._socket.port
        self._is_open = True
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def _collect(self) -> None:
        while self._is_open:
            received = self._socket.receive(_POLL_SECONDS)
            if received is not None:
                self.rows.append(Row(received[0], *MESSAGE.unpack(received[1])))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._thread.join()
        self._socket.socket.close()


class Reporter:
    """A process's end: counts what it asks for, and tells the counter.

    Args:
        port: the port of the counter.
        number: the number of the process.
    """

    def __init__(self, port: int, number: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._number = number
        self._asked = self._started = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def asks(self, *, counts: bool = True) -> float:
        """Count a start that is asked for, and return the time."""
        self._asked += counts
        return time.monotonic()

    def tell(self, kind: int, key: int | None = None, submitted: float = 0.0) -> None:
        """Send a message."""
        self._started += kind == START
        message = (kind, self._number, key or 0, self._asked, self._started, submitted, time.monotonic())
        self._socket.send(MESSAGE.pack(*message, time.process_time()))
