"""The options of ``bench`` as values, and the load that they describe."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from ratelimited_executor import Rate
from ratelimited_executor._core.durations import format_duration, parse_duration
from ratelimited_executor._core.escapes import shown
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.load.arrivals import Phase, Schedule, rate_text, staircase
from ratelimited_executor.load.search import SearchRange
from ratelimited_executor.load.verdicts import Thresholds, percent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

__all__ = [
    "CLASSES_MAX",
    "LOAD_SECONDS",
    "RATE_MAX",
    "REQUESTS_MAX",
    "BenchOptions",
    "classes_of",
    "read_durations",
    "read_rates",
    "read_share",
    "read_shares",
    "search_range_of",
    "settings_of",
    "settings_of_users",
    "trial_classes",
]

T = TypeVar("T")

LOAD_SECONDS: Final = 30.0  # of a load, unless --for says otherwise
_STEP_SECONDS: Final = 10.0  # of a step and of a trial, unless --every says otherwise
# For --find-max with one rate: the search begins there, and extends to this factor below and above.
_SEARCH_FACTOR: Final = 1024.0
_CLASS_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
CLASSES_MAX: Final = 100  # the histograms of a class take half a megabyte
# A second, of one process: it sends a fifth of this to a URL, and calls a function that does nothing half as often. It also
# bounds what has to be summed up for each second of a load that nothing could send.
RATE_MAX: Final = 100_000
# Of one process: they take 3 GB in memory.
REQUESTS_MAX: Final = 100_000_000
_UNNAMED: Final = "several rates are those of classes, and each needs a name: --rate ordinary=400 --rate urgent=20"
_UNNAMED_THRESHOLDS: Final = (
    "one threshold is for all, and any other needs the name of a class in front, such as urgent= for --rate urgent=20"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The command line of ``bench``, each option valid by itself; times in seconds, rates a second.

    ``rates`` has the first and the last rate of each class by its name, or those of all requests under the empty name.
    ``p99`` and ``errors`` have the threshold of single classes by name, and under the empty name that of all others.
    """

    target: str
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
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
    scenario: str | None = None
    users: int | None = None
    find_max: bool = False
    p99: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    reach: float | None = None
    uvloop: bool | None = None
    json: Path | None = None
    html: Path | None = None
    csv: Path | None = None
    otlp: str | None = None
    peers: str | None = None
    group: str | None = None
    expect: int | None = None
    processes: int = 1
    quiet: bool = False

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of the measurement and of its classes."""
        names = (self.p99.keys() | self.errors.keys()) - {""}
        return Thresholds(
            p99=self.p99.get(""),
            errors=self.errors.get(""),
            classes={name: Thresholds(p99=self.p99.get(name), errors=self.errors.get(name)) for name in names},
        )

    @property
    def p99_most(self) -> float | None:
        """The largest threshold for a p99, in seconds; None if a class has none."""
        each = [self.thresholds.of_class(name).p99 for name in self.rates]
        given = [seconds for seconds in each if seconds is not None]
        return max(given) if len(given) == len(each) else None


def classes_of(options: BenchOptions) -> dict[str, list[Phase]]:
    """Return the load of each class by its name, warm-up first.

    Raises:
        CommandError: for options that do not go together.
    """
    rates = _rates(options)
    _check_sharing(options)
    if options.step is not None and len(rates) > 1:
        raise CommandError("--step is for one --rate: leave it out; the range of a class is a ramp")
    _check_thresholds(options)
    _check_rate(options, max(_total(rates)))
    classes = {name: _phases_of(options, first, last) for name, (first, last) in rates.items()}
    _check_count(options, sum(phase.expected for phase in Schedule(classes=classes).phases if phase.is_measured))
    return classes


def _phases_of(options: BenchOptions, first: float, last: float) -> list[Phase]:
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
        phases = [Phase(first=first, last=last, seconds=options.duration or LOAD_SECONDS)]
    return _with_warm_up(options, first, phases)


def search_range_of(options: BenchOptions) -> SearchRange:
    """Return the range of rates to search, of all classes together.

    Raises:
        CommandError: for options that do not go together.
    """
    if options.thresholds.is_empty:
        raise CommandError("--find-max needs --p99 or --errors: they say when a rate is held")
    _check_sharing(options)
    if options.step is not None:
        raise CommandError("--find-max and --step exclude each other: --find-max chooses its rates itself")
    if options.reach is not None:
        raise CommandError("--find-max and --reach exclude each other: a rate that is not reached breaks --p99 anyway")
    if options.duration is not None:
        raise CommandError("--find-max and --for exclude each other: --every says how long each trial lasts")
    rates = _rates(options)
    _check_thresholds(options)
    first, last = _total(rates)
    seconds = options.every or _STEP_SECONDS
    _check_rate(options, max(first, last))
    _check_count(options, max(first, last) * seconds)
    if first == last:
        most = _sharing(options) * min(RATE_MAX, REQUESTS_MAX / seconds)
        return SearchRange(first=first, low=first / _SEARCH_FACTOR, high=min(most, first * _SEARCH_FACTOR))
    if len(rates) > 1:
        raise CommandError("--find-max keeps the proportion of the classes: give each one rate, and no range")
    return SearchRange(first=min(first, last), low=min(first, last), high=max(first, last))


def trial_classes(options: BenchOptions, rate: float) -> dict[str, list[Phase]]:
    """Return the load of one trial of a rate, divided among the classes."""
    rates = _rates(options)
    total, _ = _total(rates)
    seconds = options.every or _STEP_SECONDS
    parts = {name: rate * first / total for name, (first, _) in rates.items()}
    return {
        name: _with_warm_up(options, part, [Phase(first=part, last=part, seconds=seconds)])
        for name, part in parts.items()
    }


def settings_of(options: BenchOptions, *, connections: int, requests: str | None) -> dict[str, str]:
    """Return the options, and the requests if there are any, as texts for a report."""
    rates = [f"{name} {rate_text(*pair)}".lstrip() for name, pair in _rates(options).items()]
    settings = {"rate": " and ".join(rates)}
    if requests is not None:
        settings["requests"] = requests
    if options.find_max:
        settings["find-max"] = f"trials of {format_duration(options.every or _STEP_SECONDS)}"
    elif options.step is not None:
        settings["steps"] = f"{options.step:g}/s every {format_duration(options.every or _STEP_SECONDS)}"
    else:
        settings["for"] = format_duration(options.duration or LOAD_SECONDS)
    if options.warm_up:
        settings["warm-up"] = format_duration(options.warm_up)
    settings["arrivals"] = options.arrivals + (f", seed {options.seed}" if options.arrivals == "poisson" else "")
    if options.expect is not None:
        settings["participants"] = f"{options.expect:,}"
    if options.processes > 1:
        settings["processes"] = f"{options.processes:,}"
    settings["connections"] = f"{connections:,}"
    settings["timeout"] = format_duration(options.timeout)
    if options.p99:
        settings["p99 at most"] = _thresholds_text(options, options.p99, format_duration)
    if options.errors:
        settings["errors at most"] = _thresholds_text(options, options.errors, percent_text)
    if options.reach is not None:
        settings["reach at least"] = percent_text(options.reach)
    return settings


def settings_of_users(options: BenchOptions) -> dict[str, str]:
    """Return the options of a load of users as texts for a report.

    Raises:
        CommandError: for options that do not go together.
    """
    if options.users is None:
        raise CommandError("--scenario needs --users: how many act at a time, such as --users 50")
    beside = {
        "--rate": options.rates,
        "--step": options.step,
        "--every": options.every,
        "--find-max": options.find_max,
        "--reach": options.reach,
        "--method": options.method,
        "--body": options.body,
        "--requests": options.requests,
        "--connections": options.connections,
        "--peers": options.peers,
        "--processes": options.processes > 1,
        "--group": options.group,
        "--expect": options.expect,
        "--arrivals": options.arrivals != "regular",
        "--seed": options.seed,
    }
    for name, value in beside.items():
        if value:
            raise CommandError(
                f"--scenario and {name} exclude each other: its users send when the answer to the last is there"
            )
    if (options.p99.keys() | options.errors.keys()) - {""}:
        raise CommandError("--p99 and --errors of --scenario are for each of its requests, and have no class in front")
    settings = {"scenario": options.scenario or "", "users": f"{options.users:,}, each waits for its answers"}
    settings["for"] = format_duration(options.duration or LOAD_SECONDS)
    if options.warm_up:
        settings["warm-up"] = format_duration(options.warm_up)
    settings["timeout"] = format_duration(options.timeout)
    for name, thresholds, text_of in (
        ("p99 at most", options.p99, format_duration),
        ("errors at most", options.errors, percent_text),
    ):
        if "" in thresholds:
            settings[name] = text_of(thresholds[""])
    return settings


def _thresholds_text(options: BenchOptions, values: Mapping[str, float], text_of: Callable[[float], str]) -> str:
    """Return the thresholds in force, in the order of the classes: the same text, in whatever order they were given."""
    names = list(_rates(options))
    texts = [f"{name} {text_of(values[name])}" for name in names if name and name in values]
    if "" in values and len(texts) < len(names):
        texts.append(f"{text_of(values[''])} otherwise" if texts else text_of(values[""]))
    return " and ".join(texts)


def _check_thresholds(options: BenchOptions) -> None:
    """Refuse a threshold of a class that sends nothing."""
    names = [name for name in _rates(options) if name]
    for option, values in (("--p99", options.p99), ("--errors", options.errors)):
        for name in values:
            if name and name not in names:
                known = (
                    f"the classes are {', '.join(names)}"
                    if names
                    else f"there are none, and --rate {name}=20 makes one"
                )
                raise CommandError(f"{option} names the class {name!r}, which has no --rate: {known}")


def _check_sharing(options: BenchOptions) -> None:
    if options.peers is None and (options.group is not None or options.expect is not None):
        raise CommandError("--group and --expect need --peers: they say who shares the load")
    if options.peers is not None and options.processes > 1:
        raise CommandError(
            "--processes and --peers exclude each other: with --peers, start as many participants yourself"
        )
    if options.peers is not None and options.expect is None:
        raise CommandError("--peers needs --expect: how many participants share the load")


def _sharing(options: BenchOptions) -> int:
    """Return how many processes share the load."""
    return options.expect or options.processes


def _check_rate(options: BenchOptions, rate: float) -> None:
    """Refuse a rate that nothing can send."""
    most = _sharing(options) * RATE_MAX
    if rate > most:
        raise CommandError(
            f"--rate: {rate:,g}/s cannot be sent, as one process sends far less than {RATE_MAX:,}/s: give at most {most:,}/s, "
            "or share the load by --processes or --peers"
        )


def _check_count(options: BenchOptions, count: float) -> None:
    """Refuse more requests than the memory holds."""
    most = _sharing(options) * REQUESTS_MAX
    if count > most:
        raise CommandError(
            f"{count:,.0f} requests are too many, at most {most:,}, as each takes 31 bytes in memory: make the load shorter, "
            "lower --rate, or share the load by --peers"
        )


def _rates(options: BenchOptions) -> dict[str, tuple[float, float]]:
    if not options.rates:
        raise CommandError("--rate is missing: how many requests a second, such as --rate 100")
    return options.rates


def _total(rates: dict[str, tuple[float, float]]) -> tuple[float, float]:
    return sum(first for first, _ in rates.values()), sum(last for _, last in rates.values())


def _with_warm_up(options: BenchOptions, rate: float, phases: list[Phase]) -> list[Phase]:
    if options.warm_up is None:
        return phases
    return [Phase(first=rate, last=rate, seconds=options.warm_up, is_measured=False), *phases]


def read_rates(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read one rate without a name, or one of each class, such as ``urgent=20``.

    Raises:
        ValueError: if there are several rates without a name, several with one name, or too many; if a name or a rate
            is invalid.
    """
    rates = _read_by_class(texts, _read_range, what="rates", unnamed=_UNNAMED)
    if "" in rates and len(rates) > 1:
        raise ValueError(_UNNAMED)
    if len(rates) > CLASSES_MAX:
        raise ValueError(f"{len(rates):,} classes are too many, at most {CLASSES_MAX}")
    return rates


def read_durations(texts: Iterable[str]) -> dict[str, float]:
    """Read a threshold in seconds for all requests, such as ``200ms``, for a class, such as ``urgent=50ms``, or both.

    A bare number is refused, although other durations accept it as seconds: ``200``, meant as milliseconds, would be
    kept by any service.

    Raises:
        ValueError: if there are two for all or for one class; if a name or a duration is invalid, or has no unit.
    """
    return _read_by_class(texts, _read_duration, what="thresholds", unnamed=_UNNAMED_THRESHOLDS)


def read_shares(texts: Iterable[str]) -> dict[str, float]:
    """Read a fraction for all requests, such as ``1%`` or ``0.01``, for a class, such as ``urgent=0.1%``, or both.

    Raises:
        ValueError: if there are two for all or for one class; if a name is invalid, or a fraction is not from 0 to 1.
    """
    return _read_by_class(texts, read_share, what="thresholds", unnamed=_UNNAMED_THRESHOLDS)


def _read_by_class(texts: Iterable[str], read: Callable[[str], T], *, what: str, unnamed: str) -> dict[str, T]:
    """Read ``VALUE`` or ``CLASS=VALUE`` each; values by the name of the class, which is empty without one."""
    values: dict[str, T] = {}
    for text in texts:
        name, sign, value = text.rpartition("=")
        if sign and not _CLASS_NAME.fullmatch(name):
            raise ValueError(
                f"the name of a class begins with a letter, and contains letters, digits, '_', '.' and '-', got {name!r}"
            )
        if name in values:
            raise ValueError(f"the class {name!r} has two {what}" if name else unnamed)
        values[name] = read(value)
    return values


def _read_range(text: str) -> tuple[float, float]:
    parts = text.split("..")
    if len(parts) > 2:
        raise ValueError(f"a range of rates looks like 100..1000, got {shown(text)}")
    rates = [_read_rate(part) for part in parts]
    return rates[0], rates[-1]


def _read_rate(text: str) -> float:
    try:
        ratio = Rate.of(text.strip()).per_second
    except ValueError as error:
        raise ValueError(f"a rate looks like 500, 100/s, 5/min or 100..1000, got {shown(text)}") from error
    if ratio is None or not ratio or not math.isfinite(float(ratio)):
        raise ValueError(f"a rate must be > 0 and finite, got {shown(text)}")
    return float(ratio)


def _read_duration(text: str) -> float:
    seconds = parse_duration(text)
    if not text.strip()[-1].isalpha():
        raise ValueError(f"a threshold needs a unit: {text.strip()}ms or {text.strip()}s, got {shown(text)}")
    return seconds


def read_share(text: str) -> float:
    """Read a fraction such as ``99%`` or ``0.99``.

    Raises:
        ValueError: if it has another form, or is not from 0 to 1.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 <= share <= 1:
        raise ValueError(f"a fraction looks like 1% or 0.01 and is from 0 to 1, got {shown(text)}")
    return share
