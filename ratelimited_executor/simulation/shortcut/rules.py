"""Which scenarios the shortcut computes exactly: it sets a scenario up, and keeps what is to arrive.

The rules: executors with ``max_concurrency``, a single rate, or both, of any pacing, and with retries; kinds of jobs with
drawn, constant or recorded durations, a fraction that fails and outages, each at one executor; arrivals and batches, with
priorities; values by hour of the executors.
Whatever else a scenario asks for is refused by its name: keys with limits, populations and their outages, cycles,
followers, functions of the scenario's own, fleets, and settings that change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ratelimited_executor._core.permits.exact import ExactGrid
from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor.simulation.hours import HOUR_SECONDS, Shift
from ratelimited_executor.simulation.jobs import Job
from ratelimited_executor.simulation.outages import OutageFailures
from ratelimited_executor.simulation.simulation import Nodes, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor.simulation.feeds import Feed
    from ratelimited_executor.simulation.simulation import ArrivalSource, Scenario

__all__ = ["NoShortcutError", "Planned", "Survey"]

_OPTIONS: Final = frozenset({"rate", "max_concurrency", "pacing", "retry"})
_WORDS: Final = {
    "key_rate": "limits keys",
    "key_concurrency": "limits keys",
    "max_pending": "limits what may wait",
    "resources": "limits resources",
}


class NoShortcutError(Exception):
    """The shortcut does not apply to a scenario; the message says why."""


@dataclass(slots=True, kw_only=True)
class Planned:
    """Jobs of one kind that arrive at an executor.

    Attributes:
        executor: the executor.
        job: the kind of job.
        rank: their place among all due jobs: priority, negated, and class.
        feed: their arrivals; None for a batch.
        name: the name of the stream of their random numbers, with its number.
        keys: the keys of a batch.
        dues: the due times of a batch, in seconds since the start, one for each key.
        work: the random numbers of a batch.
    """

    executor: RateLimitedExecutor
    job: Job
    rank: tuple[float, TaskClass]
    name: str
    feed: Feed | None = None
    keys: list[Any]
    dues: list[float]
    work: Any = None


class Survey(Simulation):
    """A simulation in which nothing happens: what its scenario sets up is kept.

    Args:
        seed: as of :class:`Simulation`.
        interval: as of :class:`Simulation`.

    Attributes:
        planned: all jobs that are to arrive, in the order in which they were set up.
        retries: how jobs are retried, by executor.
        shifts: the settings by hour, each with the time at which it is looked at first.

    Raises:
        NoShortcutError: by any method that the shortcut does not compute.
    """

    def __init__(self, *, seed: int, interval: float) -> None:
        super().__init__(seed=seed, interval=interval)
        self.planned: Final[list[Planned]] = []
        self.retries: Final[dict[RateLimitedExecutor, Retry]] = {}
        self.shifts: Final[list[tuple[float, Shift]]] = []

    def set_up(self, scenario: Scenario) -> None:
        """Let a scenario set up the world, and check what it did."""
        super().set_up(scenario)
        if self._setup is None or not self._setup.done():
            raise NoShortcutError("setup() goes on while time passes")
        if self.loop.next_time() < math.inf:
            raise NoShortcutError("the scenario has a plan of its own beside arrivals")
        self._check_jobs()
        for source in self.sources:
            if source.kind == "executor":
                self._check_executor(source)

    def executor(self, name: str, *, worker_price: float = 0.0, **options: Any) -> RateLimitedExecutor:
        """Create an executor, as in production."""
        made = super().executor(name, worker_price=worker_price, **options)
        for option in options.keys() - _OPTIONS:
            if options[option] is not None:
                raise NoShortcutError(f"executor {name} {_WORDS.get(option, f'has {option}')}")
        retry = options.get("retry")
        if retry is not None:
            if type(retry) is not Retry or not isinstance(retry.on, (tuple, type)):
                raise NoShortcutError(f"executor {name} has a function that decides on retries")
            self.retries[made] = retry
        return made

    def _check_executor(self, source: ArrivalSource) -> None:
        executor = source.subject
        accepted, *_ = source.observer.observed.counts()[0]
        if accepted or source.observer.observed.is_drawing:
            raise NoShortcutError(f"executor {source.name} has tasks that did not arrive by the simulation")
        queue = executor._engine.queue
        if not queue.is_unlimited and type(queue.permits) is not ExactGrid:
            raise NoShortcutError(f"executor {source.name} has more than one rate")
        if len(executor._listeners._listeners) > 1:
            raise NoShortcutError(f"executor {source.name} is observed")

    def _check_jobs(self) -> None:
        homes: dict[Job, RateLimitedExecutor] = {}
        retrying: set[RateLimitedExecutor] = set()
        for each in self.planned:
            job = each.job
            if homes.setdefault(job, each.executor) is not each.executor:
                raise NoShortcutError(f"jobs of {job.name} arrive at two executors")
            if job._has_end:
                raise NoShortcutError(f"the ends of {job.name} have consequences")
            if job._fails is not None and type(job._fails) is not OutageFailures:
                raise NoShortcutError(f"the failures of {job.name} depend on more than chance")
            if job.failures != 0.0 and each.executor in self.retries:
                retrying.add(each.executor)
        if len(retrying) > 1:  # they draw their pauses from one stream, in the order of all failures
            raise NoShortcutError("jobs that fail are tried again at two executors")

    # What arrives.

    def _begin_feed(self, feed: Feed, executor: RateLimitedExecutor | Nodes, options: dict[str, Any]) -> None:
        job = self._kind_of(feed.job, executor, options)
        self._call_of(job, options)  # it notes the priority
        rank = -feed.priority, TaskClass.OTHER
        name = f"jobs of {job.name} on {executor.name}"  # type: ignore[union-attr]  # no fleet passes _kind_of()
        self.planned.append(
            Planned(executor=executor, job=job, rank=rank, name=self._named(name), feed=feed, keys=[], dues=[])  # type: ignore[arg-type]  # as above
        )

    def schedule_many(
        self,
        executor: RateLimitedExecutor | Nodes,
        job: Job,
        keys: Iterable[Any],
        *,
        delays: Iterable[float] | None = None,
        **options: Any,
    ) -> None:
        """Keep a batch."""
        self._kind_of(job, executor, options)
        self._call_of(job, options)
        every, now = list(keys), self.now
        dues = [now] * len(every) if delays is None else [now + float(delay) for delay in delays]
        if len(dues) != len(every) or not all(now <= due < math.inf for due in dues):
            raise NoShortcutError(f"the delays of a batch of {job.name} are not in order")
        rank = -options.get("priority", 0), TaskClass.IMMEDIATE if delays is None else TaskClass.OTHER
        name = f"jobs of a batch of {job.name}"
        work = self.stream(name)
        self.planned.append(
            Planned(executor=executor, job=job, rank=rank, name=self._named(name), keys=every, dues=dues, work=work)  # type: ignore[arg-type]  # no fleet passes _kind_of()
        )

    def _named(self, name: str) -> str:
        return f"{self._seed} {name} {self._streams[name]}"

    def _kind_of(self, job: Any, executor: Any, options: dict[str, Any]) -> Job:
        if isinstance(executor, Nodes):
            raise NoShortcutError("several nodes share a rate")
        if type(job) is not Job:
            raise NoShortcutError(f"{getattr(job, '__name__', job)} is a function, and not a kind of job")
        if job.cost is not None:
            raise NoShortcutError(f"jobs of {job.name} cost permits or resources")
        if unknown := options.keys() - {"priority"}:
            raise NoShortcutError(f"jobs of {job.name} have {min(unknown)}")
        if not isinstance(options.get("priority", 0), int):
            raise NoShortcutError(f"jobs of {job.name} have a priority that is no integer")
        return job

    # What else happens.

    def fleet(self, name: str, nodes: int, *, worker_price: float = 0.0, **options: Any) -> Nodes:  # noqa: ARG002  # the shape of the method
        """Refuse: the nodes of a fleet share a rate."""
        raise NoShortcutError(f"fleet {name} has several nodes")

    def population(self, name: str, *args: Any, **options: Any) -> NoReturn:  # noqa: ARG002  # the shape of the method
        """Refuse: the keys of a population have locks and weights."""
        raise NoShortcutError(f"{name} is a population")

    def gauge(self, name: str, read: Callable[[], float], *, unit: str = "") -> NoReturn:  # noqa: ARG002  # as above
        """Refuse: a gauge may look at anything that happens."""
        raise NoShortcutError(f"{name} is a gauge")

    def offer(self, executor: Any, job: Any, item: Any, /, **options: Any) -> NoReturn:  # noqa: ARG002  # as above
        """Refuse: the scenario itself decides when a job arrives."""
        raise NoShortcutError("the scenario offers jobs itself")

    def at(self, seconds: Any, call: Callable[[], object]) -> NoReturn:  # noqa: ARG002  # as above
        """Refuse: what is called may do anything."""
        raise NoShortcutError("something changes in the course of a run: a call at a time")

    def every(self, period: Any, call: Any, *, first: Any = 0.0) -> None:
        """Keep settings by hour; refuse all else: what is called may do anything."""
        if type(call) is Shift and period == HOUR_SECONDS:
            self.shifts.append((float(first), call))
            return
        raise NoShortcutError("something changes in the course of a run: a repeated call")
