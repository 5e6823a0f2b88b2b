"""Ready tasks by priority and due time, and in turn by key, as claims alternate."""

import random

from ratelimited_executor._core.durable.ready import ReadyTasks, Task
from ratelimited_executor._core.durable.tasks import Claim, DurableState, NewTask, Turns

COUNT = 300


def filled(seed):
    """Return ready tasks of a few keys and priorities, and all tasks by number."""
    draw = random.Random(seed)
    tasks = {}
    ready = ReadyTasks(tasks)
    for number in range(COUNT):
        new = NewTask(id=str(number), name="f", key=draw.choice((None, '"a"', '"b"')), priority=draw.choice((0.0, 1.0)))
        task = tasks[number] = Task(number, new, 0, was_due=True, state=DurableState.READY, due_us=draw.randrange(9))
        ready.push(task)
    return ready, tasks


def taken(ready, turns, count=7):
    """Take some tasks, as a claim does."""
    taking = ready.take(10, Claim(owner="o", count=count, turns=turns))
    for task in taking.taken:
        task.state = DurableState.CLAIMED
    return taking


def test_claims_of_both_kinds_alternate():
    """Claims by due time and in turn take every task once, those of the larger priority first."""
    ready, tasks = filled(1)
    found = []
    for n in range(COUNT):
        taking = taken(ready, Turns(each=n % 3 + 1) if n % 2 else None)
        found += taking.taken
        if not taking.taken:
            break
    assert sorted(tasks) == sorted(task.number for task in found)
    priorities = [task.new.priority for task in found]
    assert priorities == sorted(priorities, reverse=True)


def test_tasks_that_have_left_are_passed_over():
    """A task that is no longer ready, or is due at another time, is not taken from where it was."""
    for turns in (None, Turns(each=COUNT)):
        ready, tasks = filled(2)
        taken(ready, turns, count=1)
        for number in range(0, COUNT, 2):
            tasks.pop(number)
        for number in range(1, COUNT, 4):
            tasks[number].state = DurableState.DEAD
        left = {number for number, task in tasks.items() if task.state is DurableState.READY}
        for kind in (turns, None, Turns(each=COUNT)):
            taking = taken(ready, kind, count=20)
            assert 20 == len(taking.taken)
            left -= {task.number for task in taking.taken}
            assert {number for number, task in tasks.items() if task.state is DurableState.READY} == left


def test_turns_go_round_from_a_key():
    """Keys follow each other from the one after that was named, and the first follows the last."""
    ready, _ = filled(3)
    order = []
    for after in ("", " ", '"a"', '"b"'):
        taking = taken(ready, Turns(after={1.0: after}), count=9)
        assert taking.is_more
        order.append([task.new.key for task in taking.taken])
    assert [[None, '"a"', '"b"'], ['"a"', '"b"', None], ['"b"', None, '"a"'], [None, '"a"', '"b"']] == order
