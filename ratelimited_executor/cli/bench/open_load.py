"""Sends an open load: starts each request when it is due, regardless of the outcome of earlier ones.

The arrivals are computed beforehand and passed to the executor by ``schedule_many(delays=)``, a twentieth of a second
of them at a time. A rate would not work: it paces starts *by earlier starts*, so a late start, or a wait for a
connection, would move all later requests and their intended times. Computed due times stay fixed, and each delay is
computed from the beginning of the load, so errors do not accumulate.

``max_concurrency`` is the number of connections: a request that is due while all are in use waits in the executor. That
wait is part of its response time, but not of its service time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor
from ratelimited_executor.load.recording import NOT_STARTED, Ended, LoadRecorder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratelimited_executor.cli.stopping import Stop
    from ratelimited_executor.load.arrivals import Arrival, Schedule
    from ratelimited_executor.load.figures import Figures

__all__ = ["Live", "LoadOutcome", "OpenLoad"]

# The span of requests scheduled together. With a longer one, the loop would be busy for longer than starts may be late.
_SLICE_SECONDS: Final = 0.05
# How long before its due time a request is scheduled: longer than the loop is ever busy with other work.
_AHEAD_SECONDS: Final = 0.25
# A timer may fire early by the resolution of the loop's clock, and then there would be no second wake-up.
_TIMER_SECONDS: Final = 0.002
# Between two steps of a checkpoint, each of which takes a third of a millisecond: the loop is free for most of the time.
_STEP_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """The outcome of a request.

    Attributes:
        error: the kind of its error; None if there was none.
        sample: the text of the error, or of the response.
        status: the status of the response; None if there was none.
        received: bytes of the response body.
    """

    error: str | None = None
    sample: str = ""
    status: int | None = None
    received: int = 0


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
        send: sends one request; its errors are classified by ``kind_of``.
        kind_of: returns the kind of an error.
        connections: the maximum number of requests in flight.
        timeout: seconds after sending at which a request is given up.
        drain: seconds after the last due time during which waiting requests may still start.
        clock: returns monotonic seconds; by default the event loop's clock. That of uvloop has a resolution of
            milliseconds.
    """

    def __init__(
        self,
        schedule: Schedule,
        send: Callable[[Arrival], Awaitable[LoadOutcome]],
        *,
        kind_of: Callable[[BaseException], str],
        connections: int,
        timeout: float,
        drain: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        phases = schedule.phases
        self._schedule, self._phases, self._send, self._kind_of = schedule, phases, send, kind_of
        self._connections, self._timeout, self._drain = connections, timeout, drain
        self._clock = clock
        self._recorder = LoadRecorder(schedule)
        self._total = sum(phase.seconds for phase in phases)
        self._warm_up = schedule.warm_up
        self._begin = self._cpu_begin = 0.0
        self._waiting: dict[int, Arrival] = {}  # scheduled and not started, by number
        self._batches: list[Any] = []
        self._limits: set[asyncio.Timeout] = set()  # of requests in flight
        self._in_flight = 0
        self._full_since = self._freed_at = 0.0
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
        insisted.add_done_callback(lambda _: self._give_up_all())
        self._cpu_begin = time.process_time()
        try:
            async with (
                ExecutorManager(precision=0) as manager,
                RateLimitedExecutor(
                    "bench", pacing=Pacing.ON_TIME, max_concurrency=self._connections, manager=manager
                ) as executor,
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
            cpu_share = self._cpu_share()
        finally:
            for task in (ordered, insisted):
                task.cancel()
            gc.unfreeze()
        return self._recorder.figures(seconds=seconds, cpu_share=cpu_share, full_seconds=self._full_seconds)

    async def checkpoint(self) -> dict[str, Any] | None:
        """Return figures of the requests that have ended since the last call, for merging, as values for JSON.

        Takes a while: its steps are short, with pauses between them, so that requests start on time meanwhile.

        Returns:
            None if no measured request has ended.
        """
        seconds = min(self._total, self._now()) - self._warm_up
        cut = self._recorder.cut()
        if seconds <= 0 or not cut.count:
            return None
        steps = cut.json_in_steps(seconds=seconds, cpu_share=self._cpu_share(), full_seconds=self._full_seconds)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                value: dict[str, Any] = done.value
                return value
            await asyncio.sleep(_STEP_SECONDS)

    def _cpu_share(self) -> float:
        """Return the fraction of one core that the process has used since the beginning of the load."""
        return (time.process_time() - self._cpu_begin) / max(self._now(), _SLICE_SECONDS)

    def live(self) -> Live:
        """Return a snapshot of the load."""
        now = self._now()
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
            waiting=sum(arrival.due <= now for arrival in self._waiting.values()),
            ended=self._recorder.ended_count,
            errors=self._recorder.error_count,
            p50=self._recorder.recent(0.5),
            p99=self._recorder.recent(0.99),
        )

    def _now(self) -> float:
        """Return the seconds since the beginning of the load."""
        return 0.0 if self._clock is None else self._clock() - self._begin

    async def _feed(self, executor: RateLimitedExecutor) -> None:
        """Schedule the requests shortly before they are due."""
        together: list[Arrival] = []
        for arrival in self._schedule.arrivals():
            if together and arrival.due >= together[0].due + _SLICE_SECONDS:
                self._hand_over(executor, together)
                together = []
            if not together:
                await asyncio.sleep(max(0.0, arrival.due - _AHEAD_SECONDS - self._now()))
            together.append(arrival)
        if together:
            self._hand_over(executor, together)

    def _hand_over(self, executor: RateLimitedExecutor, together: list[Arrival]) -> None:
        self._batches = [batch for batch in self._batches if not batch.done()]
        self._waiting.update((arrival.number, arrival) for arrival in together)
        now = self._now()
        delays = [max(0.0, arrival.due - now) for arrival in together]
        self._batches.append(executor.schedule_many(self._start, together, delays=delays))

    async def _start(self, arrival: Arrival) -> None:
        """Send one request, and record its outcome."""
        started = self._now()
        del self._waiting[arrival.number]
        lateness = max(0.0, started - max(arrival.due, self._freed_at))
        self._in_flight += 1
        if self._in_flight == self._connections:
            self._full_since = started
        limit = asyncio.timeout(self._timeout)
        self._limits.add(limit)
        try:
            async with limit:
                outcome = await self._send(arrival)
        except TimeoutError:
            outcome = LoadOutcome(error="timeout")
        except asyncio.CancelledError:
            raise  # the whole measurement is cancelled
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code, which may raise anything
            outcome = LoadOutcome(error=self._kind_of(error), sample=_text_of(error))
        finally:
            self._limits.discard(limit)
            self._release()
        self._recorder.add(
            Ended(
                due=arrival.due,
                phase=arrival.phase,
                started=started,
                ended=self._now(),
                lateness=lateness,
                error=outcome.error,
                sample=outcome.sample,
                status=outcome.status,
                received=outcome.received,
                class_index=arrival.class_index,
            )
        )

    def _release(self) -> None:
        now = self._now()
        if self._in_flight == self._connections:
            self._freed_at = now
            self._full_seconds += max(0.0, now - max(self._full_since, self._warm_up))
        self._in_flight -= 1
        if self._is_fed:
            self._change.set()

    async def _finish(self, ordered: asyncio.Task[Any]) -> float:
        """Wait for the responses; return the time over which measured requests were due."""
        self._is_fed = True
        loop = asyncio.get_running_loop()
        deadline = self._total + self._drain
        timer = loop.call_later(max(0.0, deadline - self._now()) + _TIMER_SECONDS, self._change.set)
        ordered.add_done_callback(lambda _: self._change.set())
        while (self._waiting or self._in_flight) and not ordered.done() and self._now() < deadline:
            self._change.clear()
            await self._change.wait()
        timer.cancel()
        now = self._now()
        end = min(self._total, now) if ordered.done() else self._total
        for batch in self._batches:
            batch.cancel()
        for arrival in self._waiting.values():
            if arrival.due <= now:
                self._recorder.add(
                    Ended(
                        due=arrival.due,
                        phase=arrival.phase,
                        started=None,
                        ended=now,
                        error=NOT_STARTED,
                        class_index=arrival.class_index,
                    )
                )
        self._waiting.clear()
        while self._in_flight:
            self._change.clear()
            await self._change.wait()
        return max(0.0, end - self._warm_up)

    def _give_up_all(self) -> None:
        """End all requests in flight as timed out."""
        loop = asyncio.get_running_loop()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(loop.time())


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # code of the user
        return ""
