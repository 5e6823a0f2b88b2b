"""Check the times of starts against the law of their policy, and find the worst window.

The exact law, of ``Paced`` by default and of ``Window``: at most N starts in any window [a, a + W), for a rate of N permits
per W seconds. If N is not whole, it is rounded up and W is lengthened in proportion. Only windows that end just after a
start can be worst, so one pass with two pointers finds the worst one.

Phi(t) is the integral of the rate. The nominal law of ``Paced``: for every window [a, b], its ends included,

    cost of the starts in [a, b]  <=  Phi(b) - Phi(a - slack) + cost of the last

The law of ``Burst(n)`` has n instead of the last cost, and no slack.

Only windows from one start to another can be worst: shrinking a window to the starts within it removes permits but no
starts. Number the starts 0, 1, 2, ... by time, and let C_i be the cost of those before i: the starts from i to j
exceed the law by

    (C_j - Phi(t_j)) - (C_i - Phi(t_i - slack))

so one pass finds the worst window: for each j, the least of the second terms so far. Cost: O(n log n) for the sort,
then O(n + changes of the rate), about 1 microsecond a start.

Floats are read once: each time becomes a whole number of nanoseconds after the first start. From there on, the arithmetic
is in integers, in a unit that divides one permit and each rate's permits per nanosecond. Rejected: floats throughout (a
start at the float next to its permit's time becomes a violation of 1e-17) and fractions (20 times slower).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from ratelimited_executor._core.durations import DurationLike, duration_of
from ratelimited_executor._core.permits.exact import window_of
from ratelimited_executor._core.permits.rates import Rate, RateLike

__all__ = ["AuditReport", "RateHistory", "audit", "worst_window"]

RateHistory: TypeAlias = Sequence[tuple[float, RateLike]]

NS_PER_SECOND: Final = 1_000_000_000
_SLACK_SECONDS: Final = 0.02  # of ``Paced`` by default


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The worst window of an audit; :attr:`ok` is True if it keeps the law.

    Attributes:
        worst_excess: starts in the worst window beyond what the law allows; <= 0 means that the law holds everywhere;
            ``-inf`` if no window is limited.
        start: the beginning of the worst window: the time of its first start.
        end: the end of the worst window: the time of its last start.
        count: starts in the window, both ends included; with costs, the permits used.
        allowed: the number that the law allows in the window, tolerance included.
        total: starts audited.
    """

    worst_excess: float
    start: float
    end: float
    count: int
    allowed: float
    total: int

    @property
    def ok(self) -> bool:
        """True if the law holds in every window."""
        return self.worst_excess <= 0

    def __str__(self) -> str:
        if math.isinf(self.worst_excess):
            return f"law kept: {self.total} start(s), none in a limited window"
        verdict = "law kept" if self.ok else f"LAW BROKEN by {self.worst_excess:.6g}"
        return (
            f"{verdict}: the worst window of {self.total} start(s) is [{self.start:.9f}, {self.end:.9f}], "
            f"{self.end - self.start:.9f} s long, with {self.count} start(s) where {self.allowed:.6f} are allowed"
        )


def audit(
    starts: Iterable[float],
    rate: RateLike | RateHistory,
    *,
    slack: DurationLike | None = None,
    burst: int | None = None,
    costs: Sequence[int] | None = None,
) -> AuditReport:
    """Find the window of starts that exceeds the law of a rate most, or comes closest to it.

    The default is the exact law: never more starts than the permits of the rate in any window of its ``per``. ``slack``
    selects the nominal law of ``Paced``, and ``burst`` the law of ``Burst``.

    After a change of the rate, the new rate also counts earlier starts, as far back as the ``per`` of the old rate
    reaches. While a rate is infinite, nothing is counted.

    The audit is exact except for the reading of times: both ends of a window, and changes of the rate, are moved in favour of
    the law by a tolerance of 1 ns and two units in the last place of the largest time (together 2 ns for times up to 4e6 s;
    0.5 microseconds for seconds since the epoch). So rounding never turns a lawful history into a violation, and any excess of more than twice
    the tolerance's worth of permits is found. ``allowed`` includes the tolerance.

    Args:
        starts: times in seconds, on one scale, finite, in any order.
        rate: whatever ``Rate.of`` takes, or its history on the same scale as the starts: ``(time, rate)`` pairs in
            order of time. Each rate is in force from its time on, the first also before its time.
        slack: the slack of ``Paced`` with ``Strictness.NOMINAL``: seconds for which a permit may be used after its time,
            finite, >= 0. None audits the exact law; with ``burst`` it means 0.02.
        burst: the depth of a ``Burst``, to audit its law instead of that of ``Paced``. ``slack`` is then the most by which a
            start may come later than its decision.
        costs: permits taken by each start, in the order of ``starts``; 1 each by default.

    Raises:
        TypeError: if an argument is of the wrong kind.
        ValueError: if a time is not finite, ``slack`` is negative, or the history is empty or out of order.

    >>> starts = [0.0, 0.1, 0.2, 0.2, 0.3]
    >>> print(audit(starts, rate="4/s"))  # doctest: +ELLIPSIS
    LAW BROKEN by 1: the worst window of 5 start(s) is [0.000000000, 0.300000000], ... 5 start(s) where 4.000000 ...
    >>> print(audit(starts, rate=10, slack=0.02))  # doctest: +ELLIPSIS
    LAW BROKEN by 0.8: the worst window of 5 start(s) is [0.000000000, 0.200000000], ... 4 start(s) where 3.200000 ...
    """
    times, weights = _sorted_starts(starts, costs)
    is_exact = slack is None and burst is None
    slack_ns = round(_exact("slack", _SLACK_SECONDS if slack is None else slack) * NS_PER_SECOND)
    history = _read_history(rate)
    if not times:
        return AuditReport(worst_excess=-math.inf, start=0.0, end=0.0, count=0, allowed=math.inf, total=0)
    tolerance_ns = _tolerance_ns(times)
    stamps = _nanoseconds(times, times[0])
    changes = [(0 if time is None else round((time - times[0]) * NS_PER_SECOND), known) for time, known in history]
    if is_exact:
        unit, worst = 1, _scan_windows(stamps, weights, changes, tolerance_ns)
    else:
        changes = _in_favour(changes, tolerance_ns)
        unit, worst = _scan(stamps, weights, changes, slack_ns + tolerance_ns, tolerance_ns, burst)
    if worst is None:
        return AuditReport(
            worst_excess=-math.inf, start=times[0], end=times[0], count=0, allowed=math.inf, total=len(times)
        )
    excess, first, last = Fraction(worst[0], unit), worst[1], worst[2]
    count = sum(weights[first : last + 1])
    return AuditReport(
        worst_excess=float(excess),
        start=times[first],
        end=times[last],
        count=count,
        allowed=float(count - excess),
        total=len(times),
    )


def _in_favour(changes: list[tuple[int, Rate]], tolerance_ns: int) -> list[tuple[int, Rate]]:
    """Move changes by the tolerance, without another order, so that the higher of two rates is in force for longer."""
    moved = changes[:1]
    for (_, before), (time_ns, rate) in pairwise(changes):
        now, then = rate.per_second, before.per_second  # None if unlimited
        is_lower = now is not None and (then is None or now < then)
        moved.append((max(moved[-1][0], time_ns + (tolerance_ns if is_lower else -tolerance_ns)), rate))
    return moved


def _scan(
    stamps: list[int],
    weights: list[int],
    changes: list[tuple[int, Rate]],
    before_ns: int,
    after_ns: int,
    burst: int | None,
) -> tuple[int, tuple[int, int, int] | None]:
    """Return the unit, and the worst window as (excess in units, first start, last start); None if no window is limited.

    Of windows with an equal excess, the one that ends first is returned; of those, the longest.
    """
    begins, ends = _Phase(changes), _Phase(changes)
    unit = begins.unit
    worst: tuple[int, int, int] | None = None
    unlimited = lowest = lowest_at = 0
    credit = 0
    for number, stamp in enumerate(stamps):
        begins.move_to(stamp - before_ns)
        level = credit - begins.phase
        # A window that touches unlimited time allows anything: the worst window must begin later.
        if begins.unlimited_ns > unlimited or level < lowest or number == 0:
            unlimited, lowest, lowest_at = begins.unlimited_ns, level, number
        ends.move_to(stamp + after_ns)
        if ends.unlimited_ns == unlimited:
            excess = credit - ends.phase - lowest
            if burst is not None:
                excess += (weights[number] - burst) * unit
            if worst is None or excess > worst[0]:
                worst = (excess, lowest_at, number)
        credit += weights[number] * unit
    return unit, worst


def _scan_windows(
    stamps: list[int], weights: list[int], changes: list[tuple[int, Rate]], tolerance_ns: int
) -> tuple[int, int, int] | None:
    """Return the worst window of the exact law as (excess, first start, last start); None if no window is limited.

    At the instant of a change, either rate may have admitted a start.
    """
    pieces = _windows(changes, stamps[0])
    costs = [0, *accumulate(weights)]
    worst: tuple[int, int, int] | None = None
    piece = 0
    for number, stamp in enumerate(stamps):
        while piece + 1 < len(pieces) and pieces[piece + 1].since_ns < stamp - tolerance_ns:
            piece += 1
        found: list[tuple[int, int]] = []
        for window in pieces[piece:]:
            if window.since_ns > stamp + tolerance_ns:
                break
            if window.permits is None:
                found.clear()
                break
            # a start that is older by a whole window shares no window with this one
            first = bisect_left(stamps, max(stamp - window.width_ns + tolerance_ns + 1, window.known_ns), hi=number)
            found.append((costs[number] - costs[first] + 1 - window.permits, first))
        if found and (worst is None or min(found)[0] > worst[0]):
            worst = (*min(found), number)
    return worst


class _Window(NamedTuple):
    """The window in force from a time on: permits (None for any number) and width; earlier starts do not count."""

    since_ns: int
    permits: int | None
    width_ns: int
    known_ns: int


def _windows(changes: list[tuple[int, Rate]], begin_ns: int) -> list[_Window]:
    pieces: list[_Window] = []
    permits: int | None = None
    width_ns, known_ns = 0, begin_ns
    for time_ns, rate in changes:
        known_ns = max(
            known_ns, time_ns if permits is None else time_ns - width_ns + 1
        )  # what is older left its window
        if rate.is_unlimited:
            permits = None
        elif rate.per_second:
            window = window_of(rate)
            permits, width_ns = int(window.permits), math.ceil(window.per * NS_PER_SECOND)
        elif permits is None:  # a pause needs no window: nothing starts
            permits, width_ns = 0, NS_PER_SECOND
        pieces.append(_Window(time_ns, permits, width_ns, known_ns if pieces else begin_ns))
    return [pieces[0]._replace(since_ns=min(begin_ns, pieces[0].since_ns)), *pieces[1:]]


class _Phase:
    """Phi along a history of rates, in whole units, at a time that only moves forward.

    ``phase / unit`` is Phi in permits, apart from a constant; ``unlimited_ns`` counts the nanoseconds of infinite rate,
    which ``phase`` leaves out.
    """

    __slots__ = ("_at", "_next", "_pieces", "_slope", "phase", "unit", "unlimited_ns")

    def __init__(self, changes: list[tuple[int, Rate]]) -> None:
        ratios = [rate.per_second for _, rate in changes]
        self.unit = math.lcm(*(NS_PER_SECOND * ratio.denominator for ratio in ratios if ratio is not None))
        slopes = [None if ratio is None else int(ratio * self.unit / NS_PER_SECOND) for ratio in ratios]
        self._pieces = [(time, slope) for (time, _), slope in zip(changes, slopes, strict=True)]
        # The first rate also holds before its time, so its line may be extended backwards.
        self._at, self._slope = self._pieces[0]
        self._next = 1
        self.phase = 0
        self.unlimited_ns = 0

    def move_to(self, time: int) -> None:
        """Move forward to a time in nanoseconds."""
        pieces = self._pieces
        while self._next < len(pieces) and pieces[self._next][0] <= time:
            changed_at, slope = pieces[self._next]
            self._move(changed_at)
            self._slope = slope
            self._next += 1
        self._move(time)

    def _move(self, time: int) -> None:
        if self._slope is None:
            self.unlimited_ns += time - self._at
        else:
            self.phase += self._slope * (time - self._at)
        self._at = time


def worst_window(
    starts: Iterable[float], width: DurationLike, *, costs: Sequence[int] | None = None
) -> tuple[int, float]:
    """Find the most starts in any window [a, a + width).

    No such window contains two starts that are ``width`` apart. As in :func:`audit`, there is a tolerance for the reading of
    times: 1 ns and two units in the last place of the largest time.

    Args:
        starts: times in seconds, finite, in any order; read to the nearest nanosecond after the first.
        width: seconds, finite, >= 0.
        costs: permits taken by each start, in the order of ``starts``; 1 each by default.

    Returns:
        The number of starts, or permits, in the window, and the time of its first start; the earliest of equal windows.
        ``(0, 0.0)`` for no starts.

    Raises:
        ValueError: if a time or the width is not finite, or the width is negative.

    >>> worst_window([0.0, 0.5, 1.0, 1.25, 1.5], width=0.5)
    (2, 1.0)
    """
    times, weights = _sorted_starts(starts, costs)
    width_ns = round(_exact("width", width) * NS_PER_SECOND)
    tolerance_ns = _tolerance_ns(times) if times else 0
    best, best_start = 0, 0.0
    stamps = _nanoseconds(times, times[0]) if times else []
    first = held = 0
    for last, stamp in enumerate(stamps):
        held += weights[last]
        while first < last and stamp - stamps[first] >= width_ns - tolerance_ns:
            held -= weights[first]
            first += 1
        if held > best:
            best, best_start = held, times[first]
    return best, best_start


def _tolerance_ns(times: list[float]) -> int:
    """Return the largest possible error of the distance between two times."""
    return 1 + math.ceil(2 * NS_PER_SECOND * math.ulp(max(-times[0], times[-1])))


def _sorted_starts(starts: Iterable[float], costs: Sequence[int] | None) -> tuple[list[float], list[int]]:
    """Return the starts in order of time, and their costs."""
    if costs is None:
        times = _sorted_times("starts", starts)
        return times, [1] * len(times)
    given = list(map(float, starts))
    if len(costs) != len(given):
        raise ValueError(f"costs must have one entry for each of the {len(given)} starts, got {len(costs)}")
    _sorted_times("starts", given)
    pairs = sorted(zip(given, costs, strict=True), key=itemgetter(0))
    return [time for time, _ in pairs], [cost for _, cost in pairs]


def _sorted_times(name: str, values: Iterable[float]) -> list[float]:
    times = sorted(map(float, values))
    # Sorting leaves no order around NaN, so every value is checked.
    if not all(map(math.isfinite, times)):
        raise ValueError(
            f"{name} must be finite times in seconds, got {next(t for t in times if not math.isfinite(t))}"
        )
    return times


def _nanoseconds(times: list[float], origin: float) -> list[int]:
    if not math.isfinite((times[-1] - origin) * NS_PER_SECOND):
        raise ValueError(f"starts must lie within 1e299 s of each other, got {origin!r} and {times[-1]!r}")
    return [round((time - origin) * NS_PER_SECOND) for time in times]


def _exact(name: str, value: Any) -> Fraction:
    """Return the exact value of the shortest decimal form of a number of seconds, as rates are read."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction, Decimal)):
        value = duration_of(name, value)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number of seconds >= 0, got {value!r}")
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _read_history(rate: RateLike | RateHistory) -> list[tuple[float | None, Rate]]:
    """Return (time, rate) pairs; the time is None for a constant rate."""
    if isinstance(rate, (Rate, str)) or not isinstance(rate, Iterable):
        return [(None, Rate.of(rate))]
    pairs: list[tuple[float | None, Rate]] = []
    latest = -math.inf
    for entry in rate:
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
            raise TypeError(f"rate must be a rate or a sequence of (time, rate) pairs, got the entry {entry!r}")
        time = float(entry[0])
        if not math.isfinite(time):
            raise ValueError(f"rate must have finite times, got {time!r}")
        if time < latest:
            raise ValueError(f"rate must have its times in order, got {time!r} after {latest!r}")
        latest = time
        pairs.append((time, Rate.of(entry[1])))
    if not pairs:
        raise ValueError("rate must have at least one (time, rate) pair, got none")
    return pairs
