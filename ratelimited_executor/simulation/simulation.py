"""Scenarios and the simulated world: production executors on an event loop in virtual time, and their jobs.

Only the wake-ups and the content of jobs differ from production: the same queue decides when each job starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
from collections import Counter
from dataclasses import fields, is_dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from ratelimited_executor._core.durations import format_duration, seconds_of
from ratelimited_executor._runtime.arguments import callable_of, count_of, delay_of, number_of
from ratelimited_executor._runtime.life.executor import ExecutorManager
from ratelimited_executor.exceptions import BacklogFullError
from ratelimited_executor.peers.static import StaticPeers
from ratelimited_executor.simulation.arrivals import Daily, Recorded
from ratelimited_executor.simulation.churn import Churn
from ratelimited_executor.simulation.costs import JobCost
from ratelimited_executor.simulation.feeds import CHUNK_SECONDS, Feed
from ratelimited_executor.simulation.jobs import RECORDED, AsRecorded, Job, JobFailedError, distribution_of
from ratelimited_executor.simulation.levels import Gauge
from ratelimited_executor.simulation.limits import JOBS_MAX, NODES_MAX, check_most
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.simulation.meters import Meter
from ratelimited_executor.simulation.observer import Current, ExecutorObserver
from ratelimited_executor.simulation.population import Population
from ratelimited_executor.simulation.waits import Objective, Waits
from ratelimited_executor.testing.clock import DEFAULT_START_WALL

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor.simulation.arrivals import Arrivals
    from ratelimited_executor.simulation.chances import Arriving
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.spread.keys import Key
    from ratelimited_executor.spread.slots import CycleSlots

__all__ = ["ArrivalSource", "Nodes", "Scenario", "Simulation"]

_WARNING_COUNT_MAX: Final = 100
_OUTAGE_SECONDS: Final = 30.0  # after which a call to a service that is down gives up


class ArrivalSource:
    """A measured subject: an executor, a kind of job, one of its priorities, a population, or a gauge.

    Attributes:
        number: its number in the database.
        kind: ``"executor"``, ``"job"``, ``"priority"``, ``"population"`` or ``"gauge"``.
        name: its name.
        subject: the object itself.
        meters: its measurements, by metric.
        observer: measures an executor as its tasks run; only an executor has it.
        worker_price: the price of an hour of a worker of an executor.
        node_count: the number of nodes that share the limits of an executor evenly, itself included.
    """

    __slots__ = ("kind", "meters", "name", "node_count", "number", "observer", "subject", "worker_price")

    observer: ExecutorObserver

    def __init__(self, number: int, kind: str, name: str, subject: Any, metrics: Sequence[str]) -> None:
        self.number = number
        self.kind = kind
        self.name = name
        self.subject = subject
        self.worker_price = 0.0
        self.node_count = 1
        self.meters = {metric: Meter(number, metric) for metric in metrics}

    def details(self) -> dict[str, Any]:
        """Return its properties, as the database stores them."""
        subject = self.subject
        if self.kind == "executor":
            rate = float(subject.rate)
            return {"rate": rate if math.isfinite(rate) else None, "max_concurrency": subject.max_concurrency}
        if self.kind == "job":
            failures = "by key" if callable(subject.failures) else subject.failures
            return {"duration": repr(subject.duration), "failures": failures}
        if self.kind == "priority":
            return {}
        if self.kind == "gauge":
            return {"unit": subject.unit}
        return {"period": subject.period, "count": len(subject)}


class Scenario:
    """A scenario to simulate: subclass it, add parameters as fields of a dataclass, and set up the world.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Invoices(Scenario):
    ...     '''Send all invoices of a month.'''
    ...
    ...     count: int = 500_000
    ...     rate: float = 50
    ...
    ...     def setup(self, sim):
    ...         send = sim.job("send", 0.4)
    ...         sim.executor("api", rate=self.rate, max_concurrency=40).schedule_many(send, range(self.count))

    Attributes:
        days: the length of a run, unless the call gives another.
        interval: seconds in an interval of its executors.
    """

    days: ClassVar[float] = 7.0
    interval: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """The name of the scenario: the class name in lower case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    def setup(self, sim: Simulation) -> Awaitable[None] | None:
        """Set up executors, jobs and arrivals; may be ``async``."""
        raise NotImplementedError(f"{type(self).__name__} must define setup(sim)")

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, as recorded in the database."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        return {name: getattr(self, name) for name in names}


class Simulation:
    """The world in which a scenario is set up.

    Args:
        seed: the seed of :attr:`random`, and so of all random numbers.
        start: epoch seconds at which it begins.
        interval: seconds in an interval of its executors.

    Attributes:
        loop: the event loop; ``loop.time()`` are seconds since the start.
        random: random numbers for the scenario's own use; :meth:`stream` gives a separate stream for each use.
        sources: the measured subjects.
        events: past events and known future ones, as (seconds, text).
        refused: arrivals for which there was no room, by executor, since the last sample.
        slots: the slots of cycles, as (population, name, slot, begin in seconds, keys, weight).
    """

    def __init__(self, *, seed: int = 0, start: float = DEFAULT_START_WALL, interval: DurationLike = 1.0) -> None:
        self.loop: Final = SimulationLoop(start_wall=start, seed=f"loop {seed}")  # type: ignore[abstract]  # see its module
        self.loop.set_exception_handler(self._note_error)
        self.random: Final = random.Random(seed)  # noqa: S311  # it must be repeatable, not secret
        self.sources: list[ArrivalSource] = []
        self.events: list[tuple[float, str]] = []
        self.refused: Counter[RateLimitedExecutor] = Counter()
        self.slots: list[tuple[Population, str, int, float, int, float]] = []
        self._bounded: set[RateLimitedExecutor] = set()  # those with a limit on pending jobs
        self._impatient: set[RateLimitedExecutor] = set()  # those whose jobs expire
        self._current = Current()
        self._seed = seed
        self._streams: Counter[str] = Counter()
        self._on_source: Callable[[ArrivalSource], None] | None = None
        self._interval = seconds_of("interval", interval)
        self._manager = ExecutorManager(interval=interval)
        self._error: BaseException | None = None
        self._warning_count = 0
        self.notes: list[str] = []  # what whoever reads the figures must know
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._setup: asyncio.Task[Any] | None = None

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.loop.time()

    def stream(self, name: str) -> random.Random:
        """Return a new stream of random numbers, which depends only on the seed, the name, and how often it was asked for.

        Numbers drawn from a stream leave those of all others as they are. So two scenarios that differ in one part have
        the same random numbers in the others, and their difference is that of the part.
        """
        self._streams[name] += 1
        return random.Random(f"{self._seed} {name} {self._streams[name]}")  # noqa: S311  # it must be repeatable, not secret

    # The world.

    def executor(self, name: str, *, worker_price: float = 0.0, **options: Any) -> RateLimitedExecutor:
        """Create an executor, as in production.

        Args:
            name: its name, different from that of every other executor.
            worker_price: the price of an hour of each of its ``max_concurrency`` workers, >= 0, in any unit.
            options: as for :class:`~ratelimited_executor.RateLimitedExecutor`.
        """
        price = _worker_price(worker_price, options)
        return self._measure(self._manager.executor(name, **options), options, price)

    def fleet(self, name: str, nodes: int, *, worker_price: float = 0.0, **options: Any) -> Nodes:
        """Create executors for several nodes that share their rate evenly.

        Args:
            name: the name of the fleet; its executors are named ``name/0`` and so on.
            nodes: the number of nodes, >= 1.
            worker_price: the price of an hour of each of the ``max_concurrency`` workers of each node.
            options: as for :class:`~ratelimited_executor.RateLimitedExecutor`; the rate is that of all nodes together.
        """
        count = count_of("nodes", nodes, least=1)
        check_most("nodes", count, NODES_MAX, "nodes")
        price = _worker_price(worker_price, options)
        executors = []
        for rank in range(count):
            manager = ExecutorManager(interval=self._interval, peers=StaticPeers(count, rank))
            with contextlib.suppress(StopIteration):
                manager.start().send(None)  # runs to its end at once: it never waits
            executors.append(self._measure(manager.executor(f"{name}/{rank}", **options), options, price, count))
        return Nodes(executors)

    def population(
        self,
        name: str,
        keys: int | Iterable[Key],
        *,
        period: DurationLike,
        weight: Callable[[Any], float] | None = None,
        group: Callable[[Any], str] | None = None,
        joins: Arrivals | None = None,
        lifetime: DurationLike | Distribution | None = None,
    ) -> Population:
        """Create a population.

        Args:
            name: as for :class:`Population`, and so are ``keys``, ``period``, ``weight`` and ``group``.
            keys: those that are there at the start; with ``joins`` there may be none.
            period: the period in which each key is to be synced.
            weight: the amount of work of a key.
            group: the group of a key.
            joins: when keys join, such as ``Poisson(5 / 86400)``; None for never. The keys are those of a :class:`Recorded`, or
                else the next unused numbers.
            lifetime: how long a key stays from when it joins, those that are there at the start having joined before; None for
                ever, or for the durations of a recording that has any.
        """
        is_changing = joins is not None or lifetime is not None
        made = Population(name, keys, period=period, weight=weight, group=group, is_changing=is_changing)
        if is_changing:
            lives = None if lifetime is None else distribution_of("lifetime", lifetime)
            self._note_recording(joins, f"what joins {name}")
            joining, living, remaining = (
                self.stream(f"{what} of {name}") for what in ("joins", "lives", "remaining lives")
            )
            Churn(self.loop, made, self._starting(joins), lives, (joining, living, remaining)).begin()
        source = self._add_source("population", name, made, ("sync_interval", "sync_delay", "time_since_last_sync"))
        made.add_interval = source.meters["sync_interval"].add
        return made

    def job(
        self,
        name: str,
        duration: DurationLike | Distribution | Literal["recorded"],
        *,
        failures: float | Callable[[Any], float] = 0.0,
        population: Population | None = None,
        is_sync: bool = True,
        needs_group: bool = True,
        then: Callable[[Any], object] | None = None,
        on_failure: Callable[[Any], object] | None = None,
        outage_duration: DurationLike | Distribution = _OUTAGE_SECONDS,
        objectives: Objective | Sequence[Objective] = (),
        price: float = 0.0,
        cost: int | Mapping[str, int | Distribution] | None = None,
    ) -> Job:
        """Create a kind of job: a function that executors call instead of real work.

        Args:
            name: the name of the kind.
            duration: the duration of each job, or a distribution; multiplied by the weight of its key. ``"recorded"`` replays
                the duration of each arrival of a recording: such jobs may arrive in no other way.
            failures: the fraction of jobs that fail, 0 to 1, at their end; or a function of the key that returns it.
            population: the population of their keys; a key is locked while a job works on it.
            is_sync: True if the jobs sync their key; False if they only need its lock.
            needs_group: True if the jobs fail while their key's group is out.
            then: called with the key when a job has returned.
            on_failure: called with the key when a job has failed.
            outage_duration: how long a job takes to give up while its key's group is out.
            objectives: what the waits of its jobs are to keep.
            price: the price of each attempt, >= 0, in any unit.
            cost: what each start uses, in permits, or a mapping from resource to amount: a whole number, or a distribution. It is
                that of the jobs that arrive by this simulation, unless their arrivals have a ``cost`` of their own; a job that
                your own code hands to an executor costs what that call says.
        """
        made = Job(
            self,
            name,
            AsRecorded() if duration == RECORDED else distribution_of("duration", duration),
            failures=failures,
            population=population,
            is_sync=is_sync,
            needs_group=needs_group,
            then=then,
            on_failure=on_failure,
            outage_duration=distribution_of("outage_duration", outage_duration),
            price=price,
            cost=None if cost is None else JobCost(cost),
        )
        wanted = (objectives,) if isinstance(objectives, Objective) else tuple(objectives)
        meters = self._add_source("job", name, made, ("start_delay", "execution_time")).meters
        made._execution_time = meters["execution_time"]

        def new_meter(priority: int) -> Meter:
            return self._add_source("priority", f"{name}, priority {priority}", made, ("start_delay",)).meters[
                "start_delay"
            ]

        made._waits = Waits(meters["start_delay"], new_meter, wanted)
        return made

    def gauge(self, name: str, read: Callable[[], float], *, unit: str = "") -> None:
        """Let the run look at a value at the end of each step, a minute by default, for its summary, database and report.

        Args:
            name: the name of the gauge.
            read: returns the value, a finite number; it must change nothing. While nothing happens it may not be called.
            unit: the unit of the value, for the report.
        """
        self._add_source("gauge", name, Gauge(name, read, unit), ())

    # Events.

    def at(self, seconds: DurationLike, call: Callable[[], object]) -> None:
        """Call a function at a time, in seconds since the start."""
        self.loop.call_at(delay_of("seconds", seconds), callable_of("call", call))

    def every(self, period: DurationLike, call: Callable[[], object], *, first: DurationLike = 0.0) -> None:
        """Call a function repeatedly.

        Args:
            period: seconds, a timedelta or a str such as ``"10m"``.
            call: the function.
            first: seconds from the start to the first call.
        """
        seconds = seconds_of("period", period)
        callable_of("call", call)
        begin = delay_of("first", first)
        passed = max(0, math.ceil((self.now - begin) / seconds))  # skip times before now

        def step(number: int) -> None:
            self.loop.call_at(begin + (number + 1) * seconds, step, number + 1)
            call()

        self.loop.call_at(begin + passed * seconds, step, passed)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run a coroutine in the background; its error ends the run."""
        task: asyncio.Task[Any] = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._note_task)
        return task

    def arrive(
        self,
        arrivals: Arrivals,
        executor: RateLimitedExecutor | Nodes,
        job: Callable[[Any], object],
        *,
        keys: Sequence[Any] | Population | None = None,
        **options: Any,
    ) -> None:
        """Let jobs arrive at an executor, a minute's worth at a time, so that memory stays bounded in a long run.

        Args:
            arrivals: the times of arrival, such as :class:`Poisson` or :class:`Recorded`.
            executor: the executor.
            job: the kind of job; called with a key. One whose duration is ``"recorded"`` lasts as each recorded arrival.
            keys: the keys, drawn uniformly; by default those of a recording, or numbers from 0 on. Of a population whose keys
                join and leave, they are drawn from those that are there at the beginning of each minute.
            options: as for ``schedule_many``, such as ``expires`` and ``priority``.

        Raises:
            ValueError: if ``keys`` is empty; if the job needs recorded durations, and the arrivals have none.
        """
        arrivals = self._starting(arrivals)
        lasts = isinstance(job, Job) and job.is_recorded
        self._note_recording(arrivals, f"the arrivals of {getattr(job, '__name__', 'calls')}", with_durations=lasts)
        nodes = _nodes_of(executor)
        name = f"{getattr(job, '__name__', 'calls')} on {nodes[0].name}"
        when, which, work = (self.stream(f"{what} of {name}") for what in ("times", "keys", "jobs"))
        feed = Feed(arrivals, job, keys, options.get("priority", 0), (when, which, work))
        self._begin_feed(feed, executor, options)

    def _note_recording(self, arrivals: Any, what: str, *, with_durations: bool = False) -> None:
        """Note what is odd about a recording."""
        if isinstance(arrivals, Recorded):
            found = (*arrivals.notes, *(arrivals.duration_notes if with_durations else ()))
            self.notes += [note for each in found if (note := f"{what}: {each}") not in self.notes]

    def _starting(self, arrivals: Any) -> Any:
        """Return arrivals by the hour of the day for a simulation that begins at its own hour, and all others as they are."""
        return arrivals.starting_at(self.loop.clock.wall() - self.now) if isinstance(arrivals, Daily) else arrivals

    def _begin_feed(self, feed: Feed, executor: RateLimitedExecutor | Nodes, options: dict[str, Any]) -> None:
        """Let the jobs of a feed arrive from now on."""
        nodes = _nodes_of(executor)
        call, options = self._call_of(feed.job, options)
        is_bounded = not self._bounded.isdisjoint(nodes)

        def offer(item: Any) -> None:
            self._offer(executor, call, item, **options)

        def hand_over() -> None:
            begin = self.now
            check_most(
                f"what waits for {nodes[0].name} after {format_duration(begin)}",
                sum(each.statistics().waiting for each in nodes),
                JOBS_MAX,
                "jobs (give it a larger rate, or max_pending)",
            )
            if times := feed.times(begin):
                items = feed.items(begin, len(times))
                if isinstance(feed.job, Job):
                    feed.job._waits.expect(times, items, stays=self._stays(executor, options))
                if not is_bounded:
                    executor.schedule_many(call, items, delays=[time - begin for time in times], **options)
                else:  # jobs scheduled ahead would take the room of waiting jobs
                    for time, item in zip(times, items, strict=True):
                        self.loop.push(time, offer, item)
            if begin + CHUNK_SECONDS < feed.arrivals.end:
                self.loop.call_at(begin + CHUNK_SECONDS, hand_over)

        self.loop.call_soon(hand_over)

    def offer(
        self, executor: RateLimitedExecutor | Nodes, job: Callable[[Any], object], item: Any, /, **options: Any
    ) -> None:
        """Let a job arrive now, and count it as refused if there is no room for it.

        If it is a kind of job, its random numbers are drawn now: from those of the job that has just ended if this is
        called by its ``then`` or ``on_failure``, so they depend on nothing else.

        Args:
            executor: the executor.
            job: the job; called with the item.
            item: its argument.
            options: as for ``schedule``.
        """
        call, options = self._call_of(job, options)
        if isinstance(job, Job):
            item = job._following(item, options.get("priority", 0))
            due = self.now + delay_of("delay", options.get("delay") or 0.0)
            job._waits.expect([due], [item], stays=self._stays(executor, options))
        self._offer(executor, call, item, **options)

    def schedule_many(
        self,
        executor: RateLimitedExecutor | Nodes,
        job: Job,
        keys: Iterable[Any],
        *,
        delays: Iterable[float] | None = None,
        **options: Any,
    ) -> Any:
        """Schedule a batch of jobs whose random numbers are drawn now, and not when they start.

        Args:
            executor: the executor.
            job: the kind of job.
            keys: the key of each job.
            delays: seconds from now, one for each; all are due now if None.
            options: as for ``schedule_many`` of an executor.
        """
        priority = options.get("priority", 0)
        call, options = self._call_of(job, options)
        drawn = job._drawn(keys, self.stream(f"jobs of a batch of {job.name}"), priority=priority)
        waits = None if delays is None else list(delays)
        handles = executor.schedule_many(call, drawn, delays=waits, **options)
        dues = [self.now + wait for wait in waits or repeat(0.0, len(drawn))]
        job._waits.expect(dues, drawn, stays=self._stays(executor, options))
        return handles

    def _stays(self, executor: RateLimitedExecutor | Nodes, options: dict[str, Any]) -> bool:
        """Return True if jobs wait until they start: they neither expire nor are refused."""
        nodes = _nodes_of(executor)
        return "expires" not in options and self._bounded.isdisjoint(nodes) and self._impatient.isdisjoint(nodes)

    def _call_of(self, job: Callable[[Any], object], options: dict[str, Any]) -> tuple[Callable[[Any], object], Any]:
        """Return what an executor calls for a job, and its options; for a kind of job both take an arrival."""
        if not isinstance(job, Job):
            return job, options
        job._waits.note_priority(options.get("priority", 0))
        return job._begin_arrival, {
            "name": job.name,
            **({} if job.cost is None else {"cost": job.cost.fixed or job.cost.of_arrival}),
            **options,
            **{name: _of_key(options[name]) for name in _told(options)},
        }

    def _offer(
        self, executor: RateLimitedExecutor | Nodes, job: Callable[[Any], object], item: Any, /, **options: Any
    ) -> None:
        node = executor.next() if isinstance(executor, Nodes) else executor
        told = {name: options[name](item) for name in _told(options)}
        try:
            node.schedule(job, item, **{**options, **told})
        except BacklogFullError:
            self.refused[node] += 1

    def outage(self, population: Population, group: str, begin: DurationLike, end: DurationLike) -> None:
        """Fail all jobs of a group of keys that start within a span of time.

        Args:
            population: the population of the group.
            group: the name of the group.
            begin: seconds since the start.
            end: seconds since the start, later than ``begin``.
        """
        since, until = population.add_outage(group, begin, end)
        self.events += [(since, f"{group} is out"), (until, f"{group} is back")]

    def mark(self, text: str) -> None:
        """Record an event that happens now, for the reports."""
        self.events.append((self.now, text))

    def note_slots(
        self, population: Population, name: str, slots: CycleSlots, slot_of: Callable[[Any], int] | None = None
    ) -> list[list[Key]]:
        """Assign the keys of a population to the slots of a cycle, record that for the reports, and return them.

        Keys that join later are added to what is returned, and those that leave are removed.

        Args:
            population: a population of this simulation.
            name: the name of the cycle, different from that of every other cycle of the population.
            slots: the slots of the cycle.
            slot_of: a function of a key that returns its slot; by default the slot of its hash.
        """
        if not any(source.subject is population for source in self.sources):
            raise ValueError(f"population must be one of this simulation, made by sim.population(), got {population!r}")
        if any(each[:2] == (population, name) for each in self.slots):
            raise ValueError(f"name {name!r} is in use: every cycle of a population needs a name of its own")
        find = slots.slot_of if slot_of is None else slot_of
        dealt: list[list[Key]] = [[] for _ in range(slots.count)]
        for key in population:
            dealt[find(key)].append(key)
        population.on_join(lambda key: dealt[find(key)].append(key))
        population.on_leave(lambda key: dealt[find(key)].remove(key))
        phase = float(slots.phase * slots.seconds)
        for slot, keys in enumerate(dealt):
            weight = math.fsum(population.members[key].weight for key in keys)
            begin = (slot * slots.slot_seconds + phase) % slots.seconds
            self.slots.append((population, name, slot, begin, len(keys), weight))
        return dealt

    def _note_warning(self, record: logging.LogRecord) -> None:
        """Record a warning of the library among the events; failing jobs are not reported."""
        if any(isinstance(value, JobFailedError) for value in record.args or ()):
            return
        self._warning_count += 1
        if self._warning_count < _WARNING_COUNT_MAX:
            self.mark(f"warning: {record.getMessage()}")
        elif self._warning_count == _WARNING_COUNT_MAX:
            self.mark("more warnings, which are not noted")

    # For the runner.

    def set_up(self, scenario: Scenario) -> None:
        """Let a scenario set up the world; an ``async`` setup may continue while time passes."""

        async def begin() -> None:
            await self._manager.start()
            found: object = scenario.setup(self)
            if asyncio.iscoroutine(found):
                await found
            if not any(source.kind == "executor" for source in self.sources):
                raise ValueError(
                    f"the scenario {scenario.name} creates no executor: call sim.executor() in its setup()"
                )

        self._setup = self.spawn(begin())
        self.run_until(self.now)

    def run_until(self, seconds: DurationLike) -> None:
        """Run everything up to a time, in seconds since the start; raise errors of the scenario."""
        is_plain = type(seconds) is float and 0 <= seconds < math.inf  # every step passes here
        self.loop.run_until(seconds if is_plain else delay_of("seconds", seconds))  # type: ignore[arg-type]  # it is a float
        if self._error is not None:
            raise self._error
        if self._setup is None:
            return
        if self._setup.cancelled():
            raise RuntimeError("setup() was cancelled")
        if not self._setup.done() and self.loop.next_time() == math.inf:
            raise RuntimeError("setup() waits forever: nothing is left to happen")

    def close(self) -> None:
        """Drop all future events, and end all running tasks."""
        self._is_closed = True
        loop = self.loop
        if loop.is_closed():
            return
        loop.call_soon(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        with contextlib.suppress(Exception):  # of a scenario that has already failed
            loop.run_until(loop.time())
        loop.close()

    # Helpers.

    def _measure(
        self, executor: RateLimitedExecutor, options: dict[str, Any], worker_price: float, node_count: int = 1
    ) -> RateLimitedExecutor:
        """Measure an executor that was created with some options."""
        source = self._add_source("executor", executor.name, executor, ("start_delay",))
        source.worker_price, source.node_count = worker_price, node_count
        source.observer.observe(executor)
        if any(options.get(name) is not None for name in ("max_pending", "key_max_pending")):
            self._bounded.add(executor)
        if options.get("expires") is not None:
            self._impatient.add(executor)
        return executor

    def _add_source(self, kind: str, name: str, subject: Any, metrics: Sequence[str]) -> ArrivalSource:
        if any((source.kind, source.name) == (kind, name) for source in self.sources):
            raise ValueError(f"name {name!r} is in use: every {kind} of a simulation needs a name of its own")
        source = ArrivalSource(len(self.sources) + 1, kind, name, subject, metrics)
        if kind == "executor":
            source.observer = ExecutorObserver(self.loop.clock, source.meters["start_delay"], self._current)
        self.sources.append(source)
        if self._on_source is not None:
            self._on_source(source)
        return source

    def _note_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._is_closed:
            self._error = self._error or task.exception()

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an error that was not retrieved: jobs may fail, but the scenario must not."""
        error = context.get("exception")
        if self._is_closed or isinstance(error, JobFailedError):
            return
        self._error = self._error or error or RuntimeError(str(context.get("message")))


def _nodes_of(executor: RateLimitedExecutor | Nodes) -> Sequence[RateLimitedExecutor]:
    """Return the executors of which one is to run a job."""
    return executor.executors if isinstance(executor, Nodes) else (executor,)


def _told(options: dict[str, Any]) -> list[str]:
    """Return the names of options that are functions of an item."""
    return [name for name in ("key", "cost") if callable(options.get(name))]


def _of_key(option: Callable[[Any], Any]) -> Callable[[Arriving], Any]:
    """Return an option of an arrival for one of its key."""
    return lambda arrival: option(arrival.key)


def _worker_price(price: Any, options: dict[str, Any]) -> float:
    found = number_of("worker_price", price)
    if not 0 <= found < math.inf:
        raise ValueError(f"worker_price must be >= 0 and finite, got {price!r}")
    if found and options.get("max_concurrency") is None:
        raise ValueError("worker_price needs max_concurrency, the number of workers that it is the price of")
    return found


class Nodes:
    """The executors of several nodes that share a rate.

    Args:
        executors: one for each node.
    """

    def __init__(self, executors: Sequence[RateLimitedExecutor]) -> None:
        self.executors: Final = tuple(executors)
        self._next = 0

    def next(self) -> RateLimitedExecutor:
        """Return the next executor in turn, like a load balancer."""
        executor = self.executors[self._next]
        self._next = (self._next + 1) % len(self.executors)
        return executor

    def schedule(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Awaitable[Any]:
        """Schedule a call on the next node in turn."""
        return self.next().schedule(fn, *args, **options)

    def schedule_many(
        self, fn: Callable[[Any], Any], items: Iterable[Any], *, delays: Iterable[float] | None = None, **options: Any
    ) -> list[Any]:
        """Schedule a batch on each node, and return their handles: the items are distributed in turn."""
        every = list(items)
        times = None if delays is None else list(delays)
        count, first = len(self.executors), self._next
        self._next = (first + len(every)) % count  # the next batch continues where this one ends
        handles = []
        for rank, executor in enumerate(self.executors):
            part = slice((rank - first) % count, None, count)
            delayed = None if times is None else times[part]
            handles.append(executor.schedule_many(fn, every[part], delays=delayed, **options))
        return handles
