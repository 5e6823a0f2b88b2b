"""The laws of limits that a fleet shares, checked in Python and in Lua on a real server.

A ticket admitted at t is used at some time in [t, t + life] that an adversary chooses; once its start is reported, in
[t, the reported time]. So the ledger asks for each set of tickets if their starts *may* fall into one window, and not
where they did. After each admission the law is checked for all windows in which the new ticket may lie, with the costs
known by then. Tickets are asked for at random times ahead, so that later ones come before earlier ones.
"""

import itertools
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.laws import at_rest
from ratelimited_executor._core.fleet.limit_settings import (
    DRIFT,
    BurstSettings,
    LimitSettings,
    PaceSettings,
    QuotaSettings,
    WindowSettings,
)

from .binaries import KINDS
from .law_subjects import InLua, InPython, LawSubject, UnsoundError
from .servers import RedisServer

pytestmark = pytest.mark.real_time("a real server, on one side")

PROGRAMS = int(os.environ.get("LAW_PROGRAMS", "20"))  # programs drawn for each property
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
    """An admission: its time t, the last moment of its start, its cost as far as known, and its receipt."""

    def __init__(self, t: int, life: int, cost: int, receipt: int) -> None:
        self.t, self.last, self.cost, self.receipt = t, t + life, cost, receipt
        self.taken = cost  # of a pace's numbers
        self.is_reported = False


class Ledger:
    """One limit of a subject, and its tickets.

    Attributes:
        check: checks the tickets after each admission.
    """

    def __init__(
        self, subject: LawSubject, made: LimitSettings, check: Callable[["Ledger"], None], *, life: int | None = None
    ) -> None:
        self.subject, self.settings, self.check = subject, made, check
        self.now, self.state = START, ""
        self.tickets: list[Ticket] = []
        self.redated = 0  # number of tickets at the last redating
        self._life = life

    @property
    def life(self) -> int:
        return self.settings.lives_us[0] if self._life is None else min(self._life, self.settings.lives_us[1])

    def ask(self, cost: int, horizon: int = 250_000, ahead: int = 0, *, is_report: bool = False) -> int | None:
        """Ask for a ticket, some time ahead; return its time, or None if it is refused."""
        before, begin = self.state, self.now + ahead
        if ahead:  # as if another limit admitted it only then
            wait = (WindowSettings(1, 2 * max(1, ahead)).write(), waiting(self.now, ahead), 1)
            got = self.subject.decide(
                self.now, begin + horizon, self.life, [(self.settings.write(), self.state, cost), wait]
            )
            got = got._replace(receipts=got.receipts and got.receipts[:1], states=got.states[:1])
        else:
            got = self.subject.decide(self.now, begin + horizon, self.life, [(self.settings.write(), self.state, cost)])
        if got.receipts is None:
            assert got.states == [""], "a refusal changes nothing"
            assert got.at is None or got.at > begin + horizon or isinstance(self.settings, QuotaSettings)
            return None
        assert begin <= got.at <= begin + horizon
        assert got.states[0] not in ("", before) if cost else got.states == [""], "a cost of 0 changes nothing"
        if not ahead:
            assert got.holder is None if got.at == self.now else got.holder == 0
        self.state = got.states[0] or before
        self.tickets.append(Ticket(got.at, self.life, cost, got.receipts[0]))
        self.check(self)
        if is_report:
            self.now = max(self.now, got.at)
            self.report(self.tickets[-1], got.at)
        return got.at

    def correct(self, act: str, ticket: Ticket, cost: int) -> None:
        """Add to the cost of a ticket, or give some of it back."""
        receipt = min(ticket.receipt, ticket.last) if act == "give_back" and ticket.is_reported else ticket.receipt
        is_whole = act == "give_back" and not ticket.is_reported and cost == ticket.cost == ticket.taken
        numbers = (ticket.t, cost, receipt, int(is_whole)) if act == "give_back" else (ticket.t, cost, receipt)
        self.state = self.subject.correct(act, self.now, self.settings.write(), self.state, numbers) or self.state
        ticket.cost += cost if act == "add" else -cost
        if is_whole:
            ticket.taken = 0

    def report(self, ticket: Ticket, start: int) -> None:
        """Report by when a ticket has started."""
        numbers = (start, ticket.cost, ticket.receipt)
        self.state = self.subject.correct("report", self.now, self.settings.write(), self.state, numbers) or self.state
        ticket.last, ticket.is_reported = min(ticket.last, start), True

    def run(self, program: list[tuple]) -> None:
        """Run the steps of a program."""
        for name, *values in program:
            known = self.tickets[self.redated :]  # earlier tickets are not corrected any more
            ticket = known[-1 - values[0] % len(known)] if known and values and isinstance(values[0], int) else None
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
            elif ticket is None:
                continue
            elif name == "report":
                if ticket.t <= self.now and not ticket.is_reported:
                    self.report(ticket, min(ticket.t + values[1], self.now + 1000))
            elif name == "give_back":
                self.correct(name, ticket, min(values[1], max(0, ticket.cost)))
            else:
                self.correct(name, ticket, values[1])

    def redate(self, t: int) -> None:
        """Count everything as used at time ``t``."""
        if self.state:
            self.state = self.subject.correct("redate", 1 << 52, self.settings.write(), self.state, (t,)) or self.state

    def look(self):
        """Look at the state."""
        return self.subject.look(self.now, self.settings.write(), self.state)


def waiting(now: int, ahead: int) -> str:
    """Return the state of a window that admits the next ticket only ``ahead`` from now."""
    limit = at_rest(WindowSettings(1, 2 * ahead), now - ahead - 1)
    limit.take(now - ahead - 1, 1, 0)
    return limit.write()


def programs(
    waits: list[int], cost_max: int, *, adds: bool = True, sets: list[LimitSettings] = (), ahead: int = 300_000
) -> st.SearchStrategy:
    """Draw histories of waits, tickets of some cost, horizon and time ahead, reports, corrections, sweeps and changed settings."""
    horizons = st.sampled_from([0, 1000, 250_000, 5 * SECOND])
    aheads = st.one_of(st.just(0), st.integers(0, ahead))
    ask = st.tuples(st.just("ask"), st.integers(0, cost_max), horizons, aheads)
    steps = [
        st.tuples(st.just("wait"), st.one_of(st.sampled_from(waits), st.integers(1, max(waits)))),
        ask,
        ask,
        ask,
        st.tuples(st.just("give_back"), st.integers(0, 6), st.integers(1, cost_max)),
        st.tuples(st.just("report"), st.integers(0, 6), st.integers(0, 50_000)),
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


def gap_of(made: LimitSettings) -> int:
    """Return a gap in picoseconds."""
    return made.whole_us * PS + made.rest_ps


def check_grid(ledger: Ledger) -> None:
    """Tickets have numbers of their own, which open a gap apart, and are used less than a gap after that."""
    gap = gap_of(ledger.settings)
    new = ledger.tickets[-1]
    ordered = [ticket for ticket in ledger.tickets if ticket.taken and new.taken]
    for first in (ticket for ticket in ordered if ticket.t <= new.t):
        for last in (ticket for ticket in ordered if ticket.t >= new.t):
            inside = [ticket.taken for ticket in ordered if first.t <= ticket.t <= last.t]
            assert (sum(inside) - max(inside) - 1) * gap <= (last.t - first.t + 1) * PS


def check_pace(ledger: Ledger) -> None:
    """An exact pace is a window, and a grid."""
    check_grid(ledger)
    if ledger.settings.amount:
        check_window(ledger)


def check_burst(ledger: Ledger) -> None:
    """Starts in any stretch of time cost no more than the capacity plus what accrues in it."""
    made, new = ledger.settings, ledger.tickets[-1]
    gap = gap_of(made)
    for begin in {ticket.last for ticket in ledger.tickets if ticket.last <= new.last}:
        end = max(begin, new.t)
        cost = sum(ticket.cost for ticket in ledger.tickets if ticket.t <= end and ticket.last >= begin)
        assert (cost - made.capacity) * gap <= (end - begin) * PS


def check_window(ledger: Ledger) -> None:
    """Starts in any window cost no more than the amount; under a pace, one of them may exceed what is left."""
    made, new = ledger.settings, ledger.tickets[-1]
    is_pace = isinstance(made, PaceSettings)
    for begin in {ticket.last for ticket in ledger.tickets if ticket.last <= new.last}:
        end = begin + made.width
        if new.t <= end:
            costs = [ticket.cost for ticket in ledger.tickets if ticket.t <= end and ticket.last >= begin]
            assert sum(costs) <= made.amount + is_pace * max(0, max(costs) - 1)


PACES = [
    (1, SECOND),
    (3, SECOND),
    (100, SECOND),
    (7, 3 * SECOND),
    (100_000, SECOND),
    (999_999, SECOND),
    (1, 86_400 * SECOND),
]


@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "nominal"])
@pytest.mark.parametrize(("count", "per"), PACES, ids=str)
def test_starts_have_numbers_of_their_own(
    subject: LawSubject, examples: int, count: int, per: int, *, is_exact: bool
) -> None:
    """Starts under a pace have numbers of their own, a gap apart; an exact one keeps its window as well."""
    made = PaceSettings.of(count, per, is_exact=is_exact)
    gap = max(1, per // count)
    drawn = programs([1, gap, gap - 1 or 1, 5 * gap, 60 * SECOND], 3, ahead=min(10 * gap, SECOND))
    run_programs(examples, drawn, lambda program: Ledger(subject, made, check_pace).run(program))


def test_number_of_a_pace_may_be_used_late(subject: LawSubject) -> None:
    """A number may be used up to half a gap or 20 ms late, so that a late start does not shift the next ones."""
    for gap, slack in [(1000, 999), (100_000, 50_000), (30_000, 20_000)]:
        ledger = Ledger(subject, PaceSettings(gap, 0), check_pace)
        ledger.ask(1)
        ledger.now = START + gap + slack
        assert ledger.ask(1) == ledger.now
        assert ledger.ask(1) == START + 2 * gap
        ledger.now = START + 3 * gap + slack + 1
        assert ledger.ask(1) == ledger.now, "a new grid begins"
        assert ledger.ask(1) == ledger.now + gap


def test_hole_of_a_pace_is_filled(subject: LawSubject) -> None:
    """A number before one that was taken ahead, or that was given back before its time, is free."""
    ledger = Ledger(subject, PaceSettings(100_000, 0), check_pace)
    assert ledger.ask(1, 0, ahead=500_000) == START + 500_000
    assert ledger.ask(2) == START
    assert ledger.ask(3) == START + 200_000
    assert ledger.ask(1, SECOND) == START + 600_000
    ledger.correct("give_back", ledger.tickets[2], 3)
    assert ledger.ask(1) == START + 200_000
    assert ledger.ask(3, SECOND) == START + 700_000, "in a row"


def test_number_that_is_over_does_not_move_the_grid(subject: LawSubject) -> None:
    """Taken numbers that are over leave, and the number that a ticket was promised is the one that it takes."""
    ledger = Ledger(subject, PaceSettings(100_000, 0), check_pace)
    ledger.ask(1, 0, ahead=500_000)
    for each in range(8):
        ledger.now = START + 1_260_000 + each * 10_000
        ledger.ask(1)


@pytest.mark.parametrize(("cost", "seconds"), [(150, 10), (501, 10), (1500, 30), (100_000, 300)], ids=str)
def test_pace_admits_any_cost_and_is_used_in_full(subject: LawSubject, cost: int, seconds: int) -> None:
    """A ticket may cost more than a second of the rate admits, and starts of any cost use nearly all of the rate."""
    ledger = Ledger(subject, PaceSettings.of(1000, SECOND), check_pace)
    while ledger.now < START + seconds * SECOND:
        ledger.ask(cost, MANY, is_report=True)
    spent = cost * (len(ledger.tickets) - 1) / 1000 * SECOND
    assert 0.99 * (ledger.now - START) < spent <= ledger.now - START


@pytest.mark.parametrize("count", [100, 1000], ids=str)
def test_no_second_holds_more_starts_than_an_exact_pace_says(subject: LawSubject, count: int) -> None:
    """No second has more starts than an exact pace says, at their worst times and by a clock 500 ppm slow."""
    ledger = Ledger(subject, PaceSettings.of(count, SECOND), lambda ledger: None)
    while ledger.now < START + 3 * SECOND:
        ledger.now = ledger.ask(1, MANY)
    firsts, lasts = (sorted(getattr(ticket, end) for ticket in ledger.tickets) for end in ("t", "last"))
    for place, begin in enumerate(lasts):
        end = begin + SECOND * (1 + DRIFT)  # end excluded
        assert bisect_left(firsts, end) - bisect_left(lasts, begin, 0, place) <= count


BURSTS = [(10, 100, SECOND), (1, 10, SECOND), (100, 7, 3 * SECOND), (5, 100_000, SECOND), (1000, 1000, SECOND)]


@pytest.mark.parametrize(("capacity", "count", "per"), BURSTS, ids=str)
def test_bucket_never_runs_over(subject: LawSubject, examples: int, capacity: int, count: int, per: int) -> None:
    """A bucket keeps its capacity and rate between any two moments, wherever the starts fall."""
    made = BurstSettings.of(capacity, count, per)
    gap = max(2, per // count)
    drawn = programs([1, gap, 5 * gap, VALID, capacity * gap, 2 * SECOND], capacity)
    run_programs(examples, drawn, lambda program: Ledger(subject, made, check_burst).run(program))


def test_bucket_gives_back_each_cost_once(subject: LawSubject) -> None:
    """A cost given back and taken by another is not given back a second time."""
    ledger = Ledger(subject, BurstSettings(10, SECOND, 0), check_burst, life=0)
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
    ledger = Ledger(subject, BurstSettings(10, SECOND, 0), check_burst, life=0)
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
    """After a change of its capacity, a bucket counts all earlier starts."""
    sets = [BurstSettings.of(capacity, 100, SECOND) for capacity in (3, 10, 30)]
    drawn = programs([1, 10_000, VALID, 100_000, 300_000], 10, sets=sets)
    run_programs(examples, drawn, lambda program: Ledger(subject, sets[1], check_burst).run(program))


WINDOWS = [(1, SECOND), (10, SECOND), (100, 10 * SECOND), (7, 1000), (1000, 60 * SECOND)]


@pytest.mark.parametrize(("amount", "per"), WINDOWS, ids=str)
def test_no_window_holds_more(subject: LawSubject, examples: int, amount: int, per: int) -> None:
    """No window exceeds its amount, both ends included, wherever the starts fall."""
    made = WindowSettings.of(amount, per)
    drawn = programs([1, per // 64, per // 3, per, VALID, 2 * per], amount)
    run_programs(examples, drawn, lambda program: Ledger(subject, made, check_window).run(program))


def first_room(ledger: Ledger, cost: int, begin: int) -> int:
    """Return the first time from ``begin`` on at which a ticket of the longest life may be admitted, by trying all."""
    made, life = ledger.settings, ledger.settings.lives_us[1]
    spans = [(ticket.t - made.width, ticket.last, ticket.cost) for ticket in ledger.tickets]
    times = {begin, *(last + made.width + 1 for _, last, _ in spans), *(first + made.width for first, _, _ in spans)}
    for t in sorted(time for time in times if time >= begin):
        ends = {t - made.width, *(first for first, _, _ in spans if t - made.width <= first <= t + life)}
        if all(cost + sum(each for first, last, each in spans if first <= end <= last) <= made.amount for end in ends):
            return t
    raise AssertionError("a window is free once all tickets are forgotten")


@pytest.mark.parametrize(("amount", "per"), [(1, SECOND), (5, SECOND), (20, 30_000)], ids=str)
def test_window_admits_as_early_as_the_law_allows(subject: LawSubject, examples: int, amount: int, per: int) -> None:
    """A ticket is admitted at the first time that the law allows, also before and between tickets that are ahead."""
    made = WindowSettings.of(amount, per)
    part = per // 10
    step = st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 4 * part)),
        st.tuples(st.just("report"), st.integers(0, 6), st.integers(0, part)),
        *[
            st.tuples(
                st.just("ask"), st.integers(1, amount), st.just(MANY), st.sampled_from([0, part, 7 * part, 25 * part])
            )
        ]
        * 2,
    )

    def run(program) -> None:
        ledger = Ledger(subject, made, check_window, life=made.lives_us[1])
        for each in program:
            expected = first_room(ledger, each[1], ledger.now + each[3]) if each[0] == "ask" else None
            ledger.run([each])
            assert expected in (None, ledger.tickets[-1].t if ledger.tickets else None)

    run_programs(examples, st.lists(step, min_size=5, max_size=40), run)


def test_window_gives_back_where_the_ticket_counts(subject: LawSubject) -> None:
    """A window gives back in the part where a ticket counts, and nothing once that part has left the window."""
    made = WindowSettings(10, SECOND)
    ledger = Ledger(subject, made, check_window, life=VALID)
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
    """After changes of amount and width, a window counts all earlier starts."""
    sets = [WindowSettings.of(amount, width) for amount in (3, 10, 300) for width in (SECOND, SECOND // 2)]
    waits = [1, 10_000, 100_000, 500_000, SECOND]
    long = WindowSettings.of(20, 2 * SECOND)
    drawn = st.tuples(programs(waits, 10, sets=[long]), programs(waits, 10, sets=sets))
    run_programs(
        examples, drawn, lambda both: Ledger(subject, long, check_window).run([*both[0], ("set", sets[2]), *both[1]])
    )


def test_long_history_keeps_the_window(subject: LawSubject) -> None:
    """A window holds over a long history in which its log always has all of its parts."""
    ledger = Ledger(subject, WindowSettings.of(4000, SECOND), lambda ledger: None, life=VALID)
    costs = itertools.cycle([3, 5, 1, 8, 2])
    while ledger.now < START + 2 * SECOND:
        ledger.ask(next(costs), 5000)
        ledger.now += 1500
    check_window(ledger)
    assert 256 <= len(ledger.state) // 16 <= 256 + 16


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
    assert subject.decide(ledger.now, ledger.now, 0, [(ledger.settings.write(), ledger.state, 1)]).at == end + LATE
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
    assert ledger.subject.decide(ledger.now, ledger.now, 0, [(ledger.settings.write(), ledger.state, 1)])[:2] == (
        START + DAY + LATE,
        0,
    )
    assert ledger.ask(2, MANY) == START + DAY + LATE
    refused = ledger.subject.decide(ledger.now, ledger.now + MANY, 0, [(ledger.settings.write(), ledger.state, 1)])
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
        (PaceSettings(100_000, 0), 600_000),
        (BurstSettings(5, 100_000, 0), 600_000),
        (WindowSettings(5, SECOND), SECOND + 1),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None, life=0)
        ledger.ask(1)
        ledger.correct("add", ledger.tickets[0], 9)
        assert ledger.look().used >= 9
        if isinstance(made, PaceSettings):
            later = SECOND
        elif isinstance(made, BurstSettings):
            later += made.lives_us[1]  # the bucket does not know how long that ticket lives
        assert ledger.ask(1, MANY) == START + later


REDATED = [
    PaceSettings.of(10, SECOND),
    BurstSettings.of(5, 10, SECOND),
    WindowSettings.of(5, SECOND),
]


@pytest.mark.parametrize("made", REDATED, ids=str)
@pytest.mark.parametrize("step", [-86_400 * SECOND, -1, 0, SECOND, 86_400 * SECOND])
def test_limit_that_is_redated_counts_as_if_it_were_used_just_then(
    subject: LawSubject, made: LimitSettings, step: int
) -> None:
    """A redated limit waits as long as if everything had been used at that time, whatever the clock showed before."""
    ledger = Ledger(subject, made, lambda ledger: None, life=0)
    ledger.ask(5)
    ledger.now += VALID
    fresh = Ledger(subject, made, lambda ledger: None, life=0)
    ledger.now = fresh.now = START + step + SECOND
    ledger.redate(ledger.now)
    fresh.ask(5)
    life = made.lives_us[1]  # a bucket counts it, as it does not know how long those lived
    assert (
        fresh.look().used <= ledger.look().used <= 5 + (life // 100_000 + 1 if isinstance(made, BurstSettings) else 0)
    )
    asked = [each.ask(1, MANY) for each in (fresh, ledger)]
    assert max(ledger.now + 1, asked[0] - life) <= asked[1] <= asked[0] + life


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
        BurstSettings.of(5, 10, SECOND),
        WindowSettings.of(5, SECOND),
        quota_at(START, 5),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None)
        ledger.now += SECOND
        ledger.ask(5)
        assert ledger.ask(1, 0) is None
        ledger.correct("give_back", ledger.tickets[0], 5)
        assert ledger.ask(5, made.lives_us[1]) is not None


def test_bucket_under_load_gives_back_what_long_tasks_did_not_use(subject: LawSubject) -> None:
    """A bucket whose tickets reserve ten times their use, and settle a second later, is used up to nearly its rate."""
    made = BurstSettings.of(60_000, 1000, SECOND)
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
        BurstSettings.of(5, 10, SECOND),
        WindowSettings.of(5, SECOND),
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
        (PaceSettings(10_000, 0), PaceSettings(SECOND, 0), SECOND),
        (BurstSettings(10, 10_000, 0), BurstSettings(5, SECOND, 0), 6 * SECOND),
        (WindowSettings(10, SECOND), WindowSettings(9, SECOND), SECOND + 1),
    ]:
        ledger = Ledger(subject, before, lambda ledger: None, life=0)
        for _ in range(1 if isinstance(before, PaceSettings) else 10):
            assert ledger.ask(1) == START
        ledger.settings = after
        assert ledger.ask(1, MANY) == START + at


def test_raised_settings_hold_at_once(subject: LawSubject) -> None:
    """Raised settings apply at once, without waiting for the old gap."""
    for before, after in [
        (PaceSettings.of(1, 86_400 * SECOND), PaceSettings(10_000, 0)),
        (BurstSettings(1, 86_400 * SECOND, 0), BurstSettings(1, 10_000, 0)),
        (WindowSettings(1, 86_400 * SECOND), WindowSettings(1, 9_999)),
    ]:
        ledger = Ledger(subject, before, lambda ledger: None, life=0)
        ledger.ask(1)
        ledger.settings = after
        assert ledger.ask(1, MANY) == START + 10_000


def test_paces_of_any_settings_keep_their_window(subject: LawSubject, examples: int) -> None:
    """Under changing paces each second has no more starts than the pace in force says, with those before."""
    sets = [PaceSettings.of(count, SECOND) for count in (1, 3, 10, 100, 1000)]
    drawn = programs([1, 1000, 100_000, 500_000], 3, sets=sets)

    def run(program) -> None:
        Ledger(subject, sets[2], check_window).run([step for step in program if step[0] != "sweep"])

    run_programs(examples, drawn, run)


def test_nothing_starts_at_zero(subject: LawSubject) -> None:
    """A limit of 0 admits nothing and says so, until other settings apply."""
    for none, some in [
        (PaceSettings.of(0, SECOND), PaceSettings.of(5, SECOND)),
        (BurstSettings.of(5, 0, SECOND), BurstSettings.of(5, 5, SECOND)),
        (WindowSettings.of(0, SECOND), WindowSettings.of(5, SECOND)),
        (quota_at(START, 0), quota_at(START, 5)),
    ]:
        ledger = Ledger(subject, none, lambda ledger: None)
        ledger.now += SECOND
        assert subject.decide(ledger.now, ledger.now + MANY, 0, [(none.write(), "", 1)]) == (None, 0, None, [""])
        ledger.settings = some
        assert ledger.ask(5) == ledger.now


# Rest, insight, and how much can be used.


def test_limits_come_to_rest(subject: LawSubject) -> None:
    """A limit is at rest only once it would decide as one without a state; then all of it is free."""
    for made, rest in [
        (PaceSettings(100_000, 1), 500_001),
        (BurstSettings(5, 100_000, 0), 500_000),
        (WindowSettings(5, SECOND), SECOND + 1),
        (quota_at(START, 5), DAY - SECOND + LATE),
    ]:
        ledger = Ledger(subject, made, lambda ledger: None, life=0)
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
    *((WindowSettings.of(count, per), count, per, 0.99) for count, per in [(100, SECOND), (1000, SECOND), (1000, 60 * SECOND)]),
    (BurstSettings.of(100, 100, SECOND), 100, SECOND, 0.999),
    (BurstSettings.of(10, 1000, 10 * SECOND), 1000, 10 * SECOND, 0.999),
    *((PaceSettings.of(count, SECOND), count, SECOND, 0.99) for count in (10, 100, 1000)),
    (PaceSettings.of(99_999, SECOND, is_exact=False), 99_999, SECOND, 0.999),
]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "count", "per", "part"), USES, ids=lambda each: str(each) if isinstance(each, LimitSettings) else ""
)
@pytest.mark.parametrize("spread", [0, 1, 7], ids=["at once", "costs", "in a trickle at first"])
def test_limit_is_used(made: LimitSettings, count: int, per: int, part: float, spread: int) -> None:
    """Under constant demand of mixed costs a limit is used almost completely, if starts are reported within a millisecond."""
    ledger = Ledger(InPython(), made, lambda ledger: None)
    costs = itertools.cycle([1] if spread == 0 else [1, 3, 2, 5, 1])
    begin, end = START + 2 * per, START + 7 * per
    if count > 1000:
        begin, end = START + per // 100, START + (per // 20 if count > 5000 else 3 * per)
    elif count <= 100:
        end = START + 32 * per
    used = 0
    while (at := ledger.ask(next(costs), MANY)) < end:
        used += ledger.tickets[-1].cost if at >= begin else 0
        ledger.now = max(at, ledger.now + (per // 200 if spread == 7 and at < begin else 0))
        ledger.report(ledger.tickets[-1], at + 1000)
    room = (
        0 if spread == 0 or isinstance(made, BurstSettings) else 5 / count
    )  # less than a ticket of cost 5 may be left
    assert used / (count * (end - begin) / per) >= min(part, 1 - room)


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
    first, again = (
        subject.decide(ledger.now, 0, 0, [(ledger.settings.write(), ledger.state, cost)]) for cost in (0, 1)
    )
    assert (first.holder, again.holder) == (0, 0)
    assert ledger.now < first.at <= again.at
    ledger.now = first.at - 1
    assert ledger.ask(0, 0) is None
    ledger.now = first.at
    assert ledger.ask(0, 0) == first.at


def test_ticket_of_cost_zero_that_is_older_than_the_log_counts(subject: LawSubject) -> None:
    """A ticket of cost 0 counts what is added to it, also if a later ticket has begun the log of a window."""
    ledger = Ledger(subject, WindowSettings.of(1, SECOND), check_window)
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
        WindowSettings.of(20, SECOND),
        BurstSettings.of(10, 20, SECOND),
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
            alone = [subject.decide(now, now + MANY, 0, [entry]) for entry in entries]
            horizon = now + (MANY if is_patient else 50_000)
            got = subject.decide(now, horizon, 0, entries)
            if any(each.at is None for each in alone):
                assert got[:3] == (None, next(i for i, each in enumerate(alone) if each.at is None), None)
                continue
            assert got.at >= max(each.at for each in alone)
            if got.receipts is None:
                assert got.states == [""] * count
                assert got.at > horizon or (3 in range(count) and got.at >= START + 2 * DAY)
                assert got.holder is not None
                continue
            for place, (made, state, cost) in enumerate(entries):
                if cost:
                    assert subject.decide(got.at, got.at, 0, [(made, state, cost)]).receipts == [got.receipts[place]]
                    if place == got.holder:
                        assert subject.decide(got.at - 1, got.at - 1, 0, [(made, state, cost)]).receipts is None
                assert bool(got.states[place]) == bool(cost)
            assert (got.holder is None) == (got.at == now)
            states = [new or old for new, old in zip(got.states, states, strict=True)]

    run_programs(examples // 2 + 1, st.lists(steps, max_size=15), run)


def test_time_of_one_limit_is_asked_of_the_others_again(subject: LawSubject) -> None:
    """The time that one limit allows is checked against the others again, such as a quota of the next period."""
    quota, window = quota_at(START, 2), WindowSettings(1, DAY - SECOND - 1000)
    now = START + SECOND
    first = subject.decide(now, now, 0, [(quota.write(), "", 0), (window.write(), "", 1)])
    ahead = START + DAY + LATE
    second = subject.decide(ahead, ahead, 0, [(quota.write(), "", 2)])
    entries = [(quota.write(), second.states[0], 1), (window.write(), first.states[1], 1)]
    assert subject.decide(now, now + MANY, 0, entries) == (START + 2 * DAY + LATE, 0, None, ["", ""])
    assert subject.decide(now, now + MANY, 0, entries[:1]).at == now


def test_refusal_names_the_limit_that_holds_longest(subject: LawSubject) -> None:
    """A refusal names the limit that holds longest, with its time, and takes nothing of the others."""
    pace, window = PaceSettings(1000, 0), WindowSettings(1, SECOND)
    states = subject.decide(START, START, 0, [(pace.write(), "", 1), (window.write(), "", 1)]).states
    again = subject.decide(START, START + 250_000, 0, [(pace.write(), states[0], 1), (window.write(), states[1], 1)])
    assert again == (START + SECOND + 1, 1, None, ["", ""])
    assert subject.decide(START, START, 0, [(window.write(), states[1], 1), (pace.write(), states[0], 2)])[1] == 0
    never = subject.decide(START, START, 0, [(pace.write(), states[0], 1), (window.write(), states[1], 2)])
    assert never == (None, 1, None, ["", ""])
    assert subject.decide(START, START, 0, [(window.write(), states[1], 0)]) == (START, None, [START], [""]), (
        "a request with a cost of 0 does not wait for what is used, and changes nothing"
    )


# Texts.

BAD_SETTINGS = [
    "", "p", "p,1", "p,0,0,0,0", "p,-1,0,0,0", "p,1,1000000,0,0", "p,1.5,0,0,0", "p,1,0", "p,1125899906842625,0,0,0", "x,1,0",
    "p,9007199254740993,0,0,0", "p,1,0,4503599627370497,9", "p,1,0,1,1125899906842624",
    "b,10,1000", "b,4503599627370497,1,0", "b,2000000000000,1000,0", "b,1,1,0,0", "b,1,1,nan",
    "w,10,0", "w,10,1125899906842624", "w,1e3,10", "w,10,1000,0", "w,99999999999999999999,1000",
    "q,1,1,0,1000000,2000000,3000000,0,0", "q,1,1,5,2000000,1000000,3000000,0,0", "q,1,1,5,1000000,1000010,3000000,5,5",
    "q,1,1,5,10,2000000,4000000,20,0", "q,1,1,5,1000000,2000000", "p," + "0" * 160 + "1,0,0,0", "w,10,1000 ", "w, 10,1000", "W,10,1000", "w,10,100٣",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_SETTINGS)
def test_settings_that_nobody_can_have_written_are_not_believed(subject: LawSubject, text: str) -> None:
    """Settings that cannot have been written are rejected."""
    with pytest.raises(UnsoundError):
        subject.decide(START, START, 0, [(text, "", 1)])


ALL = [PaceSettings(1000, 5), BurstSettings(10, 1000, 5), WindowSettings(10, SECOND), quota_at(START, 10)]


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
    spoilt = ["garbage", "0", " ", "-", text + " ", " " + text, text[:-1], text[:-8], text.replace(head, head[0] + "9", 1), head, *others]  # fmt: skip
    if head in ("g1", "q1"):
        numbers = text.split(",")
        spoilt += [",".join([*numbers[:-1], last]) for last in ("-1", "9" * 400, "9007199254740992", "1e3", "nan")]
        spoilt += [text + ",1", ",".join(numbers[:-1]), text.replace(",", ";")]
    else:
        values = struct.unpack(f"<{len(text) // 8}d", text[2:].encode("latin-1"))
        counts = (3,) if head == "w2" else (6, 10)
        for place, value in [(each, value) for each in counts for value in (-1.0, 1e6, 2.0**60, float("nan"))]:
            damaged = struct.pack(f"<{len(values)}d", *values[:place], value, *values[place + 1 :])
            spoilt.append(head + damaged.decode("latin-1"))
    for each in spoilt:
        with pytest.raises(UnsoundError):
            subject.look(START + 3 * SECOND, made.write(), each)
    with pytest.raises(UnsoundError):
        subject.look(START - 3600 * SECOND, made.write(), text)


@pytest.mark.parametrize("made", ALL, ids=str)
def test_one_call_does_what_many_do(subject: LawSubject, examples: int, made: LimitSettings) -> None:
    """One call with many steps gives the same result as many calls: the text holds the whole state."""
    numbers = st.integers(0, 20), st.integers(1, 4), st.sampled_from([0, 0, 1, -1, 100_000])
    step = st.one_of(
        st.tuples(
            st.just("ask"), st.sampled_from([1, 3, 10]), st.sampled_from([0, 100_000, 300_000, 2 * SECOND]), st.just(0)
        ),
        st.tuples(st.sampled_from(["add", "give_back", "report"]), *numbers),
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
            if name == "report":
                t += 1000
            told.append((name, place, cost, 0) if name == "ask" else (name, t, cost, receipt + off))
        state, times = ledger.state, []
        for one in told:
            changed, time = subject.batch(ledger.now, ledger.now + 5 * SECOND, VALID, made.write(), state, [one])
            state, times = changed or state, times + time
        changed, together = subject.batch(ledger.now, ledger.now + 5 * SECOND, VALID, made.write(), ledger.state, told)
        assert (changed or ledger.state, together) == (state, times)

    run_programs(examples, st.tuples(st.integers(0, 3 * SECOND), st.lists(step, max_size=12)), run)


def test_log_that_has_run_out_begins_anew_within_a_call(subject: LawSubject) -> None:
    """A log that has run out starts again within a call, without times of its old parts."""
    made = WindowSettings(10, SECOND)
    later = [0, 300_000, 2 * SECOND, 2_300_000, 2_600_000, 3_300_000, 3_320_002, 3_600_000]
    state, times = subject.batch(START, START + MANY, VALID, made.write(), "", [("ask", 5, each, 0) for each in later])
    expected = [0, 300_000, 2 * SECOND, 2_300_000, 3_020_001, 3_320_001, 4_040_002, 4_340_002]
    assert [str(START + each) for each in expected] == times
    assert (5, 10) == subject.look(START + 5_360_002, made.write(), state)[1:3]


def test_part_in_the_middle_is_corrected_after_others_have_left(subject: LawSubject) -> None:
    """A part in the middle is corrected after others have left, within one call as over several."""
    made = WindowSettings(10, SECOND)
    told = [("ask", 2, each * 300_000, 0) for each in range(5)]
    told += [("give_back", START + 600_000, 1, START + 620_000), ("ask", 2, 1_500_000, 0), ("ask", 1, 1_500_000, 0)]
    state, times = "", []
    for one in told:
        changed, time = subject.batch(START, START + MANY, VALID, made.write(), state, [one])
        state, times = changed or state, times + time
    assert subject.batch(START, START + MANY, VALID, made.write(), "", told) == (state, times)
    assert times[-2:] == [str(START + 1_500_000)] * 2


def test_both_say_the_same(redis_server) -> None:
    """Python and Lua agree in every answer and every state, under changing settings with huge numbers."""
    huge = [1, 7, 1000, 1 << 33, 1 << 52]
    sets = [
        [*(PaceSettings.of(count, per) for count, per in PACES), PaceSettings.of(0, 1), PaceSettings(0, 1), PaceSettings(FAR - 1, 999_999),
         *(PaceSettings.of(count, per, is_exact=False) for count, per in PACES), PaceSettings(1000, 5, 300, 200_000)],
        [*(BurstSettings.of(*each) for each in BURSTS), BurstSettings(1 << 52, 0, 1), BurstSettings(5, FAR, 0)],
        [*(WindowSettings.of(*each) for each in WINDOWS), WindowSettings(1 << 52, SECOND), WindowSettings(5, FAR - 1)],
        [quota_at(START, 10), quota_at(START + DAY, 10), quota_at(START + 7 * DAY, 5), quota_at(START, 1 << 52),
         QuotaSettings(9, 1, 7, START, START + SECOND, START + 2 * SECOND, 0, 0)],
    ]  # fmt: skip
    costs = st.one_of(st.integers(0, 12), st.integers(1, 3), st.sampled_from(huge))
    place = st.integers(0, 30)
    step = st.one_of(
        st.tuples(st.just("wait"), st.one_of(st.integers(1, 3 * SECOND), st.sampled_from([1, 1000, 60 * SECOND, FAR]))),
        *[
            st.tuples(
                st.just("ask"),
                costs,
                st.sampled_from([0, 250_000, FAR]),
                st.sampled_from([0, VALID, 500_000]),
                st.sampled_from([0, 0, 1, 100_000, SECOND]),
            )
        ]
        * 4,
        st.tuples(
            st.sampled_from(["add", "give_back", "report"]),
            place,
            costs,
            st.sampled_from([0, 0, 1, -1, SECOND, 1 << 40]),
        ),
        st.tuples(st.just("set"), place),
        st.tuples(st.just("redate"), st.sampled_from([0, 1, SECOND])),
    )
    with redis_server.client() as client:
        one, other = InPython(), InLua(client)

        @quick(max_examples=2 * PROGRAMS)
        @given(st.integers(0, 3), st.lists(step, min_size=5, max_size=25))
        def run(kind: int, program: list) -> None:
            made, now, state = sets[kind][0].write(), START, ""
            tickets = [(START, START)]

            def correct(act: str, at: int, numbers: tuple[int, ...]) -> str:
                got = one.correct(act, at, made, state, numbers)
                assert got == other.correct(act, at, made, state, numbers)
                return got or state

            for name, *values in program:
                if name == "wait":
                    now = min(now + values[0], 2 * START)
                elif name == "set":
                    made = sets[kind][values[0] % len(sets[kind])].write()
                elif name == "ask":
                    cost, horizon, life, ahead = values
                    entries = [(made, state, cost)]
                    if ahead:
                        entries.append((WindowSettings(1, 2 * ahead).write(), waiting(now, ahead), 1))
                    got = one.decide(now, now + horizon, life, entries)
                    assert got == other.decide(now, now + horizon, life, entries)
                    state = got.states[0] or state
                    if got.receipts is not None:
                        tickets.append((got.at, got.receipts[0]))
                elif name == "redate":
                    now += values[0]
                    state = correct(name, 1 << 52, (now,))
                else:
                    t, receipt = tickets[-1 - values[0] % len(tickets)]
                    off = max(0, receipt + values[2])
                    numbers = (t + 5000, values[1], receipt) if name == "report" else (t, values[1], off)
                    state = correct(name, now, (*numbers, values[1] % 2) if name == "give_back" else numbers)
                try:
                    look = one.look(now, made, state)
                except UnsoundError:  # the horizon was too far for a state
                    state = ""
                else:
                    assert look == other.look(now, made, state)

        run()


def test_ticket_lives_as_its_limits_allow(subject: LawSubject) -> None:
    """A ticket lives as long as its peer wants, between the least and the longest life that its limits allow."""
    second, minute = WindowSettings.of(10, SECOND).write(), WindowSettings.of(10, 60 * SECOND).write()
    pace, burst = PaceSettings.of(10, SECOND).write(), BurstSettings.of(10, 10, SECOND).write()
    assert [50_025, 100_000, 500_000] == [subject.life_of(wanted, [second]) for wanted in (0, 100_000, SECOND)]
    assert [50_025, 500_000] == [subject.life_of(wanted, [minute, second]) for wanted in (0, SECOND)]
    assert [20_000, 500_000] == [subject.life_of(wanted, [pace, minute]) for wanted in (0, SECOND)]
    assert [50_000, 500_000] == [subject.life_of(wanted, [burst]) for wanted in (0, SECOND)]
    assert [500_000] * 2 == [subject.life_of(wanted, []) for wanted in (7, SECOND)], (
        "under no limit, as long as any does"
    )
