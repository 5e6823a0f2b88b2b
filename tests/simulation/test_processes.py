"""Processes that run tasks: what is prepared is there in each worker, and nothing that ends goes unnoticed."""

import os
import signal
import sys
import time

import pytest

from ratelimited_executor.simulation.processes import FORKS, LostWorkerError, Workers

pytestmark = pytest.mark.real_time("processes")

HELD = {}  # by group, with the process that has prepared it


class Doubling:
    """Tasks are a group and a number."""

    def group_of(self, task):
        return task[0]

    def prepare(self, tasks):
        HELD[tasks[0][0]] = os.getpid(), len(tasks)

    def run(self, task):
        group, number = task
        if number == "refuse":
            raise LookupError(group)
        if number == "refuse strangely":
            raise StrangeError(1, 2)
        if number == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == "wait":
            time.sleep(60)
        return 2 * number, os.getpid(), HELD.get(group)


class StrangeError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one, two):
        super().__init__("strange")


def results_of(tasks, count, **options):
    """Run all tasks; return their results by task."""
    found = {}
    with Workers(Doubling(), tasks, count, **options) as workers:
        while len(found) < len(tasks):
            found.update(workers.take(5))
    return found


def test_tasks_return_to_the_caller():
    """Each with its result, however many processes there are."""
    tasks = [(group, number) for group in "ab" for number in range(5)]
    for count in (1, 3):
        assert {task: 2 * task[1] for task in tasks} == {
            task: each[0] for task, each in results_of(tasks, count).items()
        }


def test_processes_may_be_spawned():
    """They do the same, without preparation."""
    found = results_of([("a", number) for number in range(4)], 2, forks=False)
    assert [0, 2, 4, 6] == [found["a", number][0] for number in range(4)]
    assert {None} == {held for _, _, held in found.values()}


@pytest.mark.skipif(not FORKS, reason="where processes are spawned, nothing is prepared")
def test_a_large_group_is_prepared_once():
    """All of its workers have been forked afterwards; a group that is no larger than the workers are is not prepared."""
    found = results_of([("a", number) for number in range(6)] + [("b", 0), ("b", 1)] + [("c", n) for n in range(3)], 2)
    pids = {pid for _, pid, _ in found.values()}
    by_group = {name: {held for (group, _), (_, _, held) in found.items() if group == name} for name in "abc"}
    [(template, count)] = by_group["a"]
    assert (6, {None}, {(template, 3)}) == (count, by_group["b"], by_group["c"])
    assert template not in pids | {os.getpid()}
    assert len(pids) <= 6


def test_errors_are_raised_again():
    """With the place where they were raised; one that cannot be sent is described."""
    with pytest.raises(LookupError, match="a") as error:
        results_of([("a", "refuse")], 1)
    assert "raise LookupError(group)" in str(error.value.__cause__)
    with pytest.raises(RuntimeError, match="StrangeError: strange"):
        results_of([("a", "refuse strangely")], 1)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_worker_that_is_killed_is_an_error():
    """It names the task."""
    with pytest.raises(LostWorkerError, match=r"exit code -9 while it ran \('a', 'die'\)"):
        results_of([("a", "die"), ("a", 1)], 1)


def test_leaving_early_ends_everything():
    """A task that goes on is not waited for."""
    begin = time.monotonic()
    with Workers(Doubling(), [("a", 1), ("a", "wait"), ("a", 2)], 2) as workers:
        assert [("a", 1)] == [task for task, _ in [next(workers.take(30))]]
    assert time.monotonic() - begin < 50
