"""A fixed number of peers: an exact partition of the permits, without any I/O.

The permits of a rate are numbered from the epoch, on a grid that all processes compute identically. Of three peers::

    permits of the rate   0   1   2   3   4   5   6   7   8
    rank 0                ●           ●           ●
    rank 1                    ●           ●           ●
    rank 2                        ●           ●           ●

Every permit has one owner: in any time the parts add up to the permits of the rate, however few there are, and the starts
of the peers interleave. If the rate were divided instead, all peers would round in phase: three peers at 1/3 a second
would all start at the same instant.

The requirements: the number is right, no two peers have the same rank, and the clocks agree to a fraction of
``1 / rate``. The permits of a peer that is idle or gone lapse.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratelimited_executor._core.fixed import refusal

__all__ = ["StaticPeers"]


@dataclass(frozen=True, slots=True)
class StaticPeers:
    """Own every ``n``-th permit of the rate, those whose number is ``rank`` modulo ``n``.

    The peers together keep the rate in any window, provided that no two of them have the same rank: they are out of
    phase, and their starts interleave. Their clocks should agree to within a fraction of ``1 / rate``.

    Args:
        n: the number of peers that share the rate, >= 1.
        rank: the rank of this process, 0 <= rank < n.

    Raises:
        TypeError: if an argument is not an integer.
        ValueError: if it is out of range.
    """

    n: int
    rank: int

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("rank", self.rank)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
        if self.n < 1:
            raise ValueError(f"n must be >= 1, got {self.n}")
        if not 0 <= self.rank < self.n:
            raise ValueError(f"rank must be from 0 to n - 1 = {self.n - 1}, got {self.rank}")

    @property
    def count(self) -> int:
        """The number of peers that share the rate."""
        return self.n


def _refuse(self: StaticPeers, name: str, value: object = None) -> None:  # noqa: ARG001  # the signature of __setattr__
    raise refusal(self, name)


# In place of the dataclass's own, which raise TypeError for an unknown name if the class has slots.
StaticPeers.__setattr__ = StaticPeers.__delattr__ = _refuse  # type: ignore[method-assign, assignment]  # a frozen one has them for its own fields
