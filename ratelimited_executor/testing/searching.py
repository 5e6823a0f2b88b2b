"""Runs a scenario under many seeds, and shortens the history of the first run that fails."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import math
import os
import random
import signal
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor.exceptions import RateLimitedExecutorError
from ratelimited_executor.testing.choices import (
    ChoiceKind,
    Choices,
    Deviation,
    DrawnPicks,
    GivenPicks,
    format_replay,
    parse_replay,
)
from ratelimited_executor.testing.errors import RealIOError
from ratelimited_executor.testing.search_loop import SearchLoop
from ratelimited_executor.testing.shrinking import shrink, size_of
from ratelimited_executor.testing.world import NotAsyncError, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from types import FrameType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.testing.choices import Picks
    from ratelimited_executor.testing.search_loop import HistoryEvent

__all__ = ["ScenarioFailedError", "SearchReport", "search_faults"]

_DAY: Final = 86_400.0
_TURNS_MAX: Final = 100_000
# Those whose handlers raise by custom: Ctrl-C, the end of a session, the timeout of a test. Windows has not all of them.
_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name)
)
# Frames of asyncio and of this package are not the user's.
_NOT_OF_THE_USER: Final = (f"{Path(asyncio.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")


@dataclass(frozen=True)
class SearchReport:
    """What a search has tried without finding a failure.

    Attributes:
        run_count: the runs, the ordinary one included.
        virtual_seconds: their time in sum.
        injected: for each point with faults, cancellations or crashes, how often each of them was injected; 0 for those that
            the search has not come to.
        postponed_count: steps of tasks that were postponed.
    """

    run_count: int
    virtual_seconds: float
    injected: Mapping[str, Mapping[str, int]]
    postponed_count: int

    def __str__(self) -> str:
        lines = [f"no failure in {self.run_count:,} runs, {self.virtual_seconds:,.0f} s of virtual time"]
        width = max(map(len, self.injected), default=0)
        for point, counts in sorted(self.injected.items()):
            lines.append(f"  {point:{width}}  " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
        return "\n".join([*lines, f"  {self.postponed_count:,} steps of tasks postponed"])


class ScenarioFailedError(RateLimitedExecutorError, AssertionError):
    """A run of a scenario failed; the error of the run is the ``__cause__``.

    Attributes:
        seed: the seed of the run.
        replay: the text that repeats the shortest run found: ``search_faults(scenario, replay=text)``, with the
            ``limit`` and ``turns`` of the search.
        history: the lines of that run.
        is_repeatable: False if the run did not fail again, so that it could not be shortened: it depends on something
            outside of the search, such as ``time.time()`` or the order of a set.
    """

    def __init__(
        self,
        error: BaseException,
        seed: int,
        replay: str,
        history: tuple[HistoryEvent, ...],
        is_repeatable: bool,  # all by position, as the error is pickled
        how: str,
        settings: str,
    ) -> None:
        super().__init__(error, seed, replay, history, is_repeatable, how, settings)
        self.error = error
        self.seed = seed
        self.replay = replay
        self.history = history
        self.is_repeatable = is_repeatable
        self._how = how
        self._settings = settings

    def __str__(self) -> str:
        lines = ["".join(traceback.format_exception_only(self.error)).strip()]
        if place := _place(self.error):
            lines.append(f"  {Path(place[0]).name}:{place[1]}: {linecache.getline(*place).strip()}")
        lines += ["", f"{self._how}:"]
        width = max((len(event.task) for event in self.history), default=0)
        lines += [
            f"{'!' if event.is_injected else ' '} {event.time:10.3f}  {event.task:{width}}  {event.text}"
            for event in self.history
        ]
        if not self.is_repeatable:
            lines += [
                "",
                "the run did not fail again: it depends on a clock, a thread or an order outside of the search",
            ]
        return "\n".join(
            [*lines, "", f"to run it again: search_faults(scenario, replay={self.replay!r}{self._settings})"]
        )


def search_faults(
    scenario: Callable[[World], Awaitable[object]],
    *,
    seeds: int | Iterable[int] = 1000,
    seconds: DurationLike = math.inf,
    replay: str | None = None,
    limit: DurationLike = _DAY,
    turns: int = _TURNS_MAX,
    postpone: bool = True,
    shrink_runs: int = 2000,
) -> SearchReport:
    """Run a scenario in virtual time under many faults, and raise the shortest history that breaks it.

    The first run is the ordinary one, without deviations. Each other run takes faults, delays, cancellations and orders
    of its tasks from its seed. A run fails if the scenario raises, a check of :meth:`World.always` or
    :meth:`World.at_end` does not hold, an ``AssertionError`` goes unhandled, nothing can ever happen again, or it does not
    end within its limits. Then deviations are left out and made simpler as long as it fails in the same way: with an
    exception of the same type, raised in the same line.

    Call it outside of an event loop. The global generator of ``random`` is seeded for each run, and restored.

    Args:
        scenario: an async function that gets a :class:`World`; it makes everything that it uses, afresh in each run.
        seeds: how many seeds to try, from 0 on, or the seeds themselves.
        seconds: real time after which no other run begins.
        replay: run only this text, which an earlier failure printed.
        limit: virtual seconds that a run may take.
        turns: turns of the event loop that a run may take.
        postpone: False to leave the order of tasks as asyncio has it.
        shrink_runs: how many runs may be used to shorten a history; 0 to leave it as it was found.

    Raises:
        ScenarioFailedError: if a run fails.
        ValueError: if the replay has another form, or does not fit the scenario any more; if the number of seeds is < 0.
        TypeError: if the scenario is no async function, or a seed no integer.
        KeyboardInterrupt: after Ctrl-C; what was tried, or the failure found, is in its notes. One that the scenario
            itself raises fails the run, as does ``SystemExit``.
        RuntimeError: if called in an event loop.
        RealIOError: if the scenario waits for a socket, or starts a process by asyncio, which is refused: give it a fake.

    Warns:
        UserWarning: if nothing deviated in any run.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "search_faults() runs event loops of its own: call it outside of an event loop, in a plain function"
        )
    given = [("limit", limit)] * (limit != _DAY) + [("turns", turns)] * (turns != _TURNS_MAX)
    settings = "".join(f", {name}={value!r}" for name, value in given)
    if not callable(scenario):
        raise TypeError(f"scenario must be an async function, got {scenario!r}")
    runs = _Runs(scenario, seconds_of("limit", limit), turns, settings, is_order_varied=postpone)
    if replay is not None:
        seed, deviations = parse_replay(replay)
        outcome = runs.run(seed, GivenPicks(deviations))
        if outcome.error is not None:
            raise runs.failure(outcome, how=f"the history of {format_replay(seed, deviations)!r}") from outcome.error
        unused = [str(each) for each in deviations if each not in outcome.deviations]
        if unused:
            raise ValueError(f"replay does not fit the scenario any more: {', '.join(unused)} did not happen")
        return runs.report()
    stop = time.monotonic() + (math.inf if seconds == math.inf else seconds_of("seconds", seconds))
    tried = _seeds_of(seeds)
    try:
        found = runs.first_failure(tried, stop)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(str(runs.report()))
        raise
    if found is None:
        report = runs.report()
        if not runs.has_deviated:
            warnings.warn(
                f"the search has varied nothing in {report.run_count} runs: use World.call, World.fault, World.start or "
                "several tasks, or more seeds",
                stacklevel=2,
            )
        return report
    try:
        failure = runs.shortened(found, shrink_runs)
    except KeyboardInterrupt as interrupt:
        how = f"the history as it was found, from seed {found.seed}; it was not shortened"
        interrupt.add_note(str(runs.failure(found, how=how)))
        raise
    raise failure from found.error


def _seeds_of(seeds: int | Iterable[int]) -> Iterable[int]:
    if not isinstance(seeds, (int, Iterable)) or isinstance(seeds, (bool, str, bytes)):
        raise TypeError(f"seeds must be a number of seeds, or the seeds themselves, got {seeds!r}")
    if not isinstance(seeds, int):
        return seeds
    if seeds < 0:
        raise ValueError(f"the number of seeds must be >= 0, got {seeds}")
    return range(seeds)


@dataclass(frozen=True)
class _Outcome:
    """How one run ended."""

    seed: int
    deviations: list[Deviation]
    history: tuple[HistoryEvent, ...]
    error: BaseException | None

    @property
    def identity(self) -> object:
        """What the run must have in common with another that fails in the same way."""
        return None if self.error is None else _identity(self.error)


class _Runs:
    """Runs a scenario again and again, and counts what was injected."""

    def __init__(
        self,
        scenario: Callable[[World], Awaitable[object]],
        limit: float,
        turns_max: int,
        settings: str,
        *,
        is_order_varied: bool,
    ) -> None:
        self._scenario = scenario
        self._limit = limit
        self._turns_max = turns_max
        self._settings = settings  # as arguments in a call
        self._is_order_varied = is_order_varied
        self._run_count = 0
        self._virtual_seconds = 0.0
        self._counts: dict[tuple[ChoiceKind, str], Counter[str]] = defaultdict(Counter)
        self.has_deviated = False

    def run(self, seed: int, picks: Picks) -> _Outcome:
        """Run the scenario once."""
        choices = Choices(picks)
        loop = SearchLoop(
            choices, seed=seed, limit=self._limit, turns_max=self._turns_max, is_order_varied=self._is_order_varied
        )
        world = World(loop)
        kept = random.getstate()
        random.seed(seed)
        try:
            with _raising_of_signals():
                error = _error_of(loop, world, self._scenario)
        finally:
            random.setstate(kept)
        self._run_count += 1
        self._virtual_seconds += loop.time()
        self.has_deviated |= bool(choices.deviations)
        for point, counts in choices.counts.items():
            self._counts[point].update(counts)
        return _Outcome(seed, choices.deviations, tuple(loop.history), error)

    def first_failure(self, seeds: Iterable[int], stop: float) -> _Outcome | None:
        """Return the first run that fails, beginning with the ordinary one; None if none does until the time is up."""
        outcome = self.run(0, GivenPicks([]))
        for seed in seeds:
            if outcome.error is not None or time.monotonic() >= stop:
                break
            if not isinstance(seed, int):
                raise TypeError(f"a seed must be an integer, got {seed!r}")
            outcome = self.run(seed, DrawnPicks(seed))
        return outcome if outcome.error is not None else None

    def shortened(self, found: _Outcome, runs_max: int) -> ScenarioFailedError:
        """Return the error of the shortest history that fails as the given one does."""
        run_count, best = self._run_count, found

        def fails(deviations: list[Deviation]) -> list[Deviation] | None:
            nonlocal best
            outcome = self.run(found.seed, GivenPicks(deviations))
            if outcome.identity != found.identity:
                return None
            if size_of(outcome.deviations) < size_of(best.deviations):
                best = outcome
            return outcome.deviations

        is_repeatable = fails(found.deviations) is not None
        if is_repeatable:
            shrink(found.deviations, fails, runs_max=runs_max)
            is_repeatable = fails(best.deviations) is not None  # it may have failed by chance
        where = f"run {run_count} of the search"
        if not found.deviations:
            how = f"the history of the ordinary run, without any deviation ({where})"
        else:
            how = (
                f"the shortest history found, from seed {found.seed} ({where}), "
                f"shortened from {len(found.deviations)} deviations to {len(best.deviations)}"
            )
        return self.failure(best, how=how, is_repeatable=is_repeatable)

    def failure(self, outcome: _Outcome, *, how: str, is_repeatable: bool = True) -> ScenarioFailedError:
        """Return the error that shows a run that has failed."""
        assert outcome.error is not None, "the run failed"
        return ScenarioFailedError(
            error=outcome.error,
            seed=outcome.seed,
            replay=format_replay(outcome.seed, outcome.deviations),
            history=outcome.history,
            is_repeatable=is_repeatable,
            how=how,
            settings=self._settings,
        )

    def report(self) -> SearchReport:
        """Return what was tried."""
        injected = {
            point: dict(list(counts.items())[1:])
            for (kind, point), counts in self._counts.items()
            if kind in (ChoiceKind.FAULT, ChoiceKind.CANCEL, ChoiceKind.CRASH)
        }
        orders = [counts for (kind, _), counts in self._counts.items() if kind is ChoiceKind.ORDER]
        postponed = sum(sum(list(counts.values())[1:]) for counts in orders)
        return SearchReport(self._run_count, self._virtual_seconds, injected, postponed)


def _error_of(loop: SearchLoop, world: World, scenario: Callable[[World], Awaitable[object]]) -> BaseException | None:
    """Run a scenario to its end on a loop, clean up, and return the error with which it failed."""
    try:
        raised = _raised_by(loop, world, scenario)
        error = loop.failure or raised
        loop.end()
        raised_after = _raised_after(loop, world)
        error = error or loop.failure or raised_after
        if isinstance(error, (RealIOError, NotAsyncError)):  # no fault of the program
            raise error
        return error
    finally:
        loop.close_tasks()
        loop.close()


def _raised_by(loop: SearchLoop, world: World, scenario: Callable[[World], Awaitable[object]]) -> BaseException | None:
    try:
        loop.run_until_complete(world._main(scenario))  # noqa: SLF001  # what a scenario sees of a world is public
    except BaseException as error:  # noqa: BLE001  # it is what the search looks for
        return error
    return None


def _raised_after(loop: SearchLoop, world: World) -> BaseException | None:
    """Cancel what is left, and check what must hold then."""
    try:
        loop.cancel_tasks()
        loop.fail_unhandled()
        world._check_end()  # noqa: SLF001  # as above
    except BaseException as error:  # noqa: BLE001  # it is what the search looks for
        return error
    return None


@contextlib.contextmanager
def _raising_of_signals() -> Generator[None]:
    """Raise in the end what the handler of a signal has raised within, such as the KeyboardInterrupt of Ctrl-C.

    It is no error of the scenario, in whatever code it was raised. What the scenario itself raises is one.
    """
    raised: list[BaseException] = []

    def noting(handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
        def note(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return note

    is_main = threading.current_thread() is threading.main_thread()  # only there do handlers run
    former = {number: signal.getsignal(number) for number in _SIGNALS} if is_main else {}
    noted = {number: noting(handler) for number, handler in former.items() if callable(handler)}
    for number, handler in noted.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in noted:
            signal.signal(number, former[number])
        if raised:
            raise raised[0]


def _identity(error: BaseException) -> object:
    """Return what makes two failures the same: the type and the place of an error; of a group, those of its members.

    A type goes by its name: a class that the scenario makes is another one in each run. Checks that return False raise in no line of the user, but are named in the text of the error.
    """
    if isinstance(error, BaseExceptionGroup):
        return *_type_name(error), *map(_identity, error.exceptions)
    place = _place(error)
    return *_type_name(error), str(error) if place is None and isinstance(error, AssertionError) else place


def _type_name(error: BaseException) -> tuple[str, str]:
    return type(error).__module__, type(error).__qualname__


def _place(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the last frame of the user's code from which an error was raised."""
    frames: list[Any] = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not frame[0].startswith(_NOT_OF_THE_USER)]
    return own[-1] if own else None
