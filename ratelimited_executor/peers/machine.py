"""The machine that processes share: its clock, its run, and the kind of a file's file system."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ratelimited_executor.abc import Clock

__all__ = ["MEMORY_SYSTEMS", "NETWORK_SYSTEMS", "boot_id", "clock_us", "file_system_of", "machine_of", "wall_us"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_CLOCK_ID: Final = Path("/proc/self/ns/time")
_MOUNTS: Final = Path("/proc/self/mountinfo")
NETWORK_SYSTEMS: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.gcsfuse", "fuse.s3fs",
        "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs",
        "vboxsf",
    }
)  # fmt: skip
"""File systems of which a file may be open on several machines; each machine would have a log in memory of its own."""

MEMORY_SYSTEMS: Final = frozenset({"ramfs", "tmpfs"})
"""File systems that have no disk to wait for."""


def clock_us() -> int:
    """Return the time of the machine's clock, which all its processes share, and which only a restart sets back.

    It goes on while the machine is suspended, where the system has such a clock (Linux).
    """
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)) // 1000


def wall_us() -> int:
    """Return the time since the epoch, which may be set."""
    return time.time_ns() // 1000


def boot_id() -> str:
    """Return what identifies the time since the machine was started; empty if the system does not say (not Linux).

    Processes with equal ones have the same clock: containers may have one of their own (``time_namespaces(7)``).
    """
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {_CLOCK_ID.readlink()}"
    except OSError:
        return ""


def machine_of(clock: Clock) -> str:
    """Return the :func:`boot_id` if a clock and its suspensions together are :func:`clock_us`; else an empty text."""
    return boot_id() if clock.monotonic is time.monotonic and hasattr(clock, "suspended") else ""


def file_system_of(path: Path) -> str:
    """Return the kind of the file system of a path; empty if the system does not say (not Linux)."""
    if sys.platform != "linux":
        return ""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    folder = os.path.realpath(path)
    longest, found = -1, ""
    for line in lines:  # later ones cover earlier ones
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode("ascii", "surrogateescape").decode("unicode_escape", "surrogateescape")
        is_inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if is_inside and len(point) >= longest:
            longest, found = len(point), after.split()[0]
    return found
