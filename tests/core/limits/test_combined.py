"""Several limits at once: all must admit a start, and each counts its cost."""

import copy
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.combined import Bound, CombinedPermits
from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS

from ...helpers import examples

NS = 1_000_000_000
START = 1_704_067_200 * NS
SLACK = 20_000_000
DEPTH = 7
READING = 1000  # nanoseconds by which a window is longer than its setting
STEPS = st.one_of(st.integers(1, 50), st.integers(1, 3 * NS), st.sampled_from([SLACK, SLACK + 1, NS // 5, NS, 60 * NS]))


class Clock:
    """The clock of the timeline."""

    now = START

    def __call__(self) -> int:
        return self.now


def combine(clock, *, rate=Rate(5), grid: bool = True, window=Rate(20, per=10), tokens=Rate(50, per=5), quota=None):
    """Return a grid or bucket for starts, a window beside it, and a window of tokens."""
    bounds = [
        Bound(WindowLimit(window), resource=PERMITS, text="20/10s", kind="window"),
        Bound(WindowLimit(tokens), resource="tokens", text="50/5s", kind="window"),
    ]
    if not grid:
        bucket = TokenBucketLimit(rate, depth=DEPTH, now_ns=clock.now)
        bounds.insert(0, Bound(bucket, resource=PERMITS, text="5/1s", kind="burst"))
    if quota is not None:
        limit = QuotaLimit(quota, period_of=lambda wall: (0, 1 << 70), wall_ns=clock)
        bounds.append(Bound(limit, resource=PERMITS, text="quota", kind="quota"))
    numbered = PermitGrid(rate, slack_ns=SLACK, now_ns=clock.now) if grid else None
    return CombinedPermits(numbered, bounds, rate=rate, time_ns=clock)


def start(combined, clock, **needs) -> list | None:
    """Start a task of these costs if all limits admit it, as the queue does; return its receipts."""
    needs = {PERMITS: 1, **needs}
    if not combined.usable(clock.now) or not combined.admits(needs, clock.now):
        return None
    combined.take()
    return combined.charge(needs)


@given(
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(st.just("advance"), STEPS),
            st.tuples(st.just("start"), st.tuples(st.integers(1, 3), st.integers(0, 20))),
            st.tuples(st.just("wait"), st.tuples(st.integers(1, 3), st.integers(0, 20))),
            st.tuples(st.just("settle"), st.tuples(st.integers(1, 3), st.integers(0, 20))),
            st.tuples(st.just("penalty"), st.integers(0, NS)),
        ),
        max_size=30,
    ),
)
@examples(100)
def test_a_start_is_admitted_if_all_admit_it_and_each_is_charged(is_grid, steps):
    """A start is admitted at the last limit's time, and each limit counts its resource, also when it is settled."""
    clock = Clock()
    permits = combine(clock, grid=is_grid)
    limits = [bound.limit for bound in permits.bounds]
    begun: list[tuple[dict[str, int], dict[str, int], list]] = []  # times and costs by resource
    unpaid: set[int] = set()  # which of them have cost no tokens so far: a cost counts from when it is known
    for action, value in steps:
        if action == "advance":
            clock.now += value
        elif action == "penalty":
            permits.penalty_ns = max(permits.penalty_ns, clock.now + value)
        elif action == "settle" and begun:
            costs = dict(zip([PERMITS, "tokens"], value, strict=True))
            times, _, receipts = begun[-1]
            permits.settle(receipts, costs)
            if len(begun) in unpaid and costs["tokens"] and times["tokens"] > clock.now - 5 * NS - READING:
                unpaid.discard(len(begun))
                times = {**times, "tokens": clock.now}
            begun[-1] = (times, costs, receipts)
        elif action in {"start", "wait"}:
            needs = dict(zip([PERMITS, "tokens"], value, strict=True))
            when = permits.when(needs, clock.now)
            assert when is not None
            is_admitted = bool(permits.usable(clock.now)) and permits.admits(needs, clock.now)
            assert is_admitted == (when == clock.now)
            if when > clock.now:
                later = copy.deepcopy(permits)
                assert not (later.usable(when - 1) and later.admits(needs, when - 1))
                assert later.usable(when)
                assert later.admits(needs, when)
            if action == "wait":
                clock.now = when
            receipts = start(permits, clock, **needs)
            assert (receipts is not None) == (action == "wait" or is_admitted)
            if receipts is not None:
                begun.append((dict.fromkeys(needs, clock.now), needs, receipts))
                if not needs["tokens"]:
                    unpaid.add(len(begun))
        for limit, resource, width in zip(limits[-2:], (PERMITS, "tokens"), (10, 5), strict=True):
            now = max(clock.now, permits.penalty_ns)  # nothing starts before that, so everything may look ahead
            recent = [costs[resource] for times, costs, _ in begun if times[resource] > now - width * NS - READING]
            assert limit.count(now) == int(limit.rate.permits) - sum(recent)


def test_the_limit_that_is_last_to_admit_is_named():
    """The limit named is the last to admit a start, or one that never will."""
    clock = Clock()
    permits = combine(clock, grid=False)
    bucket, _, tokens = permits.bounds
    assert None is permits.holding({PERMITS: 1}, clock.now)
    for _ in range(DEPTH):
        start(permits, clock, tokens=7)
    assert bucket is permits.holding({PERMITS: 1}, clock.now)
    assert tokens is permits.holding({PERMITS: 1, "tokens": 9}, clock.now)
    assert tokens is permits.holding({PERMITS: 1, "tokens": 51}, clock.now)
    assert bucket is permits.holding({PERMITS: DEPTH + 1}, clock.now)
    assert permits.is_beyond({PERMITS: 1, "tokens": 51})
    assert not permits.is_beyond({PERMITS: 1, "tokens": 50, "unknown": 1000})
    assert None is permits.when({"tokens": 51}, clock.now) is permits.limits_of("unknown")


def test_a_penalty_holds_everything_back():
    """During a penalty nothing is admitted or forecast."""
    clock = Clock()
    for is_grid in (True, False):
        permits = combine(clock, grid=is_grid)
        permits.penalty_ns = until = clock.now + 3 * NS
        assert (0, 0) == (permits.usable(clock.now), permits.count_until(clock.now, until))
        assert until == permits.next_time(clock.now) == permits.when({"tokens": 3}, clock.now)
        assert until <= permits.time_after(clock.now, 1) == permits.when_after({}, {PERMITS: 1}, clock.now)
        assert permits.usable(until)
        assert until == permits.next_time(until)
        assert (1, False, is_grid) == (permits.peers, permits.is_unlimited, permits.next_number_time() > 0)


def test_a_pause_stops_all_of_it():
    """At rate 0 nothing is admitted or forecast, and what was taken before still counts afterwards."""
    clock = Clock()
    permits = combine(clock)
    start(permits, clock, tokens=50)
    permits.set_rate(Rate(0), clock.now)
    assert permits.is_stopped
    assert (0, 0) == (permits.usable(clock.now + NS), permits.count_until(clock.now, clock.now + NS))
    for forecast in (permits.next_time(clock.now), permits.time_after(clock.now, 1), permits.when({}, clock.now)):
        assert None is forecast
    assert None is permits.when_after({}, {PERMITS: 1}, clock.now)
    permits.set_rate(Rate(5), clock.now)
    assert not permits.is_stopped
    assert clock.now + 5 * NS + READING == permits.when({"tokens": 50}, clock.now)


def test_forecasts_of_several_limits_are_those_of_the_tightest():
    """Forecasts of several limits are those of the tightest one."""
    clock = Clock()
    permits = combine(clock, grid=False, tokens=Rate(10, per=5))
    assert [DEPTH, 20] == [permits.count_until(clock.now, clock.now + ahead * NS) for ahead in (Fraction(1, 10), 9)]
    assert [0, NS // 5, 10 * NS + READING] == [permits.time_after(clock.now, count) - clock.now for count in (7, 8, 40)]
    start(permits, clock, tokens=10)
    assert clock.now + 10 * NS + 2 * READING == permits.when_after({"tokens": 10}, {PERMITS: 1, "tokens": 1}, clock.now)
    paused = combine(clock, grid=False, window=Rate(0))
    assert paused.is_stopped
    assert None is paused.when_after({}, {PERMITS: 1}, clock.now) is paused.time_after(clock.now, 1)
    assert combine(clock, grid=False).count_until(clock.now, clock.now) == 0
    assert [False, True] == [combine(clock, quota=quota).is_by_wall_clock for quota in (None, 3)]
    bare = CombinedPermits(None, [], rate=Rate(float("inf")), time_ns=clock)
    assert UNLIMITED == bare.usable(clock.now) == bare.count_until(clock.now, clock.now + 1)
    bare.take()
    assert [] == bare.charge({PERMITS: 3})
    bare.set_rate(Rate(0), clock.now)
    assert bare.is_stopped


class Turns(Limit):
    """A limit unknown to the library: one start at a time, each until it has taken effect."""

    counts_effects = True
    is_by_wall_clock = True
    cost_max = None

    def __init__(self, log: list) -> None:
        self.log = log
        self.taken = 0

    def count(self, now_ns: int) -> int:
        return 1 - self.taken

    def take(self, cost: int, now_ns: int) -> str:
        self.taken += 1
        return f"receipt {self.taken}"

    def settle(self, receipt, cost: int, now_ns: int) -> None:
        self.log.append(("settle", receipt, cost))

    def take_effect(self, receipt, now_ns: int) -> None:
        self.log.append(("effect", receipt, now_ns))

    def defer(self, receipt, effects) -> None:
        self.log.append(("defer", receipt))

    def when(self, cost: int, now_ns: int) -> int | None:
        return now_ns + NS if self.taken else now_ns

    when_count = when

    def count_until(self, now_ns: int, end_ns: int) -> int:
        return 1 - self.taken

    def trial(self, time_ns):
        self.log.append(("trial", time_ns()))
        return copy.copy(self)

    def change_to(self, other, now_ns: int) -> None:
        self.log = other.log

    def idle_at(self, now_ns: int) -> int | None:
        return None if self.taken else now_ns


def test_limit_of_any_class_is_asked_all_that_the_contract_says():
    """A limit of any class is asked all that the contract says, including effects, trials, the wall clock and costs."""
    clock, log = Clock(), []
    for is_grid in (True, False):
        permits = combine(clock, grid=is_grid)
        permits = CombinedPermits(
            permits.grid, [Bound(Turns(log), resource=PERMITS, text="one", kind="turns")], rate=Rate(5), time_ns=clock
        )
        assert (True, True, is_grid) == (permits.counts_effects, permits.is_by_wall_clock, permits.grid is not None)
        assert permits.when_in_turn([{PERMITS: 1}], {PERMITS: 2}, clock.now) == clock.now + NS
        assert [("trial", clock.now), ("settle", "receipt 1", 1)] == log
        log.clear()
        receipts = start(permits, clock)
        assert 0 == permits.usable(clock.now) == permits.count_until(clock.now, clock.now + NS)
        permits.defer([])
        permits.defer([])  # nothing more is told about a deferred start
        for _, taken, receipt in receipts:
            taken.take_effect(receipt, clock.now)
        permits.settle(receipts, {PERMITS: 3})
        assert log == [
            ("settle", "receipt 1", 1),
            ("defer", "receipt 1"),
            ("effect", "receipt 1", clock.now),
            ("settle", "receipt 1", 3),
        ]
        log.clear()
