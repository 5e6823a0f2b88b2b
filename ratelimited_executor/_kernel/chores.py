"""Deferrable work of the core, in steps of about a millisecond each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Chores"]


class Chores(deque[Iterator[None]]):
    """Iterators to be run to their ends, the oldest first.

    Attributes:
        on_added: called for each new one: an idle executor, whose next task is due in an hour, must be woken for it.
    """

    on_added: Callable[[], None] | None = None

    def append(self, chore: Iterator[None]) -> None:
        """Add a chore."""
        super().append(chore)
        if self.on_added is not None:
            self.on_added()
