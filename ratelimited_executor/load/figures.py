"""The figures of a measurement as values, and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor.load.arrivals import rate_text
from ratelimited_executor.load.durations import SHARES, Durations, rank_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = [
    "ClassFigures",
    "Figures",
    "Measurement",
    "Participant",
    "PhaseFigures",
    "SecondFigures",
    "quantile_of",
    "shorten",
]

T = TypeVar("T")

# The format of the JSON. A reader refuses any other.
_FORMAT: Final = 1
_SAMPLE_MAX: Final = 300  # characters of an error or of a response
_KIND: Final = "ratelimited-executor bench"
_HISTOGRAMS: Final = frozenset({"response_times", "service_times", "lateness"})
_DERIVED: Final = ("error_share", "asked_rate", "answered_rate")  # written for other readers
_MALFORMED: Final = (AttributeError, KeyError, TypeError, OverflowError)
_TYPES: Final[dict[str, tuple[type, ...]]] = {  # by the annotation of a field, or of the values in it
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "Durations": (Durations,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFigures:
    """Figures of a part of the requests; response times, in seconds.

    Attributes:
        histogram: the durations as returned by ``Durations.to_json``, if the figures are to be merged; otherwise None.
    """

    count: int
    error_count: int
    p50: float
    p99: float
    most: float
    histogram: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures(PartFigures):
    """Figures of one phase."""

    first: float
    last: float
    seconds: float

    @property
    def rate(self) -> str:
        """The formatted rate of the phase."""
        return rate_text(self.first, self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondFigures(PartFigures):
    """Figures of the requests due in one second."""

    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """Figures of the requests of one class.

    Attributes:
        name: the name of the class.
        first: requests a second at the beginning.
        last: requests a second at the end.
        count: the number of due requests.
        error_count: the number of failed requests.
        response_times: durations from the due time.
        service_times: durations from the time of sending, of the requests that were sent.
    """

    name: str
    first: float
    last: float
    count: int
    error_count: int
    response_times: Durations
    service_times: Durations

    @property
    def rate(self) -> str:
        """The formatted rate of the class."""
        return rate_text(self.first, self.last)

    @property
    def error_share(self) -> float:
        """The part of the requests that failed; 0 of none."""
        return self.error_count / self.count if self.count else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        return _with_histograms({name: getattr(self, name) for name in ClassFigures.__slots__})

    @classmethod
    def from_json(cls, value: Any) -> ClassFigures:
        """Return the figures that :meth:`to_json` was called on; KeyError, TypeError or ValueError if malformed."""
        return _made(cls, _without_histograms(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a measurement; times in seconds.

    Attributes:
        seconds: the time over which requests were due.
        wall_seconds: the time until the last request had ended.
        cpu_share: the fraction of one core that the tool's process used meanwhile.
        cpu_wait_share: the fraction of the time for which the process had work and no core; 0 if that is not known.
        full_seconds: the time during which all connections were in use, so that requests had to wait for one.
        count: the number of due requests.
        errors: the number of failed requests by kind of error, the most frequent first.
        samples: by kind of error, the text of the first one or of its response, shortened; absent without a text.
        statuses: the number of responses by status.
        received: bytes of the response bodies.
        sent_count: the number of requests that were sent before the end of the load; less than ``count`` if requests had
            to wait for a connection, or the tool could not send them.
        response_times: durations of all requests from their due time; for a request that never started, until it was
            given up.
        service_times: durations from the time of sending, of the requests that were sent.
        lateness: the delay before the start that the tool itself added.
        phases: the figures of each phase.
        timeline: the figures of each second in which requests were due.
        classes: the figures of each class; empty if the load has no classes.
    """

    seconds: float
    wall_seconds: float
    cpu_share: float
    full_seconds: float
    count: int
    errors: dict[str, int]
    statuses: dict[int, int]
    received: int
    sent_count: int
    response_times: Durations
    service_times: Durations
    lateness: Durations
    phases: list[PhaseFigures]
    timeline: list[SecondFigures]
    classes: list[ClassFigures] = field(default_factory=list)
    samples: dict[str, str] = field(default_factory=dict)
    cpu_wait_share: float = 0.0

    @property
    def sample(self) -> str | None:
        """A text of the most frequent kind of error, after its name; None if it has none."""
        kind = max(self.errors, key=lambda each: self.errors[each], default="")
        return f"{kind}: {self.samples[kind]}" if kind in self.samples else None

    @property
    def error_count(self) -> int:
        """The number of failed requests."""
        return sum(self.errors.values())

    @property
    def error_share(self) -> float:
        """The part of the requests that failed; 0 of none."""
        return self.error_count / self.count if self.count else 0.0

    @property
    def asked_rate(self) -> float:
        """Due requests a second."""
        return self.count / self.seconds if self.seconds else 0.0

    @property
    def sent_share(self) -> float:
        """The part of the requests that were sent before the end of the load: of the target rate, too; 1 of none."""
        return self.sent_count / self.count if self.count else 1.0

    @property
    def answered_rate(self) -> float:
        """Requests without an error a second, over the time until the last request had ended."""
        seconds = max(self.seconds, self.wall_seconds)
        return (self.count - self.error_count) / seconds if seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file, with those derived from them."""
        fields = _with_histograms({name: getattr(self, name) for name in Figures.__slots__})
        fields["phases"] = [phase.to_json() for phase in self.phases]
        fields["timeline"] = [second.to_json() for second in self.timeline]
        fields["classes"] = [each.to_json() for each in self.classes]
        fields["statuses"] = {str(status): count for status, count in self.statuses.items()}
        return fields | {name: getattr(self, name) for name in _DERIVED}

    def to_json_in_steps(self) -> Generator[None, None, dict[str, Any]]:
        """Return the values for :meth:`from_json` alone: none are derived. Yield after each histogram."""
        fields = yield from _histograms_in_steps({name: getattr(self, name) for name in Figures.__slots__})
        fields["phases"] = [phase.to_json() for phase in self.phases]
        fields["timeline"] = [second.to_json() for second in self.timeline]
        classes = []
        for each in self.classes:
            of_class = yield from _histograms_in_steps({name: getattr(each, name) for name in ClassFigures.__slots__})
            classes.append(of_class)
        fields["classes"] = classes
        fields["statuses"] = {str(status): count for status, count in self.statuses.items()}
        return fields

    @classmethod
    def from_json(cls, value: Any) -> Figures:
        """Return the figures that :meth:`to_json` was called on; derived values may be absent.

        Raises:
            ValueError: if the value is malformed.
        """
        try:
            fields = {name: each for name, each in _without_histograms(value).items() if name not in _DERIVED}
            fields["phases"] = [_made(PhaseFigures, phase) for phase in fields["phases"]]
            fields["timeline"] = [_made(SecondFigures, second) for second in fields["timeline"]]
            fields["classes"] = [ClassFigures.from_json(each) for each in fields.get("classes", ())]
            fields["statuses"] = {int(status): count for status, count in fields["statuses"].items()}
            figures = _made(cls, fields)
        except _MALFORMED as error:
            raise ValueError(f"a field is missing or of another type: {error}") from error
        counted: list[Figures | ClassFigures] = [figures, *figures.classes]
        for each in counted:
            if not each.error_count <= each.count == each.response_times.count:
                raise ValueError(f"count has {each.count!r}, but the errors and the durations have another count")
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One of the participants that share a load.

    Attributes:
        name: the name of its machine and process.
        sent_part: the fraction of its share that it has sent, 0 to 1; if it is missing, until its last sign of life.
        is_missing: True if its final figures have not arrived.
        known_part: the fraction of its share that is in the figures of the whole, at most ``sent_part``; if it is
            missing, those requests that had ended by its last checkpoint.
        count: the number of due requests in the figures.
        error_count: the number of failed requests.
        cpu_share: the fraction of one core that it used.
        lateness_p99: the 99th percentile of its own lateness, in seconds.
    """

    name: str
    sent_part: float
    is_missing: bool = False
    known_part: float = 0.0
    count: int = 0
    error_count: int = 0
    cpu_share: float = 0.0
    lateness_p99: float = 0.0

    @property
    def sent(self) -> str:
        """The formatted fraction of its share that it has sent, if it is missing at least, and the fraction in the figures."""
        if not self.is_missing:
            return f"{self.sent_part:.0%}"
        text = f"at least {int(self.sent_part * 100)}%"
        return f"{text}, figures up to {self.known_part:.0%}" if self.known_part else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Figures, with the target and the settings of the measurement.

    Attributes:
        target: the URL or function.
        settings: the options in force, as texts.
        begun: the time of its beginning, as ISO 8601 in UTC.
        version: the version of the tool.
        figures: the figures; after a search, those of the best trial.
        search: the trials and the result of a search for the highest rate; None without a search.
        participants: the participants that shared the load; empty if there was only one.
        incomplete: the reason why the figures are not those of the whole load; None if they are.
    """

    target: str
    settings: dict[str, str]
    begun: str
    version: str
    figures: Figures
    search: dict[str, Any] | None = None
    participants: list[Participant] = field(default_factory=list)
    incomplete: str | None = None

    @property
    def is_open(self) -> bool:
        """False if users sent the load who wait for their answers: then nothing is due at a rate, or waits to be sent."""
        return "users" not in self.settings

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        return {
            "kind": _KIND,
            "format": _FORMAT,
            "target": self.target,
            "settings": self.settings,
            "begun": self.begun,
            "version": self.version,
            "search": self.search,
            "participants": [asdict(each) for each in self.participants],
            "incomplete": self.incomplete,
            "figures": self.figures.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Measurement:
        """Return the measurement that :meth:`to_json` was called on.

        Raises:
            ValueError: if the value is not a measurement, or has another format.
        """
        if not isinstance(value, dict) or value.get("kind") != _KIND:
            raise ValueError("not a measurement written by bench --json")
        if value.get("format") != _FORMAT:
            raise ValueError(
                f"it has format {value.get('format')!r}, and this version reads format {_FORMAT}: measure again"
            )
        try:
            texts = {name: value[name] for name in ("target", "settings", "begun", "version", "search")}
            figures = Figures.from_json(value["figures"])
            participants = [_made(Participant, each) for each in value.get("participants", ())]
            texts |= {"figures": figures, "participants": participants, "incomplete": value.get("incomplete")}
            return _made(cls, texts)
        except _MALFORMED as error:
            raise ValueError(f"a field is missing or of another type: {error}") from error


def _made(kind: type[T], values: dict[str, Any]) -> T:
    """Build an instance from JSON, checking each value against the type of its field.

    Raises:
        TypeError: if a value has another type.
        ValueError: if a number is negative, NaN or infinite.
        OverflowError: if a number is too large.
    """
    for each in fields_of(kind):  # type: ignore[arg-type]  # all of them are dataclasses
        if each.name not in values:
            continue
        value, annotation = values[each.name], str(each.type)
        found = [value]
        if annotation in ("dict[str, str]", "dict[str, int]", "dict[int, int]"):
            found, annotation = list(value.values()), annotation[-4:-1]
        for one in found:
            if not isinstance(one, _TYPES.get(annotation, object)):
                raise TypeError(f"{each.name} has {one!r}")
            if isinstance(one, (int, float)) and not 0 <= float(one) < math.inf:
                raise ValueError(f"{each.name} has {one!r}")
    return kind(**values)


def _with_histograms(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with durations in their JSON form, and their percentiles beside the histogram."""
    return {
        name: value.to_json() | {key: value.quantile(share) for key, share in SHARES}
        if isinstance(value, Durations)
        else value
        for name, value in fields.items()
    }


def _histograms_in_steps(fields: dict[str, Any]) -> Generator[None, None, dict[str, Any]]:
    """Return the fields with durations in their JSON form; yield after each of them."""
    for name in _HISTOGRAMS & fields.keys():
        fields[name] = fields[name].to_json()
        yield
    return fields


def _without_histograms(fields: dict[str, Any]) -> dict[str, Any]:
    """Undo :func:`_with_histograms`."""
    return {
        name: Durations.from_json(value) if name in _HISTOGRAMS and value is not None else value
        for name, value in fields.items()
    }


def shorten(text: str) -> str:
    """Return the beginning of a text, in one line.

    >>> shorten(" a    b "), len(shorten("x" * 1000))
    ('a b', 301)
    """
    text = " ".join(text[: 10 * _SAMPLE_MAX].split())
    return text if len(text) <= _SAMPLE_MAX else f"{text[:_SAMPLE_MAX]}…"


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of ascending values that a share of them does not exceed; 0 if there are none.

    >>> quantile_of([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    if not ordered:
        return 0.0
    return ordered[rank_of(share, len(ordered)) - 1]
