"""Many calls of one kind under a rate: the simplest load, and the subject of most forecasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._runtime.arguments import count_of
from ratelimited_executor.simulation.distributions import Constant
from ratelimited_executor.simulation.limits import JOBS_MAX, NODES_MAX, check_most
from ratelimited_executor.simulation.simulation import Scenario

if TYPE_CHECKING:
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.simulation import Simulation

__all__ = ["Calls"]


@dataclass(kw_only=True)
class Calls(Scenario):
    """Many calls on one or several nodes that share a rate.

    All are due at the start, and each starts as soon as possible.

    Args:
        count: the number of calls.
        rate: permits over time for all nodes together, as for executors.
        nodes: the number of nodes.
        concurrency: the maximum number of running calls on each node; None for no limit.
        duration: the duration of each call in seconds.
        failures: the fraction of calls that fail.
        attempts: the maximum number of attempts.
    """

    days: ClassVar[float] = 1.0
    interval: ClassVar[float] = 60.0  # all start on time: the interval affects only the speed

    count: int = 100_000
    rate: float | str | Rate = 50.0
    nodes: int = 1
    concurrency: int | None = None
    duration: Distribution = field(default_factory=lambda: Constant(0.1))
    failures: float = 0.0
    attempts: int = 1

    def __post_init__(self) -> None:
        for name in ("count", "nodes", "attempts"):
            count_of(name, getattr(self, name), least=1)
        check_most("count", self.count, JOBS_MAX, "jobs")
        check_most("nodes", self.nodes, NODES_MAX, "nodes")
        if Rate.of(self.rate).is_zero:
            raise ValueError("rate must be > 0, or nothing is ever done, got 0")

    def setup(self, sim: Simulation) -> None:
        """Set up the nodes, and schedule the calls on them."""
        options: dict[str, Any] = {"rate": self.rate, "max_concurrency": self.concurrency, "pacing": Pacing.ON_TIME}
        if self.attempts > 1:
            options["retry"] = Retry(on=(Exception,), attempts=self.attempts)
        call = sim.job("call", self.duration, failures=self.failures)
        sim.fleet("node", self.nodes, **options).schedule_many(call, range(self.count))
