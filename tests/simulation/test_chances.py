"""Random numbers have a stream for each source: what one part draws does not depend on the others."""

import math
from dataclasses import dataclass
from statistics import fmean

import pytest

from ratelimited_executor import Retry
from ratelimited_executor.orders import Fair
from ratelimited_executor.simulation import (
    Daily,
    Exponential,
    JobFailedError,
    LogNormal,
    Poisson,
    Scenario,
    Simulation,
    simulate,
)
from ratelimited_executor.simulation.chances import mixed

HOUR = 3600.0


@dataclass
class Shop(Scenario):
    """Orders that are charged, with retries, and then mailed; and reports in the evening."""

    workers: int = 6
    attempts: int = 3
    failures: float = 0.2
    reports: float = 0.05
    mean: float = 20.0

    def setup(self, sim: Simulation) -> None:
        self.seen: dict[str, list] = {"arrivals": [], "charge": [], "report": [], "mail": []}
        bank = sim.executor(
            "bank", max_concurrency=self.workers, retry=Retry(self.attempts, on=(JobFailedError,)), order=Fair()
        )
        office = sim.executor("office")
        mail = sim.job("mail", Exponential(5))
        charge = sim.job(
            "charge",
            LogNormal(mean=self.mean, p90=2 * self.mean),
            failures=self.failures,
            then=lambda order: sim.offer(office, mail, order),
        )
        report = sim.job("report", Exponential(60))
        for job in (mail, charge, report):
            self._note(job)
        sim.arrive(Poisson(0.2), bank, charge, keys=range(50))
        sim.arrive(Daily({0: self.reports}), office, report)

    def _note(self, job) -> None:
        """Note key, attempt, duration and luck of each attempt of a kind of job."""
        rows = self.seen[job.name]

        class Noted(type(job)):
            def _begin(self, key, seconds, luck, priority):
                rows.append((key, seconds, luck))
                return super()._begin(key, seconds, luck, priority)

        job.__class__ = Noted


def seen(seed: int = 1, **settings) -> dict[str, list]:
    shop = Shop(**settings)
    simulate(shop, days=1 / 24, seed=seed)
    return {name: sorted(rows) for name, rows in shop.seen.items()}


def test_a_seed_is_the_same_day_whatever_the_number_of_workers():
    """With more workers the same jobs arrive, last as long and fail as often, with retries and followers the same."""
    many, more = seen(workers=40), seen(workers=60)
    assert many == more
    assert len(many["charge"]) > 700
    assert len(many["mail"]) > 500


def test_what_few_workers_begin_is_part_of_what_many_begin():
    """Where jobs are left waiting at the end, all that ran are the same as elsewhere."""
    few, many = seen(workers=3), seen(workers=40)
    assert len(few["charge"]) < len(many["charge"])
    assert set(few["charge"]) < set(many["charge"])
    assert set(few["mail"]) < set(many["mail"])
    assert few["report"] == many["report"]


@pytest.mark.parametrize(
    "changed", [{"reports": 0.1}, {"attempts": 1}, {"failures": 0.0}], ids=lambda each: next(iter(each))
)
def test_a_change_of_one_part_leaves_the_first_attempts_of_another(changed):
    """More reports, fewer attempts or failures change no order: neither when it arrives nor how long it lasts."""
    base, other = (seen(workers=40, **settings) for settings in ({}, changed))
    firsts = [{row for row in rows["charge"] if row[2] >= 0.2} for rows in (base, other)]  # an attempt that succeeds
    assert len(firsts[0] & firsts[1]) > 0.7 * len(firsts[0])
    if "reports" in changed:
        assert base["charge"] == other["charge"]
        assert base["report"] != other["report"]


def test_durations_scale_with_their_mean():
    """Twice the mean makes each job twice as long: the numbers drawn are the same."""
    base, twice = (seen(workers=80, mean=mean) for mean in (5.0, 10.0))
    longer = {(key, luck): seconds for key, seconds, luck in twice["charge"]}
    pairs = [(seconds, longer[key, luck]) for key, seconds, luck in base["charge"] if (key, luck) in longer]
    assert len(pairs) > 700
    assert all(math.isclose(2 * short, long) for short, long in pairs)


def test_seeds_differ():
    """Another seed is another day."""
    one, two = seen(1), seen(2)
    assert not set(one["charge"]) & set(two["charge"])


def test_keys_of_a_population_have_numbers_of_their_own():
    """What a key draws depends on how often it was called, and not on when other keys are."""

    def draws(order):
        sim = Simulation(seed=5)
        try:
            users = sim.population("users", 10, period="1h")
            job = sim.job("sync", Exponential(10), population=users, failures=0.3)
            return {(key, turn): job(key).seconds for turn in range(3) for key in order}
        finally:
            sim.close()

    assert draws(range(10)) == draws([*reversed(range(10))])
    assert len(set(draws(range(10)).values())) == 30


def test_a_stream_is_a_name_and_its_turn():
    """Streams of one name differ, and are the same in each run of a seed."""

    def numbers(seed):
        sim = Simulation(seed=seed)
        try:
            return [sim.stream(name).random() for name in ("a", "a", "b")]
        finally:
            sim.close()

    assert numbers(1) == numbers(1)
    assert len({*numbers(1), *numbers(2)}) == 6


def test_mixed_numbers_are_uniform_and_do_not_follow_from_one_another():
    """Derived numbers are spread evenly, and two of one origin are not correlated, nor with the origin."""
    count = 20_000
    origins = [(number + 0.5) / count for number in range(count)]
    first, second = ([mixed(origin, number) for origin in origins] for number in (1, 2))
    for numbers in (first, second):
        assert all(0 <= each < 1 for each in numbers)
        assert fmean(numbers) == pytest.approx(0.5, abs=0.01)
        assert fmean(each**2 for each in numbers) == pytest.approx(1 / 3, abs=0.01)
    for one, other in ((first, second), (origins, first), (first[1:], first[:-1])):
        products = [(a - 0.5) * (b - 0.5) * 12 for a, b in zip(one, other, strict=True)]
        assert fmean(products) == pytest.approx(0, abs=0.03)


def test_several_jobs_that_follow_one_differ():
    """Jobs of a kind that one job offers have each their own numbers, the same in every run, and their priority."""

    def followers():
        sim = Simulation(seed=5)
        try:
            mail = sim.job("mail", Exponential(10))
            found = []
            for cause in (0.25, 0.5, 0.25):
                sim._current.cause = cause
                found.append([mail._following(number, 3) for number in range(10)])
            return [[(each.seconds, each.luck, each.priority) for each in some] for some in found]
        finally:
            sim.close()

    first, second, third = followers()
    assert 20 == len({*first, *second})
    assert first == third
    assert {3} == {priority for _, _, priority in first}
    assert [first, second, third] == followers()
