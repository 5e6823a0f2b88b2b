"""The context variables that tasks are scheduled with, held once for many tasks that were scheduled with the same."""

from __future__ import annotations

import contextvars
import weakref

from ratelimited_executor._kernel.fields import ContextFields

__all__ = ["SharedContexts"]


class SharedContexts(ContextFields):
    """Captures the caller's variables, and shares them with the call before where they are the same.

    Attributes:
        scratch: what calls run in that were scheduled without any variable; a fresh one is made once one has been set there.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._last = None
        self.scratch = contextvars.Context()

    def capture(self) -> contextvars.Context | None:
        """Return the context variables of the caller; None if none is set."""
        context = contextvars.copy_context()
        return self.share(context) if context else None

    def share(self, context: contextvars.Context) -> contextvars.Context:
        """Return the context of the call before instead of a copy of the caller's, if it holds the same.

        That is if every value is the same object: ``==`` would call user code, and take the equal values of two requests
        for one. The values are read where they are fastest to read, from the variables themselves.
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
        """Make a fresh scratch if a call has set a variable in it: the next must not see that."""
        if self.scratch:
            self.scratch = contextvars.Context()

    def give_away(self, context: contextvars.Context) -> None:
        """Make a fresh scratch if a coroutine is to continue in it."""
        if context is self.scratch:
            self.scratch = contextvars.Context()
