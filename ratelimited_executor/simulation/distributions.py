"""Distributions of durations.

They are constant, exponential, log-normal from mean and p90, from percentiles, or from a sample. All values are
seconds >= 0. Parameters that no distribution of a kind can have are refused; the error names the limit.

Log-normal. With z = 1.2816 the 90th percentile of the standard normal distribution, mean and p90 are ``exp(mu + sigma^2/2)``
and ``exp(mu + z sigma)``, so that ``ln(p90 / mean) = z sigma - sigma^2 / 2``: a quadratic in sigma, whose smaller root,
``z - sqrt(z^2 - 2 ln(p90 / mean))``, is the less skewed of the two. It exists for p90 / mean up to ``exp(z^2 / 2)`` = 2.273.
Any distribution of values >= 0 has a p90 of at most 10 times its mean: a tenth of the values are p90 or more (Markov).

Remaining life. Of lives that began long ago, one that is met at an instant is long rather than short, in proportion to its
length, and the instant is uniform within it (D. R. Cox, Renewal Theory, Methuen 1962, chapter 5). To pick one in proportion to
its length, the quantiles are cut at 1/2, 3/4, 7/8 and so on; a piece is drawn by its width times its largest value, and a
value of it is accepted with the ratio to the largest. Any distribution with quantiles will do, and most values are accepted:
of exponential ones, 1 / (2 ln 2) = 72 %.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate, pairwise
from statistics import NormalDist, _normal_dist_inv_cdf  # type: ignore[attr-defined]  # what inv_cdf() calls
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.durations import delay_of, seconds_of
from ratelimited_executor._kernel.choice import used_there

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Constant", "Distribution", "Exponential", "LogNormal", "Percentiles", "Sample", "remaining_life"]

used_there(_normal_dist_inv_cdf)
_STANDARD: Final = NormalDist().inv_cdf
_Z90: Final = _STANDARD(0.9)
_LOG_NORMAL_RATIO_MAX: Final = math.exp(_Z90**2 / 2)
_MARKOV_RATIO_MAX: Final = 10.0
_HALVINGS: Final = 53  # of the unit interval, until what is left of it is the last float below 1


class Distribution(Protocol):
    """A source of random durations."""

    @property
    def mean(self) -> float:
        """The mean, in seconds."""
        ...

    def quantile(self, part: float) -> float:
        """Return the value, in seconds, below which a fraction of the values lie: 0 <= part < 1."""
        ...

    def draw(self, chance: random.Random) -> float:
        """Draw a value, in seconds."""
        ...


class Constant:
    """Always the same value.

    Args:
        seconds: a span of time, >= 0 and finite.
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: DurationLike) -> None:
        self._seconds = delay_of("seconds", seconds)

    @property
    def mean(self) -> float:
        """The constant."""
        return self._seconds

    def quantile(self, part: float) -> float:
        """Return the value."""
        _check_part(part)
        return self._seconds

    def draw(self, chance: random.Random) -> float:  # noqa: ARG002  # the shape of a distribution
        """Return the value."""
        return self._seconds

    def __repr__(self) -> str:
        return f"Constant({self._seconds:g})"


class Exponential:
    """Gaps between independent events.

    Args:
        mean: a span of time, > 0 and finite.
    """

    __slots__ = ("_mean",)

    def __init__(self, mean: DurationLike) -> None:
        self._mean = seconds_of("mean", mean)

    @property
    def mean(self) -> float:
        """The mean."""
        return self._mean

    def quantile(self, part: float) -> float:
        """Return ``-mean ln(1 - part)``."""
        _check_part(part)
        return -self._mean * math.log1p(-part)

    def draw(self, chance: random.Random) -> float:
        """Draw a value."""
        return -self._mean * math.log1p(-chance.random())

    def __repr__(self) -> str:
        return f"Exponential({self._mean:g})"


@used_there
class LogNormal:
    """Values whose logarithm is normal: most are short, a few are long.

    Args:
        mean: a span of time, > 0.
        p90: the 90th percentile: more than the mean, at most 2.273 times the mean.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if no log-normal distribution has such a mean and p90; :class:`Percentiles` can have more.

    >>> round(LogNormal(mean=4, p90=8).quantile(0.5), 3)
    2.961
    """

    __slots__ = ("_mean", "_mu", "_normal_quantile", "_p90", "_sigma")

    def __init__(self, *, mean: DurationLike, p90: DurationLike) -> None:
        self._mean, self._p90 = seconds_of("mean", mean), seconds_of("p90", p90)
        ratio = self._p90 / self._mean
        offer = "use Percentiles({0: ..., 50: ..., 90: ..., 100: ...}) instead"
        if ratio > _MARKOV_RATIO_MAX:
            raise ValueError(
                f"p90 must be at most 10 times the mean, {10 * self._mean:g}, which is the limit of every distribution of "
                f"values >= 0, since a tenth of them are p90 or more, got {p90!r}: check mean and p90, or {offer}"
            )
        if ratio > _LOG_NORMAL_RATIO_MAX:
            raise ValueError(
                f"p90 must be at most {_LOG_NORMAL_RATIO_MAX:.3f} times the mean, {_LOG_NORMAL_RATIO_MAX * self._mean:g}, "
                f"which is the limit of a log-normal distribution, got {p90!r}: {offer}"
            )
        if ratio <= 1:
            raise ValueError(f"p90 must be more than the mean, {mean!r}, got {p90!r}: {offer}, or a Constant")
        self._sigma = _Z90 - math.sqrt(max(0.0, _Z90**2 - 2 * math.log(ratio)))
        self._mu = math.log(self._mean) - self._sigma**2 / 2
        self._normal_quantile = NormalDist(self._mu, self._sigma).inv_cdf  # twice as fast as random.gauss

    @property
    def mean(self) -> float:
        """The mean."""
        return self._mean

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return self._sigma

    def quantile(self, part: float) -> float:
        """Return ``exp(mu + sigma z)``, where z is the same quantile of the standard normal distribution; 0 for 0."""
        _check_part(part)
        return math.exp(self._mu + self._sigma * _STANDARD(part)) if part else 0.0

    def draw(self, chance: random.Random) -> float:
        """Draw a value."""
        return math.exp(self._normal_quantile(chance.random() or 0.5))  # 0 has no quantile

    def __repr__(self) -> str:
        return f"LogNormal(mean={self._mean:g}, p90={self._p90:g})"


class Percentiles:
    """Values with known percentiles, and linear interpolation between them.

    Monitoring systems report such percentiles.

    Args:
        values: spans of time by percent: from 0, the least, to 100, the greatest; rising.

    Raises:
        TypeError: if ``values`` is not a mapping of numbers.
        ValueError: if 0 or 100 is missing, a percent or value is out of range, or the values fall.

    >>> times = Percentiles({0: 0.1, 50: 1, 90: 12, 99: 120, 100: 600})
    >>> times.quantile(0.9), round(times.mean, 3)
    (12.0, 12.415)
    """

    __slots__ = ("_parts", "_seconds")

    def __init__(self, values: Mapping[float, DurationLike]) -> None:
        if not hasattr(values, "items"):
            raise TypeError(f"values must be a mapping from percent to seconds, got {values!r}")
        points = sorted(
            (_number("values: a percent", part), delay_of("values", seconds)) for part, seconds in values.items()
        )
        if not points or points[0][0] != 0 or points[-1][0] != 100:
            raise ValueError(f"values must go from 0 percent, the least, to 100, the greatest, got {dict(points)!r}")
        if any(later[1] < earlier[1] for earlier, later in pairwise(points)):
            raise ValueError(f"values must not fall with the percent, got {dict(points)!r}")
        self._parts = [part / 100 for part, _ in points]
        self._seconds = [seconds for _, seconds in points]

    @property
    def mean(self) -> float:
        """The mean of the interpolated distribution."""
        pieces = zip(pairwise(self._parts), pairwise(self._seconds), strict=True)
        return math.fsum((end - begin) * (low + high) / 2 for (begin, end), (low, high) in pieces)

    def quantile(self, part: float) -> float:
        """Return the interpolated value."""
        _check_part(part)
        return self._at(part)

    def draw(self, chance: random.Random) -> float:
        """Draw a value."""
        return self._at(chance.random())

    def _at(self, part: float) -> float:
        parts, seconds = self._parts, self._seconds
        index = bisect_right(parts, part) - 1
        begin, low = parts[index], seconds[index]
        return low + (part - begin) / (parts[index + 1] - begin) * (seconds[index + 1] - low)

    def __repr__(self) -> str:
        return f"Percentiles({{{', '.join(f'{100 * part:g}: {value:g}' for part, value in zip(self._parts, self._seconds, strict=True))}}})"


class Sample:
    """Measured values: each is drawn as often as any other.

    Args:
        values: seconds, >= 0; at least one.

    Raises:
        TypeError: if a value is not a number.
        ValueError: if a value is out of range, or there are no values.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[float]) -> None:
        self._values = sorted(_number("values", value) for value in values)
        if not self._values:
            raise ValueError("values must contain at least one value, got none")

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return math.fsum(self._values) / len(self._values)

    def quantile(self, part: float) -> float:
        """Return the value below which a fraction of the values lie."""
        _check_part(part)
        return self._values[int(part * len(self._values))]

    def draw(self, chance: random.Random) -> float:
        """Draw one of the values."""
        return self._values[int(chance.random() * len(self._values))]

    def __repr__(self) -> str:
        return f"<Sample of {len(self._values)} values, mean {self.mean:g} s>"


def remaining_life(lives: Distribution) -> Callable[[random.Random], float]:
    """Return a function that draws how long a life still lasts, in seconds, which is met at an instant far from its beginning."""
    parts = [1 - 0.5**count for count in range(_HALVINGS + 1)]
    pieces = [(begin, end - begin, lives.quantile(end)) for begin, end in pairwise(parts)]
    weights = list(accumulate(width * largest for _, width, largest in pieces))
    if not weights[-1]:
        return lambda chance: 0.0  # noqa: ARG005  # all lives are 0

    def draw(chance: random.Random) -> float:
        while True:
            begin, width, largest = chance.choices(pieces, cum_weights=weights)[0]
            life = lives.quantile(begin + width * chance.random())
            if largest * chance.random() < life:
                return life * chance.random()

    return draw


def _number(name: str, value: Any) -> float:
    """Return a finite number >= 0."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be >= 0 and finite, got {value!r}")
    return float(value)


def _check_part(part: float) -> None:
    if not 0 <= part < 1:
        raise ValueError(f"part must be >= 0 and < 1, got {part!r}")
