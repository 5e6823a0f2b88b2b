"""Plays users of a service: each is a coroutine that waits for an answer before it sends its next request.

This is the *closed* model, beside the open one of ``OpenLoad``: as many users as were asked for, and as many requests as
they come to send. A service that becomes slow is asked less often, as by people who wait for a page; so the response times
leave out whoever would have come meanwhile ("coordinated omission"), and no rate is promised.

A user has a client of aiohttp for itself, with its own cookies and connections. A middleware of the client measures each
request, from its start to the end of its body. An exception of the user's code, such as a failed assertion, turns its last
request into an error. So does the cancellation of a user by its own code, or whatever else it raises: the others go on.

*Our lateness* is that of the event loop a moment before the request was recorded: answers were read as late as that.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import aiohttp
from yarl import URL

from ratelimited_executor.cli.bench.aiohttp_client import BoundedBody, kind_of_client_error, send_once
from ratelimited_executor.cli.bench.cpu import CpuMeter
from ratelimited_executor.cli.bench.open_load import Live
from ratelimited_executor.cli.bench.options import CLASSES_MAX
from ratelimited_executor.cli.bench.senders import HEAD_BYTES, message_of, outcome_of_status
from ratelimited_executor.load.arrivals import Arrival, Phase, Schedule
from ratelimited_executor.load.recording import LoadOutcome, LoadRecorder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ratelimited_executor.cli.stopping import Stop
    from ratelimited_executor.load.figures import Figures

    Behaviour = Callable[[aiohttp.ClientSession], Awaitable[object]]

__all__ = ["UserLoad", "name_of"]

_PAUSE_SECONDS: Final = 1.0  # of a user after an exception, so that one that always fails is no busy loop
_PROBE_SECONDS: Final = 0.01  # between two looks at how late the event loop is
_END_SECONDS: Final = 5.0  # for the code of users to end once it is cancelled
_BODY_BYTES_MAX: Final = 16 * 1_048_576  # of a response, decompressed, as each is held as a whole
_OTHER: Final = "other"
_NO_REQUEST: Final = "before a request"  # the class of an exception of a user that has sent nothing yet
_VARIABLE: Final = re.compile(r"(?<=/)[^/]*[0-9][^/]*")


def name_of(method: str, path: str) -> str:
    """Return the class of a request: its method and path, without whatever differs from item to item.

    >>> name_of("GET", "/items/42/parts/a1"), name_of("POST", "/login")
    ('GET /items/{}/parts/{}', 'POST /login')
    """
    return f"{method} {_VARIABLE.sub('{}', path)}"


class UserLoad:
    """One load of users, to be played once.

    Args:
        behaviour: what a user does with its client; called again whenever it returns.
        base_url: the URL that paths are relative to.
        users: how many there are.
        seconds: for how long requests are recorded.
        warm_up: seconds before that, in which the users begin one after the other.
        timeout: seconds after which a request is given up.
        headers: the headers of each request to the origin of the base URL; no other origin gets them.

    Attributes:
        recorder: records its requests as they end.
        has_stuck_users: True if there are users that went on, though they were cancelled: no event loop can be closed
            that has them, nor can they be collected.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        base_url: str,
        users: int,
        seconds: float,
        warm_up: float,
        timeout: float,
        headers: Mapping[str, str],
    ) -> None:
        self._behaviour, self._users, self._warm_up = behaviour, users, warm_up
        self._base_url, self._timeout, self._headers = base_url, timeout, headers
        self._origin = URL(base_url).origin()
        self._total = warm_up + seconds
        self._turns: dict[str, int] = {}  # requests of each class, those of the warm-up too
        self.recorder = LoadRecorder(Schedule(classes={"": self._phases(0.0)}))
        self._begin = 0.0
        self._in_flight = 0
        self._count = 0
        self._lateness = 0.0  # of the event loop, a moment ago
        self.has_stuck_users = False

    def _phases(self, rate: float) -> list[Phase]:
        measured = Phase(first=rate, last=rate, seconds=self._total - self._warm_up)
        if not self._warm_up:
            return [measured]
        return [Phase(first=0, last=0, seconds=self._warm_up, is_measured=False), measured]

    async def play(self, stop: Stop) -> Figures:
        """Let the users act for the time of the load, and return the figures.

        Args:
            stop: ends the load early; a second signal ends the requests under way.
        """
        loop = asyncio.get_running_loop()
        self._begin, meter = time.perf_counter(), CpuMeter()
        users = [_User(self, self._warm_up * rank / self._users) for rank in range(self._users)]
        tasks = {user.task for user in users}
        probing = loop.create_task(self._probe())
        ordered, insisted = (loop.create_task(event.wait()) for event in (stop.ordered, stop.insisted))
        try:
            await asyncio.wait({ordered, *tasks}, timeout=self._total, return_when=asyncio.FIRST_COMPLETED)
            end = min(self.now(), self._total) if ordered.done() else self._total  # a timer may fire early
            for user in users:
                user.end()
            drain = self._timeout if self._in_flight else 0.0
            waiting = loop.create_task(asyncio.wait(tasks, timeout=drain + _END_SECONDS))
            await asyncio.wait({waiting, insisted}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            done, stuck = await asyncio.wait(tasks, timeout=_END_SECONDS)
        finally:
            for user in users:
                user.end()
            for each in (probing, ordered, insisted, *tasks):
                each.cancel()
        for user in users:
            user.settle()
        self.has_stuck_users = bool(stuck)
        for task in done:
            if not task.cancelled():
                task.result()  # an error of our own
        return self._figures(max(0.0, end - self._warm_up), meter)

    async def _probe(self) -> None:
        """Note how late the loop is, as answers are read as late as that."""
        while True:
            due = self.now() + _PROBE_SECONDS
            await asyncio.sleep(_PROBE_SECONDS)
            self._lateness = max(0.0, self.now() - due)

    def _figures(self, seconds: float, meter: CpuMeter) -> Figures:
        if self._turns:
            counts = Counter(self.recorder.columns(0, self.recorder.ended_count).classes)
            rates = [counts[index] / seconds if seconds else 0.0 for index in range(len(self._turns))]
            classes = {name: self._phases(rate) for name, rate in zip(self._turns, rates, strict=True)}
            self.recorder.classify(Schedule(classes=classes))
        return self.recorder.figures(seconds=seconds, full_seconds=0.0, **meter.shares(self.now()))

    def class_names(self) -> Sequence[str]:
        """Return the names of the steps by their indexes, as far as there were any."""
        return list(self._turns)

    def live(self) -> Live:
        """Return a snapshot of the load."""
        now = self.now()
        return Live(
            is_warm_up=now < self._warm_up,
            seconds=min(now, self._total),
            total=self._total,
            rate=self.recorder.ended_count / max(now - self._warm_up, 1.0),
            in_flight=self._in_flight,
            waiting=0,
            ended=self.recorder.ended_count,
            errors=self.recorder.error_count,
            recent=self.recorder.recent(),
        )

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self._begin

    def client(self, middleware: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """Return the client of a user."""
        return aiohttp.ClientSession(
            self._base_url,
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=None),
            cookie_jar=aiohttp.CookieJar(unsafe=True),  # also for a host that is an address
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            middlewares=(middleware, send_once),
        )

    async def behave(self, client: aiohttp.ClientSession) -> None:
        """Act as a user once."""
        await self._behaviour(client)

    async def send(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request, and wait until all of the response is there, or the request is given up."""
        self._in_flight += 1
        try:
            if request.url.origin() != self._origin:
                for name, value in self._headers.items():
                    if request.headers.get(name) == value:
                        del request.headers[name]
            async with asyncio.timeout(self._timeout):
                response = await handler(request)
                response.content = BoundedBody(response.content, _BODY_BYTES_MAX)  # type: ignore[assignment]  # acts as one
                await response.read()
                return response
        finally:
            self._in_flight -= 1

    def arrival(self, name: str) -> Arrival:
        """Return a request that begins now."""
        if name not in self._turns and len(self._turns) >= CLASSES_MAX:
            name = _OTHER
        turn, due = self._turns.setdefault(name, 0), self.now()
        index = list(self._turns).index(name)
        self._turns[name] += 1
        self._count += 1
        return Arrival(self._count - 1, due, 1 if self._warm_up and due >= self._warm_up else 0, index, turn)

    def record(self, ended: Ended) -> None:
        """Record a request that has ended."""
        self.recorder.add(ended.arrival, ended.arrival.due, ended.at, ended.outcome, self._lateness)


class Ended(NamedTuple):
    """A request that has ended, in seconds after the beginning, and may still turn out to be an error."""

    arrival: Arrival
    at: float
    outcome: LoadOutcome


class _User:
    """One user, in a task of its own."""

    def __init__(self, load: UserLoad, delay: float) -> None:
        self._load, self._delay = load, delay
        self._last: Ended | None = None
        self._in_flight = 0
        self._over = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._act())

    def end(self) -> None:
        """End it, once the requests under way have ended."""
        self._over.set()
        if not self._in_flight:
            self.task.cancel()

    async def _act(self) -> None:
        pause = self._delay
        try:
            async with self._load.client(self._send) as client:
                while not self._over.is_set():
                    try:
                        await asyncio.sleep(pause)  # of 0 too, as it may await nothing itself
                        pause = 0.0
                        await self._load.behave(client)
                    except BaseException as error:
                        if self._over.is_set() and isinstance(error, (asyncio.CancelledError, GeneratorExit)):
                            raise
                        while self.task.cancelling():  # by its own code
                            self.task.uncancel()
                        self._fail(error)
                        pause = _PAUSE_SECONDS
        finally:
            self.settle()

    async def _send(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if self._over.is_set():  # nothing is sent after the end, by whatever goes on though it was cancelled
            await asyncio.Future()
        self.settle()
        arrival = self._load.arrival(name_of(request.method, request.url.path))
        self._in_flight += 1
        outcome = LoadOutcome("timeout")  # if it is cancelled, by the load or by a time-out of the user's own
        try:
            response = await self._load.send(request, handler)
            body = await response.read()
            outcome = outcome_of_status(response.status, len(body), body[:HEAD_BYTES])
            return response
        except Exception as error:
            outcome = LoadOutcome(kind_of_client_error(error), str(error))
            raise
        finally:
            self._in_flight -= 1
            self.settle()
            self._last = Ended(arrival, self._load.now(), outcome)
            if self._over.is_set():
                self.end()

    def _fail(self, error: BaseException) -> None:
        """Turn the last request into an error, unless it is one; without a request yet, the error counts as one."""
        if self._last is None and self._over.is_set():
            return
        arrival = self._load.arrival(_NO_REQUEST) if self._last is None else self._last.arrival
        last = self._last or Ended(arrival, arrival.due, LoadOutcome())
        if last.outcome.error is None:
            outcome = last.outcome._replace(error=kind_of_client_error(error), sample=message_of(error))
            last = last._replace(outcome=outcome)
        self._last = last
        self.settle()

    def settle(self) -> None:
        """Record the last request."""
        if self._last is not None:
            self._load.record(self._last)
            self._last = None
