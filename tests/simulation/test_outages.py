"""Outages: the fraction of jobs that fail, by time."""

import pytest

from ratelimited_executor.simulation.outages import JobOutage, OutageFailures
from ratelimited_executor.testing import VirtualClock


@pytest.mark.parametrize(
    ("now", "part"),
    [
        (9.0, 0.0),
        (10.0, 1.0),
        (12.0, 1.0),
        (15.0, 0.75),
        (18.0, 0.5),
        (24.0, 0.25),
        (30.0, 0.0),
        (39.9, 0.0),
        (40.0, 0.0),
    ],
)
def test_fraction_changes_evenly_between_its_points(now, part):
    """Before the first point and after the last it stays as it is there; outside of the outage it is 0."""
    outage = JobOutage(10.0, 40.0, times=[12.0, 18.0, 30.0], parts=[1.0, 0.5, 0.0])
    assert part == outage.part(now)


def test_the_largest_fraction_is_in_force():
    """That of the outages, or the usual one."""
    clock = VirtualClock()
    failures = OutageFailures(0.1, [JobOutage(10.0, 20.0, parts=(0.5,)), JobOutage(15.0, 30.0, parts=(0.05,))], clock)
    found = []
    for seconds in (5.0, 7.0, 4.0, 9.0, 10.0):  # at 5, 12, 16, 25 and 35
        clock.block(seconds)
        found.append(failures("key"))
    assert [0.1, 0.5, 0.5, 0.1, 0.1] == found
