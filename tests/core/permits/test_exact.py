"""The exact law on random histories: alone, with starts that take effect later than decided, and among peers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.permits.exact import ExactGrid, ExactShare, window_of
from ratelimited_executor._core.limits.effects import begin
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples

NS = 1_000_000_000
START = 1_704_067_200 * NS
SLACK = 15_000_000
RATES = st.one_of(
    st.sampled_from([Rate(1), Rate(10), Rate(100), Rate(3, per=2), Rate(5, per=60), Rate(1, per=Fraction(1, 100))]),
    st.builds(Rate, st.fractions(min_value=Fraction(1, 7), max_value=200, max_denominator=97)),
)
STEPS = st.one_of(
    st.integers(1, 50),
    st.integers(1, 40_000_000),
    st.integers(1, 3 * NS),
    st.sampled_from([1_000_000, 15_000_000, 15_000_001, 100_000_000, NS - 1, NS, 60 * NS]),
)
ADVANCE_OR_TAKE = [st.tuples(st.just("advance"), STEPS), st.tuples(st.just("take"), st.integers(1, 4))]


def width_of(window: Rate) -> int:
    """Return the length of a window in nanoseconds."""
    return -int(-window.per * NS // 1)


def excess(effects: list[tuple[int, int, Rate]]) -> int:
    """Return by how much a start broke the law of the rate under which it was decided.

    Args:
        effects: (decided at, took effect at, rate).
    """
    worst = -UNLIMITED
    for number, (_, effect, rate) in enumerate(effects):
        window = window_of(rate)
        width = width_of(window)
        recent = sum(effect - width < other <= effect for _, other, _ in effects[: number + 1])
        worst = max(worst, recent - int(window.permits))
    return worst


def take(grid: ExactGrid, now: int, count: int) -> int:
    """Take up to ``count`` permits one by one; return how many."""
    for taken in range(count):
        if not grid.usable(now):
            return taken
        grid.take(1, now)
        grid.take_effect(now)
    return count


def next_start(grid: ExactGrid, now: int) -> int:
    """Return when a waiting task may start, found as a queue does, by looking again at each time returned."""
    while not grid.usable(now):
        now = grid.next_fresh_time(now)
    return now


@given(
    RATES,
    st.lists(
        st.one_of(
            *ADVANCE_OR_TAKE,
            st.tuples(st.just("defer"), st.integers(1, 2)),
            st.tuples(st.just("begin"), st.integers(0, 5)),
            st.tuples(st.just("backlog"), st.integers(0, 3 * NS)),
        ),
        max_size=60,
    ),
    st.floats(0, 1, exclude_max=True),
)
@examples(200)
def test_no_window_holds_more_than_the_permits_whenever_starts_take_effect(rate, steps, phase):
    """No window exceeds its permits with stalls, backlogs, and effects long after decisions, in any order and phase."""
    now = START
    grid = ExactGrid(rate, slack_ns=SLACK, now_ns=now, phase=phase)
    effects: list[int] = []
    deferred: list[list] = []
    for action, value in [*steps, *(("begin", 0) for _ in range(200))]:
        if action == "advance":
            now += value
        elif action == "take":
            effects += [now] * take(grid, now, value)
        elif action == "backlog":
            grid.begin_at(now - value)
        elif action == "defer":
            for _ in range(min(value, grid.usable(now))):
                grid.take(1, now)
                pending: list[list[int]] = []
                grid.defer(pending)
                deferred.append(pending)
        elif deferred:
            begin(deferred.pop(value % len(deferred)), now)
            effects.append(now)
    effects.sort()
    window = window_of(rate)
    permits, width = int(window.permits), width_of(window)
    for first, last in zip(effects, effects[permits:], strict=False):
        assert last - first >= width


@given(
    RATES,
    st.lists(
        st.one_of(
            *ADVANCE_OR_TAKE,
            st.tuples(st.just("rate"), st.sampled_from([Rate(0), Rate(1), Rate(7), Rate(40), Rate(100)])),
        ),
        max_size=60,
    ),
)
@examples(160)
def test_a_changed_rate_counts_what_has_started_in_its_window(first, steps):
    """Every start keeps the law of the rate then in force, whatever the rate of earlier starts in its window."""
    now, rate = START, Rate(first.permits)
    grid = ExactGrid(rate, slack_ns=SLACK, now_ns=now)
    effects: list[tuple[int, int, Rate]] = []
    for action, value in steps:
        if action == "advance":
            now += value
        elif action == "rate":
            rate = value
            grid.set_rate(rate, now)
        else:
            effects += [(now, now, rate)] * take(grid, now, value)
    if all(rate.permits == int(rate.permits) for _, _, rate in effects):  # one width for all windows
        assert excess(effects) <= 0


@given(
    st.integers(2, 4),
    RATES,
    st.lists(st.tuples(st.one_of(STEPS, st.just(0)), st.integers(0, 3), st.integers(1, 6)), max_size=60),
)
@examples(160)
def test_peers_keep_the_window_together_without_knowing_of_each_other(peers, rate, steps):
    """The starts of all peers together never exceed the permits of a window."""
    now = START
    grids = [
        ExactShare(rate, slack_ns=20_000_000, reserve_ns=5_000_000, now_ns=now, peers=peers, rank=rank)
        for rank in range(peers)
    ]
    starts: list[int] = []
    for step, number, count in steps:
        now += step
        grid = grids[number % peers]
        for _ in range(min(count, grid.usable(now))):
            grid.take(1, now)
            starts.append(now)
    window = window_of(rate)
    permits, width = int(window.permits), width_of(window)
    for early, late in zip(starts, starts[permits:], strict=False):
        assert late - early >= width


def test_a_share_gives_a_hundredth_of_the_rate_at_most():
    """The grid of a share is at most 1 % slower than the rate, however long a permit may be used."""
    for rate in (Rate(100), Rate(1), Rate(10, per=Fraction(1, 10)), Rate(1000, per=60), Rate(2.5)):
        share = ExactShare(rate, slack_ns=20_000_000, reserve_ns=5_000_000, now_ns=START, peers=2, rank=0)
        span = 3600 * NS
        count = 2 * share.count_until(START, START + span)
        assert float(rate) * 3600 * 0.99 - 2 <= count <= float(rate) * 3600


def test_permits_stay_on_the_grid_where_nothing_is_late():
    """If all starts are on time, they use the numbered permits, and the window delays none."""
    grid = ExactGrid(Rate(3), slack_ns=SLACK, now_ns=START - 1)
    starts, now = [], START
    while now < START + 20 * NS:
        assert grid.usable(now) == 1
        grid.take(1, now)
        grid.take_effect(now)
        starts.append(now)
        now = grid.next_fresh_time(now)
    assert [START + -(-number * NS // 3) for number in range(60)] == starts


def test_the_lateness_of_a_start_is_paid_for_once():
    """A start 3 ms late moves the grid by 3 ms a window later, once."""
    grid = ExactGrid(Rate(10), slack_ns=SLACK, now_ns=START - 1)
    now, starts = START, []
    while len(starts) < 50:
        late = 3_000_000 if len(starts) == 4 else 0
        assert grid.usable(now + late)
        grid.take(1, now + late)
        grid.take_effect(now + late)
        starts.append(now + late - START)
        now = next_start(grid, now + late)
    lateness = [start - number * NS // 10 for number, start in enumerate(starts)]
    assert lateness == [0] * 4 + [3_000_000] + [0] * 9 + [3_000_000] * 36


def test_after_a_pause_the_pace_goes_on_from_the_late_start():
    """After a pause a task starts at once, and the next permit is a whole gap later."""
    grid = ExactGrid(Rate(10), slack_ns=SLACK, now_ns=START)
    now = START + 5 * NS + 73_000_000
    assert grid.usable(now) == 1
    grid.take(1, now)
    assert grid.next_fresh_time(now) == now + NS // 10


def test_the_first_start_of_a_backlog_begins_an_even_pace():
    """Permits that came up while nothing waited are void, but for the newest, which comes up when the backlog begins."""
    grid = ExactGrid(Rate(100), slack_ns=SLACK, now_ns=START)
    now = START + 5 * NS + 3_000_000
    assert grid.usable(now) == 2
    grid.begin_at(now)
    starts = []
    for _ in range(5):
        now = next_start(grid, now)
        starts.append(now)
        take(grid, now, 1)
    assert [START + 5 * NS + 3_000_000 + number * NS // 100 for number in range(5)] == starts


def test_a_backlog_begins_no_pace_anew_while_its_permit_is_taken():
    """A permit that was taken stays taken, and the next one comes up at its time."""
    grid = ExactGrid(Rate(100), slack_ns=SLACK, now_ns=START)
    assert take(grid, START, 1) == 1
    grid.begin_at(START + 4_000_000)
    assert next_start(grid, START + 4_000_000) == START + NS // 100


@pytest.mark.parametrize("rate", [Rate(10), Rate(7, per=3), Rate(1, per=60)])
@pytest.mark.parametrize("kind", [PermitGrid, ExactGrid])
def test_a_phase_shifts_all_permits_by_a_part_of_their_gap(rate, kind):
    """A grid of a phase is the epoch's grid, later by that part of a gap, from its beginning and after it was lifted."""

    def times_of(phase, shift):
        grid, now = kind(rate, slack_ns=SLACK, now_ns=START + shift, phase=phase), START + shift
        found = []
        for number in range(6):
            now = next_start(grid, now)
            grid.take(1, now)
            found.append(now)
            if number == 3:
                grid.set_rate(Rate(float("inf")), now)
                grid.set_rate(rate, now + 1)
        return found

    gap = rate.per * NS / rate.permits
    assert times_of(0.25, int(gap / 4) + 1) == pytest.approx([time + gap / 4 for time in times_of(0.0, 0)], abs=2)


def test_what_waits_for_its_time_does_not_end_an_estimate():
    """A start whose effect is unknown does not end the forecast, which counts those that leave the window."""
    log = WindowLimit(Rate(3), reading_ns=0)
    log.take(1, START)
    log.defer(log.take(1, START + NS // 10), [])
    log.take(1, START + NS // 5)
    now = START + NS // 2
    assert log.when(2, now) == START + NS // 5 + NS
    assert log.count_until(now, now + NS) == 2


def test_the_first_note_of_an_effect_counts():
    """The first effect reported for a start counts, as of a call in a thread that begins and then ends."""
    grid = ExactGrid(Rate(1), slack_ns=SLACK, now_ns=START)
    effects: list = []
    assert grid.usable(START)
    grid.take(1, START)
    grid.defer(effects)
    begin(effects, START + 1)
    begin(effects, START + NS // 2)
    assert not grid.usable(START + NS)
    assert grid.next_fresh_time(START + NS) == START + NS + 1


def test_what_is_noted_or_settled_after_a_start_has_left_the_window_changes_nothing():
    """An effect or settlement after a start has left the window changes nothing."""
    grid = ExactGrid(Rate(10), slack_ns=SLACK, now_ns=START)
    effects: list = []
    assert grid.usable(START)
    grid.take(1, START)
    receipt = grid.charge(1)
    grid.defer(effects)
    begin(effects, START)
    now = START + 3 * NS
    assert grid.usable(now)
    begin(effects, now)
    grid.settle(receipt, 6, now)
    for _ in range(10):
        now = next_start(grid, now)
        grid.take(1, now)
        grid.take_effect(now)
    assert now < START + 4 * NS


def test_what_waits_for_its_time_does_not_hold_back_what_has_one():
    """A call that waits long for a thread keeps its own permit, and delays no other."""
    grid = ExactGrid(Rate(2), slack_ns=SLACK, now_ns=START)
    assert grid.usable(START)
    grid.take(1, START)
    grid.defer([])
    now = START
    for _ in range(10):
        now = next_start(grid, now)
        grid.take(1, now)
        grid.take_effect(now)
    assert now <= START + 10 * NS


def test_a_start_without_a_time_is_counted_until_it_has_one():
    """A start whose effect is unknown counts in the window until it is known."""
    grid = ExactGrid(Rate(2), slack_ns=SLACK, now_ns=START)
    effects: list[list] = [[], []]
    now = START
    for effect in effects:
        assert grid.usable(now)
        grid.take(1, now)
        grid.defer(effect)
        now += NS // 2
    now += 10 * NS
    assert not grid.usable(now)
    assert grid.trial().next_fresh_time(now) >= now + NS  # a lower bound of its time
    begin(effects[0], now)
    begin(effects[1], now)
    assert not grid.usable(now + NS - 1)
    assert grid.usable(now + NS)


def test_a_call_that_holds_the_loop_does_not_cost_the_rate_all_of_that():
    """Of a long plain call only 5 ms count as a possible delay of its effect."""
    grid = ExactGrid(Rate(1), slack_ns=SLACK, now_ns=START)
    assert grid.usable(START)
    grid.take(1, START)
    grid.take_effect(START + NS // 2)
    assert next_start(grid, START + NS // 2) == START + NS + 5_000_000


def test_a_trial_leaves_the_grid_as_it_is():
    """A trial copy that looks ahead and takes permits leaves the grid unchanged."""
    grid = ExactGrid(Rate(2), slack_ns=SLACK, now_ns=START)
    for _ in range(2):
        now = grid.next_time(START)
        grid.usable(now)
        grid.take(1, now)
        grid.take_effect(now)
    trial = grid.trial()
    before = next_start(trial, now)
    assert trial.usable(START + 10 * NS)
    trial.take(1, START + 10 * NS)
    assert not grid.usable(before - 1)
    assert before == next_start(grid, now)


@pytest.mark.parametrize(
    ("rate", "permits", "per"),
    [
        (Rate(100), 100, 1),
        (Rate(5, per=60), 5, 60),
        (Rate(2.5), 3, Fraction(6, 5)),
        (Rate(0.5), 1, 2),
        (Rate(Fraction(1, 3)), 1, 3),
    ],
)
def test_a_rate_of_a_part_of_a_permit_keeps_the_window_of_whole_ones(rate, permits, per):
    """The window of a fractional rate has the next whole number of permits, and the matching length."""
    assert window_of(rate) == Rate(permits, per=per)


def test_costs_count_in_the_window():
    """A start of cost 4 counts as four in the window, and as two once settled to 2."""
    grid = ExactGrid(Rate(4), slack_ns=SLACK, now_ns=START)
    assert grid.usable(START)
    grid.take(1, START)
    receipt = grid.charge(4)
    grid.take_effect(START)
    assert next_start(grid.trial(), START) == START + NS
    grid.settle(receipt, 2, START)
    assert next_start(grid, START) == START + NS // 2


def test_an_infinite_rate_counts_nothing():
    """At an infinite rate nothing is remembered, and a later limit starts afresh."""
    grid = ExactGrid(Rate(float("inf")), slack_ns=SLACK, now_ns=START)
    assert grid.usable(START) == UNLIMITED
    grid.take(1000, START)
    grid.take_effect(START)
    grid.set_rate(Rate(10), START)
    assert grid.usable(START) <= 1
    assert grid.next_time(START) == START
