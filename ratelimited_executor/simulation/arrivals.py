"""Arrival times of jobs: at an even pace, at random, by the time of day, or as recorded."""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._runtime.arguments import number_of
from ratelimited_executor.simulation.hours import HOUR_SECONDS, in_force
from ratelimited_executor.simulation.limits import ARRIVALS_PER_SECOND_MAX, RECORDED_MAX, check_most

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.permits.rates import RateLike
    from ratelimited_executor.simulation.recordings import Recording

__all__ = ["Arrivals", "Daily", "Poisson", "Recorded", "Regular", "random_times"]

V = TypeVar("V")

_COPY_SECONDS: Final = 60.0  # within which a recorded job arrives again, if there is to be more traffic


class Arrivals(Protocol):
    """The arrival times of jobs, in seconds since the start of a simulation."""

    @property
    def end(self) -> float:
        """The time of the last arrival; infinity if they never end."""
        ...

    def between(self, begin: float, end: float, chance: random.Random) -> list[float]:
        """Return the arrival times in [begin, end), rising. Called once for each such span, in order."""
        ...

    def keys_between(self, begin: float, end: float) -> Sequence[Any] | None:
        """Return the keys of the arrivals in [begin, end), one for each; None if they have no keys."""
        ...


class _Endless:
    end: Final = math.inf

    def keys_between(self, begin: float, end: float) -> None:
        """Return None: the arrivals have no keys."""


class Regular(_Endless):
    """Jobs at an even pace, the first at the start of the simulation.

    Args:
        rate: arrivals a second, > 0, or such as ``"200/day"``.
    """

    def __init__(self, rate: RateLike) -> None:
        self._rate = _rate_of("rate", rate)

    def between(self, begin: float, end: float, chance: random.Random) -> list[float]:  # noqa: ARG002  # the signature of Arrivals
        """Return the multiples of the gap in [begin, end)."""
        rate, number = self._rate, max(0, math.floor(begin * self._rate) - 1)
        times = []
        while (time := number / rate) < end:
            if time >= begin:
                times.append(time)
            number += 1
        return times

    def __repr__(self) -> str:
        return f"Regular({self._rate:g})"


class Poisson(_Endless):
    """Independent jobs at random times.

    Args:
        rate: mean arrivals a second, > 0, or such as ``"200/day"``.
    """

    def __init__(self, rate: RateLike) -> None:
        self._rate = _rate_of("rate", rate)

    def between(self, begin: float, end: float, chance: random.Random) -> list[float]:
        """Draw the gaps."""
        return random_times(begin, end, self._rate, chance.random, None, 0.0)

    def __repr__(self) -> str:
        return f"Poisson({self._rate:g})"


class Daily(_Endless):
    """Independent jobs at random times, with a rate that depends on the hour of the day.

    Args:
        rates: mean arrivals a second, or such as ``"9_000/h"``, by hour of the day (UTC), 0 to 23; an omitted hour has
            the rate of the one before it.
        start: epoch seconds at which the simulation begins, by default a midnight; :meth:`Simulation.arrive` sets it.

    Raises:
        ValueError: if there is no rate, or a rate or an hour is out of range.
    """

    def __init__(self, rates: Mapping[int, RateLike], *, start: float = 0.0) -> None:
        self._given = dict(rates)
        self._start = number_of("start", start)
        if not rates or not all(hour in range(24) for hour in rates):
            raise ValueError(f"rates must have hours of the day, 0 to 23, and at least one, got {dict(rates)!r}")
        each = [in_force(rates, hour * HOUR_SECONDS) for hour in range(24)]
        self._rates = [_rate_of(f"rates[{hour}]", rate, is_zero_allowed=True) for hour, rate in enumerate(each)]
        self._most = max(self._rates)
        if not self._most:
            raise ValueError("rates must have at least one hour in which something arrives")

    def between(self, begin: float, end: float, chance: random.Random) -> list[float]:
        """Draw gaps at the rate of the busiest hour, and drop the surplus in other hours (thinning)."""
        return random_times(begin, end, self._most, chance.random, self._rates, self._start)

    def starting_at(self, start: float) -> Daily:
        """Return the same arrivals for a simulation that begins at an epoch time."""
        return Daily(self._given, start=start)

    def __repr__(self) -> str:
        return f"Daily({dict(enumerate(self._rates))})"


@two_bodies
def random_times(
    begin: float, end: float, most: float, draw: Callable[[], float], rates: Sequence[float] | None, start: float
) -> list[float]:
    """Draw independent times in [begin, end).

    Args:
        begin: seconds since the start of the simulation.
        end: likewise.
        most: the largest rate, a second.
        draw: draws a number in [0, 1).
        rates: the rate in each hour of the day; None if it is always the largest.
        start: epoch seconds at which the simulation begins.
    """
    times, time, log = [], begin, math.log
    while (time := time - log(1.0 - draw()) / most) < end:  # expovariate() takes twice as long
        if rates is None or draw() * most < rates[int((start + time) // HOUR_SECONDS) % 24]:
            times.append(time)
    return times


class Recorded:
    """Jobs at recorded times; see :func:`read_recording`.

    Args:
        recording: the recording.
        speed: the factor by which the times of arrival are compressed, > 0: at 2, the recording takes half the time. The
            durations of jobs stay as they were; the lives of keys that join are compressed as well.
        every: seconds, a timedelta or a str such as ``"1d"`` after which the recording is repeated; None to play it
            once.
        scale: how much of the traffic arrives, > 0: at 2 each recorded job arrives twice, the second time within a minute
            after the first, at 0.5 every second one on average. Which ones does not depend on the seed.
    """

    def __init__(
        self, recording: Recording, *, speed: float = 1.0, every: DurationLike | None = None, scale: float = 1.0
    ) -> None:
        factor = number_of("speed", speed)
        if factor <= 0:
            raise ValueError(f"speed must be > 0, got {speed!r}")
        self._speed, self._scale = factor, number_of("scale", scale)
        self._times = [time / factor for time in recording.times]
        self.notes: Final = recording.notes
        self.duration_notes: Final = recording.duration_notes
        self._keys = recording.keys
        self._durations = recording.durations
        self._every = math.inf if every is None else seconds_of("every", every)
        if self._times[-1] >= self._every:
            raise ValueError(
                f"every must be longer than the recording, which lasts {self._times[-1]:.6g} s, got {every!r}: "
                "give a larger speed="
            )
        if self._scale != 1:
            self._repeat_arrivals(self._scale)
        check_most(
            "every: the rate of a recording that is played again",
            len(self._times) / self._every,
            ARRIVALS_PER_SECOND_MAX,
            "arrivals a second",
        )

    @property
    def end(self) -> float:
        """The time of the last arrival; infinity if the recording is repeated."""
        return math.inf if self._every < math.inf else math.nextafter(self._times[-1], math.inf)

    def between(self, begin: float, end: float, chance: random.Random) -> list[float]:  # noqa: ARG002  # the signature of Arrivals
        """Return the recorded times."""
        return [start + self._times[index] for start, indexes in self._parts(begin, end) for index in indexes]

    def keys_between(self, begin: float, end: float) -> Sequence[Any] | None:
        """Return the recorded keys."""
        return self._values_between(self._keys, begin, end)

    @property
    def scale(self) -> float:
        """How much of the traffic arrives."""
        return self._scale

    @property
    def has_keys(self) -> bool:
        """True if the recording has the key of each arrival."""
        return self._keys is not None

    @property
    def has_durations(self) -> bool:
        """True if the recording has the duration of each arrival."""
        return self._durations is not None

    @property
    def is_ended(self) -> bool:
        """True unless some duration is infinite, because what arrived had not ended."""
        return self._durations is None or math.inf not in self._durations

    def durations_between(self, begin: float, end: float) -> Sequence[float] | None:
        """Return the recorded durations in seconds; None if they were not read."""
        return self._values_between(self._durations, begin, end)

    def lives_between(self, begin: float, end: float) -> Sequence[float] | None:
        """Return the seconds that keys which join in [begin, end) stay: the recorded durations, compressed as the times are."""
        found = self.durations_between(begin, end)
        return None if found is None else [seconds / self._speed for seconds in found]

    def __repr__(self) -> str:
        return f"<Recorded {len(self._times)} arrivals in {self._times[-1]:g} s, every {self._every:g} s>"

    def _repeat_arrivals(self, scale: float) -> None:
        """Repeat each arrival, or leave it out."""
        if scale <= 0:
            raise ValueError(f"scale must be > 0, got {scale!r}")
        check_most("scale: the arrivals of the recording", scale * len(self._times), RECORDED_MAX, "arrivals")
        chance = random.Random(f"scale {scale}")  # noqa: S311  # it must be repeatable, not secret
        whole, part = int(scale), scale % 1
        drawn: list[tuple[float, int]] = []
        for index, time in enumerate(self._times):
            for copy in range(whole + (chance.random() < part)):
                later = time + chance.random() * _COPY_SECONDS if copy else time
                drawn.append((later % self._every if later >= self._every else later, index))
        if not drawn:
            raise ValueError(
                f"scale must leave some of the {len(self._times)} arrivals of the recording, got {scale!r}"
            )
        drawn.sort()
        self._times = [time for time, _ in drawn]
        if self._keys is not None:
            self._keys = [self._keys[index] for _, index in drawn]
        if self._durations is not None:
            self._durations = array("d", [self._durations[index] for _, index in drawn])

    def _values_between(self, values: Sequence[V] | None, begin: float, end: float) -> Sequence[V] | None:
        """Return those of the values that belong to the arrivals in [begin, end)."""
        if values is None:
            return None
        return [values[index] for _, indexes in self._parts(begin, end) for index in indexes]

    def _parts(self, begin: float, end: float) -> list[tuple[float, range]]:
        """Return the repetitions of the recording, as (start, indexes)."""
        parts = []
        # Begin with the repetition before: rounding may move the last of its sums to `begin` or later.
        number = 0 if self._every == math.inf else max(0, int(begin // self._every) - 1)
        while (start := number * self._every if number else 0.0) < end:
            # Compare the sums that are returned: a difference would be rounded in another place.
            first, stop = (bisect_left(self._times, time, key=partial(add, start)) for time in (begin, end))
            parts.append((start, range(first, stop)))
            number += 1
            if self._every == math.inf:
                break
        return parts


def _rate_of(name: str, value: Any, *, is_zero_allowed: bool = False) -> float:
    rate = float(Rate.of(value)) if isinstance(value, (str, Rate)) else number_of(name, value)
    if rate < 0 or (rate == 0 and not is_zero_allowed):
        raise ValueError(f"{name} must be {'>=' if is_zero_allowed else '>'} 0 a second, got {value!r}")
    check_most(name, rate, ARRIVALS_PER_SECOND_MAX, "arrivals a second")
    return rate
