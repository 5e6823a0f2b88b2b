"""The compiled arithmetic of permits against the pure one, number by number: integers and rounding differ."""

import copy
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor._core.limits.effects import begin
from ratelimited_executor._core.permits.exact import ExactGrid
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.admission import Admission
from ratelimited_executor._kernel.choice import compiled
from ratelimited_executor._kernel.fields import FIELDS, QueueFields
from ratelimited_executor._kernel.timeline import Timeline

from ..helpers import examples

pytestmark = pytest.mark.skipif(compiled is None, reason="there is no compiled kernel")

EPOCH_NS = 1_767_225_600_000_000_000  # 2026
times = st.integers(0, 3_000_000_000) | st.integers(0, 10**19) | st.integers(10**27, 10**29)
rates = (
    st.fractions(Fraction(1, 10**6), 10**9, max_denominator=10**6)
    | st.integers(1, 10**12)
    | st.sampled_from([0, 1, 1000, 10**15, Fraction(1, 3), Fraction(10**13, 7)])
)


class PureGrid(PermitGrid):
    """Counts in Python only: compiled code reads the fields of no other class."""

    __slots__ = ()

    _usable_on_grid = (
        compiled.pure["PermitGrid._usable_on_grid"] if compiled is not None else PermitGrid._usable_on_grid
    )


class PureExactGrid(ExactGrid):
    """Decides in Python only: compiled code knows the methods of no other class."""

    __slots__ = ()

    _usable_on_grid = PureGrid._usable_on_grid


class Decisions(QueueFields):
    """The permits of a queue, as far as a start and its effect use them."""

    __slots__ = ()

    def __init__(self, permits: PermitGrid, timeline: Timeline) -> None:
        self.admission = Admission(permits, timeline)
        self.timeline = timeline
        self.is_special = False
        self.gate = None


def state(grid: PermitGrid) -> dict:
    found = {name: getattr(grid, name) for name in FIELDS["GridFields"] if name not in ("_pieces", "_log")}
    if grid._log is not None:
        found["pieces"] = [tuple(piece) for piece in grid._pieces]
        found["log"] = [(name, repr(getattr(grid._log, name))) for name in FIELDS["WindowFields"]]
    return found


@given(
    rate=rates,
    slack_ns=st.integers(0, 10**10),
    peers=st.integers(1, 5),
    start_ns=st.sampled_from([0, 1, EPOCH_NS, 10**18 * 9]),
    steps=st.lists(st.tuples(times, st.integers(0, 3), st.none() | rates), max_size=12),
)
def test_both_count_and_take_the_same(rate, slack_ns, peers, start_ns, steps):
    """Both count and take the same after any starts and rate changes, at near and far times and beyond 64 bits."""
    begins = {"slack_ns": slack_ns, "now_ns": start_ns, "peers": peers, "rank": peers - 1}
    grid, pure = (kind(Rate.of(rate), **begins) for kind in (PermitGrid, PureGrid))
    now_ns = start_ns
    for ahead_ns, take_count, changed in steps:
        now_ns += ahead_ns
        if changed is not None:
            grid.set_rate(Rate.of(changed), now_ns)
            pure.set_rate(Rate.of(changed), now_ns)
        count = grid.usable(now_ns)
        assert count == pure.usable(now_ns)
        assert state(grid) == state(pure)
        for each in (grid, pure):
            each.take(min(count, take_count))
        assert state(grid) == state(pure)
        assert grid.next_number_time() == pure.next_number_time()
        assert grid.next_time(now_ns) == pure.next_time(now_ns)


@given(
    rate=st.integers(1, 100_000) | st.fractions(Fraction(1, 1000), 10**5, max_denominator=1000),
    slack_ns=st.integers(1, 10**9),
    monotonic=st.floats(0, 1e9),
    gaps=st.lists(st.tuples(st.floats(0, 3) | st.just(0.0), st.sampled_from([1, 1, 2, 50])), max_size=20),
)
def test_admission_takes_permits_alike(rate, slack_ns, monotonic, gaps):
    """In loop time, both agree on the count, its validity and the time of the next permit."""
    timeline = Timeline(monotonic=monotonic, wall=EPOCH_NS / 1e9, interval_ns=10**9)
    begins = {"slack_ns": slack_ns, "now_ns": timeline.to_ns(monotonic)}
    sides = [Admission(kind(Rate.of(rate), **begins), timeline) for kind in (PermitGrid, PureGrid)]
    now = monotonic
    for gap, most in gaps:
        now += gap
        counts = [compiled.take_usable(admission, most, now) for admission in sides]
        assert counts[0] == counts[1]
        assert len({(each.count, each.next_at, each.usable_until) for each in sides}) == 1
        assert state(sides[0].permits) == state(sides[1].permits)


@given(
    rate=st.integers(1, 20)
    | st.sampled_from([100, 5000, 10**20])
    | st.fractions(Fraction(1, 9), 20, max_denominator=9),
    slack_ns=st.sampled_from([1, 10**6, 15 * 10**6, 10**9]),
    monotonic=st.sampled_from([0.0, 12345.678, 1e8]),
    wall=st.sampled_from([EPOCH_NS / 1e9, -1e6, 1e30]),
    steps=st.lists(
        st.one_of(
            *[st.tuples(st.just("start"), st.sampled_from([0.0, 1e-6, 1e-4, 0.01]))] * 4,
            *[st.tuples(st.just("pass"), st.floats(0, 3) | st.sampled_from([1e-6, 1e-4, 0.05, 1.0]))] * 2,
            st.tuples(st.just("late"), st.sampled_from([1e-6, 0.01])),
            st.tuples(st.just("wait"), st.none()),
            st.tuples(st.just("take"), st.integers(1, 300)),
            st.tuples(st.just("defer"), st.none()),
            st.tuples(st.just("begin"), st.integers(0, 3)),
            st.tuples(st.just("charge"), st.integers(0, 3)),
            st.tuples(st.just("settle"), st.integers(0, 3)),
            st.tuples(st.just("rate"), st.sampled_from([0, 1, 7, 100, 5000, float("inf")])),
            st.tuples(st.just("anew"), st.floats(0, 1)),
        ),
        max_size=60,
    ),
)
@example(  # a start without a time is behind one that leaves the window
    rate=2,
    slack_ns=10**9,
    monotonic=0.0,
    wall=EPOCH_NS / 1e9,
    steps=[("start", 0.0), ("pass", 0.5), ("defer", None), ("pass", 0.75), ("start", 0.0)],
)
@examples(240)
def test_both_keep_the_window_alike(rate, slack_ns, monotonic, wall, steps):
    """Grid and log are the same in both after any starts, effects, costs, waits and rate changes."""
    timeline = Timeline(monotonic=monotonic, wall=wall, interval_ns=10**9)
    begins = {"slack_ns": slack_ns, "now_ns": timeline.to_ns(monotonic)}
    sides = [Decisions(kind(Rate.of(rate), **begins), timeline) for kind in (ExactGrid, PureExactGrid)]
    effect = [compiled.take_effect, compiled.pure["PlainQueue.take_effect"]]
    pending: list[list] = [[], []]
    receipts: list[list] = [[], []]
    now = monotonic
    for action, value in steps:
        answers = []
        for number, side in enumerate(sides):
            admission, grid = side.admission, side.admission.permits
            answer: object = None
            if action == "pass":
                pass
            elif action == "wait":
                answer = admission.next_time(now, 1e300)
            elif action == "take":
                answer = compiled.take_usable(admission, value, now)
                effect[number](side, now)
            elif action == "begin" and pending[number]:
                begin(pending[number].pop(value % len(pending[number])), timeline.to_ns(now))
            elif action == "settle" and receipts[number]:
                grid.settle(receipts[number][value % len(receipts[number])], value, timeline.to_ns(now))
                admission.forget()
            elif action == "rate":
                grid.set_rate(Rate.of(value), timeline.to_ns(now))
                admission.put(grid)
            elif action == "anew":
                grid.begin_at(timeline.to_ns(now - value))
            elif action in ("start", "late", "defer", "charge"):
                answer = compiled.take_usable(admission, 1, now, value if action == "late" else 0.0)
                if answer and action == "defer" and admission.effects is not None:
                    pending[number].append([])
                    admission.effects.defer(pending[number][-1])
                elif answer and action == "charge" and not admission.is_unlimited:
                    receipts[number].append(grid.charge(value))
                effect[number](side, now + (value if action in ("start", "late") else 0.0))
            answers.append((answer, admission.count, admission.next_at, admission.usable_until, state(grid)))
        assert answers[0] == answers[1]
        if action in ("pass", "late"):
            now += value
        elif action == "wait" and now < answers[0][0] < now + 1e6:  # loop time never goes back
            now = answers[0][0]


@pytest.mark.parametrize("kind", [PermitGrid, ExactGrid])
def test_copy_of_a_grid_goes_its_own_way(kind):
    """A copy is independent of its grid, as forecasts need, also for a class with fields of its own."""
    grid = kind(Rate.of(10), slack_ns=10**9, now_ns=EPOCH_NS)
    for other in (copy.deepcopy(grid), grid.trial(), *([copy.copy(grid)] if kind is PermitGrid else [])):
        assert state(grid) == state(other)
        before = state(grid)
        other.usable(EPOCH_NS + 10**9)
        other.take(1)
        assert before == state(grid) != state(other)
