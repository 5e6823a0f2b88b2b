"""The options of ``bench`` as values, and the load that they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor import Rate
from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.load.arrivals import Phase, staircase
from ratelimited_executor.load.search import SearchRange
from ratelimited_executor.load.verdicts import Thresholds

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BenchOptions",
    "phases_of",
    "read_rates",
    "read_share",
    "search_range_of",
    "settings_of",
    "trial_phases",
]

_SECONDS: Final = 30.0  # of a load, unless --for says otherwise
_STEP_SECONDS: Final = 10.0  # of a step and of a trial, unless --every says otherwise
# Of --find-max with one rate: it begins there, and looks so many times lower and higher.
_SEARCH_FACTOR: Final = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The command line of ``bench``, each option valid by itself; times in seconds, rates a second."""

    target: str
    rates: tuple[float, float] | None = None
    duration: float | None = None
    step: float | None = None
    every: float | None = None
    warm_up: float | None = None
    arrivals: str = "regular"
    seed: int = 0
    method: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    requests: str | None = None
    connections: int | None = None
    timeout: float = 30.0
    find_max: bool = False
    p99: float | None = None
    errors: float | None = None
    uvloop: bool = False
    json: Path | None = None
    html: Path | None = None
    quiet: bool = False

    @property
    def thresholds(self) -> Thresholds:
        """What the measurement has to keep."""
        return Thresholds(p99=self.p99, errors=self.errors)


def phases_of(options: BenchOptions) -> list[Phase]:
    """Return the load, warm-up first.

    Raises:
        CommandError: for options that do not go together.
    """
    first, last = _rates(options)
    if options.step is not None:
        if first == last:
            raise CommandError("--step needs a range of rates, such as --rate 100..1000")
        if options.duration is not None:
            raise CommandError("--step and --for exclude each other: --every says how long each step lasts")
        seconds = options.every or _STEP_SECONDS
        try:
            phases = staircase(first, last, step=options.step, seconds=seconds)
        except ValueError as error:
            raise CommandError(f"--{error}") from error
    else:
        if options.every is not None:
            raise CommandError("--every needs --step or --find-max: it says how long a step or a trial lasts")
        phases = [Phase(first=first, last=last, seconds=options.duration or _SECONDS)]
    return _with_warm_up(options, first, phases)


def search_range_of(options: BenchOptions) -> SearchRange:
    """Return where to look for the highest rate.

    Raises:
        CommandError: for options that do not go together.
    """
    if options.thresholds.is_empty:
        raise CommandError("--find-max needs --p99 or --errors: they say when a rate is held")
    if options.step is not None:
        raise CommandError("--find-max and --step exclude each other: it chooses its rates itself")
    if options.duration is not None:
        raise CommandError("--find-max and --for exclude each other: --every says how long each trial lasts")
    first, last = _rates(options)
    if first == last:
        return SearchRange(first=first, low=first / _SEARCH_FACTOR, high=first * _SEARCH_FACTOR)
    return SearchRange(first=min(first, last), low=min(first, last), high=max(first, last))


def trial_phases(options: BenchOptions, rate: float) -> list[Phase]:
    """Return the load of one trial of a rate."""
    trial = Phase(first=rate, last=rate, seconds=options.every or _STEP_SECONDS)
    return _with_warm_up(options, rate, [trial])


def settings_of(options: BenchOptions, connections: int) -> dict[str, str]:
    """Return what a report says of the options."""
    first, last = _rates(options)
    settings = {"rate": f"{first:g}/s" if first == last else f"{first:g}/s to {last:g}/s"}
    if options.find_max:
        settings["find-max"] = f"trials of {format_duration(options.every or _STEP_SECONDS)}"
    elif options.step is not None:
        settings["steps"] = f"{options.step:g}/s every {format_duration(options.every or _STEP_SECONDS)}"
    else:
        settings["for"] = format_duration(options.duration or _SECONDS)
    if options.warm_up:
        settings["warm-up"] = format_duration(options.warm_up)
    settings["arrivals"] = options.arrivals + (f", seed {options.seed}" if options.arrivals == "poisson" else "")
    settings["connections"] = f"{connections:,}"
    settings["timeout"] = format_duration(options.timeout)
    if options.p99 is not None:
        settings["p99 at most"] = format_duration(options.p99)
    if options.errors is not None:
        settings["errors at most"] = f"{100 * options.errors:.3g} %"
    return settings


def _rates(options: BenchOptions) -> tuple[float, float]:
    if options.rates is None:
        raise CommandError("--rate is missing: how many requests a second, such as --rate 100")
    return options.rates


def _with_warm_up(options: BenchOptions, rate: float, phases: list[Phase]) -> list[Phase]:
    if options.warm_up is None:
        return phases
    return [Phase(first=rate, last=rate, seconds=options.warm_up, is_measured=False), *phases]


def read_rates(text: str) -> tuple[float, float]:
    """Read ``500``, ``5/min`` or ``100..1000``.

    Raises:
        ValueError: if the text is anything else, or a rate is 0 or infinite.
    """
    parts = text.split("..")
    if len(parts) > 2:
        raise ValueError(f"a range of rates looks like 100..1000, got {text!r}")
    rates = [_read_rate(part) for part in parts]
    return rates[0], rates[-1]


def _read_rate(text: str) -> float:
    try:
        ratio = Rate.of(text.strip()).per_second
    except ValueError as error:
        raise ValueError(f"a rate looks like 500, 100/s, 5/min or 100..1000, got {text!r}") from error
    if ratio is None or not ratio or not math.isfinite(float(ratio)):
        raise ValueError(f"a rate must be > 0 and finite, got {text!r}")
    return float(ratio)


def read_share(text: str) -> float:
    """Read ``1%`` or ``0.01``.

    Raises:
        ValueError: if the text is no part from 0 to 1.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 <= share <= 1:
        raise ValueError(f"a part looks like 1% or 0.01 and is from 0 to 1, got {text!r}")
    return share
