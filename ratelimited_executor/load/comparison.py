"""Compare two measurements: which figures changed, and which changes chance could explain.

There are two kinds of chance. One is which requests happened to be slow: if they were independent of one another, the
counts above a quantile would say how far it is from the true one. The other is that a machine has good and bad seconds.
The quantile of each second, over all seconds, says how much that moves it: the seconds are batches, whose mean has a
standard error ("batch means", Law, Simulation Modeling and Analysis, chapter 9). A change is clear if it is beyond both.
Longer spells, such as a neighbour that was busy during the whole of one measurement, are seen only by measuring again.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ratelimited_executor.load.durations import SHARES
from ratelimited_executor.load.verdicts import interval_of_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.load.figures import ClassFigures, Figures, Measurement

    _Requests = Figures | ClassFigures

__all__ = ["Change", "compare", "noise_of"]

_Z: Final = 1.96  # two standard errors: they hold the true mean in 95 of 100 measurements
_NOISY: Final = ("p50", "p99")  # the quantiles of each second that measurements have
_SECONDS_MIN: Final = 5  # of a load; the spread of fewer seconds says nothing
_SHARES_FEW: Final = tuple(pair for pair in SHARES if pair[0] in ("p50", "p99"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure of both measurements.

    Attributes:
        name: the name of the figure.
        unit: ``seconds``, ``share`` or ``rate``.
        before: its value in the first measurement.
        after: its value in the second measurement.
        direction: ``better`` or ``worse`` if chance is ruled out, provided that requests, or at least seconds, are
            independent of one another; ``unclear`` if it is not; None if nothing can be said.
        noise: for each of the two values, how far good and bad seconds move it, in its unit; None if that is not known.
    """

    name: str
    unit: str
    before: float
    after: float
    direction: str | None = None
    noise: tuple[float | None, float | None] = (None, None)

    @property
    def ratio(self) -> float | None:
        """The second divided by the first; None if the first is 0."""
        return self.after / self.before if self.before else None


def compare(before: Measurement, after: Measurement) -> list[Change]:
    """Return the changes: response times first, figures of common classes last.

    Of a load of users there is no target rate, and no service time beside the response time.
    """
    is_open = before.is_open and after.is_open
    one, other = before.figures, after.figures
    others = {each.name: each for each in other.classes}
    return [
        *(_beside_noise(change, one, other) for change in _changes_of(one, other, SHARES, is_open=is_open)),
        *([Change(name="target rate", unit="rate", before=one.asked_rate, after=other.asked_rate)] if is_open else []),
        Change(name="answered", unit="rate", before=one.answered_rate, after=other.answered_rate),
        Change(
            name="our lateness, p99",
            unit="seconds",
            before=one.lateness.quantile(0.99),
            after=other.lateness.quantile(0.99),
        ),
        *(
            change
            for each in one.classes
            if each.name in others
            for raw in _changes_of(each, others[each.name], _SHARES_FEW, is_open=is_open, prefix=f"{each.name}: ")
            for change in (_beside_noise_of_others(raw, one, other),)
        ),
    ]


def noise_of(figures: Figures, quantile: str) -> float | None:
    """Return how far good and bad seconds move a quantile, ``p50`` or ``p99``; None of a load of few seconds."""
    values: list[float] = [getattr(each, quantile) for each in figures.timeline if each.count]
    if len(values) < _SECONDS_MIN:
        return None
    return _Z * statistics.stdev(values) / math.sqrt(len(values))


def _beside_noise(change: Change, one: Figures, other: Figures) -> Change:
    """Return a change of a response time with the noise of both sides, unclear if that could explain it."""
    quantile = change.name.removesuffix(" response time")
    if quantile not in _NOISY:
        return _beside_noise_of_others(change, one, other)
    noise = noise_of(one, quantile), noise_of(other, quantile)
    is_within = abs(change.after - change.before) <= math.hypot(*(each or 0.0 for each in noise))
    direction = "unclear" if is_within and change.direction is not None else change.direction
    return replace(change, direction=direction, noise=noise)


def _beside_noise_of_others(change: Change, one: Figures, other: Figures) -> Change:
    """Return a change, unclear if as large a fraction of its response time as p50 or p99 of all moves could explain it."""
    if change.direction is None or change.unit != "seconds":
        return change
    moved = [
        value
        * max(
            (noise_of(figures, name) or 0.0) / (figures.response_times.quantile(share) or 1.0)
            for name, share in _SHARES_FEW
        )
        for value, figures in ((change.before, one), (change.after, other))
    ]
    is_within = abs(change.after - change.before) <= math.hypot(*moved)
    return replace(change, direction="unclear") if is_within else change


def _changes_of(
    one: _Requests, other: _Requests, shares: Sequence[tuple[str, float]], *, is_open: bool, prefix: str = ""
) -> list[Change]:
    response = [
        Change(
            name=f"{prefix}{name} response time",
            unit="seconds",
            before=one.response_times.quantile(share),
            after=other.response_times.quantile(share),
            direction=_direction_of_quantile(one, other, share),
        )
        for name, share in shares
    ]
    service = [
        Change(
            name=f"{prefix}{name} service time",
            unit="seconds",
            before=one.service_times.quantile(share),
            after=other.service_times.quantile(share),
        )
        for name, share in _SHARES_FEW
        if is_open
    ]
    errors = Change(
        name=f"{prefix}errors",
        unit="share",
        before=one.error_share,
        after=other.error_share,
        direction=_direction_of_errors(one, other),
    )
    return [*response, *service, errors]


def _direction_of_quantile(one: _Requests, other: _Requests, share: float) -> str | None:
    """Compare a quantile in both directions: are clearly more, or fewer, requests of each above that of the other?"""
    if not one.count or not other.count:
        return None
    other_above = _side(other.response_times.count_above(one.response_times.quantile(share)), other.count, 1 - share)
    one_above = _side(one.response_times.count_above(other.response_times.quantile(share)), one.count, 1 - share)
    if other_above > 0 and one_above < 0:
        return "worse"
    return "better" if other_above < 0 and one_above > 0 else "unclear"


def _side(part: int, total: int, share: float) -> int:
    """Return 1 if a part is clearly more than a share of the total, -1 if clearly less, 0 if unclear."""
    low, high = interval_of_share(part, total)
    return 1 if low > share else -1 if high < share else 0


def _direction_of_errors(one: _Requests, other: _Requests) -> str | None:
    if not one.count or not other.count:
        return None
    low, high = interval_of_share(one.error_count, one.count)
    other_low, other_high = interval_of_share(other.error_count, other.count)
    if other_low > high:
        return "worse"
    return "better" if other_high < low else "unclear"
