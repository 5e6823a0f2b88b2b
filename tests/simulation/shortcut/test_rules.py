"""The shortcut says which scenarios it does not compute, and why."""

import pytest

from ratelimited_executor import Pacing, Retry, Window
from ratelimited_executor.simulation import Poisson, Scenario
from ratelimited_executor.simulation.hours import HOUR_SECONDS, Shift
from ratelimited_executor.simulation.jobs import JobFailedError
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey


class Made(Scenario):
    """A scenario that a function sets up."""

    def __init__(self, setup) -> None:
        self._set_up = setup

    def setup(self, sim):
        return self._set_up(sim)


def survey(setup):
    sim = Survey(seed=0, interval=1.0)
    try:
        sim.set_up(Made(setup))
        return sim
    finally:
        sim.close()


def api(sim, **options):
    return sim.executor("api", **{"pacing": Pacing.ON_TIME, "max_concurrency": 2, **options})


def load(sim, *, job=None, executor=None, **options):
    sim.arrive(Poisson(1), executor or api(sim), job or sim.job("call", 1.0), **options)


async def later(sim):
    import asyncio

    load(sim)
    await asyncio.sleep(1)


RETRY = Retry(3, on=(JobFailedError,))

REFUSED = [
    (lambda sim: load(sim, executor=api(sim, key_rate=1)), "executor api limits keys"),
    (lambda sim: load(sim, executor=api(sim, max_pending=1)), "executor api limits what may wait"),
    (lambda sim: load(sim, executor=api(sim, policy=Window(), rate=5)), "executor api has policy"),
    (lambda sim: load(sim, executor=api(sim, rate=[5, "100/min"])), "executor api has more than one rate"),
    (lambda sim: load(sim, expires=5), "jobs of call have expires"),
    (lambda sim: load(sim, job=sim.job("call", 1.0, failures=lambda key: 0.5)), "the failures of call depend on more"),
    (lambda sim: load(sim, job=sim.job("call", 1.0, then=print)), "the ends of call have consequences"),
    (
        lambda sim: load(sim, executor=api(sim, retry=Retry(3, on=lambda error: True))),
        "executor api has a function that decides on retries",
    ),
    (lambda sim: load(sim, job=lambda key: None), "is a function, and not a kind of job"),
    (lambda sim: sim.fleet("api", 2, rate=5), "fleet api has several nodes"),
    (lambda sim: sim.population("accounts", 5, period=60), "accounts is a population"),
    (lambda sim: sim.at(5, print), "something changes in the course of a run: a call at a time"),
    (lambda sim: sim.every(5, print), "something changes in the course of a run: a repeated call"),
    (lambda sim: sim.offer(api(sim), sim.job("call", 1.0), 1), "the scenario offers jobs itself"),
    (lambda sim: sim.loop.call_later(5, print) and load(sim), "the scenario has a plan of its own beside arrivals"),
    (lambda sim: [api(sim).schedule(print)] and None, "executor api has tasks that did not arrive by the simulation"),
    (later, r"setup\(\) goes on while time passes"),
]


@pytest.mark.parametrize(("setup", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_refusal_says_why(setup, reason):
    """Each names the executor or the kind of job, where it concerns one."""
    with pytest.raises(NoShortcutError, match=reason):
        survey(setup)


def test_jobs_of_two_executors_are_refused():
    """Their waits would be measured in the order of two queues."""

    def setup(sim):
        job = sim.job("call", 1.0)
        load(sim, job=job)
        load(sim, job=job, executor=sim.executor("other", pacing=Pacing.ON_TIME))

    with pytest.raises(NoShortcutError, match="jobs of call arrive at two executors"):
        survey(setup)


def test_retries_at_two_executors_are_refused():
    """Both draw their pauses from one stream, in the order of all failures; retries are no obstacle where nothing fails."""

    def setup(sim, failures=0.0):
        for name in ("one", "two"):
            executor = sim.executor(name, retry=RETRY)
            sim.arrive(Poisson(1), executor, sim.job(name, 1.0, failures=failures))

    assert 2 == len(survey(setup).retries)
    with pytest.raises(NoShortcutError, match="jobs that fail are tried again at two executors"):
        survey(lambda sim: setup(sim, 0.1))


def test_what_arrives_is_kept_by_rank():
    """Feeds and batches, the more important with the smaller rank."""

    def setup(sim):
        executor, job = api(sim, retry=RETRY), sim.job("call", 1.0)
        load(sim, job=job, executor=executor, priority=3)
        sim.schedule_many(executor, job, "ab", delays=[2.0, 1.0])

    found = survey(setup)
    assert [(-3, 2), (0, 2)] == [each.rank for each in found.planned]
    assert [2.0, 1.0] == found.planned[1].dues


def test_settings_by_hour_are_kept():
    """All other calls in the course of a run are refused."""
    shift = Shift([], "rate", {0: 5}, None)

    def setup(sim):
        load(sim)
        sim.every(HOUR_SECONDS, shift, first=1800.0)

    assert [(1800.0, shift)] == survey(setup).shifts


def test_an_error_of_the_scenario_passes():
    """What setup() raises is not a refusal."""

    def setup(sim):
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        survey(setup)
