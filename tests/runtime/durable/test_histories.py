"""Random histories of processes that share a store, and some with a rule broken on purpose, which must be found."""

import os
from collections import Counter

import pytest

from ratelimited_executor._core.durable import table
from ratelimited_executor._core.durable.ready import Task
from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._runtime.durable.saving import Saving

from .histories import history_of

COUNT = int(os.environ.get("DURABLE_HISTORIES", "10"))


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_runs_twice_at_once() -> None:
    """No task is lost or runs twice at once, although processes are killed, hang, or cannot reach the store."""
    faults, runs = Counter(), 0
    for seed in range(COUNT):
        history = history_of(seed)
        assert [] == history.wrong, seed
        faults += history.faults
        runs += history.runs
    assert runs > 50 * COUNT
    assert {"kill", "hang, one", "away", "mute, one", "late", "step"} <= set(faults)


def end_without_token(monkeypatch) -> None:
    """Let any process that has ever claimed a task end it."""
    finish = TaskTable._finish_one

    def trusting(self, now_us, outcome) -> bool:
        task = self._tasks.get(outcome.ref.number)
        if task is not None and task.state is DurableState.CLAIMED:
            outcome = outcome._replace(ref=outcome.ref._replace(token=task.token))
        return finish(self, now_us, outcome)

    monkeypatch.setattr(TaskTable, "_finish_one", trusting)


def rescue_by_age(monkeypatch) -> None:
    """Give a task that was claimed a second ago to others, although its process still beats."""
    claim, beat = TaskTable.claim, TaskTable.beat

    def noting(self, now_us, asked):
        claims = claim(self, now_us, asked)
        for each in claims.tasks if claims else ():
            self._tasks[each.ref.number].put_us = now_us
        return claims

    def rescuing(self, now_us, owner):
        for each in self._owners.values():
            for task in list(each.claimed.values()):
                if task.put_us + 1_000_000 < now_us:
                    self._let_go(task)
                    self._enter(task, DurableState.READY)
        return beat(self, now_us, owner)

    monkeypatch.setattr(TaskTable, "claim", noting)
    monkeypatch.setattr(TaskTable, "beat", rescuing)


def lane_without_lease(monkeypatch) -> None:
    """Let a lane continue while its first task is claimed."""
    giving = property(lambda head: head.state in (DurableState.SCHEDULED, DurableState.CLAIMED))
    monkeypatch.setattr(Task, "gives_way", giving)


def leases_by_the_clock(monkeypatch) -> None:
    """Let a step of the clock end leases."""
    monkeypatch.setattr(
        table, "vouched", lambda vouched_us, beat_us, now_us, _: vouched_us + max(0, now_us - (beat_us or now_us))
    )


def claims_that_stay(monkeypatch) -> None:
    """Leave the claims of a lost process as they are."""
    give_back = TaskTable._give_back

    def keeping(self, now_us, owner, *, is_lost) -> None:
        if not is_lost:
            give_back(self, now_us, owner, is_lost=is_lost)

    monkeypatch.setattr(TaskTable, "_give_back", keeping)


def join_that_takes_over_nothing(monkeypatch) -> None:
    """Give back what a process holds when it continues as another owner."""
    join = TaskTable.join

    def forgetful(self, now_us, owner, lease_us, *, former="", held=()):
        return join(self, now_us, owner, lease_us, former=former)

    monkeypatch.setattr(TaskTable, "join", forgetful)


def join_that_gives_back_nothing(monkeypatch) -> None:
    """Let a new owner keep the claims of which its process has never heard, and renew their lease."""
    join, beat = TaskTable.join, TaskTable.beat

    def keeping(self, now_us, owner, lease_us, *, former="", held=()):
        is_kept = former in self._owners or owner in self._owners
        if former in self._owners:
            for task in self._owners[former].claimed.values():
                task.owner = owner
            self._owners[owner] = self._owners.pop(former)
        return join(self, now_us, owner, lease_us) or is_kept

    def quiet(self, now_us, owner):
        answer = beat(self, now_us, owner)
        return answer and answer._replace(claimed_count=0)

    monkeypatch.setattr(TaskTable, "join", keeping)
    monkeypatch.setattr(TaskTable, "beat", quiet)


def ends_without_their_states(monkeypatch) -> None:
    """Write states with beats alone, and not before the ends of their claims."""
    write = Saving.write

    async def rarely(self, outcomes=None) -> None:
        if outcomes is None:
            await write(self)

    monkeypatch.setattr(Saving, "write", rarely)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (end_without_token, 502),
        (rescue_by_age, 502),
        (lane_without_lease, 512),
        (leases_by_the_clock, 525),
        (claims_that_stay, 511),
        (join_that_takes_over_nothing, 501),
        (join_that_gives_back_nothing, 512),
        (ends_without_their_states, 512),
    ],
)
def test_broken_rule_is_found(monkeypatch, broken, first) -> None:
    """The broken rule is found by the history that once found it, or, if histories have changed, by one of many."""
    broken(monkeypatch)
    for seed in [first, *range(500, 800)]:
        try:
            if history_of(seed).wrong:
                return
        except (KeyError, AssertionError, ExceptionGroup):
            return
    pytest.fail("not found")
