"""Random simulations for both kernels, each run in a process of its own: ``python -m tests.simulation.both_kernels FOLDER SEED...``."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path
from typing import Any

from ratelimited_executor import Burst, Pacing, Retry, Window
from ratelimited_executor.exceptions import BacklogFullError
from ratelimited_executor.orders import Fair
from ratelimited_executor.simulation import (
    Constant,
    Daily,
    Exponential,
    JobFailedError,
    LogNormal,
    Percentiles,
    Poisson,
    Regular,
    Scenario,
    Simulation,
    simulate,
)
from ratelimited_executor.simulation.strategies import STRATEGIES

DAYS = 0.02


class Drawn(Scenario):
    """A scenario that is drawn from a seed: what simulations may have, each with some probability."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.interval = random.Random(seed).choice([1.0, 1.0, 60.0, 7.0])  # type: ignore[misc]  # of this one

    def setup(self, sim: Simulation) -> None:
        """Set up what the seed draws."""
        self.sim, self.rng = sim, random.Random(self.seed)
        rng = self.rng
        self.more = random.Random(f"{self.seed} more")
        self.resources = {"resources": {"tokens": "300/min"}} if self.more.random() < 0.4 else {}
        self.executors = [self._executor(f"executor {number}") for number in range(rng.randint(1, 3))]
        if rng.random() < 0.2:
            self.executors.append(sim.fleet("node", 2, rate="1/s", max_concurrency=3, **self.resources))
        self.keys = range(rng.choice([1, 5, 40]))
        self.population = None
        if rng.random() < 0.6:
            self.population = sim.population(
                "keys",
                len(self.keys),
                period="10m",
                weight=lambda key: 1 + key % 3,
                group=lambda key: f"group {key % 2}",
                **({"joins": Poisson(0.03), "lifetime": Exponential(400)} if self.more.random() < 0.5 else {}),
            )
            sim.gauge("keys", lambda: len(self.population))
            if rng.random() < 0.5:
                sim.outage(self.population, "group 0", 300, 600)
        self.jobs: list[Any] = []
        for number in range(rng.randint(1, 4)):
            self.jobs.append(self._job(f"job {number}"))
        for _ in range(rng.randint(1, 4)):
            self._source()

    def _executor(self, name: str) -> Any:
        rng, options = self.rng, {}
        for option, chance, values in (
            ("rate", 0.6, ["2/s", "0.5/s", "40/s", "7/3s"]),
            ("max_concurrency", 0.6, [1, 3, 10]),
            ("pacing", 0.7, [Pacing.ON_TIME]),
            ("retry", 0.4, [Retry(3, on=(JobFailedError,))]),
            ("order", 0.1, [Fair()]),
            ("max_pending", 0.1, [5]),
            ("key_concurrency", 0.1, [1]),
            ("expires", 0.1, [5.0]),
        ):
            if rng.random() < chance:
                options[option] = rng.choice(values)
        if "rate" in options and rng.random() < 0.3:
            options["policy"] = rng.choice([Window(), Burst(5)])
        return self.sim.executor(name, **options, **self.resources)

    def _job(self, name: str) -> Any:
        rng = self.rng
        duration = rng.choice(
            [0.5, 0.0, Constant(3), Exponential(2), LogNormal(mean=4, p90=8), Percentiles({0: 0.1, 50: 1, 100: 30})]
        )
        options: dict[str, Any] = {"failures": rng.choice([0.0, 0.0, 0.2, lambda key: 0.5 if key == 1 else 0.0])}
        if self.population is not None and rng.random() < 0.7:
            options["population"] = self.population
            options["is_sync"] = rng.random() < 0.7
        if self.jobs and rng.random() < 0.4:
            follower, executor = rng.choice(self.jobs), rng.choice(self.executors)
            options[rng.choice(["then", "on_failure"])] = lambda key: self.sim.offer(executor, follower, key)
        if self.resources and self.more.random() < 0.7:
            options["cost"] = self.more.choice([{"tokens": 3}, {"tokens": Exponential(4)}, {"permits": 2, "tokens": 0}])
        return self.sim.job(name, duration, **options)

    def _source(self) -> None:
        sim, rng = self.sim, self.rng
        executor, job = rng.choice(self.executors), rng.choice(self.jobs)
        options = {"priority": rng.choice([-1, 5])} if rng.random() < 0.5 else {}
        if rng.random() < 0.5:
            arrivals = rng.choice([Poisson(0.5), Regular(0.8), Daily({0: 0.6, 6: 0.1})])
            keys = self.keys if self.population is None or self.more.random() < 0.5 else self.population
            sim.arrive(arrivals, executor, job, keys=keys, **options)
        elif rng.random() < 0.5:
            delays = [rng.uniform(0, 200) for _ in range(50)]
            keys = [rng.choice(self.keys) for _ in delays]
            sim.every(400, lambda: self._try(executor.schedule_many, job, keys, delays=delays, **options))
        else:
            sim.every(20, lambda: self._try(self._schedule, executor, job, **options))

    def _try(self, call: Any, *args: Any, **options: Any) -> None:
        with contextlib.suppress(BacklogFullError):
            call(*args, **options)

    def _schedule(self, executor: Any, job: Any, **options: Any) -> None:
        """Schedule a job with a handle, and perhaps cancel it or await it within another."""
        rng, key = self.rng, self.rng.choice(self.keys)
        kind = rng.random()
        if kind < 0.2 and not hasattr(executor, "executors"):

            async def both() -> None:
                await asyncio.sleep(0.5)
                await job(key)

            executor.schedule(both, **options)
            return
        handle = executor.schedule(job, key, delay=rng.choice([0, 1.5, 70]), **options)
        if kind < 0.4:
            self.sim.loop.call_later(rng.choice([0.1, 3, 100]), getattr(handle, "cancel", int))


def main(folder: Path, names: list[str]) -> None:
    """Simulate the scenario of each seed, and each strategy that is named, into a file in the folder."""
    for name in names:
        path = folder / f"{name}.sqlite"
        if name in STRATEGIES:
            changing = {"joins": "100/h", "lifetime": "1h"}
            simulate(
                STRATEGIES[name](accounts=100, banks=3, cycle="10m", outage_day=1, **changing), days=DAYS, database=path
            )
            continue
        seed = int(name)
        try:
            simulate(Drawn(seed), days=DAYS, seed=seed, samples=seed % 3 == 0, database=path)
        except Exception as error:  # noqa: BLE001  # a drawn scenario may be refused, on both kernels alike
            path.with_suffix(".error").write_text(repr(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
