"""Metrics for monitoring, by the API of OpenTelemetry: of executors counts, levels, time in queue and duration; of stores the backlog.

The only work per task is in ``_runtime/insight/sampling.py``. A collection reads counts and levels from
``statistics()`` and takes the samples. It may run in another thread, so a store is not asked then, but at regular times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._runtime.arguments import seconds_of
from ratelimited_executor._runtime.durable.counting import ENDS
from ratelimited_executor._runtime.durable.tasks import DurableTasks
from ratelimited_executor._runtime.insight.sampling import SampleSize, sample_executor
from ratelimited_executor._runtime.life.executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor.exceptions import RateLimitedExecutorError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

    from ratelimited_executor._core.durable.tasks import BacklogRow
    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._runtime.insight.insight import Statistics
    from ratelimited_executor._runtime.insight.sampling import Samples

__all__ = ["Instrumentation", "instrument", "instrument_tasks"]

M = TypeVar("M", "_Instruments", "_Gauges")

_PREFIX: Final = "ratelimited_executor"
_NAME: Final = f"{_PREFIX}.name"
_RESULT: Final = f"{_PREFIX}.result"
_KEY: Final = f"{_PREFIX}.key"
_GROUP: Final = tuple(f"{_PREFIX}.{name}" for name in ("queue", "function", "state"))
_ENDED: Final = (*_GROUP[:2], _RESULT)
_BACKLOG_SECONDS: Final = 10.0  # for the answer of a store, at the least
_STATES: Final = (DurableState.READY, DurableState.BEHIND, DurableState.DEAD, DurableState.PAUSED)
_RESULTS: Final = ("done", "failed", "cancelled", "expired", "dropped")

# From 50 microseconds, enough for a start on an idle loop, to a minute: beyond that, the length of a backlog says more.
_BOUNDARIES: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_SIZES: Final = {"sampled": SampleSize(per_second=100, total=1_000), "all": SampleSize(100_000, 100_000)}


def instrument(
    target: RateLimitedExecutor | ExecutorManager,
    *,
    meter_provider: MeterProvider | None = None,
    durations: Literal["sampled", "all"] | None = "sampled",
    keys: bool = False,
    attributes: Mapping[str, str | bool | int | float] | None = None,
) -> Instrumentation:
    """Have the metrics of an executor, or of all executors of a manager, collected from now on.

    Args:
        target: an executor; or a manager, with the executors that it has and those that it makes later.
        meter_provider: where instruments are made; the global one if None.
        durations: which tasks to record time in queue and duration for: ``"sampled"`` for up to 100 a second, and up to
            1,000 between two collections, drawn evenly from all; ``"all"`` for each task, and an even sample only beyond
            100,000; None for none, which costs nothing. Counts are exact in each case.
        keys: True to label recorded durations with the key of the task, as a text: each key makes time series of its own.
        attributes: attributes of every measurement, in addition to the name of its executor.

    Raises:
        TypeError: if an argument has a wrong type.
        ImportError: if OpenTelemetry's API is not installed.
        ValueError: if ``durations`` is not one of these, or the executor or manager is instrumented already by this provider.
        WrongLoopError: from another thread or event loop than that of an executor which has started.
    """
    if not isinstance(target, (RateLimitedExecutor, ExecutorManager)):
        raise TypeError(f"target must be a RateLimitedExecutor or an ExecutorManager, got {target!r}")
    if durations is not None and durations not in _SIZES:
        raise ValueError(f"durations must be 'sampled', 'all' or None, got {durations!r}")
    if not isinstance(keys, bool):
        raise TypeError(f"keys must be a bool, got {keys!r}")
    return Instrumentation(
        _Followed(
            _instruments_of(_Instruments, meter_provider),
            target,
            size=None if durations is None else _SIZES[durations],
            has_keys=keys,
            attributes=dict(attributes or {}),
        )
    )


def instrument_tasks(
    tasks: DurableTasks,
    *,
    meter_provider: MeterProvider | None = None,
    period: DurationLike = 15.0,
    attributes: Mapping[str, str | bool | int | float] | None = None,
) -> Instrumentation:
    """Have the backlog of a store of durable tasks collected, from now on, and how the claims of this process have ended.

    The backlog is what is READY, BEHIND, DEAD or PAUSED, and for how long.

    A task of the running event loop asks the store; there are no values while the store is not open or does not answer.

    Args:
        tasks: durable tasks; all queues of their store are measured.
        meter_provider: where instruments are made; the global one if None.
        period: seconds between two questions to the store, > 0.
        attributes: attributes of every measurement.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if ``period`` is out of range.
        ImportError: if OpenTelemetry's API is not installed.
        RuntimeError: if no event loop runs.
    """
    if not isinstance(tasks, DurableTasks):
        raise TypeError(f"tasks must be DurableTasks, got {tasks!r}")
    seconds = seconds_of("period", period)
    asyncio.get_running_loop()
    return Instrumentation(_Backlog(_instruments_of(_Gauges, meter_provider), tasks, seconds, dict(attributes or {})))


class Instrumentation:
    """Executors or stores whose metrics are collected, until it is closed; a context manager, too.

    Made by :func:`instrument` and :func:`instrument_tasks`.
    """

    __slots__ = ("_followed",)

    def __init__(self, followed: _Followed | _Backlog) -> None:
        self._followed = followed

    def close(self) -> None:
        """Collect nothing more; what was sampled since the last collection is recorded. Does nothing if it is closed.

        Raises:
            WrongLoopError: from another thread or event loop than that of an executor that is open.
        """
        self._followed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        followed = self._followed
        return f"<Instrumentation {'open' if followed.is_open else 'closed'} of {followed.target!r}>"


class _Followed:
    """What one call of :func:`instrument` has collected.

    Args:
        instruments: which measure it.
        target: an executor or a manager.
        size: how many samples are kept of each name; None for none.
        has_keys: True if samples include their keys.
        attributes: the attributes of every measurement.

    Attributes:
        target: as above.
    """

    __slots__ = ("_attributes", "_has_keys", "_instruments", "_size", "_sources", "target")

    def __init__(
        self,
        instruments: _Instruments,
        target: RateLimitedExecutor | ExecutorManager,
        *,
        size: SampleSize | None,
        has_keys: bool,
        attributes: dict[str, Any],
    ) -> None:
        self._instruments = instruments
        self.target = target
        self._size = size
        self._has_keys = has_keys
        self._attributes = attributes
        self._sources: dict[str, _Source] = {}  # by the names of their executors
        executors = target.executors.values() if isinstance(target, ExecutorManager) else [target]
        if any(instruments.has(each) for each in [target, *executors]):
            raise ValueError(f"target is instrumented already: close() that instrumentation first, got {target!r}")
        try:
            for executor in executors:
                self._add(executor)
        except BaseException:
            for source in self._sources.values():
                source.ignore()
            raise
        if isinstance(target, ExecutorManager):
            target._on_executor.append(self._add)
        instruments.active.append(self)

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self in self._instruments.active

    def close(self) -> None:
        """Record what was sampled, and follow nothing more."""
        if not self.is_open:
            return
        for source in self._sources.values():
            source.ignore()
        for source in self._sources.values():
            source.flush(self._instruments)
        self._instruments.active.remove(self)
        if isinstance(self.target, ExecutorManager):
            self.target._on_executor.remove(self._add)

    def _add(self, executor: RateLimitedExecutor) -> None:
        """Collect the metrics of an executor; one of the same name is closed by now."""
        source = self._sources.get(executor.name)
        if source is None:
            attributes = {**self._attributes, _NAME: executor.name}
            source = self._sources[executor.name] = _Source(attributes, self._size, has_keys=self._has_keys)
        source.follow(executor)

    def has(self, target: object) -> bool:
        """Return True if metrics of an executor, or of a manager, are collected here."""
        return target is self.target or any(source.executor is target for source in self._sources.values())

    def sources(self) -> list[_Source]:
        """Return what there is to collect."""
        return list(self._sources.values())


class _Source:
    """The metrics of all executors of one name, one after the other.

    Args:
        attributes: the attributes of every measurement.
        size: how many samples are kept; None for none.
        has_keys: True if samples include their keys.

    Attributes:
        attributes: as above.
        executor: the one that is followed; None once it has closed, and its counts are kept.
    """

    __slots__ = ("_before", "_has_keys", "_ignore", "_lock", "_samples", "_size", "attributes", "executor")

    def __init__(self, attributes: dict[str, Any], size: SampleSize | None, *, has_keys: bool) -> None:
        self.attributes = attributes
        self._size = size
        self._has_keys = has_keys
        self._before: Counter[str] = Counter()  # the counts of executors that have closed
        self._samples: list[Samples] = []
        self._ignore: Callable[[], None] = _nothing
        self._lock = RLock()  # another thread may find that an executor has closed while the next one begins
        self.executor: RateLimitedExecutor | None = None

    def follow(self, executor: RateLimitedExecutor) -> None:
        """Go on with another executor."""
        with self._lock:
            self._let_go()
            self.executor = executor
            if self._size is not None:
                samples, self._ignore = sample_executor(executor, executor._listeners, self._size)
                self._samples.append(samples)

    def ignore(self) -> None:
        """Listen no more."""
        self._ignore()
        self._ignore = _nothing  # only now: in a wrong thread the call has raised, and is to be made again

    def _let_go(self) -> None:
        """Keep the counts of an executor that has closed, and not the executor."""
        executor, self.executor, self._ignore = self.executor, None, _nothing
        if executor is not None:
            with suppress(RateLimitedExecutorError):  # it has never started
                self._before.update(_counts(executor.statistics()))

    def measure(self) -> tuple[Counter[str], Statistics | None]:
        """Return the counts of all executors of this name, and how the present one stands."""
        with self._lock:
            executor = self.executor
            if executor is None:
                return self._before, None
            try:
                statistics = executor.statistics()
            except RateLimitedExecutorError:  # it has not started, and perhaps never will
                return self._before, None
            if executor.is_terminated:
                self._let_go()
                return self._before, statistics
            return self._before + _counts(statistics), statistics

    def flush(self, instruments: _Instruments) -> None:
        """Hand over the samples since the last time; from any thread."""
        for samples in self._samples:
            started, ended = samples.take()
            for sample in ended if self._has_keys else started:
                instruments.time_in_queue.record(sample.lateness, self._attributes_of(sample.key))
            for sample in ended:
                result = "retried" if sample.state is None else sample.state.value
                instruments.duration.record(
                    sample.duration or 0.0, {**self._attributes_of(sample.key), _RESULT: result}
                )
        del self._samples[:-1]  # what has closed starts nothing more

    def _attributes_of(self, key: Hashable) -> dict[str, Any]:
        return {**self.attributes, _KEY: _text(key)} if self._has_keys and key is not None else self.attributes


class _Instruments:
    """The instruments of one provider, and all that they measure: a provider has each instrument once.

    Args:
        meter: makes them.
        observation: the class of what their callbacks return.

    Attributes:
        active: what is open.
        time_in_queue: seconds from due time to start.
        duration: seconds from start to end.
    """

    def __init__(self, meter: Meter, observation: type[Observation]) -> None:
        self._observation = observation
        self.active: list[_Followed] = []
        self._measured: list[tuple[_Source, Counter[str], Statistics | None]] = []
        self._told: set[str] = set()  # the instruments that have told what was measured last
        for name, unit, description, field in _COUNTERS:
            meter.create_observable_counter(
                f"{_PREFIX}.{name}", [self._teller(name, _counter(field))], unit=unit, description=description
            )
        for name, unit, description, level in _LEVELS:
            meter.create_observable_up_down_counter(
                f"{_PREFIX}.{name}", [self._teller(name, _level(level))], unit=unit, description=description
            )
        meter.create_observable_counter(
            f"{_PREFIX}.ended_tasks",
            [self._teller("ended_tasks", _results)],
            unit="{task}",
            description="Tasks that have ended, by how they ended.",
        )
        meter.create_observable_gauge(
            f"{_PREFIX}.rate",
            [self._teller("rate", _rate)],
            unit="{task}/s",
            description="Starts a second that the rate in force allows, in a group that shares it all processes together; no "
            "value while there is no limit.",
        )
        self.time_in_queue = meter.create_histogram(
            f"{_PREFIX}.task.time_in_queue",
            unit="s",
            description="Time from when a task was due to its start.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.duration = meter.create_histogram(
            f"{_PREFIX}.task.duration",
            unit="s",
            description="Time from the start of an attempt to its end, by how it ended.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )

    def has(self, target: object) -> bool:
        """Return True if an executor, or a manager, is measured."""
        return any(each.has(target) for each in self.active)

    def _teller(
        self, name: str, tell: Callable[[Counter[str], Statistics | None], Iterable[tuple[float, dict[str, str]]]]
    ) -> Callable[[CallbackOptions], list[Observation]]:
        """Return what tells one instrument its values: those of one instant, whichever instrument is asked first."""

        def told(options: CallbackOptions) -> list[Observation]:  # noqa: ARG001  # the shape of a callback
            if name in self._told or not self._told:
                self._measure()
                self._told.clear()
            self._told.add(name)
            sums: dict[tuple[tuple[str, Any], ...], float] = {}
            for source, counts, statistics in self._measured:
                for value, more in tell(counts, statistics):
                    attributes = tuple({**source.attributes, **more}.items())
                    sums[attributes] = sums.get(attributes, 0) + value  # two managers may have executors of one name
            return [self._observation(value, dict(attributes)) for attributes, value in sums.items()]

        return told

    def _measure(self) -> None:
        self._measured = []
        for source in [source for each in list(self.active) for source in each.sources()]:
            self._measured.append((source, *source.measure()))
            source.flush(self)


class _Backlog:
    """The backlog of one store, asked for again and again.

    Args:
        gauges: which measure it.
        tasks: durable tasks in the store.
        period: seconds between two questions.
        attributes: the attributes of every measurement.

    Attributes:
        target: the durable tasks.
        counts: the tasks by queue, function and state; 0 for groups that were there before, and for registered functions.
        ages: for how many seconds the oldest READY or PAUSED task has been due, by queue and function; 0 if there is none.
        latencies: for how many seconds the oldest due task has waited to be claimed, by queue; 0 if there is none.
    """

    def __init__(self, gauges: _Gauges, tasks: DurableTasks, period: float, attributes: dict[str, Any]) -> None:
        self.target = tasks
        self.counts: dict[tuple[str, ...], float] = {}
        self.ages: dict[tuple[str, ...], float] = {}
        self.latencies: dict[tuple[str, ...], float] = {}
        self.attributes = attributes
        self._known = {(tasks.queue, name) for name, _ in tasks.functions}
        self._queues = {tasks.queue}
        self._gauges = gauges
        gauges.active.append(self)
        self._asking = asyncio.get_running_loop().create_task(self._ask(period), name=f"metrics of {tasks!r}")

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self in self._gauges.active

    @property
    def ends(self) -> dict[tuple[str, ...], float]:
        """How many claims of this process have ended, by queue, function and result."""
        queue, ended = self.target.queue, self.target._ended()  # noqa: SLF001  # what they count for this
        known = {name for name, _ in tuple(self.target.functions)} | {name for name, _ in ended}
        return {(queue, name, how): float(ended[name, how]) for name in sorted(known) for how in ENDS}

    def close(self) -> None:
        """Ask no more."""
        if self.is_open:
            self._gauges.active.remove(self)
            self._asking.cancel()

    async def _ask(self, period: float) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(max(period, _BACKLOG_SECONDS)):
                        self._note(await self.target.backlog(), await self.target.latencies())
                except (StoreUnavailableError, TimeoutError):
                    self._forget()
                await asyncio.sleep(period)
        finally:  # closed, or the event loop is; or an error that asyncio reports
            self._forget()

    def _forget(self) -> None:
        self.counts, self.ages, self.latencies = {}, {}, {}

    def _note(self, rows: list[BacklogRow], latencies: dict[str, float]) -> None:
        now = self.target._clock.wall()  # noqa: SLF001  # the clock of its event loop
        self._known.update((row.queue, row.name) for row in rows)
        counts: dict[tuple[str, ...], float] = {
            (*each, _state(state)): 0.0 for each in sorted(self._known) for state in _STATES
        }
        ages: dict[tuple[str, ...], float] = dict.fromkeys(sorted(self._known), 0.0)
        for row in rows:
            counts[row.queue, row.name, _state(row.state)] = float(row.count)
            if row.state in (DurableState.READY, DurableState.PAUSED):
                ages[row.queue, row.name] = max(ages[row.queue, row.name], now - row.due_us / 1_000_000)
        self._queues |= latencies.keys() | {queue for queue, _ in self._known}
        self.latencies = {(queue,): latencies.get(queue, 0.0) for queue in sorted(self._queues)}
        self.counts, self.ages = counts, ages  # new ones: another thread may be collecting


class _Gauges:
    """The instruments of one provider for stores.

    Args:
        meter: makes them.
        observation: the class of what their callbacks return.

    Attributes:
        active: what is open.
    """

    def __init__(self, meter: Meter, observation: type[Observation]) -> None:
        self.active: list[_Backlog] = []
        self._observation = observation
        meter.create_observable_gauge(
            f"{_PREFIX}.durable.tasks",
            [lambda _: self._told(lambda each: each.counts)],
            unit="{task}",
            description="Durable tasks in the store that are ready, behind others of their lane, dead, or paused.",
        )
        meter.create_observable_gauge(
            f"{_PREFIX}.durable.ready_age",
            [lambda _: self._told(lambda each: each.ages)],
            unit="s",
            description="Time since the oldest ready or paused task of a function was due.",
        )
        meter.create_observable_gauge(
            f"{_PREFIX}.durable.latency",
            [lambda _: self._told(lambda each: each.latencies)],
            unit="s",
            description="Time since the oldest due task of a queue that no process has claimed was due.",
        )
        meter.create_observable_counter(
            f"{_PREFIX}.durable.ended_claims",
            [lambda _: self._told(lambda each: each.ends, _ENDED)],
            unit="{claim}",
            description="Claims of this process that have ended, by function and result.",
        )

    def _told(
        self, values: Callable[[_Backlog], dict[tuple[str, ...], float]], names: tuple[str, ...] = _GROUP
    ) -> list[Observation]:
        return [
            self._observation(value, {**each.attributes, **dict(zip(names, group, strict=False))})
            for each in list(self.active)
            for group, value in values(each).items()
        ]


def _instruments_of(kind: type[M], provider: MeterProvider | None) -> M:
    """Return the instruments of a provider, made if they are not there; None is the global one, whichever that will be."""
    if provider is not None and not callable(getattr(provider, "get_meter", None)):
        raise TypeError(f"meter_provider must be a MeterProvider of OpenTelemetry, or None, got {provider!r}")
    api = _api()
    key = api if provider is None or provider is api.get_meter_provider() else provider
    made: dict[type[M], M] = _OF_PROVIDERS.setdefault(key, {})
    if kind not in made:
        made[kind] = kind(api.get_meter(_PREFIX) if key is api else key.get_meter(_PREFIX), api.Observation)
    return made[kind]


_OF_PROVIDERS: Final[WeakKeyDictionary[Any, dict[Any, Any]]] = WeakKeyDictionary()

_COUNTERS: Final = (
    ("accepted_tasks", "{task}", "Tasks that were taken in.", "accepted"),
    ("started_tasks", "{task}", "Starts, those of further attempts included.", "started"),
    ("retried_tasks", "{task}", "Attempts that have failed and are followed by another.", "retried"),
)
_LEVELS: Final[tuple[tuple[str, str, str, Callable[[Statistics], int]], ...]] = (
    ("active_tasks", "{task}", "Tasks that run, held permits included.", lambda now: now.running),
    (
        "queued_tasks",
        "{task}",
        "Tasks that are due, or will be within the running interval, and wait.",
        lambda now: now.overdue,
    ),
    (
        "scheduled_tasks",
        "{task}",
        "Tasks that wait for a later due time.",
        lambda now: max(0, now.waiting - now.overdue),
    ),
)


def _api() -> Any:
    """Return the module of OpenTelemetry's API that makes meters.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415  # an extra, imported on use
    except ImportError as error:
        raise ImportError("instrument needs the extra: pip install 'ratelimited-executor[metrics]'") from error
    return metrics


def _counts(statistics: Statistics) -> Counter[str]:
    """Return what only ever grows."""
    return Counter({name: getattr(statistics, name) for name in ("accepted", "started", "retried", *_RESULTS)})


def _counter(field: str) -> Callable[[Counter[str], Statistics | None], Iterator[tuple[float, dict[str, str]]]]:
    def tell(counts: Counter[str], statistics: Statistics | None) -> Iterator[tuple[float, dict[str, str]]]:  # noqa: ARG001  # the shape of it
        yield counts[field], {}

    return tell


def _level(
    of: Callable[[Statistics], int],
) -> Callable[[Counter[str], Statistics | None], Iterator[tuple[float, dict[str, str]]]]:
    def tell(counts: Counter[str], statistics: Statistics | None) -> Iterator[tuple[float, dict[str, str]]]:  # noqa: ARG001  # the shape of it
        yield 0 if statistics is None else of(statistics), {}

    return tell


def _results(counts: Counter[str], statistics: Statistics | None) -> Iterator[tuple[float, dict[str, str]]]:  # noqa: ARG001  # the shape of it
    for result in _RESULTS:
        yield counts[result], {_RESULT: result}


def _rate(counts: Counter[str], statistics: Statistics | None) -> Iterator[tuple[float, dict[str, str]]]:  # noqa: ARG001  # the shape of it
    if statistics is None:
        return
    if statistics.fleet is not None and statistics.fleet.rate is not None:  # it may be that of another process
        yield float(statistics.fleet.rate), {}
    elif not statistics.rate.is_unlimited:
        yield float(statistics.rate), {}


def _state(state: DurableState) -> str:
    return state.name.lower()


def _text(value: object) -> str:
    """Return a key as a text that every exporter can encode, whatever it is."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001  # code of the user
        text = f"<{type(value).__name__}>"
    return text.encode(errors="replace").decode()


def _nothing() -> None:
    """Do nothing."""
