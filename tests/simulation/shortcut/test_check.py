"""A run by the shortcut is held against the executor, and any other rule is found."""

import pytest

from ratelimited_executor import Pacing, Retry
from ratelimited_executor.simulation import JobFailedError, LogNormal, Objective, Poisson, Scenario, simulate
from ratelimited_executor.simulation.shortcut import check
from ratelimited_executor.simulation.shortcut import run as run_module
from ratelimited_executor.simulation.shortcut.check import ShortcutError, checked_run
from ratelimited_executor.simulation.shortcut.passing import _Passing
from ratelimited_executor.simulation.shortcut.queued import _Queued
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError


RETRY = Retry(3, base="100ms", on=JobFailedError)


class Load(Scenario):
    """Two priorities with few workers, and perhaps a rate."""

    def __init__(self, rate=None, **options) -> None:
        self.options = options if rate is None else {"rate": rate, **options}

    def setup(self, sim) -> None:
        executor = sim.executor("api", **{"max_concurrency": 3, "pacing": Pacing.ON_TIME, **self.options})
        for name, priority in (("low", 0), ("high", 1)):
            job = sim.job(name, LogNormal(mean=1.2, p90=2.4), failures=0.1)
            sim.arrive(Poisson(1.3), executor, job, priority=priority)


def checked(days=0.05, rate=5, **options):
    return checked_run(lambda: Load(rate, **options), seed=3, days=days, step=60.0, warm_up=0.0)


def test_the_first_starts_are_checked():
    """At least 2,000 starts, of which 200 waited."""
    found = checked()
    assert 2000 <= found.job_count < 2600
    assert found.seconds < 0.05 * 86_400
    assert found.summary.total.started > found.job_count


def test_a_short_run_is_left_to_the_executor():
    """The check would take longer."""
    with pytest.raises(NoShortcutError, match="runs of fewer than 8,000 jobs take no longer with the executor"):
        checked(days=0.005)


def test_a_run_of_few_starts_is_checked_from_end_to_end(monkeypatch):
    """A run with fewer starts than are checked is checked as a whole."""
    monkeypatch.setattr(check, "JOB_COUNT_MIN", 0)
    found = checked(days=0.005)
    assert (found.summary.total.started, 432.0) == (found.job_count, found.seconds)


def _without_permits(self, now):
    queue, self._queue = self._queue, None
    _look(self, now)
    self._queue = queue


def _one_more(self, now):
    self._workers += 1
    _look(self, now)
    self._workers -= 1


def _lowest_first(self, now):
    self._ready.reverse()
    _start(self, now)
    self._ready.reverse()


def _a_bit_late(self, now):
    _start(self, now * (1 + 2**-52))


_start, _look = _Passing._start, _Passing._look


@pytest.mark.parametrize(
    ("method", "mutant", "rate"),
    [
        ("_start", _lowest_first, 5), ("_start", _a_bit_late, 5), ("_look", _without_permits, 5), ("_look", _one_more, None),
    ],
)  # fmt: skip
def test_another_rule_is_found(monkeypatch, method, mutant, rate):
    """The error names the first job that differs, what differs, and both values."""
    monkeypatch.setattr(_Passing, method, mutant)
    monkeypatch.setattr(
        run_module, "pass_jobs",
        lambda inflows, workers, queue, moments, is_step, taking, count: (
            _Passing(inflows, workers, queue, count).run(moments, is_step, taking)
        ),
    )  # fmt: skip
    with pytest.raises(
        ShortcutError, match=r"job \d+, (low|high) \d+: its \w+ is .+ by the shortcut, and .+ by the executor"
    ):
        checked(rate=rate)


def _without_retries(self, now, number, index):
    return False


def _forgetful(self, now, number, index):
    is_again = _try_again(self, now, number, index)
    self._failures.clear()
    return is_again


def _never_asked_at_ends(self, now, number, index, *, is_failed):
    self._is_full = False
    _end(self, now, number, index, is_failed=is_failed)


_try_again, _end = _Queued._try_again, _Queued._end


@pytest.mark.parametrize(
    ("method", "mutant"),
    [("_try_again", _without_retries), ("_try_again", _forgetful), ("_end", _never_asked_at_ends)],
)
def test_another_rule_is_found_where_the_queue_is_asked(monkeypatch, method, mutant):
    """Jobs that are spread, wait for workers, and are tried again."""
    assert 2000 <= checked(pacing=Pacing.SPREAD, retry=RETRY).job_count < 2600
    monkeypatch.setattr(_Queued, method, mutant)
    monkeypatch.setattr(run_module, "pass_by_queue", lambda *of: _Queued(*of[:6], of[9]).run(*of[6:9]))
    with pytest.raises(ShortcutError, match="by the shortcut"):
        checked(pacing=Pacing.SPREAD, retry=RETRY)


def test_other_figures_are_found(monkeypatch):
    """Equal starts with other sums are an error as well."""
    monkeypatch.setattr(run_module, "_dues_of_waiting", lambda inflow, time: [time - 100.0] * 50)

    class Promising(Load):
        def setup(self, sim):
            super().setup(sim)
            executor = sim.executor("other", pacing=Pacing.ON_TIME)
            sim.arrive(Poisson(1), executor, sim.job("call", 1.0, objectives=run_objective()))

    with pytest.raises(ShortcutError, match="by the shortcut the figures are"):
        checked_run(Promising, seed=3, days=0.05, step=60.0, warm_up=0.0)


def run_objective():
    from ratelimited_executor.simulation import Objective

    return Objective("1s")


class Overfull(Scenario):
    """More calls at once than a worker can do in days."""

    def setup(self, sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        sim.schedule_many(executor, sim.job("call", 6.0, objectives=Objective("6h")), range(20_000))


@pytest.mark.parametrize(("days", "expected"), [(0.2, (0, 0, 1)), (1.0, (1, 1, 0)), (1.3, (2, 2, 0))])
def test_what_waits_at_the_end_is_judged_as_by_the_executor(days, expected):
    """Not decided, late at the end of the run, and late in each period."""
    by_executor = simulate(Overfull(), seed=1, days=days).summary.jobs_by_kind["call"].objectives
    computed = checked_run(Overfull, seed=1, days=days, step=60.0, warm_up=0.0).summary.jobs_by_kind["call"].objectives
    assert by_executor == computed
    assert expected == (computed[0].periods, computed[0].missed, computed[0].undecided)
