"""Strategies to sync a population once in each cycle, for comparison.

All have the same accounts at the same banks, the same workers and the same two kinds of jobs over the same accounts: one
fetches new data, the other sorts it. Some accounts are ten times the work of others. A bank may be out for a day. The
strategies differ in how they choose the time of each account.

Source: "On the virtues of slot scheduling", a talk, which compares them. No distribution has its durations, a mean of
4 s and a p90 of 120 s: a tenth of the values would have a mean of at least 120 s, so the mean of all would be at least
12 s. The durations here have the mean of 4 s, and a p90 of 8 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._runtime.arguments import count_of, number_of
from ratelimited_executor.simulation.arrivals import Poisson
from ratelimited_executor.simulation.distributions import Exponential, LogNormal
from ratelimited_executor.simulation.hours import DAY_SECONDS
from ratelimited_executor.simulation.progress import InstantProgress
from ratelimited_executor.simulation.simulation import Scenario
from ratelimited_executor.spread.balance import balance
from ratelimited_executor.spread.keys import key_hash
from ratelimited_executor.spread.slots import CycleSlots, reciprocal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from fractions import Fraction
    from typing import Any

    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor.simulation.jobs import Job
    from ratelimited_executor.simulation.population import Population
    from ratelimited_executor.simulation.simulation import Simulation

__all__ = ["STRATEGIES", "Central", "RandomSpread", "SelfRescheduling", "Slots", "Strategy", "WeightedSlots"]

_T = TypeVar("_T")
_HASH_COUNT: Final = 1 << 64


def _named(parameter: str, make: Callable[[], _T]) -> _T:
    """Return what is made of a parameter; an error names it."""
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{parameter}: {error}") from error


@dataclass(kw_only=True)
class Strategy(Scenario):
    """Accounts at banks, each to be synced and sorted once in each cycle.

    Args:
        accounts: the number of accounts.
        banks: the number of banks; the first has as many accounts as all others together.
        workers: jobs that run at once.
        cycle: the cycle in which each account is to be synced.
        mean: seconds to sync an account of weight 1.
        p90: the 90th percentile of these seconds.
        jumbo: the fraction of accounts that are ten times the work.
        failures: the fraction of jobs that fail.
        locked_out: the fraction of accounts that no job can sync, because their password has changed, for example.
        outage_day: the day on which the first bank is out, from 1 on; 0 for none.
        joins: how many accounts join, such as ``"200/day"``; empty for none.
        lifetime: the mean time that an account stays, such as ``"90d"``, exponential; empty for ever.
    """

    days: ClassVar[float] = 7.0
    interval: ClassVar[float] = 60.0  # all start on time: the interval affects only the speed

    accounts: int = 30_000
    banks: int = 20
    workers: int = 20
    cycle: str = "8h"
    mean: float = 4.0
    p90: float = 8.0
    jumbo: float = 0.01
    failures: float = 0.005
    locked_out: float = 0.001
    outage_day: int = 3
    joins: str = ""
    lifetime: str = ""

    def __post_init__(self) -> None:
        for name in ("accounts", "banks", "workers"):
            count_of(name, getattr(self, name), least=1)
        count_of("outage_day", self.outage_day, least=0)
        for name in ("jumbo", "failures", "locked_out", "losses"):
            part = number_of(name, getattr(self, name, 0.0))
            if not 0 <= part <= 1:
                raise ValueError(f"{name} must be a fraction of the whole, from 0 to 1, got {part!r}")

    def setup(self, sim: Simulation) -> None:
        """Set up accounts, banks, workers and both kinds of jobs."""
        executor = sim.executor("workers", max_concurrency=self.workers, pacing=Pacing.ON_TIME)
        accounts = sim.population(
            "accounts",
            self.accounts,
            period=self.cycle,
            weight=self._weight_of,
            group=self._bank_of,
            joins=_named("joins", lambda: Poisson(self.joins)) if self.joins else None,
            lifetime=_named("lifetime", lambda: Exponential(self.lifetime)) if self.lifetime else None,
        )
        if self.outage_day:
            begin = (self.outage_day - 1) * DAY_SECONDS
            sim.outage(accounts, "bank 0", begin, begin + DAY_SECONDS)
        self.begin(sim, executor, accounts)

    def begin(self, sim: Simulation, executor: RateLimitedExecutor, accounts: Population) -> None:
        """Begin to schedule jobs; each strategy overrides it."""
        raise NotImplementedError

    def sync_job(self, sim: Simulation, accounts: Population, **options: Any) -> Job:
        """Create the jobs that fetch new data of an account; they give up after 30 s while the bank is out."""
        duration = LogNormal(mean=self.mean, p90=self.p90)
        locked_out: set[int] = set()

        def look(account: Any) -> None:
            if self._draw("lock", account) < self.locked_out:
                locked_out.add(account)

        for account in accounts:
            look(account)
        accounts.on_join(look)

        def failures(account: int) -> float:
            return 1.0 if account in locked_out else self.failures

        return sim.job("sync", duration, failures=failures, population=accounts, **options)

    def sort_job(self, sim: Simulation, accounts: Population, **options: Any) -> Job:
        """Create the jobs that sort the data of an account: a quarter of the work, without using the bank."""
        duration = LogNormal(mean=self.mean / 4, p90=self.p90 / 4)
        return sim.job("sort", duration, population=accounts, is_sync=False, needs_group=False, **options)

    def _weight_of(self, account: int) -> float:
        return 10.0 if self._draw("weight", account) < self.jumbo else 1.0

    def _draw(self, what: str, account: Any) -> float:
        """Return a number from 0 to 1 that is fixed for an account, and uniform over all accounts."""
        return key_hash(f"{what} {account}") / _HASH_COUNT

    def _bank_of(self, account: int) -> str:
        if self.banks == 1 or account % 2 == 0:
            return "bank 0"
        return f"bank {1 + account // 2 % (self.banks - 1)}"


@dataclass(kw_only=True)
class SelfRescheduling(Strategy):
    """Each job schedules the next one of its account, a cycle after its own end.

    Some jobs are lost when their worker dies.

    Args:
        losses: the fraction of jobs that end without scheduling the next one: their accounts are never synced again.
    """

    losses: float = 0.0001

    def begin(self, sim: Simulation, executor: RateLimitedExecutor, accounts: Population) -> None:
        """Begin with all accounts at once, as after a deployment."""
        cycle, lost = accounts.period, sim.stream("losses")

        def again(job: Job, account: int) -> None:
            if lost.random() >= self.losses and account in accounts:
                executor.schedule(job, account, delay=cycle)

        def follow(job: list[Job]) -> Any:
            return lambda account: again(job[0], account)

        for make in (self.sync_job, self.sort_job):
            own: list[Job] = []
            own.append(make(sim, accounts, then=follow(own), on_failure=follow(own)))
            for account in accounts:
                executor.schedule(own[0], account)
            accounts.on_join(partial(executor.schedule, own[0]))


@dataclass(kw_only=True)
class Central(Strategy):
    """A scheduler looks for the accounts that were synced least recently, and enqueues them, again and again.

    Args:
        every: the time between two searches.
        spare: the fraction by which it enqueues more than a cycle needs.
    """

    every: str = "15m"
    spare: float = 1.1

    def begin(self, sim: Simulation, executor: RateLimitedExecutor, accounts: Population) -> None:
        """Begin to search."""
        for make in (self.sync_job, self.sort_job):
            self._look(sim, executor, accounts, make)

    def _look(self, sim: Simulation, executor: RateLimitedExecutor, accounts: Population, make: Any) -> None:
        waiting = dict.fromkeys(accounts)  # the least recently synced first
        fresh: dict[Any, None] = {}  # those that have joined and were never synced, before all others
        enqueued: set[Any] = set()

        def leave(account: int) -> None:
            fresh.pop(account, None)
            waiting.pop(account, None)

        def done(account: int) -> None:
            enqueued.discard(account)
            leave(account)
            if account in accounts:
                waiting[account] = None

        accounts.on_join(fresh.setdefault)
        accounts.on_leave(leave)

        job = make(sim, accounts, then=done, on_failure=enqueued.discard)
        looks = max(1, round(accounts.period / seconds_of("every", self.every)))

        def look() -> None:
            limit = math.ceil(len(accounts) * self.spare / looks)
            found: list[Any] = []
            for account in chain(fresh, waiting):
                if len(found) == limit:
                    break
                if account not in enqueued:
                    found.append(account)
            enqueued.update(found)
            executor.schedule_many(job, found)

        sim.every(self.every, look)


@dataclass(kw_only=True)
class RandomSpread(Strategy):
    """At the beginning of each cycle all accounts are enqueued, each at a random time within it."""

    def begin(self, sim: Simulation, executor: RateLimitedExecutor, accounts: Population) -> None:
        """Begin the first cycle."""
        cycle = accounts.period
        for make in (self.sync_job, self.sort_job):
            job = make(sim, accounts)
            draw = sim.stream(f"times of {job.name}").random

            def enqueue(job: Job = job, draw: Callable[[], float] = draw) -> None:
                keys = list(accounts)
                executor.schedule_many(job, keys, delays=[draw() * cycle for _ in keys])

            sim.every(cycle, enqueue)


@dataclass(kw_only=True)
class Slots(Strategy):
    """Each account has a fixed time in the cycle, by its key; the accounts of one slot are loaded at a time."""

    def begin(self, sim: Simulation, executor: RateLimitedExecutor, accounts: Population) -> None:
        """Begin a cycle of each kind."""
        for name, job, phase in self.kinds(sim, accounts):
            slots = CycleSlots(self.cycle, phase=phase)
            slot_of = self.slot_of(accounts, slots)
            dealt = sim.note_slots(accounts, name, slots, slot_of)

            executor.every(
                cycle=self.cycle,
                keys=dealt.__getitem__,
                fn=job,
                phase=phase,
                slot_of=slot_of,
                progress=InstantProgress(),
                lease=self.cycle,  # of the only node: nothing would follow from its renewal
                name=name,
            )

    def kinds(self, sim: Simulation, accounts: Population) -> Iterable[tuple[str, Job, Fraction]]:
        """Return the kinds of jobs: name, job and phase."""
        yield "sync", self.sync_job(sim, accounts), reciprocal(0, of=1)
        yield "sort", self.sort_job(sim, accounts), reciprocal(0, of=1)

    def slot_of(self, accounts: Population, slots: CycleSlots) -> Any:  # noqa: ARG002  # balanced slots use them
        """Return a function that returns the slot of an account; None for its hash."""
        return None


@dataclass(kw_only=True)
class WeightedSlots(Slots):
    """Slots balanced by the work of their accounts, with the second kind of job half a cycle later."""

    def kinds(self, sim: Simulation, accounts: Population) -> Iterable[tuple[str, Job, Fraction]]:
        """Return the kinds of jobs: name, job and phase."""
        yield "sync", self.sync_job(sim, accounts), reciprocal(0, of=2)
        yield "sort", self.sort_job(sim, accounts), reciprocal(1, of=2)

    def slot_of(self, accounts: Population, slots: CycleSlots) -> Any:
        """Return a function that returns the balanced slot of an account."""
        weights = {key: member.weight for key, member in accounts.members.items()}
        balanced = balance(weights, slots.count)
        return lambda account: (
            balanced[account] if account in balanced else slots.slot_of(account)
        )  # who joins, by the hash


STRATEGIES: Final = {
    strategy().name: strategy for strategy in (SelfRescheduling, Central, RandomSpread, Slots, WeightedSlots)
}
