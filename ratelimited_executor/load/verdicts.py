"""Verdicts on figures: thresholds that were broken, and a tool that was itself the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratelimited_executor.load.figures import ClassFigures, Figures

__all__ = ["Thresholds", "Verdict", "interval_of_share", "judge", "judge_trial", "percent_text", "why_tool_was_limit"]

# Two standard deviations: an interval holds the true share in 95 of 100 measurements.
_Z: Final = 1.96
# The tool's own lateness, 99th percentile: below this it does not matter, whatever the service's durations.
_LATENESS_FLOOR_SECONDS: Final = 0.002
# The tool's own lateness may be at most this fraction of the durations' 99th percentile.
_LATENESS_PART_MAX: Final = 0.1
# A process that computes, or has to wait for a core, for a larger fraction of the time does not read responses in time.
_CPU_SHARE_MAX: Final = 0.9
# A queue grows if durations grow by both this factor and this time from the first third of a load to the last.
_GROWTH_MIN: Final = 2.0
_GROWTH_FLOOR_SECONDS: Final = 0.01
_GROWTH_SECONDS_MIN: Final = 3  # of a load; fewer have no thirds


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds for a measurement, and for each of its classes by itself; None for no threshold.

    Attributes:
        p99: the maximum of the 99th percentile of response times, in seconds.
        errors: the maximum fraction of failed requests, 0 to 1.
        classes: thresholds of single classes by name; each takes precedence over the one for all.
    """

    p99: float | None = None
    errors: float | None = None
    classes: Mapping[str, Thresholds] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if there is no threshold, for no class either."""
        return self.p99 is None and self.errors is None and all(each.is_empty for each in self.classes.values())

    def of_class(self, name: str) -> Thresholds:
        """Return the thresholds that apply to a class."""
        own = self.classes.get(name, Thresholds())
        return Thresholds(
            p99=self.p99 if own.p99 is None else own.p99,
            errors=self.errors if own.errors is None else own.errors,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of comparing figures with thresholds.

    Attributes:
        broken: a sentence for each broken threshold.
        is_clear: True unless chance alone could have reversed the verdict. The test assumes independent requests; those
            near one another in time have similar durations, so chance has more effect than assumed.
        doubts: for each threshold that was kept, though not clearly, the counts that leave room for chance.
    """

    broken: tuple[str, ...]
    is_clear: bool
    doubts: tuple[str, ...] = ()

    @property
    def is_kept(self) -> bool:
        """True if every threshold was kept."""
        return not self.broken


def judge(figures: Figures, thresholds: Thresholds, *, reach: float | None = None) -> Verdict:
    """Compare figures, or those of each class if there are any, with thresholds; without a request none is kept.

    Each class is compared with the thresholds that apply to it, and has to keep them by itself.

    Args:
        figures: the figures.
        thresholds: the thresholds.
        reach: the minimum of the fraction of the target rate that was sent, 0 to 1; None for none.
    """
    reached = [] if reach is None else [_judge_reach(figures, reach)]
    each = _judge_classes(figures, thresholds) if figures.classes else [_judge(figures, thresholds)]
    return _all_of([*each, *reached])


def _judge_reach(figures: Figures, reach: float) -> Verdict:
    """Return the verdict on the rate, which was counted and leaves no room for chance."""
    if figures.sent_share >= reach:
        return Verdict(broken=(), is_clear=True)
    sent, asked = figures.sent_share * figures.asked_rate, figures.asked_rate
    reason = f"sent {sent:,.1f}/s, {percent_text(figures.sent_share)} of {asked:,.1f}/s, is below {percent_text(reach)}"
    return Verdict(broken=(reason,), is_clear=True)


def _judge_classes(figures: Figures, thresholds: Thresholds) -> list[Verdict]:
    return [
        Verdict(
            broken=tuple(f"{each.name}: {reason}" for reason in verdict.broken),
            is_clear=verdict.is_clear,
            doubts=tuple(f"{each.name}: {doubt}" for doubt in verdict.doubts),
        )
        for each in figures.classes
        for verdict in (_judge(each, thresholds.of_class(each.name)),)
    ]


def _all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on all: clear if one is clearly broken, or if all are clearly kept."""
    broken = [verdict for verdict in verdicts if not verdict.is_kept]
    return Verdict(
        broken=tuple(reason for verdict in broken for reason in verdict.broken),
        is_clear=any(verdict.is_clear for verdict in broken) if broken else all(each.is_clear for each in verdicts),
        doubts=tuple(doubt for verdict in verdicts for doubt in verdict.doubts),
    )


def _judge(figures: Figures | ClassFigures, thresholds: Thresholds) -> Verdict:
    if not figures.count:
        return Verdict(broken=("no request was sent",), is_clear=False)
    verdicts = []
    if thresholds.p99 is not None:
        found = figures.response_times.quantile(0.99)
        above = figures.response_times.count_above(thresholds.p99)
        low, high = interval_of_share(above, figures.count)
        reason = f"p99 {format_duration(found)} is above {format_duration(thresholds.p99)}"
        is_clear = not low <= 0.01 <= high
        doubt = f"p99 ({above:,} of {figures.count:,} requests above {format_duration(thresholds.p99)})"
        verdicts.append(_verdict(reason if found > thresholds.p99 else None, doubt, is_clear=is_clear))
    if thresholds.errors is not None:
        low, high = interval_of_share(figures.error_count, figures.count)
        # With no errors allowed, the verdict cannot become clearer.
        is_clear = thresholds.errors == 0 or not low <= thresholds.errors <= high
        reason = f"errors {percent_text(figures.error_share)} are above {percent_text(thresholds.errors)}"
        doubt = f"errors ({figures.error_count:,} of {figures.count:,} requests failed)"
        verdicts.append(_verdict(reason if figures.error_share > thresholds.errors else None, doubt, is_clear=is_clear))
    return _all_of(verdicts)


def _verdict(reason: str | None, doubt: str, *, is_clear: bool) -> Verdict:
    """Return the verdict on one threshold, which is broken if there is a reason."""
    if reason is not None:
        return Verdict(broken=(reason,), is_clear=is_clear)
    return Verdict(broken=(), is_clear=is_clear, doubts=() if is_clear else (doubt,))


def judge_trial(figures: Figures, thresholds: Thresholds) -> Verdict:
    """Judge a trial of a search, in which a growing queue breaks the thresholds, too.

    In a longer trial it would break any threshold. That is an indication, not a proof, so the verdict is then not
    clear.
    """
    verdict = judge(figures, thresholds)
    grown = _growth(figures)
    if not verdict.is_kept or grown is None:
        return verdict
    first, last = map(format_duration, grown)
    return Verdict(broken=(f"durations grew all the time, from p50 {first} to {last}",), is_clear=False)


def _growth(figures: Figures) -> tuple[float, float] | None:
    """Return the median durations at the beginning and the end of a load, if they doubled and rose throughout."""
    medians = [second.p50 for second in figures.timeline]
    if len(medians) < _GROWTH_SECONDS_MIN:
        return None
    third = len(medians) // 3
    first, middle, last = (
        sum(part) / third for part in (medians[:third], medians[third : 2 * third], medians[-third:])
    )
    grows = first < middle < last and last > _GROWTH_MIN * first and last - first > _GROWTH_FLOOR_SECONDS
    return (first, last) if grows else None


def interval_of_share(part: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the true share, if ``part`` of ``total`` were found.

    >>> [round(share, 3) for share in interval_of_share(10, 1000)]
    [0.005, 0.018]
    """
    if not total:
        return 0.0, 1.0
    share, square = part / total, _Z * _Z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = _Z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def why_tool_was_limit(figures: Figures) -> str | None:
    """Return why the figures reflect the tool more than the service; None if they do not, or nothing succeeded."""
    if figures.error_count == figures.count:
        return None
    lateness, duration = figures.lateness.quantile(0.99), figures.response_times.quantile(0.99)
    if lateness > _LATENESS_FLOOR_SECONDS and lateness > _LATENESS_PART_MAX * duration:
        return (
            f"it started requests late itself, by {format_duration(lateness)} at p99, when they took "
            f"{format_duration(duration)}"
        )
    if figures.cpu_share + figures.cpu_wait_share > _CPU_SHARE_MAX:
        waited = (
            ""
            if figures.cpu_share > _CPU_SHARE_MAX
            else f" and waited for one {figures.cpu_wait_share:.0%} of the time"
        )
        return f"it used {100 * figures.cpu_share:.0f} % of a core{waited}, so responses waited to be read"
    return None


def percent_text(share: float) -> str:
    """Return a fraction as a percentage of three digits."""
    return f"{100 * share:.3g} %"
