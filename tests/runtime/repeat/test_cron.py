"""The occurrences of cron expressions, compared in every time zone with a walk over the minutes of its clock."""

import calendar
import os
import random
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from ratelimited_executor import MissedTick
from ratelimited_executor._core.repeat.repeating import LastRun
from ratelimited_executor._runtime.repeat import schedules
from ratelimited_executor._runtime.repeat.cron import cron_times

from ...helpers import first_quick

LONDON = ZoneInfo("Europe/London")
PROGRAMS = int(os.environ.get("CRON_PROGRAMS", "90"))
DAY = 86_400


def at(text: str, zone: tzinfo = LONDON, *, fold: int = 0) -> float:
    """Return the instant at which a clock shows a time; ``fold=1`` means the second time."""
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def shown(instant: float, zone: tzinfo = LONDON) -> str:
    return datetime.fromtimestamp(instant, zone).isoformat(" ", "minutes")


def occurrences(next_after: Callable[[float], float | None], begin: float, end: float) -> Iterator[float]:
    """Yield the occurrences after ``begin``, to ``end`` inclusive."""
    while (begin := next_after(begin)) is not None and begin <= end:
        yield begin


# The two hours of a change.


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 1 * * *", ["02:00+01:00"], ["01:30+01:00"]),
        ("0 1 * * *", ["02:00+01:00"], ["01:00+01:00"]),
        ("0,30 1,2 * * *", ["02:00+01:00", "02:30+01:00"], ["01:00+01:00", "01:30+01:00", "02:00+00:00", "02:30+00:00"]),
        ("59 0-2 * * *", ["00:59+00:00", "02:00+01:00", "02:59+01:00"], ["00:59+01:00", "01:59+01:00", "02:59+00:00"]),
        ("@daily", ["00:00+00:00"], ["00:00+01:00"]),
        ("30 * * * *", ["00:30+00:00", "02:30+01:00"], ["00:30+01:00", "01:30+01:00", "01:30+00:00", "02:30+00:00"]),
        ("*/30 1 * * *", [], ["01:00+01:00", "01:30+01:00", "01:00+00:00", "01:30+00:00"]),
        ("@hourly", ["00:00+00:00", "02:00+01:00"], ["00:00+01:00", "01:00+01:00", "01:00+00:00", "02:00+00:00"]),
    ],
)  # fmt: skip
def test_a_fixed_time_occurs_once_and_a_star_follows_the_clock(expression, spring, autumn):
    """Without a star a skipped time occurs after the gap, a repeated time once; with one all that the clock shows."""
    times = cron_times(expression, LONDON)
    for day, expected in (("2026-03-29", spring), ("2026-10-25", autumn)):
        begin = at(f"{day} 00:00") - 1
        found = [shown(due) for due in occurrences(times, begin, at(f"{day} 02:59"))]
        assert [f"{day} {time}" for time in expected] == found


@pytest.mark.parametrize(
    ("zone", "expression", "begin", "expected"),
    [
        # Lord Howe goes back by 30 minutes, so 01:30 to 02:00 comes twice; and forward, so 02:00 to 02:30 is skipped.
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05 01:00", ["2026-04-05 01:45+11:00", "2026-04-06 01:45+10:30"]),
        ("Australia/Lord_Howe", "*/15 1 * * *", "2026-04-05 01:20", [
            "2026-04-05 01:30+11:00", "2026-04-05 01:45+11:00", "2026-04-05 01:30+10:30", "2026-04-05 01:45+10:30"]),
        ("Australia/Lord_Howe", "10 2 * * *", "2026-10-04 01:00", ["2026-10-04 02:30+11:00", "2026-10-05 02:10+11:00"]),
        # Apia had no 30 December 2011.
        ("Pacific/Apia", "0 9 * * *", "2011-12-29 12:00", [
            "2011-12-31 00:00+14:00", "2011-12-31 09:00+14:00", "2012-01-01 09:00+14:00"]),
        ("Pacific/Apia", "0 */12 * * *", "2011-12-29 11:00", ["2011-12-29 12:00-10:00", "2011-12-31 00:00+14:00"]),
        # Casablanca goes back for Ramadan and forward after it; Sao Paulo changed at midnight.
        ("Africa/Casablanca", "30 2 * * *", "2026-02-15 00:00", ["2026-02-15 02:30+01:00", "2026-02-16 02:30+00:00"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-03-22 00:00", ["2026-03-22 03:00+01:00", "2026-03-23 02:30+01:00"]),
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-03 12:00", ["2018-11-04 01:00-02:00", "2018-11-05 00:00-02:00"]),
        ("America/Sao_Paulo", "*/30 0 * * *", "2018-11-03 12:00", ["2018-11-05 00:00-02:00"]),
        ("America/Sao_Paulo", "30 23 * * *", "2018-02-17 12:00", ["2018-02-17 23:30-02:00", "2018-02-18 23:30-03:00"]),
        # Double summer time: London went forward to +02:00 in April 1945, and back to +01:00 in July.
        ("Europe/London", "30 2 * * *", "1945-04-02 00:00", ["1945-04-02 03:00+02:00", "1945-04-03 02:30+02:00"]),
        ("Europe/London", "30 2 * * *", "1945-07-15 00:00", ["1945-07-15 02:30+02:00", "1945-07-16 02:30+01:00"]),
    ],
)  # fmt: skip
def test_unusual_changes_keep_the_rule(zone, expression, begin, expected):
    """Half hours, whole days, midnights, several changes a year and double summer time obey the same rule."""
    tz = ZoneInfo(zone)
    times = occurrences(cron_times(expression, tz), at(begin, tz), at("2100-01-01", tz))
    assert expected == [shown(next(times), tz) for _ in expected]


@pytest.mark.parametrize("minute", [0, 10, 30, 59])
def test_within_the_repeated_hour_the_next_time_is_later(minute):
    """A fixed time that has occurred in the first of two equal hours is due next on the day after."""
    now = at(f"2026-10-25 01:{minute:02}", fold=1)
    assert "2026-10-26 01:30+00:00" == shown(cron_times("30 1 * * *", LONDON)(now))


def test_a_fraction_of_a_second_before_an_occurrence_does_not_lose_it():
    """The occurrence is found from the last floating-point number before it, and not again from itself."""
    nine = at("2026-06-01 09:00")
    times = cron_times("0 9 * * *", LONDON)
    assert [nine, nine] == [times(nine - 2.4e-7), times(nine - 0.5)]
    assert [nine + DAY, nine + DAY] == [times(nine), times(nine + 2.4e-7)]


# Expressions.


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 * * sat-sun", [6, 7, 13, 14]),
        ("0 0 * * SAT-MON", [1, 6, 7, 8]),
        ("0 0 * * 6-1", [1, 6, 7, 8]),
        ("0 0 * * 7-mon", [1, 7, 8, 14]),
        ("0 0 * * 5-7", [5, 6, 7, 12]),
        ("0 0 * * mon-sun/3", [1, 4, 7, 8]),
        ("0 0 * * fri-tue/2", [2, 5, 7, 9]),
        ("0 0 * * 0,7", [7, 14, 21, 28]),
        ("0 0 * * 3,sat-sun", [3, 6, 7, 10]),
        ("0 0 * * 5L", [26]),
        ("0 0 * * 1#2", [8]),
        ("0 0 * * fri#5", []),
        ("0 0 L * *", [30]),
        ("0 0 LW * *", [30]),
        ("0 0 10/7 * *", [10, 17, 24]),
        ("0 0 13 * fri", [5, 12, 13, 19]),  # either of them
        ("0 0 13 * */1", [13]),  # both: a day that begins with a star restricts
        ("0 0 1-7 * *,mon", [1, 2, 3, 4]),
        ("0 0 * jan,JUN-jul mon", [1, 8, 15, 22]),
        ("@yearly", []),
        ("@annually", []),
        ("@monthly", [1]),
        ("@weekly", [7, 14, 21, 28]),
        ("@daily", [1, 2, 3, 4]),
        (" @MidNight ", [1, 2, 3, 4]),
        ("@hourly", [1, 1, 1, 1]),
    ],
)
def test_expression_names_days(expression, expected):
    """Each form of a day is understood; June 2026 begins on a Monday."""
    times = cron_times(expression, UTC)
    june = occurrences(times, at("2026-06-01", UTC) - 1, at("2026-06-30 23:59", UTC))
    assert expected == [datetime.fromtimestamp(due, UTC).day for due, _ in zip(june, range(4), strict=False)]


@pytest.mark.parametrize("term", ["9-9/1", "9-9", "9-9/2,9", "9"])
def test_range_of_one_with_a_step_is_that_one(term):
    """A range whose ends are equal is one time, with a step as well."""
    next_after = cron_times(f"0 {term} * * *", LONDON)
    assert "2026-06-02 09:00+01:00" == shown(next_after(at("2026-06-01 11:00")))


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("* * * * * *", r"6 fields, not the five minute hour .* \(without seconds: for these, repeat with period=\)"),
        ("0 0 9 * * ? 2026", "7 fields, not the five"),
        ("", "0 fields"),
        ("60 * * * *", "minute '60' is not made of 0-59"),
        ("0 22-2 * * *", "hour '22-2' is not made of 0-23; ranges go upwards: 22-23,0-2 in place of 22-2"),
        ("0 0 * nov-feb *", "month 'NOV-FEB' is not made of 1-12 or JAN-DEC; ranges go upwards"),
        ("*/0 * * * *", "minute"),
        ("0 9 ? * *", r"day-of-month '\?'"),
        ("0 9 L/2 * *", "day-of-month 'L/2'"),
        ("0 9 1,LW/2 * *", "day-of-month"),
        ("0 9 L-3 * *", "day-of-month"),
        ("0 9 15W * *", "day-of-month"),
        ("0 9 30 2 *", "day-of-month '30'.*some month must have the day"),
        ("0 9 */31 * 1#2", "no date has both"),
        ("0 9 * * L", "day-of-week 'L' .*5L for the last Friday"),
        ("0 9 * * friL", "day-of-week 'FRIL'"),
        ("0 9 * * 1#6", "day-of-week '1#6'"),
        ("0 9 * * 8", "day-of-week '8'"),
        ("0 9 * * 1-0/0", "day-of-week '1-0/0'"),
        ("@reboot", "the shorthands are @yearly, .*@hourly"),
        ("@every 5m", "the shorthands are"),
        ("1" * 5000 + " * * * *", "got '1"),
    ],
)
def test_what_is_no_expression_is_refused(expression, remedy):
    """An error names the parameter, the field and what it may consist of."""
    with pytest.raises(ValueError, match=rf"expression must be a cron expression .*{remedy}"):
        cron_times(expression, UTC, name="expression")


# Any time zone that knows its own offsets.


def test_zones_of_other_libraries_keep_the_rule():
    """A zone that gives skipped times one offset instead of two, as those of dateutil do, and a fixed offset."""
    tz = pytest.importorskip("dateutil.tz")
    london = tz.gettz("Europe/London")
    for expression in ("30 1 * * *", "0,30 * * * *", "*/20 1 * * *"):
        for day in ("2026-03-28 12:00", "2026-10-24 12:00"):
            expected = occurrences(cron_times(expression, LONDON), at(day), at(day) + 2 * DAY)
            assert list(expected) == list(occurrences(cron_times(expression, london), at(day), at(day) + 2 * DAY))
    fixed = timezone(timedelta(hours=5, minutes=45))
    assert at("2026-06-01 09:00", fixed) == cron_times("0 9 * * *", fixed)(at("2026-06-01 08:59", fixed))


# Random programs: the expected occurrences come from a walk over all minutes, and from sets instead of expressions.


@dataclass(frozen=True)
class Program:
    """An expression with the sets that it stands for, a time zone and an instant near a change of its clock."""

    zone: str
    expression: str
    begin: float
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # as of datetime.isoweekday(): 7 is Sunday

    def names(self, face: datetime) -> bool:
        """Return True if the expression names a time of the clock face."""
        minute, hour, day, _, weekday = self.expression.split()
        is_day = face.day in self.days or ("L" in day and face.day == calendar.monthrange(face.year, face.month)[1])
        is_weekday = face.isoweekday() in self.weekdays
        is_date = is_day and is_weekday if day[0] == "*" or weekday[0] == "*" else is_day or is_weekday
        return face.minute in self.minutes and face.hour in self.hours and face.month in self.months and is_date

    def walk(self, until: float) -> list[float]:
        """Return the occurrences after ``begin``, to ``until``, minute by minute."""
        tz = ZoneInfo(self.zone)
        minute, hour, *_ = self.expression.split()
        follows_clock = minute[0] == "*" or hour[0] == "*"
        found = []
        instant = self.begin // 60 * 60 - 30 * 3600  # before any time that the clock may show again
        furthest = datetime.fromtimestamp(instant, tz).replace(tzinfo=None, fold=0)
        while instant + 60 <= until:
            instant += 60
            face = datetime.fromtimestamp(instant, tz).replace(tzinfo=None, fold=0)
            if follows_clock:
                is_due = self.names(face)
            else:  # every time that the clock has now reached
                is_due = False
                while furthest < face:
                    furthest += timedelta(minutes=1)
                    is_due = is_due or self.names(furthest)
            if is_due and instant > self.begin:
                found.append(instant)
        return found


def field_of(rng: random.Random, first: int, last: int, kinds: str) -> tuple[str, frozenset[int]]:
    """Return the text of a field and its values."""
    some = sorted(rng.sample(range(first, last + 1), min(2, last - first)))
    step = rng.randint(2, 9)
    match rng.choice(kinds):
        case "*":
            return "*", frozenset(range(first, last + 1))
        case "/":
            return f"*/{step}", frozenset(range(first, last + 1, step))
        case ",":
            return ",".join(map(str, some)), frozenset(some)
        case "-":
            return f"{some[0]}-{some[1]}", frozenset(range(some[0], some[1] + 1))
        case "s":
            return f"{some[0]}-{some[1]}/{step}", frozenset(range(some[0], some[1] + 1, step))
        case _:
            return str(some[0]), frozenset(some[:1])


def weekdays_of(rng: random.Random) -> tuple[str, frozenset[int]]:
    """Return the text of a weekday field, whose ranges may go over Sunday, and its values."""
    first, length = rng.randint(1, 7), rng.randint(1, 6)
    days = [(first + n - 1) % 7 + 1 for n in range(length + 1)]
    names = ["", "mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    write = rng.choice([str, lambda day: str(day % 7), lambda day: names[day]])
    return f"{write(days[0])}-{write(days[-1])}", frozenset(days)


def change_in(zone: str, year: int) -> list[float]:
    """Return the instants of a year, to the minute, at which the clock of a zone changes."""
    tz = ZoneInfo(zone)

    def offset(instant: float) -> timedelta | None:
        return datetime.fromtimestamp(instant, tz).utcoffset()

    found = []
    begin = int(at(f"{year}-01-01", UTC))
    for before in range(begin, begin + 366 * DAY, DAY):
        after = before + DAY
        if offset(before) != offset(after):
            while after - before > 60:
                middle = (before + after) // 120 * 60
                before, after = (middle, after) if offset(middle) == offset(before) else (before, middle)
            found.append(float(after))
    return found


def program(seed: int) -> Program:
    """Generate a program: a zone in turn, so that a few hundred programs visit all of them."""
    rng = random.Random(seed)
    zones = sorted(zoneinfo.available_timezones())
    while True:
        zone = zones[(seed * 7 + rng.choice((0, 0, 0, rng.randrange(len(zones))))) % len(zones)]
        changes = [change for _ in range(3) for change in change_in(zone, rng.randint(1990, 2040))]
        if changes or rng.random() < 0.2:
            break
    near = rng.choice(changes) if changes else at(f"{rng.randint(1990, 2040)}-06-01", UTC)
    begin = near + rng.choice((rng.uniform(-2, 2), rng.uniform(-2, 2), rng.uniform(-26, 26))) * 3600
    begin = rng.choice((begin, begin // 60 * 60, near, near - 1e-6))
    now = datetime.fromtimestamp(near, ZoneInfo(zone))
    minute, hour = field_of(rng, 0, 59, "*/,-s11"), field_of(rng, 0, 23, "**/,-s1")
    if rng.random() < 0.6:  # close to the change, or programs would rarely meet it
        hour = "", frozenset((now.hour + shift) % 24 for shift in rng.sample((-2, -1, 0, 1), 2))
        hour = ",".join(map(str, sorted(hour[1]))), hour[1]
    day = field_of(rng, 1, 31, "*****/,-1")
    if rng.random() < 0.1:
        day = "L", frozenset()
    month = field_of(rng, 1, 12, "****-/")
    weekday = weekdays_of(rng) if rng.random() < 0.3 else ("*", frozenset(range(1, 8)))
    texts, sets = zip(minute, hour, day, month, weekday, strict=True)
    return Program(zone, " ".join(texts), begin, *sets)


@pytest.mark.parametrize("first", first_quick(range(0, PROGRAMS, 30)))
def test_occurrences_are_those_of_a_walk_over_the_minutes(first):
    """Around changes of the clock in any zone: strictly later, never off the schedule, none lost and none twice.

    ``CRON_PROGRAMS=20000`` runs as many.
    """
    for seed in range(first, min(first + 30, PROGRAMS)):
        made = program(seed)
        end = made.begin + 48 * 3600
        times = cron_times(made.expression, ZoneInfo(made.zone))
        assert made.walk(end) == list(occurrences(times, made.begin, end)), (seed, made)


@pytest.mark.parametrize("first", first_quick(range(0, PROGRAMS, 30)))
@pytest.mark.parametrize("missed", list(MissedTick))
def test_runs_are_due_as_the_policy_says(missed, first):
    """Runs of random length around changes of the clock: each policy picks its due times from the walk's occurrences."""
    for seed in range(first, min(first + 30, PROGRAMS), 3):
        made, rng = program(seed), random.Random(seed)
        end = made.begin + 48 * 3600
        expected = made.walk(end)
        now = made.begin
        next_due = schedules.cron(cron_times(made.expression, ZoneInfo(made.zone)), missed, lambda: now)
        run, last = None, made.begin  # the instant up to which occurrences are dealt with
        for _ in range(100):
            found = next_due(run, now)
            due = next((each for each in expected if each > last), None)
            if run is not None and due is not None and due <= now:
                if missed is MissedTick.SKIP:
                    due = next((each for each in expected if each > now), None)
                elif missed is MissedTick.COALESCE:
                    due = now
            if due is None:
                assert found is None or found[1] > end, (seed, made)
                break
            assert (max(due, now), due) == pytest.approx(found, abs=1e-6), (seed, made)
            started = max(due, now) + rng.choice((0.0, 0.0, rng.uniform(0, 4000)))
            now = started + rng.choice((0.0, 1.0, rng.uniform(0, 9000)))
            run = LastRun(started, now)
            last = max(due, started) if missed is MissedTick.COALESCE else due


def test_missing_package_is_named_with_what_needs_it(monkeypatch):
    """Without cronsim, the error says what needs it, and what to install."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"^a cron expression needs the package cronsim: pip install '.*\[cron\]'$"):
        cron_times("* * * * *", UTC)
