"""The output files of a run: opened, or refused, before anything is read.

Files of an earlier run are never overwritten: its results are a record, and its remaining lines are work still to do.
Two runs never write one file at the same time: the first one holds a lock, which the system releases however the
process ends. The lock is ``flock``; a system or file system without it has no lock.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.run.inputs import is_file_at, lines_in

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ratelimited_executor.cli.run.inputs import LineSource

__all__ = ["Remaining", "close_output", "open_results"]

# Suffix of the file of remaining lines until it is complete.
PARTIAL_SUFFIX: Final = ".partial"
# The rest of a stream may be endless. It is written while more than this is free on the disk, which is checked each
# time this many bytes have been written; a smaller rest is never refused.
FREE_BYTES_MIN: Final = 1024**3
FREE_CHECK_BYTES: Final = 64 * 1024**2


def open_results(path: str, *, source: LineSource, append: bool) -> BinaryIO:
    """Open the file of the results for writing; ``-`` is standard output.

    Several runs may append to one file, each row whole. A last row torn by a crash is ended with a newline, so that the
    next one is on its own line.

    Args:
        path: the file; created if it does not exist.
        source: the input, which must be another file.
        append: True to add to a file that is not empty; False to refuse it.

    Raises:
        CommandError: if the file cannot be written, is the input or in use, or is not empty and ``append`` is False.
    """
    if path == "-":
        return sys.stdout.buffer
    _refuse_the_input("--results", path, source)
    with _errors_of("--results", path):
        file = Path(path).open("ab")  # noqa: SIM115  # closed by the command, which may end in several ways
        try:
            if _is_regular(file):
                _claim_results(path, file, append=append)
        except BaseException:
            close_output(file)
            raise
    return file


def _claim_results(path: str, file: BinaryIO, *, append: bool) -> None:
    """Lock the results file, shared for appending, else exclusively; refuse its content, or end its last row."""
    is_alone = _is_locked(file)
    if not is_alone and not (append and _is_locked(file, is_shared=True)):
        raise _in_use("--results", path, file)
    if not append and _size(file):
        raise _not_empty("--results", path, " or pass --append")
    if append and is_alone:
        _end_last_row(path, file)
        _is_locked(file, is_shared=True)


class Remaining:
    """The file of the lines that were not started, which exists only once it is complete.

    An empty file means that nothing remains. So no file has this name while the run continues: the lines are written to
    FILE.partial beside it, which is renamed when it is complete. FILE.partial is created at the start, as the lock, and
    so that an unwritable directory is refused before any call. A file that is not regular (a pipe, a device) is written
    directly.

    Args:
        path: the path of the file.
        source: the input, which must be another file.

    Raises:
        CommandError: if the file cannot be written, or is the input.
    """

    def __init__(self, path: str, *, source: LineSource) -> None:
        self.path = path
        self._target = Path(os.path.realpath(path))  # a symbolic link is kept
        self._partial: Path | None = None
        self._file: BinaryIO | None = None
        _refuse_the_input("--remaining", path, source)
        with _errors_of("--remaining", path):
            if Path(path).exists() and not Path(path).is_file():
                self._file = Path(path).open("ab")  # noqa: SIM115  # closed by close()

    def claim(self) -> None:
        """Create and lock FILE.partial; remove an empty FILE, since the remaining lines are not known yet.

        Raises:
            CommandError: if FILE.partial cannot be created, another run holds it, or one of the files is not empty.
        """
        if self._file is not None:
            return
        with _errors_of("--remaining", self.path):
            self._lock_partial(self._target.with_name(self._target.name + PARTIAL_SUFFIX))
            try:
                self._replace_empty()
            except BaseException:
                self.close()
                raise

    def keep(self, blocks: Iterable[bytes], *, is_bounded: bool) -> int:
        """Write the lines that were not started, in order, count them, and rename FILE.partial to FILE.

        Args:
            blocks: raw lines or blocks of raw lines, in the order of the input.
            is_bounded: False if the blocks may be endless; then some space on the disk is left free.

        Raises:
            OSError: if the lines cannot all be written; FILE.partial then has those that were.
        """
        file = self._file
        assert file is not None, "claimed before the run"
        partial = self._partial
        try:
            count = lines_in(_written(file, blocks, None if is_bounded else partial))
        finally:
            file.flush()
        if partial is None:
            return count
        os.fsync(file.fileno())  # else a crash of the machine could leave an empty file with this name
        if _is_filled(self._target):
            raise FileExistsError(errno.EEXIST, "another file with this name has appeared")
        if sys.platform == "win32":
            file.close()  # Windows cannot rename an open file; elsewhere the lock is held until the end
        partial.replace(self._target)
        self._partial = None
        return count

    @property
    def leftover(self) -> Path | None:
        """The file with a part of the lines; None if there is none."""
        return self._partial if self._partial is not None and _is_filled(self._partial) else None

    def close(self) -> None:
        """Close the file; if it was not renamed, it stays as FILE.partial unless it is empty."""
        if self._file is not None:
            if self._partial is not None and self.leftover is None:
                with suppress(OSError):
                    self._partial.unlink()  # before the lock is released
            close_output(self._file)

    def _lock_partial(self, partial: Path) -> None:
        """Open and lock FILE.partial; repeat if the run that held it has ended and renamed it meanwhile."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        while True:
            file = os.fdopen(os.open(partial, flags, 0o666), "ab")
            try:
                if not _is_regular(file):
                    raise CommandError(f"--remaining {self.path!r}: {partial} is not a regular file; name another file")
                if not _is_locked(file):
                    raise _in_use("--remaining", self.path, file)
                if is_file_at(file.fileno(), partial):
                    self._file, self._partial = file, partial
                    return
            except BaseException:
                close_output(file)
                raise
            close_output(file)

    def _replace_empty(self) -> None:
        """Refuse files that are not empty, and replace an empty one, with its permissions."""
        assert self._file is not None
        if self.leftover is not None:
            raise CommandError(
                f"--remaining {self.path!r}: {self.leftover} holds lines that an earlier run could not "
                "write completely; inspect and remove it, or name another file"
            )
        if not self._target.exists():
            return
        if _is_filled(self._target):
            raise _not_empty("--remaining", self.path)
        if not os.access(self._target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if sys.platform != "win32":
            os.fchmod(self._file.fileno(), stat.S_IMODE(self._target.stat().st_mode))
        self._target.unlink()


def _written(file: BinaryIO, blocks: Iterable[bytes], watched: Path | None) -> Iterator[bytes]:
    """Write and yield blocks, as long as the disk of ``watched`` has enough free space."""
    unwatched = 0
    for block in blocks:
        file.write(block)
        yield block
        unwatched += len(block)
        if watched is not None and unwatched >= FREE_CHECK_BYTES:
            unwatched = 0
            if shutil.disk_usage(watched).free < FREE_BYTES_MIN:
                reason = f"less than {FREE_BYTES_MIN // 1024**2:,} MiB of the disk are free, and the input goes on"
                raise OSError(errno.ENOSPC, reason)


@contextmanager
def _errors_of(option: str, path: str) -> Iterator[None]:
    """Turn an error of the system into a refusal that names the option."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{option} {path!r} cannot be written: {error.strerror}") from error


def _refuse_the_input(option: str, path: str, source: LineSource) -> None:
    if source.is_same_file(path):
        raise CommandError(f"{option} {path!r} is the input itself; name another file")


def _not_empty(option: str, path: str, remedy: str = "") -> CommandError:
    return CommandError(f"{option} {path!r} is not empty, an earlier run may need it; name another file{remedy}")


def _in_use(option: str, path: str, file: BinaryIO) -> CommandError:
    holder = _holder(file)
    who = "another process" if holder is None else f"process {holder}"
    return CommandError(f"{option} {path!r} is in use by {who}; name another file, or wait until that has ended")


def _is_locked(file: BinaryIO, *, is_shared: bool = False) -> bool:
    """Lock a file, or change its lock; False if another process holds it, True where locks are not supported."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file.fileno(), (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True


def _holder(file: BinaryIO) -> int | None:
    """Return the process that holds the lock of a file, on Linux; None if it is unknown."""
    status = os.fstat(file.fileno())
    with suppress(OSError, ValueError, IndexError, AttributeError):  # the last: no os.major
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # for example 1: FLOCK ADVISORY WRITE 4711 fe:00:2146370 0 EOF
            if fields[1] == "FLOCK" and fields[5] == place:
                return int(fields[4])
    return None


def _end_last_row(path: str, file: BinaryIO) -> None:
    """Add a newline if the last row has none; a file that cannot be read is assumed to be whole."""
    if not _size(file):
        return
    with suppress(PermissionError), Path(path).open("rb") as reader:
        reader.seek(-1, os.SEEK_END)
        if reader.read(1) != b"\n":
            file.write(b"\n")
            file.flush()


def _is_regular(file: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _is_filled(path: Path) -> bool:
    try:
        return bool(path.stat().st_size)
    except OSError:
        return False


def close_output(file: BinaryIO) -> None:
    """Close a file, whatever the system says: what could not be written was reported when that was tried."""
    with suppress(OSError):
        file.close()
