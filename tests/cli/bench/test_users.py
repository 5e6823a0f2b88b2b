"""``bench --scenario``: users with clients of their own, each of whom waits for its answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ratelimited_executor.cli.bench.users import UserLoad, name_of
from tests.cli.bench.service import Service, served
from tests.cli.bench.test_bench import bench
from tests.cli.refusals import assert_refused

pytestmark = pytest.mark.real_time("sockets have no virtual time")

SCENARIOS = """
import asyncio
from contextlib import asynccontextmanager

users = []

async def buyer(client):
    async with client.post("/login") as answer:
        name = answer.cookies["user"].value
    users.append((id(client), name))
    for number in range(2):
        async with client.get(f"/basket/{number}") as answer:
            assert name == await answer.text()
        await asyncio.sleep(0.02)

async def forever(client):
    while True:
        async with client.get("/"):
            await asyncio.sleep(0.05)

async def slow(client):
    async with client.get("/slow"):
        pass

async def doubts(client):
    async with client.get("/") as answer:
        assert answer.status == 201, "not created"

async def breaks(client):
    raise KeyError("basket")

async def idle(client):
    pass

async def strays(client):
    async with client.get("/status/404"):
        pass
    await asyncio.sleep(0.05)

async def by_two(client):
    await asyncio.gather(client.get("/echo/a"), client.get("/echo/b?x=1"))
    await asyncio.sleep(0.05)

async def goes_away(client):
    await client.get("/away")
    await asyncio.sleep(0.05)

async def reads_much(client):
    await client.get("/huge")

async def tells(client):
    async with client.get("/"):
        raise ValueError("at http://ada:pencil@host/?token=pencil")

async def cancels(client):
    async with client.get("/"):
        pass
    raise asyncio.CancelledError

async def cancels_itself(client):
    async with client.get("/"):
        pass
    asyncio.current_task().cancel()

async def leaves(client):
    async with client.get("/"):
        pass
    raise GeneratorExit

class Odd(BaseException):
    pass

async def raises_odd(client):
    async with client.get("/"):
        pass
    raise Odd("odd")

async def one_cancels(client):
    users.append(client)
    if client is users[0]:
        raise asyncio.CancelledError
    async with client.get("/"):
        await asyncio.sleep(0.02)

async def swallows(client):
    while True:
        try:
            async with client.get("/echo/swallows"):
                await asyncio.sleep(0.05)
        except BaseException:
            pass

@asynccontextmanager
async def prepared():
    users.append("set up")
    yield forever
    users.append("torn down")

@asynccontextmanager
async def unprepared():
    raise OSError("no shop")
    yield

def plain(client):
    pass
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Run one service for all tests of this file."""
    with served() as running:
        yield running


@pytest.fixture
def scenarios(place) -> Iterator[str]:
    """Write a module of scenarios into the current directory, and yield its name."""
    name = f"{place.module}_users"
    place.write(f"{name}.py", SCENARIOS)
    yield name
    sys.modules.pop(name, None)


def played(
    url: str, scenario: str, *options: str, users: int = 3, seconds: str = "500ms"
) -> tuple[Any, dict[str, Any]]:
    """Play a load of users, and return its result and its figures."""
    result = bench(
        url, "--scenario", scenario, "--users", str(users), "--for", seconds, "--json", "out.json", "--quiet", *options
    )
    assert result.exit_code in (0, 1), result.output
    with open("out.json", encoding="utf-8") as file:
        return result, json.load(file)["figures"]


def counts(figures: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {each["name"]: (each["count"], each["error_count"]) for each in figures["classes"]}


def check_rates(figures: dict[str, Any]) -> None:
    """Assert that rates are those of the recorded requests, over the time in which they were sent."""
    for each in [*figures["classes"], *figures["phases"]]:
        assert each["first"] == each["last"] == pytest.approx(each["count"] / figures["seconds"])


def test_each_user_has_cookies_and_connections_of_its_own(place, service, scenarios) -> None:
    """A user that has logged in is known as itself by later requests, and each step has a row of its own."""
    result, figures = played(service.url, f"{scenarios}:buyer")
    users = sys.modules[scenarios].users

    assert (0, {}) == (result.exit_code, figures["errors"])
    assert 3 == len({client for client, _ in users})
    assert len(users) > 3  # called again
    assert {"POST /login", "GET /basket/{}"} == counts(figures).keys()
    logins, baskets = (counts(figures)[name][0] for name in ("POST /login", "GET /basket/{}"))
    assert (logins + baskets, True) == (figures["count"], logins <= baskets <= 2 * logins)
    assert f"scenario {scenarios}:buyer, users 3, each waits for its answers, for 500 ms" in result.output
    assert "target rate" not in result.output and "service time" not in result.output


def test_each_user_waits_for_its_answers(place, service, scenarios) -> None:
    """Five users of a service that does not answer have five requests, which time out."""
    result, figures = played(service.url, f"{scenarios}:slow", "--timeout", "300ms", users=5, seconds="200ms")

    assert {"timeout": 5} == figures["errors"]
    assert 1 == result.exit_code
    assert 0.3 <= figures["response_times"]["max"] < 5


def test_users_that_never_return_end_with_the_load(place, service, scenarios) -> None:
    """A user may act in a loop of its own: about one request in 50 ms; its set-up and its tear-down are done once."""
    result, figures = played(service.url, f"{scenarios}:prepared", users=4, seconds="1s")

    assert (0, {}) == (result.exit_code, figures["errors"])
    assert 4 <= figures["count"] <= 4 * 21
    assert figures["seconds"] == 1
    assert ["set up", "torn down"] == sys.modules[scenarios].users


def test_users_begin_one_after_the_other_in_the_warm_up(place, service, scenarios) -> None:
    """Requests of the warm-up are sent and not recorded."""
    service.seen.clear()
    _, figures = played(service.url, f"{scenarios}:by_two", "--warm-up", "500ms", users=2)

    assert 0 < figures["count"] < len(service.seen)
    assert {"GET /echo/a", "GET /echo/b"} == counts(figures).keys()
    assert 0 == figures["timeline"][0]["second"]
    check_rates(figures)


@pytest.mark.parametrize(
    ("name", "kind", "where", "sample"),
    [
        ("doubts", "AssertionError", "GET /", "not created"),
        ("breaks", "KeyError", "before a request", "'basket'"),
        ("strays", "status 404", "GET /status/{}", None),
        ("reads_much", "body too long", "GET /huge", "16,777,216 bytes"),
        ("tells", "ValueError", "GET /", "http://***@host/?token=***"),
        ("cancels", "CancelledError", "GET /", None),
        ("cancels_itself", "CancelledError", "GET /", None),
        ("leaves", "GeneratorExit", "GET /", None),
        ("raises_odd", "Odd", "GET /", "odd"),
    ],
)
def test_exception_makes_the_last_request_an_error(place, service, scenarios, name, kind, where, sample) -> None:
    """A failed check is an error of the request before it, and a bad status is one by itself; the load goes on."""
    result, figures = played(service.url, f"{scenarios}:{name}", users=2)

    assert {kind: figures["count"]} == figures["errors"]
    assert {where: (figures["count"], figures["count"])} == counts(figures)
    assert sample is None or sample in figures["samples"][kind]
    assert figures["count"] >= 2
    assert 1 == result.exit_code and f"the most frequent error is '{kind}'" in result.output


def test_headers_of_the_command_line_go_to_no_other_origin(place, service, scenarios) -> None:
    """A redirect may lead anywhere, and a header may hold a secret."""
    service.seen.clear()
    _, figures = played(service.url, f"{scenarios}:goes_away", "--header", "X-Test: secret")

    assert {} == figures["errors"]
    assert {("/echo/away", None)} == {(path, header) for _, path, _, header in service.seen}


def test_user_that_is_cancelled_ends_no_other(place, service, scenarios) -> None:
    """The load of the others goes on for its time."""
    _, figures = played(service.url, f"{scenarios}:one_cancels", users=2)

    assert {"CancelledError": 1} == figures["errors"]
    assert counts(figures)["GET /"][0] > 3
    assert 0.5 == figures["seconds"]


def test_user_that_swallows_its_cancellation_sends_nothing_after_the_end(place, service, scenarios) -> None:
    """The process ends, and what was sent is what was recorded."""
    service.seen.clear()
    result = subprocess.run(
        [sys.executable, "-m", "ratelimited_executor", "bench", f"{service.url}/", "--scenario", f"{scenarios}:swallows",
         "--users", "2", "--for", "500ms", "--json", "out.json", "--quiet"],
        cwd=place.path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    figures = json.loads(place.text("out.json"))["figures"]

    assert 0 == result.returncode, result.stderr
    assert "Users went on though they were cancelled" in result.stderr
    assert len(service.seen) == figures["count"] <= 2 * 12


def test_refused_connections_are_counted_once(place, scenarios) -> None:
    """The exception that the client raises for a request is no second error."""
    _, figures = played("http://127.0.0.1:1", f"{scenarios}:strays", users=2)

    assert ({"refused": 2}, 2) == (figures["errors"], figures["count"])


def test_users_that_send_nothing_have_no_figures(place, service, scenarios) -> None:
    """A function that does not even wait keeps nobody from ending the load."""
    result, figures = played(service.url, f"{scenarios}:idle")

    assert (0, 1) == (figures["count"], result.exit_code)
    assert "No request was sent." in result.output


def test_interrupt_ends_users_that_think_at_once(place, service, scenarios) -> None:
    """Ctrl-C ends the load, and what was measured is reported."""
    with subprocess.Popen(
        [sys.executable, "-m", "ratelimited_executor", "bench", f"{service.url}/", "--scenario", f"{scenarios}:by_two",
         "--users", "3", "--for", "10m", "--json", "out.json"],
        cwd=place.path, stdout=-1, stderr=-1, text=True,
    ) as process:  # fmt: skip
        service.seen.clear()
        while len(service.seen) < 12:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    figures = json.loads(place.text("out.json"))["figures"]

    assert 130 == process.returncode, err
    assert "Interrupted" in out
    assert 12 <= figures["count"] <= len(service.seen)
    assert figures["seconds"] < 600
    check_rates(figures)
    assert {} == figures["errors"]


def test_thresholds_apply_to_each_step(place, service, scenarios) -> None:
    """The report names the step whose requests are too slow, and the status is that of a broken threshold."""
    result, _ = played(service.url, f"{scenarios}:buyer", "--p99", "0.001ms")

    assert 1 == result.exit_code
    assert re.search(r"Not kept: POST /login: p99 .*; GET /basket/{}: p99", result.output)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer"], "--scenario needs --users"),
        (["http://127.0.0.1:1/", "--rate", "1", "--users", "3"], "--users needs --scenario"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--rate", "5"], "--scenario and --rate exclude"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--processes", "2"], "--scenario and --processes"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--expect", "2"], "--scenario and --expect"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--group", "a"], "--scenario and --group"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--arrivals", "poisson"], "--scenario and --arrivals"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--seed", "1"], "--scenario and --seed"),
        (["http://127.0.0.1:1/", "--scenario", "{}:buyer", "--users", "3", "--p99", "a=1ms"], "no class in front"),
        (["http://127.0.0.1:1/", "--scenario", "{}:plain", "--users", "3"], "must be an async function"),
        (["http://127.0.0.1:1/", "--scenario", "{}:nobody", "--users", "3"], "has no attribute 'nobody'"),
        (["http://127.0.0.1:1/", "--scenario", "{}:unprepared", "--users", "3"], "the set-up of --scenario failed: OSError: no shop"),
        (["{}:buyer", "--scenario", "{}:buyer", "--users", "3"], "--scenario needs a URL as TARGET"),
    ],
)  # fmt: skip
def test_bad_usage_is_refused(place, scenarios, arguments, words) -> None:
    """Options of an open load have no meaning beside users, and each refusal says which one it is."""
    assert_refused(bench(*(each.format(scenarios) for each in arguments)), words)


def test_steps_beyond_a_hundred_are_one() -> None:
    """Paths that all differ must not make a histogram each."""

    async def nothing(client) -> None:
        pass

    load = UserLoad(
        nothing, base_url="http://host/", users=1, seconds=1.0, warm_up=0.0, timeout=1.0, headers={}
    )  # fmt: skip
    arrivals = [load.arrival(f"GET /{number * 'a'}") for number in range(150)]

    assert [*range(100), *[100] * 50] == [each.class_index for each in arrivals]
    assert [*[0] * 100, *range(50)] == [each.turn for each in arrivals]


def test_page_and_table_of_users_are_written(place, service, scenarios) -> None:
    """The page has the scenario and its steps, and no rate that was asked for."""
    result, _ = played(service.url, f"{scenarios}:buyer", "--html", "out.html", "--csv", "out.csv")

    assert 0 == result.exit_code
    assert "GET /basket/{}" in place.text("out.html") and f"{scenarios}:buyer" in place.text("out.html")
    assert "target rate" not in place.text("out.html")
    assert "class,GET /basket/{}," in place.text("out.csv")


@pytest.mark.parametrize(
    ("path", "name"),
    [("/", "GET /"), ("/a1b2/c", "GET /{}/c"), ("/items/7", "GET /items/{}"), ("/items/new", "GET /items/new")],
)
def test_step_is_named_without_what_differs(path, name) -> None:
    """Requests that differ in a number are the same step."""
    assert name == name_of("GET", path)
