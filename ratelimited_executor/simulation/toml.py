"""Simple scenarios as TOML files, without a line of Python.

Files describe executors, populations, jobs, arrivals and outages; ``toml_shape.py`` has their tables and names.
"""

from __future__ import annotations

import math
import re
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import delay_of, seconds_of
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._runtime.arguments import count_of, number_of
from ratelimited_executor.exceptions import BacklogFullError
from ratelimited_executor.simulation.arrivals import Daily, Poisson, Recorded, Regular
from ratelimited_executor.simulation.distributions import Constant, Exponential, LogNormal, Percentiles, Sample
from ratelimited_executor.simulation.hours import HOUR_SECONDS, Shift, in_force
from ratelimited_executor.simulation.jobs import NOT_RECORDED, RECORDED, JobFailedError, failures_of
from ratelimited_executor.simulation.limits import (
    JOBS_MAX,
    KEYS_MAX,
    SECONDS_MAX,
    TOML_BYTES_MAX,
    check_most,
)
from ratelimited_executor.simulation.outages import JobOutage, OutageFailures
from ratelimited_executor.simulation.parameters import with_parameters
from ratelimited_executor.simulation.progress import InstantProgress
from ratelimited_executor.simulation.recordings import read_recording
from ratelimited_executor.simulation.simulation import Nodes, Scenario
from ratelimited_executor.simulation.toml_shape import KINDS, check_shape
from ratelimited_executor.simulation.waits import Objective
from ratelimited_executor.spread.keys import key_hash
from ratelimited_executor.spread.slots import CycleSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from ratelimited_executor.simulation.arrivals import Arrivals
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.jobs import Job
    from ratelimited_executor.simulation.population import Population
    from ratelimited_executor.simulation.recordings import Recording
    from ratelimited_executor.simulation.simulation import Simulation

__all__ = ["TomlScenario", "load_toml"]

_ATTEMPTS: Final = 5  # those of Retry
_ALMOST_ONE: Final = math.nextafter(1.0, 0.0)


def load_toml(
    path: str | PathLike[str], parameters: Mapping[str, Any] | None = None, *, name: str | None = None
) -> TomlScenario:
    """Read a scenario from a file.

    Args:
        path: the file.
        parameters: values of its parameters, by name; the others have their usual values.
        name: the name of the scenario, in place of the one in the file.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not valid TOML, or not a valid scenario; the message names file and place.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            text = stream.read(TOML_BYTES_MAX + 1)
        check_most("a scenario", len(text), TOML_BYTES_MAX, "bytes")
        table = with_parameters(_table_of(text.decode()), parameters or {})
        if name is not None:
            table.pop("name", None)
        return TomlScenario(table, directory=file.parent, name=name or file.stem)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{file} cannot be read as TOML: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def _table_of(text: str) -> dict[str, Any]:
    """Parse TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # of int()
        raise ValueError("an integer has too many digits") from None


@dataclass(slots=True)
class _Made:
    """The objects that a file has created so far, by name."""

    sim: Simulation
    executors: dict[str, Any] = field(default_factory=dict)
    populations: dict[str, Population] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)


class TomlScenario(Scenario):
    """A scenario read from a file.

    Args:
        table: the content of the file.
        directory: the directory of files that it names.
        name: the name of the scenario, unless the file has one.

    Raises:
        ValueError: if the table is not a valid scenario.
    """

    def __init__(self, table: dict[str, Any], *, directory: Path, name: str) -> None:
        check_shape(table)
        self._place = f"{directory / name}.toml"
        self._table = table
        self._directory = directory
        self._name = str(table.get("name", name))
        if "name" in table and not re.fullmatch(r"[\w][\w .-]*", self._name):
            raise ValueError(f"name must be letters, digits, spaces, dots and dashes, got {self._name!r}")
        self.days = number_of("days", table.get("days", type(self).days))  # type: ignore[misc]  # for this instance
        self.interval = seconds_of("interval", table.get("interval", type(self).interval))  # type: ignore[misc]  # for this instance
        if self.days <= 0:
            raise ValueError(f"days must be > 0 and finite, got {self.days:g}")

    @property
    def name(self) -> str:
        """The name of the scenario."""
        return self._name

    def parameters(self) -> dict[str, Any]:
        """Return the content of the file."""
        return self._table

    def setup(self, sim: Simulation) -> None:
        """Set up the world that the file describes."""
        table = self._table
        made = _Made(sim)
        for key, options in table["executors"].items():
            with self._placed(f"[executors.{key}]"):
                made.executors[key] = _make_executor(sim, key, options)
        for key, options in table.get("populations", {}).items():
            with self._placed(f"[populations.{key}]"):
                made.populations[key] = self._make_population(sim, key, options)
        for number, options in enumerate(table.get("outages", ()), start=1):
            with self._placed(f"[[outages]] number {number}"):
                _outage(options)  # a check: jobs are made with their outages
        for key, options in table.get("jobs", {}).items():
            with self._placed(f"[jobs.{key}]"):
                made.jobs[key] = self._make_job(made, key, options)
        for key in made.jobs:
            with self._placed(f"[jobs.{key}]"):
                _check_time_passes(key, table["jobs"], made.jobs)
                if then := table["jobs"][key].get("then"):
                    _check_cost(made.jobs[then["job"]], then["executor"], table["executors"][then["executor"]])
        for number, options in enumerate(table["arrivals"], start=1):
            with self._placed(f"[[arrivals]] number {number}"):
                self._begin(made, number, options)
        for number, options in enumerate(table.get("outages", ()), start=1):
            with self._placed(f"[[outages]] number {number}"):
                _begin_outage(made, options)

    @contextmanager
    def _placed(self, place: str) -> Iterator[None]:
        """Name file and place in every error about the content."""
        try:
            yield
        except (
            ArithmeticError, AttributeError, BacklogFullError, LookupError, OSError, TypeError, ValueError
        ) as error:  # fmt: skip
            raise ValueError(f"{self._place}: {place}: {error}") from error

    def _make_job(self, made: _Made, name: str, options: dict[str, Any]) -> Job:
        population = None
        if "population" in options:
            population = _find("population", options["population"], made.populations)
        is_sync = options.get("is_sync", True)
        if not isinstance(is_sync, bool):
            raise TypeError(f"is_sync must be true or false, got {is_sync!r}")
        duration = options.get("duration")
        if duration != RECORDED:
            duration = self._duration(duration)
        failures = options.get("failures", 0.0)
        outages = [_outage(each) for each in self._table.get("outages", ()) if each.get("job") == name]
        if outages:
            failures = OutageFailures(failures, outages, made.sim.loop.clock)
        then, follow = options.get("then"), None
        if then is not None:
            follow = _follower(made, name, options, self._table)
        return made.sim.job(
            name,
            duration,
            failures=failures,
            population=population,
            is_sync=is_sync,
            then=follow,
            objectives=[_objective(each) for each in options.get("objectives", ())],
            price=options.get("price", 0.0),
            cost=self._cost(options.get("cost")),
        )

    def _cost(self, found: Any) -> Any:
        """Return the cost of a job, with the distributions that a file describes."""
        if not isinstance(found, dict):
            return found
        return {
            name: self._distribution(f"cost of {name!r}", each, "a whole number") if isinstance(each, dict) else each
            for name, each in found.items()
        }

    def _duration(self, found: Any) -> Distribution:
        """Return the distribution that a file describes."""
        if isinstance(found, (int, float, str)):
            return Constant(_seconds("duration", found))
        made = self._distribution("duration", found, f'seconds, "{RECORDED}"')
        check_most("duration", made.quantile(_ALMOST_ONE), SECONDS_MAX, "s")
        return made

    def _distribution(self, name: str, found: Any, others: str) -> Distribution:
        shapes: dict[frozenset[str], Callable[[dict[str, Any]], Distribution]] = {
            frozenset({"mean"}): lambda of: Exponential(of["mean"]),
            frozenset({"mean", "p90"}): lambda of: LogNormal(mean=of["mean"], p90=of["p90"]),
            frozenset({"percentiles"}): lambda of: Percentiles(
                {float(part): value for part, value in of["percentiles"].items()}
            ),
            frozenset({"sample"}): self._sample,
            frozenset({"sample", "time", "duration"}): self._sample,
        }
        make = shapes.get(frozenset(found)) if isinstance(found, dict) else None
        if make is None:
            raise ValueError(
                f"{name} must be {others}, {{mean = 4, p90 = 8}}, {{mean = 4}}, {{percentiles = {{0 = ..., 100 = ...}}}}, "
                f'{{sample = [...]}}, {{sample = "access.log"}} or {{sample = "calls.csv", time = "...", duration = "..."}}, '
                f"got {found!r}"
            )
        with _named(f"{name} {', '.join(found)}"):
            return make(found)

    def _sample(self, found: dict[str, Any]) -> Sample:
        """Return a sample of durations: those that the file lists, or those in a log."""
        if not isinstance(found["sample"], str):
            return Sample(found["sample"])
        columns = {key: found[key] for key in ("time", "duration") if key in found}
        durations = self._read(found["sample"], columns).durations
        if durations is None:
            raise ValueError(f"{found['sample']} does not contain the duration of each call")
        return Sample(durations)

    def _begin(self, made: _Made, number: int, options: dict[str, Any]) -> None:
        """Let jobs arrive."""
        sim = made.sim
        executor = _find("executor", options.get("executor"), made.executors)
        job = _find("job", options.get("job"), made.jobs)
        population = job.population
        if "population" in options:
            population = _find("population", options["population"], made.populations)
            if job.population not in (None, population):
                raise ValueError(f"population must be that of the job, {job.population.name}, got {population.name}")
        terms: dict[str, Any] = {key: options[key] for key in ("priority",) if key in options}
        if not isinstance(terms.get("priority", 0), int):
            raise TypeError(f"priority must be an integer, got {options['priority']!r}")
        if _has_keys(self._table["executors"][options["executor"]]):
            terms["key"] = _itself
        if "expires" in options:
            terms["expires"] = _seconds("expires", options["expires"])
        _check_cost(job, options["executor"], self._table["executors"][options["executor"]])
        kind = next(kind for kind in KINDS if kind in options)
        if job.is_recorded and kind != "log":
            raise ValueError(NOT_RECORDED)
        if kind == "cycle":
            _begin_cycle(sim, executor, job, population, options, f"{job.name} {number}", terms)
            return
        if kind == "count":
            count = max(1, round(count_of("count", options["count"], least=1) * _scale(options)))
            check_most("count", count, JOBS_MAX, "jobs")
            keys = range(count) if population is None else list(population)
            if population is not None and not keys:
                raise ValueError(f"count needs keys, and the population {population.name} has none at the start")
            at = _seconds("at", options.get("at", 0))
            over = _seconds("over", options.get("over", 0))
            items = [keys[number % len(keys)] for number in range(count)]
            delays = [at + over * number / count for number in range(count)]
            sim.schedule_many(executor, job, items, delays=delays, **terms)
            return
        arrivals = self._arrivals(kind, options, job)
        sim.arrive(arrivals, executor, job, keys=population, **terms)

    def _arrivals(self, kind: str, options: dict[str, Any], job: Job) -> Arrivals:
        """Return arrivals by a rate, by the time of day, or as recorded."""
        if kind == "rate":
            rate = float(Rate.of(options["rate"])) * _scale(options)
            pattern = options.get("pattern", "poisson")
            if pattern not in {"poisson", "regular"}:
                raise ValueError(f'pattern must be "poisson" or "regular", got {pattern!r}')
            return Regular(rate) if pattern == "regular" else Poisson(rate)
        if kind == "daily":
            with _named("daily"):
                scale = _scale(options)
                return Daily({_hour(text): float(Rate.of(rate)) * scale for text, rate in options["daily"].items()})
        recording = self._recording(options)
        arrivals = _replayed(recording, options)
        if job.is_recorded and recording.durations is not None and arrivals.is_ended:  # else, the feed refuses it
            check_most("duration", max(recording.durations), SECONDS_MAX, "s")
        return arrivals

    def _recording(self, options: dict[str, Any]) -> Recording:
        """Read the file that arrivals, or keys that join, are recorded in."""
        columns = {key: options[key] for key in ("time", "key", "duration", "end") if key in options}
        with _named("log"):
            return self._read(options["log"], columns)

    def _read(self, name: Any, columns: Mapping[Any, Any]) -> Recording:
        """Read a recording beside the scenario."""
        if not isinstance(name, str):
            raise TypeError(f"must be the path of a recording, got {name!r}")
        path = self._directory / name
        try:
            return read_recording(path, **columns)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error

    def _make_population(self, sim: Simulation, name: str, options: dict[str, Any]) -> Population:
        joins, lifetime = options.get("joins"), options.get("lifetime")
        for key in ("count", "period"):
            if key not in options:
                raise ValueError(f"needs a {key}")
        if isinstance(options["count"], bool) or not isinstance(options["count"], int):
            raise TypeError(f"count must be an integer, got {options['count']!r}")
        check_most("count", options["count"], KEYS_MAX, "keys")
        terms: dict[str, Any] = {}
        if "groups" in options:
            count = count_of("groups", options["groups"], least=1)
            terms["group"] = lambda key: f"{name} {key_hash(key) % count if isinstance(key, str) else key % count}"
        if joins is not None:
            with _named("joins"):
                terms["joins"] = self._joins(joins)
        if lifetime is not None:
            if not isinstance(lifetime, dict) and not _seconds("lifetime", lifetime):
                raise ValueError(f"lifetime must be > 0, got {lifetime!r}")
            terms["lifetime"] = (
                self._distribution("lifetime", lifetime, "seconds") if isinstance(lifetime, dict) else lifetime
            )
        return sim.population(name, options["count"], period=options["period"], **terms)

    def _joins(self, found: Any) -> Arrivals:
        """Return when keys join: by a rate, by a rate for each hour of the day, or as recorded."""
        if not isinstance(found, dict):
            return Poisson(found)
        if "log" in found:
            return _replayed(self._recording(found), found)
        return Daily({_hour(text): rate for text, rate in found.items()})


def _check_cost(job: Job, executor: str, options: dict[str, Any]) -> None:
    """Refuse a cost in a resource that the executor does not limit, before the first job arrives."""
    there = {PERMITS, *options.get("resources", ())}
    for name in job.cost.resources if job.cost is not None else ():
        if name not in there:
            raise ValueError(
                f"cost of {job.name} names {name!r}, which the executor {executor} does not limit: "
                f'give [executors.{executor}] resources = {{{name} = "1_000/min"}}, or leave it out'
            )


def _replayed(recording: Recording, options: dict[str, Any]) -> Recorded:
    """Return recorded arrivals."""
    return Recorded(recording, **{key: options[key] for key in ("speed", "every", "scale") if key in options})


def _scale(options: dict[str, Any]) -> float:
    """Return how much of the traffic arrives."""
    scale = number_of("scale", options.get("scale", 1.0))
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be > 0 and finite, got {options['scale']!r}")
    return scale


def _begin_cycle(
    sim: Simulation,
    executor: Any,
    job: Job,
    population: Population | None,
    options: dict[str, Any],
    name: str,
    terms: dict[str, Any],
) -> None:
    """Work through a population by slots."""
    if population is None:
        raise ValueError("cycle needs a population, of the job or of its own")
    if not hasattr(executor, "every"):
        raise ValueError("cycle needs an executor of one node")
    with _named("phase must be a part of the cycle such as 1/2"):
        phase = Fraction(str(options.get("phase", 0)))
    buckets = options.get("buckets", 65_536)
    if job.cost is not None:
        terms["cost"] = job.cost.fixed or job.cost_of_next
    dealt = sim.note_slots(population, name, CycleSlots(options["cycle"], buckets, phase))
    executor.every(
        cycle=options["cycle"],
        keys=dealt.__getitem__,
        fn=job,
        phase=phase,
        buckets=buckets,
        progress=InstantProgress(),
        name=name,
        **terms,
    )


def _make_executor(sim: Simulation, name: str, options: dict[str, Any]) -> Any:
    rest = dict(options)
    nodes = rest.pop("nodes", None)
    if "pacing" in rest:
        known = {pacing.value: pacing for pacing in Pacing}
        if not isinstance(rest["pacing"], str) or rest["pacing"] not in known:
            raise ValueError(f"pacing must be {' or '.join(map(repr, known))}, got {rest['pacing']!r}")
        rest["pacing"] = known[rest["pacing"]]
    shifts = {key: _by_hour(key, rest[key]) for key in ("rate", "max_concurrency") if isinstance(rest.get(key), dict)}
    rest.update((key, in_force(hours, sim.loop.clock.wall())) for key, hours in shifts.items())
    if "attempts" in rest and "retry" in rest:
        raise ValueError("give retry, with attempts in it, or attempts alone, and not both")
    retry = rest.pop("retry", {"attempts": rest.pop("attempts", 1)})
    if count_of("attempts", retry.get("attempts", _ATTEMPTS), least=1) > 1:
        rest["retry"] = Retry(**{"attempts": _ATTEMPTS, **retry}, on=(JobFailedError,))
    made = sim.executor(name, **rest) if nodes is None else sim.fleet(name, nodes, **rest)
    executors = made.executors if isinstance(made, Nodes) else (made,)
    for key, hours in shifts.items():
        first = -sim.loop.clock.wall() % HOUR_SECONDS
        sim.every(HOUR_SECONDS, Shift(executors, key, hours, sim.loop.clock), first=first or HOUR_SECONDS)
    return made


def _by_hour(name: str, table: dict[str, Any]) -> dict[int, Any]:
    """Return what is in force from each hour of the day on."""
    with _named(name):
        hours = {_hour(text): value for text, value in table.items()}
        if not hours or max(hours) > 23:
            raise ValueError(f"must have hours of the day, 0 to 23, and at least one, got {', '.join(table) or 'none'}")
        for value in hours.values():
            if name == "rate":
                Rate.of(value)
            else:
                count_of(name, value)
        return hours


def _follower(made: _Made, first: str, options: dict[str, Any], table: dict[str, Any]) -> Callable[[Any], object]:
    """Return a function that enqueues the job that follows another, which may be created later."""
    then = options["then"]
    executor = _find("executor", then.get("executor"), made.executors)
    name = str(then.get("job"))
    next_one = _find("job", name, table["jobs"])
    if next_one.get("duration") == RECORDED:
        raise ValueError(f"then: {NOT_RECORDED}")
    needed = next_one.get("population")
    if needed is not None and options.get("population", needed) != needed:
        raise ValueError(f"then must be a job of the same population, {name} is of {needed}")
    delay = _seconds("delay", then.get("delay", 0))
    has_keys = _has_keys(table["executors"][then["executor"]])

    def follow(key: Any) -> None:
        next_job = made.jobs[name]
        if next_job.population is not None and not next_job.population.knows(key):
            raise ValueError(
                f"[jobs.{first}] then: {name} is of the population {needed}, which has no key {key!r}: "
                f'give the job population = "{needed}"'
            )
        terms = {"key": key} if has_keys else {}
        made.sim.offer(executor, next_job, key, delay=delay, **terms)

    return follow


def _check_time_passes(first: str, tables: dict[str, Any], jobs: dict[str, Job]) -> None:
    """Refuse jobs that enqueue one another in a circle without any time passing."""
    name, seen = first, set()
    while name not in seen and not jobs[name].duration.quantile(0.5):
        seen.add(name)
        then = tables[name].get("then")
        if then is None or _seconds("delay", then.get("delay", 0)):
            return
        name = then["job"]
        if name == first:
            raise ValueError(
                f"then enqueues {'the same job' if len(seen) == 1 else 'jobs in a circle'} without any time passing: "
                "give a duration or a delay"
            )


def _objective(options: dict[str, Any]) -> Objective:
    with _named("objectives"):
        if "within" not in options:
            raise ValueError("each must have within, the longest wait")
        return Objective(**options)


def _outage(options: dict[str, Any]) -> JobOutage:
    begin, end = (_seconds(each, options.get(each)) for each in ("begin", "end"))
    if begin >= end:
        raise ValueError(f"an outage must begin, and end later, got {options['begin']!r} to {options['end']!r}")
    found = options.get("failures", 1.0)
    if not isinstance(found, dict):
        return JobOutage(begin, end, parts=(failures_of(found),))
    points = {begin + _seconds("failures", time): failures_of(part) for time, part in found.items()}
    times = list(points)
    if not times or times != sorted(times) or len(times) < len(found) or times[-1] > end:
        raise ValueError(
            "failures must give fractions at rising times from the beginning of the outage to its end, such as "
            f'{{0 = 1.0, "20m" = 0.3, "1h" = 0}}, got {found!r}'
        )
    return JobOutage(begin, end, times, list(points.values()))


def _begin_outage(made: _Made, options: dict[str, Any]) -> None:
    """Begin an outage of a group of a population, or mark that of a job, whose failures the job itself has."""
    outage = _outage(options)
    begin, end = outage.begin, outage.end
    if "job" not in options:
        if "failures" in options:
            raise ValueError("failures must be given with job: in the outage of a group all jobs fail")
        population = _find("population", options.get("population"), made.populations)
        made.sim.outage(population, str(options.get("group")), begin, end)
        return
    if {"population", "group"} & set(options):
        raise ValueError("job must not be given with population and group: an outage affects one or the other")
    job = _find("job", options["job"], made.jobs)
    made.sim.events += [(begin, f"{job.name} is out"), (end, f"{job.name} is back")]


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Prefix errors with the part of the file that they concern."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from error


def _hour(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"must have hours of the day such as 8 and 20, got {text!r}")
    return int(text)


def _has_keys(executor: dict[str, Any]) -> bool:
    """True if an executor has limits of keys."""
    return bool({"key_rate", "key_concurrency"} & set(executor))


def _itself(key: Any) -> Any:
    return key


def _find(kind: str, name: Any, known: dict[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        there = ", ".join(known) or "none"
        raise ValueError(f"{kind} must be one that the file defines, {there}, got {name!r}")
    return known[name]


def _seconds(name: str, value: Any) -> float:
    """Return seconds >= 0."""
    number = delay_of(name, value)
    check_most(name, number, SECONDS_MAX, "s")
    return number
