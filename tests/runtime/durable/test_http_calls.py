"""Durable calls of URLs, on a real server of aiohttp on loopback."""

import asyncio
import contextlib
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore, http_function

aiohttp = pytest.importorskip("aiohttp", reason="the extra http is not installed")
from aiohttp import web  # noqa: E402

pytestmark = pytest.mark.real_time("requests pass through sockets")
QUICK = Retry(3, base=0.001, cap=0.001)


class Receiver:
    """A service that is called.

    Attributes:
        answers: what it answers, in turn: a status, or a status and headers; 204 when there are no more.
        got: the requests: method, path, headers, body.
    """

    def __init__(self):
        self.answers = []
        self.got = []
        self.place = ""
        self.end = asyncio.Event()

    async def receive(self, request):
        self.got.append((request.method, request.path_qs, request.headers, await request.text()))
        answer = self.answers.pop(0) if self.answers else 204
        if answer is None:
            request.transport.close()
            await self.end.wait()
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        if status == "slow":
            await self.end.wait()
        return web.Response(status=status, headers=headers)


@pytest.fixture
async def receiver():
    """A service on loopback."""
    made = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.receive)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.place = "127.0.0.1:%d" % site._server.sockets[0].getsockname()[1]
    yield made
    made.end.set()
    await runner.cleanup()


@contextlib.asynccontextmanager
async def running(tasks):
    """Run tasks, and give a function that waits until none is left but dead letters."""
    async with RateLimitedExecutor("calls") as executor, tasks.running(executor) as runner:

        async def ended():
            async with asyncio.timeout(30):
                while sum(count for state, count in (await tasks.counts()).items() if state is not DurableState.DEAD):
                    await asyncio.sleep(0.002)
            return runner.statistics()

        yield ended


async def test_request_is_sent_with_its_id_and_attempt(receiver):
    """A call sends method, URL, headers and body, with the id of the task and the number of the attempt; 2xx ends it."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=[receiver.place], retry=QUICK)
    receiver.answers = [503]
    async with running(tasks) as ended:
        url = f"http://{receiver.place}/hooks?a=1"
        await call.put("POST", url, json={"order": 7}, headers={"X-Topic": "paid"}, id="order 7/ü")
        assert ((await ended()).done, (await ended()).retried) == (1, 1)
        await call.put("PUT", url, body="plain", headers={"idempotency-key": "mine"})
        await call.put("GET", url)
        await ended()
        await call("DELETE", url)  # itself, here and now
    (first, again, put, get, direct) = receiver.got
    assert (again[0], again[1], again[3]) == ("POST", "/hooks?a=1", '{"order": 7}')
    sent = [each[2] for each in receiver.got]
    assert [each.get("Idempotency-Key") for each in sent[:3]] == ["order%207/%C3%BC"] * 2 + ["mine"]
    assert [each.get("Task-Attempt") for each in sent] == ["1", "2", "1", "1", None]
    assert (sent[0]["X-Topic"], sent[0]["Content-Type"]) == ("paid", "application/json")
    assert (put[3], get[3], direct[0]) == ("plain", "", "DELETE")


@pytest.mark.parametrize("answer", [408, 425, 429, 500, 503, 599, None, ("slow", {})])
async def test_temporary_failure_is_retried(receiver, answer):
    """These statuses, a lost connection and a timeout are retried, until the attempts end; the error says what it was."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=[receiver.place], retry=Retry(2, base=0.001, cap=0.001))
    receiver.answers = [answer] * 3
    async with running(tasks) as ended:
        await call.put("POST", f"http://{receiver.place}/x?token=abc", timeout=0.05 if answer == ("slow", {}) else 20)
        assert ((await ended()).retried, (await ended()).dead) == (1, 1)
        [letter] = await tasks.rows(DurableState.DEAD)
        why = f"status {answer}" if isinstance(answer, int) else "no response: "
        assert f"HTTPCallLaterError: POST http://{receiver.place}/x?token=***: {why}" in letter.error_line


@pytest.mark.parametrize(
    ("answer", "hint"), [(404, ""), (400, ""), ((302, {"Location": "/there"}), "redirects are not followed")]
)
async def test_refused_call_is_not_retried(receiver, answer, hint):
    """Any other status, a redirect too, ends the task at its first attempt."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=[receiver.place])
    receiver.answers = [answer]
    async with running(tasks) as ended:
        await call.put("POST", f"http://{receiver.place}/x")
        assert ((await ended()).retried, (await ended()).dead) == (0, 1)
        [letter] = await tasks.rows(DurableState.DEAD)
        assert "HTTPCallError" in letter.error_line
        assert hint in letter.error_line
        assert len(receiver.got) == 1


@pytest.mark.parametrize(("after", "least"), [("100", 100), ("99999999999", 86_400)])
async def test_retry_after_is_kept(receiver, after, least):
    """The next attempt is due after Retry-After, of which a day counts at most."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=[receiver.place], retry=QUICK)
    receiver.answers = [(429, {"Retry-After": after})]
    async with RateLimitedExecutor("calls") as executor, tasks.running(executor) as runner:
        ref = await call.put("GET", f"http://{receiver.place}/")
        while runner.statistics().retried == 0 or await ref.state() is not DurableState.SCHEDULED:
            await asyncio.sleep(0.002)
        row = await ref.row()
        assert least - 5 <= (row.due_us - row.put_us) / 1e6 <= least + 60


async def test_connection_that_fails_is_retried():
    """A host that nobody listens at is called again; the cause is in the error."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=None, retry=QUICK)
    async with running(tasks) as ended:
        await call.put("GET", "http://127.0.0.1:1/")
        assert ((await ended()).retried, (await ended()).dead) == (2, 1)
        [letter] = await tasks.rows(DurableState.DEAD)
        assert "no response: ClientConnectorError: Cannot connect to host 127.0.0.1:1" in letter.error_line


async def test_session_is_opened_once_and_closed_with_the_tasks(receiver):
    """All calls share a session, which the first one opens; leaving the tasks closes it, and the next use opens another."""
    made = []

    def make():
        made.append(aiohttp.ClientSession(headers={"Authorization": "Bearer s3cret"}, raise_for_status=True))
        return made[-1]

    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=[receiver.place], session=make)
    url = f"http://{receiver.place}/"
    for number in (1, 2):
        async with running(tasks) as ended:
            for _ in range(3):
                await call.put("GET", url)
            await ended()
            assert not made[-1].closed
        assert (len(made), made[-1].closed) == (number, True)
    assert {each[2]["Authorization"] for each in receiver.got} == {"Bearer s3cret"}
    with pytest.raises(RuntimeError, match="the tasks are not open"):
        await call("GET", url)


URL = "https://shop.example/x"


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("post", URL), {}, "method must be one of DELETE, GET"),
        (("GET", 7), {}, "url must be a str"),
        (("GET", "/path"), {}, "url must begin with http"),
        (("GET", "ftp://shop.example/"), {}, "url must begin with http"),
        (("GET", "http://shop.example:99999/"), {}, "url must be valid"),
        (("GET", "https://evil.example/"), {}, "host that may be called, got 'evil.example'"),
        (("GET", "https://shop.example:444/"), {}, "host that may be called"),
        (("GET", "https://shop.example.evil.example/"), {}, "host that may be called"),
        (("GET", "https://shop.example@evil.example/"), {}, "host that may be called"),
        (("GET", "https://evil.example#@shop.example/"), {}, "host that may be called"),
        (("GET", "https://evil.example\\@shop.example/"), {}, "url must be"),
        (("GET", "http://2130706433/"), {}, "host that may be called"),
        (("GET", "http://[::ffff:127.0.0.1]/"), {}, "host that may be called"),
        (("POST", URL), {"json": 1, "body": "1"}, "json= or body="),
        (("POST", URL), {"body": 1}, "body must be a str"),
        (("POST", URL), {"headers": ["a"]}, "headers must be a dict"),
        (("POST", URL), {"headers": {"a": 1}}, "headers must be a dict"),
        (("POST", URL), {"headers": {"a b": "1"}}, "headers must have valid names"),
        (("POST", URL), {"headers": {"a": "1\r\nb: 2"}}, "headers must have valid names"),
        (("POST", URL), {"headers": {"HOST": "a"}}, "headers must not have 'HOST'"),
        (("POST", URL), {"timeout": 0}, "timeout must be > 0"),
        (("POST", URL), {"json": {"a": {1}}}, "cannot be encoded: json: Object of type set is not JSON serializable$"),
        (
            ("POST", URL),
            {"timeout": timedelta(1)},
            "cannot be encoded: timeout: Object of type timedelta is not JSON serializable$",
        ),
        (("POST",), {}, "missing a required argument: 'url'"),
    ],
)
async def test_wrong_request_is_refused_at_the_put(arguments, options, text):
    """A request that cannot be sent, or leads to a host that is not named, is refused, and nothing is put."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=["shop.example", "127.0.0.1:8080", "[::1]:80"])
    async with tasks:
        with pytest.raises((TypeError, ValueError), match=text):
            await call.put(*arguments, **options)
        assert await tasks.rows() == []


@pytest.mark.parametrize(
    "url", [URL, "http://SHOP.example:80/", "https://a:b@shop.example/", "http://127.0.0.1:8080/x", "http://[::1]/"]
)
async def test_host_is_named_with_its_port_or_without_the_default_one(url):
    """A host without a port stands for that of http and https; one with a port stands for this port."""
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=["shop.example", "127.0.0.1:8080", "[::1]:80"])
    async with tasks:
        assert (await call.put("GET", url)).created


async def test_task_in_the_store_is_checked_again():
    """A call that is in the store when its host is taken off the list is not made."""
    store = MemoryStore()
    before = DurableTasks(store)
    async with before:
        await http_function(before, hosts=None).put("GET", "http://169.254.169.254/")
        after = DurableTasks(store)
        http_function(after, hosts=["shop.example"])
        async with running(after) as ended:
            assert (await ended()).dead == 1
        [letter] = await before.rows()
        assert "host that may be called" in letter.error_line


def test_arguments_of_the_function_are_checked():
    """Wrong hosts, sessions and options are errors that name them; the function has the options of any other."""
    tasks = DurableTasks(MemoryStore())
    for hosts in ("shop.example", 7):
        with pytest.raises(TypeError, match="hosts must be a list"):
            http_function(tasks, hosts=hosts)
    for host in ("", "http://shop.example", "shop.example/x", "a@b", "a:b", "a b", "*", 7):
        with pytest.raises(ValueError, match="hosts must be"):
            http_function(tasks, hosts=[host])
    with pytest.raises(TypeError, match="session must be a callable"):
        http_function(tasks, hosts=None, session=7)
    with pytest.raises(TypeError, match="check="):
        http_function(tasks, hosts=None, check=print)
    call = http_function(tasks, hosts=None, name="call", retry=None, priority=2)
    assert (call.name, call.retry, call.new("GET", URL).priority) == ("call", None, 2)
    assert isinstance(http_function(tasks, hosts=None).retry, Retry)


def test_extra_is_named_where_it_is_not_installed(monkeypatch):
    """Without aiohttp, the error names the extra."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match=r"ratelimited-executor\[http\]"):
        http_function(DurableTasks(MemoryStore()), hosts=None)


async def test_errors_tell_no_secrets(monkeypatch):
    """No error contains the query of a URL, its user, a header's value or a body, as others than the user read errors."""
    url = "http://user:s3cret@127.0.0.1:8080/x?api_key=s3cret"
    tasks = DurableTasks(MemoryStore())
    call = http_function(tasks, hosts=["127.0.0.1:8080"], retry=QUICK)

    def fails(*_args, **_options):
        raise aiohttp.ClientResponseError(SimpleNamespace(real_url=url), (), status=400, message=url)

    monkeypatch.setattr(aiohttp.ClientSession, "request", fails)
    async with tasks:
        await call.put("GET", url)
        async with running(tasks) as ended:
            await ended()
        [row] = await tasks.rows()
        assert "ClientResponseError" in row.error
        assert "s3cret" not in row.error
        for wrong in ({"headers": {"a": b"s3cret"}}, {"headers": "s3cret"}, {"body": b"s3cret"}):
            with pytest.raises(TypeError) as caught:
                await call.put("GET", url, **wrong)
            assert "s3cret" not in str(caught.value)
        with pytest.raises(ValueError, match="may be called") as caught:
            await call.put("GET", url.replace(":8080", ""))
        assert "s3cret" not in str(caught.value)
