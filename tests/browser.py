"""Find or install a real browser, Chromium, and start it."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """Return the path of a real Chromium, which is installed if there is none and the machine permits it."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        with (Path(tempfile.gettempdir()) / "ratelimited-executor-chromium.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of the workers installs it, and the others find it
            found = shutil.which("chromium") or _install_chromium()
    return found


def _install_chromium() -> str:
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("there is no Chromium on PATH, and it can be installed as root with apt-get only")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    output = ""
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        run = subprocess.run(
            ["apt-get", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        output = run.stdout
    found = shutil.which("chromium")
    if found is None:
        pytest.skip(f"there is no Chromium on PATH, and apt-get did not install it: {output[-300:]}")
    return found


def until(page, expression):
    """Wait until an expression is true; it is evaluated from outside, since the page's own rules forbid eval inside."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"not within 10 seconds: {expression}")
