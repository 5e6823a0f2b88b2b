"""The example service delivers real webhooks under its rate, and ends within bounded time after a signal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from ratelimited_executor.testing import audit

from ..serving import Serving, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_service.py"
# On a busy machine a delivery may reach the receiver this much later than it was started.
TRANSIT_SECONDS = 2
PATIENCE_SECONDS = 60  # for something that takes a second on an idle machine

pytestmark = pytest.mark.real_time("a real server process and a real HTTP client")


@contextmanager
def running_service(tmp_path: Path, *arguments: str) -> Iterator[Serving]:
    """Run the example as its reader would."""
    with serving([str(EXAMPLE), "--port", "0", *arguments], tmp_path / "log") as service:
        yield service


class Receiver:
    """A real HTTP server that notes the time and the payload of each request."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.payloads: list[dict[str, int]] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            self.arrivals.append(time.monotonic())
            self.payloads.append(json.loads(body))
            status = b"500 Oops" if b"/broken" in head.split(b"\r\n")[0] else b"204 No Content"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def running_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    async with server:
        receiver.url = "http://127.0.0.1:{}/hook".format(server.sockets[0].getsockname()[1])
        yield receiver


async def poll(client: httpx.AsyncClient, field: str, value: int) -> dict[str, object]:
    """Request the statistics until one of them has reached a value."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            statistics = (await client.get("/statistics")).json()
            if statistics[field] >= value:
                return statistics
            await asyncio.sleep(0.05)


async def test_deliveries_arrive_at_the_rate_the_most_important_first(tmp_path: Path) -> None:
    """Of six seconds of deliveries at once, an urgent one that comes last overtakes some, and all keep the rate."""
    with running_service(tmp_path, "--rate", "10/s") as service:
        async with (
            running_receiver() as receiver,
            httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_SECONDS) as client,
        ):

            async def ask(number: int, priority: int = 0) -> None:
                delivery = {"url": receiver.url, "payload": {"number": number}, "priority": priority}
                response = await client.post("/deliveries", json=delivery)
                assert response.status_code == 202, response.text

            await asyncio.gather(*(ask(number) for number in range(59)))
            await ask(59, priority=1)
            statistics = await poll(client, "done", 60)

    numbers = [payload["number"] for payload in receiver.payloads]
    assert statistics["accepted"] == statistics["started"] == 60
    assert statistics["rate"] == "10/s"
    assert sorted(numbers) == list(range(60))
    assert numbers[-1] != 59
    assert audit(receiver.arrivals, 10, slack=TRANSIT_SECONDS).ok


async def test_a_delay_is_kept_and_a_refusal_is_counted(tmp_path: Path) -> None:
    """A delivery is not early, and an error of its receiver makes only that delivery fail."""
    with running_service(tmp_path, "--rate", "100/s") as service:
        async with (
            running_receiver() as receiver,
            httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_SECONDS) as client,
        ):
            asked = time.monotonic()
            await client.post("/deliveries", json={"url": receiver.url, "payload": {}, "delay": 0.5})
            await client.post("/deliveries", json={"url": f"{receiver.url}/broken", "payload": {}})
            await poll(client, "done", 1)
            statistics = await poll(client, "failed", 1)

    assert statistics["done"] == statistics["failed"] == 1
    assert receiver.arrivals[-1] - asked >= 0.5


async def test_bad_deliveries_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """A delivery without an address, or with a bad delay or priority, gets status 422 and is not accepted."""
    with running_service(tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
            good = {"url": "http://127.0.0.1:9/", "payload": {}}
            for bad in ({"payload": {}}, {**good, "delay": -1}, {**good, "delay": 1e9}, {**good, "priority": "high"}):
                response = await client.post("/deliveries", json=bad)
                assert response.status_code == 422, response.text
            assert (await client.get("/statistics")).json()["accepted"] == 0


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM ends a Windows process at once")
async def test_a_signal_drains_what_is_due_and_cancels_the_rest_in_bounded_time(tmp_path: Path) -> None:
    """A delivery due soon is sent; one due in an hour is cancelled after the drain time-out, with a warning."""
    with running_service(tmp_path, "--rate", "100/s", "--drain-timeout", "3") as service:
        async with running_receiver() as receiver:
            async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
                await client.post("/deliveries", json={"url": receiver.url, "payload": {"number": 1}, "delay": 0.5})
                await client.post("/deliveries", json={"url": receiver.url, "payload": {"number": 2}, "delay": 3600})
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(service.process.wait, PATIENCE_SECONDS)
            took = time.monotonic() - began

        assert [{"number": 1}] == receiver.payloads
        assert 2.9 < took < 30
        assert "webhooks: closed with 1 waiting and 0 running task(s) cancelled" in service.log.read_text()
