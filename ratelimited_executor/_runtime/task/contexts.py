"""The contexts in which tasks were scheduled; consecutive tasks with the same variables share one."""

from __future__ import annotations

import contextvars
import weakref

from ratelimited_executor._kernel.fields import ContextFields

__all__ = ["SharedContexts"]


class SharedContexts(ContextFields):
    """Captures the caller's context, and reuses that of the previous call if the variables are the same.

    Attributes:
        scratch: the context of calls scheduled without any variable; replaced once a call has set a variable in it.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._last = None
        self.scratch = contextvars.Context()

    def capture(self) -> contextvars.Context | None:
        """Return the caller's context; None if no variable is set."""
        context = contextvars.copy_context()
        return self.share(context) if context else None

    def share(self, context: contextvars.Context) -> contextvars.Context:
        """Return the previous call's context instead of a copy of the caller's, if both hold the same values.

        The values must be the same objects: ``==`` would call user code, and merge equal values of two requests. They
        are read from the variables themselves, which is fastest.
        """
        last = None if self._last is None else self._last()
        if last is not None and len(last) == len(context):
            for variable, value in last.items():
                if variable.get(self) is not value:
                    break
            else:
                return last
        self._last = weakref.ref(context)
        return context

    def clean(self) -> None:
        """Replace the scratch if a call has set a variable in it, which the next call must not see."""
        if self.scratch:
            self.scratch = contextvars.Context()

    def give_away(self, context: contextvars.Context) -> None:
        """Replace the scratch if a coroutine will continue in it."""
        if context is self.scratch:
            self.scratch = contextvars.Context()
