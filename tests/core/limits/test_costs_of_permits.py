"""Costs of starts with numbered and with granted permits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.granted import GrantedPermits
from ratelimited_executor._core.permits import PermitGrid
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.rates import Rate

from .histories import INFINITE, NS, RATES, SLACK, START, Rates, Start, histories


@given(RATES, st.sampled_from([1, SLACK, NS]), histories(RATES))
@settings(max_examples=300, deadline=None)
def test_costs_on_a_grid_keep_its_law(rate, slack, history):
    """On a grid the costs of starts in [a, b] are at most Phi(b) - Phi(a - slack), plus the last one."""
    now, starts, rates = START, [], Rates(rate)
    grid = PermitGrid(rate, slack_ns=slack, now_ns=now)
    for action, value in history:
        if action == "advance":
            now += value
        elif action == "rate":
            grid.set_rate(value, now)
            rates.change(now, value)
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            grid.settle(start.ticket, cost, now)
            start.cost = cost
        elif action in {"take", "wait"}:
            now = (grid.next_time(now) or now) if action == "wait" else now
            if grid.usable(now):
                grid.take()
                starts.append(Start(now, value, grid.charge(value)))
                total = value
                for start in reversed(starts[:-1]):
                    total += start.cost
                    assert total <= rates.between(start.time - slack, now) + value


def test_of_the_last_start_alone_a_grid_gives_back():
    """A grid gives back only permits of the last start that have not come up, and for which nobody else waits."""
    grid = PermitGrid(Rate(1), slack_ns=0, now_ns=START)

    def start(cost: int, now: int) -> list[int]:
        assert grid.usable(now)
        grid.take()
        return grid.charge(cost)

    first = start(3, START)
    second = start(5, START + 3 * NS)
    for cost in (1, 1, 0):
        grid.settle(first, cost, START + 3 * NS)
    assert START + 8 * NS == grid.next_time(START + 3 * NS)
    grid.settle(second, 3, START + 3 * NS)
    assert START + 6 * NS == grid.next_time(START + 3 * NS)
    grid.settle(second, 0, START + 4 * NS)
    assert START + 5 * NS == grid.next_time(START + 4 * NS)
    grid.settle(second, 4, START + 4 * NS)
    assert START + 7 * NS == grid.next_time(START + 4 * NS)
    unlimited = PermitGrid(INFINITE, slack_ns=0, now_ns=START)
    unlimited.take()
    unlimited.settle(unlimited.charge(9), 1, START)
    assert UNLIMITED == unlimited.usable(START)


def granted(count: int) -> GrantedPermits:
    """Return permits of an authority with the local clock: one a second from now on."""
    clock = ServerClock()
    clock.assume(0, START)
    clock.hold(START)
    permits = GrantedPermits(clock, Rate(1), late_ns=600 * NS)
    permits.hold(START + number * NS for number in range(count))
    return permits


@given(
    st.integers(0, 12),
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(1, 6)),
            st.tuples(st.just("start"), st.integers(1, 6)),
            st.tuples(st.just("grant"), st.integers(1, 9)),
            st.tuples(st.just("settle"), st.tuples(st.integers(1, 3), st.integers(0, 9))),
        ),
        max_size=30,
    ),
)
@settings(max_examples=300, deadline=None)
def test_granted_permits_pay_for_every_cost(count, steps):
    """Each granted permit is held, taken or owed; a peer in debt starts nothing, and permits cover the costs."""
    permits, starts, known = granted(count), [], count
    now = START + 60 * NS
    for action, value in steps:
        if action == "grant":
            permits.hold(now - number for number in range(value))
            known += value
        elif action == "start" and permits.usable(now):
            permits.take()
            starts.append(Start(now, value, permits.charge(value)))
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            permits.settle(start.ticket, cost, now)
            start.cost = cost
        assert known == permits.held_count() + permits.taken_count
        assert not (permits.debt_count and permits.held_count())
        assert permits.taken_count + permits.debt_count >= sum(start.cost for start in starts)
        assert permits.debt_count >= 0


def test_what_is_owed_is_owed_by_the_last_alone():
    """Debts belong to the last start only, and without a limit there are none."""
    permits = granted(2)
    permits.usable(START + 5 * NS)
    permits.take()
    first = permits.charge(1)
    permits.take()
    second = permits.charge(6)
    assert (5, 2) == (permits.debt_count, permits.taken_count)
    for cost in (1, 2, 0):
        permits.settle(first, cost, START)
    assert 6 == permits.debt_count
    permits.settle(second, 5, START)
    assert 5 == permits.debt_count
    permits.set_rate(INFINITE, START)
    free = permits.charge(9)
    permits.set_rate(Rate(1), START)
    permits.settle(free, 1, START)
    assert 5 == permits.debt_count
    permits.settle(second, 4, START)
    permits.hold([START] * 4)
    assert (0, 6, 0) == (permits.debt_count, permits.taken_count, permits.held_count())
