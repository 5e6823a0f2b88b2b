"""The busiest windows of a long run, by the audit of the test kit, in bounded memory.

``audit`` turns every start into an object of some 80 bytes; for 10 million starts that would be most of a gigabyte. So
longer runs are audited in overlapping chunks, which contain every window of up to half a chunk, and once from the first
start to the last, which detects a rate that is slightly too high for a long time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from ratelimited_executor.testing import AuditReport, audit, worst_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor import Rate

__all__ = ["SLACK_SECONDS", "busiest_second", "whole_excess", "worst_report"]

_T = TypeVar("_T")
# Starts audited together: about 40 MB temporarily.
CHUNK_STARTS: Final = 400_000
SLACK_SECONDS: Final = 0.02  # of a pace: this checks how even the starts are


def busiest_second(starts: Sequence[float], *, chunk: int = CHUNK_STARTS) -> tuple[int, float]:
    """Return the most starts in any second, and the beginning of that second; ``starts`` rise and are not empty."""
    return max((worst_window(part, 1.0) for part in _chunks(starts, chunk)), key=lambda found: found[0])


def worst_report(
    starts: Sequence[float], rate: Rate, *, costs: Sequence[int] = (), chunk: int = CHUNK_STARTS
) -> AuditReport:
    """Return the audit of the worst window; ``starts`` rise and are not empty, ``costs`` are theirs if given."""
    parts = (
        zip(_chunks(starts, chunk), _chunks(costs, chunk), strict=True)
        if costs
        else ((part, None) for part in _chunks(starts, chunk))
    )
    return max(
        (audit(part, rate, slack=SLACK_SECONDS, costs=cost) for part, cost in parts),
        key=lambda report: report.worst_excess,
    )


def whole_excess(
    starts: Sequence[float], rate: Rate, *, costs: Sequence[int] = (), slack: float = SLACK_SECONDS
) -> float:
    """Return the permits by which the run as a whole exceeds the law; <= 0 is within the law."""
    total, last = (sum(costs), costs[-1]) if costs else (len(starts), 1)
    return total - float(rate) * (starts[-1] - starts[0] + slack) - last


def _chunks(values: Sequence[_T], chunk: int) -> Iterator[Sequence[_T]]:
    step = max(1, chunk // 2)
    for first in range(0, max(1, len(values) - step), step):
        yield values[first : first + chunk]
