"""What the start of a job costs: permits and amounts of resources, given or drawn from distributions.

An amount is a function of the random number that was drawn for the job at its arrival, and of the name of the resource. So it
takes no number from any stream: a scenario with costs has the arrivals, durations and failures of the same one without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._runtime.arguments import count_of
from ratelimited_executor.simulation.chances import mixed

if TYPE_CHECKING:
    from ratelimited_executor.simulation.chances import Arriving
    from ratelimited_executor.simulation.distributions import Distribution

__all__ = ["JobCost"]


class JobCost:
    """The cost of the jobs of a kind.

    Args:
        cost: permits, >= 1; or a mapping from resource to amount, a whole number >= 0 or a distribution, of which the nearest
            whole number is taken.

    Attributes:
        fixed: the cost of all jobs; None if any amount is drawn.
        resources: the names of what it costs.

    Raises:
        TypeError: if the cost has another type.
        ValueError: if an amount is out of range, or no resource is named.
    """

    def __init__(self, cost: int | Mapping[str, int | Distribution]) -> None:
        amounts = dict(cost) if isinstance(cost, Mapping) else {PERMITS: cost}
        if not amounts:
            raise ValueError("cost must name a resource, such as {'tokens': 900}, got none")
        self.resources: Final = tuple(amounts)
        self._given = {name: _amount(name, each) for name, each in amounts.items() if not _is_drawn(each)}
        self._drawn: dict[str, tuple[int, Any]] = {
            name: (-2 - crc32(name.encode()), each) for name, each in amounts.items() if _is_drawn(each)
        }
        self.fixed: Final = None if self._drawn else self._given

    def of(self, luck: float) -> dict[str, int]:
        """Return the cost of a job.

        Args:
            luck: the number in [0, 1) that was drawn for the job.
        """
        found = dict(self._given)
        for name, (number, distribution) in self._drawn.items():
            found[name] = max(name == PERMITS, round(distribution.quantile(mixed(luck, number))))
        return found

    def of_arrival(self, arrival: Arriving) -> dict[str, int]:
        """Return the cost of a job that has arrived."""
        return self.of(arrival.luck)


def _is_drawn(amount: Any) -> bool:
    return callable(getattr(amount, "quantile", None))


def _amount(resource: str, amount: Any) -> int:
    """Return an amount, which is a whole number."""
    if isinstance(amount, float) and not amount.is_integer():
        raise ValueError(
            f"cost of {resource!r} must be a whole number, got {amount!r}: count it in a smaller unit, such as cents, here "
            "and in the resources of the executor"
        )
    return count_of(
        f"cost of {resource!r}", int(amount) if isinstance(amount, float) else amount, least=int(resource == PERMITS)
    )
