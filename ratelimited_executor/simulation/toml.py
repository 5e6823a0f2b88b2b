"""Simple scenarios as TOML files: executors, populations, jobs, arrivals and outages, without a line of Python.

What a file says that is not known is an error that names what is: a misspelt ``max_concurency`` must not be silence.
"""

from __future__ import annotations

import tomllib
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.queue import Pacing
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._runtime.arguments import count_of, number_of
from ratelimited_executor.simulation.arrivals import Daily, Poisson, Recorded, Regular
from ratelimited_executor.simulation.distributions import Constant, Exponential, LogNormal, Percentiles, Sample
from ratelimited_executor.simulation.progress import InstantProgress
from ratelimited_executor.simulation.recordings import read_recording
from ratelimited_executor.simulation.scenario import Scenario
from ratelimited_executor.spread.keys import seconds_of_period
from ratelimited_executor.spread.slots import CycleSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from ratelimited_executor.simulation.arrivals import Arrivals
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.jobs import Job
    from ratelimited_executor.simulation.population import Population
    from ratelimited_executor.simulation.simulation import Simulation

__all__ = ["TomlScenario", "load_toml"]

_TOP: Final = frozenset({"name", "days", "interval", "executors", "populations", "jobs", "arrivals", "outages"})
_EXECUTOR: Final = frozenset(
    {"rate", "max_concurrency", "pacing", "nodes", "max_pending", "key_rate", "key_concurrency"}
)
_POPULATION: Final = frozenset({"count", "period", "groups"})
_JOB: Final = frozenset({"duration", "failures", "population", "is_sync", "then"})
_THEN: Final = frozenset({"job", "executor", "delay"})
_ARRIVALS: Final = frozenset({"executor", "job", "population", "expires", "priority"})
_KINDS: Final = {  # of arrivals, and what else each can have
    "count": {"at", "over"},
    "rate": {"pattern"},
    "daily": set(),
    "log": {"speed", "every", "time", "key", "duration"},
    "cycle": {"phase", "buckets"},
}
_OUTAGE: Final = frozenset({"population", "group", "begin", "end"})
_DAY_SECONDS: Final = 86_400.0


def load_toml(path: str | PathLike[str]) -> TomlScenario:
    """Read a scenario from a file.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is no TOML, or says what no scenario can have; the message names file and place.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            return TomlScenario(tomllib.load(stream), directory=file.parent, name=file.stem)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is no TOML: {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


class TomlScenario(Scenario):
    """A scenario that was read.

    Args:
        table: what the file says.
        directory: where the files lie that it names.
        name: what it is called, unless it says so itself.

    Raises:
        ValueError: if it says what no scenario can have.
    """

    def __init__(self, table: dict[str, Any], *, directory: Path, name: str) -> None:
        _check_keys("the file", table, _TOP)
        self._table = table
        self._directory = directory
        self._name = str(table.get("name", name))
        self.days = number_of("days", table.get("days", type(self).days))  # type: ignore[misc]  # of this one alone
        self.interval = number_of("interval", table.get("interval", type(self).interval))  # type: ignore[misc]  # as above
        if not table.get("executors"):
            raise ValueError("[executors] must have one executor at least, such as [executors.api]")
        if not table.get("arrivals"):
            raise ValueError("[[arrivals]] must say once at least what is to be done")
        for kind, known in (("executors", _EXECUTOR), ("populations", _POPULATION), ("jobs", _JOB)):
            for key, options in table.get(kind, {}).items():
                _check_keys(f"[{kind}.{key}]", options, known)
        for number, options in enumerate(table["arrivals"], start=1):
            _check_arrivals(f"[[arrivals]] number {number}", options)
        for options in table.get("outages", ()):
            _check_keys("[[outages]]", options, _OUTAGE)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    def parameters(self) -> dict[str, Any]:
        """Return all that the file says."""
        return self._table

    def setup(self, sim: Simulation) -> None:
        """Set up what the file says."""
        table = self._table
        executors = {key: _make_executor(sim, key, options) for key, options in table["executors"].items()}
        populations = {
            key: _make_population(sim, key, options) for key, options in table.get("populations", {}).items()
        }
        jobs: dict[str, Job] = {}
        for key, options in table.get("jobs", {}).items():
            jobs[key] = self._make_job(sim, key, options, executors, populations, jobs)
        for number, options in enumerate(table["arrivals"], start=1):
            place = f"[[arrivals]] number {number}"
            try:
                self._begin(sim, place, options, executors, populations, jobs)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place}: {error}") from error
        for options in table.get("outages", ()):
            population = _find("[[outages]]", "population", options.get("population"), populations)
            begin, end = (_seconds(f"[[outages]] {each}", options.get(each)) for each in ("begin", "end"))
            sim.outage(population, str(options.get("group")), begin, end)

    def _make_job(
        self,
        sim: Simulation,
        name: str,
        options: dict[str, Any],
        executors: dict[str, Any],
        populations: dict[str, Population],
        jobs: dict[str, Job],
    ) -> Job:
        place = f"[jobs.{name}]"
        population = None
        if "population" in options:
            population = _find(place, "population", options["population"], populations)
        then = options.get("then")
        follow = None if then is None else _follower(f"{place} then", then, executors, jobs, self._table["jobs"])
        return sim.job(
            name,
            self._duration(place, options.get("duration")),
            failures=options.get("failures", 0.0),
            population=population,
            is_sync=bool(options.get("is_sync", True)),
            then=follow,
        )

    def _duration(self, place: str, found: Any) -> Distribution:
        """Return the distribution that a file describes."""
        if isinstance(found, (int, float, str)):
            return Constant(_seconds(f"{place} duration", found))
        shapes: dict[frozenset[str], Callable[[dict[str, Any]], Distribution]] = {
            frozenset({"mean"}): lambda of: Exponential(of["mean"]),
            frozenset({"mean", "p90"}): lambda of: LogNormal(mean=of["mean"], p90=of["p90"]),
            frozenset({"percentiles"}): lambda of: Percentiles(
                {float(part): value for part, value in of["percentiles"].items()}
            ),
            frozenset({"sample"}): lambda of: Sample(of["sample"]),
            frozenset({"log"}): lambda of: Sample(self._durations(of["log"])),
        }
        make = shapes.get(frozenset(found)) if isinstance(found, dict) else None
        if make is None:
            raise ValueError(
                f"{place} duration must be seconds, {{mean = 4, p90 = 8}}, {{mean = 4}}, {{percentiles = {{0 = ..., 100 = ...}}}}, "
                f'{{sample = [...]}} or {{log = "access.log"}}, got {found!r}'
            )
        return make(found)

    def _durations(self, path: str) -> Iterable[float]:
        durations = read_recording(self._directory / path).durations
        if durations is None:
            raise ValueError(f"{path} does not tell how long each took")
        return durations

    def _begin(
        self,
        sim: Simulation,
        place: str,
        options: dict[str, Any],
        executors: dict[str, Any],
        populations: dict[str, Population],
        jobs: dict[str, Job],
    ) -> None:
        """Let jobs arrive."""
        executor = _find(place, "executor", options.get("executor"), executors)
        job = _find(place, "job", options.get("job"), jobs)
        population = job.population
        if "population" in options:
            population = _find(place, "population", options["population"], populations)
        terms = {key: options[key] for key in ("priority",) if key in options}
        if "expires" in options:
            terms["expires"] = _seconds("expires", options["expires"])
        kind = next(kind for kind in _KINDS if kind in options)
        if kind == "cycle":
            _begin_cycle(sim, executor, job, population, options)
            return
        if kind == "count":
            count = count_of("count", options["count"], least=1)
            keys = range(count) if population is None else list(population)
            at = _seconds("at", options.get("at", 0))
            over = _seconds("over", options.get("over", 0))
            items = [keys[number % len(keys)] for number in range(count)]
            delays = [at + over * number / count for number in range(count)]
            executor.schedule_many(job, items, delays=delays, **terms)
            return
        arrivals: Arrivals
        if kind == "rate":
            rate = float(Rate.of(options["rate"]))
            pattern = options.get("pattern", "poisson")
            if pattern not in {"poisson", "regular"}:
                raise ValueError(f'pattern must be "poisson" or "regular", got {pattern!r}')
            arrivals = Regular(rate) if pattern == "regular" else Poisson(rate)
        elif kind == "daily":
            arrivals = Daily({int(hour): float(Rate.of(rate)) for hour, rate in options["daily"].items()})
        else:
            columns = {key: options[key] for key in ("time", "key", "duration") if key in options}
            recording = read_recording(self._directory / options["log"], **columns)
            arrivals = Recorded(recording, speed=options.get("speed", 1.0), every=options.get("every"))
        sim.arrive(arrivals, executor, job, keys=None if population is None else list(population), **terms)


def _begin_cycle(
    sim: Simulation, executor: Any, job: Job, population: Population | None, options: dict[str, Any]
) -> None:
    """Work through a population by slots."""
    if population is None:
        raise ValueError("cycle needs a population, of the job or of its own")
    if not hasattr(executor, "every"):
        raise ValueError("cycle needs an executor of one node")
    phase = Fraction(str(options.get("phase", 0)))
    buckets = options.get("buckets", 65_536)
    dealt = sim.note_slots(population, job.name, CycleSlots(options["cycle"], buckets, phase))
    executor.every(
        cycle=options["cycle"], keys=dealt.__getitem__, fn=job, phase=phase, buckets=buckets, progress=InstantProgress()
    )


def _make_executor(sim: Simulation, name: str, options: dict[str, Any]) -> Any:
    rest = dict(options)
    nodes = rest.pop("nodes", None)
    if "pacing" in rest:
        known = {pacing.value: pacing for pacing in Pacing}
        if rest["pacing"] not in known:
            raise ValueError(
                f"[executors.{name}] pacing must be {' or '.join(map(repr, known))}, got {rest['pacing']!r}"
            )
        rest["pacing"] = known[rest["pacing"]]
    return sim.executor(name, **rest) if nodes is None else sim.fleet(name, nodes, **rest)


def _make_population(sim: Simulation, name: str, options: dict[str, Any]) -> Population:
    for key in ("count", "period"):
        if key not in options:
            raise ValueError(f"[populations.{name}] must say its {key}")
    groups = options.get("groups")
    if groups is None:
        return sim.population(name, options["count"], period=options["period"])
    count = count_of("groups", groups, least=1)
    return sim.population(name, options["count"], period=options["period"], group=lambda key: f"{name} {key % count}")


def _follower(
    place: str, then: Any, executors: dict[str, Any], jobs: dict[str, Job], known: dict[str, Any]
) -> Callable[[Any], object]:
    """Return what enqueues the job that follows another; it may be named before it is made."""
    _check_keys(place, then, _THEN)
    executor = _find(place, "executor", then.get("executor"), executors)
    name = str(then.get("job"))
    _find(place, "job", name, known)
    delay = _seconds(f"{place} delay", then.get("delay", 0))
    return lambda key: executor.schedule(jobs[name], key, delay=delay)


def _check_arrivals(place: str, options: dict[str, Any]) -> None:
    kinds = [kind for kind in _KINDS if kind in options]
    if len(kinds) != 1:
        raise ValueError(f"{place} must have one of {', '.join(_KINDS)}, got {', '.join(kinds) or 'none'}")
    _check_keys(place, options, _ARRIVALS | {kinds[0]} | _KINDS[kinds[0]])


def _check_keys(place: str, table: Any, known: Iterable[str]) -> None:
    if not isinstance(table, dict):
        raise TypeError(f"{place} must be a table of {', '.join(sorted(known))}, got {table!r}")
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ValueError(
            f"{place} has {', '.join(unknown)}, which is not known: it can have {', '.join(sorted(known))}"
        )


def _find(place: str, kind: str, name: Any, known: dict[str, Any]) -> Any:
    if name not in known:
        there = ", ".join(known) or "none"
        raise ValueError(f"{place} must have a {kind} of the file, of which there are {there}, got {name!r}")
    return known[name]


def _seconds(name: str, value: Any) -> float:
    """Return seconds >= 0."""
    if isinstance(value, str):
        return seconds_of_period(name, value)
    number = number_of(name, value)
    if number < 0:
        raise ValueError(f"{name} must be >= 0 seconds, got {value!r}")
    return number
