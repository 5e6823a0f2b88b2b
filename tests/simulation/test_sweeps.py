"""Sweeps run every configuration with the same seeds, tell them apart by differences, and choose the cheapest that will do."""

import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import LogNormal, Objective, Poisson, Scenario, Simulation
from ratelimited_executor.simulation.processes import LostWorkerError
from ratelimited_executor.simulation.report.sweep_page import answer_of
from ratelimited_executor.simulation.shortcut.check import ShortcutError
from ratelimited_executor.simulation.sweeps import Configuration, Estimate, Sweep, SweepRun, sweep

WORST = "worst wait of call, 99 % in each 1d"


@dataclass
class Load(Scenario):
    """Calls that arrive at random."""

    workers: int = 3
    mean: float = 4.0
    price: float = 1.0

    def setup(self, sim: Simulation) -> None:
        if self.workers == 13:
            raise OSError("an unlucky number")
        executor = sim.executor("api", max_concurrency=self.workers, worker_price=self.price)
        call = sim.job("call", LogNormal(mean=self.mean, p90=2 * self.mean), objectives=Objective("10s"))
        sim.arrive(Poisson(0.5), executor, call)


@dataclass
class Short(Scenario):
    """Calls for an hour of two workers, each of whom may wait longer than the run lasts."""

    workers: int = 2

    def setup(self, sim: Simulation) -> None:
        executor = sim.executor("api", max_concurrency=self.workers, pacing=Pacing.ON_TIME, worker_price=1)
        sim.schedule_many(executor, sim.job("call", 36, objectives=Objective("2h")), range(200))


def run(grid, **options):
    return sweep(Load, grid, days=1 / 24, **{"seeds": 4, "processes": 1, **options})


# Estimates.


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_intervals_are_those_of_student(degrees, expected):
    """Half the width is Student's factor, as tables have it, times the standard error."""
    values = [float(n) for n in range(degrees + 1)]
    estimate = Estimate.of(values)
    assert estimate.half == pytest.approx(expected * stdev(values) / math.sqrt(len(values)), rel=2e-3)
    assert (degrees / 2, degrees + 1) == (estimate.mean, estimate.count)


def test_one_run_has_no_interval():
    """With a single run the interval is infinite; with none there is no mean."""
    assert Estimate(5.0, math.inf, 1) == Estimate.of([5.0])
    assert math.isnan(Estimate.of([]).mean)
    assert (0.0, math.inf) == (Estimate.of([0.0, 0.0]).relative, Estimate.of([-1.0, 1.0]).relative)


# What is chosen.


def made(figures, *, kept=None):
    """Return a sweep of configurations, given their cost and figure by seed."""
    found = Sweep("load", {"workers": list(figures)}, "wait")
    for each in found.configurations:
        workers = each.settings["workers"]
        for seed, (cost, wait) in enumerate(figures[workers]):
            is_kept = kept is None or workers in kept
            values = {"worst wait of x": wait, "wait": wait, "cost": cost}
            each.runs[seed] = SweepRun(settings=each.settings, seed=seed, figures=values, is_kept=is_kept, digest="")
    return found


def test_what_a_run_is_too_short_to_judge_is_not_chosen():
    """A kind that waits up to the end of the run, for less than its objective allows, has kept nothing yet."""
    found = sweep(Short, {"workers": [0, 1, 2]}, seeds=1, days=1 / 24, processes=1)
    none, one, two = found.configurations
    assert [WORST] == none.undecided == one.undecided
    assert ([], [], ["call"]) == (none.missed, two.undecided, none.undecided_kinds)
    assert found.cheapest is two
    assert {WORST: 1} == found.keepers
    short = sweep(Short, {"workers": [0, 1]}, seeds=1, days=1 / 24, processes=1)
    assert short.cheapest is None
    assert "2 of 2 are not decided, as the run is too short: give more days." in answer_of(short)


def test_the_nearest_is_named_if_none_keeps_its_objectives():
    """The one that misses fewest, and of these the one with the least excess; with what it misses, and when."""
    found = made({1: [(1, 9), (1, 9)], 2: [(2, 8), (2, 6)], 3: [(3, 5), (3, 90)]}, kept=())
    for each in found.configurations:
        for seed, run in each.runs.items():
            is_missed = (each.settings["workers"], seed) != (3, 0)
            each.runs[seed] = replace(
                run,
                is_kept=not is_missed,
                missed=["worst wait of x"] if is_missed else [],
                promised={"worst wait of x": 5.0},
                worst_at={"worst wait of x": 43200.0 * seed},
            )
    found.is_complete = True
    assert 3 == found.best.settings["workers"], "one of its runs keeps them"
    told = "missed in 1 of 2 runs, the worst in the period from 12h on"
    assert told in answer_of(found)
    del found.configurations[2]
    assert 2 == found.best.settings["workers"], "7 s on average are nearer to 5 s than 9 s"


def test_the_cheapest_that_keeps_its_objectives_is_chosen():
    """A cheaper one that misses an objective is not chosen, nor is a better one that costs more."""
    found = made({1: [(1, 90), (1, 80)], 2: [(2, 9), (2, 8)], 3: [(3, 1), (3, 1)]}, kept={2, 3})
    assert "workers=2" == str(found.cheapest)
    assert ["workers=1", "workers=2", "workers=3"] == list(map(str, found.frontier))


def test_others_are_compared_with_the_best():
    """That is the one to choose, or if none will do, the one with the least figure; without runs there is none."""
    figures = {1: [(1, 90), (1, 80)], 2: [(2, 9), (2, 8)], 3: [(3, 1), (3, 1)]}
    assert ["workers=2", "workers=3"] == [str(made(figures, kept=kept).best) for kept in ({2, 3}, set())]
    assert made({}).best is None


def test_every_objective_is_shown():
    """The figure by which configurations are compared comes first."""
    found = made({1: [(1, 90)]})
    assert ["wait", "worst wait of x"] == found.shown_figures
    assert ["workers=1"] == list(map(str, found.frontier_of("worst wait of x")))


def test_of_equal_cost_the_better_is_chosen():
    """Where the costs differ by less than their interval, the figure decides."""
    found = made({1: [(1.0, 9), (1.2, 8), (1.1, 9)], 2: [(1.01, 2), (1.19, 1), (1.11, 2)], 3: [(3, 1), (3, 1), (3, 1)]})
    assert "workers=2" == str(found.cheapest)


def test_without_a_price_the_first_is_chosen():
    """Values are given in the order of preference."""
    found = made({3: [(0, 1)], 2: [(0, 1)], 1: [(0, 50)]}, kept={3, 2})
    assert "workers=3" == str(found.cheapest)


def test_nothing_is_chosen_where_nothing_keeps_its_objectives():
    """One missed run is enough."""
    found = made({1: [(1, 5), (1, 5)]}, kept=())
    assert found.cheapest is None
    assert found.has_objectives


def test_differences_are_those_of_the_same_seeds():
    """Runs that vary much with the seed differ little where the seed is the same."""
    found = made({1: [(1, 100), (1, 10), (1, 55)], 2: [(1, 99), (1, 9), (1, 54)]})
    one, two = found.configurations
    apart = found.difference(one, two, "wait")
    assert Estimate(1.0, 0.0, 3) == apart
    assert one.estimate("wait").half > 50


# Runs.


def test_all_combinations_run_with_all_seeds():
    """Each configuration has the same seeds; more workers wait less, seed by seed."""
    found = run({"workers": [3, 4, 6], "mean": [4.0, 2.0]})
    assert ["workers=3, mean=4.0", "workers=3, mean=2.0"] == [str(each) for each in found.configurations[:2]]
    assert all([0, 1, 2, 3] == sorted(each.runs) for each in found.configurations)
    assert ("load", WORST, True) == (found.scenario, found.figure, found.is_complete)
    three, six = (
        next(each for each in found.configurations if each.settings == {"workers": n, "mean": 4.0}) for n in (3, 6)
    )
    waits = [three.values(WORST), six.values(WORST)]
    assert all(waits[0][seed] > waits[1][seed] for seed in range(4))
    assert {3.0} == {round(value, 6) for value in three.values("cost").values()}


def test_processes_do_the_same_as_one():
    """However many processes run, the figures are the same."""
    grid = {"workers": [3, 6]}
    one, two = run(grid), run(grid, processes=2)
    figures = [
        [
            (each.settings, sorted((seed, run.figures) for seed, run in each.runs.items()))
            for each in found.configurations
        ]
        for found in (one, two)
    ]
    assert figures[0] == figures[1]


def test_results_are_kept_and_not_run_again(tmp_path):
    """What a file holds is not repeated, though its last line was cut; more values and seeds are added."""
    file = tmp_path / "runs.jsonl"
    run({"workers": [3]}, seeds=2, results=file)
    file.write_bytes(file.read_bytes()[:-30])
    ran = []
    found = run({"workers": [3, 6]}, seeds=3, results=file, on_run=lambda *each: ran.append(each))
    assert sorted((run.settings["workers"], run.seed) for _, _, run in ran) == [(3, 1), (3, 2), (6, 0), (6, 1), (6, 2)]
    assert (6, 6) == ran[-1][:2]
    again = run({"workers": [3, 6]}, seeds=3, results=file, on_run=lambda *_: pytest.fail("it ran"))
    assert [each.values(WORST) for each in again.configurations] == [
        each.values(WORST) for each in found.configurations
    ]


def test_results_of_something_else_are_refused(tmp_path):
    """A file of other options or of another scenario is refused, and stays as it was."""
    file = tmp_path / "runs.jsonl"
    run({"workers": [3]}, seeds=1, results=file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match="holds runs with other options"):
        run({"workers": [3]}, seeds=1, results=file, warm_up="5m")
    lines = before.decode().splitlines()
    other = {**json.loads(lines[1]), "digest": "other"}
    file.write_text(f"{lines[0]}\n{json.dumps(other)}\n")
    with pytest.raises(ValueError, match="holds runs of another scenario, or of this one before it was changed"):
        run({"workers": [3]}, seeds=1, results=file)


def test_precision_decides_the_number_of_runs():
    """A figure that varies much gets more runs than one that does not, and none more than the largest number."""
    found = run({"workers": [3, 40]}, seeds=15, precision=0.2, figure="wait of call, mean")
    busy, idle = found.configurations
    assert 5 == len(idle.runs) < len(busy.runs) <= 15
    assert len(busy.runs) == 15 or busy.estimate(found.figure).relative <= 0.2


def test_a_sweep_stops_when_asked(tmp_path):
    """What has run by then is kept."""
    file = tmp_path / "runs.jsonl"
    ended = []
    found = run(
        {"workers": [3, 4, 5, 6]},
        results=file,
        on_run=lambda *each: ended.append(each),
        should_stop=lambda: len(ended) >= 3,
    )
    assert (False, len(ended)) == (found.is_complete, sum(len(each.runs) for each in found.configurations))
    assert 3 <= len(ended) == len(file.read_text().splitlines()) - 1 < 16


def test_an_error_names_the_run():
    """An error of the scenario is raised with its type and with the settings and the seed."""
    with pytest.raises(OSError, match="unlucky") as error:
        run({"workers": [13]}, processes=2)
    [note] = error.value.__notes__
    assert re.fullmatch("in the run with workers=13, seed [0-3]", note)


class Killed(Load):
    """A scenario that kills its process."""

    def setup(self, sim: Simulation) -> None:
        os._exit(3)


def test_a_process_that_dies_is_an_error_and_no_wait():
    """It says so, with its exit code."""
    with pytest.raises(LostWorkerError, match=r"ended with the exit code 3 while it ran \({'workers': 3}, 0\)"):
        sweep(Killed, {"workers": [3]}, processes=1)


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        ({"workers": []}, {}, "grid must have at least one value of workers"),
        ({"workers": "345"}, {}, "grid must have at least one value of workers, in a list"),
        ({"workers": [3]}, {"seeds": 0}, "seeds must be"),
        ({"workers": [3]}, {"precision": 5}, "precision must be a part of the figure, > 0 and < 1 such as 0.05"),
        ({"workers": range(200)}, {"seeds": 10_000}, "grid must be at most 100,000 runs"),
        ({"workers": [3]}, {"processes": 0}, "processes must be"),
    ],
)
def test_what_cannot_be_is_refused(grid, options, words):
    """Bad input is refused before anything runs."""
    with pytest.raises(ValueError, match=words):
        run(grid, **options)


def test_a_configuration_is_told_by_its_settings():
    """Without settings it is the scenario as it is."""
    assert ("a=1, b=2", "as it is") == (str(Configuration({"a": 1, "b": "2"})), str(Configuration({})))


# What is given.


def test_a_choice_has_to_do_for_all_that_is_given():
    """What keeps its objectives with little traffic alone is not chosen; a case counts by its own runs."""
    found = Sweep("load", {"workers": [1, 2]}, "wait", {"traffic": [1, 2]})
    waits = {(1, 1): 1.0, (1, 2): 90.0, (2, 1): 0.5, (2, 2): 2.0}
    for each in found.configurations:
        wait = waits[each.settings["workers"], each.settings["traffic"]]
        for seed in range(2):
            values = {"worst wait of x": wait, "wait": wait + seed, "cost": float(each.settings["workers"])}
            each.runs[seed] = SweepRun(settings=each.settings, seed=seed, figures=values, is_kept=wait < 10, digest="")
    assert ["workers=1, traffic=1", "workers=1, traffic=2"] == [str(each) for each in found.configurations[:2]]
    assert ["workers=1", "workers=2"] == list(map(str, found.choices))
    chosen = found.cheapest
    assert ("workers=2", 4) == (str(chosen), len(chosen.runs))
    other = found.counterpart(found.configurations[1], chosen)
    assert {"workers": 2, "traffic": 2} == other.settings
    assert Estimate(88.0, 0.0, 2) == found.difference(found.configurations[1], other, "wait")


def test_what_is_given_runs_with_every_choice():
    """All combinations run; a parameter is either chosen or given."""
    found = run({"workers": [3, 6]}, given={"mean": [2.0, 4.0]}, seeds=2)
    assert 4 == len(found.configurations)
    assert {"workers": 6} == found.cheapest.settings
    assert 6 == found.parameters["workers"]
    with pytest.raises(ValueError, match="given must have other parameters than grid, got workers in both"):
        run({"workers": [3]}, given={"workers": [4]})


# The shortcut.


@dataclass
class Punctual(Load):
    """The same calls, on time."""

    def setup(self, sim: Simulation) -> None:
        executor = sim.executor("api", max_concurrency=self.workers, worker_price=self.price, pacing=Pacing.ON_TIME)
        call = sim.job("call", LogNormal(mean=self.mean, p90=2 * self.mean), objectives=Objective("10s"))
        sim.arrive(Poisson(0.5), executor, call)


def test_figures_by_the_shortcut_are_those_of_the_executor():
    """All figures of all runs are equal, to the last bit."""
    short, long = (
        sweep(Punctual, {"workers": [2, 3, 5]}, days=0.2, warm_up=600, seeds=2, processes=2, shortcut=is_short)
        for is_short in (True, False)
    )
    for one, other in zip(short.configurations, long.configurations, strict=True):
        assert {seed: run.figures for seed, run in other.runs.items()} == {
            seed: run.figures for seed, run in one.runs.items()
        }
    assert re.fullmatch(
        r"All runs are by the shortcut; the first [\d,]+ to [\d,]+ starts of each were equal to those of the executor\. "
        r"That check covers the beginning of a run alone, and nothing that comes later, such as an outage\.",
        short.shortcut,
    )
    assert "All runs are those of the executor." == long.shortcut


def test_a_sweep_says_why_the_executor_ran():
    """The reason is in the sentence, and in each run."""
    found = run({"workers": [3]}, seeds=1)
    why = "runs of fewer than 8,000 jobs take no longer with the executor"
    assert f"All runs are those of the executor, as {why}." == found.shortcut
    assert [why] == [each.obstacle for each in found.configurations[0].runs.values()]


def _differ(*_, **__):
    raise ShortcutError("job 1, call 0: its time is 1.0 by the shortcut, and 2.0 by the executor")


@pytest.mark.skipif(sys.platform != "linux", reason="the processes of the sweep are not forked, and would not know")
def test_a_difference_stops_the_sweep(monkeypatch):
    """Its error names the job, and the note the run."""
    monkeypatch.setattr("ratelimited_executor.simulation.sweeps.checked_run", _differ)
    with pytest.raises(ShortcutError, match="job 1, call 0") as error:
        sweep(Punctual, {"workers": [2]}, days=0.01, seeds=1, processes=1)
    assert ["in the run with workers=2, seed 0"] == error.value.__notes__


@pytest.mark.real_time("processes, which end by themselves")
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Killed, a sweep leaves none behind."""
    program = tmp_path / "endless.py"
    program.write_text(
        "import os, sys\n"
        "from ratelimited_executor.simulation import Poisson, Scenario, sweep\n"
        "class Endless(Scenario):\n"
        "    def __init__(self, workers): pass\n"
        "    def setup(self, sim): sim.arrive(Poisson(1), sim.executor('api'), sim.job('call', 1.0))\n"
        "print(os.getpid(), flush=True)\n"
        "sweep(Endless, {'workers': [1, 2]}, days=0.01, seeds=1, processes=2,\n"
        "      on_run=lambda done, *_: print(done, flush=True) or (done == 2 and sys.stdin.read()))\n"
    )
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        [template] = _children(process.pid)
        children = [template, *_children(template)]
        process.kill()
    assert ("2\n", 3) == (lines[-1], len(children))
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() and " Z " not in _state(child) for child in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.01)


def _children(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def _state(child):
    try:
        return Path(f"/proc/{child}/stat").read_text()
    except OSError:
        return " Z "
