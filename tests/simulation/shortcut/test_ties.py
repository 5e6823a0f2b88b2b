"""Jobs of several feeds that are due at one instant take the turns that they have in an executor."""

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import Constant, Regular, Scenario

from .test_run import both


class Meetings(Scenario):
    """Feeds that meet at some instants, with gaps that are longer and shorter than an interval, and two batches."""

    def __init__(self, interval, rates) -> None:
        self.interval = interval
        self.rates = rates

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        for number, rate in enumerate(self.rates):
            sim.arrive(Regular(rate), executor, sim.job(f"job {number}", Constant(0.1)))
        for number in range(2):
            job = sim.job(f"batch {number}", Constant(0.1))
            sim.schedule_many(executor, job, range(4), delays=[0.0, 10.0, 60.0, 120.0])


@pytest.mark.parametrize("interval", [1.0, 7.0, 60.0])
@pytest.mark.parametrize("rates", [(1, 0.5, 0.25), (0.25, 0.5, 1), (0.5, 0.1, 0.5), (1 / 3, 1, 1 / 5)])
def test_turns_are_those_of_the_executor(interval, rates):
    """With one worker each turn shows in a wait."""
    ours, theirs = both(lambda: Meetings(interval, rates), seconds=600)
    assert theirs == ours
