"""Sends an open load: starts each request when it is due, regardless of the outcome of earlier ones.

The due times are computed from the beginning of the load, so no late start moves a later one, and errors do not
accumulate. A rate-limited executor would not do: it paces starts *by earlier starts*. Its waker does, which is a timer
descriptor where the system has one: it is set to the next due time, and what is due when it fires is started. So a request
costs two turns of the event loop, one for its start and one for its response.

A request that is due while as many as there are connections are in flight waits, first come, first served. That wait is
part of its response time, but not of its service time. Nor is it lateness of the tool, except for the time before all
connections were in use: a request that was due before then would have had one. What waits takes no memory: it is computed
once it has a connection, or at the end of the load.

No turn of the event loop does more than some milliseconds of work, however many requests are due: so a signal is noticed.
"""

from __future__ import annotations

import asyncio
import gc
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._runtime.time.clock import clock_for, is_of_system
from ratelimited_executor._runtime.time.wakers import waker_for
from ratelimited_executor.cli.bench.cpu import CpuMeter
from ratelimited_executor.load.recording import NOT_STARTED, LoadOutcome, LoadRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ratelimited_executor._runtime.time.wakers import Waker
    from ratelimited_executor.cli.stopping import Stop
    from ratelimited_executor.load.arrivals import Arrival, Schedule
    from ratelimited_executor.load.figures import Figures
    from ratelimited_executor.load.recording import LoadSums, Recent

__all__ = ["FiguresLostError", "InFlight", "Live", "OpenLoad", "RequestSender", "in_steps"]

# From the call of ``play`` to the beginning of the load: what the set-up has left to the loop is done by then.
_LEAD_SECONDS: Final = 0.25
# Requests that start in one turn of the loop if they are late: it takes half a millisecond, and then responses are read.
_TOGETHER_MAX: Final = 50
# Requests that are recorded or summed up in one turn of the loop after the load: it takes a millisecond or two.
_RECKONED_TOGETHER: Final = 500
# From a second signal until the figures are given up, if they have not been summed up by then.
_HURRY_SECONDS: Final = 1.0
# A timer may fire early by the resolution of the loop's clock, and then there would be no second wake-up.
_TIMER_SECONDS: Final = 0.002
# Between two steps of a checkpoint, each of which takes a third of a millisecond: the loop is free for most of the time.
_STEP_SECONDS: Final = 0.005


class FiguresLostError(asyncio.CancelledError):
    """A second signal has ended a load before its figures were summed up."""


class InFlight:
    """A request that was sent and has not ended; times in seconds after the beginning of the load.

    Args:
        load: the load that it belongs to.
        arrival: the request.
        started: when it was sent.
        lateness: the delay before the start that the tool itself added.

    Attributes:
        carrier: whatever its sender needs to give it up.
    """

    __slots__ = ("_load", "arrival", "carrier", "lateness", "started")

    def __init__(self, load: OpenLoad, arrival: Arrival, started: float, lateness: float) -> None:
        self._load = load
        self.arrival = arrival
        self.started = started
        self.lateness = lateness
        self.carrier: Any = None

    def age(self) -> float:
        """Return the seconds since it was sent."""
        return self._load.now() - self.started

    def end(self, outcome: LoadOutcome) -> None:
        """Record its outcome; another request may be sent in its place before this returns. To be called once."""
        self._load.ended(self, outcome)


class RequestSender(Protocol):
    """Sends requests, and enforces their timeout."""

    def start(self, request: InFlight) -> None:
        """Send a request; its ``end`` is called later, from the event loop. Raises whatever the request cannot be made of."""
        ...

    def give_up_all(self) -> None:
        """End all requests in flight as timed out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Snapshot of a load; times in seconds, response times of the last thousand requests."""

    is_warm_up: bool
    seconds: float
    total: float
    rate: float
    in_flight: int
    waiting: int
    ended: int
    errors: int
    recent: Recent


class OpenLoad:
    """One load, to be sent once.

    Args:
        schedule: the requests.
        sender: sends them.
        kind_of: returns the kind of an error that ``sender.start`` raises.
        connections: the maximum number of requests in flight.
        drain: seconds after the last due time during which waiting requests may still start.
        clock: returns monotonic seconds; by default those that the event loop goes by.

    Attributes:
        recorder: records its requests as they end.
    """

    def __init__(
        self,
        schedule: Schedule,
        sender: RequestSender,
        *,
        kind_of: Callable[[BaseException], str],
        connections: int,
        drain: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        phases = schedule.phases
        self._schedule, self._phases, self._sender, self._kind_of = schedule, phases, sender, kind_of
        self._connections, self._drain = connections, drain
        self._given_clock = clock
        self._clock: Callable[[], float] = lambda: 0.0  # of the load, once it is played
        self.recorder = LoadRecorder(schedule)
        self._total = sum(phase.seconds for phase in phases)
        self._warm_up = schedule.warm_up
        self._from_clock = 0.0  # the loop's time minus that of the clock
        self._begin = 0.0
        self._meter = CpuMeter()
        self._arrivals = schedule.arrivals()
        self._next = next(self._arrivals, None)  # not due yet, or not started yet, as those after it
        self._waker: Waker
        self._in_flight = 0
        self._full_since = 0.0
        self._full_seconds = 0.0
        self._is_over = False
        self._change = asyncio.Event()  # every request has ended, or the load is over

    async def play(self, stop: Stop, *, begin: float | None = None) -> Figures:
        """Send every request, wait for the responses, return the figures.

        Args:
            stop: ends the load early; a second signal ends it at once.
            begin: the beginning of the load, on the clock; by default at once.

        Raises:
            FiguresLostError: if a second signal has come, and summing up takes more than a second from then on.
        """
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.freeze()  # a collection that walks all modules would delay starts
        ordered, insisted = (loop.create_task(event.wait()) for event in (stop.ordered, stop.insisted))
        insisted.add_done_callback(lambda each: None if each.cancelled() else self._sender.give_up_all())
        self._meter = CpuMeter()
        clock = clock_for(loop)
        self._clock = self._given_clock or clock.monotonic
        self._begin = self._clock() + _LEAD_SECONDS if begin is None else begin
        self._waker = waker_for(loop, self._start_due, copy_context(), is_foreign=not is_of_system(clock))
        self._from_clock = clock.monotonic() - self._clock()
        try:
            self._set_waker()
            seconds = await self._wait(ordered, stop)
            times = self._times()
        finally:
            self._waker.close()
            for task in (ordered, insisted):
                task.cancel()
            gc.unfreeze()
        steps = self.recorder.figures_in_steps(_RECKONED_TOGETHER, seconds=seconds, **times)
        figures: Figures = await self._in_turns(steps, stop)
        return figures

    async def checkpoint(self) -> dict[str, Any] | None:
        """Return figures of the requests that have ended since the last call, for merging, as values for JSON.

        Takes a while: its steps are short, with pauses between them, so that requests start on time meanwhile.

        Returns:
            None if no measured request has ended.
        """
        seconds = min(self._total, self.now()) - self._warm_up
        cut = self.recorder.cut()
        if seconds <= 0 or not cut.count:
            return None
        times = self._times()
        sums: LoadSums = await in_steps(cut.sums_in_steps())
        value: dict[str, Any] = await in_steps(sums.json_in_steps(seconds=seconds, **times))
        return value

    def _times(self) -> dict[str, float]:
        """Return how the process has spent its time since the beginning of the load."""
        return {**self._meter.shares(self.now()), "full_seconds": self._full_seconds}

    def class_names(self) -> Sequence[str]:
        """Return the names of the classes by their indexes; none without classes."""
        return self._schedule.names

    def live(self) -> Live:
        """Return a snapshot of the load."""
        now = self.now()
        position, rate = max(0.0, now), 0.0
        for phase in self._phases:
            if position < phase.seconds:
                rate = phase.rate_at(position) / self._schedule.participants
                break
            position -= phase.seconds
        return Live(
            is_warm_up=now < self._warm_up,
            seconds=min(max(0.0, now), self._total),
            total=self._total,
            rate=rate,
            in_flight=self._in_flight,
            waiting=self._waiting_count(now),
            ended=self.recorder.ended_count,
            errors=self.recorder.error_count,
            recent=self.recorder.recent(),
        )

    def now(self) -> float:
        """Return the seconds since the beginning of the load."""
        return self._clock() - self._begin

    def _set_waker(self) -> None:
        """Have the next request started when it is due."""
        if self._next is not None:
            due = self._begin + self._next.due
            self._waker.set(due + self._from_clock, self._clock() + self._from_clock)

    def _start_due(self) -> None:
        """Start the requests that are due, as long as there are connections for them."""
        at = self._clock()
        for _ in range(_TOGETHER_MAX):
            if self._in_flight == self._connections and self._is_due(at):
                return  # ``ended`` starts it
            if not self._is_due(at):
                break
            self._in_flight += 1
            if self._in_flight == self._connections:
                self._full_since = at - self._begin
            self._start_next(at)
            at = self._clock()
        self._set_waker()

    def _is_due(self, at: float) -> bool:
        """Return True if the next request is due at a time of the clock."""
        return self._next is not None and self._begin + self._next.due <= at

    def _waiting_count(self, now: float) -> int:
        """Return how many requests wait for a connection, by the rate: of Poisson arrivals, about as many."""
        if self._next is None or self._in_flight < self._connections or self._next.due > now:
            return 0
        return 1 + int(self._schedule.expected_until(now) - self._schedule.expected_until(self._next.due))

    def _start_next(self, at: float) -> None:
        """Send the next request, which is due and has a connection."""
        arrival, now = self._next, at - self._begin
        assert arrival is not None
        self._next = next(self._arrivals, None)
        end = min(now, self._full_since) if self._in_flight == self._connections else now
        self._send(arrival, now, max(0.0, end - arrival.due))

    def _send(self, arrival: Arrival, now: float, lateness: float) -> None:
        request = InFlight(self, arrival, now, lateness)
        try:
            self._sender.start(request)
        except Exception as error:  # noqa: BLE001  # one request that cannot be made is an error like any other
            outcome = LoadOutcome(self._kind_of(error), str(error))
            asyncio.get_running_loop().call_soon(self.ended, request, outcome)

    def ended(self, request: InFlight, outcome: LoadOutcome) -> None:
        """Record the outcome of a request, and send the next one that waits for a connection."""
        at = self._clock()
        now = at - self._begin
        self.recorder.add(request.arrival, request.started, now, outcome, request.lateness)
        if self._in_flight == self._connections:
            if self._is_due(at):
                self._start_next(at)
                if not self._is_due(at):
                    self._set_waker()
                return
            self._full_seconds += max(0.0, now - max(self._full_since, self._warm_up))
        self._in_flight -= 1
        if not self._in_flight and (self._next is None or self._is_over):
            self._change.set()

    async def _wait(self, ordered: asyncio.Task[Any], stop: Stop) -> float:
        """Wait until all have ended; return the time over which measured requests were due."""
        deadline = self._total + self._drain
        over = asyncio.get_running_loop().call_later(max(0.0, deadline - self.now()) + _TIMER_SECONDS, self._change.set)
        ordered.add_done_callback(lambda _: self._change.set())
        if self._next is not None or self._in_flight:
            await self._change.wait()
        over.cancel()
        now = self.now()
        end = min(self._total, now) if ordered.done() else self._total
        await self._in_turns(self._end_starts(now), stop)
        while self._in_flight:
            self._change.clear()
            await self._change.wait()
        return max(0.0, end - self._warm_up)

    def _end_starts(self, now: float) -> Generator[None, None, None]:
        """Start no more requests; those that were due and have not started are errors. Yield between short steps."""
        self._is_over = True
        arrival, self._next = self._next, None
        outcome, number = LoadOutcome(NOT_STARTED), 0
        while arrival is not None and arrival.due <= now:
            self.recorder.add(arrival, None, now, outcome)
            arrival = next(self._arrivals, None)
            number += 1
            if number % _RECKONED_TOGETHER == 0:
                yield

    async def _in_turns(self, steps: Generator[None, None, Any], stop: Stop) -> Any:
        """Return the value of a generator, with a turn of the loop after each step, in which signals are noticed."""
        hurried_at = None
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            await asyncio.sleep(0)
            if stop.insisted.is_set():
                hurried_at = self._clock() if hurried_at is None else hurried_at
                if self._clock() - hurried_at > _HURRY_SECONDS:
                    raise FiguresLostError


async def in_steps(steps: Generator[None, None, Any]) -> Any:
    """Return the value of a generator, whose steps are short, with pauses in which requests start on time."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value
        await asyncio.sleep(_STEP_SECONDS)
