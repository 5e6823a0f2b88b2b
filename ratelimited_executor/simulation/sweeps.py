"""Sweeps: a scenario with many settings, each with the same seeds, and which of them to choose.

A seed is the same traffic whatever the settings (``chances.py``). So two settings are compared by the differences of their
runs seed by seed, which vary far less than the runs themselves do. All intervals are Student's, at 95 %.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._runtime.arguments import callable_of, count_of, flag_of, number_of
from ratelimited_executor.simulation.database import as_json
from ratelimited_executor.simulation.limits import SEEDS_MAX, check_most
from ratelimited_executor.simulation.processes import Workers
from ratelimited_executor.simulation.runs import simulate
from ratelimited_executor.simulation.shortcut.check import checked_run
from ratelimited_executor.simulation.shortcut.erlang import expected_wait
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError
from ratelimited_executor.simulation.shortcut.run import share_columns
from ratelimited_executor.simulation.summary import gathered_notes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.simulation.simulation import Scenario
    from ratelimited_executor.simulation.summary import ObjectiveSummary, Summary

__all__ = ["Configuration", "Estimate", "Sweep", "SweepRun", "sweep"]

_FORMAT: Final = 1
_FIRST_SEEDS: Final = 5  # before it is known how precise a figure is
_PART: Final = 0.975
_Z: Final = NormalDist().inv_cdf(_PART)
RUNS_MAX: Final = 100_000
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)(\D.*)?")  # and its unit
_WORST: Final = "worst wait of "  # what the figures of objectives begin with
_LOSSES: Final = ("jobs failed", "jobs refused, cancelled or expired")
_ASK_SECONDS: Final = 0.2  # between two questions whether to stop
_SAME: Final = 1e-9  # costs that differ by a smaller part are the same

_Task: TypeAlias = "tuple[dict[str, Any], int]"
"""The settings of a run, and its seed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over runs.

    Attributes:
        mean: the mean.
        half: half the width of its interval at 95 %; infinite with a single run.
        count: the number of runs.
    """

    mean: float
    half: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the mean of independent values, with Student's interval."""
        count = len(values)
        if count < 2:
            return cls(values[0] if values else math.nan, math.inf, count)
        return cls(fmean(values), _student(count - 1) * stdev(values) / math.sqrt(count), count)

    @property
    def relative(self) -> float:
        """Half the width of the interval as a part of the mean."""
        return self.half / abs(self.mean) if self.mean else (0.0 if not self.half else math.inf)


def _student(degrees: int) -> float:
    """Return the 97.5th percentile of Student's distribution: exact for 1 and 2 degrees, else to 0.2 %.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if degrees == 1:
        return math.tan(math.pi * (_PART - 0.5))
    if degrees == 2:
        return (2 * _PART - 1) * math.sqrt(2 / (4 * _PART * (1 - _PART)))
    z, n = _Z, degrees
    return z + math.fsum(
        (
            (z**3 + z) / (4 * n),
            (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A run of a sweep.

    Attributes:
        settings: the values of the parameters.
        seed: the seed.
        figures: what was measured, by name; durations in seconds.
        is_kept: True if every objective was kept.
        digest: identifies the scenario with these settings.
        checked_count: how many of its starts were computed by the shortcut and held against those of the executor; 0 if the
            executor ran it all.
        obstacle: why the shortcut was not used; empty if it was, or was not wanted.
        missed: the figures of the objectives that were missed.
        undecided: those of the objectives that the run was too short to judge.
        promised: the longest wait of each objective, in seconds, by its figure.
        worst_at: when the worst period of each objective began, in seconds since the start, by its figure.
        notes: as of :class:`Summary`.
    """

    settings: dict[str, Any]
    seed: int
    figures: dict[str, float]
    is_kept: bool
    digest: str
    checked_count: int = 0
    obstacle: str = ""
    missed: Sequence[str] = ()
    undecided: Sequence[str] = ()
    promised: dict[str, float] = field(default_factory=dict)
    worst_at: dict[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def excess(self) -> float:
        """By how much the worst waits are longer than was promised, as parts of that, over all objectives."""
        return math.fsum(
            max(0.0, self.figures[name] / within - 1 if within else self.figures[name])
            for name, within in self.promised.items()
        )


@dataclass(slots=True)
class Configuration:
    """The runs with some settings.

    Attributes:
        settings: the values of the parameters, by name.
        runs: the runs, by seed; of a choice, by the values of what is given, and the seed.
    """

    settings: dict[str, Any]
    runs: dict[Any, SweepRun] = field(default_factory=dict)

    def values(self, figure: str) -> dict[Any, float]:
        """Return the values of a figure, by run."""
        return {seed: run.figures[figure] for seed, run in self.runs.items() if figure in run.figures}

    def estimate(self, figure: str) -> Estimate:
        """Return the mean of a figure."""
        return Estimate.of(list(self.values(figure).values()))

    @property
    def kept_count(self) -> int:
        """The number of runs in which every objective was kept."""
        return sum(run.is_kept for run in self.runs.values())

    @property
    def is_kept(self) -> bool:
        """True if every objective was kept in every run."""
        return self.kept_count == len(self.runs) > 0

    @property
    def missed(self) -> list[str]:
        """The figures of the objectives that some run missed."""
        return list(dict.fromkeys(name for run in self.runs.values() for name in run.missed))

    @property
    def undecided(self) -> list[str]:
        """The figures of the objectives that no run missed, and some run was too short to judge."""
        names = dict.fromkeys(name for run in self.runs.values() for name in run.undecided)
        return [name for name in names if name not in self.missed]

    @property
    def missed_kinds(self) -> list[str]:
        """The kinds of jobs with the objectives that were missed."""
        return _kinds_of(self.missed)

    @property
    def undecided_kinds(self) -> list[str]:
        """The kinds of jobs with the objectives that are not decided."""
        return _kinds_of(self.undecided)

    @property
    def distance(self) -> tuple[int, int, float]:
        """How far it is from keeping its objectives: runs that do not, objectives not kept in them, and the mean excess."""
        runs = self.runs.values()
        not_kept = sum(len(run.missed) + len(run.undecided) for run in runs)
        return len(runs) - self.kept_count, not_kept, sum(run.excess for run in runs) / max(1, len(runs))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "as it is"


def _kinds_of(figures: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.removeprefix(_WORST).rsplit(", ", 1)[0] for name in figures))


class Sweep:
    """The results of a sweep.

    Attributes:
        scenario: the name of the scenario.
        grid: the values of each parameter to choose.
        given: the values of each parameter that is not to be chosen, such as the traffic.
        configurations: all combinations of both, in the order of the grid.
        figure: the name of the figure by which they are compared.
        parameters: those of the scenario, with the configuration to choose, or the first.
        is_complete: False if it was stopped.
        expected_waits: the kind of job and its mean wait by Erlang's formula, by configuration, where a configuration is
            what the formula is about: random arrivals, exponential durations, and a number of workers.
    """

    def __init__(
        self,
        scenario: str,
        grid: Mapping[str, Sequence[Any]],
        figure: str | None,
        given: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.scenario = scenario
        self.grid = {name: list(values) for name, values in grid.items()}
        self.given = {name: list(values) for name, values in (given or {}).items()}
        self.configurations = [
            Configuration(dict(zip(self.axes, values, strict=True)))
            for values in itertools.product(*self.axes.values())
        ]
        self._by_text = {str(each): each for each in self.configurations}
        self.parameters: dict[str, Any] = {}
        self.is_complete = False
        self.expected_waits: dict[str, tuple[str, float]] = {}
        self._figure = figure

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The values of all parameters, chosen and given."""
        return {**self.grid, **self.given}

    @property
    def choices(self) -> list[Configuration]:
        """The combinations of the parameters to choose, each with its runs for all that is given."""
        if not self.given:
            return self.configurations
        found: dict[str, Configuration] = {}
        for each in self.configurations:
            choice = Configuration({name: each.settings[name] for name in self.grid})
            choice = found.setdefault(str(choice), choice)
            case = [each.settings[name] for name in self.given]
            choice.runs.update({(*case, seed): run for seed, run in each.runs.items()})
        return list(found.values())

    def counterpart(self, each: Configuration, choice: Configuration) -> Configuration:
        """Return the configuration with what is given in one, and what is chosen in another."""
        return self._by_text[str(Configuration({**each.settings, **choice.settings}))]

    @property
    def figure(self) -> str:
        """The name of the figure by which the configurations are compared: the one asked for, or the first objective."""
        return self._figure or next(self._names(), "")

    @property
    def figures(self) -> list[str]:
        """The names of all figures that were measured; that of the first objective, or the first wait, comes first."""
        return list(dict.fromkeys(self._names()))

    @property
    def shown_figures(self) -> list[str]:
        """The figures to show of each configuration: that by which they are compared, and those of all objectives."""
        return list(dict.fromkeys([self.figure, *self._objectives]))

    @property
    def has_cost(self) -> bool:
        """True if workers or calls have a price."""
        return any(run.figures.get("cost") for each in self.configurations for run in each.runs.values())

    @property
    def has_objectives(self) -> bool:
        """True if the scenario has objectives."""
        return bool(self._objectives)

    @property
    def notes(self) -> list[str]:
        """What to know before believing the figures of any configuration."""
        return gathered_notes((str(each), run.notes) for each in self.configurations for run in each.runs.values())

    @property
    def losses(self) -> list[str]:
        """The figures of the jobs that were lost, of those that any run has: failed for good; refused, cancelled or expired."""
        runs = [run for each in self.configurations for run in each.runs.values()]
        return [name for name in _LOSSES if any(run.figures.get(name) for run in runs)]

    @property
    def _objectives(self) -> list[str]:
        """The figures of all objectives."""
        return [name for name in self.figures if name.startswith(_WORST)]

    @property
    def keepers(self) -> dict[str, int]:
        """How many choices keep each objective in all of their runs, by its figure."""
        return {
            name: sum(bool(each.runs) and name not in (*each.missed, *each.undecided) for each in self.choices)
            for name in self._objectives
        }

    @property
    def edges(self) -> dict[str, str]:
        """The parameters whose value in the cheapest choice is the least or the largest number tried."""
        chosen, found = self.cheapest, dict[str, str]()
        if chosen is None:
            return found
        for name, values in self.grid.items():
            parts = [_NUMBER.fullmatch(str(value)) for value in values]
            numbers = {value: float(part[1]) for value, part in zip(values, parts, strict=True) if part is not None}
            units = {part[2] for part in parts if part is not None}
            if 1 < len(numbers) == len(values) and len(units) == 1:
                least, largest = min(numbers.values()), max(numbers.values())
                number = numbers[chosen.settings[name]]
                if number in (least, largest):
                    found[name] = "least" if number == least else "largest"
        return found

    @property
    def shortcut(self) -> str:
        """How the figures were made, in a sentence: by the shortcut, by the executor, and why."""
        runs = [run for each in self.configurations for run in each.runs.values()]
        checked = [run.checked_count for run in runs if run.checked_count]
        obstacles = sorted({run.obstacle for run in runs if run.obstacle})
        why = f", as {'; '.join(obstacles)}" if obstacles else ""
        if not checked:
            return f"All runs are those of the executor{why}."
        span = f"{min(checked):,}" if min(checked) == max(checked) else f"{min(checked):,} to {max(checked):,}"
        which = "All runs" if len(checked) == len(runs) else f"{len(checked):,} of {len(runs):,} runs"
        rest = "" if len(checked) == len(runs) else f" The others are those of the executor{why}."
        return (
            f"{which} are by the shortcut; the first {span} starts of each were equal to those of the executor. "
            f"That check covers the beginning of a run alone, and nothing that comes later, such as an outage.{rest}"
        )

    @property
    def cheapest(self) -> Configuration | None:
        """The choice to make: the cheapest that kept every objective in every run, whatever is given; None if none did.

        Of those that cost no more within the interval of the difference, it is the one with the least figure. Without
        prices, it is the first that kept them in the order of the grid.
        """
        kept = [each for each in self.choices if each.is_kept]
        if not kept or not self.has_cost:
            return kept[0] if kept else None
        least = min(kept, key=lambda each: (each.estimate("cost").mean, each.estimate(self.figure).mean))
        extra = {id(each): self.difference(each, least, "cost") for each in kept}
        equal = [
            each
            for each in kept
            if extra[id(each)].count > 1
            and extra[id(each)].mean <= extra[id(each)].half + _SAME * least.estimate("cost").mean
        ]
        return min(equal, key=lambda each: each.estimate(self.figure).mean, default=least)

    @property
    def best(self) -> Configuration | None:
        """The choice that the others are compared with; None if no run has ended.

        It is the cheapest that keeps its objectives; if none does, the nearest: the one of which fewest runs do not keep
        them, then with the fewest that they miss or cannot judge, then with the least excess. Without objectives it is the
        one with the least figure.
        """
        if not self.has_objectives:
            return next(reversed(self.frontier), None)
        there = (each for each in self.choices if each.runs)
        return self.cheapest or min(
            there, key=lambda each: (*each.distance, each.estimate(self.figure).mean), default=None
        )

    @property
    def frontier(self) -> list[Configuration]:
        """The choices that no other betters in cost and figure at once, the cheapest first."""
        return self.frontier_of(self.figure)

    def frontier_of(self, figure: str) -> list[Configuration]:
        """Return the choices that no other betters in cost and a figure at once, the cheapest first."""
        found: list[Configuration] = []
        least = math.inf
        there = [each for each in self.choices if each.runs]
        for each in sorted(there, key=lambda each: (each.estimate("cost").mean, each.estimate(figure).mean)):
            if (mean := each.estimate(figure).mean) < least:
                least = mean
                found.append(each)
        return found

    def _names(self) -> Iterator[str]:
        """Yield the names of the figures of all runs, many of them again and again."""
        return (name for each in self.configurations for run in each.runs.values() for name in run.figures)

    def difference(self, one: Configuration, other: Configuration, figure: str) -> Estimate:
        """Return by how much a figure of one configuration is larger than that of another, seed by seed."""
        theirs = other.values(figure)
        return Estimate.of([value - theirs[seed] for seed, value in one.values(figure).items() if seed in theirs])


def _figure_of(kind: str, objective: ObjectiveSummary) -> str:
    return f"{_WORST}{kind}, {objective.percent:g} % in each {format_duration(objective.each)}"


def figures_of(summary: Summary) -> dict[str, float]:
    """Return the figures of a run, those of objectives first."""
    figures: dict[str, float] = {}
    for name, kind in summary.jobs_by_kind.items():
        for each in kind.objectives:
            figures[_figure_of(name, each)] = each.worst
    for name, kind in summary.jobs_by_kind.items():
        waits = kind.wait
        for what, value in (("p99", waits.p99), ("mean", waits.mean), ("p50", waits.p50), ("p90", waits.p90)):
            figures[f"wait of {name}, {what}"] = value
        for priority, of_priority in kind.wait_by_priority.items():
            figures[f"wait of {name}, priority {priority}, p99"] = of_priority.p99
        if kind.longest_waiting_key is not None:
            figures[f"wait of {name}, longest waiting key, p99"] = kind.longest_waiting_key[1].p99
    for name, of in summary.populations.items():
        figures[f"sync delay of {name}, p99"] = of.sync_delay.p99
        figures[f"overdue keys of {name}"] = of.overdue
        figures[f"lock conflicts of {name}"] = of.lock_conflicts
        if of.joined or of.left:
            figures[f"never synced keys that left {name}"] = of.left_unserved
    for name, executor in summary.executors.items():
        for resource, use in executor.resources.items():
            figures[f"part of the {resource} of {name} that was used"] = use.part
    for name, gauge in summary.gauges.items():
        for what in ("mean", "most", "last"):
            figures[f"gauge {name}, {what}"] = getattr(gauge, what)
    total = summary.total
    figures["cost"] = summary.cost
    figures["jobs done"] = total.done
    figures |= zip(_LOSSES, (float(total.failed), float(total.refused + total.other)), strict=True)
    figures["jobs waiting at the end"] = total.pending
    figures["queue depth, mean"] = total.queue_depth_mean
    figures["queue depth, most"] = total.queue_depth_most
    figures["executing, mean"] = total.executing_mean
    return figures


def sweep(
    make: Callable[..., Scenario],
    grid: Mapping[str, Sequence[Any]],
    *,
    given: Mapping[str, Sequence[Any]] | None = None,
    days: float | None = None,
    warm_up: DurationLike = 0.0,
    step: DurationLike = 60.0,
    seeds: int = 20,
    first_seed: int = 0,
    precision: float | None = None,
    figure: str | None = None,
    processes: int | None = None,
    shortcut: bool = True,
    results: str | os.PathLike[str] | None = None,
    on_run: Callable[[int, int, SweepRun], object] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Sweep:
    """Run a scenario with all combinations of some settings, each with several seeds, in several processes.

    Args:
        make: returns the scenario for settings, which are passed by name, such as its class. Where processes cannot be
            forked it must be importable, as for every pool of processes.
        grid: the values of each parameter to choose, by name.
        given: the values of each parameter that is not to be chosen, such as the traffic: the choice has to do for all of
            them.
        days: the days to simulate; those of the scenario if None.
        warm_up: a span at the beginning of each run that is not measured.
        step: the span over which values are summed up.
        seeds: the number of runs of each configuration, >= 1; with ``precision`` the largest one.
        first_seed: the seed of the first run; the others have the seeds that follow.
        precision: the interval that is wanted for the figure, as a part of its mean, such as 0.05: a configuration gets
            more runs, from five on, until half the width of its interval is that small.
        figure: the name of the figure by which configurations are compared, as in ``Sweep.figures``; None for the first.
        processes: how many run at a time; None for one on each core.
        shortcut: True to compute the starts of a simple scenario without an executor, with the same figures; the first
            starts of each run are held against those of the executor. Where it does not apply, the executor runs.
        results: a file to which each run is added; runs that it holds already are not repeated.
        on_run: called after each run, with the number of runs so far, the number planned, and the run.
        should_stop: asked several times a second; True stops the sweep, and the runs that have not ended.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range; if there is no such figure; if the file holds runs of another scenario.
        ShortcutError: if the executor does something else than the shortcut; names the first difference.
        RuntimeError: if one of the processes was killed; names its settings and its seed.
        Exception: any error of the scenario, with a note that names the settings and the seed.
    """
    callable_of("make", make)
    count = count_of("seeds", seeds, least=1)
    check_most("seeds", count, SEEDS_MAX, "runs")
    if precision is not None and not 0 < number_of("precision", precision) < 1:
        raise ValueError(f"precision must be a part of the figure, > 0 and < 1 such as 0.05, got {precision!r}")
    given = given or {}
    if twice := grid.keys() & given.keys():
        raise ValueError(f"given must have other parameters than grid, got {min(twice)} in both")
    axes = {**grid, **given}
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not hasattr(values, "__len__") or not len(values):
            raise ValueError(f"grid must have at least one value of {name}, in a list, got {values!r}")
    check_most("grid", math.prod(map(len, axes.values())) * count, RUNS_MAX, "runs")
    made = {}
    found = Sweep("", grid, figure, given)
    for each in found.configurations:
        scenario = make(**each.settings)
        found.scenario = found.scenario or scenario.name
        made[str(each)] = _digest(scenario)
    options = {"days": days, "warm_up": warm_up, "step": step}
    file = _Results(results, {name: str(value) for name, value in options.items()})
    for each in found.configurations:
        each.runs.update(file.take(each.settings, made[str(each)]))
    workers = processes if processes is None else count_of("processes", processes, least=1)
    runs = _Runs(make, list(given), options, may_shorten=flag_of("shortcut", shortcut))
    with closing(file):
        found.is_complete = _run_all(
            found,
            count,
            first_seed,
            precision,
            lambda tasks: Workers(runs, tasks, workers),
            file,
            on_run,
            should_stop or bool,
        )
    first = found.configurations[0]
    shown = first if found.cheapest is None else found.counterpart(first, found.cheapest)
    found.parameters = make(**shown.settings).parameters()
    for each in found.configurations:
        if (expected := expected_wait(make(**each.settings))) is not None:
            found.expected_waits[str(each)] = expected
        elif each is first:
            break  # the others are of the same kind
    return found


def _run_all(
    found: Sweep,
    count: int,
    first_seed: int,
    precision: float | None,
    run_tasks: Callable[[list[_Task]], Workers[_Task, SweepRun]],
    file: _Results,
    on_run: Callable[[int, int, SweepRun], object] | None,
    should_stop: Callable[[], bool],
) -> bool:
    """Run what is missing; return False if it was stopped."""
    wanted = count if precision is None else min(count, _FIRST_SEEDS)
    while True:
        missing = {
            (str(each), seed): each
            for seed in range(first_seed, first_seed + wanted)  # all configurations with one seed, then with the next
            for each in found.configurations
            if seed not in each.runs
            and (wanted <= _FIRST_SEEDS or precision is None or _is_vague(found, each, precision))
        }
        done = sum(len(each.runs) for each in found.configurations)
        total = done + len(missing)
        with run_tasks([(each.settings, seed) for (_, seed), each in missing.items()]) as workers:
            while done < total:
                for (settings, seed), ended in workers.take(_ASK_SECONDS):
                    missing[str(Configuration(settings)), seed].runs[seed] = ended
                    file.add(ended)
                    done += 1
                    if on_run is not None:
                        on_run(done, total, ended)
                    if found.figure not in ended.figures:
                        raise ValueError(f"figure must be one of {'; '.join(ended.figures)}, got {found.figure!r}")
                if should_stop():
                    return False
        if wanted >= count or precision is None:
            return True
        wanted = min(count, wanted + _FIRST_SEEDS)
        if not any(_is_vague(found, each, precision) for each in found.configurations):
            return True


def _is_vague(found: Sweep, each: Configuration, precision: float) -> bool:
    return each.estimate(found.figure).relative > precision


# In the processes.


class _Runs:
    """The runs of a sweep, by settings and seed; those with one seed share what is drawn.

    Args:
        make: as of :func:`sweep`.
        given: the names of what is not to be chosen: the traffic may follow from it.
        options: the days, the warm-up and the steps of each run.
        may_shorten: True if the shortcut may be used.
    """

    def __init__(
        self, make: Callable[..., Scenario], given: Sequence[str], options: dict[str, Any], *, may_shorten: bool
    ) -> None:
        self._make = make
        self._given = given
        self._options = options
        self._may_shorten = self._may_share = may_shorten

    def group_of(self, task: _Task) -> int:
        """Return the seed."""
        _, seed = task
        return seed

    def prepare(self, tasks: Sequence[_Task]) -> None:
        """Draw the arrivals and durations of a seed, for each case of what is given."""
        cases = {tuple(str(settings[name]) for name in self._given): (settings, seed) for settings, seed in tasks}
        for settings, seed in cases.values() if self._may_share else ():
            try:
                share_columns(self._make(**settings), seed=seed, **self._options)
            except Exception:  # noqa: BLE001  # a run without the shortcut, or one that fails, says so itself
                self._may_share = False
                return

    def run(self, task: _Task) -> SweepRun:
        """Run the scenario once."""
        settings, seed = task
        checked, obstacle = None, ""
        try:
            scenario = self._make(**settings)
            digest = _digest(scenario)
            if self._may_shorten:
                try:
                    checked = checked_run(partial(self._make, **settings), seed=seed, **self._options)
                except NoShortcutError as error:
                    obstacle = str(error)
            summary = simulate(scenario, seed=seed, **self._options).summary if checked is None else checked.summary
        except Exception as error:
            error.add_note(f"in the run with {Configuration(settings)}, seed {seed}")
            raise
        objectives = {
            _figure_of(name, each): each for name, kind in summary.jobs_by_kind.items() for each in kind.objectives
        }
        return SweepRun(
            settings=settings,
            seed=seed,
            figures=figures_of(summary),
            is_kept=summary.is_objective_kept,
            digest=digest,
            checked_count=0 if checked is None else checked.job_count,
            obstacle=obstacle,
            missed=[name for name, each in objectives.items() if each.missed],
            undecided=[name for name, each in objectives.items() if not each.is_decided],
            promised={name: each.within for name, each in objectives.items()},
            worst_at={name: each.worst_at for name, each in objectives.items()},
            notes=summary.notes,
        )


# Results.


def _digest(scenario: Scenario) -> str:
    """Return what identifies a scenario with its parameters."""
    return hashlib.sha256(as_json([scenario.name, scenario.parameters()]).encode()).hexdigest()[:16]


def _told(head: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in head.items() if name != "format")


class _Results:
    """The file of runs, one JSON value a line: its options first."""

    def __init__(self, path: str | os.PathLike[str] | None, options: dict[str, str]) -> None:
        self._path = None if path is None else Path(path)
        self._runs: defaultdict[str, list[SweepRun]] = defaultdict(list)
        self._file: Any = None
        self._is_cut = False
        self._head = ""
        head = {"format": _FORMAT, **options}
        if self._path is None:
            return
        self._head = json.dumps(head)
        if not self._path.exists():
            return
        text = self._path.read_text(encoding="utf-8") or f"{self._head}\n"
        self._is_cut = not text.endswith("\n")  # by the end of a process
        first, *lines = text.splitlines()
        if (there := json.loads(first)) != head:
            raise ValueError(
                f"{self._path} holds runs with other options, {_told(there)}, and not {_told(head)}: give another file, or the same options"
            )
        for line in lines:
            with suppress(json.JSONDecodeError):  # a line that was cut
                run = SweepRun(**json.loads(line))
                self._runs[str(Configuration(run.settings))].append(run)

    def take(self, settings: dict[str, Any], digest: str) -> Iterable[tuple[int, SweepRun]]:
        """Return the runs with some settings, by seed."""
        runs = self._runs[str(Configuration(settings))]
        if any(run.digest != digest for run in runs):
            raise ValueError(
                f"{self._path} holds runs of another scenario, or of this one before it was changed: give another file"
            )
        return [(run.seed, run) for run in runs]

    def add(self, run: SweepRun) -> None:
        """Write a run."""
        if self._path is not None:
            if self._file is None:
                is_new = not self._path.exists() or not self._path.stat().st_size
                self._file = self._path.open("a", encoding="utf-8")
                self._file.write(f"{self._head}\n" if is_new else "\n" if self._is_cut else "")
            line = {name: getattr(run, name) for name in SweepRun.__slots__}
            self._file.write(json.dumps(line, default=str) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, if anything was written."""
        if self._file is not None:
            self._file.close()
