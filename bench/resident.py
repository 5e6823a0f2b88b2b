"""Resident memory of this process, as the operating system counts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["peak_resident_bytes", "resident_bytes"]


def resident_bytes() -> int:
    """Return the resident memory of this process; without /proc, its maximum so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the maximum of the resident memory of this process so far.

    On Linux it is read from /proc, since getrusage includes the process from which this one was forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    import resource  # noqa: PLC0415  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
