"""Runs a case, and reports its figures."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.fleet.figures import (
    Law,
    Start,
    excess,
    gaps_after,
    laws_of,
    least_over_most,
    most_at_once,
    quantile,
    recovery,
)
from bench.fleet.server import VirtualServer
from bench.fleet.world import World
from ratelimited_executor import ExecutorManager

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fleet.cases import Case, Load
    from ratelimited_executor.testing import VirtualEventLoop

__all__ = ["Report", "run_case"]

_START_MAX: Final = 20.0  # seconds for which the first start is awaited
_SLICE: Final = 0.02
_TOGETHER: Final = 0.02  # seconds within which all processes begin
_GRACE: Final = 0.25  # a task that has arrived so long before the end has to have started by then
_SOON: Final = 2.0


@dataclass(slots=True)
class Report:
    """What was measured of a case.

    Attributes:
        figures: by name.
        broken: for each law that was broken, in words.
        worst: the most starts in a window of each limit, or tasks that run at once, beside what the law allows.
    """

    figures: dict[str, float]
    broken: list[str] = field(default_factory=list)
    worst: list[str] = field(default_factory=list)


def run_case(case: Case, *, is_quick: bool = False) -> Report:
    """Run a case in virtual time, and its program alone if that tells what is possible."""
    logger = logging.getLogger("ratelimited_executor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # outages are what a case is made of
    try:
        seconds = case.quick_seconds if is_quick else case.seconds
        possible = case.limit
        if case.alone:
            alone = _Run(replace(case, processes=1), seconds, is_alone=True).measure().figures["rate"]
            possible = min(possible, alone * (case.processes if case.alone == "each" else 1))
        return _Run(case, seconds).measure(possible)
    finally:
        logger.setLevel(level)


class _Run:
    """One run of a case.

    Args:
        case: what is run.
        seconds: of the measurement.
        is_alone: True if processes do not share their limits.
    """

    def __init__(self, case: Case, seconds: float, *, is_alone: bool = False) -> None:
        self.case = case
        self.seconds = seconds
        self.world = World(case.processes)
        self.server = VirtualServer(self.world, case.network)
        self.is_alone = is_alone
        self.starts: list[Start] = []
        self.submitted: list[float] = []  # of arrivals
        self.spans: list[list[float]] = []  # of running tasks: process, begin, end
        self.held: dict[str, list[list[float]]] = defaultdict(list)  # the spans by key
        self.executors: dict[int, Any] = {}
        self.accepted: list[float] = []  # starts that an adaptive service has accepted

    def measure(self, possible: float = math.inf) -> Report:
        """Run the case, and compute its figures."""
        case, world = self.case, self.world
        for process in range(case.processes):  # none at the same instant: no two programs do
            world.at(process / case.processes * _TOGETHER, self._begin, process)
        try:
            while not self.starts and world.now < _START_MAX:
                world.run(world.now + _SLICE)
            begin = (self.starts[0].time if self.starts else world.now) + case.warm_up
            world.run(begin)
            calls, busy, lapsed = self.server.calls, self.server.busy, self._lapsed()
            for fault in case.faults:
                world.at(begin + fault.after, self._strike, fault.what, fault.amount)
            world.run(begin + self.seconds)
            spent = {
                "calls": self.server.calls - calls,
                "busy": self.server.busy - busy,
                "lapsed": sum(count - lapsed[who] for who, count in self._lapsed().items()),
            }
            return self._report(begin, possible, spent)
        finally:
            self.server.is_closed = True
            world.close()

    def _begin(self, process: int) -> None:
        self.world.start(process, _Process(self, process).live())

    def _lapsed(self) -> dict[int, float]:
        """Return how many tickets have lapsed so far in each living process."""
        return {who: self.server.lapsed(each) for who, each in self.executors.items() if who not in self.world.dead}

    def _strike(self, what: str, amount: Any) -> None:
        match what:
            case "kill":
                for process in amount:
                    self.world.kill(process)
            case "away" | "back":
                self.server.is_away = what == "away"
            case "forgets":
                self.server.forget()
            case "saves":
                self.server.save()
            case "restarts":
                self.server.restart()
            case "steps":
                self.server.step(amount)
            case "drift":
                self.server.slew(amount)
            case _:
                raise ValueError(what)

    def _report(self, begin: float, possible: float, spent: dict[str, float]) -> Report:
        case, end = self.case, begin + self.seconds
        starts = [start for start in self.starts if begin <= start.time < end]
        count = len(starts)
        rate = (sum(begin <= time < end for time in self.accepted) if self.accepted else count) / self.seconds
        waits = [1e3 * (start.time - start.submitted) for start in starts]
        figures = {
            "first start": self.starts[0].time if self.starts else math.inf,
            "rate": rate,
            "use": self._served(begin, end) if self.submitted else rate / possible,
            "p50": quantile(waits, 0.5),
            "p99": quantile(waits, 0.99),
            "calls a second": spent["calls"] / self.seconds,
            "calls a start": spent["calls"] / count if count else math.inf,
            "server us a start": 1e6 * spent["busy"] / count if count else math.inf,
            "server load": spent["busy"] / self.seconds,
            "lapsed a start": spent["lapsed"] / count if count else math.nan,
        }
        weights = {process: case.weights[process % len(case.weights)] for process in range(case.processes)}
        if case.processes > 1:
            figures["fair"] = least_over_most(Counter(start.process for start in starts), weights)
            soon = Counter(start.process for start in starts if start.time < begin + _SOON)
            figures["fair in 2 s"] = least_over_most(soon, weights)
            by_key: dict[str, Counter[int]] = defaultdict(Counter)
            for start in starts:
                by_key[start.key][start.process] += 1
            if all(by_key):
                shares = [least_over_most(counts, weights) for counts in by_key.values()]
                figures["fair in a key"] = sum(shares) / len(shares) if shares else 0.0
        hot = [start for start in starts if start.key.startswith("hot")]
        if hot or "hot key" in case.goals:
            allowed = laws_of(case.settings["key_rate"])[0].rate
            figures["hot key"] = len(hot) / self.seconds / allowed
        if case.slots == 1:
            ends = [span[2] for span in self.spans if begin <= span[2] < end]
            figures["hand-off p99"] = 1e3 * quantile(gaps_after(ends, [span[1] for span in self.spans]), 0.99)
        if case.faults:
            since = begin + case.faults[-1].after
            figures["recovery"] = recovery([start.time for start in starts], since, case.limit, end)
        return self._judge(Report(figures))

    def _served(self, begin: float, end: float) -> float:
        """Return the part of the arrivals that have started, of those that could have."""
        arrived = sum(begin <= time < end - _GRACE for time in self.submitted)
        return sum(begin <= start.submitted < end - _GRACE for start in self.starts) / arrived

    def _judge(self, report: Report) -> Report:
        """Compare all starts with the laws."""
        case = self.case
        if self.is_alone:
            return report
        for law in laws_of(str(case.settings.get("rate", "")), case.settings.get("policy")):
            if "adaptive" not in case.settings:
                self._compare(report, law, {"": [start.time for start in self.starts]})
        for law in laws_of(case.settings.get("resources", {}).get("tokens", ""), case.settings.get("policy")):
            used = [start.tokens for start in self.starts]
            most, too_many = excess(law, [start.time for start in self.starts], used)
            if case.settings.get("policy") is None:  # a pace: the last start of a window may cost more than is left
                too_many -= max(used, default=1) - 1
            report.worst.append(f"{most} of {law.name} tokens")
            report.broken += [f"tokens: {most} in a window, {too_many} too many"] * (too_many > 0)
        by_key: dict[str, list[float]] = defaultdict(list)
        for start in self.starts:
            by_key[start.key].append(start.time)
        for law in laws_of(case.settings.get("key_rate", ""), case.settings.get("policy")):
            self._compare(report, law, by_key)
        for name, limit, spans in (
            ("slots", case.slots, {"": self.spans}),
            ("of a key", case.settings.get("key_concurrency", 0), self.held),
        ):
            if limit:
                dead = self.world.dead
                most = max(
                    (
                        most_at_once((span[1], min(span[2], dead.get(int(span[0]), math.inf))) for span in each)
                        for each in spans.values()
                    ),
                    default=0,
                )
                report.worst.append(f"{most} of {limit} {name}")
                if most > limit:
                    report.broken.append(f"{name}: {most} run at once, of {limit}")
        report.broken += self.world.errors
        return report

    @staticmethod
    def _compare(report: Report, law: Law, times: dict[str, list[float]]) -> None:
        worst = [(*reversed(excess(law, each)), key) for key, each in times.items()]
        too_many, most, key = max(worst, default=(0, 0, ""))
        report.worst.append(f"{most} of {law.name}")
        if too_many > 0:
            report.broken.append(f"{law.name} {key}: {most} in a window, {too_many} too many")


class _Process:
    """One process of a run: a manager with an executor, and its loads."""

    def __init__(self, run: _Run, number: int) -> None:
        self._run = run
        self._number = number
        self._random = random.Random(number)
        self._loop: VirtualEventLoop = run.world.loops[number]
        self._executor: Any = None
        self._pool: Any = None

    async def live(self) -> None:
        """Run until cancelled."""
        run, case = self._run, self._run.case
        weight = case.weights[self._number % len(case.weights)]
        peers = {} if run.is_alone else {"peers": run.server.peers(self._number, weight=weight)}
        workers = []
        async with ExecutorManager(**peers) as manager:
            self._executor = manager.executor("x", drain_timeout=0, **case.settings)
            if not run.is_alone:
                run.executors[self._number] = self._executor
            if case.slots:
                self._pool = manager.slots("pool", limit=case.slots)
            for load in case.loads:
                if load.processes is None or self._number in load.processes:
                    workers += self._begin(load)
            try:
                await asyncio.gather(*workers, self._loop.create_future())
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    def _begin(self, load: Load) -> list[asyncio.Task[None]]:
        if load.kind == "arrivals":
            return [self._loop.create_task(self._arrive(load))]
        if load.kind == "other work":
            return [self._loop.create_task(self._block(load.cpu))]
        if load.kind == "permits":
            return [self._loop.create_task(self._take(load, number)) for number in range(int(load.count))]
        for _ in range(int(load.count)):
            self._submit(load)
        return []

    async def _take(self, load: Load, number: int) -> None:
        """Be a worker that takes one permit after the other."""
        key = f"{load.key}{(self._number + number) % load.keys}" if load.keys else None
        while True:
            submitted = self._loop.time()
            async with self._executor.permit(key=key):
                self._note(load, key, submitted)
                if load.work:
                    await asyncio.sleep(load.work)

    async def _block(self, seconds: float) -> None:
        """Use the core in every turn of the event loop."""
        while True:
            self._loop.block_for(seconds)
            await asyncio.sleep(0)

    async def _arrive(self, load: Load) -> None:
        draw: Callable[[], float] = partial(self._random.expovariate, load.count)
        if load.is_even:
            draw = partial(self._random.uniform, 0.5 / load.count, 1.5 / load.count)
        while True:
            await asyncio.sleep(draw())
            self._run.submitted.append(self._loop.time())
            self._submit(load)

    def _submit(self, load: Load, key: str | None = None) -> None:
        if key is None and load.keys:
            key = f"{load.key}{self._random.randrange(load.keys)}"
        options: dict[str, Any] = {} if self._pool is None else {"slots": self._pool}
        tokens = self._random.randint(1, load.tokens) if load.tokens else 0
        if tokens:
            options["cost"] = {"tokens": tokens}
        work = self._work if load.work else self._start
        self._executor.submit(work, load, key, self._loop.time(), tokens, key=key, **options)

    async def _work(self, load: Load, key: str | None, submitted: float, tokens: int) -> None:
        span = [self._number, self._loop.time(), math.inf]
        self._run.spans.append(span)
        self._run.held[key or ""].append(span)
        self._start(load, key, submitted, tokens)
        try:
            await asyncio.sleep(load.work)
        finally:
            span[2] = self._loop.time()

    def _start(self, load: Load, key: str | None, submitted: float, tokens: int) -> None:
        self._note(load, key, submitted, tokens)
        if load.kind == "tasks":
            self._submit(load, key if load.is_same_key else None)

    def _note(self, load: Load, key: str | None, submitted: float, tokens: int = 0) -> None:
        """Count a start, and use the core for it."""
        run, now = self._run, self._loop.time()
        run.starts.append(Start(now, self._number, key or "", submitted, tokens))
        if "adaptive" in run.case.settings:
            self._serve(now)
        if load.cpu:
            self._loop.block_for(load.cpu)

    def _serve(self, now: float) -> None:
        """Be the service that an adaptive rate finds out about: it refuses what is beyond its limit in a second."""
        accepted = self._run.accepted
        if sum(time > now - 1 for time in accepted[-int(self._run.case.limit) :]) < self._run.case.limit:
            accepted.append(now)
        else:
            self._executor.penalize(None)
