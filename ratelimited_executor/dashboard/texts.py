"""How numbers, times and rates read on a page."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._runtime.insight.insight import Hold

if TYPE_CHECKING:
    from fractions import Fraction
    from typing import SupportsFloat

    from ratelimited_executor._runtime.insight.insight import Statistics

__all__ = [
    "NOTHING",
    "STATES",
    "StateText",
    "age_text",
    "ago_text",
    "count_text",
    "float_of",
    "hold_text",
    "name_text",
    "number_text",
    "per_second_text",
    "plan_text",
    "rate_text",
    "seconds_text",
    "state_text",
    "time_text",
]

NOTHING = "-"
"""What stands where there is no value."""
_NAME_LENGTH_MAX: Final = 200


def float_of(number: SupportsFloat) -> float:
    """Return a number >= 0 as a float; one that no float can hold as infinity.

    >>> float_of(10**400)
    inf
    """
    try:
        return float(number)
    except OverflowError:
        return math.inf


def count_text(count: float) -> str:
    """Write a count.

    >>> count_text(1234567), count_text(10**400)
    ('1,234,567', '∞')
    """
    number = float_of(count)
    if math.isinf(number):
        return "∞"
    return NOTHING if math.isnan(number) else f"{count:,.0f}"


_MEANINGS: Final = {
    Hold.NOTHING: "about to start",
    Hold.DUE: "its due time has not come yet",
    Hold.SPREAD: "its start is spread evenly over the interval",
    Hold.RATE: "the next permit is not available yet",
    Hold.WINDOW: "the window of a rate is full",
    Hold.QUOTA: "the quota of the current period is used up",
    Hold.RESOURCE: "a resource that it needs is exhausted",
    Hold.KEY_RATE: "the rate of its key has no permit left",
    Hold.KEY_CONCURRENCY: "its key already runs as many tasks as allowed",
    Hold.KEYS: "its key is new, and as many others as allowed are remembered",
    Hold.SLOTS: "the slots that it needs are held by others",
    Hold.PENALTY: "the remote service asked for a pause",
    Hold.ORDER: "tasks ahead of it take the next permits",
    Hold.CONCURRENCY: "as many tasks as allowed are running",
    Hold.PAUSE: "the executor is paused, or its rate is 0",
    Hold.OUTAGE: "no answer from the place where the group keeps its limits",
    Hold.GROUP: "a limit shared by the group, or this process's share of it",
    Hold.QUARANTINE: "earlier permits have to lapse first",
}


def hold_text(hold: Hold) -> str:
    """Say what a hold means."""
    return _MEANINGS[hold]


def name_text(value: object) -> str:
    """Write a name or a key, which may be any object, and shorten it.

    >>> name_text(("ann", 3)), name_text("x" * 1000) == "x" * 200 + "…"
    ("('ann', 3)", True)
    """
    try:
        text = str.__str__(str(value))  # no subclass, which may be of another length or count as HTML
    except Exception:  # noqa: BLE001  # code of the user
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _NAME_LENGTH_MAX else f"{text[:_NAME_LENGTH_MAX]}…"


def number_text(value: float) -> str:
    """Write a value of an axis, short.

    >>> [number_text(value) for value in (0.05, 12, 1500, 2_000_000, float("inf"))]
    ['0.05', '12', '1.5 k', '2 M', '∞']
    """
    if math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞"
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor * 0.9995:  # just below it three digits would be those of the next unit
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def per_second_text(value: float | Fraction) -> str:
    """Write how often a second; below 1, in two digits.

    >>> per_second_text(12.345), per_second_text(0.0995), per_second_text(0)
    ('12.3/s', '0.1/s', '0/s')
    """
    number = float_of(value)
    return NOTHING if math.isnan(number) else f"{number_text(number) if number >= 1 else f'{number:.2g}'}/s"


def rate_text(statistics: Statistics) -> str:
    """Write the rate in force."""
    if statistics.fleet is not None and statistics.fleet.rate is not None:
        return f"{number_text(float_of(statistics.fleet.rate))}/s (group)"
    return "no limit" if statistics.rate.is_unlimited else str(statistics.rate)


def seconds_text(seconds: float | None) -> str:
    """Write a duration.

    >>> seconds_text(0), seconds_text(0.0123), seconds_text(float("inf")), seconds_text(None)
    ('0 s', '12.3 ms', '∞', '-')
    """
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if math.isinf(seconds):
        return "∞"
    return "0 s" if seconds == 0 else format_duration(seconds)


_POLICY: Final = re.compile(r"([A-Z]\w*)\(.*?\) (?=\w)")


def plan_text(plan: str) -> str:
    """Write the limits of a group, which its processes name by their policy and the rates of each resource.

    >>> plan_text("Paced(slack=0.02) permits 5/s, 200/min; tokens inf/s"), plan_text("100/min")
    ('permits 5/s, 200/min; tokens without a limit, paced', '100/min')
    """
    policy = _POLICY.match(plan)
    text = plan if policy is None else f"{plan[policy.end() :]}, {policy[1].lower()}"
    return text.replace(" inf/s", " without a limit")


STATES: Final = (
    "outage",
    "failing",
    "full",
    "stopped",
    "failed",
    "penalty",
    "paused",
    "closing",
    "open",
    "not started",
)
"""The kinds of states of an executor, the worst first."""


class StateText(NamedTuple):
    """A state: its kind, one of ``STATES``, in words, and as the class of its colour: ``good``, ``wait`` or ``bad``."""

    kind: str
    text: str
    colour: str


def state_text(
    statistics: Statistics,
    *,
    is_closing: bool,
    failed: float = 0.0,
    lately: int = 0,
    stuck: str = "",
    authority: str = "the group",
) -> StateText:
    """Say in what state an executor is.

    Args:
        statistics: the statistics of the executor.
        is_closing: True if it accepts no more tasks.
        failed: tasks a second that fail now.
        lately: how many tasks have failed in the last 15 minutes.
        stuck: what runs, if that keeps all places while tasks are due and none starts; else empty.
        authority: what answers for the limits of its group.
    """
    held = _held_text(statistics, is_closing=is_closing, authority=authority)
    if held is not None:
        return held
    if failed > 0:
        return StateText("failing", f"open; {per_second_text(failed)} fail", "bad")
    if stuck:
        return StateText("full", f"full: {stuck}", "wait")
    if lately:
        return StateText("failed", f"open; {count_text(lately)} failed in 15 min", "wait")
    return StateText("open", "open", "good")


def _held_text(statistics: Statistics, *, is_closing: bool, authority: str) -> StateText | None:
    """Say what holds an executor, whatever its tasks do; None if it is open."""
    if is_closing:
        return StateText("closing", "closing", "wait")
    is_group_paused = statistics.fleet is not None and statistics.fleet.rate == 0
    if statistics.is_paused or is_group_paused:
        return StateText("paused", "paused" if statistics.is_paused else "group paused: its rate is 0", "wait")
    if statistics.fleet is not None and statistics.fleet.state == "outage":
        return StateText("outage", f"outage: no answer from {authority}", "bad")
    if statistics.rate.is_zero:
        due = f", {count_text(statistics.overdue)} due" if statistics.overdue else ""
        return StateText("stopped", f"stopped: its rate is 0{due}", "bad" if due else "wait")
    if statistics.penalty > 0:
        return StateText("penalty", f"penalty: {seconds_text(statistics.penalty)} left", "wait")
    return None


def age_text(least: float, most: float | None) -> str:
    """Write how long something has lasted: at least, and at most, in whole seconds; None for what nobody knows.

    >>> age_text(7.31, 7.31), age_text(5.4, 10.2), age_text(0, 3.2), age_text(90, None)
    ('7.31 s', '5 s to 11 s', 'up to 4 s', 'over 1m30s')
    """
    if most is None:
        return f"over {seconds_text(int(least))}"
    if most == least:
        return seconds_text(least)
    end = seconds_text(math.ceil(most))
    return f"{seconds_text(int(least))} to {end}" if least >= 1 else f"up to {end}"


def ago_text(seconds: float) -> str:
    """Write how long ago something was, in whole seconds.

    >>> ago_text(-0.1), ago_text(7.31), ago_text(3601)
    ('just now', '7 s ago', '1h1s ago')
    """
    return "just now" if seconds < 1 else f"{seconds_text(int(seconds))} ago"


def time_text(at: float) -> str:
    """Write epoch seconds as a time of day, UTC; those of no year that a calendar has, as seconds.

    >>> time_text(0), time_text(1e15)
    ('1970-01-01 00:00:00 UTC', '1e+15 s after 1970')
    """
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{at:.3g} s after 1970"
