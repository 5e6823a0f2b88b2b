"""The laws of limits that a fleet shares, checked in Python and in Lua on a real server.

A ticket admitted at t is used at some time in [t, t + valid] that an adversary chooses. So the ledger asks for each set
of tickets if their starts *may* fall into one window, and not where they did. After each admission the law is checked
for all windows in which the new ticket may lie, with the costs known by then.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.laws import (
    DRIFT,
    BurstSettings,
    LimitSettings,
    PaceSettings,
    QuotaSettings,
    WindowSettings,
    exact_stretch,
)

from .binaries import KINDS
from .law_subjects import InLua, InPython, LawSubject, UnsoundError
from .servers import RedisServer

pytestmark = pytest.mark.real_time("a real server, on one side")

PROGRAMS = int(os.environ.get("LAW_PROGRAMS", "30"))  # programs drawn for each property
PS = 1_000_000
SECOND = 1_000_000
START = 1_704_067_200 * SECOND
FAR = 1 << 50
VALID = 20_000
LATE = 15_000
MANY = 10**6 * SECOND  # a horizon that refuses nothing

quick = partial(settings, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["python", *KINDS])
def subject(request: pytest.FixtureRequest, server_of: Callable[[str], RedisServer]) -> Iterator[LawSubject]:
    """Each subject in turn."""
    if request.param == "python":
        yield InPython()
    else:
        with server_of(request.param).client() as client:
            yield InLua(client)


@pytest.fixture
def examples(request: pytest.FixtureRequest, subject: LawSubject) -> int:
    """The number of programs drawn: fewer in Lua, where each step is a round trip."""
    return PROGRAMS if isinstance(subject, InPython) else PROGRAMS // 3


class Ticket:
    """An admission: its time t, its last moment, its cost as far as known, and its receipt."""

    def __init__(self, t: int, valid: int, cost: int, receipt: int) -> None:
        self.t, self.last, self.cost, self.receipt = t, t + valid, cost, receipt
        self.charged = cost


class Ledger:
    """One limit of a subject, and its tickets.

    Attributes:
        check: checks the tickets after each admission.
    """

    def __init__(self, subject: LawSubject, made: LimitSettings, check: Callable[["Ledger"], None]) -> None:
        self.subject, self.settings, self.check = subject, made, check
        self.now, self.state = START, ""
        self.tickets: list[Ticket] = []
        self.redated = 0  # number of tickets at the last redating

    @property
    def valid(self) -> int:
        return getattr(self.settings, "valid_us", VALID)

    def ask(self, cost: int, horizon: int = 250_000) -> int | None:
        """Ask for a ticket; return its time, or None if it is refused."""
        before = self.state
        got = self.subject.decide(self.now, self.now + horizon, [(self.settings.write(), self.state, cost)])
        if got.receipts is None:
            assert got.states == [""], "a refusal changes nothing"
            assert got.at is None or got.at > self.now + horizon or isinstance(self.settings, QuotaSettings)
            return None
        assert self.now <= got.at <= self.now + horizon
        assert got.states[0] not in ("", before) if cost else got.states == [""], "a cost of 0 changes nothing"
        assert got.holder is None if got.at == self.now else got.holder == 0
        self.state = got.states[0] or before
        self.tickets.append(Ticket(got.at, self.valid, cost, got.receipts[0]))
        self.check(self)
        return got.at

    def correct(self, act: str, ticket: Ticket, cost: int) -> None:
        """Add to the cost of a ticket, or give some of it back."""
        numbers = (ticket.t, cost, ticket.receipt)
        self.state = self.subject.correct(act, self.now, self.settings.write(), self.state, numbers) or self.state
        ticket.cost += cost if act == "add" else -cost

    def run(self, program: list[tuple]) -> None:
        """Run the steps of a program."""
        for name, *values in program:
            if name == "wait":
                self.now += values[0]
            elif name == "ask":
                self.ask(*values)
            elif name == "set":
                self.settings = values[0]
            elif name == "sweep":
                if self.state and self.look().is_at_rest:
                    self.state = ""
            elif name == "redate":
                self.now = max([self.now + values[0], *(ticket.last for ticket in self.tickets)])  # all have lapsed
                self.redate(self.now)
                self.redated = len(self.tickets)
            elif self.tickets[self.redated :]:  # earlier tickets are not corrected any more
                ticket = self.tickets[-1 - values[0] % len(self.tickets[self.redated :])]
                cost = values[1] if name == "add" else min(values[1], max(0, ticket.cost))
                self.correct(name, ticket, cost)

    def redate(self, t: int) -> None:
        """Count everything as used at time ``t``."""
        if self.state:
            self.state = self.subject.correct("redate", 1 << 52, self.settings.write(), self.state, (t,)) or self.state

    def look(self):
        """Look at the state."""
        return self.subject.look(self.now, self.settings.write(), self.state)


def programs(
    waits: list[int], cost_max: int, *, adds: bool = True, sets: list[LimitSettings] = ()
) -> st.SearchStrategy:
    """Draw histories of waits, tickets of some cost and horizon, corrections, sweeps and changed settings."""
    horizons = st.sampled_from([0, 1000, 250_000, 5 * SECOND])
    ask = st.tuples(st.just("ask"), st.integers(0, cost_max), horizons)
    steps = [
        st.tuples(st.just("wait"), st.one_of(st.sampled_from(waits), st.integers(1, max(waits)))),
        ask,
        ask,
        ask,
        st.tuples(st.just("give_back"), st.integers(0, 6), st.integers(1, cost_max)),
        st.just(("sweep",)),
        st.tuples(st.just("redate"), st.sampled_from([0, 1, *waits])),
    ]
    if adds:
        steps.append(st.tuples(st.just("add"), st.integers(0, 6), st.integers(1, cost_max)))
    if sets:
        steps.append(st.tuples(st.just("set"), st.sampled_from(sets)))
    return st.lists(st.one_of(steps), max_size=50)


def run_programs(examples: int, drawn: st.SearchStrategy, run: Callable) -> None:
    """Check a law over ``examples`` programs."""
    quick(max_examples=examples)(given(drawn)(run))()


# The laws.


def check_pace(ledger: Ledger) -> None:
    """Admissions are at least the gaps of the costs between them apart, within a microsecond."""
    made, new = ledger.settings, ledger.tickets[-1]
    gap, cost = made.gap_us * PS + made.gap_ps, 0
    for ticket in reversed(ledger.tickets[:-1]):
        cost += ticket.cost
        assert not cost or (new.t - ticket.t + 1) * PS > gap * cost


def check_neighbours(ledger: Ledger) -> None:
    """The last two admissions are a gap of the settings in force apart."""
    if len(ledger.tickets) > 1:
        made, (one, new) = ledger.settings, ledger.tickets[-2:]
        assert not one.cost or (new.t - one.t + 1) * PS > (made.gap_us * PS + made.gap_ps) * one.cost


def check_burst(ledger: Ledger) -> None:
    """Starts in any stretch of time cost no more than the capacity plus what accrues in it."""
    made, new = ledger.settings, ledger.tickets[-1]
    gap = made.gap_us * PS + made.gap_ps
    for begin in {ticket.last for ticket in ledger.tickets if ticket.last <= new.last}:
        end = max(begin, new.t)
        cost = sum(ticket.cost for ticket in ledger.tickets if ticket.t <= end and ticket.last >= begin)
        assert (cost - made.capacity) * gap <= (end - begin) * PS


def check_window(ledger: Ledger) -> None:
    """Starts in any window cost no more than the amount."""
    made, new = ledger.settings, ledger.tickets[-1]
    for begin in {ticket.last for ticket in ledger.tickets if ticket.last <= new.last}:
        end = begin + made.width_us
        if new.t <= end:
            cost = sum(ticket.cost for ticket in ledger.tickets if ticket.t <= end and ticket.last >= begin)
            assert cost <= made.amount


PACES = [
    (1, SECOND),
    (3, SECOND),
    (100, SECOND),
    (7, 3 * SECOND),
    (100_000, SECOND),
    (999_999, SECOND),
    (1, 86_400 * SECOND),
]


@pytest.mark.parametrize(("count", "per"), PACES, ids=str)
def test_starts_are_a_gap_apart(subject: LawSubject, examples: int, count: int, per: int) -> None:
    """Starts under a pace are apart by the gaps of their costs, as known when the next one is admitted."""
    made = PaceSettings.of(count, per)
    gap = max(1, per // count)
    drawn = programs([1, gap, gap - 1 or 1, 5 * gap, 60 * SECOND], 3)
    run_programs(examples, drawn, lambda program: Ledger(subject, made, check_pace).run(program))


def test_pace_keeps_a_fraction_and_no_more(subject: LawSubject) -> None:
    """A pace makes up for less than a microsecond of lateness, so that a late start shifts the next ones."""
    for late in range(5):
        ledger = Ledger(subject, PaceSettings(10, 500_000), check_pace)
        ledger.ask(1)
        ledger.now += 11 + late
        assert ledger.ask(1) == ledger.now
        assert ledger.ask(1) == ledger.now + (10 if late == 0 else 11)


def test_no_second_holds_more_starts_than_an_exact_pace_says(subject: LawSubject) -> None:
    """No second has more than 100 starts at 100 a second, with starts at their worst times and a clock 500 ppm slow."""
    made = PaceSettings.of(100, SECOND, stretch=exact_stretch(VALID))
    ledger = Ledger(subject, made, lambda ledger: None)
    while ledger.now < START + 3 * SECOND:
        ledger.now = ledger.ask(1, MANY)
    for begin in {ticket.last for ticket in ledger.tickets}:
        end = begin + SECOND * (1 + DRIFT)  # end excluded
        assert sum(ticket.t < end and ticket.last >= begin for ticket in ledger.tickets) <= 100
    assert len(ledger.tickets) >= 100 * 3 / (1 + exact_stretch(VALID))


BURSTS = [(10, 100, SECOND), (1, 10, SECOND), (100, 7, 3 * SECOND), (5, 100_000, SECOND), (1000, 1000, SECOND)]


@pytest.mark.parametrize(("capacity", "count", "per"), BURSTS, ids=str)
def test_bucket_never_runs_over(subject: LawSubject, examples: int, capacity: int, count: int, per: int) -> None:
    """A bucket keeps its capacity and rate between any two moments, wherever the starts fall."""
    made = BurstSettings.of(capacity, count, per, valid_us=VALID)
    gap = max(2, per // count)
    drawn = programs([1, gap, 5 * gap, VALID, capacity * gap, 2 * SECOND], capacity)
    run_programs(examples, drawn, lambda program: Ledger(subject, made, check_burst).run(program))


def test_bucket_gives_back_each_cost_once(subject: LawSubject) -> None:
    """A cost given back and taken by another is not given back a second time."""
    ledger = Ledger(subject, BurstSettings(10, SECOND, 0, 0), check_burst)
    ledger.ask(5)
    ledger.ask(5)
    ledger.correct("give_back", ledger.tickets[0], 5)
    ledger.ask(5)
    ledger.now += 5 * SECOND
    ledger.ask(5)
    ledger.correct("give_back", ledger.tickets[1], 5)
    ledger.correct("give_back", ledger.tickets[2], 5)
    assert ledger.ask(5) == ledger.now
    assert ledger.ask(1, MANY) == ledger.now + SECOND


def test_bucket_knows_receipts_of_a_state_that_was_removed(subject: LawSubject) -> None:
    """A bucket accepts no stale receipts after its state was removed at rest, though corrections moved them ahead."""
    ledger = Ledger(subject, BurstSettings(10, SECOND, 0, 0), check_burst)
    for _ in range(5):
        ledger.ask(10)
        ledger.correct("give_back", ledger.tickets[-1], 10)
    ledger.ask(10)
    ledger.now += 10 * SECOND
    assert ledger.look().is_at_rest
    ledger.state = ""
    ledger.ask(10)
    ledger.correct("give_back", ledger.tickets[-2], 10)
    assert ledger.ask(10, 0) is None


def test_bucket_of_another_capacity_counts_what_was_started(subject: LawSubject, examples: int) -> None:
    """After a change of its capacity or the validity of tickets, a bucket counts all earlier starts."""
    sets = [
        BurstSettings.of(capacity, 100, SECOND, valid_us=valid)
        for capacity in (3, 10, 30)
        for valid in (0, VALID, 5 * VALID)
    ]
    drawn = programs([1, 10_000, VALID, 100_000, 300_000], 10, sets=sets)
    run_programs(examples, drawn, lambda program: Ledger(subject, sets[4], check_burst).run(program))


WINDOWS = [(1, SECOND), (10, SECOND), (100, 10 * SECOND), (7, 1000), (1000, 60 * SECOND)]


@pytest.mark.parametrize(("amount", "per"), WINDOWS, ids=str)
def test_no_window_holds_more(subject: LawSubject, examples: int, amount: int, per: int) -> None:
    """No window exceeds its amount, both ends included, wherever the starts fall."""
    made = WindowSettings.of(amount, per, valid_us=VALID)
    drawn = programs([1, per // 64, per // 3, per, VALID, 2 * per], amount)
    run_programs(examples, drawn, lambda program: Ledger(subject, made, check_window).run(program))


def test_window_gives_back_where_the_ticket_counts(subject: LawSubject) -> None:
    """A window gives back in the part where a ticket counts, and nothing once that part has left the window."""
    made = WindowSettings(10, SECOND, VALID)
    ledger = Ledger(subject, made, check_window)
    ledger.ask(5)
    ledger.now += 900_000
    ledger.ask(5)
    ledger.correct("give_back", ledger.tickets[0], 5)
    ledger.now += 400_000
    assert ledger.ask(5) == ledger.now
    assert ledger.ask(5, 0) is None
    ledger.now += 630_000  # the second part has left
    assert ledger.ask(5, 0) == ledger.now
    ledger.correct("give_back", ledger.tickets[1], 5)
    assert ledger.ask(1, 0) is None


def test_other_windows_count_what_was_started(subject: LawSubject, examples: int) -> None:
    """After changes of amount, width or validity of tickets, a window counts all earlier starts."""
    sets = [
        WindowSettings.of(amount, SECOND, valid_us=valid) for amount in (3, 10, 30) for valid in (0, VALID, 5 * VALID)
    ]
    waits = [1, 10_000, 100_000, 500_000, SECOND]
    long = WindowSettings.of(20, 2 * SECOND, valid_us=VALID)
    drawn = st.tuples(programs(waits, 10, sets=[long]), programs(waits, 10, sets=sets))
    run_programs(
        examples, drawn, lambda both: Ledger(subject, long, check_window).run([*both[0], ("set", sets[4]), *both[1]])
    )


@pytest.mark.parametrize("seed", [0, 2])
def test_long_history_keeps_the_window(subject: LawSubject, seed: int) -> None:
    """A window holds over a long history in which its log always has all of its parts."""
    made = WindowSettings.of(640, SECOND, valid_us=VALID)
    ledger = Ledger(subject, made, check_window)
    costs = itertools.cycle([3, 5, 1 + seed, 8, 2])
    while ledger.now < START + 2 * SECOND:
        ledger.ask(next(costs), 5000)
        ledger.now += 6000 + 1000 * seed
    assert 60 <= ledger.state.count(":") <= 66


# Quotas.

DAY = 10 * SECOND


def quota_at(time: int, amount: int, jitter: int = 0, *, behind: int = 0, late: int = LATE) -> QuotaSettings:
    """Return the settings of a peer whose calendar is off by ``jitter`` and may be ``behind`` by some periods."""
    number = (time - START) // DAY + 1 - behind
    begin = START + (number - 1) * DAY + jitter
    return QuotaSettings(amount, 2, number + 1000, begin, begin + DAY, begin + 2 * DAY, VALID, late)


def check_quota(ledger: Ledger) -> None:
    """By any calendar within the bounds, starts of a period cost no more than the quota."""
    new = ledger.tickets[-1]
    for number in range((new.t - START) // DAY - 1, (new.last - START) // DAY + 2):
        begin, end = START + number * DAY, START + (number + 1) * DAY
        for early, late in itertools.product((-LATE // 2, LATE // 2), repeat=2):
            begin_there, end_there = begin + early, end + late
            inside = [ticket for ticket in ledger.tickets if ticket.t < end_there and ticket.last >= begin_there]
            if new in inside:
                assert sum(ticket.cost for ticket in inside) <= ledger.settings.amount


def test_no_period_holds_more_than_the_quota(subject: LawSubject, examples: int) -> None:
    """No period exceeds its quota by any calendar within the bounds, with each start on its worse side."""
    waits = [1, VALID, LATE, DAY // 2, DAY - LATE, DAY]
    off = st.tuples(
        st.integers(-LATE // 2, LATE // 2), st.sampled_from([0, 0, 0, 1, -1]), st.sampled_from([10, 10, 5, 20])
    )

    def run(program_and_offs) -> None:
        program, offs = program_and_offs
        ledger = Ledger(subject, quota_at(START, 10), check_quota)
        ledger.now += DAY - VALID - LATE - 5000
        jitters = itertools.cycle(offs)
        for step in program:
            jitter, behind, amount = next(jitters)
            ledger.settings = quota_at(ledger.now, amount, jitter, behind=behind)
            ledger.run([step])

    run_programs(examples, st.tuples(programs(waits, 6), st.lists(off, min_size=1)), run)


def test_start_near_the_end_of_a_period_counts_in_both(subject: LawSubject) -> None:
    """A ticket that may start on either side of a period's end counts in both, and waits if one is used up."""
    ledger = Ledger(subject, quota_at(START, 2), check_quota)
    end = START + DAY
    ledger.now = end - VALID - LATE - 1
    assert ledger.ask(1) == ledger.now
    ledger.now += 1
    assert ledger.ask(1) == ledger.now
    ledger.now = end + LATE - 1
    assert subject.decide(ledger.now, ledger.now, [(ledger.settings.write(), ledger.state, 1)]).at == end + LATE
    ledger.settings = quota_at(end, 2)
    ledger.now = end - 1
    assert ledger.ask(1) == end + LATE, "the first period is used up"
    assert ledger.ask(1, DAY // 2) is None, "one ticket of the second period was taken before it began"
    assert ledger.look()[:3] == (False, 2, 2)


def test_quota_waits_for_the_next_period(subject: LawSubject) -> None:
    """A ticket over the quota waits for the next period, as far ahead as the settings know."""
    ledger = Ledger(subject, quota_at(START, 2), check_quota)
    assert ledger.ask(2) == START
    ledger.now += 1
    assert ledger.subject.decide(ledger.now, ledger.now, [(ledger.settings.write(), ledger.state, 1)])[:2] == (
        START + DAY + LATE,
        0,
    )
    assert ledger.ask(2, MANY) == START + DAY + LATE
    refused = ledger.subject.decide(ledger.now, ledger.now + MANY, [(ledger.settings.write(), ledger.state, 1)])
    assert refused[:3] == (START + 2 * DAY + LATE, 0, None)
    assert ledger.ask(3) is None


def test_cost_added_with_old_settings_is_not_lost(subject: LawSubject) -> None:
    """A cost added with outdated settings is charged to each period to which the ticket may belong."""
    ledger = Ledger(subject, quota_at(START + 5 * DAY, 10), check_quota)
    ledger.now += 5 * DAY + SECOND
    ledger.ask(2)
    for behind in (3, 1, -1, -2):
        ledger.settings = quota_at(ledger.now, 10, behind=behind)
        ledger.correct("add", ledger.tickets[0], 2)
    ledger.settings = quota_at(ledger.now, 10)
    assert ledger.look().used >= 10


def test_period_that_is_forgotten_is_used_up(subject: LawSubject) -> None:
    """A period already forgotten, as after a clock went back, counts as used up."""
    ledger = Ledger(subject, quota_at(START + 5 * DAY, 10), check_quota)
    ledger.now += 5 * DAY + SECOND
    ledger.ask(2)
    ledger.now -= 5 * DAY
    ledger.settings = quota_at(ledger.now, 10)
    assert ledger.ask(1, MANY) is None


def test_another_calendar_counts_what_the_old_one_remembers(subject: LawSubject) -> None:
    """After a change of calendar, what was used of the running day counts in the running hour."""
    ledger = Ledger(subject, quota_at(START, 10), check_quota)
    ledger.now += SECOND
    ledger.ask(7)
    hour = QuotaSettings(10, 1, 77, START, START + 3600 * SECOND, START + 7200 * SECOND, VALID, LATE)
    ledger.settings = hour
    assert ledger.ask(4) is None
    assert ledger.ask(3) == ledger.now
    assert ledger.look().used == 10


# Corrections.


def test_costs_added_make_the_next_one_wait(subject: LawSubject) -> None:
    """A cost added to a ticket delays the next one by its size, under each kind of limit."""
    for made, later in [
        (PaceSettings.of(10, SECOND, stretch=Fraction(0)), 600_000),
        (BurstSettings(5, 100_000, 0, 0), 600_000),
        (WindowSettings(5, SECOND, 0), SECOND + 1),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None)
        ledger.ask(1)
        ledger.correct("add", ledger.tickets[0], 9)
        assert ledger.look().used >= 9
        if isinstance(made, PaceSettings):
            later = SECOND
        assert ledger.ask(1, MANY) == START + later


REDATED = [
    PaceSettings.of(10, SECOND),
    BurstSettings.of(5, 10, SECOND, valid_us=VALID),
    WindowSettings.of(5, SECOND, valid_us=VALID),
]


@pytest.mark.parametrize("made", REDATED, ids=str)
@pytest.mark.parametrize("step", [-86_400 * SECOND, -1, 0, SECOND, 86_400 * SECOND])
def test_limit_that_is_redated_counts_as_if_it_were_used_just_then(
    subject: LawSubject, made: LimitSettings, step: int
) -> None:
    """A redated limit waits as long as if everything had been used at that time, whatever the clock showed before."""
    ledger = Ledger(subject, made, lambda ledger: None)
    ledger.ask(5)
    ledger.now += VALID
    fresh = Ledger(subject, made, lambda ledger: None)
    ledger.now = fresh.now = START + step + SECOND
    ledger.redate(ledger.now)
    fresh.ask(5)
    assert fresh.look().used <= ledger.look().used <= 5
    asked = [each.ask(1, MANY) for each in (fresh, ledger)]
    assert ledger.now < asked[0] - VALID <= asked[1] <= asked[0] + VALID


def test_quota_that_is_redated_counts_in_its_period(subject: LawSubject) -> None:
    """A redated quota counts in the period of that time, and gives nothing back of earlier tickets."""
    ledger = Ledger(subject, quota_at(START, 5), lambda ledger: None)
    ledger.now += SECOND
    ledger.ask(5)
    ledger.now += SECOND
    ledger.redate(ledger.now)
    ledger.correct("give_back", ledger.tickets[0], 5)
    assert ledger.look().used == 5


@pytest.mark.parametrize("made", REDATED, ids=str)
def test_limit_that_is_redated_gives_nothing_back_of_what_was_before(subject: LawSubject, made: LimitSettings) -> None:
    """A redated limit gives nothing back of earlier tickets, whose times are not known any more."""
    ledger = Ledger(subject, made, lambda ledger: None)
    ledger.ask(5)
    ledger.redate(ledger.now + SECOND)
    before = ledger.state
    ledger.correct("give_back", ledger.tickets[0], 5)
    assert ledger.state == before


def test_quota_is_at_rest_when_its_periods_are_over(subject: LawSubject) -> None:
    """A quota is at rest once its periods are over by every calendar."""
    made = quota_at(START, 5)
    ledger = Ledger(subject, made, lambda ledger: None)
    ledger.now = made.end_us - 1
    ledger.ask(5)
    for ledger.now, is_over in ((made.next_end_us + LATE - 1, False), (made.next_end_us + LATE, True)):
        assert is_over is ledger.look().is_at_rest


def test_costs_given_back_are_there_again(subject: LawSubject) -> None:
    """A cost given back is available again, once."""
    for made in [
        PaceSettings.of(10, SECOND),
        BurstSettings.of(5, 10, SECOND, valid_us=VALID),
        WindowSettings.of(5, SECOND, valid_us=VALID),
        quota_at(START, 5),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None)
        ledger.now += SECOND
        ledger.ask(5)
        assert ledger.ask(1, 0) is None
        ledger.correct("give_back", ledger.tickets[0], 5)
        assert ledger.ask(5, VALID) is not None


def test_bucket_under_load_gives_back_what_long_tasks_did_not_use(subject: LawSubject) -> None:
    """A bucket whose tickets reserve ten times their use, and settle a second later, is used up to nearly its rate."""
    made = BurstSettings.of(60_000, 1000, SECOND, valid_us=VALID)
    ledger = Ledger(subject, made, lambda ledger: None)
    used, open_tickets = 0, []
    while ledger.now < START + 90 * SECOND:
        if ledger.ask(1000, 0) is not None:
            open_tickets.append(ledger.tickets[-1])
        while open_tickets and open_tickets[0].t <= ledger.now - SECOND:
            ledger.correct("give_back", open_tickets.pop(0), 900)
            used += 100
        ledger.now += 90_000
    assert used >= 0.97 * 1000 * 90


def test_receipts_of_before_the_state_give_nothing_back(subject: LawSubject) -> None:
    """A receipt from before a state was removed at rest gives nothing back."""
    for made in [
        PaceSettings.of(10, SECOND),
        BurstSettings.of(5, 10, SECOND, valid_us=VALID),
        WindowSettings.of(5, SECOND, valid_us=VALID),
        quota_at(START, 5),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None)
        ledger.now += SECOND
        ledger.ask(5)
        ledger.now += 3 * SECOND
        ledger.state = ""
        ledger.ask(5)
        state = ledger.state
        ledger.correct("give_back", ledger.tickets[0], 5)
        ledger.correct("give_back", ledger.tickets[0], 5)
        assert ledger.state == state


# Other settings.


def test_lowered_settings_hold_at_once(subject: LawSubject) -> None:
    """Lowered settings apply at once, and count what was started before."""
    for before, after, at in [
        (PaceSettings.of(100, SECOND, stretch=Fraction(0)), PaceSettings.of(1, SECOND, stretch=Fraction(0)), SECOND),
        (BurstSettings(10, 10_000, 0, 0), BurstSettings(5, SECOND, 0, 0), 6 * SECOND),
        (WindowSettings(10, SECOND, 0), WindowSettings(9, SECOND, 0), SECOND + 1),
    ]:
        ledger = Ledger(subject, before, lambda ledger: None)
        for _ in range(1 if isinstance(before, PaceSettings) else 10):
            assert ledger.ask(1) == START
        ledger.settings = after
        assert ledger.ask(1, MANY) == START + at


def test_raised_settings_hold_at_once(subject: LawSubject) -> None:
    """Raised settings apply at once, without waiting for the old gap."""
    for before, after in [
        (PaceSettings.of(1, 86_400 * SECOND), PaceSettings.of(100, SECOND, stretch=Fraction(0))),
        (BurstSettings(1, 86_400 * SECOND, 0, 0), BurstSettings(1, 10_000, 0, 0)),
        (WindowSettings(1, 86_400 * SECOND, 0), WindowSettings(1, 9_999, 0)),
    ]:
        ledger = Ledger(subject, before, lambda ledger: None)
        ledger.ask(1)
        ledger.settings = after
        assert ledger.ask(1, MANY) == START + 10_000


def test_paces_of_any_settings_keep_the_gap_in_force(subject: LawSubject, examples: int) -> None:
    """Under changing paces each start is a gap of the settings in force after the previous one."""
    sets = [PaceSettings.of(count, per) for count, per in PACES]
    drawn = programs([1, 1000, 500_000, 60 * SECOND], 3, adds=False, sets=sets)

    def run(program) -> None:
        Ledger(subject, sets[0], check_neighbours).run(
            [step for step in program if step[0] not in ("give_back", "sweep")]
        )

    run_programs(examples, drawn, run)


def test_nothing_starts_at_zero(subject: LawSubject) -> None:
    """A limit of 0 admits nothing and says so, until other settings apply."""
    for none, some in [
        (PaceSettings.of(0, SECOND), PaceSettings.of(5, SECOND)),
        (BurstSettings.of(5, 0, SECOND, valid_us=0), BurstSettings.of(5, 5, SECOND, valid_us=0)),
        (WindowSettings.of(0, SECOND, valid_us=0), WindowSettings.of(5, SECOND, valid_us=0)),
        (quota_at(START, 0), quota_at(START, 5)),
    ]:
        ledger = Ledger(subject, none, lambda ledger: None)
        ledger.now += SECOND
        assert subject.decide(ledger.now, ledger.now + MANY, [(none.write(), "", 1)]) == (None, 0, None, [""])
        ledger.settings = some
        assert ledger.ask(5) == ledger.now


# Rest, insight, and how much can be used.


def test_limits_come_to_rest(subject: LawSubject) -> None:
    """A limit is at rest only once it would decide as one without a state; then all of it is free."""
    for made, rest in [
        (PaceSettings(100_000, 1), 500_001),
        (BurstSettings(5, 100_000, 0, VALID), 500_000 + VALID),
        (WindowSettings(5, SECOND, VALID), SECOND + VALID + 1),
        (quota_at(START, 5), DAY - SECOND + LATE),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None)
        ledger.now += SECOND
        assert ledger.look() == (True, 0, 1 if isinstance(made, PaceSettings) else 5, ledger.look().until)
        ledger.ask(5)
        begun = ledger.now
        assert ledger.look().used == 5
        ledger.now = begun + rest - 1
        assert not ledger.look().is_at_rest
        ledger.now += 1
        assert ledger.look().is_at_rest
        assert not ledger.look().used


USES = [
    (WindowSettings.of(1000, SECOND, valid_us=VALID), 1000, SECOND, 0.975),
    (WindowSettings.of(1000, 10 * SECOND, valid_us=VALID), 1000, 10 * SECOND, 0.98),
    (WindowSettings.of(1000, 60 * SECOND, valid_us=VALID), 1000, 60 * SECOND, 0.98),
    (BurstSettings.of(100, 100, SECOND, valid_us=VALID), 100, SECOND, 0.999),
    (BurstSettings.of(10, 1000, 10 * SECOND, valid_us=VALID), 1000, 10 * SECOND, 0.999),
    (PaceSettings.of(100, SECOND, stretch=exact_stretch(VALID)), 100, SECOND, 0.979),
    (PaceSettings.of(99_999, SECOND), 99_999, SECOND, 0.999),
]


@pytest.mark.parametrize(
    ("made", "count", "per", "part"), USES, ids=lambda each: str(each) if isinstance(each, LimitSettings) else ""
)
@pytest.mark.parametrize("spread", [0, 1, 7], ids=["at once", "costs", "in a trickle at first"])
def test_limit_is_used(made: LimitSettings, count: int, per: int, part: float, spread: int) -> None:
    """Under constant demand of mixed costs a limit is used almost completely."""
    ledger = Ledger(InPython(), made, lambda ledger: None)
    costs = itertools.cycle([1] if spread == 0 else [1, 3, 2, 5, 1])
    begin, end = START + 2 * per, START + 7 * per
    if count > 10_000:
        begin, end = START + per // 100, START + per // 20
    used = 0
    while (at := ledger.ask(next(costs), MANY)) < end:
        used += ledger.tickets[-1].cost if at >= begin else 0
        ledger.now = max(at, ledger.now + (per // 200 if spread == 7 and at < begin else 0))
    assert used / (count * (end - begin) / per) >= part


@pytest.mark.parametrize("place", range(4), ids=["pace", "window", "burst", "quota"])
def test_ticket_of_cost_zero_counts_once_it_costs_more_and_waits_for_a_deficit(subject: LawSubject, place: int) -> None:
    """A ticket of cost 0 changes nothing, counts what is added to it, and is refused while the limit is in deficit."""
    ledger = Ledger(subject, joint()[place], lambda _: None)
    one, other = ledger.ask(0), ledger.ask(0)
    assert (one, other, ledger.state) == (START, START, "")
    ledger.now += 1000
    ledger.correct("add", ledger.tickets[0], 300)
    assert ledger.look().used >= 299
    assert not ledger.look().is_at_rest
    assert ledger.ask(0) is None
    assert ledger.ask(1) is None
    ledger.correct("add", ledger.tickets[1], 1)
    first, again = (subject.decide(ledger.now, 0, [(ledger.settings.write(), ledger.state, cost)]) for cost in (0, 1))
    assert (first.holder, again.holder) == (0, 0)
    assert ledger.now < first.at <= again.at
    ledger.now = first.at - 1
    assert ledger.ask(0, 0) is None
    ledger.now = first.at
    assert ledger.ask(0, 0) == first.at


def test_ticket_of_cost_zero_that_is_older_than_the_log_counts(subject: LawSubject) -> None:
    """A ticket of cost 0 counts what is added to it, also if a later ticket has begun the log of a window."""
    ledger = Ledger(subject, WindowSettings.of(1, SECOND, valid_us=VALID), check_window)
    ledger.ask(0)
    ledger.now += 500_000
    ledger.ask(1)
    ledger.correct("add", ledger.tickets[0], 1)
    assert ledger.ask(0) is None
    ledger.now += 10 * SECOND
    assert ledger.ask(1) == ledger.now
    ledger.correct("add", ledger.tickets[0], 5)
    assert ledger.ask(0) == ledger.now, "it has left the window"


# All or nothing.


def joint() -> list[LimitSettings]:
    """Return one limit of each kind."""
    return [
        PaceSettings.of(50, SECOND),
        WindowSettings.of(20, SECOND, valid_us=VALID),
        BurstSettings.of(10, 20, SECOND, valid_us=VALID),
        quota_at(START, 100),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ticket_is_taken_of_all_limits_at_their_first_common_time(
    subject: LawSubject, examples: int, count: int
) -> None:
    """A ticket under several limits is admitted at their first common time; a refusal changes none, and names one."""
    limits = joint()[:count]
    steps = st.tuples(
        st.integers(0, 200_000), st.lists(st.integers(0, 12), min_size=count, max_size=count), st.booleans()
    )

    def run(program) -> None:
        now, states = START, [""] * count
        for wait, costs, is_patient in program:
            now += wait
            entries = [*zip([limit.write() for limit in limits], states, costs, strict=True)]
            alone = [subject.decide(now, now + MANY, [entry]) for entry in entries]
            horizon = now + (MANY if is_patient else 50_000)
            got = subject.decide(now, horizon, entries)
            if any(each.at is None for each in alone):
                assert got[:3] == (None, next(i for i, each in enumerate(alone) if each.at is None), None)
                continue
            assert got.at >= max(each.at for each in alone)
            if got.receipts is None:
                assert got.states == [""] * count
                assert got.at > horizon or (3 in range(count) and got.at >= START + 2 * DAY)
                assert alone[got.holder].at > now or count == 4
                continue
            for place, (made, state, cost) in enumerate(entries):
                if cost:
                    assert subject.decide(got.at, got.at, [(made, state, cost)]).receipts == [got.receipts[place]]
                    if place == got.holder:
                        assert subject.decide(got.at - 1, got.at - 1, [(made, state, cost)]).receipts is None
                assert bool(got.states[place]) == bool(cost)
            assert (got.holder is None) == (got.at == now)
            states = [new or old for new, old in zip(got.states, states, strict=True)]

    run_programs(examples // 2 + 1, st.lists(steps, max_size=15), run)


def test_time_of_one_limit_is_asked_of_the_others_again(subject: LawSubject) -> None:
    """The time that one limit allows is checked against the others again, such as a quota of the next period."""
    quota, window = quota_at(START, 2), WindowSettings(1, DAY - SECOND - 1000, 0)
    now = START + SECOND
    first = subject.decide(now, now, [(quota.write(), "", 0), (window.write(), "", 1)])
    ahead = START + DAY + LATE
    second = subject.decide(ahead, ahead, [(quota.write(), "", 2)])
    entries = [(quota.write(), second.states[0], 1), (window.write(), first.states[1], 1)]
    assert subject.decide(now, now + MANY, entries) == (START + 2 * DAY + LATE, 0, None, ["", ""])
    assert subject.decide(now, now + MANY, entries[:1]).at == now


def test_refusal_names_the_limit_that_holds_longest(subject: LawSubject) -> None:
    """A refusal names the limit that holds longest, with its time, and takes nothing of the others."""
    pace, window = PaceSettings(1000, 0), WindowSettings(1, SECOND, 0)
    states = subject.decide(START, START, [(pace.write(), "", 1), (window.write(), "", 1)]).states
    again = subject.decide(START, START + 250_000, [(pace.write(), states[0], 1), (window.write(), states[1], 1)])
    assert again == (START + SECOND + 1, 1, None, ["", ""])
    assert subject.decide(START, START, [(window.write(), states[1], 1), (pace.write(), states[0], 2)])[1] == 0
    never = subject.decide(START, START, [(pace.write(), states[0], 1), (window.write(), states[1], 2)])
    assert never == (None, 1, None, ["", ""])
    assert subject.decide(START, START, [(window.write(), states[1], 0)]) == (START, None, [START], [""]), (
        "a request with a cost of 0 does not wait for what is used, and changes nothing"
    )


# Texts.

BAD_SETTINGS = [
    "", "p", "p,1", "p,0,0", "p,-1,0", "p,1,1000000", "p,1.5,0", "p,1,0,0", "p,1125899906842625,0", "x,1,0", "p,9007199254740993,0",
    "b,10,1000,0", "b,4503599627370497,1,0,0", "b,2000000000000,1000,0,0", "b,1,1,0,60000001", "b,1,1,0,nan",
    "w,10,0,0", "w,10,1125899906842624,0", "w,1e3,10,0", "w,10,1000,60000001", "w,99999999999999999999,1000,0",
    "q,1,1,0,1000000,2000000,3000000,0,0", "q,1,1,5,2000000,1000000,3000000,0,0", "q,1,1,5,1000000,1000010,3000000,5,5",
    "q,1,1,5,10,2000000,4000000,20,0", "q,1,1,5,1000000,2000000", "p," + "0" * 140 + "1,0", "w,10,1000,0 ", "w, 10,1000,0", "W,10,1000,0", "w,10,1000,٣",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_SETTINGS)
def test_settings_that_nobody_can_have_written_are_not_believed(subject: LawSubject, text: str) -> None:
    """Settings that cannot have been written are rejected."""
    with pytest.raises(UnsoundError):
        subject.decide(START, START, [(text, "", 1)])


ALL = [PaceSettings(1000, 5), BurstSettings(10, 1000, 5, VALID), WindowSettings(10, SECOND, VALID), quota_at(START, 10)]


def texts_of(made: LimitSettings) -> list[str]:
    """Return states that a limit may have."""
    ledger = Ledger(InPython(), made, lambda ledger: None)
    ledger.now += SECOND
    texts = []
    for cost in (1, 2, 1, 3, 2):
        ledger.ask(cost, MANY)
        ledger.now += 300_000
        texts.append(ledger.state)
    return texts


@pytest.mark.parametrize("made", ALL, ids=str)
def test_spoilt_state_is_not_believed(subject: LawSubject, made: LimitSettings) -> None:
    """A damaged state, or one of another version, kind or later age, is rejected, and a sound one is not."""
    text = texts_of(made)[-1]
    subject.look(START + 3 * SECOND, made.write(), text)
    head = text[:2]
    others = [each for other in ALL for each in texts_of(other)[:1] if not each.startswith(head)]
    numbers = text.split(",")
    spoilt = [
        "garbage", "0", " ", "-", text + " ", text + ",1", " " + text, text[:-1] + "x", text.replace(head, head[0] + "2"), *others,
        text.replace(",", ";"), ",".join(numbers[:-1]), ",".join([*numbers[:-1], "-1"]), ",".join([*numbers[:-1], "9" * 400]),
        ",".join([*numbers[:-1], "9007199254740992"]), ",".join([*numbers[:-1], "1e3"]), ",".join([*numbers[:-1], "nan"]),
    ]  # fmt: skip
    if not isinstance(made, QuotaSettings):
        spoilt.append(text.replace(text.split(",")[-2], "17" * 8))
    for each in spoilt:
        with pytest.raises(UnsoundError):
            subject.look(START + 3 * SECOND, made.write(), each)
    with pytest.raises(UnsoundError):
        subject.look(START - 3600 * SECOND, made.write(), text)


def test_every_bit_of_a_window_is_checked(subject: LawSubject) -> None:
    """Changing any character of a window's state is detected."""
    made = ALL[2]
    text = texts_of(made)[-1]
    assert ":" in text
    for place in range(len(text)):
        for other in "0:,;9":
            if text[place] != other:
                with pytest.raises(UnsoundError):
                    subject.look(START + 3 * SECOND, made.write(), text[:place] + other + text[place + 1 :])


@pytest.mark.parametrize("made", ALL, ids=str)
def test_one_call_does_what_many_do(subject: LawSubject, examples: int, made: LimitSettings) -> None:
    """One call with many steps gives the same result as many calls: the text holds the whole state."""
    numbers = st.integers(0, 20), st.integers(1, 4), st.sampled_from([0, 0, 1, -1, 100_000])
    step = st.one_of(
        st.tuples(
            st.just("ask"), st.sampled_from([1, 3, 10]), st.sampled_from([0, 100_000, 300_000, 2 * SECOND]), st.just(0)
        ),
        st.tuples(st.sampled_from(["add", "give_back"]), *numbers),
    )

    def run(program) -> None:
        wait, steps = program
        ledger = Ledger(subject, made, lambda ledger: None)
        ledger.now += SECOND
        for cost in (2, 1, 3, 1, 1, 2, 1, 1, 1, 2, 1):
            ledger.ask(cost, MANY)
            ledger.now += 70_000
        ledger.now = max(ledger.now, max(ticket.t for ticket in ledger.tickets) - SECOND) + wait
        known = [(ticket.t, ticket.receipt) for ticket in ledger.tickets]
        told = []
        for name, place, cost, off in steps:
            t, receipt = known[place % len(known)]
            told.append((name, place, cost, 0) if name == "ask" else (name, t, cost, receipt + off))
        state, times = ledger.state, []
        for one in told:
            changed, time = subject.batch(ledger.now, ledger.now + 5 * SECOND, made.write(), state, [one])
            state, times = changed or state, times + time
        changed, together = subject.batch(ledger.now, ledger.now + 5 * SECOND, made.write(), ledger.state, told)
        assert (changed or ledger.state, together) == (state, times)

    run_programs(examples, st.tuples(st.integers(0, 3 * SECOND), st.lists(step, max_size=12)), run)


def test_log_that_has_run_out_begins_anew_within_a_call(subject: LawSubject) -> None:
    """A log that has run out starts again within a call, without times of its old parts."""
    made = WindowSettings(10, SECOND, VALID)
    later = [0, 300_000, 2 * SECOND, 2_300_000, 2_600_000, 3_300_000, 3_320_002, 3_600_000]
    state, times = subject.batch(START, START + MANY, made.write(), "", [("ask", 5, each, 0) for each in later])
    expected = [0, 300_000, 2 * SECOND, 2_300_000, 3_020_001, 3_320_001, 4_040_002, 4_340_002]
    assert [str(START + each) for each in expected] == times
    assert (5, 10) == subject.look(START + 5_360_002, made.write(), state)[1:3]


def test_part_in_the_middle_is_corrected_after_others_have_left(subject: LawSubject) -> None:
    """A part in the middle is corrected after others have left, within one call as over several."""
    made = WindowSettings(10, SECOND, VALID)
    told = [("ask", 2, each * 300_000, 0) for each in range(5)]
    told += [("give_back", START + 600_000, 1, START + 620_000), ("ask", 2, 1_500_000, 0), ("ask", 1, 1_500_000, 0)]
    state, times = "", []
    for one in told:
        changed, time = subject.batch(START, START + MANY, made.write(), state, [one])
        state, times = changed or state, times + time
    assert subject.batch(START, START + MANY, made.write(), "", told) == (state, times)
    assert times[-2:] == [str(START + 1_500_000)] * 2


def test_both_say_the_same(redis_server) -> None:
    """Python and Lua agree in every answer and every state, under changing settings with huge numbers."""
    huge = [1, 7, 1000, 1 << 33, 1 << 52]
    sets = [
        [*(PaceSettings.of(count, per) for count, per in PACES), PaceSettings.of(0, 1), PaceSettings(0, 1), PaceSettings(FAR - 1, 999_999),
         *(BurstSettings.of(*each, valid_us=VALID) for each in BURSTS), BurstSettings(1 << 52, 0, 1, 0), BurstSettings(5, FAR, 0, 7)],
        [*(WindowSettings.of(*each, valid_us=VALID) for each in WINDOWS), WindowSettings(1 << 52, SECOND, 0), WindowSettings(5, FAR - 1, 9)],
        [quota_at(START, 10), quota_at(START + DAY, 10), quota_at(START + 7 * DAY, 5), quota_at(START, 1 << 52),
         QuotaSettings(9, 1, 7, START, START + SECOND, START + 2 * SECOND, 0, 0)],
    ]  # fmt: skip
    costs = st.one_of(st.integers(0, 12), st.sampled_from(huge))
    place = st.integers(0, 30)
    step = st.one_of(
        st.tuples(st.just("wait"), st.one_of(st.integers(1, 3 * SECOND), st.sampled_from([1, 60 * SECOND, FAR]))),
        *[st.tuples(st.just("ask"), costs, st.sampled_from([0, 250_000, FAR]))] * 3,
        st.tuples(st.sampled_from(["add", "give_back"]), place, costs, st.sampled_from([0, 0, 1, -1, SECOND, 1 << 40])),
        st.tuples(st.just("set"), place),
        st.tuples(st.just("redate"), st.sampled_from([0, 1, SECOND])),
    )
    with redis_server.client() as client:
        one, other = InPython(), InLua(client)

        @quick(max_examples=2 * PROGRAMS)
        @given(st.integers(0, 2), st.lists(step, min_size=5, max_size=25))
        def run(kind: int, program: list) -> None:
            made, now, state = sets[kind][0].write(), START, ""
            tickets = [(START, START)]
            for name, *values in program:
                if name == "wait":
                    now = min(now + values[0], 2 * START)
                elif name == "set":
                    made = sets[kind][values[0] % len(sets[kind])].write()
                elif name == "ask":
                    entries = [(made, state, values[0])]
                    got = one.decide(now, now + values[1], entries)
                    assert got == other.decide(now, now + values[1], entries)
                    state = got.states[0] or state
                    if got.receipts is not None:
                        tickets.append((got.at, got.receipts[0]))
                elif name == "redate":
                    now += values[0]
                    got = one.correct(name, 1 << 52, made, state, (now,))
                    assert got == other.correct(name, 1 << 52, made, state, (now,))
                    state = got or state
                else:
                    t, receipt = tickets[-1 - values[0] % len(tickets)]
                    numbers = (t, values[1], max(0, receipt + values[2]))
                    got = one.correct(name, now, made, state, numbers)
                    assert got == other.correct(name, now, made, state, numbers)
                    state = got or state
                try:
                    look = one.look(now, made, state)
                except UnsoundError:  # the horizon was too far for a state
                    state = ""
                else:
                    assert look == other.look(now, made, state)

        run()
