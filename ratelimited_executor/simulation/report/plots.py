"""The plots of a report and their content, independent of the drawing library; plots without data are left out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.report.reading import Bin, label_of
from ratelimited_executor.simulation.report.units import (
    Unit,
    duration,
    number,
    tick_distance,
    time_axis_unit,
    unit_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor.simulation.report.reading import (
        Cycle,
        Delays,
        ExecutorSeries,
        StoredPopulation,
        StoredRun,
    )

__all__ = [
    "COLOURS",
    "Bars",
    "HistogramPlot",
    "Mark",
    "Plot",
    "ReportLine",
    "Ring",
    "RingPlot",
    "TimeFrame",
    "TimePlot",
    "has_something_to_show",
    "make_plots",
    "rounded",
]

COLOURS: Final = (
    "#3b76c4", "#e07b2a", "#2f9e63", "#c8484e", "#8064b8", "#93684f", "#d66aa8", "#7d7f86", "#a79a21", "#2aa3b5",
)  # fmt: skip
_PERCENTILE_COLOURS: Final = {"p50": "#3b76c4", "p90": "#e0a02a", "p99": "#c8484e"}
_SINGLES_MAX: Final = 12  # lines of executors, beyond which a plot is neither readable nor small
_MARK_TEXT_MAX: Final = 30  # characters
_MARK_TEXTS_MAX: Final = 16  # with more they would hide the lines
_MARK_DISTANCE: Final = 0.025  # of the axis: marks closer than this share a text
_LOG_RATIO: Final = 3.0  # of the widths of bins: beyond it the bins were made for a logarithmic axis
_STEADY_RATIO: Final = 1.1  # of the growth of bins: below it the bins grow by one factor
_BELOW_AXIS: Final = 1 / 2000  # the fraction of intervals that may lie before the beginning of a logarithmic axis
_BARS_MAX: Final = 80  # on a logarithmic axis
_GAP: Final = 0.01  # of the axis: a line is broken where nothing was measured for longer
_TRANSPARENT_FROM: Final = 2  # sets of bars that overlap


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A line of a plot over time; an initially hidden line is only in the legend."""

    name: str
    colour: str
    x: list[float]
    y: list[float | None]  # None: the line is broken
    width: float = 1.6
    opacity: float = 1.0
    is_shown: bool = True
    has_points: bool = False  # isolated points, which need a marker
    is_limit: bool = False  # what the line of the same colour is to stay below: dashed, without markers


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at an event; neighbouring marks share the text of the first."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class TimePlot:
    """Lines over time."""

    key: str
    title: str
    caption: str
    y_label: str
    unit: Unit
    end: float  # of the axis, in its unit
    lines: list[ReportLine]
    marks: list[Mark]
    has_log_scale: bool = False
    y_sign: str = ""  # after a value

    @property
    def x_label(self) -> str:
        """The label of the horizontal axis."""
        return f"simulated time ({self.unit.name})"

    @property
    def tick_distance(self) -> float:
        """The distance between two ticks of the horizontal axis."""
        return tick_distance(self.end)


@dataclass(frozen=True, slots=True)
class Bars:
    """The histogram of a population: bars from low to high, in the unit of the plot, and their parts in percent."""

    name: str
    colour: str
    lows: list[float]
    highs: list[float]
    percents: list[float]
    texts: list[str]
    opacity: float


@dataclass(frozen=True, slots=True)
class HistogramPlot:
    """Superimposed histograms."""

    key: str
    title: str
    caption: str
    x_label: str
    y_label: str
    is_log: bool
    bars: list[Bars]
    begin: float  # of a logarithmic axis: a few values may lie below it, down to a millionth of a second
    end: float  # of a logarithmic axis

    @property
    def log_ticks(self) -> list[float]:
        """The numbers of a logarithmic axis: 1, 2, 5 and their multiples by powers of ten."""
        low, high = self.begin, self.end
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1, 2, 5) if len(powers) <= 5 else (1,)
        ticks = (float(f"{factor}e{power}") for power in powers for factor in factors)
        return [tick for tick in ticks if low <= tick <= high]


@dataclass(frozen=True, slots=True)
class Ring:
    """A cycle: a segment for each slot."""

    title: str
    centre: list[str]
    keys: list[int]
    weights: list[float]
    names: list[str]
    texts: list[str]


@dataclass(frozen=True, slots=True)
class RingPlot:
    """Rings side by side, with the same colours for weights."""

    key: str
    title: str
    caption: str
    rings: list[Ring] = field(default_factory=list)

    @property
    def weight_range(self) -> tuple[float, float]:
        """The smallest and the largest weight of all slots."""
        weights = [weight for ring in self.rings for weight in ring.weights]
        return min(weights), max(weights)


Plot = TimePlot | HistogramPlot | RingPlot


def make_plots(runs: Sequence[StoredRun]) -> list[Plot]:
    """Return the plots of a report, in their order.

    Args:
        runs: one run, or several to compare.
    """
    shared = TimeFrame(runs)
    found: list[Plot | None] = [
        _levels(
            runs,
            shared,
            key="throughput",
            title="Throughput",
            y_label="done jobs per minute",
            alone="the jobs done in it, as a rate per minute",
            joined="the sum of its steps, as a rate per minute",
            values=lambda series: series.done_per_minute,
        ),
        _levels(
            runs,
            shared,
            key="queue_depth",
            title="Queue depth",
            y_label="jobs due and not started",
            alone="the depth at its end",
            joined="the maximum at the ends of its steps",
            values=lambda series: series.queue_depth,
            has_log_scale=True,
        ),
        _start_delay(runs, shared),
        _sync_intervals(runs),
        _slots(runs),
        _levels(
            runs,
            shared,
            key="executing_jobs",
            title="Executing jobs",
            y_label="executing jobs",
            alone="the jobs that execute at its end",
            joined="the maximum of its steps, each at its end",
            values=lambda series: series.executing_jobs,
        ),
    ]
    return [plot for plot in found if plot is not None]


def has_something_to_show(plot: Plot) -> bool:
    """Return False for a plot over time whose lines all lie on zero."""
    return not isinstance(plot, TimePlot) or any(value for line in plot.lines for value in line.y)


class TimeFrame:
    """The common properties of all plots over time.

    Args:
        runs: the runs that they show.
    """

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        span = max(run.span for run in runs)
        self.unit = time_axis_unit(span)
        self.end = max(span, 1.0) / self.unit.seconds
        self.marks = _marks(runs, self.unit, self.end)
        self._lengths = sorted({run.grid.piece_seconds for run in runs})
        self._has_steps_alone = all(run.grid.steps_in_piece == 1 for run in runs)

    def point(self, alone: str, joined: str) -> str:
        """Return the text for a point: ``alone`` for one step, ``joined`` for several."""
        length = " or ".join(map(duration, self._lengths))
        if self._has_steps_alone:
            return f"Each point stands for a step of {length}: {alone}."
        return f"Each point stands for {length}: {joined}."

    def x(self, times: list[float]) -> list[float]:
        """Return times in the unit of the axis."""
        return [rounded(time / self.unit.seconds) for time in times]


def _marks(runs: Sequence[StoredRun], unit: Unit, end: float) -> list[Mark]:
    """Return the events; an event that not all runs have is shown with the name of its run."""
    owners: dict[tuple[float, str], list[str]] = {}
    for run in runs:
        for event in run.events:
            labels = owners.setdefault((event.time, event.name), [])
            if run.label not in labels:
                labels.append(run.label)
    marks: list[Mark] = []
    clusters: list[tuple[float, list[str]]] = []
    for (time, name), labels in sorted(owners.items()):
        x = time / unit.seconds
        text = name if len(labels) == len(runs) else f"{name} ({', '.join(labels)})"
        if clusters and x - clusters[-1][0] < _MARK_DISTANCE * end:
            clusters[-1][1].append(text)
            marks.append(Mark(x, ""))
        else:
            clusters.append((x, [text]))
            marks.append(Mark(x, "?"))
    if len(clusters) > _MARK_TEXTS_MAX:
        return [Mark(mark.x, "") for mark in marks]
    texts = (_text_of_marks(names) for _, names in clusters)
    return [Mark(mark.x, next(texts) if mark.text else "") for mark in marks]


def _text_of_marks(names: Sequence[str]) -> str:
    """Return the text of neighbouring events: "a, b are out" for "a is out" and "b is out"; the first one if all are too long."""
    parts = list(names)
    for state in (" is out", " is back"):
        subjects = [each.removesuffix(state) for each in parts if each.endswith(state)]
        if len(subjects) > 1:
            told = f"{', '.join(subjects)}{state.replace('is', 'are')}"
            parts = [told, *(each for each in parts if not each.endswith(state))]
    text = ", ".join(parts)
    if len(text) <= _MARK_TEXT_MAX or len(names) == 1:
        return _shortened(text)
    more = f" and {len(names) - 1} more"
    return _shortened(names[0], _MARK_TEXT_MAX - len(more)) + more


def _levels(
    runs: Sequence[StoredRun],
    shared: TimeFrame,
    *,
    key: str,
    title: str,
    y_label: str,
    alone: str,
    joined: str,
    values: Callable[[ExecutorSeries], Sequence[float]],
    has_log_scale: bool = False,
) -> TimePlot | None:
    """Return a plot of the total of each run, and of its executors if there are several."""
    of_runs = [run for run in runs if run.executors]
    if not of_runs:
        return None
    several = len(runs) > 1
    chosen = [(run, run.total, run.label if several else "all executors") for run in of_runs]
    singles = [
        (run, series, label_of(series.name, run, runs))
        for run in of_runs
        for series in run.executors
        if len(run.executors) > 1
    ]
    if not several and not singles:
        chosen = [(run, series, series.name) for run in of_runs for series in run.executors]
    left_out, singles = (len(singles), []) if len(singles) > _SINGLES_MAX else (0, singles)
    lines = [
        ReportLine(
            name,
            COLOURS[index % len(COLOURS)],
            shared.x(run.grid.ends),
            [rounded(value) for value in values(series)],
            is_shown=not several or series is run.total,
        )
        for index, (run, series, name) in enumerate([*chosen, *singles])
    ]
    caption = shared.point(alone, joined)
    if several and singles:
        caption += " The lines are sums over the executors of a run; those of single executors wait in the legend."
    if left_out:
        caption += f" The lines are sums over the executors of a run; those of {left_out:,} executors are left out."
    return TimePlot(key, title, caption, y_label, shared.unit, shared.end, lines, shared.marks, has_log_scale)


def _start_delay(runs: Sequence[StoredRun], shared: TimeFrame) -> TimePlot | None:
    found = [(run, delays) for run in runs for delays in run.delays]
    if not found:
        return None
    longest = sorted((max(delays.p99) for _, delays in found), reverse=True)[:_SINGLES_MAX]
    series = [pair for pair in found if max(pair[1].p99) >= longest[-1]][:_SINGLES_MAX]
    unit = unit_for(max(max(delays.p99) for _, delays in series))
    lines: list[ReportLine] = []
    for index, (run, delays) in enumerate(series):
        name = _delay_name(runs, run, delays)
        points = _with_gaps(delays.times, max(_GAP * run.span, 1.5 * run.grid.piece_seconds))
        x = shared.x([time for time, _ in points])
        has_gaps = len(points) > len(delays.times)
        for percentile, values, opacity in (
            ("p50", delays.p50, 0.5),
            ("p90", delays.p90, 0.75),
            ("p99", delays.p99, 1.0),
        ):
            is_alone = len(series) == 1
            lines.append(
                ReportLine(
                    f"{percentile} {name}".strip(),
                    _PERCENTILE_COLOURS[percentile] if is_alone else COLOURS[index % len(COLOURS)],
                    x,
                    [None if at is None else rounded(values[at] / unit.seconds, 4) for _, at in points],
                    opacity=1.0 if is_alone else opacity,
                    is_shown=len(series) <= 2 or percentile == "p99",
                    has_points=has_gaps,
                )
            )
    caption = shared.point("the percentiles within it", "the maximum of the percentiles of its steps")
    caption += " Where no job started there is none, and no line. The delay is from when a job is due to its start."
    if len(series) > 2:
        caption += " p50 and p90 wait in the legend."
    if len(series) < len(found):
        caption += f" The {len(series)} of {len(found):,} executors with the longest delays are shown."
    return TimePlot(
        "start_delay",
        "Start delay",
        caption,
        f"start delay ({unit.name})",
        shared.unit,
        shared.end,
        lines,
        shared.marks,
        has_log_scale=True,
        y_sign=unit.sign,
    )


def _with_gaps(times: list[float], longest: float) -> list[tuple[float, int | None]]:
    """Return times and their indexes, with a None index wherever the gap to the next is too long."""
    points: list[tuple[float, int | None]] = []
    for index, time in enumerate(times):
        if index and time - times[index - 1] > longest:
            points.append((times[index - 1], None))
        points.append((time, index))
    return points


def _delay_name(runs: Sequence[StoredRun], run: StoredRun, delays: Delays) -> str:
    parts = [run.label] * (len(runs) > 1) + [delays.name] * (len(run.delays) > 1)
    return ": ".join(parts)


def _sync_intervals(runs: Sequence[StoredRun]) -> HistogramPlot | None:
    several = len(runs) > 1
    found = [(run, population) for run in runs for population in run.populations if population.bins]
    if not found:
        return None
    all_bins = [each for _, population in found for each in population.bins]
    unit = unit_for(_upper(all_bins))
    is_log = _is_logarithmic(all_bins)
    begin, end = min(_begin(population.bins) for _, population in found), max(map(_finite_high, all_bins))
    grid = _LogGrid(all_bins, begin, end) if is_log or _has_steady_growth(all_bins) else None
    bars = []
    for index, (run, population) in enumerate(found):
        name = label_of(population.name, run, runs)
        opacity = 0.6 if len(found) >= _TRANSPARENT_FROM else 0.9
        bins = population.bins if grid is None else grid.joined(population.bins)
        bars.append(_bars(name, COLOURS[index % len(COLOURS)], bins, unit, opacity, is_log=is_log))
    caption = "The time between two syncs of a key, over all keys and the whole run. "
    if is_log:
        caption += "One in 2,000 may lie before the axis begins. "
    caption += " ".join(_never_synced(run, population, several=several) for run, population in found)
    return HistogramPlot(
        "sync_interval",
        "Sync intervals",
        caption.strip(),
        f"interval between two syncs of a key ({unit.name}{', logarithmic' if is_log else ''})",
        "part of the intervals (%)",
        is_log,
        bars,
        begin / unit.seconds,
        end / unit.seconds,
    )


class _LogGrid:
    """Joins neighbouring bins of a logarithmic histogram, so that its bars are few and wide enough to be seen.

    Args:
        bins: the bins of all populations, which share one grid.
        begin: the beginning of the axis, in seconds.
        end: the end of the axis, in seconds.
    """

    def __init__(self, bins: Sequence[Bin], begin: float, end: float) -> None:
        regular = [each for each in bins if self._is_regular(each)]
        self._width = min(math.log(each.high / each.low) for each in regular)
        self._origin = regular[0].high
        least = begin if begin > 0 else min(each.low for each in regular)
        self._joined_count = max(1, math.ceil(math.log(end / least) / self._width / _BARS_MAX))

    @staticmethod
    def _is_regular(each: Bin) -> bool:
        return each.low > 0 and math.isfinite(each.high)

    def joined(self, bins: Sequence[Bin]) -> list[Bin]:
        """Return the joined bins of a population; bins at the ends that are off the grid stay as they are."""
        count, counts = self._joined_count, Counter[int]()
        if count == 1:
            return list(bins)
        for each in bins:
            if self._is_regular(each):
                counts[round(math.log(each.high / self._origin) / self._width) // count] += each.count
        made = [Bin(self._edge(group * count), self._edge((group + 1) * count), counts[group]) for group in counts]
        return sorted((*made, *(each for each in bins if not self._is_regular(each))), key=lambda each: each.low)

    def _edge(self, index: int) -> float:
        return self._origin * math.exp(self._width * (index - 1))


def _bars(name: str, colour: str, bins: Sequence[Bin], unit: Unit, opacity: float, *, is_log: bool) -> Bars:
    count = sum(each.count for each in bins)
    made = Bars(name, colour, [], [], [], [], opacity)
    for each in bins:
        high = _finite_high(each)
        made.lows.append(rounded((_positive_low(each) if is_log else max(each.low, 0.0)) / unit.seconds))
        made.highs.append(rounded(high / unit.seconds))
        made.percents.append(rounded(100 * each.count / count))
        made.texts.append(f"{duration(max(each.low, 0.0))} to {duration(high)}: {each.count:,} intervals")
    return made


def _begin(bins: Sequence[Bin]) -> float:
    """Return a value below which at most one in 2,000 of the values lie."""
    below, limit = 0, _BELOW_AXIS * sum(each.count for each in bins)
    for each in bins:
        below += each.count
        if below > limit:
            return _positive_low(each)
    return _positive_low(bins[0])


def _positive_low(each: Bin) -> float:
    """Return the lower end of a bin on a logarithmic axis."""
    return each.low if each.low > 0 else _finite_high(each) / 2


def _finite_high(each: Bin) -> float:
    """Return the upper end of a bin in the plot, which is finite."""
    return each.high if math.isfinite(each.high) else 2 * max(each.low, 1.0)


def _never_synced(run: StoredRun, population: StoredPopulation, *, several: bool) -> str:
    if population.keys is None:
        return ""
    who = f"{population.name} of {run.label}" if several else population.name
    part = f" ({number(100 * (population.never_synced or 0) / population.keys)} %)" if population.never_synced else ""
    return f"Never synced in {who}: {population.never_synced:,} of {population.keys:,} keys{part}."


def _upper(bins: list[Bin]) -> float:
    """Return a value below which about nine in ten of the values lie."""
    left = 0.9 * sum(each.count for each in bins)
    for each in sorted(bins, key=lambda found: found.low):
        left -= each.count
        if left <= 0:
            return each.high if math.isfinite(each.high) else each.low
    return 1.0


def _is_logarithmic(bins: list[Bin]) -> bool:
    """True if bins are wider for larger values."""
    widths = [each.high - each.low for each in bins if math.isfinite(each.high) and each.low > 0]
    return bool(widths) and max(widths) > _LOG_RATIO * min(widths)


def _has_steady_growth(bins: list[Bin]) -> bool:
    """True if each bin is wider than the one before by the same factor, so that a `_LogGrid` can join them."""
    growths = [math.log(each.high / each.low) for each in bins if each.low > 0 and math.isfinite(each.high)]
    return bool(growths) and max(growths) < _STEADY_RATIO * min(growths)


def _slots(runs: Sequence[StoredRun]) -> RingPlot | None:
    rings = [_ring(label_of(cycle.name, run, runs), cycle) for run in runs for cycle in run.cycles if cycle.slots]
    if not rings:
        return None
    caption = (
        "Each segment is a slot, as large as it has keys, clockwise from the top; its colour is the "
        "weight of its keys together. A slot without keys has no segment."
    )
    return RingPlot("slots", "Slots", caption, rings)


def _ring(title: str, cycle: Cycle) -> Ring:
    return Ring(
        title,
        [f"{len(cycle.slots):,} slots", f"{sum(slot.keys for slot in cycle.slots):,} keys"],
        [slot.keys for slot in cycle.slots],
        [rounded(slot.weight) for slot in cycle.slots],
        [f"slot {slot.number}" for slot in cycle.slots],
        [f"from {duration(slot.begin)}: {slot.keys:,} keys, weight {number(slot.weight)}" for slot in cycle.slots],
    )


def rounded(value: float, digits: int = 6) -> Any:
    """Return a number with few digits, for a smaller page; a whole number keeps all its digits."""
    if value == int(value):
        return int(value)
    return float(f"{value:.{digits}g}")


def _shortened(text: str, most: int = _MARK_TEXT_MAX) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
