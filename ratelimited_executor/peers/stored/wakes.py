"""Notices of hand-overs between the processes of a machine: datagrams on the loopback.

A peer's id ends with its port, so that who hands it a slot knows where to send the notice. A notice only makes a peer
look; a lost or invented one does no harm: waiters look by themselves, four times in a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.slots import peer_of
from ratelimited_executor.peers.fleet import new_peer_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Wakes"]

_HOST: Final = "127.0.0.1"
_SIZE: Final = 4096  # of a notice: a token


class Wakes:
    """The socket of one process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def new_id(self) -> str:
        """Return an id of this incarnation of the process, at which it receives notices from now on."""
        self.close()
        name = new_peer_id()
        try:
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.settimeout(0)
            receiver.bind((_HOST, 0))
        except OSError:  # no loopback, or no right to use it: waiters poll
            return name
        self._socket = receiver
        return f"{name}@{receiver.getsockname()[1]}"

    def send(self, tokens: Iterable[str]) -> None:
        """Notify the peers of tokens; never waits."""
        if self._socket is None:
            return
        for token in tokens:
            _, _, port = peer_of(token).rpartition("@")
            if port.isdecimal() and 0 < int(port) < 65536:
                with contextlib.suppress(OSError):
                    self._socket.sendto(token.encode("utf-8", "surrogatepass"), (_HOST, int(port)))

    async def listen(self, listening: Callable[[], None], woken: Callable[[str], None]) -> None:
        """Receive notices until that fails.

        Raises:
            ConnectionError: if there is no socket.
        """
        if self._socket is None:
            raise ConnectionError("no datagrams on the loopback")
        loop = asyncio.get_running_loop()
        listening()
        while True:
            try:
                notice = await loop.sock_recv(self._socket, _SIZE)
            except ConnectionError:  # a peer that was sent a notice has gone
                continue
            woken(notice.decode("utf-8", "replace"))

    def close(self) -> None:
        """Close the socket."""
        receiver, self._socket = self._socket, None
        if receiver is not None:
            receiver.close()
