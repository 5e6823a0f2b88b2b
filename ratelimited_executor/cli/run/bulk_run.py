"""The run of one bulk job: schedules lines on an executor, and stops without losing any.

A line is *taken* when it is scheduled on the executor. From then on it is waiting, running, in a final state, or
withdrawn (given back unstarted because the run stopped). Lines that were not taken are still with the source. So at
every stop the lines not started are the withdrawn ones, those read but not taken, and those not read; this order is
that of the input.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor import TaskState
from ratelimited_executor.cli.run.calls import CallSettings, TakenLine, call_target
from ratelimited_executor.cli.run.decoding import BadLineError
from ratelimited_executor.cli.run.ledger import Ledger
from ratelimited_executor.cli.run.lookahead import Gate, OrderWatch
from ratelimited_executor.cli.run.results import ResultsWriter, describe_error, result_row
from ratelimited_executor.cli.stopping import Stop, StopReason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from ratelimited_executor import RateLimitedExecutor, TaskHandle
    from ratelimited_executor.cli.run.decoding import Facts
    from ratelimited_executor.cli.run.inputs import LineSource
    from ratelimited_executor.orders import TaskView

__all__ = ["BulkRun"]

_NAME: Final = "line "  # prefix of a task's name before the line's number: shown in warnings, parsed by the order
# Lines scheduled before yielding to the event loop; about 2 ms of work.
SLICE_LINES: Final = 100
# How long an ordered run waits for a stream to fill the look-ahead before it starts the first line.
STREAM_FILL_S: Final = 1.0
# How long cancelled calls may take to end at a second signal.
ABANDON_AFTER_S: Final = 1.0
# At a stop, a stream that is silent for this long is assumed to have no more lines.
REST_QUIET_S: Final = 1.0


class BulkRun:
    """One pass over a source; :meth:`play` once.

    Args:
        executor: a started executor that only this run uses; it is paused at a stop.
        source: the source of lines.
        settings: how lines become calls.
        gate: limits the number of waiting lines.
        stop: the order to end the run early.
        files: threads that read the source; not the loop's own, which the target may keep busy.
        results: the writer of result rows; None for no results.

    Attributes:
        ledger: the counts of the lines.
        begin: the time at which the run began, in epoch seconds.
        fed: set once no more lines will be taken: at the end of the input, or at a line that cannot be used.
        held_seconds: the time within calls on the event loop, those parts of coroutines excepted that run later.
    """

    def __init__(
        self,
        executor: RateLimitedExecutor,
        source: LineSource,
        settings: CallSettings,
        *,
        gate: Gate,
        stop: Stop,
        files: Executor,
        results: ResultsWriter | None = None,
    ) -> None:
        self.ledger = Ledger()
        self._executor = executor
        self._source = source
        self._settings = settings
        self._gate = gate
        self._stop = stop
        self._files = files
        self._results = results
        self._loop = asyncio.get_running_loop()
        self._epoch = time.time() - self._loop.time()
        self.begin = self.now()
        self._watch = OrderWatch() if settings.is_ordered else None
        self._waiting: dict[int, TakenLine] = {}
        self._running: dict[int, TakenLine] = {}
        self._withdrawn: list[TakenLine] = []
        self._unread: list[bytes] = []  # read but not taken when the run stopped
        self._lines_read = 0
        self._latest_due = self.begin
        self._input_failure: tuple[StopReason, Exception] | None = None
        self.held_seconds = 0.0
        self.fed = asyncio.Event()
        self._settled = asyncio.Event()  # no more lines will be taken, and none is in flight
        stop.on_order = self._on_stop
        if settings.is_timed and not settings.is_fair:
            # The executor treats a past due time as now, so lines that are overdue when taken would start in the order
            # of the file. They should start in the order of their own due times.
            executor.order = self._order_key

    def now(self) -> float:
        """Return epoch seconds on a scale that never steps."""
        return self._epoch + self._loop.time()

    @property
    def waiting(self) -> int:
        """The number of lines taken and not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of running calls."""
        return len(self._running)

    @property
    def latest_due(self) -> float:
        """The latest due time among the lines taken, in epoch seconds."""
        return self._latest_due

    @property
    def input_failure(self) -> Exception | None:
        """The error that ended the input early, if any; the lines before it are still processed."""
        return None if self._input_failure is None else self._input_failure[1]

    def _order_key(self, task: TaskView) -> tuple[float, float, int]:
        """Order lines by priority, then by their own due time, then by their position in the input."""
        line = self._waiting[int(task.name.removeprefix(_NAME))]
        return -line.priority, line.due, line.number

    async def play(self) -> None:
        """Run until every line has its final state, or the stop is ordered and all waiting lines are withdrawn.

        A bad line ends the input: the lines before it are processed, then the stop is ordered with its error. So one
        line number separates the lines that ran from the others. After a stop, running calls continue; see
        :meth:`settle`.
        """
        if self._settings.is_ordered:
            self._executor.pause()
            if not self._source.is_file:
                self._loop.call_later(STREAM_FILL_S, self._open)
        feeder = asyncio.create_task(self._feed())
        stopped = asyncio.create_task(self._stop.ordered.wait())
        settled = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait([stopped, settled], return_when=asyncio.FIRST_COMPLETED)
            await feeder
            if self._input_failure is not None:
                self._stop.order(*self._input_failure)  # an earlier signal takes precedence
            if self._stop.is_ordered:
                self._withdraw()
        finally:
            for task in (feeder, stopped, settled):
                task.cancel()

    async def settle(self) -> bool:
        """After a stop, wait for the running calls; a second signal cancels them.

        Returns:
            False if a call cannot be stopped (in a thread); its line is recorded as cancelled.
        """
        insisted = asyncio.create_task(self._stop.insisted.wait())
        settled = asyncio.create_task(self._settled.wait())
        await asyncio.wait([insisted, settled], return_when=asyncio.FIRST_COMPLETED)
        insisted.cancel()
        if not settled.done():
            for line in list(self._running.values()):
                if line.handle is not None:
                    line.handle.cancel()
            await asyncio.wait([settled], timeout=ABANDON_AFTER_S)
        settled.cancel()
        return self._abandon() == 0

    def not_started(self, *, with_unread: bool) -> Iterator[bytes]:
        """Yield the raw lines that were not started, in the order of the input; after a stop, once.

        Args:
            with_unread: True to also read the rest of the source, which blocks.
        """
        raws = (line.raw for line in sorted(self._withdrawn, key=lambda line: line.number))
        return chain(raws, self._unread, self._unread_rest() if with_unread else ())

    def _unread_rest(self) -> Iterator[bytes]:
        for block in self._source.rest(quiet_s=REST_QUIET_S):
            yield block
            if self._stop.insisted.is_set() and not self._source.is_file:
                return  # the writer may be endless; a file is always read to its end

    # -- Taking lines --------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Read and take lines until the end of the input or a stop."""
        try:
            while not self._source.at_end and not self._stop.is_ordered:
                lines = await self._loop.run_in_executor(self._files, self._source.read)
                await self._take_all(lines)
        except BadLineError as error:
            self._input_failure = (StopReason.BAD_LINE, error)
        except OSError as error:
            self._input_failure = (StopReason.INPUT_FAILED, error)
        except Exception as error:  # noqa: BLE001  # a bug must not lose the other lines; it is raised after writing them
            self._stop.order(StopReason.BUG, error)
        if not self._stop.is_ordered:
            self.fed.set()
        self._open()
        self._check_settled()

    async def _take_all(self, lines: list[bytes]) -> None:
        """Take the lines of a block; the rest at a stop or a bad line stays in order."""
        for index, raw in enumerate(lines):
            if not self._has_room():
                self._open()
                await self._wait_for_room()
            elif index % SLICE_LINES == SLICE_LINES - 1:
                await asyncio.sleep(0)
            if self._stop.is_ordered:
                self._unread = lines[index:]
                return
            self._lines_read += 1
            try:
                self._take(self._lines_read, raw)
            except BaseException:
                self._unread = lines[index:]
                raise

    def _has_room(self) -> bool:
        return self._gate.has_room and not (self._results is not None and self._results.is_congested)

    async def _wait_for_room(self) -> None:
        while not self._has_room() and not self._stop.is_ordered:
            if self._gate.has_room:
                await asyncio.sleep(0.01)  # the disk is behind, which is rare; no event signals its progress
            else:
                await self._gate.wait()

    def _open(self) -> None:
        """Let an ordered run start, once its look-ahead is as full as it can be."""
        if self._settings.is_ordered and not self._stop.is_ordered:
            self._executor.resume()

    def _take(self, number: int, raw: bytes) -> None:
        facts = self._settings.decoder.facts(number, raw)
        if facts is None:
            self.ledger.blank += 1
            return
        now = self.now()
        due = self._settings.due_times.due(facts, index=self.ledger.taken, begin=self.begin, now=now)
        line = TakenLine(number, raw, due=due, behind=max(0.0, now - due), priority=facts.priority, cost=facts.cost)
        self._latest_due = max(self._latest_due, due)
        if self._watch is not None and self._watch.is_late(priority=line.priority, due=due):
            self.ledger.late(number)
        expires = self._settings.expires
        if expires is not None and line.behind >= expires:
            self.ledger.taken += 1
            self._finish(line, "expired", error=f"was read {line.behind:.3f} s after its due time")
            return
        self._schedule(line, facts, expires, now)

    def _schedule(self, line: TakenLine, facts: Facts, expires: float | None, now: float) -> None:
        self._waiting[line.number] = line  # first: the executor calls the order at once
        terms: dict[str, Any] = {}  # only the options in use: a task with a key or a cost is a little larger
        if facts.key is not None:
            self.ledger.keyed += 1
            terms["key"] = facts.key
        if facts.cost != 1:
            terms["cost"] = facts.cost
        try:
            line.handle = handle = self._executor.schedule(
                self._call,
                line,
                at=facts.at,
                delay=max(0.0, line.due - now) if facts.at is None else None,
                priority=line.priority,
                expires=None if expires is None else expires - line.behind,
                in_thread=self._settings.in_threads,
                name=f"{_NAME}{line.number}",
                **terms,
            )
        except BaseException:
            del self._waiting[line.number]
            raise
        self.ledger.taken += 1
        self._gate.enter(len(line.raw))
        handle.add_done_callback(partial(self._on_done, line))

    # -- Calls ---------------------------------------------------------------------------------------------------

    def _call(self, line: TakenLine) -> object:
        """Call the target for a line; runs at the start instant, on the loop or in a worker thread."""
        if self._settings.in_threads:
            self._loop.call_soon_threadsafe(self._on_start, line)
            return call_target(self._settings, line)
        self._on_start(line)
        begin = time.monotonic()
        try:
            return call_target(self._settings, line)
        finally:
            self.held_seconds += time.monotonic() - begin

    def _on_start(self, line: TakenLine) -> None:
        """Record a start of the first or a later attempt; each takes permits."""
        handle = line.handle
        if handle is None or handle.started_at is None or handle.attempts <= line.start_count:
            return  # a late report from a thread; the end has already recorded the start
        self.ledger.start(handle.started_at, line.cost)
        line.start_count = handle.attempts
        if line.start_count > 1:
            return
        if self._watch is not None:
            self._watch.on_start(priority=line.priority, due=line.due, started=handle.started_at)
        self._running[line.number] = line
        self._leave(line)

    def _on_done(self, line: TakenLine, handle: TaskHandle[Any]) -> None:
        if line.is_withdrawn or line.handle is None:  # withdrawn or abandoned, and counted there
            return
        self._on_start(line)  # a thread's report of its start may come after its end
        self._leave(line)
        self._running.pop(line.number, None)
        lateness = None if handle.lateness is None else handle.lateness + line.behind
        error = None if handle.cancelled() else handle.exception()
        result = handle.result() if error is None and not handle.cancelled() else None
        self._finish(
            line,
            handle.state.value,
            lateness,
            started=handle.started_at,
            result=result,
            error=error,
            attempts=line.start_count,
        )

    def _finish(
        self,
        line: TakenLine,
        state: str,
        lateness: float | None = None,
        *,
        started: float | None = None,
        result: object = None,
        error: BaseException | str | None = None,
        attempts: int = 1,
    ) -> None:
        """Record the final state of a line in the counts and the results."""
        line.handle = None  # breaks the cycle line, handle, arguments, line
        self.ledger.states[state] += 1
        if lateness is not None:
            self.ledger.lateness.add(lateness)
        if state == "failed" and isinstance(error, BaseException):
            self.ledger.fail(line.number, describe_error(error))
        if self._results is not None:
            row = result_row(
                line.number,
                state,
                lateness,
                started=started,
                ended=self.now(),
                result=result,
                error=error,
                attempts=attempts,
            )
            self._results.add(row)
        self._check_settled()

    def _leave(self, line: TakenLine) -> None:
        if self._waiting.pop(line.number, None) is not None:
            self._gate.leave(len(line.raw))

    def _check_settled(self) -> None:
        if (self.fed.is_set() or self._stop.is_ordered) and self.ledger.in_flight == 0:
            self._settled.set()

    # -- Stopping ------------------------------------------------------------------------------------------------

    def _on_stop(self) -> None:
        """Stop starting lines at once."""
        self._executor.pause()
        self._gate.wake()

    def _withdraw(self) -> None:
        """Withdraw every line that has not started; the executor is paused, so none starts meanwhile."""
        for line in list(self._waiting.values()):
            handle = line.handle
            if handle is None or handle.done() or handle.started_at is not None:
                continue  # just expired, or running in a thread that has not reported yet
            line.is_withdrawn = True
            handle.cancel()
            line.handle = None
            self._leave(line)
            self._withdrawn.append(line)
        for line in list(self._running.values()):
            if line.handle is not None and line.handle.state is TaskState.WAITING:
                line.handle.cancel()  # it has failed and would be retried
        self.ledger.withdrawn = len(self._withdrawn)
        self._check_settled()

    def _abandon(self) -> int:
        """Record calls that do not end when cancelled; return their number."""
        stuck = [*self._running.values(), *self._waiting.values()]
        for line in stuck:
            self._running.pop(line.number, None)
            lateness = None if line.handle is None or line.handle.lateness is None else line.handle.lateness
            self._leave(line)
            self._finish(line, "cancelled", lateness, error="was still running when the command was stopped")
        return len(stuck)
