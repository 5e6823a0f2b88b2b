"""Settings by hour are set when the hour changes them."""

import pytest

from ratelimited_executor.simulation import Simulation
from ratelimited_executor.simulation.hours import HOUR_SECONDS, Shift, in_force


@pytest.mark.parametrize(("hour", "value"), [(0, 3), (7, 3), (8, 1), (19, 1), (20, 3), (23, 3)])
def test_an_omitted_hour_has_the_value_of_the_one_before(hour, value):
    """Before the first of a day it is that of the last."""
    assert value == in_force({8: 1, 20: 3}, (24 * 19_000 + hour) * HOUR_SECONDS + 59.0)


class Told:
    """Notes what is set."""

    def __init__(self) -> None:
        self.set = []

    def __setattr__(self, name, value) -> None:
        if name == "rate":
            self.set.append(value)
        super().__setattr__(name, value)


def test_an_hour_that_changes_nothing_sets_nothing():
    """What was set by other means meanwhile stays."""
    sim, told = Simulation(), Told()
    sim.every(HOUR_SECONDS, Shift([told], "rate", {1: 5, 3: 7}, sim.loop.clock), first=HOUR_SECONDS)
    sim.run_until(4.5 * HOUR_SECONDS)
    sim.close()
    assert [5, 7] == told.set
