"""Costs of starts with numbered permits and with tickets."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.budget import BudgetLimit, HeldTicket, TicketBudget
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS

from ...helpers import examples
from .histories import INFINITE, NS, RATES, SLACK, START, Rates, Start, histories


@given(RATES, st.sampled_from([1, SLACK, NS]), histories(RATES))
@examples(120)
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
            grid.settle(start.receipt, cost, now)
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


def of_tickets(count: int) -> tuple[TicketBudget, BudgetLimit]:
    """Return a budget with tickets of an authority with the local clock: one a second from now on."""
    clock = ServerClock()
    clock.measure(START, START, START)
    budget = TicketBudget(clock)
    limit = BudgetLimit(budget, PERMITS, cost_max=None, is_free=False, estimate=lambda *_: None)
    hold(budget, (START + number * NS for number in range(count)))
    return budget, limit


def hold(budget: TicketBudget, times: Iterable[int]) -> None:
    """Add tickets of cost 1."""
    for time_ns in times:
        budget.hold(HeldTicket(time_ns // 1000, time_ns // 1000 + 10**9, {PERMITS: 1}, (("rate", PERMITS, 0, False),)))


def owed(budget: TicketBudget) -> int:
    """Return what is to be charged by the authority beyond what it gets back."""
    return -sum(each.cost for each in budget.corrections)


@given(
    st.integers(0, 12),
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(1, 6)),
            st.tuples(st.just("start"), st.integers(1, 6)),
            st.tuples(st.just("hold"), st.integers(1, 9)),
            st.tuples(st.just("settle"), st.tuples(st.integers(1, 3), st.integers(0, 9))),
        ),
        max_size=30,
    ),
)
@examples(120)
def test_tickets_pay_for_every_cost(count, steps):
    """Held tickets, costs of starts and what is told to the authority are always as much as it has granted."""
    (budget, limit), starts, known = of_tickets(count), [], count
    now = START + 60 * NS
    for action, value in steps:
        if action == "hold":
            hold(budget, (now - NS - number for number in range(value)))
            known += value
        elif action == "start" and limit.admits(1, now):
            starts.append(Start(now, 1, limit.take(1, now)))
            limit.settle(starts[-1].receipt, value, now)
            starts[-1].cost = value
        elif action == "settle" and starts:
            which, cost = value
            start = starts[-min(which, len(starts))]
            limit.settle(start.receipt, cost, now)
            start.cost = cost
        assert known == limit.count(now) + sum(start.cost for start in starts) - owed(budget)
        assert limit.count(now) >= 0


def test_last_start_alone_takes_held_tickets_for_what_it_costs_beyond():
    """A higher cost of the last start uses held tickets; that of an earlier one is told to the authority."""
    budget, limit = of_tickets(4)
    now = START + 5 * NS
    assert 4 == limit.count(now)
    first, second = limit.take(1, now), limit.take(1, now)
    limit.settle(first, 2, now)
    assert (2, 1) == (limit.count(now), owed(budget))
    limit.settle(second, 2, now)
    assert (1, 1) == (limit.count(now), owed(budget))
    limit.settle(second, 5, now)
    assert (0, 3) == (limit.count(now), owed(budget))
    limit.settle(second, 1, now)
    assert (0, -1) == (limit.count(now), owed(budget)), "tickets that were used go back to the authority"
