"""The world of a simulation: executors, fleets, populations, jobs, arrivals and outages do what they promise."""

import asyncio
import contextlib
import math
import random
from array import array
from collections import Counter
from uuid import uuid4

import pytest

from ratelimited_executor import Pacing, RateLimitedExecutor, Retry
from ratelimited_executor.simulation import (
    Constant,
    Daily,
    JobFailedError,
    Lasting,
    Poisson,
    Population,
    Recorded,
    Recording,
    Regular,
    Scenario,
    Simulation,
    simulate,
)
from ratelimited_executor.spread import CycleSlots
from ratelimited_executor.testing import worst_window

HOUR = 3600.0


class Made(Scenario):
    """A scenario that is set up by a function."""

    def __init__(self, setup):
        self.setup = setup


@contextlib.contextmanager
def world(setup, **options):
    """Yield a simulation that is set up, at its start."""
    sim = Simulation(**options)
    try:
        sim.set_up(Made(setup))
        yield sim
    finally:
        sim.close()


def live(setup, seconds=HOUR, **options):
    """Set up a simulation, and run it for ``seconds``."""
    with world(setup, **options) as sim:
        sim.run_until(seconds)
    return sim


class Starts:
    """A job that logs its starts and keys."""

    def __init__(self, sim, seconds=0.0):
        self.sim = sim
        self.seconds = seconds
        self.found = []

    def __call__(self, key=None):
        self.found.append((self.sim.now, key))
        return Lasting(self.seconds)

    @property
    def times(self):
        return [start for start, _ in self.found]


# Setting up.


def test_executors_are_those_of_production():
    """Executors of a simulation are those of production, with the given options, and run from its start."""
    made = []

    def setup(sim):
        executor = sim.executor("a", rate=2, pacing=Pacing.ON_TIME)
        made.append((executor, executor.schedule_many(Starts(sim), range(10))))

    live(setup)
    executor, batch = made[0]
    assert type(executor) is RateLimitedExecutor
    assert ("a", 2, Pacing.ON_TIME) == (executor.name, float(executor.rate), executor.pacing)
    assert batch.done()
    assert 10 == executor.statistics().done


@pytest.mark.parametrize("is_async", [False, True])
def test_setup_may_be_asynchronous(is_async):
    """``setup`` may be asynchronous; it runs in the loop in either case."""
    seen = []

    def setup(sim):
        sim.executor("a")
        seen.append((asyncio.get_running_loop() is sim.loop, sim.now))

    async def set_up(sim):
        await asyncio.sleep(0)
        setup(sim)

    live(set_up if is_async else setup)
    assert [(True, 0.0)] == seen


def test_a_scenario_needs_an_executor():
    """A scenario without an executor is refused by name."""

    def setup(sim):
        sim.population("keys", 3, period="1h")

    with pytest.raises(ValueError, match=r"scenario made creates no executor: call sim\.executor\(\)"):
        live(setup)
    sim = Simulation()
    with pytest.raises(NotImplementedError, match=r"Scenario must define setup\(sim\)"):
        sim.set_up(Scenario())
    sim.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_of_the_setup_comes_out(is_async):
    """An error of ``setup`` is raised unchanged."""

    def setup(sim):
        sim.executor("a")
        raise KeyError("mine")

    async def set_up(sim):
        setup(sim)

    with pytest.raises(KeyError, match="mine"):
        live(set_up if is_async else setup)


def test_a_setup_that_waits_for_ever_is_said_so():
    """A ``setup`` that waits for ever is reported."""

    async def setup(sim):
        sim.executor("a")
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is left to happen"):
        live(setup)


def test_names_in_use_are_refused():
    """Names in use are refused; each kind has its own names."""

    def setup(sim):
        sim.executor("a")
        sim.population("a", 1, period=1)
        sim.job("a", 1)
        sim.fleet("f", 2)
        for make in (
            lambda: sim.executor("a"),
            lambda: sim.population("a", 1, period=1),
            lambda: sim.job("a", 1),
            lambda: sim.fleet("f", 1),
            lambda: sim.executor("f/1"),
        ):
            with pytest.raises(ValueError, match="name '.*' is in use: every .* needs a name of its own"):
                make()

    sim = live(setup)
    assert ["executor a", "population a", "job a", "executor f/0", "executor f/1"] == [
        f"{source.kind} {source.name}" for source in sim.sources
    ]


def test_an_executor_may_be_made_and_closed_in_mid_run():
    """An executor may be made and closed during the run."""
    made = []

    def later(sim):
        executor = sim.executor("late", rate=1)
        made.append((executor, executor.schedule(Starts(sim, 5))))
        sim.at(200, executor.shutdown)

    live(lambda sim: (sim.executor("first"), sim.at(100, lambda: later(sim))) and None, 500)
    executor, handle = made[0]
    assert (True, True) == (handle.done(), executor.is_terminated)


def test_the_same_seed_makes_the_same_world():
    """The same seed makes the same simulation, and another one another."""

    def draw(seed):
        drawn = []
        live(lambda sim: sim.executor("a") and drawn.append(sim.random.random()), seed=seed)
        return drawn

    assert draw(1) == draw(1) != draw(2)


def test_time_of_day_is_that_of_the_start():
    """The time of day starts at ``start``, so that tasks may be due by the wall clock."""
    seen = []

    def setup(sim):
        sim.executor("a").schedule(lambda: seen.append(sim.now), at=1_000_000_900)

    live(setup, start=1_000_000_000, seconds=2000)
    assert [900.0] == seen


# Fleets.


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_nodes_of_a_fleet_keep_the_rate_together(nodes):
    """The nodes of a fleet keep the rate together, and use it evenly."""
    made = []

    def setup(sim):
        made.append(Starts(sim))
        sim.fleet("node", nodes, rate=10, pacing=Pacing.ON_TIME).schedule_many(made[0], range(3000))

    live(setup, 200)
    times = [time for time in made[0].times if time < 200]
    assert 1980 <= len(times) <= 2000  # each peer gives 1 % for what the others cannot see
    assert worst_window(times, 1.0 - 1e-6)[0] <= 10
    assert worst_window(times, 60.0 - 1e-6)[0] <= 600


def test_a_fleet_deals_single_calls_out_in_turn():
    """A fleet assigns single calls to its nodes in turn, as a load balancer does."""

    def setup(sim):
        fleet = sim.fleet("node", 3)
        handles = [fleet.schedule(Starts(sim), key) for key in range(7)]
        assert 3 == len(fleet.executors)
        assert {3, 2} == set(Counter(handle._engine.accounts.name for handle in handles).values())
        assert fleet.next() is not fleet.next()

    live(setup)


def test_a_fleet_deals_batches_out():
    """A fleet assigns each item of a batch to one node, at its time."""
    made = []

    def setup(sim):
        made.append(Starts(sim))
        batches = sim.fleet("node", 3).schedule_many(made[0], range(10), delays=[10.0 * item for item in range(10)])
        assert [4, 3, 3] == [batch.total for batch in batches]

    live(setup)
    assert [(10.0 * item, item) for item in range(10)] == made[0].found


def test_a_fleet_deals_small_batches_out_in_turn():
    """A fleet assigns small batches evenly over time."""
    made = []

    def setup(sim):
        fleet = sim.fleet("node", 4)
        made.append(fleet)
        sim.arrive(Regular(1 / 3600), fleet, Starts(sim))

    live(setup, 40 * HOUR)
    assert {10} == {executor.statistics().done for executor in made[0].executors} - {11}


@pytest.mark.parametrize(("nodes", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_fleet_needs_a_node(nodes, error):
    """A bad number of nodes is refused by name."""

    def setup(sim):
        with pytest.raises(error, match="nodes must be"):
            sim.fleet("node", nodes)
        sim.executor("a")

    live(setup)


# Populations.


@pytest.mark.parametrize(
    ("keys", "options", "error", "words"),
    [
        (0, {}, ValueError, "at least one"),
        (-1, {}, ValueError, "at least one"),
        (True, {}, ValueError, "at least one"),
        ([], {}, ValueError, "at least one, got none"),
        (iter(()), {}, ValueError, "at least one, got none"),
        (["a", "b", "a"], {}, ValueError, "'a' occurs twice"),
        ([1, 1], {}, ValueError, "1 occurs twice"),
        ([True], {}, TypeError, "key must be"),
        ([None], {}, TypeError, "key must be"),
        ([1.5], {}, TypeError, "key must be"),
        ([("a", 1)], {}, TypeError, "key must be"),
        ([2**63], {}, ValueError, "64 bits"),
        (None, {}, TypeError, "iterable"),
        (3, {"weight": lambda key: math.nan}, ValueError, "weight of 0 must be finite"),
        (3, {"weight": lambda key: math.inf}, ValueError, "weight of 0 must be finite"),
        (3, {"weight": lambda key: -1}, ValueError, "weight of 0 .* must be > 0"),
        (3, {"weight": lambda key: 2 - key}, ValueError, "weight of 2 .* must be > 0"),
        (3, {"weight": lambda key: "1"}, TypeError, "weight of 0 must be a number"),
        (3, {"period": 0}, ValueError, "period"),
        (3, {"period": -1}, ValueError, "period"),
        (3, {"period": math.nan}, ValueError, "period"),
        (3, {"period": math.inf}, ValueError, "period"),
        (3, {"period": "soon"}, ValueError, "period"),
        (3, {"period": None}, TypeError, "period"),
        (3, {"period": True}, TypeError, "period"),
    ],
)
def test_populations_that_cannot_be_are_refused(keys, options, error, words):
    """Bad populations are refused with the reason."""
    with pytest.raises(error, match=words):
        Population("all", keys, **{"period": "1h", **options})


def test_a_population_knows_its_members():
    """A population has its members in order, with weights and groups."""
    uuid = uuid4()
    made = Population(
        "all", ["b", "a", b"c", 7, uuid], period="8h", weight=lambda key: 2 if key == "a" else 1, group=repr
    )
    assert ["b", "a", b"c", 7, uuid] == list(made) == made.never_synced()
    assert (5, 28_800.0, 2.0, "'a'") == (len(made), made.period, made.members["a"].weight, made.members["a"].group)
    assert [5.0] * 5 == made.ages(5.0)
    assert [0, 1, 2] == list(Population("n", 3, period=1))
    assert Population("n", 3, period=1).members[0].group is None
    many = Population("n", 10_000, period=1)
    assert 1000 < len(many.ages(1.0)) <= 2000


# Jobs.


def test_jobs_take_as_long_as_they_were_told():
    """A job lasts as long as its duration, multiplied by the weight of its key."""
    made = []

    def setup(sim):
        population = sim.population("all", 3, period="1h", weight=lambda key: key + 1)
        executor = sim.executor("a")
        made.append([])
        job = sim.job("job", 10, population=population, then=lambda key: made[0].append((key, sim.now)))
        executor.schedule_many(job, [2, 0, 1])

    live(setup)
    assert [(0, 10.0), (1, 20.0), (2, 30.0)] == made[0]


@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_so_many_of_them_fail(share):
    """A given part of the jobs fails, and the callback of each outcome gets the key at its end."""
    made = []

    def setup(sim):
        done, failed = [], []
        job = sim.job("job", 2, failures=share, then=lambda key: done.append((key, sim.now)), on_failure=failed.append)
        executor = sim.executor("a", max_concurrency=10)
        made.append((executor, done, failed))
        executor.schedule_many(job, range(4000))

    live(setup)
    executor, done, failed = made[0]
    statistics = executor.statistics()
    assert (len(done), len(failed)) == (statistics.done, statistics.failed)
    assert sorted([*(key for key, _ in done), *failed]) == list(range(4000))
    assert len(failed) == pytest.approx(4000 * share, abs=5 * math.sqrt(4000 * share * (1 - share)))
    assert all(end == 2.0 * (index // 10 + 1) for index, (_, end) in enumerate(done)) or share


def test_failures_may_depend_on_the_key():
    """Failures may be a function of the key."""
    made = []

    def setup(sim):
        population = sim.population("all", 10, period="1h")
        job = sim.job("job", 1, failures=lambda key: 1.0 if key < 3 else 0.0, population=population)
        sim.executor("a").schedule_many(job, range(10))
        made.append(population)

    live(setup)
    members = made[0].members.values()
    assert [1] * 3 + [0] * 7 == [member.failures for member in members]
    assert [0] * 3 + [1] * 7 == [member.syncs for member in members]
    assert [0, 1, 2] == made[0].never_synced()


@pytest.mark.parametrize(
    ("failures", "error"),
    [
        (-0.1, ValueError),
        (1.1, ValueError),
        (math.nan, ValueError),
        ("0", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_failures_out_of_range_are_refused(failures, error):
    """Failures out of range are refused by name."""
    sim = Simulation()
    with pytest.raises(error, match="failures must be"):
        sim.job("job", 1, failures=failures)
    sim.close()


@pytest.mark.parametrize("name", ["duration", "outage_duration"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (b"1", TypeError),
        ("1x", ValueError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_durations_out_of_range_are_refused(name, value, error):
    """Durations out of range are refused by name."""
    sim = Simulation()
    with pytest.raises(error, match=rf"{name}(: a duration looks like| must be)"):
        sim.job("job", **{"duration": 1, name: value})
    sim.close()


@pytest.mark.parametrize("name", ["then", "on_failure"])
def test_what_follows_must_be_callable(name):
    """A callback that is not callable is refused by name."""
    sim = Simulation()
    with pytest.raises(TypeError, match=f"{name} must be a callable"):
        sim.job("job", 1, **{name: 5})
    sim.close()


def test_a_key_that_is_none_of_the_population_ends_the_run():
    """A key outside of the population ends the run: it is an error of the scenario."""

    def setup(sim):
        population = sim.population("all", 3, period="1h")
        sim.executor("a").schedule(sim.job("job", 1, population=population), "nobody")

    with pytest.raises((KeyError, ValueError), match="nobody"):
        live(setup)


def test_syncs_are_noted_at_their_ends():
    """Syncs are recorded at their ends with the time since the previous one; other jobs are not syncs."""
    made = []

    def setup(sim):
        population = sim.population("all", 1, period="1h")
        sync, other = (
            sim.job("sync", 10, population=population),
            sim.job("other", 5, population=population, is_sync=False),
        )
        executor = sim.executor("a")
        for job, delay in ((sync, 0), (sync, 100), (other, 200), (sync, 400)):
            executor.schedule(job, 0, delay=delay)
        made.append((sim.sources[0].meters["sync_interval"], population))

    live(setup)
    meter, population = made[0]
    member = population.members[0]
    assert [100.0, 300.0] == meter.values  # not counting the time until the first one
    assert (3, 0, 410.0, 300.0) == (member.syncs, member.failures, member.synced_at, member.longest)
    assert [90.0] == population.ages(500.0)


@pytest.mark.parametrize("how", ["cancelled", "timed out", "under way"])
def test_a_job_that_does_not_come_to_its_end_has_synced_nothing(how):
    """A job that is cancelled, times out or still runs has not synced its key."""
    made = []

    def setup(sim):
        population = sim.population("all", 1, period="1h")
        handle = sim.executor("a").schedule(
            sim.job("sync", 100, population=population), 0, run_timeout=30 if how == "timed out" else None
        )
        handle.add_done_callback(lambda handle: handle.cancelled() or handle.exception())
        if how == "cancelled":
            sim.at(20, handle.cancel)
        made.append(population)

    live(setup, 60)
    assert 0 == made[0].members[0].syncs


def test_jobs_that_work_on_a_key_at_the_same_time_are_conflicts():
    """Concurrent jobs of a key count as conflicts, and continue; one that begins as another ends is none."""
    made = []

    def setup(sim):
        population = sim.population("all", 2, period="1h")
        job = sim.job("job", 10, population=population)
        executor = sim.executor("a")
        for key, delay in ((0, 0), (1, 1), (0, 5), (0, 14), (0, 24), (1, 12)):
            executor.schedule(job, key, delay=delay)
        made.append((population, executor))

    live(setup)
    population, executor = made[0]
    assert (2, 6) == (population.conflict_count, executor.statistics().done)


def test_each_failure_is_an_error_of_its_own():
    """Each failure is a new error, so that tracebacks and memory do not grow."""
    errors = []

    async def work(executor, job):
        for _ in range(50):
            try:
                await executor.schedule(job)
            except JobFailedError as error:
                errors.append(error)

    live(lambda sim: sim.spawn(work(sim.executor("a"), sim.job("job", 1, failures=1.0))) and None)
    depths = []
    for error in errors:
        trace, depth = error.__traceback__, 0
        while trace is not None:
            trace, depth = trace.tb_next, depth + 1
        depths.append(depth)
    assert max(depths) < 20


def test_failures_of_jobs_are_no_news():
    """Failures of jobs are expected, and do not stop the run, observed or not."""

    def setup(sim):
        executor = sim.executor("a")
        job = sim.job("job", 1, failures=1.0)
        executor.schedule(job)
        executor.schedule_many(job, range(10))
        executor.call_later(5, job)

    sim = live(setup)
    assert [] == sim.events


# Events.


def test_calls_come_at_their_times():
    """Calls come at their times, and repeated ones without drift."""
    seen = []

    def setup(sim):
        sim.executor("a")
        sim.at(10, lambda: seen.append(("at", sim.now)))
        sim.every(0.1, lambda: seen.append(("tenth", sim.now)))
        sim.every("30m", lambda: seen.append(("half", sim.now)), first=60)

    live(setup)
    calls = {name: [when for each, when in seen if each == name] for name in ("at", "tenth", "half")}
    assert [10.0] == calls["at"]
    assert [60.0, 1860.0] == calls["half"]
    assert calls["tenth"] == [number * 0.1 for number in range(36_000)] + [3600.0] * (36_000 * 0.1 <= 3600)


@pytest.mark.parametrize(
    "call",
    [
        lambda sim: sim.at(-1, print),
        lambda sim: sim.at(math.nan, print),
        lambda sim: sim.at(math.inf, print),
        lambda sim: sim.at("noon", print),
        lambda sim: sim.at(1, None),
        lambda sim: sim.every(0, print),
        lambda sim: sim.every(-1, print),
        lambda sim: sim.every(math.nan, print),
        lambda sim: sim.every("soon", print),
        lambda sim: sim.every(1, None),
        lambda sim: sim.every(1, print, first=-1),
        lambda sim: sim.every(1, print, first=math.nan),
        lambda sim: sim.spawn(5),
        lambda sim: sim.arrive(Regular(1), sim.executor("b"), print, keys=[]),
        lambda sim: sim.outage(sim.population("p", 1, period=1, group=str), "nobody", 0, 1),
        lambda sim: sim.outage(sim.population("p", 1, period=1, group=str), "0", 5, 5),
        lambda sim: sim.outage(sim.population("p", 1, period=1, group=str), "0", 5, 4),
        lambda sim: sim.outage(sim.population("p", 1, period=1, group=str), "0", -1, 4),
        lambda sim: sim.outage(sim.population("p", 1, period=1, group=str), "0", math.nan, 4),
        lambda sim: sim.outage(sim.population("p", 1, period=1), "None", 1, 4),
    ],
)
def test_bad_input_is_refused(call):
    """Bad input is refused at the call."""

    def setup(sim):
        sim.executor("a")
        with pytest.raises((TypeError, ValueError)):
            call(sim)

    live(setup, 10)


def test_what_is_to_be_called_again_and_again_begins_now():
    """A repeated call without a first time begins now, also during the run."""
    seen = []

    def setup(sim):
        sim.executor("a")
        sim.at(1000, lambda: sim.every(10, lambda: seen.append(sim.now)))

    live(setup, 1050)
    assert len(seen) <= 6


@pytest.mark.parametrize("where", ["at", "every", "spawn", "call_soon", "then", "job"])
def test_an_error_of_the_scenario_ends_the_run(where):
    """An error of the scenario ends the run, wherever it is raised."""

    def fail(*_):
        raise KeyError("mine")

    async def spawned():
        await asyncio.sleep(5)
        fail()

    def setup(sim):
        executor = sim.executor("a")
        if where == "at":
            sim.at(5, fail)
        elif where == "every":
            sim.every(5, fail)
        elif where == "spawn":
            sim.spawn(spawned())
        elif where == "call_soon":
            sim.loop.call_soon(fail)
        elif where == "then":
            executor.schedule(sim.job("job", 1, then=fail))
        else:
            executor.schedule(fail)

    with pytest.raises(KeyError, match="mine"):
        live(setup, 60)


def test_what_is_spawned_runs_beside_all_else():
    """A spawned task runs beside all else, and is cancelled at the end of the run."""
    seen = []

    async def work(sim):
        try:
            while True:
                await asyncio.sleep(600)
                seen.append(sim.now)
        finally:
            seen.append("end")

    live(lambda sim: (sim.executor("a"), sim.spawn(work(sim))) and None, 1300)
    assert [600.0, 1200.0, "end"] == seen


def test_a_spawned_task_may_be_cancelled():
    """Cancelling a spawned task is not an error."""

    def setup(sim):
        sim.executor("a")
        task = sim.spawn(asyncio.sleep(1000))
        sim.at(10, task.cancel)

    live(setup)


def test_marks_are_noted_with_their_time():
    """Marks are recorded with their time, in order."""
    sim = live(lambda sim: (sim.executor("a"), sim.mark("begin"), sim.at(7, lambda: sim.mark("seven"))) and None)
    assert [(0.0, "begin"), (7.0, "seven")] == sim.events


# Arrivals.


def recording(keys=None, durations=None):
    found = None if durations is None else array("d", durations)
    return Recording(times=array("d", [0, 10, 10, 5000]), keys=keys, durations=found, begin=0.0, skipped=0)


@pytest.mark.parametrize("begin", [0, 100])
@pytest.mark.parametrize("place", ["executor", "fleet"])
def test_jobs_arrive_when_they_are_told_to(begin, place):
    """Jobs of each kind of arrivals arrive on time, across hours, from when they were requested."""
    made = {}
    kinds = {
        "regular": Regular(0.1),
        "poisson": Poisson(0.1),
        "daily": Daily({0: 0.1, 1: 0.02}),
        "recorded": Recorded(recording()),
        "again": Recorded(recording(), every=6000),
    }

    def setup(sim):
        executor = (
            sim.executor("a", pacing=Pacing.ON_TIME)
            if place == "executor"
            else sim.fleet("a", 3, pacing=Pacing.ON_TIME)
        )

        def start():
            for name, arrivals in kinds.items():
                made[name] = Starts(sim)
                sim.arrive(arrivals, executor, made[name])

        sim.at(begin, start)

    live(setup, 3 * HOUR)
    assert made["regular"].times == pytest.approx([10.0 * number for number in range(begin // 10, 1081)])
    assert [key for _, key in made["regular"].found] == list(range(1081 - begin // 10))
    assert len(made["poisson"].found) == pytest.approx(1080, abs=5 * math.sqrt(1080))
    assert len(made["daily"].found) == pytest.approx(360 + 144, abs=5 * math.sqrt(504))
    first = [0.0, 10.0, 10.0] if begin == 0 else []
    assert [*first, 5000.0] == made["recorded"].times
    assert [*first, 5000.0, 6000.0, 6010.0, 6010.0] == pytest.approx(made["again"].times)
    for starts in made.values():
        assert starts.times == sorted(starts.times)


def test_daily_arrivals_come_by_the_clock():
    """Daily arrivals follow the time of day: from a start at five, noon is after seven hours."""
    made = []

    def setup(sim):
        made.append(Starts(sim))
        sim.arrive(Daily({0: 0, 12: 0.1, 13: 0}), sim.executor("a", pacing=Pacing.ON_TIME), made[0])

    live(setup, 24 * HOUR, start=1_704_067_200 + 5 * HOUR)
    assert made[0].times
    assert 7 * HOUR <= min(made[0].times) < max(made[0].times) < 8 * HOUR


def test_arrivals_are_whose_they_were_recorded():
    """Arrivals have recorded keys, or keys drawn evenly from those given."""
    made = {}

    def setup(sim):
        executor = sim.executor("a")
        for name, keys, recorded in (("own", None, list("abca")), ("given", "xy", list("abca")), ("none", None, None)):
            made[name] = Starts(sim)
            sim.arrive(Recorded(recording(recorded)), executor, made[name], keys=keys)
        made["drawn"] = Starts(sim)
        sim.arrive(Regular(1), executor, made["drawn"], keys=range(4))

    live(setup, 2 * HOUR)
    assert list("abca") == [key for _, key in made["own"].found]
    assert {key for _, key in made["given"].found} <= set("xy")
    assert [0, 1, 2, 3] == [key for _, key in made["none"].found]
    counts = Counter(key for _, key in made["drawn"].found)
    assert all(counts[key] == pytest.approx(1800, abs=5 * math.sqrt(1800)) for key in range(4))


@pytest.mark.parametrize("place", ["executor", "fleet", "bounded"])
def test_recorded_arrivals_last_as_they_were_recorded(place):
    """Each arrival of a recording has its own duration, also where it is retried, has a key and a cost, or needs room."""
    told, ends, failed = [], [], []

    def setup(sim):
        options = {
            "pacing": Pacing.ON_TIME,
            "key_concurrency": 1,
            "retry": Retry(2, base=1e-6, cap=1e-6, on=(JobFailedError,)),
        }
        if place == "bounded":
            options["max_pending"] = 10
        executor = sim.fleet("a", 2, **options) if place == "fleet" else sim.executor("a", **options)
        job = sim.job(
            "job", "recorded", failures=lambda key: key == "c" and not failed and not failed.append(sim.now),
            then=lambda key: ends.append((sim.now, key)),
        )  # fmt: skip
        sim.arrive(
            Recorded(recording(list("abca"), [1, 2.5, 7, 0.25])), executor, job,
            key=lambda key: told.append(key) or key, cost=lambda key: {"a": 1, "b": 2, "c": 3}[key],
        )  # fmt: skip

    live(setup, 2 * HOUR)
    assert [("a", 1), ("b", 12.5), ("c", 10 + 7 + 7), ("a", 5000.25)] == [
        (key, pytest.approx(end)) for end, key in ends
    ]
    assert list("aabc") == sorted(told)


def test_recorded_durations_need_their_recording():
    """A job with recorded durations is refused other arrivals, and ends the run if it is called without one."""

    def refused(sim):
        job, executor = sim.job("job", "recorded"), sim.executor("a")
        for arrivals in (Regular(1), Recorded(recording())):
            with pytest.raises(ValueError, match="'recorded' is that of each recorded arrival"):
                sim.arrive(arrivals, executor, job)

    live(refused, 10)
    with pytest.raises(ValueError, match="'recorded' is that of each recorded arrival"):
        live(lambda sim: sim.executor("a").schedule(sim.job("job", "recorded")) and None, 10)


def test_arrivals_take_the_options_of_a_batch():
    """Arrivals take the options of a batch, such as ``expires``."""
    made = []

    def setup(sim):
        made.append(sim.executor("a", max_concurrency=1))
        sim.arrive(Regular(1), made[0], lambda key: Lasting(10), expires=0.5)

    live(setup, 100)
    assert made[0].statistics().expired >= 80


def test_memory_holds_a_minute_of_arrivals():
    """Only a minute of arrivals is in memory."""
    most = []

    def setup(sim):
        executor = sim.executor("a")
        sim.arrive(Regular(1), executor, lambda key: None)
        sim.every(607, lambda: most.append(executor.statistics().waiting))

    live(setup, 10 * HOUR)
    assert 40 < max(most) <= 61


# Outages.


def test_jobs_of_a_group_fail_while_it_is_out():
    """Jobs of a group fail during its outage after their time to wait, and others do not."""
    made = []

    def setup(sim):
        population = sim.population("all", 4, period="1h", group=lambda key: "ab"[key % 2])
        ends = []
        options = {"population": population, "then": lambda key: ends.append((key, sim.now, "done")),
                   "on_failure": lambda key: ends.append((key, sim.now, "failed")), "outage_duration": 7}  # fmt: skip
        job, own = sim.job("job", 1, **options), sim.job("own", 1, needs_group=False, **options)
        sim.outage(population, "a", 100, 200)
        executor = sim.executor("x", pacing=Pacing.ON_TIME)
        for each, key, delay in (
            (job, 0, 99),
            (job, 0, 100),
            (job, 1, 150),
            (own, 2, 150),
            (job, 0, 199),
            (job, 0, 200),
        ):
            executor.schedule(each, key, delay=delay)
        made.append((ends, population))

    sim = live(setup)
    ends, population = made[0]
    assert [
        (0, 100.0, "done"), (0, 107.0, "failed"), (1, 151.0, "done"), (2, 151.0, "done"), (0, 201.0, "done"),
        (0, 206.0, "failed"),
    ] == ends  # fmt: skip
    assert 2 == population.outage_count == population.members[0].failures
    assert [(100.0, "a is out"), (200.0, "a is back")] == sim.events


def test_jobs_under_way_as_an_outage_begins_go_on():
    """Jobs that run when an outage begins continue, and only those that start in it fail."""
    made = []

    def setup(sim):
        population = sim.population("all", 1, period="1h", group=lambda key: "a")
        sim.outage(population, "a", 100, 200)
        sim.executor("x", pacing=Pacing.ON_TIME).schedule(sim.job("job", 100, population=population), 0, delay=50)
        made.append(population)

    live(setup)
    assert (0, 1) == (made[0].members[0].failures, made[0].members[0].syncs)


def test_an_outage_that_cannot_be_changes_nothing():
    """A bad outage is refused, and changes nothing."""
    sim = Simulation()
    population = sim.population("all", 2, period="1h", group=lambda key: "ab"[key])
    with pytest.raises(ValueError, match="group must be one of the population all, a, b, got 'c'"):
        sim.outage(population, "c", 0, 1)
    assert {} == population.outages
    sim.close()


# Slots.


def test_slots_hold_every_key_once():
    """Each key is in one slot, and a slot has its begin and the weight of its keys."""
    made = []

    def setup(sim):
        sim.executor("a")
        population = sim.population("all", 1000, period="1h", weight=lambda key: 1 + key % 2)
        slots = CycleSlots("1h")
        made.append((slots, sim.note_slots(population, "own", slots)))
        sim.note_slots(population, "given", slots, lambda key: key % 2)

    sim = live(setup)
    slots, dealt = made[0]
    assert sorted(key for keys in dealt for key in keys) == list(range(1000))
    assert all(slots.slot_of(key) == slot for slot, keys in enumerate(dealt) for key in keys)
    assert [("own", slot, slot * slots.slot_seconds, len(keys)) for slot, keys in enumerate(dealt)] == [
        row[1:5] for row in sim.slots[: slots.count]
    ]
    assert [500, 500] + [0] * (slots.count - 2) == [row[4] for row in sim.slots[slots.count :]]
    assert [500.0, 1000.0] == [row[5] for row in sim.slots[slots.count : slots.count + 2]]


@pytest.mark.parametrize("case", ["twice", "foreign"])
def test_slots_that_cannot_be_written_are_refused(case):
    """Slots with a name in use, or of another simulation's population, are refused at once."""

    def setup(sim):
        sim.executor("a")
        population = sim.population("all", 10, period="1h")
        if case == "twice":
            sim.note_slots(population, "cycle", CycleSlots("1h"))
        else:
            population = Population("other", 10, period="1h")
        with pytest.raises(ValueError, match=".*"):
            sim.note_slots(population, "cycle", CycleSlots("1h"))

    live(setup)


# The end.


def test_time_that_has_passed_is_the_same_in_any_steps():
    """A simulation run in one call or in many steps gives the same result."""

    def setup_of(made):
        def setup(sim):
            population = sim.population("all", 20, period="10m")
            job = sim.job("job", Constant(3), failures=0.2, population=population)
            sim.arrive(Poisson(0.5), sim.executor("a", rate=1, max_concurrency=2), job, keys=list(range(20)))
            made.append(population)

        return setup

    first, second = [], []
    live(setup_of(first), 2 * HOUR)
    chance = random.Random(1)
    with world(setup_of(second)) as sim:
        while sim.now < 2 * HOUR:
            sim.run_until(min(2 * HOUR, sim.now + chance.expovariate(0.01)))
    for one, other in zip(first[0].members.values(), second[0].members.values(), strict=True):
        assert (one.syncs, one.failures, one.synced_at) == (other.syncs, other.failures, other.synced_at)


def test_what_is_closed_runs_no_more():
    """Closing ends all tasks without an error or warning, and nothing runs afterwards."""

    async def work():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise KeyError from None  # nobody observes it any more

    def setup(sim):
        executor = sim.executor("a", drain_timeout=5)
        executor.schedule_many(lambda key: Lasting(1000), range(100))
        executor.schedule(lambda: asyncio.sleep(1000))
        sim.spawn(work())

    sim = live(setup, 10)
    assert sim.loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        sim.run_until(20)


def test_jobs_in_threads_are_refused():
    """A job with ``in_thread`` fails: a simulation does not wait for threads."""
    handles = []

    def setup(sim):
        handles.append(sim.executor("a").schedule(lambda: None, in_thread=True))

    with world(setup) as sim:
        sim.run_until(10)
        with pytest.raises(RuntimeError, match="in a thread, because a simulation has none"):
            handles[0].result()


# Setups that take time.


def test_a_setup_may_go_on_for_ever():
    """A ``setup`` may continue for ever, and ends with the run."""
    seen = []

    async def setup(sim):
        executor = sim.executor("a")
        while True:
            seen.append(sim.now)
            await executor.schedule(sim.job(f"job {len(seen)}", 500))
            await asyncio.sleep(100)

    live(setup, HOUR)
    assert [600.0 * number for number in range(6)] == pytest.approx(seen[:6])


@pytest.mark.parametrize("is_late", [False, True])
def test_a_setup_that_waits_for_nothing_is_an_error(is_late):
    """A ``setup`` that waits when nothing can happen any more is an error."""

    async def setup(sim):
        sim.executor("a")
        if is_late:
            await asyncio.sleep(100)
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits forever"):
        live(setup, HOUR)


def test_an_error_of_a_setup_that_has_waited_is_raised():
    """An error of ``setup`` after it has waited is raised."""

    async def setup(sim):
        sim.executor("a")
        await asyncio.sleep(100)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        live(setup, HOUR)


@pytest.mark.parametrize("how", ["before its first step", "in a task of its own", "closed"])
def test_a_job_that_has_not_begun_holds_no_key(how):
    """A job that was cancelled before it began holds no key, so that later ones are not conflicts."""
    made = []

    def setup(sim):
        population = sim.population("all", 1, period="1h")
        job, executor = sim.job("job", 10, population=population), sim.executor("a")
        if how == "before its first step":
            handle = executor.schedule(job, 0, run_timeout=5)
            executor.schedule(lambda: handle.cancel() and None)
        elif how == "in a task of its own":
            sim.loop.create_task(job(0)).cancel()
        else:
            begun = job(0)
            begun.send(None)
            begun.close()
        executor.schedule(job, 0, delay=30)
        made.append(population)

    live(setup)
    assert (0, 0, 1) == (made[0].conflict_count, made[0].members[0].active, made[0].members[0].syncs)


def test_arrivals_that_find_no_room_are_counted():
    """Arrivals refused by a full backlog are counted, in executors and fleets, in total and by key."""
    for options in ({"max_pending": 5}, {"max_pending": 100, "key_max_pending": 5}):
        for is_fleet in (False, True):

            def setup(sim, options=options, is_fleet=is_fleet):
                common = {"rate": 1, "pacing": Pacing.ON_TIME, **options}
                executor = sim.fleet("a", 2, **common) if is_fleet else sim.executor("a", **common)
                terms = {"key": "all"} if "key_max_pending" in options else {}
                sim.arrive(Regular(2), executor, sim.job("job", 0), **terms)

            total = simulate(Made(setup), days=600 / 86_400).summary.total
            assert 600 + (10 if is_fleet else 5) == pytest.approx(total.enqueued, abs=8)
            assert 1200 == pytest.approx(total.enqueued + total.refused, abs=1)


def test_keys_of_arrivals_are_told_where_room_is_bounded_too():
    """Keys and costs of arrivals may be functions of the item, also with a bounded backlog."""
    for options in ({}, {"max_pending": 1000}):

        def setup(sim, options=options):
            executor = sim.executor("a", rate=100, pacing=Pacing.ON_TIME, key_concurrency=1, **options)
            sim.arrive(Regular(4), executor, sim.job("job", 10), key=lambda key: key, cost=lambda key: 1)

        assert 40 == pytest.approx(simulate(Made(setup), days=600 / 86_400).summary.total.executing_mean, abs=1)


def test_a_job_may_be_cancelled_as_it_begins():
    """A job may be cancelled by its own first call."""
    ends, handles = [], []

    def setup(sim):
        executor = sim.executor("a")
        job = lambda: Lasting(10, None, ends.append, lambda: handles[0].cancel())  # noqa: E731  # one expression
        handles.append(executor.schedule(job))

    live(setup, 60)
    assert handles[0].cancelled()
    assert [asyncio.CancelledError] == list(map(type, ends))


def test_a_cancelled_job_frees_its_key():
    """A cancelled job frees its key, so that a later one is not a conflict."""
    made = []

    def setup(sim):
        population = sim.population("all", 1, period="1h")
        job, executor = sim.job("job", 100, population=population), sim.executor("a")
        handle = executor.schedule(job, 0)
        sim.at(20, handle.cancel)
        executor.schedule(job, 0, delay=30)
        made.append(population)

    live(setup)
    assert (0, 1, 130.0) == (made[0].conflict_count, made[0].members[0].syncs, made[0].members[0].synced_at)


def test_time_has_an_end():
    """A time that is not finite is refused by ``run_until``."""
    with world(lambda sim: sim.executor("a") and None) as sim:
        for bad in (math.inf, math.nan):
            with pytest.raises(ValueError, match="must be finite"):
                sim.run_until(bad)
        sim.run_until(10)
        assert 10.0 == sim.now


def test_a_cycle_keeps_its_progress_in_memory(tmp_path, monkeypatch):
    """By default a cycle keeps its progress in memory, and finds nothing of earlier simulations."""
    monkeypatch.chdir(tmp_path)
    seen = []

    def setup(sim):
        sim.executor("a").every(cycle="1h", keys=lambda slot: [slot], fn=seen.append, slot_of=int)

    live(setup, 2 * HOUR)
    assert len(seen) > 10
    assert [] == list(tmp_path.iterdir())
