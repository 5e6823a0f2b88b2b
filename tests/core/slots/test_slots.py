"""The rules of pools of slots over plain values, with a test for each common fault of such pools."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.slots.slots import FOREVER_US, LOST, WAITING, SlotLease, SlotPools

from ...helpers import examples

SECOND = 1_000_000


class OnePool(SlotPools):
    """Pools with a single one."""

    def __init__(self, limit: int, *, confirm_us: int = FOREVER_US) -> None:
        super().__init__(confirm_us=confirm_us)
        self.only = self.pool("only")
        self.set_limit("only", limit, 0)

    def ask(self, token, now, **options) -> int:
        return super().ask(token, ["only"], now, **options)

    @property
    def leases(self) -> list[SlotLease]:
        return list(self.only.holding.values())

    @property
    def held_count(self) -> int:
        return len(self.only.holding)

    @property
    def waiting_count(self) -> int:
        return self.only.waiting_count


def holders(pool: OnePool) -> list:
    return [lease.token for lease in pool.leases]


def ask(pool: OnePool, *tokens, now=0, **options) -> list[int]:
    return [pool.ask(token, now, **options) for token in tokens]


def test_slots_go_to_who_comes_first_and_the_rest_wait():
    """Up to the limit requests get slots in order of arrival, and the others wait."""
    pool = OnePool(2)

    assert [1, 2, WAITING, WAITING] == ask(pool, "a", "b", "c", "d")
    assert ["a", "b"] == holders(pool)
    assert 2 == pool.waiting_count
    assert [] == pool.handed()  # the caller gets the answer, and needs no notice


# Faults of slots kept as numbers or counts, released by number, or by the clock of the holder.


def test_who_finds_no_slot_has_none():
    """A request without a slot has none: elsewhere the list of failed attempts was taken for a slot."""
    pool = OnePool(1)
    ask(pool, "a")

    assert WAITING == pool.ask("b", 0)
    assert pool.release("b", 0)
    assert ["a"] == holders(pool)  # and its release frees no slot of another


def test_what_is_taken_is_what_is_seen():
    """Slots are read as they are written: elsewhere they had two names."""
    pool = OnePool(3)
    fences = ask(pool, "a", "b")

    assert [(lease.token, lease.fence) for lease in pool.leases] == list(zip("ab", fences, strict=True))
    assert 2 == pool.held_count


def test_thousands_of_slots_are_all_seen():
    """Thousands of slots are all counted: elsewhere a scan read the first hundred."""
    pool = OnePool(5000)
    ask(pool, *range(6000))

    assert 5000 == pool.held_count
    assert 1000 == pool.waiting_count


def test_lower_limit_counts_who_holds_and_not_which_slot():
    """A lowered limit counts holders: elsewhere ten ran under a limit of five, with low free numbers."""
    pool = OnePool(10)
    ask(pool, *range(12))
    for token in range(5):
        pool.release(token, 0)
    assert [10, 11] == [lease.token for lease in pool.handed()]

    pool.set_limit("only", 5, 0)
    for token in range(5, 7):
        pool.release(token, 0)
    assert WAITING == pool.ask("new", 0)
    assert 5 == pool.held_count
    pool.release(7, 0)
    assert ["new"] == [lease.token for lease in pool.handed()]


def test_who_has_lost_its_slot_frees_nobody_elses():
    """A holder that lost its slot frees no other: elsewhere it freed that of its successor."""
    pool = OnePool(1)
    pool.ask("slow", 0, until_us=SECOND)
    assert 2 == pool.ask("next", SECOND, until_us=2 * SECOND)  # the lease of the first has ended

    assert not pool.release("slow", SECOND)
    assert LOST == pool.renew("slow", SECOND, until_us=9 * SECOND)
    assert ["next"] == holders(pool)


def test_long_work_keeps_its_slot_by_renewal():
    """Long work keeps its slot by renewal: elsewhere a fixed time let two jobs run in one slot."""
    pool = OnePool(1)
    pool.ask("long", 0, until_us=SECOND)
    pool.ask("next", 0)
    for second in range(1, 20):
        assert 1 == pool.renew("long", second * SECOND - 1, until_us=(second + 1) * SECOND)

    assert ["long"] == holders(pool)
    pool.look(21 * SECOND)
    assert ["next"] == holders(pool)


def test_wait_and_check_are_one_step():
    """Checking and waiting are one step: elsewhere a slot came free in between, and nobody woke."""
    pool = OnePool(1)
    ask(pool, "a", "b")
    pool.release("a", 0)

    assert ["b"] == [lease.token for lease in pool.handed()]


@pytest.mark.parametrize("change", ["dies", "limit"])
def test_nobody_who_waits_is_stranded(change):
    """Waiters also wake when a lease ends or the limit rises: elsewhere only an end woke them."""
    pool = OnePool(1 if change == "dies" else 0)
    if change == "dies":
        pool.ask("killed", 0, until_us=SECOND)
    ask(pool, "a", "b")

    if change == "dies":
        assert SECOND == pool.next_end()
        pool.look(SECOND)
    else:
        pool.set_limit("only", 1, SECOND)

    assert ["a"] == holders(pool)


def test_newcomer_overtakes_nobody():
    """A newcomer does not overtake waiters: elsewhere a woken one went to the tail of the queue."""
    pool = OnePool(1)
    ask(pool, "a", "b", "c")
    pool.release("a", 0)

    assert WAITING == pool.ask("new", 0)
    assert ["b"] == holders(pool)
    order = [pool.release(token, 0) and holders(pool) for token in "bc"]
    assert [["c"], ["new"]] == order


def test_hand_off_that_nobody_heard_of_ends_by_itself():
    """An unconfirmed hand-over ends by itself: elsewhere each crash lowered the limit for ever."""
    pool = OnePool(1, confirm_us=2 * SECOND)
    pool.ask("a", 0, until_us=100 * SECOND)
    ask(pool, "crashed", "alive", until_us=100 * SECOND)
    pool.release("a", 0)

    assert ["crashed"] == holders(pool)
    pool.look(2 * SECOND)
    assert ["alive"] == holders(pool)
    assert 3 == pool.renew("alive", 3 * SECOND, until_us=50 * SECOND)
    assert LOST == pool.renew("crashed", 3 * SECOND, until_us=50 * SECOND)


# The rest of the rules.


def test_larger_priority_goes_first_and_among_equals_who_came_first():
    """Waiters are ordered by priority, then by arrival."""
    pool = OnePool(0)
    for token, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1), ("e", -1)):
        pool.ask(token, 0, priority=priority)
    pool.set_limit("only", 5, 0)

    assert ["b", "d", "a", "c", "e"] == [lease.token for lease in pool.handed()]


def test_asking_again_takes_no_second_slot():
    """A repeated request, as after a lost answer, takes no second slot."""
    pool = OnePool(1)

    assert [1, 1, WAITING, WAITING] == ask(pool, "a", "a", "b", "b", priority=3)
    assert (1, 1) == (pool.held_count, pool.waiting_count)


def test_waiter_that_is_not_alive_is_passed_over_and_forgotten():
    """A waiter that has not renewed its entry in time is passed over and forgotten."""
    pool = OnePool(1)
    ask(pool, "a")
    pool.ask("dead", 0, until_us=SECOND)
    pool.ask("alive", 0, until_us=SECOND)
    assert WAITING == pool.renew("alive", 0, until_us=9 * SECOND)

    pool.look(SECOND)
    assert 1 == pool.waiting_count
    pool.release("a", SECOND)
    assert ["alive"] == holders(pool)
    assert LOST == pool.renew("dead", SECOND, until_us=9 * SECOND)


def test_who_asks_with_a_higher_priority_waits_for_who_was_there_when_a_slot_came_free():
    """A lease that has ended is handed to a waiter before a newcomer of higher priority is considered."""
    pool = OnePool(1, confirm_us=1)
    pool.ask("x", 0, until_us=SECOND)
    pool.ask("low", 0)

    assert WAITING == pool.ask("high", SECOND, until_us=5 * SECOND, priority=1)
    assert ["low"] == [lease.token for lease in pool.handed()]
    pool.look(2 * SECOND)
    assert ["high"] == holders(pool)
    assert 2 * SECOND + 1 == pool.next_end()  # not confirmed yet


def test_ask_whose_time_has_passed_is_lost():
    """A request that arrives after its own time holds nothing."""
    pool = OnePool(1)

    assert LOST == pool.ask("late", 5 * SECOND, until_us=SECOND)
    assert (0, 0) == (pool.held_count, pool.waiting_count)


def test_clock_that_goes_back_stands_still():
    """A clock that goes back stands still, and extends no lease."""
    pool = OnePool(1)
    pool.ask("a", 10 * SECOND, until_us=11 * SECOND)
    pool.look(5 * SECOND)
    assert 11 * SECOND == pool.next_end()
    pool.ask("b", 5 * SECOND)

    assert ["a"] == holders(pool)
    assert 10 * SECOND == pool.leases[0].since_us


def test_nothing_is_kept_of_those_who_have_gone():
    """Memory depends on the current holders and waiters, not on earlier ones."""
    pool = OnePool(1)
    for number in range(5000):
        pool.ask(number, number, until_us=number + 10)
        pool.renew(number, number, until_us=number + 5)
        pool.ask(-1 - number, number)
        pool.release(-1 - number, number)
        pool.release(number, number)

    assert (0, 0) == (pool.held_count, pool.waiting_count)
    assert len(pool._ends) < 200 > len(pool.only.line)


@dataclass
class Model:
    """A simple model of the same rules, with lists searched from the start."""

    limit: int
    confirm: int
    now: int = 0
    fence: int = 0
    holding: dict = field(default_factory=dict)  # token -> [fence, until]
    waiting: list = field(default_factory=list)  # [token, priority, until]

    def look(self, now) -> None:
        self.now = max(self.now, now)
        self.holding = {token: lease for token, lease in self.holding.items() if lease[1] > self.now}
        self.waiting = [each for each in self.waiting if each[2] > self.now]
        while len(self.holding) < self.limit and self.waiting:
            first = max(self.waiting, key=lambda each: each[1])
            self.waiting.remove(first)
            self.fence += 1
            self.holding[first[0]] = [self.fence, self.now + self.confirm]

    def answer(self, token) -> int:
        if token in self.holding:
            return self.holding[token][0]
        return WAITING if any(each[0] == token for each in self.waiting) else LOST

    def ask(self, token, now, until, priority) -> int:
        self.look(now)
        was_there = self.answer(token) != LOST
        if not was_there:
            self.waiting.append([token, priority, until])
            self.look(now)
        return self.renew(token, now, until)

    def renew(self, token, now, until) -> int:
        self.look(now)
        if token in self.holding:
            self.holding[token][1] = until
        for each in self.waiting:
            if each[0] == token:
                each[2] = until
        return self.answer(token)

    def release(self, token, now) -> bool:
        was_there = self.answer(token) != LOST
        self.holding.pop(token, None)
        self.waiting = [each for each in self.waiting if each[0] != token]
        self.look(now)
        return was_there


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "renew", "release", "release", "limit", "look"]),
        st.integers(0, 7),  # number of the token
        st.integers(-2, 6),  # time that passes
        st.integers(1, 12),  # length of the lease
        st.integers(0, 2),  # priority, or a limit
    ),
    max_size=60,
)


@examples(160)
@given(steps=steps, limit=st.integers(0, 3), confirm=st.sampled_from([3, FOREVER_US]))
def test_pool_does_what_its_model_does(steps, limit, confirm):
    """A pool does as its model, keeps the limit, leaves no waiter beside a free slot, and has rising fences."""
    pool, model = OnePool(limit, confirm_us=confirm), Model(limit, confirm)
    now, fence = 0, 0
    for step, token, passed, lasting, number in steps:
        now += passed
        told = pool.handed()  # before each step, so that waiters have heard of hand-overs
        held_before = pool.held_count
        until = max(now, model.now) + lasting
        match step:
            case "ask":
                assert model.ask(token, now, until, number) == pool.ask(token, now, until_us=until, priority=number)
            case "renew":
                assert model.renew(token, now, until) == pool.renew(token, now, until_us=until)
            case "release":
                assert model.release(token, now) == pool.release(token, now)
            case "limit":
                model.limit = number
                model.look(now)
                pool.set_limit("only", number, now)
            case "look":
                model.look(now)
                pool.look(now)
        assert [(token, lease[0], lease[1]) for token, lease in model.holding.items()] == [
            (lease.token, lease.fence, lease.until_us) for lease in pool.leases
        ]
        assert len(model.waiting) == pool.waiting_count
        assert pool.held_count <= max(pool.only.limit, held_before)
        assert not (pool.waiting_count and pool.held_count < pool.only.limit)
        assert pool.fence >= fence
        assert all(lease.fence > 0 for lease in told)
        fence = pool.fence
