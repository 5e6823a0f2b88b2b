"""How much of a core this process used since a moment, and for how long it had work and no core."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

__all__ = ["CpuMeter"]

_SECONDS_MIN: Final = 0.05  # over which shares are told


class CpuMeter:
    """Reads the CPU time since it was made."""

    def __init__(self) -> None:
        self._used, self._waited = time.process_time(), _wait_seconds()

    def shares(self, seconds: float) -> dict[str, float]:
        """Return ``cpu_share`` and ``cpu_wait_share`` of :class:`Figures`, after so many seconds."""
        seconds = max(seconds, _SECONDS_MIN)
        return {
            "cpu_share": (time.process_time() - self._used) / seconds,
            "cpu_wait_share": (_wait_seconds() - self._waited) / seconds,
        }


def _wait_seconds() -> float:
    """Return for how long this thread could have run and had no core; 0 where the system does not say, as only Linux does."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
