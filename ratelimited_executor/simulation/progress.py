"""The progress of simulated cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor.stores.progress.memory import MemoryProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["InstantProgress"]


class InstantProgress(MemoryProgress):
    """Progress in memory, recorded when a key ends, not in a separate loop iteration: half the cost of a key."""

    def note_now(self, name: str, turn: int, keys: Iterable[bytes]) -> None:
        """Record keys whose tasks have ended."""
        self._keys[name, turn].update(keys)
