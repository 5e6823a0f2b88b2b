"""The jobs of a feed or a batch in columns: due times, durations, and luck.

A seed is the same traffic whatever the settings, so the configurations of a sweep share their columns: they are drawn once
for each seed, and kept by what they were drawn from.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
from array import array
from itertools import chain, islice
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor.simulation.arrivals import Daily, Poisson, Regular
from ratelimited_executor.simulation.feeds import CHUNK_SECONDS, draw_columns
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor.simulation.feeds import Feed
    from ratelimited_executor.simulation.shortcut.rules import Planned

__all__ = ["COLUMN_COUNT_MAX", "Columns", "InflowKeys", "columns_of"]

# Jobs of a run, at some 40 bytes each: 400 MB. The executor has no more than a minute of them in memory at a time.
COLUMN_COUNT_MAX: Final = 10_000_000
_KEPT_COUNT_MAX: Final = 4_000_000  # jobs whose columns are kept for other configurations: 160 MB

_KNOWN: Final = frozenset({"array", "builtins", "copyreg", "fractions", "math", "ratelimited_executor", "statistics"})

_kept: dict[bytes, Columns] = {}


class Columns:
    """The jobs of one feed or batch, in due order.

    Attributes:
        times: the times of arrival, in seconds since the start.
        dues: the due times, as the executor computes them from delays.
        seconds: the durations.
        lucks: a number in [0, 1) for each job, which fails if it is below the fraction of failures.
        counts: the number of jobs up to the end of each minute that was handed over; of a batch, of the whole.
        keys: the keys of a batch; None for a feed, which draws them.
    """

    __slots__ = ("counts", "dues", "keys", "lucks", "seconds", "times")

    def __init__(
        self,
        times: array[float],
        dues: array[float],
        seconds: array[float],
        lucks: array[float],
        counts: array[int],
        keys: list[Any] | None = None,
    ) -> None:
        self.times = times
        self.dues = dues
        self.seconds = seconds
        self.lucks = lucks
        self.counts = counts
        self.keys = keys

    def accepted_until(self, time: float) -> int:
        """Return how many jobs the executor has accepted by a time, those due later included."""
        if not self.counts:
            return 0
        return self.counts[min(int(time // CHUNK_SECONDS), len(self.counts) - 1)]


def columns_of(planned: Planned, total: float) -> Columns:
    """Return the columns of what arrives in the first ``total`` seconds of a run.

    Raises:
        NoShortcutError: if there are too many jobs.
    """
    key = _digest(planned, total)
    found = None if key is None else _kept.pop(key, None)
    if found is None:
        found = _batch(planned) if planned.feed is None else _feed(planned.feed, planned.job, total)
        if not (math.isfinite(sum(found.seconds)) and min(found.seconds, default=0.0) >= 0):
            raise NoShortcutError(f"a duration of {planned.job.name} is out of range")
    if key is not None:
        _kept[key] = found  # the last used comes last
        while len(_kept) > 1 and sum(len(each.dues) for each in _kept.values()) > _KEPT_COUNT_MAX:
            del _kept[next(iter(_kept))]
    return found


def _digest(planned: Planned, total: float) -> bytes | None:
    """Return what the columns follow from; None if that is unknown: an object may do anything."""
    feed, duration = planned.feed, planned.job.duration
    source = (planned.keys, planned.dues) if feed is None else feed.arrivals
    text = io.BytesIO()
    try:
        _Pickler(text).dump((planned.name, total, duration, source))
    except Exception:  # noqa: BLE001  # an object of the user's decides what it raises
        return None
    return hashlib.blake2b(text.getbuffer(), digest_size=16).digest()


class _Pickler(pickle.Pickler):
    """Pickles objects of this library: what one of another class draws may follow from more than it holds itself."""

    def reducer_override(self, value: Any) -> Any:
        """Refuse an object, a class or a function that is none of those."""
        named = value if isinstance(value, (type, FunctionType, BuiltinFunctionType)) else type(value)
        if str(named.__module__).partition(".")[0] not in _KNOWN:
            raise pickle.PicklingError(f"{named!r} may do anything")
        return NotImplemented


def _batch(planned: Planned) -> Columns:
    dues = planned.dues
    order = sorted(range(len(dues)), key=dues.__getitem__)
    seconds, lucks = draw_columns(planned.job, planned.work, len(dues))
    by_due, seconds, lucks = (array("d", [column[index] for index in order]) for column in (dues, seconds, lucks))
    return Columns(by_due, by_due, seconds, lucks, array("q", [len(dues)]), [planned.keys[index] for index in order])


def _feed(feed: Feed, job: Any, total: float) -> Columns:
    times, counts, recorded, begin = array("d"), array("q"), array("d"), 0.0
    while begin <= total and (not counts or begin < feed.arrivals.end):
        times.extend(feed.times(begin))
        counts.append(len(times))
        if len(times) > COLUMN_COUNT_MAX:
            raise NoShortcutError(f"there are more than {COLUMN_COUNT_MAX:,} jobs of {job.name}")
        if (durations := feed.durations(begin)) is not None:
            recorded.extend(durations)
        begin += CHUNK_SECONDS
    if job.is_recorded:
        luck = feed.work.random
        seconds, lucks = recorded, array("d", [luck() for _ in times])
    else:
        seconds, lucks = draw_columns(job, feed.work, len(times))
    return Columns(times, due_times(times, counts, CHUNK_SECONDS), seconds, lucks, counts)


@two_bodies
def due_times(times: array[float], counts: array[int], chunk: float) -> array[float]:
    """Return the due times of jobs that are handed over in chunks, each with its delay from then."""
    dues, first = array("d"), 0
    for number, stop in enumerate(counts):
        begin = number * chunk
        dues.extend([begin + (time - begin) for time in times[first:stop]])
        first = stop
    return dues


class InflowKeys:
    """The keys of a feed or batch, in due order, drawn as far as they are asked for.

    Args:
        planned: what arrives.
        columns: its jobs.

    Attributes:
        are_numbers: True if each job has a key of its own: they are numbered.
    """

    def __init__(self, planned: Planned, columns: Columns) -> None:
        feed = planned.feed
        self.are_numbers: Final = (
            feed is not None and feed.chosen is None and type(feed.arrivals) in (Daily, Poisson, Regular)
        )
        self._drawn: list[Any] = []
        self._rest: Iterator[Any] = (
            iter(columns.keys or ()) if feed is None else chain.from_iterable(_minutes(feed, columns.counts))
        )

    def of(self, indexes: Sequence[int]) -> list[Any]:
        """Return the keys of some jobs, by index."""
        self._drawn.extend(islice(self._rest, max(0, max(indexes, default=-1) + 1 - len(self._drawn))))
        return [self._drawn[index] for index in indexes]


def _minutes(feed: Feed, counts: array[int]) -> Iterator[Sequence[Any]]:
    first = 0
    for number, stop in enumerate(counts):
        if stop > first:
            yield feed.keys(number * CHUNK_SECONDS, stop - first)
        first = stop
