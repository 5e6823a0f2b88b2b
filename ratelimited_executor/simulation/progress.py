"""The progress of simulated cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor.stores.progress.memory import MemoryProgress

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InstantProgress"]


class InstantProgress(MemoryProgress):
    """Progress in memory, recorded when a key ends, not in a separate loop iteration: half the cost of a key."""

    def noting(self, name: str, turn: int) -> Callable[[bytes], object]:
        """Return what records a key of a turn whose task has ended."""
        return self._keys[name, turn].add
