"""Keys join and leave, by chance or as recorded, at the same times for every configuration."""

import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ratelimited_executor.simulation import (
    STRATEGIES,
    Constant,
    Daily,
    Exponential,
    Poisson,
    Population,
    Recorded,
    Recording,
    Regular,
    Scenario,
    load_toml,
    read_recording,
    simulate,
)

DAY = 86_400.0


@dataclass
class Changing(Scenario):
    """Accounts that join and leave, and jobs for those that are there."""

    joins: object = None
    lifetime: object = None
    keys: object = 0
    workers: int = 4
    rate: float = 0.0

    days = 1.0

    def setup(self, sim):
        self.events = []
        api = sim.executor("api", max_concurrency=self.workers)
        self.accounts = sim.population("accounts", self.keys, period="1h", joins=self.joins, lifetime=self.lifetime)
        self.accounts.on_join(lambda key: self.events.append((sim.now, "joined", key)))
        self.accounts.on_leave(lambda key: self.events.append((sim.now, "left", key)))
        self.job = sim.job("sync", 1, population=self.accounts)
        if self.rate:
            sim.arrive(Poisson(self.rate), api, self.job, keys=self.accounts)


def population_of(scenario, **options):
    return simulate(scenario, **options).summary.populations["accounts"]


def recorded(path, *rows):
    path.write_text("\n".join(["joined,account,left", *rows]))
    return Recorded(read_recording(path, time="joined", key="account", end="left"))


# Who is there.


def test_keys_join_at_the_times_of_arrivals():
    """They are the next unused numbers, and stay."""
    scenario = Changing(joins=Regular(1 / 3600), keys=2)
    found = population_of(scenario)
    assert [(3600.0 * number, "joined", 2 + number) for number in range(25)] == scenario.events
    assert (27, 25, 0, 0) == (found.keys, found.joined, found.left, found.left_unserved)


def test_keys_leave_after_their_lifetime():
    """Those that join stay a lifetime from then on."""
    scenario = Changing(joins=Regular(1 / 7200), lifetime="3h")
    found = population_of(scenario, days=0.25)
    assert [
        (0.0, "joined", 0), (7200.0, "joined", 1), (10_800.0, "left", 0),
        (14_400.0, "joined", 2), (18_000.0, "left", 1), (21_600.0, "joined", 3),
    ] == scenario.events  # fmt: skip
    assert (2, 4, 2, 2) == (found.keys, found.joined, found.left, found.left_unserved)


def test_keys_that_are_there_leave_as_in_equilibrium():
    """With 100 joins an hour and lifetimes of 10 h, some 100 of the first 1000 keys leave each hour, and 1000 stay."""
    scenario = Changing(joins=Regular(100 / 3600), keys=1000, lifetime="10h")
    population_of(scenario, days=0.5)
    first = [when for when, what, key in scenario.events if what == "left" and key < 1000]
    assert 1000 == len(first)
    assert all(abs(sum(when < hour * 3600 for when in first) - 100 * hour) < 50 for hour in range(1, 11))
    later = [key for _, what, key in scenario.events if what == "joined"]
    alone = Changing(joins=Regular(100 / 3600), lifetime="10h")
    population_of(alone, days=0.5)
    assert [key - 1000 for key in later] == [key for _, what, key in alone.events if what == "joined"]


def test_number_of_keys_is_that_of_the_rate_and_the_lifetime():
    """By Little's law, a rate of 100 a day and a mean of half a day keep some 50 keys."""
    scenario = Changing(joins=Poisson(100 / DAY), lifetime=Exponential("12h"), keys=50)
    found = population_of(scenario, days=20, step=3600)
    assert 2000 == pytest.approx(found.joined, rel=0.1)
    assert found.keys == 50 + found.joined - found.left
    assert 50 == pytest.approx(found.keys, abs=25)


def test_joins_may_depend_on_the_hour():
    """A rate by the hour is by that of the clock, from which the run begins."""
    scenario = Changing(joins=Daily({0: 0, 9: 1 / 60, 10: 0}))
    population_of(scenario, start=1_704_067_200 + 6 * 3600.0)
    assert scenario.events
    assert all(3 * 3600 <= when < 4 * 3600 for when, *_ in scenario.events)


def test_recorded_keys_join_and_leave_when_they_did(tmp_path):
    """A recording has the keys, and when they ended; where that is empty, they stay. One may come back."""
    joins = recorded(tmp_path / "a.csv", "100,ann,400", "50,bob,", "1000,ann,1e3", "1001,ann,")
    scenario = Changing(joins=joins)
    found = population_of(scenario)
    assert [
        (0, "joined", "bob"), (50, "joined", "ann"), (350, "left", "ann"), (950, "joined", "ann"), (950, "left", "ann"),
        (951, "joined", "ann"),
    ] == scenario.events  # fmt: skip
    assert (2, 4, 2) == (found.keys, found.joined, found.left)


@pytest.mark.parametrize("speed", [1, 7])
@pytest.mark.parametrize("ends", [(0, 60, 120), (0, 30, 60), (0, 61, 121), (0, 0.1, 0.3), (10.7, 20.4, 20.4, 1e5 / 3)])
def test_key_joins_again_when_it_leaves(tmp_path, ends, speed):
    """Where a life of a key begins at the end of another, it leaves first, wherever in a minute and however rounded."""
    spans = [*pairwise(ends), (ends[-1], "")]
    path = tmp_path / "a.csv"
    recorded(path, "0,bob,", *(f"{begin},ann,{end}" for begin, end in spans))
    recording = read_recording(path, time="joined", key="account", end="left")
    scenario = Changing(joins=Recorded(recording, speed=speed))
    found = population_of(scenario)
    assert (2, 1 + len(spans), len(spans) - 1) == (found.keys, found.joined, found.left)
    of_ann = [(when, what) for when, what, key in scenario.events if key == "ann"]
    assert ["joined", *["left", "joined"] * (len(spans) - 1)] == [what for _, what in of_ann]
    assert [ends[0], *(end for end in ends[1:] for _ in range(2))] == pytest.approx([at * speed for at, _ in of_ann])


def test_speed_of_a_recording_compresses_lives(tmp_path):
    """At ten times the speed as many keys are there at a time as in the recording."""
    recording = read_recording(life_of_two(tmp_path), time="joined", key="account", end="left")
    scenario = Changing(joins=Recorded(recording, speed=10))
    population_of(scenario)
    assert [(0, "joined", "ann"), (10, "joined", "bob"), (20, "left", "ann"), (30, "left", "bob")] == scenario.events


def life_of_two(folder):
    recorded(folder / "two.csv", "0,ann,200", "100,bob,300")
    return folder / "two.csv"


def test_more_keys_than_were_recorded_are_numbers(tmp_path):
    """A key cannot join twice, so a scale above 1 needs a recording without keys; a part of the keys may join."""
    recording = read_recording(life_of_two(tmp_path), time="joined", key="account", end="left")
    with pytest.raises(ValueError, match=r"scale must be at most 1 for keys that join, .* got 2.0: leave out key"):
        population_of(Changing(joins=Recorded(recording, scale=2)))
    assert population_of(Changing(joins=Recorded(recording, scale=0.9))).joined < 3
    numbers = read_recording(life_of_two(tmp_path), time="joined", end="left")
    found = population_of(Changing(joins=Recorded(numbers, scale=2)))
    assert (4, 4) == (found.joined, found.left)


def test_key_may_be_let_leave_before_its_time():
    """Your own code may let a key leave before its life ends, which ends it."""

    class Leaving(Changing):
        def setup(self, sim):
            super().setup(sim)
            sim.every(86_400, lambda: self.accounts.leave(0, sim.now), first=60)

    scenario = Leaving(joins=Regular(1 / 43_200), lifetime="3h")
    found = population_of(scenario, days=0.4)
    assert [(0.0, "joined", 0), (60.0, "left", 0)] == scenario.events
    assert (0, 1) == (found.keys, found.left)


def test_recording_without_ends_takes_lifetimes():
    """Where a recording has no durations, a lifetime is drawn; where it has, another one is refused."""
    times = read_times([0, 10, 20])
    scenario = Changing(joins=Recorded(times), lifetime=Constant(15))
    assert 3 == population_of(scenario).left
    with pytest.raises(ValueError, match="lifetime must not be given beside a recording with durations"):
        population_of(Changing(joins=Recorded(read_times([0], [5])), lifetime=3))


def read_times(times, durations=None):
    from array import array

    return Recording(array("d", times), None, None if durations is None else array("d", durations), 0.0, 0)


def test_key_that_is_there_cannot_join(tmp_path):
    """The error names the population and the key."""
    with pytest.raises(
        ValueError, match="joins of the population accounts must be of keys .* got 'ann' at 1 s, which has not left"
    ):
        population_of(Changing(joins=recorded(tmp_path / "a.csv", "1,ann,", "2,ann,")))


def test_population_that_never_changes_refuses_a_key():
    """Only a population with joins or lifetimes changes, and only that one may be empty."""
    fixed = Population("fixed", 3, period="1h")
    with pytest.raises(ValueError, match="population fixed has keys that never change: give it joins= or lifetime="):
        fixed.join(3, 0.0)
    with pytest.raises(ValueError, match="keys that leave the population fixed must be there, got 3"):
        fixed.leave(3, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        Population("none", 0, period="1h")


def test_what_has_not_ended_cannot_be_replayed_as_a_job():
    """A recorded duration without an end is refused before the run begins."""

    class Replay(Scenario):
        def setup(self, sim):
            sim.arrive(Recorded(read_times([0], [float("inf")])), sim.executor("api"), sim.job("call", "recorded"))

    with pytest.raises(ValueError, match="duration of call must be finite"):
        simulate(Replay(), days=0.001)


# What they are served.


def test_jobs_are_for_keys_that_are_there():
    """The keys of arrivals are drawn from those that are there at the beginning of the minute; with none, none arrive."""
    scenario = Changing(joins=Regular(1 / 7200), lifetime="1h", keys=0, rate=0.1)
    result = simulate(scenario)
    spans = {key: when for when, what, key in scenario.events if what == "joined"}
    kinds = result.summary.jobs_by_kind["sync"]
    assert 600 > kinds.wait.count / 12 > 250
    assert set(spans) >= set(kinds.wait_by_key)
    assert 11 <= len(kinds.wait_by_key)


def test_joins_are_the_same_for_each_configuration():
    """Keys, times and lifetimes depend on the seed alone, and not on workers or on what is done."""
    runs = []
    for workers, rate in ((1, 0.01), (9, 0.2)):
        scenario = Changing(joins=Poisson(50 / DAY), lifetime=Exponential("6h"), keys=20, workers=workers, rate=rate)
        simulate(scenario, seed=5)
        runs.append(scenario.events)
    assert runs[0] == runs[1]
    other = Changing(joins=Poisson(50 / DAY), lifetime=Exponential("6h"), keys=20)
    simulate(other, seed=6)
    assert runs[0] != other.events


def test_job_of_a_key_that_has_left_still_runs():
    """What was on the way is done, and its key counts as left without a sync."""

    class Late(Changing):
        def setup(self, sim):
            super().setup(sim)
            api = sim.executor("other")
            api.schedule(self.job, 0, delay=7200)

    result = simulate(Late(keys=1, lifetime="1h"))
    assert (1, 0) == (result.summary.total.done, result.summary.total.failed)
    assert (0, 1, 1) == tuple(
        getattr(result.summary.populations["accounts"], name) for name in ("keys", "left", "left_unserved")
    )


def test_time_without_a_sync_begins_when_a_key_joins():
    """The age of a key that has joined late is counted from then on."""
    found = population_of(Changing(joins=Recorded(read_times([3600.0 * 20])), keys=0))
    assert 4 * 3600 == found.oldest
    late = population_of(Changing(joins=Recorded(read_times([0.0, 3600.0 * 23])), keys=0))
    assert (DAY, 1) == (late.oldest, late.overdue)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_serve_who_is_there(name):
    """Under each strategy, accounts that join are synced, and those that have left no longer are."""
    scenario = STRATEGIES[name](
        accounts=60, workers=3, joins="60/day", lifetime="1d", failures=0.0, locked_out=0.0, outage_day=0, cycle="2h"
    )
    result = simulate(scenario, days=3, step=600)
    found = result.summary.populations["accounts"]
    assert (found.joined > 120, found.left > 80) == (True, True)
    assert found.never_synced <= 8  # they may have joined in the last cycle
    assert found.left_unserved < 0.2 * found.left
    cycles = 3 * 12 * 60
    assert 2 * cycles * 0.6 < result.summary.jobs < 2 * cycles * 1.7
    assert found.overdue <= 12


def test_strategies_have_the_same_accounts():
    """The joins do not depend on the strategy, so that their difference is its own."""
    options = {"accounts": 40, "workers": 3, "joins": "40/day", "lifetime": "1d"}
    found = [
        simulate(make(**options), days=1, step=600).summary.populations["accounts"] for make in STRATEGIES.values()
    ]
    assert 1 == len({(each.keys, each.joined, each.left) for each in found})


# What is written.


def rows(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_lives_are_written(tmp_path):
    """The table has who joined and left, those who are there last; the level follows the numbers of each step."""
    path = tmp_path / "run.sqlite3"
    simulate(Changing(joins=Regular(1 / 7200), keys=1, lifetime="3h"), days=0.25, database=path)
    first, *others = rows(path, "SELECT key, joined, left, syncs FROM life")
    assert (0, None, 0) == (*first[:2], first[3])
    assert 0 < first[2] < 10_800
    assert [(1, 0.0, 10_800.0, 0), (2, 7200.0, 18_000.0, 0), (3, 14_400.0, None, 0)] == others[:3]
    levels = rows(path, "SELECT time, value FROM gauge WHERE metric = 'keys_alive' ORDER BY time")
    minute = 60 * math.ceil(first[2] / 60)
    assert [(60, 2), (7200, 3), (minute, 2), (10_800, 1), (14_400, 2), (18_000, 1), (21_600, 2)] == levels
    assert [(3,), (3,)] == rows(path, "SELECT sum(value) FROM counter WHERE metric LIKE 'keys_left%' GROUP BY metric")


def test_keys_that_are_left_out_of_a_warm_up():
    """The counts of joins begin where the warm-up ends."""
    found = population_of(Changing(joins=Regular(1 / 3600)), warm_up="12h")
    assert 12 == found.joined


def test_resumed_run_is_the_same(tmp_path):
    """A run that was stopped in its midst has the same rows as one that was not."""
    queries = (
        "SELECT * FROM life",
        "SELECT * FROM gauge ORDER BY time, metric",
        "SELECT * FROM counter ORDER BY time, metric",
    )
    options = {"days": 0.5, "seed": 4}
    calls = iter(range(100_000))

    def scenario():
        return Changing(joins=Poisson(50 / DAY), lifetime=Exponential("3h"), keys=30, rate=0.02)

    simulate(scenario(), database=tmp_path / "whole.sqlite3", **options)
    simulate(scenario(), database=tmp_path / "run.sqlite3", on_progress=lambda at: next(calls) >= 0, **options)
    simulate(scenario(), database=tmp_path / "run.sqlite3", resume=True, **options)
    for query in queries:
        assert rows(tmp_path / "whole.sqlite3", query) == rows(tmp_path / "run.sqlite3", query)


# In TOML.

TOML = """
days = 0.5
[executors.api]
max_concurrency = 5
[populations.accounts]
count = 20
period = "1h"
groups = 3
{joins}
[jobs.sync]
duration = 2
population = "accounts"
[[arrivals]]
executor = "api"
job = "sync"
cycle = "1h"
buckets = 256
[[arrivals]]
executor = "api"
job = "sync"
rate = "1/min"
"""


@pytest.fixture
def load(tmp_path):
    """Return a function that loads the scenario with some lines of its population."""

    def load(joins):
        (tmp_path / "members.csv").write_text("at,who,until\n0,a,7200\n60,b,\n")
        (tmp_path / "load.toml").write_text(TOML.format(joins=joins))
        return load_toml(tmp_path / "load.toml")

    return load


@pytest.mark.parametrize(
    ("joins", "joined", "left"),
    [
        ('joins = "2/h"', range(12, 40), range(1)),
        ('lifetime = "3h"', range(1), range(20, 21)),
        ('joins = "2/h"\nlifetime = {mean = "6h"}', range(12, 40), range(12, 40)),
        ('joins = {0 = "0/h", 6 = "10/h"}', range(40, 85), range(1)),
        ('joins = {log = "members.csv", time = "at", key = "who", end = "until"}', range(2, 3), range(1, 2)),
    ],
)
def test_scenario_file(load, joins, joined, left):
    """A rate, a rate for each hour or a recording let keys join, and a lifetime lets them leave."""
    found = population_of(load(joins))
    assert found.joined in joined
    assert found.left in left
    assert found.sync_interval.count > 100


@pytest.mark.parametrize(
    ("joins", "message"),
    [
        ('joins = "often"', r"\[populations.accounts\]: joins: rate must look like"),
        ("joins = {25 = 1}", r"\[populations.accounts\]: joins: rates must have hours of the day, 0 to 23"),
        ("joins = {log = 5}", r"\[populations.accounts\]: joins: log: must be the path of a recording, got 5"),
        ('joins = {log = "members.csv", when = "at"}', r"\[populations.accounts\] joins has when, which is unknown"),
        ('joins = {log = "members.csv", time = "at", end = "until", duration = "until"}', "end must not be given beside duration"),
        ("lifetime = {median = 3}", r"\[populations.accounts\]: lifetime must be seconds, {mean = 4, p90 = 8}"),
        ("lifetime = -1", r"\[populations.accounts\]: lifetime must be >= 0"),
    ],
)  # fmt: skip
def test_scenario_file_that_is_refused(load, joins, message):
    """What is wrong is named with its place."""
    with pytest.raises(ValueError, match=message):
        simulate(load(joins), days=1e-9)


def test_batch_of_keys_that_are_not_there_is_refused(tmp_path):
    """A number of jobs at one time needs keys at the start; a rate waits until there are some."""
    text = TOML.format(joins='joins = "60/h"').replace("count = 20", "count = 0")
    (tmp_path / "load.toml").write_text(text)
    found = simulate(load_toml(tmp_path / "load.toml"), days=0.1)
    assert found.summary.total.done > 100
    (tmp_path / "load.toml").write_text(text + '[[arrivals]]\nexecutor = "api"\njob = "sync"\ncount = 5\n')
    with pytest.raises(
        ValueError, match="number 3: count needs keys, and the population accounts has none at the start"
    ):
        simulate(load_toml(tmp_path / "load.toml"), days=0.1)
