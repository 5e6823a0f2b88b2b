"""The rules of a store of durable tasks, as timelines; random programs over them are in ``stores/tasks``."""

import pytest

from ratelimited_executor._core.durable.table import REMEMBERED_US, TaskTable
from ratelimited_executor._core.durable.tasks import (
    Beat,
    Claim,
    Duplicate,
    DurableState,
    End,
    NewTask,
    OnDuplicate,
    Ref,
    TaskOutcome,
    UniqueKey,
)

S = 1_000_000
NOW = 1_000_000 * S
LEASE = 15 * S


class Store:
    """A table with a clock, so that tests read as timelines."""

    def __init__(self) -> None:
        self.table = TaskTable()
        self.now = NOW
        self.join("a")

    def join(self, owner) -> None:
        self.table.join(self.now, owner, LEASE)

    def put(self, *ids, **options) -> list[bool]:
        return self.table.put(self.now, [NewTask(id=id, name="f", **options) for id in ids])

    def claim(self, count=10, owner="a", **options):
        """Return the ids and the claims of tasks; None if the lease has ended."""
        claims = self.table.claim(self.now, Claim(owner=owner, count=count, **options))
        return None if claims is None else {task.id: task.ref for task in claims.tasks}

    def end(self, ref, end=End.DONE, **options) -> bool:
        [is_in_force] = self.table.finish(self.now, [TaskOutcome(ref, end, **options)])
        return is_in_force

    def beat(self, owner="a"):
        return self.table.beat(self.now, owner)

    def state(self, id):
        [row] = self.table.find([id])
        return None if row is None else row.state


@pytest.fixture
def store():
    """A table which an owner has joined."""
    return Store()


def test_a_token_rises_with_each_claim_and_an_old_one_changes_nothing(store):
    """A token rises with each claim, and an owner with an old one neither ends, delays nor releases the task."""
    store.put("x")
    old = store.claim()["x"]
    assert store.end(old, End.RELEASED)
    new = store.claim()["x"]
    assert Ref(old.number, old.token + 1) == new
    for end in End:
        assert not store.end(old, end)
    assert DurableState.CLAIMED == store.state("x")
    assert store.end(new)
    assert not store.end(new)
    assert store.state("x") is None


def test_numbers_are_never_used_twice(store):
    """Numbers are never reused, since a claim of a deleted task would fit the new one."""
    store.put("x")
    old = store.claim()["x"]
    store.end(old)
    store.put("y")
    assert old.number < store.claim()["y"].number


def test_id_that_was_chosen_is_remembered_for_a_day(store):
    """An id given by the user is remembered for a day of vouched time, which a clock step does not end."""
    store.put("mine", is_named=True)
    assert [False] == store.put("mine", is_named=True)
    store.end(store.claim()["mine"])
    assert [False] == store.put("mine", is_named=True)
    store.now += 100 * REMEMBERED_US
    store.beat()
    assert [False] == store.put("mine", is_named=True)
    for _ in range(REMEMBERED_US // (LEASE // 3) + 1):
        store.now += LEASE // 3
        store.beat()
    assert [True] == store.put("mine", is_named=True)


def test_cancelled_id_may_be_put_anew(store):
    """An id whose task was cancelled before it ran may be put again; a claimed task is only marked."""
    store.put("x", "y", is_named=True)
    store.table.cancel(store.now, ["x"])
    assert [True] == store.put("x", is_named=True)
    ref = store.claim()["y"]
    assert [DurableState.CLAIMED] == store.table.cancel(store.now, ["y"])
    assert Beat((ref,), 2) == store.beat()
    assert store.end(ref, End.RETRY)
    assert [True] == store.put("y", is_named=True)


def test_lease_that_is_not_renewed_ends_and_its_claims_are_given_back(store):
    """Claims of a lease that is not renewed are given back by the beats of others, and its owner changes nothing."""
    store.join("b")
    store.put("x", "y")
    ref = store.claim(1)["x"]
    for _ in range(3):
        assert DurableState.CLAIMED == store.state("x")
        store.beat("b")
        store.now += LEASE // 3
    store.beat("b")
    assert DurableState.READY == store.state("x")
    assert not store.end(ref)
    assert store.claim() is None
    assert store.beat() is None
    [row] = store.table.find(["x"])
    assert 1 == row.lost_count
    assert {"x", "y"} == set(store.claim(owner="b"))


@pytest.mark.parametrize("step", [3600 * S, -3600 * S, 10_000 * 86_400 * S])
def test_clock_that_is_set_ends_no_lease(store, step):
    """A step of the clock counts as at most a third of a lease, and so ends none."""
    store.join("b")
    store.put("x")
    store.claim()
    store.beat("b")
    store.now += step
    store.beat("b")
    assert DurableState.CLAIMED == store.state("x")
    assert () == store.beat("a").cancelled


def test_leaving_gives_back_and_counts_nothing(store):
    """Leaving gives claims back without counting an attempt or a loss."""
    store.put("x")
    store.claim()
    store.table.leave(store.now, "a")
    [row] = store.table.find(["x"])
    assert (DurableState.READY, 0, 0) == (row.state, row.attempt_count, row.lost_count)
    store.table.leave(store.now, "a")
    assert store.claim() is None


def test_nothing_is_given_back_for_its_age(store):
    """A task may run for a week as long as its owner beats."""
    store.put("x")
    store.claim()
    for _ in range(1000):
        store.now += 600 * S
        store.beat()
    assert DurableState.CLAIMED == store.state("x")


def test_claims_by_priority_then_due_then_number(store):
    """Due tasks are claimed by priority, then due time, then number."""
    store.put("late", delay_us=5 * S)
    store.put("early", delay_us=2 * S)
    store.put("now", "too")
    store.put("important", priority=1)
    store.put("never", delay_us=100 * S)
    store.now += 10 * S
    assert ["important", "now", "too", "early", "late"] == list(store.claim())


def test_claims_ahead_of_time_but_not_in_lanes(store):
    """Tasks are claimed ahead of their time only without a lane, where they would delay tasks that are due."""
    store.put("free", delay_us=2 * S)
    store.put("head", delay_us=2 * S, lane="l")
    claims = store.table.claim(store.now, Claim(owner="a", count=9, ahead_us=3 * S))
    assert [("free", 2 * S)] == [(task.id, task.in_us) for task in claims.tasks]
    assert 2 * S == claims.next_in_us
    store.put("now", lane="l")
    assert ["now"] == list(store.claim())


def test_what_is_left_to_others_stays(store):
    """Tasks of unknown functions or full keys, or of too low a priority, are left to others."""
    store.put("f1")
    store.put("k", key='"k"')
    store.put("low", priority=-1)
    claim = {"unknown": frozenset({("f", 1)})}
    assert {} == store.claim(**claim)
    assert {"f1": Ref(1, 1)} == store.claim(full_keys=frozenset({'"k"'}), above=-1)
    assert ["k", "low"] == list(store.claim())


def test_expired_is_never_claimed(store):
    """An expired task is deleted, counted and never claimed; each attempt has its own time to expire."""
    store.put("x", "y", expires_us=5 * S)
    ref = store.claim(1)["x"]
    store.now += 4 * S
    store.end(ref, End.RETRY, delay_us=S)
    store.now += 5 * S
    claims = store.table.claim(store.now, Claim(owner="a", count=9))
    assert (["x"], 1) == ([task.id for task in claims.tasks], claims.expired_count)
    assert S == claims.tasks[0].expires_in_us


def test_lane_goes_on_in_the_order_of_the_puts_though_the_clock_is_set_back(store):
    """Tasks of a lane run one at a time in the order of their puts, also after the clock was set back."""
    store.put("one", "two", lane="l")
    store.now -= 3600 * S
    store.put("three", lane="l")
    ran = []
    while claimed := store.claim():
        [(id, ref)] = claimed.items()
        assert {} == store.claim()
        ran.append(id)
        store.end(ref)
    assert ["one", "two", "three"] == ran
    assert {} == store.table._lanes


def test_head_that_is_tried_again_blocks_or_not(store):
    """A head that is retried blocks its lane or gives way, as the put asked for."""
    for is_blocking, follows in ((True, []), (False, ["next"])):
        lane = f"l{is_blocking}"
        store.put(f"{lane} head", "next" + lane, lane=lane, is_blocking=is_blocking)
        store.end(store.claim()[f"{lane} head"], End.RETRY, delay_us=9 * S)
        assert [each + lane for each in follows] == list(store.claim())


def test_a_snoozed_head_blocks_or_not(store):
    """A snoozed head is due again without an attempt, and blocks its lane or gives way, as if it were retried."""
    for is_blocking in (True, False):
        lane = f"l{is_blocking}"
        store.put(f"{lane} head", "next" + lane, lane=lane, is_blocking=is_blocking)
        store.end(store.claim()[f"{lane} head"], End.SNOOZED, delay_us=9 * S)
        store.put("third" + lane, lane=lane, delay_us=S)
        store.now += 2 * S
        ran = []
        while claimed := store.claim():
            [(id, ref)] = claimed.items()
            ran.append(id)
            store.end(ref)
            store.now += (9 if is_blocking else 1) * S
        assert ([] if is_blocking else ["next" + lane, "third" + lane]) == ran
        store.now += 9 * S
        [row] = store.table.find([f"{lane} head"])
        assert (0, "") == (row.attempt_count, row.error)
        assert f"{lane} head" == next(iter(store.claim()))


def test_a_head_that_was_requeued_keeps_its_lane_when_it_is_snoozed(store):
    """A dead letter that was requeued and is snoozed then goes before the tasks that waited behind it."""
    store.put("x", "y", lane="l")
    store.now += S
    store.end(store.claim()["x"], End.RETRY, delay_us=S)
    store.now += S
    store.end(store.claim()["x"], End.DEAD)
    store.table.requeue(store.now, ["x"])
    store.end(store.claim()["x"], End.SNOOZED, delay_us=9 * S)
    assert {} == store.claim()
    store.now += 9 * S
    assert ["x"] == list(store.claim())


def test_dead_letters_block_their_lane_until_somebody_decides(store):
    """A dead letter blocks its lane until it is requeued, and goes first, or is cancelled."""
    store.put("x", "y", lane="l")
    store.end(store.claim()["x"], End.DEAD, error="boom")
    assert {} == store.claim()
    assert [DurableState.DEAD, DurableState.BEHIND, None] == store.table.requeue(store.now, ["x", "y", "z"])
    store.end(store.claim()["x"], End.DEAD)
    store.table.cancel(store.now, ["x"])
    assert ["y"] == list(store.claim())


def test_what_was_put_aside_is_revived_by_who_knows_it(store):
    """Tasks set aside are revived by an owner that knows their function, in its queue only."""
    store.put("x")
    store.end(store.claim()["x"], End.UNKNOWN)
    assert {} == store.claim()
    assert 0 == store.table.revive("other", [("f", 1)])
    assert 0 == store.table.revive("default", [("f", 2), ("g", 1)])
    assert 1 == store.table.revive("default", [("f", 1)])
    assert ["x"] == list(store.claim())


def test_queues_are_claimed_apart(store):
    """Queues are claimed separately, also by the same owner."""
    store.put("mail", queue="mail")
    assert {} == store.claim()
    assert ["mail"] == list(store.claim(queue="mail"))


def test_rows_are_listed_in_pages(store):
    """Rows are listed in pages by number."""
    store.put(*"abcde")
    store.claim(2)
    assert ["c", "d"] == [row.id for row in store.table.rows(None, after=2, limit=2)]
    assert ["c"] == [row.id for row in store.table.rows(DurableState.READY, after=0, limit=1)]
    assert 3 == store.table.counts()[DurableState.READY]


def unique(key="u", **options):
    """Return the options of a task with a unique key."""
    return {"unique": UniqueKey(key, **options), "is_named": "period_us" in options}


def test_unique_key_counts_while_its_task_waits_or_runs(store):
    """A unique put is a duplicate while its task waits, runs or is retried, and not once that has ended, died or expired."""
    assert [True, Duplicate("x", False)] == store.put("x", "y", **unique())
    assert [True] == store.put("z", **unique("other"))
    ref = store.claim(1)["x"]
    assert [Duplicate("x", False)] == store.put("y", **unique())
    store.end(ref, End.RETRY, delay_us=S)
    assert [Duplicate("x", False)] == store.put("y", **unique())
    store.now += S
    store.end(store.claim()["x"], End.DEAD)
    assert [True] == store.put("y", **unique(), expires_us=S)
    store.now += S
    assert [True] == store.put("w", **unique())
    store.end(store.claim()["w"])
    assert [True] == store.put("v", **unique())


def test_cancelled_task_does_not_count(store):
    """A cancelled task is no duplicate, within its period or while its process still runs it."""
    store.put("x", **unique(period_us=9 * S))
    store.table.cancel(store.now, ["x"])
    assert [True] == store.put("y", **unique(period_us=9 * S))
    ref = store.claim()["y"]
    store.table.cancel(store.now, ["y"])
    assert [True] == store.put("z", **unique(period_us=9 * S))
    assert store.end(ref)
    assert [Duplicate("z", False)] == store.put("w", **unique(period_us=9 * S))


def test_period_begins_with_the_put_and_outlasts_the_task(store):
    """A period begins with a put that creates a task, in no bucket, and its end or death changes nothing."""
    options = unique(period_us=10 * S)
    store.now += 9 * S
    store.put("x", **options)
    store.end(store.claim()["x"])
    store.now += 10 * S - 1
    assert [Duplicate("x", False)] == store.put("y", **options)
    assert [True] == store.put("w", **unique())  # without a period, only what exists counts
    store.end(store.claim()["w"])
    store.now += 1
    assert [True] == store.put("y", **options)
    store.end(store.claim()["y"], End.DEAD)
    assert [Duplicate("y", False)] == store.put("z", **options)
    store.now -= 3600 * S  # a clock that is set back ends the period, and nothing is refused for an hour
    assert [True] == store.put("z", **options)


def test_claimed_task_does_not_count_if_not_asked_for(store):
    """Without ``while_running``, one task is put beside a claimed one, also if that comes back to wait."""
    options = unique(while_running=False)
    store.put("x", **options)
    ref = store.claim()["x"]
    assert [True, Duplicate("y", False)] == store.put("y", "z", **options)
    store.end(ref, End.RETRY)
    assert [Duplicate("y", False)] == store.put("z", **options)
    assert {"x", "y"} == set(store.claim())


def test_replaced_task_has_the_last_arguments_and_the_largest_priority(store):
    """REPLACE changes arguments, cost and a smaller priority, and keeps everything else; a claimed task is not changed."""
    options = unique(on_duplicate=OnDuplicate.REPLACE)
    store.put("x", "later", body=b"1", priority=1.0, **options)
    store.put("between", priority=2.0)
    assert [Duplicate("x", True)] == store.put("y", body=b"2", cost="3", priority=0.0, delay_us=S, **options)
    assert [Duplicate("x", True)] == store.put("y", body=b"4", cost="5", priority=3.0, delay_us=S, **options)
    [claimed, other] = store.table.claim(store.now, Claim(owner="a", count=9)).tasks
    assert ("x", b"4", "5", 3.0, "between") == (claimed.id, claimed.body, claimed.cost, claimed.priority, other.id)
    assert [Duplicate("x", False)] == store.put("y", **unique(on_duplicate=OnDuplicate.REPLACE))


def test_debounced_task_is_due_when_the_last_put_says(store):
    """DEBOUNCE moves the due time, at most to its limit, and leaves a task alone that waits for another attempt."""
    options = unique(on_duplicate=OnDuplicate.DEBOUNCE, while_running=False, delay_max_us=20 * S)
    began = store.now
    store.put("x", delay_us=5 * S, expires_us=S, **options)
    for due in (9, 13, 17, 20, 20):
        store.now += 4 * S
        assert [Duplicate("x", True)] == store.put("y", body=b"new", delay_us=5 * S, **options)
        [row] = store.table.find(["x"])
        assert (began + due * S, DurableState.SCHEDULED) == (row.due_us, row.state) or store.now == began + 20 * S
    ref = store.claim()["x"]
    store.end(ref, End.RETRY, delay_us=60 * S)
    assert [Duplicate("x", True)] == store.put("y", body=b"newer", **options)
    [row] = store.table.find(["x"])
    assert (store.now + 60 * S, b"newer") == (row.due_us, row.body)


def test_debounced_task_gives_way_in_its_lane(store):
    """A debounced head of a lane lets the next task go first, and comes in its turn."""
    options = unique(on_duplicate=OnDuplicate.DEBOUNCE, while_running=False)
    store.put("x", lane="l", **options)
    store.put("next", lane="l")
    assert [Duplicate("x", True)] == store.put("y", delay_us=S, **options)
    ref = store.claim()["next"]
    store.now += S
    assert {} == store.claim()
    store.end(ref)
    assert ["x"] == list(store.claim())


def test_keys_of_ended_tasks_are_forgotten(store):
    """Rows of unique keys whose task has ended are deleted."""
    for n in range(3000):
        store.put(str(n), **unique(str(n)))
    for ref in store.claim(3000).values():
        store.end(ref)
    assert 3000 == len(store.table._unique)
    store.beat()
    assert {} == store.table._unique
