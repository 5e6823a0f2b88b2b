"""The mean wait that queueing theory expects, where a scenario is one of its models: a check of the simulation by other means.

The model is M/M/c: jobs of one kind that arrive at random (Poisson), exponential durations, c workers, first come first
served, and nothing else. Source: A. K. Erlang, 1917; Erlang C is computed by the recursion of Erlang B, which is stable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor.simulation.arrivals import Poisson
from ratelimited_executor.simulation.distributions import Exponential
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey

if TYPE_CHECKING:
    from ratelimited_executor.simulation.simulation import Scenario

__all__ = ["expected_wait", "part_that_waits"]


def part_that_waits(workers: int, load: float) -> float:
    """Return the fraction of jobs that wait: Erlang C.

    Args:
        workers: the number of workers, >= 1.
        load: the mean number of busy workers, >= 0 and less than their number.

    >>> round(part_that_waits(2, 1.0), 4)
    0.3333
    """
    refused = 1.0  # Erlang B
    for count in range(1, workers + 1):
        refused = load * refused / (count + load * refused)
    return refused / (1 - load / workers * (1 - refused))


def expected_wait(scenario: Scenario) -> tuple[str, float] | None:
    """Return the kind of job of a scenario and its mean wait in seconds; None if it is no M/M/c, or its queue grows forever."""
    sim = Survey(seed=0, interval=scenario.interval)
    try:
        sim.set_up(scenario)
        if len(sim.planned) != 1 or sim.shifts:
            return None
        (planned,) = sim.planned
        executor, job = planned.executor, planned.job
        arrivals = None if planned.feed is None else planned.feed.arrivals
        if type(arrivals) is not Poisson or type(job.duration) is not Exponential:
            return None
        workers = executor.max_concurrency
        queue = executor._engine.queue  # type: ignore[union-attr]  # it has started
        is_plain = queue.is_unlimited and queue.pacing is Pacing.ON_TIME
        if not workers or not is_plain or (job.failures != 0.0 and executor in sim.retries):
            return None
        load = arrivals._rate * job.duration.mean
        if load >= workers:
            return None
        return job.name, part_that_waits(workers, load) * job.duration.mean / (workers - load)
    except NoShortcutError:
        return None
    finally:
        sim.close()
