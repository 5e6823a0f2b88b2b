"""Columns are drawn as jobs are, once for all configurations with the same traffic."""

import random
from array import array

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import Constant, Exponential, LogNormal, Poisson, Recorded, Sample, Simulation
from ratelimited_executor.simulation.feeds import draw_columns
from ratelimited_executor.simulation.recordings import Recording
from ratelimited_executor.simulation.shortcut import columns
from ratelimited_executor.simulation.shortcut.columns import InflowKeys, columns_of, due_times
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey


def survey(*, seed=1, workers=2, mean=1.0, arrivals=None, duration=None, **options):
    """Return what arrives at an executor."""
    sim = Survey(seed=seed, interval=1.0)
    executor = sim.executor("api", max_concurrency=workers, pacing=Pacing.ON_TIME)
    job = sim.job("call", duration or LogNormal(mean=mean, p90=2 * mean))
    sim.arrive(arrivals or Poisson(2), executor, job, **options)
    (planned,) = sim.planned
    return planned


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    """Each test begins without columns."""
    monkeypatch.setattr(columns, "_kept", {})


@pytest.mark.parametrize(
    "duration", [Constant(2), Exponential(2), LogNormal(mean=2, p90=4), Sample([1, 2, 3])], ids=lambda each: repr(each)
)
def test_columns_have_the_numbers_of_jobs(duration):
    """Durations and luck are those that a job draws, bit by bit."""
    sim = Simulation(seed=5)
    job = sim.job("call", duration)
    seconds, lucks = draw_columns(job, random.Random(7), 300)
    drawn = job._drawn(range(300), random.Random(7))
    sim.close()
    assert [(each.seconds, each.luck) for each in drawn] == list(zip(seconds, lucks, strict=True))


def test_due_times_are_those_of_delays():
    """A job is due at the hand-over plus its delay, which rounds where the time itself does not."""
    times = array("d", [0.1, 59.9, 60.1, 100.3, 185.7])
    assert [0.1, 59.9, 60 + (60.1 - 60), 60 + (100.3 - 60), 180 + (185.7 - 180)] == list(
        due_times(times, array("q", [2, 4, 4, 5]), 60.0)
    )


def test_configurations_share_columns():
    """More workers have the same columns; another seed, mean or length has others."""
    first = columns_of(survey(), 600.0)
    assert columns_of(survey(workers=9), 600.0) is first
    others = [columns_of(survey(seed=2), 600.0), columns_of(survey(mean=2.0), 600.0), columns_of(survey(), 660.0)]
    assert all(other is not first for other in others)
    assert columns_of(survey(), 600.0) is first
    recorded = Recorded(Recording(times=array("d", [0, 1]), keys=None, durations=None, begin=0.0, skipped=0))
    first = columns_of(survey(arrivals=recorded, duration=Sample([1, 2])), 600.0)
    assert columns_of(survey(arrivals=recorded, duration=Sample([1, 2])), 600.0) is first


class Odd:
    """A distribution that cannot be copied, and so may do anything."""

    mean = 1.0

    def __reduce__(self):
        raise TypeError("no")

    def draw(self, chance):
        return chance.random()

    def quantile(self, part):
        return part


def test_what_cannot_be_compared_is_drawn_each_time():
    """A distribution of the user's own may depend on more than its fields."""
    one, other = (columns_of(survey(duration=Odd()), 600.0) for _ in range(2))
    assert one is not other
    assert one.seconds == other.seconds


class Scaled:
    """A duration that follows from its class as well."""

    factor = 1.0

    def draw(self, chance: random.Random) -> float:
        return self.factor * chance.random()


class Twice(Exponential):
    """One of the library's, with a rule of its own."""

    def draw(self, chance: random.Random) -> float:
        return Scaled.factor * super().draw(chance)


@pytest.mark.parametrize("duration", [Scaled(), Twice(1.0)])
def test_columns_of_durations_of_other_classes_are_drawn_each_time(duration, monkeypatch):
    """What they draw may follow from more than their pickles have."""
    before = sum(columns_of(survey(duration=duration), 600.0).seconds)
    monkeypatch.setattr(Scaled, "factor", 2.0)
    assert 2 * before == pytest.approx(sum(columns_of(survey(duration=duration), 600.0).seconds))


def test_few_columns_are_kept(monkeypatch):
    """Those that were used last."""
    monkeypatch.setattr(columns, "_KEPT_COUNT_MAX", 3000)
    first = columns_of(survey(), 600.0)
    second = columns_of(survey(seed=2), 600.0)
    assert columns_of(survey(), 600.0) is first
    columns_of(survey(seed=3), 600.0)
    assert columns_of(survey(), 600.0) is first
    assert columns_of(survey(seed=2), 600.0) is not second


def test_minutes_are_handed_over_as_they_begin():
    """At a time, an executor has accepted the jobs of the minute that begins then."""
    found = columns_of(survey(), 600.0)
    assert 11 == len(found.counts)
    assert sum(time < 120 for time in found.times) == found.accepted_until(119.0)
    assert sum(time < 180 for time in found.times) == found.accepted_until(120.0)
    assert len(found.times) == found.accepted_until(1e9)


def test_keys_are_drawn_as_far_as_needed():
    """Those of a feed are numbers, drawn, or recorded; those of a batch are given."""
    numbers = survey()
    assert [4, 3] == InflowKeys(numbers, columns_of(numbers, 600.0)).of([4, 3])
    drawn = survey(keys="ab")
    assert set("ab") == set(InflowKeys(drawn, columns_of(drawn, 600.0)).of(range(50)))
    recording = Recording(
        times=[0, 70, 71], keys=["x", "y", "z"], durations=array("d", [1, 2, 3]), begin=0.0, skipped=0
    )
    recorded = survey(arrivals=Recorded(recording), duration="recorded")
    found = columns_of(recorded, 600.0)
    assert (["x", "y", "z"], [1, 2, 3]) == (InflowKeys(recorded, found).of(range(3)), list(found.seconds))


def test_too_many_jobs_are_refused(monkeypatch):
    """Before they fill the memory."""
    monkeypatch.setattr(columns, "COLUMN_COUNT_MAX", 500)
    with pytest.raises(NoShortcutError, match="there are more than 500 jobs of call"):
        columns_of(survey(), 600.0)


def test_durations_out_of_range_are_refused():
    """The executor says what is wrong with them."""
    with pytest.raises(NoShortcutError, match="a duration of call is out of range"):
        columns_of(survey(duration=type("Negative", (Odd,), {"draw": lambda self, chance: -chance.random()})()), 600.0)
