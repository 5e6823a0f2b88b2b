"""The done callbacks of one executor: one ``call_soon`` calls those of all handles that end in a loop iteration.

Theory. ``loop.call_soon`` for each callback makes an ``asyncio.Handle``, a context and an entry of the loop's queue for each:
more than most callbacks cost themselves. Here the first callback that is added asks the loop for one call, and those that
are added until then wait for it in a list.

The order: callbacks of one executor are called in the order in which their handles ended and, for one handle, in which they
were added. Against ``call_soon`` of others, each is called no later than a ``call_soon`` of its own would have called it,
within the same turn: it takes the place of the first. What is added while callbacks are called comes in the next turn.

A turn calls :data:`CALL_COUNT_MAX` of them, then the loop's I/O has its turn: a million handles may be cancelled by one call.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio.format_helpers import _format_callback_source
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import CallbackFields
from ratelimited_executor._kernel.sizes import CALL_COUNT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CALL_COUNT_MAX", "DoneCallbacks"]


class DoneCallbacks(CallbackFields):
    """Calls the done callbacks of an executor's handles soon after they have ended.

    Args:
        loop: the event loop.
    """

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending = deque()
        self._is_armed = False  # whether the loop is to call _run()
        self._is_debug = False  # whether the loop was in debug mode when it was asked

    @property
    def is_crowded(self) -> bool:
        """True if more has been added than is called in one turn."""
        return len(self._pending) > CALL_COUNT_MAX

    def add(self, callback: Callable[[Any], object], handle: Any, context: contextvars.Context | None) -> None:
        """Call ``callback(handle)`` soon.

        Args:
            callback: what to call.
            handle: its argument.
            context: what to call it in; None for one without any variable, which it shares with nobody.

        Raises:
            RuntimeError: if the event loop is closed; one that is closed with callbacks waiting forgets them and others.
        """
        if not self._is_armed:
            self._arm()
        if self._is_debug:  # it remembers who asked for it, as that of call_soon() does
            context = contextvars.Context() if context is None else context  # one that is given may be empty
            told = asyncio.Handle(callback, (handle,), self._loop, context)
            self._pending.append((asyncio.Handle._run, told, None))  # noqa: SLF001  # what the loop itself calls
        else:
            self._pending.append((callback, handle, context))

    def _arm(self) -> None:
        self._loop.call_soon(self._run, context=contextvars.Context())
        self._is_armed = True
        self._is_debug = self._loop.get_debug()

    @two_bodies
    def _run(self) -> None:
        """Call the callbacks added so far; leave the rest to the next iteration if there are many, or the program ends."""
        pending = self._pending
        scratch = contextvars.Context()
        try:
            self._is_armed = False  # from now on, what is added asks for the next turn
            for _ in repeat(None, min(len(pending), CALL_COUNT_MAX)):
                callback, handle, context = pending.popleft()
                if context is None:
                    context = scratch
                try:
                    context.run(callback, handle)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # a callback's failure is its own, whatever it raises
                    self._report(callback, handle, context, error)
                if scratch:
                    scratch = contextvars.Context()
        finally:
            # else the traceback of an error keeps this frame, which keeps the handle
            callback = handle = context = None  # as above
            if pending and not self._is_armed:
                self._arm()

    def _report(
        self, callback: Callable[[Any], object], handle: Any, context: contextvars.Context, error: BaseException
    ) -> None:
        """Report a failed ``call_soon`` callback to the loop's exception handler."""
        self._loop.call_exception_handler(
            {
                "message": f"Exception in callback {_format_callback_source(callback, (handle,))}",
                "exception": error,
                "handle": asyncio.Handle(callback, (handle,), self._loop, context),
            }
        )
