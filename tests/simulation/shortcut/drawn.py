"""Random scenarios to which the shortcut applies."""

import random

from ratelimited_executor import Pacing, Retry
from ratelimited_executor.simulation import (
    Daily,
    Exponential,
    JobFailedError,
    LogNormal,
    Objective,
    Percentiles,
    Poisson,
    Regular,
    Sample,
    Scenario,
)
from ratelimited_executor.simulation.hours import HOUR_SECONDS, Shift
from ratelimited_executor.simulation.outages import JobOutage, OutageFailures


class Drawn(Scenario):
    """One or two executors, some kinds of jobs, and what arrives, as a seed has it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"scenario {seed}")
        self.interval = self.chance.choice([1.0, 60.0, 7.0])
        self.seed = seed

    def setup(self, sim) -> None:
        chance = random.Random(f"world {self.seed}")
        for number in range(chance.choice([1, 1, 1, 2])):
            self._executor(sim, chance, number)

    def _executor(self, sim, chance: random.Random, number: int) -> None:
        pick = chance.choice
        workers = pick([None, 1, 2, 3, 5, 8])
        options = {} if workers is None else {"max_concurrency": workers, "worker_price": pick([0, 0.37])}
        if chance.random() < 0.4:
            options["rate"] = pick([0.5, 1, 2.5, "90/min", 7, 100])
        if number == 0 and chance.random() < 0.5:
            retry = pick([2, 3, 5]), pick(["100ms", 1, 30])
            options["retry"] = Retry(retry[0], base=retry[1], on=JobFailedError)
        if chance.random() < 0.5:
            options["pacing"] = Pacing.ON_TIME
        executor = sim.executor(f"executor {number}", **options)
        for name in [name for name in ("rate", "max_concurrency") if name in options and chance.random() < 0.3]:
            values = {"rate": [0, 1, 5, "90/min"], "max_concurrency": [0, 1, 4]}[name]
            hours = {hour: pick(values) for hour in (0, 1, 2)}
            sim.every(HOUR_SECONDS, Shift([executor], name, hours, sim.loop.clock), first=pick([3600.0, 600.0]))
        for kind in range(pick([1, 1, 2, 3])):
            mean = pick([0.5, 2.0, 4.0])
            duration = pick(
                [
                    mean, 0.0, Exponential(mean), LogNormal(mean=mean, p90=2 * mean), Sample([0.0, mean, 2 * mean]),
                    Percentiles({0: 0, 50: mean, 100: 5 * mean}),
                ]
            )  # fmt: skip
            objectives = [
                Objective(pick(["1s", "5s", 0]), percent=pick([50, 99]), each=pick(["10m", "1h", "1d"]))
                for _ in range(pick([0, 1, 2]))
            ]
            failures, price = pick([0, 0, 0.1, 1.0]), pick([0, 0.01])
            if chance.random() < 0.2:
                curve = {"times": [700.0, 780.0, 800.0], "parts": [1.0, 0.2, 0.6]}
                outages = [
                    JobOutage(400.0, 500.0),
                    JobOutage(700.0, 850.0, **curve),
                    JobOutage(900.0, 930.5, parts=(0.5,)),
                ]
                failures = OutageFailures(failures, outages, sim.loop.clock)
            job = sim.job(f"kind {number}.{kind}", duration, failures=failures, objectives=objectives, price=price)
            for _ in range(pick([1, 1, 2])):
                self._arrive(sim, chance, executor, job)

    def _arrive(self, sim, chance: random.Random, executor, job) -> None:
        pick = chance.choice
        options = {"priority": pick([0, 1, 5])} if chance.random() < 0.4 else {}
        what = pick(["poisson", "poisson", "daily", "regular", "regular", "batch"])
        if what == "batch":
            count = pick([1, 50, 700])
            delays = pick([None, [300 + number * 60 / count for number in range(count)], [60.0, 0.0, 61.0] * count])
            sim.schedule_many(executor, job, range(count if delays is None else len(delays)), delays=delays, **options)
            return
        arrivals = {
            "poisson": Poisson(pick([0.2, 1, 3])),
            "daily": Daily({0: 0.3, 1: 2.0}),
            "regular": Regular(pick([0.5, 1, 2])),
        }[what]
        sim.arrive(arrivals, executor, job, keys=pick([None, None, list(range(30))]), **options)
