"""The demo in real processes: it runs, and its server never outlives it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from ratelimited_executor.cli.demo.server_process import serving
from tests.helpers import until

# Far longer than any step takes: a test that waits so long has found a hang.
PATIENCE_S = 60


def is_alive(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def child_of(pid: int) -> int:
    """Return the only child process of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


linux = pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")


async def test_serving_gives_a_server_and_takes_it_away() -> None:
    """Inside the block the server answers on the loopback address, and afterwards it is gone."""
    async with aiohttp.ClientSession() as session:
        async with serving() as url, session.post(f"{url}/begin/x") as answer:
            assert (204, True) == (answer.status, url.startswith("http://127.0.0.1:"))
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post(f"{url}/begin/x")


@linux
async def test_serving_ends_its_server_when_the_block_fails() -> None:
    """If the block fails, no process is left."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    with pytest.raises(ZeroDivisionError):
        async with serving():
            assert before != children.read_text()
            raise ZeroDivisionError
    assert before == children.read_text()


@linux
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_demo_that_is_ended_takes_its_server_along(number: signal.Signals, status: int) -> None:
    """However the demo is ended, by Ctrl-C, SIGTERM or SIGKILL, its server ends too."""
    command = [sys.executable, "-m", "ratelimited_executor", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert "RateLimitedExecutor, 200 a second\n" == demo.stdout.readline()
        server = child_of(demo.pid)
        assert is_alive(server)
        demo.send_signal(number)
        _, said = demo.communicate(timeout=PATIENCE_S)
        until(lambda: not is_alive(server))
    assert (status, "") == (demo.returncode, said)


@pytest.mark.real_time  # the load takes 4 s by its nature; a slow machine may spoil the rate, so only what must hold is asserted
def test_a_short_demo_delivers_everything_once() -> None:
    """Both halves arrive completely, and call_later's busiest second is far above the executor's."""
    command = [sys.executable, "-m", "ratelimited_executor", "demo", "--seconds", "4", "--rate", "100", "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    told = [line for line in ended.stderr.splitlines() if "the process did not get the CPU" not in line]
    assert (True, []) == (ended.returncode in (0, 1), told), ended.stderr
    assert 2 == ended.stdout.count("all 220 arrived once")
    held, exceeded = (
        int((re.search(rf"{name}: MORE than 100 starts in a second: (\d+);", ended.stdout) or (0, 0))[1])
        for name in ("executor", "call_later")
    )
    assert held <= 103 < 130 < exceeded
    said = ["executor: never more than 100 starts in any second" in ended.stdout, ended.returncode == 0]
    assert said in ([True, True], [False, False])
