"""One bulk job from its first line to its summary: assembles the parts and decides the exit status."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

from ratelimited_executor import Pacing, RateLimitedExecutor, Retry
from ratelimited_executor.cli.contexts import TearDownError, entered
from ratelimited_executor.cli.exits import ExitStatus
from ratelimited_executor.cli.run.bulk_run import BulkRun
from ratelimited_executor.cli.run.calls import CallSettings, TargetExitError
from ratelimited_executor.cli.run.decoding import Decoder, JsonDecoder, TextDecoder
from ratelimited_executor.cli.run.due_times import DueAtField, DueAtOnce, DueEvenly, DueTimes
from ratelimited_executor.cli.run.inputs import LineSource, count_lines, lines_in
from ratelimited_executor.cli.run.lookahead import Gate
from ratelimited_executor.cli.run.options import check_threads
from ratelimited_executor.cli.run.progress import (
    Bar,
    PlainLines,
    ProgressView,
    Snapshot,
    expected_seconds,
    show_progress,
)
from ratelimited_executor.cli.run.results import ResultsWriter
from ratelimited_executor.cli.run.summary import RunSummary, print_summary
from ratelimited_executor.cli.screen import print_line, screen_of_stderr
from ratelimited_executor.cli.stopping import StopReason, cancelled_by
from ratelimited_executor.orders import Fair, default_order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ratelimited_executor.cli.run.options import RunOptions
    from ratelimited_executor.cli.run.outputs import Remaining
    from ratelimited_executor.cli.stopping import Signals, Stop

__all__ = ["RunJob"]

# Waiting lines when no order is needed: enough for the fastest target, and quick to withdraw.
PLAIN_LOOK_AHEAD_LINES: Final = 10_000
# The span over which the displayed rate is measured.
RATE_OVER_S: Final = 2.0
# A short job ends before this, and reports the reason only once.
BAD_INPUT_TOLD_AFTER_S: Final = 1.0
# Threads for our own files: one reads, one writes results, one counts or writes the remaining lines.
FILE_THREADS: Final = 3
# Long enough to tell a function that blocks from one whose first calls are slow, and early in a run that takes minutes.
HELD_TOLD_AFTER_S: Final = 2.0
# The part of the time in a function from which on it, and not the rate, decides how many lines start.
HELD_PART: Final = 0.8


class RunJob:
    """The parts of one run; :meth:`play` once.

    Args:
        options: the checked options.
        source: the open input.
        results: the writer of result rows; None for no results.
        remaining: the claimed file for lines that were not started; None only counts them.
        stop: the order to end the run early; it may have been given already.
        signals: the signals that order the stop, handled until the run has ended.
    """

    def __init__(
        self,
        options: RunOptions,
        source: LineSource,
        results: BinaryIO | None,
        remaining: Remaining | None,
        *,
        stop: Stop,
        signals: Signals,
    ) -> None:
        self._options = options
        self._source = source
        self._results = results
        self._remaining = remaining
        self._stop = stop
        self._signals = signals
        self._total = options.count
        self._remaining_failure: OSError | None = None
        self._console = screen_of_stderr()
        self._begin = time.monotonic()
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="ratelimited-executor-files")

    async def play(self) -> ExitStatus:
        """Run the job to its end or to a stop; print the summary; return the exit status.

        Raises:
            CommandError: if the target cannot be set up; then no call was made.
        """
        options = self._options
        self._signals.attach()
        places = min(options.concurrency, options.threads or options.concurrency)
        pacing = Pacing.ON_TIME if options.on_time or options.over is not None else Pacing.SPREAD
        executor = RateLimitedExecutor(
            "run",
            rate=options.rate,
            pacing=pacing,
            max_concurrency=places,
            max_threads=options.threads or 1,
            order=Fair() if options.fair else default_order,
            key_rate=options.key_rate,
            key_concurrency=options.key_concurrency,
            retry=None if options.retry is None else Retry(options.retry, on=_is_worth_a_retry),
        )
        status: ExitStatus | None = None
        try:
            async with AsyncExitStack() as stack:
                target = await self._enter_target(stack)
                await stack.enter_async_context(executor)
                with closing(self._signals):
                    status = await self._play_on(executor, self._stop, target)
        except TearDownError as error:
            if status is None:
                raise
            self._say(f"{error}; the summary and the results are complete")
            return status if status is ExitStatus.INTERRUPTED else ExitStatus.USAGE
        finally:
            self._files.shutdown()
        return status

    async def _enter_target(self, stack: AsyncExitStack) -> Callable[[Any], Any]:
        """Set up the target and return the callable; a signal ends a long set-up, and then no call is made."""
        try:
            with cancelled_by(self._stop):
                target = await stack.enter_async_context(entered(self._options.target))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not self._stop.is_ordered:
                raise
            task.uncancel()
            return _never_called
        check_threads(self._options.threads, target)
        return target

    async def _play_on(self, executor: RateLimitedExecutor, stop: Stop, target: Callable[[Any], Any]) -> ExitStatus:
        if self._options.over is not None:
            await self._count(stop, skip_blank=self._options.jsonl)
        results = None
        if self._results is not None:
            results = ResultsWriter(
                self._results, self._files, on_failure=lambda error: stop.order(StopReason.OUTPUT_FAILED, error)
            )
        run = BulkRun(
            executor,
            self._source,
            self._settings(target),
            gate=Gate(self._look_ahead()),
            stop=stop,
            files=self._files,
            results=results,
        )
        not_started: int | None = 0
        is_clean = True
        async with self._helpers(executor, run, stop, results):
            await run.play()
            if stop.is_ordered:
                self._announce(run, stop)
                not_started = await self._keep_remaining(run, stop)
                is_clean = await run.settle() and not (stop.insisted.is_set() and self._options.threads)
            elif self._remaining is not None:
                not_started = await self._keep_remaining(run, stop)  # if none remain, the empty file says so
        status = self._conclude(run, stop, results, not_started)
        if not is_clean:
            self._leave_at_once(status)
        return status

    # -- Parts ---------------------------------------------------------------------------------------------------

    def _look_ahead(self) -> int:
        is_chosen = self._options.is_ordered or self._options.key_field is not None  # the order of starts matters
        return self._options.look_ahead if is_chosen else min(self._options.look_ahead, PLAIN_LOOK_AHEAD_LINES)

    def _settings(self, target: Callable[[Any], Any]) -> CallSettings:
        options = self._options
        decoder: Decoder = TextDecoder()
        if options.jsonl:
            decoder = JsonDecoder(
                at_field=options.at_field,
                priority_field=options.priority_field,
                key_field=options.key_field,
                cost_field=options.cost_field,
            )
        return CallSettings(
            target=target,
            decoder=decoder,
            due_times=self._due_times(),
            is_ordered=options.is_ordered,
            is_timed=options.at_field is not None,
            expires=options.expires,
            in_threads=options.threads is not None,
            is_fair=options.fair,
        )

    def _due_times(self) -> DueTimes:
        if self._options.at_field is not None:
            return DueAtField()
        if self._options.over is not None:
            return DueEvenly(over=self._options.over, count=self._total or 0)
        return DueAtOnce(is_stream=not self._source.is_file)

    # -- During the run ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _helpers(
        self, executor: RateLimitedExecutor, run: BulkRun, stop: Stop, results: ResultsWriter | None
    ) -> AsyncIterator[None]:
        """Write results, count the lines of the file and show progress while the block runs."""
        view = self._view()
        jobs: list[Coroutine[Any, Any, None]] = [self._tell_of_bad_input(run, stop), self._tell_of_held_loop(run)]
        if results is not None:
            jobs.append(results.run())
        if view is not None:
            jobs.append(show_progress(view, lambda: self._snapshot(executor, run, stop)))
            jobs.append(self._count(stop, skip_blank=False))  # blank lines are subtracted when they are read
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if view is not None:
                view.close()

    def _view(self) -> ProgressView | None:
        if self._options.quiet:
            return None
        return Bar(self._console) if self._console.is_terminal else PlainLines(self._console)

    async def _tell_of_bad_input(self, run: BulkRun, stop: Stop) -> None:
        """Report at once why the input ended, if the earlier lines take long."""
        await run.fed.wait()
        await asyncio.sleep(BAD_INPUT_TOLD_AFTER_S)
        if run.input_failure is not None and not stop.is_ordered:
            self._say(f"{run.input_failure}; the lines before it still run; a signal stops them")

    async def _tell_of_held_loop(self, run: BulkRun) -> None:
        """Say once, early in a run under a rate, that a function which blocks leaves the loop no time for other starts."""
        if self._options.threads is not None or math.isinf(float(self._options.rate)):
            return
        begin = time.monotonic()
        await asyncio.sleep(HELD_TOLD_AFTER_S)
        part = run.held_seconds / (time.monotonic() - begin)
        if part >= HELD_PART:
            self._say(
                f"the function blocks, one line after the other, for {part:.0%} of the time, so the rate may not be reached: "
                "--threads N runs it in N threads"
            )

    async def _count(self, stop: Stop, *, skip_blank: bool) -> None:
        """Count the lines, if the number is unknown and can be counted."""
        if self._total is None and self._source.can_be_counted:
            counting = partial(
                count_lines, self._options.input, skip_blank=skip_blank, is_wanted=lambda: not stop.is_ordered
            )
            with suppress(OSError):  # the run itself will report the error
                self._total = await asyncio.get_running_loop().run_in_executor(self._files, counting)

    def _snapshot(self, executor: RateLimitedExecutor, run: BulkRun, stop: Stop) -> Snapshot:
        ledger, now = run.ledger, run.now()
        total = ledger.taken if run.fed.is_set() else None
        if total is None and self._total is not None:
            total = max(self._total - ledger.blank, ledger.taken)
        recent = ledger.rate(now=now, over=RATE_OVER_S)
        # With keys or costs this examines every waiting line: too slow for a progress bar.
        is_metered = self._options.key_field is not None or self._options.cost_field is not None
        return Snapshot(
            finished=ledger.finished,
            total=total,
            unwell=ledger.finished - ledger.states["done"],
            running=run.running,
            waiting=run.waiting,
            rate=recent,
            backlog=0.0 if is_metered else executor.backlog_seconds(),
            seconds_left=expected_seconds(
                left=None if total is None else total - ledger.finished,
                limit=float(self._options.rate),
                recent=recent,
                last_due_in=run.latest_due - now,
            ),
            is_stopping=stop.is_ordered,
        )

    # -- The end -------------------------------------------------------------------------------------------------

    def _announce(self, run: BulkRun, stop: Stop) -> None:
        """Report why the run stops, while calls may still be running."""
        reason = _why(stop)
        if run.running:
            reason += f": {run.running:,} calls under way may finish; a second signal stops them"
        self._say(reason)

    async def _keep_remaining(self, run: BulkRun, stop: Stop) -> int | None:
        """Write, or at least count, the lines that were not started; None if a stream was not read to its end."""
        is_countable = self._remaining is not None or self._source.is_file
        lines = run.not_started(with_unread=is_countable)
        writing = partial(lines_in, lines)
        if self._remaining is not None:
            writing = partial(self._remaining.keep, lines, is_bounded=self._source.is_file)
        try:
            count = await asyncio.get_running_loop().run_in_executor(self._files, writing)
        except OSError as error:
            stop.order(StopReason.OUTPUT_FAILED, error)
            self._remaining_failure = error
            return None
        return count if is_countable else None

    def _conclude(self, run: BulkRun, stop: Stop, results: ResultsWriter | None, not_started: int | None) -> ExitStatus:
        """Write the last rows, print the summary, decide the status."""
        if results is not None:
            results.finish()
            if results.failure is not None:
                stop.order(StopReason.OUTPUT_FAILED, results.failure)
        print_summary(
            self._console,
            RunSummary(
                ledger=run.ledger,
                rate=self._options.rate,
                wall_seconds=time.monotonic() - self._begin,
                ending=_why(stop) if stop.is_ordered else None,
                not_started=not_started,
                remaining=self._options.remaining,
                look_ahead=self._look_ahead(),
            ),
        )
        if self._options.key_field is not None and run.ledger.taken and not run.ledger.keyed:
            self._say(f"no line had a field {self._options.key_field!r}: neither --fair nor the limits of keys applied")
        if stop.reason is StopReason.BUG and stop.error is not None:
            raise stop.error
        return self._status(run, stop)

    def _status(self, run: BulkRun, stop: Stop) -> ExitStatus:
        if self._remaining_failure is not None:
            text = f"--remaining {self._options.remaining!r} could not be written: {self._remaining_failure}"
            leftover = None if self._remaining is None else self._remaining.leftover
            self._say(text if leftover is None else f"{text}; what could be written is in {leftover}")
            return ExitStatus.USAGE
        if stop.reason is StopReason.SIGNAL:
            return ExitStatus.INTERRUPTED
        if stop.is_ordered:
            return ExitStatus.USAGE
        return ExitStatus.DONE if run.ledger.states["done"] == run.ledger.finished else ExitStatus.FAILED

    def _say(self, text: str) -> None:
        print_line(self._console, text)

    def _leave_at_once(self, status: ExitStatus) -> NoReturn:
        """End the process although calls may still run: the user insisted, and a thread cannot be stopped."""
        for file in (self._results, sys.stdout, sys.stderr):
            if file is not None:
                with suppress(OSError):  # a full disk, or a closed pipe
                    file.flush()
        os._exit(status)


def _never_called(_line: object) -> NoReturn:
    raise AssertionError("the run was stopped before anything could be called")


def _is_worth_a_retry(error: BaseException) -> bool:
    """True for every error except a target's attempt to end the process; its line is retried."""
    return not isinstance(error, TargetExitError)


def _why(stop: Stop) -> str:
    """Return the reason of a stop as text."""
    assert stop.reason is not None, "only called after a stop"
    return stop.reason.value if stop.error is None else f"{stop.reason.value}: {stop.error}"
