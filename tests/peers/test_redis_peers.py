"""``RedisPeers`` in one process on real servers: what users meet, from the first start to a server that is none.

All of it takes real time, because servers, sockets and their clocks are what is tested. A new group is out of its
quarantine within two seconds. Most tests call often in an outage, and have no allowance for another server's clock.
Tests that mostly wait run at the same time, each in a group of its own (``side_by_side``). Bounds of time are wide, and
only tell a delay from a hang. Parts of a rate are wide as well, because a busy machine lets permits lapse. A start is
stamped in its task, after the permit was checked: a process held up in between may seem to start one task more than the
rate in a second, so windows are allowed one more.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import logging
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from ratelimited_executor import (
    Burst,
    ExecutorManager,
    ExecutorStoppedError,
    Pacing,
    RateLimitedExecutor,
    Window,
)
from ratelimited_executor.cycles import RedisProgress
from ratelimited_executor.peers import FleetStatistics, Outage, PeerState, RedisPeers
from ratelimited_executor.policies import Strictness

from ratelimited_executor._core.fleet.ticket_calls import LAPSED_US, PlanLimit, TicketCall, TicketRun
from ratelimited_executor.peers.redis.peers import RedisTransport

from .proxy import Proxy
from .servers import RedisCluster, RedisServer, sentinel_group

pytestmark = pytest.mark.real_time("real servers, whose clocks and sockets take real time")

ROOT = Path(__file__).parents[2]
LOGGER = "ratelimited_executor"
INTERVAL = 0.1
FAST: dict[str, Any] = {"interval": INTERVAL, "clock_difference": 0.0}
QUARANTINE = LAPSED_US / 1e6 + 1.001  # seconds
SETTLED = QUARANTINE + 0.7  # seconds after which a new group runs evenly; 0.2 after the quarantine on an idle machine
RATE = 100.0
RATE_COUNT = 100
KEPT_MS = 3 * 86_400_000
CLOSE_SECONDS = 2.0  # time for a manager to close, whatever state its server is in; 0.2 s at most if all is well
HELD = LAPSED_US / 1e6 + 0.1  # seconds for which granted permits may still be used
BACK_SECONDS = 4.0  # from a server's start to the first task; the quarantine of a new group takes 1.8
SIDE_BY_SIDE_COUNT = 5  # tests in one loop: more of them keep it so busy that permits lapse
PATIENT_SECONDS = 60.0  # for twenty managers in one loop, beside other tests
HANG_SECONDS = 20.0  # after which a test that runs beside others is cancelled
LOSING_SEED = 3  # seed of a proxy: losses come early, and are one in ten
NO_ANSWER = "fleet: no answer from the server"
REFUSES = "fleet: the server refuses all calls"
ANSWERED = {"wrong password", "wrong user", "no password", "no such database"}  # what a Redis refuses
ANSWERS = "fleet: the server answers again"


# Tools.


async def look_for_leaks(reports: list[dict[str, Any]]) -> None:
    """Assert that no task is left, and no exception unobserved; pytest checks for connections."""
    for _ in range(3):
        await asyncio.sleep(0)  # lets cancelled tasks end, and then transports that they have closed
    gc.collect()  # what was left open is reported as ResourceWarning, which is an error here
    assert [] == reports
    assert set() == asyncio.all_tasks() - {asyncio.current_task()}


@pytest.fixture(autouse=True)
async def tidy(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test that leaves a task or an exception behind."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    yield
    if inspect.iscoroutinefunction(request.function):
        await look_for_leaks(reports)


class Told:
    """Messages that the library has logged."""

    def __init__(self) -> None:
        self.messages: list[str] = []  # of the fleet, in order
        self.errors: list[str] = []  # above a warning, or with a traceback

    def add(self, record: logging.LogRecord) -> None:
        """Add a message."""
        text = record.getMessage()
        if text.startswith("fleet:"):
            self.messages.append(text)
        if record.levelno > logging.WARNING or record.exc_info:
            self.errors.append(text)

    def count(self, beginning: str) -> int:
        """Count the messages that start with ``beginning``."""
        return sum(text.startswith(beginning) for text in self.messages)


class Sorter(logging.Handler):
    """Routes each message to the ``Told`` of the context in which it was logged, which tasks inherit."""

    told: ContextVar[Told] = ContextVar("told")

    def __init__(self, otherwise: Told | None = None) -> None:
        super().__init__(logging.WARNING)
        self._otherwise = otherwise

    def __enter__(self) -> Self:
        logging.getLogger(LOGGER).addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger(LOGGER).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a message on."""
        told = self.told.get(self._otherwise)
        if told is not None:
            told.add(record)


@pytest.fixture
def told() -> Iterator[Told]:
    """What the library logs during the test."""
    told = Told()
    with Sorter(told):
        yield told


Scenario = Callable[[RedisServer, Told], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}
GROUP: ContextVar[str] = ContextVar("group", default="g")  # tests at the same time must not share their rates


def side_by_side(scenario: Scenario) -> Callable[..., None]:
    """Let a test run at the same time as others of its kind, since nearly all of its time is waiting."""

    def test(outcomes: dict[str, BaseException | None]) -> None:
        error = outcomes[name]
        if error is not None:
            raise error

    name = scenario.__name__
    SCENARIOS[name] = scenario
    test.__name__, test.__doc__ = name, scenario.__doc__
    return test


@pytest.fixture(scope="module")
def outcomes(server_kind: str, request: pytest.FixtureRequest) -> dict[str, BaseException | None]:
    """Return how each selected scenario ended; under "", what they left behind."""
    names = SCENARIOS.keys() & {
        item.originalname for item in request.session.items if isinstance(item, pytest.Function)
    }
    places = asyncio.Semaphore(SIDE_BY_SIDE_COUNT)

    async def run(name: str, server: RedisServer, group: str) -> None:
        told = Told()
        Sorter.told.set(told)
        GROUP.set(group)
        async with places, asyncio.timeout(HANG_SECONDS):
            await SCENARIOS[name](server, told)

    async def run_all(server: RedisServer) -> dict[str, BaseException | None]:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        found = await asyncio.gather(*(run(name, server, name) for name in names), return_exceptions=True)
        ends: dict[str, BaseException | None] = {"": None, **dict(zip(names, found, strict=True))}
        # Beside many others on a busy machine calls are late and permits lapse: a real failure also fails alone.
        for name, error in [(name, error) for name, error in ends.items() if error is not None]:
            print(f"{name} is run again, alone: {error!r}")
            ends[name] = (await asyncio.gather(run(name, server, f"{name}, again"), return_exceptions=True))[0]
        try:
            await look_for_leaks(reports)
        except AssertionError as error:
            ends[""] = error
        return ends

    with RedisServer() as server, Sorter():
        return asyncio.run(run_all(server))


@asynccontextmanager
async def own_server() -> AsyncIterator[RedisServer]:
    """Start a server that may be killed and stopped, without blocking others on the loop."""
    server = RedisServer()
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.close)


class Member:
    """A manager with peers, its executors, and the times of their starts."""

    def __init__(self, peers: RedisPeers, names: tuple[str, ...], rate: float, **settings: Any) -> None:
        self.peers = peers
        self.manager = ExecutorManager(peers=peers)
        self.starts: list[float] = []
        self.executors = [
            self.manager.executor(name, rate=rate, pacing=Pacing.ON_TIME, drain_timeout=0, **settings) for name in names
        ]

    @property
    def executor(self) -> RateLimitedExecutor:
        """The first executor."""
        return self.executors[0]

    @property
    def fleet(self) -> FleetStatistics:
        """Statistics of the peer."""
        fleet = self.executor.statistics().fleet
        assert fleet is not None
        return fleet

    def work(self) -> None:
        """The task: log a start."""
        self.starts.append(time.monotonic())

    def load(self, count: int) -> None:
        """Give each executor ``count`` tasks that are due now."""
        for executor in self.executors:
            for _ in range(count):
                executor.execute(self.work)

    def count(self, start: float, end: float = math.inf) -> int:
        """Count the starts between two times."""
        return sum(start <= when < end for when in self.starts)

    async def wait_for_start(self, seconds: float = BACK_SECONDS) -> float:
        """Wait for a start from now on, and return how long it took."""
        begin = time.monotonic()
        while not self.starts or self.starts[-1] < begin:
            assert time.monotonic() < begin + seconds, f"no start within {seconds} s: {self.fleet}"
            await asyncio.sleep(0.005)
        return self.starts[-1] - begin

    async def wait_for(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Poll until ``condition`` holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {self.fleet}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def member(
    way: Any,
    group: str | None = None,
    *,
    names: tuple[str, ...] = ("limit",),
    rate: float = RATE,
    load: int = 0,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Member]:
    """Open a manager with peers, and assert that closing it is quick whatever has happened in between."""
    one = Member(RedisPeers(way, group or GROUP.get(), **{**FAST, **options}), names, rate, **(settings or {}))
    await one.manager.start()
    one.load(load)
    try:
        yield one
    finally:
        begin = time.monotonic()
        await one.manager.aclose()
        assert time.monotonic() - begin < CLOSE_SECONDS


def worst_window(*members: Member, seconds: float = 1.0) -> int:
    """Return the most starts of all members in any window of ``seconds``, its end excluded."""
    starts = sorted(start for one in members for start in one.starts)
    return max((bisect_left(starts, start + seconds) - index for index, start in enumerate(starts)), default=0)


def group_keys(server: RedisServer, group: str | None = None) -> list[str]:
    """Return the keys of a group."""
    return sorted(server.ask("KEYS", f"{{rle:{group or GROUP.get()}}}:*"))


def seen_of(server: RedisServer, group: str | None = None, name: str = "limit") -> list[str]:
    """Return the ids of those who have called lately for an executor's limits, as the server knows them."""
    seen = server.ask("ZRANGE", f"{{rle:{group or GROUP.get()}}}:{name}:seen", 0, -1)
    return [peer for peer in seen if peer[0] != "!"]


# Normal operation.


@side_by_side
async def test_first_executor_shares_its_rate_and_tells_its_part(server: RedisServer, told: Told) -> None:
    """With default settings the first executor starts after the quarantine, and all figures of its statistics fit."""
    begin = time.monotonic()
    options = {"interval": 0.25, "clock_difference": 1.0}
    async with member(server.url, load=1000, **options) as one:
        assert ("sync", 0, None, ()) == (one.fleet.state, one.fleet.peers, one.fleet.era, one.fleet.limits)
        await one.wait_for_start()
        assert 1.0 < one.starts[0] - begin < BACK_SECONDS
        await asyncio.sleep(0.8)
        fleet = one.fleet
        assert PeerState.ACTIVE is fleet.state
        assert ("active", 1, 0) == (fleet.state, fleet.peers, fleet.failures)
        assert re.fullmatch(r"[0-9a-f]{40}:\d{16}", fleet.era or "")
        assert [("permits/rate", "permits")] == [(limit.name, limit.resource) for limit in fleet.limits]
        assert fleet.offset is not None
        assert abs(fleet.offset) < 0.5  # both clocks are this machine's
        assert fleet.offset_error is not None
        assert 0 < fleet.offset_error < 0.02  # half of a round trip on the loopback
        assert fleet.since_grant is not None
        assert 0 <= fleet.since_grant < 1
        assert len(one.starts) == fleet.taken
        assert fleet.granted == fleet.taken + fleet.lapsed + fleet.held
        assert fleet.demand > 0
        assert one.count(one.starts[0], one.starts[0] + 0.8) > 0.6 * 0.8 * RATE
        assert worst_window(one) <= RATE + 1
    assert [] == told.messages


@side_by_side
async def test_managers_of_one_group_split_its_rate(server: RedisServer, told: Told) -> None:
    """Two managers of a group share 100 a second, though each could use all of it."""
    async with member(server.url, load=400) as one, member(server.url, load=400) as two:
        await asyncio.sleep(SETTLED)
        start = time.monotonic()
        await asyncio.sleep(1.0)
        counts = [each.count(start, start + 1.0) for each in (one, two)]
        assert 0.7 * RATE < sum(counts) <= RATE + 1
        assert min(counts) > 0.3 * sum(counts)
        assert worst_window(one, two) <= RATE + 1
        assert [2, 2] == [each.fleet.peers for each in (one, two)]
        assert one.fleet.era == two.fleet.era
        assert one.peers.id != two.peers.id
    assert [] == told.messages


@side_by_side
async def test_managers_of_different_groups_do_not_share(server: RedisServer, told: Told) -> None:
    """Another group, prefix or executor name is another rate."""
    different: list[dict[str, Any]] = [
        {},
        {"group": f"another, beside {GROUP.get()}"},
        {"prefix": "other"},
        {"names": ("another",)},
    ]
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(server.url, load=300, **options)) for options in different]
        await asyncio.sleep(SETTLED)
        start = time.monotonic()
        await asyncio.sleep(0.7)
        counts = [each.count(start, start + 0.7) for each in members]
        assert min(counts) > 0.6 * 0.7 * RATE
        assert [1] * 4 == [each.fleet.peers for each in members]
        assert max(worst_window(each) for each in members) <= RATE + 1


@side_by_side
async def test_executors_of_a_manager_send_their_calls_together(_: RedisServer, told: Told) -> None:
    """Executors with tasks at the same time send their calls in one message; busy ones call seldom, and idle ones never."""
    async with own_server() as server:
        with server.client() as client:

            def read() -> tuple[int, int]:
                """Return how often the server ran the script, and how often it read from a connection."""
                calls = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
                return calls, client.info("stats")["total_reads_processed"]

            names = ("one", "two", "three")
            async with member(server.url, names=names, load=500) as one:
                await asyncio.sleep(SETTLED)
                before = read()
                await asyncio.sleep(1.0)
                calls = read()[0] - before[0]
                # Each asks when half of the permits for the next tenth of a second are due.
                assert 3 / INTERVAL < calls < 3 / INTERVAL * 4
                for executor in one.executors:
                    executor.rate = math.inf  # all waiting tasks start
                await one.wait_for(lambda: len(one.starts) == 1500)
                for executor in one.executors:
                    executor.rate = RATE
                await one.wait_for(lambda: {"idle"} == {each.statistics().fleet.state for each in one.executors})
                await asyncio.sleep(0.3)  # unused permits are given back
                before = read()
                await asyncio.sleep(0.5)
                assert before[0] == read()[0], "an idle process makes no calls"
                before = read()
                for executor in one.executors:
                    executor.execute(one.work)
                await one.wait_for(lambda: len(one.starts) == 1503)
                calls, reads = (after - old for after, old in zip(read(), before, strict=True))
                reads -= 2  # the two questions
                assert 3 <= calls, "each executor asks for itself"
                assert reads <= calls - 2, f"{calls} calls in {reads} messages"


@side_by_side
async def test_script_that_is_forgotten_is_loaded_again(_: RedisServer, told: Told) -> None:
    """After SCRIPT FLUSH the script is loaded again without a failed call or a message."""
    async with own_server() as server:
        async with member(server.url, load=600) as one:
            await asyncio.sleep(SETTLED)
            start = time.monotonic()
            for _ in range(3):
                server.ask("SCRIPT", "FLUSH")
                await asyncio.sleep(0.25)
            assert one.count(start, start + 0.75) > 0.6 * 75
            assert 0 == one.fleet.failures
        assert [] == told.messages


@side_by_side
async def test_forgotten_keys_are_a_new_era(_: RedisServer, told: Told) -> None:
    """After FLUSHALL nothing is granted twice, and permits are granted again after a quarantine."""
    async with own_server() as server:
        async with member(server.url, load=600) as one, member(server.url, load=600) as two:
            await asyncio.sleep(SETTLED)
            server.ask("FLUSHALL")
            await asyncio.sleep(HELD)
            assert await one.wait_for_start() < BACK_SECONDS
            await asyncio.sleep(0.6)
            assert worst_window(one, two) <= RATE + 1
            assert [2, 2] == [each.fleet.peers for each in (one, two)]


# A server that is away.


@side_by_side
async def test_server_that_is_not_there_at_the_start(_: RedisServer, told: Told) -> None:
    """Without a server nothing starts and one warning says why; starts begin within 4 s of the server's start."""
    server = RedisServer()
    try:
        options = {"interval": 0.25, "clock_difference": 1.0}
        async with member(server.url, load=500, **options) as one:
            await asyncio.sleep(0.6)
            for _ in range(40):  # a slow machine takes longer
                if told.messages and one.fleet.state == "outage":
                    break
                await asyncio.sleep(0.1)
            assert [] == one.starts
            assert "outage" == one.fleet.state
            assert 1 == len(told.messages) == told.count(f"{NO_ANSWER} (ConnectionError: ")
            assert str(server.port) in told.messages[0]
            await asyncio.to_thread(server.start)
            assert await one.wait_for_start() < BACK_SECONDS
            assert "active" == one.fleet.state
            assert [NO_ANSWER, ANSWERS] == [text[: len(NO_ANSWER)].split(" (")[0] for text in told.messages]
        assert [] == told.errors
    finally:
        server.close()


@side_by_side
async def test_server_that_is_killed_and_comes_back_empty(_: RedisServer, told: Told) -> None:
    """With the server killed, granted permits are used, then nothing starts; once it is back nothing starts twice."""
    async with own_server() as server:
        async with member(server.url, load=900) as one:
            async with member(server.url, load=900) as two:
                await asyncio.sleep(SETTLED)
                server.kill()
                down = time.monotonic()
                await asyncio.sleep(HELD + 0.4)
                assert 0 == one.count(down + HELD) == two.count(down + HELD)
                assert "outage" == one.fleet.state
                assert 2 == len(told.messages) == told.count(NO_ANSWER), "each process gives one warning"
            await asyncio.to_thread(server.start)
            assert await one.wait_for_start() < BACK_SECONDS
            start = time.monotonic()
            await asyncio.sleep(0.7)
            assert one.count(start, start + 0.7) > 0.6 * 0.7 * RATE
            assert 1 == one.fleet.peers
            assert 1 == told.count(ANSWERS)
            assert worst_window(one, two) <= RATE + 1
        assert [] == told.errors


@side_by_side
async def test_server_that_stands_still_for_a_second(_: RedisServer, told: Told) -> None:
    """With the server stopped, granted permits are used, and starts continue as soon as it continues."""
    async with own_server() as server:
        async with member(server.url, load=900) as one, member(server.url, load=900) as two:
            await asyncio.sleep(SETTLED)
            server.stop()
            still = time.monotonic()
            await asyncio.sleep(HELD + 0.3)
            assert 0 == one.count(still + HELD) == two.count(still + HELD)
            server.go_on()
            assert await one.wait_for_start() < BACK_SECONDS
            start = time.monotonic()
            await asyncio.sleep(0.6)
            assert one.count(start) + two.count(start) > 0.5 * 0.6 * RATE
            assert worst_window(one, two) <= RATE + 1
        assert [] == told.errors


@side_by_side
async def test_connections_that_are_cut_and_mended(server: RedisServer, told: Told) -> None:
    """While connections are refused granted permits are used; one warning each tells the cut and its end."""
    with Proxy(server.port) as proxy:
        async with member(proxy.url, load=900) as one:
            await asyncio.sleep(SETTLED)
            proxy.cut()
            cut = time.monotonic()
            await asyncio.sleep(HELD + 0.4)
            assert 0 == one.count(cut + HELD, cut + HELD + 0.4)
            proxy.mend()
            assert await one.wait_for_start() < BACK_SECONDS
            await asyncio.sleep(0.3)
            assert [1, 1] == [told.count(NO_ANSWER), told.count(ANSWERS)]
            assert worst_window(one) <= RATE + 1
    assert [] == told.errors


@side_by_side
async def test_replies_that_are_lost(server: RedisServer, told: Told) -> None:
    """With one reply in ten lost calls are repeated, and get what they would have got."""
    with Proxy(server.port, seed=LOSING_SEED) as proxy:
        async with member(proxy.url, load=900) as one:
            await asyncio.sleep(SETTLED)
            proxy.drop_replies = 0.1
            start = time.monotonic()
            await asyncio.sleep(1.5)
            assert proxy.counts.lost_replies > 0
            assert one.count(start, start + 1.5) > 0.3 * 1.5 * RATE
            assert worst_window(one) <= RATE + 1
            proxy.drop_replies = 0.0
    assert [] == told.errors


@side_by_side
async def test_closing_is_quick_while_the_server_is_away(_: RedisServer, told: Told) -> None:
    """Closing takes less than 2 s while the server refuses or hangs, noticed or not."""

    async def close_twice(away: str) -> None:
        async with own_server() as server:
            with Proxy(server.port) as proxy:
                # Two in a group: one is closed before it can have noticed, the other one afterwards.
                async with member(proxy.url, load=500), member(proxy.url, names=("limit", "other"), load=500) as first:
                    await first.wait_for_start()
                    if away in ("kill", "stop"):
                        getattr(server, away)()
                    elif away == "slow":
                        proxy.delay = 0.1
                    else:
                        getattr(proxy, away)()
                    begin = time.monotonic()
                    await first.manager.aclose()
                    assert time.monotonic() - begin < CLOSE_SECONDS, away
                    await asyncio.sleep(0.5)
                server.go_on()

    await asyncio.gather(*map(close_twice, ["kill", "stop", "cut", "blackhole", "slow"]))
    assert [] == told.errors


@side_by_side
async def test_closing_is_quick_whatever_the_timeout(_: RedisServer, told: Told) -> None:
    """Closing is quick although ``timeout`` allows ten seconds: the farewell to a hanging server is cut short."""
    async with own_server() as server:
        one = Member(RedisPeers(server.url, GROUP.get(), **FAST, timeout=10), ("limit",), RATE)
        await one.manager.start()
        one.load(200)
        await one.wait_for_start()
        server.stop()
        closing = asyncio.create_task(one.manager.aclose())
        await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        is_quick = closing.done()
        server.go_on()
        await closing
        assert is_quick


# Servers with which little or nothing starts: all are tried at the same time, and checked one by one.

NO_REDIS = {  # an answer to everything, and the client's error
    "web server": (b"HTTP/1.1 400 Bad Request\r\n\r\nhello", "InvalidResponse"),
    "garbage": (b"\x00\xff" * 100, "TimeoutError"),  # without the end of a line
    "yes to everything": (b"+OK\r\n" * 500, "Error"),
    "numbers": (b"*1\r\n:1\r\n" * 500, "Error"),
    "refusal": (b"-ERR max number of clients reached\r\n", "max number of clients"),
    "silence": (b"", "TimeoutError"),
    "not accepted": (None, "TimeoutError"),
}
REFUSED = {  # URLs for a server whose password is "right"
    "wrong password": ("redis://:wrong@127.0.0.1:{port}/0", "(AuthenticationError: "),
    "wrong user": ("redis://nobody:right@127.0.0.1:{port}/0", "(AuthenticationError: "),
    "no password": ("redis://127.0.0.1:{port}/0", "(AuthenticationError: "),
    "no such database": ("redis://:right@127.0.0.1:{port}/99", "DB index is out of range"),
    "plain text for TLS": ("rediss://:right@127.0.0.1:{port}/0", "TimeoutError"),
    "nobody there": ("redis://127.0.0.1:1/0", "(ConnectionError: "),
}
SLOW: dict[str, dict[str, Any]] = {  # delay of each direction in seconds, and settings
    "5 ms": {"delay": 0.005},
    "10 ms, late=0.003": {"delay": 0.01, "late": 0.003},
    "30 ms": {"delay": 0.03},
    "100 ms": {"delay": 0.1},
    "100 ms, timeout=0.5": {"delay": 0.1, "timeout": 0.5},
}
TOO_SLOW = {"delay": 0.6}  # beyond a second there and back
TRY_SECONDS = 8.0  # three connections may take a second each before a warning, and two on the slowest way


@dataclass
class Trial:
    """The outcome of one way to connect."""

    told: Told
    one: Member
    begin: float
    fleet: FleetStatistics
    closing: float = math.inf

    def used(self) -> float:
        """Return the part of the rate used in the last 1.5 s."""
        return self.one.count(self.begin + TRY_SECONDS - 1.5) / (1.5 * RATE)


@contextmanager
def no_redis(answer: bytes | None) -> Iterator[str]:
    """Listen on a port, and answer everything with the same bytes; with None accept nobody."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                if answer:
                    with contextlib.suppress(OSError):
                        connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    if answer is not None:
        thread.start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        if answer is not None:
            thread.join(5)
        for connection in connections:
            connection.close()


async def _try_ways(ways: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Trial]:
    """Join a group by each way at the same time, with enough to start, for some seconds."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    async def take_part(name: str, url: str, options: dict[str, Any]) -> Trial:
        told = Told()
        Sorter.told.set(told)
        begin = time.monotonic()
        async with asyncio.timeout(HANG_SECONDS), member(url, name, load=700, **options) as one:
            await asyncio.sleep(TRY_SECONDS)
            trial = Trial(told, one, begin, one.fleet)
            closing = time.monotonic()
        trial.closing = time.monotonic() - closing
        return trial

    trials = await asyncio.gather(*(take_part(name, *way) for name, way in ways.items()))
    await look_for_leaks(reports)
    return dict(zip(ways, trials, strict=True))


@pytest.fixture(scope="module")
def trials(server_kind: str) -> dict[str, Trial]:
    """Return the outcome of each way."""
    with contextlib.ExitStack() as stack:
        server, guarded = stack.enter_context(RedisServer()), stack.enter_context(RedisServer(password="right"))
        ways: dict[str, tuple[str, dict[str, Any]]] = {}
        for name, options in {**SLOW, "too slow": TOO_SLOW}.items():
            proxy = stack.enter_context(Proxy(server.port))
            proxy.delay = options["delay"]
            ways[name] = proxy.url, {key: value for key, value in options.items() if key != "delay"}
        for name, (answer, _) in NO_REDIS.items():
            ways[name] = stack.enter_context(no_redis(answer)), {}
        for name, (url, _) in REFUSED.items():
            ways[name] = url.format(port=guarded.port), {}
        with Sorter():
            found = asyncio.run(_try_ways(ways))
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # the script for a server that reads nothing could not be sent, so that its connection stays open
        return found


@pytest.mark.parametrize("name", SLOW)
def test_slow_way_is_used(trials: dict[str, Trial], name: str) -> None:
    """With a round trip of up to 200 ms the rate is used, whatever the timeout, and the error includes the delay."""
    trial, delay = trials[name], SLOW[name]["delay"]
    assert [] == trial.told.messages
    assert trial.used() > 0.3  # nearly all on an idle machine
    assert worst_window(trial.one) <= RATE + 1
    assert trial.fleet.offset_error is not None
    assert delay <= trial.fleet.offset_error < delay + 0.1  # the machine may be busy


def test_way_that_is_too_slow(trials: dict[str, Trial]) -> None:
    """With 600 ms each way nothing starts, and one warning says that calls time out."""
    trial = trials["too slow"]
    assert 0 == trial.used()
    (text,) = trial.told.messages
    assert text.startswith(f"{NO_ANSWER} (")
    assert "outage" == trial.fleet.state


def test_timeout_that_is_told_says_how_long_it_is(trials: dict[str, Trial]) -> None:
    """The warning about timeouts names the timeout, so that the setting to change is known."""
    assert any("timeout=0.08 s" in text for text in trials["too slow"].told.messages), trials["too slow"].told.messages


@pytest.mark.parametrize("name", [*NO_REDIS, *REFUSED])
def test_server_that_does_not_serve_is_told(trials: dict[str, Trial], name: str) -> None:
    """With a server that is no Redis, refuses the login or does not exist nothing starts, and one warning says why."""
    trial, reason = trials[name], {**NO_REDIS, **REFUSED}[name][1]
    assert 0 == trial.used()
    (text,) = trial.told.messages
    assert text.startswith((NO_ANSWER, REFUSES)[name in ANSWERED])
    assert reason in text
    assert "right" not in text, "a warning must not contain a password"
    assert [] == trial.told.errors
    assert "outage" == trial.fleet.state


@pytest.mark.parametrize("name", [*SLOW, "too slow", *NO_REDIS, *REFUSED])
def test_closing_is_quick_on_every_way(trials: dict[str, Trial], name: str) -> None:
    """Closing is quick with every kind of server."""
    assert trials[name].closing < CLOSE_SECONDS


# Settings of the server.


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ([], 0),
        (["maxmemory-policy allkeys-lru"], 0),
        (["maxmemory 100mb", "maxmemory-policy noeviction"], 0),
        (["maxmemory 100mb", "maxmemory-policy volatile-ttl"], 1),
    ],
    ids=["default", "no limit", "noeviction", "volatile-ttl"],
)
@pytest.mark.usefixtures("server_kind")
async def test_server_that_may_evict_keys_is_told(told: Told, config: list[str], count: int) -> None:
    """A server that may evict keys is reported once, with the setting to change, also where CONFIG is forbidden."""
    with RedisServer(config=config, users={"app": _user(RIGHTS)}) as server:
        async with member(server.url_of("app", "secret"), load=5) as one:
            await one.wait_for_start()
        assert count == len(told.messages) == told.count("fleet: Redis may evict the keys of group 'g'")
        assert all("maxmemory-policy noeviction" in text for text in told.messages)


async def test_settings_of_a_server_that_does_not_tell_them(told: Told) -> None:
    """An unexpected answer to INFO memory does not prevent the connection."""
    transport = RedisTransport(OddInfo(), "g")
    await transport.connect()
    assert "sha" == transport._sha
    assert [] == told.messages


class OddInfo(redis.asyncio.Redis):
    """A client whose server says little about itself."""

    async def script_load(self, script: Any) -> Any:
        """Pretend to load a script."""
        return "sha"

    async def info(self, *_: Any, **__: Any) -> Any:
        """Return no limit of memory."""
        return {"used_memory": 1}


def _call_for(amount: int) -> TicketCall:
    """Return a call without runs, under one limit of so many tickets a minute."""
    return TicketCall(
        peer="p",
        since_us=1,
        latest_us=1 << 52,
        ahead_us=100_000,
        difference_us=0,
        quarantine_us=1000,
        plan_id="one",
        plan=(PlanLimit("minute", "tickets", f"w,{amount},60000000"),),
    )


async def test_message_carries_calls_of_several_executors(redis_server: RedisServer) -> None:
    """A message carries the calls of several executors in order, by a script that it loads if needed; a refusal is of one."""
    transport = RedisTransport(redis_server.url, "mixed")
    call = _call_for(5)
    (limit,) = call.plan
    asking = replace(call, runs=(TicketRun(9, (("tickets", 1),)),))
    odd = replace(call, plan=(limit._replace(settings="odd"),))
    try:
        (first,) = await transport.call([("mail", call)])
        assert 1000 == first.quarantine_us
        await asyncio.sleep(0.002)
        for flushes in (False, True):
            if flushes:
                with redis_server.client() as client:
                    client.script_flush()
            replies = await transport.call([("mail", asking), ("odd", odd), ("post", call)])
            assert ["TicketReply", "RefusedError", "TicketReply"] == [type(each).__name__ for each in replies]
            assert [0 if flushes else 5] == [len(outcome.tickets) for outcome in replies[0].outcomes]
            assert "no settings of a limit: odd" in str(replies[1])
            assert limit.name == replies[2].limits[0].name
            assert 0 == replies[2].limits[0].used
    finally:
        await transport.aclose()


# Keys that are lost and damaged.


@pytest.mark.parametrize("lost", ["tickets", "keys", "rest", "seen", "tickets keys rest seen"])
async def test_keys_that_vanish_give_nothing_away_twice(redis_server: RedisServer, told: Told, lost: str) -> None:
    """With keys deleted ten times a second, as by eviction, two managers never start more than the rate."""
    async with member(redis_server.url, load=900) as one, member(redis_server.url, load=900) as two:
        await asyncio.sleep(SETTLED)
        for _ in range(20):
            redis_server.ask("DEL", *(f"{{rle:g}}:limit:{key}" for key in lost.split()))
            await asyncio.sleep(0.09)
        assert worst_window(one, two) <= RATE + 1
        assert await one.wait_for_start() < BACK_SECONDS
        if " " not in lost:
            assert 1 <= told.count("fleet: what the server remembered of limit was damaged") <= 2


async def test_state_that_is_damaged_is_told_and_heals(redis_server: RedisServer, told: Told) -> None:
    """A damaged state starts nothing for a quarantine, is reported in one line, and then works again."""
    async with member(redis_server.url, load=900) as one:
        await one.wait_for_start()
        redis_server.ask("HSET", "{rle:g}:limit:tickets", "state", "900000000000000")
        await asyncio.sleep(HELD)
        assert await one.wait_for_start() < BACK_SECONDS
        assert worst_window(one) <= RATE + 1
    assert ["fleet: what the server remembered of limit was damaged"] == [text.split(";")[0] for text in told.messages]


async def test_process_of_an_earlier_release_is_told(redis_server: RedisServer, told: Told) -> None:
    """A process of an earlier release starts nothing, and its warning says which of the two to replace."""
    async with member(redis_server.url, load=50) as one:
        await one.wait_for_start()
        one.executor.pause()
        redis_server.ask("HSET", "{rle:g}:limit:tickets", "version", "99")
        async with member(redis_server.url, load=50) as two:
            await two.wait_for(lambda: told.count(REFUSES))
            assert [] == two.starts
    assert any("speaks version 99 of the protocol of tickets, this process" in text for text in told.messages)


# Access rights.

RIGHTS = "evalsha script|load info time exists hmget hset hdel del pexpire zadd zrem zcount zrangebyscore".split()
# Once there are keys at rest to forget, and in a call that works when it is repeated: what precedes is written.
ONLY_SOMETIMES = {"hdel", "zrem", "pexpire"}


def _user(rights: list[str], keys: str = "~{rle:g}:*") -> str:
    return f"on >secret resetkeys {keys} resetchannels -@all " + " ".join(f"+{right}" for right in rights)


@pytest.mark.usefixtures("server_kind")
async def test_least_rights_of_a_user(told: Told) -> None:
    """A user with these rights to the group ``g`` can take part, and each of them is needed.

    ``ACL SETUSER app on >secret resetkeys ~{rle:g}:* resetchannels -@all +evalsha +script|load +info +time +exists
    +hmget +hset +hdel +del +pexpire +zadd +zrem +zcount +zrangebyscore``

    (``~{rle:*}*`` for all groups.) redis-py also sends CLIENT SETINFO: that is refused, and does no harm.
    """
    users = {"app": _user(RIGHTS), "all": _user(RIGHTS, "~{rle:*}*")}
    users |= {f"no-{right.replace('|', '-')}": _user([each for each in RIGHTS if each != right]) for right in RIGHTS}
    # Equal entries are merged among the latest ten only, so with all these users the log has to be long.
    with RedisServer(users=users, config=["acllog-max-len 100000"]) as server:

        def refusals() -> set[tuple[str, str]]:
            with server.client(decode_responses=True) as client:
                return {(entry["username"], entry["object"]) for entry in client.acl_log(count=100_000)}

        async with member(server.url_of("app", "secret"), settings={"key_rate": "100/s"}) as one:
            for number in range(60):
                one.executor.schedule(one.work, key=f"{number % 20}")
            await one.wait_for_start()
            one.executor.rate = 2 * RATE
            await one.wait_for(lambda: 60 == len(one.starts))
        async with member(server.url_of("all", "secret"), "h", load=5) as one:
            await one.wait_for_start()
        assert {"client|setinfo"} >= {what for _, what in refusals()}
        assert [] == told.messages

        def named() -> set[str]:
            return {right for right in RIGHTS if any(f"(missing: +{right})" in text for text in told.messages)}

        async with contextlib.AsyncExitStack() as stack:
            lacking = {}
            for right in RIGHTS:
                name = f"no-{right.replace('|', '-')}"
                # Each at its own rate: what one leaves undone must not be done by another.
                entered = member(server.url_of(name, "secret"), names=(f"for {name}",), settings={"key_rate": "100/s"})
                lacking[right] = await stack.enter_async_context(entered)
                for number in range(40):
                    lacking[right].executor.schedule(lacking[right].work, key=f"{number}")
            for right in ONLY_SOMETIMES:
                await lacking[right].wait_for(lambda one=lacking[right]: one.starts, PATIENT_SECONDS)
            for right in ("hdel", "zrem"):  # once the first keys are at rest

                def has_failed(one: Member = lacking[right]) -> bool:
                    one.executor.schedule(one.work, key="later")
                    return one.fleet.failures > 0

                await lacking[right].wait_for(has_failed, PATIENT_SECONDS)
            # Redis 6.2 names SCRIPT without its subcommand.
            always = set(RIGHTS) - ONLY_SOMETIMES - {"script|load"}
            await lacking["hset"].wait_for(lambda: always <= named(), PATIENT_SECONDS)
            dead = {right for right, one in lacking.items() if not one.starts}
        missed = {(name, what) for name, what in refusals() if what != "client|setinfo"}
        assert {(f"no-{right.replace('|', '-')}", right) for right in RIGHTS} == missed
        assert set(RIGHTS) - ONLY_SOMETIMES == dead


@pytest.mark.usefixtures("server_kind")
async def test_keys_of_another_group_are_out_of_reach(told: Told) -> None:
    """A user with the rights to one group cannot take part in another, and the log says so."""
    with RedisServer(users={"app": _user(RIGHTS)}) as server:
        async with member(server.url_of("app", "secret"), "h", load=5) as one:
            await one.wait_for(lambda: told.messages)
            assert [] == one.starts
    assert 1 == told.count(f"{REFUSES} (NoPermissionError: ")


# Clients and connections.


async def test_tls(tls_proxy: Proxy, told: Told) -> None:
    """``rediss://`` connects with the certificate authority given in the URL."""
    assert tls_proxy.url.startswith("rediss://")
    async with member(tls_proxy.url, load=300) as one:
        await one.wait_for(lambda: len(one.starts) > 0.5 * RATE, HANG_SECONDS)
        tls_proxy.blackhole()
        await asyncio.sleep(0.2)
    assert [] == told.errors


@pytest.mark.usefixtures("server_kind")
async def test_unix_socket(tmp_path: Path) -> None:
    """``unix://`` connects to the path of a socket."""
    path = tmp_path / "s"
    with RedisServer(config=[f'unixsocket "{path}"']):
        async with member(f"unix://{path}", load=5) as one:
            await one.wait_for_start()


async def test_client_that_is_handed_in_is_not_closed(redis_server: RedisServer) -> None:
    """A client passed in is not closed, whatever its settings; a client made from a URL is."""
    settings: list[dict[str, Any]] = [{}, {"decode_responses": True}, {"protocol": 2}, {"db": 3}]
    with redis_server.client(decode_responses=True) as control:

        def count(name: str) -> int:
            return sum(each["name"] == name for each in control.client_list())

        for number, options in enumerate(settings):
            client = redis.asyncio.Redis.from_url(redis_server.url, client_name="mine", **options)
            async with member(client, f"{number}", load=20, names=("a", "b")) as one:
                await one.wait_for_start()
            assert await client.ping(), options
            assert 1 == count("mine"), options
            await client.aclose()
        async with member(f"{redis_server.url}?client_name=own", load=20, names=("a", "b")) as one:
            await one.wait_for_start()
            assert 1 == count("own")
        await asyncio.sleep(0.05)
        assert 0 == count("own")


@side_by_side
async def test_pool_of_one_connection_is_enough(server: RedisServer, told: Told) -> None:
    """A pool of one connection suffices: each call returns its connection, also if its reply is lost."""
    with Proxy(server.port, seed=LOSING_SEED) as proxy:
        client = redis.asyncio.Redis.from_url(proxy.url, max_connections=1)
        async with member(client, names=("one", "two"), load=500) as one:
            await one.wait_for_start()
            proxy.drop_replies, proxy.silence = 0.3, 0.05
            await asyncio.sleep(1.0)
            proxy.drop_replies = 0.0
            assert proxy.counts.lost_replies > 2
            assert await one.wait_for_start() < BACK_SECONDS
            assert not any("MaxConnections" in text or "Too many" in text for text in told.messages)
        await client.aclose()


@pytest.mark.slow
async def test_cluster(redis_cluster_server: RedisCluster, told: Told) -> None:
    """Executors of a group work on one of three masters of a cluster, and the client is not closed."""
    redis_cluster_server.flush()
    client = redis.asyncio.RedisCluster.from_url(redis_cluster_server.url)
    names = ("one", "two", "three")
    async with member(client, names=names, load=300) as one:

        def least_taken() -> int:
            return min(executor.statistics().fleet.taken for executor in one.executors)

        await one.wait_for(lambda: least_taken() > 0.5 * RATE, HANG_SECONDS)
    assert await client.ping(target_nodes=redis.asyncio.RedisCluster.PRIMARIES)
    await client.aclose()
    holders = [master for master in redis_cluster_server.masters if group_keys(master)]
    assert [redis_cluster_server.master_of("{rle:g}:one:tickets")] == holders
    assert [1, 1, 1] == [len(seen_of(holders[0], name=name)) for name in names]
    assert [] == told.messages


@pytest.mark.slow
@pytest.mark.usefixtures("server_kind")
async def test_master_of_a_sentinel() -> None:
    """A client of ``Sentinel.master_for`` works, and is not closed."""
    with sentinel_group() as group:
        sentinel = Sentinel(group.addresses, socket_timeout=0.5)
        client = sentinel.master_for(group.name)
        async with member(client, names=("one", "two"), load=300) as one:
            await one.wait_for_start()
            await asyncio.sleep(0.5)
            assert seen_of(group.master(), name="one")
        assert await client.ping()
        await client.aclose()
        for each in sentinel.sentinels:
            await each.aclose()


# Bad input.

URL = "redis://127.0.0.1:6379/0"


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"redis": None}, TypeError, "redis"),
        ({"redis": 6379}, TypeError, "redis"),
        ({"redis": b"redis://127.0.0.1"}, TypeError, "redis"),
        ({"redis": object()}, TypeError, "redis"),
        ({"redis": redis.asyncio.Redis}, TypeError, "redis"),
        ({"redis": redis.RedisCluster}, TypeError, "redis"),
        ({"redis": ""}, ValueError, "must begin with redis"),
        ({"redis": "127.0.0.1:6379"}, ValueError, "must begin with redis"),
        ({"redis": "http://127.0.0.1"}, ValueError, "must begin with redis"),
        ({"group": 5}, TypeError, "group"),
        ({"group": None}, TypeError, "group"),
        ({"group": b"g"}, TypeError, "group"),
        ({"group": ""}, ValueError, "group"),
        ({"group": "a{b}"}, ValueError, "group"),
        ({"prefix": None}, TypeError, "prefix"),
        ({"prefix": ""}, ValueError, "prefix"),
        ({"prefix": "}"}, ValueError, "prefix"),
        ({"weight": 0}, ValueError, "weight"),
        ({"weight": -1}, ValueError, "weight"),
        ({"weight": math.nan}, ValueError, "weight"),
        ({"weight": math.inf}, ValueError, "weight"),
        ({"weight": "1"}, TypeError, "weight"),
        ({"weight": True}, TypeError, "weight"),
        ({"weight": None}, TypeError, "weight"),
        ({"interval": 0.049}, ValueError, "interval"),
        ({"interval": 5.1}, ValueError, "interval"),
        ({"interval": math.nan}, ValueError, "interval"),
        ({"interval": "soon"}, ValueError, "interval"),
        ({"interval": "6s"}, ValueError, "interval"),
        ({"late": 0}, ValueError, "late"),
        ({"late": 0.11}, ValueError, "late"),
        ({"late": None}, TypeError, "late"),
        ({"clock_difference": -0.1}, ValueError, "clock_difference"),
        ({"clock_difference": 61}, ValueError, "clock_difference"),
        ({"clock_difference": b"1"}, TypeError, "clock_difference"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": 61}, ValueError, "timeout"),
        ({"timeout": None}, TypeError, "timeout"),
        ({"strictness": "exact"}, TypeError, "strictness"),
        ({"strictness": None}, TypeError, "strictness"),
        ({"outage": "stop"}, TypeError, "outage"),
        ({"outage": None}, TypeError, "outage"),
        ({"outage": Outage}, TypeError, "outage"),
        ({"wait": 3}, TypeError, "wait"),
        ({"group": "\ud800"}, ValueError, "group"),  # cannot be encoded for a socket
        ({"prefix": "\ud800"}, ValueError, "prefix"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", ascii(value))[:50],
)
def test_bad_argument_is_named(arguments: dict[str, Any], error: type[Exception], name: str) -> None:
    """A bad argument is refused at once, by name."""
    with pytest.raises(error, match=rf"\b{name}\b"):
        RedisPeers(**{"redis": URL, "group": "g", **arguments})


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:sEcr3t/x@host:6379", "redis://:sEcr3t#x@host:6379", "redis://:12/sEcr3t@host:6379",
        "redis://:12#sEcr3t@host", "redis://:12?sEcr3t=x@host", "redis://u:12?sEcr3t@host", "redis://[sEcr3t@host", "x:sEcr3t@host",
        "redis://:sEcr3t", "redis://host:6379/0?db=sEcr3t",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [RedisPeers, RedisProgress])
def test_url_that_is_refused_is_not_written_down(kind: Any, url: str) -> None:
    """No part of a refused URL is in the error or its cause, since it may contain a password."""
    with pytest.raises(ValueError, match="redis must be a URL") as info:
        kind(url)
    error: BaseException | None = info.value
    while error is not None:
        assert "Ecr" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_option_of_a_url_that_nobody_knows_is_refused_at_once() -> None:
    """An unknown option of a URL is refused at once by name, and not by a warning at the first call."""
    with pytest.raises(ValueError, match="'colour'"):
        RedisPeers("redis://host?colour=red")


@pytest.mark.parametrize(
    "url", ["redis://", "redis://u:a%2Fb%23@h:1/2", "redis://h?username=a@b&password=p@s", "unix:///a@b.sock"]
)
def test_url_that_is_well_formed_is_accepted(url: str) -> None:
    """A well-formed URL is accepted, encoded where needed."""
    assert "RedisPeers" in repr(RedisPeers(url, "g"))


def test_client_that_is_not_asynchronous_is_refused() -> None:
    """A synchronous client is refused: it would block the event loop."""
    with (
        redis.Redis.from_url(URL) as client,
        pytest.raises(TypeError, match="redis must be a URL or an asyncio client"),
    ):
        RedisPeers(client)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)])
def test_bad_number_of_peers_is_named(value: Any, error: type[Exception]) -> None:
    """``Outage.static`` takes a whole number of at least 1."""
    with pytest.raises(error, match="peers_max"):
        Outage.static(value)


def test_edges_of_every_range_are_accepted() -> None:
    """The bounds that the documentation gives are accepted."""
    least = {"weight": 1e-6, "interval": 0.05, "late": 0.003, "clock_difference": 0, "timeout": 0.001}
    most = {"weight": 1e6, "interval": 5, "late": 0.1, "clock_difference": 60, "timeout": 60}
    for options in (least, most, {"strictness": Strictness.NOMINAL, "outage": Outage.static(1)}):
        peers = RedisPeers(URL, "g", **options)
        assert f"<RedisPeers 'g' {peers.id}>" == repr(peers)


@pytest.mark.parametrize("peers", [RedisPeers, URL, 3, object()], ids=["class", "URL", "number", "object"])
def test_manager_refuses_what_are_no_peers(peers: Any) -> None:
    """A manager refuses what is no peers, also the class in place of an instance."""
    with pytest.raises(TypeError, match="peers"):
        ExecutorManager(peers=peers)


EVERY_LIMIT: dict[str, dict[str, Any]] = {
    "bucket": {"rate": "10/s", "policy": Burst(5)},
    "window": {"rate": "10/s", "policy": Window()},
    "rates": {"rate": "10/s, 100/min"},
    "quota": {"rate": "1000 per day"},
    "tokens": {"rate": "10/s", "resources": {"tokens": "5/s"}},
    "keys": {"rate": "100/s", "key_rate": "10/s"},
}


async def test_limits_of_every_kind_are_shared(redis_server: RedisServer) -> None:
    """Two processes start no more than every kind of limit allows, each starts some, and no call fails."""
    starts: dict[str, list[float]] = {name: [] for name in EVERY_LIMIT}
    by: Counter[tuple[str, int]] = Counter()

    def start(name: str, number: int) -> None:
        starts[name].append(time.monotonic())
        by[name, number] += 1

    async def process(number: int) -> None:
        async with ExecutorManager(peers=RedisPeers(redis_server.url, "every limit")) as manager:
            executors = {name: manager.executor(name, **limits) for name, limits in EVERY_LIMIT.items()}
            for name, executor in executors.items():
                for _ in range(60):
                    executor.schedule(start, name, number, key="a")
            await asyncio.sleep(5.5)
            assert all(executor.statistics().fleet.failures == 0 for executor in executors.values())
            for executor in executors.values():
                await executor.shutdown(cancel_pending=True)

    await asyncio.gather(process(0), process(1))
    for name in set(EVERY_LIMIT) - {"bucket", "quota"}:
        assert all(later - earlier > 0.99 for earlier, later in zip(starts[name], starts[name][10:], strict=False)), (
            name
        )
    assert all(later - earlier > 0.99 for earlier, later in zip(starts["bucket"], starts["bucket"][15:], strict=False))
    assert len(starts["quota"]) == 120
    assert all(len(times) >= 15 for times in starts.values())
    assert set(by) == {(name, number) for name in EVERY_LIMIT for number in (0, 1)}


@side_by_side
async def test_peers_serve_one_manager(server: RedisServer, told: Told) -> None:
    """A second manager with the same peers is refused, and closing it does not harm the first."""
    async with member(server.url, load=500) as one:
        other = ExecutorManager(peers=one.peers)
        other.executor("limit", rate=RATE)
        with pytest.raises(RuntimeError, match="one manager"):
            await other.start()
        await one.wait_for_start()
        await other.aclose()
        await asyncio.sleep(HELD)
        await one.wait_for_start(1.0)


async def test_peers_are_not_used_again(redis_server: RedisServer) -> None:
    """Peers that have left cannot be used by another manager."""
    async with member(redis_server.url, load=1) as one:
        await one.wait_for_start()
    with pytest.raises(RuntimeError, match="one manager"):
        await ExecutorManager(peers=one.peers).start()


WITHOUT_REDIS = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "redis":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
from ratelimited_executor.peers import RedisPeers
try:
    RedisPeers("redis://127.0.0.1:6379")
except ModuleNotFoundError as error:
    print(error.name, "|", error)
"""


def test_package_that_is_missing_is_named() -> None:
    """Without the package ``redis`` the name can be imported, and using it names the extra to install."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_REDIS],
        capture_output=True, text=True, cwd=ROOT, timeout=20, check=False,
    )  # fmt: skip
    assert ("", 0) == (run.stderr, run.returncode)
    assert run.stdout.startswith("redis")
    assert "pip install 'ratelimited-executor[redis]'" in run.stdout


# Rates and lifetimes.


@side_by_side
async def test_rate_of_0_of_infinity_and_back(server: RedisServer, told: Told) -> None:
    """A rate of 0 halts the group, infinity lifts the limit of one process, and a finite rate then holds for all."""
    async with member(server.url, load=1000) as one, member(server.url, load=1000) as two:
        await asyncio.sleep(SETTLED)
        one.executor.rate = 0
        await asyncio.sleep(HELD)  # what was granted before starts
        start = time.monotonic()
        await asyncio.sleep(0.3)
        assert (0, 0) == (one.count(start), two.count(start))
        one.executor.rate = math.inf
        await one.wait_for(lambda: len(one.starts) == 1000)
        await asyncio.sleep(1.2)  # after which two has asked again
        assert 0 == two.count(start), "an infinite rate is set for one process only"
        one.load(300)
        assert await one.wait_for_start() < 1
        await one.wait_for(lambda: len(one.starts) == 1300)
        one.executor.rate = RATE
        one.load(300)
        one.starts.clear()
        two.starts.clear()
        await two.wait_for_start()
        await asyncio.sleep(1.0)
        assert one.starts
        assert worst_window(one, two) <= RATE + 1
        assert len(one.starts) + len(two.starts) > 0.5 * RATE


@side_by_side
async def test_rate_that_was_set_last_holds_for_all_after_0(server: RedisServer, told: Told) -> None:
    """The rate set last is in force for all: after 0 by one process, 100 by another."""
    async with member(server.url, load=1000) as one, member(server.url, load=1000) as two:
        await asyncio.sleep(SETTLED)
        one.executor.rate = 0
        await asyncio.sleep(0.7)
        two.executor.rate = RATE
        await two.wait_for_start()
        await asyncio.sleep(0.4)
        start = time.monotonic()
        await asyncio.sleep(0.6)
        held = one.fleet.held
        assert one.count(start) + two.count(start) > 0.6 * 0.6 * RATE, (
            f"{one.count(start)} + {two.count(start)}, {one.fleet}"
        )
        assert one.count(start) > 0
        assert held < RATE / 2, "a process must not hold permits that it does not use"


@side_by_side
async def test_rate_set_by_another_process_is_told(server: RedisServer, told: Told) -> None:
    """``statistics().fleet.rate`` is the rate in force, whoever has set it, to what a clock may drift."""

    def about(rate: float | Fraction) -> Any:
        return pytest.approx(rate, rel=0.001)

    nominal = {"strictness": Strictness.NOMINAL}
    async with member(server.url, load=900, **nominal) as one:
        await one.wait_for_start()
        async with member(server.url, load=900, rate=40.0, **nominal) as two:
            await one.wait_for(lambda: one.fleet.rate == about(40))
            two.executor.rate = "5/min"
            await one.wait_for(lambda: one.fleet.rate == about(Fraction(5, 60)))
            one.executor.rate = 70
            await two.wait_for(lambda: two.fleet.rate == about(70))


@side_by_side
async def test_pausing_leaves_the_rate_to_the_others(server: RedisServer, told: Told) -> None:
    """A paused process makes no calls and leaves the rate to the others, until it resumes."""
    async with member(server.url, load=900) as one, member(server.url, load=900) as two:
        await asyncio.sleep(SETTLED)
        one.executor.pause()
        paused = time.monotonic()
        await asyncio.sleep(0.4)
        start = time.monotonic()
        await asyncio.sleep(0.6)
        assert 0 == one.count(paused + 0.01)
        assert two.count(start, start + 0.6) > 0.6 * 0.6 * RATE
        assert "idle" == one.fleet.state
        one.executor.resume()
        assert await one.wait_for_start() < 2
        await two.wait_for_start(2)
        assert worst_window(one, two) <= RATE + 1


@side_by_side
async def test_executor_whose_key_is_of_a_wrong_type_is_alone_in_its_outage(server: RedisServer, told: Told) -> None:
    """An executor whose key has a wrong type is alone in its outage, is named in the log, and recovers."""
    async with member(server.url, names=("good", "bad"), load=900) as both:
        good, bad = both.executors
        await asyncio.sleep(SETTLED)
        key = f"{{rle:{GROUP.get()}}}:bad:tickets"
        server.ask("DEL", key)
        server.ask("SET", key, "x")
        await both.wait_for(lambda: "outage" == bad.statistics().fleet.state)
        await both.wait_for(lambda: told.messages)
        before, begin = good.statistics().fleet.taken, time.monotonic()
        await asyncio.sleep(1.0)
        assert good.statistics().fleet.taken - before > 0.6 * (time.monotonic() - begin) * RATE
        (text,) = told.messages
        assert "'bad'" in text
        assert "WRONGTYPE" in text
        server.ask("DEL", key)
        await both.wait_for(lambda: "active" == bad.statistics().fleet.state)
        server.ask("SET", key, "x")
        await both.wait_for(lambda: "outage" == bad.statistics().fleet.state)
        await bad.aclose()
        before, begin = good.statistics().fleet.taken, time.monotonic()
        await asyncio.sleep(1.0)
        assert good.statistics().fleet.taken - before > 0.6 * (time.monotonic() - begin) * RATE
        assert NO_ANSWER not in " ".join(told.messages)
        server.ask("DEL", key)


@side_by_side
async def test_closing_one_of_two_executors(server: RedisServer, told: Told) -> None:
    """One executor leaves its group while another continues, and may be replaced by a new one of the same name."""
    async with member(server.url, names=("one", "two"), load=900) as both:
        one, two = both.executors
        await asyncio.sleep(SETTLED)
        (first,) = seen_of(server, name="one")
        one.shutdown(cancel_pending=True)
        await one.aclose()
        before = two.statistics().fleet.taken
        assert "closed" == one.statistics().fleet.state
        with pytest.raises(ExecutorStoppedError):
            one.execute(print)
        await asyncio.sleep(0.4)
        assert two.statistics().fleet.taken - before > 0.5 * 0.4 * RATE
        again = both.manager.executor("one", rate=RATE, pacing=Pacing.ON_TIME, drain_timeout=0)
        begin = time.monotonic()
        await asyncio.wait_for(again.submit(str), BACK_SECONDS)
        assert time.monotonic() - begin < 1.0, "the group is out of its quarantine"
        (second,) = set(seen_of(server, name="one")) - {first}
        assert first.rpartition(":")[0] == second.rpartition(":")[0] == both.peers.id
    assert [] == told.messages


async def test_task_that_closes_its_manager(redis_server: RedisServer) -> None:
    """A task that awaits the closing of its own manager is refused; one that lets another task do it succeeds."""
    refused: list[str] = []
    closers: list[asyncio.Task[None]] = []

    async def close_here(manager: ExecutorManager) -> None:
        try:
            await manager.aclose()
        except RuntimeError as error:
            refused.append(str(error))

    def close_there(manager: ExecutorManager) -> None:
        closers.append(asyncio.create_task(manager.aclose()))

    for close in (close_here, close_there):
        manager = ExecutorManager(peers=RedisPeers(redis_server.url, close.__name__, **FAST))
        executor = manager.executor("limit", rate=RATE, pacing=Pacing.ON_TIME)  # accepted tasks run
        async with manager:
            executor.execute(close, manager)
            batch = executor.schedule_many(str, range(20))
            done, _ = await asyncio.wait([asyncio.ensure_future(batch)], timeout=BACK_SECONDS)
            executor.shutdown(cancel_pending=True)  # else a drain that hangs would hang the test
            assert done, f"{close.__name__}: nothing is granted any more, and the drain never ends: {batch}"
            await asyncio.gather(*closers)
        assert executor.is_terminated
    assert 1 == len(refused)
    assert "wait for itself" in refused[0]
    assert 1 == len(closers)


@pytest.mark.parametrize("when", [0.0, 0.001, 0.02, 0.06])
async def test_cancelling_while_closing(own_redis_server: RedisServer, when: float) -> None:
    """Closing that is cancelled at any time, also during the farewell to a hanging server, leaves nothing behind."""
    one = Member(RedisPeers(f"{own_redis_server.url}?client_name=own", "g", **FAST), ("limit",), RATE)
    await one.manager.start()
    one.load(100)
    await one.wait_for_start()
    own_redis_server.stop()
    closing = asyncio.create_task(one.manager.aclose())
    await asyncio.sleep(when)
    closing.cancel()
    begin = time.monotonic()
    await asyncio.wait([closing])
    took = time.monotonic() - begin
    left = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    own_redis_server.go_on()
    await asyncio.sleep(0.05)
    with own_redis_server.client(decode_responses=True) as control:
        left += ["a connection" for each in control.client_list() if each["name"] == "own"]
    await one.manager.aclose()  # else what is left would affect the next test
    await asyncio.sleep(0.2)
    assert took < CLOSE_SECONDS
    assert closing.cancelled()
    assert [] == left


@side_by_side
async def test_drain_that_is_cancelled_is_cut_short(server: RedisServer, told: Told) -> None:
    """A cancelled drain cancels the waiting tasks, leaves the group and closes the connection."""
    peers = RedisPeers(server.url, GROUP.get(), **FAST)
    manager = ExecutorManager(peers=peers)
    executor = manager.executor("limit", rate=RATE, pacing=Pacing.ON_TIME)
    await manager.start()
    batch = executor.schedule_many(str, [""] * 5000)
    await asyncio.sleep(0.5)
    closing = asyncio.create_task(manager.aclose())
    await asyncio.sleep(0.2)
    assert not closing.done(), "a drain goes on until everything has run"
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert executor.is_terminated
    assert executor.statistics().cancelled > 4000
    assert 0 == executor.statistics().fleet.held
    assert "closed" == executor.statistics().fleet.state
    del batch


@pytest.mark.parametrize("close", ["never started", "at once", "twice", "side by side"])
async def test_closing_at_odd_times(redis_server: RedisServer, told: Told, close: str) -> None:
    """A manager closes before its start, before the first answer, twice, and concurrently."""
    manager = ExecutorManager(peers=RedisPeers(redis_server.url, "g", **FAST))
    executor = manager.executor("limit", rate=RATE, drain_timeout=0)
    if close != "never started":
        await manager.start()
        executor.execute(str)
    if close == "side by side":
        await asyncio.sleep(0.3)
        await asyncio.gather(manager.aclose(), manager.aclose(), manager.aclose())
    await manager.aclose()
    if close == "twice":
        await manager.aclose()
    assert executor.is_terminated
    assert [] == told.messages


async def test_what_the_leaving_hold_is_free_for_others(redis_server: RedisServer) -> None:
    """Permits of a window that a closing process has not used can be used by another one at once."""
    window = {"policy": Window()}
    # A busy machine may be late with the last call, which is not repeated: it gets a quarter of a second.
    async with member(redis_server.url, load=RATE_COUNT, rate="100/min", settings=window, timeout=1.0) as one:
        await one.wait_for_start()
    used = len(one.starts)
    async with member(redis_server.url, load=RATE_COUNT, rate="100/min", settings=window) as two:
        await two.wait_for(lambda: len(two.starts) == RATE_COUNT - used)
        await asyncio.sleep(0.3)
        assert RATE_COUNT - used == len(two.starts)


@pytest.mark.parametrize("end", ["idle", "busy", "infinite"])
async def test_keys_expire_after_the_last_has_left(redis_server: RedisServer, end: str) -> None:
    """After the last process has left, every key expires within three days: for so long, a step of the clock is borne."""
    async with member(redis_server.url, load=1000 if end == "busy" else 3) as one:
        await one.wait_for_start()
        if end != "busy":
            await one.wait_for(lambda: one.fleet.state == "idle")
        if end == "infinite":
            one.executor.rate = math.inf
            await asyncio.sleep(0.1)
    lives = {key: redis_server.ask("PTTL", key) for key in group_keys(redis_server)}
    assert ["keys", "rest", "seen", "tickets"] == [key.rpartition(":")[2] for key in lives]
    assert all(0 <= life <= KEPT_MS for life in lives.values()), lives


async def test_every_key_expires_though_nobody_can_leave(redis_server: RedisServer) -> None:
    """Every key expires also if processes die in their quarantine or while idle."""
    without_end = {}
    for load in (0, 5):
        async with member(redis_server.url, str(load), load=load, clock_difference=2.0) as one:
            await one.wait_for(lambda one=one: one.fleet.peers)
            lives = {key: redis_server.ask("PTTL", key) for key in group_keys(redis_server, str(load))}
            assert lives
            without_end |= {key: life for key, life in lives.items() if not 0 <= life <= KEPT_MS}
    assert {} == without_end


async def test_one_who_comes_after_the_last_has_left_finds_the_state(redis_server: RedisServer) -> None:
    """A process that joins after the last has left, as in a restart, finds the state, which has not begun to expire."""
    eras = []
    for _ in range(2):
        async with member(redis_server.url, load=1) as one:
            await one.wait_for_start()
            eras.append(one.fleet.era)
            life = redis_server.ask("PTTL", "{rle:g}:limit:tickets")
            assert life > 3_600_000, f"the state of a limit in use expires in {life} ms"
    assert 1 == len(set(eras))


def test_nothing_is_left_by_those_who_ran_side_by_side(outcomes: dict[str, BaseException | None]) -> None:
    """The tests that ran at the same time left no task and no unobserved exception."""
    if outcomes[""] is not None:
        raise outcomes[""]


# Processes.

FORKED = """
import asyncio, json, multiprocessing, sys, time

from ratelimited_executor import ExecutorManager, Pacing
from ratelimited_executor.peers import RedisPeers

method, made, url, group = sys.argv[1:]


def make():
    peers = RedisPeers(url, group, interval=0.1, clock_difference=0.0)
    manager = ExecutorManager(peers=peers)
    return manager, manager.executor("limit", rate=100, pacing=Pacing.ON_TIME, drain_timeout=0)


async def work(manager, executor):
    starts = []
    async with manager:
        for _ in range(500):
            executor.execute(lambda: starts.append(time.monotonic()))
        peers = 0
        for _ in range(35):
            await asyncio.sleep(0.1)
            peers = max(peers, executor.statistics().fleet.peers)
        executor.shutdown(cancel_pending=True)
    return {"id": manager.peers.id, "peers": peers, "starts": starts}


def child(queue):
    manager, executor = early if early is not None else make()
    queue.put(asyncio.run(work(manager, executor)))


early = make() if made == "before" else None
if __name__ == "__main__":
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=child, args=(queue,)) for _ in range(2)]
    for process in processes:
        process.start()
    print(json.dumps([queue.get(timeout=20) for _ in processes]))
    for process in processes:
        process.join()
"""


WAYS = [("fork", "after"), ("fork", "before"), ("spawn", "after"), ("spawn", "before")]


@pytest.fixture(scope="module")
def pairs(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[str, int, str]]:
    """Return the output, exit code and errors of each pair of processes, all run at the same time."""
    program = tmp_path_factory.mktemp("forked") / "forked.py"
    program.write_text(FORKED, encoding="utf-8")
    with RedisServer() as server:
        running = {
            way: subprocess.Popen(
                [sys.executable, str(program), *way, server.url, "-".join(way)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            )
            for way in WAYS
        }  # fmt: skip
        told = {way: process.communicate(timeout=40) for way, process in running.items()}
        return {way: (told[way][0], process.returncode, told[way][1]) for way, process in running.items()}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=["fork", "fork, made before it", "spawn", "spawn, made at import"])
def test_each_process_has_an_id_of_its_own(
    pairs: dict[tuple[str, str], tuple[str, int, str]], way: tuple[str, str]
) -> None:
    """Two processes are two peers with their own ids, wherever their manager was made."""
    output, code, complaints = pairs[way]
    assert (0, "") == (code, complaints)
    one, two = json.loads(output)
    starts = sorted(one["starts"] + two["starts"])
    worst = max(bisect_left(starts, start + 1) - index for index, start in enumerate(starts))
    assert min(len(each["starts"]) for each in (one, two)) > 20
    assert worst <= RATE + 1, f"{worst} starts in a second"
    assert one["id"] != two["id"]
    assert [2, 2] == [one["peers"], two["peers"]]
