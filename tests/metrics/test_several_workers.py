"""The service of the how-to with two real workers of uvicorn: each has its page, and the pages together have all tasks.

Real processes and real time; only counts are asserted.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from ratelimited_executor import ExecutorManager, Rate
from ratelimited_executor.metrics import instrument
from ratelimited_executor.peers import FilePeers

from ..helpers import until
from ..peers.processes import take_port
from ..serving import serving

pytestmark = pytest.mark.real_time("processes of a web server, and their pages; files that executors share")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "metrics.md"
PROGRAM = re.search(r"^```python\n(# service\.py\n.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
SECONDS = 60  # until two processes have ended: 1 s on an idle machine
COUNT = 40
PORT_COUNT = 8  # of the program
PREFIX = "ratelimited_executor_"


@contextmanager
def served(folder: Path, first: int, log: Path) -> Iterator[str]:
    """Run the program as the page says, and yield its address; at the end none of its processes is left."""
    assert PROGRAM is not None
    program = PROGRAM[1].replace("range(9464, 9472)", f"range({first}, {first + PORT_COUNT})")
    assert program != PROGRAM[1]
    (folder / "service.py").write_text(program, encoding="utf-8")
    command = ["-m", "uvicorn", "service:app", "--port", "0", "--workers", "2"]
    with serving(command, log, folder=folder, variables={"PYTHONPATH": str(ROOT)}) as running:
        yield running.url
        running.process.terminate()
        assert running.process.wait(SECONDS) in (0, -signal.SIGTERM), log.read_text()


def scrape(port: int) -> dict[str, float] | None:
    """Return the sums of a worker's samples over all its executors, by name; None if there is no page."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    except httpx.TransportError:
        return None
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                name = sample.name.removeprefix(PREFIX)
                found[name] = found.get(name, 0.0) + sample.value
    return found


async def test_rate_is_that_of_the_group(tmp_path: Path) -> None:
    """A process whose group has another rate than its own reports that of the group."""
    reader, peers = InMemoryMetricReader(), [FilePeers(tmp_path / "limits") for _ in range(2)]

    def rate() -> float:
        (resource,) = reader.get_metrics_data().resource_metrics
        metrics = {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
        (point,) = metrics["ratelimited_executor.rate"].data.data_points
        return point.value

    async with ExecutorManager(peers=peers[0]) as first, ExecutorManager(peers=peers[1]) as second:
        setter, other = (manager.executor("shop", rate="50/s") for manager in (first, second))
        with instrument(second, meter_provider=MeterProvider([reader], shutdown_on_exit=False)):
            await asyncio.gather(setter.submit(str), other.submit(str))
            assert rate() == 50
            setter.rate = "5/s"
            await setter.submit(str)
            async with asyncio.timeout(30):
                while rate() != 5:
                    await other.submit(str)
            assert other.rate == Rate(50)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="its processes are not ended by signals")
def test_pages_of_all_workers_add_up(tmp_path: Path) -> None:
    """The pages of the workers add up; the worker that replaces a killed one takes its port, and counts from zero."""
    first, log = take_port(PORT_COUNT), tmp_path / "log"
    ports = (first, first + 1)
    with served(tmp_path, first, log) as url:
        until(lambda: all(scrape(port) is not None for port in ports))
        assert scrape(first + 2) is None
        asked = 0

        def both_have_work() -> bool:
            nonlocal asked
            for _ in range(COUNT):
                assert httpx.post(f"{url}/mail", timeout=30).status_code == 202  # by whichever worker accepts it
            asked += COUNT
            return all((scrape(port) or {}).get("accepted_tasks_total") for port in ports)

        until(both_have_work)
        until(lambda: sum(scrape(port)["ended_tasks_total"] for port in ports) == asked)
        pages = [scrape(port) for port in ports]
        for name in ("accepted_tasks_total", "started_tasks_total", "task_duration_seconds_count"):
            assert sum(page[name] for page in pages) == asked, name
        assert [50.0, 50.0] == [page["rate_per_second"] for page in pages]

        before = set(re.findall(r"Started server process \[(\d+)\]", log.read_text()))
        os.kill(int(min(before)), signal.SIGKILL)
        until(lambda: len(set(re.findall(r"Started server process \[(\d+)\]", log.read_text()))) == 3)
        until(lambda: all(scrape(port) is not None for port in ports))
        after = [scrape(port).get("accepted_tasks_total", 0.0) for port in ports]
        assert scrape(first + 2) is None
        gone = [index for index in (0, 1) if after[index] == 0]
        assert 1 == len(gone)
        (kept,) = {0, 1} - set(gone)
        assert pages[kept]["accepted_tasks_total"] == after[kept]
