"""The busiest windows of a long run, by the audit of the test kit, in bounded memory.

``audit`` turns every start into an object, some 80 bytes; of 10 million starts that would be most of a gigabyte. So
longer runs are looked at in overlapping chunks, which see every window of up to half a chunk whole, and once from the
first start to the last, which sees a rate that is too high by a little for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ratelimited_executor.testing import AuditReport, audit, worst_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor import Rate

__all__ = ["busiest_second", "whole_excess", "worst_report"]

# Starts looked at together: about 40 MB for a moment.
CHUNK_STARTS: Final = 400_000


def busiest_second(starts: Sequence[float], *, chunk: int = CHUNK_STARTS) -> tuple[int, float]:
    """Return the most starts in any second, and when that second begins; ``starts`` rise and are not empty."""
    return max((worst_window(part, 1.0) for part in _chunks(starts, chunk)), key=lambda found: found[0])


def worst_report(starts: Sequence[float], rate: Rate, *, chunk: int = CHUNK_STARTS) -> AuditReport:
    """Return the audit of the worst window; ``starts`` rise and are not empty."""
    return max((audit(part, rate) for part in _chunks(starts, chunk)), key=lambda report: report.worst_excess)


def whole_excess(starts: Sequence[float], rate: Rate, *, slack: float = 0.02) -> float:
    """Return by how many starts the run as a whole exceeds the law; <= 0 is within it."""
    return len(starts) - float(rate) * (starts[-1] - starts[0] + slack) - 1


def _chunks(starts: Sequence[float], chunk: int) -> Iterator[Sequence[float]]:
    step = max(1, chunk // 2)
    for first in range(0, max(1, len(starts) - step), step):
        yield starts[first : first + chunk]
