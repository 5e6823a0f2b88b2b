"""Sends an open load: starts each request when it is due, regardless of the outcome of earlier ones.

The arrivals are computed beforehand and passed to the executor by ``schedule_many(delays=)``, a hundred of them at a
time. A rate would not work: it paces starts *by earlier starts*, so a late start would move all later requests and their
intended times. Computed due times stay fixed, and each delay is computed from the beginning of the load, so errors do not
accumulate.

A start is a plain call, of which the kernel makes several in one stretch if several are due. A request that is due while
as many as there are connections are in flight waits here, first come, first served. That wait is part of its response
time, but not of its service time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor
from ratelimited_executor.load.recording import NOT_STARTED, LoadOutcome, LoadRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ratelimited_executor.cli.stopping import Stop
    from ratelimited_executor.load.arrivals import Arrival, Schedule
    from ratelimited_executor.load.figures import Figures
    from ratelimited_executor.load.recording import LoadSums

__all__ = ["InFlight", "Live", "OpenLoad", "RequestSender"]

# Requests scheduled together, and the longest span of them. With more, the loop would be busy for longer than starts may
# be late: each takes four microseconds.
_SLICE_COUNT: Final = 50
_SLICE_SECONDS: Final = 0.05
# How long before its due time a request is scheduled: longer than the loop is ever busy with other work.
_AHEAD_SECONDS: Final = 0.25
# A timer may fire early by the resolution of the loop's clock, and then there would be no second wake-up.
_TIMER_SECONDS: Final = 0.002
# Between two steps of a checkpoint, each of which takes a third of a millisecond: the loop is free for most of the time.
_STEP_SECONDS: Final = 0.005


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
    p50: float
    p99: float


class OpenLoad:
    """One load, to be sent once.

    Args:
        schedule: the requests.
        sender: sends them.
        kind_of: returns the kind of an error that ``sender.start`` raises.
        connections: the maximum number of requests in flight.
        drain: seconds after the last due time during which waiting requests may still start.
        clock: returns monotonic seconds; by default the event loop's clock. That of uvloop has a resolution of
            milliseconds.
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
        self._clock = clock
        self._recorder = LoadRecorder(schedule)
        self._total = sum(phase.seconds for phase in phases)
        self._warm_up = schedule.warm_up
        self._begin = self._cpu_begin = self._cpu_wait_begin = 0.0
        self._ahead: dict[int, Arrival] = {}  # scheduled and not due yet, by number
        self._waiting: deque[Arrival] = deque()  # due, and waiting for a connection
        self._batches: list[Any] = []
        self._in_flight = 0
        self._full_since = 0.0
        self._full_seconds = 0.0
        self._is_fed = False
        self._change = asyncio.Event()  # a request ended after all were scheduled

    async def play(self, stop: Stop, *, begin: float | None = None) -> Figures:
        """Send every request, wait for the responses, return the figures.

        Args:
            stop: ends the load early; a second signal ends it at once.
            begin: the beginning of the load, on the clock; by default at once.
        """
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.freeze()  # a collection that walks all modules would delay starts
        ordered, insisted = (loop.create_task(event.wait()) for event in (stop.ordered, stop.insisted))
        insisted.add_done_callback(lambda each: None if each.cancelled() else self._sender.give_up_all())
        self._cpu_begin, self._cpu_wait_begin = time.process_time(), _cpu_wait_seconds()
        try:
            async with (
                ExecutorManager(precision=0) as manager,
                RateLimitedExecutor("bench", pacing=Pacing.ON_TIME, manager=manager) as executor,
            ):
                self._clock = self._clock or loop.time
                self._begin = self._clock() + _AHEAD_SECONDS if begin is None else begin
                feeding = loop.create_task(self._feed(executor))
                await asyncio.wait({feeding, ordered}, return_when=asyncio.FIRST_COMPLETED)
                if not feeding.done():
                    feeding.cancel()
                await asyncio.wait({feeding})
                if not feeding.cancelled():
                    feeding.result()
                seconds = await self._finish(ordered)
            times = self._times()
        finally:
            for task in (ordered, insisted):
                task.cancel()
            gc.unfreeze()
        return self._recorder.figures(seconds=seconds, **times)

    async def checkpoint(self) -> dict[str, Any] | None:
        """Return figures of the requests that have ended since the last call, for merging, as values for JSON.

        Takes a while: its steps are short, with pauses between them, so that requests start on time meanwhile.

        Returns:
            None if no measured request has ended.
        """
        seconds = min(self._total, self.now()) - self._warm_up
        cut = self._recorder.cut()
        if seconds <= 0 or not cut.count:
            return None
        times = self._times()
        sums: LoadSums = await _in_steps(cut.sums_in_steps())
        value: dict[str, Any] = await _in_steps(sums.json_in_steps(seconds=seconds, **times))
        return value

    def _times(self) -> dict[str, float]:
        """Return how the process has spent its time since the beginning of the load."""
        seconds = max(self.now(), _SLICE_SECONDS)
        return {
            "cpu_share": (time.process_time() - self._cpu_begin) / seconds,
            "cpu_wait_share": (_cpu_wait_seconds() - self._cpu_wait_begin) / seconds,
            "full_seconds": self._full_seconds,
        }

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
            waiting=len(self._waiting),
            ended=self._recorder.ended_count,
            errors=self._recorder.error_count,
            p50=self._recorder.recent(0.5),
            p99=self._recorder.recent(0.99),
        )

    def now(self) -> float:
        """Return the seconds since the beginning of the load."""
        return 0.0 if self._clock is None else self._clock() - self._begin

    async def _feed(self, executor: RateLimitedExecutor) -> None:
        """Schedule the requests shortly before they are due."""
        arrivals = self._schedule.arrivals()
        first = next(arrivals, None)
        while first is not None:
            await asyncio.sleep(max(0.0, first.due - _AHEAD_SECONDS - self.now()))
            together, until, first = [first], first.due + _SLICE_SECONDS, None
            for arrival in arrivals:
                if arrival.due >= until or len(together) == _SLICE_COUNT:
                    first = arrival
                    break
                together.append(arrival)
            self._hand_over(executor, together)

    def _hand_over(self, executor: RateLimitedExecutor, together: list[Arrival]) -> None:
        self._batches = [batch for batch in self._batches if not batch.done()]
        self._ahead.update((arrival.number, arrival) for arrival in together)
        dues = [arrival.due for arrival in together]
        now = self.now()
        self._batches.append(
            executor.schedule_many(self._fall_due, together, delays=[max(0.0, due - now) for due in dues])
        )

    def _fall_due(self, arrival: Arrival) -> None:
        """Send a request, or let it wait for a connection."""
        del self._ahead[arrival.number]
        if self._in_flight == self._connections:
            self._waiting.append(arrival)
            return
        now = self.now()
        self._in_flight += 1
        if self._in_flight == self._connections:
            self._full_since = now
        self._send(arrival, now, max(0.0, now - arrival.due))

    def _send(self, arrival: Arrival, now: float, lateness: float) -> None:
        request = InFlight(self, arrival, now, lateness)
        try:
            self._sender.start(request)
        except Exception as error:  # noqa: BLE001  # one request that cannot be made is an error like any other
            outcome = LoadOutcome(self._kind_of(error), str(error))
            asyncio.get_running_loop().call_soon(self.ended, request, outcome)

    def ended(self, request: InFlight, outcome: LoadOutcome) -> None:
        """Record the outcome of a request, and send the next one that waits for a connection."""
        now = self.now()
        self._recorder.add(request.arrival, request.started, now, outcome, request.lateness)
        if self._waiting:
            self._send(self._waiting.popleft(), now, 0.0)
            return
        if self._in_flight == self._connections:
            self._full_seconds += max(0.0, now - max(self._full_since, self._warm_up))
        self._in_flight -= 1
        if self._is_fed:
            self._change.set()

    async def _finish(self, ordered: asyncio.Task[Any]) -> float:
        """Wait for the responses; return the time over which measured requests were due."""
        self._is_fed = True
        loop = asyncio.get_running_loop()
        deadline = self._total + self._drain
        timer = loop.call_later(max(0.0, deadline - self.now()) + _TIMER_SECONDS, self._change.set)
        ordered.add_done_callback(lambda _: self._change.set())
        while (self._ahead or self._waiting or self._in_flight) and not ordered.done() and self.now() < deadline:
            self._change.clear()
            await self._change.wait()
        timer.cancel()
        now = self.now()
        end = min(self._total, now) if ordered.done() else self._total
        for batch in self._batches:
            batch.cancel()
        late = [arrival for arrival in self._ahead.values() if arrival.due <= now]
        for arrival in (*self._waiting, *late):
            self._recorder.add(arrival, None, now, LoadOutcome(NOT_STARTED))
        self._waiting.clear()
        self._ahead.clear()
        while self._in_flight:
            self._change.clear()
            await self._change.wait()
        return max(0.0, end - self._warm_up)


def _cpu_wait_seconds() -> float:
    """Return for how long this thread could have run and had no core; 0 where the system does not say, as only Linux does."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


async def _in_steps(steps: Generator[None, None, Any]) -> Any:
    """Return the value of a generator, whose steps are short, with pauses in which requests start on time."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value
        await asyncio.sleep(_STEP_SECONDS)
