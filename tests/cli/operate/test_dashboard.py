"""The command ``dashboard``: the page of groups on a real server, in a process of its own and within this one."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
import redis.asyncio
from click.testing import CliRunner

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

from ratelimited_executor import ExecutorManager
from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.operate.dashboard_command import DashboardOptions, Groups
from ratelimited_executor.dashboard.group import make_group_app
from ratelimited_executor.peers import RedisPeers

from ...peers.group_keys import share

pytestmark = pytest.mark.real_time("a real server")


def text_of(page: httpx.Response) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text))


def client_of(groups: Groups) -> httpx.AsyncClient:
    app = make_group_app(groups=groups.names, read=groups.read, title="Groups", hosts=["service"])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


async def wait_for(client: httpx.AsyncClient, path: str, *texts: str) -> httpx.Response:
    """Request a page until it has all texts, for 20 s at most."""
    for _ in range(400):
        page = await client.get(path)
        if all(text in text_of(page) for text in texts):
            return page
        await asyncio.sleep(0.05)
    pytest.fail(f"not within 20 seconds: {texts} in {text_of(page)}")


async def test_page_shows_peers_limits_and_slots_of_a_group(redis_server):
    """The page has all that processes of the group have stored in Redis, with names escaped."""
    evil = "<script>alert(1)</script>"
    with Groups(DashboardOptions(url=redis_server.url)) as groups:
        async with client_of(groups) as web:
            assert "No groups with this prefix" in (await web.get("/")).text
            async with (
                ExecutorManager(peers=RedisPeers(redis_server.url, group=evil)) as one,
                ExecutorManager(peers=RedisPeers(redis_server.url, group=evil)) as two,
            ):
                paced = [manager.executor("mail", rate=40, drain_timeout=0) for manager in (one, two)]
                shared = one.executor("llm", rate=(5, "100/min"), drain_timeout=0)
                for executor in (*paced, shared):
                    executor.schedule_many(str, range(10_000))
                async with one.slots(evil, limit=2).hold(name=evil):
                    listed = await wait_for(web, "/", "&lt;script&gt;")
                    assert "<script>alert" not in listed.text
                    page = await wait_for(
                        web, f"/group?name={evil}", "2 active of 2 peers", "mail active", "40/s", "permits/rate", "permits/window/60", "100/min", "Held by",
                    )  # fmt: skip
                    assert "<script>alert" not in page.text
                    assert page.text.count('<tr id="peer-') == 3
            gone = await web.get("/group?name=nobody")
            assert (gone.status_code, "no group" in gone.text) == (404, True)


async def test_page_goes_on_when_redis_comes_back(redis_server):
    """While Redis is down the page has the error, and once it is back the page works again."""
    with Groups(DashboardOptions(url=redis_server.url)) as groups:
        async with client_of(groups) as web:
            assert (await web.get("/")).status_code == 200
            redis_server.kill()
            for _ in range(400):
                page = await web.get("/")
                if page.status_code != 200:
                    break
                await asyncio.sleep(0.05)
            assert (page.status_code, "Redis cannot be read" in page.text) == (503, True)
            redis_server.start()
            await wait_for(web, "/", "No groups with this prefix")


async def test_redis_that_hangs_holds_up_nobody_twice(redis_server):
    """Requests that arrive while Redis hangs share one attempt, and all get its error."""
    with Groups(DashboardOptions(url=redis_server.url)) as groups:
        async with client_of(groups) as web:
            async with redis.asyncio.Redis.from_url(redis_server.url) as client:
                await client.client_pause(4_000)
            pages = await asyncio.gather(*(web.get("/", timeout=60) for _ in range(20)))
            assert {page.status_code for page in pages} == {503}  # asked one by one, the last would find it awake
            await wait_for(web, "/", "No groups with this prefix")


async def test_group_that_has_gone_is_forgotten(redis_server):
    """The cached data of a group are dropped when the group no longer exists."""
    with Groups(DashboardOptions(url=redis_server.url)) as groups:
        async with ExecutorManager(peers=RedisPeers(redis_server.url, group="short")) as manager:
            manager.executor("mail", rate=40, drain_timeout=0).schedule_many(str, range(1000))
            async with client_of(groups) as web:
                await wait_for(web, "/", "short")
                assert (await web.get("/group?name=short")).status_code == 200
                assert "short" in groups._kept
                async with redis.asyncio.Redis.from_url(redis_server.url) as client:
                    await manager.executors["mail"].aclose()
                    await client.flushall()
                await wait_for(web, "/", "No groups with this prefix")
                assert list(groups._kept) == [None]


async def test_group_is_recorded_while_nobody_looks(redis_server):
    """Limits and counts of peers are recorded while nobody looks; during an outage the page has the earlier points."""
    with Groups(DashboardOptions(url=redis_server.url)) as groups:
        app = make_group_app(groups=groups.names, read=groups.read, title="Groups", hosts=["service"])
        recorder = app.state.recorder
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as web:
            async with ExecutorManager(peers=RedisPeers(redis_server.url, group="team")) as manager:
                manager.executor("mail", rate=40, drain_timeout=0).schedule_many(str, range(10_000))
                manager.executor("llm", rate=(5, "100/min"), drain_timeout=0).schedule_many(str, range(10_000))
                await wait_for(web, "/group?name=team", "mail active", "100/min")
                await recorder.take()
            recorded = recorder._recorded["team"]
            assert set(recorded) == {
                ("limit", "mail", "permits/rate"), ("peers", "mail"), ("peers", "llm"),
                ("limit", "llm", "permits/rate"), ("limit", "llm", "permits/window/60"),
            }  # fmt: skip
            point = recorded["limit", "mail", "permits/rate"].last()
            assert (point.limit, point.used > 0, recorded["peers", "mail"].last().active) == (40, True, 1)
            redis_server.kill()
            groups._kept.clear()
            await recorder.take()
            page = await web.get("/group?name=team")
            assert (page.status_code, "Redis cannot be read" in page.text) == (503, True)
            assert page.text.count("<svg") > 3
            assert {len(history) for history in recorded.values()} == {1}
            redis_server.start()


async def test_poll_costs_redis_few_calls(redis_server):
    """A round takes two TIMEs, two HGETALLs and one ZRANGE for each group, and no scan of the keys."""
    with Groups(DashboardOptions(url=redis_server.url)) as groups:
        recorder = make_group_app(groups=groups.names, read=groups.read, title="Groups", hosts=[]).state.recorder
        with redis_server.client() as client:
            for number in range(20):
                share(client, group=f"g{number}")
            await recorder.take()
            assert len(recorder._recorded) == 20
            for name in [each for each in groups._kept if each is not None]:
                del groups._kept[name]  # as after a second, when they expire
            client.config_resetstat()
            await recorder.take()
            calls = {name[8:]: each["calls"] for name, each in client.info("commandstats").items()}
        assert calls["time"] == 40
        assert calls["hgetall"] == 20 * 2
        assert calls["zrange"] == 20
        assert "scan" not in calls


def test_process_serves_until_it_is_told_to_stop(redis_server):
    """The process names its port, and ends at a signal with its status, even while a connection is open."""
    for sent, expected in ((signal.SIGTERM, (-signal.SIGTERM,)), (signal.SIGINT, (130,))):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ratelimited_executor", "dashboard", redis_server.url),
                *("--port", "0", "--allow-host", "Pages.Example"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        with process, httpx.Client() as web:
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())[0]
            assert "No groups with this prefix" in web.get(address).text
            assert web.get(address, headers={"Host": "pages.example"}).status_code == 200
            evil = web.get(address, headers={"Host": "evil.example"})
            assert (evil.status_code, "'evil.example'" in evil.text) == (421, True)
            assert evil.headers["X-Frame-Options"] == "DENY"
            process.send_signal(sent)
            assert process.wait(60) in expected
            assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "REDIS_URL cannot be used"),
        ("redis://127.0.0.1:1", "Redis cannot be read"),
    ],
)
def test_bad_url_is_an_error_of_usage(url, message):
    """A bad URL or an unreachable server has exit status 2, before anything listens."""
    result = CliRunner().invoke(cli, ["dashboard", url])
    assert result.exit_code == 2
    assert message in result.stderr


def test_address_that_is_taken_is_an_error_of_usage(redis_server):
    """The message names the host and the port that are taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(cli, ["dashboard", redis_server.url, "--port", port])
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in result.stderr
    assert "--port 0 takes any free port" in result.stderr


@pytest.mark.parametrize("name", ["http://pages.example/", "*", "*.pages.example", "a b"])
def test_host_that_is_no_name_is_an_error_of_usage(redis_server, name):
    """A URL or a pattern in place of a name is refused before anything listens."""
    result = CliRunner().invoke(cli, ["dashboard", redis_server.url, "--allow-host", name])
    assert result.exit_code == 2
    assert f"must be one name or address such as pages.example, got {name!r}" in result.stderr


def test_groups_of_a_server_that_is_away_are_an_error():
    """Constructing the groups of an unreachable server raises the error of the command."""
    with pytest.raises(CommandError, match="Redis cannot be read"):
        Groups(DashboardOptions(url="redis://127.0.0.1:1"))
