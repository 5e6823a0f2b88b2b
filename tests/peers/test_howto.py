"""The how-tos on sharing limits: their programs run, on a real server or in virtual time, and the rights suffice."""

import asyncio
import re
import socket
from pathlib import Path

import pytest
import redis

from ratelimited_executor import ExecutorManager
from ratelimited_executor.cli.operate.peers_command import PeersOptions, show_peers
from ratelimited_executor.cli.operate.slots_command import SlotsOptions, show_slots
from ratelimited_executor.insight import Hold
from ratelimited_executor.peers import RedisPeers
from ratelimited_executor.slots import OnLost
from ratelimited_executor.testing import run_virtual

from .servers import RedisServer

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = ["share-a-rate.md", "share-every-limit.md", "limit-how-many-at-once.md", "operate-shared-limits.md"]
TEXT = "".join((HOWTO / page).read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", TEXT, re.DOTALL | re.MULTILINE)
URL = "redis://localhost:6379"
RIGHTS = dict(re.findall(r"^ACL SETUSER ([\w-]+) (.*)$", TEXT, re.MULTILINE))


def run(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a program, and return what it printed."""
    exec(compile(code, str(HOWTO), "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


@pytest.mark.parametrize(("code", "output"), [block for block in BLOCKS if "RedisPeers" not in block[0]])
def test_program_without_redis_runs_in_virtual_time(
    code: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program of the page without Redis prints what the page shows."""
    monkeypatch.setattr(asyncio, "run", run_virtual)
    assert output == run(code, capsys)


@pytest.mark.real_time("a real server; the quarantine of a new group takes 1.8 s")
@pytest.mark.parametrize(("code", "output"), [block for block in BLOCKS if "RedisPeers" in block[0]])
def test_program_with_redis_runs(
    code: str, output: str, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program of the page with Redis prints what the page shows, on the server of the test."""
    assert output == run(code.replace(URL, redis_server.url), capsys)


@pytest.mark.real_time("a port at which nobody listens")
async def test_program_without_a_server_waits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Without a server a process starts nothing, and logs once the line that the page shows."""
    (told,) = re.findall(r"^fleet: (no answer from the server .*)\. \.\.\.(\).*)$", TEXT, re.MULTILINE)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"redis://127.0.0.1:{unused.getsockname()[1]}"
    async with ExecutorManager(peers=RedisPeers(url, "mail")) as manager:
        executor = manager.executor("outbox", rate="100/s", drain_timeout=0)
        handle = executor.submit(str)
        async with asyncio.timeout(60):
            while not caplog.messages:
                await asyncio.sleep(0.02)
        assert executor.explain(handle).hold is Hold.OUTAGE
    line = caplog.messages[0]
    assert [line] == [each for each in caplog.messages if each.startswith("fleet: ")]
    assert line.startswith(f"fleet: {told[0].replace(URL.removeprefix('redis://'), url.removeprefix('redis://'))}")
    assert line.endswith(told[1])


@pytest.mark.real_time("a real server; the quarantine of a new group takes 1.8 s")
async def test_rights_of_the_page_are_enough(redis_server: RedisServer) -> None:
    """The page's rights suffice for a rate, several limits and keys, to set another rate and leave; other groups are out of reach."""
    with redis_server.client() as client:
        for name, rights in RIGHTS.items():
            client.execute_command("ACL", "SETUSER", name, *rights.split())
        client.execute_command("ACL", "LOG", "RESET")
        try:
            peers = RedisPeers(redis_server.url_of("mailer", "secret"), "mail")
            async with ExecutorManager(peers=peers) as manager:
                executor = manager.executor("outbox", rate=1000)
                await executor.submit(str)
                limits = manager.executor("limits", rate="100/s, 1000/min", key_rate="2/s")
                await asyncio.gather(*(limits.submit(str, key=f"{number % 5}") for number in range(10)))
                limits.penalize(0.1, key="1")
                await limits.submit(str)
                assert limits.statistics().fleet.failures == 0
                executor.rate = 500
                await asyncio.sleep(0.6)
                await executor.submit(str)
                fleet = executor.statistics().fleet
                options = PeersOptions(url=redis_server.url_of("operator", "secret"), group="mail", as_json=True)
                assert 0 == await asyncio.to_thread(show_peers, options)
            assert fleet is not None
            assert fleet.state in {"active", "idle"}
            assert fleet.failures == 0
            refused = {entry["object"] for entry in client.acl_log()}
            assert refused <= {"client", "client|setinfo", "client|maint_notifications"}
            with (
                redis.Redis.from_url(redis_server.url_of("mailer", "secret")) as other,
                pytest.raises(redis.ResponseError),
            ):
                other.hset("{rle:other}:x:tickets", "run", "mine")
        finally:
            for name in RIGHTS:
                client.acl_deluser(name)
    assert {"mailer", "operator", "slots-mailer", "slots-operator"} == set(RIGHTS)


@pytest.mark.real_time("a real server; the quarantine of a new group takes a lease")
async def test_rights_for_slots_are_enough(redis_server: RedisServer) -> None:
    """The page's rights suffice to hold slots, be notified, set limits and inspect them."""
    with redis_server.client() as client:
        for name, rights in RIGHTS.items():
            client.execute_command("ACL", "SETUSER", name, *rights.split())
        client.execute_command("ACL", "LOG", "RESET")
        try:
            peers = RedisPeers(redis_server.url_of("slots-mailer", "secret"), "mail", lease=0.5, clock_difference=0)
            async with ExecutorManager(peers=peers) as manager:
                gpu, licence = manager.slots("gpu", limit=1), manager.slots("licence", limit=1)

                async def use() -> None:
                    async with gpu.hold(also=[licence], on_lost=OnLost.FINISH):
                        await asyncio.sleep(0.3)

                await asyncio.gather(use(), use())
                gpu.limit = 2
                options = SlotsOptions(url=redis_server.url_of("slots-operator", "secret"), group="mail", as_json=True)
                assert 0 == await asyncio.to_thread(show_slots, options, confirm=lambda _: False)
            refused = {entry["object"] for entry in client.acl_log()}
            assert refused <= {"client", "client|setinfo", "client|maint_notifications"}
        finally:
            for name in RIGHTS:
                client.acl_deluser(name)
