"""The done callbacks of one executor: one ``call_soon`` serves all handles that end in a loop iteration.

Theory. A ``loop.call_soon`` for each callback would create an ``asyncio.Handle``, a context and an entry in the loop's
queue: more than most callbacks cost themselves. Here the first callback requests one call from the loop, and callbacks
added before that call wait for it in a list.

Order: callbacks of one executor are called in the order in which their handles ended and, for one handle, in which they
were added. Each is called no later than its own ``call_soon`` would have called it, in the same loop iteration: all
take the place of the first. Callbacks added during these calls are called in the next iteration.

At most :data:`CALL_COUNT_MAX` are called in one iteration, as one call may cancel a million handles: I/O comes between.
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
        self._is_armed = False  # True while the loop has a pending call of _run()
        self._is_debug = False  # True if the loop was in debug mode when that call was requested

    @property
    def is_crowded(self) -> bool:
        """True if more callbacks wait than are called in one loop iteration."""
        return len(self._pending) > CALL_COUNT_MAX

    def add(self, callback: Callable[[Any], object], handle: Any, context: contextvars.Context | None) -> None:
        """Call ``callback(handle)`` soon.

        Args:
            callback: what to call.
            handle: its argument.
            context: the context of the call; None for an empty one, not shared with other callbacks.

        Raises:
            RuntimeError: if the event loop is closed; a loop that is closed while callbacks wait drops them.
        """
        if not self._is_armed:
            self._arm()
        if self._is_debug:  # the handle records where the callback was added, as call_soon() does
            context = contextvars.Context() if context is None else context  # a given context may be empty, so falsy
            told = asyncio.Handle(callback, (handle,), self._loop, context)
            self._pending.append((asyncio.Handle._run, told, None))  # noqa: SLF001  # called by the loop itself
        else:
            self._pending.append((callback, handle, context))

    def _arm(self) -> None:
        self._loop.call_soon(self._run, context=contextvars.Context())
        self._is_armed = True
        self._is_debug = self._loop.get_debug()

    @two_bodies
    def _run(self) -> None:
        """Call the callbacks added so far; leave the rest to the next iteration if they are many, or one exits."""
        pending = self._pending
        scratch = contextvars.Context()
        try:
            self._is_armed = False  # callbacks added from now on request the next iteration
            for _ in repeat(None, min(len(pending), CALL_COUNT_MAX)):
                callback, handle, context = pending.popleft()
                if context is None:
                    context = scratch
                try:
                    context.run(callback, handle)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # a failed callback must not affect the others
                    self._report(callback, handle, context, error)
                if scratch:
                    scratch = contextvars.Context()
        finally:
            # Otherwise the traceback of an error would keep this frame, and with it the handle.
            callback = handle = context = None
            if pending and not self._is_armed:
                self._arm()

    def _report(
        self, callback: Callable[[Any], object], handle: Any, context: contextvars.Context, error: BaseException
    ) -> None:
        """Report a failed callback to the loop's exception handler, as for ``call_soon``."""
        self._loop.call_exception_handler(
            {
                "message": f"Exception in callback {_format_callback_source(callback, (handle,))}",
                "exception": error,
                "handle": asyncio.Handle(callback, (handle,), self._loop, context),
            }
        )
