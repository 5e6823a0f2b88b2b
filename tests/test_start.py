"""A plain start imports what it needs and nothing else, so that every program pays only for what it uses.

A start is the first executor and its first task. What few programs need is imported on use (``PLC0415`` with the reason).
"""

import os
import subprocess
import sys

import pytest

ROOT = "ratelimited_executor"
# The modules of this package by their folder, beside the packages themselves and the extension.
MODULES = {
    "_core": "durations escapes fixed lazy_heap",
    "_core.keys": "keys",
    "_core.limits": "combined effects exact_paced limit paced quota token_bucket window",
    "_core.order": "fair ordering ready_fair ready_heap ready_keyed",
    "_core.permits": "adaptive exact permits phases rates strictness",
    "_core.queue": "dropping expiry looking queue records wall",
    "_core.repeat": "repeating retries",
    "_kernel": (
        "admission batches buckets calendar choice chores contracts due_order fields intervals pacing queue "
        "ready records runs sizes states stretch timeline"
    ),
    "_runtime": "arguments log",
    "_runtime.faces": "base bulk checks cycles limiter loop repeating tasks",
    "_runtime.insight": "observing",
    "_runtime.life": "assembly closing controls engine executor manager settings",
    "_runtime.limits": "adapting backlog keys limits orders plan policy quota room slots",
    "_runtime.repeat": "repeating retrying schedules",
    "_runtime.task": (
        "accounts batch_items call_site callbacks contexts coroutines deferred failures handles intake launch pending "
        "permit starting"
    ),
    "_runtime.threads": "futures",
    "_runtime.time": "clock garbage hooks runner wakers",
    "": "abc exceptions",
    "peers": "static",
}
# Modules of the standard library beside those that asyncio imports, by the names of their packages.
STANDARD = (
    "__future__ _bisect _blake2 _ctypes _datetime _decimal _hashlib bisect copy ctypes dataclasses datetime decimal fractions "
    "gc hashlib numbers zlib annotationlib sysconfig _struct _typing array struct typing"  # sysconfig is of ctypes from 3.14 on; from 3.15 on, asyncio does without the others
)
EXTENSION = {f"{ROOT}._kernel._compiled", "cython_runtime"}  # and Cython's own, named by its version
PROGRAM = """
import asyncio, sys

asyncio.run(asyncio.sleep(0))
before = set(sys.modules)

from ratelimited_executor import RateLimitedExecutor

async def call():
    return 1

async def main():
    async with RateLimitedExecutor("x", rate=1000) as executor:
        assert await executor.submit(call) == 1

asyncio.run(main())
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("is_pure", [False, True], ids=["kernel in use", "pure kernel"])
def test_start_imports_these_modules(is_pure: bool) -> None:
    """The first executor and its first task import these modules of the package, and these of the standard library."""
    environment = {**os.environ, "RATELIMITED_EXECUTOR_PURE": "1"} if is_pure else None
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    loaded = {name for name in run.stdout.split() if not name.startswith("_cython_")} - EXTENSION
    own = {name for name in loaded if name.split(".")[0] == ROOT}

    wanted = {
        ".".join(filter(None, (ROOT, folder, name))) for folder, names in MODULES.items() for name in names.split()
    }
    assert {package for name in wanted for package in _with_packages(name)} == own
    assert set() == {name.split(".")[0] for name in loaded - own} - set(STANDARD.split())


def _with_packages(name: str) -> list[str]:
    """Return the name of a module and those of its packages."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


THREADS = """
import asyncio, sys

from ratelimited_executor import RateLimitedExecutor

async def main():
    async with RateLimitedExecutor("x") as executor:
        assert "anyio.to_thread" not in sys.modules
        handle = executor.submit(int, in_thread=True)
        before = set(sys.modules)
        await handle
        print(*(name for name in set(sys.modules) - before if name.startswith("anyio.") and name != "anyio.to_thread"))

asyncio.run(main())
"""


def test_what_threads_need_is_loaded_when_the_first_call_is_scheduled() -> None:
    """Loading anyio's backend takes 20 ms, which the start of a task would add to the lateness of all others."""
    run = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert not run.stdout.split()
