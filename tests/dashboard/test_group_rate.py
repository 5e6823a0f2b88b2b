"""Executors of two processes that share a rate through Redis: what the page of each can do with the group."""

from __future__ import annotations

import asyncio
import re
import sys

import httpx
import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

from ratelimited_executor import ExecutorManager
from ratelimited_executor.dashboard import dashboard
from ratelimited_executor.peers import RedisPeers

pytestmark = pytest.mark.real_time("a real server")

ELSEWHERE = "elsewhere, process 1"


class Process:
    """An executor of a group with its page, as in a process of its own."""

    def __init__(self, url, **options):
        self.manager = ExecutorManager(peers=RedisPeers(url, group="team"))
        self.executor = self.manager.executor("mail", drain_timeout=0, **options)
        app = dashboard(self.manager, authorize=lambda request: True)
        self.web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")

    async def __aenter__(self):
        await self.manager.__aenter__()
        return self

    async def __aexit__(self, *exception):
        await self.web.aclose()
        await self.manager.__aexit__(*exception)

    async def shows(self, *texts):
        """Wait until the page has all texts, for 20 s at most."""
        for _ in range(200):
            page = (await self.web.get("/executor?name=mail")).text
            if all(text in page for text in texts):
                return page
            await asyncio.sleep(0.1)
        pytest.fail(f"not within 20 seconds: {texts} in {page}")

    async def post(self, action, **form):
        return await self.web.post(
            "/change", data={"name": "mail", "action": action, **form}, headers={"Sec-Fetch-Site": "same-origin"}
        )


async def test_group_is_paused_and_resumed_by_any_of_its_processes(redis_server, caplog):
    """A pause of the group stops all its processes, and any of them restores the former rate, idle ones included."""
    caplog.set_level("INFO", "ratelimited_executor.dashboard")
    async with Process(redis_server.url, rate=20) as one, Process(redis_server.url, rate=20) as two:
        one.executor.schedule_many(str, range(100_000))
        for each in (one, two):  # a process that joins later would put its own rate in force
            await each.shows(">Pause group<")
        assert (await one.post("pause-group")).status_code == 303
        for each in (one, two):
            await each.shows("group paused", "Resume group at 20/s", "Pause this process")
        counts = [each.executor.statistics().started for each in (one, two)]
        await asyncio.sleep(0.6)  # longer than any permit may be used
        assert [each.executor.statistics().started for each in (one, two)] == counts
        assert (await two.post("resume-group", process=ELSEWHERE)).status_code == 303
        for each in (one, two):
            await each.shows(">Pause group<")
        assert (await one.post("resume-group")).status_code == 409
        while one.executor.statistics().started == counts[0]:
            await asyncio.sleep(0.05)
        lines = [record.getMessage() for record in caplog.records if record.name.endswith(".dashboard")]
        assert [re.sub(", by .*", "", line) for line in lines] == [
            "live page: mail: rate of the group: 20/s -> 0/s",
            "live page: mail: rate of the group: 0/s -> 20/s",
        ]


async def test_idle_process_shows_the_rate_of_the_group(redis_server, caplog):
    """The page of a process with nothing to start shows the rate that another process has set, and keeps it in a resume."""
    caplog.set_level("CRITICAL", "ratelimited_executor")
    async with Process(redis_server.url, rate=20) as one, Process(redis_server.url, rate=20) as idle:
        one.executor.schedule_many(str, range(100_000))
        await one.shows(">Pause group<")
        await idle.executor.submit(str)
        await idle.shows(">Pause group<")
        await asyncio.sleep(0.6)  # it has nothing to ask for, and calls no more
        assert (await one.post("set-rate", rate="2/3s", process=ELSEWHERE)).status_code == 303
        await idle.shows('name="rate" value="0.666667/s"')
        await idle.post("pause-group")
        await one.shows("Resume group at 2/3s")
        await idle.shows("Resume group at 0.666667/s")


async def test_pause_of_a_process_is_of_that_process_alone(redis_server):
    """The page of one process cannot pause another; where several limits are shared, no pause of the group is offered."""
    async with Process(redis_server.url, rate=("20/s", "600/min")) as one:
        page = await one.shows("Pause this process")
        assert ("Pause group" in page, "leaves the permits to the others of the group" in page) == (False, True)
        assert (await one.post("pause-group")).status_code == 409
        assert (await one.post("pause", process=ELSEWHERE)).status_code == 409
        assert not one.executor.is_paused
        await one.post("pause")
        await one.shows("Resume this process")
        assert one.executor.is_paused


async def test_page_of_a_process_tells_its_limits_from_those_of_the_group(redis_server):
    """Limits of the group are in its own table, with what the process holds; what was not granted is explained."""
    async with Process(redis_server.url, rate=2) as one:
        one.executor.schedule_many(str, range(100_000))
        page = await one.shows("Limits of the group", "Not granted")
        assert "other than the rate" not in page
        assert re.search(r"requested while none was free", page)
        assert re.search(r'permits/rate</th>.*data-label="Held here">-?\d', page)
